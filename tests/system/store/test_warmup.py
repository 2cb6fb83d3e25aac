# SPDX-License-Identifier: Apache-2.0
"""cachefs warmup, and what is fetched beyond what was asked for. A failure here is a job that starts
cold after a night of warming up, a bucket's bill for bytes that nobody read, or a command that
cannot be stopped."""

import json
import os
import pathlib
import pty
import random
import re
import select
import time

import pytest

from admin import ask
from cachefs import SLOW, tool, wait_until
from s3volume import S3Volume
from syscalls import read, write
from test_disk_cache import MIB, Cache, options, random_bytes, without_bucket


@pytest.fixture
def vol(ws):
    return ws.volume(block_size="1M")


@pytest.fixture
def cache(ws, vol):
    return Cache(vol, ws.path("cache"))


def tree(mnt):
    """path below the mount -> content; 7 blocks of 1 MiB"""
    files = {
        "d/big": random_bytes(4 * MIB + 10, 1),
        "d/e/f/deep": random_bytes(10, 2),
        "d/e/other": random_bytes(1000, 3),
        "outside": random_bytes(5, 4),
    }
    for name, content in files.items():
        (mnt / name).parent.mkdir(parents=True, exist_ok=True)
        write(mnt / name, content)
    (mnt / "d/empty").touch()
    (mnt / "d/link").symlink_to("big")
    return files


def warmup(ws, *args, check=True, **kw):
    r = ws.run("cachefs", "warmup", *args, timeout=60, **kw)
    assert not check or r.returncode == 0, r.stdout + r.stderr
    return r


def as_json(ws, *args, **kw):
    return json.loads(warmup(ws, "--json", *args, **kw).stdout)


# -- the command


def test_tree_into_the_disk_cache(ws, vol, cache):
    mnt = vol.mount(options(cache, "cache-large-write"))
    files = tree(mnt)
    mnt.umount()
    mnt = vol.mount(options(cache))
    got = as_json(ws, "--evict", mnt)
    assert got["evicted"] == sum(map(len, files.values())) and not cache.files()
    inside = sum(len(c) for name, c in files.items() if name.startswith("d/"))
    got = as_json(ws, mnt / "d")
    assert (got["files"], got["blocks"], got["bytes"]) == (4, 7, inside)
    assert (got["fetched"], got["cached"], got["failed"], got["disk_cache"]) == (inside, 0, 0, True)
    assert len(cache.files()) == 7
    cache.check()
    got = as_json(ws, mnt / "d", "--threads", "1")
    assert (got["fetched"], got["cached"]) == (0, inside)
    mnt.umount()
    mnt = vol.mount(options(cache))
    got = as_json(ws, "--check", mnt / "d", mnt / "outside")
    assert [p["disk"] for p in got["paths"]] == [inside, 0]
    assert got["memory"] == 0
    with without_bucket(vol):
        for name in files:
            if name != "outside":
                assert read(mnt / name) == files[name]


def test_words(ws, vol, cache):
    """The output for people, without --json."""
    mnt = vol.mount(options(cache))
    write(mnt / "f", random_bytes(2 * MIB))
    warmup(ws, "--evict", mnt / "f")
    assert re.fullmatch(
        r"1 files, 2.0 MiB: 2.0 MiB fetched into the disk cache, 0 B were there\n",
        warmup(ws, mnt / "f").stdout,
    )
    out = warmup(ws, "--check", mnt / "f").stdout
    assert out.startswith("%s: 2.0 MiB, " % (mnt / "f")) and "2.0 MiB in the disk cache" in out
    assert "2.0 MiB dropped" in warmup(ws, "--evict", mnt / "f").stdout
    assert "0 B in memory, 0 B in the disk cache" in warmup(ws, "--check", mnt / "f").stdout


