#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes scripts.c or scripts.h of the Lua files: embed.py c|h OUTPUT FILE.lua...

The second line of an operation's file says what it needs:
    -- read: attr            answers only
    -- write: rules          changes something; its answer is remembered (lib/answer.lua)
    -- write 2: attr rules   its first two arguments are numbers of inodes: their records, read
                             together with the remembered answer, come before the arguments
    -- bare: optimistic      changes something; is the whole script with these files before it and
                             its end (lib/noted.lua) behind it, as they are
Names are those of files in lib/, put before it in this order. It defines op(arguments...).

A script runs from its first line each time and makes its functions anew, which costs the server more
than most of what they do. So functions that only return an expression are put where they are called,
and of the others those that are used are taken along. They stand in a function of their own: what one
needs of the lines outside is copied, where among its neighbours it would be searched for.
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


def closing(text, at):
    """Behind the bracket that closes the one before `at`, and the arguments between them."""
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
    """Its value, or values, are those of a call or a bracket: it needs none around it."""
    m = re.match(r"[\w.]*\(", text)
    return m is not None and closing(text, m.end())[0] == len(text)


def put_in_place(text, simple):
    """The text with calls of the functions of `simple` ({name: (parameters, expression)}) replaced by
    their expressions. A call stays when an argument that is more than a name is used twice."""
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
    """Functions of one expression where they are called. Each may speak of those before it."""
    simple, out = {}, []
    for part in parts:
        head, line_end, body = part.partition("\n")
        m = re.fullmatch(r"local function (\w+)\(([\w, ]*)\)", head)
        part = head + line_end + put_in_place(body, simple) if m else put_in_place(part, simple)
        body = re.fullmatch(r"return (.*)\nend\n", part.partition("\n")[2], re.DOTALL)
        if m and m[1] != "op" and body and "function" not in body[1]:
            result = body[1].replace("\n", " ")
            simple[m[1]] = (re.findall(r"\w+", m[2]),
                            result if is_one_call(result) else f"({result})")
        out.append(part)
    return out


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
    return [parts[i] for i in sorted(needed)]


def within(parts, last):
    """A function that only one other function speaks of is made in that one, when it runs."""
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
    """The constants, and a function with the others in it that does what the last one says."""
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
    """Redis finds a name that nothing declares only when a script gets there."""
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
