/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fate of removed files: data, trash, files that are still open. A failure means lost data
 * or storage that is paid for and never freed.
 */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "conformance.h"
#include "meta/api/file.h"
#include "meta/api/jobs.h"
#include "meta/api/trash.h"

static void test_data_goes(void **state)
{
	cfs_ino_t d = test_dir("data-goes"), f = make_file(d, "f");
	uint64_t a = write_at(f, 0, 100), b = write_at(f, 3 * CFS_CHUNK_SIZE, 100);
	struct cfs_ctx c = as_root();
	struct cfs_attr attr;

	OK(cfs_meta_setxattr(vol.m, &c, f, "user.x", "1", 1, 0));
	OK(cfs_meta_truncate(vol.m, &c, f, 0, &attr));
	unlink_name(d, "f");
	wait_deletions();
	assert_true(slice_deleted(a));
	assert_true(slice_deleted(b));
}

static void test_open_file(void **state)
{
	cfs_ino_t d = test_dir("open-file"), f = make_file(d, "f");
	uint64_t id = write_at(f, 0, 100), id2;
	struct cfs_ctx c = as_root();
	struct cfs_removed r;
	struct cfs_attr a;
	void *value;

	set_open(f, true);
	r = unlink_name(d, "f");
	assert_int_equal(r.outcome, CFS_REMOVED_SUSTAINED);
	assert_int_equal(r.attr.nlink, 0);
	assert_int_equal(try_lookup(d, "f"), -ENOENT);
	/* It reads, grows and changes as if it had a name. */
	assert_int_equal(attr_of(f).nlink, 0);
	id2 = write_at(f, 100, 5000);
	OK(cfs_meta_truncate(vol.m, &c, f, 4999, &a));
	OK(cfs_meta_setattr(vol.m, &c, f, CFS_SET_MODE, &(struct cfs_attr){.mode = 0600}, &a));
	OK(cfs_meta_setxattr(vol.m, &c, f, "user.late", "1", 1, 0));
	assert_int_equal(try_link(&c, f, d, "again"), -ENOENT);
	wait_deletions();
	assert_false(slice_deleted(id));
	set_open(f, false);
	OK(cfs_meta_close_ino(vol.m, &c, f));
	assert_int_equal(try_getattr(f), -ENOENT);
	assert_int_equal(vol.m->eng->ops->getxattr(vol.m->eng, &c, f, "user.late", &value),
			 -ENODATA);
	wait_deletions();
	assert_true(slice_deleted(id));
	assert_true(slice_deleted(id2));
}

static cfs_ino_t make_unnamed(cfs_ino_t dir)
{
	struct cfs_mknod req = {
		.parent = dir, .name = "", .type = CFS_TYPE_FILE, .mode = 0666, .umask = 022};
	struct cfs_ctx c = as_root();
	struct cfs_entry e = {0};

	OK(cfs_meta_make_unnamed(vol.m, &c, &req, &e));
	assert_int_equal(e.attr.nlink, 0);
	assert_int_equal(e.attr.mode, 0644);
	return e.ino;
}

static int link_unnamed(struct cfs_meta *m, cfs_ino_t ino, cfs_ino_t dir, const char *name,
			struct cfs_attr *ret)
{
	struct cfs_ctx c = as_root();

	return cfs_meta_link_unnamed(m, &c, ino, dir, name, strlen(name), ret);
}

static int note_sustained(void *arg, const struct cfs_row *row)
{
	cfs_ino_t *ino = arg;

	if (row->ino == *ino)
		*ino = 0;
	return 0;
}

static bool is_sustained(cfs_ino_t ino)
{
	OK(cfs_meta_scan(vol.m, CFS_TABLE_SUSTAINED, note_sustained, &ino));
	return !ino;
}

/*
 * A file without a name is there for its session only. JuiceFS deletes what a dead session has kept
 * without a look at its links: a file with a name must not be kept.
 */
