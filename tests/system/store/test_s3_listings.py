# SPDX-License-Identifier: Apache-2.0
"""Listings of a bucket, and removals of many objects: what is not listed gc takes for leaked or lost, so a
listing that is cut short must never pass for a whole one."""

import os
import re

import pytest

import proxy
from test_s3 import make_bucket, objtool, one_line, list_keys


def fill(ws, s3, n):
    """So many objects, put there as files, and their keys."""
    make_bucket(ws, s3)
    folder = s3.bucket("bkt")
    keys = ["d%02d/key %04d+&" % (i // 100, i) for i in range(n)]
    for i, key in enumerate(keys):
        path = folder / key
        if i % 100 == 0:
            path.parent.mkdir()
            os.chown(path.parent, s3.user.pw_uid, s3.user.pw_gid)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
    return sorted(keys)


@pytest.fixture
def many(ws, s3):
    return fill(ws, s3, 1234)


def test_list_of_many_pages(ws, s3, via):
    many = fill(ws, s3, 2345)
    url = via.url + "/bkt"
    r = list_keys(ws, s3, url)
    assert r["result"] == 0 and r["keys"] == many
    assert len(via.seen("GET")) == 3
    assert list_keys(ws, s3, url, "d07/")["keys"] == [k for k in many if k.startswith("d07/")]
    assert list_keys(ws, s3, url, after=many[1500])["keys"] == many[1501:]


PAGE_FAULTS = {
    "503": {"status": 503, "body": proxy.xml_error("SlowDown")},
    "500": {"status": 500},
    "cut": {"cut": 3000},
    "half": {"shorten": 5000},
    "one-tag": {"shorten": 3},
    "not-xml": {"rewrite": lambda b: b"<html>hello"},
    "other-xml": {"rewrite": lambda b: b"<html>hello</html>"},
    "no-word": {"rewrite": lambda b: re.sub(b"<IsTruncated>.*</IsTruncated>", b"", b)},
    "odd-word": {"rewrite": lambda b: b.replace(b"<IsTruncated>true", b"<IsTruncated>yes")},
    "no-token": {
        "rewrite": lambda b: re.sub(b"<NextContinuationToken>.*</NextContinuationToken>", b"", b)
    },
    "empty": {"rewrite": lambda b: b""},
}


@pytest.mark.parametrize("name", PAGE_FAULTS)
def test_list_error_on_page_two(ws, s3, via, many, name):
    """Once: the listing is complete, without doubles. For ever: it is an error, never an end."""
    url = via.url + "/bkt"
    skip = 0 if name in ("no-token", "odd-word") else 1  # the last page has none
    via.add("GET", skip=skip, times=1, **PAGE_FAULTS[name])
    r = list_keys(ws, s3, url)
    assert r["result"] == 0 and r["keys"] == many and r["retries"] == 1, r["stderr"]
    via.clear()
    via.add("GET", skip=skip, **PAGE_FAULTS[name])
    r = list_keys(ws, s3, url, deadline_ms=2000)
    assert r["result"] < 0, "a listing that was cut short passed for a whole one"
    assert r["keys"] == many[: len(r["keys"])] and len(r["keys"]) < len(many)
    one_line(r, "op=list")


def reordered(body):
    """As other servers have it: what is said of the page behind its keys, an owner before sizes."""
    about = b"".join(
        re.findall(
            b"<(?:IsTruncated|NextContinuationToken|EncodingType)>.*?"
            b"</(?:IsTruncated|NextContinuationToken|EncodingType)>",
            body,
        )
    )
    assert b"IsTruncated" in about
    for tag in (b"IsTruncated", b"NextContinuationToken", b"EncodingType"):
        body = re.sub(b"<%s>.*?</%s>" % (tag, tag), b"", body)
    owner = b"<Owner><ID>1</ID><DisplayName>me</DisplayName></Owner>"
    body = body.replace(b"<Key>", owner + b"<Key>")
    return body.replace(b"</ListBucketResult>", about + b"</ListBucketResult>")


def test_list_in_another_order_of_elements(ws, s3, via, many):
    path = ws.path("listed")
    plain = list_keys(ws, s3, s3.url + "/bkt") and path.read_text()
    via.add("GET", rewrite=reordered)
    r = list_keys(ws, s3, via.url + "/bkt")
    assert r["result"] == 0 and r["keys"] == many, r["stderr"]
    assert path.read_text() == plain, "sizes or times are lost, which gc judges by"


DAMAGE = {
    "no-time": lambda b: re.sub(b"<LastModified>.*?</LastModified>", b"", b, count=1),
    "other-zone": lambda b: re.sub(b"Z</LastModified>", b"-05:00</LastModified>", b, count=1),
    "no-zone": lambda b: re.sub(b"Z</LastModified>", b"</LastModified>", b, count=1),
    "no-size": lambda b: re.sub(b"<Size>.*?</Size>", b"", b, count=1),
    "negative-size": lambda b: re.sub(b"<Size>.*?</Size>", b"<Size>-1</Size>", b, count=1),
    "huge-size": lambda b: re.sub(b"<Size>.*?</Size>", b"<Size>%s</Size>" % (b"9" * 30), b, count=1),
    "encoded-nul": lambda b: re.sub(
        b"<Contents>.*?<Key>.",
        b"<EncodingType>url</EncodingType><Contents><Key>%00",
        re.sub(b"<EncodingType>.*?</EncodingType>", b"", b),
        count=1,
    ),
    "bytes": lambda b: re.sub(b"<Key>.", b"<Key>\xff\xfe", b, count=1),
    "deep": lambda b: b.replace(b"<Key>", b"<a>" * 5000 + b"</a>" * 5000 + b"<Key>", 1),
    "doctype": lambda b: b"<!DOCTYPE a [<!ENTITY b 'cc'>]>" + b[b.index(b"<ListBucketResult") :],
    "endless": lambda b: b.replace(b"<Contents>", b"<!--%s--><Contents>" % (b"x" * (12 << 20)), 1),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_list_that_makes_no_sense(ws, s3, via, many, name):
    """gc judges by key, size and time: what has none of them, or only half, is no listing."""
    via.add("GET", rewrite=DAMAGE[name])
    r = list_keys(ws, s3, via.url + "/bkt", deadline_ms=3000)
    assert r["result"] < 0 and r["keys"] == [], r
    one_line(r, "op=list")


def test_list_of_keys_outside_the_prefix(ws, s3, via, many):
    """A server that ignores the prefix: destroy would remove the objects of other volumes."""
    via.add("GET", rewrite=lambda b: b.replace(b"<Key>d07", b"<Key>d08", 1))
    r = list_keys(ws, s3, via.url + "/bkt", "d07/", deadline_ms=3000)
    assert r["result"] < 0 and r["keys"] == [], r
    one_line(r, "op=list")


def test_list_goes_in_circles(ws, s3, via, many):
    """Over several pages, for ever: a gc would fill its disk with them."""
    n = iter(range(1 << 30))

    def circle(body):
        body = re.sub(b"<IsTruncated>.*</IsTruncated>", b"<IsTruncated>true</IsTruncated>", body)
        body = re.sub(b"<NextContinuationToken>.*</NextContinuationToken>", b"", body)
        token = b"<NextContinuationToken>t%d</NextContinuationToken>" % (next(n) % 3)
        return body.replace(b"</ListBucketResult>", token + b"</ListBucketResult>")

    via.add("GET", rewrite=circle)
    r = list_keys(ws, s3, via.url + "/bkt", deadline_ms=10000)
    assert r["error"] == "EPROTO" and len(via.seen("GET")) < 20, r
    one_line(r, "the listing repeats a page token")


def test_list_denied(ws, s3, via, many):
    via.add("GET", skip=1, status=403, body=proxy.xml_error("AccessDenied"))
    r = list_keys(ws, s3, via.url + "/bkt")
    assert r["error"] == "EACCES" and len(via.seen("GET")) == 2


# -- removal


def test_delete_many(ws, s3, via, many):
    url = via.url + "/bkt"
    gone = many[:1100] + ["never/was <&>"]
    r = objtool(ws, s3, url, "del", *gone)
    assert r["result"] == 0 and len(via.seen("POST")) == 2 and not via.seen("DELETE")
    assert list_keys(ws, s3, url)["keys"] == many[1100:]


def test_delete_many_partly_denied(ws, s3, via, many):
    body = (
        "<DeleteResult><Error><Key>a</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
        "<Error><Key>b</Key><Code>NoSuchKey</Code></Error></DeleteResult>"
    )
    via.add("POST", status=200, body=body)
    r = objtool(ws, s3, via.url + "/bkt", "del", "a", "b", "c")
    assert r["error"] == "EACCES"
    one_line(r, "1 not removed, AccessDenied")


def test_delete_many_where_there_is_none(ws, s3, via, many):
    via.add("POST", status=501, body=proxy.xml_error("NotImplemented"))
    url = via.url + "/bkt"
    assert objtool(ws, s3, url, "del", *many[:20])["result"] == 0
    assert len(via.seen("DELETE")) == 20 and list_keys(ws, s3, url)["keys"] == many[20:]
