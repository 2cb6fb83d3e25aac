# SPDX-License-Identifier: Apache-2.0
"""File locks when a mount and its metadata server lose each other. A failure here is a program that
believes in a lock that others can take, or a lock that nobody holds and nobody gets."""

import fcntl
import os
import re
import signal
import sqlite3
import threading

import pytest

import servers
from cachefs import Clock, children, need_engine, stop_process, wait_until
from countproxy import CountingProxy
from syscalls import fails, write
from test_takeover import kill_worker, upgrade

ENDED = "another client has ended the session|open files have lost their locks"
AWAY = r"does not answer|away|connection lost|no connection|connected to the database again|cannot (refresh|read|write)|lost"
SERVERS = {"redis": servers.redis_server, "mysql": servers.mariadb_server, "postgresql": servers.postgres_server}


def each(engines):
    return pytest.fixture(params=[pytest.param(e, marks=() if e == "sqlite" else pytest.mark.module(e)) for e in engines])


@each(["sqlite", *SERVERS])
def any_volume(request, ws):
    if request.param == "sqlite":
        return ws.volume()
    need_engine(request.param)
    db = SERVERS[request.param]().database()
    ws.cleanups.append(db.drop)
    volume = ws.volume(url=db.url)
    volume.server_db = db
    return volume


@each(SERVERS)
def away(request, ws):
    """A volume behind a proxy, the proxy, and the same volume without it."""
    need_engine(request.param)
    db = SERVERS[request.param]().database()
    ws.cleanups.append(db.drop)
    direct = ws.volume(url=db.url)
    proxy = CountingProxy(db.server.port)
    ws.cleanups.append(proxy.close)
    return ws.volume("via", format=False, url=db.url.replace(":%d" % db.server.port, ":%d" % proxy.port)), proxy, direct


def expire(volume, sid):
    """As the time that a frozen mount does not see would."""
    if volume.url.startswith("sqlite"):
        volume.sql("UPDATE jfs_session2 SET expire=1 WHERE sid=?", sid)
        return
    c = volume.server_db.connect()
    if volume.url.startswith("redis"):
        c.zadd("allSessions", {str(sid): 1})
        return
    with c.cursor() as cur:
        cur.execute("UPDATE jfs_session2 SET expire=1 WHERE sid=%d" % sid)
    c.commit()
    c.close()


def session_of(mnt):
    return int(re.findall(r"(?:mounted: .*|using another session: )sid=(\d+)", mnt.log())[-1])


def sessions(volume):
    return [s["sid"] for s in volume.status()["sessions"]]


def processes(mnt):
    return [mnt.process.pid, *children(mnt.process.pid)]


