# SPDX-License-Identifier: Apache-2.0
"""scripts/check-layers sees arrows that must not be. When these fail, a layer or a command can grow into another one
and no check says so."""

import pathlib
import shutil
import subprocess

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path):
    for name in ("src", "meta", "transport", "include"):
        shutil.copytree(TOP / name, tmp_path / name)
    (tmp_path / "scripts").mkdir()
    shutil.copy(TOP / "scripts/check-layers", tmp_path / "scripts")
    return tmp_path


def check(tree):
    return subprocess.run([tree / "scripts/check-layers"], stdout=subprocess.PIPE, text=True, timeout=60)


PLANTED = [
    ("src/base/log.c", '#include "data/data-internal.h"', "base must not include"),
    ("meta/redis/sock.c", '#include "meta/api/core.h"', "meta/redis must not use meta/api"),
    ("meta/sqlite/sqlite.c", '#include "meta/quota/quota.h"', "meta/sqlite must not use meta/quota"),
    ("meta/sql/readdir.c", "int planted(void) { return cfs_quotas_begin(NULL); }", "meta/sql must not use meta/quota"),
    ("meta/engine/host.c", '#include "meta/setting/setting-internal.h"', "meta/engine must not use meta/setting"),
    ("meta/redis/sock.c", '#include "meta/sqlite/sqlite-internal.h"', "meta/redis must not use meta/sqlite"),
    ("src/cmd/cli/clone.c", "int planted(void) { return cmd_run(&cmd_rmr, 0, NULL); }", "names cmd_rmr of src/cmd/cli/rmr.c"),
    ("src/cmd/cli/clone.c", "int planted(void) { return cmd_gc.name != 0; }", "names cmd_gc of src/cmd/check/gc.c"),
    ("src/cmd/cli/clone.c", '#include "cmd/diag/doctor.h"', "a command must not use another: src/cmd/cli/clone.c includes"),
    ("src/cmd/cli/clone.c", '#include "cmd/mountd/mount.h"', "a command must not use another: src/cmd/cli/clone.c includes"),
    ("src/cmd/dump/load.c", '#include "cmd/dump/dump.h"', "a command must not use another: src/cmd/dump/load.c includes"),
    ("src/cmd/access/volume.c", '#include "cmd/diag/tar.h"', "a command must not use another: src/cmd/access/volume.c includes"),
    ("transport/wire/frame.c", '#include "transport/group/group-internal.h"', "folders that depend on each other"),
]


def test_planted_arrows(tree):
    found = check(tree)
    assert found.returncode == 0, found.stdout
    for path, line, _ in PLANTED:
        with open(tree / path, "a") as f:
            f.write(line + "\n")
    found = check(tree)
    assert found.returncode == 1
    assert not [message for _, _, message in PLANTED if message not in found.stdout], found.stdout
