/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CFS_CMD_JSONTEXT_H
#define CFS_CMD_JSONTEXT_H

#include <jansson.h>

/* A string for JSON from bytes that may be any, such as a path: what is not UTF-8 becomes '?'. */
json_t *json_text(const char *bytes);

#endif