static void test_unnamed(void **state)
{
	cfs_ino_t d = test_dir("unnamed"), sub = make_dir(d, "sub"), f = make_unnamed(d);
	uint64_t id = write_at(f, 0, 100);
	struct cfs_ctx c = as_root();
	struct cfs_attr a;

	assert_true(is_sustained(f));
	assert_int_equal(attr_of(f).nlink, 0);
	assert_int_equal(attr_of(f).length, 100);
	OK(cfs_meta_setxattr(vol.m, &c, f, "user.x", "1", 1, 0));
	make_file(sub, "there");
	assert_int_equal(link_unnamed(vol.m, f, sub, "there", &a), -EEXIST);
	assert_int_equal(link_unnamed(vol.m, f, 1ULL << 58, "x", &a), -ENOENT);
	assert_int_equal(link_unnamed(vol.other, f, sub, "f", &a), -ENOENT);
	assert_int_equal(try_link(&c, f, sub, "f"), -ENOENT);
	assert_true(is_sustained(f));
	OK(link_unnamed(vol.m, f, sub, "f", &a));
	assert_int_equal(a.nlink, 1);
	assert_int_equal(a.parent, sub);
	assert_int_equal(find(sub, "f"), f);
	assert_int_equal(attr_of(f).nlink, 1);
	assert_int_equal(attr_of(f).parent, sub);
	assert_false(is_sustained(f));
	assert_int_equal(link_unnamed(vol.m, f, sub, "g", &a), -ENOENT);
	/* An ordinary file: its last close does nothing, and it has other names. */
	assert_int_equal(cfs_meta_close_ino(vol.m, &c, f), -ENOENT);
	OK(try_link(&c, f, d, "g"));
	assert_int_equal(unlink_name(sub, "f").outcome, CFS_REMOVED_LINKED);
	assert_int_equal(attr_of(f).nlink, 1);
	write_at(f, 100, 10);
	wait_deletions();
	assert_false(slice_deleted(id));
	assert_int_equal(unlink_name(d, "g").outcome, CFS_REMOVED_DELETED);
	wait_deletions();
	assert_true(slice_deleted(id));
}

static void test_unnamed_ends(void **state)
{
	cfs_ino_t d = test_dir("unnamed-ends"), f = make_unnamed(d), empty = make_unnamed(d), gone;
	uint64_t id = write_at(f, 0, 100), own = cfs_host_sid(&vol.m->host), dead;
	struct cfs_ctx c = as_root(), user = as_user(5, 5);
	struct cfs_mknod req = {.parent = d, .name = "", .type = CFS_TYPE_FILE, .mode = 02775};
	struct cfs_engine *e = vol.m->eng;
	struct cfs_entry made;
	struct cfs_attr a = {.mode = 02755, .gid = 7};

	OK(cfs_meta_close_ino(vol.m, &c, f));
	OK(cfs_meta_close_ino(vol.m, &c, empty));
	assert_int_equal(try_getattr(f), -ENOENT);
	assert_int_equal(try_getattr(empty), -ENOENT);
	wait_deletions();
	assert_true(slice_deleted(id));
	/* With its session. */
	OK(e->ops->new_session(e, &c, "{}", c.now.tv_sec - 10, &dead));
	atomic_store(&vol.m->host.sid, dead);
	gone = make_unnamed(d);
	f = make_unnamed(d);
	OK(link_unnamed(vol.m, f, d, "f", &a));
	atomic_store(&vol.m->host.sid, own);
	assert_true(is_sustained(gone));
	OK(e->ops->clean_session(e, &c, dead, INT64_MAX));
	assert_int_equal(try_getattr(gone), -ENOENT);
	assert_int_equal(find(d, "f"), f);
	/* The directory decides. */
	a = (struct cfs_attr){.mode = 02755, .gid = 7};
	OK(cfs_meta_setattr(vol.m, &c, d, CFS_SET_MODE | CFS_SET_GID, &a, &a));
	assert_int_equal(cfs_meta_make_unnamed(vol.m, &user, &req, &made), -EACCES);
	OK(cfs_meta_make_unnamed(vol.m, &c, &req, &made));
	assert_int_equal(made.attr.gid, 7);
	assert_int_equal(made.attr.mode, 02775);
	OK(cfs_meta_close_ino(vol.m, &c, made.ino));
	req.parent = f;
	assert_int_equal(cfs_meta_make_unnamed(vol.m, &c, &req, &made), -ENOTDIR);
	req.parent = 1ULL << 58;
	assert_int_equal(cfs_meta_make_unnamed(vol.m, &c, &req, &made), -ENOENT);
}

static _Atomic int asked;

static int no_answer(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid, cfs_ino_t ino,
		     uint64_t *ret_length, struct cfs_usage *ret_usage)
{
	(void)e;
	(void)ctx;
	(void)sid;
	(void)ino;
	(void)ret_length;
	(void)ret_usage;
	atomic_fetch_add(&asked, 1);
	return -ETIMEDOUT;
}

/* Closed in an outage of the database: its space comes back after it, not with the end of the
 * mount.
 */
