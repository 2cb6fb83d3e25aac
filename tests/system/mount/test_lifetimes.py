# SPDX-License-Identifier: Apache-2.0
"""Descriptors and mappings that outlive their program, the mount's process and the mount itself, and a
mount in a container that has nothing. A failure here is data that a program was told is stored."""

import os
import pathlib
import signal
import subprocess

import pytest

from cachefs import SLOW, children, tool, wait_until
from syscalls import data, read
from test_takeover import event  # noqa: F401  (a fixture)

# Prints a line when it has everything and when it has changed everything; goes on with lines of stdin.
HOLDS = """
import ctypes, mmap, os, socket, sys, time
ours, childs = socket.socketpair(socket.AF_UNIX)
child = os.fork()
if child == 0:
    fd = os.open(sys.argv[1] + "/passed", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"by the child")
    socket.send_fds(childs, [b"x"], [fd])
    os._exit(0)
os.waitpid(child, 0)
fd = socket.recv_fds(ours, 1, 1)[1][0]
child = os.fork()
if child == 0:
    time.sleep(1000)
got = ctypes.CDLL(None).syscall(438, os.pidfd_open(child), fd, 0)  # pidfd_getfd(2)
os.kill(child, 9)
os.waitpid(child, 0)
other = os.open(sys.argv[1] + "/mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(other, 8192)
mapped = mmap.mmap(other, 8192)
os.fsync(got)
mapped[:5] = b"dirty"
print("ready", flush=True)
for word in sys.stdin:
    word = word.strip().encode()
    assert os.write(got, word) == len(word)
    os.fsync(fd)
    mapped[4096:4096 + len(word)] = word
    mapped.flush()
    print(os.pread(fd, 100, 0).decode(), os.pread(other, 5, 0).decode(), os.pread(other, len(word), 4096).decode(), flush=True)
"""


def say(program, word):
    program.stdin.write(word + "\n")
    program.stdin.flush()
    return program.stdout.readline().split()


@pytest.mark.deadline(180)
def test_descriptors_that_were_passed_on(ws, volume, event):  # noqa: F811
    """Over a socket, and by pidfd_getfd, with a mapping whose page is dirty; detached in the end."""
    mnt = volume.mount()
    program = ws.python(HOLDS, mnt.path, stdin=-1, stdout=-1, text=True)
    assert program.stdout.readline() == "ready\n"
    event(ws, volume, mnt)
    assert say(program, "-1") == ["by", "the", "child-1", "dirty", "-1"]
    ws.run("umount", "-l", mnt.path, check=True)
    assert not mnt.mounted() and len(ws.processes()) >= 3
    assert say(program, "-two") == ["by", "the", "child-1-two", "dirty", "-two"]
    program.communicate(timeout=30 * SLOW)
    wait_until(lambda: not ws.processes(), 60, "the end of the mount")
    mnt.ended = True
    mnt = volume.mount(path=mnt.path)
    assert read(mnt / "passed") == b"by the child-1-two"
    assert read(mnt / "mapped") == (b"dirty".ljust(4096, b"\0") + b"-two").ljust(8192, b"\0")


# Process 1 of its namespace, without /proc; nothing but the folder of the volume can be written.
BARE = """
mount --bind "$1" "$1"
mount --bind /dev /dev
for d in /run /proc; do mount -t tmpfs -o ro none $d; done
mount -o remount,bind,ro /
exec "$2" mount --foreground "$3" "$1/mnt"
"""


def one_child(pid):
    """None while there are others, dead ones that were not reaped too."""
    found = pathlib.Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split()
    return [int(found[0])] if len(found) == 1 else None


@pytest.mark.deadline(120)
def test_bare_container(ws, volume):
    """Its process reaps children that are not its own, survives the death of the other, and stores all at its
    end."""
    ws.path("mnt").mkdir()
    with open(ws.path("log"), "wb") as log:
        init = ws.popen(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", BARE, "sh",
             ws.dir, tool("cachefs"), volume.url], stdout=log, stderr=log,
        )

    def inside(*argv):
        return subprocess.run(
            ["nsenter", "--mount", "--pid", "--target", str(first), *map(str, argv)], timeout=60 * SLOW,
            stdout=-1, check=True,
        ).stdout

    wait_until(lambda: "mounted: volume=vol" in ws.path("log").read_text(), 30, "the mount")
    first = children(init.pid)[0]
    content = data(3_000_000)
    ws.path("content").write_bytes(content)
    inside("cp", ws.path("content"), ws.path("mnt") / "f")
    inside("sync", ws.path("mnt") / "f")
    inside("sh", "-c", "(exec 2>&- >&-; exec sleep 0.1) &")  # becomes a child of process 1
    (worker,) = wait_until(lambda: one_child(first), 20, "the end of that program")
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: "another process serves" in ws.path("log").read_text(), 30, "the next process")
    assert inside("cat", ws.path("mnt") / "f") == content
    inside("cp", ws.path("content"), ws.path("mnt") / "g")
    assert one_child(first) not in (None, [worker])
    os.kill(first, signal.SIGTERM)
    assert init.wait(60 * SLOW) == 0, ws.path("log").read_text()
    assert volume.status()["sessions"] == []
    mnt = volume.mount()
    assert read(mnt / "f") == content == read(mnt / "g")


def test_a_number_in_use_again_is_not_killed(ws, volume):
    """Of the tests themselves: a mount that has ended, whose process's number is that of a stranger with children."""
    mnt = volume.mount()
    mnt.umount()
    ended = mnt.process.pid
    stranger = ws.popen(["sh", "-c", "sleep 1000 & wait"])
    wait_until(lambda: children(stranger.pid), 10, "the child")
    mnt.process.pid = stranger.pid
    with pytest.raises(ProcessLookupError):
        mnt.pid()
    mnt.kill_all()
    mnt.terminate()
    mnt.process.pid = ended
    assert stranger.poll() is None
    (child,) = children(stranger.pid)
    os.kill(child, signal.SIGKILL)
    stranger.wait(10)
