# SPDX-License-Identifier: Apache-2.0
"""Lines of tests/bench/run about a bucket and the disk cache. Each is `name cachefs ceiling ratio`
of one run: the ceiling is a bare loop of libcurl over the same objects (floor_s3), nullfs that
serves the files of the same cache (nullfs -c), or nullfs that answers from memory."""

import fnmatch
import json
import mmap
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "s3"))

import server  # noqa: E402

BLOCK = 4 << 20
READ_IN_FLIGHT = 8  # what max-readahead, 32 MiB, keeps under way
WRITE_IN_FLIGHT = 20  # max-uploads
SMALL_FILES = 10000

# name -> aim (the CPU's and that of bytes are maxima)
LINES = {
    "s3 read 1m": 0.8,
    "s3 write 1m": 0.8,
    "s3 randread 4m": 1.0,
    "disk read 1m": 0.8,
    "disk read CPU s/GiB": 0.35,
    "disk randread 4k": 0.7,
    "disk randread 4k 64x4": 0.7,
    "disk randread 128k": 0.7,
    "s3 small files": None,
}


def wanted(opts, *names):
    return any(not opts.only or fnmatch.fnmatch(n, opts.only) for n in names)


class Place:
    """The part of a test that tests/s3/server.py needs: a directory and a list of cleanups."""

    def __init__(self, path):
        self.dir, self.children = path, []
        path.mkdir()
        os.chmod(path, 0o755)

    def path(self, name):
        return self.dir / name

    def env(self, **more):
        return {**os.environ, **more}


