# SPDX-License-Identifier: Apache-2.0
"""Whom an operation is done as, and set-id bits. A failure lets others in, or keeps owners out."""

import contextlib
import errno
import os
import subprocess
import time

import pytest

from cachefs import SLOW
from syscalls import fails, mode, read, user, without_fsetid, write
from test_concurrency import ENGINES, engine_volume
from test_flags import IMMUTABLE, set_flags
from test_special import lines_of

# ---- identities ----


def owner(path):
    st = os.lstat(path)
    return st.st_uid, st.st_gid


def test_umask_option(ws):
    mnt = ws.volume("vol").mount("umask=027")
    os.umask(0)
    try:
        write(mnt / "f", b"")
        os.mkdir(mnt / "d")
        os.close(os.open(mnt / "x", os.O_CREAT | os.O_WRONLY, 0o777))
    finally:
        os.umask(0o022)
    assert (mode(mnt / "f"), mode(mnt / "d"), mode(mnt / "x")) == (0o640, 0o750, 0o750)


@pytest.mark.parametrize(
    "opts", ["umask=8", "umask=01000", "root-squash=1", "root-squash=a:b", "all-squash=1:2:3"]
)
def test_bad_identities_are_refused(ws, volume, opts):
    point = ws.path("m")
    point.mkdir()
    r = ws.run("cachefs", "mount", volume.url, point, "-o", opts)
    assert r.returncode != 0 and opts.split("=")[0] in r.stderr


def test_root_squash(ws):
    vol = ws.volume("vol")
    mnt = vol.mount()
    os.mkdir(mnt / "roots", 0o755)
    write(mnt / "roots/f", b"x")
    os.chmod(mnt / "roots/f", 0o600)
    for name, mode in ("all", 0o777), ("sticky", 0o1777):
        os.mkdir(mnt / name)
        os.chmod(mnt / name, mode)
    os.chmod(mnt.path, 0o755)
    mnt.umount()
    mnt = vol.mount("root-squash=1234:1235")
    write(mnt / "all/f", b"x")
    os.mkdir(mnt / "all/d")
    assert owner(mnt / "all/f") == owner(mnt / "all/d") == (1234, 1235)
    os.chmod(mnt / "all/f", 0o400)
    for fn in (
        lambda: read(mnt / "roots/f"),
        lambda: write(mnt / "roots/new", b""),
        lambda: os.unlink(mnt / "roots/f"),
        lambda: os.rename(mnt / "roots/f", mnt / "all/g"),
        lambda: os.truncate(mnt / "roots/f", 0),
        lambda: write(mnt / "all/f", b"y"),
    ):
        with fails("EACCES"):
            fn()
    for fn in (
        lambda: os.chmod(mnt / "roots/f", 0o777),
        lambda: os.chown(mnt / "all/f", 0, 0),
        lambda: set_flags(mnt / "all/d", IMMUTABLE),
        lambda: os.setxattr(mnt / "all/d", "trusted.x", b""),
    ):
        with fails("EPERM", "EACCES"):
            fn()
    fd = os.open(mnt / "all/new", os.O_CREAT | os.O_RDWR, 0o400)  # its own mode does not bind it
    os.write(fd, b"hello")
    os.ftruncate(fd, 3)
    os.posix_fallocate(fd, 0, 10)
    os.close(fd)
    with user(1000, 1000):
        write(mnt / "sticky/u", b"u")
    assert owner(mnt / "sticky/u") == (1000, 1000)
    with fails("EACCES"):
        write(mnt / "sticky/u", b"not mine")
    with fails("EPERM", "EACCES"):
        os.unlink(mnt / "sticky/u")
    with user(1234, 1235):
        os.unlink(mnt / "all/d/../f")


