/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/log.h"
#include "conformance.h"
#include "meta/api/trash.h"

struct volume vol;

enum { MAX_OPEN = 16, MAX_DELETED = 65536 };

static struct {
	pthread_mutex_t lock;
	cfs_ino_t open[MAX_OPEN];
	uint64_t deleted[MAX_DELETED];
	size_t n_deleted;
} world = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- what the layers above would answer ---- */

static bool is_open(void *arg, cfs_ino_t ino)
{
	bool found = false;
	size_t i;

	(void)arg;
	pthread_mutex_lock(&world.lock);
	for (i = 0; i < MAX_OPEN; i++)
		found = found || world.open[i] == ino;
	pthread_mutex_unlock(&world.lock);
	return found;
}

void set_open(cfs_ino_t ino, bool open)
{
	cfs_ino_t from = open ? 0 : ino, to = open ? ino : 0;
	size_t i;

	pthread_mutex_lock(&world.lock);
	for (i = 0; i < MAX_OPEN; i++) {
		if (world.open[i] == from) {
			world.open[i] = to;
			break;
		}
	}
	pthread_mutex_unlock(&world.lock);
	assert_true(i < MAX_OPEN);
}

static int delete_slice(void *arg, uint64_t id, uint32_t size)
{
	(void)arg;
	(void)size;
	pthread_mutex_lock(&world.lock);
	if (world.n_deleted < MAX_DELETED)
		world.deleted[world.n_deleted++] = id;
	pthread_mutex_unlock(&world.lock);
	return 0;
}

bool slice_deleted(uint64_t id)
{
	bool found = false;
	size_t i;

	pthread_mutex_lock(&world.lock);
	for (i = 0; i < world.n_deleted; i++)
		found = found || world.deleted[i] == id;
	pthread_mutex_unlock(&world.lock);
	return found;
}

/* ---- the volume ---- */

static struct cfs_meta *open_mount(bool hooked)
{
	struct cfs_meta_conf conf = {
		.heartbeat_ms = 60000,
		.timeout_ms = 10000,
		.mount_point = "/conformance",
		.no_bgjob = true,
	};
	struct cfs_meta_hooks hooks = {.is_open = is_open, .delete_slice = delete_slice};
	struct cfs_setting *s = NULL;
	struct cfs_meta *m = NULL;
	char err[256] = "";

	int rc = cfs_meta_open(vol.url, &conf, &m, err);

	if (!rc)
		rc = cfs_meta_load(m, &s, err);
	if (!rc && hooked)
		hooks_install(m);
	if (!rc)
		rc = cfs_meta_start(m, hooked ? &hooks : NULL);
	if (rc) {
		fprintf(stderr, "cannot mount %s: %s\n", vol.url, err);
		exit(2);
	}
	cfs_setting_free(s);
	return m;
}

static int format_volume(void **state)
{
	struct cfs_meta_conf conf = {.timeout_ms = 10000};
	const _Atomic bool stop = false;
	struct cfs_setting *s;
	struct cfs_meta *m;
	char err[256] = "";

	(void)state;
	OK(cfs_setting_new("conformance", &s));
	trash_off(s);
	s->enable_acl = true;
	if (cfs_meta_open(vol.url, &conf, &m, err)) {
		fprintf(stderr, "%s\n", err);
		return -1;
	}
	if (cfs_meta_load(m, &s, err) != -ENODATA) {
		fprintf(stderr, "the database is not empty: %s\n", vol.url);
		return -1;
	}
	if (cfs_meta_format(m, s, false, err)) {
		fprintf(stderr, "%s\n", err);
		return -1;
	}
	cfs_setting_free(s);
	cfs_meta_close(m);
	vol.m = open_mount(true);
	vol.other = open_mount(false);
	/* The hourly job of a volume that never had a trash. */
	OK(cfs_trash_expire(vol.m, cfs_deadline_in(10000), &stop));
	return 0;
}

