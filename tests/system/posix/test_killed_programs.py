# SPDX-License-Identifier: Apache-2.0
"""Programs that wait for a metadata server that hangs: a fatal signal ends them at once, any other
does not. A failure here is a shell that Ctrl-C does not give back, or an operation that was said not
to be done and is done later."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

import pytest

import servers
from cachefs import SLOW, Volume, need_engine, stop_process, wait_until
from syscalls import data, read, write
from test_faults import locker

SIZE = 300_000
CHUNK = 64 << 20  # an open brings the records of the first one
# Each step is one request, or the look-up before it, and needs no lock of another one's.
PROGRAM = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGUSR1, lambda *_: print("signal", flush=True))
what, root = sys.argv[1:]
path = lambda name: os.path.join(root, name)
steps = {
    "stat": lambda: os.stat(path("d/absent")),
    "stats": lambda: stats(40),
    "create": lambda: os.close(os.open(path("a/created"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)),
    "mkdir": lambda: os.mkdir(path("b/made")),
    "rename": lambda: os.rename(path("from"), path("to")),
    "chmod": lambda: os.chmod(path("other"), 0o600),
    "list": lambda: os.listdir(path("c")),
    "read": lambda: os.pread(fd, 100, 64 << 20),
    "fsync": lambda: os.fsync(fd),
    "exit": lambda: signal.pause(),
}
def stats(n):
    threads = [threading.Thread(target=os.path.exists, args=(path("d/absent%d" % i),)) for i in range(n)]
    for t in threads: t.start()
    for t in threads: t.join()
if what == "read":
    fd = os.open(path("big"), os.O_RDONLY | os.O_DIRECT)
if what in ("fsync", "exit"):
    fd = os.open(path("my-" + what), os.O_CREAT | os.O_WRONLY)
for name in ("from", "to", "other", "big", "a", "b", "c", "d"): os.stat(path(name))
print("ready", flush=True)
sys.stdin.readline()
if what in ("fsync", "exit"):
    os.pwrite(fd, b"x" * 100000, 0)
print("begins", flush=True)
try: steps[what]()
except OSError as e: print(e, flush=True)
else: print("done", flush=True)
"""
STEPS = ["stat", "create", "mkdir", "rename", "chmod", "list", "read", "fsync", "exit"]
ALWAYS = {"a", "b", "c", "d", "big", "other", "to"}


def is_stopped(pid):
    tasks = "/proc/%d/task/" % pid
    return all(open(tasks + t + "/stat").read().rpartition(")")[2].split()[0] == "T" for t in os.listdir(tasks))


class Frozen:
    def __init__(self, server):
        self.server = server

    def __enter__(self):
        self.pids = [self.server.process.pid, *self.server._children()]
        for pid in self.pids:
            stop_process(pid)
        # One thread takes the signal; until it runs, others may still answer.
        wait_until(lambda: all(map(is_stopped, self.pids)), 20, "the server to stop")

    def __exit__(self, *_):
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.fixture(params=["redis", "postgres", "mysql"])
def hung(request, ws):
    """A mount with its server."""
    need_engine(request.param)
    server = servers.ENGINES[request.param][0]()
    volume = Volume(ws, url=server.database().url)
    volume.check_options = {"leaks": "warn", "unmounted": True}
    return prepared(volume), server


def prepared(volume):
    mnt = volume.mount("attr-cache=1h,entry-cache=1h,dir-entry-cache=1h", expect=".")
    for name in "abcd":
        os.mkdir(mnt / name)
    write(mnt / "other", b"o")
    write(mnt / "from", data(SIZE, 1))
    write(mnt / "to", data(SIZE, 2))
    with open(mnt / "big", "wb") as f:
        os.pwrite(f.fileno(), data(SIZE, 3), CHUNK)
    return mnt


def begin(ws, mnt, *steps):
    programs = {what: ws.python(PROGRAM, what, mnt.path, stdin=-1, stdout=-1, text=True) for what in steps}
    for p in programs.values():
        assert p.stdout.readline() == "ready\n"
    return programs


def go(p):
    p.stdin.write("\n")
    p.stdin.flush()
    assert p.stdout.readline() == "begins\n"


def asleep_in_a_request(p):
    if select.select([p.stdout], [], [], 0)[0]:
        pytest.fail("it was answered: " + p.stdout.readline())
    return "fuse" in open("/proc/%d/stack" % p.pid).read()


def n_asleep_in_requests(p):
    tasks = "/proc/%d/task/" % p.pid
    return sum("request_wait_answer" in open(tasks + t + "/stack").read() for t in os.listdir(tasks))


