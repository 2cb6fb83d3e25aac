# SPDX-License-Identifier: Apache-2.0
"""Histories on mounts of one volume, in rounds: each is recorded by drive, under faults if wanted, and
judged by judge. tests/histories/run and the system test use it, which have the harness in their path."""

import collections
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import signal
import threading

import cachefs_check
import failover
from cachefs import BIN, SLOW, Volume
from countproxy import CountingProxy
from test_concurrency import FRESH, engine_volume
from test_takeover import DEATH, kill_worker

PROGRAMS = BIN.parents[1] / "tests" / "histories"
TEAM = 4  # processes that share names: the judge follows all their orders
# Of mounts whose files the other mount removes.
REMOVED = "an object is missing"


def mounts_of(ws, engine, count, faults=False, fails_over=False, close="stored"):
    """Entries and attributes are not cached: with caches a name may be as old as they are.
    The volume of the first mount has `way`, whose cut() ends all connections to the database, and
    `servers`, of failover.py, or None."""
    if fails_over:
        servers = failover.KINDS[engine](ws)
        vol = Volume(ws, url=servers.url(0), trash_days=0)
        vol.servers, vol.way = servers, None
    else:
        vol = engine_volume(ws, engine, trash_days=0)
        vol.servers = vol.way = None
        if faults and engine != "sqlite":
            port = re.search(r"127\.0\.0\.1:(\d+)", vol.url)[1]  # mysql: in parentheses
            vol.way = CountingProxy(int(port))
            ws.cleanups.append(vol.way.close)
            vol.url = vol.url.replace(":" + port, ":%d" % vol.way.port)
    mounts = []
    for i in range(count):
        if fails_over:
            vol.url = vol.servers.url(i)
        mounts.append(vol.mount("%s,close=%s" % (FRESH, close)))
        mounts[-1].allow(REMOVED)
    return mounts


# ---------------------------------------------------------------- faults


def frozen(mnt, rng, stop):
    """The process of a mount stands still for a moment."""
    pid = mnt.pid()
    os.kill(pid, signal.SIGSTOP)
    stop.wait(rng.uniform(0.1, 1.5))  # the fault itself
    os.kill(pid, signal.SIGCONT)


def disturb(mounts, rng, stop, done):
    """One fault after the other until `stop`, a failover first: while it lasts, nothing ends. A death a
    round for each mount at most, or it is given up."""
    vol = mounts[0].volume
    for m in mounts:
        m.allow(DEATH + ("|" + vol.servers.LOST if vol.servers else ""))
    plan = [(fault, m) for m in mounts for fault in ("freeze", "kill")]
    plan += [("cut", None)] * (len(mounts) if vol.way else 0)
    for fault, m in [("failover", None)] * bool(vol.servers) + rng.sample(plan, len(plan)):
        done.append(fault)
        if fault == "freeze":
            frozen(m, rng, stop)
        elif fault == "kill":
            kill_worker(m)
        elif fault == "cut":
            vol.way.cut()
        else:
            vol.servers.fail_over(rng)
        if stop.wait(rng.uniform(0.1, 0.5)):
            return


# ---------------------------------------------------------------- rounds


class Round:
    """record() on the mounts, then judge(), which may be called while the next round is recorded."""

    def __init__(self, ws, mounts, seed, ops, faults, teams=2):
        self.ws, self.mounts, self.seed, self.ops, self.faults, self.teams = ws, mounts, seed, ops, faults, teams
        self.name = "r%d" % seed
        self.history = ws.path("history-%d" % seed)
        self.counts = collections.Counter()

    def _drive(self, roots, over):
        flags = ["--seed", self.seed, "--ops", self.ops, "--teams", self.teams, "--timeout", int(90 * SLOW)]
        flags += ["--clients", max(1, TEAM // len(self.mounts)), "--out", self.history]
        try:
            return self.ws.run(PROGRAMS / "drive", *flags, *roots, timeout=600)
        finally:
            over.set()

    def record(self):
        """The faults come from the calling thread: servers that it starts end with it."""
        roots = [pathlib.Path(m) / self.name for m in self.mounts]
        over, done = threading.Event(), []
        os.mkdir(roots[0])
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            job = pool.submit(self._drive, roots, over)
            if self.faults:
                disturb(self.mounts, random.Random(self.seed), over, done)
            r = job.result()
        self.counts.update(done)
        assert r.returncode == 0, "seed=%d %s\n%s%s" % (self.seed, done, r.stdout, r.stderr)
        return self

    def judge(self, keep=None):
        """Returns the counts of the judge and of the faults. keep: a folder for a history that cannot be explained."""
        flags = ["--deaths"] if self.faults else []
        r = self.ws.run(PROGRAMS / "judge", *flags, self.history, timeout=600)
        if r.returncode and keep:
            shutil.copy(self.history, keep)
        assert r.returncode == 0, "seed=%d %s\n%s" % (self.seed, dict(self.counts), r.stdout)
        self.counts.update({k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", r.stdout)})
        assert self.faults or not self.counts["not_judged"], r.stdout
        self.history.unlink()
        return self.counts

    def remove(self):
        """Takes its files from the volume, which does not grow with the number of rounds."""
        shutil.rmtree(pathlib.Path(self.mounts[0]) / self.name)


def verdict(mounts, faults):
    """Unmounts. Returns the complaints of the checker, as lines."""
    vol = mounts[0].volume
    for m in mounts:
        m.umount()
    vol.check_options = {"unmounted": True, **({"leaks": "warn"} if faults else {})}
    if vol.db.exists():
        return []  # checked at the end of the workspace
    url = vol.servers.server_url() if vol.servers else vol.url
    if faults and (vol.servers or vol.url.startswith(("postgres", "mysql"))):
        # They write usage once a second: a process that is killed takes some with it.
        vol.ws.run("cachefs", "fsck", "--repair", url, timeout=300, check=True)
    found, _ = cachefs_check.check(url, str(vol.bucket), cachefs_check.Options(**vol.check_options))
    return ["checker: %s: %s" % f for f in found]
