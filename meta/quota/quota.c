/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits and usage: of the volume, of directories, of owners.
 *
 * Checks need no round trip: they compare with the usage of the last load plus the changes of this
 * mount since. The volume's usage is base + delta. Operations of this mount add to delta, a load
 * replaces base; the two need no common lock.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/quota/quota-internal.h"

enum { PARENT_SLOTS = 4096, LOAD_TRIES = 4 };

/*
 * Growth from which on the counters are read for it. It takes millions of smaller changes between two
 * heartbeats to get from half of CFS_USAGE_MAX to the end of a counter.
 */
#define MUCH_SPACE (1LL << 40)

static int order(const struct cfs_quota *a, const struct cfs_quota *b)
{
	return CFS_COMPARE(a->kind, b->kind) ?: CFS_COMPARE(a->key, b->key);
}

static int order_limits(const void *a, const void *b)
{
	const struct limit *x = a, *y = b;

	return order(&x->q, &y->q);
}

struct limit *cfs_quotas_find(struct cfs_quotas *q, enum cfs_quota_kind kind, uint64_t key)
{
	struct limit wanted = {.q = {.kind = kind, .key = key}};

	if (!q->n)
		return NULL;
	return bsearch(&wanted, q->v, q->n, sizeof(*q->v), order_limits);
}

int cfs_quotas_create(struct cfs_quotas **ret)
{
	struct cfs_quotas *q = calloc(1, sizeof(*q));
	int rc;

	if (!q)
		return -ENOMEM;
	rc = cfs_cond_init(&q->flushed);
	if (rc) {
		free(q);
		return rc;
	}
	cfs_usage_batch_init(&q->batch);
	pthread_mutex_init(&q->lock, NULL);
	*ret = q;
	return 0;
}

void cfs_quotas_destroy(struct cfs_quotas *q)
{
	if (!q)
		return;
	pthread_mutex_destroy(&q->lock);
	pthread_cond_destroy(&q->flushed);
	cfs_usage_batch_destroy(&q->batch);
	cfs_quotas_drop_write(q);
	cfs_quotas_drop_files(q);
	free(q->parents);
	free(q->v);
	free(q);
}

void cfs_quotas_attach(struct cfs_quotas *q, struct cfs_engine *eng)
{
	q->eng = eng;
}

void cfs_quotas_set_session(struct cfs_quotas *q, const char *info)
{
	q->session = info;
}

struct cfs_volume_limits *cfs_quotas_volume(struct cfs_quotas *q)
{
	return &q->limits;
}

bool cfs_quotas_on_dirs(struct cfs_quotas *q)
{
	return atomic_load(&q->on_dirs);
}

bool cfs_quotas_on_owners(struct cfs_quotas *q)
{
	return atomic_load(&q->on_owners);
}

int64_t cfs_quotas_used_space(struct cfs_quotas *q)
{
	return atomic_load(&q->base_space) + atomic_load(&q->delta_space);
}

int64_t cfs_quotas_used_inodes(struct cfs_quotas *q)
{
	return atomic_load(&q->base_inodes) + atomic_load(&q->delta_inodes);
}

/* ---- directories and their ancestors ---- */

void cfs_quotas_learn_parent(struct cfs_quotas *q, cfs_ino_t dir, cfs_ino_t parent)
{
	if (!atomic_load(&q->on_dirs))
		return;
	pthread_mutex_lock(&q->lock);
	if (!q->parents)
		q->parents = calloc(PARENT_SLOTS, sizeof(*q->parents));
	if (q->parents)
		q->parents[dir % PARENT_SLOTS] = (struct parent_slot){dir, parent};
	pthread_mutex_unlock(&q->lock);
}

static int parent_of(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t dir, cfs_ino_t *ret)
{
	cfs_ino_t parent = 0;
	struct cfs_attr attr;
	int rc;

	pthread_mutex_lock(&q->lock);
	if (q->parents && q->parents[dir % PARENT_SLOTS].dir == dir)
		parent = q->parents[dir % PARENT_SLOTS].parent;
	pthread_mutex_unlock(&q->lock);
	if (!parent) {
		rc = q->eng->ops->getattr(q->eng, ctx, dir, &attr);
		if (rc)
			return rc;
		parent = attr.parent;
		cfs_quotas_learn_parent(q, dir, parent);
	}
	*ret = parent;
	return 0;
}

