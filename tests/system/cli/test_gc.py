# SPDX-License-Identifier: Apache-2.0
"""Removal of data by gc and by background jobs. Each test names the data that must stay."""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest

import cachefs
import servers
from admin import TRASH, contents, fsck, gc, junk, kinds, make_tree, refused
from cachefs import Clock, stop_process, tool, wait_until
from s3volume import S3Volume
from syscalls import data, read, write

MIB = 1 << 20


# ---- gc


def test_gc_counts_apart_and_deletes_only_what_leaked(ws):
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    keep = data(5_000_000, 1)
    write(mnt / "live", keep)
    write(mnt / "gone", data(200_000, 2))
    os.unlink(mnt / "gone")
    for i in range(8):
        with open(mnt / "small", "ab") as f:
            f.write(b"%d" % i * 1000)
    ws.run("cachefs", "compact", mnt / "small", check=True)
    mnt.umount()
    leaked = [junk(vol, "chunks/0/0/999_0_%d" % n, b"x" * n) for n in (10, 20)]
    young = junk(vol, "chunks/0/0/998_0_10", age_s=60)
    other = [
        junk(vol, "chunks/0/0/note.txt"),
        junk(vol, "chunks/0/1/997_0_10"),  # not where such a block would be
        junk(vol, "chunks/0/0/996_0_010"),
        junk(vol, "meta/dump-2026-01-01-000000.json.gz"),
        junk(vol, "999_0_10"),
    ]
    stranger = vol.bucket / "vol2/chunks/0/0/999_0_10"
    stranger.parent.mkdir(parents=True)
    write(stranger, b"x" * 10)
    os.utime(stranger, (0, 0))

    before = gc(ws, vol)
    assert before["live"]["bytes"] == 5_000_000 + 8000
    assert before["trash"] == {"objects": 1, "bytes": 200_000}
    assert before["pending"]["bytes"] >= 8000 and before["pending"]["objects"] >= 8
    assert before["leaked"] == {"objects": 2, "bytes": 30}
    assert before["recent"] == {"objects": 1, "bytes": 10}
    assert before["foreign"] == 3
    assert before["removed"]["objects"] == 0 and all(p.exists() for p in leaked)

    after = gc(ws, vol, "--delete")
    assert after["removed"]["objects"] == 2 and not any(p.exists() for p in leaked)
    assert young.exists() and stranger.exists() and all(p.exists() for p in other)
    again = gc(ws, vol, "--delete")
    assert again["leaked"]["objects"] == 0 and again["live"] == before["live"]
    assert again["trash"] == before["trash"] and again["pending"] == before["pending"]
    assert gc(ws, vol, "--delete", age=0)["removed"]["objects"] == 1 and not young.exists()
    young = junk(vol, "chunks/0/0/998_0_10", age_s=60)
    assert gc(ws, vol, "--delete", "--age=2m", age=0)["removed"]["objects"] == 0 and young.exists()
    assert gc(ws, vol, "--delete", "--age=0s")["removed"]["objects"] == 1 and not young.exists()
    assert read(vol.mount() / "live") == keep
    for p in other:
        p.unlink()


def test_gc_refuses_after_an_incomplete_listing(ws, volume):
    """The promise: no command deletes an object after an incomplete listing."""
    mnt = volume.mount()
    write(mnt / "f", data(100_000))
    mnt.umount()
    leaked = junk(volume, "chunks/0/0/900_0_10")
    loop = volume.bucket / "vol/chunks/0/zz"
    os.symlink("zz", loop)
    r = refused(ws, "gc", volume.url, "--delete", code=2, says="nothing is removed")
    assert leaked.exists() and not r.stdout
    loop.unlink()
    assert gc(ws, volume, "--delete")["removed"]["objects"] == 1


def test_gc_refuses_after_incomplete_metadata(ws, volume):
    mnt = volume.mount()
    write(mnt / "f", data(100_000))
    write(mnt / "g", data(100_000))
    mnt.umount()
    leaked = junk(volume, "chunks/0/0/900_0_10")
    ((ino, good),) = volume.sql("SELECT inode, slices FROM jfs_chunk LIMIT 1")
    volume.sql("UPDATE jfs_chunk SET slices=? WHERE inode=?", good[:-1], ino)
    objects = volume.objects()
    refused(ws, "gc", volume.url, "--delete", code=2)
    assert leaked.exists() and volume.objects() == objects
    volume.sql("UPDATE jfs_chunk SET slices=? WHERE inode=?", good, ino)
    leaked.unlink()


