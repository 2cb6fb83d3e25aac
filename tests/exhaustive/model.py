# SPDX-License-Identifier: Apache-2.0
"""The allowed behaviour of a file system: an executable model, to be read.

A `State` is a small tree. A request is a function that returns the states it goes through, one
for each step that is atomic, and its answer. From these follow, for a set of states that are
possible before a request:

    carried_out   the states after it, for an answer that was seen
    restarted     the process died: bytes that were accepted and not committed are gone, but for the
                  first of them, and who wrote them will be told
    failed        one call of the request failed: what it had done so far stays
    cut_short     nothing followed the request: any number of its steps were done

Bytes are accepted by a write (`late`), and committed by a flush, an fsync, or any request that
needs them; the commits of one file keep their order. A committed byte survives the death of the
process. It survives a power failure when it is firm: written and synced, or not written but made
zero. One that replaces a firm byte is firm, too.

With close=committing a close is answered before its commits, which end before the next request: as after
the close of a mount that commits at once, unless something happens in between (`closed_early`). Bytes that are
lost then are reported by an fsync; the unmount may report them, too. A rename that would put the file in the
place of another one fails and does nothing; the unmount may still report the loss.

A mode that is set while a file has late bytes is late as well: it is committed with the first of them,
or ahead of them, before a request that needs it.
"""

import errno
import itertools
from dataclasses import dataclass, replace

SOFT, FIRM, HOLE = 0, 1, 2

committing = False  # as close=committing


@dataclass(frozen=True)
class Inode:
    kind: str  # "f", "d", "l"
    mode: int
    data: bytes = b""  # committed; of a symbolic link its target
    firm: bytes = b""  # SOFT, FIRM or HOLE for each byte of data
    late: tuple = ()  # (offset, bytes), oldest first
    late_mode: int = -1  # set since; -1: none
    xattrs: tuple = ()
    lost: str = "no"  # bytes were lost and fsync has not said so: "no", "maybe", "yes"

    @property
    def length(self):
        """As its writer sees it."""
        return max([len(self.data)] + [off + len(b) for off, b in self.late])


@dataclass(frozen=True)
class State:
    names: tuple = ()  # (path, number), sorted
    inodes: tuple = ()  # (number, Inode), sorted
    fds: tuple = ()  # (descriptor, number), sorted
    hurt: bool = False  # a call has failed: requests on data may fail for that, later, too

    # -- reading

    def at(self, path):
        return dict(self.names).get(path)

    def inode(self, number):
        return dict(self.inodes)[number]

    def open(self, fd):
        return dict(self.fds).get(fd)

    def parent_is_there(self, path):
        up = path.rpartition("/")[0]
        return not up or (self.at(up) is not None and self.inode(self.at(up)).kind == "d")

    # -- changes

    def set(self, number, **what):
        inodes = dict(self.inodes)
        inodes[number] = replace(inodes[number], **what)
        return replace(self, inodes=tuple(sorted(inodes.items())))

    def add(self, path, inode):
        number = max([n for n, _ in self.inodes] + [0]) + 1
        return replace(
            self,
            inodes=self.inodes + ((number, inode),),
            names=tuple(sorted(self.names + ((path, number),))),
        )

    def forget(self, number):
        """Late bytes and a late mode are lost."""
        return self.set(number, late=(), late_mode=-1)

    def rename(self, changes):
        """changes: path -> number, or None. Inodes without name and descriptor end."""
        names = {**dict(self.names), **changes}
        names = {p: n for p, n in names.items() if n is not None}
        return replace(self, names=tuple(sorted(names.items()))).without_ended()

    def with_fd(self, fd, number):
        fds = {**dict(self.fds), fd: number}
        fds = {f: n for f, n in fds.items() if n is not None}
        return replace(self, fds=tuple(sorted(fds.items()))).without_ended()

    def without_ended(self):
        used = {n for _, n in self.names} | {n for _, n in self.fds}
        return replace(self, inodes=tuple((n, i) for n, i in self.inodes if n in used))


# ---- bytes ----


def put(inode, off, data, firm=SOFT):
    """Committed: data at off. firm: of the bytes that replace none that are firm."""
    have, old = inode.data, inode.firm
    if len(have) < off + len(data):
        grown = off + len(data) - len(have)
        have, old = have + bytes(grown), old + bytes([HOLE]) * grown
    was = old[off : off + len(data)]
    now = bytes(FIRM if w == FIRM else firm for w in was)
    end = off + len(data)
    return {"data": have[:off] + data + have[end:], "firm": old[:off] + now + old[end:]}


