/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for locks. The engine makes one attempt; blocking waits happen here.
 *
 * A wait for an owner on this mount sleeps until a lock on that inode is released on this mount. A
 * wait for another mount polls at growing intervals. Waiters for POSIX locks on this mount form a
 * graph (owner -> the owner it waits for); a lock that would close a cycle is EDEADLK.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "meta/api/call.h"
#include "meta/api/core.h"
#include "meta/api/held.h"
#include "meta/api/locks.h"
#include "meta/api/session.h"

enum { POLL_FIRST_MS = 1, POLL_LAST_MS = 100, INTERRUPT_POLL_MS = 100, LOCAL_RETRY_MS = 5000 };

struct waiter {
	struct waiter *next;
	cfs_ino_t ino;
	uint64_t owner, waits_for;
	uint64_t visited; /* last search that visited this waiter */
	bool in_graph;	  /* POSIX, and waits_for is on this mount */
	bool woken;
	pthread_cond_t cond;
	char holder[64]; /* holder of the lock, for the list of waiting requests */
	bool shown;	 /* in that list */
};

/*
 * An unlock of all that an owner has on an inode, which the engine has not confirmed; or the like
 * for an owner that has asked for its first lock there, and does not know whether it was granted.
 */
struct undone {
	struct undone *next;
	cfs_ino_t ino;
	uint64_t owner;
	bool posix;
	bool busy;  /* it is being carried out, or noted: only that thread changes it */
	void *note; /* cfs_meta_hooks.note_unlock() */
};

struct cfs_locks {
	pthread_mutex_t lock; /* protects the lists */
	struct waiter *waiters;
	uint64_t rounds;
	_Atomic uint64_t releases; /* a wait that began before one of these must not sleep */

	pthread_mutex_t undone_lock; /* protects undone; not held while the engine is asked */
	pthread_cond_t undone_ran;   /* signalled when one is not busy any more */
	struct undone *undone;
	_Atomic size_t n_undone;

	struct cfs_held held;
};

int cfs_locks_create(struct cfs_locks **ret)
{
	struct cfs_locks *l = calloc(1, sizeof(*l));

	int rc;

	if (!l)
		return -ENOMEM;
	rc = cfs_cond_init(&l->undone_ran);
	if (rc) {
		free(l);
		return rc;
	}
	pthread_mutex_init(&l->lock, NULL);
	pthread_mutex_init(&l->undone_lock, NULL);
	cfs_held_init(&l->held);
	*ret = l;
	return 0;
}

void cfs_locks_destroy(struct cfs_locks *l)
{
	if (!l)
		return;
	cfs_held_fini(&l->held);
	while (l->undone) {
		struct undone *u = l->undone;

		l->undone = u->next;
		free(u);
	}
	pthread_cond_destroy(&l->undone_ran);
	pthread_mutex_destroy(&l->undone_lock);
	pthread_mutex_destroy(&l->lock);
	free(l);
}

/* ---- waking and waiting ---- */

static void released(struct cfs_locks *l, cfs_ino_t ino)
{
	struct waiter *w;
	CFS_LOCK_GUARD(&l->lock);

	atomic_fetch_add(&l->releases, 1);
	for (w = l->waiters; w; w = w->next) {
		if (w->ino != ino)
			continue;
		w->woken = true;
		pthread_cond_signal(&w->cond);
	}
}

/*
 * Does the owner wait, directly or through others, for `target`? Each thread of an owner is a
 * waiter of its own. A woken waiter waits for no owner: it searches for a cycle itself if it has to
 * wait again.
 */
static bool waits_for(struct cfs_locks *l, uint64_t owner, uint64_t target, uint64_t round)
{
	struct waiter *w;

	if (owner == target)
		return true;
	for (w = l->waiters; w; w = w->next) {
		if (!w->in_graph || w->woken || w->owner != owner || w->visited == round)
			continue;
		w->visited = round;
		if (waits_for(l, w->waits_for, target, round))
			return true;
	}
	return false;
}

/*
 * Marks the thread as waiting from the first refusal to the end, attempts included, so that a wait
 * without a deadline is never reported as a hung call.
 */
static void show(struct waiter *w)
{
	if (w->shown)
		cfs_activity_wait_goes_on(w->holder);
	else
		cfs_activity_wait(CFS_WAIT_LOCK, 0, w->holder);
	w->shown = true;
}

static void end_wait(struct waiter *w)
{
	if (w->shown)
		cfs_activity_wait_end();
	pthread_cond_destroy(&w->cond);
}

static void unlist(struct cfs_locks *l, struct waiter *w)
{
	struct waiter **p;

	for (p = &l->waiters; *p; p = &(*p)->next) {
		if (*p == w) {
			*p = w->next;
			return;
		}
	}
}

