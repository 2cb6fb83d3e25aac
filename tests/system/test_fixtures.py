# SPDX-License-Identifier: Apache-2.0
"""Volumes written by the other client. A failure here is a user's existing volume read wrongly."""

import json
import os
import sys

import pytest

import fixtures
from syscalls import data, read, write

NAMES = ("sqlite", "bs1m", "hash")
LATER = {"xattrs_b64", "xattr_error"}  # extended attributes and ACLs


def manifest(ws, mnt):
    tool = fixtures.HOME / "tools" / "manifest.py"
    return json.loads(ws.run(sys.executable, tool, mnt, timeout=120, check=True).stdout)


def in_trash(entry):
    return (entry["path"] or "").startswith("/.trash")


def differences(got, want, parts=("entries",), skip=LATER):
    out = []
    for part in parts:
        g, w = (
            {e["path_b64"]: e for e in m[part] if part == "trash" or not in_trash(e)}
            for m in (got, want)
        )
        for path in sorted(set(g) ^ set(w)):
            out.append("%s only in the %s" % (path, "manifest" if path in w else "mount"))
        for path in sorted(set(g) & set(w)):
            for f in sorted((set(g[path]) | set(w[path])) - skip):
                if w[path]["path"] == "/.trash" and f.endswith("_ns"):
                    continue
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


@pytest.mark.parametrize("name", NAMES)
def test_use_of_a_copy_keeps_it_right(ws, name):
    vol = ws.fixture(name)
    mnt = vol.mount("no-bgjob")
    want = wanted(name)
    os.mkdir(mnt / "mine")
    content = data(3_000_000)
    write(mnt / "mine/f", content)
    with open(mnt / "mine/f", "r+b") as f:
        f.seek(1_000_000)
        f.write(b"over")
    os.rename(mnt / "mine/f", mnt / "mine/g")
    os.truncate(mnt / "mine/g", 2_500_000)
    write(mnt / "mine/h", b"short")
    os.unlink(mnt / "mine/h")
    mnt = mnt.remount()
    assert read(mnt / "mine/g") == content[:1_000_000] + b"over" + content[1_000_004:2_500_000]
    got = manifest(ws, mnt)
    got["entries"] = [e for e in got["entries"] if not e["path_b64"].startswith("L21pbmU")]
    got["statvfs"] = want["statvfs"]
    left = [d for d in differences(got, want) if not d.startswith("/: ")]  # the root's own times
    nothing(left)
    mnt.umount()
    nothing(vol.verify())


def test_change_of_a_foreign_file(ws):
    """Append to, overwrite, cut and remove what the other client wrote."""
    vol = ws.fixture("sqlite")
    mnt = vol.mount("no-bgjob")
    before = read(mnt / "big5m")
    with open(mnt / "big5m", "ab") as f:
        f.write(b"appended")
    with open(mnt / "manyslices", "r+b") as f:
        slices = f.read()
        f.seek(10)
        f.write(b"over")
    os.truncate(mnt / "random100k", 50_000)
    os.unlink(mnt / "compacted")
    os.rename(mnt / "one", mnt / "empty")
    mnt = mnt.remount()
    assert read(mnt / "big5m") == before + b"appended"
    assert read(mnt / "manyslices") == slices[:10] + b"over" + slices[14:]
    assert os.stat(mnt / "random100k").st_size == 50_000
    assert os.stat(mnt / "empty").st_size == 1
