/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of single inodes and counts. Several commands read the data; a repair is written only if
 * the data is unchanged (optimistic check).
 *
 * The parent field of the inode, or its hash of parents, leads to its names. When these do not
 * explain the link count, all directories are searched.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "meta/redis/ops.h"

enum { MAX_NAMES = 1024, ATTEMPTS = 8 };

struct found_name {
	cfs_ino_t parent;
	uint8_t type, len;
	char name[CFS_NAME_MAX];
};

struct check {
	struct cfs_engine *e;
	const struct cfs_ctx *ctx;
	cfs_ino_t ino;
	unsigned repair;
	/* of one attempt */
	struct cfs_check c;
	struct cfs_usage usage;
	bool exists;
	uint8_t record[CFS_ATTR_BYTES_MAX + 8];
	size_t record_len;
	struct found_name *names;
	size_t n_names;
	bool types_differ;
	int64_t entries, subdirs; /* of a directory */
	struct rds_apply fix;
};

/* ---- names of an inode ---- */

struct name_search {
	struct cfs_engine *e;
	cfs_ino_t ino;
	cfs_engine_parent_fn fn;
	void *arg;
};

static int match_entry(void *arg, cfs_ino_t dir, const redisReply *name, const redisReply *value)
{
	const struct name_search *s = arg;
	cfs_ino_t ino;
	uint8_t type;

	if (rds_entry_decode(value->str, value->len, &type, &ino) || ino != s->ino)
		return 0;
	return s->fn(s->arg, dir, name->str, name->len);
}

/* The parent directories recorded at the inode, and whether it has one name only. */
static int parents_of(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		      cfs_ino_t **ret, size_t *ret_n, bool *ret_single)
{
	RDS_REQUEST(q, e);
	struct cfs_attr attr;
	cfs_ino_t *v = NULL;
	size_t i, n = 0;
	int r;

	rds_command(&q, "sk", "GET", "i", ino);
	rds_command(&q, "sk", "HGETALL", "p", ino);
	r = rds_run(&q, ctx, CFS_META_OP_other);
	if (!r)
		r = rds_attr_reply(q.reply[0], &attr);
	if (!r) {
		v = calloc(1 + q.reply[1]->elements / 2, sizeof(*v));
		r = v ? 0 : -ENOMEM;
	}
	if (!r && attr.parent)
		v[n++] = attr.parent;
	if (!r)
		*ret_single = attr.parent && (attr.nlink == 1 || attr.type == CFS_TYPE_DIR);
	for (i = 0; !r && !attr.parent && i + 1 < q.reply[1]->elements; i += 2)
		if (rds_int(q.reply[1]->element[i + 1]) > 0)
			v[n++] = strtoull(q.reply[1]->element[i]->str, NULL, 10);
	*ret = v;
	*ret_n = n;
	return r;
}

static int each_name(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, bool cached,
		     cfs_engine_parent_fn fn, void *arg)
{
	struct name_search s = {.e = e, .ino = ino, .fn = fn, .arg = arg};
	cfs_ino_t *dirs = NULL;
	char name[CFS_NAME_MAX];
	size_t i, n = 0, len;
	bool single = false;
	int r = parents_of(e, ctx, ino, &dirs, &n, &single);

	if (!r && single && cached) {
		r = rds_inode_name(e, ctx, dirs[0], ino, name, &len);
		if (r > 0)
			r = fn(arg, dirs[0], name, len);
		n = 0;
	}
	for (i = 0; i < n && !r; i++)
		r = rds_each_entry(e, dirs[i], (struct rds_cursor){0}, match_entry, &s);
	free(dirs);
	return r == -ENOENT ? 0 : r;
}

int rds_op_each_parent(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       cfs_engine_parent_fn fn, void *arg)
{
	return each_name(e, ctx, ino, !atomic_load(&e->host->opens), fn, arg);
}

