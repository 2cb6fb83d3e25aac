# SPDX-License-Identifier: Apache-2.0
"""Commands on a mount whose processes are stopped: each ends, and says why. A user who looks after a mount that
hangs would else have one more program that hangs."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from cachefs import SLOW, alive, children, missing, patience, stop_process, tool, wait_until
from s3volume import S3Volume
from syscalls import data, write

COMMANDS = {
    "info": ["info", "{m}/dir/f"],
    "info of the root": ["info", "{m}"],
    "info by a link": ["info", "{link}/dir/f"],
    "summary": ["summary", "{m}/dir"],
    "rmr": ["rmr", "{m}/dir"],
    "rmr past the trash": ["rmr", "--skip-trash", "{m}/dir"],
    "rmr --dry-run": ["rmr", "--dry-run", "{m}/dir"],
    "clone": ["clone", "{m}/dir", "{m}/copy"],
    "compact": ["compact", "{m}/dir", "{m}/dir/f"],
    "warmup": ["warmup", "{m}/dir"],
    "warmup of a list": ["warmup", "-f", "{list}"],
    "cache map": ["cache", "map", "{m}/dir/f"],
    "stats": ["stats", "{m}"],
    "stats by a path inside": ["stats", "{m}/dir/sub"],
    "profile": ["profile", "{m}"],
    "profile once": ["profile", "--count", "1", "{m}/dir/sub"],
    "debug": ["debug", "{m}/dir/sub", "{d}/debug.tar.gz"],
    "bench": ["bench", "--big-size", "1M", "{m}/dir"],
    "mdtest": ["mdtest", "{m}/dir"],
}  # fmt: skip
GOOD = {"debug"}  # ends well, but tells


@pytest.fixture
def tree(ws, volume):
    # the kernel knows nothing that it would answer by itself
    mnt = volume.mount("attr-cache=0,entry-cache=0,dir-entry-cache=0")
    (mnt / "dir/sub").mkdir(parents=True)
    write(mnt / "dir/f", data(1000))
    ws.path("link").symlink_to(mnt.path)
    ws.path("list").write_text("".join("%s/dir/sub/%d\n" % (mnt, i) for i in range(1000)))
    return mnt


def start(ws, mnt, argv):
    argv = [a.format(m=mnt, d=ws.dir, link=ws.path("link"), list=ws.path("list")) for a in argv]
    return ws.popen([tool("cachefs"), *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Stopped:
    """The mount's worker, and its supervisor when asked, are stopped; they go on at the end."""

    def __init__(self, mnt, which):
        self.pids = [mnt.process.pid] * (which == "both") + [mnt.pid()]

    def __enter__(self):
        for pid in self.pids:
            stop_process(pid)
        return self.pids

    def __exit__(self, *_):
        for pid in reversed(self.pids):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.deadline(240)
@pytest.mark.parametrize("which", ["worker", "both"])
def test_each_command_ends_and_says_why(ws, tree, which):
    """All at once, because each waits for its deadline."""
    with Stopped(tree, which) as pids:
        begun = time.monotonic()
        running = {name: start(ws, tree, argv) for name, argv in COMMANDS.items()}
        hint = "kill -CONT %s`" % " ".join(map(str, pids))
        bad = []
        for name, p in running.items():
            try:
                out, _ = p.communicate(timeout=max(1, begun + 30 * patience() - time.monotonic()))
            except subprocess.TimeoutExpired:
                bad.append("%s: does not end" % name)
                continue
            said = re.findall(r"the mount at (\S+) does not answer: .*", out)
            if p.returncode != (0 if name in GOOD else 2) or said != [str(tree)] or hint not in out:
                bad.append("%s: exit %d\n%s" % (name, p.returncode, out))
        # commands of the volume do not need the mount
        ws.run("cachefs", "status", tree.volume.url, check=True)
        ws.run("cachefs", "doctor", tree.volume.url)
    assert not bad, "\n".join(bad)
    assert sorted(os.listdir(tree)) == ["dir"] and os.listdir(tree / "dir") in (["f", "sub"], ["sub", "f"])


