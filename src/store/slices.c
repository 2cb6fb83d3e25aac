/* SPDX-License-Identifier: Apache-2.0 */
/* Slice ids that objects have. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/activity.h"
#include "base/unwanted.h"
#include "base/workers.h"
#include "store-internal.h"

/* Of ids modulo 256, with hash_prefix: one listing each. */
#define CLASSES 8
#define AT_ONCE 8
/* Of a batch of 4096: four lengths of ids, or two directories, in each class. */
#define LISTINGS_MAX (4 * CLASSES)

struct range {
	uint64_t first, end;
	size_t prefix;	     /* length */
	uint64_t digits_end; /* ids below it, with equally many digits, are listed in order */
};

enum { STOP_FOUND = 1, STOP_NONE };

static int note_key(void *arg, const struct cfs_object_info *info)
{
	const struct range *r = arg;
	char *end;
	uint64_t id = strtoull(info->key + r->prefix, &end, 10);

	if (*end != '_' || id < r->first)
		return 0;
	return id < r->end ? STOP_FOUND : id < r->digits_end ? STOP_NONE : 0;
}

static uint64_t next_power_of_ten(uint64_t id)
{
	uint64_t n = 10;

	while (n <= id)
		n *= 10;
	return n;
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
	r->digits_end = next_power_of_ten(id);
	cfs_activity_wait(CFS_WAIT_OBJECT_LIST, id, prefix);
	rc = s->object->ops->list(s->object, prefix, after, note_key, r, deadline);
	cfs_activity_wait_end();
	return rc == STOP_NONE || rc == -ENOENT ? 0 : rc;
}

struct listing {
	struct cfs_job job;
	struct cfs_store *store;
	uint64_t id;
	struct range range;
	cfs_deadline_t deadline;
	bool (*is_unwanted)(void *arg); /* of the caller's thread */
	void *unwanted_arg;
	int rc;
};

static void run_listing(struct cfs_job *job)
{
	struct listing *l = (struct listing *)job;

	cfs_unwanted_set(l->is_unwanted, l->unwanted_arg);
	cfs_object_quiet(true);
	l->rc = list_from(l->store, l->id, &l->range, l->deadline);
	cfs_object_quiet(false);
}

int cfs_store_slices_used(struct cfs_store *s, uint64_t first, uint64_t n, cfs_deadline_t deadline)
{
	struct listing all[LISTINGS_MAX], l = {.job = {.run = run_listing},
					       .store = s,
					       .range = {.first = first, .end = first + n},
					       .deadline = deadline};
	uint64_t per_dir = s->hash_prefix ? 1000000 : 1000, classes = s->hash_prefix ? CLASSES : 1;
	struct cfs_workers *workers;
	uint64_t from = first;
	unsigned i, k = 0;
	int rc = cfs_workers_create("slice-list", AT_ONCE, LISTINGS_MAX, &workers);

	if (rc < 0)
		return rc;
	cfs_unwanted_get(&l.is_unwanted, &l.unwanted_arg);
	while (rc == 0 && from < first + n) {
		for (l.id = from; l.id < first + n && l.id < from + classes; l.id++) {
			if (k == LISTINGS_MAX) {
				rc = -E2BIG;
				break;
			}
			all[k] = l;
			if (cfs_workers_try_submit(workers, &all[k].job))
				run_listing(&all[k].job); /* there is no thread */
			k++;
		}
		from = CFS_MIN((from / per_dir + 1) * per_dir, next_power_of_ten(from));
	}
	cfs_workers_destroy(workers);
	for (i = 0; i < k && rc <= 0; i++)
		rc = all[i].rc > 0 || rc == 0 ? all[i].rc : rc;
	return rc;
}
