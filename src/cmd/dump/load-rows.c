/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/text/json.h"
#include "base/utf8.h"
#include "cmd/access/jsontext.h"
#include "cmd/dump/load.h"

/*
 * Slice ids that are skipped. A volume that stayed in use after its dump has given out further ids.
 * Blocks of those may be in disk caches, in caches of other members, and among blocks that
 * writeback has yet to upload. If the ids were reused, these blocks would pass for the new ones.
 */
#define SLICE_GAP (1LL << 32)
#define SLICE_END (1LL << 47) /* caches accept slice ids below twice that */

enum { BATCH_ROWS = 1024, BATCH_BYTES = 512 << 10 };

/* Buffered rows of one table, and the bytes that they point to. */
struct load_batch {
	size_t n, used;
	struct cfs_row rows[BATCH_ROWS];
	_Alignas(struct cfs_slice) uint8_t bytes[BATCH_BYTES];
};

int load_setting(struct load *l, char *text)
{
	json_t *j = cfs_json_load(text, strlen(text), NULL);
	bool trash;
	int r;

	free(l->setting);
	l->setting = text;
	if (!j || !json_is_string(json_object_get(j, "Name")) ||
	    !json_is_string(json_object_get(j, "UUID"))) {
		json_decref(j);
		snprintf(l->err, sizeof(l->err),
			 "this is not a dump of a volume: it has no setting");
		return -EBADMSG;
	}
	l->dir_stats = json_is_true(json_object_get(j, "DirStats"));
	l->owner_quotas = json_is_true(json_object_get(j, "UserGroupQuota"));
	trash = json_get_int(j, "TrashDays") > 0;
	json_decref(j);
	r = load_secrets(l, &l->setting);
	if (!r)
		r = cfs_meta_load_begin(l->meta, trash, l->restart, l->err);
	l->begun = r == 0;
	return r;
}

/*
 * The engine has refused the whole batch. Row by row, the first that it refuses is there twice; after
 * such a failure all rows are removed.
 */
static void say_twice(struct load *l, enum cfs_meta_table table, const struct load_batch *b)
{
	char name[CFS_NAME_MAX + 1] = "", shown[160];
	const struct cfs_row *row = b->rows;
	int r = 0;

	while (!r && row < b->rows + b->n)
		r = cfs_meta_put_rows(l->meta, table, row++, 1);
	row--;
	if (table == CFS_TABLE_EDGE && r == -EEXIST) {
		memcpy(name, row->edge.name, row->edge.name_len);
		snprintf(l->err, sizeof(l->err),
			 "the dump has a name twice in the directory with inode %" PRIu64 ": %s",
			 row->edge.parent, cfs_printable(name, shown, sizeof(shown)));
	} else if (r == -EEXIST && row->ino) {
		snprintf(l->err, sizeof(l->err), "the dump has a row twice: inode %" PRIu64,
			 row->ino);
	} else {
		snprintf(l->err, sizeof(l->err), "the dump has the same name or row twice");
	}
}

static int flush(struct load *l, enum cfs_meta_table table)
{
	struct load_batch *b = l->batches[table];
	int r;

	if (!b || !b->n)
		return 0;
	r = cfs_meta_put_rows(l->meta, table, b->rows, b->n);
	if (r == -EEXIST)
		say_twice(l, table, b);
	else if (r)
		snprintf(l->err, sizeof(l->err), "rows cannot be written: %s", strerror(-r));
	progress_add(&l->p, b->n);
	b->n = b->used = 0;
	return r;
}

/* The bytes of a row: address and length. */
static size_t payload(enum cfs_meta_table table, struct cfs_row *row, const void **p[2],
		      size_t len[2])
{
	len[0] = len[1] = 0;
	switch (table) {
	case CFS_TABLE_EDGE:
		p[0] = (const void **)&row->edge.name;
		len[0] = row->edge.name_len;
		return 1;
	case CFS_TABLE_CHUNK:
		p[0] = (const void **)&row->list.slices;
		len[0] = row->list.n * sizeof(struct cfs_slice);
		return 1;
	case CFS_TABLE_SYMLINK:
		p[0] = (const void **)&row->symlink.target;
		len[0] = row->symlink.len;
		return 1;
	case CFS_TABLE_XATTR:
		p[0] = (const void **)&row->xattr.name;
		len[0] = row->xattr.name_len;
		p[1] = &row->xattr.value;
		len[1] = row->xattr.value_len;
		return 2;
	case CFS_TABLE_ACL:
		p[0] = &row->acl.rule;
		len[0] = row->acl.len;
		return 1;
	default:
		return 0;
	}
}