def test_commands_of_a_squashed_root(ws):
    """clone, rmr and the rest go past the kernel, which takes root for root."""
    vol = ws.volume("vol")
    mnt = vol.mount()
    for name, mode in ("secret", 0o700), ("all", 0o777):
        os.mkdir(mnt / name)
        os.chmod(mnt / name, mode)
    for name, mode in ("secret/f", 0o644), ("hidden", 0o600), ("shown", 0o644):
        write(mnt / name, b"x" * 100)
        os.chmod(mnt / name, mode)
    os.mkdir(mnt / "tree", 0o755)
    write(mnt / "tree/hidden", b"x")
    os.chmod(mnt / "tree/hidden", 0o600)
    os.chmod(mnt.path, 0o755)
    mnt.umount()
    mnt = vol.mount("root-squash=1234:1235")

    def run(*args):
        return ws.run("cachefs", *args, timeout=60)

    for args in (
        ("clone", mnt / "hidden", mnt / "all/c1"),
        ("clone", mnt / "secret", mnt / "all/c2"),
        ("clone", mnt / "tree", mnt / "all/c3"),
        ("clone", mnt / "shown", mnt / "c4"),
        ("clone", "--preserve", mnt / "shown", mnt / "all/c5"),
        ("rmr", "--skip-trash", mnt / "secret"),
        ("rmr", mnt / "hidden"),
        ("summary", mnt / "secret"),
        ("warmup", mnt / "secret"),
    ):
        r = run(*args)
        assert r.returncode != 0 and "ermi" in r.stderr, (args, r.stdout, r.stderr)
    assert os.listdir(mnt / "all") == []
    r = run("clone", mnt / "shown", mnt / "all/mine")
    assert r.returncode == 0, r.stderr
    assert owner(mnt / "all/mine") == (1234, 1235)
    assert read(mnt / "all/mine") == b"x" * 100
    r = run("clone", "--preserve", mnt / "all/mine", mnt / "all/again")
    assert r.returncode == 0, r.stderr
    mnt.umount()
    mnt = vol.mount()
    assert read(mnt / "secret/f") == read(mnt / "hidden") == b"x" * 100
    assert sorted(os.listdir(mnt / "all")) == ["again", "mine"]


def test_all_squash(ws):
    vol = ws.volume("vol")
    mnt = vol.mount()
    os.chmod(mnt.path, 0o777)
    write(mnt / "roots", b"x")
    os.chmod(mnt / "roots", 0o600)
    os.mkdir(mnt / "closed", 0o700)
    write(mnt / "closed/f", b"")
    mnt.umount()
    mnt = vol.mount("all-squash=1234:1235")
    for uid in (0, 1000):
        with user(uid, uid):
            name = mnt / ("by%d" % uid)
            write(name, b"x")
            assert owner(name) == (1234, 1235)
            os.chmod(name, 0o600)
            with fails("EACCES"):
                read(mnt / "roots")
            with fails("EACCES"):
                os.listdir(mnt / "closed")
            with fails("EACCES"):
                os.stat(mnt / "closed/f")
    with user(2000, 2000):
        assert read(mnt / "by0") == b"x" == read(mnt / "by1000")  # all are the same
        os.unlink(mnt / "by0")
        with fails("EACCES"):
            read(mnt / ".config")
    read(mnt / ".config")  # root stays the one who administers


def test_checks_without_the_kernels(ws):
    """default_permissions off: permissions are checked by the mount itself, groups included."""
    vol = ws.volume("vol")
    mnt = vol.mount("default_permissions=false")
    os.chmod(mnt.path, 0o755)
    write(mnt / "f", b"x")
    os.chown(mnt / "f", 1000, 3000)
    os.chmod(mnt / "f", 0o640)
    os.mkdir(mnt / "d", 0o750)
    os.chown(mnt / "d", 1000, 3000)
    write(mnt / "d/f", b"y")
    code = (
        "import os,sys\n"
        "os.setgroups([int(g) for g in sys.argv[3].split(',') if g])\n"
        "os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[1]))\n"
        "def can(fn, *a):\n"
        "    try: fn(*a); return 'y'\n"
        "    except PermissionError: return 'n'\n"
        "os.chdir(sys.argv[4])\n"
        "r = lambda p: open(p).read()\n"
        "print(can(r, 'f') + can(lambda: os.close(os.open('f', os.O_WRONLY)))"
        " + can(os.listdir, 'd') + can(r, 'd/f') + can(os.mkdir, 'new') + can(os.chmod, 'f', 0o640)"
        " + can(os.getxattr, 'f', 'user.x') )\n"
    )
    os.setxattr(mnt / "f", "user.x", b"1")

    def rights(uid, gid, groups=""):
        p = ws.python(code, str(uid), str(gid), groups, str(mnt), stdout=subprocess.PIPE)
        out, _ = p.communicate(timeout=20 * SLOW)
        return out.decode().strip()

    assert rights(0, 0) == "yyyyyyy"
    os.rmdir(mnt / "new")
    assert rights(1000, 1000) == "yyyynyy"
    assert rights(2000, 3000) == "ynyynny"
    assert rights(2000, 2000, "5,3000") == "ynyynny"
    assert rights(2000, 2000) == "nnnnnnn"


# ---- setuid and setgid ----


