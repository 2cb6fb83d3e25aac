# SPDX-License-Identifier: Apache-2.0
"""Volumes in S3: a real server, and a proxy in front of it that breaks things. A failure here is
data lost or made up on the way to the bucket, a hang, or an error nobody understands."""

import concurrent.futures
import contextlib
import errno
import hashlib
import http.server
import json
import mmap
import os
import pathlib
import re
import subprocess
import threading
import time

import pytest

import cachefs
import proxy
import server
import test_fixtures
from cachefs import SLOW, Volume, wait_until
from s3volume import S3Volume
from syscalls import data, fallocate, read, user, write

BUILD = cachefs.BIN.parents[1]
GAVE_UP = r"object store: gave up|block cannot be stored|cannot be read|not read in time"


def objtool(ws, s3, url, *command, deadline_ms=20000, silence_ms=15000, storage="s3", env=None):
    r = ws.run(
        BUILD / "tests/s3/objtool",
        int(deadline_ms * SLOW),
        int(silence_ms * SLOW),
        storage,
        url,
        *command,
        env={**(s3.keys if s3 else {}), **(env or {})},
        timeout=90,
    )
    assert r.stdout, r.stderr
    out = json.loads(r.stdout)
    out["stderr"] = r.stderr
    return out


def make_bucket(ws, s3, name="bkt"):
    url = "%s/%s" % (s3.url, name)
    assert objtool(ws, s3, url, "create")["result"] == 0
    return url


def put_file(ws, s3, url, key, content):
    path = ws.path("content")
    path.write_bytes(content)
    return objtool(ws, s3, url, "put", key, path)


def get_file(ws, s3, url, key, off=0, size=100 << 20, **kw):
    path = ws.path("got")
    out = objtool(ws, s3, url, "get", key, off, size, path, 1, **kw)
    out["bytes"] = path.read_bytes()
    return out


def list_keys(ws, s3, url, prefix="", after="", **kw):
    path = ws.path("listed")
    out = objtool(ws, s3, url, "list", prefix, after, path, **kw)
    out["keys"] = [line.rsplit(" ", 2)[0] for line in path.read_text().splitlines()]
    return out


# -- the surface


@pytest.mark.parametrize("storage", ("s3", "minio"))
def test_surface(ws, s3, storage):
    """Every verb, odd keys, ranges, order of listings."""
    r = ws.run(
        *("cachefs", "objbench", "--skip-speed", "--json", "--storage", storage, s3.url + "/bkt"),
        env=s3.keys,
        timeout=60,
    )
    tests = json.loads(r.stdout)["tests"]
    assert r.returncode == 0 and len(tests) > 10, r.stdout + r.stderr
    assert not [t for t in tests if not t["passed"]]
    assert not [p for p in s3.bucket("bkt").rglob("*objbench*/*") if p.is_file()], "objects are left"


def test_surface_of_shards(ws, s3):
    r = ws.run(
        *("cachefs", "objbench", "--skip-speed", "--shards", "3", "--storage", "s3"),
        s3.url + "/shard-%d",
        env=s3.keys,
        timeout=60,
    )
    assert r.returncode == 0, r.stdout + r.stderr
    assert all(s3.bucket("shard-%d" % i).is_dir() for i in range(3))


def test_speed_table(ws, s3):
    r = ws.run(
        *("cachefs", "objbench", "--skip-functional-tests", "--json", "--storage", "s3"),
        *("--threads", "1,4", "--big-size", "16M", "--small-objects", "20", s3.url + "/bkt"),
        env=s3.keys,
        timeout=60,
    )
    rows = json.loads(r.stdout)["speed"]
    assert r.returncode == 0 and {x["threads"] for x in rows} == {1, 4}
    assert all(x["objects_per_s"] > 0 for x in rows) and len(rows) == 14


# -- volumes


