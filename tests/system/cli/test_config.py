# SPDX-License-Identifier: Apache-2.0
"""The config command. A failure here is a setting that is lost, a secret that is shown, or a mount that
does not hear of a change."""

import errno
import json
import os
import shutil

from admin import TRASH, ask, fsck, ls, make_tree, refused
from cachefs import wait_until
from syscalls import data, fails, read, write


def test_config_shows_and_keeps_secrets(ws):
    vol = ws.volume(format=False)
    ws.run("cachefs", *vol.format_args(trash_days=1), check=True, env={"SECRET_KEY": "geheim", "ACCESS_KEY": "me"})
    for r in (ws.run("cachefs", "config", vol.url), ws.run("cachefs", "config", vol.url, "--json")):
        assert r.returncode == 0 and "geheim" not in r.stdout + r.stderr and "vol" in r.stdout
    sealed = vol.setting()["SecretKey"]
    ask(ws, "config", vol.url, "--trash-days", "5")
    s = vol.setting()
    assert s["TrashDays"] == 5 and s["AccessKey"] == "me" and "geheim" not in json.dumps(s)
    assert s["SecretKey"] and sealed
    ask(ws, "config", vol.url, "--keys", env={"SECRET_KEY": "anders", "ACCESS_KEY": "you"})
    assert vol.setting()["AccessKey"] == "you"
    assert ask(ws, "config", vol.url)["SecretKey"] == "***"


def test_config_changes_what_may_change(ws, volume):
    mnt = volume.mount()
    write(mnt / "f", data(3_000_000))
    mnt.umount()
    s = ask(
        ws, "config", volume.url, "--capacity", "2G", "--inodes", "100", "--upload-limit", "7",
        "--download-limit", "8", "--enable-acl", "true", "--max-client-version", "9.0",
    )
    assert (s["Capacity"], s["Inodes"], s["UploadLimit"], s["DownloadLimit"]) == (2 << 30, 100, 7, 8)
    assert s["EnableACL"] is True and s["MaxClientVersion"] == "9.0"
    before = volume.setting()
    refused(ws, "config", volume.url, "--enable-acl", "false")
    refused(ws, "config", volume.url, "--capacity", "1M", says="already")
    # GiB, more than numbers of the setting hold: it would be a limit below zero
    refused(ws, "config", volume.url, "--capacity", "9000000000", code=1)
    refused(ws, "config", volume.url, "--min-client-version", "9.0")
    refused(ws, "config", volume.url, "--bucket", ws.path("elsewhere"))
    assert volume.setting() == before
    assert ask(ws, "config", volume.url, "--capacity", "1M", "--force")["Capacity"] == 1 << 20
    assert "Capacity" not in ask(ws, "config", volume.url, "--capacity", "0")


# what a later client, or one with 64 bits for each number, may have written
LATER = {
    "Inodes": (1 << 64) - 1,
    "DownloadLimit": 5_000_000_000,
    "Later": {"deep": [{"most": (1 << 64) - 1, "least": -(1 << 63) - 1, "none": None}], "text": "18446744073709551616"},
    "LaterNumber": 10**30,
}


def put_later(vol):
    s = vol.setting() | LATER | {"Capacity": 10**10 << 30}
    s["Tiers"]["0"]["LaterDays"] = 1 << 63
    vol.sql("UPDATE jfs_setting SET value=? WHERE name='format'", json.dumps(s))
    return s


def test_config_keeps_what_it_does_not_know(ws, volume):
    """No command that writes the record takes a field from it, or a digit from a number."""
    before = put_later(volume)
    mnt = volume.mount()
    write(mnt / "f", data(300_000))
    mnt.umount()
    assert volume.status()["setting"]["Capacity"] == 10**10 << 30
    shown = ws.run("cachefs", "status", volume.url, check=True).stdout
    assert "inodes:      at most 18446744073709551615\n" in shown and "EiB\n" in shown, shown
    listed = ws.run("cachefs", "config", volume.url, check=True).stdout
    assert "Inodes               18446744073709551615\n" in listed
    ask(ws, "config", volume.url, "--trash-days", "5")
    assert volume.setting() == before | {"TrashDays": 5}
    ws.run("cachefs", "quota", "set", volume.url, "--uid", "4711", "--inodes", "10", check=True)
    assert volume.setting() == before | {"TrashDays": 5, "UserGroupQuota": True}
    ws.run("cachefs", *volume.format_args(trash_days=7), "--force", check=True)
    s = volume.setting()
    assert {k: s[k] for k in LATER} == LATER and s["Tiers"] == before["Tiers"] and s["TrashDays"] == 7
    ask(ws, "config", volume.url, "--capacity", "1024", "--download-limit", "9")
    assert volume.setting() == s | {"Capacity": 1 << 40, "DownloadLimit": 9}


