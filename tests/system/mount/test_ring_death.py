# SPDX-License-Identifier: Apache-2.0
"""Why a mount with a supervisor has no ring: what becomes of a request that the kernel has given to a
process which dies, while another one keeps the connection. If these fail, the kernel has learnt to hand
such requests over, and a mount with a supervisor could have a ring."""

import ctypes
import errno
import os
import select
import struct
import subprocess

import pytest

from cachefs import SLOW, stop_process, wait_until
from ring import need_ring, switched
from syscalls import write

PIDFD_GETFD = 438
GETATTR, NOTIFY_RESEND = 3, 7
CALLER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
print("up", flush=True)
sys.stdin.readline()
try:
    os.fstat(fd)
except OSError as e:
    print(e.errno, flush=True)
"""


def connection_of(pid):
    """The mount's descriptor of /dev/fuse, as its supervisor would have it."""
    fds = "/proc/%d/fd/" % pid
    fd = next(int(n) for n in os.listdir(fds) if os.readlink(fds + n) == "/dev/fuse")
    process = os.pidfd_open(pid)
    got = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, fd, 0)
    os.close(process)
    assert got >= 0, os.strerror(ctypes.get_errno())
    return got


def stop(pid):
    """Requests are given to the process, and none of its threads takes one."""
    stop_process(pid)
    tasks = "/proc/%d/task/" % pid

    def stopped():
        return all(open(tasks + t + "/stat").read().rpartition(") ")[2][0] == "T" for t in os.listdir(tasks))

    wait_until(stopped, 20, "every thread to stop")


def resend(fd):
    os.write(fd, struct.pack("=IiQ", 16, NOTIFY_RESEND, 0))


def error_of(caller, timeout):
    """None: it waits. Its exit makes another request, which nobody answers here."""
    ready, _, _ = select.select([caller.stdout], [], [], timeout)
    return int(caller.stdout.readline()) if ready else None


def next_request(fd, opcode, timeout):
    """Its number; None: the kernel hands none over in that time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while poll.poll(timeout * 1000):
        _, got, unique = struct.unpack_from("=IIQ", os.read(fd, 2 << 20))
        if got == opcode:
            return unique
    return None


@pytest.mark.parametrize("channel", ["ring", "device"])
def test_request_given_to_a_process_that_dies(ws, volume, channel):
    """Through the device the next process gets it. Through a ring nobody does: its caller gets an error from
    the kernel, or waits (Linux before 6.18) until the connection ends."""
    need_ring()
    volume.check_options = {"leaks": "warn", "unmounted": False}
    with switched("Y"):
        mnt = volume.mount("supervise=false,attr-cache=0,io_uring=" + ("on" if channel == "ring" else "off"))
    assert mnt.stat("fuse_io_uring") == (channel == "ring")
    write(mnt / "f", b"x")
    caller = ws.python(CALLER, mnt / "f", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert caller.stdout.readline() == b"up\n"
    pid = mnt.pid()
    fd = connection_of(pid)
    try:
        stop(pid)
        caller.stdin.write(b"\n")
        caller.stdin.flush()
        with open("/proc/%d/wchan" % caller.pid) as wchan:
            wait_until(lambda: wchan.seek(0) == 0 and "request_wait" in wchan.read(), 20, "the request")
        assert error_of(caller, 0) is None
        mnt.kill_all()
        resend(fd)
        if channel == "device":
            unique = next_request(fd, GETATTR, 20 * SLOW)
            assert unique and error_of(caller, 0) is None
            os.write(fd, struct.pack("=IiQ", 16, -errno.EXDEV, unique))
            assert error_of(caller, 20 * SLOW) == errno.EXDEV
        else:
            assert next_request(fd, GETATTR, 2) is None
            assert error_of(caller, 0) in (errno.ECANCELED, None)
    finally:
        os.close(fd)
    caller.wait(20 * SLOW)
    mnt.kill9()
