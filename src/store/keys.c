/* SPDX-License-Identifier: Apache-2.0 */
/* Object names of blocks (volume-format section 7). */
#include <errno.h>

#include "base/activity.h"
#include "cachedir/cachedir.h"
#include "store-internal.h"

int cfs_store_block_key(const struct cfs_store *s, const struct cfs_block *b,
			char key[CFS_BLOCK_KEY_MAX])
{
	int n = cfs_cachedir_name(s->volume, b, s->hash_prefix, key, CFS_BLOCK_KEY_MAX);

	return n < CFS_BLOCK_KEY_MAX ? n : -ENAMETOOLONG;
}

void cfs_store_await_block(const struct cfs_store *s, const struct cfs_block *b)
{
	char key[CFS_BLOCK_KEY_MAX];

	cfs_store_block_key(s, b, key);
	cfs_activity_wait(CFS_WAIT_BLOCK, b->slice, key);
}
