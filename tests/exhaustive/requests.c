/* SPDX-License-Identifier: Apache-2.0 */
#include "requests.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "data/data-internal.h"

#define ARGS	  6
#define WRITE_MAX 16384

struct request {
	struct mount *m;
	struct progress *p;
	void (*settle)(void);
	struct cfs_ctx ctx;
	char *arg[ARGS];
};

static struct cfs_ctx context(struct mount *m)
{
	return cfs_vfs_ctx(m->vfs, 0, 0, getpid());
}

static uint64_t number(const struct request *q, int i)
{
	return strtoull(q->arg[i], NULL, 0);
}

static uint64_t fh_of(const struct request *q, int i)
{
	return q->p->fh[number(q, i) % FDS_MAX];
}

static const char *last(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* The directory of a path and, if it is there, its inode; 0: it is not. */
static int look_up(struct mount *m, const char *path, cfs_ino_t *ret_dir, cfs_ino_t *ret_ino)
{
	struct cfs_vfs_entry e = {.ino = CFS_ROOT_INO};
	size_t len;
	int r = 0;

	for (; r == 0; path += len + 1) {
		struct cfs_ctx ctx = context(m);

		len = strcspn(path, "/");
		*ret_dir = e.ino;
		r = cfs_vfs_lookup(m->vfs, &ctx, *ret_dir, path, len, &e);
		if (r < 0 || !path[len])
			break;
	}
	*ret_ino = r == 0 ? e.ino : 0;
	return r == -ENOENT && !strchr(path, '/') ? 0 : r;
}

/* ---- names ---- */

static struct cfs_mknod make(const struct request *q, const char *path, uint8_t type, uint16_t mode)
{
	return (struct cfs_mknod){
		.parent = q->p->dir[0],
		.name = last(path),
		.name_len = strlen(last(path)),
		.type = type,
		.mode = mode,
	};
}

static int do_create(struct request *q)
{
	struct cfs_mknod in = make(q, q->arg[1], CFS_TYPE_FILE, (uint16_t)number(q, 3));
	struct cfs_vfs_entry e;
	struct cfs_vfs_open o;
	int r = q->p->found ? -EEXIST
			    : cfs_vfs_create_file(q->m->vfs, &q->ctx, &in,
						  O_RDWR | O_CREAT | O_EXCL, &e, &o);

	if (r == 0) {
		q->p->fh[number(q, 2)] = o.fh;
		q->p->ino[number(q, 2)] = e.ino;
	}
	return r;
}

static int do_open(struct request *q)
{
	struct cfs_vfs_open o;
	int r = q->p->found ? cfs_vfs_open(q->m->vfs, &q->ctx, q->p->found, O_RDWR, &o) : -ENOENT;

	if (r == 0) {
		q->p->fh[number(q, 2)] = o.fh;
		q->p->ino[number(q, 2)] = q->p->found;
	}
	return r;
}

static int do_mkdir(struct request *q)
{
	struct cfs_mknod in = make(q, q->arg[1], CFS_TYPE_DIR, (uint16_t)number(q, 2));
	struct cfs_vfs_entry e;

	return q->p->found ? -EEXIST : cfs_vfs_mknod(q->m->vfs, &q->ctx, &in, &e);
}

static int do_symlink(struct request *q)
{
	struct cfs_mknod in = make(q, q->arg[2], CFS_TYPE_SYMLINK, 0777);
	struct cfs_vfs_entry e;

	in.target = q->arg[1];
	in.target_len = strlen(q->arg[1]);
	return q->p->found ? -EEXIST : cfs_vfs_mknod(q->m->vfs, &q->ctx, &in, &e);
}

static int do_link(struct request *q)
{
	const char *name = last(q->arg[2]);
	struct cfs_vfs_entry e;

	if (!q->p->found)
		return -ENOENT;
	if (q->p->other)
		return -EEXIST;
	return cfs_vfs_link(q->m->vfs, &q->ctx, q->p->found, q->p->dir[1], name, strlen(name), &e);
}

static int move(struct request *q, unsigned flags)
{
	const struct cfs_rename in = {
		.src_parent = q->p->dir[0],
		.dst_parent = q->p->dir[1],
		.src_name = last(q->arg[1]),
		.dst_name = last(q->arg[2]),
		.src_len = strlen(last(q->arg[1])),
		.dst_len = strlen(last(q->arg[2])),
		.flags = flags,
	};

	return q->p->found ? cfs_vfs_rename(q->m->vfs, &q->ctx, &in) : -ENOENT;
}

static int do_rename(struct request *q)
{
	return move(q, 0);
}

static int do_exchange(struct request *q)
{
	return q->p->other ? move(q, CFS_RENAME_EXCHANGE) : -ENOENT;
}

static int do_unlink(struct request *q)
{
	const char *name = last(q->arg[1]);

	if (!q->p->found)
		return -ENOENT;
	return cfs_vfs_unlink(q->m->vfs, &q->ctx, q->p->dir[0], name, strlen(name));
}

static int do_rmdir(struct request *q)
{
	const char *name = last(q->arg[1]);

	if (!q->p->found)
		return -ENOENT;
	return cfs_vfs_rmdir(q->m->vfs, &q->ctx, q->p->dir[0], name, strlen(name));
}

static int do_chmod(struct request *q)
{
	struct cfs_attr in = {.mode = (uint16_t)number(q, 2)};
	struct cfs_vfs_attr a;

	if (!q->p->found)
		return -ENOENT;
	return cfs_vfs_setattr(q->m->vfs, &q->ctx, q->p->found, 0, CFS_SET_MODE, &in, &a);
}

static int do_setxattr(struct request *q)
{
	if (!q->p->found)
		return -ENOENT;
	return cfs_vfs_setxattr(q->m->vfs, &q->ctx, q->p->found, q->arg[2], q->arg[3],
				strlen(q->arg[3]), 0);
}

/* ---- open files ---- */

static int write_at(struct request *q, uint64_t off, uint64_t len, char byte, bool append)
{
	char buf[WRITE_MAX];
	struct iovec v = {buf, CFS_MIN(len, sizeof(buf))};
	uint64_t at;

	memset(buf, byte, v.iov_len);
	return cfs_vfs_write(q->m->vfs, &q->ctx, fh_of(q, 1), off, append, &v, 1, &at);
}

static int do_write(struct request *q)
{
	return write_at(q, number(q, 2), number(q, 3), *q->arg[4], false);
}

static int do_append(struct request *q)
{
	return write_at(q, q->p->end, number(q, 2), *q->arg[3], true);
}

static int do_truncate(struct request *q)
{
	struct cfs_attr in = {.length = number(q, 2)};
	struct cfs_vfs_attr a;

	if (!fh_of(q, 1))
		return -EBADF;
	return cfs_vfs_setattr(q->m->vfs, &q->ctx, q->p->ino[number(q, 1)], fh_of(q, 1),
			       CFS_VFS_SET_SIZE | CFS_SET_MTIME_NOW, &in, &a);
}

static int do_fallocate(struct request *q)
{
	return cfs_vfs_fallocate(q->m->vfs, &q->ctx, fh_of(q, 1), 0, number(q, 2), number(q, 3));
}

static int do_punch(struct request *q)
{
	return cfs_vfs_fallocate(q->m->vfs, &q->ctx, fh_of(q, 1),
				 CFS_FALLOC_PUNCH_HOLE | CFS_FALLOC_KEEP_SIZE, number(q, 2),
				 number(q, 3));
}

static int do_copy(struct request *q)
{
	uint64_t copied = 0;
	int r = cfs_vfs_copy_range(q->m->vfs, &q->ctx, fh_of(q, 1), number(q, 2), fh_of(q, 3),
				   number(q, 4), number(q, 5), &copied);

	return r < 0 ? r : (int)copied;
}

static int do_fsync(struct request *q)
{
	return cfs_vfs_fsync(q->m->vfs, &q->ctx, fh_of(q, 1));
}

static int do_flush(struct request *q)
{
	return cfs_vfs_flush_file(q->m->vfs, &q->ctx, fh_of(q, 1), 1);
}

/* advancing: as if a thread looked at the first one of the queue. */
static void hold_queue(struct cfs_closing_queue *queue, bool advancing)
{
	pthread_mutex_lock(&queue->lock);
	queue->advancing = advancing;
	pthread_mutex_unlock(&queue->lock);
}

static int do_close_together(struct request *q)
{
	struct cfs_data *d = q->m->data;
	int i, r, first = 0;

	if (!fh_of(q, 1) || !fh_of(q, 2) || !fh_of(q, 3))
		return -EBADF;
	hold_queue(&d->closing, true);
	for (i = 1; i <= 3; i++) {
		r = cfs_vfs_flush_file(q->m->vfs, &q->ctx, fh_of(q, i), 1);
		first = first ? first : r;
	}
	q->settle();
	hold_queue(&d->closing, false);
	cfs_closing_advance(d);
	return first;
}

/* The kernel reads no answer to it. */
static int do_release(struct request *q)
{
	uint64_t fh = fh_of(q, 1);
	int r = cfs_vfs_release(q->m->vfs, &q->ctx, fh);

	q->p->fh[number(q, 1)] = 0;
	return r == -EBADF ? r : 0;
}

/* ---- all of them ---- */

/* once: the kernel sends it again marked, and its result is recorded (src/fuse/ops-*.c). */
static const struct verb {
	const char *name;
	int (*run)(struct request *q);
	bool once;
	int paths, first; /* how many arguments are paths, and which is the first */
} verbs[] = {
	{"create", do_create, true, 1, 1},
	{"open", do_open, true, 1, 1},
	{"mkdir", do_mkdir, true, 1, 1},
	{"symlink", do_symlink, true, 1, 2},
	{"link", do_link, true, 2, 1},
	{"rename", do_rename, true, 2, 1},
	{"exchange", do_exchange, true, 2, 1},
	{"unlink", do_unlink, true, 1, 1},
	{"rmdir", do_rmdir, true, 1, 1},
	{"chmod", do_chmod, false, 1, 1},
	{"setxattr", do_setxattr, true, 1, 1},
	{"write", do_write, false, 0, 0},
	{"append", do_append, true, 0, 0},
	{"truncate", do_truncate, false, 0, 0},
	{"fallocate", do_fallocate, false, 0, 0},
	{"punch", do_punch, false, 0, 0},
	{"copy", do_copy, false, 0, 0},
	{"fsync", do_fsync, false, 0, 0},
	{"flush", do_flush, false, 0, 0},
	{"release", do_release, false, 0, 0},
	{"close-together", do_close_together, false, 0, 0},
};

static const struct verb *verb_of(const char *name)
{
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(verbs); i++)
		if (!strcmp(verbs[i].name, name))
			return &verbs[i];
	fprintf(stderr, "requests: no such request: %s\n", name);
	_exit(9);
}

