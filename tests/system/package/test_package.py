# SPDX-License-Identifier: Apache-2.0
"""Packages of the commit that is checked out: built, checked, installed in an empty Debian, used
there. Without it an administrator finds out that a file or a dependency is missing."""

import json
import os
import re
import shutil
import subprocess

import pytest

from cachefs import REPO, Volume, mountinfo, need_program, wait_until
from machine import Machine

pytestmark = [
    pytest.mark.long,
    pytest.mark.deadline(2400),
    pytest.mark.skipif(not os.environ.get("CACHEFS_LONG"), reason="takes long: set CACHEFS_LONG=1"),
    pytest.mark.skipif(not shutil.which("dpkg"), reason="builds on Debian"),
]

# Commands in the installed system. A mount is tried where there is a /dev/fuse.
TRY = r"""
set -eux
export LC_ALL=C
test -z "$(find / -xdev -perm /6000 -newer /debs -type f)"
cachefs version | grep -x 'modules: metrics mysql postgresql rdma redis s3'
mkdir -p /srv
cachefs format --storage file --bucket /srv/blocks sqlite3:///srv/m.db vol
cachefs status sqlite3:///srv/m.db
# modules are found, and say what they lack
cachefs status redis://127.0.0.1:1/1 2>&1 | grep -v 'not installed'
cachefs status mysql://u@127.0.0.1:1/x 2>&1 | grep -v 'not installed'
cachefs status postgres://u@127.0.0.1:1/x 2>&1 | grep -v 'not installed'
if [ -c /dev/fuse ]; then
	mount -t cachefs sqlite3:///srv/m.db /mnt -o metrics=unix:/srv/metrics
	echo hello >/mnt/file
	umount /mnt
	mount -t cachefs sqlite3:///srv/m.db /mnt
	test "$(cat /mnt/file)" = hello
	cachefs umount /mnt
	# by a name, as in fstab
	mkdir -p /etc/cachefs
	printf '[data]\nmeta-url = sqlite3:///srv/m.db\n' >/etc/cachefs/cachefs.conf
	mount -t cachefs data /mnt
	test "$(cat /mnt/file)" = hello
	umount /mnt
	echo MOUNTED
fi
"""


MAINTAINER = "A. Distributor & Sons <packages@distributor.example>"


def build(kind, folder):
    log = folder / "log"
    env = {**os.environ, "CACHEFS_MAINTAINER": MAINTAINER}
    with open(log, "wb") as out:
        r = subprocess.run(
            [REPO / "scripts/package", kind, folder / "dist"], stdout=out, stderr=out, timeout=1500, env=env
        )
    assert r.returncode == 0, log.read_text("utf-8", "replace")[-3000:]
    return sorted((folder / "dist").glob("*." + kind))


@pytest.fixture(scope="module")
def debs(tmp_path_factory):
    return {p.name.split("_")[0]: p for p in build("deb", tmp_path_factory.mktemp("deb"))}


@pytest.fixture(scope="module")
def rpms(tmp_path_factory):
    found = build("rpm", tmp_path_factory.mktemp("rpm"))
    return {p.name.split("-0.")[0]: p for p in found}


def output(*argv, **kw):
    return subprocess.run(argv, stdout=-1, text=True, timeout=120, check=True, **kw).stdout


EXPECTED = [
    r"/usr/bin/cachefs",
    r"/usr/sbin/mount\.cachefs",
    r"/usr/sbin/mount\.fuse\.cachefs",
    r"/usr/lib\S*/cachefs/cachefs-s3\.so",
    r"/usr/lib\S*/cachefs/cachefs-redis\.so",
    r"/usr/lib\S*/cachefs/cachefs-metrics\.so",
    r"/usr/lib/tmpfiles\.d/cachefs\.conf",
    r"/usr/share/man/man1/cachefs\.1\.gz",
    r"/usr/share/man/man5/cachefs\.conf\.5\.gz",
    r"/usr/share/man/man7/cachefs-metrics\.7\.gz",
    r"/usr/share/man/man8/mount\.cachefs\.8\.gz",
    r"/usr/share/bash-completion/completions/cachefs",
    r"/usr/share/zsh/\S*/_cachefs",
    r"/usr/share/doc/cachefs/examples/(cachefs\.conf|credentials|fstab)",
    r"/usr/share/doc/cachefs/examples/grafana/cachefs\.json(\.gz)?",
    r"/usr/share/doc/cachefs/examples/prometheus/cachefs-alerts\.yml(\.gz)?",
    r"/usr/share/doc/cachefs/examples/systemd/mnt-data\.mount",
    r"/usr/share/doc/cachefs/docs/operations\.md(\.gz)?",
]


