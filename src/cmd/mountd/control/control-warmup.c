/* SPDX-License-Identifier: Apache-2.0 */
/*
 * warmup inside a mount: brings the blocks of files, and of all files below directories, into the
 * caches, looks for them there, or drops them. One thread walks, and a bounded queue feeds the
 * others.
 *
 * Memory: that of dirwalk.h, per block in the queue 100 bytes, per thread one block. Nothing grows
 * with the number of files.
 */
#include <cachefs/data.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/workers.h"
#include "cmd/access/jsontext.h"
#include "cmd/group/peers.h"
#include "cmd/mountd/control/control-serve.h"
#include "cmd/sets/dirwalk.h"

enum { THREADS_MAX = 64, QUEUE_PER_THREAD = 4, ROOTS_MAX = 1000, CHUNKS_FEW = 16 };

enum mode { FETCH, CHECK, EVICT };

/* The counts below one of the paths. */
struct sums {
	_Atomic uint64_t files, blocks, bytes;
	_Atomic uint64_t fetched, cached;	/* bytes: fetched; cached before */
	_Atomic uint64_t memory, disk, evicted; /* bytes */
	_Atomic uint64_t group;			/* bytes that members of the cache group have */
	_Atomic uint64_t declined, failed; /* blocks; failed also counts files and directories */
	_Atomic uint64_t whole, not_whole; /* files */
	_Atomic int first_err;
};

struct warmup {
	struct control_server *s;
	struct control_job *job;
	enum mode mode;
	bool counting; /* the first pass, which only counts */
	bool making;   /* the last pass, which composes whole files of the fetched blocks */
	struct cfs_workers *workers;
	_Atomic bool stop;
};

struct block_job {
	struct cfs_job job; /* first */
	struct warmup *w;
	struct sums *sums;
	struct cfs_block id;
	uint32_t off, len; /* the part of the block that the file uses */
};

static void note_failure(struct sums *sums, int err)
{
	int none = 0;

	atomic_fetch_add(&sums->failed, 1);
	atomic_compare_exchange_strong(&sums->first_err, &none, err);
}

/* ---- one block ---- */

static void fetch(struct warmup *w, struct sums *sums, const struct block_job *b)
{
	int r = cfs_store_warm(w->s->store, &b->id, cfs_deadline_in(CONTROL_STEP_MS));

	if (r == -EOPNOTSUPP)
		atomic_fetch_add(&sums->declined, 1);
	else if (r < 0)
		note_failure(sums, r);
	else
		atomic_fetch_add(r ? &sums->fetched : &sums->cached, b->len);
}

static void count_held(struct warmup *w, struct sums *sums, const struct block_job *b)
{
	struct cfs_store_held held;

	cfs_store_held(w->s->store, &b->id, b->off, b->len, &held);
	atomic_fetch_add(&sums->memory, held.memory);
	atomic_fetch_add(&sums->disk, held.disk);
	if (w->s->peers && peers_have(w->s->peers, &b->id, cfs_deadline_in(CONTROL_STEP_MS)))
		atomic_fetch_add(&sums->group, b->len);
	if (w->mode == EVICT && (held.memory || held.disk)) {
		cfs_store_forget(w->s->store, &b->id);
		atomic_fetch_add(&sums->evicted, b->len);
	}
}

static void run_block(struct cfs_job *job)
{
	struct block_job *b = (struct block_job *)job;
	struct warmup *w = b->w;

	if (!atomic_load(&w->stop)) {
		if (w->mode == FETCH)
			fetch(w, b->sums, b);
		else
			count_held(w, b->sums, b);
		atomic_fetch_add(&w->job->done, b->len);
	}
	free(b);
}

/* Takes the job over. */
static int submit_job(struct warmup *w, struct block_job *b)
{
	int r;

	/* The deadline is short, so that a client that has gone away is noticed. */
	do {
		r = control_check(w->job);
		if (r == 0)
			r = cfs_workers_submit(w->workers, &b->job, cfs_deadline_in(1000));
	} while (r == -ETIMEDOUT);
	if (r < 0)
		free(b);
	return r;
}

static int submit(struct warmup *w, struct sums *sums, const struct cfs_block *id, uint32_t off,
		  uint32_t len)
{
	struct block_job *b = malloc(sizeof(*b));

	if (!b)
		return -ENOMEM;
	*b = (struct block_job){
		.job.run = run_block, .w = w, .sums = sums, .id = *id, .off = off, .len = len};
	atomic_fetch_add(&sums->blocks, 1);
	atomic_fetch_add(&sums->bytes, len);
	return submit_job(w, b);
}

