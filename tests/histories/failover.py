# SPDX-License-Identifier: Apache-2.0
"""Database servers of which one dies and another takes over, again and again, without the loss of a
change that was answered. url(i) is for the i-th mount; LOST matches what mounts log meanwhile."""

import servers
import test_mysql
import test_redis
from test_postgresql import query, standby_of
from waiting import wait_until


class RedisPair:
    """A master, a replica and a Sentinel. Redis answers before its replica has a change, so the master
    takes no changes for the moment before it dies."""

    LOST = test_redis.GONE
    FOR_EVER_MS = 3_600_000

    def __init__(self, ws):
        self.master = servers.started(ws, servers.Redis())
        self.replica = servers.started(ws, servers.Redis())
        self._follow()
        self.sentinel = servers.started(ws, test_redis.Sentinel(self.master.port))
        self._patience(self.FOR_EVER_MS)
        self._known()

    def url(self, i):
        return "redis://main,127.0.0.1:%d/0" % self.sentinel.port

    def server_url(self):
        return self.master.url("0")

    def _follow(self):
        """A replica that loads what it was sent answers nothing else."""
        import redis

        def follows():
            try:
                self.replica.connect("0").replicaof("127.0.0.1", self.master.port)
                return self.replica.connect("0").info("replication")["master_link_status"] == "up"
            except redis.exceptions.BusyLoadingError:
                return False

        wait_until(follows, 60, "the replica")

    def _patience(self, ms):
        """How long a master is silent before it counts as dead. A busy machine is silent for long, and
        a failover that nobody asked for would lose changes."""
        self.sentinel.connect("0").sentinel_set("main", "down-after-milliseconds", ms)

    def _known(self):
        def known():
            s = self.sentinel.connect("0")
            found = [r for r in s.sentinel_slaves("main") if r["port"] == self.replica.port]
            master = s.sentinel_master("main")
            alone = not found or found[0]["is_disconnected"] or found[0]["is_sdown"]
            return master["port"] == self.master.port and "failover_in_progress" not in master["flags"] and not alone

        wait_until(known, 60, "Sentinel to see the replica")

    def fail_over(self, rng):
        import redis

        def promoted():
            try:
                return self.replica.connect("0").info("replication")["role"] == "master"
            except redis.exceptions.ConnectionError:  # Sentinel ends the connections of all clients
                return False

        def caught_up():
            info = self.master.connect("0").info("replication")
            return any(r["offset"] == info["master_repl_offset"] for k, r in info.items() if k[:5] == "slave" and k[5:].isdigit())

        self.master.connect("0").execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        wait_until(caught_up, 30, "the replica to catch up")
        self.master.kill9()
        self._patience(500)
        wait_until(promoted, 60, "the replica to be promoted")
        self._patience(self.FOR_EVER_MS)
        self.master, self.replica = self.replica, self.master
        self.replica.options = ("--replicaof", "127.0.0.1", str(self.master.port))
        self.master.options = ()
        self.replica.start()
        self._follow()
        self._known()


class PostgresPair:
    """A primary and its synchronous standby. The next standby is a copy of the promoted one."""

    LOST = "database|connection|engine"
    OPTIONS = ("-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "wal_level=replica")

    def __init__(self, ws):
        self.ws = ws
        self.primary = servers.started(ws, servers.Postgres(*self.OPTIONS))
        (self.primary.data / "pg_hba.conf").open("a").write("\nlocal replication all trust\n")
        self.database = self.primary.database()
        self.ports = [self.primary.port, servers.free_port()]
        self._protect()

    def _protect(self):
        port = next(p for p in self.ports if p != self.primary.port)
        self.standby = standby_of(self.primary)
        self.standby.port = port
        servers.started(self.ws, self.standby)
        query(self.database, "ALTER SYSTEM SET synchronous_standby_names='*'")
        query(self.database, "SELECT pg_reload_conf()")
        wait_until(
            lambda: query(self.database, "SELECT sync_state FROM pg_stat_replication") == [("sync",)], 60, "the standby"
        )

    def url(self, i):
        hosts = ",".join("127.0.0.1:%d" % p for p in self.ports)
        return self.database.url.replace("127.0.0.1:%d" % self.database.server.port, hosts)

    def server_url(self):
        return self.database.url

    def fail_over(self, rng):
        dead = self.primary
        dead.kill9()
        self.primary = self.standby
        self.primary.run(
            servers.find("pg_ctl", *self.primary.folders), "promote", "-D", self.primary.data
        )
        dead.close()
        self.database = servers.Database(self.primary, self.database.name)
        self._protect()


class GaleraNodes:
    """Each mount has a server of its own, one of which dies and comes back."""

    LOST = test_mysql.LOST

    def __init__(self, ws):
        self.galera = servers.Galera()
        ws.cleanups.append(self.galera.close)
        self.galera.start()
        self.database = self.galera.nodes[0].database()
        self.galera.settle()

    def url(self, i):
        self.galera.settle()
        nodes = self.galera.nodes
        return nodes[i % len(nodes)].url(self.database.name)

    def server_url(self):
        return self.url(0)

    def fail_over(self, rng):
        node = rng.choice(self.galera.nodes)
        node.kill9()
        node.start()


KINDS = {"redis": RedisPair, "postgres": PostgresPair, "mysql": GaleraNodes}
