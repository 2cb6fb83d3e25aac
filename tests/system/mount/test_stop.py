# SPDX-License-Identifier: Apache-2.0
"""Reports to a service manager, and the end of a mount whose backends are away. A failure here is a
machine that does not come down, a mount that is killed while it still stores data, or data whose loss
nobody is told of."""

import contextlib
import ctypes
import os
import pathlib
import pty
import re
import signal
import socket
import sqlite3
import subprocess
import tarfile
import threading
import time

import pytest

import servers
from cachefs import SLOW, Volume, children, need_engine, pending, stop_process, tool, wait_until
from s3volume import S3Volume
from syscalls import data, read, write


class Manager:
    """The other end of sd_notify(3)."""

    def __init__(self, ws, abstract=False):
        self.address = "\0cachefs-%d" % id(self) if abstract else str(ws.path("notify"))
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.messages = []  # dicts
        self.thread = threading.Thread(target=self.receive, daemon=True)
        self.thread.start()
        ws.cleanups.append(self.close)

    def receive(self):
        while text := self.socket.recv(65536).decode():
            self.messages.append(dict(line.split("=", 1) for line in text.splitlines()))

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join(30)
        self.socket.close()

    def env(self, watchdog_s=None, **more):
        out = {"NOTIFY_SOCKET": self.address.replace("\0", "@"), **more}
        if watchdog_s:
            out["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        return out

    def told(self, name):
        return [m[name] for m in self.messages if name in m]


@pytest.mark.parametrize("abstract", [False, True])
def test_ready_status_and_stopping(ws, volume, abstract):
    manager = Manager(ws, abstract)
    mnt = volume.mount(env=manager.env(), wait=False)
    wait_until(lambda: manager.told("READY"), 30, "READY=1")
    assert mnt.mounted()
    assert os.statvfs(mnt.path).f_bsize
    assert "Volume vol is mounted at %s" % mnt.path in manager.told("STATUS")
    assert not manager.told("STOPPING") and not manager.told("WATCHDOG")
    write(mnt / "f", b"x")
    mnt.terminate()
    assert manager.told("STOPPING") == ["1"]
    assert any(s.startswith("Stopping volume vol at") for s in manager.told("STATUS"))
    names = [name for m in manager.messages for name in m if name in ("READY", "STOPPING")]
    assert names == ["READY", "STOPPING"]


def test_mount_that_fails_is_never_ready(ws, volume):
    manager = Manager(ws)
    mnt = volume.mount("subdir=/missing", env=manager.env(), wait=False)
    mnt.wait_end(30, code=None)
    assert mnt.process.returncode == 32 and not manager.told("READY")


def test_helper_in_the_foreground(ws, volume):
    manager = Manager(ws)
    point = ws.path("p")
    point.mkdir()
    p = subprocess.Popen(
        [tool("mount.cachefs"), volume.url, str(point), "-o", "foreground"],
        env=ws.env(**manager.env()),
        stderr=subprocess.DEVNULL,
    )
    ws.children.append(p)
    wait_until(lambda: manager.told("READY"), 30, "READY=1")
    ws.run("cachefs", "umount", point, check=True)
    assert p.wait(30 * SLOW) == 0
    assert manager.told("STOPPING") == ["1"]


def test_background_tells_nobody(ws, volume):
    """The manager of whatever has called mount(8) is not meant."""
    manager = Manager(ws)
    mnt = volume.mount(daemon=True, env=manager.env(1))
    mnt.umount()
    assert manager.messages == []


@pytest.mark.deadline(120)
def test_keep_alive(ws, volume):
    manager = Manager(ws)
    volume.mount(env=manager.env(1.5))
    wait_until(lambda: len(manager.told("WATCHDOG")) >= 3, 30, "keep-alives")


@pytest.mark.deadline(180)
def test_no_keep_alive_from_a_mount_that_hangs(ws, s3, via):
    """All threads of the mount wait for the bucket: nobody may say that it is alive."""
    manager = Manager(ws)
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount(env=s3.keys)
    write(mnt / "f", data(1 << 20))
    mnt.umount()
    mnt = vol.mount("max-threads=1,prefetch=0", env={**s3.keys, **manager.env(1.5)})
    mnt.allow("not read in time|cannot be read")
    wait_until(lambda: manager.told("WATCHDOG"), 30, "keep-alives")
    via.add("GET", "chunks", delay=600)
    fd = os.open(mnt / "f", os.O_RDONLY)
    reader = threading.Thread(target=lambda: os.pread(fd, 4096, 0), daemon=True)
    reader.start()
    wait_until(lambda: "the mount does not answer" in mnt.log(), 60, "the health check to fail")
    hung = time.monotonic()
    before = len(manager.told("WATCHDOG"))
    # the manager would have ended it by now: several times what it allows
    wait_until(lambda: time.monotonic() > hung + 5, 30, "silence")
    assert len(manager.told("WATCHDOG")) == before
    via.clear()
    for stream in list(via.live):
        stream.close()
    reader.join(60)
    os.close(fd)
    wait_until(lambda: len(manager.told("WATCHDOG")) > before, 30, "keep-alives again")


@pytest.mark.deadline(180)
def test_flush_that_makes_progress(ws, s3, via):
    """A slow bucket: the manager is asked for more time, and everything is stored, although that
    takes longer than stop-timeout."""
    manager = Manager(ws)
    vol = S3Volume(ws, s3, url=via.url + "/bucket", block_size="256K")
    mnt = vol.mount("stop-timeout=2s,max-uploads=1", env={**s3.keys, **manager.env()})
    via.add("PUT", "chunks", delay=0.4)
    content = data(4 << 20)
    fd = os.open(mnt / "f", os.O_CREAT | os.O_WRONLY)
    os.write(fd, content)
    try:
        os.kill(mnt.pid(), signal.SIGTERM)
        mnt.wait_end(90)
    finally:
        close(fd)
    assert any(re.search(r"flushing \d+ MiB of 1 files", s) for s in manager.told("STATUS"))
    assert int(manager.told("EXTEND_TIMEOUT_USEC")[0]) > 2e6
    via.clear()
    mnt = vol.mount(env=s3.keys)
    assert read(mnt / "f") == content


def close(fd):
    """Of a file whose mount has gone."""
    try:
        os.close(fd)
    except OSError:
        pass


LOST = r"data could not be stored and is lost: volume=vol mount=\S+ bytes=(\d+) files=(\d+)"


def stop_without_backend(mnt, size, files, code=2):
    """Ends within stop-timeout and some, says what is lost, leaves no mount."""
    os.kill(mnt.pid(), signal.SIGTERM)
    mnt.wait_end(60, code=code)
    found = re.findall(LOST, mnt.log())
    assert found == [(str(size), str(files))], mnt.log()


@pytest.mark.deadline(180)
def test_bucket_is_away(ws, s3, via):
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    vol.check_options = {"unmounted": False, "leaks": "warn"}  # as after a crash
    mnt = vol.mount("stop-timeout=3s", env=s3.keys)
    mnt.allow(".")
    via.add("PUT", "chunks", delay=600)
    fds = []
    for name in "ab":
        fds.append(os.open(mnt / name, os.O_CREAT | os.O_WRONLY))
        os.write(fds[-1], data(100_000))
    stop_without_backend(mnt, 200_000, 2)
    assert re.search(r"stop-timeout=3 s, waits_for=\".*object put vol/chunks/", mnt.log())
    for fd in fds:
        with pytest.raises(OSError):
            os.write(fd, b"x")
        close(fd)
    via.clear()
    mnt = vol.mount(env=s3.keys)
    assert read(mnt / "a") == b"" == read(mnt / "b")


@pytest.mark.deadline(120)
def test_what_the_end_waits_for_is_told(ws, s3, via):
    """After some seconds without progress, and again when it is something else; then all goes well."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount(env=s3.keys)
    write(mnt / "first", b"has a batch of slice ids, for which the bucket is listed")
    content = data(100_000)
    fd = os.open(mnt / "f", os.O_CREAT | os.O_WRONLY)
    os.write(fd, content)
    told = r'unmounting waits, .*: volume=vol mount=\S+ dirty_bytes=(\d+) staged_bytes=0 waits_for="(.*)"'
    stop_process(s3.process.pid)
    os.kill(mnt.pid(), signal.SIGTERM)
    wait_until(lambda: re.search(told, mnt.log()), 15, "a line about what is waited for")
    other = sqlite3.connect(vol.db, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    s3.process.send_signal(signal.SIGCONT)
    wait_until(lambda: any("metadata" in w for _, w in re.findall(told, mnt.log())), 40, "another line")
    other.execute("ROLLBACK")
    other.close()
    mnt.wait_end(60)
    close(fd)
    dirty, first = re.findall(told, mnt.log())[0]
    assert int(dirty) == len(content) and "object put vol/chunks/" in first
    assert read(vol.mount(env=s3.keys) / "f") == content


def waits_in_memory(ws, mnt):
    """Shows the waits of its threads, also when it does not answer."""
    ws.run("cachefs", "debug", mnt, ws.path("debug.tar.gz"), check=True)
    with tarfile.open(ws.path("debug.tar.gz")) as tar:
        return tar.extractfile("cachefs-debug/requests.txt").read().decode()


@pytest.mark.deadline(300)
@pytest.mark.module("redis")
def test_heartbeat_that_the_end_waits_for(ws):
    server = servers.started(ws, servers.Redis())
    vol = Volume(ws, url=server.database().url)
    vol.check_options = None
    mnt = vol.mount("heartbeat=1,io-timeout=3s,meta-timeout=100s")
    mnt.allow(".")
    stop_process(server.process.pid)
    wait_until(lambda: 'waits_for="metadata heartbeat' in waits_in_memory(ws, mnt), 60, "a heartbeat")
    assert ctypes.CDLL(None).umount2(bytes(mnt.path), 0) == 0
    wait_until(lambda: re.search(r'unmounting waits, .* waits_for="metadata heartbeat \(', mnt.log()), 30, "a line about it")
    server.process.send_signal(signal.SIGCONT)
    mnt.wait_end(60)


@pytest.mark.deadline(180)
def test_bucket_that_refuses(ws, s3, via):
    """The flush fails by itself before stop-timeout; the loss is told in one line all the same."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount("io-timeout=2s,put-timeout=2s", env=s3.keys)
    mnt.allow(".")
    via.add("PUT", "chunks", status=503)
    fd = os.open(mnt / "f", os.O_CREAT | os.O_WRONLY)
    os.write(fd, data(100_000))
    stop_without_backend(mnt, 100_000, 1)
    close(fd)
    assert vol.status()["sessions"] == []


@pytest.mark.deadline(180)
@pytest.mark.parametrize("put", ["1s", "60s"])
def test_bucket_is_away_with_writeback(ws, s3, via, put):
    """Staged blocks are not lost: the next mount with this cache-dir stores them. stop-timeout alone says how
    long the end waits for their upload."""
    opts = "writeback,cache-dir=%s,stop-timeout=5s,put-timeout=%s,free-space-ratio=0" % (ws.path("cache"), put)
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount(opts, env=s3.keys)
    mnt.allow(".")
    via.add("PUT", "chunks", delay=600)
    content = data(300_000)
    write(mnt / "f", content)
    os.kill(mnt.pid(), signal.SIGTERM)
    start = time.monotonic()
    mnt.wait_end(60, code=2)
    assert time.monotonic() - start > 4
    assert not re.findall(LOST, mnt.log())
    staged = re.search(r"the process exits: .* staged_bytes=(\d+) \(these stay on disk", mnt.log())
    assert int(staged.group(1)) == len(content), mnt.log()
    via.clear()
    mnt = vol.mount(opts, env=s3.keys)
    assert read(mnt / "f") == content
    mnt.umount()
    assert len(vol.objects()) == 1


@pytest.mark.deadline(180)
@pytest.mark.parametrize("kind", [servers.Redis, servers.Postgres, servers.Mariadb])
def test_database_is_away(ws, kind):
    need_engine(kind.scheme)
    server = servers.started(ws, kind())
    vol = Volume(ws, url=server.database().url)
    mnt = vol.mount("stop-timeout=3s")
    mnt.allow(".")
    fd = os.open(mnt / "f", os.O_CREAT | os.O_WRONLY)
    os.write(fd, data(100_000))
    server.kill9()
    stop_without_backend(mnt, 100_000, 1)
    close(fd)


def test_database_is_locked(ws, volume):
    """SQLite on a disk that hangs, as far as the mount can tell."""
    volume.check_options = None
    mnt = volume.mount("stop-timeout=2s")
    mnt.allow(".")
    fd = os.open(mnt / "f", os.O_CREAT | os.O_WRONLY)
    other = sqlite3.connect(volume.db, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    os.write(fd, data(100_000))
    stop_without_backend(mnt, 100_000, 1)
    assert 'waits_for="' in mnt.log()
    close(fd)
    other.execute("ROLLBACK")
    other.close()


@pytest.mark.deadline(120)
@pytest.mark.module("redis")
def test_killed_while_it_ends(ws):
    """With the metadata away the end takes its time; a manager that loses patience leaves nobody
    hanging in the mount."""
    server = servers.started(ws, servers.Redis())
    vol = Volume(ws, url=server.database().url)
    vol.check_options = None
    mnt = vol.mount("attr-cache=0,entry-cache=0,dir-entry-cache=0")
    mnt.allow(".")
    written = open(mnt / "f", "wb")
    stop_process(server.process.pid)
    caller = ws.popen(["/bin/ls", "-l", mnt.path], stdout=-3, stderr=-3)
    stack = pathlib.Path("/proc/%d/stack" % caller.pid)
    wait_until(lambda: "fuse" in stack.read_text(), 30, "the caller to wait")
    os.kill(mnt.pid(), signal.SIGTERM)
    wait_until(lambda: "stopping: signal=15" in mnt.log(), 30, "the end to begin")
    wait_until(lambda: children(mnt.pid()), 30, "the process that closes the files")
    assert caller.poll() is None
    mnt.kill9()
    assert caller.wait(30) != 0
    with contextlib.suppress(OSError):
        written.close()
    server.process.send_signal(signal.SIGCONT)


@pytest.mark.deadline(120)
@pytest.mark.parametrize("moment", ["it resumes", "all get it", "before the next one"])
def test_stop_between_two_processes(ws, volume, moment):
    """A service manager stops the mount just after the process of it died: what is stored is all there
    is, and the end is in order."""
    mnt = volume.mount(expect="has died, starting another")
    f = open(mnt / "f", "wb", buffering=0)
    content = data(3_000_000)
    f.write(content)
    os.fsync(f.fileno())
    if moment == "before the next one":
        for deaths in range(1, 4):  # each pause is longer than the one before
            os.kill(mnt.pid(), signal.SIGKILL)
            wait_until(lambda: mnt.log().count("another process serves") == deaths, 30, "the next process")
    worker = mnt.pid()
    with contextlib.closing(sqlite3.connect(volume.db, isolation_level=None)) as locker:
        locker.execute("BEGIN IMMEDIATE")
        os.kill(worker, signal.SIGKILL)
        if moment == "before the next one":
            wait_until(lambda: "deaths=4" in mnt.log(), 30, "the pause")
        else:
            (resumes,) = wait_until(lambda: set(children(mnt.process.pid)) - {worker}, 30, "the next process")
        mnt.process.terminate()
        if moment == "all get it":
            os.kill(resumes, signal.SIGTERM)
        wait_until(lambda: not pending(mnt.process.pid), 10, "the signal to be taken")
        locker.execute("COMMIT")
    mnt.wait_end(30)
    with contextlib.suppress(OSError):
        f.close()
    assert volume.status()["sessions"] == []
    assert read(volume.mount(path=mnt.path) / "f") == content


def test_hang_up(ws, volume):
    """A rotation of logs sends it out of habit, and programs go on; a closed terminal ends its mount."""
    mnt = volume.mount(daemon=True)
    f = open(mnt / "f", "wb", buffering=0)
    for pid, _ in ws.processes():
        os.kill(pid, signal.SIGHUP)
        wait_until(lambda: not pending(pid), 10, "the signal to be taken")
    f.write(b"goes on")
    f.close()
    assert len(ws.processes()) == 2 and read(mnt / "f") == b"goes on"
    mnt.umount()
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup(1) ignores it for all below
        os.execve(tool("cachefs"), ["cachefs", "mount", "--foreground", volume.url, str(mnt)], ws.env())
    wait_until(lambda: mnt.mounted() and os.path.exists(mnt / "f"), 30, "the mount")
    os.close(terminal)
    wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0], 30, "its end")
    assert not mnt.mounted() and volume.status()["sessions"] == []
