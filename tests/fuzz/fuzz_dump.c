/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The readers of dumps, JSON and binary, also compressed. Rows that reach the metadata can be
 * rows of a volume: names that the kernel takes, lengths that files can have, lists of bytes that
 * are there.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "cmd/dump/load.h"
#include "fuzz.h"
#include "rows.h"

int __wrap_cfs_meta_load_begin(struct cfs_meta *m, bool trash, bool restart, char err[256]);
int __wrap_cfs_meta_put_rows(struct cfs_meta *m, enum cfs_meta_table table,
			     const struct cfs_row *rows, size_t n);
int __wrap_cfs_meta_put_quota(struct cfs_meta *m, const struct cfs_ctx *ctx,
			      const struct cfs_quota *q);
int __wrap_cfs_meta_put_ended_session(struct cfs_meta *m, uint64_t sid);
int __wrap_cfs_meta_load_end(struct cfs_meta *m, const char *setting, char err[256]);

static __attribute__((constructor)) void log_nothing(void)
{
	cfs_log_init(CFS_LOG_STDERR, (enum cfs_log_level)0);
}

int __wrap_cfs_meta_load_begin(struct cfs_meta *m, bool trash, bool restart, char err[256])
{
	return 0;
}

static void check_row(enum cfs_meta_table table, const struct cfs_row *row)
{
	switch (table) {
	case CFS_TABLE_NODE:
		check(row->attr.type >= CFS_TYPE_FILE && row->attr.type <= CFS_TYPE_SOCKET);
		check(row->attr.length < CFS_FILE_MAX);
		check(row->attr.mtime.tv_nsec >= 0 && row->attr.mtime.tv_nsec < 1000000000);
		break;
	case CFS_TABLE_EDGE:
		check(row->edge.name_len > 0 && row->edge.name_len <= CFS_NAME_MAX);
		check(!memchr(row->edge.name, '/', row->edge.name_len));
		check(!memchr(row->edge.name, '\0', row->edge.name_len));
		break;
	case CFS_TABLE_XATTR:
		check(row->xattr.name_len > 0);
		break;
	default:
		break;
	}
	touch_row(table, row);
}

int __wrap_cfs_meta_put_rows(struct cfs_meta *m, enum cfs_meta_table table,
			     const struct cfs_row *rows, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		check_row(table, &rows[i]);
	return 0;
}

int __wrap_cfs_meta_put_quota(struct cfs_meta *m, const struct cfs_ctx *ctx,
			      const struct cfs_quota *q)
{
	return 0;
}

int __wrap_cfs_meta_put_ended_session(struct cfs_meta *m, uint64_t sid)
{
	return 0;
}

int __wrap_cfs_meta_load_end(struct cfs_meta *m, const char *setting, char err[256])
{
	check(setting != NULL);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int fd = -1;
	struct load l = {0};
	char path[64];
	int c, r;

	if (fd < 0)
		fd = memfd_create("dump", MFD_CLOEXEC);
	check(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (stream_open(path, &l.in, l.err) < 0)
		return 0;
	c = stream_peek(l.in);
	r = c == '{' || c == ' ' || c == '\n' ? load_json(&l) : load_binary(&l);
	if (!r)
		r = load_finish(&l);
	check(r <= 0);
	stream_close_in(l.in);
	load_free(&l);
	return 0;
}
