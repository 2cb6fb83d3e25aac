# SPDX-License-Identifier: Apache-2.0
"""Database servers at their limits: a full disk, no connection left. A failure here is a half-made
file, or a mount that has to be restarted when the limit is gone. (Redis: test_redis.py.)"""

import concurrent.futures
import contextlib
import errno
import os
import random
import subprocess

import pytest

import cachefs_check
import servers
from cachefs import Volume, need_engine, need_root, wait_until
from syscalls import read, write

ROOM = 3 << 20  # left on the server's disk
BIG = random.Random(1).randbytes(2000).hex()  # does not compress; half a page of the server


def judge(v, mount):
    mount.umount()
    found, _ = cachefs_check.check(v.url, str(v.bucket), cachefs_check.Options(unmounted=True))
    assert not found, "\n".join("%s: %s" % f for f in found[:20])


@pytest.fixture
def disk(ws):
    """A disk of 256 MiB."""
    need_root()
    point = ws.path("disk")
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "cachefs-test", point], check=True)
    ws.cleanups.append(lambda: subprocess.run(["umount", "-l", point], check=True))
    os.chmod(point, 0o755)
    return point


def server_on(ws, kind, disk):
    return servers.started(ws, type("Small", (kind,), {"where": str(disk)})())


def fill(disk):
    """All but a little; what it returns is to be removed."""
    hog = disk / "hog"
    st = os.statvfs(disk)
    with open(hog, "wb") as f:
        os.posix_fallocate(f.fileno(), 0, st.f_bavail * st.f_frsize - ROOM)
    return hog


def make_until_refused(top, n=5000):
    """(names that were made, the name that was not, its error)"""
    made = []
    for i in range(n):
        path = "%s/link%d" % (top, i)
        try:
            os.symlink(BIG, path)
        except OSError as e:
            return made, path, e.errno
        made.append(path)
    raise AssertionError("the disk never was full")


@pytest.mark.deadline(180)
@pytest.mark.parametrize("kind", [servers.Mariadb, servers.Postgres])
def test_full_disk_is_no_space(ws, disk, kind):
    need_engine(kind.scheme)
    s = server_on(ws, kind, disk)
    v = Volume(ws, url=s.database().url)
    m = v.mount("attr-cache=0,entry-cache=0")
    m.allow(r"(mysql|postgresql): .*(is full|No space left)")
    top = m.path / "d"
    top.mkdir()
    write(top / "f", b"content")
    if kind is servers.Postgres:  # a log of its own for what follows, which is not what fills up
        c = s.connect(s.admin_database)
        c.autocommit = True
        with c.cursor() as cur:
            cur.execute("CHECKPOINT")
            cur.execute("SELECT pg_switch_wal()")
            cur.execute("CHECKPOINT")
        c.close()
    hog = fill(disk)
    made, refused, error = make_until_refused(top)
    assert errno.errorcode[error] == "ENOSPC"
    assert "No space left" in m.log() or "is full" in m.log(), m.log()
    assert not os.path.lexists(refused)
    assert read(top / "f") == b"content"
    assert all(os.readlink(p) == BIG for p in made[-5:])
    os.unlink(hog)
    os.symlink(BIG, refused)
    write(top / "again", b"later")
    for p in made:
        os.unlink(p)
    assert sorted(os.listdir(top)) == sorted(["again", "f", os.path.basename(refused)])
    judge(v, m)


@pytest.mark.module("mysql")
def test_mariadb_out_of_connections(ws):
    """A mount makes do with those it gets; whoever gets none is told what to raise."""
    with servers.Mariadb("--max-connections=6") as s:
        v = Volume(ws, url=s.database().url)
        s._admin(
            "CREATE USER plain@'%' IDENTIFIED BY 'p'",
            "GRANT SELECT,INSERT,UPDATE,DELETE,CREATE,ALTER,INDEX,DROP ON *.* TO plain@'%'",
        )
        v.url = v.url.replace("%s:%s@" % (servers.USER, servers.QUOTED), "plain:p@")
        m = v.mount("attr-cache=0,entry-cache=0")
        m.allow("connection")

        def work(k):
            os.mkdir(m.path / str(k))
            for i in range(30):
                write(m.path / str(k) / str(i), b"x")
                os.rename(m.path / str(k) / str(i), m.path / str(k) / ("r%d" % i))

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            list(pool.map(work, range(12)))
        assert all(len(os.listdir(m.path / str(k))) == 30 for k in range(12))
        with contextlib.ExitStack() as taken:
            take_all(s, taken)
            r = ws.run("cachefs", "status", v.url)
            assert r.returncode and "no connection left" in r.stderr, r.stderr
            assert "max_connections" in r.stderr
            os.mkdir(m.path / "still")  # over those it has
        m.umount()
        wait_until(lambda: ws.run("cachefs", "status", v.url).returncode == 0, 30)


def take_all(server, stack):
    """Every connection that is free, of a user without privileges."""
    import pymysql

    while True:
        try:
            c = pymysql.connect(host="127.0.0.1", port=server.port, user="plain", password="p")
        except pymysql.err.OperationalError as e:
            assert e.args[0] == 1040, e  # Too many connections
            return
        stack.callback(c.close)
