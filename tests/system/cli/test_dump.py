# SPDX-License-Identifier: Apache-2.0
"""dump and load: a volume can be saved, moved to another engine, and taken over from the other
client; a failure here is data that a user believed to have a copy of."""

import fcntl
import gzip
import json
import os
import pathlib
import re
import resource
import signal
import sqlite3
import struct
import subprocess
import termios
import urllib.parse

import pytest

import cachefs_check
import fixtures
import servers
from admin import gc
from bigdump import big_json
from cachefs import Volume, need_engine, sanitized, tool, wait_until
from ring import failing
from syscalls import data, read, write
from test_fixtures import differences, manifest, nothing, wanted

SQLITE = [n for n in fixtures.SQLITE if not n.startswith("stale")]
KEYS = {"enc": "rsa2048-pkcs1-enc.pem", "encchacha": "rsa2048-pkcs8-enc.pem"}
ENGINES = ["sqlite3", *servers.ENGINES]
# every volume JuiceFS made, in its own engine
ORIGINS = [("sqlite3", n) for n in SQLITE] + [(e, f) for e, (_, f) in servers.ENGINES.items()]
SLICE_GAP = 1 << 32  # of each load
COUNTERS = {"nextInode", "nextChunk", "nextSession", "nextTrash", "usedSpace", "totalInodes"}


@pytest.fixture(autouse=True)
def passphrase(monkeypatch):
    monkeypatch.setenv("JFS_RSA_PASSPHRASE", "fixture-passphrase")


@pytest.fixture
def empty(ws):
    """A META-URL of an empty database of an engine."""

    def make(engine="sqlite3"):
        ws.count += 1
        if engine == "sqlite3":
            return "sqlite3://%s" % ws.path("meta%d.db" % ws.count)
        need_engine(engine)
        db = servers.ENGINES[engine][0]().database()
        ws.cleanups.append(db.drop)
        return db.url

    return make


@pytest.fixture
def origin(ws, empty):
    """The META-URL of a golden volume in its own engine."""

    def make(engine, name):
        if engine == "sqlite3":
            return ws.fixture(name).url
        url = empty(engine)
        db = servers.Database(servers.ENGINES[engine][0](), url.split("?")[0].rpartition("/")[2])
        db.load_fixture(name)
        return url

    return make


def attach(ws, url, name, bucket):
    """A volume with that META-URL whose objects are elsewhere than its setting says."""
    v = Volume(ws, "fix-" + name, format=False, url=url)
    v.bucket = pathlib.Path(bucket)
    v.fixture_name = name
    v.check_options = None
    ws.volumes.append(v)
    return v


def findings(url, bucket, **options):
    # slices that only wait for the end of their trash time are not in a dump: their objects leak
    options = cachefs_check.Options(leaks="ignore", **options)
    return ["%s: %s" % f for f in cachefs_check.check(url, str(bucket), options)[0]]


def dump(ws, url, *args):
    path = ws.path("dump%d" % len(list(ws.dir.glob("dump*"))))
    ws.run("cachefs", "dump", *args, url, path, timeout=60, check=True)
    return path.read_bytes()


def load(ws, url, content, *args, check=True):
    return ws.run("cachefs", "load", *args, url, "-", timeout=60, input=content, check=check)


# -- the binary form


