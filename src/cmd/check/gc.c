/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removes objects that nothing references. The order makes it safe on a volume in use: objects are
 * listed first and metadata is read afterwards, so a slice committed meanwhile is known. Slices
 * that are not committed yet are young, and young objects stay. So does everything that a row of
 * any table names.
 *
 * Memory: 16 bytes per name in the trash and per deleted file, else bounded (blocks.h, recheck.h).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/check/blocks.h"
#include "cmd/check/recheck.h"
#include "cmd/sets/inoset.h"

struct gc_opts {
	struct admin_opts common;
	bool delete, compact, force;
	int64_t threads;
	uint64_t age_ms;
};

#define OPTIONS struct gc_opts
static const struct cfs_opt gc_table[] = {
	OPT_FLAG("delete", delete,
		 "remove leaked objects, pending slices and clones given up; without it they are "
		 "only counted"),
	OPT_FLAG("compact", compact, "first merge the slices of every chunk that has several"),
	OPT_FLAG("force", force, "even where the objects have no id of a volume"),
	OPT_THREADS(threads, "objects removed at the same time"),
	OPT_DURATION("age", age_ms, "TIME",
		     "objects younger than this never count as leaked; without it "
		     "$JFS_GC_SKIPPEDTIME seconds, or 1h"),
	ADMIN_OBJECT_OPTIONS(common),
	{0},
};

#define DEFAULT_AGE_MS (3600 * 1000)
#define SKEW_TOLD_S    60
/* Compaction ends when so many chunks fail in succession: the object store is away. */
#define FAILURES_MAX 10

enum { USE_LIVE = 1, USE_TRASH = 2, USE_PENDING = 4, USE_DEAD = 8, USE_COUNTED = 16 };

struct tally {
	uint64_t objects, bytes;
};

struct gc {
	struct admin *a;
	const struct gc_opts *o;
	int64_t old_s; /* only objects changed before this time may be leaked */
	struct inoset trash, deleted;
	struct sorter *objects, *uses, *rechecks;
	struct remover *remover;
	struct progress p;
	struct blocks_listed listed;
	struct tally live, in_trash, pending, leaked, recent;
	uint64_t dead_slices, misjudged, compacted, not_compacted, damaged;
	struct cfs_reaped reaped;
	struct removed removed;
	uint64_t slices_dropped;
};

/* ---- compaction ---- */

struct long_list {
	cfs_ino_t ino;
	uint32_t indx, records;
};

static int compare_lists(const void *a, const void *b)
{
	const struct long_list *x = a, *y = b;

	return CFS_COMPARE(x->ino, y->ino) ?: CFS_COMPARE(x->indx, y->indx);
}

static int note_long_list(void *arg, const struct cfs_row *row)
{
	struct long_list l = {row->ino, row->list.indx, (uint32_t)row->list.n};

	return row->list.n < 2 ? 0 : sorter_add(arg, &l);
}

static int compact_chunk(struct gc *g, const struct long_list *l)
{
	struct cfs_ctx ctx = cfs_ctx_internal(4 * ADMIN_OBJECT_MS);
	int r = cfs_data_compact(g->a->data, &ctx, l->ino, l->indx);

	if (r == 0)
		g->compacted++;
	/* Another client has changed or removed it meanwhile. */
	if (r == 0 || r == -EAGAIN || r == -ENOENT)
		return 0;
	g->not_compacted++;
	cmd_error("chunk %" PRIu32 " of inode %" PRIu64 " cannot be compacted and stays as it is: "
		  "%s",
		  l->indx, l->ino, strerror(-r));
	return r;
}

static int compact_all(struct gc *g)
{
	struct sorter *lists;
	struct long_list l;
	unsigned failures = 0;
	int err, r = sorter_create(sizeof(l), compare_lists, 0, &lists);

	if (r < 0)
		return r;
	r = cfs_meta_scan(g->a->meta, CFS_TABLE_CHUNK, note_long_list, lists);
	if (r == 0)
		r = sorter_sort(lists);
	progress_begin(&g->p, "chunks compacted");
	while (r >= 0 && (r = sorter_next(lists, &l)) > 0) {
		err = compact_chunk(g, &l);
		failures = err < 0 ? failures + 1 : 0;
		if (failures == FAILURES_MAX)
			r = err;
		progress_add(&g->p, 1);
	}
	progress_end(&g->p);
	sorter_destroy(lists);
	return r;
}

