# SPDX-License-Identifier: Apache-2.0
"""A small HTTP proxy in front of an object store that breaks what a test tells it to break."""

import collections
import re
import socket
import ssl
import threading
import time

PIECE = 65536


class Request:
    def __init__(self, method, path, headers, head):
        self.method, self.path, self.headers, self.head = method, path, headers, head
        self.at = time.monotonic()
        self.connection = None

    def __repr__(self):
        return "%s %s" % (self.method, self.path)


class Fault:
    """A fault of the next `times` requests (None: all) that match.

    status    answered with it, not forwarded; with `headers` and `body`
    delay     seconds before the answer begins
    cut       the answer ends, and the connection, after so many bytes of its body
    cut_request  the connection ends after so many bytes of the request's body
    shorten   the body lacks its last so many bytes, and Content-Length agrees
    flip      the byte at this place of the body is changed
    rewrite   function from the whole body to another
    swap      "body": the body of another answer of this length; "answer": all of that answer
    rewrite_request  function from the request's whole body to another; Content-Length agrees
    swap_request     the request's body is that of another one of this length
    lose      the request is not forwarded, and answered as another one of its kind was
    every     only each so-manieth of the requests that match is met
    raw       bytes that are the whole answer; the connection ends with it
    refuse    the connection is closed without an answer
    before, after  function that is called before the request is forwarded, and when the server has
              answered it and the client does not have the answer; False: the connection ends with it
    rate      bytes per second of the body
    """

    def __init__(self, method=".*", path=".*", times=None, skip=0, every=1, **what):
        self.every, self.matched = every, 0
        self.method, self.path = re.compile(method), re.compile(path)
        self.times, self.skip, self.what, self.hits = times, skip, what, 0
        self.done = 0  # how often bytes were changed or swapped

    def matches(self, request):
        return self.method.fullmatch(request.method) and self.path.search(request.path)

    def __getattr__(self, name):
        return self.what.get(name)


class Broken(Exception):
    pass


class Stream:
    """Lines and bytes of one side."""

    def __init__(self, sock):
        self.sock, self.buf = sock, b""

    def more(self):
        data = self.sock.recv(PIECE)
        if not data:
            raise Broken
        self.buf += data

    def head(self):
        while b"\r\n\r\n" not in self.buf:
            self.more()
        head, self.buf = self.buf.split(b"\r\n\r\n", 1)
        return head + b"\r\n\r\n"

    def pieces(self, n):
        while n:
            if not self.buf:
                self.more()
            piece, self.buf = self.buf[:n], self.buf[n:]
            n -= len(piece)
            yield piece

    def chunked(self):
        while True:
            while b"\r\n" not in self.buf:
                self.more()
            line, self.buf = self.buf.split(b"\r\n", 1)
            n = int(line.split(b";")[0], 16)
            yield from self.pieces(n)
            for _ in self.pieces(2):
                pass
            if n == 0:
                return

    def close(self):
        for step in (lambda: self.sock.shutdown(socket.SHUT_RDWR), self.sock.close):
            try:
                step()
            except OSError:
                pass


def parse_head(head):
    lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines[1:]:
        if line:
            name, value = line.split(":", 1)
            headers[name.lower()] = value.strip()
    return lines[0], headers


