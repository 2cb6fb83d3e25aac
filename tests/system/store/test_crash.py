# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any moment. A failure here is data that an fsync promised and that is gone, a volume
that needs repair, or programs that hang on the dead mount."""

import os
import random
import signal
import subprocess
import tempfile

import pytest

from cachefs import SLOW, children, stop_process, tool, wait_until
from syscalls import data, read, write

# writes files, prints a name when its data is promised
WRITER = """
import os, random, sys
root, seed = '.', int(sys.argv[2])
os.chdir(sys.argv[1])  # stays in the dead mount when its place is cleared away
rng = random.Random(seed)
for i in range(100000):
    name = 's%d-%d' % (seed, i)
    content = random.Random(name).randbytes(rng.choice((1, 4096, 100_000, 3_000_000)))
    fd = os.open(root + '/' + name, os.O_CREAT | os.O_WRONLY)
    for off in range(0, len(content), 65536):
        os.write(fd, content[off:off + 65536])
    if i % 2:
        os.fsync(fd)
        print(name, flush=True)
        os.close(fd)
    else:
        os.close(fd)
        print(name, flush=True)
"""

STORM = """
import os, random, sys
root, me = '.', sys.argv[2]
os.chdir(sys.argv[1])
rng = random.Random(me)
names = []
for i in range(100000):
    p = '%s/%s-%d' % (root, me, i)
    k = rng.randrange(8)
    if k == 0: os.mkdir(p)
    elif k == 1: os.symlink('x' * rng.randrange(1, 200), p)
    elif k == 2 and names: os.link(rng.choice(names), p)
    elif k == 3 and names: os.unlink(names.pop())
    elif k == 4 and names: os.rename(names.pop(), p)
    elif k == 5 and names: os.truncate(rng.choice(names), rng.randrange(1 << 20))
    elif k == 6 and len(names) > 1: os.rename(names.pop(), names[-1])
    else:
        with open(p, 'wb') as f: f.write(b'y' * rng.randrange(200000))
    if k in (2, 7) and os.path.lexists(p): names.append(p)
    print(i, flush=True)