@pytest.mark.deadline(240)
@pytest.mark.parametrize("which", ["worker", "both"])
def test_umount_ends(ws, tree, which):
    with Stopped(tree, which) as pids:
        r = ws.run("cachefs", "umount", tree, timeout=30)
        assert r.returncode == 2 and not tree.mounted(), r.stderr
        assert "the mount at %s does not answer" % tree in r.stderr
        assert "process %d still flushes data, and is stopped; `kill -CONT %d`" % (pids[-1], pids[-1]) in r.stderr
    tree.wait_end(30)


@pytest.mark.deadline(240)
@pytest.mark.parametrize("which", ["worker", "both"])
def test_mount_ends(ws, tree, which):
    """Below the silent mount, and in its place (an upgrade): it stays as it is."""
    url = ws.volume("other").url
    with Stopped(tree, which) as pids:
        below = start(ws, tree, ["mount", url, "{m}/dir/sub"])
        above = start(ws, tree, ["mount", tree.volume.url, "{m}", "-o", "mount_timeout=5"])
        out, _ = below.communicate(timeout=30 * SLOW)
        assert below.returncode == 32 and "the mount at %s does not answer" % tree in out, out
        out, _ = above.communicate(timeout=40 * SLOW)
        assert above.returncode == 32 and out.strip(), out
        assert tree.mounted()
    assert os.listdir(tree / "dir/sub") == [] and not tree.process.poll()


class Frozen:
    """A group with these processes. The file and the word that thaw it differ with the version. The kernel freezes
    later than it is told: a thread that still ran would take a request, and nothing could end its caller."""

    def __init__(self, ws, pids):
        old = pathlib.Path("/sys/fs/cgroup/freezer")
        self.dir = (old if old.is_dir() else old.parent) / ws.dir.name
        name, self.on, self.off = ("freezer.state", "FROZEN", "THAWED") if old.is_dir() else ("cgroup.freeze", "1", "0")
        self.file, self.inner, self.pids = self.dir / name, self.dir / "inner", pids
        self.said, self.done = (self.file, "FROZEN\n") if old.is_dir() else (self.dir / "cgroup.events", "frozen 1\n")

    def __enter__(self):
        try:
            self.inner.mkdir(parents=True)
            for pid in self.pids:
                (self.inner / "cgroup.procs").write_text(str(pid))
            self.file.write_text(self.on)
        except OSError as e:
            missing("no control group of its own: %s" % e)
        wait_until(lambda: self.done in self.said.read_text(), what="the freeze of the group")
        return str(self.dir)

    def __exit__(self, *_):
        self.file.write_text(self.off)
        for pid in self.pids:
            (self.dir.parent / "cgroup.procs").write_text(str(pid))
        self.inner.rmdir()
        self.dir.rmdir()


def test_frozen_mount(ws, tree):
    """By a paused container, say. The group above the mount's own is frozen."""
    with Frozen(ws, [tree.process.pid, tree.pid()]) as group:
        r = ws.run("cachefs", "info", tree / "dir/f", timeout=30 * SLOW)
    assert r.returncode == 2
    assert "process %d is frozen with the control group %s, " % (tree.pid(), group) in r.stderr
    assert os.listdir(tree / "dir/sub") == []


def test_umount_of_a_frozen_mount(ws, tree):
    """It does not wait for the 300 seconds that a mount has for its data."""
    with Frozen(ws, [tree.process.pid, tree.pid()]) as group:
        r = ws.run("cachefs", "umount", tree, timeout=30 * SLOW)
        assert r.returncode == 2 and not tree.mounted(), r.stderr
        assert "process %d still flushes data, and is frozen with the control group %s, " % (tree.pid(), group) in r.stderr
    tree.wait_end(30)


def waits_in_a_request(p):
    """A child of the command does."""
    for pid in children(p.pid):
        with contextlib.suppress(OSError), open("/proc/%d/stack" % pid) as f:
            if "fuse" in f.read():
                return True
    return False