def test_list_of_paths(ws, vol, cache):
    mnt = vol.mount(options(cache))
    paths = []
    (mnt / "n").mkdir()
    for i in range(300):
        paths.append(mnt / ("n/%d" % i))
        with open(paths[-1], "wb") as f:
            f.write(b"%d" % i)
            f.flush()
            os.fsync(f.fileno())
    wait_until(lambda: mnt.stat("disk_cache_pending_bytes") == 0, 20, "all is on disk")
    warmup(ws, "--evict", mnt)
    lines = "".join("%s\n" % p for p in paths)
    (ws.dir / "list").write_text(lines)
    got = as_json(ws, "-f", ws.dir / "list")
    assert (got["files"], got["blocks"], got["failed"]) == (300, 300, 0)
    assert got["fetched"] == sum(len(str(i)) for i in range(300))
    got = as_json(ws, "--check", "-f", "-", input=lines.encode())
    assert got["disk"] == got["bytes"] and len(got["paths"]) == 300


def test_memory_when_there_is_no_disk_cache(ws, vol):
    mnt = vol.mount()
    write(mnt / "f", random_bytes(3 * MIB))
    warmup(ws, "--evict", mnt / "f")
    r = warmup(ws, mnt / "f")
    assert "no disk cache" in r.stderr and "fetched into the memory cache" in r.stdout
    got = as_json(ws, "--check", mnt / "f")
    assert (got["memory"], got["disk"], got["disk_cache"]) == (3 * MIB, 0, False)


def test_what_the_disk_cache_declines(ws, vol, cache):
    mnt = vol.mount(options(cache, "cache-partial-only"))
    write(mnt / "f", random_bytes(2 * MIB + 10))
    warmup(ws, "--evict", mnt / "f")
    r = warmup(ws, mnt / "f")
    assert "2 blocks are not kept" in r.stderr
    assert "10 B fetched" in r.stdout


def test_sparse_and_overwritten(ws, vol, cache):
    """Only what can be read is fetched; a hole of 2^50 bytes takes no time."""
    mnt = vol.mount(options(cache))
    write(mnt / "f", random_bytes(2 * MIB))
    with open(mnt / "f", "r+b") as f:
        f.seek(MIB)
        f.write(b"new")
        f.flush()
        os.fsync(f.fileno())
        f.truncate(1 << 50)
        f.seek((1 << 50) - 1)
        f.write(b"!")
    warmup(ws, "--evict", mnt / "f")
    got = as_json(ws, mnt / "f")
    assert got["bytes"] == 2 * MIB + 1 and got["failed"] == 0
    got = as_json(ws, "--check", mnt / "f")
    assert got["disk"] == got["bytes"]


def test_many_directories(ws, vol, cache):
    """More than a page of entries, subdirectories among them, and a deep path; here and in other commands."""
    mnt = vol.mount(options(cache))
    for i in range(600):
        (mnt / ("m/%d" % i)).mkdir(parents=True)
        if i % 10 == 0:
            write(mnt / ("m/%d/f" % i), b"x")
        write(mnt / ("m/f%d" % i), b"y")
    deep = pathlib.Path(mnt / "deep")
    for i in range(60):
        deep = deep / "d"
    deep.mkdir(parents=True)
    write(deep / "f", b"z")
    got = as_json(ws, "--check", mnt / "m", mnt / "deep")
    assert [p["files"] for p in got["paths"]] == [660, 1]
    assert ask(ws, "compact", mnt / "m")["files"] == 660
    tree = ask(ws, "summary", mnt / "m", "--entries", "2")
    assert (tree["files"], tree["dirs"]) == (660, 601)
    assert [e["name"] for e in tree["entries"]] == ["0", "10", "..."]


def test_subdirectory_mount(ws, vol, cache):
    mnt = vol.mount(options(cache))
    tree(mnt)
    mnt.umount()
    mnt = vol.mount(options(cache, "subdir=/d"))
    assert as_json(ws, mnt)["files"] == 4


