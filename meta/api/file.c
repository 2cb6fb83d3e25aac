/* SPDX-License-Identifier: Apache-2.0 */
/* Chunk lists, lengths, opens and space. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/log.h"
#include "meta/api/call.h"
#include "meta/api/core.h"
#include "meta/api/file.h"
#include "meta/api/jobs.h"
#include "meta/engine/rules.h"

/* When the list of a chunk is worth compacting (volume-format section 6). */
enum { COMPACT_EVERY = 100, COMPACT_LONG = 350, COMPACT_NOW = 2500, COMPACT_ON_READ = 5 };

static void hint_compact(struct cfs_meta *m, cfs_ino_t ino, uint32_t indx, bool force)
{
	if (atomic_load(&m->started) && !m->conf.read_only && m->hooks.compact)
		m->hooks.compact(m->hooks.arg, ino, indx, force);
}

static void clear_head(struct cfs_head *h)
{
	h->err = 0;
	h->named = false;
	h->records = NULL;
	h->n_records = 0;
}

ssize_t cfs_meta_read_chunk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			    uint32_t indx, struct cfs_slice **ret)
{
	struct cfs_call c;
	ssize_t n;

	cfs_call_begin(&c, m, CFS_META_OP_read_chunk, ctx);
	n = m->eng->ops->read_chunk(m->eng, c.ctx, ino, indx, ret);
	if (n >= COMPACT_ON_READ)
		hint_compact(m, ino, indx, false);
	return cfs_call_end(&c, n);
}

int cfs_meta_open_file(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       struct cfs_attr *ret, struct cfs_slice **ret_recs, ssize_t *ret_n)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_open, ctx,
			     m->eng->ops->open_file(m->eng, c.ctx, ino, ret, ret_recs, ret_n));
}

int cfs_meta_read_heads(struct cfs_meta *m, const struct cfs_ctx *ctx, struct cfs_head *heads,
			size_t n)
{
	size_t i;
	int r;

	if (n > CFS_HEADS_MAX)
		return -EINVAL;
	if (!n)
		return 0;
	for (i = 0; i < n; i++)
		clear_head(&heads[i]);
	r = (int)CFS_CALL(c, m, CFS_META_OP_read_chunk, ctx,
			  m->eng->ops->read_heads(m->eng, c.ctx, heads, n));
	for (i = 0; r < 0 && i < n; i++) {
		free(heads[i].records);
		clear_head(&heads[i]);
	}
	return r;
}

int cfs_meta_new_slice(struct cfs_meta *m, const struct cfs_ctx *ctx, uint64_t *ret_id)
{
	int rc = cfs_core_check_writable(m);

	if (rc)
		return rc;
	/* Shown while another thread takes a batch. */
	cfs_activity_wait(CFS_WAIT_META, 0, cfs_meta_op_name(CFS_META_OP_counter));
	rc = cfs_ids_next(m, &m->slice_ids, ctx, ret_id);
	cfs_activity_wait_end();
	return rc == -ETIMEDOUT ? -EIO : rc;
}

/* 1: the earlier attempt was carried out; 0: it was not. */
static int find_commit(struct cfs_meta *m, const struct cfs_ctx *ctx, struct cfs_commit *c,
		       struct cfs_usage *ret_usage)
{
	int stored, rc = m->eng->ops->find_commit(m->eng, ctx, c, false, ret_usage);

	if (rc || !c->slice.id || !c->is_stored)
		return rc;
	/*
	 * No record names the slice. Rows of a dead slice are removed after its blocks. So blocks
	 * that are there now mean that the commit was not carried out. Blocks that are gone mean
	 * that it was, and that the slice was replaced and removed since.
	 */
	stored = c->is_stored(c->arg, &c->slice, ctx->deadline);
	if (stored)
		return stored < 0 ? stored : 0;
	cfs_info("write was stored and replaced before its answer came: inode=%llu slice=%llu",
		 (unsigned long long)c->ino, (unsigned long long)c->slice.id);
	return m->eng->ops->find_commit(m->eng, ctx, c, true, ret_usage);
}

