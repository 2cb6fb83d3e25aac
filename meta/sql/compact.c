/* SPDX-License-Identifier: Apache-2.0 */
/* Compaction of chunk lists, and delayed deletion of the replaced slices, in the database. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "meta/sql/sql.h"

struct compact {
	cfs_ino_t ino;
	uint32_t indx;
	const struct cfs_slice *merged;
	uint8_t *head; /* encoded */
	size_t head_bytes, skipped_bytes;
	bool trash;
	/* results of one attempt */
	bool changed; /* the stored list does not begin with head */
	struct sql_refs dead;
};

/* Returns the stored list with the merged record in place of the replaced ones; NULL: no memory. */
static uint8_t *replace(const struct compact *a, const uint8_t *stored, size_t len, size_t *ret_len)
{
	size_t tail = len - a->head_bytes;
	uint8_t *list = malloc(a->skipped_bytes + CFS_SLICE_BYTES + tail);
	uint8_t *p = list;

	if (!list)
		return NULL;
	memcpy(p, stored, a->skipped_bytes);
	p += a->skipped_bytes;
	cfs_slice_encode(a->merged, p);
	p += CFS_SLICE_BYTES;
	memcpy(p, stored + a->head_bytes, tail);
	*ret_len = a->skipped_bytes + CFS_SLICE_BYTES + tail;
	return list;
}

static int replace_list(struct sql_conn *c, struct compact *a)
{
	const uint8_t *stored;
	uint8_t *list;
	size_t len;
	int r;

	r = sql_row(c, SQL_lock_chunk, "ii", a->ino, (int64_t)a->indx);
	if (r <= 0) {
		a->changed = r == 0;
		return r;
	}
	stored = sql_blob(c, SQL_lock_chunk, 0, &len);
	a->changed = len < a->head_bytes || memcmp(stored, a->head, a->head_bytes) != 0;
	if (a->changed) {
		sql_done(c, SQL_lock_chunk);
		return 0;
	}
	list = replace(a, stored, len, &len);
	sql_done(c, SQL_lock_chunk);
	if (!list)
		return -ENOMEM;
	r = sql_exec(c, SQL_set_chunk, "bii", list, len, a->ino, (int64_t)a->indx);
	free(list);
	return r < 0 ? r : 0;
}

/* The replaced slices go to a delayed entry; their references stay until it expires. */
static int delay(struct sql_conn *c, const struct cfs_ctx *ctx, const struct compact *a)
{
	uint8_t *pairs = malloc(a->dead.n * SQL_PAIR_BYTES);
	size_t i;
	int r;

	if (!pairs)
		return -ENOMEM;
	for (i = 0; i < a->dead.n; i++) {
		cfs_put_be64(pairs + i * SQL_PAIR_BYTES, a->dead.v[i].id);
		cfs_put_be32(pairs + i * SQL_PAIR_BYTES + 8, a->dead.v[i].size);
	}
	r = sql_exec(c, SQL_put_delayed, "iib", a->merged->id, (int64_t)ctx->now.tv_sec, pairs,
		     a->dead.n * SQL_PAIR_BYTES);
	free(pairs);
	return r < 0 ? r : 0;
}

static int compact_chunk(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct compact *a = arg;
	const struct cfs_slice *m = a->merged;
	int r;

	sql_refs_clear(&a->dead);
	r = replace_list(c, a);
	if (r < 0)
		return r;
	r = sql_exec(c, SQL_put_ref, "iii", m->id, (int64_t)m->size, (int64_t)(a->changed ? 0 : 1));
	if (r == -EEXIST) {
		cfs_err("slice id is in use already, compaction given up: slice=%" PRIu64
			" inode=%" PRIu64,
			m->id, a->ino);
		return -EIO;
	}
	if (r < 0 || a->changed)
		return r;
	r = sql_refs_add_records(&a->dead, a->head + a->skipped_bytes,
				 a->head_bytes - a->skipped_bytes);
	if (r < 0)
		return r;
	if (!a->trash) {
		r = sql_refs_drop(c, &a->dead);
	} else if (a->dead.n) {
		r = delay(c, ctx, a);
		sql_refs_clear(&a->dead);
	}
	if (r < 0)
		return r;
	return sql_log(c, ctx, "COMPACTCHUNK(%" PRIu64 ",%u,%zu,%zu,%u,%" PRIu64 ",%u)", a->ino,
		       a->indx, a->skipped_bytes / CFS_SLICE_BYTES,
		       (a->head_bytes - a->skipped_bytes) / CFS_SLICE_BYTES, m->pos, m->id,
		       m->size);
}

int sql_op_compact_chunk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 uint32_t indx, const struct cfs_slice *head, size_t head_n, size_t skipped,
			 const struct cfs_slice *merged, bool trash, cfs_engine_slice_fn dead,
			 void *arg)
{
	struct compact a = {
		.ino = ino,
		.indx = indx,
		.merged = merged,
		.head_bytes = head_n * CFS_SLICE_BYTES,
		.skipped_bytes = skipped * CFS_SLICE_BYTES,
		.trash = trash,
	};
	size_t i;
	int r;

	if (skipped >= head_n || !merged->id)
		return -EINVAL;
	a.head = malloc(a.head_bytes);
	if (!a.head)
		return -ENOMEM;
	for (i = 0; i < head_n; i++)
		cfs_slice_encode(&head[i], a.head + i * CFS_SLICE_BYTES);
	r = sql_txn(sql_db(e), ctx, CFS_META_OP_compact, compact_chunk, &a);
	if (r >= 0 && !a.changed)
		sql_refs_each(&a.dead, dead, arg);
	sql_refs_free(&a.dead);
	free(a.head);
	return r >= 0 && a.changed ? -EAGAIN : r;
}

struct expire {
	int64_t before_s;
	bool none_left;
	struct sql_refs dead;
};

static int expire_one(struct sql_conn *c, const struct cfs_ctx *ctx, void *arg)
{
	struct expire *a = arg;
	uint64_t damaged = 0;
	const void *pairs;
	int64_t id = -1;
	size_t len;
	int r;

	sql_refs_clear(&a->dead);
	do {
		r = sql_row(c, SQL_next_delayed, "ii", a->before_s, id);
		a->none_left = r == 0;
		if (r <= 0)
			break;
		id = sql_int(c, SQL_next_delayed, 0);
		pairs = sql_blob(c, SQL_next_delayed, 1, &len);
		r = sql_refs_add_pairs(&a->dead, pairs, len);
		sql_done(c, SQL_next_delayed);
		if (r == -EIO && !damaged)
			damaged = (uint64_t)id;
	} while (r == -EIO);
	if (a->none_left && damaged) {
		cfs_warn("delayed entry is damaged, not expired: slice=%" PRIu64, damaged);
		return -EIO;
	}
	if (r < 0 || a->none_left)
		return r;
	r = sql_exec(c, SQL_del_delayed, "i", id);
	if (r >= 0)
		r = sql_refs_drop(c, &a->dead);
	return r < 0 ? r : sql_log(c, ctx, "CLEANUP_DELAYED_SLICES(%" PRIu64 ")", (uint64_t)id);
}

int sql_op_expire_delayed(struct cfs_engine *e, const struct cfs_ctx *ctx, int64_t before_s,
			  cfs_engine_slice_fn dead, void *arg)
{
	struct expire a = {.before_s = before_s};
	int r = sql_txn(sql_db(e), ctx, CFS_META_OP_delete, expire_one, &a);

	if (r >= 0)
		sql_refs_each(&a.dead, dead, arg);
	sql_refs_free(&a.dead);
	return r < 0 ? r : a.none_left;
}
