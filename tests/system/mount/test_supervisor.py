# SPDX-License-Identifier: Apache-2.0
"""The supervisor of a mount: crash loops, its own death, upgrades that fail. A failure here is a
mount that hangs, or one that an upgrade has killed."""

import contextlib
import ctypes
import errno
import os
import pathlib
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from cachefs import SLOW, alive, children, pending, sanitized, stop_process, tool, wait_until
from syscalls import data, fails, read, write
from test_metrics import Unix, get
from test_takeover import DEATH, upgrade

GIVEN_UP = r"the mount is given up and detached"


def resident_kib(pid, key="RssAnon"):
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"^%s:\s+(\d+) kB" % key, f.read(), re.M)[1])


def test_crash_loop_ends_in_a_clean_unmount(ws, volume):
    """Its metadata is gone: no process can go on."""
    volume.check_options = None
    mnt = volume.mount()
    write(mnt / "f", b"x")
    mnt.allow(DEATH)
    mnt.allow(GIVEN_UP)
    mnt.allow("the mount could not be resumed")
    mnt.allow("the database file was moved")
    reader = ws.popen(["/bin/cat", mnt / "f"], stdout=-3, stderr=-3)
    reader.wait(20)
    os.rename(volume.db, str(volume.db) + ".gone")
    for suffix in ("-wal", "-shm"):
        if os.path.exists(str(volume.db) + suffix):
            os.rename(str(volume.db) + suffix, str(volume.db) + ".gone" + suffix)
    os.kill(mnt.pid(), signal.SIGKILL)
    late = ws.popen(["/bin/stat", mnt / "f"], stdout=-3, stderr=-3)
    assert mnt.process.wait(60 * SLOW) != 0
    assert late.wait(20 * SLOW) != 0  # it waited, and was told
    assert not mnt.mounted() and not ws.processes()
    mnt.ended = True
    (line,) = [x for x in mnt.log().splitlines() if re.search(GIVEN_UP, x)]
    assert str(mnt) in line and "deaths=6" in line
    waits = re.findall(r"has died, starting another: .* wait_ms=(\d+)", mnt.log())
    assert waits == ["100", "200", "400", "800", "1600"]


def test_deaths_by_signal_end_too(ws, volume):
    volume.check_options = {"leaks": "warn", "unmounted": False}
    mnt = volume.mount()
    mnt.allow(DEATH)
    mnt.allow(GIVEN_UP)
    pauses = []
    for _ in range(5):
        worker = mnt.pid()
        killed = time.monotonic()
        os.kill(worker, signal.SIGKILL)
        try:
            os.statvfs(mnt)
        except OSError as e:  # the process was just taking it
            assert e.errno == errno.EIO
            os.statvfs(mnt)
        pauses.append(time.monotonic() - killed)
    print("pauses: " + " ".join("%.3f s" % s for s in pauses))
    os.kill(mnt.pid(), signal.SIGKILL)
    assert mnt.process.wait(30 * SLOW) != 0
    mnt.ended = True
    assert not mnt.mounted()
    assert "last_signal=KILL" in mnt.log() and "deaths=6" in mnt.log()


def test_nothing_of_the_process_waits_for_its_own_mount(ws, volume):
    """Such a thread cannot be killed before it has its answer, and nobody could take over."""
    path = ws.path("socket")
    mnt = volume.mount("max-threads=1,metrics=unix:%s" % path, expect="locked|busy|does not answer|" + DEATH)
    assert get(Unix(path), "/health")[0] == 200
    locker = sqlite3.connect(volume.db, isolation_level=None)
    locker.execute("BEGIN EXCLUSIVE")
    stuck = threading.Thread(target=lambda: os.mkdir(mnt / "d"))
    stuck.start()
    wait_until(lambda: get(Unix(path), "/health")[0] == 503, 20, "a bad answer")
    (worker,) = children(mnt.process.pid)
    waits = []
    for wchan in pathlib.Path("/proc/%d/task" % worker).glob("*/wchan"):
        with contextlib.suppress(ProcessLookupError):  # the thread ends
            waits.append(wchan.read_text())
    assert waits and "request_wait_answer" not in waits
    os.kill(worker, signal.SIGKILL)
    locker.execute("COMMIT")
    locker.close()
    wait_until(lambda: "another process serves the mount" in mnt.log(), 20, "the next process")
    stuck.join(30)
    assert os.path.isdir(mnt / "d")
    wait_until(lambda: get(Unix(path), "/health")[0] == 200, 20, "a good answer")


