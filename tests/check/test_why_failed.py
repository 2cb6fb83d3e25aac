# SPDX-License-Identifier: Apache-2.0
"""scripts/why-failed says in a few lines what the failures of a run said, also of those that passed later."""

import pathlib
import subprocess
import sys

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/why-failed"

TESTS = '''
import pathlib
import pytest

TRIES = pathlib.Path(__file__).with_name("tries")


@pytest.fixture
def judged():
    yield
    pytest.fail("process left: 7 sleep\\nmount point left: /mnt", pytrace=False)


def test_good():
    pass


@pytest.mark.skip(reason="not today")
def test_skipped():
    assert False, "was run"


@pytest.mark.parametrize("n", [1, 2])
def test_bad(n):
    assert n == 2, "there are %d apples" % n


def test_long():
    assert list(range(99)) == [], "\\n".join("line %d" % i for i in range(40))


def test_late():
    TRIES.write_text(TRIES.read_text() + "x" if TRIES.exists() else "x")
    assert TRIES.read_text() == "xx", "too early"


def test_leaves(judged):
    pass
'''


def pytest_of(tmp_path, report, *more):
    command = [sys.executable, "-m", "pytest", "-q", "-o", "cache_dir=%s" % tmp_path, "--rootdir", tmp_path]
    subprocess.run(
        [*command, "--junitxml", tmp_path / report, *more, tmp_path / "test_it.py"], stdout=-3, cwd=tmp_path, timeout=120
    )


def said(*args):
    return subprocess.run([SCRIPT, "suite", *map(str, args)], check=True, stdout=-1, text=True, timeout=60).stdout


def test_what_failed_is_said_in_a_few_lines(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    pytest_of(tmp_path, "1.xml", "-n", "2", "--dist", "loadfile")
    once = said(tmp_path / "1.xml")
    pytest_of(tmp_path, "2.xml", "--last-failed")
    twice = said(tmp_path / "1.xml", tmp_path / "2.xml")

    assert "second try" not in once and once.startswith("suite: failed:\n"), once
    for text in (once, twice):
        assert "test_it.py::test_bad[1]\n        E   AssertionError: there are 1 apples\n" in text, text
        assert "test_it.py::test_leaves\n        E   process left: 7 sleep\n        E   mount point left" in text, text
        assert "test_good" not in text and "test_skipped" not in text and "test_bad[2]" not in text, text
        # the beginning of what was said, and what was compared
        long = text.split("test_it.py::test_long\n")[1].split("\n    test_it")[0].splitlines()
        assert len(long) <= 7 and "line 0" in long[0] and "assert [0, 1, 2" in text, text
    passed, failed = twice.split("suite: failed:\n")
    assert passed.startswith("suite: passed only at the second try; at the first:\n"), twice
    assert "test_it.py::test_late\n        E   AssertionError: too early" in passed, twice
    assert "test_late" not in failed and "test_bad" not in passed, twice


def test_nothing_is_said_of_what_passed(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_good():\n    pass\n")
    pytest_of(tmp_path, "1.xml")
    assert said(tmp_path / "1.xml") == ""


def test_a_run_that_ended_in_the_middle_has_no_report(tmp_path):
    assert "1.xml cannot be read" in said(tmp_path / "1.xml")
