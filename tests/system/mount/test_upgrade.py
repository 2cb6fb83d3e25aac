# SPDX-License-Identifier: Apache-2.0
"""A mount that another process takes over, on every kind of metadata server, as a member of a cache
group, and with blocks that wait on the local disk for their upload. A failure here is an upgrade
that loses a lock, an open file, a peer or data that was confirmed."""

import collections
import contextlib
import fcntl
import os
import pathlib
import re
import signal
import sqlite3
import time

import pytest

import servers
from cachefs import SLOW, alive, missing, need_engine, pending, tool, wait_until
from s3volume import S3Volume
from syscalls import data, read, write
from test_stop import Manager
from test_supervisor import door_of
from test_takeover import HOLDER, WAITER, contend, kill_worker, upgrade
from team import Team


@pytest.fixture(params=["redis", "postgres", "mysql"])
def server_volume(request, ws):
    need_engine(request.param)
    server = {"redis": servers.redis_server, "postgres": servers.postgres_server, "mysql": servers.mariadb_server}
    db = server[request.param]().database()
    ws.cleanups.append(db.drop)
    return ws.volume(url=db.url)


@pytest.mark.deadline(120)
@pytest.mark.parametrize("event", ["kill", "upgrade"])
def test_what_is_open_stays(ws, server_volume, event):
    """The session goes on: what is locked stays locked for others, what is removed and open stays."""
    volume = server_volume
    mnt, other = volume.mount(), volume.mount()
    content = data(3_000_000)
    for name in "fg":
        write(mnt / name, content)
    gone = open(mnt / "gone", "w+b", buffering=0)
    gone.write(content)
    os.fsync(gone.fileno())
    os.unlink(mnt / "gone")
    holder = ws.python(HOLDER, mnt / "f", mnt / "g", stdin=-1, stdout=-1, text=True)
    assert holder.stdout.readline() == "held\n"
    waiter = ws.python(WAITER, mnt / "f", stdout=-1, text=True)
    assert waiter.stdout.readline() == "asking\n"
    for i in range(3):
        if event == "upgrade":
            gone.write(b"%d" % i)  # not stored when it begins
            upgrade(ws, volume, mnt)
            assert mnt.stat("takeovers_total") == i + 1
        else:
            kill_worker(mnt)
            gone.write(b"%d" % i)
            os.fsync(gone.fileno())
        for at in (mnt, other):
            assert contend(at / "f", False) == "busy"
            assert contend(at / "g", True) == "busy"
    assert os.pread(gone.fileno(), 4_000_000, 0) == content + b"012"
    assert waiter.poll() is None
    assert len(volume.status()["sessions"]) == 2
    holder.communicate("end\n", timeout=30 * SLOW)
    assert waiter.communicate(timeout=30 * SLOW)[0] == "got\n"
    gone.close()
    assert read(other / "f") == content
    mnt.umount()
    other.umount()
    wait_until(lambda: not ws.processes(), 30, "the end of the processes")
    assert volume.status()["sessions"] == []


def test_no_descriptor_is_left_by_an_upgrade(ws, volume):
    """A mount that is upgraded for years would run out of them; and a pipe that is the input of the first
    process would never end."""
    mnt = volume.mount(daemon=True)

    def descriptors():
        links = collections.Counter()
        for pid, command in ws.processes():
            for fd in pathlib.Path("/proc/%d/fd" % pid).iterdir():
                with contextlib.suppress(FileNotFoundError):
                    links[re.sub(r"\d+", "N", os.readlink(fd))] += 1
        # The engine opens connections as it needs them.
        return collections.Counter({name: n for name, n in links.items() if str(volume.db.name) not in name})

    before = descriptors()
    for _ in range(3):
        upgrade(ws, volume, mnt)
        wait_until(lambda: len(ws.processes()) == 2, 20, "the end of the processes before")
        # Descriptors that are open for a moment only are none that stay.
        wait_until(lambda: not descriptors() - before, 20, "descriptors to be closed")


# ---- as a service ----


