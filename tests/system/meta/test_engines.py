# SPDX-License-Identifier: Apache-2.0
"""The engine-conformance suite on real servers. A failure here is an operation that behaves otherwise
on one database than on the others: a user who moves a volume meets it."""

import calendar
import fcntl
import json
import os
import pathlib
import re
import time

import pytest

import servers
from cachefs import BIN, SLOW, Volume, need_engine, wait_until, wrong_clock
from mysqlproxy import WAYS, MysqlProxy
from syscalls import fails, write

SUITE = pathlib.Path(os.environ.get("CACHEFS_BUILD") or BIN.parents[1]) / "tests/unit/conformance"


def suite(ws, url, *groups):
    r = ws.run(SUITE / "meta-conformance", url, *groups, timeout=480)
    assert r.returncode == 0, (r.stdout + r.stderr)[-6000:]


@pytest.fixture(params=sorted(servers.ENGINES))
def database(request, ws):
    need_engine(request.param)
    db = servers.ENGINES[request.param][0]().database()
    ws.cleanups.append(db.drop)
    return db


@pytest.mark.deadline(300)
def test_conformance(ws, database):
    suite(ws, database.url)


@pytest.mark.module("mysql")
@pytest.mark.deadline(300)
@pytest.mark.parametrize("way", ["multi", "statements"])
def test_conformance_without_compound_statements(ws, way):
    """As on MySQL and TiDB, which take multi-statement queries; and on what does not take those,
    for the changes that both send in a way of their own."""
    for group in [""] if way == "multi" else ["names", "rename", "data", "delete"]:
        db = servers.mariadb_server().database()
        proxy = MysqlProxy(db.server.port, **WAYS[way])
        ws.cleanups += [db.drop, proxy.close]
        suite(ws, db.url.replace(":%d" % db.server.port, ":%d" % proxy.port), *group.split())


@pytest.mark.deadline(120)
def test_unix_socket(ws, database):
    suite(ws, database.unix_url, "names")


def two_mounts(ws, url, options):
    volume = ws.volume(url=url)
    mnt, other = volume.mount(options + ",attr-cache=0"), volume.mount("attr-cache=0")
    os.mkdir(mnt / "d")
    return mnt, other


def make(path):
    with open(path, "x", encoding="ascii"):
        pass


def mtime(path):
    return os.stat(path).st_mtime_ns


@pytest.mark.parametrize("shift", [2 * 3600, -8 * 86400])
def test_host_whose_clock_is_wrong(ws, database, shift):
    """It does not take the others for dead, nor they it: what they lock and hold open would be lost."""
    volume = ws.volume(url=database.url, trash_days=0)
    right = volume.mount("heartbeat=1")
    wrong = volume.mount("heartbeat=1", env=wrong_clock(ws, shift))
    mounts = (right, wrong)
    held, locked = [], []
    for i, mnt in enumerate(mounts):
        held.append(open(mnt / ("held%d" % i), "wb+", buffering=0))
        held[i].write(b"%d" % i)
        os.fsync(held[i].fileno())
        os.unlink(mnt / ("held%d" % i))
        make(mnt / ("lock%d" % i))
        locked.append(open(mnt / ("lock%d" % i), "rb"))
        fcntl.flock(locked[i], fcntl.LOCK_EX)
    beats = 'meta_round_trips_total{op="session"}'
    for mnt in mounts:
        begun = mnt.stat(beats)
        wait_until(lambda: mnt.stat(beats) > begun + 6, 60, "some heartbeats")
    for i, mnt in enumerate(mounts):
        assert os.pread(held[i].fileno(), 9, 0) == b"%d" % i
        with open(mounts[1 - i] / ("lock%d" % i), "rb") as f, fails("EAGAIN"):
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    ahead = re.search(r"database_ahead_s=(-?\d+)", wrong.log())
    assert "clock" not in right.log() and abs(int(ahead[1]) + shift) <= 2  # whole seconds, of two clocks
    for f in held + locked:
        f.close()


def test_commands_on_a_host_whose_clock_is_ahead(ws, database):
    """Sessions of live mounts have not expired."""
    volume = ws.volume(url=database.url)
    mnt = volume.mount()
    ahead = wrong_clock(ws, 86400)
    status = json.loads(ws.run("cachefs", "status", "--json", volume.url, check=True, env=ahead).stdout)
    assert [s["stale"] for s in status["sessions"]] == [False]
    r = ws.run("cachefs", "destroy", "--yes", volume.url, status["setting"]["UUID"], env=ahead)
    assert r.returncode == 2 and "1 sessions are active" in r.stderr, r.stderr
    assert os.listdir(mnt) == []


