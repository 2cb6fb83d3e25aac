# SPDX-License-Identifier: Apache-2.0
"""Limits. A user who is told of a full volume too late loses data that a write had accepted; one who
is told too early cannot use what he pays for."""

import contextlib
import errno
import os
import subprocess
import threading

import pytest

from cachefs import wait_until
from syscalls import FALLOC_KEEP_SIZE
from syscalls import data, fails, fallocate, read, user, write

MIB = 1 << 20
PAGE = 4096


def avail(path):
    st = os.statvfs(path)
    return st.f_bavail * st.f_frsize


def fill(path, piece, name="f"):
    """Writes until no more is taken; returns how much was."""
    fd = os.open(path / name, os.O_CREAT | os.O_WRONLY)
    done = 0
    try:
        while True:
            done += os.write(fd, data(piece, done))
    except OSError as e:
        os.close(fd)
        return done, e.errno


def full_at(vol, mnt, path, room, error, piece=10_000):
    """room: bytes that fit into files of `path` that exist."""
    write(path / "f", b"")
    got, e = fill(path, piece)
    assert e == getattr(errno, error)
    # whatever the size of the pieces: the rest fits to the byte, and no byte more
    fd = os.open(path / "f", os.O_WRONLY | os.O_APPEND)
    rest = room - got
    assert 0 <= rest < piece
    with fails(error):
        os.write(fd, data(rest + 1))
    if rest:
        assert os.write(fd, data(rest)) == rest
    with fails(error):
        os.write(fd, b"x")
    os.fsync(fd)
    with fails(error):
        os.write(fd, b"x")
    os.pwrite(fd, b"", 0)
    os.close(fd)
    assert os.stat(path / "f").st_size == room
    with fails(error):
        os.truncate(path / "f", room + 1)
    with fails(error):
        write(path / "g", b"")  # an inode costs as much as a page
    with fails(error):
        os.mkdir(path / "d")
    with fails(error):
        os.symlink("x", path / "l")
    fd = os.open(path / "f", os.O_RDWR)
    with fails(error):
        os.posix_fallocate(fd, room, 1)
    with fails(error):
        os.posix_fallocate(fd, 0, room + 1)
    os.posix_fallocate(fd, 0, room)
    try:
        assert os.pwrite(fd, b"xx", room - 1) == 1  # the kernel may divide it
    except OSError as e:
        assert e.errno == getattr(errno, error)
    assert os.fstat(fd).st_size == room
    os.pwrite(fd, b"overwriting costs nothing", 5)
    with fails(error):
        os.copy_file_range(fd, fd, 100, 0, room)
    os.close(fd)
    os.truncate(path / "f", room - 2 * PAGE)
    write(path / "g", b"x" * PAGE)
    os.unlink(path / "g")
    os.rename(path / "f", path / "h")


def test_volume_space_to_the_byte(ws):
    vol = ws.volume("vol", capacity="3M")
    mnt = vol.mount()
    assert os.statvfs(mnt).f_blocks * 4096 == 3 * MIB
    assert avail(mnt) == 3 * MIB
    full_at(vol, mnt, mnt.path, 3 * MIB, "ENOSPC")
    assert avail(mnt) == 2 * PAGE
    mnt = mnt.remount()
    assert avail(mnt) == 2 * PAGE
    write(mnt / "g", b"x" * 2 * PAGE)
    assert avail(mnt) == 0
    with fails("ENOSPC"):
        write(mnt / "e", b"")


def test_volume_inodes(ws):
    mnt = ws.volume("vol", inodes=10).mount()
    assert os.statvfs(mnt).f_favail == 10
    for i in range(9):
        write(mnt / str(i), b"x")
    os.link(mnt / "0", mnt / "link")  # no inode
    os.mkdir(mnt / "d")
    assert os.statvfs(mnt).f_favail == 0
    for fn in (
        lambda: write(mnt / "more", b""),
        lambda: os.mkdir(mnt / "more"),
        lambda: os.mknod(mnt / "more"),
        lambda: os.symlink("x", mnt / "more"),
    ):
        with fails("ENOSPC"):
            fn()
    os.rename(mnt / "0", mnt / "1")
    os.unlink(mnt / "1")
    os.unlink(mnt / "link")
    write(mnt / "again", b"")
    mnt = mnt.remount()
    assert os.statvfs(mnt).f_favail == 1


RACER = """
import os, sys
done = 0
for i in range(200):
    try:
        os.close(os.open("%s/%s-%d" % (sys.argv[1], sys.argv[2], i), os.O_CREAT | os.O_EXCL))
        done += 1
    except OSError as e:
        if e.errno != int(sys.argv[3]):
            raise
print(done)
"""


def race(ws, path, error):
    """Six processes make files until they may not; returns how many were made."""
    code = str(getattr(errno, error))
    all_ = [ws.python(RACER, path, str(i), code, stdout=subprocess.PIPE) for i in range(6)]
    return sum(int(p.communicate(timeout=60)[0]) for p in all_)


