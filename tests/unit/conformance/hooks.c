/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's table of the mount under test, with members that a test takes over for a while. */
#include "conformance.h"

#define HOOKS(X) X(each_quota) X(add_quota_usage) X(end_sustained) X(flock) X(setlk) X(getlk)

struct engine_hooks engine_hooks;

static struct {
	struct cfs_engine_ops ops;
	const struct cfs_engine_ops *real;
} table;

/* The test's, or the engine's. */
#define CHOSEN(name)                                                                               \
	(atomic_load(&engine_hooks.name) ? atomic_load(&engine_hooks.name) : table.real->name)

static int each_quota(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_engine_quota_fn fn,
		      void *arg)
{
	return CHOSEN(each_quota)(e, ctx, fn, arg);
}

static int add_quota_usage(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *mark,
			   const struct cfs_quota *deltas, size_t n)
{
	return CHOSEN(add_quota_usage)(e, ctx, mark, deltas, n);
}

static int end_sustained(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
			 cfs_ino_t ino, uint64_t *ret_length, struct cfs_usage *ret_usage)
{
	return CHOSEN(end_sustained)(e, ctx, sid, ino, ret_length, ret_usage);
}

static int flock(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, enum cfs_lock_type type)
{
	return CHOSEN(flock)(e, ctx, ino, sid, owner, type);
}

static int setlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, const struct cfs_plock *lock)
{
	return CHOSEN(setlk)(e, ctx, ino, sid, owner, lock);
}

static int getlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		 uint64_t owner, struct cfs_plock *lock, uint64_t *ret_sid, uint64_t *ret_owner)
{
	return CHOSEN(getlk)(e, ctx, ino, sid, owner, lock, ret_sid, ret_owner);
}

void hooks_install(struct cfs_meta *m)
{
	table.real = m->eng->ops;
	table.ops = *table.real;
#define X(name) table.ops.name = name;
	HOOKS(X)
#undef X
	m->eng->ops = &table.ops;
}

const struct cfs_engine_ops *real_ops(void)
{
	return table.real;
}
