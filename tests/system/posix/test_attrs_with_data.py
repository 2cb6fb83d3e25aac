# SPDX-License-Identifier: Apache-2.0
"""Mode, owner and times that are stored with the data (tar, rsync, cp -p). A user loses by a failure here: a
file that a close has left with the mode or the time of before."""

import os
import signal
import stat

import pytest

import servers
from cachefs import Volume, alive, need_engine, wait_until
from syscalls import read, write

FRESH = "attr-cache=0,entry-cache=0,dir-entry-cache=0"
DEATH = r"the process of the mount has died"


@pytest.fixture(params=["sqlite3", "redis", "postgres", "mysql"])
def mounts(request, ws):
    if request.param == "sqlite3":
        volume = ws.volume()
    else:
        need_engine(request.param)
        db = servers.ENGINES[request.param][0]().database()
        ws.cleanups.append(db.drop)
        volume = Volume(ws, url=db.url)
    return volume.mount(), volume.mount(FRESH)


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_seen_elsewhere_with_the_bytes(mounts):
    here, there = mounts
    write(here / "f", b"before")
    fd = os.open(here / "f", os.O_WRONLY)
    os.pwrite(fd, b"behind", 6)
    os.fchmod(fd, 0o640)
    os.utime(fd, (1, 2))
    assert here.stat("data_changed_files") == 1
    assert (mode(here / "f"), os.stat(here / "f").st_mtime) == (0o640, 2)
    seen = os.stat(there / "f")
    assert (stat.S_IMODE(seen.st_mode) == 0o640) == (seen.st_size == 12) == (seen.st_mtime == 2)
    os.close(fd)
    seen = os.stat(there / "f")
    assert (stat.S_IMODE(seen.st_mode), seen.st_atime, seen.st_mtime) == (0o640, 1, 2)
    assert read(there / "f") == b"beforebehind"
    assert here.stat("data_changed_files") == 0


def test_another_mount_changes_it_meanwhile(mounts):
    """The mode that this mount has set is stored later, and holds. The owner, which it has not set, is left alone."""
    here, there = mounts
    fd = os.open(here / "f", os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(fd, b"data")
    os.fchmod(fd, 0o640)
    os.chmod(there / "f", 0o444)
    os.chown(there / "f", 12, 13)
    os.close(fd)
    seen = os.stat(there / "f")
    assert (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid) == (0o640, 12, 13)


@pytest.mark.parametrize("what", ["rename", "link", "open", "setxattr"])
def test_stored_ahead(mounts, what):
    here, there = mounts
    fd = os.open(here / "f", os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(fd, b"data")
    os.fchown(fd, 12, 13)
    os.fchmod(fd, 0o4755)
    name = "f"
    if what == "rename":
        os.rename(here / "f", here / "g")
        name = "g"
    elif what == "link":
        os.link(here / "f", here / "g")
    elif what == "open":
        os.close(os.open(here / "f", os.O_RDONLY))
    else:
        os.setxattr(here / "f", "user.k", b"v")
    seen = os.stat(there / name)
    assert (stat.S_IMODE(seen.st_mode), seen.st_uid, seen.st_gid) == (0o4755, 12, 13)
    os.close(fd)
    assert mode(there / name) == 0o4755
    assert read(there / name) == b"data"


def test_unlinked(mounts):
    here, _ = mounts
    fd = os.open(here / "f", os.O_CREAT | os.O_RDWR, 0o600)
    os.write(fd, b"data")
    os.fchmod(fd, 0o640)
    os.unlink(here / "f")
    os.fsync(fd)
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o640
    os.close(fd)


@pytest.mark.parametrize("synced", [True, False])
def test_death_of_the_process(ws, synced):
    """After fsync both are there; before, both or none, and fsync says that they are lost."""
    volume = ws.volume()
    volume.check_options = {"leaks": "warn", "unmounted": True}
    mnt = volume.mount()
    write(mnt / "f", b"x" * 1000)
    fd = os.open(mnt / "f", os.O_RDWR)
    os.fchmod(fd, 0o600)
    os.pwrite(fd, b"y" * 2000, 0)
    os.fchmod(fd, 0o640)
    if synced:
        os.fsync(fd)
    mnt.allow(DEATH)
    old = mnt.pid()
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: not alive(old) and "another process serves the mount" in mnt.log(), 30, "it")
    there = volume.mount(FRESH)
    stored = os.stat(there / "f").st_size == 2000
    assert stored or not synced
    assert mode(there / "f") == (0o640 if stored else 0o600)
    if not stored:
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(fd)
    os.close(fd)
