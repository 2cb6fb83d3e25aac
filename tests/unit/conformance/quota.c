/* SPDX-License-Identifier: Apache-2.0 */
/* Limits, to the byte. A failure means that a full volume loses a write that was acknowledged. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "conformance.h"
#include "meta/quota/quota-internal.h"

enum { PAGE = 4096 };

/* As the mount judges: what is on its way to the counters included. */
static struct cfs_statfs used(void)
{
	struct cfs_ctx c = as_root();
	struct cfs_statfs st;

	OK(cfs_quotas_flush(vol.other->quotas, &c));
	OK(cfs_quotas_flush(vol.m->quotas, &c));
	OK(cfs_quotas_load(vol.m->quotas, &c));
	OK(cfs_meta_statfs(vol.m, &c, CFS_ROOT_INO, &st));
	return st;
}

static int64_t used_space(void)
{
	return (int64_t)used().used_bytes;
}

static uint64_t capacity, max_inodes;

static void limits(struct cfs_setting *s)
{
	s->capacity = capacity;
	s->inodes = max_inodes;
}

static void limit(uint64_t bytes, uint64_t inodes)
{
	struct cfs_ctx c = as_root();

	capacity = bytes;
	max_inodes = inodes;
	change_setting(limits);
	OK(cfs_quotas_load(vol.m->quotas, &c));
}

static int commit(cfs_ino_t ino, uint32_t pos, uint32_t len)
{
	struct cfs_slice s = {.pos = pos, .size = len, .len = len};
	struct cfs_ctx c = as_root();
	struct cfs_attr a;

	OK(cfs_meta_new_slice(vol.m, &c, &s.id));
	return commit_slice(vol.m, &c, ino, 0, &s, c.now, &a);
}

static void test_volume_space(void **state)
{
	cfs_ino_t d = test_dir("enospc"), f = make_file(d, "f");
	struct cfs_attr a = attr_of(f), after;
	struct cfs_ctx c = as_root();
	struct cfs_statfs st;

	limit((uint64_t)used_space() + 2 * PAGE, 0);
	OK(cfs_meta_statfs(vol.m, &c, CFS_ROOT_INO, &st));
	assert_int_equal(st.avail_bytes, 2 * PAGE);
	assert_int_equal(st.total_bytes, capacity);
	/* An empty file is charged one page already. */
	assert_int_equal(cfs_quotas_check_growth(vol.m->quotas, &c, f, &a, 0, 3 * PAGE + 1),
			 -ENOSPC);
	OK(cfs_quotas_check_growth(vol.m->quotas, &c, f, &a, 0, 3 * PAGE));
	assert_int_equal(commit(f, 0, 3 * PAGE + 1), -ENOSPC);
	OK(commit(f, 0, 3 * PAGE));
	OK(commit(f, 5, PAGE)); /* overwriting costs nothing */
	assert_int_equal(cfs_meta_truncate(vol.m, &c, f, 3 * PAGE + 1, &after), -ENOSPC);
	assert_int_equal(cfs_meta_fallocate(vol.m, &c, f, 0, 0, 3 * PAGE + 1, &after), -ENOSPC);
	OK(cfs_meta_fallocate(vol.m, &c, f, CFS_FALLOC_KEEP_SIZE, 0, 9 * PAGE, &after));
	assert_int_equal(try_make(&c, d, "g", CFS_TYPE_FILE, 0644, NULL), -ENOSPC);
	OK(cfs_meta_statfs(vol.m, &c, CFS_ROOT_INO, &st));
	assert_int_equal(st.avail_bytes, 0);
	OK(cfs_meta_truncate(vol.m, &c, f, 2 * PAGE, &after));
	OK(try_make(&c, d, "g", CFS_TYPE_FILE, 0644, NULL));
	limit(0, 0);
}