static void raise_to(int64_t *counter, uint64_t v)
{
	if ((int64_t)v > *counter)
		*counter = (int64_t)v;
}

/* Raises counters that are older than the rows, as in the dump of a volume in use. */
static void note_ids(struct load *l, enum cfs_meta_table table, const struct cfs_row *row)
{
	if (table == CFS_TABLE_NODE) {
		l->inodes++;
		if (row->ino > CFS_TRASH_INO)
			raise_to(&l->counters[COUNTER_NEXT_TRASH], row->ino - CFS_TRASH_INO);
		else if (row->ino < CFS_TRASH_INO)
			raise_to(&l->counters[COUNTER_NEXT_INODE], row->ino + 1);
	} else if (table == CFS_TABLE_REF) {
		raise_to(&l->counters[COUNTER_NEXT_CHUNK], row->ref.id + 1);
	} else if (table == CFS_TABLE_SUSTAINED) {
		raise_to(&l->counters[COUNTER_NEXT_SESSION], row->sid);
	} else if (table == CFS_TABLE_EDGE) {
		l->entries++;
	}
}

static int note_session(struct load *l, uint64_t sid)
{
	size_t i;

	for (i = 0; i < l->n_sids; i++)
		if (l->sids[i] == sid)
			return 0;
	return CFS_ARRAY_ADD(l->sids, l->n_sids, l->cap_sids, sid);
}

/* Each record of a chunk is one reference to its slice. */
static int add_references(struct load *l, const struct cfs_row *row)
{
	size_t i;
	int r = 0;

	for (i = 0; i < row->list.n && !r; i++) {
		const struct cfs_slice *s = &row->list.slices[i];
		struct cfs_row ref = {.ref = {.id = s->id, .size = s->size, .refs = 1}};

		if (s->id)
			r = load_row(l, CFS_TABLE_REF, &ref);
	}
	return r;
}

static bool is_time(struct timespec t)
{
	/* Engines store microseconds. */
	return t.tv_sec < INT64_MAX / 1000000 && t.tv_sec > INT64_MIN / 1000000 && t.tv_nsec >= 0 &&
	       t.tv_nsec < 1000000000;
}

static bool is_type(uint8_t type)
{
	return type >= CFS_TYPE_FILE && type <= CFS_TYPE_SOCKET;
}

static bool is_name(const char *name, size_t len)
{
	if (!len || len > CFS_NAME_MAX || memchr(name, '/', len) || memchr(name, '\0', len))
		return false;
	return name[0] != '.' || (len != 1 && (len != 2 || name[1] != '.'));
}

/* Refuses rows that no volume has, and that an engine or the kernel would refuse. */
static bool is_sane(enum cfs_meta_table table, const struct cfs_row *row)
{
	const struct cfs_attr *a = &row->attr;

	if (table == CFS_TABLE_NODE)
		return is_type(a->type) && a->length < CFS_FILE_MAX && is_time(a->atime) &&
		       is_time(a->mtime) && is_time(a->ctime);
	if (table == CFS_TABLE_EDGE)
		return is_type(row->edge.type) && is_name(row->edge.name, row->edge.name_len);
	return true;
}

