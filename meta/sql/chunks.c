/* SPDX-License-Identifier: Apache-2.0 */
/* Chunk lists of one file (volume-format section 6): read, append, truncate, fallocate. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "meta/sql/sql-internal.h"

int sql_usage_length(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr,
		     uint64_t old_length, struct cfs_usage *u)
{
	int64_t length = (int64_t)(attr->length - old_length);
	int64_t space = cfs_space_of(attr->length) - cfs_space_of(old_length);
	int r;

	if (!length)
		return 0;
	u->space += space;
	u->uid = attr->uid;
	u->gid = attr->gid;
	u->owner_space += space;
	if (!attr->nlink || !cfs_host_dir_stats(sql_host(c)))
		return 0;
	if (attr->parent) {
		cfs_usage_add_dir(u, attr->parent, length, space, 0);
		return 0;
	}
	r = sql_query(c, SQL_each_parent, "i", ino);
	while (r >= 0 && (r = sql_next(c, SQL_each_parent)) > 0)
		cfs_usage_add_dir(u, (cfs_ino_t)sql_int(c, SQL_each_parent, 0), length, space, 0);
	return r;
}

/* ---- reading ---- */

struct read_chunk {
	cfs_ino_t ino;
	uint32_t indx;
	struct cfs_slice *ret;
	size_t n;
};

int sql_decode_records(const uint8_t *p, size_t len, cfs_ino_t ino, uint32_t indx,
		       struct cfs_slice **ret, size_t *ret_n)
{
	size_t n = len / CFS_SLICE_BYTES, i;

	if (len % CFS_SLICE_BYTES) {
		cfs_err("chunk list is damaged: inode=%" PRIu64 " chunk=%u bytes=%zu", ino, indx,
			len);
		return -EIO;
	}
	*ret_n = n;
	*ret = n ? calloc(n, sizeof(**ret)) : NULL;
	if (n && !*ret)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		cfs_slice_decode(p + i * CFS_SLICE_BYTES, &(*ret)[i]);
	return 0;
}

static int read_chunk(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct read_chunk *a = arg;
	struct cfs_attr attr;
	const uint8_t *p;
	size_t len;
	int r;

	r = sql_row(c, SQL_get_chunk, "ii", a->ino, (int64_t)a->indx);
	if (r < 0)
		return r;
	/* Distinguishes a hole from a file that another client has removed. */
	if (r == 0)
		return sql_get_node(c, a->ino, false, &attr);
	p = sql_blob(c, SQL_get_chunk, 0, &len);
	r = sql_decode_records(p, len, a->ino, a->indx, &a->ret, &a->n);
	sql_done(c, SQL_get_chunk);
	return r;
}

ssize_t sql_op_read_chunk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			  uint32_t indx, struct cfs_slice **ret)
{
	struct read_chunk a = {.ino = ino, .indx = indx};
	int r = sql_read(sql_db(e), ctx, CFS_META_OP_read_chunk, read_chunk, &a);

	if (r < 0)
		return r;
	*ret = a.ret;
	return (ssize_t)a.n;
}

struct open_file {
	cfs_ino_t ino;
	struct cfs_attr *ret;
	struct cfs_slice *recs;
	ssize_t n;
};

static int open_file(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct open_file *a = arg;
	const uint8_t *p;
	size_t len, n = 0;
	int r;

	r = sql_row(c, SQL_open_file, "i", (int64_t)a->ino);
	if (r <= 0)
		return r ? r : -ENOENT;
	sql_node_columns(c, SQL_open_file, 0, a->ret);
	p = sql_blob(c, SQL_open_file, SQL_NODE_COLUMNS, &len);
	r = sql_decode_records(p, len, a->ino, 0, &a->recs, &n);
	sql_done(c, SQL_open_file);
	a->n = r == -EIO ? -1 : (ssize_t)n;
	return r == -EIO ? 0 : r;
}

int sql_op_open_file(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     struct cfs_attr *ret, struct cfs_slice **ret_recs, ssize_t *ret_n)
{
	struct open_file a = {.ino = ino, .ret = ret};
	int r = sql_read(sql_db(e), ctx, CFS_META_OP_open, open_file, &a);

	if (r < 0)
		return r;
	*ret_recs = a.recs;
	*ret_n = a.n;
	return 0;
}

struct read_heads {
	struct cfs_head *v;
	size_t n;
};

/* Reads the current row of SQL_read_heads. A damaged volume may return several rows of one file. */
static void read_head(struct sql_conn *c, struct cfs_head *h)
{
	const int col = SQL_NODE_COLUMNS;
	size_t records_len, name_len;
	const void *p;

	if (h->err == -ENOENT) {
		sql_node_columns(c, SQL_read_heads, 0, &h->attr);
		p = sql_blob(c, SQL_read_heads, col + 1, &records_len);
		h->err = sql_decode_records(p, records_len, h->ino, 0, &h->records, &h->n_records);
	}
	p = sql_blob(c, SQL_read_heads, col + 3, &name_len);
	if (h->parent && (cfs_ino_t)sql_int(c, SQL_read_heads, col + 2) == h->parent &&
	    name_len == h->name_len && !memcmp(p, h->name, name_len))
		h->named = true;
}

static int read_heads(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
#define INO(i)	(int64_t) a->v[(i) < a->n ? (i) : 0].ino
#define INOS(i) INO(i), INO(i + 1), INO(i + 2), INO(i + 3)
	struct read_heads *a = arg;
	cfs_ino_t ino;
	size_t i;
	int r;

	for (i = 0; i < a->n; i++) {
		free(a->v[i].records);
		a->v[i].records = NULL;
		a->v[i].n_records = 0;
		a->v[i].named = false;
		a->v[i].err = -ENOENT;
	}
	r = sql_query(c, SQL_read_heads, "iiiiiiiiiiiiiiiiiiiiiiiiiiiiiiii", INOS(0), INOS(4),
		      INOS(8), INOS(12), INOS(16), INOS(20), INOS(24), INOS(28));
	while (r >= 0 && (r = sql_next(c, SQL_read_heads)) > 0) {
		ino = (cfs_ino_t)sql_int(c, SQL_read_heads, SQL_NODE_COLUMNS);
		for (i = 0; i < a->n; i++) {
			if (a->v[i].ino == ino)
				read_head(c, &a->v[i]);
		}
	}
	return r;
#undef INOS
#undef INO
}

int sql_op_read_heads(struct cfs_engine *e, const struct cfs_ctx *ctx, struct cfs_head *heads,
		      size_t n)
{
	struct read_heads a = {.v = heads, .n = n};

	return sql_read(sql_db(e), ctx, CFS_META_OP_read_chunk, read_heads, &a);
}

/* ---- changing ---- */

/* Arguments and results of the functions that change a file's data. */
struct change {
	cfs_ino_t ino;
	struct cfs_attr *attr;
	uint64_t old_length;
	struct cfs_usage *usage;

	/* truncate, fallocate */
	uint64_t off, length;
	unsigned mode;
};

int sql_append_records(struct sql_conn *c, cfs_ino_t ino, uint32_t indx, const void *records,
		       size_t bytes)
{
	return sql_post(c, SQL_append_chunk, "iib", ino, (int64_t)indx, records, bytes);
}

int sql_lock_file(struct sql_conn *c, const struct cfs_ctx *ctx, cfs_ino_t ino,
		  struct cfs_attr *ret)
{
	int r = sql_get_node(c, ino, true, ret);

	return r < 0 ? r : cfs_rules_change_file(ctx, sql_host(c), ino, ret);
}

static int set_written(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr)
{
	return sql_post(c, SQL_set_written, "iiiiii", attr->length, sql_us(attr->mtime),
			sql_sub_us(attr->mtime), sql_us(attr->ctime), sql_sub_us(attr->ctime), ino);
}

static int count_length(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr,
			uint64_t old_length, struct cfs_usage *usage)
{
	int r = sql_usage_length(c, ino, attr, old_length, usage);

	return r < 0 ? r : sql_write_usage(c, usage);
}

int sql_finish_change(struct sql_conn *c, cfs_ino_t ino, const struct cfs_attr *attr,
		      uint64_t old_length, struct cfs_usage *usage)
{
	int r = set_written(c, ino, attr);

	return r < 0 ? r : count_length(c, ino, attr, old_length, usage);
}

static int append_slice(struct sql_conn *c, const struct sql_commit *a)
{
	const struct cfs_slice *s = &a->req->slice;
	cfs_ino_t ino = a->req->ino;
	uint32_t indx = a->req->indx;
	bool expected = (uint64_t)indx << CFS_CHUNK_BITS < a->attr.length;
	uint8_t record[CFS_SLICE_BYTES];
	int r = 0;

	cfs_slice_encode(s, record);
	if (expected)
		r = sql_exec(c, SQL_append_known, "bii", record, sizeof(record), ino,
			     (int64_t)indx);
	if (r == 0)
		r = sql_append_records(c, ino, indx, record, sizeof(record));
	if (r < 0 || !s->id)
		return r;
	return sql_exec(c, SQL_put_ref, "iii", s->id, (int64_t)s->size, (int64_t)1);
}

static int count_records(struct sql_conn *c, cfs_ino_t ino, uint32_t indx, unsigned *ret)
{
	int r = sql_row(c, SQL_chunk_length, "ii", ino, (int64_t)indx);

	if (r <= 0)
		return r < 0 ? r : -EIO;
	*ret = (unsigned)(sql_int(c, SQL_chunk_length, 0) / CFS_SLICE_BYTES);
	sql_done(c, SQL_chunk_length);
	return 0;
}

int sql_prepare_commit(struct sql_conn *c, struct sql_commit *a)
{
	struct cfs_attr attr = {0};
	int r = 0;

	if (!cfs_optimistic_file_attr(c->db->optimistic, a->req->ino, &attr))
		r = sql_get_node(c, a->req->ino, false, &attr);
	a->req->known_length = attr.length;
	return r == -ENOENT ? 0 : r;
}

struct find {
	struct cfs_commit *commit;
	bool released;
	struct cfs_usage *usage;
};

/*
 * The commit inserts the row of the slice's reference, and the row outlives the slice's blocks: its
 * presence proves the commit.
 */
static int find_commit(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct find *a = arg;
	struct cfs_commit *req = a->commit;
	const struct cfs_slice *s = &req->slice;
	uint64_t end = ((uint64_t)req->indx << CFS_CHUNK_BITS) + s->pos + s->len;
	struct cfs_attr then;
	int r = a->released;

	if (!r && s->id) {
		r = sql_row(c, SQL_get_refs, "i", s->id);
		if (r > 0)
			r = sql_int(c, SQL_get_refs, 1) == s->size;
		sql_done(c, SQL_get_refs);
	}
	if (r <= 0)
		return r;
	r = sql_get_node(c, req->ino, false, &req->attr);
	if (r < 0)
		return r;
	/* Only the growth by this commit: later changes of the length are counted by their callers. */
	then = req->attr;
	then.length = CFS_MAX(end, req->known_length);
	*a->usage = (struct cfs_usage){0};
	r = sql_usage_length(c, req->ino, &then, req->known_length, a->usage);
	return r < 0 ? r : 1;
}

int sql_op_find_commit(struct cfs_engine *e, const struct cfs_ctx *ctx, struct cfs_commit *c,
		       bool released, struct cfs_usage *ret_usage)
{
	struct find a = {.commit = c, .released = released, .usage = ret_usage};

	return sql_read(sql_db(e), ctx, CFS_META_OP_write, find_commit, &a);
}

/* Updates the row of the file: length, times, and the attribute changes of the same commit. */
static int write_node(struct sql_conn *c, struct sql_commit *a)
{
	const struct cfs_attr_change *attrs = a->req->attrs;
	uint16_t mode = a->attr.mode;
	int r = 0;

	if (!attrs)
		return set_written(c, a->req->ino, &a->attr);
	cfs_rules_apply(attrs, &a->attr);
	if (a->attr.access_acl && a->attr.mode != mode)
		r = sql_chmod_acl(c, &a->attr);
	return r < 0 ? r : sql_update_node(c, a->req->ino, &a->attr);
}

static int commit_slice(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct sql_commit *a = arg;
	struct cfs_commit *req = a->req;
	const struct cfs_slice *s = &req->slice;
	uint64_t end = ((uint64_t)req->indx << CFS_CHUNK_BITS) + s->pos + s->len;
	uint64_t old_length;
	int r;

	if (sql_is_repeated(c))
		return -EINPROGRESS;
	a->usage = (struct cfs_usage){0};
	r = sql_get_node(c, req->ino, true, &a->attr);
	if (r < 0)
		return r;
	if (a->attr.type != CFS_TYPE_FILE)
		return -EPERM;
	r = append_slice(c, a);
	if (r < 0)
		return r;
	old_length = req->known_length = a->attr.length;
	if (end > old_length)
		a->attr.length = end;
	a->attr.mtime = req->mtime;
	a->attr.ctime = ctx->now;
	r = write_node(c, a);
	if (r >= 0)
		r = count_length(c, req->ino, &a->attr, old_length, &a->usage);
	if (r >= 0)
		r = count_records(c, req->ino, req->indx, &a->records);
	if (r < 0 || !cfs_host_changelog(sql_host(c)))
		return r;
	return sql_log(c, ctx, "WRITE(%" PRIu64 ",%u,%u,%" PRIu64 ",%u,%" PRId64 ",%ld):%u",
		       req->ino, req->indx, s->pos, s->id, s->len, (int64_t)req->mtime.tv_sec,
		       req->mtime.tv_nsec, a->records);
}

