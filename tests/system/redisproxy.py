# SPDX-License-Identifier: Apache-2.0
"""Proxies on the way to a Redis server, which know its protocol: they cut, count and lie."""

import contextlib
import queue
import re
import select
import socket
import threading


class Proxy:
    """On the way to the server: serve() has each pair of connections in a thread of its own. No
    connection comes through while `go_on` is not set."""

    def __init__(self, port):
        self.target, self.go_on = port, threading.Event()
        self.go_on.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            self.go_on.wait()
            s = socket.create_connection(("127.0.0.1", self.target))
            threading.Thread(target=self.serve, args=(c, s), daemon=True).start()

    def close(self):
        self.go_on.set()
        self.listener.close()


class CuttingProxy(Proxy):
    """Lets a request through to the server and cuts the connection before the answer: this side cannot
    know whether it was done. Once per `every` answers."""

    def __init__(self, port, every=40):
        self.every, self.n, self.cuts = every, 0, 0
        super().__init__(port)

    def serve(self, c, s):
        threading.Thread(target=self.forward, args=(c, s), daemon=True).start()
        self.answer(s, c)

    def forward(self, a, b):
        try:
            while True:
                d = a.recv(65536)
                if not d:
                    break
                b.sendall(d)
        except OSError:
            pass
        for x in (a, b):
            x.close()

    def answer(self, a, b):
        try:
            while True:
                d = a.recv(65536)
                self.n += 1
                if not d:
                    break
                if self.every and self.n % self.every == 0:
                    self.cuts += 1
                    break
                b.sendall(d)
        except OSError:
            pass
        for x in (a, b):
            try:
                x.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            x.close()


class ForgetfulProxy(Proxy):
    """Cuts the connection when a change that names `word` has been done, and takes no other until it is
    told to."""

    def __init__(self, port, word):
        self.word, self.cut = word, threading.Event()
        super().__init__(port)

    def serve(self, c, s):
        try:
            while True:
                ready, _, _ = select.select([c, s], [], [])
                d = ready[0].recv(65536)
                if not d:
                    break
                (s if ready[0] is c else c).sendall(d)
                if ready[0] is c and self.word in d and b"zcachefs:done" in d and not self.cut.is_set():
                    answer = s.recv(65536)
                    assert answer
                    if answer.startswith(b"-NOSCRIPT"):  # not done: the text of the script follows
                        c.sendall(answer)
                        continue
                    self.go_on.clear()
                    self.cut.set()
                    break
        except OSError:
            pass
        c.close()
        s.close()


class RelayingProxy(Proxy):
    """Has a function for each connection: what it makes of bytes, of the client or of the server, goes on."""

    def relay(self):
        raise NotImplementedError

    def serve(self, c, s):
        relay = self.relay()
        try:
            while True:
                ready, _, _ = select.select([c, s], [], [])
                d = ready[0].recv(65536)
                if not d:
                    break
                d = relay(d, ready[0] is c)
                (s if ready[0] is c else c).sendall(d)
        except OSError:
            pass
        c.close()
        s.close()


class CountingProxy(RelayingProxy):
    """Counts connections, and requests that have `word`."""

    def __init__(self, port, word):
        self.word, self.connections, self.seen = word, 0, 0
        super().__init__(port)

    def relay(self):
        self.connections += 1

        def count(d, of_client):
            self.seen += d.count(self.word) if of_client else 0
            return d

        return count


class PausingProxy(RelayingProxy):
    """Calls `then`, once, before the server gets the request that follows one with `word`."""

    def __init__(self, port, word, then):
        self.word, self.then, self.called = word, then, False
        super().__init__(port)

    def relay(self):
        seen = False

        def pause(d, of_client):
            nonlocal seen
            if of_client and seen and not self.called:
                self.called = True
                self.then()
            seen = seen or of_client and self.word in d
            return d

        return pause


class RepeatingProxy(RelayingProxy):
    """Gives these cursors in turn, for ever, in the answers of one kind of scan."""

    def __init__(self, port, word, cursors):
        self.word, self.given, self.cursors = b"\r\n%s\r\n" % word, 0, cursors
        super().__init__(port)

    def relay(self):
        scans = False

        def replace(d, of_client):
            nonlocal scans
            if of_client:
                scans = self.word in d
            elif scans:
                at = b"%d" % self.cursors[self.given % len(self.cursors)]
                cursor = b"*2\r\n$%d\r\n%s\r\n" % (len(at), at)
                d, n = re.subn(rb"^\*2\r\n\$\d+\r\n\d+\r\n", cursor, d)
                self.given += n
            return d

        return replace


def read_value(f):
    """The bytes of one value of the protocol, and it: a list, or its bytes."""
    line = f.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError
    n = int(line[1:]) if line[:1] in b"$*" else -1
    if line[:1] == b"$" and n >= 0:
        value = f.read(n + 2)
        return line + value, value[:-2]
    if line[:1] != b"*":
        return line, line[1:-2]
    parts = [read_value(f) for _ in range(n)]
    return line + b"".join(raw for raw, _ in parts), [value for _, value in parts]


def bulk(b):
    return b"$%d\r\n%s\r\n" % (len(b), b)


class DoublingProxy(Proxy):
    """Gives everything that a scan finds twice, as a server may while it moves keys to another table. `of`
    is in the words of the scans that it does this to."""

    def __init__(self, port, of=b""):
        self.of, self.doubled = re.compile(of), 0
        super().__init__(port)

    def serve(self, c, s):
        asked = queue.SimpleQueue()
        threading.Thread(target=self.ask, args=(c, s, asked), daemon=True).start()
        try:
            with s.makefile("rb") as f:
                while True:
                    raw, value = read_value(f)
                    c.sendall(self.double(asked.get(), value) or raw)
        except (OSError, EOFError):
            pass
        for x in (c, s):
            with contextlib.suppress(OSError):
                x.shutdown(socket.SHUT_RDWR)
            x.close()

    @staticmethod
    def ask(c, s, asked):
        try:
            with c.makefile("rb") as f:
                while True:
                    raw, request = read_value(f)
                    asked.put(request)
                    s.sendall(raw)
        except (OSError, EOFError):
            pass
        with contextlib.suppress(OSError):
            s.shutdown(socket.SHUT_RDWR)

    def double(self, request, value):
        if not request[0].endswith(b"SCAN") or not self.of.search(b" ".join(request)):
            return None
        if not isinstance(value, list) or not value[1]:
            return None
        cursor, found = value
        self.doubled += 1
        return b"*2\r\n%s*%d\r\n%s" % (bulk(cursor), 2 * len(found), 2 * b"".join(map(bulk, found)))
