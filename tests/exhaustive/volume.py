# SPDX-License-Identifier: Apache-2.0
"""A volume that is put back to its beginning thousands of times, and the program that works on it."""

import os
import pathlib
import shutil
import subprocess
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
for folder in ("check", "system", "s3"):
    sys.path.insert(0, str(REPO / "tests" / folder))
import server as s3_server  # noqa: E402
import servers  # noqa: E402

BIN = pathlib.Path(os.environ.get("CACHEFS_BIN") or REPO / "build" / "src" / "cmd").resolve()
CRASHPOINT = BIN.parents[1] / "tests" / "exhaustive" / "crashpoint"
NAME = "exhaustive"


class Local:
    """Files beside the other local files of the volume, and copied with them."""

    def save(self):
        pass

    def restore(self):
        pass

    def close(self):
        pass


class Sqlite(Local):
    """The database is one file."""

    def __init__(self, base):
        self.url = "sqlite3://%s/disk/meta.db" % base


class OnServer:
    """A database of a server of its own, which nothing here interrupts."""

    def __init__(self, base):
        self.server = self.kind()
        self.server.start()
        self.database = self.server.database()
        self.url = self.database.url
        self.connection = None

    def close(self):
        self.server.close()


class Redis(OnServer):
    kind = servers.Redis

    def save(self):
        self.connection = c = self.database.connect()
        self.kept = [(key, max(0, c.pttl(key)), c.dump(key)) for key in c.keys()]

    def restore(self):
        with self.connection.pipeline(transaction=True) as p:
            p.flushdb()
            for key, expires_ms, value in self.kept:
                p.restore(key, expires_ms, value)
            p.execute()


class Sql(OnServer):
    def save(self):
        self.connection = self.database.connect()
        self.kept = []
        with self.connection.cursor() as c:
            c.execute("SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'jfs\\_%' OR table_name LIKE 'cfs\\_%'")
            for (table,) in c.fetchall():
                c.execute("SELECT * FROM %s" % table)
                self.kept.append((table, len(c.description), c.fetchall()))
        self.connection.commit()

    def restore(self):
        with self.connection.cursor() as c:
            for table, columns, rows in self.kept:
                c.execute("DELETE FROM %s" % table)
                if rows:
                    c.executemany("INSERT INTO %s VALUES (%s)" % (table, ",".join(["%s"] * columns)), rows)
        self.connection.commit()


class Postgresql(Sql):
    kind = servers.Postgres


class Mariadb(Sql):
    kind = servers.Mariadb


ENGINES = {"sqlite3": Sqlite, "redis": Redis, "postgresql": Postgresql, "mariadb": Mariadb}


class Files(Local):
    """Objects in a folder."""

    def __init__(self, base):
        self.where = self.dir = base / "disk" / "bucket"
        self.options, self.env = ["--storage", "file"], os.environ
        self.dir.mkdir(parents=True)


class Workspace:
    """The part of one that the server needs."""

    def __init__(self, base):
        self.dir, self.children = base, []

    def path(self, name):
        return self.dir / name

    def env(self, **more):
        return {**os.environ, **more}


class S3:
    """Objects on a server, which nothing here interrupts: its folder is copied while no request is under way."""

    def __init__(self, base):
        for folder in (base.parent, base):
            folder.chmod(0o755)  # the server runs as another user
        (base / "disk").mkdir()
        self.server = s3_server.Server(Workspace(base))
        self.dir, self.where = self.server.bucket("bucket"), self.server.url + "/bucket"
        self.options, self.env = ["--storage", "s3"], {**os.environ, **self.server.keys}
        self.kept = base / "objects"

    def save(self):
        shutil.copytree(self.dir, self.kept)

    def restore(self):
        for path in self.dir.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self.kept, self.dir, dirs_exist_ok=True)
        for where, _, files in os.walk(self.dir):
            for name in ("", *files):
                os.chown(os.path.join(where, name), self.server.user.pw_uid, self.server.user.pw_gid)

    def close(self):
        self.server.stop()


STORES = {"file": Files, "s3": S3}


