# SPDX-License-Identifier: Apache-2.0
"""File contents. A failure here is a wrong byte, or data that a user believes to be safe and is not."""

import hashlib
import mmap
import os
import threading

import pytest

from cachefs import SLOW, sanitized, wait_until
from syscalls import data, fails, read, sha, write

MIB = 1 << 20
CHUNK = 64 * MIB


def test_unlinked_open_file_lives_until_close(volume, mnt):
    content = data(5 * MIB + 17)
    with open(mnt / "f", "w+b") as f:
        f.write(content)
        f.flush()
        os.unlink(mnt / "f")
        assert not os.path.exists(mnt / "f")
        f.seek(0)
        assert f.read() == content
        f.write(b"more")
        f.flush()
        os.fsync(f.fileno())
        f.seek(-4, os.SEEK_END)
        assert f.read() == b"more" and os.fstat(f.fileno()).st_nlink == 0
        assert volume.sql("SELECT count(*) FROM jfs_sustained") == [(1,)]
    wait_until(lambda: not volume.objects(), 30, "the removal of the objects")
    mnt.umount()
    assert volume.counter("totalInodes") == 0 and volume.counter("usedSpace") == 0


def test_removed_open_file_in_the_trash(ws):
    """The trash keeps it, but to who has it open it has no name, and can be opened again."""
    mnt = ws.volume(trash_days=1).mount()
    write(mnt / "new", b"new")
    with open(mnt / "f", "w+b") as f, open(mnt / "over", "w+b") as over:
        f.write(b"0123456789")
        f.flush()
        assert os.fstat(f.fileno()).st_nlink == 1
        os.unlink(mnt / "f")
        os.rename(mnt / "new", mnt / "over")
        assert os.fstat(f.fileno()).st_nlink == os.fstat(over.fileno()).st_nlink == 0
        again = "/proc/self/fd/%d" % f.fileno()
        with open(again, "r+b") as g:
            g.write(b"abc")
        assert os.pread(f.fileno(), 20, 0) == b"abc3456789"
        os.truncate(again, 4)
        assert os.fstat(f.fileno()).st_size == 4
        with open(again, "ab") as g:
            g.write(b"d")
        with open(again, "wb"):
            assert os.fstat(f.fileno()).st_size == 0
        f.write(b"x" * 5)
    (hour,) = os.listdir(mnt / ".trash")
    (name,) = [n for n in os.listdir(mnt / ".trash" / hour) if n.endswith("-f")]
    kept = mnt / ".trash" / hour / name
    wait_until(lambda: os.stat(kept).st_nlink == 1, 10, "the name in the trash")
    with fails("EPERM"):
        open(kept, "ab")
    with fails("EPERM"):
        os.truncate(kept, 0)
    os.rename(kept, mnt / "back")
    assert os.stat(mnt / "back").st_nlink == 1 and os.stat(mnt / "back").st_size == 15


def test_replaced_open_file_lives_until_close(mnt):
    write(mnt / "old", b"old content")
    write(mnt / "new", b"new content")
    with open(mnt / "old", "rb") as f:
        os.rename(mnt / "new", mnt / "old")
        assert f.read() == b"old content"
    assert read(mnt / "old") == b"new content"


def test_deleted_data_leaves_the_bucket(volume, mnt):
    write(mnt / "f", data(9 * MIB))
    assert len(volume.objects()) == 3
    os.unlink(mnt / "f")
    wait_until(lambda: not volume.objects(), 30, "the removal of the objects")


def test_append_from_two_handles(mnt):
    a = open(mnt / "f", "ab", buffering=0)
    b = open(mnt / "f", "ab", buffering=0)
    want = b""
    for i in range(200):
        line = b"%d:%s\n" % (i, b"x" * (i * 37 % 500))
        (a if i % 3 else b).write(line)
        want += line
    assert read(mnt / "f") == want
    a.close()
    b.close()
    assert read(mnt / "f") == want


