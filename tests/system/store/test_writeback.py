# SPDX-License-Identifier: Apache-2.0
"""Writeback, and an object store that goes away. A failure here is data that was confirmed and is
gone, something else in the bucket than what was written, a mount that stands still although it need
not, or one that outgrows its memory."""

import contextlib
import errno
import itertools
import os
import pathlib
import pty
import random
import re
import signal
import subprocess
import tarfile
import threading
import time

import proxy
import pytest

import test_crash
from cachefs import SLOW, sanitized, stop_process, tool, wait_until
from s3volume import S3Volume
from syscalls import data, read, write
from test_lost_locks import expire, processes, session_of, sessions
from test_replica import DAY, Clock

LONG = bool(os.environ.get("CACHEFS_LONG"))
FAILS = r"cannot be uploaded|cannot be stored|cannot be read|not read in time|object store"


class World:
    """A volume in S3 behind the proxy, and a cache directory that outlives its mounts."""

    def __init__(self, ws, s3, via, **options):
        self.ws, self.via = ws, via
        self.vol = S3Volume(ws, s3, **options)
        self.cache = ws.path("cache")

    def mount(self, opts="writeback", **kw):
        where = "bucket=%s/bucket,cache-dir=%s,put-timeout=5" % (self.via.url, self.cache)
        return self.vol.mount(",".join(filter(None, [where, opts])), **kw)

    def elsewhere(self):
        """As another machine sees it: without the cache directory."""
        return self.vol.mount("")

    def staged(self):
        root = self.cache / self.vol.setting()["UUID"] / "rawstaging"
        return sorted(p for p in root.rglob("*_*") if p.suffix != ".tmp")


@pytest.fixture
def world(ws, s3, via):
    return World(ws, s3, via)


def uploaded(mnt, seconds=60):
    wait_until(lambda: mnt.stat("staging_blocks") == 0, seconds, "the upload of what is staged")


# -- away and back


def test_uploaded_when_it_returns(world):
    """The bucket is away: writes and fsync go on, files are read back, and all arrives later."""
    content = {"f%d" % i: data(size, i) for i, size in enumerate((1, 4096, 100_001, 9_000_000))}
    mnt = world.mount()
    mnt.allow(FAILS)
    world.via.add(refuse=True)
    start = time.monotonic()
    for name, what in content.items():
        write(mnt / name, what, sync=True)
    assert time.monotonic() - start < 30 * SLOW  # of the 60 s that io-timeout gives
    assert not world.vol.objects()
    now = mnt.stats()
    assert now["staging_blocks"] == 6
    assert now["staging_bytes"] == sum(map(len, content.values()))
    wait_until(lambda: mnt.stat("staging_oldest_seconds") >= 2, 20, "the age of what is staged")
    # not from the memory of this process
    mnt.kill9()
    world.vol.check_options = {"leaks": "warn", "unmounted": False}
    mnt = world.mount()
    mnt.allow(FAILS)
    for name, what in content.items():
        assert read(mnt / name) == what
    assert not world.vol.objects()
    world.via.clear()
    uploaded(mnt)
    assert mnt.stat("staging_oldest_seconds") == 0
    assert mnt.stat("staging_uploads_total") == 6
    assert not world.staged()
    other = world.elsewhere()
    for name, what in content.items():
        assert read(other / name) == what
    lines = [x for x in mnt.log().splitlines() if "staged block cannot be uploaded" in x]
    assert len(lines) == len({x.partition("key=")[2].partition(" ")[0] for x in lines})


def test_removed_before_upload(world):
    mnt = world.mount("writeback,upload-delay=1h")
    write(mnt / "f", data(5_000_000), sync=True)
    assert len(world.staged()) == 2
    os.unlink(mnt / "f")
    wait_until(lambda: not world.staged(), 30, "the end of the staged blocks")
    mnt.umount()
    assert not world.vol.objects()
    assert not world.via.seen("PUT", "chunks")


@pytest.mark.parametrize("how", ("delay", "hours"))
def test_held_back(world, how):
    """upload-delay, upload-hours; the end of the mount does not wait for either."""
    hour = time.localtime().tm_hour
    opts = {"delay": "upload-delay=1h", "hours": "upload-hours=%d-%d" % ((hour + 2) % 24, (hour + 3) % 24)}
    mnt = world.mount("writeback," + opts[how])
    write(mnt / "f", b"not yet", sync=True)
    wait_until(lambda: mnt.stat("staging_oldest_seconds") >= 3, 20, "three seconds")
    assert not world.vol.objects()
    mnt.umount()
    assert len(world.vol.objects()) == 1 and not world.staged()


