# SPDX-License-Identifier: Apache-2.0
"""Backups of the metadata in the bucket. A failure here is a volume that is lost with its database, or
a bucket that fills with backups, or a secret in it."""

import calendar
import gzip
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import time

import pytest

from admin import ask, contents, make_tree, refused
from bigdump import big_json
from cachefs import children, sanitized, tool, wait_until, wrong_clock
from proxy import xml_error
from s3volume import S3Volume
from syscalls import write
from test_dump import ENGINES, empty  # noqa: F401

NAME = "dump-%Y-%m-%d-%H%M%S.json.gz"
HOUR, DAY = 3600, 86400


def folder(vol):
    return vol.bucket / vol.name / "meta"


def backups(vol):
    return sorted(n for n in os.listdir(folder(vol)) if n.startswith("dump-")) if folder(vol).exists() else []


def content(vol, name):
    return json.loads(gzip.decompress((folder(vol) / name).read_bytes()))


def latest_with(vol, name):
    """The latest backup, once it has that name in the root of its tree."""
    wait_until(
        lambda: backups(vol) and name in content(vol, backups(vol)[-1])["FSTree"]["entries"], 20, "a backup of " + name
    )
    return backups(vol)[-1]


def time_of(name):
    return calendar.timegm(time.strptime(name, NAME))


def put_old(vol, *ages_s):
    """Backups of earlier times; their content is not looked at."""
    folder(vol).mkdir(parents=True, exist_ok=True)
    names = [time.strftime(NAME, time.gmtime(time.time() - age)) for age in ages_s]
    for n in names:
        write(folder(vol) / n, b"old")
    return sorted(names)


def where(vol, storage="file", bucket=None):
    return ["--from-bucket", "--storage", storage, "--bucket", bucket or vol.bucket, "--volume", vol.name]


def backup_child(mnt):
    """The process that makes a backup for a mount."""
    for pid in children(mnt.pid()):
        try:
            if b"back-up-metadata" in pathlib.Path("/proc/%d/cmdline" % pid).read_bytes():
                return pid
        except OSError:
            pass
    return None


# -- what they are for


@pytest.mark.parametrize("engine,storage", [(e, "file") for e in ENGINES] + [("sqlite3", "s3")])
def test_the_bucket_alone_brings_a_volume_back(ws, request, empty, engine, storage):
    if storage == "s3":
        s3 = request.getfixturevalue("s3")
        vol, env = S3Volume(ws, s3), s3.keys
        place = where(vol, "s3", vol.where)
    else:
        vol, env = ws.volume(url=empty(engine)), {}
        place = where(vol)
    mnt = vol.mount("backup-meta=1s")
    files = make_tree(mnt)
    write(mnt / "last", b"last")
    name = latest_with(vol, "last")
    before = {p: os.stat(mnt / p) for p in [*files, "a", "a/nothing"]}
    mnt.umount()
    # The database is lost, and the setting with it.
    url = empty(engine)
    listed = ask(ws, "load", *place, url, env=env)
    assert [b["backup"] for b in listed] == backups(vol)
    ws.run("cachefs", "load", *place, url, "latest", env=env, check=True)
    if engine == "sqlite3" and storage == "file":
        os.unlink(vol.db)
    again = ws.volume(url=url, format=False) if storage == "file" else S3Volume(ws, s3, format=False)
    again.url, again.bucket, again.check_options = url, vol.bucket, None
    mnt = again.mount("ro", env=env)
    assert contents(mnt) == {**files, "a/hard": b"3", "last": b"last"}
    assert os.readlink(mnt / "link") == "three"
    assert os.getxattr(mnt / "three", "user.note") == b"\0value"
    assert "lastBackup" not in os.listxattr(mnt)
    for p, st in before.items():
        got = os.stat(mnt / p)
        for field in ("st_ino", "st_mode", "st_uid", "st_size", "st_nlink", "st_mtime_ns"):
            assert getattr(got, field) == getattr(st, field), (p, field)
    mnt.umount()
    r = ws.run("cachefs", "fsck", url, env=env)
    assert r.returncode == 0, r.stdout + r.stderr
    assert name in backups(vol)


