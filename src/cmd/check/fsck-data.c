/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks slices: their records, reference counts and blocks. Metadata is read before objects are
 * listed, because objects are stored before they are named. Each suspect is examined again before it
 * is reported.
 *
 * Memory: blocks.h, recheck.h; 40 bytes per slice whose count looks wrong.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/bytes.h"
#include "cmd/access/cmd.h"
#include "cmd/check/blocks.h"
#include "cmd/check/fsck.h"
#include "cmd/check/recheck.h"

enum { USE_RECORD = 1, USE_DELAYED = 2, USE_REF = 4 };

/* A slice whose reference count does not match its records. */
struct suspect {
	uint64_t id;
	uint32_t size;
	int64_t refs, records;	       /* refs -1: no row */
	int64_t refs_now, records_now; /* the second reading */
};

struct data {
	struct fsck *f;
	struct sorter *uses, *objects, *rechecks;
	struct suspect *suspects;
	size_t n, cap;
	/* The file that report_block() has asked for last. */
	cfs_ino_t asked;
	bool exists;
};

/* ---- records ---- */

static bool possible(const struct cfs_slice *s)
{
	return (uint64_t)s->pos + s->len <= CFS_CHUNK_SIZE &&
	       (!s->id || (uint64_t)s->off + s->len <= s->size) && (s->id || !s->size);
}

int fsck_records(struct fsck *f, cfs_ino_t ino, uint32_t indx, const struct cfs_slice *v, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++) {
		const struct cfs_slice *s = &v[i];

		f->slices++;
		if (possible(s))
			continue;
		return fsck_report(f, "record", ino, false,
				   "chunk %u record %zu (pos %u id %" PRIu64
				   " size %u off %u len %u) is impossible",
				   indx, i, s->pos, s->id, s->size, s->off, s->len);
	}
	return 0;
}

/* Reports are made after the page has been read, because they ask the metadata for paths. */
struct bad_record {
	cfs_ino_t ino;
	uint32_t indx, unreadable;
};

struct reading {
	struct data *d;
	struct sorter *bad;
};

static int add_chunk(void *arg, const struct cfs_row *row)
{
	struct reading *rd = arg;
	struct bad_record bad = {row->ino, row->list.indx, row->list.damaged};
	bool fine = !row->list.damaged;
	size_t i;
	int r = slice_use_add_list(rd->d->uses, &rd->d->f->p, row, row->ino, USE_RECORD);

	for (i = 0; i < row->list.n; i++)
		fine &= possible(&row->list.slices[i]);
	return r == 0 && !fine ? sorter_add(rd->bad, &bad) : r;
}

static int add_delayed(void *arg, const struct cfs_row *row)
{
	struct reading *rd = arg;

	return slice_use_add_list(rd->d->uses, &rd->d->f->p, row, 0, USE_DELAYED);
}

static int add_ref(void *arg, const struct cfs_row *row)
{
	struct reading *rd = arg;
	struct slice_use u = {
		.id = row->ref.id,
		.size = row->ref.size,
		.refs = (int32_t)row->ref.refs,
		.kind = USE_REF,
	};

	return sorter_add(rd->d->uses, &u);
}

static int compare_bad(const void *a, const void *b)
{
	const struct bad_record *x = a, *y = b;

	return CFS_COMPARE(x->ino, y->ino) ?: CFS_COMPARE(x->indx, y->indx);
}

static int report_bad(struct data *d, struct sorter *bad)
{
	struct bad_record b;
	int r = sorter_sort(bad);

	while (r >= 0 && (r = sorter_next(bad, &b)) > 0) {
		struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
		struct cfs_slice *v = NULL;
		ssize_t n;

		if (b.unreadable) {
			r = fsck_report(d->f, "record", b.ino, false,
					"chunk %u is not a list of records", b.indx);
			continue;
		}
		n = cfs_meta_read_chunk(d->f->a->meta, &ctx, b.ino, b.indx, &v);
		r = n < 0 ? (int)n : fsck_records(d->f, b.ino, b.indx, v, (size_t)n);
		free(v);
	}
	return r;
}

