# SPDX-License-Identifier: Apache-2.0
"""A disk under file storage that takes blocks and cannot write them: the kernel says so once, to
whoever syncs first. A failure here is a program whose fsync says that its bytes are safe, while
another one was told that they are not."""

import os
import subprocess

import pytest

from cachefs import SLOW
from syscalls import data, fails, read

SIZE = 1_000_000


class Disk:
    """A file system for the bucket on a loop device, whose sectors have no room any more once it is
    full. What is kept of it at the end is a plain directory, for the checker."""

    def __init__(self, ws, bucket):
        self.below, self.bucket, self.kept = ws.path("below"), bucket, ws.path("kept")
        os.mkdir(self.below)
        os.mkdir(bucket)
        self.run("mount", "-t", "tmpfs", "-o", "size=64m", "cachefs-test", self.below)
        ws.cleanups.append(lambda: self.run("umount", "-l", self.below))
        image = os.path.join(self.below, "image")
        with open(image, "wb") as f:
            f.truncate(256 << 20)
        self.run("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "nodiscard", image)
        self.run("mount", "-o", "loop", image, bucket)
        ws.cleanups.append(self.keep)

    def run(self, *args):
        subprocess.run(args, check=True, timeout=60 * SLOW)

    def keep(self):
        self.run("cp", "-a", self.bucket, self.kept)
        self.run("umount", "-l", self.bucket)
        os.rmdir(self.bucket)
        os.rename(self.kept, self.bucket)

    def fill(self):
        with open(os.path.join(self.below, "filler"), "wb", buffering=0) as f, fails("ENOSPC"):
            while True:
                f.write(b"x" * 65536)

    def free(self):
        os.unlink(os.path.join(self.below, "filler"))


@pytest.fixture
def disk(ws):
    return Disk(ws, ws.path("vol-bucket"))


@pytest.fixture
def mnt(disk, volume):
    return volume.mount("io-timeout=20s", expect="durable|not stored|cannot be stored|not compacted")


def stored(mnt, name, seed):
    """Its blocks are in the bucket, and nobody has synced them."""
    fd = os.open(mnt / name, os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, data(SIZE, seed), 0)
    os.close(os.dup(fd))
    return fd


def test_a_failed_sync_reaches_all_whom_it_concerns(mnt, disk):
    safe = stored(mnt, "safe", 0)
    os.fsync(safe)
    writer, closed = stored(mnt, "writer", 1), stored(mnt, "closed", 2)
    os.close(closed)
    bystander = stored(mnt, "bystander", 3)
    disk.fill()
    with fails("EIO", "ENOSPC"):
        os.fsync(bystander)
    disk.free()
    late = os.open(mnt / "closed", os.O_RDWR)
    for _ in range(2):  # what is gone stays gone
        for fd in (writer, late, bystander):
            with fails("EIO"):
                os.fsync(fd)
    os.fsync(safe)
    # Written again it is safe: only the bytes that are left of the first time are suspect.
    for i, fd in enumerate((writer, late, bystander)):
        os.pwrite(fd, data(SIZE // 2, 10 + i), 0)
        with fails("EIO"):
            os.fsync(fd)
        os.pwrite(fd, data(SIZE, 10 + i), 0)
        os.fsync(fd)
    for fd in (safe, writer, late, bystander):
        os.close(fd)
    for i, name in enumerate(("writer", "closed", "bystander")):
        assert read(mnt / name) == data(SIZE, 10 + i)
    assert read(mnt / "safe") == data(SIZE, 0)
