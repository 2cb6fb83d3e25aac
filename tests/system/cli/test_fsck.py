# SPDX-License-Identifier: Apache-2.0
"""The fsck command. A failure here is damage that nobody hears of, or a repair that damages."""

import json
import os
import struct

import pytest

import fixtures
import servers
from admin import DAMAGED, ask, contents, fsck, kinds, make_tree, refused
from syscalls import data, write


def test_fsck_of_a_healthy_volume(ws):
    vol = ws.volume(trash_days=1, compress="lz4")
    mnt = vol.mount()
    make_tree(mnt.path)
    with open(mnt / "sparse", "wb") as f:
        f.truncate(1 << 40)
        f.seek(1 << 39)
        f.write(b"x")
    held = open(mnt / "held", "wb+")
    held.write(b"1" * 5000)
    held.flush()
    os.unlink(mnt / "held")
    os.unlink(mnt / "empty")
    r = fsck(ws, vol)
    assert r["found"] == 0 and r["checked"]["inodes"] > 10 and r["checked"]["objects"] >= 5
    held.close()
    mnt.umount()
    assert fsck(ws, vol, "--repair", "--sync-dir-stat")["found"] == 0
    assert "no problems" in ws.run("cachefs", "fsck", vol.url, check=True).stdout


@pytest.mark.parametrize("name", fixtures.SQLITE)
def test_fsck_and_gc_of_the_other_clients_volumes(ws, name):
    vol = ws.fixture(name)
    vol.check_options = None
    env = {"JFS_RSA_PASSPHRASE": "fixture-passphrase"}
    bucket = ["--storage", "file", "--bucket", str(vol.bucket)+ "/"]
    r = ws.run("cachefs", "fsck", vol.url, *bucket, "--json", env=env)
    assert r.returncode == 0, r.stdout + r.stderr
    g = ask(ws, "gc", vol.url, *bucket, env=env)
    assert g["leaked"]["objects"] == 0 and g["foreign"] == 0
    assert g["live"]["objects"] > 5


