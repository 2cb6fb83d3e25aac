# SPDX-License-Identifier: Apache-2.0
"""mount.cachefs against the contract of mount(8). A failure here is a mount that works by hand and
not from fstab, or a boot that hangs."""

import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import time

import pytest

from cachefs import SLOW, mountinfo, need_engine, tool, wait_until
from syscalls import fails, read, write


@pytest.fixture
def point(ws):
    p = ws.path("m")
    p.mkdir()
    return p


def helper(ws, *args, **kw):
    return ws.run("mount.cachefs", *args, **kw)


def umount(ws, point):
    ws.run("cachefs", "umount", point, check=True)
    assert str(point) not in mountinfo()
    wait_until(lambda: not ws.processes(), 30, "the end of the mount process")


def one_reason(r):
    lines = [x for x in r.stderr.splitlines() if x.strip() and "waiting for a reply from" not in x]
    assert len(lines) == 1, "want one line that says why, got %r" % r.stderr
    return lines[0]


ORDERS = [
    "SPEC DIR",
    "SPEC DIR -s -n -v -o rw,noatime -t cachefs",
    "-o rw SPEC DIR",
    "SPEC -o nosuid,nodev DIR",
    "-v SPEC DIR -o _netdev,nofail,noauto,user,defaults",
    "-sn SPEC DIR -t fuse.cachefs",
    "SPEC DIR -o x-systemd.automount,X-mount.mkdir,comment=hello -n",
    "-o attr-cache=2 -o entry-cache=3,rw SPEC DIR",
    "SPEC DIR -o mount-timeout=20,allow-other,buffer_size=64",
]


@pytest.mark.parametrize("order", ORDERS)
def test_argument_orders(ws, volume, point, order):
    args = [{"SPEC": volume.url, "DIR": str(point)}.get(a, a) for a in order.split()]
    start = time.monotonic()
    r = helper(ws, *args)
    assert r.returncode == 0, r.stderr
    assert time.monotonic() - start < 10 * SLOW
    info = mountinfo()[str(point)]
    assert info[1] == "fuse.cachefs"
    write(point / "f", b"x")  # it answers when the helper returns
    umount(ws, point)


def test_generic_options_reach_the_kernel(ws, volume, point):
    helper(ws, volume.url, point, "-o", "ro,nodev,nosuid,noexec", check=True)
    opts = set(mountinfo()[str(point)][3].split(","))
    assert {"ro", "nodev", "nosuid", "noexec"} <= opts
    with fails("EROFS"):
        os.mkdir(point / "d")
    umount(ws, point)


def test_fake_checks_without_mounting(ws, volume, point):
    assert helper(ws, volume.url, point, "-f").returncode == 0
    assert helper(ws, "-fv", volume.url, point, "-o", "ro").returncode == 0
    assert str(point) not in mountinfo() and not ws.processes()
    assert volume.sql("SELECT count(*) FROM jfs_session2") == [(0,)]
    r = helper(ws, "sqlite3://%s/nothing.db" % ws.dir, point, "-f")
    assert r.returncode == 32 and one_reason(r)
    r = helper(ws, volume.url, point, "-f", "-o", "no-such-option")
    assert r.returncode == 1 and "no-such-option" in r.stderr


def test_unknown_option(ws, volume, point):
    r = helper(ws, volume.url, point, "-o", "no-such-option=3")
    assert r.returncode == 1 and "no-such-option" in one_reason(r)
    assert str(point) not in mountinfo()
    r = helper(ws, volume.url, point, "-s", "-o", "no-such-option=3")
    assert r.returncode == 0 and "no-such-option" in r.stderr
    umount(ws, point)


@pytest.mark.parametrize(
    "opts", ["attr-cache=soon", "heartbeat=-1", "buffer-size=lots", "credentials"]
)
def test_bad_option_value(ws, volume, point, opts):
    r = helper(ws, volume.url, point, "-o", opts)
    assert r.returncode == 1 and opts.split("=")[0] in one_reason(r)


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["SPEC"],
        ["SPEC", "DIR", "more"],
        ["-N", "/proc/1/ns/mnt", "SPEC", "DIR"],
        ["-z", "SPEC", "DIR"],
        ["SPEC", "DIR", "-t", "ext4"],
    ],
)
def test_wrong_call(ws, volume, point, args):
    r = helper(ws, *[{"SPEC": volume.url, "DIR": str(point)}.get(a, a) for a in args])
    assert r.returncode == 1 and r.stderr.strip()
    assert str(point) not in mountinfo()


