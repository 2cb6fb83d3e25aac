/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closes that do not wait for the commit. When these fail, other mounts see a file before one that
 * was closed earlier, a close waits for ever or too long, or nobody hears of lost bytes.
 */
#include <errno.h>
#include <string.h>

#include "data/data-internal.h"
#include "data_fixture.h"

#define NONE 77 /* the close has not ended */

/* A closed file: its length tells it from others in the object store. */
struct closed {
	struct cfs_file *f;
	_Atomic int err;
};

static void ended(void *arg, int err)
{
	struct closed *c = arg;

	assert_int_equal(atomic_exchange(&c->err, err), NONE);
}

static int close_later(struct closed *c, cfs_deadline_t deadline)
{
	struct cfs_ctx cx = ctx();

	cx.deadline = deadline;
	atomic_store(&c->err, NONE);
	return cfs_file_flush_later(c->f, &cx, cfs_file_err_seq(c->f), ended, c);
}

/* Inode ino with so many bytes, closed. */
static struct closed closed_file(struct volume *v, cfs_ino_t ino, const char *bytes)
{
	struct closed c = {.f = open_file(v, ino)};

	assert_int_equal(write_at(c.f, 0, bytes, strlen(bytes)), 0);
	return c;
}

static size_t records(struct volume *v, cfs_ino_t ino)
{
	size_t n;

	pthread_mutex_lock(&v->meta.lock);
	n = v->meta.chunk[ino][0].n;
	pthread_mutex_unlock(&v->meta.lock);
	return n;
}

static struct volume *watched;
static _Atomic bool overtaken;

/* After each commit. */
static void look_at_order(void *arg)
{
	if (records(watched, 2) && !records(watched, 1))
		atomic_store(&overtaken, true);
}

/* Without it: another mount sees the second file, and an empty first one. */
static void files_are_committed_in_the_order_of_their_closes(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct closed a, b, c;

	watched = v;
	atomic_store(&overtaken, false);
	v->meta.applied = look_at_order;
	set_closed_bytes(&v->object, 5);
	a = closed_file(v, 1, "first");
	b = closed_file(v, 2, "2nd");
	c = closed_file(v, 3, "other");
	assert_int_equal(close_later(&a, soon()), 1);
	assert_int_equal(close_later(&b, soon()), 1);
	/* Its block is stored meanwhile: only the commit waits. */
	WAIT_FOR(objects(v) == 1);
	assert_int_equal(data_metric(v, "data_closing_files"), 2);
	set_closed_bytes(&v->object, 0);
	assert_int_equal(cfs_data_await_closed(v->data, soon()), 0);
	assert_int_equal(a.err, 0);
	assert_int_equal(b.err, 0);
	assert_false(overtaken);
	assert_int_equal(records(v, 2), 1);
	assert_int_equal(data_metric(v, "data_closing_files"), 0);
	/* Nothing is left: the close has nothing to wait for. */
	assert_int_equal(close_later(&b, soon()), 0);
	assert_int_equal(flush(c.f), 0);
	cfs_file_put(a.f);
	cfs_file_put(b.f);
	cfs_file_put(c.f);
	assert_int_equal(volume_free(v), 0);
}

/* Without it: fsync of one file waits for others, whose bytes may not be stored for long. */
static void a_file_that_is_waited_for_leaves_the_order(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct closed a, b;

	set_closed_bytes(&v->object, 5);
	a = closed_file(v, 1, "first");
	b = closed_file(v, 2, "2nd");
	assert_int_equal(close_later(&a, soon()), 1);
	assert_int_equal(close_later(&b, soon()), 1);
	assert_int_equal(flush(b.f), 0);
	assert_int_equal(records(v, 2), 1);
	assert_int_equal(records(v, 1), 0);
	set_closed_bytes(&v->object, 0);
	assert_int_equal(cfs_data_await_closed(v->data, soon()), 0);
	assert_int_equal(b.err, 0);
	cfs_file_put(a.f);
	cfs_file_put(b.f);
	assert_int_equal(volume_free(v), 0);
}

