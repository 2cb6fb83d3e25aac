/* SPDX-License-Identifier: Apache-2.0 */
/* The VFS: open files, their locks, and the last close. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "unit/metric.h"
#include "vfs_fixture.h"

/* A mount over n files. */
static struct cfs_ctx start_with(int n)
{
	start(1000, 0);
	fill_engine(n);
	return ctx();
}

/* Without it: after a restart of a program an old handle reads or writes somebody else's file. */
static void stale_handles_are_refused(void **state)
{
	struct cfs_ctx c = start_with(3);
	uint64_t fh, other;

	fh = open_file(1, O_RDONLY);
	assert_int_equal(release(fh), 0);
	other = open_file(2, O_RDONLY);
	assert_int_not_equal(fh, other);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, fh), -EBADF);
	assert_int_equal(release(fh), -EBADF);
	assert_int_equal(release(0), -EBADF);
	assert_int_equal(release(UINT64_MAX), -EBADF);
	assert_int_equal(cfs_vfs_releasedir(vfs, &c, other), -EBADF);
	assert_int_equal(release(other), 0);
}

/* Without it: a program that has no more files to open empties those that it fails to open. */
static void an_open_without_a_handle_does_not_truncate(void **state)
{
	struct cfs_ctx c = start_with(2);
	struct cfs_vfs_open o;
	uint64_t last = 0;
	int r;

	data.length = 3;
	while ((r = cfs_vfs_open(vfs, &c, FIRST_INO, O_RDONLY, &o)) == 0)
		last = o.fh;
	assert_int_equal(r, -ENFILE);
	assert_int_equal(cfs_vfs_open(vfs, &c, FIRST_INO + 1, O_WRONLY | O_TRUNC, &o), -ENFILE);
	assert_int_equal(data.length, 3);
	/* A truncation that fails leaves the handle to the next open. */
	assert_int_equal(release(last), 0);
	data.truncate_err = -EIO;
	assert_int_equal(cfs_vfs_open(vfs, &c, FIRST_INO + 1, O_WRONLY | O_TRUNC, &o), -EIO);
	data.truncate_err = 0;
	assert_int_equal(cfs_vfs_open(vfs, &c, FIRST_INO + 1, O_WRONLY | O_TRUNC, &o), 0);
	assert_int_equal(data.length, 0);
}

/* Without it: each open that fails leaves an empty file behind, and lock files are held by nobody. */
static void a_create_without_a_handle_makes_nothing(void **state)
{
	struct cfs_mknod req = {
		.parent = 1, .name = "f00001", .name_len = 6, .type = CFS_TYPE_FILE};
	struct cfs_ctx c = start_with(1);
	struct cfs_vfs_entry e;
	struct cfs_vfs_open o;
	uint64_t last = 0;

	while (cfs_vfs_open(vfs, &c, FIRST_INO, O_RDONLY, &o) == 0)
		last = o.fh;
	assert_int_equal(cfs_vfs_create_file(vfs, &c, &req, O_RDWR, &e, &o), -ENFILE);
	assert_int_equal(lookup("f00001", &e), -ENOENT);
	assert_int_equal(release(last), 0);
	assert_int_equal(cfs_vfs_create_file(vfs, &c, &req, O_RDWR, &e, &o), 0);
	assert_int_equal(release(o.fh), 0);
	/* A creation that fails leaves its handle to the next one. */
	last = metric_of(&cfs_vfs_metrics, vfs, "open_handles", NULL);
	assert_int_equal(cfs_vfs_create_file(vfs, &c, &req, O_RDWR | O_EXCL, &e, &o), -EEXIST);
	assert_int_equal(metric_of(&cfs_vfs_metrics, vfs, "open_handles", NULL), last);
}

/* Without it: a file that another mount has rewritten is read from stale pages. */
static void pages_are_kept_only_while_ctime_stays(void **state)
{
	struct cfs_ctx c = start_with(3);
	struct cfs_vfs_open o;
	/* used: a request of the handle shows that the kernel has dropped its pages. */
	static const struct {
		bool changed, used, keep;
	} turn[] = {
		{false, true, false}, {false, true, true},  {true, false, false},
		{false, true, false}, {false, false, true}, {false, true, true},
		{true, true, false},  {false, false, true},
	};
	size_t i;

	for (i = 0; i < sizeof(turn) / sizeof(turn[0]); i++) {
		if (turn[i].changed)
			meta.attr[1].ctime.tv_nsec++;
		assert_int_equal(cfs_vfs_open(vfs, &c, FIRST_INO + 1, O_RDONLY, &o), 0);
		assert_int_equal(o.keep_cache, turn[i].keep);
		if (turn[i].used)
			assert_int_equal(cfs_vfs_flush_file(vfs, &c, o.fh, 0), 0);
		release(o.fh);
	}
}