def end_all(programs, sig):
    """Each waits for the mount, and ends at once by the signal."""
    for what, p in programs.items():
        go(p)
        if what != "exit":
            wait_until(lambda: asleep_in_a_request(p), 20, what + " to wait")
    late = []
    for what, p in programs.items():
        p.send_signal(getattr(signal, "SIG" + sig))
        try:
            p.wait(1 * SLOW)
        except subprocess.TimeoutExpired:
            late.append(what)
    assert not late
    for p in programs.values():
        assert p.returncode == -getattr(signal, "SIG" + sig)
        assert p.stdout.read() == ""


@pytest.mark.deadline(180)
@pytest.mark.parametrize("sig", ["TERM", "INT", "KILL"])
def test_a_fatal_signal_ends_every_wait(ws, hung, sig):
    mnt, server = hung
    assert mnt.open_handles() == 0
    programs = begin(ws, mnt, *STEPS)
    with Frozen(server):
        end_all(programs, sig)
    # Each was done or not, once.
    wait_until(lambda: mnt.stat("requests_in_flight") == 0, 60, "the requests to end")
    wait_until(lambda: mnt.stat("open_handles") == 0, 20, "their files to be closed")
    there = set(os.listdir(mnt))
    assert ALWAYS <= there <= ALWAYS | {"from", "my-fsync", "my-exit"}
    if "from" in there:
        assert read(mnt / "from") == data(SIZE, 1) and read(mnt / "to") == data(SIZE, 2)
    else:
        assert read(mnt / "to") == data(SIZE, 1)
    assert set(os.listdir(mnt / "a")) <= {"created"} and set(os.listdir(mnt / "b")) <= {"made"}
    with open(mnt / "big", "rb") as f:
        assert os.pread(f.fileno(), SIZE, CHUNK) == data(SIZE, 3)
    write(mnt / "next", b"next")
    assert read(mnt / "next") == b"next"


@pytest.mark.parametrize("sig", ["TERM", "INT", "KILL"])
def test_a_fatal_signal_ends_the_wait_for_a_locked_database(ws, volume, sig):
    """Another process writes to the SQLite file and does not end; it holds up no reader."""
    volume.check_options = {"leaks": "warn", "unmounted": True}
    mnt = prepared(volume)
    programs = begin(ws, mnt, "create", "mkdir", "rename", "chmod", "fsync", "exit")
    lock = locker(ws, volume, 100)
    end_all(programs, sig)
    lock.kill()
    lock.wait(20)
    wait_until(lambda: mnt.stat("requests_in_flight") == 0, 60, "the requests to end")
    write(mnt / "next", b"next")
    assert ALWAYS <= set(os.listdir(mnt)) <= ALWAYS | {"from", "my-fsync", "my-exit", "next"}
    assert os.stat(mnt / "to").st_size == SIZE


@pytest.mark.parametrize("hung", ["redis"], indirect=True)
@pytest.mark.parametrize("length", [SIZE, SIZE + 100])
def test_an_open_whose_program_is_killed_shows_no_old_bytes_later(ws, hung, length):
    """Another mount has replaced them, and has restored the time of the last change."""
    mnt, server = hung
    other = mnt.volume.mount(expect=".")
    os.utime(other / "from", ns=(10**18, 10**18))
    assert read(mnt / "from") == data(SIZE, 1)
    with open(other / "from", "r+b") as f:
        f.write(data(length, 4))
        f.flush()
        os.utime(f.fileno(), ns=(10**18, 10**18))
    program = "import sys; print('ready', flush=True); sys.stdin.readline(); print('begins', flush=True); open(sys.argv[1])"
    p = ws.python(program, mnt / "from", stdin=-1, stdout=-1, text=True)
    assert p.stdout.readline() == "ready\n"
    with Frozen(server):
        go(p)
        wait_until(lambda: asleep_in_a_request(p), 20, "the open to wait")
        p.kill()
        p.wait(20)
    wait_until(lambda: mnt.stat("requests_in_flight") == 0, 60, "the open to end")
    wait_until(lambda: mnt.stat("open_handles") == 0, 20, "the file to be closed")
    copy = os.memfd_create("copy")
    with open(mnt / "from", "rb", buffering=0) as f:
        os.sendfile(copy, f.fileno(), 0, 2 * SIZE)
    assert os.pread(copy, 2 * SIZE, 0) == read(mnt / "from") == data(length, 4)
    os.close(copy)