def varint(b, at):
    value = shift = 0
    while True:
        byte = b[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(b):
    at, out = 0, []
    while at < len(b):
        key, at = varint(b, at)
        if key & 7 == 0:
            value, at = varint(b, at)
        else:
            assert key & 7 == 2, key
            n, at = varint(b, at)
            value, at = b[at : at + n], at + n
        out.append((key >> 3, value))
    return out


def segments(raw):
    """[(type, message)], and the footer as a dictionary of its map."""
    at, out = 0, []
    while True:
        (kind,) = struct.unpack_from(">I", raw, at)
        if kind == 0x747083:
            break
        (n,) = struct.unpack_from(">Q", raw, at + 4)
        out.append((kind, at, raw[at + 12 : at + 12 + n]))
        at += 12 + n
    (n,) = struct.unpack(">Q", raw[-8:])
    assert at + 4 + n + 8 == len(raw)
    footer = fields(raw[at + 4 : -8])
    assert footer[:2] == [(1, 0x747083), (2, 1)]
    return out, {dict(fields(v))[1].decode(): fields(dict(fields(v))[2]) for _, v in footer[2:]}


def rows(raw):
    """A binary dump without what may differ: order, segments, times of background jobs."""
    out = {}
    for kind, _, message in segments(raw)[0]:
        if kind == 1:
            out["setting"] = json.loads(fields(message)[0][1])
            continue
        for field, value in fields(message):
            row = dict(fields(value)) if field != 8 else tuple(fields(value))
            if field == 13 and row[1].decode() not in COUNTERS:
                continue
            if field == 13 and row[1] == b"nextChunk":
                row[2] %= SLICE_GAP
            if field == 6 and row.get(3, 0) >= 1 << 63 or field == 6 and not row.get(3):
                continue  # a parent that is none any more
            out.setdefault(field, []).append(sorted(row.items()) if field != 8 else row)
    return {k: v if k == "setting" else sorted(v, key=repr) for k, v in out.items()}


def tree(raw):
    """A JSON dump without the order of lists, and without escapes: JuiceFS escapes fewer bytes."""

    def plain(v):
        if isinstance(v, dict):
            return {plain(k): x % SLICE_GAP if k == "nextChunk" else plain(x) for k, x in v.items()}
        if isinstance(v, str):
            return urllib.parse.unquote(v, errors="surrogateescape")
        if isinstance(v, list) and v and isinstance(v[0], dict) and "pos" not in v[0]:
            return sorted((plain(x) for x in v), key=lambda x: json.dumps(x, sort_keys=True))
        return v

    return plain(json.loads(raw))


# -- against JuiceFS


@pytest.mark.parametrize("engine,name", ORIGINS)
def test_dump_is_the_other_clients(ws, origin, engine, name):
    url = origin(engine, name)
    assert tree(dump(ws, url, "--keep-secrets")) == tree(fixtures.dump(name, "json"))
    want = rows(fixtures.dump(name, "bin"))
    got = rows(dump(ws, url, "--binary"))
    assert set(got) == set(want)
    for part in want:
        assert got[part] == want[part], part


@pytest.mark.parametrize("form", ["json", "bin"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["sqlite", "redis"])
def test_loaded_dump_matches_manifest(ws, empty, engine, name, form):
    url = empty(engine)
    load(ws, url, fixtures.dump(name, form))
    bucket = fixtures.unpack_objects(name, ws.path("objects"))
    vol = attach(ws, url, name, bucket)
    mnt = vol.mount("ro")
    got, want = manifest(ws, mnt), wanted(name)
    nothing(differences(got, want) + differences(got, want, parts=("trash",)))
    mnt.umount()
    nothing(findings(url, bucket))


@pytest.mark.parametrize("name", [n for n in SQLITE if n != "sqlite"] + ["mysql", "postgres"])
def test_every_dump_of_the_other_client_loads(ws, empty, name):
    bucket = fixtures.unpack_objects(name, ws.path("objects"))
    for form in ("json", "bin"):
        url = empty("sqlite3")
        key = ()
        if form == "bin" and name in KEYS:
            r = load(ws, url, fixtures.dump(name, form), check=False)
            assert r.returncode == 2 and "--encrypt-key" in r.stderr
            key = ("--encrypt-key=%s" % (fixtures.HOME / "keys" / KEYS[name]),)
        load(ws, url, fixtures.dump(name, form), *key)
        vol = attach(ws, url, name, bucket)
        mnt = vol.mount("ro")
        nothing(differences(manifest(ws, mnt), wanted(name)))
        mnt.umount()
        # the MySQL volume's own dir_stats are wrong (fixtures README, caution 6)
        nothing([f for f in findings(url, bucket) if name != "mysql" or "dirstat" not in f])


@pytest.mark.parametrize("engine", ENGINES)
def test_moving_between_engines_loses_nothing(ws, empty, origin, engine):
    first = dump(ws, origin("sqlite3", "sqlite"), "--binary")
    url = empty(engine)
    load(ws, url, first)
    want, got = rows(first), rows(dump(ws, url, "--binary"))
    for part in want:
        assert got[part] == want[part], part


@pytest.mark.parametrize("form", ["", "--binary"])
@pytest.mark.parametrize("engine", ENGINES)
def test_loaded_volume_is_fit_for_use(ws, empty, engine, form):
    """Ids given out after the load are fresh; open files without a name end with their session."""
    vol = ws.volume(trash_days=1, enable_acl=True)
    mnt = vol.mount()
    os.makedirs(mnt / "a/b")
    write(mnt / "a/f", data(300_000))
    os.link(mnt / "a/f", mnt / "a/b/link")
    write(mnt / "gone", b"gone")
    os.unlink(mnt / "gone")
    os.symlink("a/f", mnt / "sym")
    os.setxattr(mnt / "a", "user.x", bytes(range(256)))
    mnt.umount()
    url = empty(engine)
    load(ws, url, dump(ws, vol.url, *form.split()))
    vol.check_options = None  # two volumes on one bucket from here on
    other = attach(ws, url, vol.name, vol.bucket)
    other.name, other.fixture_name = vol.name, None
    mnt = other.mount("no-bgjob")
    assert read(mnt / "a/b/link") == data(300_000) and os.stat(mnt / "a/f").st_nlink == 2
    assert os.getxattr(mnt / "a", "user.x") == bytes(range(256))
    assert os.readlink(mnt / "sym") == "a/f"
    old = {os.stat(p).st_ino for p in (mnt / "a", mnt / "a/f", mnt / "a/b", mnt)}
    write(mnt / "new", b"new")
    os.unlink(mnt / "a/b/link")
    assert os.stat(mnt / "new").st_ino not in old
    assert read(mnt / "a/f") == data(300_000)
    mnt.umount()
    nothing(findings(url, vol.bucket, unmounted=True))


def test_open_files_without_a_name_end_with_the_load(ws, empty):
    vol = ws.volume()
    mnt = vol.mount()
    with open(mnt / "open", "wb") as f:
        f.write(b"x" * 5000)
        f.flush()
        os.fsync(f.fileno())
        os.unlink(mnt / "open")
        wait_until(lambda: vol.sql("SELECT 1 FROM jfs_sustained"), 10)
        content = dump(ws, vol.url, "--binary")
    url = empty("sqlite3")
    load(ws, url, content)
    other = attach(ws, url, vol.name, vol.bucket)
    other.name, other.fixture_name = vol.name, None
    mnt2 = other.mount("heartbeat=1")
    wait_until(lambda: not other.sql("SELECT 1 FROM jfs_sustained"), 30)
    wait_until(lambda: not other.sql("SELECT 1 FROM jfs_node WHERE inode > 1 AND nlink = 0"), 30)
    mnt2.umount()
    vol.check_options = None  # the copy has removed the object


@pytest.mark.parametrize("form", ["", "--binary"])
@pytest.mark.parametrize("engine", ENGINES)
def test_replaced_slices_are_left_to_gc(ws, empty, engine, form):
    """No form has a place for slices that wait for the end of their trash time."""
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    for i in range(8):
        with open(mnt / "f", "ab") as f:
            f.write(b"%d" % i * 1000)
    content = read(mnt / "f")
    ws.run("cachefs", "compact", mnt / "f", check=True)
    mnt.umount()
    assert vol.sql("SELECT 1 FROM jfs_delslices")
    url = empty(engine)
    load(ws, url, dump(ws, vol.url, *form.split()))
    vol.check_options = None  # two volumes on one bucket from here on
    other = attach(ws, url, vol.name, vol.bucket)
    other.name, other.fixture_name = vol.name, None
    for path in vol.objects():  # what is of this second may be of a write under way
        os.utime(path, (0, 0))
    before = gc(ws, other, age=0)
    assert before["leaked"]["objects"] == 8 and before["pending"]["objects"] == 0
    assert gc(ws, other, "--delete", age=0)["removed"]["objects"] == 8
    mnt = other.mount("no-bgjob")
    assert read(mnt / "f") == content
    mnt.umount()
    found, _ = cachefs_check.check(url, str(vol.bucket), cachefs_check.Options(unmounted=True))
    nothing(["%s: %s" % f for f in found])


# -- names, secrets, compression


def through_a_dump(ws, empty, vol, form):
    """A mount of what a dump of the volume makes."""
    url = empty("sqlite3")
    dumped = dump(ws, vol.url, *form.split())
    # JuiceFS replaces some of the characters of several bytes that it reads.
    assert form or dumped.isascii()
    load(ws, url, dumped)
    other = attach(ws, url, vol.name, vol.bucket)
    other.name, other.fixture_name = vol.name, None
    return other.mount("ro")


def test_names_survive_both_forms(ws, empty):
    names = [
        b"plain", b"with space", b'quote"back\\slash', b"percent%41", b"\xff\xfe\x80", b"\n\t\x01",
        "snowman \u2603 \U0001f600".encode(), b"\xed\xa0\x80", b"\xc0\xaf", b"x" * 255, b"%", b"a%2",
    ]  # fmt: skip
    vol = ws.volume()
    mnt = os.fsencode(vol.mount().path)
    for n in names:
        os.symlink(n, os.path.join(mnt, n))
    wanted_names = sorted(names)
    for form in ("", "--binary"):
        m = through_a_dump(ws, empty, vol, form)
        top = os.fsencode(m.path)
        assert sorted(n for n in os.listdir(top) if n[:1] != b".") == wanted_names
        assert all(os.readlink(os.path.join(top, n)) == n for n in names)
        m.umount()


def test_names_of_extended_attributes(ws, empty):
    names = ["user.%41", "user.a b", 'user."\\', "user.\u2603\U0001f600\x7f\x80\uffff", "user.\x01", "user.%FF"]
    vol = ws.volume()
    m = vol.mount()
    write(m / "f", b"")
    for n in names:
        os.setxattr(m / "f", n, n.encode())
    m.umount()
    # JuiceFS takes these strings as they are.
    entry = json.loads(dump(ws, vol.url))["FSTree"]["entries"]["f"]
    assert sorted(x["name"] for x in entry["xattrs"]) == sorted(names)
    for form in ("", "--binary"):
        m = through_a_dump(ws, empty, vol, form)
        assert {n: os.getxattr(m / "f", n) for n in os.listxattr(m / "f")} == {n: n.encode() for n in names}
        m.umount()
    # One that is not UTF-8 makes JuiceFS refuse a binary dump: it gets another name.
    vol.sql("UPDATE jfs_xattr SET name = CAST(? AS TEXT) WHERE name = ?", b"user.\xff\xc3", names[0])
    for form in ("", "--binary"):
        path = ws.path("odd" + form)
        r = ws.run("cachefs", "dump", *form.split(), vol.url, path, check=True)
        assert "not UTF-8" in r.stderr and "user.%FF%C3" in r.stderr, r.stderr
        dumped = path.read_bytes()
        assert b"user.%FF%C3" in dumped and b"user.\xff\xc3" not in dumped
        load(ws, empty("sqlite3"), dumped)


def test_secrets_stay_out_unless_asked_for(ws):
    vol = ws.fixture("enc")
    for form in ((), ("--binary",)):
        kept, removed = dump(ws, vol.url, "--keep-secrets", *form), dump(ws, vol.url, *form)
        key = json.loads(vol.sql("SELECT value FROM jfs_setting")[0][0])["EncryptKey"]
        assert key.encode() in kept and key.encode() not in removed and b"removed" in removed
    assert os.stat(ws.path("dump0")).st_mode & 0o777 == 0o600


def test_keys_of_the_bucket_can_be_given_again(ws, empty, monkeypatch):
    """A volume without them opens, so that config can set them; with the environment it has them."""
    setting = {**json.loads(fixtures.dump("sqlite", "json"))["Setting"], "AccessKey": "me"}
    content = json.loads(fixtures.dump("sqlite", "json"))
    content["Setting"] = {**setting, "SecretKey": "removed", "KeyEncrypted": True}
    content = json.dumps(content).encode()

    def secret(url):
        db = sqlite3.connect(url[len("sqlite3://") :])
        (text,) = db.execute("SELECT value FROM jfs_setting").fetchone()
        db.close()
        assert "removed" not in text and "opensesame" not in text
        return json.loads(text).get("SecretKey", "")

    url = empty("sqlite3")
    assert "config --keys" in load(ws, url, content).stderr
    assert secret(url) == "" and ws.run("cachefs", "status", url).returncode == 0
    monkeypatch.setenv("SECRET_KEY", "opensesame")
    url = empty("sqlite3")
    assert load(ws, url, content).stderr == ""
    assert len(secret(url)) > 20 and ws.run("cachefs", "status", url).returncode == 0


def test_a_dump_that_is_killed_leaves_nothing(ws, empty):
    url = empty("sqlite3")
    load(ws, url, fixtures.dump("sqlite", "json"))
    where = ws.path("dumps")
    where.mkdir()
    write(where / "dump.json", b"the one of yesterday")
    run = ["bash", "-c", 'cd %s; eval "$1"; shift; "$@"; exit $?' % where, "-"]
    dump_it = [tool("cachefs"), "dump", url, "dump.json"]
    for env, status in (failing(ws, KILLED_AFTER_WRITE="1"), -signal.SIGKILL), (None, 2):
        r = ws.run(*run, "ulimit -f 36", *dump_it, env=env)
        assert r.returncode == (status if status > 0 else 128 - status), r
        assert os.listdir(where) == ["dump.json"]
    assert read(where / "dump.json") == b"the one of yesterday"
    ws.run("cachefs", "dump", url, where / "dump.json", check=True)
    assert os.listdir(where) == ["dump.json"]
    assert os.stat(where / "dump.json").st_mode & 0o777 == 0o600
    ws.run(*run, "", *dump_it, check=True)
    assert json.loads(read(where / "dump.json"))["FSTree"]


def test_names_of_a_volume_in_use_have_their_inodes(ws):
    """A backup made while files were created has no names without an inode."""
    vol = ws.volume()
    mnt = vol.mount()
    for i in range(5000):
        write(mnt / ("%0200d" % i), b"")
    p = ws.popen([tool("cachefs"), "dump", "--binary", vol.url], stdout=subprocess.PIPE)

    def waiting():  # the pipe is full
        return fcntl.ioctl(p.stdout, termios.FIONREAD, bytes(4)) == struct.pack("i", 65536)

    wait_until(waiting, 20)
    os.mkdir(mnt / "~new")
    for i in range(50):
        write(mnt / ("~new/%d" % i), b"")
    raw = p.stdout.read()
    assert p.wait(20) == 0
    got = rows(raw)
    inodes = {dict(row)[1] for row in got[1]}
    named = {dict(row)[2] for row in got[2]}
    assert len(named) >= 5000 and not named - inodes


@pytest.mark.parametrize("form", ([], ["--binary"]))
def test_a_dump_that_fails_says_what_of(ws, form):
    """The disk of the dump, that of temporary files and the database may each be the reason."""
    vol = ws.volume()
    mnt = vol.mount()
    write(mnt / "f", b"x" * 100_000)
    ino = os.stat(mnt / "f").st_ino
    mnt.umount()
    for out in ([], ["/dev/full"]):
        with open("/dev/full", "wb") as full:
            r = subprocess.run(
                [tool("cachefs"), "dump", *form, vol.url, *out],
                env=ws.env(),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
            )
        where = out[0] if out else "standard output"
        assert r.returncode == 2 and "cannot write %s: No space" % where in r.stderr, r.stderr
    if not form:
        r = ws.run("cachefs", "dump", vol.url, env={"TMPDIR": "/not/there"})
        assert r.returncode == 2 and "dir=/not/there" in r.stderr, r.stderr
    vol.check_options = None
    vol.sql("UPDATE jfs_chunk SET slices=x'0102'")
    r = ws.run("cachefs", "dump", *form, vol.url)
    assert r.returncode == 2 and "inode %d" % ino in r.stderr and "fsck" in r.stderr, r.stderr


def test_compression_follows_the_name(ws, empty):
    vol = ws.fixture("sqlite")
    plain = dump(ws, vol.url, "--binary")
    magic = {"d.gz": b"\x1f\x8b", "d.zst": b"\x28\xb5\x2f\xfd", "d.zstd": b"\x28\xb5\x2f\xfd"}
    for name, start in magic.items():
        ws.run("cachefs", "dump", "--binary", vol.url, ws.path(name), check=True)
        content = ws.path(name).read_bytes()
        assert content.startswith(start)
        url = empty("sqlite3")
        load(ws, url, content)
        assert rows(dump(ws, url, "--binary")) == rows(plain)
        cut = load(ws, empty("sqlite3"), content[: len(content) // 2], check=False)
        assert cut.returncode == 2 and cut.stderr
    out = subprocess.run(
        [tool("cachefs"), "dump", "--binary", "--compress=gzip", vol.url, "-"],
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    ).stdout
    assert gzip.decompress(out) == plain


# -- refusals


def test_load_needs_an_empty_database(ws):
    vol = ws.fixture("sqlite")
    before = vol.sql("SELECT * FROM jfs_node")
    r = load(ws, vol.url, fixtures.dump("sqlite", "bin"), check=False)
    assert r.returncode == 2 and "empty database" in r.stderr
    r = load(ws, vol.url, fixtures.dump("sqlite", "json"), "--restart", check=False)
    assert r.returncode == 2 and "empty database" in r.stderr
    assert vol.sql("SELECT * FROM jfs_node") == before


@pytest.mark.parametrize("form", ["json", "bin"])
def test_damaged_dump_leaves_nothing(ws, empty, form):
    whole = fixtures.dump("sqlite", form)
    url = empty("sqlite3")
    for n in (0, 1, 40, 600, len(whole) // 2, len(whole) - 9, len(whole) - 3):
        r = load(ws, url, whole[:n], check=False)
        assert r.returncode == 2 and "cachefs load: " in r.stderr, n
    r = load(ws, url, whole + b"{}", check=False)
    assert r.returncode == 2
    assert ws.run("cachefs", "status", url).returncode == 2
    load(ws, url, whole)
    attach(ws, url, "sqlite", fixtures.unpack_objects("sqlite", ws.path("o")))


@pytest.mark.parametrize("form", ["json", "bin"])
@pytest.mark.parametrize("engine", ["sqlite3", "postgres", "mysql"])
def test_what_a_dump_has_twice_is_named(ws, empty, engine, form):
    """The names of one directory, one of them as long as the other so that the binary form remains whole."""
    whole = fixtures.dump("sqlite", form)
    r = load(ws, empty(engine), whole.replace(b"big5m", b"empty"), check=False)
    assert r.returncode == 2 and re.search(r"a name twice in the directory with inode \d+: empty$", r.stderr, re.M), r.stderr
    if form == "json":
        inode = int(re.search(rb'"xattrs": {\s*"attr": {"inode":(\d+)', whole).group(1))
        r = load(ws, empty(engine), whole.replace(b'"trusted.t"', b'"user.big"'), check=False)
        assert r.returncode == 2 and re.search("a row twice: inode %d$" % inode, r.stderr, re.M), r.stderr


@pytest.mark.parametrize("form", ["json", "bin"])
@pytest.mark.parametrize("name", [b"big/m", b"big\0m"])
def test_names_that_no_kernel_takes_are_refused(ws, empty, form, name):
    """One of them, and the directory cannot be listed at all."""
    whole = fixtures.dump("sqlite", form)
    assert b"big5m" in whole
    json_name = name.replace(b"\0", b"\\u0000") if form == "json" else name
    r = load(ws, empty("sqlite3"), whole.replace(b"big5m", json_name), check=False)
    assert r.returncode == 2 and "cachefs load: " in r.stderr, r.stderr


@pytest.mark.parametrize("number", ["1-2", "-", "+5", "9" * 30, "1.5", "0x10"])
def test_numbers_that_are_none_are_refused(ws, empty, number):
    whole = fixtures.dump("sqlite", "json")
    bad = re.sub(rb'("nextChunk": )\d+', rb"\g<1>" + number.encode(), whole, count=1)
    assert bad != whole
    r = load(ws, empty("sqlite3"), bad, check=False)
    assert r.returncode == 2 and "number" in r.stderr, r.stderr


def test_what_a_later_version_added_does_not_change_the_rest(ws, empty):
    url = empty("sqlite3")
    whole = json.loads(fixtures.dump("sqlite", "json"))

    def each(entry, fn):
        if isinstance(entry, dict):
            for x in entry.get("xattrs", ()):
                fn(x)
            for below in entry.get("entries", {}).values():
                each(below, fn)

    want = []
    each(whole["FSTree"], lambda x: want.append(dict(x)))
    assert want
    each(whole["FSTree"], lambda x: x.update(more="y" * 3000, kind=5, list=[{"a": None}]))
    load(ws, url, json.dumps(whole).encode())
    got = []
    each(json.loads(dump(ws, url))["FSTree"], got.append)
    plain = lambda l: sorted((x["name"], urllib.parse.unquote_to_bytes(x["value"])) for x in l)
    assert plain(got) == plain(want)

    def turn(x):
        value, name = x.pop("value"), x.pop("name")
        x.update(value=value, name=name)

    each(whole["FSTree"], turn)
    r = load(ws, empty("sqlite3"), json.dumps(whole).encode(), check=False)
    assert r.returncode == 2 and "extended attribute" in str(r.stderr), r


@pytest.mark.parametrize("form", [[], ["--binary"]])
@pytest.mark.parametrize("engine", ["sqlite3", "redis"])
def test_every_owner_has_a_row_after_a_load(ws, empty, engine, form):
    """A dump may have rows of those with limits only, and usage from before its inodes."""
    vol = ws.volume(trash_days=1)
    ws.run("cachefs", "quota", "set", vol.url, "--uid", "1001", "--inodes", "50", check=True)
    ws.run("cachefs", "quota", "set", vol.url, "--gid", "7", "--capacity", "1", check=True)
    mnt = vol.mount()
    for i, (uid, gid) in enumerate([(1001, 7), (1002, 7), (1003, 1003), (0, 4_000_000_000)]):
        write(mnt / ("f%d" % i), data(10_000 * i))
        os.chown(mnt / ("f%d" % i), uid, gid)
    os.link(mnt / "f1", mnt / "again")
    os.unlink(mnt / "f2")
    mnt.umount()
    query = "SELECT qtype,qkey,max_space,max_inodes,used_space,used_inodes FROM jfs_user_group_quota"
    usage = {r[:2]: r[4:] for r in vol.sql(query) if r[5]}
    assert len(usage) == 4 + 4
    vol.sql("DELETE FROM jfs_user_group_quota WHERE max_space<=0 AND max_inodes<=0")
    vol.sql("UPDATE jfs_user_group_quota SET used_space=used_space+4096,used_inodes=used_inodes+1")
    url = empty(engine)
    load(ws, url, dump(ws, vol.url, *form))
    ws.run("cachefs", "quota", "repair", vol.url, check=True)
    again = dump(ws, url, "--binary")
    rows_of = {n: [dict(fields(v)) for kind, _, m in segments(again)[0] if kind == 13 for f, v in fields(m) if f == n]
               for n in (15, 16)}
    got = {(n - 14, r.get(1, 0)): (r.get(4, 0), r.get(5, 0)) for n in (15, 16) for r in rows_of[n]}
    assert got == usage
    limits = {
        (n - 14, r.get(1, 0), f): r[f] for n in (15, 16) for r in rows_of[n] for f in (2, 3) if 0 < r.get(f, 0) < 1 << 63
    }
    assert limits == {(1, 1001, 3): 50, (2, 7, 2): 1 << 30}
    r = ws.run("cachefs", "fsck", url, "--bucket", str(vol.bucket) + "/")
    assert r.returncode == 0, r.stdout + r.stderr


@pytest.mark.parametrize("form", [[], ["--binary"]])
@pytest.mark.parametrize("engine", ["sqlite3", "redis"])
def test_settings_of_other_clients_survive(ws, empty, engine, form):
    """With secrets or without, what this client does not know and what it cannot count to."""
    vol = ws.volume(format=False)
    ws.run("cachefs", *vol.format_args(), check=True, env={"SECRET_KEY": "geheim", "ACCESS_KEY": "me"})
    later = vol.setting() | {"Capacity": 10**10 << 30, "Inodes": (1 << 64) - 1, "Later": {"deep": [1 << 63, 10**30]}}
    later["Tiers"]["0"]["LaterDays"] = (1 << 64) - 1
    vol.sql("UPDATE jfs_setting SET value=? WHERE name='format'", json.dumps(later))
    for keep in [[], ["--keep-secrets"]]:
        url = empty(engine)
        ws.run("cachefs", "load", url, "-", input=dump(ws, vol.url, *form, *keep), check=True)
        again = dump(ws, url, *form, "--keep-secrets")
        got = rows(again)["setting"] if form else json.loads(again)["Setting"]
        ignored = {} if keep else {"SecretKey": None}
        assert got | ignored == later | ignored


def test_deep_tree_loads(ws, empty):
    """Deeper than the stack would hold of what is known of each level."""
    d = json.loads(fixtures.dump("sqlite", "json"))
    top, depth = d["FSTree"]["attr"], 9000
    tree = ",".join(
        '"entries":{"d":{"attr":%s' % json.dumps({**top, "inode": 10000 + i}) for i in range(depth)
    )
    text = '{"Setting":%s,"FSTree":{"attr":%s,%s%s}' % (
        json.dumps(d["Setting"]), json.dumps(top), tree, "}}" * depth + "}",
    )
    url = empty("sqlite3")
    assert "%d inodes" % (depth + 1) in load(ws, url, text.encode()).stdout


def test_blocks_after_an_old_dump_are_not_those_before(ws):
    """Blocks are called by numbers, and caches keep them: a number that was given out after the dump
    must not be given out again."""
    vol = ws.volume()
    cached = "cache-dir=%s,cache-large-write" % ws.path("cache")
    mnt = vol.mount(cached)
    write(mnt / "before", data(5000))
    mnt.umount()
    old = dump(ws, vol.url, "--binary")
    mnt = vol.mount(cached)
    write(mnt / "after", data(8 << 20, 1))
    assert read(mnt / "after") == data(8 << 20, 1)
    mnt.umount()
    vol.check_options = None
    url = "sqlite3://%s" % ws.path("rescued.db")
    load(ws, url, old)
    rescued = Volume.__new__(Volume)
    rescued.attach(ws, vol.name, url, vol.bucket)
    rescued.check_options = None
    for i in range(2):
        mnt = rescued.mount(cached)
        if not i:
            write(mnt / "new", data(8 << 20, 2))
        assert read(mnt / "new") == data(8 << 20, 2)
        mnt.umount()


@pytest.mark.parametrize("engine", servers.ENGINES)
def test_name_twice_is_refused(ws, empty, engine):
    """Rows go to the server many at a time: a bad one among them leaves nothing of the others."""
    url, whole = empty(engine), fixtures.dump("sqlite", "json")
    r = load(ws, url, whole.replace(b'"big5m"', b'"empty"'), check=False)
    if engine != "redis":  # where the later one stays, and gc finds the other
        assert r.returncode == 2 and "twice" in r.stderr, r.stderr
        assert ws.run("cachefs", "status", url).returncode == 2
        load(ws, url, whole)
    assert ws.run("cachefs", "status", url).returncode == 0


def test_half_a_load_is_no_volume(ws, empty):
    """Killed in the middle: no mount takes it for a volume, and --restart cleans up."""
    url = empty("sqlite3")
    whole = fixtures.dump("sqlite", "bin")
    p = ws.popen([tool("cachefs"), "load", url, "-"], stdin=subprocess.PIPE)
    p.stdin.write(whole[:5000])
    p.stdin.flush()

    def begun():
        try:
            db = sqlite3.connect(url[len("sqlite3://") :])
            return db.execute("SELECT 1 FROM jfs_setting").fetchall()
        except sqlite3.Error:
            return False

    wait_until(begun, 20)
    r = ws.run("cachefs", "status", url)
    assert r.returncode == 2 and "MetaVersion" in r.stderr
    p.kill()
    p.wait(20)
    r = load(ws, url, whole, check=False)
    assert r.returncode == 2 and "--restart" in r.stderr
    for more in ([], ["--force"]):
        r = ws.run("cachefs", "format", url, "fix-sqlite", "--bucket", ws.path("b"), *more)
        assert r.returncode == 2 and "--restart" in r.stderr, r.stderr
    assert ws.run("cachefs", "status", url).returncode == 2
    load(ws, url, whole, "--restart")
    assert rows(dump(ws, url, "--binary")) == rows(whole)


def test_a_load_that_another_one_followed_leaves_it_alone(ws, empty):
    """One that waited for its dump, and was taken for dead: it must not remove a volume in use."""
    url = empty("sqlite3")
    whole = fixtures.dump("sqlite", "bin")
    for rest in (b"", b"damaged", whole[5000:]):
        p = ws.popen(
            [tool("cachefs"), "load", url, "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        p.stdin.write(whole[:5000])
        p.stdin.flush()
        wait_until(lambda: "MetaVersion" in ws.run("cachefs", "status", url).stderr, 20)
        load(ws, url, whole, "--restart")
        assert p.communicate(rest, timeout=20)[1] and p.returncode == 2
        assert rows(dump(ws, url, "--binary")) == rows(whole)
        url = empty("sqlite3")


# -- size


@pytest.mark.skipif(sanitized(), reason="sanitizers take memory of their own")
def test_memory_does_not_grow_with_the_volume(ws, empty):
    """200 000 files, whose dump alone is larger than what the commands may use."""
    n, limit = 200_000, 36 << 20
    path = ws.path("big.json")
    with open(path, "w") as f:
        f.writelines(big_json(n))

    def run(*argv):
        p = subprocess.run(
            [tool("cachefs"), *map(str, argv)],
            env=ws.env(),
            capture_output=True,
            timeout=120,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
        )
        assert p.returncode == 0, p.stderr

    first, second = empty("sqlite3"), empty("sqlite3")
    run("load", first, path)
    run("dump", first, ws.path("again.json"))
    run("dump", "--binary", first, ws.path("again.bin"))
    run("load", second, ws.path("again.bin"))
    db = sqlite3.connect(second[len("sqlite3://") :])
    for table, want in (("node", n + n // 1000 + 1), ("edge", n + n // 1000), ("chunk_ref", n)):
        assert db.execute("SELECT COUNT(*) FROM jfs_" + table).fetchone() == (want,)
    db.close()
    assert os.path.getsize(path) > 1.2 * limit
