# SPDX-License-Identifier: Apache-2.0
"""Requests that hang are told with what they wait for. A failure here leaves an administrator with a
mount that stands still and a log that is silent, or with one that is restarted for nothing."""

import fcntl
import os
import re
import signal
import sqlite3
import tarfile
import threading

import pytest

import servers
from cachefs import Volume, children, need_engine, stop_process, wait_until
from s3volume import S3Volume
from syscalls import data, write

STUCK = r"request is stuck: op=%s inode=%d pid=%s seconds=[\d.]+ waits_for=\"(.*)\""
LIMIT = "watchdog=500ms"
RESTART = LIMIT + ",watchdog-restart,prefetch=0"


def stuck(mnt, op, ino, pid=r"\d+"):
    return re.findall(STUCK % (op, ino, pid), mnt.log())


def in_background(fn, *args):
    """Runs it in a thread, whose end is waited for with .join()."""
    failed = []

    def run():
        try:
            fn(*args)
        except OSError as e:
            failed.append(e)

    t = threading.Thread(target=run, daemon=True)
    t.failed = failed
    t.start()
    return t


def requests(ws, mnt):
    """requests.txt of what `cachefs debug` collects."""
    archive = ws.path("debug.tar.gz")
    archive.unlink(missing_ok=True)
    ws.run("cachefs", "debug", mnt.path, archive, timeout=120, check=True)
    with tarfile.open(archive) as t:
        return t.extractfile("cachefs-debug/requests.txt").read().decode()


@pytest.fixture
def frozen(ws, s3, via):
    """A volume in S3 behind a proxy that stops answering for downloads when told to."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount(
        LIMIT + ",buffer-size=32M,prefetch=0,attr-cache=0,entry-cache=0", env=s3.keys
    )
    write(mnt / "f", data(1 << 20))
    mnt.umount()
    mnt = vol.mount(
        LIMIT + ",buffer-size=32M,prefetch=0,attr-cache=0,entry-cache=0", env=s3.keys
    )
    yield mnt
    via.clear()


@pytest.mark.deadline(180)
def test_frozen_object_store(ws, via, frozen):
    """The log names operation, caller, object and how long; so does the archive; then it is over."""
    mnt = frozen
    ino = os.stat(mnt / "f").st_ino
    keys = [str(p.relative_to(mnt.volume.bucket)) for p in mnt.volume.objects()]
    fault = via.add("GET", "chunks", delay=600)
    reader = ws.popen(["/bin/cat", mnt / "f"], stdout=-3)
    found = wait_until(lambda: stuck(mnt, "read", ino), 30, "the report of the read")
    assert re.search(r"block (\S+) \([\d.]+ s\): object get (\S+) \(", found[0]), found
    assert any(k in found[0] for k in keys), (found, keys)
    again = wait_until(lambda: stuck(mnt, "read", ino)[1:], 30, "the next report")
    assert all("object get" in line for line in again)
    assert mnt.stat("requests_in_flight") >= 1
    assert mnt.stat("request_oldest_seconds") > 0.5
    assert mnt.stat("watchdog_reports_total") >= 2
    shown = requests(ws, mnt)
    assert re.search(
        r'^read inode=%d pid=%d seconds=[\d.]+ thread=\d+ waits_for="block .*object get ' % (ino, reader.pid),
        shown,
        re.M,
    ), shown
    # the requests that hang are cut off, their repetitions go through
    fault.times = 0
    for stream in list(via.live):
        stream.close()
    assert reader.wait(60) == 0
    wait_until(lambda: "no request is stuck any more" in mnt.log(), 30, "the end of the reports")
    wait_until(lambda: mnt.stat("requests_in_flight") == 0, 30, "an idle mount")
    assert mnt.stat("request_oldest_seconds") == 0
    assert requests(ws, mnt) == ""


@pytest.mark.deadline(180)
def test_every_thread_hangs(ws, via, frozen):
    """The archive does not need the mount's answer."""
    mnt = frozen
    mnt.umount()
    mnt = mnt.volume.mount(LIMIT + ",max-threads=1,prefetch=0", env=mnt.volume.s3.keys)
    ino = os.stat(mnt / "f").st_ino
    via.add("GET", "chunks", delay=600)
    # not in this process: whoever it starts would close copies of its files, and hang in that
    readers = [
        ws.popen(["/bin/dd", "if=%s" % (mnt / "f"), "of=/dev/null", "iflag=direct", "bs=4k", "count=1"], stderr=-3)
        for _ in range(4)
    ]
    wait_until(lambda: len(stuck(mnt, "read", ino)) >= 1, 30, "the report")
    shown = requests(ws, mnt)
    assert re.search(r"^read inode=%d " % ino, shown, re.M), shown
    via.clear()
    for stream in list(via.live):
        stream.close()
    for r in readers:
        assert r.wait(60) == 0