/* ---- what metadata names ---- */

static int add_list(struct gc *g, const struct cfs_row *row, cfs_ino_t ino, uint32_t kind)
{
	g->damaged += row->list.damaged;
	return slice_use_add_list(g->uses, &g->p, row, ino, kind);
}

static int add_chunk(void *arg, const struct cfs_row *row)
{
	struct gc *g = arg;

	return add_list(g, row, row->ino,
			inoset_has(&g->deleted, row->ino) ? USE_PENDING
			: inoset_has(&g->trash, row->ino) ? USE_TRASH
							  : USE_LIVE);
}

static int add_delayed(void *arg, const struct cfs_row *row)
{
	return add_list(arg, row, 0, USE_PENDING);
}

static int add_ref(void *arg, const struct cfs_row *row)
{
	struct gc *g = arg;
	const struct slice_use u = {
		.id = row->ref.id,
		.size = row->ref.size,
		.kind = row->ref.refs > 0 ? USE_COUNTED : USE_DEAD,
	};

	progress_add(&g->p, 1);
	return u.id ? sorter_add(g->uses, &u) : 0;
}

static int add_delfile(void *arg, const struct cfs_row *row)
{
	return inoset_add(arg, row->ino, 1);
}

/*
 * Reads references last: the scan of chunks misses a record that moves from an unread row to a row
 * already read, but the slice keeps its reference throughout.
 */
static int read_metadata(struct gc *g)
{
	struct cfs_meta *m = g->a->meta;
	int r = sorter_create(sizeof(struct slice_use), slice_use_compare, 0, &g->uses);

	if (r == 0)
		r = cfs_meta_scan(m, CFS_TABLE_DELFILE, add_delfile, &g->deleted);
	if (r == 0)
		r = inoset_add_trash(&g->trash, g->a);
	if (r < 0)
		return r;
	inoset_sort(&g->deleted);
	inoset_sort(&g->trash);
	progress_begin(&g->p, "slices read");
	r = cfs_meta_scan(m, CFS_TABLE_CHUNK, add_chunk, g);
	if (r == 0)
		r = cfs_meta_scan(m, CFS_TABLE_DELAYED, add_delayed, g);
	if (r == 0)
		r = cfs_meta_scan(m, CFS_TABLE_REF, add_ref, g);
	if (r == 0)
		r = sorter_sort(g->uses);
	progress_end(&g->p);
	if (r == 0 && g->damaged) {
		cmd_error("%" PRIu64 " lists of slices cannot be read: run fsck", g->damaged);
		r = -EIO;
	}
	return r;
}

/* ---- merging both lists ---- */

/* All uses of one slice. */
struct slice {
	uint64_t id;
	uint32_t size; /* from the records, else from its reference row */
	cfs_ino_t ino; /* of one of its records */
	uint32_t indx;
	uint32_t kinds;
	bool named;	   /* by a record */
	bool sizes_differ; /* of its records: fsck reports it */
	struct tally found;
};

struct merge {
	struct slice_use use;
	struct block_object object;
	int more_uses, more_objects; /* the above is valid */
};

static int next_use(struct gc *g, struct merge *m)
{
	m->more_uses = sorter_next(g->uses, &m->use);
	return m->more_uses < 0 ? m->more_uses : 0;
}

static int next_object(struct gc *g, struct merge *m)
{
	m->more_objects = sorter_next(g->objects, &m->object);
	return m->more_objects < 0 ? m->more_objects : 0;
}

static void count(struct tally *t, const struct block_object *b)
{
	t->objects++;
	t->bytes += b->size;
}

static int leaked(struct gc *g, const struct block_object *b)
{
	char key[CFS_BLOCK_KEY_MAX];

	if (b->mtime_s >= g->old_s) {
		count(&g->recent, b);
		return 0;
	}
	count(&g->leaked, b);
	if (!g->remover)
		return 0;
	blocks_key(g->a, b->id, b->indx, b->len, key);
	return remover_add(g->remover, key, b->size);
}

