/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions, counters and the setting. */
#include <jansson.h>
#include <unistd.h>

#include "base/bytes.h"
#include "conformance.h"
#include "meta/api/jobs.h"
#include "meta/engine/rules.h"

struct found {
	uint64_t sid;
	int64_t expire_s;
	char info[65536];
	size_t n;
};

static int note(void *arg, const struct cfs_session *s)
{
	struct found *f = arg;

	f->n++;
	if (s->sid != f->sid)
		return 0;
	f->expire_s = s->expire_s;
	snprintf(f->info, sizeof(f->info), "%s", s->info);
	return 0;
}

static void test_record(void **state)
{
	struct found f = {.sid = cfs_meta_sid(vol.m)};
	struct cfs_ctx c = as_root();
	json_t *info;

	assert_int_not_equal(f.sid, 0);
	assert_int_not_equal(f.sid, cfs_meta_sid(vol.other));
	OK(cfs_meta_each_session(vol.m, &c, note, &f));
	assert_int_equal(f.n, 2);
	assert_in_range(f.expire_s, c.now.tv_sec + 200, c.now.tv_sec + 301);
	info = json_loads(f.info, 0, NULL);
	assert_non_null(info);
	assert_int_equal(strncmp(json_string_value(json_object_get(info, "Version")), "1.4.1+", 6),
			 0);
	assert_string_equal(json_string_value(json_object_get(info, "MountPoint")), "/conformance");
	assert_int_equal(json_integer_value(json_object_get(info, "ProcessID")), getpid());
	assert_true(json_is_array(json_object_get(info, "IPAddrs")));
	json_decref(info);
}

/* The remains of a dead mount are removed by another mount. */
static void test_stale(void **state)
{
	cfs_ino_t d = test_dir("stale"), f = make_file(d, "f"), g = make_file(d, "g");
	struct cfs_engine *e = vol.m->eng;
	struct cfs_plock l = {CFS_LOCK_WRITE, 1, 0, INT64_MAX};
	struct cfs_engine_remove req = {.parent = d, .name = "g", .name_len = 1};
	uint64_t dead, own = cfs_meta_sid(vol.m), id = write_at(g, 0, 10);
	struct cfs_ctx c = as_root();
	struct found found = {0};
	struct cfs_usage usage = {0};
	struct cfs_removed r;

	OK(e->ops->new_session(e, &c, "{}", c.now.tv_sec - 10, &dead));
	OK(e->ops->flock(e, &c, f, dead, 1, CFS_LOCK_WRITE));
	OK(e->ops->setlk(e, &c, f, dead, 1, &l));
	assert_int_equal(cfs_meta_flock(vol.m, &c, f, 1, CFS_LOCK_READ, false), -EAGAIN);
	/* It had g open when g was removed. */
	atomic_store(&vol.m->host.sid, dead);
	set_open(g, true);
	cfs_quotas_begin(vol.m->quotas);
	OK(e->ops->remove(e, &c, &req, &r, &usage));
	cfs_quotas_end(vol.m->quotas, &c, &usage);
	atomic_store(&vol.m->host.sid, own);
	set_open(g, false);
	assert_int_equal(r.outcome, CFS_REMOVED_SUSTAINED);
	OK(try_getattr(g));

	found.sid = dead;
	OK(e->ops->each_session(e, &c, c.now.tv_sec, 1000, note, &found));
	assert_int_equal(found.n, 1);
	OK(e->ops->clean_session(e, &c, dead, INT64_MAX));
	assert_int_equal(try_getattr(g), -ENOENT);
	OK(cfs_meta_flock(vol.m, &c, f, 1, CFS_LOCK_WRITE, false));
	OK(cfs_meta_flock(vol.m, &c, f, 1, CFS_LOCK_NONE, false));
	OK(cfs_meta_setlk(vol.m, &c, f, 1, &l, false));
	l.type = CFS_LOCK_NONE;
	OK(cfs_meta_setlk(vol.m, &c, f, 1, &l, false));
	found = (struct found){0};
	OK(e->ops->each_session(e, &c, c.now.tv_sec, 1000, note, &found));
	assert_int_equal(found.n, 0);
	/* Its data is a job for the hour; here at once. */
	cfs_jobs_delete_file(vol.m, g, 10);
	wait_deletions();
	assert_true(slice_deleted(id));
}

static void test_clock(void **state)
{
	struct cfs_ctx c = as_root();
	int64_t now_s = 0;

	OK(vol.m->eng->ops->clock(vol.m->eng, &c, &now_s));
	assert_in_range(now_s, c.now.tv_sec - 2, c.now.tv_sec + 10);
}

