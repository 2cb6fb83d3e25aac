# SPDX-License-Identifier: Apache-2.0
"""Commands that an administrator looks at a mount and a host with."""

import json
import os
import pty
import re
import signal
import subprocess
import tarfile

import pytest

import servers
from cachefs import SLOW, Volume, alive, children, need_module, stop_process, tool, wait_until
from syscalls import data, write


def terminal(ws, *argv, done, seconds=30):
    """The output of a command on a terminal until done(text); then it is interrupted."""
    leader, follower = pty.openpty()
    p = ws.popen([tool("cachefs"), *argv], stdout=follower, stdin=subprocess.DEVNULL)
    os.close(follower)
    os.set_blocking(leader, False)
    text = b""

    def more():
        nonlocal text
        try:
            text += os.read(leader, 65536)
        except BlockingIOError:
            pass
        except OSError:  # the other side has gone
            return True
        return done(text.decode("utf-8", "replace"))

    try:
        wait_until(more, seconds, "what the terminal shows")
        if p.poll() is None:
            p.send_signal(signal.SIGINT)
        code = p.wait(30)
    finally:
        os.close(leader)
    return code, text.decode("utf-8", "replace")


# ---- stats ----


def test_stats_sees_what_is_written_and_read(ws, mnt):
    """Without it nobody can tell from outside what a mount is busy with."""
    p = ws.popen(
        [tool("cachefs"), "stats", mnt, "--interval", "500ms", "--count", "200", "--json"],
        stdout=subprocess.PIPE, text=True,
    )
    first = json.loads(p.stdout.readline())
    assert first["memory_bytes"] > 0 and first["seconds"] > 0.1
    body = data(3 << 20)
    write(mnt / "f", body)
    assert (mnt / "f").read_bytes() == body
    rows = [first]
    wait_until(
        lambda: rows.append(json.loads(p.stdout.readline()))
        or (
            sum(r["written_bytes_per_s"] * r["seconds"] for r in rows) > 2.9e6
            and sum(r["requests_per_s"] for r in rows) > 0
            and any(r["meta_operation_s"] for r in rows)
        ),
        30,
        "the write in the rows",
    )
    p.send_signal(signal.SIGINT)
    assert p.wait(30) == 0
    p.stdout.close()


def test_stats_is_a_table(ws, mnt):
    r = ws.run("cachefs", "stats", mnt, "--interval", "100ms", "--count", "2", check=True)
    lines = r.stdout.splitlines()
    assert len(lines) == 4 and "op/s" in lines[1] and "\033" not in r.stdout
    assert len(lines[2].split()) == 13


def test_commands_refuse_what_is_no_mount(ws):
    for command in "stats", "profile", "debug":
        r = ws.run("cachefs", command, ws.dir)
        assert r.returncode == 1 and "not in a cachefs mount" in r.stderr
        r = ws.run("cachefs", command, ws.path("missing"))
        assert r.returncode == 1 and "missing: No such file or directory" in r.stderr