static int commit_once(struct cfs_meta *m, const struct cfs_ctx *ctx, struct cfs_commit *c,
		       uint64_t end, unsigned *ret_records, struct cfs_usage *ret_usage)
{
	int rc = c->repeated ? find_commit(m, ctx, c, ret_usage) : 0;

	if (rc)
		return rc < 0 ? rc : 0;
	rc = cfs_core_check_room(m);
	if (!rc)
		rc = cfs_quotas_check_end(m->quotas, ctx, c->ino, end);
	if (rc)
		return rc;
	rc = m->eng->ops->commit_slice(m->eng, ctx, c, ret_records, ret_usage);
	if (rc == -EINPROGRESS || rc == -ETIMEDOUT || rc == -EIO)
		c->repeated = true;
	return rc == -EEXIST ? -EIO : rc;
}

static uint64_t end_of(const struct cfs_commit *c)
{
	return ((uint64_t)c->indx << CFS_CHUNK_BITS) + c->slice.pos + c->slice.len;
}

static int check_commit(struct cfs_meta *m, const struct cfs_commit *c)
{
	int rc = cfs_core_check_writable(m);

	if (rc)
		return rc;
	if ((uint64_t)c->slice.pos + c->slice.len > CFS_CHUNK_SIZE)
		return -EINVAL;
	return end_of(c) >= CFS_FILE_MAX ? -EFBIG : 0;
}

/* Follows cfs_quotas_begin() and the commit, whose result it returns. */
static int commit_ended(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_commit *c,
			const struct cfs_committed *done)
{
	unsigned records = done->records;

	cfs_quotas_end_reserved(m->quotas, ctx, c->ino, NULL, done->err ? NULL : &done->usage);
	if (!done->err && (records % COMPACT_EVERY == COMPACT_EVERY - 1 || records > COMPACT_LONG))
		hint_compact(m, c->ino, c->indx, records >= COMPACT_NOW);
	return done->err;
}

static int commit(struct cfs_meta *m, const struct cfs_ctx *ctx, struct cfs_commit *c)
{
	struct cfs_committed done = {0};
	int rc = check_commit(m, c);

	if (rc)
		return rc;
	cfs_quotas_begin(m->quotas);
	do
		rc = commit_once(m, ctx, c, end_of(c), &done.records, &done.usage);
	while (rc == -EINPROGRESS && !cfs_deadline_passed(ctx->deadline));
	done.err = rc == -EINPROGRESS ? -ETIMEDOUT : rc;
	return commit_ended(m, ctx, c, &done);
}

int cfs_meta_commit(struct cfs_meta *m, const struct cfs_ctx *ctx, struct cfs_commit *c)
{
	return (int)CFS_CALL(call, m, CFS_META_OP_write, ctx, commit(m, call.ctx, c));
}

/*
 * How many commits, from the first on, the engine may make as one group. Limits are judged without
 * those before it in the group, as for commits side by side; their space is reserved.
 */
static size_t count_usual(struct cfs_meta *m, const struct cfs_ctx *ctx,
			  struct cfs_commit *const *commits, size_t n)
{
	size_t i;

	if (cfs_core_check_room(m))
		return 0;
	for (i = 0; i < n && !commits[i]->repeated && !check_commit(m, commits[i]); i++)
		if (cfs_quotas_check_end(m->quotas, ctx, commits[i]->ino, end_of(commits[i])))
			break;
	return i;
}

/* Returns how many have a result; -EINPROGRESS: it is still to be found. */
static size_t commit_group(struct cfs_meta *m, const struct cfs_ctx *ctx,
			   struct cfs_commit *const *commits, size_t n, int *ret)
{
	struct cfs_committed *v = calloc(n, sizeof(*v));
	size_t done, i;

	if (!v)
		return 0;
	for (i = 0; i < n; i++)
		cfs_quotas_begin(m->quotas);
	done = m->eng->ops->commit_group(m->eng, ctx, commits, n, v);
	for (i = 0; i < n; i++) {
		/* An id in use: commit_slice finds out by what. */
		if (i >= done || v[i].err == -EEXIST)
			v[i].err = -EAGAIN;
		else if (v[i].err == -EINPROGRESS || v[i].err == -ETIMEDOUT || v[i].err == -EIO)
			commits[i]->repeated = true;
		ret[i] = commit_ended(m, ctx, commits[i], &v[i]);
	}
	free(v);
	return done;
}

