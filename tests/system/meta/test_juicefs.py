# SPDX-License-Identifier: Apache-2.0
"""Volumes that cachefs wrote, used by JuiceFS itself, and what it leaves. A failure here is a volume that its
user cannot take back to JuiceFS, or one that the two damage between them."""

import json
import os
import signal
import subprocess
import sys

import pytest

import cachefs_check
import fixtures
import servers
import test_backup
import test_concurrency
from admin import ls
from cachefs import children, missing, mountinfo, wait_until
from replicas import clean, covered, elsewhere, env_of, lose_machine, place, restore
from ring import on_ring  # noqa: F401
from s3volume import S3Volume
from syscalls import data, fallocate, read, write
from test_fixtures import differences, nothing
from test_tmpfile import link, make

pytestmark = pytest.mark.long
# Without caches of the kernel each open sees what the other one has closed.
FRESH = "attr-cache=0,entry-cache=0,dir-entry-cache=0"
# Without it JuiceFS takes a directory whose changes of a second sum up to nothing for one without statistics, and
# counts its entries: those that another client has changed and not flushed yet are counted twice.
FOUND_ROWS = "clientFoundRows=true"
JUICE_FRESH = ["--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0"]


class Juice:
    """The JuiceFS client of scripts/install-juicefs."""

    def __init__(self, ws):
        if not os.environ.get("CACHEFS_LONG"):
            pytest.skip("takes minutes: set CACHEFS_LONG")
        try:
            self.program = servers.find("juicefs", "/var/cache/cachefs-tests/go/bin")
        except FileNotFoundError:
            missing("no JuiceFS: run scripts/install-juicefs")
        self.ws, self.mounts = ws, []
        ws.cleanups.append(self.end)

    def run(self, *argv, check=True, **kw):
        r = self.ws.run(self.program, "--no-agent", "--no-color", *argv, timeout=90, **kw)
        if check:
            assert r.returncode == 0, "juicefs %s: exit %d\n%s%s" % (argv[0], r.returncode, r.stdout, r.stderr)
            assert "<ERROR>" not in r.stderr and "<FATAL>" not in r.stderr, r.stderr
        return r

    def mount(self, url, *options):
        """Its mount point. A volume's objects are where its setting says."""
        point = self.ws.path("juice%d" % len(self.mounts))
        point.mkdir()
        log = open(self.ws.path(point.name + ".log"), "wb")
        if url.startswith("mysql"):
            url += "?" + FOUND_ROWS
        argv = [self.program, "--no-agent", "--no-color", "mount", url, point, "--no-usage-report", "--no-syslog"]
        argv += ["--cache-dir", self.ws.path("juice-cache"), "--metrics", "127.0.0.1:%d" % servers.free_port()]
        argv += ["--enable-xattr", "--backup-meta", "0", *options]
        p = self.ws.popen(argv, stdout=log, stderr=log)
        self.mounts.append((point, p))

        def ready():
            assert p.poll() is None, log_of(point)
            return str(point) in mountinfo() and os.stat(point).st_ino == 1

        wait_until(ready, 60, "the mount of JuiceFS")
        return point

    def umount(self, point):
        self.run("umount", point)
        p = dict(self.mounts)[point]
        p.wait(60)
        self.mounts.remove((point, p))
        text = log_of(point)
        assert "<ERROR>" not in text and "<FATAL>" not in text, text
        point.rmdir()

    def end(self):
        for point, p in self.mounts:
            print("--- log of %s\n%s" % (point, log_of(point)[-6000:]))
            subprocess.run(["umount", "-l", point], timeout=20, stderr=subprocess.DEVNULL)
            for pid in [*children(p.pid), p.pid] if p.poll() is None else []:
                os.kill(pid, signal.SIGKILL)
            p.wait(20)


def log_of(point):
    return point.with_name(point.name + ".log").read_text("utf-8", "replace")


@pytest.fixture
def juice(ws):
    return Juice(ws)


def fill(ws, mnt):
    """Everything that volumes of JuiceFS's own have in the golden tests."""
    ws.run(sys.executable, fixtures.HOME / "tools/tree.py", mnt, "full", timeout=120, check=True)


def manifest(ws, mnt):
    r = ws.run(sys.executable, fixtures.HOME / "tools/manifest.py", mnt, timeout=120, check=True)
    return json.loads(r.stdout)


def same(ours, theirs, parts=("entries", "trash")):
    """Of manifests. Each client counts the used space in its own rhythm, so statvfs is not compared; JuiceFS shows
    the mark of the last backup as an attribute of the root."""
    for e in theirs["entries"][:1]:
        if e.get("xattrs_b64", {}).pop("lastBackup", None) and not e["xattrs_b64"]:
            del e["xattrs_b64"]
    nothing(differences(ours, {**theirs, "statvfs": {}}, parts))