/* Without it: bytes that a write accepted are refused, and lost, when they are stored. */
static void test_promised_space(void **state)
{
	cfs_ino_t d = test_dir("promise"), f = make_file(d, "f"), g = make_file(d, "g");
	struct cfs_attr a = attr_of(f), b = attr_of(g), after;
	struct cfs_ctx c = as_root();

	limit((uint64_t)used_space() + 2 * PAGE, 0);
	OK(cfs_meta_claim_space(vol.m, &c, f, &a, 0, PAGE + 1));
	OK(cfs_meta_claim_space(vol.m, &c, g, &b, 0, 2 * PAGE));
	assert_int_equal(cfs_meta_claim_space(vol.m, &c, g, &b, 2 * PAGE, 2 * PAGE + 1), -ENOSPC);
	assert_int_equal(cfs_meta_truncate(vol.m, &c, f, 4 * PAGE, &after), -ENOSPC);
	assert_int_equal(try_make(&c, d, "h", CFS_TYPE_FILE, 0644, NULL), -ENOSPC);
	OK(commit(f, 0, PAGE + 1)); /* its own promise is no obstacle */
	assert_int_equal(cfs_meta_claim_space(vol.m, &c, f, &a, 2 * PAGE, 3 * PAGE), -ENOSPC);
	assert_int_equal(commit(f, 2 * PAGE, PAGE), -ENOSPC);
	cfs_meta_release_space(vol.m, g);
	OK(cfs_meta_claim_space(vol.m, &c, f, &a, 2 * PAGE, 3 * PAGE));
	assert_int_equal(commit(g, 0, PAGE + 1), -ENOSPC);
	OK(commit(f, 2 * PAGE, PAGE));
	cfs_meta_release_space(vol.m, f);
	cfs_meta_release_space(vol.m, f);
	assert_int_equal(commit(g, 0, PAGE + 1), -ENOSPC);
	limit(0, 0);
	OK(commit(g, 0, PAGE + 1));
	OK(cfs_meta_claim_space(vol.m, &c, g, &b, 0, 100 * PAGE));
}

static void test_volume_inodes(void **state)
{
	cfs_ino_t d = test_dir("inodes"), f = make_file(d, "f");
	struct cfs_ctx c = as_root();

	limit(0, used().used_inodes + 1);
	OK(try_make(&c, d, "g", CFS_TYPE_DIR, 0755, NULL));
	assert_int_equal(try_make(&c, d, "h", CFS_TYPE_FILE, 0644, NULL), -ENOSPC);
	OK(try_link(&c, f, d, "f2"));
	rmdir_name(d, "g");
	OK(try_make(&c, d, "h", CFS_TYPE_FILE, 0644, NULL));
	limit(0, 0);
}

static void set_quota(enum cfs_quota_kind kind, uint64_t key, int64_t space, int64_t inodes)
{
	struct cfs_quota q = {.kind = kind, .key = key, .max_space = space, .max_inodes = inodes};
	struct cfs_ctx c = as_root();

	OK(vol.m->eng->ops->put_quota(vol.m->eng, &c, &q));
	OK(cfs_quotas_load(vol.m->quotas, &c));
}

struct wanted {
	struct cfs_quota q;
	bool found;
};

static int match(void *arg, const struct cfs_quota *q)
{
	struct wanted *w = arg;

	if (q->kind != w->q.kind || q->key != w->q.key)
		return 0;
	w->q = *q;
	w->found = true;
	return 0;
}

static struct cfs_quota stored(enum cfs_quota_kind kind, uint64_t key)
{
	struct wanted w = {.q = {.kind = kind, .key = key}};
	struct cfs_ctx c = as_root();

	OK(cfs_quotas_flush(vol.m->quotas, &c));
	OK(vol.m->eng->ops->each_quota(vol.m->eng, &c, match, &w));
	assert_true(w.found);
	return w.q;
}

static void drop_quota(enum cfs_quota_kind kind, uint64_t key)
{
	struct cfs_ctx c = as_root();

	OK(vol.m->eng->ops->del_quota(vol.m->eng, &c, kind, key));
	OK(cfs_quotas_load(vol.m->quotas, &c));
}

