/* SPDX-License-Identifier: Apache-2.0 */
/* Leases for reads by RDMA. */
#include "leases.h"

#include <stddef.h>

#include "transport/wire/crc.h"

#define SETS (CFS_LEASES / CFS_LEASES_WAYS)

static struct cfs_lease *set_of(struct cfs_leases *t, const struct cfs_reader_conn *r,
				const struct cfs_peer_block *b)
{
	uint32_t hash = cfs_crc_add(0, b, sizeof(*b));

	return &t->places[(hash ^ (uint32_t)((uintptr_t)r >> 6)) % SETS * CFS_LEASES_WAYS];
}

struct cfs_lease *cfs_leases_find(struct cfs_leases *t, const struct cfs_reader_conn *r,
				  const struct cfs_peer_block *b)
{
	struct cfs_lease *set = set_of(t, r, b), *l;

	for (l = set; l < set + CFS_LEASES_WAYS; l++)
		if (l->r == r && l->block.slice == b->slice && l->block.index == b->index &&
		    l->block.len == b->len)
			return l;
	return NULL;
}

struct cfs_lease *cfs_leases_place(struct cfs_leases *t, const struct cfs_reader_conn *r,
				   const struct cfs_peer_block *b, uint64_t now_ms)
{
	struct cfs_lease *set = set_of(t, r, b), *l, *oldest = NULL;

	for (l = set; l < set + CFS_LEASES_WAYS; l++) {
		if (l->users > 0)
			continue;
		if (!l->r || l->until_ms <= now_ms)
			return l;
		if (!oldest || l->used_ms < oldest->used_ms)
			oldest = l;
	}
	return oldest;
}

void cfs_leases_end(struct cfs_leases *t, const struct cfs_reader_conn *r)
{
	unsigned i;

	for (i = 0; i < CFS_LEASES; i++)
		if (t->places[i].r == r)
			t->places[i].until_ms = 0;
}

void cfs_leases_forget(struct cfs_leases *t, const struct cfs_reader_conn *r)
{
	unsigned i;

	for (i = 0; i < CFS_LEASES; i++)
		if (t->places[i].r == r)
			t->places[i].r = NULL;
}