def test_session(ws, s3):
    """format makes the bucket; what is written is there after a remount."""
    vol = S3Volume(ws, s3)
    setting = vol.setting()
    assert setting["Storage"] == "s3" and setting["KeyEncrypted"]
    assert setting["AccessKey"] == server.ACCESS
    assert server.SECRET not in json.dumps(setting)
    mnt = vol.mount()
    content = data(9_000_001)
    write(mnt / "f", content)
    with open(mnt / "f", "r+b") as f:
        f.seek(5_000_000)
        f.write(b"over")
    os.mkdir(mnt / "d")
    write(mnt / "d/small", b"x")
    mnt = mnt.remount()
    want = content[:5_000_000] + b"over" + content[5_000_004:]
    assert read(mnt / "f") == want
    assert read(mnt / "d/small") == b"x"
    assert len(vol.objects()) >= 4
    os.unlink(mnt / "f")
    wait_until(lambda: len(vol.objects()) == 1, 20, "the removal of the blocks")
    maps = pathlib.Path("/proc/%d/maps" % mnt.pid()).read_text()
    assert "libcurl" in maps
    assert server.SECRET not in pathlib.Path("/proc/%d/cmdline" % mnt.pid()).read_text()
    assert server.SECRET not in mnt.log()


def test_reads_of_a_dead_bucket(ws, s3, via):
    """Reads that wait for a bucket that says nothing leave threads to what a cache can answer."""
    threads, readers = 8, 24
    content = [data(5000 + i, i) for i in range(readers)]
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount()
    for i in range(readers):
        write(mnt / ("cold%d" % i), content[i])
    write(mnt / "warm", content[0])
    mnt = mnt.remount("max-threads=%d" % threads)
    assert read(mnt / "warm") == content[0]
    speak = threading.Event()
    gets = via.add("GET", "/chunks/", rewrite=lambda body: speak.wait(120) and body)

    def ask(i):
        with pytest.raises(FileNotFoundError):
            os.stat(mnt / ("none%d" % i))
        fd = os.open(mnt / "warm", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        got = os.read(fd, len(content[0]))
        os.close(fd)
        return got

    with concurrent.futures.ThreadPoolExecutor(readers + 1) as pool:
        try:
            cold = [pool.submit(read, mnt / ("cold%d" % i)) for i in range(readers)]
            wait_until(lambda: gets.hits >= threads, 20, "reads that wait for the bucket")
            for i in range(5):
                assert pool.submit(ask, i).result(5) == content[0]
            assert not any(f.done() for f in cold)
        finally:
            speak.set()
        assert [f.result(60) for f in cold] == content


CHANGES = {
    "ftruncate": lambda path, fd: os.ftruncate(fd, 1000),
    "truncate": lambda path, fd: os.truncate(path, 1000),
    "truncate by the group": lambda path, fd: os.truncate(path, 1000),
    "fallocate": lambda path, fd: fallocate(fd, 0, 0, 1000),
    "copy": lambda path, fd: os.copy_file_range(fd, fd, 500, 0, 500),
    "O_TRUNC": lambda path, fd: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_files_that_a_dead_bucket_does_not_take(ws, s3, via, change):
    """An operation that stores a file's bytes first leaves threads to others, as writes and flushes do."""
    threads, n = 8, 24
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount("max-threads=%d,io-timeout=100,put-timeout=100,default_permissions=false" % threads)
    begun, content, speak = [], data(1000), threading.Event()
    paths = [mnt / ("f%d" % i) for i in range(n)]
    fds = [os.open(p, os.O_CREAT | os.O_RDWR) for p in paths]
    puts = via.add("PUT", "/chunks/", rewrite=lambda body: speak.wait(120) and body)
    for fd in fds:
        os.write(fd, content[:500])
        os.fchown(fd, 0, 5000)
        os.fchmod(fd, 0o660)
    caller = user(1000, 1000, [5000]) if "group" in change else contextlib.nullcontext()

    def work(i):
        begun.append(i)
        CHANGES[change](paths[i], fds[i])

    def ask(i):
        with pytest.raises(FileNotFoundError):
            os.stat(mnt / ("none%d" % i))

    with concurrent.futures.ThreadPoolExecutor(n + 1) as pool, caller:
        try:
            changes = [pool.submit(work, i) for i in range(n)]
            wait_until(lambda: len(begun) == n and puts.hits >= threads, 30, "changes that wait for the bucket")
            for i in range(20):
                pool.submit(ask, i).result(5)
            assert not any(f.done() for f in changes)
        finally:
            speak.set()
        for f in changes:
            f.result(60)
    want = {"copy": 2 * content[:500], "O_TRUNC": b""}
    for path, fd in zip(paths, fds):
        os.close(fd)
        assert read(path) == want.get(change, content[:500] + bytes(500))


def test_times_do_not_wait_for_a_dead_bucket(ws, s3, via):
    """tar and rsync set the time of each file that they have just written: it is stored with the bytes."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount("io-timeout=100,put-timeout=100")
    speak = threading.Event()
    via.add("PUT", "/chunks/", rewrite=lambda body: speak.wait(120) and body)
    fd = os.open(mnt / "f", os.O_CREAT | os.O_RDWR)
    os.write(fd, b"content")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(os.utime, fd, (5, 5)).result(10)
            assert os.stat(mnt / "f").st_mtime == 5
        finally:
            speak.set()
    os.close(fd)
    mnt = mnt.remount()
    assert os.stat(mnt / "f").st_mtime == 5 and read(mnt / "f") == b"content"


def test_read_of_many_small_pieces(ws, s3, via):
    """Scattered writes that wait for the bucket are more pieces than writev takes."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount("io-timeout=100,put-timeout=100")
    content = bytearray(data(1 << 20))
    write(mnt / "f", content)
    speak = threading.Event()
    via.add("PUT", "/chunks/", rewrite=lambda body: speak.wait(120) and body)
    fd = os.open(mnt / "f", os.O_RDWR | os.O_DIRECT)
    with concurrent.futures.ThreadPoolExecutor(1) as pool, mmap.mmap(-1, 1 << 20) as got:
        try:
            # as many as may wait of one file
            for at in range(100, 100 + 512 * 300, 300):
                os.pwrite(fd, b"x", at)
                content[at] = ord("x")
            assert pool.submit(os.preadv, fd, [got], 0).result(20) == len(content)
            assert got[:] == content
        finally:
            speak.set()
    os.close(fd)
    assert read(mnt.remount() / "f") == content


def test_credentials_file(ws, s3):
    """Keys may come from a file at format; the mount has them from the setting."""
    path = ws.path("keys")
    path.write_text("ACCESS_KEY=%s\nSECRET_KEY=%s\n" % (server.ACCESS, server.SECRET))
    path.chmod(0o600)
    vol = S3Volume(ws, s3, format=False)
    ws.run(
        "cachefs",
        *vol.format_args(storage="s3", bucket=vol.where, credentials=path),
        check=True,
        timeout=60,
    )
    mnt = vol.mount()
    write(mnt / "f", b"something")
    assert read(mnt.remount() / "f") == b"something"


def test_compressed_shards(ws, s3):
    vol = S3Volume(ws, s3, url=s3.url + "/shard%d", shards=3, compress="zstd", block_size="64K")
    vol.check_options = None  # it knows one bucket
    mnt = vol.mount()
    content = b"compressible " * 200_000
    write(mnt / "f", content)
    assert read(mnt.remount() / "f") == content
    counts = [len(list(s3.bucket("shard%d" % i).glob("vol/chunks/**/*_*"))) for i in range(3)]
    assert all(counts), counts


def test_file_mount_has_no_libcurl(ws, volume):
    mnt = volume.mount()
    assert "libcurl" not in pathlib.Path("/proc/%d/maps" % mnt.pid()).read_text()


def test_disk_cache_by_default(ws, s3):
    """A mount without a cache directory does not fetch the same block twice."""
    vol = S3Volume(ws, s3)
    mnt = Volume.mount(vol)
    write(mnt / "f", b"kept" * 1000_000)
    mnt.umount()
    mnt = Volume.mount(vol)
    read(mnt / "f")
    home = ws.dir / "cache-home/cachefs" / vol.setting()["UUID"] / "raw/chunks"
    wait_until(lambda: [p for p in home.rglob("*_*") if p.suffix != ".tmp"], 20, "the cached block")


@pytest.mark.parametrize("name", test_fixtures.NAMES)
def test_other_clients_volume(ws, s3, name):
    """Its objects, copied into a bucket, read as they did."""
    vol = ws.fixture(name)
    url = s3.fill("fix", vol.bucket)
    vol.fixture_name = None
    env = {**s3.keys, "JFS_RSA_PASSPHRASE": "fixture-passphrase"}
    mnt = vol.mount("ro,storage=s3,bucket=" + url, env=env)
    found = test_fixtures.differences(
        test_fixtures.manifest(ws, mnt), test_fixtures.wanted(name), parts=("entries",)
    )
    test_fixtures.nothing(found)


# -- who may


def one_line(r, *words):
    lines = r["stderr"].strip().splitlines()
    assert len(lines) == 1, r
    for word in words:
        assert word in lines[0], r
    assert server.SECRET not in r["stderr"]


def test_wrong_secret(ws, s3):
    url = make_bucket(ws, s3)
    wrong = {"SECRET_KEY": "not the secret"}
    r = objtool(ws, s3, url, "head", "x", env=wrong)
    assert r["error"] == "EACCES" and r["ms"] < 5000 * SLOW
    r = get_file(ws, s3, url, "x", env=wrong)
    assert r["error"] == "EACCES"
    one_line(r, "SignatureDoesNotMatch", "tries=1 ")
    vol = S3Volume(ws, s3, format=False)
    r = ws.run(
        "cachefs",
        *vol.format_args(storage="s3", bucket=vol.where),
        env={**s3.keys, **wrong},
        timeout=60,
    )
    assert r.returncode and "Permission denied" in r.stderr, r
    assert "not the secret" not in r.stderr


def test_no_keys_at_all(ws, s3):
    none = {"ACCESS_KEY": "", "SECRET_KEY": "", "HOME": "/nonexistent"}
    r = objtool(ws, None, s3.url + "/bkt", "head", "x", env={**none, "AWS_EC2_METADATA_DISABLED": "true"})
    assert r["error"] == "EACCES"
    one_line(r, "no credentials")


def test_anonymous(ws, s3, via):
    via.add(status=200, headers={"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}, body=b"12345")
    r = objtool(ws, None, via.url + "/bkt", "head", "x", env={"ACCESS_KEY": "anonymous"})
    assert r["result"] == 5
    assert "authorization" not in via.seen()[0].headers


def test_profile(ws, s3):
    make_bucket(ws, s3)
    ws.path("home").mkdir()
    ws.path("home/.aws").mkdir()
    ws.path("home/.aws/credentials").write_text(
        "# mine\n[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n"
        "[other]\naws_access_key_id=%s\naws_secret_access_key = %s\n" % (server.ACCESS, server.SECRET)
    )
    env = {"HOME": str(ws.path("home")), "AWS_EC2_METADATA_DISABLED": "true"}
    env.update({"ACCESS_KEY": "", "SECRET_KEY": ""})
    assert objtool(ws, None, s3.url + "/bkt", "head", "x", env=env)["error"] == "EACCES"
    r = objtool(ws, None, s3.url + "/bkt", "head", "x", env={**env, "AWS_PROFILE": "other"})
    assert r["error"] == "ENOENT"


class Imds(http.server.BaseHTTPRequestHandler):
    """IMDSv2: a token by PUT, then the role's name, then keys that soon expire."""

    asked = []

    def log_message(self, *args):
        pass

    def reply(self, text, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_PUT(self):
        assert self.path == "/latest/api/token"
        assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self.reply("the token")

    def do_GET(self):
        if self.headers["X-aws-ec2-metadata-token"] != "the token":
            self.reply("", 401)
        elif self.path.endswith("/security-credentials/"):
            self.reply("the-role")
        else:
            assert self.path.endswith("/the-role")
            self.asked.append(self.path)
            expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
            self.reply(
                json.dumps(
                    {
                        "Code": "Success",
                        "AccessKeyId": "role-key-%d" % len(self.asked),
                        "SecretAccessKey": server.SECRET,
                        "Token": "session+token/%d==" % len(self.asked),
                        "Expiration": expires,
                    }
                )
            )


def test_instance_credentials(ws, s3, via):
    """Keys of a role carry a session token, and are fetched anew when the server calls them old."""
    imds = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Imds)
    threading.Thread(target=imds.serve_forever, daemon=True).start()
    ws.cleanups.append(imds.server_close)
    ws.cleanups.append(imds.shutdown)
    Imds.asked = []
    via.add(times=1, status=400, body=proxy.xml_error("ExpiredToken"))
    etag = hashlib.md5(b"12345").hexdigest()
    via.add(status=206, headers={"Content-Range": "bytes 0-4/5", "ETag": etag}, body=b"12345")
    env = {
        "ACCESS_KEY": "",
        "SECRET_KEY": "",
        "HOME": "/nonexistent",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:%d" % imds.server_port,
    }
    r = get_file(ws, None, via.url + "/bkt", "x", env=env)
    assert r["bytes"] == b"12345" and r["retries"] == 1, r
    assert len(Imds.asked) == 2
    old, new = via.seen()
    assert old.headers["x-amz-security-token"] == "session+token/1=="
    assert new.headers["x-amz-security-token"] == "session+token/2=="
    assert "x-amz-security-token" in new.headers["authorization"]
    assert "role-key-2" in new.headers["authorization"]


def test_clock_skew(ws, s3, via):
    hour_ago = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() - 3600))
    via.add(
        status=403,
        headers={"Date": hour_ago},
        body=proxy.xml_error("RequestTimeTooSkewed", "The difference is too large."),
    )
    r = get_file(ws, s3, via.url + "/bkt", "x")
    assert r["error"] == "EACCES"
    one_line(r, "clock is 36", "s ahead of the server's")


def test_bucket_in_another_region(ws, s3, via):
    via.add(
        status=400,
        body=proxy.xml_error("AuthorizationHeaderMalformed").replace(
            "<Resource>", "<Region>eu-west-1</Region><Resource>"
        ),
    )
    r = get_file(ws, s3, via.url + "/bkt", "x")
    assert r["error"] == "EACCES"
    one_line(r, "in region eu-west-1, not us-east-1")


def test_bucket_missing(ws, s3):
    r = get_file(ws, s3, s3.url + "/nothing-here", "x")
    assert r["error"] == "ENODEV", "a missing bucket must not pass for a missing block"
    one_line(r, "bucket nothing-here does not exist")
    assert put_file(ws, s3, s3.url + "/nothing-here", "x", b"1")["error"] == "ENODEV"


def test_page_of_something_in_between(ws, s3, via):
    """A 404 that is not the bucket's own says nothing about a block."""
    via.add(status=404, body="<html>No such host here</html>")
    assert get_file(ws, s3, via.url + "/bkt", "x")["error"] == "EIO"


def test_put_denied(ws, s3, via):
    """Reads go on, fsync says EIO, the mount lives, and writing works again when it may."""
    vol = S3Volume(ws, s3)
    mnt = vol.mount("bucket=%s/bucket,io-timeout=5" % via.url)
    write(mnt / "f", b"before")
    via.add(method="PUT", status=403, body=proxy.xml_error("AccessDenied"))
    mnt.allow(GAVE_UP)
    mnt.allow("could not be stored|lost|cannot")
    with open(mnt / "g", "wb", buffering=0) as f:
        f.write(b"denied")
        with pytest.raises(OSError) as e:
            os.fsync(f.fileno())
        assert e.value.errno == errno.EIO
        via.clear()
        try:
            os.fsync(f.fileno())
        except OSError:
            pass
    assert read(mnt / "f") == b"before"
    write(mnt / "h", b"after")
    assert read(mnt.remount() / "h") == b"after"


# -- TLS


@pytest.fixture
def tls(ws):
    """A CA, a certificate of 127.0.0.1, one of a client."""

    def openssl(*args):
        subprocess.run(["openssl", *args], check=True, cwd=ws.dir, stderr=subprocess.DEVNULL)

    openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem"),
        *("-subj", "/CN=test CA", "-days", "2"),
    )
    for name in ("host", "client"):
        openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-keyout", name + ".key"),
            *("-out", name + ".csr", "-subj", "/CN=" + name),
        )
        ws.path("ext").write_text("subjectAltName=IP:127.0.0.1\n")
        openssl(
            *("x509", "-req", "-in", name + ".csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-out", name + ".crt", "-days", "2", "-extfile", "ext"),
        )
        ws.path(name + ".pem").write_text(
            ws.path(name + ".crt").read_text() + ws.path(name + ".key").read_text()
        )
    return ws.dir


