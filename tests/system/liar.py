# SPDX-License-Identifier: Apache-2.0
"""Somebody between two members of a cache group: passes on what they say, or lies.

Knows the frames (docs/peer-protocol.md) and the records of TLS. A lie is a function of a Conversation
and one such unit, head and body, that returns what is sent instead, or raises Silence or Cut.
"""

import ctypes
import os
import socket
import struct
import threading

from crc32c import crc32c
from network import ip

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)

HELLO, CHALLENGE, PROOF, READY, REFUSE, GET, ANSWER = range(1, 8)
APPLICATION_DATA = 23
BULK = 4096  # TLS: a record with more is part of an answer


def header(head, length, crc=None):
    """The header of a frame with another length (and another checksum of the body), itself right."""
    crc = head[20:24] if crc is None else struct.pack(">I", crc)
    head = head[:16] + struct.pack(">I", length) + crc + head[24:28]
    return head + struct.pack(">I", crc32c(head))


def flip(data, at):
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


class Silence(Exception):
    """.last: is still sent, and nothing after it; the connection stays open."""

    def __init__(self, last=b""):
        self.last = last


class Cut(Exception):
    """.last: is still sent, then the connection is closed."""

    def __init__(self, last=b""):
        self.last = last


def socket_in(netns, address):
    """One that listens there, although this process is elsewhere."""
    made = []

    def work():
        with open("/run/netns/" + netns) as f:
            if LIBC.setns(f.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        made.append(socket.create_server(address, backlog=128))

    thread = threading.Thread(target=work)  # whose network goes with it
    thread.start()
    thread.join(10)
    return made[0]


def receive(sock, n):
    data = bytearray(n)
    view = memoryview(data)
    while n:
        got = sock.recv_into(view)
        if not got:
            raise EOFError
        view = view[got:]
        n -= got
    return bytes(data)


class Conversation:
    """One connection of the asker, and one to the owner for it."""

    def __init__(self, between, asker):
        self.between = between
        self.asker = asker
        self.owner = socket.create_connection(between.address, timeout=10)
        self.owner.settimeout(None)
        self.ended = threading.Event()
        self.said = {"asker": [], "owner": []}  # the first units of each
        for side, source, sink in (("asker", self.asker, self.owner), ("owner", self.owner, self.asker)):
            sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.pump, args=(side, source, sink), daemon=True).start()

    def unit(self, source):
        if self.between.tls:
            head = receive(source, 5)
            return head, receive(source, struct.unpack(">H", head[3:5])[0])
        head = receive(source, 32)
        return head, receive(source, struct.unpack(">I", head[16:20])[0])

    def pump(self, side, source, sink):
        try:
            while True:
                head, body = self.unit(source)
                sink.sendall(self.between.judge(self, side, head, body))
        except Silence as e:
            self.finish(sink, e.last)
            self.ended.wait()
        except Cut as e:
            self.finish(sink, e.last)
        except (OSError, EOFError):
            pass
        self.end()

    def finish(self, sink, last):
        try:
            sink.sendall(last)
        except OSError:
            pass

    def end(self):
        self.ended.set()
        for s in (self.asker, self.owner):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Between:
    """Sends the requests of member `asker` to member `owner` (indices of hosts) through here.

    The asker's host takes the owner's address for one of its own, where this listens instead. That
    goes for both directions, as packets that come from one's own address are dropped: what the
    owner asks is passed on unchanged.
    """

    def __init__(self, net, asker, owner, address, back, tls=False):
        """address, back: (host, port) where the owner and the asker listen."""
        self.address, self.tls = address, tls
        self.lock = threading.Lock()
        self.conversations = []
        self.recorded = None  # an honest Conversation
        self.told = 0
        self.lie = None
        self.back = None
        # Otherwise it answers other hosts that look for the owner: their packets would go to the wrong one of the two.
        ip("netns", "exec", net.names[asker], "sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1")
        ip("-n", net.names[asker], "addr", "add", address[0] + "/32", "dev", "lo")
        self.listener = socket_in(net.names[asker], address)
        threading.Thread(target=self.accept, daemon=True).start()
        if back:
            self.back = Between(net, owner, asker, back, None, tls)

    def accept(self):
        while True:
            try:
                asker, _ = self.listener.accept()
            except OSError:
                return
            try:
                c = Conversation(self, asker)
            except OSError:
                asker.close()
                continue
            with self.lock:
                self.conversations.append(c)

    def judge(self, c, side, head, body):
        """The bytes that are sent for it."""
        with self.lock:
            if len(c.said[side]) < 8:
                c.said[side].append(head + body)
            lie = self.lie
        if not lie or lie.side != side or not lie.about(c, head, body):
            return head + body
        with self.lock:
            self.told += 1
        return lie.tell(c, head, body)

    def begin(self, lie):
        """None: honest again. A lie about a handshake needs one: connections are cut."""
        with self.lock:
            if lie and not self.recorded:
                self.recorded = next(c for c in self.conversations if len(c.said["owner"]) >= 3)
            self.lie = lie
            self.told = 0
            cut = self.conversations if not lie or lie.cuts else []
            self.conversations = [] if cut else self.conversations
        for c in cut:
            c.end()

    def close(self):
        self.listener.close()
        with self.lock:
            for c in self.conversations:
                c.end()
        if self.back:
            self.back.close()


class Lie:
    def __init__(self, side, about, tell, kinds=(), cuts=False):
        """kinds: of errors, one of which the asker counts; none: it does not mind."""
        self.side, self.about, self.tell = side, about, tell
        self.kinds, self.cuts = kinds, cuts


def is_type(*types):
    return lambda c, head, body: head[5] in types


def is_answer(c, head, body):
    return head[5] == ANSWER and len(body) > 0


