# SPDX-License-Identifier: Apache-2.0
"""MariaDB as the metadata engine: real servers, killed, filled up, misconfigured. A failure here is
a mount that does not come back, a change lost or made twice, or a user left without an explanation."""

import concurrent.futures
import contextlib
import json
import os
import stat
import threading

import pytest

import servers
from cachefs import SLOW, Volume, wait_until
from mysqlproxy import WAYS, MysqlProxy
from network import SEVERAL, SilentFirst
from slowproxy import SlowProxy
from syscalls import data, fails, read, write
from test_engines import suite
from test_fixtures import differences, manifest, nothing, wanted

pytestmark = pytest.mark.module("mysql")
MARIADB = servers.Mariadb is not servers.Mysql
mariadb = pytest.mark.skipif(not MARIADB, reason="a proxy puts SQL of MariaDB into the operation")
LOST = r"connection lost|no connection to the database|connected to the database again|" \
       r"database away|metadata engine does not answer"  # fmt: skip


@pytest.fixture
def database(ws):
    db = servers.mariadb_server().database()
    ws.cleanups.append(db.drop)
    return db


@pytest.fixture
def own(ws):
    """A server of the test's own, to be killed."""
    return servers.started(ws, servers.Mariadb("--innodb-flush-log-at-trx-commit=2"))


def checked(ws, url):
    r = ws.run("cachefs", "fsck", url)
    assert r.returncode == 0, r.stdout + r.stderr


def query(db, text):
    c = db.connect()
    with c.cursor() as cur:
        cur.execute(text)
        rows = cur.fetchall()
    c.close()
    return rows


def status_of(db, name):
    return int(query(db, "SHOW GLOBAL STATUS LIKE '%s'" % name)[0][1])


# ---- JuiceFS's volume ----


@pytest.fixture
def golden(ws, database):
    database.load_fixture("mysql")
    return Volume.golden(ws, "mysql", database.url)


def test_golden_volume_matches_its_manifest(ws, golden):
    m = golden.mount("ro")
    nothing(differences(manifest(ws, m), wanted("mysql")))


def test_golden_volume_can_be_used(ws, golden):
    m = golden.mount("no-bgjob")
    content = data(3_000_000)
    write(m / "mine", content)
    os.rename(m / "mine", m / "ours")
    os.mkdir(m / "dir")
    os.unlink(m / "ours")
    write(m / "dir/f", content)
    m.umount()
    m = golden.mount("ro")
    assert read(m / "dir/f") == content
    got = manifest(ws, m)
    got["entries"] = [e for e in got["entries"] if e["path"] not in ("/", "/dir", "/dir/f")]
    want = wanted("mysql")
    want["entries"] = [e for e in want["entries"] if e["path"] != "/"]
    got["statvfs"] = want["statvfs"]
    nothing(differences(got, want))


# ---- use ----


def test_columns_are_the_other_clients(ws, database):
    """Its schema check finds nothing to add, and names compare byte by byte."""
    Volume(ws, url=database.unix_url)
    ours = query(
        database,
        "SELECT TABLE_NAME,COLUMN_NAME,COLUMN_TYPE,IS_NULLABLE,COLUMN_DEFAULT,COLUMN_KEY,EXTRA "
        "FROM information_schema.COLUMNS WHERE TABLE_SCHEMA=DATABASE() ORDER BY 1,2",
    )
    keys = "SELECT TABLE_NAME,INDEX_NAME,COLUMN_NAME,NON_UNIQUE FROM information_schema.STATISTICS " \
           "WHERE TABLE_SCHEMA=DATABASE() ORDER BY 1,2,SEQ_IN_INDEX"  # fmt: skip
    our_keys = query(database, keys)
    other = servers.mariadb_server().database()
    ws.cleanups.append(other.drop)
    other.load_fixture("mysql")
    theirs = query(
        other,
        "SELECT TABLE_NAME,COLUMN_NAME,COLUMN_TYPE,IS_NULLABLE,COLUMN_DEFAULT,COLUMN_KEY,EXTRA "
        "FROM information_schema.COLUMNS WHERE TABLE_SCHEMA=DATABASE() ORDER BY 1,2",
    )
    assert set(ours) == set(theirs)
    assert set(our_keys) == set(query(other, keys))
    collations = query(
        database,
        "SELECT DISTINCT COLLATION_NAME FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA=DATABASE() AND COLLATION_NAME IS NOT NULL",
    )
    assert collations == (("utf8mb4_nopad_bin" if MARIADB else "utf8mb4_0900_bin",),)


def test_format_makes_the_database(ws, database):
    url = database.url + "_made"
    v = Volume(ws, url=url)
    m = v.mount()
    write(m / "f", b"x")
    m.umount()
    query(database, "DROP DATABASE %s_made" % database.name)


