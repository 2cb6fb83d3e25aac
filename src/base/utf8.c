/* SPDX-License-Identifier: Apache-2.0 */
#include "utf8.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

size_t cfs_utf8_len(const void *at, size_t len)
{
	const uint8_t *p = at;
	size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
	size_t i;

	if (n > len || p[0] > 0xf4)
		return 0;
	for (i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
	    (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
		return 0; /* too long a form, a surrogate, too large */
	return n;
}

/* C0, DEL, and C1: U+0080 to U+009F. */
static int is_control(const uint8_t *p, size_t len)
{
	return (len == 1 && (p[0] < ' ' || p[0] == 0x7f)) ||
	       (len == 2 && p[0] == 0xc2 && p[1] < 0xa0);
}

char *cfs_printable(const char *text, char *buf, size_t size)
{
	const uint8_t *p = (const uint8_t *)text;
	size_t left = strlen(text), n = 0, len;

	for (; left; p += len, left -= len) {
		len = cfs_utf8_len(p, left);
		if (len && !is_control(p, len)) {
			if (n + len >= size)
				break;
			memcpy(buf + n, p, len);
			n += len;
			continue;
		}
		/* The second byte of a control character is none by itself, and follows as \\xNN. */
		len = 1;
		if (n + CFS_PRINTABLE_MAX >= size)
			break;
		if (*p == '\n' || *p == '\t')
			n += (size_t)snprintf(buf + n, size - n, "\\%c", *p == '\n' ? 'n' : 't');
		else
			n += (size_t)snprintf(buf + n, size - n, "\\x%02x", *p);
	}
	buf[n] = '\0';
	return buf;
}
