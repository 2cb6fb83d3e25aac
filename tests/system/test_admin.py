# SPDX-License-Identifier: Apache-2.0
"""Commands of an administrator: config, fsck, gc, rmr, restore, clone, compact, summary, quota,
destroy. Most of them remove things: each test says what must not be among them."""

import errno
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import time

import pytest

import cachefs
import fixtures
from cachefs import tool, wait_until
from syscalls import data, fails, read, sha, user, write

COMMANDS = (
    "config fsck gc rmr restore clone compact summary quota destroy".split()
)
TRASH = 0x7FFFFFFF10000000
DAMAGED = 3


def ask(ws, *argv, code=0, **kw):
    """Runs a command with --json and returns what it printed."""
    r = ws.run("cachefs", *argv, "--json", **kw)
    assert r.returncode == code, "%s: exit %d\n%s%s" % (argv, r.returncode, r.stdout, r.stderr)
    return json.loads(r.stdout) if r.stdout.strip() else None


def refused(ws, *argv, says="", code=None, **kw):
    r = ws.run("cachefs", *argv, **kw)
    assert r.returncode != 0 and r.stderr.strip(), (argv, r.stdout)
    assert code is None or r.returncode == code, r.stderr
    assert says in r.stderr, r.stderr
    return r


def gc(ws, vol, *options, code=0, age=None):
    env = {} if age is None else {"JFS_GC_SKIPPEDTIME": str(age)}
    return ask(ws, "gc", vol.url, "--bucket", str(vol.bucket) + "/", *options, code=code, env=env)


def fsck(ws, vol, *options, code=0):
    return ask(ws, "fsck", vol.url, "--bucket", str(vol.bucket) + "/", *options, code=code)


def kinds(report):
    return sorted({p["kind"] for p in report["problems"]})


def make_tree(root):
    """A little of everything; returns {path: content}."""
    files = {"a/one": data(100_000, 1), "a/b/two": data(3_000_000, 2), "three": b"3", "empty": b""}
    for path, content in files.items():
        os.makedirs(os.path.dirname(root / path), exist_ok=True)
        write(root / path, content)
    os.symlink("three", root / "link")
    os.link(root / "three", root / "a/hard")
    os.mkdir(root / "a/nothing", 0o700)
    os.setxattr(root / "three", "user.note", b"\0value")
    os.utime(root / "three", ns=(1_111_111_111_000_000_001, 1_222_222_222_000_000_002))
    return files


def ls(path):
    """Names, without those that a mount shows of itself in its root."""
    return sorted(n for n in os.listdir(path) if not n.startswith("."))


def contents(root):
    out = {}
    for d, dirs, names in os.walk(root):
        dirs[:] = [n for n in dirs if not n.startswith(".")]
        for f in names:
            path = os.path.join(d, f)
            if not f.startswith(".") and not os.path.islink(path):
                out[os.path.relpath(path, root)] = read(path)
    return out


def hour(mnt):
    (name,) = os.listdir(mnt / ".trash")
    return name


def junk(vol, key, content=b"x" * 10, age_s=7200):
    path = vol.bucket / vol.name / key
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, content)
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


# ---- all of them


@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_usage(ws, command):
    r = ws.run("cachefs", command, "--help")
    assert r.returncode == 0 and "cachefs " + command in r.stdout and "--json" in r.stdout
    refused(ws, command, code=1)
    refused(ws, command, "--no-such-option", "x", code=1)
    assert command in ws.run("cachefs", "--help").stdout


@pytest.mark.parametrize("command", ["config", "fsck", "gc"])
def test_not_a_volume(ws, command):
    refused(ws, command, "sqlite3://%s/none.db" % ws.dir, code=2)
    assert not ws.path("none.db").exists()


@pytest.mark.parametrize("command", ["rmr", "compact", "summary"])
def test_not_in_a_mount(ws, command):
    ws.path("d").mkdir()
    for path in (ws.path("d"), ws.path("nothing"), "/proc"):
        refused(ws, command, path, code=1)
    assert ws.path("d").exists()


