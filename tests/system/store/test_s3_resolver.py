# SPDX-License-Identifier: Apache-2.0
"""Mounts of a bucket whose host is looked up by a resolver that does not answer."""

import os
import time

import pytest

from cachefs import BIN, SLOW, wait_until
from s3volume import S3Volume
from syscalls import data, fails, read, write

TIMEOUT_S = 4
BLOCK = 256 << 10


@pytest.mark.deadline(120)
def test_a_resolver_that_does_not_answer(ws, s3):
    """Calls end with EIO in time, as in any outage, no threads pile up, and what was written is stored later."""
    hangs = ws.path("resolver-hangs")
    env = {"LD_PRELOAD": str(BIN.parents[1] / "tests/system/libfailing.so"), "RESOLVER_HANGS": str(hangs)}
    env["ASAN_OPTIONS"] = ws.env()["ASAN_OPTIONS"] + ":verify_asan_link_order=0"
    content = data(40 * BLOCK)
    vol = S3Volume(ws, s3, block_size="256K")
    where = "bucket=%s/bucket" % s3.url.replace("127.0.0.1", "db.test")
    opts = where + ",io-timeout=%ds,get-timeout=%ds,put-timeout=%ds" % (TIMEOUT_S, TIMEOUT_S, TIMEOUT_S)
    mnt = vol.mount(opts, env=env)
    write(mnt / "f", content, sync=True)
    mnt.umount()
    write(hangs, b"")
    mnt = vol.mount(opts, env=env)

    mnt.allow(r"object store: no success|not stored in time|cannot be stored|not read in time|cannot be read|slice ids")

    def threads(*names):
        n = 0
        for task in os.listdir("/proc/%d/task" % mnt.pid()):
            with open("/proc/%d/task/%s/comm" % (mnt.pid(), task)) as f:
                n += f.read().strip() in names
        return n

    def fails_in_time(call):
        begun = time.monotonic()
        with fails("EIO"):
            call()
        # The kernel most likely asks again for the page that it could not read ahead.
        assert time.monotonic() - begun < 2 * TIMEOUT_S + 3 * SLOW

    with open(mnt / "f", "rb", buffering=0) as f, open(mnt / "new", "wb", buffering=0) as new:
        new.write(content)
        for i in range(3):
            fails_in_time(lambda: os.pread(f.fileno(), 100, 5 * i * BLOCK))
            fails_in_time(lambda: os.fsync(new.fileno()))
            # Threads of libcurl have the name of the thread that made the request.
            assert threads("resolve") == 1 and threads("cfs-upload", "cfs-download") <= 30
        os.unlink(hangs)
        wait_until(lambda: os.pread(f.fileno(), 100, 0) == content[:100], 30)
        os.fsync(new.fileno())
    mnt.umount()
    mnt = vol.mount(opts, env=env)
    assert read(mnt / "f") == content == read(mnt / "new")
