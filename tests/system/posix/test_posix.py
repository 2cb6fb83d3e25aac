# SPDX-License-Identifier: Apache-2.0
"""Names, attributes and permissions. A user whose program meets a wrong errno or attribute here
sees it fail in ways that a local file system never shows."""

import errno
import os
import socket
import stat
import time

import pytest

from syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT
from syscalls import data, fails, read, renameat2, user, write


def test_write_read_remount(mnt):
    content = data(300_001)
    write(mnt / "f", content)
    assert read(mnt / "f") == content
    mnt = mnt.remount()
    assert read(mnt / "f") == content
    st = os.stat(mnt / "f")
    assert st.st_size == 300_001 and st.st_nlink == 1 and stat.S_ISREG(st.st_mode)
    assert st.st_blocks == (300_001 + 511) // 512 and st.st_blksize == 65536


def test_empty_volume(mnt):
    st = os.stat(mnt.path)
    assert st.st_ino == 1 and st.st_nlink == 2 and stat.S_IMODE(st.st_mode) == 0o777
    assert st.st_size == 4096 and st.st_blocks == 8
    assert [n for n in os.listdir(mnt.path) if not n.startswith(".")] == []


def test_open_flags(mnt):
    f, d = mnt / "f", mnt / "d"
    with fails("ENOENT"):
        os.open(f, os.O_RDONLY)
    os.close(os.open(f, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640))
    with fails("EEXIST"):
        os.open(f, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    write(f, b"abc")
    os.close(os.open(f, os.O_WRONLY | os.O_TRUNC))
    assert os.stat(f).st_size == 0
    os.mkdir(d)
    with fails("EISDIR"):
        os.open(d, os.O_RDWR)
    with fails("ENOTDIR"):
        os.open(f, os.O_DIRECTORY)
    os.symlink("f", mnt / "s")
    with fails("ELOOP"):
        os.open(mnt / "s", os.O_NOFOLLOW)
    with fails("ENOTDIR"):
        os.stat(f / "x")


def test_directories(mnt):
    d = mnt / "d"
    os.mkdir(d)
    assert os.stat(d).st_nlink == 2 and os.stat(mnt.path).st_nlink == 3
    with fails("EEXIST"):
        os.mkdir(d)
    os.mkdir(d / "sub")
    assert os.stat(d).st_nlink == 3
    with fails("ENOTEMPTY"):
        os.rmdir(d)
    with fails("EISDIR"):
        os.unlink(d)
    write(d / "f", b"")
    with fails("ENOTDIR"):
        os.rmdir(d / "f")
    os.unlink(d / "f")
    os.rmdir(d / "sub")
    os.rmdir(d)
    with fails("ENOENT"):
        os.rmdir(d)
    assert os.stat(mnt.path).st_nlink == 2


def test_dot_dot(mnt):
    os.makedirs(mnt / "a/b/c")
    assert os.stat(mnt / "a/b/c/..").st_ino == os.stat(mnt / "a/b").st_ino
    assert os.stat(mnt / "a/b/c/../..").st_ino == os.stat(mnt / "a").st_ino
    os.rename(mnt / "a/b/c", mnt / "c")
    assert os.stat(mnt / "c/..").st_ino == 1


def test_symlinks(mnt):
    for target in ("x", "a/b/c", "é" * 100, "t" * 4095):
        link = mnt / ("l%d" % len(target))
        os.symlink(target, link)
        assert os.readlink(link) == target
        st = os.lstat(link)
        assert stat.S_ISLNK(st.st_mode) and st.st_size == len(os.fsencode(target))
    with fails("ENAMETOOLONG"):
        os.symlink("t" * 4096, mnt / "long")
    with fails("EINVAL"):
        os.readlink(mnt.path)
    with fails("EEXIST"):
        os.symlink("y", mnt / "l1")


def test_special_files(mnt):
    devices = {
        "chr": (stat.S_IFCHR, 1, 3),
        "blk": (stat.S_IFBLK, 8, 17),
        "big": (stat.S_IFCHR, 300, 70000),
    }
    for name, (type_, major, minor) in devices.items():
        os.mknod(mnt / name, type_ | 0o600, os.makedev(major, minor))
    os.mkfifo(mnt / "fifo")
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(mnt / "sock"))
    s.close()
    mnt = mnt.remount()
    for name, (type_, major, minor) in devices.items():
        st = os.stat(mnt / name)
        assert stat.S_IFMT(st.st_mode) == type_
        assert (os.major(st.st_rdev), os.minor(st.st_rdev)) == (major, minor)
        assert st.st_size == 0 and st.st_blocks == 0
    assert stat.S_ISFIFO(os.stat(mnt / "fifo").st_mode)
    assert stat.S_ISSOCK(os.stat(mnt / "sock").st_mode)


