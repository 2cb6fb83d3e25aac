/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON whose numbers keep their text. The library's integers end at 2^63, and it refuses a text
 * with a greater one; its reals lose digits. Text that others wrote goes through these two, so that
 * a number comes out as it went in. One that the library cannot hold exactly is a string there, of
 * a mark and the text of the number.
 */
#ifndef CFS_BASE_JSON_H
#define CFS_BASE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* As json_loadb() and json_dumps(); NULL is also "out of memory". */
json_t *cfs_json_load(const char *text, size_t len, json_error_t *err);
char *cfs_json_dump(const json_t *j, size_t flags);

json_t *cfs_json_u64(uint64_t v);
/* False: no integer, or none from 0 to 2^64 - 1. */
bool cfs_json_get_u64(const json_t *j, uint64_t *ret);

#endif
