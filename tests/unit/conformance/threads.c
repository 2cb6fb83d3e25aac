/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads that make and remove the same names: engines may do several of them as one. */
#include <pthread.h>
#include <stdio.h>

#include "conformance.h"

enum { THREADS = 24, NAMES = 30, DIRS = 2 };

struct worker {
	pthread_t thread;
	pthread_barrier_t *start;
	struct cfs_meta *m;
	const cfs_ino_t *dirs;
	unsigned number;
	cfs_ino_t made[NAMES], removed[NAMES]; /* of the names of all */
	unsigned wrong;
	int own; /* the first error with names that no other has */
};

static int make_name(const struct worker *w, cfs_ino_t dir, const char *name, uint32_t uid,
		     cfs_ino_t *ret)
{
	struct cfs_ctx c = as_root();
	struct cfs_mknod req = {.parent = dir,
				.name = name,
				.name_len = strlen(name),
				.type = CFS_TYPE_FILE,
				.mode = 0644};
	struct cfs_entry e = {0};
	int r;

	c.uid = uid;
	c.check = false;
	r = cfs_meta_mknod(w->m, &c, &req, &e);
	*ret = r ? 0 : e.ino;
	return r;
}

static int remove_name(const struct worker *w, cfs_ino_t dir, const char *name, cfs_ino_t *ret)
{
	struct cfs_removed removed = {0};
	struct cfs_ctx c = as_root();
	int r = cfs_meta_unlink(w->m, &c, dir, name, strlen(name), 0, &removed);

	*ret = r ? 0 : removed.ino;
	return r;
}

static void own_name(struct worker *w, cfs_ino_t dir, int i)
{
	/* Databases whose owners have 31 bits refuse that one, and must not refuse others for it.
	 */
	uint32_t uid = w->number ? 0 : 3000000000;
	char name[32];
	cfs_ino_t ino;
	int r;

	snprintf(name, sizeof(name), "own%u.%d", w->number, i);
	r = make_name(w, dir, name, uid, &ino);
	if (r == -EINVAL && uid)
		return;
	if (!r)
		r = remove_name(w, dir, name, &ino);
	if (!w->own)
		w->own = r;
}

/* Two by two they begin with the same name. */
static int at(const struct worker *w, int i)
{
	return (i + (int)w->number / 2 * 5) % NAMES;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	char name[32];

	pthread_barrier_wait(w->start);
	for (int i = 0; i < NAMES; i++) {
		int n = at(w, i);

		snprintf(name, sizeof(name), "name%d", n);
		w->wrong += make_name(w, w->dirs[n % DIRS], name, 0, &w->made[n]) !=
			    (w->made[n] ? 0 : -EEXIST);
		own_name(w, w->dirs[n % DIRS], n);
	}
	pthread_barrier_wait(w->start);
	for (int i = 0; i < NAMES; i++) {
		int n = at(w, i);

		snprintf(name, sizeof(name), "name%d", n);
		w->wrong += remove_name(w, w->dirs[n % DIRS], name, &w->removed[n]) !=
			    (w->removed[n] ? 0 : -ENOENT);
	}
	return NULL;
}

/* A create that succeeds is the only one, and a later removal removes its file. */
static void check_winners(const struct worker *w)
{
	for (int i = 0; i < NAMES; i++) {
		cfs_ino_t made = 0, removed = 0;

		for (int k = 0; k < THREADS; k++) {
			assert_true(!made || !w[k].made[i]);
			assert_true(!removed || !w[k].removed[i]);
			made += w[k].made[i];
			removed += w[k].removed[i];
		}
		assert_true(made);
		assert_true(made == removed);
	}
}

static void race(const char *top)
{
	cfs_ino_t dir = test_dir(top), dirs[DIRS] = {make_dir(dir, "a"), make_dir(dir, "b")};
	struct worker *w = calloc(THREADS, sizeof(*w));
	struct cfs_ctx c = as_root();
	pthread_barrier_t start;

	assert_non_null(w);
	OK(pthread_barrier_init(&start, NULL, THREADS));
	for (unsigned k = 0; k < THREADS; k++) {
		w[k] = (struct worker){
			.start = &start, .m = k % 4 ? vol.m : vol.other, .dirs = dirs, .number = k};
		OK(pthread_create(&w[k].thread, NULL, work, &w[k]));
	}
	for (int k = 0; k < THREADS; k++)
		OK(pthread_join(w[k].thread, NULL));
	for (int k = 0; k < THREADS; k++) {
		assert_int_equal(w[k].own, 0);
		assert_int_equal(w[k].wrong, 0);
	}
	check_winners(w);
	rmdir_name(dir, "a");
	rmdir_name(dir, "b");
	OK(cfs_quotas_flush(vol.other->quotas, &c));
	OK(pthread_barrier_destroy(&start));
	free(w);
}

static void test_same_names(void **state)
{
	race("together");
}

static void test_same_names_with_trash(void **state)
{
	change_setting(trash_on);
	race("together-trash");
}

TEST_LIST(thread, T(test_same_names), T(test_same_names_with_trash));