def test_hard_links(mnt):
    write(mnt / "a", b"one")
    os.mkdir(mnt / "d")
    before = os.stat(mnt / "a").st_ctime_ns
    os.link(mnt / "a", mnt / "d/b")
    a, b = os.stat(mnt / "a"), os.stat(mnt / "d/b")
    assert a.st_ino == b.st_ino and a.st_nlink == b.st_nlink == 2 and a.st_ctime_ns > before
    write(mnt / "d/b", b"two!")
    assert read(mnt / "a") == b"two!"
    with fails("EEXIST"):
        os.link(mnt / "a", mnt / "d/b")
    with fails("EPERM"):
        os.link(mnt / "d", mnt / "e")
    os.unlink(mnt / "a")
    assert os.stat(mnt / "d/b").st_nlink == 1
    mnt = mnt.remount()
    assert read(mnt / "d/b") == b"two!"
    os.rename(mnt / "d/b", mnt / "c")
    assert os.stat(mnt / "c").st_nlink == 1


def test_rename(mnt):
    os.makedirs(mnt / "a/sub")
    os.mkdir(mnt / "b")
    write(mnt / "f", b"f")
    write(mnt / "g", b"g")
    os.rename(mnt / "f", mnt / "g")
    assert read(mnt / "g") == b"f" and not os.path.exists(mnt / "f")
    os.rename(mnt / "g", mnt / "a/g")
    with fails("ENOENT"):
        os.rename(mnt / "nothing", mnt / "x")
    with fails("ENOTEMPTY", "EEXIST"):
        os.rename(mnt / "b", mnt / "a")
    with fails("EISDIR"):
        os.rename(mnt / "a/g", mnt / "b")
    with fails("ENOTDIR"):
        os.rename(mnt / "b", mnt / "a/g")
    with fails("EINVAL"):
        os.rename(mnt / "a", mnt / "a/sub/x")
    os.rename(mnt / "a/sub", mnt / "b")  # over an empty directory
    assert os.stat(mnt / "a").st_nlink == 2 and os.stat(mnt.path).st_nlink == 4
    os.link(mnt / "a/g", mnt / "h")
    os.rename(mnt / "a/g", mnt / "h")  # two names of one inode: nothing happens
    assert os.path.exists(mnt / "a/g") and os.stat(mnt / "h").st_nlink == 2


def test_rename_flags(mnt):
    write(mnt / "f", b"f")
    os.mkdir(mnt / "d")
    write(mnt / "d/x", b"x")
    with fails("EEXIST"):
        renameat2(mnt / "f", mnt / "d", RENAME_NOREPLACE)
    renameat2(mnt / "f", mnt / "g", RENAME_NOREPLACE)
    renameat2(mnt / "g", mnt / "d", RENAME_EXCHANGE)
    assert read(mnt / "d") == b"f" and read(mnt / "g/x") == b"x"
    os.makedirs(mnt / "p/q")
    renameat2(mnt / "d", mnt / "p/q", RENAME_EXCHANGE)  # a file and a directory, two parents
    assert os.path.isdir(mnt / "d") and read(mnt / "p/q") == b"f"
    assert os.stat(mnt / "p").st_nlink == 2 and os.stat(mnt.path).st_nlink == 5
    with fails("ENOENT"):
        renameat2(mnt / "d", mnt / "nothing", RENAME_EXCHANGE)
    with fails("EINVAL", "ENOTSUP"):
        renameat2(mnt / "g/x", mnt / "w", RENAME_WHITEOUT)
    with fails("EINVAL"):
        renameat2(mnt / "g/x", mnt / "w", RENAME_NOREPLACE | RENAME_EXCHANGE)
    mnt = mnt.remount()
    assert read(mnt / "p/q") == b"f" and read(mnt / "g/x") == b"x"


