# SPDX-License-Identifier: Apache-2.0
"""Cache groups whose members come, go, are drained, or cannot keep what they own: what any member has is
not fetched from the bucket again."""

import hashlib
import json
import os
import random
import signal
import subprocess
import time

import pytest

from cachefs import stop_process, wait_until
from network import ip
from team import BLOCK, MIB, SMALL, STEADY, UNCACHED, Team, cache_map, drop_page_cache, make_file, member_id, owners, read_all

BLOCKS = SMALL // BLOCK


def warm(team, mnt, name="f"):
    """Unlike a read, which a disk cache that is behind need not keep."""
    team.ws.run("cachefs", "warmup", mnt / name, check=True, timeout=100)
    wait_until(lambda: sum(m.stat("disk_cache_pending_bytes") for m in team.members if not m.ended) == 0, 30)


def fetches(team):
    return sum(team.fetched().values())


def read_scattered(mnt, name="f"):
    """The sum, read block by block in another order each time. Of a stream, which leaves most memory alone, a mount
    may keep the same blocks for ever, and never ask for them again."""
    blocks = {}
    fd = os.open(mnt / name, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for i in random.sample(range(BLOCKS), BLOCKS):
            blocks[i] = os.pread(fd, BLOCK, i * BLOCK)
    finally:
        os.close(fd)
    return hashlib.md5(b"".join(blocks[i] for i in range(BLOCKS))).hexdigest()


@pytest.mark.deadline(180)
def test_draining(ws):
    """A drained member still serves its blocks."""
    team = Team(ws, 3)
    want = make_file(team, SMALL)
    a, b, c = team.join_all(STEADY)
    warm(team, a)
    assert fetches(team) == BLOCKS
    c.umount()
    team.settle(2)
    d = team.join(2, "group-weight=0," + STEADY, path=c.path)
    team.settle(3)
    assert member_id(ws, d) not in owners(ws, a)
    assert read_all([a, b, d]) == [want] * 3
    assert fetches(team) == BLOCKS
    # and its share is the others' from then on
    wait_until(lambda: sum(m.stat("disk_cache_bytes") for m in (a, b)) >= SMALL, 30, "the others keep its share")
    d.umount()
    team.settle(2)
    drop_page_cache()
    assert read_all([a, b]) == [want] * 2
    assert fetches(team) == BLOCKS


@pytest.mark.deadline(180)
def test_joining_together(ws):
    """Members that come one soon after the other own much that others have who came lately, too."""
    team = Team(ws, 4)
    want = make_file(team, SMALL)
    fresh = "group-backup=2m," + STEADY
    a, b = team.join(0, fresh), team.join(1, fresh)
    team.settle(2)
    warm(team, a)
    assert fetches(team) == BLOCKS
    c, d = team.join(2, fresh), team.join(3, fresh)
    team.settle(4)
    moved = owners(ws, a)
    # One of the two may own none of so few blocks (1 % of all ids); that both own none is one in 65 000.
    assert moved.get(member_id(ws, c), []) + moved.get(member_id(ws, d), [])
    assert read_all([a, b, c, d]) == [want] * 4
    assert fetches(team) == BLOCKS


@pytest.mark.deadline(240)
def test_popular_blocks_have_copies(ws):
    """With replicas: what is asked for often is with all of its owners, and an owner that is silent is no
    reason to fetch it again."""
    team = Team(ws, 3, patience=2)
    want = make_file(team, SMALL)
    members = team.join_all(UNCACHED + ",group-replicas=2," + STEADY)
    ids = [member_id(ws, m) for m in members]
    owners_of = [[o["id"] for o in x["owners"]] for x in cache_map(ws, members[0])["blocks"]]
    # The reader is the one of whom most blocks are only others': six or more, which its memory does not keep.
    reader = min(range(3), key=lambda i: sum(ids[i] in x for x in owners_of))
    a, me, silent = members[reader], ids[reader], (reader + 1) % 3
    warm(team, a)
    assert fetches(team) == BLOCKS

    def copied():
        """Of what only others own: nobody but the first owner can have told the second one."""
        drop_page_cache()
        assert read_scattered(a) == want
        blocks = [x["owners"] for x in cache_map(ws, a)["blocks"]]
        return all(o["cached"] is True for x in blocks if me not in [o["id"] for o in x] for o in x)

    try:
        wait_until(copied, 90, "copies of all blocks")
    except TimeoutError:
        print("member", me, *cache_map(ws, a)["blocks"], sep="\n")
        raise
    assert fetches(team) == BLOCKS
    # It beats on, but answers nobody: its peers cannot tell that it is gone.
    drop_page_cache()
    rule = ["nsenter", "--net=/run/netns/" + team.net.names[reader], "ip", "route"]
    subprocess.run([*rule, "add", "blackhole", "%s/32" % team.net.host(silent)], check=True, timeout=10)
    try:
        assert read_all([a]) == [want]
    finally:
        subprocess.run([*rule, "del", "blackhole", "%s/32" % team.net.host(silent)], check=True, timeout=10)
    assert fetches(team) == BLOCKS


@pytest.mark.deadline(180)
def test_owner_that_cannot_keep(ws):
    """A member whose cache disk takes nothing owns nothing, says so, and owns again afterwards."""
    team = Team(ws, 2)
    want = make_file(team, SMALL)
    disk = ws.path("cache1")
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", disk], check=True, timeout=10)
    ws.cleanups.append(lambda: subprocess.run(["umount", "-l", disk], check=True, timeout=10))
    a, b = team.join_all(UNCACHED)
    id_b = member_id(ws, b)
    assert id_b in owners(ws, a)
    b.allow("takes no blocks|cache directory|Read-only")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True, timeout=10)

    def has_noticed():
        drop_page_cache()
        assert read_all([a, b]) == [want] * 2
        return id_b not in owners(ws, a)

    wait_until(has_noticed, 60, "an owner less")
    states = {m["id"]: m["state"] for m in cache_map(ws, a)["members"]}
    assert states[id_b] == "memory only"
    status = json.loads(ws.run("cachefs", "status", "--json", team.volume.url, check=True).stdout)
    assert sorted(m["memory_only"] for m in status["groups"]["team"]) == [False, True]
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True, timeout=10)
    wait_until(lambda: id_b in owners(ws, a), 90, "the owner is back")