/* The kernel's knowledge before it sends the request. A failed lookup is its answer. */
static int prepare(struct request *q, const struct verb *verb)
{
	struct progress *p = q->p;
	struct cfs_ctx ctx = context(q->m);
	struct cfs_vfs_attr a = {.attr = {.length = 0}};
	int i, r = 0;

	for (i = 0; i < verb->paths && r == 0; i++)
		r = look_up(q->m, q->arg[verb->first + i], &p->dir[i], i ? &p->other : &p->found);
	if (r == 0 && verb->run == do_append && fh_of(q, 1))
		r = cfs_vfs_getattr(q->m->vfs, &ctx, p->ino[number(q, 1)], &a);
	p->end = a.attr.length;
	return r;
}

void request_run(struct mount *m, struct cfs_handoff *handoff, struct progress *p, uint32_t i,
		 const char *text, bool again, void (*settle)(void))
{
	struct request q = {.m = m, .p = p, .settle = settle};
	struct cfs_handoff_request *record = NULL;
	const char *broken = getenv("EXHAUSTIVE_BREAK");
	const struct verb *verb;
	char copy[256], *rest = copy;
	int n, r = 0;

	snprintf(copy, sizeof(copy), "%s", text);
	for (n = 0; n < ARGS && (q.arg[n] = strsep(&rest, " ")) != NULL; n++)
		;
	verb = verb_of(q.arg[0]);
	if (!again)
		r = prepare(&q, verb);
	if (r == 0) {
		q.ctx = context(m);
		atomic_store(&p->begun, i + 1);
		if (verb->once)
			record = cfs_handoff_begin_request(handoff, request_unique(i), again,
							   &q.ctx.replay);
		q.ctx.record = record;
		if (broken && !strcmp(broken, "replay"))
			q.ctx.replay = false;
		r = verb->run(&q);
	}
	p->answer[i] = r;
	atomic_store(&p->done, i + 1);
	atomic_store(&p->begun, i + 1);
	cfs_handoff_end_request(record);
}
