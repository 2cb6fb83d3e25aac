# SPDX-License-Identifier: Apache-2.0
"""The changelog of a volume: work that every kind of line comes of, and what the lines must look like
(the format's section on the changelog)."""

import fcntl
import os
import re

from syscalls import data, fallocate, write


def work(ws, volume):
    mnt = volume.mount()
    os.mkdir(mnt / "dir")
    write(mnt / "dir/a, b", data(5000))
    os.truncate(mnt / "dir/a, b", 100)
    fd = os.open(mnt / "dir/a, b", os.O_RDWR)
    fallocate(fd, 0, 0, 10_000)
    fcntl.flock(fd, fcntl.LOCK_EX)
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 5)
    os.copy_file_range(fd, fd, 50, 0, 20_000)
    os.close(fd)
    os.setxattr(mnt / "dir", "user.k", b"v")
    os.removexattr(mnt / "dir", "user.k")
    os.chmod(mnt / "dir", 0o700)
    os.link(mnt / "dir/a, b", mnt / "link")
    os.symlink("target", mnt / "sym")
    os.rename(mnt / "link", mnt / "moved")
    ws.run("cachefs", "clone", mnt / "dir", mnt / "copy", check=True)
    ws.run("cachefs", "compact", mnt / "dir", check=True)
    os.unlink(mnt / "moved")
    os.unlink(mnt / "dir/a, b")
    os.rmdir(mnt / "dir")
    mnt.umount()
    ws.run("cachefs", "quota", "set", volume.url, "--path", "/copy", "--inodes", "9", check=True)
    ws.run("cachefs", "config", volume.url, "--tier", "2", "--storage-class", "COLD", check=True)
    ws.run("cachefs", "tier", "set", volume.url, "--tier", "2", "/copy", check=True)


def judge(lines):
    form = re.compile(r"^\d+\.\d{9}\|([A-Z_]+)\((.*)\)(:\d+)?\|\(\d+,\d+\)$")
    seen = [form.match(x) for x in lines]
    assert all(seen), [x for x, m in zip(lines, seen) if not m]
    kinds = {m.group(1) for m in seen}
    want = "NEWSESSION CREATE WRITE TRUNCATE FALLOCATE FLOCK SETLK COPYFILERANGE SETXATTR REMOVEXATTR"
    want += " SETATTR LINK MOVE CLONE ATTACH UNLINK RMDIR CLEANSESSION SETQUOTA INCR_COUNTER"
    assert set(want.split()) - kinds == set()

    def names(kind, at):
        return [m.group(2).split(",")[at] for m in seen if m.group(1) == kind]

    assert names("CREATE", 1)[:3] == ["dir", "a%2C b", "sym"]
    assert names("UNLINK", 1) == ["moved", "a%2C b"] and names("RMDIR", 1) == ["dir"]
    assert names("MOVE", 1) == ["link"] and names("MOVE", 3) == ["moved"]
    assert names("LINK", 2) == ["link"]
    # the mask's bit of the tier, and the tier behind all other fields
    changes = [m.group(2).split(",") for m in seen if m.group(1) == "SETATTR"]
    assert [(x[1], x[-1]) for x in changes if int(x[1]) & 1024] == [("1024", "2")]