@pytest.mark.deadline(120)
def test_the_service_goes_on_with_the_next_process(ws, volume):
    """It is told which one, and goes on hearing that it is alive."""
    manager = Manager(ws)
    mnt = volume.mount(env=manager.env(1.5))
    wait_until(lambda: manager.told("WATCHDOG"), 30, "keep-alives")
    main = mnt.process.pid
    for i in range(2):
        r = ws.run("cachefs", "mount", volume.url, mnt.path, env=manager.env())
        assert r.returncode == 0, r.stderr
        wait_until(lambda: not alive(main), 20, "the end of the process before")
        pids = [pid for pid, _ in ws.processes()]
        (supervisor,) = [pid for pid in pids if parent(pid) not in pids]
        told = wait_until(lambda: manager.told("MAINPID")[i:], 10, "a word about the next process")
        assert told == [str(supervisor)]
        main = supervisor
        heard = len(manager.told("WATCHDOG"))
        wait_until(lambda: len(manager.told("WATCHDOG")) >= heard + 3, 30, "keep-alives of the next process")
    assert not manager.told("STOPPING")
    mnt.process = None
    os.kill(supervisor, signal.SIGTERM)
    wait_until(lambda: not ws.processes(), 30, "the end of the processes")
    assert manager.told("STOPPING") == ["1"]
    mnt.ended = True


def test_the_mount_of_a_service_is_not_taken_away_from_it(ws, volume):
    group = pathlib.Path("/sys/fs/cgroup/unified/cachefs-test-%d" % os.getpid())
    try:
        group.mkdir()
    except OSError:
        missing("no control groups to make one in")
    ws.cleanups.append(group.rmdir)
    manager = Manager(ws)
    mnt = volume.mount(env=manager.env())
    device = os.minor(os.stat(mnt).st_dev)
    wait_until(lambda: os.path.exists("/run/cachefs/mount-%d" % device), 10, "the supervisor to listen")
    mount = "echo $$ > %s/cgroup.procs && exec %s mount %s %s" % (group, tool("cachefs"), volume.url, mnt)
    r = ws.run("/bin/sh", "-c", mount, env=manager.env())
    assert r.returncode == 32 and "systemctl reload" in r.stderr
    assert mnt.process.poll() is None and not manager.told("MAINPID")
    write(mnt / "f", b"x")


def parent(pid):
    with open("/proc/%d/stat" % pid) as f:
        return int(f.read().rpartition(")")[2].split()[1])


# ---- with a cache on disk ----


def upgrade_alike(mnt, env):
    """With the options that it has, where it is. Returns when the process before has ended."""
    where = ["nsenter", "--net=/run/netns/" + mnt.netns] if mnt.netns else []
    command = [*where, tool("cachefs"), "mount", mnt.volume.url, mnt.path, "-o", mnt.opts]
    r = mnt.ws.run(*command, timeout=60, env=env)
    assert r.returncode == 0, r.stderr
    assert mnt.process.wait(20 * SLOW) == 0
    mnt.process = None


@pytest.mark.deadline(180)
@pytest.mark.parametrize("event", ["kill", "upgrade"])
def test_staged_blocks_stay(ws, s3, via, event):
    """The bucket is away: what waits on disk is read by the next process, and uploaded by it."""
    opts = "writeback,put-timeout=5,free-space-ratio=0,cache-dir=%s" % ws.path("cache")
    volume = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = volume.mount(opts, env=s3.keys)
    mnt.allow("cannot be uploaded|object store")
    via.add("PUT", "chunks", status=503)
    content = data(9_000_000)
    f = open(mnt / "f", "w+b", buffering=0)
    f.write(content)
    os.fsync(f.fileno())
    staged = wait_until(lambda: mnt.stat("staging_blocks"), 30, "staged blocks")
    if event == "upgrade":
        f.write(b"not stored yet")
        upgrade_alike(mnt, s3.keys)
        content += b"not stored yet"
        staged += 1
    else:
        kill_worker(mnt)
    wait_until(lambda: mnt.stat("staging_blocks") == staged, 30, "the staged blocks of the process before")
    assert os.pread(f.fileno(), len(content) + 1, 0) == content
    f.write(b" and more")
    os.fsync(f.fileno())
    f.close()
    via.clear()
    wait_until(lambda: mnt.stat("staging_blocks") == 0, 90, "their upload")
    mnt.umount()
    elsewhere = volume.mount(env=s3.keys)
    assert read(elsewhere / "f") == content + b" and more"


STAYS = "is not left to another process|cannot be stored|not stored in time|not handed over"


# A process of its own has the files: one that starts a command closes copies of them, and waits.
WRITES = """
import os, sys
for i in range(10):
    os.write(os.open("%s/%d" % (sys.argv[1], i), os.O_CREAT | os.O_WRONLY), b"%d" % i * 1000)
print("written", flush=True)
sys.stdin.readline()
"""


