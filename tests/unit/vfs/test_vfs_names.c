/* SPDX-License-Identifier: Apache-2.0 */
/* The VFS: names, listings, and how long answers about them are kept. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vfs_fixture.h"

/* ---- listings ---- */

struct walk {
	int budget, got, with_attrs, last;
	uint64_t off;
	uint8_t seen[FILES];
	uint64_t offs[FILES];
};

static int take(void *arg, const struct cfs_vfs_dirent *e)
{
	struct walk *w = arg;
	int i = number_of(e->name, e->name_len);

	if (!w->budget--)
		return 1;
	w->got++;
	if (i >= 0) {
		w->offs[i] = w->off;
		w->seen[i]++;
		w->with_attrs += e->entry != NULL;
		w->last = i;
	}
	w->off = e->next_off;
	return 0;
}

static int list_some(uint64_t fh, struct walk *w, int budget)
{
	struct cfs_ctx c = ctx();

	w->budget = budget;
	w->got = 0;
	assert_int_equal(cfs_vfs_readdir(vfs, &c, fh, w->off, true, take, w), 0);
	return w->got;
}

static uint64_t open_root(void)
{
	struct cfs_ctx c = ctx();
	struct cfs_vfs_open o;

	assert_int_equal(cfs_vfs_opendir(vfs, &c, CFS_ROOT_INO, &o), 0);
	return o.fh;
}

static void close_dir(uint64_t fh)
{
	struct cfs_ctx c = ctx();

	assert_int_equal(cfs_vfs_releasedir(vfs, &c, fh), 0);
}

/* Without it: rm -rf leaves files behind, or backups miss files, when a directory changes. */
static void listing_sees_every_lasting_entry_once(void **state)
{
	struct walk *w = calloc(1, sizeof(*w));
	char name[16];
	uint64_t fh;
	int i;

	start(1000, 0);
	fill_engine(5000);
	fh = open_root();
	while (list_some(fh, w, 7)) {
		for (i = 0; i < w->last; i += 3) {
			snprintf(name, sizeof(name), "f%05d", i);
			if (meta.exists[i])
				assert_int_equal(unlink_file(name), 0);
		}
	}
	for (i = 0; i < 5000; i++)
		assert_int_equal(w->seen[i], 1);
	assert_true(meta.max_limit <= 4000);
	close_dir(fh);
	free(w);
}

static pthread_t reader;
static int reader_calls;
static _Atomic int ahead_calls, ahead_err;
static atomic_bool ahead_blocked;

/* Only the thread that reads ahead. */
static int fail_or_block(void)
{
	if (pthread_equal(pthread_self(), reader)) {
		reader_calls++;
		return 0;
	}
	atomic_fetch_add(&ahead_calls, 1);
	while (atomic_load(&ahead_blocked))
		sched_yield();
	return atomic_load(&ahead_err);
}

static uint64_t open_read_ahead(struct walk *w, uint64_t timeout_ms, int err, bool blocked)
{
	uint64_t fh;

	reader = pthread_self();
	reader_calls = 0;
	atomic_store(&ahead_calls, 0);
	atomic_store(&ahead_err, err);
	atomic_store(&ahead_blocked, blocked);
	start(timeout_ms, 0);
	fill_engine(FILES);
	meta.during_readdir = fail_or_block;
	fh = open_root();
	list_some(fh, w, 100);
	assert_int_equal(atomic_load(&ahead_calls), 0);
	list_some(fh, w, 100);
	while (!atomic_load(&ahead_calls))
		sched_yield();
	return fh;
}

static void read_to_the_end(uint64_t fh, struct walk *w)
{
	int i;

	while (list_some(fh, w, 100))
		;
	for (i = 0; i < FILES; i++)
		assert_int_equal(w->seen[i], 1);
}

/* Without it: a program that lists a large directory waits for the database again and again. */
static void next_part_is_read_ahead(void **state)
{
	struct walk *w = calloc(1, sizeof(*w));
	uint64_t fh = open_read_ahead(w, 60000, 0, false);

	read_to_the_end(fh, w);
	assert_int_equal(reader_calls, 1);
	assert_int_equal(atomic_load(&ahead_calls), 1);
	close_dir(fh);
	free(w);
}