static void test_refresh(void **state)
{
	struct cfs_engine *e = vol.m->eng;
	struct found f = {0};
	struct cfs_ctx c = as_root();
	uint64_t sid;

	OK(e->ops->new_session(e, &c, "{\"a\":1}", c.now.tv_sec + 50, &sid));
	OK(e->ops->refresh_session(e, &c, sid, "{\"a\":1}", c.now.tv_sec + 99));
	f.sid = sid;
	OK(cfs_meta_each_session(vol.m, &c, note, &f));
	assert_int_equal(f.expire_s, c.now.tv_sec + 99);
	assert_string_equal(f.info, "{\"a\":1}");
	OK(e->ops->clean_session(e, &c, sid, INT64_MAX));
	/* The mount is told once; what it still does under this session is cleaned up later. */
	assert_int_equal(e->ops->refresh_session(e, &c, sid, "{\"a\":2}", c.now.tv_sec + 77), 1);
	OK(e->ops->refresh_session(e, &c, sid, "{\"a\":2}", c.now.tv_sec + 77));
	OK(cfs_meta_each_session(vol.m, &c, note, &f));
	assert_int_equal(f.expire_s, c.now.tv_sec + 77);
	OK(e->ops->clean_session(e, &c, sid, INT64_MAX));
}

/* A session that has sent a heartbeat since it was found expired keeps its locks and its record. */
static void test_answers_again(void **state)
{
	cfs_ino_t f = make_file(test_dir("answers"), "f");
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	struct found found = {0};
	int64_t now_s = c.now.tv_sec;

	OK(e->ops->new_session(e, &c, "{}", now_s - 10, &found.sid));
	OK(e->ops->flock(e, &c, f, found.sid, 1, CFS_LOCK_WRITE));
	OK(e->ops->refresh_session(e, &c, found.sid, "{}", now_s + 50));
	assert_int_equal(e->ops->clean_session(e, &c, found.sid, now_s), 1);
	assert_int_equal(e->ops->clean_session(e, &c, found.sid, now_s + 50), 1);
	assert_int_equal(cfs_meta_flock(vol.m, &c, f, 1, CFS_LOCK_READ, false), -EAGAIN);
	OK(cfs_meta_each_session(vol.m, &c, note, &found));
	assert_int_equal(found.expire_s, now_s + 50);
	OK(e->ops->clean_session(e, &c, found.sid, now_s + 51));
	OK(cfs_meta_flock(vol.m, &c, f, 1, CFS_LOCK_READ, false));
	OK(cfs_meta_flock(vol.m, &c, f, 1, CFS_LOCK_NONE, false));
	assert_int_equal(e->ops->clean_session(e, &c, found.sid, now_s + 51), 1);
	/* A clean-up that has dropped the locks, and goes on, has marked the record with expiry 0. */
	OK(e->ops->new_session(e, &c, "{}", now_s + 50, &found.sid));
	OK(e->ops->refresh_session(e, &c, found.sid, "{}", 0));
	assert_int_equal(e->ops->resume_session(e, &c, found.sid, "{}", now_s + 50), -ENOENT);
	assert_int_equal(e->ops->refresh_session(e, &c, found.sid, "{}", now_s + 50), 1);
	OK(e->ops->refresh_session(e, &c, found.sid, "{}", now_s + 50));
	OK(e->ops->clean_session(e, &c, found.sid, INT64_MAX));
}

/* After a restart of its worker a mount goes on with its session, unless that has ended meanwhile. */
static void test_resume(void **state)
{
	struct cfs_engine *e = vol.m->eng;
	struct found f = {0};
	struct cfs_ctx c = as_root();

	OK(e->ops->new_session(e, &c, "{}", c.now.tv_sec + 50, &f.sid));
	OK(e->ops->resume_session(e, &c, f.sid, "{\"a\":1}", c.now.tv_sec + 99));
	OK(cfs_meta_each_session(vol.m, &c, note, &f));
	assert_int_equal(f.expire_s, c.now.tv_sec + 99);
	assert_string_equal(f.info, "{\"a\":1}");
	OK(e->ops->clean_session(e, &c, f.sid, INT64_MAX));
	assert_int_equal(e->ops->resume_session(e, &c, f.sid, "{}", c.now.tv_sec + 99), -ENOENT);
}

