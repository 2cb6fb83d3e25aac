# SPDX-License-Identifier: Apache-2.0
"""Mounts of volumes in S3 whose server is slow, away or unreliable: data waits and is not lost."""

import os
import re
import signal
import subprocess
import time

import pytest

from cachefs import SLOW, stop_process, wait_until
from s3volume import S3Volume
from syscalls import data, read, write
from test_s3 import FAULTS


def test_mount_limits(ws, s3):
    """upload-limit and download-limit hold within 5 %."""
    vol = S3Volume(ws, s3, block_size="256K")
    mnt = vol.mount("upload-limit=32,download-limit=64")  # 4 and 8 MB/s
    content = data(16_000_000)

    def held(seconds, action):
        """No try is faster, and one that a busy machine does not hold up takes no longer."""

        def once():
            nonlocal mnt
            mnt = mnt.remount()
            start = time.monotonic()
            action(mnt / "f")
            took = time.monotonic() - start
            assert took >= seconds * 0.95
            return took <= seconds * 1.05 + 0.5

        wait_until(once, 10 * seconds, "a transfer of %d s" % seconds)

    def fetch(path):
        assert read(path) == content

    held(4, lambda path: write(path, content, sync=True))
    held(2, fetch)


def test_limits_of_the_setting(ws, s3):
    """A volume's own limit counts, unless the mount says otherwise."""
    vol = S3Volume(ws, s3, upload_limit=16, block_size="256K")
    for opts, size, least, most in (("", 4, 1.9, 20), ("upload-limit=0", 40, 0, 19)):
        content = data(size * 1_000_000)
        mnt = vol.mount(opts)
        start = time.monotonic()
        with open(mnt / "f", "wb", buffering=0) as f:
            f.write(content)
            os.fsync(f.fileno())
        took = time.monotonic() - start
        mnt.umount()
        assert least <= took <= most, (opts, took)


def test_changed_limits_reach_a_mount(ws, s3):
    """A limit is set, or taken away, beside a mount that moves gigabytes."""
    vol = S3Volume(ws, s3, block_size="256K")
    content = data(2_000_000)
    mnt = vol.mount()
    for i in range(12):
        write(mnt / ("old%d" % i), content, sync=True)
    mnt.umount()
    mnt = vol.mount("heartbeat=1")
    old = iter(range(12))

    def config(*args):
        ws.run("cachefs", "config", vol.url, *args, env=s3.keys, check=True)

    def took(action):
        start = time.monotonic()
        action()
        return time.monotonic() - start

    def store():
        write(mnt / "f", content, sync=True)

    def fetch():
        assert read(mnt / ("old%d" % next(old))) == content

    config("--upload-limit", "16", "--download-limit", "32")  # 2 and 4 MB/s: 1 and 0.5 s
    wait_until(lambda: took(store) > 0.9, 20, "the limit of uploads")
    assert took(fetch) > 0.45
    # Few transfers go at a time below so low a limit, and those that wait end with it.
    config("--upload-limit", "1")  # 16 s for each file
    little = content[:250_000]
    wait_until(lambda: took(lambda: write(mnt / "f", little, sync=True)) > 1.5, 20, "1 Mbit/s")
    ws.path("content").write_bytes(content)
    start = time.monotonic()
    # Processes of their own, as for WRITER below.
    copy = ["dd", "if=%s" % ws.path("content"), "bs=1M", "conv=fsync", "status=none"]
    copies = [subprocess.Popen(copy + ["of=%s" % (mnt / ("f%d" % i))]) for i in range(6)]
    ws.children.extend(copies)
    config("--upload-limit", "0", "--download-limit", "0")
    assert [p.wait(60) for p in copies] == [0] * 6
    assert time.monotonic() - start < 10 * SLOW  # it would be 96 s


def test_changed_keys_reach_a_mount(ws, s3):
    """Keys are rotated: mounts must go on with those of the setting, before the old ones end."""
    vol = S3Volume(ws, s3)
    mnt = vol.mount("heartbeat=1")
    write(mnt / "f", b"1", sync=True)
    s3.stop()
    s3.keys = {"ACCESS_KEY": "another", "SECRET_KEY": "quite+another/secret"}
    s3.start()
    ws.run("cachefs", "config", vol.url, "--keys", env=s3.keys, check=True)
    mnt.allow("cannot|could not|gave up|lost")

    def stored():
        try:
            write(mnt / "f", b"2", sync=True)
            return True
        except OSError:
            return False

    wait_until(stored, 20, "the changed keys")
    mnt = mnt.remount()
    assert read(mnt / "f") == b"2"
    assert s3.keys["SECRET_KEY"] not in mnt.log()


