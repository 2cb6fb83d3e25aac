# SPDX-License-Identifier: Apache-2.0
"""Answers that the kernel keeps. If these fail, a program sees names that are gone, misses names that
are there, or the mount is asked what the kernel knows."""

import ctypes
import fcntl
import mmap
import os
import subprocess
import sys

import pytest

from syscalls import kernel_caches_stay
from waiting import wait_until

sys.path.insert(0, os.path.join(os.path.dirname(__file__), os.pardir, "mount"))

from test_takeover import upgrade  # noqa: E402


def asked(mnt, work):
    """How many requests of the kernel a function causes."""
    a = mnt.stat("requests_total")
    b = mnt.stat("requests_total")
    work()
    return mnt.stat("requests_total") - b - (b - a)


def absent(path):
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    return False


@pytest.mark.parametrize("seconds", [0, 60])
def test_absent_names(volume, seconds):
    mnt, other = volume.mount("negative-entry-cache=%d" % seconds), volume.mount()
    (other / "d").mkdir()

    def look():
        assert all(absent(mnt / "d" / "no") for _ in range(20))

    look()
    n = asked(mnt, look)
    assert n <= 1 if seconds else n >= 20
    # what this mount makes is there at once, in each way of making it
    (mnt / "d" / "no").write_bytes(b"x")
    assert (mnt / "d" / "no").read_bytes() == b"x"
    os.rename(mnt / "d" / "no", mnt / "d" / "other")
    look()
    os.link(mnt / "d" / "other", mnt / "d" / "no")
    assert not absent(mnt / "d" / "no")
    os.unlink(mnt / "d" / "no")
    look()
    os.mkdir(mnt / "d" / "no")
    assert not absent(mnt / "d" / "no")


