/* SPDX-License-Identifier: Apache-2.0 */
/* Slice ids that objects have. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/activity.h"
#include "store-internal.h"

/* Of ids modulo 256, with hash_prefix: one listing each. */
#define CLASSES 8

struct range {
	uint64_t first, end;
	size_t prefix; /* length */
	uint64_t ten;  /* ids with equally many digits, which are listed in order, are below */
};

enum { STOP_FOUND = 1, STOP_NONE };

static int note_key(void *arg, const struct cfs_object_info *info)
{
	const struct range *r = arg;
	char *end;
	uint64_t id = strtoull(info->key + r->prefix, &end, 10);

	if (*end != '_' || id < r->first)
		return 0;
	return id < r->end ? STOP_FOUND : id < r->ten ? STOP_NONE : 0;
}

static uint64_t next_ten(uint64_t id)
{
	uint64_t ten = 10;

	while (ten <= id)
		ten *= 10;
	return ten;
}

/* Lists the ids from `id` on that have as many digits, in the directory that its blocks are in. */
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
	r->ten = next_ten(id);
	cfs_activity_wait(CFS_WAIT_OBJECT_LIST, id, prefix);
	rc = s->object->ops->list(s->object, prefix, after, note_key, r, deadline);
	cfs_activity_wait_end();
	return rc == STOP_NONE || rc == -ENOENT ? 0 : rc;
}

int cfs_store_slices_used(struct cfs_store *s, uint64_t first, uint64_t n, cfs_deadline_t deadline)
{
	struct range r = {.first = first, .end = first + n};
	uint64_t per_dir = s->hash_prefix ? 1000000 : 1000, from = first, id;
	int rc = 0;

	cfs_object_quiet(true);
	while (rc == 0 && from < r.end) {
		for (id = from; rc == 0 && id < r.end && id < from + (s->hash_prefix ? CLASSES : 1);
		     id++)
			rc = list_from(s, id, &r, deadline);
		from = CFS_MIN((from / per_dir + 1) * per_dir, next_ten(from));
	}
	cfs_object_quiet(false);
	return rc;
}