def test_trash_of_a_host_whose_clock_is_behind(ws, database):
    """Its removed files do not go to a trash hour that is over."""
    volume = ws.volume(url=database.url, trash_days=1)
    mnt = volume.mount(env=wrong_clock(ws, -8 * 86400))
    make(mnt / "f")
    os.unlink(mnt / "f")
    (hour,) = os.listdir(mnt / ".trash")
    when = time.strptime(hour + " UTC", "%Y-%m-%d-%H %Z")
    assert abs(calendar.timegm(when) - time.time()) < 2 * 3600


def test_directory_times_reach_other_mounts(ws, database):
    mnt, other = two_mounts(ws, database.url, "skip-dir-mtime=100ms")
    for name in "abc":
        make(mnt / "d" / name)
        wait_until(lambda: mtime(other / "d") == mtime(mnt / "d"))


def test_directory_times_without_delay(ws, database):
    mnt, other = two_mounts(ws, database.url, "skip-dir-mtime=0")
    for name in "abc":
        make(mnt / "d" / name)
        assert mtime(other / "d") == mtime(mnt / "d")
    os.rename(mnt / "d/a", mnt / "d/e")
    assert mtime(other / "d") == mtime(mnt / "d")


def test_fsync_of_a_directory_stores_its_times(ws, database):
    mnt, other = two_mounts(ws, database.url, "skip-dir-mtime=1h")
    make(mnt / "d/f")
    assert mtime(other / "d") != mtime(mnt / "d")
    fd = os.open(mnt / "d", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    assert mtime(other / "d") == mtime(mnt / "d")


PRIVATE = {
    "redis": lambda: servers.Redis("--appendonly", "yes", "--appendfsync", "no"),
    "postgres": lambda: servers.Postgres("-c", "fsync=on", "-c", "synchronous_commit=on"),
    "mysql": lambda: servers.Mariadb("--innodb-flush-log-at-trx-commit=2"),
}


@pytest.mark.parametrize("engine", sorted(PRIVATE))
def test_directory_times_survive_an_outage(ws, engine):
    """The server is away when they are to be stored."""
    need_engine(engine)
    server = servers.started(ws, PRIVATE[engine]())
    url = server.url("0") if engine == "redis" else server.database().url
    mnt, other = two_mounts(ws, url, "skip-dir-mtime=1s,meta-timeout=1")
    for m in mnt, other:
        m.allow(".")  # whatever meets the dead server
    make(mnt / "d/f")
    seen = mtime(mnt / "d")
    server.kill9()
    wait_until(lambda: "cannot store the times of directories" in mnt.log(), 30)
    server.start()
    wait_until(lambda: mtime(other / "d") == seen, 30)


@pytest.mark.deadline(180)
@pytest.mark.parametrize("engine", sorted(PRIVATE))
def test_a_resolver_that_does_not_answer(ws, engine):
    """Requests end with EIO after io-timeout as in any outage, and go on when names have addresses again."""
    need_engine(engine)
    server = servers.started(ws, PRIVATE[engine]())
    url = server.url("0") if engine == "redis" else server.database().url
    hangs = ws.path("resolver-hangs")
    env = {"LD_PRELOAD": str(BIN.parents[1] / "tests/system/libfailing.so"), "RESOLVER_HANGS": str(hangs)}
    env["ASAN_OPTIONS"] = ws.env()["ASAN_OPTIONS"] + ":verify_asan_link_order=0"
    vol = Volume(ws, url=url)
    vol.check_options = None
    vol.url = url.replace("127.0.0.1", "db.test")
    mnt = vol.mount("io-timeout=4s,attr-cache=0,entry-cache=0,dir-entry-cache=0", env=env)
    mnt.allow(".")
    write(mnt / "f", b"x")
    write(hangs, b"")
    server.kill9()
    server.start()
    for _ in range(3):
        begun = time.monotonic()
        with fails("EIO"):
            os.stat(mnt / "f")
        assert time.monotonic() - begun < 12 * SLOW
    os.unlink(hangs)

    def answers():
        try:
            return os.stat(mnt / "f").st_size == 1
        except OSError:
            return False

    wait_until(answers, 30)


def test_directory_times_move_after_they_were_set_back(ws, database):
    mnt, other = two_mounts(ws, database.url, "skip-dir-mtime=1h")
    for i in range(20):
        make(mnt / "d" / str(i))
        setter = mnt if i % 2 else other
        os.utime(setter / "d", (10**9, 10**9))
        assert mtime(mnt / "d") == 10**18
        if i % 3:
            make(mnt / "d" / ("%d-next" % i))
        else:
            os.unlink(mnt / "d" / str(i))
        assert mtime(mnt / "d") > 10**18
