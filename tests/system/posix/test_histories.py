# SPDX-License-Identifier: Apache-2.0
"""Histories of operations on two mounts (tests/histories): names are linearizable, data is
close-to-open, a lock has one holder. A failure here is a program that was told something that was never
true: two creators of one file, a rename that lost a name, a record that came back."""

import os
import pathlib
import random
import sys

import pytest

from test_concurrency import ENGINES

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "histories"))

import rounds  # noqa: E402


def judge(ws, text, *flags):
    """Exit status and output for a history that was written by hand."""
    path = ws.path("history")
    path.write_text("".join(line.strip() + "\n" for line in text.strip().splitlines()))
    r = ws.run(rounds.PROGRAMS / "judge", *flags, path)
    return r.returncode, r.stdout


# ---------------------------------------------------------------- the judge can say no

# name -> (what cannot be, what can, with one result or time changed)
IMPOSSIBLE = {
    "two exclusive creators": (
        "0 1 10-20 create n0 = 5\n0 2 12-18 create n0 = 6",
        "0 1 10-20 create n0 = 5\n0 2 12-18 create n0 = EEXIST",
    ),
    "not seen after it was made": (
        "0 1 10-20 create n0 = 5\n0 2 21-30 stat n0 = ENOENT",
        "0 1 10-20 create n0 = 5\n0 2 19-30 stat n0 = ENOENT",
    ),
    "seen after it was removed": (
        "0 1 10-20 create n0 = 5\n0 1 21-30 unlink n0 = ok\n0 2 31-40 stat n0 = file 5",
        "0 1 10-20 create n0 = 5\n0 1 21-30 unlink n0 = ok\n0 2 29-40 stat n0 = file 5",
    ),
    "removed twice": (
        "0 1 10-20 create n0 = 5\n0 1 21-30 unlink n0 = ok\n0 2 21-30 unlink n0 = ok",
        "0 1 10-20 create n0 = 5\n0 1 21-30 unlink n0 = ok\n0 2 21-30 unlink n0 = ENOENT",
    ),
    "a moment without a name while it is renamed over": (
        "0 1 1-2 create n0 = 5\n0 1 3-4 create n1 = 6\n0 1 5-50 rename n1 n0 = ok\n0 2 10-20 stat n0 = ENOENT",
        "0 1 1-2 create n0 = 5\n0 1 3-4 create n1 = 6\n0 1 5-50 rename n1 n0 = ok\n0 2 10-20 stat n1 = ENOENT",
    ),
    "renamed twice to two names": (
        "0 1 1-2 create n0 = 5\n0 1 3-9 rename n0 n1 = ok\n0 2 3-9 rename n0 n2 = ok",
        "0 1 1-2 create n0 = 5\n0 1 3-9 rename n0 n1 = ok\n0 2 3-9 rename n0 n2 = ENOENT",
    ),
    "an exchange seen half": (
        "0 1 1-2 create n0 = 5\n0 1 3-4 create n1 = 6\n0 1 5-6 exchange n0 n1 = ok\n0 2 7-8 stat n0 = file 6\n"
        "0 2 9-10 stat n1 = file 6",
        "0 1 1-2 create n0 = 5\n0 1 3-4 create n1 = 6\n0 1 5-6 exchange n0 n1 = ok\n0 2 7-8 stat n0 = file 6\n"
        "0 2 9-10 stat n1 = file 5",
    ),
    "back to the old after the new": (
        "0 1 1-2 create n0 = 5\n0 1 3-4 create n1 = 6\n0 1 5-50 rename n1 n0 = ok\n"
        "0 2 10-20 stat n0 = file 6\n0 2 21-30 stat n0 = file 5",
        "0 1 1-2 create n0 = 5\n0 1 3-4 create n1 = 6\n0 1 5-50 rename n1 n0 = ok\n"
        "0 2 10-20 stat n0 = file 5\n0 2 21-30 stat n0 = file 6",
    ),
    "a directory removed with a name in it": (
        "0 1 1-2 mkdir n0 = ok\n0 1 3-4 create n0/x0 = 5\n0 2 5-6 rmdir n0 = ok",
        "0 1 1-2 mkdir n0 = ok\n0 1 3-4 create n0/x0 = 5\n0 2 5-6 rmdir n0 = ENOTEMPTY",
    ),
    "directories moved into each other": (
        "0 1 1-2 mkdir n0 = ok\n0 1 3-4 mkdir n1 = ok\n0 1 5-9 rename n0 n1/x0 = ok\n0 2 5-9 rename n1 n0/x0 = ok",
        "0 1 1-2 mkdir n0 = ok\n0 1 3-4 mkdir n1 = ok\n0 1 5-9 rename n0 n1/x0 = ok\n0 2 5-9 rename n1 n0/x0 = EINVAL",
    ),
    "a directory that is taken for removed, without a cause": (
        "0 1 1-2 mkdir n2 = ok\n0 1 3-4 create n2/x0 = 5\n0 1 5-6 mkdir n3 = ok\n"
        "0 1 7-9 rename n2 n3 = ok\n0 2 10-30 rename n3 n2 = ok\n0 2 31-32 stat n2/x0 = ENOENT",
        "0 1 1-2 mkdir n2 = ok\n0 1 3-4 create n2/x0 = 5\n0 1 5-6 mkdir n3 = ok\n"
        "0 1 7-11 rename n2 n3 = ok\n0 2 10-30 rename n3 n2 = ok\n0 2 31-32 stat n2/x0 = ENOENT",
    ),
    "a link to what was never there": (
        "0 1 1-2 link n0 n1 = ok",
        "0 1 1-2 link n0 n1 = ENOENT",
    ),
    "a link to a file that has lost another name before": (
        "0 1 1-2 create n0 = 5\n0 1 3-4 link n0 n1 = ok\n0 1 5-8 unlink n0 = ok\n0 2 9-12 link n1 n2 = ENOENT",
        "0 1 1-2 create n0 = 5\n0 1 3-4 link n0 n1 = ok\n0 1 5-10 unlink n0 = ok\n0 2 9-12 link n1 n2 = ENOENT",
    ),
    "a symbolic link with another target": (
        "0 1 1-2 symlink n0 7 = ok\n0 2 3-4 readlink n0 = 8",
        "0 1 1-2 symlink n0 7 = ok\n0 2 3-4 readlink n0 = 7",
    ),
    "a name that is listed and was removed": (
        "0 1 1-2 create n0 = 5\n0 1 3-4 unlink n0 = ok\n0 2 5-6 list . = n0",
        "0 1 1-2 create n0 = 5\n0 1 3-4 unlink n0 = ok\n0 2 5-6 list . =",
    ),
    "an error without a cause": (
        "0 1 1-2 create n0 = 5\n0 2 3-4 put n0 9 = 5 EIO",
        "0 1 1-2 create n0 = 5\n0 2 3-4 put n0 9 = 5 EIO\n0 1 3-4 unlink n0 = ok",
    ),
    "an old record": (
        "0 1 1-2 put+ n0 1 = 5\n0 1 3-4 put n0 2 = 5\n0 2 5-6 get n0 = 5 1",
        "0 1 1-2 put+ n0 1 = 5\n0 1 3-6 put n0 2 = 5\n0 2 5-6 get n0 = 5 1",
    ),
    "an empty file that was written": (
        "0 1 1-2 put+ n0 1 = 5\n0 2 5-6 get n0 = 5 0",
        "0 1 1-5 put+ n0 1 = 5\n0 2 4-6 get n0 = 5 0",
    ),
    "a record of another file": (
        "0 1 1-2 put+ n0 1 = 5\n0 1 3-4 put+ n1 2 = 6\n0 2 5-6 get n1 = 6 1",
        "0 1 1-2 put+ n0 1 = 5\n0 1 3-4 put+ n1 2 = 6\n0 2 5-6 get n1 = 6 2",
    ),
    "parts of two records": (
        "0 1 1-2 put+ n0 1 = 5\n0 2 5-6 get n0 = 5 torn",
        "0 1 1-2 put+ n0 1 = 5\n0 2 5-6 get n0 = 5 1",
    ),
    "two holders of a lock": (
        "0 1 1-2 lock posix = ok\n0 2 3-4 lock posix = ok\n0 1 5-6 unlock posix = ok\n0 2 5-6 unlock posix = ok",
        "0 1 1-2 lock posix = ok\n0 2 3-7 lock posix = ok\n0 1 5-6 unlock posix = ok\n0 2 8-9 unlock posix = ok",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_judge_tells_what_cannot_be(ws, what):
    bad, good = IMPOSSIBLE[what]
    code, out = judge(ws, bad)
    assert code == 1, out
    assert judge(ws, good)[0] == 0, judge(ws, good)[1]


def test_no_answer_may_mean_done_or_not(ws):
    made = "0 1 1-2 create n0 = 5\n"
    for rest in ("0 2 9-10 stat n0 = file 5", "0 2 9-10 stat n0 = ENOENT"):
        assert judge(ws, made + "0 1 3-4 unlink n0 = EIO\n" + rest, "--faults")[0] == 0
        assert judge(ws, made + "0 1 3-4 unlink n0 = EIO\n" + rest)[0] == 1
    again = "0 2 5-6 stat n0 = ENOENT\n0 2 9-10 stat n0 = file 5"
    assert judge(ws, made + "0 1 3-4 unlink n0 = EIO\n" + again, "--faults")[0] == 1


def test_change_may_be_done_twice_where_a_process_died(ws):
    made = "0 1 1-9 create n0 = 5\n0 2 3-4 unlink n0 = ok\n0 2 5-6 stat n0 = ENOENT\n0 2 10-11 stat n0 = file 5"
    seen = "0 1 1-2 create n0 = 4\n0 1 3-30 unlink n0 = ok\n0 2 5-6 stat n0 = ENOENT\n0 2 10-20 create n0 = 5\n"
    seen += "0 1 40-41 stat n0 = ENOENT"
    moved = "0 1 1-2 create n0 = 4\n0 1 3-30 rename n0 n1 = ok\n0 2 5-6 stat n0 = ENOENT\n0 2 10-20 create n0 = 5\n"
    moved += "0 1 40-41 stat n0 = ENOENT\n0 1 42-43 stat n1 = file 5"
    for history in (made, seen, moved):
        assert judge(ws, history)[0] == 1
        assert judge(ws, history, "--deaths")[0] == 0
    assert judge(ws, moved.replace("3-30", "3-9"), "--deaths")[0] == 1


def test_failure_is_shrunk(ws):
    noise = "\n".join("0 3 %d-%d stat n3 = ENOENT" % (100 + 2 * i, 101 + 2 * i) for i in range(50))
    noise += "\n0 3 300-301 mkdir n2 = ok\n0 3 302-303 rmdir n2 = ok\n"
    code, out = judge(ws, "0 1 10-20 create n0 = 5\n" + noise + "0 2 400-410 create n0 = 6")
    assert code == 1
    small = out.split("smallest history that fails:\n")[1].split("operations=")[0]
    assert [line.split(maxsplit=3)[3] for line in small.strip().splitlines()] == [
        "create n0 = 5",
        "create n0 = 6",
    ]


# ---------------------------------------------------------------- real mounts


def one_round(ws, mounts, ops, faults):
    seed = random.SystemRandom().randrange(1 << 32)
    counts = rounds.Round(ws, mounts, seed, ops, faults).record().judge()
    print("seed=%d %s" % (seed, dict(counts)))
    assert counts["operations"] >= ops
    return counts


OPS = 4000 if os.environ.get("CACHEFS_LONG") else 1000


@pytest.mark.deadline(240)
@pytest.mark.parametrize("engine", ENGINES)
def test_histories(ws, engine):
    one_round(ws, rounds.mounts_of(ws, engine, 2), OPS, False)


@pytest.mark.deadline(240)
@pytest.mark.parametrize("engine", ["sqlite", "redis"])
def test_histories_with_faults(ws, engine):
    mounts = rounds.mounts_of(ws, engine, 2, faults=True)
    mounts[0].volume.check_options = {"leaks": "warn", "unmounted": True}
    one_round(ws, mounts, 2 * OPS, True)


@pytest.mark.deadline(240)
def test_histories_with_failover(ws):
    """The replica takes over, under the mounts that Sentinel tells of it."""
    mounts = rounds.mounts_of(ws, "redis", 2, faults=True, fails_over=True)
    assert one_round(ws, mounts, OPS, True)["failover"] == 1
    assert rounds.verdict(mounts, True) == []