static void test_close_in_outage(void **state)
{
	cfs_ino_t d = test_dir("close-outage"), f = make_file(d, "f");
	uint64_t id = write_at(f, 0, 100);
	struct cfs_ctx c = as_root();

	set_open(f, true);
	assert_int_equal(unlink_name(d, "f").outcome, CFS_REMOVED_SUSTAINED);
	set_open(f, false);
	atomic_store(&engine_hooks.end_sustained, no_answer);
	assert_int_equal(cfs_meta_close_ino(vol.m, &c, f), -EIO);
	cfs_core_close_again(vol.m, 1000);
	atomic_store(&engine_hooks.end_sustained, NULL);
	OK(try_getattr(f));
	/* Somebody has found a way to it: not yet. */
	set_open(f, true);
	cfs_core_close_again(vol.m, 1000);
	OK(try_getattr(f));
	set_open(f, false);
	cfs_core_close_again(vol.m, 1000);
	assert_int_equal(try_getattr(f), -ENOENT);
	wait_deletions();
	assert_true(slice_deleted(id));
}

/* The heartbeat tries again. */
static void test_beat_closes(void **state)
{
	struct cfs_meta_conf conf = {.heartbeat_ms = 50, .no_bgjob = true};
	cfs_deadline_t end = cfs_deadline_in(20000);
	struct cfs_ctx c = as_root();
	const struct cfs_engine_ops *real;
	struct cfs_engine_ops outage;
	struct cfs_meta *m;

	m = open_third(&conf);
	real = m->eng->ops;
	outage = *real;
	outage.end_sustained = no_answer;
	m->eng->ops = &outage;
	OK(cfs_meta_start(m, NULL));
	atomic_store(&asked, 0);
	assert_int_equal(cfs_meta_close_ino(m, &c, 1ULL << 58), -EIO);
	while (atomic_load(&asked) < 3 && !cfs_deadline_passed(end))
		usleep(2000);
	assert_true(atomic_load(&asked) >= 3);
	OK(cfs_meta_stop(m));
	m->eng->ops = real;
	cfs_meta_close(m);
}

static cfs_ino_t hour_dir(void)
{
	char name[32];
	time_t now = time(NULL);
	struct tm tm;

	gmtime_r(&now, &tm);
	strftime(name, sizeof(name), "%Y-%m-%d-%H", &tm);
	return find(find(CFS_ROOT_INO, ".trash"), name);
}

static void test_trash(void **state)
{
	cfs_ino_t d = test_dir("trash"), f, sub, hour;
	struct cfs_ctx c = as_root(), user = as_user(5, 5);
	struct cfs_removed r;
	struct cfs_attr a;
	char name[300];
	uint64_t id;

	change_setting(trash_on);
	f = make_file(d, "f");
	id = write_at(f, 0, 10);
	sub = make_dir(d, "sub");
	r = unlink_name(d, "f");
	assert_int_equal(r.outcome, CFS_REMOVED_TRASHED);
	hour = hour_dir();
	assert_int_equal(r.attr.parent, hour);
	assert_int_equal(r.attr.nlink, 1);
	assert_int_equal(rmdir_name(d, "sub").outcome, CFS_REMOVED_TRASHED);
	assert_int_equal(attr_of(d).nlink, 2);
	assert_int_equal(attr_of(CFS_TRASH_INO).nlink, 2);
	a = attr_of(hour);
	assert_int_equal(a.mode, 0555);
	assert_int_equal(a.nlink, 2);
	assert_int_equal(a.parent, CFS_TRASH_INO);
	snprintf(name, sizeof(name), "%llu-%llu-f", (unsigned long long)d, (unsigned long long)f);
	assert_int_equal(find(hour, name), f);
	assert_int_equal(try_lookup(d, "f"), -ENOENT);

	/* Nothing changes in there, and only root takes things out. */
	assert_int_equal(cfs_meta_setattr(vol.m, &c, f, CFS_SET_MODE, &a, &a), -EPERM);
	a = attr_of(f);
	assert_int_equal(cfs_meta_open_check(vol.m, &c, &a, 1 /* O_WRONLY */, false), -EPERM);
	OK(cfs_meta_open_check(vol.m, &c, &a, 1, true));
	assert_int_equal(try_make(&c, hour, "x", CFS_TYPE_FILE, 0644, NULL), -EPERM);
	assert_int_equal(try_make(&c, CFS_TRASH_INO, "x", CFS_TYPE_FILE, 0644, NULL), -EPERM);
	assert_int_equal(try_make(&c, sub, "x", CFS_TYPE_FILE, 0644, NULL), -ENOENT);
	assert_int_equal(try_rename(&c, CFS_ROOT_INO, "trash", hour, "x", 0, NULL), -EPERM);
	user.check = false;
	assert_int_equal(try_unlink(&user, hour, name), -EPERM);
	assert_int_equal(try_rename(&user, hour, name, d, "f", 0, NULL), -EPERM);

	/* Restored, it is what it was. */
	OK(try_rename(&c, hour, name, d, "back", CFS_RENAME_NOREPLACE | CFS_RENAME_RESTORE, NULL));
	assert_int_equal(attr_of(f).parent, d);
	assert_int_equal(unlink_name(d, "back").outcome, CFS_REMOVED_TRASHED);
	wait_deletions();
	assert_false(slice_deleted(id));
	snprintf(name, sizeof(name), "%llu-%llu-back", (unsigned long long)d,
		 (unsigned long long)f);
	assert_int_equal(unlink_name(hour, name).outcome, CFS_REMOVED_DELETED);
	wait_deletions();
	assert_true(slice_deleted(id));
}

