# SPDX-License-Identifier: Apache-2.0
"""cachefs.conf(5). Without it a mistake in the file mounts something else, or its secrets are seen."""

import json
import os
import re

import pytest

from cachefs import REPO, mountinfo
from syscalls import data, read, write


@pytest.fixture
def conf(ws, volume):
    """Writes a file; mount(...) uses it."""

    class Conf:
        path = ws.path("cachefs.conf")
        point = ws.path("by-name")
        url = volume.url

        def text(self, text, mode=0o644):
            self.path.write_text(text)
            os.chmod(self.path, mode)

        def section(self, *lines, mode=0o644):
            self.text("\n".join(["# volumes", "", "[other]", "meta-url=redis://nowhere.invalid/1", "nonsense = 1",
                                 " [data] ", "meta-url = " + self.url, *lines, ""]), mode)

        def mount(self, *args, program="cachefs"):
            argv = ["cachefs", "mount"] if program == "cachefs" else [program]
            return ws.run(*argv, *args, "-o", "config=%s" % self.path, timeout=60)

        def options(self):
            return json.loads(read(self.point / ".config"))["Options"]

    c = Conf()
    c.point.mkdir()
    yield c
    if str(c.point) in mountinfo():
        ws.run("cachefs", "umount", c.point, check=True, timeout=60)


def test_a_section_has_all(ws, conf):
    conf.section("mount-point = %s" % conf.point, "cache-size= 7G ", "subdir = /a,b\\", "noatime", "no-bgjob",
                 "; comment", "enable-xattr = false")
    mnt = ws.volumes[0].mount()
    os.mkdir(mnt / "a,b\\")
    mnt.umount()
    r = conf.mount("data")
    assert r.returncode == 0, r.stderr
    assert mountinfo()[str(conf.point)][2] == "data"
    assert "noatime" in mountinfo()[str(conf.point)][3]
    o = conf.options()
    assert (o["cache-size"], o["subdir"], o["no-bgjob"], o["enable-xattr"]) == ("7G", "/a,b\\", "true", "false")
    content = data(100_000)
    write(conf.point / "f", content)
    ws.run("cachefs", "umount", conf.point, check=True, timeout=60)
    mnt = ws.volumes[0].mount()
    assert read(mnt / "a,b\\" / "f") == content


@pytest.mark.parametrize("program", ["cachefs", "mount.cachefs"])
def test_the_command_line_wins(ws, conf, program):
    elsewhere = ws.path("elsewhere")
    elsewhere.mkdir()
    conf.section("mount-point = %s" % elsewhere, "cache-size = 7G", "ro", "attr-cache = 5")
    r = conf.mount("data", conf.point, "-o", "cache-size=9G,rw", program=program)
    assert r.returncode == 0, r.stderr
    assert str(elsewhere) not in mountinfo()
    o = conf.options()
    assert (o["cache-size"], o["ro"], o["attr-cache"]) == ("9G", "false", "5s")
    (conf.point / "f").touch()


@pytest.mark.parametrize("lines, reason", [
    (["cach-size = 1G"], ":8: no such option: cach-size"),
    (["cache-size = much"], ":8: .*cache-size.*much"),
    (["_netdev"], ":8: no such option: _netdev"),
    (["x-systemd.automount"], ":8: no such option: x-systemd.automount"),
    (["config = /etc/other"], ":8: no such option: config"),
    (["", "meta-url = sqlite3:///x"], ":9: meta-url is there twice"),
    (["mount-point = here"], ":8: mount-point is an absolute path"),
    (["[data]"], r":8: there is another section \[data\]"),
    (["[third"], r":8: a section is \[NAME\]"),
    (["[a/b]"], ":8: a name of a volume has none of"),
])
def test_mistakes_name_their_line(conf, lines, reason):
    conf.section(*lines)
    r = conf.mount("data", conf.point)
    assert r.returncode == 1 and re.search(re.escape(str(conf.path)) + reason, r.stderr), r.stderr
    assert str(conf.point) not in mountinfo()


def test_what_is_not_there(ws, conf):
    conf.section()
    r = conf.mount("dta", conf.point)
    assert r.returncode == 1 and "no section [dta]; a Redis server of that name is redis://dta" in r.stderr
    conf.text("meta-url = x\n")
    assert ":1: before the first section" in conf.mount("data", conf.point).stderr
    conf.text("[data]\nro\n")
    assert "the section [data] has no meta-url" in conf.mount("data", conf.point).stderr
    conf.text("[data]\nmeta-url = db.example\n")
    assert ":2: meta-url is a META-URL with its scheme" in conf.mount("data", conf.point).stderr
    conf.section()
    r = conf.mount("data")
    assert r.returncode == 1 and "usage" in r.stderr
    conf.path.unlink()
    r = conf.mount("data", conf.point)
    assert r.returncode == 1 and "cannot read %s: No such file" % conf.path in r.stderr
    # a URL needs no file
    assert conf.mount(conf.url, conf.point).returncode == 0


def test_secrets_and_strangers(ws, conf):
    secret = "s3cr3t-pass"
    bad = "[vault]\nmeta-url = redis://:%s@127.0.0.1:1/1\n[data]\nmeta-url = %s\n" % (secret, conf.url)
    for mode in (0o644, 0o640, 0o604):
        conf.text(bad, mode)
        r = conf.mount("data", conf.point)
        assert r.returncode == 1 and ":2: meta-url has a password, and others may read the file" in r.stderr
        assert secret not in r.stderr
    conf.text(bad, 0o600)
    r = conf.mount("vault", conf.point)
    assert r.returncode == 32 and secret not in r.stderr, r.stderr
    assert conf.mount("data", conf.point).returncode == 0
    ws.run("cachefs", "umount", conf.point, check=True, timeout=60)
    for mode in (0o620, 0o602):
        conf.section(mode=mode)
        r = conf.mount("data", conf.point)
        assert r.returncode == 1 and "that only root or you can write" in r.stderr, r.stderr
    conf.section(mode=0o600)
    os.chown(conf.path, 65534, 65534)
    assert conf.mount("data", conf.point).returncode == 1


def test_the_process_list_has_the_name_only(ws, conf):
    conf.section("mount-point = %s" % conf.point, "cache-size = 7G", mode=0o600)
    assert conf.mount("data").returncode == 0
    mine = [line for _, line in ws.processes() if "cachefs" in line.split()[0] and " mount " in line]
    assert mine and not [line for line in mine if "sqlite3:" in line or "7G" in line], mine


def test_the_example(ws, conf):
    text = (REPO / "examples/cachefs.conf").read_text()
    conf.text(text.replace("redis://db.example/1", conf.url).replace("/mnt/data", str(conf.point)))
    r = conf.mount("data")
    assert r.returncode == 1 and "/etc/cachefs/data.cred" in r.stderr
    lines = [line for line in text.splitlines() if "/etc/cachefs/" not in line and "9567" not in line]
    conf.text("\n".join(lines).replace("redis://db.example/1", conf.url).replace("/mnt/data", str(conf.point))
              .replace("/cache/data", str(ws.path("cache"))))
    r = conf.mount("data")
    assert r.returncode == 0, r.stderr
    assert conf.options()["cache-size"] == "200G"
