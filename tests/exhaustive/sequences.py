# SPDX-License-Identifier: Apache-2.0
"""The small tree, the operations, and all sequences of them."""

import itertools

from model import FIRM, Inode, State

SETUP = (
    "create a 0 0644;write 0 0 5000 a;fsync 0;flush 0;release 0;"
    "create b 0 0640;write 0 0 300 b;fsync 0;flush 0;release 0;"
    "mkdir d 0755;mkdir e 0755;"
    "create d/c 0 0644;write 0 0 100 c;fsync 0;flush 0;release 0;"
    "setxattr a user.k v"
)


def start():
    """What SETUP leaves."""

    def file(mode, length, byte, **more):
        return Inode("f", mode, byte * length, bytes([FIRM]) * length, **more)

    s = State()
    s = s.add("a", file(0o644, 5000, b"a", xattrs=(("user.k", "v"),)))
    s = s.add("b", file(0o640, 300, b"b"))
    s = s.add("d", Inode("d", 0o755)).add("e", Inode("d", 0o755))
    return s.add("d/c", file(0o644, 100, b"c"))


# Descriptor 0 is "a", open all the time.
PRELUDE = "open a 0"
OPERATIONS = {
    "create": "create n 2 0600;write 2 0 200 n;flush 2;release 2",
    "replace": "create n 2 0600;write 2 0 200 n;flush 2;release 2;rename n b",
    "mkdir": "mkdir m 0755",
    "link": "link a l",
    "symlink": "symlink a y",
    "rename": "rename b e/b",
    "rename-over": "rename d/c b",
    "rename-over-open": "rename b a",
    "exchange": "exchange a b",
    "unlink": "unlink b",
    "unlink-open": "unlink a",
    "rmdir": "rmdir e",
    "write": "write 0 100 400 w",
    "append": "append 0 200 p",
    "truncate-up": "truncate 0 9000",
    "truncate-down": "truncate 0 1000",
    "fallocate": "fallocate 0 6000 2000",
    "punch": "punch 0 500 1000",
    "copy": "open b 1;copy 1 0 0 2000 1000;flush 1;release 1",
    "fsync": "fsync 0",
    "close": "flush 0;release 0",
    "close-duplicate": "write 0 60 70 y;flush 0",
    "close-group": "write 0 60 70 y;create g 2 0600;write 2 0 200 g;create h 3 0600;write 3 0 300 h;"
    "close-together 0 2 3;release 2;release 3",
    "setxattr": "setxattr a user.x y",
    "chmod": "chmod a 0600",
    "write-chmod": "write 0 50 60 x;chmod a 0604",
}


def sequences(length):
    """Shorter ones first."""
    for n in range(1, length + 1):
        yield from itertools.product(OPERATIONS, repeat=n)


def requests_of(sequence):
    return ";".join([PRELUDE, *(OPERATIONS[name] for name in sequence)]).split(";")
