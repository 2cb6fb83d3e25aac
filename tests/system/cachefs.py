# SPDX-License-Identifier: Apache-2.0
"""Volumes and mounts for the system tests: every wait has a deadline, every process a witness.

Environment: CACHEFS_BIN  directory with cachefs and mount.cachefs (default build/src/cmd)
             CACHEFS_TEST_SLOW  factor on every deadline, waiting.py
             CACHEFS_TEST_COMPLETE  1: what is not installed or not built fails its tests
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading

import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]
for folder in ("check", "s3"):
    sys.path.insert(0, str(REPO / "tests" / folder))
BIN = pathlib.Path(os.environ.get("CACHEFS_BIN") or REPO / "build" / "src" / "cmd").resolve()


def sanitized():
    """Whether the programs are: their memory is not what it is without, and they are slow."""
    try:
        program = (BIN / "cachefs").read_bytes()
    except OSError:
        return False
    return b"__asan_init" in program or b"__tsan_init" in program


if not os.environ.get("CACHEFS_TEST_SLOW") and sanitized():
    os.environ["CACHEFS_TEST_SLOW"] = "4"

import cachefs_check  # noqa: E402
import fixtures  # noqa: E402
from waiting import SLOW, patience, stop_process, wait_until  # noqa: E402

MARK = "CACHEFS_TEST_DIR"  # in the environment of every process a test starts
LOG_ERROR = re.compile(
    r"^<[0-3]>|ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:|Assertion .* failed"
)


# The module behind a kind of META-URL that is not in the program itself.
MODULES = {"redis": "redis", "postgres": "postgresql", "mysql": "mysql"}


def tool(name):
    return str(BIN / name)


def missing(what):
    """Skips a test for want of something that scripts/test installs or builds. There it fails."""
    (pytest.fail if os.environ.get("CACHEFS_TEST_COMPLETE") == "1" else pytest.skip)(what)


def need_root():
    if os.geteuid():
        missing("only root can mount")


def need_program(name):
    if not shutil.which(name):
        missing(name + " is not installed (scripts/install-deps test)")


def need_module(name):
    if not (BIN / ("cachefs-%s.so" % name)).exists():
        missing("module %s is not built" % name)


def need_engine(scheme):
    """scheme: of a META-URL."""
    if scheme in MODULES:
        need_module(MODULES[scheme])


def mountinfo():
    """mount point -> (device, file system type, source, options)."""
    out = {}
    with open("/proc/self/mountinfo", errors="surrogateescape") as f:
        for line in f:
            left, right = line.split(" - ", 1)
            left, right = left.split(), right.split()
            point = re.sub(r"\\(\d{3})", lambda m: chr(int(m.group(1), 8)), left[4])
            out[point] = (left[2], right[0], right[1], left[5] + "," + right[2])
    return out


def alive(pid):
    """False for one that is dead and not reaped, too."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def pending(pid):
    """The signals that the process has not taken, as a mask."""
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"^ShdPnd:\s+(\w+)", f.read(), re.M)[1], 16)


def children(pid):
    """Of any thread of the process."""
    found = []
    for task in pathlib.Path("/proc/%d/task" % pid).glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except OSError:
            pass
    return [p for p in found if alive(p)]


def waits_of(directory):
    """For each thread of the processes that name a directory: the calls of the kernel it is in."""
    lines = []
    for proc in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            argv = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if str(directory) not in argv:
                continue
            lines.append("%s: %s" % (proc.name, argv))
            for task in (proc / "task").iterdir():
                stack = (task / "stack").read_text().split("\n")
                calls = [line.split()[-1].split("+")[0] for line in stack if line]
                lines.append("  %s: %s" % ((task / "comm").read_text().strip(), " < ".join(calls[:8])))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return "\n".join(lines)


