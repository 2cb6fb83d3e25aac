/* SPDX-License-Identifier: Apache-2.0 */
/* The password from outside the URL (volume-format section 1). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meta/sql/sql-internal.h"

#define SECRET_MAX 4096

static char *trimmed(char *line)
{
	size_t n;

	line += strspn(line, " \t\r\n");
	for (n = strlen(line); n && strchr(" \t\r\n", line[n - 1]); n--)
		line[n - 1] = '\0';
	return line;
}

int sql_password(char **ret, char err[256])
{
	const char *secret = getenv("META_PASSWORD"), *path = getenv("META_PASSWORD_FILE");
	char line[SECRET_MAX] = "";
	FILE *f;
	int r;

	if (!secret || !*secret) {
		if (!path || !*path)
			return 0;
		f = fopen(path, "re");
		if (!f) {
			r = -errno;
			snprintf(err, 256, "META_PASSWORD_FILE: %.150s: %s", path, strerror(-r));
			return r;
		}
		if (!fgets(line, sizeof(line), f))
			line[0] = '\0';
		fclose(f);
		secret = trimmed(line);
	}
	*ret = strdup(secret);
	explicit_bzero(line, sizeof(line));
	return *ret ? 0 : -ENOMEM;
}
