# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that lets so many bytes through in a second, over all connections together."""

import contextlib
import socket
import threading
import time

from servers import free_port

PIECE = 64 << 10


class SlowProxy:
    """Between clients of (host, .port) and the server; what servers send is slow, what clients send
    is not, or with `upwards` the other way round. rate: bytes in a second, may be changed at any time;
    0: no limit. only: addresses of the clients that it holds for; None: all."""

    def __init__(self, host, server, rate=0, upwards=False):
        self.server, self.rate, self.upwards = server, rate, upwards
        self.only = None
        self.free_at = 0.0
        self.lock = threading.Lock()
        self.port = free_port()  # other addresses may need the same one (network.SilentFirst)
        self.listener = socket.create_server((host, self.port), backlog=256)
        self.url = "http://%s:%d" % (host, self.port)
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, peer = self.listener.accept()
                server = socket.create_connection(self.server)
            except OSError:
                return
            for s in (client, server):
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.upwards:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)
            up, down = (peer[0], None) if self.upwards else (None, peer[0])
            for src, dst, to in ((client, server, up), (server, client, down)):
                threading.Thread(target=self._pump, args=(src, dst, to), daemon=True).start()

    def _pass(self, n):
        """Waits for the turn of n bytes."""
        with self.lock:
            if not self.rate:
                return
            now = time.monotonic()
            self.free_at = max(self.free_at, now) + n / self.rate
            wait = self.free_at - now
        time.sleep(wait)  # the rate itself

    def _pump(self, src, dst, to):
        with contextlib.suppress(OSError):
            while data := src.recv(PIECE):
                if to and (self.only is None or to in self.only):
                    self._pass(len(data))
                dst.sendall(data)
        for s in (src, dst):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
