# SPDX-License-Identifier: Apache-2.0
"""The connection to the database ends at each turn of a short life of a mount and of each change, before
the server gets the request and after it has answered. No program sees it, and usage is counted exactly
once."""

import contextlib
import ctypes
import json
import os
import re
import struct
import subprocess
import threading
import time

import cachefs_check
import pytest

import servers
from cachefs import Volume, patience, tool, wait_until, wrong_clock
from countproxy import CountingProxy
from s3volume import S3Volume
from test_engines import SUITE

ENGINES = {"mysql": servers.mariadb_server, "postgresql": servers.postgres_server}
RIGHT = "[  PASSED  ] 3 test(s)"
BLOCK = 4 << 20
LOST = r"connection lost: |no connection to the database|connected to the database again"


def each(engines):
    return pytest.fixture(params=[pytest.param(e, marks=pytest.mark.module(e)) for e in engines])


@each([*ENGINES, "redis"])
def away_any(request, ws):
    return behind_proxy(ws, {**ENGINES, "redis": servers.redis_server}[request.param])


@each(ENGINES)
def away(request, ws):
    return behind_proxy(ws, ENGINES[request.param])


def behind_proxy(ws, server):
    """A volume behind a proxy, and the proxy."""
    db = server().database()
    ws.cleanups.append(db.drop)
    proxy = CountingProxy(db.server.port)
    ws.cleanups.append(proxy.close)
    v = Volume(ws, url=db.url.replace(":%d" % db.server.port, ":%d" % proxy.port))
    v.direct = db
    ws.run("cachefs", "quota", "set", db.url, "--uid", "0", "--capacity", "1G", check=True)
    return v, proxy


def usage(db):
    """Bytes and inodes of the volume, and of its owner."""
    c = db.connect()
    try:
        with c.cursor() as cur:
            cur.execute("SELECT name,value FROM jfs_counter")
            counters = dict(cur.fetchall())
            cur.execute("SELECT used_space,used_inodes FROM jfs_user_group_quota WHERE qtype=1")
            return (counters["usedSpace"], counters["totalInodes"], *cur.fetchone())
    finally:
        c.close()


def plus(start, dirs):
    space, inodes = 4096 * dirs, dirs
    return tuple(a + b for a, b in zip(start, (space, inodes, space, inodes), strict=True))


def each_turn(v, proxy, work):
    """Does work(n) for n = 1, 2, ..., which loses its n-th turn, until it has fewer turns than that."""
    turn = 1
    work(turn)
    while proxy.lost:
        turn += 1
        work(turn)
    assert turn > 5
    found, _ = cachefs_check.check(v.direct.url, str(v.bucket), cachefs_check.Options())
    assert not found, found
    return turn


@pytest.mark.deadline(300)
@pytest.mark.parametrize("answered", [False, True])
def test_each_turn_from_the_first_change_to_the_unmount(away, answered):
    v, proxy = away
    start = usage(v.direct)

    def work(turn):
        m = v.mount("heartbeat=60,no-bgjob")
        m.allow(LOST)
        proxy.lose(turn, answered)
        os.mkdir(m / ("d%d" % turn))
        m.umount()
        assert usage(v.direct) == plus(start, turn), m.log()

    each_turn(v, proxy, work)


def test_each_turn_of_a_flush(away):
    """The server has answered. Usage that is counted twice shows with the next flush."""
    v, proxy = away
    start = usage(v.direct)
    m = v.mount("heartbeat=60,no-bgjob")
    m.allow(LOST + "|cannot write usage")

    def work(turn):
        proxy.lose(turn, answered=True)
        os.mkdir(m / ("d%d" % turn))
        wait_until(lambda: usage(v.direct) == plus(start, turn), 20, "the usage")

    turns = each_turn(v, proxy, work)
    m.umount()
    assert usage(v.direct) == plus(start, turns), m.log()


def test_blocks_are_stored_while_the_server_is_away(away_any):
    """For longer than its heartbeats: what programs write does not fill the memory meanwhile, nor is it lost."""
    v, proxy = away_any
    m = v.mount("heartbeat=1,no-bgjob,meta-timeout=3")
    m.allow(LOST + "|for too long|cannot refresh the session|cannot (read|write) ")
    with open(m / "f", "wb", buffering=0) as f:
        f.write(b"x" * BLOCK)
        os.fsync(f.fileno())
        proxy.refuse = True
        proxy.cut()
        wait_until(lambda: m.log().count("cannot refresh the session") >= 2, 60, "heartbeats that fail")
        f.write(os.urandom(2 * BLOCK))
        wait_until(lambda: len(v.objects()) == 3, 30, "the blocks to be stored")
        proxy.go_on()
        os.fsync(f.fileno())
        os.mkdir(m / "d")
    m.umount()
    assert os.stat(v.mount() / "f").st_size == 3 * BLOCK