/* Removes a slice that only its own row knows, with no references: objects first, then the row. */
static void drop(struct gc *g, const struct slice *s)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	int r = cfs_store_remove_slice(g->a->store, s->id, s->size,
				       cfs_deadline_in(ADMIN_OBJECT_MS));

	if (r == 0)
		r = cfs_meta_drop_slice(g->a->meta, &ctx, s->id, s->size);
	if (r < 0) {
		g->removed.failed++;
		g->removed.err = g->removed.err ? g->removed.err : r;
		return;
	}
	g->slices_dropped++;
	g->removed.objects += s->found.objects;
	g->removed.bytes += s->found.bytes;
}

static int judge(struct gc *g, const struct slice *s)
{
	const uint32_t named = USE_LIVE | USE_TRASH | USE_PENDING;
	const struct recheck recheck = {.ino = s->ino, .slice = s->id, .indx = s->indx};
	struct tally *t = s->kinds & USE_LIVE	 ? &g->live
			  : s->kinds & USE_TRASH ? &g->in_trash
						 : &g->pending;

	t->objects += s->found.objects;
	t->bytes += s->found.bytes;
	if (!(s->kinds & USE_DEAD))
		return 0;
	/* A wrong count must not cost data: the slice stays, and fsck corrects the count. */
	if (s->kinds & named)
		return s->ino ? sorter_add(g->rechecks, &recheck) : 0;
	g->dead_slices++;
	if (g->o->delete)
		drop(g, s);
	return 0;
}

/*
 * A record that was read before the references may have gone together with its slice. A count of 0
 * is final, so a slice that is named after its count was read as 0 has a wrong count.
 */
static int count_misjudged(void *arg, const struct recheck *d)
{
	struct gc *g = arg;

	(void)d;
	g->misjudged++;
	return 0;
}

static int gather_uses(struct gc *g, struct merge *m, struct slice *s)
{
	int r = 0;

	*s = (struct slice){.id = m->use.id};
	while (r == 0 && m->more_uses && m->use.id == s->id) {
		bool record = !(m->use.kind & (USE_DEAD | USE_COUNTED));

		s->sizes_differ |= record && s->named && s->size != m->use.size;
		s->named |= record;
		if (record && !s->ino) {
			s->ino = m->use.ino;
			s->indx = m->use.indx;
		}
		if (record || !s->size)
			s->size = m->use.size;
		s->kinds |= m->use.kind;
		r = next_use(g, m);
	}
	return r;
}

static int merge_all(struct gc *g)
{
	struct merge m;
	struct slice s;
	int r = next_use(g, &m);

	if (r == 0)
		r = next_object(g, &m);
	progress_begin(&g->p, "objects judged");
	while (r == 0 && (m.more_uses || m.more_objects)) {
		if (!m.more_uses || (m.more_objects && m.object.id < m.use.id)) {
			r = leaked(g, &m.object);
			progress_add(&g->p, 1);
			if (r == 0)
				r = next_object(g, &m);
			continue;
		}
		r = gather_uses(g, &m, &s);
		while (r == 0 && m.more_objects && m.object.id == s.id) {
			/*
			 * The records disagree about the size, so it is unknown which objects
			 * belong to the slice.
			 */
			if (s.sizes_differ || blocks_belongs(g->a, &m.object, s.size))
				count(&s.found, &m.object);
			else
				r = leaked(g, &m.object);
			progress_add(&g->p, 1);
			if (r == 0)
				r = next_object(g, &m);
		}
		if (r == 0)
			r = judge(g, &s);
	}
	progress_end(&g->p);
	return r == 0 ? rechecks_settle(g->a, g->rechecks, count_misjudged, g) : r;
}

/* ---- the command ---- */

