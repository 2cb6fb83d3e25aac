# SPDX-License-Identifier: Apache-2.0
"""Dumps of volumes of any size, made up."""

import json

import fixtures


def big_json(n, per_dir=1000):
    """A JSON dump of n files of one slice in directories of per_dir."""
    setting = json.loads(fixtures.dump("sqlite", "json"))["Setting"]
    times = '"uid":0,"gid":0,"atime":1795224335,"mtime":1795224335,"ctime":1795224335'
    dir_ = '{"attr":{"inode":%d,"type":"directory","mode":493,' + times + ',"nlink":2,"length":0},"entries":{'
    file_ = '"file-number-%d":{"attr":{"inode":%d,"type":"regular","mode":420,' + times + (
        ',"nlink":1,"length":10000},"chunks":[{"index":0,"slices":[{"id":%d,"size":10000,"len":10000}]}]}'
    )
    yield '{"Setting":%s,"FSTree":%s' % (json.dumps({**setting, "TrashDays": 0}), dir_ % 1)
    ino = 2
    for d in range(n // per_dir):
        yield ("," if d else "") + '"d%d":' % d + dir_ % ino
        yield ",".join(file_ % (f, ino + 1 + f, ino + f) for f in range(per_dir))
        yield "}}"
        ino += per_dir + 1
    yield "}}}"
