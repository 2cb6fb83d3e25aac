#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The status page as a C header: its bytes, and a policy that allows its own style and script."""

import base64
import hashlib
import re
import sys

source, target = sys.argv[1:]
page = open(source, encoding="utf-8", newline="").read()


def allowed(tag):
    (text,) = re.findall(r"<%s>(.*?)</%s>" % (tag, tag), page, re.S)
    return "'sha256-%s'" % base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


policy = (
    "default-src 'none'; script-src %s; style-src %s; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'" % (allowed("script"), allowed("style"))
)
data = page.encode()
lines = [", ".join("0x%02x" % b for b in data[i : i + 16]) for i in range(0, len(data), 16)]
with open(target, "w") as out:
    out.write("/* Made from %s. */\n" % source.rsplit("/", 1)[-1])
    out.write('#define STATUS_PAGE_POLICY "%s"\n' % policy)
    out.write("static const unsigned char status_page[] = {\n\t%s\n};\n" % ",\n\t".join(lines))