@mariadb
def test_sizes_of_packets(ws):
    """The caller is told that the value is too large, and the administrator which setting limits it."""
    own = servers.started(ws, servers.Mariadb("--max-allowed-packet=16384"))
    m = Volume(ws, url=own.database().url).mount()
    m.allow("raise its max_allowed_packet")
    write(m / "f", b"x")
    os.setxattr(m / "f", "user.x", b"x" * 15_000)
    with fails("E2BIG"):
        os.setxattr(m / "f", "user.x", b"y" * 40_000)
    assert os.getxattr(m / "f", "user.x") == b"x" * 15_000
    assert "raise its max_allowed_packet" in m.log()


def test_sizes_of_columns(ws, database):
    """Of values that are too large for one the caller is told. (Names: test_concurrency.py.)"""
    f = Volume(ws, url=database.url).mount() / "f"
    write(f, b"")
    with pytest.raises(OSError):
        os.setxattr(f, "user.big", b"x" * 65536)
    os.setxattr(f, "user.big", b"x" * 65535)
    with pytest.raises(OSError):
        os.chown(f, 2**31, 0)
    os.chown(f, 2**31 - 1, 0)


def test_two_mounts(ws, database):
    v = Volume(ws, url=database.url)
    a, b = v.mount("attr-cache=0,entry-cache=0"), v.mount("attr-cache=0,entry-cache=0")
    os.mkdir(a / "d")

    def work(n):
        m, other = ((a, b), (b, a))[n % 2]
        for i in range(40):
            p = m / ("d/%d-%d" % (n, i))
            write(p, data(1000 + i))
            os.rename(p, m / ("d/%d-%d.new" % (n, i)))
            assert read(other / ("d/%d-%d.new" % (n, i))) == data(1000 + i)
            if i % 2:
                os.unlink(other / ("d/%d-%d.new" % (n, i)))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(os.listdir(a / "d")) == len(os.listdir(b / "d")) == 80
    a.umount()
    b.umount()
    checked(ws, v.url)


# ---- a server that goes away ----


