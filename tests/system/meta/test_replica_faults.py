# SPDX-License-Identifier: Apache-2.0
"""A replicated volume whose bucket is away, slow or full, and commands that remove objects which the replica may
name. A failure here is an fsync that was answered for nothing, or a restore that names what is gone."""

import os
import sqlite3

import pytest

import server
from admin import contents, refused
from cachefs import wait_until
from proxy import Broken, xml_error
from replicas import clean, covered, lose_machine, restore
from s3volume import S3Volume
from syscalls import write

MIB = 1 << 20

# -- the bucket is away


def test_an_outage_is_survived(ws, s3, via):
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url, replicate="async")
    mnt = vol.mount(env=s3.keys)
    mnt.allow("object store|replica")
    write(mnt / "removed", b"0")
    write(mnt / "before", b"1")
    covered(mnt)
    (removed,) = [o for o in vol.objects() if o.read_bytes() == b"0"]
    via.add(".*", "meta-replica", status=503, body=xml_error("SlowDown"))
    os.unlink(mnt / "removed")
    for n in range(50):
        write(mnt / ("f%d" % n), b"%d" % n)
    wait_until(lambda: mnt.stat("replica_failures_total") >= 1, 40, "a failure")
    assert mnt.stat("replica_lag_seconds") > 1 and mnt.stat("replica_backlog_bytes") > 0
    wait_until(lambda: "the metadata cannot be replicated" in mnt.log(), 30, "the log line")
    # A restore would bring the file back: its object is needed until the removal is in the bucket.
    assert removed.exists()
    via.clear()
    covered(mnt)
    wait_until(lambda: not removed.exists(), 30, "the removal of the object")
    assert mnt.stat("replica_backlog_bytes") == 0
    # Bursts. Without conditional puts two calls are needed for one: if every other failed, one of the two would.
    via.add(".*", "meta-replica", every=2 if server.CONDITIONAL else 3, status=503, body=xml_error("SlowDown"))
    write(mnt / "burst", b"2")
    covered(mnt)
    via.clear()
    lose_machine(vol, mnt)
    again = restore(ws, vol, "again.db")
    clean(again)
    want = {"f%d" % n: b"%d" % n for n in range(50)}
    assert contents(again.mount("ro", env=s3.keys)) == {**want, "before": b"1", "burst": b"2"}


@pytest.mark.parametrize("status, code, options", [(403, "AccessDenied", ""), (503, "SlowDown", "stop-timeout=8")])
def test_unmount_while_the_bucket_takes_no_entries(ws, s3, via, status, code, options):
    """It waits for an outage to end, and says so; a refusal stays."""
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url, replicate="async")
    mnt = vol.mount(options, env=s3.keys)
    mnt.allow("object store|replica")
    covered(mnt)
    via.add(".*", "meta-replica", status=status, body=xml_error(code))
    write(mnt / "last", b"1")
    before = len(via.seen(".*", "meta-replica"))
    mnt.umount()
    assert "the last changes are not in the bucket, the next mount stores them" in mnt.log()
    if status == 403:
        assert len(via.seen(".*", "meta-replica")) - before < 20  # in 30 s it would be 200
    else:
        assert 'waits_for="end of thread replica' in mnt.log()
    via.clear()
    again = vol.mount(env=s3.keys)
    covered(again)


def test_a_lost_answer_is_no_other_writer(ws, s3, via):
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url, replicate="async")
    mnt = vol.mount(env=s3.keys)
    mnt.allow("object store")
    covered(mnt)
    lost = []

    def lose(head):
        if via.seen("PUT", "meta-replica/log") and not lost:
            lost.append(head)
            raise Broken
        return head

    via.clear()
    via.edit_head = lose
    write(mnt / "one", b"1")
    covered(mnt)
    assert lost and lost[0].startswith(b"HTTP/1.1 200") and mnt.stat("replica_fenced") == 0
    mnt.umount()
    assert contents(restore(ws, vol, "again.db").mount("ro", env=s3.keys)) == {"one": b"1"}