@pytest.mark.deadline(120)
def test_no_disk_cache_beside_others(ws):
    """A member without a disk cache owns what nobody else could keep, and otherwise nothing."""
    team = Team(ws, 2)
    make_file(team, SMALL)
    a = team.join(0, "cache-dir=none")
    assert owners(ws, a) == {member_id(ws, a): [x["key"] for x in cache_map(ws, a)["blocks"]]}
    b = team.join(1)
    team.settle(2)
    wait_until(lambda: list(owners(ws, a)) == [member_id(ws, b)], 30, "the one with a disk owns all")


@pytest.mark.deadline(120)
def test_warmup_of_a_mount_that_shares_nothing(ws):
    """It has the file in memory, and the owners get it all the same; --check says what the group has."""
    team = Team(ws, 2)
    make_file(team, 16 * MIB)
    b = team.join(1, "no-sharing,cache-dir=none")
    ws.run("cachefs", "warmup", b / "f", check=True, timeout=60)
    a = team.join(0)
    team.settle(2)

    def check():
        return json.loads(ws.run("cachefs", "warmup", "--check", "--json", b / "f", check=True).stdout)

    before = check()
    assert before["memory"] == 16 * MIB and before["group"] == 0
    text = ws.run("cachefs", "warmup", "--check", b / "f", check=True).stdout
    assert "0 B in the group" in text
    ws.run("cachefs", "warmup", b / "f", check=True, timeout=60)
    wait_until(lambda: a.stat("disk_cache_bytes") >= 16 * MIB, 30, "the owner has it")
    assert check()["group"] == 16 * MIB


@pytest.mark.deadline(120)
@pytest.mark.parametrize("frozen", [1, 2], ids=["leader", "leader-and-deputy"])
def test_gone_within_15_s(ws, frozen):
    """With the beat that mounts have unless told otherwise."""
    team = Team(ws, 3 + frozen)
    make_file(team, BLOCK)
    leader, *others = [team.join(i, "group-beat=5s") for i in range(3 + frozen)]
    team.settle()
    others.sort(key=lambda m: int(member_id(ws, m), 16))  # the first is the deputy
    team.settle()
    gone, left = [leader, *others[: frozen - 1]], others[frozen - 1 :]
    start = time.monotonic()
    for m in gone:
        stop_process(m.pid())
    try:
        wait_until(lambda: all(m.stat("peer_members") == len(left) for m in left), 40, "members less")
        took = time.monotonic() - start
    finally:
        for m in gone:
            os.kill(m.pid(), signal.SIGCONT)
    print("%.1f s" % took)
    assert took <= 15.5
    team.settle()


@pytest.mark.deadline(150)
def test_address_changes(ws):
    """DHCP gives a host another address: others go on using its share."""
    team = Team(ws, 2, patience=2)
    want, unread = make_file(team, SMALL), make_file(team, SMALL, "g")
    a, b = (team.join(i, UNCACHED, at="group-network=%s/24") for i in range(2))
    team.settle()
    assert read_all([a, b]) == [want] * 2
    host, other = team.net.names[1], "10.213.%d.77" % team.net.number
    ip("-n", host, "addr", "del", team.net.host(1) + "/24", "dev", "eth0")
    ip("-n", host, "addr", "add", other + "/24", "dev", "eth0")
    wait_until(lambda: "address=%s:" % other in b.log(), 30, "another address")
    # Blocks that are read before the others know the address may be kept elsewhere.
    wait_until(lambda: any(other in m["address"] for m in cache_map(ws, a)["members"]), 60, "the address is known")
    before = a.stat("peer_hits_total")
    assert read_all([a], "g") == [unread]
    assert a.stat("peer_hits_total") > before
    assert read_all([b]) == [want]
