/* SPDX-License-Identifier: Apache-2.0 */
/* fsck of one file or tree: judges each inode by itself and asks for each block by name. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "cmd/access/cmd.h"
#include "cmd/check/blocks.h"
#include "cmd/check/fsck.h"

#define PAGE 1000

struct item {
	cfs_ino_t ino;
	uint8_t type;
};

struct walk {
	struct fsck *f;
	struct item *todo;
	size_t n, cap;
	int err;
};

static int push(struct walk *w, cfs_ino_t ino, uint8_t type)
{
	return CFS_ARRAY_ADD(w->todo, w->n, w->cap, (struct item){ino, type});
}

static int note_entry(void *arg, const struct cfs_dirent *e)
{
	struct walk *w = arg;

	w->f->names++;
	w->err = push(w, e->entry.ino, e->type);
	return w->err;
}

static int push_entries(struct walk *w, cfs_ino_t dir)
{
	struct cfs_cursor cursor = {0};
	int r;

	do {
		struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);

		r = cfs_meta_readdir(w->f->a->meta, &ctx, dir, false, PAGE, &cursor, note_entry, w);
	} while (r == 0 && w->err == 0);
	if (w->err)
		return w->err;
	return r < 0 && r != -ENOENT ? r : 0;
}

static int check_slice(struct fsck *f, cfs_ino_t ino, const struct cfs_slice *s)
{
	struct admin *a = f->a;
	uint32_t i = s->off / a->block_size, last;
	int r = 0;

	if (!s->id || !s->len || (uint64_t)s->off + s->len > s->size)
		return 0;
	last = (s->off + s->len - 1) / a->block_size;
	for (; i <= last && r == 0; i++) {
		char key[CFS_BLOCK_KEY_MAX];
		uint64_t size;

		f->objects++;
		progress_add(&f->p, 1);
		r = blocks_look(a, s->id, s->size, i, key, &size);
		if (r > 0)
			r = fsck_block(f, ino, key, size);
	}
	return r;
}

static int check_chunk(struct fsck *f, cfs_ino_t ino, uint32_t indx)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	struct cfs_slice *v = NULL;
	ssize_t i, n = cfs_meta_read_chunk(f->a->meta, &ctx, ino, indx, &v);
	int r = n < 0 ? (int)n : fsck_records(f, ino, indx, v, (size_t)n);

	if (n == -EIO)
		r = fsck_report(f, "record", ino, false, "chunk %u is not a list of records", indx);
	for (i = 0; i < n && r == 0 && f->a->store; i++)
		r = check_slice(f, ino, &v[i]);
	free(v);
	return r;
}

static int check_file(struct fsck *f, cfs_ino_t ino)
{
	struct cfs_stored_chunks stored = {0};
	struct cfs_chunk_len c;
	int r = 0;

	while (r == 0) {
		struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);

		r = cfs_stored_next(f->a->meta, &ctx, ino, &stored, &c);
		if (r <= 0)
			break;
		r = check_chunk(f, ino, c.indx);
	}
	cfs_stored_end(&stored);
	return r;
}

int fsck_path(struct fsck *f, const char *path, bool recursive)
{
	struct walk w = {.f = f};
	struct cfs_entry top;
	int r = admin_lookup(f->a, path, &top);

	if (r < 0)
		return cmd_fail(r, "%s: %s", path, strerror(-r));
	progress_begin(&f->p, "objects looked at");
	r = push(&w, top.ino, top.attr.type);
	while (r == 0 && w.n) {
		struct item i = w.todo[--w.n];

		f->inodes++;
		r = fsck_inode(f, i.ino);
		if (r == 0 && i.type == CFS_TYPE_FILE)
			r = check_file(f, i.ino);
		else if (r == 0 && i.type == CFS_TYPE_DIR && recursive)
			r = push_entries(&w, i.ino);
	}
	progress_end(&f->p);
	free(w.todo);
	return r == 0 ? fsck_usage(f, false) : r;
}
