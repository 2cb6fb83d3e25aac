/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open files of hot blocks with their checksums, so that a read is one system call. The cache is an
 * array of small sets of fixed size. Files are reference counted: eviction does not close one that a
 * read uses.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "disk-internal.h"

#define NOFILE_PARTS 4
#define FILES_MIN    16
#define FILES_MAX    4096

static void run_close(struct cfs_job *job)
{
	struct cfs_disk_file *f = (struct cfs_disk_file *)job;

	close(f->fd);
	free(f);
}

/* Closing a removed file frees its space, which may wait, as does a disk that hangs. */
static bool may_wait_to_close(const struct cfs_disk_file *f)
{
	struct statx st;

	return atomic_load(&f->dir->cd->state) == DIR_FAILED ||
	       statx(f->fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_NLINK, &st) < 0 ||
	       st.stx_nlink == 0;
}

void cfs_disk_file_unref(struct cfs_disk_file *f)
{
	struct segment_pieces *pieces;

	if (!f || atomic_fetch_sub(&f->refs, 1) > 1)
		return;
	pieces = atomic_load(&f->pieces);
	if (pieces)
		atomic_fetch_sub(&f->dir->disk->pieces_bytes, f->n_crcs * sizeof(*pieces));
	free(pieces);
	f->closing.run = run_close;
	if (!f->dir->closer || !may_wait_to_close(f) ||
	    cfs_workers_try_submit(f->dir->closer, &f->closing) < 0)
		run_close(&f->closing);
}

static struct file_set *set_of(struct fd_cache *c, const struct cfs_block *b)
{
	return &c->sets[cfs_disk_hash(b) & (c->n_sets - 1)];
}

static unsigned find(const struct file_set *set, const struct cfs_block *b)
{
	unsigned i = 0;

	while (i < CFS_FD_WAYS && !(set->way[i] && cfs_block_equal(&set->way[i]->id, b)))
		i++;
	return i;
}

/* Makes f the first of its set; the one at `last` is overwritten. */
static void move_first(struct file_set *set, unsigned last, struct cfs_disk_file *f)
{
	for (; last > 0; last--)
		set->way[last] = set->way[last - 1];
	set->way[0] = f;
}

struct cfs_disk_file *cfs_disk_fds_get(struct fd_cache *c, const struct cfs_block *b)
{
	struct file_set *set = set_of(c, b);
	struct cfs_disk_file *f;
	unsigned i;
	CFS_LOCK_GUARD(&set->lock);

	i = find(set, b);
	if (i == CFS_FD_WAYS)
		return NULL;
	f = set->way[i];
	atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
	move_first(set, i, f);
	return f;
}

void cfs_disk_fds_add(struct fd_cache *c, struct cfs_disk_file *f)
{
	struct file_set *set = set_of(c, &f->id);
	struct cfs_disk_file *out = NULL;

	pthread_mutex_lock(&set->lock);
	if (find(set, &f->id) == CFS_FD_WAYS) {
		out = set->way[CFS_FD_WAYS - 1];
		atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
		move_first(set, CFS_FD_WAYS - 1, f);
	}
	pthread_mutex_unlock(&set->lock);
	cfs_disk_file_unref(out);
}

void cfs_disk_fds_drop(struct fd_cache *c, const struct cfs_block *b)
{
	struct file_set *set = set_of(c, b);
	struct cfs_disk_file *f = NULL;
	unsigned i;

	pthread_mutex_lock(&set->lock);
	i = find(set, b);
	if (i < CFS_FD_WAYS) {
		f = set->way[i];
		for (; i + 1 < CFS_FD_WAYS; i++)
			set->way[i] = set->way[i + 1];
		set->way[i] = NULL;
	}
	pthread_mutex_unlock(&set->lock);
	cfs_disk_file_unref(f);
}

static bool is_unlinked(const struct cfs_disk_file *f)
{
	struct stat st;

	return fstat(f->fd, &st) < 0 || st.st_nlink == 0;
}

void cfs_disk_fds_sweep(struct fd_cache *c, const struct disk_dir *dir, bool all, uint32_t since_s)
{
	unsigned i, k;

	for (i = 0; i < c->n_sets; i++) {
		struct cfs_disk_file *held[CFS_FD_WAYS];
		struct file_set *set = &c->sets[i];
		unsigned n = 0;

		pthread_mutex_lock(&set->lock);
		for (k = 0; k < CFS_FD_WAYS; k++) {
			struct cfs_disk_file *f = set->way[k];

			if (f && f->dir == dir) {
				atomic_fetch_add(&f->refs, 1);
				held[n++] = f;
			}
		}
		pthread_mutex_unlock(&set->lock);
		for (k = 0; k < n; k++) {
			if (all || atomic_load(&held[k]->used_s) < since_s || is_unlinked(held[k]))
				cfs_disk_fds_drop(c, &held[k]->id);
			cfs_disk_file_unref(held[k]);
		}
	}
}

int cfs_disk_fds_init(struct fd_cache *c)
{
	struct rlimit limit;
	rlim_t files = FILES_MAX;
	unsigned i;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
		files = CFS_MIN(files, limit.rlim_cur / NOFILE_PARTS);
	files = CFS_MAX(files, FILES_MIN);
	c->n_sets = 1;
	while (2 * c->n_sets * CFS_FD_WAYS <= files)
		c->n_sets *= 2;
	c->sets = calloc(c->n_sets, sizeof(*c->sets));
	if (!c->sets)
		return -ENOMEM;
	for (i = 0; i < c->n_sets; i++)
		pthread_mutex_init(&c->sets[i].lock, NULL);
	return 0;
}

void cfs_disk_fds_fini(struct fd_cache *c)
{
	unsigned i, k;

	for (i = 0; c->sets && i < c->n_sets; i++) {
		for (k = 0; k < CFS_FD_WAYS; k++)
			cfs_disk_file_unref(c->sets[i].way[k]);
		pthread_mutex_destroy(&c->sets[i].lock);
	}
	free(c->sets);
}
