#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates scripts.c or scripts.h from the Lua files: embed.py c|h OUTPUT FILE.lua...

The second line of an operation's file declares its kind and the library files that it uses:
    -- read: attr            reads only
    -- write: rules          makes changes; its answer is stored (lib/answer.lua)
    -- write 2: attr rules   the first two arguments are inode numbers; their records are read together
                             with the stored answer, and are passed before the arguments
    -- bare: optimistic      makes changes; the script is the library files, this file and the end
                             (lib/noted.lua), without further processing
Library files are those of lib/, in this order. The file defines op(arguments...).

The server runs a script from its first line each time, and creating the functions costs it more than
most of their work. Therefore functions that only return an expression are inlined, and unused functions
are left out. All functions are inside a function main(): to create a function, the server copies a
variable from outside main(), but searches for one inside.
"""
import hashlib
import os
import re
import sys


def source(path):
    """The statements of the file that begin in the first column, without comments and indentation,
    which the server would only skip."""
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


def closing(text, at):
    """The position after the bracket that closes the one before `at`, and the arguments between."""
    args, start, depth = [], at, 0
    for m in re.compile(r"""'(?:[^'\\\\]|\\\\.)*'|[](){},[]""").finditer(text, at):
        if m[0] in "([{":
            depth += 1
        elif depth and m[0] in ")]}":
            depth -= 1
        elif not depth and m[0] in ",)":
            args.append(text[start:m.start()].strip())
            start = m.end()
            if m[0] == ")":
                return start, args
    sys.exit(f"no end of the call: {text[at:at + 40]}")


def is_one_call(text):
    """True when the text is one call or one bracket, and needs no brackets around it."""
    m = re.match(r"[\w.]*\(", text)
    return m is not None and closing(text, m.end())[0] == len(text)


def inline(text, simple):
    """Replaces calls of the functions in `simple` ({name: (parameters, expression)}) by their
    expressions, except a call with an argument that is not just a name and would be used twice."""
    call = re.compile(r"(?<![\w.])(" + "|".join(simple) + r")\(")
    at = 0
    while simple and (m := call.search(text, at)):
        end, args = closing(text, m.end())
        params, result = simple[m[1]]
        counts = [len(re.findall(rf"\b{p}\b", result)) for p in params]
        if len(args) != len(params) or any(n > 1 and not re.fullmatch(r"\w+", a)
                                           for n, a in zip(counts, args)):
            at = m.end()
            continue
        given = {p: a if re.fullmatch(r"[\w.]+|'[^']*'", a) or is_one_call(a) else f"({a})"
                 for p, a in zip(params, args)}
        result = re.sub(r"'[^']*'|\w+", lambda w: given.get(w[0], w[0]), result)
        text = text[:m.start()] + result + text[end:]
        at = m.start()
    return text


def simplify(parts):
    """Inlines the functions that are one expression. A function may call those before it."""
    simple, out = {}, []
    for part in parts:
        head, line_end, body = part.partition("\n")
        m = re.fullmatch(r"local function (\w+)\(([\w, ]*)\)", head)
        part = head + line_end + inline(body, simple) if m else inline(part, simple)
        body = re.fullmatch(r"return (.*)\nend\n", part.partition("\n")[2], re.DOTALL)
        if m and m[1] != "op" and body and "function" not in body[1]:
            result = body[1].replace("\n", " ")
            simple[m[1]] = (re.findall(r"\w+", m[2]),
                            result if is_one_call(result) else f"({result})")
        out.append(part)
    return out


def used(parts):
    """Leaves out the functions that no other part uses."""
    names = [re.match(r"local function (\w+)", p) for p in parts]
    words = [set(re.findall(r"\w+", p)) for p in parts]
    needed = {i for i, name in enumerate(names) if not name or name[1] == "op"}
    more = True
    while more:
        mentioned = set().union(*(words[i] for i in needed))
        more = {i for i, name in enumerate(names) if name and name[1] in mentioned} - needed
        needed |= more
    return [parts[i] for i in sorted(needed)]


def within(parts, last):
    """Moves a function that only one other function uses into that function."""
    parts = [[re.match(r"local function (\w+)", p), p] for p in parts]
    for i in range(len(parts)):
        name, text = parts[i]
        if not name:
            continue
        users = [k for k, (_, other) in enumerate(parts)
                 if k != i and re.search(rf"\b{name[1]}\b", other)]
        if len(users) == 1 and parts[users[0]][0] and parts[users[0]][0][1] not in ("op", "answer") \
                and not re.search(rf"\b{name[1]}\b", last):
            head, line_end, body = parts[users[0]][1].partition("\n")
            parts[users[0]][1] = head + line_end + text + body
            parts[i][1] = ""
    return [text for _, text in parts if text]