def test_tls(ws, s3, tls):
    p = proxy.Proxy(s3.address, cert=tls / "host.pem")
    ws.cleanups.append(p.close)
    make_bucket(ws, s3)
    put_file(ws, s3, s3.url + "/bkt", "x", b"over TLS")
    url = p.url + "/bkt"
    r = get_file(ws, s3, url, "x")
    assert r["error"] == "EACCES" and r["ms"] < 5000 * SLOW
    one_line(r, "certificate", "tries=1 ")
    assert get_file(ws, s3, "%s?ca-certs=%s/ca.pem" % (url, tls), "x")["bytes"] == b"over TLS"
    assert get_file(ws, s3, url + "?tls-insecure-skip-verify=true", "x")["bytes"] == b"over TLS"


def test_tls_client_certificate(ws, s3, tls):
    p = proxy.Proxy(s3.address, cert=tls / "host.pem", client_ca=tls / "ca.pem")
    ws.cleanups.append(p.close)
    make_bucket(ws, s3)
    put_file(ws, s3, s3.url + "/bkt", "x", b"for clients")
    url = "%s/bkt?ca-certs=%s/ca.pem" % (p.url, tls)
    assert get_file(ws, s3, url, "x", deadline_ms=3000)["result"] < 0
    url += "&ssl-cert=%s/client.crt&ssl-key=%s/client.key" % (tls, tls)
    assert get_file(ws, s3, url, "x")["bytes"] == b"for clients"


