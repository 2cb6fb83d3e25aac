/* SPDX-License-Identifier: Apache-2.0 */
/* The owners of a block, by weighted rendezvous hashing. */
#include "placement.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

struct place {
	uint64_t seed;
	unsigned weight, index;
};

/* Members of one weight are neighbours: among them the largest hash wins, without a logarithm. */
struct cfs_placement {
	size_t n;
	struct place v[];
};

/* A bijective mixer: every input bit affects every output bit. */
static uint64_t mix(uint64_t x)
{
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93u;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93u;
	return x ^ x >> 32;
}

uint64_t cfs_placement_key(uint64_t slice, uint32_t index)
{
	return mix(mix(slice) + index);
}

static int order(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	if (x->weight != y->weight)
		return x->weight < y->weight ? -1 : 1;
	return x->seed < y->seed ? -1 : x->seed > y->seed;
}

int cfs_placement_create(const struct cfs_placement_member *v, size_t n, struct cfs_placement **ret)
{
	struct cfs_placement *p = malloc(sizeof(*p) + n * sizeof(p->v[0]));
	size_t i;

	if (!p)
		return -ENOMEM;
	p->n = 0;
	for (i = 0; i < n; i++) {
		if (v[i].weight)
			p->v[p->n++] = (struct place){
				.seed = mix(v[i].id), .weight = v[i].weight, .index = (unsigned)i};
	}
	/* By id, so that all members order equal draws in the same way. */
	qsort(p->v, p->n, sizeof(p->v[0]), order);
	*ret = p;
	return 0;
}

void cfs_placement_destroy(struct cfs_placement *p)
{
	free(p);
}

struct best {
	unsigned max, n;
	double draw[CFS_PLACEMENT_PICK_MAX]; /* ascending */
	unsigned index[CFS_PLACEMENT_PICK_MAX];
};

static void add(struct best *b, double draw, unsigned index)
{
	unsigned i;

	if (b->n == b->max && draw >= b->draw[b->n - 1])
		return;
	if (b->n < b->max)
		b->n++;
	for (i = b->n - 1; i > 0 && b->draw[i - 1] > draw; i--) {
		b->draw[i] = b->draw[i - 1];
		b->index[i] = b->index[i - 1];
	}
	b->draw[i] = draw;
	b->index[i] = index;
}

/* The members v[0..n) of one weight. */
static void pick_among(const struct place *v, size_t n, uint64_t key, struct best *best)
{
	uint64_t top[CFS_PLACEMENT_PICK_MAX]; /* descending */
	unsigned index[CFS_PLACEMENT_PICK_MAX], n_top = 0, j;
	size_t i;

	for (i = 0; i < n; i++) {
		uint64_t hash = mix(key ^ v[i].seed);

		if (n_top == best->max && hash <= top[n_top - 1])
			continue;
		if (n_top < best->max)
			n_top++;
		for (j = n_top - 1; j > 0 && top[j - 1] < hash; j--) {
			top[j] = top[j - 1];
			index[j] = index[j - 1];
		}
		top[j] = hash;
		index[j] = v[i].index;
	}
	for (j = 0; j < n_top; j++) {
		double uniform = ((double)(top[j] >> 11) + 0.5) * 0x1p-53;

		add(best, -log(uniform) / v[0].weight, index[j]);
	}
}

unsigned cfs_placement_pick(const struct cfs_placement *p, uint64_t key, unsigned n, unsigned *ret)
{
	struct best best = {.max = CFS_MIN(n, (unsigned)CFS_PLACEMENT_PICK_MAX)};
	size_t first = 0, end;

	if (!best.max)
		return 0;
	while (first < p->n) {
		for (end = first + 1; end < p->n; end++) {
			if (p->v[end].weight != p->v[first].weight)
				break;
		}
		pick_among(p->v + first, end - first, key, &best);
		first = end;
	}
	memcpy(ret, best.index, best.n * sizeof(*ret));
	return best.n;
}
