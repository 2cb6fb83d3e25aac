# SPDX-License-Identifier: Apache-2.0
"""Mounts of volumes in S3 whose server is slow, away or unreliable: data waits and is not lost."""

import os
import subprocess
import time

import pytest

from cachefs import SLOW, wait_until
from s3volume import S3Volume
from syscalls import data, read, write
from test_s3 import FAULTS


def test_mount_limits(ws, s3):
    """upload-limit and download-limit hold within 5 %."""
    vol = S3Volume(ws, s3, block_size="256K")
    mnt = vol.mount("upload-limit=32,download-limit=64")  # 4 and 8 MB/s
    content = data(16_000_000)
    start = time.monotonic()
    with open(mnt / "f", "wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())
    took = time.monotonic() - start
    assert 4 * 0.95 <= took <= 4 * 1.05 + 0.5 * SLOW, took
    mnt = mnt.remount()
    start = time.monotonic()
    assert read(mnt / "f") == content
    took = time.monotonic() - start
    assert 2 * 0.95 <= took <= 2 * 1.05 + 0.5 * SLOW, took


def test_limits_of_the_setting(ws, s3):
    """A volume's own limit counts, unless the mount says otherwise."""
    vol = S3Volume(ws, s3, upload_limit=16, block_size="256K")
    content = data(4_000_000)
    for opts, least, most in (("", 1.9, 9), ("upload-limit=0", 0, 1.5 * SLOW)):
        mnt = vol.mount(opts)
        start = time.monotonic()
        with open(mnt / "f", "wb", buffering=0) as f:
            f.write(content)
            os.fsync(f.fileno())
        took = time.monotonic() - start
        mnt.umount()
        assert least <= took <= most, (opts, took)


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
