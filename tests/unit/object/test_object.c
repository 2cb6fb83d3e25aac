/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When these fail file data is stored under wrong names, half-written objects are seen, or a
 * clean-up that trusts a listing deletes what it did not see.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <cachefs/object.h>

#include "base/bytes.h"
#include "unit/wait.h"

#define N_THREADS 8

static char root[] = "/tmp/cachefs-test-object-XXXXXX";
static char bucket[128];
static unsigned bucket_nr;
static struct cfs_object_store *store;

static struct stat synced[16]; /* by fsync(2) */
static unsigned n_synced;

int __real_fsync(int fd);
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
	assert_true(n_synced < CFS_ARRAY_SIZE(synced));
	assert_int_equal(fstat(fd, &synced[n_synced++]), 0);
	return __real_fsync(fd);
}

static bool is_synced(const char *path)
{
	struct stat st;
	unsigned i;

	assert_int_equal(stat(path, &st), 0);
	for (i = 0; i < n_synced; i++) {
		if (synced[i].st_dev == st.st_dev && synced[i].st_ino == st.st_ino)
			return true;
	}
	return false;
}

static void open_store(const char *storage, const char *where)
{
	struct cfs_object_conf conf = {.storage = storage, .bucket = where};
	char err[256];

	assert_int_equal(cfs_object_open(&conf, &store, err), 0);
	if (store->ops->create)
		assert_int_equal(store->ops->create(store, soon()), 0);
}

static int set_up_file(void **state)
{
	snprintf(bucket, sizeof(bucket), "%s/b%u/deep", root, bucket_nr++);
	open_store("file", bucket);
	return 0;
}

static int set_up_mem(void **state)
{
	open_store("mem", "test");
	return 0;
}

static int tear_down(void **state)
{
	cfs_object_close(store);
	return 0;
}

static int put(const char *key, const char *text)
{
	struct iovec iov = {(char *)text, strlen(text)};

	return store->ops->put(store, key, &iov, 1, 0, soon());
}

static void put_ok(const char *key, const char *text)
{
	assert_int_equal(put(key, text), 0);
}

static ssize_t get(const char *key, uint64_t off, char *buf, size_t size)
{
	struct iovec iov = {buf, size};

	return store->ops->get(store, key, off, &iov, 1, soon());
}

static void whole_and_parts(void **state)
{
	char a[4] = {0}, b[16] = {0};
	struct iovec parts[] = {{a, 3}, {NULL, 0}, {b, sizeof(b)}};
	struct cfs_object_info info;

	assert_int_equal(get("v/x/1", 0, b, sizeof(b)), -ENOENT);
	assert_int_equal(store->ops->head(store, "v/x/1", &info, soon()), -ENOENT);
	put_ok("v/x/1", "0123456789");
	assert_int_equal(store->ops->get(store, "v/x/1", 1, parts, 3, soon()), 9);
	assert_string_equal(a, "123");
	assert_string_equal(b, "456789");
	assert_int_equal(get("v/x/1", 10, b, 1), 0);
	assert_int_equal(get("v/x/1", 50, b, 1), 0);
	assert_int_equal(store->ops->head(store, "v/x/1", &info, soon()), 0);
	assert_int_equal(info.size, 10);
	assert_true(llabs(info.mtime_s - cfs_wall_s()) < 60);

	put_ok("v/x/1", "ab");
	assert_int_equal(get("v/x/1", 0, b, sizeof(b)), 2);
	put_ok("v/x/empty", "");
	assert_int_equal(get("v/x/empty", 0, b, sizeof(b)), 0);

	assert_int_equal(store->ops->del(store, "v/x/1", soon()), 0);
	assert_int_equal(store->ops->del(store, "v/x/1", soon()), 0);
	assert_int_equal(get("v/x/1", 0, b, sizeof(b)), -ENOENT);
	if (store->ops->sync)
		assert_int_equal(store->ops->sync(store, soon()), 0);
}