/* Without it: the bytes are gone, and no fsync tells. */
static void an_error_ends_the_turn_of_its_file_only(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct closed a, b;

	set_closed(&v->object, true);
	a = closed_file(v, 1, "first");
	b = closed_file(v, 2, "2nd");
	v->meta.fail_error = -ENOSPC;
	v->meta.fail_commits = 1;
	assert_int_equal(close_later(&a, soon()), 1);
	assert_int_equal(close_later(&b, soon()), 1);
	set_closed(&v->object, false);
	assert_int_equal(cfs_data_await_closed(v->data, soon()), 0);
	assert_int_equal(a.err, -ENOSPC);
	assert_int_equal(b.err, 0);
	assert_int_equal(records(v, 1), 0);
	assert_int_equal(records(v, 2), 1);
	cfs_file_put(a.f);
	cfs_file_put(b.f);
	assert_int_equal(volume_free(v), 0);
}

static int fsync_of_now;

/* Until it returns, nobody else knows of the loss. */
static void sync_meanwhile(void *arg, int err)
{
	struct closed *c = arg;
	uint32_t err_seq = cfs_file_err_seq(c->f);
	struct cfs_ctx cx = ctx();

	fsync_of_now = cfs_file_fsync(c->f, &cx, &err_seq);
	ended(arg, err);
}

/* Without it: fsync by a handle that was opened after the failure promises bytes that are lost. */
static void a_loss_is_known_until_it_is_told(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct cfs_ctx cx = ctx();
	struct closed a;

	set_closed(&v->object, true);
	a = closed_file(v, 1, "first");
	v->meta.fail_error = -ENOSPC;
	v->meta.fail_commits = 1;
	atomic_store(&a.err, NONE);
	cx.deadline = soon();
	assert_int_equal(cfs_file_flush_later(a.f, &cx, 0, sync_meanwhile, &a), 1);
	set_closed(&v->object, false);
	assert_int_equal(cfs_data_await_closed(v->data, soon()), 0);
	assert_int_equal(a.err, -ENOSPC);
	assert_int_equal(fsync_of_now, -ENOSPC);
	assert_int_equal(flush(a.f), 0);
	cfs_file_put(a.f);
	assert_int_equal(volume_free(v), 0);
}

/* Without it: a block that cannot be stored keeps all later files from other mounts. */
static void a_block_that_is_late_holds_up_nobody(void **state)
{
	struct volume *v =
		volume_new((struct options){.io_timeout_ms = 200, .put_timeout_ms = 100});
	struct closed a, b;

	set_closed_bytes(&v->object, 5);
	a = closed_file(v, 1, "first");
	b = closed_file(v, 2, "2nd");
	assert_int_equal(close_later(&a, soon()), 1);
	assert_int_equal(close_later(&b, soon()), 1);
	assert_int_equal(cfs_data_await_closed(v->data, soon()), 0);
	assert_int_equal(a.err, -EIO);
	assert_int_equal(b.err, 0);
	assert_int_equal(records(v, 2), 1);
	/* The bytes are kept, and stored when that is possible again. */
	set_closed_bytes(&v->object, 0);
	WAIT_FOR(records(v, 1) == 1);
	cfs_file_put(a.f);
	cfs_file_put(b.f);
	assert_int_equal(volume_free(v), 0);
}

/* Without it: closes of small files take memory without bound. */
static void closes_wait_when_many_files_wait(void **state)
{
	struct volume *v = volume_new((struct options){0}); /* two files */
	struct closed a, b, c;

	set_closed(&v->object, true);
	a = closed_file(v, 1, "first");
	b = closed_file(v, 2, "2nd");
	c = closed_file(v, 3, "third");
	assert_int_equal(close_later(&a, soon()), 1);
	assert_int_equal(close_later(&b, soon()), 1);
	assert_int_equal(close_later(&c, cfs_deadline_in(1)), -EIO);
	assert_int_equal(c.err, NONE);
	set_closed(&v->object, false);
	assert_int_equal(close_later(&c, soon()), 1);
	assert_int_equal(cfs_data_await_closed(v->data, soon()), 0);
	assert_int_equal(c.err, 0);
	cfs_file_put(a.f);
	cfs_file_put(b.f);
	cfs_file_put(c.f);
	assert_int_equal(volume_free(v), 0);
}