static int note_name(void *arg, cfs_ino_t parent, const char *name, size_t len)
{
	struct check *a = arg;
	struct found_name *f;

	if (a->n_names == MAX_NAMES || len > CFS_NAME_MAX)
		return a->n_names == MAX_NAMES ? -EMLINK : 0;
	f = &a->names[a->n_names++];
	f->parent = parent;
	f->len = (uint8_t)len;
	memcpy(f->name, name, len);
	return 0;
}

static int search_everywhere(struct check *a)
{
	struct name_search s = {.e = a->e, .ino = a->ino, .fn = note_name, .arg = a};
	struct rds_numbers d = {0};
	struct rds_cursor cursor = {0};
	size_t i;
	int r;

	a->n_names = 0;
	do {
		struct cfs_ctx ctx = rds_page_ctx();

		d.n = 0;
		r = rds_scan_keys(a->e, &ctx, "d", &cursor, rds_note_key, &d);
		for (i = 0; i < d.n && !r; i++)
			r = rds_each_entry(a->e, d.v[i], (struct rds_cursor){0}, match_entry, &s);
	} while (!r && cursor.at);
	free(d.v);
	return r;
}

/* SCAN and HSCAN may return an entry twice. */
static void drop_duplicates(struct check *a)
{
	size_t i, k, n = 0;

	for (i = 0; i < a->n_names; i++) {
		for (k = 0; k < n; k++)
			if (a->names[k].parent == a->names[i].parent &&
			    a->names[k].len == a->names[i].len &&
			    !memcmp(a->names[k].name, a->names[i].name, a->names[i].len))
				break;
		if (k == n)
			a->names[n++] = a->names[i];
	}
	a->n_names = n;
}

static int read_types(struct check *a)
{
	RDS_REQUEST(q, a->e);
	size_t i;
	int r;

	if (!a->n_names)
		return 0;
	for (i = 0; i < a->n_names; i++)
		rds_command(&q, "skb", "HGET", "d", a->names[i].parent, a->names[i].name,
			    (size_t)a->names[i].len);
	r = rds_run(&q, a->ctx, CFS_META_OP_other);
	for (i = 0; i < a->n_names && !r; i++) {
		const uint8_t type = rds_is_bytes(q.reply[i]) && q.reply[i]->len
					     ? (uint8_t)q.reply[i]->str[0]
					     : 0;

		a->names[i].type = type;
		a->types_differ |= type != (a->exists ? a->c.attr.type : a->names[0].type);
	}
	return r;
}

static int read_names(struct check *a)
{
	const bool is_dir = a->c.attr.type == CFS_TYPE_DIR;
	int r = 0;

	if (a->ino == CFS_ROOT_INO || a->ino == CFS_TRASH_INO)
		return 0;
	if (a->exists)
		r = each_name(a->e, a->ctx, a->ino, false, note_name, a);
	if (!r && (!a->n_names || a->n_names != (is_dir ? 1 : a->c.attr.nlink)))
		r = search_everywhere(a);
	if (!r)
		drop_duplicates(a);
	if (!r)
		r = read_types(a);
	a->c.names = (uint32_t)a->n_names;
	return r;
}

/* ---- the entries of a directory ---- */

static int count_entry(void *arg, cfs_ino_t dir, const redisReply *name, const redisReply *value)
{
	struct check *a = arg;

	a->entries++;
	a->subdirs += value->len && value->str[0] == CFS_TYPE_DIR;
	return 0;
}

enum { SUM_PAGE = 1000 };

struct sum {
	struct check *a;
	struct rds_request q;
	cfs_ino_t ino[SUM_PAGE]; /* of each command in q */
};

