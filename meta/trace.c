/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tracing engine: one debug line per call of another engine, with what was asked, what came of
 * it and how long it took.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "meta/engine.h"

struct trace {
	struct cfs_engine eng;
	struct cfs_engine_ops ops; /* ours, with the inner engine's name and nature */
	struct cfs_engine *inner;
};

static struct cfs_engine *inner_of(struct cfs_engine *e)
{
	return ((struct trace *)e)->inner;
}

__attribute__((format(printf, 4, 5))) static ssize_t say(const char *op, uint64_t start_ns,
							 ssize_t rc, const char *fmt, ...)
{
	uint64_t took_us = (cfs_now_ns() - start_ns) / 1000;
	char args[512];
	va_list ap;

	if (!cfs_log_enabled(CFS_LOG_DEBUG))
		return rc;
	va_start(ap, fmt);
	vsnprintf(args, sizeof(args), fmt, ap);
	va_end(ap);
	if (rc < 0)
		cfs_debug("meta %s: %s result=%s us=%" PRIu64, op, args, cfs_errname((int)rc),
			  took_us);
	else
		cfs_debug("meta %s: %s result=%zd us=%" PRIu64, op, args, rc, took_us);
	return rc;
}

static int trace_create(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *setting,
			bool trash)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("create", start_ns, i->ops->create(i, ctx, setting, trash), "trash=%d",
			trash);
}

static int trace_upgrade(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("upgrade", start_ns, i->ops->upgrade(i, ctx), "-");
}

static int trace_get_setting(struct cfs_engine *e, const struct cfs_ctx *ctx, char **ret)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("get_setting", start_ns, i->ops->get_setting(i, ctx, ret), "-");
}

static int trace_put_setting(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *setting)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("put_setting", start_ns, i->ops->put_setting(i, ctx, setting), "-");
}

static int trace_sync(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("sync", start_ns, i->ops->sync(i, ctx), "-");
}

static int trace_settle(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("settle", start_ns, i->ops->settle(i, ctx), "-");
}

static int trace_destroy(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("destroy", start_ns, i->ops->destroy(i, ctx), "-");
}

static int trace_add_counter(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *name,
			     int64_t n, int64_t *ret_old)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("add_counter", start_ns, i->ops->add_counter(i, ctx, name, n, ret_old),
			"name=%s n=%" PRId64, name, n);
}

static int trace_get_counters(struct cfs_engine *e, const struct cfs_ctx *ctx,
			      int64_t *ret_used_space, int64_t *ret_inodes)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("get_counters", start_ns,
			i->ops->get_counters(i, ctx, ret_used_space, ret_inodes), "-");
}

static int trace_clock(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t *ret_s)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("clock", start_ns, i->ops->clock(i, ctx, ret_s), "-");
}

static int trace_claim_job(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *name,
			   int64_t now_s, int64_t interval_s)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("claim_job", start_ns, i->ops->claim_job(i, ctx, name, now_s, interval_s),
			"name=%s", name);
}

static int trace_new_session(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *info,
			     int64_t expire_s, uint64_t *ret_sid)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("new_session", start_ns,
			i->ops->new_session(i, ctx, info, expire_s, ret_sid), "-");
}

static int trace_refresh_session(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
				 const char *info, int64_t expire_s)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("refresh_session", start_ns,
			i->ops->refresh_session(i, ctx, sid, info, expire_s), "sid=%" PRIu64, sid);
}

static int trace_resume_session(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
				const char *info, int64_t expire_s)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("resume_session", start_ns,
			i->ops->resume_session(i, ctx, sid, info, expire_s), "sid=%" PRIu64, sid);
}

static int trace_clean_session(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("clean_session", start_ns, i->ops->clean_session(i, ctx, sid),
			"sid=%" PRIu64, sid);
}

static int trace_each_session(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t before_s,
			      size_t limit, cfs_session_fn fn, void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("each_session", start_ns,
			i->ops->each_session(i, ctx, before_s, limit, fn, arg), "-");
}

static int trace_lookup(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t parent,
			const char *name, size_t len, struct cfs_entry *ret)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("lookup", start_ns, i->ops->lookup(i, ctx, parent, name, len, ret),
			"parent=%" PRIu64 " name=%.*s", parent, (int)len, name);
}

static int trace_getattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 struct cfs_attr *ret)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("getattr", start_ns, i->ops->getattr(i, ctx, ino, ret), "ino=%" PRIu64,
			ino);
}

