# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition, never for a time: for the system tests, their servers and the benches.

Environment: CACHEFS_TEST_SLOW  factor on every deadline (default 1; cachefs.py: 4 when the programs
                                are sanitized)
"""

import os
import pathlib
import signal
import time

SLOW = float(os.environ.get("CACHEFS_TEST_SLOW") or 1)


def patience():
    """Factor on deadlines: SLOW, and more on a machine with more than two runnable threads for each processor."""
    return SLOW * max(1, os.getloadavg()[0] / os.cpu_count() / 2)


def wait_until(condition, seconds=10, what="the condition"):
    """Polls until condition() is true and returns its value."""
    begun = time.monotonic()
    pause = 0.002
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - begun
        if waited > seconds * SLOW and waited > seconds * patience():
            raise TimeoutError("%s did not come true in %g s" % (what, waited))
        time.sleep(pause)
        pause = min(pause * 2, 0.1)


def stop_process(pid):
    """Stops a process as SIGSTOP does, and returns when none of its threads runs any more."""
    os.kill(pid, signal.SIGSTOP)

    def stopped():
        tasks = pathlib.Path("/proc/%d/task" % pid).glob("*/stat")
        try:
            return all(task.read_text().rpartition(")")[2].split()[0] in "TtZX" for task in tasks)
        except (FileNotFoundError, ProcessLookupError):  # a thread has ended
            return False

    wait_until(stopped, what="stop of process %d" % pid)