def test_stats_of_a_mount_that_hangs_ends(ws, mnt):
    """The command must not become one more process that nobody can kill."""
    stop_process(mnt.pid())
    try:
        p = ws.popen([tool("cachefs"), "stats", mnt], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(
            lambda: os.path.exists("/proc/%d/task/%d/children" % (p.pid, p.pid))
            and open("/proc/%d/task/%d/children" % (p.pid, p.pid)).read().strip(),
            what="its reader",
        )
        p.send_signal(signal.SIGINT)
        p.wait(20)
    finally:
        os.kill(mnt.pid(), signal.SIGCONT)


# ---- profile ----


WORK = """
import os, sys
print(os.getpid(), flush=True)
for line in sys.stdin:
    for i in range(20):
        try:
            os.stat(sys.argv[1] + "/missing%d" % i)
        except FileNotFoundError:
            pass
        os.mkdir(sys.argv[1] + "/" + line.strip() + str(i))
    print("done", flush=True)
"""


def reads_the_log(p):
    """Whether a child of the command has opened it."""
    for child in children(p.pid):
        for fd in os.listdir("/proc/%d/fd" % child):
            try:
                if os.readlink("/proc/%d/fd/%s" % (child, fd)).endswith("/.accesslog"):
                    return True
            except OSError:
                pass
    return False


def profiled(ws, mnt, *options):
    """The rows after 20 mkdir and 20 failed lookups of one process."""
    user = ws.python(WORK, str(mnt), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pid = int(user.stdout.readline())
    p = ws.popen(
        [tool("cachefs"), "profile", mnt, "--json", *options], stdout=subprocess.PIPE, text=True
    )
    wait_until(lambda: reads_the_log(p), what="its reader")
    user.stdin.write("d\n")
    user.stdin.flush()
    assert user.stdout.readline() == "done\n"
    # its own request is after all others in the log
    p.send_signal(signal.SIGINT) if "--count" not in options else None
    out = p.communicate(timeout=60)[0]
    assert p.returncode == 0
    user.stdin.close()
    user.stdout.close()
    return pid, json.loads(out)


def test_output_ends_with_the_command(ws, mnt):
    """The child that reads the mount cannot be killed while the mount has its request. A pipe that it kept
    open would hold up what reads the command's output."""
    p = ws.popen([tool("cachefs"), "profile", mnt], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until(lambda: reads_the_log(p), what="its reader")
    (reader,) = children(p.pid)
    stop_process(mnt.pid())
    try:
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=20 * SLOW)
        assert alive(reader)
    finally:
        os.kill(mnt.pid(), signal.SIGCONT)


def test_profile_names_who_asks_for_what(ws, mnt):
    pid, out = profiled(ws, mnt, "--count", "1", "--interval", "3")
    assert out["lost"] == 0
    [made] = [r for r in out["rows"] if r.get("pid") == pid and r["kind"] == "mkdir"]
    assert made["calls"] == 20 and made["errors"] == 0 and made["uid"] == os.getuid()
    assert made["command"].startswith("python") and made["seconds"] >= made["longest_s"] >= 0
    assert any(r["errors"] >= 20 and r["kind"] == "lookup" and r["pid"] == pid for r in out["rows"])
    times = [r["seconds"] for r in out["rows"]]
    assert times == sorted(times, reverse=True)


def test_profile_by_kind(ws, mnt):
    _, out = profiled(ws, mnt, "--count", "1", "--interval", "2", "--by", "kind")
    kinds = [r["kind"] for r in out["rows"]]
    assert len(set(kinds)) == len(kinds) and "mkdir" in kinds
    assert not any("pid" in r or "uid" in r for r in out["rows"])


def test_profile_on_a_terminal_is_refreshed(ws, mnt):
    def done(text):
        (mnt / "again").mkdir()
        (mnt / "again").rmdir()
        return text.count("\033[H") > 2 and "mkdir" in text

    code, text = terminal(ws, "profile", mnt, "--interval", "200ms", done=done)
    assert code == 0 and "OPERATION" in text
    r = ws.run("cachefs", "profile", mnt, "--interval", "100ms", "--count", "2", check=True)
    assert r.stdout.count("OPERATION") == 1 and "\033" not in r.stdout


def test_profile_shows_what_its_order_is(ws, mnt):
    p = ws.popen([tool("cachefs"), "profile", mnt, "--interval", "1s", "--count", "2"], stdout=subprocess.PIPE, text=True)
    while p.poll() is None:
        (mnt / "again").mkdir()
        (mnt / "again").rmdir()
    lines = p.stdout.read().splitlines()
    assert lines[0].split()[-6:] == ["TOTAL", "ms", "MEAN", "ms", "MAX", "ms"]
    totals = [float(line.split()[-3]) for line in lines[1:]]
    assert len(totals) > 1 and totals == sorted(totals, reverse=True)


# ---- debug ----


def test_debug_has_the_state_and_no_secret(ws):
    """The archive is sent to strangers."""
    keys = ws.path("keys")
    keys.write_text("ACCESS_KEY=theaccesskey\nSECRET_KEY=verysecretindeed\nSESSION_TOKEN=tokenoftoday\n")
    keys.chmod(0o600)
    mnt = ws.volume(credentials=keys).mount()
    write(mnt / "f", b"x" * 100)
    out = ws.path("d.tar.gz")
    tools = ws.path("tools")
    tools.mkdir()
    (tools / "journalctl").write_text('#!/bin/sh\necho "journal: $*"\n')
    (tools / "journalctl").chmod(0o755)
    env = {"PATH": "%s:%s" % (tools, os.environ["PATH"])}
    r = ws.run("cachefs", "debug", mnt, out, check=True, env=env)
    assert r.stdout.strip() == str(out) and out.stat().st_mode & 0o777 == 0o600
    subprocess.run(["tar", "-tzf", out], check=True, stdout=subprocess.DEVNULL, timeout=30)
    with tarfile.open(out) as tar:
        pages = {m.name.split("/", 1)[1]: tar.extractfile(m).read() for m in tar.getmembers()}
    assert json.loads(pages["config.json"])["Pid"] == mnt.pid()
    assert b"cachefs_uptime_seconds" in pages["stats.txt"]
    assert str(mnt).encode() in pages["mountinfo.txt"] and pages["mountinfo.txt"].count(b"\n") == 1
    assert b"Max open files" in pages["process-limits.txt"]
    assert b"VmRSS" in pages["process-status.txt"]
    assert b"libcfs" in pages["maps.txt"] or b"cachefs" in pages["maps.txt"]
    assert pages["log.txt"].startswith(b"journal: ") and b"_PID=%d\n" % mnt.pid() in pages["log.txt"]
    threads = pages["threads.txt"].count(b"\nthread ") + 1
    counted = int(re.search(rb"Threads:\s*(\d+)", pages["process-status.txt"])[1])
    assert abs(threads - counted) <= 1  # one may begin or end in between
    assert b"/waiting: " in pages["kernel.txt"] and b"cachefs " in pages["version.txt"]
    for name, text in pages.items():
        for secret in b"verysecretindeed", b"tokenoftoday":
            assert secret not in text, name
    r = ws.run("cachefs", "debug", mnt, out)
    assert r.returncode == 1 and "exists" in r.stderr


def test_debug_of_a_mount_point_with_a_blank(ws):
    point = ws.path("a mount")
    point.mkdir()
    ws.volume().mount(path=point)
    out = ws.path("d.tar.gz")
    ws.run("cachefs", "debug", point, out, check=True)
    with tarfile.open(out) as tar:
        assert b"fuse.cachefs" in tar.extractfile("cachefs-debug/mountinfo.txt").read()
        kernel = tar.extractfile("cachefs-debug/kernel.txt").read()
    assert b"/connections/%d/waiting: " % os.minor(os.stat(point).st_dev) in kernel


@pytest.mark.deadline(120)
def test_debug_of_a_mount_that_hangs(ws, mnt):
    """This is when it is needed most."""
    out = ws.path("d.tar.gz")
    stop_process(mnt.pid())
    try:
        ws.run("cachefs", "debug", mnt, out, check=True, timeout=60)
    finally:
        os.kill(mnt.pid(), signal.SIGCONT)
    with tarfile.open(out) as tar:
        status = tar.extractfile("cachefs-debug/process-status.txt").read()
        assert b"Pid:\t%d\n" % mnt.pid() in status
        assert b"timed out" in tar.extractfile("cachefs-debug/stats.txt").read()
        assert b"PARALLEL_DIROPS" in tar.extractfile("cachefs-debug/fuse-init.txt").read()


# ---- bench ----


SMALL = ["--big-size", "2M", "--small-files", "5", "--small-size", "4K", "--threads", "2"]


def test_bench_measures_and_leaves_nothing(ws):
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    out = json.loads(ws.run("cachefs", "bench", mnt, *SMALL, "--json", check=True).stdout)
    loads = {r["load"]: r for r in out["results"]}
    assert list(loads) == ["write_big", "read_big", "write_small", "read_small", "stat", "remove"]
    assert all(r["files_per_s"] > 0 and r["file_ms"] > 0 for r in loads.values())
    big = loads["write_big"]
    assert abs(big["bytes_per_s"] * big["seconds"] - (4 << 20)) < 1000
    assert os.listdir(mnt) == []
    assert not any(names for _, _, names in os.walk(mnt / ".trash"))


def test_bench_is_coloured_on_terminals_only(ws, tmp_path):
    r = ws.run("cachefs", "bench", tmp_path, *SMALL, check=True)
    assert "\033" not in r.stdout and "MiB/s" in r.stdout and "files/s" in r.stdout
    code, text = terminal(ws, "bench", tmp_path, *SMALL, done=lambda text: "remove small files" in text)
    assert "\033[1;32m" in text and os.listdir(tmp_path) == []


def test_bench_that_is_interrupted_leaves_nothing(ws, tmp_path):
    p = ws.popen(
        [tool("cachefs"), "bench", tmp_path, "--big-size", "0", "--small-files", "1000000"],
        stdout=subprocess.PIPE, text=True,
    )
    wait_until(lambda: [d for d in tmp_path.iterdir() if any(d.iterdir())], what="its files")
    p.send_signal(signal.SIGINT)
    assert p.wait(60) == 8
    p.stdout.close()
    assert os.listdir(tmp_path) == []


def test_no_place_is_made_for_a_benchmark(ws):
    """A typing error, or a disk that is not mounted, must not become a folder on the system's disk."""
    place = ws.path("not/there")
    for args in (
        ("objbench", "--skip-speed", place),
        ("objbench", "--skip-speed", "--shards", "2", str(place) + "/%d"),
        ("mdtest", place),
        ("mdtest", "sqlite3://%s/x.db" % place),
    ):
        r = ws.run("cachefs", *args)
        assert r.returncode != 0 and str(place) in r.stderr, r
        assert not place.parent.exists(), args


def test_objbench_that_is_interrupted_leaves_nothing(ws, tmp_path):
    args = ["--skip-functional-tests", "--threads=2", "--big-size=0", "--small-objects=10000"]
    p = ws.popen([tool("cachefs"), "objbench", *args, tmp_path], stdout=subprocess.DEVNULL)
    wait_until(lambda: list(tmp_path.glob("*/small/*/*")), what="its objects")
    p.send_signal(signal.SIGINT)
    assert p.wait(60) == 8
    assert not [f for f in tmp_path.rglob("*") if f.is_file()]


# ---- doctor ----


def doctor(ws, url, *options):
    """(section, check) to (level, text); the exit status agrees with them."""
    r = ws.run("cachefs", "doctor", url, *options, "--json", timeout=60)
    out = json.loads(r.stdout)
    found = {(c["section"], c["check"]): (c["level"], c["text"]) for c in out["checks"]}
    changes = sum(c["level"] == "change" for c in out["checks"])
    assert out["changes"] == changes and r.returncode == (3 if changes else 0), r
    return found


def test_doctor_finds_nothing_wrong(ws, volume, tmp_path):
    found = doctor(ws, volume.url, "--cache-dir", tmp_path)
    wrong = {k: v for k, v in found.items() if v[0] == "change" and k[0] in ("metadata", "objects")}
    assert not wrong
    for check in "connection", "latency", "database file":
        assert found["metadata", check][0] == "ok", check
    for check in "put", "get", "list", "clock", "delete":
        assert found["objects", check][0] == "ok", check
    assert ("disk cache", str(tmp_path)) in found
    assert not [p for p in volume.bucket.rglob("doctor*")]
    text = ws.run("cachefs", "doctor", volume.url).stdout
    assert "ok     metadata: latency: " in text and "\033" not in text
    assert re.search(r"^note   host: libfuse: 3\.[\d.]+, with(out)? passthrough", text, re.M)
    assert re.search(r"^ok     objects: get: \d+\.\d\d ms$", text, re.M)


def test_doctor_names_what_cannot_be_reached(ws, volume):
    found = doctor(ws, "sqlite3://%s/none.db" % ws.dir)
    assert found["metadata", "connection"][0] == "change"
    blocked = ws.path("blocked")
    blocked.write_text("a file")
    found = doctor(ws, volume.url, "--bucket", blocked / "below")
    assert found["objects", "put"][0] == "change" and found["metadata", "latency"][0] == "ok"


def test_doctor_judges_places_and_limits(ws, volume, mnt):
    """A cache behind the network, a database that a reboot removes, a limit that a busy mount meets."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as shm:
        other = ws.volume("other", format=False)
        other.url, other.check_options = "sqlite3://%s/other.db" % shm, None
        other.format()
        found = doctor(ws, other.url, "--cache-dir", "%s:%s/later" % (mnt, ws.dir))
    assert found["metadata", "database file"][0] == "change"
    assert found["disk cache", str(mnt)][0] == "change"
    disk = os.statvfs(ws.dir)
    full = disk.f_bavail < 0.1 * disk.f_blocks
    level, text = found["disk cache", "%s/later" % ws.dir]
    assert level in (["change"] if full else ["ok", "note"]) and "are free" in text, text
    r = ws.run("bash", "-c", 'ulimit -n 1000; exec "$0" doctor "$1"', tool("cachefs"), volume.url)
    assert r.returncode == 3 and re.search("CHANGE host: open files: .*LimitNOFILE", r.stdout)


@pytest.fixture
def at_server(ws):
    """A volume whose metadata is at a server."""

    def make(kind):
        need_module(kind)
        server = {
            "redis": servers.redis_server,
            "postgresql": servers.postgres_server,
            "mysql": servers.mariadb_server,
        }[kind]()
        db = server.database()
        ws.cleanups.append(db.drop)
        return Volume(ws, url=db.url), db

    return make


def test_doctor_of_redis(ws, at_server):
    """Each of these loses files one day."""
    vol, db = at_server("redis")
    client = db.connect()
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("appendonly", "yes")
    found = doctor(ws, vol.url)
    for check in "eviction policy", "durability", "memory", "connections", "database clock":
        assert found["metadata", check][0] == "ok", (check, found["metadata", check])
    client.config_set("maxmemory-policy", "allkeys-lru")
    client.config_set("appendonly", "no")
    try:
        found = doctor(ws, vol.url)
    finally:
        client.config_set("maxmemory-policy", "noeviction")
        client.close()
    assert found["metadata", "eviction policy"][0] == "change"
    assert "noeviction" in found["metadata", "eviction policy"][1]
    assert found["metadata", "durability"][0] == "change"


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_doctor_of_sql_servers(ws, at_server, kind):
    vol, _ = at_server(kind)
    found = doctor(ws, vol.url)
    for check in "connections", "database clock", "isolation", "comparison of names":
        assert found["metadata", check][0] == "ok", (check, found["metadata", check])
    # servers of tests do not wait for the disk
    assert found["metadata", "durability"][0] == "change"


def test_doctor_sees_names_that_are_compared_as_text(ws, at_server):
    """`a` and `A` would be one file; a table that another tool has copied may be like that."""
    vol, db = at_server("mysql")
    client = db.connect()
    client.cursor().execute(
        "ALTER TABLE jfs_edge MODIFY name VARCHAR(255) CHARACTER SET utf8mb4 "
        "COLLATE utf8mb4_general_ci NOT NULL"
    )
    client.close()
    level, text = doctor(ws, vol.url)["metadata", "comparison of names"]
    assert level == "change" and "VARBINARY" in text


# ---- umount ----


@pytest.mark.parametrize("how", ["cwd", "fd", "map"])
def test_umount_names_who_holds_the_mount(ws, mnt, how):
    """Otherwise it takes lsof, which may not be there."""
    write(mnt / "f", b"x" * 4096)
    code = {
        "cwd": "os.chdir(sys.argv[1])",
        "fd": "f = open(sys.argv[1] + '/f')",
        "map": "f = open(sys.argv[1] + '/f', 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close()",
    }[how]
    p = ws.python(
        "import mmap, os, sys\n%s\nprint('held', flush=True)\nsys.stdin.read()" % code,
        str(mnt), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )
    assert p.stdout.readline() == "held\n"
    r = ws.run("cachefs", "umount", mnt)
    assert r.returncode == 2
    want = {"cwd": "works in", "fd": "has open", "map": "has"}[how]
    assert re.search(r"held by process %d \(python\S*\): %s" % (p.pid, want), r.stderr), r.stderr
    p.stdin.close()
    p.stdout.close()
    p.wait(20)
    mnt.umount()


# ---- names that command a terminal ----

EVIL = "e\x1b]0;owned\x07\x1b[2J\r\x7f\u009b1m\n0 bytes"


def commands_in(text):
    """The bytes that a terminal would obey, lines' ends left out."""
    return re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text.replace("\r\x1b[K", ""))


def test_names_do_not_command_the_terminal(ws):
    """An ls escapes them; a report that root reads must, too, and must not break its lines."""
    volume = ws.volume()
    mnt = volume.mount()
    evil = mnt / EVIL
    os.mkdir(evil)
    write(evil / EVIL, b"x" * 1000, sync=True)
    os.link(evil / EVIL, mnt / "link")

    def output(*args, ok=True):
        r = ws.run("cachefs", *args, timeout=60)
        assert (r.returncode == 0) == ok, (args, r.stdout, r.stderr)
        for text in (r.stdout, r.stderr):
            assert not commands_in(text), (args, text)
            assert "\n0 bytes" not in text, (args, text)
        return r.stdout + r.stderr

    shown = "e\\x1b]0;owned\\x07"
    assert shown in output("info", evil / EVIL)
    assert shown in output("summary", "--depth", "3", mnt)
    assert shown in output("warmup", "--check", evil)
    output("status", volume.url)
    assert shown in output("quota", "set", volume.url, "--path", "/" + EVIL, "--capacity", "1")
    assert shown in output("quota", "list", volume.url)
    assert shown in output("clone", mnt / "none" / EVIL, mnt / "x", ok=False)
    assert shown in output("rmr", mnt / "none" / EVIL, ok=False)
    assert shown in output("info", mnt / (EVIL + "none"), ok=False)
    none = ws.path(EVIL) / "none"
    for args in (
        *((command, none) for command in ("compact", "rmr", "umount", "mdtest", "bench", "objbench", "stats")),
        *((command, none) for command in ("profile", "debug", "warmup", "summary", "info")),
        *((command, volume.url, none) for command in ("mount", "load")),
        ("dump", volume.url, none / "x"),
        ("tier", "set", volume.url, "--tier", "0", "/none" + EVIL),
        ("cache", "map", none),
        ("clone", evil, mnt / "none" / EVIL),
        ("format", "sqlite3://%s" % ws.path("x.db"), EVIL),
        ("config", volume.url, "--storage-class", EVIL),
        ("status", "--" + EVIL, volume.url),
        (EVIL,),
    ):
        assert shown in output(*args, ok=False), args
    for command in ("gc", "config", "doctor", "destroy"):
        output(command, "sqlite3://" + EVIL, ok=False)
    assert json.loads(ws.run("cachefs", "info", "--json", evil / EVIL, check=True).stdout)
    assert any(EVIL in p for p in json.loads(ws.run("cachefs", "info", "--json", evil / EVIL).stdout)["paths"])
    assert not commands_in(mnt.log())
    mnt.umount()
    for obj in volume.objects():
        os.unlink(obj)
    assert shown in output("fsck", volume.url, ok=False)
    volume.check_options = None


# ---- the log of a mount where there is no syslog ----

LINE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4} cachefs\[\d+\] (error|warning|info|debug): .+"


