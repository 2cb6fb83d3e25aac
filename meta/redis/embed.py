#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes scripts.c or scripts.h of the Lua files: embed.py c|h OUTPUT FILE.lua...

The first line of an operation's file says what it needs:
    -- read: attr            answers only
    -- write: attr rules     changes something; its answer is remembered (lib/answer.lua)
Names are those of files in lib/, put before it in this order. It defines op(arguments...).

A script runs from its first line each time, and each function it comes by costs the server memory:
only those that are used are taken along.
"""
import hashlib
import os
import re
import sys


def source(path):
    """The statements of the file, without comments, and without indentation but in the first
    column: what the server would only have to skip."""
    parts = []
    with open(path, encoding="ascii") as f:
        for line in f:
            text = line.strip()
            if not text or text.startswith("--"):
                continue
            if line[0] in " \t" or text == "end":
                parts[-1] += text + "\n"
            else:
                parts.append(text + "\n")
    return parts


def used(parts):
    """Without the functions that nothing which is left speaks of."""
    names = [re.match(r"local function (\w+)", p) for p in parts]
    words = [set(re.findall(r"\w+", p)) for p in parts]
    needed = {i for i, name in enumerate(names) if not name or name[1] == "op"}
    more = True
    while more:
        spoken = set().union(*(words[i] for i in needed))
        more = {i for i, name in enumerate(names) if name and name[1] in spoken} - needed
        needed |= more
    return "".join(parts[i] for i in sorted(needed))


def compose(path):
    with open(path, encoding="ascii") as f:
        next(f)
        kind, _, libs = f.readline().strip().lstrip("- ").partition(":")
    if kind not in ("read", "write"):
        sys.exit(f"{path}: the second line must be '-- read: ...' or '-- write: ...'")
    lib = os.path.join(os.path.dirname(path), "lib")
    names = ["base"] + (["log"] if kind == "write" else []) + libs.split()
    parts = [p for n in names for p in source(os.path.join(lib, n + ".lua"))] + source(path)
    if kind == "write":
        return True, used(parts + source(os.path.join(lib, "answer.lua")))
    return False, used(parts + ["return op(unpack(ARGV))\n"])


def quote(text):
    out = []
    for line in text.splitlines():
        out.append('"' + line.replace("\\", "\\\\").replace('"', '\\"') + '\\n"')
    return "\n\t\t".join(out)


def main():
    kind, out, files = sys.argv[1], sys.argv[2], sys.argv[3:]
    lines = ["/* Made from meta/redis/ by embed.py. */"]
    if kind == "h":
        lines += ["#ifndef CFS_META_REDIS_SCRIPTS_H", "#define CFS_META_REDIS_SCRIPTS_H",
                  "#include <stdbool.h>", "#include <stddef.h>",
                  "struct rds_script { const char *name; bool writes; char sha[41]; "
                  "const char *text; size_t len; };"]
    else:
        lines.append('#include "scripts.h"')
    for path in sorted(files):
        name = os.path.splitext(os.path.basename(path))[0]
        if kind == "h":
            lines.append(f"extern const struct rds_script rds_{name}_lua;")
            continue
        writes, text = compose(path)
        sha = hashlib.sha1(text.encode()).hexdigest()
        lines.append(f'const struct rds_script rds_{name}_lua = {{"{name}", '
                     f'{str(writes).lower()}, "{sha}",\n\t\t{quote(text)}, {len(text)}}};')
    if kind == "h":
        lines.append("#endif")
    with open(out, "w", encoding="ascii") as f:
        f.write("\n".join(lines) + "\n")


main()
