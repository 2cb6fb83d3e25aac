# SPDX-License-Identifier: Apache-2.0
"""Files that the kernel reads without the mount (passthrough=auto). A failure here is a wrong byte, an
open that fails where it would not without the option, or space that no process gives back."""

import concurrent.futures
import contextlib
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from cachefs import SLOW, missing, need_root, stop_process, wait_until
from syscalls import read, write
from test_takeover import kill_worker, upgrade

KIB, MIB = 1 << 10, 1 << 20
FAST = "free-space-ratio=0,cache-large-write,cache-tick=0.1,passthrough=auto"
FRESH = "attr-cache=0,entry-cache=0,dir-entry-cache=0"


def random_bytes(n, seed=1):
    return random.Random(seed).randbytes(n)


@pytest.fixture
def vol(ws):
    need_root()
    return ws.volume(block_size="64K")


def mount(vol, cache, *more, **kw):
    return vol.mount(",".join(["cache-dir=%s" % cache, FAST, *more]), **kw)


def passes(mnt, path, seconds=30):
    """Opens it until the kernel reads it without the mount; the descriptor is open."""
    found = []

    def opened():
        before = mnt.stat("passthrough_opens_total")
        fd = os.open(path, os.O_RDONLY)
        if mnt.stat("passthrough_opens_total") > before:
            found.append(fd)
            return True
        while os.read(fd, MIB):
            pass
        os.close(fd)
        return False

    wait_until(opened, seconds, "an open of %s that passes through" % path)
    return found[0]


def whole_files(cache):
    return sorted(p for p in cache.glob("*/whole/*") if not p.name.endswith((".sums", ".tmp")))


@contextlib.contextmanager
def stopped(mnt):
    """The mount answers nothing in here."""
    pid = mnt.pid()
    stop_process(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# -- what it is for


def test_reads_need_no_mount(ws, vol):
    content = random_bytes(3 * MIB - 5000)
    mnt = mount(vol, ws.path("cache"))
    write(mnt / "f", content)
    fd = passes(mnt, mnt / "f")
    mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    with open(ws.path("copy"), "w+b") as out, stopped(mnt):
        assert mapped[:] == content
        assert os.pread(fd, len(content), 0) == content
        assert os.sendfile(out.fileno(), fd, 0, len(content)) == len(content)
        assert os.pread(out.fileno(), len(content), 0) == content
    direct = os.open(mnt / "f", os.O_RDONLY | os.O_DIRECT)
    buf = mmap.mmap(-1, 4 * MIB)
    with stopped(mnt):
        assert os.preadv(direct, [buf], 0) == len(content)
        assert buf[: len(content)] == content
    st = os.fstat(fd)
    assert (st.st_size, st.st_ino) == (len(content), os.stat(mnt / "f").st_ino)
    os.fsync(fd)
    assert mnt.stat("passthrough_handles") == 2
    os.close(fd)
    os.close(direct)
    mapped.close()  # it has a descriptor of its own
    wait_until(lambda: mnt.stat("passthrough_handles") == 0, 10, "the release of both")


def test_holes_and_short_files(ws, vol):
    mnt = mount(vol, ws.path("cache"))
    write(mnt / "short", b"x" * 1000)
    with open(mnt / "f", "wb") as f:
        for at in (100 * KIB, 70 * MIB + 3, 200 * MIB - 10):
            f.seek(at)
            f.write(random_bytes(90 * KIB, at))
    fd = passes(mnt, mnt / "f")
    for at in (100 * KIB, 70 * MIB + 3, 200 * MIB - 10):
        want = b"\0" * 1000 + random_bytes(90 * KIB, at)
        assert os.pread(fd, len(want) + 1000, at - 1000).startswith(want)
    assert os.fstat(fd).st_size == 200 * MIB - 10 + 90 * KIB
    (whole,) = whole_files(ws.path("cache"))
    assert whole.stat().st_size == os.fstat(fd).st_size and whole.stat().st_blocks * 512 < MIB
    os.close(fd)
    for _ in range(5):
        assert read(mnt / "short") == b"x" * 1000
    assert len(whole_files(ws.path("cache"))) == 1


# -- changes on the same mount


def change(mnt, how, path, content):
    """Returns what the file has to have afterwards."""
    new = b"new" + content[3:]
    if how == "write":
        fd = os.open(path, os.O_WRONLY)
        os.pwrite(fd, b"new", 0)
        os.close(fd)
    elif how == "mapping":
        fd = os.open(path, os.O_RDWR)
        with mmap.mmap(fd, 0) as m:
            m[:3] = b"new"
            m.flush()
        os.close(fd)
    elif how == "append":
        with open(path, "ab") as f:
            f.write(b"more")
        new = content + b"more"
    elif how == "truncate":
        os.truncate(path, 100 * KIB)
        new = content[: 100 * KIB]
    elif how == "open":
        write(path, new)
    elif how == "rename":
        write(mnt / "other", new)
        os.rename(mnt / "other", path)
    return new


@pytest.mark.parametrize("how", ["write", "mapping", "append", "truncate", "open", "rename"])
def test_a_change_while_it_is_open(ws, vol, how):
    """The next open has the change; the descriptor from before keeps what it had; nothing fails."""
    content = random_bytes(MIB)
    mnt, other = mount(vol, ws.path("cache")), vol.mount(FRESH)
    write(mnt / "f", content)
    old = passes(mnt, mnt / "f")
    mapped = mmap.mmap(old, 0, prot=mmap.PROT_READ)
    for turn in range(3):
        before, content = content, change(mnt, how, mnt / "f", content)
        for _ in range(3):
            fd = os.open(mnt / "f", os.O_RDONLY)
            assert os.pread(fd, 2 * MIB, 0) == content
            assert mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:] == content
            os.close(fd)
        assert read(other / "f") == content
        assert os.stat(mnt / "f").st_size == len(content)
        if turn == 0:
            assert os.pread(old, MIB, 0) == before and mapped[:] == before
    mapped.close()
    os.close(old)
    fd = passes(mnt, mnt / "f")
    assert os.pread(fd, 2 * MIB, 0) == content
    os.close(fd)


