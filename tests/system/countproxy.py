# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that counts round trips: changes of direction from server to client."""

import collections
import contextlib
import re
import selectors
import socket
import threading
import time


class CountingProxy:
    """Between a client and 127.0.0.1:port; .port is its own.

    A turn is what a client sends, in however many packets, before it hears from the server again.
    delay_s: each packet is held back as long, both ways. paused: none goes on.
    pause_at: it is with turn number so. cut(): every connection ends at once.
    cut_after(n): after n more turns, and no other is taken until go_on().
    lose(n, answered): the connection of the n-th turn from then on ends before the server gets it, or
    after the server has answered; the client does not see the answer. `lost` says that the turn has come.
    away: so do all other connections, and no other is taken until go_on(). `refuse` says that it was done.
    hold(n): the connection of the n-th turn from then on ends at the client's side. The server gets the
    turn at deliver(), which waits for its answer, and the end of the connection only after that.
    only: a pattern; turns whose first packet does not have it are not counted.
    ends: a pattern; an answer whose last bytes do not have it goes on. A server may begin to answer a long
    request of which packets are still to come.
    """

    def __init__(self, port, delay_s=0.0, only=b"", ends=b""):
        self.server_port, self.delay_s, self.only = port, delay_s, re.compile(only)
        self.ends = re.compile(ends)
        self.turns = 0
        self.last = None
        self.losing, self.lost = None, False
        self.holding, self.kept = None, []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.pairs = set()
        self.closed = False
        self.refuse = False
        self.paused, self.pause_at = False, None
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.refuse:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                client.close()
                continue
            for s in (client, server):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.pairs.add((client, server))
            threading.Thread(target=self._pump, args=(client, server), daemon=True).start()

    def _pump(self, client, server):
        heard = True  # the server spoke last
        tail = b""  # of the answer
        lost = None  # how the connection ends with this turn, of `losing`
        held = collections.deque()  # (when it goes on, where to, data)
        # SelectSelector: its timeouts are exact
        with contextlib.suppress(OSError, ValueError), selectors.SelectSelector() as sel:
            sel.register(client, selectors.EVENT_READ, server)
            sel.register(server, selectors.EVENT_READ, client)
            while True:
                wait = max(0.002 * self.paused, held[0][0] - time.monotonic()) if held else None
                for key, _ in sel.select(wait):
                    data = key.fileobj.recv(1 << 18)
                    if not data:
                        raise OSError
                    if key.fileobj is client:
                        if heard and self.only.search(data):
                            with self.lock:
                                self.turns += 1
                                self.paused |= self.turns == self.pause_at
                                late = self.last is not None and self.turns > self.last
                                lost = lost or self._loses()
                                if self.turns == self.holding:
                                    self.lost = True
                                    self.pairs.discard((client, server))
                                    self.kept.append((server, data))
                                    client.close()
                                    return
                            if lost and not lost[1]:
                                self._end(lost)
                            if late:
                                self.refuse = True
                                self.cut()
                                raise OSError
                        heard = False
                    else:
                        tail = (tail + data)[-8:]
                        heard = bool(self.ends.search(tail))
                        if lost:
                            self._end(lost)
                    held.append((time.monotonic() + self.delay_s, key.data, data))
                while held and held[0][0] <= time.monotonic() and not self.paused:
                    _, to, data = held.popleft()
                    to.sendall(data)
        with self.lock:
            self.pairs.discard((client, server))
        client.close()
        server.close()

    def cut(self):
        with self.lock:
            pairs = list(self.pairs)
        for pair in pairs:
            for s in pair:
                with contextlib.suppress(OSError):
                    s.shutdown(socket.SHUT_RDWR)

    def cut_after(self, turns):
        with self.lock:
            self.last = self.turns + turns

    def lose(self, turn, answered, away=False):
        with self.lock:
            self.losing, self.lost = (self.turns + turn, answered, away), False

    def hold(self, turn):
        with self.lock:
            self.holding, self.lost = self.turns + turn, False

    def deliver(self):
        with self.lock:
            kept, self.kept, self.holding = self.kept, [], None
        for server, data in kept:
            with contextlib.suppress(OSError):  # the server may have ended the connection
                server.sendall(data)
                server.settimeout(5)
                server.recv(1 << 16)
            server.close()

    def _end(self, lost):
        if lost[2]:
            self.refuse = True
            self.cut()
        raise OSError

    def _loses(self):
        if self.lost or not self.losing or self.turns < self.losing[0]:
            return None
        self.lost = True
        return self.losing

    def go_on(self):
        with self.lock:
            self.last, self.refuse = None, False

    def close(self):
        self.listener.close()
        self.cut()
        for server, _ in self.kept:
            server.close()

    def count(self, fn):
        """Turns while fn runs; what it returned is thrown away."""
        before = self.turns
        fn()
        return self.turns - before
