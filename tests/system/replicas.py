# SPDX-License-Identifier: Apache-2.0
"""Volumes whose metadata is replicated into the bucket: what is there, machines that are lost, restores."""

import os
import random
import shutil
import time

from cachefs import tool, wait_until
from s3volume import S3Volume


def folder(vol):
    return vol.bucket / vol.name / "meta-replica"


def entries(vol):
    return sorted(n for n in os.listdir(folder(vol)) if n.startswith("log-"))


def pieces(vol):
    return sorted(n for n in os.listdir(folder(vol)) if n.startswith("base-"))


def place(vol):
    s3 = isinstance(vol, S3Volume)
    return ["--storage", "s3" if s3 else "file", "--bucket", vol.where if s3 else vol.bucket, "--volume", vol.name]


def env_of(vol):
    return vol.s3.keys if isinstance(vol, S3Volume) else {}


def restore(ws, vol, name, *options):
    """Restores into a file of that name; returns a volume there, which has the bucket of the first one."""
    url = "sqlite3://%s" % ws.path(name)
    ws.run("cachefs", "load", "--from-replica", *place(vol), *options, url, env=env_of(vol), check=True)
    return elsewhere(ws, vol, url)


def elsewhere(ws, vol, url):
    again = S3Volume(ws, vol.s3, url=vol.where, format=False) if isinstance(vol, S3Volume) else ws.volume(format=False)
    again.attach(ws, vol.name, url, vol.bucket)
    again.check_options = {"unmounted": False, "leaks": "ignore"}
    return again


def covered(mnt):
    """Waits until what is committed now is in the bucket."""
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - mnt.stat("replica_lag_seconds") > began, 20, "replication")


def lose_machine(vol, mnt):
    """Kills the mount's processes and removes what the machine had."""
    mnt.kill9()
    for path in vol.db.parent.glob(vol.db.name + "*"):
        path.unlink()
    vol.check_options = None


class Machine:
    """All local files of a volume are in a folder of their own."""

    def __init__(self, ws, s3, via, **options):
        self.ws, self.dir = ws, ws.path("first")
        self.dir.mkdir()
        self.vol = S3Volume(ws, s3, url="%s/bucket" % via.url, format=False)
        self.vol.attach(ws, "vol", "sqlite3://%s/vol.db" % self.dir, self.vol.bucket)
        self.vol.format(storage="s3", bucket=self.vol.where, **options)
        (self.dir / "mnt").mkdir()

    def mount(self, opts=""):
        env = {**self.vol.s3.keys, "XDG_CACHE_HOME": str(self.dir / "cache")}
        return self.vol.mount(opts, env=env, path=self.dir / "mnt")

    def lose(self, mnt):
        mnt.kill9()
        shutil.rmtree(self.dir)
        self.vol.check_options = None

    def restore(self):
        """On a machine that has another name and id, and nothing of this one."""
        away = self.ws.path("second")
        away.mkdir()
        (away / "machine-id").write_text("%032x\n" % random.getrandbits(128))
        url = "sqlite3://%s/again.db" % away
        script = 'hostname second && mount --bind "$1" /etc/machine-id && shift && exec "$@"'
        load = [tool("cachefs"), "load", "--from-replica", *place(self.vol), url]
        unshare = ["unshare", "--mount", "--uts", "--propagation", "private", "sh", "-ec", script, "sh"]
        self.ws.run(*unshare, away / "machine-id", *load, env=self.vol.s3.keys, check=True, timeout=60)
        return elsewhere(self.ws, self.vol, url)


def clean(vol):
    """A lost part of the history may have left blocks that nothing names."""
    found = vol.verify(leaks="ignore")
    assert not found, found