def test_while_it_is_written(ws, vol):
    """Opens beside a writer are ordinary: they read what is not stored yet."""
    content = random_bytes(MIB)
    mnt = mount(vol, ws.path("cache"))
    write(mnt / "f", content)
    os.close(passes(mnt, mnt / "f"))
    writer = os.open(mnt / "f", os.O_RDWR)
    for i in range(20):
        os.pwrite(writer, b"%04d" % i, 500)
        fd = os.open(mnt / "f", os.O_RDONLY)
        assert os.pread(fd, 4, 500) == b"%04d" % i
        os.close(fd)
    assert mnt.stat("passthrough_handles") == 0
    os.close(writer)


def test_a_close_that_does_not_wait(ws, vol):
    """The metadata has the old times still, and the cache the old content as a whole file."""
    content = random_bytes(200 * KIB)
    mnt = mount(vol, ws.path("cache"), "close=committing")
    names = ["f%d" % i for i in range(6)]
    for name in names:
        write(mnt / name, content)
    for name in names:
        os.close(passes(mnt, mnt / name))
    wait_until(lambda: mnt.stat("passthrough_handles") == 0, 10, "the end of all handles")
    for name in names:
        fd = os.open(mnt / name, os.O_WRONLY)
        os.pwrite(fd, b"new", 0)
        os.close(fd)
        assert read(mnt / name) == b"new" + content[3:]


