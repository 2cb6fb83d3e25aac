/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scans of whole tables. SCAN and HSCAN return each key that exists throughout the scan at least
 * once, as the contract requires. A position is their cursor (a, c, d) and the phase (b); all are 0
 * before the beginning.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/log.h"
#include "meta/redis/ops.h"

enum { PAIR_BYTES = 12, PAIRS_MAX = 4096 * PAIR_BYTES };

struct scan {
	struct cfs_engine *e;
	enum cfs_meta_table table;
	cfs_row_fn fn;
	void *arg;
	int stopped;		   /* what fn returned */
	struct rds_request values; /* one command per key */
	struct {
		uint64_t n, indx;
	} *keys;
	size_t n_keys, cap;
	struct rds_bytes pairs; /* slices whose reference counts will be looked up */
};

static int deliver(struct scan *a, const struct cfs_row *row)
{
	a->stopped = a->fn(a->arg, row);
	return a->stopped;
}

static struct rds_cursor cursor_at(const struct cfs_scan_pos *pos)
{
	return (struct rds_cursor){.at = pos->a, .mark = pos->c, .pages = pos->d};
}

static void keep_cursor(struct cfs_scan_pos *pos, const struct rds_cursor *c)
{
	pos->a = c->at;
	pos->c = c->mark;
	pos->d = c->pages;
}

/* ---- keys ---- */

int rds_scan_keys(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *name,
		  struct rds_cursor *cursor, rds_key_fn fn, void *arg)
{
	const size_t skip = strlen(rds_of(e)->prefix) + strlen(name);
	const redisReply *page;
	char pattern[64];
	RDS_REQUEST(q, e);
	size_t i;
	int r;

	snprintf(pattern, sizeof(pattern), "%s%s[0-9]*", rds_of(e)->prefix, name);
	r = rds_page(&q, ctx, CFS_META_OP_other, cursor, 4096, pattern, &page, "s", "SCAN");
	for (i = 0; !r && i < page->elements; i++) {
		const redisReply *key = page->element[i];
		uint64_t n;
		size_t used;

		if (key->len > skip && rds_number(key->str + skip, key->len - skip, &n, &used))
			r = fn(arg, n, key->str + skip + used, key->len - skip - used);
	}
	return r;
}

int rds_note_number(struct rds_numbers *to, uint64_t n)
{
	if (CFS_ARRAY_ROOM(to->v, to->n, to->cap) < 0)
		return -ENOMEM;
	to->v[to->n++] = n;
	return 0;
}

int rds_note_key(void *arg, uint64_t n, const char *rest, size_t rest_len)
{
	return rest_len ? 0 : rds_note_number(arg, n);
}

int rds_each_entry(struct cfs_engine *e, cfs_ino_t dir, struct rds_cursor from, rds_entry_fn fn,
		   void *arg)
{
	const redisReply *page;
	RDS_REQUEST(q, e);
	size_t i;
	int r;

	do {
		struct cfs_ctx ctx = rds_page_ctx();

		r = rds_page(&q, &ctx, CFS_META_OP_other, &from, 4096, NULL, &page, "sk", "HSCAN",
			     "d", dir);
		for (i = 0; !r && i + 1 < page->elements; i += 2)
			r = fn(arg, dir, page->element[i], page->element[i + 1]);
	} while (!r && from.at);
	return r;
}

static int note_key(void *arg, uint64_t n, const char *rest, size_t rest_len)
{
	struct scan *a = arg;
	uint64_t indx = 0;
	size_t used = 0;

	if (a->table == CFS_TABLE_CHUNK || a->table == CFS_TABLE_REF) {
		if (rest_len < 2 || *rest != '_' ||
		    !rds_number(rest + 1, rest_len - 1, &indx, &used) || indx > UINT32_MAX)
			return 0;
		used++;
	}
	if (used != rest_len)
		return 0;
	if (CFS_ARRAY_ROOM(a->keys, a->n_keys, a->cap) < 0)
		return -ENOMEM;
	a->keys[a->n_keys].n = n;
	a->keys[a->n_keys++].indx = indx;
	return 0;
}

/* ---- rows ---- */

