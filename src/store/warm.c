/* SPDX-License-Identifier: Apache-2.0 */
/* Fills the caches on request, and reports what they have. */
#include <errno.h>
#include <stdlib.h>

#include "base/task.h"
#include "store-internal.h"

#define RETRY_MIN_MS 5
#define RETRY_MAX_MS 100

/* The tier that keeps blocks on this machine beyond memory, or NULL. */
static const struct cfs_tier_slot *disk_of(const struct cfs_store *s)
{
	unsigned i;

	for (i = 0; i < s->n_tiers; i++) {
		if (s->tiers[i].ops->local && s->tiers[i].ops->put && s->tiers[i].ops->check)
			return &s->tiers[i];
	}
	return NULL;
}

bool cfs_store_has_disk(const struct cfs_store *s)
{
	return disk_of(s) != NULL;
}

bool cfs_store_has_room(const struct cfs_store *s, const struct cfs_block *b)
{
	const struct cfs_tier_slot *disk = disk_of(s);

	return disk && disk->ops->has_room && disk->ops->has_room(disk->tier, b);
}

static int put_until(const struct cfs_tier_slot *disk, const struct cfs_block *b,
		     const struct cfs_segs *data, cfs_deadline_t deadline)
{
	unsigned tries = 0;
	int r;

	do {
		r = disk->ops->put(disk->tier, b, data, deadline);
	} while (r == -EAGAIN && cfs_backoff(tries++, RETRY_MIN_MS, RETRY_MAX_MS, deadline));
	return r;
}

/*
 * Has the owner fetch the block, even if it is in memory here. True: that is enough; false: this
 * member fetches it, too.
 */
static bool warm_elsewhere(struct cfs_store *s, const struct cfs_block *b, bool disk,
			   cfs_deadline_t deadline)
{
	char byte;
	const struct iovec dst = {.iov_base = &byte, .iov_len = 1};
	struct cfs_route route = {0};
	const struct cfs_tier_slot *t;

	cfs_route_place(s, b, &route);
	if (route.placer == s->n_tiers || route.place == CFS_PLACE_HERE)
		return false;
	t = &s->tiers[route.placer];
	if (t->ops->get(t->tier, b, 0, &dst, 1, false, deadline) != 1)
		return false;
	/* A mount that shares nothing keeps what it reads on its own disk, too. */
	return route.place == CFS_PLACE_ELSEWHERE || !disk;
}

struct check {
	struct cfs_task task; /* first */
	const struct cfs_tier_slot *disk;
	struct cfs_block id;
};

static ssize_t run_check(struct cfs_task *task)
{
	const struct check *c = (struct check *)task;

	return c->disk->ops->check(c->disk->tier, &c->id);
}

/* As the tier's operation. A disk that does not answer counts as empty. */
static int check_disk(struct cfs_store *s, const struct cfs_tier_slot *disk,
		      const struct cfs_block *b, cfs_deadline_t deadline)
{
	struct check *c = cfs_task_new(sizeof(*c), run_check, NULL);
	ssize_t held = 0;
	int r;

	if (!c)
		return -ENOMEM;
	c->disk = disk;
	c->id = *b;
	deadline = cfs_deadline_min(deadline, cfs_deadline_in(s->tier_timeout_ms));
	r = cfs_route_wait(s, (unsigned)(disk - s->tiers), b, &c->task, deadline, &held);
	cfs_task_end(&c->task);
	return r < 0 ? 0 : (int)held;
}

void cfs_store_keep(struct cfs_store *s, const struct cfs_block *b, const struct cfs_segs *data,
		    cfs_deadline_t deadline)
{
	const struct cfs_tier_slot *disk = disk_of(s);

	if (disk && check_disk(s, disk, b, deadline) == 0)
		put_until(disk, b, data, deadline);
}

int cfs_store_warm(struct cfs_store *s, const struct cfs_block *b, cfs_deadline_t deadline)
{
	const struct cfs_tier_slot *disk = disk_of(s);
	struct cfs_segs data;
	int r;

	if (warm_elsewhere(s, b, disk != NULL, deadline))
		return 1;
	if (disk)
		r = check_disk(s, disk, b, deadline);
	else
		r = cfs_store_in_memory(s, b, 0, b->len);
	if (r != 0)
		return r < 0 ? r : 0;
	cfs_segs_init(&data);
	r = cfs_store_read(s, b, 0, b->len, deadline, &data);
	if (r == 0 && disk)
		r = put_until(disk, b, &data, deadline);
	cfs_segs_release(&data);
	return r < 0 ? r : 1;
}

void cfs_store_held(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		    struct cfs_store_held *ret)
{
	const struct cfs_tier_slot *disk = disk_of(s);

	*ret = (struct cfs_store_held){0};
	if (off >= b->len)
		return;
	len = CFS_MIN(len, b->len - off);
	ret->memory = cfs_memory_held(s, b, off, len);
	if (disk && check_disk(s, disk, b, cfs_deadline_in(s->tier_timeout_ms)) > 0)
		ret->disk = len;
}