def test_absent_name_that_another_mount_makes(volume):
    mnt, other = volume.mount("negative-entry-cache=1"), volume.mount()
    for i in range(5):
        assert absent(mnt / ("f%d" % i))
        (other / ("f%d" % i)).write_bytes(b"x")
        wait_until(lambda: not absent(mnt / ("f%d" % i)), 5, "the name")
    # it is not made a second time, whatever the kernel keeps
    assert absent(mnt / "g")
    (other / "g").write_bytes(b"other")
    with pytest.raises(FileExistsError):
        os.open(mnt / "g", os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def test_names_are_looked_up_again_after_an_upgrade(ws, volume):
    """It may have shorter times, and the kernel has been told the longer ones."""
    long = "attr-cache=600,entry-cache=600,dir-entry-cache=600,negative-entry-cache=600"
    mnt, other = volume.mount(long), volume.mount()
    (mnt / "d").mkdir()
    (mnt / "d" / "f").write_bytes(b"x")
    assert absent(mnt / "d" / "g")
    os.rename(other / "d" / "f", other / "d" / "g")
    assert absent(mnt / "d" / "g")
    assert not absent(mnt / "d" / "f")
    upgrade(ws, volume, mnt, "attr-cache=0,entry-cache=0,dir-entry-cache=0,negative-entry-cache=0")
    kernel = tuple(int(n) for n in os.uname().release.split(".")[:2])
    if kernel < (6, 16):
        pytest.skip("the kernel has no FUSE_NOTIFY_INC_EPOCH")
    wait_until(lambda: not absent(mnt / "d" / "g") and absent(mnt / "d" / "f"), 10, "the change")


LONG = "attr-cache=60,entry-cache=60,dir-entry-cache=60"


def test_asking_for_the_creation_time_costs_nothing(volume):
    """stat(1) asks for it. The format has none: a request for each file would be in vain."""
    mnt = volume.mount(LONG)
    for i in range(20):
        (mnt / ("f%d" % i)).write_bytes(b"x")
    files = [mnt / ("f%d" % i) for i in range(20)]
    stat = ["stat", "-c", "%W", *files]
    assert subprocess.run(stat, check=True, stdout=-1, text=True).stdout.split() == ["0"] * 20
    assert asked(mnt, lambda: subprocess.run(stat, check=True, stdout=subprocess.DEVNULL)) == 0


# ---- attributes of files that are opened ----


def lengths(path, flags):
    """As fstat, a read to the end and a seek to the end tell it, of a file that is opened now."""
    fd = os.open(path, flags)
    try:
        return os.fstat(fd).st_size, len(os.read(fd, 1 << 20)), os.lseek(fd, 0, os.SEEK_END)
    finally:
        os.close(fd)


def grow(fd):
    os.pwrite(fd, b"more", os.fstat(fd).st_size)


def shrink(fd):
    os.ftruncate(fd, os.fstat(fd).st_size - 10)


def extend(fd):
    os.ftruncate(fd, os.fstat(fd).st_size + 10)


def copy(fd):
    os.copy_file_range(fd, fd, 100, 0, os.fstat(fd).st_size)


@pytest.mark.parametrize("how", [grow, shrink, extend, copy])
def test_an_open_sees_the_length_that_another_mount_has_closed(volume, how):
    """However long the kernel may keep attributes: a copy would end too early, and a record that is
    written at the end would hide the last of the other mount."""
    mnt, other = volume.mount(LONG), volume.mount()
    names = ["named", "listed", "opened", "written", "held"]
    for name in names:
        (other / name).write_bytes(b"x" * 1000)
    held = os.open(mnt / "held", os.O_RDWR)
    os.pwrite(held, b"y", 0)
    os.fsync(held)
    for turn in range(3):
        assert len([e.stat().st_size for e in os.scandir(mnt.path)]) == len(names)
        for name in names:
            if name != "listed":
                os.stat(mnt / name)
        assert len((mnt / "opened").read_bytes()) == os.stat(mnt / "opened").st_size
        with open(mnt / "written", "r+b") as f:
            f.write(b"z")
        os.stat(mnt / "written")
        for name in names:
            fd = os.open(other / name, os.O_RDWR)
            how(fd)
            length = os.fstat(fd).st_size
            os.close(fd)
            assert lengths(mnt / name, (os.O_RDONLY, os.O_RDWR)[turn % 2]) == (length,) * 3, name
    os.close(held)


def by_read(fd):
    return os.read(fd, 1 << 20)


def by_pread(fd):
    return os.pread(fd, 1 << 20, 0)


def by_sendfile(fd):
    return through_file(lambda to: os.sendfile(to, fd, 0, 1 << 20))


def by_splice(fd):
    r, w = os.pipe()
    try:
        fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 1 << 20)
        return os.read(r, os.splice(fd, w, 1 << 20))
    finally:
        os.close(r)
        os.close(w)


def by_copy_file_range(fd):
    """On the same mount, as cp does it."""
    return through_file(lambda to: os.copy_file_range(fd, to, 1 << 20), os.readlink("/proc/self/fd/%d" % fd) + ".copy")


def through_file(copy, path=None):
    to = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC) if path else os.memfd_create("copy")
    try:
        copy(to)
        return os.pread(to, 1 << 20, 0)
    finally:
        os.close(to)


