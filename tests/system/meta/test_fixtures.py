# SPDX-License-Identifier: Apache-2.0
"""Volumes written by JuiceFS. A failure here is a user's existing volume read wrongly."""

import fcntl
import json
import os
import sys

import pytest

import fixtures
from cachefs import wait_until
from syscalls import data, read, write

NAMES = [n for n in fixtures.SQLITE if not n.startswith("stale")]
FULL = [n for n in NAMES if n not in ("hash", "enc", "encchacha")]  # the others have a small tree
ENCRYPTED = ("enc", "encchacha")
STALE_INO = 5  # removed while the killed client had it open


@pytest.fixture(autouse=True)
def passphrase(monkeypatch):
    monkeypatch.setenv("JFS_RSA_PASSPHRASE", "fixture-passphrase")


def manifest(ws, mnt):
    tool = fixtures.HOME / "tools" / "manifest.py"
    return json.loads(ws.run(sys.executable, tool, mnt, timeout=120, check=True).stdout)


def in_trash(entry):
    return (entry["path"] or "").startswith("/.trash")


def got_names(entry):
    return entry.get("xattrs_b64") or entry.get("xattr_error")


def differences(got, want, parts=("entries",)):
    out = []
    for part in parts:
        g, w = (
            {e["path_b64"]: e for e in m[part] if part == "trash" or not in_trash(e)}
            for m in (got, want)
        )
        for path in sorted(set(g) ^ set(w)):
            out.append("%s only in the %s" % (path, "manifest" if path in w else "mount"))
        for path in sorted(set(g) & set(w)):
            for f in sorted(set(g[path]) | set(w[path])):
                if w[path]["path"] == "/.trash" and f.endswith("_ns"):
                    continue
                if f == "xattr_error" and in_trash(w[path]) and not got_names(g[path]):
                    continue  # JuiceFS says ENODATA where no names is the answer
                if g[path].get(f) != w[path].get(f):
                    out.append(
                        "%s: %s is %.80r, want %.80r"
                        % (w[path]["path"] or path, f, g[path].get(f), w[path].get(f))
                    )
    for f, value in want["statvfs"].items():
        if got["statvfs"][f] != value:
            out.append("statvfs %s is %r, want %r" % (f, got["statvfs"][f], value))
    return out


def nothing(found):
    assert not found, "\n".join(found)


