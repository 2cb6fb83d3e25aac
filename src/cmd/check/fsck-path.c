/* SPDX-License-Identifier: Apache-2.0 */
/* fsck of one file or tree: judges each inode by itself and asks for each block by name. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/access/cmd.h"
#include "cmd/check/blocks.h"
#include "cmd/check/fsck.h"
#include "cmd/sets/dirwalk.h"

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

static int check_inode(struct fsck *f, cfs_ino_t ino, uint8_t type)
{
	int r = fsck_inode(f, ino);

	f->inodes++;
	return r == 0 && type == CFS_TYPE_FILE ? check_file(f, ino) : r;
}

static int check_below(struct fsck *f, cfs_ino_t dir)
{
	struct dirwalk w = dirwalk_begin(f->a->meta, ADMIN_STEP_MS, dir, DIRWALK_BELOW);
	const struct cfs_dirent *e;
	int r = 0;

	while (r >= 0 && (r = dirwalk_next(&w, &e)) > 0) {
		f->names++;
		r = check_inode(f, e->entry.ino, e->type);
	}
	dirwalk_end(&w);
	return r;
}

int fsck_path(struct fsck *f, const char *path, bool recursive)
{
	struct cfs_entry top;
	int r = admin_lookup(f->a, path, &top);

	if (r < 0)
		return cmd_fail(r, "%s: %s", path, strerror(-r));
	progress_begin(&f->p, "objects looked at");
	r = check_inode(f, top.ino, top.attr.type);
	if (r == 0 && top.attr.type == CFS_TYPE_DIR && recursive)
		r = check_below(f, top.ino);
	progress_end(&f->p);
	return r == 0 ? fsck_usage(f, false) : r;
}
