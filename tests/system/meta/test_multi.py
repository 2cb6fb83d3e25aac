# SPDX-License-Identifier: Apache-2.0
"""Two mounts of one volume. A failure here is a user on machine B who does not see, or destroys,
what was saved on machine A."""

import errno
import itertools
import os
import threading
import time

import pytest

from cachefs import SLOW, wait_until
from syscalls import RENAME_NOREPLACE, data, fails, read, renameat2, write
from test_concurrency import ENGINES, engine_volume

FRESH = "attr-cache=0,entry-cache=0,dir-entry-cache=0"


@pytest.fixture
def pair(volume):
    return volume.mount(FRESH), volume.mount(FRESH)


def test_closed_file_is_seen(pair):
    a, b = pair
    for i, size in enumerate((0, 1, 100_000, 9_000_000)):
        content = data(size, seed=i)
        write(a / "f", content)
        assert read(b / "f") == content
        assert os.stat(b / "f").st_size == size
    write(b / "f", b"from b")
    assert read(a / "f") == b"from b"


def test_fsynced_data_is_seen_at_the_next_open(pair):
    a, b = pair
    with open(a / "f", "wb", buffering=0) as f:
        for i in range(5):
            f.write(b"line %d\n" % i)
            os.fsync(f.fileno())
            assert read(b / "f").count(b"\n") == i + 1


def test_overwritten_file_is_not_served_from_the_page_cache(pair):
    a, b = pair
    write(a / "f", b"A" * 200_000)
    assert read(b / "f") == b"A" * 200_000
    with open(a / "f", "r+b") as f:
        f.write(b"B" * 200_000)
    assert read(b / "f") == b"B" * 200_000
    os.truncate(a / "f", 1000)
    assert read(b / "f") == b"B" * 1000


@pytest.mark.parametrize("keeps_open", (False, True))
def test_overwritten_file_with_its_old_time(pair, keeps_open):
    """rsync --inplace -t, tar and cp -p set the time of the last change to what it was."""
    a, b = pair
    write(a / "f", b"A" * 200_000)
    before = os.stat(a / "f").st_mtime_ns
    reader = open(b / "f", "rb")
    assert reader.read() == b"A" * 200_000
    if not keeps_open:
        reader.close()
    with open(a / "f", "r+b") as f:
        f.write(b"B" * 200_000)
    os.utime(a / "f", ns=(before, before))
    assert os.stat(b / "f").st_mtime_ns == before
    assert read(b / "f") == b"B" * 200_000
    reader.close()


def test_truncate_by_the_other_mount_while_bytes_are_not_stored(pair):
    a, b = pair
    write(a / "f", b"A" * 1_000_000)
    with open(a / "f", "r+b", buffering=0) as f:
        assert os.pread(f.fileno(), 100, 900_000) == b"A" * 100
        f.write(b"x" * 4096)
        os.truncate(b / "f", 0)
        os.fsync(f.fileno())
        assert os.stat(b / "f").st_size == 4096
        assert os.stat(a / "f").st_size == 4096
        assert read(a / "f") == b"x" * 4096


def test_names_are_seen(pair):
    a, b = pair
    os.mkdir(a / "d")
    write(a / "d/f", b"x")
    assert os.listdir(b / "d") == ["f"]
    os.rename(a / "d/f", a / "d/g")
    with fails("ENOENT"):
        os.stat(b / "d/f")
    assert read(b / "d/g") == b"x"
    with fails("ENOTEMPTY"):
        os.rmdir(b / "d")
    os.unlink(a / "d/g")
    assert os.listdir(b / "d") == []
    os.rmdir(b / "d")
    with fails("ENOENT"):
        os.listdir(a / "d")
    os.chmod(b.path, 0o755)
    assert os.stat(a.path).st_mode & 0o777 == 0o755


def test_default_caches_end_after_their_time(volume):
    a, b = volume.mount(), volume.mount()
    write(a / "f", b"one")
    assert read(b / "f") == b"one"
    write(a / "f", b"longer")
    wait_until(lambda: read(b / "f") == b"longer", 5, "the change at the other mount")
    os.unlink(a / "f")
    wait_until(lambda: not os.path.exists(b / "f"), 5, "the removal at the other mount")