void cfs_meta_commit_group(struct cfs_meta *m, const struct cfs_ctx *ctx,
			   struct cfs_commit *const *commits, size_t n, int *ret)
{
	size_t n_group = 0, done = 0;
	bool stopped = false;
	struct cfs_call c;

	if (n > 1 && m->eng->ops->commit_group && cfs_core_check_writable(m) == 0)
		n_group = count_usual(m, ctx, commits, n);
	if (n_group > 1) {
		cfs_call_begin(&c, m, CFS_META_OP_write, ctx);
		done = commit_group(m, c.ctx, commits, n_group, ret);
		cfs_call_end(&c, 0);
	}
	for (size_t i = 0; i < n; i++) {
		if (i < done && !cfs_commit_may_succeed(ret[i]))
			continue;
		ret[i] = stopped ? -ECANCELED : cfs_meta_commit(m, ctx, commits[i]);
		stopped |= cfs_commit_may_succeed(ret[i]);
	}
}

static int do_truncate(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       uint64_t length, struct cfs_attr *ret)
{
	struct cfs_usage usage = {0};
	struct cfs_reservation reserved;
	int rc = cfs_core_check_writable(m);

	if (rc)
		return rc;
	if (length >= CFS_FILE_MAX)
		return -EFBIG;
	rc = cfs_core_check_acl(m, ctx, ino, W_OK);
	if (!rc)
		rc = cfs_quotas_reserve_end(m->quotas, ctx, ino, length, &reserved);
	if (rc)
		return rc;
	cfs_quotas_begin(m->quotas);
	rc = m->eng->ops->truncate(m->eng, ctx, ino, length, ret, &usage);
	cfs_quotas_end_reserved(m->quotas, ctx, ino, &reserved, rc ? NULL : &usage);
	return rc;
}

int cfs_meta_truncate(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t length,
		      struct cfs_attr *ret)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_truncate, ctx,
			     do_truncate(m, c.ctx, ino, length, ret));
}

static int check_fallocate(unsigned mode, uint64_t off, uint64_t len)
{
	const unsigned known = CFS_FALLOC_KEEP_SIZE | CFS_FALLOC_PUNCH_HOLE | CFS_FALLOC_ZERO_RANGE;

	if (mode & ~known)
		return -EOPNOTSUPP;
	if (len == 0 || ((mode & CFS_FALLOC_PUNCH_HOLE) && (mode & CFS_FALLOC_ZERO_RANGE)))
		return -EINVAL;
	if ((mode & CFS_FALLOC_PUNCH_HOLE) && !(mode & CFS_FALLOC_KEEP_SIZE))
		return -EINVAL;
	return off >= CFS_FILE_MAX || len >= CFS_FILE_MAX - off ? -EFBIG : 0;
}

static int do_fallocate(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, unsigned mode,
			uint64_t off, uint64_t len, struct cfs_attr *ret)
{
	struct cfs_usage usage = {0};
	struct cfs_reservation reserved = {0};
	int rc = cfs_core_check_writable(m);

	if (!rc)
		rc = check_fallocate(mode, off, len);
	if (!rc && !(mode & CFS_FALLOC_KEEP_SIZE))
		rc = cfs_quotas_reserve_end(m->quotas, ctx, ino, off + len, &reserved);
	if (rc)
		return rc;
	cfs_quotas_begin(m->quotas);
	rc = m->eng->ops->fallocate(m->eng, ctx, ino, mode, off, len, ret, &usage);
	cfs_quotas_end_reserved(m->quotas, ctx, ino, &reserved, rc ? NULL : &usage);
	return rc;
}

int cfs_meta_fallocate(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, unsigned mode,
		       uint64_t off, uint64_t len, struct cfs_attr *ret)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_fallocate, ctx,
			     do_fallocate(m, c.ctx, ino, mode, off, len, ret));
}

