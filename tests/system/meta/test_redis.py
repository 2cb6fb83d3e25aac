# SPDX-License-Identifier: Apache-2.0
"""Redis as the metadata engine: real servers, killed, failed over, misconfigured. A failure here is a
mount that does not come back, or a volume that has lost or doubled a change."""

import concurrent.futures
import errno
import fcntl
import json
import os
import random
import re
import signal
import struct
import subprocess
import threading
import time

import pytest

import cachefs_check
import changelog
import countproxy
import servers
from admin import DAMAGED, fsck, kinds
from cachefs import BIN, SLOW, Volume, stop_process, wait_until
from network import SilentFirst
from redisproxy import (
    CountingProxy,
    CuttingProxy,
    DoublingProxy,
    ForgetfulProxy,
    PausingProxy,
    RepeatingProxy,
)
from slowproxy import SlowProxy
from syscalls import data, read, write
from test_engines import suite
from test_fixtures import differences, manifest, nothing, wanted

pytestmark = pytest.mark.module("redis")
CFSX = BIN.parents[1] / "tests" / "model" / "cfsx"
ACL, NO_ID = "system.posix_acl_access", 0xFFFFFFFF
GONE = r"metadata (server cannot be reached|engine does not answer)"


def server(ws, *options, kind=servers.Redis):
    return servers.started(ws, kind(*options))


def checked(ws, url, name="vol"):
    r = ws.run("cachefs", "fsck", url)
    assert r.returncode == 0, r.stdout + r.stderr
    if "," in url:
        return  # a cluster: the checker reads one server
    judged(url, ws.path(name + "-bucket"))


def judged(url, bucket):
    found, _ = cachefs_check.check(url, str(bucket), cachefs_check.Options(leaks="warn"))
    nothing(["%s: %s" % f for f in found])


@pytest.fixture
def db(ws):
    d = servers.redis_server().database()
    ws.cleanups.append(d.drop)
    return d


@pytest.fixture
def volume(ws, db):
    return ws.volume(url=db.url, trash_days=1)


def test_basic_work_over_both_kinds_of_socket(ws, db, volume):
    mnt = volume.mount()
    content = data(10_000_000)
    os.makedirs(mnt / "a/b")
    write(mnt / "a/b/f", content)
    os.rename(mnt / "a/b/f", mnt / "a/g")
    os.link(mnt / "a/g", mnt / "h")
    os.unlink(mnt / "a/g")
    os.rmdir(mnt / "a/b")
    os.symlink("h", mnt / "s")
    os.setxattr(mnt / "h", "user.x", b"\0\xff value")
    mnt.umount()
    volume.url = db.unix_url
    mnt = volume.mount()
    assert read(mnt / "s") == content
    assert os.getxattr(mnt / "h", "user.x") == b"\0\xff value"
    assert sorted(os.listdir(mnt.path)) == ["a", "h", "s"]
    assert os.listdir(mnt / "a") == []
    mnt.umount()
    checked(ws, db.url)


def test_data_of_files_with_short_records_is_copied(volume, db):
    """Records of old volumes lack what came later; a copy that takes them for changed goes on trying."""
    mnt = volume.mount("attr-cache=0")
    for name, content in (("from", b"content"), ("to", b"")):
        write(mnt / name, content)
    c = db.connect()
    for name in ("from", "to"):
        key = "i%d" % os.stat(mnt / name).st_ino
        record = c.get(key)
        c.set(key, record[:71])
    with open(mnt / "from", "rb") as f, open(mnt / "to", "r+b") as g:
        assert os.copy_file_range(f.fileno(), g.fileno(), 7) == 7
    assert read(mnt / "to") == b"content"
    mnt.umount()


def test_two_mounts_see_each_other(volume):
    a, b = volume.mount(), volume.mount()
    write(a / "f", b"one")
    assert read(b / "f") == b"one"
    os.rename(b / "f", b / "g")
    wait_until(lambda: not os.path.exists(a / "f"), 5, "the other mount's rename")
    assert read(a / "g") == b"one"


def test_large_directory_is_listed_once(ws, volume):
    """Names come and go meanwhile, and the hash grows and shrinks."""
    mnt, other = volume.mount(), volume.mount()
    os.mkdir(mnt / "d")
    keep = {"keep%d" % i for i in range(3000)}
    for n in keep:
        os.mknod(mnt / "d" / n)
    for i in range(3000):
        os.mknod(mnt / "d" / ("go%d" % i))
    seen = []
    with os.scandir(mnt / "d") as it:
        for i, e in enumerate(it):
            seen.append(e.name)
            if i % 100 == 0 and i // 100 < 30:
                for k in range(i, i + 100):
                    os.unlink(other / "d" / ("go%d" % k))
                    os.mknod(other / "d" / ("new%d" % k))
    assert len(seen) == len(set(seen))
    assert keep <= set(seen)


# ---- JuiceFS's volume ----


def attach_fixture(ws, db, name):
    db.load_fixture(name)
    return Volume.golden(ws, name, db.url)


