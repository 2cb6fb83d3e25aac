# SPDX-License-Identifier: Apache-2.0
"""Listings. A failure here makes rm -r, rsync and backups skip files or see them twice."""

import errno
import os
import stat
import subprocess

import pytest

from cachefs import SLOW
from syscalls import Dir, fails, write
from test_concurrency import ENGINES, FRESH, engine_volume, judge


def visible(names):
    special = (b".stats", b".config", b".accesslog", b".control", b".trash")
    return [n for n in names if n not in special]


def test_types_and_inodes_agree_with_stat(mnt):
    os.mkdir(mnt / "dir")
    write(mnt / "file", b"")
    os.symlink("x", mnt / "link")
    os.mkfifo(mnt / "fifo")
    want = {"dir", "file", "link", "fifo"}
    with os.scandir(mnt.path) as it:
        entries = {e.name: e for e in it if e.name in want}
    assert set(entries) == want
    for e in entries.values():
        st = os.lstat(mnt / e.name)
        assert e.inode() == st.st_ino
        assert e.is_dir(follow_symlinks=False) == stat.S_ISDIR(st.st_mode)
        assert e.is_symlink() == stat.S_ISLNK(st.st_mode)


@pytest.mark.deadline(240)
def test_list_while_deleting_and_creating(mnt):
    """20 000 entries: what stays is seen exactly once, whatever comes and goes meanwhile."""
    d = mnt / "d"
    os.mkdir(d)
    base = os.open(d, os.O_RDONLY)
    for i in range(20_000):
        os.mknod("f%06d" % i, 0o644, dir_fd=base)
    keep = {b"f%06d" % i for i in range(20_000) if i % 4 != 3}
    gone = iter([i for i in range(20_000) if i % 4 == 3])
    seen = []
    extra = 0
    with Dir(d) as listing:
        for name in iter(listing.read, None):
            if name in (b".", b".."):
                continue
            seen.append(name)
            if len(seen) % 4 == 0:
                i = next(gone, None)
                if i is not None:
                    os.unlink("f%06d" % i, dir_fd=base)
                os.mknod("n%06d" % extra, 0o644, dir_fd=base)
                extra += 1
            assert len(seen) < 60_000, "the listing does not end"
    os.close(base)
    assert len(seen) == len(set(seen)), "an entry was seen twice"
    assert keep <= set(seen), "%d entries were skipped" % len(keep - set(seen))
    with Dir(d) as listing:
        final = listing.names()
    left = {b"f%06d" % i for i in gone} | keep | {b"n%06d" % i for i in range(extra)}
    assert sorted(final) == sorted(left)


@pytest.mark.deadline(180)
def test_remove_all_while_listing(ws, mnt):
    d = mnt / "d"
    os.makedirs(d)
    for i in range(5000):
        os.mknod(d / ("file-%d" % i), 0o644)
    r = ws.run("/bin/rm", "-r", d, timeout=120)
    assert r.returncode == 0, r.stderr
    assert not os.path.exists(d)


def test_positions(mnt):
    """NFS servers and some libraries go back to a place in a listing."""
    d = mnt / "d"
    os.mkdir(d)
    for i in range(1000):
        os.mknod(d / ("f%d" % i), 0o644)
    with Dir(d) as listing:
        order, places = [], []
        for name in iter(listing.read, None):
            order.append(name)
            places.append(listing.tell())
        for at in (0, 1, 500, 998, len(order) - 2):
            listing.seek(places[at])
            assert listing.read() == order[at + 1]
        listing.seek(places[-1])
        assert listing.read() is None
        listing.seek(0)
        assert list(iter(listing.read, None)) == order


def test_rename_during_listing(mnt):
    d = mnt / "d"
    os.mkdir(d)
    for i in range(3000):
        os.mknod(d / ("f%04d" % i), 0o644)
    seen = []
    with Dir(d) as listing:
        for n in iter(listing.read, None):
            seen.append(n)
            if n.startswith(b"f") and len(seen) % 10 == 0:
                os.rename(os.fsencode(d) + b"/" + n, os.fsencode(d) + b"/r" + n)
    plain = [n for n in seen if n.startswith(b"f")]
    assert len(plain) == len(set(plain)) == 3000


def test_listing_of_a_removed_directory(mnt):
    os.mkdir(mnt / "d")
    with Dir(mnt / "d") as listing:
        os.rmdir(mnt / "d")
        assert listing.names() == []