static int deliver_records(struct scan *a, size_t k, const redisReply *list)
{
	struct cfs_row row = {.ino = a->keys[k].n};
	struct cfs_slice *v = NULL;
	int r;

	if (!list->elements)
		return 0;
	row.list.indx = (uint32_t)a->keys[k].indx;
	r = rds_records_reply(list, row.ino, row.list.indx, &v);
	if (r && r != -EIO)
		return r;
	row.list.damaged = r == -EIO;
	row.list.slices = v;
	row.list.n = r ? 0 : list->elements;
	r = deliver(a, &row);
	free(v);
	return r;
}

static int deliver_hash(struct scan *a, size_t k, const redisReply *list)
{
	struct cfs_row row = {.ino = a->keys[k].n};
	size_t i;
	int r = 0;

	for (i = 0; i + 1 < list->elements && !r; i += 2) {
		const redisReply *f = list->element[i], *v = list->element[i + 1];

		if (a->table == CFS_TABLE_XATTR) {
			row.xattr.name = f->str;
			row.xattr.name_len = f->len;
			row.xattr.value = v->str;
			row.xattr.value_len = v->len;
		} else if (rds_int(v) > 0) {
			row.parent.dir = strtoull(f->str, NULL, 10);
			row.parent.names = (uint32_t)rds_int(v);
		} else {
			continue;
		}
		r = deliver(a, &row);
	}
	return r;
}

static int deliver_members(struct scan *a, size_t k, const redisReply *list)
{
	struct cfs_row row = {.sid = a->keys[k].n};
	size_t i;
	int r = 0;

	for (i = 0; i < list->elements && !r; i++) {
		row.ino = strtoull(list->element[i]->str, NULL, 10);
		r = deliver(a, &row);
	}
	return r;
}

static int deliver_entry(void *arg, cfs_ino_t dir, const redisReply *name, const redisReply *value)
{
	struct cfs_row row = {
		.edge = {.parent = dir, .name = name->str, .name_len = name->len},
	};

	if (rds_entry_decode(value->str, value->len, &row.edge.type, &row.ino))
		return 0;
	return deliver(arg, &row);
}

/* first: the first page of the directory's hash, read together with those of other directories. */
static int deliver_dir(struct scan *a, size_t k, const redisReply *first)
{
	const cfs_ino_t dir = a->keys[k].n;
	const redisReply *page;
	struct rds_cursor cursor = {0};
	size_t i;
	int r = 0;

	if (first->elements != 2)
		return -EIO;
	cursor.at = strtoull(first->element[0]->str, NULL, 10);
	page = first->element[1];
	for (i = 0; i + 1 < page->elements && !r; i += 2)
		r = deliver_entry(a, dir, page->element[i], page->element[i + 1]);
	return r || !cursor.at ? r : rds_each_entry(a->e, dir, cursor, deliver_entry, a);
}

static int deliver_value(struct scan *a, size_t k, const redisReply *v)
{
	struct cfs_row row = {.ino = a->keys[k].n};
	int r = 0;

	switch (a->table) {
	case CFS_TABLE_NODE:
		r = rds_attr_reply(v, &row.attr);
		if (r == -ENOENT)
			return 0;
		if (r)
			cfs_err("inode record is damaged: inode=%" PRIu64, row.ino);
		return r ? r : deliver(a, &row);
	case CFS_TABLE_SYMLINK:
		if (!rds_is_bytes(v))
			return 0;
		row.symlink.target = v->str;
		row.symlink.len = v->len;
		return deliver(a, &row);
	case CFS_TABLE_CHUNK:
		return deliver_records(a, k, v);
	case CFS_TABLE_EDGE:
		return deliver_dir(a, k, v);
	case CFS_TABLE_SUSTAINED:
		return deliver_members(a, k, v);
	default:
		return deliver_hash(a, k, v);
	}
}

/* ---- one page of keys, with their values ---- */