static void wait_blocks(struct warmup *w)
{
	/* Each running job ends at its own deadline. */
	while (cfs_workers_drain(w->workers, cfs_deadline_in(1000)) < 0) {
		if (control_check(w->job) < 0)
			atomic_store(&w->stop, true);
	}
}

/* ---- one file ---- */

/* Composes a whole file: id.slice is its inode number. */
static void run_whole(struct cfs_job *job)
{
	struct block_job *b = (struct block_job *)job;
	struct warmup *w = b->w;
	int r = cfs_data_make_whole(w->s->data, b->id.slice, &w->stop);

	atomic_fetch_add(r == 0 ? &b->sums->whole : &b->sums->not_whole, 1);
	free(b);
}

static int make_whole(struct warmup *w, struct sums *sums, cfs_ino_t ino)
{
	struct block_job *b = malloc(sizeof(*b));

	if (!b)
		return -ENOMEM;
	*b = (struct block_job){.job.run = run_whole, .w = w, .sums = sums, .id.slice = ino};
	return submit_job(w, b);
}

static int warm_piece(struct warmup *w, struct sums *sums, const struct cfs_piece *p)
{
	uint32_t off = p->slice_off, end = p->slice_off + p->len, size = w->s->block_size;
	int r = 0;

	while (off < end && r == 0) {
		struct cfs_block b = cfs_block_of(p->slice, p->slice_size, off / size, size);
		uint32_t in = off % size, n;

		n = CFS_MIN(end - off, b.len - in);
		r = submit(w, sums, &b, in, n);
		off += n;
	}
	return r;
}

static int warm_chunk(struct warmup *w, struct sums *sums, cfs_ino_t ino, uint32_t indx)
{
	struct cfs_ctx ctx = control_step(w->job);
	struct cfs_view view = {0};
	size_t i;
	int r = cfs_view_read(w->s->meta, &ctx, ino, indx, &view);

	if (r < 0) {
		note_failure(sums, r);
		r = 0;
	}
	for (i = 0; i < view.n && r == 0; i++)
		r = warm_piece(w, sums, &view.v[i]);
	cfs_view_free(&view);
	return r;
}

/* Warms up the chunks that exist: a large file may consist of holes. */
static int warm_listed(struct warmup *w, struct sums *sums, cfs_ino_t ino)
{
	struct cfs_stored_chunks stored = {0};
	struct cfs_chunk_len c;
	int r = 0;

	while (r == 0) {
		struct cfs_ctx ctx = control_step(w->job);
		int more = cfs_stored_next(w->s->meta, &ctx, ino, &stored, &c);

		if (more < 0)
			note_failure(sums, more);
		if (more <= 0)
			break;
		r = warm_chunk(w, sums, ino, c.indx);
	}
	cfs_stored_end(&stored);
	return r;
}

static int warm_file(struct warmup *w, struct sums *sums, cfs_ino_t ino, uint64_t length)
{
	uint64_t i, n = CFS_DIV_UP(length, CFS_CHUNK_SIZE);
	int r = 0;

	if (w->counting) {
		atomic_fetch_add(&w->job->total, length);
		return 0;
	}
	if (w->making)
		return make_whole(w, sums, ino);
	if (w->mode == EVICT)
		cfs_data_forget_whole(w->s->data, ino);
	atomic_fetch_add(&sums->files, 1);
	if (n > CHUNKS_FEW)
		return warm_listed(w, sums, ino);
	for (i = 0; i < n && r == 0; i++)
		r = warm_chunk(w, sums, ino, (uint32_t)i);
	return r;
}

/* ---- directories ---- */

static int warm_tree(struct warmup *w, struct sums *sums, cfs_ino_t top)
{
	struct dirwalk walk =
		dirwalk_begin(w->s->meta, CONTROL_STEP_MS, top, DIRWALK_ATTRS | DIRWALK_BELOW);
	const struct cfs_dirent *e;
	int more, r = 0;

	walk.ctx = *w->job->who;
	while (r == 0 && (more = dirwalk_next(&walk, &e)) != 0) {
		r = more == -ENOMEM ? more : control_check(w->job);
		if (more < 0 && !w->counting)
			note_failure(sums, more);
		else if (more > 0 && r == 0 && e->type == CFS_TYPE_FILE)
			r = warm_file(w, sums, e->entry.ino, e->entry.attr.length);
	}
	dirwalk_end(&walk);
	return r;
}

