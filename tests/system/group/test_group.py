# SPDX-License-Identifier: Apache-2.0
"""Cache groups: mounts as hosts of their own that serve each other's blocks. Every
read returns the right bytes in time and no application sees an error, with any fault of a member."""

import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

from cachefs import BIN, SLOW, patience, stop_process, wait_until, wrong_clock
from s3volume import S3Volume
from servers import ENGINES, redis_server
from syscalls import write
from team import (
    BLOCK,
    MIB,
    SMALL,
    STEADY,
    UNCACHED,
    Team,
    cache_map,
    drop_page_cache,
    make_file,
    md5,
    member_id,
    more_rounds,
    owners,
    picking,
    read_all,
    reading,
    slow_bucket,
)

BUILD = pathlib.Path(os.environ.get("CACHEFS_BUILD") or BIN.parents[1])
LONG = bool(os.environ.get("CACHEFS_LONG"))
BIG = (2048 if LONG else 256) * MIB


def connections(mnt, tls):
    ways = ("asked", "served")
    return sum(mnt.stat('peer_connections{direction="%s",tls="%s"}' % (w, tls)) for w in ways)


# -- the point of it


@pytest.mark.deadline(240 if not LONG else 1800)
def test_each_block_is_fetched_once(ws):
    team = Team(ws, 4)
    want = make_file(team, BIG)
    members = team.join_all("group-hedge=2")
    assert read_all(members) == [want] * 4
    fetched = team.fetched()
    assert len(fetched) == BIG // BLOCK
    total = sum(fetched.values())
    print("blocks %d, requests %d" % (len(fetched), total))
    assert total <= 1.02 * len(fetched)
    assert sum(m.stat("peer_fallbacks_total") for m in members) <= 0.02 * len(fetched)
    # and each is kept by its owner only
    wait_until(lambda: sum(m.stat("disk_cache_pending_bytes") for m in members) == 0, 30)
    kept = sum(m.stat("disk_cache_bytes") for m in members)
    assert 0.95 * BIG <= kept <= 1.05 * BIG
    seen = owners(ws, members[0])
    assert len(seen) == 4 and min(map(len, seen.values())) > 0
    assert seen == owners(ws, members[3])
    # the second time nobody goes to the bucket, but for owners that are late with what their disks have
    hedges = sum(m.stat("peer_hedges_total") for m in members)
    drop_page_cache()
    assert read_all(members) == [want] * 4
    hedges = sum(m.stat("peer_hedges_total") for m in members) - hedges
    again = sum(team.fetched().values()) - total
    asked = sum(m.stat('peer_requests_total{direction="asked"}') for m in members)
    print("once more %d, hedges %d, requests to peers %d" % (again, hedges, asked))
    assert again <= hedges <= 4 * 16 + 0.02 * asked


@pytest.mark.deadline(300)
@pytest.mark.parametrize("mbit", [10, 30, 100, 300, 1000, 3000] if LONG else [100])
@pytest.mark.parametrize("members", [4, 8])
def test_a_slow_bucket_is_not_asked_more(ws, members, mbit):
    """An owner that waits for the bucket says so, and those who wait for it ask nobody else."""
    size = SMALL if members == 4 else 2 * SMALL
    with slow_bucket(ws, members) as (team, bucket):
        want = make_file(team, size)
        mounts = team.join_all("group-hedge=2")
        bucket.rate = mbit * 1e6 / 8
        start = time.monotonic()
        assert read_all(mounts) == [want] * members
        took = time.monotonic() - start
    fetched = team.fetched()
    total = sum(fetched.values())
    hedges = sum(m.stat("peer_hedges_total") for m in mounts)
    fallbacks = sum(m.stat("peer_fallbacks_total") for m in mounts)
    print("%d blocks, %d requests, %.1f s, %d hedges, %d fallbacks" % (len(fetched), total, took, hedges, fallbacks))
    assert len(fetched) == size // BLOCK
    assert total <= 1.02 * len(fetched), team.account()


@pytest.mark.deadline(240)
@pytest.mark.parametrize(("timeout", "seconds"), [(16, 14.6), (60, 55)] if LONG else [(16, 14.6)])
def test_a_fetch_that_takes_most_of_the_time_is_waited_for(ws, timeout, seconds):
    """However long the bucket takes, as long as a mount without group would have waited for it. The members that
    wait have asked the bucket for nothing, so they know of its speed only by the owner. A busy machine gets
    more of the time that is left."""
    longer = min(patience(), 4)
    timeout, seconds = round(timeout * longer), seconds * longer
    with slow_bucket(ws, 3) as (team, bucket):
        want = make_file(team, BLOCK)
        mounts = team.join_all("group-hedge=2,io-timeout=%d,get-timeout=%d" % (timeout, timeout))
        bucket.rate = BLOCK / seconds
        start = time.monotonic()
        assert read_all(mounts) == [want] * len(mounts)
        took = time.monotonic() - start
    assert took >= seconds / 2 + 1, "the bucket was not slow"
    assert list(team.fetched().values()) == [1], team.account()
    assert sum(m.stat("peer_fallbacks_total") for m in mounts) == 0


