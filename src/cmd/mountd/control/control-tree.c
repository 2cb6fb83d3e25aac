/* SPDX-License-Identifier: Apache-2.0 */
/* clone, rmr and compact inside a mount. */
#include <cachefs/data.h>
#include <cachefs/vfs.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "cmd/mountd/control/control-serve.h"
#include "cmd/sets/dirwalk.h"

/* ---- clone ---- */

static int clone_step(void *arg, uint64_t done)
{
	struct control_job *job = arg;

	atomic_store(&job->done, done);
	return control_check(job);
}

int control_clone(struct control_server *s, struct control_job *job, json_t *in, json_t **ret)
{
	char name[CFS_NAME_MAX + 1];
	struct cfs_clone req = {
		.src = control_ino(s, in, "inode"),
		.parent = control_ino(s, in, "parent"),
		.name = name,
		.preserve = json_is_true(json_object_get(in, "preserve")),
		.step = clone_step,
		.arg = job,
	};
	struct cfs_entry copy;
	int r = control_name(in, name, &req.name_len);

	/* The copy has only committed data. */
	if (r == 0)
		r = cfs_data_await_closed(s->data, job->who->deadline);
	if (r == 0)
		r = cfs_meta_clone(s->meta, job->who, &req, &copy);
	if (r < 0)
		return r;
	cfs_vfs_name_changed(s->vfs, req.parent, name, req.name_len);
	s->name_changed(s->arg, req.parent, name, req.name_len);
	*ret = json_pack("{s:I, s:I}", "inode", (json_int_t)copy.ino, "copied",
			 (json_int_t)atomic_load(&job->done));
	return 0;
}

/* ---- rmr ---- */

/* A directory on the path to the current one: about 600 bytes per level of the tree. */
struct level {
	struct cfs_name dir; /* its entry in the level above, without a position */
	struct cfs_cursor cursor;
};

struct removal {
	struct control_server *s;
	struct control_job *job;
	unsigned flags;
	struct level *path;
	size_t depth, cap;
	uint64_t removed, failed;
	int first_err;
};

static int push(struct removal *w, const struct cfs_name *dir)
{
	return CFS_ARRAY_ADD(w->path, w->depth, w->cap, (struct level){.dir = *dir});
}

static int remove_entry(struct removal *w, cfs_ino_t parent, const struct cfs_name *i)
{
	struct cfs_ctx ctx = control_step(w->job);
	int r = cfs_vfs_remove(w->s->vfs, &ctx, parent, i->name, i->len, i->type == CFS_TYPE_DIR,
			       w->flags);

	if (r == 0) {
		w->removed++;
		atomic_store(&w->job->done, w->removed);
	}
	return r;
}

/* The first failure is remembered, and removal continues with the rest. */
static void note_failure(struct removal *w, int err)
{
	if (err == 0 || err == -ENOENT)
		return;
	w->failed++;
	w->first_err = w->first_err ? w->first_err : err;
}

/* Handles one page of the deepest directory; stops early at a subdirectory. */
static int remove_page(struct removal *w, struct cfs_names *p)
{
	struct level *l = &w->path[w->depth - 1];
	cfs_ino_t dir = l->dir.ino;
	struct cfs_ctx ctx = control_step(w->job);
	size_t i;
	int r, last;

	p->n = 0;
	last = cfs_meta_readdir(w->s->meta, &ctx, dir, false, CFS_NAMES_MAX, &l->cursor,
				cfs_names_add, p);
	if (last < 0 && last != -ENOENT)
		note_failure(w, last);
	for (i = 0; i < p->n; i++) {
		r = control_check(w->job);
		if (r < 0)
			return r;
		r = remove_entry(w, dir, &p->v[i]);
		if (r == -ENOTEMPTY) {
			l->cursor = p->v[i].after;
			return push(w, &p->v[i]);
		}
		note_failure(w, r);
	}
	if (last == 0)
		return 0;
	/* The directory is empty and can be removed itself. */
	w->depth--;
	if (w->depth) {
		struct cfs_name self = w->path[w->depth].dir;

		note_failure(w, remove_entry(w, w->path[w->depth - 1].dir.ino, &self));
	}
	return 0;
}

static int remove_tree(struct removal *w, cfs_ino_t parent, const struct cfs_name *top)
{
	struct cfs_names *p = malloc(sizeof(*p));
	int r = p ? remove_entry(w, parent, top) : -ENOMEM;

	if (r == -ENOTEMPTY) {
		r = push(w, top);
		while (r == 0 && w->depth)
			r = remove_page(w, p);
		if (r == 0)
			note_failure(w, remove_entry(w, parent, top));
	} else if (r < 0 && r != -ENOMEM) {
		note_failure(w, r);
		r = 0;
	}
	free(p);
	return r;
}

