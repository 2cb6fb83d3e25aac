# SPDX-License-Identifier: Apache-2.0
"""format, status, info, umount, version: what a user types and what a script reads."""

import hashlib
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess

import pytest

import changelog
from cachefs import BIN, REPO, tool, wait_until
from syscalls import data, read, write


def test_format_makes_what_the_other_client_makes(ws):
    vol = ws.volume(name="my-vol", trash_days=1)
    s = vol.setting()
    assert s["Name"] == "my-vol" and s["Storage"] == "file" and s["BlockSize"] == 4096
    assert s["Bucket"] == "%s/" % vol.bucket and s["TrashDays"] == 1 and s["MetaVersion"] == 1
    assert s["DirStats"] is True and s["EnableACL"] is False
    assert re.match(r"^1\.\d+\.\d+", s["MinClientVersion"])
    counters = dict(vol.sql("SELECT name, value FROM jfs_counter"))
    assert counters.pop("nextCleanupSlices", 0) == 0
    assert counters == {
        "nextInode": 2,
        "nextChunk": 1,
        "nextSession": 0,
        "usedSpace": 0,
        "totalInodes": 0,
    }
    nodes = vol.sql(
        "SELECT inode, type, mode, uid, gid, nlink, length, parent FROM jfs_node ORDER BY inode"
    )
    assert nodes == [
        (1, 2, 0o777, 0, 0, 2, 4096, 1),
        (0x7FFFFFFF10000000, 2, 0o555, 0, 0, 2, 4096, 1),
    ]
    assert vol.sql("PRAGMA journal_mode") == [("wal",)]
    assert read(vol.bucket / "my-vol/juicefs_uuid").decode() == s["UUID"]
    assert [p.name for p in (vol.bucket / "my-vol").iterdir() if p.name != "testing"] == [
        "juicefs_uuid"
    ]


def test_schema_is_the_other_clients(ws):
    """Index names matter: an index of another name makes the peer build its own beside it."""
    import fixtures

    vol = ws.volume()
    want = sqlite3.connect(
        "file:%s?mode=ro&immutable=1" % (fixtures.HOME / "stale-sqlite/meta.db"), uri=True
    )
    q = "SELECT name FROM sqlite_master WHERE name LIKE '%jfs_%' ORDER BY name"
    assert {r[0] for r in want.execute(q)} <= {r[0] for r in vol.sql(q)}
    for (name,) in want.execute(
        "SELECT name FROM sqlite_master WHERE type='table' AND name LIKE 'jfs_%'"
    ):
        info = "PRAGMA table_info(%s)" % name
        strip = [(c[1], c[2].upper(), c[3], c[5]) for c in want.execute(info)]
        assert [(c[1], c[2].upper(), c[3], c[5]) for c in vol.sql(info)] == strip, name
    want.close()


@pytest.mark.parametrize(
    "name", ["a", "UPPER", "under_score", "-lead", "trail-", "a" * 64, "a/b", ""]
)
def test_format_refuses_bad_names(ws, name):
    vol = ws.volume(format=False)
    r = ws.run("cachefs", "format", vol.url, name, "--storage", "file", "--bucket", vol.bucket)
    assert r.returncode != 0 and r.stderr.strip()
    assert not vol.db.exists() or vol.sql(
        "SELECT count(*) FROM sqlite_master WHERE name='jfs_setting'"
    ) == [(0,)]


@pytest.mark.parametrize(
    "options",
    [
        {"block_size": "3"},
        {"block_size": "64M"},
        {"compress": "gzip"},
        {"trash_days": "-1"},
        {"storage": "ftp"},
        {"storage": ""},
        {"bucket": ""},  # of a script whose variable is not set
        {"capacity": "much"},
        {"capacity": "9000000000"},  # GiB: more than numbers of the setting hold
    ],
)
def test_format_refuses_bad_values(ws, options):
    vol = ws.volume(format=False)
    r = ws.run("cachefs", *vol.format_args(**options))
    assert r.returncode != 0 and r.stderr.strip()
    vol.check_options = None


def test_format_again(volume, ws):
    uuid = volume.setting()["UUID"]
    mnt = volume.mount()
    write(mnt / "f", b"x")
    mnt.umount()
    for options in ({"block_size": "1M"}, {"hash_prefix": True}, {"compress": "lz4"}):
        r = ws.run("cachefs", *volume.format_args(**options))
        assert r.returncode != 0 and r.stderr.strip()
    r = ws.run(
        "cachefs", "format", volume.url, "other", "--storage", "file", "--bucket", volume.bucket
    )
    assert r.returncode != 0
    volume.format(capacity="10G", trash_days=3)
    s = volume.setting()
    assert (s["UUID"], s["BlockSize"], s["TrashDays"], s["Capacity"]) == (uuid, 4096, 3, 10 << 30)
    mnt = volume.mount()
    assert read(mnt / "f") == b"x"


