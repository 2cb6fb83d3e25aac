# SPDX-License-Identifier: Apache-2.0
"""Mounts that end while programs have changed files through mappings and closed their descriptors. A
failure here is data that is lost although nothing has failed. No kernel waits in syncfs(2) until a
FUSE file system has such pages."""

import contextlib
import os
import signal
import subprocess

import pytest

import servers
from cachefs import SLOW, Volume, need_engine, need_root, stop_process, wait_until
from ring import OPTIONS, need_ring
from syscalls import data, read, write
from test_passthrough import mount as mount_passing
from test_passthrough import passes
from uring import switched

SIZE = 3_000_000
FILES = 12

# In a process of its own: a thread that waits for a page stops the others.
MAPS = """
import mmap, os, sys
mapped = []
for name in sys.argv[2:]:
    with open(name, "r+b", buffering=0) as f:
        mapped.append(mmap.mmap(f.fileno(), 0))
for i, m in enumerate(mapped):
    for at in range(0, len(m), 8192):
        m[at] = i + 1
os.chmod(sys.argv[2], 0)
os.unlink(sys.argv[1])
print("mapped", flush=True)
sys.stdin.readline()
"""


def changed(i):
    """The content of a file that the program has changed."""
    content = bytearray(data(SIZE, i))
    content[::8192] = bytes([i + 1]) * len(content[::8192])
    return bytes(content)


def map_and_end(ws, mnt, begin=lambda: None):
    """The second file may not be opened by its owner any more, and the first one is removed."""
    os.mkdir(mnt / "d", 0o777)
    names = [mnt / "d" / str(i) for i in range(FILES)]
    for i, name in enumerate(names):
        write(name, data(SIZE, i))
    begin()
    program = ws.python(MAPS, names[3], *names, stdin=-1, stdout=-1, text=True)
    assert program.stdout.readline() == "mapped\n"
    os.kill(mnt.process.pid, signal.SIGTERM)
    mnt.wait_end(60 * SLOW)
    assert "may be lost" not in mnt.log()
    return program


def wrong(mnt):
    os.chmod(mnt / "d/0", 0o600)
    return [i for i in range(FILES) if i != 3 and read(mnt / "d" / str(i)) != changed(i)]


@pytest.mark.parametrize(
    "opts", ["", "supervise=false", "writeback_cache", "all-squash=1234:1235", "close=committing", OPTIONS]
)
def test_the_mount_ends(ws, opts):
    need_root()
    if opts == OPTIONS:
        need_ring()
    vol = Volume(ws)
    mnt = vol.mount()
    os.chmod(mnt.path, 0o777)
    mnt.umount()
    with switched("Y") if opts == OPTIONS else contextlib.nullcontext():
        mnt = vol.mount(opts)
    map_and_end(ws, mnt)
    mnt = vol.mount()
    assert wrong(mnt) == []
    assert sorted(os.listdir(mnt / "d")) == sorted(str(i) for i in range(FILES) if i != 3)


def test_files_that_the_kernel_reads_itself(ws):
    """Files that pass through have two nodes in the kernel."""
    need_root()
    vol = ws.volume(block_size="64K")
    mnt = mount_passing(vol, ws.path("cache"))
    fds = []
    program = map_and_end(ws, mnt, lambda: fds.extend(passes(mnt, mnt / "d" / str(i)) for i in (5, 6)))
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
    program.kill()
    assert wrong(vol.mount()) == []


def test_a_mount_that_cannot_be_reached(ws, volume):
    """Nothing else asks the kernel for these pages: the log says that they may be lost."""
    need_root()
    mnt = volume.mount()
    write(mnt / "f", data(SIZE))
    write(mnt / "removed", data(SIZE))
    program = ws.python(MAPS, mnt / "removed", mnt / "f", stdin=-1, stdout=-1, text=True)
    assert program.stdout.readline() == "mapped\n"
    subprocess.run(["umount", "-l", mnt.path], check=True)
    os.kill(mnt.process.pid, signal.SIGTERM)
    mnt.wait_end(60 * SLOW)
    assert "may be lost" in mnt.log()


@pytest.mark.module("redis")
def test_the_metadata_is_away(ws):
    """Files are open for writing, and no server answers an open: the end of the mount has its time all the same."""
    need_engine("redis")
    server = servers.started(ws, servers.Redis())
    vol = Volume(ws, url=server.database().url)
    vol.check_options = None
    mnt = vol.mount("stop-timeout=5,attr-cache=0,entry-cache=0")
    mnt.allow(".")
    files = [open(mnt / str(i), "wb") for i in range(FILES)]
    stop_process(server.process.pid)
    os.kill(mnt.process.pid, signal.SIGTERM)
    wait_until(lambda: mnt.process.poll() is not None, 30, "the end of the mount")
    server.process.send_signal(signal.SIGCONT)
    assert not mnt.mounted()
    for f in files:
        with contextlib.suppress(OSError):
            f.close()