static int check_copy(const struct cfs_copy_range *r)
{
	if (r->src_off >= CFS_FILE_MAX || r->dst_off >= CFS_FILE_MAX ||
	    r->len >= CFS_FILE_MAX - CFS_MAX(r->src_off, r->dst_off))
		return -EFBIG;
	if (r->src == r->dst && r->src_off < r->dst_off + r->len &&
	    r->dst_off < r->src_off + r->len)
		return -EINVAL;
	return 0;
}

/* The copy ends at the end of the source. Its length is read only when space is short. */
static int reserve_copy_space(struct cfs_meta *m, const struct cfs_ctx *ctx,
			      const struct cfs_copy_range *r, struct cfs_reservation *ret)
{
	struct cfs_attr src;
	uint64_t len;
	int rc = cfs_quotas_reserve_end(m->quotas, ctx, r->dst, r->dst_off + r->len, ret);

	if (rc != -ENOSPC && rc != -EDQUOT)
		return rc;
	rc = m->eng->ops->getattr(m->eng, ctx, r->src, &src);
	if (rc)
		return rc;
	len = src.length > r->src_off ? CFS_MIN(r->len, src.length - r->src_off) : 0;
	return len ? cfs_quotas_reserve_end(m->quotas, ctx, r->dst, r->dst_off + len, ret) : 0;
}

static int do_copy_range(struct cfs_meta *m, const struct cfs_ctx *ctx,
			 const struct cfs_copy_range *req, uint64_t *ret_copied,
			 struct cfs_attr *ret_dst)
{
	struct cfs_usage usage = {0};
	struct cfs_reservation reserved;
	int rc = cfs_core_check_writable(m);

	if (!rc)
		rc = check_copy(req);
	if (!rc)
		rc = reserve_copy_space(m, ctx, req, &reserved);
	if (rc)
		return rc;
	cfs_quotas_begin(m->quotas);
	rc = m->eng->ops->copy_range(m->eng, ctx, req, ret_copied, ret_dst, &usage);
	cfs_quotas_end_reserved(m->quotas, ctx, req->dst, &reserved, rc ? NULL : &usage);
	return rc;
}

int cfs_meta_copy_range(struct cfs_meta *m, const struct cfs_ctx *ctx,
			const struct cfs_copy_range *req, uint64_t *ret_copied,
			struct cfs_attr *ret_dst)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_copy_range, ctx,
			     do_copy_range(m, c.ctx, req, ret_copied, ret_dst));
}

/* ---- compaction ---- */

static int delete_dead(void *arg, uint64_t id, uint32_t size)
{
	cfs_jobs_delete_slice(arg, id, size, true);
	return 0;
}

static int compact_chunk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 uint32_t indx, const struct cfs_slice *head, size_t head_n, size_t skipped,
			 const struct cfs_slice *merged)
{
	int rc = cfs_core_check_writable(m);

	if (rc)
		return rc;
	rc = m->eng->ops->compact_chunk(m->eng, ctx, ino, indx, head, head_n, skipped, merged,
					cfs_core_trash_on(m), delete_dead, m);
	if (rc == -EAGAIN)
		cfs_jobs_delete_slice(m, merged->id, merged->size, false);
	return rc;
}

int cfs_meta_compact_chunk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			   uint32_t indx, const struct cfs_slice *head, size_t head_n,
			   size_t skipped, const struct cfs_slice *merged)
{
	struct cfs_call c;

	cfs_call_begin(&c, m, CFS_META_OP_compact, ctx);
	return (int)cfs_call_end(&c,
				 compact_chunk(m, c.ctx, ino, indx, head, head_n, skipped, merged));
}

void cfs_meta_discard_slice(struct cfs_meta *m, uint64_t id, uint32_t size)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	int rc = m->eng->ops->orphan_slice(m->eng, &ctx, id, size);

	if (rc)
		cfs_warn("blocks that nothing names stay until gc finds them: slice=%llu error=%s",
			 (unsigned long long)id, cfs_errname(rc));
	else
		cfs_jobs_delete_slice(m, id, size, false);
}