def test_missing_mount_point(ws, volume):
    r = helper(ws, volume.url, ws.path("nowhere"))
    assert r.returncode == 32 and "nowhere" in one_reason(r)
    assert not ws.path("nowhere").exists()


def test_mount_point_is_a_file(ws, volume):
    write(ws.path("file"), b"")
    r = helper(ws, volume.url, ws.path("file"))
    assert r.returncode == 32 and "file" in one_reason(r)


def test_already_mounted(ws, volume, point):
    helper(ws, volume.url, point, check=True)
    write(point / "f", b"first")
    r = helper(ws, volume.url, point)
    assert r.returncode == 32 and "mounted" in one_reason(r)
    assert read(point / "f") == b"first"
    umount(ws, point)


def flags_of(point):
    return set(mountinfo()[str(point)][3].split(",")) & {"nosuid", "nodev", "noexec", "ro", "rw"}


def test_remount_keeps_the_flags_that_are_not_named(ws, volume, point):
    """With its own nosuid and nodev gone a mount would let anybody be root who can write to the volume."""
    helper(ws, volume.url, point, "-o", "noexec", check=True)
    assert flags_of(point) == {"nosuid", "nodev", "noexec", "rw"}
    helper(ws, volume.url, point, "-o", "remount,ro", check=True)
    assert flags_of(point) >= {"nosuid", "nodev", "noexec", "ro"}
    ws.run("cachefs", "mount", "-o", "remount,rw,exec,suid", volume.url, point, check=True)
    assert flags_of(point) == {"nodev", "rw"}
    umount(ws, point)


def test_remount(ws, volume, point):
    helper(ws, volume.url, point, check=True)
    write(point / "f", b"x")
    helper(ws, volume.url, point, "-o", "remount,ro", check=True)
    assert "ro" in mountinfo()[str(point)][3].split(",")
    with fails("EROFS"):
        write(point / "g", b"x")
    assert read(point / "f") == b"x"
    helper(ws, volume.url, point, "-o", "rw,remount", check=True)
    write(point / "g", b"y")
    umount(ws, point)
    r = helper(ws, volume.url, point, "-o", "remount,ro")
    assert r.returncode == 32


def test_credentials(ws, volume, point):
    secret = "geheim-9d2f"
    file = ws.path("cred")
    write(file, ("META_PASSWORD=%s\n" % secret).encode())
    os.chmod(file, 0o644)
    r = helper(ws, volume.url, point, "-o", "credentials=%s" % file)
    assert r.returncode in (1, 32) and "0600" in one_reason(r) and secret not in r.stderr
    assert str(point) not in mountinfo()
    r = helper(ws, volume.url, point, "-o", "credentials=%s" % ws.path("none"))
    assert r.returncode in (1, 32) and one_reason(r)
    os.mkfifo(ws.path("fifo"), 0o600)  # nobody may ever write into it
    r = helper(ws, volume.url, point, "-o", "credentials=%s" % ws.path("fifo"), timeout=20)
    assert r.returncode in (1, 32) and "regular file" in one_reason(r)
    os.chmod(file, 0o600)
    helper(ws, volume.url, point, "-o", "credentials=%s" % file, check=True)
    for pid, cmdline in ws.processes():
        assert secret not in cmdline
    assert secret not in " ".join(mountinfo()[str(point)])
    umount(ws, point)


@pytest.mark.parametrize("key", ["ACCES_KEY", "export ACCESS_KEY", "LD_PRELOAD", "META_PASSWORD\x1b[31m"])
def test_credentials_with_a_key_that_nobody_reads(ws, volume, point, key):
    """A typing error would else be heard of as a denial of the database or the bucket."""
    file = ws.path("cred")
    write(file, b"# keys\nACCESS_KEY=a\n\n%s=geheim\n" % key.encode())
    os.chmod(file, 0o600)
    r = helper(ws, volume.url, point, "-o", "credentials=%s" % file)
    assert r.returncode in (1, 32)
    reason = one_reason(r)
    assert "%s: line 4: unknown key %s" % (file, key.replace("\x1b", "\\x1b")) in reason and "geheim" not in reason


