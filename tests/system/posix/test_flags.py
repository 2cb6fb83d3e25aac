# SPDX-License-Identifier: Apache-2.0
"""Immutable, append-only and the other flags of inodes: who set them finds files changed or gone."""

import array
import contextlib
import fcntl
import os
import subprocess

from syscalls import RENAME_EXCHANGE, fails, read, renameat2, user, write

GETFLAGS, SETFLAGS = 0x80086601, 0x40086602
FSGETXATTR, FSSETXATTR = 0x801C581F, 0x401C5820
SECRM, IMMUTABLE, APPEND, NODUMP = 1, 0x10, 0x20, 0x40


def get_flags(path):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        buf = array.array("i", [0])
        fcntl.ioctl(fd, GETFLAGS, buf)
        return buf[0]
    finally:
        os.close(fd)


def set_flags(path, flags):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.ioctl(fd, SETFLAGS, array.array("i", [flags]))
    finally:
        os.close(fd)


@contextlib.contextmanager
def flagged(path, flags):
    set_flags(path, flags)
    try:
        yield
    finally:
        set_flags(path, 0)


def test_flags_by_chattr(mnt):
    write(mnt / "f", b"")
    os.mkdir(mnt / "d")
    for path in (mnt / "f", mnt / "d"):
        for letter, flag in (("i", IMMUTABLE), ("a", APPEND), ("s", SECRM)):
            subprocess.run(["chattr", "+" + letter, path], check=True, timeout=20)
            assert get_flags(path) == flag
            shown = subprocess.run(
                ["lsattr", "-d", path], check=True, timeout=20, stdout=subprocess.PIPE, text=True
            )
            assert letter in shown.stdout.split()[0]
            subprocess.run(["chattr", "-" + letter, path], check=True, timeout=20)
            assert get_flags(path) == 0
        with fails("ENOTSUP"):
            set_flags(path, NODUMP)
    subprocess.run(["chattr", "+ia", mnt / "f"], check=True, timeout=20)
    mnt = mnt.remount()
    assert get_flags(mnt / "f") == IMMUTABLE | APPEND
    set_flags(mnt / "f", 0)


def test_flags_by_fsxattr(mnt):
    write(mnt / "f", b"")
    set_flags(mnt / "f", SECRM)
    fd = os.open(mnt / "f", os.O_RDONLY)
    x = array.array("I", [8, 0, 0, 0, 0, 0, 0])  # FS_XFLAG_IMMUTABLE
    fcntl.ioctl(fd, FSSETXATTR, x)
    assert get_flags(mnt / "f") == IMMUTABLE | SECRM
    x = array.array("I", [0] * 7)
    fcntl.ioctl(fd, FSGETXATTR, x)
    assert x[0] == 8
    fcntl.ioctl(fd, FSSETXATTR, array.array("I", [0] * 7))
    assert get_flags(mnt / "f") == SECRM
    with fails("ENOTSUP"):
        fcntl.ioctl(fd, FSSETXATTR, array.array("I", [0x80, 0, 0, 0, 0, 0, 0]))
    os.close(fd)


def test_flags_are_for_root(mnt):
    os.chmod(mnt.path, 0o777)
    with user(1000, 1000):
        write(mnt / "f", b"")
        for flag in (IMMUTABLE, APPEND):
            with fails("EPERM"):
                set_flags(mnt / "f", flag)


