# SPDX-License-Identifier: Apache-2.0
"""Every test gets a workspace; what it leaves behind is judged after it."""

import contextlib
import faulthandler
import os
import resource
import signal
import sys
import threading

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
# The harness, and the tests: some use what others define.
sys.path[:0] = [HERE] + [f.path for f in os.scandir(HERE) if f.is_dir() and not f.name.startswith((".", "_"))]

import cachefs  # noqa: E402
import proxy  # noqa: E402
import server  # noqa: E402

DEADLINE_S = 90
# The files that take longest, longest first: begun last, they would end long after all others.
LONGEST = (
    "test_lost_answers", "test_group", "test_engines", "test_takeover", "test_postgresql", "test_galera", "test_s3",
    "test_mysql", "test_group_lies", "test_writeback", "test_concurrency", "test_supervisor", "test_dump", "test_redis",
    "test_counters", "test_faults", "test_unsynced", "test_replica", "test_group_move", "test_disk_cache",
)  # fmt: skip


def pytest_configure(config):
    config.addinivalue_line("markers", "deadline(seconds): longest run time of a test")
    config.addinivalue_line("markers", "module(name): needs cachefs-NAME.so")
    config.addinivalue_line("markers", "long: takes long, left out of sanitizer runs")
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    # A shell's background job ignores it, and so would every program that a test interrupts.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and handles_signals():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    if not (cachefs.BIN / "cachefs").exists():
        raise pytest.UsageError("no programs in %s: build, or set CACHEFS_BIN" % cachefs.BIN)
    place = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    for marker in item.iter_markers("module"):
        cachefs.need_module(*marker.args)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    setattr(item, "report_" + report.when, report)


def handles_signals():
    """A process of xdist that begins late runs its tests on another thread than the main one."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def alarm(seconds, late):
    if not handles_signals():  # the watchdog ends the test
        yield
        return
    old = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


@pytest.fixture
def ws(request):
    marker = request.node.get_closest_marker("deadline")
    seconds = (marker.args[0] if marker else DEADLINE_S) * cachefs.patience()
    work = cachefs.Workspace(request.node.name)

    def late(signum, frame):
        raise TimeoutError("the test ran longer than %g s" % seconds)

    def watch():
        # the test may sit in a system call that only the end of the mount process can end
        print("watchdog: %s: killing its processes" % request.node.nodeid, file=sys.stderr)
        faulthandler.dump_traceback(file=sys.__stderr__)
        work.abort()

    with alarm(seconds, late):
        dog = threading.Timer(seconds + 5, watch)
        dog.daemon = True
        dog.start()
        yield work
    dog.cancel()
    dog = threading.Timer(120 * cachefs.patience(), watch)
    dog.daemon = True
    dog.start()
    report = getattr(request.node, "report_call", None)
    complaints = work.close(passed=report is not None and report.passed)
    dog.cancel()
    if complaints:
        pytest.fail("\n".join(complaints), pytrace=False)


@pytest.fixture
def volume(ws):
    return ws.volume()


@pytest.fixture
def mnt(volume):
    return volume.mount()


@pytest.fixture
def s3(ws):
    """An S3 server of the test's own."""
    return server.Server(ws)


@pytest.fixture
def via(ws, s3):
    """A proxy in front of it that breaks what it is told to."""
    p = proxy.Proxy(s3.address)
    ws.cleanups.append(p.close)
    return p