static void test_counters(void **state)
{
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	int64_t a, b;

	OK(e->ops->add_counter(e, &c, "nextInode", 1024, &a));
	OK(vol.other->eng->ops->add_counter(vol.other->eng, &c, "nextInode", 1024, &b));
	assert_int_equal(b, a + 1024);
	assert_int_equal(e->ops->claim_job(e, &c, "lastCleanupFiles", 100000, 3240), 1);
	assert_int_equal(e->ops->claim_job(e, &c, "lastCleanupFiles", 100000, 3240), 0);
	assert_int_equal(e->ops->claim_job(e, &c, "lastCleanupFiles", 103239, 3240), 0);
	assert_int_equal(e->ops->claim_job(e, &c, "lastCleanupFiles", 103240, 3240), 1);
	/* A clock that is somewhat behind; and one that was far ahead: no job for years. */
	assert_int_equal(e->ops->claim_job(e, &c, "lastCleanupFiles", 100000, 3240), 0);
	assert_int_equal(e->ops->claim_job(e, &c, "lastCleanupFiles", 99999, 3240), 1);
	assert_int_equal(e->ops->claim_job(e, &c, "lastCleanupFiles", 99999, 3240), 0);
}

static void rename_volume(struct cfs_setting *s)
{
	free(s->name);
	s->name = strdup("another");
}

static void limit_volume(struct cfs_setting *s)
{
	s->upload_limit_mbps = 7;
	free(s->uuid);
	s->uuid = strdup("11111111-1111-4111-8111-111111111111");
}

static void unlimit_volume(struct cfs_setting *s)
{
	s->upload_limit_mbps = 0;
}

static void test_setting(void **state)
{
	struct cfs_setting *s, *back;
	char err[256], uuid[64];

	OK(cfs_meta_setting(vol.m, &s));
	snprintf(uuid, sizeof(uuid), "%s", s->uuid);
	assert_string_equal(s->min_client_version, "1.2.0-A");
	rename_volume(s);
	assert_int_equal(cfs_meta_format(vol.m, s, false, err), -EEXIST);
	assert_non_null(strstr(err, "Name"));
	cfs_setting_free(s);
	change_setting(limit_volume);
	OK(cfs_meta_load(vol.other, &back, err));
	assert_int_equal(back->upload_limit_mbps, 7);
	assert_string_equal(back->uuid, uuid);
	cfs_setting_free(back);
	change_setting(unlimit_volume);
}

static void test_read_only(void **state)
{
	struct cfs_meta_conf conf = {.read_only = true, .heartbeat_ms = 60000};
	cfs_ino_t d = test_dir("read-only"), f = make_file(d, "f");
	struct cfs_mknod req = {.parent = d, .name = "x", .name_len = 1, .type = CFS_TYPE_FILE};
	struct cfs_slice s = {.id = 1, .size = 1, .len = 1};
	struct cfs_ctx c = as_root();
	struct cfs_setting *setting;
	struct cfs_removed r;
	struct cfs_entry e;
	struct cfs_meta *m;
	struct cfs_attr a = {0};
	char err[256];

	OK(cfs_meta_open(vol.url, &conf, &m, err));
	OK(cfs_meta_load(m, &setting, err));
	OK(cfs_meta_start(m, NULL));
	assert_int_equal(cfs_meta_sid(m), 0);
	OK(cfs_meta_lookup(m, &c, d, "f", 1, &e));
	assert_int_equal(e.ino, f);
	assert_int_equal(cfs_meta_mknod(m, &c, &req, &e), -EROFS);
	assert_int_equal(cfs_meta_unlink(m, &c, d, "f", 1, 0, &r), -EROFS);
	assert_int_equal(cfs_meta_rmdir(m, &c, CFS_ROOT_INO, "read-only", 9, 0, &r), -EROFS);
	assert_int_equal(cfs_meta_setattr(m, &c, f, CFS_SET_MODE, &a, &a), -EROFS);
	assert_int_equal(cfs_meta_truncate(m, &c, f, 1, &a), -EROFS);
	assert_int_equal(commit_slice(m, &c, f, 0, &s, c.now, &a), -EROFS);
	assert_int_equal(cfs_meta_setxattr(m, &c, f, "user.a", "1", 1, 0), -EROFS);
	assert_int_equal(cfs_meta_format(m, setting, true, err), -EROFS);
	cfs_setting_free(setting);
	OK(cfs_meta_stop(m));
	cfs_meta_close(m);
}

static void test_open_errors(void **state)
{
	struct cfs_meta_conf conf = {0};
	struct cfs_meta *m;
	char err[256] = "";

	assert_int_equal(cfs_meta_open("gopher://x/y", &conf, &m, err), -EINVAL);
	assert_true(err[0] != '\0');
	assert_true(cfs_meta_open("", &conf, &m, err) < 0);
	assert_true(cfs_meta_open("sqlite3:///nonexistent-dir/x.db", &conf, &m, err) < 0);
	assert_non_null(strstr(err, "nonexistent-dir"));
}

