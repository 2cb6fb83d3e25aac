# SPDX-License-Identifier: Apache-2.0
"""Memory of open directories. A failure here makes a backup skip files, or the kernel kill the mount."""

import os
import resource

import pytest

from cachefs import sanitized, wait_until
from syscalls import getdents
from test_concurrency import FRESH, engine_volume
from test_memory import MIB, within_budget

BUDGET = 192 * MIB
NAMES = 2500
HANDLES = 1500


def fill(d):
    """Long names: a page of a thousand takes half a megabyte."""
    os.mkdir(d)
    fd = os.open(d, os.O_RDONLY)
    for i in range(NAMES):
        os.mknod("%05d-%s" % (i, "n" * 190), 0o644, dir_fd=fd)
    os.close(fd)


def entries(fd, size=4096):
    """One reply: names with the positions behind them."""
    return [(name, off) for name, off in getdents(fd, size) if name not in (b".", b"..")]


def rest(fd):
    names = []
    while found := getdents(fd, 32768):
        names += [name for name, _ in found if name not in (b".", b"..")]
    return names


@pytest.fixture
def many_files():
    """Descriptors for thousands of open directories."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limit[0], 4 * HANDLES), max(limit[1], 4 * HANDLES)))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limit)


@pytest.mark.deadline(240)
@pytest.mark.skipif(sanitized(), reason="a sanitizer has memory of its own")
def test_memory_of_many_open_directories(ws, volume, many_files):
    """All are read in part; then each goes on where it was."""
    mnt = volume.mount("buffer-size=%d,%s" % (BUDGET // MIB, FRESH))
    fill(mnt / "d")
    fd = os.open(mnt / "d", os.O_RDONLY)
    want = rest(fd)
    os.close(fd)
    assert len(set(want)) == len(want) == NAMES
    fds, got = [], []
    try:
        with within_budget(ws, BUDGET, "open directories"):
            for _ in range(HANDLES):
                fds.append(os.open(mnt / "d", os.O_RDONLY))
                got.append([name for name, _ in entries(fds[-1])])
            assert 0 < mnt.stat('pool_used_bytes{use="listing"}') <= BUDGET // 16
        for fd, names in zip(fds, got):
            names += [name for name, _ in entries(fd)]
            assert names == want[: len(names)]
        for fd, names in list(zip(fds, got))[:: HANDLES // 10]:
            assert names + rest(fd) == want
        assert mnt.stat('pool_used_bytes{use="listing"}') <= BUDGET // 16
    finally:
        for fd in fds:
            os.close(fd)
    wait_until(lambda: mnt.stat('pool_used_bytes{use="listing"}') == 0, 30, "the end of all pages")


@pytest.mark.deadline(120)
@pytest.mark.parametrize("engine", ["sqlite", "redis"])
def test_position_within_a_reply_while_names_go(ws, engine):
    """As kernels ask whose replies do not fit the program's buffer: the page was dropped, and a part of
    the names that the program has is removed."""
    mnt = engine_volume(ws, engine).mount("buffer-size=32,%s" % FRESH)
    d = mnt / "d"
    fill(d)
    first, second = (os.open(d, os.O_RDONLY) for _ in range(2))
    order = rest(first)
    os.lseek(first, 0, os.SEEK_SET)
    seen = []
    while len(seen) < 1200:
        reply = entries(first)
        seen += [name for name, _ in reply]
    same = []
    while len(same) < len(seen):
        same += entries(second)
    assert [name for name, _ in same[: len(seen)]] == seen
    os.lseek(second, same[len(seen) - 1][1], os.SEEK_SET)
    middle = len(reply) // 2
    at = len(seen) - len(reply) + middle
    others = []
    for _ in range(60):
        others.append(os.open(d, os.O_RDONLY))
        entries(others[-1])
    gone = [name for name, _ in reply[: middle - 1]] + [reply[middle + 1][0], order[at + 50]]
    for name in gone:
        os.unlink(os.path.join(os.fsencode(d), name))
    os.lseek(first, reply[middle - 1][1], os.SEEK_SET)
    assert rest(first) == [name for name in order[at:] if name not in gone]
    assert rest(second) == [name for name in order[len(seen) :] if name not in gone]
    for fd in others + [first, second]:
        os.close(fd)
