# SPDX-License-Identifier: Apache-2.0
"""The states of a directory that are allowed after a power failure, from marks of the program that used it.

Each actor works in a directory of its own, one operation after the other. Before each it writes a mark that
says what it will do, and behind its answer another one. From these:

- Names change in the order of the operations. After a power failure they are as they were after one of
  them: not earlier than the last one that an answered fsync followed, of a file or of the directory.
- A file has the bytes of its last answered fsync. Later changes (writes, truncations) may be there,
  in part or not at all; only bytes that were never synced may be unreadable.

A mark is {"t": actor, "op": ...} before an operation, {"t": actor, "ok": ...} after it."""

import random

PAGE = 4096


def bytes_of(seed, length):
    return random.Random(seed).randbytes(length)


def put(content, off, data):
    if len(content) < off:
        content.extend(bytes(off - len(content)))
    content[off : off + len(data)] = data


def cut(content, size):
    if len(content) > size:
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


class File:
    def __init__(self):
        self.synced, self.live = bytearray(), bytearray()
        self.later = []  # (offset, bytes) or (size, None)

    def change(self, off, data):
        self.later.append((off, data))
        if data is None:
            cut(self.live, off)
        else:
            put(self.live, off, data)

    def copy(self):
        other = File()
        other.synced, other.live, other.later = self.synced[:], self.live[:], self.later[:]
        return other

    def sync(self):
        self.synced, self.later = bytearray(self.live), []

    def wrong(self, size, content, unreadable):
        """A complaint about these bytes, or None; unreadable: offsets of pages that gave an error."""
        sizes = [len(self.synced)]
        for off, data in self.later:
            sizes.append(off if data is None else max(sizes[0], off + len(data)))
        if not min(sizes) <= size <= max(sizes):
            return "%d bytes long, of %d..%d" % (size, min(sizes), max(sizes))
        changed = bytearray(max(size, *sizes))
        for off, data in self.later:
            if data is None:
                changed[off:] = b"\1" * (len(changed) - off)
            else:
                changed[off : off + len(data)] = b"\1" * len(data)
        changed[len(self.synced) :] = b"\1" * (len(changed) - len(self.synced))
        for page in unreadable:
            if 0 in changed[page : min(page + PAGE, size)]:
                return "synced bytes of the page at %d cannot be read" % page
        lost = set()
        for page in unreadable:
            lost.update(range(page, page + PAGE))
        if content == self.live[:size] and not unreadable:
            return None
        for i in range(size):
            if i in lost:
                continue
            was = self.synced[i] if i < len(self.synced) else 0
            if content[i] == was:
                continue
            if not changed[i]:
                return "wrong synced byte at %d" % i
            if not self.may(i, content[i]):
                return "a byte at %d that was never written there" % i
        return None

    def may(self, i, value):
        for off, data in self.later:
            if data is None:
                if off <= i and not value:
                    return True
            elif off <= i < off + len(data) and data[i - off] == value:
                return True
        return False


class Actor:
    def __init__(self):
        self.states = [{}]  # of names, from the last durable one on; None: a file of unknown number
        self.files = {}
        self.doing = None

    def copy(self):
        other = Actor()
        other.states, other.doing = [dict(s) for s in self.states], self.doing
        other.files = {ino: f.copy() for ino, f in self.files.items()}
        return other

    def begin(self, op, *args):
        self.doing = op, args
        names = dict(self.states[-1])
        if op == "create":
            names[args[0]] = None
        elif op == "rename":
            names[args[1]] = names.pop(args[0])
        elif op == "link":
            names[args[1]] = names[args[0]]
        elif op == "unlink":
            del names[args[0]]
        elif op == "write":
            self.files[args[0]].change(args[1], bytes_of(args[3], args[2]))
            return
        elif op == "copy":
            source, off, target, to, length = args
            self.files[target].change(to, bytes(self.files[source].live[off : off + length]))
            return
        elif op == "truncate":
            self.files[args[0]].change(args[1], None)
            return
        else:
            return
        self.states.append(names)

    def end(self, answer):
        op, args = self.doing
        self.doing = None
        if op == "create":
            self.states[-1][args[0]] = answer
            self.files[answer] = File()
        elif op in ("fsync", "fsyncdir"):
            del self.states[:-1]
            if op == "fsync":
                self.files[args[0]].sync()

    def wrong(self, seen):
        """seen: name -> (inode number, size, bytes, unreadable pages)."""
        out = []
        have = {name: f[0] for name, f in seen.items()}
        if not any(self.same(have, names) for names in self.states):
            near = min(self.states, key=lambda names: len(set(names.items()) ^ set(have.items())))
            out.append("names: missing %s, not expected %s (%d states allowed)" % (
                dict(set(near.items()) - set(have.items())), dict(set(have.items()) - set(near.items())), len(self.states)))
        for name, (ino, size, content, unreadable) in sorted(seen.items()):
            file = self.files.get(ino)
            bad = file.wrong(size, content, unreadable) if file else "not empty" if size else None
            if bad:
                out.append("%s (inode %d): %s" % (name, ino, bad))
        return out

    def same(self, have, names):
        return have.keys() == names.keys() and all(
            names[n] == ino or names[n] is None and ino not in self.files for n, ino in have.items()
        )


class Promises:
    """The promises that hold at one moment of the marks."""

    def __init__(self, actors):
        self.actors = {t: Actor() for t in actors}

    def take(self, mark):
        if "op" in mark:
            self.actors[mark["t"]].begin(*mark["op"])
        elif "ok" in mark:
            self.actors[mark["t"]].end(mark["ok"])

    def unsynced(self, ino):
        """Whether some bytes of this file, or the file, were never promised."""
        files = [a.files[ino] for a in self.actors.values() if ino in a.files]
        return not files or bool(files[0].later)

    def wrong(self, seen):
        return ["%s: %s" % (t, bad) for t, a in self.actors.items() for bad in a.wrong(seen.get(t, {}))]