def test_mistakes(ws, vol, cache):
    mnt = vol.mount(options(cache))
    write(mnt / "f", b"1")
    r = warmup(ws, mnt / "no", check=False)
    assert r.returncode == 1 and "No such file" in r.stderr
    r = warmup(ws, "/etc", check=False)
    assert r.returncode == 1 and "not in a cachefs mount" in r.stderr
    r = warmup(ws, check=False)
    assert r.returncode == 1 and "usage" in r.stderr
    r = warmup(ws, "--evict", "--check", mnt, check=False)
    assert r.returncode == 1 and "exclude" in r.stderr
    r = warmup(ws, "-f", ws.dir, check=False)
    assert r.returncode == 2 and "Is a directory" in r.stderr, r.stderr
    r = warmup(ws, "-f", ws.dir / "no list", check=False)
    assert r.returncode == 1 and "No such file" in r.stderr
    # the others are done all the same
    r = warmup(ws, "--json", mnt / "no", mnt / "f", check=False)
    assert r.returncode == 1 and json.loads(r.stdout)["files"] == 1


def test_objects_that_are_missing(ws, vol, cache):
    mnt = vol.mount(options(cache))
    write(mnt / "f", random_bytes(3 * MIB))
    warmup(ws, "--evict", mnt)
    vol.check_options = None
    vol.objects()[0].unlink()
    r = warmup(ws, "--json", mnt / "f", check=False)
    assert r.returncode == 2 and "1 blocks or files failed" in r.stderr
    assert json.loads(r.stdout)["fetched"] == 2 * MIB


def test_small_memory(ws, vol, cache):
    """More than the memory holds, by more threads than have room in it."""
    mnt = vol.mount(options(cache, "buffer-size=8"))
    content = random_bytes(40 * MIB)
    write(mnt / "f", content)
    warmup(ws, "--evict", mnt)
    got = as_json(ws, "--threads", "64", mnt / "f")
    assert (got["failed"], got["fetched"]) == (0, 40 * MIB)
    got = as_json(ws, "--check", mnt / "f")
    assert got["disk"] == 40 * MIB


# -- with a bucket


@pytest.fixture
def bucket(ws, s3):
    """A volume with a file of 48 blocks of 1 MiB in a bucket."""
    vol = S3Volume(ws, s3, block_size="1M")
    mnt = vol.mount()
    write(mnt / "f", random_bytes(48 * MIB))
    mnt.umount()
    return vol


def test_bar_and_interrupt(ws, bucket):
    """On a terminal there is a bar with rate and time left; Ctrl-C ends it, in the mount, too."""
    cache = Cache(bucket, ws.path("cache"))
    mnt = bucket.mount(options(cache, "download-limit=16"))  # 2 MB/s: 25 s
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(tool("cachefs"), ["cachefs", "warmup", "--threads", "2", str(mnt / "f")])
    seen, end = b"", time.monotonic() + 20 * SLOW
    while b"left" not in seen and time.monotonic() < end:
        if select.select([fd], [], [], 1)[0]:
            seen += os.read(fd, 4096)
    assert re.search(rb"\[#* *\] [\d.]+ [KM]iB of 48.0 MiB, [\d.]+ \w+/s, \d+:\d\d left", seen), seen
    os.write(fd, b"\x03")

    def gone():
        while select.select([fd], [], [], 0)[0]:
            try:
                os.read(fd, 4096)
            except OSError:
                break
        return os.waitpid(pid, os.WNOHANG)[0]

    wait_until(gone, 20, "the end of the command")
    os.close(fd)
    wait_until(lambda: not [p for p in tasks(mnt) if p == "cfs-warmup"], 20, "the end of its threads")
    assert mnt.stat("object_data_bytes_total{method=\"get\"}") < 24 * MIB


def tasks(mnt):
    out = []
    for task in os.listdir("/proc/%d/task" % mnt.pid()):
        try:
            out.append(pathlib.Path("/proc/%d/task/%s/comm" % (mnt.pid(), task)).read_text().strip())
        except OSError:
            pass
    return out


