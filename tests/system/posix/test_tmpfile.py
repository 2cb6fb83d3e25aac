# SPDX-License-Identifier: Apache-2.0
"""Files without a name (O_TMPFILE). A program that writes one, syncs it and gives it a name has replaced
nothing by halves: after that the file is there whatever dies, and before that nothing is left of it."""

import concurrent.futures
import fcntl
import os
import re
import signal
import subprocess
import tempfile

import pytest

import servers
from admin import fsck
from cachefs import need_engine
from countproxy import CountingProxy
from ring import on_ring  # noqa: F401  (a fixture)
from syscalls import fails, read, write
from test_takeover import DEATH, kill_worker
from waiting import wait_until


def make(where, flags=0, mode=0o666):
    return os.open(where, os.O_TMPFILE | os.O_RDWR | flags, mode)


def link(fd, path):
    # With a descriptor for the directory Python follows the link: linkat(AT_SYMLINK_FOLLOW).
    os.link("/proc/self/fd/%d" % fd, path, src_dir_fd=fd, follow_symlinks=True)


@pytest.fixture(params=sorted(servers.ENGINES))
def on_engine(request, ws):
    need_engine(request.param)
    db = servers.ENGINES[request.param][0]().database()
    ws.cleanups.append(db.drop)
    return ws.volume(url=db.url, trash_days=0)


def kept_inodes(db):
    """Inodes in the metadata, with or without a name."""
    return sum(1 for key in db.connect().scan_iter("i*") if re.fullmatch(rb"i\d+", key))


def same_on_any_channel(mnt):
    fd = make(mnt.path)
    os.write(fd, b"content")
    st = os.fstat(fd)
    assert (st.st_nlink, st.st_size) == (0, 7)
    assert os.listdir(mnt.path) == []
    os.setxattr(fd, "user.x", b"1")
    os.fchmod(fd, 0o640)
    with fails("ENOENT"):
        link(fd, mnt / "no/f")
    write(mnt / "there", b"")
    with fails("EEXIST"):
        link(fd, mnt / "there")
    link(fd, mnt / "f")
    assert read(mnt / "f") == b"content"
    st = os.stat(mnt / "f")
    assert (st.st_nlink, st.st_mode & 0o7777, st.st_ino) == (1, 0o640, os.fstat(fd).st_ino)
    assert os.fstat(fd).st_nlink == 1
    assert os.getxattr(mnt / "f", "user.x") == b"1"
    # An ordinary file from here on.
    os.pwrite(fd, b"C", 0)
    os.link(mnt / "f", mnt / "g")
    os.unlink(mnt / "f")
    os.close(fd)
    assert read(mnt / "g") == b"Content"
    assert os.stat(mnt / "g").st_nlink == 1


def test_made_and_named(mnt):
    same_on_any_channel(mnt)


def test_made_and_named_on_the_ring(on_ring, volume):  # noqa: F811
    same_on_any_channel(volume.mount())


def test_what_cannot_be_named(mnt):
    """Those that say so, and those whose name was removed."""
    fd = make(mnt.path, os.O_EXCL)
    with fails("ENOENT"):
        link(fd, mnt / "f")
    os.close(fd)
    fd = make(mnt.path)
    link(fd, mnt / "f")
    os.unlink(mnt / "f")
    with fails("ENOENT"):
        link(fd, mnt / "f")
    os.close(fd)
    with fails("ENOTDIR"):
        write(mnt / "f", b"")
        make(mnt / "f")
    with fails("ENOENT"):
        make(mnt / "none")


