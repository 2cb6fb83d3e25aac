# SPDX-License-Identifier: Apache-2.0
"""The benchmark of small files at a distance runs, counts, and leaves nothing behind."""

import os
import pathlib
import sys

import pytest

from cachefs import BIN, SLOW

FAR = pathlib.Path(__file__).resolve().parents[2] / "bench" / "far"
BUILD = pathlib.Path(os.environ.get("CACHEFS_BUILD") or BIN.parents[1])

# Takes the arguments that tests/bench/far gives to JuiceFS.
OTHER = """#!/bin/sh
verb=$1; shift
[ "$verb" = mount ] || exec %(bin)s "$verb" "$@"
[ "$1 $2" = "--no-usage-report --cache-dir" ] || exit 9
options=cache-dir="$3"; shift 3
[ "$1" != --writeback ] || { options=$options,writeback; shift; }
exec %(bin)s mount --foreground -o "$options" "$@"
"""


@pytest.mark.module("redis")
@pytest.mark.module("s3")
def test_far(ws):
    other = ws.path("other")
    other.write_text(OTHER % {"bin": BIN / "cachefs"})
    other.chmod(0o755)
    where = ws.path("far")
    where.mkdir()
    r = ws.run(
        *(sys.executable, FAR, "--build", BUILD, "--before", BUILD, "--juicefs", other),
        *("--engines", "redis", "--lines", "cat,tar x", "--modes", "default", "--distance", "0.5,1"),
        *("--files", "6", "--entries", "10", "--repeat", "1", "--dir", where),
        timeout=60 * SLOW,
        check=True,
    )
    rows = [[c.strip() for c in x.split("|")[1:-1]] for x in r.stdout.splitlines() if "| redis" in x]
    assert [row[1] for row in rows] == ["cat", "tar x"]
    for row in rows:
        before, now, ratio, theirs, theirs_ratio = (float(x) for x in row[3:8])
        assert min(before, now, theirs) >= 1  # a file is at least one GET, or one PUT
        # two decimals are printed
        assert ratio == pytest.approx(before / now, rel=0.02, abs=0.006)
        assert theirs_ratio == pytest.approx(theirs / now, rel=0.02, abs=0.006)
        for cell in row[8:10]:
            database, bucket = (float(x) for x in cell.split("+"))
            assert database >= 1 and 0.5 <= bucket <= 2
    assert rows[0][10] == "1.00"  # bytes fetched for each that was read
    assert not list(where.iterdir())
