# SPDX-License-Identifier: Apache-2.0
"""The connection to the database ends at each turn of a short life of a mount, before the server gets
the request and after it has answered. No program sees it, and usage is counted exactly once."""

import os

import cachefs_check
import pytest

import servers
from cachefs import Volume, wait_until
from countproxy import CountingProxy

ENGINES = {"mysql": servers.mariadb_server, "postgresql": servers.postgres_server}
LOST = r"connection lost: |no connection to the database|connected to the database again"


@pytest.fixture(params=[pytest.param(e, marks=pytest.mark.module(e)) for e in ENGINES])
def away(request, ws):
    """A volume behind a proxy, and the proxy."""
    db = ENGINES[request.param]().database()
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
