# SPDX-License-Identifier: Apache-2.0
"""The page at a mount's metrics port. Without it an administrator without a monitoring system sees
nothing, or a page of numbers that somebody else can read, or write into."""

import fcntl
import http.client
import json
import os
import re
import sqlite3
import threading
import time

import pytest

import browser
from cachefs import REPO, SLOW, missing, wait_until
from syscalls import data, read, write
from test_metrics import Unix, port_of

pytestmark = pytest.mark.module("metrics")

HOSTILE = """<img src=x onerror="document.title='owned'"></script><b id=owned>&amp;'"""


def tcp(mnt):
    return http.client.HTTPConnection("127.0.0.1", port_of(mnt), timeout=30)


def get(connection, url, method="GET", host=None):
    connection.request(method, url, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read(), answer


def status(mnt):
    code, text, _ = get(tcp(mnt), "/status.json")
    assert code == 200
    return json.loads(text)


def test_a_mount_tells_which_build_it_is(ws, volume):
    mnt = volume.mount("metrics=0", daemon=False)
    v = json.loads(ws.run("cachefs", "version", "--json", check=True).stdout)
    assert status(mnt)["mount"]["build"] == v["build"]
    assert json.loads((mnt / ".config").read_text())["Build"] == v["build"]
    labels = 'version="%s",build="%s"' % (v["version"], v["build"])
    assert labels in get(tcp(mnt), "/metrics")[1].decode()
    assert labels in (mnt / ".stats").read_text()


def test_what_a_client_may_do(ws, volume):
    mnt = volume.mount("metrics=0", daemon=False)
    c = tcp(mnt)
    code, page, answer = get(c, "/")
    assert code == 200 and page.startswith(b"<!doctype html>")
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    policy = answer.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert b"http://" not in page.replace(b"http://www.w3.org/2000/svg", b"") and b"https://" not in page
    code, text, answer = get(c, "/status.json")
    assert code == 200 and answer.getheader("Content-Type") == "application/json"
    assert answer.getheader("Cache-Control") == "no-store"
    assert not answer.getheader("Access-Control-Allow-Origin")
    assert json.loads(text)["mount"]["point"] == str(mnt)
    assert b":-1" not in text  # a number whose metric does not exist
    for url in ("/", "/status.json"):
        code, text, answer = get(c, url, "HEAD")
        assert (code, text) == (200, b"") and int(answer.getheader("Content-Length")) > 100
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert get(c, url, method)[0] == 405


def test_another_name_of_this_machine(ws, volume):
    """A page of somebody who has pointed his name to 127.0.0.1 reads nothing."""
    path = ws.path("socket")
    mnt = volume.mount("metrics=0", daemon=False)
    port = port_of(mnt)
    for host in ("localhost", "LocalHost:1", "127.0.0.1:%d" % port, "127.9.8.7", "[::1]:80"):
        assert get(tcp(mnt), "/status.json", host=host)[0] == 200, host
    for host in ("evil.example", "127.0.0.1.evil.example", "127.0.0.1:80.evil.example", "localhost.evil.example:80",
                 "10.0.0.1", "[::2]", "[::1", "[::1]evil.example", "localhost:x", "127.1", "", "a" * 300):
        for url in ("/", "/status.json", "/metrics", "/health"):
            assert get(tcp(mnt), url, host=host or " ")[0] in (400, 403), host
    mnt.umount()
    volume.mount("metrics=unix:%s" % path)
    for url in ("/", "/status.json", "/metrics", "/health"):
        assert get(Unix(path), url)[0] == 200


def flat(value, name=""):
    if isinstance(value, list):
        return set().union(*(flat(v, name) for v in value))
    if isinstance(value, dict):
        return set().union(*(flat(v, name + "." + k if name else k) for k, v in value.items()))
    return {name}


def make_slow(volume, mnt, name, seconds=0.05):
    """A mkdir that waits so long for a locked database."""
    locker = sqlite3.connect(volume.db, isolation_level=None)
    locker.execute("BEGIN EXCLUSIVE")
    t = threading.Thread(target=lambda: os.mkdir(mnt / name))
    t.start()
    # not from .stats: its name cannot be looked up during a mkdir beside it
    oldest = rb"^cachefs_request_oldest_seconds\{[^}]*\} (\S+)$"
    wait_until(
        lambda: float(re.search(oldest, get(tcp(mnt), "/metrics")[1], re.M)[1]) > seconds, 30, "a slow mkdir"
    )
    locker.execute("COMMIT")
    locker.close()
    t.join(30)
    assert os.path.isdir(mnt / name)
    # the mount notes a request after its reply
    wait_until(lambda: any(s["op"] == "mkdir" for s in status(mnt)["slow"]), 30, "the mkdir in the list")


def test_slow_requests(volume):
    mnt = volume.mount("metrics=0", daemon=False)
    make_slow(volume, mnt, "d")
    (found,) = [s for s in status(mnt)["slow"] if s["op"] == "mkdir"]
    assert found["inode"] == "1" and 40 < found["ms"] < 30000 and found["result"] == "OK"
    assert found["waited_for"] == "metadata"
    assert found["pid"] > 1 and 0 <= found["age_s"] < 60 * SLOW
    # who waits for a file lock, or reads the log, waits because he wants to
    fd = os.open(mnt / "f", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    waiter = volume.ws.python(
        "import fcntl,sys; f=open(sys.argv[1],'r+'); print(1,flush=True); fcntl.flock(f, fcntl.LOCK_EX)",
        str(mnt / "f"), stdout=-1,
    )
    assert waiter.stdout.readline()
    log = os.open(mnt / ".accesslog", os.O_RDONLY)
    waits_s = 1 * SLOW
    begin = time.monotonic()
    while time.monotonic() - begin < waits_s:
        assert os.read(log, 1 << 16)
    os.close(log)
    os.close(fd)
    assert waiter.wait(30) == 0
    before = status(mnt)
    assert not {"flock", "read"} & {s["op"] for s in before["slow"]}
    # and it is not part of the mean latency
    assert before["requests"]["seconds"] < sum(s["ms"] for s in before["slow"]) / 1000 + waits_s / 2


def test_the_page_describes_every_field(ws):
    volume = ws.volume(replicate="async")
    text = (REPO / "docs/man/cachefs-metrics.7.scd").read_text().replace("\\_", "_")
    section = text.split("\n# STATUS\n")[1].split("\n# ")[0]
    documented = re.findall(r"^\*([a-z][a-z_.]*)\*$", section, re.M)
    mnt = volume.mount("metrics=0,cache-group=g,group-ip=127.0.0.1", daemon=False)
    make_slow(volume, mnt, "d")
    assert sorted(documented) == sorted(flat(status(mnt)))


def test_no_secrets(ws):
    secret = "wJalrXUtnFEMI-secret"
    credentials = ws.path("credentials")
    credentials.touch(0o600)
    credentials.write_text("ACCESS_KEY=AKIAVISIBLE\nSECRET_KEY=%s\n" % secret)
    volume = ws.volume(credentials=credentials)
    assert volume.setting().get("SecretKey")
    mnt = volume.mount("metrics=0,cache-group=g,group-ip=127.0.0.1", daemon=False)
    keys = re.findall(r'"key":"([^"]+)"', " ".join(bytes(v).decode() if isinstance(v, bytes) else str(v) for (v,) in
                                                   volume.sql("SELECT value FROM jfs_cachefs_record")))
    assert keys
    for url in ("/", "/status.json", "/metrics"):
        text = get(tcp(mnt), url)[1].decode()
        assert not [s for s in (secret, "AKIAVISIBLE", *keys) if s in text]
        assert not re.search(r'"[^"]*(secret|password|credential|token)[^"]*"\s*:', text, re.I)


# ---- in a browser ----


@pytest.fixture
def page(ws):
    if not browser.PROGRAM:
        missing("chromium is not installed (scripts/install-deps test)")
    b = browser.Browser(ws.dir)
    ws.cleanups.append(b.close)
    return b


def row(page, table, name, column):
    """The text of a column in the row of a table that begins with the name."""
    return page.eval(
        "[...document.querySelectorAll('#%s tbody tr')].find((r) => r.cells[0].textContent === %s)?.cells[%d].textContent"
        % (table, json.dumps(name), column)
    )


@pytest.mark.deadline(180)
def test_a_mount_at_work_in_a_browser(ws, page):
    volume = ws.volume()
    point = ws.path(HOSTILE.replace("/", "-"))
    point.mkdir()
    group = "cache-group=g,group-ip=127.0.0.1,group-beat=500ms,"
    mnt = volume.mount(group + "metrics=0,cache-dir=%s,group-weight=300" % ws.path("cache1"), daemon=False, path=point)
    other = volume.mount(group + "cache-dir=%s" % ws.path("cache2"), daemon=False)
    place = "http://127.0.0.1:%d/" % port_of(mnt)

    page.shape(1280, 1400)
    page.open(place)
    wait_until(lambda: page.text("#health") == "answers", 30, "an answer")
    assert page.text("#title") == "vol on %s" % point
    assert page.eval("document.title") == "vol on %s – cachefs" % point
    assert page.eval("document.querySelectorAll('img, b#owned').length") == 0
    assert "metadata in sqlite3" in page.text("#about") and "process %d" % mnt.pid() in page.text("#about")
    assert page.text("#tile-failed") == "0"

    # values appear, and change
    assert row(page, "tiers", "object", 1) == "0"
    content = data(40_000_000)  # ten blocks: one of them is the mount's own to fetch
    write(other / "f", content, sync=True)
    assert read(mnt / "f") == content
    write(mnt / "g", content, sync=True)
    wait_until(lambda: int(row(page, "tiers", "object", 1)) > 0, 30, "a read of an object")
    wait_until(lambda: page.eval("samples.some((s) => s.written > 0 && s.stored > 0 && s.putMs > 0)"), 30, "a rate")
    curves = "[...document.querySelectorAll('#%s :is(path, circle)')].filter((p) => p.getBBox().height > 3).length"
    for chart in ("throughput", "latency", "operations"):
        wait_until(lambda: page.eval(curves % chart), 30, "a curve")
    assert page.text("#throughput svg").count("/s") == 1 and "time, " in page.text("#latency svg")
    assert page.eval("Math.abs(last.tiers.reduce((n, t) => n + t.hits, 0)) > 0")
    wait_until(lambda: page.eval("document.querySelectorAll('#members tbody tr').length") == 2, 30, "both members")
    wait_until(
        lambda: page.eval("[...document.querySelectorAll('#members tbody tr')].map((r) => r.cells[2].textContent).join()")
        == "75.0 %,25.0 %", 30, "the shares",
    )
    states = "[...document.querySelectorAll('#members .badge')].map((b) => b.textContent).join()"
    assert page.eval(states).startswith("self,")
    ways = "[...document.querySelectorAll('#members tbody tr')].map((r) => r.cells[6].textContent).join()"
    assert page.eval(ways) == "–,tcp"
    assert row(page, "staging", "Staged blocks", 1) == "0"
    make_slow(volume, mnt, "slow")
    wait_until(lambda: row(page, "slow", "mkdir", 3) == "metadata", 30, "the slow request")

    # at the size of a telephone nothing stands out, in the dark everything can be read
    for width, scheme in ((400, "light"), (1280, "dark")):
        page.shape(width, 1400, scheme)
        wait_until(lambda: page.eval("innerWidth") == width, 10, "the size")
        assert page.eval("document.documentElement.scrollWidth <= innerWidth")
        assert page.eval("[...document.querySelectorAll('section')].every((s) => s.getBoundingClientRect().right <= innerWidth)")
    assert page.eval("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    if os.environ.get("CACHEFS_PICTURES"):
        for width, scheme in ((400, "light"), (1280, "light"), (1280, "dark")):
            page.shape(width, 2400 if width == 400 else 1700, scheme)
            page.eval("show(last)")
            page.picture(REPO / os.environ["CACHEFS_PICTURES"] / ("status-%d-%s.png" % (width, scheme)))

    # what the page asked for, and that its own policy had nothing against it
    assert page.errors == []
    assert {u for u in page.requests if not u.startswith(place)} == set()
    assert page.eval("document.title").startswith("vol on ")

    mnt.umount()
    wait_until(lambda: page.text("#health") == "not reached", 30, "the end of the mount")
    assert page.eval("document.body.className") == "lost"


def test_a_policy_that_is_kept(page, volume):
    """Were somebody to get markup into the page, it would not run."""
    mnt = volume.mount("metrics=0", daemon=False)
    page.open("http://127.0.0.1:%d/" % port_of(mnt))
    wait_until(lambda: page.text("#health") == "answers", 30, "an answer")
    page.eval(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.owned=1\"><i style=\"color:red\">');"
        "const s = document.createElement('script'); s.textContent = 'window.owned = 2'; document.body.append(s)"
    )
    wait_until(lambda: len(page.eval("1") and page.errors) >= 3, 20, "refusals")
    assert page.eval("window.owned ?? 0") == 0
    assert all("Content Security Policy" in e for e in page.errors), page.errors
