/* SPDX-License-Identifier: Apache-2.0 */
/* Closes that do not wait (close=committing): who waits, and who hears of lost bytes. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "unit/metric.h"
#include "vfs_fixture.h"

static struct cfs_handoff *handoff;

static void start_later(void)
{
	start(0, 0); /* clears what is kept of the test before */
	cfs_vfs_destroy(vfs);
	fill_engine(3);
	data.commit_later = true;
	assert_int_equal(cfs_handoff_create(&handoff), 0);
	start_kept(handoff);
	data.awaited = 0;
}

static int end(void **state)
{
	stop(state);
	cfs_handoff_close(handoff);
	return 0;
}

/* Number i is written and closed, and is not committed. */
static void write_and_close(int i)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t) "abc", .iov_len = 3};
	uint64_t fh = open_file(i, O_WRONLY), at;
	struct cfs_ctx c = ctx();

	assert_int_equal(cfs_vfs_write(vfs, &c, fh, 0, false, &iov, 1, &at), 0);
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, fh, 1), 0);
	assert_int_equal(release(fh), 0);
	assert_non_null(data.closed);
}

static uint64_t open_dir(void)
{
	struct cfs_ctx c = ctx();
	struct cfs_vfs_open o;

	assert_int_equal(cfs_vfs_opendir(vfs, &c, CFS_ROOT_INO, &o), 0);
	return o.fh;
}

static int sync_dir(uint64_t fh)
{
	struct cfs_ctx c = ctx();

	return cfs_vfs_fsyncdir(vfs, &c, fh);
}

static void close_dir(uint64_t fh)
{
	struct cfs_ctx c = ctx();

	assert_int_equal(cfs_vfs_releasedir(vfs, &c, fh), 0);
}

/* Without it: a program that syncs the directory believes that its files are stored. */
static void directories_report_a_loss_once_each(void **state)
{
	uint64_t before, after, later;

	start_later();
	before = open_dir();
	write_and_close(1);
	data.closed_err = -ENOSPC;
	assert_int_equal(sync_dir(before), -ENOSPC);
	assert_int_equal(data.awaited, 1);
	assert_int_equal(sync_dir(before), 0);
	assert_int_equal(metric_of(&cfs_vfs_metrics, vfs, "closed_files_failed_total", NULL), 1);
	/* A directory opened after the report is of somebody else. */
	after = open_dir();
	assert_int_equal(sync_dir(after), 0);
	/* One opened before it is not. */
	write_and_close(1);
	cfs_data_await_closed(NULL, 0);
	later = open_dir();
	assert_int_equal(sync_dir(later), -ENOSPC);
	assert_int_equal(sync_dir(after), -ENOSPC);
	close_dir(before);
	close_dir(after);
	close_dir(later);
}

/* Without it: the file is opened again, and its fsync promises bytes that are lost. */
static void the_file_reports_its_loss_once(void **state)
{
	struct cfs_ctx c;
	uint64_t fh, other;

	start_later();
	write_and_close(1);
	data.closed_err = -EIO;
	cfs_data_await_closed(NULL, 0);
	c = ctx();
	fh = open_file(1, O_RDWR);
	other = open_file(2, O_RDWR);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, other), 0);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, fh), -EIO);
	assert_int_equal(cfs_vfs_fsync(vfs, &c, fh), 0);
	release(fh);
	release(other);
}

static void lose(int i)
{
	write_and_close(i);
	data.closed_err = -EIO;
	cfs_data_await_closed(NULL, 0);
}

static int sync_file(int i)
{
	struct cfs_ctx c = ctx();
	uint64_t fh = open_file(i, O_RDWR);
	int r = cfs_vfs_fsync(vfs, &c, fh);

	release(fh);
	return r;
}

