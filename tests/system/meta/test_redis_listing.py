# SPDX-License-Identifier: Apache-2.0
"""Listings of directories with more names than Redis's engine keeps in memory at a time. A failure here
is a file that ls, find and rm -r do not see."""

import os

import pytest

import servers
from cachefs import SLOW

pytestmark = pytest.mark.module("redis")
# Inodes that are missing: their names are listed, too.
FILL = """
for i = 1, tonumber(ARGV[1]) do
    redis.call('HSET', 'd1', 'f' .. (i * 7919) % 1000003, '\\1' .. struct.pack('>I8', 100 + i))
end
"""
WINDOW = 256 * 1024


@pytest.mark.deadline(240 * SLOW)
@pytest.mark.parametrize("count", [WINDOW, 2 * WINDOW + 5000])
def test_directory_larger_than_a_window(ws, count):
    db = servers.redis_server().database()
    ws.cleanups.append(db.drop)
    mnt = ws.volume(url=db.url).mount()
    db.connect().eval(FILL, 0, count)
    got = [e.name for e in os.scandir(mnt)]
    assert len(got) == count
    assert set(got) == {"f%d" % (i * 7919 % 1000003) for i in range(1, count + 1)}