@pytest.mark.deadline(120)
def test_not_while_the_bucket_is_silent(ws, s3, via):
    """The bytes of many open files cannot be stored then. The process that has them must stay, with all of
    them, however many there are."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    opts = "io-timeout=2,put-timeout=1"
    mnt = vol.mount(opts, env=s3.keys, expect=STAYS)
    fault = via.add("PUT", "chunks", delay=600)
    writer = ws.python(WRITES, mnt.path, stdin=-1, stdout=-1, text=True)
    assert writer.stdout.readline() == "written\n"
    worker = mnt.pid()
    r = ws.run("cachefs", "mount", vol.url, mnt.path, "-o", opts, timeout=100, env=s3.keys)
    assert r.returncode == 32 and "the running mount goes on, as it cannot store all data" in r.stderr, r.stderr
    assert mnt.pid() == worker
    fault.times = 0
    wait_until(lambda: mnt.stat("data_dirty_bytes") == 0, 60, "the bytes to be stored")
    writer.communicate("\n", timeout=30 * SLOW)
    upgrade_alike(mnt, s3.keys)
    assert all(read(mnt / str(i)) == b"%d" % i * 1000 for i in range(10))


# Connects, asks for the mount when there is a line on stdin, prints the answer, and ends with another line.
ASKS = """
import socket, struct, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.readline()
s.send(struct.pack("=IIQ256s", 1, 6, 60000, sys.argv[2].encode()))
print(s.recv(4096)[16:].rstrip(b"\\0").decode(), flush=True)
sys.stdin.readline()
"""


@pytest.mark.deadline(120)
@pytest.mark.parametrize("then", ["the bucket is silent", "the supervisor is killed"])
def test_process_that_has_stopped_and_cannot_leave(ws, s3, via, then):
    """More was written while it stored its data, and the bucket is silent when that must be stored. Or
    nobody is there to give the mount to another process. It serves again, and nothing is lost."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount("io-timeout=4,put-timeout=1,attr-cache=0", env=s3.keys, expect=STAYS + "|supervisor is gone")
    first, second = (open(mnt / name, "w+b", buffering=0) for name in "ab")
    fcntl.flock(second, fcntl.LOCK_EX)
    waiter = ws.python(WAITER, mnt / "b", stdout=-1, text=True)
    assert waiter.stdout.readline() == "asking\n"
    asker = ws.python(ASKS, door_of(mnt), vol.setting()["UUID"], stdin=-1, stdout=-1, text=True)
    assert asker.stdout.readline() == "connected\n"
    worker = mnt.pid()
    locker = sqlite3.connect(vol.db, isolation_level=None)
    ws.cleanups.append(locker.close)
    locker.execute("BEGIN IMMEDIATE")
    first.write(b"first")
    asker.stdin.write("\n")
    asker.stdin.flush()
    wait_until(lambda: "another process asks for the mount" in mnt.log(), 20, "the request")
    if "silent" in then:
        second.write(b"second")
        via.add("PUT", "chunks/.*_0_6$", delay=600)
    else:
        mnt.process.kill()
        mnt.process.wait(20)
    locker.execute("COMMIT")
    answer = asker.stdout.readline()
    wait_until(lambda: "serves again" in mnt.log(), 20, "the mount to stay")
    assert os.stat(mnt / "b").st_size == second.tell()
    assert alive(worker) and waiter.poll() is None
    if "silent" in then:
        assert "the running mount goes on" in answer and mnt.pid() == worker
        second.write(b" and more")
        via.clear()
        wait_until(lambda: mnt.stat("data_dirty_bytes") == 0, 60, "the bytes to be stored")
    else:
        assert "goes on alone" in mnt.log()
    fcntl.flock(second, fcntl.LOCK_UN)
    assert waiter.communicate(timeout=30 * SLOW)[0] == "got\n"
    content = os.pread(second.fileno(), 100, 0)
    for f in (first, second):
        with contextlib.suppress(OSError):  # a block that was late is told once
            f.close()
    ws.run("cachefs", "umount", mnt.path, check=True)
    mnt.ended = True
    wait_until(lambda: not alive(worker), 30, "its end")
    elsewhere = vol.mount(env=s3.keys)
    assert read(elsewhere / "a") == b"first"
    assert read(elsewhere / "b") == content == (b"second and more" if "silent" in then else b"")