def with_mode(state, number):
    """Commits a late mode."""
    mode = state.inode(number).late_mode if number else -1
    return [state.set(number, mode=mode, late_mode=-1)] if mode >= 0 else []


def commits(state, number):
    """Commits what is late, a write at a time."""
    out = []
    while state.inode(number).late:
        inode = state.inode(number)
        off, data = inode.late[0]
        state = newest(state, with_mode(state, number))
        state = state.set(number, late=inode.late[1:], **put(inode, off, data))
        out.append(state)
    return out


def commits_of_fd(state, fd):
    number = state.open(fd)
    return number, commits(state, number)


def newest(state, steps):
    return steps[-1] if steps else state


# ---- requests: (state, arguments) -> (states it goes through, answer) ----


def create(s, path, fd, mode):
    if s.at(path):
        return [], -errno.EEXIST
    if not s.parent_is_there(path):
        return [], -errno.ENOENT
    made = s.add(path, Inode("f", int(mode, 8)))
    return [made, made.with_fd(fd, made.at(path))], 0


def open_(s, path, fd):
    if not s.at(path):
        return [], -errno.ENOENT
    steps = with_mode(s, s.at(path))
    return [*steps, newest(s, steps).with_fd(fd, s.at(path))], 0


def mkdir(s, path, mode):
    if s.at(path):
        return [], -errno.EEXIST
    return [s.add(path, Inode("d", int(mode, 8)))], 0


def symlink(s, target, path):
    if s.at(path):
        return [], -errno.EEXIST
    return [s.add(path, Inode("l", 0o777, target.encode()))], 0


def link(s, path, to):
    if not s.at(path):
        return [], -errno.ENOENT
    if s.at(to):
        return [], -errno.EEXIST
    steps = with_mode(s, s.at(path))
    return [*steps, newest(s, steps).rename({to: s.at(path)})], 0


def rename(s, path, to):
    if not s.at(path) or not s.parent_is_there(to):
        return [], -errno.ENOENT
    steps = with_mode(s, s.at(path))
    if s.at(path) == s.at(to):
        return steps, 0
    return [*steps, newest(s, steps).rename({path: None, to: s.at(path)})], 0


def exchange(s, path, to):
    if not s.at(path) or not s.at(to):
        return [], -errno.ENOENT
    steps = with_mode(s, s.at(path))
    steps += with_mode(newest(s, steps), s.at(to))
    return [*steps, newest(s, steps).rename({path: s.at(to), to: s.at(path)})], 0


def unlink(s, path):
    if not s.at(path):
        return [], -errno.ENOENT
    return [s.rename({path: None})], 0


def rmdir(s, path):
    if not s.at(path):
        return [], -errno.ENOENT
    if any(p.startswith(path + "/") for p, _ in s.names):
        return [], -errno.ENOTEMPTY
    return [s.rename({path: None})], 0


def chmod(s, path, mode):
    if not s.at(path):
        return [], -errno.ENOENT
    late = s.inode(s.at(path)).late
    return [s.set(s.at(path), **{"late_mode" if late else "mode": int(mode, 8)})], 0


def setxattr(s, path, name, value):
    if not s.at(path):
        return [], -errno.ENOENT
    xattrs = {**dict(s.inode(s.at(path)).xattrs), name: value}
    steps = with_mode(s, s.at(path))
    return [*steps, newest(s, steps).set(s.at(path), xattrs=tuple(sorted(xattrs.items())))], 0


def write(s, fd, off, length, byte):
    number = s.open(fd)
    if not number:
        return [], -errno.EBADF
    late = s.inode(number).late + ((int(off), byte.encode() * int(length)),)
    return [s.set(number, late=late)], 0


def append(s, fd, length, byte):
    number = s.open(fd)
    return write(s, fd, s.inode(number).length if number else 0, length, byte)


def truncate(s, fd, length):
    if not s.open(fd):
        return [], -errno.EBADF
    number, steps = commits_of_fd(s, fd)
    s, length = newest(s, steps), int(length)
    have = s.inode(number)
    more = max(0, length - len(have.data))
    data, firm = have.data[:length] + bytes(more), have.firm[:length] + bytes([HOLE]) * more
    return [*steps, s.set(number, data=data, firm=firm)], 0


def fallocate(s, fd, off, length):
    end = int(off) + int(length)
    if s.open(fd) and s.inode(s.open(fd)).length >= end:
        return commits_of_fd(s, fd)[1], 0
    return truncate(s, fd, end)


