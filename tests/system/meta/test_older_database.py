# SPDX-License-Identifier: Apache-2.0
"""A database that went back in time: its numbers of slices name blocks already."""

import shutil

import pytest

from cachefs import Volume

MIB = 1 << 20


def copy(db, to):
    """The database of a volume that is not mounted."""
    for end in ("", "-wal"):
        to.with_name(to.name + end).unlink(missing_ok=True)
        if db.with_name(db.name + end).exists():
            shutil.copy(db.with_name(db.name + end), to.with_name(to.name + end))


@pytest.mark.parametrize("hash_prefix", [False, True])
def test_cached_blocks_of_lost_files(ws, hash_prefix):
    """A file that is written after the database was restored would read as the file that was lost."""
    v = Volume(ws, hash_prefix=hash_prefix)
    cache = "cache-dir=%s,buffer-size=64" % ws.path("cache")
    m = v.mount(cache)
    (m / "kept").write_bytes(b"k" * MIB)
    m.umount()
    older = ws.path("older")
    copy(v.db, older)
    m = v.mount(cache)
    (m / "lost").write_bytes(b"l" * 4 * MIB)
    m.umount()
    m = v.mount(cache)
    assert (m / "lost").read_bytes() == b"l" * 4 * MIB
    m.umount()
    copy(older, v.db)
    m = v.mount(cache)
    m.allow("went back in time")
    (m / "new").write_bytes(b"n" * 4 * MIB)
    m.umount()
    m = v.mount(cache)
    assert (m / "new").read_bytes() == b"n" * 4 * MIB
    assert (m / "kept").read_bytes() == b"k" * MIB
    m.umount()