bool cfs_quotas_get(struct cfs_quotas *q, cfs_ino_t dir, struct cfs_quota *ret)
{
	const struct limit *l;
	CFS_LOCK_GUARD(&q->lock);

	l = cfs_quotas_find(q, CFS_QUOTA_DIR, dir);
	if (l) {
		*ret = l->q;
		ret->used_space += l->pending_space;
		ret->used_inodes += l->pending_inodes;
	}
	return l;
}

int cfs_quotas_scopes(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t dir,
		      struct scopes *ret)
{
	uint64_t steps = 0, until = 1;
	cfs_ino_t mark = dir;
	struct cfs_quota limit;
	struct scopes s = {0};
	int rc = 0;

	while (dir && !cfs_ino_is_trash(dir)) {
		if (cfs_quotas_get(q, dir, &limit)) {
			cfs_ino_t *v = reallocarray(s.v, s.n + 1, sizeof(*v));

			if (!v) {
				rc = -ENOMEM;
				break;
			}
			s.v = v;
			s.v[s.n++] = dir;
		}
		if (dir == CFS_ROOT_INO)
			break;
		rc = parent_of(q, ctx, dir, &dir);
		/*
		 * Brent's algorithm finds a cycle of parents. Other clients can create one: each
		 * moves a directory below the other.
		 */
		if (!rc && dir == mark)
			rc = -ELOOP;
		if (rc)
			break;
		if (++steps == until) {
			mark = dir;
			until *= 2;
		}
	}
	if (rc) {
		free(s.v);
		return rc;
	}
	*ret = s;
	return 0;
}

/* ---- checks ---- */

/* max <= 0: no limit but that of the counter. */
static bool is_over(int64_t used, int64_t more, int64_t max)
{
	int64_t sum;

	max = max > 0 ? CFS_MIN(max, CFS_USAGE_MAX) : CFS_USAGE_MAX;
	return more > 0 && (__builtin_add_overflow(used, more, &sum) || sum > max);
}

static bool exceeds(const struct limit *l, int64_t space, int64_t inodes)
{
	const struct cfs_quota *q = &l->q;

	return is_over(q->used_space + l->pending_space + l->reserved_space, space, q->max_space) ||
	       is_over(q->used_inodes + l->pending_inodes + l->reserved_inodes, inodes,
		       q->max_inodes);
}

static int check_limit(struct cfs_quotas *q, enum cfs_quota_kind kind, uint64_t key, int64_t space,
		       int64_t inodes)
{
	const struct limit *l = cfs_quotas_find(q, kind, key);

	return l && exceeds(l, space, inodes) ? -EDQUOT : 0;
}

static int check_volume(struct cfs_quotas *q, int64_t space, int64_t inodes)
{
	bool over = is_over(cfs_quotas_used_space(q) + atomic_load(&q->reserved_space), space,
			    (int64_t)atomic_load(&q->limits.capacity)) ||
		    is_over(cfs_quotas_used_inodes(q) + atomic_load(&q->reserved_inodes), inodes,
			    (int64_t)atomic_load(&q->limits.max_inodes));

	return over ? -ENOSPC : 0;
}

bool cfs_quotas_limited(struct cfs_quotas *q)
{
	return atomic_load(&q->limits.capacity) || atomic_load(&q->limits.max_inodes) ||
	       atomic_load(&q->on_dirs) || atomic_load(&q->on_owners);
}

bool cfs_quotas_may_refuse(struct cfs_quotas *q, int64_t space)
{
	return cfs_quotas_limited(q) || space >= MUCH_SPACE ||
	       is_over(cfs_quotas_used_space(q), space, CFS_USAGE_MAX / 2);
}

int cfs_quotas_look(struct cfs_quotas *q, const struct cfs_ctx *ctx, int64_t space)
{
	int rc = 0;

	if (space < MUCH_SPACE)
		return 0;
	/* Other mounts do not see changes that this one has not written. */
	if (!q->eng->ops->inline_usage)
		rc = cfs_quotas_flush(q, ctx);
	return rc ? rc : cfs_quotas_load(q, ctx);
}

int cfs_quotas_check_locked(struct cfs_quotas *q, const struct cfs_reservation *r)
{
	int rc = r->volume ? check_volume(q, r->space, r->inodes) : 0;
	size_t i;

	if (!rc && r->owned)
		rc = check_limit(q, CFS_QUOTA_USER, r->uid, r->space, r->inodes);
	if (!rc && r->owned)
		rc = check_limit(q, CFS_QUOTA_GROUP, r->gid, r->space, r->inodes);
	for (i = 0; i < r->dirs.n && !rc; i++)
		rc = check_limit(q, CFS_QUOTA_DIR, r->dirs.v[i], r->space, r->inodes);
	return rc;
}

