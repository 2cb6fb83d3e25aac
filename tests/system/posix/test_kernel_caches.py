# SPDX-License-Identifier: Apache-2.0
"""Answers that the kernel keeps. If these fail, a program sees names that are gone, misses names that
are there, or the mount is asked what the kernel knows."""

import os
import sys

import pytest

from waiting import wait_until

sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir, "mount"))

from test_takeover import upgrade  # noqa: E402


def asked(mnt, work):
    """How many requests of the kernel a function causes."""
    a = mnt.stat("requests_total")
    b = mnt.stat("requests_total")
    work()
    return mnt.stat("requests_total") - b - (b - a)


def absent(path):
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    return False


@pytest.mark.parametrize("seconds", [0, 60])
def test_absent_names(volume, seconds):
    mnt, other = volume.mount("negative-entry-cache=%d" % seconds), volume.mount()
    (other / "d").mkdir()

    def look():
        assert all(absent(mnt / "d" / "no") for _ in range(20))

    look()
    n = asked(mnt, look)
    assert n <= 1 if seconds else n >= 20
    # what this mount makes is there at once, in each way of making it
    (mnt / "d" / "no").write_bytes(b"x")
    assert (mnt / "d" / "no").read_bytes() == b"x"
    os.rename(mnt / "d" / "no", mnt / "d" / "other")
    look()
    os.link(mnt / "d" / "other", mnt / "d" / "no")
    assert not absent(mnt / "d" / "no")
    os.unlink(mnt / "d" / "no")
    look()
    os.mkdir(mnt / "d" / "no")
    assert not absent(mnt / "d" / "no")


def test_absent_name_that_another_mount_makes(volume):
    mnt, other = volume.mount("negative-entry-cache=1"), volume.mount()
    for i in range(5):
        assert absent(mnt / ("f%d" % i))
        (other / ("f%d" % i)).write_bytes(b"x")
        wait_until(lambda: not absent(mnt / ("f%d" % i)), 5, "the name")
    # it is not made a second time, whatever the kernel keeps
    assert absent(mnt / "g")
    (other / "g").write_bytes(b"other")
    with pytest.raises(FileExistsError):
        os.open(mnt / "g", os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def test_names_are_looked_up_again_after_an_upgrade(ws, volume):
    """It may have shorter times, and the kernel has been told the longer ones."""
    long = "attr-cache=600,entry-cache=600,dir-entry-cache=600,negative-entry-cache=600"
    mnt, other = volume.mount(long), volume.mount()
    (mnt / "d").mkdir()
    (mnt / "d" / "f").write_bytes(b"x")
    assert absent(mnt / "d" / "g")
    os.rename(other / "d" / "f", other / "d" / "g")
    assert absent(mnt / "d" / "g")
    assert not absent(mnt / "d" / "f")
    upgrade(ws, volume, mnt, "attr-cache=0,entry-cache=0,dir-entry-cache=0,negative-entry-cache=0")
    kernel = tuple(int(n) for n in os.uname().release.split(".")[:2])
    if kernel < (6, 16):
        pytest.skip("the kernel has no FUSE_NOTIFY_INC_EPOCH")
    wait_until(lambda: not absent(mnt / "d" / "g") and absent(mnt / "d" / "f"), 10, "the change")
