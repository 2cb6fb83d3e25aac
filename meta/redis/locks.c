/* SPDX-License-Identifier: Apache-2.0 */
/* BSD and POSIX locks (volume-format section 9): one attempt, a conflict is -EAGAIN. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
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

struct list {
	struct cfs_plock *v;
	size_t n;
};

static int decode(cfs_ino_t ino, const redisReply *value, struct list *ret)
{
	return cfs_plocks_decode(ino, value->str, value->len, &ret->v, &ret->n);
}

struct conflict {
	bool found;
	struct cfs_plock lock;
	uint64_t sid, owner;
};

/*
 * Compares all lists of the inode with *lock. *ret_mine: the owner's own list; *ret: the conflict
 * that starts first.
 */
static int find_conflict(cfs_ino_t ino, const redisReply *all, const char *mine,
			 const struct cfs_plock *lock, struct list *ret_mine, struct conflict *ret)
{
	size_t i;

	*ret = (struct conflict){0};
	for (i = 0; i + 1 < all->elements; i += 2) {
		const char *field = all->element[i]->str, *bar = strchr(field, '_');
		const struct cfs_plock *l;
		struct list other;
		int r;

		if (strcmp(field, mine) == 0) {
			r = decode(ino, all->element[i + 1], ret_mine);
			if (r)
				return r;
			continue;
		}
		r = decode(ino, all->element[i + 1], &other);
		if (r)
			return r;
		l = cfs_rules_plock_conflict(other.v, other.n, lock);
		if (l && (!ret->found || l->start < ret->lock.start))
			*ret = (struct conflict){
				.found = true,
				.lock = *l,
				.sid = strtoull(field, NULL, 10),
				.owner = bar ? strtoull(bar + 1, NULL, 16) : 0,
			};
		free(other.v);
	}
	return 0;
}

static void field_of(uint64_t sid, uint64_t owner, char out[48])
{
	snprintf(out, 48, "%" PRIu64 "_%016" PRIX64, sid, owner);
}

static int store(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, const struct cfs_plock *lock, const redisReply *all,
		 const struct list *mine)
{
	char hex[20], line[160];
	struct cfs_plock *v = NULL;
	RDS_REQUEST(q, e);
	uint8_t *bytes;
	ssize_t n = cfs_rules_plock_apply(mine->v, mine->n, lock, &v);
	size_t i;
	int r;

	if (n < 0)
		return (int)n;
	bytes = malloc((size_t)n * CFS_PLOCK_BYTES + 1);
	if (!bytes) {
		free(v);
		return -ENOMEM;
	}
	cfs_plocks_encode(v, (size_t)n, bytes);
	snprintf(hex, sizeof(hex), "%016" PRIX64, owner);
	snprintf(line, sizeof(line), "%" PRIu64 ",%" PRIu64 ",%c,%" PRIu64 ",%" PRIu64 ",%u", ino,
		 owner, cfs_lock_letter(lock->type), lock->start, lock->end,
		 lock->type == CFS_LOCK_NONE ? 0 : lock->pid);
	rds_script_begin(&q, ctx, &rds_setlk_lua, 5 + all->elements);
	rds_words(&q, "uusbs", ino, sid, hex, bytes, (size_t)n * CFS_PLOCK_BYTES, line);
	for (i = 0; i < all->elements; i++)
		rds_words(&q, "b", all->element[i]->str, all->element[i]->len);
	r = rds_script_run(&q, ctx, CFS_META_OP_lock, NULL);
	free(bytes);
	free(v);
	return r;
}

int rds_op_setlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, const struct cfs_plock *lock)
{
	unsigned races = 0;
	RDS_REQUEST(q, e);
	char mine[48];
	int r;

	field_of(sid, owner, mine);
	do {
		struct conflict c;
		struct list l = {0};

		rds_reset(&q);
		rds_command(&q, "sk", "HGETALL", "lockp", ino);
		r = rds_run(&q, ctx, CFS_META_OP_lock);
		if (!r)
			r = find_conflict(ino, q.reply[0], mine, lock, &l, &c);
		if (!r && c.found)
			r = -EAGAIN;
		if (!r)
			r = store(e, ctx, ino, sid, owner, lock, q.reply[0], &l);
		free(l.v);
	} while (r == -EBUSY && ++races < RACES && !cfs_deadline_passed(ctx->deadline));
	return r;
}

int rds_op_getlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, struct cfs_plock *lock, uint64_t *ret_sid, uint64_t *ret_owner)
{
	struct list l = {0};
	RDS_REQUEST(q, e);
	struct conflict c;
	char mine[48];
	int r;

	field_of(sid, owner, mine);
	r = rds_ask(&q, ctx, CFS_META_OP_lock, "sk", "HGETALL", "lockp", ino);
	if (!r)
		r = find_conflict(ino, q.reply[0], mine, lock, &l, &c);
	free(l.v);
	if (!r && c.found) {
		*lock = c.lock;
		*ret_sid = c.sid;
		*ret_owner = c.owner;
	} else if (!r) {
		lock->type = CFS_LOCK_NONE;
	}
	return r;
}
