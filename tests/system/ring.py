# SPDX-License-Identifier: Apache-2.0
"""Mounts whose requests come through io_uring. The kernel has a switch for that, of the whole machine,
which is on only while a test mounts."""

import contextlib
import fcntl
import os
import pathlib

import pytest

import cachefs

SWITCH = pathlib.Path("/sys/module/fuse/parameters/enable_uring")
OPTIONS = "supervise=false,io_uring=on"


def need_ring():
    if not os.access(SWITCH, os.W_OK):
        pytest.skip("this kernel has no FUSE over io_uring")


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


@pytest.fixture
def on_ring(monkeypatch):
    """Every mount of the test is on a ring."""
    need_ring()
    plain = cachefs.Volume.mount

    def mount(self, opts="", *args, **kwargs):
        with switched("Y"):
            if OPTIONS not in opts:  # a remount
                opts = ",".join(filter(None, [OPTIONS, opts]))
            mnt = plain(self, opts, *args, **kwargs)
        if kwargs.get("wait", True):
            assert mnt.stat("fuse_io_uring") == 1
        return mnt

    monkeypatch.setattr(cachefs.Volume, "mount", mount)
