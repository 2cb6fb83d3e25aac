# SPDX-License-Identifier: Apache-2.0
"""Bodies that change between a mount and its bucket, with the right length and without an error. A
failure here is a wrong byte: in an application, in a cache where it stays, or in the bucket."""

import itertools
import json
import os
import random

import proxy
import pytest

from cachefs import wait_until
from s3volume import S3Volume
from syscalls import data, read, write
from test_s3 import get_file, make_bucket, put_file, tls  # noqa: F401  (a fixture)

BLOCK = 256 << 10
FILES = 4


def flip(body, place=0):
    if len(body) < 20:
        return body
    at = (len(body) // 3 + place) % len(body)
    return body[:at] + bytes([body[at] ^ 4]) + body[at + 1 :]


DOWN = {
    "flip": {"rewrite": flip},
    "truncate": {"shorten": 7},
    "repeat": {"rewrite": lambda body: body + body},
    "swap-body": {"swap": "body"},
    "swap-answer": {"swap": "answer"},
}
UP = {
    "flip": {"rewrite_request": flip},
    "truncate": {"rewrite_request": lambda body: body[:-7]},
    "repeat": {"rewrite_request": lambda body: body + body},
    "swap": {"swap_request": True},
    "lose": {"lose": True},
}
# compression, options of the mount
WAYS = {
    "plain": ({}, ""),
    "disk-cache": ({}, "cache-dir=%s"),
    "lz4": ({"compress": "lz4"}, ""),
    "lz4-disk-cache": ({"compress": "lz4"}, "cache-dir=%s"),
    "aes": ({"encrypt_rsa_key": "key.pem"}, ""),
    "lz4-aes": ({"compress": "lz4", "encrypt_rsa_key": "key.pem"}, ""),
    "aes-disk-cache": ({"encrypt_rsa_key": "key.pem"}, "cache-dir=%s"),
}


def make_volume(ws, s3, **extra):
    if "encrypt_rsa_key" in extra:
        key = ws.path(extra["encrypt_rsa_key"])
        ws.run("openssl", "genrsa", "-out", key, "2048", check=True)
        extra["encrypt_rsa_key"] = key
    return S3Volume(ws, s3, block_size="256K", **extra)


def contents():
    """Files whose blocks differ, and have the same lengths, compressed or not."""
    return {"f%d" % i: data(3 * BLOCK + 5000, 40 + i) for i in range(FILES)}


def options(ws, via, opts):
    return ",".join(
        filter(None, [opts % ws.path("cache") if "%" in opts else opts, "bucket=" + via.url + "/bucket"])
    )


def read_all(mnt, want, seed):
    """Ranges in no order, small and large, then all of it."""
    rng = random.Random(seed)
    for _ in range(60):
        name = rng.choice(list(want))
        size = rng.choice((1, 4096, 100_000, 300_000))
        off = rng.randrange(len(want[name]))
        with open(mnt / name, "rb", buffering=0) as f:
            assert os.pread(f.fileno(), size, off) == want[name][off : off + size], (name, off)
    for name, content in want.items():
        assert read(mnt / name) == content, name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DOWN)
def test_download_that_changes(ws, s3, via, way, name):
    """Every second answer is not what the bucket sent."""
    extra, opts = WAYS[way]
    vol = make_volume(ws, s3, **extra)
    want = contents()
    mnt = vol.mount()
    for file, content in want.items():
        write(mnt / file, content)
    mnt.umount()
    via.keeping = True
    fault = via.add("GET", "chunks/", every=2, **DOWN[name])
    mnt = vol.mount(options(ws, via, opts))
    read_all(mnt, want, 1)
    assert fault.hits >= 5
    if "swap" in DOWN[name]:
        assert fault.done >= 2
    if name != "truncate" and name != "repeat":
        assert mnt.stat("object_damaged_total") >= 2
        assert "bytes were damaged on their way, trying again: op=get key=vol/chunks/" in mnt.log()
    if opts:
        wait_until(lambda: mnt.stat("disk_cache_blocks") >= 12, 20, "blocks in the cache")
    mnt.umount()
    if opts:  # what has got into the cache
        via.clear()
        mnt = vol.mount(options(ws, via, opts))
        read_all(mnt, want, 2)
        assert mnt.stat("disk_cache_hits_total") > 0
        mnt.umount()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", UP)
def test_upload_that_changes(ws, s3, via, way, name):
    """Every second upload arrives as something else, or not at all, and is answered with 200."""
    extra, opts = WAYS[way]
    vol = make_volume(ws, s3, **extra)
    via.keeping = True
    fault = via.add("PUT", "chunks/", every=2, **UP[name])
    want = contents()
    mnt = vol.mount(options(ws, via, opts))
    for file, content in want.items():
        write(mnt / file, content, sync=True)
    assert fault.done >= 2 and mnt.stat("object_damaged_total") >= 2
    assert "bytes were damaged on their way, trying again: op=put key=vol/chunks/" in mnt.log()
    read_all(mnt, want, 3)
    mnt.umount()
    mnt = vol.mount()
    read_all(mnt, want, 4)
    mnt.umount()


