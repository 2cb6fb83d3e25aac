/* SPDX-License-Identifier: Apache-2.0 */
/* BSD and POSIX locks (volume-format section 9): one attempt, a conflict is -EAGAIN. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "meta/sql/sql.h"

/*
 * Lock order: node rows before lock rows. On an inode that another client has removed, only
 * unlocking is possible.
 */
static int lock_inode(struct sql_conn *c, cfs_ino_t ino, bool unlocks)
{
	struct cfs_attr attr;
	int r = sql_get_node(c, ino, true, &attr);

	return r == -ENOENT && unlocks ? 0 : r;
}

/* ---- BSD locks ---- */

struct flock {
	cfs_ino_t ino;
	uint64_t sid, owner;
	enum cfs_lock_type type;
	bool conflict; /* of one attempt */
};

/* *ret_mine: the letter of the owner's own lock, 0 without one. */
static int read_flocks(struct sql_conn *c, struct flock *a, int64_t *ret_mine)
{
	int r = sql_query(c, SQL_each_flock, "i", a->ino);

	*ret_mine = 0;
	while (r >= 0 && (r = sql_next(c, SQL_each_flock)) > 0) {
		int64_t letter = sql_int(c, SQL_each_flock, 2);

		if ((uint64_t)sql_int(c, SQL_each_flock, 0) == a->sid &&
		    (uint64_t)sql_int(c, SQL_each_flock, 1) == a->owner)
			*ret_mine = letter;
		else if (a->type == CFS_LOCK_WRITE || letter == 'W')
			a->conflict = true;
	}
	return r;
}

static int flock_once(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct flock *a = arg;
	const int64_t want = cfs_lock_letter(a->type);
	int64_t mine;
	int r;

	a->conflict = false;
	sql_repeatable();
	r = lock_inode(c, a->ino, a->type == CFS_LOCK_NONE);
	if (r < 0)
		return r;
	if (a->type == CFS_LOCK_NONE) {
		r = sql_exec(c, SQL_del_flock, "iii", a->ino, a->sid, a->owner);
	} else {
		r = read_flocks(c, a, &mine);
		if (r < 0 || a->conflict || mine == want)
			return r;
		r = sql_claim_node(c, a->ino);
		if (r < 0)
			return r;
		r = mine ? sql_exec(c, SQL_set_flock, "iiii", want, a->ino, a->sid, a->owner)
			 : sql_exec(c, SQL_put_flock, "iiii", a->ino, a->sid, a->owner, want);
	}
	if (r <= 0)
		return r;
	return sql_log(c, ctx, "FLOCK(%" PRIu64 ",%" PRIu64 ",%c)", a->ino, a->owner, (int)want);
}

int sql_op_flock(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, enum cfs_lock_type type)
{
	struct flock a = {.ino = ino, .sid = sid, .owner = owner, .type = type};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_lock, flock_once, &a);

	return r >= 0 && a.conflict ? -EAGAIN : r;
}

/* ---- POSIX locks ---- */

static int read_plocks(struct sql_conn *c, struct cfs_plock_search *a)
{
	int r = sql_query(c, SQL_each_plock, "i", a->ino);

	free(a->mine);
	a->mine = NULL;
	a->n_mine = 0;
	a->conflict = false;
	while (r >= 0 && (r = sql_next(c, SQL_each_plock)) > 0) {
		size_t len;
		const void *list = sql_blob(c, SQL_each_plock, 2, &len);

		r = cfs_plocks_see(a, (uint64_t)sql_int(c, SQL_each_plock, 0),
				   (uint64_t)sql_int(c, SQL_each_plock, 1), list, len);
	}
	return r;
}

static int write_plocks(struct sql_conn *c, const struct cfs_plock_search *a, const uint8_t *list,
			size_t len)
{
	int r;

	if (!len)
		return a->mine ? sql_exec(c, SQL_del_plock, "iii", a->ino, a->sid, a->owner) : 0;
	r = sql_claim_node(c, a->ino);
	if (r < 0)
		return r;
	return a->mine ? sql_exec(c, SQL_set_plock, "biii", list, len, a->ino, a->sid, a->owner)
		       : sql_exec(c, SQL_put_plock, "iiib", a->ino, a->sid, a->owner, list, len);
}

static int setlk_once(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct cfs_plock_search *a = arg;
	const struct cfs_plock *l = &a->lock;
	cfs_auto_free uint8_t *list = NULL;
	ssize_t len;
	int r;

	sql_repeatable();
	r = lock_inode(c, a->ino, l->type == CFS_LOCK_NONE);
	if (r >= 0)
		r = read_plocks(c, a);
	if (r < 0 || a->conflict)
		return r;
	len = cfs_plocks_change(a, &list);
	r = len < 0 ? (int)len : write_plocks(c, a, list, (size_t)len);
	if (r <= 0)
		return r;
	return sql_log(c, ctx, "SETLK(%" PRIu64 ",%" PRIu64 ",%c,%" PRIu64 ",%" PRIu64 ",%u)",
		       a->ino, a->owner, cfs_lock_letter(l->type), l->start, l->end,
		       l->type == CFS_LOCK_NONE ? 0 : l->pid);
}

int sql_op_setlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, const struct cfs_plock *lock)
{
	struct cfs_plock_search a = {.ino = ino, .sid = sid, .owner = owner, .lock = *lock};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_lock, setlk_once, &a);

	free(a.mine);
	return r >= 0 && a.conflict ? -EAGAIN : r;
}

static int getlk(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	return read_plocks(c, arg);
}

int sql_op_getlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, struct cfs_plock *lock, uint64_t *ret_sid, uint64_t *ret_owner)
{
	struct cfs_plock_search a = {.ino = ino, .sid = sid, .owner = owner, .lock = *lock};
	int r = sql_read(sql_db(e), ctx, CFS_META_OP_lock, getlk, &a);

	free(a.mine);
	if (r >= 0)
		cfs_plocks_answer(&a, lock, ret_sid, ret_owner);
	return r < 0 ? r : 0;
}

int sql_clean_session_locks(struct sql_conn *c, uint64_t sid)
{
	int r = sql_exec(c, SQL_del_session_flocks, "i", sid);

	if (r >= 0)
		r = sql_exec(c, SQL_del_session_plocks, "i", sid);
	return r < 0 ? r : 0;
}
