# SPDX-License-Identifier: Apache-2.0
"""A disk that loses what was not synced.

Programs run with `Disk.env()` have librecorder.so (recorder.c) preloaded, which writes down each change below
Disk.dir and each sync. `Disk.lose()` then makes of the directory what a power failure at one moment
of that log could have left. The file system chooses among the unsynced changes; each MODE is one
that POSIX allows:

    all    nothing that was not synced is there: bytes, sizes, names
    names  each name is as it was, as with a journal that was just written; bytes that were not synced
           are gone, and a file of which none was synced is empty
    some   names up to some moment, and any part of the bytes that were not synced

(`nothing` is lost: what programs see that go on.)

A program under test says what it was promised by a mark in the log (`Disk.mark`), so that the
promises at any moment of it are known (`Disk.marks`).
"""

import json
import os
import pathlib
import random
import shutil
import struct

from cachefs import BIN

MODES = ("all", "names", "some")
RECORD = struct.Struct("<IIQQIIII")
MAGIC = 0x52454331
MAKE, WRITE, SIZE, RENAME, LINK, UNLINK, MKDIR, RMDIR = range(1, 9)
SYNC_FILE, SYNC_DIR, SYNC_ALL, SYNCED = range(9, 13)
MARK = 100
PIECE = 4096


class File:
    def __init__(self, data=b""):
        self.data = bytearray(data)  # as it is durable
        self.late = []  # (number of the record, offset, bytes) or (number, size, None)

    def apply(self, off, data):
        if data is None:
            if len(self.data) > off:
                del self.data[off:]
            else:
                self.data.extend(bytes(off - len(self.data)))
            return
        if len(self.data) < off:
            self.data.extend(bytes(off - len(self.data)))
        self.data[off : off + len(data)] = data

    def settle(self, before):
        while self.late and self.late[0][0] < before:
            self.apply(*self.late.pop(0)[1:])

    def settle_some(self, rng):
        """Any pieces; changes of the size as they were made."""
        share = rng.choice((0.1, 0.5, 0.9))
        for _, off, data in self.late:
            if data is None:
                self.apply(off, None)
                continue
            for at in range(0, len(data), PIECE):
                if rng.random() < share:
                    self.apply(off + at, data[at : at + PIECE])
        self.late = []


class Names:
    """path -> File, or None: a directory."""

    def __init__(self, paths):
        self.paths = dict(paths)

    def apply(self, op, path, to, file):
        p = self.paths
        if op == MAKE or op == LINK:
            p[to or path] = file
        elif op == MKDIR:
            p[path] = None
        elif op in (UNLINK, RMDIR):
            p.pop(path, None)
        elif op == RENAME:
            for name in [n for n in p if n == path or n.startswith(path + "/")]:
                p[to + name[len(path) :]] = p.pop(name)


