# SPDX-License-Identifier: Apache-2.0
"""The replay of logged disks and the judge of promises (tests/power) see what is wrong, and nothing else."""

import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "power"))
import disklog  # noqa: E402
import promises  # noqa: E402

S = disklog.SECTOR
PART = 4 * S


def log_of(tmp_path, *records):
    """records: (kind, offset, bytes)."""
    with open(tmp_path / "log", "wb") as f:
        for number, (kind, off, data) in enumerate(records):
            f.write(disklog.RECORD.pack(disklog.MAGIC, kind, off, 0, len(data), number) + data)
    return disklog.Log(tmp_path / "log")


def write(sector, letter, count=1):
    return disklog.WRITE, sector * S, letter.encode() * S * count


def flush(disk):
    return disklog.FLUSH, disk * PART, b""


def mark(**what):
    return disklog.MARK, 0, json.dumps(what).encode()


class Disks:
    def __init__(self, tmp_path, log):
        self.path = tmp_path
        (tmp_path / "base").write_bytes(b"." * PART * 2)
        self.replay = disklog.Replay(log, tmp_path / "base", PART)

    def at(self, *point):
        """The first byte of each sector."""
        self.replay.make(point, self.path / "image")
        return (self.path / "image").read_bytes()[::S].decode()


def test_a_disk_keeps_what_it_was_told_to_flush(tmp_path):
    log = log_of(tmp_path, write(0, "a"), write(4, "b"), flush(0), write(1, "c"), mark(t="x"), flush(1), flush(0))
    disks = Disks(tmp_path, log)
    assert [disks.at(2, 5, None), disks.at(5, 6, None), disks.at(6, 7, None)] == ["a.......", "a...b...", "ac..b..."]


def test_any_sectors_of_what_was_not_flushed(tmp_path):
    log = log_of(tmp_path, write(0, "a", 3), write(4, "b"), flush(1), write(5, "c", 3), write(4, "d"), flush(1))
    seen = {Disks(tmp_path, log).at(2, 5, seed) for seed in range(300)}
    assert all(s[3] == "." and set(s[:3]) <= {".", "a"} and s[4] in "bd" and set(s[5:]) <= {".", "c"} for s in seen)
    assert {s[:3] for s in seen} >= {"...", "a..", "..a", "aaa"} and {s[4] for s in seen} == {"b", "d"}
    assert {Disks(tmp_path, log).at(2, 3, seed)[4:] for seed in range(50)} == {"b..."}


def test_points_are_between_flushes_in_order(tmp_path):
    log = log_of(tmp_path, write(0, "a"), flush(0), flush(0), mark(t="x"), flush(0), write(1, "b"), write(2, "c"), flush(0))
    assert log.moments(0) == [1, 4, 7]
    points = log.points(0, 20, 1)
    assert points == sorted(points, key=lambda p: p[:2]) and len(points) == 20
    assert [p for p in points if p[2] is None] == [(1, 2, None), (4, 7, None), (7, 8, None)]
    assert all(4 < at <= 7 for flush, at, seed in points if seed is not None) and len(log.points(0, 2, 1)) == 2


def test_a_damaged_log_is_refused(tmp_path):
    log_of(tmp_path, write(0, "a"), flush(0))
    data = bytearray((tmp_path / "log").read_bytes())
    data[-4] ^= 1
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(ValueError):
        disklog.Log(tmp_path / "log")


def file_of(*changes, synced=b"0123456789"):
    f = promises.File()
    f.change(0, synced)
    f.sync()
    for off, data in changes:
        f.change(off, data)
    return f


@pytest.mark.parametrize(
    "changes, content, right",
    [
        ([], b"0123456789", True),
        ([], b"0123456780", False),
        ([], b"012345678", False),
        ([], b"01234567890", False),
        ([(2, b"ab")], b"0123456789", True),
        ([(2, b"ab")], b"01a3456789", True),
        ([(2, b"ab")], b"01b3456789", False),
        ([(2, b"ab")], b"0a23456789", False),
        ([(10, b"ab")], b"0123456789ab", True),
        ([(10, b"ab")], b"0123456789a\0", True),
        ([(10, b"ab")], b"0123456789ac", False),
        ([(10, b"ab")], b"012345678", False),
        ([(4, None)], b"0123", True),
        ([(4, None)], b"01234", True),
        ([(4, None)], b"012", False),
        ([(4, None), (6, b"x")], b"0123\0\0x", True),
        ([(4, None), (6, b"x")], b"012345x789", True),
        ([(4, None), (6, b"x")], b"0123\0\0y", False),
    ],
)
def test_bytes_of_a_file(changes, content, right):
    assert (file_of(*changes).wrong(len(content), content, []) is None) == right


def test_only_unsynced_bytes_may_be_unreadable():
    page = promises.PAGE
    f = file_of((page, b"b" * page), (2 * page, b"c"), synced=b"a" * page)
    blank = bytes(page)
    assert f.wrong(2 * page, b"a" * page + blank, [page]) is None
    assert f.wrong(2 * page, blank + b"b" * page, [0])
    inside = file_of((10, b"ab"))
    assert inside.wrong(12, bytes(12), [0])


def names_after(*marks):
    p = promises.Promises(("t",))
    for m in marks:
        p.take({"t": "t", **m})

    def allowed(**names):
        seen = {n: (ino, 0, b"", []) for n, ino in names.items()}
        return not any("names" in wrong for wrong in p.wrong({"t": seen}))

    return allowed


def test_names_are_those_of_one_moment_behind_the_last_sync():
    made = [{"op": ["create", "a"]}, {"ok": 7}]
    allowed = names_after(*made)
    assert allowed() and allowed(a=7) and not allowed(a=8) and not allowed(b=7)
    synced = [*made, {"op": ["fsyncdir"]}]
    assert names_after(*synced)()
    synced.append({"ok": None})
    assert not names_after(*synced)() and names_after(*synced)(a=7)
    moved = [*synced, {"op": ["rename", "a", "b"]}]
    either = names_after(*moved)
    assert either(a=7) and either(b=7) and not either(a=7, b=7) and not either()
    moved += [{"ok": None}, {"op": ["fsync", 7]}, {"ok": None}]
    assert names_after(*moved)(b=7) and not names_after(*moved)(a=7)
    begun = names_after(*moved, {"op": ["create", "c"]})
    assert begun(b=7) and begun(b=7, c=9) and not begun(b=7, c=7)


def test_a_sync_that_was_not_answered_promises_nothing():
    p = promises.Promises(("t",))
    for m in ({"op": ["create", "a"]}, {"ok": 7}, {"op": ["write", 7, 0, 4, 1]}, {"ok": 4}, {"op": ["fsync", 7]}):
        p.take({"t": "t", **m})
    data = promises.bytes_of(1, 4)
    assert not p.wrong({"t": {"a": (7, 0, b"", [])}}) and not p.wrong({"t": {}}) and p.unsynced(7)
    p.take({"t": "t", "ok": None})
    assert p.wrong({"t": {"a": (7, 0, b"", [])}}) and p.wrong({"t": {}}) and not p.unsynced(7)
    assert not p.wrong({"t": {"a": (7, 4, data, [])}})
