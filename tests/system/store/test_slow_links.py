# SPDX-License-Identifier: Apache-2.0
"""Links that are slow rather than dead."""

import os

from s3volume import S3Volume
from slowproxy import SlowProxy
from syscalls import data, read


def test_upload(ws, s3):
    """All blocks of a file at once are too many for a link that carries two within put-timeout: they
    must not time out together for ever."""
    content = data(6 << 20)
    with SlowProxy("127.0.0.1", ("127.0.0.1", s3.port), rate=2 << 20, upwards=True) as slow:
        vol = S3Volume(ws, s3, url="%s/bucket" % slow.url, block_size="1M")
        mnt = vol.mount("put-timeout=1,io-timeout=60")
        with open(mnt / "f", "wb", buffering=0) as f:
            f.write(content)
            os.fsync(f.fileno())
        slow.rate = 0
        mnt = mnt.remount()
        assert read(mnt / "f") == content


def test_compaction(ws, s3):
    """A block may take longer than a program waits for its request: a compaction that gave up each
    time would only use up the link."""
    vol = S3Volume(ws, s3, block_size="1M")
    mnt = vol.mount()
    content = data(768 << 10)
    with open(mnt / "f", "wb", buffering=0) as f:
        for at in range(0, len(content), 256 << 10):
            f.write(content[at : at + (256 << 10)])
            os.fsync(f.fileno())
    mnt.umount()
    with SlowProxy("127.0.0.1", ("127.0.0.1", s3.port), rate=192 << 10) as slow:
        mnt = vol.mount("io-timeout=500ms,watchdog=0,bucket=%s/bucket" % slow.url)
        r = ws.run("cachefs", "compact", mnt / "f", check=True)
        assert "3 slices before, 1 after" in r.stdout
        slow.rate = 0
        mnt = mnt.remount("io-timeout=60s")
        assert read(mnt / "f") == content