@pytest.mark.deadline(240)
def test_changelog(ws, db, volume):
    c = db.connect()
    setting = json.loads(c.get("setting"))
    setting["ChangeLog"] = True
    c.set("setting", json.dumps(setting))
    changelog.work(ws, volume)
    lines = [x.decode() for x in c.lrange("txnLog", 0, -1)]
    changelog.judge(lines)
    assert int(c.get("txnLastLog")) == len(lines)


def test_fixture_matches_its_manifest(ws, db):
    v = attach_fixture(ws, db, "redis")
    mnt = v.mount("ro")
    nothing(differences(manifest(ws, mnt), wanted("redis")))
    nothing(differences(manifest(ws, mnt), wanted("redis"), parts=("trash",)))
    mnt.umount()
    judged(db.url, v.bucket)


def test_stale_session_of_the_other_client_is_cleaned(ws, db):
    v = attach_fixture(ws, db, "stale-redis")
    c = db.connect()
    assert c.exists("i5") and c.hlen("lockp4")
    # lastCleanupSessions of the fixture may be in the future of nobody
    v.mount("heartbeat=1")
    wait_until(lambda: not c.exists("i5"), 30, "the removed file's end")
    wait_until(lambda: not c.hlen("lockp4") and not c.hlen("lockf2"), 30, "the end of the locks")
    wait_until(lambda: c.zscore("allSessions", "1") is None, 30, "the end of the session")


def test_locks_that_outlived_their_session(ws, db, volume):
    """JuiceFS lists no shared BSD lock, so the end of its session leaves it behind."""
    mnt = volume.mount("heartbeat=1")
    for name in "fpg":
        write(mnt / name, b"x")
    c = db.connect()
    f, p, g = (os.stat(mnt / n).st_ino for n in "fpg")
    alive = c.zrange("allSessions", 0, -1)[0].decode()
    with open(mnt / "f", "rb+") as shared, open(mnt / "p", "rb+") as ranges:
        fcntl.flock(shared, fcntl.LOCK_SH)
        fcntl.lockf(ranges, fcntl.LOCK_EX, 1)
        ours = {k: c.hgetall(k) for k in ("lockf%d" % f, "lockp%d" % p)}
        assert all(ours.values())
        assert fsck(ws, volume)["found"] == 0
        for key in [*ours, "lockf%d" % g]:
            c.hset(key, "9%s_00000000000000AA" % alive, b"R" if key.startswith("lockf") else struct.pack("<IIQQ", 1, 7, 9, 10))
        c.sadd("locked9" + alive, "lockp%d" % p)
        r = fsck(ws, volume, code=DAMAGED)
        assert kinds(r) == ["lock"] and sorted(x["inode"] for x in r["problems"]) == sorted([0, f, p, g])
        assert c.hlen("lockf%d" % g) == 1  # only looked at
        r = fsck(ws, volume, "--repair")
        assert r["repaired"] == r["found"] == 4
        assert {k: c.hgetall(k) for k in ours} == ours and not c.exists("lockf%d" % g, "locked9" + alive)
        with open(mnt / "g", "rb+") as free:
            fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert fsck(ws, volume)["found"] == 0


# ---- writing next to a client that uses WATCH and MULTI ----


def test_next_to_watch_and_multi(ws, db, volume):
    """A foreign client changes the root with WATCH/MULTI/EXEC while a mount creates in it."""
    mnt = volume.mount("skip-dir-mtime=0,heartbeat=1")
    c = db.connect()
    stop = threading.Event()
    made = []

    def foreign():
        i = 0
        while not stop.is_set():
            with c.pipeline() as p:
                try:
                    p.watch("i1", "d1")
                    attr = bytearray(p.get("i1"))
                    ino = p.incr("nextinode")
                    if ino == 1:  # the root's
                        continue
                    nlink = int.from_bytes(attr[47:51], "big") + 1
                    attr[47:51] = nlink.to_bytes(4, "big")
                    child = bytearray(attr)
                    child[47:51] = (2).to_bytes(4, "big")
                    p.multi()
                    p.set("i1", bytes(attr))
                    p.set("i%d" % ino, bytes(child))
                    p.hset("d1", "theirs%d" % i, b"\2" + ino.to_bytes(8, "big"))
                    p.incrby("usedSpace", 4096)
                    p.incrby("totalInodes", 1)
                    p.hincrby("dirUsedSpace", 1, 4096)
                    p.hincrby("dirUsedInodes", 1, 1)
                    p.execute()
                    made.append(i)
                    i += 1
                except Exception as e:  # WatchError: the mount was faster
                    assert "Watch" in repr(e), e

    t = threading.Thread(target=foreign, daemon=True)
    t.start()
    for i in range(300):
        os.mkdir(mnt / ("ours%d" % i))
    stop.set()
    t.join(20)
    mnt.umount()
    assert int.from_bytes(c.get("i1")[47:51], "big") == 2 + 300 + len(made)
    assert c.hlen("d1") == 300 + len(made) and made
    checked(ws, db.url)


# ---- servers that die ----


