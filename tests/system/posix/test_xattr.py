# SPDX-License-Identifier: Apache-2.0
"""Extended attributes and ACLs. A fault here takes access from users, or gives it to others."""

import ctypes
import errno
import os
import shutil
import subprocess

import pytest

from cachefs import wait_until
from syscalls import data, fails, mode, read, user, write
from test_special import lines_of

libc = ctypes.CDLL(None, use_errno=True)


# ---- extended attributes ----


def test_xattr_round_trip(mnt):
    write(mnt / "f", b"x")
    os.mkdir(mnt / "d")
    big = data(65536)
    for path in (mnt / "f", mnt / "d"):
        values = {
            "user.a": b"1",
            "user.A": b"upper case is another name",
            "user.empty": b"",
            "user.binary": bytes(range(256)),
            "user." + "n" * 250: b"long name",
            "user.big": big,
            "user.ä": "ü".encode(),
            "trusted.t": b"root's",
        }
        for name, value in values.items():
            os.setxattr(path, name, value)
        assert set(os.listxattr(path)) == set(values)
        for name, value in values.items():
            assert os.getxattr(path, name) == value
        os.setxattr(path, "user.a", b"2")
        assert os.getxattr(path, "user.a") == b"2"
        os.setxattr(path, "user.a", b"3", os.XATTR_REPLACE)
        with fails("EEXIST"):
            os.setxattr(path, "user.a", b"4", os.XATTR_CREATE)
        with fails("ENODATA"):
            os.setxattr(path, "user.none", b"4", os.XATTR_REPLACE)
        with fails("ENODATA"):
            os.getxattr(path, "user.none")
        os.removexattr(path, "user.binary")
        with fails("ENODATA"):
            os.removexattr(path, "user.binary")
    mnt = mnt.remount()
    assert os.getxattr(mnt / "f", "user.a") == b"3" and os.getxattr(mnt / "d", "user.big") == big
    assert "user.binary" not in os.listxattr(mnt / "f")
    os.rename(mnt / "f", mnt / "g")
    os.link(mnt / "g", mnt / "h")
    assert os.getxattr(mnt / "h", "user.a") == b"3"
    os.unlink(mnt / "g")
    os.unlink(mnt / "h")
    assert mnt.volume.sql("SELECT count(*) FROM jfs_xattr")[0][0] == 7  # those of d


def test_xattr_limits(mnt):
    write(mnt / "f", b"x")
    with fails("E2BIG"):
        os.setxattr(mnt / "f", "user.big", b"x" * 65537)
    with fails("ERANGE"):
        os.setxattr(mnt / "f", "user." + "n" * 251, b"")
    for name in (b"user.\xff", b"user.\xed\xa0\x80", b"user.\xe6\x96"):  # as PostgreSQL and MySQL say it
        with fails("EINVAL"):
            os.setxattr(mnt / "f", name, b"")
    os.setxattr(mnt / "f", "user.ten", b"0123456789")
    buf = ctypes.create_string_buffer(9)
    assert libc.getxattr(os.fsencode(mnt / "f"), b"user.ten", buf, 9) == -1
    assert ctypes.get_errno() == errno.ERANGE
    assert libc.getxattr(os.fsencode(mnt / "f"), b"user.ten", None, 0) == 10
    assert libc.listxattr(os.fsencode(mnt / "f"), buf, 5) == -1
    assert ctypes.get_errno() == errno.ERANGE
    os.symlink("f", mnt / "l")
    with fails("EPERM"):
        os.setxattr(mnt / "l", "user.x", b"", follow_symlinks=False)
    os.setxattr(mnt / "l", "trusted.x", b"on the link", follow_symlinks=False)
    assert os.listxattr(mnt / "f") == ["user.ten"]


def test_xattr_of_others(mnt):
    write(mnt / "f", b"x")
    os.chmod(mnt / "f", 0o644)
    os.setxattr(mnt / "f", "user.u", b"1")
    os.setxattr(mnt / "f", "trusted.t", b"2")
    with user(1000, 1000):
        assert os.getxattr(mnt / "f", "user.u") == b"1"
        assert os.listxattr(mnt / "f") == ["user.u"]
        with fails("ENODATA"):
            os.getxattr(mnt / "f", "trusted.t")
        with fails("EACCES"):
            os.setxattr(mnt / "f", "user.u", b"3")
        with fails("EPERM"):
            os.setxattr(mnt / "f", "trusted.t", b"3")
        with fails("EPERM"):
            os.removexattr(mnt / "f", "trusted.t")
    os.chmod(mnt / "f", 0o200)
    with user(1000, 1000), fails("EACCES"):
        os.getxattr(mnt / "f", "user.u")


