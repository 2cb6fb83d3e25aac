# SPDX-License-Identifier: Apache-2.0
"""The kernel's switch for FUSE over io_uring. It is one for the whole machine, and matters while a file
system is being mounted."""

import contextlib
import fcntl
import pathlib

SWITCH = pathlib.Path("/sys/module/fuse/parameters/enable_uring")


@contextlib.contextmanager
def switched(value):
    with SWITCH.open() as lock:  # one file for every root of the machine
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = SWITCH.read_text()
        SWITCH.write_text(value)
        try:
            yield
        finally:
            SWITCH.write_text(before)
