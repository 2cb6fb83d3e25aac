# SPDX-License-Identifier: Apache-2.0
"""The memory of a mount, of all its processes together. A mount that exceeds it meets the limit of
its container, and the kernel kills it."""

import concurrent.futures
import contextlib
import ctypes
import os
import pathlib
import re
import subprocess
import threading

import pytest

import server
import servers
from cachefs import missing, need_engine, need_module, sanitized, tool, wait_until
from s3volume import S3Volume
from syscalls import data, read, write
from test_metrics import Unix, get
from test_takeover import upgrade

MIB = 1 << 20
BESIDES = 32 * MIB
KCMP = {"x86_64": 312, "aarch64": 272}  # number of kcmp(2)
KCMP_VM = 1

pytestmark = [
    pytest.mark.module("metrics"),
    pytest.mark.skipif(sanitized(), reason="a sanitizer has memory of its own"),
]


def pss(pid):
    """Bytes: of what several processes share each has its part."""
    try:
        text = pathlib.Path("/proc/%d/smaps_rollup" % pid).read_text()
    except OSError:
        return 0
    return sum(int(kib) << 10 for kib in re.findall(r"^(?:Pss|SwapPss): +(\d+) kB", text, re.M))


def is_ours(command):
    return os.path.basename(command.split(" ")[0]) in ("cachefs", "mount.cachefs")


def one_memory(a, b):
    """A process that posix_spawn(3) makes has the memory of its parent until it runs its program."""
    number = KCMP.get(os.uname().machine)
    return bool(number) and ctypes.CDLL(None).syscall(number, a, b, KCMP_VM, 0, 0) == 0


class Watch:
    """Sums the memory of all processes that the test has started, as long as it is open."""

    def __init__(self, ws, budget):
        self.ws, self.budget, self.most, self.shares = ws, budget, 0, []
        self.over = threading.Event()
        self.samples = 0

    def sample(self):
        shares, seen = [], []
        for pid, command in self.ws.processes():
            if is_ours(command) and not any(one_memory(pid, other) for other in seen):
                seen.append(pid)
                shares.append((pss(pid), command))
        self.samples += 1
        if sum(share for share, _ in shares) > self.most:
            self.most, self.shares = sum(share for share, _ in shares), shares

    def run(self):
        while not self.over.wait(0.05):
            self.sample()

    def __enter__(self):
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        self.sample()

    def check(self, what):
        print("%s: %.1f MiB" % (what, self.most / MIB), [(s // MIB, c[:60]) for s, c in self.shares])
        assert self.most <= self.budget + BESIDES, (what, [(share // MIB, command) for share, command in self.shares])


def forget(path):
    """The kernel's copy of a file's pages."""
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def within_budget(ws, budget, what):
    with Watch(ws, budget) as watch:
        yield watch
    watch.check(what)


def with_servers(ws):
    """Metadata in Redis, blocks in S3 and on a cache disk."""
    need_engine("redis")
    need_module("s3")
    db = servers.redis_server().database()
    ws.cleanups.append(db.drop)

    class InRedis(S3Volume):
        def attach(self, ws, name, url, bucket):
            super().attach(ws, name, db.url, bucket)

    return InRedis(ws, server.Server(ws)), "cache-dir=%s," % ws.path("cache")


@pytest.mark.deadline(240)
@pytest.mark.parametrize(("where", "budget"), [("local", 192 * MIB), ("servers", 192 * MIB), ("servers", 300 * MIB)])
def test_the_budget_is_of_all_processes(ws, where, budget):
    """buffer-size and 32 MiB: under load, asked for its health, upgraded and examined."""
    path = ws.path("socket")
    volume, opts = with_servers(ws) if where == "servers" else (ws.volume(), "")
    opts += "buffer-size=%d,metrics=unix:%s" % (budget // MIB, path)
    mnt = volume.mount(opts)
    content = data(8 * MIB)

    def one(i):
        write(mnt / ("f%d" % i), content, sync=True)
        forget(mnt / ("f%d" % i))
        assert read(mnt / ("f%d" % i)) == content
        for j in range(100):
            write(mnt / ("small%d-%d" % (i, j)), b"x" * 5000)
            os.stat(mnt / ("small%d-%d" % (i, j)))

    def load():
        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            list(pool.map(one, range(48)))

    with within_budget(ws, budget, "load"):
        load()
        assert mnt.stat("pool_mapped_bytes") > budget * 0.6, "the test fills the memory for data"
    with within_budget(ws, budget, "health"):
        for _ in range(3):
            assert get(Unix(path), "/health")[0] == 200
        load()
        assert get(Unix(path), "/health")[0] == 200
    with within_budget(ws, budget, "debug"):
        subprocess.run([tool("cachefs"), "debug", mnt, ws.path("d.tar.gz")], check=True, env=ws.env(), timeout=60)
    with within_budget(ws, budget, "upgrade"):
        upgrade(ws, volume, mnt, opts)
        assert get(Unix(path), "/health")[0] == 200
        load()
    with within_budget(ws, budget, "unmount"):
        mnt.umount()
        wait_until(lambda: not any(is_ours(c) for _, c in ws.processes()), 60, "the end of the processes")


def test_budget_in_a_control_group(ws, volume):
    """A quarter of its limit, with either version of control groups: the kernel would kill a mount of 300 MiB."""
    old = pathlib.Path("/sys/fs/cgroup/memory")
    group = (old if old.is_dir() else old.parent) / ws.dir.name
    try:
        group.mkdir()
        ws.cleanups.append(group.rmdir)
        (group / ("memory.limit_in_bytes" if old.is_dir() else "memory.max")).write_text(str(400 * MIB))
    except OSError:
        missing("no control group of its own with a limit of memory")
    ws.path("mnt").mkdir()
    join = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
    ws.run("sh", "-c", join, group, tool("cachefs"), "mount", volume.url, ws.path("mnt"), check=True)
    budget = re.search(r"pool_budget_bytes (\d+)", read(ws.path("mnt") / ".stats").decode())
    ws.run("cachefs", "umount", ws.path("mnt"), check=True)
    wait_until(lambda: not (group / "cgroup.procs").read_text(), 20, "the end of the mount")
    assert int(budget[1]) <= 100 * MIB