static const struct {
	const char *name, *command;
	unsigned page; /* keys whose values are read as one batch */
} sources[] = {
	[CFS_TABLE_NODE] = {"i", "GET", 4096},
	[CFS_TABLE_CHUNK] = {"c", "LRANGE", 256},
	[CFS_TABLE_REF] = {"c", "LRANGE", 256},
	[CFS_TABLE_SUSTAINED] = {"session", "SMEMBERS", 64},
	[CFS_TABLE_SYMLINK] = {"s", "GET", 512},
	[CFS_TABLE_XATTR] = {"x", "HGETALL", 64},
	[CFS_TABLE_PARENT] = {"p", "HGETALL", 1024},
	[CFS_TABLE_EDGE] = {"d", "HSCAN", 32},
};

static void ask_value(struct scan *a, size_t k)
{
	const char *name = sources[a->table].name, *command = sources[a->table].command;

	if (strcmp(command, "LRANGE") == 0)
		rds_command(&a->values, "scss", command, a->keys[k].n, (uint32_t)a->keys[k].indx,
			    "0", "-1");
	else if (strcmp(command, "HSCAN") == 0)
		rds_command(&a->values, "sksss", command, name, a->keys[k].n, "0", "COUNT", "512");
	else
		rds_command(&a->values, "sk", command, name, a->keys[k].n);
}

static int page_of_keys(struct scan *a, const struct cfs_ctx *ctx, struct cfs_scan_pos *pos,
			int (*deliver_one)(struct scan *a, size_t k, const redisReply *v))
{
	const size_t page = sources[a->table].page;
	struct rds_cursor cursor = cursor_at(pos);
	size_t i, k;
	int r;

	a->n_keys = 0;
	r = rds_scan_keys(a->e, ctx, sources[a->table].name, &cursor, note_key, a);
	for (i = 0; i < a->n_keys && !r; i += page) {
		struct cfs_ctx own = rds_page_ctx();
		const size_t n = CFS_MIN(page, a->n_keys - i);

		rds_reset(&a->values);
		for (k = 0; k < n; k++)
			ask_value(a, i + k);
		r = rds_run(&a->values, &own, CFS_META_OP_other);
		for (k = 0; k < n && !r; k++)
			r = deliver_one(a, i + k, a->values.reply[k]);
	}
	if (!r)
		keep_cursor(pos, &cursor);
	return r;
}

/* ---- one page of a hash or sorted set ---- */

static int page_of_fields(struct scan *a, const struct cfs_ctx *ctx, struct cfs_scan_pos *pos,
			  const char *command, const char *key,
			  int (*deliver_one)(struct scan *a, const redisReply *f,
					     const redisReply *v))
{
	struct rds_cursor cursor = cursor_at(pos);
	const redisReply *page;
	RDS_REQUEST(q, a->e);
	size_t i;
	int r = rds_page(&q, ctx, CFS_META_OP_other, &cursor, 4096, NULL, &page, "sK", command,
			 key);

	for (i = 0; !r && i + 1 < page->elements; i += 2)
		r = deliver_one(a, page->element[i], page->element[i + 1]);
	if (!r)
		keep_cursor(pos, &cursor);
	return r;
}

static int deliver_delfile(struct scan *a, const redisReply *f, const redisReply *v)
{
	struct cfs_row row = {.deleted.when_s = rds_int(v)};
	size_t used;

	if (!rds_number(f->str, f->len, &row.ino, &used) || f->str[used] != ':')
		return 0;
	row.deleted.length = strtoull(f->str + used + 1, NULL, 10);
	return deliver(a, &row);
}

static int deliver_detached(struct scan *a, const redisReply *f, const redisReply *v)
{
	const struct cfs_row row = {.ino = strtoull(f->str, NULL, 10), .added_s = rds_int(v)};

	return deliver(a, &row);
}

static int deliver_acl(struct scan *a, const redisReply *f, const redisReply *v)
{
	const struct cfs_row row = {
		.acl = {.id = (uint32_t)rds_int(f), .rule = v->str, .len = v->len},
	};

	return deliver(a, &row);
}

static int deliver_ref(struct scan *a, const redisReply *f, const redisReply *v)
{
	struct cfs_row row = {.ref.refs = rds_int(v) + 1};

	if (!rds_parse_ref(f->str, f->len, &row.ref.id, &row.ref.size))
		return 0;
	return deliver(a, &row);
}

