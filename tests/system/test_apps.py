# SPDX-License-Identifier: Apache-2.0
"""Programs that people run on file systems. A failure here is an application's data or its build."""

import os
import shutil
import sqlite3
import stat
import sys

import pytest

from cachefs import SLOW, tool, wait_until
from syscalls import data, read, write

FRESH = "attr-cache=0,entry-cache=0,dir-entry-cache=0"


def need(name):
    if not shutil.which(name):
        pytest.skip(name + " is not installed (scripts/install-deps test)")


# ---- git


def git(ws, where, *args, **kw):
    identity = {"HOME": str(ws.dir), "GIT_CONFIG_NOSYSTEM": "1"}
    for role in ("AUTHOR", "COMMITTER"):
        identity["GIT_%s_NAME" % role] = "tester"
        identity["GIT_%s_EMAIL" % role] = "tester@localhost"
    return ws.run("git", "-C", where, *args, timeout=80, check=True, env=identity, **kw)


def test_git(ws, mnt):
    """Clone onto the mount, commit, gc, fsck, and clone it back."""
    need("git")
    origin, work, back = ws.path("origin"), mnt / "work", ws.path("back")
    origin.mkdir()
    git(ws, origin, "init", "-q", "-b", "main")
    for commit in range(5):
        for i in range(40):
            d = origin / ("dir%d" % (i % 8))
            d.mkdir(exist_ok=True)
            write(d / ("f%d" % i), data(2000 + i, commit * 1000 + i))
        git(ws, origin, "add", "-A")
        git(ws, origin, "commit", "-q", "-m", "commit %d" % commit)
    git(ws, mnt.path, "clone", "-q", "--no-local", "file://%s" % origin, work)
    for i in range(5):
        write(work / ("mine%d" % i), data(30_000, i))
        git(ws, work, "add", "-A")
        git(ws, work, "commit", "-q", "-m", "mine %d" % i)
    git(ws, work, "mv", "dir0", "renamed")
    git(ws, work, "commit", "-q", "-m", "renamed")
    git(ws, work, "gc", "-q", "--prune=now")
    git(ws, work, "fsck", "--full", "--strict")
    assert git(ws, work, "status", "--porcelain").stdout == ""
    head = git(ws, work, "rev-parse", "HEAD^{tree}").stdout
    mnt = mnt.remount()
    git(ws, work, "fsck", "--full", "--strict")
    git(ws, work, "reset", "-q", "--hard", "HEAD")
    assert git(ws, work, "status", "--porcelain").stdout == ""
    git(ws, ws.dir, "clone", "-q", "--no-local", "file://%s" % work, back)
    assert git(ws, back, "rev-parse", "HEAD^{tree}").stdout == head


# ---- building


def test_build_with_make(ws, mnt):
    """Time stamps, generated files, executables run from the mount; nothing is built twice."""
    need("make")
    src = mnt / "project"
    os.mkdir(src)
    names = ["m%02d" % i for i in range(12)]
    for n in names:
        write(src / (n + ".c"), ('#include "all.h"\nint %s(void) { return %d; }\n' % (n, 1)).encode())
    write(src / "all.h", "".join("int %s(void);\n" % n for n in names).encode())
    sums = " + ".join(n + "()" for n in names)
    write(src / "main.c", ('#include "all.h"\nint main(void) { return %s; }\n' % sums).encode())
    write(
        src / "Makefile",
        b"OBJ = $(patsubst %.c,%.o,$(wildcard *.c))\n"
        b"prog: lib.a main.o\n\tgcc -o $@ main.o lib.a\n"
        b"lib.a: $(filter-out main.o,$(OBJ))\n\trm -f $@\n\tar rcs $@ $^\n"
        b"%.o: %.c all.h\n\tgcc -g -c -o $@ $<\n",
    )

    def make(*args):
        return ws.run("make", "-C", src, *args, timeout=80, check=True).stdout

    make("-j2")
    assert ws.run(src / "prog").returncode == len(names)
    assert "up to date" in make()
    write(src / "m03.c", b'#include "all.h"\nint m03(void) { return 5; }\n')
    out = make()
    assert out.count("gcc -g -c") == 1, out
    assert ws.run(src / "prog").returncode == len(names) + 4


# ---- SQLite

WRITER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)
db.execute("PRAGMA journal_mode=" + sys.argv[2])
db.execute("PRAGMA synchronous=FULL")
db.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, v BLOB, again INTEGER)")
db.execute("CREATE INDEX IF NOT EXISTS ti ON t (again)")
n = db.execute("SELECT count(*) FROM t").fetchone()[0]
while True:
    db.execute("BEGIN IMMEDIATE")
    for i in range(n, n + 5):
        db.execute("INSERT INTO t VALUES (?, randomblob(3000), ?)", (i, i))
    db.execute("COMMIT")
    n += 5
    print(n, flush=True)