static int trace_setattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 uint32_t set, const struct cfs_attr *in, struct cfs_attr *ret,
			 struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("setattr", start_ns, i->ops->setattr(i, ctx, ino, set, in, ret, ret_usage),
			"ino=%" PRIu64 " set=%#x", ino, set);
}

static int trace_touch_atime(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			     struct timespec atime)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("touch_atime", start_ns, i->ops->touch_atime(i, ctx, ino, atime),
			"ino=%" PRIu64, ino);
}

static int trace_touch_dirs(struct cfs_engine *e, const struct cfs_ctx *ctx,
			    const struct cfs_dir_time *v, size_t n)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("touch_dirs", start_ns, i->ops->touch_dirs(i, ctx, v, n),
			"first=%" PRIu64 " n=%zu", v[0].dir, n);
}

static int trace_readlink(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			  char buf[CFS_SYMLINK_MAX + 1])
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("readlink", start_ns, i->ops->readlink(i, ctx, ino, buf), "ino=%" PRIu64,
			ino);
}

static int trace_mknod(struct cfs_engine *e, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
		       cfs_ino_t ino, struct cfs_entry *ret, struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("mknod", start_ns, i->ops->mknod(i, ctx, req, ino, ret, ret_usage),
			"parent=%" PRIu64 " name=%.*s type=%u mode=%#o ino=%" PRIu64, req->parent,
			(int)req->name_len, req->name, req->type, req->mode, ino);
}

static int trace_link(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		      cfs_ino_t parent, const char *name, size_t len, struct cfs_attr *ret,
		      struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say(
		"link", start_ns, i->ops->link(i, ctx, ino, parent, name, len, ret, ret_usage),
		"ino=%" PRIu64 " parent=%" PRIu64 " name=%.*s", ino, parent, (int)len, name);
}

static int trace_unlink(struct cfs_engine *e, const struct cfs_ctx *ctx,
			const struct cfs_engine_remove *req, struct cfs_removed *ret,
			struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("unlink", start_ns, i->ops->unlink(i, ctx, req, ret, ret_usage),
			"parent=%" PRIu64 " name=%.*s trash=%" PRIu64, req->parent,
			(int)req->name_len, req->name, req->trash);
}

static int trace_rmdir(struct cfs_engine *e, const struct cfs_ctx *ctx,
		       const struct cfs_engine_remove *req, struct cfs_removed *ret,
		       struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("rmdir", start_ns, i->ops->rmdir(i, ctx, req, ret, ret_usage),
			"parent=%" PRIu64 " name=%.*s trash=%" PRIu64, req->parent,
			(int)req->name_len, req->name, req->trash);
}

static int trace_rename(struct cfs_engine *e, const struct cfs_ctx *ctx,
			const struct cfs_engine_rename *req, struct cfs_renamed *ret,
			struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("rename", start_ns, i->ops->rename(i, ctx, req, ret, ret_usage),
			"from=%" PRIu64 "/%.*s to=%" PRIu64 "/%.*s flags=%#x", req->r.src_parent,
			(int)req->r.src_len, req->r.src_name, req->r.dst_parent,
			(int)req->r.dst_len, req->r.dst_name, req->r.flags);
}

static int trace_readdir(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t dir, bool attrs,
			 size_t limit, struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("readdir", start_ns,
			i->ops->readdir(i, ctx, dir, attrs, limit, cursor, fn, arg),
			"dir=%" PRIu64 " attrs=%d limit=%zu", dir, attrs, limit);
}

static int trace_trash_dir(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *name,
			   cfs_ino_t *ret, struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("trash_dir", start_ns, i->ops->trash_dir(i, ctx, name, ret, ret_usage),
			"name=%s", name);
}

static int trace_each_parent(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			     cfs_engine_parent_fn fn, void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("each_parent", start_ns, i->ops->each_parent(i, ctx, ino, fn, arg),
			"ino=%" PRIu64, ino);
}

static ssize_t trace_read_chunk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
				uint32_t indx, struct cfs_slice **ret)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return say("read_chunk", start_ns, i->ops->read_chunk(i, ctx, ino, indx, ret),
		   "ino=%" PRIu64 " indx=%u", ino, indx);
}