def by_mapping(fd):
    """Of a length that the program has been told: it does not call fstat, which Python's would."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    length = ctypes.c_size_t(by_mapping.length)
    at = ctypes.c_void_p(libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, fd, ctypes.c_long(0)))
    try:
        return through_file(lambda to: libc.write(to, at, length))  # EFAULT instead of SIGBUS
    finally:
        libc.munmap(at, length)


def by_seek(fd):
    return os.pread(fd, os.lseek(fd, 0, os.SEEK_END), 0)


def by_fstat(fd):
    return os.pread(fd, os.fstat(fd).st_size, 0)


WAYS = [by_read, by_pread, by_sendfile, by_splice, by_copy_file_range, by_mapping, by_seek, by_fstat]


@pytest.mark.parametrize("opts", [LONG, LONG + ",passthrough=auto"])
@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_does_not_ask_for_the_length_gets_all(volume, way, opts):
    """sendfile, copy_file_range and mappings end at the length that the kernel knows: a copy would
    lose what another mount has appended, and no error would tell."""
    mnt, other = volume.mount(opts), volume.mount()
    lengths = [1, 100, 4095, 4096, 4097, 5000, 8192, 8193, 100_000, 300_001]
    content, handles = b"", mnt.open_handles()
    for length in lengths:
        new = os.urandom(length - len(content))
        with open(other / "f", "ab") as f:
            f.write(new)
        content += new
        by_mapping.length = length
        fd = os.open(mnt / "f", os.O_RDONLY)
        try:
            assert way(fd) == content
        finally:
            os.close(fd)
        os.stat(mnt / "f")
        wait_until(lambda: mnt.stat("open_handles") == handles)


@pytest.mark.parametrize("opts", ["", "writeback_cache"])
def test_an_open_sees_content_under_an_old_mtime(volume, opts):
    """cp -p and rsync -t restore it, and the length may be the same. Kernels count the times that
    they give in ticks of some milliseconds: here several changes are made in each."""
    mnt, other = volume.mount(), volume.mount(opts)
    for turn in range(100):
        content = b"%04d" % turn
        fd = os.open(other / "f", os.O_CREAT | os.O_WRONLY)
        os.pwrite(fd, content, 0)
        os.utime(fd, ns=(10**18, 10**18))
        os.close(fd)
        assert ((mnt / "f").read_bytes(), os.stat(mnt / "f").st_mtime_ns) == (content, 10**18)


READER = """
import os, sys
print("ready", flush=True)
for line in sys.stdin:
    fd = os.open(sys.argv[1], os.O_RDONLY)
    seen = os.pread(fd, 1 << 20, 0)
    os.close(fd)
    print(seen[:4].hex(), seen[-4:].hex(), flush=True)
