# SPDX-License-Identifier: Apache-2.0
"""Completion in the shell: what Tab offers is what the program knows, and nothing it does not."""

import os
import pty
import re
import select
import subprocess

import pytest

from cachefs import BIN, REPO, need_program, tool, wait_until

SCRIPT = REPO / "completions" / "cachefs.bash"
# The changes that readline makes to a line before it calls the function.
DRIVER = r"""
source "$1"; shift
_cachefs_conf=$1; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_cachefs
printf '%s\n' "${COMPREPLY[@]}"
"""


def complete(line, cwd=None, conf=REPO / "examples/cachefs.conf"):
    """The offers for the last word of a line; a blank at its end: for a new word."""
    words = [w for w in re.split(r"\s+|([=:])", line) if w]
    if line[-1] in " ":
        words.append("")
    words[0] = tool("cachefs")
    out = subprocess.run(
        ["bash", "--norc", "-c", DRIVER, "bash", SCRIPT, conf, *words],
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


def test_groups(ws):
    """Of cachefs.conf and of mounts."""
    ws.path("conf").write_text("[data]\ncache-group = office\n")
    ws.volume().mount("cache-group=team,group-ip=127.0.0.1,cache-dir=%s" % ws.path("cache"))
    conf = ws.path("conf")
    assert {"office", "team"} <= set(complete("cachefs mount --cache-group=", conf=conf))
    assert "team" in complete("cachefs mount -o ro,cache-group=te", conf=conf)
    assert "office" in complete("cachefs config --rotate-group-key off", conf=conf)
    assert "team" not in complete("cachefs mount --cache-group=off", conf=conf)


# Tab shows the line that it has made, in a mark that nothing else prints.
ZSHRC = """
PS1=
fpath=(%(completions)s $fpath)
autoload -U compinit; compinit -D -u
_cachefs_conf=%(conf)s
PATH=%(bin)s:$PATH
show() { zle complete-word; print -r -- "<$BUFFER>"; BUFFER= }
zle -N show
bindkey '^I' show
print ready
"""


class Zsh:
    def __init__(self, ws, conf):
        need_program("zsh")
        rc = {"completions": REPO / "completions", "conf": conf, "bin": BIN}
        ws.path(".zshrc").write_text(ZSHRC % rc)
        self.fd, end = pty.openpty()
        self.shell = subprocess.Popen(
            ["zsh", "-d", "-i"], stdin=end, stdout=end, stderr=end, start_new_session=True, cwd=REPO,
            env={**ws.env(), "ZDOTDIR": str(ws.dir), "TERM": "dumb", "COLUMNS": "500"},
        )
        ws.children.append(self.shell)
        os.close(end)
        self.seen = ""
        self.until("ready")

    def until(self, pattern):
        """The matches of a pattern in the output from here on."""

        def more():
            if select.select([self.fd], [], [], 0)[0]:
                self.seen += os.read(self.fd, 65536).decode()
            return re.search(pattern, self.seen)

        found = wait_until(more, 20, "%r of the shell" % pattern)
        self.seen = self.seen[found.end() :]
        return found[0]

    def complete(self, line):
        os.write(self.fd, line.encode() + b"\t")
        return self.until("<.*>")[1:-1]


def test_zsh(ws):
    conf = ws.path("conf")
    conf.write_text((REPO / "examples/cachefs.conf").read_text() + "cache-group = office\n")
    mnt = ws.volume().mount("cache-group=team,group-ip=127.0.0.1,cache-dir=%s" % ws.path("cache"))
    zsh = Zsh(ws, conf)
    for typed, want in (
        ("cachefs objb", "cachefs objbench "),
        ("cachefs mount arc", "cachefs mount archive "),
        ("cachefs mount --cache-evi", "cachefs mount --cache-eviction="),
        ("cachefs mount --cache-eviction=l", "cachefs mount --cache-eviction=lru "),
        ("cachefs mount --cache-group=off", "cachefs mount --cache-group=office "),
        ("cachefs mount --cache-group=te", "cachefs mount --cache-group=team "),
        ("cachefs config --rotate-group-key=off", "cachefs config --rotate-group-key=office "),
        ("cachefs quota ge", "cachefs quota get "),
        ("cachefs umount " + str(mnt)[:-1], "cachefs umount %s" % mnt),
        ("cachefs umount arc", "cachefs umount arc"),
    ):
        assert zsh.complete(typed) == want


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