def test_gc_keeps_a_slice_whose_count_is_wrong(ws, volume):
    """A count of 0 on a slice that a file names: deleting it is how shared data gets lost."""
    content = data(300_000)
    mnt = volume.mount()
    write(mnt / "f", content)
    mnt.umount()
    volume.sql("UPDATE jfs_chunk_ref SET refs=0")
    r = gc(ws, volume, "--delete", age=0)
    assert r["wrong_references"] == 1 and r["removed"]["slices"] == 0
    assert read(volume.mount() / "f") == content
    assert kinds(fsck(ws, volume, "--repair")) == ["references"]


def test_gc_keeps_a_slice_whose_records_do_not_agree(ws, volume):
    """Which size is right nobody knows: objects of the wrong one are data of a file."""
    content = data(300_000)
    mnt = volume.mount()
    write(mnt / "f", content)
    ws.run("cachefs", "clone", mnt / "f", mnt / "g", check=True)
    mnt.umount()
    for path in volume.objects():
        os.utime(path, (1, 1))
    ((_, good), _) = rows = volume.sql("SELECT inode, slices FROM jfs_chunk ORDER BY inode")
    bad = good[:12] + (100_000).to_bytes(4, "big") + good[16:]
    for ino, _ in rows:
        volume.sql("UPDATE jfs_chunk SET slices=? WHERE inode=?", bad, ino)
        r = gc(ws, volume, "--delete")
        assert r["removed"]["objects"] == r["leaked"]["objects"] == 0
        volume.sql("UPDATE jfs_chunk SET slices=? WHERE inode=?", good, ino)
    assert read(volume.mount() / "f") == content


def test_gc_on_a_host_whose_clock_is_ahead(ws, volume):
    """Blocks are stored before they are named: by that clock they would be old enough to go."""
    volume.mount().umount()
    young = junk(volume, "chunks/0/0/900_0_10", age_s=0)
    old = junk(volume, "chunks/0/0/901_0_10")
    r = ws.run("cachefs", "gc", volume.url, "--delete", check=True, env=cachefs.wrong_clock(ws, 7200))
    assert young.exists() and not old.exists()
    assert "ahead of" in r.stderr
    assert list((volume.bucket / "vol/testing").glob("*")) == []
    young.unlink()


def test_gc_on_a_bucket_whose_clock_is_ahead(ws, volume):
    """Or one whose file system takes times from its clients: gc would be judging by its own clock."""
    volume.mount().umount()
    path = junk(volume, "chunks/0/0/900_0_10", age_s=5400)
    behind = cachefs.wrong_clock(ws, -7200)  # the database's, too
    ws.run("cachefs", "gc", volume.url, "--delete", check=True, env=behind)
    assert path.exists()
    ws.run("cachefs", "gc", volume.url, "--delete", check=True)
    assert not path.exists()


def whole(vol):
    """Objects but those that are being written."""
    return [path for path in vol.objects() if path.name.endswith("_%d" % (4 * MIB))]


SLEEPER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(fd, os.urandom(8 << 20))
sys.stdin.readline()
try:
    os.fsync(fd)
    print("stored")
except OSError as e:
    print(e.strerror)
