# SPDX-License-Identifier: Apache-2.0
"""Members of a cache group between whom somebody alters, cuts and repeats what they send, on real mounts:
every read returns the right bytes in time, no application sees an error, and nobody else notices."""

import contextlib
import hashlib
import os
import random
import threading
import time

import pytest

import liar
from cachefs import SLOW, wait_until
from team import BLOCK, MIB, UNCACHED, Team, cache_map, drop_page_cache, make_file

SIZE = 48 * MIB
# group-timeout of the one who is lied to: short where silence is to be noticed, and long where a machine that is
# busy must not look like silence.
SHORT_S, LONG_S = 2, 20
PIECE = 1 << 18
SMALL = 4096
FETCH_S = 8  # what object storage may take afterwards; on a busy machine more, by what honest reads take then


def digests(mnt, want):
    """Of the blocks of the file, all of which is right."""
    whole, out = hashlib.md5(), []
    with open(mnt / "f", "rb", buffering=0) as f:
        for at in range(0, SIZE, BLOCK):
            block = os.pread(f.fileno(), BLOCK, at)
            whole.update(block)
            out.append(hashlib.md5(block).digest())
    assert whole.hexdigest() == want
    return out


class Reader:
    """Reads the blocks of the file again and again, in any order, past the page cache, or with `small`
    4 KiB of each; notes the slowest call."""

    def __init__(self, mnt, want, small=None):
        self.path, self.want, self.small = mnt / "f", want, small
        self.rounds, self.slowest, self.failure = 0, 0.0, None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        try:
            while not self.stop.is_set():
                self.read()
                self.rounds += 1
        except (OSError, AssertionError) as e:
            self.failure = str(e)

    def read(self):
        fd = os.open(self.path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            for i in random.sample(range(len(self.want)), len(self.want)):
                if self.small:
                    self.read_small(fd, i * BLOCK + random.randrange(BLOCK // SMALL) * SMALL)
                    continue
                h = hashlib.md5()
                for at in range(i * BLOCK, (i + 1) * BLOCK, PIECE):
                    start = time.monotonic()
                    h.update(os.pread(fd, PIECE, at))
                    self.slowest = max(self.slowest, time.monotonic() - start)
                assert h.digest() == self.want[i], "wrong bytes in block %d" % i
        finally:
            os.close(fd)

    def read_small(self, fd, at):
        start = time.monotonic()
        got = os.pread(fd, SMALL, at)
        self.slowest = max(self.slowest, time.monotonic() - start)
        assert got == self.small[at : at + SMALL], "wrong bytes at %d" % at

    def end(self):
        self.stop.set()
        self.thread.join(60 * SLOW)
        assert not self.thread.is_alive(), "a read hangs"
        assert self.failure is None, self.failure


def errors(mnt):
    """Errors of peers, by kind. An owner may be busy at any time."""
    head = 'peer_errors_total{direction="asked",kind="'
    kinds = {k.removeprefix(head)[:-2]: v for k, v in mnt.stats().items() if k.startswith(head)}
    del kinds["busy"]
    return kinds


def cut(members):
    """Connections that they closed because a disk gave them nothing, say on a busy machine."""
    return sum(m.stat('peer_errors_total{direction="served",kind="timeout"}') for m in members)


class Lied:
    """Three members; what the first asks of the last goes through somebody's hands."""

    def __init__(self, ws, tls, small, patience):
        team = Team(ws, 3)
        self.ws = ws
        self.patience, self.usual = patience, 0.0
        want = make_file(team, SIZE)
        tls_opt = "group-tls," if tls else ""
        self.asker = team.join(0, tls_opt + UNCACHED + ",group-timeout=%ds" % patience)
        self.witness = team.join(1, tls_opt + UNCACHED)
        self.owner = team.join(2, tls_opt + "group-weight=300")
        team.settle()
        for m in team.members:
            m.allow("wrong bytes|does not answer|connection refused|refused: address")
        self.want = digests(self.asker, want)
        self.small = (self.asker / "f").read_bytes() if small else None
        at = {}
        for m in cache_map(ws, self.asker)["members"]:
            host, port = m["address"].rsplit(":", 1)
            at[host] = (host, int(port))
        net = team.net
        self.between = liar.Between(net, 0, 2, at[net.host(2)], at[net.host(0)], tls)
        ws.cleanups.append(self.between.close)

    def honest(self):
        """The asker uses the owner."""
        self.between.begin(None)
        before = self.asker.stat("peer_hits_total")

        def used():
            self.evict()
            reader = Reader(self.asker, self.want, self.small)
            reader.end()
            self.usual = max(self.usual, reader.slowest)
            passed = len(self.between.conversations) > 0
            return passed and self.asker.stat("peer_hits_total") > before

        wait_until(used, 60, "the owner is used")

    def evict(self):
        """The asker keeps blocks of an owner that was left out, when it is the next of their ranking."""
        self.ws.run("cachefs", "warmup", "--evict", self.asker / "f", check=True)
        drop_page_cache()

    def tell(self, name, lie):
        before = errors(self.asker)
        beside = errors(self.witness)
        cut_before = cut((self.asker, self.owner))
        self.between.begin(lie)
        drop_page_cache()
        readers = [Reader(m, self.want, self.small) for m in (self.asker, self.witness)]
        kept = 0

        def is_told():
            nonlocal kept
            if not self.between.told and readers[0].rounds > kept:  # nothing in it was asked for
                kept = readers[0].rounds
                self.evict()
            return self.between.told > 0

        try:
            wait_until(is_told, 60, name + ": is told")
            heard = [r.rounds for r in readers]
            for r, n in zip(readers, heard):
                wait_until(lambda: r.failure or r.rounds >= n + 2, 60, name + ": more reads of the file")
        finally:
            for r in readers:
                r.end()
        slowest = [r.slowest for r in readers]
        # The bucket, which is asked beside an owner that is late, may answer first.
        late = {"canceled"} if "timeout" in lie.kinds and slowest[0] < self.patience else set()
        wanted = set(lie.kinds) | late

        def count():
            after = errors(self.asker)
            return sorted(k for k in after if after[k] > before[k])

        if lie.kinds:  # then the end of the request to the owner is counted later
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: set(count()) & wanted, self.patience + 10)
        counted = count()
        what = "%s: told %d, slowest read %.2f s, beside it %.2f s, of honest ones %.2f s, %s" % (
            name, self.between.told, *slowest, self.usual, counted)
        print(what)
        fetch = FETCH_S * SLOW + 4 * self.usual
        assert slowest[0] < self.patience * SLOW + fetch, what
        if lie.kinds:
            assert set(counted) & wanted, what
        else:  # a connection that is cut may take requests of others along
            assert set(counted) <= ({"lost"} if lie.cuts else set()), what
        noticed = errors(self.witness)
        if cut((self.asker, self.owner)) > cut_before:
            noticed["lost"] = beside["lost"]
        assert noticed == beside, "%s\n%s\n%s" % (what, beside, noticed)
        assert slowest[1] < fetch, what


def tell_all(ws, lies, patience, tls=False, small=False):
    """Those that silence is a part of when patience is short, and the others when it is long."""
    lied = Lied(ws, tls, small, patience)
    for name, lie in lies.items():
        if ("timeout" in lie.kinds) == (patience == SHORT_S):
            lied.honest()
            lied.tell(name, lie)
    lied.honest()
    assert not small or lied.asker.stat("peer_requests_direct_total") > 0


PATIENCE = pytest.mark.parametrize("patience", [SHORT_S, LONG_S])


@PATIENCE
@pytest.mark.deadline(600)
def test_answers_to_small_reads(ws, patience):
    """As test_answers, also to threads that receive them on a connection of their own."""
    tell_all(ws, liar.ANSWERS, patience, small=True)


@PATIENCE
@pytest.mark.deadline(600)
def test_answers(ws, patience):
    """Bytes, lengths and frames that are wrong, halves, silence, and what was said before."""
    tell_all(ws, liar.ANSWERS, patience)


@PATIENCE
@pytest.mark.deadline(600)
def test_handshakes(ws, patience):
    """Halves, silence, garbage, and the recorded handshake of another connection, of either side."""
    tell_all(ws, liar.HANDSHAKES, patience)


@PATIENCE
@pytest.mark.deadline(600)
def test_requests(ws, patience):
    """The owner goes on serving the others."""
    tell_all(ws, liar.REQUESTS, patience)


@pytest.mark.deadline(600)
def test_tls(ws):
    """The same, with records instead of frames."""
    tell_all(ws, liar.RECORDS, SHORT_S, tls=True)