def synced(fd):
    try:
        os.fsync(fd)
        return True
    except OSError:
        return False


FULL = {
    "507": {"status": 507, "body": xml_error("InsufficientStorage")},
    "quota": {"status": 403, "body": xml_error("QuotaExceeded")},
    "minio": {"status": 507, "body": xml_error("XMinioStorageFull")},
}


@pytest.mark.parametrize("how", FULL if os.environ.get("CACHEFS_LONG") else ["507"])
def test_a_full_bucket(ws, s3, via, how):
    """A full bucket can still be read and listed. Nothing in it is lost, and all is stored when there is room again."""
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url, replicate="async")
    mnt = vol.mount("io-timeout=2s", env=s3.keys)
    mnt.allow("object store|replica|flush|close|upload|block|fsync")
    write(mnt / "before", b"1")
    covered(mnt)
    full = via.add("PUT", ".*", **FULL[how])
    os.mkdir(mnt / "while-full")
    wait_until(lambda: "cannot be replicated" in mnt.log(), 40, "the log line")
    assert full.hits and mnt.stat("replica_lag_seconds") > 2 and mnt.stat("replica_backlog_bytes") > 0
    fd = os.open(mnt / "data", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"data")
    with pytest.raises(OSError):
        os.fsync(fd)
    restored = restore(ws, vol, "full.db")
    assert contents(restored.mount("ro", env=s3.keys)) == {"before": b"1"}
    via.clear()
    wait_until(lambda: synced(fd), 30, "fsync to succeed")
    os.close(fd)
    covered(mnt)
    assert mnt.stat("replica_backlog_bytes") == 0 and mnt.stat("replica_fenced") == 0
    lose_machine(vol, mnt)
    again = restore(ws, vol, "again.db")
    clean(again)
    mnt = again.mount("ro", env=s3.keys)
    assert contents(mnt) == {"before": b"1", "data": b"data"} and os.listdir(mnt / "while-full") == []


def test_slow_and_cut_uploads(ws, s3, via):
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url, replicate="async")
    mnt = vol.mount(env=s3.keys)
    mnt.allow("object store|replica")
    covered(mnt)
    slow = via.add("PUT", "meta-replica", times=3, delay=1)
    for n in range(3):
        write(mnt / ("slow%d" % n), b"1")
        covered(mnt)
    # The connection ends within the body, and the server has nothing, or a part that it refuses.
    cut = via.add("PUT", "meta-replica", every=2, cut_request=100)
    part = via.add("PUT", "meta-replica", every=3, rewrite_request=lambda body: bytes(len(body)))
    for n in range(4):
        write(mnt / ("cut%d" % n), b"1")
        covered(mnt)
    assert slow.hits == 3 and cut.hits and part.hits
    via.clear()
    assert mnt.stat("replica_fenced") == 0
    lose_machine(vol, mnt)
    again = restore(ws, vol, "again.db")
    clean(again)
    names = ["cut%d" % n for n in range(4)] + ["slow%d" % n for n in range(3)]
    assert sorted(contents(again.mount("ro", env=s3.keys))) == names


@pytest.mark.parametrize("how", [{"status": 503, "body": xml_error("SlowDown")}, FULL["507"], FULL["quota"]])
def test_sync_says_so_when_the_bucket_is_away(ws, s3, via, how):
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url, replicate="sync")
    mnt = vol.mount("io-timeout=2s", env=s3.keys)
    mnt.allow("object store|replica|close|flush")
    write(mnt / "before", b"1")
    via.add("PUT" if how["status"] != 503 else ".*", "meta-replica", **how)
    fd = os.open(mnt / "one", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"1")
    with pytest.raises(OSError, match="Errno 5"):
        os.fsync(fd)
    via.clear()
    wait_until(lambda: synced(fd), 30, "fsync to succeed again")
    os.close(fd)
    assert mnt.stat("replica_fenced") == 0


# -- objects that commands remove


