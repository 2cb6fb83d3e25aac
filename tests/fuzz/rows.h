/* SPDX-License-Identifier: Apache-2.0 */
/* For fuzz targets: reads the bytes that a row of the metadata names, so that sanitizers see them. */
#ifndef CFS_TESTS_FUZZ_ROWS_H
#define CFS_TESTS_FUZZ_ROWS_H

#include <cachefs/meta.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline void touch(const void *p, size_t len)
{
	static volatile uint8_t sink;
	const uint8_t *b = p;
	size_t i;

	for (i = 0; i < len; i++)
		sink ^= b[i];
}

static inline void touch_row(enum cfs_meta_table table, const struct cfs_row *row)
{
	switch (table) {
	case CFS_TABLE_EDGE:
		touch(row->edge.name, row->edge.name_len);
		break;
	case CFS_TABLE_CHUNK:
	case CFS_TABLE_DELAYED:
		touch(row->list.slices, row->list.n * sizeof(*row->list.slices));
		break;
	case CFS_TABLE_SYMLINK:
		touch(row->symlink.target, row->symlink.len);
		break;
	case CFS_TABLE_XATTR:
		touch(row->xattr.name, row->xattr.name_len);
		touch(row->xattr.value, row->xattr.value_len);
		break;
	case CFS_TABLE_ACL:
		touch(row->acl.rule, row->acl.len);
		break;
	case CFS_TABLE_COUNTER:
		touch(row->counter.name, strlen(row->counter.name));
		break;
	default:
		break;
	}
}

#endif
