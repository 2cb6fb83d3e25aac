# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of administration commands."""

import contextlib
import json
import os
import sqlite3
import time

from syscalls import data, read, write

TRASH = 0x7FFFFFFF10000000
DAMAGED = 3


def ask(ws, *argv, code=0, **kw):
    """Runs a command with --json and returns what it printed."""
    r = ws.run("cachefs", *argv, "--json", **kw)
    assert r.returncode == code, "%s: exit %d\n%s%s" % (argv, r.returncode, r.stdout, r.stderr)
    return json.loads(r.stdout) if r.stdout.strip() else None


def refused(ws, *argv, says="", code=None, **kw):
    r = ws.run("cachefs", *argv, **kw)
    assert r.returncode != 0 and r.stderr.strip(), (argv, r.stdout)
    assert code is None or r.returncode == code, r.stderr
    assert says in r.stderr, r.stderr
    return r


def gc(ws, vol, *options, code=0, age=None):
    env = {} if age is None else {"JFS_GC_SKIPPEDTIME": str(age)}
    return ask(ws, "gc", vol.url, "--bucket", str(vol.bucket) + "/", *options, code=code, env=env)


def fsck(ws, vol, *options, code=0):
    return ask(ws, "fsck", vol.url, "--bucket", str(vol.bucket) + "/", *options, code=code)


def kinds(report):
    return sorted({p["kind"] for p in report["problems"]})


def make_tree(root):
    """A little of everything; returns {path: content}."""
    files = {"a/one": data(100_000, 1), "a/b/two": data(3_000_000, 2), "three": b"3", "empty": b""}
    for path, content in files.items():
        os.makedirs(os.path.dirname(root / path), exist_ok=True)
        write(root / path, content)
    os.symlink("three", root / "link")
    os.link(root / "three", root / "a/hard")
    os.mkdir(root / "a/nothing", 0o700)
    os.setxattr(root / "three", "user.note", b"\0value")
    os.utime(root / "three", ns=(1_111_111_111_000_000_001, 1_222_222_222_000_000_002))
    return files


def ls(path):
    """Names, without those that a mount shows of itself in its root."""
    return sorted(n for n in os.listdir(path) if not n.startswith("."))


def contents(root):
    out = {}
    for d, dirs, names in os.walk(root):
        dirs[:] = [n for n in dirs if not n.startswith(".")]
        for f in names:
            path = os.path.join(d, f)
            if not f.startswith(".") and not os.path.islink(path):
                out[os.path.relpath(path, root)] = read(path)
    return out


def junk(vol, key, content=b"x" * 10, age_s=7200):
    path = vol.bucket / vol.name / key
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, content)
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def stand_still(vol, p, query):
    """Locks the database as soon as query finds something that process p has made. The process cannot get
    on before the connection that is returned is closed."""
    db = sqlite3.connect(vol.db, timeout=0, isolation_level=None)
    while True:
        assert p.poll() is None, "it was faster than this test"
        # SQLite would sleep between its tries, and p would be done before it gets the lock.
        with contextlib.suppress(sqlite3.OperationalError):
            db.execute("BEGIN IMMEDIATE")
            if db.execute(query).fetchone():
                return db
            db.execute("ROLLBACK")
            time.sleep(0.001)  # the others' turn
