# SPDX-License-Identifier: Apache-2.0
"""Access times: what a program finds that decides by them what may be thrown away."""

import os
import time

import pytest

from cachefs import wait_until
from syscalls import data, read, write


def set_atime(path, seconds_ago):
    st = os.stat(path)
    at = time.time_ns() - int(seconds_ago * 10**9)
    os.utime(path, ns=(at, st.st_mtime_ns))
    return at


def stored_atime(mnt, path):
    ino = os.stat(path).st_ino
    a, ns = mnt.volume.sql("SELECT atime, atimensec FROM jfs_node WHERE inode=?", ino)[0]
    return a * 1000 + ns


def make_all(mnt):
    write(mnt / "f", b"x" * 10)
    os.mkdir(mnt / "d")
    os.symlink("f", mnt / "l")


def use(mnt, name):
    if name == "f":
        read(mnt / "f")
    elif name == "d":
        os.listdir(mnt / "d")


@pytest.mark.parametrize("name", ["f", "d"])
def test_noatime_is_the_default(mnt, name):
    make_all(mnt)
    at = set_atime(mnt / name, 3 * 24 * 3600)
    use(mnt, name)
    assert stored_atime(mnt, mnt / name) == at


@pytest.mark.parametrize("name", ["f", "d"])
def test_relatime(ws, name):
    mnt = ws.volume("vol").mount("atime-mode=relatime,attr-cache=0")
    make_all(mnt)
    # setting times moves ctime behind atime: due once, then not for a day
    at = set_atime(mnt / name, 3600)
    use(mnt, name)
    first = stored_atime(mnt, mnt / name)
    assert first > at
    use(mnt, name)
    assert stored_atime(mnt, mnt / name) == first
    assert os.stat(mnt / name).st_atime_ns == first
    # more than a day old, with everything else older still
    old = (time.time_ns() - 25 * 3600 * 10**9) // 1000
    ino = os.stat(mnt / name).st_ino
    sql = "UPDATE jfs_node SET atime=?, mtime=?, ctime=? WHERE inode=?"
    mnt.volume.sql(sql, old, old - 10, old - 10, ino)
    use(mnt, name)
    assert stored_atime(mnt, mnt / name) > first


@pytest.mark.parametrize("name", ["f", "d"])
def test_strictatime(ws, name):
    mnt = ws.volume("vol").mount("atime-mode=strictatime,attr-cache=0")
    make_all(mnt)

    def used_at_once():
        """Not a second old: it stays; False when the machine took longer."""
        at = set_atime(mnt / name, 0)
        kept = stored_atime(mnt, mnt / name)
        use(mnt, name)
        found = stored_atime(mnt, mnt / name)
        if time.time_ns() - at > 10**9:
            return False
        assert found == kept
        return True

    wait_until(used_at_once, 30, "a use within a second")
    at = set_atime(mnt / name, 2)
    use(mnt, name)
    assert stored_atime(mnt, mnt / name) > at
    ctime = os.stat(mnt / name).st_ctime_ns
    set_atime(mnt / name, 2)
    use(mnt, name)
    assert os.stat(mnt / name).st_mtime_ns <= ctime


def test_strictatime_of_symlinks(ws):
    mnt = ws.volume("vol").mount("atime-mode=strictatime,attr-cache=0")
    os.symlink("target", mnt / "l")
    at = time.time_ns() - 5 * 10**9
    os.utime(mnt / "l", ns=(at, at), follow_symlinks=False)
    mnt = mnt.remount()  # the kernel keeps targets
    os.readlink(mnt / "l")
    assert os.lstat(mnt / "l").st_atime_ns > at


def test_a_long_read_moves_the_access_time(ws):
    """The access time of a reader that goes on for hours is recent."""
    mnt = ws.volume("vol").mount("atime-mode=strictatime,attr-cache=0")
    write(mnt / "f", data(200_000))
    fd = os.open(mnt / "f", os.O_RDONLY | os.O_DIRECT)
    import mmap

    buf = mmap.mmap(-1, 4096)
    at = set_atime(mnt / "f", 100)

    def moved():
        os.preadv(fd, [buf], 0)
        return stored_atime(mnt, mnt / "f") > at

    wait_until(moved, 10, "the access time")
    before = mnt.stat('meta_operations_total{op="setattr"}')
    start = time.monotonic()
    for _ in range(500):
        os.preadv(fd, [buf], 0)
    stored = mnt.stat('meta_operations_total{op="setattr"}') - before
    assert stored <= 1 + time.monotonic() - start  # once a second
    os.close(fd)


def test_o_noatime(ws):
    mnt = ws.volume("vol").mount("atime-mode=strictatime,attr-cache=0")
    write(mnt / "f", b"x")
    at = set_atime(mnt / "f", 100)
    fd = os.open(mnt / "f", os.O_RDONLY | os.O_NOATIME)
    os.read(fd, 10)
    os.close(fd)
    assert stored_atime(mnt, mnt / "f") == at
