# SPDX-License-Identifier: Apache-2.0
"""A replica takes over that lacks the last changes, and mounts go on with numbers that only the lost
changes have given them. A failure here is a block of one file under the name of another file's: data
that was stored and fsynced is replaced, or a user who may read what is not for him."""

import os
import struct

import pytest

import servers
from cachefs import SLOW, need_engine, wait_until
from countproxy import CountingProxy
from test_postgresql import standby_of

pytestmark = pytest.mark.deadline(180)
LOST = "database|connection|engine|session"
ACL, NO_ID = "system.posix_acl_access", 0xFFFFFFFF


class PostgresPair:
    def __init__(self, ws):
        options = ("-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "wal_level=replica")
        self.primary = servers.started(ws, servers.Postgres(*options))
        (self.primary.data / "pg_hba.conf").open("a").write("\nlocal replication all trust\n")
        self.replica = servers.started(ws, standby_of(self.primary))

    def caught_up(self):
        with self.primary.connect("postgres") as c, c.cursor() as cur:
            cur.execute("SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication")
            return cur.fetchall() == [(True,)]

    def cut(self):
        self.replica.stop()

    def promote(self):
        self.replica.start()
        program = servers.find("pg_ctl", *self.replica.folders)
        self.replica.run(program, "promote", "-w", "-D", self.replica.data)


class MysqlPair:
    def __init__(self, ws):
        of = "SLAVE" if servers.Mariadb is not servers.Mysql else "REPLICA"
        self.primary, self.replica = (
            servers.started(
                ws, servers.Mariadb("--log-bin=bin", "--server-id=%d" % i, "--binlog-format=ROW")
            )
            for i in (1, 2)
        )
        self.stop, show = "STOP " + of, "SHOW %s STATUS" % of
        change = (
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=%d, MASTER_USER='%s', "
            "MASTER_PASSWORD='%s', MASTER_LOG_FILE='bin.000001', MASTER_LOG_POS=4"
        )
        if of == "REPLICA":
            change = change.replace("MASTER TO", "REPLICATION SOURCE TO").replace("MASTER_", "SOURCE_")
            change += ", GET_SOURCE_PUBLIC_KEY=1"
        self.show = show
        self.replica._admin(change % (self.primary.port, servers.USER, servers.PASSWORD), "START " + of)

    def _row(self, server, statement):
        import pymysql

        c = server.connect(None)
        with c.cursor(pymysql.cursors.DictCursor) as cur:
            cur.execute(statement)
            row = cur.fetchone()
        c.close()
        return {k.replace("Source", "Master"): v for k, v in row.items()}

    def caught_up(self):
        status = "SHOW MASTER STATUS" if "SLAVE" in self.show else "SHOW BINARY LOG STATUS"
        at, of = self._row(self.primary, status), self._row(self.replica, self.show)
        assert not of["Last_SQL_Error"] and not of["Last_IO_Error"], of
        return (at["File"], at["Position"]) == (of["Relay_Master_Log_File"], of["Exec_Master_Log_Pos"])

    def cut(self):
        self.replica._admin(self.stop)

    def promote(self):
        pass


class RedisPair:
    def __init__(self, ws):
        self.primary = servers.started(ws, servers.Redis())
        self.way = CountingProxy(self.primary.port)
        ws.cleanups.append(self.way.close)
        self.replica = servers.started(ws, servers.Redis("--replicaof", "127.0.0.1", str(self.way.port)))

    def caught_up(self):
        info = self.primary.connect("0").info("replication")
        return info.get("slave0", {}).get("offset") == info["master_repl_offset"]

    def cut(self):
        self.way.refuse = True
        self.way.cut()

    def promote(self):
        self.replica.connect("0").replicaof("no", "one")


class TwoMounts:
    """Of a volume whose server has a replica."""

    def __init__(self, ws, engine, **options):
        need_engine(engine)
        self.pair = {"postgres": PostgresPair, "mysql": MysqlPair, "redis": RedisPair}[engine](ws)
        port = self.pair.primary.port
        self.way = CountingProxy(port)
        ws.cleanups.append(self.way.close)
        url = self.pair.primary.database().url.replace(":%d" % port, ":%d" % self.way.port)
        self.volume = ws.volume(url=url, trash_days=0, **options)
        self.a, self.b = (
            self.volume.mount("heartbeat=60,attr-cache=0,entry-cache=0,max-deletes=2") for _ in range(2)
        )
        for m in (self.a, self.b):
            m.allow(LOST)

    def lag(self):
        """The replica gets no further change."""
        wait_until(self.pair.caught_up, 30 * SLOW, "the replica")
        self.pair.cut()

    def fail_over(self):
        self.pair.primary.kill9()
        self.pair.promote()
        self.way.server_port = self.pair.replica.port
        self.way.cut()


@pytest.mark.parametrize("of", ["inodes and slices", "slices"])
@pytest.mark.parametrize("engine", ["postgres", "mysql", "redis"])
def test_numbers_that_the_promoted_server_never_gave(ws, engine, of):
    """Mount `a` takes its numbers from the old server after the replica's last change, and has no
    block left when `b` takes its own from the new one."""
    two = TwoMounts(ws, engine)
    v, a, b = two.volume, two.a, two.b
    for m in (a, b):
        if of == "slices":
            (m / ("empty%d" % m.pid())).touch()
    two.lag()
    store(a / "lost", b"lost")
    os.unlink(a / "lost")
    wait_until(lambda: not blocks(v), 30 * SLOW, "the removal of the block")
    two.fail_over()
    for i in range(3):
        store(b / ("b%d" % i), b"b%d" % i)
        store(a / ("a%d" % i), b"a%d" % i)
    assert len(blocks(v)) == 6
    for m in (a, b):
        m.umount()
    m = v.mount()
    names = sorted(n for n in os.listdir(m) if not n.startswith("empty"))
    assert names == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert len({os.stat(m / n).st_ino for n in names}) == 6
    assert {n: (m / n).read_bytes() for n in names} == {n: content(n.encode()) for n in names}
    m.umount()


@pytest.mark.parametrize("engine", ["postgres", "mysql", "redis"])
def test_rule_that_the_promoted_server_never_had(ws, engine):
    """An ACL rule of mount `a` is lost, and one of `b` gets its number: `a` must not take its own for that,
    and let in whom it names."""
    two = TwoMounts(ws, engine, enable_acl=True)
    lost, kept = acl(1000), acl(1001)
    (two.a / "f").touch()
    two.lag()
    os.setxattr(two.a / "f", ACL, lost)
    assert os.getxattr(two.a / "f", ACL) == lost
    two.fail_over()
    os.setxattr(two.b / "f", ACL, kept)
    assert os.getxattr(two.a / "f", ACL) == kept


def acl(uid):
    """rw-, and for that user, too (posix_acl_xattr.h)."""
    entries = [(0x01, 6, NO_ID), (0x02, 6, uid), (0x04, 0, NO_ID), (0x10, 6, NO_ID), (0x20, 0, NO_ID)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)


def content(text):
    return text * (65536 // len(text))


def store(path, text):
    with open(path, "xb") as f:
        f.write(content(text))
        f.flush()
        os.fsync(f.fileno())


def blocks(v):
    return [p for p in (v.bucket / v.name / "chunks").rglob("*") if p.is_file()]
