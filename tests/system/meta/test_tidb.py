# SPDX-License-Identifier: Apache-2.0
"""A real TiDB, with the store that is built into it. A failure here is a volume that cannot be used on
it, or that two mounts damage between them."""

import os

import pytest

import servers
import test_concurrency
from cachefs import Volume, missing
from test_engines import suite

pytestmark = [pytest.mark.module("mysql"), pytest.mark.long]


@pytest.fixture
def database(ws):
    if not os.environ.get("CACHEFS_LONG"):
        pytest.skip("takes minutes: set CACHEFS_LONG")
    try:
        servers.Tidb.program()
    except FileNotFoundError:
        missing("no TiDB: run scripts/install-tidb")
    server = servers.started(ws, servers.Tidb())
    return server.database()


@pytest.mark.deadline(600)
def test_conformance(ws, database):
    suite(ws, database.url)


@pytest.mark.deadline(test_concurrency.SECONDS * 2 + 300)
@pytest.mark.parametrize("trash_days", [0, 1])
def test_random_work_on_two_mounts(ws, database, trash_days):
    v = Volume(ws, url=database.url, trash_days=trash_days)
    mounts = [v.mount(test_concurrency.FRESH) for _ in range(2)]
    print("operations:", test_concurrency.random_work(ws, mounts, trash_days, 60))
    test_concurrency.judge(v, mounts)


def test_same_operations_same_tree(ws, database):
    v = Volume(ws, url=database.url, trash_days=0)
    m, local = v.mount(), ws.path("local")
    local.mkdir()
    old = os.umask(0o022)
    try:
        want, got = (test_concurrency.replay(d, 2000) for d in (local, m.path))
    finally:
        os.umask(old)
    assert [(g, w) for g, w in zip(got, want) if g != w] == []
    assert test_concurrency.unlike(test_concurrency.tree(m.path), test_concurrency.tree(local)) == []
    test_concurrency.judge(v, [m])
