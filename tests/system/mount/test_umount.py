# SPDX-License-Identifier: Apache-2.0
"""What `cachefs umount` says of a mount that does not end. A failure here is an administrator who
waits and does not know for whom."""

import os
import re
import signal

import pytest

import servers
from cachefs import SLOW, Volume, alive, children, mountinfo, stop_process, tool, wait_until
from syscalls import read, write


def test_a_copied_mount_namespace_keeps_the_mount(ws, volume):
    """As that of a container which was started while it was mounted."""
    mnt = volume.mount()
    write(mnt / "f", b"x")
    holder = ws.popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 600"], stdout=-1)
    holder.stdout.readline()
    r = ws.run("cachefs", "umount", "--timeout", "4s", mnt.path)
    assert r.returncode == 2
    found = re.findall(r"still mounted at (\S+) in the mount namespace of process (\d+) \(", r.stderr)
    assert found == [(str(mnt), str(holder.pid))], r.stderr
    assert "unmounted here, but process %d goes on for those" % mnt.process.pid in r.stderr
    assert not mnt.mounted() and alive(mnt.process.pid)
    assert read("/proc/%d/root%s/f" % (holder.pid, mnt)) == b"x"
    holder.kill()
    wait_until(lambda: not alive(mnt.process.pid), 30, "the end of the mount")
    mnt.ended = True


def test_a_process_that_ends_soon_is_no_complaint(ws, volume):
    mnt = volume.mount()
    write(mnt / "f", os.urandom(1_000_000))
    r = ws.run("cachefs", "umount", mnt.path)
    assert (r.returncode, r.stderr) == (0, "")
    assert not alive(mnt.process.pid)
    mnt.ended = True


@pytest.mark.deadline(180)
@pytest.mark.module("redis")
def test_holders_while_the_metadata_is_away(ws):
    """A program inside a request is named, and the command's own question does not hold the mount."""
    server = servers.started(ws, servers.Redis())
    vol = Volume(ws, url=server.database().url)
    vol.check_options = None
    mnt = vol.mount("attr-cache=0,entry-cache=0,dir-entry-cache=0,stop-timeout=2s")
    mnt.allow(".")
    stop_process(server.process.pid)
    caller = ws.popen(["/bin/ls", "-l", mnt.path], stdout=-3, stderr=-3)
    wait_until(lambda: "request_wait_answer" in read("/proc/%d/wchan" % caller.pid).decode(), 30, "the request")
    r = ws.run("cachefs", "umount", mnt.path)
    assert r.returncode == 2 and "is busy" in r.stderr
    held = re.findall(r"held by process (\d+) \((\w+)\): waits for a reply from (\S+)", r.stderr)
    assert held == [(str(caller.pid), "ls", str(mnt))], r.stderr
    caller.kill()
    caller.wait(30)
    pid = mnt.pid()
    r = ws.run("cachefs", "umount", "--timeout", "4s", mnt.path)
    assert "busy" not in r.stderr and not mnt.mounted(), r.stderr
    # it has found the process that did not answer, and waits for it
    assert r.returncode == 0 or "process %d still flushes data" % pid in r.stderr, r.stderr
    server.process.send_signal(signal.SIGCONT)
    wait_until(lambda: not alive(mnt.process.pid), 60, "the end of the mount")
    mnt.ended = True


@pytest.mark.deadline(120)
def test_process_that_does_not_answer_is_found(ws, volume):
    """By its mount, not by its words: another one in a namespace of its own has the same mount point."""
    point = ws.path("mnt")
    point.mkdir()
    ws.path("link").symlink_to(point.parent)
    other = ws.volume("other")
    # Its namespace keeps no mount of another test.
    alone = 'umount -a -l -t fuse.cachefs; exec "$@"'
    decoy = ws.popen(
        ["unshare", "--mount", "sh", "-c", alone, "sh", tool("cachefs"), "mount", "--foreground", other.url, point]
    )
    wait_until(lambda: other.status()["sessions"] and children(decoy.pid), 30, "the other mount")
    mnt = volume.mount(path=ws.path("link") / "mnt", wait=False)
    mnt.path = point
    mnt.wait_ready()
    worker = mnt.pid()
    stop_process(worker)
    try:
        r = ws.run("cachefs", "umount", "--timeout", "1s", point, timeout=60)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert r.returncode == 2 and "process %d still flushes data" % worker in r.stderr, r.stderr
    mnt.wait_end(30)
    decoy.terminate()
    assert decoy.wait(30 * SLOW) == 0


@pytest.mark.deadline(180)
@pytest.mark.module("redis")
def test_a_process_that_has_lost_its_mount_is_not_taken_for_another(ws, volume):
    """The kernel gives the number of a device again. A read-only mount is found by it."""
    server = servers.started(ws, servers.Redis())
    vol = Volume(ws, "away", url=server.database().url)
    vol.check_options = None

    def resume():
        server.process.send_signal(signal.SIGCONT)
        wait_until(lambda: not alive(old.process.pid), 60, "the end of the mount")
        old.ended = True

    for _ in range(10):  # another test's mount may be faster
        old = vol.mount("stop-timeout=60s,io-timeout=10s")
        old.allow(".")
        device = mountinfo()[str(old)][0]
        stop_process(server.process.pid)
        ws.run("umount", old.path, check=True)
        mnt = volume.mount("ro")
        if mountinfo()[str(mnt)][0] == device:
            break
        mnt.umount()
        resume()
    assert mountinfo()[str(mnt)][0] == device and alive(old.process.pid)
    r = ws.run("cachefs", "umount", "--timeout", "4s", mnt.path)
    assert (r.returncode, r.stderr) == (0, "")
    assert not alive(mnt.process.pid) and alive(old.process.pid)
    mnt.ended = True
    resume()