int cfs_quotas_check_now(struct cfs_quotas *q, const struct cfs_reservation *r)
{
	CFS_LOCK_GUARD(&q->lock);

	return cfs_quotas_check_locked(q, r);
}

struct parents {
	cfs_ino_t v[64];
	size_t n;
};

static int note_parent(void *arg, cfs_ino_t parent, const char *name, size_t len)
{
	struct parents *p = arg;

	if (p->n < CFS_ARRAY_SIZE(p->v))
		p->v[p->n++] = parent;
	return 0;
}

/* Each directory that has an entry of a hard-linked file counts its space. */
int cfs_quotas_file_scopes(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
			   const struct cfs_attr *attr, struct scopes *ret)
{
	struct scopes all = {0}, one;
	struct parents parents = {.v = {attr->parent}, .n = attr->parent != 0};
	cfs_ino_t *v;
	size_t i;
	int rc = 0;

	if (!attr->parent)
		rc = q->eng->ops->each_parent(q->eng, ctx, ino, note_parent, &parents);
	for (i = 0; i < parents.n && !rc; i++) {
		rc = cfs_quotas_scopes(q, ctx, parents.v[i], &one);
		if (rc || !one.n)
			continue;
		v = reallocarray(all.v, all.n + one.n, sizeof(*v));
		if (v) {
			memcpy(v + all.n, one.v, one.n * sizeof(*v));
			all.v = v;
			all.n += one.n;
		} else {
			rc = -ENOMEM;
		}
		free(one.v);
	}
	if (rc)
		free(all.v);
	else
		*ret = all;
	return rc;
}

int cfs_quotas_check_end(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 uint64_t end)
{
	struct cfs_attr attr;
	int rc;

	/* Fits even if the file is empty now: no need to read its length. */
	if (!atomic_load(&q->on_dirs) && !atomic_load(&q->on_owners) &&
	    check_volume(q, cfs_space_of(end), 0) == 0)
		return 0;
	rc = q->eng->ops->getattr(q->eng, ctx, ino, &attr);
	if (rc || end <= attr.length)
		return rc;
	return cfs_quotas_check_growth(q, ctx, ino, &attr, attr.length, end);
}

/* ---- accounting ---- */

/* With the lock. False: no memory for the row of this owner. */
static bool add_pending(struct cfs_quotas *q, enum cfs_quota_kind kind, uint64_t key, int64_t space,
			int64_t inodes)
{
	struct limit *l = cfs_quotas_find(q, kind, key);

	if (!l && kind != CFS_QUOTA_DIR) {
		/* The first change of this owner: the next flush inserts the row. */
		struct limit *v = reallocarray(q->v, q->n + 1, sizeof(*v));

		if (!v)
			return false;
		q->v = v;
		v[q->n++] = (struct limit){
			.q = {.kind = kind, .key = key, .max_space = -1, .max_inodes = -1}};
		qsort(v, q->n, sizeof(*v), order_limits);
		l = cfs_quotas_find(q, kind, key);
	}
	if (l) {
		l->pending_space += space;
		l->pending_inodes += inodes;
	}
	return true;
}

static void add_to_scopes(struct cfs_quotas *q, const struct scopes *dirs, int64_t space,
			  int64_t inodes)
{
	size_t i;

	for (i = 0; i < dirs->n; i++)
		add_pending(q, CFS_QUOTA_DIR, dirs->v[i], space, inodes);
}

static bool add_to_owner(struct cfs_quotas *q, uint32_t uid, uint32_t gid, int64_t space,
			 int64_t inodes)
{
	bool user, group;

	if (!space && !inodes)
		return true;
	user = add_pending(q, CFS_QUOTA_USER, uid, space, inodes);
	group = add_pending(q, CFS_QUOTA_GROUP, gid, space, inodes);
	return user && group;
}

static void warn_missed(uint32_t uid, uint32_t gid)
{
	cfs_warn("quotas of user %u and group %u miss a change, 'cachefs quota repair' counts it: "
		 "error=ENOMEM",
		 uid, gid);
}

/* The directories with limits at and above `dir`; none when reading its ancestors fails. */
static struct scopes scopes_of(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t dir)
{
	struct scopes s = {0};