def test_held_back_by_a_clock_that_was_wrong(world):
    """A host notices that its clock is a day ahead. Without this its blocks stay there for a day longer."""
    clock = Clock(world.ws)
    mnt = world.mount("writeback,upload-delay=1s", env=clock.env)
    clock.set(DAY)
    write(mnt / "f", b"in a second", sync=True)
    clock.set(0)
    uploaded(mnt)
    assert len(world.vol.objects()) == 1


def test_bad_options(world):
    r = world.ws.run("cachefs", "mount", world.vol.url, world.ws.dir, "-o", "upload-hours=25-3")
    assert r.returncode and "upload-hours" in r.stderr, r
    r = world.ws.run("cachefs", "mount", world.vol.url, world.ws.dir, "-o", "writeback,cache-dir=none")
    assert r.returncode and "writeback needs a cache-dir" in r.stderr, r


def test_cap(world):
    """Writes beyond stage-size go straight to the bucket."""
    mnt = world.mount("writeback,upload-delay=1h,stage-size=9M")
    content = data(30_000_000)
    write(mnt / "f", content, sync=True)
    assert mnt.log().count("no room to stage more blocks") == 1
    assert mnt.stat("staging_bytes") <= 9 << 20
    assert mnt.stat("staging_bypassed_total") >= 4
    assert len(world.vol.objects()) >= 4
    mnt = mnt.remount()
    assert read(mnt / "f") == content


def test_threshold(world):
    mnt = world.mount("writeback,upload-delay=1h,writeback-threshold-size=1M")
    write(mnt / "f", data(5_000_000), sync=True)
    assert len(world.vol.objects()) == 1 and len(world.staged()) == 1


def test_full_disk(world):
    """The disk takes no more, or is torn away: writes go through, what is staged stays."""
    world.cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", world.cache], check=True)
    try:
        mnt = world.mount("writeback,upload-delay=1h,free-space-ratio=0")
        first, content = data(1_000_000, 1), data(30_000_000)
        write(mnt / "first", first, sync=True)  # alone: blocks at the same time may leave each other no space
        assert mnt.stat("staging_blocks") == 1
        write(mnt / "f", content, sync=True)
        assert mnt.stat("staging_blocks") >= 1
        assert len(world.vol.objects()) >= 4
        assert read(mnt / "first") == first and read(mnt / "f") == content
        mnt.umount()
        elsewhere = world.elsewhere()
        assert read(elsewhere / "first") == first and read(elsewhere / "f") == content
    finally:
        subprocess.run(["umount", "-l", world.cache])


def test_little_free_space(world):
    """Blocks that are read are not cached there any more; what is written is staged down to half of it."""
    world.cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", world.cache], check=True)
    try:
        write(world.elsewhere() / "old", data(1_000_000, 1))
        write(world.cache / "filler", bytes(24 << 20))
        mnt = world.mount("writeback,upload-delay=1h,free-space-ratio=0.5")
        mnt.allow("not cached|takes no more blocks")
        assert read(mnt / "old") == data(1_000_000, 1)
        wait_until(lambda: mnt.stat("disk_cache_drops_total") >= 1, 20, "the block not to be cached")
        write(mnt / "f", data(1_000_000), sync=True)
        assert mnt.stat("staging_blocks") == 1 and mnt.stat("staging_bypassed_total") == 0
        write(mnt / "g", data(9_000_000), sync=True)
        assert mnt.stat("staging_bypassed_total") > 0
        assert "blocks that are read are not cached" in mnt.log()
        mnt.umount()
    finally:
        subprocess.run(["umount", "-l", world.cache])


def test_cached_blocks_make_room(world):
    """The bucket is away, and the disk is full of what was read: that leaves before a write has to fail."""
    world.cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", world.cache], check=True)
    try:
        write(world.elsewhere() / "old", data(36_000_000, 1))
        mnt = world.mount("writeback,io-timeout=20,free-space-ratio=0")
        mnt.allow(FAILS)
        assert read(mnt / "old") == data(36_000_000, 1)
        wait_until(lambda: mnt.stat("disk_cache_bytes") >= 36_000_000, 20, "a full disk")
        world.via.add(method="PUT", refuse=True)
        content = data(12_000_000)
        write(mnt / "new", content, sync=True)
        assert read(mnt / "new") == content
        world.via.clear()
        uploaded(mnt)
        mnt.umount()
        assert read(world.elsewhere() / "new") == content
    finally:
        subprocess.run(["umount", "-l", world.cache])


