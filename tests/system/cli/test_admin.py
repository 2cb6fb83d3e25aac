# SPDX-License-Identifier: Apache-2.0
"""Common behaviour of all administration commands, and destroy. Most of them remove things: each
test says what must not be among them."""

import os
import pty
import select
import sqlite3
import subprocess

import pytest

from admin import ask, junk, ls, make_tree, refused
from cachefs import Clock, tool, wait_until
from syscalls import read, write

COMMANDS = "config fsck gc rmr restore clone compact summary quota destroy".split()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_usage(ws, command):
    r = ws.run("cachefs", command, "--help")
    assert r.returncode == 0 and "cachefs " + command in r.stdout and "--json" in r.stdout
    refused(ws, command, code=1)
    refused(ws, command, "--no-such-option", "x", code=1)
    assert command in ws.run("cachefs", "--help").stdout


@pytest.mark.parametrize("command", ["config", "fsck", "gc"])
def test_not_a_volume(ws, command):
    refused(ws, command, "sqlite3://%s/none.db" % ws.dir, code=2)
    assert not ws.path("none.db").exists()


@pytest.mark.parametrize("command", ["rmr", "compact", "summary"])
def test_not_in_a_mount(ws, command):
    ws.path("d").mkdir()
    for path in (ws.path("d"), ws.path("nothing"), "/proc"):
        refused(ws, command, path, code=1)
    assert ws.path("d").exists()


