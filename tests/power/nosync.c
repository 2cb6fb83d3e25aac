/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded: syncs of files whose path contains NOSYNC answer 0 and do nothing. So tests/power/run
 * shows that it finds a program that forgets them.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libc.h"

static int silent(int fd)
{
	const char *part = getenv("NOSYNC");
	char link[64], path[PATH_MAX];
	int saved = errno;
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	errno = saved;
	if (!part || n < 0)
		return 0;
	path[n] = 0;
	return strstr(path, part) != NULL;
}

int fsync(int fd)
{
	return silent(fd) ? 0 : CALL(fsync)(fd);
}

int fdatasync(int fd)
{
	return silent(fd) ? 0 : CALL(fdatasync)(fd);
}

int syncfs(int fd)
{
	return silent(fd) ? 0 : CALL(syncfs)(fd);
}
