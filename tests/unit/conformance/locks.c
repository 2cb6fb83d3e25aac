/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks. A failure means that two programs write one database file, or that one waits for ever.
 */
#include <pthread.h>
#include <sched.h>
#include <sqlite3.h>
#include <stdio.h>
#include <unistd.h>

#include "base/activity.h"
#include "conformance.h"
#include "meta/api/locks.h"

#define MAX INT64_MAX

static int flock_(struct cfs_meta *m, cfs_ino_t ino, uint64_t owner, enum cfs_lock_type type)
{
	struct cfs_ctx c = as_root();

	return cfs_meta_flock(m, &c, ino, owner, type, false);
}

static int plock(struct cfs_meta *m, cfs_ino_t ino, uint64_t owner, enum cfs_lock_type type,
		 uint64_t start, uint64_t end)
{
	struct cfs_plock l = {(uint32_t)type, 0x516, start, end};
	struct cfs_ctx c = as_root();

	return cfs_meta_setlk(m, &c, ino, owner, &l, false);
}

/* Else each file that another mount removes under a lock leaves the lock behind, here and there. */
static void test_locks_of_a_removed_file_go(void **state)
{
	cfs_ino_t d = test_dir("lock-removed"), f = make_file(d, "f");
	struct cfs_ctx c = as_root();
	struct cfs_removed r;

	OK(flock_(vol.m, f, 1, CFS_LOCK_WRITE));
	OK(plock(vol.m, f, 2, CFS_LOCK_WRITE, 0, MAX));
	OK(cfs_meta_unlink(vol.other, &c, d, "f", 1, 0, &r));
	assert_int_equal(r.outcome, CFS_REMOVED_DELETED);
	assert_int_equal(flock_(vol.m, f, 3, CFS_LOCK_READ), -ENOENT);
	OK(flock_(vol.m, f, 1, CFS_LOCK_NONE));
	OK(plock(vol.m, f, 2, CFS_LOCK_NONE, 0, MAX));
}

static void test_flock(void **state)
{
	cfs_ino_t d = test_dir("flock"), f = make_file(d, "f");

	OK(flock_(vol.m, f, 1, CFS_LOCK_READ));
	OK(flock_(vol.m, f, 2, CFS_LOCK_READ));
	OK(flock_(vol.other, f, 1, CFS_LOCK_READ));
	assert_int_equal(flock_(vol.m, f, 1, CFS_LOCK_WRITE), -EAGAIN);
	OK(flock_(vol.m, f, 2, CFS_LOCK_NONE));
	assert_int_equal(flock_(vol.m, f, 1, CFS_LOCK_WRITE), -EAGAIN);
	OK(flock_(vol.other, f, 1, CFS_LOCK_NONE));
	OK(flock_(vol.m, f, 1, CFS_LOCK_WRITE));
	assert_int_equal(flock_(vol.m, f, 2, CFS_LOCK_READ), -EAGAIN);
	assert_int_equal(flock_(vol.other, f, 1, CFS_LOCK_READ), -EAGAIN);
	OK(flock_(vol.m, f, 1, CFS_LOCK_READ));
	OK(flock_(vol.m, f, 2, CFS_LOCK_READ));
	OK(flock_(vol.m, f, 1, CFS_LOCK_NONE));
	OK(flock_(vol.m, f, 2, CFS_LOCK_NONE));
	OK(flock_(vol.m, f, 2, CFS_LOCK_NONE));
	assert_int_equal(flock_(vol.m, 1ULL << 40, 1, CFS_LOCK_READ), -ENOENT);
}