@pytest.mark.parametrize("port", ["0", "65536", "99999", "4294967297", "18446744073709551617"])
def test_ports_that_are_none(ws, volume, point, port):
    """Of a larger number a socket takes the last 16 bits: a service nobody meant."""
    for url in (
        "redis://127.0.0.1:%s/1",
        "redis://master,127.0.0.1:1,127.0.0.1:%s/1",
        "mysql://root@(127.0.0.1:%s)/db",
        "postgres://u@127.0.0.1:%s/db",
    ):
        r = ws.run("cachefs", "status", url % port, timeout=20)
        assert r.returncode != 0 and "port" in one_reason(r), (url, r.stderr)
    for bucket in ("http://127.0.0.1:%s/b", "http://[::1]:%s/b"):
        args = ["--storage", "s3", "--bucket", bucket % port, "sqlite3://%s" % ws.path("new.db"), "new"]
        r = ws.run("cachefs", "format", *args, timeout=20)
        assert r.returncode != 0 and "port" in one_reason(r), (bucket, r.stderr)
    for option in ("group-port=%s", "metrics=%s"):
        if port != "0":  # any that is free
            r = helper(ws, volume.url, point, "-o", option % port)
            assert r.returncode in (1, 32) and "port" in one_reason(r), (option, r.stderr)


@pytest.mark.parametrize("how", ["status", "mount"])
def test_a_wait_for_a_database_is_told(ws, point, how):
    """One that takes connections and answers nothing: a command that is silent for half a minute is
    taken for one that hangs, and killed."""
    need_engine("redis")
    deaf = socket.create_server(("127.0.0.1", 0), backlog=50)
    ws.cleanups.append(deaf.close)
    where = "127.0.0.1:%d" % deaf.getsockname()[1]
    args = {"status": ["status"], "mount": ["mount", "-o", "mount_timeout=6"]}[how]
    p = ws.popen(
        [tool("cachefs"), *args, "redis://:geheim@%s/1" % where, *([point] if how == "mount" else [])],
        stderr=-1, text=True,
    )
    begin = time.monotonic()
    line = p.stderr.readline()
    assert time.monotonic() - begin < 20 * SLOW
    assert "waiting for a reply from redis://" in line and where in line and "geheim" not in line
    p.terminate()
    p.wait(30 * SLOW)
    p.stderr.close()


def test_mount_without_standard_files(ws, volume, point):
    """As a caller does that closes what it does not use. Nothing else gets their numbers."""
    r = ws.run(
        "sh", "-c", 'exec "$0" "$1" "$2" -o "$3" <&- >&- 2>&-', tool("mount.cachefs"), volume.url, point, "log-level=debug"
    )
    assert r.returncode == 0
    write(point / "f", b"x" * 100000)
    with open(point / "f", "rb") as f:
        assert f.read() == b"x" * 100000
    serving = [pid for pid, line in ws.processes() if str(point) in line]
    assert serving
    for pid in serving:
        for fd in range(3):
            assert os.readlink("/proc/%d/fd/%d" % (pid, fd)) == "/dev/null"
    umount(ws, point)
    r = ws.run("sh", "-c", 'exec "$0" status "$1" <&- >&- 2>&-', tool("cachefs"), volume.url)
    assert r.returncode == 0
    assert sqlite3.connect(volume.db).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_secret_is_masked_in_messages(ws, point):
    for url in (
        "mysql://root:geheim@(127.0.0.1:1)/db",
        "postgres://u:geheim@127.0.0.1:1/db",
        "redis://:geheim@127.0.0.1:1/1",
        "what://u:geheim@host/x",
        "sqlite3:/u:geheim@x",
    ):
        for argv in (["mount.cachefs", url, point], ["cachefs", "status", url]):
            r = ws.run(*argv)
            assert r.returncode != 0 and "geheim" not in r.stderr + r.stdout, url


def test_mount_timeout(ws, volume, point):
    """A metadata store that does not answer must not hang the boot."""
    lock = sqlite3.connect(volume.db, isolation_level=None)
    lock.execute("PRAGMA locking_mode=EXCLUSIVE")
    lock.execute("BEGIN EXCLUSIVE")
    lock.execute("UPDATE jfs_counter SET value=value")
    try:
        start = time.monotonic()
        r = helper(ws, volume.url, point, "-o", "mount_timeout=3")
        assert r.returncode == 32 and one_reason(r)
        assert time.monotonic() - start < 10 * SLOW
    finally:
        lock.execute("ROLLBACK")
        lock.close()
    assert str(point) not in mountinfo()
    wait_until(lambda: not ws.processes(), 10, "the end of the helper's processes")