@pytest.mark.deadline(120)
def test_an_owner_whose_bucket_is_slow(ws):
    """A read of its blocks does not fail: in the end the asker tries the bucket itself."""
    with slow_bucket(ws, 2) as (team, bucket):
        make_file(team, SMALL)  # so many blocks that each member owns some
        alone = team.volume.mount()
        data = (alone / "f").read_bytes()
        alone.umount()
        a, b = team.join_all("io-timeout=8,get-timeout=8," + STEADY)
        b.allow("cannot be read")
        bucket.only = [team.net.host(1)]
        bucket.rate = BLOCK / 60
        at = BLOCK * [o["id"] for o in first_owners(ws, a)].index(member_id(ws, b))
        start = time.monotonic()
        with open(a / "f", "rb", buffering=0) as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            assert os.pread(f.fileno(), 4096, at) == data[at : at + 4096]
        took = time.monotonic() - start
        bucket.rate = 0
    assert took >= 4, "the owner was not slow"


def team_on(ws, hosts, db):
    class OnServer(S3Volume):
        def attach(self, ws, name, url, bucket):
            super().attach(ws, name, url, bucket)
            self.url = db.unix_url
            self.check_options = None

    return Team(ws, hosts, lambda s3: OnServer(ws, s3))


@pytest.mark.parametrize("engine", list(ENGINES))
def test_members_meet_on_every_engine(ws, engine):
    db = ENGINES[engine][0]().database()
    team = team_on(ws, 2, db)
    want = make_file(team, 16 * MIB)
    members = team.join_all(STEADY)
    assert read_all(members) == [want] * 2
    assert sum(team.fetched().values()) == 4, team.account()
    status = json.loads(ws.run("cachefs", "status", "--json", db.unix_url, check=True).stdout)
    listed = status["groups"]["team"]
    assert sorted(m["address"].rsplit(":", 1)[0] for m in listed) == [team.net.host(i) for i in (0, 1)]
    assert all(m["weight"] == 100 for m in listed)
    for m in members:
        m.umount()
    status = json.loads(ws.run("cachefs", "status", "--json", db.unix_url, check=True).stdout)
    assert status["groups"] == {}
    db.drop()


@pytest.mark.deadline(120)
def test_members_of_the_volume_before(ws):
    """A volume is made anew where another one was. Mounts of the old one go on for seconds, and have blocks
    of the same names."""
    db = ENGINES["redis"][0]().database()
    ws.cleanups.append(db.drop)
    team = team_on(ws, 3, db)
    old = team.join(0)
    old.allow(".")
    make_file(team, SMALL)
    md5(old / "f")
    wait_until(lambda: old.stat("disk_cache_bytes") >= SMALL, 30, "its blocks")
    db.drop()
    shutil.rmtree(team.volume.bucket)
    team.s3.bucket("bucket")
    team.volume.format(storage="s3", bucket=team.volume.where)
    new = [team.join(1), team.join(2)]
    want = make_file(team, SMALL)
    wait_until(lambda: all(m.stat("peer_members") >= 3 for m in new) or not old.mounted(), 30, "the old one")
    assert read_all(new) == [want] * 2


# -- the same with TLS, and what becomes of a group of which only a part has it

TLS = pytest.mark.parametrize("tls", ["", "group-tls"], ids=["tcp", "tls"])


def fetches(team, times):
    """Each block of a small file came from the server so often, a few in two parts or once more."""
    fetched = team.fetched()
    least = times * len(fetched)
    print("blocks %d, requests %d" % (len(fetched), sum(fetched.values())))
    return len(fetched) >= SMALL // BLOCK and least <= sum(fetched.values()) <= 1.5 * least


@pytest.mark.deadline(120)
def test_tls(ws):
    """Each block is fetched once, what is sent is encrypted, and status says so."""
    team = Team(ws, 3)
    want = make_file(team, SMALL)
    members = team.join_all("group-tls," + UNCACHED)
    assert read_all(members) == [want] * 3
    assert fetches(team, 1)
    assert sum(m.stat("peer_fallbacks_total") for m in members) == 0
    for m in members:
        assert connections(m, "none") == 0
        assert connections(m, "openssl") + connections(m, "kernel") > 0
        assert m.stat("peer_members_apart") == 0
    listed = json.loads(ws.run("cachefs", "status", "--json", team.volume.url, check=True).stdout)
    assert [(m["tls"], m["rdma"]) for m in listed["groups"]["team"]] == [(True, False)] * 3
    text = ws.run("cachefs", "status", team.volume.url, check=True).stdout
    assert len(re.findall(r"cached .*  tls", text)) == 3


