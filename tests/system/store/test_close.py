# SPDX-License-Identifier: Apache-2.0
"""Closes that do not wait (close=committing): other mounts see the files in the order of their closes,
and fsync, a replacing rename, an unlock and the end of the mount wait. A failure here is a file that a
program took for stored, and nobody said that it was lost."""

import contextlib
import fcntl
import os
import subprocess
import threading

import proxy
import pytest

from cachefs import tool, wait_until
from s3volume import S3Volume
from syscalls import RENAME_EXCHANGE, data, fails, read, renameat2, write
from test_concurrency import ENGINES, engine_volume, judge
from test_takeover import kill_worker, upgrade

FRESH = "attr-cache=0,entry-cache=0,dir-entry-cache=0"
LATER = "close=committing,io-timeout=100,put-timeout=100"
LOST = "was not stored|not stored|could not be stored|bytes are lost|lost"


def fsync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def later(bucket, opts=LATER):
    return bucket.volume.mount("%s,bucket=%s/bucket" % (opts, bucket.url))


class Bucket:
    """Uploads through it wait in closed(), at most so many of them."""

    def __init__(self, volume, via):
        self.volume, self.via, self.url = volume, via, via.url
        self.open = threading.Event()

    @contextlib.contextmanager
    def closed(self, times=None):
        self.open.clear()
        try:
            yield self.via.add("PUT", "/chunks/", times, rewrite=lambda body: self.open.wait(120) and body)
        finally:
            self.open.set()


@pytest.fixture
def bucket(ws, s3, via):
    return Bucket(S3Volume(ws, s3), via)


def waits(bucket, mnt, call):
    """The call ends after the bucket has opened, and not before."""
    opened = []

    def run():
        call()
        opened.append(bucket.open.is_set())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    # The read of the number does not count itself. Other requests end soon.
    wait_until(lambda: all(mnt.stat("requests_in_flight") for _ in range(20)), 20, "the request")
    bucket.open.set()
    thread.join(60)
    assert opened == [True]


def test_files_are_seen_in_the_order_of_their_closes(bucket):
    mnt, other = later(bucket), bucket.volume.mount(FRESH)
    with bucket.closed(times=1) as puts:
        write(mnt / "first", b"1")
        wait_until(lambda: puts.hits == 1, 20, "its upload")
        for name in ("second", "third"):
            write(mnt / name, name.encode())
        wait_until(lambda: len(bucket.volume.objects()) == 3, 20, "the other uploads")
        assert [read(other / n) for n in ("first", "second", "third")] == [b""] * 3
        # This mount has all of them.
        assert read(mnt / "second") == b"second" and os.stat(mnt / "third").st_size == 5
        assert mnt.stat("data_closing_files") == 3
        waits(bucket, mnt, lambda: fsync(mnt.path))
    assert [read(other / n) for n in ("first", "second", "third")] == [b"1", b"second", b"third"]


@pytest.mark.parametrize("engine", ENGINES)
def test_files_are_seen_in_order_on_every_engine(ws, engine):
    vol = engine_volume(ws, engine)
    mnt, other = vol.mount("close=committing"), vol.mount(FRESH)
    n, seen = 60, 0
    for i in range(n):
        write(mnt / ("f%02d" % i), data(3000, i))
        sizes = [os.stat(other / ("f%02d" % k)).st_size for k in reversed(range(i + 1))][::-1]
        full = sizes.count(3000)
        # Looked at from the last to the first: what came meanwhile is at the front.
        assert sizes == [3000] * full + [0] * (i + 1 - full), sizes
        assert full >= seen
        seen = full
    fsync(mnt.path)
    assert [read(other / ("f%02d" % i)) for i in range(n)] == [data(3000, i) for i in range(n)]
    judge(vol, [mnt, other])


def test_small_files_are_uploaded_in_parallel(bucket):
    mnt = later(bucket)
    with bucket.closed() as puts:
        for i in range(20):
            write(mnt / ("f%d" % i), data(1000, i))
        wait_until(lambda: puts.hits >= 10, 20, "ten uploads at once")
    fsync(mnt.path)
    assert [read(mnt / ("f%d" % i)) for i in range(20)] == [data(1000, i) for i in range(20)]