class Load:
    """Threads that create, rename and remove; every error is noted."""

    def __init__(self, mnt, threads=3):
        self.mnt, self.errors, self.done = mnt, [], [0] * threads
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(i,), daemon=True) for i in range(threads)]
        for t in self.threads:
            t.start()

    def work(self, n):
        top = self.mnt / ("load%d" % n)
        try:
            os.mkdir(top)
            while not self.stopping.is_set():
                i = self.done[n]
                write(top / ("f%d" % i), b"x" * (i % 5000))
                os.rename(top / ("f%d" % i), top / ("g%d" % i))
                if i % 3 == 0:
                    os.unlink(top / ("g%d" % i))
                self.done[n] += 1
        except OSError as e:
            self.errors.append(e)

    def progress(self, more=50):
        start = list(self.done)
        wait_until(
            lambda: self.errors or all(d > s + more for d, s in zip(self.done, start)), 60, "progress"
        )
        assert not self.errors, self.errors

    def stop(self):
        self.stopping.set()
        for t in self.threads:
            t.join(60 * SLOW)
        assert not self.errors, self.errors

    def verify(self, mnt):
        for n, count in enumerate(self.done):
            want = {"g%d" % i for i in range(count) if i % 3}
            assert set(os.listdir(mnt / ("load%d" % n))) == want


def test_server_killed_and_restarted(ws):
    """Every operation waits for the server and is done exactly once."""
    s = server(ws, "--appendonly", "yes", "--appendfsync", "no")
    v = ws.volume(url=s.url("0"))
    mnt = v.mount()
    mnt.allow(GONE)
    load = Load(mnt)
    for _ in range(3):
        load.progress()
        s.kill9()
        s.start()
    load.progress()
    load.stop()
    load.verify(mnt)
    mnt.umount()
    checked(ws, v.url)


def test_server_that_stays_away(ws):
    s = server(ws, "--appendonly", "yes", "--appendfsync", "no")
    mnt = ws.volume(url=s.url("0")).mount("io-timeout=3,meta-timeout=3")
    mnt.allow(".")  # whatever else meets the dead server
    write(mnt / "f", b"before")
    s.kill9()
    start = time.monotonic()
    with pytest.raises(OSError) as e:
        os.mkdir(mnt / "d")
    assert e.value.errno == 5 and time.monotonic() - start < 20 * SLOW
    s.start()
    os.mkdir(mnt / "d")
    assert read(mnt / "f") == b"before"


def test_lost_answers_are_not_asked_twice(ws, db):
    """A create that was done is not EEXIST, a rename that was done is not ENOENT."""
    v = ws.volume(url=db.url)
    proxy = CuttingProxy(db.server.port)
    ws.cleanups.append(proxy.close)
    v.url = db.url.replace(":%d" % db.server.port, ":%d" % proxy.port)
    mnt = v.mount()
    mnt.allow(GONE)
    load = Load(mnt)
    wait_until(lambda: load.errors or proxy.cuts > 30, 60, "enough cuts")
    proxy.every = 0
    load.stop()
    load.verify(mnt)
    mnt.umount()
    checked(ws, db.url)


def test_commits_that_time_out_are_sent_again_in_any_order(ws, db):
    """An outage is longer than io-timeout, so each thread of the mount gives several commits up before they are
    sent. None is taken for a late copy of another one."""
    with countproxy.CountingProxy(db.server.port) as proxy:
        v = Volume(ws, url=db.url.replace(":%d" % db.server.port, ":%d" % proxy.port))
        m = v.mount("io-timeout=3,no-bgjob,heartbeat=60")
        m.allow(GONE + "|usage|times of directories|commit failed|does not answer")
        write(m / "first", b"1")  # the mount has numbers for slices
        files = [open(m / ("f%d" % n), "wb", 0) for n in range(64)]
        proxy.refuse, begun = True, time.monotonic()
        proxy.cut()
        with concurrent.futures.ThreadPoolExecutor(len(files)) as pool:
            for n, f in enumerate(files):
                f.write(b"%d" % n * 5000)
            failed = [pool.submit(os.fsync, f.fileno()) for f in files]
            assert all(isinstance(f.exception(60 * SLOW), OSError) for f in failed)
            wait_until(lambda: time.monotonic() > begun + 5, 20, "more tries of the same threads")
            proxy.go_on()
            for f in [pool.submit(os.fsync, f.fileno()) for f in files]:
                f.result(60 * SLOW)
        for f in files:
            f.close()
        m.umount()
        assert "lost" not in m.log()
    v.url = db.url
    other = v.mount()
    for n in range(len(files)):
        assert read(other / ("f%d" % n)) == b"%d" % n * 5000
    other.umount()
    checked(ws, db.url)


@pytest.mark.parametrize("trash", [0, 1])
@pytest.mark.parametrize("what", ["create", "unlink"])
def test_lost_answer_of_what_another_mount_has_undone(ws, db, what, trash):
    """Sent again, it does not do it once more."""
    v = ws.volume(url=db.url, trash_days=trash)
    other = v.mount("entry-cache=0,dir-entry-cache=0")
    proxy = ForgetfulProxy(db.server.port, b"victim")
    ws.cleanups.append(proxy.close)
    v.url = db.url.replace(":%d" % db.server.port, ":%d" % proxy.port)
    mnt = v.mount()
    mnt.allow(GONE)
    os.mkdir(mnt / "d")
    os.mknod(mnt / "d/seen")
    if what == "unlink":
        proxy.cut.set()
        write(mnt / "d/victim", b"data")
        proxy.cut.clear()
    act = os.mknod if what == "create" else os.unlink
    errors = []

    def run():
        try:
            act(mnt / "d/victim")
        except OSError as e:
            errors.append(e)

    t = threading.Thread(target=run, daemon=True)
    t.start()
    assert proxy.cut.wait(30)
    # The answer that the proxy took may be that of a request before it.
    wait_until(lambda: os.path.exists(other / "d/victim") == (what == "create"), 10, "the change")
    (os.unlink if what == "create" else os.mknod)(other / "d/victim")
    proxy.go_on.set()
    t.join(30)
    assert not t.is_alive() and not errors
    assert os.path.exists(other / "d/victim") == (what == "unlink")
    mnt.umount()
    checked(ws, db.url)