def test_proxy_of_the_environment(ws, s3, via):
    url = make_bucket(ws, s3)
    put_file(ws, s3, url, "x", b"by proxy")
    env = {"http_proxy": via.url, "no_proxy": ""}
    assert get_file(ws, s3, url, "x", env=env)["bytes"] == b"by proxy"
    assert len(via.seen("GET", "/bkt/x")) == 1
    env["no_proxy"] = "127.0.0.1"
    assert get_file(ws, s3, url, "x", env=env)["bytes"] == b"by proxy"
    assert len(via.seen("GET", "/bkt/x")) == 1


# -- what happens on the way


@pytest.fixture
def stored(ws, s3, via):
    """An object of 3 MB with its checksum; url leads through the proxy."""
    make_bucket(ws, s3)
    content = data(3_000_000)
    assert put_file(ws, s3, s3.url + "/bkt", "key", content)["result"] == 0
    return via.url + "/bkt", content


FAULTS = {
    "cut": {"cut": 1_000_000},
    "cut-head": {"refuse": True},
    "shorter": {"shorten": 10},
    "wrong-byte": {"flip": 2_999_999},
    "500": {"status": 500, "body": proxy.xml_error("InternalError")},
    "503": {"status": 503, "body": proxy.xml_error("SlowDown")},
    "502-html": {"status": 502, "body": "<html>Bad gateway</html>"},
    "429": {"status": 429},
    "408": {"status": 400, "body": proxy.xml_error("RequestTimeout")},
}