@pytest.mark.deadline(150)
def test_some_members_without_tls(ws):
    """Each kind shares among itself: one fetch per kind, and nobody waits for the other one."""
    team = Team(ws, 4)
    want = make_file(team, SMALL)
    plain = [team.join(i) for i in (0, 1)]
    secret = [team.join(i, "group-tls") for i in (2, 3)]
    for m in team.members:
        m.allow("not asked, (it|this one) has group-tls")
    team.settle()
    assert read_all(plain + secret) == [want] * 4
    assert fetches(team, 2)
    for m in plain + secret:
        assert m.stat("peer_members_apart") == 2
        assert m.stat("peer_fallbacks_total") == 0
        assert len(owners(ws, m)) == 2
        states = sorted(x["state"] for x in cache_map(ws, m)["members"])
        assert states == ["incompatible", "incompatible", "ok", "self"]
    assert sum(connections(m, "none") for m in secret) == 0
    assert sum(connections(m, "openssl") + connections(m, "kernel") for m in plain) == 0


# -- failures




@TLS
@pytest.mark.deadline(180)
def test_owner_is_killed(ws, tls):
    team = Team(ws, 3, patience=2)
    want = make_file(team, SMALL)
    a, b, c = team.join_all(",".join(filter(None, [UNCACHED, tls])))
    end = reading([a, b], want, 30)
    more_rounds(end, 2)
    c.kill9()
    team.volume.check_options["unmounted"] = False
    more_rounds(end, 4)
    end()
    team.settle(2)  # the ring closes: its share has moved
    assert len(owners(ws, a)) == 2
    drop_page_cache()
    assert read_all([a, b]) == [want] * 2


@pytest.mark.deadline(180)
def test_owner_is_frozen(ws):
    """30 s in the long run: reads go on, and the member is used again when it is back."""
    team = Team(ws, 3, patience=2)
    want = make_file(team, SMALL)
    a, b, c = team.join_all(UNCACHED)
    end = reading([a, b], want, 40)
    more_rounds(end, 2)
    stop_process(c.pid())
    try:
        frozen = time.monotonic()
        more_rounds(end, 4)
        while time.monotonic() - frozen < (30 if LONG else 6):
            more_rounds(end, 1)
    finally:
        os.kill(c.pid(), signal.SIGCONT)
    team.settle(3)
    more_rounds(end, 2)
    end()
    before = c.stat('peer_requests_total{direction="served"}')

    def used_again():
        drop_page_cache()
        assert read_all([a, b]) == [want] * 2
        return c.stat('peer_requests_total{direction="served"}') > before

    wait_until(used_again, 60, "the thawed member serves")


def first_owners(ws, mnt):
    return [b["owners"][0] for b in cache_map(ws, mnt)["blocks"]]