static int run(struct gc *g)
{
	struct removed r2;
	int r = 0;

	if (g->o->compact)
		r = compact_all(g);
	/* Rows of slices without references stay: the merge finds them, and looks for records. */
	if (r == 0 && g->o->delete)
		r = cfs_meta_reap(g->a->meta, &g->reaped);
	if (r < 0)
		return cmd_fail(r, "cannot %s, no object is judged: %s",
				g->o->compact ? "compact" : "remove deleted data", strerror(-r));
	r = blocks_list(g->a, &g->p, &g->objects, &g->listed);
	if (r < 0)
		return cmd_fail(
			r, "the objects could not be listed completely, nothing is removed: %s",
			strerror(-r));
	r = read_metadata(g);
	if (r < 0)
		return cmd_fail(r,
				"the metadata could not be read completely, nothing is removed: %s",
				strerror(-r));
	if (g->o->delete)
		r = cfs_meta_settle(g->a->meta);
	if (r < 0)
		return cmd_fail(r, "changes could not be made durable, nothing is removed: %s",
				strerror(-r));
	if (g->o->delete)
		r = remover_create(g->a, (unsigned)g->o->threads, &g->remover);
	if (r == 0)
		r = rechecks_create(&g->rechecks);
	if (r == 0)
		r = merge_all(g);
	if (g->remover) {
		r2 = remover_finish(g->remover);
		g->removed.objects += r2.objects;
		g->removed.bytes += r2.bytes;
		g->removed.failed += r2.failed;
		g->removed.err = g->removed.err ? g->removed.err : r2.err;
	}
	if (r == 0 && g->removed.failed)
		r = g->removed.err;
	if (r < 0)
		cmd_error("not everything could be removed: %s", strerror(-r));
	return r;
}

static json_t *tally_json(const struct tally *t)
{
	return json_pack("{s:I, s:I}", "objects", (json_int_t)t->objects, "bytes",
			 (json_int_t)t->bytes);
}

static void print_json(const struct gc *g)
{
	admin_print_json(json_pack(
		"{s:{s:I, s:I}, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:b, "
		"s:{s:I, s:I, s:I, s:I, s:I, s:I}}",
		"listed", "objects", (json_int_t)g->listed.objects, "bytes",
		(json_int_t)g->listed.bytes, "live", tally_json(&g->live), "trash",
		tally_json(&g->in_trash), "pending", tally_json(&g->pending), "leaked",
		tally_json(&g->leaked), "recent", tally_json(&g->recent), "foreign",
		(json_int_t)g->listed.foreign, "dead_slices", (json_int_t)g->dead_slices,
		"wrong_references", (json_int_t)g->misjudged, "compacted_chunks",
		(json_int_t)g->compacted, "not_compacted_chunks", (json_int_t)g->not_compacted,
		"delete", g->o->delete, "removed", "objects", (json_int_t)g->removed.objects,
		"bytes", (json_int_t)g->removed.bytes, "slices", (json_int_t)g->slices_dropped,
		"files", (json_int_t)g->reaped.files, "delayed", (json_int_t)g->reaped.delayed,
		"clones", (json_int_t)g->reaped.clones));
}

static void print_tally(const char *what, const struct tally *t, const char *meaning)
{
	char buf[32];

	cmd_line("%-9s %12" PRIu64 " objects %12s  %s", what, t->objects,
		 progress_size(t->bytes, buf), meaning);
}

static void print_text(const struct gc *g)
{
	struct tally all = {g->listed.objects, g->listed.bytes};
	char buf[32];

	if (g->o->compact)
		printf("%" PRIu64 " chunks compacted\n", g->compacted);
	print_tally("listed", &all, "");
	print_tally("live", &g->live, "in files");
	print_tally("trash", &g->in_trash, "in files in the trash");
	print_tally("pending", &g->pending, "of deleted files and replaced slices");
	print_tally("leaked", &g->leaked, "named by nothing");
	print_tally("recent", &g->recent, "named by nothing, but too young to be judged");
	if (g->listed.foreign)
		printf("%" PRIu64 " objects below chunks/ are not blocks and are left alone\n",
		       g->listed.foreign);
	if (g->misjudged)
		printf("%" PRIu64 " slices in use have no references: run fsck --repair\n",
		       g->misjudged);
	if (g->o->delete)
		cmd_line("removed: %" PRIu64 " objects (%s), %" PRIu64 " slices, %" PRIu64
			 " deleted files, %" PRIu64 " delayed entries, %" PRIu64 " clones",
			 g->removed.objects, progress_size(g->removed.bytes, buf),
			 g->slices_dropped, g->reaped.files, g->reaped.delayed, g->reaped.clones);
	else if (g->leaked.objects || g->dead_slices)
		printf("use --delete to remove what is leaked and %" PRIu64 " dead slices\n",
		       g->dead_slices);
}

