# SPDX-License-Identifier: Apache-2.0
"""Unpacks the golden volumes."""

import gzip
import pathlib
import shutil
import tarfile

REPO = pathlib.Path(__file__).resolve().parents[2]


HOME = REPO / "tests/fixtures/juicefs-1.4.1"
SQLITE = ("sqlite", "lz4", "zstd", "bs1m", "hash", "enc", "encchacha", "stale-sqlite")


def unpack(name, into):
    """Returns (META-URL, bucket directory with a slash) of a private copy of a SQLite volume."""
    into = pathlib.Path(into)
    bucket = unpack_objects(name, into)
    shutil.copy(HOME / name / "meta.db", into / "meta.db")
    return "sqlite3://%s/meta.db" % into, bucket


def unpack_objects(name, into):
    """Returns the bucket directory with a slash of a private copy of a volume of any engine."""
    bucket = pathlib.Path(into) / "bucket"
    if not bucket.exists():
        bucket.mkdir(parents=True)
        with tarfile.open(HOME / name / "objects.tar.gz") as tar:
            tar.extractall(bucket)
    return "%s/" % bucket


def dump(name, form):
    """JuiceFS's own dump of a volume, unpacked: "json" or "bin"."""
    return gzip.decompress((HOME / name / ("dump.%s.gz" % form)).read_bytes())