"""


def crashed(volume):
    # blocks that were stored but not committed stay until somebody collects them; the session of
    # the dead client stays until it expires
    volume.check_options = {"leaks": "warn", "unmounted": False}


@pytest.mark.deadline(240)
def test_what_was_synced_is_there(ws, volume):
    crashed(volume)
    promised = []
    rng = random.Random(11)
    for round_ in range(4):
        mnt = volume.mount()
        writers = [
            ws.python(
                WRITER,
                mnt.path,
                str(round_ * 10 + k),
                stdout=open(ws.path("out%d" % k), "w"),
                stderr=-3,
            )
            for k in range(2)
        ]
        enough = rng.randrange(5, 40)
        wait_until(
            lambda: sum(read(ws.path("out%d" % k)).count(b"\n") for k in range(2)) >= enough,
            60,
            "some files",
        )
        mnt.kill9()
        for p in writers:
            assert p.wait(20 * SLOW) != 0, "the writer did not notice"
        for k in range(2):
            lines = read(ws.path("out%d" % k)).decode().split("\n")
            promised += lines[:-1]
        assert volume.verify() == []
    mnt = volume.mount()
    assert len(promised) >= 20
    for name in promised:
        have = read(mnt / name)
        want = random.Random(name).randbytes(len(have))
        assert have == want and len(have) in (1, 4096, 100_000, 3_000_000), name


@pytest.mark.deadline(240)
def test_tree_survives(ws, volume):
    crashed(volume)
    for round_ in range(4):
        mnt = volume.mount("heartbeat=3")
        runs = [
            ws.python(
                STORM,
                mnt.path,
                "r%d%s" % (round_, k),
                stdout=open(ws.path("o" + k), "w"),
                stderr=-3,
            )
            for k in "ab"
        ]
        wait_until(
            lambda: all(read(ws.path("o" + k)).count(b"\n") > 100 + 50 * round_ for k in "ab"),
            90,
            "some operations",
        )
        mnt.kill9()
        for p in runs:
            assert p.wait(20 * SLOW) != 0
        assert volume.verify() == []
    mnt = volume.mount("heartbeat=3")
    ws.run("/bin/ls", "-lR", mnt.path, check=True, timeout=60)
    ws.run(
        "/bin/rm",
        "-rf",
        *[mnt / n for n in os.listdir(mnt.path) if not n.startswith(".")],
        check=True,
    )
    # A file that was closed and removed just before a crash is kept until its session has expired.
    wait_until(lambda: volume.counter("totalInodes") == 0, 60, "the end of the crashed sessions")
    mnt.umount()
    assert volume.counter("totalInodes") == 0


def test_stale_session_is_cleaned_up(ws, volume):
    """A file that was unlinked while open must not occupy the volume for ever after a crash."""
    crashed(volume)
    mnt = volume.mount("heartbeat=1")
    f = open(mnt / "f", "wb", buffering=0)
    f.write(data(100_000))
    os.fsync(f.fileno())
    os.unlink(mnt / "f")
    assert volume.sql("SELECT count(*) FROM jfs_sustained") == [(1,)]
    mnt.kill9()
    try:
        f.close()
    except OSError:
        pass
    mnt = volume.mount("heartbeat=1")
    wait_until(
        lambda: len(volume.sql("SELECT * FROM jfs_session2")) == 1,
        30,
        "the end of the stale session",
    )
    wait_until(lambda: not volume.objects(), 30, "the removal of its data")
    assert volume.sql("SELECT count(*) FROM jfs_sustained") == [(0,)]
    mnt.umount()
    volume.check_options = {"unmounted": True}
    assert volume.counter("usedSpace") == 0


def test_dead_mount_point_can_be_replaced(ws, volume):
    crashed(volume)
    mnt = volume.mount()
    write(mnt / "f", b"x")
    mnt.kill_all()
    with pytest.raises(OSError):
        os.stat(mnt / "f")
    ws.run("cachefs", "umount", mnt.path, check=True)
    mnt.ended = True
    mnt = volume.mount(path=mnt.path)
    assert read(mnt / "f") == b"x"


@pytest.mark.parametrize("command", ["cachefs", "mount.cachefs"])
def test_dead_mount_can_be_mounted_over(ws, volume, command):
    crashed(volume)
    dead = volume.mount()
    write(dead / "f", b"x")
    dead.kill_all()
    dead.ended = True
    r = ws.run(*{"cachefs": ["cachefs", "mount"]}.get(command, [command]), volume.url, dead.path)
    assert r.returncode == 0 and r.stderr.count("dead mount") == 1, r.stderr
    with open("/proc/self/mountinfo", errors="surrogateescape") as f:
        assert f.read().count(" %s " % dead.path) == 1
    assert read(dead / "f") == b"x"
    ws.run("cachefs", "umount", dead.path, check=True)


def asks(pid):
    try:
        with open("/proc/%d/stack" % pid) as f:
            return "fuse_statfs" in f.read()
    except OSError:
        return False


def mount_beside_one_that_dies(ws, volume):
    """The question whether it is dead is under way when its processes end. Returns its message and status."""
    dead = volume.mount("no-supervise")
    write(dead / "f", b"x")
    stop_process(dead.pid())
    with tempfile.TemporaryFile("w+") as err:
        p = ws.popen([tool("cachefs"), "mount", volume.url, str(dead.path)], stderr=err)
        try:
            wait_until(lambda: any(map(asks, children(p.pid))), 20, "the question")
        finally:
            dead.kill_all()
            dead.ended = True
        p.wait(20 * SLOW)
        err.seek(0)
        return dead, err.read(), p.returncode


def test_mount_that_dies_while_it_is_asked(ws, volume):
    """It is replaced. A question that is not answered in two seconds is over: then it was said to be mounted."""
    crashed(volume)
    for _ in range(5):
        dead, text, status = mount_beside_one_that_dies(ws, volume)
        if "already mounted" not in text:
            break
        subprocess.run(["umount", dead.path], check=True)
    assert status == 0 and text.count("dead mount") == 1, text
    assert read(dead / "f") == b"x"
    ws.run("cachefs", "umount", dead.path, check=True)


def test_mount_that_hangs_is_not_taken_for_dead(ws, volume):
    """Its process is stopped, and may go on."""
    mnt = volume.mount("no-supervise")
    write(mnt / "f", b"x")
    stop_process(mnt.pid())
    try:
        r = ws.run("mount.cachefs", volume.url, mnt.path)
    finally:
        os.kill(mnt.process.pid, signal.SIGCONT)
    assert r.returncode == 32 and "already mounted" in r.stderr, r.stderr
    assert read(mnt / "f") == b"x"
    mnt.umount()


def test_killed_reader_and_writer_processes(ws, volume, mnt):
    """Programs that die inside the mount leave nothing behind."""
    for i in range(10):
        p = ws.python(WRITER, mnt.path, str(i), stdout=-3)
        wait_until(
            lambda: any(n.startswith("s%d-" % i) for n in os.listdir(mnt.path)), 20, "a file"
        )
        p.kill()
        p.wait(20)
    mnt.umount()