static void test_posix(void **state)
{
	cfs_ino_t d = test_dir("plock"), f = make_file(d, "f");
	struct cfs_plock l = {CFS_LOCK_WRITE, 1, 10, 60};
	struct cfs_ctx c = as_root();

	OK(plock(vol.m, f, 1, CFS_LOCK_WRITE, 0, 39));
	OK(plock(vol.m, f, 1, CFS_LOCK_READ, 50, 99));
	assert_int_equal(plock(vol.m, f, 2, CFS_LOCK_READ, 39, 39), -EAGAIN);
	OK(plock(vol.m, f, 2, CFS_LOCK_READ, 40, 60));
	assert_int_equal(plock(vol.other, f, 1, CFS_LOCK_WRITE, 45, 45), -EAGAIN);
	OK(cfs_meta_getlk(vol.m, &c, f, 3, &l));
	assert_int_not_equal(l.type, CFS_LOCK_NONE);
	assert_int_equal(l.pid, 0x516);
	l = (struct cfs_plock){CFS_LOCK_WRITE, 1, 0, 5};
	OK(cfs_meta_getlk(vol.other, &c, f, 3, &l));
	assert_int_equal(l.type, CFS_LOCK_WRITE);
	assert_int_equal(l.end, 39);
	assert_int_equal(l.pid, 0);
	l = (struct cfs_plock){CFS_LOCK_WRITE, 1, 100, MAX};
	OK(cfs_meta_getlk(vol.m, &c, f, 3, &l));
	assert_int_equal(l.type, CFS_LOCK_NONE);
	l = (struct cfs_plock){CFS_LOCK_WRITE, 1, 0, 5};
	OK(cfs_meta_getlk(vol.m, &c, f, 1, &l)); /* one's own are no conflict */
	assert_int_equal(l.type, CFS_LOCK_NONE);
	OK(plock(vol.m, f, 1, CFS_LOCK_NONE, 0, MAX));
	OK(plock(vol.m, f, 2, CFS_LOCK_NONE, 0, MAX));
	OK(plock(vol.other, f, 1, CFS_LOCK_WRITE, 0, MAX));
	OK(plock(vol.other, f, 1, CFS_LOCK_NONE, 0, MAX));
	assert_int_equal(plock(vol.m, f, 1, CFS_LOCK_WRITE, 5, 4), -EINVAL);
}

/* The list as JuiceFS reads it (volume-format section 9). */
static void test_posix_bytes(void **state)
{
	static const char want[] = "000000010000051600000000000000000000000000000027"
				   "000000010000051600000000000000320000000000000063"
				   "000000000000051600000000000000C800000000000000F9"
				   "000000010000051600000000000003E87FFFFFFFFFFFFFFF";
	cfs_ino_t d = test_dir("plock-bytes"), f = make_file(d, "f");
	struct cfs_plock l = {CFS_LOCK_READ, 1, 40, 49};
	struct cfs_ctx c = as_root();

	OK(plock(vol.m, f, 7, CFS_LOCK_WRITE, 0, 99));
	OK(plock(vol.m, f, 7, CFS_LOCK_WRITE, 1000, MAX));
	OK(plock(vol.m, f, 7, CFS_LOCK_READ, 200, 219));
	OK(plock(vol.m, f, 7, CFS_LOCK_READ, 220, 249));
	OK(plock(vol.m, f, 7, CFS_LOCK_NONE, 40, 49));
	OK(cfs_meta_getlk(vol.m, &c, f, 8, &l));
	assert_int_equal(l.type, CFS_LOCK_NONE);
	if (strncmp(vol.url, "sqlite3://", 10) == 0) {
		sqlite3_stmt *st;
		sqlite3 *db;
		char sql[128];

		OK(sqlite3_open_v2(vol.url + 10, &db, SQLITE_OPEN_READONLY, NULL));
		snprintf(sql, sizeof(sql), "SELECT hex(records) FROM jfs_plock WHERE inode=%llu",
			 (unsigned long long)f);
		OK(sqlite3_prepare_v2(db, sql, -1, &st, NULL));
		assert_int_equal(sqlite3_step(st), SQLITE_ROW);
		assert_string_equal((const char *)sqlite3_column_text(st, 0), want);
		sqlite3_finalize(st);
		sqlite3_close(db);
	}
	OK(plock(vol.m, f, 7, CFS_LOCK_NONE, 0, MAX));
}

/* ---- waiting ---- */

