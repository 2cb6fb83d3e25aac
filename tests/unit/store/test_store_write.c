/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storing and removing blocks. When these fail an upload that failed counts as stored, what was
 * written cannot be read, or a writer waits for ever.
 */
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/store-internal.h"
#include "store_fixture.h"

/* A sanitizer multiplies the instructions of a process, each of which is one stop of its tracer. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SINGLE_STEP false
#else
#define SINGLE_STEP true
#endif

struct outcome {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int calls, err;
};

static struct outcome new_outcome(void)
{
	struct outcome o = {.lock = PTHREAD_MUTEX_INITIALIZER};

	cfs_cond_init(&o.changed);
	return o;
}

static void put_done(void *arg, int err)
{
	struct outcome *o = arg;

	pthread_mutex_lock(&o->lock);
	o->calls++;
	o->err = err;
	pthread_cond_signal(&o->changed);
	pthread_mutex_unlock(&o->lock);
}

static int wait_outcome(struct outcome *o)
{
	cfs_deadline_t deadline = soon();
	int r = 0;

	pthread_mutex_lock(&o->lock);
	while (!o->calls && r == 0)
		r = cfs_cond_wait(&o->changed, &o->lock, deadline);
	r = o->calls == 1 ? o->err : -ENOTRECOVERABLE;
	pthread_mutex_unlock(&o->lock);
	return r;
}

static void put_is_visible_before_its_upload_ends(void **state)
{
	struct cfs_block b = {.slice = 10, .len = 5 * PAGE + 100};
	struct outcome o = new_outcome();
	struct cfs_segs data;
	uint32_t piece;

	/* Pages as blocks want them, smaller ones, and ones across the borders. */
	for (piece = PAGE; piece > 1000; piece = piece * 3 / 5) {
		start_store((struct setting){.budget = 128 * MIB});
		o.calls = 0;
		fill(&b, piece, &data);
		hold(&faulty.hold_puts, 1);
		assert_int_equal(cfs_store_put(store, &b, &data, put_done, &o, soon()), 0);
		assert_int_equal(cfs_store_put(store, &b, &data, put_done, &o, soon()), -EBUSY);
		cfs_segs_release(&data);
		wait_held(1);
		assert_int_equal(read_range(&b, 0, b.len, 0), 0);
		assert_int_equal(read_range(&b, PAGE - 3, PAGE, 0), 0);
		assert_true(cfs_store_in_memory(store, &b, 0, b.len));
		assert_false(object_exists(&b));
		let_go();
		assert_int_equal(wait_outcome(&o), 0);
		assert_true(object_exists(&b));
		assert_int_equal(read_range(&b, 0, b.len, 0), 0);
		assert_int_equal(faulty.gets, 0);
		cfs_store_forget(store, &b);
		assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
		stop_store();
	}
}

/* A small file costs what it holds, not the page it was written in. */
static void small_blocks_are_small(void **state)
{
	struct cfs_block a = {.slice = 11, .len = 100}, b = {.slice = 12, .len = 20000};
	struct cfs_block c = {.slice = 13, .len = PAGE + 1};

	start_store((struct setting){0});
	assert_int_equal(put_sync(&a), 0);
	assert_int_equal(metric("memory_cache_bytes"), CFS_PAGE_SMALL);
	put_object(&b);
	assert_int_equal(read_range(&b, 0, b.len, soon()), 0);
	assert_int_equal(metric("memory_cache_bytes"), CFS_PAGE_SMALL + CFS_PAGE_MEDIUM);
	assert_int_equal(put_sync(&c), 0);
	assert_int_equal(metric("memory_cache_bytes"), 2 * CFS_PAGE_SMALL + CFS_PAGE_MEDIUM + PAGE);
	assert_int_equal(read_range(&a, 0, a.len, 0), 0);
	assert_int_equal(read_range(&c, 0, c.len, 0), 0);
	stop_store();
}