static int destroy_volume(void **state)
{
	struct cfs_ctx ctx = as_root();

	(void)state;
	cfs_meta_close(vol.other);
	OK(cfs_meta_stop(vol.m));
	OK(vol.m->eng->ops->destroy(vol.m->eng, &ctx));
	cfs_meta_close(vol.m);
	return 0;
}

void trash_on(struct cfs_setting *s)
{
	s->trash_days = 1;
}

void trash_off(struct cfs_setting *s)
{
	s->trash_days = 0;
}

void change_setting(void (*change)(struct cfs_setting *s))
{
	struct cfs_setting *s;
	char err[256] = "";

	OK(cfs_meta_setting(vol.m, &s));
	change(s);
	if (cfs_meta_format(vol.m, s, false, err))
		fail_msg("%s", err);
	cfs_setting_free(s);
	OK(cfs_meta_load(vol.other, &s, err));
	cfs_setting_free(s);
}

int after_each(void **state)
{
	(void)state;
	change_setting(trash_off);
	wait_deletions();
	volume_check(vol.m);
	return 0;
}

/* ---- running ---- */

static int run(const char *only)
{
	static const struct {
		const char *name;
		const struct CMUnitTest *tests;
		const size_t *count;
	} groups[] = {
		{"names", name_tests, &name_test_count},
		{"optimistic", optimistic_tests, &optimistic_test_count},
		{"permissions", permission_tests, &permission_test_count},
		{"rename", rename_tests, &rename_test_count},
		{"attributes", attr_tests, &attr_test_count},
		{"readdir", readdir_tests, &readdir_test_count},
		{"data", data_tests, &data_test_count},
		{"commits", commit_tests, &commit_test_count},
		{"compact", compact_tests, &compact_test_count},
		{"delete", delete_tests, &delete_test_count},
		{"xattr", xattr_tests, &xattr_test_count},
		{"locks", lock_tests, &lock_test_count},
		{"sessions", session_tests, &session_test_count},
		{"quotas", quota_tests, &quota_test_count},
		{"records", record_tests, &record_test_count},
		{"leases", lease_tests, &lease_test_count},
		{"administration", admin_tests, &admin_test_count},
		{"dirtimes", dirtimes_tests, &dirtimes_test_count},
		{"threads", thread_tests, &thread_test_count},
		{"crash", crash_tests, &crash_test_count},
	};
	int failed = 0;
	size_t i, n = 0;

	if (format_volume(NULL))
		return 2;
	for (i = 0; i < sizeof(groups) / sizeof(groups[0]); i++) {
		if (only && strcmp(only, groups[i].name) != 0)
			continue;
		failed += _cmocka_run_group_tests(groups[i].name, groups[i].tests, *groups[i].count,
						  NULL, NULL);
		n++;
	}
	destroy_volume(NULL);
	if (n == 0) {
		fprintf(stderr, "there is no group of tests %s\n", only);
		return 2;
	}
	return failed ? 1 : 0;
}

int main(int argc, char **argv)
{
	char dir[] = "/tmp/cfs-conformance-XXXXXX";
	bool own = argc < 2 || strcmp(argv[1], "-") == 0;
	char path[600];
	int rc, fd;

	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_WARN);
	if (argc == 4 && strcmp(argv[1], "--crash-child") == 0)
		crash_child(argv[2], (unsigned)strtoul(argv[3], NULL, 10));
	if (own) {
		if (!mkdtemp(dir))
			return 2;
		snprintf(path, sizeof(path), "%s/meta.db", dir);
		snprintf(vol.url, sizeof(vol.url), "sqlite3://%s", path);
		fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
		if (fd < 0)
			return 2;
		close(fd);
	} else {
		snprintf(vol.url, sizeof(vol.url), "%s", argv[1]);
	}
	if (cfs_activity_init() < 0)
		return 2;
	rc = run(argc > 2 ? argv[2] : NULL);
	if (own) {
		static const char *const ends[] = {"", "-wal", "-shm"};
		size_t i;

		for (i = 0; i < 3; i++) {
			snprintf(path, sizeof(path), "%s/meta.db%s", dir, ends[i]);
			unlink(path);
		}
		rmdir(dir);
	}
	return rc;
}