/* Without it: after many losses the fsync of some files promises bytes that are lost. */
static void no_loss_is_forgotten(void **state)
{
	const int max = 4096;
	struct iovec iov = {.iov_base = (void *)(uintptr_t) "abc", .iov_len = 3};
	struct cfs_vfs_restored got = {0};
	struct cfs_ctx c;
	uint64_t fh, at;
	int i;

	start_later();
	fill_engine(max + 1);
	lose(max - 1); /* twice, and removed: counts no more */
	lose(max - 1);
	assert_int_equal(unlink_file("f04095"), 0);
	meta.exists[max - 1] = true;
	for (i = 0; i < max; i++)
		lose(i);
	/* The next close waits, and tells of an error itself. */
	c = ctx();
	fh = open_file(max, O_WRONLY);
	assert_int_equal(cfs_vfs_write(vfs, &c, fh, 0, false, &iov, 1, &at), 0);
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, fh, 1), 0);
	assert_null(data.closed);
	release(fh);
	assert_int_equal(sync_file(1), -EIO);
	lose(max);
	for (i = 2; i < 1000; i++)
		assert_int_equal(sync_file(i), -EIO);
	/* The next process knows those that are left, and the one after it. */
	for (i = 0; i < 2; i++) {
		vfs_abandon();
		start_kept(handoff);
		got = (struct cfs_vfs_restored){0};
		assert_int_equal(cfs_vfs_restore(vfs, &got), 0);
		assert_int_equal(got.closed, 0);
		free(got.lost_inos);
	}
	assert_int_equal(sync_file(0), -EIO);
	for (i = 0; i < 1000; i++)
		assert_int_equal(sync_file(i), 0);
	for (; i <= max; i++)
		assert_int_equal(sync_file(i), -EIO);
}

/* Without it: an error for a file that another mount has removed. */
static void a_removed_file_loses_nothing(void **state)
{
	uint64_t fh;

	start_later();
	fh = open_dir();
	write_and_close(1);
	meta.exists[1] = false;
	data.closed_err = -EIO;
	assert_int_equal(sync_dir(fh), 0);
	close_dir(fh);
}

/* Without it: fsync of a directory fails for a temporary file that is gone. */
static void nor_does_one_without_a_name(void **state)
{
	uint64_t fh;

	start_later();
	fh = open_dir();
	write_and_close(1);
	assert_int_equal(unlink_file("f00001"), 0);
	meta.attr[1].nlink = 0;
	data.closed_err = -EIO;
	assert_int_equal(sync_dir(fh), 0);
	close_dir(fh);
}

/* Without it: stat(2) shows the old length, and an unlink removes the file under its upload. */
static void the_inode_stays_open_until_it_is_committed(void **state)
{
	struct cfs_vfs_attr a;
	struct cfs_ctx c;

	start_later();
	write_and_close(1);
	c = ctx();
	assert_int_equal(cfs_vfs_getattr(vfs, &c, FIRST_INO + 1, &a), 0);
	assert_int_equal(a.attr.length, 3);
	assert_int_equal(unlink_file("f00001"), 0);
	assert_true(meta.sustained[1]);
	assert_int_equal(meta.closed, 0);
	cfs_data_await_closed(NULL, 0);
	assert_int_equal(meta.closed, 1);
	assert_int_equal(metric_of(&cfs_vfs_metrics, vfs, "open_inodes", NULL), 0);
}

/* Without it: the next holder of the lock on another mount misses what was closed under it. */
static void an_unlock_waits(void **state)
{
	bool old;
	struct cfs_plock all = {.type = CFS_LOCK_WRITE, .end = INT64_MAX};
	struct cfs_ctx c;
	uint64_t fh;

	start_later();
	meta.holds_locks = true;
	c = ctx();
	fh = open_file(2, O_RDONLY);
	assert_int_equal(cfs_vfs_flock(vfs, &c, fh, 42, CFS_LOCK_WRITE, false, &old), 0);
	write_and_close(1);
	assert_int_equal(cfs_vfs_flock(vfs, &c, fh, 42, CFS_LOCK_NONE, false, &old), 0);
	assert_int_equal(data.awaited, 1);
	assert_int_equal(cfs_vfs_setlk(vfs, &c, fh, 42, &all, false, &old), 0);
	write_and_close(1);
	all.type = CFS_LOCK_NONE;
	assert_int_equal(cfs_vfs_setlk(vfs, &c, fh, 42, &all, false, &old), 0);
	assert_int_equal(data.awaited, 2);
	write_and_close(1);
	assert_int_equal(release(fh), 0); /* of the handle that had locks */
	assert_int_equal(data.awaited, 3);
}