static int trace_commit_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			      uint32_t indx, const struct cfs_slice *s, struct timespec mtime,
			      struct cfs_attr *ret, unsigned *ret_records,
			      struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say(
		"commit_slice", start_ns,
		i->ops->commit_slice(i, ctx, ino, indx, s, mtime, ret, ret_records, ret_usage),
		"ino=%" PRIu64 " indx=%u pos=%u slice=%" PRIu64 " len=%u", ino, indx, s->pos, s->id,
		s->len);
}

static int trace_truncate(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			  uint64_t length, struct cfs_attr *ret, struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("truncate", start_ns, i->ops->truncate(i, ctx, ino, length, ret, ret_usage),
			"ino=%" PRIu64 " length=%" PRIu64, ino, length);
}

static int trace_fallocate(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			   unsigned mode, uint64_t off, uint64_t len, struct cfs_attr *ret,
			   struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("fallocate", start_ns,
			i->ops->fallocate(i, ctx, ino, mode, off, len, ret, ret_usage),
			"ino=%" PRIu64 " mode=%#x off=%" PRIu64 " len=%" PRIu64, ino, mode, off,
			len);
}

static int trace_copy_range(struct cfs_engine *e, const struct cfs_ctx *ctx,
			    const struct cfs_copy_range *req, uint64_t *ret_copied,
			    struct cfs_attr *ret_dst, struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("copy_range", start_ns,
			i->ops->copy_range(i, ctx, req, ret_copied, ret_dst, ret_usage),
			"src=%" PRIu64 "@%" PRIu64 " dst=%" PRIu64 "@%" PRIu64 " len=%" PRIu64,
			req->src, req->src_off, req->dst, req->dst_off, req->len);
}

static int trace_compact_chunk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			       uint32_t indx, const struct cfs_slice *head, size_t head_n,
			       size_t skipped, const struct cfs_slice *merged, bool trash,
			       cfs_engine_slice_fn dead, void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("compact_chunk", start_ns,
			i->ops->compact_chunk(i, ctx, ino, indx, head, head_n, skipped, merged,
					      trash, dead, arg),
			"ino=%" PRIu64 " indx=%u records=%zu skipped=%zu slice=%" PRIu64, ino, indx,
			head_n, skipped, merged->id);
}

static int trace_end_sustained(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
			       cfs_ino_t ino, uint64_t *ret_length, struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("end_sustained", start_ns,
			i->ops->end_sustained(i, ctx, sid, ino, ret_length, ret_usage),
			"sid=%" PRIu64 " ino=%" PRIu64, sid, ino);
}

static int trace_each_delfile(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t before_s,
			      size_t limit, cfs_engine_delfile_fn fn, void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("each_delfile", start_ns,
			i->ops->each_delfile(i, ctx, before_s, limit, fn, arg), "-");
}

static int trace_delete_chunk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			      cfs_engine_slice_fn dead, void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("delete_chunk", start_ns, i->ops->delete_chunk(i, ctx, ino, dead, arg),
			"ino=%" PRIu64, ino);
}

static int trace_drop_delfile(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			      uint64_t length)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("drop_delfile", start_ns, i->ops->drop_delfile(i, ctx, ino, length),
			"ino=%" PRIu64, ino);
}

static int trace_each_dead_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, size_t limit,
				 cfs_engine_slice_fn fn, void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("each_dead_slice", start_ns,
			i->ops->each_dead_slice(i, ctx, limit, fn, arg), "-");
}

static int trace_orphan_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t id,
			      uint32_t size)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("orphan_slice", start_ns, i->ops->orphan_slice(i, ctx, id, size),
			"slice=%" PRIu64, id);
}

static int trace_drop_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t id,
			    uint32_t size)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("drop_slice", start_ns, i->ops->drop_slice(i, ctx, id, size),
			"slice=%" PRIu64, id);
}

static int trace_expire_delayed(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t before_s,
				cfs_engine_slice_fn dead, void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("expire_delayed", start_ns,
			i->ops->expire_delayed(i, ctx, before_s, dead, arg), "-");
}

static int trace_each_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_engine_slice_fn fn,
			    void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("each_slice", start_ns, i->ops->each_slice(i, ctx, fn, arg), "-");
}

static ssize_t trace_getxattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			      const char *name, void **ret)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return say("getxattr", start_ns, i->ops->getxattr(i, ctx, ino, name, ret),
		   "ino=%" PRIu64 " name=%s", ino, name);
}

static ssize_t trace_listxattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			       char **ret)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return say("listxattr", start_ns, i->ops->listxattr(i, ctx, ino, ret), "ino=%" PRIu64, ino);
}

