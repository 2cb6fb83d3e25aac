# SPDX-License-Identifier: Apache-2.0
"""Database servers for tests: unprivileged, on loopback and a unix socket, their own directories.

One server of a kind per test run; each test takes a fresh database from it:

    from servers import ENGINES, mariadb_server, postgres_server, redis_server   # in a test file
    db = postgres_server().database()        # a Database: db.url, db.connect(), db.load_fixture()
    own = started(ws, Postgres())            # a private server, to be killed and restarted

Durability is off: what a test sees survives kill -9 of the server, not of the machine.
"""

import atexit
import contextlib
import ctypes
import gzip
import itertools
import os
import pathlib
import pwd
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "check"))

import fixtures  # noqa: E402
from waiting import SLOW, wait_until  # noqa: E402

USER, PASSWORD = "cachefs", "se:cr@t/"  # a password that a URL has to escape
QUOTED = "se%3Acr%40t%2F"
_libc = ctypes.CDLL(None, use_errno=True)


def find(program, *folders):
    """That of CACHEFS_TEST_SERVERS, a folder, else the newest of a program that may be outside of PATH."""
    chosen = os.path.join(os.environ.get("CACHEFS_TEST_SERVERS") or "/nonexistent", program)
    if os.access(chosen, os.X_OK):
        return chosen
    for pattern in folders:
        found = sorted(pathlib.Path("/").glob(pattern.lstrip("/") + "/" + program))
        if found:
            return str(found[-1])
    found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if not found:
        raise FileNotFoundError("%s is not installed: run scripts/install-deps test" % program)
    return found


def free_port():
    """Below the ports that the kernel gives to clients: none takes it before the server listens."""
    while not is_free(port := random.randrange(20000, 32768)):
        pass
    return port


def is_free(port):
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def certificate(folder, name):
    """A self-signed one of 127.0.0.1: the paths of it and of its key, which any server may read."""
    cert, key = str(folder / (name + ".pem")), str(folder / (name + ".key"))
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=" + name, "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
        timeout=60 * SLOW,
    )
    os.chmod(key, 0o644)
    return cert, key