def cpu_s(pid):
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.deadline(120)
def test_killed_by_the_kernel_while_it_works(ws, volume):
    """As the kernel does that has no memory left: here it is processor time."""
    volume.check_options = {"leaks": "warn", "unmounted": True}
    mnt = volume.mount()
    write(mnt / "f", data(1_000_000))
    mnt.allow(DEATH)
    worker = mnt.pid()
    limit = int(cpu_s(worker)) + 1
    resource.prlimit(worker, resource.RLIMIT_CPU, (limit, limit))
    n = told = 0
    while mnt.pid() == worker or not mnt.pid():
        try:
            write(mnt / ("g%d" % (n % 50)), b"%d" % n)
            n += 1
        except OSError as e:  # what was not stored, once
            assert e.errno == errno.EIO
            told += 1
    assert told <= 1
    wait_until(lambda: "another process serves the mount" in mnt.log(), 30, "the next process")
    assert "signal=KILL deaths=1" in mnt.log()
    assert read(mnt / "f") == data(1_000_000)
    assert read(mnt / ("g%d" % ((n - 1) % 50))) == b"%d" % (n - 1)


@pytest.mark.skipif(sanitized(), reason="sanitizers take memory of their own")
@pytest.mark.deadline(120)
def test_no_memory(ws, volume):
    """Missing resources of the process fail requests; confirmed data and the mount stay."""
    mnt = volume.mount(expect="memory|ENOMEM")
    confirmed = data(1_000_000)
    write(mnt / "f", confirmed)
    worker = mnt.pid()
    with open("/proc/%d/statm" % worker) as f:
        now = int(f.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    resource.prlimit(worker, resource.RLIMIT_AS, (now, resource.RLIM_INFINITY))
    errors = []
    for i in range(40):
        try:
            with open(mnt / ("g%d" % i), "wb", buffering=0) as f:
                f.write(data(5_000_000))
        except OSError as e:
            errors.append(errno.errorcode[e.errno])
    assert set(errors) <= {"ENOMEM", "EIO"}, errors
    assert read(mnt / "f") == confirmed
    resource.prlimit(worker, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    write(mnt / "h", data(5_000_000))
    assert read(mnt / "h") == data(5_000_000)
    assert mnt.pid() == worker


def test_death_of_the_supervisor(ws, volume):
    """The process goes on alone."""
    mnt = volume.mount()
    write(mnt / "f", b"x")
    worker = mnt.pid()
    mnt.process.kill()
    mnt.process.wait(20)
    wait_until(lambda: "goes on alone" in mnt.log(), 20, "a line about it")
    assert read(mnt / "f") == b"x"
    write(mnt / "g", b"y")
    r = ws.run("cachefs", "mount", volume.url, mnt.path)
    assert r.returncode == 32 and "no supervisor" in r.stderr
    ws.run("cachefs", "umount", mnt.path, check=True)
    assert not alive(worker)
    mnt.ended = True


def test_without_supervisor(ws, volume):
    volume.check_options = {"leaks": "warn", "unmounted": False}
    mnt = volume.mount("supervise=false")
    assert len(ws.processes()) == 1
    write(mnt / "f", b"x")
    r = ws.run("cachefs", "mount", volume.url, mnt.path)
    assert r.returncode == 32 and "no supervisor" in r.stderr
    mnt.process.kill()
    mnt.process.wait(20)

    def is_gone():
        try:
            os.stat(mnt / "f")
        except OSError as e:  # another one while the kernel ends the connection
            return e.errno == errno.ENOTCONN

    wait_until(is_gone, 10, "the end of the connection")
    mnt.kill9()


MNT_DETACH = 2


def test_mount_that_is_ending_does_not_answer_for_another(ws, volume):
    """The device of a mount whose process still stores data is gone, and the next mount gets its number. Of
    another mount of the volume, that process would give away its own connection, which has ended."""
    ending = volume.mount()
    number = os.stat(ending).st_dev
    door = door_of(ending)
    worker = ending.pid()
    stop_process(worker)  # it ends later
    assert ctypes.CDLL(None).umount2(os.fsencode(ending.path), MNT_DETACH) == 0  # asks it nothing
    others = []
    while not others or os.stat(others[-1]).st_dev != number:
        if len(others) == 20:
            os.kill(worker, signal.SIGCONT)
            pytest.skip("a mount of another test has got the number")
        others.append(volume.mount("supervise=false"))
    r = ws.run("cachefs", "mount", volume.url, others[-1].path, timeout=60)
    assert r.returncode == 32 and "no supervisor" in r.stderr, r.stderr
    assert not os.path.exists(door)
    os.kill(worker, signal.SIGCONT)
    ending.wait_end(30)


def test_socket_of_a_mount_that_has_ended(ws, volume):
    """The command that takes a mount over looks again, and finds the socket of that one."""
    mnt = volume.mount()
    door = door_of(mnt)
    aside = door + ".aside"
    os.rename(door, aside)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind(door)
        stale.listen(4)
        p = ws.popen([tool("cachefs"), "mount", volume.url, mnt.path], stdout=-1, stderr=-2, text=True)
        client, _ = stale.accept()
        os.rename(aside, door)
        client.close()
    assert p.wait(60 * SLOW) == 0, p.stdout.read()
    assert mnt.process.wait(20 * SLOW) == 0
    mnt.process = None
    assert mnt.stat("takeovers_total") == 1


def test_failed_upgrades_leave_the_mount(ws, volume):
    other = ws.volume("other")
    mnt = volume.mount()
    write(mnt / "f", b"x")
    f = open(mnt / "g", "wb", buffering=0)
    f.write(b"before")
    worker = mnt.pid()

    def refused(url, *args, reason):
        r = ws.run("cachefs", "mount", url, mnt.path, *args, timeout=60)
        assert r.returncode in (1, 32) and re.search(reason, r.stderr), (r.returncode, r.stderr)
        assert mnt.process.poll() is None and read(mnt / "f") == b"x"

    refused(other.url, reason="another volume is mounted")
    refused(volume.url, "-o", "no-such-option", reason="no-such-option")
    refused("sqlite3://%s/none.db" % ws.dir, reason="none.db")
    refused(volume.url, "-o", "supervise=false", reason="supervise")
    assert mnt.pid() == worker
    # these come to light when the old process has left: another one goes on
    refused(volume.url, "-o", "ro", reason="is writable")
    refused(volume.url, "-o", "cache-mode=9", "--cache-dir", ws.path("cache"), reason="cache-mode")
    os.mkdir(mnt / "sub")
    refused(volume.url, "-o", "subdir=sub", reason="another subdir")
    refused(volume.url, "-o", "metrics=300.1.1.1:1", reason="metrics")
    f.write(b" and after")
    os.fsync(f.fileno())
    f.close()
    assert read(mnt / "g") == b"before and after"
    assert mnt.stat("takeovers_total") == 0
    upgrade(ws, volume, mnt)
    assert mnt.stat("takeovers_total") == 1


def test_two_who_mount_at_once(ws, volume):
    """As an automount and an administrator may: it is mounted once, and the other one is told so."""
    point = ws.path("mnt")
    point.mkdir()
    for i in range(8):
        both = [
            ws.popen([tool("cachefs"), "mount", volume.url, point], stdout=-1, stderr=-2, text=True)
            for _ in range(2)
        ]
        said = [p.communicate(timeout=60 * SLOW)[0] for p in both]
        with open("/proc/self/mountinfo") as f:
            assert sum(line.split()[4] == str(point) for line in f) == 1, said
        assert 0 in (p.returncode for p in both), said
        for p, text in zip(both, said):
            assert p.returncode == 0 or "already mounted" in text or "tak" in text, text
        write(point / "f", b"%d" % i)
        ws.run("cachefs", "umount", point, check=True)
        wait_until(lambda: not ws.processes(), 30, "the end of the processes")


def test_another_user_is_refused(ws, volume):
    os.chmod(volume.db, 0o666)
    mnt = volume.mount()
    r = subprocess.run(
        ["setpriv", "--reuid=1001", "--regid=1001", "--clear-groups", tool("cachefs"), "mount", volume.url, mnt.path],
        stdin=-3, stdout=-1, stderr=-2, text=True, timeout=60, env=ws.env(),
    )
    assert r.returncode == 32 and "user with id 0" in r.stdout, r.stdout
    assert mnt.process.poll() is None
    assert os.stat(door_of(mnt)).st_mode & 0o777 == 0o600


@pytest.fixture
def half_taken(ws, volume):
    """A mount that its process has left, and that the next one cannot begin to serve: who wants to
    go on with the session in the metadata waits for their lock. Also the command that takes over."""
    mnt = volume.mount("meta-timeout=2", expect="locked|busy|not stored|usage could not be written")
    write(mnt / "f", b"x")
    root = os.open(mnt.path, os.O_RDONLY)
    os.fsync(root)  # nothing is left to be stored by the process that leaves
    os.close(root)
    locker = sqlite3.connect(volume.db, isolation_level=None)
    locker.execute("BEGIN EXCLUSIVE")
    ws.cleanups.append(locker.close)

    def begin(*args):
        mnt.allow(DEATH)
        command = [tool("cachefs"), "mount", volume.url, mnt.path, *args]
        p = ws.popen(command, stdout=-1, stderr=-2, text=True, start_new_session=True)
        wait_until(lambda: "left the mount" in mnt.log(), 30, "the mount to be left")

        def takes_over():
            """The next supervisor and worker, when both have the connection to the kernel."""
            have = [pid for pid, _ in ws.processes() if pid != mnt.process.pid and serves(pid)]
            return next(((pid, child) for pid in have for child in children(pid) if child in have), None)

        return (mnt, p, lambda: locker.execute("COMMIT"), *wait_until(takes_over, 20, "the next process"))

    return begin


def serves(pid):
    """It has the connection to the kernel."""
    try:
        return any(os.readlink(p) == "/dev/fuse" for p in pathlib.Path("/proc/%d/fd" % pid).iterdir())
    except OSError:
        return False


@pytest.mark.parametrize("how", ["daemon", "foreground"])
def test_successor_that_hangs_is_given_up(ws, half_taken, how):
    """It is dead before the mount is taken back: two processes would serve it."""
    mnt, p, unlock, supervisor, worker = half_taken("-o", "mount_timeout=3", *["--foreground"][: how == "foreground"])
    stop_process(supervisor)
    wait_until(lambda: "going on with it" in mnt.log(), 30, "the mount to be taken back")
    wait_until(lambda: not alive(supervisor) and not alive(worker), 10, "the end of the other")
    unlock()
    assert read(mnt / "f") == b"x"
    assert mnt.process.poll() is None
    assert p.wait(20 * SLOW) != 0
    wait_until(lambda: len(ws.processes()) == 2, 10, "nobody else")


def test_death_of_the_supervisor_that_has_given_the_mount(ws, half_taken):
    """The next one has everything, and goes on."""
    mnt, p, unlock, supervisor, worker = half_taken("--foreground")
    mnt.process.kill()
    mnt.process.wait(20)
    unlock()
    assert read(mnt / "f") == b"x"
    assert alive(supervisor) and alive(worker)
    mnt.ended = True
    ws.run("cachefs", "umount", mnt.path, check=True)
    assert p.wait(20 * SLOW) == 0


def door_of(mnt):
    """Where successors connect. The mount is there a moment before."""
    door = "/run/cachefs/mount-%d" % os.minor(os.stat(mnt).st_dev)

    def listens():
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            return s.connect_ex(door) == 0

    wait_until(listens, 10, "the supervisor to listen")
    return door


def test_successor_that_is_silent_is_sent_away(ws, volume):
    """A client that connects and asks for nothing keeps others out for a limited time."""
    mnt = volume.mount("mount_timeout=10")  # the next command comes within it on a busy machine, too
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(door_of(mnt))
        r = ws.run("cachefs", "mount", volume.url, mnt.path)
        assert r.returncode == 32 and "another process" in r.stderr, r.stderr
        wait_until(lambda: "not handed over" in mnt.log(), 40, "the end of the patience")
        assert re.search(r'not handed over: mount=.* reason="it was not asked for within 10 s', mnt.log())
        assert b"not asked for" in silent.recv(4096)
        assert silent.recv(4096) == b""
    upgrade(ws, volume, mnt)


# Asks for the mount, and says so when that has been taken.
ASKS = """
import fcntl, socket, struct, sys, termios, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.send(struct.pack("=IIQ256s", 1, 6, 20000, sys.argv[2].encode()))
while struct.unpack("i", fcntl.ioctl(s, termios.TIOCOUTQ, b"0123"))[0]:
    time.sleep(0.002)
print("asked", flush=True)
sys.stdin.read()
"""


def test_successor_that_dies_while_the_mount_is_left(ws, volume):
    """The mount is taken back at once: there is no process to wait for."""
    mnt = volume.mount("io-timeout=60,watchdog=0")
    write(mnt / "f", b"x")
    worker, supervisor = mnt.pid(), mnt.process.pid
    door = door_of(mnt)
    stop_process(worker)  # it leaves later
    p = ws.popen([sys.executable, "-c", ASKS, door, volume.setting()["UUID"]], stdin=-1, stdout=-1, text=True)
    assert p.stdout.readline() == "asked\n"
    p.kill()
    p.wait(20)
    wait_until(lambda: not holds_a_process(supervisor), 10, "the supervisor to drop it")
    os.kill(worker, signal.SIGCONT)
    wait_until(lambda: not alive(worker), 20, "the end of the process that left")
    began = time.monotonic()
    wait_until(lambda: "going on with it" in mnt.log(), 10, "the mount to be taken back")
    assert time.monotonic() - began < 5 * SLOW
    assert read(mnt / "f") == b"x"
    upgrade(ws, volume, mnt)


def holds_a_process(pid):
    """It has a descriptor of another process."""
    return any(os.readlink(p) == "anon_inode:[pidfd]" for p in pathlib.Path("/proc/%d/fd" % pid).iterdir())


def test_supervisor_that_is_late_goes_on(ws, volume, half_taken):
    """The next one is ready and does not hear so for long: it stays away, and the mount stays."""
    mnt, p, unlock, supervisor, worker = half_taken("--foreground")
    stop_process(mnt.process.pid)
    unlock()
    assert p.wait(30 * SLOW) == 32
    assert not alive(supervisor) and not alive(worker)
    mnt.process.send_signal(signal.SIGCONT)
    assert read(mnt / "f") == b"x"
    assert "going on with it" in mnt.log()
    wait_until(lambda: len(ws.processes()) == 2, 10, "nobody else")
    upgrade(ws, volume, mnt)


def test_stop_during_an_upgrade_is_not_forgotten(ws, volume, half_taken):
    volume.check_options = {"leaks": "warn", "unmounted": False}
    mnt, p, unlock, supervisor, _ = half_taken("--foreground")
    mnt.allow("cannot be opened again|is to end while no process serves it")  # the metadata is locked
    os.kill(mnt.process.pid, signal.SIGTERM)
    os.kill(supervisor, signal.SIGTERM)
    assert mnt.process.wait(20 * SLOW) != 0
    assert p.wait(20 * SLOW) != 0
    mnt.ended = True
    assert not mnt.mounted() and not ws.processes()
    unlock()


def test_stop_of_the_mount_that_is_handed_over(ws, volume, half_taken):
    """The successor carries out the orders given to its predecessor."""
    mnt, p, unlock, supervisor, _ = half_taken("--foreground")
    mnt.process.terminate()
    wait_until(lambda: not pending(mnt.process.pid), 10, "the signal to be taken")
    unlock()
    assert mnt.process.wait(20 * SLOW) == 0
    assert p.wait(20 * SLOW) == 0
    mnt.ended = True
    assert not mnt.mounted() and not ws.processes()
    assert volume.status()["sessions"] == []


def waits_for_last_word(supervisor):
    """poll(2) with one descriptor: elsewhere it waits for several."""
    call = pathlib.Path("/proc/%d/syscall" % supervisor).read_text().split()
    return len(call) > 2 and int(call[2], 16) == 1


@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_command_that_ends_when_the_mount_is_the_next_ones(ws, volume, half_taken, how):
    """From there on nobody would take the mount back: it goes on, whoever has started that."""
    mnt, p, unlock, supervisor, worker = half_taken()
    stop_process(mnt.process.pid)
    unlock()
    wait_until(lambda: waits_for_last_word(supervisor), 10, "the next one to take the mount")
    if how == "interrupted":
        os.killpg(p.pid, signal.SIGINT)  # as a terminal does
        wait_until(lambda: not pending(p.pid), 10, "the signal to be taken")
    else:
        p.kill()
        p.wait(20)
    mnt.process.send_signal(signal.SIGCONT)
    assert mnt.process.wait(20 * SLOW) == 0
    if how == "interrupted":
        assert "took over the running mount" in p.communicate(timeout=20 * SLOW)[0] and p.returncode == 0
    assert read(mnt / "f") == b"x"
    mnt.process = None
    assert sorted(pid for pid, _ in ws.processes()) == sorted([supervisor, worker])
    upgrade(ws, volume, mnt)
    wait_until(lambda: not alive(supervisor) and not alive(worker), 10, "the end of those before")


def test_command_that_is_interrupted_before(ws, half_taken):
    mnt, p, unlock, supervisor, worker = half_taken()
    os.killpg(p.pid, signal.SIGINT)
    assert p.wait(20 * SLOW) == 8
    wait_until(lambda: not alive(supervisor) and not alive(worker), 10, "the end of the next one")
    unlock()
    assert read(mnt / "f") == b"x"
    assert mnt.process.poll() is None and "going on with it" in mnt.log()


@pytest.mark.deadline(300)
def test_upgrade_whose_time_ends_anywhere(ws, volume):
    """Either it is made, or the mount goes on as it was."""
    mnt = volume.mount("meta-timeout=5", expect="locked|busy|not stored|usage could not be written|" + DEATH)
    f = open(mnt / "f", "wb", buffering=0)
    locker = sqlite3.connect(volume.db, isolation_level=None)
    ws.cleanups.append(locker.close)
    made, tries = 0, 30
    for i in range(tries):
        f.write(b"%05d" % i)
        os.fsync(f.fileno())
        locker.execute("BEGIN EXCLUSIVE")
        end = time.monotonic() + 0.75 + 0.4 * i / tries
        p = ws.popen([tool("cachefs"), "mount", volume.url, mnt.path, "-o", "mount_timeout=1"], stdout=-1, stderr=-2, text=True)
        time.sleep(max(0, end - time.monotonic()))  # what is left to be done then takes no time
        locker.execute("COMMIT")
        said = p.communicate(timeout=30 * SLOW)[0]
        assert p.returncode in (0, 32), said
        made += p.returncode == 0
        assert os.path.getsize(mnt / "f") == 5 * (i + 1)
        wait_until(lambda: len(ws.processes()) == 2, 30, "the end of the others")
        mnt.process = mnt.process if mnt.process and mnt.process.poll() is None else None
    f.close()
    assert read(mnt / "f") == b"".join(b"%05d" % i for i in range(tries))
    print("upgrades made: %d of %d" % (made, tries))
    assert mnt.stat("takeovers_total") == made


def test_crash_when_nobody_reads_the_log(ws, volume):
    """As when the program that it is piped to has ended."""
    point = ws.path("mnt")
    point.mkdir()
    p = ws.popen([tool("cachefs"), "mount", volume.url, point, "--foreground"], stdout=-3, stderr=-1)
    wait_until(lambda: os.path.ismount(point), 30, "the mount")
    write(point / "f", b"x")
    p.stderr.close()
    (worker,) = children(p.pid)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: not alive(worker), 10, "its end")
    assert read(point / "f") == b"x"
    assert p.poll() is None
    ws.run("cachefs", "umount", point, check=True)
    assert p.wait(20 * SLOW) == 0


def test_crash_in_the_background_after_an_upgrade(ws, volume):
    mnt = volume.mount(daemon=True)
    write(mnt / "f", b"x")
    for i in range(3):
        pids = [pid for pid, _ in ws.processes()]
        (worker,) = [child for pid in pids for child in children(pid) if child in pids]
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: not alive(worker), 10, "its end")
        wait_until(lambda: len(ws.processes()) == 2, 30, "the next process")
        assert read(mnt / "f") == b"x"
        upgrade(ws, volume, mnt)
        wait_until(lambda: len(ws.processes()) == 2, 10, "the end of those before")
        assert mnt.stat("worker_restarts_total") == i + 1


