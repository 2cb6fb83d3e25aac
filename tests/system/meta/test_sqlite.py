# SPDX-License-Identifier: Apache-2.0
"""Changes of the database file of a mounted volume by other programs."""

import os
import shutil

import pytest

from cachefs import Volume

GONE = "the database file was moved, removed or replaced"


def write(path):
    with open(path, "wb") as f:
        f.write(b"x")
        f.flush()
        os.fsync(f.fileno())


@pytest.mark.parametrize("replaced", [False, True])
def test_database_file_is_moved(ws, replaced):
    """SQLite goes on with the file that it has open: what fsync promised would be gone after the unmount."""
    v = Volume(ws)
    m = v.mount("heartbeat=60,no-bgjob,io-timeout=3")
    m.allow(GONE + "|connection failed|not committed|not stored|data lost|write")
    write(m / "before")
    aside = v.db.with_name("aside")
    v.db.rename(aside)
    if replaced:
        shutil.copy(aside, v.db)
    with pytest.raises(OSError, match="Input/output error"):
        write(m / "lost")
    assert GONE in m.log()
    os.replace(aside, v.db)
    write(m / "after")
    m.umount()
    other = v.mount()
    assert {"before", "after"} <= set(os.listdir(other)) <= {"before", "after", "lost"}
    other.umount()
