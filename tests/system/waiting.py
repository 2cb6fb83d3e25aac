# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition, never for a time: for the system tests, their servers and the benches.

Environment: CACHEFS_TEST_SLOW  factor on every deadline (default 1; cachefs.py: 4 when the programs
                                are sanitized)
"""

import os
import time

SLOW = float(os.environ.get("CACHEFS_TEST_SLOW") or 1)


def wait_until(condition, seconds=10, what="the condition"):
    """Polls until condition() is true and returns its value."""
    end = time.monotonic() + seconds * SLOW
    pause = 0.002
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError("%s did not come true in %g s" % (what, seconds * SLOW))
        time.sleep(pause)
        pause = min(pause * 2, 0.1)