def test_unmount_while_the_server_is_away(away):
    """Usage that cannot be written is said to be missing. When the session has expired, fsck counts it again."""
    v, proxy = away
    start, n = usage(v.direct), 0
    m = v.mount("heartbeat=2,no-bgjob,meta-timeout=3")
    m.allow(LOST + "|database away for too long|cannot write usage|not ended cleanly")
    while usage(v.direct) == plus(start, n):  # the flusher may come before the cut
        n += 1
        os.mkdir(m / ("d%d" % n))
        proxy.cut_after(0)
        if usage(v.direct) == plus(start, n):
            proxy.go_on()
    v.ws.run("cachefs", "umount", m.path)
    m.wait_end(code=None)
    assert "cannot write usage, 'cachefs fsck --repair' counts it again" in m.log()
    proxy.go_on()

    def is_repaired():
        v.ws.run("cachefs", "fsck", v.direct.url, "--repair")
        return usage(v.direct)[:2] == plus(start, n)[:2]

    wait_until(is_repaired, 60, "the end of the session, and a repair")


# ---- each change ----

ACL = "system.posix_acl_access"
libc = ctypes.CDLL(None, use_errno=True)


def fill(path, size=10000):
    path.write_bytes(b"x" * size)


def append(path):
    with path.open("ab") as f:
        f.write(b"y" * 10000)
        os.fsync(f.fileno())


def fallocate(path):
    with path.open("r+b") as f:
        os.posix_fallocate(f.fileno(), 0, 40000)


def with_xattr(path):
    fill(path)
    os.setxattr(path, "user.a", b"1")


def with_two_names(path):
    fill(path)
    os.link(path, path.with_suffix(".second"))


def with_target(path):
    fill(path)
    fill(path.with_suffix(".target"), 5000)


def two_dirs(path):
    path.mkdir()
    path.with_suffix(".target").mkdir()


def over_target(path):
    path.rename(path.with_suffix(".target"))


def exchange(path):
    assert libc.renameat2(-100, bytes(path), -100, bytes(path.with_suffix(".target")), 2) == 0


def remove_open(path):
    with path.open("rb"):
        path.unlink()


def set_acl(path):
    """Each call has another rule: its row is made."""
    entries = ((1, 7, -1), (2, 5, path.stat().st_ino), (4, 5, -1), (16, 7, -1), (32, 5, -1))
    os.setxattr(path, ACL, struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *e) for e in entries))


def compact(path):
    for _ in range(3):
        append(path)
    command("compact", path)


def command(*args):
    subprocess.run([tool("cachefs"), *map(str, args)], check=True, timeout=60, stdout=-3)


# The state before, and the change.
CHANGES = {
    "create": (None, lambda p: p.touch()),
    "mkdir": (None, lambda p: p.mkdir()),
    "symlink": (None, lambda p: p.symlink_to("target")),
    "link": (fill, lambda p: os.link(p, p.with_suffix(".link"))),
    "write": (None, fill),
    "append": (fill, append),
    "shorten": (fill, lambda p: os.truncate(p, 4000)),
    "lengthen": (fill, lambda p: os.truncate(p, 40000)),
    "fallocate": (fill, fallocate),
    "chmod": (fill, lambda p: os.chmod(p, 0o600)),
    "chown": (fill, lambda p: os.chown(p, 1000, 1000)),
    "unlink": (fill, os.unlink),
    "unlink empty": (lambda p: p.touch(), os.unlink),
    "unlink symlink": (lambda p: p.symlink_to("target"), os.unlink),
    "unlink one of two": (with_two_names, os.unlink),
    "unlink open": (fill, remove_open),
    "rmdir": (lambda p: p.mkdir(), os.rmdir),
    "rename": (fill, lambda p: p.rename(p.with_suffix(".moved"))),
    "rename over": (with_target, over_target),
    "rename dir over": (two_dirs, over_target),
    "exchange": (with_target, exchange),
    "setxattr": (fill, lambda p: os.setxattr(p, "user.a", b"1")),
    "setxattr create": (fill, lambda p: os.setxattr(p, "user.a", b"1", os.XATTR_CREATE)),
    "setxattr replace": (with_xattr, lambda p: os.setxattr(p, "user.a", b"2", os.XATTR_REPLACE)),
    "removexattr": (with_xattr, lambda p: os.removexattr(p, "user.a")),
    "set acl": (fill, set_acl),
    "clone": (fill, lambda p: command("clone", p, p.with_suffix(".clone"))),
    "compact": (fill, compact),
}


