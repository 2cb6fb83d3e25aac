# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL as metadata engine: what its users meet besides a server that works."""

import concurrent.futures
import contextlib
import json
import os
import shutil
import subprocess
import threading
import time

import pytest

import cachefs_check
import servers
from cachefs import SLOW, Volume, tool, wait_until
from countproxy import CountingProxy
from network import SEVERAL, SilentFirst
from slowproxy import SlowProxy
from test_fixtures import differences, manifest, nothing, wanted

pytestmark = pytest.mark.module("postgresql")


def verify(v, db):
    found, _ = cachefs_check.check(db.url, str(v.bucket), cachefs_check.Options())
    assert not found, found


@pytest.fixture
def db(ws):
    database = servers.postgres_server().database()
    ws.cleanups.append(database.drop)
    return database


@pytest.fixture
def own():
    """A server of its own, durable, to be killed."""
    with servers.Postgres("-c", "fsync=on", "-c", "synchronous_commit=on") as server:
        yield server


def query(db, text, *args):
    c = db.connect()
    c.autocommit = True
    try:
        with c.cursor() as cur:
            cur.execute(text, args)
            return cur.fetchall() if cur.description else None
    finally:
        c.close()


# ---- volumes of JuiceFS ----


def test_fixture_matches_manifest(ws, db):
    db.load_fixture("postgres")
    v = Volume.golden(ws, "postgres", db.url)
    before = schema(db)
    m = v.mount("no-bgjob")
    nothing(differences(manifest(ws, m), wanted("postgres"), parts=("entries", "trash")))
    (m.path / "mine").write_bytes(b"x" * 100000)
    os.rename(m.path / "mine", m.path / "mine2")
    assert (m.path / "mine2").read_bytes() == b"x" * 100000
    os.unlink(m.path / "mine2")
    m.umount()
    assert {t: c for t, c in schema(db).items() if "cachefs" not in t} == before


def schema(db):
    """Columns, keys and indexes by table."""
    out = {}
    for table, *column in query(
        db,
        "SELECT table_name, column_name, data_type, is_nullable, column_default, "
        "character_maximum_length FROM information_schema.columns "
        "WHERE table_schema='public' ORDER BY 1, 2",
    ):
        out.setdefault(table, []).append(column)
    for table, *index in query(
        db,
        "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname='public' "
        "ORDER BY 1, 2",
    ):
        out.setdefault(table, []).append(index)
    return {t: c for t, c in out.items() if not t.startswith("pg_")}


def test_tables_are_those_of_the_other_client(ws, db):
    Volume(ws, url=db.url)
    theirs = servers.postgres_server().database()
    ws.cleanups.append(theirs.drop)
    theirs.load_fixture("postgres")
    want = schema(theirs)
    got = schema(db)
    assert set(want) <= set(got)
    for table in want:
        assert got[table] == want[table], table


# ---- ways to reach a server ----


def test_unix_socket_schema_and_prefix(ws, db):
    query(db, 'CREATE SCHEMA "Other one"')
    v = Volume(ws, url=db.unix_url + "&search_path=Other%20one&table_prefix=Px")
    m = v.mount()
    (m.path / "f").write_bytes(b"1")
    m.umount()
    rows = query(db, 'SELECT count(*) FROM "Other one"."jfs_Px_edge"')
    assert rows == [(1,)]