def test_progress_is_for_terminals_only(ws, volume):
    volume.mount().umount()
    assert "\r" not in ws.run("cachefs", "gc", volume.url, check=True).stderr
    mine, theirs = pty.openpty()
    junk(volume, "chunks/0/0/1_0_10")
    p = ws.popen([tool("cachefs"), "gc", volume.url], stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    shown = b""
    while select.select([mine], [], [], 20)[0]:
        try:
            piece = os.read(mine, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    assert p.wait(20) == 0
    os.close(mine)
    assert b"objects listed: 1" in shown
    volume.check_options["leaks"] = "warn"


def test_clone_to_another_file_system(ws, mnt):
    write(mnt / "f", b"1")
    refused(
        ws, "clone", mnt / "f", ws.path("g"), code=1, says="%s: not in a cachefs mount" % ws.dir
    )


def test_cache_map_is_of_files(ws, mnt):
    refused(ws, "cache", "map", mnt.path, code=1, says="only files have blocks")


def test_control_is_for_the_user_who_mounted(ws, volume):
    mnt = volume.mount("allow_other")
    os.chmod(mnt, 0o777)
    write(mnt / "f", b"1")
    for argv in (["clone", mnt / "f", mnt / "g"], ["rmr", "--skip-trash", mnt / "f"]):
        r = subprocess.run(
            [tool("cachefs"), *map(str, argv)], user=1000, group=1000, extra_groups=[],
            env=ws.env(), cwd="/", capture_output=True, text=True, timeout=30,
        )
        assert r.returncode == 2 and "only the user" in r.stderr, r.stderr
    assert ls(mnt) == ["f"]


def test_destroy(ws, volume):
    mnt = volume.mount()
    make_tree(mnt.path)
    uuid = volume.setting()["UUID"]
    url, objects = volume.url, volume.objects()
    neighbour = volume.bucket / "vol2/chunks/0/0/1_0_1"
    neighbour.parent.mkdir(parents=True)
    write(neighbour, b"1")
    refused(ws, "destroy", url, uuid, "--yes", says="active")
    mnt.umount()
    refused(ws, "destroy", url, uuid[:-1] + "z", "--yes", code=1, says=uuid)
    refused(ws, "destroy", url, uuid, code=1, says="--yes")
    r = ws.run("cachefs", "destroy", url, uuid, "--dry-run", check=True)
    assert uuid in r.stderr and "%d objects" % (len(objects) + 1) in r.stderr
    loop = volume.bucket / "vol/chunks/zz"
    os.symlink("zz", loop)
    refused(ws, "destroy", url, uuid, "--yes", code=2, says="nothing is removed")
    loop.unlink()
    assert volume.objects() == objects and volume.setting()["UUID"] == uuid
    r = ask(ws, "destroy", url, uuid, "--yes")
    assert r["removed_objects"] == len(objects) + 1 == r["objects"]
    assert volume.objects() == [] and neighbour.exists()
    refused(ws, "status", url)
    neighbour.unlink()
    volume.format()
    assert ls(volume.mount().path) == []


def destroy_that_asks(ws, volume):
    """The command, when it waits for the name of the volume, and the terminal to type it on."""
    mine, theirs = pty.openpty()
    p = ws.popen(
        [tool("cachefs"), "destroy", volume.url, volume.setting()["UUID"]],
        stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )
    os.close(theirs)
    said = b""
    while b"Type the name" not in said:
        assert select.select([p.stderr], [], [], 20)[0], said
        said += os.read(p.stderr.fileno(), 4096)
    return p, mine


def test_destroy_looks_for_mounts_once_more(ws, volume):
    """Listing takes its time, and so does who is asked: the volume may be in use again by then."""
    volume.mount().umount()
    p, mine = destroy_that_asks(ws, volume)
    mnt = volume.mount()
    write(mnt / "f", b"kept")
    os.write(mine, b"vol\n")
    said = p.stderr.read()
    assert p.wait(20) == 2 and b"active" in said, said
    os.close(mine)
    mnt.umount()
    assert read(volume.mount() / "f") == b"kept"


def test_destroy_that_was_broken_off_is_repeated(ws, volume):
    """The id of the volume goes last: without it the bucket could be any other one."""
    mnt = volume.mount()
    write(mnt / "f", b"x")
    mnt.umount()
    uuid = volume.setting()["UUID"]
    p, mine = destroy_that_asks(ws, volume)
    db = sqlite3.connect(volume.db, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    os.write(mine, b"vol\n")
    wait_until(lambda: not volume.objects(), 20, "the removal of the objects")
    p.kill()
    p.wait(20)
    db.execute("ROLLBACK")
    db.close()
    os.close(mine)
    assert read(volume.bucket / "vol/juicefs_uuid").decode() == uuid
    assert ask(ws, "destroy", volume.url, uuid, "--yes")["removed_objects"] == 1
    assert not (volume.bucket / "vol/juicefs_uuid").exists()
    refused(ws, "status", volume.url)
    volume.format()


def test_objects_without_an_id(ws, volume):
    """They may be those of another volume of that name, or the disk with the objects is not mounted."""
    mnt = volume.mount()
    make_tree(mnt.path)
    mnt.umount()
    uuid, objects = volume.setting()["UUID"], volume.objects()
    volume.check_options["leaks"] = "ignore"
    junk(volume, "chunks/0/0/999_0_10")
    old = volume.bucket / "vol/chunks/0/0/999_0_10"
    os.utime(old, (1, 1))
    idle = volume.bucket / "vol/juicefs_uuid"
    idle.rename(ws.path("id"))
    for argv in (["gc", "--delete"], ["gc", "--compact"], ["destroy", "--yes"]):
        where = [volume.url, uuid] if argv[0] == "destroy" else [volume.url]
        refused(ws, *argv, *where, code=2, says="vol/juicefs_uuid is not in file")
    assert set(volume.objects()) == {*objects, old}
    for argv in (["gc", volume.url], ["fsck", volume.url], ["destroy", "--dry-run", volume.url, uuid]):
        assert "vol/juicefs_uuid is not in file" in ws.run("cachefs", *argv, check=True).stderr
    assert ask(ws, "gc", volume.url, "--delete", "--force")["removed"]["objects"] == 1
    assert volume.objects() == objects
    assert sorted(ls(volume.mount().path)) == ["a", "empty", "link", "three"]
    ws.path("id").rename(idle)


def test_destroy_after_a_clock_was_set(ws, volume):
    """The session of a live mount looks expired: by the clock of one host, or, until its next heartbeat,
    by that of a machine whose clock was set ahead a moment ago."""
    clock = Clock(ws)
    mnt = volume.mount("heartbeat=10", env=clock.env)
    uuid = volume.setting()["UUID"]
    write(mnt / "f", b"kept")
    beats = 'meta_round_trips_total{op="session"}'
    begun = mnt.stat(beats)
    wait_until(lambda: mnt.stat(beats) > begun, 60, "a heartbeat")
    clock.set(3600)
    r = refused(ws, "destroy", volume.url, uuid, "--yes", says="active", env=clock.env)
    assert "waiting for heartbeats" in r.stderr
    assert read(mnt / "f") == b"kept"


def test_destroy_that_cannot_keep_its_list(ws, volume):
    """A disk that is full while the objects are listed: half a list is none."""
    mnt = volume.mount()
    make_tree(mnt.path)
    mnt.umount()
    uuid, objects = volume.setting()["UUID"], volume.objects()
    for name in ("chunks/0/0/9%04d_0_10" % i for i in range(2000)):
        junk(volume, name)
    r = ws.run(
        "bash", "-c", "ulimit -f 32; trap '' XFSZ; exec \"$@\"", "-",
        tool("cachefs"), "destroy", volume.url, uuid, "--yes",
    )
    assert r.returncode == 2 and "nothing is removed" in r.stderr, r.stderr
    assert set(objects) < set(volume.objects()) and volume.setting()["UUID"] == uuid
    for p in set(volume.objects()) - set(objects):
        p.unlink()