def change(top, me):
    """The work of a user, by either client; returns {path: content}."""
    mine = top / me
    mine.mkdir()
    big = data(9_000_001, len(me))
    write(mine / "big", big)
    with open(mine / "big", "r+b") as f:
        f.seek(5_000_000)
        f.write(b"over")
    with open(mine / "appended", "wb") as f:
        f.write(b"1")
    with open(mine / "appended", "ab") as f:
        f.write(b"2" * 70_000)
    write(mine / "cut", b"c" * 100_000)
    os.truncate(mine / "cut", 1000)
    write(mine / "punched", b"p" * 300_000)
    with open(mine / "punched", "r+b") as f:
        fallocate(f.fileno(), 3, 65536, 70_000)
    write(mine / "old", b"old")
    write(mine / "new", b"new")
    os.rename(mine / "new", mine / "old")
    write(mine / "gone", b"gone")
    os.unlink(mine / "gone")
    os.link(mine / "old", mine / "hard")
    os.symlink("old", mine / "link")
    os.setxattr(mine / "old", "user.by", me.encode())
    os.mkdir(mine / "d")
    os.rename(mine / "d", mine / "e")
    return {
        "big": big[:5_000_000] + b"over" + big[5_000_004:],
        "appended": b"1" + b"2" * 70_000,
        "cut": b"c" * 1000,
        "punched": b"p" * 65536 + bytes(70_000) + b"p" * (300_000 - 65536 - 70_000),
        "old": b"new",
        "hard": b"new",
    }


def unchanged(top, me, want):
    mine = top / me
    assert ls(mine) == sorted([*want, "link", "e"])
    assert {n: read(mine / n) for n in want} == want
    assert os.readlink(mine / "link") == "old" and os.stat(mine / "old").st_nlink == 2
    assert os.getxattr(mine / "old", "user.by") == me.encode()


# -- what cachefs wrote


@pytest.mark.deadline(300)
@pytest.mark.parametrize("way", ["load", "restore"])
def test_a_restored_volume(ws, s3, juice, way):
    vol = S3Volume(ws, s3, replicate="sync", trash_days=1, enable_acl=True)
    mnt = vol.mount()
    fill(ws, mnt)
    want = manifest(ws, mnt)
    covered(mnt)  # not all of it was fsynced
    lose_machine(vol, mnt)
    if way == "load":
        again = restore(ws, vol, "again.db")
    else:
        again = elsewhere(ws, vol, "sqlite3://%s" % ws.path("again.db"))
        options = dict(zip(("storage", "bucket", "restore"), map(str, place(vol)[1::2])))
        again.mount(",".join("%s=%s" % o for o in options.items()), env=env_of(vol)).umount()
    there = juice.mount(again.url, "--read-only")
    same(want, manifest(ws, there))
    juice.umount(there)
    juice.run("fsck", again.url)
    # JuiceFS uses it.
    there = juice.mount(again.url)
    theirs = change(there, "theirs")
    juice.umount(there)
    # And cachefs goes on with what it left, in the bucket as well.
    mnt = again.mount(env=s3.keys)
    unchanged(mnt, "theirs", theirs)
    ours = change(mnt, "ours")
    covered(mnt)
    mnt.umount()
    juice.run("fsck", again.url)
    juice.run("gc", again.url)
    last = restore(ws, again, "last.db")
    there = juice.mount(last.url, "--read-only")
    unchanged(there, "theirs", theirs)
    unchanged(there, "ours", ours)
    juice.umount(there)
    clean(last)


@pytest.fixture(params=test_concurrency.ENGINES)
def vol(ws, request):
    v = test_concurrency.engine_volume(ws, request.param, trash_days=1, enable_acl=True)
    v.check_options = None
    return v


def findings(vol, **options):
    found, _ = cachefs_check.check(vol.url, str(vol.bucket), cachefs_check.Options(unmounted=True, **options))
    return ["%s: %s" % f for f in found]


def use_every_way(ws, vol):
    """Files of every kind of mount there is; the manifest of the volume."""
    mnt = vol.mount()
    fill(ws, mnt)
    fd = make(mnt.path)
    os.write(fd, b"without a name at first")
    link(fd, mnt / "linked")
    os.close(fd)
    mnt.umount()
    cache = "cache-dir=%s" % ws.path("cache")
    for n, opts in enumerate(("close=committing", "writeback," + cache, "passthrough=auto," + cache)):
        mnt = vol.mount(opts)
        change(mnt, "way%d" % n)
        for i in range(200):
            write(mnt / ("way%d" % n) / "e" / ("small%d" % i), b"%d" % i)
        mnt.umount()
    mnt = vol.mount("ro")
    want = manifest(ws, mnt)
    mnt.umount()
    return want


