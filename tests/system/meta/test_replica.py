# SPDX-License-Identifier: Apache-2.0
"""Replication of the metadata into the bucket. A failure here is a volume that is lost with its machine, or
one that comes back with less than was promised, or with two histories mixed."""

import contextlib
import errno
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

import pytest

from admin import ask, contents, make_tree, refused
from cachefs import Clock, children, stop_process, wait_until
from proxy import xml_error
from replicas import Machine, clean, covered, elsewhere, entries, env_of, folder, lose_machine, pieces, place, restore
from s3volume import S3Volume, need_conditions
from syscalls import read, write
from test_s3 import make_bucket, objtool

# 120 deaths with sync and 80 with async, instead of 3 and 2.
DEATHS = 40 if os.environ.get("CACHEFS_LONG") else int(os.environ.get("CACHEFS_TEST_DEATHS", 1))


# -- the bucket is enough


@pytest.mark.parametrize("mode,storage", [("async", "file"), ("sync", "s3"), (None, "s3"), ("async", "zstd")])
def test_the_bucket_alone_brings_a_volume_back(ws, request, mode, storage):
    if storage == "s3":
        vol = S3Volume(ws, request.getfixturevalue("s3"), replicate=mode)
    else:
        vol = ws.volume(replicate=mode, compress="zstd" if storage == "zstd" else None)
    mnt = vol.mount()
    files = make_tree(mnt)
    covered(mnt)
    lose_machine(vol, mnt)
    again = elsewhere(ws, vol, "sqlite3://%s" % ws.path("again.db"))
    ws.path("point").mkdir()
    refused(ws, "mount", again.url, ws.path("point"), says="again.db: No such file or directory; if the volume was replicated")
    options = dict(zip(("storage", "bucket", "restore"), map(str, place(vol)[1::2])))
    mnt = again.mount(",".join("%s=%s" % o for o in options.items()), env=env_of(vol))
    assert contents(mnt) == {**files, "a/hard": b"3"}
    assert os.readlink(mnt / "link") == "three"
    # It goes on from there.
    write(mnt / "later", b"later")
    covered(mnt)
    mnt.umount()
    third = restore(ws, vol, "third.db")
    mnt = third.mount("ro", env=env_of(vol))
    assert contents(mnt) == {**files, "a/hard": b"3", "later": b"later"}


def test_an_encrypted_volume_has_an_encrypted_replica(ws):
    key = ws.path("key.pem")
    ws.run("openssl", "genrsa", "-traditional", "-aes256", "-passout", "pass:secret", "-out", key, "2048", check=True)
    secret = {"JFS_RSA_PASSPHRASE": "secret"}
    url = "sqlite3://%s" % ws.path("vol.db")
    vol = ws.volume(format=False)
    vol.check_options = None
    ws.run("cachefs", *vol.format_args(encrypt_rsa_key=key, replicate="async"), env=secret, check=True)
    mnt = vol.mount(env=secret)
    write(mnt / "very-secret-name", b"data")
    covered(mnt)
    mnt.umount()
    for name in os.listdir(folder(vol)):
        assert b"CFSREPL" not in (folder(vol) / name).read_bytes()
    args = ["load", "--from-replica", *place(vol), "sqlite3://%s" % ws.path("again.db")]
    refused(ws, *args, env=secret, says="log-")
    ws.run("cachefs", *args, "--encrypt-key", key, env=secret, check=True)
    again = elsewhere(ws, vol, args[-1])
    again.check_options = None
    assert again.sql("SELECT count(*) FROM jfs_edge WHERE name=CAST('very-secret-name' AS BLOB)") == [(1,)]
    assert url == vol.url


# -- deaths

WRITER = """
import os, sys
top, tell = sys.argv[1], os.fdopen(1, "wb", buffering=0)
n = 0
while True:
    name = "%s/f%06d" % (top, n)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b"%d" % n * 100)
    if sys.argv[2] == "fsync":
        os.fsync(fd)
    os.close(fd)
    if n % 3 == 2:
        os.rename(name, name + "-moved")
        os.unlink("%s/f%06d" % (top, n - 1))
    tell.write(b"%d\\n" % n)
    n += 1
"""