def let_time_pass(db, seconds):
    """For the answers that are kept: those that would have expired by then do."""
    c = db.connect()
    for key in c.scan_iter("*zcachefs:done:*"):
        left = c.pttl(key) - 1000 * seconds
        if left > 0:
            c.pexpire(key, left)
        else:
            c.delete(key)


@pytest.mark.parametrize("what", ["rename", "write"])
def test_answer_is_kept_for_longer_than_it_is_asked_for(ws, db, what):
    """With an hour's io-timeout and an outage of ten minutes: what was done is not done again."""
    v = ws.volume(url=db.url)
    proxy = ForgetfulProxy(db.server.port, b"victim")
    ws.cleanups.append(proxy.close)
    v.url = db.url.replace(":%d" % db.server.port, ":%d" % proxy.port)
    proxy.cut.set()
    mnt = v.mount("io-timeout=3600,meta-timeout=3600")
    mnt.allow(GONE)
    # The server knows the scripts: else what is cut off is that it does not.
    write(mnt / "warm", b"x" * 1000)
    os.rename(mnt / "warm", mnt / "warmed")
    write(mnt / "f", b"")
    fd = os.open(mnt / "f", os.O_RDWR)
    ino = os.fstat(fd).st_ino
    if what == "write":
        proxy.word = b"\r\n%d\r\n" % ino
    proxy.cut.clear()

    def change():
        if what == "rename":
            os.rename(mnt / "f", mnt / "victim")
        else:
            os.write(fd, b"x" * 1000)
            os.fsync(fd)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(change)
        assert proxy.cut.wait(30 * SLOW)
        let_time_pass(db, 600)
        proxy.go_on.set()
        job.result(timeout=60 * SLOW)
    os.close(fd)
    if what == "write":
        assert [db.connect().llen(k) for k in db.connect().scan_iter("*c%d_0" % ino)] == [1]
    mnt.umount()
    checked(ws, db.url)


@pytest.mark.parametrize("cursors", [[7], [3, 9, 5]], ids=["the-same", "in-a-circle"])
@pytest.mark.parametrize("word", ["SCAN", "HSCAN", "ZSCAN"])
def test_scan_that_never_ends(ws, db, volume, word, cursors):
    """It fails, and says why, instead of filling a dump until the disk is full."""
    mnt = volume.mount()
    os.mkdir(mnt / "d")
    write(mnt / "d/f", b"data")
    mnt.umount()
    proxy = RepeatingProxy(db.server.port, word.encode(), cursors)
    ws.cleanups.append(proxy.close)
    url = db.url.replace(":%d" % db.server.port, ":%d" % proxy.port)
    r = ws.run("cachefs", "dump", url, ws.path("dump"), timeout=20)
    assert r.returncode == 2, r.stderr
    assert "repeats the cursor of a scan" in r.stderr
    assert proxy.given <= 8
    assert ws.run("cachefs", "dump", db.url, ws.path("whole")).returncode == 0


def test_directory_whose_listing_never_ends(ws, db, volume):
    proxy = RepeatingProxy(db.server.port, b"HSCAN", [7])
    ws.cleanups.append(proxy.close)
    mnt = volume.mount()
    for i in range(2000):
        os.mknod(mnt / ("f%d" % i))
    mnt.umount()
    volume.url = db.url.replace(":%d" % db.server.port, ":%d" % proxy.port)
    mnt = volume.mount()
    mnt.allow("repeats the cursor of a scan")
    with pytest.raises(OSError) as e:
        os.listdir(mnt)
    assert e.value.errno == errno.EIO


def test_scans_that_give_keys_twice(ws, db):
    """Nothing counts or copies a chunk twice. Scans of a whole volume try again when they get a key
    twice, so only those for the chunks of one file do here."""
    proxy = DoublingProxy(db.server.port, rb"\bc\d+_")
    ws.cleanups.append(proxy.close)
    suite(ws, db.url.replace(":%d" % db.server.port, ":%d" % proxy.port), "administration")
    assert proxy.doubled


def test_directory_whose_names_are_given_twice(ws, db, volume):
    proxy = DoublingProxy(db.server.port)
    ws.cleanups.append(proxy.close)
    volume.url = db.url.replace(":%d" % db.server.port, ":%d" % proxy.port)
    mnt = volume.mount()
    names = {"f%d" % i for i in range(2000)}
    for name in names:
        os.mknod(mnt / name)
    assert sorted(os.listdir(mnt)) == sorted(names)
    assert proxy.doubled