def test_progress_is_for_terminals_only(ws, volume):
    volume.mount().umount()
    assert "\r" not in ws.run("cachefs", "gc", volume.url, check=True).stderr
    mine, theirs = pty.openpty()
    junk(volume, "chunks/0/0/1_0_10")
    p = ws.popen([tool("cachefs"), "gc", volume.url], stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    while select.select([mine], [], [], 20)[0]:
        try:
            piece = os.read(mine, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    assert p.wait(20) == 0
    os.close(mine)
    assert b"objects listed: 1" in shown
    volume.check_options["leaks"] = "warn"


# ---- config


def test_config_shows_and_keeps_secrets(ws):
    vol = ws.volume(format=False)
    ws.run("cachefs", *vol.format_args(trash_days=1), check=True, env={"SECRET_KEY": "geheim", "ACCESS_KEY": "me"})
    for r in (ws.run("cachefs", "config", vol.url), ws.run("cachefs", "config", vol.url, "--json")):
        assert r.returncode == 0 and "geheim" not in r.stdout + r.stderr and "vol" in r.stdout
    sealed = vol.setting()["SecretKey"]
    ask(ws, "config", vol.url, "--trash-days", "5")
    s = vol.setting()
    assert s["TrashDays"] == 5 and s["AccessKey"] == "me" and "geheim" not in json.dumps(s)
    assert s["SecretKey"] and sealed
    ask(ws, "config", vol.url, "--keys", env={"SECRET_KEY": "anders", "ACCESS_KEY": "you"})
    assert vol.setting()["AccessKey"] == "you"
    assert ask(ws, "config", vol.url)["SecretKey"] == "***"


def test_config_changes_what_may_change(ws, volume):
    mnt = volume.mount()
    write(mnt / "f", data(3_000_000))
    mnt.umount()
    s = ask(
        ws, "config", volume.url, "--capacity", "2G", "--inodes", "100", "--upload-limit", "7",
        "--download-limit", "8", "--enable-acl", "true", "--max-client-version", "9.0",
    )
    assert (s["Capacity"], s["Inodes"], s["UploadLimit"], s["DownloadLimit"]) == (2 << 30, 100, 7, 8)
    assert s["EnableACL"] is True and s["MaxClientVersion"] == "9.0"
    before = volume.setting()
    refused(ws, "config", volume.url, "--enable-acl", "false")
    refused(ws, "config", volume.url, "--capacity", "1M", says="already")
    refused(ws, "config", volume.url, "--min-client-version", "9.0")
    refused(ws, "config", volume.url, "--bucket", ws.path("elsewhere"))
    assert volume.setting() == before
    assert ask(ws, "config", volume.url, "--capacity", "1M", "--force")["Capacity"] == 1 << 20
    assert "Capacity" not in ask(ws, "config", volume.url, "--capacity", "0")


def test_config_trash_goes_only_by_force(ws):
    vol = ws.volume(trash_days=1)
    refused(ws, "config", vol.url, "--trash-days", "0", says="--force")
    assert vol.setting()["TrashDays"] == 1
    ask(ws, "config", vol.url, "--trash-days", "0", "--force")
    assert vol.setting()["TrashDays"] == 0


def test_config_follows_moved_objects(ws, volume):
    content = data(100_000)
    mnt = volume.mount()
    write(mnt / "f", content)
    mnt.umount()
    shutil.move(volume.bucket, ws.path("moved"))
    ask(ws, "config", volume.url, "--bucket", ws.path("moved"))
    volume.bucket = ws.path("moved")
    mnt = volume.mount()
    assert read(mnt / "f") == content


def test_config_dir_stats_start_afresh(ws, volume):
    mnt = volume.mount()
    make_tree(mnt.path)
    mnt.umount()
    ask(ws, "config", volume.url, "--dir-stats", "false")
    mnt = volume.mount()
    write(mnt / "a/later", data(9000))
    mnt.umount()
    ask(ws, "config", volume.url, "--dir-stats", "true")
    assert volume.sql("SELECT count(*) FROM jfs_dir_stats") == [(0,)]
    mnt = volume.mount()
    write(mnt / "a/last", b"1")
    assert fsck(ws, volume)["found"] == 0


def test_config_trash_may_begin_later(ws, volume):
    """A volume of before the trash gets one; what is removed from then on can be restored."""
    assert volume.sql("SELECT count(*) FROM jfs_node WHERE inode=?", TRASH) == [(0,)]
    mnt = volume.mount("heartbeat=1")
    ask(ws, "config", volume.url, "--trash-days", "2")
    row = volume.sql("SELECT type, mode, parent FROM jfs_node WHERE inode=?", TRASH)
    assert row == [(2, 0o555, 1)]

    def trashed():
        write(mnt / "f", b"x")
        os.unlink(mnt / "f")
        return volume.sql("SELECT count(*) FROM jfs_edge WHERE parent>?", TRASH) != [(0,)]

    wait_until(trashed, 20, "the trash")
    mnt.umount()
    ask(ws, "config", volume.url, "--trash-days", "0", "--force")
    ask(ws, "config", volume.url, "--trash-days", "1")
    mnt = volume.mount()
    (hour,) = os.listdir(mnt / ".trash")
    name = os.listdir(mnt / ".trash" / hour)[0]
    assert read(mnt / ".trash" / hour / name) == b"x"


def test_config_summary_without_dir_stats(ws, volume):
    """Figures are counted when nobody keeps them, and right again when somebody does."""
    mnt = volume.mount()
    os.makedirs(mnt / "d/sub")
    write(mnt / "d/f", data(10_000))
    mnt.umount()
    ask(ws, "config", volume.url, "--dir-stats", "false")
    mnt = volume.mount("heartbeat=1")
    write(mnt / "d/g", data(10_000))
    os.truncate(mnt / "d/f", 100_000)
    os.unlink(mnt / "d/g")
    write(mnt / "d/sub/h", data(5000))

    def summary(*options):
        figures = ask(ws, "summary", *options, mnt / "d")
        del figures["name"]
        return figures

    before = summary()
    assert before == summary("--strict")
    mnt.umount()
    ask(ws, "config", volume.url, "--dir-stats", "true")
    mnt = volume.mount()
    assert summary() == before
    os.rename(mnt / "d/sub/h", mnt / "d/h")
    os.mkdir(mnt / "d/new")
    write(mnt / "d/new/i", b"1")
    after = summary()
    assert after == summary("--strict") != before
    mnt.umount()
    assert fsck(ws, volume)["found"] == 0


def test_config_dir_stats_and_quotas_belong_together(ws, volume):
    mnt = volume.mount()
    os.mkdir(mnt / "d")
    mnt.umount()
    ask(ws, "quota", "set", volume.url, "--path", "/d", "--capacity", "1M")
    refused(ws, "config", volume.url, "--dir-stats", "false", says="quota delete")
    assert volume.setting()["DirStats"] is True
    # as an older client may have left it
    ask(ws, "config", volume.url, "--dir-stats", "false", "--force")
    mnt = volume.mount()
    write(mnt / "d/f", data(900_000))
    mnt.umount()
    volume.sql("UPDATE jfs_dir_quota SET used_space=1, used_inodes=77")
    ask(ws, "config", volume.url, "--dir-stats", "true")
    assert ask(ws, "quota", "check", volume.url) == []
    mnt = volume.mount()
    with fails("EDQUOT"):
        write(mnt / "d/g", data(200_000))


def test_owner_quotas_count_what_was_there(ws, volume):
    """The first quota of an owner finds files that nobody has counted, under a mount too."""
    mnt = volume.mount("heartbeat=1")
    os.mkdir(mnt / "d")
    for i in range(5):
        write(mnt / "d" / str(i), data(10_000))
        os.chown(mnt / "d" / str(i), 1000, 1000)
    os.link(mnt / "d/0", mnt / "link")  # counts once
    # rows of an earlier time are not believed
    volume.sql("INSERT INTO jfs_user_group_quota (qtype, qkey, max_space, max_inodes, used_space, "
               "used_inodes) VALUES (1, 1000, -1, -1, 99, 99)")
    (q,) = ask(ws, "quota", "set", volume.url, "--uid", "1000", "--inodes", "6")
    assert (q["used_bytes"], q["used_inodes"]) == (5 * 12288, 5)

    def full():
        try:
            write(mnt / "d/x", b"")
            os.chown(mnt / "d/x", 1000, 1000)
            with user(1000, 1000):
                write(mnt / "d/0more", b"")
        except OSError as e:
            return e.errno == errno.EDQUOT
        finally:
            for n in ("d/x", "d/0more"):
                if os.path.exists(mnt / n):
                    os.unlink(mnt / n)

    os.chmod(mnt / "d", 0o777)
    wait_until(full, 30, "the limit")
    mnt.umount()
    assert ask(ws, "quota", "repair", volume.url) is not None
    assert ask(ws, "quota", "check", volume.url) == []


def test_config_reaches_a_mount(ws, volume):
    mnt = volume.mount("heartbeat=1")
    ask(ws, "config", volume.url, "--inodes", "3")

    def full():
        try:
            os.mkdir(mnt / ("d%d" % len(ls(mnt))))
        except OSError as e:
            return e.errno
        return None

    assert wait_until(full, 20, "the limit") == errno.ENOSPC


# ---- what mounts do by themselves


@pytest.mark.skipif(not os.environ.get("CACHEFS_LONG"), reason="five minutes; CACHEFS_LONG=1")
@pytest.mark.deadline(600)
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
    vol.sql("UPDATE jfs_counter SET value=0 WHERE name='lastCleanupTrash'")
    mnt = vol.mount()
    write(mnt / "young", data(100_000))
    os.unlink(mnt / "young")
    wait_until(lambda: len(vol.objects()) == 1, 400, "the end of the old hour")
    (hour,) = os.listdir(mnt / ".trash")
    assert hour != "2020-01-01-07" and len(os.listdir(mnt / ".trash" / hour)) == 1


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


# ---- fsck


def test_fsck_of_a_healthy_volume(ws):
    vol = ws.volume(trash_days=1, compress="lz4")
    mnt = vol.mount()
    make_tree(mnt.path)
    with open(mnt / "sparse", "wb") as f:
        f.truncate(1 << 40)
        f.seek(1 << 39)
        f.write(b"x")
    held = open(mnt / "held", "wb+")
    held.write(b"1" * 5000)
    held.flush()
    os.unlink(mnt / "held")
    os.unlink(mnt / "empty")
    r = fsck(ws, vol)
    assert r["found"] == 0 and r["checked"]["inodes"] > 10 and r["checked"]["objects"] >= 5
    held.close()
    mnt.umount()
    assert fsck(ws, vol, "--repair", "--sync-dir-stat")["found"] == 0
    assert "no problems" in ws.run("cachefs", "fsck", vol.url, check=True).stdout


@pytest.mark.parametrize("name", fixtures.SQLITE)
def test_fsck_and_gc_of_the_other_clients_volumes(ws, name):
    vol = ws.fixture(name)
    vol.check_options = None
    env = {"JFS_RSA_PASSPHRASE": "fixture-passphrase"}
    bucket = ["--storage", "file", "--bucket", str(vol.bucket)+ "/"]
    r = ws.run("cachefs", "fsck", vol.url, *bucket, "--json", env=env)
    assert r.returncode == 0, r.stdout + r.stderr
    g = ask(ws, "gc", vol.url, *bucket, env=env)
    assert g["leaked"]["objects"] == 0 and g["foreign"] == 0
    assert g["live"]["objects"] > 5


DAMAGE = {
    "nlink": ["UPDATE jfs_node SET nlink=nlink+3 WHERE inode IN (1, {three})"],
    "parent": ["UPDATE jfs_node SET parent=77 WHERE inode={two}"],
    "type": ["UPDATE jfs_edge SET type=3 WHERE inode={two}"],
    "dirstat": ["UPDATE jfs_dir_stats SET used_space=used_space+8192 WHERE inode={a}"],
    "usage": ["UPDATE jfs_counter SET value=value-40960 WHERE name='usedSpace'"],
    "references": ["UPDATE jfs_chunk_ref SET refs=refs+1"],
    "orphan": [
        "UPDATE jfs_node SET nlink=0 WHERE inode={two}",
        "DELETE FROM jfs_edge WHERE inode={two}",
    ],
    "name": ["DELETE FROM jfs_node WHERE inode IN ({b}, {one})"],
    "data": ["DELETE FROM jfs_node WHERE inode={two}", "DELETE FROM jfs_edge WHERE inode={two}"],
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_fsck_finds_and_repairs(ws, volume, kind):
    """Each damage is named, left alone without --repair, and put right with it."""
    mnt = volume.mount()
    files = make_tree(mnt.path)
    ino = {
        name.replace("/", "_"): os.lstat(mnt / path).st_ino
        for name, path in (("a", "a"), ("b", "a/b"), ("one", "a/one"), ("two", "a/b/two"),
                           ("three", "three"))
    }
    mnt.umount()
    for query in DAMAGE[kind]:
        volume.sql(query.format(**ino))
    state = list(volume.sql("SELECT * FROM jfs_node ORDER BY 1"))
    r = fsck(ws, volume, code=DAMAGED)
    assert kind in kinds(r) and r["repaired"] == 0
    assert all(p["text"] for p in r["problems"])
    assert list(volume.sql("SELECT * FROM jfs_node ORDER BY 1")) == state
    text = ws.run("cachefs", "fsck", volume.url)
    assert text.returncode == DAMAGED and kind + ":" in text.stdout
    r = fsck(ws, volume, "--repair")
    assert r["found"] == r["repaired"] > 0
    r = fsck(ws, volume, "--sync-dir-stat", "--repair")
    assert kinds(r) in ([], ["dirstat"]), r
    assert fsck(ws, volume)["found"] == 0
    mnt = volume.mount()
    lost = {"name": {"a/one"}, "orphan": {"a/b/two"}, "data": {"a/b/two"}}.get(kind, set())
    got = contents(mnt.path)
    assert {k: v for k, v in got.items() if k != "a/hard"} == {
        k: v for k, v in files.items() if k not in lost
    }
    if kind in ("orphan", "data"):
        volume.check_options["leaks"] = "warn"


def test_fsck_finds_missing_and_damaged_blocks(ws, volume):
    mnt = volume.mount()
    for name in ("whole", "lost", "short"):
        write(mnt / name, data(9_000_000, len(name)))
    ws.run("cachefs", "clone", mnt / "lost", mnt / "copy", check=True)
    objects = {
        name: json.loads(ws.run("cachefs", "info", mnt / name, "--json", check=True).stdout)
        ["chunks"][0]["slices"][0]["objects"]
        for name in ("lost", "short")
    }
    mnt.umount()
    lost, short = (volume.bucket / objects[n][1] for n in ("lost", "short"))
    assert lost.exists()
    lost.unlink()
    os.truncate(short, 1000)
    for options in ([], ["--repair"]):
        r = fsck(ws, volume, *options, code=DAMAGED)
        assert kinds(r) == ["block"] and r["found"] == 2
        paths = {p["path"] for p in r["problems"]}
        assert "/short" in paths and paths & {"/lost", "/copy"}
        assert any(lost.name in p["text"] for p in r["problems"])
    assert fsck(ws, volume, "--no-data")["found"] == 0
    assert fsck(ws, volume, "--path", "/whole")["found"] == 0
    assert fsck(ws, volume, "--path", "/short", code=DAMAGED)["found"] == 1
    assert fsck(ws, volume, "--path", "/")["found"] == 0
    assert fsck(ws, volume, "--path", "/", "--recursive", code=DAMAGED)["found"] == 3
    refused(ws, "fsck", volume.url, "--path", "/nothing", code=2)
    volume.check_options = None


def test_fsck_finds_impossible_records(ws, volume):
    mnt = volume.mount()
    write(mnt / "f", data(1000))
    write(mnt / "g", data(1000))
    mnt.umount()
    rows = volume.sql("SELECT inode, slices FROM jfs_chunk ORDER BY inode")
    bad = bytearray(rows[0][1])
    bad[20:24] = (5000).to_bytes(4, "big")  # more than the slice has
    volume.sql("UPDATE jfs_chunk SET slices=? WHERE inode=?", bytes(bad), rows[0][0])
    volume.sql("UPDATE jfs_chunk SET slices=? WHERE inode=?", rows[1][1][:-1], rows[1][0])
    r = fsck(ws, volume, code=DAMAGED)
    assert {p["path"] for p in r["problems"] if p["kind"] == "record"} == {"/f", "/g"}
    volume.check_options = None


# ---- rmr


def test_rmr_dry_run_removes_nothing(ws, mnt):
    files = make_tree(mnt.path)
    r = ask(ws, "rmr", "--dry-run", mnt / "a", mnt / "link")
    assert r == {"removed": 7, "failed": 0, "dry_run": True}
    assert ask(ws, "rmr", "--dry-run", "--skip-trash", mnt / "a")["removed"] == 6
    assert {k: v for k, v in contents(mnt.path).items() if k != "a/hard"} == files


@pytest.mark.parametrize("skip", [False, True])
def test_rmr(ws, skip):
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    make_tree(mnt.path)
    os.mkdir(mnt / "keep")
    os.symlink("../keep", mnt / "a/to-keep")
    write(mnt / "keep/f", b"kept")
    held = open(mnt / "a/one", "rb")
    options = ["--skip-trash"] if skip else []
    assert ask(ws, "rmr", *options, mnt / "a") == {"removed": 7, "failed": 0, "dry_run": False}
    assert ls(mnt) == ["empty", "keep", "link", "three"]
    os.mkdir(mnt / "a")  # the kernel has forgotten the name
    assert read(mnt / "keep/f") == b"kept" and read(mnt / "three") == b"3"
    assert held.read() == data(100_000, 1)
    held.close()
    trashed = sum(len(os.listdir(mnt / ".trash" / h)) for h in os.listdir(mnt / ".trash"))
    assert trashed == (0 if skip else 7)
    assert ask(ws, "rmr", *options, mnt / "link")["removed"] == 1  # not what it points to
    assert os.path.exists(mnt / "three")
    refused(ws, "rmr", *options, mnt, says="root")
    refused(ws, "rmr", *options, mnt / "nothing")


@pytest.mark.parametrize("skip", [False, True])
def test_rmr_goes_on_behind_what_it_cannot_remove(ws, volume, skip):
    mnt = volume.mount()
    for d in "abc":
        os.makedirs(mnt / "t" / d / "x")
        write(mnt / "t" / d / "f", b"1")
    volume.sql("UPDATE jfs_node SET flags=1 WHERE inode=?", os.stat(mnt / "t/b/f").st_ino)
    r = ws.run("cachefs", "rmr", *(["--skip-trash"] if skip else []), mnt / "t")
    assert r.returncode == 2 and r.stderr
    assert contents(mnt / "t") == {"b/f": b"1"} and os.listdir(mnt / "t") == ["b"]
    assert os.listdir(mnt / "t/b") == ["f"]


@pytest.mark.deadline(180)
@pytest.mark.parametrize("skip", [False, True])
def test_rmr_of_wide_and_deep_trees(ws, mnt, skip):
    os.mkdir(mnt / "wide")
    for i in range(3000):
        os.mkdir(mnt / ("wide/%d" % i)) if i % 3 == 0 else write(mnt / ("wide/%d" % i), b"")
    deep = os.open(mnt.path, os.O_RDONLY)
    for i in range(1500):
        os.mkdir("d%d" % i, dir_fd=deep)
        below = os.open("d%d" % i, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    options = ["--skip-trash"] if skip else []
    r = ask(ws, "rmr", *options, mnt / "wide", mnt / "d0", timeout=120)
    assert r == {"removed": 3001 + 1500, "failed": 0, "dry_run": False}
    assert ls(mnt) == []


def test_rmr_spares_what_is_mounted_inside(ws, volume):
    mnt = volume.mount()
    os.makedirs(mnt / "t/inner")
    other = ws.volume(name="other")
    inner = other.mount(path=mnt / "t/inner")
    write(inner / "precious", b"1")
    r = ws.run("cachefs", "rmr", mnt / "t")
    assert r.returncode == 2 and read(mnt / "t/inner/precious") == b"1"
    inner.umount()


def test_control_is_for_the_user_who_mounted(ws, volume):
    mnt = volume.mount("allow_other")
    os.chmod(mnt, 0o777)
    write(mnt / "f", b"1")
    for argv in (["clone", mnt / "f", mnt / "g"], ["rmr", "--skip-trash", mnt / "f"]):
        r = subprocess.run(
            [tool("cachefs"), *map(str, argv)], user=1000, group=1000, extra_groups=[],
            env=ws.env(), cwd="/", capture_output=True, text=True, timeout=30,
        )
        assert r.returncode == 2 and "only the user" in r.stderr, r.stderr
    assert ls(mnt) == ["f"]


# ---- clone


def test_clone(ws, volume):
    mnt = volume.mount()
    os.mkdir(mnt / "src")
    files = make_tree(mnt / "src")
    objects = volume.objects()
    r = ask(ws, "clone", mnt / "src", mnt / "dst")
    assert r["copied"] == 10 and r["inode"] == os.stat(mnt / "dst").st_ino
    assert volume.objects() == objects  # by reference
    assert contents(mnt / "dst") == contents(mnt / "src")
    assert os.readlink(mnt / "dst/link") == "three"
    assert os.getxattr(mnt / "dst/three", "user.note") == b"\0value"
    assert os.stat(mnt / "dst/a").st_nlink == 4 and os.stat(mnt).st_nlink == 4
    # neither sees what happens to the other
    with open(mnt / "dst/a/b/two", "r+b") as f:
        f.write(b"changed")
    assert read(mnt / "src/a/b/two") == files["a/b/two"]
    ws.run("cachefs", "rmr", "--skip-trash", mnt / "src", check=True)
    gc(ws, volume, "--delete", age=0)
    mnt = mnt.remount()
    assert read(mnt / "dst/a/b/two") == b"changed" + files["a/b/two"][7:]
    assert read(mnt / "dst/a/one") == files["a/one"]


def test_clone_preserve(ws, mnt):
    os.mkdir(mnt / "src")
    make_tree(mnt / "src")
    os.chown(mnt / "src/three", 1234, 5678)
    os.utime(mnt / "src/three", ns=(1_111_111_111_000_000_001, 1_222_222_222_000_000_002))
    ask(ws, "clone", "--preserve", mnt / "src", mnt / "kept")
    ask(ws, "clone", mnt / "src", mnt / "mine")
    a, b, c = (os.stat(mnt / d / "three") for d in ("src", "kept", "mine"))
    assert (b.st_uid, b.st_gid, b.st_mtime_ns, b.st_mode) == (1234, 5678, a.st_mtime_ns, a.st_mode)
    assert (c.st_uid, c.st_gid) == (0, 0) and c.st_mtime_ns > a.st_mtime_ns


def test_clone_of_files_and_refusals(ws, mnt):
    write(mnt / "f", data(100_000))
    os.mkdir(mnt / "d")
    name = os.fsdecode(b"\xff\xfe \xc3\xa9%")
    ask(ws, "clone", mnt / "f", mnt / "d" / name)
    assert read(mnt / "d" / name) == data(100_000) and os.listdir(mnt / "d") == [name]
    refused(ws, "clone", mnt / "f", mnt / "d" / name, says="exists")
    refused(ws, "clone", mnt / "nothing", mnt / "g")
    refused(ws, "clone", mnt / "f", mnt / "no/g")
    refused(ws, "clone", mnt / "f", ws.path("outside"))
    refused(ws, "clone", ws.path("vol.db"), mnt / "g")
    ask(ws, "clone", mnt / "d", mnt / "d/itself")
    assert read(mnt / "d/itself" / name) == data(100_000)


def test_clone_keeps_to_quotas(ws, volume):
    mnt = volume.mount()
    os.mkdir(mnt / "src")
    os.mkdir(mnt / "small")
    for i in range(10):
        write(mnt / ("src/%d" % i), data(10_000, i))
    ws.run("cachefs", "quota", "set", volume.url, "--path", "/small", "--inodes", "8", check=True)
    mnt = mnt.remount()
    refused(ws, "clone", mnt / "src", mnt / "small/copy", says="quota")
    assert os.listdir(mnt / "small") == []
    mnt.umount()
    assert volume.sql("SELECT count(*) FROM jfs_detached_node") == [(0,)]


@pytest.mark.deadline(180)
def test_clone_cut_off_leaves_nothing(ws, volume):
    mnt = volume.mount()
    os.mkdir(mnt / "src")
    for i in range(40):
        os.mkdir(mnt / ("src/%d" % i))
        for k in range(100):
            write(mnt / ("src/%d/%d" % (i, k)), b"x")
    p = ws.popen([tool("cachefs"), "clone", str(mnt / "src"), str(mnt / "dst")])
    wait_until(lambda: volume.sql("SELECT count(*) FROM jfs_detached_node") != [(0,)], 20)
    p.send_signal(signal.SIGINT)
    assert p.wait(30) != 0
    assert not os.path.lexists(mnt / "dst")
    wait_until(lambda: volume.sql("SELECT count(*) FROM jfs_detached_node") == [(0,)], 30)
    mnt.umount()
    assert fsck(ws, volume)["found"] == 0
    assert volume.sql("SELECT count(*) FROM jfs_node WHERE inode > 1 AND inode < ?", TRASH) == [
        (4041,)
    ]


# ---- restore


def test_restore(ws):
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    os.mkdir(mnt / "t")
    files = make_tree(mnt / "t")
    before = contents(mnt / "t")
    shutil.rmtree(mnt / "t")
    h = hour(mnt)
    assert len(os.listdir(mnt / ".trash" / h)) == 10
    r = ask(ws, "restore", vol.url, h)
    assert r == {"restored": 9, "skipped": 1, "failed": 0}
    mnt = mnt.remount()
    (top,) = os.listdir(mnt / ".trash" / h)
    assert top.endswith("-t") and contents(mnt / ".trash" / h / top) == before
    assert ask(ws, "restore", vol.url, h, "--put-back")["restored"] == 1
    mnt = mnt.remount()
    assert contents(mnt / "t") == before and os.listdir(mnt / ".trash" / h) == []
    assert os.stat(mnt / "t/a").st_nlink == 4
    assert read(mnt / "t/a/b/two") == files["a/b/two"]


def test_restore_puts_back_beside_what_is_there(ws):
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    for name in ("taken", "free"):
        write(mnt / name, b"old " + name.encode())
        os.unlink(mnt / name)
    write(mnt / "taken", b"young")
    os.mkdir(mnt / "d")
    write(mnt / "d/f", b"1")
    shutil.rmtree(mnt / "d")
    h = hour(mnt)
    ws.run("cachefs", "rmr", "--skip-trash", *[
        mnt / ".trash" / h / n for n in os.listdir(mnt / ".trash" / h) if n.endswith("-d")
    ], check=True)
    r = ws.run("cachefs", "restore", vol.url, h, "--put-back", "--threads", "3", "--json")
    assert r.returncode == 2
    assert json.loads(r.stdout) == {"restored": 1, "skipped": 0, "failed": 2}
    assert "taken" in r.stderr and "gone" in r.stderr
    mnt = mnt.remount()
    assert read(mnt / "free") == b"old free" and read(mnt / "taken") == b"young"
    assert len(os.listdir(mnt / ".trash" / h)) == 2
    refused(ws, "restore", vol.url, "2001-01-01-00", says="no such hour")


# ---- compact and summary


def test_compact(ws, volume):
    mnt = volume.mount()
    want = {}
    os.mkdir(mnt / "d")
    for name in ("d/a", "d/b"):
        want[name] = b""
        for i in range(4):
            with open(mnt / name, "ab") as f:
                f.write(data(3000, i))
            want[name] += data(3000, i)
    r = ask(ws, "compact", mnt / "d")
    assert (r["files"], r["chunks"], r["records_before"], r["records_after"]) == (2, 2, 8, 2)
    assert r["failed"] == 0
    assert contents(mnt.path) == want
    mnt = mnt.remount()
    assert contents(mnt.path) == want
    refused(ws, "compact", mnt.remount("ro") / "d", code=2)


def test_summary(ws, mnt):
    os.mkdir(mnt / "t")
    make_tree(mnt / "t")
    for i in range(30):
        write(mnt / ("t/many%02d" % i), b"x" * 5000)
    fast = ask(ws, "summary", mnt / "t")
    strict = ask(ws, "summary", mnt / "t", "--strict", "--depth", "0")
    for key in ("size", "files", "dirs", "length"):
        assert fast[key] == strict[key], key
    assert fast["dirs"] == 4 and fast["files"] == 36
    du = 0
    for d, dirs, names in os.walk(mnt / "t"):
        for n in names:
            st = os.lstat(os.path.join(d, n))
            size = st.st_size if not os.path.islink(os.path.join(d, n)) else 0
            du += max(4096, (size + 4095) // 4096 * 4096)
        du += 4096
    assert fast["size"] == du
    assert len(fast["entries"]) == 11 and fast["entries"][0]["name"] == "a"
    assert fast["entries"][-1]["name"] == "..."
    assert sum(e["size"] for e in fast["entries"]) + 4096 == fast["size"]
    assert {e["name"] for e in fast["entries"][0]["entries"]} == {"b", "one", "hard", "nothing"}
    text = ws.run("cachefs", "summary", mnt / "t", "--depth", "1", check=True).stdout
    assert "SIZE" in text and "/t/a/" in text and "two" not in text
    one = ask(ws, "summary", mnt / "t/three")
    assert (one["files"], one["dirs"], one["size"]) == (1, 0, 4096)


# ---- quota


def test_quota_of_directories(ws, volume):
    mnt = volume.mount()
    os.makedirs(mnt / "d/sub")
    write(mnt / "d/sub/f", data(20_000))
    url = volume.url
    (q,) = ask(ws, "quota", "set", url, "--path", "/d", "--capacity", "1M", "--inodes", "5")
    assert (q["max_bytes"], q["max_inodes"]) == (1 << 20, 5)
    assert (q["used_bytes"], q["used_inodes"], q["path"]) == (4096 + 20480, 2, "/d")

    mnt = mnt.remount()
    with fails("EDQUOT"):
        os.truncate(mnt / "d/sub/f", 2 << 20)
    with fails("EDQUOT"):
        write(mnt / "d/big", data(2 << 20), sync=True)
    os.unlink(mnt / "d/big")
    (q,) = ask(ws, "quota", "set", url, "--path", "/d", "--inodes", "7")
    assert (q["max_bytes"], q["max_inodes"]) == (1 << 20, 7)  # the rest stays
    assert ask(ws, "quota", "get", url, "--path", "/d") == ask(ws, "quota", "list", url)
    mnt.umount()
    assert ask(ws, "quota", "check", url) == []
    volume.sql("UPDATE jfs_dir_quota SET used_space=1, used_inodes=99")
    (bad,) = ask(ws, "quota", "check", url, code=DAMAGED)
    assert bad["real_bytes"] == 24576 and bad["real_inodes"] == 2 and not bad["repaired"]
    assert kinds(fsck(ws, volume, code=DAMAGED)) == ["quota"]
    assert ask(ws, "quota", "repair", url)[0]["repaired"]
    assert ask(ws, "quota", "check", url) == []
    ws.run("cachefs", "quota", "delete", url, "--path", "/d", check=True)
    assert ask(ws, "quota", "list", url) == []
    refused(ws, "quota", "delete", url, "--path", "/d")
    refused(ws, "quota", "get", url, "--path", "/d")


def test_quota_of_owners(ws, volume):
    mnt = volume.mount("heartbeat=1")
    os.chmod(mnt, 0o777)
    write(mnt / "r", data(10_000))
    write(mnt / "u", data(5000))
    os.chown(mnt / "u", 1000, 2000)
    url = volume.url
    (q,) = ask(ws, "quota", "set", url, "--uid", "1000", "--capacity", "1M")
    assert (q["kind"], q["used_bytes"], q["used_inodes"]) == ("user", 8192, 1)
    assert volume.setting()["UserGroupQuota"] is True
    (q,) = ask(ws, "quota", "set", url, "--gid", "2000", "--inodes", "50")
    assert (q["kind"], q["used_bytes"], q["used_inodes"], q["max_inodes"]) == ("group", 8192, 1, 50)
    assert len(ask(ws, "quota", "list", url)) == 2
    rows = volume.sql("SELECT qtype, qkey, used_inodes FROM jfs_user_group_quota ORDER BY 1, 2")
    assert rows == [(1, 0, 1), (1, 1000, 1), (2, 0, 1), (2, 2000, 1)]
    ws.run("cachefs", "quota", "delete", url, "--uid", "1000", check=True)
    assert [q["kind"] for q in ask(ws, "quota", "list", url)] == ["group"]
    mnt.umount()
    assert ask(ws, "quota", "check", url) == []


def test_quota_usage_errors(ws, volume):
    volume.mount().umount()
    refused(ws, "quota", "wish", volume.url, code=1)
    refused(ws, "quota", "set", volume.url, "--path", "/", "--inodes", "1", code=1, says="config")
    refused(ws, "quota", "set", volume.url, "--inodes", "1", code=1)
    refused(ws, "quota", "set", volume.url, "--path", "/", "--uid", "1", "--inodes", "1", code=1)
    refused(ws, "quota", "set", volume.url, "--uid", "1", code=1)
    refused(ws, "quota", "set", volume.url, "--path", "/none", "--inodes", "1", code=2)
    assert ask(ws, "quota", "list", volume.url) == []


# ---- destroy


def test_destroy(ws, volume):
    mnt = volume.mount()
    make_tree(mnt.path)
    uuid = volume.setting()["UUID"]
    url, objects = volume.url, volume.objects()
    neighbour = volume.bucket / "vol2/chunks/0/0/1_0_1"
    neighbour.parent.mkdir(parents=True)
    write(neighbour, b"1")
    refused(ws, "destroy", url, uuid, "--yes", says="active")
    mnt.umount()
    refused(ws, "destroy", url, uuid[:-1] + "z", "--yes", code=1, says=uuid)
    refused(ws, "destroy", url, uuid, code=1, says="--yes")
    r = ws.run("cachefs", "destroy", url, uuid, "--dry-run", check=True)
    assert uuid in r.stderr and "%d objects" % (len(objects) + 1) in r.stderr
    loop = volume.bucket / "vol/chunks/zz"
    os.symlink("zz", loop)
    refused(ws, "destroy", url, uuid, "--yes", code=2, says="nothing is removed")
    loop.unlink()
    assert volume.objects() == objects and volume.setting()["UUID"] == uuid
    r = ask(ws, "destroy", url, uuid, "--yes")
    assert r["removed_objects"] == len(objects) + 1 == r["objects"]
    assert volume.objects() == [] and neighbour.exists()
    refused(ws, "status", url)
    neighbour.unlink()
    volume.format()
    assert ls(volume.mount().path) == []