class Writer:
    """Makes files until its file system dies; knows when each was confirmed, and which lag was shown."""

    def __init__(self, ws, mnt, mode):
        self.mnt, self.done, self.lags = mnt, [], []
        self.process = ws.python(WRITER, str(mnt), mode, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()
        wait_until(lambda: len(self.done) > 3, 30, "the first files")
        wait_until(self.covers, 60, "the first files to be in the bucket")

    def listen(self):
        for line in self.process.stdout:
            self.done.append((int(line), time.monotonic()))

    def covers(self):
        """Reads the lag. Whether the first file is older."""
        now = time.monotonic()
        try:
            lag = self.mnt.stat("replica_lag_seconds")
        except OSError:  # it has died meanwhile
            return False
        self.lags.append((now, lag))
        return self.done[0][1] < now - lag

    def until(self, died):
        """Goes on until the file system has died."""
        deadline = time.monotonic() + 60
        while not died.is_set():
            assert time.monotonic() < deadline, "the call that kills has not come"
            self.covers()
        self.process.kill()
        self.process.wait()
        self.thread.join()

    def confirmed(self):
        return [n for n, _ in self.done]

    def older_than_the_lag(self):
        at, lag = self.lags[-1]
        return [n for n, when in self.done if when < at - lag]


def die_at_a_call(via, mnt, rng):
    """The machine dies at a call that its mount makes: it does not arrive, arrives afterwards, or is not answered."""
    died = threading.Event()

    def die(forwarded):
        mnt.kill_all()
        died.set()
        return forwarded

    path = rng.choice(["meta-replica/log", "meta-replica/log", "meta-replica", ".*"])
    when = rng.choice([{"before": lambda: die(False)}, {"before": lambda: die(True)}, {"after": lambda: die(False)}])
    via.add(".*", path, skip=rng.randint(0, 12), times=1, **when)
    return died


def check_files(top, numbers):
    names = set(os.listdir(top))
    for n in numbers:
        gone = n % 3 == 1 and "f%06d-moved" % (n + 1) in names
        name = next((c for c in ("f%06d" % n, "f%06d-moved" % n) if c in names), None)
        assert name or gone, "file %d is missing" % n
        if name:
            assert read(pathlib.Path(top, name)) == b"%d" % n * 100


@pytest.mark.parametrize("turn", range(3 * DEATHS))
def test_sync_loses_nothing(ws, s3, via, turn):
    rng = random.Random(turn)
    first = Machine(ws, s3, via, replicate="sync")
    mnt = first.mount("close=committing" if turn % 3 == 2 else "")
    mnt.allow("object store|replica")
    writer = Writer(ws, mnt, "fsync")
    died = die_at_a_call(via, mnt, rng)
    if turn % 3 == 1:
        via.add(".*", "meta-replica", every=rng.randint(2, 9), status=503, body=xml_error("SlowDown"))
        via.add("PUT", "meta-replica", every=rng.randint(2, 9), delay=0.05)
    writer.until(died)
    via.clear()
    first.lose(mnt)
    again = first.restore()
    clean(again)
    check_files(again.mount("ro", env=s3.keys), writer.confirmed())


@pytest.mark.parametrize("turn", range(2 * DEATHS))
def test_async_loses_no_more_than_the_shown_lag(ws, s3, via, turn):
    rng = random.Random(turn)
    first = Machine(ws, s3, via, replicate="async")
    mnt = first.mount()
    mnt.allow("object store|replica")
    writer = Writer(ws, mnt, "none")
    died = die_at_a_call(via, mnt, rng)
    writer.until(died)
    via.clear()
    first.lose(mnt)
    again = first.restore()
    clean(again)
    old = writer.older_than_the_lag()
    assert old
    check_files(again.mount("ro", env=s3.keys), old)


def test_a_killed_mount_goes_on_where_it_was(ws):
    vol = ws.volume(replicate="async")
    vol.check_options = {"unmounted": False}
    mnt = vol.mount()
    write(mnt / "one", b"1")
    covered(mnt)
    for n in range(3):
        mnt.kill9()
        mnt = vol.mount()
        write(mnt / ("more%d" % n), b"2")
        covered(mnt)
        # The log was followed, as nobody else has let it begin again.
        assert mnt.stat("replica_bases_total") == 0
    mnt.allow("has died, starting another")
    os.kill(mnt.pid(), signal.SIGKILL)
    write(mnt / "last", b"3")
    covered(mnt)
    mnt.umount()
    # So do commands' changes.
    ws.run("cachefs", "config", "--trash-days", "3", vol.url, check=True)
    mnt = vol.mount()
    covered(mnt)
    assert mnt.stat("replica_bases_total") == 0
    again = restore(ws, vol, "again.db")
    assert again.setting()["TrashDays"] == 3
    assert sorted(contents(again.mount("ro"))) == ["last", "more0", "more1", "more2", "one"]


def test_an_upgrade_goes_on_with_it(ws):
    vol = ws.volume(replicate="async")
    mnt = vol.mount(daemon=True)
    for n in range(3):
        write(mnt / ("f%d" % n), b"x")
        ws.run("cachefs", "mount", vol.url, mnt, check=True)
        write(mnt / ("g%d" % n), b"x")
        covered(mnt)
        assert mnt.stat("replica_fenced") == 0 and mnt.stat("replica_bases_total") == 0
    again = restore(ws, vol, "again.db")
    assert len(contents(again.mount("ro"))) == 6


def test_the_database_is_complete_without_its_log(ws):
    """As one may copy it after an unmount, or a command. The replica goes on all the same."""
    vol = ws.volume(replicate="async")

    def alone():
        copy = shutil.copy(vol.db, ws.path("copy.db"))
        with contextlib.closing(sqlite3.connect("file:%s?immutable=1" % copy, uri=True)) as db:
            names = {bytes(name).decode() for (name,) in db.execute("SELECT name FROM jfs_edge")}
            (setting,) = db.execute("SELECT value FROM jfs_setting WHERE name='format'").fetchone()
            return names, json.loads(setting)["TrashDays"]

    for n in range(1, 4):
        mnt = vol.mount()
        write(mnt / ("f%d" % n), b"x")
        mnt.umount()
        assert alone() == ({"f%d" % i for i in range(1, n + 1)}, n - 1)
        ws.run("cachefs", "config", "--trash-days", str(n), vol.url, check=True)
        assert alone()[1] == n
    assert len({name.split("-")[1] for name in pieces(vol)}) == 1
    clean(restore(ws, vol, "again.db"))


def test_changes_of_another_program_become_a_base(ws):
    vol = ws.volume(replicate="async")
    mnt = vol.mount()
    covered(mnt)
    mnt.umount()
    # It moves the log into the database when it closes, as JuiceFS does.
    vol.sql("UPDATE jfs_node SET mode=448 WHERE inode=1")
    assert not os.path.exists(str(vol.db) + "-wal")
    mnt = vol.mount()
    covered(mnt)
    assert mnt.stat("replica_bases_total") == 1
    again = restore(ws, vol, "again.db")
    assert again.sql("SELECT mode & 511 FROM jfs_node WHERE inode=1") == [(0o700,)]
    clean(again)


def test_another_program_beside_the_mount_takes_nothing_away(ws):
    """It moves the log into the database whenever it may."""
    vol = ws.volume(replicate="async")
    mnt = vol.mount()
    stop = threading.Event()
    failed = []

    def checkpoint():
        db = sqlite3.connect(vol.db, timeout=0, isolation_level=None)
        while not stop.is_set():
            try:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.OperationalError as e:
                if "locked" not in str(e):
                    failed.append(e)
        db.close()

    thread = threading.Thread(target=checkpoint)
    thread.start()
    for n in range(300):
        write(mnt / ("f%d" % n), b"%d" % n)
    stop.set()
    thread.join()
    assert not failed
    covered(mnt)
    assert mnt.stat("replica_bases_total") == 1
    lose_machine(vol, mnt)
    again = restore(ws, vol, "again.db")
    clean(again)
    mnt = again.mount("ro")
    assert contents(mnt) == {"f%d" % n: b"%d" % n for n in range(300)}


def test_a_long_log_begins_again(ws):
    vol = ws.volume(replicate="async")
    mnt = vol.mount()
    wal = pathlib.Path(str(vol.db) + "-wal")
    salts = set()
    n = 0
    until = time.monotonic() + 60
    while len(salts) < 3 and time.monotonic() < until:
        for _ in range(200):
            os.mkdir(mnt / ("d%d" % n))
            n += 1
        salts.add(wal.read_bytes()[16:24])
    assert len(salts) >= 3
    covered(mnt)
    assert mnt.stat("replica_bases_total") == 1 and mnt.stat("replica_failures_total") == 0
    lose_machine(vol, mnt)
    again = restore(ws, vol, "again.db")
    clean(again)
    assert again.sql("SELECT count(*) FROM jfs_edge WHERE parent=1") == [(n,)]


# -- one writer


@pytest.mark.parametrize("storage", ["s3", "file"])
def test_an_object_is_created_once(ws, request, storage):
    s3 = request.getfixturevalue("s3") if storage == "s3" else None
    if s3:
        need_conditions()
    url = make_bucket(ws, s3) if s3 else str(ws.path("bkt")) + "/"
    assert objtool(ws, s3, url, "create", storage=storage)["result"] == 0
    for n, (content, result) in enumerate([(b"first", 0), (b"second", -17), (b"first", -17)]):
        path = ws.path("content%d" % n)
        path.write_bytes(content)
        assert objtool(ws, s3, url, "new", "a/key", path, storage=storage)["result"] == result
    assert objtool(ws, s3, url, "get", "a/key", 0, 10, ws.path("got"), 1, storage=storage)["result"] == 5
    assert ws.path("got").read_bytes() == b"first"


@contextlib.contextmanager
def frozen(mnt):
    workers = [mnt.process.pid, *children(mnt.process.pid)]
    for pid in workers:
        stop_process(pid)
    yield
    for pid in reversed(workers):
        os.kill(pid, signal.SIGCONT)


TOLD = "belongs to another database now|EROFS|Read-only|heartbeat|session|usage|directory times"


def test_the_former_owner_becomes_read_only(ws):
    vol = ws.volume(replicate="async")
    vol.check_options = None
    mnt = vol.mount("heartbeat=1s")
    mnt.allow(TOLD)
    write(mnt / "before", b"1")
    covered(mnt)
    with frozen(mnt):
        again = restore(ws, vol, "again.db")
        second = again.mount()
        write(second / "second", b"2")
        covered(second)

    def refuses():
        try:
            os.close(os.open(mnt / ("x%d" % time.monotonic_ns()), os.O_CREAT | os.O_WRONLY))
        except OSError as e:
            return e.errno == 30
        return False

    wait_until(refuses, 30, "the first mount to be read-only")
    assert "read-only from here on" in mnt.log() and mnt.stat("replica_fenced") == 1
    assert read(mnt / "before") == b"1"
    write(second / "third", b"3")
    covered(second)
    mnt.kill9()
    # Its database is not the one to go on with.
    r = vol.mount(wait=False, expect="belongs to another database")
    wait_until(lambda: r.process.poll() is not None, 30, "the refusal")
    assert "belongs to another database" in r.log()
    r.ended = True
    latest = restore(ws, vol, "latest.db")
    clean(latest)
    assert sorted(contents(latest.mount("ro"))) == ["before", "second", "third"]


# Descriptors on a mount that is frozen belong to a process that starts no other: a close would wait.
HOLDER = """
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(fd, b"1")
os.fsync(fd)
print("ready", flush=True)
sys.stdin.readline()
os.write(fd, b"2")
try:
    os.fsync(fd)
    print(0, flush=True)
except OSError as e:
    print(e.errno, flush=True)
"""


def test_the_former_owner_promises_nothing(ws):
    """Its fsync never answers 0 for what its own database has and the volume will not."""
    vol = ws.volume(replicate="sync")
    vol.check_options = None
    mnt = vol.mount("heartbeat=1s")
    mnt.allow(TOLD + "|fsync|flush|close")
    holder = ws.python(HOLDER, str(mnt / "open"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "ready\n"
    with frozen(mnt):
        second = restore(ws, vol, "again.db").mount()
        write(second / "second", b"2")
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert int(holder.stdout.readline()) in (errno.EIO, errno.EROFS)
    wait_until(lambda: "read-only from here on" in mnt.log(), 10, "the message")
    holder.wait(30)
    mnt.kill9()
    latest = restore(ws, vol, "latest.db")
    clean(latest)
    assert contents(latest.mount("ro")) == {"open": b"1", "second": b"2"}


def test_a_restored_database_may_die_at_once(ws):
    """Before its first entry is in the bucket."""
    vol = ws.volume(replicate="async")
    mnt = vol.mount()
    write(mnt / "one", b"1")
    covered(mnt)
    lose_machine(vol, mnt)
    again = restore(ws, vol, "again.db")
    here = folder(vol)
    there = here.with_name("away")
    here.rename(there)
    here.write_bytes(b"")  # entries can be neither listed nor made
    mnt = again.mount()
    mnt.allow("object store|replica")
    write(mnt / "two", b"2")
    mnt.kill9()
    here.unlink()
    there.rename(here)
    mnt = again.mount()
    covered(mnt)
    assert contents(mnt) == {"one": b"1", "two": b"2"} and mnt.stat("replica_fenced") == 0


def test_a_restored_database_is_refused_when_the_volume_has_gone_on(ws):
    vol = ws.volume(replicate="async")
    mnt = vol.mount()
    write(mnt / "one", b"1")
    covered(mnt)
    again = restore(ws, vol, "again.db")
    write(mnt / "two", b"2")
    covered(mnt)
    r = again.mount(wait=False, expect="belongs to another database")
    wait_until(lambda: r.process.poll() is not None, 30, "the refusal")
    assert "belongs to another database" in r.log()
    r.ended = True
    vol.check_options = None
    # To look at it is allowed, and does not disturb the volume.
    assert contents(again.mount("ro")) == {"one": b"1"}
    write(mnt / "three", b"3")
    covered(mnt)
    assert mnt.stat("replica_fenced") == 0


@pytest.mark.parametrize("which", [1, 5])
def test_a_bucket_without_conditions(ws, s3, via, which):
    """The second put of the probe is answered as if it had replaced the object, or one of several at once as if
    the server had looked before another one had created it."""
    need_conditions()
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url)
    via.add("PUT", "testing/replica", skip=which, every=1, times=1, status=200, headers={"ETag": '"x"'})
    refused(ws, "config", "--replicate", "sync", vol.url, env=s3.keys, says="does not refuse to create an object twice")
    via.clear()
    via.add("PUT", "testing/replica", skip=which, every=1, times=1, status=200, headers={"ETag": '"x"'})
    r = ws.run("cachefs", "config", "--replicate", "async", vol.url, env=s3.keys, check=True)
    assert "does not refuse to create an object twice" in r.stderr
    mnt = vol.mount(env=s3.keys)
    write(mnt / "one", b"1")
    covered(mnt)
    mnt.umount()
    assert contents(restore(ws, vol, "again.db").mount("ro", env=s3.keys)) == {"one": b"1"}


def test_format_of_a_volume_that_exists_does_not_pretend(ws):
    """As after a format that was refused for its bucket, with the volume made."""
    vol = ws.volume()
    for mode in ("async", "sync"):
        refused(ws, *vol.format_args(replicate=mode), says="cachefs config --replicate")
        refused(ws, *vol.format_args(replicate=mode, force=True), says="cachefs config --replicate")
    ws.run("cachefs", "config", "--replicate", "async", vol.url, check=True)
    ws.run("cachefs", *vol.format_args(replicate="async"), check=True)
    refused(ws, *vol.format_args(replicate="sync"), says="cachefs config --replicate")
    assert ask(ws, "status", vol.url)["replication"]["mode"] == "async"


def test_format_replicates_into_a_bucket_elsewhere(ws, s3, via):
    """Unless it is told otherwise. A load from a dump says that it does not."""

    def mode(vol):
        how = ask(ws, "status", vol.url)["replication"]
        return how and how["mode"]

    vol = S3Volume(ws, s3, replicate=None)
    vol.format(storage="s3", bucket=vol.where, replicate=None)  # again: nothing changes
    assert mode(vol) == "async"
    refused(ws, *vol.format_args(storage="s3", bucket=vol.where, replicate="off"), env=s3.keys, says="--replicate")
    assert mode(S3Volume(ws, s3, "off", replicate="off")) is None
    via.add("PUT", "untried/testing/replica", status=403)
    untried = S3Volume(ws, s3, "untried", url="%s/bucket" % via.url, format=False)
    refused(ws, *untried.format_args(storage="s3", bucket=untried.where, replicate="async"), env=s3.keys, says="tried")
    untried = S3Volume(ws, s3, "untried2", url="%s/bucket" % via.url, format=False)
    via.add("PUT", "untried2/testing/replica", status=403)
    assert "warning: the metadata is not replicated" in untried.format(storage="s3", bucket=untried.where, replicate=None).stderr
    assert mode(untried) is None
    unlisted = S3Volume(ws, s3, "unlisted", url="%s/bucket" % via.url, format=False)
    via.add("GET", "list-type.*unlisted", status=403, body=xml_error("AccessDenied"))
    said = unlisted.format(storage="s3", bucket=unlisted.where, replicate=None).stderr
    assert "the bucket may not be listed" in said and "the metadata is not replicated" in said
    assert mode(unlisted) is None
    unchecked = S3Volume(ws, s3, "unchecked", no_check=True, replicate=None)
    unchecked.check_options = None
    assert mode(unchecked) is None
    assert mode(ws.volume("local")) is None
    ws.run("cachefs", "dump", vol.url, ws.path("dump"), env=s3.keys, check=True)
    r = ws.run("cachefs", "load", "sqlite3://%s" % ws.path("loaded.db"), ws.path("dump"), env=s3.keys, check=True)
    assert "not replicated" in r.stderr


def test_writeback_and_the_promise_of_sync(ws):
    """Blocks on the lost machine's disk are lost, though fsync was answered."""
    vol = ws.volume(replicate="sync")
    options = "writeback,cache-dir=%s" % ws.path("cache")
    r = vol.mount(options, wait=False, expect="mount without writeback")
    wait_until(lambda: r.process.poll() is not None, 30, "the refusal")
    assert "mount without writeback" in r.log()
    r.ended = True
    ws.run("cachefs", "config", "--replicate", "async", vol.url, check=True)
    mnt = vol.mount(options)
    mnt.allow("blocks that are not uploaded are lost")
    assert "blocks that are not uploaded are lost" in mnt.log()
    # A change of the setting does not end a mount that goes on.
    ws.run("cachefs", "config", "--replicate", "sync", vol.url, check=True)
    mnt.allow("has died, starting another")
    os.kill(mnt.pid(), signal.SIGKILL)
    write(mnt / "one", b"1")
    assert contents(mnt) == {"one": b"1"}


# -- damage


def damage(how, vol, foreign):
    names = entries(vol)
    if how == "foreign":
        # An undamaged entry of that number, of another history.
        shutil.copy(folder(foreign) / names[2], folder(vol) / names[2])
        return names[2]
    middle, other = folder(vol) / names[len(names) // 2], folder(vol) / names[len(names) // 2 + 1]
    if how == "missing":
        middle.unlink()
    elif how == "cut":
        os.truncate(middle, middle.stat().st_size - 1)
    elif how == "flipped":
        content = bytearray(middle.read_bytes())
        content[-1] ^= 1
        middle.write_bytes(content)
    elif how == "swapped":
        shutil.copy(other, middle)
    elif how == "piece":
        middle = folder(vol) / pieces(vol)[0]
        content = bytearray(middle.read_bytes())
        content[len(content) // 2] ^= 1
        middle.write_bytes(content)
    else:
        middle = folder(vol) / pieces(vol)[0]
        middle.unlink()
    return middle.name


def test_damage_is_named(ws):
    vol, foreign = ws.volume(replicate="async"), ws.volume("foreign", replicate="async")
    mnt, other = vol.mount(), foreign.mount()
    for n in range(4):
        write(mnt / ("f%d" % n), b"x")
        write(other / ("f%d" % n), b"x")
        covered(mnt)
        covered(other)
    mnt.umount()
    other.umount()
    assert len(entries(foreign)) > 3
    whole = ws.path("whole")
    shutil.copytree(folder(vol), whole)
    target = ws.path("again.db")
    for how in ("missing", "cut", "flipped", "swapped", "foreign", "piece", "no-piece"):
        shutil.rmtree(folder(vol))
        shutil.copytree(whole, folder(vol))
        name = damage(how, vol, foreign)
        r = refused(ws, "load", "--from-replica", *place(vol), "sqlite3://%s" % target, says=name)
        words = ("missing", "damaged", "does not follow")
        assert any(w in r.stderr for w in words), (how, r.stderr)
        assert not list(ws.dir.glob("again.db*")), how


def test_a_time_before(ws):
    vol = ws.volume(replicate="async")
    mnt = vol.mount()
    write(mnt / "one", b"1")
    covered(mnt)
    then = int(time.time()) + 1
    wait_until(lambda: time.time() > then + 0.1, 10)
    write(mnt / "two", b"2")
    covered(mnt)
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(then))
    last = folder(vol) / entries(vol)[-1]
    mnt.umount()
    again = restore(ws, vol, "again.db", "--until", text)
    clean(again)
    assert contents(again.mount("ro")) == {"one": b"1"}
    # Also when what came later is damaged.
    for name in entries(vol)[entries(vol).index(last.name) :]:
        (folder(vol) / name).write_bytes(b"damaged")
    assert contents(restore(ws, vol, "more.db", "--until", text).mount("ro")) == {"one": b"1"}
    refused(ws, "load", "--from-replica", *place(vol), "sqlite3://%s" % ws.path("x.db"), says="is damaged")
    long_ago = ["--until", "2001-01-01T00:00:00Z", "sqlite3://%s" % ws.path("x.db")]
    refused(ws, "load", "--from-replica", *place(vol), *long_ago, says="does not reach back")


DAY = 86400


def runs(mnt, thread):
    tasks = pathlib.Path("/proc/%d/task" % mnt.pid()).glob("*/comm")
    return any(t.read_text().startswith(thread) for t in tasks)


def utc(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def test_a_clock_that_jumps(ws):
    clock = Clock(ws)
    vol = ws.volume(replicate="async")
    mnt = vol.mount(env=clock.env)
    mnt.allow("clock")
    after = {}

    def step(name, ahead):
        clock.set(ahead)
        write(mnt / name, name.encode())
        covered(mnt)
        after[name] = (entries(vol)[-1], time.time())
        if name in ("one", "two"):
            then = int(time.time()) + 1
            wait_until(lambda: time.time() > then, 10)

    def restored(name, *until):
        again = restore(ws, vol, name, *until)
        clean(again)
        return sorted(contents(again.mount("ro")))

    step("one", 0)
    step("two", 0)
    step("ahead", DAY)
    assert "clock was set back" not in mnt.log()
    # As long as no clock was set back each time has one state.
    assert restored("a.db", "--until", utc(after["one"][1] + 1)) == ["one"]
    step("three", 0)
    assert "clock was set back" in mnt.log()
    step("behind", -DAY)
    step("four", 0)
    assert mnt.stat("replica_failures_total") == 0 and mnt.stat("replica_fenced") == 0
    mnt.umount()
    assert restored("b.db") == ["ahead", "behind", "four", "one", "three", "two"]
    # At that time it was "two", or "four".
    where = [*place(vol), "sqlite3://%s" % ws.path("x.db")]
    r = refused(ws, "load", "--from-replica", "--until", utc(time.time() + 1), *where, says="clock was set back")
    before, latest = re.findall("log-[0-9a-f]{16}", r.stderr)
    assert restored("c.db", "--until", before) == ["one", "two"]
    assert restored("f.db", "--until", latest) == ["ahead", "behind", "four", "one", "three", "two"]
    assert restored("d.db", "--until", after["three"][0]) == ["ahead", "one", "three", "two"]
    assert restored("e.db", "--until", utc(time.time() + 2 * DAY)) == ["ahead", "behind", "four", "one", "three", "two"]
    refused(ws, "load", "--from-replica", "--until", utc(time.time() - 3 * DAY), *where, says="does not reach back")
    refused(ws, "load", "--from-replica", "--until", "log-00000000000000ff", *where, says="is missing")


def test_a_clock_ahead_removes_nothing_early(ws, s3, via):
    """By the clock of the writer all before the second base would be too old to be kept. A server refuses
    requests of a clock that is more than 15 minutes ahead."""
    clock = Clock(ws)
    env = {**clock.env, **s3.keys}
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url)
    config = ["config", "--replicate", "async", "--replica-keep", "200s", vol.url]
    ws.run("cachefs", *config, env=s3.keys, check=True)
    for ahead in (0, 0, 600):
        there = (entries(vol), pieces(vol)) if ahead else ((), ())
        clock.set(ahead)
        via.clear()
        mnt = vol.mount(env=env)
        mnt.allow("clock|time")
        write(mnt / ("f%d" % ahead), b"1")
        covered(mnt)
        assert mnt.stat("replica_bases_total") == 1
        wait_until(lambda: via.seen("GET", "base-") and not runs(mnt, "replica-check"), 20, "the end of the check")
        mnt.umount()
        # As another program does it: the next mount begins with a base.
        vol.sql("UPDATE jfs_node SET mode=mode WHERE inode=1")
    assert len(there[1]) == 2 and set(there[0]) <= set(entries(vol)) and set(there[1]) < set(pieces(vol))


def test_an_entry_without_a_time_removes_nothing(ws, s3, via):
    """Its answer would make it older than any time to keep, and all before it."""
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url)
    ws.run("cachefs", "config", "--replicate", "async", "--replica-keep", "1d", vol.url, env=s3.keys, check=True)

    def edit(head):
        return re.sub(rb"(?i)last-modified:[^\r]*\r\n", b"", head)

    second = ""
    for n in range(3):
        there = (entries(vol), pieces(vol)) if n else ((), ())
        via.clear()
        if n == 1:
            second = "log-%016x" % (int(there[0][-1][4:], 16) + 1)
        elif n == 2:
            fault = via.add("HEAD", second, after=lambda: setattr(via, "edit_head", edit))
        mnt = vol.mount(env=s3.keys)
        mnt.allow("old objects could not be removed")
        write(mnt / ("f%d" % n), b"1")
        covered(mnt)
        wait_until(lambda: via.seen("GET", "base-") and not runs(mnt, "replica-check"), 20, "the end of the check")
        mnt.umount()
        vol.sql("UPDATE jfs_node SET mode=mode WHERE inode=1")
    assert fault.hits and len(there[1]) == 2
    assert set(there[0]) <= set(entries(vol)) and set(there[1]) < set(pieces(vol))


# -- what stays


def test_old_objects_are_removed(ws):
    vol = ws.volume(replicate="async")
    ws.run("cachefs", "config", "--replicate", "async", "--replica-keep", "0s", vol.url, check=True)
    seen = []
    for n in range(3):
        mnt = vol.mount()
        write(mnt / ("f%d" % n), b"x")
        covered(mnt)
        wait_until(lambda: len(pieces(vol)) == 1, 20, "one base")
        seen.append((entries(vol), pieces(vol)))
        mnt.umount()
        vol.sql("UPDATE jfs_node SET mode=mode WHERE inode=1")
    assert not set(seen[0][0]) & set(seen[2][0]) and seen[0][1] != seen[2][1]
    again = restore(ws, vol, "again.db")
    clean(again)
    assert sorted(contents(again.mount("ro"))) == ["f0", "f1", "f2"]


def test_a_damaged_end_is_gone_past_and_removed(ws):
    """As on a server that keeps bytes which it has refused."""
    vol = ws.volume(replicate="async")
    mnt = vol.mount()
    write(mnt / "one", b"1")
    covered(mnt)
    mnt.umount()
    last = folder(vol) / entries(vol)[-1]
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    r = vol.mount(wait=False, expect="is damaged")
    wait_until(lambda: r.process.poll() is not None, 30, "the refusal")
    assert "run `cachefs config --replicate`" in r.log()
    r.ended = True
    ws.run("cachefs", "config", "--replicate", "async", "--replica-keep", "0s", vol.url, check=True)
    mnt = vol.mount()
    write(mnt / "two", b"2")
    covered(mnt)
    wait_until(lambda: not last.exists(), 20, "the removal of what is before the new base")
    assert "could not be removed" not in mnt.log()
    again = restore(ws, vol, "again.db")
    clean(again)
    assert sorted(contents(again.mount("ro"))) == ["one", "two"]


def test_status_and_commands_know_it(ws):
    vol = ws.volume(replicate="async")
    mnt = vol.mount()
    write(mnt / "one", b"1")
    covered(mnt)
    assert ask(ws, "status", vol.url)["replication"]["mode"] == "async"
    assert "replication: async" in ws.run("cachefs", "status", vol.url, check=True).stdout
    mnt.umount()
    there = os.listdir(folder(vol))
    ws.run("cachefs", "gc", "--delete", vol.url, env={"JFS_GC_SKIPPEDTIME": "0"}, check=True)
    assert os.listdir(folder(vol)) == there
    ws.run("cachefs", "fsck", vol.url, check=True)
    ws.run("cachefs", "config", "--replicate", "off", vol.url, check=True)
    assert ask(ws, "status", vol.url)["replication"] is None
    n = len(entries(vol))
    mnt = vol.mount()
    write(mnt / "two", b"2")
    assert mnt.stat("replica_entries_total") == 0
    mnt.umount()
    assert len(entries(vol)) == n
    ws.run("cachefs", "destroy", "--yes", vol.url, vol.setting()["UUID"], check=True)
    assert not folder(vol).exists() or not os.listdir(folder(vol))
    vol.check_options = None