@pytest.mark.deadline(180)
def test_exclusive_create_has_one_winner(ws, pair):
    code = (
        "import os,sys\n"
        "n=0\n"
        "for i in range(200):\n"
        "    try:\n"
        "        os.close(os.open('%s/lock%d' % (sys.argv[1], i), os.O_CREAT|os.O_EXCL|os.O_WRONLY)); n+=1\n"
        "    except FileExistsError: pass\n"
        "print(n)\n"
    )
    runs = [ws.python(code, m.path, stdout=-1) for m in pair for _ in range(2)]
    assert sum(int(p.communicate(timeout=120 * SLOW)[0]) for p in runs) == 200


@pytest.mark.deadline(180)
def test_creates_and_renames_from_both_sides(ws, pair):
    a, b = pair
    os.makedirs(a / "in")
    os.makedirs(a / "out")
    code = (
        "import os,sys\n"
        "root,me=sys.argv[1:]\n"
        "for i in range(150):\n"
        "    name='%s-%d'%(me,i)\n"
        "    open('%s/in/%s'%(root,name),'w').write(name)\n"
        "    os.rename('%s/in/%s'%(root,name),'%s/out/%s'%(root,name))\n"
        "    if i%5==0: os.unlink('%s/out/%s'%(root,name))\n"
    )
    runs = [ws.python(code, m.path, n) for m, n in ((a, "a1"), (a, "a2"), (b, "b1"), (b, "b2"))]
    for p in runs:
        assert p.wait(150 * SLOW) == 0
    names = sorted(os.listdir(b / "out"))
    assert names == sorted(os.listdir(a / "out")) and len(names) == 4 * 120
    assert os.listdir(a / "in") == []
    for n in names[::17]:
        assert read(b / ("out/" + n)) == n.encode()


def test_rename_noreplace_over_the_others_file(pair):
    a, b = pair
    write(a / "x", b"x")
    write(b / "y", b"y")
    with fails("EEXIST"):
        renameat2(a / "x", a / "y", RENAME_NOREPLACE)


def test_file_deleted_by_the_other_mount(pair):
    """The format gives no protection here: an error is right, a wrong byte or a hang is not."""
    a, b = pair
    content = data(5_000_000)
    write(a / "f", content)
    with open(b / "f", "rb") as f:
        assert f.read(10) == content[:10]
        os.unlink(a / "f")
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            got = f.read()
        except OSError:
            got = b""
        assert content[10:].startswith(got)
    b.allow(r"EIO|ENOENT|ESTALE|EBADF|missing")


def test_append_by_turns(pair):
    a, b = pair
    want = b""
    for i in range(30):
        line = b"%d\n" % i
        with open((a, b)[i % 2] / "log", "ab") as f:
            f.write(line)
        want += line
    assert read(a / "log") == read(b / "log") == want


@pytest.mark.parametrize("caches", [60, 0])
def test_open_of_a_file_that_another_mount_removed(ws, volume, caches):
    """The kernel has looked the name up, and opens an inode that is gone: it looks once more."""
    a = volume.mount("attr-cache=%d,entry-cache=%d" % (caches, caches))
    b = volume.mount(FRESH)
    for name in ("made", "replaced", "gone"):
        (a / name).write_bytes(b"old")
        os.stat(a / name)
        (b / "next").write_bytes(b"new")
        os.rename(b / "next", b / name)
        if name != "replaced":
            os.unlink(b / name)
    os.close(os.open(a / "made", os.O_CREAT | os.O_WRONLY, 0o644))
    assert (a / "replaced").read_bytes() == b"new"
    with pytest.raises(FileNotFoundError):
        (a / "gone").read_bytes()


class Replaced:
    """Two mounts: `old` knows names whose inodes `new` replaces, or removes, before each call."""

    numbers = itertools.count()

    def __init__(self, old, new):
        self.old, self.new = old, new

    def name(self, make, replaced):
        name = "n%d" % next(self.numbers)
        make(self.old / name, b"old")
        os.stat(self.old / name, follow_symlinks=False)
        if replaced:
            make(self.new / "next", b"newer")
            os.rename(self.new / "next", self.new / name)
        elif os.path.isdir(self.new / name):
            os.rmdir(self.new / name)
        else:
            os.unlink(self.new / name)
        return str(self.old / name), str(self.new / name)

    def check(self, make, call, replaced):
        """None, or how the call went wrong."""
        p, there = self.name(make, replaced)
        try:
            seen = call(p, there)
        except OSError as e:
            if not replaced and e.errno == errno.ENOENT:
                return None
            return errno.errorcode.get(e.errno, str(e.errno))
        return "succeeded on nothing" if not replaced else None if seen else "the old inode"


