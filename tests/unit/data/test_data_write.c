/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing: what is stored when, and what becomes of it when the store, the metadata or memory does
 * not go along. When these fail users lose writes that close() acknowledged, or wait for ever.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "data/data-internal.h"
#include "data_fixture.h"

/* A small file costs one object and one commit, and nothing is read back to know what it holds. */
static void small_file(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_pool_stats pool;
	char buf[10];

	assert_int_equal(write_at(f, 0, "hello", 5), 0);
	cfs_pool_stats(v->pool, &pool);
	assert_int_equal(pool.used[CFS_USE_WRITE], CFS_PAGE_SMALL);
	assert_int_equal(cfs_file_length(f), 5);
	assert_true(cfs_file_dirty(f));
	assert_int_equal(objects(v), 0);
	assert_int_equal(write_at(f, 5, "world", 5), 0);
	assert_int_equal(read_at(f, 0, buf, 10), 10);
	assert_memory_equal(buf, "helloworld", 10);
	assert_int_equal(flush(f), 0);
	assert_false(cfs_file_dirty(f));
	assert_int_equal(data_metric(v, "data_commits_total"), 1);
	assert_int_equal(data_metric(v, "data_dirty_bytes"), 0);
	assert_int_equal(objects(v), 1);
	assert_int_equal(v->meta.chunk[1][0].n, 1);
	assert_int_equal(v->meta.attr[1].length, 10);
	cfs_file_put(f);
	assert_false(cfs_data_is_open(v->data, 1));
	assert_int_equal(volume_free(v), 0);
}

