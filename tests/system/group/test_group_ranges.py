# SPDX-License-Identifier: Apache-2.0
"""Random reads of less than a page from a member of a cache group: the network carries the bytes that are read,
each of them is right, and an owner that fails holds no reader up."""

import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

from cachefs import SLOW, stop_process, wait_until
from team import BLOCK, MIB, SMALL, UNCACHED, Team, drop_page_cache, make_file, md5, slow_bucket

KIB = 1 << 10


def pair(ws, asker="", patience=20, cold=False):
    """An owner of all blocks, which has them unless it is cold, and a mount that owns none and keeps none."""
    team = Team(ws, 2, patience=patience)
    want = make_file(team, SMALL)
    a = team.join(0, ",".join(filter(None, [UNCACHED, "group-weight=0", asker])))
    b = team.join(1, UNCACHED)
    team.settle()
    if not cold:
        ws.run("cachefs", "warmup", b / "f", check=True, timeout=100)
        wait_until(lambda: b.stat("disk_cache_pending_bytes") == 0, 30)
    return team, want, a, b


def the_bytes(team, want):
    """Of the file, as a mount outside of the group reads them."""
    mnt = team.volume.mount()
    data = (mnt / "f").read_bytes()
    assert md5(mnt / "f") == want
    mnt.umount()
    return data