@pytest.fixture
def full_disk(world):
    """A cache directory on a disk that another program fills, as the mount has noticed. The file of that program."""
    disk = world.ws.path("disk")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", disk], check=True)
    world.cache = disk / "cache"
    world.cache.mkdir()
    try:
        write(world.elsewhere() / "old", data(4_000_000, 1))
        mnt = world.mount("writeback,io-timeout=8,free-space-ratio=0")
        mnt.allow(FAILS + "|takes no more blocks")
        with open(disk / "filler", "wb", buffering=0) as f, contextlib.suppress(OSError):
            while f.write(bytes(4096)):
                pass
        assert read(mnt / "old") == data(4_000_000, 1)
        wait_until(lambda: "takes no more blocks" in mnt.log(), 20, "a cached block that has no space")
        yield mnt, disk / "filler"
        mnt.umount()
    finally:
        subprocess.run(["umount", "-l", disk])


def test_full_disk_that_has_space_again(world, full_disk):
    """The bucket is away. A cached block that found no space does not keep blocks from being staged that have it."""
    mnt, filler = full_disk
    world.via.add(method="PUT", refuse=True)
    filler.unlink()
    write(mnt / "f", data(5_000_000), sync=True)
    assert mnt.stat("staging_blocks") == 2
    world.via.clear()
    uploaded(mnt)
    assert read(world.elsewhere() / "f") == data(5_000_000)


def test_full_disk_that_has_space_again_and_is_moved_away(world, full_disk):
    """The next mount would not find what is staged there."""
    mnt, filler = full_disk
    before = len(world.vol.objects())
    world.cache.rename(world.cache.with_name("away"))
    filler.unlink()
    write(mnt / "f", data(1_000_000), sync=True)
    assert len(world.vol.objects()) == before + 1
    assert not list(world.cache.with_name("away").rglob("rawstaging/**/*_*"))


def test_many_refusals(world):
    """Each upload is refused at once, as with a key that is no longer valid. The log does not have a line for
    each of the blocks."""
    mnt = world.mount()
    mnt.allow(FAILS)
    fault = world.via.add(method="PUT", status=403, body=proxy.xml_error("AccessDenied", "Access denied."))
    for i in range(20):
        write(mnt / ("f%d" % i), data(1000, i), sync=True)
    wait_until(lambda: fault.hits > 25, 60, "a second try")
    lines = [x for x in mnt.log().splitlines() if "cannot be uploaded" in x]
    assert len(lines) == 1 and "AccessDenied" in lines[0]
    world.via.clear()
    uploaded(mnt)
    assert mnt.log().count("uploaded again") == 1
    other = world.elsewhere()
    for i in range(20):
        assert read(other / ("f%d" % i)) == data(1000, i)


def test_staged_file_that_cannot_be_read(world):
    """The line names the file, not the object store. When it can be read again, it is uploaded."""
    mnt = world.mount("writeback,upload-delay=1h")
    write(mnt / "f", data(100_000), sync=True)
    mnt.umount(["cachefs", "umount", "--no-flush", mnt.path])
    mnt = world.mount("writeback,upload-delay=15s")
    mnt.allow(FAILS)
    wait_until(lambda: mnt.stat("staging_blocks") == 1, 10, "the block to be found")
    file = world.staged()[0]
    aside = file.with_name("aside")
    file.rename(aside)
    file.symlink_to(file)
    wait_until(lambda: "cannot be read for its upload" in mnt.log(), 30, "a try")
    line = next(x for x in mnt.log().splitlines() if "cannot be read for" in x)
    assert "file=%s error=ELOOP" % file in line
    aside.rename(file)
    uploaded(mnt)
    assert read(world.elsewhere() / "f") == data(100_000)


def test_deletions_that_are_refused(world):
    """A key that may not delete, and programs that remove many files: the log is still readable."""
    mnt = world.mount("")
    mnt.allow(FAILS)
    for i in range(20):
        write(mnt / ("f%d" % i), data(1000, i))
    forbidden = proxy.xml_error("AccessDenied", "Access denied.")
    fault = world.via.add(method="DELETE|POST", status=403, body=forbidden)
    for i in range(20):
        os.unlink(mnt / ("f%d" % i))
    wait_until(lambda: fault.hits >= 10, 60, "the deletions")
    mnt.umount()
    assert mnt.log().count("cannot remove the objects") == 1
    world.vol.check_options = None  # the objects are left to the hourly job