def test_password_from_the_environment(ws, db, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("  %s \n" % servers.PASSWORD)
    bare = db.url.replace(":" + servers.QUOTED + "@", "@")
    for env in ({"META_PASSWORD": servers.PASSWORD}, {"META_PASSWORD_FILE": str(secret)}):
        r = ws.run("cachefs", "status", bare, env=env)
        assert "not formatted" in r.stderr or "no volume" in r.stderr, r.stderr
    r = ws.run("cachefs", "status", bare)
    assert r.returncode and "META_PASSWORD" in r.stderr, r.stderr


def pgbouncer(ws, own, more=""):
    """In transaction mode; the version of Debian 12 knows no prepared statements. Returns its port."""
    port = servers.free_port()
    home = own.dir / "bouncer"
    home.mkdir()
    users = home / "users"
    users.write_text('"%s" "%s"\n' % (servers.USER, servers.PASSWORD))
    ini = home / "ini"
    ini.write_text(
        "[databases]\n* = host=%s port=%d\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port=%d\n"
        "unix_socket_dir=\nauth_type=plain\nauth_file=%s\npool_mode=transaction\n"
        "default_pool_size=3\nmax_client_conn=200\n%s\n" % (own.dir, own.port, port, users, more)
    )
    own.start() if own.process is None else None
    p = subprocess.Popen(
        [servers.find("pgbouncer", "/usr/sbin"), str(ini)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **own._as_user(),
    )
    ws.children.append(p)

    def answers():
        with contextlib.suppress(OSError):
            servers.socket.create_connection(("127.0.0.1", port)).close()
            return True

    wait_until(answers, 20, "an answer of pgbouncer")
    return port


def test_pgbouncer_in_transaction_mode(ws, own):
    pooler = pgbouncer(ws, own)
    db = own.database()
    v = Volume(ws, url=db.url.replace(":%d" % own.port, ":%d" % pooler))
    mounts = [v.mount(), v.mount()]
    jobs = []
    for n, m in enumerate(mounts):
        for k in range(3):
            jobs.append(ws.python(WORK, m.path / ("w%d-%d" % (n, k)), "60"))
    for j in jobs:
        assert j.wait(60 * SLOW) == 0
    for m in mounts:
        m.umount()
    verify(v, db)


@pytest.mark.parametrize("add_host", [0, 1])
def test_server_gets_a_creation_late_behind_pgbouncer(ws, own, add_host):
    """The directory was created again and removed then. A pooler may append its client to the name."""
    db = own.database()
    with CountingProxy(own.port) as proxy:
        more = "server_login_retry=1\napplication_name_add_host=%d\n" % add_host
        # A database with a name goes before `*`: the pooler's connections go through the proxy.
        more += "[databases]\n%s = host=127.0.0.1 port=%d\n" % (db.name, proxy.port)
        v = Volume(ws, url=db.url.replace(":%d" % own.port, ":%d" % pgbouncer(ws, own, more)))
        m = v.mount("heartbeat=60,no-bgjob")
        m.allow("database|connection|pooler")
        turn = held = 1
        while held:
            path = m / ("d%d" % turn) / "x"
            path.parent.mkdir()
            proxy.hold(turn)
            path.mkdir()
            held = proxy.lost
            path.rmdir()
            proxy.deliver()
            turn += 1
        assert turn > 2
        m.umount()
    v.url = db.url
    other = v.mount("no-bgjob")
    for n in range(1, turn):
        assert not os.listdir(other / ("d%d" % n)), n
    other.umount()


WORK = """
import os, sys
top, n = sys.argv[1], int(sys.argv[2])
os.mkdir(top)
for i in range(n):
    p = "%s/f%d" % (top, i)
    with open(p, "wb") as f: f.write(b"x" * i)
    os.rename(p, p + "r")
    assert os.stat(p + "r").st_size == i
    if i % 3 == 0: os.unlink(p + "r")
    if i % 5 == 0: os.mkdir(p); os.rmdir(p)
    if i % 7 == 1 and i % 3: os.link(p + "r", p + "l"); os.chmod(p + "l", 0o600)
"""


def worked(n):
    """The names that WORK leaves."""
    kept = [i for i in range(n) if i % 3]
    return {"f%dr" % i for i in kept} | {"f%dl" % i for i in kept if i % 7 == 1}


def test_encrypted_connections(ws):
    """sslmode: with `require` all is encrypted, `verify-ca` looks at who signed the certificate."""
    cert, key = servers.certificate(ws.dir, "server")
    other, _ = servers.certificate(ws.dir, "other")
    with servers.Postgres() as s:
        for path, name in ((cert, "server.crt"), (key, "server.key")):
            shutil.copy(path, s.data / name)
            shutil.chown(s.data / name, s.account) if s.account else None
            os.chmod(s.data / name, 0o600)
        refused(ws, s.url("postgres").replace("disable", "require"), "does not support SSL")
        s.stop()
        s.options += ("-c", "ssl=on")
        (s.data / "pg_hba.conf").write_text("local all all trust\nhostssl all all all scram-sha-256\n")
        s.start()
        db = s.database()
        refused(ws, db.url, "no pg_hba.conf entry")
        refused(ws, db.url.replace("disable", "verify-ca&sslrootcert=%s" % other), "certificate")
        refused(ws, db.url.replace("disable", "verify-ca&sslrootcert=/nowhere"), "/nowhere")
        v = Volume(ws, url=db.url.replace("disable", "require"))
        v.url = db.url.replace("disable", "verify-ca&sslrootcert=%s" % cert)
        m = v.mount()
        (m.path / "f").write_bytes(b"1")
        rows = query(
            db,
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) "
            "WHERE starts_with(application_name,'cachefs ')",
        )
        assert rows == [(True,)]
        m.umount()
        assert ws.run("cachefs", "fsck", v.url).returncode == 0


# ---- the pool ----

OURS = "FROM pg_stat_activity WHERE starts_with(application_name,'cachefs ') AND datname=current_database()"


def busy(ws, m, threads):
    """Jobs that keep so many threads of the mount asking, to be ended by ws."""
    return [ws.python(ASK, m.path, str(n)) for n in range(threads)]


ASK = """
import os, sys, time
while True: os.path.exists("%s/none%s-%d" % (sys.argv[1], sys.argv[2], time.monotonic_ns()))
"""


def end(jobs):
    for j in jobs:
        j.kill()
        j.wait()


def count_ours(db):
    return query(db, "SELECT count(*) " + OURS)[0][0]


def test_most_and_idle_connections(ws, db):
    """max_open_conns is never passed; of those that work needed max_idle_conns stay."""
    v = Volume(ws, url=db.url)
    v.url = db.url + "&max_open_conns=4"
    m = v.mount("heartbeat=2,attr-cache=0,entry-cache=0")
    jobs = busy(ws, m, 12)
    wait_until(lambda: count_ours(db) == 4, 30)
    for _ in range(30):
        assert count_ours(db) <= 4
    end(jobs)
    m.umount()
    v.url = db.url + "&max_idle_conns=2"
    m = v.mount("heartbeat=2,attr-cache=0,entry-cache=0")
    jobs = busy(ws, m, 20)
    wait_until(lambda: count_ours(db) > 4, 30)
    end(jobs)
    wait_until(lambda: count_ours(db) <= 2, 30)
    m.umount()


def test_idle_and_life_time(ws, db):
    """Connections end when they have been idle, or there, for as long as the URL says."""
    v = Volume(ws, url=db.url)
    v.url = db.url + "&max_idle_time=2s"
    m = v.mount("heartbeat=1,attr-cache=0,entry-cache=0")
    jobs = busy(ws, m, 12)
    wait_until(lambda: count_ours(db) > 2, 30)
    end(jobs)
    wait_until(lambda: count_ours(db) <= 2, 30)
    m.umount()
    v.url = db.url + "&max_life_time=2s"
    m = v.mount("heartbeat=1,attr-cache=0,entry-cache=0")
    first = {pid for (pid,) in query(db, "SELECT pid " + OURS)}
    jobs = busy(ws, m, 2)
    wait_until(lambda: not first & {pid for (pid,) in query(db, "SELECT pid " + OURS)}, 30)
    end(jobs)
    m.umount()
    for bad in ("max_open_conns=many", "max_idle_time=5x", "max_life_time=-1"):
        refused(ws, db.url + "&" + bad, "max_ option")


# ---- clear messages ----


def refused(ws, url, *words, env=None):
    argv = ["format", url, "vol", "--storage", "file", "--bucket", ws.path("b")]
    r = ws.run("cachefs", *argv, env=env)
    assert r.returncode, r.stdout
    for w in words:
        assert w in r.stderr, r.stderr
    assert servers.PASSWORD not in r.stderr and servers.QUOTED not in r.stderr
    return r.stderr


def test_wrong_password(ws, db):
    refused(ws, db.url.replace(servers.QUOTED, "wrong"), "password authentication failed")


def test_no_such_database(ws, db):
    refused(ws, db.url.replace("/" + db.name, "/nowhere"), "nowhere", "does not exist", "createdb")


def test_nobody_listens(ws, db):
    port = servers.free_port()
    refused(ws, db.url.replace(":%d" % db.server.port, ":%d" % port), str(port), "refused")


def test_silent_addresses_of_the_name(ws, db):
    """All addresses of a name together get the time of one."""
    ws.volume(url=db.url)
    far = SlowProxy(SilentFirst.address, ("127.0.0.1", db.server.port))
    ws.cleanups.append(far.close)
    named = SilentFirst(ws, far.port, SEVERAL)
    url = db.url.replace("127.0.0.1:%d" % db.server.port, "%s:%d" % (named.name, far.port))
    assert named.status(url) < 15


def test_unknown_option(ws, db):
    refused(ws, db.url + "&sslmoode=disable", "sslmoode")


def test_no_privilege(ws, db):
    query(db, "DROP ROLE IF EXISTS weak")
    query(db, "CREATE ROLE weak LOGIN PASSWORD 'weak'")
    query(db, "REVOKE CREATE ON SCHEMA public FROM public")  # as it is from PostgreSQL 15 on
    url = db.url.replace("%s:%s@" % (servers.USER, servers.QUOTED), "weak:weak@")
    refused(ws, url, "permission denied")


def test_too_many_connections(ws):
    with servers.Postgres("-c", "max_connections=8", "-c", "superuser_reserved_connections=3") as s:
        d = s.database()
        query(d, "CREATE ROLE plain LOGIN PASSWORD 'plain'")
        query(d, "ALTER DATABASE %s OWNER TO plain" % d.name)
        url = d.url.replace("%s:%s@" % (servers.USER, servers.QUOTED), "plain:plain@")
        v = Volume(ws, url=url)
        m = v.mount()
        # The mount makes do with what it gets.
        jobs = [ws.python(WORK, m.path / ("w%d" % k), "20") for k in range(8)]
        for j in jobs:
            assert j.wait(60 * SLOW) == 0
        taken = []

        def turned_away():
            """A connection that was refused, or that the mount gives back, leaves its place a little later."""
            with contextlib.suppress(Exception):
                while True:
                    taken.append(servers_connect(s, d.name))
            r = ws.run("cachefs", "status", url)
            return r if r.returncode else None

        r = wait_until(turned_away, 60, "a server that has no place left")
        assert "connection" in r.stderr, r.stderr
        for c in taken:
            c.close()
        m.umount()


def servers_connect(s, name):
    import psycopg2

    return psycopg2.connect(
        host="127.0.0.1", port=s.port, user="plain", password="plain", dbname=name
    )


# ---- several mounts, lost servers ----


def test_two_mounts_share_directories(ws, db):
    v = Volume(ws, url=db.url)
    a, b = v.mount("attr-cache=0,entry-cache=0,dir-entry-cache=0"), v.mount(
        "attr-cache=0,entry-cache=0,dir-entry-cache=0"
    )
    (a.path / "d").mkdir()
    jobs = [
        ws.python(STORM, m.path / "d", str(seed), "150", stderr=subprocess.PIPE)
        for seed, m in enumerate([a, b, a, b])
    ]
    for j in jobs:
        out = j.communicate(timeout=80 * SLOW)[1]
        assert j.returncode == 0, out.decode()
    a.umount()
    b.umount()
    verify(v, db)


STORM = """
import errno, os, random, sys
top, seed, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
r = random.Random(seed)
fine = (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR, errno.EPERM,
        errno.EINVAL, errno.ESTALE, errno.EBUSY, errno.EIO)  # EIO: removed by the other mount while open
name = lambda: "%s/n%d" % (top, r.randrange(12))
sub = lambda: r.choice([name(), name() + "/x", name() + "/y"])
def write():
    with open(sub(), "ab") as f: f.write(b"z" * r.randrange(5000))
ops = [write, write, lambda: os.mkdir(sub()), lambda: os.rmdir(sub()), lambda: os.unlink(sub()),
       lambda: os.rename(sub(), sub()), lambda: os.link(sub(), sub()),
       lambda: os.truncate(sub(), r.randrange(9000)),
       lambda: os.symlink("t", sub()), lambda: os.listdir(top), lambda: os.utime(sub())]
for _ in range(n):
    try: r.choice(ops)()
    except OSError as e:
        if e.errno not in fine: raise
"""


def test_server_killed_and_restarted(ws, own):
    """In the middle of work: operations wait, nothing is half done, nothing is done twice."""
    db = own.database()
    v = Volume(ws, url=db.url)
    m = v.mount()
    m.allow("database|connection|engine")
    job = ws.python(WORK, m.path / "w", "300", stderr=subprocess.PIPE)
    for _ in range(2):
        done = len(os.listdir(m.path / "w")) if (m.path / "w").exists() else 0
        wait_until(lambda: job.poll() is not None or len(os.listdir(m.path)) > 0, 20)
        wait_until(
            lambda: job.poll() is not None or len(os.listdir(m.path / "w")) > done + 15, 40
        )
        own.kill9()
        own.start()
    err = job.communicate(timeout=80 * SLOW)[1]
    assert job.returncode == 0, err.decode()
    names = set(os.listdir(m.path / "w"))
    assert names == worked(300)
    m.umount()
    found, _ = cachefs_check.check(db.url, str(v.bucket), cachefs_check.Options())
    # counters are written once a second and may have been lost with an answer
    assert not [f for f in found if f[0] not in ("counter", "dirstat")], found


@pytest.mark.parametrize("jobs, files", ((1, 200), (8, 60)))
def test_answers_lost_on_the_way(ws, db, jobs, files):
    """The network drops connections at random moments: a create or write is done once."""
    with CountingProxy(db.server.port) as proxy:
        v = Volume(ws, url=db.url.replace(":%d" % db.server.port, ":%d" % proxy.port))
        m = v.mount()
        m.allow("database|connection|engine|usage")
        tops = [m.path / ("w%d" % i) for i in range(jobs)]
        work = [ws.python(WORK, top, str(files), stderr=subprocess.PIPE) for top in tops]
        end = threading.Event()

        def cutter():
            pause = 0.15
            while not end.wait(pause):
                proxy.cut()
                pause *= 1.03  # where connecting takes that long, it succeeds in the end

        t = threading.Thread(target=cutter, daemon=True)
        t.start()
        errors = [job.communicate(timeout=80 * SLOW)[1].decode() for job in work]
        end.set()
        t.join()
        assert [job.returncode for job in work] == [0] * jobs, errors
        for top in tops:
            assert set(os.listdir(top)) == worked(files)
        m.umount()
        assert "pooler" not in m.log()
    found, _ = cachefs_check.check(db.url, str(v.bucket), cachefs_check.Options())
    assert not [f for f in found if f[0] not in ("counter", "dirstat")], found


def test_server_that_ends_no_session(ws, own):
    """The role may not end sessions, not even its own: the outcome is read back at once, and the log says so."""
    db = own.database()
    query(db, "REVOKE EXECUTE ON FUNCTION pg_terminate_backend FROM PUBLIC")
    query(db, "CREATE ROLE plain LOGIN PASSWORD 'secret'")
    query(db, "GRANT ALL ON SCHEMA public TO plain")
    with CountingProxy(own.port) as proxy:
        url = "postgres://plain:secret@127.0.0.1:%d/%s?sslmode=disable" % (proxy.port, db.name)
        v = Volume(ws, url=url)
        m = v.mount("heartbeat=60,no-bgjob")
        m.allow("database|connection|statement=end session code=42501")
        turn = 1
        while proxy.lost or turn == 1:
            proxy.lose(turn, answered=True)
            os.mkdir(m / ("d%d" % turn))
            os.setxattr(m / ("d%d" % turn), "user.a", b"1")
            turn += 1
        assert turn > 3 and "permission denied for function pg_terminate_backend" in m.log()
        m.umount()
    v.url = db.url
    found, _ = cachefs_check.check(db.url, str(v.bucket), cachefs_check.Options())
    assert not [f for f in found if f[0] not in ("counter", "dirstat")], found


def test_server_away_is_eio_in_time(ws, own):
    db = own.database()
    v = Volume(ws, url=db.url)
    m = v.mount("meta-timeout=3,io-timeout=3,attr-cache=0,entry-cache=0,dir-entry-cache=0")
    m.allow("database|connection|engine")
    (m.path / "f").write_bytes(b"1")
    own.kill9()
    began = time.monotonic()
    with pytest.raises(OSError) as e:
        os.stat(m.path / "f2")
    assert e.value.errno == 5
    assert time.monotonic() - began < 15 * SLOW
    own.start()
    assert (m.path / "f").read_bytes() == b"1"
    (m.path / "g").write_bytes(b"2")
    m.umount()


# A file in a directory, as another mount makes it.
MAKE_FILE = """WITH p AS (SELECT n.* FROM jfs_node n JOIN jfs_edge e USING(inode) WHERE e.name='d' FOR KEY SHARE OF n),
x AS (INSERT INTO jfs_edge(parent,name,inode,type) SELECT inode,'f',999,1 FROM p)
INSERT INTO jfs_node SELECT (jsonb_populate_record(n,'{"inode":999,"type":1,"nlink":1}')).* FROM jfs_node n,p
WHERE n.inode=p.inode"""


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_directory_that_gets_a_file_while_it_is_removed(ws, db, level):
    """The default isolation of the database is stricter than the engine's. With its snapshot the directory is
    empty, and the file in it would have no directory."""
    query(db, "ALTER DATABASE %s SET default_transaction_isolation='%s'" % (db.name, level))
    v = Volume(ws, url=db.url)
    m = v.mount("heartbeat=60,no-bgjob")
    (m / "d").mkdir()
    with contextlib.closing(db.connect()) as c, c.cursor() as cur:
        cur.execute(MAKE_FILE)
        removal = ws.python("import os,sys\nos.rmdir(sys.argv[1])", m / "d", stderr=subprocess.PIPE)
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        wait_until(lambda: query(db, waiting)[0] == (1,), 20, "the removal at the lock")
        c.commit()
    assert b"Directory not empty" in removal.communicate(timeout=60)[1]
    assert os.listdir(m / "d") == ["f"]
    query(db, "DELETE FROM jfs_edge WHERE inode=999")
    query(db, "DELETE FROM jfs_node WHERE inode=999")
    (m / "d").rmdir()
    m.umount()


def test_server_that_stops_long_statements(ws, db):
    """Nothing of such a statement is done, so it is sent again, until the operation's deadline."""
    query(db, "ALTER DATABASE %s SET statement_timeout='1500ms'" % db.name)
    v = Volume(ws, url=db.url)
    m = v.mount("heartbeat=60,no-bgjob")
    m.allow("statement stopped by the server")
    (m / "d").mkdir()
    with contextlib.closing(db.connect()) as c, c.cursor() as cur:
        cur.execute("LOCK TABLE jfs_edge IN SHARE MODE")
        making = ws.python("import os,sys\nos.mkdir(sys.argv[1])", m / "d" / "x")
        running = "SELECT query_start FROM pg_stat_activity WHERE wait_event_type='Lock'"
        seen = set()
        wait_until(lambda: seen.update(query(db, running)) or len(seen) > 2, 30, "the third try")
        c.rollback()
    assert making.wait(60) == 0
    assert os.listdir(m / "d") == ["x"]
    m.umount()


@pytest.mark.deadline(150)
def test_failover_to_a_standby(ws):
    """Two hosts in the URL; the primary dies, the standby is promoted, the mount goes on."""
    options = ("-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "wal_level=replica")
    with servers.Postgres(*options) as one:
        (one.data / "pg_hba.conf").open("a").write("\nlocal replication all trust\n")
        db = one.database()
        two = standby_of(one)
        try:
            two.start()
            query(db, "ALTER SYSTEM SET synchronous_standby_names='*'")
            query(db, "SELECT pg_reload_conf()")
            hosts = "127.0.0.1:%d,127.0.0.1:%d" % (one.port, two.port)
            v = Volume(ws, url=db.url.replace("127.0.0.1:%d" % one.port, hosts))
            alone = db.url.replace(":%d" % one.port, ":%d" % two.port)
            ws.path("standby").mkdir()
            r = ws.run("cachefs", "mount", alone, ws.path("standby"))
            assert r.returncode and "read-only" in r.stderr, r.stderr
            m = v.mount()
            m.allow("database|connection|engine")
            job = ws.python(WORK, m.path / "w", "150", stderr=subprocess.PIPE)
            wait_until(lambda: (m.path / "w").exists() and len(os.listdir(m.path / "w")) > 20, 30)
            one.kill9()
            two.run(servers.find("pg_ctl", *two.folders), "promote", "-D", two.data)
            err = job.communicate(timeout=80 * SLOW)[1]
            assert job.returncode == 0, err.decode()
            m.umount()
        finally:
            two.close()


@pytest.mark.deadline(150)
def test_commit_that_the_standby_never_got(ws):
    """It got no answer, and the promoted standby gives its transaction id to another one: it is
    carried out again, not taken for done."""
    options = ("-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "wal_level=replica")
    with servers.Postgres(*options) as one:
        (one.data / "pg_hba.conf").open("a").write("\nlocal replication all trust\n")
        db = one.database()
        two = standby_of(one)
        try:
            two.start()
            with CountingProxy(two.port) as way:
                way.refuse = True
                hosts = "127.0.0.1:%d,127.0.0.1:%d" % (one.port, way.port)
                v = Volume(ws, url=db.url.replace("127.0.0.1:%d" % one.port, hosts))
                m = v.mount("heartbeat=60,attr-cache=0,entry-cache=0")
                m.allow("database|connection|engine")
                (m.path / "f").write_bytes(b"1")
                caught_up = "SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication"
                wait_until(lambda: query(db, caught_up) == [(True,)], 20)
                two.stop()
                query(db, "ALTER SYSTEM SET synchronous_standby_names='*'")
                query(db, "SELECT pg_reload_conf()")
                wait_until(lambda: query(db, "SHOW synchronous_standby_names") == [("*",)], 20)
                with concurrent.futures.ThreadPoolExecutor(1) as pool:
                    job = pool.submit(os.rename, m.path / "f", m.path / "g")
                    waits = "SELECT count(*)>0 FROM pg_stat_activity WHERE wait_event='SyncRep'"
                    wait_until(lambda: query(db, waits) == [(True,)], 20)
                    one.kill9()
                    two.start()
                    two.run(servers.find("pg_ctl", *two.folders), "promote", "-D", two.data)
                    theirs = servers.Database(two, db.name)
                    for _ in range(100):
                        query(theirs, "SELECT txid_current()")
                    way.refuse = False
                    job.result(timeout=40 * SLOW)
                assert os.listdir(m.path) == ["g"] and (m.path / "g").read_bytes() == b"1"
                m.umount()
        finally:
            two.close()


def standby_of(one):
    two = servers.Postgres.__new__(servers.Postgres)
    servers.Server.__init__(two)
    two.options, two.data = one.options, two.dir / "data"
    two.run(
        servers.find("pg_basebackup", *one.folders),
        *("-h", one.dir, "-p", one.port, "-U", servers.USER, "-D", two.data, "-R", "-X", "stream"),
        *("-c", "fast"),
    )
    os.chmod(two.data, 0o700)
    return two


def test_rename_onto_a_name_that_is_gone_by_then(ws, db):
    """A name without a node may be one that another client makes and removes between the questions of
    a rename. A trigger does to the first attempt what that does: the name is not there any more."""
    mnt = Volume(ws, url=db.url).mount("entry-cache=0")
    with open(mnt / "src", "xb") as f:
        f.write(b"content")
    ino = os.stat(mnt / "src").st_ino
    gone = 99999
    for sql in (
        "INSERT INTO jfs_edge(parent, name, inode, type) VALUES (1, 'dst', %d, 1)" % gone,
        "UPDATE jfs_counter SET value = value + 1 WHERE name = 'totalInodes'",
        "UPDATE jfs_counter SET value = value + 4096 WHERE name = 'usedSpace'",
        "CREATE SEQUENCE attempts",
        """CREATE FUNCTION miss() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN IF nextval(''attempts'') = 1 THEN RETURN NULL; END IF; RETURN NEW; END'""",
        """CREATE TRIGGER miss BEFORE UPDATE ON jfs_edge
           FOR EACH ROW WHEN (OLD.inode = %d) EXECUTE FUNCTION miss()"""
        % gone,
    ):
        query(db, sql)
    os.rename(mnt / "src", mnt / "dst")
    assert query(db, "SELECT last_value FROM attempts") == [(2,)]
    assert os.stat(mnt / "dst").st_ino == ino
    assert os.listdir(mnt) == ["dst"]
    mnt.umount()
    query(db, "DROP TRIGGER miss ON jfs_edge")


def test_removal_of_a_name_that_is_renamed_over(ws, db):
    """A name that another client's rename gives to another inode is there all the time: its removal
    must not say that it is not. A trigger does to the first attempts what the rename does."""
    mnt = Volume(ws, url=db.url).mount("entry-cache=0")
    (mnt / "f").write_bytes(b"content")
    for sql in (
        "CREATE SEQUENCE attempts",
        """CREATE FUNCTION miss() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN IF nextval(''attempts'') <= 3 THEN RETURN NULL; END IF; RETURN OLD; END'""",
        """CREATE TRIGGER miss BEFORE DELETE OR UPDATE ON jfs_edge
           FOR EACH ROW EXECUTE FUNCTION miss()""",
    ):
        query(db, sql)
    os.unlink(mnt / "f")
    assert os.listdir(mnt) == []
    assert query(db, "SELECT last_value FROM attempts") == [(4,)]
    mnt.umount()
    query(db, "DROP TRIGGER miss ON jfs_edge")


def test_compaction_waits_for_a_clone(ws, db):
    """A list that is replaced between the clone's counting of references and its copying of the lists
    leaves slices that two files name and one is counted for: removing one file takes the blocks of
    the other."""
    import psycopg2.errors

    v = Volume(ws, url=db.url)
    mnt = v.mount()
    (mnt / "f").write_bytes(b"content")
    ino = os.stat(mnt / "f").st_ino
    c = db.connect()
    with contextlib.closing(c), c.cursor() as cur:
        # The clone can read and lock lists, and waits where it writes them.
        cur.execute("LOCK TABLE jfs_chunk IN SHARE ROW EXCLUSIVE MODE")
        clone = ws.popen([tool("cachefs"), "clone", mnt / "f", mnt / "g"])
        waits = (
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'jfs_chunk'::regclass"
        )
        wait_until(lambda: query(db, waits) == [(1,)])
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            # The first statement of compaction.
            cur.execute("SELECT slices FROM jfs_chunk WHERE inode=%s FOR UPDATE NOWAIT", (ino,))
    assert clone.wait(60) == 0
    assert (mnt / "g").read_bytes() == b"content"
    mnt.umount()
    verify(v, db)


def test_a_hundred_threads_in_one_directory(ws, db):
    """No deadlock, no error, one request per creation."""
    Volume(ws, url=db.url)
    argv = ["--threads", "100", "--depth", "0", "--files", "3000", "--json", db.url]
    r = ws.run("cachefs", "mdtest", *argv, timeout=80, check=True)
    found = json.loads(r.stdout)
    rows = {row["name"]: row for row in found["operations"]}
    print(r.stdout)
    assert rows["create"]["errors"] == rows["unlink"]["errors"] == 0
    assert rows["create"]["round_trips"] < 1.3
    assert rows["unlink"]["round_trips"] < 1.3
    n, retries = (sum(row[k] for row in found["operations"]) for k in ("count", "retries"))
    assert retries * 1000 < n
    stat = "SELECT deadlocks FROM pg_stat_database WHERE datname=current_database()"
    assert query(db, stat) == [(0,)]