"""


def put_to_sleep(vol, pid, before, n=1):
    """When it has stored n blocks beside those. Returns them; none: it has named them already."""
    records = vol.sql("SELECT * FROM jfs_chunk ORDER BY inode")
    wait_until(lambda: len(set(whole(vol)) - set(before)) >= n, 20, "a block")
    stop_process(pid)
    if vol.sql("SELECT * FROM jfs_chunk ORDER BY inode") == records:
        return set(whole(vol)) - set(before)
    os.kill(pid, signal.SIGCONT)
    return ()


def gc_after(ws, vol, clock, hours, blocks):
    clock.set(hours * 3600)
    for path in blocks:
        os.utime(path, (1, 1))
    assert gc(ws, vol, "--delete")["removed"]["objects"] == len(blocks)


@pytest.mark.parametrize("how", ("suspended", "set"))
@pytest.mark.parametrize("gone", ("all", "second"))
def test_gc_beside_a_machine_that_sleeps(ws, volume, gone, how):
    """Its writer has stored blocks, and names them when it wakes up: gc has called them leaked meanwhile.
    A first block that is young, as it was stored at the second try, does not speak for the others. The
    clock of the machine may have been set ahead instead, and with it that of its bucket."""
    clock = Clock(ws)
    mnt = volume.mount(env={**clock.env, "CLOCK_SLEPT": "1"} if how == "suspended" else clock.env)
    mnt.allow("are gone|lost|does not answer|clock of this host")
    blocks = ()
    while not blocks:
        before = whole(volume)
        f = mnt / ("f%d" % len(before))
        p = ws.python(SLEEPER, f, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        blocks = put_to_sleep(volume, mnt.pid(), before, 2)
        if not blocks:
            assert p.communicate("\n", timeout=60)[0] == "stored\n" and len(before) < 10
    old = [path for path in blocks if gone == "all" or "_1_" in path.name]
    try:
        gc_after(ws, volume, clock, 2, old)
    finally:
        os.kill(mnt.pid(), signal.SIGCONT)
    assert p.communicate("\n", timeout=60)[0] == "Input/output error\n"
    assert read(f) == b""
    wait_until(lambda: whole(volume) == before, 20, "the removal of the other block")


@pytest.mark.parametrize("how", ("suspended", "set"))
def test_gc_beside_a_compaction_that_sleeps(ws, volume, how):
    """It has stored blocks, and would put them into the place of good ones when it wakes up."""
    content, clock, blocks, n = bytearray(data(48 * MIB)), Clock(ws), (), 0
    slept = ["CLOCK_SLEPT=1"] if how == "suspended" else []
    env = ["env", *slept, *("%s=%s" % e for e in clock.env.items())]
    mnt = volume.mount()
    write(mnt / "f", content)
    while not blocks:
        with open(mnt / "f", "r+b") as f:
            f.seek(20 * MIB + n)
            f.write(b"new")
        content[20 * MIB + n : 20 * MIB + n + 3] = b"new"
        mnt.umount()
        p = ws.popen([*env, tool("cachefs"), "gc", "--compact", volume.url], stdout=subprocess.DEVNULL)
        blocks = put_to_sleep(volume, p.pid, whole(volume))
        if not blocks:
            assert p.wait(60) == 0 and n < 10
            mnt, n = volume.mount(), n + 1
    try:
        gc_after(ws, volume, clock, 2, blocks)
    finally:
        os.kill(p.pid, signal.SIGCONT)
    assert p.wait(60) == 0
    assert read(volume.mount() / "f") == content


def test_gc_ends_what_was_deleted(ws, volume):
    mnt = volume.mount("no-bgjob")
    write(mnt / "keep", data(100_000, 1))
    write(mnt / "old", data(5_000_000, 2))
    mnt.umount()
    # deleted two hours ago by a client that did not come to remove the data
    ((ino,),) = volume.sql("SELECT inode FROM jfs_edge WHERE name=?", b"old")
    volume.sql("DELETE FROM jfs_edge WHERE inode=?", ino)
    volume.sql("DELETE FROM jfs_node WHERE inode=?", ino)
    volume.sql("INSERT INTO jfs_delfile VALUES(?, 5000000, ?)", ino, int(time.time()) - 7200)
    volume.sql("UPDATE jfs_counter SET value=106496 WHERE name='usedSpace'")
    volume.sql("UPDATE jfs_counter SET value=1 WHERE name='totalInodes'")
    volume.sql("UPDATE jfs_counter SET value=102400 WHERE name='usedSpace'")
    volume.sql("UPDATE jfs_dir_stats SET data_length=100000, used_space=102400, used_inodes=1")
    r = gc(ws, volume)
    assert r["pending"]["bytes"] == 5_000_000 and r["leaked"]["objects"] == 0
    assert len(volume.objects()) == 3
    r = gc(ws, volume, "--delete")
    assert r["removed"]["files"] == 1 and r["removed"]["slices"] == 1
    assert len(volume.objects()) == 1
    assert volume.sql("SELECT count(*) FROM jfs_delfile") == [(0,)]


def test_gc_removes_clones_given_up(ws, volume):
    mnt = volume.mount()
    files = make_tree(mnt.path)
    os.mkdir(mnt / "x")
    make_tree(mnt / "x")
    mnt.umount()
    # as a clone looks that was cut off: complete below, without a name
    ((ino,),) = volume.sql("SELECT inode FROM jfs_edge WHERE name=?", b"x")
    volume.sql("DELETE FROM jfs_edge WHERE inode=?", ino)
    volume.sql("UPDATE jfs_node SET nlink=nlink-1 WHERE inode=1")
    volume.sql("UPDATE jfs_dir_stats SET used_space=used_space-4096, used_inodes=used_inodes-1 "
               "WHERE inode=1")
    volume.sql("INSERT INTO jfs_detached_node VALUES(?, ?)", ino, int(time.time()) - 3600)
    assert fsck(ws, volume)["found"] == 0
    assert gc(ws, volume, "--delete")["removed"]["clones"] == 0
    volume.sql("UPDATE jfs_detached_node SET added=added-86400")
    assert gc(ws, volume)["removed"]["clones"] == 0
    assert gc(ws, volume, "--delete")["removed"]["clones"] == 1
    assert fsck(ws, volume)["found"] == 0
    mnt = volume.mount()
    assert {k: v for k, v in contents(mnt.path).items() if k != "a/hard"} == files
    assert volume.sql("SELECT count(*) FROM jfs_node WHERE inode=?", ino) == [(0,)]


def test_gc_compacts(ws, volume):
    mnt = volume.mount()
    want = b""
    for i in range(20):
        with open(mnt / "f", "ab") as f:
            f.write(data(1000, i))
        want += data(1000, i)
    mnt.umount()
    r = gc(ws, volume, "--compact", "--delete", age=0)
    assert r["compacted_chunks"] == 1 and r["leaked"]["objects"] == 0
    ((slices,),) = volume.sql("SELECT slices FROM jfs_chunk")
    assert len(slices) == 24
    assert len(volume.objects()) == 1
    assert read(volume.mount() / "f") == want


def test_gc_compacts_beside_damage(ws, volume):
    """A chunk that cannot be read keeps no other from being compacted, and nothing from being removed."""
    mnt = volume.mount()
    for name in "abc":
        with open(mnt / name, "wb", buffering=0) as f:
            for i in range(3):
                f.write(data(1000, i))
                os.fsync(f.fileno())
    ino = os.stat(mnt / "a").st_ino
    mnt.umount()
    damaged = next(o for o in volume.objects() if o.name.startswith("1_"))
    os.truncate(damaged, 500)
    r = ws.run("cachefs", "gc", "--compact", "--delete", "--json", volume.url)
    assert r.returncode == 2 and "chunk 0 of inode %d cannot be compacted" % ino in r.stderr
    r = json.loads(r.stdout)
    assert (r["compacted_chunks"], r["not_compacted_chunks"]) == (2, 1)
    assert len(volume.objects()) == 3 + 2
    mnt = volume.mount()
    assert read(mnt / "b") == read(mnt / "c") == b"".join(data(1000, i) for i in range(3))
    damaged.write_bytes(data(1000))
    assert read(mnt / "a") == read(mnt / "b")


@pytest.mark.deadline(180)
def test_gc_and_fsck_beside_a_busy_mount(ws):
    """On a volume in use nothing is reported that is not there, and nothing is lost."""
    vol = ws.volume(trash_days=0)
    mnt = vol.mount()
    code = """