@pytest.mark.deadline(300)
def test_files_of_every_mount(ws, juice, vol):
    want = use_every_way(ws, vol)
    juice.run("fsck", vol.url)
    assert juice.run("gc", vol.url).stderr.count("leaked") <= 1
    there = juice.mount(vol.url, "--read-only")
    same(want, manifest(ws, there))
    juice.umount(there)
    juice.run("gc", "--compact", "--delete", vol.url)
    # On PostgreSQL JuiceFS fails to write what it counts: its insertion of a row that exists ends the transaction.
    count = [] if vol.url.startswith("postgres") else ["--repair", "--sync-dir-stat"]
    juice.run("fsck", "--path", "/", "--recursive", *count, vol.url)
    mnt = vol.mount("ro")
    got = manifest(ws, mnt)
    mnt.umount()
    same(got, want, parts=("entries",))
    nothing(findings(vol))


@pytest.mark.deadline(300)
def test_files_through_a_ring(ws, juice, volume, on_ring):  # noqa: F811
    mnt = volume.mount()
    want = change(mnt, "ring")
    mnt.umount()
    there = juice.mount(volume.url)
    unchanged(there, "ring", want)
    juice.umount(there)
    juice.run("fsck", volume.url)


# -- dumps in the bucket


def empty(ws, engine):
    """A META-URL of an empty database."""
    ws.count += 1
    if engine == "sqlite":
        return "sqlite3://%s" % ws.path("empty%d.db" % ws.count)
    db = servers.ENGINES[engine][0]().database()
    ws.cleanups.append(db.drop)
    return db.url


@pytest.mark.deadline(300)
def test_backup_of_cachefs_is_loaded_by_juicefs(ws, juice, vol):
    # Without skip-dir-mtime=0 a backup may lack the times of the last 100 ms.
    mnt = vol.mount("backup-meta=1s,skip-dir-mtime=0")
    (mnt / "text").mkdir()
    for i in range(300):
        write(mnt / "text" / ("%03d" % i + "文" * (i % 80)), b"")
        name = "user.%03d%%41 " % i + "\U0001f600文" * (i % 30)
        os.setxattr(mnt / "text", name, ("x" * (i % 7) + "\U0001f600" * 40).encode())
    fill(ws, mnt)
    want = manifest(ws, mnt)
    name = test_backup.latest_with(vol, "y2106")
    mnt.umount()
    url = empty(ws, "redis" if vol.url.startswith("sqlite3") else "sqlite")
    juice.run("load", url, test_backup.folder(vol) / name)
    there = juice.mount(url)
    same(want, manifest(ws, there), parts=("entries",))
    theirs = change(there, "theirs")
    juice.umount(there)
    juice.run("fsck", url)
    again = elsewhere(ws, vol, url)
    # Its load takes the number of holes for the references of all slices, also with dumps of its own.
    again.check_options = None
    unchanged(again.mount("ro"), "theirs", theirs)


@pytest.mark.deadline(300)
def test_binary_dump_of_cachefs_is_loaded_by_juicefs(ws, juice, vol):
    mnt = vol.mount()
    fill(ws, mnt)
    want = manifest(ws, mnt)
    mnt.umount()
    ws.run("cachefs", "dump", "--binary", vol.url, ws.path("dump"), check=True)
    url = empty(ws, "redis" if vol.url.startswith("postgres") else "postgres")
    r = juice.run("load", "--binary", url, ws.path("dump"), check=False)
    assert r.returncode == 0, r.stderr
    if url.startswith("postgres"):  # it takes an empty value of an extended attribute for NULL there
        for e in want["entries"]:
            e.get("xattrs_b64", {}).pop("user.empty", None)
    there = juice.mount(url)
    same(want, manifest(ws, there), parts=("entries",))
    juice.umount(there)
    juice.run("fsck", url)


@pytest.mark.deadline(300)
def test_backup_of_juicefs_is_loaded_by_cachefs(ws, juice, vol):
    """Its first one is made half a minute after the mount."""
    there = juice.mount(vol.url, "--backup-meta", "5m")
    fill(ws, there)
    theirs = change(there, "theirs")
    want = manifest(ws, there)
    wait_until(lambda: test_backup.backups(vol) and "backup metadata succeed" in log_of(there), 60, "the backup")
    juice.umount(there)
    url = empty(ws, "sqlite")
    ws.run("cachefs", "load", *test_backup.where(vol), url, "latest", check=True)
    again = elsewhere(ws, vol, url)
    again.check_options = None
    mnt = again.mount()
    same(manifest(ws, mnt), want, parts=("entries",))
    unchanged(mnt, "theirs", theirs)
    change(mnt, "ours")
    mnt.umount()
    clean(again)


# -- both at once


@pytest.fixture(params=["redis", "postgres", "mysql", "sqlite"])
def both(ws, request, juice):
    """The mounts of cachefs and of JuiceFS, and the volume."""
    v = test_concurrency.engine_volume(ws, request.param, trash_days=0)
    v.check_options = None
    return v.mount(FRESH), juice.mount(v.url, *JUICE_FRESH), v


