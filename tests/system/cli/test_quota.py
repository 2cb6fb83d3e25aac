# SPDX-License-Identifier: Apache-2.0
"""The quota command. A failure here is a limit that does not hold, or holds against figures that are
wrong."""

import errno
import os
import time

from admin import DAMAGED, ask, fsck, kinds, refused
from cachefs import SLOW, wait_until
from syscalls import data, fails, user, write


def test_owner_quotas_count_what_was_there(ws, volume):
    """The first quota of an owner finds files that nobody has counted, under a mount too."""
    mnt = volume.mount("heartbeat=1")
    os.mkdir(mnt / "d")
    for i in range(5):
        write(mnt / "d" / str(i), data(10_000))
        os.chown(mnt / "d" / str(i), 1000, 1000)
    os.link(mnt / "d/0", mnt / "link")  # counts once
    # rows of an earlier time are not believed
    volume.sql("INSERT INTO jfs_user_group_quota (qtype, qkey, max_space, max_inodes, used_space, "
               "used_inodes) VALUES (1, 1000, -1, -1, 99, 99)")
    begin = time.monotonic()
    (q,) = ask(ws, "quota", "set", volume.url, "--uid", "1000", "--inodes", "6")
    assert (q["used_bytes"], q["used_inodes"]) == (5 * 12288, 5)
    # Mounts do not count owners yet: there is nothing of theirs to wait for.
    assert time.monotonic() - begin < 3.5 * SLOW

    def full():
        try:
            write(mnt / "d/x", b"")
            os.chown(mnt / "d/x", 1000, 1000)
            with user(1000, 1000):
                write(mnt / "d/0more", b"")
        except OSError as e:
            return e.errno == errno.EDQUOT
        finally:
            for n in ("d/x", "d/0more"):
                if os.path.exists(mnt / n):
                    os.unlink(mnt / n)

    os.chmod(mnt / "d", 0o777)
    # Files that are made before are not counted, and would be when they are removed.
    wait_until(lambda: "setting was changed" in mnt.log(), 30, "the mount to count owners")
    wait_until(full, 30, "the limit")
    mnt.umount()
    assert ask(ws, "quota", "repair", volume.url) is not None
    assert ask(ws, "quota", "check", volume.url) == []


def test_quota_of_directories(ws, volume):
    mnt = volume.mount()
    os.makedirs(mnt / "d/sub")
    write(mnt / "d/sub/f", data(20_000))
    url = volume.url
    (q,) = ask(ws, "quota", "set", url, "--path", "/d", "--capacity", "1M", "--inodes", "5")
    assert (q["max_bytes"], q["max_inodes"]) == (1 << 20, 5)
    assert (q["used_bytes"], q["used_inodes"], q["path"]) == (4096 + 20480, 2, "/d")

    mnt = mnt.remount()
    with fails("EDQUOT"):
        os.truncate(mnt / "d/sub/f", 2 << 20)
    with fails("EDQUOT"):
        write(mnt / "d/big", data(2 << 20), sync=True)
    os.unlink(mnt / "d/big")
    (q,) = ask(ws, "quota", "set", url, "--path", "/d", "--inodes", "7")
    assert (q["max_bytes"], q["max_inodes"]) == (1 << 20, 7)  # the rest stays
    assert ask(ws, "quota", "get", url, "--path", "/d") == ask(ws, "quota", "list", url)
    mnt.umount()
    assert ask(ws, "quota", "check", url) == []
    volume.sql("UPDATE jfs_dir_quota SET used_space=1, used_inodes=99")
    (bad,) = ask(ws, "quota", "check", url, code=DAMAGED)
    assert bad["real_bytes"] == 24576 and bad["real_inodes"] == 2 and not bad["repaired"]
    assert kinds(fsck(ws, volume, code=DAMAGED)) == ["quota"]
    assert ask(ws, "quota", "repair", url)[0]["repaired"]
    assert ask(ws, "quota", "check", url) == []
    ws.run("cachefs", "quota", "delete", url, "--path", "/d", check=True)
    assert ask(ws, "quota", "list", url) == []
    refused(ws, "quota", "delete", url, "--path", "/d")
    refused(ws, "quota", "get", url, "--path", "/d")


def test_quota_of_owners(ws, volume):
    mnt = volume.mount("heartbeat=1")
    os.chmod(mnt, 0o777)
    write(mnt / "r", data(10_000))
    write(mnt / "u", data(5000))
    os.chown(mnt / "u", 1000, 2000)
    url = volume.url
    refused(ws, "quota", "set", url, "--uid", "1000", "--capacity", "9000000000", code=1)
    (q,) = ask(ws, "quota", "set", url, "--uid", "1000", "--capacity", "1M")
    assert (q["kind"], q["used_bytes"], q["used_inodes"]) == ("user", 8192, 1)
    assert volume.setting()["UserGroupQuota"] is True
    (q,) = ask(ws, "quota", "set", url, "--gid", "2000", "--inodes", "50")
    assert (q["kind"], q["used_bytes"], q["used_inodes"], q["max_inodes"]) == ("group", 8192, 1, 50)
    assert len(ask(ws, "quota", "list", url)) == 2
    rows = volume.sql("SELECT qtype, qkey, used_inodes FROM jfs_user_group_quota ORDER BY 1, 2")
    assert rows == [(1, 0, 1), (1, 1000, 1), (2, 0, 1), (2, 2000, 1)]
    ws.run("cachefs", "quota", "delete", url, "--uid", "1000", check=True)
    assert [q["kind"] for q in ask(ws, "quota", "list", url)] == ["group"]
    mnt.umount()
    assert ask(ws, "quota", "check", url) == []


def test_quota_usage_errors(ws, volume):
    volume.mount().umount()
    refused(ws, "quota", "wish", volume.url, code=1)
    refused(ws, "quota", "set", volume.url, "--path", "/", "--inodes", "1", code=1, says="config")
    refused(ws, "quota", "set", volume.url, "--inodes", "1", code=1)
    refused(ws, "quota", "set", volume.url, "--path", "/", "--uid", "1", "--inodes", "1", code=1)
    refused(ws, "quota", "set", volume.url, "--uid", "1", code=1)
    refused(ws, "quota", "set", volume.url, "--path", "/none", "--inodes", "1", code=2)
    assert ask(ws, "quota", "list", volume.url) == []


def test_directories_below_each_other_do_not_hang(ws, volume):
    """As JuiceFS leaves them when two mounts move a into b and b into a."""
    mnt = volume.mount("heartbeat=1")
    os.makedirs(mnt / "a/b")
    os.mkdir(mnt / "d")
    ask(ws, "quota", "set", volume.url, "--path", "/d", "--inodes", "6")
    a, b = (os.stat(mnt / n).st_ino for n in ("a", "a/b"))
    fd = os.open(mnt / "a/b", os.O_DIRECTORY)
    volume.check_options = None
    volume.sql("UPDATE jfs_edge SET parent=? WHERE inode=?", b, a)
    volume.sql("UPDATE jfs_node SET parent=? WHERE inode=?", b, a)

    def refused_as_loop():
        try:
            os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
            os.unlink("x", dir_fd=fd)
        except OSError as e:
            return e.errno == errno.ELOOP

    wait_until(refused_as_loop, 30, "the look at the limits above")
    write(mnt / "d/f", b"x")
    os.close(fd)