def test_append_from_many_processes(ws, mnt):
    """Two shells logging into one file must not overwrite each other's lines."""
    code = (
        "import os,sys\n"
        "fd=os.open(sys.argv[1], os.O_WRONLY|os.O_APPEND|os.O_CREAT)\n"
        "for i in range(300):\n"
        "    os.write(fd, b'%s %d %s\\n' % (sys.argv[2].encode(), i, b'.'*(i%90)))\n"
    )
    runs = [ws.python(code, mnt / "log", name) for name in "abcd"]
    for p in runs:
        assert p.wait(60 * SLOW) == 0
    lines = read(mnt / "log").splitlines()
    assert len(lines) == 1200
    for name in "abcd":
        mine = [int(x.split()[1]) for x in lines if x.startswith(name.encode())]
        assert mine == list(range(300))


def test_dirty_data_is_seen_by_a_second_handle(mnt):
    content = data(3 * MIB)
    with open(mnt / "f", "wb", buffering=0) as w:
        for i in range(0, len(content), 100_000):
            w.write(content[i : i + 100_000])
            with open(mnt / "f", "rb") as r:
                r.seek(max(0, i - 5000))
                want = content[max(0, i - 5000) : i + 100_000]
                assert r.read() == want
        assert os.stat(mnt / "f").st_size == len(content)
        w.seek(10)
        w.write(b"overwritten")
        with open(mnt / "f", "rb") as r:
            assert r.read(30) == content[:10] + b"overwritten" + content[21:30]


def test_holes_and_chunk_borders(mnt):
    parts = {
        0: b"start",
        4 * MIB - 3: b"block border",
        CHUNK - 5: b"chunk border",
        3 * CHUNK + 12345: b"after a chunk of nothing",
    }
    with open(mnt / "f", "wb") as f:
        for off, text in reversed(parts.items()):
            f.seek(off)
            f.write(text)

    def check(path):
        end = max(off + len(t) for off, t in parts.items())
        assert os.stat(path).st_size == end
        h, want = hashlib.sha256(), hashlib.sha256()
        image = bytearray(end)
        for off, text in parts.items():
            image[off : off + len(text)] = text
        want.update(image)
        with open(path, "rb") as f:
            while piece := f.read(MIB):
                h.update(piece)
        assert h.digest() == want.digest()

    check(mnt / "f")
    mnt = mnt.remount()
    check(mnt / "f")


def test_truncate_hides_old_bytes(mnt):
    content = data(400_000)
    write(mnt / "f", content)
    os.truncate(mnt / "f", 100_001)
    os.truncate(mnt / "f", 300_000)
    want = content[:100_001] + bytes(199_999)
    assert read(mnt / "f") == want
    with open(mnt / "f", "r+b") as f:  # while open and dirty
        f.seek(250_000)
        f.write(b"dirty")
        f.flush()
        os.ftruncate(f.fileno(), 250_002)
        os.ftruncate(f.fileno(), 260_000)
        f.seek(249_990)
        assert f.read() == bytes(10) + b"di" + bytes(9_998)
    mnt = mnt.remount()
    assert read(mnt / "f") == want[:250_000] + b"di" + bytes(9_998)


def test_truncate_over_chunks(mnt):
    with open(mnt / "f", "wb") as f:
        for i in range(4):
            f.seek(i * CHUNK + 1000)
            f.write(b"chunk %d" % i)
    os.truncate(mnt / "f", 1003)
    os.truncate(mnt / "f", 3 * CHUNK + 2000)
    mnt = mnt.remount()
    with open(mnt / "f", "rb") as f:
        assert f.read(2000) == bytes(1000) + b"chu" + bytes(997)
        for i in range(1, 4):
            f.seek(i * CHUNK)
            assert f.read(2000) == bytes(2000)