def test_many_creators_share_what_is_left(ws, qvol):
    quota(ws, qvol, "set", "--path", "/q/deep", "--inodes", "77")
    mnt = qvol.mount("heartbeat=1")
    assert race(ws, mnt / "q/deep", "EDQUOT") == 77
    os.mkdir(mnt / "other")
    left = os.statvfs(mnt).f_files - os.statvfs(mnt).f_ffree
    ws.run("cachefs", "config", qvol.url, "--inodes", str(left + 55), check=True)
    wait_until(lambda: os.statvfs(mnt).f_favail == 55, 20, "the limit")
    assert race(ws, mnt / "other", "ENOSPC") == 55


def test_many_growing_files_share_what_is_left(ws):
    """truncate and fallocate take space too."""
    mnt = ws.volume("vol", capacity="4M").mount()
    for i in range(8):
        write(mnt / str(i), b"")
    taken = [0] * 8

    def grow(i):
        for size in range(PAGE, MIB + 1, PAGE):
            try:
                if i % 2:
                    os.truncate(mnt / str(i), size)
                else:
                    with open(mnt / str(i), "r+b") as f:
                        os.posix_fallocate(f.fileno(), 0, size)
                taken[i] = size
            except OSError as e:
                assert e.errno == errno.ENOSPC
                return

    threads = [threading.Thread(target=grow, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(80)
    assert sum(taken) == 4 * MIB and avail(mnt) == 0


def test_the_limit_may_move_while_mounted(ws):
    vol = ws.volume("vol", capacity="2M")
    mnt = vol.mount("heartbeat=1")
    fd = os.open(mnt / "f", os.O_CREAT | os.O_WRONLY)
    os.write(fd, data(MIB))
    with fails("ENOSPC"):
        os.pwrite(fd, b"x", 2 * MIB)
    ws.run("cachefs", "config", vol.url, "--capacity", "4M", check=True)
    wait_until(lambda: avail(mnt) > MIB, 20, "the larger volume")
    os.write(fd, data(MIB))
    os.write(fd, data(MIB))
    os.close(fd)
    assert os.stat(mnt / "f").st_size == 3 * MIB


def test_a_write_is_taken_whole_or_not_at_all(ws):
    mnt = ws.volume("vol", capacity="1M").mount()
    fd = os.open(mnt / "f", os.O_CREAT | os.O_RDWR)
    assert os.write(fd, data(MIB // 2)) == MIB // 2
    with fails("ENOSPC"):
        os.write(fd, data(MIB // 2 + 1))
    assert os.fstat(fd).st_size == MIB // 2
    assert os.write(fd, data(MIB // 2)) == MIB // 2
    os.close(fd)
    assert read(mnt / "f") == data(MIB // 2) * 2


def test_many_files_share_what_is_left(ws):
    """Data that several open files have written but not stored yet counts too."""
    mnt = ws.volume("vol", capacity="2M").mount()
    taken, fds = 0, []
    for i in range(8):
        fds.append(os.open(mnt / str(i), os.O_CREAT | os.O_WRONLY))
    full = 0
    for step in range(40):
        for i, fd in enumerate(fds):
            try:
                taken += os.write(fd, data(20_480, step))
            except OSError:
                full += 1
    errors = 0
    for fd in fds:
        try:
            os.fsync(fd)
        except OSError:
            errors += 1
        os.close(fd)
    stored = sum(os.stat(mnt / str(i)).st_size for i in range(8))
    assert full and errors == 0 and stored == taken == 2 * MIB // 20_480 * 20_480


def test_what_could_not_be_stored_takes_no_room(ws):
    """Space that was set aside for writes that failed, were truncated or removed comes back."""
    vol = ws.volume("vol", capacity="2M")
    mnt = vol.mount("io-timeout=3,put-timeout=2", expect=r"EIO|ENOTDIR|lost|object|not stored")
    write(mnt / "f", b"")
    away = vol.bucket.with_name("away")
    vol.bucket.rename(away)
    write(vol.bucket, b"in the way")
    fd = os.open(mnt / "f", os.O_WRONLY)
    os.write(fd, data(MIB))
    for attempt in (os.fsync, os.close):  # the first may end before the last try of the store
        with contextlib.suppress(OSError):
            attempt(fd)
    os.unlink(vol.bucket)
    away.rename(vol.bucket)
    # it may have been given up, or be stored after all
    wait_until(lambda: avail(mnt) == 2 * MIB - max(os.stat(mnt / "f").st_size, PAGE), 20, "its end")
    os.truncate(mnt / "f", 0)
    # removed while open, cut back while dirty
    fd = os.open(mnt / "gone", os.O_CREAT | os.O_WRONLY)
    os.write(fd, data(MIB))
    os.unlink(mnt / "gone")
    os.close(fd)
    fd = os.open(mnt / "f", os.O_WRONLY)
    os.write(fd, data(MIB))
    os.ftruncate(fd, 10)
    os.close(fd)
    wait_until(lambda: avail(mnt) == 2 * MIB - PAGE, 20, "the removed file's space")
    write(mnt / "f", data(2 * MIB))
    assert read(mnt / "f") == data(2 * MIB)


def test_deleting_from_a_full_volume(ws):
    mnt = ws.volume("vol", capacity="1M").mount()
    write(mnt / "f", data(MIB))
    with fails("ENOSPC"):
        write(mnt / "g", b"x")
    os.unlink(mnt / "f")
    write(mnt / "g", data(MIB))
    assert read(mnt / "g") == data(MIB)


# ---- quotas ----


def quota(ws, vol, *args):
    return ws.run("cachefs", "quota", *args[:1], vol.url, *args[1:], check=True)


@pytest.fixture
def qvol(ws):
    vol = ws.volume("vol")
    mnt = vol.mount()
    os.makedirs(mnt / "q/deep")
    os.chmod(mnt / "q/deep", 0o777)
    mnt.umount()
    return vol


def test_directory_space_to_the_byte(ws, qvol):
    quota(ws, qvol, "set", "--path", "/q", "--capacity", "1M")
    mnt = qvol.mount()
    # deep itself costs a page of q's
    assert avail(mnt / "q") == avail(mnt / "q/deep") == MIB - PAGE
    assert os.statvfs(mnt / "q").f_blocks * 4096 == MIB
    full_at(qvol, mnt, mnt / "q/deep", MIB - PAGE, "EDQUOT")
    write(mnt / "outside", data(2 * MIB))
    with fails("EDQUOT"):
        os.rename(mnt / "outside", mnt / "q/inside")
    with fails("EDQUOT"):
        os.link(mnt / "outside", mnt / "q/inside")
    assert avail(mnt / "q") == 2 * PAGE


def test_directory_inodes(ws, qvol):
    quota(ws, qvol, "set", "--path", "/q", "--inodes", "5")
    mnt = qvol.mount()
    q = mnt / "q"
    for i in range(3):
        write(q / "deep" / str(i), b"")
    os.link(q / "deep/0", q / "link")  # a name counts in its directory
    for fn in (
        lambda: write(q / "more", b""),
        lambda: os.mkdir(q / "deep/more"),
        lambda: os.symlink("x", q / "more"),
        lambda: os.link(q / "deep/1", q / "more"),
        lambda: os.rename(mnt / "out", q / "more"),
    ):
        write(mnt / "out", b"")
        with fails("EDQUOT"):
            fn()
    os.rename(q / "deep/2", mnt / "moved")
    os.mkdir(q / "more")
    with fails("EDQUOT"):
        os.mkdir(q / "evenmore")
    os.rename(q / "more", q / "deep/more")


def test_nested_quotas(ws, qvol):
    quota(ws, qvol, "set", "--path", "/q", "--capacity", "1M")
    quota(ws, qvol, "set", "--path", "/q/deep", "--capacity", "2M")
    mnt = qvol.mount()
    assert avail(mnt / "q/deep") == MIB - PAGE
    write(mnt / "q/f", data(MIB // 2))
    with fails("EDQUOT"):
        write(mnt / "q/deep/f", data(MIB // 2))
    os.unlink(mnt / "q/f")
    os.unlink(mnt / "q/deep/f")
    write(mnt / "q/deep/f", data(MIB // 2))


def test_owner_quotas(ws, qvol):
    quota(ws, qvol, "set", "--uid", "1000", "--capacity", "1M")
    quota(ws, qvol, "set", "--gid", "2000", "--inodes", "2")
    mnt = qvol.mount()
    d = mnt / "q/deep"
    with user(1000, 1000):
        write(d / "f", b"")
        got, _ = fill(d, 10_000)
        with fails("EDQUOT"):
            write(d / "g", data(20_000))
    assert got <= MIB and MIB - got < 20_000
    write(d / "roots", data(MIB))
    with user(1001, 2000):
        write(d / "1", b"")
        write(d / "2", b"")
        with fails("EDQUOT"):
            write(d / "3", b"")


def test_quota_of_a_subdirectory_mount(ws, qvol):
    quota(ws, qvol, "set", "--path", "/q", "--capacity", "1M")
    mnt = qvol.mount("subdir=/q")
    assert os.statvfs(mnt).f_blocks * 4096 == MIB
    with fails("EDQUOT"):
        write(mnt / "f", data(MIB))


def test_usage_is_shared_between_mounts(ws, qvol):
    quota(ws, qvol, "set", "--path", "/q", "--capacity", "1M")
    a, b = qvol.mount("heartbeat=1"), qvol.mount("heartbeat=1")
    write(a / "q/f", data(900_000))
    wait_until(lambda: avail(b / "q") < 200_000, 20, "the other's usage")
    with fails("EDQUOT"):
        write(b / "q/g", data(200_000))
    os.unlink(a / "q/f")
    wait_until(lambda: avail(b / "q") > 900_000, 20, "the room after the deletion")


def test_keep_size_costs_nothing(ws):
    """Space is charged by length, as other clients of the format do."""
    mnt = ws.volume("vol", capacity="1M").mount()
    fd = os.open(mnt / "f", os.O_CREAT | os.O_RDWR)
    fallocate(fd, FALLOC_KEEP_SIZE, 0, 10 * MIB)
    assert avail(mnt) == MIB - PAGE
    os.close(fd)