"""


@pytest.mark.deadline(240)
@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_sqlite_survives_kill(ws, volume, journal):
    """What was committed is there and the database is whole after each death of the mount."""
    volume.check_options = {"leaks": "warn", "unmounted": False}
    for kill in range(3):
        mnt = volume.mount("heartbeat=1")
        path = mnt / "db"
        out = ws.path("committed%d" % kill)
        w = ws.popen(
            [sys.executable, "-c", WRITER, path, journal], stdout=open(out, "wb"), stderr=-2
        )

        def committed():
            lines = [x for x in read(out).split(b"\n")[:-1] if x.isdigit()]
            assert w.poll() is None, read(out)[-2000:]
            return int(lines[-1]) if len(lines) >= 8 else 0

        wait_until(committed, 60, "commits")
        mnt.kill9()
        w.wait(60 * SLOW)
        known = max(int(x) for x in read(out).split(b"\n") if x.isdigit())
        mnt = volume.mount("heartbeat=1")
        db = sqlite3.connect(mnt / "db", timeout=20 * SLOW)
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        n, top = db.execute("SELECT count(*), max(id) FROM t").fetchone()
        assert n >= known and n == top + 1 and n % 5 == 0, (n, top, known)
        db.close()
        mnt.umount()


# ---- copying trees


def make_tree(root):
    os.mkdir(root)
    for i in range(30):
        d = root / ("d%d" % (i % 5))
        os.makedirs(d / "deep/er", exist_ok=True)
        write(d / ("f%d" % i), data(i * 1111, i))
    with open(root / "sparse", "wb") as f:
        f.truncate(20 << 20)
        f.seek(10 << 20)
        f.write(b"in the middle")
    os.link(root / "d1/f1", root / "d2/hard")
    os.symlink("../dangling", root / "link")
    os.mkfifo(root / "fifo", 0o640)
    os.mknod(root / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.setxattr(root / "d1/f1", "user.name", b"value\0with zero")
    os.setxattr(root / "d1", "user.on-dir", b"")
    os.setxattr(root / "d2", "trusted.t", b"x" * 500)
    os.chown(root / "d3/f3", 1001, 2001)
    os.chmod(root / "d3/f3", 0o4750)
    os.chmod(root / "d4", 0o3771)
    write(root / "name with \n newline", b"1")
    write(os.fsencode(root) + b"/\xff\xfe not UTF-8", b"2")
    os.utime(root / "d0/f0", ns=(1_000_000_001, 1_234_567_890_123_456_789))


def describe(root):
    """Everything of a tree that a copy must keep, by path."""
    out, inodes = {}, {}
    root = os.fsencode(root)
    for here, dirs, files in os.walk(root):
        for path in [here] + [os.path.join(here, n) for n in dirs + files]:
            name = os.path.relpath(path, root)
            st = os.lstat(path)
            about = [stat.S_IFMT(st.st_mode), stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid]
            if not stat.S_ISLNK(st.st_mode):
                # rsync -H leaves other times on directories, whatever the file system
                about += [0 if stat.S_ISDIR(st.st_mode) else st.st_mtime_ns, st.st_rdev]
            else:
                about.append(os.readlink(path))
            if stat.S_ISREG(st.st_mode):
                about += [st.st_nlink, inodes.setdefault(st.st_ino, name), read(path)]
            about += sorted(
                (n, os.getxattr(path, n, follow_symlinks=False))
                for n in os.listxattr(path, follow_symlinks=False)
            )
            out[name] = about
    return out


def same_trees(a, b):
    a, b = describe(a), describe(b)
    assert sorted(a) == sorted(b)
    for name in a:
        # hard links are the same set, whichever name is met first
        left = [x for x in a[name] if not isinstance(x, bytes) or len(x) > 4096]
        right = [x for x in b[name] if not isinstance(x, bytes) or len(x) > 4096]
        assert left == right, "%s: %.300r, want %.300r" % (name, right, left)
        if stat.S_ISREG(a[name][0]):
            assert a[name][8] == b[name][8], name


def test_rsync_keeps_acls(ws):
    need("rsync")
    need("setfacl")
    mnt = ws.volume(enable_acl=True).mount()
    local, back = ws.path("tree"), ws.path("back")
    os.makedirs(local / "dir")
    write(local / "file", b"1")
    for path in (local / "dir", local / "file"):
        ws.run("setfacl", "-m", "u:1001:rw,g:2002:r", path, check=True)
    ws.run("setfacl", "-d", "-m", "u:1001:rwx", local / "dir", check=True)
    ws.run("rsync", "-aHAX", "%s/" % local, mnt / "copy", check=True)
    ws.run("rsync", "-aHAX", "%s/" % (mnt / "copy"), back, check=True)
    for name in ("dir", "file"):
        want = ws.run("getfacl", "-cpn", local / name, check=True).stdout
        assert "user:1001:rw" in want
        assert ws.run("getfacl", "-cpn", mnt / "copy" / name, check=True).stdout == want
        assert ws.run("getfacl", "-cpn", back / name, check=True).stdout == want


def test_tar_round_trip(ws, mnt):
    local, back, archive = ws.path("tree"), ws.path("back"), mnt / "archive.tar"
    make_tree(local)
    flags = ["--xattrs", "--xattrs-include=*", "--numeric-owner", "-S", "--format=pax"]
    os.mkdir(mnt / "copy")
    back.mkdir()
    ws.run("tar", *flags, "-C", local, "-cf", archive, ".", timeout=80, check=True)
    ws.run("tar", *flags, "-C", mnt / "copy", "-xpf", archive, timeout=80, check=True)
    same_trees(local, mnt / "copy")
    mnt = mnt.remount()
    ws.run("tar", *flags, "-C", mnt / "copy", "-cf", ws.path("2.tar"), ".", timeout=80, check=True)
    ws.run("tar", *flags, "-C", back, "-xpf", ws.path("2.tar"), timeout=80, check=True)
    same_trees(local, back)


# ---- fio


@pytest.mark.long
@pytest.mark.parametrize("engine", ["psync", "libaio", "io_uring", "mmap"])
def test_fio_verifies(ws, mnt, engine):
    """Random blocks of several sizes, each with its own checksum; read back after a remount too."""
    need("fio")
    common = ["--name=v", "--filename=%s" % (mnt / "fio"), "--ioengine=%s" % engine]
    common += ["--rw=randwrite", "--size=48m", "--bsrange=4k-128k", "--verify=crc32c"]
    common += ["--verify_fatal=1", "--iodepth=8", "--randseed=7", "--group_reporting"]
    common += ["--allow_file_create=1", "--verify_state_save=0", "--fallocate=none"]
    r = ws.run("fio", *common, "--do_verify=1", "--end_fsync=1", timeout=80)
    if "engine not loadable" in r.stderr or "Operation not permitted" in r.stderr:
        pytest.skip("no %s here" % engine)
    assert r.returncode == 0, r.stdout[-3000:] + r.stderr[-3000:]
    mnt = mnt.remount()
    r = ws.run("fio", *common, "--verify_only=1", timeout=80)
    assert r.returncode == 0, r.stdout[-3000:] + r.stderr[-3000:]


# ---- rename storms

STORM = """
import ctypes, errno, os, random, sys
sys.path.insert(0, sys.argv[1])
from syscalls import renameat2, RENAME_EXCHANGE, RENAME_NOREPLACE
top, seed, n_dirs, n_files, n_ops = sys.argv[2], *map(int, sys.argv[3:7])
rng = random.Random(seed)
done = 0
for _ in range(n_ops):
    a = "%s/d%d/f%d" % (top, rng.randrange(n_dirs), rng.randrange(n_files))
    b = "%s/d%d/f%d" % (top, rng.randrange(n_dirs), rng.randrange(n_files))
    how = rng.choice((RENAME_NOREPLACE, RENAME_NOREPLACE, RENAME_EXCHANGE))
    try:
        renameat2(a, b, how)
        done += 1
    except OSError as e:
        # ESTALE: the kernel met a directory under two names at once and its locks were taken
        if e.errno not in (errno.ENOENT, errno.EEXIST, errno.ESTALE):
            raise
