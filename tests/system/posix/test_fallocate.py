# SPDX-License-Identifier: Apache-2.0
"""Space, holes, copies by reference, the ways around the page cache. A fault in
one of them loses the data of disk images, databases and downloads."""

import concurrent.futures
import errno
import mmap
import os
import pathlib
import random
import signal
import subprocess

import pytest

import servers
from admin import fsck
from cachefs import SLOW, need_engine, stop_process, wait_until
from syscalls import FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE
from syscalls import data, fails, fallocate, read, write

MIB = 1 << 20
CHUNK = 64 * MIB
COLLAPSE, INSERT, UNSHARE = 8, 0x20, 0x40
PUNCH = FALLOC_PUNCH_HOLE | FALLOC_KEEP_SIZE


class Twin:
    """A file on the mount and what it must hold."""

    def __init__(self, mnt, content=b"", name="f", opts=os.O_RDWR):
        self.path, self.want = mnt / name, bytearray(content)
        write(self.path, content)
        self.fd = os.open(self.path, opts)

    def change(self, mode, off, n):
        fallocate(self.fd, mode, off, n)
        old = len(self.want)
        if mode & (FALLOC_PUNCH_HOLE | FALLOC_ZERO_RANGE):
            end = min(off + n, old)
            if end > off:
                self.want[off:end] = bytes(end - off)
        if not mode & FALLOC_KEEP_SIZE and off + n > old:
            self.want += bytes(off + n - old)

    def pwrite(self, b, off):
        os.pwrite(self.fd, b, off)
        self.want += bytes(max(0, off + len(b) - len(self.want)))
        self.want[off : off + len(b)] = b

    def check(self):
        assert os.fstat(self.fd).st_size == len(self.want)
        assert read(self.path) == self.want

    def close(self):
        os.close(self.fd)


def test_modes(mnt):
    t = Twin(mnt, data(300_000))
    t.change(0, 0, 100_000)  # nothing to do
    t.check()
    t.change(0, 250_000, 100_000)
    t.check()
    t.change(FALLOC_KEEP_SIZE, 300_000, MIB)
    t.check()
    t.change(PUNCH, 1000, 5000)
    t.change(PUNCH, 340_000, MIB)
    t.check()
    t.change(FALLOC_ZERO_RANGE, 10_000, 10_000)
    t.change(FALLOC_ZERO_RANGE | FALLOC_KEEP_SIZE, 349_000, 10_000)
    t.check()
    t.change(FALLOC_ZERO_RANGE, 349_000, 10_000)
    t.check()
    t.pwrite(b"after", 12_000)
    t.change(PUNCH, 12_002, 1)
    t.check()
    t.close()
    mnt = mnt.remount()
    assert read(mnt / "f") == t.want


def test_refused_modes(mnt):
    write(mnt / "f", b"x" * 10_000)
    fd = os.open(mnt / "f", os.O_RDWR)
    for mode in (COLLAPSE, INSERT, FALLOC_PUNCH_HOLE, UNSHARE):
        with fails("ENOTSUP"):
            fallocate(fd, mode, 0, 4096)
    with fails("EINVAL"):
        fallocate(fd, 0, 0, 0)
    with fails("EINVAL"):
        fallocate(fd, 0, -1, 5)
    with fails("EFBIG"):
        fallocate(fd, 0, 1 << 57, 5)
    with fails("EFBIG"):
        fallocate(fd, 0, 5, 1 << 57)
    os.close(fd)
    fd = os.open(mnt / "f", os.O_RDONLY)
    with fails("EBADF"):
        fallocate(fd, 0, 0, 4096)
    os.close(fd)
    fd = os.open(mnt.path, os.O_RDONLY)
    with fails("EBADF", "ENODEV", "EISDIR"):
        fallocate(fd, 0, 0, 4096)
    os.close(fd)
    assert read(mnt / "f") == b"x" * 10_000


