# SPDX-License-Identifier: Apache-2.0
"""A mount whose process dies, or is replaced by another, while it is in use. A failure here is a
program that gets an error or wrong bytes because the file system was upgraded or has crashed."""

import errno
import fcntl
import json
import mmap
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

import servers
from cachefs import SLOW, alive, children, mountinfo, tool, wait_until
from syscalls import data, fails, read, write

# The log line of each death is an error, and meant to be one.
DEATH = r"the process of the mount has died"


def config(mnt):
    return json.loads(read(os.path.join(mnt, ".config")))


def worker(mnt):
    return config(mnt)["Pid"]


def metric(mnt, name):
    return int(re.search(rb"^cachefs_%s (\d+)$" % name.encode(), read(os.path.join(mnt, ".stats")), re.M)[1])


def kill_worker(mnt, sig=signal.SIGKILL):
    """Returns when another process serves."""
    mnt.allow(DEATH)
    old = mnt.pid()
    before = len(re.findall("another process serves the mount", mnt.log()))
    os.kill(old, sig)
    wait_until(
        lambda: len(re.findall("another process serves the mount", mnt.log())) > before, 30, "the next process"
    )
    assert not alive(old)


class Upgraded:
    """The mount after an upgrade; its processes are no longer those that the test started."""

    def __init__(self, ws, volume, mnt, opts=""):
        self.mnt = mnt
        self.log = ws.path("upgrade%d.log" % len(os.listdir(ws.dir)))
        args = ["-o", opts] if opts else []
        r = ws.run("cachefs", "mount", volume.url, mnt.path, *args, timeout=60)
        assert r.returncode == 0, r.stderr
        self.pause = float(re.search(r"requests waited ([\d.]+) s", r.stdout)[1])


def upgrade(ws, volume, mnt, opts=""):
    up = Upgraded(ws, volume, mnt, opts)
    if mnt.process:
        assert mnt.process.wait(20 * SLOW) == 0
        mnt.process = None
    return up


EVENTS = {
    "kill": lambda ws, volume, mnt: kill_worker(mnt),
    "abort": lambda ws, volume, mnt: kill_worker(mnt, signal.SIGABRT),
    "upgrade": upgrade,
}


@pytest.fixture(params=EVENTS)
def event(request, ws):
    if request.param == "abort":
        # cores are for those that nobody ordered
        soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
        yield EVENTS[request.param]
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    else:
        yield EVENTS[request.param]


# ---- what stays ----


def test_open_files_stay(ws, volume, event):
    volume.check_options = {"leaks": "warn", "unmounted": True}
    mnt = volume.mount()
    content = data(3_000_000)
    write(mnt / "old", content)
    reader = open(mnt / "old", "rb", buffering=0)
    assert reader.read(1000) == content[:1000]
    writer = open(mnt / "new", "wb", buffering=0)
    writer.write(content[:1_000_000])
    os.fsync(writer.fileno())
    gone = open(mnt / "gone", "w+b", buffering=0)
    gone.write(content[:500_000])
    os.fsync(gone.fileno())
    os.unlink(mnt / "gone")
    with open(mnt / "old", "r+b") as f:
        mapped = mmap.mmap(f.fileno(), 0)
    assert mapped[:100] == content[:100]

    event(ws, volume, mnt)

    assert reader.read() == content[1000:]
    writer.write(content[1_000_000:])
    os.fsync(writer.fileno())
    writer.close()
    assert read(mnt / "new") == content
    assert os.pread(gone.fileno(), 500_000, 0) == content[:500_000]
    gone.write(b"more")
    os.fsync(gone.fileno())
    assert os.fstat(gone.fileno()).st_size == 500_004
    assert mapped[2_000_000:2_000_100] == content[2_000_000:2_000_100]
    mapped[0:5] = b"begin"
    mapped.flush()
    mapped.close()
    assert read(mnt / "old")[:5] == b"begin"
    reader.close()
    gone.close()
    wait_until(lambda: volume.sql("SELECT count(*) FROM jfs_sustained") == [(0,)], 10, "its end")
    mnt.umount()
    wait_until(lambda: not ws.processes(), 30, "the end of the processes")
    assert volume.status()["sessions"] == []


# Holds locks and says what it got; a line on stdin ends it.
HOLDER = """
import fcntl, os, sys
f = open(sys.argv[1], 'r+b', buffering=0)
g = open(sys.argv[2], 'r+b', buffering=0)
fcntl.flock(f, fcntl.LOCK_EX)
fcntl.lockf(g, fcntl.LOCK_EX, 10, 5)
print('held', flush=True)
sys.stdin.readline()
g.close()
f.close()
print('done', flush=True)
"""

