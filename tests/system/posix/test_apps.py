# SPDX-License-Identifier: Apache-2.0
"""Programs that people run on file systems. A failure here is an application's data or its build."""

import contextlib
import os
import pathlib
import pwd
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile

import pytest

from cachefs import REPO, SLOW, missing, need_program, wait_until
from syscalls import data, read, write

FRESH = "attr-cache=0,entry-cache=0,dir-entry-cache=0"


# ---- git


def git(ws, where, *args, **kw):
    identity = {"HOME": str(ws.dir), "GIT_CONFIG_NOSYSTEM": "1"}
    for role in ("AUTHOR", "COMMITTER"):
        identity["GIT_%s_NAME" % role] = "tester"
        identity["GIT_%s_EMAIL" % role] = "tester@localhost"
    return ws.run("git", "-C", where, *args, timeout=80, check=True, env=identity, **kw)


def test_git(ws, mnt):
    """Clone onto the mount, commit, gc, fsck, and clone it back."""
    need_program("git")
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
    need_program("make")
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
    """Committed data is there and the database is whole after each death of the mount."""
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
        # Until then SQLite sees the locks of the dead, and believes the index of the log they left.
        wait_until(lambda: len(volume.status()["sessions"]) == 1, 30, "the end of the old session")
        db = sqlite3.connect(mnt / "db", timeout=20 * SLOW)
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        n, top = db.execute("SELECT count(*), max(id) FROM t").fetchone()
        assert n >= known and n == top + 1 and n % 5 == 0, (n, top, known)
        db.close()
        mnt.umount()


# ---- PostgreSQL

PG_USER = "postgres"


class Postgres:
    """A server of its own on a data directory, with a socket in a directory of its own."""

    def __init__(self, ws, data_dir):
        self.ws, self.data_dir = ws, data_dir
        self.account = pwd.getpwnam(PG_USER)
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="cachefs-pg."))  # 107 bytes at most
        os.chown(self.sockets, self.account.pw_uid, self.account.pw_gid)
        ws.cleanups.append(lambda: shutil.rmtree(self.sockets, ignore_errors=True))
        self.server = None

    def popen(self, program, *args, **kw):
        # the workspace of the test is root's
        return self.ws.popen(
            [self.programs()[-1] / program, *args],
            user=self.account.pw_uid,
            group=self.account.pw_gid,
            extra_groups=[],
            **kw,
        )

    @staticmethod
    def programs():
        return sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))

    def initdb(self):
        log = self.ws.path("initdb.log")
        args = ["-D", self.data_dir, "-A", "trust", "--no-locale", "-E", "UTF8"]
        p = self.popen("initdb", *args, stdout=open(log, "wb"), stderr=-2)
        assert p.wait(80 * SLOW) == 0, read(log)[-3000:].decode()

    def start(self):
        log = self.ws.path("postgres.log")
        args = ["-D", self.data_dir, "-k", self.sockets, "-c", "listen_addresses="]
        args += ["-c", "shared_buffers=8MB", "-c", "dynamic_shared_memory_type=mmap"]
        args += ["-c", "max_wal_size=48MB", "-c", "checkpoint_timeout=30s"]
        self.server = self.popen("postgres", *args, stdout=open(log, "ab"), stderr=-2)

        def ready():
            assert self.server.poll() is None, read(log)[-3000:].decode()
            return self.popen("pg_isready", "-q", "-h", self.sockets).wait(20) == 0

        wait_until(ready, 60, "the server")

    def kill(self):
        """All processes of the server, as a machine that stops."""
        for pid, argv in self.ws.processes():
            if argv.startswith("postgres:") or "/postgres " in argv:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.server.wait(20)
        wait_until(lambda: not any("postgres" in p[1] for p in self.ws.processes()), 20, "its end")

    def stop(self):
        self.server.send_signal(signal.SIGINT)  # fast shutdown, with a checkpoint
        assert self.server.wait(60 * SLOW) == 0

    def sql(self, query):
        out = self.ws.path("psql.out")
        args = ["-h", self.sockets, "-d", "postgres", "-XAtq", "-v", "ON_ERROR_STOP=1", "-c", query]
        p = self.popen("psql", *args, stdout=open(out, "wb"), stderr=-2)
        assert p.wait(60 * SLOW) == 0, read(out).decode()
        return read(out).decode().strip()


