/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compaction, whose failures are the worst: a block is deleted while a file still uses it.
 */
#include <sched.h>
#include <stdio.h>

#include "conformance.h"

static ssize_t read_list(cfs_ino_t ino, struct cfs_slice **ret)
{
	struct cfs_ctx c = as_root();

	return cfs_meta_read_chunk(vol.m, &c, ino, 0, ret);
}

/* Compacts records [skipped, n) as the data layer would; the id of the merged slice. */
static int compact(cfs_ino_t ino, const struct cfs_slice *head, size_t n, size_t skipped,
		   uint64_t *ret_id)
{
	struct cfs_ctx c = as_root();
	struct cfs_slice merged = {.pos = head[skipped].pos};
	size_t i;

	for (i = skipped; i < n; i++)
		if (head[i].pos + head[i].len > merged.pos + merged.len)
			merged.len = head[i].pos + head[i].len - merged.pos;
	merged.size = merged.len;
	OK(cfs_meta_new_slice(vol.m, &c, &merged.id));
	*ret_id = merged.id;
	return cfs_meta_compact_chunk(vol.m, &c, ino, 0, head, n, skipped, &merged);
}

static void wait_slice_deleted(uint64_t id)
{
	cfs_deadline_t end = cfs_deadline_in(10000);

	while (!slice_deleted(id) && !cfs_deadline_passed(end))
		sched_yield();
	assert_true(slice_deleted(id));
}

static void test_merge(void **state)
{
	cfs_ino_t d = test_dir("merge"), f = make_file(d, "f");
	struct timespec mtime;
	struct cfs_slice *head;
	uint64_t ids[9], id;
	char want[64];
	ssize_t n;
	int i;

	for (i = 0; i < 9; i++)
		ids[i] = write_at(f, (uint64_t)i * 7000 / 2, 7000);
	mtime = attr_of(f).mtime;
	n = read_list(f, &head);
	assert_int_equal(n, 9);
	OK(compact(f, head, 9, 0, &id));
	snprintf(want, sizeof(want), "00000000%016llx%08x00000000%08x", (unsigned long long)id,
		 35000u, 35000u);
	assert_string_equal(records_hex(f, 0), want);
	/* Readers cache by mtime; compaction shows the same bytes. */
	assert_int_equal(attr_of(f).mtime.tv_nsec, mtime.tv_nsec);
	for (i = 0; i < 9; i++)
		wait_slice_deleted(ids[i]);
	assert_false(slice_deleted(id));
	free(head);
}

static void test_keeps_head_and_tail(void **state)
{
	cfs_ino_t d = test_dir("head-tail"), f = make_file(d, "f");
	uint64_t a = write_at(f, 0, 100), b = write_at(f, 100, 100), c2 = write_at(f, 200, 100);
	uint64_t later, id;
	struct cfs_slice *head, *after;
	ssize_t n = read_list(f, &head);

	later = write_at(f, 50, 10);
	OK(compact(f, head, (size_t)n, 1, &id));
	n = read_list(f, &after);
	assert_int_equal(n, 3);
	assert_int_equal(after[0].id, a);
	assert_int_equal(after[1].id, id);
	assert_int_equal(after[1].pos, 100);
	assert_int_equal(after[1].len, 200);
	assert_int_equal(after[2].id, later);
	wait_slice_deleted(b);
	wait_slice_deleted(c2);
	assert_false(slice_deleted(a));
	free(head);
	free(after);
}

/* Somebody else compacted first: nothing changes, and the useless new slice goes. */
static void test_lost_race(void **state)
{
	cfs_ino_t d = test_dir("lost-race"), f = make_file(d, "f");
	struct cfs_slice *head, *after;
	uint64_t first, second;
	ssize_t n;

	write_at(f, 0, 100);
	write_at(f, 0, 100);
	n = read_list(f, &head);
	OK(compact(f, head, (size_t)n, 0, &first));
	assert_int_equal(compact(f, head, (size_t)n, 0, &second), -EAGAIN);
	wait_slice_deleted(second);
	n = read_list(f, &after);
	assert_int_equal(n, 1);
	assert_int_equal(after[0].id, first);
	assert_false(slice_deleted(first));
	free(head);
	free(after);
}

/* Slices that a copy still uses survive the compaction of the original. */
static void test_shared(void **state)
{
	cfs_ino_t d = test_dir("shared"), f = make_file(d, "f"), g = make_file(d, "g");
	uint64_t a = write_at(f, 0, 100), b = write_at(f, 50, 100), id, copied;
	struct cfs_copy_range req = {f, g, 0, 0, 150};
	struct cfs_ctx c = as_root();
	struct cfs_slice *head;
	struct cfs_attr attr;
	ssize_t n = read_list(f, &head);

	OK(cfs_meta_copy_range(vol.m, &c, &req, &copied, &attr));
	OK(compact(f, head, (size_t)n, 0, &id));
	unlink_name(d, "f");
	wait_deletions();
	assert_true(slice_deleted(id));
	assert_false(slice_deleted(a));
	assert_false(slice_deleted(b));
	unlink_name(d, "g");
	wait_deletions();
	assert_true(slice_deleted(a));
	assert_true(slice_deleted(b));
	free(head);
}

static int note_dead(void *arg, uint64_t id, uint32_t size)
{
	uint64_t *ids = arg;

	(void)size;
	while (*ids)
		ids++;
	*ids = id;
	return 0;
}

/* With trash on, replaced slices wait as long as deleted files do. */
static void test_delayed(void **state)
{
	cfs_ino_t d = test_dir("delayed"), f = make_file(d, "f");
	uint64_t a, b, id, dead[8] = {0};
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	struct cfs_slice *head;
	ssize_t n;
	size_t i;

	change_setting(trash_on);
	a = write_at(f, 0, 100);
	b = write_at(f, 0, 100);
	n = read_list(f, &head);
	OK(compact(f, head, (size_t)n, 0, &id));
	assert_int_equal(e->ops->expire_delayed(e, &c, c.now.tv_sec - 10, note_dead, dead), 1);
	assert_int_equal(dead[0], 0);
	assert_false(slice_deleted(a));
	while (e->ops->expire_delayed(e, &c, c.now.tv_sec + 10, note_dead, dead) == 0)
		;
	assert_true((dead[0] == a && dead[1] == b) || (dead[0] == b && dead[1] == a));
	for (i = 0; i < 2; i++)
		OK(e->ops->drop_slice(e, &c, dead[i], 100));
	free(head);
}

TEST_LIST(compact, T(test_merge), T(test_keeps_head_and_tail), T(test_lost_race), T(test_shared),
	  T(test_delayed));
