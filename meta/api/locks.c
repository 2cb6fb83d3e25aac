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
#include "meta/api/call.h"
#include "meta/api/core.h"
#include "meta/api/locks.h"
#include "meta/engine/rules.h"

enum { FLOCK_BUCKETS = 64 };
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

/* BSD locks held by this mount: engines cannot tell who holds one. */
struct held {
	struct held *next;
	cfs_ino_t ino;
	uint64_t owner;
	enum cfs_lock_type type;
};

/* An unlock by an owner that failed while the engine did not answer. */
struct undone {
	struct undone *next;
	cfs_ino_t ino;
	uint64_t owner;
	bool posix;
	bool running; /* it is being retried */
};

struct cfs_locks {
	pthread_mutex_t lock; /* protects the lists */
	struct waiter *waiters;
	uint64_t rounds;
	struct held *held[FLOCK_BUCKETS];
	_Atomic uint64_t releases; /* a wait that began before one of these must not sleep */

	pthread_mutex_t undone_lock; /* protects undone; not held while the engine is asked */
	pthread_cond_t undone_ran;   /* signalled when a retry ends */
	struct undone *undone;
	_Atomic size_t n_undone;
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
	*ret = l;
	return 0;
}

void cfs_locks_destroy(struct cfs_locks *l)
{
	size_t i;

	if (!l)
		return;
	for (i = 0; i < FLOCK_BUCKETS; i++) {
		while (l->held[i]) {
			struct held *h = l->held[i];

			l->held[i] = h->next;
			free(h);
		}
	}
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

	pthread_mutex_lock(&l->lock);
	atomic_fetch_add(&l->releases, 1);
	for (w = l->waiters; w; w = w->next) {
		if (w->ino != ino)
			continue;
		w->woken = true;
		pthread_cond_signal(&w->cond);
	}
	pthread_mutex_unlock(&l->lock);
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

	pthread_mutex_lock(&l->lock);
	/*
	 * After a release the graph is outdated: the blocking owner may just have released the lock
	 * and may already wait for this owner.
	 */
	w->woken = atomic_load(&l->releases) != seen;
	if (!w->woken && w->in_graph && waits_for(l, w->waits_for, w->owner, ++l->rounds)) {
		pthread_mutex_unlock(&l->lock);
		return -EDEADLK;
	}
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
	pthread_mutex_unlock(&l->lock);
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

/* ---- unlocks during an outage ---- */

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

/* Without memory for the note, the end of the session releases the lock. */
static void note_undone(struct cfs_locks *l, cfs_ino_t ino, uint64_t owner, bool posix)
{
	struct undone *u;

	pthread_mutex_lock(&l->undone_lock);
	u = *find_undone(l, ino, owner, posix) ? NULL : malloc(sizeof(*u));
	if (u) {
		*u = (struct undone){l->undone, ino, owner, posix};
		l->undone = u;
		atomic_fetch_add(&l->n_undone, 1);
	}
	pthread_mutex_unlock(&l->undone_lock);
}

static void remove_undone(struct cfs_locks *l, struct undone **p)
{
	struct undone *u = *p;

	*p = u->next;
	atomic_fetch_sub(&l->n_undone, 1);
	free(u);
}

/*
 * The owner takes a lock again, which replaces its pending unlock. 0, or -ETIMEDOUT while a retry
 * of the unlock is under way: it must not take effect after the new lock.
 */
static int drop_undone(struct cfs_locks *l, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       uint64_t owner, bool posix)
{
	struct undone **p;
	int rc = 0;

	if (!atomic_load(&l->n_undone))
		return 0;
	pthread_mutex_lock(&l->undone_lock);
	p = find_undone(l, ino, owner, posix);
	while (*p && (*p)->running && !cfs_deadline_passed(ctx->deadline)) {
		cfs_cond_wait(&l->undone_ran, &l->undone_lock, ctx->deadline);
		p = find_undone(l, ino, owner, posix);
	}
	if (*p && (*p)->running)
		rc = -ETIMEDOUT;
	else if (*p)
		remove_undone(l, p);
	pthread_mutex_unlock(&l->undone_lock);
	return rc;
}

/* ---- BSD locks ---- */

static void note_flock(struct cfs_locks *l, cfs_ino_t ino, uint64_t owner, enum cfs_lock_type type)
{
	struct held **p, *h;

	pthread_mutex_lock(&l->lock);
	for (p = &l->held[ino % FLOCK_BUCKETS]; *p; p = &(*p)->next)
		if ((*p)->ino == ino && (*p)->owner == owner)
			break;
	h = *p;
	if (h && type == CFS_LOCK_NONE) {
		*p = h->next;
		free(h);
	} else if (h) {
		h->type = type;
	} else if (type != CFS_LOCK_NONE) {
		h = malloc(sizeof(*h));
		/* Without the note a waiter polls, which is only slower. */
		if (h) {
			*h = (struct held){NULL, ino, owner, type};
			*p = h;
		}
	}
	pthread_mutex_unlock(&l->lock);
}

static bool held_here(struct cfs_locks *l, cfs_ino_t ino, uint64_t owner, enum cfs_lock_type type)
{
	const struct held *h;

	pthread_mutex_lock(&l->lock);
	for (h = l->held[ino % FLOCK_BUCKETS]; h; h = h->next)
		if (h->ino == ino && h->owner != owner &&
		    (h->type == CFS_LOCK_WRITE || type == CFS_LOCK_WRITE))
			break;
	pthread_mutex_unlock(&l->lock);
	return h;
}

/* ---- both kinds ---- */

/* A request for a BSD lock of this type, or for a POSIX lock. */
struct wish {
	enum cfs_lock_type type;
	const struct cfs_plock *lock; /* NULL: BSD */
};

static int try_lock(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
		    const struct wish *k)
{
	struct cfs_locks *l = m->locks;
	uint64_t sid = cfs_host_sid(&m->host);
	int rc = k->lock ? m->eng->ops->setlk(m->eng, ctx, ino, sid, owner, k->lock)
			 : m->eng->ops->flock(m->eng, ctx, ino, sid, owner, k->type);

	if (rc)
		return rc;
	if (!k->lock)
		note_flock(l, ino, owner, k->type);
	if (k->type != CFS_LOCK_WRITE)
		released(l, ino);
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

	if (!k->lock) {
		*ret_here = held_here(m->locks, w->ino, w->owner, k->type);
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

/* all: the owner gives up all that it has. */
static int lock(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
		const struct wish *k, bool wait, bool all)
{
	struct cfs_call c;
	int rc = 0;

	cfs_call_begin(&c, m, CFS_META_OP_lock, ctx);
	if (k->type != CFS_LOCK_NONE)
		rc = drop_undone(m->locks, c.ctx, ino, owner, k->lock);
	if (!rc)
		rc = do_lock(m, c.ctx, ino, owner, k, wait);
	if (all && no_answer(rc))
		note_undone(m->locks, ino, owner, k->lock);
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

static int undo(struct cfs_meta *m, const struct undone *u)
{
	const struct cfs_plock everything = {.type = CFS_LOCK_NONE, .end = INT64_MAX};
	const struct wish k = {.type = CFS_LOCK_NONE, .lock = u->posix ? &everything : NULL};
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

	return do_lock(m, &ctx, u->ino, u->owner, &k, false);
}

void cfs_locks_undo(struct cfs_meta *m, uint64_t for_ms)
{
	struct cfs_locks *l = m->locks;
	cfs_deadline_t end = cfs_deadline_in(for_ms);
	struct undone *u;
	bool answered = true;

	if (!atomic_load(&l->n_undone))
		return;
	pthread_mutex_lock(&l->undone_lock);
	while (answered && (u = l->undone) && !cfs_deadline_passed(end)) {
		u->running = true;
		pthread_mutex_unlock(&l->undone_lock);
		answered = !no_answer(undo(m, u));
		pthread_mutex_lock(&l->undone_lock);
		u->running = false;
		if (answered) /* others may have been inserted before it meanwhile */
			remove_undone(l, find_undone(l, u->ino, u->owner, u->posix));
		pthread_cond_broadcast(&l->undone_ran);
	}
	pthread_mutex_unlock(&l->undone_lock);
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
