/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks the numbers that clients count: the volume's counters, statistics of directories, quotas.
 *
 * Memory: gaps.h, 144 bytes per gap, of at most PAGE directories at a time.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "cmd/access/cmd.h"
#include "cmd/check/fsck.h"
#include "cmd/sets/sorter.h"
#include "cmd/usage/quota-usage.h"

#define PAGE 65536

struct usage {
	struct fsck *f;
	const cfs_ino_t *dirs; /* directories with suspect statistics */
	size_t n_dirs;
	bool all, owners;
};

static int measure_dir(struct usage *u, cfs_ino_t dir, struct gaps *ret)
{
	const unsigned damage = CFS_DAMAGE_STAT | (u->f->sync_dir_stat ? CFS_DAMAGE_LENGTH : 0);
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	struct cfs_check c = {0};
	struct gap gap = {.kind = GAP_DIR_STAT, .quota.key = dir};
	int r = cfs_meta_check_inode(u->f->a->meta, &ctx, dir, 0, &c);

	if (r < 0 || !(c.damage & damage))
		return r;
	gap.counted = c.stat;
	gap.there = c.want;
	gap.mark = c.mark;
	return gaps_add(ret, &gap);
}

static int measure_volume(struct usage *u, struct gaps *ret)
{
	struct cfs_ctx ctx = cfs_ctx_internal(10 * ADMIN_STEP_MS);
	struct cfs_sums s = {0};
	int r = cfs_meta_check_usage(u->f->a->meta, &ctx, &s);
	const struct gap gap = {
		.kind = GAP_VOLUME,
		.counted = {.space = s.counted_space, .inodes = s.counted_inodes},
		.there = {.space = s.space, .inodes = s.inodes},
		.mark = s.mark,
	};

	if (r < 0 || (s.space == s.counted_space && s.inodes == s.counted_inodes))
		return r;
	return gaps_add(ret, &gap);
}

static int measure(void *arg, const struct gaps *last, struct gaps *ret)
{
	struct usage *u = arg;
	size_t i;
	int r = 0;

	for (i = 0; i < u->n_dirs && r == 0; i++) {
		if (!last || gaps_find(last, GAP_DIR_STAT, 0, u->dirs[i]))
			r = measure_dir(u, u->dirs[i], ret);
	}
	if (r == 0 && u->all && (!last || gaps_find(last, GAP_VOLUME, 0, 0)))
		r = measure_volume(u, ret);
	if (r == 0 && u->all)
		r = quota_gaps(u->f->a, u->owners, last, ret);
	return r;
}

static int report(void *arg, const struct gap *g)
{
	static const char *const who[] = {"directory", "user", "group"};
	const struct usage *u = arg;
	struct fsck *f = u->f;

	if (g->kind == GAP_VOLUME)
		return fsck_report(
			f, "usage", 0, g->repaired,
			"the volume's counters lack %" PRId64 " bytes and %" PRId64 " inodes",
			g->there.space - g->counted.space, g->there.inodes - g->counted.inodes);
	if (g->kind == GAP_DIR_STAT)
		return fsck_report(f, "dirstat", g->quota.key, g->repaired,
				   "says %" PRId64 " bytes (%" PRId64 " used) %" PRId64
				   " entries, has %" PRId64 " (%" PRId64 ") %" PRId64,
				   g->counted.length, g->counted.space, g->counted.inodes,
				   g->there.length, g->there.space, g->there.inodes);
	return fsck_report(f, "quota", g->quota.kind == CFS_QUOTA_DIR ? g->quota.key : 0,
			   g->repaired,
			   "%s %" PRIu64 " uses %" PRId64 " bytes %" PRId64
			   " inodes, its row says %" PRId64 " and %" PRId64,
			   who[g->quota.kind], g->quota.key, g->there.space, g->there.inodes,
			   g->counted.space, g->counted.inodes);
}

/* Several rounds may have noted the same directory. */
static size_t sort_unique(struct inostack *s)
{
	size_t i, n = 0;

	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), sorter_compare_u64);
	for (i = 0; i < s->n; i++) {
		if (!n || s->v[n - 1] != s->v[i])
			s->v[n++] = s->v[i];
	}
	return n;
}

int fsck_usage(struct fsck *f, bool all)
{
	struct usage u = {.f = f, .owners = f->a->setting->user_group_quota};
	size_t done = 0, n = sort_unique(&f->stats);
	int r = 0;

	do {
		u.dirs = f->stats.v + done;
		u.n_dirs = n - done < PAGE ? n - done : PAGE;
		done += u.n_dirs;
		u.all = all && done == n;
		if (u.n_dirs || u.all)
			r = gaps_settle(f->a, f->repair, measure, report, &u, &f->open);
	} while (r == 0 && done < n);
	f->stats.n = 0;
	return r;
}