static void failed_put_is_reported_once(void **state)
{
	struct cfs_block b = {.slice = 14, .len = BLOCK};
	struct outcome o = new_outcome();
	struct cfs_segs data;

	start_store((struct setting){0});
	fill(&b, PAGE, &data);
	faulty.put_error = -ENOSPC;
	assert_int_equal(cfs_store_put(store, &b, &data, put_done, &o, soon()), 0);
	assert_int_equal(wait_outcome(&o), -ENOSPC);
	assert_int_equal(metric_for("object_request_errors_total", "put"), 1);
	assert_int_equal(read_range(&b, 0, b.len, soon()), -ENOENT);
	assert_int_equal(cfs_store_put_sync(store, &b, &data, soon()), -ENOSPC);
	faulty.put_error = 0;
	assert_int_equal(cfs_store_put_sync(store, &b, &data, soon()), 0);
	cfs_segs_release(&data);
	assert_int_equal(read_range(&b, 0, b.len, 0), 0);
	stop_store();
	assert_int_equal(o.calls, 1);
}

static void start_put(const struct cfs_block *b, struct outcome *ret)
{
	struct cfs_segs data;

	*ret = new_outcome();
	fill(b, PAGE, &data);
	assert_int_equal(cfs_store_put(store, b, &data, put_done, ret, soon()), 0);
	cfs_segs_release(&data);
}

/* A hanging object store fails its uploads in time, those in the queue behind them too. */
static void stuck_puts_are_reported(void **state)
{
	struct cfs_block b[3] = {
		{.slice = 15, .len = PAGE}, {.slice = 16, .len = PAGE}, {.slice = 17, .len = PAGE}};
	struct outcome o[3] = {new_outcome(), new_outcome(), new_outcome()};
	struct cfs_segs data;
	int i;

	start_store((struct setting){.put_timeout_ms = 100, .uploads = 2});
	hold(&faulty.hold_puts, 2);
	for (i = 0; i < 3; i++) {
		fill(&b[i], PAGE, &data);
		assert_int_equal(
			cfs_store_put(store, &b[i], &data, put_done, &o[i], cfs_deadline_in(100)),
			0);
		cfs_segs_release(&data);
	}
	for (i = 0; i < 3; i++)
		assert_int_equal(wait_outcome(&o[i]), -ETIMEDOUT);
	assert_int_equal(read_range(&b[2], 0, 1, soon()), -ENOENT);
	let_go();
	stop_store();
	for (i = 0; i < 3; i++)
		assert_int_equal(o[i].calls, 1);
}

/* Lets the held puts go, and holds those that follow. */
static void let_round_go(void)
{
	pthread_mutex_lock(&faulty.lock);
	faulty.generation++;
	pthread_cond_broadcast(&faulty.changed);
	pthread_mutex_unlock(&faulty.lock);
}

/*
 * A link on which uploads time out has one at a time, and more again when they are quick: else all of
 * them would time out together for ever.
 */
static void slow_link_has_fewer_uploads(void **state)
{
	enum { MAX = 8, ROUNDS = 2 * MAX - 1 };
	struct outcome failed[MAX], o[ROUNDS];
	struct cfs_block b = {.slice = 50, .len = PAGE};
	unsigned i, n, left = ROUNDS;

	start_store((struct setting){.put_timeout_ms = 2 * LONG_MS, .uploads = MAX});
	faulty.put_error = -ETIMEDOUT;
	for (i = 0; i < MAX; i++, b.slice++)
		start_put(&b, &failed[i]);
	for (i = 0; i < MAX; i++)
		assert_int_equal(wait_outcome(&failed[i]), -ETIMEDOUT);
	faulty.put_error = 0;
	hold(&faulty.hold_puts, ROUNDS);
	for (i = 0; i < ROUNDS; i++, b.slice++)
		start_put(&b, &o[i]);
	for (n = 1; n <= MAX; n *= 2) {
		wait_held((int)n);
		left -= n;
		assert_int_equal(metric("store_uploads_queued"), left);
		let_round_go();
	}
	for (i = 0; i < ROUNDS; i++)
		assert_int_equal(wait_outcome(&o[i]), 0);
	stop_store();
}