struct waiting {
	pthread_t thread;
	struct cfs_meta *m;
	cfs_ino_t ino;
	uint64_t owner;
	bool posix;
	bool (*interrupted)(void *arg);
	_Atomic int rc; /* 1: not finished */
};

static void *wait_for_lock(void *arg)
{
	struct waiting *w = arg;
	struct cfs_plock l = {CFS_LOCK_WRITE, 1, 0, 9};
	struct cfs_ctx c = as_root();
	int rc;

	c.interrupted = w->interrupted;
	cfs_activity_request("lock", w->ino, 1, 0);
	if (w->posix)
		rc = cfs_meta_setlk(w->m, &c, w->ino, w->owner, &l, true);
	else
		rc = cfs_meta_flock(w->m, &c, w->ino, w->owner, CFS_LOCK_WRITE, true);
	cfs_activity_request_end();
	atomic_store(&w->rc, rc);
	return NULL;
}

static void start(struct waiting *w)
{
	atomic_store(&w->rc, 1);
	OK(pthread_create(&w->thread, NULL, wait_for_lock, w));
}

static int finish(struct waiting *w)
{
	OK(pthread_join(w->thread, NULL));
	return atomic_load(&w->rc);
}

static uint64_t lock_trips(struct cfs_meta *m)
{
	struct cfs_meta_stats s;

	cfs_meta_stats(m, &s);
	return s.op[CFS_META_OP_lock].round_trips;
}

/* Until the waiter has asked the engine, and been refused, once more than before. */
static void until_tried(struct cfs_meta *m, uint64_t before)
{
	cfs_deadline_t end = cfs_deadline_in(10000);

	while (lock_trips(m) <= before && !cfs_deadline_passed(end))
		sched_yield();
	assert_true(lock_trips(m) > before);
}

static void test_wait_local(void **state)
{
	cfs_ino_t d = test_dir("wait-local"), f = make_file(d, "f");
	struct waiting w = {.m = vol.m, .ino = f, .owner = 2};
	uint64_t before;
	int posix;

	for (posix = 0; posix < 2; posix++) {
		w.posix = posix;
		if (posix)
			OK(plock(vol.m, f, 1, CFS_LOCK_WRITE, 5, 5));
		else
			OK(flock_(vol.m, f, 1, CFS_LOCK_READ));
		before = lock_trips(vol.m);
		start(&w);
		until_tried(vol.m, before);
		assert_int_equal(atomic_load(&w.rc), 1);
		if (posix)
			OK(plock(vol.m, f, 1, CFS_LOCK_NONE, 0, MAX));
		else
			OK(flock_(vol.m, f, 1, CFS_LOCK_NONE));
		assert_int_equal(finish(&w), 0);
		OK(posix ? plock(vol.m, f, 2, CFS_LOCK_NONE, 0, MAX)
			 : flock_(vol.m, f, 2, CFS_LOCK_NONE));
	}
}

static void test_wait_foreign(void **state)
{
	cfs_ino_t d = test_dir("wait-foreign"), f = make_file(d, "f");
	struct waiting w = {.m = vol.m, .ino = f, .owner = 2, .posix = true};
	uint64_t before = lock_trips(vol.m);

	OK(plock(vol.other, f, 1, CFS_LOCK_WRITE, 5, 5));
	start(&w);
	until_tried(vol.m, before);
	OK(plock(vol.other, f, 1, CFS_LOCK_NONE, 5, 5));
	assert_int_equal(finish(&w), 0);
	OK(plock(vol.m, f, 2, CFS_LOCK_NONE, 0, MAX));
}

/* Whether the request of that inode is shown as waiting for a lock, or as something else. */
static bool shown(cfs_ino_t ino, bool wait)
{
	struct cfs_activity *all;
	bool found = false;
	size_t n, i;

	OK(cfs_activity_read(-1, &all, &n));
	for (i = 0; i < n; i++)
		found |= all[i].ino == ino && cfs_activity_waits_for_lock(&all[i]) == wait;
	free(all);
	return found;
}

/*
 * Also while it is tried again: the watchdog would take it for a call that hangs. The tries follow
 * each other quickly at the beginning of a wait, hence the rounds.
 */