def test_names_that_change_while_a_directory_is_listed(ws, db):
    """Another mount changes them between the scan, which finds the names, and the request for attributes.
    No name is listed with an inode that is gone."""
    volume = Volume(ws, url=db.url, trash_days=0)
    other = volume.mount()
    for name in ["a-gone", "b-moved", "c-replaced"] + ["f%d" % i for i in range(1000)]:
        os.mknod(other / name)
    ino = os.lstat(other / "b-moved").st_ino

    def change():
        os.unlink(other / "a-gone")
        os.rename(other / "b-moved", other / "c-replaced")

    proxy = PausingProxy(db.server.port, b"HSCAN", change)
    ws.cleanups.append(proxy.close)
    volume.url = db.url.replace(":%d" % db.server.port, ":%d" % proxy.port)
    seen = {e.name: e.inode() for e in os.scandir(volume.mount())}
    assert proxy.called
    assert len(seen) == 1001 and seen["c-replaced"] == ino
    assert not {"a-gone", "b-moved"} & seen.keys()


def test_timeout_of_one_request_leaves_the_others_alone(ws):
    """The server stops for longer than one operation may take, and for less than the next may."""
    s = server(ws)
    proxy = CountingProxy(s.port, b"second")
    ws.cleanups.append(proxy.close)
    url = s.url("0").replace(":%d" % s.port, ":%d" % proxy.port) + "?max_open_conns=1"
    mnt = ws.volume(url=url).mount("io-timeout=3,meta-timeout=3")
    mnt.allow(".")
    os.mkdir(mnt / "zeroth")
    before = proxy.connections
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        stop_process(s.process.pid)
        try:
            begun = time.monotonic()
            first = pool.submit(os.mkdir, mnt / "first")
            wait_until(lambda: time.monotonic() > begun + 1.5)
            second = pool.submit(os.mkdir, mnt / "second")
            with pytest.raises(OSError):
                first.result(timeout=20 * SLOW)
        finally:
            s.process.send_signal(signal.SIGCONT)
        second.result(timeout=20 * SLOW)
    third = time.monotonic()
    os.mkdir(mnt / "third")
    assert time.monotonic() < third + 1 * SLOW
    assert proxy.connections == before


def test_damaged_delayed_entry_keeps_no_other(ws, db, volume):
    c = db.connect()
    pair = (900).to_bytes(8, "big") + (10).to_bytes(4, "big")
    for field, value in ("5_1", b"damaged"), ("6_1", pair), ("7_1", b"damaged"), ("8_1", pair):
        c.hset("delSlices", field, value)
    assert list(c.hgetall("delSlices"))[0] == b"5_1"
    r = ws.run("cachefs", "gc", db.url, "--delete")
    assert r.returncode == 2, r.stdout + r.stderr
    assert "not expired: entry=" in r.stderr
    assert sorted(c.hgetall("delSlices")) == [b"5_1", b"7_1"]
    c.delete("delSlices")


def test_entry_that_leads_elsewhere(ws, db):
    """Another client has moved names without a trace in the inodes: the name alone decides."""
    mnt = ws.volume(url=db.url, trash_days=0).mount("attr-cache=60,entry-cache=60")
    for name in ("a", "b"):
        write(mnt / name, name.encode())
    inos = {name: os.stat(mnt / name).st_ino for name in ("a", "b")}
    c = db.connect()
    a, b = c.hget("d1", "a"), c.hget("d1", "b")
    c.hset("d1", mapping={"a": b, "b": a})
    os.unlink(mnt / "a")
    assert c.exists("i%d" % inos["a"]) and not c.exists("i%d" % inos["b"])
    assert c.hgetall("d1") == {b"b": a}


# ---- high availability ----


class Sentinel(servers.Redis):
    """Watches one master, alone."""

    def __init__(self, port, name="main"):
        super().__init__()
        self.conf = self.dir / "sentinel.conf"
        self.conf.write_text(
            "port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %s 127.0.0.1 %d 1\n"
            "sentinel down-after-milliseconds %s 500\nsentinel failover-timeout %s 3000\n"
            % (self.port, self.dir, name, port, name, name)
        )
        os.chmod(self.conf, 0o666)

    def argv(self):
        return [servers.find("redis-server"), self.conf, "--sentinel"]

    def connect(self, name):
        import redis

        c = redis.Redis(port=self.port)
        c.ping()
        return c


@pytest.mark.deadline(180)
def test_sentinel_failover(ws):
    master = server(ws)
    replica = server(ws, "--replicaof", "127.0.0.1", str(master.port))
    wait_until(
        lambda: replica.connect("0").info("replication")["master_link_status"] == "up", 20, "the replica"
    )
    sentinel = servers.started(ws, Sentinel(master.port))
    wait_until(lambda: sentinel.connect("0").sentinel_slaves("main"), 30, "Sentinel to see the replica")
    v = ws.volume(url="redis://main,127.0.0.1:%d/0" % sentinel.port)
    mnt = v.mount()
    mnt.allow(GONE)
    load = Load(mnt)
    load.progress()
    master.connect("0").wait(1, 5000)
    load.stop()
    wait_until(
        lambda: master.connect("0").info("replication")["slave0"]["lag"] >= 0
        and replica.connect("0").dbsize() == master.connect("0").dbsize(),
        20,
        "the replica to catch up",
    )
    load.verify(mnt)
    master.kill9()
    os.mkdir(mnt / "after")  # waits for the failover
    write(mnt / "after/f", b"written to the former replica")
    assert replica.connect("0").info("replication")["role"] == "master"
    load.verify(mnt)
    mnt.umount()
    checked(ws, replica.url("0"))


