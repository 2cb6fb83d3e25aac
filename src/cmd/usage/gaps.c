/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/usage/gaps.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/bytes.h"
#include "cmd/access/cmd.h"
#include "cmd/usage/heartbeats.h"

/* Clients write quotas every 3 s; the rest is for writing them. */
enum { PAUSE_MS = 4000, ROUNDS = 3 };

int gaps_add(struct gaps *g, const struct gap *gap)
{
	return CFS_ARRAY_ADD(g->v, g->n, g->cap, *gap);
}

static int order(const void *a, const void *b)
{
	const struct gap *x = a, *y = b;

	return CFS_COMPARE(x->kind, y->kind)
		?: CFS_COMPARE(x->quota.kind, y->quota.kind)
		?: CFS_COMPARE(x->quota.key, y->quota.key);
}

struct gap *gaps_find(const struct gaps *g, enum gap_kind kind, enum cfs_quota_kind quota,
		      uint64_t key)
{
	const struct gap wanted = {.kind = kind, .quota = {.kind = quota, .key = key}};

	return g->n ? bsearch(&wanted, g->v, g->n, sizeof(wanted), order) : NULL;
}

static bool same_stat(const struct cfs_dir_stat *x, const struct cfs_dir_stat *y)
{
	return x->length == y->length && x->space == y->space && x->inodes == y->inodes;
}

static bool has_stood(const struct gap *before, const struct gap *now)
{
	return before && before->mark == now->mark && same_stat(&before->counted, &now->counted) &&
	       same_stat(&before->there, &now->there);
}

static int fill(struct admin *a, struct gap *g)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	const struct cfs_dir_stat missing = {
		.length = g->there.length - g->counted.length,
		.space = g->there.space - g->counted.space,
		.inodes = g->there.inodes - g->counted.inodes,
	};
	struct cfs_quota delta = g->quota;
	int r = admin_may_repair(a);

	if (r < 0)
		return r;
	switch (g->kind) {
	case GAP_VOLUME:
		r = cfs_meta_add_usage(a->meta, &ctx, missing.space, missing.inodes);
		break;
	case GAP_DIR_STAT:
		r = cfs_meta_add_dir_stat(a->meta, &ctx, g->quota.key, &missing);
		break;
	default:
		delta.used_space = missing.space;
		delta.used_inodes = missing.inodes;
		r = cfs_meta_add_quota_usage(a->meta, &ctx, &delta);
	}
	g->repaired = r == 0;
	return r;
}

struct settling {
	struct admin *a;
	bool repair;
	struct heartbeats heartbeats; /* since the last measuring; silent sessions after the wait */
	gaps_damage_fn damage;
	void *arg;
};

/* Judges gaps that have stood since `before`: no client is about to count them. */
static int judge(struct settling *s, const struct gaps *before, struct gaps *now, size_t *ret_open)
{
	size_t i, open = 0;
	int r = 0;

	for (i = 0; i < now->n && r == 0; i++) {
		struct gap *g = &now->v[i];
		const struct gap *b = gaps_find(before, g->kind, g->quota.kind, g->quota.key);

		g->told = b && b->told;
		if (g->told)
			continue;
		if (s->heartbeats.n || !has_stood(b, g)) {
			open++;
			continue;
		}
		if (s->repair)
			r = fill(s->a, g);
		if (r == 0)
			r = s->damage(s->arg, g);
		g->told = true;
	}
	*ret_open = open;
	return r;
}

/* When this returns, every live session has written what it had counted by the last measuring. */
static int pause_between(struct settling *s)
{
	bool mounted;
	int r = admin_is_mounted(s->a, &mounted);

	if (r == 0 && mounted)
		poll(NULL, 0, PAUSE_MS);
	return r < 0 ? r : heartbeats_wait(s->a, &s->heartbeats);
}

static void tell_silent(const struct heartbeats *b, size_t open)
{
	size_t i;

	for (i = 0; i < b->n; i++)
		cmd_error(
			"note: session %" PRIu64
			" (%s) sends no heartbeat. It may have counted changes that it has not "
			"written, so %zu numbers of the usage are neither judged nor repaired. "
			"Continue or end it, or wait until it has expired (see `cachefs status`).",
			b->v[i].sid, b->v[i].who, open);
}

int gaps_settle(struct admin *a, bool repair, gaps_measure_fn measure, gaps_damage_fn damage,
		void *arg, size_t *ret_open)
{
	struct settling s = {.a = a, .repair = repair, .damage = damage, .arg = arg};
	struct gaps before = {0}, now = {0};
	size_t open = 0;
	int round, r = 0;

	/* Usage that this command has changed itself. */
	if (a->needs & ADMIN_WRITE)
		r = cfs_meta_admin_end(a->meta);
	for (round = 0; round < ROUNDS && r == 0; round++) {
		if (round)
			r = pause_between(&s);
		if (r == 0)
			r = measure(arg, round ? &before : NULL, &now);
		if (r)
			break;
		if (now.n)
			qsort(now.v, now.n, sizeof(*now.v), order);
		r = judge(&s, &before, &now, &open);
		free(before.v);
		before = now;
		now = (struct gaps){0};
		if (!open || s.heartbeats.n)
			break;
		heartbeats_free(&s.heartbeats);
		if (r == 0)
			r = heartbeats_read(a, &s.heartbeats);
	}
	if (r == 0 && open && round < ROUNDS)
		tell_silent(&s.heartbeats, open);
	heartbeats_free(&s.heartbeats);
	free(before.v);
	free(now.v);
	if (r == 0)
		*ret_open += open;
	return r;
}

void gaps_note_open(size_t n)
{
	if (n)
		cmd_error("note: %zu numbers of the usage could not be judged, because they change "
			  "or a mount is silent. Check again when the volume is idle for some "
			  "heartbeats.",
			  n);
}
