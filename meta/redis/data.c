/* SPDX-License-Identifier: Apache-2.0 */
/* Chunk lists of one file (volume-format section 6): read, append, truncate, fallocate. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/redis/ops.h"

int rds_records_reply(const redisReply *list, cfs_ino_t ino, uint32_t indx, struct cfs_slice **ret)
{
	struct cfs_slice *v;
	size_t i;

	if (list->type != REDIS_REPLY_ARRAY)
		return -EIO;
	if (!list->elements) {
		*ret = NULL;
		return 0;
	}
	v = calloc(list->elements, sizeof(*v));
	if (!v)
		return -ENOMEM;
	for (i = 0; i < list->elements; i++) {
		const redisReply *e = list->element[i];

		if (!rds_is_bytes(e) || e->len != CFS_SLICE_BYTES) {
			cfs_err("chunk list is damaged: inode=%" PRIu64 " chunk=%u record=%zu", ino,
				indx, i);
			free(v);
			return -EIO;
		}
		cfs_slice_decode((const uint8_t *)e->str, &v[i]);
	}
	*ret = v;
	return 0;
}

ssize_t rds_op_read_chunk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			  uint32_t indx, struct cfs_slice **ret)
{
	RDS_REQUEST(q, e);
	ssize_t r;

	rds_command(&q, "scss", "LRANGE", ino, indx, "0", "-1");
	/* Distinguishes a hole from a file that another client has removed. */
	rds_command(&q, "sk", "EXISTS", "i", ino);
	r = rds_run(&q, ctx, CFS_META_OP_read_chunk);
	if (!r && !q.reply[0]->elements && !rds_int(q.reply[1]))
		r = -ENOENT;
	if (!r)
		r = rds_records_reply(q.reply[0], ino, indx, ret);
	if (!r)
		r = (ssize_t)q.reply[0]->elements;
	return r;
}

int rds_op_open_file(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     struct cfs_attr *ret, struct cfs_slice **ret_recs, ssize_t *ret_n)
{
	RDS_REQUEST(q, e);
	int r;

	/* Attributes first: the records may be newer than the attributes, never older. */
	rds_command(&q, "sk", "GET", "i", ino);
	rds_command(&q, "scss", "LRANGE", ino, (uint32_t)0, "0", "-1");
	r = rds_run(&q, ctx, CFS_META_OP_open);
	if (!r)
		r = rds_attr_reply(q.reply[0], ret);
	if (!r) {
		rds_cache_attr(rds_of(e), ino, q.reply[0], ret);
		r = rds_records_reply(q.reply[1], ino, 0, ret_recs);
		*ret_n = r ? -1 : (ssize_t)q.reply[1]->elements;
		r = r == -EIO ? 0 : r;
	}
	return r;
}

static void head_reply(struct cfs_head *h, const redisReply *attr, const redisReply *list,
		       const redisReply *name)
{
	cfs_ino_t ino;
	uint8_t type;

	if (rds_is_nil(attr)) {
		h->err = -ENOENT;
		return;
	}
	h->err = rds_attr_reply(attr, &h->attr);
	if (h->err == 0)
		h->err = rds_records_reply(list, h->ino, 0, &h->records);
	if (h->err == 0)
		h->n_records = list->elements;
	h->named = h->parent && rds_is_bytes(name) &&
		   rds_entry_decode(name->str, name->len, &type, &ino) == 0 && ino == h->ino;
}

/* The server executes the commands in order: attributes are read before records. */
int rds_op_read_heads(struct cfs_engine *e, const struct cfs_ctx *ctx, struct cfs_head *heads,
		      size_t n)
{
	RDS_REQUEST(q, e);
	size_t i;
	int r;

	for (i = 0; i < n; i++) {
		rds_command(&q, "sk", "GET", "i", heads[i].ino);
		rds_command(&q, "scss", "LRANGE", heads[i].ino, (uint32_t)0, "0", "-1");
		rds_command(&q, "skb", "HGET", "d", heads[i].parent,
			    heads[i].parent ? heads[i].name : "", heads[i].name_len);
	}
	r = rds_run(&q, ctx, CFS_META_OP_read_chunk);
	for (i = 0; !r && i < n; i++)
		head_reply(&heads[i], q.reply[3 * i], q.reply[3 * i + 1], q.reply[3 * i + 2]);
	return r;
}

/* ---- changes ---- */

/* Limit of names of one file in one directory: a greater count comes from a damaged record. */
#define NAMES_MAX ((size_t)65536)

int rds_change_reply(struct cfs_engine *e, cfs_ino_t ino, const redisReply *a, struct cfs_attr *ret,
		     struct cfs_usage *ret_usage)
{
	const redisReply *attr = a->element[1], *old8 = a->element[2], *parents = a->element[3];
	struct cfs_usage u = {0};
	int64_t length, space;
	uint64_t old;
	size_t i, k;
	int r = rds_attr_reply(attr, ret);

	if (r || old8->len != 8)
		return r ? r : -EIO;
	rds_cache_attr(rds_of(e), ino, attr, ret);
	old = cfs_get_be64(old8->str);
	if (old > RDS_LENGTH_MAX)
		return -EIO;
	length = (int64_t)(ret->length - old);
	space = cfs_space_of(ret->length) - cfs_space_of(old);
	if (length) {
		u.space = u.owner_space = space;
		u.uid = ret->uid;
		u.gid = ret->gid;
	}
	if (length && ret->nlink && cfs_host_dir_stats(e->host)) {
		if (ret->parent)
			cfs_usage_add_dir(&u, ret->parent, length, space, 0);
		for (i = 0; i + 1 < parents->elements; i += 2)
			for (k = CFS_MIN((size_t)rds_int(parents->element[i + 1]), NAMES_MAX); k;
			     k--)
				cfs_usage_add_dir(&u, strtoull(parents->element[i]->str, NULL, 10),
						  length, space, 0);
	}
	*ret_usage = u;
	return 0;
}

/* Attribute changes of the same commit, for commit_slice.lua: set, mode, uid, gid, atime. */
#define CHANGE_BYTES 28
static size_t encode_change(const struct cfs_attr_change *t, uint8_t out[CHANGE_BYTES])
{
	if (!t)
		return 0;
	cfs_put_be32(out, t->set);
	cfs_put_be32(out + 4, t->mode);
	cfs_put_be32(out + 8, t->uid);
	cfs_put_be32(out + 12, t->gid);
	cfs_put_be64(out + 16, (uint64_t)t->atime.tv_sec);
	cfs_put_be32(out + 24, (uint32_t)t->atime.tv_nsec);
	return CHANGE_BYTES;
}

/* The request of a commit. q->resent: an earlier one is repeated, whose key and token are in q. */
static void put_commit(struct rds_request *q, const struct cfs_ctx *ctx, const struct cfs_commit *c)
{
	const struct cfs_slice *s = &c->slice;
	uint64_t end = ((uint64_t)c->indx << CFS_CHUNK_BITS) + s->pos + s->len;
	uint8_t record[CFS_SLICE_BYTES], change[CHANGE_BYTES];
	struct rds *rds = q->r;
	char line[160] = "";

	cfs_slice_encode(s, record);
	if (cfs_host_changelog(rds->engine.host))
		snprintf(line, sizeof(line), "%" PRIu64 ",%u,%u,%" PRIu64 ",%u,%lld,%ld", c->ino,
			 c->indx, s->pos, s->id, s->len, (long long)c->mtime.tv_sec,
			 c->mtime.tv_nsec);
	rds_script_begin(q, ctx, &rds_commit_slice_lua, 9);
	rds_words(q, "uub8ttssb", c->ino, (uint64_t)c->indx, record, sizeof(record), end, c->mtime,
		  ctx->now, rds_stats(rds), line, change, encode_change(c->attrs, change));
}

/* The answer to a commit that was made. */
static int take_commit(struct rds *rds, struct cfs_commit *c, const redisReply *a,
		       unsigned *ret_records, struct cfs_usage *ret_usage)
{
	int r = rds_change_reply(&rds->engine, c->ino, a, &c->attr, ret_usage);

	if (r)
		return r;
	*ret_records = (unsigned)rds_int(a->element[4]);
	rds_commit_note(rds, c->slice.id);
	return 0;
}

static int append(struct rds_request *q, const struct cfs_ctx *ctx, struct cfs_commit *c,
		  unsigned *ret_records, struct cfs_usage *ret_usage)
{
	uint64_t begun_ms = cfs_now_ms();
	redisReply *a;
	int r;

	put_commit(q, ctx, c);
	r = rds_script_run(q, ctx, CFS_META_OP_write, &a);
	if (!r)
		return take_commit(q->r, c, a, ret_records, ret_usage);
	if (r == -ETIMEDOUT && c->slice.id && !q->resent)
		rds_unknown_commit_add(q->r, c->slice.id, begun_ms, q->key, q->token);
	return r;
}

int rds_op_commit_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, struct cfs_commit *c,
			unsigned *ret_records, struct cfs_usage *ret_usage)
{
	RDS_REQUEST(q, e);
	int r = cfs_rules_record(c->indx, &c->slice);

	return r ? r : append(&q, ctx, c, ret_records, ret_usage);
}

/* ---- group commit ---- */

/*
 * One script for each file, all of them in a transaction: other clients see all or none. Each script
 * has a stored answer, by which the outcome of its commit is found as for a single commit.
 */
struct group {
	struct rds_request q;	/* MULTI, the scripts, EXEC */
	struct rds_request one; /* the script of one file */
	struct cfs_commit *const *commits;
	size_t n;
	struct {
		char key[RDS_KEY_MAX], token[17];
	} stored[CFS_COMMITS_MAX];
};

/* slots: of the stored answers; no other group has them. */
static void put_group(struct group *g, const struct cfs_ctx *ctx, uint64_t slots)
{
	size_t i;

	rds_command(&g->q, "s", "MULTI");
	for (i = 0; i < g->n; i++) {
		g->one.slot = slots + i;
		put_commit(&g->one, ctx, g->commits[i]);
		rds_append(&g->q, &g->one);
		g->q.n++;
		memcpy(g->stored[i].key, g->one.key, sizeof(g->one.key));
		memcpy(g->stored[i].token, g->one.token, sizeof(g->one.token));
	}
	rds_command(&g->q, "s", "EXEC");
}

/*
 * The server may have executed the commits, or may still do so. Each is sent again alone, with its key
 * and number: the server returns the stored answer, or executes it.
 */
static void group_unknown(struct group *g, uint64_t begun_ms)
{
	size_t i;

	for (i = 0; i < g->n; i++) {
		rds_unknown_commit_add(g->q.r, g->commits[i]->slice.id, begun_ms, g->stored[i].key,
				       g->stored[i].token);
		g->commits[i]->repeated = true;
	}
}

/* False: a script has failed, because it is not loaded or a key is damaged. */
static bool take_group(struct group *g, struct cfs_committed *ret)
{
	const redisReply *all = g->q.reply[g->q.n - 1];
	size_t i;

	if (all->type != REDIS_REPLY_ARRAY || all->elements != g->n)
		return false;
	for (i = 0; i < g->n; i++)
		if (all->element[i]->type == REDIS_REPLY_ERROR)
			return false;
	for (i = 0; i < g->n; i++) {
		const redisReply *a = all->element[i];

		ret[i].err = rds_script_result(&g->one, a);
		if (!ret[i].err)
			ret[i].err = take_commit(g->q.r, g->commits[i], a, &ret[i].records,
						 &ret[i].usage);
	}
	return true;
}

/* Returns how many commits have a result, as rds_op_commit_group. */
static size_t run_group(struct group *g, const struct cfs_ctx *ctx, struct cfs_committed *ret)
{
	uint64_t begun_ms = cfs_now_ms(), slots = atomic_exchange(&g->q.r->group_slots, 0);
	size_t i;
	int r;

	if (!slots)
		slots = rds_slots(CFS_COMMITS_MAX);
	put_group(g, ctx, slots);
	if (g->one.failed || g->q.failed)
		return 0;
	r = rds_run(&g->q, ctx, CFS_META_OP_write);
	if (!r && take_group(g, ret)) {
		atomic_store(&g->q.r->group_slots, slots);
		return g->n;
	}
	/* For example, a proxy without MULTI. */
	if (r == -EACCES || r == -EIO)
		atomic_store(&g->q.r->group_refused, true);
	group_unknown(g, begun_ms);
	if (r != -ETIMEDOUT)
		return 0;
	for (i = 0; i < g->n; i++)
		ret[i].err = r;
	return g->n;
}

size_t rds_op_commit_group(struct cfs_engine *e, const struct cfs_ctx *ctx,
			   struct cfs_commit *const *commits, size_t n, struct cfs_committed *ret)
{
	struct group *g;
	size_t done;

	if (rds_of(e)->read_only || atomic_load(&rds_of(e)->group_refused))
		return 0;
	g = calloc(1, sizeof(*g));
	if (!g)
		return 0;
	g->commits = commits;
	while (g->n < n && commits[g->n]->slice.id &&
	       !cfs_rules_record(commits[g->n]->indx, &commits[g->n]->slice))
		g->n++;
	g->q.r = g->one.r = rds_of(e);
	done = g->n > 1 ? run_group(g, ctx, ret) : 0;
	rds_end(&g->one);
	rds_end(&g->q);
	free(g);
	return done;
}