def test_a_program_that_runs(ws, vol):
    """It runs from the file that the kernel reads, and no program can write to it, as without the option."""
    mnt = mount(vol, ws.path("cache"))
    shutil.copy(shutil.which("sleep"), mnt / "sleep")
    if os.path.getsize(mnt / "sleep") < 64 * KIB:
        with open(mnt / "sleep", "ab") as f:
            f.write(bytes(100 * KIB))
    os.chmod(mnt / "sleep", 0o755)
    os.close(passes(mnt, mnt / "sleep"))
    p = subprocess.Popen([mnt / "sleep", "1000"])
    wait_until(lambda: mnt.stat("passthrough_handles") > 0, 10, "a program that passes through")
    with pytest.raises(OSError, match="Text file busy"):
        os.open(mnt / "sleep", os.O_RDWR)
    p.kill()
    p.wait()
    wait_until(lambda: mnt.stat("passthrough_handles") == 0, 10, "its end")
    os.close(os.open(mnt / "sleep", os.O_RDWR))


# -- changes by another mount


def test_bytes_of_the_same_length(ws, vol):
    """Close-to-open: an open after the close on the other mount has the other bytes, in each way to
    read, though the old ones are open, have the same length and the same mtime."""
    a, b = mount(vol, ws.path("cache"), FRESH), vol.mount(FRESH)
    content = random_bytes(MIB)
    write(b / "f", content)
    kept = [(passes(a, a / "f"), content)]
    for turn in range(4):
        mtime = os.stat(b / "f").st_mtime_ns
        at = turn * 200 * KIB
        changed = content[:at] + b"%05d" % turn + content[at + 5 :]
        fd = os.open(b / "f", os.O_WRONLY)
        os.pwrite(fd, b"%05d" % turn, at)
        os.close(fd)
        os.utime(b / "f", ns=(mtime, mtime))
        content = changed
        for _ in range(2):
            fd = os.open(a / "f", os.O_RDONLY)
            assert os.pread(fd, MIB, 0) == content
            assert mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:] == content
            os.close(fd)
        if turn % 2:
            for fd, had in kept:
                assert os.pread(fd, MIB, 0) == had
                os.close(fd)
            kept = [(passes(a, a / "f"), content)]
            assert os.pread(kept[0][0], MIB, 0) == content
    os.close(kept[0][0])


