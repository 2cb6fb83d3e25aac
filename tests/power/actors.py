# SPDX-License-Identifier: Apache-2.0
"""Programs that change files and write down in the log of the disk what they were promised (promises.py)."""

import json
import os
import random
import threading
import time

from promises import bytes_of

NAMES = ["f%d" % i for i in range(7)]
WEIGHTS = {"write": 20, "append": 10, "small": 16, "truncate": 6, "save": 12, "make": 8, "rename": 6, "over": 6,
           "link": 3, "unlink": 6, "copy": 5, "names": 4}
LENGTH_MAX = 200_000


class Actor(threading.Thread):
    """One directory, one operation after the other, until the time is over."""

    def __init__(self, top, mark, actor, seed, until):
        super().__init__(name=actor)
        self.actor, self.mark_path, self.rng, self.until = actor, mark, random.Random(seed), until
        self.dir = top / actor
        self.names = {}  # name -> inode number
        self.sizes = {}  # inode number -> size
        self.failed, self.done, self.syncs = None, 0, 0

    def mark(self, **what):
        os.write(self.marks, json.dumps({"t": self.actor, **what}).encode())

    def step(self, op, call, *args):
        self.mark(op=[op, *args])
        answer = call()
        self.mark(ok=answer)
        self.done += 1
        self.syncs += op.startswith("fsync")
        return answer

    def run(self):
        try:
            self.marks = os.open(self.mark_path, os.O_WRONLY)
            self.sync_names()
            while time.monotonic() < self.until:
                self.one()
            os.close(self.marks)
        except Exception as e:
            self.failed = e

    def one(self):
        rng = self.rng
        free = [n for n in NAMES if n not in self.names]
        if len(self.names) < 3:
            self.make(rng.choice(free))
            return
        name = rng.choice(sorted(self.names))
        size = self.sizes[self.names[name]]
        others = [n for n in sorted(self.names) if self.names[n] != self.names[name]]
        what = rng.choices(list(WEIGHTS), WEIGHTS.values())[0]
        if what == "write":
            self.write(name, rng.randrange(size + 1), rng.randint(1, 60_000), rng.random() < 0.6)
        elif what == "append":
            self.write(name, size, rng.randint(1, 60_000), rng.random() < 0.6)
        elif what == "small":
            # many records in a chunk, so that it is compacted
            for _ in range(rng.randint(2, 8)):
                size = self.sizes[self.names[name]]
                self.write(name, rng.randrange(size + 1), rng.randint(1, 3000), rng.random() < 0.8)
        elif what == "truncate":
            self.truncate(name, rng.randrange(min(size + 4096, LENGTH_MAX)), rng.random() < 0.5)
        elif what == "make" and free:
            self.make(rng.choice(free))
        elif what == "save" and free:
            # as editors do: another file, synced, takes the name
            self.make(free[0])
            self.write(free[0], 0, rng.randint(1, 100_000), True)
            self.rename(free[0], name)
        elif what == "rename" and free:
            self.rename(name, rng.choice(free))
        elif what == "over" and others:
            self.rename(name, rng.choice(others))
        elif what == "link" and free:
            self.link(name, rng.choice(free))
        elif what == "unlink":
            self.unlink(name)
        elif what == "copy" and others and size:
            self.copy(name, rng.choice(others))
        if what in ("names", "save", "rename", "over", "link", "unlink") and rng.random() < 0.5:
            self.sync_names()

    def make(self, name):
        def create():
            fd = os.open(self.dir / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            ino = os.fstat(fd).st_ino
            os.close(fd)
            return ino

        ino = self.step("create", create, name)
        self.names[name], self.sizes[ino] = ino, 0

    def write(self, name, off, length, sync):
        ino, seed = self.names[name], self.rng.randrange(1 << 32)
        length = max(1, min(length, LENGTH_MAX - off))
        fd = os.open(self.dir / name, os.O_WRONLY)
        self.step("write", lambda: os.pwrite(fd, bytes_of(seed, length), off), ino, off, length, seed)
        self.sizes[ino] = max(self.sizes[ino], off + length)
        self.close(fd, ino, sync)

    def truncate(self, name, size, sync):
        ino, fd = self.names[name], os.open(self.dir / name, os.O_WRONLY)
        self.step("truncate", lambda: os.ftruncate(fd, size), ino, size)
        self.sizes[ino] = size
        self.close(fd, ino, sync)

    def copy(self, source, target):
        size, rng = self.sizes[self.names[source]], self.rng
        off, to = rng.randrange(size), rng.randrange(self.sizes[self.names[target]] + 1)
        length = max(1, min(rng.randint(1, 60_000), size - off, LENGTH_MAX - to))
        one, two = os.open(self.dir / source, os.O_RDONLY), os.open(self.dir / target, os.O_WRONLY)

        def copied():
            done = 0
            while done < length:
                done += os.copy_file_range(one, two, length - done, off + done, to + done)

        ino = self.names[target]
        self.step("copy", copied, self.names[source], off, ino, to, length)
        self.sizes[ino] = max(self.sizes[ino], to + length)
        os.close(one)
        self.close(two, ino, rng.random() < 0.5)

    def close(self, fd, ino, sync):
        """An fsync comes before the close of this descriptor, or as often on another one behind it."""
        if sync and self.rng.random() < 0.3:
            again = os.open("/proc/self/fd/%d" % fd, os.O_WRONLY)
            os.close(fd)
            fd = again
        if sync:
            self.step("fsync", lambda: os.fsync(fd), ino)
        os.close(fd)

    def rename(self, name, to):
        self.step("rename", lambda: os.rename(self.dir / name, self.dir / to), name, to)
        self.names[to] = self.names.pop(name)

    def link(self, name, to):
        self.step("link", lambda: os.link(self.dir / name, self.dir / to), name, to)
        self.names[to] = self.names[name]

    def unlink(self, name):
        self.step("unlink", lambda: os.unlink(self.dir / name), name)
        del self.names[name]

    def sync_names(self):
        fd = os.open(self.dir, os.O_RDONLY)
        self.step("fsyncdir", lambda: os.fsync(fd))
        os.close(fd)
