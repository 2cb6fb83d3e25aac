# SPDX-License-Identifier: Apache-2.0
"""fsck, its repair and gc beside writers. A failure here is a repair that makes counters wrong which
were right, or an administrator who is told of damage where there is none."""

import concurrent.futures
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

import cachefs_check
import servers
from admin import ask, gc
from cachefs import Clock, Volume, need_engine, stop_process, tool, wait_until
from syscalls import data, write
from test_concurrency import ENGINES, engine_volume, judge

WRITERS = 2  # of each mount
NAMES = 8
WRITER = "import sys; sys.path[:0] = sys.argv[4:]; import test_counters as t; "
WRITER += "t.work(sys.argv[1], int(sys.argv[2]), sys.argv[3])"


def work(root, seed, until):
    """Creates, grows, renames over, gives away and removes, below a directory with a quota and
    beside it; the times between are of the length of what clients wait before they count."""
    rng = random.Random(seed)
    mine = os.path.join(root, "w%d" % seed)
    os.makedirs(mine, exist_ok=True)

    def path():
        return os.path.join(rng.choice((mine, root)), "f%d-%d" % (seed, rng.randrange(NAMES)))

    while not os.path.exists(until):
        try:
            write(path(), rng.randbytes(rng.randrange(30_000)))
            with open(path(), "ab") as f:
                f.write(rng.randbytes(5000))
            os.rename(path(), path())
            os.chown(path(), rng.choice((0, 1001, 1002)), rng.choice((0, 1001, 1002)))
            if rng.random() < 0.4:
                os.truncate(path(), rng.randrange(50_000))
            os.unlink(path())
        except FileNotFoundError:
            pass
        time.sleep(rng.choice((0, 0, 0.01, 0.3, 1)))


def commands(ws, vol):
    """All at once; each must find nothing."""
    bucket = "%s/" % vol.bucket

    def fsck(*options):
        return ask(ws, "fsck", vol.url, "--bucket", bucket, *options, timeout=120)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(fsck), pool.submit(fsck, "--repair", "--sync-dir-stat")]
        jobs.append(pool.submit(ask, ws, "quota", "check", vol.url, timeout=120))
        while not all(j.done() for j in jobs):
            report = gc(ws, vol, "--delete")
            assert report["wrong_references"] == 0 and report["leaked"]["objects"] == 0
        for j in jobs[:2]:
            r = j.result()
            assert r["found"] == 0, r["problems"]
        assert jobs[2].result() == []


@pytest.mark.deadline(200)
@pytest.mark.parametrize("engine", ENGINES)
def test_repair_beside_writers(ws, engine):
    vol = engine_volume(ws, engine, trash_days=1)
    mounts = [vol.mount("heartbeat=2,attr-cache=0,entry-cache=0") for _ in range(2)]
    top = mounts[0] / "d"
    os.mkdir(top)
    ask(ws, "quota", "set", vol.url, "--path", "/d", "--inodes", "100000")
    ask(ws, "quota", "set", vol.url, "--uid", "1001", "--inodes", "100000")
    beats = [m.stat('meta_round_trips_total{op="session"}') for m in mounts]
    for m, begun in zip(mounts, beats):
        wait_until(lambda: m.stat('meta_round_trips_total{op="session"}') >= begun + 3, 30, "a mount that knows the quotas")
    # A repair at the moment at which nothing is counted yet.
    for i in range(6):
        write(top / ("begin%d" % i), data(4096))
    r = ask(ws, "fsck", vol.url, "--bucket", "%s/" % vol.bucket, "--repair", timeout=60)
    assert r["found"] == 0, r["problems"]
    until = ws.path("end")
    writers = [
        ws.python(WRITER, top, i * WRITERS + k, until, *sys.path)
        for i, top in enumerate(m / "d" for m in mounts)
        for k in range(WRITERS)
    ]
    try:
        commands(ws, vol)
    finally:
        until.touch()
        assert [w.wait(60) for w in writers] == [0] * len(writers)
    judge(vol, mounts)
    r = ask(ws, "fsck", vol.url, "--bucket", "%s/" % vol.bucket, "--sync-dir-stat")
    assert r["found"] == 0 and r["not_judged"] == 0, r