def test_directory_that_is_moved_away(world):
    """Blocks that are written afterwards are in the bucket, where the next mount finds them. Those that
    were staged before are uploaded from where they are."""
    mnt = world.mount("writeback,upload-delay=1h")
    mnt.allow("takes no more blocks")
    content = data(100_000)
    write(mnt / "before", content, sync=True)
    away = world.cache.with_name("away")
    world.cache.rename(away)
    write(mnt / "after", content, sync=True)
    assert len(world.vol.objects()) == 1
    assert read(world.elsewhere() / "after") == content
    assert "takes no more blocks" in mnt.log()
    mnt.umount()
    assert not list(away.rglob("rawstaging/**/*_*"))
    assert read(world.elsewhere() / "before") == content


def test_compressed(ws, s3, via):
    """Staged blocks are plain; objects are what the volume says."""
    world = World(ws, s3, via, compress="zstd")
    content = b"compressible " * 100_000
    mnt = world.mount("writeback,upload-delay=1h")
    write(mnt / "f", content, sync=True)
    assert world.staged()[0].stat().st_size >= len(content)
    mnt.umount()
    assert world.vol.objects()[0].stat().st_size < len(content) / 10
    assert read(world.elsewhere() / "f") == content


# -- the end of a mount


def test_umount_waits(world):
    mnt = world.mount()
    world.via.add(method="PUT", delay=0.5)
    for i in range(8):
        write(mnt / ("f%d" % i), data(100_000, i), sync=True)
    leader, follower = pty.openpty()
    p = subprocess.Popen(
        [tool("cachefs"), "umount", mnt.path], env=world.ws.env(), stderr=follower, stdout=follower
    )
    os.close(follower)
    shown = b""
    try:
        while piece := os.read(leader, 4096):
            shown += piece
    except OSError as e:
        assert e.errno == errno.EIO  # the other side is closed
    os.close(leader)
    assert p.wait(60) == 0, shown
    assert b"bytes uploaded" in shown
    mnt.wait_end()
    assert len(world.vol.objects()) == 8 and not world.staged()


def test_plain_umount_waits(world):
    mnt = world.mount()
    world.via.add(method="PUT", delay=1)
    for i in range(4):
        write(mnt / ("f%d" % i), data(100_000, i), sync=True)
    mnt.umount(["umount", mnt.path])
    assert len(world.vol.objects()) == 4 and not world.staged()


def test_no_flush(world):
    """Left for the next mount, which uploads it whatever its own options are."""
    mnt = world.mount("writeback,upload-delay=1h")
    content = data(5_000_000)
    write(mnt / "f", content, sync=True)
    mnt.umount(["cachefs", "umount", "--no-flush", mnt.path])
    assert "cache-dir: dir=%s blocks=2 bytes=5000000" % world.cache in mnt.log()
    assert not world.vol.objects() and len(world.staged()) == 2
    ro = world.mount("ro")
    assert read(ro / "f") == content
    ro.umount()
    assert len(world.staged()) == 2
    mnt = world.mount("")
    assert read(mnt / "f") == content
    wait_until(lambda: not world.staged(), 30, "the upload")
    assert read(world.elsewhere() / "f") == content


def test_umount_gives_up(world):
    """The bucket stays away: the command says so and the mount goes on."""
    mnt = world.mount()
    mnt.allow(FAILS)
    world.via.add(refuse=True)
    write(mnt / "f", b"x", sync=True)
    r = world.ws.run("cachefs", "umount", "--timeout", "2", mnt.path)
    assert r.returncode and "--no-flush" in r.stderr, r
    assert read(mnt / "f") == b"x"
    world.via.clear()


def test_interrupted_umount_leaves_the_mount_as_it_was(world):
    """Later writes are held back again."""
    mnt = world.mount("writeback,upload-delay=1h")
    mnt.allow(FAILS)
    world.via.add(refuse=True)
    write(mnt / "f", b"x", sync=True)
    p = world.ws.popen([tool("cachefs"), "umount", mnt.path], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: "staged block cannot be uploaded" in mnt.log(), 20, "a try to upload")
    p.send_signal(signal.SIGINT)
    assert "stays mounted" in p.communicate(timeout=20)[1] and p.returncode == 8
    world.via.clear()
    wait_until(lambda: mnt.stat("staging_oldest_seconds") >= 3, 20, "three seconds")
    assert read(mnt / "f") == b"x" and not world.vol.objects()


