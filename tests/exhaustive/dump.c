/* SPDX-License-Identifier: Apache-2.0 */
#include "dump.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"

#define NAMES	   64
#define MAX	   (64 << 10)
#define PIECE	   100
#define UNREADABLE -1

struct names {
	char name[NAMES][64];
	cfs_ino_t ino[NAMES];
	size_t n;
	uint64_t off; /* behind the last one */
};

static struct cfs_ctx context(struct mount *m)
{
	return cfs_vfs_ctx(m->vfs, 0, 0, getpid());
}

static int keep_name(void *arg, const struct cfs_vfs_dirent *e)
{
	struct names *l = arg;

	if (l->n == NAMES)
		return -ENOSPC;
	l->off = e->next_off;
	if (e->name[0] == '.' && (e->name_len == 1 || (e->name_len == 2 && e->name[1] == '.')))
		return 0;
	snprintf(l->name[l->n], sizeof(l->name[0]), "%.*s", (int)e->name_len, e->name);
	l->ino[l->n++] = e->ino;
	return 0;
}

/* Bytes of the file as numbers, UNREADABLE where they are. */
static int read_piece(struct mount *m, uint64_t fh, uint64_t off, uint32_t len, int *to)
{
	struct cfs_ctx ctx = context(m);
	struct cfs_segs segs;
	uint8_t buf[MAX];
	uint32_t i;
	int r;

	cfs_segs_init(&segs);
	r = cfs_vfs_read(m->vfs, &ctx, fh, off, len, NULL, &segs);
	if (r == 0 && segs.len != len)
		r = -EIO;
	if (r == 0)
		cfs_segs_copy_out(&segs, 0, buf, len);
	for (i = 0; i < len; i++)
		to[i] = r == 0 ? buf[i] : UNREADABLE;
	cfs_segs_release(&segs);
	return r;
}

static void dump_content(struct mount *m, cfs_ino_t ino, uint64_t length, FILE *out)
{
	struct cfs_ctx ctx = context(m);
	static int bytes[MAX];
	struct cfs_vfs_open o;
	uint64_t i, n;
	int r = cfs_vfs_open(m->vfs, &ctx, ino, O_RDONLY | O_NOATIME, &o);

	if (r < 0 || length > MAX) {
		fprintf(out, "! %s", cfs_errname(r));
		return;
	}
	if (length && read_piece(m, o.fh, 0, (uint32_t)length, bytes) < 0)
		for (i = 0; i < length; i += PIECE)
			read_piece(m, o.fh, i, (uint32_t)CFS_MIN(length - i, (uint64_t)PIECE),
				   bytes + i);
	for (i = 0; i < length; i += n) {
		for (n = 1; i + n < length && bytes[i + n] == bytes[i]; n++)
			;
		if (bytes[i] == UNREADABLE)
			fprintf(out, "%s--*%llu", i ? "," : "", (unsigned long long)n);
		else
			fprintf(out, "%s%02x*%llu", i ? "," : "", (unsigned)bytes[i],
				(unsigned long long)n);
	}
	if (!length)
		fputs("-", out);
	ctx = context(m);
	cfs_vfs_release(m->vfs, &ctx, o.fh);
}

static void dump_xattrs(struct mount *m, cfs_ino_t ino, FILE *out)
{
	struct cfs_ctx ctx = context(m);
	char list[1024], value[256];
	ssize_t len = cfs_vfs_listxattr(m->vfs, &ctx, ino, list, sizeof(list)), n;
	const char *p;

	if (len <= 0)
		fputs(len ? "! " : "-", out);
	for (p = list; len > 0 && p < list + len; p += strlen(p) + 1) {
		n = cfs_vfs_getxattr(m->vfs, &ctx, ino, p, value, sizeof(value));
		fprintf(out, "%s%s=%.*s", p == list ? "" : ",", p, (int)CFS_MAX(n, 0), value);
	}
}

static void dump_dir(struct mount *m, cfs_ino_t dir, const char *path, FILE *out);

static void dump_one(struct mount *m, cfs_ino_t dir, const char *name, const char *path, FILE *out)
{
	struct cfs_ctx ctx = context(m);
	char target[CFS_SYMLINK_MAX + 1];
	struct cfs_vfs_entry e;
	int r = cfs_vfs_lookup(m->vfs, &ctx, dir, name, strlen(name), &e);

	if (r < 0) {
		fprintf(out, "%s ! %s\n", path, cfs_errname(r));
		return;
	}
	fprintf(out, "%s %c %o %u %u %u %llu %llu ", path,
		e.attr.type == CFS_TYPE_DIR	  ? 'd'
		: e.attr.type == CFS_TYPE_SYMLINK ? 'l'
						  : 'f',
		e.attr.mode, e.attr.nlink, e.attr.uid, e.attr.gid, (unsigned long long)e.ino,
		(unsigned long long)e.attr.length);
	if (e.attr.type == CFS_TYPE_FILE)
		dump_content(m, e.ino, e.attr.length, out);
	else if (e.attr.type == CFS_TYPE_SYMLINK)
		fputs(cfs_vfs_readlink(m->vfs, &ctx, e.ino, target) == 0 ? target : "!", out);
	else
		fputs("-", out);
	fputc(' ', out);
	dump_xattrs(m, e.ino, out);
	fputc('\n', out);
	if (e.attr.type == CFS_TYPE_DIR)
		dump_dir(m, e.ino, path, out);
}

static void dump_dir(struct mount *m, cfs_ino_t dir, const char *path, FILE *out)
{
	struct names *l = calloc(1, sizeof(*l));
	struct cfs_ctx ctx = context(m);
	char full[256];
	struct cfs_vfs_open o;
	uint64_t off;
	size_t i;
	int r = l ? cfs_vfs_opendir(m->vfs, &ctx, dir, &o) : -ENOMEM;

	if (r == 0) {
		do {
			off = l->off;
			r = cfs_vfs_readdir(m->vfs, &ctx, o.fh, off, false, keep_name, l);
		} while (r == 0 && l->off != off);
		cfs_vfs_releasedir(m->vfs, &ctx, o.fh);
	}
	if (r < 0)
		fprintf(out, "%s/ ! %s\n", path, cfs_errname(r));
	for (i = 0; r == 0 && i < l->n; i++) {
		snprintf(full, sizeof(full), "%s%s%s", path, *path ? "/" : "", l->name[i]);
		dump_one(m, dir, l->name[i], full, out);
	}
	free(l);
}

void dump_tree(struct mount *m, FILE *out)
{
	dump_dir(m, CFS_ROOT_INO, "", out);
}