static int flush_sum(struct sum *s)
{
	struct cfs_ctx ctx = rds_page_ctx();
	struct cfs_dir_stat *want = &s->a->c.want;
	struct cfs_attr attr;
	size_t i;
	int r;

	if (!s->q.n)
		return 0;
	r = rds_run(&s->q, &ctx, CFS_META_OP_other);
	for (i = 0; i < s->q.n && !r; i++) {
		if (rds_is_nil(s->q.reply[i]))
			continue;
		r = rds_attr_reply(s->q.reply[i], &attr);
		if (r)
			break;
		want->inodes++;
		want->length += cfs_length_of(&attr);
		want->space += cfs_weight_of(&attr);
		s->a->c.mark += cfs_mark_of(s->ino[i], &attr);
	}
	rds_reset(&s->q);
	return r;
}

static int sum_entry(void *arg, cfs_ino_t dir, const redisReply *name, const redisReply *value)
{
	struct sum *s = arg;
	cfs_ino_t ino;
	uint8_t type;

	if (rds_entry_decode(value->str, value->len, &type, &ino))
		return 0;
	s->ino[s->q.n] = ino;
	rds_command(&s->q, "sk", "GET", "i", ino);
	return s->q.n == SUM_PAGE ? flush_sum(s) : 0;
}

static int sum_entries(struct check *a)
{
	struct sum s = {.a = a, .q.r = rds_of(a->e)};
	int r = rds_each_entry(a->e, a->ino, (struct rds_cursor){0}, sum_entry, &s);

	if (!r)
		r = flush_sum(&s);
	rds_end(&s.q);
	return r;
}

/* ---- checks ---- */

static bool wanted(struct check *a, enum cfs_damage damage)
{
	return cfs_check_note(&a->c, a->repair, damage);
}

static int is_there(struct check *a, const char *command, const char *key)
{
	RDS_REQUEST(q, a->e);
	int r = rds_ask(&q, a->ctx, CFS_META_OP_other, "sKu", command, key, a->ino);

	if (!r)
		r = !rds_is_nil(q.reply[0]);
	return r;
}

static int has_xattrs(struct check *a)
{
	RDS_REQUEST(q, a->e);
	int r = rds_ask(&q, a->ctx, CFS_META_OP_other, "sk", "EXISTS", "x", a->ino);

	if (!r)
		r = rds_int(q.reply[0]) > 0;
	return r;
}

static void number_is(struct check *a, const char *hash, int64_t have)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRId64, have);
	rds_apply_if(&a->fix, text, strlen(text), "sKu", "HGET", hash, a->ino);
}

static int make_stat(struct check *a)
{
	int64_t entries = 0;
	RDS_REQUEST(q, a->e);
	int r = rds_ask(&q, a->ctx, CFS_META_OP_other, "sk", "HLEN", "d", a->ino);

	if (!r)
		entries = rds_int(q.reply[0]);
	if (r || entries > CFS_CHECK_ENTRIES)
		return r;
	a->c.repaired |= CFS_CHECK_NO_STAT;
	/* Does not overwrite statistics that another client has created. */
	rds_apply_if(&a->fix, "", 0, "sKu", "HGET", "dirUsedInodes", a->ino);
	return sum_entries(a);
}

static int check_stat(struct check *a)
{
	const struct cfs_dir_stat *have = &a->c.stat;
	int r;

	if (!cfs_host_dir_stats(a->e->host))
		return 0;
	r = rds_op_get_dir_stat(a->e, a->ctx, a->ino, &a->c.stat);
	if (r == -ENODATA)
		return a->repair & CFS_CHECK_NO_STAT ? make_stat(a) : 0;
	if (r)
		return r;
	r = sum_entries(a);
	if (r)
		return r;
	if (cfs_check_stat(&a->c, a->repair)) {
		number_is(a, "dirDataLength", have->length);
		number_is(a, "dirUsedSpace", have->space);
		number_is(a, "dirUsedInodes", have->inodes);
	}
	return 0;
}