/* More pieces than one system call takes. */
static void many_pieces(void **state)
{
	enum { N = 3000 };
	static char data[2 * N], back[2 * N];
	struct iovec iov[N];
	int i;

	for (i = 0; i < 2 * N; i++)
		data[i] = (char)(i * 7 + i / 251);
	for (i = 0; i < N; i++)
		iov[i] = (struct iovec){data + 2 * i, 2};
	assert_int_equal(store->ops->put(store, "p", iov, N, 0, soon()), 0);
	for (i = 0; i < N; i++)
		iov[i] = (struct iovec){back + 2 * i, 2};
	assert_int_equal(store->ops->get(store, "p", 0, iov, N, soon()), sizeof(back));
	assert_memory_equal(data, back, sizeof(back));
}

static void nowait_never_lies(void **state)
{
	char buf[16];
	struct iovec iov = {buf, sizeof(buf)};
	ssize_t n;

	n = store->ops->get_nowait(store, "n/1", 0, &iov, 1);
	assert_true(n == -ENOENT || n == -EAGAIN);
	put_ok("n/1", "hello");
	n = store->ops->get_nowait(store, "n/1", 0, &iov, 1);
	assert_true(n == 5 || n == -EAGAIN);
	if (n == 5)
		assert_memory_equal(buf, "hello", 5);
}

struct seen {
	char *keys[64];
	size_t n, stop_at;
};

static int note(void *arg, const struct cfs_object_info *info)
{
	struct seen *s = arg;

	assert_true(s->n < CFS_ARRAY_SIZE(s->keys));
	assert_int_equal(info->size, 3);
	s->keys[s->n++] = strdup(info->key);
	return s->stop_at && s->n == s->stop_at ? 7 : 0;
}

static void forget_seen(struct seen *s)
{
	while (s->n > 0)
		free(s->keys[--s->n]);
}

static void expect_list(const char *prefix, const char *after, const char *const *keys, size_t n)
{
	struct seen s = {0};
	size_t i;

	assert_int_equal(store->ops->list(store, prefix, after, note, &s, soon()), 0);
	assert_int_equal(s.n, n);
	for (i = 0; i < n; i++)
		assert_string_equal(s.keys[i], keys[i]);
	forget_seen(&s);
}

/* In byte order '-' < '.' < '/' < '0', so a directory does not sort like its bare name. */
static void list_is_complete_and_sorted(void **state)
{
	static const char *const keys[] = {
		"a-b/1",
		"a.b",
		"a/1",
		"a/1.x/3",
		"a/1/2",
		"a/1/2-",
		"a/10/0",
		"a/1\xff",
		"a0/z",
		"juicefs_id",
		"v/chunks/0/0/1_0_3",
		"v/chunks/0/0/2_0_3",
		"v/chunks/0/1/1000_0_3",
		"v/meta/dump",
	};
	static const size_t order[] = {5, 0, 13, 3, 1, 9, 12, 2, 8, 4, 7, 6, 10, 11};
	struct seen s = {.stop_at = 2};
	size_t i;

	expect_list("", "", NULL, 0);
	for (i = 0; i < CFS_ARRAY_SIZE(keys); i++) {
		/* A file store cannot have "a/1" beside "a/1/2". */
		if (strcmp(store->ops->name, "mem") == 0 || strcmp(keys[order[i]], "a/1") != 0)
			put_ok(keys[order[i]], "abc");
	}
	if (strcmp(store->ops->name, "mem") == 0) {
		expect_list("", "", keys, CFS_ARRAY_SIZE(keys));
		expect_list("", "a/1", keys + 3, CFS_ARRAY_SIZE(keys) - 3);
	} else {
		expect_list("a/", "", keys + 3, 5);
		expect_list("a", "a/1", keys + 3, 6);
	}
	expect_list("v/", "", keys + 10, 4);
	expect_list("v/chunks/0/0/", "v/chunks/0/0/1_0_3", keys + 11, 1);
	expect_list("v/ch", "v/chunks/0/0/2_0_3", keys + 12, 1);
	expect_list("v/ch", "v/chunks/0/", keys + 10, 3);
	expect_list("a/1/2", "", keys + 4, 2);
	expect_list("v/chunks/5/", "", NULL, 0);
	expect_list("z", "", NULL, 0);
	expect_list("", "z", NULL, 0);

	assert_int_equal(store->ops->list(store, "v/", "", note, &s, soon()), 7);
	assert_int_equal(s.n, 2);
	forget_seen(&s);
}

