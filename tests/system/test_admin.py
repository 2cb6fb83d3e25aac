# SPDX-License-Identifier: Apache-2.0
"""What all commands of an administrator have in common, and destroy. Most of them remove things: each
test says what must not be among them."""

import os
import pty
import select
import subprocess

import pytest

from admin import ask, junk, ls, make_tree, refused
from cachefs import tool
from syscalls import write

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