	if (atomic_load(&q->on_dirs) && cfs_quotas_scopes(q, ctx, dir, &s))
		cfs_warn("directory quotas miss a change, 'cachefs quota repair' counts it: "
			 "inode=%llu",
			 (unsigned long long)dir);
	return s;
}

void cfs_quotas_add_scoped(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t dir,
			   int64_t space, int64_t inodes)
{
	struct scopes dirs;

	if (!space && !inodes)
		return;
	dirs = scopes_of(q, ctx, dir);
	pthread_mutex_lock(&q->lock);
	add_to_scopes(q, &dirs, space, inodes);
	pthread_mutex_unlock(&q->lock);
	free(dirs.v);
}

void cfs_quotas_begin(struct cfs_quotas *q)
{
	atomic_fetch_add(&q->begun, 1);
}

static void add_volume(struct cfs_quotas *q, const struct cfs_usage *u)
{
	atomic_fetch_add(&q->delta_space, u->space);
	atomic_fetch_add(&q->delta_inodes, u->inodes);
}

/*
 * Replaces a reservation by usage under one lock: concurrent checks count the space exactly once.
 */
static void add_usage(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t file,
		      const struct cfs_reservation *reserved, const struct cfs_usage *u)
{
	struct scopes dirs[CFS_ARRAY_SIZE(u->dirs)];
	bool added = true;
	unsigned i;

	for (i = 0; i < u->n_dirs; i++)
		dirs[i] = scopes_of(q, ctx, u->dirs[i].dir);
	pthread_mutex_lock(&q->lock);
	if (file)
		cfs_quotas_use_reserved(q, file, u->space);
	if (reserved && reserved->active)
		cfs_quotas_add_reserved(q, reserved, -reserved->space, -reserved->inodes);
	add_volume(q, u);
	for (i = 0; i < u->n_dirs; i++)
		add_to_scopes(q, &dirs[i], u->dirs[i].space, u->dirs[i].inodes);
	if (atomic_load(&q->limits.user_group_quota))
		added = add_to_owner(q, u->uid, u->gid, u->owner_space, u->owner_inodes);
	pthread_mutex_unlock(&q->lock);
	if (!added)
		warn_missed(u->uid, u->gid);
	for (i = 0; i < u->n_dirs; i++)
		free(dirs[i].v);
}

static void end_reservation(struct cfs_quotas *q, const struct cfs_reservation *reserved)
{
	pthread_mutex_lock(&q->lock);
	cfs_quotas_add_reserved(q, reserved, -reserved->space, -reserved->inodes);
	pthread_mutex_unlock(&q->lock);
}

void cfs_quotas_end_reserved(struct cfs_quotas *q, const struct cfs_ctx *ctx, cfs_ino_t ino,
			     struct cfs_reservation *reserved, const struct cfs_usage *u)
{
	bool reserves = reserved && reserved->active;

	if (u) {
		if (reserves || atomic_load(&q->on_dirs) ||
		    atomic_load(&q->limits.user_group_quota) || atomic_load(&q->n_reserving))
			add_usage(q, ctx, ino, reserved, u);
		else
			add_volume(q, u);
		if (!q->eng->ops->inline_usage)
			cfs_usage_batch_add(&q->batch, u);
	} else if (reserves) {
		end_reservation(q, reserved);
	}
	if (reserves)
		free(reserved->dirs.v);
	atomic_fetch_add(&q->ended, 1);
}

void cfs_quotas_end(struct cfs_quotas *q, const struct cfs_ctx *ctx, const struct cfs_usage *u)
{
	cfs_quotas_end_reserved(q, ctx, 0, NULL, u);
}

void cfs_quotas_chown(struct cfs_quotas *q, const struct cfs_usage *u, const struct cfs_attr *now)
{
	bool taken, given;

	if (!atomic_load(&q->limits.user_group_quota))
		return;
	pthread_mutex_lock(&q->lock);
	taken = add_to_owner(q, u->uid, u->gid, -u->owner_space, -u->owner_inodes);
	given = add_to_owner(q, now->uid, now->gid, u->owner_space, u->owner_inodes);
	pthread_mutex_unlock(&q->lock);
	if (!taken)
		warn_missed(u->uid, u->gid);
	if (!given)
		warn_missed(now->uid, now->gid);
}

/* ---- loading ---- */

