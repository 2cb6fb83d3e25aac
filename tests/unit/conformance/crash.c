/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that is killed in the middle of anything: the volume must be whole afterwards. The
 * child tells its parent of each finished operation; the parent kills it after a random number of
 * them.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conformance.h"
#include "meta/api/jobs.h"

enum { ROUNDS = 8, NAMES = 12, MAX_OPS = 400 };
enum { STORM_THREADS = 4, STORM_OPS = 1000 };

/* ---- random operations ---- */

static struct cfs_meta *mount_child(const char *url)
{
	struct cfs_meta_conf conf = {.heartbeat_ms = 60000, .no_bgjob = true};
	struct cfs_setting *s;
	struct cfs_meta *m;
	char err[256];

	if (cfs_meta_open(url, &conf, &m, err) || cfs_meta_load(m, &s, err) ||
	    cfs_meta_start(m, NULL))
		_exit(3);
	cfs_setting_free(s);
	return m;
}

static cfs_ino_t entry_of(struct cfs_meta *m, cfs_ino_t dir, const char *name)
{
	struct cfs_ctx c = as_root();
	struct cfs_entry e;

	return cfs_meta_lookup(m, &c, dir, name, strlen(name), &e) ? 0 : e.ino;
}

static void random_write(struct cfs_meta *m, cfs_ino_t ino, unsigned *seed)
{
	struct cfs_slice s = {.pos = (uint32_t)rand_r(seed) % 100000,
			      .len = 1 + (uint32_t)rand_r(seed) % 9999};
	struct cfs_ctx c = as_root();
	struct cfs_attr a;

	s.size = s.len;
	if (!cfs_meta_new_slice(m, &c, &s.id))
		commit_slice(m, &c, ino, (uint32_t)rand_r(seed) % 3, &s, c.now, &a);
}

/* The files of a directory that the caller has closed. */
static void random_group(struct cfs_meta *m, cfs_ino_t dir, unsigned *seed)
{
	struct cfs_commit v[NAMES] = {0}, *commits[NAMES];
	struct cfs_ctx c = as_root();
	size_t n = 0, k;
	int err[NAMES];
	char name[8];

	for (int i = 0; i < NAMES; i++) {
		snprintf(name, sizeof(name), "n%d", (i + rand_r(seed)) % NAMES);
		v[n].ino = entry_of(m, dir, name);
		v[n].slice.pos = (uint32_t)rand_r(seed) % 100000;
		v[n].slice.len = v[n].slice.size = 1 + (uint32_t)rand_r(seed) % 9999;
		v[n].indx = (uint32_t)rand_r(seed) % 3;
		v[n].mtime = c.now;
		for (k = 0; k < n && v[k].ino != v[n].ino; k++)
			;
		commits[n] = &v[n];
		if (v[n].ino && k == n && !cfs_meta_new_slice(m, &c, &v[n].slice.id))
			n++;
	}
	cfs_meta_commit_group(m, &c, commits, n, err);
}

/* Errors are part of it: names are there or not, directories full or not. */
static void random_op(struct cfs_meta *m, const cfs_ino_t dirs[3], unsigned *seed)
{
	char a[8], b[8];
	cfs_ino_t d = dirs[rand_r(seed) % 3], d2 = dirs[rand_r(seed) % 3], ino, ino2;
	struct cfs_mknod make = {.parent = d, .name = a, .mode = 0644, .type = CFS_TYPE_FILE};
	struct cfs_rename move = {.src_parent = d, .dst_parent = d2, .src_name = a, .dst_name = b};
	struct cfs_copy_range copy = {0};
	struct cfs_ctx c = as_root();
	struct cfs_renamed renamed;
	struct cfs_removed removed;
	struct cfs_entry e;
	struct cfs_attr attr;
	uint64_t copied;

	make.name_len = (size_t)snprintf(a, sizeof(a), "n%d", rand_r(seed) % NAMES);
	move.src_len = make.name_len;
	move.dst_len = (size_t)snprintf(b, sizeof(b), "n%d", rand_r(seed) % NAMES);
	ino = entry_of(m, d, a);
	switch (rand_r(seed) % 11) {
	case 0:
	case 1:
		cfs_meta_mknod(m, &c, &make, &e);
		break;
	case 2:
		make.type = CFS_TYPE_DIR;
		cfs_meta_mknod(m, &c, &make, &e);
		break;
	case 3:
		cfs_meta_unlink(m, &c, d, a, make.name_len, 0, &removed);
		break;
	case 4:
		cfs_meta_rmdir(m, &c, d, a, make.name_len, 0, &removed);
		break;
	case 5:
		if (rand_r(seed) % 4 == 0)
			move.flags = CFS_RENAME_EXCHANGE;
		cfs_meta_rename(m, &c, &move, &renamed);
		break;
	case 6:
		if (ino)
			cfs_meta_link(m, &c, ino, d2, b, move.dst_len, &attr);
		break;
	case 7:
		if (ino)
			cfs_meta_truncate(m, &c, ino, (uint64_t)rand_r(seed) % 200000, &attr);
		break;
	case 8:
		ino2 = entry_of(m, d2, b);
		copy = (struct cfs_copy_range){ino, ino2, 100, 5000, 20000};
		if (ino && ino2)
			cfs_meta_copy_range(m, &c, &copy, &copied, &attr);
		break;
	case 9:
		if (ino)
			random_write(m, ino, seed);
		break;
	case 10:
		random_group(m, d, seed);
		break;
	}
}