def test_security_xattrs_are_an_option(ws):
    vol = ws.volume("vol")
    plain, cap = vol.mount(), vol.mount("enable-cap")
    every, none = vol.mount("security-xattr"), vol.mount("enable-xattr=false")
    write(plain / "f", b"x")
    with fails("ENOTSUP"):
        os.setxattr(plain / "f", "security.other", b"1")
    with fails("ENODATA"):
        os.getxattr(plain / "f", "security.capability")
    for name in ("security.selinux", "security.other"):
        with fails("ENOTSUP"):
            os.getxattr(plain / "f", name)
        with fails("ENOTSUP"):
            os.removexattr(plain / "f", name)
    # v2 capabilities: cap_net_bind_service+ep
    value = bytes.fromhex("0100000200040000000000000000000000000000")
    os.setxattr(cap / "f", "security.capability", value)
    assert os.getxattr(cap / "f", "security.capability") == value
    with fails("ENOTSUP"):
        os.setxattr(cap / "f", "security.other", b"1")
    os.setxattr(every / "f", "security.other", b"1")
    assert set(os.listxattr(every / "f")) == {"security.capability", "security.other"}
    assert os.listxattr(cap / "f") == ["security.capability"]
    assert os.listxattr(plain / "f") == [] == os.listxattr(none / "f")
    with fails("ENOTSUP"):
        os.setxattr(none / "f", "user.a", b"1")
    with fails("ENOTSUP"):
        os.getxattr(none / "f", "user.a")
    with open(cap / "f", "ab") as f:  # writing takes capabilities away
        f.write(b"y")
    with fails("ENODATA"):
        os.getxattr(cap / "f", "security.capability")


# ---- ACLs ----


@pytest.fixture
def acl(ws):
    for tool in ("setfacl", "getfacl"):
        assert shutil.which(tool), "install the package acl"
    return ws.volume("acl", enable_acl=True).mount()


def setfacl(path, *args):
    subprocess.run(["setfacl", *args, str(path)], check=True, timeout=20)


def getfacl(path, *args):
    r = subprocess.run(
        ["getfacl", "-cpnE", *args, str(path)],
        check=True,
        timeout=20,
        stdout=subprocess.PIPE,
        text=True,
    )
    return r.stdout.split()


def test_acl_round_trip(acl):
    f = acl / "f"
    write(f, b"x")
    os.chmod(f, 0o640)
    assert getfacl(f) == ["user::rw-", "group::r--", "other::---"]
    setfacl(f, "-m", "u:1001:rw,u:1000:r,g:2000:rwx,g:0:-")
    want = [
        "user::rw-",
        "user:1000:r--",
        "user:1001:rw-",
        "group::r--",
        "group:0:---",
        "group:2000:rwx",
        "mask::rwx",
        "other::---",
    ]
    assert getfacl(f) == want and mode(f) == 0o670
    assert "system.posix_acl_access" in os.listxattr(f)
    acl = acl.remount()
    assert getfacl(f) == want and mode(f) == 0o670
    setfacl(f, "-x", "u:1000,g:0,g:2000")
    assert getfacl(f)[1] == "user:1001:rw-" and mode(f) == 0o660
    setfacl(f, "-b")
    assert getfacl(f) == ["user::rw-", "group::r--", "other::---"] and mode(f) == 0o640
    assert os.listxattr(f) == []
    setfacl(f, "--set", "u::rwx,g::rx,o::r")  # says no more than a mode
    assert mode(f) == 0o754 and os.listxattr(f) == []


def test_acl_is_enforced(acl):
    f, d = acl / "f", acl / "d"
    write(f, b"secret")
    os.mkdir(d)
    write(d / "inside", b"")
    os.chmod(f, 0o600)
    os.chmod(d, 0o700)
    os.chmod(acl.path, 0o755)
    setfacl(f, "-m", "u:1000:r,g:2000:rw")
    setfacl(d, "-m", "u:1000:rx,g:2000:rwx")

    def can(fn):
        try:
            fn()
            return True
        except PermissionError:
            return False

    def rights():
        return (
            can(lambda: read(f)),
            can(lambda: os.close(os.open(f, os.O_WRONLY))),
            can(lambda: os.listdir(d)),
            can(lambda: os.stat(d / "inside")),
            can(lambda: (write(d / "new", b""), os.unlink(d / "new"))),
        )

    assert rights() == (True,) * 5
    with user(1000, 1000):
        assert rights() == (True, False, True, True, False)
    with user(1001, 2000):
        assert rights() == (True,) * 5
    with user(1001, 1001, [2000]):
        assert rights() == (True,) * 5
    with user(1001, 1001):
        assert rights() == (False,) * 5
    os.chmod(f, 0o640)  # the group bits are the mask
    assert "mask::r--" in getfacl(f)
    with user(1001, 2000):
        assert rights()[:2] == (True, False)
    os.chmod(f, 0o600)
    with user(1000, 1000):
        assert rights()[0] is False
    setfacl(f, "-m", "m::rw")
    with user(1000, 1000):
        assert rights()[0] is True
    setfacl(f, "-x", "u:1000")
    with user(1000, 1000):
        assert rights()[0] is False