def removed_and_not_replicated(via, vol, opts=""):
    """A mount that died before the bucket had the removal of a file; its object is there."""
    mnt = vol.mount(opts, env=vol.s3.keys)
    mnt.allow("object store|replica")
    write(mnt / "removed", b"0")
    write(mnt / "kept", b"1")
    covered(mnt)
    (removed,) = [o for o in vol.objects() if o.read_bytes() == b"0"]
    fault = via.add("PUT", "meta-replica/log", status=503, body=xml_error("SlowDown"))
    os.unlink(mnt / "removed")
    wait_until(lambda: fault.hits, 40, "a try to replicate the removal")
    mnt.kill9()
    via.clear()
    assert removed.exists()
    return removed


def gc(vol, *more):
    return ["gc", "--delete", "--age", "0s", *more, vol.url]


def test_gc_removes_what_the_replica_does_not_name(ws, s3, via):
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url, replicate="async")
    vol.check_options = {"unmounted": False, "leaks": "ignore"}
    removed = removed_and_not_replicated(via, vol)
    at_removal = []

    def look():
        at_removal.append(bool(via.seen("PUT", "meta-replica/log")))

    via.add("DELETE|POST", "/bucket/vol/chunks|delete", times=1, before=look)
    ws.run("cachefs", *gc(vol), env=s3.keys, check=True)
    assert at_removal == [True] and not removed.exists()
    again = restore(ws, vol, "again.db")
    clean(again)
    assert contents(again.mount("ro", env=s3.keys)) == {"kept": b"1"}
    # The replica has what gc did itself, too, and the next mount goes on with it.
    mnt = vol.mount(env=s3.keys)
    covered(mnt)
    assert mnt.stat("replica_bases_total") == 0 and mnt.stat("replica_fenced") == 0


def test_gc_beside_a_mount_that_replicates(ws):
    """Both append to one chain."""
    vol = ws.volume(replicate="async")
    mnt = vol.mount()
    mnt.allow("cannot be replicated")
    for n in range(12):
        write(mnt / ("f%d" % n), b"x" * n)
        if n % 3:
            os.unlink(mnt / ("f%d" % n))
        if n % 4 == 0:
            ws.run("cachefs", *gc(vol, "--compact"), check=True)
    covered(mnt)
    assert mnt.stat("replica_fenced") == 0 and mnt.stat("replica_bases_total") <= 1
    want = {"f%d" % n: b"x" * n for n in range(0, 12, 3)}
    assert contents(mnt) == want
    lose_machine(vol, mnt)
    again = restore(ws, vol, "again.db")
    clean(again)
    assert contents(again.mount("ro")) == want


def test_gc_refuses_what_is_not_its_own(ws, s3, via):
    """Of a volume that has gone on elsewhere it would remove the other's objects."""
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url, replicate="async")
    removed = removed_and_not_replicated(via, vol)
    again = restore(ws, vol, "again.db")
    mnt = again.mount(env=s3.keys)
    write(mnt / "more", b"2")
    covered(mnt)
    refused(ws, *gc(vol), env=s3.keys, says="belongs to another database")
    assert removed.exists() and contents(mnt) == {"removed": b"0", "kept": b"1", "more": b"2"}
    vol.check_options = None


def test_gc_and_a_bucket_without_conditions(ws, s3, via):
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url)
    via.add("PUT", "testing/replica", skip=1, every=1, times=1, status=200, headers={"ETag": '"x"'})
    ws.run("cachefs", "config", "--replicate", "async", vol.url, env=s3.keys, check=True)
    mnt = vol.mount(env=s3.keys)
    write(mnt / "one", b"1")
    covered(mnt)
    # Both look whether an entry is there before they store it: one at a time does.
    via.add("PUT", "meta-replica/log", delay=0.2)
    for n in range(4):
        os.mkdir(mnt / ("d%d" % n))
        ws.run("cachefs", *gc(vol), env=s3.keys, check=True)
    covered(mnt)
    via.clear()
    assert mnt.stat("replica_fenced") == 0
    lose_machine(vol, mnt)
    again = restore(ws, vol, "again.db")
    clean(again)
    assert len(os.listdir(again.mount("ro", env=s3.keys))) == 5