def test_immutable_file(mnt):
    f = mnt / "f"
    write(f, b"as it was")
    os.setxattr(f, "user.a", b"1")
    before = os.stat(f)
    open_before = os.open(f, os.O_RDWR)
    with flagged(f, IMMUTABLE):
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_RDONLY | os.O_TRUNC):
            with fails("EPERM"):
                os.open(f, flags)
        for fn in (
            lambda: os.truncate(f, 1),
            lambda: os.ftruncate(open_before, 1),
            lambda: os.posix_fallocate(open_before, 0, 100),
            lambda: os.chmod(f, 0o600),
            lambda: os.chown(f, 1, 1),
            lambda: os.utime(f),
            lambda: os.utime(f, (1, 1)),
            lambda: os.link(f, mnt / "g"),
            lambda: os.unlink(f),
            lambda: os.rename(f, mnt / "g"),
            lambda: os.setxattr(f, "user.b", b"1"),
            lambda: os.removexattr(f, "user.a"),
        ):
            with fails("EPERM"):
                fn()
        write(mnt / "other", b"")
        with fails("EPERM"):
            os.rename(mnt / "other", f)
        with fails("EPERM"):
            renameat2(mnt / "other", f, RENAME_EXCHANGE)
        assert read(f) == b"as it was" and os.getxattr(f, "user.a") == b"1"
    os.close(open_before)
    after = os.stat(f)
    assert (before.st_mode, before.st_mtime_ns, before.st_uid) == (
        after.st_mode,
        after.st_mtime_ns,
        after.st_uid,
    )
    write(f, b"free again")
    os.unlink(f)


def test_append_only_file(mnt):
    f = mnt / "log"
    write(f, b"one\n")
    with flagged(f, APPEND):
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND | os.O_TRUNC):
            with fails("EPERM"):
                os.open(f, flags)
        with open(f, "ab") as w:
            w.write(b"two\n")
        for fn in (
            lambda: os.truncate(f, 1),
            lambda: os.chmod(f, 0o600),
            lambda: os.link(f, mnt / "g"),
            lambda: os.unlink(f),
            lambda: os.rename(f, mnt / "g"),
        ):
            with fails("EPERM"):
                fn()
        os.utime(f)  # "now" is fine
        with fails("EPERM"):
            os.utime(f, (1, 1))
        assert read(f) == b"one\ntwo\n"


def test_flags_of_directories(mnt):
    d = mnt / "d"
    os.mkdir(d)
    write(d / "f", b"x")
    os.mkdir(d / "sub")
    write(mnt / "other", b"")
    with flagged(d, IMMUTABLE):
        for fn in (
            lambda: write(d / "new", b""),
            lambda: os.mkdir(d / "new"),
            lambda: os.symlink("x", d / "new"),
            lambda: os.mknod(d / "new"),
            lambda: os.link(mnt / "other", d / "new"),
            lambda: os.unlink(d / "f"),
            lambda: os.rmdir(d / "sub"),
            lambda: os.rename(d / "f", mnt / "out"),
            lambda: os.rename(mnt / "other", d / "in"),
            lambda: os.rename(d, mnt / "e"),
            lambda: os.chmod(d, 0o700),
        ):
            with fails("EPERM"):
                fn()
        with open(d / "f", "ab") as f:
            f.write(b"y")  # what is in it is not immutable
    with flagged(d, APPEND):
        write(d / "new", b"")
        for fn in (
            lambda: os.unlink(d / "new"),
            lambda: os.rename(d / "new", mnt / "out"),
            lambda: os.rename(d / "f", d / "g"),
            lambda: os.rmdir(d / "sub"),
        ):
            with fails("EPERM"):
                fn()
    assert sorted(os.listdir(d)) == ["f", "new", "sub"] and read(d / "f") == b"xy"


def test_secure_deletion_skips_the_trash(ws):
    mnt = ws.volume("vol", trash_days=1).mount()
    os.mkdir(mnt / "d")
    set_flags(mnt / "d", SECRM)
    write(mnt / "d/f", b"x")
    assert get_flags(mnt / "d/f") == SECRM  # inherited
    os.unlink(mnt / "d/f")
    assert [os.listdir(mnt / ".trash" / hour) for hour in os.listdir(mnt / ".trash")] in ([], [[]])


def test_flags_hold_on_other_mounts(ws, mnt):
    write(mnt / "f", b"x")
    other = mnt.volume.mount()
    read(other / "f")
    with flagged(mnt / "f", IMMUTABLE):
        with fails("EPERM"):
            os.open(other / "f", os.O_WRONLY)
        with fails("EPERM"):
            os.unlink(other / "f")
