# SPDX-License-Identifier: Apache-2.0
"""Power failures: all processes die, and what was not synced is gone (unsynced.py). A failure here is
a file that fsync had promised and that is gone, wrong or cannot be read, or a record without object."""

import collections
import contextlib
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys

import pytest

import servers
from cachefs import Volume, need_engine, wait_until, wrong_clock
from syscalls import read
from unsynced import MODES, UNLINK, Disk

GONE = "gone"


def digest(content):
    return hashlib.sha256(content).hexdigest()


class Promises:
    """The allowed contents of each file, noted in the log before and after each change. A file of which
    nothing was promised may be unreadable: its bytes were never synced."""

    def __init__(self, disk):
        self.disk = disk

    def may(self, name, content):
        """From here on it may be so, too; None: it may be gone."""
        self.disk.mark(name=name, may=digest(content) if content is not None else GONE)

    def must(self, name, content):
        self.disk.mark(name=name, must=digest(content) if content is not None else GONE)

    def at(self, cut):
        out = {}
        for m in self.disk.marks(cut):
            if "must" in m:
                out[m["name"]] = {m["must"]}
            elif m["name"] in out:
                out[m["name"]].add(m["may"])
        return out


class Machine:
    """A volume with all it has on a disk that forgets."""

    def __init__(self, ws, trash_days, opts="", disk=None, url=None, **options):
        self.ws, self.opts = ws, opts
        self.disk = disk or Disk(ws)
        url = url or "sqlite3://%s/vol.db" % self.disk.dir
        self.volume = Volume(ws, "vol", format=False, url=url)
        self.volume.bucket = self.disk.dir / "bucket"
        self.volume.format(trash_days=trash_days, **options)
        # what a crash leaves is what gc is for, and the sessions of the dead expire
        self.volume.check_options = {"leaks": "warn", "unmounted": False}
        self.promises = Promises(self.disk)
        self.disk.begin()

    def mount(self, recorded=True, opts=None):
        opts = self.opts if opts is None else opts
        return self.volume.mount(opts, env=self.disk.env() if recorded else None)

    def run(self, *argv):
        return self.ws.run(*argv, env=self.disk.env(), check=True, timeout=60)

    def kill(self, mnt):
        """Before others go on with what it left."""
        mnt.kill9()
        self.disk.complete()

    def look(self, mode, cut, seed):
        """The faults after a power failure there."""
        where = "%s, record %s, seed %d" % (mode, cut, seed)
        want = self.promises.at(cut)
        self.disk.lose(mode, cut, seed)
        # what is wrong in rows and objects is seen before anything repairs it
        bad = self.complaints(want)
        return ["%s: %s" % (where, b) for b in bad + self.wrong_files(want) + self.complaints(want)]

    def wrong_files(self, want):
        bad = []
        mnt = self.mount(False)
        for name, allowed in want.items():
            try:
                with open(mnt / name, "rb") as f:
                    have = digest(f.read())
            except FileNotFoundError:
                have = GONE
            except OSError as e:
                have = e.strerror
            if have not in allowed:
                bad.append("%s: %s, allowed are %s" % (name, have, sorted(allowed)))
        mnt.umount()
        return bad

    def complaints(self, want):
        """Those of the checker, but for objects of files of which nothing was ever promised."""
        found = self.volume.verify()
        if not found:
            return []
        files = collections.defaultdict(set)  # slice -> names
        for ino, records in self.volume.sql("SELECT inode, CAST(slices AS BLOB) FROM jfs_chunk"):
            query = "SELECT CAST(name AS BLOB) FROM jfs_edge WHERE inode=?"
            names = {name for (name,) in self.volume.sql(query, ino)}
            for at in range(0, len(records), 24):
                files[int.from_bytes(records[at + 4 : at + 12], "big")] |= names or {b"?"}

        def excused(text):
            m = re.search(r": object: .*chunks/\d+/\d+/(\d+)_", text)
            names = m and files[int(m.group(1))]
            return names and not any(os.fsdecode(n) in want or n == b"?" for n in names)

        return [text for text in found if not excused(text)]

    def check(self, cuts=6, seed=1, modes=MODES):
        bad = []
        for i, cut in enumerate(self.disk.cuts(cuts, seed)):
            for mode in modes if cut == len(self.disk.records) else (modes[i % len(modes)],):
                bad += self.look(mode, cut, seed + i)
        assert bad == [], "\n".join(bad)