@pytest.mark.parametrize("name", FAULTS)
def test_get_passes_faults(ws, s3, via, stored, name):
    url, content = stored
    via.add("GET", times=2, **FAULTS[name])
    r = get_file(ws, s3, url, "key")
    assert r["bytes"] == content
    damaged = name == "wrong-byte"
    assert r["damaged"] == 2 * damaged
    assert r["stderr"].count("bytes were damaged") == len(r["stderr"].splitlines()) == damaged
    # a kept connection that ends is replaced by libcurl without being a try
    assert r["retries"] == 2 and len(via.seen("GET")) == 3


@pytest.mark.parametrize("name", FAULTS)
def test_get_never_makes_up_bytes(ws, s3, via, stored, name):
    """The fault stays: an error at the deadline, with one line that counts the tries."""
    url, content = stored
    via.add("GET", **FAULTS[name])
    r = get_file(ws, s3, url, "key", deadline_ms=2500)
    assert r["result"] < 0 and r["ms"] < 4500 * SLOW and r["error"] != "ENOENT"
    if name == "wrong-byte":
        first, r["stderr"] = r["stderr"].split("\n", 1)
        assert "bytes were damaged" in first
    tries = int(re.search(r"tries=(\d+) ", r["stderr"]).group(1))
    assert 3 <= tries and tries - 1 <= len(via.seen("GET")) <= tries and r["retries"] == tries - 1
    one_line(r, "op=get", "key=key", "cause=")


