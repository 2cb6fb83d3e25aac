# SPDX-License-Identifier: Apache-2.0
"""The tier command. A failure here is data that is stored in a class that its owner did not choose, and
pays for."""

import json
import os

import pytest

import servers
from admin import ask, refused
from cachefs import tool, wait_until
from syscalls import read, write
from test_dump import ENGINES, dump, empty, load, origin, passphrase  # noqa: F401 (fixtures)


def entries(ws, url):
    """{path: attributes} of a volume, without the trash."""
    found = {}

    def walk(path, e):
        found[path or "/"] = e["attr"]
        for name, child in e.get("entries", {}).items():
            walk(path + "/" + name, child)

    walk("", json.loads(dump(ws, url))["FSTree"])
    return found


def tiers(ws, url):
    return {path: a.get("tier", 0) for path, a in entries(ws, url).items()}


@pytest.mark.parametrize("engine", ENGINES)
def test_tier_of_files_and_directories(ws, empty, engine):  # noqa: F811
    """Set with and without -r, inherited, shown, moved with a dump, unset, beside a mount."""
    vol = ws.volume(url=empty(engine))
    url = vol.url
    mnt = vol.mount()
    os.makedirs(mnt / "d/sub")
    write(mnt / "d/f", b"f")
    write(mnt / "d/sub/g", b"g")
    os.symlink("f", mnt / "d/link")
    os.mkfifo(mnt / "d/fifo")
    refused(ws, "tier", "set", url, "--tier", "1", "/d", says="config --tier 1", code=1)
    ws.run("cachefs", "config", url, "--tier", "1", "--storage-class", "COLD", check=True)
    ws.run("cachefs", "config", url, "--tier", "3", "--tag", "k=v", check=True)
    assert ask(ws, "tier", "list", url) == [
        {"id": 0, "storage_class": "", "tag": ""},
        {"id": 1, "storage_class": "COLD", "tag": ""},
        {"id": 3, "storage_class": "", "tag": "k=v"},
    ]
    # as it is called with JuiceFS
    assert ws.run("cachefs", "tier", "set", url, "--tier", "1", "/d", check=True).stdout == "tier 1 set on 1 inode\n"
    write(mnt / "d/new", b"new")
    os.mkdir(mnt / "d/newdir")
    want = dict.fromkeys(tiers(ws, url), 0)
    want |= {"/d": 1, "/d/new": 1, "/d/newdir": 1}
    assert tiers(ws, url) == want
    write(mnt / "d/newdir/h", b"h")
    assert ask(ws, "tier", "set", url, "--tier", "3", "d/sub/", "-r") == {"changed": 2, "failed": 0}
    assert ask(ws, "tier", "set", url, "--tier", "1", "/d", "-r")["failed"] == 0
    want = {path: int(path.startswith("/d") and path not in ("/d/link", "/d/fifo")) for path in tiers(ws, url)}
    assert tiers(ws, url) == want
    info = ws.run("cachefs", "info", mnt / "d/sub/g", check=True).stdout
    assert "tier:   1\n" in info
    assert read(mnt / "d/sub/g") == b"g" and os.stat(mnt / "d/f").st_size == 1
    for form in ((), ("--binary",)):
        copy = empty("sqlite3")
        load(ws, copy, dump(ws, url, *form))
        assert tiers(ws, copy) == want
    assert ask(ws, "tier", "set", url, "--tier", "0", "-r", "/")["failed"] == 0
    assert set(tiers(ws, url).values()) == {0}
    for wrong in ("/nothing", "/d/link", "/.trash"):
        refused(ws, "tier", "set", url, "--tier", "1", wrong, says=wrong)
    refused(ws, "tier", "set", url, "--tier", "4", "/d", code=1)
    refused(ws, "tier", "set", url, "/d", says="--tier", code=1)
    refused(ws, "tier", "list", url, "/d", code=1)


@pytest.mark.parametrize("engine", ENGINES)
def test_tier_on_a_volume_of_the_other_client(ws, origin, engine):  # noqa: F811
    """Its rows, with and without ACLs; what is immutable keeps its tier, and is named."""
    url = origin(engine, "sqlite" if engine == "sqlite3" else servers.ENGINES[engine][1])
    before = entries(ws, url)
    kinds = ("regular", "directory")
    fixed = {p for p, a in before.items() if a.get("flags", 0) & 3 and a["type"] in kinds}
    assert fixed and not any(a.get("tier") for a in before.values())
    ws.run("cachefs", "config", url, "--tier", "2", "--storage-class", "COLD", "--force", check=True)
    r = ws.run("cachefs", "tier", "set", url, "--tier", "2", "-r", "/")
    assert r.returncode == 2, r.stderr
    assert {line.split(": ")[1] for line in r.stderr.splitlines()} == fixed
    after = entries(ws, url)
    for path, a in before.items():
        if a["type"] in kinds and path not in fixed:
            a["tier"] = 2
        for attr in (a, after[path]):
            for key in ("ctime", "ctimensec"):
                attr.pop(key, None)
    assert after == before


def test_interrupted(ws, volume):
    """A long run can be stopped, and begun again where it ended."""
    mnt = volume.mount()
    for i in range(3000):
        write(mnt / str(i), b"")
    mnt.umount()
    ws.run("cachefs", "config", volume.url, "--tier", "1", "--storage-class", "COLD", check=True)
    command = ["tier", "set", volume.url, "--tier", "1", "-r", "/", "--threads", "1"]
    p = ws.popen([tool("cachefs"), *command], stdout=-1, stderr=-1, text=True)
    wait_until(lambda: volume.sql("SELECT COUNT(*) FROM jfs_node WHERE tier_id=1")[0][0] > 1, 30, "the first ones")
    p.terminate()
    p.communicate(timeout=30)
    left = volume.sql("SELECT COUNT(*) FROM jfs_node WHERE type < 3 AND tier_id=0 AND inode < 2147483647")[0][0]
    assert p.returncode in (0, 8)
    assert (left == 0) == (p.returncode == 0)
    done = ask(ws, *command)
    assert done == {"changed": left + 1, "failed": 0}