class Workspace:
    """A directory under /tmp with all that one test makes; close() judges what is left of it."""

    def __init__(self, label):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cachefs-test.", dir="/tmp"))
        os.chmod(self.dir, 0o755)
        self.label = label
        self.volumes = []
        self.mounts = []
        self.children = []
        self.cleanups = []
        self.count = 0

    def env(self, **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("META_", "CFS_"))}
        env[MARK] = str(self.dir)
        env["XDG_CACHE_HOME"] = str(self.dir / "cache-home")
        env.setdefault("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0:exitcode=99")
        env.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
        env.setdefault("TSAN_OPTIONS", "second_deadlock_stack=1:suppressions=%s/tests/tsan.supp" % REPO)
        env.update(more)
        return env

    def path(self, name):
        return self.dir / name

    def run(self, *argv, timeout=30, check=False, env=None, input=None):
        """Runs a program to its end; name one of ours without a path."""
        argv = [str(a) for a in argv]
        if "/" not in argv[0] and (BIN / argv[0]).exists():
            argv[0] = tool(argv[0])
        limit = timeout * patience()
        # files, not pipes: a daemon that keeps an inherited descriptor must not block the test
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            p = subprocess.Popen(
                argv,
                stdout=out,
                stderr=err,
                env=self.env(**(env or {})),
                cwd=self.dir,
                stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL,
            )
            try:
                p.communicate(input, timeout=limit)
                late = ""
            except subprocess.TimeoutExpired:
                late = "waits:\n" + waits_of(self.dir)
                p.kill()
                p.wait()
            out.seek(0)
            err.seek(0)
            text = [f.read().decode("utf-8", "replace") for f in (out, err)]
        assert not late, "%s did not end in %g s\n%s\n%s" % (
            shlex.join(argv),
            limit,
            "\n".join(text),
            late,
        )
        r = subprocess.CompletedProcess(argv, p.returncode, *text)
        assert not re.search(r"Sanitizer|runtime error:", r.stderr), r.stderr
        assert r.returncode >= 0, "%s died of signal %d\n%s" % (argv[0], -r.returncode, r.stderr)
        if check:
            assert r.returncode == 0, "%s: exit %d\n%s%s" % (
                shlex.join(argv),
                r.returncode,
                r.stdout,
                r.stderr,
            )
        return r

    def popen(self, argv, **kw):
        p = subprocess.Popen([str(a) for a in argv], env=self.env(), cwd=self.dir, **kw)
        self.children.append(p)
        return p

    def python(self, code, *args, **kw):
        """A Python process that runs `code` with sys.argv[1:] = args."""
        return self.popen([sys.executable, "-c", code, *args], **kw)

    def volume(self, name="vol", **options):
        v = Volume(self, name, **options)
        self.volumes.append(v)
        return v

    def fixture(self, name):
        url, _ = fixtures.unpack(name, self.path("fixture-" + name))
        v = Volume.golden(self, name, url)
        v.check_options = {"unmounted": not name.startswith("stale")}
        self.volumes.append(v)
        return v

    def processes(self):
        """Living processes that this test started, at any distance."""
        want = ("%s=%s" % (MARK, self.dir)).encode()
        out = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/environ" % pid, "rb") as f:
                    if want not in f.read().split(b"\0"):
                        continue
                with open("/proc/%s/stat" % pid) as f:
                    if f.read().rpartition(")")[2].split()[0] in "ZX":
                        continue
                with open("/proc/%s/cmdline" % pid, "rb") as f:
                    out.append((int(pid), f.read().replace(b"\0", b" ").decode("utf-8", "replace")))
            except OSError:
                continue
        return out

    def mount_points(self):
        return [p for p in mountinfo() if p.startswith(str(self.dir) + "/")]

    def abort(self):
        """Cuts everything that can block: for the watchdog only."""
        for pid, _ in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for point, (dev, type_, _, _) in mountinfo().items():
            if point.startswith(str(self.dir)) and type_.startswith("fuse"):
                try:
                    with open("/sys/fs/fuse/connections/%s/abort" % dev.split(":")[1], "w") as f:
                        f.write("1")
                except OSError:
                    pass

    def close(self, passed):
        """Unmounts, checks, removes. Returns complaints."""
        bad = []
        for m in self.mounts:
            bad += m.finish()
        for p in self.children:
            if p.poll() is None:
                p.kill()
            p.wait(10)
        for fn in reversed(self.cleanups):
            fn()
        for point in self.mount_points():
            bad.append("mount point left: " + point)
            subprocess.run(["umount", "-l", point], timeout=20)
        try:
            wait_until(lambda: not self.processes(), 10)
        except TimeoutError:
            bad += ["process left: %d %s" % p for p in self.processes()]
            self.abort()
        for core in [*self.dir.glob("core*"), *pathlib.Path("/").glob("core*")]:
            if re.match(r"core(\.\d+)?$", core.name) and core.is_file():
                bad.append("core left: %s" % core)
        if passed:
            for v in self.volumes:
                bad += v.verify()
        if bad or not passed:
            for m in self.mounts:
                text = m.log()[-6000:]
                if text:
                    print("--- log of %s\n%s" % (m.path, text))
        shutil.rmtree(self.dir, ignore_errors=True)
        return bad


