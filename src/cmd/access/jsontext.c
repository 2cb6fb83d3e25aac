/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/jsontext.h"

#include <string.h>

#include "base/cleanup.h"

json_t *json_text(const char *bytes)
{
	json_t *j = json_string(bytes);
	cfs_auto_free char *plain = NULL;
	char *p;

	if (j)
		return j;
	plain = strdup(bytes);
	for (p = plain; p && *p; p++) {
		if (*p & 0x80)
			*p = '?';
	}
	return plain ? json_string(plain) : NULL;
}

json_int_t json_get_int(const json_t *j, const char *key)
{
	return json_integer_value(json_object_get(j, key));
}

const char *json_get_text(const json_t *j, const char *key)
{
	const char *s = json_string_value(json_object_get(j, key));

	return s ? s : "";
}