/* Reads the current attributes: a repeated answer may be older than the cache. Returns 1. */
static int newest_attr(struct cfs_engine *e, const struct cfs_ctx *ctx, struct cfs_commit *c)
{
	int r = rds_op_getattr(e, ctx, c->ino, &c->attr);

	return r ? r : 1;
}

/*
 * Sends the request again: the server returns the stored answer, or executes the request. After the
 * stored answer has expired, the commit is searched in the list of the chunk, and the usage that it
 * has added is unknown.
 */
int rds_op_find_commit(struct cfs_engine *e, const struct cfs_ctx *ctx, struct cfs_commit *c,
		       bool released, struct cfs_usage *ret_usage)
{
	struct cfs_slice *list = NULL;
	RDS_REQUEST(q, e);
	unsigned records;
	ssize_t n, i;
	int r;

	if (released)
		return newest_attr(e, ctx, c);
	q.resent = rds_unknown_commit_find(rds_of(e), c->slice.id, q.key, q.token);
	if (q.resent) {
		r = append(&q, ctx, c, &records, ret_usage);
		if (!r)
			r = newest_attr(e, ctx, c);
		return r;
	}
	n = rds_op_read_chunk(e, ctx, c->ino, c->indx, &list);
	for (i = 0; i < n && list[i].id != c->slice.id; i++)
		;
	free(list);
	return n < 0 ? (int)n : i < n ? newest_attr(e, ctx, c) : 0;
}

/* ---- files with more chunks than RDS_CHUNKS_ONE_BY_ONE ---- */

enum { SCAN_KEYS = 4096 };

static int add_index(struct rds_bytes *b, const char *key, size_t len, size_t skip)
{
	uint8_t indx[4];
	uint64_t n;
	size_t used;

	if (len <= skip || !rds_number(key + skip, len - skip, &n, &used) || n > UINT32_MAX ||
	    used != len - skip)
		return 0;
	cfs_put_be32(indx, (uint32_t)n);
	rds_bytes_add(b, indx, sizeof(indx));
	return b->failed ? -ENOMEM : 0;
}

static int compare_be32(const void *a, const void *b)
{
	return memcmp(a, b, 4);
}

/* SCAN returns keys in no order, and some of them twice. */
static void order_indexes(struct rds_bytes *b)
{
	size_t i, n = 0;

	if (b->len)
		qsort(b->p, b->len / 4, 4, compare_be32);
	for (i = 0; i < b->len; i += 4) {
		if (n && !compare_be32(b->p + n - 4, b->p + i))
			continue;
		memmove(b->p + n, b->p + i, 4);
		n += 4;
	}
	b->len = n;
}

int rds_find_chunks(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		    struct rds_bytes *ret)
{
	char pattern[64];
	size_t skip = (size_t)snprintf(pattern, sizeof(pattern), "%sc%" PRIu64 "_*",
				       rds_of(e)->prefix, ino) -
		      1;
	const redisReply *page;
	RDS_REQUEST(q, e);
	struct rds_cursor cursor = {0};
	size_t i;
	int r;

	ret->len = 0;
	do {
		r = rds_page(&q, ctx, CFS_META_OP_read_chunk, &cursor, SCAN_KEYS, pattern, &page,
			     "s", "SCAN");
		for (i = 0; !r && i < page->elements; i++)
			r = add_index(ret, page->element[i]->str, page->element[i]->len, skip);
	} while (!r && cursor.at);
	order_indexes(ret);
	return r;
}

bool rds_wants_chunks(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, int *r,
		      const redisReply *a, struct rds_chunks *k)
{
	bool again = *r == -EBUSY && a->elements == 2 && rds_is_bytes(a->element[1]);

	if (again && cfs_deadline_passed(ctx->deadline)) {
		*r = -ETIMEDOUT;
	} else if (again) {
		k->expected.len = 0;
		rds_bytes_add(&k->expected, a->element[1]->str, a->element[1]->len);
		*r = k->expected.failed ? -ENOMEM : rds_find_chunks(e, ctx, ino, &k->found);
	}
	if (again && !*r)
		return true;
	free(k->expected.p);
	free(k->found.p);
	return false;
}

