# SPDX-License-Identifier: Apache-2.0
"""scripts/check-docs sees names that do not exist. When these fail, a page can send its reader to a test, a function or
a file that was renamed."""

import pathlib
import shutil
import subprocess

TOP = pathlib.Path(__file__).resolve().parents[2]

RIGHT = """`test_planted_arrows` and `test_plant…` in `tests/check/test_names.py`, `check()`, `struct cfs_meta`,
`src/NAME/x.c`, `tests/tool` and `src/fuse/`.
"""
WRONG = ["test_no_such_thing", "test_no_prefix…", "no_call()", "cfs_no_type", "src/no/file.c", "no_file.h", "tests/no_tool"]


def check(tree):
    return subprocess.run([tree / "scripts/check-docs"], stdout=subprocess.PIPE, text=True, timeout=60)


def plant(tree):
    for folder in ("scripts", "docs", "src/fuse", "src/cmd/cli", "tests/check"):
        (tree / folder).mkdir(parents=True)
    shutil.copy(TOP / "scripts/check-docs", tree / "scripts")


def add_all(tree):
    subprocess.run(["git", "init", "-q"], cwd=tree, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tree, check=True)


def test_names_that_do_not_exist(tmp_path):
    plant(tmp_path)
    (tmp_path / "tests/check/test_names.py").write_text("def test_planted_arrows(tree):\n    check(tree)\n")
    (tmp_path / "tests/tool.c").write_text("int main(void) { return 0; }\n")
    (tmp_path / "src/fuse/a.c").write_text("struct cfs_meta { int x; };\n")
    page = tmp_path / "docs/page.md"
    page.write_text(RIGHT)
    add_all(tmp_path)
    found = check(tmp_path)
    assert found.returncode == 0, found.stdout
    page.write_text(RIGHT + "".join("`%s`\n" % name for name in WRONG))
    found = check(tmp_path)
    assert found.returncode == 1
    assert found.stdout.count("there is no") == len(WRONG), found.stdout
    assert not [name for name in WRONG if "there is no %s\n" % name not in found.stdout], found.stdout


def test_table_of_threads(tmp_path):
    """Without it: the table names threads that ps does not show, and lacks those that it shows."""
    plant(tmp_path)
    (tmp_path / "src/fuse/a.c").write_text('r = cfs_thread_start("fuse", run, a, &a->thread);\n'
                                           'r = cfs_workers_create(\n\t"fetch", 1, 1, &a->workers);\n')
    (tmp_path / "src/cmd/cli/a.c").write_text('r = cfs_ticker_start("progress", 1, show, a, &a->ticker);\n')
    page = tmp_path / "docs/architecture.md"
    table = "| thread | task |\n|---|---|\n| %s | works |\n\nMore text.\n"
    page.write_text(table % "fetch, fuse")
    add_all(tmp_path)
    found = check(tmp_path)
    assert found.returncode == 0, found.stdout
    page.write_text(table % "fuse, flush")
    found = check(tmp_path)
    assert found.returncode == 1
    assert "lacks fetch\n" in found.stdout and "no thread flush\n" in found.stdout, found.stdout