def _die_with_parent():
    _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Database:
    """A fresh, empty database. url: as a META-URL; connect(): the Python driver's connection."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        self.scheme = server.scheme
        self.url = server.url(name)
        self.unix_url = server.unix_url(name)

    def connect(self):
        return self.server.connect(self.name)

    def load_fixture(self, name):
        """Puts the rows of a golden volume of this engine into it."""
        self.server.load(self.name, fixtures.HOME / name)

    def drop(self):
        self.server.drop(self.name)


class Server:
    """Started by start(), ended by stop(); kill9() and start() again keep the data."""

    users = ("nobody",)
    where = "/tmp"  # its directory is made there

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cachefs-server.", dir=self.where))
        self.port = free_port()
        self.socket = str(self.dir / "socket")
        self.process = self.standby = None
        self.numbers = itertools.count(1)
        self.account = None
        self.env = {}  # besides the usual
        if os.geteuid() == 0:
            self.account = next(u for u in self.users if self._exists(u))
            entry = pwd.getpwnam(self.account)
            os.chown(self.dir, entry.pw_uid, entry.pw_gid)
        os.chmod(self.dir, 0o755)

    @staticmethod
    def _exists(user):
        try:
            return bool(pwd.getpwnam(user))
        except KeyError:
            return False

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        self.close()

    def _as_user(self):
        kw = {"cwd": str(self.dir), "env": {"PATH": os.environ["PATH"], "HOME": str(self.dir), **self.env}}
        if self.account:
            gid = pwd.getpwnam(self.account).pw_gid
            kw.update(user=self.account, group=gid, extra_groups=[])
        return kw

    def run(self, *argv, **kw):
        r = subprocess.run(
            [str(a) for a in argv],
            capture_output=True,
            timeout=120 * SLOW,
            **{**self._as_user(), **kw},
        )
        assert r.returncode == 0, "%s: %s%s" % (argv[0], r.stdout.decode(), r.stderr.decode())
        return r.stdout

    def log(self):
        return (self.dir / "log").read_text("utf-8", "replace")

    def _stand_by(self):
        """A process that becomes the server when it reads the command. One that is forked while the
        server is down can wait for ever: it closes the files that threads of the test have open on a
        mount, and closing them needs the server."""
        with open(self.dir / "log", "ab") as log:
            return subprocess.Popen(
                ["/bin/sh", "-c", 'read -r command && eval "exec $command </dev/null"'],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
                **self._as_user(),
            )

    def start(self):
        """Waits until it answers."""
        command = shlex.join(str(a) for a in self.argv())
        self.process = self.standby or self._stand_by()
        self.standby = None
        with self.process.stdin as pipe:
            pipe.write(command.encode() + b"\n")

        def ready():
            assert self.process.poll() is None, "it has ended"
            return self.answers()

        try:
            wait_until(ready, 60, "an answer")
        except (AssertionError, TimeoutError) as e:
            raise RuntimeError("%s did not start: %s\n%s" % (self.scheme, e, self.log()[-3000:]))
        self.prepare()
        self.standby = self._stand_by()
        return self

    def prepare(self):
        """After every start."""

    def answers(self):
        try:
            return self.is_ready()
        except ImportError:
            raise
        except Exception:  # each driver has its own, and any of them means: not yet
            return False

    def is_ready(self):
        """Asked until it is true; may raise whatever the driver does."""
        self.connect(self.admin_database).close()
        return True

    def _children(self):
        path = "/proc/%d/task/%d/children" % (self.process.pid, self.process.pid)
        return [int(p) for p in pathlib.Path(path).read_text().split()]

    def stop(self, sig=signal.SIGTERM):
        """The server's children, too, are gone afterwards: they hold its shared memory."""
        if self.process and self.process.poll() is None:
            children = self._children()
            self.process.send_signal(sig)
            for pid in (self.process.pid, *children):  # also what a test has frozen
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            try:
                self.process.wait(30 * SLOW)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(30)
            wait_until(
                lambda: not any(os.path.exists("/proc/%d" % p) for p in children),
                30,
                "the end of the server's children",
            )
        self.process = None

    def kill9(self):
        self.stop(signal.SIGKILL)

    def close(self):
        self.kill9()
        if self.standby:
            self.standby.stdin.close()
            self.standby.kill()
            self.standby.wait(30 * SLOW)
        shutil.rmtree(self.dir, ignore_errors=True)

    def database(self):
        name = self.create("t%d" % next(self.numbers))
        return Database(self, name)


class Redis(Server):
    scheme = "redis"
    users = ("redis", "nobody")
    admin_database = "0"

    def __init__(self, *options):
        super().__init__()
        self.options = options

    def argv(self):
        return [
            find("redis-server"),
            *("--port", self.port, "--bind", "127.0.0.1", "--unixsocket", self.socket),
            *("--unixsocketperm", "777", "--dir", self.dir, "--save", "", "--appendonly", "no"),
            *("--databases", "1024", "--maxmemory-policy", "noeviction", "--daemonize", "no"),
            *self.options,
        ]

    def connect(self, name):
        import redis

        c = redis.Redis(unix_socket_path=self.socket, db=int(name))
        c.ping()
        return c

    def url(self, name):
        return "redis://127.0.0.1:%d/%s" % (self.port, name)

    def unix_url(self, name):
        return "unix://%s?db=%s" % (self.socket, name)

    def create(self, name):
        return name[1:]  # a number

    def drop(self, name):
        self.connect(name).flushdb()

    def load(self, name, folder):
        commands = gzip.decompress((folder / "load.resp.gz").read_bytes())
        out = self.run(find("redis-cli"), "-s", self.socket, "-n", name, "--pipe", input=commands)
        assert b"errors: 0" in out, out


