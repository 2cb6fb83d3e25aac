# SPDX-License-Identifier: Apache-2.0
"""Volumes with their blocks on an S3 server (tests/s3/server.py)."""

import pytest

import server
from cachefs import Volume


def need_conditions():
    if not server.CONDITIONAL:
        pytest.skip("this server does not know conditional puts")


class S3Volume(Volume):
    """A volume whose bucket is on the server; its folder there is what the checker reads."""

    def __init__(self, ws, s3, name="vol", url=None, format=True, **options):
        """url: of the bucket, where the server is not asked itself."""
        self.s3 = s3
        self.where = url or "%s/bucket" % s3.url
        self.attach(ws, name, "sqlite3://%s" % ws.path(name + ".db"), s3.bucket("bucket"))
        ws.volumes.append(self)
        if format:
            self.format(storage="s3", bucket=self.where, **options)

    def format(self, **options):
        """replicate=None: as cachefs does it by default. Most tests count the calls that they cause."""
        options = {"replicate": "off", **options}
        if options.get("replicate") == "sync":
            need_conditions()
        return self.ws.run(
            "cachefs", *self.format_args(**options), check=True, env=self.s3.keys, timeout=60
        )

    def mount(self, opts="", *args, **kw):
        """Without the disk cache that it would have: what is read comes from the server."""
        if "cache-dir" not in opts:
            opts = ",".join(filter(None, [opts, "cache-dir=none"]))
        return super().mount(opts, *args, **kw)