static int read_metadata(struct data *d)
{
	struct reading rd = {.d = d};
	struct cfs_meta *m = d->f->a->meta;
	int r = sorter_create(sizeof(struct slice_use), slice_use_compare, 0, &d->uses);

	if (r == 0)
		r = sorter_create(sizeof(struct bad_record), compare_bad, 0, &rd.bad);
	progress_begin(&d->f->p, "slices read");
	if (r == 0)
		r = cfs_meta_scan(m, CFS_TABLE_CHUNK, add_chunk, &rd);
	if (r == 0)
		r = cfs_meta_scan(m, CFS_TABLE_DELAYED, add_delayed, &rd);
	if (r == 0)
		r = cfs_meta_scan(m, CFS_TABLE_REF, add_ref, &rd);
	if (r == 0)
		r = sorter_sort(d->uses);
	progress_end(&d->f->p);
	if (r == 0)
		r = report_bad(d, rd.bad);
	sorter_destroy(rd.bad);
	return r;
}

/* ---- blocks ---- */

/* All uses of one slice. */
struct slice {
	uint64_t id;
	uint32_t size, indx;
	cfs_ino_t ino; /* one file that uses it; 0: only kept for the trash time */
	int64_t records, refs;
	bool sizes_differ;
};

static int check_block(struct data *d, const struct slice *s, uint32_t indx)
{
	struct recheck recheck = {
		.ino = s->ino,
		.slice = s->id,
		.indx = s->indx,
		.slice_size = s->size,
		.block = indx,
	};
	char key[CFS_BLOCK_KEY_MAX];
	int r = blocks_look(d->f->a, s->id, s->size, indx, key, &recheck.object_size);

	return r <= 0 ? r : sorter_add(d->rechecks, &recheck);
}

/* A block that is missing or has a wrong length, of a slice that its chunk still names. */
static int report_block(void *arg, const struct recheck *recheck)
{
	struct data *d = arg;
	struct fsck *f = d->f;
	char key[CFS_BLOCK_KEY_MAX];

	if (recheck->ino != d->asked) {
		struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
		struct cfs_attr attr;

		d->asked = recheck->ino;
		d->exists = cfs_meta_getattr(f->a->meta, &ctx, recheck->ino, &attr) == 0;
	}
	if (!d->exists)
		return 0;
	blocks_key(f->a, recheck->slice, recheck->block,
		   blocks_length(f->a, recheck->slice_size, recheck->block), key);
	return fsck_block(f, recheck->ino, key, recheck->object_size);
}

/* The objects of slice s are next in the listing; earlier ones belong to no slice. */
static int check_blocks(struct data *d, const struct slice *s, struct block_object *o, int *more)
{
	const struct admin *a = d->f->a;
	uint32_t next = 0, n = blocks_count(a, s->size);
	int r = 0;

	while (*more > 0 && o->id < s->id)
		*more = sorter_next(d->objects, o);
	for (; *more > 0 && o->id == s->id && r == 0; *more = sorter_next(d->objects, o)) {
		bool good = blocks_belongs(a, o, s->size) && blocks_fit(a, o->len, o->size);

		if (!s->ino || !good || o->indx < next)
			continue;
		for (; next < o->indx && r == 0; next++)
			r = check_block(d, s, next);
		next++;
	}
	for (; s->ino && next < n && r == 0 && *more >= 0; next++)
		r = check_block(d, s, next);
	return *more < 0 ? *more : r;
}

/* ---- references ---- */

static int add_suspect(struct data *d, const struct slice *s)
{
	return CFS_ARRAY_ADD(d->suspects, d->n, d->cap,
			     (struct suspect){
				     .id = s->id,
				     .size = s->size,
				     .refs = s->refs,
				     .records = s->records,
				     .refs_now = -1,
			     });
}

static int compare_id(const void *id, const void *suspect)
{
	uint64_t a = *(const uint64_t *)id, b = ((const struct suspect *)suspect)->id;

	return CFS_COMPARE(a, b);
}

/* Suspects are in the order of their ids. */
static struct suspect *find_suspect(struct data *d, uint64_t id)
{
	return d->n ? bsearch(&id, d->suspects, d->n, sizeof(*d->suspects), compare_id) : NULL;
}

static int count_list(void *arg, const struct cfs_row *row)
{
	struct suspect *suspect;
	size_t i;

	for (i = 0; i < row->list.n; i++) {
		suspect = find_suspect(arg, row->list.slices[i].id);
		if (suspect)
			suspect->records_now++;
	}
	return 0;
}

static int count_ref(void *arg, const struct cfs_row *row)
{
	struct suspect *suspect = find_suspect(arg, row->ref.id);

	if (suspect)
		suspect->refs_now = row->ref.refs;
	return 0;
}

