# SPDX-License-Identifier: Apache-2.0
"""The disk cache on real mounts. A failure here is a wrong byte, a disk that fills up, or a mount
that goes down with its cache. The layout (volume-format section 8) is written and read here by code
of its own."""

import contextlib
import os
import random
import shutil
import struct
import subprocess
import threading
import time

import pytest

from cachefs import SLOW, need_root, wait_until
from crc32c import crc32c
from syscalls import read, write

MIB = 1 << 20
SEGMENT = 32 << 10
FAST = "cache-retry=0.2,cache-tick=0.1"


# -- the format, independently


def with_trailer(block):
    pieces = [block[i : i + SEGMENT] for i in range(0, len(block), SEGMENT)]
    return block + b"".join(struct.pack(">I", crc32c(p)) for p in pieces)


def murmur3(text):
    """MurmurHash3_x86_32, seed 0."""
    mask, h = 0xFFFFFFFF, 0
    rot = lambda v, n: (v << n | v >> (32 - n)) & mask  # noqa: E731
    for i in range(0, len(text) - 3, 4):
        k = int.from_bytes(text[i : i + 4], "little")
        h = rot(h ^ rot(k * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask, 13) * 5 + 0xE6546B64 & mask
    k = int.from_bytes(text[len(text) & ~3 :], "little")
    h ^= rot(k * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask
    h ^= len(text)
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    return h ^ h >> 16


def owner(ids, key):
    """The index of the directory that a key belongs to."""
    points = sorted(
        (murmur3(b"%d%s" % (i, id_.encode())), n) for n, id_ in enumerate(ids) for i in range(100)
    )
    h = murmur3(key.encode())
    return next((n for p, n in points if p >= h), points[0][1])


class Cache:
    """A cache directory as it is on disk."""

    def __init__(self, volume, path):
        self.volume, self.path = volume, path
        self.dir = path / volume.setting()["UUID"]

    def files(self):
        found = (self.dir / "raw").rglob("*")
        return sorted(p for p in found if p.is_file() and p.suffix != ".tmp")

    def size(self):
        total = 0
        for p in self.files():
            with contextlib.suppress(FileNotFoundError):
                total += p.stat().st_size
        return total

    def key(self, path):
        return str(path.relative_to(self.dir / "raw"))

    def id(self):
        return (self.dir / ".lock").read_text().strip()

    def put(self, key, content):
        path = self.dir / "raw" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)

    def check(self, sums=4):
        """Every file is the object's content, and what the format says (checksums: of some)."""
        for n, path in enumerate(self.files()):
            want, got = read(self.volume.bucket / self.volume.name / self.key(path)), read(path)
            assert int(path.name.split("_")[2]) == len(want)
            assert len(got) == len(want) + (len(want) + SEGMENT - 1) // SEGMENT * 4
            assert got.startswith(want), path
            assert n >= sums or got == with_trailer(want), path
            assert path.stat().st_mode & 0o7777 == 0o600


@contextlib.contextmanager
def without_bucket(volume):
    """Reads in here are not served by the object store."""
    away = volume.bucket.with_name(volume.bucket.name + ".away")
    volume.bucket.rename(away)
    try:
        yield
    finally:
        away.rename(volume.bucket)


def random_bytes(n, seed=1):
    return random.Random(seed).randbytes(n)


@pytest.fixture
def vol(ws):
    return ws.volume(block_size="1M")


@pytest.fixture
def cache(ws, vol):
    return Cache(vol, ws.path("cache"))


def options(cache, *more):
    return ",".join(["cache-dir=%s" % cache.path, "free-space-ratio=0", FAST, *more])


def warm(vol, cache, blocks, *more):
    """A file of so many blocks, all of them in the cache. Returns (content, unmounted mount)."""
    content = random_bytes(blocks * MIB - 5000)
    mnt = vol.mount(options(cache, "cache-large-write", *more))
    write(mnt / "f", content)
    wait_until(lambda: len(cache.files()) == blocks, 20, "a cache of %d blocks" % blocks)
    mnt.umount()
    return content, mnt


# -- what it is for


def test_reads_need_no_object_store(vol, cache):
    content, _ = warm(vol, cache, 8)
    cache.check()
    with without_bucket(vol):
        mnt = vol.mount(options(cache))
        assert read(mnt / "f") == content
        fd = os.open(mnt / "f", os.O_RDONLY | os.O_DIRECT)
        for off in range(0, len(content) - 4096, 333 * 4096):
            assert os.pread(fd, 4096, off) == content[off : off + 4096]
        os.close(fd)
        mnt.umount()


@pytest.mark.parametrize("extra", ["", "max-readahead=0"])
def test_reading_fills_it(vol, cache, extra):
    mnt = vol.mount()
    content = random_bytes(6 * MIB + 10)
    write(mnt / "f", content)
    mnt.umount()
    mnt = vol.mount(options(cache, *filter(None, [extra])))
    assert read(mnt / "f") == content
    wait_until(lambda: len(cache.files()) == 7, 20, "seven cached blocks")
    mnt.umount()
    cache.check()


def test_no_option_no_cache(ws, vol):
    mnt = vol.mount()
    write(mnt / "f", b"x" * MIB)
    text = open("/proc/%d/status" % mnt.pid()).read()
    mnt.umount()
    mnt = vol.mount("cache-dir=none")
    assert read(mnt / "f") == b"x" * MIB
    assert "cfs-cache" not in text
    threads = [
        open("/proc/%d/task/%s/comm" % (mnt.pid(), t)).read()
        for t in os.listdir("/proc/%d/task" % mnt.pid())
    ]
    assert not [t for t in threads if t.startswith("cfs-cache")]


def test_compressed_volume(ws):
    """The cache holds plain bytes, whatever the objects hold."""
    vol = ws.volume(block_size="1M", compress="lz4")
    cache = Cache(vol, ws.path("cache"))
    content = b"abcdefgh" * (3 * MIB // 8)
    mnt = vol.mount(options(cache))
    write(mnt / "f", content)
    mnt.umount()
    mnt = vol.mount(options(cache))
    assert read(mnt / "f") == content
    wait_until(lambda: len(cache.files()) == 3, 20, "three cached blocks")
    mnt.umount()
    for p in cache.files():
        assert read(p) == with_trailer(b"abcdefgh" * (MIB // 8))
    with without_bucket(vol):
        assert read(vol.mount(options(cache)) / "f") == content


# -- sharing with another client


@pytest.mark.parametrize("hash_prefix", [None, True])
def test_directory_of_another_client(ws, hash_prefix):
    """Files that somebody else wrote by the book are read without the object store."""
    vol = ws.volume(block_size="1M", hash_prefix=hash_prefix)
    cache = Cache(vol, ws.path("cache"))
    content = random_bytes(3 * MIB + 100000)
    mnt = vol.mount()
    write(mnt / "f", content)
    mnt.umount()
    for path in vol.objects():
        cache.put(str(path.relative_to(vol.bucket / vol.name)), with_trailer(read(path)))
    write(cache.dir / ".lock", b"6bb6fc5c-7a0f-4b0c-9f0a-1d2f3e4a5b6c")
    with without_bucket(vol):
        mnt = vol.mount(options(cache))
        assert read(mnt / "f") == content
        mnt.umount()
    assert cache.id() == "6bb6fc5c-7a0f-4b0c-9f0a-1d2f3e4a5b6c"


def test_directories_of_another_client(ws):
    """Blocks are looked for in the directory where JuiceFS's hash ring puts them."""
    vol = ws.volume(block_size="64K")
    caches = [Cache(vol, ws.path("disk%d" % n)) for n in range(3)]
    ids = ["%08x-0000-4000-8000-00000000000%d" % (n * 77777, n) for n in range(3)]
    content = random_bytes(2 * MIB)
    mnt = vol.mount()
    write(mnt / "f", content)
    mnt.umount()
    for cache, id_ in zip(caches, ids):
        cache.dir.mkdir(parents=True)
        write(cache.dir / ".lock", id_.encode())
    used = set()
    for path in vol.objects():
        key = str(path.relative_to(vol.bucket / vol.name))
        used.add(owner(ids, key))
        caches[owner(ids, key)].put(key, with_trailer(read(path)))
    assert len(used) > 1
    with without_bucket(vol):
        mnt = vol.mount("cache-dir=%s/disk*,free-space-ratio=0" % ws.dir)
        assert read(mnt / "f") == content
        mnt.umount()


def test_two_directories_share_the_load(ws):
    vol = ws.volume(block_size="64K")
    caches = [Cache(vol, ws.path("disk%d" % n)) for n in (1, 2)]
    mnt = vol.mount(
        "cache-dir=%s:%s,free-space-ratio=0,cache-large-write,%s"
        % (caches[0].path, caches[1].path, FAST)
    )
    content = random_bytes(40 * 65536)
    write(mnt / "f", content)
    wait_until(lambda: sum(len(c.files()) for c in caches) == 40, 20, "forty cached blocks")
    for c in caches:
        assert 8 <= len(c.files()) <= 32
        c.check()
    ids = [c.id() for c in caches]
    for n, c in enumerate(caches):
        assert all(owner(ids, c.key(p)) == n for p in c.files())
    mnt.umount()
    # one disk dies: the mount goes on with the other
    both = "cache-dir=%s:%s" % (caches[0].path, caches[1].path)
    mnt = vol.mount("free-space-ratio=0,%s,%s" % (both, FAST))
    gone = lambda: shutil.rmtree(caches[1].path, True) or not caches[1].path.exists()  # noqa: E731
    wait_until(gone, 10, "the end of the directory")
    caches[1].path.touch()
    wait_until(lambda: "is dropped" in mnt.log(), 10, "the line about the lost directory")
    assert read(mnt / "f") == content
    wait_until(lambda: len(caches[0].files()) >= 35, 20, "the other to take over")
    mnt.umount()


def test_two_mounts_share_a_directory(vol, cache):
    one, two = vol.mount(options(cache)), vol.mount(options(cache))
    content = random_bytes(5 * MIB)
    write(one / "f", content)
    assert read(two / "f") == content
    wait_until(lambda: len(cache.files()) == 5, 20, "five cached blocks")
    one.umount()
    two.umount()
    cache.check()


# -- damage


def test_flipped_bits_are_never_seen(vol, cache):
    """In block n a bit of segment n is wrong; the last ones have a wrong checksum."""
    content, _ = warm(vol, cache, 40)
    files = {tuple(map(int, p.name.split("_"))): p for p in cache.files()}
    for n, (_, p) in enumerate(sorted(files.items())):
        raw = bytearray(read(p))
        at = n * SEGMENT + n * 997 % SEGMENT if n < 32 else len(raw) - 1 - 4 * n % 128
        raw[at] ^= 1 << n % 8
        write(p, bytes(raw))
    mnt = vol.mount(options(cache))
    # the damaged segments first, in small pieces that nothing reads ahead of
    fd = os.open(mnt / "f", os.O_RDONLY | os.O_DIRECT)
    for n in reversed(range(32)):
        off = (n * MIB + n * SEGMENT + n * 997 % SEGMENT) & ~4095
        assert os.pread(fd, 4096, off) == content[off : off + 4096], "block %d" % n
    os.close(fd)
    assert read(mnt / "f") == content
    wait_until(lambda: "damaged" in mnt.log(), 5, "a line about it")
    wait_until(lambda: len(cache.files()) == 40, 20, "the blocks to be cached again")
    mnt.umount()
    cache.check()


def test_torn_and_foreign_files(vol, cache):
    """Leftovers of a crash are not data, and foreign files are not removed."""
    content, _ = warm(vol, cache, 6)
    torn = cache.files()
    for n, p in enumerate(torn):
        os.truncate(p, [0, 1, MIB // 2, MIB - 1, MIB, MIB + 5][n])
        os.utime(p, (time.time() - 7200,) * 2)
    tmp = torn[0].with_name(torn[0].name + ".tmp")
    note = torn[0].with_name("README")
    for p in (tmp, note):
        write(p, b"?")
        os.utime(p, (time.time() - 7200,) * 2)
    mnt = vol.mount(options(cache))
    assert read(mnt / "f") == content
    wait_until(lambda: not tmp.exists(), 10, "the end of the temporary file")
    wait_until(lambda: len([p for p in cache.files() if p != note]) == 6, 20, "six cached blocks")
    mnt.umount()
    assert note.exists()
    note.unlink()
    cache.check()


def test_crash_while_it_is_filled(vol, cache):
    """kill -9 with writes to the cache under way: afterwards every byte is right."""
    content = random_bytes(30 * MIB)
    mnt = vol.mount()
    write(mnt / "f", content)
    mnt.umount()
    for round_ in range(4):
        mnt = vol.mount(options(cache))
        with contextlib.suppress(OSError):
            with open(mnt / "f", "rb") as f:
                f.read((round_ + 1) * 7 * MIB)
        mnt.kill9()
    mnt = vol.mount(options(cache))
    assert read(mnt / "f") == content
    vol.check_options = None  # four sessions died
    mnt.umount()


# -- limits


@pytest.mark.parametrize("policy", ["s3-fifo", "2-random", "lru", "none"])
def test_size_is_kept(vol, cache, policy):
    mnt = vol.mount()
    content = random_bytes(30 * MIB)
    write(mnt / "f", content)
    mnt.umount()
    mnt = vol.mount(options(cache, "cache-size=8", "cache-eviction=" + policy))
    for _ in range(2):
        with open(mnt / "f", "rb") as f:
            for at in range(0, len(content), MIB):
                assert f.read(MIB) == content[at : at + MIB]
                assert cache.size() <= 8 * MIB
    wait_until(lambda: cache.size() > 5 * MIB, 10, "a cache that is used")
    mnt.umount()
    # a smaller one, of what is there
    if policy != "none":
        mnt = vol.mount(options(cache, "cache-size=3", "cache-eviction=" + policy))
        wait_until(lambda: cache.size() <= 3 * MIB, 10, "a smaller cache")
        assert read(mnt / "f") == content
        mnt.umount()


def test_items_and_expiry(vol, cache):
    mnt = vol.mount(options(cache, "cache-items=5"))
    for n in range(12):
        write(mnt / ("f%d" % n), b"%d" % n * 100)
    wait_until(lambda: len(cache.files()) == 5, 10, "five blocks")
    assert len(cache.files()) <= 5
    mnt.umount()
    mnt = vol.mount(options(cache, "cache-expire=1"))
    wait_until(lambda: not cache.files(), 10, "the blocks to expire")
    mnt.umount()


def test_what_is_kept(vol, cache):
    """Short blocks always; whole ones when read, or when written and asked for."""
    mnt = vol.mount(options(cache, "cache-partial-only"))
    write(mnt / "f", b"x" * (2 * MIB + 100))
    mnt.umount()
    mnt = vol.mount(options(cache, "cache-partial-only"))
    assert len(read(mnt / "f")) == 2 * MIB + 100
    mnt.umount()
    assert [p.name.split("_")[2] for p in cache.files()] == ["100"]


def test_mode(vol, cache):
    mnt = vol.mount(options(cache, "cache-mode=0640"))
    write(mnt / "f", b"x")
    wait_until(cache.files, 10, "a cached block")
    mnt.umount()
    p = cache.files()[0]
    assert p.stat().st_mode & 0o7777 == 0o640 and p.parent.stat().st_mode & 0o7777 == 0o750


@pytest.mark.parametrize("level", ["none", "full", "shrink", "extend"])
def test_levels(vol, cache, level):
    content, _ = warm(vol, cache, 3, "verify-cache-checksum=" + level)
    trailer = 4 * 32 if level != "none" else 0
    extra = [p.stat().st_size - int(p.name.split("_")[2]) for p in cache.files()]
    assert extra == [trailer] * 3
    with without_bucket(vol):
        mnt = vol.mount(options(cache, "verify-cache-checksum=" + level))
        assert read(mnt / "f") == content
        mnt.umount()


@pytest.mark.parametrize(
    "option",
    [
        "cache-mode=9",
        "cache-mode=04755",
        "cache-size=many",
        "free-space-ratio=2",
        "free-space-ratio=1",
        "cache-eviction=best",
        "verify-cache-checksum=some",
        "cache-items=-1",
        "cache-dir=relative/path",
    ],
)
def test_wrong_options(ws, vol, option):
    point = ws.path("refused")
    point.mkdir()
    extra = "" if "cache-dir" in option else ",cache-dir=%s" % ws.path("cache")
    r = ws.run("mount.cachefs", vol.url, point, "-o", option + extra)
    assert r.returncode in (1, 32) and option.split("=")[0] in r.stderr, r


# -- disks that fail


class Readers:
    """Three threads that read random parts of a file, all the time, and find every byte right."""

    def __init__(self, path, content):
        self.path, self.content = path, content
        self.reads, self.wrong, self.done = 0, [], False
        self.changed = threading.Condition()
        self.threads = [threading.Thread(target=self.read_on) for _ in range(3)]

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, failed, *_):
        self.done = True
        for t in self.threads:
            t.join()
        assert failed or not self.wrong, self.wrong[:3]

    def read_on(self):
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        while not self.done:
            wrong = self.read_one(fd)
            with self.changed:
                self.reads += 1
                self.wrong += wrong
                self.changed.notify_all()
        os.close(fd)

    def read_one(self, fd):
        off = random.randrange(len(self.content) // 4096 - 64) * 4096
        n = random.choice((4096, 65536, 262144))
        try:
            right = os.pread(fd, n, off) == self.content[off : off + n]
        except OSError as e:
            return [str(e)]
        return [] if right else ["wrong bytes at %d" % off]

    def go_on(self):
        """Returns when so many more reads have come back that all of them met what was done last."""
        with self.changed:
            end = self.reads + 300
            assert self.changed.wait_for(lambda: self.wrong or self.reads >= end, 60 * SLOW)


def test_removed_under_load(vol, cache):
    """rm -rf of the cache, again and again: nobody notices."""
    content, _ = warm(vol, cache, 20)
    mnt = vol.mount(options(cache))
    with Readers(mnt / "f", content) as readers:
        for _ in range(5):
            readers.go_on()
            subprocess.run(["rm", "-rf", cache.path])
        readers.go_on()
    assert read(mnt / "f") == content

    def begins_again():
        write(mnt / "g", b"small")
        return cache.path.exists() and cache.files()

    wait_until(begins_again, 10, "a cache that begins again")
    mnt.umount()


@pytest.fixture
def small_disk(ws, cache):
    need_root()
    cache.path.mkdir()

    def mount(options):
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", cache.path], check=True)
        ws.cleanups.append(lambda: subprocess.run(["umount", "-l", cache.path]))

    return mount


def test_full_disk(vol, cache, small_disk):
    small_disk("size=12m")
    content = random_bytes(30 * MIB)
    mnt = vol.mount(options(cache))
    write(mnt / "f", content)
    mnt.umount()
    mnt = vol.mount(options(cache))
    with Readers(mnt / "f", content) as readers:
        readers.go_on()
    assert read(mnt / "f") == content
    # somebody fills it, and leaves again
    with contextlib.suppress(OSError):
        with open(cache.path / "filler", "wb") as f:
            while True:
                f.write(bytes(MIB))
    for n in range(50):
        write(mnt / ("s%d" % n), bytes(100000))
    assert read(mnt / "f") == content
    (cache.path / "filler").unlink()
    write(mnt / "last", b"x" * 1000)
    wait_until(lambda: write(mnt / "last", b"y" * 1000) or len(cache.files()) > 1, 10, "new blocks")
    mnt.umount()


def test_read_only_disk(vol, cache, small_disk):
    small_disk("size=100m")
    content, _ = warm(vol, cache, 10)
    mnt = vol.mount(options(cache))
    subprocess.run(["mount", "-o", "remount,ro", cache.path], check=True)
    assert read(mnt / "f") == content
    write(mnt / "g", b"x" * 1000)
    wait_until(lambda: "takes no more blocks" in mnt.log(), 10, "a line about it")
    assert read(mnt / "g") == b"x" * 1000
    subprocess.run(["mount", "-o", "remount,rw", cache.path], check=True)
    wait_until(lambda: "used again" in mnt.log(), 10, "the directory to come back")
    assert mnt.log().count("takes no more blocks") == 1
    write(mnt / "h", b"x" * 1000)
    wait_until(lambda: len(cache.files()) == 11, 10, "a block that is cached again")
    mnt.umount()


def test_disk_that_dies(ws, vol, cache):
    """Every access fails at once (here: a FUSE file system without its process), then it returns."""
    disk = ws.volume("disk")
    under = disk.mount(path=None)
    cache = Cache(vol, under.path / "cache")
    content, _ = warm(vol, cache, 10)
    mnt = vol.mount(options(cache))
    with Readers(mnt / "f", content) as readers:
        readers.go_on()
        under.kill_all()
        readers.go_on()
    assert read(mnt / "f") == content
    write(mnt / "g", b"x" * 1000)
    assert read(mnt / "g") == b"x" * 1000
    wait_until(lambda: "is dropped" in mnt.log(), 10, "a line about it")
    assert mnt.log().count("is dropped") == 1
    mnt.umount()
    under.kill9()
    disk.check_options = None


def test_directory_that_cannot_be_made(ws, vol):
    blocked = ws.path("blocked")
    blocked.touch()
    mnt = vol.mount("cache-dir=%s/x,%s" % (blocked, FAST))
    write(mnt / "f", b"x" * 5000)
    assert read(mnt / "f") == b"x" * 5000
    assert "is dropped" in mnt.log()
    blocked.unlink()
    wait_until(lambda: "used again" in mnt.log(), 10, "the directory to be used")
    mnt.umount()


def test_pattern_that_matches_nothing(ws, vol):
    mnt = vol.mount("cache-dir=%s/no*/cache" % ws.dir)
    write(mnt / "f", b"x")
    assert "without a disk cache" in mnt.log()
