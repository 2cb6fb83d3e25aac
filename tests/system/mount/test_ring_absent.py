# SPDX-License-Identifier: Apache-2.0
"""Mounts that cannot have a ring. If these fail, they do not work, or nobody learns why they have none."""

import pytest

from cachefs import wait_until
from ring import need_ring, switched
from syscalls import read, write


@pytest.mark.parametrize(
    "switch, opts, reason",
    [("N", "supervise=false", "enable_uring"), ("Y", "", "supervise=false"), ("Y", "io_uring=off", None)],
)
def test_mount_goes_on_with_the_device(volume, switch, opts, reason):
    need_ring()
    with switched(switch):
        mnt = volume.mount(opts)
    assert mnt.stat("fuse_io_uring") == 0
    lines = [x for x in mnt.log().splitlines() if "come through the device" in x]
    assert len(lines) == (1 if reason else 0)
    assert all(str(mnt) in x and reason in x for x in lines)
    write(mnt / "f", b"device")
    assert read(mnt / "f") == b"device"


@pytest.mark.parametrize(
    "switch, opts, reason", [("N", "supervise=false,io_uring=on", "enable_uring"), ("Y", "io_uring=on", "supervise=false")]
)
def test_mount_that_insists_fails(ws, volume, switch, opts, reason):
    need_ring()
    with switched(switch):
        mnt = volume.mount(opts, wait=False, expect="io_uring=on")
        assert mnt.process.wait(30) != 0
    wait_until(lambda: not mnt.mounted(), 10, "the end of the mount")
    mnt.ended = True
    assert "io_uring=on: " in mnt.log() and reason in mnt.log()


def test_ring_for_which_something_lacks(volume):
    """Each thread of a ring has a descriptor. Once the kernel uses the ring, which begins with the first few threads,
    it does not go back to the device: it must not begin before all threads have what they need."""
    need_ring()
    with switched("Y"):
        mnt = volume.mount("supervise=false", limit="--nofile=64:64")
    line = "as the ring cannot be started: mount=%s error=EMFILE" % mnt
    wait_until(lambda: line in mnt.log(), 10, "the decision, which requests on the device do not wait for")
    assert mnt.stat("fuse_io_uring") == 0
    write(mnt / "f", b"device")
    assert read(mnt / "f") == b"device"
