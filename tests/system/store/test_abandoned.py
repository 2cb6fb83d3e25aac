# SPDX-License-Identifier: Apache-2.0
"""Reads that no program waits for, while the bucket asks for a long pause. A failure here
is an unmount that takes minutes, or a machine that does not come down."""

import os
import signal
import subprocess
import threading

import proxy
import pytest

from cachefs import SLOW, tool, wait_until
from s3volume import S3Volume
from syscalls import data, read

BLOCK = 1 << 20
LONG = "io-timeout=300,get-timeout=300"
READER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY | (os.O_DIRECT if sys.argv[2] == "direct" else 0))
os.pread(fd, 4096, 0)
"""


def pauses(via, path="/chunks/", seconds=250, method="GET"):
    return via.add(
        method,
        path,
        status=503,
        headers={"Retry-After": str(seconds)},
        body=proxy.xml_error("SlowDown", "Please reduce your request rate."),
    )


@pytest.fixture
def cold(ws, s3, via):
    """Mounts a volume that has a file of eight blocks, of which nothing is in memory."""
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url, block_size="1M")
    content = data(8 * BLOCK)
    mnt = vol.mount()
    (mnt / "f").write_bytes(content)
    mnt.umount()

    def mount(opts=LONG):
        mnt = vol.mount(opts)
        mnt.allow("no success so far")
        return mnt, content

    return mount


def killed_reader(ws, mnt, how, waits):
    p = ws.python(READER, mnt / "f", how)
    wait_until(waits, 20, "the read to wait")
    p.kill()
    p.wait(20)


@pytest.mark.parametrize("how", ["direct", "cached"])
def test_unmount_after_a_killed_reader(ws, via, cold, how):
    mnt, _ = cold()
    fault = pauses(via)
    killed_reader(ws, mnt, how, lambda: fault.hits)
    mnt.umount(seconds=30)


@pytest.mark.parametrize("how", ["direct", "cached"])
def test_end_while_a_program_reads(ws, via, cold, how):
    """It is alive, so it gets an error, at once or when the kernel asks again."""
    mnt, _ = cold()
    mnt.allow("the object store is silent")
    fault = pauses(via)
    p = ws.python(READER, mnt / "f", how, stderr=-3)
    wait_until(lambda: fault.hits, 20, "the read to wait")
    mnt.terminate(seconds=30)
    assert p.wait(20 * SLOW) == 1


def test_unmount_while_blocks_are_read_ahead(via, cold):
    mnt, content = cold()
    fault = pauses(via, "_[2-7]_")
    with open(mnt / "f", "rb", buffering=0) as f:
        for at in range(0, BLOCK, 64 << 10):
            assert os.pread(f.fileno(), 64 << 10, at) == content[at : at + (64 << 10)]
    wait_until(lambda: fault.hits, 20, "blocks to be read ahead")
    mnt.umount(seconds=30)


def test_unmount_while_data_is_removed(via, cold):
    mnt, _ = cold()
    fault = pauses(via, "", method="DELETE|POST")
    os.unlink(mnt / "f")
    wait_until(lambda: fault.hits, 20, "the removal to wait")
    mnt.umount(seconds=30)


def test_unmount_during_a_compaction(via, cold):
    """It begins when a file with many records is opened."""
    mnt, _ = cold(LONG + ",no-bgjob")
    # That mount may compact as well. An upload that its end cancels may reach the bucket after its removal.
    mnt.volume.check_options["leaks"] = "warn"
    for i in range(6):
        with open(mnt / "f", "r+b", buffering=0) as f:
            os.pwrite(f.fileno(), b"x", i * 1000)
            os.fsync(f.fileno())
    mnt.umount()
    mnt, _ = cold()
    fault = pauses(via)
    os.close(os.open(mnt / "f", os.O_RDONLY))
    wait_until(lambda: fault.hits, 20, "the compaction to wait")
    mnt.umount(seconds=30)


def test_others_still_wait(ws, via, cold):
    """A program reads the block that the killed one has requested."""
    mnt, content = cold()
    fault = pauses(via, seconds=3)
    got = []
    other = threading.Thread(target=lambda: got.append(read(mnt / "f")))
    p = ws.python(READER, mnt / "f", "direct")
    wait_until(lambda: fault.hits, 20, "the read to wait")
    other.start()
    p.send_signal(signal.SIGKILL)
    p.wait(20)
    via.clear()
    other.join(60)
    assert got == [content]
    mnt.umount()


def test_data_is_stored_all_the_same(ws, via, cold):
    """The program that wrote it was killed, and the file system is unmounted during the pause."""
    mnt, _ = cold()
    fault = via.add("PUT", "/chunks/", times=1, status=503, headers={"Retry-After": "4"})
    writer = "import os, sys\nwith open(sys.argv[1], 'wb') as f: f.write(b'x' * 100000); f.flush(); os.fsync(f.fileno())"
    p = ws.python(writer, mnt / "new")
    wait_until(lambda: fault.hits, 20, "the upload to wait")
    p.kill()
    p.wait(20)
    mnt = mnt.remount()
    assert read(mnt / "new") == b"x" * 100000
    mnt.umount()


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_compaction_of_a_killed_command(ws, via, cold, method):
    """Another command compacts the file meanwhile."""
    mnt, _ = cold()
    with open(mnt / "g", "wb", buffering=0) as f:
        for i in range(3):
            f.write(data(1000, i))
            os.fsync(f.fileno())
    mnt.umount()
    mnt, _ = cold(LONG + ",put-timeout=300")
    fault = pauses(via, method=method)
    p = ws.popen([tool("cachefs"), "compact", mnt / "g"])
    wait_until(lambda: fault.hits, 20, "a request of the compaction")
    p.kill()
    p.wait(20)
    via.clear()

    def compacted():
        """One that begins before the requests of the killed command have ended waits with them."""
        p = ws.popen([tool("cachefs"), "compact", mnt / "g"], stdout=subprocess.PIPE, text=True)
        try:
            return "1 after" in p.communicate(timeout=3 * SLOW)[0]
        except subprocess.TimeoutExpired:
            p.kill()
            p.communicate()
            return False

    wait_until(compacted, 30, "compaction by another command")
    assert read(mnt / "g") == b"".join(data(1000, i) for i in range(3))