/* Sequential writing is one slice per chunk, and its full blocks are stored while it goes on. */
static void streaming(void **state)
{
	struct volume *v = volume_new((struct options){.block = 256 << 10});
	struct cfs_file *f = open_file(v, 1);
	uint8_t *buf = calloc(1, 100000);
	unsigned i;

	assert_non_null(buf);
	for (i = 0; i < 40; i++)
		assert_int_equal(write_at(f, i * 100000, buf, 100000), 0);
	WAIT_FOR(objects(v) >= 15);
	assert_int_equal(objects(v), 15);
	assert_int_equal(v->meta.commits, 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(objects(v), 16);
	assert_int_equal(v->meta.chunk[1][0].n, 1);
	free(buf);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Without any call the flusher commits what lies idle, also when the file is closed. */
static void idle_is_committed(void **state)
{
	struct volume *v = volume_new((struct options){.flush_idle_ms = 20});
	struct cfs_file *f = open_file(v, 1);

	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	WAIT_FOR(!cfs_file_dirty(f));
	assert_int_equal(v->meta.attr[1].length, 3);
	assert_int_equal(write_at(f, 3, "def", 3), 0);
	cfs_file_put(f);
	assert_int_equal(cfs_data_drain(v->data), 0);
	assert_int_equal(v->meta.attr[1].length, 6);
	assert_int_equal(volume_free(v), 0);
}

/* Random small writes must not pile up without bound. */
static void scattered_writes_are_bounded(void **state)
{
	struct volume *v =
		volume_new((struct options){.flush_idle_ms = 60000, .flush_age_ms = 60000});
	struct cfs_file *f = open_file(v, 1);
	unsigned i;

	for (i = 0; i < 3000; i++) {
		assert_int_equal(write_at(f, (3000 - i) * 10, "x", 1), 0);
		assert_true(data_metric(v, "data_open_slices") <= 512);
	}
	assert_int_equal(flush(f), 0);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Some failing uploads and commits are no error, and no byte is written twice. */
static void passing_faults(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	char buf[6];

	v->object.fail_puts = 3;
	v->meta.fail_error = -EIO;
	v->meta.fail_commits = 2;
	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	assert_int_equal(flush(f), 0);
	v->meta.fail_applied = true;
	v->meta.fail_commits = 1;
	assert_int_equal(write_at(f, 3, "def", 3), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(v->meta.chunk[1][0].n, 2);
	assert_int_equal(read_at(f, 0, buf, 6), 6);
	assert_memory_equal(buf, "abcdef", 6);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* When the store works again, what has failed several times does not wait as it did while it
 * failed. */
static void many_faults_that_end(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	uint8_t *bytes = calloc(160, BLOCK);
	uint64_t began_ms, ended_ms;

	assert_non_null(bytes);
	v->object.fail_puts = 160 * 4;
	began_ms = cfs_now_ms();
	assert_int_equal(write_at(f, 0, bytes, 160 * BLOCK), 0);
	WAIT_FOR(v->object.fail_puts <= 0);
	ended_ms = cfs_now_ms();
	assert_int_equal(flush(f), 0);
	assert_in_range(cfs_now_ms() - ended_ms, 0, (ended_ms - began_ms) / 2);
	assert_int_equal(objects(v), 160);
	free(bytes);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/*
 * When the store stays broken the writer learns it once per handle; what it wrote is still there,
 * and is stored when that works after all.
 */
static void put_fault_that_ends(void **state)
{
	struct volume *v = volume_new((struct options){.io_timeout_ms = 100});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx = ctx();
	uint32_t first, second;
	char buf[6];

	first = second = cfs_file_err_seq(f);
	v->object.fail_puts = 1000000;
	assert_int_equal(write_at(f, 0, "abcdef", 6), 0);
	assert_int_equal(cfs_file_fsync(f, &cx, &first), -EIO);
	cx.deadline = cfs_deadline_in(300);
	/* Any number of closes do not take it from the fsync. */
	assert_int_equal(cfs_file_flush(f, &cx, second), -EIO);
	assert_int_equal(cfs_file_flush(f, &cx, second), -EIO);
	assert_true(cfs_file_dirty(f));
	assert_int_equal(read_at(f, 0, buf, 6), 6);
	assert_memory_equal(buf, "abcdef", 6);
	v->object.fail_puts = 0;
	cx = ctx();
	assert_int_equal(cfs_file_fsync(f, &cx, &first), 0);
	assert_int_equal(cfs_file_flush(f, &cx, second), -EIO);
	assert_int_equal(cfs_file_fsync(f, &cx, &second), -EIO);
	assert_int_equal(cfs_file_fsync(f, &cx, &second), 0);
	assert_int_equal(v->meta.attr[1].length, 6);
	assert_int_equal(objects(v), 1);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/*
 * When it stays broken and others need the memory, the file shows what it was before, memory comes
 * back, and later writes work.
 */
static void lasting_put_fault(void **state)
{
	struct volume *v = volume_new((struct options){.io_timeout_ms = 100, .pool = 8 << 20});
	struct cfs_page *others[48];
	unsigned i;
	struct cfs_file *f = open_file(v, 1);
	uint32_t first, second;
	struct cfs_ctx cx = ctx();
	struct cfs_pool_stats pool;
	char buf[6];

	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	assert_int_equal(flush(f), 0);
	first = second = cfs_file_err_seq(f);
	v->object.fail_puts = 1000000;
	for (i = 0; i < CFS_ARRAY_SIZE(others); i++)
		assert_int_equal(cfs_page_get(v->pool, CFS_PAGE_LARGE, CFS_USE_WRITE, cx.deadline,
					      &others[i]),
				 0);
	assert_int_equal(write_at(f, 1, "XXXXX", 5), 0);
	assert_int_equal(read_at(f, 0, buf, 6), 6);
	assert_memory_equal(buf, "aXXXXX", 6);
	assert_true(cfs_file_fsync(f, &cx, &first) < 0);
	assert_int_equal(cfs_file_fsync(f, &cx, &first), 0);
	assert_true(cfs_file_flush(f, &cx, second) < 0);
	assert_true(cfs_file_fsync(f, &cx, &second) < 0);
	assert_int_equal(cfs_file_length(f), 3);
	assert_int_equal(read_at(f, 0, buf, 6), 3);
	assert_memory_equal(buf, "abc", 3);
	for (i = 0; i < CFS_ARRAY_SIZE(others); i++)
		cfs_page_unref(others[i]);
	do { /* the upload lets go of it a moment after it has reported */
		cfs_pool_stats(v->pool, &pool);
	} while (pool.used[CFS_USE_WRITE] && !cfs_deadline_passed(cx.deadline));
	assert_int_equal(pool.used[CFS_USE_WRITE], 0);
	v->object.fail_puts = 0;
	assert_int_equal(write_at(f, 3, "def", 3), 0);
	assert_int_equal(cfs_file_flush(f, &cx, first), 0);
	assert_int_equal(v->meta.attr[1].length, 6);
	assert_int_equal(objects(v), 2);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* A commit that the volume refuses leaves no object behind. */
static void refused_commit(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);

	v->meta.fail_error = -ENOSPC;
	v->meta.fail_commits = 1;
	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	assert_int_equal(flush(f), -ENOSPC);
	assert_int_equal(cfs_file_length(f), 0);
	assert_int_equal(objects(v), 0);
	v->meta.space_error = -EDQUOT;
	assert_int_equal(write_at(f, 0, "abc", 3), -EDQUOT);
	assert_false(cfs_file_dirty(f));
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* While the store stands still: reads see the bytes, flush gives up in time, nothing is lost. */
static void slow_store(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx = cfs_ctx_internal(50);
	uint32_t err_seq = cfs_file_err_seq(f);
	char buf[6];

	set_closed(&v->object, true);
	assert_int_equal(write_at(f, 0, "abc", 3), 0);
	assert_int_equal(cfs_file_flush(f, &cx, err_seq), -EIO);
	/* A frozen slice takes no more writes; this is a second one over the first. */
	assert_int_equal(write_at(f, 2, "cdef", 4), 0);
	assert_int_equal(read_at(f, 0, buf, 6), 6);
	assert_memory_equal(buf, "abcdef", 6);
	set_closed(&v->object, false);
	cx = ctx();
	assert_int_equal(cfs_file_flush(f, &cx, err_seq), 0);
	assert_int_equal(v->meta.chunk[1][0].n, 2);
	assert_int_equal(v->meta.chunk[1][0].v[0].len, 3);
	assert_int_equal(v->meta.attr[1].length, 6);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* A link that takes longer than every deadline for what is queued, but moves, loses nothing. */
static void slow_but_alive(void **state)
{
	struct volume *v = volume_new((struct options){.io_timeout_ms = 2000});
	struct cfs_file *f = open_file(v, 1);
	uint8_t *buf = malloc(BLOCK * 40), *got = malloc(BLOCK * 40);

	assert_true(buf && got);
	memset(buf, 'x', BLOCK * 40);
	v->object.pace_ms = 75;
	assert_int_equal(write_at(f, 0, buf, BLOCK * 40), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(read_at(f, 0, got, BLOCK * 40), BLOCK * 40);
	assert_memory_equal(buf, got, BLOCK * 40);
	free(buf);
	free(got);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* One failed try loses nothing, however many small writes of open files wait for their uploads. */
static void many_slices_wait(void **state)
{
	struct volume *v = volume_new((struct options){.pool = 512 << 20});
	struct cfs_file *f[INODES];
	unsigned i, k;

	set_closed(&v->object, true);
	for (i = 1; i < INODES; i++) {
		f[i] = open_file(v, i);
		/* Downwards: each write begins a slice. */
		for (k = CFS_FILE_PENDING - 1; k > 0; k--)
			assert_int_equal(write_at(f[i], 10 * k, "x", 1), 0);
	}
	wait_for_put(&v->object);
	v->object.fail_puts = 8;
	set_closed(&v->object, false);
	for (i = 1; i < INODES; i++) {
		/* A slow machine may take longer than a flush waits. */
		while (cfs_file_dirty(f[i]))
			flush(f[i]);
		cfs_file_put(f[i]);
	}
	assert_true(v->object.fail_puts <= 0);
	assert_int_equal(data_metric(v, "data_commit_errors_total"), 0);
	assert_int_equal(data_metric(v, "data_lost_bytes_total"), 0);
	assert_int_equal(volume_free(v), 0);
}

/* A write that needs memory which only a stuck upload could free fails in time, and not for good.
 */
static void memory_deadline(void **state)
{
	struct volume *v = volume_new((struct options){.pool = 8 << 20});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx = cfs_ctx_internal(200);
	uint8_t *buf = calloc(1, 1 << 20);
	struct iovec iov = {buf, 1 << 20};
	uint64_t at = 0, got;
	int r = 0;

	assert_non_null(buf);
	set_closed(&v->object, true);
	while (r == 0 && at < 64 << 20) {
		cx.deadline = cfs_deadline_in(200);
		r = cfs_file_write(f, &cx, at, false, &iov, 1, &got);
		at += 1 << 20;
	}
	assert_int_equal(r, -EIO);
	wait_for_put(&v->object);
	set_closed(&v->object, false);
	assert_int_equal(flush(f), 0);
	assert_int_equal(write_at(f, 0, buf, 1 << 20), 0);
	assert_int_equal(flush(f), 0);
	free(buf);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* The write under way in frozen_while_bytes_are_copied(). */
static struct {
	struct volume *v;
	struct cfs_file *f;
	uint8_t *src; /* one block, unreadable until the fault */
} copied;

static bool all_answered(struct cfs_file *f)
{
	bool answered;

	pthread_mutex_lock(&f->lock);
	answered = !TAILQ_FIRST(&f->slices)->puts;
	pthread_mutex_unlock(&f->lock);
	return answered;
}

static void while_bytes_are_copied(int sig, siginfo_t *info, void *context)
{
	if (info->si_addr != copied.src) {
		signal(sig, SIG_DFL);
		return;
	}
	pthread_mutex_lock(&copied.f->lock);
	cfs_file_freeze(copied.f); /* as the flusher does to an old slice */
	pthread_mutex_unlock(&copied.f->lock);
	set_closed(&copied.v->object, false);
	WAIT_FOR(all_answered(copied.f));
	mprotect(copied.src, BLOCK, PROT_READ);
}

/*
 * Two blocks share a page. The first is stored, and the slice is frozen, while a write copies its
 * bytes into the second: the page must stay. Otherwise the bytes go into memory of another file.
 */
static void frozen_while_bytes_are_copied(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct sigaction act = {.sa_sigaction = while_bytes_are_copied, .sa_flags = SA_SIGINFO};
	struct sigaction old;
	uint8_t *want = malloc(2 * BLOCK), *got = malloc(2 * BLOCK);

	memset(want, 'a', BLOCK);
	memset(want + BLOCK, 'b', BLOCK);
	copied.v = v;
	copied.f = f;
	copied.src = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(copied.src, MAP_FAILED);
	memcpy(copied.src, want + BLOCK, BLOCK);
	set_closed(&v->object, true);
	assert_int_equal(write_at(f, 0, want, BLOCK), 0);
	wait_for_put(&v->object);
	assert_int_equal(mprotect(copied.src, BLOCK, PROT_NONE), 0);
	assert_int_equal(sigaction(SIGSEGV, &act, &old), 0);
	assert_int_equal(write_at(f, BLOCK, copied.src, BLOCK), 0);
	assert_int_equal(sigaction(SIGSEGV, &old, NULL), 0);
	assert_int_equal(read_at(f, 0, got, 2 * BLOCK), 2 * BLOCK);
	assert_memory_equal(got, want, 2 * BLOCK);
	assert_int_equal(flush(f), 0);
	assert_int_equal(read_at(f, 0, got, 2 * BLOCK), 2 * BLOCK);
	assert_memory_equal(got, want, 2 * BLOCK);
	assert_int_equal(munmap(copied.src, BLOCK), 0);
	free(want);
	free(got);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_file),
		cmocka_unit_test(streaming),
		cmocka_unit_test(idle_is_committed),
		cmocka_unit_test(scattered_writes_are_bounded),
		cmocka_unit_test(passing_faults),
		cmocka_unit_test(many_faults_that_end),
		cmocka_unit_test(put_fault_that_ends),
		cmocka_unit_test(lasting_put_fault),
		cmocka_unit_test(refused_commit),
		cmocka_unit_test(slow_store),
		cmocka_unit_test(slow_but_alive),
		cmocka_unit_test(many_slices_wait),
		cmocka_unit_test(memory_deadline),
		cmocka_unit_test(frozen_while_bytes_are_copied),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