def test_names(mnt):
    names = [
        b"a" * 255,
        "ü".encode() * 127,
        b"bad-\xff\xfe\x80-utf8",
        b"new\nline'\"",
        b" ",
        b"-x",
        b"...",
        b"Case",
        b"case",
        b"\x01",
        b"%41",
    ]
    for n in names:
        write(os.path.join(os.fsencode(mnt), n), n)
    assert {n for n in os.listdir(os.fsencode(mnt)) if n[:1] != b"." or n == b"..."} == set(names)
    mnt = mnt.remount()
    for n in names:
        assert read(os.path.join(os.fsencode(mnt), n)) == n
    for fn in (os.stat, os.mkdir, os.unlink, os.rmdir, lambda p: os.rename(mnt / "Case", p)):
        with fails("ENAMETOOLONG"):
            fn(mnt / ("b" * 256))


def test_mode_owner_times(mnt):
    f = mnt / "f"
    write(f, b"x")
    before = os.stat(f)
    os.chmod(f, 0o7751)
    os.chown(f, 1234, 5678)
    st = os.stat(f)
    assert (st.st_uid, st.st_gid) == (1234, 5678)
    assert stat.S_IMODE(st.st_mode) == 0o1751  # a change of owner takes setuid and setgid
    assert st.st_ctime_ns > before.st_ctime_ns and st.st_mtime_ns == before.st_mtime_ns
    for at, mt in (
        (1, 1234567890_987654321),
        (0, 1),
        (2**32 * 10**9 + 5, 2**32 * 10**9 + 999_999_999),
    ):
        os.utime(f, ns=(at, mt))
        st = os.stat(f)
        assert (st.st_atime_ns, st.st_mtime_ns) == (at, mt)
    mnt = mnt.remount()
    st = os.stat(mnt / "f")
    assert (st.st_atime_ns, st.st_mtime_ns) == (at, mt) and stat.S_IMODE(st.st_mode) == 0o1751
    now = time.time_ns()
    os.utime(mnt / "f")
    assert abs(os.stat(mnt / "f").st_mtime_ns - now) < 60 * 10**9


def test_times_move(mnt):
    """make and rsync decide by these."""
    d, f = mnt / "d", mnt / "d/f"
    os.mkdir(d)

    def changed(path, fn, fields):
        before = os.stat(path)
        fn()
        after = os.stat(path)
        for name in ("st_mtime_ns", "st_ctime_ns"):
            moved = getattr(after, name) > getattr(before, name)
            assert moved == (name in fields), "%s of %s" % (name, path)

    both = ("st_mtime_ns", "st_ctime_ns")
    changed(d, lambda: write(f, b""), both)
    changed(f, lambda: write(f, b""), both)  # O_TRUNC of a file that is empty
    changed(f, lambda: write(f, b"x"), both)
    changed(f, lambda: os.truncate(f, 100), both)
    changed(f, lambda: os.chmod(f, 0o600), both[1:])
    changed(f, lambda: read(f), ())
    changed(d, lambda: os.rename(f, d / "g"), both)
    changed(d, lambda: os.mkdir(d / "s"), both)
    changed(d, lambda: os.rmdir(d / "s"), both)
    changed(d, lambda: os.symlink("x", d / "l"), both)
    changed(d, lambda: os.unlink(d / "g"), both)