/* Without it: a listing lacks names, or fails, when reading ahead failed. */
static void failed_read_ahead_is_repeated(void **state)
{
	struct walk *w = calloc(1, sizeof(*w));
	uint64_t fh = open_read_ahead(w, 60000, -EIO, false);

	read_to_the_end(fh, w);
	assert_int_equal(reader_calls, 2);
	assert_int_equal(atomic_load(&ahead_calls), 1);
	close_dir(fh);
	free(w);
}

/* Without it: a program that looks at each file while it lists asks for each one's attributes. */
static void slow_readers_get_attributes(void **state)
{
	struct walk *w = calloc(1, sizeof(*w));
	uint64_t fh = open_read_ahead(w, 200, 0, false);

	usleep(150000); /* of the 200 ms for which attributes may be cached */
	read_to_the_end(fh, w);
	assert_int_equal(reader_calls, 2);
	assert_int_equal(atomic_load(&ahead_calls), 1);
	close_dir(fh);
	free(w);
}

/* Without it: closing or rewinding waits for a database that does not answer, or memory is lost. */
static void nobody_waits_for_an_unwanted_part(void **state)
{
	struct walk *w = calloc(1, sizeof(*w));
	uint64_t fh = open_read_ahead(w, 60000, 0, true);

	memset(w, 0, sizeof(*w));
	list_some(fh, w, 3000);
	close_dir(fh);
	fh = open_root();
	w->off = 0;
	list_some(fh, w, 100);
	close_dir(fh);
	atomic_store(&ahead_blocked, false);
	free(w);
}

/* Without it: a listing waits for longer than any other operation may. */
static void a_late_part_is_waited_for_until_the_deadline(void **state)
{
	struct walk *w = calloc(1, sizeof(*w));
	uint64_t fh = open_read_ahead(w, 60000, 0, true), off;
	struct cfs_ctx c = ctx();

	do {
		off = w->off;
		list_some(fh, w, 100);
	} while (w->last < 3999);
	assert_true(off != w->off);
	c.deadline = cfs_deadline_in(50);
	w->budget = 100;
	assert_int_equal(cfs_vfs_readdir(vfs, &c, fh, w->off, true, take, w), 0);
	assert_true(cfs_deadline_passed(c.deadline));
	atomic_store(&ahead_blocked, false);
	read_to_the_end(fh, w);
	close_dir(fh);
	free(w);
}

/* Without it: programs that use telldir and seekdir read the wrong entries. */
static void listing_goes_back_to_any_offset(void **state)
{
	struct walk *w = calloc(1, sizeof(*w));
	static const int to[] = {4999, 0, 2500, 3, 4000, 1999, 2000, 2001, 5500};
	uint64_t fh;
	size_t i;

	start(1000, 0);
	fill_engine(FILES);
	fh = open_root();
	while (list_some(fh, w, 100))
		;
	for (i = 0; i < sizeof(to) / sizeof(to[0]); i++) {
		w->off = w->offs[to[i]];
		assert_int_equal(list_some(fh, w, 1), 1);
		assert_int_equal(w->last, to[i]);
	}
	w->off = 0;
	assert_int_equal(list_some(fh, w, 2), 2);
	assert_int_equal(w->off & UINT32_MAX, 2);
	close_dir(fh);
	free(w);
}

/*
 * The kernel reads a handle on where the listing ended that it had kept of another handle. Without it:
 * a program that removes what it lists, as rm -r does, misses names.
 */
