/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/cleanup.h"
#include "meta/api/held.h"
#include "meta/engine/rules.h"

struct held_lock {
	struct held_lock *next;
	struct cfs_held_key key;
	bool assumed;	     /* there may be others, which are not in the list */
	struct cfs_plock *v; /* empty only when assumed */
	size_t n;
};

void cfs_held_init(struct cfs_held *h)
{
	pthread_mutex_init(&h->lock, NULL);
}

static void drop(struct held_lock **p)
{
	struct held_lock *l = *p;

	*p = l->next;
	free(l->v);
	free(l);
}

void cfs_held_fini(struct cfs_held *h)
{
	size_t i;

	for (i = 0; i < HELD_BUCKETS; i++)
		while (h->bucket[i])
			drop(&h->bucket[i]);
	pthread_mutex_destroy(&h->lock);
}

static bool same(const struct cfs_held_key *a, const struct cfs_held_key *b)
{
	return a->ino == b->ino && a->owner == b->owner && a->sid == b->sid && a->posix == b->posix;
}

/* With the lock. Where the entry is, or would be. */
static struct held_lock **find(struct cfs_held *h, const struct cfs_held_key *k)
{
	struct held_lock **p = &h->bucket[k->ino % HELD_BUCKETS];

	while (*p && !same(&(*p)->key, k))
		p = &(*p)->next;
	return p;
}

/* With the lock. NULL: no memory. */
static struct held_lock *add(struct held_lock **p, const struct cfs_held_key *k)
{
	struct held_lock *l = calloc(1, sizeof(*l));

	if (l) {
		l->key = *k;
		*p = l;
	}
	return l;
}

static void apply(struct held_lock **p, const struct cfs_held_key *k, const struct cfs_plock *lock)
{
	bool whole = lock->start == 0 && lock->end == INT64_MAX;
	struct held_lock *l = *p;
	struct cfs_plock *v;
	ssize_t n;

	if (!l)
		l = lock->type == CFS_LOCK_NONE ? NULL : add(p, k);
	if (!l)
		return;
	n = cfs_rules_plock_apply(l->v, l->n, lock, &v);
	if (n >= 0) {
		free(l->v);
		l->v = v;
		l->n = (size_t)n;
		l->assumed &= !whole;
	}
	if (!l->n && !l->assumed)
		drop(p);
}

void cfs_held_apply(struct cfs_held *h, const struct cfs_held_key *k, const struct cfs_plock *lock)
{
	pthread_mutex_lock(&h->lock);
	apply(find(h, k), k, lock);
	pthread_mutex_unlock(&h->lock);
}

void cfs_held_assume(struct cfs_held *h, const struct cfs_held_key *k)
{
	struct held_lock **p, *l;
	CFS_LOCK_GUARD(&h->lock);

	p = find(h, k);
	l = *p ? *p : add(p, k);
	if (l)
		l->assumed = true;
}

bool cfs_held_any(struct cfs_held *h, const struct cfs_held_key *k)
{
	CFS_LOCK_GUARD(&h->lock);

	return *find(h, k);
}

bool cfs_held_conflict(struct cfs_held *h, const struct cfs_held_key *k, enum cfs_lock_type type)
{
	const struct cfs_plock want = {.type = type, .end = INT64_MAX};
	const struct held_lock *l;
	CFS_LOCK_GUARD(&h->lock);

	for (l = h->bucket[k->ino % HELD_BUCKETS]; l; l = l->next)
		if (l->key.ino == k->ino && l->key.sid == k->sid && l->key.owner != k->owner &&
		    !l->key.posix && cfs_rules_plock_conflict(l->v, l->n, &want))
			return true;
	return false;
}

void cfs_held_forget(struct cfs_held *h, uint64_t sid)
{
	struct held_lock **p;
	size_t i;
	CFS_LOCK_GUARD(&h->lock);

	for (i = 0; i < HELD_BUCKETS; i++) {
		p = &h->bucket[i];
		while (*p) {
			if ((*p)->key.sid == sid)
				drop(p);
			else
				p = &(*p)->next;
		}
	}
}