class Postgres(Server):
    scheme = "postgres"
    users = ("postgres", "nobody")
    admin_database = "postgres"
    folders = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")

    def __init__(self, *options):
        super().__init__()
        self.options = options
        self.data = self.dir / "data"
        secret = self.dir / "secret"
        secret.write_text(PASSWORD)
        os.chmod(secret, 0o644)
        self.run(
            find("initdb", *self.folders),
            *("-D", self.data, "-U", USER, "--no-sync", "-E", "UTF8", "--locale=C"),
            *("--auth-local=trust", "--auth-host=scram-sha-256", "--pwfile", secret),
        )

    def argv(self):
        settings = {
            "listen_addresses": "127.0.0.1",
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "max_connections": "300",
            "shared_buffers": "64MB",
            # No other code removes the files of a killed server in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
            "autovacuum_naptime": "10s",
        }
        return [
            *(find("postgres", *self.folders), "-D", self.data, "-k", self.dir, "-p", self.port),
            *(x for k, v in settings.items() for x in ("-c", "%s=%s" % (k, v))),
            *self.options,
        ]

    def stop(self, sig=signal.SIGINT):  # a fast shutdown
        super().stop(sig)

    def connect(self, name):
        import psycopg2

        return psycopg2.connect(host=str(self.dir), port=self.port, user=USER, dbname=name)

    def _admin(self, *statements):
        c = self.connect(self.admin_database)
        c.autocommit = True
        with c.cursor() as cur:
            for s in statements:
                cur.execute(s)
        c.close()

    def url(self, name):
        return "postgres://%s:%s@127.0.0.1:%d/%s?sslmode=disable" % (USER, QUOTED, self.port, name)

    def unix_url(self, name):
        return "postgres://%s@/%s?host=%s&port=%d" % (USER, name, self.dir, self.port)

    def create(self, name):
        self._admin("CREATE DATABASE %s" % name)
        return name

    def drop(self, name):
        self._admin("DROP DATABASE IF EXISTS %s WITH (FORCE)" % name)

    def load(self, name, folder):
        self.run(
            find("psql", *self.folders),
            *("-q", "-v", "ON_ERROR_STOP=1", "-h", self.dir, "-p", self.port, "-U", USER),
            *("-d", name),
            input=(folder / "dump.sql").read_bytes(),
        )


class Mariadb(Server):
    scheme = "mysql"
    users = ("mysql", "nobody")
    admin_database = None

    def __init__(self, *options):
        super().__init__()
        self.options = options
        self.data = self.dir / "data"
        self.run(
            find("mariadb-install-db"),
            *("--no-defaults", "--datadir=%s" % self.data, "--skip-test-db"),
            *("--auth-root-authentication-method=normal", "--skip-name-resolve"),
            "--innodb-log-file-size=8M",
            "--tmpdir=%s" % self.dir,
        )

    def argv(self):
        return [
            *(find("mariadbd"), "--no-defaults", "--datadir=%s" % self.data),
            *("--socket=" + self.socket, "--port=%d" % self.port, "--bind-address=127.0.0.1"),
            *("--innodb-buffer-pool-size=64M", "--innodb-log-file-size=8M"),
            *("--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync"),
            *("--innodb-doublewrite=0", "--skip-log-bin", "--skip-name-resolve"),
            *("--max-connections=300", "--performance-schema=OFF"),
            *("--pid-file=%s" % (self.dir / "pid"), "--tmpdir=%s" % self.dir),
            *self.options,
        ]

    def prepare(self):
        self._admin(
            "CREATE USER IF NOT EXISTS %s@'%%' IDENTIFIED BY '%s'" % (USER, PASSWORD),
            "GRANT ALL ON *.* TO %s@'%%'" % USER,
        )

    def connect(self, name):
        import pymysql

        return pymysql.connect(
            unix_socket=self.socket, user="root", database=name, charset="utf8mb4"
        )

    def _admin(self, *statements):
        c = self.connect(None)
        with c.cursor() as cur:
            for s in statements:
                cur.execute(s)
        c.close()

    def url(self, name):
        return "mysql://%s:%s@(127.0.0.1:%d)/%s" % (USER, QUOTED, self.port, name)

    def unix_url(self, name):
        return "mysql://%s:%s@unix(%s)/%s" % (USER, QUOTED, self.socket, name)

    def create(self, name):
        self._admin("CREATE DATABASE %s CHARACTER SET latin1" % name)  # an old server's default
        return name

    def drop(self, name):
        self._admin("DROP DATABASE IF EXISTS %s" % name)

    def load(self, name, folder):
        self.run(
            find("mariadb"),
            *("--no-defaults", "-S", self.socket, "-u", "root", name),
            input=(folder / "dump.sql").read_bytes(),
        )


