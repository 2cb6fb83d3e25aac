# SPDX-License-Identifier: Apache-2.0
"""versitygw over a folder of the test's own, as an unprivileged user on a loopback port."""

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

BIN = pathlib.Path("/var/cache/cachefs-tests/go/bin/versitygw")
ACCESS, SECRET = "cachefs-test", "a secret of the test+/="


class Server:
    def __init__(self, ws, host="127.0.0.1", log=None):
        """log: a file that gets a line per request."""
        assert BIN.exists(), "no %s: run scripts/install-versitygw" % BIN
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
        self.start()

    def start(self):
        env = self.ws.env(
            ROOT_ACCESS_KEY=self.keys["ACCESS_KEY"],
            ROOT_SECRET_KEY=self.keys["SECRET_KEY"],
            HOME="/nonexistent",
        )
        self.process = subprocess.Popen(
            [BIN, "--port", "%s:%d" % self.address, "--keep-alive", "--quiet"]
            + (["--access-log", self.log] if self.log else [])
            + ["posix", self.root],
            env=env,
            cwd=self.ws.dir,
            user=self.user.pw_uid,
            group=self.user.pw_gid,
            extra_groups=[],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.ws.children.append(self.process)
        wait_until(self.answers, 20, "an answer of versitygw")

    def answers(self):
        assert self.process.poll() is None, "versitygw ended"
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
