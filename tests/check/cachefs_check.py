#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Verifies a volume from its raw tables and objects, without any code of the product.

    cachefs_check.py META-URL [--bucket DIR] [--lag] [--unmounted] [--leaks fail|warn|ignore]
                     [--data-length] [--no-objects]

A loader turns one engine's tables or keys into a Model; everything after that works on the Model
alone. Prints one line per finding and "N findings"; exit status 1 when there are any, 2 when the
volume cannot be read. Format: docs/volume-format.md (sections are named where they are used).
"""

import argparse
import collections
import json
import os
import re
import sqlite3
import struct
import sys
from dataclasses import dataclass, field

ROOT = 1
TRASH = 0x7FFFFFFF10000000
CHUNK = 1 << 26
FILE_MAX = 1 << 57
FILE, DIR, SYMLINK, FIFO, BLOCK, CHAR, SOCKET = range(1, 8)
RECORD = struct.Struct(">IQIII")  # pos id size off len
DELAYED = struct.Struct(">QI")  # id size
PLOCK = struct.Struct(">IIQQ")
FLAGS = 1 | 2 | 4 | 8 | 16 | 32


def space_of(length):
    return (length + 4095) & ~4095 if length else 4096


@dataclass
class Node:
    ino: int
    type: int
    flags: int
    mode: int
    uid: int
    gid: int
    times: tuple  # (microseconds, 0..999 ns) for atime, mtime, ctime
    nlink: int
    length: int
    rdev: int
    parent: int
    access_acl: int
    default_acl: int
    tier: int

    @property
    def space(self):
        return space_of(self.length) if self.type == FILE else 4096


@dataclass
class Acl:
    owner: int
    group: int
    mask: int
    other: int
    users: list
    groups: list


@dataclass
class Model:
    """A volume as plain dictionaries, the same for every engine.

    refs: slice id -> (size, number of references); an engine that stores "references minus one"
    or leaves out the common case is translated by its loader. Counters carry their SQL meaning
    (next id, not last id).
    """

    setting: dict = field(default_factory=dict)
    counters: dict = field(default_factory=dict)
    nodes: dict = field(default_factory=dict)
    edges: list = field(default_factory=list)  # (parent, name, ino, type)
    symlinks: dict = field(default_factory=dict)
    xattrs: list = field(default_factory=list)  # (ino, name, value)
    chunks: dict = field(default_factory=dict)  # (ino, indx) -> bytes
    refs: dict = field(default_factory=dict)
    delslices: dict = field(default_factory=dict)  # id -> (deleted, bytes)
    sessions: dict = field(default_factory=dict)  # sid -> (expire, info)
    sustained: list = field(default_factory=list)  # (sid, ino)
    delfiles: dict = field(default_factory=dict)  # ino -> (length, expire)
    flocks: list = field(default_factory=list)  # (ino, sid, owner, type)
    plocks: list = field(default_factory=list)  # (ino, sid, owner, bytes)
    dir_stats: dict = field(default_factory=dict)  # ino -> (length, space, inodes)
    dir_quota: dict = field(default_factory=dict)  # ino -> (max space, max inodes, space, inodes)
    owner_quota: dict = field(default_factory=dict)  # (type, id) -> same
    detached: dict = field(default_factory=dict)
    acls: dict = field(default_factory=dict)
    engine_findings: list = field(default_factory=list)


class SqlLoader:
    """Reads the SQL layout (section 3). A subclass supplies rows() and, if it can, self_check()."""

    prefix = "jfs_"
    UNIQUE = {
        "UQE_%sedge_edge": ("edge", ("parent", "name")),
        "UQE_%sxattr_name": ("xattr", ("inode", "name")),
        "UQE_%schunk_chunk": ("chunk", ("inode", "indx")),
        "UQE_%ssustained_sustained": ("sustained", ("sid", "inode")),
        "UQE_%sflock_flock": ("flock", ("inode", "sid", "owner")),
        "UQE_%splock_plock": ("plock", ("inode", "sid", "owner")),
    }
    PLAIN = {
        "IDX_%sedge_inode": ("edge", ("inode",)),
        "IDX_%schunk_ref_refs": ("chunk_ref", ("refs",)),
    }
    TEXT = {"setting": (0, 1), "counter": (0,), "xattr": (1,)}

    def rows(self, query):
        raise NotImplementedError

    def quote(self, name):
        return '"%s"' % name

    def self_check(self):
        return []

    def table(self, name, columns):
        cols = ", ".join(self.quote(c) for c in columns.split())
        text = self.TEXT.get(name, ())
        for r in self.rows("SELECT %s FROM %s" % (cols, self.quote(self.prefix + name))):
            yield tuple(
                v.decode("utf-8", "surrogateescape") if i in text and isinstance(v, bytes) else v
                for i, v in enumerate(r)
            )

    def load(self):
        m = Model()
        text = [v for n, v in self.table("setting", "name value") if n == "format"]
        if not text:
            raise LookupError("no volume: the setting row is missing")
        m.setting = json.loads(text[0])
        m.counters = dict(self.table("counter", "name value"))
        for r in self.table(
            "node",
            "inode type flags mode uid gid atime atimensec mtime mtimensec ctime ctimensec"
            " nlink length rdev parent access_acl_id default_acl_id tier_id",
        ):
            r = list(r)
            times = ((r[6], r[7]), (r[8], r[9]), (r[10], r[11]))
            tail = [x or 0 for x in r[12:]]
            m.nodes[r[0]] = Node(*r[:6], times, *tail)
        m.edges = [
            (p, bytes(n), i, t) for p, n, i, t in self.table("edge", "parent name inode type")
        ]
        m.symlinks = {i: bytes(t) for i, t in self.table("symlink", "inode target")}
        m.xattrs = [(i, n, bytes(v)) for i, n, v in self.table("xattr", "inode name value")]
        m.chunks = {(i, x): bytes(s) for i, x, s in self.table("chunk", "inode indx slices")}
        m.refs = {i: (s, n) for i, s, n in self.table("chunk_ref", "chunkid size refs")}
        m.delslices = {
            i: (d, bytes(s)) for i, d, s in self.table("delslices", "chunkid deleted slices")
        }
        m.sessions = {s: (e, i) for s, e, i in self.table("session2", "sid expire info")}
        m.sustained = list(self.table("sustained", "sid inode"))
        m.delfiles = {i: (n, e) for i, n, e in self.table("delfile", "inode length expire")}
        m.flocks = list(self.table("flock", "inode sid owner ltype"))
        m.plocks = [
            (i, s, o, bytes(r)) for i, s, o, r in self.table("plock", "inode sid owner records")
        ]
        m.dir_stats = {
            r[0]: tuple(r[1:])
            for r in self.table("dir_stats", "inode data_length used_space used_inodes")
        }
        limits = "max_space max_inodes used_space used_inodes"
        m.dir_quota = {r[0]: tuple(r[1:]) for r in self.table("dir_quota", "inode " + limits)}
        m.owner_quota = {
            (r[0], r[1]): tuple(r[2:])
            for r in self.table("user_group_quota", "qtype qkey " + limits)
        }
        m.detached = dict(self.table("detached_node", "inode added"))
        for r in self.table("acl", "id owner group mask other named_users named_groups"):
            named = [list(struct.iter_unpack(">IH", bytes(b or b""))) for b in r[5:7]]
            m.acls[r[0]] = Acl(*r[1:5], *named)
        m.engine_findings = self.self_check()
        return m


class SqliteLoader(SqlLoader):
    # a name bound as TEXT is invisible to every client that binds it as a BLOB (section 3)
    STORAGE = (
        ("edge", "name", ("blob",)),
        ("symlink", "target", ("blob",)),
        ("xattr", "value", ("blob",)),
        ("xattr", "name", ("text",)),
        ("chunk", "slices", ("blob", "text")),
        ("delslices", "slices", ("blob",)),
    )

    def __init__(self, path, prefix=""):
        if not os.path.exists(path):
            raise LookupError("no such database: " + path)
        self.prefix = "jfs_%s_" % prefix if prefix else "jfs_"
        self.db = sqlite3.connect(path, timeout=30, isolation_level=None)
        # appended slice lists are stored as TEXT (section 3) but hold arbitrary bytes
        self.db.text_factory = bytes
        self.db.execute("PRAGMA query_only=1")

    def load(self):
        self.db.execute("BEGIN")  # one snapshot, also of a volume in use
        try:
            return super().load()
        finally:
            self.db.execute("ROLLBACK")
            self.db.close()

    def rows(self, query):
        return self.db.execute(query)

    def self_check(self):
        out = []
        for (line,) in self.db.execute("PRAGMA integrity_check"):
            if line not in (b"ok", "ok"):
                out.append(("database", line.decode()))
        for table, column, allowed in self.STORAGE:
            q = 'SELECT DISTINCT typeof("%s") FROM "%s%s"' % (column, self.prefix, table)
            for (kind,) in self.db.execute(q):
                if kind.decode() not in allowed:
                    out.append(("storage-class", "%s.%s holds %s" % (table, column, kind.decode())))
        for names, unique in ((self.UNIQUE, 1), (self.PLAIN, 0)):
            for pattern, (table, columns) in names.items():
                name = pattern % self.prefix
                have = {
                    r[1].decode(): r[2]
                    for r in self.db.execute("PRAGMA index_list(%s%s)" % (self.prefix, table))
                }
                got = tuple(r[2].decode() for r in self.db.execute("PRAGMA index_info(%s)" % name))
                if name not in have or have[name] != unique or got != columns:
                    out.append(("schema", "index %s is missing or differs" % name))
        return out


def open_loader(url):
    scheme, sep, rest = url.partition("://")
    if not sep:
        scheme, rest = "sqlite3", url
    if scheme == "sqlite3":
        path, _, query = rest.partition("?")
        m = re.search(r"(?:^|&)table_prefix=([^&]*)", query)
        return SqliteLoader(path, m.group(1) if m else "")
    import engines

    if scheme not in engines.LOADERS:
        raise LookupError("no reader for engine %s" % scheme)
    try:
        return engines.LOADERS[scheme](url)
    except ImportError as e:
        raise LookupError("%s needs a Python module: %s" % (scheme, e))


class Bucket:
    """Objects of a volume in a local directory: key below the volume prefix -> length."""

    TEMP = re.compile(r"^\.jfs\..*\.tmp\.\d+$")

    def __init__(self, path, volume):
        self.root = os.path.join(path, volume)

    def objects(self):
        out = {}
        for base, _, files in os.walk(self.root):
            for name in files:
                full = os.path.join(base, name)
                try:
                    out[os.path.relpath(full, self.root)] = os.stat(full).st_size
                except FileNotFoundError:
                    pass
        return out

    def read(self, key):
        with open(os.path.join(self.root, key), "rb") as f:
            return f.read()


@dataclass
class Options:
    lag: bool = False  # counters and statistics may be behind
    unmounted: bool = False  # no client is left: sessions and locks must be gone
    leaks: str = "fail"
    data_length: bool = False  # dir_stats.data_length exact too


class Checker:
    def __init__(self, model, bucket=None, options=None):
        self.m = model
        self.bucket = bucket
        self.opt = options or Options()
        self.findings = []  # (kind, text)
        self.warnings = []
        self.by_ino = collections.defaultdict(list)  # ino -> edges
        self.by_parent = collections.defaultdict(list)
        for e in model.edges:
            self.by_ino[e[2]].append(e)
            self.by_parent[e[0]].append(e)

    def bad(self, kind, text, *args):
        self.findings.append((kind, text % args if args else text))

    def leak(self, text, *args):
        if self.opt.leaks == "fail":
            self.bad("leak", text, *args)
        elif self.opt.leaks == "warn":
            self.warnings.append(("leak", text % args))

    def run(self):
        self.findings += self.m.engine_findings
        self.setting()
        self.edges()
        self.nodes()
        self.reachable()
        self.links()
        self.deleted()
        self.counters()
        self.slices()
        if self.bucket:
            self.objects()
        self.symlinks()
        self.xattrs()
        self.acls()
        self.locks()
        if not self.opt.lag:
            self.dir_stats()
            self.quotas()
        return self.findings

    # -- section 2

    def setting(self):
        s = self.m.setting
        if not re.match(r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", s.get("Name", "")):
            self.bad("setting", "Name %r breaks the naming rule", s.get("Name"))
        if not re.match(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", s.get("UUID", "")):
            self.bad("setting", "UUID %r", s.get("UUID"))
        size = s.get("BlockSize", 0)
        if not isinstance(size, int) or not 64 <= size <= 16384 or size & (size - 1):
            self.bad("setting", "BlockSize %r KiB", size)
        if s.get("Compression", "none") not in ("", "none", "lz4", "zstd"):
            self.bad("setting", "Compression %r", s.get("Compression"))
        if s.get("MetaVersion", 1) != 1:
            self.bad("setting", "MetaVersion %r", s.get("MetaVersion"))
        if s.get("Storage", "file") == "file" and not s.get("Bucket", "").endswith("/"):
            self.bad("setting", "Bucket %r does not end in /", s.get("Bucket"))
        for key in ("Name", "UUID", "Storage", "Bucket", "BlockSize", "TrashDays", "EnableACL"):
            if key not in s:
                self.bad("setting", "%s is missing", key)
        if s.get("TrashDays", 0) < 0:
            self.bad("setting", "TrashDays %r", s.get("TrashDays"))

    # -- section 5

    def edges(self):
        seen = set()
        for parent, name, ino, type_ in self.m.edges:
            at = "%d/%r" % (parent, name)
            if (parent, name) in seen:
                self.bad("edge", "%s occurs twice", at)
            seen.add((parent, name))
            if not 1 <= len(name) <= 255 or b"/" in name or b"\0" in name or name in (b".", b".."):
                self.bad("edge", "%s is no legal name", at)
            dir_ = self.m.nodes.get(parent)
            if dir_ is None:
                self.bad("edge", "%s: the parent has no node", at)
            elif dir_.type != DIR:
                self.bad("edge", "%s: the parent is no directory", at)
            node = self.m.nodes.get(ino)
            if node is None:
                self.bad("edge", "%s -> %d: no such node", at, ino)
            elif node.type != type_:
                self.bad("edge", "%s -> %d: type %d, node says %d", at, ino, type_, node.type)
            if parent == TRASH:
                if not re.match(rb"^\d{4}-\d\d-\d\d-\d\d$", name) or ino <= TRASH:
                    self.bad("trash", "%s -> %d is no hour directory", at, ino)
            elif parent > TRASH:
                m = re.match(rb"^(\d+)-(\d+)-", name)
                if not m or int(m.group(2)) != ino:
                    self.bad("trash", "%s -> %d: name does not carry its inode", at, ino)

    def nodes(self):
        if ROOT not in self.m.nodes:
            self.bad("node", "the root has no node")
        if self.m.setting.get("TrashDays", 0) > 0 and TRASH not in self.m.nodes:
            self.bad("node", "the trash has no node")
        for n in self.m.nodes.values():
            if n.type not in range(1, 8):
                self.bad("node", "%d: type %d", n.ino, n.type)
            if n.mode & ~0o7777:
                self.bad("node", "%d: mode %o", n.ino, n.mode)
            if n.flags & ~FLAGS:
                self.bad("node", "%d: flags %#x", n.ino, n.flags)
            if any(not 0 <= ns <= 999 for _, ns in n.times):
                self.bad("node", "%d: nanosecond part out of range: %r", n.ino, n.times)
            if n.type == DIR and n.length != 4096:
                self.bad("node", "%d: directory of length %d", n.ino, n.length)
            if n.type >= FIFO and n.length != 0:
                self.bad("node", "%d: special file of length %d", n.ino, n.length)
            if not 0 <= n.length < FILE_MAX:
                self.bad("node", "%d: length %d", n.ino, n.length)
            if n.rdev and n.type not in (BLOCK, CHAR):
                self.bad("node", "%d: type %d with device number %#x", n.ino, n.type, n.rdev)
            if str(n.tier) not in (self.m.setting.get("Tiers") or {"0": 0}):
                self.bad("node", "%d: tier %d is not in the setting", n.ino, n.tier)

    def reachable(self):
        sustained = {i for _, i in self.m.sustained}
        seen = set()
        stack = [i for i in (ROOT, TRASH) if i in self.m.nodes]
        stack += [i for i in self.m.detached if i in self.m.nodes and not self.by_ino[i]]
        while stack:
            ino = stack.pop()
            if ino in seen:
                continue
            seen.add(ino)
            stack += [e[2] for e in self.by_parent.get(ino, ()) if e[2] in self.m.nodes]
        for n in self.m.nodes.values():
            if n.ino in seen:
                continue
            if n.nlink == 0 and n.type != DIR and n.ino in sustained:
                continue
            self.bad(
                "orphan",
                "node %d (type %d, nlink %d) has no name that leads to the root",
                n.ino,
                n.type,
                n.nlink,
            )

    def links(self):
        for n in self.m.nodes.values():
            edges = self.by_ino.get(n.ino, [])
            if n.type == DIR:
                subs = sum(1 for e in self.by_parent.get(n.ino, ()) if e[3] == DIR)
                # neither hour directories nor what moves into them counts in the trash
                ok = range(2, 3 + subs) if n.ino >= TRASH else (2 + subs,)
                if n.nlink not in ok:
                    self.bad("nlink", "directory %d has %d, want %d", n.ino, n.nlink, 2 + subs)
                if len(edges) > 1 or (edges and n.ino in (ROOT, TRASH)):
                    self.bad("edge", "directory %d has %d names", n.ino, len(edges))
                want = ROOT if n.ino in (ROOT, TRASH) else edges[0][0] if edges else n.parent
                if n.parent != want:
                    self.bad("parent", "directory %d says %d, is in %d", n.ino, n.parent, want)
                continue
            if n.nlink != len(edges):
                self.bad("nlink", "inode %d has %d, want %d", n.ino, n.nlink, len(edges))
            parents = {e[0] for e in edges}
            if len(edges) > 1 and n.parent != 0:
                self.bad(
                    "parent", "inode %d with %d names says %d, want 0", n.ino, len(edges), n.parent
                )
            elif len(edges) == 1 and n.parent not in parents | {0}:
                self.bad("parent", "inode %d says %d, is in %d", n.ino, n.parent, edges[0][0])

    # -- section 9

    def deleted(self):
        for sid, ino in self.m.sustained:
            n = self.m.nodes.get(ino)
            if n is None:
                self.bad("sustained", "session %d keeps inode %d, which has no node", sid, ino)
            elif n.nlink != 0:
                self.bad("sustained", "session %d keeps inode %d with nlink %d", sid, ino, n.nlink)
            if sid not in self.m.sessions:
                self.bad("sustained", "inode %d is kept by session %d, which is gone", ino, sid)
        for ino, (length, _) in self.m.delfiles.items():
            if ino in self.m.nodes:
                self.bad("delfile", "inode %d is to be deleted but has a node", ino)
            if not 0 <= length < FILE_MAX:
                self.bad("delfile", "inode %d: length %d", ino, length)
        for ino in self.m.detached:
            if self.by_ino.get(ino):
                self.bad("detached", "inode %d has a name", ino)
        if self.opt.unmounted:
            for sid in self.m.sessions:
                self.bad("session", "session %d is left", sid)

    # -- section 3

    def counters(self):
        c = self.m.counters
        normal = [i for i in self.m.nodes if i < TRASH] + list(self.m.delfiles)
        normal += [e[2] for e in self.m.edges if e[2] < TRASH]
        above = {
            "nextInode": max(normal, default=1),
            "nextChunk": max(self.m.refs, default=0),
        }
        for name, used in above.items():
            if name not in c:
                self.bad("counter", "%s is missing", name)
            elif c[name] <= used:
                self.bad("counter", "%s is %d but %d is in use", name, c[name], used)
        reached = {
            "nextTrash": max((i - TRASH for i in self.m.nodes if i > TRASH), default=0),
            "nextSession": max(self.m.sessions, default=0),
        }
        for name, used in reached.items():
            if c.get(name, 0) < used:
                self.bad("counter", "%s is %d but %d is in use", name, c.get(name, 0), used)
        if self.opt.lag:
            return
        counted = [n for n in self.m.nodes.values() if n.ino not in (ROOT, TRASH)]
        exact = {"usedSpace": sum(n.space for n in counted), "totalInodes": len(counted)}
        for name, want in exact.items():
            if c.get(name, 0) != want:
                self.bad("counter", "%s is %d, want %d", name, c.get(name, 0), want)

    # -- section 6

    def slices(self):
        used = collections.Counter()
        sizes = {}
        next_id = self.m.counters.get("nextChunk", 0)

        def use(where, id_, size):
            used[id_] += 1
            if sizes.setdefault(id_, size) != size:
                self.bad(
                    "slice",
                    "%s: slice %d has size %d here, %d elsewhere",
                    where,
                    id_,
                    size,
                    sizes[id_],
                )
            if id_ >= next_id:
                self.bad("slice", "%s: slice %d was never given out", where, id_)

        for (ino, indx), raw in self.m.chunks.items():
            where = "chunk %d/%d" % (ino, indx)
            node = self.m.nodes.get(ino)
            if node is None and ino not in self.m.delfiles:
                self.bad("chunk", "%s belongs to no file", where)
            if node is not None and node.type != FILE:
                self.bad("chunk", "%s belongs to an inode of type %d", where, node.type)
            if not 0 <= indx < FILE_MAX // CHUNK:
                self.bad("chunk", "%s: index out of range", where)
            if len(raw) % RECORD.size:
                self.bad("chunk", "%s: %d bytes are no whole records", where, len(raw))
            whole = len(raw) - len(raw) % RECORD.size
            for pos, id_, size, off, len_ in RECORD.iter_unpack(raw[:whole]):
                what = "%s record (%d,%d,%d,%d,%d)" % (where, pos, id_, size, off, len_)
                if pos + len_ > CHUNK:
                    self.bad("record", "%s: leaves the chunk", what)
                if len_ == 0:
                    self.bad("record", "%s: empty", what)
                if id_ == 0:
                    if size:
                        self.bad("record", "%s: zeros with a size", what)
                    continue
                if off + len_ > size:
                    self.bad("record", "%s: reads behind the slice", what)
                use(where, id_, size)
        for id_, (_, raw) in self.m.delslices.items():
            where = "delslices %d" % id_
            if len(raw) % DELAYED.size or not raw:
                self.bad("delslices", "%d: %d bytes are no whole records", id_, len(raw))
            whole = len(raw) - len(raw) % DELAYED.size
            for old, size in DELAYED.iter_unpack(raw[:whole]):
                if old == 0:
                    self.bad("delslices", "%d names slice 0", id_)
                else:
                    use(where, old, size)

        for id_, n in used.items():
            size, refs = self.m.refs.get(id_, (sizes[id_], 0))
            if id_ not in self.m.refs:
                self.bad("refs", "slice %d is used %d times but has no entry", id_, n)
            elif refs != n:
                self.bad("refs", "slice %d has %d, want %d", id_, refs, n)
            if size != sizes[id_]:
                self.bad("refs", "slice %d has size %d, its records say %d", id_, size, sizes[id_])
        for id_, (size, refs) in self.m.refs.items():
            if id_ not in used and refs > 0:
                self.bad("refs", "slice %d has %d, but nothing uses it", id_, refs)
            if not 0 < size <= CHUNK:
                self.bad("refs", "slice %d has size %d", id_, size)
        self.used = {i: sizes[i] for i in used}

    # -- section 7

    def key(self, id_, i, length):
        if self.m.setting.get("HashPrefix"):
            return "chunks/%02X/%d/%d_%d_%d" % (id_ % 256, id_ // 1000000, id_, i, length)
        return "chunks/%d/%d/%d_%d_%d" % (id_ // 1000000, id_ // 1000, id_, i, length)

    def blocks(self, id_, size):
        block = self.m.setting["BlockSize"] * 1024
        for i in range((size + block - 1) // block):
            length = min(block, size - i * block)
            yield self.key(id_, i, length), length

    def objects(self):
        have = self.bucket.objects()
        plain = self.m.setting.get("Compression", "none") in ("", "none")
        plain = plain and not self.m.setting.get("EncryptKey")
        claimed = set()
        for id_, size in self.used.items():
            for key, length in self.blocks(id_, size):
                claimed.add(key)
                if key not in have:
                    self.bad("object", "%s is missing (slice %d of %d bytes)", key, id_, size)
                elif plain and have[key] != length:
                    self.bad("object", "%s has %d bytes, want %d", key, have[key], length)
                elif have[key] == 0:
                    self.bad("object", "%s is empty", key)
        pending = set()  # given up, its removal may still be under way
        for id_, (size, refs) in self.m.refs.items():
            if refs <= 0 and id_ not in self.used:
                pending.update(k for k, _ in self.blocks(id_, size))
        for key in sorted(set(have) - claimed):
            if key == "juicefs_uuid":
                if not self.m.setting.get("EncryptKey"):
                    if self.bucket.read(key).decode() != self.m.setting["UUID"]:
                        self.bad("object", "juicefs_uuid names another volume")
            elif key in pending or key.startswith(("meta/", "meta-replica/")):
                pass
            else:
                self.leak("object %s belongs to nothing", key)
        if "juicefs_uuid" not in have:
            self.bad("object", "juicefs_uuid is missing")

    # -- names that hang on nodes

    def symlinks(self):
        for n in self.m.nodes.values():
            if n.type != SYMLINK:
                continue
            target = self.m.symlinks.get(n.ino)
            if target is None:
                self.bad("symlink", "%d has no target", n.ino)
            elif len(target) != n.length or not 1 <= len(target) <= 4095 or b"\0" in target:
                self.bad("symlink", "%d: length %d, target %r", n.ino, n.length, target[:80])
        for ino in self.m.symlinks:
            n = self.m.nodes.get(ino)
            if n is None or n.type != SYMLINK:
                self.bad("symlink", "target row %d belongs to no symbolic link", ino)

    def xattrs(self):
        seen = set()
        for ino, name, value in self.m.xattrs:
            if ino not in self.m.nodes:
                self.bad("xattr", "%s of inode %d, which has no node", name, ino)
            elif self.m.nodes[ino].nlink == 0:
                self.bad("xattr", "%s of unlinked inode %d", name, ino)
            if (ino, name) in seen:
                self.bad("xattr", "%s of inode %d occurs twice", name, ino)
            seen.add((ino, name))
            if not 1 <= len(name.encode("utf-8", "surrogateescape")) <= 255 or len(value) > 65536:
                self.bad("xattr", "%r of inode %d: bad length", name, ino)
            if name.startswith("system.posix_acl_"):
                self.bad("xattr", "%s of inode %d is stored as a plain attribute", name, ino)

    def acls(self):
        for n in self.m.nodes.values():
            for id_ in (n.access_acl, n.default_acl):
                if id_ and id_ not in self.m.acls:
                    self.bad("acl", "inode %d names rule %d, which does not exist", n.ino, id_)
            if n.default_acl and n.type != DIR:
                self.bad(
                    "acl", "inode %d is no directory but has default rule %d", n.ino, n.default_acl
                )
            rule = self.m.acls.get(n.access_acl)
            if rule:
                group = rule.group if rule.mask == 0xFFFF else rule.mask
                want = (rule.owner << 6) | (group << 3) | rule.other
                if n.mode & 0o777 != want:
                    self.bad(
                        "acl",
                        "inode %d: mode %o, rule %d says %o",
                        n.ino,
                        n.mode & 0o777,
                        n.access_acl,
                        want,
                    )
        if self.m.acls and not self.m.setting.get("EnableACL"):
            self.bad("acl", "rules are stored but the volume has ACLs off")

    def locks(self):
        for ino, sid, owner, type_ in self.m.flocks:
            if type_ not in (82, 87):
                self.bad("lock", "flock of inode %d: type %r", ino, type_)
        for ino, sid, owner, raw in self.m.plocks:
            if len(raw) % PLOCK.size or not raw:
                self.bad("lock", "plock of inode %d: %d bytes", ino, len(raw))
                continue
            last = -1
            for type_, _, start, end in PLOCK.iter_unpack(raw):
                if type_ > 1 or start > end or start <= last:
                    self.bad("lock", "plock of inode %d: (%d, %d, %d)", ino, type_, start, end)
                last = end
        for ino, sid, owner, _ in self.m.flocks + self.m.plocks:
            if sid not in self.m.sessions:
                self.bad("lock", "inode %d is locked by session %d, which is gone", ino, sid)
            if ino not in self.m.nodes:
                self.bad("lock", "inode %d is locked but has no node", ino)

    # -- section 10

    def dir_stats(self):
        for ino, (length, space, inodes) in self.m.dir_stats.items():
            n = self.m.nodes.get(ino)
            if n is None or n.type != DIR:
                self.bad("dirstat", "row %d belongs to no directory", ino)
                continue
            kids = [self.m.nodes[e[2]] for e in self.by_parent.get(ino, ()) if e[2] in self.m.nodes]
            want = (sum(k.space for k in kids), len(kids))
            if (space, inodes) != want:
                self.bad(
                    "dirstat",
                    "directory %d has %d bytes %d inodes, want %d and %d",
                    ino,
                    space,
                    inodes,
                    *want
                )
            want = sum(k.length for k in kids if k.type == FILE)
            if self.opt.data_length and length != want:
                self.bad("dirstat", "directory %d has length %d, want %d", ino, length, want)

    def quotas(self):
        for ino, (_, _, space, inodes) in self.m.dir_quota.items():
            n = self.m.nodes.get(ino)
            if n is None or n.type != DIR:
                self.bad("quota", "directory quota %d belongs to no directory", ino)
                continue
            want_space = want_inodes = 0
            stack = [ino]
            seen = set()
            while stack:
                dir_ = stack.pop()
                if dir_ in seen:
                    continue
                seen.add(dir_)
                for _, _, child, type_ in self.by_parent.get(dir_, ()):
                    if child in self.m.nodes:
                        want_space += self.m.nodes[child].space
                        want_inodes += 1
                        if type_ == DIR:
                            stack.append(child)
            if (space, inodes) != (want_space, want_inodes):
                self.bad(
                    "quota",
                    "directory %d uses %d bytes %d inodes, want %d and %d",
                    ino,
                    space,
                    inodes,
                    want_space,
                    want_inodes,
                )
        if not self.m.setting.get("UserGroupQuota"):
            return
        usage = collections.defaultdict(lambda: [0, 0])
        for n in self.m.nodes.values():
            if n.ino in (ROOT, TRASH):
                continue
            for key in ((1, n.uid), (2, n.gid)):
                usage[key][0] += n.space
                usage[key][1] += 1
        for key, (_, _, space, inodes) in self.m.owner_quota.items():
            want = usage.get(key, [0, 0])
            if [space, inodes] != want:
                self.bad(
                    "quota",
                    "%s %d uses %d bytes %d inodes, want %d and %d",
                    "user" if key[0] == 1 else "group",
                    key[1],
                    space,
                    inodes,
                    *want
                )
        for key in set(usage) - set(self.m.owner_quota):
            self.bad(
                "quota",
                "%s %d owns inodes but has no row",
                "user" if key[0] == 1 else "group",
                key[1],
            )


def check(url, bucket=None, options=None, objects=True):
    """Returns (findings, warnings) of a volume, each a list of (kind, text)."""
    model = open_loader(url).load()
    store = None
    if objects:
        path = bucket or model.setting.get("Bucket", "")
        if model.setting.get("Storage", "file") != "file" and not bucket:
            raise LookupError("objects in %s storage need --bucket" % model.setting["Storage"])
        store = Bucket(path, model.setting["Name"])
    c = Checker(model, store, options)
    c.run()
    return c.findings, c.warnings


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("url", metavar="META-URL")
    p.add_argument(
        "--bucket", metavar="DIR", help="where the objects are, if not where the volume says"
    )
    p.add_argument("--no-objects", action="store_true", help="tables only")
    p.add_argument("--lag", action="store_true", help="counters and statistics may be behind")
    p.add_argument("--unmounted", action="store_true", help="no session or lock may be left")
    p.add_argument("--leaks", choices=("fail", "warn", "ignore"), default="fail")
    p.add_argument("--data-length", action="store_true", help="dir_stats.data_length must be exact")
    a = p.parse_args(argv)
    options = Options(a.lag, a.unmounted, a.leaks, a.data_length)
    try:
        findings, warnings = check(a.url, a.bucket, options, not a.no_objects)
    except Exception as e:  # each database driver has its own
        print("cannot read %s: %s" % (a.url, e), file=sys.stderr)
        return 2
    for kind, text in warnings:
        print("warning: %s: %s" % (kind, text))
    for kind, text in findings:
        print("%s: %s" % (kind, text))
    print("%d findings" % len(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.modules["cachefs_check"] = sys.modules["__main__"]
    sys.exit(main())