class Mysql(Mariadb):
    """MySQL itself, where scripts/install-mysql has put it."""

    root = pathlib.Path(os.environ.get("CACHEFS_TEST_CACHE", "/var/cache/cachefs-tests")) / "mysql"

    @classmethod
    def installed(cls):
        return (cls.root / "usr/sbin/mysqld").exists()

    def __init__(self, *options):
        Server.__init__(self)
        self.options = options
        self.data = self.dir / "data"
        self.run(*self._program(), "--initialize-insecure", "--datadir=%s" % self.data)

    def _program(self):
        """It runs with the libraries of the system that it came from."""
        if not self.installed():
            raise FileNotFoundError("MySQL is not installed: run scripts/install-mysql")
        folders = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib")
        loader = next(p for p in sorted((self.root / "usr").glob("lib*/ld-linux-*")))
        return [
            *(loader, "--library-path", ":".join(str(self.root / f) for f in folders)),
            *(self.root / "usr/sbin/mysqld", "--no-defaults", "--basedir=%s" % (self.root / "usr")),
            *("--tmpdir=%s" % self.dir, "--innodb-flush-method=nosync", "--mysqlx=OFF"),
            *("--innodb-redo-log-capacity=8M", "--innodb-doublewrite=OFF", "--secure-file-priv=NULL"),
        ]

    def argv(self):
        return [
            *self._program(),
            *("--datadir=%s" % self.data, "--pid-file=%s" % (self.dir / "pid")),
            *("--socket=" + self.socket, "--port=%d" % self.port, "--bind-address=127.0.0.1"),
            *("--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0"),
            *("--disable-log-bin", "--skip-name-resolve", "--max-connections=300"),
            "--performance-schema=OFF",
            *self.options,
        ]


class GaleraNode(Mariadb):
    """One server of a Galera."""

    folders = ("/usr/lib/galera", "/usr/lib64/galera-4", "/usr/lib64/galera")

    def __init__(self, cluster, like=None):
        """like: a node that is stopped, whose data it begins with."""
        self.cluster = cluster
        self.group_port, self.ist_port, self.sst_port = (free_port() for _ in range(3))
        if not like:
            super().__init__()
            return
        Server.__init__(self)
        self.options, self.data = (), self.dir / "data"
        self.run("cp", "-a", like.data, self.data)

    def argv(self):
        nodes = ["127.0.0.1:%d" % n.group_port for n in self.cluster.nodes]
        provider = {
            "gmcast.listen_addr": "tcp://127.0.0.1:%d" % self.group_port,
            "ist.recv_addr": "127.0.0.1:%d" % self.ist_port,
            "gcache.size": "32M",
        }
        argv = [
            *(*super().argv(), "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2"),
            *("--wsrep-on=ON", "--wsrep-provider=" + find("libgalera_smm.so", *self.folders)),
            *("--wsrep-cluster-name=" + self.cluster.name, "--wsrep-node-address=127.0.0.1"),
            "--wsrep-cluster-address=gcomm://" + ",".join(nodes),
            *("--wsrep-sst-method=rsync", "--wsrep-sst-receive-address=127.0.0.1:%d" % self.sst_port),
            "--wsrep-slave-threads=2",
            "--wsrep-provider-options=" + ";".join("%s=%s" % kv for kv in provider.items()),
        ]
        if self.cluster.is_down():
            return [*argv, "--wsrep-new-cluster"]
        if "seqno:   -1" in (self.data / "grastate.dat").read_text():
            argv.append(self._position(argv))
        return argv

    def _position(self, argv):
        """After a crash: where its tables are. The others send what has come since."""
        log = self.dir / "recovery"
        self.run("sh", "-c", 'exec "$@" >recovery 2>&1', "sh", *argv, "--wsrep-recover")
        found = re.findall(r"Recovered position: *(\S+)", log.read_text())
        assert found, log.read_text()
        return "--wsrep-start-position=" + found[-1]

    def is_ready(self):
        return super().is_ready() and self.status("wsrep_ready") == "ON"

    def prepare(self):
        if self.cluster.is_new:
            super().prepare()

    def status(self, name):
        c = self.connect(None)
        with c.cursor() as cur:
            cur.execute("SHOW GLOBAL STATUS LIKE %s", (name,))
            value = cur.fetchone()[1]
        c.close()
        return value

    def set_global(self, name, value):
        self._admin("SET GLOBAL %s='%s'" % (name, value))


