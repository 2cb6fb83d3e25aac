/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a file's random reads are worth whole blocks. A small table keeps the blocks that were
 * read last, with the parts that were read. While at least half of their bytes are read, the next
 * block is fetched whole; otherwise only the requested bytes are. The table is kept in both cases,
 * so that whole blocks are fetched again when the reads come closer together.
 *
 * From a peer, a range costs only its own bytes. So a whole block is fetched from a peer only after
 * ranges have brought as many bytes as the block has, times the file's price, which begins at 1.
 * With that price the network carries at most twice the bytes of the ranges. When memory drops a
 * block before reads have hit as many bytes of it, the price doubles; when the fetch was worth it,
 * the price halves.
 */
#include <stdlib.h>

#include "data-internal.h"

#define BLOCKS	   128 /* power of two */
#define JUDGED_MIN 16  /* blocks; with fewer the ratio says nothing */
#define UNITS	   64  /* bits of `read` */
#define PRICE_MAX  64
#define LATE_PARTS 16 /* of a block: as many bytes may be on their way when it is fetched */

struct part_read {
	uint64_t slice;
	uint64_t read; /* a bit per unit */
	uint32_t index, units;
	uint32_t ranges; /* bytes that came as ranges, since it was fetched whole */
	uint32_t hits;	 /* bytes read from memory, since then */
	bool fetched;	 /* whole, because of its ranges */
};

struct cfs_amplify {
	struct part_read v[BLOCKS];
	unsigned n;
	uint32_t units, read_units; /* units, in all of v */
	unsigned price;		    /* of a block, in times its length */
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

/* Notes a range that came from a peer. True: its block is worth a fetch. */
static bool has_earned(struct cfs_amplify *a, struct part_read *p, uint32_t block_len, uint32_t len)
{
	p->ranges += len;
	if (p->fetched && p->ranges < block_len / LATE_PARTS)
		return false;
	if (p->fetched) {
		p->fetched = false;
		a->price = p->hits < block_len ? CFS_MIN(2 * a->price, PRICE_MAX)
					       : CFS_MAX(a->price / 2, 1u);
	}
	if (p->ranges / block_len < a->price)
		return false;
	p->ranges = p->hits = 0;
	p->fetched = true;
	return true;
}

bool cfs_amplify_note(struct cfs_file *f, const struct cfs_block *b, uint32_t off, uint32_t len,
		      enum cfs_source source)
{
	uint32_t unit = unit_size(f);
	struct cfs_amplify *a;
	struct part_read *p;
	uint64_t bits;

	if (!f->amplify && source != CFS_SOURCE_LOCAL) {
		f->amplify = calloc(1, sizeof(*f->amplify));
		if (f->amplify)
			f->amplify->price = 1;
	}
	a = f->amplify;
	if (!a)
		return false;
	p = &a->v[place_of(b)];
	if (p->slice != b->slice || p->index != b->index) {
		if (source == CFS_SOURCE_LOCAL)
			return false;
		a->n += p->units == 0;
		a->units -= p->units;
		a->read_units -= (uint32_t)__builtin_popcountll(p->read);
		*p = (struct part_read){
			.slice = b->slice, .index = b->index, .units = CFS_DIV_UP(b->len, unit)};
		a->units += p->units;
	}
	bits = mask(off / unit, (off + len - 1) / unit) & ~p->read;
	p->read |= bits;
	a->read_units += (uint32_t)__builtin_popcountll(bits);
	if (source == CFS_SOURCE_RANGE)
		return has_earned(a, p, b->len, len);
	if (p->fetched)
		p->hits = CFS_MIN(p->hits + len, b->len);
	return source == CFS_SOURCE_REMOTE && is_worth_it(a);
}
