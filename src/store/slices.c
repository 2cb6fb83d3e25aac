/* SPDX-License-Identifier: Apache-2.0 */
/* Slice ids that objects have. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store-internal.h"

/* Of ids modulo 256, with hash_prefix: one listing each. */
#define CLASSES 8

struct range {
	uint64_t first, end;
	size_t prefix; /* length */
	bool sorted;   /* the ids below the prefix have equally many digits */
};

enum { STOP_FOUND = 1, STOP_NONE };

static int note_key(void *arg, const struct cfs_object_info *info)
{
	const struct range *r = arg;
	char *end;
	uint64_t id = strtoull(info->key + r->prefix, &end, 10);

	if (*end != '_' || id < r->first)
		return 0;
	return id < r->end ? STOP_FOUND : r->sorted ? STOP_NONE : 0;
}

/* Lists the ids from `id` on in the directory that its blocks are in. */
static int list_from(struct cfs_store *s, uint64_t id, struct range *r, cfs_deadline_t deadline)
{
	/* No block is empty: this key is before those of the slice. */
	const struct cfs_block b = {.slice = id};
	char after[CFS_BLOCK_KEY_MAX], prefix[CFS_BLOCK_KEY_MAX];
	int rc = cfs_store_block_key(s, &b, after);

	if (rc < 0)
		return rc;
	memcpy(prefix, after, sizeof(prefix));
	strrchr(prefix, '/')[1] = '\0';
	r->prefix = strlen(prefix);
	r->sorted = id >= (s->hash_prefix ? 1000000 : 1000);
	rc = s->object->ops->list(s->object, prefix, r->sorted ? after : "", note_key, r, deadline);
	return rc == STOP_NONE || rc == -ENOENT ? 0 : rc;
}

int cfs_store_slices_used(struct cfs_store *s, uint64_t first, uint64_t n, cfs_deadline_t deadline)
{
	struct range r = {.first = first, .end = first + n};
	uint64_t id = first;
	int rc = 0;

	cfs_object_quiet(true);
	if (s->hash_prefix)
		for (; rc == 0 && id < first + CFS_MIN(n, (uint64_t)CLASSES); id++)
			rc = list_from(s, id, &r, deadline);
	else
		for (; rc == 0 && id < r.end; id = (id / 1000 + 1) * 1000)
			rc = list_from(s, id, &r, deadline);
	cfs_object_quiet(false);
	return rc;
}