static int trace_setxattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			  const char *name, const void *value, size_t size, int flags)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("setxattr", start_ns,
			i->ops->setxattr(i, ctx, ino, name, value, size, flags),
			"ino=%" PRIu64 " name=%s size=%zu", ino, name, size);
}

static int trace_removexattr(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			     const char *name)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("removexattr", start_ns, i->ops->removexattr(i, ctx, ino, name),
			"ino=%" PRIu64 " name=%s", ino, name);
}

static int trace_get_acl(struct cfs_engine *e, const struct cfs_ctx *ctx, uint32_t id,
			 struct cfs_acl *ret)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("get_acl", start_ns, i->ops->get_acl(i, ctx, id, ret), "id=%u", id);
}

static int trace_put_acl(struct cfs_engine *e, const struct cfs_ctx *ctx,
			 const struct cfs_acl *rule, uint32_t *ret_id)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("put_acl", start_ns, i->ops->put_acl(i, ctx, rule, ret_id), "-");
}

static int trace_set_acl_id(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			    bool is_default, uint32_t id, int mode, struct cfs_attr *ret)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("set_acl_id", start_ns,
			i->ops->set_acl_id(i, ctx, ino, is_default, id, mode, ret),
			"ino=%" PRIu64 " default=%d id=%u", ino, is_default, id);
}

static int trace_flock(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		       uint64_t owner, enum cfs_lock_type type)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("flock", start_ns, i->ops->flock(i, ctx, ino, sid, owner, type),
			"ino=%" PRIu64 " owner=%" PRIx64 " type=%d", ino, owner, (int)type);
}

static int trace_setlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		       uint64_t owner, const struct cfs_plock *lock)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("setlk", start_ns, i->ops->setlk(i, ctx, ino, sid, owner, lock),
			"ino=%" PRIu64 " owner=%" PRIx64 " type=%u range=%" PRIu64 "-%" PRIu64, ino,
			owner, lock->type, lock->start, lock->end);
}

static int trace_getlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		       uint64_t owner, struct cfs_plock *lock, uint64_t *ret_sid,
		       uint64_t *ret_owner)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("getlk", start_ns,
			i->ops->getlk(i, ctx, ino, sid, owner, lock, ret_sid, ret_owner),
			"ino=%" PRIu64 " owner=%" PRIx64, ino, owner);
}

static int trace_get_dir_stat(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t dir,
			      struct cfs_dir_stat *ret)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("get_dir_stat", start_ns, i->ops->get_dir_stat(i, ctx, dir, ret),
			"dir=%" PRIu64, dir);
}

static int trace_set_dir_stat(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t dir,
			      const struct cfs_dir_stat *st)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("set_dir_stat", start_ns, i->ops->set_dir_stat(i, ctx, dir, st),
			"dir=%" PRIu64, dir);
}

static int trace_add_usage(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t space,
			   int64_t inodes, const struct cfs_usage_dir *dirs, size_t n)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("add_usage", start_ns, i->ops->add_usage(i, ctx, space, inodes, dirs, n),
			"space=%" PRId64 " inodes=%" PRId64 " dirs=%zu", space, inodes, n);
}

static int trace_each_quota(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_engine_quota_fn fn,
			    void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("each_quota", start_ns, i->ops->each_quota(i, ctx, fn, arg), "-");
}

static int trace_put_quota(struct cfs_engine *e, const struct cfs_ctx *ctx,
			   const struct cfs_quota *q)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("put_quota", start_ns, i->ops->put_quota(i, ctx, q), "kind=%d key=%" PRIu64,
			(int)q->kind, q->key);
}

static int trace_del_quota(struct cfs_engine *e, const struct cfs_ctx *ctx,
			   enum cfs_quota_kind kind, uint64_t key)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("del_quota", start_ns, i->ops->del_quota(i, ctx, kind, key),
			"kind=%d key=%" PRIu64, (int)kind, key);
}

static int trace_add_quota_usage(struct cfs_engine *e, const struct cfs_ctx *ctx,
				 const struct cfs_quota *deltas, size_t n)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("add_quota_usage", start_ns, i->ops->add_quota_usage(i, ctx, deltas, n),
			"n=%zu", n);
}