# of the client's library, or of the server
CONNECTING = r"(?m)^cachefs \w+: \w+://\S+: .*(connection|gone away|Lost)"


@pytest.mark.deadline(300)
def test_last_turns_of_a_command(away):
    """One changes the setting, the other an inode. Only a first connection that ends while it is made ends a command, and is named."""
    v, proxy = away
    v.ws.run("cachefs", "config", v.direct.url, "--tier", "1", "--storage-class", "COLD", check=True)
    changes = {
        "config": lambda n: ("config", v.url, "--capacity", "%dG" % n),
        "tier": lambda n: ("tier", "set", v.url, "--tier", n % 2, "/"),
    }
    failed, lost = [], 0
    for name, args in changes.items():
        begin = proxy.turns
        v.ws.run("cachefs", *map(str, args(1)), check=True)
        turns = proxy.turns - begin
        assert turns > 10
        for turn in range(turns - 9, turns + 1):
            proxy.lose(turn, answered=True)
            r = v.ws.run("cachefs", *map(str, args(turn)))
            lost += proxy.lost
            if r.returncode and not re.search(CONNECTING, r.stderr):
                failed.append((name, turn, r.stderr))
    assert not failed, failed
    assert lost > 10 and not findings(v)


def findings(v):
    return cachefs_check.check(v.direct.url, str(v.bucket), cachefs_check.Options())[0]


@pytest.mark.deadline(300)
@pytest.mark.deadline(300)
@pytest.mark.parametrize("trash", [0, 1])
def test_each_turn_of_each_change(away, trash):
    """Each kind of change is in a directory of its own: the statistics of directories tell which was miscounted."""
    v, proxy = away
    v.ws.run("cachefs", "config", v.direct.url, "--trash-days", trash, "--enable-acl", "true", "--force", check=True)
    m = v.mount("heartbeat=60,no-bgjob")
    m.allow(LOST + "|cannot write usage")
    failed, places = [], {}

    def attempt(name, turn, answered):
        path = m / name / ("%d%s" % (turn, "ab"[answered]))
        prepare, change = CHANGES[name]
        if prepare:
            prepare(path)
        proxy.lose(turn, answered)
        try:
            change(path)
        except OSError as e:
            failed.append((name, turn, answered, e))
        return proxy.lost

    for name in CHANGES:
        (m / name).mkdir()
        places[(m / name).stat().st_ino] = name
        for answered in False, True:
            turn = 1
            while attempt(name, turn, answered):
                turn += 1
    assert not failed, failed
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: not findings(v), 20, "usage that is right")
    assert not findings(v), places
    m.umount()


# The operation that takes a change back.
UNDO = {
    "create": os.unlink,
    "mkdir": os.rmdir,
    "symlink": os.unlink,
    "link": lambda p: os.unlink(p.with_suffix(".link")),
    "append": lambda p: os.truncate(p, 10000),
    "lengthen": lambda p: os.truncate(p, 10000),
    "chmod": lambda p: os.chmod(p, 0o640),
    "chown": lambda p: os.chown(p, 0, 0),
    "unlink": fill,
    "rename": lambda p: p.with_suffix(".moved").rename(p),
    "exchange": exchange,
    "setxattr": lambda p: os.removexattr(p, "user.a"),
    "removexattr": with_xattr,
}


def state(top):
    """All that a program sees of these names."""
    found = {}
    for path in sorted(top.iterdir()):
        st = path.lstat()
        what = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        xattrs = os.listxattr(path, follow_symlinks=False)
        found[path.name] = st.st_ino, st.st_mode, st.st_nlink, st.st_uid, st.st_size, what, xattrs
    return found