/* Uploads may be slow each by itself: after some of them there are more at a time, too. */
static void slow_uploads_are_not_few_for_ever(void **state)
{
	enum { SLOW = 4 };
	struct cfs_block b = {.slice = 80, .len = PAGE};
	struct outcome failed, o[SLOW + 2];
	uint64_t since_ms;
	unsigned i;

	start_store((struct setting){.put_timeout_ms = 2000, .uploads = 2});
	faulty.put_error = -ETIMEDOUT;
	start_put(&b, &failed);
	assert_int_equal(wait_outcome(&failed), -ETIMEDOUT);
	faulty.put_error = 0;
	hold(&faulty.hold_puts, SLOW + 2);
	for (i = 0; i < SLOW + 2; i++) {
		b.slice++;
		start_put(&b, &o[i]);
	}
	for (i = 0; i < SLOW; i++) {
		WAIT_FOR(metric("store_uploads_queued") == SLOW + 1 - i);
		wait_held(1);
		since_ms = cfs_now_ms();
		WAIT_FOR(cfs_now_ms() - since_ms >= 1000);
		let_round_go();
	}
	wait_held(2);
	let_round_go();
	for (i = 0; i < SLOW + 2; i++)
		wait_outcome(&o[i]);
	stop_store();
}

/* Waiting for room in the upload queue ends at the caller's deadline, and leaves nothing behind. */
static void upload_queue_is_bounded(void **state)
{
	enum { FIT = 2 };
	struct cfs_block b = {.slice = 18, .len = BLOCK};
	struct outcome o[FIT + 1];
	struct cfs_segs data;
	int i;

	/* Half of 16 MiB. */
	start_store((struct setting){.budget = 16 * MIB});
	hold(&faulty.hold_puts, 10);
	for (i = 0; i <= FIT; i++) {
		b.index = (uint32_t)i;
		o[i] = new_outcome();
		fill(&b, PAGE, &data);
		assert_int_equal(cfs_store_put(store, &b, &data, put_done, &o[i],
					       cfs_deadline_in(i < FIT ? LONG_MS : 50)),
				 i < FIT ? 0 : -EIO);
		cfs_segs_release(&data);
	}
	assert_int_equal(read_range(&b, 0, 1, soon()), -ENOENT);
	let_go();
	for (i = 0; i < FIT; i++)
		assert_int_equal(wait_outcome(&o[i]), 0);
	stop_store();
	assert_int_equal(o[FIT].calls, 0);
}

static void remove_slice(void **state)
{
	struct cfs_block b = {.slice = 25, .len = BLOCK},
			 tail = {.slice = 25, .index = 1, .len = 7};

	start_store((struct setting){0});
	put_object(&b);
	put_object(&tail);
	assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
	assert_int_equal(read_range(&tail, 0, 7, soon()), 0);
	assert_int_equal(cfs_store_remove_slice(store, 25, BLOCK + 7, soon()), 0);
	assert_false(object_exists(&b) || object_exists(&tail));
	assert_int_equal(metric("memory_cache_bytes"), 0);
	assert_int_equal(metric_for("object_requests_total", "delete"), 2);
	assert_int_equal(read_range(&b, 0, BLOCK, soon()), -ENOENT);
	assert_int_equal(cfs_store_remove_slice(store, 25, BLOCK + 7, soon()), 0);
	stop_store();
}

static void *run_put_sync(void *arg)
{
	return (void *)(intptr_t)put_sync(arg);
}

/* Of 256 classes, eight from the first id on, and from each power of ten and million. */
static bool is_in_a_listed_class(uint64_t first, uint64_t id)
{
	uint64_t from = first, ten;

	for (ten = 10; ten <= id; ten *= 10)
		from = CFS_MAX(from, ten);
	return (id - CFS_MAX(from, id / 1000000 * 1000000)) % 256 < 8;
}

/*
 * Ids on both sides of a batch, of other lengths, and of the next directories. A wrong answer is a
 * block that another file's bytes replace, or ids that are thrown away.
 */
