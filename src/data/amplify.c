/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a file's random reads are worth whole blocks. A small table keeps the blocks that were
 * read last, with the parts that were read. While at least half of their bytes are read, the next
 * block is fetched whole; otherwise only the requested bytes are. The table is kept in both cases,
 * so that whole blocks are fetched again when the reads come closer together.
 */
#include <stdlib.h>

#include "data-internal.h"

#define BLOCKS	   128 /* power of two */
#define JUDGED_MIN 16  /* blocks; with fewer the ratio says nothing */
#define UNITS	   64  /* bits of `read` */

struct cfs_amplify {
	struct {
		uint64_t slice;
		uint64_t read; /* a bit per unit */
		uint32_t index, units;
	} v[BLOCKS];
	unsigned n;
	uint32_t units, read_units; /* units, in all of v */
};

/* The smallest fetch for a read that misses; a 64th of a block if that is larger. */
static uint32_t unit_size(const struct cfs_file *f)
{
	return CFS_MAX(CFS_PAGE_LARGE, f->data->conf.block_size / UNITS);
}

/* units [first, last] */
static uint64_t mask(unsigned first, unsigned last)
{
	return (last == UNITS - 1 ? ~(uint64_t)0 : ((uint64_t)1 << (last + 1)) - 1) &
	       ~(((uint64_t)1 << first) - 1);
}

static unsigned place_of(const struct cfs_block *b)
{
	uint64_t h = (b->slice * 1024 + b->index) * 0x9E3779B97F4A7C15ULL;

	return (unsigned)(h >> 32) & (BLOCKS - 1);
}

static bool is_worth_it(const struct cfs_amplify *a)
{
	return a->n < JUDGED_MIN || 2 * a->read_units >= a->units;
}

bool cfs_amplify_note(struct cfs_file *f, const struct cfs_block *b, uint32_t off, uint32_t len,
		      bool missed)
{
	uint32_t unit = unit_size(f);
	unsigned i = place_of(b);
	struct cfs_amplify *a;
	uint64_t bits;

	if (!f->amplify && missed)
		f->amplify = calloc(1, sizeof(*f->amplify));
	a = f->amplify;
	if (!a)
		return false;
	if (a->v[i].slice != b->slice || a->v[i].index != b->index) {
		if (!missed)
			return false;
		a->n += a->v[i].units == 0;
		a->units -= a->v[i].units;
		a->read_units -= (uint32_t)__builtin_popcountll(a->v[i].read);
		a->v[i].slice = b->slice;
		a->v[i].index = b->index;
		a->v[i].read = 0;
		a->v[i].units = CFS_DIV_UP(b->len, unit);
		a->units += a->v[i].units;
	}
	bits = mask(off / unit, (off + len - 1) / unit) & ~a->v[i].read;
	a->v[i].read |= bits;
	a->read_units += (uint32_t)__builtin_popcountll(bits);
	return missed && is_worth_it(a);
}