PG_WRITER = """
for i in $(seq 1000000); do
	echo "BEGIN;"
	echo "INSERT INTO t SELECT g, repeat(md5(g::text), 20) FROM generate_series($i * 10, $i * 10 + 9) g;"
	echo "UPDATE n SET v = v + 10;"
	echo "COMMIT;"
	echo "SELECT v FROM n;"
done
"""


@pytest.mark.deadline(300)
def test_postgres_survives_kill(ws, volume):
    """Committed data is there after the mount and the server die together, and again."""
    if not Postgres.programs():
        missing("postgresql is not installed (scripts/install-deps test)")
    volume.check_options = {"leaks": "warn", "unmounted": False}
    mnt = volume.mount("heartbeat=1,allow_other")
    os.chmod(ws.dir, 0o711)  # the way to the mount
    os.mkdir(mnt / "pg", 0o700)
    db = Postgres(ws, mnt / "pg")
    os.chown(mnt / "pg", db.account.pw_uid, db.account.pw_gid)
    db.initdb()
    db.start()
    db.sql("CREATE TABLE t (id bigint PRIMARY KEY, v text); CREATE TABLE n AS SELECT 0::bigint AS v")
    for kill in range(2):
        db.sql("TRUNCATE t; UPDATE n SET v = 0")
        out = ws.path("committed%d" % kill)
        statements = ws.popen(["bash", "-c", PG_WRITER], stdout=subprocess.PIPE)
        args = ["-h", db.sockets, "-d", "postgres", "-XAtq", "-v", "ON_ERROR_STOP=1"]
        writer = db.popen(
            "psql", *args, stdin=statements.stdout, stdout=open(out, "wb"), stderr=subprocess.DEVNULL
        )
        statements.stdout.close()

        def committed():
            assert writer.poll() is None
            return read(out).count(b"\n") > 60

        wait_until(committed, 60, "commits")
        mnt.kill9()
        db.kill()
        writer.wait(20)
        known = max(int(x) for x in read(out).split(b"\n")[:-1])
        mnt = volume.mount("heartbeat=1,allow_other", path=mnt.path)
        db.start()
        v, n, ids = db.sql("SELECT n.v, count(t.id), count(DISTINCT id) FROM n, t GROUP BY 1").split("|")
        assert int(v) == int(n) == int(ids) >= known > 0
        assert db.sql("SELECT count(*) FROM t WHERE v <> repeat(md5(id::text), 20)") == "0"
        db.sql("REINDEX TABLE t")
        db.sql("VACUUM FULL t")
    db.stop()
    mnt = mnt.remount()
    db.start()
    assert db.sql("SELECT v FROM n") == v
    db.stop()


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
    # rsync leaves times alone that differ by less than a second from what it has just made
    for i, path in enumerate(sorted(p for p in root.rglob("*") if p.is_symlink() or not p.is_dir())):
        os.utime(path, ns=(1, 1_234_567_890_123_456_789 + i), follow_symlinks=False)


def describe(root):
    """Everything of a tree that a copy must keep, by path."""
    out, names = {}, {}
    root = os.fsencode(root)
    for here, dirs, files in os.walk(root):
        for path in [here] + [os.path.join(here, n) for n in dirs + files]:
            st = os.lstat(path)
            about = out[os.path.relpath(path, root)] = {
                "type": stat.S_IFMT(st.st_mode),
                "mode": oct(stat.S_IMODE(st.st_mode)),
                "owner": (st.st_uid, st.st_gid),
                "xattrs": {
                    n: os.getxattr(path, n, follow_symlinks=False)
                    for n in os.listxattr(path, follow_symlinks=False)
                },
            }
            # rsync -H leaves other times on directories, whatever the file system
            if not stat.S_ISDIR(st.st_mode):
                about["mtime"] = st.st_mtime_ns
                names.setdefault(st.st_ino, set()).add(os.path.relpath(path, root))
                about["names"] = names[st.st_ino]
                about["nlink"] = st.st_nlink
            if stat.S_ISLNK(st.st_mode):
                about["target"] = os.readlink(path)
            if stat.S_ISREG(st.st_mode):
                about["content"] = read(path)
            if stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
                about["device"] = st.st_rdev
    return out


