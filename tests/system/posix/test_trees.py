# SPDX-License-Identifier: Apache-2.0
"""Commands on whole trees: rmr, clone, restore, compact, summary. Each test says what must be left."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from admin import TRASH, ask, contents, fsck, gc, ls, make_tree, refused, stand_still
from cachefs import alive, children, pending, tool, wait_until
from syscalls import data, read, write


def hour(mnt):
    (name,) = os.listdir(mnt / ".trash")
    return name


# ---- rmr


def test_rmr_dry_run_removes_nothing(ws, mnt):
    files = make_tree(mnt.path)
    r = ask(ws, "rmr", "--dry-run", mnt / "a", mnt / "link")
    assert r == {"removed": 7, "failed": 0, "dry_run": True}
    assert ask(ws, "rmr", "--dry-run", "--skip-trash", mnt / "a")["removed"] == 6
    assert {k: v for k, v in contents(mnt.path).items() if k != "a/hard"} == files


@pytest.mark.parametrize("skip", [False, True])
def test_rmr(ws, skip):
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    make_tree(mnt.path)
    os.mkdir(mnt / "keep")
    os.symlink("../keep", mnt / "a/to-keep")
    write(mnt / "keep/f", b"kept")
    held = open(mnt / "a/one", "rb")
    options = ["--skip-trash"] if skip else []
    assert ask(ws, "rmr", *options, mnt / "a") == {"removed": 7, "failed": 0, "dry_run": False}
    assert ls(mnt) == ["empty", "keep", "link", "three"]
    os.mkdir(mnt / "a")  # the kernel has forgotten the name
    assert read(mnt / "keep/f") == b"kept" and read(mnt / "three") == b"3"
    assert held.read() == data(100_000, 1)
    held.close()
    trashed = sum(len(os.listdir(mnt / ".trash" / h)) for h in os.listdir(mnt / ".trash"))
    assert trashed == (0 if skip else 7)
    assert ask(ws, "rmr", *options, mnt / "link")["removed"] == 1  # not what it points to
    assert os.path.exists(mnt / "three")
    refused(ws, "rmr", *options, mnt, says="root")
    refused(ws, "rmr", *options, mnt / "nothing")


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("path", (".", "./", "b/..", "b/../", "b/.././"))
def test_rmr_by_dots_removes_what_they_mean(ws, mnt, monkeypatch, skip, path):
    """And nothing that happens to have the same name: a/b/.. is a, not a/b/a."""
    os.makedirs(mnt / "a/a/a")
    os.makedirs(mnt / "a/a/b/a")
    os.makedirs(mnt / "a/kept")
    monkeypatch.chdir(mnt / "a/a")
    r = subprocess.run(
        [tool("cachefs"), "rmr", "--json", *(["--skip-trash"] if skip else []), path],
        env=ws.env(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert r.returncode == 0, r.stderr
    assert ls(mnt) == ["a"] and ls(mnt / "a") == ["kept"]


@pytest.mark.parametrize("skip", [False, True])
def test_rmr_goes_on_behind_what_it_cannot_remove(ws, volume, skip):
    mnt = volume.mount()
    for d in "abc":
        os.makedirs(mnt / "t" / d / "x")
        write(mnt / "t" / d / "f", b"1")
    volume.sql("UPDATE jfs_node SET flags=1 WHERE inode=?", os.stat(mnt / "t/b/f").st_ino)
    r = ws.run("cachefs", "rmr", *(["--skip-trash"] if skip else []), mnt / "t")
    assert r.returncode == 2 and r.stderr
    assert contents(mnt / "t") == {"b/f": b"1"} and os.listdir(mnt / "t") == ["b"]
    assert os.listdir(mnt / "t/b") == ["f"]


@pytest.mark.deadline(180)
@pytest.mark.parametrize("skip", [False, True])
def test_rmr_of_wide_and_deep_trees(ws, mnt, skip):
    os.mkdir(mnt / "wide")
    for i in range(3000):
        os.mkdir(mnt / ("wide/%d" % i)) if i % 3 == 0 else write(mnt / ("wide/%d" % i), b"")
    deep = os.open(mnt.path, os.O_RDONLY)
    for i in range(1500):
        os.mkdir("d%d" % i, dir_fd=deep)
        below = os.open("d%d" % i, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    options = ["--skip-trash"] if skip else []
    r = ask(ws, "rmr", *options, mnt / "wide", mnt / "d0", timeout=120)
    assert r == {"removed": 3001 + 1500, "failed": 0, "dry_run": False}
    assert ls(mnt) == []


def test_rmr_spares_what_is_mounted_inside(ws, volume):
    mnt = volume.mount()
    os.makedirs(mnt / "t/inner")
    other = ws.volume(name="other")
    inner = other.mount(path=mnt / "t/inner")
    write(inner / "precious", b"1")
    r = ws.run("cachefs", "rmr", mnt / "t")
    assert r.returncode == 2 and read(mnt / "t/inner/precious") == b"1"
    inner.umount()


# ---- clone


def test_clone(ws, volume):
    mnt = volume.mount()
    os.mkdir(mnt / "src")
    files = make_tree(mnt / "src")
    objects = volume.objects()
    r = ask(ws, "clone", mnt / "src", mnt / "dst")
    assert r["copied"] == 10 and r["inode"] == os.stat(mnt / "dst").st_ino
    assert volume.objects() == objects  # by reference
    assert contents(mnt / "dst") == contents(mnt / "src")
    assert os.readlink(mnt / "dst/link") == "three"
    assert os.getxattr(mnt / "dst/three", "user.note") == b"\0value"
    assert os.stat(mnt / "dst/a").st_nlink == 4 and os.stat(mnt).st_nlink == 4
    # neither sees what happens to the other
    with open(mnt / "dst/a/b/two", "r+b") as f:
        f.write(b"changed")
    assert read(mnt / "src/a/b/two") == files["a/b/two"]
    ws.run("cachefs", "rmr", "--skip-trash", mnt / "src", check=True)
    gc(ws, volume, "--delete", age=0)
    mnt = mnt.remount()
    assert read(mnt / "dst/a/b/two") == b"changed" + files["a/b/two"][7:]
    assert read(mnt / "dst/a/one") == files["a/one"]


def test_clone_preserve(ws, mnt):
    os.mkdir(mnt / "src")
    make_tree(mnt / "src")
    os.chown(mnt / "src/three", 1234, 5678)
    os.utime(mnt / "src/three", ns=(1_111_111_111_000_000_001, 1_222_222_222_000_000_002))
    ask(ws, "clone", "--preserve", mnt / "src", mnt / "kept")
    ask(ws, "clone", mnt / "src", mnt / "mine")
    a, b, c = (os.stat(mnt / d / "three") for d in ("src", "kept", "mine"))
    assert (b.st_uid, b.st_gid, b.st_mtime_ns, b.st_mode) == (1234, 5678, a.st_mtime_ns, a.st_mode)
    assert (c.st_uid, c.st_gid) == (0, 0) and c.st_mtime_ns > a.st_mtime_ns


def test_clone_of_files_and_refusals(ws, mnt):
    write(mnt / "f", data(100_000))
    os.mkdir(mnt / "d")
    name = os.fsdecode(b"\xff\xfe \xc3\xa9%")
    ask(ws, "clone", mnt / "f", mnt / "d" / name)
    assert read(mnt / "d" / name) == data(100_000) and os.listdir(mnt / "d") == [name]
    refused(ws, "clone", mnt / "f", mnt / "d" / name, says="exists")
    refused(ws, "clone", mnt / "nothing", mnt / "g")
    refused(ws, "clone", mnt / "f", mnt / "no/g")
    refused(ws, "clone", mnt / "f", ws.path("outside"))
    refused(ws, "clone", ws.path("vol.db"), mnt / "g")
    ask(ws, "clone", mnt / "d", mnt / "d/itself")
    assert read(mnt / "d/itself" / name) == data(100_000)


def test_clone_keeps_to_quotas(ws, volume):
    mnt = volume.mount()
    os.mkdir(mnt / "src")
    os.mkdir(mnt / "small")
    for i in range(10):
        write(mnt / ("src/%d" % i), data(10_000, i))
    ws.run("cachefs", "quota", "set", volume.url, "--path", "/small", "--inodes", "8", check=True)
    mnt = mnt.remount()
    refused(ws, "clone", mnt / "src", mnt / "small/copy", says="quota")
    assert os.listdir(mnt / "small") == []
    mnt.umount()
    assert volume.sql("SELECT count(*) FROM jfs_detached_node") == [(0,)]


def test_clone_cut_off_leaves_nothing(ws, volume):
    """It cannot get on from when it has begun until the mount knows that the program was killed: the
    database is locked meanwhile."""
    mnt = volume.mount()
    os.makedirs(mnt / "src/0")
    for i in range(400):
        write(mnt / ("src/0/%d" % i), b"x")
    for i in range(1, 10):
        ask(ws, "clone", mnt / "src/0", mnt / ("src/%d" % i))
    p = ws.popen([tool("cachefs"), "clone", str(mnt / "src"), str(mnt / "dst")])
    db = stand_still(volume, p, "SELECT 1 FROM jfs_detached_node")
    asker = children(p.pid)
    p.send_signal(signal.SIGINT)
    assert p.wait(30) != 0
    wait_until(lambda: not any(alive(a) for a in asker), 30, "the end of its request")
    db.close()
    assert not os.path.lexists(mnt / "dst")
    wait_until(lambda: volume.sql("SELECT count(*) FROM jfs_detached_node") == [(0,)], 30)
    mnt.umount()
    assert fsck(ws, volume)["found"] == 0
    assert volume.sql("SELECT count(*) FROM jfs_node WHERE inode > 1 AND inode < ?", TRASH) == [
        (4011,)
    ]


# ---- restore


@pytest.mark.deadline(180)
def test_restore_that_is_interrupted_counts_what_is_back(ws):
    """A quota that lacks what was restored lets more in than it should."""
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    os.mkdir(mnt / "d")
    for i in range(1000):
        write(mnt / ("d/%d" % i), b"x")
    for i in range(1000):
        os.unlink(mnt / ("d/%d" % i))
    h = hour(mnt)
    ask(ws, "quota", "set", vol.url, "--path", "/d", "--inodes", "9999")
    mnt.umount()
    d = vol.sql("SELECT inode FROM jfs_edge WHERE parent=1")[0][0]
    back = "SELECT count(*) FROM jfs_edge WHERE parent=%d" % d
    p = ws.popen([tool("cachefs"), "restore", vol.url, h, "--put-back", "--threads", "3"])
    db = stand_still(vol, p, "SELECT 1 FROM jfs_edge WHERE parent=%d" % d)
    p.send_signal(signal.SIGINT)
    wait_until(lambda: not pending(p.pid), 20, "the signal to be taken")
    db.close()
    assert p.wait(30) == 8
    assert 0 < vol.sql(back)[0][0] < 1000
    assert ask(ws, "quota", "check", vol.url) == []
    assert ask(ws, "restore", vol.url, h, "--put-back")["failed"] == 0
    assert vol.sql(back) == [(1000,)] and ask(ws, "quota", "check", vol.url) == []


@pytest.mark.deadline(180)
def test_restore_counts_trees_that_come_under_a_limit(ws):
    """Their entries return by several threads at once, some of them before their directory has its name again."""
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    os.mkdir(mnt / "q")
    mnt.umount()
    ask(ws, "quota", "set", vol.url, "--path", "/q", "--inodes", "9999")
    mnt = vol.mount()
    for t in range(8):
        os.makedirs(mnt / ("q/t%d/u/v" % t))
        for i in range(30):
            write(mnt / ("q/t%d/u" % t) / ("f%d" % i), b"x")
            write(mnt / ("q/t%d/u/v" % t) / ("g%d" % i), b"x")
    before = contents(mnt / "q")
    for t in range(8):
        shutil.rmtree(mnt / ("q/t%d" % t))
    h = hour(mnt)
    mnt.umount()
    assert ask(ws, "quota", "check", vol.url) == []
    n = 8 * 63
    assert ask(ws, "restore", vol.url, h, "--put-back") == {"restored": n, "skipped": 0, "failed": 0}
    (q,) = ask(ws, "quota", "list", vol.url)
    assert q["used_inodes"] == n
    assert contents(vol.mount("ro") / "q") == before


def test_restore(ws):
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    os.mkdir(mnt / "t")
    files = make_tree(mnt / "t")
    before = contents(mnt / "t")
    shutil.rmtree(mnt / "t")
    h = hour(mnt)
    assert len(os.listdir(mnt / ".trash" / h)) == 10
    r = ask(ws, "restore", vol.url, h)
    assert r == {"restored": 9, "skipped": 1, "failed": 0}
    mnt = mnt.remount()
    (top,) = os.listdir(mnt / ".trash" / h)
    assert top.endswith("-t") and contents(mnt / ".trash" / h / top) == before
    assert ask(ws, "restore", vol.url, h, "--put-back")["restored"] == 1
    mnt = mnt.remount()
    assert contents(mnt / "t") == before and os.listdir(mnt / ".trash" / h) == []
    assert os.stat(mnt / "t/a").st_nlink == 4
    assert read(mnt / "t/a/b/two") == files["a/b/two"]


def test_restore_puts_back_beside_what_is_there(ws):
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    for name in ("taken", "free"):
        write(mnt / name, b"old " + name.encode())
        os.unlink(mnt / name)
    write(mnt / "taken", b"young")
    os.mkdir(mnt / "d")
    write(mnt / "d/f", b"1")
    shutil.rmtree(mnt / "d")
    h = hour(mnt)
    ws.run("cachefs", "rmr", "--skip-trash", *[
        mnt / ".trash" / h / n for n in os.listdir(mnt / ".trash" / h) if n.endswith("-d")
    ], check=True)
    r = ws.run("cachefs", "restore", vol.url, h, "--put-back", "--threads", "3", "--json")
    assert r.returncode == 2
    assert json.loads(r.stdout) == {"restored": 1, "skipped": 0, "failed": 2}
    assert "taken" in r.stderr and "gone" in r.stderr
    mnt = mnt.remount()
    assert read(mnt / "free") == b"old free" and read(mnt / "taken") == b"young"
    assert len(os.listdir(mnt / ".trash" / h)) == 2
    refused(ws, "restore", vol.url, "2001-01-01-00", says="no such hour")


# ---- compact and summary


def test_compact(ws, volume):
    mnt = volume.mount()
    want = {}
    os.mkdir(mnt / "d")
    for name in ("d/a", "d/b"):
        want[name] = b""
        for i in range(4):
            with open(mnt / name, "ab") as f:
                f.write(data(3000, i))
            want[name] += data(3000, i)
    r = ask(ws, "compact", mnt / "d")
    assert (r["files"], r["chunks"], r["records_before"], r["records_after"]) == (2, 2, 8, 2)
    assert r["failed"] == 0
    assert contents(mnt.path) == want
    mnt = mnt.remount()
    assert contents(mnt.path) == want
    refused(ws, "compact", mnt.remount("ro") / "d", code=2)


def test_summary(ws, mnt):
    os.mkdir(mnt / "t")
    make_tree(mnt / "t")
    for i in range(30):
        write(mnt / ("t/many%02d" % i), b"x" * 5000)
    fast = ask(ws, "summary", mnt / "t")
    strict = ask(ws, "summary", mnt / "t", "--strict", "--depth", "0")
    for key in ("size", "files", "dirs", "length"):
        assert fast[key] == strict[key], key
    assert fast["dirs"] == 4 and fast["files"] == 36
    du = 0
    for d, dirs, names in os.walk(mnt / "t"):
        for n in names:
            st = os.lstat(os.path.join(d, n))
            size = st.st_size if not os.path.islink(os.path.join(d, n)) else 0
            du += max(4096, (size + 4095) // 4096 * 4096)
        du += 4096
    assert fast["size"] == du
    assert len(fast["entries"]) == 11 and fast["entries"][0]["name"] == "a"
    assert fast["entries"][-1]["name"] == "..."
    assert sum(e["size"] for e in fast["entries"]) + 4096 == fast["size"]
    assert {e["name"] for e in fast["entries"][0]["entries"]} == {"b", "one", "hard", "nothing"}
    text = ws.run("cachefs", "summary", mnt / "t", "--depth", "1", check=True).stdout
    assert "SIZE" in text and "/t/a/" in text and "two" not in text
    one = ask(ws, "summary", mnt / "t/three")
    assert (one["files"], one["dirs"], one["size"]) == (1, 0, 4096)


def test_summary_has_its_bounds_in_the_mount(mnt):
    """The mount's process limits every request to ten levels and 100 entries."""
    os.makedirs(mnt / "/".join(["t"] * 13))
    for i in range(110):
        write(mnt / ("t/f%d" % i), b"")

    def summary(**bounds):
        request = {"op": "summary", "inode": os.stat(mnt / "t").st_ino, **bounds}
        fd = os.open(mnt / ".control", os.O_RDWR)
        try:
            os.write(fd, json.dumps(request).encode())
            return json.loads(b"".join(iter(lambda: os.read(fd, 65536), b"")))
        finally:
            os.close(fd)

    def levels(entry):
        return 1 + max(map(levels, entry["entries"])) if entry.get("entries") else 0

    assert summary(depth=3, entries=2)["dirs"] == 13
    assert len(summary(depth=1, entries=1 << 40)["entries"]) == 101  # and "..."
    assert levels(summary(depth=1 << 40, entries=100)) == 10
    assert len(summary(depth=1, entries=-1)["entries"]) == 1
    for depth in (-1, -(1 << 40)):
        assert levels(summary(depth=depth, entries=100)) == 0
