/* SPDX-License-Identifier: Apache-2.0 */
/* Names are arbitrary bytes; these functions tell which of them are readable text. */
#ifndef CFS_UTF8_H
#define CFS_UTF8_H

#include <stddef.h>

/* Bytes of the UTF-8 character that begins here; 0: none does. len > 0. */
size_t cfs_utf8_len(const void *at, size_t len);

/* The longest that cfs_printable() makes of one byte. */
#define CFS_PRINTABLE_MAX 4

/*
 * Copies text for a terminal or a log: control characters, which a terminal obeys, and bytes that
 * are no UTF-8 become \n, \t or \xNN, the rest stays. Always terminated; cut to what has room.
 * Returns buf.
 */
char *cfs_printable(const char *text, char *buf, size_t size);

#endif