static void listing_goes_on_where_another_handle_was(void **state)
{
	struct walk *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));
	uint64_t first, second;
	char name[16];
	int i;

	start(60000, 0);
	fill_engine(5000);
	meta.exists[77] = meta.exists[3333] = false;
	first = open_root();
	while (list_some(first, a, 100))
		;
	close_dir(first);
	second = open_root();
	/* All but some of what the reader has got from the kernel is gone, and there are others. */
	for (i = 0; i < 2990; i++) {
		snprintf(name, sizeof(name), "f%05d", i);
		if (meta.exists[i])
			assert_int_equal(unlink_file(name), 0);
	}
	meta.exists[77] = meta.exists[3333] = true;
	b->off = a->offs[3000];
	while (list_some(second, b, 100))
		;
	for (i = 0; i < 3000; i++)
		assert_int_equal(b->seen[i], i == 77);
	for (i = 3000; i < 5000; i++)
		assert_int_equal(b->seen[i], 1);
	close_dir(second);
	free(a);
	free(b);
}

/*
 * The kernel puts replies to several handles together, by their offsets. Without it: a listing that it
 * keeps has names of two times, and misses one or has one twice.
 */
static void offsets_are_alike_only_for_equal_names(void **state)
{
	struct walk *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));
	uint64_t first, second;
	int i;

	start(60000, 0);
	fill_engine(3000);
	first = open_root();
	second = open_root();
	while (list_some(first, a, 100))
		;
	while (list_some(second, b, 70))
		;
	assert_memory_equal(a->offs, b->offs, sizeof(a->offs));
	meta.exists[1500] = false;
	memset(b, 0, sizeof(*b));
	while (list_some(second, b, 70))
		;
	/* Offsets are behind the names before. */
	for (i = 0; i < 1500; i++)
		assert_int_equal(a->offs[i], b->offs[i]);
	for (i = 1502; i < 3000; i++)
		assert_int_not_equal(a->offs[i] >> 32, b->offs[i] >> 32);
	close_dir(first);
	close_dir(second);
	free(a);
	free(b);
}

/* Without it: a file that was just removed or changed comes back as it was, out of a listing. */
static void listing_gives_no_attributes_that_are_outdated(void **state)
{
	struct walk *w = calloc(1, sizeof(*w));
	uint64_t fh, file;

	start(60000, 0);
	fill_engine(40);
	fh = open_root();
	assert_int_equal(list_some(fh, w, 12), 12);
	assert_int_equal(w->with_attrs, 10);
	chmod_file(20, 0600);
	assert_int_equal(unlink_file("f00030"), 0);
	file = open_file(35, O_RDWR);
	w->with_attrs = 0;
	while (list_some(fh, w, 10))
		;
	/* Inodes that share a set with the three may have lost theirs too. */
	assert_in_range(w->with_attrs, 20, 27);
	close_dir(fh);
	release(file);
	free(w);
}

/* ---- caches ---- */

/* Without it: what another mount changes stays invisible for twice as long as promised, or forever.
 */
static void answers_are_kept_for_their_time_and_no_longer(void **state)
{
	struct cfs_vfs_entry e;
	int calls;

	start(60000, 0);
	fill_engine(3);
	assert_int_equal(lookup("f00001", &e), 0);
	assert_int_equal(e.attr_ms, 60000);
	calls = meta.calls;
	assert_int_equal(lookup("f00001", &e), 0);
	assert_int_equal(meta.calls, calls);
	assert_in_range(e.attr_ms, 1, 60000);
	assert_in_range(e.entry_ms, 1, 60000);
	cfs_vfs_forget(vfs, FIRST_INO + 1);
	assert_int_equal(lookup("f00001", &e), 0);
	assert_int_equal(meta.calls, calls + 1);
	stop(NULL);

	start(0, 0);
	fill_engine(3);
	assert_int_equal(lookup("f00001", &e), 0);
	assert_int_equal(e.attr_ms, 0);
	calls = meta.calls;
	assert_int_equal(lookup("f00001", &e), 0);
	assert_int_equal(meta.calls, calls + 1);
}

static void chmod_behind(void)
{
	meta.during_getattr = NULL;
	chmod_file(1, 0700);
}

/* Without it: a chmod that has returned is undone for the length of the attribute timeout. */
static void a_slow_answer_does_not_replace_a_change(void **state)
{
	start(60000, 0);
	fill_engine(3);
	meta.during_getattr = chmod_behind;
	assert_int_equal(mode_of(1), 0644);
	assert_int_equal(mode_of(1), 0700);
}

