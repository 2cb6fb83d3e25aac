# SPDX-License-Identifier: Apache-2.0
"""Group commit: closed files that are committed in one round trip. A failure here is a file that its
program took for stored: its bytes are missing, there twice, or promised by an fsync that did not wait."""

import concurrent.futures
import contextlib
import os
import random
import re
import time

import cachefs_check
import pytest

import servers
from cachefs import Volume, wait_until
from countproxy import CountingProxy

ENGINES = {
    "mysql": servers.mariadb_server,
    "postgresql": servers.postgres_server,
    "redis": servers.redis_server,
}
LOST = r"connection lost: |no connection to the database|connected to the database again|cannot write usage"
FILES = 8
NEW = b"new"
OPTIONS = "close=committing,heartbeat=60,no-bgjob"


each_engine = [pytest.param(e, marks=pytest.mark.module(e)) for e in ENGINES]


def volume_on(ws, engine, port=None):
    db = ENGINES[engine]().database()
    ws.cleanups.append(db.drop)
    if not port:
        return Volume(ws, url=db.url)
    v = Volume(ws, url=db.url.replace(":%d" % db.server.port, ":%d" % port(db.server.port)))
    v.direct = db.url
    return v


@pytest.fixture(params=each_engine)
def far(request, ws):
    """A volume whose database is behind a proxy, the proxy, and a mount whose closes do not wait."""
    proxies = []

    def through(port):
        proxies.append(CountingProxy(port))
        ws.cleanups.append(proxies[0].close)
        return proxies[0].port

    v = volume_on(ws, request.param, through)
    ws.run("cachefs", "config", v.direct, "--trash-days", "0", "--force", check=True)
    proxy = proxies[0]
    m = v.mount(OPTIONS)
    m.allow(LOST)
    number_slices(m)
    return v, proxy, m


def number_slices(m):
    """The mount asks for numbers many at a time."""
    (m / "numbers").write_bytes(b"1")
    sync(m.path)


def content(i):
    return bytes([i]) * (1000 + i)


def open_files(top):
    top.mkdir()
    return [os.open(top / str(i), os.O_CREAT | os.O_WRONLY) for i in range(FILES)]


def write_and_close(fds, first=0):
    """Bytes that are not closed within a second are committed in no group."""
    for i, fd in enumerate(fds, first):
        os.write(fd, content(i))
        os.close(fd)


def close_files(v, proxy, fds):
    """They are a group behind the first one, whose commit the database gets last. Returns their objects."""
    before = {*v.objects()}
    proxy.paused = True
    write_and_close(fds)
    # Objects of dead slices may go meanwhile.
    wait_until(lambda: len({*v.objects()} - before) >= len(fds), 20, "the blocks of all files")
    proxy.paused = False
    return {*v.objects()} - before


def rewrite(v, top, objects):
    """Nothing is left of their slices."""
    for i in range(FILES):
        (top / str(i)).write_bytes(NEW)
    sync(top)
    v.ws.run("cachefs", "compact", top, check=True)
    wait_until(lambda: objects.isdisjoint(v.objects()), 20, "the end of slices")


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def other_mount(v, opts=""):
    v.url = v.direct
    return v.mount("no-bgjob," + opts)


def damaged(top, but=()):
    return [i for i in range(FILES) if i not in but and (top / str(i)).read_bytes() != content(i)]


def judge(v, m):
    m.umount()
    found, _ = cachefs_check.check(v.direct, str(v.bucket), cachefs_check.Options())
    assert not found, found


def test_round_trips_and_members(far):
    """Files take fewer round trips than there are. One that another mount has removed harms no other, and an
    fsync of one ends when this one is stored."""
    v, proxy, m = far
    other = other_mount(v, "attr-cache=0,entry-cache=0,dir-entry-cache=0")
    for name in "first", "next":  # the first prepare statements
        fds, grouped = open_files(m / name), m.stat("data_grouped_commits_total")
        turns = proxy.turns
        close_files(v, proxy, fds)
        sync(m.path)
        turns = proxy.turns - turns
        assert damaged(other / name) == []
    assert m.stat("data_grouped_commits_total") - grouped >= FILES / 2
    assert turns < FILES

    fds = open_files(m / "removed")
    (other / "removed" / "5").unlink()
    close_files(v, proxy, fds)
    sync(m.path)
    assert damaged(other / "removed", but=[5]) == []

    seen, fds = {}, open_files(m / "synced")

    def wait_for(i):
        os.fsync(fds[i])
        seen[i] = (other / "synced" / str(i)).stat().st_size

    proxy.pause_at = proxy.turns + 2
    close_files(v, proxy, [os.dup(fd) for fd in fds])
    wait_until(lambda: proxy.paused, 20, "the turn of the group")
    with concurrent.futures.ThreadPoolExecutor(FILES) as threads:
        synced = [threads.submit(wait_for, i) for i in range(1, FILES)]
        concurrent.futures.wait(synced, 0.2)  # none ends
        proxy.paused = False
        wait_for(0)
        for s in synced:
            s.result()
    for fd in fds:
        os.close(fd)
    assert seen == {i: len(content(i)) for i in range(FILES)}
    other.umount()
    judge(v, m)


