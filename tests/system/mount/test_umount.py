# SPDX-License-Identifier: Apache-2.0
"""What `cachefs umount` says of a mount that does not end. A failure here is an administrator who
waits and does not know for whom."""

import os
import re

from cachefs import alive, wait_until
from syscalls import read, write


def test_a_copied_mount_namespace_keeps_the_mount(ws, volume):
    """As that of a container which was started while it was mounted."""
    mnt = volume.mount()
    write(mnt / "f", b"x")
    holder = ws.popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 600"], stdout=-1)
    holder.stdout.readline()
    r = ws.run("cachefs", "umount", "--timeout", "4s", mnt.path)
    assert r.returncode == 2
    found = re.findall(r"still mounted at (\S+) in the mount namespace of process (\d+) \(", r.stderr)
    assert found == [(str(mnt), str(holder.pid))], r.stderr
    assert "unmounted here, but process %d goes on for those" % mnt.process.pid in r.stderr
    assert not mnt.mounted() and alive(mnt.process.pid)
    assert read("/proc/%d/root%s/f" % (holder.pid, mnt)) == b"x"
    holder.kill()
    wait_until(lambda: not alive(mnt.process.pid), 30, "the end of the mount")
    mnt.ended = True


def test_a_process_that_ends_soon_is_no_complaint(ws, volume):
    mnt = volume.mount()
    write(mnt / "f", os.urandom(1_000_000))
    r = ws.run("cachefs", "umount", mnt.path)
    assert (r.returncode, r.stderr) == (0, "")
    assert not alive(mnt.process.pid)
    mnt.ended = True