/* Promises under a directory's limit, which is charged when the record has been made. */
static void test_promised_quota(void **state)
{
	cfs_ino_t d = test_dir("promise-quota"), f = make_file(d, "f"), g = make_file(d, "g");
	struct cfs_attr a = attr_of(f), b = attr_of(g);
	struct cfs_ctx c = as_root();

	set_quota(CFS_QUOTA_DIR, d, 4 * PAGE, 0);
	OK(cfs_meta_claim_space(vol.m, &c, f, &a, 0, 3 * PAGE));
	OK(cfs_meta_claim_space(vol.m, &c, g, &b, 0, 2 * PAGE));
	assert_int_equal(cfs_meta_claim_space(vol.m, &c, g, &b, 2 * PAGE, 4 * PAGE), -EDQUOT);
	OK(commit(f, 0, PAGE));
	OK(commit(f, PAGE, 2 * PAGE));
	assert_int_equal(cfs_meta_claim_space(vol.m, &c, g, &b, 2 * PAGE, 4 * PAGE), -EDQUOT);
	OK(cfs_meta_claim_space(vol.m, &c, g, &b, 2 * PAGE, 3 * PAGE));
	assert_int_equal(cfs_quotas_check_growth(vol.m->quotas, &c, f, &a, 3 * PAGE, 4 * PAGE),
			 -EDQUOT);
	cfs_meta_release_space(vol.m, f);
	assert_int_equal(cfs_quotas_check_growth(vol.m->quotas, &c, f, &a, 3 * PAGE, 4 * PAGE),
			 -EDQUOT);
	cfs_meta_release_space(vol.m, g);
	OK(cfs_quotas_check_growth(vol.m->quotas, &c, f, &a, 3 * PAGE, 5 * PAGE));
	assert_int_equal(cfs_quotas_check_growth(vol.m->quotas, &c, f, &a, 3 * PAGE, 6 * PAGE),
			 -EDQUOT);
	drop_quota(CFS_QUOTA_DIR, d);
}

enum { RACERS = 6, ROOM = 20 };

struct race {
	cfs_ino_t dir;
	int id, made, refused, others;
};

static void *create_files(void *arg)
{
	struct race *r = arg;
	struct cfs_entry e;
	char name[32];
	int i, rc;

	for (i = 0; i < ROOM; i++) {
		struct cfs_ctx c = as_root();

		snprintf(name, sizeof(name), "%d-%d", r->id, i);
		rc = try_make(&c, r->dir, name, CFS_TYPE_FILE, 0644, &e);
		r->made += rc == 0;
		r->refused += rc == -EDQUOT || rc == -ENOSPC;
		r->others += rc && rc != -EDQUOT && rc != -ENOSPC;
	}
	return NULL;
}

/* Threads that all see the last free inode: one gets it. */
static void race_for(cfs_ino_t d, int room)
{
	struct race r[RACERS];
	pthread_t threads[RACERS];
	int i, made = 0, refused = 0;

	for (i = 0; i < RACERS; i++) {
		r[i] = (struct race){.dir = d, .id = i};
		OK(pthread_create(&threads[i], NULL, create_files, &r[i]));
	}
	for (i = 0; i < RACERS; i++) {
		OK(pthread_join(threads[i], NULL));
		made += r[i].made;
		refused += r[i].refused;
		assert_int_equal(r[i].others, 0);
	}
	assert_int_equal(made, room);
	assert_int_equal(refused, RACERS * ROOM - room);
}

static void test_racing_creates(void **state)
{
	cfs_ino_t a = test_dir("race-dir"), b = test_dir("race-volume"), e = test_dir("race-space");
	struct cfs_ctx c = as_root();

	set_quota(CFS_QUOTA_DIR, a, 0, ROOM);
	race_for(a, ROOM);
	drop_quota(CFS_QUOTA_DIR, a);
	limit(0, used().used_inodes + ROOM);
	race_for(b, ROOM);
	limit((uint64_t)used_space() + (ROOM - 1) * PAGE + 1, 0);
	race_for(e, ROOM - 1);
	/* A failed operation holds no reservation. */
	limit((uint64_t)used_space() + PAGE, 0);
	assert_int_equal(try_make(&c, 1, "race-dir", CFS_TYPE_DIR, 0755, NULL), -EEXIST);
	assert_int_equal(try_make(&c, 1ULL << 59, "x", CFS_TYPE_FILE, 0644, NULL), -ENOENT);
	OK(try_make(&c, e, "last", CFS_TYPE_DIR, 0755, NULL));
	assert_int_equal(try_make(&c, e, "more", CFS_TYPE_DIR, 0755, NULL), -ENOSPC);
	limit(0, 0);
}