def test_damage_is_repaired_beside_a_mount_that_rests(ws, volume):
    mnt = volume.mount("heartbeat=1")
    os.mkdir(mnt / "d")
    for i in range(3):
        write(mnt / "d" / str(i), data(10_000))
    ask(ws, "quota", "set", volume.url, "--path", "/d", "--inodes", "100")
    d = os.stat(mnt / "d").st_ino
    volume.sql("UPDATE jfs_counter SET value=value+8192 WHERE name='usedSpace'")
    volume.sql("UPDATE jfs_dir_stats SET used_inodes=used_inodes-2 WHERE inode=?", d)
    volume.sql("UPDATE jfs_dir_quota SET used_space=used_space+4096 WHERE inode=?", d)
    r = ask(ws, "fsck", volume.url, "--repair", timeout=60)
    kinds = [p["kind"] for p in r["problems"]]
    assert sorted(kinds) == ["dirstat", "quota", "usage"] and r["repaired"] == 3, r
    write(mnt / "d/more", data(10_000))
    mnt.umount()
    assert ask(ws, "fsck", volume.url)["found"] == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_hour_of_the_trash_is_counted_when_it_is_made(ws, engine):
    """It belongs to root, and to root's quota."""
    need_engine(engine)
    vol = engine_volume(ws, engine, trash_days=1)
    mnt = vol.mount()
    ask(ws, "quota", "set", vol.url, "--uid", "1001", "--inodes", "100000")
    mnt.umount()
    mnt = vol.mount()
    write(mnt / "f", b"x")
    os.unlink(mnt / "f")
    assert len(os.listdir(mnt / ".trash")) == 1
    judge(vol, [mnt])
    assert ask(ws, "fsck", vol.url)["found"] == 0


def root_stat(vol):
    """The root's row: space and entries."""
    row = cachefs_check.open_loader(vol.url).load().dir_stats.get(1)
    return row and row[1:]


def clear_stats(ws, vol):
    """A volume on which no client has counted so far."""
    for value in ("false", "true"):
        ask(ws, "config", vol.url, "--dir-stats", value, "--force")
    assert root_stat(vol) is None


@pytest.mark.parametrize("engine", ENGINES)
def test_root_is_counted(ws, engine):
    """No mkdir makes the root's row. It is there from the start, or made from what is there before the
    first change; not while another mount may have something to add that is in it."""
    vol = engine_volume(ws, engine, dir_stats=True)
    assert root_stat(vol) == (0, 0)
    mnt = vol.mount()
    for i in range(3):
        write(mnt / ("f%d" % i), data(5000))
    mnt.umount()
    assert root_stat(vol) == (3 * 8192, 3)
    clear_stats(ws, vol)
    first = vol.mount()
    os.unlink(first / "f0")
    second = vol.mount()
    os.mkdir(second / "d")
    os.link(second / "f1", second / "d/f1")
    judge(vol, [first, second])
    assert root_stat(vol) == (2 * 8192 + 4096, 3)
    assert ask(ws, "fsck", vol.url, "--sync-dir-stat")["found"] == 0
    third = vol.mount()
    clear_stats(ws, vol)
    fourth = vol.mount()
    os.unlink(fourth / "f2")
    judge(vol, [third, fourth])
    assert root_stat(vol) is None
    judge(vol, [vol.mount()])
    assert root_stat(vol) == (8192 + 4096, 2)