def replace(home):
    os.rename(home / "f", home / "old")
    assert read(home / "old") == b"new"


def exchange(home):
    renameat2(home / "a", home / "b", RENAME_EXCHANGE)


def unlock(home):
    fd = os.open(home / "old", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def clone(home):
    subprocess.run([tool("cachefs"), "clone", home / "f", home / "copy"], check=True)
    assert read(home / "copy") == b"new"


WAITERS = {
    "fsync": lambda home: fsync(home / "f"),
    "fsync of a directory": lambda home: fsync(home / "a"),
    "rename over a name": replace,
    "clone": clone,
    "exchange of directories": exchange,
    "unlock": unlock,
}


@pytest.mark.parametrize("how", WAITERS)
def test_what_waits(bucket, how):
    """Below the root: the kernel lets nobody look up .stats while names beside it are renamed."""
    mnt = later(bucket)
    home = mnt / "home"
    for name in ("a", "b"):
        os.makedirs(home / name)
    write(home / "old", b"old", sync=True)
    with bucket.closed():
        write(home / "f", b"new")
        waits(bucket, mnt, lambda: WAITERS[how](home))
    assert mnt.stat("data_closing_files") == 0


def test_what_does_not_wait(bucket):
    mnt = later(bucket)
    with bucket.closed():
        write(mnt / "f", b"new")
        os.rename(mnt / "f", mnt / "g")
        os.link(mnt / "g", mnt / "h")
        assert read(mnt / "h") == b"new"
        os.unlink(mnt / "g")
        write(mnt / "temporary", b"x")
        os.unlink(mnt / "temporary")
        assert os.listdir(mnt) == ["h"]
        assert mnt.stat("data_closing_files") == 2
    fsync(mnt.path)
    assert read(bucket.volume.mount(FRESH) / "h") == b"new"


def test_an_unmount_and_an_upgrade_wait(ws, bucket):
    mnt = later(bucket)
    bucket.via.add("PUT", "/chunks/", delay=0.5)
    opts = "%s,bucket=%s/bucket" % (LATER, bucket.url)
    for i in range(30):
        write(mnt / ("f%d" % i), data(1000, i))
    upgrade(ws, bucket.volume, mnt, opts)
    fsync(mnt.path)
    for i in range(30, 60):
        write(mnt / ("f%d" % i), data(1000, i))
    mnt.umount()
    mnt = bucket.volume.mount()
    assert [read(mnt / ("f%d" % i)) for i in range(60)] == [data(1000, i) for i in range(60)]


def test_a_death_is_reported(bucket):
    bucket.volume.check_options = {"leaks": "warn", "unmounted": True}
    mnt = later(bucket)
    write(mnt / "stored", b"stored", sync=True)
    with bucket.closed() as puts:
        for name in "ab":
            write(mnt / name, b"lost")
        wait_until(lambda: puts.hits == 2, 20, "the uploads")
        kill_worker(mnt)
    assert mnt.stat("closed_files_failed_total") == 2
    assert "data of closed files that was not yet stored is lost" in mnt.log()
    assert read(mnt / "a") == b""
    with fails("EIO"):
        fsync(mnt / "a")
    fsync(mnt / "a")
    fsync(mnt / "stored")
    with fails("EIO"):
        fsync(mnt.path)
    fsync(mnt.path)
    write(mnt / "a", b"again", sync=True)
    assert read(bucket.volume.mount() / "a") == b"again"


def test_a_bucket_that_takes_nothing_is_reported(bucket):
    mnt = later(bucket, "close=committing,io-timeout=2")
    mnt.allow(LOST)
    write(mnt / "old", b"old", sync=True)
    bucket.via.add("PUT", "/chunks/", status=403, body=proxy.xml_error("AccessDenied"))
    for name in "ab":
        write(mnt / name, b"denied")
    wait_until(lambda: mnt.stat("closed_files_failed_total") == 2, 30, "the end of tries")
    assert mnt.log().count("data of a closed file was not stored") == 2
    with fails("EIO"):
        fsync(mnt.path)
    fsync(mnt.path)
    # A replacing rename is told, too, and the old content is kept.
    with fails("EIO"):
        os.rename(mnt / "a", mnt / "old")
    assert read(mnt / "old") == b"old"
    # As long as there is memory for the bytes they are tried again.
    bucket.via.clear()
    wait_until(lambda: mnt.stat("data_dirty_bytes") == 0, 30, "the bucket to take them")
    with fails("EIO"):
        fsync(mnt / "b")
    fsync(mnt / "b")
    write(mnt / "c", b"taken")
    fsync(mnt.path)
    assert [read(bucket.volume.mount() / name) for name in "abc"] == [b"denied", b"denied", b"taken"]



@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("opts", ["", ",writeback"])
def test_attributes_of_closed_files(ws, engine, opts):
    """As tar, cp -p and rsync set them: before the close or by name after it, while the bytes wait."""
    opts = "close=committing,cache-dir=%s%s" % (ws.dir / "cache", opts)
    mnt = engine_volume(ws, engine).mount(opts)
    modes, n = (0o640, 0o604, 0o600), 120
    content = [data(1000 + i, i) for i in range(n)]
    os.mkdir(mnt / "d")
    for i in range(n):
        path = mnt / "d" / str(i)
        fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        os.write(fd, content[i])
        if i % 5 == 0:
            os.fchown(fd, 1000, 1001)
        if i % 3 == 0:
            os.fchmod(fd, modes[0])
            os.utime(fd, (100 + i, 200 + i))
        os.close(fd)
        if i % 3 == 1:
            os.chmod(path, modes[1])
            os.utime(path, (100 + i, 200 + i))
        if i % 7 == 0:
            os.rename(path, mnt / "name")
            os.rename(mnt / "name", path)
    for _ in range(2):  # as this mount shows them, and as they are stored
        for i in range(n):
            path = mnt / "d" / str(i)
            st = os.stat(path)
            assert st.st_mode & 0o777 == modes[i % 3]
            assert i % 3 == 2 or (st.st_atime, st.st_mtime) == (100 + i, 200 + i)
            assert (st.st_uid, st.st_gid) == ((0, 0) if i % 5 else (1000, 1001))
        for i in range(n):
            assert read(mnt / "d" / str(i)) == content[i]
        mnt = mnt.remount(opts)


def test_each_loss_is_reported_by_the_file(ws, bucket):
    """However many files lost data, and whatever the mount's process goes through before their fsync."""
    bucket.volume.check_options = {"leaks": "warn", "unmounted": True}
    mnt = later(bucket)
    names = ["f%d" % i for i in range(300)]
    with bucket.closed():
        for name in names:
            write(mnt / name, b"lost")
        kill_worker(mnt)
    # The last one's handle may outlive the process.
    wait_until(lambda: mnt.stat("closed_files_failed_total") == len(names), 20, "the releases")
    for change in ("nothing", "death", "upgrade"):
        if change == "death":
            kill_worker(mnt)
        elif change == "upgrade":
            upgrade(ws, bucket.volume, mnt, "%s,bucket=%s/bucket" % (LATER, bucket.url))
        some, names = names[:40], names[40:]
        for name in some:
            with fails("EIO"):
                fsync(mnt / name)
            fsync(mnt / name)
    write(mnt / "good", b"good", sync=True)
    with fails("EIO"):
        os.rename(mnt / names[0], mnt / "good")
    with fails("EIO"):
        renameat2(mnt / names[1], mnt / "good", RENAME_EXCHANGE)
    with fails("EIO"):
        renameat2(mnt / "good", mnt / names[2], RENAME_EXCHANGE)
    assert read(mnt / "good") == b"good"
    renameat2(mnt / "good", mnt / names[2], RENAME_EXCHANGE)
    assert read(mnt / names[2]) == b"good"