def make_file(p, content):
    write(p, content)
    os.setxattr(p, "user.which", content)


def make_link(p, content):
    os.symlink(content, p)


def make_dir(p, content):
    os.mkdir(p, 0o700 if content == b"old" else 0o755)


# Each returns whether it met the inode that is there. p is at the mount that knows the old one.
READS = {
    "stat": (make_file, lambda p, there: os.stat(p).st_size == 5),
    "access": (make_file, lambda p, there: may_read(p)),
    "open": (make_file, lambda p, there: read(p) == b"newer"),
    "getxattr": (make_file, lambda p, there: os.getxattr(p, "user.which") == b"newer"),
    "getxattr none": (make_file, lambda p, there: no_xattr(p)),
    "listxattr": (make_file, lambda p, there: os.listxattr(p) == ["user.which"]),
    "readlink": (make_link, lambda p, there: os.readlink(p) == "newer"),
    "stat directory": (make_dir, lambda p, there: os.stat(p).st_mode & 0o777 == 0o755),
    "listdir": (make_dir, lambda p, there: os.listdir(p) == []),
    "chdir": (make_dir, lambda p, there: changes_directory(p)),
}
CHANGES = {
    "chmod": (make_file, lambda p, there: os.chmod(p, 0o612) or mode(there) == 0o612),
    "chown": (make_file, lambda p, there: os.chown(p, 7, 8) or os.stat(there).st_uid == 7),
    "chown nothing": (make_file, lambda p, there: os.chown(p, -1, -1) or os.stat(there)),
    "utime": (make_file, lambda p, there: os.utime(p, (1, 1)) or os.stat(there).st_mtime == 1),
    "truncate": (make_file, lambda p, there: os.truncate(p, 2) or read(there) == b"ne"),
    "open O_TRUNC": (make_file, lambda p, there: truncating_open(p) or read(there) == b""),
    "setxattr": (make_file, lambda p, there: set_xattr(p) in os.listxattr(there)),
    "removexattr": (make_file, lambda p, there: not os.removexattr(p, "user.which") and not os.listxattr(there)),
    "link": (make_file, lambda p, there: os.link(p, "%s+" % p) or os.stat(there).st_nlink == 2),
    "chmod directory": (make_dir, lambda p, there: os.chmod(p, 0o711) or mode(there) == 0o711),
}
MAKES = {
    "mkdir": (make_dir, lambda p, there: os.mkdir(p + "/x") or os.listdir(there)),
    "mknod": (make_dir, lambda p, there: os.mknod(p + "/x") or os.listdir(there)),
    "symlink": (make_dir, lambda p, there: os.symlink("y", p + "/x") or os.listdir(there)),
    "create": (make_dir, lambda p, there: write(p + "/x", b"x") or os.listdir(there)),
    "link into": (make_dir, lambda p, there: into(os.link, p) or os.listdir(there)),
    "rename into": (make_dir, lambda p, there: into(os.rename, p) or os.listdir(there)),
}


def mode(p):
    return os.stat(p).st_mode & 0o777


def may_read(p):
    if not os.access(p, os.R_OK):
        raise FileNotFoundError(errno.ENOENT, "access")
    return True


def truncating_open(p):
    os.close(os.open(p, os.O_WRONLY | os.O_TRUNC))


def set_xattr(p):
    os.setxattr(p, "user.x", b"1")
    return "user.x"


def no_xattr(p):
    try:
        os.getxattr(p, "user.none")
    except OSError as e:
        if e.errno != errno.ENODATA:
            raise
        return True
    return False


def changes_directory(p):
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(p)
    finally:
        os.fchdir(here)
        os.close(here)
    return True


def into(fn, p):
    source = p + "-source"
    write(source, b"")
    fn(source, p + "/x")


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
def test_names_whose_inodes_another_mount_removes(ws, engine, replaced):
    """The kernel knows the inode of each name, and asks for one that is gone: it looks again."""
    vol = engine_volume(ws, engine, trash_days=0)
    new, bad = vol.mount(FRESH), []
    for attr_cache, calls in ((0, {**READS, **CHANGES, **MAKES}), (60, {**CHANGES, **MAKES})):
        old = vol.mount("attr-cache=%d,entry-cache=60,dir-entry-cache=60" % attr_cache)
        pair = Replaced(old, new)
        for name, (make, call) in calls.items():
            wrong = pair.check(make, call, replaced)
            if wrong:
                bad.append((attr_cache, name, wrong))
        old.umount()
    assert not bad, "\n".join(map(str, bad))


