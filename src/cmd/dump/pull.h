/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads JSON text piece by piece: the caller says what it expects next. Errors stick and name the
 * line; after an error every function returns -EBADMSG.
 */
#ifndef CFS_CMD_PULL_H
#define CFS_CMD_PULL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cmd/dump/stream.h"

struct pull;
int pull_create(struct stream_in *in, struct pull **ret);
void pull_destroy(struct pull *p);
/* The reason of the failure, one line. */
const char *pull_error(const struct pull *p);
/* Records a failure that the caller has found. Returns -EBADMSG. */
__attribute__((format(printf, 2, 3))) int pull_fail(struct pull *p, const char *fmt, ...);

/*
 * Members of an object: bool first = true; while ((r = pull_key(p, &first, &key)) > 0) { value }.
 * key lives until the next call. 0 at the end. null is an empty object.
 */
int pull_key(struct pull *p, bool *first, const char **ret_key);
/* As pull_key(), for the items of an array. */
int pull_item(struct pull *p, bool *first);
int pull_int(struct pull *p, int64_t *ret);
/* Reads the member `key` into the element that has its name. Ignores one of another name. */
int pull_number(struct pull *p, const char *key, const char *const names[], size_t n, int64_t *ret);
/*
 * Reads an object's members of these names, which are numbers; a missing one is 0. Ignores others.
 */
int pull_numbers(struct pull *p, const char *const names[], size_t n, int64_t *ret);
/* Decoded, %XX too when `percent`; valid until the next call. */
int pull_text(struct pull *p, bool percent, const char **ret, size_t *ret_len);
/* Decodes %XX; out is terminated. Returns the length, 0 when there is no room. */
size_t pull_unescape(const char *text, char *out, size_t size);
/* Skips any value; with `ret` returns its text, malloc'ed. */
int pull_value(struct pull *p, char **ret);
/* Whether only blanks are left. */
int pull_end(struct pull *p);

#endif
