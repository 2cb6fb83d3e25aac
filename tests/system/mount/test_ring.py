# SPDX-License-Identifier: Apache-2.0
"""Mounts whose requests come through io_uring. If these fail, a program waits for ever for an answer
that was given, or for one that nobody gives."""

import errno
import fcntl
import os
import select
import signal
import subprocess
import time

import pytest

import test_concurrency
import test_killed_programs
import test_kernel_caches
import test_multi
import test_passthrough
import test_posix
from cachefs import SLOW, alive, stop_process, wait_until
from ring import failing, on_ring  # noqa: F401
from syscalls import read, write
from test_killed_programs import hung  # noqa: F401
from test_model import FRESH, cfsx

pytestmark = pytest.mark.usefixtures("on_ring")

ENDS = (errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED, errno.EIO, errno.ENOENT)
CPUS = sorted(os.sched_getaffinity(0))
WAITER = """
import fcntl, os, sys
os.sched_setaffinity(0, {int(sys.argv[2])})
fd = os.open(sys.argv[1], os.O_RDWR)
print("up", flush=True)
sys.stdin.readline()
fcntl.flock(fd, fcntl.LOCK_EX)
"""
LOAD = """
import os, sys
path = sys.argv[1]
try:
    while True:
        with open(path, "wb") as f: f.write(b"x" * 50000)
        os.stat(path), os.listdir(os.path.dirname(path))
        with open(path, "rb") as f: assert f.read() == b"x" * 50000
        os.rename(path, path + ".2")
        os.unlink(path + ".2")
except OSError as e:
    print(e.errno, flush=True)
"""


def failing_forks(ws, thread, n):
    """The environment of a mount in which the first n forks of that thread fail."""
    return failing(ws, FORKS_THREAD=thread, FORKS_FAIL=str(n))


def is_in_flock(process):
    with open("/proc/%d/syscall" % process.pid) as f:
        return f.read().split()[0] == "73"


def thread_names(pid):
    tasks = "/proc/%d/task/" % pid
    return [open(tasks + t + "/comm").read().strip() for t in os.listdir(tasks)]


@pytest.mark.parametrize(
    "name",
    ["write_read_remount", "open_flags", "directories", "rename", "special_files", "write_takes_setuid"],
)
def test_as_on_the_device(mnt, name):
    getattr(test_posix, "test_" + name)(mnt)


@pytest.mark.deadline(240)
def test_model_on_two_mounts(ws, volume):
    a, b = volume.mount(FRESH), volume.mount(FRESH)
    args = ["--seed", "1", "--ops", "2000"]
    cfsx(ws, *args, a, b)
    cfsx(ws, *args, "--verify", b)


@pytest.mark.parametrize("size", ["2M", "1G"])
def test_model_with_an_evicting_cache_and_passthrough(ws, size):
    test_passthrough.test_model(ws, ws.volume(block_size="64K"), size)


@pytest.mark.parametrize(
    "name",
    [
        "closed_file_is_seen",
        "fsynced_data_is_seen_at_the_next_open",
        "overwritten_file_is_not_served_from_the_page_cache",
        "truncate_by_the_other_mount_while_bytes_are_not_stored",
        "names_are_seen",
        "rename_noreplace_over_the_others_file",
        "file_deleted_by_the_other_mount",
        "append_by_turns",
    ],
)
def test_two_mounts(volume, name):
    getattr(test_multi, "test_" + name)((volume.mount(FRESH), volume.mount(FRESH)))


def test_races_of_two_mounts(ws, volume):
    pair = volume.mount(FRESH), volume.mount(FRESH)
    test_multi.test_exclusive_create_has_one_winner(ws, pair)
    test_multi.test_creates_and_renames_from_both_sides(ws, pair)


def test_random_work_on_two_mounts(ws, volume):
    mounts = [volume.mount(FRESH), volume.mount(FRESH)]
    test_concurrency.random_work(ws, mounts, trash_days=0, seconds=6)
    test_concurrency.judge(volume, mounts)


@pytest.mark.deadline(30)
def test_directory_in_a_listing_that_is_above_it(volume):
    """The kernel cannot put it there. It has the mount forget it, by a request that a program waits for."""
    a, b = volume.mount(FRESH), volume.mount(FRESH)
    os.makedirs(a / "x/y")
    fd = os.open(a / "x/y", os.O_RDONLY)
    os.rename(b / "x/y", b / "y")
    os.rename(b / "x", b / "y/x")
    assert os.listdir(fd) == ["x"]
    os.close(fd)


def test_listings_of_two_mounts(volume):
    test_kernel_caches.test_changes_of_another_mount_show_in_listings(volume)