def wrong_clock(ws, seconds):
    """The environment of a process on a host whose clock is that much ahead."""
    if not seconds:
        return None
    return {
        "LD_PRELOAD": str(BIN.parents[1] / "tests/system/libclock.so"),
        "CLOCK_SHIFT": str(seconds),
        # AddressSanitizer wants to be the first of what is preloaded.
        "ASAN_OPTIONS": ws.env()["ASAN_OPTIONS"] + ":verify_asan_link_order=0",
    }


class Clock:
    """Of a machine, whose programs see each change at once."""

    def __init__(self, ws):
        self.path = ws.path("clock")
        self.path.write_bytes(bytes(8))
        self.env = {**wrong_clock(ws, 1), "CLOCK_FILE": str(self.path)}

    def set(self, seconds_ahead):
        with open(self.path, "r+b") as f:  # programs have it mapped
            f.write(struct.pack("=q", seconds_ahead))


class Volume:
    """One formatted volume on a local directory, its metadata on SQLite or at `url`.

    check_options: what the checker must forgive, a dict for cachefs_check.Options, or None: the
    test leaves the volume broken on purpose.
    """

    def __init__(self, ws, name="vol", format=True, url=None, **options):
        """format=False: only where it is; options: as format_args() takes them."""
        url = url or "sqlite3://%s" % ws.path(name + ".db")
        self.attach(ws, name, url, ws.path(name + "-bucket"))
        if format:
            self.format(**options)

    @classmethod
    def golden(cls, ws, name, url):
        """JuiceFS's volume of that name, with its tables at url."""
        v = cls(ws, "fix-" + name, format=False, url=url)
        v.bucket = pathlib.Path(fixtures.unpack_objects(name, ws.path("fixture-" + name)))
        v.fixture_name = name
        return v

    def attach(self, ws, name, url, bucket):
        self.ws, self.name, self.url, self.bucket = ws, name, url, bucket
        self.db = pathlib.Path(url[len("sqlite3://") :])
        self.check_options = {"unmounted": True}
        self.fixture_name = None

    def format_args(self, **options):
        """trash_days=1 becomes --trash-days 1; True becomes a bare flag."""
        args = ["format", self.url, self.name]
        defaults = {"storage": "file", "bucket": self.bucket, "trash_days": 0}
        for key, value in {**defaults, **options}.items():
            if value is None or value is False:
                continue
            args.append("--" + key.replace("_", "-"))
            if value is not True:
                args.append(str(value))
        return args

    def format(self, **options):
        return self.ws.run("cachefs", *self.format_args(**options), check=True)

    def mount(
        self, opts="", daemon=False, wait=True, env=None, path=None, expect=None, reap=True, netns=None, limit=None
    ):
        """netns: the name of a network namespace to run in. limit: an option of prlimit(1)."""
        self.ws.count += 1
        point = pathlib.Path(path) if path else self.ws.path("mnt%d" % self.ws.count)
        if path is None:
            point.mkdir()
        if self.fixture_name:
            opts = ",".join(filter(None, [opts, "storage=file,bucket=%s" % self.bucket]))
        m = Mount(self, point, opts, daemon, env, expect, reap, netns, limit)
        self.ws.mounts.append(m)
        if wait:
            m.wait_ready()
        return m

    def sql(self, query, *args):
        import sqlite3

        db = sqlite3.connect(self.db, timeout=10 * SLOW, isolation_level=None)
        try:
            return db.execute(query, args).fetchall()
        finally:
            db.close()

    def setting(self):
        return json.loads(self.sql("SELECT value FROM jfs_setting WHERE name='format'")[0][0])

    def counter(self, name):
        return self.sql("SELECT value FROM jfs_counter WHERE name=?", name)[0][0]

    def status(self):
        return json.loads(self.ws.run("cachefs", "status", self.url, "--json", check=True).stdout)

    def objects(self):
        """Paths of all data objects. Directories may be removed meanwhile."""
        tree = os.walk(self.bucket / self.name / "chunks")
        return sorted(pathlib.Path(folder, name) for folder, _, names in tree for name in names)

    def verify(self, **more):
        """Runs the checker on a private copy of the tables. Returns complaints."""
        if self.check_options is None or not self.db.exists():
            return []
        options = cachefs_check.Options(**{**self.check_options, **more})
        with tempfile.TemporaryDirectory(dir=self.ws.dir) as tmp:
            for suffix in ("", "-wal"):
                if os.path.exists(str(self.db) + suffix):
                    shutil.copy(str(self.db) + suffix, os.path.join(tmp, "meta.db" + suffix))
            found, warnings = cachefs_check.check(
                "sqlite3://%s/meta.db" % tmp, str(self.bucket), options
            )
        for kind, text in warnings:
            print("checker: %s: warning: %s: %s" % (self.name, kind, text))
        return ["checker: %s: %s: %s" % (self.name, kind, text) for kind, text in found]