/* Without it: two closes of a file end in one, or bytes of the second are seen too early. */
static void a_second_close_waits_for_the_first(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct closed a, again;
	char buf[8];

	set_closed(&v->object, true);
	a = closed_file(v, 1, "first");
	assert_int_equal(close_later(&a, soon()), 1);
	again.f = a.f;
	/* Another descriptor of the same bytes is closed: they wait already. */
	assert_int_equal(close_later(&again, soon()), 0);
	assert_int_equal(write_at(a.f, 5, "2nd", 3), 0);
	assert_int_equal(read_at(a.f, 0, buf, 8), 8);
	assert_memory_equal(buf, "first2nd", 8);
	assert_int_equal(close_later(&again, cfs_deadline_in(1)), -EIO);
	set_closed(&v->object, false);
	assert_int_equal(close_later(&again, soon()), 1);
	assert_int_equal(cfs_data_await_closed(v->data, soon()), 0);
	assert_int_equal(a.err, 0);
	assert_int_equal(again.err, 0);
	assert_int_equal(records(v, 1), 2);
	cfs_file_put(a.f);
	assert_int_equal(volume_free(v), 0);
}

/* Without it: a mount whose object store is gone never ends, or ends with a success. */
static void the_end_of_a_mount_waits_with_a_bound(void **state)
{
	struct volume *v =
		volume_new((struct options){.io_timeout_ms = 100, .put_timeout_ms = 5000});
	struct closed a, b;

	set_closed_bytes(&v->object, 5);
	a = closed_file(v, 1, "first");
	b = closed_file(v, 2, "2nd");
	assert_int_equal(close_later(&a, soon()), 1);
	assert_int_equal(close_later(&b, soon()), 1);
	cfs_data_end_closed(v->data);
	assert_int_equal(a.err, -EIO);
	assert_int_not_equal(b.err, NONE);
	set_closed_bytes(&v->object, 0);
	cfs_file_put(a.f);
	cfs_file_put(b.f);
	volume_free(v);
}

static unsigned puts_that_wait(struct volume *v)
{
	unsigned n;

	pthread_mutex_lock(&v->object.lock);
	n = v->object.waiting;
	pthread_mutex_unlock(&v->object.lock);
	return n;
}

static void *store_all(void *arg)
{
	struct volume *v = arg;

	assert_int_equal(cfs_data_store(v->data, soon()), 0);
	return NULL;
}

/* Without it: an upgrade stores one open file after the other, and has no time for all of them. */
static void all_files_are_stored_at_a_time(void **state)
{
	struct volume *v =
		volume_new((struct options){.flush_idle_ms = 3600000, .flush_age_ms = 3600000});
	struct cfs_ctx cx = ctx();
	struct closed f[3];
	pthread_t thread;
	unsigned i;

	set_closed(&v->object, true);
	for (i = 0; i < 3; i++)
		f[i] = closed_file(v, i + 1, "bytes");
	/* The close of this one has not waited long enough: no handle has it any more. */
	cx.deadline = cfs_deadline_in(1);
	assert_int_equal(cfs_file_flush(f[2].f, &cx, cfs_file_err_seq(f[2].f)), -EIO);
	cfs_file_put(f[2].f);
	assert_int_equal(pthread_create(&thread, NULL, store_all, v), 0);
	WAIT_FOR(puts_that_wait(v) == 3);
	assert_int_equal(cfs_data_store(v->data, cfs_deadline_in(1)), -EIO);
	set_closed(&v->object, false);
	pthread_join(thread, NULL);
	for (i = 0; i < 3; i++)
		assert_int_equal(records(v, i + 1), 1);
	cfs_file_put(f[0].f);
	cfs_file_put(f[1].f);
	assert_int_equal(volume_free(v), 0);
}