/*
 * Sleeps until a lock was released on this mount, or for_ms have passed: 0; -EINTR; -EDEADLK.
 * `seen` is the count of releases before the lock was tried.
 */
static int wait_turn(struct cfs_locks *l, const struct cfs_ctx *ctx, struct waiter *w,
		     uint64_t seen, uint64_t for_ms)
{
	cfs_deadline_t until = cfs_deadline_in(for_ms);
	int rc = 0;
	CFS_LOCK_GUARD(&l->lock);

	/*
	 * After a release the graph is outdated: the blocking owner may just have released the lock
	 * and may already wait for this owner.
	 */
	w->woken = atomic_load(&l->releases) != seen;
	if (!w->woken && w->in_graph && waits_for(l, w->waits_for, w->owner, ++l->rounds))
		return -EDEADLK;
	w->next = l->waiters;
	l->waiters = w;
	while (!rc && !w->woken && !cfs_deadline_passed(until)) {
		if (ctx->interrupted && ctx->interrupted(ctx->interrupted_arg))
			rc = -EINTR;
		else
			cfs_cond_wait(&w->cond, &l->lock,
				      cfs_deadline_min(until, cfs_deadline_in(INTERRUPT_POLL_MS)));
	}
	unlist(l, w);
	return rc;
}

static uint64_t next_poll(uint64_t ms)
{
	return CFS_MIN(ms * 2, (uint64_t)POLL_LAST_MS);
}

/* A blocking lock outlives the request's deadline; each try gets one of its own. */
static struct cfs_ctx try_ctx(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	struct cfs_ctx c = *ctx;

	c.deadline = cfs_deadline_in(m->conf.timeout_ms);
	return c;
}

/* ---- both kinds ---- */

/* A request for a BSD lock of this type, or for a POSIX lock. */
struct wish {
	enum cfs_lock_type type;
	const struct cfs_plock *lock; /* NULL: BSD */
};

static const struct cfs_plock nothing = {.type = CFS_LOCK_NONE, .end = INT64_MAX};

static struct cfs_held_key key_of(struct cfs_meta *m, cfs_ino_t ino, uint64_t owner, bool posix)
{
	return (struct cfs_held_key){cfs_host_sid(&m->host), ino, owner, posix};
}

static int try_lock(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
		    const struct wish *k)
{
	const struct cfs_plock whole = {.type = k->type, .end = INT64_MAX};
	struct cfs_locks *l = m->locks;
	const struct cfs_held_key key = key_of(m, ino, owner, k->lock);
	int rc = k->lock ? m->eng->ops->setlk(m->eng, ctx, ino, key.sid, owner, k->lock)
			 : m->eng->ops->flock(m->eng, ctx, ino, key.sid, owner, k->type);

	if (rc)
		return rc;
	cfs_held_apply(&l->held, &key, k->lock ? k->lock : &whole);
	if (k->type != CFS_LOCK_WRITE)
		released(l, ino);
	/* The session has ended meanwhile, and the lock with it. */
	if (k->type != CFS_LOCK_NONE && key.sid != cfs_host_sid(&m->host)) {
		cfs_held_apply(&l->held, &key, &nothing);
		return -EIO;
	}
	return 0;
}

/*
 * Finds the holder of the conflicting lock and fills w; 1 when there is none any more. *ret_here: a
 * program on this mount, whose unlock wakes the waiter.
 */
static int find_blocker(struct cfs_meta *m, const struct cfs_ctx *ctx, struct waiter *w,
			const struct wish *k, bool *ret_here)
{
	struct cfs_plock other;
	uint64_t sid = 0, owner = 0;
	int rc;

	const struct cfs_held_key key = key_of(m, w->ino, w->owner, k->lock);

	if (!k->lock) {
		*ret_here = cfs_held_conflict(&m->locks->held, &key, k->type);
		snprintf(w->holder, sizeof(w->holder), "held by %s mount",
			 *ret_here ? "a program on this" : "another");
		return 0;
	}
	other = *k->lock;
	rc = m->eng->ops->getlk(m->eng, ctx, w->ino, cfs_host_sid(&m->host), w->owner, &other, &sid,
				&owner);
	if (rc)
		return rc;
	if (other.type == CFS_LOCK_NONE)
		return 1;
	*ret_here = w->in_graph = sid == cfs_host_sid(&m->host);
	w->waits_for = owner;
	if (w->in_graph)
		snprintf(w->holder, sizeof(w->holder), "held by pid %u", other.pid);
	else
		snprintf(w->holder, sizeof(w->holder), "held by pid %u of session %" PRIu64,
			 other.pid, sid);
	return 0;
}