static void test_trash_special(void **state)
{
	cfs_ino_t d = test_dir("trash-special"), f, g;
	struct cfs_ctx c = as_root();
	struct cfs_removed r;
	struct cfs_renamed rr;
	char name[CFS_NAME_MAX + 1];

	change_setting(trash_on);
	/* the flag, the option */
	f = make_file(d, "skip");
	set_flags(f, CFS_FLAG_SKIP_TRASH);
	assert_int_equal(unlink_name(d, "skip").outcome, CFS_REMOVED_DELETED);
	make_file(d, "skip2");
	OK(cfs_meta_unlink(vol.m, &c, d, "skip2", 5, CFS_REMOVE_SKIP_TRASH, &r));
	assert_int_equal(r.outcome, CFS_REMOVED_DELETED);
	/* the victim of a rename */
	make_file(d, "a");
	g = make_file(d, "b");
	OK(try_rename(&c, d, "a", d, "b", 0, &rr));
	assert_int_equal(rr.victim.outcome, CFS_REMOVED_TRASHED);
	assert_int_equal(rr.victim.ino, g);
	/* a long name is cut */
	memset(name, 'g', CFS_NAME_MAX);
	name[CFS_NAME_MAX] = '\0';
	make_file(d, name);
	assert_int_equal(unlink_name(d, name).outcome, CFS_REMOVED_TRASHED);
	/* hard links: each name is kept; the same one twice is not */
	f = make_file(d, "l");
	OK(try_link(&c, f, d, "l2"));
	OK(try_link(&c, f, d, "l3"));
	assert_int_equal(unlink_name(d, "l").outcome, CFS_REMOVED_TRASHED);
	assert_int_equal(attr_of(f).nlink, 3);
	assert_int_equal(attr_of(f).parent, 0);
	OK(try_link(&c, f, d, "l"));
	r = unlink_name(d, "l");
	assert_int_equal(r.outcome, CFS_REMOVED_LINKED);
	assert_int_equal(r.attr.nlink, 3);
}

/* open, unlink, write, fchmod: the usual temporary file, with trash on */
static void test_trash_open(void **state)
{
	cfs_ino_t d = test_dir("trash-open"), f;
	struct cfs_attr in = {.mode = 0600}, a;
	struct cfs_ctx c = as_root();

	change_setting(trash_on);
	f = make_file(d, "tmp");
	set_open(f, true);
	assert_int_equal(unlink_name(d, "tmp").outcome, CFS_REMOVED_TRASHED);
	write_at(f, 0, 100);
	OK(cfs_meta_truncate(vol.m, &c, f, 50, &a));
	OK(cfs_meta_setattr(vol.m, &c, f, CFS_SET_MODE, &in, &a));
	assert_int_equal(a.mode, 0600);
	set_open(f, false);
	assert_int_equal(cfs_meta_setattr(vol.m, &c, f, CFS_SET_MODE, &in, &a), -EPERM);
}