def test_log_in_a_file(ws, volume):
    """It goes on after a rotation, a death and an upgrade; one that is lost explains nothing."""
    log = ws.path("logs") / "data.log"
    log.parent.mkdir()

    def lines():
        found = log.read_text().splitlines() if log.exists() else []
        for line in found:
            assert re.fullmatch(LINE, line), line
        return found

    def told(text):
        wait_until(lambda: any(text in line for line in lines()), 30, text)

    point = ws.path("m")
    point.mkdir()
    r = ws.run("cachefs", "mount", volume.url, point, "-o", "log=%s" % (log / "x"))
    assert r.returncode != 0 and "log=" in r.stderr
    r = ws.run("cachefs", "mount", volume.url, point, "-o", "log=%s/own.log" % point)
    assert r.returncode != 0 and "lies in the mount" in r.stderr
    mnt = volume.mount("log=logs/data.log", daemon=False)
    told("mounted: volume=vol")
    assert mnt.log() == ""
    assert os.stat(log).st_mode & 0o777 == 0o640
    # moved away: nobody has to be told
    os.rename(log, ws.path("old"))
    kill_worker_of(mnt)
    told("another process serves the mount")
    # copied and made empty
    os.truncate(log, 0)
    kill_worker_of(mnt)
    told("another process serves the mount")
    assert b"\0" not in log.read_bytes()
    r = ws.run("cachefs", "mount", volume.url, mnt.path, "-o", "log=%s" % log, timeout=60)
    assert r.returncode == 0, r.stderr
    assert mnt.process.wait(60) == 0
    mnt.process = None
    told("resumed the mount")
    mnt.umount()
    told("unmounting")