@pytest.mark.parametrize("algo", ["aes256gcm-rsa", "chacha20-rsa"])
def test_backups_of_an_encrypted_volume_are_encrypted(ws, empty, algo):
    key = ws.path("key.pem")
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, stderr=subprocess.DEVNULL)
    vol = ws.volume(encrypt_rsa_key=key, encrypt_algo=algo, compress="lz4")
    vol.check_options = None
    mnt = vol.mount()
    write(mnt / "secret-name", b"x" * 5000)
    mnt.umount()
    ws.run("cachefs", "dump", "--to-bucket", vol.url, check=True)
    (name,) = backups(vol)
    raw = (folder(vol) / name).read_bytes()
    assert raw[:3] == b"\x01\x00\x0c"  # as blocks are (volume-format section 7), not gzip
    url = empty()
    refused(ws, "load", *where(vol), url, name, says="--encrypt-key")
    ws.run("cachefs", "load", *where(vol), "--encrypt-key", key, "--encrypt-algo", algo, url, name, check=True)
    again = ws.volume(url=url, format=False)
    again.bucket, again.check_options = vol.bucket, None
    assert contents(again.mount("ro")) == {"secret-name": b"x" * 5000}


def test_secrets_are_neither_stored_nor_shown(ws, s3, via):
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    hold = via.add("PUT", "/meta/", delay=600)
    mnt = vol.mount("backup-meta=1s", env={**s3.keys, "AWS_SESSION_TOKEN": "", "MY_OWN_SECRET": "quite a secret"})
    pid = wait_until(lambda: hold.hits and backup_child(mnt), 20)
    for what in ("cmdline", "environ"):
        text = pathlib.Path("/proc/%d/%s" % (pid, what)).read_bytes()
        for word in (s3.keys["SECRET_KEY"], "quite a secret", vol.url, "SECRET"):
            assert word.encode() not in text, (what, text)
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert subprocess.run(["ionice", "-p", str(pid)], stdout=subprocess.PIPE, text=True).stdout.strip() == "idle"
    assert pathlib.Path("/proc/%d/oom_score_adj" % pid).read_text().strip() == "1000"
    via.clear()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: mnt.stat("meta_backups_total") >= 1, 30)
    mnt.umount()
    dump = content(vol, backups(vol)[-1])
    assert dump["Setting"]["SecretKey"] == "removed"
    assert s3.keys["SECRET_KEY"] not in json.dumps(dump) and s3.keys["SECRET_KEY"] not in mnt.log()


# -- one mount does it


def test_one_of_three_mounts_makes_each(ws):
    vol = ws.volume()
    mounts = [vol.mount("backup-meta=2s") for _ in range(3)]
    wait_until(lambda: len(backups(vol)) >= 4, 40)
    for m in mounts[1:]:
        m.umount()
    # Those that did not make it know its age.
    wait_until(lambda: mounts[0].stat("meta_backup_age_seconds") < 10, 30)
    assert mounts[0].stat("meta_backup_interval_seconds") == 2
    assert mounts[0].stat("meta_backup_failures_total") == 0
    mounts[0].umount()
    made = sum(m.log().count("the metadata is backed up") for m in mounts)
    names = backups(vol)
    times = [time_of(n) for n in names]
    assert made >= len(names) - 1 >= 3  # an unmount may kill the child that has just stored one
    assert len(names) == len(set(times)) and min(b - a for a, b in zip(times, times[1:])) >= 2


def test_mount_leaves_it_to_the_one_that_holds_the_lease(ws):
    vol = ws.volume()
    mnt = vol.mount("backup-meta=1s")
    wait_until(lambda: backups(vol), 20)
    mnt.umount()
    have = backups(vol)
    value = "%016x %d another mount" % (1, time.time() + 3600)
    vol.sql("INSERT INTO jfs_cachefs_record(name,value) VALUES(?,?)", b"lease/backup", value.encode())
    vol.sql("DELETE FROM jfs_xattr WHERE name='lastBackup'")
    mnt = vol.mount("backup-meta=1s")
    looks = mnt.stat('meta_operations_total{op="xattr"}')
    wait_until(lambda: mnt.stat('meta_operations_total{op="xattr"}') > looks + 3, 20)
    assert backups(vol) == have
    vol.sql("DELETE FROM jfs_cachefs_record WHERE name=?", b"lease/backup")
    wait_until(lambda: len(backups(vol)) > len(have), 20)