/* Without it: an upgrade lets another mount see the second file, and an empty first one. */
static void closed_files_are_stored_in_their_order(void **state)
{
	struct volume *v = volume_new((struct options){0});
	struct closed a, b;

	set_closed_bytes(&v->object, 5);
	a = closed_file(v, 1, "first");
	b = closed_file(v, 2, "2nd");
	assert_int_equal(close_later(&a, soon()), 1);
	assert_int_equal(close_later(&b, soon()), 1);
	WAIT_FOR(objects(v) == 1);
	assert_int_equal(cfs_data_store(v->data, cfs_deadline_in(10)), -EIO);
	assert_int_equal(records(v, 2), 0);
	set_closed_bytes(&v->object, 0);
	assert_int_equal(cfs_data_store(v->data, soon()), 0);
	assert_int_equal(records(v, 1), 1);
	assert_int_equal(records(v, 2), 1);
	cfs_file_put(a.f);
	cfs_file_put(b.f);
	assert_int_equal(volume_free(v), 0);
}

/* ---- group commit ---- */

enum { GROUP = 6 };

struct group {
	struct volume *v;
	struct closed file[GROUP + 1]; /* by inode, from 1 */
	_Atomic bool overtaken;
	cfs_ino_t refused;
	bool alone;    /* the third is in no group */
	bool ages;     /* ... since gc may remove its block when it is in one */
	bool replaces; /* ... since it replaces stored bytes */
};

static bool is_ready(struct cfs_file *f)
{
	const struct cfs_wslice *s;
	bool ready;

	pthread_mutex_lock(&f->lock);
	s = TAILQ_FIRST(&f->slices);
	ready = f->closing && s->tailed && !s->puts;
	pthread_mutex_unlock(&f->lock);
	return ready;
}

static void age(struct cfs_file *f)
{
	TAILQ_FIRST(&f->slices)->born.boot_ms -= CFS_GC_AGE_MS;
}

static void group_that_ages(struct volume *v, struct cfs_file *f)
{
	struct cfs_group_commit one;

	pthread_mutex_lock(&f->lock);
	assert_true(cfs_group_take(f, UINT64_MAX, &one));
	age(f);
	pthread_mutex_unlock(&f->lock);
	cfs_group_commit(v->data, &one, 1);
}

/* The others are ready before the commit of the first file ends. */
static void wait_for_others(void *arg, const struct cfs_commit *c)
{
	struct group *g = arg;

	for (cfs_ino_t i = 2; i <= GROUP && c->ino == 1; i++)
		WAIT_FOR(is_ready(g->file[i].f));
	if (c->ino == 1 && g->ages)
		group_that_ages(g->v, g->file[3].f);
}

static void look_at_group(void *arg)
{
	struct group *g = arg;

	for (cfs_ino_t i = 1; i < GROUP; i++)
		if (records(g->v, i + 1) && !records(g->v, i) && i != g->refused)
			atomic_store(&g->overtaken, true);
}

static void group_new(struct group *g)
{
	g->v = volume_new((struct options){.max_closing = GROUP});
	g->v->meta.attr[3].length = g->replaces ? 100 : 0;
	g->v->meta.begins = wait_for_others;
	g->v->meta.applied = look_at_group;
	g->v->meta.begins_arg = g->v->meta.applied_arg = g;
	for (cfs_ino_t i = 1; i <= GROUP; i++)
		g->file[i] = closed_file(g->v, i, "bytes");
}