def punch(s, fd, off, length):
    if not s.open(fd):
        return [], -errno.EBADF
    number, steps = commits_of_fd(s, fd)
    s, off = newest(s, steps), int(off)
    have = s.inode(number)
    end = min(off + int(length), len(have.data))
    if off >= end:
        return steps, 0
    data = have.data[:off] + bytes(end - off) + have.data[end:]
    firm = have.firm[:off] + bytes([HOLE]) * (end - off) + have.firm[end:]
    return [*steps, s.set(number, data=data, firm=firm)], 0


def copy(s, fd, off, to_fd, to, length):
    if not s.open(fd) or not s.open(to_fd):
        return [], -errno.EBADF
    source, steps = commits_of_fd(s, fd)
    target, more = commits_of_fd(newest(s, steps), to_fd)
    steps += more
    s, off, to = newest(s, steps), int(off), int(to)
    have = s.inode(source)
    end = min(off + int(length), len(have.data))
    if off >= end:
        return steps, 0
    changed = put(s.inode(target), to, have.data[off:end])
    was = s.inode(target).firm.ljust(to + end - off, bytes([HOLE]))
    firm = bytes(FIRM if w == FIRM else h for w, h in zip(was[to:], have.firm[off:end]))
    changed["firm"] = changed["firm"][:to] + firm + changed["firm"][to + end - off :]
    return [*steps, s.set(target, **changed)], end - off


def fsync(s, fd):
    if not s.open(fd):
        return [], -errno.EBADF
    number, steps = commits_of_fd(s, fd)
    s = newest(s, steps)
    firm = bytes(HOLE if f == HOLE else FIRM for f in s.inode(number).firm)
    return [*steps, s.set(number, firm=firm)], 0


def flush(s, fd):
    return (commits_of_fd(s, fd)[1], 0) if s.open(fd) else ([], -errno.EBADF)


def close_together(s, *fds):
    steps = []
    if not all(map(s.open, fds)):
        return [], -errno.EBADF
    for fd in fds:
        steps += commits_of_fd(newest(s, steps), fd)[1]
    return steps, 0


def release(s, fd):
    if not s.open(fd):
        return [], -errno.EBADF
    steps = commits_of_fd(s, fd)[1]
    return [*steps, newest(s, steps).with_fd(fd, None)], 0


def unmount(s):
    steps = []
    for fd, _ in s.fds:
        steps += release(newest(s, steps), fd)[0]
    return steps, 0


REQUESTS = {f.__name__.rstrip("_").replace("_", "-"): f for f in (
    create, open_, mkdir, symlink, link, rename, exchange, unlink, rmdir, chmod, setxattr, write, append, truncate,
    fallocate, punch, copy, fsync, flush, close_together, release, unmount)}
ON_DATA = ("write", "append", "truncate", "fallocate", "punch", "copy", "fsync", "flush", "close-together", "unmount")
COMMIT_FIRST = ("truncate", "fallocate", "punch", "copy")


def steps_of(state, request):
    name, *args = request.split(" ")
    return REQUESTS[name](state, *args)


# ---- what may be ----


def is_close(request):
    return request.split(" ")[0] in ("flush", "release", "close-together")


def closed_early(states, request):
    """A close was answered, and some of its commits were made."""
    out = set()
    for s in states:
        name, *fds = request.split(" ")
        for after in [s, *close_together(s, *fds)[0]] if all(map(s.open, fds)) else []:
            out.add(after.with_fd(fds[0], None) if name == "release" else after)
    return out


def replaces(state, request):
    """The files that a rename puts in the place of others."""
    name, *paths = request.split(" ")
    numbers = [dict(state.names).get(p) for p in paths] if name in ("rename", "exchange") else [None]
    return [] if None in numbers else numbers[: 2 if name == "exchange" else 1]


def told(before, state, request):
    """The lost bytes of the files of a request: (what it may say, the state after it)."""
    name, *args = request.split(" ")
    lost = [n for n in replaces(before, request) if committing and before.inode(n).lost != "no"]
    if lost:
        known = before.inode(lost[0]).lost == "yes" and lost[0] not in dict(before.fds).values()
        return {-errno.EIO} | (set() if known else {0}), before.set(lost[0], lost="maybe")
    if name == "unmount":
        lost = {before.inode(n).lost for _, n in before.fds}
        closed = {i.lost for n, i in before.inodes if n not in dict(before.fds).values()} if committing else set()
        if not (lost | closed) - {"no"}:
            return {0}, state
        return {-errno.EIO} | ({0} if "yes" not in lost else set()), state
    numbers = [n for n in map(state.open, args) if n] if name in ("fsync", "flush", "close-together") else []
    lost = {state.inode(n).lost for n in numbers} - {"no"}
    if not lost:
        return {0}, state
    may = {-errno.EIO} if "yes" in lost else {0, -errno.EIO}
    return may, state.set(numbers[0], lost="no") if name == "fsync" else state