def test_the_mark_of_the_other_client_is_honoured(ws):
    """JuiceFS made one a moment ago: none is due. The mark says nothing about the age."""
    vol = ws.volume()
    mark = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() + 300))
    mnt = vol.mount("backup-meta=0")
    os.setxattr(mnt, "lastBackup", mark.encode())
    (old,) = put_old(vol, 5000)
    mnt.umount()
    mnt = vol.mount("backup-meta=30s")
    wait_until(lambda: mnt.stat("meta_backup_age_seconds") >= 5000, 20)
    assert backups(vol) == [old]


@pytest.mark.parametrize("opts", ["backup-meta=0", "backup-meta=1s,no-bgjob", "backup-meta=1s,ro"])
def test_mounts_that_make_none(ws, opts):
    vol = ws.volume()
    mnt = vol.mount(opts)
    assert mnt.stat("meta_backup_interval_seconds") == 0 and mnt.stat("meta_backup_age_seconds") == 0
    threads = {p.read_text().strip() for p in pathlib.Path("/proc/%d/task" % mnt.pid()).glob("*/comm")}
    assert "backup" not in "".join(t for t in threads if "backup-look" not in t)
    assert backups(vol) == []


def test_volume_with_too_many_inodes_is_skipped(ws):
    vol = ws.volume()
    mnt = vol.mount("backup-meta=1s,backup-skip-inodes=3")
    for i in range(4):
        write(mnt / ("f%d" % i), b"")
    wait_until(lambda: mnt.stat("meta_backup_skipped") == 1, 20)
    have, looks = backups(vol), mnt.stat('meta_operations_total{op="xattr"}')
    wait_until(lambda: mnt.stat('meta_operations_total{op="xattr"}') > looks + 3, 20)
    for i in range(2):
        os.unlink(mnt / ("f%d" % i))
    wait_until(lambda: mnt.stat("meta_backup_skipped") == 0, 20)
    wait_until(lambda: len(backups(vol)) > len(have), 20)
    mnt.umount()
    assert mnt.log().count("too many inodes") == 1 and "repeated" not in mnt.log()


def test_trash_can_be_left_out(ws):
    vol = ws.volume(trash_days=1)
    mnt = vol.mount()
    write(mnt / "f", b"f")
    os.unlink(mnt / "f")
    mnt.umount()
    ws.run("cachefs", "dump", "--to-bucket", vol.url, check=True)
    assert content(vol, backups(vol)[-1])["Trash"]["entries"]
    mnt = vol.mount("backup-meta=1s,backup-skip-trash")
    wait_until(lambda: len(backups(vol)) > 1, 20)
    assert "Trash" not in content(vol, backups(vol)[-1])


# -- rotation


def test_old_ones_go_only_once_the_new_one_is_proved(ws, s3, via):
    vol = S3Volume(ws, s3, url=via.url + "/bucket?disable-checksum=true")
    old = put_old(vol, *[3 * DAY + h * HOUR for h in range(6)], 40 * DAY, 400 * DAY, 2 * HOUR)
    other = folder(vol) / "dump-of-mine.json.gz"
    write(other, b"mine")
    user = os.stat(s3.root)
    for path in [folder(vol), *folder(vol).iterdir()]:
        os.chown(path, user.st_uid, user.st_gid)
    denied = {"status": 403, "body": xml_error("AccessDenied")}
    for fault in (
        {"method": "PUT", "path": "/meta/", **denied},
        {"method": "GET", "path": "/meta/dump", "rewrite": lambda body: bytes(len(body))},
        {"method": "GET", "path": "/meta/dump", **denied},
        {"method": "GET", "path": "list-type", **denied},
    ):
        hits = via.add(**fault)
        mnt = vol.mount("backup-meta=1s", env=s3.keys)
        wait_until(lambda: hits.hits and mnt.stat("meta_backup_failures_total") >= 1, 20)
        mnt.umount()
        via.clear()
        assert set(old) <= set(backups(vol)), fault
    mnt = vol.mount("backup-meta=1s", env=s3.keys)
    wait_until(lambda: set(old) - set(backups(vol)), 20)
    wait_until(lambda: mnt.stat("meta_backups_total") >= 2, 20)
    mnt.umount()
    kept = set(old) & set(backups(vol))
    assert {old[0], old[1], old[-1]} <= kept  # the oldest, that of its month, one of two hours ago
    assert 4 <= len(kept) <= 5 and other.exists()


