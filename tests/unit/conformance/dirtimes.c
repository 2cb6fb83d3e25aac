/* SPDX-License-Identifier: Apache-2.0 */
/* Times of directories that are shown at once and stored later. */
#include <stdio.h>
#include <unistd.h>

#include "conformance.h"
#include "meta/api/dirtimes.h"

enum { HOUR_MS = 3600 * 1000 };

static struct timespec mtime_at(struct cfs_meta *m, cfs_ino_t dir)
{
	struct cfs_ctx c = as_root();
	struct cfs_attr a;

	OK(cfs_meta_getattr(m, &c, dir, &a));
	return a.mtime;
}

static int64_t mtime_s(struct cfs_meta *m, cfs_ino_t dir)
{
	return mtime_at(m, dir).tv_sec;
}

static void store(void)
{
	struct cfs_ctx c = as_root();

	OK(cfs_dirtimes_store(vol.m, &c));
}

static int late(void **state)
{
	vol.m->conf.skip_dir_mtime_ms = HOUR_MS;
	return 0;
}

static int exact(void **state)
{
	store();
	vol.m->conf.skip_dir_mtime_ms = 0;
	return after_each(state);
}

static cfs_ino_t dir_at(const char *name, int64_t s)
{
	struct cfs_ctx t = at_time(s, 0);
	struct cfs_entry e = {0};

	OK(try_make(&t, CFS_ROOT_INO, name, CFS_TYPE_DIR, 0777, &e));
	return e.ino;
}

static void make_at(cfs_ino_t dir, const char *name, int64_t s)
{
	struct cfs_ctx t = at_time(s, 0);
	struct cfs_entry e = {0};

	OK(try_make(&t, dir, name, CFS_TYPE_FILE, 0644, &e));
}

/* ---- the engine's part ---- */

static void touch(cfs_ino_t dir, struct timespec time, struct timespec until)
{
	struct cfs_dir_time v[2] = {{dir, time, until}, {1ULL << 60, time, until}};
	struct cfs_ctx c = as_root();

	OK(vol.m->eng->ops->touch_dirs(vol.m->eng, &c, v, 2));
}

static void test_engine(void **state)
{
	cfs_ino_t d = dir_at("engine", 1000);
	struct cfs_ctx t = at_time(2000, 0);
	struct cfs_attr in = {.mtime = {500, 0}}, a;

	touch(d, (struct timespec){1500, 123456789}, (struct timespec){1500, 123456789});
	a = attr_of(d);
	assert_int_equal(a.mtime.tv_sec, 1500);
	assert_int_equal(a.mtime.tv_nsec, 123456789);
	assert_int_equal(a.ctime.tv_sec, 1500);
	assert_int_equal(a.ctime.tv_nsec, 123456789);
	assert_int_equal(a.atime.tv_sec, 1000);
	assert_int_equal(a.nlink, 2);

	/* Its times were set later than that. */
	OK(cfs_meta_setattr(vol.m, &t, d, CFS_SET_MTIME, &in, &a));
	touch(d, (struct timespec){1600, 0}, (struct timespec){1600, 0});
	assert_int_equal(attr_of(d).mtime.tv_sec, 500);
	/* That was something else. */
	touch(d, (struct timespec){1600, 0}, (struct timespec){2000, 0});
	a = attr_of(d);
	assert_int_equal(a.mtime.tv_sec, 1600);
	assert_int_equal(a.ctime.tv_sec, 2000);
	/* A name was made between the two. */
	touch(d, (struct timespec){1550, 0}, (struct timespec){2000, 0});
	assert_int_equal(attr_of(d).mtime.tv_sec, 1600);

	/* Ahead of time, and before all time. */
	in.mtime.tv_sec = 9000000000;
	OK(cfs_meta_setattr(vol.m, &t, d, CFS_SET_MTIME, &in, &a));
	touch(d, (struct timespec){2001, 0}, (struct timespec){2001, 0});
	assert_int_equal(attr_of(d).mtime.tv_sec, 2001);
}

/* ---- what is seen ---- */

static int note_mtime(void *arg, const struct cfs_dirent *e)
{
	int64_t *s = arg;

	if (e->entry.ino == (cfs_ino_t)s[0])
		s[1] = e->entry.attr.mtime.tv_sec;
	return 0;
}

static int64_t listed_mtime(cfs_ino_t dir)
{
	struct cfs_cursor cursor = {0};
	struct cfs_ctx c = as_root();
	int64_t s[2] = {(int64_t)dir, 0};
	int r;

	do
		r = cfs_meta_readdir(vol.m, &c, CFS_ROOT_INO, true, 1000, &cursor, note_mtime, s);
	while (r == 0);
	assert_int_equal(r, 1);
	return s[1];
}