int sql_slice_in_use(const struct cfs_commit *c)
{
	if (c->repeated)
		return -EINPROGRESS;
	cfs_err("slice id is in use already, write refused: slice=%" PRIu64 " inode=%" PRIu64,
		c->slice.id, c->ino);
	return -EEXIST;
}

int sql_committed(struct sql_db *db, const struct sql_commit *a, unsigned *ret_records,
		  struct cfs_usage *ret_usage)
{
	if (db->optimistic)
		cfs_optimistic_file_changed(db->optimistic, a->req->ino, &a->attr);
	a->req->attr = a->attr;
	*ret_records = a->records;
	*ret_usage = a->usage;
	return 0;
}

int sql_op_commit_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, struct cfs_commit *c,
			unsigned *ret_records, struct cfs_usage *ret_usage)
{
	struct sql_commit a = {.req = c};
	int r = cfs_rules_record(c->indx, &c->slice);

	if (!r)
		r = sql_txn(sql_db(e), ctx, CFS_META_OP_write, commit_slice, &a);
	if (r == -EEXIST)
		return sql_slice_in_use(c);
	return r < 0 ? r : sql_committed(sql_db(e), &a, ret_records, ret_usage);
}

/* ---- group commit ---- */

/* How many commits, from the first on, are of files on which the engine's own statement works. */
static size_t count_usual(struct sql_db *db, struct cfs_commit *const *commits, size_t n)
{
	struct cfs_attr attr;
	size_t i;

	for (i = 0; i < n && !cfs_rules_record(commits[i]->indx, &commits[i]->slice); i++) {
		if (!db->optimistic)
			continue;
		if (!commits[i]->slice.id ||
		    !cfs_optimistic_file_attr(db->optimistic, commits[i]->ino, &attr) ||
		    !attr.parent || attr.access_acl)
			break;
		commits[i]->known_length = attr.length;
	}
	return i;
}

size_t sql_commit_group(struct cfs_engine *e, const struct cfs_ctx *ctx,
			struct cfs_commit *const *commits, size_t n, struct cfs_committed *ret,
			sql_group_fn run)
{
	struct sql_db *db = sql_db(e);
	struct sql_group *g;
	bool unsure;
	size_t i;
	int r;

	n = db->optimistic && cfs_host_changelog(e->host) ? 0 : count_usual(db, commits, n);
	g = n > 1 ? calloc(1, sizeof(*g)) : NULL;
	if (!g)
		return 0;
	g->n = n;
	for (i = 0; i < n; i++)
		g->v[i].req = commits[i];
	r = run(db, ctx, g);
	unsure = r == -EINPROGRESS || r == -ETIMEDOUT || r == -EIO;
	for (i = 0; i < n; i++) {
		ret[i].err = unsure ? r : g->err[i];
		if (!r && !ret[i].err)
			sql_committed(db, &g->v[i], &ret[i].records, &ret[i].usage);
	}
	free(g);
	return r && !unsure ? 0 : n;
}

/* A file that is gone or none has changed nothing; any other error ends the transaction. */
static int commit_each(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct sql_group *g = arg;
	int r = 0;

	for (size_t i = 0; i < g->n && r >= 0; i++) {
		r = commit_slice(c, ctx, &g->v[i]);
		g->err[i] = r < 0 ? r : 0;
		if (r == -ENOENT || r == -EPERM)
			r = 0;
	}
	return r < 0 ? r : 0;
}

static int run_txn(struct sql_db *db, const struct cfs_ctx *ctx, struct sql_group *g)
{
	return sql_txn(db, ctx, CFS_META_OP_write, commit_each, g);
}