WAITER = """
import fcntl, sys
f = open(sys.argv[1], 'r+b', buffering=0)
print('asking', flush=True)
fcntl.flock(f, fcntl.LOCK_EX)
print('got', flush=True)
"""


def contend(path, posix):
    """What another process gets."""
    code = (
        "import fcntl, sys\n"
        "f = open(sys.argv[1], 'r+b')\n"
        "try:\n"
        "    %s\n"
        "except BlockingIOError: print('busy')\n"
        "else: print('free')\n"
    ) % ("fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)" if posix else "fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)")
    return subprocess.run(
        [sys.executable, "-c", code, str(path)], stdout=-1, text=True, timeout=30 * SLOW
    ).stdout.strip()


def test_locks_stay(ws, volume, event):
    mnt, other = volume.mount(), volume.mount()
    write(mnt / "f", b"x" * 100)
    write(mnt / "g", b"x" * 100)
    holder = ws.python(HOLDER, mnt / "f", mnt / "g", stdin=-1, stdout=-1, text=True)
    assert holder.stdout.readline() == "held\n"
    waiter = ws.python(WAITER, mnt / "f", stdout=-1, text=True)
    assert waiter.stdout.readline() == "asking\n"

    event(ws, volume, mnt)

    for at in (mnt, other):
        assert contend(at / "f", False) == "busy"
        assert contend(at / "g", True) == "busy"
    assert waiter.poll() is None
    holder.communicate("end\n", timeout=30 * SLOW)
    assert waiter.communicate(timeout=30 * SLOW)[0] == "got\n"
    assert waiter.returncode == 0
    for at in (other, mnt):
        assert contend(at / "f", False) == "free"
        assert contend(at / "g", True) == "free"
    mnt.umount()
    other.umount()
    assert volume.sql("SELECT count(*) FROM jfs_flock") == [(0,)]
    assert volume.sql("SELECT count(*) FROM jfs_plock") == [(0,)]


def test_directory_stream_stays(ws, volume, event):
    mnt = volume.mount()
    os.mkdir(mnt / "d")
    names = {"name-%05d" % i for i in range(3000)}
    for name in names:
        os.mknod(mnt / "d" / name)
    seen = []
    with os.scandir(mnt / "d") as entries:
        for e in entries:
            seen.append(e.name)
            if len(seen) == 1200:
                event(ws, volume, mnt)
    assert len(seen) == len(set(seen)) and set(seen) == names


def test_what_was_not_stored_is_told_once(ws, volume):
    volume.check_options = {"leaks": "warn", "unmounted": True}
    mnt = volume.mount()
    write(mnt / "calm", b"x" * 1000)
    calm = open(mnt / "calm", "r+b", buffering=0)
    synced = open(mnt / "synced", "wb", buffering=0)
    synced.write(b"a" * 100_000)
    os.fsync(synced.fileno())
    dirty = open(mnt / "dirty", "wb", buffering=0)
    dirty.write(b"b" * 100_000)
    os.fsync(dirty.fileno())
    os.kill(mnt.pid(), signal.SIGSTOP)  # nothing is stored from here on
    os.kill(mnt.pid(), signal.SIGCONT)
    dirty.write(b"c" * 100_000)
    kill_worker(mnt)
    with fails("EIO"):
        os.fsync(dirty.fileno())
    dirty.seek(100_000)
    dirty.write(b"d" * 100_000)
    os.fsync(dirty.fileno())
    dirty.close()
    os.fsync(synced.fileno())
    synced.close()
    calm.close()
    assert read(mnt / "dirty") == b"b" * 100_000 + b"d" * 100_000
    assert read(mnt / "synced") == b"a" * 100_000
    assert metric(mnt, "worker_restarts_total") == 1


def test_what_was_stored_in_the_background_is_not_told(ws, volume):
    mnt = volume.mount()
    f = open(mnt / "f", "wb", buffering=0)
    f.write(b"x" * 100_000)
    wait_until(lambda: metric(mnt, "data_dirty_bytes") == 0, 20, "the background to store it")
    wait_until(lambda: metric(mnt, "data_open_slices") == 0, 20, "the background to store it")
    kill_worker(mnt)
    os.fsync(f.fileno())
    f.close()
    assert read(mnt / "f") == b"x" * 100_000


def test_upgrade_loses_nothing(ws, volume):
    mnt = volume.mount()
    f = open(mnt / "f", "wb", buffering=0)
    content = data(20_000_000)
    f.write(content)
    upgrade(ws, volume, mnt)
    os.fsync(f.fileno())
    f.close()
    assert read(mnt / "f") == content
    assert volume.verify(unmounted=False) == []