static void list_failure_is_an_error(void **state)
{
	struct cfs_object_conf conf = {.storage = "file"};
	char path[256], err[256];
	struct cfs_object_store *absent;
	struct seen s = {0};

	put_ok("v/a/1", "abc");
	assert_int_equal(store->ops->list(store, "", "", note, &s, 0), -ETIMEDOUT);
	assert_int_equal(s.n, 0);

	snprintf(path, sizeof(path), "%s/v/loop", bucket);
	assert_int_equal(symlink("loop", path), 0);
	assert_int_equal(store->ops->list(store, "", "", note, &s, soon()), -ELOOP);
	forget_seen(&s);

	/* An unmounted bucket is not an empty one. */
	snprintf(path, sizeof(path), "%s/absent", root);
	conf.bucket = path;
	assert_int_equal(cfs_object_open(&conf, &absent, err), 0);
	assert_int_equal(absent->ops->list(absent, "v/", "", note, &s, soon()), -ENOENT);
	cfs_object_close(absent);
}

static void temporary_files_stay_hidden(void **state)
{
	static const char *const keys[] = {".jfs.x", "1_0_3"};
	char path[256];
	int fd;

	put_ok("1_0_3", "abc");
	put_ok(".jfs.x", "abc");
	snprintf(path, sizeof(path), "%s/.jfs.1_0_3.tmp.99", bucket);
	fd = open(path, O_CREAT | O_WRONLY, 0666);
	assert_true(fd >= 0);
	close(fd);
	expect_list("", "", keys, 2);
}

static void files_have_the_format_s_modes(void **state)
{
	char path[256];
	struct stat st;
	mode_t old = umask(027);

	put_ok("m/n/1", "abc");
	umask(old);
	snprintf(path, sizeof(path), "%s/m/n", bucket);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0750);
	snprintf(path, sizeof(path), "%s/m/n/1", bucket);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
}

/* The bucket's disk is not mounted any more: a put must not write to the disk below. */
static void missing_bucket_is_not_made_again(void **state)
{
	static const char *const keys[] = {"a/1", "a/2"};
	char away[160];

	put_ok("a/1", "abc");
	snprintf(away, sizeof(away), "%s.away", bucket);
	assert_int_equal(rename(bucket, away), 0);
	assert_int_equal(put("a/2", "xyz"), -ENODEV);
	assert_int_equal(put("2", "xyz"), -ENODEV);
	assert_int_equal(access(bucket, F_OK), -1);
	assert_int_equal(rename(away, bucket), 0);
	put_ok("a/2", "xyz");
	expect_list("", "", keys, 2);
}

/* An object that is on the disk must not pass for missing or removed. */
static void expect_away(const char *key)
{
	struct iovec iov = {malloc(1), 1};
	struct cfs_object_info info;
	struct seen s = {0};

	assert_int_equal(store->ops->get(store, key, 0, &iov, 1, soon()), -ENODEV);
	assert_int_equal(store->ops->get_nowait(store, key, 0, &iov, 1), -EAGAIN);
	assert_int_equal(store->ops->head(store, key, &info, soon()), -ENODEV);
	assert_int_equal(store->ops->del(store, key, soon()), -ENODEV);
	assert_true(store->ops->list(store, "", "", note, &s, soon()) < 0);
	free(iov.iov_base);
}

/*
 * The bucket's disk is unmounted, which leaves an empty directory, or another disk is mounted over
 * it: syncs would not reach what is put there. Here the bucket is a link to either of two disks.
 */