@pytest.mark.deadline(180)
def test_requests_without_a_thread(ws, via, frozen):
    """Reads that are put aside, so that some threads are left to others: they are shown and told all
    the same, and count once when they have been carried out."""
    mnt, readers = frozen, 12
    for i in range(readers):
        write(mnt / ("f%d" % i), data(4096))
    mnt.umount()
    mnt = mnt.volume.mount(LIMIT + ",max-threads=8,prefetch=0,max-readahead=0", env=mnt.volume.s3.keys)
    via.add("GET", "chunks", delay=600)
    running = [
        ws.popen(["/bin/dd", "if=%s" % (mnt / ("f%d" % i)), "of=/dev/null", "iflag=direct", "bs=4k"], stderr=-3)
        for i in range(readers)
    ]
    wait_until(lambda: mnt.stat("requests_in_flight") == readers, 30, "all of them")
    shown = requests(ws, mnt)
    assert len(re.findall(r"^read ", shown, re.M)) == readers, shown
    aside = re.findall(r'^read .* pid=(\d+) .*thread=none waits_for="queue requests that wait', shown, re.M)
    assert len(aside) >= 4 and set(map(int, aside)) <= {r.pid for r in running}, shown
    told = r'stuck: op=read inode=\d+ pid=%s .*waits_for="queue requests'
    wait_until(lambda: any(re.search(told % pid, mnt.log()) for pid in aside), 30, "one that was told")
    via.clear()
    for stream in list(via.live):
        stream.close()
    for r in running:
        assert r.wait(60) == 0
    wait_until(lambda: mnt.stat("requests_in_flight") == 0, 30, "an idle mount")
    assert mnt.stat("memory_cache_hits_total") == 0