static void slices_that_are_used(void **state)
{
	static const struct {
		uint64_t first, used;
		int is;
	} of[] = {
		{1, 1, 1},
		{1, 4096, 1},
		{1, 4097, 0},
		{9, 8, 0},
		{9, 10, 1},
		{9, 100, 1},
		{990, 989, 0},
		{990, 1000, 1},
		{990, 10000, 0},
		{4097, 4096, 0},
		{4097, 4097, 1},
		{4097, 8192, 1},
		{4097, 8193, 0},
		{4097, 40970, 0},
		{999000, 1000001, 1},
		{999000, 998999, 0},
		{1 << 20, 1 << 20, 1},
		{1 << 20, (1 << 20) - 1, 0},
		{1 << 20, 1050000, 1},
		{1999000, 2000001, 1},
		{9000, 10003, 1},
		{1 << 20, 1052672, 0},
	};
	size_t i;
	int hashed;

	for (hashed = 0; hashed <= 1; hashed++) {
		for (i = 0; i < CFS_ARRAY_SIZE(of); i++) {
			struct cfs_block b = {.slice = of[i].used, .len = BLOCK};
			bool seen = !hashed || is_in_a_listed_class(of[i].first, of[i].used);

			start_store((struct setting){.plain = true, .hash_prefix = hashed});
			assert_int_equal(cfs_store_slices_used(store, of[i].first, 4096, soon()),
					 0);
			assert_int_equal(put_sync(&b), 0);
			assert_int_equal(cfs_store_slices_used(store, of[i].first, 4096, soon()),
					 of[i].is && seen);
			stop_store();
		}
	}
}

/* A bucket that may not be listed denies missing objects; one that may not be read denies all. */
static void slice_that_is_denied(void **state)
{
	struct cfs_block b = {.slice = 9, .len = BLOCK},
			 beside = {.slice = 9, .index = 1, .len = 1};

	start_store((struct setting){0});
	assert_int_equal(put_sync(&b), 0);
	faulty.missing_error = -EACCES;
	assert_int_equal(cfs_store_has_slice(store, 9, BLOCK, soon()), 1);
	assert_int_equal(cfs_store_remove_slice(store, 9, BLOCK, soon()), 0);
	assert_int_equal(cfs_store_has_slice(store, 9, BLOCK, soon()), 0);
	assert_false(object_exists(&beside));
	faulty.head_error = -EACCES;
	assert_int_equal(cfs_store_has_slice(store, 9, BLOCK, soon()), -EACCES);
	assert_false(object_exists(&beside));
	faulty.head_error = faulty.missing_error = 0;
	stop_store();
}

static void *run_sync(void *arg)
{
	return (void *)(intptr_t)cfs_store_sync(store, soon());
}

/* An fsync covers the puts before it, even when another one is under way, and gives up in time. */
static void sync_is_shared(void **state)
{
	pthread_t t[READERS];
	void *r;
	int i;

	start_store((struct setting){0});
	hold(&faulty.hold_syncs, 1);
	assert_int_equal(pthread_create(&t[0], NULL, run_sync, NULL), 0);
	wait_held(1);
	assert_int_equal(cfs_store_sync(store, cfs_deadline_in(50)), -EIO);
	for (i = 1; i < READERS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, run_sync, NULL), 0);
	let_go();
	for (i = 0; i < READERS; i++) {
		pthread_join(t[i], &r);
		assert_null(r);
	}
	assert_true(faulty.syncs >= 2);
	faulty.sync_error = -EDQUOT;
	assert_int_equal(cfs_store_sync(store, soon()), -EDQUOT);
	faulty.sync_error = 0;
	assert_int_equal(cfs_store_sync(store, soon()), 0);
	stop_store();
}