void crash_child(const char *url, unsigned seed)
{
	struct cfs_meta *m = mount_child(url);
	cfs_ino_t top = entry_of(m, CFS_ROOT_INO, "crash");
	cfs_ino_t dirs[3] = {top, entry_of(m, top, "d1"), entry_of(m, top, "d2")};

	if (!dirs[1] || !dirs[2])
		_exit(4);
	for (;;) {
		random_op(m, dirs, &seed);
		if (write(STDOUT_FILENO, ".", 1) != 1)
			_exit(5);
	}
}

/* ---- the parent ---- */

static void run_and_kill(unsigned seed, unsigned ops)
{
	int fds[2], status;
	char text[16], byte;
	pid_t pid;

	OK(pipe(fds));
	snprintf(text, sizeof(text), "%u", seed);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(fds[1], STDOUT_FILENO);
		close(fds[0]);
		close(fds[1]);
		execl("/proc/self/exe", "meta-conformance", "--crash-child", vol.url, text,
		      (char *)NULL);
		_exit(6);
	}
	close(fds[1]);
	while (ops-- && read(fds[0], &byte, 1) == 1)
		;
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(fds[0]);
	if (!WIFSIGNALED(status))
		fail_msg("the child ended by itself: status %d", WEXITSTATUS(status));
}

struct others {
	uint64_t v[16];
	size_t n;
};

static int note_other(void *arg, const struct cfs_session *s)
{
	struct others *o = arg;

	if (s->sid != cfs_meta_sid(vol.m) && s->sid != cfs_meta_sid(vol.other) && o->n < 16)
		o->v[o->n++] = s->sid;
	return 0;
}

static void clean_dead_sessions(void)
{
	struct others dead = {0};
	struct cfs_ctx c = as_root();

	OK(cfs_meta_each_session(vol.m, &c, note_other, &dead));
	assert_int_equal(dead.n, 1);
	OK(vol.m->eng->ops->clean_session(vol.m->eng, &c, dead.v[0], INT64_MAX));
}

struct delfile {
	cfs_ino_t ino;
	uint64_t length;
};
struct delfiles {
	struct delfile v[MAX_OPS];
	size_t n;
};

static int note_delfile(void *arg, cfs_ino_t ino, uint64_t length, int64_t when_s)
{
	struct delfiles *d = arg;

	(void)when_s;
	if (d->n < MAX_OPS)
		d->v[d->n++] = (struct delfile){ino, length};
	return 0;
}

/* The child's deletions, which the hourly job would find. */
static void finish_deletions(void)
{
	struct delfiles *d = calloc(1, sizeof(*d));
	struct cfs_ctx c = as_root();
	size_t i;

	assert_non_null(d);
	OK(vol.m->eng->ops->each_delfile(vol.m->eng, &c, c.now.tv_sec + 60, MAX_OPS, note_delfile,
					 d));
	for (i = 0; i < d->n; i++) {
		cfs_jobs_delete_file(vol.m, d->v[i].ino, d->v[i].length);
		if (i % 50 == 49)
			sched_yield();
	}
	free(d);
}

/* Engines whose usage is batched lose what a killed client had not written yet. */
static void repair_usage(void)
{
	struct cfs_ctx c = as_root();
	struct cfs_sums s;

	if (vol.m->eng->ops->inline_usage)
		return;
	OK(cfs_quotas_flush(vol.m->quotas, &c));
	OK(cfs_quotas_flush(vol.other->quotas, &c));
	OK(cfs_meta_check_usage(vol.m, &c, &s));
	OK(cfs_meta_add_usage(vol.m, &c, s.space - s.counted_space, s.inodes - s.counted_inodes));
}

/* A server may carry out the last request of a killed client while the others mend what it left. */
static void mend(void)
{
	cfs_deadline_t end = cfs_deadline_in(20000);
	int damage;

	do {
		finish_deletions();
		repair_usage();
		damage = volume_damage(vol.m);
	} while (damage && !cfs_deadline_passed(end));
	assert_int_equal(damage, 0);
}

