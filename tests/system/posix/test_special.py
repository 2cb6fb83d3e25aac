# SPDX-License-Identifier: Apache-2.0
"""The files that the mount shows of itself. Without them nobody sees what a mount does, and tools
written for JuiceFS find nothing."""

import json
import os
import re
import threading
import time

from cachefs import wait_until
from syscalls import data, fails, read, user, write

NAMES = {".accesslog", ".config", ".stats"}


def test_listing(ws):
    plain = ws.volume("plain", trash_days=1)
    mnt = plain.mount("hide-internal=false")
    os.makedirs(mnt / "a/b")
    assert set(os.listdir(mnt)) == NAMES | {".trash", "a"}
    assert [e.name for e in os.scandir(mnt) if e.is_dir()] == [".trash", "a"]
    assert set(os.listdir(mnt / "a")) == {"b"}
    modes = {n: os.stat(mnt / n).st_mode for n in NAMES | {".control", ".trash"}}
    assert modes == {
        ".accesslog": 0o100400,
        ".config": 0o100400,
        ".stats": 0o100444,
        ".control": 0o100600,
        ".trash": 0o040555,
    }
    sub = plain.mount("subdir=/a,hide-internal=false")
    assert set(os.listdir(sub)) == NAMES | {"b"}
    with fails("ENOENT"):
        os.stat(sub / ".trash")
    hidden = plain.mount()
    assert os.listdir(hidden) == ["a"]
    assert read(hidden / ".stats")


def test_names_are_taken(ws):
    mnt = ws.volume("vol", trash_days=1).mount()
    for n in (*NAMES, ".control", ".trash"):
        with fails("EEXIST"):
            os.mkdir(mnt / n)
        with fails("EPERM", "EISDIR"):
            os.unlink(mnt / n)
        with fails("EPERM"):
            os.rename(mnt / n, mnt / "x")
        write(mnt / "f", b"")
        with fails("EPERM", "EISDIR"):
            os.rename(mnt / "f", mnt / n)
        with fails("EPERM"):
            os.chmod(mnt / n, 0o777)
        with fails("EPERM", "EXDEV"):
            os.link(mnt / n, mnt / "hard")
        with fails("ENOTSUP", "EPERM"):
            os.setxattr(mnt / n, "user.x", b"1")
    os.mkdir(mnt / "d")
    write(mnt / "d/.stats", b"mine")  # only the root's names are taken
    assert read(mnt / "d/.stats") == b"mine"


def test_a_big_root_is_listed_whole(ws):
    """Special files stand before pages of entries; offsets must not skip or repeat any."""
    mnt = ws.volume("vol", trash_days=1).mount("hide-internal=false")
    names = {"f%04d" % i for i in range(2500)}
    for n in names:
        os.mknod(mnt / n)
    got = os.listdir(mnt)
    assert len(got) == len(set(got)) and set(got) == names | NAMES | {".trash"}


def test_stats(mnt):
    lines = read(mnt / ".stats").decode().splitlines()
    for line in lines:
        assert re.fullmatch(r'cachefs_[a-z_]+(\{([a-z]+="[a-z0-9_.-]+",?)+\})? \S+', line), line
    before = mnt.stats()
    assert len(before) == len(lines)
    write(mnt / "f", data(1_000_000), sync=True)
    read(mnt / "f")
    after = mnt.stats()
    assert set(before) == set(after)
    assert all(after[n] >= v for n, v in before.items() if n.endswith("_total")), (before, after)
    grown = {n for n in after if after[n] > before[n]}
    for name in (
        'meta_operations_total{op="write"}',
        'meta_operation_seconds_total{op="write"}',
        'object_requests_total{method="put"}',
        'object_data_bytes_total{method="put"}',
        "data_commits_total",
        "cpu_seconds_total",
    ):
        assert name in grown, name
    assert after['object_data_bytes_total{method="put"}'] == 1_000_000
    assert after["memory_bytes"] > 1 << 20


def test_config(ws):
    vol = ws.volume("vol", trash_days=3)
    mnt = vol.mount("atime-mode=relatime,umask=027,attr-cache=2s")
    c = json.loads(read(mnt / ".config"))
    assert c["Pid"] == mnt.pid() and c["MountPoint"] == str(mnt)
    assert c["Engine"] == "sqlite3" and c["Version"]
    o = c["Options"]
    assert (o["atime-mode"], o["umask"], o["attr-cache"]) == ("relatime", "027", "2s")
    assert o["max-uploads"] == "20"  # effective, not only what was said
    assert c["Setting"]["Name"] == "vol" and c["Setting"]["TrashDays"] == 3
    with user(1000, 1000), fails("EACCES"):
        read(mnt / ".config")