@pytest.mark.deadline(300)
def test_each_turn_of_a_change_comes_late(away_any):
    """The network delivers it when the change has been sent again and taken back: it changes nothing."""
    v, proxy = away_any
    v.ws.run("cachefs", "config", v.direct.url, "--trash-days", "0", "--force", check=True)
    m = v.mount("heartbeat=60,no-bgjob")
    m.allow(LOST + "|cannot write usage")
    seen = {}
    for name in UNDO:
        turn = held = 1
        while held:
            top = "%s.%d" % (name, turn)
            path = m / top / "f"
            path.parent.mkdir()  # what the mount knows of a directory decides which turns there are
            prepare, change = CHANGES[name]
            if prepare:
                prepare(path)
            proxy.hold(turn)
            change(path)
            held = proxy.lost
            UNDO[name](path)
            seen[top] = state(m / top)
            proxy.deliver()
            turn += 1
        assert turn > 2, name
    m.umount()
    v.url = v.direct.url
    other = v.mount("no-bgjob")
    assert {top: state(other / top) for top in seen} == seen
    other.umount()


# How an administrator makes changes wait, and ends that; and the number of statements that wait.
LOCK = {
    "mysql": ("FLUSH TABLES WITH READ LOCK", "UNLOCK TABLES"),
    "postgresql": ("LOCK TABLE jfs_edge IN SHARE MODE", "ROLLBACK"),
}
WAITING = {
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for%'",
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
}


def execute(connection, text):
    with connection.cursor() as cur:
        cur.execute(text)
        return cur.fetchone() if cur.description else None


@pytest.mark.parametrize("engine", [pytest.param(e, marks=pytest.mark.module(e)) for e in ENGINES])
def test_change_given_up_is_not_carried_out_later(ws, engine):
    """A backup program locks the tables for longer than the deadline. The request that was given up waits at
    the server, over a connection that stands; the mount's next operation ends it."""
    db = ENGINES[engine]().database()
    ws.cleanups.append(db.drop)
    v = Volume(ws, url=db.url)
    m = v.mount("heartbeat=60,no-bgjob,meta-timeout=3,io-timeout=3,attr-cache=0,entry-cache=0,dir-entry-cache=0")
    m.allow(LOST + "|database|metadata engine")
    (m / "d").mkdir()
    with contextlib.closing(db.connect()) as c, contextlib.closing(db.connect()) as look:
        look.autocommit(True) if engine == "mysql" else look.set_session(autocommit=True)
        execute(c, LOCK[engine][0])
        with pytest.raises(OSError, match="Input/output error"):
            (m / "d" / "late").mkdir()
        assert not (m / "d" / "late").exists()
        execute(c, LOCK[engine][1])
        wait_until(lambda: execute(look, WAITING[engine]) == (0,), 20, "the end of what waits")
        (m / "d" / "next").mkdir()
        assert execute(look, "SELECT count(*) FROM jfs_edge WHERE name='late'") == (0,)
    m.umount()


# ---- repairs ----


# Damages whose repair changes no usage.
DAMAGE = (
    "UPDATE jfs_node SET nlink=nlink+3 WHERE nlink=1",
    "UPDATE jfs_node SET parent=77 WHERE nlink=4",
    "UPDATE jfs_chunk_ref SET refs=refs+1",
)


@pytest.mark.deadline(300)
def test_each_answer_to_a_repair(away):
    """It is done once, reported, and never left undecided. On MySQL each answer to a COMMIT is lost. On
    PostgreSQL, which tells what became of a transaction, one of four answers."""
    v, proxy = away
    m = Volume.mount(v, "no-bgjob")
    for name in "abc":
        fill(m / name)
    m.umount()
    step = 1 if v.url.startswith("mysql") else 4
    proxy.only = re.compile(rb"(?i)\bcommit\b" if step == 1 else b"")

    def repair(turn):
        c = v.direct.connect()
        with c.cursor() as cur:
            for query in DAMAGE:
                cur.execute(query)
        c.commit()
        c.close()
        proxy.lose(step * turn or 1 << 30, answered=True)
        r = v.ws.run("cachefs", "fsck", v.url, "--repair", "--json")
        if proxy.lost and re.search(CONNECTING, r.stderr):
            v.ws.run("cachefs", "fsck", v.direct.url, "--repair", check=True)
            return None
        if r.returncode:
            return r.stderr
        return sorted((p["kind"], p["repaired"]) for p in json.loads(r.stdout)["problems"])

    right, wrong, turn = repair(0), [], 1
    got = repair(turn)
    while proxy.lost:
        if got not in (None, right):
            wrong.append((turn, got))
        turn += 1
        got = repair(turn)
    assert not wrong, (right, wrong)
    assert turn > 10 and len(right) == 9 and got == right
    assert not findings(v)


