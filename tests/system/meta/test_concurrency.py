# SPDX-License-Identifier: Apache-2.0
"""Many processes on two mounts, the same changes on every engine, hostile names. A failure here is
a volume that two machines damage between them, or that depends on the database it is in."""

import collections
import contextlib
import errno
import hashlib
import itertools
import os
import pathlib
import random
import stat
import sys
import time

import pytest

import cachefs_check
import servers
from cachefs import SLOW, Volume, need_engine

ENGINES = ["sqlite", "redis", "postgres", "mysql"]
FRESH = "attr-cache=0,entry-cache=0,dir-entry-cache=0"
LONG = bool(os.environ.get("CACHEFS_LONG"))
SECONDS = 600 if LONG else 12
PROCESSES = 8 if LONG else 4  # of each mount


def engine_volume(ws, engine, name="vol", **options):
    if engine == "sqlite":
        return ws.volume(name, **options)
    need_engine(engine)
    db = servers.ENGINES[engine][0]().database()
    ws.cleanups.append(db.drop)
    return Volume(ws, name, url=db.url, **options)


def judge(volume, mounts):
    """After a clean unmount the checker finds nothing."""
    for m in mounts:
        m.umount()
    url = volume.url
    found, _ = cachefs_check.check(url, str(volume.bucket), cachefs_check.Options(unmounted=True))
    assert not found, "\n".join("%s: %s" % f for f in found[:20])


# ---------------------------------------------------------------- a directory that one has just made


def make_names(mount, directory, prefix, until):
    """Files, as an archive is unpacked."""
    for i in itertools.count():
        if until():
            return
        with open(mount / directory / ("%s%d" % (prefix, i)), "x"):
            pass


@pytest.mark.parametrize("engine", ENGINES)
def test_names_in_a_new_directory(ws, engine):
    """Its maker answers absent names from memory. Names of the other mount are missed for a second at
    most, never overwritten, and seen by a program that waits for them."""
    v = engine_volume(ws, engine)
    a, b = v.mount(), v.mount()

    def new(directory):
        os.mkdir(a / directory)
        before = a.stat("new_dir_absent_total")
        deadline = time.monotonic() + 20 * SLOW

        def answered():
            assert time.monotonic() < deadline, "every name is looked up"
            return a.stat("new_dir_absent_total") > before

        make_names(a, directory, "file", answered)

    new("made")
    (b / "made" / "theirs").write_text("b")
    with open(a / "made" / "theirs", "a+") as f:  # O_CREAT
        f.seek(0)
        assert f.read() == "b"
    os.mkdir(b / "made" / "dir")
    with pytest.raises(FileExistsError):
        os.mkdir(a / "made" / "dir")
    assert (a / "made" / "dir").is_dir()

    new("awaited")
    (b / "awaited" / "theirs").write_text("b")
    found = [os.path.exists(a / "awaited" / "theirs") for _ in range(3)]
    assert found[-1], found

    new("filled")
    (b / "filled" / "theirs").write_text("b")
    end = time.monotonic() + 1  # trust lasts no longer
    make_names(a, "filled", "more", lambda: time.monotonic() > end)
    assert os.path.exists(a / "filled" / "theirs")
    judge(v, (a, b))


# ---------------------------------------------------------------- random work from both sides

# Which errors an operation may meet when others change the same names. A name may be anything at any
# moment: a file, a directory, a symbolic link (to nothing, to itself), or gone.
# ESTALE: the kernel finds a directory at two places while the other mount moves it (as on NFS). The
# same operation succeeds when it is tried again.
WALK = {"ENOENT", "ENOTDIR", "ELOOP", "ESTALE"}
MAY = {
    "create": WALK | {"EEXIST"},
    "write": WALK | {"EISDIR"},
    "truncate": WALK | {"EISDIR"},
    "read": WALK | {"EISDIR"},
    "mkdir": WALK | {"EEXIST"},
    "rmdir": WALK | {"ENOTEMPTY"},
    "unlink": WALK | {"EISDIR"},
    "link": WALK | {"EEXIST", "EPERM"},  # EPERM: of a directory
    "symlink": WALK | {"EEXIST"},
    "rename": WALK | {"ENOTEMPTY", "EEXIST", "EISDIR", "EINVAL"},
    "list": WALK,
    "stat": WALK,
}
# By trash-days, of a file that the other mount removes between look-up and close (docs/posix.md):
# without trash its data is gone, with trash it takes no more of it. No name of such an inode is left.
REMOVED = {
    0: {"write": {"EIO"}, "truncate": {"EIO"}, "read": {"EIO"}},
    1: {"write": {"EPERM"}, "truncate": {"EPERM"}},
}