/* Without it: whoever syncs first hears of a failure, and the others believe to be safe. */
static void a_failed_sync_concerns_all_that_was_put(void **state)
{
	struct cfs_block b = {.len = BLOCK};
	pthread_t t;
	void *r;
	uint64_t i;

	start_store((struct setting){0});
	for (b.slice = 10; b.slice < 20; b.slice++)
		assert_int_equal(put_sync(&b), 0);
	assert_int_equal(cfs_store_sync(store, soon()), 0);
	b.slice = 30;
	assert_int_equal(put_sync(&b), 0);
	hold(&faulty.hold_syncs, 1);
	faulty.sync_error = -ENOSPC;
	assert_int_equal(pthread_create(&t, NULL, run_sync, NULL), 0);
	wait_held(1);
	b.slice = 40; /* written back, and lost, while it runs */
	assert_int_equal(put_sync(&b), 0);
	let_go();
	pthread_join(t, &r);
	assert_int_equal((intptr_t)r, -ENOSPC);
	faulty.sync_error = 0;
	b.slice = 31;
	assert_int_equal(put_sync(&b), 0);
	assert_int_equal(cfs_store_sync(store, soon()), 0);
	assert_true(cfs_store_has_suspects(store));
	for (i = 1; i < 50; i++)
		assert_int_equal(cfs_store_is_suspect(store, i), i == 30 || i == 40);
	stop_store();
}

/* A put that a sync's failure may have hit in its middle is made again. */
static void a_put_is_not_stored_when_a_sync_fails_meanwhile(void **state)
{
	struct cfs_block b = {.slice = 5, .len = BLOCK};
	pthread_t t;
	void *r;

	start_store((struct setting){0});
	hold(&faulty.hold_puts, 1);
	assert_int_equal(pthread_create(&t, NULL, run_put_sync, &b), 0);
	wait_held(1);
	faulty.sync_error = -EIO;
	assert_int_equal(cfs_store_sync(store, soon()), -EIO);
	faulty.sync_error = 0;
	let_go();
	pthread_join(t, &r);
	assert_int_equal((intptr_t)r, -EIO);
	assert_int_equal(put_sync(&b), 0);
	assert_int_equal(cfs_store_sync(store, soon()), 0);
	assert_false(cfs_store_has_suspects(store));
	stop_store();
}

/* Rather too many than one too few. */
static void suspects_need_little_memory(void **state)
{
	struct cfs_block b = {.len = 1};
	uint64_t i;

	start_store((struct setting){0});
	faulty.sync_error = -EIO;
	for (i = 0; i < 3000; i++) {
		b.slice = 10 + (i * 7919) % 3000 * 3;
		assert_int_equal(put_sync(&b), 0);
		if (i % 1000 == 999)
			assert_int_equal(cfs_store_sync(store, soon()), -EIO);
	}
	for (i = 0; i < 3000; i++)
		assert_true(cfs_store_is_suspect(store, 10 + i * 3));
	assert_false(cfs_store_is_suspect(store, 9));
	assert_false(cfs_store_is_suspect(store, 10 + 3000 * 3));
	stop_store();
}

/* A process that is gone without a word: what it had put is suspect, unless the next one hears. */
static void the_next_process_knows_what_is_not_synced(void **state)
{
	struct cfs_unsynced kept = {0};
	struct cfs_block b = {.len = BLOCK};
	uint64_t i;

	start_store((struct setting){.unsynced = &kept});
	for (b.slice = 10; b.slice < 13; b.slice++)
		assert_int_equal(put_sync(&b), 0);
	faulty.sync_error = -EIO;
	assert_int_equal(cfs_store_sync(store, soon()), -EIO);
	faulty.sync_error = 0;
	b.slice = 20;
	assert_int_equal(put_sync(&b), 0);
	assert_int_equal(cfs_store_sync(store, soon()), 0);
	b.slice = 30;
	assert_int_equal(put_sync(&b), 0);
	stop_store();

	start_store((struct setting){.unsynced = &kept, .reports_unsynced = true});
	for (i = 1; i < 40; i++)
		assert_int_equal(cfs_store_is_suspect(store, i), i >= 10 && i < 13);
	faulty.sync_error = -EIO;
	assert_int_equal(cfs_store_sync(store, soon()), -EIO);
	assert_true(cfs_store_is_suspect(store, 30));
	faulty.sync_error = 0;
	for (b.slice = 40; b.slice < 42; b.slice++)
		assert_int_equal(put_sync(&b), 0);
	assert_int_equal(cfs_store_hand_over(store, soon()), 0);
	b.slice = 50;
	assert_int_equal(put_sync(&b), 0);
	stop_store();

	start_store((struct setting){.unsynced = &kept});
	assert_false(cfs_store_is_suspect(store, 40));
	assert_false(cfs_store_is_suspect(store, 50));
	stop_store();

	start_store((struct setting){.unsynced = &kept});
	assert_false(cfs_store_is_suspect(store, 40));
	assert_true(cfs_store_is_suspect(store, 50));
	assert_int_equal(cfs_store_hand_over(store, soon()), 0);
	b.slice = 60;
	assert_int_equal(put_sync(&b), 0);
	cfs_store_take_back(store);
	stop_store();

	start_store((struct setting){.unsynced = &kept});
	assert_true(cfs_store_is_suspect(store, 60));
	stop_store();
}

