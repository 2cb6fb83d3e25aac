/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "meta/engine/engine.h"

#define LINE_MAX_BYTES 4096

static const char blanks[] = " \t\r\n";

/* *ret stays NULL for an empty password. */
static int copy(const char *secret, size_t len, char **ret)
{
	if (!len)
		return 0;
	*ret = strndup(secret, len);
	return *ret ? 0 : -ENOMEM;
}

static int read_password(const char *path, char **ret, char err[256])
{
	char line[LINE_MAX_BYTES] = "", *start;
	FILE *f = fopen(path, "re");
	size_t len;
	int r = f ? 0 : -errno;

	/* fgets() fails without an error at the end of an empty file. */
	errno = 0;
	if (f && !fgets(line, sizeof(line), f))
		r = -errno;
	if (f)
		fclose(f);
	if (r)
		return cfs_fail(err, -EACCES, "cannot read META_PASSWORD_FILE: %.150s: %s", path,
				strerror(-r));
	start = line + strspn(line, blanks);
	len = strlen(start);
	while (len && strchr(blanks, start[len - 1]))
		len--;
	r = copy(start, len, ret);
	explicit_bzero(line, sizeof(line));
	return r;
}

int cfs_engine_password(char **ret, char err[256])
{
	const char *secret = getenv("META_PASSWORD"), *path = getenv("META_PASSWORD_FILE");

	if (secret && *secret)
		return copy(secret, strlen(secret), ret);
	return path && *path ? read_password(path, ret, err) : 0;
}