/* All files but one are stored, each once. */
static void group_ends(struct group *g, cfs_ino_t refused, int err)
{
	unsigned grouped = 0;

	g->refused = refused;
	for (cfs_ino_t i = 1; i <= GROUP; i++)
		assert_int_equal(close_later(&g->file[i], soon()), 1);
	assert_int_equal(cfs_data_await_closed(g->v->data, soon()), 0);
	assert_false(g->overtaken);
	for (cfs_ino_t i = 1; i <= GROUP; i++) {
		assert_int_equal(g->file[i].err, i == refused ? err : 0);
		assert_int_equal(records(g->v, i), i != refused);
		assert_int_equal(flush(g->file[i].f), 0);
		cfs_file_put(g->file[i].f);
		grouped += g->v->meta.in_group[i];
	}
	assert_true(grouped > 1);
	assert_false(g->v->meta.in_group[1]);
	assert_false(g->alone && g->v->meta.in_group[3]);
	assert_int_equal(volume_free(g->v), 0);
}

/* Without it: many writers of small files wait for a round trip of each. */
static void files_that_are_ready_are_committed_in_a_group(void **state)
{
	struct group g = {0};

	group_new(&g);
	group_ends(&g, 0, 0);
}

/* Without it: the file of one program loses what another one has met. */
static void an_error_of_a_group_is_of_its_file(void **state)
{
	struct group g = {0};

	group_new(&g);
	g.v->meta.fail_ino = 3;
	g.v->meta.fail_error = -ENOSPC;
	g.v->meta.fail_commits = 1;
	group_ends(&g, 3, -ENOSPC);
}

/* Without it: bytes are lost, or are there twice, when the database was away for a moment. */
static void a_group_of_which_a_commit_may_succeed_goes_on_behind_it(void **state)
{
	for (int applied = 0; applied < 2; applied++) {
		struct group g = {0};

		group_new(&g);
		g.v->meta.fail_ino = 3;
		g.v->meta.fail_error = -EIO;
		g.v->meta.fail_applied = applied;
		g.v->meta.fail_commits = 2;
		group_ends(&g, 0, 0);
	}
}

/* Without it: blocks that gc has removed on another machine are named, and fsync says 0. */
static void a_slice_that_gc_may_have_removed_is_in_no_group(void **state)
{
	struct group g = {.alone = true};

	group_new(&g);
	pthread_mutex_lock(&g.file[3].f->lock);
	age(g.file[3].f);
	pthread_mutex_unlock(&g.file[3].f->lock);
	group_ends(&g, 0, 0);
	g = (struct group){.alone = true, .ages = true};
	group_new(&g);
	group_ends(&g, 0, 0);
}

/* Without it: a power failure takes bytes that fsync has promised. */
static void one_that_replaces_stored_bytes_is_in_no_group(void **state)
{
	struct group g = {.alone = true, .replaces = true};

	group_new(&g);
	group_ends(&g, 0, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_are_committed_in_the_order_of_their_closes),
		cmocka_unit_test(a_file_that_is_waited_for_leaves_the_order),
		cmocka_unit_test(an_error_ends_the_turn_of_its_file_only),
		cmocka_unit_test(a_loss_is_known_until_it_is_told),
		cmocka_unit_test(a_block_that_is_late_holds_up_nobody),
		cmocka_unit_test(closes_wait_when_many_files_wait),
		cmocka_unit_test(a_second_close_waits_for_the_first),
		cmocka_unit_test(the_end_of_a_mount_waits_with_a_bound),
		cmocka_unit_test(all_files_are_stored_at_a_time),
		cmocka_unit_test(closed_files_are_stored_in_their_order),
		cmocka_unit_test(files_that_are_ready_are_committed_in_a_group),
		cmocka_unit_test(an_error_of_a_group_is_of_its_file),
		cmocka_unit_test(a_group_of_which_a_commit_may_succeed_goes_on_behind_it),
		cmocka_unit_test(a_slice_that_gc_may_have_removed_is_in_no_group),
		cmocka_unit_test(one_that_replaces_stored_bytes_is_in_no_group),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
