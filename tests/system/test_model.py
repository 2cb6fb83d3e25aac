# SPDX-License-Identifier: Apache-2.0
"""The model test on real mounts. A failure here is a wrong byte in somebody's file; the output names
the seed and the operations that led to it (tests/model/cfsx --help)."""

import os
import pathlib
import random

import pytest

from cachefs import BIN, SLOW, wait_until
from syscalls import read

CFSX = pathlib.Path(os.environ.get("CACHEFS_CFSX") or BIN.parents[1] / "tests" / "model" / "cfsx")
OPS = int(os.environ.get("CACHEFS_MODEL_OPS") or 3000)
FRESH = "attr-cache=0,entry-cache=0,dir-entry-cache=0"

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
