/* SPDX-License-Identifier: Apache-2.0 */
/* BSD and POSIX locks (volume-format section 9): one attempt, a conflict is -EAGAIN. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "meta/redis/ops.h"

enum { RACES = 1000 };

int rds_op_flock(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, enum cfs_lock_type type)
{
	const char letter[] = {cfs_lock_letter(type), '\0'};
	char hex[20], line[80];

	snprintf(hex, sizeof(hex), "%016" PRIX64, owner);
	snprintf(line, sizeof(line), "%" PRIu64 ",%" PRIu64 ",%s", ino, owner, letter);
	return rds_change(e, ctx, CFS_META_OP_lock, &rds_flock_lua, "uusss", ino, sid, hex, letter,
			  line);
}

/* ---- POSIX locks ---- */

static int see_all(struct cfs_plock_search *a, const redisReply *all)
{
	size_t i;
	int r = 0;

	for (i = 0; i + 1 < all->elements && !r; i += 2) {
		const char *field = all->element[i]->str, *bar = strchr(field, '_');
		const redisReply *list = all->element[i + 1];

		r = cfs_plocks_see(a, strtoull(field, NULL, 10),
				   bar ? strtoull(bar + 1, NULL, 16) : 0, list->str, list->len);
	}
	return r;
}

static int store(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_plock_search *a,
		 const redisReply *all)
{
	const struct cfs_plock *l = &a->lock;
	cfs_auto_free uint8_t *bytes = NULL;
	ssize_t len = cfs_plocks_change(a, &bytes);
	char hex[20], line[160];
	RDS_REQUEST(q, e);
	size_t i;

	if (len < 0)
		return (int)len;
	snprintf(hex, sizeof(hex), "%016" PRIX64, a->owner);
	snprintf(line, sizeof(line), "%" PRIu64 ",%" PRIu64 ",%c,%" PRIu64 ",%" PRIu64 ",%u",
		 a->ino, a->owner, cfs_lock_letter(l->type), l->start, l->end,
		 l->type == CFS_LOCK_NONE ? 0 : l->pid);
	rds_script_begin(&q, ctx, &rds_setlk_lua, 5 + all->elements);
	rds_words(&q, "uusbs", a->ino, a->sid, hex, bytes, (size_t)len, line);
	for (i = 0; i < all->elements; i++)
		rds_words(&q, "b", all->element[i]->str, all->element[i]->len);
	return rds_script_run(&q, ctx, CFS_META_OP_lock, NULL);
}

int rds_op_setlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, const struct cfs_plock *lock)
{
	unsigned races = 0;
	RDS_REQUEST(q, e);
	int r;

	do {
		struct cfs_plock_search a = {.ino = ino, .sid = sid, .owner = owner, .lock = *lock};

		rds_reset(&q);
		rds_command(&q, "sk", "HGETALL", "lockp", ino);
		r = rds_run(&q, ctx, CFS_META_OP_lock);
		if (!r)
			r = see_all(&a, q.reply[0]);
		if (!r && a.conflict)
			r = -EAGAIN;
		if (!r)
			r = store(e, ctx, &a, q.reply[0]);
		free(a.mine);
	} while (r == -EBUSY && ++races < RACES && !cfs_deadline_passed(ctx->deadline));
	return r;
}

int rds_op_getlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, struct cfs_plock *lock, uint64_t *ret_sid, uint64_t *ret_owner)
{
	struct cfs_plock_search a = {.ino = ino, .sid = sid, .owner = owner, .lock = *lock};
	RDS_REQUEST(q, e);
	int r = rds_ask(&q, ctx, CFS_META_OP_lock, "sk", "HGETALL", "lockp", ino);

	if (!r)
		r = see_all(&a, q.reply[0]);
	free(a.mine);
	if (!r)
		cfs_plocks_answer(&a, lock, ret_sid, ret_owner);
	return r;
}