def end(ws, juice, both):
    ours, theirs, vol = both
    ours.umount()
    juice.umount(theirs)
    juice.run("fsck", vol.url)
    nothing(findings(vol))


@pytest.mark.deadline(300)
def test_each_opens_what_the_other_has_closed(ws, juice, both):
    ours, theirs, vol = both
    want = {"ours": change(ours.path, "ours"), "theirs": change(theirs, "theirs")}
    for top in (ours.path, theirs):
        for me in want:
            unchanged(top, me, want[me])
    for n in range(60):
        a, b = (ours.path, theirs) if n % 2 else (theirs, ours.path)
        content = data(n * 70_001, n)
        write(a / "f", content)
        assert read(b / "f") == content and os.stat(b / "f").st_size == len(content)
        with open(b / "f", "r+b") as f:
            f.seek(n * 1000)
            f.write(b"%d" % n)
        assert read(a / "f")[n * 1000 :][: len(b"%d" % n)] == b"%d" % n
        os.truncate(a / "f", 500)
        assert os.stat(b / "f").st_size == 500
        write(a / ("new%d" % n), b"new")
        os.rename(b / ("new%d" % n), b / "f")
        assert read(a / "f") == b"new"
        assert ls(a) == ls(b)
    end(ws, juice, both)


WORKER = """
import os, sys
top, me, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
for i in range(n):
    path = "%s/%s-%d" % (top, me, i)
    with open(path, "wb") as f:
        f.write(b"%d" % i * 1000)
    with open("%s/shared" % top, "ab", buffering=0) as f:
        f.write(b"%s %06d\\n" % (me.encode(), i))
    if i % 3 == 1:
        os.rename(path, path + "-moved")
    if i % 3 == 2:
        os.unlink(path)
"""


@pytest.mark.deadline(300)
def test_both_make_and_remove_at_once(ws, juice, both):
    ours, theirs, vol = both
    os.mkdir(ours / "d")
    n = 150
    workers = [ws.python(WORKER, str(top / "d"), "%s%d" % (me, i), str(n), stderr=subprocess.PIPE)
               for i in range(2) for me, top in (("ours", ours.path), ("theirs", theirs))]  # fmt: skip
    for p in workers:
        _, err = p.communicate(timeout=200)
        assert p.returncode == 0, err.decode()
    names = {"shared"}
    for me in ("ours0", "ours1", "theirs0", "theirs1"):
        for i in range(n):
            names |= {"%s-%d" % (me, i)} if i % 3 == 0 else {"%s-%d-moved" % (me, i)} if i % 3 == 1 else set()
    for top in (ours.path, theirs):
        assert set(ls(top / "d")) == names
        for name in names - {"shared"}:
            assert read(top / "d" / name) == name.split("-")[1].encode() * 1000
    end(ws, juice, both)


HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
if sys.argv[2] == "flock":
    fcntl.flock(fd, fcntl.LOCK_EX)
else:
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 5)
print("held", flush=True)
sys.stdin.readline()
"""
TRY = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    if sys.argv[2] == "flock":
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    else:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 14)
    print("free")
except BlockingIOError:
    print("held")
"""


@pytest.mark.deadline(300)
def test_locks_and_open_files_of_the_other(ws, juice, both):
    ours, theirs, vol = both
    write(ours / "f", b"f" * 100)

    def tries(top, kind):
        return ws.run(sys.executable, "-c", TRY, top / "f", kind, check=True).stdout.strip()

    for kind in ("flock", "posix"):
        for a, b in ((ours.path, theirs), (theirs, ours.path)):
            holder = ws.python(HOLDER, str(a / "f"), kind, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert holder.stdout.readline() == "held\n"
            assert tries(b, kind) == "held", (kind, a)
            holder.stdin.close()
            holder.wait(30)
            # The end of a process does not wait for the release of its flock.
            wait_until(lambda: tries(b, kind) == "free", 0 if kind == "posix" else 30, "%s of %s to be released" % (kind, a))
    # A file that its own client has removed stays for those who have it open there. (JuiceFS does not ask whether
    # another client has it open.)
    for a, b in ((ours.path, theirs), (theirs, ours.path)):
        write(a / "kept", b"k" * 5_000_000)
        with open(a / "kept", "rb") as f:
            os.unlink(a / "kept")
            assert "kept" not in ls(b)
            write(b / "kept", b"another")
            assert os.pread(f.fileno(), 10, 4_000_000) == b"k" * 10
        assert read(a / "kept") == b"another"
        os.unlink(b / "kept")
    wait_until(lambda: len(vol.objects()) == 1, 60, "the removal of the blocks")
    end(ws, juice, both)