def test_deep_tree(mnt):
    fd = os.open(mnt.path, os.O_RDONLY)
    for i in range(300):
        os.mkdir("d%d" % i, dir_fd=fd)
        nxt = os.open("d%d" % i, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = nxt
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    deepest = 0
    for _, dirs, files, _ in os.fwalk(mnt.path):
        deepest += "leaf" in files
    assert deepest == 1


@pytest.mark.deadline(180)
def test_parallel_creates_in_one_directory(ws, mnt):
    os.mkdir(mnt / "d")
    code = (
        "import os,sys\n"
        "for i in range(500):\n"
        "    os.close(os.open('%s/%s-%d' % (sys.argv[1], sys.argv[2], i), os.O_CREAT|os.O_EXCL|os.O_WRONLY))\n"
        "    if i % 3 == 0: os.unlink('%s/%s-%d' % (sys.argv[1], sys.argv[2], i))\n"
        "    if i % 10 == 1: os.mkdir('%s/dir-%s-%d' % (sys.argv[1], sys.argv[2], i))\n"
    )
    runs = [ws.python(code, mnt / "d", k) for k in "abcdef"]
    for p in runs:
        assert p.wait(120 * SLOW) == 0
    names = os.listdir(mnt / "d")
    assert len(names) == len(set(names)) == 6 * (500 - 167 + 50)
    assert os.stat(mnt / "d").st_nlink == 2 + 6 * 50


def removed_by(kind, mnt, path):
    if kind == "rmdir":
        os.rmdir(path)
    else:
        os.mkdir(mnt / "instead")
        os.rename(mnt / "instead", path)


def as_opened(fd):
    """The answers of a removed directory that is open."""
    st = os.fstat(fd)
    said = [stat.S_ISDIR(st.st_mode), st.st_nlink, stat.S_IMODE(st.st_mode), st.st_uid]
    said.append(os.listdir(fd))
    for fn in (
        lambda: os.mkdir("sub", dir_fd=fd),
        lambda: os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd),
        lambda: os.stat("f", dir_fd=fd),
        lambda: os.symlink("x", "l", dir_fd=fd),
    ):
        try:
            fn()
            said.append(None)
        except OSError as e:
            said.append(errno.errorcode[e.errno])
    return said


@pytest.mark.parametrize("trash_days", [0, 1])
@pytest.mark.parametrize("engine", ENGINES)
def test_open_directory_that_is_removed(ws, engine, trash_days):
    """As xfstests generic/035: fstat says that it has no links; on a local file system, too."""
    vol = engine_volume(ws, engine, trash_days=trash_days)
    mnt, local = vol.mount("attr-cache=0"), ws.path("local")
    local.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "cachefs-test", local], check=True)
    ws.cleanups.append(lambda: subprocess.run(["umount", local], check=False))
    want = None
    for root in (local, mnt.path):
        for kind in ("rmdir", "rename"):
            path = root / "d"
            os.mkdir(path)
            os.chmod(path, 0o750)
            os.chown(path, 1000, 1000)
            fds = [os.open(path, os.O_RDONLY), os.open(path, os.O_PATH)]
            ino = os.fstat(fds[0]).st_ino
            removed_by(kind, root, path)
            said = as_opened(fds[0])
            assert said[:5] == [True, 0, 0o750, 1000, []]
            assert os.fstat(fds[1]).st_nlink == 0
            assert os.fstat(fds[0]).st_ino == ino
            want = want or said
            assert said == want
            os.fsync(fds[0])
            for fd in fds:
                os.close(fd)
            if kind == "rename":
                assert os.stat(path).st_nlink == 2 and os.stat(path).st_ino != ino
                os.rmdir(path)
    judge(vol, [mnt])


def test_directory_back_from_the_trash(ws):
    """It has links again for who has had it open all the time."""
    vol = ws.volume("vol", trash_days=1)
    mnt = vol.mount("attr-cache=0")
    os.mkdir(mnt / "d")
    fd = os.open(mnt / "d", os.O_RDONLY)
    os.rmdir(mnt / "d")
    assert os.fstat(fd).st_nlink == 0
    (there,) = (mnt / ".trash").glob("*/*-d")
    os.rename(there, mnt / "d")
    assert os.fstat(fd).st_nlink == 2
    os.close(fd)


@pytest.mark.parametrize("trash_days", [0, 1])
@pytest.mark.parametrize("engine", ENGINES)
def test_open_directory_that_another_mount_removes(ws, engine, trash_days):
    vol = engine_volume(ws, engine, trash_days=trash_days)
    mnt, other = vol.mount(FRESH), vol.mount(FRESH)
    os.mkdir(mnt / "d")
    fd = os.open(mnt / "d", os.O_RDONLY)
    os.rmdir(other / "d")
    with fails("ESTALE"):
        os.mkdir("sub", dir_fd=fd)
    with fails("ENOENT"):
        os.stat(mnt / "d")
    if trash_days:
        assert os.fstat(fd).st_nlink == 2 and os.listdir(fd) == []
    else:
        for fn in (os.fstat, os.listdir):
            with fails("ESTALE"):
                fn(fd)
    os.close(fd)
    judge(vol, [mnt, other])