def test_times_of_fallocate(mnt):
    t = Twin(mnt, b"x" * 10_000)
    for mode, off in ((0, 9000), (PUNCH, 0), (FALLOC_ZERO_RANGE, 5)):
        before = os.fstat(t.fd)
        t.change(mode, off, 5000)
        after = os.fstat(t.fd)
        assert after.st_mtime_ns > before.st_mtime_ns and after.st_ctime_ns > before.st_ctime_ns
    t.close()


def test_times_of_a_truncate_to_the_same_length(mnt):
    """Which changes no byte, and moves both times all the same: ftruncate(2), and truncate(2) as on ext4."""
    path = mnt / "f"
    for dirty in (False, True):
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.pwrite(fd, b"x" * 100, 0)
        if not dirty:
            os.fsync(fd)
        for truncate in (lambda: os.ftruncate(fd, 100), lambda: os.truncate(path, 100)):
            os.utime(path, ns=(10**18, 10**18))
            before = os.stat(path)
            truncate()
            after = os.stat(path)
            assert after.st_mtime_ns > 10**18 and after.st_ctime_ns > before.st_ctime_ns
            assert after.st_size == 100 and os.pread(fd, 200, 0) == b"x" * 100
        os.close(fd)


def test_holes_over_chunk_borders(mnt):
    size = 3 * CHUNK + 5000
    t = Twin(mnt)
    for off in (0, CHUNK - 3, 2 * CHUNK - 3, 3 * CHUNK - 3, size - 8):
        t.pwrite(b"12345678", off)
    t.change(PUNCH, CHUNK - 1, CHUNK + 2)
    t.check()
    t.change(PUNCH, 3 * CHUNK, MIB)
    t.check()
    t.close()


def test_a_hole_hides_what_is_not_yet_stored(mnt):
    t = Twin(mnt)
    t.pwrite(data(MIB), 0)
    t.change(PUNCH, 1000, 500_000)
    t.pwrite(b"over it", 2000)
    t.change(FALLOC_ZERO_RANGE, 700_000, 2 * MIB)
    t.check()
    other = os.open(mnt / "f", os.O_RDONLY)
    assert os.pread(other, 4 * MIB, 0) == t.want
    os.close(other)
    t.close()


@pytest.mark.parametrize("seed", range(3))
def test_random_changes(mnt, seed):
    rng = random.Random(seed)
    t = Twin(mnt)
    for i in range(150):
        off, n = rng.randrange(MIB), rng.randrange(1, 200_000)
        kind = rng.randrange(6)
        if kind == 0:
            t.change(PUNCH, off, n)
        elif kind == 1:
            t.change(FALLOC_ZERO_RANGE | rng.choice((0, FALLOC_KEEP_SIZE)), off, n)
        elif kind == 2:
            t.change(rng.choice((0, FALLOC_KEEP_SIZE)), off, n)
        elif kind == 3:
            os.ftruncate(t.fd, off)
            t.want = t.want[:off] + bytes(max(0, off - len(t.want)))
        else:
            t.pwrite(rng.randbytes(n), off)
        if i % 10 == 0:
            t.check()
    t.check()
    t.close()
    mnt = mnt.remount()
    assert read(mnt / "f") == t.want


# ---- holes found by seeking ----


def extents(fd):
    size, out, at = os.fstat(fd).st_size, [], 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as e:
            assert e.errno == errno.ENXIO
            break
        at = os.lseek(fd, start, os.SEEK_HOLE)
        out.append((start, at))
    return out