def acl_of(uid):
    """rw for the user, as the kernel speaks of it"""
    entries = (1, 6, NO_ID), (2, 6, uid), (4, 4, NO_ID), (16, 6, NO_ID), (32, 0, NO_ID)
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)


@pytest.mark.deadline(120)
def test_a_server_that_forgets_gives_no_number_twice(ws):
    """A server that dies before it saves loses counters, too. Numbers of inodes and blocks
    that mounts still have from before would be given to others: files would be mixed up, and the rights
    of those with ACLs, which mounts know by number."""
    s = server(ws)
    v = ws.volume(url=s.url("0"), enable_acl=True)
    a = v.mount()
    s.connect("0").save()
    write(a / "lost", data(100_000))
    os.setxattr(a / "lost", ACL, acl_of(1001))
    assert os.getxattr(a / "lost", ACL) == acl_of(1001)
    b = v.mount()
    for m in (a, b):
        m.allow(GONE)
    s.kill9()
    s.start()
    files = {}
    for i in range(20):
        for m, n in ((a, "a%d" % i), (b, "b%d" % i)):
            files[n] = os.urandom(50_000)
            write(m / n, files[n])
    assert [n for n in files if read(b / n) != files[n]] == []
    os.setxattr(b / "b0", ACL, acl_of(1002))
    assert os.getxattr(a / "b0", ACL) == acl_of(1002)
    numbers = [os.stat(a / n).st_ino for n in files]
    assert len(set(numbers)) == len(numbers)
    c = v.mount()
    sids = [re.search(r"mounted: .* sid=(\d+)", m.log())[1] for m in (a, b, c)]
    assert len(set(sids)) == 3
    for m in (a, b, c):
        m.umount()
    checked(ws, s.url("0"))


