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