def test_config_trash_goes_only_by_force(ws):
    vol = ws.volume(trash_days=1)
    refused(ws, "config", vol.url, "--trash-days", "0", says="--force")
    assert vol.setting()["TrashDays"] == 1
    ask(ws, "config", vol.url, "--trash-days", "0", "--force")
    assert vol.setting()["TrashDays"] == 0


def test_config_follows_moved_objects(ws, volume):
    content = data(100_000)
    mnt = volume.mount()
    write(mnt / "f", content)
    mnt.umount()
    shutil.move(volume.bucket, ws.path("moved"))
    ask(ws, "config", volume.url, "--bucket", ws.path("moved"))
    volume.bucket = ws.path("moved")
    mnt = volume.mount()
    assert read(mnt / "f") == content


def test_config_dir_stats_start_afresh(ws, volume):
    mnt = volume.mount()
    make_tree(mnt.path)
    mnt.umount()
    ask(ws, "config", volume.url, "--dir-stats", "false")
    mnt = volume.mount()
    write(mnt / "a/later", data(9000))
    mnt.umount()
    ask(ws, "config", volume.url, "--dir-stats", "true")
    assert volume.sql("SELECT count(*) FROM jfs_dir_stats") == [(0,)]
    mnt = volume.mount()
    write(mnt / "a/last", b"1")
    assert fsck(ws, volume)["found"] == 0


def test_config_trash_may_begin_later(ws, volume):
    """A volume of before the trash gets one; what is removed from then on can be restored."""
    assert volume.sql("SELECT count(*) FROM jfs_node WHERE inode=?", TRASH) == [(0,)]
    mnt = volume.mount("heartbeat=1")
    ask(ws, "config", volume.url, "--trash-days", "2")
    row = volume.sql("SELECT type, mode, parent FROM jfs_node WHERE inode=?", TRASH)
    assert row == [(2, 0o555, 1)]

    def trashed():
        write(mnt / "f", b"x")
        os.unlink(mnt / "f")
        return volume.sql("SELECT count(*) FROM jfs_edge WHERE parent>?", TRASH) != [(0,)]

    wait_until(trashed, 20, "the trash")
    mnt.umount()
    ask(ws, "config", volume.url, "--trash-days", "0", "--force")
    ask(ws, "config", volume.url, "--trash-days", "1")
    mnt = volume.mount()
    (hour,) = os.listdir(mnt / ".trash")
    name = os.listdir(mnt / ".trash" / hour)[0]
    assert read(mnt / ".trash" / hour / name) == b"x"


def test_config_summary_without_dir_stats(ws, volume):
    """Figures are counted when nobody keeps them, and right again when somebody does."""
    mnt = volume.mount()
    os.makedirs(mnt / "d/sub")
    write(mnt / "d/f", data(10_000))
    mnt.umount()
    ask(ws, "config", volume.url, "--dir-stats", "false")
    mnt = volume.mount("heartbeat=1")
    write(mnt / "d/g", data(10_000))
    os.truncate(mnt / "d/f", 100_000)
    os.unlink(mnt / "d/g")
    write(mnt / "d/sub/h", data(5000))

    def summary(*options):
        figures = ask(ws, "summary", *options, mnt / "d")
        del figures["name"]
        return figures

    before = summary()
    assert before == summary("--strict")
    mnt.umount()
    ask(ws, "config", volume.url, "--dir-stats", "true")
    mnt = volume.mount()
    assert summary() == before
    os.rename(mnt / "d/sub/h", mnt / "d/h")
    os.mkdir(mnt / "d/new")
    write(mnt / "d/new/i", b"1")
    after = summary()
    assert after == summary("--strict") != before
    mnt.umount()
    assert fsck(ws, volume)["found"] == 0


def test_config_dir_stats_and_quotas_belong_together(ws, volume):
    mnt = volume.mount()
    os.mkdir(mnt / "d")
    mnt.umount()
    ask(ws, "quota", "set", volume.url, "--path", "/d", "--capacity", "1M")
    refused(ws, "config", volume.url, "--dir-stats", "false", says="quota delete")
    assert volume.setting()["DirStats"] is True
    # as an older client may have left it
    ask(ws, "config", volume.url, "--dir-stats", "false", "--force")
    mnt = volume.mount()
    write(mnt / "d/f", data(900_000))
    mnt.umount()
    volume.sql("UPDATE jfs_dir_quota SET used_space=1, used_inodes=77")
    ask(ws, "config", volume.url, "--dir-stats", "true")
    assert ask(ws, "quota", "check", volume.url) == []
    mnt = volume.mount()
    with fails("EDQUOT"):
        write(mnt / "d/g", data(200_000))


def test_config_reaches_a_mount(ws, volume):
    mnt = volume.mount("heartbeat=1")
    ask(ws, "config", volume.url, "--inodes", "3")

    def full():
        try:
            os.mkdir(mnt / ("d%d" % len(ls(mnt))))
        except OSError as e:
            return e.errno
        return None

    assert wait_until(full, 20, "the limit") == errno.ENOSPC
