# SPDX-License-Identifier: Apache-2.0
"""Manual pages against the program: a user finds every option, with its default, and no other."""

import re
import subprocess

import pytest

from cachefs import REPO, tool

MAN = REPO / "docs" / "man"


def program(*args):
    return subprocess.run([tool("cachefs"), *args], stdout=-1, text=True, timeout=30, check=True).stdout


def commands():
    return re.findall(r"^  (\w+)\s", program("--help").split("Commands:")[1], re.M)


def options(command):
    """Name to default, None without one, as --help shows them."""
    found = {}
    for line in program(command, "--help").splitlines():
        start = re.match(r"  --(\S+)", line)
        if start:
            name = start[1]
            found[name] = None
        default = re.search(r" \[(\S+)\]$", line)
        if default and line.startswith("  "):
            found[name] = default[1]
    return found


def entries(text, pattern):
    """Name to default of the option entries of a page."""
    found = {}
    name = None
    for line in text.replace("\\_", "_").splitlines():
        start = re.match(pattern, line)
        if start:
            name = start[1]
            assert name not in found, name + " is there twice"
            found[name] = None
        elif line and not line.startswith("\t"):
            name = None
        default = re.search(r"Default: (\S+)\.$", line)
        if default:
            assert name, "a default of nothing: " + line
            found[name] = default[1]
    return found


def shown(defaults):
    """-1 stands for "as it was" where the page says so in words."""
    return {name: None if value == "-1" else value for name, value in defaults.items()}


def test_mount_options():
    text = (MAN / "mount.cachefs.8.scd").read_text()
    options_part = text.split("\n# OPTIONS\n")[1].split("\n## Options of mount(8)\n")[0]
    page = entries(options_part, r"\*([a-z][\w-]*)(?:=\*_|\*$)")
    assert shown(page) == shown(options("mount"))


def test_commands_have_their_sections():
    text = (MAN / "cachefs.1.scd").read_text()
    assert sorted(re.findall(r"^## (\w+)$", text, re.M)) == sorted(commands())


@pytest.mark.parametrize("command", [c for c in commands() if c != "mount"])
def test_command_options(command):
    text = (MAN / "cachefs.1.scd").read_text()
    section = text.split("\n## %s\n" % command)[1].split("\n#")[0]
    assert shown(entries(section, r"\*--([\w-]+)\*")) == shown(options(command))


def test_sections_are_there_once():
    for page in MAN.glob("*.scd"):
        titles = re.findall(r"^# (.*)$", re.sub(r"(?s)```.*?```", "", page.read_text()), re.M)
        assert len(titles) == len(set(titles)), page.name
        assert titles[0] == "NAME" and titles[-1] == "SEE ALSO", page.name


def test_sentences_end_once():
    for page in MAN.glob("*.scd"):
        for line in re.sub(r"(?s)```.*?```", "", page.read_text()).splitlines():
            assert not re.search(r"(^|[^.])\.\.$", line), line


def test_metrics(mnt):
    """Both ways: a dashboard is made from the page."""
    text = (MAN / "cachefs-metrics.7.scd").read_text().replace("\\_", "_")
    section = text.split("\n# METRICS\n")[1].split("\n# ")[0]
    documented = re.findall(r"^\*(cachefs_[a-z_]+)\*$", section, re.M)
    counted = re.findall(r"^[a-z_]+", (mnt / ".stats").read_text(), re.M)
    assert sorted(documented) == sorted(set(counted))


def test_pages_build(tmp_path):
    for source in MAN.glob("*.scd"):
        page = subprocess.run(["scdoc"], stdin=open(source), stdout=-1, timeout=30, check=True).stdout
        (tmp_path / source.stem).write_bytes(page)
        subprocess.run(["man", "-l", tmp_path / source.stem], stdout=-3, timeout=30, check=True)