static void set_default_age(void *options)
{
	struct gc_opts *o = options;
	const char *env = getenv("JFS_GC_SKIPPEDTIME");
	char *end;
	long long v;

	o->age_ms = DEFAULT_AGE_MS;
	if (!env || !*env)
		return;
	v = strtoll(env, &end, 10);
	if (!*end && v >= 0 && v <= INT64_MAX / 1000)
		o->age_ms = (uint64_t)v * 1000;
}

/* The object store's current time. Objects carry its times, and this host's clock may be wrong. */
static int ask_time(struct admin *a, int64_t *ret_s)
{
	struct cfs_object_store *o = a->objects;
	char key[128], text[] = "gc";
	struct iovec body = {.iov_base = text, .iov_len = sizeof(text) - 1};
	struct cfs_object_info info;
	int r, gone;

	snprintf(key, sizeof(key), "%s/testing/gc-%016" PRIx64, a->setting->name, cfs_random_u64());
	r = o->ops->put(o, key, &body, 1, 0, cfs_deadline_in(ADMIN_OBJECT_MS));
	if (r < 0)
		return r;
	r = o->ops->head(o, key, &info, cfs_deadline_in(ADMIN_OBJECT_MS));
	gone = o->ops->del(o, key, cfs_deadline_in(ADMIN_OBJECT_MS));
	if (r == 0 && info.mtime_s <= 0)
		r = -EPROTO;
	if (r == 0)
		*ret_s = info.mtime_s;
	return r ? r : gone;
}

/*
 * Taken before the listing, so that objects uploaded while it runs count as young. An object is old
 * when the clocks of the object store, of this host and of the database all say so: where the file
 * system of a file bucket takes times from its clients, the first is that of this host.
 */
static int judge_from(struct gc *g)
{
	int64_t here_s = cfs_wall_s(), there_s = here_s;
	int r = g->o->delete ? ask_time(g->a, &there_s) : 0;

	if (r < 0)
		return cmd_fail(r,
				"the object store's clock cannot be read, nothing is removed: %s",
				strerror(-r));
	if (here_s - there_s > SKEW_TOLD_S || there_s - here_s > SKEW_TOLD_S)
		cmd_error("note: the clock of this host is %" PRId64 " s %s that of the object "
			  "store; objects are judged by the one that is behind",
			  here_s > there_s ? here_s - there_s : there_s - here_s,
			  here_s > there_s ? "ahead of" : "behind");
	g->old_s = CFS_MIN(there_s, cfs_meta_clock_s(g->a->meta)) - (int64_t)(g->o->age_ms / 1000);
	return 0;
}

static int gc_run(void *options, const char **args)
{
	const struct gc_opts *o = options;
	struct gc g = {.o = o};
	struct admin a = {0};
	int r;

	r = admin_open(args[0], &o->common,
		       ADMIN_OBJECTS | (o->delete || o->compact ? ADMIN_WRITE | ADMIN_REMOVE : 0) |
			       (o->compact ? ADMIN_DATA : 0) |
			       ((o->delete || o->compact) && !o->force ? ADMIN_ID : 0),
		       &a);
	if (r != CMD_OK)
		goto out;
	g.a = &a;
	r = judge_from(&g) < 0 || run(&g) < 0 ? CMD_SYSTEM : CMD_OK;
	if (g.uses && (o->common.json || r == CMD_OK)) {
		if (o->common.json)
			print_json(&g);
		else
			print_text(&g);
	}
	if (g.not_compacted)
		r = CMD_SYSTEM;
out:
	inoset_free(&g.trash);
	inoset_free(&g.deleted);
	sorter_destroy(g.objects);
	sorter_destroy(g.uses);
	sorter_destroy(g.rechecks);
	return admin_close(&a, r);
}

const struct cmd cmd_gc = {
	.name = "gc",
	.synopsis = "[--delete] [--compact] [OPTIONS] META-URL",
	.summary = "Counts, and with --delete removes, objects that no file needs",
	CMD_OPTIONS(gc_table),
	.defaults = set_default_age,
	.min_args = 1,
	.max_args = 1,
	.run = gc_run,
};