/* ---- heartbeat ---- */

static _Atomic int reloads, losses;

static void on_reload(void *arg, const struct cfs_setting *s)
{
	(void)arg;
	if (s->upload_limit_mbps == 7)
		atomic_fetch_add(&reloads, 1);
}

static void on_loss(void *arg, const char *reason)
{
	(void)arg;
	(void)reason;
	atomic_fetch_add(&losses, 1);
}

static bool session_exists(uint64_t sid)
{
	struct found f = {.sid = sid};
	struct cfs_ctx c = as_root();

	OK(cfs_meta_each_session(vol.m, &c, note, &f));
	return f.expire_s != 0;
}

static void lose_volume(void)
{
	struct cfs_engine *e = vol.m->eng;
	cfs_deadline_t end = cfs_deadline_in(10000);
	struct cfs_ctx c = as_root();
	struct cfs_setting *s;
	char *text, *other;

	OK(e->ops->get_setting(e, &c, &text));
	OK(cfs_meta_setting(vol.m, &s));
	limit_volume(s);
	OK(cfs_setting_encode(s, &other));
	OK(e->ops->put_setting(e, &c, other));
	while (!atomic_load(&losses) && !cfs_deadline_passed(end))
		usleep(2000);
	OK(e->ops->put_setting(e, &c, text));
	assert_int_equal(atomic_load(&losses), 1);
	cfs_setting_free(s);
	free(other);
	free(text);
}

/* A mount notices a changed setting, a dead neighbour, and that its volume was replaced. */
static void test_heartbeat(void **state)
{
	struct cfs_meta_conf conf = {.heartbeat_ms = 50};
	struct cfs_meta_hooks hooks = {.reloaded = on_reload, .lost = on_loss};
	cfs_deadline_t end = cfs_deadline_in(20000);
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	struct cfs_meta *m;
	uint64_t dead, sid, id;

	OK(e->ops->new_session(e, &c, "{}", c.now.tv_sec - 10, &dead));
	m = open_third(&conf);
	OK(cfs_meta_start(m, &hooks));
	change_setting(limit_volume);
	while ((!atomic_load(&reloads) || session_exists(dead)) && !cfs_deadline_passed(end))
		usleep(2000);
	assert_int_equal(atomic_load(&reloads), 1);
	assert_false(session_exists(dead));
	change_setting(unlimit_volume);
	lose_volume();
	/* Nothing is written into the other volume, where a session may have the same number. */
	assert_true(cfs_meta_is_gone(m));
	assert_int_equal(cfs_meta_new_slice(m, &c, &id), -EROFS);
	sid = cfs_meta_sid(m);
	OK(cfs_meta_stop(m));
	cfs_meta_close(m);
	assert_true(session_exists(sid));
	OK(e->ops->clean_session(e, &c, sid, INT64_MAX));
}

static int make_late(struct cfs_meta *m, const struct cfs_ctx *c, cfs_ino_t d, cfs_ino_t f)
{
	struct cfs_mknod req = {.parent = d, .name = "late", .name_len = 4, .type = CFS_TYPE_FILE};
	struct cfs_entry e;

	return cfs_meta_mknod(m, c, &req, &e);
}

static int link_late(struct cfs_meta *m, const struct cfs_ctx *c, cfs_ino_t d, cfs_ino_t f)
{
	struct cfs_attr a;

	return cfs_meta_link(m, c, f, d, "late", 4, &a);
}

static int unlink_late(struct cfs_meta *m, const struct cfs_ctx *c, cfs_ino_t d, cfs_ino_t f)
{
	struct cfs_removed r;

	return cfs_meta_unlink(m, c, d, "f", 1, 0, &r);
}

static int rename_late(struct cfs_meta *m, const struct cfs_ctx *c, cfs_ino_t d, cfs_ino_t f)
{
	struct cfs_rename req = {.src_parent = d,
				 .src_name = "f",
				 .src_len = 1,
				 .dst_parent = d,
				 .dst_name = "late",
				 .dst_len = 4};
	struct cfs_renamed r;

	return cfs_meta_rename(m, c, &req, &r);
}

static int chmod_late(struct cfs_meta *m, const struct cfs_ctx *c, cfs_ino_t d, cfs_ino_t f)
{
	const struct cfs_attr in = {.mode = 0777};
	struct cfs_attr a;

	return cfs_meta_setattr(m, c, f, CFS_SET_MODE, &in, &a);
}