static void test_shown_at_once(void **state)
{
	cfs_ino_t d = dir_at("shown", 1000);
	struct cfs_ctx c = as_root(), t = at_time(3000, 0);
	struct cfs_attr parent = {0};
	struct cfs_mknod req = {.parent = d,
				.name = "g",
				.name_len = 1,
				.type = CFS_TYPE_FILE,
				.mode = 0644,
				.ret_parent = &parent};
	struct cfs_entry e = {0};

	make_at(d, "f", 2000);
	assert_int_equal(mtime_s(vol.m, d), 2000);
	OK(cfs_meta_lookup(vol.m, &c, CFS_ROOT_INO, "shown", 5, &e));
	assert_int_equal(e.attr.mtime.tv_sec, 2000);
	assert_int_equal(e.attr.ctime.tv_sec, 2000);
	OK(cfs_meta_lookup(vol.m, &c, d, ".", 1, &e));
	assert_int_equal(e.attr.mtime.tv_sec, 2000);
	assert_int_equal(listed_mtime(d), 2000);
	assert_int_equal(mtime_s(vol.other, d), 1000);

	OK(cfs_meta_mknod(vol.m, &t, &req, &e));
	assert_int_equal(parent.mtime.tv_sec, 3000);
	OK(try_unlink(&t, d, "f"));
	store();
	assert_int_equal(mtime_s(vol.other, d), 3000);
	assert_int_equal(mtime_s(vol.m, d), 3000);
}

static void test_every_change(void **state)
{
	cfs_ino_t d = dir_at("every", 1000), e = dir_at("every2", 1000);
	struct cfs_ctx t = at_time(2000, 0);
	struct cfs_renamed moved;

	make_at(d, "f", 1500);
	OK(try_link(&t, find(d, "f"), d, "g"));
	assert_int_equal(mtime_s(vol.m, d), 2000);
	t.now.tv_sec = 3000;
	OK(try_rename(&t, d, "g", e, "h", 0, &moved));
	assert_int_equal(mtime_s(vol.m, d), 3000);
	assert_int_equal(mtime_s(vol.m, e), 3000);
	t.now.tv_sec = 4000;
	/* Two names of one inode: nothing happens. */
	OK(try_rename(&t, e, "h", d, "f", 0, &moved));
	assert_int_equal(mtime_s(vol.m, d), 3000);
	OK(try_unlink(&t, e, "h"));
	assert_int_equal(mtime_s(vol.m, e), 4000);
	store();
	assert_int_equal(mtime_s(vol.other, d), 3000);
	assert_int_equal(mtime_s(vol.other, e), 4000);
}

/* ---- other changes of the directory ---- */

static void test_set_times_win(void **state)
{
	struct cfs_attr in = {.mtime = {500, 0}}, a;
	struct cfs_ctx t = at_time(3000, 0);
	struct cfs_meta *const by[] = {vol.m, vol.other};
	const char *const names[] = {"set0", "set1"};

	for (int i = 0; i < 2; i++) {
		cfs_ino_t d = dir_at(names[i], 1000);

		make_at(d, "f", 2000);
		OK(cfs_meta_setattr(by[i], &t, d, CFS_SET_MTIME, &in, &a));
		assert_int_equal(a.mtime.tv_sec, 500);
		assert_int_equal(mtime_s(vol.m, d), 500);
		store();
		assert_int_equal(mtime_s(vol.m, d), 500);
		assert_int_equal(mtime_s(vol.other, d), 500);
		make_at(d, "g", 4000);
		assert_int_equal(mtime_s(vol.m, d), 4000);
	}
}

static void test_other_changes_keep_it(void **state)
{
	cfs_ino_t d = dir_at("kept", 1000);
	struct cfs_attr in = {.mode = 0700}, a;
	struct cfs_ctx t = at_time(3000, 0);
	struct cfs_renamed moved;

	make_at(d, "f", 2000);
	OK(cfs_meta_setattr(vol.m, &t, d, CFS_SET_MODE, &in, &a));
	assert_int_equal(a.mtime.tv_sec, 2000);
	assert_int_equal(a.ctime.tv_sec, 3000);
	t.now.tv_sec = 4000;
	OK(try_rename(&t, CFS_ROOT_INO, "kept", CFS_ROOT_INO, "kept2", 0, &moved));
	assert_int_equal(moved.moved.attr.mtime.tv_sec, 2000);
	assert_int_equal(moved.moved.attr.ctime.tv_sec, 4000);
	assert_int_equal(mtime_s(vol.m, d), 2000);
	store();
	assert_int_equal(mtime_s(vol.other, d), 2000);
	assert_int_equal(attr_of(d).ctime.tv_sec, 4000);
	/* Once it is stored, what others do counts. */
	in.mtime.tv_sec = 600;
	t.now = cfs_wall();
	OK(cfs_meta_setattr(vol.other, &t, d, CFS_SET_MTIME, &in, &a));
	t.now = cfs_wall();
	OK(cfs_meta_setattr(vol.m, &t, d, CFS_SET_MODE, &in, &a));
	store();
	assert_int_equal(mtime_s(vol.m, d), 600);
}