@pytest.mark.parametrize("name", ("cut-head", "500", "503", "429", "cut-request", "lost-answer"))
def test_put_passes_faults(ws, s3, via, stored, name):
    """The body is sent again from its first byte."""
    url, content = stored
    what = {"cut-request": {"cut_request": 1_000_000}, "lost-answer": {"cut": 0, "rewrite": None}}
    fault = FAULTS.get(name) or what[name]
    if name == "lost-answer":
        fault = {"status": 500}
    via.add("PUT", times=2, **fault)
    other = data(5_000_000, 7)
    r = put_file(ws, s3, url, "other", other)
    assert r["result"] == 0 and r["stderr"] == "" and r["retries"] == 2
    assert s3.bucket("bkt").joinpath("other").read_bytes() == other
    r = get_file(ws, s3, url, "other")
    assert r["bytes"] == other


def test_slow_first_byte_and_deadline(ws, s3, via, stored):
    url, content = stored
    via.add("GET", delay=30)
    r = get_file(ws, s3, url, "key", deadline_ms=1000)
    assert r["error"] == "ETIMEDOUT" and 900 <= r["ms"] < 2500 * SLOW
    one_line(r, "deadline")


def test_silent_server_is_asked_again(ws, s3, via, stored):
    url, content = stored
    via.add("GET", delay=30, times=1)
    r = get_file(ws, s3, url, "key", silence_ms=400)
    assert r["bytes"] == content and r["retries"] == 1 and r["ms"] < 5000 * SLOW


