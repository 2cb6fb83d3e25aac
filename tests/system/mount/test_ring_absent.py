# SPDX-License-Identifier: Apache-2.0
"""Mounts that cannot have a ring. If these fail, they do not work, or nobody learns why they have none."""

import pytest

from cachefs import tool, wait_until
from ring import SWITCH, failing, need_ring, switched
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


NO_DESCRIPTORS = {"limit": "--nofile=64:64"}  # each thread of a ring has one
NO_ANSWERS = {"env": {"SOCKETPAIR_FAILS": "2"}}  # the first one is for the answer to FUSE_INIT


def mount_without(volume, lacks, opts, **kwargs):
    lacks = dict(lacks)
    if "env" in lacks:
        lacks["env"] = failing(volume.ws, **lacks["env"])
    return volume.mount("supervise=false" + opts, **lacks, **kwargs)


@pytest.mark.parametrize("lacks", [NO_DESCRIPTORS, NO_ANSWERS], ids=["descriptors", "answers"])
def test_ring_for_which_something_lacks(volume, lacks):
    """Once the kernel uses the ring, which begins with the first few threads, it does not go back to the device: it must
    not begin before all threads have what they need. Until it is told to use the device it holds requests back."""
    need_ring()
    with switched("Y"):
        mnt = mount_without(volume, lacks, "", wait=False)
        wait_until(lambda: "as the ring cannot be started: mount=%s error=EMFILE" % mnt in mnt.log(), 10, "the decision")
    try:
        volume.ws.run("stat", "-f", mnt, timeout=20, check=True)
    except AssertionError:
        mnt.kill_all()  # unmounting would wait, too
        raise
    assert mnt.stat("fuse_io_uring") == 0
    write(mnt / "f", b"device")
    assert read(mnt / "f") == b"device"


@pytest.mark.parametrize("lacks", [NO_DESCRIPTORS, NO_ANSWERS], ids=["descriptors", "answers"])
def test_mount_that_insists_ends_when_something_lacks(volume, lacks):
    """It is mounted already. Programs must not get answers that come through the device."""
    need_ring()
    with switched("Y"):
        mnt = mount_without(volume, lacks, ",io_uring=on", wait=False, expect="io_uring=on")
        assert mnt.process.wait(30) != 0
    wait_until(lambda: not mnt.mounted(), 10, "the end of the mount")
    mnt.ended = True
    assert "io_uring=on: the ring cannot be started, the mount ends: mount=%s error=EMFILE" % mnt in mnt.log()


def test_mount_that_insists_fails_when_the_kernel_offers_none(ws, volume):
    """The switch was turned off while the kernel sent its first request."""
    need_ring()
    ws.path("on").write_text("Y\n")
    point = ws.path("mnt")
    point.mkdir()
    argv = [tool("cachefs"), "mount", "--foreground", "-o", "supervise=false,io_uring=on", volume.url, point]
    with switched("N"):
        r = ws.run("unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"',
                   ws.path("on"), SWITCH, *argv, timeout=10)
    assert r.returncode != 0
    assert "io_uring=on: the kernel does not offer it" in r.stderr