@pytest.mark.parametrize("engine", ENGINES)
def test_root_of_a_juicefs_volume_is_counted(ws, engine):
    if engine == "sqlite":
        vol = ws.fixture("sqlite")
    else:
        need_engine(engine)
        db = servers.ENGINES[engine][0]().database()
        ws.cleanups.append(db.drop)
        db.load_fixture(engine)
        vol = Volume.golden(ws, engine, db.url)
    clear_stats(ws, vol)
    mnt = vol.mount()
    write(mnt / "another", data(5000))
    want = [os.lstat(e) for e in os.scandir(mnt)]
    want = (sum(max(-(-st.st_size // 4096), 1) * 4096 for st in want), len(want))
    mnt.umount()
    assert root_stat(vol) == want
    assert ask(ws, "fsck", vol.url, "--bucket", "%s/" % vol.bucket, "--sync-dir-stat")["found"] == 0


# ---- a mount that is stopped


def quota_of(vol, ino):
    return vol.sql("SELECT used_space,used_inodes FROM jfs_dir_quota WHERE inode=?", ino)[0]


def stopped(ws, volume, env=None):
    """A mount that has counted files below a quota, and has not written that."""
    mnt = volume.mount("heartbeat=8", env=env)
    os.mkdir(mnt / "d")
    d = os.stat(mnt / "d").st_ino
    ask(ws, "quota", "set", volume.url, "--path", "/d", "--inodes", "100000")
    begun = mnt.stat('meta_round_trips_total{op="session"}')
    wait_until(lambda: mnt.stat('meta_round_trips_total{op="session"}') >= begun + 3, 60, "a mount that knows the quota")
    for i in range(50):
        write(mnt / "d" / str(i), data(5000))
        stop_process(mnt.pid())
        if quota_of(volume, d)[1] != i + 1:
            return mnt
        os.kill(mnt.pid(), signal.SIGCONT)
    pytest.fail("the quota is written at once")


@pytest.mark.deadline(200)
def test_mount_that_is_stopped_is_not_damage(ws, volume):
    """A stopped mount counts its pending changes when it goes on: a repair would count them twice."""
    mnt = stopped(ws, volume)
    try:
        r = ws.run("cachefs", "fsck", "--repair", "--json", volume.url, timeout=120)
    finally:
        os.kill(mnt.pid(), signal.SIGCONT)
    report = json.loads(r.stdout)
    assert report["found"] == 0 and report["not_judged"] > 0, report
    assert "sends no heartbeat" in r.stderr and str(mnt.path) in r.stderr, r.stderr
    judge(volume, [mnt])
    assert ask(ws, "fsck", volume.url)["found"] == 0


@pytest.mark.deadline(200)
def test_live_mount_after_a_clock_was_set_ahead(ws, volume):
    """Its session looks expired until its next heartbeat, and it has something to count."""
    clock = Clock(ws)
    mnt = stopped(ws, volume, clock.env)
    clock.set(3600)
    argv = ["env", *("%s=%s" % e for e in clock.env.items()), tool("cachefs"), "fsck", "--repair", "--json", volume.url]
    p = ws.popen(argv, stdout=subprocess.PIPE, text=True)
    time.sleep(7)  # it has measured twice by then; the next heartbeat is not far
    os.kill(mnt.pid(), signal.SIGCONT)
    assert json.loads(p.communicate(timeout=120)[0])["found"] == 0
    judge(volume, [mnt])
    assert ask(ws, "fsck", volume.url)["found"] == 0


# ---- two repairs at once

LEASE = "SELECT value FROM jfs_cachefs_record WHERE name=CAST('lease/repair' AS BLOB)"


def lease_of(db):
    """On SQLite, whose file another process may be writing."""
    try:
        return db.sql(LEASE)[0][0]
    except (IndexError, sqlite3.OperationalError):
        return None


def repair_of(ws, vol):
    """Waits some seconds between its looks at usage that is wrong beside a mount."""
    argv = [tool("cachefs"), "fsck", "--repair", "--json", vol.url, "--bucket", "%s/" % vol.bucket]
    return ws.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def with_wrong_quota(ws, vol):
    mnt = vol.mount("heartbeat=1")
    os.mkdir(mnt / "d")
    write(mnt / "d/f", data(10_000))
    ask(ws, "quota", "set", vol.url, "--path", "/d", "--inodes", "100")
    vol.sql("UPDATE jfs_dir_quota SET used_space=used_space+4096")
    return mnt


@pytest.mark.deadline(200)
def test_one_repair_at_a_time(ws, volume):
    """Each would add what it finds missing."""
    mnt = with_wrong_quota(ws, volume)
    first = repair_of(ws, volume)
    wait_until(lambda: lease_of(volume), 30, "the repair's lease")
    for argv in (("fsck", "--repair"), ("quota", "repair")):
        r = ws.run("cachefs", *argv, volume.url)
        assert r.returncode == 2 and "process %d" % first.pid in r.stderr, r.stderr
    out, err = first.communicate(timeout=120)
    assert first.returncode == 0 and json.loads(out)["repaired"] == 1, out + err
    assert lease_of(volume) is None
    assert ask(ws, "fsck", volume.url, "--repair")["found"] == 0
    judge(volume, [mnt])


@pytest.mark.deadline(200)
def test_repair_that_was_not_heard_of_for_too_long(ws, volume):
    """Another one takes over, and it does nothing when it goes on."""
    mnt = with_wrong_quota(ws, volume)
    first = repair_of(ws, volume)
    wait_until(lambda: lease_of(volume), 30, "the repair's lease")
    stop_process(first.pid)
    number, _, holder = bytes(lease_of(volume)).split(b" ", 2)
    assert b"process %d" % first.pid in holder
    volume.sql("UPDATE jfs_cachefs_record SET value=?", b" ".join((number, b"1000000000", holder)))
    try:
        r = ask(ws, "fsck", volume.url, "--repair", timeout=120)
        assert r["repaired"] == 1, r
    finally:
        os.kill(first.pid, signal.SIGCONT)
    out, err = first.communicate(timeout=120)
    assert first.returncode == 2 or json.loads(out)["repaired"] == 0, out + err
    mnt.umount()
    assert ask(ws, "fsck", volume.url)["found"] == 0