static void test_directory(void **state)
{
	cfs_ino_t d = test_dir("dir-quota"), sub, f;
	struct cfs_ctx c = as_root();
	struct cfs_statfs st;
	struct cfs_quota q;
	struct cfs_attr a;

	set_quota(CFS_QUOTA_DIR, d, 5 * PAGE, 4);
	sub = make_dir(d, "sub");
	f = make_file(sub, "f");
	OK(commit(f, 0, 3 * PAGE));
	assert_int_equal(commit(f, 0, 4 * PAGE + 1), -EDQUOT);
	a = attr_of(f);
	assert_int_equal(cfs_quotas_check_growth(vol.m->quotas, &c, f, &a, a.length, 4 * PAGE + 1),
			 -EDQUOT);
	OK(commit(f, 0, 4 * PAGE));
	assert_int_equal(try_make(&c, sub, "g", CFS_TYPE_FILE, 0644, NULL), -EDQUOT);
	OK(cfs_meta_statfs(vol.m, &c, sub, &st));
	assert_int_equal(st.total_bytes, 5 * PAGE);
	assert_int_equal(st.avail_bytes, 0);
	q = stored(CFS_QUOTA_DIR, d);
	assert_int_equal(q.used_space, 5 * PAGE);
	assert_int_equal(q.used_inodes, 2);
	unlink_name(sub, "f");
	make_file(sub, "1");
	make_file(sub, "2");
	make_file(sub, "3");
	assert_int_equal(try_make(&c, d, "4", CFS_TYPE_FILE, 0644, NULL), -EDQUOT);
	OK(try_rename(&c, sub, "1", CFS_ROOT_INO, "quota-out", 0, NULL));
	OK(try_make(&c, d, "4", CFS_TYPE_FILE, 0644, NULL));
	assert_int_equal(try_rename(&c, CFS_ROOT_INO, "quota-out", d, "5", 0, NULL), -EDQUOT);
	q = stored(CFS_QUOTA_DIR, d);
	assert_int_equal(q.used_space, 4 * PAGE);
	assert_int_equal(q.used_inodes, 4);
	drop_quota(CFS_QUOTA_DIR, d);
}

static void test_move_tree(void **state)
{
	cfs_ino_t d = test_dir("move-tree"), a = make_dir(d, "a"), b = make_dir(d, "b");
	cfs_ino_t t, f;
	struct cfs_ctx c = as_root();

	set_quota(CFS_QUOTA_DIR, a, 100 * PAGE, 0);
	set_quota(CFS_QUOTA_DIR, b, 6 * PAGE, 0);
	t = make_dir(a, "t");
	f = make_file(make_dir(t, "u"), "f");
	OK(commit(f, 0, 4 * PAGE));
	make_file(t, "g");
	assert_int_equal(stored(CFS_QUOTA_DIR, a).used_space, 7 * PAGE);
	assert_int_equal(try_rename(&c, a, "t", b, "t", 0, NULL), -EDQUOT);
	unlink_name(t, "g");
	OK(try_rename(&c, a, "t", b, "t", 0, NULL));
	assert_int_equal(stored(CFS_QUOTA_DIR, a).used_space, 0);
	assert_int_equal(stored(CFS_QUOTA_DIR, a).used_inodes, 0);
	assert_int_equal(stored(CFS_QUOTA_DIR, b).used_space, 6 * PAGE);
	assert_int_equal(stored(CFS_QUOTA_DIR, b).used_inodes, 3);
	drop_quota(CFS_QUOTA_DIR, a);
	drop_quota(CFS_QUOTA_DIR, b);
}

static void owners_on(struct cfs_setting *s)
{
	s->user_group_quota = true;
}

static void owners_off(struct cfs_setting *s)
{
	s->user_group_quota = false;
}

static void test_owners(void **state)
{
	struct cfs_ctx user = as_user(555, 666);
	cfs_ino_t d = test_dir("owner-quota");
	struct cfs_entry e = {0};
	struct cfs_quota q;
	struct cfs_attr a;

	change_setting(owners_on);
	set_quota(CFS_QUOTA_USER, 555, 3 * PAGE, 2);
	OK(try_make(&user, d, "f", CFS_TYPE_FILE, 0644, &e));
	assert_int_equal(commit(e.ino, 0, 3 * PAGE + 1), -EDQUOT);
	OK(commit(e.ino, 0, 2 * PAGE));
	OK(try_make(&user, d, "g", CFS_TYPE_FILE, 0644, NULL));
	assert_int_equal(try_make(&user, d, "h", CFS_TYPE_FILE, 0644, NULL), -EDQUOT);
	q = stored(CFS_QUOTA_USER, 555);
	assert_int_equal(q.used_space, 3 * PAGE);
	assert_int_equal(q.used_inodes, 2);
	/* rows of owners without a limit appear by themselves */
	q = stored(CFS_QUOTA_GROUP, 666);
	assert_int_equal(q.used_space, 3 * PAGE);
	assert_int_equal(q.max_space, -1);
	/* chown moves usage */
	user = as_root();
	OK(cfs_meta_setattr(vol.m, &user, e.ino, CFS_SET_UID, &(struct cfs_attr){.uid = 556}, &a));
	assert_int_equal(stored(CFS_QUOTA_USER, 555).used_space, PAGE);
	assert_int_equal(stored(CFS_QUOTA_USER, 556).used_space, 2 * PAGE);
	/* So a change of the owner is not kept back. */
	assert_int_equal(cfs_meta_keep_setattr(vol.m, &user, CFS_SET_UID,
					       &(struct cfs_attr){.uid = 557}, &a),
			 -EAGAIN);
	assert_int_equal(stored(CFS_QUOTA_GROUP, 666).used_space, 3 * PAGE);
	change_setting(owners_off);
	drop_quota(CFS_QUOTA_USER, 555);
	drop_quota(CFS_QUOTA_USER, 556);
	drop_quota(CFS_QUOTA_GROUP, 666);
}

static void *flush_often(void *arg)
{
	struct cfs_ctx c = as_root();
	atomic_bool *stop = arg;
	int rc = 0;

	while (!atomic_load(stop) && !rc) {
		c.deadline = cfs_deadline_in(10000);
		rc = cfs_quotas_flush(vol.m->quotas, &c);
	}
	return (void *)(intptr_t)rc;
}

/* Flushes at once, as the background's and an administrator's, add a change once. */
static void test_flushed_once(void **state)
{
	cfs_ino_t d = test_dir("flushed-once");
	atomic_bool stop = false;
	pthread_t threads[4];
	char name[16];
	void *rc;
	int i;

	set_quota(CFS_QUOTA_DIR, d, 1000 * PAGE, 0);
	for (i = 0; i < 4; i++)
		OK(pthread_create(&threads[i], NULL, flush_often, &stop));
	for (i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "%d", i);
		make_file(d, name);
		assert_int_equal(stored(CFS_QUOTA_DIR, d).used_inodes, i + 1);
	}
	atomic_store(&stop, true);
	for (i = 0; i < 4; i++) {
		OK(pthread_join(threads[i], &rc));
		assert_null(rc);
	}
	drop_quota(CFS_QUOTA_DIR, d);
}

static struct {
	pthread_t flusher;
	_Atomic bool flushed;
} overlap;

static void *flush_meanwhile(void *arg)
{
	struct cfs_ctx c = as_root();

	(void)arg;
	OK(cfs_quotas_flush(vol.m->quotas, &c));
	atomic_store(&overlap.flushed, true);
	return NULL;
}

/* The rows have been read: then what is pending is written to them. */
static int list_then_flush(struct cfs_engine *e, const struct cfs_ctx *ctx, cfs_engine_quota_fn fn,
			   void *arg)
{
	cfs_deadline_t end = cfs_deadline_in(300);
	int rc = real_ops()->each_quota(e, ctx, fn, arg);

	OK(pthread_create(&overlap.flusher, NULL, flush_meanwhile, NULL));
	while (!atomic_load(&overlap.flushed) && !cfs_deadline_passed(end))
		usleep(1000);
	return rc;
}

/*
 * A heartbeat that reads the limits while the flusher writes usage: the mount went by too little
 * until the next heartbeat and let more in than the limit has, or by too much.
 */
static void test_load_and_flush(void **state)
{
	cfs_ino_t d = test_dir("load-flush");
	struct cfs_ctx c = as_root();
	struct cfs_quota q;

	set_quota(CFS_QUOTA_DIR, d, 0, 3);
	make_file(d, "1");
	make_file(d, "2");
	atomic_store(&engine_hooks.each_quota, list_then_flush);
	OK(cfs_quotas_load(vol.m->quotas, &c));
	OK(pthread_join(overlap.flusher, NULL));
	atomic_store(&engine_hooks.each_quota, NULL);
	assert_true(cfs_quotas_get(vol.m->quotas, d, &q));
	assert_int_equal(q.used_inodes, 2);
	assert_int_equal(stored(CFS_QUOTA_DIR, d).used_inodes, 2);
	OK(try_make(&c, d, "3", CFS_TYPE_FILE, 0644, NULL));
	assert_int_equal(try_make(&c, d, "4", CFS_TYPE_FILE, 0644, NULL), -EDQUOT);
	drop_quota(CFS_QUOTA_DIR, d);
}