import os, random, sys
r = random.Random(int(sys.argv[2])); top = os.path.join(sys.argv[1], sys.argv[2])
os.makedirs(top); want = {}
while os.getppid() == int(sys.argv[3]) and not os.path.exists(sys.argv[1] + "/stop"):
    n = "d%d/f%d" % (r.randrange(5), r.randrange(20)); p = os.path.join(top, n)
    os.makedirs(os.path.dirname(p), exist_ok=True)
    op = r.randrange(4)
    if op == 0 and n in want:
        os.unlink(p); del want[n]
    elif op == 1 and n in want:
        m = "d%d/g%d" % (r.randrange(5), r.randrange(20)); q = os.path.join(top, m)
        os.makedirs(os.path.dirname(q), exist_ok=True)
        os.rename(p, q); want[m] = want.pop(n)
    else:
        b = r.randbytes(r.randrange(20000))
        with open(p, "ab") as f: f.write(b)
        want[n] = want.get(n, b"") + b
for n, b in want.items():
    assert open(os.path.join(top, n), "rb").read() == b, n
"""
    workers = [ws.python(code, mnt, str(i), str(os.getpid())) for i in range(2)]
    end = time.monotonic() + 8
    while time.monotonic() < end:
        r = fsck(ws, vol)
        assert r["found"] == 0, r["problems"]
        r = gc(ws, vol, "--delete", "--compact")
        assert r["leaked"]["objects"] == 0, r
    write(mnt / "stop", b"")
    for p in workers:
        assert p.wait(60) == 0
    mnt.umount()
    assert fsck(ws, vol)["found"] == 0


@pytest.mark.parametrize("left", [False, True], ids=["removed meanwhile", "still named"])
@pytest.mark.module("postgresql")
def test_gc_of_a_file_that_is_removed_between_its_looks(ws, left):
    """Its record was read before, its count after: that is no damage. A record that stays is."""
    cachefs.need_engine("postgres")
    db = servers.postgres_server().database()
    ws.cleanups.append(db.drop)
    vol = cachefs.Volume(ws, url=db.url, trash_days=0)
    mnt = vol.mount()
    write(mnt / "f", data(300_000))
    mnt.umount()
    c = db.connect()
    c.autocommit = False
    with c.cursor() as cur:
        cur.execute("LOCK TABLE jfs_chunk_ref IN ACCESS EXCLUSIVE MODE")
        argv = [cachefs.tool("cachefs"), "gc", "--json", vol.url, "--bucket", str(vol.bucket) + "/"]
        p = ws.popen(argv, stdout=subprocess.PIPE, text=True)
        waiting = "SELECT 1 FROM pg_locks WHERE relation='jfs_chunk_ref'::regclass AND NOT granted"
        wait_until(lambda: cur.execute(waiting) or cur.fetchone(), 60, "gc at the references")
        if not left:
            cur.execute("DELETE FROM jfs_chunk")
        cur.execute("UPDATE jfs_chunk_ref SET refs=0")
    c.commit()
    c.close()
    out, _ = p.communicate(timeout=120)
    assert p.returncode == 0 and json.loads(out)["wrong_references"] == left, out


# ---- what mounts do by themselves


def test_trash_ends_by_itself(ws):
    """An hour of the trash goes when its days are over, with its objects; a younger one stays. The
    conformance suite does the same in no time."""
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    write(mnt / "old", data(100_000))
    os.makedirs(mnt / "d/sub")
    write(mnt / "d/sub/f", data(100_000))
    os.unlink(mnt / "old")
    shutil.rmtree(mnt / "d")
    mnt.umount()
    assert len(vol.objects()) == 2
    vol.sql("UPDATE jfs_edge SET name=? WHERE parent=?", b"2020-01-01-07", TRASH)
    mnt = vol.mount()
    write(mnt / "young", data(100_000))
    os.unlink(mnt / "young")
    wait_until(lambda: len(vol.objects()) == 1, 60, "the end of the old hour")
    (hour,) = os.listdir(mnt / ".trash")
    assert hour != "2020-01-01-07" and len(os.listdir(mnt / ".trash" / hour)) == 1


def test_an_entry_that_cannot_be_removed_does_not_keep_the_trash(ws):
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    for n in range(9):
        write(mnt / ("f%d" % n), data(100_000))
        os.unlink(mnt / ("f%d" % n))
    hours = os.listdir(mnt / ".trash")
    kept = sorted(os.listdir(mnt / ".trash" / hours[0]))[0]
    mnt.umount()
    vol.sql("UPDATE jfs_edge SET name=? WHERE parent=?", b"2020-01-01-07", TRASH)
    vol.sql("UPDATE jfs_node SET flags=1 WHERE inode=(SELECT inode FROM jfs_edge WHERE name=?)", kept.encode())  # immutable
    mnt = vol.mount()
    mnt.allow("was not emptied")
    wait_until(lambda: len(vol.objects()) == 1, 60, "the end of the other entries")
    wait_until(lambda: "an expired hour of the trash was not emptied" in mnt.log(), 60, "the message")
    assert os.listdir(mnt / ".trash/2020-01-01-07") == [kept]


def test_trash_stays_when_the_clock_is_set_ahead(ws):
    """Between two looks at the database's clock: the trash is emptied only when both clocks say so."""
    clock = Clock(ws)
    vol = ws.volume(trash_days=1)
    mnt = vol.mount("heartbeat=10m", env=clock.env)
    write(mnt / "f", data(100_000))
    os.unlink(mnt / "f")
    (hour,) = os.listdir(mnt / ".trash")
    clock.set(10 * 86400)
    done = "SELECT * FROM jfs_counter WHERE name='lastCleanupTrash' AND value>0"
    wait_until(lambda: vol.sql(done), 60, "the job")
    mnt.umount()
    clock.set(0)
    assert len(vol.objects()) == 1 and os.listdir(vol.mount() / ".trash" / hour)


