# SPDX-License-Identifier: Apache-2.0
"""A cache group whose members are hosts of their own, and what its tests have in common."""

import contextlib
import hashlib
import json
import os
import random
import re
import threading
import time

import server
from cachefs import SLOW, wait_until
from network import Network
from s3volume import S3Volume
from slowproxy import SlowProxy
from syscalls import drop_kernel_caches

MIB = 1 << 20
BLOCK = 4 * MIB
SMALL = 64 * MIB
GROUP = "cache-group=team,group-beat=500ms,group-backup=0,group-timeout=%ds,cache-size=4G,buffer-size=64M"
UNCACHED = "buffer-size=16M"
STEADY = "group-beat=2s"  # where fetches are counted: a busy machine makes no member look gone


class Team:
    """Members on hosts of their own, one volume in one S3 server on the bridge."""

    def __init__(self, ws, hosts, volume=None, patience=20):
        """patience: seconds that members wait for each other, long where a slow machine must not
        look like a peer that fails."""
        self.ws = ws
        self.patience = patience
        self.net = Network(ws, hosts)
        self.log = ws.path("s3.log")
        self.s3 = server.Server(ws, host=self.net.address, log=self.log)
        self.volume = volume(self.s3) if volume else S3Volume(ws, self.s3)
        self.members = []

    def join(self, i, more="", at="group-ip=%s", **kw):
        """at: the option that selects the address, with %s for the host's."""
        opts = "%s,cache-dir=%s," % (GROUP % self.patience, self.ws.path("cache%d" % i)) + at.replace("%s", self.net.host(i))
        if "group-hedge" not in more:  # reads of the bucket are counted, and on a busy machine members are late
            opts += ",group-hedge=0"
        m = self.volume.mount(",".join(filter(None, [opts, more])), netns=self.net.names[i], **kw)
        self.members.append(m)
        return m

    def join_all(self, more=""):
        for i in range(len(self.net.names)):
            self.join(i, more)
        self.settle()
        return self.members

    def settle(self, n=None):
        n = n or len([m for m in self.members if not m.ended])
        for m in self.members:
            if not m.ended:
                wait_until(lambda: m.stat("peer_members") == n, 30, "%d members" % n)

    def fetched(self):
        """Block -> how often the server gave it, or a part of it."""
        out = {}
        for line in self.log.read_text("utf-8", "replace").splitlines():
            m = re.search(r's3_GetObject \S*/(\d+_\d+_\d+) ', line)
            if m:
                out[m[1]] = out.get(m[1], 0) + 1
        return out

    def account(self):
        """For messages of assertions: reads of the bucket, and what members have counted that explains them."""
        lines = ["%s %d" % x for x in sorted(self.fetched().items()) if x[1] > 1] or ["none twice"]
        for m in self.members:
            if not m.ended:
                told = {k: v for k, v in m.stats().items() if re.match(r"(peer|disk_cache|store|object|pool)_", k)}
                lines.append("%s: %s" % (m.path.name, " ".join("%s=%g" % x for x in told.items() if x[1])))
        return "\n".join(["reads of the bucket: %d, twice or more:" % sum(self.fetched().values()), *lines])


@contextlib.contextmanager
def slow_bucket(ws, members):
    """A team and the proxy on its way to the bucket, whose rate the test sets. Members do not wait long for
    each other."""
    proxies = []

    def behind_a_proxy(s3):
        proxies.append(SlowProxy(s3.address[0], s3.address))
        return S3Volume(ws, s3, url=proxies[0].url + "/bucket")

    team = Team(ws, members, behind_a_proxy, patience=2)
    with proxies[0]:
        yield team, proxies[0]


def md5(path):
    h = hashlib.md5()
    with open(path, "rb", buffering=0) as f:
        while data := f.read(MIB):
            h.update(data)
    return h.hexdigest()


def drop_page_cache():
    drop_kernel_caches(1)


