# SPDX-License-Identifier: Apache-2.0
"""File locks. Two programs that both believe to hold a lock destroy each other's data; one that
waits for a lock nobody holds hangs for ever."""

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time

import pytest

from cachefs import SLOW, wait_until
from syscalls import fails, user, write

OFD_GETLK, OFD_SETLK, OFD_SETLKW = 36, 37, 38

# A process that holds and asks for locks as told, one line per command:
#   open PATH | lock KIND START LEN [nb] | unlock START LEN | flock sh|ex|un [nb] | get START LEN
#   close | fork-close
AGENT = r"""
import fcntl, os, struct, sys
fds = []
for line in sys.stdin:
    w = line.split()
    try:
        out = "ok"
        if w[0] == "open":
            fds.append(os.open(w[1], os.O_RDWR | os.O_CREAT))
        elif w[0] == "lock":
            kind = {"r": fcntl.LOCK_SH, "w": fcntl.LOCK_EX}[w[1]]
            nb = fcntl.LOCK_NB if "nb" in w else 0
            fcntl.lockf(fds[-1], kind | nb, int(w[3]), int(w[2]))
        elif w[0] == "unlock":
            fcntl.lockf(fds[-1], fcntl.LOCK_UN, int(w[2]), int(w[1]))
        elif w[0] == "get":
            lk = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, int(w[1]), int(w[2]), 0)
            t, _, start, n, pid = struct.unpack("hhqqi4x", fcntl.fcntl(fds[-1], fcntl.F_GETLK, lk))
            out = "%s %d %d %d" % ("rwu"[t], start, n, pid)
        elif w[0] == "flock":
            kind = {"sh": fcntl.LOCK_SH, "ex": fcntl.LOCK_EX, "un": fcntl.LOCK_UN}[w[1]]
            fcntl.flock(fds[-1], kind | (fcntl.LOCK_NB if "nb" in w else 0))
        elif w[0] == "close":
            os.close(fds.pop())
        elif w[0] == "signal":
            import signal
            signal.signal(signal.SIGUSR1, lambda *a: (_ for _ in ()).throw(OSError(4, "EINTR")))
    except OSError as e:
        out = __import__("errno").errorcode[e.errno].replace("EDEADLOCK", "EDEADLK")
    print(out, flush=True)
"""