def test_acl_inheritance(acl):
    d = acl / "d"
    os.mkdir(d)
    os.chmod(d, 0o755)
    setfacl(d, "-d", "-m", "u::rwx,u:1000:rwx,g::rx,o::-")
    os.umask(0o077)
    try:
        write(d / "f", b"")
        os.mkdir(d / "sub")
        os.symlink("x", d / "link")
        os.mkfifo(d / "fifo")
        with fails("EEXIST"):
            os.mkdir(d / "sub")
    finally:
        os.umask(0o022)
    # the umask is not applied; the mode asked for (0666) limits mask and owner
    assert getfacl(d / "f") == [
        "user::rw-",
        "user:1000:rwx",
        "group::r-x",
        "mask::rw-",
        "other::---",
    ]
    assert mode(d / "f") == 0o660 and mode(d / "fifo") == 0o660 and mode(d / "link") == 0o777
    access = ["user::rwx", "user:1000:rwx", "group::r-x", "mask::rwx", "other::---"]
    assert getfacl(d / "sub", "-a") == access
    assert getfacl(d / "sub", "-d") == access
    assert mode(d / "sub") == 0o770
    write(d / "sub/deep", b"")
    assert "user:1000:rwx" in getfacl(d / "sub/deep")
    setfacl(d, "-k")
    write(d / "plain", b"")
    assert mode(d / "plain") == 0o644 and os.listxattr(d / "plain") == []
    with fails("EACCES", "EINVAL"):
        value = os.getxattr(d / "sub", "system.posix_acl_default")
        os.setxattr(d / "f", "system.posix_acl_default", value)


def test_acl_only_of_ones_own_files(acl):
    os.chmod(acl.path, 0o777)
    write(acl / "f", b"")
    value = bytes.fromhex("0200000001000600ffffffff04000400ffffffff20000400ffffffff")
    os.setxattr(acl / "f", "system.posix_acl_access", value)
    os.chmod(acl / "f", 0o666)
    with user(1000, 1000):
        with fails("EPERM"):
            os.setxattr(acl / "f", "system.posix_acl_access", value)
        with fails("EPERM"):
            os.removexattr(acl / "f", "system.posix_acl_access")
    with fails("EINVAL"):
        os.setxattr(acl / "f", "system.posix_acl_access", b"\x02\0\0\0rubbish")


def test_acl_takes_setgid_from_strangers(acl):
    """Setting an ACL must not keep setgid of a group that its owner is not in."""
    for name, groups, kept in (("in", [3000], 0o2000), ("out", [], 0)):
        f = acl / name
        write(f, b"")
        os.chown(f, 1000, 3000)
        os.chmod(f, 0o2775)
        with user(1000, 1000, groups):
            setfacl_value(f, "u::rwx,u:1001:r,g::rx,m::rx,o::r")
        assert mode(f) & 0o2000 == kept, name
        assert "user:1001:r--" in getfacl(f)


def setfacl_value(path, text):
    """setfacl(1) in this process, with its identity."""
    import struct

    tags = {"u": 1, "g": 4, "m": 0x10, "o": 0x20}
    out = struct.pack("<I", 2)
    for entry in text.split(","):
        tag, who, perm = entry.split(":")
        bits = sum({"r": 4, "w": 2, "x": 1}[c] for c in perm if c != "-")
        number = int(who) if who else 0xFFFFFFFF
        out += struct.pack("<HHI", tags[tag] * (2 if who else 1), bits, number)
    os.setxattr(path, "system.posix_acl_access", out)


def test_acl_seen_by_a_second_mount(ws, acl):
    other = acl.volume.mount()
    write(acl / "f", b"")
    setfacl(acl / "f", "-m", "u:1000:rw")
    wait_until(lambda: "user:1000:rw-" in getfacl(other / "f"), 10, "the ACL on the other mount")
    os.chmod(other / "f", 0o600)
    wait_until(lambda: "mask::---" in getfacl(acl / "f"), 10, "the mask on the first mount")


def test_no_acl_without_the_volumes_consent(mnt):
    os.mkdir(mnt / "d")
    value = bytes.fromhex("0200000001000600ffffffff04000400ffffffff20000400ffffffff")
    for name in ("system.posix_acl_access", "system.posix_acl_default"):
        with fails("ENOTSUP"):
            os.setxattr(mnt / "d", name, value)
        with fails("ENOTSUP"):
            os.getxattr(mnt / "d", name)


def test_ls_asks_for_attributes_once(mnt):
    """ls -l takes a file system that does not support security.selinux at its word."""
    (mnt / "d").mkdir()
    for i in range(100):
        write(mnt / "d" / str(i), b"")
    log = os.open(mnt / ".accesslog", os.O_RDONLY)
    subprocess.run(["ls", "-l", mnt / "d"], check=True, stdout=subprocess.DEVNULL)
    asked = sum(" getxattr (" in x for x in lines_of(log))
    os.close(log)
    assert 1 <= asked <= 4