def store(path, content, sync=True):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    try:
        os.write(fd, content)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def rewrite(m, mnt, name, rng, pieces):
    """Some records in the file's chunk, each promised."""
    content = bytearray(rng.randbytes(200_000))
    m.promises.may(name, bytes(content))
    store(mnt / name, bytes(content))
    m.promises.must(name, bytes(content))
    fd = os.open(mnt / name, os.O_WRONLY)
    for _ in range(pieces):
        off, piece = rng.randrange(180_000), rng.randbytes(rng.randrange(1, 20_000))
        content[off : off + len(piece)] = piece
        m.promises.may(name, bytes(content))
        os.pwrite(fd, piece, off)
        os.fsync(fd)
        m.promises.must(name, bytes(content))
    os.close(fd)
    return bytes(content)


def old_objects_go(m, before):
    wait_until(lambda: not before & set(m.volume.objects()), 30, "the end of old objects")


@pytest.mark.parametrize("trash", (0, 1))
def test_compaction(ws, trash):
    m = Machine(ws, trash)
    mnt = m.mount()
    rng = random.Random(5)
    for i in range(3):
        rewrite(m, mnt, "f%d" % i, rng, 8)
    before = set(m.volume.objects())
    m.run("cachefs", "compact", mnt.path)
    if not trash:
        old_objects_go(m, before)
    mnt.kill9()
    m.check()