# -- crashes


def test_killed_and_mounted_with_another_directory(world):
    """The blocks wait in the first directory. Without a word about it that disk is given away some day."""
    test_crash.crashed(world.vol)
    mnt = world.mount("writeback,upload-delay=1h,heartbeat=1")
    write(mnt / "f", data(100_000), sync=True)
    shown = world.ws.run("cachefs", "status", world.vol.url, check=True).stdout
    assert "stages blocks in %s\n" % world.cache in shown
    mnt.kill9()
    other = world.vol.mount("writeback,cache-dir=%s,heartbeat=1" % world.ws.path("other"))
    other.allow("stopped answering")
    wait_until(lambda: "a mount with writeback stopped answering" in other.log(), 60, "a word about it")
    line = next(x for x in other.log().splitlines() if "a mount with writeback stopped" in x)
    assert "host=%s cache-dir=%s mount=%s" % (os.uname().nodename, world.cache, mnt.path) in line
    again = world.mount("")
    wait_until(lambda: not world.staged(), 30, "the upload")
    assert read(again / "f") == data(100_000)


def test_killed_beside_another_mount_with_the_same_directory(world):
    """That one has looked for staged blocks when it started, and does not find those."""
    test_crash.crashed(world.vol)
    beside = world.mount("heartbeat=1")
    beside.allow("stopped answering")
    mnt = world.mount("writeback,upload-delay=1h,heartbeat=1")
    write(mnt / "f", data(100_000), sync=True)
    wait_until(lambda: mnt.stat("staging_oldest_seconds") >= 10, 60, "ten seconds")
    mnt.kill9()
    wait_until(lambda: "a mount with writeback stopped answering" in beside.log(), 60, "a word about it")
    assert len(world.staged()) == 1
    world.mount("")
    wait_until(lambda: not world.staged(), 30, "the upload")


def test_a_mount_that_goes_on_under_another_session(world):
    """No false alarm when the record of its old session goes."""
    mnt = world.mount("writeback,heartbeat=1")
    beside = world.vol.mount("heartbeat=1,cache-dir=none")
    for m in (mnt, beside):
        m.allow("stopped answering|session")
    sid = session_of(mnt)
    time.sleep(5)  # so that it has not started lately
    frozen = processes(mnt)
    for pid in frozen:
        stop_process(pid)
    try:
        expire(world.vol, sid)
        wait_until(lambda: "a mount with writeback stopped answering" in beside.log(), 60, "a word about it")
    finally:
        for pid in reversed(frozen):
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: session_of(mnt) != sid, 30, "another session")
    wait_until(lambda: sid in sessions(world.vol), 30, "the record of the old one")
    wait_until(lambda: sid not in sessions(world.vol), 60, "its end")
    beside.umount()
    mnt.umount()
    assert (beside.log() + mnt.log()).count("a mount with writeback stopped answering") == 1


@pytest.mark.parametrize("opts", ["", "writeback"])
def test_killed_and_mounted_with_the_same_directory(world, opts):
    """No false alarm."""
    test_crash.crashed(world.vol)
    world.mount("heartbeat=1" + (",writeback" if opts else "")).kill9()
    mnt = world.mount("heartbeat=1")
    wait_until(lambda: "cleaned up after a session" in mnt.log(), 60, "the clean-up")
    mnt.umount()  # the clean-up and what it says have ended
    assert "stopped answering, and" not in mnt.log()


MODES = {
    "through": "cache-dir=none",
    "cache": "",
    "large": "cache-large-write",
    "writeback": "writeback",
    "writeback-large": "writeback,cache-large-write",
    "threshold": "writeback,writeback-threshold-size=1M",
    "cap": "writeback,stage-size=4M",
    "delay": "writeback,upload-delay=1h",
}


@pytest.mark.deadline(240)
@pytest.mark.parametrize("mode", MODES)
def test_killed(world, mode):
    """kill -9 while files are written: what fsync and close confirmed is there, and fits."""
    ws, opts = world.ws, MODES[mode]
    test_crash.crashed(world.vol)
    rng = random.Random(mode)
    promised = []
    for round_ in range(4 if LONG else 2):
        mnt = world.mount(opts)
        mnt.allow(FAILS)
        out = [ws.path("out%d" % k) for k in range(2)]
        writers = [
            ws.python(test_crash.WRITER, mnt.path, str(round_ * 10 + k), stdout=open(out[k], "w"), stderr=-3)
            for k in range(2)
        ]
        enough = rng.randrange(5, 30)
        wait_until(lambda: sum(read(o).count(b"\n") for o in out) >= enough, 60, "some files")
        mnt.kill9()
        for p in writers:
            assert p.wait(20 * SLOW) != 0, "the writer did not notice"
        for o in out:
            promised += read(o).decode().split("\n")[:-1]
    mnt = world.mount(opts)
    for name in promised:
        have = read(mnt / name)
        want = random.Random(name).randbytes(len(have))
        assert have == want and len(have) in (1, 4096, 100_000, 3_000_000), name
    mnt.umount()
    assert not world.staged()
    assert world.vol.verify() == []


