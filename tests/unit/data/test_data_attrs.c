/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mode, owner and times that are stored with the data. A user loses by a failure here: a file with
 * the mode or time of before, after a close that succeeded.
 */
#include <errno.h>
#include <string.h>

#include "base/activity.h"
#include "data_fixture.h"

static const struct cfs_attr wanted = {
	.mode = 0640, .uid = 7, .mtime = {1000, 5}, .atime = {900, 0}};

static int set(struct cfs_file *f, uint32_t what, const struct cfs_attr *in)
{
	struct cfs_ctx cx = ctx();
	struct cfs_attr ret;

	return cfs_file_setattr(f, &cx, what, in, &ret);
}

static int set_all(struct cfs_file *f)
{
	return set(f, CFS_SET_MODE | CFS_SET_UID | CFS_SET_ATIME | CFS_SET_MTIME, &wanted);
}

static void assert_wanted(const struct cfs_attr *a)
{
	assert_int_equal(a->mode, wanted.mode);
	assert_int_equal(a->uid, wanted.uid);
	assert_int_equal(cfs_timespec_cmp(a->mtime, wanted.mtime), 0);
	assert_int_equal(cfs_timespec_cmp(a->atime, wanted.atime), 0);
}

static struct cfs_attr shown(struct volume *v, struct cfs_file *f)
{
	struct cfs_attr a = v->meta.attr[1];

	cfs_file_overlay_attr(f, &a);
	return a;
}

/* Shown at once, stored by the one commit. */
static void one_commit(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_attr a;

	assert_int_equal(set_all(f), -EAGAIN); /* there is nothing to travel with */
	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(set_all(f), 0);
	a = shown(v, f);
	assert_wanted(&a);
	assert_int_equal(v->meta.commits, 0);
	assert_int_not_equal(v->meta.attr[1].mode, wanted.mode);
	assert_int_equal(data_metric(v, "data_changed_files"), 1);
	assert_int_equal(flush(f), 0);
	assert_int_equal(v->meta.commits, 1);
	assert_wanted(&v->meta.attr[1]);
	assert_int_equal(data_metric(v, "data_changed_files"), 0);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* Of several chunks, whose commits end in any order. */
static void time_of_several_chunks(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	unsigned i;

	for (i = 0; i < CHUNKS; i++)
		assert_int_equal(write_at(f, i * CFS_CHUNK_SIZE, "aaaa", 4), 0);
	assert_int_equal(set_all(f), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(v->meta.commits, CHUNKS);
	assert_wanted(&v->meta.attr[1]);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* A write has the last word about the time, and about nothing else. */
static void write_after_it(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);

	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(set_all(f), 0);
	assert_int_equal(write_at(f, 4, "bbbb", 4), 0);
	assert_true(shown(v, f).mtime.tv_sec > wanted.mtime.tv_sec);
	assert_int_equal(flush(f), 0);
	assert_true(v->meta.attr[1].mtime.tv_sec > wanted.mtime.tv_sec);
	assert_int_equal(v->meta.attr[1].mode, wanted.mode);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

struct watched {
	struct cfs_file *f;
	_Atomic int running, tried, together;
};

/* The only slice is being committed: nothing can travel with it any more. */
static void set_meanwhile(void *arg, const struct cfs_commit *c)
{
	struct watched *w = arg;

	assert_int_equal(set_all(w->f), -EAGAIN);
	w->tried++;
}

static void during_the_commit(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct watched w = {.f = f};

	v->meta.begins_arg = &w;
	v->meta.begins = set_meanwhile;
	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(w.tried, 1);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

static void count_begin(void *arg, const struct cfs_commit *c)
{
	struct watched *w = arg;

	if (w->running++ && (c->attrs || w->tried))
		w->together++;
	w->tried += c->attrs != NULL;
	sched_yield();
}

static void count_end(void *arg)
{
	((struct watched *)arg)->running--;
}

/* A commit with attributes is alone: another one could be carried out on the wrong side of it. */
static void alone(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct watched w = {.f = f};
	unsigned i, round;

	v->meta.applied_arg = v->meta.begins_arg = &w;
	v->meta.begins = count_begin;
	v->meta.applied = count_end;
	for (round = 0; round < 50; round++) {
		for (i = 0; i < CHUNKS; i++)
			assert_int_equal(write_at(f, i * CFS_CHUNK_SIZE + round, "aaaa", 4), 0);
		w.tried = 0;
		assert_int_equal(set_all(f), 0);
		assert_int_equal(flush(f), 0);
		assert_wanted(&v->meta.attr[1]);
	}
	assert_int_equal(w.together, 0);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* A change that waited for lost bytes is lost with them, and the error says so. */
static void lost_with_its_bytes(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	uint16_t before = v->meta.attr[1].mode;

	v->meta.fail_error = -ENOSPC;
	v->meta.fail_commits = 1;
	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(set_all(f), 0);
	assert_int_equal(flush(f), -ENOSPC);
	assert_int_equal(shown(v, f).mode, before);
	assert_int_equal(v->meta.attr[1].mode, before);
	assert_int_equal(data_metric(v, "data_changed_files"), 0);
	cfs_file_put(f);
	volume_free(v);
}

/* Carried out, answered with an error, found by its record: the attributes are there as well. */
static void lost_answer(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);

	v->meta.fail_error = -EIO;
	v->meta.fail_applied = true;
	v->meta.fail_commits = 1;
	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(set_all(f), 0);
	assert_int_equal(flush(f), 0);
	assert_int_equal(v->meta.commits, 1);
	assert_wanted(&v->meta.attr[1]);
	assert_int_equal(data_metric(v, "data_changed_files"), 0);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

/* For rename, link, open: mode and owner go ahead, the bytes and their time follow. */
static void stored_ahead(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_file *f = open_file(v, 1);
	struct cfs_ctx cx = ctx();

	assert_int_equal(cfs_file_store_change(f, &cx), 0);
	assert_int_equal(write_at(f, 0, "aaaa", 4), 0);
	assert_int_equal(set_all(f), 0);
	assert_int_equal(cfs_file_store_change(f, &cx), 0);
	assert_int_equal(v->meta.attr[1].mode, wanted.mode);
	assert_int_equal(v->meta.attr[1].uid, wanted.uid);
	assert_int_equal(v->meta.commits, 0);
	v->meta.attr[1].mode = 0600; /* by another mount: the commit does not store it again */
	assert_int_equal(flush(f), 0);
	assert_int_equal(v->meta.attr[1].mode, 0600);
	assert_int_equal(cfs_timespec_cmp(v->meta.attr[1].mtime, wanted.mtime), 0);
	cfs_file_put(f);
	assert_int_equal(volume_free(v), 0);
}

static int set_up(void **state)
{
	return cfs_activity_init();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_commit),	  cmocka_unit_test(time_of_several_chunks),
		cmocka_unit_test(write_after_it), cmocka_unit_test(during_the_commit),
		cmocka_unit_test(alone),	  cmocka_unit_test(lost_with_its_bytes),
		cmocka_unit_test(lost_answer),	  cmocka_unit_test(stored_ahead),
	};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
