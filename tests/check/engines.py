# SPDX-License-Identifier: Apache-2.0
"""The checker's readers for PostgreSQL, MySQL and Redis (volume-format sections 1, 3 and 4)."""

import collections
import json
import re
import struct
import urllib.parse

from cachefs_check import DIR, Acl, Model, Node, RECORD, DELAYED, SqlLoader


def _query(url):
    """(META-URL without its query, the query's options)"""
    rest, _, query = url.partition("?")
    return rest, dict(urllib.parse.parse_qsl(query))


class ServerLoader(SqlLoader):
    """Shared by the SQL servers: one snapshot, and indexes under the names the format gives."""

    def __init__(self, prefix):
        self.prefix = "jfs_%s_" % prefix if prefix else "jfs_"
        self.db = None

    def load(self):
        try:
            return super().load()
        finally:
            self.db.close()

    def rows(self, query):
        with self.db.cursor() as cur:
            cur.execute(query)
            return cur.fetchall()

    def indexes(self):
        """name -> (table, columns, unique)"""
        raise NotImplementedError

    def self_check(self):
        out = []
        have = self.indexes()
        for names, unique in ((self.UNIQUE, True), (self.PLAIN, False)):
            for pattern, (table, columns) in names.items():
                name = pattern % self.prefix
                if have.get(name) != (self.prefix + table, columns, unique):
                    out.append(("schema", "index %s is missing or differs" % name))
        return out


class PostgresLoader(ServerLoader):
    def __init__(self, url):
        import psycopg2

        rest, options = _query(url)
        super().__init__(options.pop("table_prefix", ""))
        u = urllib.parse.urlsplit(rest)
        known = {k: v for k, v in options.items() if k in ("host", "port", "sslmode")}
        if "search_path" in options:
            known["options"] = "-c search_path=" + options["search_path"]
        self.db = psycopg2.connect(
            **{
                "host": u.hostname,
                "port": u.port or 5432,
                "user": urllib.parse.unquote(u.username or ""),
                "password": urllib.parse.unquote(u.password or ""),
                "dbname": u.path.lstrip("/"),
                **known,
            }
        )
        self.db.set_session(isolation_level="REPEATABLE READ", readonly=True)

    def indexes(self):
        out = {}
        for name, table, definition in self.rows(
            "SELECT indexname, tablename, indexdef FROM pg_indexes"
            " WHERE schemaname = ANY(current_schemas(false))"
        ):
            columns = re.search(r"\(([^)]*)\)$", definition).group(1).replace('"', "")
            unique = definition.startswith("CREATE UNIQUE")
            out[name] = (table, tuple(columns.split(", ")), unique)
        return out


class MysqlLoader(ServerLoader):
    def __init__(self, url):
        import pymysql

        rest, options = _query(url)
        super().__init__(options.pop("table_prefix", ""))
        m = re.match(r"mysql://(?:([^:@/]*)(?::(.*))?@)?(unix)?\(([^)]*)\)/(.+)$", rest)
        if not m:
            raise LookupError("not a MySQL URL: " + rest)
        user, password, is_unix, place, name = m.groups()
        host, _, port = place.partition(":")
        where = {"unix_socket": place} if is_unix else {"host": host, "port": int(port or 3306)}
        self.db = pymysql.connect(
            user=user,
            password=urllib.parse.unquote(password or ""),
            database=name,
            charset="utf8mb4",
            **where
        )
        with self.db.cursor() as cur:
            cur.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cur.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")

    def quote(self, name):
        return "`%s`" % name

    def indexes(self):
        found = collections.defaultdict(list)
        for table, name, differ, column in self.rows(
            "SELECT table_name, index_name, non_unique, column_name"
            " FROM information_schema.statistics WHERE table_schema = DATABASE()"
            " ORDER BY table_name, index_name, seq_in_index"
        ):
            found[name, table, not differ].append(column)
        return {n: (t, tuple(c), bool(u)) for (n, t, u), c in found.items()}