static void append_a_byte(void)
{
	char x = 'x';
	const struct iovec byte = {.iov_base = &x, .iov_len = 1};
	uint64_t fh = open_file(1, O_RDWR), at;
	struct cfs_ctx c = ctx();

	assert_int_equal(cfs_vfs_write(vfs, &c, fh, 0, true, &byte, 1, &at), 0);
	assert_int_equal(cfs_vfs_flush_file(vfs, &c, fh, 0), 0);
	assert_int_equal(release(fh), 0);
}

static void append_behind(void)
{
	meta.during_lookup = NULL;
	append_a_byte();
}

/* Without it: a file that was written and closed has its old length, and the kernel cuts it. */
static void a_slow_lookup_does_not_shorten_a_file(void **state)
{
	struct cfs_vfs_entry e;

	start(60000, 0);
	fill_engine(3);
	meta.during_lookup = append_behind;
	assert_int_equal(lookup("f00001", &e), 0);
	assert_int_equal(e.attr.length, 1);
}

static uint64_t length_of(int i)
{
	struct cfs_vfs_attr a;
	struct cfs_ctx c = ctx();

	assert_int_equal(cfs_vfs_getattr(vfs, &c, FIRST_INO + (cfs_ino_t)i, &a), 0);
	return a.attr.length;
}

#define APPENDS 5000
#define LONGEST 20000 /* ms; each step waits for a turn of a busy processor */

static _Atomic int appended, looked;
static _Atomic bool enough;

/* One by one, each when the length before is in the cache. */
static void *append_many(void *arg)
{
	const uint64_t end_ms = cfs_now_ms() + LONGEST;
	int before;

	while (atomic_load(&appended) < APPENDS && cfs_now_ms() < end_ms) {
		before = atomic_load(&looked);
		while (atomic_load(&looked) < before + 2)
			sched_yield();
		append_a_byte();
		atomic_fetch_add(&appended, 1);
	}
	atomic_store(&enough, true);
	return NULL;
}

/* Without it: so it is at the moment of the last close, for all that was known before the open. */
static void a_close_shows_no_old_attributes(void **state)
{
	uint64_t longest = 0, length;
	pthread_t writer;
	int shrunk = 0;

	start(60000, 0);
	fill_engine(3);
	assert_int_equal(pthread_create(&writer, NULL, append_many, NULL), 0);
	while (!atomic_load(&enough)) {
		length = length_of(1);
		atomic_fetch_add(&looked, 1);
		shrunk += length < longest;
		longest = length;
	}
	pthread_join(writer, NULL);
	assert_int_equal(shrunk, 0);
	assert_int_equal(length_of(1), atomic_load(&appended));
}

/* Without it: a removed or recreated name is still answered from memory. */
static void changes_of_names_are_seen_at_once(void **state)
{
	struct cfs_mknod req = {
		.parent = 1, .name = "f00002", .name_len = 6, .type = CFS_TYPE_FILE};
	struct cfs_vfs_entry e;
	struct cfs_ctx c;

	start(60000, 0);
	fill_engine(3);
	c = ctx();
	assert_int_equal(lookup("f00002", &e), 0);
	assert_int_equal(unlink_file("f00002"), 0);
	assert_int_equal(lookup("f00002", &e), -ENOENT);
	assert_int_equal(cfs_vfs_mknod(vfs, &c, &req, &e), 0);
	assert_int_equal(lookup("f00002", &e), 0);
	assert_int_equal(cfs_vfs_mknod(vfs, &c, &req, &e), -EEXIST);
}

/* ---- names in a new directory ---- */

static void make_in(cfs_ino_t dir, const char *name, uint8_t type, int want)
{
	struct cfs_mknod req = {.parent = dir, .name = name, .name_len = 6, .type = type};
	struct cfs_vfs_entry e;
	struct cfs_ctx c = ctx();

	assert_int_equal(cfs_vfs_mknod(vfs, &c, &req, &e), want);
}

static int look_in(cfs_ino_t dir, const char *name)
{
	struct cfs_vfs_entry e;
	struct cfs_ctx c = ctx();

	return cfs_vfs_lookup(vfs, &c, dir, name, strlen(name), &e);
}