def nested(parts, last):
    """The constants, followed by main(), which contains the functions and the last statement."""
    outside = [p for p in parts if not p.startswith("local function")]
    inside = [p for p in parts if p not in outside]
    return "".join([*outside, "local function main()\n", *inside, last, "end\nreturn main()\n"])


def ending(write, inodes):
    if not write:
        return "return op(unpack(ARGV))\n"
    if not inodes:
        return "return answer(call('GET', P .. ARGV[1]), unpack(ARGV, 4))\n"
    keys = "".join(f", P .. 'i' .. ARGV[{4 + i}]" for i in range(inodes))
    records = "".join(f", whole(known[{2 + i}])" for i in range(inodes))
    return (f"local known = call('MGET', P .. ARGV[1]{keys})\n"
            f"return answer(known[1]{records}, unpack(ARGV, 4))\n")


KNOWN = set("""and break do else elseif end false for function if in local nil not or repeat return then
    true until while KEYS ARGV redis cmsgpack struct bit string math table ipairs pairs tonumber tostring type
    unpack""".split())


def check(path, text):
    """Exits when a name is not declared: Redis would report it only when the line is executed."""
    text = re.sub(r"'(?:[^'\\]|\\.)*'", "''", text)
    text = re.sub(r"--.*", "", text)
    declared = set()
    for form in (r"\blocal (?:function )?([\w, ]+)", r"\bfunction\s*\w*\(([^)]*)\)", r"\bfor ([\w, ]+?) (?:=|in\b)"):
        for names in re.findall(form, text):
            declared |= set(re.findall(r"\w+", names))
    text = re.sub(r"[{,]\s*\w+ = ", " ", text)  # fields
    words = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))
    unknown = words - declared - KNOWN
    if unknown:
        sys.exit(f"{path}: not declared: {' '.join(sorted(unknown))}")


def compose(path):
    with open(path, encoding="ascii") as f:
        next(f)
        kind, _, libs = f.readline().strip().lstrip("- ").partition(":")
    kind, _, inodes = kind.partition(" ")
    if kind not in ("read", "write", "bare"):
        sys.exit(f"{path}: the second line must be '-- read: ...', '-- write: ...' or '-- bare: ...'")
    lib = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")
    if kind == "bare":
        files = [os.path.join(lib, n + ".lua") for n in libs.split()]
        return kind, "".join(p for n in [*files, path, os.path.join(lib, "noted.lua")] for p in source(n))
    write = kind == "write"
    names = ["base"] + (["log"] if write else []) + libs.split()
    parts = [p for n in names for p in source(os.path.join(lib, n + ".lua"))] + source(path)
    if write:
        parts += source(os.path.join(lib, "answer.lua"))
    *parts, last = used(simplify(parts + [ending(write, int(inodes or 0))]))
    return kind, nested(within(parts, last), last)


def quote(text):
    out = []
    for line in text.splitlines():
        out.append('"' + line.replace("\\", "\\\\").replace('"', '\\"') + '\\n"')
    return "\n\t\t".join(out)


def main():
    what, out, files = sys.argv[1], sys.argv[2], sys.argv[3:]
    lines = ["/* Made from meta/redis/ by embed.py. */"]
    if what == "h":
        lines += ["#ifndef CFS_META_REDIS_SCRIPTS_H", "#define CFS_META_REDIS_SCRIPTS_H",
                  "#include <stdbool.h>", "#include <stddef.h>",
                  "struct rds_script { const char *name; bool writes, bare; char sha[41]; "
                  "const char *text; size_t len; };"]
    else:
        lines.append('#include "scripts.h"')
    for path in sorted(files):
        name = os.path.splitext(os.path.basename(path))[0]
        if what == "h":
            lines.append(f"extern const struct rds_script rds_{name}_lua;")
            continue
        kind, text = compose(path)
        check(path, text)
        sha = hashlib.sha1(text.encode()).hexdigest()
        lines.append(f'const struct rds_script rds_{name}_lua = {{"{name}", '
                     f'{str(kind != "read").lower()}, {str(kind == "bare").lower()}, '
                     f'"{sha}",\n\t\t{quote(text)}, {len(text)}}};')
    if what == "h":
        lines.append("#endif")
    with open(out, "w", encoding="ascii") as f:
        f.write("\n".join(lines) + "\n")


main()