static int trace_clone_ino(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t src,
			   cfs_ino_t ino, cfs_ino_t parent, const char *name, size_t len,
			   bool preserve, struct cfs_entry *ret, struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say(
		"clone_ino", start_ns,
		i->ops->clone_ino(i, ctx, src, ino, parent, name, len, preserve, ret, ret_usage),
		"src=%" PRIu64 " ino=%" PRIu64 " parent=%" PRIu64, src, ino, parent);
}

static int trace_attach(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			cfs_ino_t parent, const char *name, size_t len, struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("attach", start_ns,
			i->ops->attach(i, ctx, ino, parent, name, len, ret_usage),
			"ino=%" PRIu64 " parent=%" PRIu64, ino, parent);
}

static int trace_drop_detached(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			       struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("drop_detached", start_ns, i->ops->drop_detached(i, ctx, ino, ret_usage),
			"ino=%" PRIu64, ino);
}

static int trace_scan(struct cfs_engine *e, const struct cfs_ctx *ctx, enum cfs_meta_table table,
		      struct cfs_scan_pos *pos, cfs_row_fn fn, void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns(), from = pos->a;

	return (int)say("scan", start_ns, i->ops->scan(i, ctx, table, pos, fn, arg),
			"table=%d from=%" PRIu64, (int)table, from);
}

static int trace_put_rows(struct cfs_engine *e, const struct cfs_ctx *ctx,
			  enum cfs_meta_table table, const struct cfs_row *rows, size_t n)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("put_rows", start_ns, i->ops->put_rows(i, ctx, table, rows, n),
			"table=%d rows=%zu", (int)table, n);
}

static ssize_t trace_list_chunks(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
				 uint32_t first, struct cfs_chunk_len ret[1024])
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return say("list_chunks", start_ns, i->ops->list_chunks(i, ctx, ino, first, ret),
		   "ino=%" PRIu64 " first=%u", ino, first);
}

static int trace_check_inode(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			     unsigned repair, struct cfs_check *ret, struct cfs_usage *ret_usage)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("check_inode", start_ns,
			i->ops->check_inode(i, ctx, ino, repair, ret, ret_usage),
			"ino=%" PRIu64 " repair=%#x", ino, repair);
}

static int trace_check_usage(struct cfs_engine *e, const struct cfs_ctx *ctx, struct cfs_sums *ret)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("check_usage", start_ns, i->ops->check_usage(i, ctx, ret), "-");
}

static int trace_fix_refs(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t id,
			  uint32_t size, int64_t have, int64_t want)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("fix_refs", start_ns, i->ops->fix_refs(i, ctx, id, size, have, want),
			"slice=%" PRIu64 " have=%" PRId64 " want=%" PRId64, id, have, want);
}

static int trace_clear_dir_stats(struct cfs_engine *e, const struct cfs_ctx *ctx)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("clear_dir_stats", start_ns, i->ops->clear_dir_stats(i, ctx), "-");
}

static int trace_trim_changelog(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t before_s,
				int64_t max_lines)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("trim_changelog", start_ns,
			i->ops->trim_changelog(i, ctx, before_s, max_lines), "-");
}

static int trace_put_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *key,
			    const void *value, size_t len, bool fresh)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("put_record", start_ns, i->ops->put_record(i, ctx, key, value, len, fresh),
			"key=%s", key);
}

static int trace_swap_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *key,
			     const void *old, size_t old_len, const void *value, size_t len)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("swap_record", start_ns,
			i->ops->swap_record(i, ctx, key, old, old_len, value, len), "key=%s", key);
}

static int trace_drop_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *key)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("drop_record", start_ns, i->ops->drop_record(i, ctx, key), "key=%s", key);
}

static int trace_get_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *key,
			    cfs_record_fn fn, void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("get_record", start_ns, i->ops->get_record(i, ctx, key, fn, arg), "key=%s",
			key);
}

static int trace_each_record(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *table,
			     cfs_record_fn fn, void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("each_record", start_ns, i->ops->each_record(i, ctx, table, fn, arg),
			"table=%s", table);
}

static int trace_advise(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_advice_fn fn,
			void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("advise", start_ns, i->ops->advise(i, ctx, fn, arg), "-");
}

static int trace_dead_locks(struct cfs_engine *e, const struct cfs_ctx *ctx, bool repair,
			    cfs_dead_lock_fn fn, void *arg)
{
	struct cfs_engine *i = inner_of(e);
	uint64_t start_ns = cfs_now_ns();

	return (int)say("dead_locks", start_ns, i->ops->dead_locks(i, ctx, repair, fn, arg),
			"repair=%d", repair);
}

