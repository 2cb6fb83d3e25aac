/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache disk that does not answer any more. When these fail readers, removals and writers wait
 * for it, what writeback could not put there is lost, or the disk is not used again when it is
 * back.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cachefs/stage.h>

#include "base/wouldblock.h"
#include "disk_fixture.h"
#include "store/disk/disk-internal.h"
#include "store/stage/stage-internal.h"

/* ---- system calls that hang on demand (the linker's --wrap) ---- */

static struct {
	pthread_mutex_t lock; /* protects what follows */
	pthread_cond_t changed;
	bool on;
	bool scans;	     /* only those for what is staged hang */
	unsigned scans_fail; /* so many of the next ones */
	unsigned held;
	pthread_t reader; /* who must not wait for a disk, if `reads` */
	bool reads;
	unsigned removals; /* by him */
} hang = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void set_flag(bool *flag, bool on)
{
	pthread_mutex_lock(&hang.lock);
	*flag = on;
	pthread_cond_broadcast(&hang.changed);
	pthread_mutex_unlock(&hang.lock);
}

static void set_hang(bool on)
{
	set_flag(&hang.on, on);
}

static bool is_hanging(void)
{
	bool on;

	pthread_mutex_lock(&hang.lock);
	on = hang.on;
	pthread_mutex_unlock(&hang.lock);
	return on;
}

static void pass_flag(const bool *flag)
{
	pthread_mutex_lock(&hang.lock);
	hang.held++;
	while (*flag)
		pthread_cond_wait(&hang.changed, &hang.lock);
	hang.held--;
	pthread_mutex_unlock(&hang.lock);
}

static void pass(void)
{
	pass_flag(&hang.on);
}

/* False: it is to fail. */
static bool pass_scan(void)
{
	bool fails;

	pass_flag(&hang.scans);
	pthread_mutex_lock(&hang.lock);
	fails = hang.scans_fail > 0;
	hang.scans_fail -= fails;
	pthread_mutex_unlock(&hang.lock);
	return !fails;
}

static unsigned held(void)
{
	unsigned n;

	pthread_mutex_lock(&hang.lock);
	n = hang.held;
	pthread_mutex_unlock(&hang.lock);
	return n;
}

ssize_t __real_preadv64v2(int fd, const struct iovec *iov, int n, off_t off, int flags);
ssize_t __wrap_preadv64v2(int fd, const struct iovec *iov, int n, off_t off, int flags);
int __real_close(int fd);
int __wrap_close(int fd);
int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __real_unlinkat(int fd, const char *path, int flags);
int __wrap_unlinkat(int fd, const char *path, int flags);
int __real_openat64(int fd, const char *path, int flags, mode_t mode);
int __wrap_openat64(int fd, const char *path, int flags, mode_t mode);
int __real_fstatfs64(int fd, struct statfs *ret);
int __wrap_fstatfs64(int fd, struct statfs *ret);

ssize_t __wrap_preadv64v2(int fd, const struct iovec *iov, int n, off_t off, int flags)
{
	if (flags & RWF_NOWAIT) {
		if (!is_hanging())
			return __real_preadv64v2(fd, iov, n, off, 0);
		errno = EAGAIN;
		return -1;
	}
	pass();
	return __real_preadv64v2(fd, iov, n, off, flags);
}

/* The last one of a file that is removed gives its space back. */
int __wrap_close(int fd)
{
	struct stat st;

	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 0)
		pass();
	return __real_close(fd);
}

int __wrap_fdatasync(int fd)
{
	pass();
	return __real_fdatasync(fd);
}

int __wrap_unlinkat(int fd, const char *path, int flags)
{
	pthread_mutex_lock(&hang.lock);
	hang.removals += hang.reads && pthread_equal(hang.reader, pthread_self());
	pthread_mutex_unlock(&hang.lock);
	pass();
	return __real_unlinkat(fd, path, flags);
}