class Mount:
    """One mount process. In the foreground by default, so that its log and exit status are seen."""

    def __init__(self, volume, path, opts, daemon, env, expect, reap, netns=None, limit=None):
        self.volume, self.path, self.opts, self.daemon = volume, path, opts, daemon
        self.netns = netns
        self.ws = volume.ws
        self.ended = False
        self.killed = False
        self.allowed = [re.compile(expect)] if expect else []
        self.log_path = self.ws.path(path.name + ".log")
        self.process = None
        argv = [tool("cachefs"), "mount", volume.url, str(path)]
        if netns:
            argv = ["nsenter", "--net=/run/netns/" + netns, *argv]
        if limit:
            argv = ["prlimit", limit, *argv]
        if opts:
            argv += ["-o", opts]
        if daemon:
            self.started = self.ws.run(*argv, timeout=60, env=env)
            return
        with open(self.log_path, "wb") as log:
            st = os.fstat(log.fileno())
            # sd-daemon(3): asks for "<n>" level prefixes on stderr
            journal = {"JOURNAL_STREAM": "%d:%d" % (st.st_dev, st.st_ino)}
            self.process = subprocess.Popen(
                argv + ["--foreground"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.ws.env(**journal, **(env or {})),
                cwd=self.ws.dir,
            )
        if reap:  # as an init or a shell does; an unreaped process counts as alive for kill(2)
            threading.Thread(target=self.process.wait, daemon=True).start()

    def __fspath__(self):
        return str(self.path)

    def __truediv__(self, name):
        return self.path / name

    def __str__(self):
        return str(self.path)

    def log(self):
        return self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""

    def allow(self, pattern):
        """Announces an error line that the test provokes."""
        self.allowed.append(re.compile(pattern))

    def mounted(self):
        return str(self.path) in mountinfo()

    def wait_ready(self, seconds=30):
        if self.daemon:
            r = self.started
            assert r.returncode == 0, "mount: exit %d\n%s%s" % (r.returncode, r.stdout, r.stderr)
            assert self.mounted(), "mount returned 0 but nothing is mounted"
            return

        def ready():
            code = self.process.poll()
            assert code is None, "mount ended with %d\n%s" % (code, self.log())
            if not self.mounted():
                return False
            os.statvfs(self.path)
            return True

        wait_until(ready, seconds, "the mount of " + str(self.path))

    def stats(self):
        """What .stats shows: metric without the cachefs_ before it, labels and all -> value."""
        with open(self.path / ".stats") as f:
            lines = (line.rsplit(" ", 1) for line in f)
            return {name.removeprefix("cachefs_"): float(value) for name, value in lines}

    def stat(self, name):
        return self.stats()[name]

    def open_handles(self):
        """When the kernel has closed what programs have closed, for which they do not wait."""
        seen = []

        def settled():
            seen.append(self.stat("open_handles"))
            return seen[-4:] == 4 * seen[-1:]

        wait_until(settled, 20, "open handles to settle")
        return seen[-1]

    def pid(self):
        """The process that serves; the one that was started is its supervisor, if there is one."""
        if not self.process:
            return None
        if self.process.poll() is not None:  # its number may be another's, with children that are others'
            raise ProcessLookupError("the mount has ended: %s" % self.path)
        workers = children(self.process.pid)
        return workers[0] if workers else self.process.pid

    def kill_all(self, sig=signal.SIGKILL):
        """As a crash of the machine: nobody is left to start anything."""
        # The number of a process that has ended may be another's.
        workers = children(self.process.pid) if self.process.poll() is None else []
        self.killed = True
        self.process.kill()
        for pid in workers:
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                pass
        self.process.wait(20)
        wait_until(lambda: not any(map(alive, workers)), 20, "the end of the mount's process")

    def umount(self, command=None, seconds=60):
        """Unmounts and waits for the end of the process, which must be a clean one."""
        r = self.ws.run(*(command or ["cachefs", "umount", self.path]), timeout=seconds)
        assert r.returncode == 0, "umount: exit %d\n%s%s" % (r.returncode, r.stdout, r.stderr)
        self.wait_end(seconds)

    def wait_end(self, seconds=60, code=0):
        if self.process:
            try:
                got = self.process.wait(seconds * SLOW)
            except subprocess.TimeoutExpired:
                raise AssertionError(
                    "the mount process did not end in %g s\n%s\n%s"
                    % (seconds * SLOW, self.log()[-4000:], waits_of(self.ws.dir))
                )
            assert code is None or got == code, "mount process: exit %d, want %d\n%s" % (
                got,
                code,
                self.log()[-4000:],
            )
        wait_until(lambda: not self.mounted(), 10, "the end of the mount")
        self.ended = True

    def terminate(self, sig=signal.SIGTERM, seconds=60):
        self.process.send_signal(sig)
        self.wait_end(seconds)

    def kill9(self):
        """As a crash of the machine, and its mount point is cleared away."""
        self.kill_all()
        subprocess.run(["umount", "-l", str(self.path)], timeout=20, stderr=subprocess.DEVNULL)
        self.ended = True

    def remount(self, opts=None, daemon=None):
        """Unmounts cleanly and mounts again at the same place."""
        if not self.ended:
            self.umount()
        return self.volume.mount(
            self.opts if opts is None else opts,
            self.daemon if daemon is None else daemon,
            path=self.path,
            netns=self.netns,
        )

    def finish(self):
        bad = []
        if not self.ended:
            try:
                if self.mounted():
                    self.umount()
                elif self.process and self.process.poll() is None:
                    self.terminate()
            except (AssertionError, TimeoutError) as e:
                bad.append(str(e))
                if self.process and self.process.poll() is None:
                    self.kill_all()
                subprocess.run(
                    ["umount", "-l", str(self.path)], timeout=20, stderr=subprocess.DEVNULL
                )
        for line in self.log().splitlines():
            if "last message repeated" in line:
                continue
            if LOG_ERROR.search(line) and not any(a.search(line) for a in self.allowed):
                bad.append("%s logged: %s" % (self.path.name, line))
        return bad
