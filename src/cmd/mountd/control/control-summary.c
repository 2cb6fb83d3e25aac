/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums up the size of a tree. Directories down to `depth` are listed with their largest entries.
 * Below that only sums are taken: from the statistics that directories keep, or from the inodes
 * when the request is strict.
 *
 * Memory: 8 bytes per directory still to be visited, and per level listed one page and the entries
 * that are shown.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "cmd/access/admin.h"
#include "cmd/access/jsontext.h"
#include "cmd/mountd/control/control-serve.h"
#include "cmd/sets/dirwalk.h"

enum { PAGE = 1000, DEPTH_MAX = 10, ENTRIES_MAX = 100, SHOWN_MAX = 100000 };

struct sums {
	int64_t length, space, files, dirs;
};

struct summary {
	struct control_server *s;
	struct control_job *job;
	bool strict;
	unsigned depth, entries;
	struct inostack todo;
	uint64_t shown;
};

static void add(struct sums *to, const struct sums *from)
{
	to->length += from->length;
	to->space += from->space;
	to->files += from->files;
	to->dirs += from->dirs;
}

static struct sums weigh(const struct cfs_attr *attr)
{
	bool file = attr->type == CFS_TYPE_FILE, dir = attr->type == CFS_TYPE_DIR;

	return (struct sums){
		.length = file ? (int64_t)attr->length : 0,
		.space = cfs_space_of(file ? attr->length : 0),
		.files = !dir,
		.dirs = dir,
	};
}

/* ---- sums ---- */

struct visit {
	struct summary *w;
	struct sums *sums;
	bool only_dirs; /* the statistics of the directory count its entries */
	int err;
};

static int visit(void *arg, const struct cfs_dirent *e)
{
	struct visit *v = arg;
	struct sums one;

	if (!v->only_dirs) {
		one = weigh(&e->entry.attr);
		add(v->sums, &one);
	}
	if (e->type == CFS_TYPE_DIR) {
		v->sums->dirs += v->only_dirs;
		v->sums->files -= v->only_dirs;
		v->err = inostack_push(&v->w->todo, e->entry.ino);
	}
	return v->err;
}

static int visit_dir(struct summary *w, cfs_ino_t dir, struct sums *sums)
{
	struct visit v = {.w = w, .sums = sums};
	struct cfs_cursor cursor = {0};
	struct cfs_dir_stat st;
	struct cfs_ctx ctx = control_step(w->job);
	int r = control_check(w->job);

	if (r < 0)
		return r;
	/* Statistics that are missing or impossible are computed from the entries. */
	if (!w->strict && cfs_meta_get_dir_stat(w->s->meta, &ctx, dir, &st) == 0 &&
	    st.length >= 0 && st.space >= 0 && st.inodes >= 0) {
		v.only_dirs = true;
		sums->length += st.length;
		sums->space += st.space;
		sums->files += st.inodes; /* visit() subtracts directories */
	}
	do {
		ctx = control_step(w->job);
		r = cfs_meta_readdir(w->s->meta, &ctx, dir, !v.only_dirs, PAGE, &cursor, visit, &v);
	} while (r == 0 && v.err == 0);
	atomic_fetch_add(&w->job->done, 1);
	return v.err ? v.err : r < 0 && r != -ENOENT ? r : 0;
}

/* Sums everything below `dir`, without `dir` itself. */
static int sum_tree(struct summary *w, cfs_ino_t dir, struct sums *sums)
{
	size_t base = w->todo.n;
	int r = inostack_push(&w->todo, dir);

	while (r == 0 && w->todo.n > base)
		r = visit_dir(w, inostack_pop(&w->todo), sums);
	return r;
}

/* ---- entries that are shown ---- */

struct child {
	struct cfs_entry e;
	char *name;
	size_t len;
	struct sums sums;
	json_t *children;
};

struct children {
	struct child *v;
	size_t n, cap;
	struct sums rest; /* of entries that are not shown */
};

static void free_child(struct child *k)
{
	free(k->name);
	json_decref(k->children);
}

static void free_children(struct children *c)
{
	while (c->n)
		free_child(&c->v[--c->n]);
	free(c->v);
}

static int larger_first(const void *a, const void *b)
{
	const struct child *x = a, *y = b;

	if (x->sums.space != y->sums.space)
		return x->sums.space < y->sums.space ? 1 : -1;
	return CFS_COMPARE(x->e.ino, y->e.ino);
}