@pytest.mark.parametrize("hung", ["redis"], indirect=True)
def test_a_fatal_signal_ends_the_wait_of_a_container(ws, hung):
    """The program has another number in its pid namespace; its init is no part of the test."""
    mnt, server = hung
    inside = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", '"$@"; echo $?', "sh", sys.executable, "-c"]
    steps = {"create": "TERM", "mkdir": "KILL", "fsync": "INT"}
    programs = {s: ws.popen([*inside, PROGRAM, s, mnt.path], stdin=-1, stdout=-1, text=True) for s in steps}
    for p in programs.values():
        assert p.stdout.readline() == "ready\n"
    with Frozen(server):
        for step, p in programs.items():
            pid = grandchild(p.pid)
            go(p)
            wait_until(lambda: "fuse" in open("/proc/%d/stack" % pid).read(), 20 * SLOW, step + " to wait")
            sig = getattr(signal, "SIG" + steps[step])
            os.kill(pid, sig)
            ended = select.select([p.stdout], [], [], 5 * SLOW)[0]
            assert ended and p.stdout.readline() == "%d\n" % (128 + sig), step
            p.wait(20 * SLOW)


def grandchild(pid):
    for _ in range(2):
        pid = int(open("/proc/%d/task/%d/children" % (pid, pid)).read())
    return pid


@pytest.mark.deadline(120)
def test_other_signals_wait_for_the_answer(ws, hung):
    mnt, server = hung
    programs = begin(ws, mnt, "create", "mkdir", "rename", "fsync")
    with Frozen(server):
        for what, p in programs.items():
            go(p)
            wait_until(lambda: asleep_in_a_request(p), 20, what + " to wait")
            p.send_signal(signal.SIGUSR1)
    for what, p in programs.items():
        assert sorted(p.communicate(timeout=60 * SLOW)[0].split()) == ["done", "signal"], what
    assert set(os.listdir(mnt)) == ALWAYS | {"my-fsync"}
    assert read(mnt / "to") == data(SIZE, 1)
    assert os.listdir(mnt / "a") == ["created"] and os.listdir(mnt / "b") == ["made"]


@pytest.mark.parametrize("hung", ["redis"], indirect=True)
def test_signals_while_no_process_serves(ws, hung):
    """As ever: a signal that is caught waits for the answer, also for the next process's; a fatal one does
    not, though another one came first."""
    mnt, server = hung
    mnt.allow("the process of the mount has died")
    programs = begin(ws, mnt, "mkdir", "rename", "chmod", "list", "stat")
    killed = [programs.pop("list"), programs.pop("stat")]
    with Frozen(server):
        dead = mnt.pid()
        os.kill(dead, signal.SIGKILL)
        wait_until(lambda: mnt.pid() not in (dead, mnt.process.pid), 20, "the next process")
        for what, p in [*programs.items(), ("list", killed[0]), ("stat", killed[1])]:
            go(p)
            wait_until(lambda: asleep_in_a_request(p), 20, what + " to wait")
            p.send_signal(signal.SIGUSR1)
        for p in killed:
            p.kill()
        for p in killed:
            p.wait(5 * SLOW)
        assert not any(select.select([p.stdout], [], [], 0)[0] for p in programs.values())
    for what, p in programs.items():
        assert sorted(p.communicate(timeout=60 * SLOW)[0].split()) == ["done", "signal"], what
    assert set(os.listdir(mnt)) == ALWAYS
    assert os.listdir(mnt / "b") == ["made"] and os.stat(mnt / "other").st_mode & 0o777 == 0o600


@pytest.mark.parametrize("hung", ["redis"], indirect=True)
def test_more_wait_than_there_are_threads(ws, hung):
    """The close of a killed program's file is a request, too, and cannot be taken back."""
    mnt, server = hung
    many, closes = begin(ws, mnt, "stats", "exit").values()
    with Frozen(server):
        go(closes)
        go(many)
        wait_until(lambda: n_asleep_in_requests(many) == 40, 20, "the threads to wait")
        for p in (many, closes):
            p.kill()
        for p in (many, closes):
            p.wait(2 * SLOW)
    wait_until(lambda: mnt.stat("requests_in_flight") == 0, 60, "the requests to end")


@pytest.mark.parametrize("hung", ["redis"], indirect=True)
def test_where_nothing_waits_nothing_wakes_up(ws, hung):
    mnt, _ = hung
    tasks = "/proc/%d/task/" % mnt.pid()
    (looker,) = [t for t in os.listdir(tasks) if open(tasks + t + "/comm").read() == "killed\n"]

    def wakes():
        with open(tasks + looker + "/status") as f:
            return int(next(x for x in f if x.startswith("voluntary_ctxt_switches")).split()[1])

    def quiet():
        before = wakes()
        time.sleep(1.5)
        return wakes() == before

    # Requests of the start may be under way.
    wait_until(quiet, 20, "the thread to sleep")
