# SPDX-License-Identifier: Apache-2.0
"""A real Galera of three servers, with mounts on different ones. A failure here is a volume that two
machines damage between them, each with its own server, or a mount that a server's crash ends."""

import atexit
import concurrent.futures
import errno
import fcntl
import json
import os
import threading
import time

import pytest

import servers
import test_concurrency
from cachefs import SLOW, Volume, wait_until
from syscalls import data, read, write
from test_engines import suite
from test_mysql import LOST, checked, storm

pytestmark = pytest.mark.module("mysql")
FRESH = "attr-cache=0,entry-cache=0,dir-entry-cache=0"
SECONDS = 120 if test_concurrency.LONG else 6
ROUNDS = 1000 if test_concurrency.LONG else 100
_cluster = []


def cluster():
    """The run's, started at its first use."""
    if not _cluster:
        _cluster.append(servers.Galera())
        atexit.register(_cluster[0].close)
        _cluster[0].start()
    for n in _cluster[0].nodes:
        if n.process is None:
            n.start()
    return _cluster[0]


@pytest.fixture
def galera(ws):
    return cluster()


@pytest.fixture
def database(ws, galera):
    db = galera.nodes[0].database()
    ws.cleanups.append(db.drop)
    return db


def url_at(galera, db, i):
    return galera.nodes[i].url(db.name)


def mount_at(galera, v, db, i, options=FRESH):
    """A mount whose server is nodes[i]."""
    v.url = url_at(galera, db, i)
    galera.settle()
    return v.mount(options)


def both(galera, *names):
    """The sum of status variables of all servers."""
    return sum(int(n.status(name)) for n in galera.nodes for name in names)