def wanted(name):
    return json.loads((fixtures.HOME / name / "manifest.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_read_only_mount_matches_manifest(ws, name):
    vol = ws.fixture(name)
    mnt = vol.mount("ro")
    nothing(differences(manifest(ws, mnt), wanted(name)))


@pytest.mark.parametrize("name", NAMES)
def test_trash_matches_manifest(ws, name):
    vol = ws.fixture(name)
    mnt = vol.mount("ro")
    nothing(differences(manifest(ws, mnt), wanted(name), parts=("trash",)))


def clone_by_copy(source, target):
    """As cp --reflink does it on a file system that copies by reference."""
    with open(source, "rb") as f, open(target, "wb") as g:
        while os.copy_file_range(f.fileno(), g.fileno(), 1 << 30):
            pass


@pytest.mark.parametrize("name", NAMES)
def test_use_of_a_copy_keeps_it_right(ws, name):
    vol = ws.fixture(name)
    mnt = vol.mount("no-bgjob")
    want = wanted(name)
    content = data(3_000_000)
    os.mkdir(mnt / "mine")
    write(mnt / "mine/f", content)
    with open(mnt / "mine/f", "r+b") as f:
        f.seek(1_000_000)
        f.write(b"over")
    os.rename(mnt / "mine/f", mnt / "mine/g")
    os.truncate(mnt / "mine/g", 2_500_000)
    with open(mnt / "mine/g", "ab") as f:
        f.write(b"appended")
    write(mnt / "mine/h", b"short")
    os.unlink(mnt / "mine/h")
    for foreign in ("manyslices", "random100k", "cfr"):
        clone_by_copy(mnt / foreign, mnt / "mine" / foreign)
    ws.run("cachefs", "clone", mnt / "punched", mnt / "mine/punched", check=True)
    mnt = mnt.remount()
    mine = content[:1_000_000] + b"over" + content[1_000_004:2_500_000] + b"appended"
    assert read(mnt / "mine/g") == mine
    for foreign in ("manyslices", "random100k", "cfr", "punched"):
        assert read(mnt / "mine" / foreign) == read(mnt / foreign), foreign
    got = manifest(ws, mnt)
    got["entries"] = [e for e in got["entries"] if not e["path_b64"].startswith("L21pbmU")]
    got["statvfs"] = want["statvfs"]
    nothing([d for d in differences(got, want) if not d.startswith("/: ")])  # the root's own times
    mnt.umount()
    nothing(vol.verify())


@pytest.mark.parametrize("name", NAMES)
def test_change_of_foreign_files(ws, name):
    """Append to, overwrite, cut and remove what JuiceFS wrote."""
    vol = ws.fixture(name)
    mnt = vol.mount("no-bgjob")
    big = "big5m" if name in FULL else "big300k"
    before, slices = read(mnt / big), read(mnt / "manyslices")
    clone_by_copy(mnt / big, mnt / "copy-of-big")
    with open(mnt / big, "r+b") as f:
        f.seek(100_001)
        f.write(b"over")
        f.seek(0, os.SEEK_END)
        f.write(b"appended")
    with open(mnt / "manyslices", "r+b") as f:
        f.seek(10)
        f.write(b"over")
    os.truncate(mnt / "random100k", 50_000)
    os.unlink(mnt / "compacted")
    os.rename(mnt / "one", mnt / "empty")
    mnt = mnt.remount()
    assert read(mnt / big) == before[:100_001] + b"over" + before[100_005:] + b"appended"
    assert read(mnt / "copy-of-big") == before
    assert read(mnt / "manyslices") == slices[:10] + b"over" + slices[14:]
    assert os.stat(mnt / "random100k").st_size == 50_000
    assert os.stat(mnt / "empty").st_size == 1
    mnt.umount()
    nothing(vol.verify())


@pytest.mark.parametrize("name", ENCRYPTED)
def test_wrong_passphrase_is_refused(ws, name, monkeypatch):
    """Not: mounted, and every read an error."""
    vol = ws.fixture(name)
    monkeypatch.setenv("JFS_RSA_PASSPHRASE", "wrong")
    point = ws.path("refused")
    point.mkdir()
    r = ws.run("cachefs", "mount", vol.url, point, "-o", "storage=file,bucket=%s" % vol.bucket)
    assert r.returncode != 0 and r.stderr.strip()
    assert not os.path.ismount(point)


def test_stale_session_is_cleaned_up(ws):
    """A killed client's locks, its removed open file and its session go; nothing else does."""
    vol = ws.fixture("stale-sqlite")
    objects = {p.name for p in vol.objects()}
    usage = {n: vol.counter(n) for n in ("usedSpace", "totalInodes")}
    mnt = vol.mount("heartbeat=2")

    def gone():
        return not (
            vol.sql("SELECT 1 FROM jfs_session2 WHERE sid = 1")
            or vol.sql("SELECT 1 FROM jfs_flock UNION ALL SELECT 1 FROM jfs_plock")
            or vol.sql("SELECT 1 FROM jfs_sustained")
            or vol.sql("SELECT 1 FROM jfs_node WHERE inode = ?", STALE_INO)
            or vol.sql("SELECT 1 FROM jfs_chunk WHERE inode = ?", STALE_INO)
            or vol.sql("SELECT 1 FROM jfs_delfile")
            or "4_0_10" in {p.name for p in vol.objects()}
        )

    wait_until(gone, 60, "the end of the stale session")
    with open(mnt / "flocked-ex", "r+b") as f, open(mnt / "plocked", "r+b") as g:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert sorted(os.listdir(mnt / "dir")) == ["renamed, (odd) name%"]
    mnt.umount()
    assert {p.name for p in vol.objects()} == objects - {"4_0_10"}
    assert vol.counter("usedSpace") == usage["usedSpace"] - 4096
    assert vol.counter("totalInodes") == usage["totalInodes"] - 1
    nothing(vol.verify(unmounted=True))