static void trace_close(struct cfs_engine *e)
{
	struct cfs_engine *i = inner_of(e);

	cfs_debug("meta close: engine=%s", i->ops->name);
	i->ops->close(i);
	free(e);
}

static const struct cfs_engine_ops trace_ops = {
	.close = trace_close,
	.create = trace_create,
	.upgrade = trace_upgrade,
	.get_setting = trace_get_setting,
	.put_setting = trace_put_setting,
	.sync = trace_sync,
	.settle = trace_settle,
	.destroy = trace_destroy,
	.add_counter = trace_add_counter,
	.get_counters = trace_get_counters,
	.clock = trace_clock,
	.claim_job = trace_claim_job,
	.new_session = trace_new_session,
	.refresh_session = trace_refresh_session,
	.resume_session = trace_resume_session,
	.clean_session = trace_clean_session,
	.each_session = trace_each_session,
	.lookup = trace_lookup,
	.getattr = trace_getattr,
	.setattr = trace_setattr,
	.touch_atime = trace_touch_atime,
	.touch_dirs = trace_touch_dirs,
	.readlink = trace_readlink,
	.mknod = trace_mknod,
	.link = trace_link,
	.unlink = trace_unlink,
	.rmdir = trace_rmdir,
	.rename = trace_rename,
	.readdir = trace_readdir,
	.trash_dir = trace_trash_dir,
	.each_parent = trace_each_parent,
	.read_chunk = trace_read_chunk,
	.commit_slice = trace_commit_slice,
	.truncate = trace_truncate,
	.fallocate = trace_fallocate,
	.copy_range = trace_copy_range,
	.compact_chunk = trace_compact_chunk,
	.end_sustained = trace_end_sustained,
	.each_delfile = trace_each_delfile,
	.delete_chunk = trace_delete_chunk,
	.drop_delfile = trace_drop_delfile,
	.each_dead_slice = trace_each_dead_slice,
	.orphan_slice = trace_orphan_slice,
	.drop_slice = trace_drop_slice,
	.expire_delayed = trace_expire_delayed,
	.each_slice = trace_each_slice,
	.getxattr = trace_getxattr,
	.listxattr = trace_listxattr,
	.setxattr = trace_setxattr,
	.removexattr = trace_removexattr,
	.get_acl = trace_get_acl,
	.put_acl = trace_put_acl,
	.set_acl_id = trace_set_acl_id,
	.flock = trace_flock,
	.setlk = trace_setlk,
	.getlk = trace_getlk,
	.get_dir_stat = trace_get_dir_stat,
	.set_dir_stat = trace_set_dir_stat,
	.add_usage = trace_add_usage,
	.each_quota = trace_each_quota,
	.put_quota = trace_put_quota,
	.del_quota = trace_del_quota,
	.add_quota_usage = trace_add_quota_usage,
	.clone_ino = trace_clone_ino,
	.attach = trace_attach,
	.drop_detached = trace_drop_detached,
	.scan = trace_scan,
	.put_rows = trace_put_rows,
	.list_chunks = trace_list_chunks,
	.check_inode = trace_check_inode,
	.check_usage = trace_check_usage,
	.fix_refs = trace_fix_refs,
	.clear_dir_stats = trace_clear_dir_stats,
	.trim_changelog = trace_trim_changelog,
	.put_record = trace_put_record,
	.swap_record = trace_swap_record,
	.drop_record = trace_drop_record,
	.get_record = trace_get_record,
	.each_record = trace_each_record,
	.advise = trace_advise,
	.dead_locks = trace_dead_locks,
};

int cfs_engine_trace(struct cfs_engine *inner, struct cfs_engine **ret)
{
	struct trace *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->ops = trace_ops;
	t->ops.name = inner->ops->name;
	t->ops.inline_usage = inner->ops->inline_usage;
	t->ops.open = inner->ops->open;
	if (!inner->ops->sync)
		t->ops.sync = NULL;
	if (!inner->ops->settle)
		t->ops.settle = NULL;
	if (!inner->ops->advise)
		t->ops.advise = NULL;
	if (!inner->ops->dead_locks)
		t->ops.dead_locks = NULL;
	t->eng = (struct cfs_engine){.ops = &t->ops, .host = inner->host};
	t->inner = inner;
	*ret = &t->eng;
	return 0;
}
