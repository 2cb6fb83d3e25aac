/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimistic path of creation and removal, with cached attributes (meta/engine/optimistic.h).
 * This client applies the rules to the cached attributes. The script compares the stored record
 * with them, byte by byte, and changes nothing when they differ. This costs the server half the
 * time of a script that reads records, applies the rules and returns records. Unusual cases take
 * the general path.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "meta/redis/ops.h"

/* ---- filling the cache ---- */

/* A record of another client may be encoded differently, and would never equal the expected one. */
static bool is_as_encoded(const redisReply *record, const struct cfs_attr *attr)
{
	uint8_t same[CFS_ATTR_BYTES_MAX];

	return cfs_attr_encode(attr, same) == record->len &&
	       memcmp(same, record->str, record->len) == 0;
}

void rds_cache_attr(struct rds *r, cfs_ino_t ino, const redisReply *record,
		    const struct cfs_attr *attr)
{
	bool usable = is_as_encoded(record, attr);

	if (attr->type == CFS_TYPE_DIR && usable)
		cfs_optimistic_dir_remember(&r->optimistic, ino, attr);
	else if (attr->type == CFS_TYPE_DIR)
		cfs_optimistic_dir_forget(&r->optimistic, ino);
	else if (usable)
		cfs_optimistic_file_changed(&r->optimistic, ino, attr);
	else
		cfs_optimistic_file_forget(&r->optimistic, ino);
}

void rds_cache_name(struct rds *r, cfs_ino_t parent, const char *name, size_t len,
		    const struct cfs_entry *entry, const redisReply *record)
{
	cfs_optimistic_file_remember(&r->optimistic, parent, name, len, entry);
	rds_cache_attr(r, entry->ino, record, &entry->attr);
}

/* ---- common parts of the scripts ---- */

/* The scripts write no changelog, and always write statistics. */
static bool may_try(struct cfs_engine *e, cfs_ino_t dir)
{
	return !cfs_host_changelog(e->host) && cfs_host_dir_stats(e->host) &&
	       !cfs_ino_is_trash(dir);
}

/* The part of a directory's record that the rules depend on: no times, link count and length. */
static size_t checked_part(const struct cfs_attr *dir, uint8_t out[CFS_ATTR_BYTES_MAX])
{
	enum { HEAD = 11, TAIL = 63 };
	size_t len = cfs_attr_encode(dir, out);

	memmove(out + HEAD, out + TAIL, len - TAIL);
	return HEAD + len - TAIL;
}

/* 1: done, *dir is the directory's record; 0: a record differs from the cached one. */
static int run(struct rds_request *q, const struct cfs_ctx *ctx, enum cfs_meta_op op, cfs_ino_t ino,
	       struct cfs_attr *dir)
{
	redisReply *a;
	int r = rds_script_run(q, ctx, op, &a);

	if (!r)
		cfs_optimistic_dir_forget(&q->r->optimistic, ino);
	if (r <= 0)
		return r;
	/* The answer is a number when an earlier attempt has run, whose answer was lost. */
	r = rds_is_bytes(a) ? rds_attr_reply(a, dir) : 0;
	return r ? r : 1;
}

/* ---- creation ---- */

int rds_mknod_optimistic(struct cfs_engine *e, const struct cfs_ctx *ctx,
			 const struct cfs_mknod *req, cfs_ino_t ino, struct cfs_attr *ret,
			 struct cfs_attr *ret_parent)
{
	uint8_t record[CFS_ATTR_BYTES_MAX], expected[CFS_ATTR_BYTES_MAX], entry[RDS_ENTRY_BYTES];
	bool link = req->type == CFS_TYPE_SYMLINK;
	struct rds *rds = rds_of(e);
	struct cfs_attr attr, dir;
	RDS_REQUEST(q, e);
	int r;

	/* mkdir also changes the record of the parent. */
	if (req->type == CFS_TYPE_DIR || !may_try(e, req->parent) ||
	    !cfs_optimistic_dir_known(&rds->optimistic, req->parent, &dir) ||
	    (dir.default_acl && !link) || cfs_rules_add_entry(ctx, req->parent, &dir))
		return 0;
	cfs_rules_new_inode(ctx, req, &dir, &attr);
	rds_entry_encode(attr.type, ino, entry);
	rds_script_begin(&q, ctx, &rds_mknod_optimistic_lua, link ? 7 : 6);
	rds_words(&q, "ububbb", req->parent, req->name, req->name_len, ino, entry, sizeof(entry),
		  record, cfs_attr_encode(&attr, record), expected, checked_part(&dir, expected));
	if (link)
		rds_words(&q, "b", req->target, req->target_len);
	r = run(&q, ctx, CFS_META_OP_mknod, req->parent, &dir);
	if (r <= 0)
		return r;
	*ret = attr;
	*ret_parent = dir;
	return 1;
}

/* ---- removal ---- */