def test_overwrites_pile_up(mnt):
    """Many slices over each other: the last writer of each byte wins."""
    import random

    rng = random.Random(5)
    image = bytearray(data(1 * MIB))
    write(mnt / "f", bytes(image))
    for i in range(60):
        off, n = rng.randrange(len(image)), rng.randrange(1, 50_000)
        piece = data(min(n, len(image) - off), seed=i)
        with open(mnt / "f", "r+b") as f:
            f.seek(off)
            f.write(piece)
        image[off : off + len(piece)] = piece
    assert read(mnt / "f") == image
    mnt = mnt.remount()
    assert read(mnt / "f") == image


@pytest.mark.long
@pytest.mark.deadline(180)
def test_large_file_in_little_memory(volume):
    """The budget holds while a file larger than it is written and read."""
    mnt = volume.mount("buffer-size=64")
    h = hashlib.sha256()
    piece = [data(MIB, seed=i) for i in range(16)]
    with open(mnt / "f", "wb", buffering=0) as f:
        for i in range(400):
            block = piece[i * 7 % 16]
            f.write(block)
            h.update(block)
    os.posix_fadvise(fd := os.open(mnt / "f", os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    assert sha(mnt / "f") == h.hexdigest()
    if not sanitized():  # sanitizers have a memory of their own
        peak = next(
            int(line.split()[1])
            for line in open("/proc/%d/status" % mnt.pid())
            if line.startswith("VmHWM")
        )
        assert peak < (64 + 40) * 1024, "peak resident %d KiB" % peak


def test_fsync_means_stored_and_committed(volume, mnt):
    with open(mnt / "f", "wb") as f:
        f.write(data(5 * MIB))
        f.flush()
        os.fsync(f.fileno())
        assert sum(p.stat().st_size for p in volume.objects()) == 5 * MIB
        ino = os.fstat(f.fileno()).st_ino
        assert volume.sql("SELECT length FROM jfs_node WHERE inode=?", ino) == [(5 * MIB,)]
        assert volume.verify(unmounted=False, lag=True) == []


def test_close_means_stored_and_committed(volume, mnt):
    write(mnt / "f", data(100_000))
    ino = os.stat(mnt / "f").st_ino
    assert volume.sql("SELECT length FROM jfs_node WHERE inode=?", ino) == [(100_000,)]
    assert volume.verify(unmounted=False, lag=True) == []


def test_unsynced_data_is_committed_by_age(volume, mnt):
    """A log that is only ever appended reaches the volume without anybody calling fsync."""
    with open(mnt / "f", "wb", buffering=0) as f:
        f.write(b"a line\n")
        ino = os.fstat(f.fileno()).st_ino
        wait_until(
            lambda: volume.sql("SELECT length FROM jfs_node WHERE inode=?", ino) == [(7,)],
            20,
            "the commit of a dirty slice",
        )


def test_mapped_write_and_read(mnt):
    size = 3 * MIB + 100
    with open(mnt / "f", "w+b") as f:
        f.truncate(size)
        with mmap.mmap(f.fileno(), size) as m:
            m[0:5] = b"hello"
            m[2 * MIB : 2 * MIB + 3] = b"mid"
            m[size - 3 : size] = b"end"
            m.flush()
            f.seek(2 * MIB)
            assert f.read(3) == b"mid"
    mnt = mnt.remount()
    want = bytearray(size)
    want[0:5], want[2 * MIB : 2 * MIB + 3], want[size - 3 :] = b"hello", b"mid", b"end"
    with open(mnt / "f", "rb") as f, mmap.mmap(f.fileno(), size, prot=mmap.PROT_READ) as m:
        assert m[:] == want


def test_direct_io(mnt):
    content = data(2 * MIB)
    buf = mmap.mmap(-1, len(content))
    buf[:] = content
    fd = os.open(mnt / "f", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    try:
        assert os.pwrite(fd, buf, 0) == len(content)
        back = mmap.mmap(-1, len(content))
        assert os.preadv(fd, [back], 0) == len(content)
        assert back[:] == content
    finally:
        os.close(fd)
    assert read(mnt / "f") == content


def test_parallel_writers_of_one_file(mnt):
    parts = [data(2 * MIB, seed=i) for i in range(8)]
    fd = os.open(mnt / "f", os.O_CREAT | os.O_RDWR)
    errors = []

    def work(i):
        try:
            for off in range(0, 2 * MIB, 65_536):
                os.pwrite(fd, parts[i][off : off + 65_536], i * 2 * MIB + off)
        except OSError as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join(60 * SLOW) for t in threads]
    os.close(fd)
    assert not errors and read(mnt / "f") == b"".join(parts)


def test_random_reads_of_a_cold_file(mnt):
    import random

    content = data(20 * MIB)
    write(mnt / "f", content)
    mnt = mnt.remount()
    rng = random.Random(1)
    fd = os.open(mnt / "f", os.O_RDONLY)
    for _ in range(500):
        off, n = rng.randrange(len(content) + 1000), rng.randrange(1, 200_000)
        assert os.pread(fd, n, off) == content[off : off + n]
    os.close(fd)


def test_far_offset(mnt):
    with open(mnt / "f", "wb") as f:
        f.seek(1 << 45)
        f.write(b"far")
    assert os.stat(mnt / "f").st_size == (1 << 45) + 3
    with open(mnt / "f", "rb") as f:
        f.seek((1 << 45) - 5)
        assert f.read() == bytes(5) + b"far"


def test_block_names(ws):
    vol = ws.volume(block_size="64K")
    mnt = vol.mount()
    write(mnt / "f", data(200_000))
    mnt.umount()
    assert vol.setting()["BlockSize"] == 64
    assert sorted(p.stat().st_size for p in vol.objects()) == [
        200_000 - 3 * 65536,
        65536,
        65536,
        65536,
    ]
    assert all(p.name.endswith("_%d" % p.stat().st_size) for p in vol.objects())


def test_hash_prefix(ws):
    vol = ws.volume(hash_prefix=True)
    mnt = vol.mount()
    write(mnt / "f", data(100))
    (slice_id,) = vol.sql("SELECT chunkid FROM jfs_chunk_ref")[0]
    want = "chunks/%02X/%d/%d_0_100" % (slice_id % 256, slice_id // 1000000, slice_id)
    assert [str(p.relative_to(vol.bucket / "vol")) for p in vol.objects()] == [want]
    assert read(mnt / "f") == data(100)


def test_writeback_cache_option(volume):
    mnt = volume.mount("writeback_cache")
    content = bytearray(data(500_000))
    write(mnt / "f", bytes(content))
    with open(mnt / "f", "r+b", buffering=0) as f:
        for off in range(0, 500_000, 7777):
            f.seek(off)
            f.write(b"tiny")
            content[off : off + 4] = b"tiny"
    assert read(mnt / "f") == content[: max(500_000, len(content))]
    mnt = mnt.remount()
    assert read(mnt / "f") == content


def test_writeback_cache_hides_no_data(volume):
    """SEEK_DATA finds data that the kernel has not written back yet."""
    mnt = volume.mount("writeback_cache")
    with open(mnt / "f", "w+b", buffering=0) as f:
        f.truncate(MIB)
        os.pwrite(f.fileno(), b"data", 2 * MIB)
        start = os.lseek(f.fileno(), MIB, os.SEEK_DATA)
        end = os.lseek(f.fileno(), start, os.SEEK_HOLE)
        assert start <= 2 * MIB and end >= 2 * MIB + 4


def test_write_to_a_file_opened_for_reading_fails(mnt):
    write(mnt / "f", b"x")
    fd = os.open(mnt / "f", os.O_RDONLY)
    with fails("EBADF"):
        os.write(fd, b"y")
    os.close(fd)