int __wrap_openat64(int fd, const char *path, int flags, mode_t mode)
{
	pass();
	/* Others follow links: they make the directory durable. */
	if (!strcmp(path, CFS_CACHEDIR_STAGED "/chunks") && flags & O_NOFOLLOW && !pass_scan()) {
		errno = EMFILE;
		return -1;
	}
	return __real_openat64(fd, path, flags, mode);
}

/* In memory nothing hangs, and no read is asked not to. */
int __wrap_fstatfs64(int fd, struct statfs *ret)
{
	int r = __real_fstatfs64(fd, ret);

	ret->f_type = 0xEF53;
	return r;
}

/* ---- a mount's store with a disk cache, and its readers ---- */

static void start(bool writeback)
{
	struct cfs_stage_conf conf = {.writeback = true, .delay_ms = 3600000, .tick_ms = 20};

	/* A staged block must be able to get to the disk while nothing hangs. */
	disk_conf.stall_ms = writeback ? 2000 : 50;
	plain_objects = false;
	open_disk();
	if (writeback)
		assert_int_equal(cfs_stage_start(store, disk, &conf), 0);
}

static int end(void **state)
{
	set_hang(false);
	set_flag(&hang.scans, false);
	return disk_tear_down(state);
}

/* In the object store and on the disk, and not in memory. */
static void cache_block(const struct cfs_block *b)
{
	put_object(b);
	store_block(b);
}

/* ---- tests ---- */

/*
 * More readers of what is on the disk than there are workers: each gets the bytes from the bucket,
 * and so do those of other blocks. The disk is left alone until it answers, and then used again.
 */
static void reads(void **state)
{
	enum { N = 10 };
	struct cfs_block other = {.slice = 100, .len = BLOCK};
	struct reader rd[N];
	pthread_t t[N];
	uint64_t hits;
	unsigned i;

	start(false);
	for (i = 0; i < N; i++) {
		rd[i] = (struct reader){.b = {.slice = 1 + i, .len = i % 2 ? 2 * PAGE : PAGE},
					.len = PAGE,
					.deadline = soon()};
		cache_block(&rd[i].b);
	}
	put_object(&other);
	set_hang(true);
	start_readers(rd, t, N);
	WAIT_FOR(held() > 0);
	assert_int_equal(read_range(&other, 0, BLOCK, soon()), 0);
	join_readers(t, N);
	for (i = 0; i < N; i++)
		assert_int_equal(rd[i].r, 0);
	WAIT_FOR(metric("disk_cache_directories_failed") == 1);
	set_hang(false);
	WAIT_FOR(metric("disk_cache_directories_failed") == 0 && held() == 0);
	hits = metric("disk_cache_hits_total");
	/* Blocks that bypassed the disk are in memory. */
	assert_int_equal(get(&rd[0].b, 0, 4096), 4096);
	assert_int_equal(metric("disk_cache_hits_total"), hits + 1);
	close_disk();
}

/* Queries of the cache and removals do not wait either. */
static void questions_and_removals(void **state)
{
	struct cfs_block b = {.slice = 1, .len = BLOCK}, c = {.slice = 2, .len = BLOCK};
	struct cfs_store_held have;

	start(false);
	cache_block(&b);
	cache_block(&c);
	set_hang(true);
	cfs_store_held(store, &b, 0, BLOCK, &have);
	assert_int_equal(have.disk, 0);
	assert_int_equal(cfs_store_remove_slice(store, 1, BLOCK, soon()), 0);
	assert_false(object_exists(&b));
	assert_true(cfs_store_warm(store, &c, cfs_deadline_in(2000)) < 0);
	set_hang(false);
	WAIT_FOR(metric("disk_cache_directories_failed") == 0);
	WAIT_FOR(!file_exists(&b));
	close_disk();
}

