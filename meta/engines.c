/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "meta/core-internal.h"

const struct cfs_engine_ops *const cfs_engines[] = {
	&cfs_engine_sqlite,
	NULL,
};

static bool has_word(const char *words, const char *word)
{
	size_t len = strlen(word);
	const char *p = words;

	while (len && (p = strstr(p, word))) {
		if ((p == words || p[-1] == ' ') && (p[len] == ' ' || p[len] == '\0'))
			return true;
		p += len;
	}
	return false;
}

const struct cfs_engine_ops *cfs_engine_for_scheme(const char *scheme)
{
	size_t i;

	for (i = 0; cfs_engines[i]; i++)
		if (has_word(cfs_engines[i]->schemes, scheme))
			return cfs_engines[i];
	return NULL;
}