def test_clock_that_jumps(ws):
    """A year ahead, no backup is old because of it; back again, the one of the future is not the latest."""
    vol = ws.volume()
    old = put_old(vol, *[h * HOUR for h in range(1, 9)])
    mnt = vol.mount("backup-meta=1s", env=wrong_clock(ws, 400 * DAY))
    wait_until(lambda: len(backups(vol)) > len(old), 20)
    mnt.umount()
    assert set(old) <= set(backups(vol))
    ahead = time.time() + 300 * DAY
    assert time_of(backups(vol)[-1]) > ahead
    mnt = vol.mount("backup-meta=1h")
    mnt.umount()
    mnt = vol.mount("backup-meta=20s")
    wait_until(lambda: any(n not in old and time_of(n) < ahead for n in backups(vol)), 20)
    assert ask(ws, "status", vol.url)["backup"]["age_s"] < HOUR
    mnt.umount()


def test_latest_backup_by_a_clock_that_is_behind(ws, empty):
    """An older one is not restored in silence."""
    vol = ws.volume()
    ws.run("cachefs", "dump", "--to-bucket", vol.url, check=True)
    (newest,) = backups(vol)
    behind = wrong_clock(ws, -2 * DAY)
    r = refused(ws, "load", *where(vol), empty(), "latest", says="there is no backup", env=behind)
    assert newest in r.stderr and "clock" in r.stderr
    put_old(vol, 3 * DAY)
    r = refused(ws, "load", *where(vol), empty(), "latest", says="not compressed JSON", env=behind)
    assert newest in r.stderr and "clock" in r.stderr
    r = ws.run("cachefs", "load", *where(vol), empty(), "latest", check=True)
    assert "clock" not in r.stderr


# -- faults


def test_unmount_does_not_wait_for_a_backup_and_the_next_mount_makes_it(ws, s3, via):
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    hold = via.add("PUT", "/meta/", delay=600)
    mnt = vol.mount("backup-meta=20s", env=s3.keys)
    pid = wait_until(lambda: hold.hits and backup_child(mnt), 20)
    start = time.monotonic()
    write(mnt / "f", b"x" * 100_000)  # requests go on meanwhile
    mnt.umount()
    assert time.monotonic() - start < 60 and not os.path.exists("/proc/%d" % pid)
    assert "broken off" in mnt.log()
    assert not vol.sql("SELECT * FROM jfs_xattr WHERE name='lastBackup'")  # due at once
    via.clear()
    mnt = vol.mount("backup-meta=20s", env=s3.keys)
    wait_until(lambda: mnt.stat("meta_backups_total") >= 1, 30)


def test_killed_child_and_killed_worker_leave_nothing(ws, s3, via):
    tmp = ws.path("tmp")
    tmp.mkdir()
    vol = S3Volume(ws, s3, url=via.url + "/bucket")
    hold = via.add("PUT", "/meta/", delay=600)
    # The lease of a killed worker ends after twice this timeout.
    mnt = vol.mount("backup-meta=1s,meta-timeout=2s", env={**s3.keys, "TMPDIR": str(tmp)})
    for victim in ("child", "worker"):
        pid = wait_until(lambda: hold.hits and backup_child(mnt), 30)
        os.kill(pid if victim == "child" else mnt.pid(), signal.SIGKILL)
        wait_until(lambda: not os.path.exists("/proc/%d" % pid), 10)
        if victim == "child":
            wait_until(lambda: mnt.stat("meta_backup_failures_total") >= 1, 10)
        assert os.listdir(tmp) == []
    mnt.allow("died")
    via.clear()
    wait_until(lambda: mnt.stat("meta_backups_total") >= 1, 60)
    assert os.listdir(tmp) == [] and "child process died" in mnt.log()


