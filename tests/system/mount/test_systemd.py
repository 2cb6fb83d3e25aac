# SPDX-License-Identifier: Apache-2.0
"""A real systemd boots with the lines and units that the documentation gives. A user loses a machine that
does not come up, a volume that is not there after the boot, or data at the shutdown."""

import json
import os
import re

import pytest

from cachefs import REPO, Volume, need_module, wait_until
from machine import Machine
from servers import find
from test_operations import PAGE, README

pytestmark = pytest.mark.deadline(180)

ADDRESS = "10.9.9.1"
# Writes three megabytes and keeps the file open, so that they are not stored by its close.
WRITER = """
import sys, time
f = open(sys.argv[1], "wb", buffering=0)
f.write(bytes(range(256)) * 12288)
time.sleep(1000)
"""
CONTENT = bytes(range(256)) * 12288


def line_of(page, url, point, drop=(), **options):
    """The line for fstab of a page, with this volume, place and these values of its options."""
    (line,) = re.findall(r"^\S+://\S+ +/mnt/\S+ +cachefs +\S+ +0 +0$", page, re.M)
    listed = [o for o in line.split()[3].split(",") if o not in drop]
    for name, value in options.items():
        name = name.replace("_", "-")
        listed = ["%s=%s" % (name, value) if o.startswith(name + "=") else o for o in listed]
    return "%s %s cachefs %s 0 0\n" % (url, point, ",".join(listed))


def state(machine, unit):
    return machine.show(unit, "ActiveState")


def when(machine, unit, name):
    return int(machine.show(unit, name + "TimestampMonotonic"))


def example(name, url, point="/mnt/data"):
    """A unit of the examples, for this volume."""
    text = (REPO / "examples/systemd" / name).read_text()
    assert "redis://db.example/1" in text or name.endswith(".automount")
    return {"systemd/system/" + name: text.replace("redis://db.example/1", url)}


SITE = {"cachefs/data.cred": "META_PASSWORD=secret\n"}
CACHE = "none /cache tmpfs mode=755 0 0\n"


@pytest.fixture
def remote(ws):
    """A volume in a Redis of the machine that can be reached when its network is up, and no earlier."""
    need_module("redis")
    folder = ws.path("redis")
    folder.mkdir()
    common = "[Unit]\nDefaultDependencies=no\nBefore=network-online.target\n%s\n[Service]\n%s\n[Install]\nWantedBy=network-online.target\n"
    network = "Type=oneshot\nRemainAfterExit=yes\nExecStart=ip link set lo up\nExecStart=ip addr add %s/32 dev lo" % ADDRESS
    server = "Type=exec\nExecStart=%s --bind %s --requirepass secret --dir %s --appendonly yes\n" % (
        find("redis-server"), ADDRESS, folder,
    )
    server += 'ExecStartPost=timeout 30 sh -c "until redis-cli -h %s -a secret ping; do sleep .05; done"' % ADDRESS
    files = {
        **SITE,
        "systemd/system/network.service": common % ("", network),
        "systemd/system/db.service": common % ("Requires=network.service\nAfter=network.service", server),
    }
    v = Volume(ws, "vol", format=False, url="redis://%s/1" % ADDRESS)
    v.files = files
    return v


def boot_with(volume, ws, fstab, files=None):
    """The services of `remote` are enabled before, the volume is formatted at the first boot."""
    m = Machine(ws, CACHE + fstab, {**volume.files, **(files or {})})
    m.enable("network.service", "db.service", wanted_by="network-online.target")
    return m


def format_in(machine, volume):
    args = [str(a) for a in volume.format_args()]
    machine.systemctl("start", "network-online.target")
    machine.run("cachefs", *args, "--credentials", "/etc/cachefs/data.cred", check=True)


def write_and_keep(machine, path):
    """In a service that says what it uses."""
    machine.run(
        *("systemd-run", "--unit=writer", "--property=RequiresMountsFor=" + os.path.dirname(path)),
        *("/usr/bin/python3", "-c", WRITER, path), check=True,
    )
    size = str(len(CONTENT))
    wait_until(lambda: machine.run("stat", "-c", "%s", path).stdout.strip() == size, 20, "the written file")


def check_written(machine, path):
    copy = machine.ws.path("copy")
    machine.shell("cat %s >%s" % (path, copy))
    assert copy.read_bytes() == CONTENT