static void write_stat(struct check *a)
{
	if (!(a->c.repaired & (CFS_DAMAGE_STAT | CFS_DAMAGE_LENGTH | CFS_CHECK_NO_STAT)))
		return;
	rds_apply_do(&a->fix, "sKui", "HSET", "dirDataLength", a->ino, a->c.want.length);
	rds_apply_do(&a->fix, "sKui", "HSET", "dirUsedSpace", a->ino, a->c.want.space);
	rds_apply_do(&a->fix, "sKui", "HSET", "dirUsedInodes", a->ino, a->c.want.inodes);
}

struct holders {
	cfs_ino_t ino;
	bool found;
};

static int note_session(void *arg, const struct cfs_row *row)
{
	struct holders *h = arg;

	h->found |= row->ino == h->ino;
	return 0;
}

static int is_sustained(struct check *a)
{
	struct holders h = {.ino = a->ino};
	struct cfs_scan_pos pos = {0};
	int r;

	do {
		struct cfs_ctx ctx = rds_page_ctx();

		r = rds_op_scan(a->e, &ctx, CFS_TABLE_SUSTAINED, &pos, note_session, &h);
	} while (!r && !h.found);
	return r < 0 ? r : h.found;
}

/* An orphan has no name, is not open in any session, and is not part of a clone in progress. */
static int check_orphan(struct check *a)
{
	const struct cfs_attr *attr = &a->c.attr;
	int r = is_sustained(a);

	if (r == 0)
		r = is_there(a, "ZSCORE", "detachedNodes");
	if (r)
		return r < 0 ? r : 0;
	if (attr->nlink || attr->type == CFS_TYPE_DIR)
		a->c.damage |= CFS_DAMAGE_ORPHAN;
	else
		wanted(a, CFS_DAMAGE_ORPHAN);
	return 0;
}

/* The inode is missing, but other keys refer to it. */
static int check_missing(struct check *a, struct rds_bytes *chunks)
{
	uint64_t length;
	int r;

	if (a->c.names) {
		a->c.nlink = 2 + (uint32_t)a->subdirs;
		a->c.parent = a->names[0].parent;
		wanted(a, CFS_DAMAGE_NAME);
		return 0;
	}
	if (a->entries)
		a->c.damage |= CFS_DAMAGE_LOST;
	r = has_xattrs(a);
	if (r < 0)
		return r;
	if (r)
		wanted(a, CFS_DAMAGE_XATTR);
	r = rds_find_chunks(a->e, a->ctx, a->ino, chunks);
	if (r || !chunks->len)
		return r;
	r = rds_find_delfile(a->e, a->ctx, a->ino, &length);
	if (r == -ENOENT) {
		wanted(a, CFS_DAMAGE_DATA);
		r = 0;
	}
	return r;
}

/* ---- repairs ---- */

static void write_names(struct check *a)
{
	uint8_t entry[9];
	size_t i;

	rds_entry_encode(a->c.attr.type, a->ino, entry);
	for (i = 0; i < a->n_names; i++) {
		const struct found_name *f = &a->names[i];

		if (a->c.repaired & CFS_DAMAGE_TYPE)
			rds_apply_do(&a->fix, "skbb", "HSET", "d", f->parent, f->name,
				     (size_t)f->len, entry, sizeof(entry));
		else if (a->names[0].type != CFS_TYPE_DIR)
			rds_apply_do(&a->fix, "skb", "HDEL", "d", f->parent, f->name,
				     (size_t)f->len);
	}
}

static void make_directory(struct check *a)
{
	struct cfs_attr attr = cfs_rules_directory(a->ctx, 0755, a->names[0].parent);
	uint8_t record[CFS_ATTR_BYTES_MAX];

	attr.nlink = a->c.nlink;
	rds_apply_do(&a->fix, "skb", "SET", "i", a->ino, record, cfs_attr_encode(&attr, record));
	cfs_usage_inode(&a->usage, &attr, 1);
	cfs_usage_entry(&a->usage, a->names[0].parent, &attr, 1);
}

static void write_node(struct check *a)
{
	const struct cfs_attr now = cfs_check_repaired(&a->c);
	uint8_t record[CFS_ATTR_BYTES_MAX];

	rds_apply_do(&a->fix, "skb", "SET", "i", a->ino, record, cfs_attr_encode(&now, record));
}

/* Records the data for deletion by the background jobs. length: at least so much. */
static void delete_data(struct check *a, const struct rds_bytes *chunks, uint64_t length)
{
	char member[48];

	if (!chunks->len)
		return;
	length = CFS_MAX(length, (uint64_t)(cfs_get_be32(chunks->p + chunks->len - 4) + 1)
					 << CFS_CHUNK_BITS);
	snprintf(member, sizeof(member), "%" PRIu64 ":%" PRIu64, a->ino, length);
	rds_apply_do(&a->fix, "sKis", "ZADD", "delfiles", (int64_t)a->ctx->now.tv_sec, member);
}

/* Deletes a file without a name in the same way as unlink of a last name. */
static void remove_orphan(struct check *a, const struct rds_bytes *chunks)
{
	rds_apply_do(&a->fix, "skkkk", "DEL", "i", a->ino, "x", a->ino, "p", a->ino, "s", a->ino);
	cfs_usage_inode(&a->usage, &a->c.attr, -1);
	delete_data(a, chunks, a->c.attr.length);
}

static void write_usage(struct check *a)
{
	unsigned i;

	if (a->usage.space)
		rds_apply_do(&a->fix, "sKi", "INCRBY", "usedSpace", a->usage.space);
	if (a->usage.inodes)
		rds_apply_do(&a->fix, "sKi", "INCRBY", "totalInodes", a->usage.inodes);
	for (i = 0; i < a->usage.n_dirs && cfs_host_dir_stats(a->e->host); i++) {
		const struct cfs_usage_dir *d = &a->usage.dirs[i];

		rds_apply_do(&a->fix, "sKui", "HINCRBY", "dirUsedSpace", d->dir, d->space);
		rds_apply_do(&a->fix, "sKui", "HINCRBY", "dirUsedInodes", d->dir, d->inodes);
	}
}

static int repair(struct check *a, struct rds_bytes *chunks)
{
	int r = 0;

	if (a->c.repaired & (CFS_DAMAGE_ORPHAN | CFS_DAMAGE_DATA)) {
		r = rds_find_chunks(a->e, a->ctx, a->ino, chunks);
		if (r)
			return r;
	}
	if (a->c.repaired & (CFS_DAMAGE_NLINK | CFS_DAMAGE_PARENT))
		write_node(a);
	if (a->c.repaired & CFS_DAMAGE_TYPE)
		write_names(a);
	if ((a->c.repaired & CFS_DAMAGE_NAME) && a->names[0].type == CFS_TYPE_DIR)
		make_directory(a);
	else if (a->c.repaired & CFS_DAMAGE_NAME)
		write_names(a);
	if (a->c.repaired & CFS_DAMAGE_ORPHAN)
		remove_orphan(a, chunks);
	if (a->c.repaired & CFS_DAMAGE_DATA)
		delete_data(a, chunks, 0);
	if (a->c.repaired & CFS_DAMAGE_XATTR)
		rds_apply_do(&a->fix, "sk", "DEL", "x", a->ino);
	write_stat(a);
	write_usage(a);
	return rds_apply_run(&a->fix, a->e, a->ctx, CFS_META_OP_other);
}

static int read_node(struct check *a)
{
	RDS_REQUEST(q, a->e);
	int r = rds_ask(&q, a->ctx, CFS_META_OP_other, "sk", "GET", "i", a->ino);

	if (!r)
		r = rds_attr_reply(q.reply[0], &a->c.attr);
	a->exists = r == 0;
	if (!r && q.reply[0]->len <= sizeof(a->record)) {
		a->record_len = q.reply[0]->len;
		memcpy(a->record, q.reply[0]->str, a->record_len);
	}
	return r == -ENOENT ? 0 : r;
}