static void bucket_stays_on_its_disk(void **state)
{
	char disk[] = "/dev/shm/cachefs-test-object-XXXXXX", below[160], link[160], object[200];
	static const char *const keys[] = {"a/1", "a/2"};
	struct cfs_object_info info;
	int i;

	assert_ptr_not_equal(mkdtemp(disk), NULL);
	snprintf(link, sizeof(link), "%s/link", bucket);
	snprintf(below, sizeof(below), "%s/below", bucket);
	assert_int_equal(mkdir(below, 0700), 0);
	assert_int_equal(symlink(below, link), 0);
	cfs_object_close(store);
	open_store("file", link);
	/* Not mounted yet when the store is opened. */
	assert_int_equal(store->ops->sync(store, soon()), 0);
	assert_int_equal(unlink(link) + symlink(disk, link), 0);
	put_ok("a/1", "abc");
	assert_int_equal(unlink(link) + symlink(below, link), 0);
	assert_int_equal(put("a/2", "xyz"), -ENODEV);
	assert_int_equal(put("a/2", "xyz"), -ENODEV);
	expect_away("a/1");
	assert_int_equal(rmdir(below), 0); /* nothing is in it */
	expect_away("a/1");
	assert_int_equal(put("a/2", "xyz"), -ENODEV);
	assert_int_equal(unlink(link) + symlink(disk, link), 0);
	put_ok("a/2", "xyz");
	expect_list("", "", keys, 2);
	assert_int_equal(store->ops->sync(store, soon()), 0);
	/* One that has only looked, each way. */
	for (i = 0; i < 2; i++) {
		cfs_object_close(store);
		open_store("file", link);
		if (i)
			expect_list("", "", keys, 2);
		else
			assert_int_equal(store->ops->head(store, "a/1", &info, soon()), 0);
		assert_int_equal(unlink(link), 0);
		expect_away("a/1");
		assert_int_equal(symlink(disk, link), 0);
	}
	snprintf(object, sizeof(object), "%s/a/1", disk);
	assert_int_equal(unlink(object), 0);
	snprintf(object, sizeof(object), "%s/a/2", disk);
	assert_int_equal(unlink(object), 0);
	snprintf(object, sizeof(object), "%s/a", disk);
	assert_int_equal(rmdir(object) + rmdir(disk), 0);
}

/* A put that fails leaves neither the object nor its temporary file. */
static void failed_put_leaves_nothing(void **state)
{
	static const char *const keys[] = {"d/e/1"};
	char path[256];
	struct seen s = {0};

	put_ok("d/e/1", "abc");
	assert_int_equal(put("d/e", "xyz"), -EISDIR);
	assert_int_equal(put("d/e/1/2", "xyz"), -ENOTDIR);
	assert_int_equal(put("../x", "xyz"), -EINVAL);
	assert_int_equal(put("d/../x", "xyz"), -EINVAL);
	assert_int_equal(put("/x", "xyz"), -EINVAL);
	expect_list("", "", keys, 1);
	snprintf(path, sizeof(path), "%s/d/e/1", bucket);
	assert_int_equal(unlink(path), 0);
	snprintf(path, sizeof(path), "%s/d/e", bucket);
	assert_int_equal(rmdir(path), 0);
	/* Fails when anything is left, hidden or not. */
	snprintf(path, sizeof(path), "%s/d", bucket);
	assert_int_equal(rmdir(path), 0);
	forget_seen(&s);
}

static pthread_barrier_t barrier;

static void *put_below(void *arg)
{
	char key[64];

	snprintf(key, sizeof(key), "r/a/b/c/d/%d", (int)(intptr_t)arg);
	pthread_barrier_wait(&barrier);
	return (void *)(intptr_t)put(key, "abc");
}

/* Many uploads create the same directories at the same time. */
static void parents_appear_once(void **state)
{
	static const char *const keys[] = {
		"r/a/b/c/d/0", "r/a/b/c/d/1", "r/a/b/c/d/2", "r/a/b/c/d/3",
		"r/a/b/c/d/4", "r/a/b/c/d/5", "r/a/b/c/d/6", "r/a/b/c/d/7",
	};
	pthread_t t[N_THREADS];
	void *r;
	int i;

	pthread_barrier_init(&barrier, NULL, N_THREADS);
	for (i = 0; i < N_THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, put_below, (void *)(intptr_t)i), 0);
	for (i = 0; i < N_THREADS; i++) {
		pthread_join(t[i], &r);
		assert_null(r);
	}
	pthread_barrier_destroy(&barrier);
	expect_list("r/", "", keys, N_THREADS);
}