def test_two_mounts_of_one_database(ws, s3, via):
    """Each has what both have committed replicated, and neither damages the chain."""
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url, replicate="async")
    mounts = [vol.mount(env=s3.keys) for _ in range(2)]
    via.add("PUT", "meta-replica/log", delay=0.1)
    for n in range(60):
        for i, mnt in enumerate(mounts):
            os.mkdir(mnt / ("d%d-%d" % (i, n)))
    for mnt in mounts:
        mnt.allow("cannot be replicated|is replicated again")
        covered(mnt)
        assert mnt.stat("replica_fenced") == 0
    via.clear()
    mounts[1].kill9()
    lose_machine(vol, mounts[0])
    again = restore(ws, vol, "again.db")
    clean(again)
    assert len(os.listdir(again.mount("ro", env=s3.keys))) == 120


def test_sync_answers_while_others_write(ws, s3, via):
    """Changes that are committed after an fsync began do not keep it waiting, however many there are."""
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url, replicate="sync")
    mnt = vol.mount("io-timeout=5s", env=s3.keys)
    os.mkdir(mnt / "d")
    code = (
        "import itertools, os, sys\n"
        "for n in itertools.count():\n"
        "    os.mknod('%s/f%d' % (sys.argv[1], n))\n"
    )
    writer = ws.python(code, mnt / "d")
    wait_until(lambda: os.path.exists(mnt / "d" / "f10"), 30, "the other program")
    via.add("PUT", "meta-replica/log", delay=0.2)
    fd = os.open(mnt / "one", os.O_CREAT | os.O_WRONLY)
    for n in range(3):
        os.write(fd, b"1")
        os.fsync(fd)
    os.close(fd)
    assert writer.poll() is None
    writer.kill()
    writer.wait()


@pytest.mark.deadline(240)
@pytest.mark.parametrize("how", ["full", "slow"] if os.environ.get("CACHEFS_LONG") else ["full"])
def test_the_log_has_a_bound(ws, s3, via, how):
    """However long the bucket takes nothing, or little, the log does not fill the disk. All is in the bucket
    afterwards."""
    vol = S3Volume(ws, s3, url="%s/bucket" % via.url, replicate="async")
    mnt = vol.mount(env=s3.keys)
    mnt.allow("object store|replica")
    write(mnt / "before", b"1")
    covered(mnt)
    log = vol.db.parent / (vol.db.name + "-wal")
    via.add("PUT", "meta-replica/log", **(FULL["507"] if how == "full" else {"delay": 1.5}))
    other = sqlite3.connect(vol.db, isolation_level=None, timeout=60)
    other.execute("PRAGMA wal_autocheckpoint=0")
    other.execute("CREATE TABLE ballast (v)")
    other.execute("INSERT INTO ballast VALUES (randomblob(2000000))")

    def grow(to):
        if log.stat().st_size < to:
            other.execute("UPDATE ballast SET v = randomblob(2000000)")
        return "the log is released" in mnt.log()

    # As fast as the mount looks at it: the log goes beyond the bound by what is written meanwhile.
    wait_until(lambda: grow(260 * MIB), 120, "the end of the log")
    for n in range(160):
        other.execute("UPDATE ballast SET v = randomblob(2000000)")
        if n % 20 == 0:
            os.mkdir(mnt / ("d%d" % n))
    assert log.stat().st_size < 500 * MIB
    other.execute("DROP TABLE ballast")
    other.close()
    via.clear()
    covered(mnt)
    assert mnt.stat("replica_bases_total") >= 1 and mnt.stat("replica_fenced") == 0
    lose_machine(vol, mnt)
    again = restore(ws, vol, "again.db")
    clean(again)
    names = os.listdir(again.mount("ro", env=s3.keys))
    assert sorted(names) == sorted(["before"] + ["d%d" % n for n in range(0, 160, 20)])