"""


def test_programs_that_open_a_file_at_the_same_time_all_see_the_change(ws, volume):
    """The kernel drops its pages at the end of the first open. Another one that ends before must not
    read them."""
    mnt, other, size = volume.mount(LONG), volume.mount(), 300_000
    (other / "f").write_bytes(b"old." * (size // 4))
    programs = [ws.python(READER, mnt / "f", stdin=-1, stdout=-1, text=True) for _ in range(4)]
    for p in programs:
        assert p.stdout.readline() == "ready\n"
    for turn in range(400):
        new = b"%04d" % turn
        fd = os.open(other / "f", os.O_WRONLY)
        os.pwrite(fd, new * (size // 4), 0)
        os.utime(fd, ns=(10**18, 10**18))
        os.close(fd)
        for p in programs:
            p.stdin.write("\n")
            p.stdin.flush()
        assert [p.stdout.readline().split() for p in programs] == 4 * [2 * [new.hex()]], turn
    for p in programs:
        p.stdin.close()
        p.wait(20)


@pytest.mark.parametrize("told", [os.stat, lambda path: os.listdir(path.parent)], ids=["stat", "listing"])
def test_an_open_of_an_unchanged_file_keeps_its_attributes(volume, told):
    mnt = volume.mount(LONG)
    (mnt / "d").mkdir()
    (mnt / "d" / "f").write_bytes(b"x" * 1000)
    told(mnt / "d" / "f")

    def work():
        fd = os.open(mnt / "d" / "f", os.O_RDONLY)
        os.fstat(fd)
        os.close(fd)

    assert asked(mnt, work) <= 3  # open, flush, release


# ---- listings ----


def names(path):
    return sorted(os.listdir(path))


def test_second_listing_asks_nothing(volume):
    """But for opening and closing the directory."""
    mnt, n = volume.mount(LONG), 100_000
    (mnt / "d").mkdir()
    for i in range(n):
        os.mknod(mnt / "d" / ("name-%06d" % i))
    first, second = [], []
    with kernel_caches_stay():
        assert asked(mnt, lambda: first.extend(names(mnt / "d"))) > 100
        assert asked(mnt, lambda: second.extend(names(mnt / "d"))) <= 3
        # rewinddir asks nothing at all
        fd = os.open(mnt / "d", os.O_RDONLY)
        assert len(os.listdir(fd)) == n
        assert asked(mnt, lambda: os.listdir(fd)) == 0
    os.close(fd)
    assert first == second == ["name-%06d" % i for i in range(n)]


def test_own_changes_show_in_listings(volume):
    mnt = volume.mount(LONG)
    d = mnt / "d"
    d.mkdir()
    want = {"n%04d" % i for i in range(1500)}
    for name in want:
        os.mknod(d / name)
    held = os.open(d, os.O_RDONLY)

    def look():
        for at in d, held, d:
            assert names(at) == sorted(want)

    look()
    os.unlink(d / "n0700")
    want.remove("n0700")
    look()
    os.mkdir(d / "n0700")
    want.add("n0700")
    look()
    assert [e.is_dir() for e in os.scandir(d) if e.name == "n0700"] == [True]
    os.rename(d / "n0001", d / "z")
    want = want - {"n0001"} | {"z"}
    look()
    os.link(d / "z", mnt / "elsewhere")
    os.rename(mnt / "elsewhere", d / "a")
    want.add("a")
    look()
    os.symlink("z", d / "s")
    want.add("s")
    look()
    # a directory that is removed and made again, with a handle open on the old one
    for name in names(d):
        os.rmdir(d / name) if name == "n0700" else os.unlink(d / name)
    assert names(d) == []
    os.rmdir(d)
    d.mkdir()
    assert names(d) == os.listdir(held) == []
    os.close(held)


def test_changes_of_another_mount_show_in_listings(volume):
    """After the time that names are kept, through a descriptor that was open all the time, too."""
    mnt, other = volume.mount("attr-cache=1,entry-cache=1,dir-entry-cache=1"), volume.mount()
    (mnt / "d").mkdir()
    want = ["n%04d" % i for i in range(1500)]
    for name in want:
        os.mknod(mnt / "d" / name)
    held = os.open(mnt / "d", os.O_RDONLY)
    for i in range(3):
        assert names(mnt / "d") == names(held) == want
        os.unlink(other / "d" / want.pop(700))
        os.mknod(other / "d" / ("x%d" % i))
        want.append("x%d" % i)
        # its time of change is what it was, as with JuiceFS for a change soon after another one
        st = os.stat(mnt / "d")
        os.utime(other / "d", ns=(st.st_atime_ns, st.st_mtime_ns))
        for at in held, mnt / "d":
            wait_until(lambda: names(at) == want, 5, "the change")
    os.close(held)


def test_listing_while_it_is_kept_and_changed(volume):
    """Readers that the kernel serves from a listing, of which it must let go in the middle."""
    mnt = volume.mount(LONG)
    d = mnt / "d"
    d.mkdir()
    stay = {"s%05d" % i for i in range(4000)}
    go = ["g%05d" % i for i in range(2000)]
    for name in stay | set(go):
        os.mknod(d / name)
    assert len(names(d)) == 6000
    readers = [os.scandir(d) for _ in range(4)]
    seen = [[next(r).name for _ in range(2500)] for r in readers]
    for name in go:
        os.unlink(d / name)
    assert names(d) == sorted(stay)  # a fresh listing takes the place of the kept one
    for got, reader in zip(seen, readers):
        got += [e.name for e in reader]
        assert len(got) == len(set(got)), "a name twice"
        assert stay <= set(got) <= stay | set(go), "a name that stays is missing"


def test_kept_listing_and_another_process(ws, volume):
    """A listing is not served beyond an upgrade, and one that is being read stays whole."""
    mnt, other = volume.mount(LONG), volume.mount()
    (mnt / "d").mkdir()
    want = ["n%04d" % i for i in range(3000)]
    for name in want:
        os.mknod(mnt / "d" / name)
    assert names(mnt / "d") == want
    reader = os.scandir(mnt / "d")
    seen = [next(reader).name for _ in range(1500)]
    upgrade(ws, volume, mnt, LONG)
    os.unlink(other / "d" / want.pop())
    seen += [e.name for e in reader]
    assert len(seen) == len(set(seen)) and set(seen) >= set(want)
    assert names(mnt / "d") == want