static void test_trash_expiry(void **state)
{
	cfs_ino_t d = test_dir("expiry"), f, dir, old_hour = 0;
	struct cfs_ctx past = at_time(time(NULL) - 3 * 86400, 0);
	const _Atomic bool stop = false;
	struct cfs_removed r;
	uint64_t id;

	change_setting(trash_on);
	f = make_file(d, "old");
	id = write_at(f, 0, 10);
	dir = make_dir(d, "olddir");
	OK(cfs_meta_unlink(vol.m, &past, d, "old", 3, 0, &r));
	old_hour = r.attr.parent;
	OK(cfs_meta_rmdir(vol.m, &past, d, "olddir", 6, 0, &r));
	make_file(d, "young");
	r = unlink_name(d, "young");
	OK(cfs_trash_expire(vol.m, cfs_deadline_in(10000), &stop));
	assert_int_equal(try_getattr(f), -ENOENT);
	assert_int_equal(try_getattr(dir), -ENOENT);
	assert_int_equal(try_getattr(old_hour), -ENOENT);
	OK(try_getattr(r.ino));
	wait_deletions();
	assert_true(slice_deleted(id));
}

static int note_dead(void *arg, uint64_t id, uint32_t size)
{
	assert_int_equal(size, 10);
	*(uint64_t *)arg = id;
	return 0;
}

/* As by a mount that dies then: nothing removes the file's data. */
static struct cfs_removed unlink_only(const struct cfs_ctx *c, cfs_ino_t dir, const char *name)
{
	struct cfs_engine_remove req = {.parent = dir, .name = name, .name_len = strlen(name)};
	struct cfs_engine *e = vol.m->eng;
	struct cfs_usage usage = {0};
	struct cfs_removed r;

	cfs_quotas_begin(vol.m->quotas);
	OK(e->ops->remove(e, c, &req, &r, &usage));
	cfs_quotas_end(vol.m->quotas, c, &usage);
	return r;
}

/* A file deleted by a mount that died before removing the data: the hourly job's work. */
static void test_left_behind(void **state)
{
	cfs_ino_t d = test_dir("left-behind"), f = make_file(d, "f");
	uint64_t id = write_at(f, 0, 10), dead = 0;
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	struct cfs_removed r = unlink_only(&c, d, "f");
	int rc;

	assert_int_equal(r.attr.length, 10);
	do {
		rc = e->ops->delete_chunk(e, &c, f, note_dead, &dead);
	} while (rc == 0);
	assert_int_equal(rc, 1);
	assert_int_equal(dead, id);
	dead = 0;
	OK(e->ops->each_dead_slice(e, &c, 100, note_dead, &dead));
	assert_int_equal(dead, id);
	OK(e->ops->drop_slice(e, &c, id, 10));
	OK(e->ops->drop_delfile(e, &c, f, r.attr.length));
	dead = 0;
	OK(e->ops->each_dead_slice(e, &c, 100, note_dead, &dead));
	assert_int_equal(dead, 0);
}

/* The length that is recorded for the deletion may be another one than the file's. */
static void test_shortened_left_behind(void **state)
{
	cfs_ino_t d = test_dir("shortened"), f = make_file(d, "f");
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	struct cfs_removed r;
	uint64_t dead = 0;
	struct cfs_attr a;
	int rc;

	write_at(f, 0, 10);
	write_at(f, 2 * CFS_CHUNK_SIZE, 10);
	OK(cfs_meta_truncate(vol.m, &c, f, 10, &a));
	r = unlink_only(&c, d, "f");
	assert_int_equal(r.attr.length, 10);
	do {
		rc = e->ops->delete_chunk(e, &c, f, note_dead, &dead);
	} while (rc == 0);
	assert_int_equal(rc, 1);
	/* This mount did not see the removal. */
	OK(vol.other->eng->ops->drop_delfile(vol.other->eng, &c, f, r.attr.length));
	wait_deletions();
	OK(vol.other->eng->ops->drop_delfile(vol.other->eng, &c, f, r.attr.length));
	OK(cfs_jobs_clean_slices(vol.m, cfs_deadline_in(20000)));
}

enum { LONG_LIST = 70, SHARED = 30 };

struct dead_list {
	uint64_t id[LONG_LIST];
	size_t n;
};

static int list_dead(void *arg, uint64_t id, uint32_t size)
{
	struct dead_list *l = arg;

	assert_int_equal(size, 10);
	assert_true(l->n < LONG_LIST);
	l->id[l->n++] = id;
	return 0;
}