def check_files(base, mysql, postgresql, rdma):
    """Lists of absolute paths."""
    for pattern in EXPECTED:
        assert any(re.fullmatch(pattern, f) for f in base), pattern
    assert not [f for f in base if re.search(r"/cachefs-(mysql|postgresql|rdma)", f)]
    assert any(f.endswith("/cachefs-mysql.so") for f in mysql)
    assert any(f.endswith("/cachefs-postgresql.so") for f in postgresql)
    assert any(f.endswith("/cachefs-rdma.so") for f in rdma)
    for f in base + mysql + postgresql + rdma:
        assert not re.search(r"/systemd/system/|/init\.d/", f), "something would be started: " + f


def test_deb_contents(debs):
    assert set(debs) - {n for n in debs if n.endswith("-dbgsym")} == {
        "cachefs", "cachefs-mysql", "cachefs-postgresql", "cachefs-rdma",
    }
    lists = {}
    for name in ("cachefs", "cachefs-mysql", "cachefs-postgresql", "cachefs-rdma"):
        lines = output("dpkg-deb", "-c", debs[name]).splitlines()
        assert not [x for x in lines if "s" in x[1:10].lower()], "SUID files"
        lists[name] = [x.split()[5][1:] for x in lines]
    check_files(*lists.values())
    assert output("dpkg-deb", "-f", debs["cachefs"], "Maintainer").strip() == MAINTAINER
    needs = {n: output("dpkg-deb", "-f", debs[n], "Depends") for n in lists}
    assert "libpq" not in needs["cachefs"] and "libmariadb" not in needs["cachefs"]
    assert "fuse3" in needs["cachefs"] and "libhiredis" in needs["cachefs"]
    assert "libmariadb" in needs["cachefs-mysql"] and "cachefs (=" in needs["cachefs-mysql"]
    assert "libpq" in needs["cachefs-postgresql"] and "cachefs (=" in needs["cachefs-postgresql"]
    assert "librdmacm" in needs["cachefs-rdma"] and "librdmacm" not in needs["cachefs"]


def fresh_system(codename, root):
    """An empty Debian; None, or why there is none."""
    mirror = os.environ.get("CACHEFS_DEBIAN_MIRROR", "http://deb.debian.org/debian")
    need_program("debootstrap")
    r = subprocess.run(
        ["debootstrap", "--variant=minbase", codename, root, mirror],
        stdout=-1, stderr=-2, text=True, timeout=900,
    )
    if r.returncode != 0:
        return r.stdout.splitlines()[-1]
    for f in ("/etc/resolv.conf", "/etc/hosts"):
        shutil.copy(f, root / f[1:])
    for f in os.listdir("/etc/apt/apt.conf.d"):
        text = open("/etc/apt/apt.conf.d/" + f).read()
        if "Proxy" in text or "Check-Valid-Until" in text or "Check-Date" in text:
            shutil.copy("/etc/apt/apt.conf.d/" + f, root / "etc/apt/apt.conf.d")
    (root / "debs").mkdir()
    (root / "try").write_text(TRY)
    return None


def run_in(root, script, timeout):
    """Mounts end with the name space. No service may start: there is no init."""
    enter = """
        mount -t proc proc $1/proc && mkdir -p $1/dev && mount --rbind /dev $1/dev
        LC_ALL=C DEBIAN_FRONTEND=noninteractive chroot $1 sh -exc "$2"
    """
    with open(root / "log", "wb") as log:
        r = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--propagation", "slave", "sh", "-ec", enter, "sh", root, script],
            stdin=-3, stdout=log, stderr=-2, timeout=timeout,
        )
    text = (root / "log").read_text("utf-8", "replace")
    assert r.returncode == 0, text[-4000:]
    assert not [point for point in mountinfo() if point.startswith(str(root))]
    return text


