# SPDX-License-Identifier: Apache-2.0
"""Mounts of one volume on this machine, for benchmarks of cache groups."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))

from waiting import wait_until  # noqa: E402

MIB = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")


class Mount:
    def __init__(self, bench, name, options, cachefs=None):
        self.point = bench.dir / name
        self.point.mkdir()
        log = open(bench.dir / (name + ".log"), "wb")
        # the process that serves is what is measured
        argv = [cachefs or bench.cachefs, "mount", "--foreground", "--no-supervise", "-o", options, bench.url]
        argv.append(self.point)
        self.proc = subprocess.Popen(argv, stdout=log, stderr=log)
        bench.mounts.append(self)
        wait_until(lambda: os.path.ismount(self.point) or self.proc.poll() is not None, 60, "the mount")
        if self.proc.poll() is not None:
            raise SystemExit((bench.dir / (name + ".log")).read_text())

    def stat(self, name):
        with open(self.point / ".stats") as f:
            return next(float(x.rsplit(" ", 1)[1]) for x in f if x.startswith("cachefs_%s " % name))

    def cpu_s(self):
        with open("/proc/%d/stat" % self.proc.pid) as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def read(self):
        """Seconds for the file."""
        fd = os.open(self.point / "data", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        buf = bytearray(MIB)
        start = time.monotonic()
        while os.readv(fd, [buf]):
            pass
        took = time.monotonic() - start
        os.close(fd)
        return took

    def umount(self):
        subprocess.run(["umount", self.point], check=False)
        self.proc.wait(60)


class Bench:
    def __init__(self, build, where):
        self.cachefs = build / "src/cmd/cachefs"
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cachefs-group.", dir=where))
        self.url = "sqlite3://%s/vol.db" % self.dir
        self.mounts = []

    def close(self):
        for m in reversed(self.mounts):
            m.umount()
        shutil.rmtree(self.dir, ignore_errors=True)

    def prepare(self, mib):
        (self.dir / "blocks").mkdir()
        subprocess.run(
            [self.cachefs, "format", self.url, "vol", "--storage", "file", "--bucket", self.dir / "blocks"],
            check=True, stdout=subprocess.DEVNULL)
        writer = Mount(self, "writer", "cache-dir=none")
        with open(writer.point / "data", "wb", buffering=0) as f:
            for _ in range(mib):
                f.write(os.urandom(MIB))
            os.fsync(f.fileno())
        writer.umount()
        self.mounts.remove(writer)

    def cache_dir(self, name):
        return "cache-dir=%s,cache-size=8G" % (self.dir / ("cache-" + name))

    def warm(self, mount, mib):
        subprocess.run([self.cachefs, "warmup", mount.point / "data"], check=True, stdout=subprocess.DEVNULL)
        wait_until(lambda: mount.stat("disk_cache_bytes") >= mib * MIB, 60, "a warm disk cache")