static int deliver_delayed(struct scan *a, const redisReply *f, const redisReply *v)
{
	const char *bar = strchr(f->str, '_');
	struct cfs_row row = {.list.damaged = v->len % PAIR_BYTES};
	size_t i, n = row.list.damaged ? 0 : v->len / PAIR_BYTES;
	struct cfs_slice *list = calloc(n ? n : 1, sizeof(*list));
	int r;

	if (!list)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		list[i].id = cfs_get_be64(v->str + i * PAIR_BYTES);
		list[i].size = cfs_get_be32(v->str + i * PAIR_BYTES + 8);
	}
	row.list.slices = list;
	row.list.n = n;
	row.list.deleted_s = bar ? strtoll(bar + 1, NULL, 10) : 0;
	r = deliver(a, &row);
	free(list);
	return r;
}

/* Reads length and space of the directories in a page of dirUsedInodes. */
static int ask_stats(struct rds_request *q, const struct cfs_ctx *ctx, const redisReply *page)
{
	static const char *const keys[] = {"dirDataLength", "dirUsedSpace"};
	size_t i, k;

	for (k = 0; k < CFS_ARRAY_SIZE(keys); k++) {
		rds_command_begin(q, 2 + page->elements / 2);
		rds_words(q, "sK", "HMGET", keys[k]);
		for (i = 0; i + 1 < page->elements; i += 2)
			rds_words(q, "b", page->element[i]->str, page->element[i]->len);
	}
	return rds_run(q, ctx, CFS_META_OP_other);
}

static int page_of_stats(struct scan *a, const struct cfs_ctx *ctx, struct cfs_scan_pos *pos)
{
	RDS_REQUEST(q, a->e);
	RDS_REQUEST(more, a->e);
	struct rds_cursor cursor = cursor_at(pos);
	const redisReply *page;
	size_t i;
	int r = rds_page(&q, ctx, CFS_META_OP_other, &cursor, 4096, NULL, &page, "sK", "HSCAN",
			 "dirUsedInodes");

	if (!r && page->elements)
		r = ask_stats(&more, ctx, page);
	for (i = 0; !r && i + 1 < page->elements; i += 2) {
		const struct cfs_row row = {
			.ino = strtoull(page->element[i]->str, NULL, 10),
			.stat = {.length = rds_int(rds_element(more.reply[0], i / 2)),
				 .space = rds_int(rds_element(more.reply[1], i / 2)),
				 .inodes = rds_int(page->element[i + 1])},
		};

		r = deliver(a, &row);
	}
	if (!r)
		keep_cursor(pos, &cursor);
	return r;
}

static int deliver_counters(struct scan *a, const struct cfs_ctx *ctx)
{
	static const char *const names[] = {
		"nextInode",
		"nextChunk",
		"nextSession",
		"nextTrash",
		"usedSpace",
		"totalInodes",
		"nextCleanupSlices",
		"lastCleanupSessions",
		"lastCleanupFiles",
		"lastCleanupTrash",
		"lastCleanupChangelog",
	};
	RDS_REQUEST(q, a->e);
	int64_t shift;
	size_t i;
	int r;

	for (i = 0; i < CFS_ARRAY_SIZE(names); i++)
		rds_command(&q, "sK", "GET", rds_counter_key(names[i], &shift));
	r = rds_run(&q, ctx, CFS_META_OP_other);
	for (i = 0; i < CFS_ARRAY_SIZE(names) && !r; i++) {
		struct cfs_row row = {.counter.name = names[i]};

		rds_counter_key(names[i], &shift);
		row.counter.value = rds_int(q.reply[i]) + shift;
		if (!rds_is_nil(q.reply[i]) || shift)
			r = deliver(a, &row);
	}
	return r;
}

/* ---- references: the stored counts; slices with one reference have none ---- */