DAMAGE = {
    "nlink": ["UPDATE jfs_node SET nlink=nlink+3 WHERE inode IN (1, {three})"],
    "parent": ["UPDATE jfs_node SET parent=77 WHERE inode={two}"],
    "type": ["UPDATE jfs_edge SET type=3 WHERE inode={two}"],
    "dirstat": ["UPDATE jfs_dir_stats SET used_space=used_space+8192 WHERE inode={a}"],
    "usage": ["UPDATE jfs_counter SET value=value-40960 WHERE name='usedSpace'"],
    "references": ["UPDATE jfs_chunk_ref SET refs=refs+1"],
    "orphan": [
        "UPDATE jfs_node SET nlink=0 WHERE inode={two}",
        "DELETE FROM jfs_edge WHERE inode={two}",
    ],
    "name": ["DELETE FROM jfs_node WHERE inode IN ({b}, {one})"],
    "xattr": ["INSERT INTO jfs_xattr(inode, name, value) VALUES({three}+1000, 'user.a', 'x')"],
    "data": ["DELETE FROM jfs_node WHERE inode={two}", "DELETE FROM jfs_edge WHERE inode={two}"],
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_fsck_finds_and_repairs(ws, volume, kind):
    """Each damage is named, left alone without --repair, and put right with it."""
    mnt = volume.mount()
    files = make_tree(mnt.path)
    ino = {
        name.replace("/", "_"): os.lstat(mnt / path).st_ino
        for name, path in (("a", "a"), ("b", "a/b"), ("one", "a/one"), ("two", "a/b/two"),
                           ("three", "three"))
    }
    mnt.umount()
    for query in DAMAGE[kind]:
        volume.sql(query.format(**ino))
    state = list(volume.sql("SELECT * FROM jfs_node ORDER BY 1"))
    r = fsck(ws, volume, code=DAMAGED)
    assert kind in kinds(r) and r["repaired"] == 0
    assert all(p["text"] for p in r["problems"])
    assert list(volume.sql("SELECT * FROM jfs_node ORDER BY 1")) == state
    text = ws.run("cachefs", "fsck", volume.url)
    assert text.returncode == DAMAGED and kind + ":" in text.stdout
    r = fsck(ws, volume, "--repair")
    assert r["found"] == r["repaired"] > 0
    r = fsck(ws, volume, "--sync-dir-stat", "--repair")
    assert kinds(r) in ([], ["dirstat"]), r
    assert fsck(ws, volume)["found"] == 0
    mnt = volume.mount()
    lost = {"name": {"a/one"}, "orphan": {"a/b/two"}, "data": {"a/b/two"}}.get(kind, set())
    got = contents(mnt.path)
    assert {k: v for k, v in got.items() if k != "a/hard"} == {
        k: v for k, v in files.items() if k not in lost
    }
    if kind in ("orphan", "data"):
        volume.check_options["leaks"] = "warn"


def test_fsck_finds_missing_and_damaged_blocks(ws, volume):
    mnt = volume.mount()
    for name in ("whole", "lost", "short"):
        write(mnt / name, data(9_000_000, len(name)))
    ws.run("cachefs", "clone", mnt / "lost", mnt / "copy", check=True)
    objects = {
        name: json.loads(ws.run("cachefs", "info", mnt / name, "--json", check=True).stdout)
        ["chunks"][0]["slices"][0]["objects"]
        for name in ("lost", "short")
    }
    mnt.umount()
    lost, short = (volume.bucket / objects[n][1] for n in ("lost", "short"))
    assert lost.exists()
    lost.unlink()
    os.truncate(short, 1000)
    for options in ([], ["--repair"]):
        r = fsck(ws, volume, *options, code=DAMAGED)
        assert kinds(r) == ["block"] and r["found"] == 2
        paths = {p["path"] for p in r["problems"]}
        assert "/short" in paths and paths & {"/lost", "/copy"}
        assert any(lost.name in p["text"] for p in r["problems"])
    assert fsck(ws, volume, "--no-data")["found"] == 0
    assert fsck(ws, volume, "--path", "/whole")["found"] == 0
    assert fsck(ws, volume, "--path", "/short", code=DAMAGED)["found"] == 1
    assert fsck(ws, volume, "--path", "/")["found"] == 0
    assert fsck(ws, volume, "--path", "/", "--recursive", code=DAMAGED)["found"] == 3
    refused(ws, "fsck", volume.url, "--path", "/nothing", code=2)
    volume.check_options = None


def test_fsck_finds_impossible_records(ws, volume):
    mnt = volume.mount()
    write(mnt / "f", data(1000))
    write(mnt / "g", data(1000))
    mnt.umount()
    rows = volume.sql("SELECT inode, slices FROM jfs_chunk ORDER BY inode")
    bad = bytearray(rows[0][1])
    bad[20:24] = (5000).to_bytes(4, "big")  # more than the slice has
    volume.sql("UPDATE jfs_chunk SET slices=? WHERE inode=?", bytes(bad), rows[0][0])
    volume.sql("UPDATE jfs_chunk SET slices=? WHERE inode=?", rows[1][1][:-1], rows[1][0])
    r = fsck(ws, volume, code=DAMAGED)
    assert {p["path"] for p in r["problems"] if p["kind"] == "record"} == {"/f", "/g"}
    volume.check_options = None


@pytest.mark.module("redis")
def test_a_chunk_is_read_once_for_all_its_missing_blocks(ws):
    """100 000 records would be read 100 000 times, each time with one reply of megabytes."""
    db = servers.redis_server().database()
    ws.cleanups.append(db.drop)
    volume = ws.volume(url=db.url, trash_days=0)
    volume.check_options = None
    mnt = volume.mount()
    write(mnt / "f", b"x")
    ino = os.stat(mnt / "f").st_ino
    mnt.umount()
    n = 300
    c = db.connect()
    records = [struct.pack(">IQIII", 4096 * i, 10_000 + i, 4096, 0, 4096) for i in range(n)]
    c.rpush("c%d_0" % ino, *records)

    def reads():
        return c.info("commandstats").get("cmdstat_lrange", {"calls": 0})["calls"]

    before = reads()
    r = fsck(ws, volume, "--json", code=DAMAGED)
    assert r["found"] >= n and reads() - before < 20
    # The reference of a slice that is in use was lost: gc asks again before it counts it.
    c.hset("sliceRef", mapping={"k%d_4096" % (10_000 + i): -1 for i in range(n)})
    before = reads()
    assert ask(ws, "gc", db.url)["wrong_references"] == n
    assert reads() - before < 20


@pytest.mark.module("redis")
def test_a_directory_is_read_once_for_the_paths_of_its_files(ws):
    """A bucket is lost, and each file of a large directory has the directory read for its path."""
    db = servers.redis_server().database()
    ws.cleanups.append(db.drop)
    volume = ws.volume(url=db.url, trash_days=0)
    volume.check_options = None
    mnt = volume.mount()
    os.mkdir(mnt / "many")
    paths = ["/many/f%d" % i for i in range(150)]
    for i in range(50):
        os.mkdir(mnt / ("many/d%d" % i))
        paths.append("/many/d%d/f" % i)
    for p in paths:
        write(mnt / p[1:], b"x")
    mnt.umount()
    for p in volume.bucket.rglob("*_0_1"):
        p.unlink()
    c = db.connect()

    def reads():
        return c.info("commandstats").get("cmdstat_hscan", {"calls": 0})["calls"]

    before = reads()
    r = fsck(ws, volume, "--json", code=DAMAGED)
    assert sorted(p["path"] for p in r["problems"]) == sorted(paths)
    # Each directory for the check of its names, and once more for paths.
    assert reads() - before < 250