static int do_lock(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
		   const struct wish *k, bool wait)
{
	struct waiter w = {.ino = ino, .owner = owner};
	uint64_t poll_ms = POLL_FIRST_MS;
	int rc = cfs_core_check_writable(m);
	bool here;

	if (rc)
		return rc;
	if (k->lock && k->lock->start > k->lock->end)
		return -EINVAL;
	rc = cfs_cond_init(&w.cond);
	if (rc)
		return rc;
	for (;;) {
		struct cfs_ctx now = try_ctx(m, ctx);
		uint64_t seen = atomic_load(&m->locks->releases);

		rc = try_lock(m, &now, ino, owner, k);
		if (rc != -EAGAIN || !wait)
			break;
		rc = find_blocker(m, &now, &w, k, &here);
		if (rc > 0)
			continue;
		if (rc < 0)
			break;
		show(&w);
		rc = wait_turn(m->locks, ctx, &w, seen, here ? LOCAL_RETRY_MS : poll_ms);
		if (!here)
			poll_ms = next_poll(poll_ms);
		if (rc)
			break;
	}
	end_wait(&w);
	return rc;
}

/* ---- unlocks that are not confirmed ---- */

static bool no_answer(int rc)
{
	return rc == -ETIMEDOUT || rc == -ENOTCONN || rc == -EIO;
}

static struct undone **find_undone(struct cfs_locks *l, cfs_ino_t ino, uint64_t owner, bool posix)
{
	struct undone **p = &l->undone;

	while (*p && ((*p)->ino != ino || (*p)->owner != owner || (*p)->posix != posix))
		p = &(*p)->next;
	return p;
}

/* Adds a busy one. NULL: it is there already; without memory the end of the session releases it. */
static struct undone *add_undone(struct cfs_locks *l, cfs_ino_t ino, uint64_t owner, bool posix)
{
	struct undone *u;
	CFS_LOCK_GUARD(&l->undone_lock);

	u = *find_undone(l, ino, owner, posix) ? NULL : malloc(sizeof(*u));
	if (!u)
		return NULL;
	*u = (struct undone){l->undone, ino, owner, posix, .busy = true};
	l->undone = u;
	atomic_fetch_add(&l->n_undone, 1);
	return u;
}

/* With the lock. */
static void end_busy(struct cfs_locks *l, struct undone *u, bool done)
{
	struct undone **p = &l->undone;

	u->busy = false;
	if (done) {
		while (*p != u)
			p = &(*p)->next;
		*p = u->next;
		free(u);
		atomic_fetch_sub(&l->n_undone, 1);
	}
	pthread_cond_broadcast(&l->undone_ran);
}

/*
 * gives_up: the owner has given up all that it had. Otherwise a lock may have been granted that it
 * does not believe in; that is taken back when the owner has no others there.
 */
static void note_undone(struct cfs_meta *m, cfs_ino_t ino, uint64_t owner, bool posix,
			bool gives_up)
{
	const struct cfs_held_key key = key_of(m, ino, owner, posix);
	struct cfs_locks *l = m->locks;
	struct undone *u = add_undone(l, ino, owner, posix);
	bool done;

	if (gives_up)
		cfs_held_apply(&l->held, &key, &nothing);
	if (!u)
		return;
	/* Looked at behind add_undone(): another thread's lock is either seen here, or sees it. */
	done = !gives_up && cfs_held_any(&l->held, &key);
	if (!done && m->hooks.note_unlock)
		u->note = m->hooks.note_unlock(m->hooks.arg, ino, owner, posix);
	pthread_mutex_lock(&l->undone_lock);
	end_busy(l, u, done);
	pthread_mutex_unlock(&l->undone_lock);
}

/* With the lock, which is dropped meanwhile; u is not busy. False: the engine does not answer. */
static bool undo(struct cfs_meta *m, const struct cfs_ctx *ctx, struct undone *u)
{
	const struct wish k = {.type = CFS_LOCK_NONE, .lock = u->posix ? &nothing : NULL};
	struct cfs_locks *l = m->locks;
	bool done;

	u->busy = true;
	pthread_mutex_unlock(&l->undone_lock);
	done = !no_answer(do_lock(m, ctx, u->ino, u->owner, &k, false));
	/* While it is busy the owner takes no lock, which a successor would take back. */
	if (done && u->note)
		m->hooks.drop_unlock(m->hooks.arg, u->note);
	pthread_mutex_lock(&l->undone_lock);
	end_busy(l, u, done);
	return done;
}

/*
 * An unlock of the owner that is not confirmed is carried out before its next lock. 0, or
 * -ETIMEDOUT.
 */
static int settle_undone(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 uint64_t owner, bool posix)
{
	struct cfs_ctx now = try_ctx(m, ctx);
	struct cfs_locks *l = m->locks;
	struct undone *u;
	int rc = 0;

	if (!atomic_load(&l->n_undone))
		return 0;
	pthread_mutex_lock(&l->undone_lock);
	while ((u = *find_undone(l, ino, owner, posix)) && u->busy &&
	       !cfs_deadline_passed(now.deadline))
		cfs_cond_wait(&l->undone_ran, &l->undone_lock, now.deadline);
	if (u && (u->busy || !undo(m, &now, u)))
		rc = -ETIMEDOUT;
	pthread_mutex_unlock(&l->undone_lock);
	return rc;
}