/* Without it: an unlinked temporary file loses its data while in use, or its space for ever. */
static void an_unlinked_open_file_lives_until_its_last_close(void **state)
{
	struct cfs_ctx c = start_with(3);
	struct cfs_vfs_attr a;
	uint64_t fh1, fh2;

	fh1 = open_file(1, O_RDWR);
	fh2 = open_file(1, O_RDONLY);
	assert_int_equal(unlink_file("f00001"), 0);
	assert_int_equal(cfs_vfs_getattr(vfs, &c, FIRST_INO + 1, &a), 0);
	release(fh1);
	assert_int_equal(meta.closed, 0);
	release(fh2);
	assert_int_equal(meta.closed, 1);
	assert_int_equal(unlink_file("f00002"), 0);
	assert_int_equal(meta.closed, 1);
}

static uint64_t held;

static void release_behind(void)
{
	meta.after_unlink = NULL;
	release(held);
}

/* Without it: a file closed in the middle of its unlink keeps its space until the unmount. */
static void a_close_during_the_unlink_is_noticed(void **state)
{
	start_with(3);
	held = open_file(1, O_RDWR);
	meta.after_unlink = release_behind;
	assert_int_equal(unlink_file("f00001"), 0);
	assert_int_equal(meta.closed, 1);
}

/* Without it: cp -p and tar leave the time of copying on what they copied. */
static void setting_times_comes_after_pending_writes(void **state)
{
	struct cfs_ctx c = start_with(3);
	struct iovec iov = {(char[]){"abc"}, 3};
	struct cfs_attr in = {.mtime = {5, 0}};
	struct cfs_vfs_attr a;
	uint64_t fh, at;

	fh = open_file(1, O_RDWR);
	assert_int_equal(cfs_vfs_write(vfs, &c, fh, 0, false, &iov, 1, &at), 0);
	assert_int_equal(cfs_vfs_getattr(vfs, &c, FIRST_INO + 1, &a), 0);
	assert_int_equal(a.attr.length, 3);
	assert_int_equal(cfs_vfs_setattr(vfs, &c, FIRST_INO + 1, fh, CFS_SET_MTIME, &in, &a), 0);
	assert_int_equal(data.flush_before_setattr, 1);
	assert_int_equal(a.attr.length, 3);
	release(fh);
}

/* Without it: a crashed or careless program blocks others; or they read what was there before. */
static void locks_go_with_the_handle_and_after_the_data(void **state)
{
	bool old;
	struct cfs_ctx c = start_with(3);
	struct cfs_plock all = {.type = CFS_LOCK_WRITE, .end = INT64_MAX};
	uint64_t fh;

	fh = open_file(1, O_RDWR);
	assert_int_equal(cfs_vfs_flock(vfs, &c, fh, 42, CFS_LOCK_WRITE, false, &old), 0);
	assert_int_equal(cfs_vfs_setlk(vfs, &c, fh, 42, &all, false, &old), 0);
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, fh, 42), 0);
	assert_int_equal(meta.unlocks, 2);
	assert_int_equal(meta.flocks, 1);
	release(fh);
	assert_int_equal(meta.flocks, 0);
}

/* Without it: a program that was refused a lock holds it, or loses the one that it had. */
static void a_lock_without_a_refresh_is_given_back(void **state)
{
	struct cfs_ctx c = start_with(1);
	struct cfs_plock lock = {.type = CFS_LOCK_WRITE, .end = 9};
	uint64_t fh = open_file(0, O_RDWR);
	bool old;

	meta.failing = FIRST_INO;
	assert_int_equal(cfs_vfs_flock(vfs, &c, fh, 42, CFS_LOCK_WRITE, false, &old), -EIO);
	assert_int_equal(meta.flocks, 0);
	assert_int_equal(cfs_vfs_setlk(vfs, &c, fh, 42, &lock, false, &old), -EIO);
	assert_int_equal(meta.unlocked_owners, 42);
	meta.holds_locks = true;
	assert_int_equal(cfs_vfs_setlk(vfs, &c, fh, 42, &lock, false, &old), -EIO);
	assert_int_equal(meta.unlocked_owners, 42);
	meta.failing = 0;
	release(fh);
}

