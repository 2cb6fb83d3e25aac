# SPDX-License-Identifier: Apache-2.0
"""A proxy that speaks enough of MySQL's protocol to play another server: an older or a clustered one.

https://dev.mysql.com/doc/dev/mysql-server/latest/PAGE_PROTOCOL.html
"""

import selectors
import struct

from countproxy import CountingProxy

COM_QUERY, COM_PING, COM_STMT_PREPARE, COM_STMT_EXECUTE, COM_SET_OPTION = 3, 0x0E, 0x16, 0x17, 0x1B
MORE_RESULTS = 8
# How the engine sends a batch, and what MariaDB has to look like for it.
WAYS = {
    "compound": {},
    "multi": {"version": "5.7.44"},
    "statements": {"version": "5.7.44", "several": False},
}


def packets(buffer):
    """Takes whole packets from the front of a bytearray: (sequence number, payload)."""
    while len(buffer) >= 4:
        n = int.from_bytes(buffer[:3], "little")
        if len(buffer) < 4 + n:
            return
        yield buffer[3], bytes(buffer[4 : 4 + n])
        del buffer[: 4 + n]


def packet(number, payload):
    return struct.pack("<I", len(payload))[:3] + bytes([number]) + payload


def is_multi(payload):
    """Whether it is a batch as a multi-statement query."""
    return payload.startswith(bytes([COM_QUERY]) + b"START TRANSACTION;")


def ends(payload):
    """Whether the answers to several statements end with it: an error, or an end without more."""
    if payload[0] == 0xFF:
        return True
    if payload[0] == 0 or (payload[0] == 0xFE and len(payload) < 9):
        return not int.from_bytes(payload[3:5], "little") & MORE_RESULTS
    return False


class MysqlProxy(CountingProxy):
    """version: what the server says it is. A server that is not MariaDB gets no compound statements,
    and multi-statement queries only with `several`.

    commits_fail: so many COMMITs to come are answered with `error` as a cluster's certification
    answers them: the transaction is rolled back. before_commit: SQL put before each COMMIT of a
    batch. lose: (text, function): the next prepared statement or multi-statement query with that
    text is carried out, then the function is called, and the connection ends without the answer.
    spoil: what is read behind the COMMIT of such a query is an error. stop_setups: of so many connections
    to come the setup is stopped, as KILL QUERY does it. no_handler: the handlers of compound statements do
    not run, which KILL QUERY does between an error and its handler: the error arrives without a ROLLBACK.
    stop_rollbacks: so many to come are stopped; `reused` counts what such a connection is asked afterwards.
    finds_nothing: (text, statement): such statements that contain the text, which ends with a condition, find
    no row while the table `nothing` has one. MariaDB answers so when it stops a statement while it plans it, which
    `stop` does that is called before such a statement.
    """

    def __init__(self, port, version=None, before_commit="", several=True):
        self.version, self.before_commit, self.several = version, before_commit, several
        self.commits_fail, self.commits_failed = 0, 0
        self.lose, self.spoil = None, False
        self.stop_setups, self.no_handler = 0, False
        self.stop_rollbacks, self.reused = 0, 0
        self.finds_nothing, self.stop = None, None
        self.error = (1213, b"Deadlock found when trying to get lock; try restarting transaction")
        super().__init__(port)

    def _pump(self, client, server):
        pair = {client: bytearray(), server: bytearray()}
        state = {"greeted": False, "refuse": None, "texts": {}, "preparing": None, "lost": None}
        heard = True  # the server spoke last
        try:
            with selectors.DefaultSelector() as sel:
                sel.register(client, selectors.EVENT_READ)
                sel.register(server, selectors.EVENT_READ)
                while True:
                    for key, _ in sel.select():
                        data = key.fileobj.recv(1 << 18)
                        if not data:
                            return
                        buffer = pair[key.fileobj]
                        buffer += data
                        up = key.fileobj is client
                        if up and heard:
                            with self.lock:
                                self.turns += 1
                        heard = not up
                        change = self._asked if up else self._answered
                        out = [(n, change(n, p, state)) for n, p in packets(buffer)]
                        (server if up else client).sendall(
                            b"".join(packet(n, p) for n, p in out if p is not None)
                        )
        except (OSError, ValueError):
            return
        finally:
            with self.lock:
                self.pairs.discard((client, server))
            client.close()
            server.close()

    def _asked(self, number, payload, state):
        if number != 0 or not payload:
            return payload
        if payload == bytes([COM_QUERY]) + b"COMMIT":
            with self.lock:
                if self.commits_fail:
                    self.commits_fail -= 1
                    self.commits_failed += 1
                    state["refuse"] = self.error
                    return bytes([COM_QUERY]) + b"ROLLBACK"
        with self.lock:
            self.reused += "left" in state
            if payload == bytes([COM_QUERY]) + b"ROLLBACK" and self.stop_rollbacks:
                self.stop_rollbacks -= 1
                state["left"] = True
                state["refuse"] = 1317, b"Query execution was interrupted"
                return bytes([COM_PING])
        if payload.startswith(bytes([COM_QUERY]) + b"SET SESSION"):
            with self.lock:
                if self.stop_setups:
                    self.stop_setups -= 1
                    state["refuse"] = 1317, b"Query execution was interrupted"
                    return bytes([COM_PING])
        if payload[0] == COM_SET_OPTION and not self.several:
            state["refuse"] = 1047, b"Unknown command"
            return bytes([COM_PING])
        if payload[0] == COM_STMT_PREPARE:
            state["preparing"] = payload
        with self.lock:
            text = payload if is_multi(payload) else b""
            if payload[0] == COM_STMT_EXECUTE:
                text = state["texts"].get(payload[1:5], b"")
            if self.lose and self.lose[0] in text:
                state["lost"], self.lose = self.lose[1], None
        if text and self.stop and all(x in text for x in self.finds_nothing):
            self.stop()
        if payload[0] == COM_STMT_PREPARE and self.no_handler:
            payload = payload.replace(b"BEGIN ROLLBACK; RESIGNAL; END", b"BEGIN RESIGNAL; END")
        if payload[0] == COM_STMT_PREPARE and self.finds_nothing:
            text, statement = self.finds_nothing
            if statement in payload:
                payload = payload.replace(text, text + b" AND NOT EXISTS(SELECT 1 FROM nothing WHERE SLEEP(0)=0)")
        if payload[0] == COM_STMT_PREPARE and b"NOT ATOMIC" in payload:
            return payload.replace(b"COMMIT;", self.before_commit.encode() + b"COMMIT;")
        if is_multi(payload) and self.spoil:
            return payload.replace(b"COMMIT; SELECT ", b"COMMIT; SELECT no_such_column,")
        if is_multi(payload) and self.before_commit:  # one statement, with one answer, in its place
            block = b"BEGIN NOT ATOMIC %s COMMIT; END" % self.before_commit.encode()
            return payload.replace(b"COMMIT", block)
        return payload

    def _answered(self, number, payload, state):
        if not state["greeted"]:
            state["greeted"] = True
            rest = payload[payload.index(b"\0") :]
            return payload[:1] + self.version.encode() + rest if self.version else payload
        if state["lost"]:
            if not ends(payload):
                return None
            state["lost"]()
            raise OSError
        if state["preparing"] and number == 1 and payload[0] == 0:
            state["texts"][payload[1:5]] = state["preparing"]
            state["preparing"] = None
        if state["refuse"]:
            (code, text), state["refuse"] = state["refuse"], None
            return b"\xff" + struct.pack("<H", code) + b"#40001" + text
        return payload