def test_format_again_changes_only_what_is_given(ws, volume):
    """A script that formats a volume at each start does not undo later configuration."""
    config = ["config", volume.url, "--capacity=9G", "--inodes=100", "--trash-days=5", "--keys"]
    keys = {"ACCESS_KEY": "a", "SECRET_KEY": "s"}
    ws.run("cachefs", *config, "--upload-limit=7", "--enable-acl=true", env=keys, check=True)
    ws.run("cachefs", "quota", "set", "--uid=7", "--inodes=5", volume.url, check=True)
    before = volume.setting()
    ws.run("cachefs", "format", volume.url, "vol", check=True)
    assert volume.status()["setting"]["SecretKey"] == "***"
    secret = "SecretKey"  # sealed anew
    assert {**volume.setting(), secret: ""} == {**before, secret: ""}
    ws.run("cachefs", "format", volume.url, "vol", "--inodes=0", check=True)
    del before["Inodes"]
    assert {**volume.setting(), secret: ""} == {**before, secret: ""}
    for more in ("--trash-days=0", "--bucket=/elsewhere", "--storage=mem", "--no-dir-stats"):
        r = ws.run("cachefs", "format", volume.url, "vol", more)
        assert r.returncode == 2 and "cachefs config" in r.stderr, r.stderr
    ws.run("cachefs", "config", volume.url, "--min-client-version=9.0.0", "--force", check=True)
    r = ws.run("cachefs", "format", volume.url, "vol", "--capacity=1")
    assert r.returncode == 2 and "9.0.0" in r.stderr, r.stderr


def test_format_again_keeps_the_key_of_an_encrypted_volume(ws):
    """The database has the only copy: without it nobody reads the objects again."""
    vol = ws.fixture("enc")
    before = vol.setting()
    for more in ([], ["--force"]):
        argv = ["cachefs", "format", vol.url, "fix-enc", "--capacity=5G", *more]
        ws.run(*argv, check=True)
        after = vol.setting()
        assert after.pop("Capacity") == 5 << 30 and after["EncryptKey"]
        assert {**after, "EncryptKey": ""} == {**before, "EncryptKey": ""}
    mnt = vol.mount("ro", env={"JFS_RSA_PASSPHRASE": "fixture-passphrase"})
    assert hashlib.sha256(read(mnt / "random100k")).hexdigest().startswith("747a8a96071366b5")


def test_format_leaves_the_place_of_another_volume_alone(ws, volume):
    """Blocks are called by numbers: two volumes of one name would write over each other's."""
    mnt = volume.mount()
    write(mnt / "f", data(300_000))
    mnt.umount()
    before = {p: read(p) for p in volume.objects()}
    twin = ws.volume(name="twin", format=False)
    argv = ["cachefs", "format", twin.url, "vol", "--storage=file", "--bucket", volume.bucket]
    for more in ([], ["--force"]):
        r = ws.run(*argv, *more)
        assert r.returncode != 0 and "vol is there already" in r.stderr, r.stderr
        assert ws.run("cachefs", "status", twin.url).returncode != 0
    assert {p: read(p) for p in volume.objects()} == before
    assert read(volume.bucket / "vol/juicefs_uuid").decode() == volume.setting()["UUID"]
    # what a probe has left is no volume
    (twin.bucket / "twin/testing").mkdir(parents=True)
    write(twin.bucket / "twin/testing/0123456789", b"left")
    ws.run("cachefs", *twin.format_args(), check=True)
    (twin.bucket / "twin/testing/0123456789").unlink()


def test_no_command_judges_objects_of_another_volume(ws, volume):
    """By the wrong --bucket, or a second volume of that name: all its objects would be leaked."""
    mnt = volume.mount()
    write(mnt / "f", data(300_000))
    mnt.umount()
    other = ws.volume(name="other")
    twin = ws.volume(name="twin", format=False)
    ws.run(
        "cachefs", "format", twin.url, "vol", "--storage=file", "--bucket", volume.bucket,
        "--no-check", check=True,
    )
    uuid = twin.setting()["UUID"]
    for argv in (
        ["gc", twin.url, "--delete", "--age=1s"],
        ["gc", twin.url],
        ["fsck", twin.url],
        ["destroy", twin.url, uuid, "--yes"],
    ):
        r = ws.run("cachefs", *argv)
        assert r.returncode == 2 and "another volume" in r.stderr, r.stderr
    point = ws.path("point")
    point.mkdir()
    for more in ([], ["-o", "ro"]):
        r = ws.run("cachefs", "mount", *more, twin.url, point)
        assert r.returncode != 0 and "another volume" in r.stderr, r.stderr
        assert not os.path.ismount(point)
    assert read(volume.mount() / "f") == data(300_000)
    assert other.setting()["UUID"] != uuid
    twin.check_options = None


