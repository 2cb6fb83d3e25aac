# SPDX-License-Identifier: Apache-2.0
"""Written bytes that are lost before they are stored: each open file that could have written
them gets the error from its own fsync, whichever files other processes close meanwhile. A failure here
is a program that believes its bytes to be safe, and they are gone."""

import array
import ctypes
import mmap
import os
import socket
import subprocess
import sys

import pytest

from cachefs import SLOW
from syscalls import data, fails, read, write
from test_takeover import kill_worker, upgrade

libc = ctypes.CDLL(None, use_errno=True)
SIZE = 1_000_000


def push(fd):
    """Hands what the kernel has to the process, without asking for it to be stored."""
    assert libc.sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(0), 7) == 0, os.strerror(ctypes.get_errno())


def reap(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def child_exits(fd):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    reap(pid)


def child_closes(fd):
    pid = os.fork()
    if pid == 0:
        try:
            os.close(fd)
        finally:
            os._exit(0)
    reap(pid)


def child_runs_a_program(fd):
    """The descriptor is closed by exec."""
    assert not os.get_inheritable(fd)
    pid = os.fork()
    if pid == 0:
        os.execv("/bin/true", ["true"])
    reap(pid)


def program_inherits(fd):
    subprocess.run(["/bin/true"], pass_fds=[fd], check=True, timeout=30 * SLOW)


def duplicate_is_closed(fd):
    with fails("EIO"):
        os.close(os.dup(fd))


RECEIVER = """
import array, os, socket, sys
s = socket.socket(fileno=int(sys.argv[1]))
_, (part,), _, _ = s.recvmsg(1, socket.CMSG_SPACE(4))
fd = array.array("i", part[2])[0]
try: os.close(fd)
except OSError as e: print(e.errno)
"""


def descriptor_is_passed_on(fd):
    here, there = socket.socketpair()
    with here, there:
        p = subprocess.Popen([sys.executable, "-c", RECEIVER, str(there.fileno())], pass_fds=[there.fileno()])
        here.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        assert p.wait(30 * SLOW) == 0


CLOSERS = [child_exits, child_closes, child_runs_a_program, program_inherits, duplicate_is_closed, descriptor_is_passed_on]


@pytest.fixture
def mnt(volume):
    volume.check_options = {"leaks": "warn", "unmounted": True}
    return volume.mount()


@pytest.mark.parametrize("closes", CLOSERS, ids=lambda f: f.__name__)
def test_no_close_takes_the_error_away(mnt, closes):
    for i in range(2):
        fd = os.open(mnt / ("f%d" % i), os.O_RDWR | os.O_CREAT)
        os.fsync(fd)
        os.pwrite(fd, data(SIZE, i), 0)
        kill_worker(mnt)
        closes(fd)
        with fails("EIO"):
            os.fsync(fd)
        os.pwrite(fd, data(SIZE, i), 0)
        os.fsync(fd)
        os.close(fd)
        assert read(mnt / ("f%d" % i)) == data(SIZE, i)


def test_closes_report_it_too(mnt):
    """So do programs hear of it that call no fsync."""
    fd = os.open(mnt / "f", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, data(SIZE), 0)
    kill_worker(mnt)
    for _ in range(3):
        with fails("EIO"):
            os.close(os.dup(fd))
    with fails("EIO"):
        os.close(fd)


def test_it_outlives_more_deaths_and_an_upgrade(ws, volume, mnt):
    fd = os.open(mnt / "f", os.O_RDWR | os.O_CREAT)
    os.fsync(fd)
    os.pwrite(fd, data(SIZE), 0)
    kill_worker(mnt)
    child_exits(fd)
    kill_worker(mnt)
    child_exits(fd)
    upgrade(ws, volume, mnt)
    child_exits(fd)
    with fails("EIO"):
        os.fsync(fd)
    os.fsync(fd)
    os.close(fd)


def test_each_open_of_the_file_hears_it(mnt):
    """Two that wrote and one that did not, but whose process may have by a mapping."""
    fds = [os.open(mnt / "f", os.O_RDWR | os.O_CREAT) for _ in range(3)]
    os.pwrite(fds[0], data(SIZE), 0)
    os.pwrite(fds[2], data(SIZE, 1), SIZE)
    calm = os.open(mnt / "calm", os.O_RDWR | os.O_CREAT)
    kill_worker(mnt)
    late = os.open(mnt / "f", os.O_RDWR)
    for fd in fds:
        child_exits(fd)
        with fails("EIO"):
            os.fsync(fd)
        os.fsync(fd)
    os.fsync(late)
    os.fsync(calm)
    for fd in fds + [late, calm]:
        os.close(fd)


@pytest.mark.parametrize("opts", ["", "writeback_cache"])
def test_mapping(volume, opts):
    """Pages go to the process through any handle that may write, not the one of the mapping."""
    volume.check_options = {"leaks": "warn", "unmounted": True}
    mnt = volume.mount(opts)
    write(mnt / "f", data(SIZE), sync=True)
    fds = [os.open(mnt / "f", os.O_RDWR) for _ in range(3)]
    maps = [mmap.mmap(fd, SIZE) for fd in fds]
    maps[1][0:4096] = b"m" * 4096
    push(fds[1])
    kill_worker(mnt)
    child_exits(fds[1])
    with fails("EIO"):
        maps[1].flush()
    for m in maps:
        m.close()
    with fails("EIO"):
        os.fsync(fds[2])
    maps[0] = None
    for fd in fds[1:]:
        os.close(fd)
    with fails("EIO"):  # its own fsync has not been
        os.close(fds[0])


@pytest.mark.parametrize("writer", [0, 1, 2])
def test_writeback_cache_writes_through_another_handle(volume, writer):
    volume.check_options = {"leaks": "warn", "unmounted": True}
    mnt = volume.mount("writeback_cache")
    fds = [os.open(mnt / "f", os.O_RDWR | os.O_CREAT) for _ in range(3)]
    os.fsync(fds[0])
    os.pwrite(fds[writer], data(SIZE), 0)
    push(fds[writer])
    kill_worker(mnt)
    child_exits(fds[writer])
    with fails("EIO"):
        os.fsync(fds[writer])
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass
