/* SPDX-License-Identifier: Apache-2.0 */
/* The stages of a removed file's data: sustained, delfile, chunks, slices without references. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "meta/redis/ops.h"

/* ---- deletions in progress ---- */

/*
 * A cache of the sorted set `delfiles`: only its members give the length of a deleted inode, and
 * Redis cannot look a member up by inode. Members that are not cached are found by a scan of the
 * set.
 */
enum { DELETIONS = 4096, UNKNOWNS = 1024, COMMITS = 4096 };

struct rds_deletions {
	pthread_mutex_t lock; /* protects all of it */
	struct {
		cfs_ino_t ino;
		uint64_t length; /* in delfiles */
		uint64_t next;	 /* the next chunk to delete */
	} v[DELETIONS];
	/* Commits whose outcome is unknown. */
	struct {
		uint64_t slice, until_ms; /* the server keeps a stored answer until then */
		char key[RDS_KEY_MAX], token[17];
	} unknowns[UNKNOWNS];
	unsigned n_unknowns;
	/* Recently committed slices. A slice with one reference has no key in Redis. */
	uint64_t commits[COMMITS];
};

int rds_deletions_create(struct rds_deletions **ret)
{
	struct rds_deletions *d = calloc(1, sizeof(*d));

	if (!d)
		return -ENOMEM;
	pthread_mutex_init(&d->lock, NULL);
	*ret = d;
	return 0;
}

void rds_deletions_destroy(struct rds_deletions *d)
{
	if (!d)
		return;
	pthread_mutex_destroy(&d->lock);
	free(d);
}

void rds_deletions_add(struct rds *r, cfs_ino_t ino, uint64_t length)
{
	struct rds_deletions *d = r->deletions;
	CFS_LOCK_GUARD(&d->lock);

	if (d->v[ino % DELETIONS].ino != ino || d->v[ino % DELETIONS].length != length) {
		d->v[ino % DELETIONS].ino = ino;
		d->v[ino % DELETIONS].length = length;
		d->v[ino % DELETIONS].next = 0;
	}
}

static bool deletion_find(struct rds *r, cfs_ino_t ino, uint64_t *ret_length, uint64_t *ret_next)
{
	struct rds_deletions *d = r->deletions;
	CFS_LOCK_GUARD(&d->lock);

	if (d->v[ino % DELETIONS].ino != ino)
		return false;
	*ret_length = d->v[ino % DELETIONS].length;
	*ret_next = d->v[ino % DELETIONS].next;
	return true;
}

static void deletion_next(struct rds *r, cfs_ino_t ino, uint64_t next)
{
	struct rds_deletions *d = r->deletions;
	CFS_LOCK_GUARD(&d->lock);

	if (d->v[ino % DELETIONS].ino == ino)
		d->v[ino % DELETIONS].next = next;
}

void rds_unknown_commit_add(struct rds *r, uint64_t slice, uint64_t begun_ms, const char *key,
			    const char *token)
{
	struct rds_deletions *d = r->deletions;
	unsigned i;
	CFS_LOCK_GUARD(&d->lock);

	i = d->n_unknowns++ % UNKNOWNS;
	d->unknowns[i].slice = slice;
	d->unknowns[i].until_ms = begun_ms + rds_kept_ms(key);
	snprintf(d->unknowns[i].key, sizeof(d->unknowns[i].key), "%s", key);
	snprintf(d->unknowns[i].token, sizeof(d->unknowns[i].token), "%s", token);
}

void rds_commit_note(struct rds *r, uint64_t slice)
{
	struct rds_deletions *d = r->deletions;
	CFS_LOCK_GUARD(&d->lock);

	d->commits[slice % COMMITS] = slice;
}

static bool commit_find(struct rds *r, uint64_t slice)
{
	struct rds_deletions *d = r->deletions;
	CFS_LOCK_GUARD(&d->lock);

	return d->commits[slice % COMMITS] == slice;
}

bool rds_unknown_commit_find(struct rds *r, uint64_t slice, char key[RDS_KEY_MAX], char token[17])
{
	uint64_t until_ms = 0;
	struct rds_deletions *d = r->deletions;
	unsigned i;

	key[0] = token[0] = '\0';
	pthread_mutex_lock(&d->lock);
	for (i = 0; i < UNKNOWNS; i++) {
		if (d->unknowns[i].slice == slice) {
			memcpy(key, d->unknowns[i].key, RDS_KEY_MAX);
			memcpy(token, d->unknowns[i].token, 17);
			until_ms = d->unknowns[i].until_ms;
		}
	}
	pthread_mutex_unlock(&d->lock);
	return until_ms > cfs_now_ms();
}

/* "inode:length" */
static bool parse_member(const redisReply *m, cfs_ino_t *ret_ino, uint64_t *ret_length)
{
	size_t used, rest;

	return rds_is_bytes(m) && rds_number(m->str, m->len, ret_ino, &used) && used < m->len &&
	       m->str[used] == ':' &&
	       rds_number(m->str + used + 1, m->len - used - 1, ret_length, &rest);
}

int rds_find_delfile(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     uint64_t *ret_length)
{
	const redisReply *page;
	RDS_REQUEST(q, e);
	struct rds_cursor cursor = {0};
	char pattern[40];
	bool found = false;
	cfs_ino_t there;
	size_t i;
	int r;

	snprintf(pattern, sizeof(pattern), "%" PRIu64 ":*", ino);
	do {
		r = rds_page(&q, ctx, CFS_META_OP_delete, &cursor, 4096, pattern, &page, "sK",
			     "ZSCAN", "delfiles");
		for (i = 0; !r && i < page->elements; i += 2)
			found |= parse_member(page->element[i], &there, ret_length);
	} while (!r && !found && cursor.at);
	return r ? r : found ? 0 : -ENOENT;
}

/* ---- chunks of a deleted file ---- */

struct range {
	uint64_t first, stop;
};

static int delete_in(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     const struct range *g, cfs_engine_slice_fn dead, void *arg, uint64_t *ret_next)
{
	RDS_REQUEST(q, e);
	redisReply *a;
	int r = rds_script(&q, ctx, CFS_META_OP_delete, &rds_delete_chunk_lua, &a, "uuu", ino,
			   g->first, g->stop);

	if (r == -EBUSY)
		cfs_err("inode exists, its data is not deleted: inode=%" PRIu64, ino);
	else if (r == -EIO)
		cfs_err("chunk list is damaged, not deleted: inode=%" PRIu64, ino);
	if (!r) {
		*ret_next = (uint64_t)rds_int(a->element[1]);
		rds_each_pair(a->element[2], dead, arg);
	}
	return r;
}

/* Deletes the chunks of a large file, whose lists a scan of the whole database finds. */
static int delete_found(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			cfs_engine_slice_fn dead, void *arg)
{
	struct rds_bytes found = {0};
	uint64_t next;
	size_t i;
	int r = rds_find_chunks(e, ctx, ino, &found);

	for (i = 0; i < found.len && r >= 0; i += 4) {
		const uint64_t indx = cfs_get_be32(found.p + i);
		const struct range g = {indx, indx + 1};

		r = delete_in(e, ctx, ino, &g, dead, arg, &next);
	}
	free(found.p);
	return r < 0 ? r : 1;
}

int rds_op_delete_chunk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			cfs_engine_slice_fn dead, void *arg)
{
	uint64_t length, next = 0, stop;
	int r = 0;

	if (!deletion_find(rds_of(e), ino, &length, &next))
		r = rds_find_delfile(e, ctx, ino, &length);
	if (r == -ENOENT) {
		length = 0;
		r = 0;
	}
	if (r)
		return r;
	rds_deletions_add(rds_of(e), ino, length);
	stop = CFS_MAX(CFS_DIV_UP(length, CFS_CHUNK_SIZE), 1);
	if (stop > RDS_CHUNKS_ONE_BY_ONE)
		return delete_found(e, ctx, ino, dead, arg);
	while (next < stop) {
		const struct range g = {next, CFS_MIN(next + 1024, stop)};

		r = delete_in(e, ctx, ino, &g, dead, arg, &next);
		if (r <= 0) {
			if (!r)
				deletion_next(rds_of(e), ino, next);
			return r;
		}
		next = g.stop;
	}
	return 1;
}

/* Removes the file's member with either length; 1: there is none. */
static int drop_member(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       uint64_t length, uint64_t other)
{
	char a[48], b[48];

	snprintf(a, sizeof(a), "%" PRIu64 ":%" PRIu64, ino, length);
	snprintf(b, sizeof(b), "%" PRIu64 ":%" PRIu64, ino, other);
	return rds_change(e, ctx, CFS_META_OP_delete, &rds_drop_delfile_lua, "ss", a, b);
}

/*
 * A file that was shortened has the length of its last chunk list in `delfiles`, which only the
 * cache and the set itself know.
 */
int rds_op_drop_delfile(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			uint64_t length)
{
	uint64_t other = length, next;
	int r;

	deletion_find(rds_of(e), ino, &other, &next);
	r = drop_member(e, ctx, ino, length, other);
	if (r != 1)
		return r;
	r = rds_find_delfile(e, ctx, ino, &length);
	if (!r)
		r = drop_member(e, ctx, ino, length, length);
	/* Another mount has removed it. */
	return r == -ENOENT || r == 1 ? 0 : r;
}

int rds_op_each_delfile(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t before_s,
			size_t limit, cfs_engine_delfile_fn fn, void *arg)
{
	RDS_REQUEST(q, e);
	char before[32];
	size_t i;
	int r;

	snprintf(before, sizeof(before), "(%" PRId64, before_s);
	r = rds_ask(&q, ctx, CFS_META_OP_delete, "sKsssssu", "ZRANGEBYSCORE", "delfiles", "-inf",
		    before, "WITHSCORES", "LIMIT", "0", (uint64_t)limit);
	for (i = 0; !r && i + 1 < q.reply[0]->elements; i += 2) {
		cfs_ino_t ino;
		uint64_t length;

		if (!parse_member(q.reply[0]->element[i], &ino, &length))
			continue;
		rds_deletions_add(rds_of(e), ino, length);
		r = fn(arg, ino, length, rds_int(q.reply[0]->element[i + 1]));
	}
	return r;
}

int rds_deleted_reply(struct rds *rds, cfs_ino_t ino, const redisReply *a, uint64_t *ret_length,
		      struct cfs_usage *ret_usage)
{
	struct cfs_attr attr;
	int r = a->elements == 4 ? rds_attr_reply(a->element[1], &attr) : -EIO;

	if (r)
		return r;
	*ret_usage = (struct cfs_usage){0};
	cfs_usage_inode(ret_usage, &attr, -1);
	*ret_length = UINT64_MAX;
	if (rds_int(a->element[2])) {
		*ret_length = strtoull(a->element[3]->str, NULL, 10);
		rds_deletions_add(rds, ino, *ret_length);
	}
	return 0;
}

/* ---- sustained inodes ---- */

static int end_sustained(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
			 cfs_ino_t ino, bool stale, uint64_t *ret_length,
			 struct cfs_usage *ret_usage)
{
	RDS_REQUEST(q, e);
	redisReply *a;
	int r = rds_script(&q, ctx, CFS_META_OP_delete, &rds_end_sustained_lua, &a, "u8uts", ino,
			   ino, sid, ctx->now, stale ? "1" : "0");

	if (!r)
		r = a->elements == 1 ? -ENOENT
				     : rds_deleted_reply(rds_of(e), ino, a, ret_length, ret_usage);
	return r;
}

int rds_op_end_sustained(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
			 cfs_ino_t ino, uint64_t *ret_length, struct cfs_usage *ret_usage)
{
	return end_sustained(e, ctx, sid, ino, false, ret_length, ret_usage);
}

int rds_end_sustained_all(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid)
{
	struct cfs_usage usage;
	RDS_REQUEST(q, e);
	uint64_t length;
	size_t i, n;
	int r;

	do {
		rds_reset(&q);
		rds_command(&q, "sks", "SRANDMEMBER", "session", sid, "100");
		r = rds_run(&q, ctx, CFS_META_OP_delete);
		n = r ? 0 : q.reply[0]->elements;
		for (i = 0; i < n && (r >= 0 || r == -ENOENT); i++)
			r = end_sustained(e, ctx, sid,
					  strtoull(q.reply[0]->element[i]->str, NULL, 10), true,
					  &length, &usage);
	} while (n && (r >= 0 || r == -ENOENT));
	return r == -ENOENT ? 0 : r;
}

/* ---- slices ---- */

/* "k<id>_<size>" */
bool rds_parse_ref(const char *p, size_t len, uint64_t *ret_id, uint32_t *ret_size)
{
	uint64_t size;
	size_t used, rest;

	if (len < 4 || *p != 'k' || !rds_number(p + 1, len - 1, ret_id, &used) || used + 2 >= len ||
	    p[used + 1] != '_' || !rds_number(p + used + 2, len - used - 2, &size, &rest) ||
	    size > UINT32_MAX)
		return false;
	*ret_size = (uint32_t)size;
	return true;
}

int rds_op_each_dead_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, size_t limit,
			   cfs_engine_slice_fn fn, void *arg)
{
	const redisReply *page;
	RDS_REQUEST(q, e);
	struct rds_cursor cursor = {0};
	size_t n = 0, i;
	int r;

	do {
		r = rds_page(&q, ctx, CFS_META_OP_delete, &cursor, 4096, NULL, &page, "sK", "HSCAN",
			     "sliceRef");
		for (i = 0; !r && i + 1 < page->elements && n < limit; i += 2) {
			uint64_t id;
			uint32_t size;

			if (rds_int(page->element[i + 1]) >= 0 ||
			    !rds_parse_ref(page->element[i]->str, page->element[i]->len, &id,
					   &size))
				continue;
			n++;
			r = fn(arg, id, size);
		}
	} while (!r && n < limit && cursor.at);
	return r;
}