def test_damaged_is_not_uploaded(world):
    """A disk that has changed what is staged: nobody is given the wrong bytes for right ones."""
    mnt = world.mount("writeback,upload-delay=1h")
    content = data(100_000)
    write(mnt / "good", content, sync=True)
    write(mnt / "flipped", content, sync=True)
    write(mnt / "torn", content, sync=True)
    mnt.umount(["cachefs", "umount", "--no-flush", mnt.path])
    good, flipped, torn = sorted(world.staged(), key=lambda p: int(p.name.split("_")[0]))
    with open(flipped, "r+b") as f:
        f.seek(70_000)
        byte = f.read(1)[0]
        f.seek(70_000)
        f.write(bytes([byte ^ 1]))
    os.truncate(torn, 40_000)
    mnt = world.mount()
    mnt.allow("staged block is damaged|object is missing|" + FAILS)
    wait_until(lambda: mnt.stat("staging_damaged_blocks") == 2, 30, "both to be found")
    uploaded(mnt)
    assert [p.name for p in world.vol.objects()] == [good.name]
    assert flipped.exists() and torn.exists()
    assert read(mnt / "good") == content
    for name in ("flipped", "torn"):
        with pytest.raises(OSError) as e:
            read(mnt / name)
        assert e.value.errno == errno.EIO
    world.vol.check_options = None  # what these files should have is lost


# -- an outage


def show_state(ws, mnt):
    """Prints what the mount waits for, as `cachefs debug` tells it."""
    ws.run("cachefs", "debug", mnt, ws.path("state.tar.gz"))
    with tarfile.open(ws.path("state.tar.gz")) as archive:
        for member in archive:
            print("----", member.name)
            print(archive.extractfile(member).read().decode("utf-8", "replace")[:20000])


def random_reads(path, size, until, errors, count):
    """A reader of what the disk cache has; the page cache is told to forget it."""
    rng = random.Random(5)
    with open(path, "rb", buffering=0) as f:
        while not until.is_set():
            off = rng.randrange(size - 4096) & ~4095
            start = time.monotonic()
            try:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                assert os.pread(f.fileno(), 4096, off) == data(4096, off)
            except (OSError, AssertionError) as e:
                errors.append("read at %d: %r" % (off, e))
                return
            if time.monotonic() - start > 5 * SLOW:
                errors.append("a cached read took %g s" % (time.monotonic() - start))
            count[0] += 1


def write_files(root, me, until, errors, done):
    """At most five a second: all that a disk takes would have to be uploaded and read afterwards."""
    for i in itertools.count():
        if until.wait(0.2):
            return
        name = "%s-%d" % (me, i)
        try:
            write(root / name, random.Random(name).randbytes(2_000_000), sync=True)
        except OSError as e:
            errors.append("write of %s: %r" % (name, e))
            return
        done.append(name)


def fill(path, content, errors):
    """More than memory takes, without a word of fsync."""
    try:
        write(path, content)
    except OSError as e:
        errors.append("fill: %r" % e)