def same_trees(a, b):
    want, got = describe(a), describe(b)
    assert sorted(want) == sorted(got)
    for name in want:
        for key in want[name]:
            assert got[name][key] == want[name][key], "%s of %r" % (key, name)


def add_acls(ws, root):
    for name in ("d0", "d1/f1", "d3/f3", "d4"):
        ws.run("setfacl", "-m", "u:1001:rw,g:2002:r", root / name, check=True)
    ws.run("setfacl", "-d", "-m", "u:1001:rwx,g::-,o::-", root / "d0", check=True)
    write(root / "d0/heir", b"1")
    os.utime(root / "d0/heir", ns=(1, 1_000_000_000_000_000_001))
    os.chmod(root / "d2/f2", 0)
    os.chmod(root / "d2/f7", 0o6111)
    os.setxattr(root / "d2/f7", "user.x", b"")
    os.lchown(root / "link", 1003, 2003)


def acls(ws, root):
    text = ws.run("sh", "-c", 'cd "$1" && getfacl -RPpn .', "sh", root, check=True).stdout
    return sorted(text.split("\n\n"))


def test_rsync_round_trip(ws):
    """rsync -aHAX to the mount and back gives what it gives on a local file system. That is not all
    of the original: where an ACL's group entry equals its mask, rsync 3.2 clears the entry."""
    need_program("rsync")
    need_program("setfacl")
    mnt = ws.volume(enable_acl=True).mount()
    local, there, here = ws.path("tree"), mnt / "copy", ws.path("copy")
    make_tree(local)
    add_acls(ws, local)

    def rsync(a, b, *more):
        argv = ["rsync", "-aHAX", "--numeric-ids", *more, "%s/" % a, b]
        return ws.run(*argv, timeout=80, check=True).stdout

    def same():
        same_trees(here, there)
        assert acls(ws, there) == acls(ws, here)

    rsync(local, there)
    rsync(local, here)
    same()
    # nothing is left to do, by times and sizes and by contents
    for more in ([], ["-c"]):
        assert rsync(local, there, "-ni", *more) == rsync(local, here, "-ni", *more)
    # what changes is carried over what is there
    os.unlink(local / "d1/f6")
    os.link(local / "d1/f11", local / "d1/f6")
    with open(local / "d1/f16", "r+b") as f:
        f.seek(5000)
        f.write(b"changed")
    os.utime(local / "d1/f16", ns=(1, 1_000_000_000_000_000_002))
    os.unlink(local / "fifo")
    ws.run("setfacl", "-b", local / "d3/f3", check=True)
    os.removexattr(local / "d1", "user.on-dir")
    for copy in (here, there):
        rsync(local, copy, "-S", "--delete")
    same()
    mnt = mnt.remount()
    same()
    rsync(there, ws.path("back"), "-S")
    rsync(here, ws.path("again"), "-S")
    same_trees(ws.path("again"), ws.path("back"))
    assert acls(ws, ws.path("again")) == acls(ws, ws.path("back"))


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
    need_program("fio")
    common = ["--name=v", "--filename=%s" % (mnt / "fio"), "--ioengine=%s" % engine]
    common += ["--rw=randwrite", "--size=48m", "--bsrange=4k-128k", "--verify=crc32c"]
    common += ["--verify_fatal=1", "--iodepth=8", "--randseed=7", "--group_reporting"]
    common += ["--allow_file_create=1", "--verify_state_save=0", "--fallocate=none"]
    r = ws.run("fio", *common, "--do_verify=1", "--end_fsync=1", timeout=80)
    if "engine not loadable" in r.stderr:
        missing("fio has no " + engine)
    if "Operation not permitted" in r.stderr:
        pytest.skip("the kernel forbids " + engine)
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
    storms = []
    for i in range(4):
        out = ws.path("storm%d" % i)
        argv = [sys.executable, "-c", STORM, REPO / "tests" / "system", mounts[i % 2] / "storm", i, n_dirs, n_files, 400]
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
