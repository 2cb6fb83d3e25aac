# SPDX-License-Identifier: Apache-2.0
"""The endpoint for monitoring. Without it an administrator hears of a mount that hangs from its
users."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import threading
import time

import pytest

from cachefs import REPO, SLOW, children, need_program, stop_process, wait_until
from syscalls import data, read, write

pytestmark = pytest.mark.module("metrics")


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("cachefs", timeout=30)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def get(connection, url, method="GET"):
    connection.request(method, url)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def port_of(mnt):
    return int(re.search(r"metrics: http://\S+:(\d+)/metrics", mnt.log())[1])


def families(text):
    return set(re.findall(r"^# TYPE (\S+)", text, re.M))


def test_tcp(volume):
    mnt = volume.mount("metrics=0", daemon=False)
    c = http.client.HTTPConnection("127.0.0.1", port_of(mnt), timeout=30)
    assert get(c, "/health") == (200, "the mount answers\n")
    write(mnt / "f", data(1_000_000), sync=True)
    status, text = get(c, "/metrics")
    assert status == 200
    labels = 'volume="vol",mount="%s"' % mnt
    assert re.search(r'^cachefs_object_requests_total\{%s,method="put"\} [1-9]' % re.escape(labels), text, re.M)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in lines if "{%s" % labels not in line] == []
    assert get(c, "/nothing")[0] == 404
    assert get(c, "/metrics", "POST")[0] == 405
    # what .stats shows
    assert {re.split(r"[{ ]", line)[0] for line in read(mnt / ".stats").decode().splitlines()} == families(text)
    need_program("promtool")
    check = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, stdout=-1, stderr=-2)
    assert check.returncode == 0 and not check.stdout, check.stdout


def test_a_mount_point_with_any_name(ws, volume):
    """A scrape that cannot be parsed is a mount that is not watched."""
    point = os.fsencode(ws.path("m")) + b'"\\\xff\xc3\xa4'
    os.mkdir(point)
    mnt = volume.mount("metrics=unix:%s" % ws.path("socket"), path=os.fsdecode(point))
    text = get(Unix(ws.path("socket")), "/metrics")[1]
    assert 'mount="%s\\"\\\\\ufffdä"' % ws.path("m") in text
    need_program("promtool")
    check = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, stdout=-1, stderr=-2)
    assert check.returncode == 0 and not check.stdout, check.stdout
    assert mnt.mounted()


def test_unix_socket(ws, volume):
    path = ws.path("socket")
    left = socket.socket(socket.AF_UNIX)  # by a mount that was killed
    left.bind(str(path))
    left.close()
    mnt = volume.mount("metrics=unix:%s" % path)
    assert get(Unix(path), "/health")[0] == 200
    mnt.umount()
    assert not os.path.exists(path)


def test_the_process_that_asks_knows_no_secret(ws, volume):
    """It hangs in a mount that hangs, for as long as it takes, and needs no environment."""
    path = ws.path("socket")
    mnt = volume.mount("metrics=unix:%s" % path, env={"META_PASSWORD": "verysecretindeed"})
    assert b"verysecretindeed" in read("/proc/%d/environ" % mnt.pid())
    assert get(Unix(path), "/health")[0] == 200
    askers = [p for p in children(mnt.pid()) if b"\0ask-mount\0" in read("/proc/%d/cmdline" % p)]
    assert len(askers) == 1
    assert b"verysecretindeed" not in read("/proc/%d/environ" % askers[0])


def test_a_mount_that_does_not_answer_is_not_well(ws, volume):
    """All its threads wait for a locked database: the server still answers, and knows."""
    path = ws.path("socket")
    mnt = volume.mount("max-threads=1,metrics=unix:%s" % path, expect="locked|busy|does not answer")
    assert get(Unix(path), "/health")[0] == 200
    locker = sqlite3.connect(volume.db, isolation_level=None)
    locker.execute("BEGIN EXCLUSIVE")
    stuck = threading.Thread(target=lambda: os.mkdir(mnt / "d"))
    stuck.start()
    wait_until(lambda: get(Unix(path), "/health")[0] == 503, 20, "a bad answer")

    def at_once():
        begin = time.monotonic()
        assert get(Unix(path), "/metrics")[0] == 200
        return time.monotonic() - begin < 1.5

    wait_until(at_once, 20, "metrics that do not wait for the mount, which would be two seconds")
    locker.execute("COMMIT")
    locker.close()
    stuck.join(30)
    wait_until(lambda: get(Unix(path), "/health")[0] == 200, 20, "a good answer")
    assert os.path.isdir(mnt / "d")


def status_of(port, url):
    """As a load balancer asks, which takes one answer that is missing for no failure: when 32 others
    connect before a request is read, the server takes its client for a slow one."""
    for _ in range(3):
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=5 * SLOW)
        with contextlib.suppress(ConnectionError), contextlib.closing(c):
            return get(c, url)[0]
    return None


def test_slow_clients_keep_nobody_out(volume):
    """200 connections that send a byte a second, by a scanner or out of spite. The one that asks for
    the health of the mount is a load balancer."""
    mnt = volume.mount("metrics=0", daemon=False)
    port = port_of(mnt)
    over = threading.Event()
    ended = set()  # of those that the server has closed

    def drip(mine):
        rest = {}
        while not over.wait(1):
            for i in mine:
                try:
                    if i not in rest:
                        rest[i] = socket.create_connection(("127.0.0.1", port), timeout=10)
                        rest[i].send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
                    elif i not in ended:
                        rest[i].send(b"x")
                except OSError:
                    ended.add(i)
        for s in rest.values():
            s.close()

    threads = [threading.Thread(target=drip, args=[range(i, 200, 8)]) for i in range(8)]
    for t in threads:
        t.start()
    try:
        end, n = time.monotonic() + 6, 0
        while time.monotonic() < end:
            for url in ("/health", "/metrics"):
                n += 1
                assert status_of(port, url) == 200
        assert n > 10
        wait_until(lambda: len(ended) == 200, 30, "the end of those that never come to an end")
    finally:
        over.set()
        for t in threads:
            t.join()
    assert get(http.client.HTTPConnection("127.0.0.1", port, timeout=30), "/health")[0] == 200


def test_clients_that_come_together_are_answered(volume):
    """60 requests wait when the mount gets the processor again: those that it has not read are not slow."""
    mnt = volume.mount("metrics=0", daemon=False)
    port, pid = port_of(mnt), mnt.pid()
    stop_process(pid)
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            os.sched_setaffinity(int(task), {0})
            with contextlib.suppress(PermissionError):  # threads that it starts come after those that it has
                os.sched_setscheduler(int(task), os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        clients = [socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(60)]
        for c in clients:
            c.sendall(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    finally:
        os.kill(pid, signal.SIGCONT)
    answers = [c.recv(12, socket.MSG_WAITALL) for c in clients]
    assert answers == [b"HTTP/1.1 404"] * 60, answers


def test_a_place_that_is_taken(volume):
    first = volume.mount("metrics=0", daemon=False)
    port = port_of(first)
    point = volume.ws.path("other")
    point.mkdir()
    taken = "metrics=%d: Address already in use" % port
    for place, reason in [(str(port), taken)] + [
        (bad, "metrics=%s: not " % bad)
        for bad in ("nowhere", "example.com:1", "1.2.3.4", "unix:relative", "127.0.0.1:http", "65536", "99999", "[::1]:1000000", "4294967297")
    ]:
        r = volume.ws.run("cachefs", "mount", volume.url, point, "-o", "metrics=" + place, timeout=60)
        assert r.returncode == 32 and reason in r.stderr, (place, r.stderr)


@pytest.mark.parametrize("kind", ["port", "socket"])
def test_a_place_that_becomes_free(ws, volume, kind):
    """umount and mount, one after the other: the process before may still be there."""
    volume.check_options = {"leaks": "warn", "unmounted": False}
    place = "0" if kind == "port" else "unix:%s" % ws.path("metrics")
    first = volume.mount("metrics=" + place)
    if kind == "port":
        place = str(port_of(first))
    stop_process(first.pid())
    second = volume.mount("metrics=" + place, wait=False)
    wait_until(lambda: "waiting for the address" in second.log() or second.process.poll() is not None, 30, "its wait")
    first.kill9()
    second.wait_ready()
    c = http.client.HTTPConnection("127.0.0.1", int(place), timeout=30) if kind == "port" else Unix(ws.path("metrics"))
    assert get(c, "/health")[0] == 200


def test_examples_name_what_exists(volume):
    mnt = volume.mount("metrics=0", daemon=False)
    known = families(get(http.client.HTTPConnection("127.0.0.1", port_of(mnt), timeout=30), "/metrics")[1])
    dashboard = REPO / "examples/grafana/cachefs.json"
    json.loads(dashboard.read_text())
    rules = REPO / "examples/prometheus/cachefs-alerts.yml"
    for file in (dashboard, rules):
        used = set(re.findall(r"\bcachefs_[a-z_]+", file.read_text()))
        assert used and used <= known, used - known
    need_program("promtool")
    subprocess.run(["promtool", "check", "rules", rules], stdout=-3, timeout=30, check=True)
