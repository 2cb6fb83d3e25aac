/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A database and its replica, without a mount. When these fail a restore takes hours of entries, or
 * what is restored after a base is not the database.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "replica/replica-internal.h"
#include "unit/wait.h"

#define VOLUME "v"

static char dir[] = "/tmp/cachefs-test-replica-XXXXXX";
static char path[64], again[64];
static struct cfs_object_store *store;
static sqlite3 *db;
static struct cfs_replica *replica;

static void run(const char *text)
{
	assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
}

static void start(uint64_t keep_s)
{
	struct cfs_replica_conf conf = {
		.objects = store,
		.volume = VOLUME,
		.path = path,
		.keep_s = keep_s,
		.conditional = true,
	};
	char err[256];

	assert_int_equal(cfs_replica_start(&conf, &replica, err), 0);
}

static void replicated(void)
{
	assert_int_equal(cfs_replica_wait(replica, true, cfs_deadline_in(30000)), 0);
}

static uint64_t number(const char *name)
{
	return cfs_metric_get(&cfs_replica_metrics, replica, name, NULL);
}

static int set_up(void **state)
{
	struct cfs_object_conf conf = {.storage = "mem", .bucket = "replica"};
	char err[256];

	assert_non_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/db", dir);
	snprintf(again, sizeof(again), "%s/again", dir);
	assert_int_equal(cfs_object_open(&conf, &store, err), 0);
	assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
	run("PRAGMA page_size=2048; PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; "
	    "CREATE TABLE t(n INTEGER PRIMARY KEY, x BLOB)");
	return 0;
}

static int tear_down(void **state)
{
	char command[128];

	sqlite3_close(db);
	cfs_object_close(store);
	snprintf(command, sizeof(command), "rm -r %s", dir);
	return system(command);
}

static int take_text(void *arg, int n, char **values, char **names)
{
	snprintf(arg, 64, "%s", values[0]);
	return 0;
}

static void ask(const char *file, const char *query, char ret[64])
{
	sqlite3 *handle;

	assert_int_equal(sqlite3_open(file, &handle), SQLITE_OK);
	assert_int_equal(sqlite3_exec(handle, query, take_text, ret, NULL), SQLITE_OK);
	sqlite3_close(handle);
}

/* Restores, compares, and returns how many entries that took. */
static uint64_t check_restored(void)
{
	static const char sum[] =
		"SELECT count(*) || '/' || sum(n) || '/' || sum(length(x)) FROM t";
	struct cfs_replica_restore how = {
		.objects = store, .volume = VOLUME, .until_ms = INT64_MAX};
	struct cfs_replica_state state;
	char want[64], got[64], err[256];

	how.fd = open(again, O_RDWR | O_CREAT | O_TRUNC, 0600);
	assert_int_equal(cfs_replica_restore(&how, &state, err), 0);
	close(how.fd);
	ask(again, "PRAGMA integrity_check", got);
	assert_string_equal(got, "ok");
	ask(path, sum, want);
	ask(again, sum, got);
	assert_string_equal(got, want);
	unlink(again);
	return state.entries;
}

static uint64_t count_entries(void)
{
	struct chain_list list;
	uint64_t n;

	assert_int_equal(chain_read_list(store, VOLUME, cfs_deadline_in(1000), &list), 0);
	n = list.n;
	free(list.v);
	return n;
}

static bool has_base(void)
{
	return number("replica_bases_total") > 0;
}

/* A base is made beside the entries, which go on, and replaces those before it. */
static void test_base_beside_entries(void **state)
{
	uint64_t needed;
	int i;

	start(3600);
	for (i = 0; i < 2010; i++) {
		run("INSERT INTO t(x) VALUES(zeroblob(3000))");
		replicated();
	}
	assert_in_range(count_entries(), 2000, 2100);
	assert_in_range(check_restored(), 2000, 2100);
	cfs_replica_stop(replica, cfs_deadline_in(10000));

	/* Nothing is removed that the last hour needs. */
	start(3600);
	for (i = 0; i < 3000 && !has_base(); i++) {
		run("INSERT INTO t(x) VALUES(randomblob(100))");
		run("UPDATE t SET x=randomblob(50) WHERE n=1");
		replicated();
	}
	assert_true(has_base());
	replicated();
	assert_in_range(check_restored(), 1, 1000);
	assert_true(count_entries() > 2000);
	cfs_replica_stop(replica, cfs_deadline_in(10000));

	/* Without such an hour the next base has all before it removed. */
	start(0);
	for (i = 0; i < 6000 && !has_base(); i++) {
		run("INSERT INTO t(x) VALUES(randomblob(100))");
		replicated();
	}
	assert_true(has_base());
	needed = check_restored();
	WAIT_FOR(count_entries() <= needed + 10);
	run("DELETE FROM t WHERE n % 2");
	replicated();
	assert_in_range(check_restored(), needed, needed + 10);
	cfs_replica_stop(replica, cfs_deadline_in(10000));
}

/* ---- a bucket without conditional writes ---- */

static const struct cfs_object_ops *honest;

static int put_always(struct cfs_object_store *o, const char *key, const struct iovec *iov, int n,
		      unsigned tier, cfs_deadline_t deadline)
{
	const struct timespec way = {.tv_nsec = 3000000};

	nanosleep(&way, NULL);
	return honest->put(o, key, iov, n, tier & ~(unsigned)CFS_OBJECT_NEW, deadline);
}

static int put_after_a_look(struct cfs_object_store *o, const char *key, const struct iovec *iov,
			    int n, unsigned tier, cfs_deadline_t deadline)
{
	struct cfs_object_info info;

	if (tier & CFS_OBJECT_NEW && !honest->head(o, key, &info, deadline))
		return -EEXIST;
	return put_always(o, key, iov, n, tier, deadline);
}

static void test_probe(void **state)
{
	struct cfs_object_ops ops = *store->ops;

	assert_int_equal(cfs_replica_probe(store, VOLUME, cfs_deadline_in(30000)), 1);
	honest = store->ops;
	store->ops = &ops;
	ops.put = put_always;
	assert_int_equal(cfs_replica_probe(store, VOLUME, cfs_deadline_in(30000)), 0);
	ops.put = put_after_a_look;
	assert_int_equal(cfs_replica_probe(store, VOLUME, cfs_deadline_in(30000)), 0);
	store->ops = honest;
}

/* Two mounts of one database append to one chain: neither replaces an entry of the other. */
static void test_two_writers_without_conditions(void **state)
{
	struct cfs_object_ops ops = *store->ops;
	struct cfs_replica_conf conf = {
		.objects = store,
		.volume = VOLUME,
		.path = path,
		.keep_s = 3600,
	};
	struct cfs_replica *r[2];
	char err[256];
	int i;

	honest = store->ops;
	ops.put = put_always;
	store->ops = &ops;
	for (i = 0; i < 2; i++)
		assert_int_equal(cfs_replica_start(&conf, &r[i], err), 0);
	for (i = 0; i < 60; i++) {
		run("INSERT INTO t(x) VALUES(randomblob(100))");
		assert_int_equal(cfs_replica_wait(r[i % 2], true, cfs_deadline_in(30000)), 0);
	}
	check_restored();
	for (i = 0; i < 2; i++)
		cfs_replica_stop(r[i], cfs_deadline_in(10000));
	check_restored();
	store->ops = honest;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_base_beside_entries),
		cmocka_unit_test(test_probe),
		cmocka_unit_test(test_two_writers_without_conditions),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
