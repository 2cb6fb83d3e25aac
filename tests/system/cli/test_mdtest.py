# SPDX-License-Identifier: Apache-2.0
"""mdtest: what it measures is what it says, and it leaves the volume as it was."""

import json
import os
import signal
import subprocess
import time

import pytest

import cachefs_check
from cachefs import tool, wait_until
from syscalls import write
from test_dump import ENGINES, empty  # noqa: F401

TREE = ("--depth", "2", "--dirs", "3", "--files", "5", "--threads", "4")
COUNTS = {"mkdir": 12, "create": 65, "stat": 65, "list": 13, "unlink": 65, "rmdir": 13}


def mdtest(ws, *args, **kw):
    return json.loads(ws.run("cachefs", "mdtest", "--json", *args, check=True, **kw).stdout)


def judge(report, counts, round_trips):
    ops = {o["name"]: o for o in report["operations"]}
    assert {n: o["count"] for n, o in ops.items()} == counts
    for o in ops.values():
        assert o["errors"] == 0 and o["per_second"] > 0
        assert 0 < o["p50_us"] <= o["p99_us"]
        assert (o["round_trips"] is not None) == (o["retries"] is not None) == round_trips


@pytest.mark.parametrize("size", ["0", "4K", "65M"])
def test_volume_is_as_before(ws, size):
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    write(mnt / "mine", b"mine")
    mnt.umount()
    judge(mdtest(ws, vol.url, *TREE, "--write", size), COUNTS, True)
    assert vol.sql("SELECT CAST(name AS TEXT) FROM jfs_edge") == [("mine",)]
    assert vol.sql("SELECT 1 FROM jfs_delfile UNION ALL SELECT 1 FROM jfs_session2") == []
    assert len(vol.sql("SELECT * FROM jfs_chunk_ref")) == 1
    # the checker has its say when the test is over


def test_mount_is_as_before_and_the_trash_is_empty(ws):
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    judge(mdtest(ws, mnt, *TREE, "--write", "100K"), COUNTS, True)
    assert [n for n in os.listdir(mnt) if not n.startswith(".")] == []
    in_trash = vol.sql("SELECT 1 FROM jfs_edge WHERE parent > %d" % 0x7FFFFFFF10000000)
    assert in_trash == []  # an hour's directory may have been made ready
    mnt.umount()


def test_any_directory_can_be_measured(ws):
    ws.path("d").mkdir()
    judge(mdtest(ws, ws.path("d"), *TREE), COUNTS, False)
    assert os.listdir(ws.path("d")) == []


def test_one_directory_with_many_threads(ws):
    vol = ws.volume()
    report = mdtest(ws, vol.url, "--depth", "0", "--files", "300", "--threads", "100")
    judge(report, {"create": 300, "stat": 300, "list": 1, "unlink": 300, "rmdir": 1}, True)
    ops = {o["name"]: o for o in report["operations"]}
    # One for each, and counters may be read in the background.
    assert 300 <= round(300 * ops["stat"]["round_trips"]) <= 301


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_is_left_clean(ws, empty, engine):  # noqa: F811
    url = empty(engine)
    bucket = "%s/" % ws.path("bucket")
    args = ("--storage", "file", "--bucket", bucket, "--trash-days", "1")
    ws.run("cachefs", "format", url, "vol", *args, check=True, timeout=60)
    judge(mdtest(ws, url, *TREE, "--write", "5000", timeout=90), COUNTS, True)
    options = cachefs_check.Options(unmounted=True, data_length=True)
    assert cachefs_check.check(url, bucket, options) == ([], [])


def test_table_for_people(ws):
    vol = ws.volume()
    r = ws.run("cachefs", "mdtest", vol.url, *TREE, check=True)
    lines = r.stdout.splitlines()
    assert lines[0].split() == "count errors per second p50 us p99 us round trips retries/1000".split()
    assert [line.split()[0] for line in lines[1:]] == list(COUNTS)


def test_interrupted_run_cleans_up(ws):
    vol = ws.volume()
    p = ws.popen(
        [tool("cachefs"), "mdtest", vol.url, "--files", "1000000", "--depth", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: vol.sql("SELECT COUNT(*) FROM jfs_node")[0][0] > 200, 30)
    p.send_signal(signal.SIGINT)
    assert p.wait(60) == 8
    assert vol.sql("SELECT COUNT(*) FROM jfs_edge") == [(0,)]
    assert vol.sql("SELECT 1 FROM jfs_session2") == []


def test_failures_are_told(ws):
    assert ws.run("cachefs", "mdtest", ws.path("nowhere")).returncode == 1
    for time in ("1s", "100ms"):  # the default, too, is said in vain
        r = ws.run("cachefs", "mdtest", "--skip-dir-mtime", time, ws.dir, "--files=1", "--dirs=1")
        assert r.returncode == 1 and "option of the mount" in r.stderr
    assert ws.run("cachefs", "mdtest", "sqlite3://%s" % ws.path("no.db")).returncode == 2
    assert ws.run("cachefs", "mdtest", "--depth", "30", ws.dir).returncode == 1
    url = ws.volume(name="small").url
    for files, size in ((1, 2**64 - 1), (1, "129P"), (10_000, "1P")):  # of all: the room for slices
        r = ws.run("cachefs", "mdtest", "--depth=0", "--files=%d" % files, "--write=%s" % size, url)
        assert r.returncode == 1, r
    vol = ws.volume(inodes=20)
    r = ws.run("cachefs", "mdtest", vol.url, "--depth", "0", "--files", "50")
    assert r.returncode == 2 and "create: " in r.stderr and "No space left" in r.stderr
    assert vol.sql("SELECT 1 FROM jfs_edge") == []


def test_status_names_sessions_with_their_age(ws):
    vol = ws.volume()
    mnt = vol.mount()
    (session,) = vol.status()["sessions"]
    assert session["info"]["HostName"] == os.uname().nodename
    assert session["info"]["MountPoint"] == str(mnt)
    assert session["info"]["Version"] and session["info"]["ProcessID"] == mnt.pid()
    assert 0 <= session["age_s"] < 60
    then = time.gmtime(time.time() - 2 * 86400 - 3 * 3600)
    east = time.gmtime(time.time() - 86400 - 3600 + 5400)
    records = {
        7777: time.strftime("%Y-%m-%dT%H:%M:%SZ", then),
        7778: time.strftime("%Y-%m-%dT%H:%M:%S.123456789+01:30", east),  # as JuiceFS's are
        7779: "yesterday",
    }
    for sid, when in records.items():
        info = {**session["info"], "MountTime": when}
        vol.sql(
            "INSERT INTO jfs_session2(sid, expire, info) VALUES(?, 4102444800, ?)", sid, json.dumps(info).encode()
        )
    text = ws.run("cachefs", "status", vol.url, check=True).stdout
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert str(mnt) in lines["7777"]
    assert lines["7777"].endswith("since %s, 2d 3h ago" % time.strftime("%Y-%m-%d %H:%M:%S UTC", then))
    assert lines["7778"].endswith(" UTC, 1d 1h ago")
    assert "since" not in lines["7779"]
    assert [s["age_s"] for s in vol.status()["sessions"] if s["sid"] == 7779] == [None]
    vol.sql("DELETE FROM jfs_session2 WHERE sid > 7000")