INSTALL = "apt-get install -y -q --no-install-recommends mount $(ls /debs/*.deb | grep -v dbgsym) && sh /try"


@pytest.fixture(scope="module")
def bookworm(debs, tmp_path_factory):
    """An empty Debian with the packages to be installed; None where there is no mirror."""
    root = tmp_path_factory.mktemp("bookworm") / "root"
    missing = fresh_system("bookworm", root)
    if missing:
        print("no Debian mirror (%s)" % missing)
        yield None
        return
    for p in debs.values():
        shutil.copy(p, root / "debs")
    run_in(root, "apt-get update -q", 900)
    yield root
    shutil.rmtree(root)


def test_deb_in_a_fresh_system(debs, bookworm, tmp_path):
    if not bookworm:
        unpacked(debs, tmp_path)
        pytest.skip("no Debian mirror; ran from unpacked packages")
    text = run_in(bookworm, INSTALL, 900)
    if os.path.exists("/dev/fuse"):
        assert "MOUNTED" in text


def next_version(deb, folder):
    """The same package with another version in it."""
    tree = folder / "next"
    script = """
        dpkg-deb -R "$1" "$2"
        sed -i 's/^Version: .*/Version: 9.9.9/; s/(= [0-9.]*)/(= 9.9.9)/' "$2/DEBIAN/control"
        find "$2/usr" -type f '(' -name cachefs -o -name '*.so' ')' -exec sed -i "s/$3/9.9.9/g" {} +
        find "$2" -type f -path '*/usr/*' -printf '%P\\n' | (cd "$2" && xargs md5sum) >"$2/DEBIAN/md5sums"
        dpkg-deb --root-owner-group -b "$2" "$4"
        rm -r "$2"
    """
    version = re.escape(output("dpkg-deb", "-f", deb, "Version").strip())
    env = {**os.environ, "LC_ALL": "C"}
    subprocess.run(["sh", "-euc", script, "sh", deb, tree, version, folder / deb.name], check=True, timeout=120, env=env)


def test_deb_under_a_mount(debs, bookworm, ws):
    """An upgrade and a removal of the package leave a mount alone, which says what it needs to change to
    the next version, and which also survives a crash then."""
    if not bookworm:
        pytest.skip("no Debian mirror")
    run_in(bookworm, "apt-get install -y -q --no-install-recommends mount systemd $(ls /debs/*.deb | grep -v dbgsym)", 900)
    ws.path("upgrade").mkdir()
    for name in ("cachefs", "cachefs-mysql", "cachefs-postgresql", "cachefs-rdma"):
        next_version(debs[name], ws.path("upgrade"))
    volume = Volume(ws, "vol")
    ws.volumes.append(volume)
    fstab = "%s /mnt/data cachefs nofail,metrics=unix:/run/metrics.sock 0 0\n" % volume.url
    m = Machine(ws, fstab, root=bookworm).boot()
    assert m.shell("ls -ld /var/cache/cachefs").startswith("drwx------")
    m.shell("echo hello >/mnt/data/file; sleep 1000 </mnt/data/file & echo $! >/run/reader")

    def serving():
        return str(json.loads(m.shell("cat /mnt/data/.config"))["Pid"])

    def crash():
        pid = serving()
        m.shell("kill -9 " + pid)
        wait_until(lambda: serving() != pid, 30, "another process")

    pid = serving()
    told = m.shell("dpkg -i %s/*.deb" % ws.path("upgrade"))
    assert "go on with the version before:\n  /mnt/data\n" in told, told
    assert serving() == pid and "9.9.9" not in m.shell("cat /mnt/data/.stats")
    crash()
    assert "9.9.9" not in m.shell("cat /mnt/data/.stats")
    upgrade = "cachefs mount -o metrics=unix:/run/metrics.sock %s /mnt/data" % volume.url
    m.shell("systemd-run --quiet --collect --property=Type=forking --property=DefaultDependencies=no " + upgrade)
    assert 'version="9.9.9"' in m.shell("cat /mnt/data/.stats")
    m.shell("dpkg --purge cachefs cachefs-mysql cachefs-postgresql cachefs-rdma; test ! -e /usr/bin/cachefs")
    crash()
    assert m.shell("kill $(cat /run/reader); cat /mnt/data/file") == "hello\n"
    m.systemctl("stop", "mnt-data.mount")
    wait_until(lambda: not m.run("systemctl", "list-units", "--no-legend", "run-*").stdout, 30, "the unit's end")
    m.poweroff()