static void test_later_name_of_another(void **state)
{
	cfs_ino_t d = dir_at("another", 1000);
	struct cfs_ctx t = at_time(3000, 0);
	struct cfs_mknod req = {
		.parent = d, .name = "g", .name_len = 1, .type = CFS_TYPE_FILE, .mode = 0644};
	struct cfs_entry e = {0};
	cfs_deadline_t end = cfs_deadline_in(10000);
	struct timespec before;

	make_at(d, "f", 2000);
	OK(cfs_meta_mknod(vol.other, &t, &req, &e));
	store();
	assert_int_equal(mtime_s(vol.m, d), 3000);
	/* Its clock is ahead of ours, which some engines learn a little later. */
	before = mtime_at(vol.m, d);
	t.now.tv_sec = 2500;
	do {
		OK(try_unlink(&t, d, "f"));
		make_at(d, "f", 2500);
	} while (cfs_timespec_cmp(mtime_at(vol.m, d), before) <= 0 && !cfs_deadline_passed(end));
	store();
	assert_true(cfs_timespec_cmp(mtime_at(vol.other, d), before) > 0);
}

/* ---- when it is stored ---- */

static void test_in_the_background(void **state)
{
	cfs_ino_t d = dir_at("background", 1000);
	cfs_deadline_t end = cfs_deadline_in(10000);

	vol.m->conf.skip_dir_mtime_ms = 20;
	make_at(d, "f", 2000);
	while (mtime_s(vol.other, d) != 2000 && !cfs_deadline_passed(end))
		usleep(2000);
	assert_int_equal(mtime_s(vol.other, d), 2000);
	make_at(d, "g", 3000);
	while (mtime_s(vol.other, d) != 3000 && !cfs_deadline_passed(end))
		usleep(2000);
	assert_int_equal(mtime_s(vol.other, d), 3000);
}

/* A thread that never stops making names does not delay that. */
static void test_under_load(void **state)
{
	cfs_ino_t d = dir_at("load", 1000);
	cfs_deadline_t end = cfs_deadline_in(10000);

	vol.m->conf.skip_dir_mtime_ms = 200;
	for (int64_t s = 2000; mtime_s(vol.other, d) == 1000; s++) {
		char name[32];

		assert_false(cfs_deadline_passed(end));
		snprintf(name, sizeof(name), "f%lld", (long long)s);
		make_at(d, name, s);
	}
}

static void test_sync(void **state)
{
	cfs_ino_t d = dir_at("sync", 1000);
	struct cfs_ctx c = as_root();

	make_at(d, "f", 2000);
	OK(cfs_meta_sync_dirs(vol.m, &c));
	assert_int_equal(mtime_s(vol.other, d), 2000);
}

/* Memory is bounded: whoever changes one directory more stores its times at once. */
static void test_many(void **state)
{
	cfs_ino_t d = dir_at("many", 1000);
	struct cfs_ctx c = as_root();

	for (cfs_ino_t i = 0; i < 16384; i++)
		cfs_dirtimes_changed(vol.m, &c, (1ULL << 40) + i, NULL);
	make_at(d, "f", 2000);
	assert_int_equal(mtime_s(vol.other, d), 2000);
	store();
	/* There is room again. */
	make_at(d, "g", 3000);
	assert_int_equal(mtime_s(vol.other, d), 2000);
	assert_int_equal(mtime_s(vol.m, d), 3000);
}

#define LATE(fn) cmocka_unit_test_setup_teardown(fn, late, exact)
TEST_LIST(dirtimes, T(test_engine), LATE(test_shown_at_once), LATE(test_every_change),
	  LATE(test_set_times_win), LATE(test_other_changes_keep_it),
	  LATE(test_later_name_of_another), LATE(test_in_the_background), LATE(test_under_load),
	  LATE(test_sync), LATE(test_many));