# Processes of their own: a child of this one would, as it starts, close and so flush our files.
READER = """
import sys
print("begins", flush=True)
assert open(sys.argv[1], "rb").read() == open(sys.argv[2], "rb").read()
"""
WRITER = """
import os, sys
print("begins", flush=True)
with open(sys.argv[1], "wb", buffering=0) as f:
    f.write(open(sys.argv[2], "rb").read())
    os.fsync(f.fileno())
"""


@pytest.mark.deadline(150)
def test_server_gone_for_a_while(ws, s3):
    """Writers and readers wait, and go on when it is back; nothing is lost."""
    vol = S3Volume(ws, s3)
    mnt = vol.mount()
    before = data(5_000_000, 1)
    ws.path("before").write_bytes(before)
    write(mnt / "before", before)
    mnt = mnt.remount()
    s3.stop()
    children = [
        ws.python(code, mnt / name, content, stdout=subprocess.PIPE)
        for code, name, content in (
            (READER, "before", ws.path("before")),
            (WRITER, "during", ws.path("before")),
        )
    ]
    for p in children:
        assert p.stdout.readline() == b"begins\n"
    wait_until(lambda: mnt.stat("object_retries_total") >= 10, 60, "tries of requests")
    assert [p.poll() for p in children] == [None, None]
    s3.start()
    assert [p.wait(60 * SLOW) for p in children] == [0, 0]
    assert read(mnt.remount() / "during") == before


def test_flaky_server(ws, s3, via):
    """One request in three fails in one way or another, and no user notices."""
    vol = S3Volume(ws, s3, block_size="256K")
    mnt = vol.mount("bucket=%s/bucket" % via.url)
    for what in (FAULTS["cut"], FAULTS["500"], FAULTS["cut-head"], FAULTS["wrong-byte"]):
        for i in range(12):
            via.add(skip=5 * i, times=1, **dict(what, **({"cut": 1000} if "cut" in what else {})))
    content = data(8_000_000, 3)
    write(mnt / "f", content)
    assert read(mnt / "f") == content
    mnt = mnt.remount()
    assert read(mnt / "f") == content
    mnt.umount()
    via.clear()


LATE = r"no success so far, .*: op=%s key=vol/\S+ tried_s=\S+ left_s=\d\S+ tries=\d+ error=E\w+ cause=."


def freeze(s3, via):
    stop_process(s3.process.pid)


def refuse(s3, via):
    via.add(".*", "chunks", status=503)


def thaw(s3, via):
    via.clear()
    s3.process.send_signal(signal.SIGCONT)


@pytest.mark.deadline(120)
@pytest.mark.parametrize("outage", [freeze, refuse])
def test_an_outage_is_told_of_while_calls_are_tried_again(ws, s3, via, outage):
    """One line after some seconds, however many requests wait, and one when it is over."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket", trash_days=0)
    mnt = vol.mount("prefetch=0", env=s3.keys)
    names = [mnt / ("f%d" % i) for i in range(8)]
    for name in names:
        write(name, data(100_000))
    mnt = mnt.remount()
    outage(s3, via)
    start = time.monotonic()
    readers = [ws.popen(["/bin/cat", name], stdout=subprocess.DEVNULL) for name in names]
    wait_until(lambda: re.search(LATE % "get", mnt.log()), 9, "a line about the outage")
    wait_until(lambda: time.monotonic() > start + 5, 30, "all readers to be late")
    assert "succeed again" not in mnt.log() and all(p.poll() is None for p in readers)
    thaw(s3, via)
    assert [p.wait(60 * SLOW) for p in readers] == [0] * len(readers)
    wait_until(lambda: "calls succeed again" in mnt.log(), 30, "the end of the outage")
    assert mnt.log().count("no success so far") == 1 == mnt.log().count("calls succeed again")


@pytest.mark.deadline(60)
def test_deletions_that_wait_are_told_of(ws, s3, via):
    vol = S3Volume(ws, s3, url=via.url + "/bucket", trash_days=0)
    mnt = vol.mount(env=s3.keys)
    write(mnt / "f", data(100_000))
    freeze(s3, via)
    os.unlink(mnt / "f")
    wait_until(lambda: re.search(LATE % "delete", mnt.log()), 15, "a line about the outage")
    thaw(s3, via)
    wait_until(lambda: not vol.objects(), 60, "the deletion")
    wait_until(lambda: "calls succeed again" in mnt.log(), 30, "the end of the outage")