static bool is_undone(struct cfs_locks *l, cfs_ino_t ino, uint64_t owner, bool posix)
{
	bool found;

	if (!atomic_load(&l->n_undone))
		return false;
	pthread_mutex_lock(&l->undone_lock);
	found = *find_undone(l, ino, owner, posix);
	pthread_mutex_unlock(&l->undone_lock);
	return found;
}

/* With the lock. */
static struct undone *first_undone(struct cfs_locks *l)
{
	struct undone *u = l->undone;

	while (u && u->busy)
		u = u->next;
	return u;
}

void cfs_locks_undo(struct cfs_meta *m, uint64_t for_ms)
{
	struct cfs_locks *l = m->locks;
	cfs_deadline_t end = cfs_deadline_in(for_ms);
	struct cfs_ctx ctx;
	struct undone *u;
	bool answered = true;

	if (!atomic_load(&l->n_undone))
		return;
	pthread_mutex_lock(&l->undone_lock);
	while (answered && (u = first_undone(l)) && !cfs_deadline_passed(end)) {
		ctx = cfs_ctx_internal(m->conf.timeout_ms);
		answered = undo(m, &ctx, u);
	}
	pthread_mutex_unlock(&l->undone_lock);
}

void cfs_meta_unlock_again(struct cfs_meta *m, cfs_ino_t ino, uint64_t owner, bool posix,
			   void *note)
{
	struct undone *u = add_undone(m->locks, ino, owner, posix);

	if (!u)
		return;
	pthread_mutex_lock(&m->locks->undone_lock);
	u->note = note;
	end_busy(m->locks, u, false);
	pthread_mutex_unlock(&m->locks->undone_lock);
	cfs_sessions_kick(m);
}

/* ---- requests ---- */

/* all: the owner gives up all that it has. */
static int lock(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
		const struct wish *k, bool wait, bool all)
{
	bool unlocks = k->type == CFS_LOCK_NONE;
	struct cfs_call c;
	int rc;

	cfs_call_begin(&c, m, CFS_META_OP_lock, ctx);
	do {
		rc = unlocks ? 0 : settle_undone(m, c.ctx, ino, owner, k->lock);
		if (!rc)
			rc = do_lock(m, c.ctx, ino, owner, k, wait);
		/* Another thread's request for this owner has failed meanwhile. */
	} while (!rc && !unlocks && is_undone(m->locks, ino, owner, k->lock));
	if (no_answer(rc) && (all || !unlocks))
		note_undone(m, ino, owner, k->lock, all);
	return (int)cfs_call_end(&c, rc);
}

int cfs_meta_flock(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
		   enum cfs_lock_type type, bool wait)
{
	const struct wish k = {.type = type};

	return lock(m, ctx, ino, owner, &k, wait, type == CFS_LOCK_NONE);
}

int cfs_meta_setlk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
		   const struct cfs_plock *lk, bool wait)
{
	const struct wish k = {.type = lk->type, .lock = lk};

	return lock(m, ctx, ino, owner, &k, wait,
		    lk->type == CFS_LOCK_NONE && lk->start == 0 && lk->end == INT64_MAX);
}

bool cfs_meta_holds_lock(struct cfs_meta *m, uint64_t sid, cfs_ino_t ino, uint64_t owner,
			 bool posix)
{
	const struct cfs_held_key key = {sid, ino, owner, posix};

	return cfs_held_any(&m->locks->held, &key);
}

void cfs_meta_assume_lock(struct cfs_meta *m, cfs_ino_t ino, uint64_t owner, bool posix)
{
	const struct cfs_held_key key = key_of(m, ino, owner, posix);

	cfs_held_assume(&m->locks->held, &key);
}

void cfs_locks_session_ended(struct cfs_meta *m, uint64_t sid)
{
	cfs_held_forget(&m->locks->held, sid);
}

int cfs_meta_getlk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
		   struct cfs_plock *lock)
{
	uint64_t sid = 0, holder = 0;
	struct cfs_call c;
	int rc;

	cfs_call_begin(&c, m, CFS_META_OP_lock, ctx);
	rc = m->eng->ops->getlk(m->eng, c.ctx, ino, cfs_host_sid(&m->host), owner, lock, &sid,
				&holder);
	/* A process id means nothing on another host. */
	if (!rc && lock->type != CFS_LOCK_NONE && sid != cfs_host_sid(&m->host))
		lock->pid = 0;
	return (int)cfs_call_end(&c, rc);
}
