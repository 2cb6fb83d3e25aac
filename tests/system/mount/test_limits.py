# SPDX-License-Identifier: Apache-2.0
"""Limits of the system that a mount meets: it works, or says what is missing. A user would else look for the cause
in the backends."""

import concurrent.futures
import contextlib
import os
import pathlib
import re
import signal

import pytest

from cachefs import children, missing, sanitized, tool, wait_until
from syscalls import data, read

MIB = 1 << 20
JOIN = 'echo $$ >"$0/cgroup.procs" && exec "$@"'

pytestmark = pytest.mark.skipif(sanitized(), reason="a sanitizer has memory and threads of its own")


def control_group(ws, controller, old_name, name, value):
    """A group of the test's own with that limit, with either version of control groups."""
    old = pathlib.Path("/sys/fs/cgroup") / controller
    group = (old if old.is_dir() else old.parent) / ws.dir.name
    try:
        group.mkdir()
        ws.cleanups.append(group.rmdir)
        (group / (old_name if old.is_dir() else name)).write_text(str(value))
    except OSError:
        missing("no control group of its own with a limit of " + controller)
    return group


def mount_in(ws, group, volume, *argv):
    ws.path("mnt").mkdir(exist_ok=True)
    return ws.run("sh", "-c", JOIN, group, tool("cachefs"), "mount", volume.url, ws.path("mnt"), *argv)


def members(group):
    return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]


def use(mnt, threads, rounds=2, size=300_000):
    """Writes, syncs, reads and removes; returns the errors."""
    content = data(size)

    def one(i):
        bad = []
        for k in range(rounds):
            try:
                path = mnt / ("%d-%d" % (i, k))
                with open(path, "wb") as f:
                    f.write(content)
                    f.flush()
                    os.fsync(f.fileno())
                    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert read(path) == content
                path.unlink()
            except OSError as e:
                bad.append(str(e))
        return bad

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(one, range(threads)), [])


@pytest.mark.deadline(120)
def test_killed_for_memory(ws, volume):
    group = control_group(ws, "memory", "memory.limit_in_bytes", "memory.max", 80 * MIB)
    log, mnt = ws.path("log"), ws.path("mnt")
    volume.check_options = None
    r = mount_in(ws, group, volume, "-o", "buffer-size=600,log=%s" % log)
    assert r.returncode == 0, r.stderr
    (supervisor,) = [pid for pid in members(group) if set(children(pid)) & set(members(group))]
    (worker,) = set(members(group)) - {supervisor}
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: "another process serves" in log.read_text(), 30, "the next process")
    assert "for want of memory" not in log.read_text()
    content = data(8 * MIB)

    def write_one(i):
        with contextlib.suppress(OSError):
            (mnt / str(i)).write_bytes(content)

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for i in range(64):
            pool.submit(write_one, i)
        said = wait_until(
            lambda: re.search(r"the kernel killed the process .* buffer-size .*count=\d+ file=(\S+)", log.read_text()),
            60,
            "the line",
        )
        assert str(group) in said[1]
        ws.run("umount", "-l", mnt)
        for pid in members(group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not members(group), 20, "the end of the mount")


@pytest.mark.deadline(120)
@pytest.mark.parametrize("tasks", [3, 6, 9, 11, 12, 13, 14, 16, 20, 25, 27, 40])
def test_few_tasks(ws, volume, tasks):
    """It is refused, and nothing is left, or it works."""
    group = control_group(ws, "pids", "pids.max", "pids.max", tasks)
    r = mount_in(ws, group, volume)
    if r.returncode:
        assert r.returncode != 0 and tasks < 30
        assert "pids.max" in r.stderr or "cannot start a process" in r.stderr, r.stderr
        assert not ws.mount_points()
    else:
        assert use(ws.path("mnt"), 24) == []
        ws.run("cachefs", "umount", ws.path("mnt"), check=True)
    wait_until(lambda: not members(group), 20, "the end of its processes")


@pytest.mark.deadline(120)
@pytest.mark.parametrize("limit", [24, 48, 64, 100])
@pytest.mark.parametrize("buffer", [None, 300])
def test_little_memory_for_data(ws, volume, limit, buffer):
    """Of the process (ulimit -d). With less than the mount needs, each failure has its cause in the log."""
    log, mnt = ws.path("log"), ws.path("mnt")
    mnt.mkdir()
    opts = "log=%s" % log + (",buffer-size=%d" % buffer if buffer else "")
    r = ws.run("prlimit", "--data=%d" % (limit * MIB), tool("cachefs"), "mount", volume.url, mnt, "-o", opts)
    if r.returncode:
        assert limit < 48 and "ulimit -d" in r.stderr, r.stderr
        assert not ws.mount_points()
        return
    bad = use(mnt, 24, size=8 * MIB)
    text = log.read_text()
    assert not bad or "as the system gives this process no memory" in text, (bad[:3], text)
    ws.run("cachefs", "umount", mnt, check=True)