int load_row(struct load *l, enum cfs_meta_table table, const struct cfs_row *row)
{
	struct load_batch *b = l->batches[table];
	struct cfs_row copy = *row;
	const void **p[2];
	size_t len[2], n = payload(table, &copy, p, len), need, i;
	int r = 0;

	if (!is_sane(table, row)) {
		snprintf(l->err, sizeof(l->err), "the dump is damaged: inode %llu",
			 (unsigned long long)row->ino);
		return -EBADMSG;
	}
	note_ids(l, table, row);
	if (table == CFS_TABLE_CHUNK)
		r = add_references(l, row);
	else if (table == CFS_TABLE_SUSTAINED)
		r = note_session(l, row->sid);
	else if (table == CFS_TABLE_NODE)
		r = owners_add_node(&l->owners, row);
	if (r)
		return r;
	if (!b) {
		b = malloc(sizeof(*b));
		if (!b)
			return -ENOMEM;
		b->n = b->used = 0;
		l->batches[table] = b;
	}
	need = (len[0] + len[1] + 15) & ~(size_t)15;
	if (b->n == BATCH_ROWS || b->used + need > BATCH_BYTES)
		r = flush(l, table);
	if (r)
		return r;
	if (need > BATCH_BYTES) /* too large for a batch */
		return cfs_meta_put_rows(l->meta, table, row, 1);
	for (i = 0; i < n; i++) {
		if (len[i])
			memcpy(b->bytes + b->used, *p[i], len[i]);
		*p[i] = b->bytes + b->used;
		b->used += len[i];
	}
	b->used = (b->used + 15) & ~(size_t)15;
	b->rows[b->n++] = copy;
	return 0;
}

static int put_counters(struct load *l)
{
	struct cfs_row rows[COUNTER_COUNT] = {0};
	size_t i, n = 0;

	for (i = 0; i < COUNTER_COUNT; i++) {
		/* This counter is created together with the first trash directory. */
		if (i == COUNTER_NEXT_TRASH && !l->counters[i])
			continue;
		rows[n].counter.name = dump_counter_names[i];
		rows[n++].counter.value = l->counters[i];
	}
	return cfs_meta_put_rows(l->meta, CFS_TABLE_COUNTER, rows, n);
}

int load_owner_quota(struct load *l, const struct cfs_quota *q)
{
	return CFS_ARRAY_ADD(l->limits, l->n_limits, l->cap_limits, *q);
}

static int order_limits(const void *a, const void *b)
{
	const struct cfs_quota *x = a, *y = b;

	return CFS_COMPARE(x->kind, y->kind) ?: CFS_COMPARE(x->key, y->key);
}

static int put_owner_quota(struct load *l, struct cfs_quota *q)
{
	struct cfs_ctx ctx = cfs_ctx_internal(60000);
	struct owner w = owners_get(&l->owners, q->kind, (uint32_t)q->key);

	q->used_space = w.space;
	q->used_inodes = w.inodes;
	return cfs_meta_put_quota(l->meta, &ctx, q);
}

/*
 * Writes a row for every owner. The dump may lack owners without limits, and owners without changes
 * since such quotas were enabled. Without a row, their first change would create one that omits
 * earlier usage.
 */
static int put_owner_quotas(struct load *l)
{
	size_t i;
	int r = 0;

	if (l->n_limits)
		qsort(l->limits, l->n_limits, sizeof(*l->limits), order_limits);
	for (i = 0; i < l->n_limits && !r; i++)
		r = put_owner_quota(l, &l->limits[i]);
	for (i = 0; l->owner_quotas && i < l->owners.cap && !r; i++) {
		const struct owner *w = &l->owners.v[i];
		struct cfs_quota q = {
			.kind = w->kind, .key = w->id, .max_space = -1, .max_inodes = -1};

		if (w->inodes &&
		    !(l->n_limits && bsearch(&q, l->limits, l->n_limits, sizeof(q), order_limits)))
			r = put_owner_quota(l, &q);
	}
	return r;
}

int load_finish(struct load *l)
{
	size_t i;
	int r = 0;

	raise_to(&l->counters[COUNTER_NEXT_INODE], 2);
	raise_to(&l->counters[COUNTER_NEXT_CHUNK], 1);
	if (l->counters[COUNTER_NEXT_CHUNK] < SLICE_END)
		l->counters[COUNTER_NEXT_CHUNK] += SLICE_GAP;
	for (i = 0; i < LOAD_TABLES && !r; i++)
		r = flush(l, (enum cfs_meta_table)i);
	if (!r)
		r = put_owner_quotas(l);
	for (i = 0; i < l->n_sids && !r; i++)
		r = cfs_meta_put_ended_session(l->meta, l->sids[i]);
	if (!r)
		r = put_counters(l);
	return r ? r : cfs_meta_load_end(l->meta, l->setting, l->err);
}

void load_free(struct load *l)
{
	size_t i;

	for (i = 0; i < LOAD_TABLES; i++)
		free(l->batches[i]);
	owners_free(&l->owners);
	free(l->limits);
	free(l->sids);
	free(l->setting);
}
