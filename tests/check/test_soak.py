# SPDX-License-Identifier: Apache-2.0
"""The verdict of scripts/soak finds what grows and what nothing explains. If it does not, a leak of hours
passes as a good run."""

import datetime
import importlib.machinery
import importlib.util
import pathlib
import random

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/soak"
loader = importlib.machinery.SourceFileLoader("soak", str(SCRIPT))
soak = importlib.util.module_from_spec(importlib.util.spec_from_loader("soak", loader))
loader.exec_module(soak)

HOUR = range(0, 3600, 10)
NOW = 1_760_000_000


def series(value):
    rng = random.Random(1)
    return [(t, value(t, rng)) for t in HOUR]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pss_kib", lambda t, rng: 60_000 + t * 5 + rng.randrange(20_000)),  # 12 MB in 40 minutes, in noise
        ("fds", lambda t, rng: 40 + t // 300 + rng.randrange(4)),
        ("threads", lambda t, rng: 30 + t // 200),
    ],
)
def test_growth_is_found(name, value):
    bad, text = soak.judge_series(name, series(value))
    assert bad and bad.startswith("grows"), text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pss_kib", lambda t, rng: min(60_000, t * 60) + rng.randrange(20_000)),  # fills up, then stays
        ("pss_kib", lambda t, rng: 60_000 - t * 5),
        ("fds", lambda t, rng: 40 + (60 if t % 600 < 60 else 0)),  # peaks that go away
        ("threads", lambda t, rng: 30 + rng.randrange(8)),
    ],
)
def test_what_stays_is_no_growth(name, value):
    bad, text = soak.judge_series(name, series(value))
    assert not bad, text


def test_a_process_that_was_replaced_fills_up():
    def rises(t, rng):
        return 40 + t // 200

    assert soak.judge_series("fds", series(rises))[0]
    assert not soak.judge_series("fds", series(rises), steady=False)[0]
    assert soak.judge_series("fds", series(lambda t, rng: 40 + t // 50), steady=False)[0]


def test_few_samples_prove_nothing():
    assert soak.judge_series("fds", [(t, 10) for t in range(0, 200, 10)])[0]


def line(second, level, text):
    at = datetime.datetime.fromtimestamp(NOW + second, datetime.timezone.utc)
    return "%s.000+0000 cachefs[7] %s: %s" % (at.strftime("%Y-%m-%dT%H:%M:%S"), level, text)


DEATH = "the process of the mount has died, starting another: mount=/m"


@pytest.mark.parametrize(
    ("text", "events", "bad"),
    [
        (line(10, "error", DEATH), [(NOW + 9, "kill-worker")], False),
        (line(10, "error", DEATH), [(NOW + 12, "kill-worker")], True),  # before its cause
        (line(900, "error", DEATH), [(NOW + 9, "kill-worker")], True),  # long after it
        (line(10, "error", DEATH), [(NOW + 9, "restart-s3")], True),  # another cause
        (line(10, "warning", "something strange"), [(NOW + 9, "kill-worker"), (NOW + 9, "restart-engine")], True),
        (line(10, "info", "something strange"), [], False),
        ("==7==ERROR: AddressSanitizer: heap-use-after-free", [], True),
    ],
)
def test_log_lines_need_a_cause(text, events, bad):
    found, findings = soak.judge_log(text, events)
    assert bool(findings) == bad, (found, findings)