class Agent:
    def __init__(self, ws, path):
        self.p = ws.python(AGENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.p.pid
        assert self("open %s" % path) == "ok"

    def send(self, text):
        self.p.stdin.write(text.encode() + b"\n")
        self.p.stdin.flush()

    def answer(self, seconds=20):
        ready, _, _ = select.select([self.p.stdout], [], [], seconds * SLOW)
        assert ready, "no answer in %g s" % seconds
        return self.p.stdout.readline().decode().strip()

    def waits(self, seconds=0.3):
        return not select.select([self.p.stdout], [], [], seconds)[0]

    def __call__(self, text):
        self.send(text)
        return self.answer()

    def kill(self):
        self.p.kill()
        self.p.wait(20)

    def end(self):
        self.p.stdin.close()
        self.p.wait(20)


@pytest.fixture
def agent(ws):
    """Makes agents, which end before the mounts do."""
    all_ = []

    def make(path):
        all_.append(Agent(ws, path))
        return all_[-1]

    yield make
    for x in all_:
        if x.p.poll() is None:
            x.kill()


@pytest.fixture(params=["one mount", "two mounts"])
def pair(request, mnt, agent):
    """Two processes with the same file open."""
    other = mnt if request.param == "one mount" else mnt.volume.mount()
    write(mnt / "f", b"x" * 1000)
    a, b = agent(mnt / "f"), agent(other / "f")
    a.two, b.two = (request.param == "two mounts",) * 2
    return a, b


def test_flock(pair):
    a, b = pair
    assert a("flock sh") == b("flock sh") == "ok"
    assert a("flock ex nb") == "EAGAIN"
    assert b("flock un") == "ok"
    assert a("flock ex nb") == "ok"
    assert b("flock sh nb") == b("flock ex nb") == "EAGAIN"
    b.send("flock ex")
    assert b.waits()
    assert a("flock un") == "ok"
    assert b.answer() == "ok"
    assert a("flock sh nb") == "EAGAIN"
    assert b("flock sh") == "ok"  # down again
    assert a("flock sh nb") == "ok"


def test_posix_ranges(pair):
    a, b = pair
    assert a("lock w 0 100") == "ok"
    assert b("lock r 100 50 nb") == "ok"
    assert b("lock w 50 10 nb") == b("lock r 99 1 nb") == "EAGAIN"
    assert a("unlock 40 20") == "ok"
    assert b("lock w 40 20 nb") == "ok"
    assert b("lock r 39 1 nb") == b("lock w 60 1 nb") == "EAGAIN"
    assert a("lock w 500 0 nb") == "ok"  # to the end of the file, wherever that will be
    assert b("lock w 10000000000 1 nb") == "EAGAIN"
    who, start, length, pid = b("get 0 20").split()
    assert (who, int(start), int(length)) == ("w", 0, 40)
    assert int(pid) == (0 if a.two else a.pid)
    assert b("get 40 20").split()[0] == "u"
    assert a("lock r 0 40 nb") == b("lock r 0 40 nb") == "ok"
    assert a("lock w 0 40 nb") == "EAGAIN"


def test_posix_wait(pair):
    a, b = pair
    assert a("lock w 0 10") == "ok"
    b.send("lock w 5 10")
    assert b.waits()
    assert a("unlock 0 5") == "ok"
    assert b.waits()
    began = time.monotonic()
    assert a("unlock 5 5") == "ok"
    assert b.answer() == "ok"
    assert time.monotonic() - began < 10 * SLOW


@pytest.mark.parametrize("what", ["lock w 0 0", "flock ex"])
@pytest.mark.parametrize("how", ["close", "end", "kill"])
def test_locks_end_with_their_owner(pair, what, how):
    a, b = pair
    assert a(what) == "ok"
    b.send(what)
    assert b.waits(0.1)
    if how == "close":
        assert a("close") == "ok"
    else:
        getattr(a, how)()
    assert b.answer() == "ok"


@pytest.mark.parametrize("what", ["lock w 0 0", "flock ex"])
def test_a_wait_can_be_interrupted(pair, what):
    a, b = pair
    assert b("signal") == "ok"
    assert a(what) == "ok"
    b.send(what)
    assert b.waits()
    os.kill(b.pid, signal.SIGUSR1)
    assert b.answer() == "EINTR"
    assert a("close") == "ok"
    # the kernel tells of the last close afterwards
    wait_until(lambda: b(what + " nb") == "ok", 10, "the lock of the closed file is gone")


@pytest.mark.parametrize("what", ["lock w 0 0", "flock ex"])
def test_a_killed_waiter_leaves_nothing(ws, pair, what):
    a, b = pair
    assert a(what) == "ok"
    b.send(what)
    assert b.waits()
    b.kill()
    assert a("close") == "ok"
    mount = ws.mounts[0]
    wait_until(
        lambda: mount.volume.sql("SELECT count(*) FROM jfs_plock")
        == mount.volume.sql("SELECT count(*) FROM jfs_flock")
        == [(0,)],
        10,
        "the end of all locks",
    )


def test_closing_any_descriptor_ends_posix_locks(pair):
    a, b = pair
    assert a("open %s" % "/dev/null") == "ok"  # a descriptor of another file does not matter
    assert a("close") == "ok"
    assert a("lock w 0 10") == "ok"
    assert b("lock w 0 10 nb") == "EAGAIN"
    path = os.readlink("/proc/%d/fd/3" % a.pid)
    assert a("open " + path) == "ok" and a("close") == "ok"
    assert b("lock w 0 10 nb") == "ok"


def test_deadlock_is_found(agent, mnt):
    """Two programs that would wait for each other for ever: one is told."""
    a, b, c = (agent(mnt / "f") for _ in range(3))
    assert a("lock w 0 1") == b("lock w 1 1") == c("lock w 2 1") == "ok"
    a.send("lock w 1 1")
    assert a.waits()
    b.send("lock w 2 1")
    assert b.waits()
    assert c("lock w 0 1") == "EDEADLK"
    assert c("unlock 2 1") == "ok"
    assert b.answer() == "ok"
    assert a.waits()
    assert b("unlock 0 0") == "ok"
    assert a.answer() == "ok"
    assert a("unlock 0 0") == "ok"


def test_no_deadlock_where_there_is_none(agent, mnt):
    a, b = agent(mnt / "f"), agent(mnt / "f")
    assert a("lock w 0 1") == "ok"
    b.send("lock w 0 1")
    assert b.waits()
    assert a("lock w 1 1") == "ok"
    assert a("unlock 0 1") == "ok"
    assert b.answer() == "ok"


def ofd(fd, cmd, kind, start, length):
    lk = struct.pack("hhqqi4x", kind, 0, start, length, 0)
    return struct.unpack("hhqqi4x", fcntl.fcntl(fd, cmd, lk))


def test_ofd_locks(mnt):
    """Locks of open files, as SQLite forks and virtual machines use them."""
    write(mnt / "f", b"x" * 100)
    a, b = (os.open(mnt / "f", os.O_RDWR) for _ in range(2))
    ofd(a, OFD_SETLK, fcntl.F_WRLCK, 0, 10)
    with fails("EAGAIN"):
        ofd(b, OFD_SETLK, fcntl.F_WRLCK, 5, 10)
    os.close(os.open(mnt / "f", os.O_RDWR))  # would end a POSIX lock
    copy = os.dup(a)
    os.close(a)
    with fails("EAGAIN"):
        ofd(b, OFD_SETLK, fcntl.F_WRLCK, 5, 10)
    got = []

    def wait():
        ofd(b, OFD_SETLKW, fcntl.F_WRLCK, 5, 10)
        got.append(1)

    t = threading.Thread(target=wait)
    t.start()
    t.join(0.3)
    assert not got
    os.close(copy)  # the last descriptor
    t.join(20 * SLOW)
    assert got
    os.close(b)
    wait_until(
        lambda: mnt.volume.sql("SELECT count(*) FROM jfs_plock") == [(0,)], 10, "the last release"
    )


def test_mixed_owners_of_one_open_file(ws, agent, mnt):
    """A child's exit must not take the locks of its parent, nor leave its own."""
    write(mnt / "f", b"x")
    fd = os.open(mnt / "f", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 0)
    code = (
        "import fcntl,os\n"
        "fcntl.lockf(%d, fcntl.LOCK_EX, 10, 20)\n"
        "try: fcntl.lockf(%d, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)\n"
        "except OSError: print('held')\n" % (fd, fd)
    )
    p = ws.popen([sys.executable, "-c", code], stdout=subprocess.PIPE, pass_fds=[fd])
    assert p.communicate(timeout=20 * SLOW)[0] == b"held\n"
    b = agent(mnt / "f")
    wait_until(lambda: b("lock w 20 10 nb") == "ok", 10, "the child's lock")
    assert b("lock w 0 10 nb") == "EAGAIN"
    os.close(fd)
    assert b("lock w 0 10 nb") == "ok"


def test_locks_of_a_crashed_mount_end_with_its_session(ws, agent):
    """kill -9 of a mount must not lock a file for ever."""
    vol = ws.volume("vol")
    a, b = vol.mount("heartbeat=1"), vol.mount("heartbeat=1")
    write(a / "f", b"x")
    holder, waiter = agent(a / "f"), agent(b / "f")
    assert holder("lock w 0 0") == holder("flock ex") == "ok"
    assert waiter("lock w 0 0 nb") == waiter("flock ex nb") == "EAGAIN"
    a.kill9()
    holder.kill()
    waiter.send("flock ex")
    assert waiter.answer(40) == "ok"
    assert waiter("lock w 0 0") == "ok"


def test_locks_of_a_clean_mount_end_with_it(ws, agent):
    vol = ws.volume("vol")
    a, b = vol.mount(), vol.mount()
    write(a / "f", b"x")
    fd = os.open(a / "f", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    fcntl.flock(fd, fcntl.LOCK_EX)
    waiter = agent(b / "f")
    assert waiter("lock w 0 0 nb") == "EAGAIN"
    os.close(fd)
    a.umount()
    assert waiter("lock w 0 0 nb") == waiter("flock ex nb") == "ok"


def test_many_waiters_and_no_busy_polling(ws, mnt):
    """A crowd that waits costs nothing, and each gets its turn."""
    write(mnt / "f", b"0")
    fd = os.open(mnt / "f", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    code = (
        "import fcntl,os,sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\n"
        "print('up', flush=True)\n"
        "fcntl.flock(fd, fcntl.LOCK_EX)\n"
        "n = int(os.pread(fd, 20, 0)) + 1\n"
        "os.pwrite(fd, b'%d' % n, 0)\n"
    )
    crowd = [ws.python(code, str(mnt / "f"), stdout=subprocess.PIPE) for _ in range(40)]
    for p in crowd:
        assert p.stdout.readline() == b"up\n"

    def stat(pid):
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rpartition(")")[2].split()

    def cpu():
        return sum(map(int, stat(mnt.pid())[11:13]))

    # what it says it is up for is all that it can sleep in
    wait_until(lambda: all(stat(p.pid)[0] == "S" for p in crowd), 30, "everybody to wait")
    before = cpu()
    time.sleep(1)  # waits for nothing: what is spent in it is measured
    assert cpu() - before < 30, "ticks of 10 ms spent while everybody waits"
    os.close(fd)
    for p in crowd:
        assert p.wait(60 * SLOW) == 0
    assert open(mnt / "f").read() == "40"


def test_lock_survives_rename_and_unlink(pair):
    a, b = pair
    path = os.readlink("/proc/%d/fd/3" % a.pid)
    assert a("lock w 0 0") == "ok"
    os.rename(path, path + "2")
    assert b("lock w 0 0 nb") == "EAGAIN"
    os.rename(path + "2", path)


def test_locks_need_no_write_permission_for_reading(mnt):
    write(mnt / "f", b"x")
    os.chmod(mnt / "f", 0o444)
    with user(1000, 1000):
        fd = os.open(mnt / "f", os.O_RDONLY)
    fcntl.lockf(fd, fcntl.LOCK_SH)
    with fails("EBADF"):
        fcntl.lockf(fd, fcntl.LOCK_EX)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.close(fd)


def test_locks_of_a_read_only_mount_are_its_own(volume):
    """As on a local file system that is mounted read-only: programs that lock what they read run."""
    mnt = volume.mount()
    write(mnt / "f", b"x" * 100)
    mnt.umount()
    before = volume.sql("SELECT * FROM jfs_counter ORDER BY name")
    mnt = volume.mount("ro")
    fds = [os.open(mnt / "f", os.O_RDONLY) for _ in range(2)]
    fcntl.flock(fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    with fails("EAGAIN"):
        fcntl.flock(fds[1], fcntl.LOCK_SH | fcntl.LOCK_NB)
    os.close(fds[0])
    fcntl.flock(fds[1], fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.lockf(fds[1], fcntl.LOCK_SH, 10, 0)
    lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 5, 0)
    fcntl.fcntl(fds[1], OFD_SETLK, lock)
    os.close(fds[1])
    mnt.umount()
    assert volume.sql("SELECT * FROM jfs_counter ORDER BY name") == before
    assert volume.sql("SELECT count(*) FROM jfs_flock") == [(0,)]
