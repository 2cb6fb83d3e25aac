/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/diag/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/bytes.h"
#include "base/clock.h"

#define BLOCK 512

struct tar {
	gzFile out;
	int err;
};

struct header {
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100];
	char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], pad[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a header is a block");

int tar_create(const char *path, struct tar **ret)
{
	struct tar *t = calloc(1, sizeof(*t));
	int fd, r;

	if (!t)
		return -ENOMEM;
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	r = fd < 0 ? -errno : 0;
	if (r == 0) {
		t->out = gzdopen(fd, "wb");
		r = t->out ? 0 : -ENOMEM;
		if (r < 0)
			close(fd);
	}
	if (r < 0) {
		free(t);
		return r;
	}
	*ret = t;
	return 0;
}

static void put(struct tar *t, const void *data, size_t len)
{
	if (t->err == 0 && len && gzwrite(t->out, data, (unsigned)len) != (int)len)
		t->err = errno ? -errno : -EIO;
}

void tar_add(struct tar *t, const char *name, const void *text, size_t len)
{
	static const char zeros[BLOCK];
	struct header h = {.type = '0', .magic = "ustar", .version = {'0', '0'}};
	unsigned sum = 0;
	size_t i;

	snprintf(h.name, sizeof(h.name), "%s", name);
	snprintf(h.mode, sizeof(h.mode), "%07o", 0600u);
	snprintf(h.uid, sizeof(h.uid), "%07o", 0u);
	snprintf(h.gid, sizeof(h.gid), "%07o", 0u);
	snprintf(h.size, sizeof(h.size), "%011zo", len);
	snprintf(h.mtime, sizeof(h.mtime), "%011llo", (unsigned long long)cfs_wall_s());
	/* The checksum counts its own field as blanks. */
	memset(h.sum, ' ', sizeof(h.sum));
	for (i = 0; i < sizeof(h); i++)
		sum += ((const unsigned char *)&h)[i];
	snprintf(h.sum, sizeof(h.sum), "%06o", sum);
	put(t, &h, sizeof(h));
	put(t, text, len);
	put(t, zeros, (BLOCK - len % BLOCK) % BLOCK);
}

int tar_finish(struct tar *t)
{
	static const char end[2 * BLOCK];
	int r;

	put(t, end, sizeof(end));
	r = t->err;
	if (gzclose(t->out) != Z_OK && r == 0)
		r = errno ? -errno : -EIO;
	free(t);
	return r;
}