def test_seek_hole_and_data(mnt):
    t = Twin(mnt)
    t.pwrite(b"x" * 1000, 0)
    t.pwrite(b"y" * 1000, 10 * MIB)
    os.ftruncate(t.fd, 200 * MIB)
    t.pwrite(b"z" * 1000, 150 * MIB)
    os.fsync(t.fd)
    assert extents(t.fd) == [
        (0, 1000),
        (10 * MIB, 10 * MIB + 1000),
        (150 * MIB, 150 * MIB + 1000),
    ]
    assert os.lseek(t.fd, 500, os.SEEK_DATA) == 500
    assert os.lseek(t.fd, 500, os.SEEK_HOLE) == 1000
    assert os.lseek(t.fd, 199 * MIB, os.SEEK_HOLE) == 199 * MIB
    with fails("ENXIO"):
        os.lseek(t.fd, 151 * MIB, os.SEEK_DATA)
    for off in (200 * MIB, 300 * MIB):
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            with fails("ENXIO"):
                os.lseek(t.fd, off, whence)
    t.change(PUNCH, 10 * MIB, 500)
    assert extents(t.fd)[1] == (10 * MIB + 500, 10 * MIB + 1000)
    t.close()
    full = Twin(mnt, b"x" * 5000, "full")
    assert os.lseek(full.fd, 0, os.SEEK_HOLE) == 5000  # the end counts as a hole
    full.close()
    # what cp --sparse and tar do with it
    subprocess.run(["cp", "--sparse=always", mnt / "f", mnt / "g"], check=True, timeout=60)
    subprocess.run(["cmp", mnt / "f", mnt / "g"], check=True, timeout=60)


def test_seek_sees_what_is_not_yet_stored(mnt):
    fd = os.open(mnt / "f", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 10 * MIB)
    os.pwrite(fd, b"x" * 10, 5 * MIB)
    assert extents(fd) == [(5 * MIB, 5 * MIB + 10)]
    os.close(fd)


# ---- copies by reference ----


def copy(src, dst, n, at=None, to=None):
    done = 0
    while done < n:
        got = os.copy_file_range(
            src,
            dst,
            n - done,
            None if at is None else at + done,
            None if to is None else to + done,
        )
        if got == 0:
            break
        done += got
    return done


def test_copy_file_range(mnt):
    content = data(10 * MIB + 123)
    write(mnt / "a", content, sync=True)
    before = mnt.stat('object_requests_total{method="put"}')
    src, dst = os.open(mnt / "a", os.O_RDONLY), os.open(mnt / "b", os.O_RDWR | os.O_CREAT)
    assert copy(src, dst, 1 << 40) == len(content)
    assert mnt.stat('object_requests_total{method="put"}') == before  # no byte has moved
    assert read(mnt / "b") == content
    assert os.stat(mnt / "b").st_blocks == os.stat(mnt / "a").st_blocks
    # a piece into the middle, and beyond the end
    assert copy(src, dst, 100_000, 777, 5 * MIB + 3) == 100_000
    want = bytearray(content)
    want[5 * MIB + 3 : 5 * MIB + 3 + 100_000] = content[777 : 777 + 100_000]
    assert read(mnt / "b") == want
    assert copy(src, dst, 1000, 0, 20 * MIB) == 1000
    want += bytes(20 * MIB - len(want)) + content[:1000]
    assert read(mnt / "b") == want
    assert copy(src, dst, 1000, len(content) - 10, 0) == 10  # cut at the end
    want[:10] = content[-10:]
    assert copy(src, dst, 1000, len(content), 0) == 0
    # the source goes its own way
    os.unlink(mnt / "a")
    os.close(src)
    assert read(mnt / "b") == want
    os.close(dst)
    mnt = mnt.remount()
    assert read(mnt / "b") == want