def test_directory_times_are_kept(volume):
    """They may be stored late, but are shown at once and are there after an unmount."""
    mnt = volume.mount("skip-dir-mtime=1h,attr-cache=0")
    os.mkdir(mnt / "d")
    seen = [os.stat(mnt / "d").st_mtime_ns]
    for i in range(3):
        write(mnt / "d" / str(i), b"")
        seen.append(os.stat(mnt / "d").st_mtime_ns)
    os.unlink(mnt / "d/0")
    seen.append(os.stat(mnt / "d").st_mtime_ns)
    assert seen == sorted(set(seen))
    os.utime(mnt / "d", (1, 1))
    assert os.stat(mnt / "d").st_mtime == 1
    os.unlink(mnt / "d/1")
    last = os.stat(mnt / "d").st_mtime_ns
    mnt.umount()
    assert os.stat(volume.mount() / "d").st_mtime_ns == last > seen[-1]


def test_umask_and_setgid(mnt):
    os.mkdir(mnt / "d")
    os.chown(mnt / "d", 0, 4321)
    os.chmod(mnt / "d", 0o2775)
    old = os.umask(0o027)
    try:
        os.mkdir(mnt / "d/sub", 0o777)
        write(mnt / "d/f", b"")
    finally:
        os.umask(old)
    sub, f = os.stat(mnt / "d/sub"), os.stat(mnt / "d/f")
    assert stat.S_IMODE(sub.st_mode) == 0o2750 and sub.st_gid == 4321
    assert stat.S_IMODE(f.st_mode) == 0o640 and f.st_gid == 4321


def test_permissions(mnt):
    write(mnt / "private", b"s")
    os.chmod(mnt / "private", 0o600)
    os.mkdir(mnt / "open")
    os.chmod(mnt / "open", 0o777)
    os.mkdir(mnt / "closed", 0o755)
    write(mnt / "closed/f", b"")
    os.mkdir(mnt / "sticky")
    os.chmod(mnt / "sticky", 0o1777)
    write(mnt / "sticky/root", b"")
    with user(1001, 1001):
        with fails("EACCES"):
            read(mnt / "private")
        with fails("EPERM"):
            os.chmod(mnt / "private", 0o666)
        write(mnt / "open/mine", b"m")
        assert os.stat(mnt / "open/mine").st_uid == 1001
        with fails("EPERM"):
            os.chown(mnt / "open/mine", 0, 0)
        for fn in (os.unlink, lambda p: os.rename(p, mnt / "open/x")):
            with fails("EACCES"):
                fn(mnt / "closed/f")
            with fails("EACCES", "EPERM"):
                fn(mnt / "sticky/root")
        write(mnt / "sticky/mine", b"")
        os.unlink(mnt / "sticky/mine")
        assert os.access(mnt / "private", os.R_OK, effective_ids=True) is False
    with user(1002, 1002):
        with fails("EPERM"):
            os.utime(mnt / "open/mine", ns=(1, 1))


def test_write_takes_setuid(mnt):
    f = mnt / "f"
    write(f, b"x")
    os.chown(f, 1001, 1001)
    os.chmod(f, 0o6777)
    with user(1001, 1001):
        with open(f, "r+b") as h:
            h.write(b"y")
    assert stat.S_IMODE(os.stat(f).st_mode) == 0o777


def test_truncate_errors(mnt):
    write(mnt / "f", b"x")
    with fails("EISDIR"):
        os.truncate(mnt.path, 0)
    with fails("EINVAL"):
        os.truncate(mnt / "f", -1)
    with fails("EFBIG"):
        os.truncate(mnt / "f", 2**57)
    with fails("EFBIG"):
        fd = os.open(mnt / "f", os.O_WRONLY)
        try:
            os.pwrite(fd, b"x", 2**57)
            os.fsync(fd)
        finally:
            os.close(fd)
    assert read(mnt / "f") == b"x"