def is_bulk(c, head, body):
    return head[0] == APPLICATION_DATA and len(body) >= BULK


def raises(kind, part):
    """Sends part(head, body) of it, then nothing more."""

    def tell(c, head, body):
        raise kind(part(head, body))

    return tell


def half(head, body):
    return (head + body)[: len(head) + len(body) // 2]


def shorter(c, head, body):
    part = body[: len(body) // 2]
    return header(head, len(part), crc32c(part)) + part


def answer_of_another(c, head, body):
    """As it was sent on another connection, and checksums are right."""
    return c.between.recorded.said["owner"][2] + head + body


def recording(side):
    """All of another connection's beginning at once, then nothing."""

    def tell(c, head, body):
        raise Silence(b"".join(c.between.recorded.said[side]))

    return tell


GARBAGE = bytes(range(1, 102))
LOST = ("lost", "timeout", "protocol")

ANSWERS = {
    "a bit of the bytes": Lie("owner", is_answer, lambda c, h, b: h + flip(b, len(b) // 3), ["checksum"]),
    "a bit of the header": Lie("owner", is_answer, lambda c, h, b: flip(h, 17) + b, ["protocol"]),
    "a shorter body": Lie("owner", is_answer, shorter, ["protocol"]),
    "a longer body": Lie("owner", is_answer, lambda c, h, b: header(h, len(b) + 9) + b + GARBAGE[:9], ["protocol"]),
    "more than is allowed": Lie("owner", is_answer, lambda c, h, b: header(h, (16 << 20) + 1) + b, ["protocol"]),
    "the largest length": Lie("owner", is_answer, lambda c, h, b: header(h, 0xFFFFFFFF) + b, ["protocol"]),
    "garbage between": Lie("owner", is_answer, lambda c, h, b: GARBAGE + h + b, ["protocol"]),
    # The asker waits for that byte, in vain if no other answer follows on the connection. Small reads have the
    # object store asked beside it then.
    "a byte is missing": Lie(
        "owner", is_answer, lambda c, h, b: h + b[:9] + b[10:], ["checksum", "protocol", "canceled", "timeout"]
    ),
    "half, then closed": Lie("owner", is_answer, raises(Cut, half), ["lost"]),
    "half, then silence": Lie("owner", is_answer, raises(Silence, half), ["timeout"]),
    "nothing": Lie("owner", is_answer, raises(Silence, lambda h, b: b""), ["timeout"]),
    "twice": Lie("owner", is_answer, lambda c, h, b: h + b + h + b),
    "an answer of another connection": Lie("owner", is_answer, answer_of_another, cuts=True),
}

HANDSHAKES = {
    "half a challenge": Lie("owner", is_type(CHALLENGE), raises(Silence, half), ["connect", "timeout"], True),
    "no challenge": Lie("owner", is_type(CHALLENGE), raises(Silence, lambda h, b: b""), ["connect", "timeout"], True),
    "another challenge": Lie("owner", is_type(CHALLENGE), lambda c, h, b: h + flip(b, 40), ["checksum"], True),
    "a recorded challenge": Lie("owner", is_type(CHALLENGE), recording("owner"), ["auth"], True),
    "garbage": Lie("owner", is_type(CHALLENGE), lambda c, h, b: GARBAGE, ["protocol"], True),
    "not ready": Lie("owner", is_type(READY), raises(Silence, lambda h, b: b""), ["connect", "timeout"], True),
    "half a hello": Lie("asker", is_type(HELLO), raises(Silence, half), ["connect", "timeout", "lost"], True),
    "a recorded hello and proof": Lie("asker", is_type(HELLO), recording("asker"), ["auth"], True),
    "a wrong proof": Lie("asker", is_type(PROOF), lambda c, h, b: h + flip(b, 3), ["lost", "connect"], True),
}

REQUESTS = {
    "a bit of the request": Lie("asker", is_type(GET), lambda c, h, b: h + flip(b, 3), ["lost"]),
    "more than is allowed": Lie("asker", is_type(GET), lambda c, h, b: header(h, 0xFFFFFFFF) + b, ["lost"]),
    "garbage between": Lie("asker", is_type(GET), lambda c, h, b: GARBAGE + h + b, ["lost"]),
    "half, then silence": Lie("asker", is_type(GET), raises(Silence, half), ["timeout"]),
    "half, then closed": Lie("asker", is_type(GET), raises(Cut, half), ["lost"]),
}

RECORDS = {
    "a bit of the bytes": Lie("owner", is_bulk, lambda c, h, b: h + flip(b, len(b) // 3), LOST),
    "a bit of the header": Lie("owner", is_bulk, lambda c, h, b: flip(h, 1) + b, LOST),
    "the largest length": Lie("owner", is_bulk, lambda c, h, b: h[:3] + b"\xff\xff" + b, LOST),
    "garbage between": Lie("owner", is_bulk, lambda c, h, b: GARBAGE + h + b, LOST),
    "a byte is missing": Lie("owner", is_bulk, lambda c, h, b: h + b[:9] + b[10:], LOST),
    "twice": Lie("owner", is_bulk, lambda c, h, b: h + b + h + b, LOST),
    "half, then closed": Lie("owner", is_bulk, raises(Cut, half), LOST),
    "half, then silence": Lie("owner", is_bulk, raises(Silence, half), LOST),
    "the server's handshake of another connection": Lie(
        "owner", lambda c, h, b: True, recording("owner"), ("lost", "protocol", "auth", "connect"), True
    ),
    "the client's handshake of another connection": Lie(
        "asker", lambda c, h, b: True, recording("asker"), ("lost", "protocol", "auth", "connect"), True
    ),
    "half a hello": Lie("asker", lambda c, h, b: True, raises(Silence, half), ("connect", "timeout", "lost"), True),
}
