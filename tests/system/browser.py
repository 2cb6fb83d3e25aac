# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, told what to do through two pipes (--remote-debugging-pipe)."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

from cachefs import SLOW

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page. errors: what the console, the page's script and its policy have complained about."""

    def __init__(self, folder):
        to_us, its_out = os.pipe()
        its_in, to_it = os.pipe()
        keep = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (its_in, its_out)]
        self.log = open(folder / "browser.log", "wb")
        self.process = subprocess.Popen(
            [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--disable-background-networking", "--no-first-run", "--remote-debugging-pipe",
             "--user-data-dir=%s" % (folder / "browser"), "about:blank"],
            preexec_fn=lambda: (os.dup2(keep[0], 3), os.dup2(keep[1], 4)),
            close_fds=False, stdin=-3, stdout=self.log, stderr=-2,
        )
        for fd in (its_in, its_out, *keep):
            os.close(fd)
        self.fd_in, self.fd_out = to_us, to_it
        self.left = b""
        self.number = 0
        self.errors = []
        self.requests = []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def _message(self, end):
        while b"\0" not in self.left:
            if not select.select([self.fd_in], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.fd_in, 1 << 16)
            assert piece, "the browser has ended"
            self.left += piece
        text, self.left = self.left.split(b"\0", 1)
        return json.loads(text)

    def _event(self, m):
        method, p = m.get("method"), m.get("params")
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(p["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.errors.append(json.dumps(p["args"]))
        elif method == "Log.entryAdded":
            self.errors.append(p["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])

    def call(self, method, **params):
        self.number += 1
        m = {"id": self.number, "method": method, "params": params}
        if self.session:
            m["sessionId"] = self.session
        os.write(self.fd_out, json.dumps(m).encode() + b"\0")
        end = time.monotonic() + 30 * SLOW
        while True:
            m = self._message(end)
            if m.get("id") == self.number:
                assert "error" not in m, m
                return m["result"]
            self._event(m)

    def open(self, url):
        self.call("Page.navigate", url=url)

    def eval(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in r, r
        return r["result"].get("value")

    def text(self, selector):
        return self.eval("document.querySelector(%s)?.textContent ?? ''" % json.dumps(selector))

    def shape(self, width, height, scheme="light"):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        for fd in (self.fd_in, self.fd_out):
            os.close(fd)
        self.log.close()