/* Delivers the collected slices that have one reference. */
static int deliver_single(struct scan *a)
{
	const size_t n = a->pairs.len / PAIR_BYTES;
	const uint8_t *pairs = a->pairs.p;
	struct cfs_ctx ctx = rds_page_ctx();
	RDS_REQUEST(q, a->e);
	char field[48];
	size_t i;
	int r;

	if (!n || a->pairs.failed)
		return a->pairs.failed ? -ENOMEM : 0;
	a->pairs.len = 0;
	rds_command_begin(&q, 2 + n);
	rds_words(&q, "sK", "HMGET", "sliceRef");
	for (i = 0; i < n; i++) {
		snprintf(field, sizeof(field), "k%" PRIu64 "_%u",
			 cfs_get_be64(pairs + i * PAIR_BYTES),
			 cfs_get_be32(pairs + i * PAIR_BYTES + 8));
		rds_words(&q, "s", field);
	}
	r = rds_run(&q, &ctx, CFS_META_OP_other);
	for (i = 0; i < n && !r; i++) {
		const struct cfs_row row = {
			.ref = {.id = cfs_get_be64(pairs + i * PAIR_BYTES),
				.size = cfs_get_be32(pairs + i * PAIR_BYTES + 8),
				.refs = 1},
		};

		if (rds_is_nil(rds_element(q.reply[0], i)))
			r = deliver(a, &row);
	}
	return r;
}

static int deliver_refs_of_list(struct scan *a, size_t k, const redisReply *list)
{
	size_t i;

	for (i = 0; i < list->elements; i++) {
		const char *record = list->element[i]->str;

		if (list->element[i]->len == CFS_SLICE_BYTES && cfs_get_be64(record + 4))
			rds_bytes_add(&a->pairs, record + 4, PAIR_BYTES);
	}
	return a->pairs.len > PAIRS_MAX ? deliver_single(a) : 0;
}

static int deliver_refs_of_delayed(struct scan *a, const redisReply *f, const redisReply *v)
{
	rds_bytes_add(&a->pairs, v->str, v->len - v->len % PAIR_BYTES);
	return a->pairs.len > PAIRS_MAX ? deliver_single(a) : 0;
}

enum { COUNTED, IN_LISTS, IN_DELAYED, PHASES };

static int page_of_refs(struct scan *a, const struct cfs_ctx *ctx, struct cfs_scan_pos *pos)
{
	int r;

	switch (pos->b >> 1) {
	case COUNTED:
		return page_of_fields(a, ctx, pos, "HSCAN", "sliceRef", deliver_ref);
	case IN_LISTS:
		r = page_of_keys(a, ctx, pos, deliver_refs_of_list);
		break;
	default:
		r = page_of_fields(a, ctx, pos, "HSCAN", "delSlices", deliver_refs_of_delayed);
	}
	return r ? r : deliver_single(a);
}

static int page(struct scan *a, const struct cfs_ctx *ctx, struct cfs_scan_pos *pos)
{
	switch (a->table) {
	case CFS_TABLE_REF:
		return page_of_refs(a, ctx, pos);
	case CFS_TABLE_DELAYED:
		return page_of_fields(a, ctx, pos, "HSCAN", "delSlices", deliver_delayed);
	case CFS_TABLE_DELFILE:
		return page_of_fields(a, ctx, pos, "ZSCAN", "delfiles", deliver_delfile);
	case CFS_TABLE_DETACHED:
		return page_of_fields(a, ctx, pos, "ZSCAN", "detachedNodes", deliver_detached);
	case CFS_TABLE_DIR_STAT:
		return page_of_stats(a, ctx, pos);
	case CFS_TABLE_ACL:
		return page_of_fields(a, ctx, pos, "HSCAN", "acl", deliver_acl);
	case CFS_TABLE_COUNTER:
		return deliver_counters(a, ctx);
	default:
		return page_of_keys(a, ctx, pos, deliver_value);
	}
}

int rds_op_scan(struct cfs_engine *e, const struct cfs_ctx *ctx, enum cfs_meta_table table,
		struct cfs_scan_pos *pos, cfs_row_fn fn, void *arg)
{
	struct scan a = {.e = e, .values.r = rds_of(e), .table = table, .fn = fn, .arg = arg};
	int r = page(&a, ctx, pos);

	rds_end(&a.values);
	free(a.keys);
	free(a.pairs.p);
	if (a.stopped)
		return a.stopped;
	if (r < 0 || pos->a)
		return r;
	/* This phase is complete; only a scan of references has more. */
	if (table != CFS_TABLE_REF)
		return 1;
	*pos = (struct cfs_scan_pos){.b = pos->b + 2};
	return pos->b >> 1 == PHASES;
}
