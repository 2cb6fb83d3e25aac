# SPDX-License-Identifier: Apache-2.0
"""Many programs that read small ranges at random from a member of a cache group: no thread of their mount waits for
each of them. When the member, the network, the mount or one of the programs fails, every read returns the right bytes in
time."""

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

import liar
from cachefs import SLOW, stop_process, tool, wait_until
from team import SMALL, UNCACHED, Team, cache_map, drop_page_cache, make_file
from test_group_ranges import KIB, READ_ONE, Reader, pair, the_bytes

THREADS = 64
LIMIT_S = 30  # for 20 reads of one of them; one may wait for group-timeout, and then for the bucket


class Load:
    """THREADS readers at a time, until it is told to end."""

    def __init__(self, mnt, data):
        self.mnt, self.data = mnt, data
        self.stop = threading.Event()
        self.reads, self.slowest, self.failures = [0] * THREADS, [0.0] * THREADS, []
        self.threads = [threading.Thread(target=self.work, args=(i,), daemon=True) for i in range(THREADS)]
        for t in self.threads:
            t.start()

    def work(self, i):
        try:
            r = Reader(self.mnt, self.data, 4 * KIB)
            try:
                while not self.stop.is_set():
                    start = time.monotonic()
                    r.anywhere(20)
                    self.slowest[i] = max(self.slowest[i], time.monotonic() - start)
                    self.reads[i] += 20
            finally:
                r.close()
        except (AssertionError, OSError) as e:
            self.failures.append(e)

    def more(self, what):
        """Every reader goes on."""
        had = list(self.reads)
        wait_until(lambda: self.failures or all(b >= a + 40 for a, b in zip(had, self.reads)), 100, what)

    def end(self):
        self.stop.set()
        for t in self.threads:
            t.join(60 * SLOW)
            assert not t.is_alive(), "a read hangs"

    def end_well(self):
        self.end()
        assert self.failures == []
        print("%d reads, the slowest 20 took %.2f s" % (sum(self.reads), max(self.slowest)))
        assert max(self.slowest) < LIMIT_S * SLOW


def is_used(mnt):
    """Reads do not wait on threads, most of the time."""
    before = mnt.stats()

    def used():
        now = mnt.stats()
        new = now["peer_async_reads_total"] - before["peer_async_reads_total"]
        return new - (now["peer_async_repeats_total"] - before["peer_async_repeats_total"]) > 500

    wait_until(used, 60, "reads that no thread waits for")


def nothing_is_left(mnt):
    wait_until(lambda: mnt.stat('peer_inflight_bytes{direction="asked"}') == 0, 30, "the end of all requests")
    wait_until(lambda: mnt.stat('pool_used_bytes{use="read"}') == 0, 30, "the return of all pages")


@pytest.mark.deadline(200)
def test_many_readers(ws):
    """With more readers than threads, and each read is counted as others are."""
    team, want, a, b = pair(ws)
    data = the_bytes(team, want)
    before = a.stats()
    load = Load(a, data)
    is_used(a)
    load.more("reads")
    load.end_well()
    n = sum(load.reads)
    after = a.stats()
    assert after["peer_async_reads_total"] - before["peer_async_reads_total"] > n / 2
    assert after["read_bytes_total"] - before["read_bytes_total"] >= n * 4 * KIB
    assert after["peer_hits_total"] - before["peer_hits_total"] <= n
    assert after['object_requests_total{method="get"}'] == before['object_requests_total{method="get"}']
    nothing_is_left(a)


def kill_owner(ws, team, b):
    b.kill9()
    team.volume.check_options["unmounted"] = False


def freeze(ws, team, b):
    stop_process(b.pid())
    time.sleep(3)
    os.kill(b.pid(), signal.SIGCONT)


def cut(ws, team, b):
    team.net.cut(1)
    time.sleep(3)
    team.net.heal(1)


def slow(ws, team, b):
    team.net.slow(1, 10)
    time.sleep(4)
    team.net.slow(1, 0)


def upgrade(ws, team, b):
    r = ws.run("nsenter", "--net=/run/netns/" + b.netns, tool("cachefs"), "mount", team.volume.url, b.path, "-o", b.opts, timeout=60)
    assert r.returncode == 0, r.stderr
    b.process.wait(20 * SLOW)
    b.process = None