def test_deletions_left_at_an_unmount_go_on(ws):
    """Mounts that are too short to remove what was deleted leave no heap of objects: the next one
    that stays goes on within a minute, and one of several does."""
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    write(mnt / "replaced", data(50_000))
    for i in range(8):
        with open(mnt / "replaced", "r+b") as f:
            f.seek(5000 * i)
            f.write(data(1000, i))
    ws.run("cachefs", "compact", mnt.path, check=True)
    for i in range(20):
        write(mnt / ("f%d" % i), data(1000))
    # objects cannot be removed: what is deleted stays, as when there is no time
    chunks = vol.bucket / vol.name / "chunks"
    subprocess.run(["mount", "--bind", chunks, chunks], check=True)
    ws.cleanups.append(lambda: subprocess.run(["umount", "-q", chunks]))
    subprocess.run(["mount", "-o", "remount,bind,ro", chunks], check=True)
    ws.run("cachefs", "config", vol.url, "--trash-days", "0", "--force", check=True)
    mnt.umount()
    mnt = vol.mount()
    for i in range(20):
        os.unlink(mnt / ("f%d" % i))
    mnt.umount()
    subprocess.run(["umount", chunks], check=True)
    # one file, too, whose record only says that it was deleted
    mnt = vol.mount("no-bgjob")
    write(mnt / "last", data(1000))
    (ino,) = vol.sql("SELECT inode FROM jfs_edge WHERE name=?", b"last")[0]
    mnt.umount()
    for table in ("edge", "node"):
        vol.sql("DELETE FROM jfs_%s WHERE inode=?" % table, ino)
    vol.sql("INSERT INTO jfs_delfile VALUES(?, 1000, ?)", ino, int(time.time()))
    vol.sql("UPDATE jfs_counter SET value=value-1 WHERE name='totalInodes'")
    vol.sql("UPDATE jfs_counter SET value=value-4096 WHERE name='usedSpace'")
    vol.sql("UPDATE jfs_dir_stats SET used_inodes=used_inodes-1, used_space=used_space-4096,"
            " data_length=data_length-1000")
    now = int(time.time())
    for job in ("lastCleanupFiles", "nextCleanupSlices", "lastCleanupTrash"):
        vol.sql("INSERT OR REPLACE INTO jfs_counter VALUES(?, ?)", job, now)
    left = len(vol.objects())
    assert left >= 30
    mnt = vol.mount()
    wait_until(lambda: len(vol.objects()) == 1, 60, "the end of what was left")
    # One request for each object; what the job for files frees, the job for slices may find, too.
    assert left - 1 <= mnt.stat('object_requests_total{method="delete"}') <= left