def carried_out(states, request, answer):
    """The states after a request that gave this answer; none: it must not have."""
    out = set()
    for s in states:
        steps, right = steps_of(s, request)
        after = newest(s, steps)
        may, heard = told(s, after, request)
        if right == 0 and answer in may:
            out.add(heard if answer else after)
        elif right != 0 and answer == right:
            out.add(after)
        if s.hurt and answer == -errno.EIO and request.split(" ")[0] in ON_DATA:
            out |= failed([s], request, answer)
    return out


def restarted(states):
    """The process died, and another one goes on."""
    out = set()
    ahead = {newest(s, with_mode(s, n)) for s in states for n, i in s.inodes if i.late_mode >= 0}
    for s in set(states) | ahead:
        with_late = [n for n, i in s.inodes if i.late]
        for kept in itertools.product(*(range(len(s.inode(n).late) + 1) for n in with_late)):
            after = s
            for n, k in zip(with_late, kept):
                inode = s.inode(n)
                part = s.set(n, late=inode.late[:k])
                done = newest(part, commits(part, n)).inode(n)
                lost = "yes" if k < len(inode.late) or inode.lost == "yes" else "maybe"
                after = after.set(n, data=done.data, firm=done.firm, mode=done.mode, lost=lost).forget(n)
            out.add(after)
    return out


def without_late(state, request):
    """The bytes that it commits first could not be stored: the next fsync, and each close before it, will say so."""
    late = [n for n, i in state.inodes if i.late]
    if not late or request.split(" ")[0] not in COMMIT_FIRST:
        return []
    for n in late:
        state = state.forget(n).set(n, lost="yes")
    return [state]


def without_first(state, number):
    """The first late writes could not be stored, and the others were: their uploads began after the failure."""
    late, out = state.inode(number).late, set()
    for k in range(1, len(late)):
        rest = state.set(number, late=late[k:], lost="yes")
        out.add(newest(rest, commits(rest, number)))
    return out


def failed(states, request, answer):
    """One call failed in it, and it answered that, or did without."""
    out = set()
    for s in states:
        steps, right = steps_of(s, request)
        if answer != -errno.EIO:
            out |= carried_out([s], request, answer)
            out |= carried_out(without_late(s, request), request, answer)
            if not (committing and is_close(request)):
                continue
            steps = closed_early([s], request)
        for after in [s, *steps]:
            out.add(after)
            # Bytes that could not be stored are dropped: this answer says so, but a close is
            # not what fsync has to say.
            for n, i in after.inodes:
                if i.late:
                    lost = "no" if request.startswith("fsync") else "yes"
                    out.add(after.forget(n).set(n, lost=lost))
                    out |= without_first(after, n) if committing else set()
    return {replace(s, hurt=True) for s in out}


def cut_short(states, request):
    """Nothing came after it: any number of its steps were done."""
    out = set()
    for s in states:
        for after in [s, *steps_of(s, request)[0]]:
            for gone in restarted([after]):
                out.add(gone)
    return out


# ---- what a later mount sees ----


def visible(state, power=False):
    """path -> (kind, mode, names, length, content, xattrs). content: bytes, None for those that
    may be anything after a power failure."""
    out = {}
    numbers = dict(state.names)
    for path, n in numbers.items():
        i = state.inode(n)
        same = sorted(p for p, m in numbers.items() if m == n)
        if i.kind == "d":
            below = [p for p, m in numbers.items() if p.rpartition("/")[0] == path and state.inode(m).kind == "d"]
            out[path] = ("d", i.mode, 2 + len(below), 4096, (), i.xattrs)
            continue
        soft = power and SOFT in i.firm
        content = tuple(None if f == SOFT else b for b, f in zip(i.data, i.firm)) if soft else i.data
        out[path] = (i.kind, i.mode, tuple(same), len(i.data), content, i.xattrs)
    return out


def agrees(seen, allowed):
    """Whether what was seen is what the state allows."""
    if seen.keys() != allowed.keys():
        return False
    for path, (kind, mode, names, length, content, xattrs) in allowed.items():
        have = seen[path]
        if have[:4] != (kind, mode, names, length) or have[5] != xattrs:
            return False
        if have[4] != content and (
            isinstance(content, bytes) or any(c is not None and c != h for c, h in zip(content, have[4]))
        ):
            return False
    return True