@pytest.mark.parametrize("engine, caches", [("sqlite", "")] + [(e, FRESH) for e in ENGINES])
def test_open_file_that_another_mount_removes(ws, engine, caches):
    """fstat goes on; the name is gone, or another file's."""
    vol = engine_volume(ws, engine, trash_days=0)
    a, b = vol.mount(caches), vol.mount(FRESH)
    for replaced in (False, True):
        write(a / "f", b"12345")
        os.chmod(a / "f", 0o640)
        fd = os.open(a / "f", os.O_RDWR)
        before = os.fstat(fd)
        os.pwrite(fd, b"6789", 5)
        os.fsync(fd)
        if replaced:
            write(b / "next", b"")
            os.rename(b / "next", b / "f")
        else:
            os.unlink(b / "f")
        wait_until(lambda: os.fstat(fd).st_nlink == 0, 10 * SLOW, "nlink is 0")
        gone = os.fstat(fd)
        assert (gone.st_ino, gone.st_mode, gone.st_size) == (before.st_ino, before.st_mode, 9)
        wait_until(lambda: other_inode(a / "f", gone.st_ino) is replaced, 10 * SLOW, "name is looked up")
        os.close(fd)


def other_inode(p, ino):
    """False: there is no such name, None: it is that inode's."""
    try:
        return os.stat(p).st_ino != ino or None
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("engine", ENGINES)
def test_created_once_beside_a_mount_that_removes(ws, engine):
    """The file may be gone before the open that makes it ends: it is not made again."""
    vol = engine_volume(ws, engine, trash_days=0)
    a, b = vol.mount(FRESH), vol.mount(FRESH)
    made, removed, stop = 0, [], threading.Event()

    def remove():
        while not stop.is_set():
            try:
                os.unlink(b / "n")
                removed.append(1)
            except FileNotFoundError:
                pass

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        now = time.monotonic()
        while time.monotonic() < now + (60 if made <= 10 else 3) * SLOW and made < 500:
            try:
                os.close(os.open(a / "n", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                made += 1
            except FileExistsError:
                pass
    finally:
        stop.set()
        thread.join()
    left = os.path.exists(b / "n")
    assert made > 10 and made == len(removed) + left


@pytest.mark.parametrize("engine", ENGINES)
def test_rename_over_a_directory_that_another_mount_has_moved(ws, engine):
    """The kernel takes the directory that it knows there for removed: it would look empty while it is in use."""
    vol = engine_volume(ws, engine, trash_days=0)
    a, b = vol.mount("attr-cache=60,entry-cache=60,dir-entry-cache=60"), vol.mount(FRESH)
    os.mkdir(a / "full")
    write(a / "full/file", b"content")
    os.mkdir(a / "empty")
    used = os.open(a / "full", os.O_RDONLY)
    os.stat(a / "empty")
    os.rename(b / "full", b / "empty")
    os.rename(a / "empty", a / "full")
    assert os.listdir(b) == ["full"] and os.listdir(used) == ["file"]
    assert read(a / "full/file") == b"content"
    os.close(used)


def test_free_space_of_a_directory_that_another_mount_replaces(ws, volume):
    """With quotas on directories the metadata is asked for the parents of the inode."""
    new = volume.mount(FRESH)
    os.mkdir(new / "limited")
    ws.run("cachefs", "quota", "set", "--path=/limited", "--inodes=9", volume.url, check=True)
    old = volume.mount("attr-cache=60,entry-cache=60,dir-entry-cache=60")
    for name in ("replaced", "gone"):
        os.mkdir(new / name)
        os.stat(old / name)
    os.mkdir(new / "next")
    os.rename(new / "next", new / "replaced")
    os.rmdir(new / "gone")
    assert os.statvfs(old / "replaced").f_files > 0
    with fails("ENOENT"):
        os.statvfs(old / "gone")


def test_names_in_a_directory_that_another_mount_moves_to_the_trash(ws):
    vol = engine_volume(ws, "sqlite", trash_days=1)
    pair = Replaced(vol.mount("attr-cache=60,entry-cache=60,dir-entry-cache=60"), vol.mount(FRESH))
    bad = {name: pair.check(make, call, True) for name, (make, call) in MAKES.items()}
    assert not any(bad.values()), bad
