/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slices of a file change under its readers: other clients commit and compact, own commits are
 * on their way, compaction merges. When these fail users read bytes that are no longer, or not yet,
 * those of the file.
 */
#include <cachefs/stage.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/activity.h"
#include "data/data-internal.h"
#include "data_fixture.h"

/* Another client compacts and its objects vanish: the list is read again; then an honest EIO. */
static void foreign_compaction(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_slice old = {0};
	struct cfs_block b;
	char buf[3];

	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(read_at(f, 0, buf, 3), 3);
	old = v->meta.chunk[1][0].v[0];
	b = (struct cfs_block){.slice = 777, .len = 3};
	{
		char key[CFS_BLOCK_KEY_MAX];
		struct iovec iov = {(void *)(uintptr_t) "abc", 3};

		cfs_store_block_key(v->store, &b, key);
		assert_int_equal(v->object.inner->ops->put(v->object.inner, key, &iov, 1, 0,
							   cfs_deadline_in(1000)),
				 0);
	}
	v->meta.chunk[1][0].v[0].id = 777;
	cfs_meta_discard_slice(&v->meta, old.id, old.size);
	memset(buf, 0, 3);
	assert_int_equal(read_at(f, 0, buf, 3), 3);
	assert_memory_equal(buf, "abc", 3);
	cfs_meta_discard_slice(&v->meta, 777, 3);
	assert_int_equal(read_at(f, 0, buf, 3), -EIO);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Close-to-open: another client's commit is seen at the next open, even behind one of our own. */
static void foreign_commit(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_slice rec;
	uint64_t reads;
	char buf[4];

	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(read_at(f, 0, buf, 4), 4);
	reads = v->meta.reads;
	rec = v->meta.chunk[1][0].v[0];
	assert_int_equal(write_at(f, 0, "b", 1), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(read_at(f, 0, buf, 4), 4);
	assert_memory_equal(buf, "baaa", 4);
	assert_int_equal(v->meta.reads, reads); /* the own commit costs no look-up */
	list_add(&v->meta.chunk[1][0], &rec);
	cfs_file_reopen(f, &v->meta.attr[1], cfs_now_ns());
	assert_int_equal(read_at(f, 0, buf, 4), 4);
	assert_memory_equal(buf, "aaaa", 4);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* The list that an open brings, as the metadata has it. */
static void bring_list(struct volume *v, struct cfs_file *f, uint64_t asked_ns)
{
	struct cfs_ctx cx = ctx();
	struct cfs_slice *recs;
	ssize_t n = cfs_meta_read_chunk(&v->meta, &cx, 1, 0, &recs);

	cfs_file_take_list(f, &v->meta.attr[1], asked_ns, recs, (size_t)n);
}

/* The first read after an open asks nobody. */
static void list_of_an_open(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	uint64_t reads;
	char buf[4];

	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(flush(f), 0);
	cfs_file_put(f);
	f = open_file(v, 1);
	assert_false(cfs_file_has_list(f));
	bring_list(v, f, cfs_now_ns());
	assert_true(cfs_file_has_list(f));
	reads = v->meta.reads;
	assert_int_equal(read_at(f, 0, buf, 4), 4);
	assert_memory_equal(buf, "aaaa", 4);
	assert_int_equal(v->meta.reads, reads);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* A list that was read before a change is not used: it would bring back the bytes before it. */
static void outdated_list_of_an_open(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx = ctx();
	struct cfs_slice *old, rec;
	struct cfs_attr then;
	uint64_t asked_ns;
	char buf[4];
	ssize_t n;

	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(flush(f), 0);
	/* a change of this mount */
	asked_ns = cfs_now_ns();
	n = cfs_meta_read_chunk(&v->meta, &cx, 1, 0, &old);
	assert_int_equal(write_at(f, 0, "bbbb", 4), 0);
	assert_int_equal(flush(f), 0);
	cfs_file_reopen(f, &v->meta.attr[1], asked_ns);
	cfs_file_take_list(f, &v->meta.attr[1], asked_ns, old, (size_t)n);
	assert_int_equal(read_at(f, 0, buf, 4), 4);
	assert_memory_equal(buf, "bbbb", 4);
	/* one of another client, which another open has seen */
	asked_ns = cfs_now_ns();
	then = v->meta.attr[1];
	n = cfs_meta_read_chunk(&v->meta, &cx, 1, 0, &old);
	rec = v->meta.chunk[1][0].v[0];
	list_add(&v->meta.chunk[1][0], &rec);
	v->meta.attr[1].mtime = v->meta.attr[1].ctime = tick(&v->meta);
	cfs_file_reopen(f, &v->meta.attr[1], cfs_now_ns());
	cfs_file_take_list(f, &then, asked_ns, old, (size_t)n);
	assert_int_equal(read_at(f, 0, buf, 4), 4);
	assert_memory_equal(buf, "aaaa", 4);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Nor one that was read before a compaction, whose slices may be gone. */
static void list_of_an_open_before_compaction(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx = ctx();
	struct cfs_slice *old;
	uint64_t asked_ns;
	ssize_t n;
	int i;

	for (i = 0; i < 3; i++) {
		assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
		assert_int_equal(flush(f), 0);
	}
	asked_ns = cfs_now_ns();
	n = cfs_meta_read_chunk(&v->meta, &cx, 1, 0, &old);
	assert_int_equal(n, 3);
	assert_int_equal(cfs_data_compact(v->data, &cx, 1, 0), 0);
	cfs_file_take_list(f, &v->meta.attr[1], asked_ns, old, (size_t)n);
	assert_false(cfs_file_has_list(f));
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

struct meanwhile {
	struct volume *v;
	struct cfs_file *f;
	struct cfs_slice rec;
};

static void commit_and_read(void *arg)
{
	struct meanwhile *mw = arg;
	char buf[4];

	list_add(&mw->v->meta.chunk[1][0], &mw->rec);
	assert_int_equal(read_at(mw->f, 0, buf, 4), 4);
	assert_memory_equal(buf, "bbbb", 4); /* what is pending here lies over it */
}

/* A list that was read while a commit was on its way has its record already, in its place. */
static void read_during_commit(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct meanwhile mw = {.v = v, .f = f};
	char buf[4];

	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(flush(f), 0);
	mw.rec = v->meta.chunk[1][0].v[0];
	assert_int_equal(write_at(f, 0, "bbbb", 4), 0);
	v->meta.applied = commit_and_read;
	v->meta.applied_arg = &mw;
	assert_int_equal(flush(f), 0);
	v->meta.applied = NULL;
	assert_int_equal(read_at(f, 0, buf, 4), 4);
	assert_memory_equal(buf, "aaaa", 4);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

static void compact_meanwhile(void *arg)
{
	struct volume *v = arg;
	struct cfs_ctx cx = ctx();

	v->meta.applied = NULL;
	assert_int_equal(cfs_data_compact(v->data, &cx, 1, 0), 0);
	assert_int_equal(v->meta.chunk[1][0].n, 2);
}

/*
 * A commit whose answer is lost finds its record. If it was compacted away it would be made again,
 * and name a slice that is deleted. The records before it are compacted all the same: it may be the
 * last commit for a long time, and a list that nothing compacts makes each read slow.
 */
static void compaction_during_commit(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx = ctx();
	char buf[4];

	v->meta.purge = true;
	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(write_at(f, 4, "cccc", 4), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(write_at(f, 0, "bbbb", 4), 0);
	v->meta.fail_error = -EIO;
	v->meta.fail_applied = true;
	v->meta.fail_commits = 1;
	v->meta.applied = compact_meanwhile;
	v->meta.applied_arg = v;
	assert_int_equal(flush(f), 0);
	assert_int_equal(v->meta.commits, 3);
	assert_int_equal(v->meta.chunk[1][0].n, 2);
	assert_int_equal(cfs_data_compact(v->data, &cx, 1, 0), 0);
	assert_int_equal(v->meta.chunk[1][0].n, 1);
	assert_int_equal(read_at(f, 0, buf, 4), 4);
	assert_memory_equal(buf, "bbbb", 4);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Another client replaces the record that was committed last, and removes its object. */
static void replace_elsewhere(void *arg)
{
	struct volume *v = arg;
	struct list *l = &v->meta.chunk[1][0];
	struct cfs_slice was, merged;

	v->meta.applied = NULL;
	assert_int_equal(l->n, 2);
	was = l->v[1];
	merged = l->v[0];
	merged.pos = was.pos; /* its bytes lie where the new ones were */
	pthread_mutex_lock(&v->meta.lock);
	l->v[0] = merged;
	l->n = 1;
	pthread_mutex_unlock(&v->meta.lock);
	assert_int_equal(cfs_store_remove_slice(v->store, was.id, was.size, cfs_deadline_in(10000)),
			 0);
}

/*
 * A commit whose record another client has compacted away before its outcome is asked for was
 * carried out: a second record would name a slice that is deleted.
 */
static void replaced_before_its_answer(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	char buf[4];

	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(write_at(f, 4, "bbbb", 4), 0);
	v->meta.fail_error = -ETIMEDOUT;
	v->meta.fail_applied = true;
	v->meta.fail_commits = 1;
	v->meta.applied = replace_elsewhere;
	v->meta.applied_arg = v;
	assert_int_equal(flush(f), 0);
	assert_int_equal(v->meta.commits, 2);
	assert_int_equal(v->meta.chunk[1][0].n, 1);
	assert_int_equal(read_at(f, 4, buf, 4), 4);
	assert_memory_equal(buf, "aaaa", 4); /* the list that another client made */
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

static void write_and_ask(void *arg)
{
	struct volume *v = arg;
	struct cfs_file *f = open_file(v, 1);

	assert_int_equal(write_at(f, 8, "cccc", 4), 0);
	assert_int_equal(flush(f), 0);
	cfs_data_queue_compact(v->data, 1, 0, false);
	cfs_file_put(f);
}

static bool is_compacted(struct volume *v)
{
	bool is;

	pthread_mutex_lock(&v->meta.lock);
	is = v->meta.chunk[1][0].n == 1;
	pthread_mutex_unlock(&v->meta.lock);
	return is;
}

/* A slow compaction: what asks for one meanwhile may be the last write of the file, and is heard.
 */
static void compaction_asked_for_during_one(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx = ctx();

	v->meta.purge = true;
	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(write_at(f, 4, "bbbb", 4), 0);
	assert_int_equal(flush(f), 0);
	v->meta.compacting = write_and_ask;
	v->meta.compacting_arg = v;
	assert_int_equal(cfs_data_compact(v->data, &cx, 1, 0), 0);
	WAIT_FOR(is_compacted(v));
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Attributes that were read before an own commit must not take the length back, however late. */
static void old_attributes(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_attr before = v->meta.attr[1], after;
	uint64_t asked_ns = cfs_now_ns();

	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	assert_int_equal(flush(f), 0);
	cfs_file_refresh(f, &before, asked_ns);
	assert_int_equal(cfs_file_length(f), 3);
	after = v->meta.attr[1];
	after.length = 1;
	after.mtime = after.ctime = tick(&v->meta);
	cfs_file_refresh(f, &after, asked_ns);
	assert_int_equal(cfs_file_length(f), 1);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/*
 * Two opens: the answer to the first comes last. The second open, after another client's
 * close, must not lose the bytes again.
 */
static void answers_in_another_order(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_attr *stored = &v->meta.attr[1], before = *stored, seen;
	uint64_t first_ns = cfs_now_ns(), second_ns = first_ns + 1;
	struct cfs_file *f;

	stored->length = 3;
	stored->mtime = stored->ctime = tick(&v->meta);
	assert_int_equal(cfs_data_open(v->data, 1, stored, second_ns, &f), 0);
	seen = before;
	cfs_file_reopen(f, &before, first_ns);
	cfs_file_overlay_attr(f, &seen);
	assert_int_equal(cfs_file_length(f), 3);
	assert_int_equal(seen.length, 3);
	assert_int_equal(cfs_timespec_cmp(seen.ctime, stored->ctime), 0);
	/* The later request has the newer state, whatever JuiceFS's clock says. */
	before.length = 1;
	cfs_file_refresh(f, &before, second_ns + 1);
	assert_int_equal(cfs_file_length(f), 1);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* A read after an own commit is right, also for a change of another client just before it. */
static void foreign_truncate_before_a_commit(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	char bytes[100] = "";

	assert_int_equal(write_at(f, 0, bytes, sizeof(bytes)), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	v->meta.attr[1].length = 0;
	v->meta.attr[1].mtime = v->meta.attr[1].ctime = tick(&v->meta);
	assert_int_equal(flush(f), 0);
	assert_int_equal(v->meta.attr[1].length, 3);
	cfs_file_refresh(f, &v->meta.attr[1], cfs_now_ns());
	assert_int_equal(cfs_file_length(f), 3);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

static void compaction_merges(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx = ctx();
	uint8_t *big = malloc(2 << 20), *got = malloc(2 << 20);
	unsigned i;

	assert_true(big && got);
	memset(big, 'A', 2 << 20);
	assert_int_equal(write_at(f, 0, big, 2 << 20), 0);
	assert_int_equal(flush(f), 0);
	for (i = 0; i < 9; i++) {
		assert_int_equal(write_at(f, (2 << 20) + i * 7000, big, 7000), 0);
		assert_int_equal(flush(f), 0);
	}
	assert_int_equal(v->meta.chunk[1][0].n, 10);
	assert_int_equal(cfs_data_compact(v->data, &cx, 1, 0), 0);
	/* The big slice in front stays. */
	assert_int_equal(v->meta.chunk[1][0].n, 2);
	assert_int_equal(v->meta.chunk[1][0].v[0].len, 2 << 20);
	assert_int_equal(v->meta.chunk[1][0].v[1].pos, 2 << 20);
	assert_int_equal(v->meta.chunk[1][0].v[1].len, 63000);
	assert_int_equal(read_at(f, 0, got, 2 << 20), 2 << 20);
	assert_memory_equal(big, got, 2 << 20);
	assert_int_equal(read_at(f, 2 << 20, got, 70000), 63000);
	assert_memory_equal(big, got, 63000);
	assert_int_equal(objects(v), (2 << 20) / BLOCK + 1);
	free(big);
	free(got);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* ---- blocks that a sync which others asked for has lost ---- */

static void *compact(void *arg)
{
	struct volume *v = arg;
	struct cfs_ctx cx = ctx();

	return (void *)(intptr_t)cfs_data_compact(v->data, &cx, 1, 0);
}

static void *flush_file(void *arg)
{
	return (void *)(intptr_t)flush(arg);
}

/*
 * While a sync runs that will fail, work puts a block. The sync that work waits for is the next one,
 * and that is a good one. Returns what work does.
 */
static int put_into_failing_sync(struct volume *v, void *(*work)(void *arg), void *arg)
{
	pthread_t thread;
	void *r;

	assert_int_equal(cfs_store_sync(v->store, soon()), 0);
	begin_failing_sync(v);
	assert_int_equal(pthread_create(&thread, NULL, work, arg), 0);
	wait_for_sync();
	end_failing_sync(v);
	assert_int_equal(pthread_join(thread, &r), 0);
	return (int)(intptr_t)r;
}

/* Data that may be lost does not replace durable data. */
static void compaction_in_a_failed_sync(void **state)
{
	struct volume *v = volume_new((struct options){.syncs = true});
	struct cfs_file *f = open_file(v, 1);

	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(write_at(f, 4, "bbbb", 4), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(put_into_failing_sync(v, compact, v), -EIO);
	assert_int_equal(v->meta.chunk[1][0].n, 2);
	assert_int_equal(objects(v), 2);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* It ends at once: no later sync helps. */
static void commit_in_a_failed_sync(void **state)
{
	struct volume *v = volume_new((struct options){.syncs = true, .io_timeout_ms = 60000});
	struct cfs_file *f = open_file(v, 1);
	cfs_deadline_t end = cfs_deadline_in(20000);

	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(write_at(f, 0, "bbbb", 4), 0);
	assert_int_equal(put_into_failing_sync(v, flush_file, f), -EIO);
	assert_false(cfs_deadline_passed(end));
	assert_int_equal(v->meta.chunk[1][0].n, 1);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Staged bytes are durable, so the failed sync of the object store costs another try only. */
static void staged_commit_in_a_failed_sync(void **state)
{
	struct volume *v = volume_new((struct options){.syncs = true});
	struct cfs_file *f = open_file(v, 1);
	char dir[] = "/tmp/cachefs-test-data-XXXXXX", command[64], err[256];
	struct cfs_disk_conf disk = {.pool = v->pool,
				     .dirs = dir,
				     .uuid = "test",
				     .block_size = BLOCK,
				     .size = 64 << 20,
				     .free_ratio = 0.001,
				     .tick_ms = 3600000};
	struct cfs_stage_conf stage = {.writeback = true,
				       .size = 64 << 20,
				       .free_ratio = 0.001,
				       .delay_ms = 3600000,
				       .max_uploads = 1,
				       .tick_ms = 3600000};

	assert_non_null(mkdtemp(dir));
	assert_int_equal(cfs_disk_create(&disk, &v->disk, err), 0);
	assert_int_equal(cfs_store_add_tier(v->store, &cfs_disk_tier, v->disk), 0);
	assert_int_equal(cfs_stage_start(v->store, v->disk, &stage), 0);
	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(objects(v), 0);
	assert_int_equal(write_at(f, 0, "bbbb", 4), 0);
	pthread_mutex_lock(&v->object.lock);
	v->object.fail_syncs = 1;
	pthread_mutex_unlock(&v->object.lock);
	assert_int_equal(flush(f), 0);
	assert_int_equal(v->object.fail_syncs, 0);
	assert_int_equal(v->meta.chunk[1][0].n, 2);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	assert_int_equal(system(command), 0);
}

static bool is_putting(struct volume *v)
{
	bool any;

	pthread_mutex_lock(&v->object.lock);
	any = v->object.waiting > 0;
	pthread_mutex_unlock(&v->object.lock);
	return any;
}

/* It takes longer than its caller waits for metadata, but each block is quick enough. */
static void compaction_over_a_slow_link(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx;
	unsigned i;

	for (i = 0; i < 8; i++) {
		assert_int_equal(write_at(f, i * BLOCK, "x", 1), 0);
		assert_int_equal(flush(f), 0);
	}
	v->object.put_ms = 100;
	cx = cfs_ctx_internal(300);
	assert_int_equal(cfs_data_compact(v->data, &cx, 1, 0), 0);
	assert_int_equal(v->meta.chunk[1][0].n, 1);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Else it would take the whole of a link for copies that come to nothing. */
static void failed_compaction_pauses(void **state)
{
	enum { TIMEOUT_MS = 500 };
	struct volume *v = volume_new((struct options){.put_timeout_ms = TIMEOUT_MS});
	struct cfs_file *f = open_file(v, 1);
	uint64_t start_ms;

	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(write_at(f, 1, "x", 1), 0);
	assert_int_equal(flush(f), 0);
	set_closed(&v->object, true);
	start_ms = cfs_now_ms();
	cfs_data_queue_compact(v->data, 1, 0, false);
	wait_for_put(&v->object);
	WAIT_FOR(!is_putting(v));
	set_closed(&v->object, false);
	WAIT_FOR((cfs_data_queue_compact(v->data, 1, 0, false),
		  data_metric(v, "data_compactions_total") == 1));
	assert_true(cfs_now_ms() - start_ms >= 10 * TIMEOUT_MS);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

static bool is_compacting(struct volume *v)
{
	bool any;

	pthread_mutex_lock(&v->data->lock);
	any = v->data->n_compacts > 0;
	pthread_mutex_unlock(&v->data->lock);
	return any;
}

/* The compaction of two slices of the file fails, which takes the store's timeout. */
static void fail_compaction(struct volume *v, cfs_ino_t ino)
{
	set_closed(&v->object, true);
	cfs_data_queue_compact(v->data, ino, 0, false);
	wait_for_put(&v->object);
	WAIT_FOR(!is_compacting(v));
	set_closed(&v->object, false);
}

/* Else one damaged file that is read often keeps all others from being compacted. */
static void failed_compaction_delays_no_other_file(void **state)
{
	enum { TIMEOUT_MS = 500, FILES = 7 };
	struct volume *v = volume_new((struct options){.put_timeout_ms = TIMEOUT_MS});
	struct cfs_file *f[FILES + 1];
	uint64_t start_ms;
	cfs_ino_t ino;

	for (ino = 1; ino <= FILES; ino++) {
		f[ino] = open_file(v, ino);
		assert_int_equal(write_at(f[ino], 0, "abc", 3), 0);
		assert_int_equal(flush(f[ino]), 0);
		assert_int_equal(write_at(f[ino], 1, "x", 1), 0);
		assert_int_equal(flush(f[ino]), 0);
	}
	fail_compaction(v, 1);
	start_ms = cfs_now_ms();
	WAIT_FOR((cfs_data_queue_compact(v->data, 2, 0, false),
		  data_metric(v, "data_compactions_total") == 1));
	assert_true(cfs_now_ms() - start_ms < 8 * TIMEOUT_MS);
	/* Four files in succession: it is the store that fails. */
	for (ino = 3; ino <= 6; ino++) {
		start_ms = cfs_now_ms();
		fail_compaction(v, ino);
	}
	WAIT_FOR((cfs_data_queue_compact(v->data, FILES, 0, false),
		  data_metric(v, "data_compactions_total") == 2));
	assert_true(cfs_now_ms() - start_ms >= 8 * TIMEOUT_MS);
	for (ino = 1; ino <= FILES; ino++)
		cfs_file_put(f[ino]);
	assert_int_equal(volume_free(v), 0);
}

static int set_up(void **state)
{
	return cfs_activity_init();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(foreign_compaction),
		cmocka_unit_test(foreign_commit),
		cmocka_unit_test(list_of_an_open),
		cmocka_unit_test(outdated_list_of_an_open),
		cmocka_unit_test(list_of_an_open_before_compaction),
		cmocka_unit_test(read_during_commit),
		cmocka_unit_test(compaction_during_commit),
		cmocka_unit_test(replaced_before_its_answer),
		cmocka_unit_test(compaction_asked_for_during_one),
		cmocka_unit_test(old_attributes),
		cmocka_unit_test(answers_in_another_order),
		cmocka_unit_test(foreign_truncate_before_a_commit),
		cmocka_unit_test(compaction_merges),
		cmocka_unit_test(compaction_in_a_failed_sync),
		cmocka_unit_test(commit_in_a_failed_sync),
		cmocka_unit_test(staged_commit_in_a_failed_sync),
		cmocka_unit_test(compaction_over_a_slow_link),
		cmocka_unit_test(failed_compaction_pauses),
		cmocka_unit_test(failed_compaction_delays_no_other_file),
	};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