static int truncate_late(struct cfs_meta *m, const struct cfs_ctx *c, cfs_ino_t d, cfs_ino_t f)
{
	struct cfs_attr a;

	return cfs_meta_truncate(m, c, f, 4711, &a);
}

static int xattr_late(struct cfs_meta *m, const struct cfs_ctx *c, cfs_ino_t d, cfs_ino_t f)
{
	return cfs_meta_setxattr(m, c, f, "user.late", "", 0, 0);
}

static int lock_late(struct cfs_meta *m, const struct cfs_ctx *c, cfs_ino_t d, cfs_ino_t f)
{
	return cfs_meta_flock(m, c, f, 1, CFS_LOCK_WRITE, false);
}

static int commit_late(struct cfs_meta *m, const struct cfs_ctx *c, cfs_ino_t d, cfs_ino_t f)
{
	const struct cfs_slice s = {.id = 4711, .size = 10, .len = 10};
	struct cfs_attr a;

	return commit_slice(m, c, f, 0, &s, c->now, &a);
}

static int store_late(struct cfs_meta *m, const struct cfs_ctx *c, cfs_ino_t d, cfs_ino_t f)
{
	return cfs_meta_check_volume(m, c->deadline);
}

static void other_volume(struct cfs_setting *s)
{
	/* Of equal length, and another one at each call. */
	s->uuid[0] = s->uuid[0] == 'a' ? 'b' : 'a';
}

/*
 * No heartbeat has seen the volume for long, as after a pause of the process, and another one is in
 * its place, of this or a newer version: the first change already is refused, whichever it is.
 */
static void test_other_volume_after_a_pause(void **state)
{
	static int (*const changes[])(struct cfs_meta *, const struct cfs_ctx *, cfs_ino_t,
				      cfs_ino_t) = {
		make_late,     link_late,  unlink_late, rename_late, chmod_late,
		truncate_late, xattr_late, lock_late,	commit_late, store_late,
	};
	struct cfs_meta_conf conf = {.heartbeat_ms = 60000};
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("paused"), f = make_file(d, "f");
	struct cfs_attr before = attr_of(f), after;
	struct cfs_setting *s;
	char *text, *other[2];
	size_t i;

	OK(e->ops->get_setting(e, &c, &text));
	OK(cfs_meta_setting(vol.m, &s));
	other_volume(s);
	OK(cfs_setting_encode(s, &other[0]));
	s->meta_version = CFS_META_VERSION + 1;
	OK(cfs_setting_encode(s, &other[1]));
	for (i = 0; i < 2 * CFS_ARRAY_SIZE(changes); i++) {
		struct cfs_meta *m = open_third(&conf);
		uint64_t sid;

		OK(cfs_meta_start(m, NULL));
		sid = cfs_meta_sid(m);
		OK(e->ops->put_setting(e, &c, other[i % 2]));
		/* Seen not long ago: no change asks. */
		OK(xattr_late(m, &c, d, f));
		OK(cfs_meta_removexattr(m, &c, f, "user.late"));
		assert_false(cfs_meta_is_gone(m));
		atomic_store(&m->host.seen_ms, 0);
		assert_int_equal(changes[i / 2](m, &c, d, f), -EROFS);
		assert_true(cfs_meta_is_gone(m));
		OK(cfs_meta_stop(m));
		cfs_meta_close(m);
		/* Nor has it ended a session of the other volume. */
		assert_true(session_exists(sid));
		OK(e->ops->put_setting(e, &c, text));
		OK(e->ops->clean_session(e, &c, sid, INT64_MAX));
	}
	after = attr_of(f);
	assert_int_equal(after.nlink, 1);
	assert_int_equal(after.mode, before.mode);
	assert_int_equal(after.length, 0);
	assert_int_equal(try_lookup(d, "late"), -ENOENT);
	assert_int_equal(find(d, "f"), f);
	cfs_setting_free(s);
	free(other[0]);
	free(other[1]);
	free(text);
}