READS = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print("reading", flush=True)
print(os.pread(fd, 100000, 0) == open(sys.argv[2], "rb").read(100000), flush=True)
"""


@pytest.mark.deadline(180)
@pytest.mark.parametrize("threads", ["50", "2"])
def test_reader_that_waits_for_the_bucket(ws, s3, via, threads):
    """The bucket asks for minutes of patience. The next process has the reads sent again, also those that
    waited for a thread, and the process before ends by itself."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket", block_size="256K")
    opts = "io-timeout=200,get-timeout=200,prefetch=0,max-threads=" + threads
    content = data(1 << 20)
    write(ws.path("same"), content)
    mnt = vol.mount(opts, env=s3.keys)
    for i in range(4):
        write(mnt / ("f%d" % i), content)
    mnt.umount()
    mnt = vol.mount(opts, env=s3.keys)
    fault = via.add("GET", "chunks", status=503, headers={"Retry-After": "150"})
    readers = [ws.python(READS, mnt / ("f%d" % i), ws.path("same"), stdout=-1, text=True) for i in range(4)]
    for r in readers:
        assert r.stdout.readline() == "reading\n"
    wait_until(lambda: fault.hits >= (2 if threads == "50" else 1), 30, "reads to wait")
    via.clear()
    worker = mnt.pid()
    began = time.monotonic()
    upgrade_alike(mnt, s3.keys)
    assert "killing it" not in mnt.log() and not alive(worker)
    assert [r.communicate(timeout=30 * SLOW)[0] for r in readers] == ["True\n"] * 4
    assert time.monotonic() - began < 30 * SLOW


# In a process of its own: a thread that waits for a page stops the threads of the proxy.
MAPS = """
import mmap, sys
with open(sys.argv[1], "r+b", buffering=0) as f:
    mapped = mmap.mmap(f.fileno(), 4096)
mapped[:6] = b"mapped"
print("mapped", flush=True)
sys.stdin.readline()
"""


@pytest.mark.deadline(120)
@pytest.mark.parametrize("moment", ["it stores", "it has stopped", "another process has it"])
def test_stopped_during_an_upgrade(ws, s3, via, moment):
    """The bucket answers slowly. Everything is stored, what mappings hold too, and the status says so."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount(env=s3.keys)
    write(mnt / "m", bytes(4096))
    first, second = (open(mnt / name, "a+b", buffering=0) for name in "ab")
    maps = ws.python(MAPS, mnt / "m", stdin=-1, stdout=-1, text=True)
    assert maps.stdout.readline() == "mapped\n"
    asker = ws.python(ASKS, door_of(mnt), vol.setting()["UUID"], stdin=-1, stdout=-1, text=True)
    assert asker.stdout.readline() == "connected\n"
    first.write(b"first")
    with contextlib.closing(sqlite3.connect(vol.db, isolation_level=None)) as locker:
        locker.execute("BEGIN IMMEDIATE")
        asker.stdin.write("\n")
        asker.stdin.flush()
        wait_until(lambda: "another process asks for the mount" in mnt.log(), 20, "the request")
        second.write(b"second")
        if moment == "it stores":
            os.kill(mnt.process.pid, signal.SIGTERM)
            wait_until(lambda: "stopping: signal=15" in mnt.log(), 20, "the signal")
        fault = via.add("PUT", "chunks/.*_0_6$", delay=3)
    if moment == "it has stopped":
        wait_until(lambda: fault.hits, 20, "the rest to be stored")
        os.kill(mnt.process.pid, signal.SIGTERM)
    elif moment == "another process has it":
        assert asker.stdout.readline()
        os.kill(mnt.process.pid, signal.SIGTERM)
        wait_until(lambda: not pending(mnt.process.pid), 20, "the supervisor to take the signal")
        asker.kill()
    mnt.wait_end(60)
    for f in (first, second):
        with contextlib.suppress(OSError):
            f.close()
    assert vol.status()["sessions"] == []
    mnt = vol.mount(env=s3.keys)
    assert (read(mnt / "a"), read(mnt / "b"), read(mnt / "m")[:6]) == (b"first", b"second", b"mapped")


@pytest.mark.deadline(240)
@pytest.mark.parametrize("event", ["kill", "upgrade"])
def test_a_member_of_a_group_stays_one(ws, event):
    """Others find the next process, with the blocks that it has on disk."""
    team = Team(ws, 2)
    a, b = team.join_all()
    content = data(20_000_000)
    write(a / "f", content)
    assert read(b / "f") == content
    if event == "upgrade":
        upgrade_alike(a, team.s3.keys)
    else:
        kill_worker(a)
    wait_until(lambda: a.stat("peer_members") == 2 and b.stat("peer_members") == 2, 60, "two members")
    write(a / "g", content)
    assert read(b / "g") == content and read(a / "f") == content