size_t sql_op_commit_group(struct cfs_engine *e, const struct cfs_ctx *ctx,
			   struct cfs_commit *const *commits, size_t n, struct cfs_committed *ret)
{
	return sql_commit_group(e, ctx, commits, n, ret, run_txn);
}

struct zeroing {
	struct sql_conn *c;
	cfs_ino_t ino;
};

static int append_zeros(void *arg, const struct cfs_zero *z)
{
	const struct zeroing *a = arg;
	const struct cfs_slice s = {.pos = z->pos, .len = z->len};
	uint8_t record[CFS_SLICE_BYTES];

	cfs_slice_encode(&s, record);
	if (!z->only_existing)
		return sql_append_records(a->c, a->ino, z->indx, record, sizeof(record));
	return sql_post(a->c, SQL_append_chunks, "biii", record, sizeof(record), a->ino,
			(int64_t)z->indx, (int64_t)z->last + 1);
}

/* The first step of truncate and fallocate: locks the file's row. */
static int begin(struct sql_conn *c, const struct cfs_ctx *ctx, struct change *a)
{
	int r = sql_lock_file(c, ctx, a->ino, a->attr);

	*a->usage = (struct cfs_usage){0};
	a->old_length = a->attr->length;
	return r;
}

static int finish(struct sql_conn *c, const struct cfs_ctx *ctx, struct change *a)
{
	a->attr->mtime = a->attr->ctime = ctx->now;
	return sql_finish_change(c, a->ino, a->attr, a->old_length, a->usage);
}

static int run(struct cfs_engine *e, const struct cfs_ctx *ctx, enum cfs_meta_op op, sql_fn fn,
	       struct change *a)
{
	struct cfs_optimistic *cache = sql_db(e)->optimistic;
	int r = sql_txn(sql_db(e), ctx, op, fn, a);

	if (!r && cache)
		cfs_optimistic_file_changed(cache, a->ino, a->attr);
	return r;
}

static int truncate_file(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct change *a = arg;
	struct zeroing zeroing = {.c = c, .ino = a->ino};
	int r = begin(c, ctx, a);

	if (r < 0 || a->length == a->old_length)
		return r;
	r = cfs_rules_truncate_zeros(a->old_length, a->length, append_zeros, &zeroing);
	if (r < 0)
		return r;
	a->attr->length = a->length;
	r = finish(c, ctx, a);
	if (r < 0)
		return r;
	return sql_log(c, ctx, "TRUNCATE(%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",0)", a->ino,
		       a->old_length, a->length);
}

int sql_op_truncate(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t length,
		    struct cfs_attr *ret, struct cfs_usage *ret_usage)
{
	struct change a = {.ino = ino, .attr = ret, .usage = ret_usage, .length = length};

	if (length >= CFS_FILE_MAX)
		return -EFBIG;
	return run(e, ctx, CFS_META_OP_truncate, truncate_file, &a);
}

static int fallocate_file(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct change *a = arg;
	struct zeroing zeroing = {.c = c, .ino = a->ino};
	uint64_t end = a->off + a->length;
	int r = begin(c, ctx, a);

	if (r >= 0 && (a->mode & (CFS_FALLOC_PUNCH_HOLE | CFS_FALLOC_ZERO_RANGE)) &&
	    a->off < a->old_length)
		r = cfs_rules_hole_zeros(a->off, CFS_MIN(end, a->old_length) - a->off, append_zeros,
					 &zeroing);
	if (r < 0)
		return r;
	if (!(a->mode & CFS_FALLOC_KEEP_SIZE))
		a->attr->length = CFS_MAX(end, a->old_length);
	r = finish(c, ctx, a);
	if (r < 0)
		return r;
	return sql_log(c, ctx, "FALLOCATE(%" PRIu64 ",%u,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ")",
		       a->ino, a->mode, a->off, a->length, a->attr->length);
}

int sql_op_fallocate(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, unsigned mode,
		     uint64_t off, uint64_t len, struct cfs_attr *ret, struct cfs_usage *ret_usage)
{
	struct change a = {
		.ino = ino,
		.attr = ret,
		.usage = ret_usage,
		.mode = mode,
		.off = off,
		.length = len,
	};

	if (!len)
		return -EINVAL;
	if (off >= CFS_FILE_MAX || len >= CFS_FILE_MAX - off)
		return -EFBIG;
	return run(e, ctx, CFS_META_OP_fallocate, fallocate_file, &a);
}