/* A server that carries out a write, does not answer, and is away until it is said to be back. */
static struct {
	_Atomic(enum away{CARRIES_OUT, AWAY, BACK}) state;
	char mark[1024];
} away;

static int add_then_away(struct cfs_engine *e, const struct cfs_ctx *ctx, const char *mark,
			 const struct cfs_quota *deltas, size_t n)
{
	switch (atomic_load(&away.state)) {
	case CARRIES_OUT:
		OK(real_ops()->add_quota_usage(e, ctx, mark, deltas, n));
		snprintf(away.mark, sizeof(away.mark), "%s", mark);
		atomic_store(&away.state, AWAY);
		return -ETIMEDOUT;
	case AWAY:
		return -ETIMEDOUT;
	default:
		/* A file is never away: its engine does not look for the mark. */
		if (strcmp(real_ops()->name, "sqlite3") == 0 && strcmp(mark, away.mark) == 0)
			return 0;
		return real_ops()->add_quota_usage(e, ctx, mark, deltas, n);
	}
}

/*
 * An outage that is longer than the deadline begins with a lost answer: the usage is stored once,
 * and a heartbeat that comes before the next flush does not count it twice.
 */
static void test_outage(void **state)
{
	cfs_ino_t d = test_dir("outage");
	struct cfs_ctx c = as_root();
	struct cfs_quota q;

	set_quota(CFS_QUOTA_DIR, d, 0, 3);
	atomic_store(&away.state, CARRIES_OUT);
	atomic_store(&engine_hooks.add_quota_usage, add_then_away);
	make_file(d, "1");
	assert_int_equal(cfs_quotas_flush(vol.m->quotas, &c), -ETIMEDOUT);
	assert_int_equal(cfs_quotas_flush(vol.m->quotas, &c), -ETIMEDOUT);
	make_file(d, "2");
	atomic_store(&away.state, BACK);
	OK(cfs_quotas_load(vol.m->quotas, &c));
	assert_true(cfs_quotas_get(vol.m->quotas, d, &q));
	assert_int_equal(q.used_inodes, 2);
	assert_int_equal(stored(CFS_QUOTA_DIR, d).used_inodes, 2);
	atomic_store(&engine_hooks.add_quota_usage, NULL);
	OK(try_make(&c, d, "3", CFS_TYPE_FILE, 0644, NULL));
	assert_int_equal(try_make(&c, d, "4", CFS_TYPE_FILE, 0644, NULL), -EDQUOT);
	drop_quota(CFS_QUOTA_DIR, d);
}

enum { OWNERS = CFS_QUOTAS_AT_ONCE + 100, FIRST_OWNER = 700000 };

/* As many files as there are owners are given to root, or (n below 0) back to them. */
static void give_files(int n)
{
	for (uint32_t i = 0; i < OWNERS; i++) {
		struct cfs_usage u = {.uid = FIRST_OWNER + i, .owner_inodes = n};

		cfs_quotas_chown(vol.m->quotas, &u, &(struct cfs_attr){.uid = 0});
	}
}

static int sum_owners(void *arg, const struct cfs_quota *q)
{
	int64_t *sum = arg;

	if (q->kind == CFS_QUOTA_USER && q->key >= FIRST_OWNER && q->key < FIRST_OWNER + OWNERS)
		*sum += q->used_inodes;
	return 0;
}

/* More owners than one write has. */
static void test_many_owners(void **state)
{
	struct cfs_ctx c = as_root();
	int64_t sum = 0;

	change_setting(owners_on);
	give_files(1);
	OK(cfs_quotas_flush(vol.m->quotas, &c));
	OK(vol.m->eng->ops->each_quota(vol.m->eng, &c, sum_owners, &sum));
	assert_int_equal(sum, -OWNERS);
	give_files(-1);
	OK(cfs_quotas_flush(vol.m->quotas, &c));
	OK(vol.m->eng->ops->each_quota(vol.m->eng, &c, sum_owners, &sum));
	assert_int_equal(sum, -OWNERS);
	change_setting(owners_off);
}

TEST_LIST(quota, T(test_volume_space), T(test_promised_space), T(test_promised_quota),
	  T(test_racing_creates), T(test_volume_inodes), T(test_directory), T(test_move_tree),
	  T(test_owners), T(test_flushed_once), T(test_load_and_flush), T(test_outage),
	  T(test_many_owners));