/* ---- open, access time, close ---- */

int cfs_meta_open_check(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_attr *attr,
			int flags, bool is_open)
{
	int mode = flags & O_ACCMODE;
	bool writes = mode != O_RDONLY || (flags & O_TRUNC);
	int mask = (mode != O_WRONLY ? R_OK : 0) | (writes ? W_OK : 0);

	if (writes) {
		if (m->conf.read_only)
			return -EROFS;
		if (cfs_ino_is_trash(attr->parent) && !is_open)
			return -EPERM;
		if (attr->flags & CFS_FLAG_IMMUTABLE)
			return -EPERM;
		if ((attr->flags & CFS_FLAG_APPEND) && (!(flags & O_APPEND) || (flags & O_TRUNC)))
			return -EPERM;
	}
	if (!ctx->check)
		return 0;
	/* attr is given, so the number is not needed. */
	return cfs_core_access(m, ctx, 0, mask, attr);
}

static bool atime_due(enum cfs_atime mode, const struct cfs_attr *attr, struct timespec now)
{
	const int64_t day_s = 24 * 3600;

	switch (mode) {
	case CFS_NOATIME:
		return false;
	case CFS_RELATIME:
		return cfs_timespec_cmp(attr->atime, attr->mtime) < 0 ||
		       cfs_timespec_cmp(attr->atime, attr->ctime) < 0 ||
		       now.tv_sec - attr->atime.tv_sec > day_s;
	case CFS_STRICTATIME:
		return now.tv_sec - attr->atime.tv_sec > 1 ||
		       (now.tv_sec - attr->atime.tv_sec == 1 && now.tv_nsec > attr->atime.tv_nsec);
	}
	return false;
}

int cfs_meta_touch_atime(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 enum cfs_atime mode, struct cfs_attr *attr)
{
	struct cfs_call c;
	int rc;

	if (m->conf.read_only || cfs_ino_is_trash(ino) || !atime_due(mode, attr, ctx->now))
		return 0;
	cfs_call_begin(&c, m, CFS_META_OP_setattr, ctx);
	rc = m->eng->ops->touch_atime(m->eng, c.ctx, ino, ctx->now);
	if (!rc)
		attr->atime = ctx->now;
	return (int)cfs_call_end(&c, rc);
}

/* For cfs_core_close_again(). Without memory for that, the end of the session closes the inode. */
static void note_unclosed(struct cfs_meta *m, cfs_ino_t ino)
{
	pthread_mutex_lock(&m->unclosed_lock);
	cfs_inomap_add(&m->unclosed, ino);
	pthread_mutex_unlock(&m->unclosed_lock);
}

static int close_ino(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino)
{
	struct cfs_usage usage = {0};
	uint64_t length = 0;
	int rc;

	if (m->conf.read_only)
		return 0;
	cfs_quotas_begin(m->quotas);
	rc = m->eng->ops->end_sustained(m->eng, ctx, cfs_host_sid(&m->host), ino, &length, &usage);
	cfs_quotas_end(m->quotas, ctx, rc ? NULL : &usage);
	if (!rc && length != UINT64_MAX)
		cfs_jobs_delete_file(m, ino, length);
	if (rc && rc != -ENOENT)
		note_unclosed(m, ino);
	return rc;
}

void cfs_core_close_again(struct cfs_meta *m, uint64_t for_ms)
{
	cfs_deadline_t end = cfs_deadline_in(for_ms);
	cfs_ino_t *v;
	size_t i, n;

	pthread_mutex_lock(&m->unclosed_lock);
	n = cfs_inomap_take(&m->unclosed, &v);
	pthread_mutex_unlock(&m->unclosed_lock);
	for (i = 0; i < n; i++) {
		struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);

		if (cfs_deadline_passed(end) || cfs_host_is_open(&m->host, v[i]))
			note_unclosed(m, v[i]);
		else
			close_ino(m, &ctx, v[i]);
	}
	free(v);
}

int cfs_meta_close_ino(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino)
{
	return (int)CFS_CALL(c, m, CFS_META_OP_delete, ctx, close_ino(m, c.ctx, ino));
}