class Volume:
    """base/disk: all local files of the volume; base/template: as they were at the beginning."""

    def __init__(self, base, engine, trash, writeback, store="file", replicated=False):
        self.base = pathlib.Path(base)
        self.disk = self.base / "disk"
        self.template = self.base / "template"
        self.cache = self.disk / "cache" if writeback else None
        self.objects = STORES[store](self.base)
        if self.cache:
            self.cache.mkdir()
        self.trash = trash
        self.engine = ENGINES[engine](self.base)
        self.url = self.engine.url
        command = [BIN / "cachefs", "format", self.url, NAME, *self.objects.options, "--bucket"]
        command += [self.objects.where, "--trash-days", "1" if trash else "0"]
        self.database = self.disk / "meta.db" if replicated else None
        command += ["--replicate", "sync"] if replicated else []
        made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=self.objects.env)
        if made.returncode:
            raise RuntimeError("format: " + made.stderr)

    def save(self):
        shutil.copytree(self.disk, self.template)
        self.objects.save()
        self.engine.save()

    def restore(self):
        shutil.rmtree(self.disk)
        shutil.copytree(self.template, self.disk)
        self.objects.restore()
        self.engine.restore()

    def lose_machine(self):
        """Leaves the bucket, and makes the database of its replica. Returns what is wrong."""
        for path in self.disk.iterdir():
            if path != self.objects.dir:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self.cache:
            self.cache.mkdir()
        command = [BIN / "cachefs", "load", "--from-replica", self.url, *self.objects.options, "--bucket"]
        command += [self.objects.where, "--volume", NAME]
        made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=self.objects.env)
        return made.stderr if made.returncode else ""

    def close(self):
        self.engine.close()
        self.objects.close()
        shutil.rmtree(self.base, ignore_errors=True)


class Answer:
    """Of the driver to one command (driver.c)."""

    def __init__(self, lines, trash):
        """trash: a file may have names in it, which only the checker counts."""
        self.trash = trash
        self.answers, self.marks, self.tree, self.calls = {}, {}, {}, 0
        self.met, self.grouped, self.died, self.closed, self.wrong, self.names = False, 0, None, None, [], []
        for line in lines:
            word, _, rest = line.partition(" ")
            if word == "calls":
                self.calls, self.met = int(rest.split()[0]), rest.split()[1] == "1"
            elif word == "grouped":
                self.grouped = int(rest)
            elif word == "died":
                self.died = int(rest)
            elif word in ("answer", "mark"):
                of = self.answers if word == "answer" else self.marks
                of[int(rest.split()[0])] = int(rest.split()[1])
            elif word == "closed":
                self.closed = int(rest)
            elif word == "call":
                self.names.append(rest.split(" ", 1)[1])
            elif word == "tree":
                self.add(rest)
            else:
                self.wrong.append(line)
        self.share_names()

    def add(self, text):
        if "!" in text:
            self.wrong.append("tree " + text)
            return
        path, kind, mode, nlink, uid, gid, ino, length, content, xattrs = text.split(" ")
        if (uid, gid) != ("0", "0"):
            self.wrong.append("owner of " + text)
        if kind == "f":
            content = self.content(content)
        else:
            content = content.encode() if kind == "l" else ()
        pairs = tuple(sorted(tuple(x.split("=")) for x in xattrs.split(",") if x != "-"))
        self.tree[path] = [kind, int(mode, 8), int(nlink), int(length), content, pairs, ino]

    @staticmethod
    def content(text):
        if text == "-":
            return b""
        runs = [run.split("*") for run in text.split(",")]
        if all(byte != "--" for byte, _ in runs):
            return b"".join(bytes.fromhex(byte) * int(n) for byte, n in runs)
        return tuple(b for byte, n in runs for b in [-1 if byte == "--" else int(byte, 16)] * int(n))

    def share_names(self):
        """Of files the names in the place of their number, as model.visible() has it."""
        by_ino = {}
        for path, (*_, ino) in self.tree.items():
            by_ino.setdefault(ino, []).append(path)
        for path, (kind, mode, nlink, length, content, xattrs, ino) in self.tree.items():
            names = tuple(sorted(by_ino[ino]))
            if kind != "d" and (nlink < len(names) or nlink > len(names) and not self.trash):
                self.wrong.append("%s has %d links and %d names" % (path, nlink, len(names)))
            self.tree[path] = (kind, mode, nlink if kind == "d" else names, length, content, xattrs)


class Driver:
    def __init__(self, volume, writeback, close, env=None):
        self.trash = volume.trash
        self.errors = open(volume.base / "errors", "a+b")
        bucket = volume.objects.dir if volume.objects.dir.is_relative_to(volume.disk) else "-"
        self.process = subprocess.Popen(
            [CRASHPOINT, volume.url, volume.disk, bucket, volume.cache or "-", str(int(writeback)), close,
             volume.database or "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            # Symbols are bound once, not in each of its processes.
            env={**os.environ, "LD_BIND_NOW": "1", **(env or {})},
        )

    def ask(self, command):
        if self.process.poll() is None:
            os.truncate(self.errors.fileno(), 0)
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        lines = []
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError("the driver has ended with %s: %s" % (self.process.wait(60), self.said()))
            if line == "end\n":
                return Answer(lines, self.trash)
            lines.append(line.rstrip("\n"))

    def run(self, requests, prelude, fate="none", at=0):
        return self.ask("run %s %d %d %s" % (fate, at, prelude, ";".join(requests)))

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-2000:]

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()
        self.errors.close()