@pytest.mark.deadline(400)
@pytest.mark.parametrize("mode", ("through", "writeback"))
def test_outage(world, mode):
    """Gone for a while under load: cached reads go on, writes buffer and then wait, nothing is lost
    and nobody has to mount again."""
    seconds = 60 if LONG else 12
    pages = 16_000_000 // 4096
    content = data(60_000_000, 7)
    opts = "buffer-size=32,io-timeout=%d" % ((seconds + 60) * SLOW)
    mnt = world.mount(opts + (",writeback" if mode == "writeback" else ""))
    mnt.allow(FAILS)
    # a page tells its place
    write(mnt / "cached", b"".join(data(4096, 4096 * i) for i in range(pages)), sync=True)
    uploaded(mnt)
    mnt = mnt.remount()
    mnt.allow(FAILS)
    world.ws.run("cachefs", "warmup", mnt / "cached", check=True)
    wait_until(lambda: mnt.stat("disk_cache_blocks") >= 4, 30, "the cache")
    until, errors, count, done = threading.Event(), [], [0], [[], [], []]
    threads = [threading.Thread(target=random_reads, args=(mnt / "cached", 4096 * pages, until, errors, count))]
    threads += [
        threading.Thread(target=write_files, args=(mnt, "w%d" % k, until, errors, done[k])) for k in range(3)
    ]
    for t in threads:
        t.start()
    try:
        wait_until(lambda: all(done), 60, "the first files")
        world.via.add(refuse=True)
        threads.append(threading.Thread(target=fill, args=(mnt / "filled", content, errors)))
        threads[-1].start()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            last = count[0]
            try:
                wait_until(lambda: count[0] > last or errors, 10, "reads to go on")
            except TimeoutError:
                show_state(world.ws, mnt)
                raise
            assert not errors
            time.sleep(0.2)
        during = [len(d) for d in done]
        world.via.clear()
        wait_until(lambda: all(len(d) > n for d, n in zip(done, during)) or errors, 60, "writes to go on")
    finally:
        until.set()
        for t in threads:
            t.join(200)
    assert not errors
    uploaded(mnt)
    other = world.elsewhere()
    assert read(other / "filled") == content
    for name in sum(done, []):
        assert read(other / name) == random.Random(name).randbytes(2_000_000), name
    lines = mnt.log().splitlines()
    assert len(lines) < 60, "\n".join(lines)


def standstill(mnt):
    """A condition: for some time nothing has been written."""
    seen = [0]

    def still():
        seen.append(mnt.stat("written_bytes_total"))
        return len(seen) > 30 and seen[-30] == seen[-1]

    return still


@pytest.mark.deadline(300)
def test_blocked_writers_leave_threads_to_others(world):
    """More writers than threads wait for a bucket that is gone: who needs only a cache is answered."""
    mnt = world.mount("buffer-size=16,max-threads=8,io-timeout=120,attr-cache=0,entry-cache=0")
    mnt.allow(FAILS)
    write(mnt / "cached", data(1_000_000, 3), sync=True)
    world.ws.run("cachefs", "warmup", mnt / "cached", check=True)
    wait_until(lambda: mnt.stat("disk_cache_blocks") >= 1, 30, "the cache")
    world.via.add(refuse=True)
    names = ["w%d" % i for i in range(24)]
    writers = [threading.Thread(target=write, args=(mnt / n, data(4_000_000, i))) for i, n in enumerate(names)]
    for t in writers:
        t.start()
    wait_until(standstill(mnt), 60, "writers that wait")
    for i in range(50):
        with open(mnt / "cached", "rb", buffering=0) as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(f.fileno(), 4096, 4096 * i) == data(1_000_000, 3)[4096 * i : 4096 * (i + 1)]
        assert (mnt / "cached").stat().st_size == 1_000_000
    assert all(t.is_alive() for t in writers)
    world.via.clear()
    for t in writers:
        t.join(200)
    mnt = mnt.remount()
    for i, n in enumerate(names):
        assert read(mnt / n) == data(4_000_000, i)


def test_write_is_tried_until_its_deadline(world):
    """Without writeback: PUT fails for a while, fsync waits and succeeds."""
    mnt = world.mount("io-timeout=40,put-timeout=1")
    mnt.allow(FAILS)
    fault = world.via.add(method="PUT", refuse=True)
    timer = threading.Timer(4, world.via.clear)
    timer.start()
    start = time.monotonic()
    write(mnt / "f", data(5_000_000), sync=True)
    assert time.monotonic() - start > 3
    assert fault is None or fault.hits > 0
    assert read(mnt.remount() / "f") == data(5_000_000)


def test_error_reaches_every_handle_and_data_stays(world):
    """PUT fails for longer than io-timeout: fsync and close say EIO, and as long as there is memory
    the bytes are still there to be stored when that works."""
    mnt = world.mount("io-timeout=3,put-timeout=1")
    mnt.allow(FAILS + "|stored|flushed")
    world.via.add(method="PUT", refuse=True)
    content = data(3_000_000)
    a = os.open(mnt / "f", os.O_CREAT | os.O_RDWR)
    b = os.open(mnt / "f", os.O_RDWR)
    os.write(a, content)
    start = time.monotonic()
    for fd in (a, b):
        with pytest.raises(OSError) as e:
            os.fsync(fd)
        assert e.value.errno == errno.EIO
    assert time.monotonic() - start < 20 * SLOW
    assert read(mnt / "f") == content
    world.via.clear()

    def stored():
        try:
            os.fsync(a)
            return True
        except OSError:
            return False

    wait_until(stored, 30, "an fsync that succeeds")
    try:
        os.fsync(b)
    except OSError as e:
        assert e.errno == errno.EIO
    os.fsync(b)
    os.close(a)
    os.close(b)
    assert read(mnt.remount() / "f") == content