/* Number 0, with file 1; file 2 is absent by a listing. */
static cfs_ino_t new_dir(void)
{
	make_in(CFS_ROOT_INO, "f00000", CFS_TYPE_DIR, 0);
	make_in(FIRST_INO, "f00001", CFS_TYPE_FILE, 0);
	assert_int_equal(look_in(FIRST_INO, "f00002"), -ENOENT);
	return FIRST_INO;
}

/* Without it: each file of an unpacked archive costs two round trips instead of one. */
static void absent_names_of_a_new_directory_are_known(void **state)
{
	cfs_ino_t dir;
	char name[16];
	int i, calls;

	start(60000, 0);
	dir = new_dir();
	calls = meta.calls;
	for (i = 2; i < 50; i++) {
		snprintf(name, sizeof(name), "f%05d", i);
		assert_int_equal(look_in(dir, name), -ENOENT);
		make_in(dir, name, CFS_TYPE_FILE, 0);
		assert_int_equal(look_in(dir, name), 0);
	}
	assert_int_equal(meta.calls, calls);
	/* Handles of files need both. */
	assert_int_equal(look_in(dir, "."), 0);
	meta.dir_asked = 0;
	look_in(dir, "..");
	assert_int_equal(meta.dir_asked, dir);
}

/* Without it: a file that another mount puts into the directory can be seen by its maker only. */
static void names_of_other_mounts_end_that(void **state)
{
	cfs_ino_t dir;
	uint64_t now;

	start(20, 0);
	dir = new_dir();
	meta.exists[40] = true;
	make_in(dir, "f00003", CFS_TYPE_FILE, 0);
	for (now = cfs_now_ms(); cfs_now_ms() < now + 21;)
		sched_yield();
	assert_int_equal(look_in(dir, "f00004"), -ENOENT); /* lists */
	assert_int_equal(look_in(dir, "f00040"), 0);
	meta.exists[41] = true;
	assert_int_equal(look_in(dir, "f00041"), 0);
}

/* Without it: mkdir -p fails in a directory in which two mounts work. */
static void a_name_that_could_not_be_made_is_looked_up(void **state)
{
	cfs_ino_t dir;

	start(60000, 0);
	dir = new_dir();
	meta.exists[40] = true;
	make_in(dir, "f00040", CFS_TYPE_FILE, -EEXIST);
	assert_int_equal(look_in(dir, "f00040"), 0);
}

/* Without it: memory of the mount has directories that the kernel has forgotten. */
static void a_forgotten_new_directory_is_asked_for(void **state)
{
	cfs_ino_t dir;
	int calls;

	start(60000, 0);
	dir = new_dir();
	cfs_vfs_forget(vfs, dir);
	calls = meta.calls;
	assert_int_equal(look_in(dir, "f00002"), -ENOENT);
	assert_int_equal(meta.calls, calls + 1);
}

/* ---- roots ---- */

/* Without it: a subdirectory mount lets its users climb into the rest of the volume. */
static void nothing_is_above_the_root_of_a_subdirectory(void **state)
{
	struct cfs_vfs_entry e;

	start(1000, 77);
	assert_int_equal(lookup("..", &e), 0);
	assert_int_equal(meta.dir_asked, 0);
	assert_int_equal(e.ino, CFS_ROOT_INO);
}

/* Without it: a handle that name_to_handle_at(2) gave cannot be opened any more. */
static void any_inode_is_found_as_its_own_dot(void **state)
{
	struct cfs_vfs_entry e;
	struct cfs_ctx c;

	start(1000, 0);
	fill_engine(1);
	c = ctx();
	assert_int_equal(cfs_vfs_lookup(vfs, &c, FIRST_INO, ".", 1, &e), 0);
	assert_int_equal(e.ino, FIRST_INO);
	assert_int_equal(e.attr.type, CFS_TYPE_FILE);
	assert_int_equal(cfs_vfs_lookup(vfs, &c, FIRST_INO + 1, ".", 1, &e), -ENOENT);
}