/* Without it: a shared lock waits for the object store although it lets nobody in. */
static void only_what_lets_others_read_stores(void **state)
{
	struct cfs_ctx c = start_with(1);
	uint64_t fh = open_file(0, O_RDWR);
	bool old;

	data.dirty = true;
	assert_false(cfs_vfs_lock_stores(vfs, fh, 42, CFS_LOCK_READ, true));
	assert_int_equal(cfs_vfs_flock(vfs, &c, fh, 42, CFS_LOCK_READ, false, &old), 0);
	assert_int_equal(data.flushes, 0);
	meta.holds_locks = true;
	assert_false(cfs_vfs_lock_stores(vfs, fh, 42, CFS_LOCK_WRITE, true));
	assert_true(cfs_vfs_lock_stores(vfs, fh, 42, CFS_LOCK_READ, true));
	assert_int_equal(cfs_vfs_flock(vfs, &c, fh, 42, CFS_LOCK_READ, false, &old), 0);
	assert_int_equal(data.flushes, 1);
	data.dirty = true;
	assert_true(cfs_vfs_lock_stores(vfs, fh, 42, CFS_LOCK_NONE, false));
	assert_int_equal(cfs_vfs_flock(vfs, &c, fh, 42, CFS_LOCK_NONE, false, &old), 0);
	assert_int_equal(data.flushes, 2);
	data.dirty = false;
	release(fh);
}

/* Without it: an OFD lock, which nobody releases by name, is held until the mount ends. */
static void every_owner_of_a_handle_loses_its_locks_with_it(void **state)
{
	bool old;
	struct cfs_ctx c = start_with(1);
	struct cfs_plock lock = {.type = CFS_LOCK_WRITE, .end = 9};
	uint64_t fh;

	fh = open_file(0, O_RDWR);
	assert_int_equal(cfs_vfs_setlk(vfs, &c, fh, 11, &lock, false, &old), 0);
	assert_int_equal(cfs_vfs_setlk(vfs, &c, fh, 22, &lock, false, &old), 0);
	assert_int_equal(cfs_vfs_setlk(vfs, &c, fh, 22, &lock, false, &old), 0);
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, fh, 11), 0);
	assert_int_equal(meta.unlocked_owners, 11);
	assert_int_equal(release(fh), 0);
	assert_int_equal(meta.unlocked_owners, 11 + 22);
}

/* ---- threads ---- */

#define ROUNDS 2000

static void *open_and_close(void *arg)
{
	struct cfs_vfs_entry e;
	struct cfs_vfs_open o;
	struct cfs_mknod req = {.parent = 1, .name_len = 6, .type = CFS_TYPE_FILE};
	char name[8];
	int i;

	for (i = 0; i < ROUNDS; i++) {
		struct cfs_ctx c = ctx();

		snprintf(name, sizeof(name), "f%05d", i % 4);
		req.name = name;
		if (cfs_vfs_create_file(vfs, &c, &req, O_RDWR, &e, &o) == 0) {
			if (i % 3 == 0)
				cfs_vfs_unlink(vfs, &c, 1, name, 6);
			lookup(name, &e);
			release(o.fh);
		}
	}
	return NULL;
}

/* Without it: parallel opens, removals and closes of one file leak it or use freed memory. */
static void parallel_users_of_one_file(void **state)
{
	pthread_t t[4];
	int i;

	start(1000, 0);
	for (i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, open_and_close, NULL), 0);
	for (i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(metric_of(&cfs_vfs_metrics, vfs, "open_handles", NULL), 0);
	assert_int_equal(metric_of(&cfs_vfs_metrics, vfs, "open_inodes", NULL), 0);
	for (i = 0; i < 4; i++)
		assert_false(meta.sustained[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(stale_handles_are_refused, stop),
		cmocka_unit_test_teardown(an_open_without_a_handle_does_not_truncate, stop),
		cmocka_unit_test_teardown(a_create_without_a_handle_makes_nothing, stop),
		cmocka_unit_test_teardown(pages_are_kept_only_while_ctime_stays, stop),
		cmocka_unit_test_teardown(an_unlinked_open_file_lives_until_its_last_close, stop),
		cmocka_unit_test_teardown(a_close_during_the_unlink_is_noticed, stop),
		cmocka_unit_test_teardown(setting_times_comes_after_pending_writes, stop),
		cmocka_unit_test_teardown(locks_go_with_the_handle_and_after_the_data, stop),
		cmocka_unit_test_teardown(a_lock_without_a_refresh_is_given_back, stop),
		cmocka_unit_test_teardown(only_what_lets_others_read_stores, stop),
		cmocka_unit_test_teardown(every_owner_of_a_handle_loses_its_locks_with_it, stop),
		cmocka_unit_test_teardown(parallel_users_of_one_file, stop),
	};

	return cmocka_run_group_tests(tests, make_pool, free_pool);
}
