/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CFS_CMD_JSONTEXT_H
#define CFS_CMD_JSONTEXT_H

#include <jansson.h>

/* A JSON string from arbitrary bytes, such as a path: bytes that are not UTF-8 become '?'. */
json_t *json_text(const char *bytes);

/* A member of an object; 0 or "" when it is missing. */
json_int_t json_get_int(const json_t *j, const char *key);
const char *json_get_text(const json_t *j, const char *key);

#endif