def at_once(*calls):
    """The result of each, or its OSError, when they begin together."""
    barrier, got = threading.Barrier(len(calls)), [None] * len(calls)

    def run(i, fn):
        barrier.wait(30 * SLOW)
        try:
            got[i] = fn()
        except OSError as e:
            got[i] = e.errno

    threads = [threading.Thread(target=run, args=(i, fn)) for i, fn in enumerate(calls)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return got


@pytest.mark.deadline(300)
def test_conformance(ws, galera, database):
    suite(ws, url_at(galera, database, 1))


@pytest.mark.deadline(300 if test_concurrency.LONG else 150)
@pytest.mark.parametrize("trash_days", [0, 1])
def test_random_work_on_two_servers(ws, galera, database, trash_days):
    """Transactions of the two do fail certification, and nobody notices."""
    before = both(galera, "wsrep_local_cert_failures", "wsrep_local_bf_aborts")
    v = Volume(ws, url=database.url, trash_days=trash_days)
    mounts = [mount_at(galera, v, database, i) for i in range(2)]
    done = test_concurrency.random_work(ws, mounts, trash_days, SECONDS)
    failures = both(galera, "wsrep_local_cert_failures", "wsrep_local_bf_aborts") - before
    retries = sum(v for m in mounts for k, v in m.stats().items() if k.startswith("meta_retries_total"))
    print("%d operations, %d failures of certification, %d retries" % (done, failures, retries))
    assert failures > 0 and retries > 0
    test_concurrency.judge(v, mounts)


def make(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    return 0


def rename(m, d):
    os.rename(m / "src", m / d / "f")
    return 0


ENTRIES = {
    "create": lambda m, d: make(m / d / "f"),
    "mkdir": lambda m, d: os.mkdir(m / d / "f") or 0,
    "symlink": lambda m, d: os.symlink("x", m / d / "f") or 0,
    "link": lambda m, d: os.link(m / "src", m / d / "f") or 0,
    "rename": rename,
}


@pytest.mark.deadline(200)
def test_directories_moved_into_each_other(ws, galera, database):
    v = Volume(ws, url=database.url, trash_days=0)
    a, b = (mount_at(galera, v, database, i) for i in range(2))
    for side in "pq":
        os.mkdir(a / side)
    for _ in range(ROUNDS // 2):
        # No directory is changed by both.
        os.makedirs(a / "p/1/2")
        os.makedirs(a / "q/1/2")
        os.stat(b / "q/1/2")
        got = at_once(
            lambda: os.rename(a / "p/1", a / "q/1/2/3") or 0,
            lambda: os.rename(b / "q/1", b / "p/1/2/3") or 0,
        )
        assert got.count(0) == 1, got
        os.removedirs(a / ("q/1/2/3/2" if got[0] == 0 else "p/1/2/3/2"))
        for side in "pq":
            os.makedirs(a / side, exist_ok=True)


def replace(m, d):
    os.rename(m / "empty", m / d)
    return 0


def keep_changelog(database):
    """Operations then are generic transactions, statement by statement."""
    c = database.connect()
    with c.cursor() as cur:
        cur.execute("SELECT value FROM jfs_setting WHERE name='format'")
        setting = json.loads(cur.fetchone()[0])
        setting["ChangeLog"] = True
        cur.execute("UPDATE jfs_setting SET value=%s WHERE name='format'", (json.dumps(setting),))
    c.commit()
    c.close()


REMOVALS = {"rmdir": lambda m, d: os.rmdir(m / d) or 0, "rename over it": replace}


@pytest.mark.deadline(600 if test_concurrency.LONG else 150)
@pytest.mark.parametrize("changelog", [False, True] if test_concurrency.LONG else [False])
@pytest.mark.parametrize("trash_days", [0, 1])
@pytest.mark.parametrize("removal", REMOVALS)
def test_directory_removed_while_it_gets_an_entry(ws, galera, database, removal, trash_days, changelog):
    """By another server, which sees no lock of this one: either the one or the other."""
    v = Volume(ws, url=database.url, trash_days=trash_days)
    if changelog:
        keep_changelog(database)
    a, b = mount_at(galera, v, database, 0), mount_at(galera, v, database, 1)
    won = [0, 0]
    for i in range(ROUNDS):
        kind = sorted(ENTRIES)[i % len(ENTRIES)]
        d = "d%d" % i
        if kind in ("link", "rename") and not os.path.exists(a / "src"):
            write(a / "src", b"x")
        os.mkdir(a / d)
        os.makedirs(b / "empty", exist_ok=True)
        wait_until(lambda d=d: os.path.isdir(b / d))
        got = at_once(lambda: ENTRIES[kind](a, d), lambda: REMOVALS[removal](b, d))
        # what replaces the directory may get the entry as well
        both = [0, 0] if removal != "rmdir" and os.listdir(b / d) == ["f"] else None
        assert got in ([0, errno.ENOTEMPTY], [errno.ENOENT, 0], both), (kind, i, got)
        won[got[1] == 0] += 1
        if got[0] == 0 and kind == "rename":
            os.rename(a / d / "f", a / "src")
    print("entries %d, removals %d" % tuple(won))
    test_concurrency.judge(v, [a, b])


def put(path, kind):
    os.mkdir(path) if kind == "directory" else write(path, b"x" * 5000)


def races(a, b, top, kind, end):
    """Two servers move one inode over two others at the same time. Returns how often, and what is wrong."""
    n, wrong = 0, []
    os.mkdir(a / top)
    for name in "xy":
        put(a / top / name, kind)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        while time.monotonic() < end and not wrong:
            put(a / top / "s", kind)
            want = {name: os.stat(b / top / name).st_ino for name in "sxy"}
            moves = [lambda m=m, to=to: os.rename(m / top / "s", m / top / to) for m, to in ((a, "x"), (b, "y"))]
            got = list(pool.map(lambda i: outcome(moves[i]), range(2)))
            if got.count(None) == 1:
                want["xy"[got.index(None)]] = want["s"]
            del want["s"]
            there = {name: os.stat(a / top / name).st_ino for name in os.listdir(a / top)}
            if sorted(map(str, got)) != [str(errno.ENOENT), "None"] or there != want:
                wrong.append((top, n, got, there, want))
            n += 1
    return n, wrong


def outcome(fn):
    try:
        return fn()
    except OSError as e:
        return e.errno


@pytest.mark.deadline(900 if test_concurrency.LONG else 150)
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_what_is_acknowledged_has_been_done(ws, galera, database, kind):
    """COMMIT succeeds for the transaction that has lost, once in some thousand races: the statements
    of it that followed its end were carried out each on its own."""
    v = Volume(ws, url=database.url, trash_days=0)
    a, b = mount_at(galera, v, database, 0), mount_at(galera, v, database, 1)
    before = both(galera, "wsrep_local_cert_failures", "wsrep_local_bf_aborts")
    end = time.monotonic() + (600 if test_concurrency.LONG else 25 if kind == "directory" else 10)
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        jobs = [pool.submit(races, a, b, "t%d" % i, kind, end) for i in range(6)]
        done = [j.result() for j in jobs]
    failures = both(galera, "wsrep_local_cert_failures", "wsrep_local_bf_aborts") - before
    print("%d races, %d failures of certification" % (sum(n for n, _ in done), failures))
    assert not any(wrong for _, wrong in done), [w for _, wrong in done for w in wrong]
    assert failures > 0
    test_concurrency.judge(v, [a, b])


def test_exclusive_locks_of_two_servers(ws, galera, database):
    """A lock has one holder at a time."""
    v = Volume(ws, url=database.url)
    mounts = [mount_at(galera, v, database, i) for i in range(2)]
    write(mounts[0] / "f", b"x")
    fds = [os.open(m / "f", os.O_RDWR) for m in mounts]
    try:
        for lock in (fcntl.flock, fcntl.lockf):
            for _ in range(150):
                got = at_once(*(lambda fd=fd: lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB) for fd in fds))
                assert got.count(None) == 1 and errno.EAGAIN in got, got
                lock(fds[got.index(None)], fcntl.LOCK_UN)
    finally:
        for fd in fds:
            os.close(fd)


def test_change_is_seen_on_another_server(ws, galera, database):
    """As soon as it is acknowledged."""
    v = Volume(ws, url=database.url)
    a, b = mount_at(galera, v, database, 0), mount_at(galera, v, database, 1)
    for i in range(200):
        write(a / "f", b"%d" % i)
        assert read(b / "f") == b"%d" % i
        os.rename(a / "f", a / ("f%d" % i))
        assert not os.path.exists(b / "f") and os.listdir(b.path).count("f%d" % i) == 1
        os.unlink(b / ("f%d" % i))
        assert not os.path.exists(a / ("f%d" % i))


@pytest.mark.deadline(300)
def test_server_killed_and_back(ws, galera, database):
    """Its mount waits for it and goes on; what was acknowledged is there, on the others as well."""
    v = Volume(ws, url=database.url)
    m, other = (mount_at(galera, v, database, i, "meta-timeout=100," + FRESH) for i in (0, 1))
    m.allow(LOST)
    stop, done = threading.Event(), [[] for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(storm, m, "s%d" % i, stop, done[i]) for i in range(3)]
        try:
            for _ in range(2 if test_concurrency.LONG else 1):
                wait_until(lambda n=sum(map(len, done)): sum(map(len, done)) > n + 20, 60)
                galera.nodes[0].kill9()
                write(other / "f", b"x")
                galera.nodes[0].start()
            wait_until(lambda n=sum(map(len, done)): sum(map(len, done)) > n + 20, 60)
        finally:
            stop.set()
        for j in jobs:
            j.result(timeout=120 * SLOW)
    for per_thread in done:
        for path, there in per_thread:
            assert os.path.exists(path) == there, path
            assert os.path.exists(other / os.path.basename(path)) == there, path
    m.umount()
    other.umount()
    ws.run("cachefs", "fsck", "--repair", v.url)  # usage that was not written yet is lost
    checked(ws, v.url)


@pytest.mark.deadline(300)
def test_server_that_is_cut_off(ws, galera, database):
    """It has no majority and refuses everything: requests end at their deadline, the mount goes on."""
    node = galera.nodes[0]
    v = Volume(ws, url=database.url)
    m = mount_at(galera, v, database, 0, "meta-timeout=4,io-timeout=8," + FRESH)
    m.allow(LOST + "|EIO")
    os.mkdir(m / "before")
    node.set_global("wsrep_provider_options", "gmcast.isolate=1")
    try:
        with pytest.raises(OSError) as e:
            os.mkdir(m / "meanwhile")
        assert e.value.errno == errno.EIO
        wait_until(lambda: node.status("wsrep_ready") == "OFF", 60)
        with pytest.raises(OSError) as e:
            os.stat(m / "before")
        assert e.value.errno == errno.EIO
    finally:
        node.set_global("wsrep_provider_options", "gmcast.isolate=0")
    wait_until(lambda: node.status("wsrep_ready") == "ON", 60)
    os.mkdir(m / "after")
    assert {"before", "after"} <= set(os.listdir(m.path)) <= {"before", "meanwhile", "after"}
    test_concurrency.judge(v, [m])
