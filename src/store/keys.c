/* SPDX-License-Identifier: Apache-2.0 */
/* Object names of blocks (volume-format section 7). */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/activity.h"
#include "store-internal.h"

int cfs_store_block_key(const struct cfs_store *s, const struct cfs_block *b,
			char key[CFS_BLOCK_KEY_MAX])
{
	uint64_t million = b->slice / 1000 / 1000;
	int n;

	if (s->hash_prefix)
		n = snprintf(key, CFS_BLOCK_KEY_MAX,
			     "%s/chunks/%02X/%" PRIu64 "/%" PRIu64 "_%" PRIu32 "_%" PRIu32,
			     s->volume, (unsigned)(b->slice % 256), million, b->slice, b->index,
			     b->len);
	else
		n = snprintf(key, CFS_BLOCK_KEY_MAX,
			     "%s/chunks/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "_%" PRIu32 "_%" PRIu32,
			     s->volume, million, b->slice / 1000, b->slice, b->index, b->len);
	return n < CFS_BLOCK_KEY_MAX ? n : -ENAMETOOLONG;
}

void cfs_store_await_block(const struct cfs_store *s, const struct cfs_block *b)
{
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(s, b, key);
	cfs_activity_wait(CFS_WAIT_BLOCK, b->slice, key);
}
