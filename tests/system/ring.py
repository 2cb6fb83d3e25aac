# SPDX-License-Identifier: Apache-2.0
"""Mounts whose requests come through io_uring. The kernel has a switch for that, of the whole machine,
which is on only while a test mounts (uring.py)."""

import os

import pytest

import cachefs
from uring import SWITCH, switched

OPTIONS = "supervise=false,io_uring=on"


def need_ring():
    if not os.access(SWITCH, os.W_OK):
        pytest.skip("this kernel has no FUSE over io_uring")


def failing(ws, **which):
    """The environment of a mount in which some calls fail (failing.c)."""
    return {
        "LD_PRELOAD": str(cachefs.BIN.parents[1] / "tests/system/libfailing.so"),
        "ASAN_OPTIONS": ws.env()["ASAN_OPTIONS"] + ":verify_asan_link_order=0",
        **which,
    }


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