static void test_kill(void **state)
{
	cfs_ino_t top = test_dir("crash");
	unsigned round, seed = (unsigned)getpid();

	make_dir(top, "d1");
	make_dir(top, "d2");
	print_message("crash seed %u\n", seed);
	srand(seed);
	for (round = 0; round < ROUNDS; round++) {
		run_and_kill(seed + round, 1 + (unsigned)rand() % MAX_OPS);
		clean_dead_sessions();
		mend();
	}
}

/* ---- many at once ---- */

struct storm {
	pthread_t thread;
	struct cfs_meta *m;
	const cfs_ino_t *dirs;
	unsigned seed;
};

static void *storm(void *arg)
{
	struct storm *s = arg;
	int i;

	for (i = 0; i < STORM_OPS; i++)
		random_op(s->m, s->dirs, &s->seed);
	return NULL;
}

/* Threads of two mounts in three directories, on the same few names. */
static void test_storm(void **state)
{
	cfs_ino_t top = test_dir("storm");
	const cfs_ino_t dirs[3] = {top, make_dir(top, "d1"), make_dir(top, "d2")};
	struct storm threads[STORM_THREADS];
	unsigned i, seed = (unsigned)getpid();
	struct cfs_ctx c;

	print_message("storm seed %u\n", seed);
	for (i = 0; i < STORM_THREADS; i++) {
		threads[i] = (struct storm){
			.m = i % 2 ? vol.other : vol.m, .dirs = dirs, .seed = seed + i};
		OK(pthread_create(&threads[i].thread, NULL, storm, &threads[i]));
	}
	for (i = 0; i < STORM_THREADS; i++)
		OK(pthread_join(threads[i].thread, NULL));
	finish_deletions();
	c = as_root(); /* its deadline begins here */
	OK(cfs_quotas_flush(vol.other->quotas, &c));
}

struct emptying {
	cfs_ino_t dir;
	char names[64][CFS_NAME_MAX + 1];
	uint8_t types[64];
	size_t n;
};

static int note_entry(void *arg, const struct cfs_dirent *e)
{
	struct emptying *k = arg;

	if (k->n == 64)
		return 1;
	memcpy(k->names[k->n], e->name, e->name_len);
	k->names[k->n][e->name_len] = '\0';
	k->types[k->n++] = e->type;
	return 0;
}

static void remove_tree(cfs_ino_t dir)
{
	struct emptying *k = calloc(1, sizeof(*k));
	size_t i, left;

	assert_non_null(k);
	do {
		struct cfs_cursor cursor = {0};
		struct cfs_ctx c = as_root();
		int rc;

		k->n = 0;
		assert_true(cfs_meta_readdir(vol.m, &c, dir, false, 64, &cursor, note_entry, k) >=
			    0);
		left = k->n;
		for (i = 0; i < k->n; i++) {
			if (k->types[i] == CFS_TYPE_DIR) {
				remove_tree(find(dir, k->names[i]));
				c = as_root();
				rc = try_rmdir(&c, dir, k->names[i]);
				/* Hours of the trash that are in use stay, empty. */
				if (dir == CFS_TRASH_INO && rc == -EBUSY)
					left--;
				else
					OK(rc);
			} else {
				unlink_name(dir, k->names[i]);
			}
		}
		wait_deletions();
	} while (left);
	free(k);
}

static int take_slice(void *arg, uint64_t id, uint32_t size)
{
	return 0;
}

static int count_row(void *arg, const struct cfs_row *row)
{
	++*(size_t *)arg;
	return 0;
}

/* Every reference given out was taken back: nothing is left when everything is deleted. */
static void test_nothing_left(void **state)
{
	struct cfs_engine *e = vol.m->eng;
	struct cfs_ctx c = as_root();
	size_t left = SIZE_MAX, before;
	cfs_deadline_t end;

	remove_tree(CFS_ROOT_INO);
	c = as_root();
	if (e->ops->getattr(e, &c, CFS_TRASH_INO, &(struct cfs_attr){0}) == 0)
		remove_tree(CFS_TRASH_INO);
	c = as_root();
	while (e->ops->expire_delayed(e, &c, c.now.tv_sec + 60, take_slice, NULL) == 0)
		;
	wait_deletions();
	/* Slices that killed children and the mount without hooks left to the hourly job. */
	end = cfs_deadline_in(20000);
	do {
		before = left;
		OK(cfs_jobs_clean_slices(vol.m, end));
		left = 0;
		OK(cfs_meta_scan(vol.m, CFS_TABLE_CHUNK, count_row, &left));
		OK(cfs_meta_scan(vol.m, CFS_TABLE_DELAYED, count_row, &left));
		OK(cfs_meta_scan(vol.m, CFS_TABLE_REF, count_row, &left));
	} while (left && (left < before || !cfs_deadline_passed(end)));
	assert_int_equal(left, 0);
}

TEST_LIST(crash, T(test_kill), T(test_storm), T(test_nothing_left));