int rds_op_truncate(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t length,
		    struct cfs_attr *ret, struct cfs_usage *ret_usage)
{
	struct rds_chunks k = {0};
	RDS_REQUEST(q, e);
	redisReply *a;
	int r;

	if (length >= CFS_FILE_MAX)
		return -EFBIG;
	do
		r = rds_script(&q, ctx, CFS_META_OP_truncate, &rds_truncate_lua, &a, "u8tssbb", ino,
			       length, ctx->now, cfs_host_is_open(e->host, ino) ? "1" : "0",
			       rds_stats(rds_of(e)), k.expected.p, k.expected.len, k.found.p,
			       k.found.len);
	while (rds_wants_chunks(e, ctx, ino, &r, a, &k));
	return r ? r : rds_change_reply(e, ino, a, ret, ret_usage);
}

int rds_op_fallocate(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, unsigned mode,
		     uint64_t off, uint64_t len, struct cfs_attr *ret, struct cfs_usage *ret_usage)
{
	struct rds_chunks k = {0};
	RDS_REQUEST(q, e);
	char line[128];
	redisReply *a;
	int r;

	if (!len)
		return -EINVAL;
	if (off >= CFS_FILE_MAX || len >= CFS_FILE_MAX - off)
		return -EFBIG;
	snprintf(line, sizeof(line), "%" PRIu64 ",%u,%" PRIu64 ",%" PRIu64, ino, mode, off, len);
	do
		r = rds_script(&q, ctx, CFS_META_OP_fallocate, &rds_fallocate_lua, &a, "uu88tssbbs",
			       ino, (uint64_t)mode, off, off + len, ctx->now,
			       cfs_host_is_open(e->host, ino) ? "1" : "0", rds_stats(rds_of(e)),
			       k.expected.p, k.expected.len, k.found.p, k.found.len, line);
	while (rds_wants_chunks(e, ctx, ino, &r, a, &k));
	return r ? r : rds_change_reply(e, ino, a, ret, ret_usage);
}

/* The largest number of chunks that the file can have. */
static int chunk_end(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t *ret)
{
	RDS_REQUEST(q, e);
	struct cfs_attr attr;
	int r;

	rds_command(&q, "sk", "GET", "i", ino);
	rds_command(&q, "sKu", "HGET", "zcachefs:top", ino);
	r = rds_run(&q, ctx, CFS_META_OP_read_chunk);
	if (!r)
		r = rds_attr_reply(q.reply[0], &attr);
	if (!r)
		*ret = CFS_MAX((uint64_t)rds_int(q.reply[1]),
			       CFS_DIV_UP(attr.length, CFS_CHUNK_SIZE));
	else if (r == -ENOENT)
		*ret = 0;
	return r == -ENOENT ? 0 : r;
}

ssize_t rds_op_list_chunks(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			   uint32_t first, struct cfs_chunk_len ret[1024])
{
	struct rds_bytes found = {0};
	uint64_t stop = 0, indx;
	RDS_REQUEST(q, e);
	size_t n = 0, i;
	int r = chunk_end(e, ctx, ino, &stop);

	if (!r && stop > (uint64_t)first + RDS_CHUNKS_ONE_BY_ONE) {
		r = rds_find_chunks(e, ctx, ino, &found);
		for (i = 0; i < found.len / 4 && !r; i++) {
			indx = cfs_get_be32(found.p + 4 * i);
			if (indx >= first && q.n < 1024) {
				ret[q.n].indx = (uint32_t)indx;
				rds_command(&q, "sc", "LLEN", ino, (uint32_t)indx);
			}
		}
		if (!r && q.n)
			r = rds_run(&q, ctx, CFS_META_OP_read_chunk);
		for (i = 0; i < q.n && !r; i++)
			ret[i].records = (uint32_t)rds_int(q.reply[i]);
		n = q.n;
		stop = 0;
	}
	for (indx = first; !r && indx < stop && n < 1024; indx += i) {
		rds_reset(&q);
		for (i = 0; i < 1024 && indx + i < stop; i++)
			rds_command(&q, "sc", "LLEN", ino, (uint32_t)(indx + i));
		r = rds_run(&q, ctx, CFS_META_OP_read_chunk);
		for (size_t k = 0; k < i && !r && n < 1024; k++)
			if (rds_int(q.reply[k]) > 0)
				ret[n++] = (struct cfs_chunk_len){(uint32_t)(indx + k),
								  (uint32_t)rds_int(q.reply[k])};
	}
	free(found.p);
	return r ? r : (ssize_t)n;
}
