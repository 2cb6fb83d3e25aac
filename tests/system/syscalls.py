# SPDX-License-Identifier: Apache-2.0
"""System calls that Python lacks, and small tools on files."""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import random
import stat
import struct

_libc = ctypes.CDLL(None, use_errno=True)

RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE, FALLOC_ZERO_RANGE = 1, 2, 0x10
AT_FDCWD = -100


def _check(r):
    if r < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return r


def renameat2(old, new, flags):
    _check(_libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags))


def fallocate(fd, mode, off, length):
    _check(_libc.fallocate(fd, mode, ctypes.c_int64(off), ctypes.c_int64(length)))


def syncfs(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        _check(_libc.syncfs(fd))
    finally:
        os.close(fd)


def getdents(fd, size):
    """One getdents64(2): names with the positions behind them."""
    buf = ctypes.create_string_buffer(size)
    n, at, found = _check(_libc.getdents64(fd, buf, ctypes.c_size_t(size))), 0, []
    while at < n:
        off, reclen = struct.unpack_from("=qH", buf, at + 8)
        found.append((ctypes.string_at(ctypes.addressof(buf) + at + 19), off))
        at += reclen
    return found


@contextlib.contextmanager
def _kernel_caches(how):
    fd = os.open("/proc/sys/vm", os.O_RDONLY)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def kernel_caches_stay():
    """No other test has the kernel drop its caches, which are those of all mounts of the machine."""
    return _kernel_caches(fcntl.LOCK_SH)


def drop_kernel_caches(what):
    """1: pages. 2: names and inodes."""
    with _kernel_caches(fcntl.LOCK_EX), open("/proc/sys/vm/drop_caches", "w") as f:
        f.write(str(what))


class Dir:
    """opendir(3) with positions, which os.scandir hides."""

    class Dirent(ctypes.Structure):
        _fields_ = [
            ("ino", ctypes.c_uint64),
            ("off", ctypes.c_int64),
            ("reclen", ctypes.c_uint16),
            ("type", ctypes.c_uint8),
            ("name", ctypes.c_char * 256),
        ]

    _libc.opendir.restype = ctypes.c_void_p
    _libc.readdir.restype = ctypes.POINTER(Dirent)
    _libc.telldir.restype = ctypes.c_long

    def __init__(self, path):
        self.p = ctypes.c_void_p(_libc.opendir(os.fsencode(path)))
        if not self.p:
            _check(-1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _libc.closedir(self.p)

    def read(self):
        """Next name, or None."""
        e = _libc.readdir(self.p)
        return e.contents.name if e else None

    def tell(self):
        return _libc.telldir(self.p)

    def seek(self, position):
        _libc.seekdir(self.p, ctypes.c_long(position))

    def names(self):
        return [n for n in iter(self.read, None) if n not in (b".", b"..")]


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


@contextlib.contextmanager
def user(uid, gid, groups=()):
    """The calling process as somebody else."""
    old = os.getgroups()
    os.setgroups(groups)
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(old)


@contextlib.contextmanager
def without_fsetid():
    """The calling thread as one that is not allowed to keep set-id bits: capset(2)."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    _check(_libc.capget(header, sets))
    old = sets[0]
    sets[0] = old & ~(1 << 4)
    _check(_libc.capset(header, sets))
    try:
        yield
    finally:
        sets[0] = old
        _check(_libc.capset(header, sets))


@contextlib.contextmanager
def fails(*names):
    """The block must fail with one of these errors: fails("ENOENT")."""
    try:
        yield
    except OSError as e:
        got = errno.errorcode.get(e.errno, str(e.errno))
        assert got in names, "%s (%s), want %s" % (got, e, " or ".join(names))
    else:
        raise AssertionError("succeeded, want " + " or ".join(names))


def data(size, seed=0):
    return random.Random(seed).randbytes(size)


def sha(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def write(path, content, sync=False):
    with open(path, "wb") as f:
        f.write(content)
        if sync:
            f.flush()
            os.fsync(f.fileno())


def read(path):
    with open(path, "rb") as f:
        return f.read()
