/* SPDX-License-Identifier: Apache-2.0 */
/* BSD and POSIX locks (volume-format section 9): one attempt, a conflict is -EAGAIN. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/log.h"
#include "meta/sql/sql.h"

struct lock {
	cfs_ino_t ino;
	uint64_t sid, owner;
	enum cfs_lock_type type; /* flock */
	struct cfs_plock plock;
	/* results of one attempt; found: the conflict that starts first */
	bool conflict;
	struct cfs_plock found;
	uint64_t found_sid, found_owner;
};

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

/* *ret_mine: the letter of the owner's own lock, 0 without one. */
static int read_flocks(struct sql_conn *c, struct lock *a, int64_t *ret_mine)
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
	struct lock *a = arg;
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
	struct lock a = {.ino = ino, .sid = sid, .owner = owner, .type = type};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_lock, flock_once, &a);

	return r >= 0 && a.conflict ? -EAGAIN : r;
}

/* ---- POSIX locks ---- */

/* Compares with another owner's list, and keeps the conflict that starts first. */
static void compare(struct lock *a, uint64_t sid, uint64_t owner, const struct cfs_plock *v,
		    size_t n)
{
	const struct cfs_plock *l = cfs_rules_plock_conflict(v, n, &a->plock);

	if (!l || (a->conflict && a->found.start <= l->start))
		return;
	a->conflict = true;
	a->found = *l;
	a->found_sid = sid;
	a->found_owner = owner;
}

/* Reads all lists. *ret_mine: the owner's own list, NULL without one. */
static int read_plocks(struct sql_conn *c, struct lock *a, struct cfs_plock **ret_mine,
		       size_t *ret_n)
{
	int r = sql_query(c, SQL_each_plock, "i", a->ino);

	*ret_mine = NULL;
	*ret_n = 0;
	a->conflict = false;
	while (r >= 0 && (r = sql_next(c, SQL_each_plock)) > 0) {
		uint64_t sid = (uint64_t)sql_int(c, SQL_each_plock, 0);
		uint64_t owner = (uint64_t)sql_int(c, SQL_each_plock, 1);
		struct cfs_plock *v;
		const void *p;
		size_t len, n;

		p = sql_blob(c, SQL_each_plock, 2, &len);
		r = cfs_plocks_decode(a->ino, p, len, &v, &n);
		if (r < 0)
			break;
		if (sid == a->sid && owner == a->owner) {
			*ret_mine = v;
			*ret_n = n;
		} else {
			compare(a, sid, owner, v, n);
			free(v);
		}
	}
	if (r < 0) {
		free(*ret_mine);
		*ret_mine = NULL;
	}
	return r;
}

static int write_plocks(struct sql_conn *c, const struct lock *a, bool exists,
			const struct cfs_plock *v, size_t n)
{
	uint8_t *buf;
	int r;

	if (!n)
		return exists ? sql_exec(c, SQL_del_plock, "iii", a->ino, a->sid, a->owner) : 0;
	r = sql_claim_node(c, a->ino);
	if (r < 0)
		return r;
	buf = malloc(n * CFS_PLOCK_BYTES);
	if (!buf)
		return -ENOMEM;
	cfs_plocks_encode(v, n, buf);
	r = exists ? sql_exec(c, SQL_set_plock, "biii", buf, n * CFS_PLOCK_BYTES, a->ino, a->sid,
			      a->owner)
		   : sql_exec(c, SQL_put_plock, "iiib", a->ino, a->sid, a->owner, buf,
			      n * CFS_PLOCK_BYTES);
	free(buf);
	return r;
}

static int setlk_once(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct lock *a = arg;
	const struct cfs_plock *l = &a->plock;
	struct cfs_plock *mine = NULL, *v = NULL;
	ssize_t n;
	size_t n_mine;
	int r;

	sql_repeatable();
	r = lock_inode(c, a->ino, l->type == CFS_LOCK_NONE);
	if (r < 0)
		return r;
	r = read_plocks(c, a, &mine, &n_mine);
	if (r < 0 || a->conflict)
		goto out;
	n = cfs_rules_plock_apply(mine, n_mine, l, &v);
	r = n < 0 ? (int)n : write_plocks(c, a, mine != NULL, v, (size_t)n);
	if (r > 0)
		r = sql_log(c, ctx, "SETLK(%" PRIu64 ",%" PRIu64 ",%c,%" PRIu64 ",%" PRIu64 ",%u)",
			    a->ino, a->owner, cfs_lock_letter(l->type), l->start, l->end,
			    l->type == CFS_LOCK_NONE ? 0 : l->pid);
out:
	free(mine);
	free(v);
	return r;
}

int sql_op_setlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, const struct cfs_plock *lock)
{
	struct lock a = {.ino = ino, .sid = sid, .owner = owner, .plock = *lock};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_lock, setlk_once, &a);

	return r >= 0 && a.conflict ? -EAGAIN : r;
}

static int getlk(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct cfs_plock *mine;
	size_t n;
	int r = read_plocks(c, arg, &mine, &n);

	if (r >= 0)
		free(mine);
	return r;
}

int sql_op_getlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, struct cfs_plock *lock, uint64_t *ret_sid, uint64_t *ret_owner)
{
	struct lock a = {.ino = ino, .sid = sid, .owner = owner, .plock = *lock};
	int r = sql_read(sql_db(e), ctx, CFS_META_OP_lock, getlk, &a);

	if (r < 0)
		return r;
	if (!a.conflict) {
		lock->type = CFS_LOCK_NONE;
		return 0;
	}
	*lock = a.found;
	*ret_sid = a.found_sid;
	*ret_owner = a.found_owner;
	return 0;
}

int sql_clean_session_locks(struct sql_conn *c, uint64_t sid)
{
	int r = sql_exec(c, SQL_del_session_flocks, "i", sid);

	if (r >= 0)
		r = sql_exec(c, SQL_del_session_plocks, "i", sid);
	return r < 0 ? r : 0;
}