static void test_wait_is_shown(void **state)
{
	cfs_ino_t d = test_dir("wait-shown"), f = make_file(d, "f");
	struct waiting w = {.m = vol.m, .ino = f, .owner = 2};
	cfs_deadline_t end = cfs_deadline_in(30000);
	uint64_t tried;
	int round;

	for (round = 0; round < 40; round++) {
		w.posix = round % 2;
		OK(w.posix ? plock(vol.other, f, 1, CFS_LOCK_WRITE, 5, 5)
			   : flock_(vol.other, f, 1, CFS_LOCK_WRITE));
		start(&w);
		while (!shown(f, true) && !cfs_deadline_passed(end))
			;
		tried = lock_trips(vol.m);
		while (lock_trips(vol.m) < tried + 10 && !cfs_deadline_passed(end))
			assert_false(shown(f, false));
		assert_true(lock_trips(vol.m) >= tried + 10);
		OK(w.posix ? plock(vol.other, f, 1, CFS_LOCK_NONE, 0, MAX)
			   : flock_(vol.other, f, 1, CFS_LOCK_NONE));
		assert_int_equal(finish(&w), 0);
		OK(w.posix ? plock(vol.m, f, 2, CFS_LOCK_NONE, 0, MAX)
			   : flock_(vol.m, f, 2, CFS_LOCK_NONE));
	}
}

static _Atomic bool give_up;

static bool given_up(void *arg)
{
	(void)arg;
	return atomic_load(&give_up);
}

static void test_interrupt(void **state)
{
	cfs_ino_t d = test_dir("interrupt"), f = make_file(d, "f");
	struct waiting w = {.m = vol.m, .ino = f, .owner = 2, .interrupted = given_up};
	uint64_t before;

	atomic_store(&give_up, false);
	OK(flock_(vol.m, f, 1, CFS_LOCK_WRITE));
	before = lock_trips(vol.m);
	start(&w);
	until_tried(vol.m, before);
	atomic_store(&give_up, true);
	assert_int_equal(finish(&w), -EINTR);
	OK(flock_(vol.m, f, 1, CFS_LOCK_NONE));
}

/* 1 holds a and wants b, 2 holds b and wants a. */
static void test_deadlock(void **state)
{
	cfs_ino_t d = test_dir("deadlock"), a = make_file(d, "a"), b = make_file(d, "b");
	struct waiting one = {.m = vol.m, .ino = b, .owner = 1, .posix = true};
	struct waiting two = {.m = vol.m, .ino = a, .owner = 2, .posix = true};
	cfs_deadline_t end = cfs_deadline_in(10000);

	OK(plock(vol.m, a, 1, CFS_LOCK_WRITE, 0, 9));
	OK(plock(vol.m, b, 2, CFS_LOCK_WRITE, 0, 9));
	start(&one);
	start(&two);
	while (atomic_load(&one.rc) == 1 && atomic_load(&two.rc) == 1 && !cfs_deadline_passed(end))
		sched_yield();
	if (atomic_load(&one.rc) == 1) {
		assert_int_equal(finish(&two), -EDEADLK);
		OK(plock(vol.m, b, 2, CFS_LOCK_NONE, 0, MAX));
		OK(finish(&one));
	} else {
		assert_int_equal(finish(&one), -EDEADLK);
		OK(plock(vol.m, a, 1, CFS_LOCK_NONE, 0, MAX));
		OK(finish(&two));
	}
	OK(plock(vol.m, a, 1, CFS_LOCK_NONE, 0, MAX));
	OK(plock(vol.m, a, 2, CFS_LOCK_NONE, 0, MAX));
	OK(plock(vol.m, b, 1, CFS_LOCK_NONE, 0, MAX));
	OK(plock(vol.m, b, 2, CFS_LOCK_NONE, 0, MAX));
}

static void until_shown(cfs_ino_t ino)
{
	cfs_deadline_t end = cfs_deadline_in(10000);

	while (!shown(ino, true) && !cfs_deadline_passed(end))
		sched_yield();
	assert_true(shown(ino, true));
}