def test_slow_is_not_silent(ws, s3, via, stored):
    """A transfer that goes on is not cut, however long it takes."""
    url, content = stored
    via.add("GET", rate=1_500_000)
    r = get_file(ws, s3, url, "key", silence_ms=1000)
    assert r["bytes"] == content and r["retries"] == 0 and r["ms"] > 1500


def test_retry_after(ws, s3, via, stored):
    url, content = stored
    via.add(
        "GET",
        times=1,
        status=503,
        headers={"Retry-After": "2"},
        body=proxy.xml_error("SlowDown", "Please reduce your request rate."),
    )
    r = get_file(ws, s3, url, "key")
    first, second = via.seen("GET")
    assert r["bytes"] == content
    assert 2 <= second.at - first.at < 4 * SLOW


def test_retry_after_beyond_the_deadline(ws, s3, via, stored):
    """A wish that cannot be met does not end the call, and nothing waits past its deadline."""
    url, content = stored
    via.add("GET", times=3, status=503, headers={"Retry-After": "3600"})
    r = get_file(ws, s3, url, "key", deadline_ms=10000)
    assert r["bytes"] == content and r["retries"] == 3
    via.add("GET", status=503, headers={"Retry-After": "3600"})
    r = get_file(ws, s3, url, "key", deadline_ms=1500)
    assert r["error"] == "EBUSY" and 1400 <= r["ms"] < 3000 * SLOW
    one_line(r, "503")