/* The process dies with bytes that it accepted and has not committed, and another one follows. */
static void die_uncommitted(void)
{
	atomic_store(data.mark, 1);
	vfs_abandon();
	data.closed = NULL;
	data.dirty = false;
	start_kept(handoff);
}

/* Without it: the reader is told of the death, if at all, and the next fsync of the file is not. */
static void a_reader_does_not_take_the_loss_along(void **state)
{
	struct cfs_vfs_restored got = {0};
	uint64_t fh;

	start_later();
	fh = open_file(1, O_RDONLY);
	write_and_close(1);
	die_uncommitted();
	assert_int_equal(cfs_vfs_restore(vfs, &got), 0);
	assert_int_equal(got.closed, 1);
	free(got.lost_inos);
	assert_int_equal(release(fh), 0);
	assert_int_equal(sync_file(1), -EIO);
	assert_int_equal(sync_file(1), 0);
}

/* Without it: the program's close has succeeded, and the loss ends with the handle. */
static void a_release_after_a_death_keeps_the_loss(void **state)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t) "abc", .iov_len = 3};
	struct cfs_vfs_restored got = {0};
	uint64_t fh, at;
	struct cfs_ctx c;

	start_later();
	fh = open_file(1, O_WRONLY);
	c = ctx();
	assert_int_equal(cfs_vfs_write(vfs, &c, fh, 0, false, &iov, 1, &at), 0);
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, fh, 1), 0);
	die_uncommitted();
	assert_int_equal(cfs_vfs_restore(vfs, &got), 0);
	assert_int_equal(got.lost, 1);
	free(got.lost_inos);
	release(fh);
	assert_int_equal(sync_file(1), -EIO);
	assert_int_equal(sync_file(1), 0);
}

/* Without it: the death of a process takes bytes of closed files, and nobody is told. */
static void a_successor_reports_losses_of_closed_files(void **state)
{
	struct cfs_vfs_restored got = {0};
	struct cfs_ctx c;
	uint64_t fh;

	start_later();
	write_and_close(1);
	die_uncommitted();
	assert_int_equal(cfs_vfs_restore(vfs, &got), 0);
	assert_int_equal(got.lost, 0);
	assert_int_equal(got.closed, 1);
	assert_int_equal(got.n_lost_inos, 1);
	assert_int_equal(got.lost_inos[0], FIRST_INO + 1);
	free(got.lost_inos);
	/* It dies too, before anybody asks. */
	vfs_abandon();
	start_kept(handoff);
	got = (struct cfs_vfs_restored){0};
	assert_int_equal(cfs_vfs_restore(vfs, &got), 0);
	assert_int_equal(got.closed, 0);
	free(got.lost_inos);
	fh = open_dir();
	assert_int_equal(sync_dir(fh), -EIO);
	close_dir(fh);
	/* That was heard: the next process says nothing. */
	vfs_abandon();
	start_kept(handoff);
	fh = open_dir();
	c = ctx();
	assert_int_equal(cfs_vfs_fsyncdir(vfs, &c, fh), 0);
	close_dir(fh);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(directories_report_a_loss_once_each, end),
		cmocka_unit_test_teardown(the_file_reports_its_loss_once, end),
		cmocka_unit_test_teardown(no_loss_is_forgotten, end),
		cmocka_unit_test_teardown(a_removed_file_loses_nothing, end),
		cmocka_unit_test_teardown(nor_does_one_without_a_name, end),
		cmocka_unit_test_teardown(the_inode_stays_open_until_it_is_committed, end),
		cmocka_unit_test_teardown(an_unlock_waits, end),
		cmocka_unit_test_teardown(a_reader_does_not_take_the_loss_along, end),
		cmocka_unit_test_teardown(a_release_after_a_death_keeps_the_loss, end),
		cmocka_unit_test_teardown(a_successor_reports_losses_of_closed_files, end),
	};

	return cmocka_run_group_tests(tests, make_pool, free_pool);
}