class Proxy:
    """target: (host, port), or None: every request must be met by a fault."""

    def __init__(self, target=None, cert=None, client_ca=None):
        self.target = target
        self.lock = threading.Lock()
        self.faults = []
        self.requests = []
        self.connections = 0
        self.live = set()
        self.answers, self.bodies = {}, {}  # the last few, by method and length
        self.edit_head = None  # function from the head of an answer to another
        self.keeping = False  # bodies and answers, for faults that swap them
        self.tls = None
        if cert:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(cert)
            if client_ca:
                self.tls.load_verify_locations(client_ca)
                self.tls.verify_mode = ssl.CERT_REQUIRED
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        self.url = "%s://127.0.0.1:%d" % ("https" if cert else "http", self.port)
        threading.Thread(target=self.accept, daemon=True).start()

    def add(self, *args, **kw):
        fault = Fault(*args, **kw)
        with self.lock:
            self.faults.append(fault)
        return fault

    def clear(self):
        with self.lock:
            self.faults.clear()
            self.requests.clear()

    def seen(self, method=".*", path=".*"):
        with self.lock:
            return [
                r
                for r in self.requests
                if re.fullmatch(method, r.method) and re.search(path, r.path)
            ]

    def close(self):
        self.listener.close()
        with self.lock:
            live = list(self.live)
        for stream in live:
            stream.close()

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def choose(self, request):
        with self.lock:
            self.requests.append(request)
            for fault in self.faults:
                if not fault.matches(request):
                    continue
                fault.matched += 1
                if fault.matched % fault.every:
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                if fault.times == 0:
                    continue
                if fault.times:
                    fault.times -= 1
                fault.hits += 1
                return fault
        return Fault()

    def another(self, kept, what, item, same):
        """Keeps item among those of its kind; one that is not the same, if there is."""
        with self.lock:
            there = kept.setdefault(what, collections.deque(maxlen=16))
            others = [other for other in there if not same(other)]
            if item:
                there.append(item)
            return others[-1] if others else None

    def serve(self, sock):
        upstream = None
        client = Stream(sock)
        with self.lock:
            self.connections += 1
            number = self.connections
            self.live.add(client)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls:
                client.sock = self.tls.wrap_socket(sock, server_side=True)
            if self.target:
                upstream = Stream(socket.create_connection(self.target, timeout=120))
                upstream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while self.exchange(client, upstream, number):
                pass
        except (OSError, Broken, ValueError):
            pass
        finally:
            with self.lock:
                self.live.discard(client)
            client.close()
            if upstream:
                upstream.close()

    def exchange(self, client, upstream, number):
        head = client.head()
        line, headers = parse_head(head)
        method, path, _ = line.split(" ")
        if path.startswith("http://"):  # we are somebody's http_proxy
            short = "/" + path.split("/", 3)[3]
            head = head.replace(path.encode("latin-1"), short.encode("latin-1"), 1)
            path = short
        request = Request(method, path, headers, head)
        request.connection = number
        fault = self.choose(request)
        if fault.refuse:
            return False
        if fault.raw is not None:
            for _ in client.pieces(int(headers.get("content-length", 0))):
                pass
            client.sock.sendall(fault.raw)
            return False
        body = client.pieces(int(headers.get("content-length", 0)))
        if fault.cut_request is not None:
            left = fault.cut_request
            for piece in body:
                left -= len(piece)
                if left <= 0:
                    return False
        if fault.status or not upstream:
            for _ in body:
                pass
            time.sleep(fault.delay or 0)
            return self.answer(client, request, fault)
        if fault.rewrite_request or fault.swap_request or method == "PUT" and self.keeping:
            data = b"".join(body)
            other = self.another(
                self.bodies, (method, len(data)), data, lambda other: other == data
            )
            if fault.swap_request:
                fault.done += other is not None
                data = other or data
            if fault.rewrite_request:
                data = fault.rewrite_request(data)
                head = re.sub(rb"(?i)content-length:[^\r]*", b"Content-Length: %d" % len(data), head)
                fault.done += 1
            body = iter((data,))
        if fault.before and fault.before() is False:
            return False
        if fault.lose:
            other = self.another(self.answers, (method, 0), None, lambda other: other[0] == path)
            if other:
                for _ in body:
                    pass
                fault.done += 1
                client.sock.sendall(other[1] + other[2])
                return True
        upstream.sock.sendall(head)
        for piece in body:
            upstream.sock.sendall(piece)
        return self.relay(client, upstream, request, fault)

    def answer(self, client, request, fault):
        body = fault.body or b""
        if isinstance(body, str):
            body = body.encode()
        headers = {"Content-Length": len(body), **(fault.headers or {})}
        text = "HTTP/1.1 %d Because\r\n" % (fault.status or 599)
        text += "".join("%s: %s\r\n" % item for item in headers.items()) + "\r\n"
        client.sock.sendall(text.encode() + (b"" if request.method == "HEAD" else body))
        return True

    def relay(self, client, upstream, request, fault):
        head = upstream.head()
        if fault.after and fault.after() is False:
            return False
        if self.edit_head:
            head = self.edit_head(head)
        line, headers = parse_head(head)
        status = int(line.split(" ")[1])
        if request.method == "HEAD" or status in (204, 304) or status < 200:
            body = iter(())
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            body = upstream.chunked()
            data = b"".join(body)
            head = re.sub(rb"(?i)transfer-encoding:[^\r]*", b"Content-Length: %d" % len(data), head)
            body = iter((data,))
        else:
            body = upstream.pieces(int(headers.get("content-length", 0)))
        time.sleep(fault.delay or 0)
        if self.keeping and status in (200, 206):
            data = b"".join(body)
            place = (request.path, request.headers.get("range"))
            what = (request.method, len(data))
            mine = (request.path, head, data, place)
            other = self.another(self.answers, what, mine, lambda other: other[3] == place)
            if fault.swap and other:
                fault.done += 1
                data = other[2]
                head = other[1] if fault.swap == "answer" else head
            body = iter((data,))
        if fault.shorten is not None or fault.rewrite or fault.flip is not None:
            data = b"".join(body)
            if fault.shorten is not None:
                data = data[: -fault.shorten]
            if fault.rewrite:
                data = fault.rewrite(data)
            if fault.flip is not None and fault.flip < len(data):
                data = bytearray(data)
                data[fault.flip] ^= 1
                fault.done += 1
                data = bytes(data)
            head = re.sub(rb"(?i)content-length:[^\r]*", b"Content-Length: %d" % len(data), head)
            body = iter((data,))
        client.sock.sendall(head)
        left = fault.cut
        for piece in body:
            if left is not None:
                client.sock.sendall(piece[:left])
                left -= len(piece)
                if left <= 0:
                    return False
                continue
            if fault.rate:
                for i in range(0, len(piece), 4096):
                    client.sock.sendall(piece[i : i + 4096])
                    time.sleep(4096 / fault.rate)  # the throttle: it waits for nothing
                continue
            client.sock.sendall(piece)
        return True


def xml_error(code, message="because the test says so"):
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>%s</Code><Message>%s</Message>'
        "<Resource>x</Resource></Error>" % (code, message)
    )