def test_first_copies_at_once(mnt):
    """A kernel that is refused two of them copies by reading and writing until the mount ends."""
    n, content = 16, data(100_000)
    pairs = []
    for i in range(n):
        write(mnt / ("from%d" % i), content, sync=True)
        write(mnt / ("to%d" % i), b"x", sync=True)  # later changes ask for no attribute before
        pairs.append((os.open(mnt / ("from%d" % i), os.O_RDONLY), os.open(mnt / ("to%d" % i), os.O_RDWR)))
    before = mnt.stat('object_requests_total{method="put"}')
    pid = mnt.pid()

    def waiting():
        stacks = [(task / "stack").read_text() for task in pathlib.Path("/proc/self/task").iterdir()]
        return sum("fuse_copy_file_range" in s for s in stacks)

    stop_process(pid)
    try:
        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            copies = [pool.submit(os.copy_file_range, src, dst, len(content)) for src, dst in pairs]
            try:
                wait_until(lambda: waiting() == n, what="%d requests" % n)
            finally:
                os.kill(pid, signal.SIGCONT)
            assert [c.result() for c in copies] == [len(content)] * n
    finally:
        os.kill(pid, signal.SIGCONT)
    for src, dst in pairs:
        assert os.pread(dst, len(content) + 1, 0) == content
        os.fsync(dst)
        os.close(src)
        os.close(dst)
    assert mnt.stat('object_requests_total{method="put"}') == before


def test_copy_of_more_than_32_bits(mnt):
    """Kernels since 6.18 take the whole answer in one call, earlier ones in several."""
    size = (5 << 30) + 5000
    fd = os.open(mnt / "a", os.O_RDWR | os.O_CREAT)
    places = [0, (1 << 30) - 10, (4 << 30) - 10, size - 20]
    for off in places:
        os.pwrite(fd, b"%020d" % off, off)
    os.fsync(fd)
    to = os.open(mnt / "b", os.O_RDWR | os.O_CREAT)
    first = os.copy_file_range(fd, to, size + 1, 0, 0)
    if tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 18):
        assert first == size
    assert first + copy(fd, to, size + 1 - first, first, first) == size
    assert os.fstat(to).st_size == size
    for off in places:
        assert os.pread(to, 20, off) == b"%020d" % off
    assert extents(to) == extents(fd)
    os.close(fd)
    os.close(to)


def test_copy_within_a_file(mnt):
    t = Twin(mnt, data(3 * MIB))
    assert copy(t.fd, t.fd, MIB, 0, 2 * MIB) == MIB
    t.want[2 * MIB :] = t.want[:MIB]
    t.check()
    with fails("EINVAL"):
        os.copy_file_range(t.fd, t.fd, MIB, 0, 1000)
    assert copy(t.fd, t.fd, MIB, 1000, 5 * MIB) == MIB
    t.want += bytes(2 * MIB) + t.want[1000 : 1000 + MIB]
    t.check()
    t.close()


def test_copy_of_what_is_not_yet_stored(mnt):
    a, b = Twin(mnt, name="a"), Twin(mnt, name="b")
    a.pwrite(data(MIB, 1), 0)
    b.pwrite(data(MIB, 2), 0)
    assert copy(a.fd, b.fd, 300_000, 100_000, 500_000) == 300_000
    b.want[500_000:800_000] = a.want[100_000:400_000]
    a.pwrite(b"later", 200_000)
    a.check()
    b.check()
    a.close()
    b.close()


def test_copy_keeps_holes(mnt):
    a, b = Twin(mnt, name="a"), Twin(mnt, data(3 * MIB), "b")
    a.pwrite(b"x" * 10, MIB)
    os.ftruncate(a.fd, 2 * MIB)
    a.want += bytes(2 * MIB - len(a.want))
    assert copy(a.fd, b.fd, 2 * MIB, 0, 1000) == 2 * MIB
    b.want[1000 : 1000 + 2 * MIB] = a.want
    b.check()
    a.close()
    b.close()


# ---- append ----


def test_append_from_two_handles_with_a_hole_between(mnt):
    a, b = (os.open(mnt / "f", os.O_CREAT | os.O_RDWR | os.O_APPEND) for _ in range(2))
    os.write(a, b"one")
    os.write(b, b"two")
    os.ftruncate(a, 10)
    os.write(b, b"three")
    os.write(a, b"four")
    os.close(a)
    os.close(b)
    assert read(mnt / "f") == b"onetwo\0\0\0\0threefour"


