/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read-ahead over files of directories, as walk.c and tree.c advise, on threads of its own. A
 * listing made here only says which files to fetch. Their attributes and names are cached like
 * those of a look-up; an open asks the metadata in any case.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "vfs-internal.h"

#define THREADS	     2
#define QUEUE_LIMIT  64
#define PAGE_ENTRIES 4096
#define TREE_ENTRIES 1024 /* of a directory that a tree will list */
#define TIMEOUT_MS   10000

struct task {
	struct cfs_job job; /* first */
	struct cfs_vfs *vfs;
	enum { LIST, FETCH, FIND, GROW } what;
	cfs_ino_t dir;		  /* LIST, FIND */
	struct walk_batch *batch; /* FETCH */
	struct tree *tree;	  /* GROW */
};

/* Entries of a directory by kind; NULL: they are not asked for. */
struct content {
	struct listing *files, *dirs;
};

static int collect(void *arg, const struct cfs_dirent *e)
{
	struct content *c = arg;
	struct listing *l = e->type == CFS_TYPE_FILE ? c->files : NULL;

	if (e->type == CFS_TYPE_DIR)
		l = c->dirs;
	return l && !listing_add(l, e->name, e->name_len, e->entry.ino);
}

struct cfs_ctx ahead_ctx(const struct cfs_vfs *v)
{
	return cfs_ctx_internal(CFS_MIN(v->conf.io_timeout_ms, (uint64_t)TIMEOUT_MS));
}

/* NULL: the directory could not be read. A full listing has its first files only. */
static struct listing *list(struct cfs_vfs *v, cfs_ino_t dir)
{
	struct listing *l = listing_new();
	struct content c = {.files = l};
	struct cfs_cursor cursor = {0};
	uint32_t had = 0;
	struct cfs_ctx ctx;
	int r = 0;

	while (l && r == 0 && !atomic_load(&v->ahead_stopped)) {
		ctx = ahead_ctx(v);
		r = cfs_meta_readdir(v->conf.meta, &ctx, dir, false, PAGE_ENTRIES, &cursor, collect,
				     &c);
		if (listing_size(l) == LISTING_FILES_MAX)
			break;
		/* There is no file in this page, or no memory for more names. */
		if (r == 0 && listing_size(l) == had)
			break;
		had = listing_size(l);
	}
	if (l && (r < 0 || !listing_sort(l))) {
		listing_free(l);
		l = NULL;
	}
	return l;
}

/* Caches the answers, as a look-up of each name would. */
static void cache_answers(struct cfs_vfs *v, const struct walk_batch *b, uint64_t seq,
			  uint64_t asked_ns)
{
	uint64_t asked_ms = asked_ns / 1000000;
	uint32_t entry_ms;
	struct vnode *n;
	unsigned i;

	for (i = 0; i < b->n; i++) {
		const struct cfs_head *h = &b->heads[i];

		if (h->err || !h->named)
			continue;
		n = vnode_find(v, h->ino);
		if (n) {
			vnode_put(n);
			continue;
		}
		cache_put_attr(&v->cache, seq, asked_ms, h->ino, &h->attr);
		entry_ms = entry_timeout(v, &h->attr);
		if (entry_ms)
			cache_put_name(&v->cache, seq, asked_ms + entry_ms, h->parent, h->name,
				       h->name_len, h->ino);
	}
}

/* False: reading ahead failed, or is of no use. */
static bool fetch(struct cfs_vfs *v, struct walk_batch *b)
{
	uint64_t seq = cache_seq(&v->cache), asked_ns = cfs_now_ns();
	struct cfs_ctx ctx = ahead_ctx(v);

	if (!b->n)
		return true;
	if (cfs_data_read_ahead(v->conf.data, &ctx, b->heads, b->n) <= 0)
		return false;
	cache_answers(v, b, seq, asked_ns);
	b->n = 0;
	return true;
}

/* ---- trees ---- */

/* The beginning of the directory, sorted. False: it could not be read; ret has nothing to free. */
static bool look_into(struct cfs_vfs *v, cfs_ino_t dir, bool files, struct content *ret)
{
	struct cfs_ctx ctx = ahead_ctx(v);
	struct cfs_cursor cursor = {0};

	*ret = (struct content){files ? listing_new() : NULL, listing_new()};
	if ((ret->files || !files) && ret->dirs &&
	    cfs_meta_readdir(v->conf.meta, &ctx, dir, false, TREE_ENTRIES, &cursor, collect, ret) >=
		    0 &&
	    (!files || listing_sort(ret->files)) && listing_sort(ret->dirs))
		return true;
	listing_free(ret->files);
	listing_free(ret->dirs);
	return false;
}

static bool add_file(struct cfs_vfs *v, struct walk_batch *b, cfs_ino_t dir, struct listed f)
{
	if (b->n == CFS_HEADS_MAX && !fetch(v, b))
		return false;
	memcpy(b->text[b->n], f.name, f.len);
	b->heads[b->n] = (struct cfs_head){
		.ino = f.ino, .parent = dir, .name = b->text[b->n], .name_len = f.len};
	b->n++;
	return true;
}

