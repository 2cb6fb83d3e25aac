/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fencing: the server ends the session of a lost connection before anything depends on what that
 * session has done. Until then it may execute what was sent, and it keeps its locks.
 *
 * The attempt after a lost answer fences its own session. An operation that fails at its deadline
 * has no time for that, so it leaves the session to the next operation of the process.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "meta/sql/sql-internal.h"

/* From the first request to end a session; a server that hangs must not stop all operations. */
#define ENDING_MS 2000

void sql_abandon(struct sql_db *db, const char *session)
{
	struct sql_abandoned *a = &db->abandoned;
	unsigned n;

	if (!*session)
		return;
	pthread_mutex_lock(&a->lock);
	n = atomic_load(&a->n);
	if (n == SQL_ABANDONED_MAX)
		memmove(a->v, a->v + 1, --n * sizeof(*a->v));
	a->v[n].give_up = 0;
	snprintf(a->v[n].session, sizeof(a->v[n].session), "%s", session);
	atomic_store(&a->n, n + 1);
	pthread_mutex_unlock(&a->lock);
}

/* Copies the list. The time of each session to end begins at its first copy. */
static unsigned copy_all(struct sql_abandoned *a, struct sql_abandoned_session *ret)
{
	cfs_deadline_t give_up = cfs_deadline_in(ENDING_MS);
	unsigned i, n;
	CFS_LOCK_GUARD(&a->lock);

	n = atomic_load(&a->n);
	for (i = 0; i < n; i++) {
		if (!a->v[i].give_up)
			a->v[i].give_up = give_up;
		ret[i] = a->v[i];
	}
	return n;
}

/* Several threads may end the same session. */
static void forget(struct sql_abandoned *a, const char *session)
{
	unsigned n, i = 0;
	CFS_LOCK_GUARD(&a->lock);

	n = atomic_load(&a->n);
	while (i < n && strcmp(a->v[i].session, session) != 0)
		i++;
	if (i < n) {
		memmove(a->v + i, a->v + i + 1, (n - i - 1) * sizeof(*a->v));
		atomic_store(&a->n, n - 1);
	}
}

/* 0: the session is gone, or the server refuses to end it; -EAGAIN, -ENOTCONN, -ETIMEDOUT. */
static int end(struct sql_conn *c, const char *session)
{
	int r = sql_dialect(c)->end_session(c, session);

	c->broken |= r == -ENOTCONN;
	return r == -EAGAIN || r == -ENOTCONN || r == -ETIMEDOUT ? r : 0;
}

/* All end at the same time: one after the other, those that do not end would add up. */
static int end_abandoned(struct sql_conn *c)
{
	struct sql_abandoned *a = &c->db->abandoned;
	struct sql_abandoned_session v[SQL_ABANDONED_MAX];
	unsigned i, n = 0;
	int result = 0;

	if (atomic_load_explicit(&a->n, memory_order_relaxed))
		n = copy_all(a, v);
	for (i = 0; i < n; i++) {
		int r = end(c, v[i].session);

		if (r && r != -EAGAIN)
			return r;
		if (r && !cfs_deadline_passed(v[i].give_up)) {
			result = r;
			continue;
		}
		if (r)
			cfs_warn("server does not end a session, the change of a failed operation "
				 "may still be made: url=%s session=\"%s\"",
				 c->db->where, v[i].session);
		forget(a, v[i].session);
	}
	return result;
}

int sql_fence(struct sql_conn *c, const char *session)
{
	int r = end_abandoned(c);

	return r || !*session ? r : end(c, session);
}