def test_each_turn(far):
    """Lost before the server got it, or after it has answered, or delivered when the files have other bytes since."""
    v, proxy, m = far
    want, turn, met = {}, 0, True
    while met:
        turn += 1
        for how in "unsent", "unanswered", "late":
            top = m / ("%s%d" % (how, turn))
            fds, grouped = open_files(top), m.stat("data_grouped_commits_total")
            if how == "late":
                proxy.hold(turn)
            else:
                proxy.lose(turn, answered=how == "unanswered")
            objects = close_files(v, proxy, fds)
            sync(m.path)
            met = proxy.lost
            proxy.lose(1 << 30, False)
            # After the loss of the first commit, or of none.
            assert m.stat("data_grouped_commits_total") > grouped
            if how == "late":
                rewrite(v, top, objects)
                proxy.deliver()
            want[top.name] = [NEW if how == "late" else content(i) for i in range(FILES)]
    assert turn > 2
    judge(v, m)
    other = other_mount(v)
    assert {d: [(other / d / str(i)).read_bytes() for i in range(FILES)] for d in want} == want
    other.umount()


@pytest.mark.deadline(120)
@pytest.mark.parametrize("far", each_engine[-1:], indirect=True)
def test_outage_longer_than_any_try(far):
    """Of a group that was not answered until its files had other bytes, and of one that was never sent, each file
    is stored once."""
    v, proxy, m = far
    m.umount()
    m = v.mount(OPTIONS + ",io-timeout=3")
    m.allow(LOST + "|given up|commit failed|cannot be reached|does not answer|times of directories")
    number_slices(m)
    held, unsent = open_files(m / "held"), open_files(m / "unsent")
    # The first commit is sent again when the blocks take longer than io-timeout.
    proxy.only = re.compile(b"MULTI")
    proxy.hold(1)
    objects = close_files(v, proxy, held)
    wait_until(lambda: proxy.lost, 20, "the turn of the group")
    proxy.refuse = True
    proxy.cut()
    write_and_close(unsent)
    begun = time.monotonic()
    wait_until(lambda: time.monotonic() > begun + 4, 20, "the second try of the group's first commit")
    proxy.go_on()
    sync(m.path)
    rewrite(v, m / "held", objects)
    proxy.deliver()
    judge(v, m)
    assert "lost" not in re.sub(LOST, "", m.log())
    other = other_mount(v)
    assert damaged(other / "unsent") == []
    assert {p.read_bytes() for p in (other / "held").iterdir()} == {NEW}
    other.umount()


@pytest.mark.deadline(120)
@pytest.mark.parametrize("engine", ["sqlite", *each_engine])
def test_killed_in_a_group(ws, engine):
    """Some of the files are there, in the order of their closes, and the one that was synced is among them."""
    v = ws.volume() if engine == "sqlite" else volume_on(ws, engine)
    v.check_options = {"leaks": "warn", "unmounted": False}
    rng, names = random.Random(7), []
    for round_ in range(3):
        m = v.mount(OPTIONS)
        top = m / ("d%d" % round_)
        names.append(top.name)
        fds = open_files(top)
        os.write(fds[0], content(0))
        os.fsync(fds[0])
        write_and_close([os.dup(fd) for fd in fds[1:]], first=1)
        time.sleep(rng.random() * 0.01)  # the moment under test
        m.kill_all()
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        m.kill9()
    other = v.mount("no-bgjob")
    for name in names:
        sizes = [(other / name / str(i)).stat().st_size for i in range(FILES)]
        n = FILES - sizes.count(0)
        assert n and sizes == [len(content(i)) if i < n else 0 for i in range(FILES)], sizes
        assert damaged(other / name, but=range(n, FILES)) == []
    other.umount()
