# SPDX-License-Identifier: Apache-2.0
"""Programs of several hosts that keep a file open and take turns by its locks. If these fail, a
database or a mailbox that two mounts use is damaged: one overwrites what the other has stored."""

import fcntl
import mmap
import os
import sqlite3
import struct
import subprocess
import threading
import time

import pytest

from cachefs import SLOW
from syscalls import fails
from test_concurrency import ENGINES, engine_volume
from test_locks import OFD_SETLKW, ofd

# So that nothing but a lock refreshes a file that is open.
LONG = "attr-cache=300,entry-cache=300"


def posix(fd, kind):
    fcntl.lockf(fd, kind)


def posix_of_a_range(fd, kind):
    fcntl.lockf(fd, kind, 1, 1 << 40)


def of_the_open_file(fd, kind):
    types = {fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}
    ofd(fd, OFD_SETLKW, types[kind], 0, 0)


LOCKS = [fcntl.flock, posix, posix_of_a_range, of_the_open_file]


def longer(fd):
    os.pwrite(fd, b"L" * 5000, 9000)


def shorter(fd):
    os.ftruncate(fd, 100)


def replaced(fd):
    os.pwrite(fd, b"R" * 2000, 4000)


def hole(fd):
    os.ftruncate(fd, 0)
    os.ftruncate(fd, 10000)


def copied(fd):
    os.copy_file_range(fd, fd, 4096, 0, 9000)


def seen(path, fd):
    """Compares what a descriptor that stays open shows with the file of the other mount."""
    with open(path, "rb") as f:  # of the other mount
        want = f.read()
    size = os.fstat(fd).st_size
    assert (size, os.lseek(fd, 0, os.SEEK_END)) == (len(want),) * 2
    assert os.pread(fd, 1 << 20, 0) == want
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as m:
        assert m[:] == want


@pytest.mark.parametrize("change", [longer, shorter, replaced, hole, copied])
@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_shows_what_its_last_holder_has_written(volume, lock, change):
    mnt, other = volume.mount(LONG), volume.mount(LONG)
    (other / "f").write_bytes(os.urandom(10000))
    fds = [os.open(mnt / "f", os.O_RDWR), os.open(other / "f", os.O_RDWR)]
    paths = [mnt / "f", other / "f"]
    direct = [os.open(p, os.O_RDWR | os.O_DIRECT) for p in paths]
    for turn in range(4):
        writer, reader = turn % 2, 1 - turn % 2
        for fd in fds + direct:
            os.pread(fd, 10000, 0)
            os.fstat(fd)
        lock(fds[writer], fcntl.LOCK_EX)
        if turn < 2:
            change(fds[writer])
        else:  # while the reader has stored bytes of its own since it last looked
            os.pwrite(fds[writer], os.urandom(3000), 2000)
        lock(fds[writer], (fcntl.LOCK_UN, fcntl.LOCK_SH)[change in (longer, copied)])
        lock(fds[reader], fcntl.LOCK_SH)
        seen(paths[writer], fds[reader])
        seen(paths[writer], direct[reader])
        lock(fds[reader], fcntl.LOCK_UN)
        lock(fds[writer], fcntl.LOCK_UN)
    for fd in fds + direct:
        os.close(fd)