/* Nothing says that another volume is there: the next heartbeat tells what is wrong. */
static void test_unusable_setting_after_a_pause(void **state)
{
	struct cfs_meta_conf conf = {.heartbeat_ms = 60000};
	const char *unusable[] = {"", "{\"UUID\"", "{}", NULL};
	struct cfs_meta *m = open_third(&conf);
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	cfs_ino_t d = test_dir("unusable"), f = make_file(d, "f");
	struct cfs_setting *s;
	char *text, *newer;
	size_t i;

	OK(e->ops->get_setting(e, &c, &text));
	OK(cfs_meta_setting(vol.m, &s));
	s->meta_version = CFS_META_VERSION + 1;
	OK(cfs_setting_encode(s, &newer));
	unusable[3] = newer;
	OK(cfs_meta_start(m, NULL));
	for (i = 0; i < CFS_ARRAY_SIZE(unusable); i++) {
		OK(e->ops->put_setting(e, &c, unusable[i]));
		atomic_store(&m->host.seen_ms, 0);
		OK(chmod_late(m, &c, d, f));
		assert_false(cfs_meta_is_gone(m));
	}
	OK(e->ops->put_setting(e, &c, text));
	OK(cfs_meta_stop(m));
	cfs_meta_close(m);
	cfs_setting_free(s);
	free(newer);
	free(text);
}

static struct {
	uint64_t below; /* ids that blocks have */
	unsigned asked;
	int error;
	uint64_t takes_ms;
} slices;

static int slices_used(void *arg, uint64_t first, uint64_t n, cfs_deadline_t deadline)
{
	cfs_sleep_until(cfs_deadline_in(slices.takes_ms));
	slices.asked++;
	assert_true(n > 0 && !cfs_deadline_passed(deadline));
	return slices.error ? slices.error : first < slices.below;
}

/* The database is an older one: numbers that it gives again belong to blocks, or to this mount. */
static void test_counters_go_back(void **state)
{
	struct cfs_meta_conf conf = {.heartbeat_ms = 50};
	struct cfs_meta_hooks hooks = {.slices_used = slices_used};
	struct cfs_ctx c = as_root();
	uint64_t id, last = 0;
	struct cfs_meta_stats st;
	struct cfs_meta *m;
	unsigned i;

	OK(cfs_meta_new_slice(vol.m, &c, &id));
	m = open_third(&conf);
	OK(cfs_meta_start(m, &hooks));
	slices.below = id + 20000;
	slices.takes_ms = 1000;
	OK(cfs_meta_new_slice(m, &c, &last));
	slices.takes_ms = 0;
	assert_true(last >= slices.below);
	assert_int_equal(slices.asked, 2);
	/* The time of the bucket is not that of the metadata. */
	cfs_meta_stats(m, &st);
	assert_int_equal(st.op[CFS_META_OP_counter].calls, 2);
	assert_in_range(st.op[CFS_META_OP_counter].time_ns, 0, 1000000000);
	/* A bucket that does not tell stops no write. */
	slices.error = -EACCES;
	OK(cfs_meta_skip_slices(m, &c, -1000000));
	for (i = 0; i < 10000; i++) {
		OK(cfs_meta_new_slice(m, &c, &id));
		assert_true(id > last);
		last = id;
	}
	slices.error = 0;
	slices.below = UINT64_MAX;
	for (i = 0; i < 10000; i++) {
		if (cfs_meta_new_slice(m, &c, &id))
			break;
	}
	assert_in_range(i, 0, 4096);
	assert_int_equal(cfs_meta_new_slice(m, &c, &id), -EIO);
	OK(cfs_meta_stop(m));
	cfs_meta_close(m);
}

/*
 * The mark of a counter is of another server, as after the promotion of a replica: the numbers that it
 * may lack are left out, once.
 */
static void test_counters_of_another_server(void **state)
{
	static const struct {
		const char *name, *mark;
		int64_t gap;
	} of[] = {
		{"nextInode", "cachefsInodeServer", CFS_INODE_GAP},
		{"nextChunk", "cachefsChunkServer", CFS_SLICE_GAP},
	};
	const char *name = cfs_meta_engine_name(vol.m);
	bool has_marks = !strcmp(name, "postgresql") || !strcmp(name, "mysql");
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	int64_t first, next, last, mark;
	uint64_t sid;
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(of); i++) {
		OK(e->ops->add_counter(e, &c, of[i].name, 10, &first));
		OK(e->ops->add_counter(e, &c, of[i].name, 10, &next));
		assert_int_equal(next, first + 10);
		OK(e->ops->add_counter(e, &c, of[i].mark, 0, &mark));
		/* A cluster has none. */
		has_marks &= mark != 0;
		OK(e->ops->add_counter(e, &c, of[i].mark, 1, &mark));
		OK(e->ops->add_counter(e, &c, of[i].name, 10, &next));
		OK(e->ops->add_counter(e, &c, of[i].name, 10, &last));
		assert_int_equal(next, first + 20 + (has_marks ? of[i].gap : 0));
		assert_int_equal(last, next + 10);
	}
	OK(e->ops->add_counter(e, &c, "nextSession", 0, &first));
	OK(e->ops->add_counter(e, &c, "cachefsSessionServer", 1, &mark));
	OK(e->ops->new_session(e, &c, "{}", 1, &sid));
	assert_int_equal(sid, (uint64_t)first + 1 + (has_marks ? CFS_SESSION_GAP : 0));
	OK(e->ops->clean_session(e, &c, sid, INT64_MAX));
}