GARBAGE = {
    "no-http": b"\x16\x03\x01\x02 no http at all\r\n\r\n",
    "nothing": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "no-length": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
    "404-without-a-word": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "400-without-a-word": b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n",
    "headers-cut": b"HTTP/1.1 206 Partial Content\r\nContent-Ra",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_answer_that_is_none(ws, s3, via, stored, name):
    """Answers that no bucket gives are tried again: downloads, uploads and listings."""
    url, content = stored
    for method in ("GET", "PUT"):
        via.add(method, times=2, raw=GARBAGE[name])
    assert get_file(ws, s3, url, "key")["bytes"] == content
    assert put_file(ws, s3, url, "new", b"12345")["result"] == 0
    assert s3.bucket("bkt").joinpath("new").read_bytes() == b"12345"
    via.add("GET", r"list-type", times=2, raw=GARBAGE[name])
    assert list_keys(ws, s3, url)["keys"] == ["key", "new"]


def test_pauses_grow(ws, s3, via, stored):
    url, _ = stored
    via.add("GET", status=500)
    get_file(ws, s3, url, "key", deadline_ms=8000)
    assert 4 <= len(via.seen("GET")) <= 40


def test_nobody_listens(ws, s3):
    url = make_bucket(ws, s3)
    s3.stop()
    r = get_file(ws, s3, url, "key", deadline_ms=2000)
    assert r["error"] == "ECONNREFUSED" and r["ms"] < 4000 * SLOW


def test_answer_that_ignores_the_range(ws, s3, via, stored):
    url, content = stored
    via.add("GET", status=200, body=content)
    assert get_file(ws, s3, url, "key", 1_000_000, 5000)["bytes"] == content[1_000_000:1_005_000]
    via.clear()
    via.add("GET", times=1, status=206, headers={"Content-Range": "bytes 0-9/20"}, body=b"0123456789")
    r = get_file(ws, s3, url, "key", 1_000_000, 5000)
    assert r["bytes"] == content[1_000_000:1_005_000] and r["retries"] == 1


def test_connections_are_kept(ws, s3, via, stored):
    url, content = stored
    r = objtool(ws, s3, url, "get", "key", 0, 128 << 10, ws.path("got"), 50)
    assert r["result"] == 128 << 10
    assert via.connections == 1 and len(via.seen("GET")) == 50
    assert not [r for r in via.seen() if "expect" in r.headers]


def test_kept_connection_that_was_closed(ws, s3, via, stored):
    """libcurl's own second try goes back to the first byte of an upload."""
    url, _ = stored
    r = ws.run(
        *("cachefs", "objbench", "--skip-functional-tests", "--storage", "s3", "--threads", "1"),
        *("--big-size", "16M", "--small-objects", "0", url),
        env=s3.keys,
    )
    assert r.returncode == 0, r
    via.clear()
    via.add("PUT", times=1, skip=1, refuse=True)
    r = ws.run(
        *("cachefs", "objbench", "--skip-functional-tests", "--storage", "s3", "--threads", "1"),
        *("--big-size", "16M", "--small-objects", "0", url),
        env=s3.keys,
    )
    assert r.returncode == 0 and r.stderr == "", r


SILENT_NAMES = """
ip link add names type veth peer name nobody
ip addr add 10.9.9.1/24 dev names
ip link set names up
ip link set nobody up
ip neigh add 10.9.9.2 lladdr 02:00:00:00:00:02 dev names
mount --bind "$1" /etc/resolv.conf
shift
exec "$@"
"""


def test_silent_name_server(ws):
    """A call ends at its deadline, whatever the resolver of the C library waits for."""
    conf = ws.path("resolv.conf")
    conf.write_text("nameserver 10.9.9.2\noptions timeout:30 attempts:5\n")
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    place = ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-euc", SILENT_NAMES, "sh", conf]
    call = [BUILD / "tests/s3/objtool", 1000, 15000, "s3", "http://bucket.example:9000/bkt", "head", "k"]
    r = json.loads(ws.run(*place, *call, env=keys).stdout)
    assert r["result"] == -errno.ETIMEDOUT and r["ms"] < 25000


SILENT = [
    # a command, the request that is not answered, and what the command says of it
    (("gc",), "GET", "prefix=", r"object list vol/\S*"),
    (("fsck",), "GET", "prefix=", r"object list vol/\S*"),
    (("destroy", "--yes"), "POST", "delete", r"object delete vol/\S+"),
    (("config", "--bucket"), "GET", "juicefs_uuid", r"object get vol/juicefs_uuid"),
    (("doctor",), "PUT", "vol/", r"object put vol/\S+"),
    (("format",), "GET", "prefix=", r"object list other/"),
    (("objbench", "--skip-speed"), "PUT", "objbench", r"object put cachefs-objbench-\S+"),
]


@pytest.mark.parametrize("command, method, path, waits", SILENT, ids=[c[0][0] for c in SILENT])
def test_a_command_says_which_request_the_bucket_does_not_answer(ws, s3, via, command, method, path, waits):
    """Without the line a silent bucket looks like a command that hangs."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = vol.mount(env=s3.keys)
    write(mnt / "f", b"x" * 5_000_000)
    mnt.umount()
    argv, where = ["cachefs", *command], vol.where
    if command[0] == "config":
        where = where.replace("127.0.0.1", "localhost")
        argv += [where, vol.url]
    elif command[0] == "objbench":
        argv += ["--storage", "s3", vol.where]
    elif command[0] == "format":
        argv += ["--storage", "s3", "--bucket", vol.where, "sqlite3://%s" % ws.path("other.db"), "other"]
    else:
        argv += [vol.url]
    if command[0] == "destroy":
        argv += [vol.setting()["UUID"]]
        ws.volumes.remove(vol)
    via.add(method, path, times=1, delay=4.5)
    r = ws.run(*argv, env=s3.keys)
    told = r"^cachefs %s: waiting for %s at %s \(\d+\.\d s\)$" % (command[0], waits, re.escape(where))
    assert len(re.findall(told, r.stderr, re.M)) == 1, r.stderr
