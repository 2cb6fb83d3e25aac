# SPDX-License-Identifier: Apache-2.0
"""Hosts as network namespaces behind one bridge."""

import itertools
import os
import socket
import subprocess
import time

import pytest

from cachefs import BIN
from waiting import SLOW

NUMBERS = itertools.count(os.getpid() % 200)


def ip(*argv, check=True):
    r = subprocess.run(["ip", *argv], stdout=-1, stderr=-2, text=True, timeout=20)
    assert r.returncode == 0 or not check, "ip %s: %s" % (" ".join(argv), r.stdout)
    return r.stdout


def bridge_of(number):
    return "cfsb%d" % number


def take_number():
    """One that no other test process has: the kernel makes one bridge of a name."""
    for _ in range(250):
        number = next(NUMBERS) % 250
        if not subprocess.run(["ip", "link", "add", bridge_of(number), "type", "bridge"], stderr=-3, timeout=20).returncode:
            return number
    raise AssertionError("no bridge can be made: " + ip("link", "add", bridge_of(number), "type", "bridge", check=False))


class Network:
    """hosts namespaces; the machine itself is at .address on the bridge."""

    def __init__(self, ws, hosts):
        self.number = take_number()
        self.bridge = bridge_of(self.number)
        self.address = "10.213.%d.1" % self.number
        self.names = ["cfs%d-%d" % (self.number, i) for i in range(hosts)]
        ws.cleanups.append(self.close)
        ip("addr", "add", self.address + "/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        for i, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("link", "add", self.port(i), "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", self.port(i), "master", self.bridge, "up")
            ip("-n", name, "addr", "add", self.host(i) + "/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")

    def host(self, i):
        return "10.213.%d.%d" % (self.number, 10 + i)

    def port(self, i):
        return "cfsv%d-%d" % (self.number, i)

    def cut(self, i):
        ip("link", "set", self.port(i), "down")

    def heal(self, i):
        ip("link", "set", self.port(i), "up")

    def narrow(self, i, mtu):
        """Packets from other hosts to this one that are larger are lost without a word."""
        for name in self.names:
            ip("-n", name, "link", "set", "eth0", "gso_max_segs", "1")  # the bridge lets batches pass
        ip("link", "set", self.port(i), "mtu", str(mtu))

    def slow(self, i, mbit):
        """Limits the host's sending rate; 0 removes the limit."""
        tc = ["tc", "-n", self.names[i], "qdisc"]
        if mbit:
            tc += ["replace", "dev", "eth0", "root", "tbf", "rate", "%dmbit" % mbit, "burst", "64kb", "latency", "500ms"]
        else:
            tc += ["del", "dev", "eth0", "root"]
        subprocess.run(tc, check=True, timeout=20)

    def close(self):
        # The kernel takes a namespace apart later: its links would meet those of the next test with the number.
        for i, name in enumerate(self.names):
            ip("link", "del", self.port(i), check=False)
            ip("netns", "del", name, check=False)
        ip("link", "del", self.bridge, check=False)


AT_NAME = """
mount --bind hosts /etc/hosts
getent ahosts "$2" | head -n 1 | grep "^127.0.0.1 "
cachefs mount "$1" mnt
echo content >mnt/f
grep -q content mnt/f
cachefs umount mnt
"""

STATUS_AT_NAME = """
mount --bind hosts /etc/hosts
getent ahosts "$2" | head -n 1 | grep "^127.0.0.1 "
cachefs status "$1"
"""


SEVERAL = ("127.0.0.1", "127.0.0.3", "127.0.0.4", "127.0.0.5")


class SilentFirst:
    """A server at .address and .port whose .name has more addresses, which are asked first: what is
    sent there gets no answer, as from a host that is away or behind a firewall."""

    name, address = "server.test", "127.0.0.2"

    def __init__(self, ws, port, silent=("127.0.0.1",)):
        self.ws = ws
        ws.path("hosts").write_text("".join("%s %s\n" % (a, self.name) for a in [*silent, self.address]))
        self.sockets = []
        ws.cleanups.append(self.close)
        for address in silent:
            self.silence(address, port)

    def silence(self, address, port):
        """The kernel drops what comes when nobody accepts and the queue is full."""
        self.sockets.append(socket.create_server((address, port), backlog=0))
        for _ in range(8):
            s = socket.socket()
            self.sockets.append(s)
            s.setblocking(False)
            s.connect_ex((address, port))
        with pytest.raises(TimeoutError):
            socket.create_connection((address, port), 0.5)

    def mount(self, url):
        """With the server's name in the URL: what a mount in a mount namespace of its own stores is there."""
        self.ws.path("mnt").mkdir()
        self.run(AT_NAME, url)

    def status(self, url):
        """Seconds that the command takes, with the server's name in the URL."""
        start = time.monotonic()
        self.run(STATUS_AT_NAME, url)
        return time.monotonic() - start

    def run(self, script, url):
        env = self.ws.env()
        env["PATH"] = "%s:%s" % (BIN, env["PATH"])
        # this namespace's copies of other tests' mounts would outlive their unmount
        script = "umount -a -l -t fuse.cachefs || :\n" + script
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-euxc", script, "sh", url, self.name]
        r = subprocess.run(
            argv, stdin=-3, stdout=-1, stderr=-2, text=True, timeout=60 * SLOW, env=env, cwd=self.ws.dir
        )
        assert r.returncode == 0, r.stdout

    def close(self):
        for s in self.sockets:
            s.close()