static struct {
	_Atomic int calls;
	_Atomic uint64_t ended;
	struct cfs_meta *m;
	cfs_ino_t ino;
	_Atomic bool held, held_by_other, written_first;
} ending;

static void on_session_ended(void *arg, uint64_t sid)
{
	if (!atomic_load(&ending.calls))
		atomic_store(&ending.written_first, session_exists(sid));
	atomic_store(&ending.held, cfs_meta_holds_lock(ending.m, sid, ending.ino, 1, false));
	atomic_store(&ending.held_by_other,
		     cfs_meta_holds_lock(ending.m, sid, ending.ino, 2, true));
	atomic_store(&ending.ended, sid);
	atomic_fetch_add(&ending.calls, 1);
}

/*
 * A mount that was paused while others ended its session notices. It goes on under another session,
 * whose locks hold.
 */
static void test_ended_by_another(void **state)
{
	struct cfs_meta_conf conf = {.heartbeat_ms = 1000};
	struct cfs_meta_hooks hooks = {.session_ended = on_session_ended};
	cfs_deadline_t end = cfs_deadline_in(20000);
	const struct cfs_plock part = {CFS_LOCK_WRITE, 1, 5, 9}, none = {CFS_LOCK_NONE, 1, 5, 9};
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	uint64_t sid;

	ending.ino = make_file(test_dir("ended"), "f");
	ending.m = open_third(&conf);
	OK(cfs_meta_start(ending.m, &hooks));
	sid = cfs_meta_sid(ending.m);
	OK(cfs_meta_flock(ending.m, &c, ending.ino, 1, CFS_LOCK_WRITE, false));
	OK(cfs_meta_setlk(ending.m, &c, ending.ino, 2, &part, false));
	OK(cfs_meta_setlk(ending.m, &c, ending.ino, 2, &none, false));
	OK(e->ops->clean_session(e, &c, sid, INT64_MAX));
	while (cfs_meta_sid(ending.m) == sid && !cfs_deadline_passed(end))
		usleep(2000);
	while (atomic_load(&ending.calls) < 2 && !cfs_deadline_passed(end))
		usleep(2000);
	assert_int_not_equal(cfs_meta_sid(ending.m), sid);
	assert_int_equal(atomic_load(&ending.calls), 2);
	assert_int_equal(atomic_load(&ending.ended), sid);
	/* A process that dies between must not leave a session that the next one continues. */
	assert_false(atomic_load(&ending.written_first));
	assert_true(session_exists(sid));
	assert_true(atomic_load(&ending.held));
	assert_false(atomic_load(&ending.held_by_other)); /* it had given its lock back */
	OK(cfs_meta_flock(vol.m, &c, ending.ino, 1, CFS_LOCK_WRITE, false));
	assert_int_equal(cfs_meta_flock(ending.m, &c, ending.ino, 1, CFS_LOCK_WRITE, false),
			 -EAGAIN);
	OK(cfs_meta_flock(vol.m, &c, ending.ino, 1, CFS_LOCK_NONE, false));
	OK(cfs_meta_flock(ending.m, &c, ending.ino, 1, CFS_LOCK_WRITE, false));
	assert_true(cfs_meta_holds_lock(ending.m, cfs_meta_sid(ending.m), ending.ino, 1, false));
	/* The old record, written again, goes with what it may still have. */
	OK(e->ops->clean_session(e, &c, sid, INT64_MAX));
	assert_int_equal(cfs_meta_flock(vol.m, &c, ending.ino, 1, CFS_LOCK_WRITE, false), -EAGAIN);
	OK(cfs_meta_stop(ending.m));
	cfs_meta_close(ending.m);
	OK(cfs_meta_flock(vol.m, &c, ending.ino, 1, CFS_LOCK_WRITE, false));
	OK(cfs_meta_flock(vol.m, &c, ending.ino, 1, CFS_LOCK_NONE, false));
}

/*
 * A process has died after others had ended its session, and requests that it had sent may take
 * locks under it. Without a record, these would stay for ever.
 */
