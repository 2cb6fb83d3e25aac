# SPDX-License-Identifier: Apache-2.0
"""An S3 server over a folder of the test's own, on a loopback port. CACHEFS_TEST_S3 names the kind:

    versitygw  the default
    s3s-fs     scripts/install-s3s-fs; of conditional puts at once more than one may be carried out
    minio      MinIO's code of 2021, which JuiceFS has as its gateway (scripts/install-juicefs) to a volume; the
               folder is a mount of that. It does not know conditional puts
"""

import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "system"))

from waiting import wait_until  # noqa: E402

KIND = os.environ.get("CACHEFS_TEST_S3") or "versitygw"
CACHE = pathlib.Path(os.environ.get("CACHEFS_TEST_CACHE") or "/var/cache/cachefs-tests")
PROGRAM = {"versitygw": "go/bin/versitygw", "s3s-fs": "cargo/bin/s3s-fs", "minio": "go/bin/juicefs"}[KIND]
BIN = CACHE / PROGRAM
FRESH = "attr-cache=0,entry-cache=0,dir-entry-cache=0,backup-meta=0"
CONDITIONAL = KIND == "versitygw"  # it refuses to create an object twice, also when several try at once
ACCESS, SECRET = "cachefs-test", "a secret of the test+/="


class Server:
    def __init__(self, ws, host="127.0.0.1", log=None):
        """log: a file that gets a line per request, of versitygw alone."""
        assert BIN.exists(), "no %s: run scripts/install-%s" % (BIN, BIN.name)
        self.ws = ws
        self.root = ws.path("s3-root")
        self.root.mkdir(exist_ok=True)
        user = pwd.getpwnam("nobody")
        os.chown(self.root, user.pw_uid, user.pw_gid)
        self.user = user
        self.log = log
        if log:
            log.touch()
            os.chown(log, user.pw_uid, user.pw_gid)
        with socket.create_server((host, 0)) as s:
            self.port = s.getsockname()[1]
        self.address = (host, self.port)
        self.url = "http://%s:%d" % self.address
        self.keys = {"ACCESS_KEY": ACCESS, "SECRET_KEY": SECRET}
        if KIND == "minio":
            self.make_volume()
        self.start()

    def make_volume(self):
        self.user = pwd.getpwuid(os.getuid())  # its database is used by the mount, too
        self.meta = "sqlite3://%s" % self.ws.path("s3-server.db")
        blocks = "%s/" % self.ws.path("s3-blocks")
        command = [BIN, "--no-agent", "format", self.meta, "s3-server", "--trash-days", "0", "--bucket", blocks]
        self.ws.run(*command, check=True, timeout=60)
        self.ws.run("cachefs", "mount", "-o", FRESH, self.meta, self.root, check=True, timeout=60)
        self.ws.cleanups.append(self.leave_files)

    def leave_files(self):
        """Without the mount, for the checker."""
        kept = self.ws.path("s3-kept")
        shutil.copytree(self.root, kept, ignore=lambda *_: [".stats", ".config", ".control", ".accesslog", ".trash"])
        self.ws.run("cachefs", "umount", self.root, check=True, timeout=60)
        self.root.rmdir()
        kept.rename(self.root)

    def argv(self):
        access, secret = self.keys["ACCESS_KEY"], self.keys["SECRET_KEY"]
        if KIND == "s3s-fs":
            where = ["--host", self.address[0], "--port", str(self.port)]
            return [BIN, *where, "--access-key", access, "--secret-key", secret, self.root]
        if KIND == "minio":
            own = ["--cache-dir", self.ws.path("s3-cache"), "--metrics", "127.0.0.1:0", "--backup-meta", "0"]
            how = ["--multi-buckets", "--keep-etag", "--object-meta", "--no-banner", "--no-usage-report", *own]
            return [BIN, "--no-agent", "gateway", *how, self.meta, "%s:%d" % self.address]
        log = ["--access-log", self.log] if self.log else []
        return [BIN, "--port", "%s:%d" % self.address, "--keep-alive", "--quiet", *log, "posix", self.root]

    def start(self):
        env = self.ws.env(
            ROOT_ACCESS_KEY=self.keys["ACCESS_KEY"],
            ROOT_SECRET_KEY=self.keys["SECRET_KEY"],
            HOME="/nonexistent",
            RUST_LOG="off",
            MINIO_ROOT_USER=self.keys["ACCESS_KEY"],
            MINIO_ROOT_PASSWORD=self.keys["SECRET_KEY"],
        )
        self.process = subprocess.Popen(
            self.argv(),
            env=env,
            cwd=self.ws.dir,
            user=self.user.pw_uid,
            group=self.user.pw_gid,
            extra_groups=[],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.ws.children.append(self.process)
        wait_until(self.answers, 60, "an answer of " + KIND)

    def answers(self):
        assert self.process.poll() is None, KIND + " ended"
        try:
            socket.create_connection(self.address, timeout=1).close()
            return True
        except OSError:
            return False

    def stop(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def bucket(self, name):
        """The folder of a bucket; it need not exist."""
        return self.root / name

    def fill(self, bucket, source):
        """A bucket with the files of a folder as objects."""
        target = self.bucket(bucket)
        shutil.copytree(source, target)
        for where, dirs, files in os.walk(target):
            for name in ["", *dirs, *files]:
                os.chown(os.path.join(where, name), self.user.pw_uid, self.user.pw_gid)
        return "%s/%s" % (self.url, bucket)