def kill_worker_of(mnt):
    old = mnt.pid()
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: mnt.pid() not in (old, mnt.process.pid), 30, "the next process")
    wait_until(lambda: os.path.exists(mnt / ".stats"), 30, "its answers")


def test_debug_shows_the_last_lines_of_a_mount_that_hangs(ws, volume):
    """Those of its processes before, too; there may be no syslog, and nobody has kept stderr."""
    mnt = volume.mount(expect="the process of the mount has died")
    first = mnt.pid()
    kill_worker_of(mnt)
    second = mnt.pid()
    wait_until(lambda: "another process serves" in mnt.log(), 30, "the supervisor's word")
    stop_process(second)
    try:
        ws.run("cachefs", "debug", mnt, ws.path("d.tar.gz"), timeout=60)
    finally:
        os.kill(second, signal.SIGCONT)
    with tarfile.open(ws.path("d.tar.gz")) as t:
        text = t.extractfile("cachefs-debug/last-lines.txt").read().decode()
    assert all(re.fullmatch(LINE, line) for line in text.splitlines()), text
    for pid, said in (
        (first, "mounted: volume=vol"),
        (mnt.process.pid, "the process of the mount has died"),
        (second, "resumed the mount"),
    ):
        assert re.search(r"cachefs\[%d\] \w+: %s" % (pid, said), text), (said, text)