def test_bodies_behind_tls(ws, s3, tls):  # noqa: F811
    """TLS may end at a balancer, which changes bytes as well as any other machine does."""
    p = proxy.Proxy(s3.address, cert=tls / "host.pem")
    ws.cleanups.append(p.close)
    vol = make_volume(ws, s3)
    fault = p.add("PUT", "chunks/", every=2, rewrite_request=flip)
    want = contents()
    opts = "cache-dir=%s,bucket=%s/bucket?ca-certs=%s/ca.pem" % (ws.path("cache"), p.url, tls)
    mnt = vol.mount(opts)
    for file, content in want.items():
        write(mnt / file, content, sync=True)
    assert fault.done >= 2 and mnt.stat("object_damaged_total") >= 2
    assert all("x-amz-checksum-crc32c" in r.headers for r in p.seen("PUT", "chunks/"))
    mnt.umount()
    p.clear()
    fault = p.add("GET", "chunks/", every=2, rewrite=flip)
    mnt = vol.mount(opts.replace("/cache,", "/other-cache,"))
    read_all(mnt, want, 7)
    assert fault.hits >= 5 and mnt.stat("object_damaged_total") >= 2
    mnt.umount()


def strip(vol, *names):
    """Takes user metadata from the objects of a volume, as if another client had written them."""
    n = 0
    for folder, _, files in os.walk(vol.s3.bucket("bucket")):
        for path in (os.path.join(folder, f) for f in files):
            kept = json.loads(os.getxattr(path, "user.metadata"))
            for name in names:
                n += kept.pop(name, None) is not None
            os.setxattr(path, "user.metadata", json.dumps(kept).encode())
    return n


CARRIES = {
    "whole": ("cachefs-crc32c",),
    "nothing": ("cachefs-crc32c", "crc32c"),
}


@pytest.mark.parametrize("etag", ("etag", "no-etag"))
@pytest.mark.parametrize("carries", CARRIES)
def test_objects_of_another_client(ws, s3, via, carries, etag):
    """Where no part can be verified the whole is fetched; where nothing can, its MD5 or a second
    answer vouches for it."""
    vol = S3Volume(ws, s3, block_size="256K")
    want = contents()
    mnt = vol.mount()
    for file, content in want.items():
        write(mnt / file, content)
    mnt.umount()
    assert strip(vol, *CARRIES[carries]) >= 12
    if etag == "no-etag":
        for folder, _, files in os.walk(vol.s3.bucket("bucket")):
            for f in files:
                os.setxattr(os.path.join(folder, f), "user.etag", b'"%s"' % (b"0123" * 8))
    # Each time at another place: two answers that are damaged alike are equal.
    places = itertools.count(1)
    fault = via.add("GET", "chunks/", every=3, rewrite=lambda body: flip(body, next(places)))
    mnt = vol.mount(options(ws, via, "cache-dir=%s"))
    read_all(mnt, want, 5)
    assert fault.hits >= 5
    mnt.umount()
    via.clear()
    mnt = vol.mount(options(ws, via, "cache-dir=%s"))
    read_all(mnt, want, 6)
    mnt.umount()


def test_part_is_fetched_as_a_part(ws, s3, via):
    """A small read of an object with a table costs 128 KiB, and of one without the block, once."""
    vol = S3Volume(ws, s3)
    content = data(4 << 20, 50)
    mnt = vol.mount()
    write(mnt / "f", content)
    mnt.umount()
    for n in (0, 1):
        assert n == 0 or strip(vol, "cachefs-crc32c") >= 1
        mnt = vol.mount(options(ws, via, "prefetch=0"))
        with open(mnt / "f", "rb", buffering=0) as f:
            for off in (2 << 20, 3 << 20, 1 << 20):
                assert os.pread(f.fileno(), 4096, off) == content[off : off + 4096]
        got = mnt.stat('object_data_bytes_total{method="get"}')
        assert got == (4 << 20 if n else 3 * (128 << 10)), got
        mnt.umount()


def test_server_that_does_not_verify(ws, s3, via):
    """Without its word that a CRC32C was checked uploads carry hashes, the first one over again."""
    make_bucket(ws, s3)
    url, content = via.url + "/bkt", data(300_000)

    def silence(head):
        return b"\r\n".join(
            line for line in head.split(b"\r\n") if b"checksum" not in line.lower()
        )

    via.edit_head = silence
    r = put_file(ws, s3, url, "a", content)
    first, second = via.seen("PUT")
    assert r["result"] == 0 and first.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert "content-md5" in second.headers and len(second.headers["x-amz-content-sha256"]) == 64


def test_hashes_are_verified(ws, s3, via):
    """With disable-checksum nothing but MD5 and SHA-256 tells that an upload has changed."""
    make_bucket(ws, s3)
    url, content = via.url + "/bkt?disable-checksum=true", data(300_000)
    via.add("PUT", times=2, rewrite_request=flip)
    r = put_file(ws, s3, url, "a", content)
    assert r["result"] == 0 and r["damaged"] == 2
    assert "x-amz-meta-crc32c" not in via.seen("PUT")[0].headers
    via.add("GET", times=1, rewrite=flip)
    assert get_file(ws, s3, url, "a")["bytes"] == content


def test_upload_with_another_etag(ws, s3, via):
    """With verify-etag an object is stored again when its MD5 is not that of what was sent."""
    make_bucket(ws, s3)
    via.add("PUT", times=1, status=200, headers={"ETag": '"0123456789abcdef0123456789abcdef"'})
    r = put_file(ws, s3, via.url + "/bkt?verify-etag=true&disable-checksum=true", "y", b"content")
    assert r["result"] == 0 and r["retries"] == 1
    assert s3.bucket("bkt").joinpath("y").read_bytes() == b"content"
