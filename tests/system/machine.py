# SPDX-License-Identifier: Apache-2.0
"""A machine whose process 1 is systemd, in namespaces of its own: what is tested there is the boot, the
service manager and the end, not a likeness of them.

Its root is this system's files (or those of another directory) below a layer in memory, so that nothing of
what happens there stays. Of the units only those of the distribution's base are started, and nothing that
would change the kernel's settings or devices; the network is a loopback interface. The workspace lies at the
same path as here.
"""

import os
import pathlib
import subprocess

import pytest

from cachefs import BIN, children, missing, need_root
from waiting import SLOW, wait_until

SYSTEMD = next(filter(os.path.exists, ("/usr/lib/systemd/systemd", "/lib/systemd/systemd")), None)

# $1 the workspace, $2 an empty directory, $3 the lower root, $4 the name of the control group, $5 the folder
# of the programs, unless they are installed
BOOT = r"""
mount -t cgroup2 none "$2"
mkdir -p "$2/$4"
echo $$ >"$2/$4/cgroup.procs"
umount "$2"
exec unshare --pid --cgroup --net --uts --ipc --fork --kill-child sh -euc "$PID1" sh "$@"
"""
PID1 = r"""
mount -t tmpfs none "$2"
mkdir "$2/upper" "$2/work" "$2/root"
mount -t overlay -o "lowerdir=$3,upperdir=$2/upper,workdir=$2/work" none "$2/root"
cd "$2/root"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs sysfs sys
mount -t cgroup2 none sys/fs/cgroup
for d in run dev tmp; do mount -t tmpfs -o mode=755 none $d; done
chmod 1777 tmp
for n in null zero full random urandom tty fuse autofs; do : >dev/$n; mount --bind /dev/$n dev/$n; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 none dev/pts
mount -t tmpfs -o mode=1777 none dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mkdir -p ".$1" var/log/journal "$1/journal"
mount --bind "$1" ".$1"
mount --bind "$1/journal" var/log/journal
rm -rf etc/systemd/system etc/rc?.d var/lib/systemd
mkdir -p etc/systemd/system/multi-user.target.wants etc/tmpfiles.d
for u in console-getty.service proc-sys-fs-binfmt_misc.automount systemd-udevd.service systemd-udevd-kernel.socket \
	systemd-udevd-control.socket systemd-udev-trigger.service; do
	ln -s /dev/null etc/systemd/system/$u
done
ln -s ../remote-fs.target etc/systemd/system/multi-user.target.wants
ln -sf /dev/null etc/tmpfiles.d/tmp.conf
cat "$1/fstab" >etc/fstab
echo 6361636865667374657374206d616368 >etc/machine-id
cp -rd "$1/etc/." etc
if [ "$5" ]; then
	mkdir opt/cachefs
	cp -L "$5"/cachefs "$5"/*.so opt/cachefs
	ln -sf /opt/cachefs/cachefs usr/bin/cachefs
	ln -sf /opt/cachefs/cachefs usr/sbin/mount.cachefs
fi
mkdir -p old
pivot_root . old
umount -l old
exec env -i container=cachefs-test PATH=/usr/sbin:/usr/bin:/sbin:/bin $INIT --show-status=no systemd.unit=multi-user.target
"""


def need_machine():
    need_root()
    if not SYSTEMD:
        missing("systemd is not installed (scripts/install-deps test)")
    if not os.path.exists("/dev/autofs"):
        pytest.skip("this kernel has no autofs")
    probe = "mount -t cgroup2 none /mnt && mkdir /mnt/cachefs-probe && rmdir /mnt/cachefs-probe"
    r = subprocess.run(["unshare", "--mount", "sh", "-c", probe], stdout=-1, stderr=-2, text=True, timeout=20)
    if r.returncode:
        pytest.skip("no control groups for another systemd: " + r.stdout.strip())


class Machine:
    """fstab: text; files: path below /etc -> text, in place before the boot; root: of a system that has
    its own cachefs installed."""

    def __init__(self, ws, fstab="", files=None, root=None):
        need_machine()
        self.ws, self.root = ws, root
        ws.count += 1
        self.group = "%s-%d" % (ws.dir.name, ws.count)
        self.layer = ws.path("machine%d" % ws.count)
        self.process = None
        ws.path("fstab").write_text(fstab)
        for name, text in {"hostname": "machine\n", **(files or {})}.items():
            file = ws.path("etc") / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            file.chmod(0o600 if name.endswith(".cred") else 0o644)
        ws.cleanups.append(self.close)

    def enable(self, *units, wanted_by="multi-user.target"):
        """Units of `files`, before the boot."""
        folder = self.ws.path("etc") / "systemd/system" / (wanted_by + ".wants")
        folder.mkdir(exist_ok=True)
        for unit in units:
            (folder / unit).symlink_to("../" + unit)

    def boot(self, seconds=60, state="running"):
        """Until systemd has nothing more to do; what it says then is `state`."""
        self.layer.mkdir(exist_ok=True)
        with open(self.ws.path(self.layer.name + ".log"), "wb") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-euc", BOOT, "sh", self.ws.dir, self.layer, self.root or "/", self.group,
                 "" if self.root else BIN],
                env=self.ws.env(PID1=PID1, INIT=SYSTEMD), stdin=-3, stdout=log, stderr=log,
            )
        self.ws.children.append(self.process)

        def manager():
            assert self.process.poll() is None, self.console()
            for pid in children(self.process.pid):
                if os.path.exists("/proc/%d/root/run/systemd/private" % pid):
                    return pid

        self.init = wait_until(manager, seconds, "a manager that answers")
        r = self.run("systemctl", "is-system-running", "--wait", timeout=seconds)
        assert r.stdout.strip() == state, r.stdout + self.run("systemctl", "--failed", "--no-pager").stdout + self.journal()
        return self

    def console(self):
        return self.ws.path(self.layer.name + ".log").read_text("utf-8", "replace")

    def path(self, name):
        """A file of the machine, as seen from here."""
        return pathlib.Path("/proc/%d/root%s" % (self.init, name))

    def run(self, *argv, **kw):
        return self.ws.run("nsenter", "--all", "--target", self.init, *argv, **kw)

    def shell(self, script, **kw):
        """Its output. It must succeed."""
        return self.run("sh", "-euc", script, check=True, **kw).stdout

    def popen(self, *argv, **kw):
        return self.ws.popen(["nsenter", "--all", "--target", self.init, *argv], **kw)

    def systemctl(self, *argv, **kw):
        return self.run("systemctl", *argv, check=True, **kw).stdout

    def show(self, unit, name):
        """A property of a unit."""
        return self.systemctl("show", "--value", "--property", name, unit).strip()

    def journal(self, *argv):
        """Of all boots, also when the machine is off."""
        return self.ws.run(
            "journalctl", "--directory", self.ws.path("journal"), "--quiet", "--output=short-monotonic", *argv
        ).stdout

    def poweroff(self, seconds=60):
        """As an administrator's command does it: units stop in their order."""
        self.systemctl("poweroff", "--no-block")
        self.process.wait(seconds * SLOW)
        self.process = None

    def close(self):
        print("--- journal of the machine\n" + self.journal("--lines=300"))
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait(20)
        tidy = 'mount -t cgroup2 none /mnt; [ ! -d "/mnt/$1" ] || find "/mnt/$1" -depth -type d -exec rmdir {} +'

        def removed():
            return not subprocess.run(["unshare", "--mount", "sh", "-c", tidy, "sh", self.group], timeout=20, stderr=-3).returncode

        wait_until(removed, 20, "the end of the machine's control group")
