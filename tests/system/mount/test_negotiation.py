# SPDX-License-Identifier: Apache-2.0
"""A mount shows what it really agreed on with the kernel. If these fail, a feature is believed to be in
use that the kernel does not have, or the other way round."""

import re
import struct
import subprocess
import tarfile

import pytest

from cachefs import need_program, tool
from waiting import wait_until

INIT_OUT = struct.Struct("<IIIIHHIIHHII")  # struct fuse_init_out to max_stack_depth
HEAD = struct.Struct("<IiQ")
WORDS = re.compile(r"^([A-Z0-9_]+) +(\d+) (yes|no) +(yes|no) +(yes|no)$", re.M)


def written(trace):
    """The replies of the first request: (flags, limits) as the kernel got them."""
    found = []
    device = "".join("\\x%02x" % c for c in b"/dev/fuse")  # strace -xx
    for text in re.findall(r'write\(\d+<%s>, "([^"]+)", 80\)' % re.escape(device), trace):
        data = bytes.fromhex(text.replace("\\x", ""))
        assert len(data) == HEAD.size + 64 and HEAD.unpack_from(data)[1] == 0
        found.append(INIT_OUT.unpack_from(data, HEAD.size))
    return found


def table(ws, point):
    """What `cachefs debug` shows: name -> (offered, wanted, sent), flags as a number, the limits."""
    out = ws.path("debug.tar.gz")
    out.unlink(missing_ok=True)
    ws.run("cachefs", "debug", point, out, check=True)
    with tarfile.open(out) as tar:
        text = tar.extractfile("cachefs-debug/fuse-init.txt").read().decode()
    flags = {m[0]: (int(m[1]), *(x == "yes" for x in m[2:])) for m in WORDS.findall(text)}
    limits = dict(re.findall(r"^(\w+): (\d+)$", text, re.M))
    assert "unknown flags offered: 0\n" in text, text
    return flags, {k: int(v) for k, v in limits.items()}


@pytest.mark.parametrize(
    "opts, on, off",
    [
        ("", ["PARALLEL_DIROPS", "HANDLE_KILLPRIV_V2", "POSIX_LOCKS"], ["WRITEBACK_CACHE"]),
        ("writeback_cache,security-xattr", ["WRITEBACK_CACHE"], ["HANDLE_KILLPRIV_V2"]),
        ("ro", ["PARALLEL_DIROPS"], ["POSIX_LOCKS", "FLOCK_LOCKS"]),
    ],
)
def test_table_is_what_the_kernel_got(ws, volume, opts, on, off):
    need_program("strace")
    trace, point = ws.path("trace"), ws.path("traced")
    point.mkdir()
    argv = ["strace", "-f", "-y", "-xx", "-s", "200", "-e", "trace=write", "-o", trace]
    argv += [tool("cachefs"), "mount", volume.url, point, "--foreground", *(["-o", opts] if opts else [])]
    p = ws.popen(argv, stderr=subprocess.DEVNULL)
    wait_until(lambda: (point / ".stats").exists(), 30, "the mount")
    flags, limits = table(ws, point)
    stats = dict(line.rsplit(" ", 1) for line in (point / ".stats").read_text().splitlines())
    ws.run("cachefs", "umount", point, check=True)
    p.wait(30)
    (got,) = written(trace.read_text())
    major, minor, readahead, low, background, congestion, max_write, gran, pages, _, high, depth = got
    number = low | high << 32
    for name, (bit, offered, wanted, sent) in flags.items():
        assert sent == bool(number >> bit & 1), name
        assert sent == (offered and wanted), name
    assert number == sum(1 << bit for bit, _, _, sent in flags.values() if sent)
    assert limits == {
        "minor": minor,
        "max_write": max_write,
        "max_readahead": readahead,
        "max_pages": pages,
        "max_background": background,
        "congestion_threshold": congestion,
        "time_gran": gran,
        "max_stack_depth": depth,
    }
    assert int(stats['cachefs_fuse_init_flags{of="reply"}']) == number
    assert int(stats["cachefs_fuse_max_pages"]) == pages
    assert all(flags[name][3] for name in on)
    assert not any(flags[name][3] for name in off)