def test_nothing_is_inherited(ws, volume, point):
    """ssh host mount ...: the session ends although the daemon lives on."""
    p = subprocess.Popen(
        [tool("mount.cachefs"), volume.url, str(point)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ws.env(),
        cwd=ws.dir,
    )
    out, _ = p.communicate(timeout=30 * SLOW)  # ends only when every copy of the pipe is closed
    assert p.returncode == 0, out
    pids = [pid for pid, _ in ws.processes()]
    assert len(pids) == 2  # supervisor and worker
    for pid in pids:
        assert os.readlink("/proc/%d/cwd" % pid) == "/"
        assert os.getsid(pid) != os.getsid(0)
        for fd in range(3):
            assert os.readlink("/proc/%d/fd/%d" % (pid, fd)) == "/dev/null"
    umount(ws, point)


@pytest.fixture
def installed(ws):
    """The helper where mount(8) looks for it, under both names that it asks for."""
    links = ["/sbin/mount.cachefs", "/sbin/mount.fuse.cachefs"]

    def free(link):
        if os.path.islink(link) and not os.path.exists(link):
            os.unlink(link)  # of a build that is gone
        return not os.path.lexists(link)

    for link in links:
        if os.path.lexists(link) and not os.path.islink(link):
            pytest.skip("an installed %s is in the way" % link)
        wait_until(lambda: free(link), 200, link + " to be free")
    for link in links:
        os.symlink(tool("mount.cachefs"), link)
    yield
    for link in links:
        os.unlink(link)


@pytest.mark.deadline(300)
def test_mount_program(ws, volume, point, installed):
    ws.run("/bin/mount", "-t", "cachefs", "-o", "ro,attr-cache=1", volume.url, point, check=True)
    assert mountinfo()[str(point)][1] == "fuse.cachefs"
    umount(ws, point)
    assert ws.run("/bin/mount", "-f", "-t", "cachefs", volume.url, point).returncode == 0
    assert str(point) not in mountinfo()
    r = ws.run("/bin/mount", "-t", "cachefs", "sqlite3://%s/no.db" % ws.dir, point)
    assert r.returncode == 32


@pytest.mark.deadline(300)
def test_fstab_line(ws, volume, point, installed):
    write(
        ws.path("fstab"),
        ("%s %s cachefs _netdev,nofail,x-systemd.automount 0 0\n" % (volume.url, point)).encode(),
    )
    ws.run("/bin/mount", "-T", ws.path("fstab"), point, check=True)
    write(point / "f", b"x")
    ws.run("/bin/umount", point, check=True)
    wait_until(lambda: not ws.processes(), 30, "the end of the mount process")


@pytest.mark.deadline(300)
def test_second_mount_of_the_line(ws, volume, point, installed):
    """Refused in one line, and the first goes on."""
    line = "%s %s cachefs _netdev,nofail,x-systemd.automount,ro 0 0\n" % (volume.url, point)
    write(ws.path("fstab"), line.encode())
    ws.run("/bin/mount", "-T", ws.path("fstab"), point, check=True)
    serving = ws.processes()
    r = ws.run("/bin/mount", "-T", ws.path("fstab"), point)
    assert r.returncode == 32 and r.stderr.count("already mounted") == 1, r.stderr
    assert len([p for p in ws.mount_points() if p == str(point)]) == 1
    assert ws.processes() == serving
    with fails("EROFS"):
        write(point / "f", b"x")
    ws.run("/bin/umount", point, check=True)
    wait_until(lambda: not ws.processes(), 30, "the end of the mount process")


@pytest.mark.deadline(300)
def test_remount_by_mount_program(ws, volume, point, installed):
    """mount -o remount,ro DIR takes type and options from the kernel's table."""
    ws.run("/bin/mount", "-t", "cachefs", volume.url, point, check=True)
    write(point / "f", b"x")
    ws.run("/bin/mount", "-o", "remount,ro", point, check=True)
    with fails("EROFS"):
        write(point / "g", b"x")
    ws.run("/bin/mount", "-o", "remount,rw,suid", point, check=True)
    write(point / "g", b"x")
    assert flags_of(point) == {"nodev", "rw"}
    umount(ws, point)


# ---- names of others, and a place that is taken ----


@pytest.mark.parametrize(
    "flag", "nodiratime diratime strictatime lazytime iversion silent loud nosymfollow relatime".split()
)
def test_flags_of_mount(ws, volume, point, flag):
    r = helper(ws, volume.url, point, "-o", flag, check=True)
    assert r.stderr.count("\n") <= 1, r.stderr
    if flag == "nosymfollow":
        os.symlink("x", point / "link")
        with fails("ELOOP"):
            open(point / "link", "rb")
        assert "nosymfollow" in mountinfo()[str(point)][3]
    umount(ws, point)


@pytest.mark.parametrize("how", ["helper", "arguments", "file"])
def test_names_of_juicefs(ws, volume, point, how):
    """Mapped, or told that they make no difference."""
    names = ["read-only", "no-usage-report", "cache-scan-interval=3600", "attr-cache=3", "quiet"]
    if how == "helper":
        r = helper(ws, volume.url, point, "-o", ",".join(names), check=True)
    elif how == "arguments":
        r = ws.run("cachefs", "mount", volume.url, point, *["--" + n for n in names], check=True)
    else:
        conf = ws.path("cachefs.conf")
        write(conf, ("[data]\nmeta-url = %s\n%s\n" % (volume.url, "\n".join(names))).encode())
        r = helper(ws, "data", point, "-o", "config=%s" % conf, check=True)
    for name in ("no-usage-report", "cache-scan-interval"):
        assert r.stderr.count(name) == 1, r.stderr
    options = json.loads(read(point / ".config"))["Options"]
    assert (options["ro"], options["attr-cache"], options["log-level"]) == ("true", "3s", "warning")
    umount(ws, point)


# Those of `juicefs mount` 1.4.1, with its defaults or what its manual shows.
JUICEFS = """background no-syslog log=/var/log/juicefs.log force hide-internal update-fstab
    disable-transparent-hugepage enable-xattr enable-cap enable-selinux enable-ioctl root-squash=65534:65534
    all-squash=1000:1000 prefix-internal max-fuse-io=128K umask=022 subdir=/ backup-meta=1h backup-skip-trash
    heartbeat=12s read-only no-bgjob atime-mode=noatime skip-dir-nlink=20 skip-dir-mtime=100ms sort-dir fast-statfs
    network-interfaces=eth0 attr-cache=1.0s entry-cache=1.0s dir-entry-cache=1.0s negative-entry-cache=1s
    readdir-cache open-cache=0s open-cache-limit=10000 storage=file bucket=/nowhere storage-class=STANDARD tag=k=v
    get-timeout=60s put-timeout=60s io-retries=10 max-uploads=20 max-downloads=200 max-stage-write=1000
    max-deletes=10 upload-limit=100 download-limit=100 check-storage buffer-size=300M max-readahead=32 prefetch=1
    writeback writeback-threshold-size=0 upload-delay=0s upload-hours=0-6 cache-dir=/var/jfsCache cache-mode=0600
    cache-size=100G cache-items=0 free-space-ratio=0.1 cache-partial-only cache-large-write
    verify-cache-checksum=extend cache-eviction=2-random cache-scan-interval=1h cache-expire=0s
    metrics=127.0.0.1:9567 custom-labels=a:b consul=127.0.0.1:8500 no-usage-report verbose debug quiet trace
    log-id=random no-agent pyroscope=http://127.0.0.1:4040 no-color""".split()


def test_every_option_of_juicefs_is_known(ws, volume, point):
    """A line of fstab that is carried over: each option is taken, told to have no effect, or refused with what
    there is instead."""
    for option in JUICEFS:
        r = helper(ws, "-f", volume.url, point, "-o", option)
        told = [line for line in r.stderr.splitlines() if "'%s'" % option.split("=")[0] in line]
        if r.returncode:
            assert r.returncode == 1 and len(told) == 1 and "is not supported: " in one_reason(r), (option, r.stderr)
        else:
            assert all("has no effect: " in line for line in told) and len(told) <= 1, (option, r.stderr)


@pytest.mark.parametrize(
    "option, ours",
    [
        ("io-retries=3", "io-timeout"),
        ("open-cache=1", "attr-cache"),
        ("tag=k=v", "config --tag"),
        ("network-interfaces=eth0", "group-network"),
    ],
)
def test_names_of_juicefs_that_are_refused(ws, volume, point, option, ours):
    r = helper(ws, volume.url, point, "-o", option)
    assert r.returncode == 1 and ours in one_reason(r)
    r = ws.run("cachefs", "mount", volume.url, point, "--" + option)
    assert r.returncode == 1 and ours in one_reason(r)


def test_source_is_what_was_asked_for(ws, volume, point):
    helper(ws, volume.url, point, check=True)
    assert mountinfo()[str(point)][2] == volume.url
    umount(ws, point)


@pytest.mark.deadline(300)
@pytest.mark.parametrize("spec", ["url", "name"])
def test_mount_all_twice(ws, volume, point, installed, spec):
    """mount -a of a machine whose volumes are mounted says nothing."""
    conf = ws.path("cachefs.conf")
    write(conf, ("[data]\nmeta-url = %s\n" % volume.url).encode())
    what = volume.url if spec == "url" else "data"
    write(ws.path("fstab"), ("%s %s cachefs _netdev,config=%s 0 0\n" % (what, point, conf)).encode())
    for _ in range(2):
        r = ws.run("/bin/mount", "-a", "-T", ws.path("fstab"))
        assert (r.returncode, r.stdout, r.stderr) == (0, "", "")
        serving = ws.processes()
    r = ws.run("/bin/mount", "-a", "-T", ws.path("fstab"))
    assert (r.returncode, r.stdout, r.stderr) == (0, "", "") and ws.processes() == serving
    umount(ws, point)


def test_second_mount_says_what_differs(ws, volume, point):
    cache = ws.path("cache")
    place = "unix:%s" % ws.path("metrics.sock")
    argv = ["cachefs", "mount", volume.url, point]
    ws.run(*argv, "-o", "cache-dir=%s,metrics=%s,attr-cache=3" % (cache, place), check=True)
    r = ws.run(*argv, "-o", "attr-cache=3", check=True)
    told = r.stdout + r.stderr
    assert re.search("cache-dir: .*%s" % cache, told) and re.search("metrics: .*%s" % place, told), told
    assert "attr-cache" not in told
    r = ws.run(*argv, "-o", "attr-cache=3", check=True)
    assert "option" not in r.stdout + r.stderr
    ws.run("cachefs", "umount", point, check=True)


# ---- ordinary users ----


# In a mount namespace of its own, whose /dev/fuse is everybody's, as udev makes it.
ORDINARY = r"""
set -ex
mknod fuse c 10 229
chmod 666 fuse
mount --bind fuse /dev/fuse
user() { setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"; }
cd home
user cachefs format --storage file --bucket "$PWD/blocks" "sqlite3://$PWD/m.db" mine
user cachefs mount "sqlite3://$PWD/m.db" mnt
user sh -c 'echo hello >mnt/f'
grep " $PWD/mnt .* - fuse.cachefs sqlite3://$PWD/m.db " /proc/self/mountinfo
user sh -c 'cd mnt; echo $$ >../holder; exec sleep 1000' &
until [ -s holder ]; do sleep 0.1; done
! user cachefs umount mnt 2>told
grep 'is busy' told
kill -9 "$(cat holder)"
wait || :
user cachefs umount mnt
! grep " $PWD/mnt " /proc/self/mountinfo
echo ENDED
"""


def test_an_ordinary_user_mounts_and_unmounts(ws):
    """With what fuse.conf says as it is installed."""
    point = ws.path("home") / "mnt"
    point.mkdir(parents=True)
    for p in (point.parent, point):
        shutil.chown(p, "nobody", "nogroup")
    os.chmod(ws.dir, 0o755)
    env = {**ws.env(), "HOME": str(point.parent), "XDG_RUNTIME_DIR": str(point.parent)}
    env["PATH"] = "%s:%s" % (os.path.dirname(tool("cachefs")), os.environ["PATH"])
    r = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", ORDINARY],
        stdin=-3, stdout=-1, stderr=-2, text=True, timeout=100 * SLOW, env=env, cwd=ws.dir,
    )  # fmt: skip
    assert r.returncode == 0 and r.stdout.endswith("ENDED\n"), r.stdout