@pytest.mark.deadline(240)
def test_ctrl_c_ends_each_at_once(ws, tree):
    with Stopped(tree, "both"):
        running = {name: start(ws, tree, argv) for name, argv in COMMANDS.items() if name != "debug"}
        running["umount"] = start(ws, tree, ["umount", "{m}"])
        for p in running.values():
            wait_until(lambda p=p: waits_in_a_request(p) or p.poll() is not None, 30, "its request")
        for p in running.values():
            p.send_signal(signal.SIGINT)
        begun = time.monotonic()
        for name, p in running.items():
            p.communicate(timeout=max(1, begun + 5 * patience() - time.monotonic()))
            assert p.returncode != 0 or name.startswith(("stats", "profile")), name


def catches_interrupts(p):
    with open("/proc/%d/status" % p.pid) as f:
        caught = int(re.search(r"^SigCgt:\s+(\w+)", f.read(), re.M)[1], 16)
    return caught & (1 << (signal.SIGINT - 1))


@pytest.mark.deadline(180)
def test_ctrl_c_of_a_flush(ws, s3, via):
    """umount gives the mount its schedule of uploads back; one that does not answer must not hold that up."""
    volume = S3Volume(ws, s3, url=via.url + "/bucket")
    opts = "writeback,put-timeout=5,free-space-ratio=0,cache-dir=%s" % ws.path("cache")
    mnt = volume.mount(opts, env=s3.keys)
    mnt.allow("cannot be uploaded|object store")
    via.add("PUT", "chunks", status=503)
    write(mnt / "f", data(1000), sync=True)
    wait_until(lambda: mnt.stat("staging_blocks"), 30, "a staged block")
    p = start(ws, mnt, ["umount", "{m}"])
    wait_until(lambda: catches_interrupts(p), 30, "its flush")
    with Stopped(mnt, "both"):
        wait_until(lambda: children(p.pid), 30, "its question")
        begun = time.monotonic()
        p.send_signal(signal.SIGINT)
        out, _ = p.communicate(timeout=60 * SLOW)
        assert time.monotonic() - begun < 8 * SLOW
    assert p.returncode == 8 and "stays mounted" in out and mnt.mounted(), out
    via.clear()
    wait_until(lambda: mnt.stat("staging_blocks") == 0, 90, "the upload")


@pytest.mark.deadline(300)
def test_freeze_in_the_middle(ws, mnt):
    """The worker has taken requests of the command, whose threads nothing can end; the output of the command ends
    all the same. A mount may be silent for a while, as during an upgrade."""
    (mnt / "dir").mkdir()
    # the time of a request that the stop meets within a transaction passes meanwhile
    mnt.allow("metadata engine does not answer, the request fails with EIO")
    p = start(ws, mnt, ["bench", "--threads", "16", "--big-size", "0", "--small-files", "100000", "{m}/dir"])
    wait_until(lambda: mnt.stat("requests_total") > 500, 30, "its work")
    wait_until(lambda: len(children(p.pid)) == 2, 30, "the process that asks the mount")
    with Stopped(mnt, "both"):
        begun = time.monotonic()
        time.sleep(20)  # a silence that is no reason to give up
        assert p.poll() is None
        out, _ = p.communicate(timeout=100 * SLOW)
        assert 50 < time.monotonic() - begun
        assert p.returncode == 2 and "the mount at %s does not answer" % mnt in out
    wait_until(lambda: not any(map(alive, children(p.pid))), 30, "the end of its processes")


@pytest.mark.deadline(120)
def test_a_pause_ends_no_command(ws, tree):
    """A mount that goes on in time is no reason to give up."""
    with Stopped(tree, "both"):
        p = start(ws, tree, ["summary", "{m}/dir"])
        time.sleep(4)  # the pause
    out, _ = p.communicate(timeout=30 * SLOW)
    assert p.returncode == 0 and "dir" in out