/*
 * 1 holds b and waits for a; 2 gives a up and waits for b at once, before 1 has run. Programs that
 * take one lock after the other would be told of a deadlock that there is not. On one processor,
 * where who is woken does not run before the other one sleeps.
 */
static void test_no_deadlock_with_woken(void **state)
{
	cfs_ino_t d = test_dir("woken"), a = make_file(d, "a"), b = make_file(d, "b");
	struct waiting one = {.m = vol.m, .ino = a, .owner = 1, .posix = true};
	struct cfs_plock whole = {CFS_LOCK_WRITE, 1, 0, 9};
	const struct sched_param none = {0};
	struct cfs_ctx c = as_root();
	cpu_set_t before, single;
	int round, cpu;

	c.interrupted = given_up;
	atomic_store(&give_up, true);
	OK(pthread_getaffinity_np(pthread_self(), sizeof(before), &before));
	for (cpu = 0; !CPU_ISSET(cpu, &before); cpu++)
		;
	CPU_ZERO(&single);
	CPU_SET(cpu, &single);
	OK(pthread_setaffinity_np(pthread_self(), sizeof(single), &single));
	for (round = 0; round < 50; round++) {
		OK(plock(vol.m, a, 2, CFS_LOCK_WRITE, 0, 9));
		OK(plock(vol.m, b, 1, CFS_LOCK_WRITE, 0, 9));
		start(&one);
		OK(pthread_setschedparam(one.thread, SCHED_BATCH, &none));
		until_shown(a);
		sched_yield();
		OK(plock(vol.m, a, 2, CFS_LOCK_NONE, 0, MAX));
		assert_int_equal(cfs_meta_setlk(vol.m, &c, b, 2, &whole, true), -EINTR);
		OK(finish(&one));
		OK(plock(vol.m, a, 1, CFS_LOCK_NONE, 0, MAX));
		OK(plock(vol.m, b, 1, CFS_LOCK_NONE, 0, MAX));
	}
	OK(pthread_setaffinity_np(pthread_self(), sizeof(before), &before));
}

static struct {
	struct waiting one;
	cfs_ino_t b;
	bool done;
} between;

/* Between the look at who holds b and the wait for it: that one lets go and waits for a. */
static int getlk_then_change(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino,
			     uint64_t sid, uint64_t owner, struct cfs_plock *lock,
			     uint64_t *ret_sid, uint64_t *ret_owner)
{
	int rc = real_ops()->getlk(e, ctx, ino, sid, owner, lock, ret_sid, ret_owner);

	if (ino != between.b || between.done)
		return rc;
	between.done = true;
	OK(plock(vol.m, between.b, 1, CFS_LOCK_NONE, 0, MAX));
	start(&between.one);
	until_shown(between.one.ino);
	usleep(50000); /* and sleeps; were it late, the answer would be the same */
	return rc;
}

static int no_flock(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		    uint64_t owner, enum cfs_lock_type type)
{
	return -ENOTCONN;
}

static int no_setlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		    uint64_t owner, const struct cfs_plock *lock)
{
	return -ETIMEDOUT;
}