/* Files that are to go before a disk that hangs speak once against it, and go when it is back. */
static void removals(void **state)
{
	enum { N = 6 };
	struct cfs_block b[N];
	unsigned i;

	start(false);
	for (i = 0; i < N; i++) {
		b[i] = (struct cfs_block){.slice = 1 + i, .len = PAGE};
		cache_block(&b[i]);
	}
	set_hang(true);
	for (i = 0; i < N; i++)
		cfs_store_forget(store, &b[i]);
	assert_int_equal(metric("disk_cache_directories_failed"), 0);
	assert_int_equal(metric("disk_cache_errors_total"), 1);
	set_hang(false);
	for (i = 0; i < N; i++)
		WAIT_FOR(!file_exists(&b[i]));
	close_disk();
}

/* Blocks that wait for a disk that hangs give their memory back. */
static void writes(void **state)
{
	struct cfs_block b = {.slice = 1, .len = BLOCK};
	struct cfs_pool_stats st;
	struct cfs_segs data;

	start(false);
	fill(&b, PAGE, &data);
	set_hang(true);
	for (; metric("disk_cache_directories_failed") == 0 && b.slice < 100000; b.slice++) {
		cfs_disk_tier.offer(disk, &b, &data);
		cfs_backoff(0, 1, 1, soon());
	}
	cfs_segs_release(&data);
	assert_int_equal(metric("disk_cache_directories_failed"), 1);
	/* But for the one that is being written. */
	assert_int_equal(metric("disk_cache_pending_bytes"), BLOCK);
	cfs_pool_stats(pool, &st);
	assert_int_equal(st.used[CFS_USE_READ] + st.used[CFS_USE_WRITE], BLOCK);
	set_hang(false);
	WAIT_FOR(metric("disk_cache_directories_failed") == 0 &&
		 metric("disk_cache_pending_bytes") == 0);
	close_disk();
}

/*
 * A block that writeback cannot put on the disk in time goes to the bucket, and only there,
 * whatever becomes of its file later; the same block written again meanwhile, too.
 */
static void staging(void **state)
{
	struct cfs_block a = {.slice = 1, .len = BLOCK}, b = {.slice = 2, .len = 5000};
	struct cfs_block c = {.slice = 3, .len = 5000};

	start(true);
	assert_int_equal(put_sync(&a), 0);
	assert_int_equal(metric("staging_blocks"), 1);
	set_hang(true);
	assert_int_equal(put_sync(&b), 0);
	assert_true(object_exists(&b));
	assert_int_equal(metric("staging_blocks"), 1);
	WAIT_FOR(metric("disk_cache_directories_failed") == 1);
	assert_int_equal(put_sync(&b), 0);
	assert_int_equal(put_sync(&c), 0);
	assert_true(object_exists(&c));
	assert_int_equal(metric("staging_bypassed_total"), 3);
	set_hang(false);
	WAIT_FOR(metric("disk_cache_directories_failed") == 0 && held() == 0);
	WAIT_FOR(!in_tree("rawstaging", &b));
	assert_true(object_exists(&b));
	assert_true(in_tree("rawstaging", &a));
	c.slice = 4;
	assert_int_equal(put_sync(&c), 0);
	assert_false(object_exists(&c));
	assert_true(in_tree("rawstaging", &c));
	assert_int_equal(metric("staging_blocks"), 2);
	close_disk();
}

/* A block that is nowhere else is waited for, however long others go elsewhere. */
static void staged_block(void **state)
{
	struct reader rd = {.b = {.slice = 1, .len = PAGE}, .len = PAGE, .deadline = soon()};
	struct cfs_block other = {.slice = 2, .len = PAGE};
	pthread_t t;

	start(true);
	for (; other.slice < 20; other.slice++)
		cache_block(&other);
	assert_int_equal(put_sync(&rd.b), 0);
	cfs_store_forget(store, &rd.b);
	set_hang(true);
	start_readers(&rd, &t, 1);
	WAIT_FOR(held() > 0);
	for (other.slice = 2; other.slice < 20 && metric("disk_cache_directories_failed") == 0;
	     other.slice++)
		assert_int_equal(read_range(&other, 0, 4096, soon()), 0);
	assert_int_equal(metric("disk_cache_directories_failed"), 1);
	assert_int_equal(pthread_tryjoin_np(t, NULL), EBUSY);
	set_hang(false);
	join_readers(&t, 1);
	assert_int_equal(rd.r, 0);
	close_disk();
}