static bool grow_by(struct cfs_vfs *v, struct tree *r, cfs_ino_t dir, struct walk_batch *b)
{
	struct content c;
	uint32_t n, i;
	bool ok = true;

	if (!look_into(v, dir, true, &c))
		return false;
	n = listing_size(c.files);
	if (n <= TREE_FILES)
		walk_fetched(&v->walks, dir, n);
	n = CFS_MIN(n, (uint32_t)TREE_FILES);
	for (i = 0; ok && i < n; i++)
		ok = add_file(v, b, dir, listing_get(c.files, r->order, i));
	listing_free(c.files);
	tree_grown(&v->trees, r, dir, n, c.dirs);
	return ok;
}

/* Grows the row and calls tree_leave(). first: the directory that begins an empty row; or 0. */
static void grow(struct cfs_vfs *v, struct tree *r, cfs_ino_t first)
{
	struct walk_batch *b = calloc(1, sizeof(*b));
	cfs_ino_t dir = first;
	bool ok = b;

	if (ok && first)
		ok = grow_by(v, r, first, b) && fetch(v, b);
	while (ok && !atomic_load(&v->ahead_stopped) && tree_grow(&v->trees, r, &dir))
		ok = grow_by(v, r, dir, b);
	ok = ok && fetch(v, b);
	free(b);
	tree_leave(&v->trees, r, !ok);
}

static cfs_ino_t parent_of(struct cfs_vfs *v, cfs_ino_t dir)
{
	struct cfs_ctx ctx = ahead_ctx(v);
	struct cfs_attr attr;
	uint32_t ms;

	return dir != v->conf.root && get_attr(v, &ctx, dir, &attr, &ms) == 0 ? attr.parent : 0;
}

/* Adds frames from the listed directory up to the topmost one that the program has listed. */
static bool add_frames(struct cfs_vfs *v, struct tree *r, cfs_ino_t dir, cfs_ino_t parent)
{
	struct content c;

	do {
		if (!look_into(v, parent, false, &c) ||
		    !tree_add_above(&v->trees, r, parent, dir, c.dirs))
			return false;
		dir = parent;
		parent = parent_of(v, dir);
	} while (parent && tree_is_recent(&v->trees, parent));
	return true;
}

static void find(struct cfs_vfs *v, cfs_ino_t dir)
{
	cfs_ino_t parent = parent_of(v, dir);
	struct tree *r = parent ? tree_find(&v->trees, parent) : NULL;

	if (!r)
		return;
	if (add_frames(v, r, dir, parent))
		grow(v, r, dir);
	else
		tree_leave(&v->trees, r, true);
}

/* ---- tasks ---- */

static void run(struct cfs_job *job)
{
	struct task *t = (struct task *)job;
	struct cfs_vfs *v = t->vfs;

	switch (t->what) {
	case LIST:
		walk_listed(&v->walks, t->dir, list(v, t->dir));
		break;
	case FETCH:
		if (!atomic_load(&v->ahead_stopped))
			fetch(v, t->batch);
		break;
	case FIND:
		if (!atomic_load(&v->ahead_stopped))
			find(v, t->dir);
		break;
	case GROW:
		grow(v, t->tree, 0);
		break;
	}
	free(t->batch);
	free(t);
}

static void submit(struct cfs_vfs *v, const struct task *what)
{
	struct task *t = malloc(sizeof(*t));

	if (t) {
		*t = *what;
		t->vfs = v;
		t->job = (struct cfs_job){.run = run};
	}
	if (t && cfs_workers_try_submit(v->ahead, &t->job) == 0)
		return;
	if (what->what == LIST)
		walk_listed(&v->walks, what->dir, NULL);
	else if (what->what == GROW)
		tree_leave(&v->trees, what->tree, false);
	free(what->batch);
	free(t);
}

static bool is_on(struct cfs_vfs *v)
{
	return !atomic_load(&v->ahead_stopped) && cfs_data_reads_ahead(v->conf.data);
}

void ahead_opened(struct cfs_vfs *v, cfs_ino_t ino, const struct cfs_attr *attr)
{
	struct task t = {.dir = attr->parent};

	if (!attr->parent || !is_on(v))
		return;
	switch (walk_opened(&v->walks, attr->parent, ino, &t.batch)) {
	case WALK_LIST:
		t.what = LIST;
		submit(v, &t);
		break;
	case WALK_FETCH:
		t.what = FETCH;
		submit(v, &t);
		break;
	case WALK_NOTHING:
		break;
	}
	if (tree_opened(&v->trees, attr->parent, &t.tree) == TREE_GROW)
		submit(v, &(struct task){.what = GROW, .tree = t.tree});
}

void ahead_listed(struct cfs_vfs *v, cfs_ino_t dir)
{
	struct task t = {.dir = dir};

	/* Recorded even while read-ahead is off: a tree needs the way to its first file. */
	if (atomic_load(&v->ahead_stopped))
		return;
	switch (tree_listed(&v->trees, dir, &t.tree)) {
	case TREE_FIND:
		t.what = FIND;
		if (is_on(v))
			submit(v, &t);
		break;
	case TREE_GROW:
		t.what = GROW;
		submit(v, &t);
		break;
	case TREE_NOTHING:
		break;
	}
}

int ahead_start(struct cfs_vfs *v)
{
	walks_init(&v->walks);
	trees_init(&v->trees);
	return cfs_workers_create("ahead", THREADS, QUEUE_LIMIT, &v->ahead);
}

void ahead_stop(struct cfs_vfs *v)
{
	atomic_store(&v->ahead_stopped, true);
	if (v->ahead)
		cfs_workers_destroy(v->ahead);
	v->ahead = NULL;
}