@pytest.mark.deadline(120)
@pytest.mark.parametrize("size", ["2M", "1G"])
def test_model(ws, vol, size):
    """Two mounts that change the same files, one of them with a cache that evicts all the time."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    mounts = [
        mount(vol, ws.path("cache"), FRESH, "cache-size=" + size),
        mount(vol, ws.path("cache2"), FRESH),
    ]

    def passed():
        return sum(m.stat("passthrough_opens_total") for m in mounts)

    def evicted():
        return mounts[0].stat("whole_files_evictions_total") > 0

    files = {"f%d" % i: random_bytes(rng.randrange(64 * KIB, 300 * KIB), seed + i) for i in range(6)}
    for name, content in files.items():
        write(mounts[0] / name, content)
    kept = []
    for step in range(3000):
        # Whole files are composed beside the requests, which may be faster.
        if step >= 300 and step % 100 == 0 and passed() > 10 and (size != "2M" or evicted()):
            break
        name, mnt = rng.choice(list(files)), rng.choice(mounts)
        content, path = files[name], mnt / name
        what = rng.random()
        if what < 0.12:
            at, new = rng.randrange(len(content)), random_bytes(rng.randrange(1, 2000), step)
            new = new[: len(content) - at]
            fd = os.open(path, rng.choice((os.O_WRONLY, os.O_RDWR)))
            os.pwrite(fd, new, at)
            os.close(fd)
            files[name] = content[:at] + new + content[at + len(new) :]
        elif what < 0.15:
            length = rng.randrange(60 * KIB, 300 * KIB)
            os.truncate(path, length)
            files[name] = content[:length].ljust(length, b"\0")
        elif what < 0.18:
            fd = os.open(path, os.O_RDWR)
            with mmap.mmap(fd, 0) as m:
                m[:5] = b"%05d" % step
            os.fsync(fd)
            os.close(fd)
            files[name] = b"%05d" % step + content[5:]
        elif what < 0.3:
            kept.append(os.open(path, os.O_RDONLY))
            assert os.pread(kept[-1], MIB, 0) == content, (step, name)
        elif what < 0.5 and kept:
            os.close(kept.pop(rng.randrange(len(kept))))
        else:
            fd = os.open(path, os.O_RDONLY)
            got = mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:] if what < 0.7 else os.pread(fd, MIB, 0)
            assert got == content, (step, name)
            os.close(fd)
    for fd in kept:
        os.close(fd)
    assert passed() > 10
    if size == "2M":
        assert evicted()
    for m in mounts:
        m.umount()
    assert vol.verify() == []


# -- processes that die, and others that follow


@contextlib.contextmanager
def tmpfs(path):
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.deadline(120)
@pytest.mark.parametrize("event", ["kill", "upgrade", "nothing"])
def test_no_id_is_left(ws, vol, event):
    """Each id holds a file open in the kernel: the space of one that was removed comes back when the last
    descriptor is closed, whichever process had opened it."""
    content = random_bytes(MIB)
    with tmpfs(ws.path("cache")) as cache:
        mnt = mount(vol, cache)

        def again():
            if event == "kill":
                kill_worker(mnt)
            elif event == "upgrade":
                upgrade(ws, vol, mnt, mnt.opts)

        names = ["f%d" % i for i in range(4)]
        for name in names:
            write(mnt / name, content)
        held = [passes(mnt, mnt / name) for name in names]
        again()
        again()
        for fd in held:
            assert os.pread(fd, MIB, 0) == content
        # Opens beside those of the dead process, and writers.
        for name in names:
            assert read(mnt / name) == content
        os.close(held.pop())
        fd = os.open(mnt / names[0], os.O_RDWR)
        os.pwrite(fd, b"new", 0)
        os.close(fd)
        assert read(mnt / names[0]) == b"new" + content[3:]
        assert os.pread(held[0], MIB, 0) == content
        again()
        for path in whole_files(cache):
            path.unlink()
        for fd in held:
            assert os.pread(fd, MIB, 0) == content
            os.close(fd)
        wait_until(lambda: mnt.stat("passthrough_handles") == 0, 10, "the end of all handles")

        def used():
            fs = os.statvfs(cache)
            named = sum(p.lstat().st_blocks for p in cache.rglob("*"))
            return (fs.f_blocks - fs.f_bfree) * fs.f_frsize // 512 - named

        wait_until(lambda: used() < 256, 20, "the space of files that have no name")
        fd = passes(mnt, mnt / names[1])
        assert os.pread(fd, MIB, 0) == content
        os.close(fd)
        mnt.umount()


def test_kill_under_load(ws, vol):
    """Readers and a writer while the process dies again and again: no wrong byte, no error of an open."""
    mnt = mount(vol, ws.path("cache"))
    content = random_bytes(MIB)
    for i in range(3):
        write(mnt / ("f%d" % i), content)
    os.close(passes(mnt, mnt / "f0"))
    code = """
import os, sys, mmap
want = open(sys.argv[2], "rb").read()
while os.getppid() != 1 and not os.path.exists(sys.argv[3]):
    for i in range(3):
        fd = os.open(sys.argv[1] + "/f%d" % i, os.O_RDONLY)
        got = os.pread(fd, len(want), 0)
        m = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        assert got[4:] == want[4:] and m[4:] == want[4:]
        os.close(fd)
        fd = os.open(sys.argv[1] + "/f%d" % i, os.O_RDWR)
        os.close(fd)