def as_user(uid, gid, code, *args):
    """Runs it as that user, and returns its output."""
    r = subprocess.run(
        ["setpriv", "--reuid=%d" % uid, "--regid=%d" % gid, "--clear-groups", "/usr/bin/python3", "-c", code]
        + [str(a) for a in args],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert r.returncode == 0, r.stderr
    return r.stdout.strip()


AS_USER = """
import errno, os, sys
os.umask(int(sys.argv[2], 8))
try:
    fd = os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR, int(sys.argv[3], 8))
    st = os.fstat(fd)
    print("%o %d %d" % (st.st_mode & 0o7777, st.st_uid, st.st_gid))
    if len(sys.argv) > 4:
        os.link("/proc/self/fd/%d" % fd, sys.argv[4], src_dir_fd=fd, follow_symlinks=True)
except OSError as e:
    print(errno.errorcode[e.errno])
"""


@pytest.mark.parametrize("checks", ["kernel", "mount"])
def test_rules_of_the_directory(ws, checks):
    """Permission, owner, group and mode are those of a file that gets a name there."""
    volume = ws.volume(enable_acl=True)
    mnt = volume.mount("" if checks == "kernel" else "default_permissions=false")
    os.chmod(mnt.path, 0o755)
    open_dir, closed = mnt / "open", mnt / "closed"
    os.mkdir(open_dir)
    os.chmod(open_dir, 0o777)
    os.mkdir(closed)
    assert as_user(1000, 1000, AS_USER, open_dir, "027", "777") == "750 1000 1000"
    assert as_user(1000, 1000, AS_USER, closed, "0", "600") == "EACCES"
    assert as_user(1000, 1000, AS_USER, open_dir, "0", "600", closed / "f") == "600 1000 1000\nEACCES"
    os.chown(open_dir, 0, 50)
    os.chmod(open_dir, 0o2777)
    assert as_user(1000, 1000, AS_USER, open_dir, "0", "2775") == "775 1000 50"
    assert as_user(1000, 1000, AS_USER, open_dir, "0", "664", open_dir / "f") == "664 1000 50"
    assert os.stat(open_dir / "f").st_gid == 50
    # A default ACL stands in for the umask.
    subprocess.run(["setfacl", "-d", "-m", "u::rwx,g::r-x,o::---,u:1001:rw", open_dir], check=True, timeout=60)
    assert as_user(1000, 1000, AS_USER, open_dir, "077", "666", open_dir / "g") == "660 1000 50"
    text = subprocess.run(["getfacl", "-cn", open_dir / "g"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "user:1001:rw-" in text


def test_limits_and_usage(ws):
    """It counts like a removed file that is open: in the volume, and in directories from its name on."""
    volume = ws.volume(trash_days=0, capacity=1, inodes=5)
    mnt = volume.mount("heartbeat=1")
    os.mkdir(mnt / "d")
    fds = [make(mnt / "d") for _ in range(4)]
    with fails("ENOSPC"):
        make(mnt / "d")
    for fd in fds[1:]:
        os.close(fd)
    os.ftruncate(fds[0], 10000)
    wait_until(lambda: os.statvfs(mnt.path).f_files - os.statvfs(mnt.path).f_ffree == 2 or None)
    link(fds[0], mnt / "d/f")
    os.close(fds[0])
    assert os.stat(mnt / "d/f").st_size == 10000
    mnt.umount()
    assert not fsck(ws, volume)["problems"]


def test_every_engine(ws, on_engine):
    """The mount dies right after the name was given. The next one cleans up after its session."""
    mnt = on_engine.mount("heartbeat=1,supervise=false")
    named, lost = make(mnt.path), make(mnt.path)
    for fd in (named, lost):
        os.write(fd, b"x" * 5000)
        os.fsync(fd)
    link(named, mnt / "f")
    os.fsync(named)
    mnt.kill9()
    for fd in (named, lost):  # the connection is gone
        os.closerange(fd, fd + 1)
    other = on_engine.mount("heartbeat=1")
    # The session is gone, and with it the file that had no name.
    wait_until(lambda: len(on_engine.status()["sessions"]) == 1, 60)
    assert read(other / "f") == b"x" * 5000
    assert os.stat(other / "f").st_nlink == 1
    other.umount()
    on_engine.verify()


def test_death_of_the_process(mnt):
    """Another process goes on with the file, and can name it."""
    fd = make(mnt.path)
    os.write(fd, b"kept")
    os.fsync(fd)
    kill_worker(mnt)
    assert os.fstat(fd).st_nlink == 0
    assert os.pread(fd, 10, 0) == b"kept"
    link(fd, mnt / "f")
    kill_worker(mnt)
    assert os.fstat(fd).st_nlink == 1
    os.close(fd)
    assert read(mnt / "f") == b"kept"


@pytest.mark.parametrize("named", [False, True])
def test_death_before_the_answer(ws, named):
    """The process dies when the file was made and its answer is lost. The next one gives the program that
    file, and nothing is left of it at its close."""
    need_engine("redis")
    db = servers.redis_server().database()
    ws.cleanups.append(db.drop)
    via = CountingProxy(db.server.port, only=b"EVALSHA")
    ws.cleanups.append(via.close)
    direct = ws.volume(url=db.url, trash_days=0)
    url = db.url.replace(":%d" % db.server.port, ":%d" % via.port)
    mnt = ws.volume("via", format=False, url=url).mount(
        "heartbeat=60,no-bgjob", expect="connection lost|cannot be opened again|connected|" + DEATH
    )
    os.close(make(mnt.path))  # has a batch of inode numbers
    wait_until(lambda: kept_inodes(db) == 1, 20, "the end of that file")
    via.lose(1, answered=True, away=True)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        made = pool.submit(make, mnt.path)
        wait_until(lambda: via.refuse, 8, "the file")
        os.kill(mnt.pid(), signal.SIGKILL)
        via.go_on()
        fd = made.result(20)
    os.write(fd, b"content")
    assert kept_inodes(db) == 2
    if named:
        link(fd, mnt / "f")
    os.close(fd)
    assert os.listdir(mnt.path) == ["f"] * named
    assert not named or read(mnt / "f") == b"content"
    wait_until(lambda: kept_inodes(db) == 1 + named, 30, "the end of the file")
    mnt.umount()
    assert not fsck(ws, direct)["problems"]


MAKES = """
import os, sys
os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR)
"""


@pytest.mark.parametrize("first", ["program", "process"])
def test_death_of_both(ws, first):
    """The program that makes a file is killed, and the process is when the file was made: nobody has it."""
    need_engine("redis")
    db = servers.redis_server().database()
    ws.cleanups.append(db.drop)
    via = CountingProxy(db.server.port, only=b"EVALSHA")
    ws.cleanups.append(via.close)
    url = db.url.replace(":%d" % db.server.port, ":%d" % via.port)
    ws.volume(url=db.url, trash_days=0)
    mnt = ws.volume("via", format=False, url=url).mount(
        "heartbeat=60,no-bgjob", expect="connection lost|cannot be opened again|connected|" + DEATH
    )
    os.close(make(mnt.path))  # has a batch of inode numbers
    wait_until(lambda: kept_inodes(db) == 1, 20, "the end of that file")
    via.lose(1, answered=True, away=True)
    program = ws.python(MAKES, mnt.path)
    wait_until(lambda: via.refuse and kept_inodes(db) == 2, 8, "the file")
    if first == "program":
        program.kill()
        program.wait(20)
        os.kill(mnt.pid(), signal.SIGKILL)
    else:
        os.kill(mnt.pid(), signal.SIGKILL)
        wait_until(lambda: "cannot be opened again" in mnt.log(), 20, "the next process")
        program.kill()
        program.wait(20)
    via.go_on()
    wait_until(lambda: "another process serves the mount" in mnt.log(), 30, "the next process")
    wait_until(lambda: kept_inodes(db) == 1, 30, "the end of the file")
    mnt.umount()


def test_last_close(ws, volume, mnt):
    """Nothing is left of a file that never had a name."""
    for size in (0, 3 << 20):
        fd = make(mnt.path)
        os.write(fd, b"x" * size)
        os.close(fd)
    wait_until(lambda: not volume.objects())
    mnt.umount()
    volume.verify()


def test_programs_that_use_it(mnt):
    with tempfile.TemporaryFile(dir=mnt.path) as f:
        f.write(b"x")
        f.flush()
        assert os.listdir(mnt.path) == []
        pid = os.fork()
        if not pid:
            try:
                f.seek(0)
                os._exit(0 if f.read() == b"x" else 1)
            finally:
                os._exit(2)
        assert os.waitpid(pid, 0)[1] == 0
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open("/proc/self/fd/%d" % f.fileno(), "rb") as again:
            assert again.read() == b"x"