def test_config_shows_no_secret(ws):
    vol = ws.volume("vol")
    setting = vol.setting()
    setting.update({"AccessKey": "AKID", "SecretKey": "geheim", "KeyEncrypted": False})
    vol.sql("UPDATE jfs_setting SET value=? WHERE name='format'", json.dumps(setting))
    mnt = vol.mount()
    assert b"geheim" not in read(mnt / ".config")


def lines_of(log):
    """Reads until the log pauses."""
    text = b""
    while not text.endswith(b"\n#\n") and text != b"#\n":
        text += os.read(log, 65536)
    return [x for x in text.decode().splitlines() if x != "#"]


def test_access_log(mnt):
    log = os.open(mnt / ".accesslog", os.O_RDONLY)
    write(mnt / "f", b"12345")
    os.rename(mnt / "f", mnt / "g")
    with fails("ENOENT"):
        os.stat(mnt / "nothing")
    lines = lines_of(log)
    form = re.compile(
        r"\d{4}\.\d\d\.\d\d \d\d:\d\d:\d\d\.\d{6} \[uid:0,gid:0,pid:\d+\] (\w+) \((.*)\): (.*) "
        r"<\d+\.\d{6}>"
    )
    seen = [form.fullmatch(x).groups() for x in lines]
    ops = [x[0] for x in seen]
    for op in ("create", "write", "flush", "release", "rename"):
        assert op in ops, op
    assert ("rename", "1,f,1,g,0", "OK") in seen
    assert ("lookup", "1,nothing", "No such file or directory") in seen
    size = [x[1].split(",")[1] for x in seen if x[0] == "write"]
    assert size == ["5"]
    assert "read" not in ops  # of the log itself
    mine = [x for x in lines if "create (1,f" in x]
    assert "pid:%d]" % threading.get_native_id() in mine[0]
    assert lines_of(log) == []
    os.close(log)


def test_access_log_wakes_its_reader(mnt):
    """A line arrives when it is written, not when a polling interval ends."""
    log = os.open(mnt / ".accesslog", os.O_RDONLY)
    lines_of(log)
    got = []

    def reader():
        while True:
            text = os.read(log, 65536)
            if text != b"#\n":
                got.append((time.monotonic(), text))
                return

    t = threading.Thread(target=reader)
    t.start()
    began = time.monotonic()
    os.mkdir(mnt / "d")
    t.join(20)
    os.close(log)
    assert got and got[0][0] - began < 0.9


def test_access_log_is_for_the_owner_of_the_mount(mnt):
    with user(1000, 1000), fails("EACCES"):
        os.open(mnt / ".accesslog", os.O_RDONLY)
    logs = [os.open(mnt / ".accesslog", os.O_RDONLY) for _ in range(8)]
    with fails("EBUSY"):
        os.open(mnt / ".accesslog", os.O_RDONLY)
    [os.close(x) for x in logs]
    wait_until(lambda: _opens(mnt / ".accesslog"), 10, "a free place for a reader")


def _opens(path):
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        return False
    return True


def test_a_reader_of_the_log_does_not_hold_up_the_end(ws, mnt):
    p = ws.popen(["cat", str(mnt / ".accesslog")], stdout=open("/dev/null", "wb"))
    wait_until(lambda: mnt.stat("open_handles") >= 1, 10, "the reader")
    began = time.monotonic()
    mnt.terminate()
    assert time.monotonic() - began < 20
    p.wait(20)


def test_trash(ws):
    vol = ws.volume("vol", trash_days=1)
    mnt = vol.mount()
    os.mkdir(mnt / "d")
    write(mnt / "d/f", b"kept")
    ino = os.stat(mnt / "d/f").st_ino
    parent = os.stat(mnt / "d").st_ino
    os.unlink(mnt / "d/f")
    os.rmdir(mnt / "d")
    (hour,) = os.listdir(mnt / ".trash")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d\d", hour)
    bin_ = mnt / ".trash" / hour
    assert set(os.listdir(bin_)) == {"1-%d-d" % parent, "%d-%d-f" % (parent, ino)}
    trashed = bin_ / ("%d-%d-f" % (parent, ino))
    assert read(trashed) == b"kept" and os.stat(trashed).st_ino == ino
    with fails("EPERM"):
        write(trashed, b"changed")
    with fails("EPERM"):
        os.chmod(trashed, 0o777)
    with fails("EPERM", "ENOENT"):
        os.mkdir(bin_ / "new")
    with fails("EPERM", "EEXIST", "ENOENT"):
        os.mkdir(mnt / ".trash/new")
    with user(1000, 1000):
        assert os.listdir(mnt / ".trash") == [hour]
        with fails("EACCES", "EPERM"):
            os.unlink(trashed)
        with fails("EACCES", "EPERM"):
            os.rename(trashed, mnt / "mine")
    os.rename(trashed, mnt / "back")  # root restores by moving
    assert read(mnt / "back") == b"kept"
    os.rmdir(bin_ / ("1-%d-d" % parent))
    assert os.listdir(bin_) == []
