/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/sets/tempfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"

static const char *folder(void)
{
	const char *dir = getenv("TMPDIR");

	return dir && *dir ? dir : "/var/tmp";
}

int temp_error(int err)
{
	cfs_err("a temporary file failed, the command ends: dir=%s error=%s", folder(),
		cfs_errname(err));
	return err;
}

int temp_open(void)
{
	char path[4096];
	int fd = open(folder(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL))
		return fd < 0 ? temp_error(-errno) : fd;
	if ((size_t)snprintf(path, sizeof(path), "%s/cachefs-XXXXXX", folder()) >= sizeof(path))
		return temp_error(-ENAMETOOLONG);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return temp_error(-errno);
	unlink(path);
	return fd;
}

int temp_stream(FILE **ret)
{
	int fd = temp_open(), r;

	if (fd < 0)
		return fd;
	*ret = fdopen(fd, "w+");
	if (*ret)
		return 0;
	r = -errno;
	close(fd);
	return temp_error(r);
}

static int transfer(int fd, void *data, size_t len, uint64_t off, bool out)
{
	uint8_t *p = data;
	ssize_t n;

	for (; len; p += n, off += (size_t)n, len -= (size_t)n) {
		n = out ? pwrite(fd, p, len, (off_t)off) : pread(fd, p, len, (off_t)off);
		if (n < 0 && errno == EINTR)
			n = 0;
		else if (n <= 0)
			return temp_error(n < 0 ? -errno : -EIO);
	}
	return 0;
}

int temp_write(int fd, const void *data, size_t len, uint64_t off)
{
	return transfer(fd, (void *)data, len, off, true);
}

int temp_read(int fd, void *data, size_t len, uint64_t off)
{
	return transfer(fd, data, len, off, false);
}
