# SPDX-License-Identifier: Apache-2.0
"""Large directories and deep trees. A failure here is a listing that lies or a mount that grows.

CACHEFS_LONG=1: a million entries and a hundred thousand levels."""

import os
import threading

import pytest

from cachefs import SLOW
from syscalls import Dir, fails, write

LONG = bool(os.environ.get("CACHEFS_LONG"))
ENTRIES = 1_000_000 if LONG else 100_000
LEVELS = 100_000 if LONG else 2_000
WORKERS = 4
SECONDS = 7200 if LONG else 150
RSS_MARGIN_KIB = 24 << 10  # allocator and readdir buffers, independent of the directory's size


def anonymous_kib(mnt):
    """Pages of the mapped database are the page cache's: not counted."""
    with open("/proc/%d/status" % mnt.pid()) as f:
        return next(int(x.split()[1]) for x in f if x.startswith("RssAnon"))


def name(i):
    return "entry-%07d" % i


def in_parallel(work):
    """work(k) for k in 0..WORKERS-1; the first failure is the test's."""
    failed = []

    def run(k):
        try:
            work(k)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(WORKERS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(SECONDS * SLOW)
        assert not t.is_alive(), "still at work"
    if failed:
        raise failed[0]


def fill(where, n):
    """n empty files."""
    fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY)

    def work(k):
        for i in range(k, n, WORKERS):
            os.mknod(name(i), 0o100644, dir_fd=fd)

    try:
        in_parallel(work)
    finally:
        os.close(fd)


def listed(where):
    with Dir(where) as d:
        return [x.decode() for x in d.names()]


@pytest.mark.long
@pytest.mark.deadline(SECONDS)
def test_big_directory(ws, volume):
    """List, list while others delete and create: nothing stable is skipped or comes twice, and the
    mount's memory does not follow the size of the directory."""
    mnt = volume.mount("attr-cache=0")
    top = mnt / "big"
    os.mkdir(top)
    write(top / "warm-up", b"1")
    listed(top)
    fill(top, ENTRIES)
    os.unlink(top / "warm-up")
    mnt = mnt.remount()
    before = anonymous_kib(mnt)
    every = {name(i) for i in range(ENTRIES)}
    for _ in range(2):
        got = listed(top)
        assert len(got) == ENTRIES and set(got) == every
    listings = anonymous_kib(mnt)
    assert listings - before < RSS_MARGIN_KIB, "listing: %d -> %d KiB" % (before, listings)

    stop = threading.Event()
    gone = set()

    def disturb():
        i = 0
        while not stop.is_set() and i < ENTRIES:
            os.unlink(top / name(i))
            gone.add(name(i))
            write(top / ("new-%07d" % i), b"")
            i += 7

    t = threading.Thread(target=disturb, daemon=True)
    t.start()
    try:
        for _ in range(2):
            got = listed(top)
            assert len(got) == len(set(got)), "a name came twice"
            may_miss = {name(i) for i in range(0, ENTRIES, 7)}
            assert every - may_miss <= set(got), "stable names are missing"
            assert not any(x not in every and not x.startswith("new-") for x in got)
    finally:
        stop.set()
        t.join(60 * SLOW)
    got = set(listed(top))
    assert got & gone == set()
    assert got == (every - gone) | {x.replace("entry-", "new-") for x in gone}

    # deleting by the listing itself, as rm -r does
    with Dir(top) as d:
        n = 0
        for x in iter(d.read, None):
            if x in (b".", b".."):
                continue
            n += 1
            if n % 50 == 0:
                os.unlink(os.fsencode(top) + b"/" + x)
    assert n == len(got)
    after = anonymous_kib(mnt)
    print("anonymous KiB: mounted %d, listed %d, at the end %d" % (before, listings, after))
    assert after - before < 2 * RSS_MARGIN_KIB, "%d -> %d KiB" % (before, after)
    with fails("ENOTEMPTY"):
        os.rmdir(top)


@pytest.mark.long
@pytest.mark.deadline(SECONDS)
def test_deep_tree(ws, volume):
    """Directories nested far beyond PATH_MAX are made, walked, measured and removed."""
    mnt = volume.mount()
    flags = os.O_RDONLY | os.O_DIRECTORY

    def step(fd, into):
        deeper = os.open(into, flags, dir_fd=fd)
        os.close(fd)
        return deeper

    fd = os.open(mnt, flags)
    for i in range(LEVELS):
        os.mkdir("d", dir_fd=fd)
        fd = step(fd, "d")
    with os.fdopen(os.open("bottom", os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=fd), "w") as f:
        f.write("here")
    bottom = os.fstat(fd).st_ino
    os.close(fd)

    mnt = mnt.remount()
    fd = os.open(mnt, flags)
    for i in range(LEVELS):
        fd = step(fd, "d")
    assert os.fstat(fd).st_ino == bottom
    with os.fdopen(os.open("bottom", os.O_RDONLY, dir_fd=fd)) as f:
        assert f.read() == "here"
    os.unlink("bottom", dir_fd=fd)
    for i in range(LEVELS):  # back up by ".."
        fd = step(fd, "..")
        os.rmdir("d", dir_fd=fd)
    assert os.fstat(fd).st_ino == 1
    os.close(fd)
    assert os.listdir(mnt) == []