print(done)
"""


@pytest.mark.parametrize("kind", ["files", "directories"])
def test_rename_storm_from_two_mounts(ws, volume, kind):
    """Names that move between directories from two mounts at once: each is there exactly once."""
    mounts = [volume.mount(FRESH), volume.mount(FRESH)]
    top = mounts[0] / "storm"
    os.mkdir(top)
    n_dirs, n_files = 4, 12
    contents = set()
    for d in range(n_dirs):
        os.mkdir(top / ("d%d" % d))
        for f in range(0, n_files, 2):
            name = "%d-%d" % (d, f)
            contents.add(name)
            place = top / ("d%d/f%d" % (d, f))
            if kind == "files":
                write(place, name.encode())
            else:
                os.mkdir(place)
                write(place / "inside", name.encode())
    here = os.path.dirname(os.path.abspath(__file__))
    storms = []
    for i in range(4):
        out = ws.path("storm%d" % i)
        argv = [sys.executable, "-c", STORM, here, mounts[i % 2] / "storm", i, n_dirs, n_files, 400]
        storms.append((ws.popen(argv, stdout=open(out, "wb"), stderr=-2), out))
    for p, out in storms:
        assert p.wait(80 * SLOW) == 0, read(out)[-2000:].decode()
        assert int(read(out)) > 20
    for m in mounts:
        found = []
        for d in range(n_dirs):
            for name in os.listdir(m / "storm" / ("d%d" % d)):
                path = m / "storm" / ("d%d" % d) / name
                found.append(read(path if kind == "files" else path / "inside").decode())
        assert sorted(found) == sorted(contents)