def act(rng, root, op):
    def path():
        parts = [rng.choice("abc") for _ in range(rng.randint(0, 2))]
        return "/".join([root, *parts, "n%d" % rng.randint(0, 11)])

    def opened(flags, use):
        """An error of the open file names its inode."""
        fd = os.open(path(), flags, 0o644)
        inode = os.fstat(fd).st_ino
        try:
            try:
                use(fd)
            finally:
                os.close(fd)
        except OSError as e:
            e.inode = inode
            raise

    if op == "create":
        os.close(os.open(path(), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    elif op == "write":
        data, at = rng.randbytes(rng.randint(1, 20_000)), rng.randint(0, 50_000)
        opened(os.O_CREAT | os.O_WRONLY, lambda fd: os.pwrite(fd, data, at))
    elif op == "truncate":
        os.truncate(path(), rng.randint(0, 100_000))
    elif op == "read":
        opened(os.O_RDONLY, lambda fd: os.read(fd, 1 << 20))
    elif op == "mkdir":
        os.mkdir(rng.choice((path(), path()[: -len("/n0")].rstrip("/n") or root)))
    elif op == "rmdir":
        os.rmdir(path())
    elif op == "unlink":
        os.unlink(path())
    elif op == "link":
        os.link(path(), path(), follow_symlinks=False)
    elif op == "symlink":
        os.symlink("n%d" % rng.randint(0, 11), path())
    elif op == "rename":
        os.rename(path(), path())
    elif op == "list":
        os.listdir(os.path.dirname(path()))
    elif op == "stat":
        os.lstat(path())


def attempt(rng, root, op):
    """The error of an operation, or None. ESTALE lasts as long as the kernel's lock of a rename; the kernel of a
    rename holds that lock itself, and finds a directory that was moved only if it is looked up before."""
    state, end = rng.getstate(), time.monotonic() + 10
    while True:
        rng.setstate(state)
        try:
            return act(rng, root, op)
        except OSError as e:
            if e.errno != errno.ESTALE or time.monotonic() > end:
                return e
            for path in filter(None, (e.filename, e.filename2)):
                with contextlib.suppress(OSError):
                    os.lstat(path)
        time.sleep(0.001)


def worker(root, seed, seconds, trash_days):
    """Prints a line per inode that the other mount has removed, and per unexpected error."""
    rng, ops = random.Random(seed), sorted(MAY)
    end, done, bad = time.monotonic() + seconds, 0, collections.Counter()
    by_path = 0
    while time.monotonic() < end:
        op = rng.choice(ops)
        done += 1
        error = attempt(rng, root, op)
        if error is None:
            continue
        name = errno.errorcode[error.errno]
        if name == "ESTALE":
            bad["%s: ESTALE for ten seconds" % op] += 1
        elif name in REMOVED[trash_days].get(op, ()):
            by_path += not hasattr(error, "inode")
            print("REMOVED %d %s: %s" % (getattr(error, "inode", 0), op, name))
        elif name not in MAY[op]:
            bad["%s: %s" % (op, name)] += 1
    print("DONE %d" % done)
    if by_path > 5 + done / 1000:
        print("BAD %d of %d operations met a change of the other mount" % (by_path, done))
    for text, n in bad.items():
        print("BAD %s, %d times" % (text, n))


def names_of_inodes(root):
    names = {}
    for folder, _, files in os.walk(root):
        for name in files:
            full = os.path.join(folder, name)
            names.setdefault(os.lstat(full).st_ino, []).append(full)
    return names


def random_work(ws, mounts, trash_days, seconds=SECONDS):
    """Fails when an operation ends as it may not. Returns how many there were."""
    for d in "abc":
        for e in "abc":
            os.makedirs(mounts[0] / d / e)
    if trash_days == 0:
        for m in mounts:
            m.allow("an object is missing")  # of a file that the other mount has removed
    code = "import sys; sys.path[:0] = sys.argv[5:]; import test_concurrency as t; "
    code += "t.worker(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))"
    runs = [
        ws.popen(
            [sys.executable, "-c", code, m, i * 100 + k, seconds, trash_days, *sys.path],
            stdout=-1,
            stderr=-1,
            text=True,
        )
        for k in range(PROCESSES)
        for i, m in enumerate(mounts)
    ]
    bad, removed, done = [], [], 0
    for p in runs:
        out, err = p.communicate(timeout=(seconds + 60) * SLOW)
        assert p.returncode == 0, err
        print(out)
        for line in out.splitlines():
            word, rest = line.split(" ", 1)
            if word == "DONE":
                done += int(rest)
            else:
                (bad if word == "BAD" else removed).append(rest)
    names = names_of_inodes(mounts[0].path)
    for line in removed:
        inode, what = line.split(" ", 1)
        bad += ["%s, but it has a name: %s" % (what, path) for path in names.get(int(inode), ())]
    assert not bad, "\n".join(sorted(set(bad)))
    assert done > 20 * len(runs)
    return done


@pytest.mark.deadline(SECONDS * 2 + 150)
@pytest.mark.parametrize("trash_days", [0, 1])
@pytest.mark.parametrize("engine", ENGINES)
def test_random_work_on_two_mounts(ws, engine, trash_days):
    vol = engine_volume(ws, engine, trash_days=trash_days)
    mounts = [vol.mount(FRESH), vol.mount(FRESH)]
    print(engine, "operations:", random_work(ws, mounts, trash_days))
    judge(vol, mounts)


def test_directory_that_the_other_mount_has_moved_is_renamed(volume):
    """Looked up by another call first: a bare rename may be told ESTALE (docs/posix.md)."""
    a, b = volume.mount(FRESH), volume.mount(FRESH)
    for d in "def":
        os.mkdir(a / d)
    os.mkdir(a / "d/x")
    os.rename(b / "d/x", b / "e/x")
    os.lstat(a / "e/x")
    os.rename(a / "e/x", a / "f/x")
    assert os.listdir(b / "f") == ["x"]
    judge(volume, [a, b])


# ---------------------------------------------------------------- what is remembered is out of date


def remembered(m, path):
    """A file, in a directory that the mount has just seen."""
    for name in (path.name + ".before", path.name):
        with open(m / path.parent / name, "xb"):
            pass
    os.unlink(m / path.parent / (path.name + ".before"))



def written(a, b, path):
    with open(b / path, "wb") as f:
        f.write(b"x" * 5000)
    os.unlink(a / path)
    return []


def linked(a, b, path):
    os.link(b / path, b / path.with_suffix(".link"))
    os.unlink(a / path)
    return [path.name + ".link"]


def renamed(a, b, path):
    os.rename(b / path, b / path.with_suffix(".new"))
    with pytest.raises(FileNotFoundError):
        os.unlink(a / path)
    return [path.name + ".new"]


def replaced(a, b, path):
    os.rename(b / path, b / path.with_suffix(".old"))
    with open(b / path, "xb"):
        pass
    os.unlink(a / path)
    return [path.name + ".old"]


def attributed(a, b, path):
    os.setxattr(b / path, "user.a", b"1")
    os.unlink(a / path)
    return []


def given_away(a, b, path):
    os.chown(b / path, 1234, 1234)
    os.unlink(a / path)
    return []


def group_inherited(a, b, path):
    os.chown(b / path.parent, 0, 4321)
    os.chmod(b / path.parent, 0o2777)
    with open(a / path.with_suffix(".next"), "xb"):
        pass
    assert os.stat(b / path.with_suffix(".next")).st_gid == 4321
    return [path.name, path.name + ".next"]


def seen_by(m, path):
    st = os.lstat(m / path)
    return stat.S_IMODE(st.st_mode), st.st_uid, st.st_gid, st.st_mtime, st.st_size


def times_set(a, b, path):
    with open(b / path, "wb") as f:
        f.write(b"x" * 5000)
    for p in path, path.parent:
        os.chown(b / p, 1234, 4321)
        os.chmod(b / p, 0o2751)
        os.utime(a / p, (1000, 2000))
        assert seen_by(a, p) == seen_by(b, p)
        assert seen_by(b, p)[:4] == (0o2751, 1234, 4321, 2000)
    assert seen_by(a, path)[4] == 5000
    return [path.name]


def grown(a, b, path):
    """Nothing that the change depends on is different, but the answer is."""
    with open(b / path, "wb") as f:
        f.write(b"x" * 5000)
    os.utime(a / path, (1000, 2000))
    assert seen_by(a, path) == seen_by(b, path)
    assert seen_by(b, path)[3:] == (2000, 5000)
    return [path.name]


def taken_back(a, b, path):
    for p in path, path.parent:
        os.chown(b / p, 1234, 4321)
        os.chmod(b / p, 0o4750)
        os.chown(a / p, 0, 0)
        assert seen_by(a, p)[:3] == seen_by(b, p)[:3] == (0o4750 if p == path.parent else 0o750, 0, 0)
    return [path.name]


def cleared(a, b, path):
    """A chown(2) to the owner that a file has clears its set-id bits, which another mount has set."""
    os.chmod(b / path, 0o4750)
    os.chown(a / path, 0, 0)
    assert seen_by(a, path)[0] == seen_by(b, path)[0] == 0o750
    return [path.name]


def directory_removed(a, b, path):
    os.unlink(b / path)
    os.rmdir(b / path.parent)
    with pytest.raises(FileNotFoundError):
        os.mknod(a / path.with_suffix(".next"))
    return None


@pytest.mark.deadline(180)
@pytest.mark.parametrize("trash_days", [0, 1])
@pytest.mark.parametrize("engine", ENGINES)
def test_changes_of_the_other_mount_are_not_overlooked(ws, engine, trash_days):
    """Engines send attributes seen last. The result follows the state at the time of the change."""
    vol = engine_volume(ws, engine, trash_days=trash_days)
    a, b = vol.mount("attr-cache=60,entry-cache=60,dir-entry-cache=60"), vol.mount(FRESH)
    for i in range(3):
        for change in (
            *(written, linked, renamed, replaced, attributed, given_away),
            *(group_inherited, times_set, grown, taken_back, cleared),
            directory_removed,
        ):
            path = pathlib.PurePath("%s%d" % (change.__name__, i)) / "f"
            os.mkdir(a / path.parent)
            remembered(a, path)
            left = change(a, b, path)
            if left is None:
                assert path.parent.name not in os.listdir(b.path)
            else:
                assert sorted(os.listdir(b / path.parent)) == sorted(left), path
    judge(vol, [a, b])


# ---------------------------------------------------------------- the same changes, the same tree


def tree(root):
    """path -> all that must be equal everywhere; hard links by the names that share an inode."""
    out, inodes = {}, {}
    for folder, dirs, files in os.walk(root):
        for name in dirs + files:
            full = os.path.join(folder, name)
            path = os.path.relpath(full, root)
            st = os.lstat(full)
            size, content = 0, None
            if stat.S_ISREG(st.st_mode):
                size = st.st_size
                with open(full, "rb") as f:
                    content = hashlib.sha256(f.read()).hexdigest()
                inodes.setdefault(st.st_ino, []).append(path)
            elif stat.S_ISLNK(st.st_mode):
                content = os.readlink(full)
            links = st.st_nlink
            if stat.S_ISDIR(st.st_mode):
                links = 2 + sum(e.is_dir(follow_symlinks=False) for e in os.scandir(full))
                assert st.st_nlink in (links, 1), full  # 1: a local file system that does not count
            out[path] = (oct(st.st_mode), links, size, content)
    for names in inodes.values():
        out["links of " + min(names)] = sorted(names)
    return out


def unlike(a, b):
    return [(k, a.get(k), b.get(k)) for k in sorted({*a, *b}) if a.get(k) != b.get(k)]


def replay(root, count, seed=7):
    """The outcome of each operation of a fixed sequence."""
    rng, outcomes = random.Random(seed), []
    for d in "abc":
        for e in "abc":
            os.makedirs("%s/%s/%s" % (root, d, e))
    for i in range(count):
        op = rng.choice(sorted(MAY))
        own = random.Random("%d %d" % (seed, i))
        try:
            act(own, str(root), op)
            outcomes.append((i, op, 0))
        except OSError as e:
            outcomes.append((i, op, errno.errorcode[e.errno]))
    return outcomes


@pytest.mark.deadline(180)
@pytest.mark.parametrize("engine", ENGINES)
def test_same_operations_same_tree(ws, engine):
    # with trash, a removed name may still be one of a file's links
    vol = engine_volume(ws, engine, trash_days=0)
    mnt = vol.mount()
    local = ws.path("local")
    local.mkdir()
    old = os.umask(0o022)
    try:
        want, got = replay(local, 2000), replay(mnt.path, 2000)
    finally:
        os.umask(old)
    assert [(g, w) for g, w in zip(got, want) if g != w] == []
    assert unlike(tree(mnt.path), tree(local)) == []
    mnt = mnt.remount()
    assert unlike(tree(mnt.path), tree(local)) == []
    judge(vol, [mnt])


# ---------------------------------------------------------------- names

NAMES = [
    b"'", b'"', b"`", b"\\", b"\\\\", b"a\\", b"\\'", b"'; DROP TABLE jfs_node; --", b"$1", b"?", b"%s%n",
    b"%", b"_", b"a%b_c", b"*", b"[a-z]", b"{x}", b"{1}", b"x' OR '1'='1", b"]]", b"return redis.call('x')",
    b"\r\n*1\r\n$8\r\nFLUSHALL", b"\n", b"\t", b" ", b"a ", b"a", b"A", b"\x01", b"\x7f", b"\x1a", b"\xff",
    b"\xfe\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xc3\xa9", b"e\xcc\x81", "ß".encode(), b"ss", b"SS",
    "😀".encode(), b"\\x41", b"\\000", b"E'\\x'", b"x" * 255, b"'" * 255, b"\\" * 255, b"\xff" * 255,
    bytes(range(1, 47)) + bytes(range(48, 256)), b"0", b"-1", b"NULL", b":1", b"#", b"/*"[1:] + b"--",
]  # fmt: skip


@pytest.mark.deadline(180)
@pytest.mark.parametrize("trash_days", [0, 1])
@pytest.mark.parametrize("engine", ENGINES)
def test_names_come_back(ws, engine, trash_days):
    vol = engine_volume(ws, engine, trash_days=trash_days)
    a, b = vol.mount(FRESH), vol.mount(FRESH)
    for m in (a, b):
        m.top = os.fsencode(m.path)
    os.mkdir(a.top + b"/d")
    os.mkdir(a.top + b"/e")
    for i, n in enumerate(NAMES):
        with open(a.top + b"/d/" + n, "wb") as f:
            f.write(b"%d" % i)
    assert sorted(os.listdir(b.top + b"/d")) == sorted(NAMES)
    for i, n in enumerate(NAMES):
        with open(b.top + b"/d/" + n, "rb") as f:
            assert f.read() == b"%d" % i, n
        os.rename(b.top + b"/d/" + n, b.top + b"/e/" + n)
        os.link(b.top + b"/e/" + n, b.top + b"/d/" + n)
        os.symlink(n * (4000 // len(n)), b.top + b"/link")
        assert os.readlink(a.top + b"/link") == n * (4000 // len(n)), n
        os.unlink(a.top + b"/link")
    assert sorted(os.listdir(a.top + b"/e")) == sorted(NAMES)
    texts = []
    for n in NAMES:
        try:
            name = "user." + n.decode("utf-8")[:200]
        except UnicodeDecodeError:
            continue
        texts.append(name)
        os.setxattr(a.top + b"/d", name, n)
    assert sorted(os.listxattr(b.top + b"/d")) == sorted(set(texts))
    for name in texts:
        assert os.getxattr(b.top + b"/d", name).decode()[:200] == name[5:], name
        os.removexattr(b.top + b"/d", name)
    assert os.listxattr(a.top + b"/d") == []
    for n in NAMES:
        os.unlink(a.top + b"/e/" + n)
        os.unlink(b.top + b"/d/" + n)
    assert os.listdir(a.top + b"/d") == os.listdir(b.top + b"/e") == []
    judge(vol, [a, b])