static void test_resume_of_an_ended_session(void **state)
{
	struct cfs_meta_conf conf = {.heartbeat_ms = 60000};
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	uint64_t sid[2];
	size_t i;

	for (i = 0; i < 2; i++) {
		struct cfs_meta *m = open_third(&conf);

		OK(e->ops->new_session(e, &c, "{}", c.now.tv_sec + 1000, &sid[i]));
		if (i == 0) /* the dead process did not know it yet */
			OK(e->ops->clean_session(e, &c, sid[i], INT64_MAX));
		cfs_meta_resume(m, sid[i], i == 0 ? 0 : sid[i]);
		OK(cfs_meta_start(m, NULL));
		assert_int_not_equal(cfs_meta_sid(m), sid[i]);
		assert_true(session_exists(sid[i]));
		OK(cfs_meta_stop(m));
		cfs_meta_close(m);
		assert_false(session_exists(sid[i]));
	}
}

static struct {
	struct cfs_engine_ops ops;
	const struct cfs_engine_ops *real;
	uint64_t bad;
	_Atomic int refused, since_refresh, most;
} slow;

static int slow_clean(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
		      int64_t before_s)
{
	int n = atomic_fetch_add(&slow.since_refresh, 1) + 1;

	if (n > atomic_load(&slow.most))
		atomic_store(&slow.most, n);
	usleep(100 * 1000);
	if (sid != slow.bad)
		return slow.real->clean_session(e, ctx, sid, before_s);
	atomic_fetch_add(&slow.refused, 1);
	return -EIO;
}

static int noted_refresh(struct cfs_engine *e, const struct cfs_ctx *ctx, uint64_t sid,
			 const char *info, int64_t expire_s)
{
	atomic_store(&slow.since_refresh, 0);
	return slow.real->resume_session(e, ctx, sid, info, expire_s);
}

/*
 * Many dead neighbours, one of which cannot be cleaned up: the others go all the same, and the
 * mount that cleans goes on beating, or it would be taken for dead and lose its locks.
 */
static void test_slow_cleaning(void **state)
{
	struct cfs_meta_conf conf = {.heartbeat_ms = 200};
	cfs_deadline_t end = cfs_deadline_in(30000);
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	struct cfs_meta *m;
	uint64_t dead[8];
	size_t i;

	for (i = 0; i < 8; i++)
		OK(e->ops->new_session(e, &c, "{}", c.now.tv_sec - 10, &dead[i]));
	slow.bad = dead[0];
	m = open_third(&conf);
	slow.real = m->eng->ops;
	slow.ops = *slow.real;
	slow.ops.clean_session = slow_clean;
	slow.ops.resume_session = noted_refresh;
	m->eng->ops = &slow.ops;
	OK(cfs_meta_start(m, NULL));
	for (i = 1; i < 8; i++)
		while ((session_exists(dead[i]) || !atomic_load(&slow.refused)) &&
		       !cfs_deadline_passed(end))
			usleep(2000);
	for (i = 1; i < 8; i++)
		assert_false(session_exists(dead[i]));
	OK(cfs_meta_stop(m));
	assert_true(atomic_load(&slow.refused) > 0);
	assert_in_range(atomic_load(&slow.most), 1, 3);
	m->eng->ops = slow.real;
	cfs_meta_close(m);
	OK(e->ops->clean_session(e, &c, slow.bad, INT64_MAX));
}

static void log_on(struct cfs_setting *s)
{
	s->changelog = true;
}

static void log_off(struct cfs_setting *s)
{
	s->changelog = false;
}

/* Every kind of change still works with the changelog on, and it can be trimmed. */
static void test_changelog(void **state)
{
	struct cfs_ctx c = as_root();
	cfs_ino_t d, f;

	change_setting(log_on);
	d = test_dir("changelog");
	f = make_file(d, "a,b(%)\"\\\xff");
	write_at(f, 0, 10);
	OK(try_link(&c, f, d, "g"));
	OK(try_rename(&c, d, "g", d, "h", 0, NULL));
	unlink_name(d, "h");
	unlink_name(d, "a,b(%)\"\\\xff");
	rmdir_name(CFS_ROOT_INO, "changelog");
	change_setting(log_off);
	OK(vol.m->eng->ops->trim_changelog(vol.m->eng, &c, c.now.tv_sec + 100, 0));
}

TEST_LIST(session, T(test_record), T(test_stale), T(test_clock), T(test_refresh),
	  T(test_answers_again), T(test_ended_by_another), T(test_resume_of_an_ended_session),
	  T(test_resume), T(test_counters), T(test_setting), T(test_heartbeat),
	  T(test_other_volume_after_a_pause), T(test_unusable_setting_after_a_pause),
	  T(test_counters_go_back), T(test_counters_of_another_server), T(test_slow_cleaning),
	  T(test_read_only), T(test_open_errors), T(test_changelog));