static json_t *describe(const char *name, size_t len, uint8_t type, const struct sums *s,
			json_t *children)
{
	json_t *j = json_pack("{s:o, s:s, s:I, s:I, s:I, s:I}", "name", admin_text(name, len),
			      "type", type == CFS_TYPE_DIR ? "directory" : "file", "length",
			      (json_int_t)s->length, "size", (json_int_t)s->space, "files",
			      (json_int_t)s->files, "dirs", (json_int_t)s->dirs);

	if (j && children)
		json_object_set(j, "entries", children);
	return j;
}

/* Keeps the largest entries, and adds the others to the rest. */
static void prune(const struct summary *w, struct children *c)
{
	size_t most = w->shown < SHOWN_MAX ? w->entries : 0;

	if (c->n)
		qsort(c->v, c->n, sizeof(*c->v), larger_first);
	while (c->n > most) {
		add(&c->rest, &c->v[--c->n].sums);
		free_child(&c->v[c->n]);
	}
}

static json_t *list(struct summary *w, const struct children *c)
{
	json_t *out = json_array();
	size_t i;

	for (i = 0; i < c->n; i++) {
		const struct child *k = &c->v[i];

		json_array_append_new(
			out, describe(k->name, k->len, k->e.attr.type, &k->sums, k->children));
	}
	w->shown += c->n;
	if (c->rest.files || c->rest.dirs)
		json_array_append_new(out, describe("...", 3, CFS_TYPE_FILE, &c->rest, NULL));
	return out;
}

static int list_dir(struct summary *w, cfs_ino_t dir, unsigned depth, struct sums *sums,
		    json_t **ret);

/* Computes the size of an entry and adds it to `best`. */
static int take_entry(struct summary *w, const struct cfs_dirent *e, unsigned depth,
		      struct sums *sums, struct children *best)
{
	struct child k = {.e = e->entry, .len = e->name_len, .sums = weigh(&e->entry.attr)};
	int r = control_check(w->job);

	if (r == 0 && e->type == CFS_TYPE_DIR && depth > 1)
		r = list_dir(w, e->entry.ino, depth - 1, &k.sums, &k.children);
	else if (r == 0 && e->type == CFS_TYPE_DIR)
		r = sum_tree(w, e->entry.ino, &k.sums);
	add(sums, &k.sums);
	k.name = malloc(e->name_len);
	if (r == 0)
		r = k.name ? CFS_ARRAY_ADD(best->v, best->n, best->cap, k) : -ENOMEM;
	if (r < 0)
		free_child(&k);
	else
		memcpy(k.name, e->name, e->name_len);
	return r;
}

/* Recursion is bounded by DEPTH_MAX. */
static int list_dir(struct summary *w, cfs_ino_t dir, unsigned depth, struct sums *sums,
		    json_t **ret)
{
	struct dirwalk walk = dirwalk_begin(w->s->meta, CONTROL_STEP_MS, dir, DIRWALK_ATTRS);
	struct children best = {0};
	const struct cfs_dirent *e;
	int r = control_check(w->job);

	walk.ctx = *w->job->who;
	while (r >= 0 && (r = dirwalk_next(&walk, &e)) > 0) {
		r = take_entry(w, e, depth, sums, &best);
		if (best.n == PAGE)
			prune(w, &best);
	}
	dirwalk_end(&walk);
	atomic_fetch_add(&w->job->done, 1);
	prune(w, &best);
	if (r == 0)
		*ret = list(w, &best);
	free_children(&best);
	return r;
}

static unsigned bounded(json_t *in, const char *key, json_int_t most)
{
	json_int_t n = json_get_int(in, key);

	return (unsigned)CFS_MAX(CFS_MIN(n, most), (json_int_t)0);
}

int control_summary(struct control_server *s, struct control_job *job, json_t *in, json_t **ret)
{
	struct summary w = {
		.s = s,
		.job = job,
		.strict = json_is_true(json_object_get(in, "strict")),
		.depth = bounded(in, "depth", DEPTH_MAX),
		.entries = bounded(in, "entries", ENTRIES_MAX),
	};
	cfs_ino_t ino = control_ino(s, in, "inode");
	struct cfs_ctx ctx = control_step(job);
	json_t *children = NULL;
	struct cfs_attr attr;
	struct sums sums;
	int r = cfs_meta_getattr(s->meta, &ctx, ino, &attr);

	if (r < 0)
		return r;
	sums = weigh(&attr);
	if (attr.type == CFS_TYPE_DIR)
		r = w.depth ? list_dir(&w, ino, w.depth, &sums, &children)
			    : sum_tree(&w, ino, &sums);
	inostack_free(&w.todo);
	if (r == 0) {
		*ret = describe("", 0, attr.type, &sums, children);
		r = *ret ? 0 : -ENOMEM;
	}
	json_decref(children);
	return r;
}