def test_the_line_of_the_readme(ws, volume):
    """Mounted at the first access, and again after systemctl stop. daemon-reload changes nothing."""
    fstab = line_of(README, volume.url, "/mnt/my", credentials="/etc/cachefs/data.cred")
    m = Machine(ws, fstab, SITE).boot()
    assert "0 parse errors, 0 errors" in m.run("findmnt", "--verify").stderr
    assert state(m, "mnt-my.automount") == "active" and state(m, "mnt-my.mount") == "inactive"
    m.shell("echo hello >/mnt/my/file")
    assert state(m, "mnt-my.mount") == "active"
    m.systemctl("daemon-reload")
    assert m.shell("cat /mnt/my/file; findmnt -n -o FSTYPE,SOURCE -t fuse.cachefs /mnt/my").split() == [
        "hello", "fuse.cachefs", volume.url,
    ]
    m.systemctl("stop", "mnt-my.mount")
    assert state(m, "mnt-my.automount") == "active" and state(m, "mnt-my.mount") == "inactive"
    assert m.shell("cat /mnt/my/file") == "hello\n"
    log = m.journal("--identifier=cachefs")
    assert log.count("mounted: volume=vol mount=/mnt/my") == 2, log
    assert m.journal("--identifier=cachefs", "--unit=mnt-my.mount") == log
    m.poweroff()


def test_nobody_waits_below_an_automount(ws, volume):
    """Without a supervisor, and as the command that people type."""
    fstab = line_of(README, volume.url, "/mnt/my", credentials="/etc/cachefs/data.cred")
    m = Machine(ws, fstab.replace("_netdev", "_netdev,no-supervise"), SITE).boot()
    assert m.shell("ls -a /mnt/my").split() == [".", ".."]
    assert len(m.shell("pgrep -f ^/sbin/mount.cachefs").split()) == 1
    m.systemctl("stop", "mnt-my.mount")
    m.systemctl("start", "mnt-my.mount")
    m.shell("echo x >/mnt/my/file")
    m.poweroff()


def test_the_line_of_operations(ws, remote):
    """With a password, a cache disk and metrics; what an open file has is stored at the shutdown."""
    m = boot_with(remote, ws, line_of(PAGE, remote.url, "/mnt/data")).boot()
    format_in(m, remote)
    write_and_keep(m, "/mnt/data/file")
    assert m.shell("findmnt -n -o TARGET -T /cache/data; ls /cache/data").startswith("/cache\n")
    assert m.shell("curl -sf http://127.0.0.1:9567/health")
    assert "secret" not in m.journal() + m.shell("cat /proc/*/cmdline /mnt/data/.config | tr '\\0' '\\n' | grep -v redis-server")
    m.poweroff()
    m.boot()
    assert state(m, "mnt-data.mount") == "inactive"
    check_written(m, "/mnt/data/file")
    m.poweroff()


def test_mounted_at_boot(ws, remote):
    """Without the automount: when the network is up and the disk of the cache is there."""
    m = boot_with(remote, ws, line_of(PAGE, remote.url, "/mnt/data", drop=("x-systemd.automount",)))
    m.boot(state="degraded")
    assert state(m, "mnt-data.mount") == "failed"  # there is no volume yet
    assert "no volume" in m.journal("--unit=mnt-data.mount"), m.journal("--unit=mnt-data.mount")
    format_in(m, remote)
    m.poweroff()
    m.boot()
    assert state(m, "mnt-data.mount") == "active"
    assert when(m, "network-online.target", "ActiveEnter") <= when(m, "mnt-data.mount", "InactiveExit")
    assert when(m, "cache.mount", "ActiveEnter") <= when(m, "mnt-data.mount", "InactiveExit")
    write_and_keep(m, "/mnt/data/file")
    m.poweroff()
    m.boot()
    check_written(m, "/mnt/data/file")
    m.poweroff()


def test_a_database_on_this_machine(ws, remote):
    """The mount names its service: there before it, and stopped after what it has is stored."""
    (option,) = re.findall(r"`(x-systemd\.requires=)redis-server\.service`", PAGE)
    # The database may stop before the process has ended its session, which it tries for this time.
    fstab = line_of(PAGE, remote.url, "/mnt/data").replace("nofail", "nofail,meta-timeout=5s,%sdb.service" % option)
    ordinary = remote.files["systemd/system/db.service"].replace("DefaultDependencies=no\nBefore=network-online.target\n", "")
    assert "Default" not in ordinary
    m = Machine(ws, CACHE + fstab, {**remote.files, "systemd/system/db.service": ordinary}).boot()
    assert state(m, "db.service") == "inactive"
    m.systemctl("start", "db.service")
    format_in(m, remote)
    write_and_keep(m, "/mnt/data/file")
    m.poweroff()
    m.boot()
    check_written(m, "/mnt/data/file")
    m.poweroff()
    log = m.journal()
    assert log.rindex("Unmounted mnt-data.mount") < log.rindex("Stopping db.service")