/* A lock whose file was closed while the database was away is not held for ever. */
static void test_release_in_an_outage(void **state)
{
	cfs_ino_t f = make_file(test_dir("release-outage"), "f");
	struct cfs_ctx c = as_root();

	OK(cfs_meta_flock(vol.m, &c, f, 1, CFS_LOCK_WRITE, false));
	OK(plock(vol.m, f, 2, CFS_LOCK_WRITE, 0, 9));
	OK(plock(vol.m, f, 3, CFS_LOCK_WRITE, 20, 29));
	atomic_store(&engine_hooks.flock, no_flock);
	atomic_store(&engine_hooks.setlk, no_setlk);
	assert_int_equal(cfs_meta_flock(vol.m, &c, f, 1, CFS_LOCK_NONE, false), -EIO);
	assert_int_equal(plock(vol.m, f, 2, CFS_LOCK_NONE, 0, MAX), -EIO);
	assert_int_equal(plock(vol.m, f, 3, CFS_LOCK_NONE, 0, MAX), -EIO);
	cfs_locks_undo(vol.m, 1000);
	atomic_store(&engine_hooks.flock, NULL);
	atomic_store(&engine_hooks.setlk, NULL);
	assert_int_equal(cfs_meta_flock(vol.other, &c, f, 7, CFS_LOCK_WRITE, false), -EAGAIN);
	assert_int_equal(plock(vol.other, f, 7, CFS_LOCK_WRITE, 0, 9), -EAGAIN);
	/* Owner 3 has opened the file again. */
	OK(plock(vol.m, f, 3, CFS_LOCK_WRITE, 25, 35));
	cfs_locks_undo(vol.m, 1000);
	OK(cfs_meta_flock(vol.other, &c, f, 7, CFS_LOCK_WRITE, false));
	OK(plock(vol.other, f, 7, CFS_LOCK_WRITE, 0, 9));
	assert_int_equal(plock(vol.other, f, 7, CFS_LOCK_WRITE, 30, 35), -EAGAIN);
	OK(cfs_meta_flock(vol.other, &c, f, 7, CFS_LOCK_NONE, false));
	OK(plock(vol.other, f, 7, CFS_LOCK_NONE, 0, MAX));
	OK(plock(vol.m, f, 3, CFS_LOCK_NONE, 0, MAX));
}

/* The answer is lost. */
static int lost_flock(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		      uint64_t owner, enum cfs_lock_type type)
{
	OK(real_ops()->flock(e, ctx, ino, sid, owner, type));
	return -ENOTCONN;
}

static int lost_setlk(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t sid,
		      uint64_t owner, const struct cfs_plock *lock)
{
	OK(real_ops()->setlk(e, ctx, ino, sid, owner, lock));
	return -ETIMEDOUT;
}

static struct {
	_Atomic int kept, dropped;
} notes;

static void *note_unlock(void *arg, cfs_ino_t ino, uint64_t owner, bool posix)
{
	(void)arg;
	(void)ino;
	(void)owner;
	(void)posix;
	notes.kept++;
	return &notes;
}

static void drop_unlock(void *arg, void *note)
{
	(void)arg;
	assert_ptr_equal(note, &notes);
	notes.dropped++;
}

/*
 * A lock that its owner was refused for want of an answer is not held for ever. Locks that the
 * owner knows of stay.
 */
static void test_lost_answer_to_a_lock(void **state)
{
	cfs_ino_t f = make_file(test_dir("lost-lock"), "f");
	struct cfs_ctx c = as_root();

	vol.m->hooks.note_unlock = note_unlock;
	vol.m->hooks.drop_unlock = drop_unlock;
	OK(plock(vol.m, f, 3, CFS_LOCK_WRITE, 20, 29));
	atomic_store(&engine_hooks.flock, lost_flock);
	atomic_store(&engine_hooks.setlk, lost_setlk);
	assert_int_equal(cfs_meta_flock(vol.m, &c, f, 1, CFS_LOCK_WRITE, false), -EIO);
	assert_int_equal(plock(vol.m, f, 2, CFS_LOCK_WRITE, 0, 9), -EIO);
	assert_int_equal(plock(vol.m, f, 3, CFS_LOCK_WRITE, 40, 49), -EIO);
	atomic_store(&engine_hooks.flock, NULL);
	atomic_store(&engine_hooks.setlk, NULL);
	assert_int_equal(notes.kept, 2);
	assert_int_equal(notes.dropped, 0);
	assert_int_equal(cfs_meta_flock(vol.other, &c, f, 7, CFS_LOCK_WRITE, false), -EAGAIN);
	assert_int_equal(plock(vol.other, f, 7, CFS_LOCK_WRITE, 0, 9), -EAGAIN);
	cfs_locks_undo(vol.m, 1000);
	assert_int_equal(notes.dropped, 2);
	OK(cfs_meta_flock(vol.other, &c, f, 7, CFS_LOCK_WRITE, false));
	OK(plock(vol.other, f, 7, CFS_LOCK_WRITE, 0, 9));
	assert_int_equal(plock(vol.other, f, 7, CFS_LOCK_WRITE, 20, 29), -EAGAIN);
	OK(plock(vol.m, f, 3, CFS_LOCK_NONE, 0, MAX));
	OK(cfs_meta_flock(vol.other, &c, f, 7, CFS_LOCK_NONE, false));
	OK(plock(vol.other, f, 7, CFS_LOCK_NONE, 0, MAX));
	vol.m->hooks.note_unlock = NULL;
	vol.m->hooks.drop_unlock = NULL;
}

