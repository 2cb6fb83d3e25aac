# SPDX-License-Identifier: Apache-2.0
"""File handles, running programs, and times at their limits."""

import ctypes
import errno
import os
import shutil
import signal
import time

import pytest

from ring import failing
from syscalls import drop_kernel_caches, fails, read, write
from test_takeover import DEATH, SERVED, kill_worker
from waiting import wait_until

libc = ctypes.CDLL(None, use_errno=True)


class FileHandle(ctypes.Structure):
    _fields_ = [
        ("bytes", ctypes.c_uint),
        ("type", ctypes.c_int),
        ("data", ctypes.c_ubyte * 128),
    ]


def handle_of(path):
    h, mount_id = FileHandle(bytes=128), ctypes.c_int()
    r = libc.name_to_handle_at(-100, os.fsencode(path), ctypes.byref(h), ctypes.byref(mount_id), 0)
    assert r == 0, os.strerror(ctypes.get_errno())
    return h


def open_handle(mnt, h, flags=os.O_RDONLY):
    root = os.open(mnt.path, os.O_RDONLY)
    try:
        fd = libc.open_by_handle_at(root, ctypes.byref(h), flags)
        if fd < 0:
            e = ctypes.get_errno()
            raise OSError(e, os.strerror(e))
        return fd
    finally:
        os.close(root)


def test_files_by_handle(mnt):
    """NFS servers and backup programs keep handles, also beyond the kernel's memory."""
    os.makedirs(mnt / "a/b")
    write(mnt / "a/b/f", b"content")
    f, d = handle_of(mnt / "a/b/f"), handle_of(mnt / "a/b")
    for forget in (False, True):
        if forget:
            drop_kernel_caches(2)
        fd = open_handle(mnt, f)
        assert os.read(fd, 100) == b"content"
        os.close(fd)
        fd = open_handle(mnt, d, os.O_RDONLY | os.O_DIRECTORY)
        assert os.listdir(fd) == ["f"]
        assert os.stat("..", dir_fd=fd).st_ino == os.stat(mnt / "a").st_ino
        os.close(fd)
    os.unlink(mnt / "a/b/f")
    with fails("ESTALE"):
        open_handle(mnt, f)


def test_handles_of_a_subdirectory_mount(volume):
    """An NFS client can make up the handle of any inode: those outside of the mount are not found."""
    whole = volume.mount()
    for path in ("in/x", "inner", "in/moved"):
        os.makedirs(whole / path)
        write(whole / path / "f", b"content")
    os.link(whole / "inner/f", whole / "in/linked")
    write(whole / "secret", b"secret")
    names = ("in/x", "in/x/f", "in/moved", "in/moved/f", "in/linked", "secret", "inner", ".")
    handles = {name: handle_of(whole / name) for name in names}
    os.rename(whole / "in/moved", whole / "moved")
    mnt = volume.mount("subdir=/in")
    for name in ("in/x", "in/x/f", "in/linked"):
        os.close(open_handle(mnt, handles[name]))
    for name in ("secret", "inner", "in/moved", "in/moved/f"):
        with fails("ESTALE"):
            open_handle(mnt, handles[name])
    fd = open_handle(mnt, handles["."], os.O_RDONLY | os.O_DIRECTORY)
    assert os.listdir(fd) == os.listdir(mnt.path)
    os.close(fd)
    # A directory that the kernel knows is moved away: its parent is not found.
    fd = os.open(mnt / "x", os.O_RDONLY)
    mode = os.stat(mnt.path).st_mode
    os.chmod(whole.path, 0o700)
    os.rename(whole / "in/x", whole / "x")
    drop_kernel_caches(2)
    with fails("ESTALE"):
        open_handle(mnt, handles["in/x/f"])
    assert os.stat(mnt.path).st_mode == mode
    os.close(fd)


def test_times_after_2038_and_before_1970(mnt):
    write(mnt / "f", b"")
    for ns in (2**33 * 10**9 + 1, 2**35 * 10**9 + 999_999_999, 0):
        os.utime(mnt / "f", ns=(ns, ns))
        st = os.stat(mnt / "f")
        assert st.st_mtime_ns == ns == st.st_atime_ns
    now = time.time()
    os.utime(mnt / "f", (-5, -5))  # the format has no such times: "now"
    assert abs(os.stat(mnt / "f").st_mtime - now) < 60


def test_directory_times_are_exact(mnt):
    os.mkdir(mnt / "d")
    seen = [os.stat(mnt / "d").st_mtime_ns]
    for i in range(50):
        write(mnt / "d" / str(i), b"")
        seen.append(os.stat(mnt / "d").st_mtime_ns)
    assert all(a < b for a, b in zip(seen, seen[1:]))


def test_a_running_program_is_not_truncated(ws, mnt):
    """Also not by an open that truncates and cannot write, also after the serving process was replaced."""
    shutil.copy("/bin/sleep", mnt / "program")
    p = ws.popen([mnt / "program", "1000"])
    for end in (lambda: None, lambda: kill_worker(mnt)):
        end()
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_TRUNC):
            with fails("ETXTBSY"):
                os.open(mnt / "program", flags)
            assert read(mnt / "program") == read("/bin/sleep")
    assert p.poll() is None
    p.kill()
    p.wait(20)

    def opened():
        """The kernel closes the program's file after its end."""
        try:
            os.close(os.open(mnt / "program", os.O_RDONLY | os.O_TRUNC))
            return True
        except OSError as e:
            assert e.errno == errno.ETXTBSY
            return False

    wait_until(opened, 10, "the end of the program's file")
    assert read(mnt / "program") == b""


# Bytes of the answer, name and flags.
OPENS = {
    "create": (160, "new", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
    "tmpfile": (160, "d", os.O_TMPFILE | os.O_RDWR),
    "open": (32, "there", os.O_RDONLY),
    "opendir": (32, "d", os.O_RDONLY | os.O_DIRECTORY),
    "special": (32, ".config", os.O_RDONLY),
}
OPENER = """
import os, sys
os.open(sys.argv[1], int(sys.argv[2]))
"""


def used_inodes(mnt):
    st = os.statvfs(mnt)
    return st.f_files - st.f_ffree


def stopped_worker(mnt):
    pid = mnt.pid()
    with open("/proc/%d/stat" % pid) as f:
        return pid if f.read().rpartition(")")[2].split()[0] == "T" else None


@pytest.mark.parametrize("resent", [1, 2])
@pytest.mark.parametrize("what", OPENS)
def test_caller_killed_before_the_next_process_reads(ws, volume, what, resent):
    """The process has opened a file, and dies before it answers. The caller is killed when the kernel sends the
    request again, to the standby or to the loop, which then never read it: nothing has the file open."""
    size, name, flags = OPENS[what]
    steps = ws.path("steps")
    steps.mkdir()
    mnt = volume.mount("heartbeat=1", env=failing(ws, STEPS=str(steps)), expect=DEATH)
    os.mkdir(mnt / "d")
    write(mnt / "there", b"x")
    inodes = used_inodes(mnt)
    before = mnt.open_handles()
    (steps / ("resent-%d" % resent)).touch()
    (steps / ("kill-%d" % size)).touch()
    program = ws.python(OPENER, mnt / name, flags)
    pid = wait_until(lambda: stopped_worker(mnt), 20, "the next process to stop")
    assert not os.listdir(steps)
    program.kill()
    program.wait(20)
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: SERVED in mnt.log(), 30, "the next process")
    wait_until(lambda: mnt.stat("open_handles") == before, 5, "the end of the handle")
    wait_until(lambda: used_inodes(mnt) == inodes + (what == "create"), 10, "the end of the file")