/*
 * A count that is too low costs data when a sharer goes, so it is raised at once. A count that is
 * too high costs only space, and may come from a record that the scans missed, so it is lowered
 * only when no mount is active.
 */
static int judge_refs(struct data *d)
{
	struct cfs_meta *m = d->f->a->meta;
	bool mounted, fix;
	size_t i;
	int r = admin_is_mounted(d->f->a, &mounted);

	for (i = 0; i < d->n && r == 0; i++) {
		const struct suspect *q = &d->suspects[i];

		if (q->refs != q->refs_now || q->records != q->records_now)
			continue;
		fix = d->f->repair && (q->records > q->refs || !mounted);
		if (fix) {
			struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);

			r = admin_may_repair(d->f->a);
			if (r == 0)
				r = cfs_meta_fix_refs(m, &ctx, q->id, q->size, q->refs, q->records);
			if (r == -EAGAIN) {
				r = 0;
				continue;
			}
		}
		if (r == 0)
			r = fsck_report(d->f, "references", 0, fix,
					"slice %" PRIu64 " has %" PRId64 ", %" PRId64
					" records name it%s",
					q->id, q->refs, q->records,
					d->f->repair && !fix ? " (unmount to repair)" : "");
	}
	return r;
}

static int check_refs(struct data *d)
{
	struct cfs_meta *m = d->f->a->meta;
	int r;

	if (!d->n)
		return 0;
	r = cfs_meta_scan(m, CFS_TABLE_CHUNK, count_list, d);
	if (r == 0)
		r = cfs_meta_scan(m, CFS_TABLE_DELAYED, count_list, d);
	if (r == 0)
		r = cfs_meta_scan(m, CFS_TABLE_REF, count_ref, d);
	return r == 0 ? judge_refs(d) : r;
}

/* ---- merging both lists ---- */

static void add_use(struct slice *s, const struct slice_use *u)
{
	if (u->kind == USE_REF) {
		s->refs = u->refs;
		if (!s->size)
			s->size = u->size;
		return;
	}
	if (s->records++ && s->size != u->size)
		s->sizes_differ = true;
	s->size = u->size;
	if (u->kind == USE_RECORD && !s->ino) {
		s->ino = u->ino;
		s->indx = u->indx;
	}
}

static int end_slice(struct data *d, const struct slice *s, struct block_object *o, int *more)
{
	int r = 0;

	if (!s->id)
		return 0;
	if (s->sizes_differ)
		r = fsck_report(d->f, "slice", s->ino, false,
				"records of slice %" PRIu64 " do not agree about its size", s->id);
	/* A slice with no records and no references is about to be deleted: no fault. */
	if (r == 0 && s->records != s->refs && (s->records || s->refs > 0))
		r = add_suspect(d, s);
	return r < 0 ? r : check_blocks(d, s, o, more);
}

static int merge(struct data *d)
{
	struct slice s = {0};
	struct block_object o;
	struct slice_use u;
	int more = sorter_next(d->objects, &o);
	int r = more < 0 ? more : 0;

	progress_begin(&d->f->p, "slices checked");
	while (r >= 0 && (r = sorter_next(d->uses, &u)) > 0) {
		if (u.id != s.id) {
			r = end_slice(d, &s, &o, &more);
			s = (struct slice){.id = u.id, .refs = -1};
			progress_add(&d->f->p, 1);
			d->f->slices++;
		}
		add_use(&s, &u);
	}
	if (r == 0)
		r = end_slice(d, &s, &o, &more);
	progress_end(&d->f->p);
	return r;
}

int fsck_data(struct fsck *f)
{
	struct blocks_listed listed = {0};
	struct data d = {.f = f};
	int r;

	r = read_metadata(&d);
	if (r == 0)
		r = blocks_list(f->a, &f->p, &d.objects, &listed);
	f->objects = listed.objects;
	f->slices = 0;
	if (r == 0)
		r = rechecks_create(&d.rechecks);
	if (r == 0)
		r = merge(&d);
	if (r == 0)
		r = rechecks_settle(f->a, d.rechecks, report_block, &d);
	if (r == 0)
		r = check_refs(&d);
	sorter_destroy(d.uses);
	sorter_destroy(d.objects);
	sorter_destroy(d.rechecks);
	free(d.suspects);
	return r;
}