@pytest.mark.deadline(400)
def test_many_upgrades(ws, volume):
    mnt = volume.mount(daemon=True)
    f = open(mnt / "f", "wb", buffering=0)
    pauses, sizes = [], []
    for i in range(50):
        f.write(b"%05d" % i)
        pauses.append(upgrade(ws, volume, mnt))
        wait_until(lambda: len(ws.processes()) == 2, 10, "the end of those before")
        pids = [pid for pid, _ in ws.processes()]
        sizes.append(sum(map(resident_kib, pids)))
    f.close()
    assert read(mnt / "f") == b"".join(b"%05d" % i for i in range(50))
    print("pauses: median %.3f s, longest %.3f s; memory: %d .. %d KiB" % (
        sorted(pauses)[25], max(pauses), min(sizes), max(sizes)))
    assert sorted(pauses)[25] < 1 * SLOW
    assert sizes[-1] < sizes[4] + 1024
    fds = max(len(os.listdir("/proc/%d/fd" % pid)) for pid in pids)
    assert fds < 40
    assert volume.sql("SELECT sid FROM jfs_session2") == [(1,)]


def test_memory_of_the_supervisor(volume):
    mnt = volume.mount()
    write(mnt / "f", data(5_000_000))
    assert resident_kib(mnt.process.pid) <= 1024