def test_compaction_and_a_sync_of_names(ws):
    """Somebody's fsync of a directory makes the records durable, and no object."""
    m = Machine(ws, 1)
    mnt = m.mount()
    rewrite(m, mnt, "f", random.Random(7), 8)
    before = len(m.volume.objects())
    m.run("cachefs", "compact", mnt.path)
    assert len(m.volume.objects()) > before
    fd = os.open(mnt.path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    mnt.kill9()
    m.check(cuts=3)


def test_compaction_by_gc(ws):
    m = Machine(ws, 0)
    mnt = m.mount()
    rewrite(m, mnt, "f", random.Random(6), 8)
    before = set(m.volume.objects())
    m.kill(mnt)
    m.run("cachefs", "gc", "--compact", "--delete", m.volume.url)
    assert not before & set(m.volume.objects())
    m.check()


def change(m, mnt, what, name, content):
    """One change that frees what the file has; it is promised by nothing until fsync."""
    if what == "unlink":
        m.promises.may(name, None)
        os.unlink(mnt / name)
    elif what == "truncate":
        m.promises.may(name, b"")
        os.truncate(mnt / name, 0)
    elif what == "rename":
        m.promises.must(name + ".new", content)
        m.promises.may(name, content)
        m.promises.may(name + ".new", None)
        os.rename(mnt / (name + ".new"), mnt / name)


@pytest.mark.parametrize("what", ("unlink", "truncate", "rename"))
@pytest.mark.parametrize("writeback", (False, True))
def test_files_lose_their_data(ws, what, writeback):
    """A change that frees data is not durable at once. The data stays until it is."""
    m = Machine(ws, 0, "writeback,cache-dir=%s/disk/cache" % ws.dir if writeback else "")
    if writeback:
        m.volume.check_options = None  # the checker does not look into staging directories
    mnt = m.mount()
    rng = random.Random(what)
    files = {}
    for i in range(12):
        content = rng.randbytes(rng.choice((1000, 100_000, 5_000_000 if i < 2 else 9000)))
        files["f%d" % i] = content
        store(mnt / ("f%d" % i), content)
        m.promises.must("f%d" % i, content)
        if what == "rename":
            files["f%d" % i] = content[::-1]
            store(mnt / ("f%d.new" % i), content[::-1])
    wait_until(lambda: mnt.stat("staging_blocks") == 0, 30, "the upload") if writeback else None
    before = set(m.volume.objects())
    for name, content in files.items():
        change(m, mnt, what, name, content)
    if what == "truncate":  # their records are still there: it takes a compaction
        m.run("cachefs", "compact", mnt.path)
    else:
        wait_until(lambda: len(before - set(m.volume.objects())) >= 12, 30, "removed objects")
    mnt.kill9()
    m.check(cuts=9)


def test_trash_expires(ws):
    m = Machine(ws, 1)
    mnt = m.mount()
    rng = random.Random(8)
    for i in range(6):
        rewrite(m, mnt, "f%d" % i, rng, 2)
    m.run("cachefs", "compact", mnt.path)
    for i in range(6):
        m.promises.may("f%d" % i, None)
        os.unlink(mnt / ("f%d" % i))
    mnt.umount()
    before = set(m.volume.objects())
    later = wrong_clock(ws, 3 * 86400)
    later["LD_PRELOAD"] += ":" + m.disk.env()["LD_PRELOAD"]
    mnt = m.volume.mount(env={**m.disk.env(), **later})
    old_objects_go(m, before)
    mnt.kill9()
    m.check(cuts=9)


CALLS = """
import os, sys
os.chdir(sys.argv[1])
for call in sys.stdin:
    exec(call)
    print("done", flush=True)
"""


def test_last_call_of_a_killed_process(ws):
    """It was carried out, and its record is missing: what others see is in the records all the same."""
    disk = Disk(ws)
    disk.begin()
    argv = ("env", *("%s=%s" % v for v in disk.env().items()), sys.executable, "-c", CALLS, disk.dir)
    p = ws.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    calls = (
        "os.mkdir('d')",
        "fd = os.open('d/a', os.O_CREAT | os.O_RDWR)",
        "os.pwrite(fd, b'x' * 9000, 0)",
        "os.pwrite(fd, b'y' * 10, 4090)",
        "os.ftruncate(fd, 5000)",
        "os.rename('d/a', 'b')",
        "os.rmdir('d')",
        "os.unlink('b')",
    )
    for call in calls:
        before = disk.log.stat().st_size
        p.stdin.write(call + "\n")
        p.stdin.flush()
        assert p.stdout.readline() == "done\n"
        assert disk.log.stat().st_size > before, call
        os.truncate(disk.log, before)
        disk.complete()
        there = {str(q): q.read_bytes() if q.is_file() else None for q in (disk.dir, *disk.dir.rglob("*"))}
        assert disk.state("nothing", len(disk.read())) == there, call
    p.communicate()


def test_tree_removed_and_gc(ws):
    """rmr --skip-trash, killed at work; gc goes on and dies with the machine."""
    m = Machine(ws, 1)
    mnt = m.mount()
    rng = random.Random(9)
    os.mkdir(mnt / "d")
    for i in range(20):
        content = rng.randbytes(20_000)
        store(mnt / ("d/f%d" % i), content)
        m.promises.must("d/f%d" % i, content)
    store(mnt / "stays", b"x" * 5000)
    m.promises.must("stays", b"x" * 5000)
    before = len(m.volume.objects())
    for i in range(20):
        m.promises.may("d/f%d" % i, None)
    m.run("cachefs", "rmr", "--skip-trash", mnt / "d")
    wait_until(lambda: len(m.volume.objects()) < before, 30, "the first objects to go")
    m.kill(mnt)
    m.run("cachefs", "gc", "--delete", m.volume.url)
    m.check(cuts=9)


def test_overwritten_without_fsync(ws):
    """Bytes of a synced file that are overwritten and not synced are the old or the new ones."""
    m = Machine(ws, 0)
    mnt = m.mount()
    rng = random.Random(10)
    content = bytearray(rng.randbytes(300_000))
    store(mnt / "f", bytes(content))
    m.promises.must("f", bytes(content))
    for i in range(20):
        off, piece = rng.randrange(200_000), rng.randbytes(50_000)
        content[off : off + len(piece)] = piece
        m.promises.may("f", bytes(content))
        with open(mnt / "f", "r+b", buffering=0) as f:
            os.pwrite(f.fileno(), piece, off)  # close(2) commits it
        # somebody's fsync makes the records durable
        store(mnt / "other", b"%d" % i)
    mnt.kill9()
    m.check(cuts=24, modes=("some",))


@pytest.mark.parametrize("how", ["write", "copy"])
def test_appended_without_fsync(ws, how):
    """The kernel reads whole pages: bytes behind synced ones, in the same page, do not take these along."""
    m = Machine(ws, 0)
    mnt = m.mount()
    rng = random.Random(12)
    content = rng.randbytes(1000)
    store(mnt / "f", content)
    m.promises.must("f", content)
    for _ in range(20):
        piece = rng.randbytes(8 + 4096 * rng.randrange(3))  # never up to the end of a page
        at, content = len(content), content + piece
        m.promises.may("f", content)
        if how == "copy":
            store(mnt / "src", piece, sync=False)
            with open(mnt / "src", "rb") as src, open(mnt / "f", "r+b") as f:
                assert os.copy_file_range(src.fileno(), f.fileno(), len(piece), 0, at) == len(piece)
        else:
            with open(mnt / "f", "ab", buffering=0) as f:
                f.write(piece)  # close(2) commits it
        # the records are durable then, the bytes are not
        fd = os.open(mnt, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    mnt.kill9()
    m.check(cuts=24, modes=("some",))


def test_copied_without_fsync(ws):
    m = Machine(ws, 0)
    mnt = m.mount()
    rng = random.Random(1)
    store(mnt / "f", old := rng.randbytes(90_000))
    m.promises.must("f", old)
    for i in range(10):
        store(mnt / "src", new := rng.randbytes(90_000), sync=False)
        m.promises.may("f", new)
        with open(mnt / "src", "rb") as src, open(mnt / "f", "r+b") as dst:
            assert os.copy_file_range(src.fileno(), dst.fileno(), len(new)) == len(new)
        # somebody's fsync makes the records durable
        store(mnt / "other", b"%d" % i)
    mnt.kill9()
    m.check(cuts=24, modes=("some",))


def test_staged_blocks(ws):
    """writeback: what is staged outlives the machine, uploaded or not; the cache is no liar."""
    m = Machine(ws, 0, "writeback,cache-dir=%s/disk/cache" % ws.dir)
    m.volume.check_options = None  # the checker does not look into staging directories
    mnt = m.mount()
    rng = random.Random(12)
    for i in range(8):
        content = rng.randbytes(rng.choice((100, 70_000, 4_500_000)))
        store(mnt / ("f%d" % i), content)
        m.promises.must("f%d" % i, content)
    wait_until(lambda: mnt.stat("staging_blocks") == 0, 30, "the upload")
    for i in range(8):
        with open(mnt / ("f%d" % i), "rb") as f:
            f.read()
    store(mnt / "last", b"y" * 100_000)
    m.promises.must("last", b"y" * 100_000)
    mnt.kill9()
    m.check(cuts=9)


def test_staged_blocks_in_a_directory_that_was_made_for_them(ws):
    """The names above it are durable, too, and not by a sync of anything else."""
    cache = ws.dir / "disk/var/cachefs/cache"
    m = Machine(ws, 0, "writeback,upload-delay=1h,cache-dir=%s" % cache, disk=Disk(ws, apart="var"))
    m.volume.check_options = None  # the checker does not look into staging directories
    mnt = m.mount()
    store(mnt / "f", b"x" * 100_000)
    m.promises.must("f", b"x" * 100_000)
    mnt.kill9()
    m.check(cuts=0)


def test_staged_blocks_where_directories_were_removed(ws):
    """A mount of the same cache directory removes empty ones when it begins."""
    cache = ws.dir / "disk/cache"
    m = Machine(ws, 0, "writeback,upload-delay=1h,cache-dir=%s" % cache, disk=Disk(ws, apart="cache"))
    m.volume.check_options = None  # the checker does not look into staging directories
    mnt = m.mount()
    home = cache / m.volume.setting()["UUID"] / "rawstaging/chunks/0"
    store(mnt / "removed", b"x" * 5000)
    assert list(home.glob("*/*"))
    os.unlink(mnt / "removed")
    wait_until(lambda: not list(home.glob("*/*")), 30, "the end of the staged block")
    other = m.mount(opts="cache-dir=%s" % cache)
    wait_until(lambda: not list(home.iterdir()), 30, "the end of empty directories")
    other.umount()
    store(mnt / "f", b"y" * 5000)
    mnt.kill9()
    name = "%s/0/2_0_5000" % home
    end = len(m.disk.read())
    assert not [seed for seed in range(200) if name not in m.disk.state("some", end, seed)]


class OnDisk:
    """A server whose files are on a disk that forgets, and that acknowledges before it syncs."""

    disk = None

    def _as_user(self):
        kw = super()._as_user()
        if self.disk:
            kw["env"].update(self.disk.env(), RECORD_HANG=str(self.disk.hang))
        return kw

    def own(self):
        for path in (self.data, *self.data.rglob("*")):
            if self.account:
                shutil.chown(path, self.account, self.account)
        self.data.chmod(0o700)


class RedisOnDisk(OnDisk, servers.Redis):
    def __init__(self, disk):
        super().__init__("--appendonly", "yes", "--appendfsync", "everysec")
        self.disk, self.data = disk, disk.dir / "server"
        self.data.mkdir()

    def argv(self):
        return [*super().argv(), "--dir", self.data]

    def database(self):
        return self.url("1")

    def flush(self):
        """All of it is on disk."""
        with contextlib.closing(self.connect("1")) as c:
            c.config_set("appendfsync", "always")
            c.set("any", 1)
            c.config_set("appendfsync", "everysec")
            # It syncs once in a second of its clock: what comes behind this has to wait for the next.
            wait_until(lambda: c.time()[1] < 100_000, 30, "the beginning of a second")
            c.delete("any")


class PostgresOnDisk(OnDisk, servers.Postgres):
    def __init__(self, disk):
        settings = {"fsync": "on", "full_page_writes": "on", "wal_writer_delay": "10s"}
        super().__init__(*(x for k, v in settings.items() for x in ("-c", "%s=%s" % (k, v))))
        shutil.move(self.data, disk.dir / "server")
        self.disk, self.data = disk, disk.dir / "server"

    def database(self):
        return self.url(self.create("vol"))

    def flush(self):
        self._admin("CHECKPOINT")


@pytest.mark.parametrize("kind", (RedisOnDisk, PostgresOnDisk))
def test_server_that_acknowledges_first(ws, kind):
    """A change that a server acknowledged and may lose deletes nothing: a compacted file can be read."""
    need_engine(kind.scheme)
    disk = Disk(ws, apart="server")
    server = kind(disk)
    ws.cleanups.append(server.close)
    server.own()
    server.start()
    m = Machine(ws, 0, disk=disk, url=server.database())
    mnt = m.mount()
    for i in range(3):
        rewrite(m, mnt, "f%d" % i, random.Random(i), 6)
    before = set(m.volume.objects())
    server.flush()
    m.run("cachefs", "compact", mnt.path)
    old_objects_go(m, before)
    mnt.kill9()
    server.kill9()

    # the moment at which the first of those went that every file needs as long as it is in its records
    needed = {str(path) for path in before if path.name.endswith("_200000")}
    gone = (i for i, r in enumerate(disk.read()) if r[0] == UNLINK and r[3] in needed)
    disk.lose("names", next(gone) + 1)
    server.own()
    server.start()
    mnt = m.mount(False)
    for i in range(3):
        assert len(read(mnt / ("f%d" % i))) >= 200_000
    mnt.umount()


def test_redis_whose_disk_hangs(ws):
    """Nothing is deleted until the server has synced; who waits for that is told after its time."""
    need_engine("redis")
    disk = Disk(ws, apart="server")
    server = RedisOnDisk(disk)
    ws.cleanups.append(server.close)
    ws.cleanups.append(lambda: disk.hang.unlink(missing_ok=True))
    server.own()
    server.start()
    m = Machine(ws, 0, "meta-timeout=6", disk=disk, url=server.database())
    mnt = m.mount()
    mnt.allow("metadata engine does not answer|cannot make changes durable")
    rewrite(m, mnt, "f", random.Random(1), 6)
    before = set(m.volume.objects())
    disk.hang.touch()
    m.run("cachefs", "compact", mnt.path)
    wait_until(lambda: "cannot make changes durable" in mnt.log(), 60, "the end of its time")
    assert before <= set(m.volume.objects())
    disk.hang.unlink()
    rewrite(m, mnt, "f", random.Random(2), 6)
    before = set(m.volume.objects()) - before
    m.run("cachefs", "compact", mnt.path)
    old_objects_go(m, before)
    mnt.umount()
