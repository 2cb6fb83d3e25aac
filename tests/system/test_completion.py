# SPDX-License-Identifier: Apache-2.0
"""Completion in the shell: what Tab offers is what the program knows, and nothing it does not."""

import re
import subprocess

import pytest

from cachefs import BIN, REPO, need_program, tool

SCRIPT = REPO / "completions" / "cachefs.bash"
# What readline does to a line before it calls the function.
DRIVER = r"""
source "$1"; shift
_cachefs_conf=examples/cachefs.conf
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_cachefs
printf '%s\n' "${COMPREPLY[@]}"
"""


def complete(line, cwd=None):
    """The offers for the last word of a line; a blank at its end: for a new word."""
    words = [w for w in re.split(r"\s+|([=:])", line) if w]
    if line[-1] in " ":
        words.append("")
    words[0] = tool("cachefs")
    out = subprocess.run(
        ["bash", "--norc", "-c", DRIVER, "bash", SCRIPT, *words],
        stdout=-1, stderr=-1, text=True, timeout=30, check=True, cwd=cwd,
    )
    assert not out.stderr, out.stderr
    return [w for w in out.stdout.splitlines() if w]


def help_of(*command):
    return subprocess.run([tool("cachefs"), *command, "--help"], stdout=-1, text=True, check=True).stdout


def test_commands():
    known = re.findall(r"^  (\w+)\s", help_of().split("Commands:")[1], re.M)
    assert sorted(complete("cachefs ")) == sorted([*known, "--help"])
    assert complete("cachefs ob") == ["objbench"]


@pytest.mark.parametrize("command", ["format", "mount", "warmup", "dump"])
def test_options(command):
    known = re.findall(r"^  (--\S+)", help_of(command), re.M)
    assert sorted(complete("cachefs %s --" % command)) == sorted({*known, "--help"})


def test_values():
    assert complete("cachefs mount --cache-eviction=") == ["s3-fifo", "2-random", "lru", "none"]
    assert complete("cachefs mount --cache-eviction=l") == ["lru"]
    assert complete("cachefs mount --atime-mode rel") == ["relatime"]
    assert complete("cachefs mount --buffer-size ") == []


def test_mount_list():
    assert complete("cachefs mount -o cache-ev") == ["cache-eviction="]
    assert complete("cachefs mount -o ro,writeback_c") == ["ro,writeback_cache"]
    assert complete("cachefs mount -o cache-eviction=") == ["s3-fifo", "2-random", "lru", "none"]
    assert complete("cachefs mount -o cache-eviction=lru,allow") == ["lru,allow_other"]


def test_volumes():
    assert complete("cachefs mount ", REPO)[:2] == ["data", "archive"]
    assert complete("cachefs mount arc", REPO) == ["archive"]
    assert "archive" not in complete("cachefs umount ", REPO)


def test_actions_and_files(tmp_path):
    (tmp_path / "a file").touch()
    assert {"get", "set", "list"} <= set(complete("cachefs quota ", tmp_path))
    assert complete("cachefs info a", tmp_path) == ["a file"]


def test_mount_points(ws):
    mnt = ws.volume().mount()
    assert str(mnt) in complete("cachefs umount ")
    assert complete("cachefs info " + str(mnt)[:-1])


def test_zsh_reads_it():
    need_program("zsh")
    subprocess.run(["zsh", "-n", REPO / "completions" / "_cachefs"], timeout=30, check=True)
    script = """
        autoload -U compinit; compinit -D -u
        source %s/_cachefs 2>/dev/null; functions _cachefs_option_specs >/dev/null
        program=%s; _cachefs_option_specs mount
    """ % (REPO / "completions", BIN / "cachefs")
    out = subprocess.run(["zsh", "-f", "-c", script], stdout=-1, stderr=-3, text=True, timeout=30).stdout
    assert "--cache-eviction=:s3-fifo|2-random|lru|none:(s3-fifo 2-random lru none)" in out
    assert "--ro" in out.splitlines()
