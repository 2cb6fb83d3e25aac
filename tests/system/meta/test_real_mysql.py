# SPDX-License-Identifier: Apache-2.0
"""MySQL itself as the metadata engine, where scripts/install-mysql has put it (the other tests of the
engine run on MariaDB; on this one with CACHEFS_TEST_MYSQL=mysql). A failure here is a user of MySQL
who cannot log in, or for whom each change takes as many round trips as it has statements."""

import concurrent.futures
import json
import os

import pytest

import servers
from cachefs import SLOW, Volume, wait_until
from countproxy import CountingProxy
from syscalls import read, write
from test_engines import suite
from test_mysql import query, refused

pytestmark = [
    pytest.mark.module("mysql"),
    pytest.mark.skipif(not servers.Mysql.installed(), reason="run scripts/install-mysql"),
]


@pytest.fixture
def database(ws):
    db = servers.mysql_server().database()
    ws.cleanups.append(db.drop)
    return db


@pytest.mark.deadline(300)
def test_conformance(ws, database):
    suite(ws, database.url)


def test_unix_socket(ws, database):
    suite(ws, database.unix_url, "names")


def test_login(ws):
    """With the server's default, caching_sha2_password, with and without encryption; the first time,
    when the server does not know the password yet."""
    with servers.Mysql() as server:
        db = server.database()
        refused(ws, db.url.replace(servers.QUOTED, "wrong"), "wrong user name or password")
        Volume(ws, url=db.url)
        assert query(db, "SELECT plugin FROM mysql.user WHERE user='%s'" % servers.USER) == (
            ("caching_sha2_password",),
        )
        server.stop()
        server.start()
        ws.run("cachefs", "status", db.url + "?tls=skip-verify", check=True)
        r = ws.run("cachefs", "status", db.url, env={"MARIADB_PLUGIN_DIR": "/nowhere"})
        assert r.returncode != 0 and "caching_sha2_password" in r.stderr, r.stderr


def test_statement_over_its_time(ws):
    """max_execution_time ends what reads and waits for a lock: the operation is tried again."""
    with servers.Mysql("--max-execution-time=500") as server:
        db = server.database()
        m = Volume(ws, url=db.url).mount("heartbeat=60")
        m.allow("statement stopped by the server")
        os.mkdir(m / "d")
        other = db.connect()
        with other.cursor() as cur, concurrent.futures.ThreadPoolExecutor(1) as pool:
            cur.execute("SELECT inode FROM jfs_node WHERE inode=%d FOR UPDATE" % os.stat(m / "d").st_ino)
            job = pool.submit(write, m / "d/f", b"1")
            wait_until(lambda: "maximum statement execution time" in m.log() or job.done(), 20)
            other.rollback()
            job.result(timeout=30 * SLOW)
        other.close()
        assert "maximum statement execution time" in m.log() and read(m / "d/f") == b"1"
        m.umount()


def test_create_a_millisecond_away(ws, database):
    """2.5 ms at most, whatever the server has to do for it; one statement at a time took 7."""
    proxy = CountingProxy(database.server.port, delay_s=0.0005)
    ws.cleanups.append(proxy.close)
    port = ":%d" % database.server.port
    v = Volume(ws, url=database.url.replace(port, ":%d" % proxy.port))
    took, turns = [], []
    while len(took) < 5 and (not took or took[-1] > 2500 or turns[-1] >= 1.2):  # the machine may be busy
        shape = ("--depth", "0", "--dirs", "1", "--files", "200", "--threads", "1")
        r = ws.run("cachefs", "mdtest", "--json", *shape, v.url, timeout=60 * SLOW, check=True)
        ops = {o["name"]: o for o in json.loads(r.stdout)["operations"]}
        turns.append(ops["create"]["round_trips"])
        took.append(ops["create"]["p50_us"])
    print(took, turns)
    assert min(turns) < 1.2
    assert min(took) <= 2500 * SLOW
