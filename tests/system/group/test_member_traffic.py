# SPDX-License-Identifier: Apache-2.0
"""Requests of a cache group's members to its metadata. When this fails the servers of large groups carry records
that nobody needs, and a member's part of them grows with the group."""

import os
import pathlib
import sys

import pytest

from cachefs import BIN, need_engine

MEMBERS = pathlib.Path(__file__).resolve().parents[2] / "bench" / "members"
BUILD = pathlib.Path(os.environ.get("CACHEFS_BUILD") or BIN.parents[1])


@pytest.mark.deadline(120)
@pytest.mark.parametrize("engine", ["redis", "postgres", "mysql"])
def test_bytes_do_not_grow_with_the_group(ws, engine):
    """The table of docs/scale.md for two sizes. A member that read all records at each beat would need five times
    the limit in the larger group."""
    need_engine(engine)
    r = ws.run(sys.executable, MEMBERS, BUILD, "--engines", engine, "--counts", "30,150", timeout=60, check=True)
    print(r.stdout)
    rows = [[float(x) for x in line.split("|")[1:-1]] for line in r.stdout.splitlines() if line[:3] in ("| 3", "| 1")]
    assert [row[0] for row in rows] == [30, 150]
    for _, mean, *_, gone_s in rows:
        assert mean <= 1000
        assert gone_s <= 15
    assert rows[1][2] <= 1.2 * rows[0][2]  # of one that follows