class Reader:
    """Reads past the kernel's page cache."""

    def __init__(self, mnt, data, size):
        self.fd = os.open(mnt / "f", os.O_RDONLY | os.O_DIRECT)
        self.buf = mmap.mmap(-1, size)
        self.data, self.size = data, size

    def read(self, at):
        assert os.preadv(self.fd, [self.buf], at) == self.size
        assert self.buf[:] == self.data[at : at + self.size], "wrong bytes at %d" % at

    def anywhere(self, n):
        """But not at the beginning, where a stream may begin, which is read ahead. Evenly spread: three reads of a
        handle that are close together by chance are taken for the beginning of a stream, too."""
        at = random.random()
        for _ in range(n):
            at = (at + 0.618034) % 1
            self.read((1 + int(at * (len(self.data) // self.size - 1))) * self.size)

    def close(self):
        os.close(self.fd)
        self.buf.close()


def all_read(mnt, data, size, threads, n):
    """threads at a time, n reads each."""
    failures = []

    def work():
        try:
            r = Reader(mnt, data, size)
            r.anywhere(n)
            r.close()
        except (AssertionError, OSError) as e:
            failures.append(e)

    running = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for t in running:
        t.start()
    for t in running:
        t.join(60 * SLOW)
        assert not t.is_alive(), "a read hangs"
    assert failures == []


@pytest.mark.deadline(150)
def test_the_network_carries_what_is_read(ws):
    """Frames, headers of packets and acknowledgements included."""
    team, want, a, b = pair(ws)
    data = the_bytes(team, want)
    port = "/sys/class/net/%s/statistics/tx_bytes" % team.net.port(0)

    def came():
        with open(port) as f:
            return int(f.read())

    all_read(a, data, 4 * KIB, 1, 1)  # they are connected
    gets = team.fetched()
    for size, threads, n in ((4 * KIB, 1, 1000), (4 * KIB, 8, 250), (16 * KIB, 4, 60), (64 * KIB, 4, 30)):
        before = came()
        direct = a.stat("peer_requests_direct_total")
        all_read(a, data, size, threads, n)
        carried = (came() - before) / (size * threads * n)
        print("%d KiB, %d threads: %.3f bytes for each that is read" % (size // KIB, threads, carried))
        assert carried <= 1.1
        assert threads > 1 or a.stat("peer_requests_direct_total") - direct > n / 2
    assert team.fetched() == gets
    assert a.stat('object_requests_total{method="get"}') == 0
    assert a.stat("memory_cache_bytes") == 0
    assert a.stat("peer_misses_total") == 0


@pytest.mark.deadline(150)
def test_a_cold_owner_fetches_each_block_once(ws):
    team, want, a, b = pair(ws, cold=True)
    blocks = list(range(SMALL // BLOCK)) * 3
    random.shuffle(blocks)
    fd = os.open(a / "f", os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    got = {}

    def work(mine):
        for i in mine:
            at = i * BLOCK + random.randrange(1, 512) * 4 * KIB
            got[at] = os.pread(fd, 4 * KIB, at)

    readers = [threading.Thread(target=work, args=(blocks[k::4],), daemon=True) for k in range(4)]
    for t in readers:
        t.start()
    for t in readers:
        t.join(100 * SLOW)
        assert not t.is_alive(), "a read hangs"
    os.close(fd)
    assert set(team.fetched().values()) == {1}, team.account()
    assert a.stat('object_requests_total{method="get"}') == 0
    data = the_bytes(team, want)
    assert all(data[at : at + 4 * KIB] == v for at, v in got.items())


@pytest.mark.deadline(150)
def test_a_range_of_damaged_bytes(ws):
    """Every 32 KiB of what the owner has are damaged: the reader gets the bytes of the bucket."""
    team, want, a, b = pair(ws)
    data = the_bytes(team, want)
    for path in ws.path("cache1").rglob("*_*_*"):
        with open(path, "r+b") as f:
            for at in range(random.randrange(32 * KIB), BLOCK, 32 * KIB):
                f.seek(at)
                byte = f.read(1)
                f.seek(at)
                f.write(bytes([byte[0] ^ 1 << random.randrange(8)]))
    drop_page_cache()
    a.allow("wrong bytes|corrupt")
    b.allow("wrong bytes|corrupt")
    all_read(a, data, 4 * KIB, 1, 10)
    all_read(a, data, 4 * KIB, 4, 20)
    assert b.stat('peer_errors_total{direction="served",kind="checksum"}') > 0


@pytest.mark.deadline(150)
def test_an_owner_that_hangs(ws):
    """Without hedges: what a silent owner does not give in group-timeout is read from the bucket, and the owner is left
    out. When it answers again, ranges come from it again."""
    team, want, a, b = pair(ws, "group-hedge=0", patience=1)
    data = the_bytes(team, want)
    all_read(a, data, 4 * KIB, 1, 20)
    hits = a.stat("peer_hits_total")
    assert hits >= 20
    stop_process(b.pid())
    try:
        all_read(a, data, 4 * KIB, 4, 20)
    finally:
        os.kill(b.pid(), signal.SIGCONT)
    assert a.stat("peer_fallbacks_total") > 0
    hits = a.stat("peer_hits_total")

    def used_again():
        all_read(a, data, 4 * KIB, 1, 5)
        return a.stat("peer_hits_total") > hits

    wait_until(used_again, 60, "the owner is asked again")


READ_ONE = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
print("reads", flush=True)
os.preadv(fd, [mmap.mmap(-1, 4096)], 5 << 20)
"""


@pytest.mark.deadline(150)
def test_a_killed_reader_does_not_wait_for_the_owner(ws):
    team, want, a, b = pair(ws, "group-hedge=0", patience=50)
    all_read(a, the_bytes(team, want), 4 * KIB, 1, 1)
    stop_process(b.pid())
    try:
        p = subprocess.Popen([sys.executable, "-c", READ_ONE, a / "f"], stdout=subprocess.PIPE)
        assert p.stdout.readline() == b"reads\n"
        wait_until(lambda: a.stat('peer_inflight_bytes{direction="asked"}') > 0, 20, "a request")
        p.kill()
        p.wait(20)
        p.stdout.close()
    finally:
        os.kill(b.pid(), signal.SIGCONT)


@pytest.mark.deadline(150)
def test_blocks_that_their_owner_refuses(ws):
    """Their reader is the only other member, so it keeps them: the bucket is not asked for each part that is read."""
    team = Team(ws, 2)
    want = make_file(team, SMALL)
    data = the_bytes(team, want)
    before = sum(team.fetched().values())
    a = team.join(0, UNCACHED)
    team.join(1, UNCACHED + ",group-max-requests=1")
    team.settle()
    r = Reader(a, data, 4 * KIB)
    r.anywhere(600)
    r.close()
    assert a.stat("peer_fallbacks_total") > 0
    assert sum(team.fetched().values()) - before <= 3 * SMALL // BLOCK, team.account()


@pytest.mark.deadline(240)
def test_large_answers_are_lost(ws):
    """The owner has to fetch what is read, and says so; the answer never arrives. One read waits for it."""
    with slow_bucket(ws, 2) as (team, bucket):
        data = the_bytes(team, make_file(team, SMALL))
        a = team.join(0, UNCACHED + ",group-weight=0")
        team.join(1, UNCACHED)
        team.settle()
        team.net.narrow(0, 1000)
        bucket.rate = 8 * MIB
        r = Reader(a, data, 4 * KIB)
        r.read(MIB)
        wait_until(lambda: "does not answer" in a.log(), 20, "the owner to be left out")
        start = time.monotonic()
        r.read(BLOCK + MIB)
        assert time.monotonic() - start < 2 * SLOW, "it was asked again"
        r.close()
