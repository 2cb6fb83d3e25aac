# SPDX-License-Identifier: Apache-2.0
"""Broken, wrong, full and silent backends. A failure here is a hang, a wrong byte or damage where an
error was due."""

import errno
import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import time

import pytest

import cachefs_check
from cachefs import SLOW, Clock, mountinfo, stop_process, wait_until
from syscalls import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE
from syscalls import data, fails, fallocate, read, write
from test_concurrency import ENGINES, engine_volume

LOCKER = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
db.execute('BEGIN EXCLUSIVE')
print('locked', flush=True)
time.sleep(float(sys.argv[2]))
db.execute('COMMIT')
"""


def refused(ws, url, word, status=(1, 32)):
    """Neither command nor helper may mount this; each says why in one line, soon."""
    point = ws.path("refused")
    point.mkdir(exist_ok=True)
    for argv in (
        ["mount.cachefs", url, point],
        ["cachefs", "mount", url, point],
        ["cachefs", "status", url],
    ):
        start = time.monotonic()
        r = ws.run(*argv)
        assert time.monotonic() - start < 15 * SLOW
        assert r.returncode in status or (argv[1] == "status" and r.returncode), r
        lines = r.stderr.strip().splitlines()
        assert len(lines) == 1 and word in lines[0].lower(), "%r lacks %r" % (r.stderr, word)
        assert str(point) not in mountinfo()
    wait_until(lambda: not ws.processes(), 10, "the end of the processes")


# -- what is no volume


def test_unreachable_database(ws):
    refused(ws, "sqlite3://%s/no/such/dir/x.db" % ws.dir, "no such")
    refused(ws, "sqlite3://%s/missing.db" % ws.dir, "")
    assert not ws.path("missing.db").exists(), "a mount must not create a database"


@pytest.mark.parametrize("url", ["gopher://x/y", "sqlite3://", "://", "", "sqlite3:"])
def test_wrong_url(ws, url):
    refused(ws, url, "")


def test_database_without_volume(ws):
    sqlite3.connect(ws.path("empty.db")).close()
    db = sqlite3.connect(ws.path("other.db"))
    db.execute("CREATE TABLE t (x)")
    db.commit()
    db.close()
    before = read(ws.path("other.db"))
    for name in ("empty.db", "other.db"):
        ws.path(name).touch()
        refused(ws, "sqlite3://%s/%s" % (ws.dir, name), "volume")
    assert read(ws.path("other.db")) == before


def test_not_a_database(ws):
    write(ws.path("text.db"), b"this is no database\n" * 1000)
    refused(ws, "sqlite3://%s/text.db" % ws.dir, "")
    ws.path("dir.db").mkdir()
    refused(ws, "sqlite3://%s/dir.db" % ws.dir, "")


@pytest.mark.parametrize(
    "change,word",
    [
        ({"MetaVersion": 2}, "version"),
        ({"MinClientVersion": "9.0.0"}, "version"),
        ({"MaxClientVersion": "1.0.0"}, "version"),
        ({"Storage": "tape"}, "tape"),
        ({"Compression": "brotli"}, "brotli"),
        ({"BlockSize": 0}, ""),
        ({"BlockSize": "many"}, ""),
    ],
)
def test_setting_from_another_world(ws, volume, change, word):
    s = volume.setting()
    s.update(change)
    volume.sql("UPDATE jfs_setting SET value=? WHERE name='format'", json.dumps(s))
    volume.check_options = None
    point = ws.path("refused")
    point.mkdir()
    r = ws.run("mount.cachefs", volume.url, point)
    assert r.returncode in (1, 32) and word in r.stderr.lower() and len(r.stderr.splitlines()) == 1
    assert str(point) not in mountinfo()


def test_setting_that_is_no_json(ws, volume):
    volume.sql("UPDATE jfs_setting SET value='{\"Name\": '")
    volume.check_options = None
    refused(ws, volume.url, "")


def test_bucket_that_is_missing(ws, volume):
    """Mounting must not turn a bucket that is not there (a disk not mounted yet) into an empty one."""
    mnt = volume.mount()
    write(mnt / "f", b"x")
    mnt.umount()
    os.rename(volume.bucket, ws.path("away"))
    point = ws.path("refused")
    point.mkdir()
    r = ws.run("mount.cachefs", volume.url, point)
    if r.returncode == 0:
        with fails("EIO"):
            read(point / "f")
        ws.run("cachefs", "umount", point, check=True)
        wait_until(lambda: not ws.processes(), 30, "the end of the mount process")
    else:
        assert r.returncode == 32 and r.stderr.strip()
    assert not volume.bucket.exists() or not list(volume.bucket.rglob("*_*"))
    if volume.bucket.exists():
        volume.bucket.rmdir() if not list(volume.bucket.iterdir()) else None
    os.rename(ws.path("away"), volume.bucket)


# -- objects


@pytest.mark.parametrize("how", ["missing", "short", "empty", "directory"])
def test_damaged_object_is_eio(volume, how):
    mnt = volume.mount()
    content = data(9_000_000)
    write(mnt / "f", content)
    write(mnt / "g", b"healthy")
    mnt.umount()
    (victim,) = [p for p in volume.objects() if "_1_" in p.name]
    saved = read(victim)
    if how == "short":
        os.truncate(victim, 1000)
    elif how == "empty":
        os.truncate(victim, 0)
    else:
        os.unlink(victim)
        if how == "directory":
            victim.mkdir()
    mnt = volume.mount("io-timeout=5", expect=r"EIO|ENOENT|missing|short|truncated|EISDIR|object")
    start = time.monotonic()
    with open(mnt / "f", "rb", buffering=0) as f:
        assert f.read(100) == content[:100]
        f.seek(5 << 20)
        with fails("EIO"):
            f.read(4096)
        f.seek(8_500_000)
        assert f.read(10) == content[8_500_000:8_500_010]
    assert time.monotonic() - start < 20 * SLOW
    assert read(mnt / "g") == b"healthy"
    if victim.is_dir():
        victim.rmdir()
    write(victim, saved)
    assert read(mnt / "f") == content, "the object came back, the file did not"


@pytest.fixture
def small_disk(ws):
    """A bucket on a file system of its own, 24 MiB."""
    bucket = ws.path("vol-bucket")
    bucket.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "cachefs-test", str(bucket)], check=True
    )
    kept = ws.path("kept")

    def clean():
        # the checker runs later: leave the objects as a plain directory
        subprocess.run(["cp", "-a", str(bucket), str(kept)], check=True)
        subprocess.run(["umount", "-l", str(bucket)], check=True)
        bucket.rmdir()
        os.rename(kept, bucket)

    ws.cleanups.append(clean)
    return bucket


def remount(bucket, opts):
    subprocess.run(["mount", "-o", "remount," + opts, str(bucket)], check=True)


def try_write(path, content):
    """Returns the error of a write, fsync or close, or None."""
    try:
        fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    except OSError as e:
        return e
    error = None
    try:
        for off in range(0, len(content), 1 << 20):
            os.write(fd, content[off : off + (1 << 20)])
        os.fsync(fd)
    except OSError as e:
        error = e
    try:
        os.close(fd)
    except OSError as e:
        error = error or e
    return error


@pytest.mark.deadline(180)
def test_read_only_object_directory(ws, small_disk):
    vol = ws.volume()
    vol.check_options = {"unmounted": True, "leaks": "warn"}
    mnt = vol.mount("io-timeout=5,put-timeout=5", expect=r"EROFS|EIO|read-only|object")
    write(mnt / "before", data(100_000))
    remount(small_disk, "ro")
    start = time.monotonic()
    error = try_write(mnt / "during", data(1_000_000))
    assert error is not None and error.strerror in ("Input/output error", "Read-only file system")
    assert time.monotonic() - start < 40 * SLOW
    assert read(mnt / "before") == data(100_000)
    remount(small_disk, "rw")
    wait_until(
        lambda: try_write(mnt / "after", data(1_000_000)) is None, 30, "a write after the repair"
    )
    assert read(mnt / "after") == data(1_000_000)
    os.unlink(mnt / "during")


@pytest.mark.deadline(180)
def test_full_object_directory(ws, small_disk):
    vol = ws.volume()
    vol.check_options = {"unmounted": True, "leaks": "warn"}
    mnt = vol.mount("io-timeout=5,put-timeout=5", expect=r"ENOSPC|EIO|space|object")
    write(mnt / "before", data(100_000))
    error = try_write(mnt / "during", data(40 << 20))
    assert error is not None and error.strerror in ("Input/output error", "No space left on device")
    assert read(mnt / "before") == data(100_000)
    os.unlink(mnt / "during")
    remount(small_disk, "size=200m")
    wait_until(
        lambda: try_write(mnt / "after", data(30 << 20)) is None, 60, "a write after the repair"
    )
    assert read(mnt / "after") == data(30 << 20)


@pytest.mark.deadline(180)
def test_object_directory_whose_disk_is_unmounted(ws, small_disk):
    """The mount point is left: no block may go below it, where no fsync would reach it."""
    vol = ws.volume()
    vol.check_options = {"unmounted": True, "leaks": "warn"}
    mnt = vol.mount("io-timeout=5,put-timeout=5", expect=r"ENODEV|EIO|object")
    write(mnt / "before", data(100_000))
    aside = ws.path("aside")
    aside.mkdir()
    subprocess.run(["mount", "--bind", small_disk, aside], check=True)
    try:
        subprocess.run(["umount", "-l", small_disk], check=True)
        error, left = try_write(mnt / "during", data(1_000_000)), os.listdir(small_disk)
        subprocess.run(["mount", "--bind", aside, small_disk], check=True)
    finally:
        subprocess.run(["umount", aside], check=True)
    assert error is not None and not left
    wait_until(
        lambda: try_write(mnt / "after", data(1_000_000)) is None, 30, "a write after the repair"
    )
    assert read(mnt / "after") == data(1_000_000)
    assert read(mnt / "before") == data(100_000)
    os.unlink(mnt / "during")


@pytest.mark.deadline(180)
def test_object_directory_whose_disk_is_unmounted_before_the_first_write(ws, small_disk):
    """Or before the mount, as at a boot: the blocks would be hidden when the disk is mounted."""
    vol = ws.volume()
    vol.check_options = {"unmounted": True, "leaks": "warn"}
    mnt = vol.mount()
    write(mnt / "before", data(100_000))
    mnt.umount()
    mnt = vol.mount("io-timeout=5,put-timeout=5", expect=r"ENODEV|EIO|object")
    aside, point = ws.path("aside"), ws.path("refused-mount")
    aside.mkdir()
    point.mkdir()
    subprocess.run(["mount", "--bind", small_disk, aside], check=True)
    try:
        subprocess.run(["umount", "-l", small_disk], check=True)
        error = try_write(mnt / "during", data(1_000_000))
        runs = [
            ws.run("mount.cachefs", vol.url, point),
            ws.run("cachefs", "dump", "--to-bucket", vol.url),
            ws.run("cachefs", "gc", "--delete", vol.url),
            ws.run("cachefs", "destroy", "--yes", vol.url, vol.setting()["UUID"]),
        ]
        left = list(small_disk.rglob("*"))
        subprocess.run(["mount", "--bind", aside, small_disk], check=True)
    finally:
        subprocess.run(["umount", aside], check=True)
    assert error is not None and left == []
    for r, says in zip(runs, ("is the disk", "is the disk", "are the objects there", "are the objects there")):
        assert r.returncode != 0 and says in r.stderr, r.stderr
    assert read(mnt / "before") == data(100_000)
    wait_until(lambda: try_write(mnt / "after", b"1") is None, 30, "a write after the repair")
    os.unlink(mnt / "during")


# -- metadata


def locker(ws, volume, seconds):
    p = ws.python(LOCKER, volume.db, str(seconds), stdout=-1)
    assert p.stdout.readline() == b"locked\n"
    return p


@pytest.mark.deadline(120)
def test_locked_database_is_waited_for(ws, volume, mnt):
    """Another process (a backup, JuiceFS) holds the database for 10 s."""
    write(mnt / "f", b"x")
    p = locker(ws, volume, 10)
    start = time.monotonic()
    assert os.stat(mnt / "f").st_size == 1
    assert read(mnt / "f") == b"x"
    assert p.poll() is None, "reads need not wait for a writer"
    os.mkdir(mnt / "d")
    write(mnt / "d/g", data(5_000_000))
    assert time.monotonic() - start < 25 * SLOW
    assert p.wait(20) == 0
    assert read(mnt / "d/g") == data(5_000_000)


@pytest.mark.deadline(120)
def test_lock_beyond_the_deadline_is_eio(ws, volume):
    mnt = volume.mount(
        "meta-timeout=2,io-timeout=4", expect=r"locked|busy|EIO|ETIMEDOUT|timed out|deadline"
    )
    write(mnt / "f", b"x")
    p = locker(ws, volume, 60)
    start = time.monotonic()
    with fails("EIO"):
        os.mkdir(mnt / "d")
    assert time.monotonic() - start < 30 * SLOW
    assert os.stat(mnt / "f").st_size == 1
    p.kill()
    p.wait(20)
    wait_until(lambda: try_mkdir(mnt / "e"), 20, "the mount to work again")
    write(mnt / "g", b"y")


@pytest.mark.deadline(180)
def test_every_change_ends_when_the_database_is_stuck(ws):
    """Each says EIO in time, none is half made, and each works afterwards."""
    vol = ws.volume(enable_acl=True, trash_days=1)
    mnt = vol.mount(
        "meta-timeout=1,io-timeout=2", expect=r"locked|busy|EIO|ETIMEDOUT|timed out|deadline"
    )
    for name in ("f", "g", "victim"):
        write(mnt / name, data(100_000))
    os.makedirs(mnt / "d/empty")
    os.setxattr(mnt / "f", "user.old", b"1")
    acl = bytes.fromhex("0200000001000600ffffffff02000400e903000004000400ffffffff10000600ffffffff")
    acl += bytes.fromhex("20000000ffffffff")
    f, g = os.open(mnt / "f", os.O_RDWR), os.open(mnt / "g", os.O_RDWR)
    changes = [
        lambda: os.setxattr(mnt / "f", "user.new", b"2"),
        lambda: os.removexattr(mnt / "f", "user.old"),
        lambda: os.setxattr(mnt / "f", "system.posix_acl_access", acl),
        lambda: fallocate(f, 0, 0, 200_000),
        lambda: fallocate(f, FALLOC_KEEP_SIZE | FALLOC_PUNCH_HOLE, 10_000, 20_000),
        lambda: os.copy_file_range(g, f, 50_000, 0, 300_000),
        lambda: os.ftruncate(f, 1000),
        lambda: fcntl.flock(g, fcntl.LOCK_EX | fcntl.LOCK_NB),
        lambda: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB),
        lambda: os.unlink(mnt / "victim"),
        lambda: os.rmdir(mnt / "d/empty"),
        lambda: os.link(mnt / "g", mnt / "link"),
        lambda: os.symlink("x", mnt / "symlink"),
        lambda: os.rename(mnt / "g", mnt / "d/moved"),
    ]
    p = locker(ws, vol, 100)
    for i, change in enumerate(changes):
        start = time.monotonic()
        with fails("EIO"):
            change()
        assert time.monotonic() - start < 20 * SLOW, i
    p.kill()
    p.wait(20)
    wait_until(lambda: try_mkdir(mnt / "free"), 20, "the mount to work again")
    assert [i for i, change in enumerate(changes) if not works(change)] == []
    os.close(f)
    os.close(g)
    assert sorted(os.listdir(mnt)) == ["d", "f", "free", "link", "symlink"]
    assert os.stat(mnt / "f").st_size == 1000
    assert read(mnt / "d/moved") == data(100_000)


def works(change):
    try:
        change()
        return True
    except OSError:
        return False


def try_mkdir(path):
    try:
        os.mkdir(path)
        return True
    except OSError:
        return False


def test_mount_of_a_locked_database(ws, volume):
    p = locker(ws, volume, 3)
    mnt = volume.mount()
    os.mkdir(mnt / "d")
    assert p.wait(20) == 0


def test_database_on_a_full_disk(ws):
    """The metadata disk is full: an error for the writer, no damage, and it works again afterwards."""
    where = ws.path("metadisk")
    where.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "cachefs-test", str(where)], check=True
    )
    vol = ws.volume(format=False)
    vol.db = where / "vol.db"
    vol.url = "sqlite3://%s" % vol.db
    vol.format()

    def clean():
        for suffix in ("", "-wal"):
            if os.path.exists(str(vol.db) + suffix):
                subprocess.run(
                    ["cp", str(vol.db) + suffix, str(ws.path("kept.db" + suffix))], check=True
                )
        subprocess.run(["umount", "-l", str(where)], check=True)
        vol.db = ws.path("kept.db")

    ws.cleanups.append(clean)
    mnt = vol.mount("meta-timeout=3", expect=r"full|ENOSPC|EIO|disk")
    made, error = 0, None
    while made < 60_000 and error is None:
        try:
            os.mknod(mnt / ("f" + "x" * 200 + str(made)), 0o644)
            made += 1
        except OSError as e:
            error = e
    assert error is not None and error.strerror in ("No space left on device", "Input/output error")
    remount(where, "size=64m")
    wait_until(lambda: try_mkdir(mnt / "d"), 30, "the mount to work again")
    assert len([n for n in os.listdir(mnt.path) if n.startswith("f")]) == made


def metadata_disk(ws, size):
    """A file system of that size, and a volume whose database is on it."""
    where = ws.path("metadisk")
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%s" % size, "cachefs-test", str(where)], check=True)
    vol = ws.volume(format=False)
    vol.db = where / "vol.db"
    vol.url = "sqlite3://%s" % vol.db
    vol.format()

    def clean():
        vol.check_options = None
        subprocess.run(["umount", "-l", str(where)], check=True)

    ws.cleanups.append(clean)
    return where, vol


def test_a_full_metadata_disk_can_be_emptied(ws):
    """Files and data are refused; removals and a later mount go on. A failure here is a volume that cannot be emptied,
    since each removal needs space."""
    where, vol = metadata_disk(ws, "64m")
    mnt = vol.mount("io-timeout=2,meta-timeout=2", expect=r"disk of the database is full|ENOSPC")
    os.mkdir(mnt / "d")
    write(mnt / "old", b"x" * 5000)
    hog = where / "hog"
    with open(hog, "wb") as f:
        st = os.statvfs(where)
        os.posix_fallocate(f.fileno(), 0, st.f_bavail * st.f_frsize - (12 << 20))
    made = 0
    with pytest.raises(OSError) as full:
        while True:
            os.mknod(mnt / "d" / ("f%d" % made), 0o644)
            made += 1
    assert full.value.errno == errno.ENOSPC
    with pytest.raises(OSError) as refused, open(mnt / "old", "ab") as f:
        f.write(b"y" * 5000)
        f.flush()
        os.fsync(f.fileno())
    assert refused.value.errno == errno.ENOSPC
    for i in range(made // 2):
        os.unlink(mnt / "d" / ("f%d" % i))
    mnt.umount()
    mnt = vol.mount(expect=r"disk of the database")
    for i in range(made // 2, made):
        os.unlink(mnt / "d" / ("f%d" % i))
    os.rmdir(mnt / "d")
    assert read(mnt / "old") == b"x" * 5000
    hog.unlink()
    wait_until(lambda: try_mkdir(mnt / "d"), 30, "the mount to take names again")
    write(mnt / "new", b"z" * 5000)
    mnt.umount()
    found, _ = cachefs_check.check(vol.url, str(vol.bucket), cachefs_check.Options(unmounted=True))
    assert not found, found[:20]


def test_a_metadata_disk_without_any_space(ws):
    """Programs go on trying. Each gets ENOSPC, the log names the file, and all works when there is space."""
    where, vol = metadata_disk(ws, "16m")
    mnt = vol.mount("io-timeout=2,meta-timeout=2", expect=r"disk is full|ENOSPC")
    for i in range(50):
        write(mnt / ("f%d" % i), b"x" * 5000)
    with open(where / "hog", "wb", buffering=0) as f, fails("ENOSPC"):
        while True:
            f.write(bytes(1 << 16))
    names, failed = ["f%d" % i for i in range(50)], 0
    for i in range(20_000):
        name, other = names[i % 50], "g%d-%s" % (i, "x" * 200)
        try:
            os.rename(mnt / name, mnt / other)
            names[i % 50] = other
        except OSError as e:
            assert e.errno == errno.ENOSPC
            failed += 1
            if failed == 30:
                break
    assert failed == 30
    lines = [x for x in mnt.log().splitlines() if "disk is full" in x]
    assert 1 <= len(lines) <= 3 and all("file=%s" % vol.db in x for x in lines), lines
    (where / "hog").unlink()
    wait_until(lambda: try_mkdir(mnt / "d"), 30, "the mount to take names again")
    assert sorted(os.listdir(mnt)) == sorted(names + ["d"])
    for name in names:
        assert read(mnt / name) == b"x" * 5000
    mnt.umount()
    found, _ = cachefs_check.check(vol.url, str(vol.bucket), cachefs_check.Options(unmounted=True))
    assert not found, found[:20]


def test_volume_that_vanishes_under_a_mount(ws, volume):
    """Reformatted or deleted while mounted: the mount ends or fails, it does not write into the new one."""
    mnt = volume.mount("heartbeat=1", expect=r".")
    write(mnt / "f", b"x")
    volume.check_options = None
    s = volume.setting()
    s["UUID"] = "00000000-0000-4000-8000-000000000000"
    volume.sql("UPDATE jfs_setting SET value=? WHERE name='format'", json.dumps(s))

    def refuses():
        if not mnt.mounted():
            return True
        try:
            os.mkdir(mnt / "d")
            os.rmdir(mnt / "d")
            return False
        except OSError:
            return True

    wait_until(refuses, 30, "the mount to notice")
    subprocess.run(["umount", "-l", str(mnt.path)], stderr=subprocess.DEVNULL, timeout=20)
    mnt.wait_end(code=None)


WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o644)
os.write(fd, b"old" * 1000)
print("written", flush=True)
sys.stdin.readline()
os.write(fd, b"late" * 1000)
sys.stdin.readline()
os.close(fd)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_volume_made_anew_under_a_mount(ws, engine):
    """The mount of the volume that is gone writes no data, session or usage into the one that has its place, whose
    inodes and sessions have the same numbers."""
    v = engine_volume(ws, engine)
    v.check_options = None
    old = v.mount("heartbeat=1", expect=r".")
    write(old / "other", b"x")
    writer = ws.python(WRITER, str(old / "f"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout.readline() == "written\n"
    # Usage that it has counted is added before it can notice.
    wait_until(lambda: v.status()["usage"]["used_inodes"] == 2, 30, "the usage to be stored")
    # So is a commit that is under way when the mount is stopped.
    wait_until(lambda: old.stat("data_dirty_bytes") == 0, 30, "the first bytes to be stored")
    stop_process(old.pid())
    ws.run("cachefs", "destroy", "--yes", "--force", v.url, v.status()["setting"]["UUID"], check=True)
    ws.run("cachefs", "format", v.url, "anew", "--storage", "file", "--bucket", v.bucket, check=True)
    new = v.mount("heartbeat=1")
    write(new / "other", b"y")
    write(new / "f", b"new")
    writer.stdin.write("late\n")
    writer.stdin.flush()
    os.kill(old.pid(), signal.SIGCONT)
    wait_until(lambda: not old.mounted(), 60, "the end of the mount")
    old.wait_end(code=None)
    writer.communicate("end\n", timeout=60 * SLOW)
    # Both sessions had the number 1, and it goes on.
    wait_until(lambda: [x["info"]["MountPoint"] for x in v.status()["sessions"]] == [str(new.path)], 30, "a heartbeat")
    assert "another client has ended" not in new.log()
    assert read(new / "f") == b"new"
    new = new.remount()
    assert read(new / "f") == b"new"
    new.umount()
    found, _ = cachefs_check.check(v.url, str(v.bucket), cachefs_check.Options(unmounted=True))
    assert not found, found[:20]


LATE = """
import errno, os, sys
fd = os.open(sys.argv[1] + "/f", os.O_WRONLY)
os.write(fd, b"late" * 1000)
print("written", flush=True)
sys.stdin.readline()
try:
    os.fsync(fd) if sys.argv[2] == "fsync" else os.mkdir(sys.argv[1] + "/d")
    print("done", flush=True)