def test_bytes_that_are_stored_after_a_failed_close_are_not_called_lost(world):
    """An operator who reads that line restores a file from a backup that is older than the file."""
    mnt = world.mount("io-timeout=10,put-timeout=1")
    mnt.allow(FAILS + "|stays? in memory")
    content = data(100_000)
    world.via.add(method="PUT", refuse=True)
    with pytest.raises(OSError) as e:
        write(mnt / "f", content, sync=True)  # fsync fails, and then close, when the block's time is over
    assert e.value.errno == errno.EIO
    world.via.clear()
    wait_until(lambda: mnt.stat("open_inodes") == 0, 30, "the end of the handle")
    assert mnt.stat("data_dirty_bytes") == 0
    assert " lost" not in mnt.log()
    assert read(mnt.remount() / "f") == content


def test_truncate_is_not_undone_by_bytes_that_are_stored_later(world):
    """A file is closed with an error, and its bytes wait in memory for the bucket."""
    mnt = world.mount("io-timeout=3,put-timeout=1")
    mnt.allow(FAILS + "|stored|flushed")
    content = data(3_000_000)
    world.via.add(method="PUT", refuse=True)
    with pytest.raises(OSError) as e:
        write(mnt / "f", content)
    assert e.value.errno == errno.EIO
    wait_until(lambda: mnt.stat("open_inodes") == 0, 30, "the end of the handle")
    assert "is lost" not in mnt.log()
    want = b""
    try:
        os.truncate(mnt / "f", 0)
    except OSError as e:
        assert e.errno == errno.EIO
        want = content
    world.via.clear()
    wait_until(lambda: mnt.stat("data_dirty_bytes") == 0, 30, "the bytes that waited")
    assert read(mnt.remount() / "f") == want


# -- memory

STREAM = """
import os, sys
path, size, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
piece = os.urandom(1 << 20)
fd = os.open(path, os.O_RDONLY if what == 'read' else os.O_WRONLY | os.O_CREAT)
for i in range(size >> 20):
    if what == 'read':
        assert len(os.pread(fd, 1 << 20, i << 20)) == 1 << 20
    else:
        os.write(fd, piece)
if what == 'write':
    os.fsync(fd)
os.close(fd)
"""


def peak(pid):
    """The most memory that the process had, without pages of its program and libraries, which others share."""
    status = pathlib.Path("/proc/%d/status" % pid).read_text()
    kib = {k: int(re.search(r"^%s:\s+(\d+) kB$" % k, status, re.M)[1]) for k in ("VmHWM", "RssFile")}
    return (kib["VmHWM"] - kib["RssFile"]) << 10


@pytest.mark.deadline(3600 if LONG else 300)
@pytest.mark.parametrize("mode", ("through", "writeback"))
def test_memory(ws, s3, via, mode):
    """64 streams in a budget of 64 MiB: the process keeps to it, but for 24 MiB of its own."""
    if sanitized():
        pytest.skip("a sanitizer's memory is its own")
    world = World(ws, s3, via)
    size = (1 << 30) if LONG else 32 << 20
    opts = "buffer-size=64" + (",writeback" if mode == "writeback" else "")
    first = world.mount("")
    for i in range(4):
        ws.python(STREAM, str(first / ("r%d" % i)), str(size), "write").wait(600)
    first.umount()
    mnt = world.mount(opts)
    streams = [
        ws.python(STREAM, str(mnt / ("%s%d" % (what[0], i if what == "write" else i % 4))), str(size), what)
        for i in range(32)
        for what in ("read", "write" if i >= 4 else "read")
    ]
    for p in streams:
        assert p.wait(3000 if LONG else 240) == 0
    used = peak(mnt.pid())
    print("peak %.1f MiB" % (used / (1 << 20)))
    assert used <= (64 + 24) << 20, "peak %.1f MiB" % (used / (1 << 20))
    # the upload of what is staged would take longer than all of this
    world.vol.check_options = None
    mnt.kill9()