# ---- records of cache groups ----

# In statements that look for the table, make it, and use it; the keys of the suite.
OF_RECORDS = rb"(?i)column_name|attname|cachefs_record|\btest/"


@pytest.mark.deadline(300)
@pytest.mark.parametrize("engine", [pytest.param(e, marks=pytest.mark.module(e)) for e in ENGINES])
def test_each_turn_of_records(ws, engine):
    """The calls keep their contract while the table is looked for, made and used: a mount that believes
    in a table that is not there finds no other member of its cache group."""

    def contract(turn):
        """The output of the suite on an empty volume, of which it loses a turn."""
        db = ENGINES[engine]().database()
        with CountingProxy(db.server.port, only=OF_RECORDS) as proxy:
            proxy.lose(turn, answered=True)
            url = db.url.replace(":%d" % db.server.port, ":%d" % proxy.port)
            r = ws.run(SUITE / "meta-conformance", url, "records", timeout=60)
        db.drop()
        return r.stdout + r.stderr, proxy

    turn, wrong = 1, []
    out, proxy = contract(turn)
    while proxy.lost:
        # A first connection that ends while it is made ends the program before its tests.
        if "[ RUN" in out and RIGHT not in out:
            wrong.append((turn, out))
        turn += 1
        out, proxy = contract(turn)
    assert RIGHT in out, out
    assert not wrong, wrong
    assert turn > 20


@pytest.mark.module("mysql")
def test_change_of_another_client_with_the_same_ctime(ws):
    """A change that the server did not get is made, although another client's has given the file the same ctime meanwhile."""
    db = servers.mariadb_server().database()
    ws.cleanups.append(db.drop)
    proxy = CountingProxy(db.server.port)
    ws.cleanups.append(proxy.close)
    v = Volume(ws, url=db.url.replace(":%d" % db.server.port, ":%d" % proxy.port))
    env = {**wrong_clock(ws, 1), "CLOCK_SHIFT": "0", "CLOCK_STOPPED": str(int(time.time()))}
    m = v.mount("heartbeat=60,no-bgjob", env=env)
    m.allow(LOST)
    other = Volume(ws, format=False, url=db.url).mount("heartbeat=60,no-bgjob", env=env)
    turn, proxy.lost = 0, True
    while proxy.lost:
        turn += 1
        path = m / ("f%d" % turn)
        path.touch()
        inode = path.stat().st_ino
        proxy.lose(turn, answered=False, away=True)
        thread = threading.Thread(target=os.chmod, args=(path, 0o600))
        thread.start()
        wait_until(lambda: proxy.lost or not thread.is_alive(), 20, "the lost request")
        settle(proxy)
        if proxy.lost and thread.is_alive():
            os.chmod(other / path.name, 0o640)
        proxy.go_on()
        thread.join(30)
        assert mode_and_ctime(db, inode) == (0o600, 1000000 * int(env["CLOCK_STOPPED"])), "turn %d" % turn
    assert turn > 1


def settle(proxy):
    """No later turn is lost: it may be one of another thread, after the call that was to lose one. If one is, the
    connections have ended."""
    proxy.losing = None
    if proxy.lost:
        wait_until(lambda: proxy.refuse, 20, "the end of the connections")


def mode_and_ctime(db, inode):
    c = db.connect()
    try:
        with c.cursor() as cur:
            cur.execute("SELECT mode,ctime FROM jfs_node WHERE inode=%d" % inode)
            return cur.fetchone()
    finally:
        c.close()


@pytest.fixture(params=[pytest.param(e, marks=pytest.mark.module(e)) for e in [*ENGINES, "redis"]])
def cut_off(request, ws):
    """The same, of each engine, without a quota."""
    db = {**ENGINES, "redis": servers.redis_server}[request.param]().database()
    ws.cleanups.append(db.drop)
    proxy = CountingProxy(db.server.port)
    ws.cleanups.append(proxy.close)
    v = Volume(ws, url=db.url.replace(":%d" % db.server.port, ":%d" % proxy.port))
    v.direct = db
    return v, proxy


