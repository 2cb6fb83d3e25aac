# SPDX-License-Identifier: Apache-2.0
"""Bytes requested from a bucket for each byte that programs read. When these fail, users pay for data that
they never read, or their second epoch goes to the bucket again."""

import mmap
import os
import random
import re
import sys

import pytest

from cachefs import SLOW, wait_until
from s3volume import S3Volume

MIB = 1 << 20
BLOCK = 4 * MIB
SIZE = 192 * MIB
ACROSS = """
import mmap, os, sys
path, how, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if how == "direct" else 0))
if how == "direct":
    os.preadv(fd, [mmap.mmap(-1, 1 << 20)], at - (1 << 19))
else:
    mmap.mmap(fd, 0, prot=mmap.PROT_READ)[at]
"""


def requested(via):
    """Bytes of all GETs of blocks since the last clear(), by what they ask for."""
    total = 0
    for r in via.seen("GET", "/chunks/"):
        part = re.fullmatch(r"bytes=(\d+)-(\d+)", r.headers.get("range", ""))
        total += int(part[2]) - int(part[1]) + 1 if part else int(r.path.rpartition("_")[2])
    return total


@pytest.fixture
def vol(ws, s3, via):
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount()
    piece = os.urandom(BLOCK)
    with open(mnt / "f", "wb", buffering=0) as f:
        for _ in range(SIZE // BLOCK):
            f.write(piece)
        os.fsync(f.fileno())
    mnt.umount()
    return vol


def read_at(path, offsets, size, flags=0):
    buffer = mmap.mmap(-1, size)
    fd = os.open(path, os.O_RDONLY | flags)
    for at in offsets:
        assert os.preadv(fd, [buffer], at) == size
    os.close(fd)


def ratio(vol, via, offsets, size, flags=0):
    """Of requested to read bytes, by a fresh mount."""
    mnt = vol.mount()
    via.clear()
    read_at(mnt / "f", offsets, size, flags)
    mnt.umount()  # no read-ahead is under way any more
    return requested(via) / (len(offsets) * size)


def test_large_random_reads(vol, via):
    """Reads of 4 MiB, which arrive as requests of 1 MiB, are no streams. Through the page cache the kernel
    requests up to 2 MiB beyond each of them itself."""
    rng = random.Random(4)
    count = SIZE // BLOCK
    blocks = [i * BLOCK for i in rng.sample(range(count), count)]
    anywhere = [rng.randrange((SIZE - BLOCK) // 4096) * 4096 for _ in range(count // 2)]
    found = {
        (name, flags): ratio(vol, via, offsets, BLOCK, flags)
        for name, offsets in (("blocks", blocks), ("anywhere", anywhere))
        for flags in (0, os.O_DIRECT)
    }
    print(found)
    assert found["blocks", 0] <= 1.2, found
    assert found["blocks", os.O_DIRECT] <= 1.15, found
    assert found["anywhere", 0] <= 1.65, found
    assert found["anywhere", os.O_DIRECT] <= 1.4, found


@pytest.mark.parametrize("how", ["direct", "fault"])
def test_blocks_of_one_read_are_fetched_at_the_same_time(ws, vol, via, how):
    """A read across the border of two blocks waits once for a distant bucket, not twice. A fault is such a read:
    the kernel reads around it."""
    mnt = vol.mount("prefetch=0")
    via.clear()
    via.add("GET", "/chunks/", delay=SLOW)
    ws.run(sys.executable, "-c", ACROSS, mnt / "f", how, str(10 * BLOCK), check=True, timeout=60 * SLOW)
    first, second = via.seen("GET", "/chunks/")[:2]
    assert first.path != second.path
    assert second.at - first.at < SLOW / 2


def test_streams(vol, via):
    """Each byte of a stream is requested once, also of two that take turns in one file."""
    half = SIZE // 2
    one = list(range(0, SIZE, MIB))
    two = [at + start for at in range(0, half, MIB) for start in (0, half)]
    for offsets in (one, two):
        assert 0.99 <= ratio(vol, via, offsets, MIB) <= 1.1
        gets = len(via.seen("GET", "/chunks/"))
        assert gets <= SIZE // BLOCK * 3 // 2, gets


def test_second_epoch_is_local(ws, vol, via):
    """Random reads of 1 MiB fill a disk cache that has room with whole blocks."""
    cache = "cache-dir=%s,free-space-ratio=0" % ws.path("cache")
    rng = random.Random(5)
    offsets = [i * BLOCK + rng.randrange(4) * MIB for i in rng.sample(range(SIZE // BLOCK), SIZE // BLOCK)]
    mnt = vol.mount(cache)
    for done in range(8, len(offsets) + 1, 8):  # the queue of the cache's writer is bounded
        read_at(mnt / "f", offsets[done - 8 : done], MIB, os.O_DIRECT)
        wait_until(lambda: mnt.stat("disk_cache_blocks") >= done, 30)
    mnt = mnt.remount(cache)
    via.clear()
    read_at(mnt / "f", [at * MIB for at in rng.sample(range(SIZE // MIB), SIZE // MIB)], MIB, os.O_DIRECT)
    assert requested(via) == 0
    mnt.umount()