except OSError as e:
    print(errno.errorcode[e.errno], flush=True)
"""


@pytest.mark.parametrize("change", ["fsync", "mkdir"])
@pytest.mark.parametrize("engine", ENGINES)
def test_volume_made_anew_while_the_machine_slept(ws, engine, change):
    """No heartbeat of the mount is due when the machine wakes up, and a program changes something at
    once. The new volume has the old one's name and bucket: blocks have equal names."""
    v = engine_volume(ws, engine)
    v.check_options = None
    clock = Clock(ws)
    old = v.mount("heartbeat=60", env={**clock.env, "CLOCK_SLEPT": "1"}, expect=r".")
    write(old / "f", b"x")
    p = ws.python(LATE, str(old), change, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "written\n"
    stop_process(old.pid())
    ws.run("cachefs", "destroy", "--yes", "--force", v.url, v.status()["setting"]["UUID"], check=True)
    v.format()
    new = v.mount("heartbeat=1")
    write(new / "f", b"new")
    blocks = {path: path.read_bytes() for path in v.objects()}
    clock.set(120)
    os.kill(old.pid(), signal.SIGCONT)
    assert p.communicate("go\n", timeout=60 * SLOW)[0] == "EROFS\n"
    with fails("EROFS"):
        os.unlink(old / "f")
    old.umount()
    assert {path: path.read_bytes() for path in v.objects()} == blocks
    assert os.listdir(new) == ["f"] and read(new / "f") == b"new"
    assert [x["info"]["MountPoint"] for x in v.status()["sessions"]] == [str(new.path)]
    wait_until(lambda: v.status()["usage"]["used_inodes"] == 1, 30, "the usage to be stored")
    new.umount()
    new = new.remount()
    assert read(new / "f") == b"new"
    new.umount()
    found, _ = cachefs_check.check(v.url, str(v.bucket), cachefs_check.Options(unmounted=True))
    assert not found, found[:20]