static int compare_ids(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Removes a file with its data; the slices that no file has any more are those of ids. */
static void remove_slices(cfs_ino_t dir, const char *name, const uint64_t *ids, size_t n)
{
	struct cfs_engine *e = vol.m->eng;
	struct dead_list dead = {.n = 0};
	struct cfs_ctx c = as_root();
	struct cfs_removed r = unlink_only(&c, dir, name);
	int rc;

	do {
		rc = e->ops->delete_chunk(e, &c, r.ino, list_dead, &dead);
	} while (rc == 0);
	assert_int_equal(rc, 1);
	OK(e->ops->drop_delfile(e, &c, r.ino, r.attr.length));
	qsort(dead.id, dead.n, sizeof(*dead.id), compare_ids);
	assert_int_equal(dead.n, n);
	assert_memory_equal(dead.id, ids, n * sizeof(*ids));
	while (n-- > 0)
		OK(e->ops->drop_slice(e, &c, ids[n], 10));
}

/* More slices than one statement changes, some of them shared with another file. */
static void test_long_list(void **state)
{
	cfs_ino_t d = test_dir("long-list"), f = make_file(d, "f"), g = make_file(d, "g");
	struct cfs_copy_range req = {f, g, 0, 0, 100 * SHARED};
	struct cfs_ctx c = as_root();
	uint64_t ids[LONG_LIST], copied;
	struct cfs_attr attr;

	for (unsigned i = 0; i < LONG_LIST; i++)
		ids[i] = write_at(f, 100 * i, 10);
	OK(cfs_meta_copy_range(vol.m, &c, &req, &copied, &attr));
	assert_int_equal(copied, req.len);
	remove_slices(d, "f", ids + SHARED, LONG_LIST - SHARED);
	remove_slices(d, "g", ids, SHARED);
}

/* Removed, it would go on taking files in, where nobody finds them and no job removes them. */
static void test_trash_hour_in_use(void **state)
{
	cfs_ino_t d = test_dir("trash-hour"), f, hour;
	struct cfs_ctx c = as_root(), past = at_time(time(NULL) - 3 * 86400, 0);
	struct cfs_removed r;
	char name[32], trashed[64], old[32];
	struct tm tm;

	change_setting(trash_on);
	make_file(d, "a");
	unlink_name(d, "a");
	hour = hour_dir();
	gmtime_r(&c.now.tv_sec, &tm);
	strftime(name, sizeof(name), "%Y-%m-%d-%H", &tm);
	assert_int_equal(try_rename(&c, CFS_TRASH_INO, name, d, "hour", 0, NULL), -EBUSY);
	assert_int_equal(try_rmdir(&c, CFS_TRASH_INO, name), -EBUSY);
	f = make_file(d, "f");
	r = unlink_name(d, "f");
	snprintf(trashed, sizeof(trashed), "%llu-%llu-f", (unsigned long long)d,
		 (unsigned long long)f);
	assert_int_equal(find(hour, trashed), f);
	assert_int_equal(r.attr.parent, hour);
	/* An hour that is over can go. */
	make_file(d, "b");
	OK(cfs_meta_unlink(vol.m, &past, d, "b", 1, 0, &r));
	gmtime_r(&past.now.tv_sec, &tm);
	strftime(old, sizeof(old), "%Y-%m-%d-%H", &tm);
	snprintf(trashed, sizeof(trashed), "%llu-%llu-b", (unsigned long long)d,
		 (unsigned long long)r.ino);
	unlink_name(find(CFS_TRASH_INO, old), trashed);
	OK(try_rmdir(&c, CFS_TRASH_INO, old));
	change_setting(trash_off);
}

static int count_dead(void *arg, uint64_t id, uint32_t size)
{
	(void)id;
	(void)size;
	++*(size_t *)arg;
	return 0;
}

/* The backlog of an outage of the bucket: all of it goes, not a thousand objects an hour. */
static void test_many_dead_slices(void **state)
{
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	uint64_t id, first = 0;
	size_t n = 0;
	int i;

	for (i = 0; i < 1100; i++) {
		OK(cfs_meta_new_slice(vol.m, &c, &id));
		first = first ? first : id;
		OK(e->ops->orphan_slice(e, &c, id, 10));
	}
	OK(cfs_jobs_clean_slices(vol.m, cfs_deadline_in(20000)));
	OK(e->ops->each_dead_slice(e, &c, 2000, count_dead, &n));
	assert_int_equal(n, 0);
	assert_true(slice_deleted(first));
	assert_true(slice_deleted(id));
}

TEST_LIST(delete, T(test_data_goes), T(test_open_file), T(test_unnamed), T(test_unnamed_ends),
	  T(test_close_in_outage), T(test_beat_closes), T(test_trash), T(test_trash_special),
	  T(test_trash_open), T(test_trash_expiry), T(test_left_behind),
	  T(test_shortened_left_behind), T(test_long_list), T(test_trash_hour_in_use),
	  T(test_many_dead_slices));