def test_force_keeps_the_identity_of_a_volume(ws, volume):
    """Its id names its cache directories, with what is not uploaded yet, and its objects."""
    uuid = volume.setting()["UUID"]
    volume.format(force=True, trash_days=5)
    assert (volume.setting()["UUID"], volume.setting()["TrashDays"]) == (uuid, 5)
    ws.run("cachefs", "gc", volume.url, "--delete", check=True)


def test_format_of_an_unusable_bucket(ws):
    write(ws.path("file"), b"")
    vol = ws.volume(format=False)
    r = ws.run("cachefs", *vol.format_args(bucket=ws.path("file")))
    assert r.returncode != 0 and r.stderr.strip()
    vol.check_options = None


def test_status(volume, ws):
    mnt = volume.mount()
    write(mnt / "f", data(10_000))
    s = volume.status()
    assert s["setting"]["Name"] == "vol" and s["setting"]["UUID"] == volume.setting()["UUID"]
    (session,) = s["sessions"]
    assert session["info"]["MountPoint"] == str(mnt.path)
    assert session["info"]["ProcessID"] == mnt.pid()
    assert re.match(r"^1\.4\.1", session["info"]["Version"])
    # usage reaches the counters within a second or so
    wait_until(lambda: volume.status()["usage"]["used_bytes"] == 12288, 10, "the usage")
    assert volume.status()["usage"]["used_inodes"] == 1
    text = ws.run("cachefs", "status", volume.url, check=True).stdout
    assert "vol" in text and str(mnt.path) in text
    assert "capacity:" not in text and "inodes: " not in text
    mnt.umount()
    ws.run("cachefs", "config", "--capacity=5", "--inodes=7000", volume.url, check=True)
    text = ws.run("cachefs", "status", volume.url, check=True).stdout
    assert "\ncapacity:    5.0 GiB\n" in text and "\ninodes:      at most 7000\n" in text
    assert volume.status()["sessions"] == []


def test_read_only_mount_has_no_session(volume):
    volume.mount("ro")
    assert volume.status()["sessions"] == []


def test_info(volume, ws, mnt):
    write(mnt / "f", data(5_000_000))
    os.mkdir(mnt / "d")
    os.link(mnt / "f", mnt / "d/g")
    i = json.loads(ws.run("cachefs", "info", mnt / "f", "--json", check=True).stdout)
    assert i["inode"] == os.stat(mnt / "f").st_ino and i["length"] == 5_000_000 and i["nlink"] == 2
    assert sorted(i["paths"]) == ["/d/g", "/f"]
    slices = [s for c in i["chunks"] for s in c["slices"]]
    assert sum(s["len"] for s in slices) == 5_000_000
    objects = {o for s in slices for o in s["objects"]}
    have = {str(p.relative_to(volume.bucket)) for p in volume.objects()}
    assert objects == have or {"vol/" + o for o in objects} == have
    assert str(i["inode"]) in ws.run("cachefs", "info", mnt / "f", check=True).stdout
    assert ws.run("cachefs", "info", mnt / "d", check=True).returncode == 0
    for path in (mnt / "nothing", "/etc/passwd"):
        r = ws.run("cachefs", "info", path)
        assert r.returncode != 0 and r.stderr.strip()


def test_info_of_a_sparse_file(ws, mnt):
    """Data far behind a hole was not shown."""
    with open(mnt / "f", "wb") as f:
        for chunk in (0, 20_000, 250_000):
            f.seek(chunk << 26)
            f.write(b"x")
    i = json.loads(ws.run("cachefs", "info", mnt / "f", "--json", check=True).stdout)
    assert [c["index"] for c in i["chunks"]] == [0, 20_000, 250_000] and not i["truncated"]


def test_version(ws):
    text = ws.run("cachefs", "version", check=True).stdout
    assert re.search(r"\d+\.\d+", text)
    v = json.loads(ws.run("cachefs", "version", "--json", check=True).stdout)
    here = [f.name[len("cachefs-") : -len(".so")] for f in BIN.glob("cachefs-*.so")]
    assert re.search("^modules:(.*)$", text, re.M)[1].split() == sorted(here)
    assert sorted(name for name, fault in v["modules"].items() if fault is None) == sorted(here)
    assert ws.run("cachefs", "--version").returncode == 0
    shutil.copy(tool("cachefs"), ws.path("alone"))
    text = ws.run(ws.path("alone"), "version", check=True).stdout
    assert "module cachefs-redis.so is not installed in /" in text


