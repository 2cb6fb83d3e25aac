# SPDX-License-Identifier: Apache-2.0
"""A proxy that speaks enough of MySQL's protocol to play another server: an older or a clustered one.

https://dev.mysql.com/doc/dev/mysql-server/latest/PAGE_PROTOCOL.html
"""

import selectors
import struct

from countproxy import CountingProxy

COM_QUERY, COM_STMT_PREPARE, COM_STMT_EXECUTE = 3, 0x16, 0x17


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


class MysqlProxy(CountingProxy):
    """version: what the server says it is. A server that is not MariaDB gets no blocks.

    commits_fail: so many COMMITs to come are answered with `error` as a cluster's certification
    answers them: the transaction is rolled back. in_block: SQL put before each COMMIT of a block.
    lose: (text, function): the next prepared statement with that text is carried out, then the
    function is called, and the connection ends without the answer.
    """

    def __init__(self, port, version=None, in_block=""):
        self.version, self.in_block = version, in_block
        self.commits_fail, self.commits_failed = 0, 0
        self.lose = None
        self.error = (1213, b"Deadlock found when trying to get lock; try restarting transaction")
        super().__init__(port)

    def _pump(self, client, server):
        pair = {client: bytearray(), server: bytearray()}
        state = {"greeted": False, "refuse": False, "texts": {}, "preparing": None, "lost": None}
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
                        change = self._asked if up else self._answered
                        out = [packet(n, change(n, p, state)) for n, p in packets(buffer)]
                        (server if up else client).sendall(b"".join(out))
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
                    state["refuse"] = True
                    return bytes([COM_QUERY]) + b"ROLLBACK"
        if payload[0] == COM_STMT_PREPARE:
            state["preparing"] = payload
        with self.lock:
            if payload[0] == COM_STMT_EXECUTE and self.lose:
                if self.lose[0] in state["texts"].get(payload[1:5], b""):
                    state["lost"], self.lose = self.lose[1], None
        if payload[0] == COM_STMT_PREPARE and b"NOT ATOMIC" in payload:
            return payload.replace(b"COMMIT;", self.in_block.encode() + b"COMMIT;")
        return payload

    def _answered(self, number, payload, state):
        if not state["greeted"]:
            state["greeted"] = True
            rest = payload[payload.index(b"\0") :]
            return payload[:1] + self.version.encode() + rest if self.version else payload
        if state["lost"]:
            state["lost"]()
            raise OSError
        if state["preparing"] and number == 1 and payload[0] == 0:
            state["texts"][payload[1:5]] = state["preparing"]
            state["preparing"] = None
        if state["refuse"]:
            state["refuse"] = False
            code, text = self.error
            return b"\xff" + struct.pack("<H", code) + b"#40001" + text
        return payload