@pytest.mark.parametrize("lives", [True, False])
def test_child_that_starts_after_the_death_of_its_mount(ws, lives):
    """A mount may die before its child can ask for a signal. The child would go on for its deadlines."""
    vol = ws.volume()
    order = [vol.url, "", "", "-1", "-1", "%d" % time.time(), "1", "0", "HOME=/", ""]
    mount, child = socket.socketpair()
    mount.sendall("".join(x + "\0" for x in order).encode())
    if lives:
        mount.shutdown(socket.SHUT_WR)
    else:
        mount.close()
    p = ws.popen([tool("cachefs"), "back-up-metadata"], stdin=child, stdout=child)
    assert p.wait(60) == (0 if lives else 2)
    assert len(list((vol.bucket / vol.name / "meta").glob("*"))) == (1 if lives else 0)


def test_bucket_that_is_full_or_another_volumes(ws, empty):
    vol = ws.volume()
    r = ws.run("cachefs", "dump", "--to-bucket", vol.url, env={"TMPDIR": "/not/there"})
    assert r.returncode == 2 and "dir=/not/there" in r.stderr
    write(vol.bucket / vol.name / "juicefs_uuid", b"00000000-0000-0000-0000-000000000000")
    refused(ws, "dump", "--to-bucket", vol.url, says="another volume")
    assert backups(vol) == []
    vol.check_options = None
    old = put_old(vol, HOUR)
    refused(ws, "load", *where(vol), empty(), old[0], says="not compressed JSON")
    refused(ws, "load", *where(vol), empty(), "dump-2020-01-01-000000.json.gz", says="cannot be read")
    refused(ws, "load", *where(vol), empty(), "../x", says="no backup")
    write(folder(vol) / old[0], gzip.compress(b'{"Setting": {}}' * 9)[:-9])
    refused(ws, "load", *where(vol), empty(), old[0])


@pytest.mark.parametrize(
    "args,says",
    [
        (["dump", "--to-bucket", "--binary", "URL"], "--to-bucket goes without"),
        (["dump", "--to-bucket", "--keep-secrets", "URL"], "--to-bucket goes without"),
        (["dump", "--to-bucket", "URL", "file"], "--to-bucket goes without"),
        (["dump", "--skip-trash", "--binary", "URL"], "--skip-trash"),
        (["load", "--from-bucket", "URL"], "need --storage"),
        (["load", "--bucket", "x", "URL", "file"], "for --from-bucket"),
        (["load", "URL"], "FILE"),
    ],
)
def test_options_that_do_not_fit(ws, args, says):
    vol = ws.volume()
    refused(ws, *[vol.url if a == "URL" else a for a in args], code=1, says=says)


@pytest.mark.skipif(sanitized(), reason="sanitizers take memory of their own")
def test_memory_of_a_backup_does_not_grow_with_the_volume(ws, empty):
    n, limit = 120_000, 24 << 20
    url, path = empty(), ws.path("big.json")
    with open(path, "w") as f:
        f.writelines(big_json(n))
    ws.run("cachefs", "load", url, path, timeout=120, check=True)
    vol = ws.volume(url=url, format=False)
    vol.name, vol.check_options = "fix-sqlite", None
    args = ["--storage", "file", "--bucket", "%s/" % vol.bucket]
    vol.bucket.mkdir()
    p = subprocess.run(
        [tool("cachefs"), "dump", "--to-bucket", *args, url],
        env=ws.env(),
        capture_output=True,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    assert p.returncode == 0, p.stderr
    assert os.path.getsize(path) > limit
    assert len(content(vol, backups(vol)[0])["FSTree"]["entries"]) == n // 1000


# -- who is told


def test_status_and_doctor_tell_the_age(ws):
    vol = ws.volume()

    def doctor():
        report = json.loads(ws.run("cachefs", "doctor", "--json", vol.url).stdout)
        return [(c["level"], c["text"]) for c in report["checks"] if c["check"] == "metadata backup"]

    assert ask(ws, "status", vol.url)["backup"] is None
    assert "backup:      none" in ws.run("cachefs", "status", vol.url).stdout
    assert doctor()[0][0] == "note"
    put_old(vol, 3 * DAY)
    assert doctor()[0][0] == "change"
    put_old(vol, HOUR)
    assert doctor()[0][0] == "ok"
    got = ask(ws, "status", vol.url)["backup"]
    assert HOUR <= got["age_s"] < HOUR + 600 and got["name"] == backups(vol)[-1]
    assert "backup:      1h 0m" in ws.run("cachefs", "status", vol.url).stdout
