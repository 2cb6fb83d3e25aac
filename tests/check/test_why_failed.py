# SPDX-License-Identifier: Apache-2.0
"""scripts/why-failed says in a few lines what the failures of a run said, also of those that passed later."""

import datetime
import pathlib
import re
import subprocess
import sys

import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = REPO / "scripts/why-failed"

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


def said(*args, status):
    r = subprocess.run([SCRIPT, "suite", *map(str, args)], stdout=-1, stderr=-1, text=True, timeout=60)
    assert (r.returncode, r.stderr) == (status, ""), r
    return r.stdout


def report(path, **tests):
    """Writes a report of pytest: test -> what it failed of, None if it passed."""
    cases = ""
    for name, why in tests.items():
        inside = "" if why is None else '<failure message="%s"/>' % why
        cases += '<testcase classname="tests.system.test_it" name="%s">%s</testcase>' % (name, inside)
    path.write_text("<testsuites><testsuite>%s</testsuite></testsuites>" % cases)
    return path


def test_what_failed_is_said_in_a_few_lines(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    pytest_of(tmp_path, "1.xml", "-n", "2", "--dist", "loadfile")
    once = said(tmp_path / "1.xml", status=1)
    pytest_of(tmp_path, "2.xml", "--last-failed")
    twice = said(tmp_path / "1.xml", tmp_path / "2.xml", status=1)

    assert "second try" not in once and once.startswith("suite: failed:\n"), once
    for text in (once, twice):
        assert "test_it.py::test_bad[1]\n        E   AssertionError: there are 1 apples\n" in text, text
        assert "test_it.py::test_leaves\n        E   process left: 7 sleep\n        E   mount point left" in text, text
        assert "test_good" not in text and "test_skipped" not in text and "test_bad[2]" not in text, text
        # the beginning of what was said, and what was compared
        long = text.split("test_it.py::test_long\n")[1].split("\n    test_it")[0].splitlines()
        assert len(long) <= 7 and "line 0" in long[0] and "assert [0, 1, 2" in text, text
    passed, failed = twice.split("suite: failed:\n")
    assert passed.startswith("suite: passed only at the second try, which fails the run; at the first:\n"), twice
    assert "test_it.py::test_late\n        E   AssertionError: too early" in passed, twice
    assert "test_late" not in failed and "test_bad" not in passed, twice


def test_nothing_is_said_of_what_passed(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_good():\n    pass\n")
    pytest_of(tmp_path, "1.xml")
    assert said(tmp_path / "1.xml", status=0) == ""


def test_a_run_that_ended_in_the_middle_has_no_report(tmp_path):
    assert "1.xml cannot be read" in said(tmp_path / "1.xml", status=1)
    report(tmp_path / "1.xml", test_late="too early")
    text = said(tmp_path / "1.xml", tmp_path / "2.xml", status=1)
    assert "2.xml cannot be read" in text and "suite: failed:\n    tests/system/test_it.py::test_late\n" in text, text
    report(tmp_path / "1.xml", test_good=None)
    said(tmp_path / "1.xml", tmp_path / "2.xml", status=1)


ROW = "| `tests/system/test_it.py::%s` | %s | %s |"
CAUSE = "two mounts get one device number"
TOMORROW = str(datetime.date.today() + datetime.timedelta(days=2))


@pytest.mark.parametrize(
    "row,status",
    [
        ("", 1),
        (ROW % ("test_late", "2026-11-26", CAUSE), 0),
        (ROW % ("test_late[1]", "2026-11-26", CAUSE), 0),
        (ROW % ("test_late[2]", "2026-11-26", CAUSE), 1),
        (ROW % ("test_lat", "2026-11-26", CAUSE), 1),
        (ROW % ("test_late", "2026-11-26", " "), 1),
        (ROW % ("test_late", "2026-13-26", CAUSE), 1),
        (ROW % ("test_late", TOMORROW, CAUSE), 1),
        (ROW % ("test_late", "soon", CAUSE), 1),
    ],
)
def test_only_a_dated_cause_excuses_a_second_try(tmp_path, row, status):
    first = report(tmp_path / "1.xml", **{"test_late[1]": "too early", "test_good": None})
    second = report(tmp_path / "2.xml", **{"test_late[1]": None})
    (tmp_path / "known.md").write_text("| test | date | cause |\n|---|---|---|\n%s\n" % row)
    text = said(first, second, tmp_path / "known.md", status=status)
    title = ["cause known", "which fails the run"][status]
    assert "suite: passed only at the second try, %s; at the first:\n    tests/system/test_it.py::test_late[1]\n" % title in text
    assert "too early" in text and "test_good" not in text, text


def test_an_entry_excuses_no_other_test_and_no_second_failure(tmp_path):
    known = tmp_path / "known.md"
    known.write_text(ROW % ("test_late", "2026-11-26", CAUSE) + "\n")
    first = report(tmp_path / "1.xml", test_late="too early", test_other="too late")
    text = said(first, report(tmp_path / "2.xml", test_late=None, test_other=None), known, status=1)
    assert "cause known" in text and "test_other" in text.split("which fails the run")[1], text
    text = said(first, report(tmp_path / "2.xml", test_late="twice", test_other=None), known, status=1)
    assert "test_late\n        E   twice\n" in text.split("suite: failed:\n")[1], text


def test_the_table_names_tests_that_exist_dates_and_causes():
    rows = (REPO / "tests/flaky.md").read_text().split("|---|---|---|\n")[1].splitlines()
    for row in rows:
        file, name, day = re.fullmatch(r"\| `(.+\.py)::(\w+)(?:\[.*\])?` \| (\S+) \| [^|]{20,} \|", row).groups()
        assert "\ndef %s(" % name in (REPO / file).read_text(), row
        assert datetime.date.fromisoformat(day) <= datetime.date.today(), row