def storm(m, me, stop, done):
    """Names whose calls returned; what is left of them must be what was promised."""
    i = 0
    while not stop.is_set():
        p = m / ("%s-%d" % (me, i))
        fd = os.open(p, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.close(fd)
        os.rename(p, str(p) + ".x")
        os.mkdir(str(p) + ".d")
        os.rmdir(str(p) + ".d")
        if i % 2:
            os.unlink(str(p) + ".x")
        done.append((str(p) + ".x", i % 2 == 0))
        i += 1


@pytest.mark.deadline(240)
def test_server_killed_and_restarted(ws, own):
    """Calls wait and go on; none is carried out twice or reports an error of the network."""
    v = Volume(ws, url=own.database().url)
    m = v.mount("attr-cache=0,entry-cache=0")
    m.allow(LOST)
    stop, done = threading.Event(), [[] for _ in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(storm, m, "s%d" % i, stop, done[i]) for i in range(4)]
        try:
            for _ in range(3):
                wait_until(lambda n=sum(map(len, done)): sum(map(len, done)) > n + 40, 60)
                own.kill9()
                own.start()
            wait_until(lambda n=sum(map(len, done)): sum(map(len, done)) > n + 40, 60)
        finally:
            stop.set()
        for j in jobs:
            j.result(timeout=60 * SLOW)
    for per_thread in done:
        for path, there in per_thread:
            assert os.path.exists(path) == there, path
    m.umount()
    ws.run("cachefs", "fsck", "--repair", v.url)  # usage that was not written yet is lost
    checked(ws, v.url)


@pytest.mark.parametrize("way", ["compound", "multi"])
def test_connection_cut_between_request_and_answer(ws, database, way):
    """The outcome is read back: a create is there once, a removal is not an error."""
    proxy = MysqlProxy(database.server.port, **WAYS[way])
    ws.cleanups.append(proxy.close)
    url = database.url.replace(":%d" % database.server.port, ":%d" % proxy.port)
    v = Volume(ws, url=url)
    m = v.mount("attr-cache=0,entry-cache=0")
    m.allow(LOST)
    stop, done = threading.Event(), []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(storm, m, "s", stop, done)
        try:
            for _ in range(15):
                n = len(done)
                wait_until(lambda n=n: len(done) > n + 3, 30)
                proxy.cut()
        finally:
            stop.set()
        job.result(timeout=60 * SLOW)
    for path, there in done:
        assert os.path.exists(path) == there, path
    m.umount()


@pytest.fixture(params=["compound", "multi"])
def lossy(request, ws, database):
    """lossy(**format options): the proxy, and two mounts, of which the first goes through it."""

    def make(**options):
        proxy = MysqlProxy(database.server.port, **WAYS[request.param])
        ws.cleanups.append(proxy.close)
        port = ":%d" % database.server.port
        v = Volume(ws, url=database.url.replace(port, ":%d" % proxy.port), **options)
        a = v.mount("attr-cache=60,entry-cache=60,heartbeat=60")
        a.allow(LOST)
        v.url = database.url
        return proxy, a, v.mount("attr-cache=0,entry-cache=0,heartbeat=60")

    return make


REMOVALS = {0: b"DELETE FROM `jfs_edge`", 1: b"UPDATE `jfs_edge` SET parent="}  # by trash-days


@pytest.mark.parametrize("trash_days", REMOVALS)
def test_name_taken_again_while_the_answer_was_lost(ws, lossy, trash_days):
    """The removal was carried out: the file that another client then made is not removed."""
    proxy, a, b = lossy(trash_days=trash_days)
    write(a / "f", b"old")
    proxy.lose = REMOVALS[trash_days], lambda: write(b / "f", b"new")
    os.unlink(a / "f")
    assert proxy.lose is None and read(b / "f") == b"new"
    a.umount()
    b.umount()
    checked(ws, b.volume.url)


@pytest.mark.parametrize("trash_days", REMOVALS)
def test_stale_removal_whose_answer_was_lost(ws, lossy, trash_days):
    """It was for a file that had been replaced: nothing was done, and the one that is there goes."""
    proxy, a, b = lossy(trash_days=trash_days)
    write(b / "other", b"2")
    write(a / "f", b"1")
    os.rename(b / "other", b / "f")
    proxy.lose = REMOVALS[trash_days], lambda: None
    os.unlink(a / "f")
    assert proxy.lose is None and os.listdir(b.path) == []
    a.umount()
    b.umount()
    checked(ws, b.volume.url)


def test_error_behind_the_commit(ws, database):
    """An error in the reads after a batch's COMMIT does not fail the operation: it was carried
    out, and is not tried again."""
    proxy = MysqlProxy(database.server.port, **WAYS["multi"])
    ws.cleanups.append(proxy.close)
    port = ":%d" % database.server.port
    m = Volume(ws, url=database.url.replace(port, ":%d" % proxy.port)).mount("heartbeat=60")
    m.allow("no_such_column")
    proxy.spoil = True
    os.mkdir(m / "d")
    os.mkdir(m / "d/e")
    os.rmdir(m / "d/e")
    proxy.spoil = False
    assert os.listdir(m.path) == ["d"] and os.listdir(m / "d") == []
    assert os.stat(m.path).st_nlink == 3 and "no_such_column" in m.log()
    m.umount()


# ---- a statement that is stopped ----

# Before the COMMIT of a batch. Not DO, which hides the error. MyISAM: it is not rolled back.
STOP_HERE = "UPDATE stopping SET n=n-1 WHERE n>0; " \
            "IF ROW_COUNT()>0 THEN SET @slept=SLEEP(%d); END IF; "  # fmt: skip
STOPPED = r"statement stopped by the server"


def kill_queries(db, where):
    """KILL QUERY for all statements on it that `where` selects. How many there were."""
    found = query(
        db,
        "SELECT ID FROM information_schema.PROCESSLIST WHERE DB='%s' AND ID<>CONNECTION_ID() "
        "AND %s" % (db.name, where),
    )
    for (number,) in found:
        with contextlib.suppress(Exception):  # it has gone meanwhile
            db.server._admin("KILL QUERY %d" % number)
    return len(found)


def stopping(ws, server, db, way="compound", seconds=20):
    """A mount whose operations stop before their COMMIT, as often as the table `stopping` says."""
    query(db, "CREATE TABLE stopping(n INT NOT NULL) ENGINE=MyISAM")
    query(db, "INSERT INTO stopping VALUES(0)")
    proxy = MysqlProxy(server.port, before_commit=STOP_HERE % seconds, **WAYS[way])
    ws.cleanups.append(proxy.close)
    v = Volume(ws, url=db.url.replace(":%d" % server.port, ":%d" % proxy.port))
    m = v.mount("heartbeat=60,attr-cache=0,entry-cache=0")
    m.allow(STOPPED)
    return v, m, proxy


def stopped_operations(m, step):
    step(os.mkdir, m / "d")
    step(write, m / "d/f", data(100_000))
    step(os.link, m / "d/f", m / "d/l")
    os.unlink(m / "d/l")  # in the generic transaction
    step(os.rename, m / "d/f", m / "d/g")
    step(write, m / "d/gone", b"")
    step(os.unlink, m / "d/gone")
    step(os.mkdir, m / "d/empty")
    step(os.rmdir, m / "d/empty")


def as_made(ws, v, m):
    assert os.listdir(m / "d") == ["g"] and read(m / "d/g") == data(100_000)
    assert os.stat(m / "d/g").st_nlink == 1
    m.umount()
    checked(ws, v.url)


@mariadb
@pytest.mark.parametrize("way", ["compound", "multi"])
def test_query_killed_in_an_operation(ws, database, way):
    """It is carried out once; no transaction stays open behind it."""
    v, m, _ = stopping(ws, database.server, database, way)
    here = {"compound": "COMMAND='Execute'", "multi": "COMMAND='Query' AND INFO LIKE '%SLEEP%'"}[way]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        def step(act, *args):
            query(database, "UPDATE stopping SET n=1")
            job = pool.submit(act, *args)
            wait_until(lambda: query(database, "SELECT n FROM stopping")[0][0] == 0, 20)
            wait_until(lambda: kill_queries(database, here) or job.done(), 20)
            job.result(timeout=30 * SLOW)
            open_here = "SELECT COUNT(*) FROM information_schema.INNODB_TRX t JOIN " \
                        "information_schema.PROCESSLIST p ON p.ID=t.trx_mysql_thread_id " \
                        "WHERE p.DB='%s' AND p.COMMAND='Sleep'" % database.name  # fmt: skip
            wait_until(lambda: query(database, open_here)[0][0] == 0, 10)

        stopped_operations(m, step)
    assert m.log().count("statement stopped by the server") > 5
    as_made(ws, v, m)


@mariadb
@pytest.mark.parametrize("way", ["compound", "multi"])
def test_server_still_at_it_when_the_connection_was_lost(ws, database, way):
    """It is done a second after it was asked for and found undone: once, and without an error."""
    v, m, proxy = stopping(ws, database.server, database, way, 1)
    m.allow(LOST)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        def step(act, *args):
            query(database, "UPDATE stopping SET n=1")
            job = pool.submit(act, *args)
            wait_until(lambda: query(database, "SELECT n FROM stopping")[0][0] == 0, 20)
            proxy.cut()
            job.result(timeout=30 * SLOW)

        stopped_operations(m, step)
    as_made(ws, v, m)


@pytest.mark.skipif(not MARIADB, reason="MySQL limits the time of reads only")
def test_statement_over_its_time(ws, own):
    """As above, with the server's max_statement_time."""
    db = own.database()
    v, m, _ = stopping(ws, own, db)
    own._admin("SET GLOBAL max_statement_time=2")

    def step(act, *args):
        query(db, "UPDATE stopping SET n=1")
        act(*args)

    # a connection takes the limit when it is made
    for number in [n for (n,) in query(db, "SELECT ID FROM information_schema.PROCESSLIST")]:
        with contextlib.suppress(Exception):
            own._admin("KILL %d" % number)
    m.allow(LOST)
    stopped_operations(m, step)
    assert "max_statement_time" in m.log()
    as_made(ws, v, m)


@mariadb
def test_error_without_a_rollback(ws, database):
    """A transaction that an error has left open is not joined, and committed, by the next one."""
    with MysqlProxy(database.server.port) as proxy:
        proxy.no_handler = True
        v = Volume(ws, url=database.url.replace(":%d" % database.server.port, ":%d" % proxy.port))
        m = v.mount("heartbeat=60")
        (m / "d").mkdir()
        inode = (m / "d").stat().st_ino
        for i, change in enumerate((os.mkdir, lambda path: os.rename(m / "d/first", path))):
            (m / "d/first").touch()  # from here on by what is remembered of the directory
            database.server._admin("UPDATE %s.jfs_node SET mode=%d WHERE inode=%d" % (database.name, 0o700 + i, inode), "COMMIT")
            change(m / ("d/changed%d" % i))
        assert sorted(os.listdir(m / "d")) == ["changed0", "changed1"]
        m.umount()
    checked(ws, database.url)


@pytest.mark.parametrize("way", WAYS)
def test_rollback_that_is_killed(ws, database, way):
    """Its connection is not used again: the next transaction would commit this one."""
    with MysqlProxy(database.server.port, **WAYS[way]) as proxy:
        v = Volume(ws, url=database.url.replace(":%d" % database.server.port, ":%d" % proxy.port))
        m = v.mount("heartbeat=60")
        m.allow(LOST + "|" + STOPPED)
        (m / "d/e").mkdir(parents=True)
        proxy.stop_rollbacks = 1
        with fails("ENOTEMPTY"):
            os.rmdir(m / "d")
        assert not proxy.stop_rollbacks
        (m / "d/f").mkdir()
        m.umount()
        assert not proxy.reused


def test_setup_of_a_connection_killed(ws, database):
    """It is not the program's error: another connection is made."""
    with MysqlProxy(database.server.port) as proxy:
        v = Volume(ws, url=database.url.replace(":%d" % database.server.port, ":%d" % proxy.port))
        m = v.mount("heartbeat=60")
        m.allow(LOST)
        proxy.stop_setups = 3
        proxy.cut()
        (m / "d").mkdir()
        assert not proxy.stop_setups
        m.umount()


@pytest.mark.deadline(120)
@pytest.mark.parametrize("way", ["compound", "multi"])
def test_queries_killed_at_random(ws, database, way):
    """An administrator's KILL QUERY at any moment: no error, nothing lost, nothing twice."""
    proxy = MysqlProxy(database.server.port, **WAYS[way])
    ws.cleanups.append(proxy.close)
    port = database.server.port if way == "compound" else proxy.port
    v = Volume(ws, url=database.url.replace(":%d" % database.server.port, ":%d" % port))
    m = v.mount("attr-cache=0,entry-cache=0")
    m.allow(STOPPED + "|connection lost during commit")  # a COMMIT that was killed, too
    stop, done, killed = threading.Event(), [[] for _ in range(3)], 0
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        jobs = [pool.submit(storm, m, "s%d" % i, stop, done[i]) for i in range(3)]
        try:
            while killed < 150 and not any(j.done() for j in jobs):
                killed += kill_queries(database, "COMMAND IN ('Execute','Query')")
        finally:
            stop.set()
        for j in jobs:
            j.result(timeout=60 * SLOW)
    for per_thread in done:
        for path, there in per_thread:
            assert os.path.exists(path) == there, path
    m.umount()
    ws.run("cachefs", "fsck", "--repair", v.url)  # usage whose writing was stopped
    checked(ws, v.url)


PLANNED = {  # the condition of a change in a batch
    "stats": b"DELETE FROM `jfs_dir_stats` WHERE inode=?",
    "xattr": b"DELETE FROM `jfs_xattr` WHERE inode=?",
    "symlink": b"DELETE FROM `jfs_symlink` WHERE inode=?",
    "touch": b"SET nlink=nlink+?,mtime=?,ctime=?,mtimensec=?,ctimensec=? WHERE inode=?",
}


@mariadb
@pytest.mark.parametrize("change", PLANNED)
def test_change_that_is_stopped_while_it_is_planned(ws, database, change):
    """MariaDB says that it found no row, and goes on with the batch: nothing is committed without it."""
    query(database, "CREATE TABLE nothing(n INT) ENGINE=MyISAM")
    query(database, "INSERT INTO nothing VALUES(1)")
    with MysqlProxy(database.server.port) as proxy:
        proxy.finds_nothing = PLANNED[change], b"NOT ATOMIC"
        v = Volume(ws, url=database.url.replace(":%d" % database.server.port, ":%d" % proxy.port))
        m = v.mount("heartbeat=60,attr-cache=0")
        (m / "d/e").mkdir(parents=True)
        (m / "f").write_text("1")
        os.setxattr(m / "f", "user.x", b"1")
        (m / "l").symlink_to("f")
        for name in ("f", "l"):
            (m / name).unlink()
        (m / "d/e").rmdir()
        assert (m / "d").stat().st_nlink == 2 and os.listdir(m) == ["d"]
        m.umount()
    checked(ws, database.url)
    for table in ("jfs_xattr", "jfs_symlink", "jfs_dir_stats"):
        left = "SELECT COUNT(*) FROM %s WHERE inode NOT IN (SELECT inode FROM jfs_node)" % table
        assert query(database, left)[0][0] == 0, table


@mariadb
def test_scan_that_is_stopped_while_it_is_planned(ws, database):
    """MariaDB says that the table ends there. gc would take all that is behind it for leaked."""
    query(database, "CREATE TABLE nothing(n INT) ENGINE=MyISAM")
    v = Volume(ws, url=database.url)
    m = v.mount()
    for i in range(20):
        (m / str(i)).write_text("1")
    m.umount()
    query(database, "INSERT INTO nothing VALUES(1)")
    stopped = 0

    def stop():
        nonlocal stopped
        stopped += 1
        if stopped < 10:
            with contextlib.suppress(Exception):  # it stops itself
                database.server._admin("KILL QUERY CONNECTION_ID()")
        else:
            query(database, "DELETE FROM nothing")

    with MysqlProxy(database.server.port) as proxy:
        proxy.finds_nothing, proxy.stop = (b"id>?", b"id LIMIT ?"), stop
        url = v.url.replace(":%d" % database.server.port, ":%d" % proxy.port)
        r = ws.run("cachefs", "gc", "--age", "0s", "--json", url)
    assert stopped >= 10
    assert json.loads(r.stdout)["live"]["objects"] == 20, r.stdout + r.stderr


# ---- contention ----


def deadlocks_of(db):
    if MARIADB:
        return status_of(db, "Innodb_deadlocks")
    text = "SELECT COUNT FROM information_schema.INNODB_METRICS WHERE NAME='lock_deadlocks'"
    return int(query(db, text)[0][0])


@pytest.mark.deadline(200)
def test_hundred_threads_in_one_directory(ws, database):
    """No deadlock reaches the application, and next to none happens."""
    v = Volume(ws, url=database.url)
    before = deadlocks_of(database)
    r = ws.run(
        *("cachefs", "mdtest", "--json", "--depth", "0", "--dirs", "1", "--files", "3000"),
        *("--threads", "100", v.url),
        timeout=180 * SLOW, check=True,
    )  # fmt: skip
    report = json.loads(r.stdout)
    n = retries = 0
    for op in report["operations"]:
        assert op["errors"] == 0, op
        n += op["count"]
        retries += op["retries"]
    deadlocks = deadlocks_of(database) - before
    print("%d operations, %d deadlocks, %d retries: %s" % (n, deadlocks, retries, r.stdout))
    assert deadlocks <= retries and retries * 1000 < n


@pytest.mark.parametrize("way", ["compound", "multi"])
def test_create_keeps_its_directory(ws, database, way):
    """rmdir holds the directory's row: a create in it waits, and does not vanish."""
    url = database.url
    if way == "multi":
        proxy = MysqlProxy(database.server.port, **WAYS[way])
        ws.cleanups.append(proxy.close)
        url = url.replace(":%d" % database.server.port, ":%d" % proxy.port)
    m = Volume(ws, url=url).mount("skip-dir-mtime=1m")  # whose statement would wait, too
    (m / "d").mkdir()
    (m / "d/first").touch()  # from here on by what is remembered of the directory
    c = database.connect()
    with c.cursor() as cur, concurrent.futures.ThreadPoolExecutor(1) as pool:
        cur.execute("START TRANSACTION")
        cur.execute("SELECT * FROM jfs_node WHERE inode=%d FOR UPDATE" % (m / "d").stat().st_ino)
        job = pool.submit((m / "d/second").touch)
        waiting = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state='LOCK WAIT'"
        wait_until(lambda: query(database, waiting)[0][0] == 1, 20, "the create at the row")
        c.rollback()
        job.result(timeout=30 * SLOW)
    c.close()
    assert sorted(os.listdir(m / "d")) == ["first", "second"]


# name -> error
AT_COMMIT = {
    "Galera": (1213, "Deadlock found when trying to get lock; try restarting transaction"),
    "lock wait": (1205, "Lock wait timeout exceeded; try restarting transaction"),
    "Galera, worded otherwise": (1180, 'Got error 149 "Lock deadlock; Retry transaction" during COMMIT'),
    "group replication": (3101, "Plugin instructed the server to rollback the current transaction."),
    "Galera without a majority": (
        1180,
        "Error while appending streaming replication fragment"
        "(provider status: Not connected to Primary Component)",
    ),
}


@mariadb
@pytest.mark.deadline(200)
@pytest.mark.parametrize("error", AT_COMMIT)
@pytest.mark.parametrize("way", WAYS)
def test_certification_failure_at_commit(ws, database, way, error):
    """Every operation whose transaction is rolled back at COMMIT is carried out, once."""
    code, text = AT_COMMIT[error]
    query(database, "CREATE TABLE failing(n INT NOT NULL) ENGINE=MyISAM")  # is not rolled back
    query(database, "INSERT INTO failing VALUES(0)")
    proxy = MysqlProxy(
        database.server.port,
        before_commit="UPDATE failing SET n=n-1 WHERE n>0; IF ROW_COUNT()>0 THEN SIGNAL SQLSTATE "
        "'40001' SET MYSQL_ERRNO=%d,MESSAGE_TEXT='%s'; END IF; " % (code, text),
        **WAYS[way],
    )
    proxy.error = code, text.encode()
    ws.cleanups.append(proxy.close)
    v = Volume(ws, url=database.url.replace(":%d" % database.server.port, ":%d" % proxy.port))
    m = v.mount("heartbeat=60")
    hit = {}

    def step(name, act, *args):
        proxy.commits_fail = 1
        query(database, "UPDATE failing SET n=1")
        act(*args)
        left = query(database, "SELECT n FROM failing")[0][0]
        hit[name] = hit.get(name, 0) + (not left or not proxy.commits_fail)

    for i in range(3):  # the batched counters may take a failure that was meant for the operation
        d = m.path / ("d%d" % i)
        step("mkdir", os.mkdir, d)
        step("write", write, d / "f", data(100_000))
        step("symlink", os.symlink, "f", d / "sym")
        step("link", os.link, d / "f", d / "link")
        step("rename", os.rename, d / "f", d / "g")
        step("setxattr", os.setxattr, d / "g", "user.x", b"1")
        step("truncate", os.truncate, d / "g", 50_000)
        step("chmod", os.chmod, d / "g", 0o600)
        step("create", write, d / "gone", b"")
        step("unlink", os.unlink, d / "gone")
        step("mkdir", os.mkdir, d / "empty")
        step("rmdir", os.rmdir, d / "empty")
    proxy.commits_fail = 0
    query(database, "UPDATE failing SET n=0")
    for i in range(3):
        d = m.path / ("d%d" % i)
        assert sorted(os.listdir(d)) == ["g", "link", "sym"] and os.readlink(d / "sym") == "f"
        assert read(d / "link") == data(100_000)[:50_000] and os.getxattr(d / "g", "user.x") == b"1"
        assert os.stat(d / "g").st_nlink == 2 and os.stat(d / "g").st_mode & 0o777 == 0o600
        assert os.stat(d).st_nlink == 2
    assert os.stat(m.path).st_nlink == 2 + 3
    m.umount()
    checked(ws, v.url)
    # where a statement is its own transaction there is no COMMIT
    del hit["chmod"]
    assert all(hit.values()), hit


@pytest.mark.parametrize("way", ["compound", "multi"] if MARIADB else ["multi"])
def test_statements_of_touch_and_rm(ws, way):
    """The field's own test: touch and rm of many files, counted by the server, which counts each
    statement of a batch; such queries are counted on their way."""
    n = 500
    with servers.Mariadb() as server, MysqlProxy(server.port, **WAYS[way]) as proxy:
        db = server.database()
        v = Volume(ws, url=db.url.replace(":%d" % server.port, ":%d" % proxy.port), trash_days=1)
        m = v.mount("heartbeat=60")
        files = [str(m.path / ("f%d" % i)) for i in range(n)]
        ws.run("touch", str(m.path / "warm"), check=True)
        ws.run("rm", str(m.path / "warm"), check=True)

        def count():
            return status_of(db, "Questions") if way == "compound" else proxy.turns

        counts = [count()]
        ws.run("touch", *files, check=True)
        counts.append(count())
        ws.run("rm", *files, check=True)
        counts.append(count())
        m.umount()
    touch, rm = (counts[1] - counts[0]) / n, (counts[2] - counts[1]) / n
    print("statements per touch %.3f, per rm %.3f" % (touch, rm))
    assert touch <= 5 and rm <= 4


@pytest.mark.deadline(120)
def test_defaults_of_the_server_are_not_used(ws):
    """Each of them, set by an administrator for other programs, would break the volume: a scan that ends after
    three rows, updates that are refused, a COMMIT that begins the next transaction, and so on."""
    with servers.Mariadb() as server:
        for setting in (
            *("sql_select_limit=3", "sql_safe_updates=1", "completion_type=1", "autocommit=0"),
            *("tx_isolation='SERIALIZABLE'", "sql_mode='ANSI,NO_BACKSLASH_ESCAPES,ONLY_FULL_GROUP_BY'"),
            *("character_set_server=latin1", "wait_timeout=2"),
        ):
            server._admin("SET GLOBAL " + setting)
        suite(ws, server.database().url, "names", "rename", "data", "delete", "administration")


def test_server_short_of_prepared_statements(ws):
    """A server with many mounts runs out of them: slower, with a warning, and no error."""
    with servers.Mariadb("--max-prepared-stmt-count=24") as server:
        db = server.database()
        v = Volume(ws, url=db.url)
        m = v.mount()
        m.allow(r"no prepared statement left")

        def work(n):
            for i in range(10):
                p = m / ("%d-%d" % (n, i))
                write(p, b"x")
                os.rename(p, str(p) + ".x")
                os.mkdir(str(p) + ".d")
                os.rmdir(str(p) + ".d")
                os.unlink(str(p) + ".x")

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        assert os.listdir(m.path) == []
        m.umount()


# ---- refusals ----


def refused(ws, url, *words):
    r = ws.run("cachefs", "status", url)
    assert r.returncode != 0
    for w in words:
        assert w in r.stderr, r.stderr
    assert servers.PASSWORD not in r.stderr and servers.QUOTED not in r.stderr


def test_refusals(ws, database):
    server, name = database.server, database.name
    refused(ws, database.url.replace(servers.QUOTED, "wrong"), "wrong user name or password")
    refused(ws, database.url + "_none", "no such database")
    refused(ws, "mysql://%s@(127.0.0.1:%d)/%s" % (servers.USER, server.port, name), "META_PASSWORD")
    refused(ws, "mysql://u:p@(127.0.0.1:%d)/x" % servers.free_port(), "127.0.0.1")
    refused(ws, database.url + "?tls=maybe", "tls must be")
    server._admin(
        "CREATE USER IF NOT EXISTS reader@'%' IDENTIFIED BY 'r'",
        "GRANT SELECT ON %s.* TO reader@'%%'" % name,
        "CREATE USER IF NOT EXISTS nobody@'%' IDENTIFIED BY 'n'",
        "CREATE USER IF NOT EXISTS one@'%' IDENTIFIED BY 'o' WITH MAX_USER_CONNECTIONS 1",
        "GRANT ALL ON *.* TO one@'%'",
    )
    at = "@(127.0.0.1:%d)/%s" % (server.port, name)
    refused(ws, "mysql://nobody:n" + at, "may not use this database")
    r = ws.run("cachefs", "format", "mysql://reader:r" + at, "vol", "--bucket", ws.path("b"))
    assert r.returncode != 0 and "denied" in r.stderr, r.stderr
    import pymysql

    taken = pymysql.connect(host="127.0.0.1", port=server.port, user="one", password="o")
    refused(ws, "mysql://one:o" + at, "no connection left")
    taken.close()


def test_encrypted_connections(ws):
    """tls: with `true` the server shows a certificate that the CA has signed, or is refused."""
    cert, key = servers.certificate(ws.dir, "server")
    other, _ = servers.certificate(ws.dir, "other")
    with servers.Mariadb() as plain:
        url = plain.database().url
        for tls in ("skip-verify", "true") if MARIADB else ():  # MySQL makes itself a certificate
            refused(ws, url + "?tls=" + tls, "the server does not support")
        Volume(ws, "plain", url=url + "?tls=preferred")
    with servers.Mariadb("--ssl-cert=" + cert, "--ssl-key=" + key) as s:
        s._admin("ALTER USER %s@'%%' REQUIRE SSL" % servers.USER)
        db = s.database()
        refused(ws, db.url, "wrong user name or password")
        refused(ws, db.url + "?tls=true", "certificate")
        refused(ws, db.url + "?tls=true&tls-ca-cert-file=" + other, "certificate")
        refused(ws, db.url + "?tls=true&tls-ca-cert-file=/nowhere", "mysql://")
        v = Volume(ws, url=db.url + "?tls=skip-verify")
        v.url = db.url + "?tls=true&tls-ca-cert-file=" + cert
        m = v.mount()
        write(m / "f", b"1")
        m.umount()
        checked(ws, db.url + "?tls=preferred")


# ---- the pool ----

ASK = """
import os, sys, time
while True: os.path.exists("%s/none%s-%d" % (sys.argv[1], sys.argv[2], time.monotonic_ns()))
"""


@pytest.fixture
def asking(ws):
    """asking(mount, n): n processes that keep the mount asking; asking.end() ends them."""
    jobs = []

    def start(m, n):
        jobs.extend(ws.python(ASK, m.path, str(i)) for i in range(n))

    def end():
        for j in jobs:
            j.kill()
            j.wait()

    start.end = end
    yield start
    end()


def ids(db):
    text = "SELECT ID FROM information_schema.PROCESSLIST WHERE DB='%s' AND USER='%s'"
    rows = query(db, text % (db.name, servers.USER))
    return {n for (n,) in rows}


def test_most_and_idle_connections(ws, database, asking):
    """max_open_conns is never passed; of those that work needed max_idle_conns stay."""
    v = Volume(ws, url=database.url)
    v.url = database.url + "?max_open_conns=4"
    m = v.mount("heartbeat=2,attr-cache=0,entry-cache=0")
    wait_until(lambda: len(ids(database)) < 4, 30)  # the rest of format and mount
    asking(m, 12)
    wait_until(lambda: len(ids(database)) == 4, 30)
    for _ in range(30):
        assert len(ids(database)) <= 4
    asking.end()
    m.umount()
    v.url = database.url + "?max_idle_conns=2"
    m = v.mount("heartbeat=2,attr-cache=0,entry-cache=0")
    asking(m, 12)
    wait_until(lambda: len(ids(database)) > 4, 30)
    asking.end()
    wait_until(lambda: len(ids(database)) <= 2, 30)
    m.umount()


@pytest.mark.parametrize("option", ["max_idle_time=2s", "max_life_time=2s"])
def test_connections_of_limited_time(ws, database, asking, option):
    """They end when they have been idle, or there, for as long as the URL says."""
    v = Volume(ws, url=database.url)
    v.url = database.url + "?" + option
    m = v.mount("heartbeat=1,attr-cache=0,entry-cache=0")
    asking(m, 12)
    wait_until(lambda: len(ids(database)) > 2, 30)
    first = ids(database)
    if "idle" in option:
        asking.end()
        wait_until(lambda: len(ids(database)) <= 2, 30)
    else:
        wait_until(lambda: not first & ids(database), 30)
        asking.end()
    m.umount()


def test_password_from_the_environment(ws, database):
    Volume(ws, url=database.url)
    url = database.url.replace(":%s@" % servers.QUOTED, "@")
    ws.run("cachefs", "status", url, check=True, env={"META_PASSWORD": servers.PASSWORD})
    secret = ws.path("secret")
    secret.write_text(servers.PASSWORD + " \n")
    ws.run("cachefs", "status", url, check=True, env={"META_PASSWORD_FILE": str(secret)})


def test_silent_addresses_of_the_name(ws, database):
    """All addresses of a name together get the time of one."""
    ws.volume(url=database.url)
    far = SlowProxy(SilentFirst.address, ("127.0.0.1", database.server.port))
    ws.cleanups.append(far.close)
    named = SilentFirst(ws, far.port, SEVERAL)
    url = database.url.replace("127.0.0.1:%d" % database.server.port, "%s:%d" % (named.name, far.port))
    assert named.status(url) < 15


def test_read_only_server(ws, own):
    db = own.database()
    v = Volume(ws, url=db.url)
    own._admin(
        "CREATE USER plain@'%' IDENTIFIED BY 'p'",
        "GRANT SELECT,INSERT,UPDATE,DELETE,CREATE,ALTER,INDEX,DROP ON *.* TO plain@'%'",
        "SET GLOBAL read_only=1",
    )
    url = "mysql://plain:p@(127.0.0.1:%d)/%s" % (own.port, db.name)
    v.url = url
    point = ws.path("mnt-ro")
    point.mkdir()
    r = ws.run("cachefs", "mount", url, point, timeout=60)
    assert r.returncode != 0 and "read-only" in r.stderr, r.stderr
    m = v.mount("ro", path=point)
    assert stat.S_ISDIR(os.stat(m.path).st_mode)