def can_lock(path, lock=fcntl.flock):
    with open(path, "r+b", buffering=0) as f:
        try:
            lock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_frozen_mount_notices_that_its_locks_are_gone(any_volume):
    """A machine that was suspended goes on when others have taken its locks."""
    a, b = any_volume.mount("heartbeat=1"), any_volume.mount("heartbeat=1")
    for name in "fgh":
        write(a / name, b"x" * 10)
    posix, bsd, idle, plain = (open(a / name, "r+b", buffering=0) for name in "fgff")
    fcntl.flock(bsd, fcntl.LOCK_EX)
    fcntl.flock(idle, fcntl.LOCK_SH)
    fcntl.flock(idle, fcntl.LOCK_UN)
    fcntl.lockf(posix, fcntl.LOCK_EX, 5, 0)
    posix.write(b"y")
    sid = session_of(a)
    frozen = processes(a)
    for pid in frozen:
        stop_process(pid)
    try:
        expire(any_volume, sid)
        wait_until(lambda: can_lock(b / "g") and can_lock(b / "f", fcntl.lockf), 30, "the other mount to take the locks")
        theirs = open(b / "g", "r+b", buffering=0)
        fcntl.flock(theirs, fcntl.LOCK_EX)
    finally:
        a.allow(ENDED)
        for pid in reversed(frozen):
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: session_of(a) != sid, 30, "another session")
    assert "sid=%d" % sid in a.log() and "handles=2" in a.log()

    def check():
        for f in posix, bsd:
            with fails("EIO"):
                os.pwrite(f.fileno(), b"z", 0)
            with fails("EIO"):
                os.fsync(f.fileno())
            with fails("EIO"):
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with fails("EIO"):
                fcntl.lockf(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
        for f in idle, plain:
            os.pwrite(f.fileno(), b"z", 0)
            os.fsync(f.fileno())

    check()
    kill_worker(a)  # the next process knows it, too
    wait_until(lambda: "resumed the mount" in a.log(), 30, "the next process")
    check()
    assert not can_lock(a / "g")
    theirs.close()
    wait_until(lambda: can_lock(a / "g"), 20, "the lock of the other mount")
    for f in posix, bsd:
        with fails("EIO"):
            f.close()
    assert can_lock(a / "f") and can_lock(a / "f", fcntl.lockf)
    fcntl.flock(idle, fcntl.LOCK_EX)
    assert not can_lock(b / "f")
    idle.close()
    plain.close()
    expire(any_volume, sid)  # what requests under way may have left under it goes then
    wait_until(lambda: sid not in sessions(any_volume), 30, "the end of the record")


def test_late_lock_of_a_process_that_died(volume):
    """A request that the process had sent takes a lock after others have ended the session, and the process dies
    before it knows."""
    a, b = volume.mount("heartbeat=60"), volume.mount("heartbeat=1")
    write(a / "f", b"x")
    sid = session_of(a)
    stop_process(a.pid())
    expire(volume, sid)
    wait_until(lambda: sid not in sessions(volume), 30, "the end of the session")
    volume.sql("INSERT INTO jfs_flock (inode,sid,owner,ltype) VALUES (?,?,1,'W')", os.stat(b / "f").st_ino, sid)
    assert not can_lock(b / "f")
    a.allow(ENDED)
    kill_worker(a)
    wait_until(lambda: sid in sessions(volume), 10, "its record")
    expire(volume, sid)  # as time does
    wait_until(lambda: can_lock(b / "f"), 30, "the lock that nobody has")


def close(f):
    try:
        f.close()
    except OSError:
        pass


def take_both(path):
    """Open files with a POSIX lock and with a BSD lock."""
    posix, bsd = (open(str(path) + kind, "r+b", buffering=0) for kind in ("p", "b"))
    fcntl.lockf(posix, fcntl.LOCK_EX)
    fcntl.flock(bsd, fcntl.LOCK_EX)
    return posix, bsd


def lock_both(path):
    return can_lock(str(path) + "p", fcntl.lockf) and can_lock(str(path) + "b")


@pytest.mark.deadline(150)
@pytest.mark.parametrize(
    ("away", "event"),
    [pytest.param(e, "kill in the outage", marks=pytest.mark.module(e)) for e in SERVERS]
    + [pytest.param("redis", e, marks=pytest.mark.module("redis")) for e in ("kill", "upgrade")],
    indirect=["away"],
)
def test_unlock_in_an_outage_is_not_forgotten(ws, away, event):
    """The file is closed while the server is away, and the process that knows of it is replaced."""
    volume, proxy, direct = away
    opts = "heartbeat=600,meta-timeout=1,io-timeout=2,attr-cache=600,entry-cache=600,dir-entry-cache=600"
    m, other = volume.mount(opts), direct.mount()
    m.allow(AWAY + "|cannot be opened again")
    for kind in "pb":
        write(other / ("f" + kind), b"x")
    files = take_both(m / "f")
    assert not can_lock(other / "fp", fcntl.lockf) and not can_lock(other / "fb")
    handles = m.open_handles()
    proxy.refuse = True
    proxy.cut()
    closers = [threading.Thread(target=close, args=(f,)) for f in files]
    for t in closers:
        t.start()
    for t in closers:
        t.join(60)
    wait_until(lambda: m.stat("open_handles") == handles - 2, 30, "the end of the handles")
    if event == "kill in the outage":
        m.allow("the process of the mount has died")
        os.kill(m.pid(), signal.SIGKILL)
        wait_until(lambda: "cannot be opened again" in m.log(), 30, "the next process to try")
    proxy.go_on()
    assert not can_lock(other / "fp", fcntl.lockf) and not can_lock(other / "fb")
    if event == "kill":
        kill_worker(m)
    elif event == "upgrade":
        upgrade(ws, volume, m, opts)
    wait_until(lambda: lock_both(other / "f"), 60, "the locks of the closed files")
    m.umount()


def test_unlock_of_a_locked_database_is_not_forgotten(ws, volume):
    """As above, on SQLite: another process has the database."""
    m, other = volume.mount("heartbeat=600,meta-timeout=500ms,io-timeout=2,attr-cache=600,entry-cache=600"), volume.mount()
    m.allow(AWAY + "|busy|locked")
    for kind in "pb":
        write(other / ("f" + kind), b"x")
    files = take_both(m / "f")
    handles = m.open_handles()
    locker = sqlite3.connect(volume.db, isolation_level=None)
    ws.cleanups.append(locker.close)
    locker.execute("BEGIN IMMEDIATE")
    for f in files:
        close(f)
    wait_until(lambda: m.stat("open_handles") == handles - 2, 30, "the end of the handles")
    locker.execute("COMMIT")
    assert not can_lock(other / "fp", fcntl.lockf) and not can_lock(other / "fb")
    kill_worker(m)
    wait_until(lambda: lock_both(other / "f"), 60, "the locks of the closed files")


@pytest.mark.deadline(150)
def test_lock_whose_answer_is_lost(away):
    """The program was refused it, and keeps the file open: the lock goes when the server is back, also
    when the process of the mount has died."""
    volume, proxy, direct = away
    m, other = volume.mount("heartbeat=600,no-bgjob,meta-timeout=1,io-timeout=2"), direct.mount("no-bgjob")
    m.allow(AWAY)
    write(other / "f", b"x")
    for lock in fcntl.flock, fcntl.lockf:
        taken, tries = False, 0
        while not taken:
            assert tries < 12
            f = open(m / "f", "r+b", buffering=0)
            for _ in range(2):  # the first time it may connect
                turns = proxy.count(lambda f=f, lock=lock: lock(f, fcntl.LOCK_EX))
                lock(f, fcntl.LOCK_UN)
            # The last turn; one of another thread may have been counted, too.
            proxy.lose(max(1, turns - tries % 2), answered=True, away=True)
            tries += 1
            try:
                lock(f, fcntl.LOCK_EX)
            except OSError:
                taken = not can_lock(other / "f", lock)
            proxy.losing = None
            proxy.go_on()
            if not taken:
                close(f)
        kill_worker(m)
        wait_until(lambda lock=lock: can_lock(other / "f", lock), 30, "the lock that nobody has")
        lock(f, fcntl.LOCK_EX)  # the file is as good as before
        assert not can_lock(other / "f", lock)
        f.close()
        wait_until(lambda lock=lock: can_lock(other / "f", lock), 30, "the lock of the closed file")


@each(["sqlite", "redis", "mysql"])
def url_by(request, ws):
    """Of a database on the machine of that clock."""

    def url(clock):
        if request.param == "sqlite":
            return None
        need_engine(request.param)
        server = servers.Redis() if request.param == "redis" else servers.Mariadb()
        server.env = clock.env
        os.chmod(ws.dir, 0o711)  # another user reads the clock
        return servers.started(ws, server).database().url

    return url


@pytest.mark.parametrize("how", ["set", "suspended"])
def test_a_clock_that_jumps(ws, url_by, how):
    """Two mounts of a machine whose clock is set ahead, or which was suspended. The one whose heartbeat comes first
    does not take the other for dead: what that one locks and holds open would be lost."""
    clock = Clock(ws)
    volume = ws.volume(url=url_by(clock), trash_days=0)
    env = {**clock.env, "CLOCK_SLEPT": "1"} if how == "suspended" else clock.env
    first, late = volume.mount("heartbeat=1", env=env), volume.mount("heartbeat=12", env=env)
    with open(late / "held", "wb+", buffering=0) as held, open(late / "lock", "wb") as locked:
        held.write(b"held")
        os.fsync(held.fileno())
        os.unlink(late / "held")
        fcntl.flock(locked, fcntl.LOCK_EX)
        beats = 'meta_round_trips_total{op="session"}'
        begun = first.stat(beats)
        wait_until(lambda: first.stat(beats) > begun + 1, 60, "a heartbeat with the right clock")
        clock.set(3600)
        begun = first.stat(beats)
        wait_until(lambda: first.stat(beats) > begun + 6, 60, "some heartbeats")
        with open(first / "lock", "rb") as f, fails("EAGAIN"):
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        begun = late.stat(beats)
        wait_until(lambda: late.stat(beats) > begun, 60, "a late heartbeat")
        assert os.pread(held.fileno(), 9, 0) == b"held"
    assert "stopped answering" not in first.log() + late.log()