# No answer comes: packets to its network vanish.
SILENT = {
    "systemd/system/network.service": """[Unit]
DefaultDependencies=no
Before=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=ip link set lo up
ExecStart=ip route add 10.9.8.0/24 dev lo
[Install]
WantedBy=network-online.target
"""
}


@pytest.mark.parametrize("automount", [True, False])
def test_a_dead_server(ws, automount):
    """The machine comes up without the volume, says why it is not there, and tries again when asked."""
    need_module("redis")
    drop = () if automount else ("x-systemd.automount",)
    fstab = line_of(PAGE, "redis://10.9.8.7/1", "/mnt/data", drop=drop).replace("nofail", "nofail,mount_timeout=3")
    m = Machine(ws, CACHE + fstab, {**SITE, **SILENT})
    m.enable("network.service", wanted_by="network-online.target")
    m.boot(state="running" if automount else "degraded")
    if automount:
        r = m.run("ls", "/mnt/data")
        assert r.returncode and "No such device" in r.stderr, r.stderr
    else:
        assert when(m, "multi-user.target", "ActiveEnter") < when(m, "mnt-data.mount", "InactiveEnter")
    assert state(m, "mnt-data.mount") == "failed"
    log = m.run("systemctl", "status", "--no-pager", "--full", "mnt-data.mount").stdout
    assert "did not answer within 3 s" in log or "10.9.8.7" in log, log
    m.poweroff()


def test_an_upgrade_of_the_line_in_fstab(ws, volume):
    """The command of the page: the next process ends with the mount, after those that use it."""
    (command,) = re.findall(r"^systemd-run .*$", PAGE, re.M)
    conf = "[data]\nmeta-url = %s\nmount-point = /mnt/data\ncredentials = /etc/cachefs/data.cred\n" % volume.url
    fstab = line_of(README, "data", "/mnt/data", credentials="/etc/cachefs/data.cred")
    m = Machine(ws, fstab, {**SITE, "cachefs/cachefs.conf": conf}).boot()
    write_and_keep(m, "/mnt/data/file")
    m.shell(command)
    assert "cachefs_takeovers_total 1\n" in m.shell("cat /mnt/data/.stats")
    pid = json.loads(m.shell("cat /mnt/data/.config"))["Pid"]
    (unit,) = re.findall(r"/system.slice/(run-\S+\.service)", m.shell("cat /proc/%d/cgroup" % pid))
    assert state(m, unit) == "active"
    assert m.run("ps", "-o", "ppid=", "-p", pid).stdout.strip() == m.show(unit, "MainPID")
    m.poweroff()
    m.boot()
    check_written(m, "/mnt/data/file")
    m.poweroff()


SERVICE = "cachefs-data.service"


def service(ws, volume, **overrides):
    """A machine with the example of a service, and other values of its settings."""
    text = "[Service]\n" + "".join("%s=%s\n" % o for o in overrides.items())
    files = {**SITE, **example(SERVICE, volume.url), "systemd/system/%s.d/times.conf" % SERVICE: text}
    m = Machine(ws, CACHE, files)
    m.enable(SERVICE)
    return m


def workers(machine):
    """The processes that serve, by the machine's numbers."""
    return machine.run("pgrep", "-P", machine.show(SERVICE, "MainPID"), "cachefs").stdout.split()


def next_release(machine):
    """Its files take the place of the program and its modules, as a package's do."""
    version = machine.shell("cachefs version").split()[1]
    machine.shell("cd /opt/cachefs; LC_ALL=C sed -i 's/%s/9.9.9/g' cachefs *.so" % re.escape(version))