class RedisLoader:
    """Keys of section 4 as a Model, and what only this engine can have wrong."""

    PLAIN = re.compile(
        rb"(?:setting|sliceRef|delfiles|delSlices|detachedNodes|allSessions|sessionInfos|sessions"
        rb"|dir(?:DataLength|UsedSpace|UsedInodes)|(?:dir|user|group)Quota(?:Used(?:Space|Inodes))?"
        rb"|acl|aclMaxId|krbToken|krbTokenMaxId|txnLog|txnLastLog|next(?:inode|chunk|session)"
        rb"|nextTrash|usedSpace|totalInodes|(?:nextCleanup|lastCleanup)\w+|k\d+_\d+"
        rb"|zcachefs:\w+|zcachefs:record:[\w.-]+)$"
    )
    PASSING = re.compile(rb"zcachefs:done:")  # answers kept for a repeated request
    NUMBERED = re.compile(rb"([a-z]+?)(\d+)(?:_(\d+))?$")
    KINDS = {b"i", b"d", b"p", b"c", b"s", b"x", b"session", b"locked", b"lockf", b"lockp"}
    TIME = struct.Struct(">qI")

    def __init__(self, url):
        import redis

        if url.startswith("unix://"):
            rest, options = _query(url)
            u = re.match(r"unix://(?:([^:@/]*):([^@/]*)@)?(/.*)$", rest)
            who = {"username": u.group(1) or None, "password": u.group(2)} if u.group(2) else {}
            db = int(options.get("db", 0))
            self.r = redis.Redis(unix_socket_path=u.group(3), db=db, **who)
            self.prefix = b""
            return
        u = urllib.parse.urlsplit(url)
        host, _, port = u.netloc.rpartition("@")[2].partition(",")[0].partition(":")
        where = {"host": host or "127.0.0.1", "port": int(port or 6379)}
        if u.password:
            where["username"] = urllib.parse.unquote(u.username) if u.username else None
            where["password"] = urllib.parse.unquote(u.password)
        db = int(u.path.lstrip("/") or 0)
        if "," in u.netloc:
            self.r = redis.RedisCluster(**where)
            self.prefix = b"{%d}" % db
        else:
            self.r = redis.Redis(db=db, **where)
            self.prefix = b""

    def load(self):
        self.bad = []
        keys = self.keys()
        m = Model()
        text = self.get(b"setting")
        if text is None:
            raise LookupError("no volume: the key setting is missing")
        m.setting = json.loads(text)
        self.counters(m)
        for ino, _, raw in self.each(keys, b"i", "get"):
            m.nodes[ino] = self.node(ino, raw)
        for ino, _, h in self.each(keys, b"d", "hgetall"):
            for name, raw in h.items():
                if len(raw) != 9:
                    self.bad.append(("edge", "%d/%r: %d bytes" % (ino, name, len(raw))))
                    continue
                m.edges.append((ino, name, *struct.unpack(">BQ", raw)[::-1]))
        m.symlinks = {ino: raw for ino, _, raw in self.each(keys, b"s", "get")}
        for ino, _, h in self.each(keys, b"x", "hgetall"):
            m.xattrs += [(ino, n.decode("utf-8", "surrogateescape"), v) for n, v in h.items()]
        for ino, indx, records in self.each(keys, b"c", "list"):
            m.chunks[ino, indx] = b"".join(records)
            if any(len(r) != RECORD.size for r in records):
                self.bad.append(("chunk", "chunk %d/%d: a list element is no record" % (ino, indx)))
        self.slices(m)
        self.sessions(m, keys)
        self.locks(m, keys)
        self.usage(m)
        m.detached = {int(k): int(v) for k, v in self.zset(b"detachedNodes")}
        for id_, raw in self.hash(b"acl").items():
            m.acls[int(id_)] = self.acl(raw)
        if m.acls and int(self.get(b"aclMaxId") or 0) < max(m.acls):
            self.bad.append(("acl", "aclMaxId is below the largest rule id"))
        self.parents(m, keys)
        m.engine_findings = self.bad
        return m

    # -- access

    def get(self, name):
        return self.r.get(self.prefix + name)

    def hash(self, name):
        return self.r.hgetall(self.prefix + name)

    def zset(self, name):
        return self.r.zrange(self.prefix + name, 0, -1, withscores=True)

    def keys(self):
        """kind -> [(number, second number, key)]; a key that fits no pattern is a finding."""
        out = collections.defaultdict(list)
        escaped = re.sub(rb"([{}\[\]*?])", rb"\\\1", self.prefix)
        for key in self.r.scan_iter(match=escaped + b"*", count=10000):
            name = key[len(self.prefix) :]
            if self.PLAIN.match(name):
                continue
            if self.PASSING.match(name):
                if self.r.ttl(key) == -1:
                    self.bad.append(("schema", "key %r never expires" % name))
                continue
            m = self.NUMBERED.match(name)
            if not m or m.group(1) not in self.KINDS or (m.group(1) == b"c") != bool(m.group(3)):
                self.bad.append(("schema", "key %r belongs to nothing" % name))
                continue
            out[m.group(1)].append((int(m.group(2)), int(m.group(3) or 0), key))
        return out

    def each(self, keys, kind, how):
        """(number, second number, value) of every key of a kind that still exists."""
        for start in range(0, len(keys[kind]), 1000):
            part = keys[kind][start : start + 1000]
            p = self.r.pipeline(transaction=False)
            for _, _, key in part:
                if how == "list":
                    p.lrange(key, 0, -1)
                else:
                    getattr(p, how)(key)
            for (a, b, _), value in zip(part, p.execute()):
                if value:
                    yield a, b, value

    # -- values

    def node(self, ino, raw):
        if len(raw) not in (71, 72, 73, 79, 80, 81):
            self.bad.append(("node", "%d: attribute of %d bytes" % (ino, len(raw))))
            raw = raw.ljust(71, b"\0")
        flags, mode, uid, gid = struct.unpack_from(">BHII", raw)
        times = []
        for at in (11, 23, 35):
            s, ns = self.TIME.unpack_from(raw, at)
            if ns >= 10**9:
                self.bad.append(("node", "%d: %d nanoseconds" % (ino, ns)))
            times.append((s * 10**6 + ns // 1000, ns % 1000))
        nlink, length, rdev, parent = struct.unpack_from(">IQIQ", raw, 47)
        rest, acls, tier = raw[71:], (0, 0), 0
        if len(rest) >= 8:
            acls, rest = struct.unpack(">II", rest[:8]), rest[8:]
        if rest:
            tier = rest[0]
        return Node(
            *(ino, mode >> 12, flags, mode & 0o7777, uid, gid, tuple(times)),
            *(nlink, length, rdev, parent, *acls, tier)
        )

    @staticmethod
    def acl(raw):
        head, at, named = struct.unpack_from(">4H", raw), 8, []
        for _ in range(2):
            (n,) = struct.unpack_from(">I", raw, at)
            at += 4
            named.append(list(struct.iter_unpack(">IH", raw[at : at + 6 * n])))
            at += 6 * n
        return Acl(*head, *named)

    def counters(self, m):
        def number(name):
            return int(self.get(name) or 0)

        # the id given last, and 1 is never given
        m.counters["nextInode"] = max(number(b"nextinode") + 1, 2)
        m.counters["nextChunk"] = number(b"nextchunk") + 1
        m.counters["nextSession"] = number(b"nextsession")
        for name in ("nextTrash", "usedSpace", "totalInodes"):
            m.counters[name] = number(name.encode())

    def slices(self, m):
        for name, raw in self.hash(b"delSlices").items():
            id_, _, when = name.partition(b"_")
            m.delslices[int(id_)] = (int(when), raw)
        for name, refs in self.hash(b"sliceRef").items():
            found = re.match(rb"k(\d+)_(\d+)$", name)
            if not found:
                self.bad.append(("refs", "field %r of sliceRef" % name))
                continue
            m.refs[int(found.group(1))] = (int(found.group(2)), int(refs) + 1)
        # a slice without a field has one reference
        for raw in m.chunks.values():
            for _, id_, size, _, _ in RECORD.iter_unpack(raw[: len(raw) // 24 * 24]):
                if id_:
                    m.refs.setdefault(id_, (size, 1))
        for _, raw in m.delslices.values():
            for id_, size in DELAYED.iter_unpack(raw[: len(raw) // 12 * 12]):
                m.refs.setdefault(id_, (size, 1))

    def sessions(self, m, keys):
        infos = self.hash(b"sessionInfos")
        for sid, expire in self.zset(b"allSessions"):
            m.sessions[int(sid)] = (int(expire), infos.pop(sid, None))
        for sid in infos:
            self.bad.append(("session", "sessionInfos has %s, allSessions has not" % sid.decode()))
        for sid, _, inodes in self.each(keys, b"session", "smembers"):
            m.sustained += [(sid, int(i)) for i in inodes]
        for member, when in self.zset(b"delfiles"):
            ino, _, length = member.partition(b":")
            m.delfiles[int(ino)] = (int(length), int(when))

    def locks(self, m, keys):
        listed = {sid: names for sid, _, names in self.each(keys, b"locked", "smembers")}
        for kind in (b"lockf", b"lockp"):
            for ino, _, h in self.each(keys, kind, "hgetall"):
                for who, value in h.items():
                    sid, _, owner = who.partition(b"_")
                    sid, owner = int(sid), int(owner, 16)
                    if kind == b"lockf":
                        m.flocks.append((ino, sid, owner, value[0]))
                        continue
                    m.plocks.append((ino, sid, owner, value))
                    if self.prefix + b"lockp%d" % ino not in listed.get(sid, ()):
                        self.bad.append(("lock", "locked%d does not list lockp%d" % (sid, ino)))

    def usage(self, m):
        def numbers(*names):
            parts = [self.hash(n) for n in names]
            for key in sorted(set().union(*parts)):
                yield int(key), tuple(int(p.get(key, 0)) for p in parts)

        m.dir_stats = dict(numbers(b"dirDataLength", b"dirUsedSpace", b"dirUsedInodes"))
        for type_, name in ((0, b"dirQuota"), (1, b"userQuota"), (2, b"groupQuota")):
            used = dict(numbers(name + b"UsedSpace", name + b"UsedInodes"))
            for key, raw in self.hash(name).items():
                key = int(key)
                row = struct.unpack(">qq", raw) + used.pop(key, (0, 0))
                if type_:
                    m.owner_quota[type_, key] = row
                else:
                    m.dir_quota[key] = row
            for key in used:
                self.bad.append(("quota", "%s: usage of %d without limits" % (name.decode(), key)))

    def parents(self, m, keys):
        """p{inode} holds the directories of files that were hard linked."""
        named = collections.defaultdict(collections.Counter)
        for parent, _, ino, _ in m.edges:
            named[ino][parent] += 1
        have = {}
        for ino, _, h in self.each(keys, b"p", "hgetall"):
            have[ino] = {int(k): int(v) for k, v in h.items() if int(v) > 0}
            if have[ino] and ino not in m.nodes:
                self.bad.append(("parent", "p%d belongs to no inode" % ino))
        for n in m.nodes.values():
            if n.type == DIR or n.parent != 0 or n.nlink == 0:
                continue
            if have.get(n.ino, {}) != dict(named[n.ino]):
                self.bad.append(
                    ("parent", "p%d is %r, want %r" % (n.ino, have.get(n.ino), dict(named[n.ino])))
                )


LOADERS = {
    "postgres": PostgresLoader,
    "postgresql": PostgresLoader,
    "mysql": MysqlLoader,
    "redis": RedisLoader,
    "unix": RedisLoader,
}