static bool refuse(void *arg)
{
	return false;
}

/* Threads that are needed for others do not wait for it, neither for a part nor for all of it. */
static void staged_block_and_few_threads(void **state)
{
	struct cfs_block b = {.slice = 1, .len = BLOCK};

	start(true);
	assert_int_equal(put_sync(&b), 0);
	cfs_store_forget(store, &b);
	set_hang(true);
	cfs_would_block_hook(refuse, NULL);
	assert_int_equal(read_range(&b, 0, 4096, soon()), -EBUSY);
	assert_int_equal(read_range(&b, 0, BLOCK, soon()), -EBUSY);
	cfs_would_block_hook(NULL, NULL);
	set_hang(false);
	assert_int_equal(read_range(&b, 0, BLOCK, soon()), 0);
	close_disk();
}

static void *end_mount(void *arg)
{
	close_disk();
	return NULL;
}

/* A mount that ends while something is read ahead leaves nothing to those who still look for it. */
static void ahead_at_the_end(void **state)
{
	struct cfs_block b = {.slice = 1, .len = BLOCK};
	pthread_t t;

	start(true);
	cache_block(&b);
	assert_int_equal(unlink(path_of(&b)), 0);
	set_hang(true);
	assert_true(cfs_store_prefetch(store, &b, 0, PAGE, 0));
	WAIT_FOR(held() > 0);
	assert_int_equal(pthread_create(&t, NULL, end_mount, NULL), 0);
	set_hang(false);
	pthread_join(t, NULL);
}

/* Uploads that wait for the disk, or whose file cannot be removed, hold up none. */
static void staged_upload(void **state)
{
	struct cfs_stage_conf conf = {
		.writeback = true, .delay_ms = 3600000, .tick_ms = 20, .max_uploads = 1};
	struct cfs_block on_disk = {.slice = 1, .len = BLOCK},
			 in_memory = {.slice = 2, .len = 5000}, too = {.slice = 3, .len = 5000};

	disk_conf.stall_ms = 500;
	plain_objects = false;
	open_disk();
	assert_int_equal(cfs_stage_start(store, disk, &conf), 0);
	assert_int_equal(put_sync(&on_disk), 0);
	close_disk();
	open_disk();
	assert_int_equal(cfs_stage_start(store, disk, &conf), 0);
	WAIT_FOR(metric("staging_blocks") == 1);
	assert_int_equal(put_sync(&in_memory), 0);
	assert_int_equal(put_sync(&too), 0);
	assert_int_equal(metric("staging_blocks"), 3);
	set_hang(true);
	cfs_stage_set_mode(store, CFS_STAGE_FLUSH);
	WAIT_FOR(object_exists(&in_memory) && object_exists(&too));
	assert_false(object_exists(&on_disk));
	set_hang(false);
	WAIT_FOR(metric("staging_blocks") == 0);
	assert_true(object_exists(&on_disk));
	WAIT_FOR(!in_tree("rawstaging", &on_disk) && !in_tree("rawstaging", &in_memory) &&
		 !in_tree("rawstaging", &too));
	close_disk();
}

struct unpinning {
	struct cfs_disk_pin pin;
	atomic_bool done;
};

static void *unpin(void *arg)
{
	struct unpinning *u = arg;

	cfs_disk_unpin(&u->pin);
	atomic_store(&u->done, true);
	return NULL;
}