@pytest.mark.deadline(180)
def test_frozen_upload(ws, s3, via):
    """fsync names the object that is not stored, whichever thread stores it."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount(LIMIT, env=s3.keys)
    fault = via.add("PUT", "chunks", delay=600)
    with open(mnt / "f", "wb", buffering=0) as f:
        f.write(data(6 << 20))  # one block goes at once, the rest with fsync
        ino = os.fstat(f.fileno()).st_ino
        syncing = in_background(os.fsync, f.fileno())
        found = wait_until(lambda: stuck(mnt, "fsync", ino), 30, "the report of fsync")
        assert re.search(r"object put vol/chunks/\S+ \(", found[0]), found
        fault.times = 0
        for stream in list(via.live):
            stream.close()
        syncing.join(60)
        assert not syncing.is_alive() and not syncing.failed


def test_database_that_is_locked(volume):
    mnt = volume.mount(LIMIT + ",attr-cache=0,entry-cache=0,meta-timeout=60")
    other = sqlite3.connect(volume.db, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    making = in_background(os.mkdir, mnt / "d")
    found = wait_until(lambda: stuck(mnt, "mkdir", 1), 30, "the report of mkdir")
    assert re.match(r"metadata mknod \([\d.]+ s\)$", found[0]), found
    other.execute("ROLLBACK")
    other.close()
    making.join(60)
    assert not making.is_alive() and os.path.isdir(mnt / "d")


@pytest.mark.deadline(240)
@pytest.mark.parametrize("kind", [servers.Redis, servers.Postgres, servers.Mariadb])
def test_frozen_database(ws, kind):
    """A database server that hangs rather than ends: the report names the call."""
    need_engine(kind.scheme)
    server = servers.started(ws, kind())
    vol = Volume(ws, url=server.database().url)
    mnt = vol.mount(LIMIT + ",attr-cache=0,entry-cache=0,heartbeat=600")
    stop_process(server.process.pid)
    try:
        for child in children(server.process.pid):
            stop_process(child)
        asking = in_background(os.mkdir, mnt / "d")
        found = wait_until(lambda: stuck(mnt, "(?:getattr|lookup|mkdir)", 1), 30, "the report")
        assert re.match(r"metadata (getattr|lookup|mknod) \(", found[0]), found
    finally:
        for pid in [server.process.pid, *children(server.process.pid)]:
            os.kill(pid, signal.SIGCONT)
    asking.join(60)
    assert not asking.is_alive() and not asking.failed
    mnt.umount()


def test_file_locks_may_wait(ws, volume):
    """They are shown, with who holds them, and never reported."""
    mnt = volume.mount("watchdog=3s,watchdog-restart")
    write(mnt / "f", b"x")
    ino = os.stat(mnt / "f").st_ino
    with open(mnt / "f", "r+b") as f:
        fcntl.lockf(f, fcntl.LOCK_EX)
        waiter = ws.python(
            "import fcntl, sys\nf = open(sys.argv[1], 'r+b')\nfcntl.lockf(f, fcntl.LOCK_EX)", mnt / "f"
        )
        want = r'^setlk inode=%d pid=%d .*waits_for="file lock held by pid %d \(' % (
            ino, waiter.pid, os.getpid(),
        )
        wait_until(lambda: re.search(want, requests(ws, mnt), re.M), 30, "the wait to be shown")
        age = r"^setlk inode=%d .* seconds=([\d.]+)" % ino
        wait_until(
            lambda: float(re.findall(age, requests(ws, mnt), re.M)[0]) > 5, 30, "more than the limit"
        )
        assert mnt.stat("request_oldest_seconds") < 3
        assert mnt.stat("watchdog_reports_total") == 0
    assert waiter.wait(30) == 0
    assert "stuck" not in mnt.log()


@pytest.mark.deadline(180)
def test_restart(ws, via, frozen):
    """Another process takes over what was stuck; the reader sees a pause only."""
    mnt = frozen
    mnt.umount()
    mnt = mnt.volume.mount(RESTART, env=mnt.volume.s3.keys)
    mnt.allow("watchdog-restart|has died, starting another")
    # The core of a process that was ended is for those who look into it.
    ws.cleanups.append(lambda: [p.unlink() for p in ws.dir.glob("core*")])
    via.add("GET", "chunks", delay=600)
    reader = ws.popen(["/bin/cat", mnt / "f"], stdout=-1)
    wait_until(lambda: "another process serves the mount" in mnt.log(), 60, "another process")
    via.clear()
    assert reader.communicate(timeout=60)[0] == data(1 << 20) and reader.returncode == 0
    assert re.search(r"request is stuck: op=read .*object get", mnt.log())


@pytest.mark.deadline(180)
def test_restart_without_a_supervisor(ws, via, frozen):
    """The mount ends at once, and says why; nobody is left hanging in it."""
    mnt = frozen
    mnt.umount()
    mnt = mnt.volume.mount(RESTART + ",supervise=0", env=mnt.volume.s3.keys)
    mnt.allow("watchdog-restart")
    mnt.volume.check_options = {"unmounted": False}
    via.add("GET", "chunks", delay=600)
    reader = ws.popen(["/bin/cat", mnt / "f"], stdout=-3, stderr=-3)
    mnt.wait_end(60, code=2)
    assert re.search(r"request is stuck: op=read .*object get", mnt.log())
    assert "a request is stuck, this process exits" in mnt.log()
    assert reader.wait(30) != 0
    assert not mnt.mounted()


def test_watchdog_off(ws, volume):
    mnt = volume.mount("watchdog=0,attr-cache=0,entry-cache=0")
    other = sqlite3.connect(volume.db, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    making = in_background(os.mkdir, mnt / "d")
    shown = wait_until(
        lambda: re.findall(r"^mkdir .* seconds=([1-9]\S*) .*metadata mknod", requests(ws, mnt), re.M),
        30,
        "a second of waiting",
    )
    assert shown
    other.execute("ROLLBACK")
    other.close()
    making.join(60)
    assert "stuck" not in mnt.log()