static int load_counters(struct cfs_quotas *q, const struct cfs_ctx *ctx)
{
	bool is_inline = q->eng->ops->inline_usage;
	int64_t space = 0, inodes = 0, own_space = 0, own_inodes = 0;
	int i, rc = 0;

	/*
	 * With inline usage the counters may contain a change of a running call, which delta does
	 * not contain yet. Reads again until no call ran meanwhile. After the last try the base may
	 * be off by the running calls, until the next load.
	 */
	for (i = 0; i < LOAD_TRIES && !rc; i++) {
		uint64_t ended = atomic_load(&q->ended);
		uint64_t begun = atomic_load(&q->begun);

		rc = q->eng->ops->get_counters(q->eng, ctx, &space, &inodes);
		own_space = atomic_load(is_inline ? &q->delta_space : &q->flushed_space);
		own_inodes = atomic_load(is_inline ? &q->delta_inodes : &q->flushed_inodes);
		if (!is_inline || (begun == ended && atomic_load(&q->begun) == begun))
			break;
	}
	if (rc)
		return rc;
	atomic_store(&q->base_space, space - own_space);
	atomic_store(&q->base_inodes, inodes - own_inodes);
	return 0;
}

struct listing {
	struct limit *v;
	size_t n;
	bool on_dirs, on_owners;
};

static int collect(void *arg, const struct cfs_quota *quota)
{
	struct listing *l = arg;
	struct limit *v = reallocarray(l->v, l->n + 1, sizeof(*v));

	if (!v)
		return -ENOMEM;
	l->v = v;
	v[l->n++] = (struct limit){.q = *quota};
	if (quota->kind == CFS_QUOTA_DIR)
		l->on_dirs = true;
	else if (quota->max_space > 0 || quota->max_inodes > 0)
		l->on_owners = true;
	return 0;
}

/* Adds the usage that this mount has not flushed yet to the rows just read. */
static int carry_pending(struct cfs_quotas *q, struct listing *fresh)
{
	size_t i, n = fresh->n;
	int rc;

	for (i = 0; i < q->n; i++) {
		const struct limit *old = &q->v[i];
		struct limit *now = NULL;

		if (!old->pending_space && !old->pending_inodes && !old->reserved_space &&
		    !old->reserved_inodes)
			continue;
		if (n)
			now = bsearch(old, fresh->v, n, sizeof(*fresh->v), order_limits);
		if (!now && old->q.kind != CFS_QUOTA_DIR) {
			rc = collect(fresh, &old->q);
			if (rc)
				return rc;
			now = &fresh->v[fresh->n - 1];
			now->q.used_space = now->q.used_inodes = 0;
		}
		if (!now)
			continue;
		now->pending_space = old->pending_space;
		now->pending_inodes = old->pending_inodes;
		now->reserved_space = old->reserved_space;
		now->reserved_inodes = old->reserved_inodes;
	}
	if (fresh->n > n)
		qsort(fresh->v, fresh->n, sizeof(*fresh->v), order_limits);
	return 0;
}

int cfs_quotas_load(struct cfs_quotas *q, const struct cfs_ctx *ctx)
{
	struct listing fresh = {0};
	struct limit *old;
	int rc = cfs_quotas_begin_flush(q, ctx->deadline);

	if (rc)
		return rc;
	/*
	 * The answer of the last write was lost: until it is repeated, it is unknown whether the
	 * rows contain it. An error does not end the load: a read-only server can still be read.
	 */
	if (q->write.begun)
		cfs_quotas_write(q, ctx);
	rc = load_counters(q, ctx);
	if (!rc)
		rc = q->eng->ops->each_quota(q->eng, ctx, collect, &fresh);
	if (rc)
		goto out;
	if (fresh.n)
		qsort(fresh.v, fresh.n, sizeof(*fresh.v), order_limits);
	pthread_mutex_lock(&q->lock);
	rc = carry_pending(q, &fresh);
	if (rc) {
		pthread_mutex_unlock(&q->lock);
		goto out;
	}
	old = q->v;
	q->v = fresh.v;
	q->n = fresh.n;
	/* Other mounts may have moved directories. */
	if (q->parents)
		memset(q->parents, 0, PARENT_SLOTS * sizeof(*q->parents));
	pthread_mutex_unlock(&q->lock);
	atomic_store(&q->on_dirs, fresh.on_dirs);
	atomic_store(&q->on_owners, fresh.on_owners);
	fresh.v = old;
out:
	cfs_quotas_end_flush(q);
	free(fresh.v);
	return rc;
}