/* A server that has sent the last byte of a removed file goes on with other requests. */
static void last_user_of_a_removed_file(void **state)
{
	struct cfs_block b = {.slice = 1, .len = BLOCK};
	struct unpinning u = {0};
	pthread_t t;

	start(false);
	cache_block(&b);
	assert_int_equal(cfs_disk_pin(disk, &b, false, &u.pin), 0);
	cfs_store_forget(store, &b);
	WAIT_FOR(!file_exists(&b));
	set_hang(true);
	assert_int_equal(pthread_create(&t, NULL, unpin, &u), 0);
	/* A look at the free space may hang as well. */
	WAIT_FOR(atomic_load(&u.done) && held() > 0);
	set_hang(false);
	pthread_join(t, NULL);
	WAIT_FOR(held() == 0);
	close_disk();
}

/* Staged blocks are uploaded while the directory hangs in which more is looked for. */
static void scan_that_hangs(void **state)
{
	struct cfs_stage_conf conf = {.writeback = true, .tick_ms = 20};
	struct cfs_block b = {.slice = 1, .len = 5000};

	disk_conf.stall_ms = 2000;
	plain_objects = false;
	open_disk();
	set_flag(&hang.scans, true);
	faulty.put_error = -EIO;
	assert_int_equal(cfs_stage_start(store, disk, &conf), 0);
	WAIT_FOR(held() == 1);
	assert_int_equal(put_sync(&b), 0);
	WAIT_FOR(metric("staging_upload_errors_total") > 0);
	faulty.put_error = 0;
	WAIT_FOR(metric("staging_blocks") == 0);
	assert_true(object_exists(&b));
	set_flag(&hang.scans, false);
	close_disk();
}

/* A scan that failed is done again. */
static void scan_that_fails(void **state)
{
	struct cfs_block b = {.slice = 1, .len = 5000};

	start(true);
	assert_int_equal(put_sync(&b), 0);
	close_disk();
	hang.scans_fail = 1;
	start(true);
	WAIT_FOR(metric("staging_blocks") == 1);
	assert_int_equal(hang.scans_fail, 0);
	close_disk();
}

static unsigned end_reading(void)
{
	unsigned n;

	pthread_mutex_lock(&hang.lock);
	hang.reads = false;
	n = hang.removals;
	pthread_mutex_unlock(&hang.lock);
	return n;
}

static void begin_reading(void)
{
	pthread_mutex_lock(&hang.lock);
	hang.reads = true;
	hang.reader = pthread_self();
	hang.removals = 0;
	pthread_mutex_unlock(&hang.lock);
}

/* The reader of a damaged file leaves its removal to a thread that may wait for the disk. */
static void damaged_file(void **state)
{
	struct cfs_block torn = {.slice = 1, .len = BLOCK}, wrong = {.slice = 2, .len = BLOCK};
	char path[512];
	int fd;

	start(false);
	cache_block(&torn);
	cache_block(&wrong);
	path_in("raw", &torn, path);
	assert_int_equal(truncate(path, PAGE), 0);
	path_in("raw", &wrong, path);
	fd = open(path, O_WRONLY);
	assert_int_equal(pwrite(fd, "damaged", 7, 0), 7);
	close(fd);
	begin_reading();
	assert_int_equal(read_range(&torn, 0, 4096, soon()), 0);
	assert_int_equal(read_range(&wrong, 0, 4096, soon()), 0);
	assert_int_equal(end_reading(), 0);
	assert_int_equal(metric("disk_cache_corrupt_total"), 2);
	assert_false(file_exists(&torn) || file_exists(&wrong));
	close_disk();
}

int main(void)
{
#define HANG_TEST(name) cmocka_unit_test_setup_teardown(name, disk_set_up, end)
	const struct CMUnitTest tests[] = {
		HANG_TEST(reads),
		HANG_TEST(questions_and_removals),
		HANG_TEST(writes),
		HANG_TEST(staging),
		HANG_TEST(staged_block),
		HANG_TEST(staged_upload),
		HANG_TEST(scan_that_hangs),
		HANG_TEST(scan_that_fails),
		HANG_TEST(damaged_file),
		HANG_TEST(last_user_of_a_removed_file),
		HANG_TEST(removals),
		HANG_TEST(staged_block_and_few_threads),
		HANG_TEST(ahead_at_the_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