def test_a_lock_that_was_waited_for_shows_it_too(ws, volume):
    mnt, other = volume.mount(LONG), volume.mount(LONG)
    (other / "f").write_bytes(b"x" * 1000)
    fd = os.open(other / "f", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    waiter = ws.python(WAITER, mnt / "f", stdout=subprocess.PIPE, text=True)
    assert waiter.stdout.readline() == "1000\n"
    os.pwrite(fd, b"y" * 1000, 1000)
    fcntl.lockf(fd, fcntl.LOCK_UN)
    assert waiter.communicate(timeout=60 * SLOW)[0] == "2000\n"
    os.close(fd)


def test_an_unlock_in_an_outage_leaves_the_error_to_the_fsync(volume):
    mnt, other = volume.mount("io-timeout=3"), volume.mount("io-timeout=3")
    (mnt / "f").write_bytes(b"x" * 1000)
    fd, there = (os.open(m / "f", os.O_RDWR) for m in (mnt, other))
    fcntl.lockf(fd, fcntl.LOCK_EX)
    os.pwrite(fd, b"y" * 1000, 0)
    mnt.allow("block not stored in time")
    away = volume.bucket.with_name("away")
    volume.bucket.rename(away)
    began = time.monotonic()
    fcntl.lockf(fd, fcntl.LOCK_UN)
    assert time.monotonic() - began < 20 * SLOW
    fcntl.lockf(there, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(there, fcntl.LOCK_UN)
    away.rename(volume.bucket)
    with fails("EIO"):
        os.fsync(fd)
    os.pwrite(fd, b"y" * 1000, 0)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    fcntl.lockf(fd, fcntl.LOCK_UN)
    fcntl.lockf(there, fcntl.LOCK_SH)
    assert os.pread(there, 2000, 0) == b"y" * 1000
    os.close(fd)
    os.close(there)


def test_a_mount_that_ends_while_an_unlock_stores(volume):
    """The unlock goes on with what the end of the mount would free."""
    mnt = volume.mount("io-timeout=60,stop-timeout=60")
    (mnt / "f").write_bytes(b"x" * 1000)
    fd = os.open(mnt / "f", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    os.pwrite(fd, b"y" * 1000, 0)
    away = volume.bucket.with_name("away")
    volume.bucket.rename(away)
    unlock = threading.Thread(target=lambda: caught(fcntl.lockf, fd, fcntl.LOCK_UN))
    unlock.start()
    time.sleep(1)
    assert unlock.is_alive()
    mnt.process.terminate()
    time.sleep(8)  # longer than the end of a mount waits for a lock
    away.rename(volume.bucket)
    mnt.wait_end(60)
    unlock.join(30)
    caught(os.close, fd)
    assert (volume.mount() / "f").read_bytes() == b"y" * 1000


def caught(function, *args):
    try:
        function(*args)
    except OSError:
        pass


WAITER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
print(len(os.pread(fd, 1 << 20, 0)), flush=True)
fcntl.lockf(fd, fcntl.LOCK_EX)
print(len(os.pread(fd, 1 << 20, 0)))
"""

COUNT = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
lock = fcntl.flock if sys.argv[2] == "flock" else fcntl.lockf
for _ in range(int(sys.argv[3])):
    lock(fd, fcntl.LOCK_EX)
    n, = struct.unpack("<q", os.pread(fd, 8, 0))
    assert os.fstat(fd).st_size == 8 + n, (os.fstat(fd).st_size, n)
    os.pwrite(fd, b"x", 8 + n)
    os.pwrite(fd, struct.pack("<q", n + 1), 0)
    lock(fd, fcntl.LOCK_UN)
"""


@pytest.mark.parametrize("kind", ["flock", "posix"])
@pytest.mark.parametrize("engine", ENGINES)
def test_no_increment_is_lost(ws, engine, kind):
    vol = engine_volume(ws, engine)
    mounts = [vol.mount(LONG), vol.mount(LONG)]
    path = mounts[0] / "f"
    path.write_bytes(bytes(8))
    each = 25
    workers = [ws.python(COUNT, m / "f", kind, each) for m in mounts for _ in range(2)]
    assert [w.wait(120 * SLOW) for w in workers] == [0] * 4
    assert struct.unpack("<q", path.read_bytes()[:8]) == (4 * each,)


APPEND = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_APPEND)
for i in range(int(sys.argv[3])):
    fcntl.lockf(fd, fcntl.LOCK_EX)
    os.write(fd, b"%s %04d\\n" % (sys.argv[2].encode(), i))
    fcntl.lockf(fd, fcntl.LOCK_UN)
"""


def test_no_appended_line_is_lost(ws, volume):
    mounts = [volume.mount(LONG), volume.mount(LONG)]
    (mounts[0] / "log").write_bytes(b"")
    each = 50
    workers = [ws.python(APPEND, m / "log", w, each) for m, w in zip(mounts * 2, "abcd")]
    assert [w.wait(120 * SLOW) for w in workers] == [0] * 4
    lines = (mounts[1] / "log").read_text().splitlines()
    assert sorted(lines) == sorted("%s %04d" % (w, i) for w in "abcd" for i in range(each))


DATABASE = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=100, isolation_level=None)
db.execute("PRAGMA synchronous=" + sys.argv[4])
for i in range(int(sys.argv[2])):
    db.execute("BEGIN IMMEDIATE")
    db.execute("UPDATE sum SET n = n + 1")
    db.execute("INSERT INTO row VALUES (?, ?)", (sys.argv[3], "x" * 500))
    db.execute("COMMIT")
"""


@pytest.mark.parametrize("synchronous", ["FULL", "OFF"])
@pytest.mark.parametrize("engine", ["sqlite", "redis"])
def test_a_database_on_two_mounts(ws, engine, synchronous):
    """SQLite with a rollback journal; its connections stay open."""
    vol = engine_volume(ws, engine)
    mounts = [vol.mount(), vol.mount()]
    db = sqlite3.connect(mounts[0] / "db")
    db.execute("CREATE TABLE sum (n)")
    db.execute("CREATE TABLE row (who, what)")
    db.execute("INSERT INTO sum VALUES (0)")
    db.commit()
    each = 15
    workers = [ws.python(DATABASE, m / "db", each, i, synchronous) for i in "ab" for m in mounts]
    assert [w.wait(200 * SLOW) for w in workers] == [0] * 4
    for m in mounts:
        found = sqlite3.connect(m / "db")
        assert found.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert found.execute("SELECT n FROM sum").fetchall() == [(4 * each,)]
        assert found.execute("SELECT count(*) FROM row").fetchall() == [(4 * each,)]
        found.close()
    assert db.execute("SELECT n FROM sum").fetchall() == [(4 * each,)]
    db.close()