static int check_once(struct check *a)
{
	struct rds_bytes chunks = {0};
	char text[32];
	int r = read_node(a);

	a->fix = (struct rds_apply){.words.r = rds_of(a->e)};
	if (!r)
		r = read_names(a);
	if (!r)
		r = rds_each_entry(a->e, a->ino, (struct rds_cursor){0}, count_entry, a);
	rds_apply_if(&a->fix, a->record, a->record_len, "sk", "GET", "i", a->ino);
	snprintf(text, sizeof(text), "%" PRId64, a->entries);
	rds_apply_if(&a->fix, text, strlen(text), "sk", "HLEN", "d", a->ino);
	if (!r && !a->exists)
		r = check_missing(a, &chunks);
	else if (!r && (a->c.names || a->ino == CFS_ROOT_INO || a->ino == CFS_TRASH_INO))
		cfs_check_names(&a->c, a->repair, a->ino, (uint32_t)a->subdirs,
				a->n_names ? a->names[0].parent : 0, a->types_differ);
	else if (!r)
		r = check_orphan(a);
	if (!r && a->exists && a->c.attr.type == CFS_TYPE_DIR)
		r = check_stat(a);
	if (!r && a->c.repaired)
		r = repair(a, &chunks);
	rds_end(&a->fix.words);
	free(chunks.p);
	return r;
}

int rds_op_check_inode(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       unsigned repair, struct cfs_check *ret, struct cfs_usage *ret_usage)
{
	struct check a = {0};
	struct found_name *names = calloc(MAX_NAMES, sizeof(*names));
	unsigned i = 0;
	int r;

	if (!names)
		return -ENOMEM;
	do {
		a = (struct check){
			.e = e, .ctx = ctx, .ino = ino, .repair = repair, .names = names};
		r = check_once(&a);
	} while (r == -EBUSY && ++i < ATTEMPTS);
	free(names);
	if (r)
		return r;
	*ret = a.c;
	*ret_usage = a.usage;
	return 0;
}

/* ---- sums and counts ---- */

static int add_node(void *arg, const struct cfs_row *row)
{
	struct cfs_sums *s = arg;

	if (row->ino == CFS_ROOT_INO || row->ino == CFS_TRASH_INO)
		return 0;
	s->inodes++;
	s->space += cfs_weight_of(&row->attr);
	s->mark += cfs_mark_of(row->ino, &row->attr);
	return 0;
}

/*
 * Redis has no snapshot of all keys. While the counters change, or when SCAN has returned a key
 * twice, each call returns a different mark, which tells the caller that the sums are not reliable.
 */
int rds_op_check_usage(struct cfs_engine *e, const struct cfs_ctx *ctx, struct cfs_sums *ret)
{
	struct cfs_scan_pos pos = {0};
	struct cfs_sums s = {0};
	int64_t space = 0, inodes = 0;
	int r = rds_op_get_counters(e, ctx, &space, &inodes);

	while (!r) {
		struct cfs_ctx own = rds_page_ctx();

		r = rds_op_scan(e, &own, CFS_TABLE_NODE, &pos, add_node, &s);
	}
	if (r == 1) {
		struct cfs_ctx own = rds_page_ctx();

		r = rds_op_get_counters(e, &own, &s.counted_space, &s.counted_inodes);
	}
	if (r)
		return r;
	if (space != s.counted_space || inodes != s.counted_inodes)
		s.mark = cfs_random_u64();
	*ret = s;
	return 0;
}

int rds_op_fix_refs(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t id, uint32_t size,
		    int64_t have, int64_t want)
{
	return rds_change(e, ctx, CFS_META_OP_other, &rds_fix_refs_lua, "uuii", id, (uint64_t)size,
			  have, want);
}
