# SPDX-License-Identifier: Apache-2.0
"""A mount that another process takes over, on every kind of metadata server, as a member of a cache
group, and with blocks that wait on the local disk for their upload. A failure here is an upgrade
that loses a lock, an open file, a peer or data that was confirmed."""

import os

import pytest

import servers
from cachefs import SLOW, need_engine, tool, wait_until
from s3volume import S3Volume
from syscalls import data, read, write
from test_group import Team
from test_takeover import HOLDER, WAITER, contend, kill_worker, upgrade


@pytest.fixture(params=["redis", "postgres", "mysql"])
def server_volume(request, ws):
    need_engine(request.param)
    server = {"redis": servers.redis_server, "postgres": servers.postgres_server, "mysql": servers.mariadb_server}
    db = server[request.param]().database()
    ws.cleanups.append(db.drop)
    return ws.volume(url=db.url)


@pytest.mark.deadline(120)
@pytest.mark.parametrize("event", ["kill", "upgrade"])
def test_what_is_open_stays(ws, server_volume, event):
    """The session goes on: what is locked stays locked for others, what is removed and open stays."""
    volume = server_volume
    mnt, other = volume.mount(), volume.mount()
    content = data(3_000_000)
    for name in "fg":
        write(mnt / name, content)
    gone = open(mnt / "gone", "w+b", buffering=0)
    gone.write(content)
    os.fsync(gone.fileno())
    os.unlink(mnt / "gone")
    holder = ws.python(HOLDER, mnt / "f", mnt / "g", stdin=-1, stdout=-1, text=True)
    assert holder.stdout.readline() == "held\n"
    waiter = ws.python(WAITER, mnt / "f", stdout=-1, text=True)
    assert waiter.stdout.readline() == "asking\n"
    for i in range(3):
        if event == "upgrade":
            gone.write(b"%d" % i)  # not stored when it begins
            upgrade(ws, volume, mnt)
            assert mnt.stat("takeovers_total") == i + 1
        else:
            kill_worker(mnt)
            gone.write(b"%d" % i)
            os.fsync(gone.fileno())
        for at in (mnt, other):
            assert contend(at / "f", False) == "busy"
            assert contend(at / "g", True) == "busy"
    assert os.pread(gone.fileno(), 4_000_000, 0) == content + b"012"
    assert waiter.poll() is None
    assert len(volume.status()["sessions"]) == 2
    holder.communicate("end\n", timeout=30 * SLOW)
    assert waiter.communicate(timeout=30 * SLOW)[0] == "got\n"
    gone.close()
    assert read(other / "f") == content
    mnt.umount()
    other.umount()
    wait_until(lambda: not ws.processes(), 30, "the end of the processes")
    assert volume.status()["sessions"] == []


# ---- with a cache on disk ----


def upgrade_alike(mnt, env):
    """With the options that it has, where it is. Returns when the process before has ended."""
    where = ["nsenter", "--net=/run/netns/" + mnt.netns] if mnt.netns else []
    command = [*where, tool("cachefs"), "mount", mnt.volume.url, mnt.path, "-o", mnt.opts]
    r = mnt.ws.run(*command, timeout=60, env=env)
    assert r.returncode == 0, r.stderr
    assert mnt.process.wait(20 * SLOW) == 0
    mnt.process = None


@pytest.mark.deadline(180)
@pytest.mark.parametrize("event", ["kill", "upgrade"])
def test_staged_blocks_stay(ws, s3, via, event):
    """The bucket is away: what waits on disk is read by the next process, and uploaded by it."""
    opts = "writeback,put-timeout=5,free-space-ratio=0,cache-dir=%s" % ws.path("cache")
    volume = S3Volume(ws, s3, url=via.url + "/bucket")
    mnt = volume.mount(opts, env=s3.keys)
    mnt.allow("cannot be uploaded|object store")
    via.add("PUT", "chunks", status=503)
    content = data(9_000_000)
    f = open(mnt / "f", "w+b", buffering=0)
    f.write(content)
    os.fsync(f.fileno())
    staged = wait_until(lambda: mnt.stat("staging_blocks"), 30, "staged blocks")
    if event == "upgrade":
        f.write(b"not stored yet")
        upgrade_alike(mnt, s3.keys)
        content += b"not stored yet"
        staged += 1
    else:
        kill_worker(mnt)
    wait_until(lambda: mnt.stat("staging_blocks") == staged, 30, "the staged blocks of the process before")
    assert os.pread(f.fileno(), len(content) + 1, 0) == content
    f.write(b" and more")
    os.fsync(f.fileno())
    f.close()
    via.clear()
    wait_until(lambda: mnt.stat("staging_blocks") == 0, 90, "their upload")
    mnt.umount()
    elsewhere = volume.mount(env=s3.keys)
    assert read(elsewhere / "f") == content + b" and more"


@pytest.mark.deadline(240)
@pytest.mark.parametrize("event", ["kill", "upgrade"])
def test_a_member_of_a_group_stays_one(ws, event):
    """Others find the next process, with the blocks that it has on disk."""
    team = Team(ws, 2)
    a, b = team.join_all()
    content = data(20_000_000)
    write(a / "f", content)
    assert read(b / "f") == content
    if event == "upgrade":
        upgrade_alike(a, team.s3.keys)
    else:
        kill_worker(a)
    wait_until(lambda: a.stat("peer_members") == 2 and b.stat("peer_members") == 2, 60, "two members")
    write(a / "g", content)
    assert read(b / "g") == content and read(a / "f") == content