class Galera:
    """Servers that replicate to each other: nodes[i] is as any server, and can be killed and started."""

    def __init__(self, size=3):
        self.is_new, self.nodes = True, []
        first = GaleraNode(self)
        self.name = "cachefs-%d" % first.group_port
        self.nodes.append(first)
        first.start().stop()
        self.is_new = False
        self.nodes += [GaleraNode(self, first) for _ in range(size - 1)]

    def start(self):
        for n in self.nodes:
            n.start()
        return self

    def settle(self):
        """Waits until all nodes have the commits of every node."""
        want = max(int(n.status("wsrep_last_committed")) for n in self.nodes)
        wait_until(lambda: all(int(n.status("wsrep_last_committed")) >= want for n in self.nodes), 30)

    def is_down(self):
        """No node is up: whoever is started next begins a cluster of its own."""
        return not any(n.process and n.process.poll() is None for n in self.nodes)

    def close(self):
        for n in self.nodes:
            n.close()


class Tidb(Server):
    """With its built-in store, of scripts/install-tidb."""

    scheme = "mysql"
    admin_database = None

    def __init__(self, *options):
        super().__init__()
        self.options = options

    @staticmethod
    def program():
        cache = os.environ.get("CACHEFS_TEST_CACHE", "/var/cache/cachefs-tests")
        return find("tidb-server", cache + "/go/bin")

    def argv(self):
        return [
            *(self.program(), "-store", "unistore"),
            *("-path", self.dir / "store", "-temp-dir", self.dir / "tmp", "-socket", self.socket),
            *("-host", "127.0.0.1", "-P", self.port, "-report-status=false", "-L", "error"),
            *self.options,
        ]

    prepare, connect, _admin = Mariadb.prepare, Mariadb.connect, Mariadb._admin
    url, unix_url, drop = Mariadb.url, Mariadb.unix_url, Mariadb.drop

    def create(self, name):
        self._admin("CREATE DATABASE %s" % name)
        return name


def started(ws, server):
    """The same server, running until the workspace and its mounts end."""
    ws.cleanups.append(server.close)
    return server.start()


_shared = {}


def _one(kind):
    if kind not in _shared:
        _shared[kind] = kind()
        atexit.register(_shared[kind].close)
        _shared[kind].start()
    return _shared[kind]


def redis_server():
    """The run's Redis, started at its first use."""
    return _one(Redis)


def postgres_server():
    return _one(Postgres)


def mariadb_server():
    return _one(Mariadb)


def mysql_server():
    return _one(Mysql)


if os.environ.get("CACHEFS_TEST_MYSQL") == "mysql":
    Mariadb = Mysql  # every test of the engine runs on it


# engine -> (the run's server, the golden volume in that engine's own form)
ENGINES = {
    "redis": (redis_server, "redis"),
    "postgres": (postgres_server, "postgres"),
    "mysql": (mariadb_server, "mysql"),
}