int rds_op_orphan_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t id, uint32_t size)
{
	char key[RDS_KEY_MAX], token[17];

	if (commit_find(rds_of(e), id))
		return -EBUSY;
	rds_unknown_commit_find(rds_of(e), id, key, token);
	return rds_change(e, ctx, CFS_META_OP_delete, &rds_orphan_slice_lua, "uuss", id,
			  (uint64_t)size, key, token);
}

int rds_op_drop_slice(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t id, uint32_t size)
{
	return rds_change(e, ctx, CFS_META_OP_delete, &rds_drop_slice_lua, "uu", id,
			  (uint64_t)size);
}

/* ---- compaction ---- */

int rds_op_compact_chunk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 uint32_t indx, const struct cfs_slice *head, size_t head_n, size_t skipped,
			 const struct cfs_slice *merged, bool trash, cfs_engine_slice_fn dead,
			 void *arg)
{
	uint64_t begun_ms = cfs_now_ms();
	uint8_t record[CFS_SLICE_BYTES];
	RDS_REQUEST(q, e);
	uint8_t *list;
	char line[160];
	redisReply *a;
	size_t i;
	int r;

	if (skipped >= head_n || !merged->id)
		return -EINVAL;
	list = malloc(head_n * CFS_SLICE_BYTES);
	if (!list)
		return -ENOMEM;
	for (i = 0; i < head_n; i++)
		cfs_slice_encode(&head[i], list + i * CFS_SLICE_BYTES);
	cfs_slice_encode(merged, record);
	snprintf(line, sizeof(line), "%" PRIu64 ",%u,%zu,%zu,%u,%" PRIu64 ",%u", ino, indx, skipped,
		 head_n - skipped, merged->pos, merged->id, merged->size);
	r = rds_script(&q, ctx, CFS_META_OP_compact, &rds_compact_chunk_lua, &a, "uububuusis", ino,
		       (uint64_t)indx, list, head_n * CFS_SLICE_BYTES, (uint64_t)skipped, record,
		       sizeof(record), merged->id, (uint64_t)merged->size, trash ? "1" : "0",
		       (int64_t)ctx->now.tv_sec, line);
	if (!r) {
		rds_commit_note(rds_of(e), merged->id);
		rds_each_pair(a->element[1], dead, arg);
	} else if (r == -ETIMEDOUT) {
		rds_unknown_commit_add(rds_of(e), merged->id, begun_ms, q.key, q.token);
	}
	free(list);
	return r;
}

enum { PAIR_BYTES = 12 };

/*
 * Finds the field of a delayed entry older than before_s; "": there is none. -EIO: only damaged
 * entries are left.
 */
static int find_delayed(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t before_s,
			char field[64])
{
	const redisReply *page;
	RDS_REQUEST(q, e);
	struct rds_cursor cursor = {0};
	char damaged[64] = "";
	size_t i;
	int r;

	field[0] = '\0';
	do {
		r = rds_page(&q, ctx, CFS_META_OP_delete, &cursor, 512, NULL, &page, "sK", "HSCAN",
			     "delSlices");
		for (i = 0; !r && i + 1 < page->elements && !field[0]; i += 2) {
			const char *name = page->element[i]->str, *bar = strchr(name, '_');

			if (bar && page->element[i]->len < 64 &&
			    strtoll(bar + 1, NULL, 10) < before_s)
				snprintf(page->element[i + 1]->len % PAIR_BYTES ? damaged : field,
					 64, "%s", name);
		}
	} while (!r && !field[0] && cursor.at);
	if (r || field[0] || !damaged[0])
		return r;
	cfs_warn("delayed entry is damaged, not expired: entry=%s", damaged);
	return -EIO;
}

int rds_op_expire_delayed(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t before_s,
			  cfs_engine_slice_fn dead, void *arg)
{
	RDS_REQUEST(q, e);
	char field[64];
	redisReply *a;
	int r = find_delayed(e, ctx, before_s, field);

	if (r || !field[0])
		return r ? r : 1;
	r = rds_script(&q, ctx, CFS_META_OP_delete, &rds_expire_delayed_lua, &a, "s", field);
	if (!r)
		rds_each_pair(a->element[1], dead, arg);
	/* 1: another client has expired this entry; there may be more. */
	return r > 0 ? 0 : r;
}