static int warm_root(struct warmup *w, struct sums *sums, cfs_ino_t ino)
{
	struct cfs_ctx ctx = control_step(w->job);
	struct cfs_attr attr;
	int r = cfs_meta_getattr(w->s->meta, &ctx, ino, &attr);

	if (r < 0) {
		if (!w->counting)
			note_failure(sums, r);
		return 0;
	}
	if (attr.type == CFS_TYPE_DIR)
		return warm_tree(w, sums, ino);
	return attr.type == CFS_TYPE_FILE ? warm_file(w, sums, ino, attr.length) : 0;
}

/* ---- the request ---- */

/* member: the mount is a member of a cache group. */
static json_t *describe(struct sums *s, bool member)
{
	json_t *j;

#define FIELD(name) #name, (json_int_t)atomic_load(&s->name)
	j = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i}", FIELD(files),
		      FIELD(blocks), FIELD(bytes), FIELD(fetched), FIELD(cached), FIELD(memory),
		      FIELD(disk), FIELD(evicted), FIELD(declined), FIELD(failed), "first_errno",
		      -atomic_load(&s->first_err));
#undef FIELD
	if (atomic_load(&s->whole) || atomic_load(&s->not_whole)) {
		json_object_set_new(j, "whole", json_integer((json_int_t)atomic_load(&s->whole)));
		json_object_set_new(j, "not_whole",
				    json_integer((json_int_t)atomic_load(&s->not_whole)));
	}
	if (member)
		json_object_set_new(j, "group", json_integer((json_int_t)atomic_load(&s->group)));
	return j;
}

static int parse_mode(json_t *in, enum mode *ret)
{
	const char *name = json_string_value(json_object_get(in, "mode"));

	if (!name || !strcmp(name, "fetch"))
		*ret = FETCH;
	else if (!strcmp(name, "check"))
		*ret = CHECK;
	else if (!strcmp(name, "evict"))
		*ret = EVICT;
	else
		return -EINVAL;
	return 0;
}

static int each_root(struct warmup *w, json_t *inodes, struct sums *sums)
{
	json_t *number;
	size_t i;
	int r = 0;

	json_array_foreach (inodes, i, number) {
		cfs_ino_t ino = (cfs_ino_t)json_integer_value(number);

		if (r == 0)
			r = warm_root(w, &sums[i],
				      ino == CFS_ROOT_INO && w->s->root ? w->s->root : ino);
	}
	return r;
}

static int answer(struct warmup *w, struct sums *sums, size_t n, json_t **ret)
{
	json_t *roots = json_array();
	size_t i;

	for (i = 0; i < n; i++)
		json_array_append_new(roots, describe(&sums[i], w->s->peers != NULL));
	*ret = json_pack("{s:b, s:o}", "disk_cache", cfs_store_has_disk(w->s->store), "roots",
			 roots);
	return *ret ? 0 : -ENOMEM;
}

int control_warmup(struct control_server *s, struct control_job *job, json_t *in, json_t **ret)
{
	json_t *inodes = json_object_get(in, "inodes");
	json_int_t threads = json_get_int(in, "threads");
	size_t n = json_array_size(inodes);
	struct warmup w = {.s = s, .job = job};
	struct sums *sums;
	int r;

	if (!n || n > ROOTS_MAX || parse_mode(in, &w.mode) < 0)
		return -EINVAL;
	threads = CFS_MAX(CFS_MIN(threads, (json_int_t)THREADS_MAX), (json_int_t)1);
	sums = calloc(n, sizeof(*sums));
	if (!sums)
		return -ENOMEM;
	r = cfs_workers_create("cfs-warmup", (unsigned)threads, (size_t)threads * QUEUE_PER_THREAD,
			       &w.workers);
	if (r == 0 && json_is_true(json_object_get(in, "count"))) {
		w.counting = true;
		r = each_root(&w, inodes, sums);
		w.counting = false;
	}
	if (r == 0)
		r = each_root(&w, inodes, sums);
	if (r == 0 && json_is_true(json_object_get(in, "whole"))) {
		wait_blocks(&w);
		w.making = true;
		r = each_root(&w, inodes, sums);
	}
	if (r < 0)
		atomic_store(&w.stop, true);
	if (w.workers) {
		wait_blocks(&w);
		cfs_workers_destroy(w.workers);
	}
	if (r == 0)
		r = control_check(job);
	if (r == 0)
		r = answer(&w, sums, n, ret);
	free(sums);
	return r;
}