def test_statfs(ws):
    vol = ws.volume(capacity="1G", inodes=1000)
    mnt = vol.mount()
    before = os.statvfs(mnt.path)
    assert before.f_namemax == 255 and before.f_bsize == 4096
    assert before.f_blocks * before.f_frsize == 1 << 30 and before.f_files == 1000
    write(mnt / "f", data(10_000_000), sync=True)
    os.mkdir(mnt / "d")
    after = os.statvfs(mnt.path)
    used = (before.f_bfree - after.f_bfree) * after.f_frsize
    assert used == (10_000_000 + 4095) // 4096 * 4096 + 4096
    assert before.f_ffree - after.f_ffree == 2


def test_capacity(ws):
    """A full volume says ENOSPC to the writer, not to nobody."""
    vol = ws.volume(capacity="1G", inodes=5)
    mnt = vol.mount()
    for i in range(5):
        write(mnt / ("f%d" % i), b"")
    with fails("ENOSPC"):
        write(mnt / "f5", b"")
    with fails("ENOSPC"):
        os.mkdir(mnt / "d")
    os.unlink(mnt / "f0")
    write(mnt / "f5", b"")
    with fails("ENOSPC"):
        os.truncate(mnt / "f5", 2 << 30)


def test_trash_keeps_what_is_removed(ws):
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    write(mnt / "f", b"precious")
    ino = os.stat(mnt / "f").st_ino
    os.mkdir(mnt / "d")
    write(mnt / "d/over", b"old")
    write(mnt / "new", b"new")
    over = os.stat(mnt / "d/over").st_ino
    d = os.stat(mnt / "d").st_ino
    os.unlink(mnt / "f")
    os.rename(mnt / "new", mnt / "d/over")
    os.unlink(mnt / "d/over")
    os.rmdir(mnt / "d")
    mnt.umount()
    names = {
        bytes(n)
        for (n,) in vol.sql("SELECT name FROM jfs_edge WHERE parent > ?", 0x7FFFFFFF10000000)
    }
    assert (
        b"1-%d-f" % ino in names and b"%d-%d-over" % (d, over) in names and b"1-%d-d" % d in names
    )
    assert len(names) == 4
    assert len(vol.objects()) == 3


def test_subdirectory_mount(volume):
    with_root = volume.mount()
    os.makedirs(with_root / "a/b")
    write(with_root / "a/b/f", b"deep")
    with_root.umount()
    mnt = volume.mount("subdir=/a/b")
    assert read(mnt / "f") == b"deep"
    assert sorted(n for n in os.listdir(mnt.path) if not n.startswith(".")) == ["f"]
    write(mnt / "g", b"g")
    assert os.stat(os.path.join(mnt.path, "..")).st_ino != os.stat(mnt.path).st_ino
    mnt.umount()
    mnt = volume.mount()
    assert read(mnt / "a/b/g") == b"g"


def test_read_only(volume):
    mnt = volume.mount()
    write(mnt / "f", b"x")
    mnt.umount()
    before = volume.sql("SELECT * FROM jfs_counter ORDER BY name")
    mnt = volume.mount("ro")
    assert read(mnt / "f") == b"x"
    with fails("EROFS"):
        write(mnt / "g", b"")
    with fails("EROFS"):
        os.unlink(mnt / "f")
    with fails("EROFS"):
        os.chmod(mnt / "f", 0o600)
    mnt.umount()
    assert volume.sql("SELECT * FROM jfs_counter ORDER BY name") == before


@pytest.mark.parametrize("call", ["setxattr", "link"])
def test_answer_is_an_errno(mnt, call):
    """An operation that is not provided returns an error; the mount neither hangs nor dies."""
    write(mnt / "f", b"x")
    try:
        if call == "setxattr":
            os.setxattr(mnt / "f", "user.k", b"v")
        else:
            os.link(mnt / "f", mnt / "g")
    except OSError as e:
        assert e.errno in (errno.ENOTSUP, errno.ENOSYS)
    assert read(mnt / "f") == b"x"
