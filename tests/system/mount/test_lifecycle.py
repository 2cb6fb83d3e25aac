# SPDX-License-Identifier: Apache-2.0
"""Start and end of a mount. A failure here loses the last seconds of work at shutdown, or leaves
processes and dead mount points behind."""

import os
import signal
import subprocess

import pytest

from cachefs import SLOW, mountinfo, tool, wait_until
from syscalls import data, fails, read, write


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_signal_flushes_and_ends(volume, sig):
    mnt = volume.mount()
    content = data(9_000_000)
    fd = os.open(mnt / "f", os.O_CREAT | os.O_WRONLY)
    os.write(fd, content)  # dirty and open
    try:
        mnt.terminate(sig)
    finally:
        try:
            os.close(fd)
        except OSError:
            pass
    assert volume.status()["sessions"] == []
    mnt = volume.mount(path=mnt.path)
    assert read(mnt / "f") == content


@pytest.mark.parametrize(
    "command", [["cachefs", "umount"], ["/bin/umount"], ["/bin/fusermount3", "-u"]]
)
def test_umount_ends_the_daemon(volume, ws, command):
    mnt = volume.mount(daemon=True)
    write(mnt / "f", b"x")
    assert len(ws.processes()) == 2  # supervisor and worker
    assert len(volume.status()["sessions"]) == 1
    mnt.umount(command + [str(mnt.path)])
    wait_until(lambda: not ws.processes(), 30, "the end of the daemon")
    assert volume.status()["sessions"] == []


def test_umount_returns_when_all_is_flushed(volume, ws):
    """umount && poweroff."""
    mnt = volume.mount(daemon=True)
    content = data(30_000_000)
    write(mnt / "f", content)
    ws.run("cachefs", "umount", mnt.path, check=True)
    mnt.ended = True
    assert not ws.processes()
    assert volume.verify() == []
    mnt = volume.mount()
    assert read(mnt / "f") == content


def test_umount_sees_the_end_of_a_process_that_nobody_reaps(volume, ws):
    """In a container the mount's parent is often a program that never calls wait(2)."""
    mnt = volume.mount(reap=False)
    assert ws.run("cachefs", "umount", mnt.path, timeout=20).returncode == 0


def test_umount_of_a_busy_mount(volume, ws):
    mnt = volume.mount()
    f = open(mnt / "f", "wb", buffering=0)
    f.write(b"one")
    r = ws.run("cachefs", "umount", mnt.path)
    assert r.returncode != 0 and "busy" in r.stderr
    f.write(b"two")
    assert read(mnt / "f") == b"onetwo"
    f.close()


def test_forced_umount_of_a_busy_mount(volume, ws):
    mnt = volume.mount()
    f = open(mnt / "f", "wb", buffering=0)
    f.write(b"one")
    assert ws.run(
        "cachefs", "umount", mnt.path, "--force", "--timeout", "1", timeout=60
    ).returncode in (0, 32)
    assert not mnt.mounted()
    try:
        f.write(b"two")
        f.close()
    except OSError:
        pass
    mnt.wait_end()
    mnt = volume.mount()
    assert read(mnt / "f").startswith(b"one")


def test_foreground_stays_and_ends_with_umount(volume):
    mnt = volume.mount()
    assert mnt.process.poll() is None
    mnt.umount(["/bin/umount", str(mnt.path)])
    assert mnt.process.returncode == 0


def test_idle_mount_is_left_alone(volume):
    """Nothing in the log of a mount that nobody uses and that is healthy."""
    mnt = volume.mount("heartbeat=1")
    start = volume.sql("SELECT expire FROM jfs_session2")[0][0]
    wait_until(
        lambda: volume.sql("SELECT expire FROM jfs_session2")[0][0] > start, 15, "a heartbeat"
    )
    os.stat(mnt.path)


def test_session_that_vanished_is_replaced(volume):
    mnt = volume.mount("heartbeat=1")
    mnt.allow("another client has ended the session")
    volume.sql("DELETE FROM jfs_session2")
    wait_until(lambda: (2,) in volume.sql("SELECT sid FROM jfs_session2"), 15, "another session")
    mnt.umount()
    assert volume.sql("SELECT * FROM jfs_session2") == []


def test_mount_is_visible_to_other_users(volume):
    from syscalls import user

    mnt = volume.mount()
    write(mnt / "f", b"x")
    os.chmod(mnt / "f", 0o644)
    with user(1001, 1001):
        assert read(mnt / "f") == b"x"


def test_read_ahead_is_set(volume):
    mnt = volume.mount()
    dev = os.stat(mnt.path).st_dev
    setting = "/sys/class/bdi/%d:%d/read_ahead_kb" % (os.major(dev), os.minor(dev))
    wait_until(lambda: 512 <= int(open(setting).read()) <= 4096, 10, "larger read-ahead")
    assert mountinfo()[str(mnt.path)][1] == "fuse.cachefs"


def test_mounted_and_unmounted_at_once(ws, volume):
    """A new mount has no other user that its end would have to wait for."""
    point = ws.path("short")
    point.mkdir()
    for _ in range(30):
        ws.run("mount.cachefs", volume.url, point, check=True)
        here = ws.processes()
        ws.run("umount", point, check=True)
        assert len(here) == 2, here
        wait_until(lambda: not ws.processes(), 20, "the end of the mount")


def test_two_mounts_of_one_volume_end_apart(volume):
    a, b = volume.mount(), volume.mount()
    assert len(volume.status()["sessions"]) == 2
    write(a / "f", b"x")
    a.umount()
    assert read(b / "f") == b"x"
    assert len(volume.status()["sessions"]) == 1


def test_interrupted_program_does_not_hang(ws, volume):
    """Ctrl-C on a program that sits in the mount."""
    mnt = volume.mount()
    p = subprocess.Popen(
        ["/bin/dd", "if=/dev/zero", "of=%s" % (mnt / "f"), "bs=1M", "count=100000"],
        stderr=subprocess.DEVNULL,
        env=ws.env(),
    )
    wait_until(
        lambda: os.path.exists(mnt / "f") and os.stat(mnt / "f").st_size > 10 << 20, 30, "some data"
    )
    p.send_signal(signal.SIGINT)
    assert p.wait(20 * SLOW) != 0
    os.unlink(mnt / "f")
    with fails("ENOENT"):
        os.stat(mnt / "f")


def test_limit_of_file_sizes(ws, volume):
    """As of a shell with `ulimit -f`: the command says why it cannot mount, where the kernel would kill it."""
    ws.path("mnt").mkdir()
    r = ws.run("prlimit", "--fsize=1000000", tool("cachefs"), "mount", volume.url, ws.path("mnt"))
    assert r.returncode > 0 and "File too large" in r.stderr