def test_append_on_two_mounts_in_turns(ws, mnt):
    """Close-to-open: who opens after the other has closed appends behind it."""
    other = mnt.volume.mount("attr-cache=0,entry-cache=0")
    first = mnt.volume.mount("attr-cache=0,entry-cache=0")
    want = b""
    for i in range(20):
        line = b"%d:%s\n" % (i, b"." * (i * 7))
        with open((first, other)[i % 2] / "log", "ab") as f:
            f.write(line)
        want += line
    assert read(first / "log") == want == read(other / "log")


def test_append_with_cached_attributes_on_two_mounts(ws, mnt):
    """The same at default options: the kernel's idea of the length may be a second old."""
    other = mnt.volume.mount()
    want = b""
    for i in range(10):
        line = b"%d:%s\n" % (i, b"." * (i * 7))
        with open((mnt, other)[i % 2] / "log", "ab") as f:
            f.write(line)
        want += line
    assert read(mnt / "log") == want == read(other / "log")


# ---- direct I/O, mappings, the kernel's write-back ----


def test_direct_io_of_any_size(mnt):
    t = Twin(mnt, data(MIB), opts=os.O_RDWR | os.O_DIRECT)
    buf = mmap.mmap(-1, MIB)
    buf[:] = data(MIB, 2)
    for off, n in ((0, 4096), (4096, 100_352), (512, 512), (3 * MIB, 512)):
        t.pwrite(memoryview(buf)[:n], off)
    t.check()
    back = mmap.mmap(-1, 8192)
    assert os.preadv(t.fd, [back], 512) == 8192 and back[:] == t.want[512 : 512 + 8192]
    size = len(t.want)
    assert os.preadv(t.fd, [back], size - 512) == 512
    assert os.preadv(t.fd, [back], size) == 0
    # beside buffered I/O on another descriptor
    fd = os.open(t.path, os.O_RDWR)
    os.pwrite(fd, b"buffered", 4096)
    assert os.preadv(t.fd, [back], 4096) == 8192 and back[:8] == b"buffered"
    t.want[4096:4104] = b"buffered"
    t.pwrite(memoryview(buf)[:4096], 4096)
    assert os.pread(fd, 4096, 4096) == buf[:4096]
    os.close(fd)
    t.check()
    t.close()


def test_mappings_and_writes_see_each_other(mnt):
    t = Twin(mnt, data(MIB))
    with mmap.mmap(t.fd, MIB) as m:
        m[1000:1005] = b"mmap!"
        t.want[1000:1005] = b"mmap!"
        assert os.pread(t.fd, 5, 1000) == b"mmap!"
        t.pwrite(b"write", 5000)
        assert m[5000:5005] == b"write"
        t.change(PUNCH, 8192, 4096)
        assert m[8192 : 8192 + 4096] == bytes(4096)
        m[9000] = 7
        t.want[9000] = 7
        assert m[:] == t.want
    t.close()
    mnt = mnt.remount()
    assert read(mnt / "f") == t.want


def test_a_mapping_outlives_its_descriptor(mnt):
    t = Twin(mnt, bytes(100_000))
    m = mmap.mmap(t.fd, 100_000)
    t.close()
    m[50_000:50_005] = b"later"
    m.flush()
    m.close()
    mnt = mnt.remount()
    assert read(mnt / "f")[50_000:50_005] == b"later"


def test_mappings_of_two_processes(ws, mnt):
    t = Twin(mnt, bytes(8192))
    code = (
        "import mmap,os,sys,time\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\n"
        "m = mmap.mmap(fd, 8192)\n"
        "m[0] = 1\n"
        "while m[4096] != 2: time.sleep(0.001)\n"
        "m[1] = 3\n"
    )
    p = ws.python(code, str(t.path))
    with mmap.mmap(t.fd, 8192) as m:
        wait_until(lambda: m[0] == 1, 20, "the other's byte")
        m[4096] = 2
        assert p.wait(20 * SLOW) == 0
        assert m[1] == 3
    t.close()


