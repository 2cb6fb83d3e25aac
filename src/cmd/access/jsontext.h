/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CFS_CMD_JSONTEXT_H
#define CFS_CMD_JSONTEXT_H

#include <jansson.h>

/* A JSON string from arbitrary bytes, such as a path: bytes that are not UTF-8 become '?'. */
json_t *json_text(const char *bytes);

#endif