/* Without it: an ioctl on a name that another mount has replaced answers ENOENT. */
static void flags_of_an_inode_that_is_gone(void **state)
{
	struct cfs_ctx c;
	uint32_t flags;

	start(1000, 0);
	fill_engine(1);
	c = ctx();
	assert_int_equal(cfs_vfs_get_flags(vfs, &c, FIRST_INO, &flags), 0);
	assert_int_equal(cfs_vfs_get_flags(vfs, &c, FIRST_INO + 1, &flags), -ESTALE);
	assert_int_equal(cfs_vfs_set_flags(vfs, &c, FIRST_INO + 1, 0), -ESTALE);
}

/* Without it: the memory of a mount grows with each directory that it has ever removed. */
static void a_removed_directory_is_kept_until_it_is_forgotten(void **state)
{
	struct cfs_vfs_attr a;
	struct cfs_ctx c;
	int i;

	start(0, 0);
	fill_engine(2);
	c = ctx();
	for (i = 0; i < 2; i++)
		meta.attr[i].type = CFS_TYPE_DIR;
	assert_int_equal(cfs_vfs_unlink(vfs, &c, CFS_ROOT_INO, "f00000", 6), 0);
	assert_int_equal(cfs_vfs_getattr(vfs, &c, FIRST_INO, &a), 0);
	assert_int_equal(a.attr.type, CFS_TYPE_DIR);
	assert_int_equal(a.attr.nlink, 0);
	cfs_vfs_forget(vfs, FIRST_INO);
	assert_int_equal(cfs_vfs_getattr(vfs, &c, FIRST_INO, &a), -ESTALE);
	/* The commands remove what the kernel may have never heard of, and would never forget. */
	assert_int_equal(cfs_vfs_remove(vfs, &c, CFS_ROOT_INO, "f00001", 6, false, 0), 0);
	assert_int_equal(cfs_vfs_getattr(vfs, &c, FIRST_INO + 1, &a), -ESTALE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(listing_sees_every_lasting_entry_once, stop),
		cmocka_unit_test_teardown(next_part_is_read_ahead, stop),
		cmocka_unit_test_teardown(failed_read_ahead_is_repeated, stop),
		cmocka_unit_test_teardown(slow_readers_get_attributes, stop),
		cmocka_unit_test_teardown(nobody_waits_for_an_unwanted_part, stop),
		cmocka_unit_test_teardown(a_late_part_is_waited_for_until_the_deadline, stop),
		cmocka_unit_test_teardown(listing_goes_back_to_any_offset, stop),
		cmocka_unit_test_teardown(listing_goes_on_where_another_handle_was, stop),
		cmocka_unit_test_teardown(offsets_are_alike_only_for_equal_names, stop),
		cmocka_unit_test_teardown(listing_gives_no_attributes_that_are_outdated, stop),
		cmocka_unit_test_teardown(answers_are_kept_for_their_time_and_no_longer, stop),
		cmocka_unit_test_teardown(a_slow_answer_does_not_replace_a_change, stop),
		cmocka_unit_test_teardown(a_slow_lookup_does_not_shorten_a_file, stop),
		cmocka_unit_test_teardown(a_close_shows_no_old_attributes, stop),
		cmocka_unit_test_teardown(changes_of_names_are_seen_at_once, stop),
		cmocka_unit_test_teardown(absent_names_of_a_new_directory_are_known, stop),
		cmocka_unit_test_teardown(names_of_other_mounts_end_that, stop),
		cmocka_unit_test_teardown(a_name_that_could_not_be_made_is_looked_up, stop),
		cmocka_unit_test_teardown(a_forgotten_new_directory_is_asked_for, stop),
		cmocka_unit_test_teardown(nothing_is_above_the_root_of_a_subdirectory, stop),
		cmocka_unit_test_teardown(any_inode_is_found_as_its_own_dot, stop),
		cmocka_unit_test_teardown(flags_of_an_inode_that_is_gone, stop),
		cmocka_unit_test_teardown(a_removed_directory_is_kept_until_it_is_forgotten, stop),
	};

	return cmocka_run_group_tests(tests, make_pool, free_pool);
}