@pytest.fixture
def wb(ws):
    return ws.volume("vol").mount("writeback_cache")


def test_writeback_length_and_times(wb):
    """With the kernel's write-back cache the kernel knows length and time, and must be believed."""
    fd = os.open(wb / "f", os.O_CREAT | os.O_RDWR)
    for i in range(100):
        os.write(fd, b"%099d\n" % i)
        assert os.fstat(fd).st_size == (i + 1) * 100
    assert os.stat(wb / "f").st_size == 10_000
    os.utime(wb / "f", ns=(1, 1_000_000_007))
    os.fsync(fd)
    assert os.stat(wb / "f").st_mtime_ns == 1_000_000_007
    os.write(fd, b"x")
    os.close(fd)
    st = os.stat(wb / "f")
    assert st.st_size == 10_001 and st.st_mtime_ns > 10**18
    os.truncate(wb / "f", 150)
    os.utime(wb / "f", ns=(5, 5))
    wb2 = wb.remount()
    st = os.stat(wb2 / "f")
    assert st.st_size == 150 and st.st_mtime_ns == 5
    assert read(wb2 / "f") == b"%099d\n" % 0 + b"0" * 50


def test_writeback_append(ws, wb):
    code = (
        "import os,sys\n"
        "fd=os.open(sys.argv[1], os.O_WRONLY|os.O_APPEND|os.O_CREAT)\n"
        "for i in range(300): os.write(fd, b'%s %d\\n' % (sys.argv[2].encode(), i))\n"
    )
    runs = [ws.python(code, str(wb / "log"), n) for n in "abcd"]
    for p in runs:
        assert p.wait(60 * SLOW) == 0
    wb = wb.remount()
    lines = read(wb / "log").split(b"\n")
    assert lines.pop() == b"" and len(lines) == 1200
    for n in (b"a", b"b", b"c", b"d"):
        assert [int(x.split()[1]) for x in lines if x.startswith(n)] == list(range(300))


def test_writeback_random(wb):
    rng = random.Random(4)
    t = Twin(wb)
    for i in range(200):
        off, n = rng.randrange(MIB), rng.randrange(1, 9000)
        kind = rng.randrange(8)
        if kind == 0:
            os.ftruncate(t.fd, off)
            t.want = t.want[:off] + bytes(max(0, off - len(t.want)))
        elif kind == 1:
            t.change(PUNCH, off, n)
        else:
            t.pwrite(rng.randbytes(n), off)
        if i % 20 == 0:
            t.check()
    t.close()
    wb = wb.remount()
    assert read(wb / "f") == t.want


def test_writeback_of_a_file_without_read_permission(wb):
    """The kernel reads pages that are written in part, through whatever descriptor there is."""
    write(wb / "f", b"0123456789" * 1000)
    wb = wb.remount()
    fd = os.open(wb / "f", os.O_WRONLY)
    os.pwrite(fd, b"xx", 5)
    os.close(fd)
    assert read(wb / "f")[:10] == b"01234xx789"
    assert len(read(wb / "f")) == 10_000


def test_writeback_errors_reach_fsync(ws):
    vol = ws.volume("small", capacity="1M")
    mnt = vol.mount("writeback_cache", expect="commit|ENOSPC|space|lost")
    fd = os.open(mnt / "f", os.O_CREAT | os.O_RDWR)
    with fails("ENOSPC"):
        for i in range(40):
            os.write(fd, data(100_000, i))
        os.fsync(fd)
    try:
        os.close(fd)
    except OSError as e:
        assert e.errno == errno.ENOSPC


# ---- the largest file ----

MAX = 1 << 57