@TLS
@pytest.mark.deadline(180)
def test_a_slow_owner_does_not_slow_the_group(ws, tls):
    """One of four sends 10 Mbit/s: the others do without it, and ask it again when it is well. What
    a read of its blocks takes is compared with what others' take at the same time."""
    team = Team(ws, 4, patience=2)
    make_file(team, 3 * SMALL)  # some of the owner's blocks fail over to another member than the reader
    mounts = team.join_all(",".join(filter(None, [UNCACHED, tls])))
    read_all(mounts)
    a, slow = mounts[0], mounts[3]
    data = (a / "f").read_bytes()
    by_id = {member_id(ws, m): m for m in mounts}
    owner = [by_id[b["owners"][0]["id"]] for b in cache_map(ws, a)["blocks"]]
    reads = []  # since the owner is slow: when it ended, who owns the block, how long it took
    end = picking(a, data, 8, 30, note=lambda at, took: reads.append((time.monotonic(), owner[at // BLOCK], took)))

    def says(what):
        return sum(what in line and team.net.host(3) in line for line in a.log().splitlines())

    def share(since, until):
        """Of the rate that there would be if the owner's blocks took as long as other peers'."""
        some = [r for r in reads if start + since <= r[0] < start + until]
        others = [took for _, m, took in some if m not in (a, slow)]
        if not others:
            return 0
        mean = sum(others) / len(others)
        return sum(mean if m is slow else took for _, m, took in some) / sum(took for _, _, took in some)

    more_rounds(end, 2000)
    assert says("peer is slow") == 0
    team.net.slow(3, 10)
    try:
        start = time.monotonic()
        reads.clear()
        time.sleep(8)  # what is counted
        # Where others are slow, too, it takes longer to tell the difference.
        wait_until(lambda: says("peer is slow") > 0, 60, "the owner is known to be slow")
        said, shown = says("peer is slow"), a.stat("peer_members_slow")
    finally:
        team.net.slow(3, 0)
    for t in range(8):
        print("%d s: %d reads, %.2f" % (t, sum(start + t <= r[0] < start + t + 1 for r in reads), share(t, t + 1)))
    served = slow.stat('peer_requests_total{direction="served"}')
    try:
        wait_until(lambda: says("peer is no longer slow") > 0, 60, "the owner is asked again")
    finally:
        print("".join(line + "\n" for line in a.log().splitlines() if "peer is" in line))
    wait_until(lambda: slow.stat('peer_requests_total{direction="served"}') > served + 100, 20, "it serves")
    end()
    others = sorted(took for at, m, took in reads if start + 3 <= at < start + 8 and m not in (a, slow))
    # The machine: then others are slow, too.
    busy = others[len(others) * 9 // 10] > 0.03 or patience() > 2 * SLOW
    assert busy or share(3, 8) >= 0.6
    assert said == 1 and (shown == 1 or busy) and says("peer is slow") <= 2


def late_owner(ws, hedge):
    """Two members, one of which is frozen; how long the other one takes to read the file, how many hedges
    there were, and the bytes it got from the bucket for each that it had to."""
    team = Team(ws, 2)
    want = make_file(team, SMALL)
    a, b = team.join_all("%s,group-hedge=%d" % (UNCACHED, hedge))
    while a.stat('peer_requests_total{direction="asked"}') < 64:  # it knows how fast the other is
        drop_page_cache()
        assert read_all([a, b]) == [want] * 2
    # Blocks that a's disk could not keep on a busy machine come from the bucket, too.
    elsewhere = [o["id"] == member_id(ws, b) or o["cached"] is not True for o in first_owners(ws, a)]
    got = 'object_data_bytes_total{method="get"}'
    before = a.stat(got)
    drop_page_cache()
    stop_process(b.pid())
    try:
        start = time.monotonic()
        assert read_all([a]) == [want]
        took = time.monotonic() - start
    finally:
        os.kill(b.pid(), signal.SIGCONT)
    print("%.2f s, %d hedges" % (took, a.stat("peer_hedges_total")))
    print(team.account())
    assert a.stat("peer_hedge_wins_total") <= a.stat("peer_hedges_total") <= 16
    return took, a.stat("peer_hedges_total"), (a.stat(got) - before) / (BLOCK * sum(elsewhere))


@pytest.mark.deadline(150)
def test_late_owner_is_hedged(ws):
    """The bucket is asked as soon as the owner is slower than usual, long before it is given up."""
    took, hedges, fetched = late_owner(ws, 2)
    assert took < 10  # of the 20 s that are allowed for one answer
    assert hedges > 0
    assert fetched <= 1.5


@pytest.mark.deadline(150)
def test_no_hedges(ws):
    took, hedges, _ = late_owner(ws, 0)
    assert took >= 10 and hedges == 0


@TLS
@pytest.mark.deadline(240)
@pytest.mark.parametrize("threads", [1, 3])
def test_small_reads(ws, tls, threads):
    """Answers that the thread that waits receives itself, on the only connection there is: while the key
    changes, the owner is frozen, is back, and is killed."""
    team = Team(ws, 2, patience=2)
    want = make_file(team, SMALL)
    opts = ",".join(filter(None, [UNCACHED, tls, "group-hedge=2,group-max-conns=1"]))
    a = team.join(0, opts + ",group-weight=0")
    b = team.join(1, opts)
    team.settle()
    data = (a / "f").read_bytes()
    assert hashlib.md5(data).hexdigest() == want
    end = picking(a, data, threads, 12)

    def more_direct():
        before = a.stat("peer_requests_direct_total")
        wait_until(lambda: a.stat("peer_requests_direct_total") >= before + 50, 60, "answers received by who waits")
        assert asked(a, 'connections,tls="%s"' % ("none" if not tls else "openssl")) <= 1

    more_direct()
    ws.run("cachefs", "config", "--rotate-group-key", "team", team.volume.url, check=True, env=team.s3.keys)
    more_direct()
    stop_process(b.pid())
    try:
        more_rounds(end, 200)
    finally:
        os.kill(b.pid(), signal.SIGCONT)
    print("slowest read while the owner was frozen: %.2f s" % end.slowest[0])
    more_direct()
    b.kill9()
    team.volume.check_options["unmounted"] = False
    more_rounds(end, 200)
    end()


def states(ws, mnt):
    return {m["state"] for m in cache_map(ws, mnt)["members"]}


@TLS
@pytest.mark.deadline(180)
def test_link_is_cut_and_heals(ws, tls):
    """Between two members; to metadata and bucket both still get."""
    team = Team(ws, 3, patience=2)
    want, other = make_file(team, SMALL), make_file(team, SMALL, "g")
    a, b, c = team.join_all(",".join(filter(None, [UNCACHED, tls])))
    end = reading([a], want, 40)
    more_rounds(end, 2)
    rules = [
        ["nsenter", "--net=/run/netns/" + team.net.names[0], "ip", "route", x, "blackhole", "%s/32" % team.net.host(i)]
        for x in ("add", "del")
        for i in (1, 2)
    ]
    for r in rules[:2]:
        subprocess.run(r, check=True, timeout=10)
    more_rounds(end, 4)
    for r in rules[2:]:
        subprocess.run(r, check=True, timeout=10)
    more_rounds(end, 2)
    end()
    # Meanwhile it has kept what it read.
    wait_until(lambda: states(ws, a) <= {"self", "ok", "fresh"}, 60, "peers are asked again")
    before = a.stat("peer_hits_total")
    assert read_all([a], "g") == [other]
    assert a.stat("peer_hits_total") > before


@pytest.mark.deadline(150)
def test_damaged_cache_of_an_owner(ws):
    """One flipped bit in each cached file, at a place of its own."""
    team = Team(ws, 2)
    want = make_file(team, SMALL)
    a, b = team.join_all(UNCACHED)
    assert read_all([a, b]) == [want] * 2
    wait_until(lambda: sum(m.stat("disk_cache_pending_bytes") for m in (a, b)) == 0, 30)
    files = [p for p in ws.path("cache1").rglob("*_*_*") if p.is_file()]
    assert files
    for i, path in enumerate(files):
        with open(path, "r+b") as f:
            at = (i * 7919 * 32768 + i * 131) % BLOCK
            f.seek(at)
            byte = f.read(1)
            f.seek(at)
            f.write(bytes([byte[0] ^ 1 << i % 8]))
    a.allow("wrong bytes|corrupt")
    b.allow("wrong bytes|corrupt")
    drop_page_cache()
    assert read_all([a]) == [want]
    assert read_all([a, b]) == [want] * 2
    errors = a.stat('peer_errors_total{direction="asked",kind="checksum"}')
    corrupt = b.stat("disk_cache_corrupt_total")
    assert errors + corrupt > 0


@TLS
@pytest.mark.deadline(120)
def test_strangers_at_the_port(ws, tls):
    """Garbage, silence, half a hello, and a thousand connections that say nothing."""
    team = Team(ws, 2)
    want = make_file(team, SMALL)
    a, b = team.join_all(",".join(filter(None, [UNCACHED, tls])))
    a.allow("refused: address=.*no TLS")
    address = next(m["address"] for m in cache_map(ws, a)["members"] if m["state"] == "self")
    host, port = address.rsplit(":", 1)
    open_sockets = []

    def connect():
        s = socket.create_connection((host, int(port)), timeout=5)
        open_sockets.append(s)
        return s

    end = reading([b], want, 30)
    try:
        for text in (b"\0" * 64, b"GET / HTTP/1.1\r\n\r\n", os.urandom(65536), b"\xff" * 7):
            try:
                connect().sendall(text)
            except OSError:
                pass  # cut off while it talks
        for _ in range(1000):
            try:
                connect()
            except OSError:
                pass  # turned away
        more_rounds(end, 3)
        with open("/proc/%d/status" % a.pid()) as f:
            anonymous = next(int(x.split()[1]) for x in f if x.startswith("RssAnon"))
        assert anonymous < 64 * 1024, "%d KiB" % anonymous
    finally:
        for s in open_sockets:
            s.close()
    end()
    # A client without the key receives nothing but the greeting.
    s = connect()
    s.settimeout(15 * SLOW)
    s.sendall(b"\0" * 64)
    heard = b""
    try:
        while piece := s.recv(4096):
            heard += piece
    except ConnectionResetError:
        pass
    assert len(heard) < 256


@pytest.mark.deadline(120)
def test_clocks_that_are_wrong(ws):
    """One member 20 minutes ahead, one behind: all share, and nobody takes another for gone."""
    # A bucket that is a directory, as a server judges its clients' clocks.
    team = Team(ws, 3, lambda s3: ws.volume())
    want = make_file(team, 2 * SMALL)  # so many blocks that each member owns some
    for i, shift in enumerate((0, 1200, -1200)):
        # On SQLite the clock of a host is the database's: sessions of less than 40 minutes would end each other.
        m = team.join(i, "heartbeat=10m", env=wrong_clock(ws, shift))
        with open(m / str(i), "w"):
            pass
        assert abs(os.stat(m / str(i)).st_ctime - time.time() - shift) < 600

    def beats():
        rows = team.volume.sql("SELECT value FROM jfs_cachefs_record WHERE CAST(name AS TEXT) LIKE 'group.member.%'")
        return [int(r[0].split()[1]) for r in rows]

    team.settle()
    members = team.members
    for _ in range(2):
        assert read_all(members) == [want] * 3
        seen = [owners(ws, m) for m in members]
        assert len(seen[0]) == 3 and seen[0] == seen[1] == seen[2]
        drop_page_cache()
        goal = min(beats()) + 10  # silent for three beats is gone
        wait_until(lambda: min(beats()) >= goal, 60, "beats")
        assert [m.stat("peer_members") for m in members] == [3] * 3
    for m in members:
        assert m.stat("peer_fallbacks_total") == 0
        assert m.stat("peer_hits_total") > 0
        assert m.stat('peer_requests_total{direction="served"}') > 0


# -- joining, leaving, keys


@pytest.mark.deadline(120)
def test_leaving_and_draining(ws):
    team = Team(ws, 3)
    want = make_file(team, SMALL)
    a, b, c = team.join_all()
    assert read_all([a, b, c]) == [want] * 3
    before = owners(ws, a)
    c_id = member_id(ws, c)
    c.umount()
    team.settle(2)
    after = owners(ws, a)
    assert c_id not in after
    for id_, blocks in before.items():
        assert id_ == c_id or set(blocks) <= set(after[id_])  # only its share has moved
    # back with the same id, and the same share
    c = team.join(2, path=c.path)
    team.settle(3)
    assert member_id(ws, c) == c_id
    assert owners(ws, a) == before
    c.umount()
    d = team.join(2, "group-weight=0")
    team.settle(3)
    assert member_id(ws, d) not in owners(ws, a)
    assert read_all([a, b, d]) == [want] * 3


@pytest.mark.deadline(120)
def test_fresh_member_asks_the_owner_before(ws):
    team = Team(ws, 3)
    want = make_file(team, SMALL)
    a = team.join(0, STEADY)
    b = team.join(1, STEADY)
    team.settle(2)
    # Unlike a read, which a disk cache that is behind need not keep.
    ws.run("cachefs", "warmup", a / "f", check=True, timeout=60)
    assert sum(team.fetched().values()) == SMALL // BLOCK, team.account()
    c = team.join(2, "group-backup=1m," + STEADY)
    team.settle(3)
    assert read_all([c]) == [want]
    assert sum(team.fetched().values()) == SMALL // BLOCK, team.account()
    assert c.stat("peer_hits_total") > 0


@TLS
@pytest.mark.deadline(120)
def test_key_rotation(ws, tls):
    team = Team(ws, 2)
    want = make_file(team, SMALL)
    a, b = team.join_all(",".join(filter(None, [UNCACHED, tls])))
    end = reading([a, b], want, 30)
    more_rounds(end, 2)
    r = ws.run("cachefs", "config", "--rotate-group-key", "team", team.volume.url, check=True, env=team.s3.keys)
    key = team.volume.sql("SELECT value FROM jfs_cachefs_record WHERE CAST(name AS TEXT) LIKE 'group.key/%'")
    secrets = json.loads(key[0][0])
    assert secrets["key"] != secrets["old"] and len(secrets["old"]) == 64
    assert secrets["key"] not in r.stdout + r.stderr
    more_rounds(end, 4)
    end()
    c = a.remount()  # with the new key only
    team.members[0] = c
    team.settle(2)
    assert read_all([c, b]) == [want] * 2
    # A member that does not know the key would fetch all of its share itself; a busy one, a block.
    assert sum(m.stat("peer_fallbacks_total") for m in (c, b)) <= 2
    r = ws.run("cachefs", "config", "--rotate-group-key", "nobody", team.volume.url, env=team.s3.keys)
    assert r.returncode != 0 and "no cache group nobody" in r.stderr


def test_records_of_another_form_are_removed(ws):
    """Redis: a hash that no member reads, with the key of a group."""
    db = redis_server().database()
    ws.cleanups.append(db.drop)
    vol = ws.volume(url=db.url)
    c = db.connect()
    c.hset("zcachefs:record", "group.key.team/", "{}")
    m = vol.mount("cache-group=team,group-ip=127.0.0.1")
    assert not c.exists("zcachefs:record") and c.exists("zcachefs:record:group.key")
    m.umount()


@pytest.mark.deadline(120)
def test_no_sharing_and_read_only(ws):
    team = Team(ws, 2)
    want = make_file(team, SMALL)
    a = team.join(0, STEADY)
    b = team.join(1, "no-sharing," + STEADY)
    team.settle(2)
    assert read_all([b]) == [want]
    assert read_all([a]) == [want]
    assert sum(team.fetched().values()) == SMALL // BLOCK, team.account()
    assert len(owners(ws, b)) == 1
    b.umount()
    c = team.join(1, "ro," + STEADY)
    wait_until(lambda: c.stat("peer_members") >= 1, 30)
    drop_page_cache()
    assert read_all([c]) == [want]
    assert sum(team.fetched().values()) == SMALL // BLOCK, team.account()


@pytest.mark.deadline(120)
def test_replicas(ws):
    team = Team(ws, 3)
    want = make_file(team, SMALL)
    a, b, c = team.join_all("group-replicas=2,group-timeout=500ms")
    assert all(len(x["owners"]) == 2 for x in cache_map(ws, a)["blocks"])
    assert read_all([a, b, c]) == [want] * 3
    c.kill9()
    team.volume.check_options["unmounted"] = False
    drop_page_cache()
    assert read_all([a, b]) == [want] * 2


@pytest.mark.deadline(120)
def test_written_blocks_go_to_their_owners(ws):
    team = Team(ws, 2)
    a, b = team.join_all("fill-group-cache," + STEADY)
    with open(a / "f", "wb", buffering=0) as f:
        f.write(os.urandom(32 * MIB))
        os.fsync(f.fileno())
    wait_until(
        lambda: sum(m.stat("disk_cache_bytes") for m in (a, b)) >= 32 * MIB, 30, "all is cached"
    )
    fetched = sum(team.fetched().values())
    assert md5(b / "f") == md5(a / "f")
    assert sum(team.fetched().values()) == fetched
    # what is deleted is dropped everywhere
    os.unlink(a / "f")
    wait_until(lambda: sum(m.stat("disk_cache_bytes") for m in (a, b)) == 0, 30, "all is dropped")


def kept(members):
    wait_until(lambda: sum(m.stat("disk_cache_pending_bytes") for m in members) == 0, 30)
    return sum(m.stat("disk_cache_bytes") for m in members)


@pytest.mark.deadline(120)
def test_removed_by_one_who_asked_nobody(ws):
    """All owners of a block drop it, also those that the one who removes the file has not talked to."""
    team = Team(ws, 3)
    make_file(team, SMALL)
    a, b, c = team.join_all("group-replicas=2")
    assert md5(a / "f")
    ws.run("cachefs", "warmup", b / "f", check=True, timeout=60)
    assert kept([a, b, c]) >= SMALL
    assert connections(c, "none") == c.stat('peer_connections{direction="served",tls="none"}')
    os.unlink(c / "f")
    wait_until(lambda: kept([a, b, c]) == 0, 30, "all is dropped")


@pytest.mark.deadline(120)
def test_evicted_blocks(ws):
    """An owner does not announce evictions: it answers with the blocks it has, and fetches the rest."""
    team = Team(ws, 2)
    want = make_file(team, SMALL)
    # The owner is the one who owns more: at least eight blocks, of which its disk has room for three.
    a, b = sorted(team.join_all(UNCACHED + ",cache-size=16M"), key=lambda m: len(owners(ws, m).get(member_id(ws, m), [])))
    assert read_all([a]) == [want]
    assert kept([a, b]) <= 2 * 16 * MIB
    assert b.stat("disk_cache_evictions_total") > 0, team.account()
    id_b = member_id(ws, b)
    blocks = cache_map(ws, a)["blocks"]
    assert {x["key"][-7:] for x in blocks} == {str(BLOCK)}
    # The last ones may still be in the memory of the one who asks.
    gone = [i for i, x in enumerate(blocks[:-6]) if x["owners"][0] == {"id": id_b, "cached": False}][:2]
    assert gone, blocks
    before = team.fetched()
    drop_page_cache()
    with open(a / "f", "rb", buffering=0) as f:
        for i in gone:
            assert len(os.pread(f.fileno(), 4096, i * BLOCK)) == 4096
    after = team.fetched()
    for i in gone:
        name = blocks[i]["key"].rsplit("/", 1)[-1]
        assert after[name] == before[name] + 1, "block %d of %s\nbefore: %s\n%s" % (i, gone, before, team.account())
        there = cache_map(ws, a)["blocks"][i]["owners"]
        assert there == [{"id": id_b, "cached": True}], "block %d of %s\n%s\n%s" % (i, gone, there, team.account())


@pytest.mark.deadline(300)
@pytest.mark.parametrize("eviction,least,most", [("s3-fifo", 0.8, 1), ("lru", 0, 0.3)])
def test_a_scan_leaves_what_is_popular(ws, eviction, least, most):
    """Blocks that are read often stay, although four times the group's cache passes."""
    team = Team(ws, 2)
    want = make_file(team, 24 * MIB, "hot")
    scanned = make_file(team, 256 * MIB, "scan")
    a, b = team.join_all(UNCACHED + ",cache-size=32M,cache-eviction=" + eviction)
    for _ in range(3):
        second = int(time.time())
        drop_page_cache()
        assert read_all([a, b], "hot") == [want] * 2
        wait_until(lambda: int(time.time()) > second)  # reads within one second count once
    kept([a, b])
    assert read_all([a], "scan") == [scanned]
    kept([a, b])
    hot = [x["owners"][0]["cached"] for x in cache_map(ws, a, "hot")["blocks"]]
    print("%s: %d of %d hot blocks are left" % (eviction, sum(hot), len(hot)))
    assert least <= sum(hot) / len(hot) <= most
    drop_page_cache()
    before = sum(team.fetched().values())
    assert read_all([a], "hot") == [want]
    assert sum(team.fetched().values()) - before <= 2 * (len(hot) - sum(hot))


@pytest.mark.deadline(120)
def test_warmup_fills_the_group(ws):
    team = Team(ws, 3)
    want = make_file(team, SMALL)
    a, b, c = team.join_all(STEADY)
    ws.run("cachefs", "warmup", a / "f", check=True, timeout=60)
    assert sum(team.fetched().values()) == SMALL // BLOCK, team.account()
    assert all(o["cached"] is True for x in cache_map(ws, b)["blocks"] for o in x["owners"])
    assert read_all([a, b, c]) == [want] * 3
    assert sum(team.fetched().values()) == SMALL // BLOCK, team.account()


# -- options


def asked(mnt, name):
    return mnt.stat('peer_%s{direction="asked",%s}' % tuple(name.split(",")))


@pytest.mark.deadline(180)
@pytest.mark.parametrize("limit", [1, 4])
def test_max_conns(ws, limit):
    """Connections to a busy member grow in number, but not beyond the limit."""
    team = Team(ws, 2)
    size = 4 * SMALL
    want = make_file(team, size)
    a, b = team.join_all("buffer-size=64M,group-max-conns=%d" % limit)
    assert read_all([a, b]) == [want] * 2
    most = 0

    def see():
        nonlocal most
        most = max(most, asked(a, 'connections,tls="none"'))
        return most > 1 if limit > 1 else a.stat("peer_hit_bytes_total") > 4 * size

    # Over a link that is slower than both ends there is always a request under way.
    rate = ["tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms"]
    ip_netns = ["nsenter", "--net=/run/netns/" + team.net.names[1]]
    subprocess.run([*ip_netns, "tc", "qdisc", "add", "dev", "eth0", "root", *rate], check=True, timeout=10)
    end = reading([a] * 4, want, 60)
    wait_until(see, 60, "connections and traffic")
    end()
    print("%d connections, %d MiB" % (most, a.stat("peer_hit_bytes_total") / MIB))
    assert 1 <= most <= limit


@pytest.mark.deadline(120)
def test_max_inflight(ws):
    """An owner turns away what goes beyond it; the reader gets that from the bucket."""
    team = Team(ws, 2)
    wants = [make_file(team, 16 * MIB, "f%d" % i) for i in range(8)]  # readers of one file would share its pages
    a = team.join(0, "group-weight=0," + UNCACHED)  # keeps nothing that it is refused
    b = team.join(1, "group-max-inflight=4M")
    team.settle()
    ends = [reading([a], want, 30, "f%d" % i) for i, want in enumerate(wants)]
    wait_until(lambda: asked(a, 'errors_total,kind="busy"') > 3, 90, "an owner that is busy")
    for end in ends:
        end()
    assert asked(b, 'errors_total,kind="busy"') == 0  # a has no such limit
    assert b.stat('peer_requests_total{direction="served"}') > 0


@pytest.mark.deadline(120)
def test_max_requests(ws):
    """Requests per second and connection that are served; the rest is turned away."""
    team = Team(ws, 2)
    want = make_file(team, SMALL)
    a = team.join(0, "group-max-conns=1,group-weight=0," + UNCACHED)  # keeps nothing that it is refused
    b = team.join(1, "group-max-requests=2," + UNCACHED)
    team.settle()
    start = time.monotonic()
    end = reading([a], want, 30)
    wait_until(lambda: asked(a, 'errors_total,kind="busy"') > 20, 60, "an owner that is busy")
    end()
    served = b.stat('peer_requests_total{direction="served"}')
    assert 0 < served <= 2 * (time.monotonic() - start + 2)
    read_all([b])
    assert asked(b, 'errors_total,kind="busy"') == 0


@pytest.mark.parametrize(
    "opts,message",
    [
        ("cache-group=a/b", "not a name of a cache group"),
        ("cache-group=g,group-ip=nowhere", "group-ip is not an address"),
        ("cache-group=g,group-ip=fe80::1", "not an address at which others reach"),
        ("cache-group=g,group-ip=8.8.8.8", "not a private address"),
        ("cache-group=g,group-network=203.0.113.0/24", "no private address in 203.0.113.0/24"),
        ("cache-group=g,group-ip=10.255.255.254", "Cannot assign|cannot listen|EADDRNOTAVAIL"),
    ],
)
def test_bad_options(ws, opts, message):
    volume = ws.volume()
    point = ws.path("mnt")
    point.mkdir()
    r = ws.run("cachefs", "mount", volume.url, point, "-o", opts)
    assert r.returncode == 32
    assert re.search(message, r.stderr), r.stderr
    write(ws.path("x"), b"")