@pytest.fixture
def cluster(ws):
    nodes = []
    for _ in range(3):
        n = servers.Redis("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
        # The cluster's own port is 10000 above.
        while n.port > 55000 or not servers.is_free(n.port + 10000):
            n.port = servers.free_port()
        nodes.append(servers.started(ws, n))
    argv = [servers.find("redis-cli"), "--cluster", "create", "--cluster-yes"]
    r = ws.run(*argv, *("127.0.0.1:%d" % n.port for n in nodes), timeout=60)
    assert r.returncode == 0, r.stdout + r.stderr
    wait_until(
        lambda: all(n.connect("0").cluster("info")["cluster_state"] == "ok" for n in nodes), 30, "ok"
    )
    return nodes


@pytest.mark.deadline(240)
def test_cluster(ws, cluster):
    """Volumes side by side in one cluster, each in one slot, whichever node is asked first."""
    hosts = ",".join("127.0.0.1:%d" % n.port for n in cluster)
    a = ws.volume("first", url="redis://%s/3" % hosts)
    b = ws.volume("second", url="redis://127.0.0.1:%d/4" % cluster[0].port)
    ma, mb = a.mount(), b.mount()
    for m, text in ((ma, b"one"), (mb, b"two")):
        os.mkdir(m / "d")
        write(m / "d/f", text)
    assert read(ma / "d/f") == b"one" and read(mb / "d/f") == b"two"
    keys = [k for n in cluster for k in n.connect("0").keys("*")]
    assert b"{3}i1" in keys and b"{4}i1" in keys
    assert all(k.startswith((b"{3}", b"{4}")) for k in keys), keys
    ma.umount()
    mb.umount()
    checked(ws, a.url, "first")
    suite(ws, "redis://%s/5" % hosts, "names")
    keys = [k for n in cluster for k in n.connect("0").keys("{5}*")]
    assert not keys
    assert [k for n in cluster for k in n.connect("0").keys("{3}i*")]


# ---- what a mount refuses, and how it says so ----


def refused(ws, url, env=None, opts=""):
    ws.count += 1
    point = ws.path("mnt%d" % ws.count)
    point.mkdir()
    args = ["-o", opts] if opts else []
    r = ws.run("cachefs", "mount", url, point, *args, env=env, timeout=60)
    assert r.returncode != 0
    return r.stderr


def test_eviction_policy(ws):
    s = server(ws, "--maxmemory-policy", "allkeys-lru")
    url = s.url("0")
    r = ws.run("cachefs", "format", url, "vol", "--storage", "file", "--bucket", ws.path("b"))
    assert r.returncode != 0
    assert "allkeys-lru" in r.stderr and "CONFIG SET maxmemory-policy noeviction" in r.stderr
    v = ws.volume(url=url + "?any-eviction-policy")
    v.mount().umount()
    assert "noeviction" in refused(ws, url)
    s.connect("0").config_set("maxmemory-policy", "noeviction")
    v.url = url
    v.mount().umount()


def test_options_without_effect_are_named(ws, db, volume):
    volume.url = db.url + "?route-read=replica&client-cache&read_timeout=10s&max-open-conns=2"
    r = ws.run("cachefs", "status", volume.url)
    ignored = [line.split("option=")[1] for line in r.stderr.splitlines() if "option=" in line]
    assert ignored == ["route-read", "client-cache"], r.stderr


def test_passwords(ws):
    s = server(ws)
    c = s.connect("0")
    c.config_set("requirepass", "se:cr@t/")
    c.execute_command("ACL", "SETUSER", "joe", "on", ">joe's", "~*", "&*", "+@all")
    c.execute_command("ACL", "SETUSER", "eve", "on", ">eve", "~*", "+get")
    host = "127.0.0.1:%d/0" % s.port
    good = ws.volume(url="redis://:se%%3Acr%%40t%%2F@%s" % host)
    good.mount().umount()
    err = refused(ws, "redis://:wrong@" + host)
    assert "refuses the password" in err and "wrong@" not in err, err
    err = refused(ws, "redis://" + host)
    assert "META_PASSWORD" in err, err
    good.url = "redis://" + host
    good.mount(env={"META_PASSWORD": "se:cr@t/"}).umount()
    good.mount(env={"REDIS_PASSWORD": "se:cr@t/", "META_PASSWORD": "no"}).umount()
    ws.path("secret").write_text("  se:cr@t/ \nsecond line\n")
    good.mount(env={"META_PASSWORD_FILE": str(ws.path("secret"))}).umount()
    good.url = "redis://joe:joe%27s@" + host
    good.mount().umount()
    assert "NOPERM" in refused(ws, "redis://eve:eve@" + host)


def test_user_who_may_not_call_info(ws):
    """As of many hosted servers: what became of a change is known after two seconds all the same, and objects go."""
    s = server(ws)
    s.connect("0").execute_command("ACL", "SETUSER", "joe", "on", ">joe", "~*", "&*", "+@all", "-@dangerous")
    v = ws.volume(url="redis://joe:joe@127.0.0.1:%d/0" % s.port, trash_days=0)
    mnt = v.mount()
    write(mnt / "f", b"x")
    os.unlink(mnt / "f")
    wait_until(lambda: not v.objects(), 30, "the removal of the object")
    assert "refuses INFO" in ws.run("cachefs", "gc", "--delete", v.url, check=True).stderr


def test_servers_that_cannot_be_used(ws):
    s = server(ws)
    replica = server(ws, "--replicaof", "127.0.0.1", str(s.port))
    ws.volume(url=s.url("0"))
    wait_until(lambda: replica.connect("0").exists("setting"), 20, "the replica")
    assert "read-only replica" in refused(ws, replica.url("0"))
    free = servers.free_port()
    assert "cannot connect to Redis at 127.0.0.1:%d" % free in refused(
        ws, "redis://127.0.0.1:%d/0?read-timeout=1s" % free
    )
    assert "database" in refused(ws, s.url("5000"))
    assert "has no volume" in refused(ws, s.url("7"))
    assert "TLS" in refused(ws, s.url("0").replace("redis:", "rediss:"))


def test_too_many_clients(ws):
    """Said at mount; a mount that loses its connections meanwhile waits for a free one."""
    s = server(ws)
    c = s.connect("0")
    c.config_set("requirepass", "pw")
    v = ws.volume(url="redis://:pw@127.0.0.1:%d/0" % s.port)
    mnt = v.mount("io-timeout=20")
    mnt.allow(GONE)
    write(mnt / "f", b"x")
    c.config_set("maxclients", 1)
    assert "maxclients" in refused(ws, v.url)
    c.client_kill_filter(_type="normal", skipme=True)
    t = threading.Timer(2, lambda: c.config_set("maxclients", 100))
    t.start()
    os.mkdir(mnt / "d")
    t.join()
    assert read(mnt / "f") == b"x"


def test_full_memory_is_no_space(ws):
    s = server(ws)
    v = ws.volume(url=s.url("0"))
    mnt = v.mount()
    mnt.allow("refused a request")
    write(mnt / "f", b"content")
    c = s.connect("0")
    c.config_set("maxmemory", "1mb")
    with pytest.raises(OSError) as e:
        for i in range(1000):
            os.mkdir(mnt / ("d%d" % i))
    assert e.value.errno == 28
    assert read(mnt / "f") == b"content"
    c.config_set("maxmemory", "0")
    os.mkdir(mnt / "again")
    mnt.umount()
    checked(ws, v.url)


def test_too_few_replicas(ws):
    """Changes wait for them until their deadline; the log says for what."""
    s = server(ws)
    mnt = ws.volume(url=s.url("0")).mount("io-timeout=2")
    mnt.allow("does not answer")
    c = s.connect("0")
    c.config_set("min-replicas-to-write", 1)
    with pytest.raises(OSError) as e:
        os.mkdir(mnt / "d")
    assert e.value.errno == 5
    assert "NOREPLICAS" in mnt.log()
    c.config_set("min-replicas-to-write", 0)
    os.mkdir(mnt / "d")
    mnt.umount()


def tls_server(ws, *options):
    """It, its port for TLS, and its certificate."""
    cert, key = servers.certificate(ws.dir, "cert")
    port = servers.free_port()
    s = server(
        ws,
        *("--tls-port", str(port), "--tls-cert-file", cert),
        *("--tls-key-file", key, "--tls-auth-clients", "no", *options),
    )
    return s, port, cert


def test_load_says_what_it_waits_for(ws):
    """The server answers reads and lets changes wait: without the message the command seems to hang."""
    s = server(ws)
    ws.volume(url=s.url("0"))
    ws.run("cachefs", "dump", s.url("0"), str(ws.path("dump")), check=True)
    s.connect("0").execute_command("CLIENT", "PAUSE", 5000, "WRITE")
    r = ws.run("cachefs", "load", s.url("1"), str(ws.path("dump")))
    assert r.returncode == 0, r.stderr
    assert "cachefs load: waiting for a reply from" in r.stderr


def test_an_administrators_command_says_what_it_waits_for(ws):
    """The server stops answering while the command runs: here, while it asks for a confirmation."""
    s = server(ws)
    v = ws.volume(url=s.url("0"))
    keys, terminal = os.openpty()
    uuid = json.loads(s.connect("0").get("setting"))["UUID"]
    argv = [BIN / "cachefs", "destroy", v.url, uuid]
    with subprocess.Popen(argv, stdin=terminal, stdout=-1, stderr=-1, env=ws.env()) as p:
        asked = b""
        while not asked.endswith(b"to go on: "):
            more = os.read(p.stderr.fileno(), 4096)
            assert more, asked
            asked += more
        s.connect("0").execute_command("CLIENT", "PAUSE", 5000, "ALL")
        os.write(keys, b"%s\n" % v.name.encode())
        stderr = p.communicate(timeout=60 * SLOW)[1].decode()
    os.close(keys)
    os.close(terminal)
    assert p.returncode == 0, stderr
    assert re.search(r"^cachefs destroy: waiting for metadata \w+ \(3\.\d s\)$", stderr, re.M), stderr


def test_first_address_of_the_name_is_silent(ws):
    """With TLS to a server that is not near: being connected takes time, which the first must leave over."""
    s, tls, _ = tls_server(ws)
    far = SlowProxy(SilentFirst.address, ("127.0.0.1", tls), 20_000)
    ws.cleanups.append(far.close)
    two = SilentFirst(ws, far.port)
    ws.volume(url=s.url("0"))
    two.mount("rediss://%s:%d/0?insecure-skip-verify&max-open-conns=1" % (two.name, far.port))


def test_tls(ws):
    s, port, cert = tls_server(ws)
    url = "rediss://127.0.0.1:%d/0" % port
    assert "certificate" in refused(ws, url)
    v = ws.volume(url=url + "?tls-ca-cert-file=%s" % cert)
    mnt = v.mount()
    content = data(1_000_000)
    write(mnt / "f", content)
    assert read(mnt / "f") == content
    assert s.connect("0").exists("i1")
    v.url = url + "?insecure-skip-verify"
    assert read(v.mount() / "f") == content


# ---- the model ----


@pytest.mark.deadline(240)
def test_model_on_two_mounts(ws, volume):
    fresh = "attr-cache=0,entry-cache=0,dir-entry-cache=0"
    a, b = volume.mount(fresh), volume.mount(fresh)
    for seed in (1, random.SystemRandom().randrange(1 << 32)):
        args = ["--seed", str(seed), "--ops", "2000", "--punch", "--files", "4"]
        r = ws.run(CFSX, *args, a, b, timeout=100)
        assert r.returncode == 0, r.stdout[-6000:] + r.stderr
        r = ws.run(CFSX, *args, "--verify", b, timeout=100)
        assert r.returncode == 0, r.stdout[-6000:] + r.stderr
    args = ["--seed", "3", "--ops", "2000", "--copy", "--zero", "--allocate", "--files", "4"]
    r = ws.run(CFSX, *args, a, timeout=100)
    assert r.returncode == 0, r.stdout[-6000:] + r.stderr
    a.umount()
    b.umount()
    checked(ws, volume.url)


def test_unmount_while_the_server_is_down(ws):
    """A heartbeat is one wait for the server, not one for each of its steps, so that the unmount behind it ends soon;
    the command says that it waits. A failure here is an unmount that is silent for two minutes and then gives up."""
    server = servers.started(ws, servers.Redis())
    mnt = Volume(ws, url=server.database().url).mount("heartbeat=1,meta-timeout=3,io-timeout=1")
    mnt.allow(r".")
    write(mnt / "f", b"x")
    server.kill9()
    wait_until(lambda: "cannot refresh the session" in mnt.log(), 60, "a heartbeat without an answer")
    r = ws.run("cachefs", "umount", mnt.path, timeout=60)
    assert r.returncode == 0, r
    assert "waiting for process" in r.stderr, r
    mnt.wait_end()
    missed = mnt.log().split("cannot refresh the session", 1)[1]
    assert "cannot read" not in missed and "no progress" not in missed, missed


def test_what_has_no_scheme_is_taken_for_a_redis_server(ws):
    """As a mistyped name of a volume or the path of a database: the message says what it was taken for."""
    r = ws.run("cachefs", "status", "volume.invalid")
    assert r.returncode == 2 and "cannot resolve volume.invalid, the Redis server: " in r.stderr, r