def test_version_tells_builds_apart(ws):
    """Two builds between releases have one version, and differ in what they do."""
    v = json.loads(ws.run("cachefs", "version", "--json", check=True).stdout)
    assert "(build %s," % v["build"] in ws.run("cachefs", "version", check=True).stdout
    if not (REPO / ".git").exists():
        assert v["build"] == v["version"]
        return
    commit = v["build"].removesuffix("-dirty").rpartition("-g")[2]
    git = ["git", "-c", "safe.directory=*", "-C", REPO]
    assert subprocess.run([*git, "cat-file", "-e", commit + "^{commit}"], timeout=30).returncode == 0, v


@pytest.mark.parametrize("command", ["format", "mount", "status", "info", "umount", "version"])
def test_help(ws, command):
    r = ws.run("cachefs", command, "--help")
    assert r.returncode == 0 and command in r.stdout and not r.stderr
    top = ws.run("cachefs", "--help")
    assert top.returncode == 0 and command in top.stdout


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["no-such-command"],
        ["format"],
        ["mount", "x"],
        ["status"],
        ["status", "--no-such-option", "x"],
        ["umount"],
        ["info"],
    ],
)
def test_usage_errors(ws, argv):
    r = ws.run("cachefs", *argv)
    assert r.returncode == 1 and r.stderr.strip()


def test_umount_of_something_else(ws):
    ws.path("d").mkdir()
    for path in (ws.path("d"), ws.path("nowhere"), "/proc"):
        r = ws.run("cachefs", "umount", path)
        assert r.returncode != 0 and r.stderr.strip()
    assert os.path.ismount("/proc")


def test_changelog(ws, volume):
    """A volume that asks for it gets a line of every change, which others replay."""
    setting = volume.setting()
    setting["ChangeLog"] = True
    volume.sql("UPDATE jfs_setting SET value=? WHERE name='format'", json.dumps(setting))
    changelog.work(ws, volume)
    changelog.judge([row[0] for row in volume.sql("SELECT entry FROM jfs_change_log ORDER BY id")])


@pytest.mark.parametrize("argv", (["status"], ["config", "--json"], ["gc"], ["fsck"], ["version"]))
def test_output_that_is_not_written_is_no_success(ws, volume, argv):
    """A script that saves it on a full disk would take a part for the whole."""
    url = [] if argv == ["version"] else [volume.url]
    with open("/dev/full", "wb") as full:
        r = subprocess.run(
            [tool("cachefs"), *argv, *url], env=ws.env(), stdout=full, stderr=subprocess.PIPE
        )
    assert r.returncode == 2 and b"No space left" in r.stderr


@pytest.mark.parametrize("password", ["hidden", "in two hidden parts"])
def test_arguments_that_are_mixed_up_do_not_show_secrets(ws, volume, password):
    url = "redis://:%s@localhost/1" % password
    for argv in (
        ["load", ws.path("file"), url],
        ["dump", volume.url, url],
        ["status", volume.url, url],
        ["config", volume.url, "--capacity", url],
        ["config", volume.url, "--no-such=" + url],
    ):
        r = ws.run("cachefs", *argv)
        assert r.returncode in (1, 2) and "redis://:****@localhost/1" in r.stderr, r.stderr
        assert "hidden" not in r.stderr


def test_urls_without_a_scheme_do_not_show_secrets(ws):
    """They are those of Redis, and in the process list for as long as the server does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = "me:hidden@127.0.0.1:%d/1" % silent.getsockname()[1]
        p = subprocess.Popen(
            [tool("cachefs"), "status", url], env=ws.env(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            silent.settimeout(20)
            silent.accept()[0].close()  # it has begun with its work
            with open("/proc/%d/cmdline" % p.pid, "rb") as f:
                shown = f.read().decode()
        finally:
            p.kill()
            p.communicate()
    assert url.replace("hidden", "****") in shown and "hidden" not in shown


@pytest.mark.parametrize(
    "argv, shown",
    [
        (["status", "URL", "me:hidden@localhost/1"], "'me:****@localhost/1'"),
        (["info", ":hidden@localhost"], " :****@localhost: "),
        (["status", "--password=hidden"], "'--password=****'"),
        (["status", "URL", "host=h password=hidden user=me"], "'host=h password=****'"),
        (["me:hidden@localhost"], "'me:****@localhost'"),
        (["status", "host=h password=hidden"], "bad host"),
        (["status", "postgres://me@h/db?password=x&hidden"], "write & as %26"),
        (["status", "postgres:///host=127.0.0.1 password=hidden"], "password=****"),
        (["status", "redis://:1/hidden@h"], "write / as %2F"),
    ],
)
def test_misplaced_passwords_are_masked(ws, volume, argv, shown):
    r = ws.run("cachefs", *[volume.url if a == "URL" else a for a in argv])
    assert r.returncode in (1, 2) and shown in r.stderr and "hidden" not in r.stderr, r.stderr
