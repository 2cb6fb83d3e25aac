# SPDX-License-Identifier: Apache-2.0
"""Storage classes and tags of objects: what a volume asks for and does not get costs its owner money,
and what JuiceFS has set up has to hold here, too."""

import json
import os

from cachefs import wait_until
from s3volume import S3Volume
from syscalls import data, read, write


def puts(via):
    """Class and tags of each block that was stored."""
    got = [
        (r.headers.get("x-amz-storage-class"), r.headers.get("x-amz-tagging"))
        for r in via.seen("PUT", "chunks/")
    ]
    via.clear()
    return got


def config(vol, *args):
    return vol.ws.run("cachefs", "config", vol.url, *args, check=True, env=vol.s3.keys)


def test_tiers(ws, s3, via):
    """The tier of a directory is inherited, and chosen for what is written, copied and compacted."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket", storage_class="STANDARD_IA")
    config(vol, "--tier", "1", "--storage-class", "GLACIER_IR", "--tag", "team=a b:c/d")
    config(vol, "--tier", "2", "--tag", "k=v")
    for wrong in ("k", "=v", "k=", "a=b,c=d", "k=a,b"):
        r = ws.run("cachefs", "config", vol.url, "--tag", wrong, env=s3.keys)
        assert r.returncode == 1 and "KEY=VALUE" in r.stderr, r
    for wrong in ("COLD\r\nX-Amz-Acl: public-read", "a b", "\u00e4"):
        for args in (("config", vol.url), ("format", "sqlite3://%s" % ws.path("no.db"), "other")):
            r = ws.run("cachefs", *args, "--storage-class", wrong, env=s3.keys)
            assert r.returncode == 1 and "--storage-class" in r.stderr, r
    setting = vol.setting()
    assert setting["StorageClass"] == "STANDARD_IA" and setting["MinClientVersion"] == "1.4.0-A"
    assert setting["Tiers"]["1"]["Tag"] == "team=a b:c/d"
    mnt = vol.mount()
    for name in ("one", "two", "three"):
        os.mkdir(mnt / name)
    mnt.umount()
    for i, name in enumerate(("one", "two", "three")):
        vol.sql(
            "UPDATE jfs_node SET tier_id=? WHERE inode="
            "(SELECT inode FROM jfs_edge WHERE CAST(name AS TEXT)=?)",
            i + 1,
            name,
        )
    cold = ("GLACIER_IR", "team=a%20b%3Ac%2Fd")
    for opts in ("", "writeback,cache-dir=%s" % ws.path("cache")):
        mnt = vol.mount(opts)
        via.clear()
        where = "sub%d" % bool(opts)
        os.mkdir(mnt / "one" / where)
        write(mnt / "one" / where / "f", data(5 << 20), sync=True)
        assert puts(via) == [cold] * 2
        write(mnt / "two" / where, b"x", sync=True)
        assert puts(via) == [(None, "k=v")]
        write(mnt / "three" / where, b"x", sync=True)  # a tier that nobody has defined
        assert puts(via) == [("STANDARD_IA", None)]
        mnt.umount()
    mnt = vol.mount()
    with open(mnt / "one/sub0/f", "r+b", buffering=0) as f:
        for i in range(5):
            os.pwrite(f.fileno(), b"y" * 100, i * 1000)
            os.fsync(f.fileno())
    via.clear()
    ws.run("cachefs", "compact", mnt / "one", check=True)
    assert set(puts(via)) == {cold}
    write(mnt / "f", b"root", sync=True)
    assert puts(via) == [("STANDARD_IA", None)]
    with open(mnt / "f", "rb") as src, open(mnt / "one/copy", "wb") as dst:
        dst.write(src.read())
    assert read(mnt / "one/copy") == b"root"
    info = json.loads(ws.run("cachefs", "info", "--json", mnt / "one/sub0/f", check=True).stdout)
    assert info["tier"] == 1
    assert "tier:   1" in ws.run("cachefs", "info", mnt / "one/sub0/f", check=True).stdout
    status = ws.run("cachefs", "status", vol.url, check=True, env=s3.keys).stdout
    assert "tier 1:      GLACIER_IR tag team=a b:c/d" in status
    config(vol, "--tier", "3", "--storage-class", "ONEZONE_IA")


def test_changed_classes_reach_a_mount(ws, s3, via):
    """A class that is too dear, or a tag that a lifecycle rule waits for, is changed beside mounts."""
    vol = S3Volume(ws, s3, url=via.url + "/bucket", storage_class="STANDARD_IA")
    mnt = vol.mount("heartbeat=1")
    write(mnt / "f", b"1", sync=True)
    assert puts(via) == [("STANDARD_IA", None)]
    config(vol, "--storage-class", "ONEZONE_IA", "--tag", "k=v")

    def stored_as(*want):
        via.clear()
        write(mnt / "f", b"2", sync=True)
        return puts(via) == [want]

    wait_until(lambda: stored_as("ONEZONE_IA", "k=v"), 20, "the changed class")
    config(vol, "--storage-class", "", "--tag", "")
    wait_until(lambda: stored_as(None, None), 20, "no class")


def key_file(ws, passphrase):
    path = ws.path("key.pem")
    args = ["openssl", "genrsa", "-out", path]
    args += ["-aes256", "-passout", "pass:" + passphrase] if passphrase else []
    ws.run(*args, "2048", check=True)
    return path


def test_encrypted_volume(ws, volume):
    """format makes a volume that only the passphrase opens; both are in no list of processes."""
    key = key_file(ws, "open sesame")
    for cipher in ("aes256gcm-rsa", "chacha20-rsa"):
        url = "sqlite3://%s" % ws.path(cipher + ".db")
        bucket = ws.path("bucket-" + cipher)
        args = ("format", url, "enc", "--bucket", bucket, "--encrypt-rsa-key", key)
        args += ("--encrypt-algo", cipher)
        env = {"JFS_RSA_PASSPHRASE": "open sesame"}
        for wrong in ({}, {"JFS_RSA_PASSPHRASE": "guess"}):
            r = ws.run("cachefs", *args, env=wrong)
            assert r.returncode == 2 and "JFS_RSA_PASSPHRASE" in r.stderr, r
        r = ws.run("cachefs", *args, env=env)
        assert r.returncode == 0 and "sesame" not in r.stdout + r.stderr, r
        vol = type(volume).golden(ws, "enc", url)
        setting = vol.setting()
        assert setting["EncryptAlgo"] == cipher and setting["KeyEncrypted"]
        assert "PRIVATE KEY" not in json.dumps(setting)
        mnt = vol.mount(env=env)
        content = data(5_000_000)
        write(mnt / "f", content, sync=True)
        maps = open("/proc/%d/cmdline" % mnt.pid(), "rb").read()
        assert b"sesame" not in maps and "sesame" not in mnt.log()
        mnt.umount()
        mnt = vol.mount(env=env)
        assert read(mnt / "f") == content
        mnt.umount()
        blocks = [p for p in bucket.rglob("*") if p.is_file()]
        assert blocks and not any(content[:64] in p.read_bytes() for p in blocks)
        other = "aes256gcm-rsa" if "cha" in cipher else "chacha20-rsa"
        r = ws.run("cachefs", *args[:-1], other, env=env)
        assert r.returncode == 2 and "encryption cannot be changed" in r.stderr, r
    args = ("format", "sqlite3://%s" % ws.path("clear.db"), "clear", "--bucket", ws.path("b3"))
    r = ws.run("cachefs", *args, "--encrypt-rsa-key", key_file(ws, ""))
    assert r.returncode == 0 and "no passphrase" in r.stderr, r
    ws.path("no-key").write_text("hello")
    args = ("format", "sqlite3://%s" % ws.path("no.db"), "nokey", "--bucket", ws.path("b4"))
    r = ws.run("cachefs", *args, "--encrypt-rsa-key", ws.path("no-key"), "--no-check")
    assert r.returncode == 2 and "private key" in r.stderr, r