@pytest.mark.deadline(240)
def test_model_with_large_requests(ws, volume):
    mnt = volume.mount()
    args = ["--seed", "2", "--ops", "1500", "--size", "50m", "--io", "3m", "--files", "2"]
    cfsx(ws, *args, mnt)
    mnt = mnt.remount()
    cfsx(ws, *args, "--verify", mnt)


def test_requests_that_libfuse_answers(mnt):
    """poll(2) has no handler."""
    write(mnt / "f", b"x")
    with open(mnt / "f", "rb") as f:
        poll = select.poll()
        poll.register(f, select.POLLIN)
        assert poll.poll(20000)
    assert read(mnt / "f") == b"x"


@pytest.mark.parametrize("hung", ["redis"], indirect=True)
def test_killed_programs_do_not_wait(ws, hung):  # noqa: F811
    test_killed_programs.test_a_fatal_signal_ends_every_wait(ws, hung, "KILL")


def test_waits_for_locks_use_up_no_queue(ws, mnt):
    """More of them than a queue has entries, all on one CPU, which goes on with other requests. Their
    requests may be in the kernel's queue when entries are added."""
    write(mnt / "f", b"0")
    os.mkdir(mnt / "d")
    fd = os.open(mnt / "f", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    before = thread_names(mnt.pid()).count("fuse-ring")
    crowd = [
        ws.python(WAITER, mnt / "f", str(CPUS[0]), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) for _ in range(80)
    ]
    for p in crowd:
        assert p.stdout.readline() == b"up\n"
    wait_until(
        lambda: thread_names(mnt.pid()).count("lock-wait") == len(crowd), 30 * SLOW, "everybody to wait"
    )
    assert thread_names(mnt.pid()).count("fuse-ring") > before
    ws.run("taskset", "-c", str(CPUS[0]), "ls", "-l", mnt / "d", timeout=20 * SLOW, check=True)
    os.close(fd)
    for p in crowd:
        assert p.wait(60 * SLOW) == 0


@pytest.mark.parametrize("forks_fail, more", [(0, 24), (2, 2)])
def test_requests_older_than_their_entries(ws, volume, forks_fail, more):
    """More requests than a queue has entries, all in the kernel before one is received. Those that are received
    wait for a lock, and the kernel does not look at the others when entries are added. A child makes it look at one,
    and soon another at the next; when none can be started, it is tried again."""
    mnt = volume.mount("max-threads=4", env=failing_forks(ws, "fuse-watch", forks_fail))
    write(mnt / "f", b"0")
    fd = os.open(mnt / "f", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    pid = mnt.pid()
    n = thread_names(pid).count("fuse-ring") // os.sysconf("SC_NPROCESSORS_CONF") + more
    crowd = [
        ws.python(WAITER, mnt / "f", str(CPUS[0]), stdout=subprocess.PIPE, stdin=subprocess.PIPE) for _ in range(n)
    ]
    for p in crowd:
        assert p.stdout.readline() == b"up\n"
    stop_process(pid)
    try:
        for p in crowd:
            p.stdin.close()
        wait_until(lambda: all(map(is_in_flock, crowd)), 30 * SLOW, "everybody to ask for the lock")
    finally:
        os.kill(pid, signal.SIGCONT)
    begun = time.monotonic()
    wait_until(lambda: thread_names(pid).count("lock-wait") == len(crowd), 60, "everybody to wait")
    # the pauses before a child end at 4 s
    assert time.monotonic() - begun < max(2 * more, 20 * SLOW)
    os.close(fd)
    for p in crowd:
        assert p.wait(60 * SLOW) == 0


def test_stop_under_load(ws, volume):
    """Programs get an error when the mount ends, and the process ends."""
    volume.check_options = {"leaks": "warn", "unmounted": True}
    mnt = volume.mount()
    os.mkdir(mnt / "d")
    crowd = [ws.python(LOAD, mnt / "d" / str(i), stdout=subprocess.PIPE) for i in range(6)]
    wait_until(lambda: mnt.stat("requests_total") > 300, 30, "the load")
    mnt.terminate()
    for p in crowd:
        # ECANCELED: its request had reached an entry whose thread had ended
        assert int(p.stdout.readline()) in ENDS
        p.wait(20 * SLOW)


@pytest.mark.parametrize("times", [3])
def test_death_under_load(ws, volume, times):
    """Without a supervisor a death ends the mount: programs get errors, and none of them hangs."""
    volume.check_options = {"leaks": "warn", "unmounted": False}
    for _ in range(times):
        mnt = volume.mount()
        os.makedirs(mnt / "d", exist_ok=True)
        crowd = [ws.python(LOAD, mnt / "d" / str(i), stdout=subprocess.PIPE) for i in range(6)]
        wait_until(lambda m=mnt: m.stat("requests_total") > 300, 30, "the load")
        pid = mnt.pid()
        mnt.kill9()
        assert not alive(pid)
        for p in crowd:
            assert p.stdout.readline()
            p.wait(20 * SLOW)