"""
    write(ws.path("want"), content)
    load = [ws.python(code, mnt, ws.path("want"), ws.path("end"), stderr=-1, text=True) for _ in range(3)]
    for i in range(3):
        time.sleep(0.2)  # a moment of load; nothing depends on how long it is
        kill_worker(mnt)
    ws.path("end").touch()
    for p in load:
        _, err = p.communicate(timeout=60 * SLOW)
        assert p.returncode == 0, err


# -- the cache


def test_damage(ws, vol):
    """Damaged bytes are not used: those of a block when the file is made, those of the file by the next mount."""
    cache, content = ws.path("cache"), random_bytes(MIB)
    mnt = mount(vol, cache)
    write(mnt / "f", content)
    wait_until(lambda: len(list(cache.rglob("*_65536"))) == 16, 10, "all blocks in the cache")
    damaged = sorted(cache.rglob("*_65536"))[3]
    with open(damaged, "r+b") as f:
        f.seek(100)
        f.write(b"damage")
    mnt = mnt.remount()
    os.close(os.open(mnt / "f", os.O_RDONLY))
    wait_until(lambda: mnt.stat("disk_cache_corrupt_total") == 1, 10, "the damage is found")
    assert not whole_files(cache)
    assert read(mnt / "f") == content
    fd = passes(mnt, mnt / "f")
    assert os.pread(fd, MIB, 0) == content
    os.close(fd)
    mnt.umount()
    (whole,) = whole_files(cache)
    st = whole.stat()
    with open(whole, "r+b") as f:
        f.seek(500_000)
        f.write(b"damage")
    os.utime(whole, ns=(st.st_atime_ns, st.st_mtime_ns))
    mnt = mount(vol, cache)
    fd = passes(mnt, mnt / "f")
    assert os.pread(fd, MIB, 0) == content
    assert mnt.stat("whole_files_corrupt_total") == 1
    assert "whole file in the cache is damaged" in mnt.log()
    os.close(fd)
    mnt.umount()


def test_the_next_mount_uses_it(ws, vol):
    cache, content = ws.path("cache"), random_bytes(MIB)
    mnt = mount(vol, cache)
    write(mnt / "f", content)
    os.close(passes(mnt, mnt / "f"))
    mnt.umount()
    (whole,) = whole_files(cache)
    ino = whole.stat().st_ino
    mnt = mount(vol, cache)
    fd = passes(mnt, mnt / "f")
    assert os.pread(fd, MIB, 0) == content
    assert mnt.stat("whole_files_made_total") == 0
    assert whole_files(cache)[0].stat().st_ino == ino
    os.close(fd)


def test_budget(ws, vol):
    """Whole files take at most half of the cache, and with the blocks at most all of it. One that is open
    is not removed."""
    cache = ws.path("cache")
    mnt = mount(vol, cache, "cache-size=4M")
    content = random_bytes(300 * KIB)
    write(mnt / "kept", content)
    kept = passes(mnt, mnt / "kept")
    composed = 0
    for i in range(16):
        write(mnt / ("f%d" % i), random_bytes(300 * KIB, i))
        # A block may leave the disk while memory has it: then nothing brings it back.
        with contextlib.suppress(TimeoutError):
            os.close(passes(mnt, mnt / ("f%d" % i), 1))
            composed += 1
        assert mnt.stat("whole_files_bytes") <= 2 * MIB
        used = sum(p.stat().st_blocks * 512 for p in cache.rglob("*") if p.is_file())
        assert used <= 4 * MIB + 64 * KIB
    # Six of them fit beside `kept`.
    assert composed >= 10 and mnt.stat("whole_files_evictions_total") >= composed - 6
    assert os.pread(kept, MIB, 0) == content
    write(mnt / "large", random_bytes(3 * MIB))
    for _ in range(5):
        assert read(mnt / "large") == random_bytes(3 * MIB)
    assert not [p for p in whole_files(cache) if p.stat().st_size == 3 * MIB]
    os.close(kept)


def test_more_open_files_than_descriptors(ws, vol):
    """Open files that pass through leave the mount descriptors for its own work."""
    other = vol.mount()
    content = [random_bytes(100 * KIB, i) for i in range(120)]
    for name in ("d", "cold"):
        os.mkdir(other / name)
        for i, what in enumerate(content):
            write(other / name / str(i), what)
    mnt = mount(vol, ws.path("cache"), limit="--nofile=160:")
    fds = []
    for i in range(len(content)):
        ws.run("cachefs", "warmup", "--whole", mnt / "d" / str(i))
        fds.append(os.open(mnt / "d" / str(i), os.O_RDONLY))
    # Nearly all: a thread that makes one may be late.
    assert mnt.stat("passthrough_handles") > 100
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda i: read(mnt / "cold" / str(i)), range(len(content)))) == content
    for i, what in enumerate(content):
        assert os.pread(fds[i], MIB, 0) == what
        os.close(fds[i])


def test_warmup(ws, vol):
    """One command, and the first open passes through; and it leaves the cache as blocks do."""
    cache = ws.path("cache")
    mnt = mount(vol, cache)
    os.mkdir(mnt / "d")
    write(mnt / "d" / "a", random_bytes(5 * MIB))
    write(mnt / "d" / "b", random_bytes(100 * KIB))
    write(mnt / "d" / "short", b"x" * 100)
    mnt.umount()
    shutil.rmtree(cache / vol.setting()["UUID"] / "raw")
    mnt = mnt.remount()
    r = ws.run("cachefs", "warmup", "--whole", "--json", mnt / "d")
    assert r.returncode == 0, r.stderr
    sums = json.loads(r.stdout)
    assert (sums["whole"], sums["not_whole"], sums["failed"]) == (2, 1, 0)
    for name, n in (("a", 5 * MIB), ("b", 100 * KIB)):
        with open(mnt / "d" / name, "rb", buffering=0) as f, stopped(mnt):
            assert os.pread(f.fileno(), n + 1, 0) == random_bytes(n)
    assert mnt.stat("passthrough_opens_total") == 2
    ws.run("cachefs", "warmup", "--evict", mnt / "d", check=True)
    assert not whole_files(cache) and mnt.stat("whole_files_bytes") == 0
    mnt = mnt.remount("cache-dir=%s" % cache)
    r = ws.run("cachefs", "warmup", "--whole", mnt / "d")
    assert "3 files are not whole in the disk cache" in r.stderr
    r = ws.run("cachefs", "warmup", "--whole", "--check", mnt / "d")
    assert r.returncode != 0 and "exclude" in r.stderr


# -- where it cannot be had


def falls_back(mnt, text):
    content = random_bytes(MIB)
    write(mnt / "f", content)
    for _ in range(10):
        assert read(mnt / "f") == content
        time.sleep(0.1)  # in which a file could be made
    assert mnt.stat("passthrough_opens_total") == 0
    assert mnt.log().count(text) == 1
    mnt.umount()


def test_not_with_the_write_back_cache(ws, vol):
    falls_back(mount(vol, ws.path("cache"), "writeback_cache"), "passthrough is off")


def test_stacked_cache_directory(ws, vol):
    for name in ("lower", "upper", "work", "cache"):
        ws.path(name).mkdir()
    r = ws.run(
        "mount", "-t", "overlay", "overlay", "-o",
        "lowerdir=%s,upperdir=%s,workdir=%s" % tuple(map(ws.path, ("lower", "upper", "work"))),
        ws.path("cache"),
    )  # fmt: skip
    if r.returncode:
        missing("no overlay file system here")
    try:
        falls_back(mount(vol, ws.path("cache")), "the cache directory is on a stacked file system")
    finally:
        subprocess.run(["umount", "-l", ws.path("cache")], check=True)


def test_off_by_default(ws, vol):
    mnt = vol.mount("cache-dir=%s,free-space-ratio=0,cache-large-write" % ws.path("cache"))
    write(mnt / "f", random_bytes(MIB))
    for _ in range(5):
        read(mnt / "f")
    assert mnt.stat("passthrough_opens_total") == 0
    assert not ws.path("cache").joinpath(vol.setting()["UUID"], "whole").exists()
    mnt.umount()