struct removal {
	const struct cfs_engine_remove *req;
	struct cfs_entry victim;
	struct cfs_attr dir;
	uint8_t entry[RDS_ENTRY_BYTES], record[CFS_ATTR_BYTES_MAX], expected[CFS_ATTR_BYTES_MAX];
	size_t record_len, expected_len;
};

/* The outcome of the removal for the inode; CFS_REMOVED_NONE: not a simple case. */
static enum cfs_removal_outcome simple_outcome(struct cfs_engine *e, const struct cfs_ctx *ctx,
					       const struct removal *a)
{
	const struct cfs_attr *v = &a->victim.attr;

	if (v->nlink != 1 || cfs_rules_remove_entry(ctx, a->req->parent, &a->dir, v))
		return CFS_REMOVED_NONE;
	if (a->req->trash && !(v->flags & CFS_FLAG_SKIP_TRASH))
		return v->parent ? CFS_REMOVED_TRASHED : CFS_REMOVED_NONE;
	if (v->type != CFS_TYPE_FILE || cfs_host_is_open(e->host, a->victim.ino))
		return CFS_REMOVED_NONE;
	return CFS_REMOVED_DELETED;
}

static void put_removal(struct rds_request *q, const struct cfs_ctx *ctx, const struct removal *a,
			const struct rds_script *script, size_t words)
{
	rds_script_begin(q, ctx, script, 6 + words);
	rds_words(q, "ububbb", a->req->parent, a->req->name, a->req->name_len, a->victim.ino,
		  a->entry, sizeof(a->entry), a->record, a->record_len, a->expected,
		  a->expected_len);
}

static void put_delete(struct rds_request *q, const struct cfs_ctx *ctx, const struct removal *a)
{
	const struct cfs_attr *v = &a->victim.attr;
	char deleted[64];

	put_removal(q, ctx, a, &rds_delete_optimistic_lua, v->length ? 4 : 1);
	rds_words(q, "i", -cfs_weight_of(v));
	if (!v->length)
		return;
	snprintf(deleted, sizeof(deleted), "%" PRIu64 ":%" PRIu64, a->victim.ino, v->length);
	rds_words(q, "isi", -cfs_length_of(v), deleted, (int64_t)ctx->now.tv_sec);
}

static void put_trash(struct rds_request *q, const struct cfs_ctx *ctx, const struct removal *a,
		      const struct cfs_attr *after)
{
	const struct cfs_engine_remove *req = a->req;
	int64_t length = cfs_length_of(after), space = cfs_weight_of(after);
	uint8_t record[CFS_ATTR_BYTES_MAX];
	char name[CFS_NAME_MAX + 1];
	size_t len =
		cfs_rules_trash_name(req->parent, a->victim.ino, req->name, req->name_len, name);

	put_removal(q, ctx, a, &rds_trash_optimistic_lua, length ? 7 : 5);
	rds_words(q, "bubii", record, cfs_attr_encode(after, record), req->trash, name, len, -space,
		  space);
	if (length)
		rds_words(q, "ii", -length, length);
}

int rds_unlink_optimistic(struct cfs_engine *e, const struct cfs_ctx *ctx,
			  const struct cfs_engine_remove *req, struct cfs_removed *ret)
{
	struct rds *rds = rds_of(e);
	struct removal a = {.req = req};
	struct cfs_attr after;
	enum cfs_removal_outcome outcome;
	RDS_REQUEST(q, e);
	int r;

	if (!may_try(e, req->parent) ||
	    !cfs_optimistic_file_known(&rds->optimistic, req->parent, req->name, req->name_len,
				       &a.victim) ||
	    !cfs_optimistic_dir_known(&rds->optimistic, req->parent, &a.dir))
		return 0;
	outcome = simple_outcome(e, ctx, &a);
	if (outcome == CFS_REMOVED_NONE)
		return 0;
	after = a.victim.attr;
	rds_entry_encode(after.type, a.victim.ino, a.entry);
	a.record_len = cfs_attr_encode(&after, a.record);
	a.expected_len = checked_part(&a.dir, a.expected);
	if (outcome == CFS_REMOVED_TRASHED) {
		after.ctime = ctx->now;
		after.parent = req->trash;
		put_trash(&q, ctx, &a, &after);
	} else {
		put_delete(&q, ctx, &a);
	}
	r = run(&q, ctx, CFS_META_OP_unlink, req->parent, &a.dir);
	cfs_optimistic_file_forget(&rds->optimistic, a.victim.ino);
	if (r <= 0)
		return r;
	*ret = (struct cfs_removed){
		.outcome = outcome,
		.ino = a.victim.ino,
		.attr = after,
		.has_data = outcome == CFS_REMOVED_DELETED && after.length,
		.parent = a.dir,
	};
	if (ret->has_data)
		rds_deletions_add(rds, ret->ino, after.length);
	return 1;
}