@pytest.mark.parametrize("opts", ["", "default_permissions=false", "attr-cache=0", "enable-cap"])
def test_set_id_bits_go(ws, opts):
    """A changed setuid program loses its set-id bits."""
    mnt = ws.volume("vol").mount(opts)
    os.chmod(mnt.path, 0o777)

    def fresh(name, bits):
        f = mnt / name
        write(f, b"program")
        os.chown(f, 1000, 1000)
        os.chmod(f, bits)
        return f

    def after(bits, fn, who=(2000, 2000)):
        f = fresh("f", bits)
        with user(*who):
            fn(f)
        return mode(f)

    def append(f):
        with open(f, "ab") as w:
            w.write(b"x")

    def overwrite(f):
        fd = os.open(f, os.O_WRONLY)
        os.pwrite(fd, b"x", 0)
        os.close(fd)

    def ftruncate(f):
        fd = os.open(f, os.O_WRONLY)
        os.ftruncate(fd, 1)
        os.close(fd)

    def fallocate(f):
        fd = os.open(f, os.O_WRONLY)
        os.posix_fallocate(fd, 0, 5000)
        os.close(fd)

    def copy(f):
        src, dst = os.open(mnt / "src", os.O_RDONLY), os.open(f, os.O_WRONLY)
        assert os.copy_file_range(src, dst, 100) == 100
        os.close(src)
        os.close(dst)

    write(mnt / "src", bytes(100))
    os.chmod(mnt / "src", 0o644)
    changes = (append, overwrite, ftruncate, lambda f: os.truncate(f, 1), lambda f: write(f, b""))
    for fn in (*changes, fallocate, copy):
        assert after(0o6777, fn) == 0o777
        assert after(0o6777, fn, (1000, 1000)) == 0o777
        assert after(0o6777, fn, (0, 0)) == 0o6777
    assert after(0o4666, append) == 0o666
    assert after(0o6777, lambda f: os.chown(f, -1, 1000), (1000, 1000)) == 0o777
    assert after(0o6777, lambda f: os.chown(f, 5, 5), (0, 0)) == 0o777
    assert after(0o6777, read) == 0o6777
    os.mkdir(mnt / "d")
    os.chmod(mnt / "d", 0o6777)
    os.chown(mnt / "d", 7, 7)
    assert mode(mnt / "d") == 0o6777  # of directories setgid says something else


def opened(flags, fn):
    def change(path, src):
        fd = os.open(path, flags)
        try:
            fn(fd, src)
        finally:
            os.close(fd)

    return change


CHANGES = {
    "write": opened(os.O_WRONLY, lambda fd, src: os.pwrite(fd, b"x", 0)),
    "append": opened(os.O_WRONLY | os.O_APPEND, lambda fd, src: os.write(fd, b"x")),
    "ftruncate": opened(os.O_WRONLY, lambda fd, src: os.ftruncate(fd, 1)),
    "truncate": lambda path, src: os.truncate(path, 1),
    "open": opened(os.O_WRONLY | os.O_TRUNC, lambda fd, src: None),
    "fallocate": opened(os.O_WRONLY, lambda fd, src: os.posix_fallocate(fd, 0, 5000)),
    "copy": opened(os.O_WRONLY, lambda fd, src: os.copy_file_range(src, fd, 100, 0, 0)),
}
# user, group, other groups, keeps CAP_FSETID; of files of 1000:3000
WRITERS = {
    "owner": (1000, 1000, (), True),
    "owner in the group": (1000, 1000, (3000,), True),
    "group": (2000, 3000, (), True),
    "supplementary group": (2000, 2000, (3000,), True),
    "other": (2000, 2000, (), True),
    "root": (0, 0, (), True),
    "root without the capability": (0, 0, (), False),
    "root of the group without the capability": (0, 3000, (), False),
}


@pytest.mark.parametrize(
    "opts", ["", "default_permissions=false", "writeback_cache", "attr-cache=0"]
)
def test_set_id_bits_go_as_on_a_local_file_system(ws, opts):
    mnt, local = ws.volume("vol").mount(opts), ws.path("local")
    local.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "cachefs-test", local], check=True)
    ws.cleanups.append(lambda: subprocess.run(["umount", local], check=False))
    roots = (local, mnt.path)
    sources = []
    for root in roots:
        os.chmod(root, 0o777)
        write(root / "src", bytes(100))
        sources.append(os.open(root / "src", os.O_RDONLY))

    def after(root, src, bits, who, change):
        path = root / "f"
        write(path, b"program")
        os.chown(path, 1000, 3000)
        os.chmod(path, bits)
        with user(*who[:3]), contextlib.nullcontext() if who[3] else without_fsetid():
            change(path, src)
        got = oct(mode(path))
        os.unlink(path)
        return got

    wrong = []
    for bits in (0o666, 0o2666, 0o4666, 0o6666, 0o2676, 0o6676, 0o2776, 0o6777, 0o2766, 0o4777):
        for name, who in WRITERS.items():
            for what, change in CHANGES.items():
                want, got = (after(root, src, bits, who, change) for root, src in zip(roots, sources))
                if want != got:
                    wrong.append((oct(bits), name, what, want, got))
    for src in sources:
        os.close(src)
    assert not wrong, "\n".join(map(str, wrong))