@pytest.mark.deadline(300)
@pytest.mark.parametrize("late", [False, True], ids=["in its try", "by the next try"])
@pytest.mark.parametrize("trash", [0, 1])
def test_commit_is_compacted_before_its_answer_comes(cut_off, trash, late):
    """Another client merges the record whose answer was lost, and removes its objects. The network comes
    back within the try of the commit, or is asked by the next one."""
    compacted_before_the_answer(*cut_off, trash, late)


@pytest.mark.deadline(300)
@pytest.mark.module("s3")
@pytest.mark.module("postgresql")
def test_commit_is_compacted_in_a_bucket_that_may_not_be_listed(ws, s3, via):
    """Such a bucket denies access to objects that are missing."""
    db = servers.postgres_server().database()
    ws.cleanups.append(db.drop)
    proxy = CountingProxy(db.server.port)
    ws.cleanups.append(proxy.close)
    v = S3Volume(ws, s3, format=False)
    v.url, v.direct = db.url.replace(":%d" % db.server.port, ":%d" % proxy.port), db
    v.format(storage="s3", bucket=v.where)
    denied = []

    def deny(head):
        if head.startswith(b"HTTP/1.1 404 "):
            denied.append(head)
        return head.replace(b"HTTP/1.1 404 Not Found", b"HTTP/1.1 403 Forbidden", 1)

    via.edit_head = deny
    compacted_before_the_answer(v, proxy, 0, False, "bucket=%s/bucket" % via.url)
    assert denied


def compacted_before_the_answer(v, proxy, trash, late, opts=""):
    v.ws.run("cachefs", "config", v.direct.url, "--trash-days", trash, "--force", check=True)
    io_timeout_s = 3 if late else int(60 * patience())
    m = v.mount("heartbeat=60,no-bgjob,io-timeout=%d,%s" % (io_timeout_s, opts))
    m.allow(LOST + r"|cannot write usage|away for too long|metadata (server|engine)|op=head .* cause=403")
    there = Volume(v.ws, format=False, url=v.direct.url)
    other = there.mount("heartbeat=60,no-bgjob")
    committed = turn = files = 0
    while not committed:
        turn, files, before = turn + 1, files + 1, blocks(v)
        assert files < 40
        name, content = "f%d" % files, os.urandom(3 * 4096)
        # Started before: a child that closes the file would wait for its bytes.
        compacts = ["sh", "-c", 'read go && exec "$0" compact "$1"', tool("cachefs"), str(other / name)]
        compacting = subprocess.Popen(compacts, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        with open(m / name, "wb", 0) as f:
            for part in 0, 1:
                os.pwrite(f.fileno(), content[4096 * part : 4096 * (part + 1)], 4096 * part)
                os.fsync(f.fileno())
            os.pwrite(f.fileno(), content[8192:], 8192)
            proxy.lose(turn, True, away=True)
            begun = time.monotonic()
            synced = threading.Thread(target=answer, args=(os.fsync, f.fileno()))
            synced.start()
            wait_until(lambda: proxy.refuse or not synced.is_alive(), 20, "the lost answer")
            settle(proxy)
            # When the sync has ended, another answer was lost, as one about usage.
            committed = proxy.refuse and synced.is_alive() and (other / name).stat().st_size == len(content)
            if committed:
                compacting.communicate(b"\n", 60)
                assert compacting.returncode == 0
                if not trash:
                    wait_until(lambda: blocks(v) == before + 1, 20, "the end of the merged objects")
            if late and proxy.refuse:  # the try of the commit is over
                wait_until(lambda: time.monotonic() > begun + 1.3 * io_timeout_s, 20, "the end of the try")
            proxy.go_on()
            synced.join(60)
            if late:  # too late for the first
                RESULTS.clear()
                answer(os.fsync, f.fileno())
        if not committed:
            compacting.communicate(timeout=60)
        if not proxy.lost:  # one of usage was among the turns of the file before
            turn = 0
        assert RESULTS.pop() is None, m.log()
    for mount in m, other, there.mount("heartbeat=60,no-bgjob"):
        assert (mount / name).read_bytes() == content
    m.umount()
    other.umount()
    assert not findings(v)


RESULTS = []


def answer(fn, *args):
    """RESULTS gets the error, or None."""
    try:
        RESULTS.append(fn(*args))
    except OSError as e:
        RESULTS.append(e)


def blocks(v):
    return sum(p.is_file() for p in (v.bucket / v.name / "chunks").rglob("*"))