/* ---- killed at any instruction ---- */

#define NOTED 110

struct noted {
	struct cfs_unsynced kept;
	_Atomic unsigned n;
	uint64_t ids[NOTED];
};

static bool is_in(const struct cfs_slice_runs *l, uint64_t id)
{
	unsigned low = 0, high = l->n, mid;

	while (low < high) {
		mid = (low + high) / 2;
		if (l->run[mid].last < id)
			low = mid + 1;
		else
			high = mid;
	}
	return low < l->n && l->run[low].first <= id;
}

__attribute__((noreturn)) static void note_all(struct noted *at)
{
	unsigned i;

	start_store((struct setting){.unsynced = &at->kept});
	ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	raise(SIGSTOP);
	for (i = 0; i < NOTED; i++) {
		cfs_sync_note(store, cfs_sync_begin(store), at->ids[i]);
		atomic_store(&at->n, i + 1);
	}
	_exit(0);
}

/* All that was noted is there after every instruction of the process that notes it. */
static void nothing_is_forgotten_by_a_kill(void **state)
{
	struct noted *at =
		mmap(NULL, sizeof(*at), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct cfs_slice_runs last = {0};
	unsigned i, n, changes = 0;
	int status;
	pid_t pid;

	if (!SINGLE_STEP)
		skip();
	assert_ptr_not_equal(at, MAP_FAILED);
	/* In the middle, at both ends, neighbours that become one, and more than there is room for.
	 */
	for (i = 0; i < NOTED; i++)
		at->ids[i] = i < 80 ? 1000 + (i * 37) % 80 * 2 : 1001 + (i * 7) % 30 * 4;
	pid = fork();
	if (pid == 0)
		note_all(at);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	while (WIFSTOPPED(status)) {
		n = atomic_load(&at->n);
		if (memcmp(&last, &at->kept.fresh, sizeof(last)) != 0) {
			memcpy(&last, &at->kept.fresh, sizeof(last));
			changes++;
			for (i = 0; i < n; i++)
				assert_true(is_in(&last, at->ids[i]));
		}
		assert_int_equal(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		assert_int_equal(waitpid(pid, &status, __WALL), pid);
	}
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	assert_int_equal(at->n, NOTED);
	assert_true(changes > NOTED);
	munmap(at, sizeof(*at));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(put_is_visible_before_its_upload_ends),
		cmocka_unit_test(small_blocks_are_small),
		cmocka_unit_test(failed_put_is_reported_once),
		cmocka_unit_test(stuck_puts_are_reported),
		cmocka_unit_test(slow_link_has_fewer_uploads),
		cmocka_unit_test(slow_uploads_are_not_few_for_ever),
		cmocka_unit_test(upload_queue_is_bounded),
		cmocka_unit_test(remove_slice),
		cmocka_unit_test(slices_that_are_used),
		cmocka_unit_test(slice_that_is_denied),
		cmocka_unit_test(sync_is_shared),
		cmocka_unit_test(a_failed_sync_concerns_all_that_was_put),
		cmocka_unit_test(a_put_is_not_stored_when_a_sync_fails_meanwhile),
		cmocka_unit_test(suspects_need_little_memory),
		cmocka_unit_test(the_next_process_knows_what_is_not_synced),
		cmocka_unit_test(nothing_is_forgotten_by_a_kill),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