def test_compaction_asks_for_whole_ranges(ws, s3, via):
    """A bucket is paid for its requests: one for each piece of a slice that is copied."""
    vol = S3Volume(ws, s3)
    mnt = vol.mount()
    step, content = MIB - 5000, bytearray(8 * MIB)
    with open(mnt / "f", "wb") as f:
        for i in range(8):
            content[i * step : i * step + MIB] = data(MIB, i)
            os.pwrite(f.fileno(), content[i * step : i * step + MIB], i * step)
            os.fsync(f.fileno())
    del content[7 * step + MIB :]
    mnt.umount()
    mnt = vol.mount("bucket=%s/bucket" % via.url)
    ws.run("cachefs", "compact", mnt / "f", check=True)
    # eight slices, of which one is in both blocks of 4 MiB
    assert len(via.seen("GET", ".*/chunks/")) == 9
    assert len(via.seen("PUT", ".*/chunks/")) == 2
    mnt = mnt.remount()
    assert read(mnt / "f") == content


def test_compaction_in_the_background(ws, volume):
    """Many small writes do not make reading slow for ever."""
    mnt = volume.mount()
    content = bytearray(data(200_000))
    write(mnt / "f", bytes(content))
    fd = os.open(mnt / "f", os.O_RDWR)
    for i in range(400):
        off = i * 499
        content[off : off + 300] = data(300, i)
        os.pwrite(fd, content[off : off + 300], off)
        os.fsync(fd)

    def records():
        return volume.sql("SELECT max(length(slices)) / 24 FROM jfs_chunk")[0][0]

    wait_until(lambda: records() < 110, 40, "compaction")
    wait_until(lambda: len(volume.objects()) < 110, 40, "the end of what it replaced")
    assert read(mnt / "f") == content
    os.close(fd)
    mnt = mnt.remount()
    assert read(mnt / "f") == content
