# SPDX-License-Identifier: Apache-2.0
"""A disk under file storage that takes blocks and cannot write them: the kernel says so once, to
whoever syncs first. A failure here is a program whose fsync says that its bytes are safe, while
another one was told that they are not."""

import contextlib
import os
import re
import signal
import subprocess
import threading

import pytest

from cachefs import SLOW, wait_until
from syscalls import data, fails, read, syncfs
from test_takeover import DEATH, kill_worker, upgrade

SIZE = 1_000_000


class Disk:
    """A file system for the bucket on a loop device, whose sectors have no room any more once it is
    full. Its content is kept at the end as a plain directory, for the checker."""

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


# ---- the process that knew of it is gone ----


@pytest.fixture(params=["kill", "upgrade"])
def next_process(request, ws, volume, mnt):
    return lambda: kill_worker(mnt) if request.param == "kill" else upgrade(ws, volume, mnt, "io-timeout=20s")


def all_lost(mnt, lost, safe):
    """Of `lost`, by name; written again they are safe."""
    for _ in range(2):
        for fd in lost.values():
            with fails("EIO", "ENOSPC"):
                os.fsync(fd)
    os.fsync(safe)
    for i, fd in enumerate(lost.values()):
        os.pwrite(fd, data(SIZE, 10 + i), 0)
        os.fsync(fd)
        os.close(fd)
    os.close(safe)
    for i, name in enumerate(lost):
        assert read(mnt / name) == data(SIZE, 10 + i)
    assert read(mnt / "safe") == data(SIZE, 0)


def test_a_failed_sync_is_not_forgotten_by_the_next_process(mnt, disk, next_process):
    safe = stored(mnt, "safe", 0)
    os.fsync(safe)
    writer, closed, bystander = (stored(mnt, name, 1) for name in ("writer", "closed", "bystander"))
    os.close(closed)
    disk.fill()
    with fails("EIO", "ENOSPC"):
        os.fsync(bystander)
    disk.free()
    next_process()
    late = os.open(mnt / "closed", os.O_RDWR)
    all_lost(mnt, {"writer": writer, "closed": late, "bystander": bystander}, safe)


def test_the_next_process_hears_of_what_failed_before_it(mnt, disk, next_process):
    """Another program was told meanwhile: those who open the disk afterwards are not."""
    safe = stored(mnt, "safe", 0)
    os.fsync(safe)
    writer = stored(mnt, "writer", 1)
    disk.fill()
    with fails("EIO", "ENOSPC"):
        syncfs(disk.bucket)
    with contextlib.suppress(OSError):  # the last of what it had to write
        syncfs(disk.bucket)
    disk.free()
    next_process()
    all_lost(mnt, {"writer": writer}, safe)


def test_a_process_that_dies_in_a_sync_takes_no_failure_along(ws, mnt, disk):
    """The kernel has told it, and it could tell nobody."""
    safe = stored(mnt, "safe", 0)
    os.fsync(safe)
    writer = stored(mnt, "writer", 1)
    disk.fill()
    seen = ws.path("strace")
    hold = ["-e", "trace=syncfs", "-e", "inject=syncfs:delay_exit=%d" % (60 * SLOW * 10**6)]
    tracer = subprocess.Popen(
        ["strace", "-f", "-p", str(mnt.pid()), "-o", seen, *hold], stderr=subprocess.PIPE, text=True
    )
    ws.cleanups.append(tracer.kill)
    assert "attached" in tracer.stderr.readline()
    answer = []

    def sync():
        try:
            os.fsync(writer)
            answer.append(0)
        except OSError as e:
            answer.append(e.errno)

    asker = threading.Thread(target=sync)
    asker.start()
    wait_until(lambda: re.search(r"syncfs\(\d+\) += -1 ENOSPC", read(seen).decode()), 20, "the kernel's answer")
    disk.free()
    mnt.allow(DEATH)
    os.kill(mnt.pid(), signal.SIGKILL)
    tracer.kill()  # which the dead wait for
    asker.join(30 * SLOW)
    assert answer and answer != [0], answer
    all_lost(mnt, {"writer": writer}, safe)


def test_what_is_well_stays_well_in_the_next_process(mnt, disk, next_process):
    """Its blocks wait for a sync, and nothing has failed."""
    files = [stored(mnt, str(i), i) for i in range(3)]
    next_process()
    for i, fd in enumerate(files):
        os.fsync(fd)
        os.close(fd)
        assert read(mnt / str(i)) == data(SIZE, i)