def test_the_largest_file(mnt):
    fd = os.open(mnt / "f", os.O_CREAT | os.O_RDWR)
    os.ftruncate(fd, MAX - 1)
    assert os.fstat(fd).st_size == MAX - 1
    os.pwrite(fd, b"end", MAX - 4)
    assert os.pread(fd, 10, MAX - 4) == b"end"
    with fails("EFBIG"):
        os.pwrite(fd, b"12", MAX - 1)
    with fails("EFBIG"):
        os.ftruncate(fd, MAX)
    with fails("EFBIG"):
        os.posix_fallocate(fd, MAX - 10, 10)
    assert os.lseek(fd, 0, os.SEEK_DATA) in range(MAX - 4 - 65536, MAX - 3)
    os.ftruncate(fd, 100)
    os.ftruncate(fd, MAX - 1)
    assert os.pread(fd, 10, MAX - 4) == b"\0\0\0"
    os.ftruncate(fd, 0)
    os.close(fd)
    os.unlink(mnt / "f")


def used_space(mnt):
    s = os.statvfs(mnt.path)
    return (s.f_blocks - s.f_bfree) * s.f_frsize


def many_names_of_a_huge_file(mounts):
    """Each counts in its directory."""
    for i in range(126):
        mnt = mounts[i // 63]
        if i == 0:
            os.mkdir(mnt / "names")
            os.mkdir(mnt / "moved")
        os.link(mnt / "d/f0", mnt / ("names/%d" % i))
    for i in range(100):
        os.rename(mnt / ("names/%d" % i), mnt / ("moved/%d" % i))
    assert len(os.listdir(mnt / "moved")) == 100
    for i in range(40):
        os.unlink(mnt / ("moved/%d" % i))
    for i in range(100, 120):
        os.unlink(mnt / ("names/%d" % i))


@pytest.mark.parametrize("engine", ["sqlite", *sorted(servers.ENGINES)])
def test_a_volume_full_of_huge_sparse_files(ws, engine):
    """Their usage comes to the end of the counters. Mounts refuse what would not fit, together."""
    url = None
    if engine != "sqlite":
        need_engine(engine)
        db = servers.ENGINES[engine][0]().database()
        ws.cleanups.append(db.drop)
        url = db.url
    volume = ws.volume(url=url, trash_days=0)
    mounts = [volume.mount("heartbeat=60") for _ in range(2)]
    os.mkdir(mounts[0] / "d")

    def grow(n, how):
        fd = os.open(mounts[n % 2] / ("d/f%d" % n), os.O_CREAT | os.O_RDWR)
        try:
            how(fd)
        finally:
            os.close(fd)

    for n in range(31):
        grow(n, lambda fd: os.ftruncate(fd, MAX - 4096))
    for n in (31, 32):
        grow(n, lambda fd: os.ftruncate(fd, MAX // 2))
    for n in (33, 34):
        with fails("ENOSPC"):
            grow(n, lambda fd: os.ftruncate(fd, MAX - 4096))
        with fails("ENOSPC"):
            grow(n, lambda fd: os.posix_fallocate(fd, 0, MAX - 4096))
        with fails("ENOSPC"):
            grow(n, lambda fd: os.pwrite(fd, b"x", MAX - 4096))
    grow(35, lambda fd: os.write(fd, b"content"))
    # Each in a process of its own: one that hangs can be killed.
    code = "import os, sys; s = os.statvfs(sys.argv[1]); sys.exit(s.f_blocks < s.f_bfree)"
    for mnt in mounts:
        assert ws.python(code, mnt.path).wait(30) == 0
    many_names_of_a_huge_file(mounts)
    for n in range(35):
        os.unlink(mounts[n % 2] / ("d/f%d" % n))
    assert read(mounts[1] / "d/f35") == b"content"
    for mnt in mounts:
        mnt.umount()
    mnt = volume.mount("heartbeat=1")
    wait_until(lambda: used_space(mnt) < MAX + MIB, 30, "free space")
    mnt.umount()
    assert not fsck(ws, volume)["problems"]
