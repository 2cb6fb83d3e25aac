# SPDX-License-Identifier: Apache-2.0
"""The model test on real mounts. A failure here is a wrong byte in somebody's file; the output names
the seed and the operations that led to it (tests/model/cfsx --help)."""

import os
import pathlib
import random
import subprocess
import threading

import pytest

from cachefs import BIN, SLOW, tool, wait_until
from syscalls import read

CFSX = pathlib.Path(os.environ.get("CACHEFS_CFSX") or BIN.parents[1] / "tests" / "model" / "cfsx")
OPS = 3000
TOTAL = int(os.environ.get("CACHEFS_MODEL_OPS") or 4 * OPS)  # of test_all_at_once
FRESH = "attr-cache=0,entry-cache=0,dir-entry-cache=0"

MIXED = ["--mixed", "--allocate", "--punch", "--zero", "--copy"]

# name -> (mount options, format options, cfsx options)
RUNS = {
    "small": ("", {}, []),
    "files": ("", {}, ["--files", "8", "--size", "1m"]),
    "large-sparse": ("", {}, ["--size", "200m", "--files", "2"]),
    "large-io": ("", {}, ["--size", "80m", "--io", "5m", "--files", "2"]),
    "small-blocks": ("", {"block_size": "64K"}, ["--size", "4m"]),
    "little-memory": ("buffer-size=32", {}, ["--size", "50m", "--io", "1m"]),
    "holes": ("", {}, ["--allocate", "--punch", "--zero", "--size", "100m", "--io", "1m"]),
    "copies": ("", {"trash_days": 1}, ["--copy", "--punch", "--files", "5"]),
    "writeback": ("writeback_cache", {}, []),
    "no-caches": (FRESH, {}, []),
    "mixed": ("", {}, MIXED),
}


def cfsx(ws, *args, timeout=100):
    r = ws.run(CFSX, *args, timeout=timeout)
    assert r.returncode == 0, r.stdout[-6000:] + r.stderr
    return r


LONG = ("large-sparse", "large-io", "little-memory", "holes")


@pytest.mark.deadline(240)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] if n in LONG else []) for n in RUNS]
)
def test_run(ws, name):
    mount_options, format_options, args = RUNS[name]
    vol = ws.volume(**format_options)
    seed = random.SystemRandom().randrange(1 << 32)
    for run in (list(RUNS).index(name) + 1, seed):  # one that never changes, one that never repeats
        mnt = vol.mount(mount_options)
        args_ = ["--seed", str(run), "--ops", str(OPS), *args]
        cfsx(ws, *args_, mnt)
        mnt = mnt.remount()
        cfsx(ws, *args_, "--verify", mnt)
        mnt.umount()
        assert vol.verify() == []


@pytest.mark.deadline(240)
def test_run_on_two_mounts(ws, volume):
    a, b = volume.mount(FRESH), volume.mount(FRESH)
    for seed in (1, random.SystemRandom().randrange(1 << 32)):
        args = ["--seed", str(seed), "--ops", str(OPS)]
        cfsx(ws, *args, a, b)
        cfsx(ws, *args, "--verify", b)


@pytest.mark.deadline(240)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_run_cut_by_kill(ws, volume, seed):
    volume.check_options = {"leaks": "warn", "unmounted": False}
    mnt = volume.mount()
    progress = ws.path("progress")
    args = ["--seed", str(seed), "--ops", "1000000", "--size", "30m", "--progress", str(progress)]
    p = ws.popen([CFSX, *args, mnt.path], stdout=open(ws.path("out"), "wb"), stderr=-2)

    def durable():
        raw = read(progress) if progress.exists() else b""
        assert p.poll() is None, read(ws.path("out"))[-6000:]
        return len(raw) == 16 and int.from_bytes(raw[8:], "little") > 100 * seed

    wait_until(durable, 60, "a synced state")
    mnt.kill9()
    code = p.wait(60 * SLOW)
    assert code in (1, 3), read(ws.path("out"))[-6000:]
    out = read(ws.path("out"))
    assert b"wrong bytes" not in out and b"has size" not in out, out[-6000:]
    mnt = volume.mount()
    cfsx(ws, *args, "--verify", mnt)


class Compactor:
    """`cachefs compact` on two mounts in turn, without a pause, until stop()."""

    def __init__(self, ws, mounts):
        self.ws, self.mounts = ws, mounts
        self.ended = threading.Event()
        self.runs = self.failures = 0
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        while not self.ended.is_set():
            point = self.mounts[self.runs % len(self.mounts)].path
            self.runs += 1
            r = subprocess.run(
                [tool("cachefs"), "compact", str(point)],
                env=self.ws.env(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self.failures += r.returncode != 0
            self.ended.wait(0.02)

    def stop(self):
        self.ended.set()
        self.thread.join(60 * SLOW)
        assert not self.thread.is_alive(), "compact did not return"


def begun(progress):
    raw = read(progress) if progress.exists() else b""
    return int.from_bytes(raw[:8], "little") if len(raw) == 16 else 0


@pytest.mark.long
@pytest.mark.deadline(240 + TOTAL // 10)
def test_all_at_once(ws, volume):
    """Every operation on two mounts while compaction never stops; each round ends in a remount or in
    kill -9 of both mounts. CACHEFS_MODEL_OPS makes it long, CACHEFS_MODEL_SEED repeats a run."""
    base = int(os.environ.get("CACHEFS_MODEL_SEED") or random.SystemRandom().randrange(1 << 32))
    volume.check_options = {"leaks": "warn", "unmounted": False}
    done = rounds = compacted = 0
    length = max(OPS, TOTAL // 40)
    while done < TOTAL:
        rng = random.Random(base + rounds)
        kill = rounds % 2 == 1
        args = ["--seed", base + rounds, "--ops", length, "--files", rng.choice((2, 4, 8))]
        args += ["--size", rng.choice(("512k", "4m", "80m")), "--io", rng.choice(("4k", "64k", "1m"))]
        args += ["--allocate", "--punch", "--zero", "--copy"]
        progress = ws.path("progress%d" % rounds)
        args += ["--progress", progress] if kill else ["--clone", tool("cachefs")]
        said = "round %d of %d: cfsx %s" % (rounds, base, " ".join(map(str, args)))
        print(said, flush=True)
        mounts = [volume.mount(FRESH), volume.mount(FRESH)]
        compactor = Compactor(ws, mounts)
        out = ws.path("out%d" % rounds)
        p = ws.popen([CFSX, *args, *mounts], stdout=open(out, "wb"), stderr=-2)
        if kill:
            goal = rng.randrange(length // 2, length)
            wait_until(lambda: begun(progress) >= goal or p.poll() is not None, 60 + length / 20)
            for m in mounts:
                m.kill9()
            code = p.wait(60 * SLOW)
            text = read(out)
            assert code in (0, 1, 3), text[-6000:]
            assert b"wrong bytes" not in text and b"has size" not in text, text[-6000:]
            done += begun(progress)
            compactor.stop()
        else:
            code = p.wait(60 + length)
            assert code == 0, read(out)[-6000:].decode()
            done += length
            compactor.stop()
            assert not compactor.failures, "compact failed"
            for m in mounts:
                m.umount()
        compacted += compactor.runs
        mnt = volume.mount()
        cfsx(ws, *args, "--verify", mnt, mnt, timeout=60 + length / 50)
        mnt.umount()
        assert volume.verify() == []
        rounds += 1
    print("model: %d operations, %d rounds, %d compact runs, seed %d" % (done, rounds, compacted, base))