def make_file(team, size, name="f"):
    """Written by a mount that is not a member, so that no member has any of it. Every block is whole:
    where a machine is so slow that a slice grows old in the middle of one, once more."""
    mnt = team.volume.mount()  # without memory, slices end early
    for _ in range(10):
        before = set(team.volume.objects())
        h = hashlib.md5()
        with open(mnt / name, "wb", buffering=0) as f:
            for _ in range(size // BLOCK):
                block = os.urandom(BLOCK)
                h.update(block)
                f.write(block)
            os.fsync(f.fileno())
        if len(set(team.volume.objects()) - before) == size // BLOCK:
            break
        os.unlink(mnt / name)
    else:
        raise AssertionError("blocks of %s are never whole" % name)
    mnt.umount()
    return h.hexdigest()


def read_all(members, name="f"):
    """Everybody reads the file at the same time; their sums."""
    sums = [None] * len(members)

    def work(i):
        sums[i] = md5(members[i] / name)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(members))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120 * SLOW)
        assert not t.is_alive(), "a read hangs"
    return sums


def cache_map(ws, mnt, name="f"):
    return json.loads(ws.run("cachefs", "cache", "map", "--json", mnt / name, check=True).stdout)


def owners(ws, mnt, name="f"):
    """Member id -> blocks it owns."""
    out = {}
    for b in cache_map(ws, mnt, name)["blocks"]:
        for o in b["owners"]:
            out.setdefault(o["id"], []).append(b["key"])
    return out


def member_id(ws, mnt, name="f"):
    return next(m["id"] for m in cache_map(ws, mnt, name)["members"] if m["state"] == "self")


def reading(members, want, seconds, name="f"):
    """Members read again and again, past the page cache, until told to stop."""
    stop = threading.Event()
    failures, rounds = [], [0]

    def work(m):
        while not stop.is_set() and not failures:
            try:
                fd = os.open(m / name, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)
                start = time.monotonic()
                got = md5(m / name)
                took = time.monotonic() - start
                rounds[0] += 1
                if got != want:
                    failures.append("wrong bytes")
                if took > seconds * SLOW:
                    failures.append("a read of the file took %.1f s" % took)
            except OSError as e:
                failures.append(str(e))

    threads = [threading.Thread(target=work, args=(m,), daemon=True) for m in members]
    return ending(threads, stop, failures, rounds)


def ending(threads, stop, failures, rounds):
    """Starts them; returns what ends them."""
    for t in threads:
        t.start()

    def end():
        stop.set()
        for t in threads:
            t.join(120 * SLOW)
            assert not t.is_alive(), "a read hangs"
        assert failures == []
        return rounds[0]

    end.rounds = rounds
    return end


def picking(mnt, data, threads, seconds, name="f", note=None):
    """As reading(), of 4 KiB at a time, anywhere; data: the file's. end.slowest: the slowest read.
    note(at, took) is called of each read."""
    stop = threading.Event()
    failures, rounds, slowest = [], [0], [0.0]

    def work():
        fd = os.open(mnt / name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            while not stop.is_set() and not failures:
                at = random.randrange(len(data) // 4096) * 4096
                os.posix_fadvise(fd, at, 4096, os.POSIX_FADV_DONTNEED)
                start = time.monotonic()
                got = os.pread(fd, 4096, at)
                took = time.monotonic() - start
                slowest[0] = max(slowest[0], took)
                if note:
                    note(at, took)
                if got != data[at : at + 4096]:
                    failures.append("wrong bytes at %d" % at)
                if took > seconds * SLOW:
                    failures.append("a read took %.1f s" % took)
                rounds[0] += 1
        except OSError as e:
            failures.append(str(e))
        finally:
            os.close(fd)

    end = ending([threading.Thread(target=work, daemon=True) for _ in range(threads)], stop, failures, rounds)
    end.slowest = slowest
    return end


def more_rounds(end, n):
    have = end.rounds[0]
    wait_until(lambda: end.rounds[0] >= have + n, 60, "%d more reads of the file" % n)