KINDS = {
    "file": lambda p: write(p, b"x"),
    "fifo": os.mkfifo,
    "dir": os.mkdir,
    "symlink": lambda p: os.symlink("nowhere", p),
}
BITS = (0o644, 0o4644, 0o4755, 0o2644, 0o2755, 0o2654, 0o6777, 0o6766)
COARSE = 5  # CLOCK_REALTIME_COARSE
CALLERS = ((0, 0, ()), (1000, 1000, ()), (1000, 3000, ()), (1000, 1000, (3000,)), (2000, 2000, ()))


def fchown_nothing(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fchown(fd, -1, -1)
    finally:
        os.close(fd)


def owner_nothing(root, kind, bits, who, call):
    """The results of chown(-1, -1): the error, the mode after it, whether ctime moved."""
    path, failed = os.path.join(root, "x"), None
    KINDS[kind](path)
    try:
        os.lchown(path, 1000, 3000)
        if kind != "symlink":
            os.chmod(path, bits)
        before = os.lstat(path).st_ctime_ns
        # The clock that a file system takes times from stands still for some milliseconds.
        while time.clock_gettime_ns(COARSE) <= before:
            time.sleep(0.001)
        with user(*who):
            try:
                call(path)
            except OSError as e:
                failed = errno.errorcode[e.errno]
        return failed, oct(mode(path)), os.lstat(path).st_ctime_ns != before
    finally:
        os.rmdir(path) if kind == "dir" else os.unlink(path)


@pytest.mark.deadline(240)
@pytest.mark.parametrize(
    "engine,opts",
    [(e, "") for e in ENGINES] + [("sqlite", x) for x in ("default_permissions=false", "writeback_cache")],
)
def test_owner_left_as_it_is(ws, engine, opts):
    """chown(-1, -1) takes the set-id bits and moves ctime, as on a local file system: make install
    and backup programs tell by it that something was done to a file."""
    mnt, local = engine_volume(ws, engine).mount(opts), ws.path("local")
    local.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "cachefs-test", local], check=True)
    ws.cleanups.append(lambda: subprocess.run(["umount", local], check=False))
    wrong = []
    for root in (mnt.path, local):
        os.chmod(root, 0o777)
    for kind in KINDS:
        calls = [os.lchown]
        if kind != "symlink" and engine == "sqlite":
            calls.append(os.chown)
        if kind in ("file", "dir") and engine == "sqlite":
            calls.append(lambda p, *_: fchown_nothing(p))
        for bits in [0o777] if kind == "symlink" else BITS:
            for who in CALLERS:
                for i, call in enumerate(calls):
                    want, got = (
                        owner_nothing(root, kind, bits, who, lambda p: call(p, -1, -1))
                        for root in (str(local), str(mnt.path))
                    )
                    # The kernel's FUSE asks this before some writes, too (docs/posix.md).
                    if want[0] == "EPERM" and got[:2] == (None, want[1]):
                        continue
                    if want != got:
                        wrong.append((kind, oct(bits), who, i, want, got))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("opts", ["suid", "suid,writeback_cache", "suid,enable-cap"])
def test_set_id_bits_go_at_once(ws, opts):
    """They may come while the file is open, and are gone for who runs it right after a write."""
    mnt = ws.volume("vol").mount(opts)
    program = mnt / "id"
    write(program, read("/usr/bin/id"))
    os.chmod(program, 0o777)
    first = read(program)[:1]

    def runs_as():
        return subprocess.check_output([program, "-u"], user=2000, timeout=20 * SLOW).strip()

    with user(2000, 2000):
        fd = os.open(program, os.O_WRONLY)
    for _ in range(2):
        os.chmod(program, 0o6777)
        with user(2000, 2000):
            os.pwrite(fd, first, 0)
        assert mode(program) == 0o777
    os.close(fd)
    os.chmod(program, 0o6777)
    assert runs_as() == b"0"
    with user(2000, 2000), open(program, "r+b") as f:
        f.write(first)
    assert runs_as() == b"2000"


@pytest.mark.parametrize("opts,questions", [("", 1), ("enable-cap", 100)])
def test_questions_before_writes(ws, opts, questions):
    """The kernel does not ask for security.capability before each write, where nobody can set it."""
    mnt = ws.volume("vol").mount(opts)
    os.chmod(mnt.path, 0o777)
    with user(1000, 1000):
        fd = os.open(mnt / "f", os.O_WRONLY | os.O_CREAT)
    log = os.open(mnt / ".accesslog", os.O_RDONLY)
    with user(1000, 1000):
        for _ in range(100):
            os.write(fd, b"x")
    os.close(fd)
    lines = lines_of(log)
    os.close(log)
    assert sum(" write (" in x for x in lines) == 100
    assert sum(" getxattr (" in x for x in lines) == questions