class Disk:
    """apart: a directory in it that is a file system of its own, as that of another host is; syncfs(2)
    ends there."""

    def __init__(self, ws, apart=None):
        self.ws, self.apart = ws, apart
        self.dir = ws.path("disk")
        self.log = ws.path("disk.log")
        self.hang = ws.path("disk.hang")  # while there is such a file, no sync of a server ends
        self.dir.mkdir()
        self.log.touch()
        self.log.chmod(0o666)  # servers run as other users
        self.base = {}  # path -> (inode number, bytes), or None
        self.records = None

    def env(self):
        return {
            "LD_PRELOAD": str(BIN.parents[1] / "tests/system/librecorder.so"),
            "RECORD_ROOT": str(self.dir),
            "RECORD_LOG": str(self.log),
            # AddressSanitizer wants to be the first of what is preloaded.
            "ASAN_OPTIONS": self.ws.env()["ASAN_OPTIONS"] + ":verify_asan_link_order=0",
        }

    def begin(self):
        """All that is there is durable; what comes is recorded."""
        self.records = None
        os.truncate(self.log, 0)
        self.base = {str(self.dir): None}
        for path in self.dir.rglob("*"):
            self.base[str(path)] = (
                (path.stat().st_ino, path.read_bytes()) if path.is_file() else None
            )

    def mark(self, **what):
        self.add(MARK, data=json.dumps(what).encode())

    def add(self, kind, ino=0, off=0, path="", to="", data=b""):
        path, to = os.fsencode(path), os.fsencode(to)
        head = RECORD.pack(MAGIC, kind, ino, off, len(path), len(to), len(data), os.getpid())
        fd = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, head + path + to + data)
        finally:
            os.close(fd)
        self.records = None

    def complete(self):
        """When a process was killed: its last call may have been carried out and not be recorded. The others
        see what it did, so the records get it before they go on. SQLite makes its -shm again."""
        self.records = None
        known = {p: v for p, v in self.state("nothing", len(self.read())).items() if not p.endswith("-shm")}
        there = {str(self.dir): None}
        for path in self.dir.rglob("*"):
            if not path.name.endswith("-shm"):
                there[str(path)] = path.read_bytes() if path.is_file() else None
        for p in sorted(set(known) - set(there), reverse=True):
            to = [q for q in set(there) - set(known) if known[p] is not None and there[q] == known[p]]
            if to:
                self.add(RENAME, path=p, to=to[0])
                known[to[0]] = known.pop(p)
            else:
                self.add(RMDIR if known[p] is None else UNLINK, path=p)
        for p in sorted(there):
            ino = os.stat(p).st_ino
            if p not in known:
                self.add(MKDIR if there[p] is None else MAKE, 0 if there[p] is None else ino, path=p)
            if there[p] is not None and there[p] != known.get(p, b""):
                self.add(SIZE, ino, len(there[p]))
                self.add(WRITE, ino, 0, data=there[p])

    def read(self):
        """The records: (kind, inode, number or offset, path, to, data)."""
        if self.records is None:
            self.records, raw, at = [], self.log.read_bytes(), 0
            while at + RECORD.size <= len(raw):
                magic, kind, ino, off, path, to, data, _ = RECORD.unpack_from(raw, at)
                assert magic == MAGIC, "the log of changes is broken at %d" % at
                at += RECORD.size
                parts = []
                for n in (path, to, data):
                    parts.append(raw[at : at + n])
                    at += n
                names = [os.fsdecode(p) for p in parts[:2]]
                self.records.append((kind, ino, off, *names, parts[2]))
        return self.records

    def marks(self, cut=None):
        return [json.loads(r[5]) for r in self.read()[:cut] if r[0] == MARK]

    def cuts(self, n, seed):
        """Moments worth looking at: the end, and some just behind a change of names or a sync."""
        at = [i + 1 for i, r in enumerate(self.read()) if r[0] not in (WRITE, SIZE, MARK)]
        return sorted({len(self.records), *random.Random(seed).sample(at, min(n, len(at)))})

    def is_apart(self, path):
        return self.apart is not None and path.startswith("%s/%s/" % (self.dir, self.apart))

    def state(self, mode, cut, seed=0):
        """path -> bytes, or None for a directory."""
        records = self.read()[:cut]
        by_ino, durable = {}, {}
        for path, was in self.base.items():
            durable[path] = None if was is None else by_ino.setdefault(was[0], File(was[1]))
        live, durable = Names(durable), Names(durable)
        late, begun = [], {}  # changes of names; number of a sync -> number of its record
        for i, (kind, ino, off, path, to, data) in enumerate(records):
            if kind in (MAKE, RENAME, LINK, UNLINK, MKDIR, RMDIR):
                if kind == MAKE and live.paths.get(path) is not by_ino.get(ino, 0):
                    by_ino[ino] = File()
                elif kind == MAKE:
                    continue
                file = by_ino[ino] if kind == MAKE else live.paths.get(path)
                live.apply(kind, path, to, file)
                late.append((i, kind, path, to, file))
            elif kind == WRITE and ino in by_ino:
                by_ino[ino].late.append((i, off, data))
            elif kind == SIZE and ino in by_ino:
                by_ino[ino].late.append((i, off, None))
            elif kind in (SYNC_FILE, SYNC_DIR, SYNC_ALL):
                begun[off] = (i, kind, path, by_ino.get(ino))
            elif kind == SYNCED and ino in begun:
                before, kind, path, file = begun.pop(ino)
                if kind == SYNC_FILE and file:
                    file.settle(before)
                if kind == SYNC_ALL:
                    side = self.is_apart(path + "/")
                    for p, f in [*live.paths.items(), *((c[2], c[4]) for c in late)]:
                        if f and self.is_apart(p) == side:
                            f.settle(before)
                rest = []
                for change in late:
                    parents = {os.path.dirname(change[2]), os.path.dirname(change[3])}
                    if change[0] < before and (
                        (kind == SYNC_ALL and self.is_apart(change[2]) == side)
                        or (kind == SYNC_DIR and path in parents)
                    ):
                        durable.apply(*change[1:])
                    else:
                        rest.append(change)
                late = rest
        rng = random.Random(seed)
        keep = {"all": 0, "some": rng.randrange(len(late) + 1)}.get(mode, len(late))
        for change in late[:keep]:
            durable.apply(*change[1:])
        if mode == "some":
            for f in sorted({id(f): f for f in live.paths.values() if f}.values(), key=lambda f: str(f.late[:1])[:200]):
                f.settle_some(rng)
        if mode == "nothing":
            for f in filter(None, live.paths.values()):
                f.settle(cut)
        kept = {}
        for p, f in sorted(durable.paths.items()):
            if p == str(self.dir) or os.path.dirname(p) in kept:
                kept[p] = f if f is None else bytes(f.data)
        return kept

    def lose(self, mode, cut=None, seed=0):
        """The directory is as the power failure has left it."""
        self.put(self.state(mode, cut, seed))

    def put(self, state):
        shutil.rmtree(self.dir)
        for path, data in state.items():
            if data is None:
                os.makedirs(path)
            else:
                with open(path, "wb") as f:
                    f.write(data)