def damage(ws, team, b):
    for path in ws.path("cache1").rglob("*_*_*"):
        with open(path, "r+b") as f:
            for at in range(random.randrange(32 * KIB), os.fstat(f.fileno()).st_size, 64 * KIB):
                f.seek(at)
                byte = f.read(1)
                f.seek(at)
                f.write(bytes([byte[0] ^ 1 << random.randrange(8)]))
    drop_page_cache()


@pytest.mark.deadline(300)
@pytest.mark.parametrize("event", [kill_owner, freeze, cut, slow, upgrade, damage])
def test_something_happens_to_the_owner(ws, event):
    team, want, a, b = pair(ws, patience=2)
    data = the_bytes(team, want)
    for m in (a, b):
        m.allow("wrong bytes|corrupt|does not answer|connection refused")
    load = Load(a, data)
    is_used(a)
    event(ws, team, b)
    load.more("reads afterwards")
    load.end_well()
    nothing_is_left(a)
    if event is not kill_owner:
        again = Load(a, data)
        is_used(a)
        again.end_well()


LIES = ["a bit of the bytes", "half, then closed", "half, then silence", "nothing", "a byte is missing", "twice"]


@pytest.mark.deadline(300)
@pytest.mark.parametrize("name", LIES)
def test_one_answer_of_many_is_altered(ws, name):
    team, want, a, b = pair(ws, patience=2)
    data = the_bytes(team, want)
    for m in (a, b):
        m.allow("wrong bytes|does not answer|connection refused|refused: address")
    at = {}
    for m in cache_map(ws, a)["members"]:
        host, port = m["address"].rsplit(":", 1)
        at[host] = (host, int(port))
    between = liar.Between(team.net, 0, 1, at[team.net.host(1)], at[team.net.host(0)])
    ws.cleanups.append(between.close)
    load = Load(a, data)
    wait_until(lambda: between.conversations, 60, "the owner is asked")
    is_used(a)
    told = liar.ANSWERS[name]
    between.begin(liar.Lie("owner", lambda c, h, x: liar.is_answer(c, h, x) and random.random() < 0.01, told.tell))
    wait_until(lambda: between.told > 3, 60, "it is told")
    between.begin(None)
    load.more("reads afterwards")
    load.end_well()
    nothing_is_left(a)


@pytest.mark.deadline(200)
@pytest.mark.parametrize("event", ["upgrade", "kill"])
def test_another_process_serves_the_readers(ws, event):
    """The next process answers the reads that the leaving one does not."""
    team, want, a, b = pair(ws)
    data = the_bytes(team, want)
    load = Load(a, data)
    is_used(a)
    if event == "kill":
        a.allow("the process of the mount has died")
        old = a.pid()
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: re.search("another process serves the mount", a.log()), 30, "the next process")
    else:
        upgrade(ws, team, a)
    load.more("reads afterwards")
    load.end_well()


@pytest.mark.deadline(200)
def test_the_mount_ends(ws):
    """Readers get an error at most, and the process ends in time."""
    team, want, a, b = pair(ws)
    load = Load(a, the_bytes(team, want))
    is_used(a)
    a.terminate(seconds=30)
    load.end()
    assert all(isinstance(e, OSError) for e in load.failures), load.failures


@pytest.mark.deadline(200)
def test_a_killed_program_does_not_wait(ws):
    """While many wait for an owner that is frozen."""
    team, want, a, b = pair(ws, "group-hedge=0", patience=50)
    load = Load(a, the_bytes(team, want))
    is_used(a)
    stop_process(b.pid())
    try:
        p = subprocess.Popen([sys.executable, "-c", READ_ONE, a / "f"], stdout=subprocess.PIPE)
        assert p.stdout.readline() == b"reads\n"
        time.sleep(0.05)  # it waits, first without a thread, later with one
        start = time.monotonic()
        p.kill()
        p.wait(20)
        print("ended after %.2f s" % (time.monotonic() - start))
        p.stdout.close()
    finally:
        os.kill(b.pid(), signal.SIGCONT)
    load.more("reads afterwards")
    load.end()
    assert load.failures == []