def cpu_s(pid):
    fields = pathlib.Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Storage:
    def __init__(self, bench, opts):
        self.bench, self.opts = bench, opts
        os.chmod(bench.dir, 0o755)  # the server is another user
        self.place = Place(bench.dir / "s3")
        self.s3 = server.Server(self.place)
        self.db = bench.dir / "s3.db"
        self.url = self.s3.url + "/bucket"
        subprocess.run(
            [bench.bin / "cachefs", "format", "sqlite3://%s" % self.db, "bench", "--storage", "s3",
             "--bucket", self.url, "--trash-days", "0"],
            check=True, stdout=subprocess.DEVNULL, env={**os.environ, **self.s3.keys})
        self.cache = pathlib.Path(opts.disk) / ("cachefs-bench-%d" % os.getpid())
        self.out = {}

    def close(self):
        self.s3.stop()
        subprocess.run(["rm", "-rf", self.cache], check=False)

    def mount(self, options="cache-dir=none"):
        return self.bench.cachefs(self.db, options, self.s3.keys)

    def cached(self, *more):
        return self.mount(",".join(["cache-dir=%s" % self.cache, "free-space-ratio=0", *more]))

    def umount(self, fs):
        self.bench.stop(fs[1])

    def row(self, name, ours, ceiling, unit="", detail=""):
        ratio = ours / ceiling if ceiling else None
        aim = LINES[name.partition(":")[0]]
        self.out[name] = {"cachefs": ours, "ceiling": ceiling, "ratio": ratio, "aim": aim}
        print("%-28s %10.2f %10s %6s  aim %-5s %s  %s" % (
            name, ours, "%.2f" % ceiling if ceiling else "-", "%.2f" % ratio if ratio else "-",
            aim if aim else "-", unit, detail), flush=True)

    # -- a bucket

    def keys(self):
        """Names of the file's objects, in order of their bytes."""
        root = self.s3.bucket("bucket")
        found = [p for p in root.rglob("*_%d" % BLOCK) if p.is_file()]
        found.sort(key=lambda p: [int(n) for n in p.name.split("_")])
        path = self.bench.dir / "keys"
        path.write_text("".join("%s\n" % p.relative_to(root) for p in found))
        return path, len(found)

    def floor(self, verb, in_flight, count, *keys):
        out = subprocess.run(
            [self.bench.tools / "floor_s3", self.url, verb, str(in_flight), str(count), str(BLOCK),
             *keys],
            check=True, stdout=subprocess.PIPE, env={**os.environ, **self.s3.keys},
            preexec_fn=self.bench.priority)
        return json.loads(out.stdout)

    def fill(self):
        fs = self.mount()
        (fs[1] / "d").mkdir(exist_ok=True)
        self.bench.load("write", fs)
        self.umount(fs)

    def s3_read(self):
        keys, n = self.keys()
        ours, theirs = [], []
        for _ in range(self.opts.repeat):
            fs = self.mount()
            ours.append(self.bench.load("read", fs))
            self.umount(fs)
            theirs.append(self.floor("get", READ_IN_FLIGHT, n, keys))
        self.row("s3 read 1m", median(ours, "gib_per_s"), median(theirs, "mib_per_s") / 1024, "GiB/s",
                 "CPU %.2f, floor %.2f s/GiB" % (median(ours, "cpu_s_per_gib"),
                                                 median(theirs, "cpu_s_per_gib")))

    def s3_write(self):
        ours, theirs = [], []
        for _ in range(self.opts.repeat):
            fs = self.mount()
            (fs[1] / "d/data").unlink(missing_ok=True)
            ours.append(self.bench.load("write", fs))
            self.umount(fs)
            theirs.append(self.floor("put", WRITE_IN_FLIGHT, self.opts.mib // 4))
        self.row("s3 write 1m", median(ours, "gib_per_s"), median(theirs, "mib_per_s") / 1024, "GiB/s",
                 "CPU %.2f, floor %.2f s/GiB" % (median(ours, "cpu_s_per_gib"),
                                                 median(theirs, "cpu_s_per_gib")))

    def s3_random(self):
        """Bytes fetched for each byte read, by reads of 4 MiB in a random order: of each block once, and of
        ranges that begin anywhere. With O_DIRECT the kernel adds no read-ahead of its own."""
        size = self.opts.mib << 20
        count = size // BLOCK
        get = 'cachefs_object_data_bytes_total{method="get"}'
        blocks = [i * BLOCK for i in random.sample(range(count), count)]
        anywhere = [random.randrange((size - BLOCK) // 4096) * 4096 for _ in range(count // 4)]
        buffer = mmap.mmap(-1, BLOCK)
        for name, offsets, flags in (
            ("blocks", blocks, 0),
            ("blocks direct", blocks, os.O_DIRECT),
            ("anywhere", anywhere, 0),
            ("anywhere direct", anywhere, os.O_DIRECT),
        ):
            fs = self.mount()
            before = self.counters(fs)[get]
            fd = os.open(fs[1] / "d/data", os.O_RDONLY | flags)
            read = sum(os.preadv(fd, [buffer], at) for at in offsets)
            os.close(fd)
            fetched = self.counters(fs)[get] - before
            self.umount(fs)
            self.row("s3 randread 4m: " + name, fetched / read, 1, "",
                     "%d reads; aim is a maximum" % len(offsets))

    # -- the disk cache

    def warm(self):
        """Brings the file in, and returns the cache's files in order."""
        fs = self.cached()
        subprocess.run([self.bench.bin / "cachefs", "warmup", fs[1] / "d/data"], check=True,
                       stdout=subprocess.DEVNULL)
        self.umount(fs)
        files = [p for p in self.cache.rglob("*_%d" % BLOCK)]
        files.sort(key=lambda p: [int(n) for n in p.name.split("_")])
        return files

    def drop(self, files):
        """From the page cache, which takes clean pages only."""
        for path in files:
            fd = os.open(path, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def disk_read(self, files):
        listing = self.bench.dir / "cached"
        listing.write_text("".join("%s\n" % p for p in files))
        null = self.bench.nullfs(1, "-c", str(listing))
        (null[1] / "d").mkdir()
        self.bench.load("write", null)
        ours, theirs = [], []
        warm, their_warm = [], []
        for _ in range(self.opts.repeat):
            fs = self.cached()
            self.drop(files)
            ours.append(self.bench.load("read", fs))
            self.load_pages(files)
            warm.append(self.bench.load("read", fs))
            self.umount(fs)
            self.drop(files)
            theirs.append(self.bench.load("read", null))
            self.load_pages(files)
            their_warm.append(self.bench.load("read", null))
        self.umount(null)
        self.row("disk read 1m", median(ours, "gib_per_s"), median(theirs, "gib_per_s"), "GiB/s",
                 "CPU %.2f, ceiling %.2f s/GiB, with the disk" % (median(ours, "cpu_s_per_gib"),
                                                                 median(theirs, "cpu_s_per_gib")))
        self.row("disk read CPU s/GiB", median(warm, "cpu_s_per_gib"),
                 median(their_warm, "cpu_s_per_gib"), "s/GiB",
                 "from the page cache, %.2f GiB/s; aim is a maximum" % median(warm, "gib_per_s"))

    def fio(self, fs, size, depth, jobs):
        before = cpu_s(fs[0])
        r = subprocess.run(
            ["fio", "--name=r", "--filename=%s" % (fs[1] / "d/data"), "--rw=randread", "--direct=1",
             "--bs=%d" % size, "--ioengine=%s" % ("libaio" if depth > 1 else "psync"),
             "--iodepth=%d" % depth, "--numjobs=%d" % jobs, "--group_reporting", "--time_based",
             "--runtime=%g" % max(self.opts.seconds, 1), "--randrepeat=0", "--output-format=json"],
            check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            preexec_fn=self.bench.priority, cwd=self.bench.dir)
        read = json.loads(r.stdout[r.stdout.index(b"{"):])["jobs"][0]["read"]
        ops = max(read["total_ios"], 1)
        return {"rate": read["iops"], "cpu_us": (cpu_s(fs[0]) - before) * 1e6 / ops,
                "p99_us": read["clat_ns"].get("percentile", {}).get("99.000000", 0) / 1000}

    def load_pages(self, files):
        """Into the page cache, which some machines empty behind one's back."""
        for path in files:
            path.read_bytes()

    def disk_random(self, files):
        null = self.bench.nullfs(1)
        (null[1] / "d").mkdir()
        self.bench.load("write", null)
        fs = self.cached("buffer-size=64")
        for name, size, depth, jobs in (
            ("disk randread 4k", 4096, 1, 1),
            ("disk randread 4k 64x4", 4096, 64, 4),
            ("disk randread 128k", 128 << 10, 1, 1),
        ):
            if not wanted(self.opts, name):
                continue
            self.fio(fs, size, depth, jobs)  # opens the files
            ours, theirs = [], []
            for _ in range(self.opts.repeat):
                self.load_pages(files)
                ours.append(self.fio(fs, size, depth, jobs))
                theirs.append(self.fio(null, size, depth, jobs))
            self.row(name, median(ours, "rate"), median(theirs, "rate"), "op/s",
                     "CPU %.1f, nullfs %.1f us/op" % (median(ours, "cpu_us"), median(theirs, "cpu_us")))
        self.umount(fs)
        self.umount(null)

    # -- small files

    def counters(self, fs):
        out = {}
        for line in (fs[1] / ".stats").read_text().splitlines():
            name, _, value = line.partition(" ")
            key = re.sub(r"\{op=.*", "", name)
            out[key] = out.get(key, 0) + float(value)
        return out

    def small_pass(self, name, fs, step):
        n = 500 if self.opts.quick else SMALL_FILES
        before, cpu = self.counters(fs), cpu_s(fs[0])
        start = time.monotonic()
        for i in range(n):
            step(fs[1] / ("small/%d" % i))
        seconds = time.monotonic() - start
        cpu, after = cpu_s(fs[0]) - cpu, self.counters(fs)
        per = {k: (after.get(k, 0) - before.get(k, 0)) / n for k in after}
        self.row("s3 small files: " + name, n / seconds, None, "files/s",
                 "per file: %.2f metadata round trips, %.2f gets, %.2f puts, %.0f us CPU" % (
                     per["cachefs_meta_round_trips_total"],
                     per['cachefs_object_requests_total{method="get"}'],
                     per['cachefs_object_requests_total{method="put"}'], cpu * 1e6 / n))

    def small_files(self):
        content = os.urandom(4096)
        fs = self.mount()
        (fs[1] / "small").mkdir()
        self.small_pass("write", fs, lambda p: p.write_bytes(content))
        self.umount(fs)
        fs = self.cached()
        self.small_pass("read cold", fs, lambda p: p.read_bytes())
        self.umount(fs)
        fs = self.cached()
        self.small_pass("read warm", fs, lambda p: p.read_bytes())
        self.umount(fs)


def median(runs, key):
    return statistics.median(r[key] for r in runs)


def measure(bench, opts):
    """Everything that was asked for; {} when nothing was, or there is no server."""
    if not wanted(opts, *LINES):
        return {}
    if not server.BIN.exists() or not (bench.tools / "floor_s3").exists():
        print("no S3 server or no libcurl: run scripts/install-versitygw; its lines are left out")
        return {}
    s = Storage(bench, opts)
    try:
        print("%-28s %10s %10s %6s" % ("name", "cachefs", "ceiling", "ratio"))
        if wanted(opts, "s3 write 1m"):
            s.fill()
            s.s3_write()
        elif wanted(opts, "s3 read 1m", "s3 randread 4m", *(n for n in LINES if n.startswith("disk"))):
            s.fill()
        if wanted(opts, "s3 read 1m"):
            s.s3_read()
        if wanted(opts, "s3 randread 4m"):
            s.s3_random()
        if wanted(opts, *(n for n in LINES if n.startswith("disk"))):
            files = s.warm()
            if wanted(opts, "disk read 1m", "disk read CPU s/GiB"):
                s.disk_read(files)
            s.disk_random(files)
        if wanted(opts, "s3 small files"):
            s.small_files()
        return s.out
    finally:
        bench_mounts = [point for _, point in bench.mounts]
        for point in reversed(bench_mounts):
            bench.stop(point)
        s.close()