def test_the_service(ws, volume):
    """It is active when the mount answers, goes on after a crash, also of the program whose files an
    upgrade has replaced, changes to the next one when it is reloaded, and stores what it has when it is
    stopped."""
    m = service(ws, volume).boot()
    verified = m.run("systemd-analyze", "verify", "--man=no", "/etc/systemd/system/" + SERVICE)
    assert verified.returncode == 0 and not verified.stderr, verified.stderr
    assert state(m, SERVICE) == "active" and m.show(SERVICE, "StatusText") == "Volume vol is mounted at /mnt/data"
    main = m.show(SERVICE, "MainPID")
    m.shell("echo hello >/mnt/data/hello")
    reader = m.popen("sh", "-c", "exec <$0; read x; cat $0; echo $x", "/mnt/data/hello", stdin=-1, stdout=-1)
    write_and_keep(m, "/mnt/data/file")

    next_release(m)
    (worker,) = workers(m)
    m.shell("kill -9 " + worker)
    assert m.shell("cat /mnt/data/hello") == "hello\n"
    assert workers(m) != [worker] and m.show(SERVICE, "MainPID") == main and m.show(SERVICE, "NRestarts") == "0"

    m.systemctl("reload", SERVICE)
    upgraded = m.show(SERVICE, "MainPID")
    assert upgraded not in (main, "0") and 'version="9.9.9"' in m.shell("cat /mnt/data/.stats")
    assert state(m, SERVICE) == "active" and m.show(SERVICE, "NRestarts") == "0"
    assert not m.run("ps", "-p", main).stdout.count("cachefs")
    assert reader.communicate(b"\n")[0] == b"hello\nhello\n"

    m.systemctl("stop", "writer.service")
    m.shell("sleep 1000 </mnt/data/hello & echo -n more >>/mnt/data/hello; echo $! >/run/holder")
    m.systemctl("stop", SERVICE)
    assert m.show(SERVICE, "Result") == "success" and m.show(SERVICE, "ExecMainStatus") == "0"
    assert not m.run("findmnt", "/mnt/data").stdout
    m.systemctl("start", SERVICE)
    assert m.shell("cat /mnt/data/hello") == "hello\nmore"
    m.shell("kill $(cat /run/holder)")
    m.poweroff()
    log = m.journal("--unit=" + SERVICE)
    for line in ("took over the running mount", "the process of the mount has died", "unmounting: volume=vol"):
        assert line in log, log


def test_a_reload_that_fails(ws, volume):
    """The service goes on as it was."""
    m = service(ws, volume).boot()
    m.shell("echo hello >/mnt/data/hello")
    main = m.show(SERVICE, "MainPID")
    m.shell("chmod 0644 /etc/cachefs/data.cred")
    r = m.run("systemctl", "reload", SERVICE)
    assert r.returncode
    assert "data.cred" in m.journal("--unit=" + SERVICE), m.journal("--unit=" + SERVICE)
    assert m.show(SERVICE, "MainPID") == main and state(m, SERVICE) == "active"
    assert m.shell("cat /mnt/data/hello") == "hello\n"
    m.poweroff()


@pytest.mark.parametrize("how", ["the supervisor dies", "the mount hangs"])
def test_the_service_is_started_again(ws, volume, how):
    volume.check_options = {"leaks": "warn", "unmounted": False}
    m = service(ws, volume, WatchdogSec="3s", RestartSec="100ms").boot()
    m.shell("echo hello >/mnt/data/hello")
    main = m.show(SERVICE, "MainPID")
    m.shell("kill -9 " + main if how == "the supervisor dies" else "kill -STOP " + workers(m)[0])
    wait_until(lambda: m.show(SERVICE, "NRestarts") == "1" and state(m, SERVICE) == "active", 60, "another start")
    assert m.shell("cat /mnt/data/hello") == "hello\n"
    assert len(workers(m)) == 1
    m.poweroff()
    assert "Deactivated successfully" in m.journal("--unit=" + SERVICE)


def test_units_in_place_of_fstab(ws, volume):
    """mnt-data.mount by its automount, as the examples have it."""
    files = {**SITE, **example("mnt-data.mount", volume.url), **example("mnt-data.automount", volume.url)}
    m = Machine(ws, CACHE, files)
    m.enable("mnt-data.automount", wanted_by="remote-fs.target")
    m.boot()
    units = ["/etc/systemd/system/mnt-data." + kind for kind in ("mount", "automount")]
    verified = m.run("systemd-analyze", "verify", "--man=no", *units)
    assert verified.returncode == 0 and not verified.stderr, verified.stderr
    assert state(m, "mnt-data.mount") == "inactive"
    write_and_keep(m, "/mnt/data/file")
    assert state(m, "mnt-data.mount") == "active"
    m.poweroff()
    m.boot()
    check_written(m, "/mnt/data/file")
    m.poweroff()
