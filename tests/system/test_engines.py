# SPDX-License-Identifier: Apache-2.0
"""The engine-conformance suite on real servers. A failure here is an operation that behaves otherwise
on one database than on the others: a user who moves a volume meets it."""

import os
import pathlib

import pytest

import servers
from cachefs import BIN, need_engine
from mysqlproxy import MysqlProxy

SUITE = pathlib.Path(os.environ.get("CACHEFS_BUILD") or BIN.parents[1]) / "tests/unit/conformance"


def suite(ws, url, *groups):
    r = ws.run(SUITE / "meta-conformance", url, *groups, timeout=240)
    assert r.returncode == 0, (r.stdout + r.stderr)[-6000:]


@pytest.fixture(params=sorted(servers.ENGINES))
def database(request, ws):
    need_engine(request.param)
    db = servers.ENGINES[request.param][0]().database()
    ws.cleanups.append(db.drop)
    return db


@pytest.mark.deadline(300)
def test_conformance(ws, database):
    suite(ws, database.url)


@pytest.mark.module("mysql")
@pytest.mark.deadline(300)
def test_conformance_without_blocks(ws):
    """As on MySQL and TiDB, which do not take a block of statements: the generic transactions."""
    db = servers.mariadb_server().database()
    proxy = MysqlProxy(db.server.port, "5.7.44")
    ws.cleanups += [db.drop, proxy.close]
    suite(ws, db.url.replace(":%d" % db.server.port, ":%d" % proxy.port))


@pytest.mark.deadline(120)
def test_unix_socket(ws, database):
    suite(ws, database.unix_url, "names")


def test_directory_times_move_after_they_were_set_back(ws, database):
    """With skip-dir-mtime a directory's times move once for all names of that time, but after somebody
    has set them back with the next one. MySQL's engine learns of other mounts' changes that late, too."""
    volume = ws.volume(url=database.url)
    mnt, other = volume.mount("skip-dir-mtime=60s,attr-cache=0"), volume.mount()
    os.mkdir(mnt / "d")
    for i in range(20):
        with open(mnt / "d" / str(i), "x", encoding="ascii"):
            pass
        setter = mnt if i % 2 or database.url.startswith("mysql") else other
        os.utime(setter / "d", (10**9, 10**9))
        if i % 3:
            with open(mnt / "d" / ("%d-next" % i), "x", encoding="ascii"):
                pass
        else:
            os.unlink(mnt / "d" / str(i))
        assert os.stat(mnt / "d").st_mtime > 10**9
