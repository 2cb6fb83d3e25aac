# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition, never for a time."""

import time


def wait_until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("%s did not come true in %d s" % (what, seconds))
        time.sleep(0.01)