int control_rmr(struct control_server *s, struct control_job *job, json_t *in, json_t **ret)
{
	struct removal w = {.s = s, .job = job};
	cfs_ino_t parent = control_ino(s, in, "parent");
	struct cfs_ctx ctx = control_step(job);
	char name[CFS_NAME_MAX + 1];
	struct cfs_entry e;
	struct cfs_name top = {0};
	size_t len;
	int r = control_name(in, name, &len);

	if (r == 0)
		r = cfs_meta_lookup(s->meta, &ctx, parent, name, len, &e);
	if (r < 0)
		return r;
	/* Another client may have replaced the inode since the client looked the path up. */
	if (e.ino != control_ino(s, in, "inode"))
		return -ESTALE;
	if (json_is_true(json_object_get(in, "skip_trash")))
		w.flags = CFS_REMOVE_SKIP_TRASH;
	top.ino = e.ino;
	top.type = e.attr.type;
	top.len = (uint8_t)len;
	memcpy(top.name, name, len);
	r = remove_tree(&w, parent, &top);
	free(w.path);
	s->name_changed(s->arg, parent, name, len);
	if (r < 0)
		return r;
	*ret = json_pack("{s:I, s:I, s:i}", "removed", (json_int_t)w.removed, "failed",
			 (json_int_t)w.failed, "first_errno", -w.first_err);
	return 0;
}

/* ---- compact ---- */

struct compaction {
	struct control_server *s;
	struct control_job *job;
	uint64_t files, chunks, before, after, failed;
};

static uint64_t count_records(struct compaction *w, cfs_ino_t ino, uint32_t indx)
{
	struct cfs_ctx ctx = control_step(w->job);
	struct cfs_slice *v = NULL;
	ssize_t n = cfs_meta_read_chunk(w->s->meta, &ctx, ino, indx, &v);

	free(v);
	return n > 0 ? (uint64_t)n : 0;
}

static int compact_chunk(struct compaction *w, cfs_ino_t ino, const struct cfs_chunk_len *c)
{
	struct cfs_ctx ctx = control_step(w->job);
	int r = control_check(w->job);

	if (r < 0)
		return r;
	/* Compaction may have to read and write 64 MiB. */
	ctx.deadline = cfs_deadline_in(4ULL * CONTROL_STEP_MS);
	r = c->records > 1 ? cfs_data_compact(w->s->data, &ctx, ino, c->indx) : 0;
	w->chunks++;
	w->before += c->records;
	w->after += c->records > 1 ? count_records(w, ino, c->indx) : c->records;
	/* No failure: another client has changed, removed or compacted the chunk meanwhile. */
	if (r < 0 && r != -EAGAIN && r != -ENOENT)
		w->failed++;
	return 0;
}

static int compact_file(struct compaction *w, cfs_ino_t ino)
{
	struct cfs_stored_chunks stored = {0};
	struct cfs_chunk_len c;
	int r = 0;

	while (r == 0) {
		struct cfs_ctx ctx = control_step(w->job);

		r = cfs_stored_next(w->s->meta, &ctx, ino, &stored, &c);
		if (r <= 0)
			break;
		r = compact_chunk(w, ino, &c);
	}
	cfs_stored_end(&stored);
	w->files++;
	atomic_store(&w->job->done, w->files);
	return r;
}

static int compact_below(struct compaction *w, cfs_ino_t dir)
{
	struct dirwalk walk = dirwalk_begin(w->s->meta, CONTROL_STEP_MS, dir, DIRWALK_BELOW);
	const struct cfs_dirent *e;
	int r = 0;

	walk.ctx = *w->job->who;
	while (r >= 0 && (r = dirwalk_next(&walk, &e)) > 0) {
		if (e->type == CFS_TYPE_FILE)
			r = compact_file(w, e->entry.ino);
	}
	dirwalk_end(&walk);
	return r;
}

int control_compact(struct control_server *s, struct control_job *job, json_t *in, json_t **ret)
{
	struct compaction w = {.s = s, .job = job};
	cfs_ino_t ino = control_ino(s, in, "inode");
	struct cfs_ctx ctx = control_step(job);
	struct cfs_attr attr;
	int r = cfs_meta_getattr(s->meta, &ctx, ino, &attr);

	if (r == 0 && attr.type == CFS_TYPE_FILE)
		r = compact_file(&w, ino);
	else if (r == 0 && attr.type == CFS_TYPE_DIR)
		r = compact_below(&w, ino);
	if (r < 0)
		return r;
	*ret = json_pack("{s:I, s:I, s:I, s:I, s:I}", "files", (json_int_t)w.files, "chunks",
			 (json_int_t)w.chunks, "records_before", (json_int_t)w.before,
			 "records_after", (json_int_t)w.after, "failed", (json_int_t)w.failed);
	return 0;
}