/* The replica tells fsync(2) that a commit is durable once its object is. */
static void put_of_a_new_object_is_durable(void **state)
{
	static const char *const folders[] = {"", "/a", "/a/b", "/a/b/c"};
	struct iovec iov = {(char *)"x", 1};
	char path[256];
	size_t i;

	n_synced = 0;
	assert_int_equal(store->ops->put(store, "a/b/c/1", &iov, 1, CFS_OBJECT_NEW, soon()), 0);
	for (i = 0; i < CFS_ARRAY_SIZE(folders); i++) {
		snprintf(path, sizeof(path), "%s%s", bucket, folders[i]);
		if (!is_synced(path))
			fail_msg("the names in %s are not durable", path);
	}
	/* The folders are there: only the object's name is new. */
	n_synced = 0;
	assert_int_equal(store->ops->put(store, "a/b/c/2", &iov, 1, CFS_OBJECT_NEW, soon()), 0);
	assert_int_equal(n_synced, 1);
	assert_true(is_synced(path));
}

static void bad_conf_is_refused(void **state)
{
	static const struct cfs_object_conf confs[] = {
		{.storage = "file", .bucket = "relative/dir"},
		{.storage = "file", .bucket = ""},
		{.storage = "file"},
		{.storage = "tape", .bucket = "/x"},
		{.bucket = "/x"},
		{.storage = "mem", .bucket = "x?size=banana"},
		{.storage = "mem", .bucket = "x", .compression = "snappy"},
		{.storage = "mem", .bucket = "x", .encrypt_key = "no key"},
	};
	struct cfs_object_store *o = NULL;
	char err[256];
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(confs); i++) {
		assert_true(cfs_object_open(&confs[i], &o, err) < 0);
		assert_true(strlen(err) > 0);
		assert_null(o);
	}
}

static void mem_is_shared_and_bounded(void **state)
{
	struct cfs_object_conf conf = {.storage = "mem", .bucket = "small?size=8"};
	struct cfs_object_store *a, *b;
	char err[256], buf[8];
	struct iovec iov = {buf, 6};

	assert_int_equal(cfs_object_open(&conf, &a, err), 0);
	assert_int_equal(cfs_object_open(&conf, &b, err), 0);
	memcpy(buf, "secret", 6);
	assert_int_equal(a->ops->put(a, "k", &iov, 1, 0, soon()), 0);
	memset(buf, 0, sizeof(buf));
	assert_int_equal(b->ops->get(b, "k", 0, &iov, 1, soon()), 6);
	assert_string_equal(buf, "secret");
	assert_int_equal(b->ops->put(b, "l", &iov, 1, 0, soon()), -ENOSPC);
	assert_int_equal(b->ops->put(b, "k", &iov, 1, 0, soon()), 0);
	assert_int_equal(b->ops->del(b, "k", soon()), 0);
	assert_int_equal(b->ops->put(b, "l", &iov, 1, 0, soon()), 0);
	cfs_object_close(a);
	cfs_object_close(b);
}

static int make_root(void **state)
{
	return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
	pid_t pid = fork();

	if (pid == 0) {
		execlp("rm", "rm", "-rf", root, NULL);
		_exit(127);
	}
	return waitpid(pid, NULL, 0) == pid ? 0 : -1;
}

#define FILE_TEST(f)                                                                               \
	{                                                                                          \
		"file: " #f, f, set_up_file, tear_down, NULL                                       \
	}
#define MEM_TEST(f)                                                                                \
	{                                                                                          \
		"mem: " #f, f, set_up_mem, tear_down, NULL                                         \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		FILE_TEST(whole_and_parts),
		MEM_TEST(whole_and_parts),
		FILE_TEST(many_pieces),
		MEM_TEST(many_pieces),
		FILE_TEST(nowait_never_lies),
		MEM_TEST(nowait_never_lies),
		FILE_TEST(list_is_complete_and_sorted),
		MEM_TEST(list_is_complete_and_sorted),
		FILE_TEST(list_failure_is_an_error),
		FILE_TEST(temporary_files_stay_hidden),
		FILE_TEST(files_have_the_format_s_modes),
		FILE_TEST(missing_bucket_is_not_made_again),
		FILE_TEST(bucket_stays_on_its_disk),
		FILE_TEST(failed_put_leaves_nothing),
		FILE_TEST(parents_appear_once),
		cmocka_unit_test_setup_teardown(put_of_a_new_object_is_durable, set_up_file,
						tear_down),
		cmocka_unit_test(bad_conf_is_refused),
		cmocka_unit_test(mem_is_shared_and_bounded),
	};

	return cmocka_run_group_tests(tests, make_root, remove_root);
}