def random_reads(path, offsets):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for off in offsets:
            assert len(os.pread(fd, 4096, off)) == 4096
    finally:
        os.close(fd)


GOT = 'object_data_bytes_total{method="get"}'


def test_random_reads_fetch_ranges(bucket):
    mnt = bucket.mount("prefetch=0")
    offsets = [i * MIB + 300_000 for i in range(20, 40)]
    random.Random(1).shuffle(offsets)
    random_reads(mnt / "f", offsets)
    assert mnt.stat(GOT) == 20 * 128 * 1024


def test_few_random_reads_bring_the_block(bucket):
    mnt = bucket.mount()
    with open(mnt / "f", "rb", buffering=0) as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        assert len(os.pread(f.fileno(), 4096, 30 * MIB + 300_000)) == 4096
        wait_until(lambda: mnt.stat(GOT) == MIB, 20, "the whole block")


def test_many_random_reads_do_not_fetch_the_file(bucket):
    mnt = bucket.mount()
    offsets = [i * MIB + 300_000 for i in range(1, 48)]
    random.Random(1).shuffle(offsets)
    random_reads(mnt / "f", offsets)
    wait_until(lambda: mnt.stat("store_downloads_queued") == 0, 20, "quiet")
    assert mnt.stat("data_prefetches_declined_total") > 20
    assert mnt.stat(GOT) < 28 * MIB


def test_compressed_volume_fetches_each_block_once(ws, s3):
    """Of such a block there are no parts."""
    vol = S3Volume(ws, s3, block_size="1M", compress="lz4")
    mnt = vol.mount()
    write(mnt / "f", b"abc" * (3 * MIB))
    mnt.umount()
    mnt = vol.mount()
    random_reads(mnt / "f", [8 * MIB + 5, 8 * MIB + 900_000, 8 * MIB + 400_000])
    assert mnt.stat('object_requests_total{method="get"}') == 1


def test_reading_on_keeps_many_blocks_on_their_way(ws, bucket, via):
    """Latency must not be paid block by block: 30 requests one after the other would take 18 s."""
    via.add(method="GET", delay=0.6)
    mnt = bucket.mount("bucket=%s/bucket" % via.url)
    start = time.monotonic()
    assert len(read(mnt / "f")) == 48 * MIB
    assert time.monotonic() - start < 12 * SLOW


def test_closing_ends_read_ahead(bucket):
    """A file that is opened, read from and closed leaves nothing in the queue."""
    mnt = bucket.mount("download-limit=80,max-downloads=2")  # 10 MB/s
    fd = os.open(mnt / "f", os.O_RDONLY)
    for i in range(8):
        os.pread(fd, 256 << 10, i * 256 << 10)
    os.close(fd)
    wait_until(lambda: mnt.stat("data_read_sessions") == 0, 20, "the release")
    time_of_one = mnt.stat(GOT)
    wait_until(lambda: mnt.stat("pool_used_bytes{use=\"read\"}") == 0, 30, "quiet")
    assert mnt.stat(GOT) <= time_of_one + 3 * MIB


def test_closing_aborts_transfers(bucket, via):
    """Fetches for a closed file are not waited for."""
    stuck = r"_[3-9]_\d+$"
    via.add(method="GET", path=stuck, delay=600)
    mnt = bucket.mount("bucket=%s/bucket,get-timeout=600" % via.url)
    fd = os.open(mnt / "f", os.O_RDONLY)
    # else the kernel itself waits for what lies ahead
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    for i in range(20):
        assert len(os.pread(fd, 128 << 10, i * 128 << 10)) == 128 << 10
    wait_until(lambda: via.seen("GET", stuck), 30, "a transfer that stands still")
    assert mnt.stat('pool_used_bytes{use="read"}') > 0
    os.close(fd)
    wait_until(lambda: mnt.stat('pool_used_bytes{use="read"}') == 0, 30, "its end")