/* An unlock that a previous process has left is done once, and before the owner's next lock. */
static void test_unlock_of_a_previous_process(void **state)
{
	cfs_ino_t f = make_file(test_dir("left-unlock"), "f");
	cfs_deadline_t end = cfs_deadline_in(10000);

	notes.dropped = 0;
	vol.m->hooks.drop_unlock = drop_unlock;
	OK(plock(vol.m, f, 1, CFS_LOCK_WRITE, 0, 9));
	OK(plock(vol.m, f, 2, CFS_LOCK_WRITE, 20, 29));
	cfs_meta_unlock_again(vol.m, f, 1, true, &notes);
	OK(plock(vol.m, f, 1, CFS_LOCK_WRITE, 5, 9));
	assert_int_equal(notes.dropped, 1);
	OK(plock(vol.other, f, 7, CFS_LOCK_WRITE, 0, 4));
	assert_int_equal(plock(vol.other, f, 7, CFS_LOCK_WRITE, 5, 9), -EAGAIN);
	cfs_locks_undo(vol.m, 1000);
	assert_int_equal(plock(vol.other, f, 7, CFS_LOCK_WRITE, 5, 9), -EAGAIN);
	cfs_meta_unlock_again(vol.m, f, 2, true, &notes);
	while (notes.dropped < 2 && !cfs_deadline_passed(end)) /* the heartbeat does it, at once */
		usleep(2000);
	assert_int_equal(notes.dropped, 2);
	OK(plock(vol.other, f, 7, CFS_LOCK_WRITE, 20, 29));
	OK(plock(vol.m, f, 1, CFS_LOCK_NONE, 0, MAX));
	OK(plock(vol.other, f, 7, CFS_LOCK_NONE, 0, MAX));
	vol.m->hooks.drop_unlock = NULL;
}

static void test_no_deadlock_with_released(void **state)
{
	cfs_ino_t d = test_dir("released"), a = make_file(d, "a"), b = make_file(d, "b");
	struct cfs_plock whole = {CFS_LOCK_WRITE, 1, 0, 9};
	struct cfs_ctx c = as_root();

	between.one = (struct waiting){.m = vol.m, .ino = a, .owner = 1, .posix = true};
	between.b = b;
	OK(plock(vol.m, a, 2, CFS_LOCK_WRITE, 0, 9));
	OK(plock(vol.m, b, 1, CFS_LOCK_WRITE, 0, 9));
	atomic_store(&engine_hooks.getlk, getlk_then_change);
	OK(cfs_meta_setlk(vol.m, &c, b, 2, &whole, true));
	OK(plock(vol.m, a, 2, CFS_LOCK_NONE, 0, MAX));
	OK(finish(&between.one));
	atomic_store(&engine_hooks.getlk, NULL);
	assert_true(between.done);
	OK(plock(vol.m, a, 1, CFS_LOCK_NONE, 0, MAX));
	OK(plock(vol.m, b, 2, CFS_LOCK_NONE, 0, MAX));
}

TEST_LIST(lock, T(test_locks_of_a_removed_file_go), T(test_flock), T(test_posix),
	  T(test_posix_bytes), T(test_wait_local), T(test_wait_foreign), T(test_wait_is_shown),
	  T(test_interrupt), T(test_deadlock), T(test_no_deadlock_with_woken),
	  T(test_no_deadlock_with_released), T(test_release_in_an_outage),
	  T(test_lost_answer_to_a_lock), T(test_unlock_of_a_previous_process));
