# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md and README.md against the programs: what they tell to type works."""

import os
import re
import subprocess

import pytest

import servers
from cachefs import BIN, REPO, SLOW, tool

PAGE = (REPO / "docs" / "operations.md").read_text()
README = (REPO / "README.md").read_text()


def blocks(page):
    return re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)


def run(ws, script, **env):
    r = subprocess.run(
        ["bash", "-euxc", script],
        env=ws.env(PATH="%s:%s" % (BIN, os.environ["PATH"]), **env),
        stdin=-3, stdout=-1, stderr=-2, text=True, timeout=200 * SLOW, cwd=ws.dir,
    )
    assert r.returncode == 0, r.stdout[-4000:]
    return r.stdout


def known(*command):
    return subprocess.run([tool("cachefs"), *command, "--help"], stdout=-1, text=True, timeout=30).stdout


@pytest.fixture
def engines(ws):
    """As the page names them: each without a database."""
    redis, postgres, mysql = servers.started(ws, servers.Redis()), servers.postgres_server(), servers.mariadb_server()
    for s in (postgres, mysql):
        ws.cleanups.append(lambda s=s: s.drop("again"))
    ws.path(".my.cnf").write_text("[client]\nsocket=%s\nuser=root\n" % mysql.socket)  # for the program mariadb
    return {
        "REDIS": redis.url("").rstrip("/"),
        "POSTGRES": "postgres://%s:%s@127.0.0.1:%d" % (servers.USER, servers.QUOTED, postgres.port),
        "MYSQL": mysql.url("").rstrip("/"),
        "HOME": str(ws.dir),
    }


@pytest.mark.module("metrics")
@pytest.mark.module("redis")
@pytest.mark.module("mysql")
@pytest.mark.module("postgresql")
@pytest.mark.deadline(240)
def test_every_block_of_commands(ws, engines):
    folder = ws.path("site")
    folder.mkdir()
    out = run(ws, "\n".join(blocks(PAGE)), DIR=str(folder), **engines)
    assert "cachefs_data_commits_total" in out and "the mount answers" in out


def test_what_the_readme_begins_with(ws):
    """In a directory of the test's own, without what installing puts into the sbin directory."""
    use = README.split("\n## Use\n")[1]
    script = re.sub(r"(?<![\w.])/(var|srv|mnt)/", r"%s/\1/" % ws.dir, blocks(use)[0])
    mounting = re.search(r"^mount -t (cachefs .*)$", script, re.M)
    a_file = "mkdir -p mnt/my/some; echo x >mnt/my/some/file"
    out = run(ws, script.replace(mounting[0], "mount.%s\n%s" % (mounting[1], a_file)))
    assert "my/chunks/0/0/1_0_2" in out, out


def test_commands_in_the_text_exist():
    commands = set(re.findall(r"^  (\w+)\s", known().split("Commands:")[1], re.M))
    for command, rest in re.findall(r"`cachefs ([a-z]+)([^`]*)`", PAGE):
        assert command in commands, command
        for option in re.findall(r"--[\w-]+", rest):
            assert option + " " in known(command) + " ", (command, option)
    for engine in re.findall(r"`examples/([\w./-]+)`", PAGE):
        assert (REPO / "examples" / engine).exists(), engine


def test_the_line_in_fstab(ws):
    """findmnt --verify knows what systemd would stumble over."""
    lines = [
        re.findall(r"^[^#\s]\S*\s+/\S+\s+cachefs\s.*$", text, re.M)
        for text in (PAGE, (REPO / "examples/fstab").read_text())
    ]
    assert lines[0] == lines[1] and len(lines[0]) == 1
    target = ws.path("data")
    target.mkdir()
    table = ws.path("fstab")
    table.write_text(lines[0][0].replace("/mnt/data", str(target)) + "\n")
    r = subprocess.run(
        ["findmnt", "--verify", "--verbose", "--tab-file", table], stdout=-1, stderr=-2, text=True, timeout=30
    )
    assert "0 parse errors, 0 errors" in r.stdout, r.stdout


def test_the_line_in_the_readme(ws):
    (line,) = re.findall(r"^\S+ /mnt/my cachefs .*$", README, re.M)
    assert "_netdev,nofail,x-systemd.automount,credentials=" in line
    target = ws.path("my")
    target.mkdir()
    table = ws.path("fstab")
    table.write_text(line.replace("/mnt/my", str(target)) + "\n")
    r = subprocess.run(
        ["findmnt", "--verify", "--verbose", "--tab-file", table], stdout=-1, stderr=-2, text=True, timeout=30
    )
    assert "0 parse errors, 0 errors" in r.stdout, r.stdout


def test_units_are_well_formed():
    """Every unit names options that exist; the service is told of, and has time to stop."""
    folder = REPO / "examples" / "systemd"
    service = (folder / "cachefs-data.service").read_text()
    for wanted in ("Type=notify", "NotifyAccess=all", "WatchdogSec=", "OOMPolicy=continue", "ExecReload=/usr/bin/cachefs mount -o ", "TimeoutStopSec=150s"):
        assert re.search("^%s" % wanted, service, re.M), wanted
    options = known("mount")
    assert "stop-timeout" in options and "[120]" in options.split("--stop-timeout")[1].split("--")[0]
    for unit in folder.iterdir():
        for listed in re.findall(r"(?:^Options=|-o )(\S+)", unit.read_text(), re.M):
            for name in [option.split("=")[0] for option in listed.split(",")]:
                assert name == "_netdev" or "--%s " % name in options, (unit.name, name)