def test_deb_of_the_next_release(tmp_path):
    """Built there, too: a newer compiler and newer libraries have nothing to warn of."""
    root = tmp_path / "root"
    missing = fresh_system("trixie", root)
    if missing:
        pytest.skip("no Debian mirror (%s)" % missing)
    (root / "src/cachefs").mkdir(parents=True)
    subprocess.run(
        ["sh", "-ec", 'git -C "$1" archive HEAD | tar -x -C "$2"', "sh", REPO, root / "src/cachefs"], check=True, timeout=60
    )
    script = """
        apt-get update -q
        apt-get install -y -q --no-install-recommends dpkg-dev debhelper lintian
        cd /src/cachefs
        apt-get build-dep -y -q --no-install-recommends ./
        DEB_CFLAGS_APPEND=-Werror dpkg-buildpackage -b -us -uc
        lintian --allow-root --fail-on error,warning ../*.changes
        mv ../*.deb /debs
    """
    text = run_in(root, script + INSTALL, 1700)
    if os.path.exists("/dev/fuse"):
        assert "MOUNTED" in text
    shutil.rmtree(root)


def unpacked(debs, folder):
    root = folder / "unpacked"
    for name in ("cachefs", "cachefs-mysql", "cachefs-postgresql", "cachefs-rdma"):
        subprocess.run(["dpkg", "-x", debs[name], root], check=True, timeout=60)
    program = root / "usr/bin/cachefs"
    url = "sqlite3://%s/m.db" % folder
    output(program, "format", "--storage", "file", "--bucket", folder / "blocks", url, "vol")
    assert '"Name": "vol"' in output(program, "status", "--json", url)


def test_rpm_contents(rpms):
    assert set(rpms) >= {"cachefs", "cachefs-mysql", "cachefs-postgresql", "cachefs-rdma"}
    lists = {n: output("rpm", "-qpl", rpms[n]).splitlines() for n in ("cachefs", "cachefs-mysql", "cachefs-postgresql", "cachefs-rdma")}
    check_files(*lists.values())
    needs = {n: output("rpm", "-qp", "--requires", rpms[n]) for n in lists}
    assert "libpq" not in needs["cachefs"] and "libmariadb" not in needs["cachefs"]
    assert re.search(r"^fuse3$", needs["cachefs"], re.M) and "libhiredis" in needs["cachefs"]
    for name, library in (("cachefs-mysql", "libmariadb"), ("cachefs-postgresql", "libpq")):
        assert library in needs[name] and re.search(r"^cachefs\S* = 0", needs[name], re.M)
    assert MAINTAINER in output("rpm", "-qp", "--changelog", rpms["cachefs"])
    modes = output("rpm", "-qp", "--qf", "[%{FILEMODES:perms} %{FILENAMES}\n]", rpms["cachefs"])
    assert not re.search(r"^-\S*s", modes, re.M), "SUID files"
    assert not output("rpm", "-qp", "--provides", rpms["cachefs-mysql"]).count(".so")


def test_rpm_unpacked(rpms, tmp_path):
    subprocess.run(
        ["sh", "-ec", 'rpm2cpio "$1" | (cd "$2" && cpio -idm --quiet)', "sh", rpms["cachefs"], tmp_path],
        check=True, timeout=60,
    )
    program = tmp_path / "usr/bin/cachefs"
    assert "unable" not in output(program, "version")
    assert os.readlink(tmp_path / "usr/sbin/mount.cachefs") in ("/usr/bin/cachefs", "../bin/cachefs")
