/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names, times and rotation of backups. When these fail, a backup that is needed is removed, or
 * backups fill the bucket, or JuiceFS does not find them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* after those: */
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/access/backup.h"

enum { HOUR = 3600, DAY = 86400, MAX = 4096 };
#define NOW ((int64_t)1795000000)

static void test_names_are_those_of_the_format(void **state)
{
	static const char *const wrong[] = {
		"",
		"dump-2026-11-26-145542.json",
		"dump-2026-11-26-145542.json.gz.tmp",
		"dump-2026-02-30-000000.json.gz",
		"dump-2026-1-26-145542.json.gz",
		"dump-2026-11-26-14:5542.json.gz",
		"x-2026-11-26-145542.json.gz",
	};
	char name[BACKUP_NAME_LEN + 1];
	int64_t when_s;
	size_t i;

	backup_name(1795704942, name);
	assert_string_equal(name, "dump-2026-11-26-145542.json.gz");
	assert_true(backup_time(name, &when_s));
	assert_int_equal(when_s, 1795704942);
	for (i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		assert_false(backup_time(wrong[i], &when_s));
}

static void test_marks_of_both_clients_are_read(void **state)
{
	char mark[BACKUP_MARK_LEN + 1];

	backup_mark(1795704942, mark);
	assert_string_equal(mark, "2026-11-26T14:55:42Z");
	assert_int_equal(backup_mark_time(mark), 1795704942);
	assert_int_equal(backup_mark_time("2026-11-26T15:55:42+01:00"), 1795704942);
	assert_int_equal(backup_mark_time("2026-11-26T14:55:42.123Z"), 1795704942);
	assert_int_equal(backup_mark_time("yesterday"), -1);
	assert_int_equal(backup_mark_time("2026-11-26T14:55:42"), -1);
}

static void test_backup_is_due_after_the_interval(void **state)
{
	assert_true(backup_is_due(-1, false, NOW, HOUR, 360));
	assert_false(backup_is_due(NOW - HOUR + 1, false, NOW, HOUR, 360));
	assert_true(backup_is_due(NOW - HOUR, false, NOW, HOUR, 360));
	/* One that was broken off is not waited for the whole interval, but not made at once. */
	assert_false(backup_is_due(NOW - 359, true, NOW, HOUR, 360));
	assert_true(backup_is_due(NOW - 360, true, NOW, HOUR, 360));
	/* A mark of a clock that is ahead: else there would be none until then. */
	assert_false(backup_is_due(NOW + 60, false, NOW, HOUR, 360));
	assert_true(backup_is_due(NOW + DAY, false, NOW, HOUR, 360));
}

static void test_latest_is_not_from_the_future(void **state)
{
	struct backup v[] = {{.when_s = NOW - DAY}, {.when_s = NOW + 60}, {.when_s = NOW + DAY}};
	struct backup_list l = {.v = v, .n = 3};

	assert_ptr_equal(backup_latest(&l, NOW), &v[1]);
	l.n = 1;
	assert_ptr_equal(backup_latest(&l, NOW), &v[0]);
	l.n = 0;
	assert_null(backup_latest(&l, NOW));
	l = (struct backup_list){.v = v + 2, .n = 1};
	assert_null(backup_latest(&l, NOW));
}

static void drop_marked(struct backup_list *l)
{
	size_t i, n = 0;

	for (i = 0; i < l->n; i++)
		if (!l->v[i].drop)
			l->v[n++] = l->v[i];
	l->n = n;
}

/* JuiceFS's own example: a backup every half day for a hundred days. */
static void test_rotation_keeps_what_juicefs_keeps(void **state)
{
	static struct backup v[MAX];
	struct backup_list l = {.v = v};
	int64_t want[64], at;
	size_t n = 0;
	int days, i;

	for (i = 0; i <= 200; i++) {
		at = NOW - 100 * DAY + (int64_t)i * 12 * HOUR;
		v[l.n++] = (struct backup){.when_s = at};
		backup_rotate(&l, at);
		drop_marked(&l);
	}
	want[n++] = NOW - 100 * DAY;
	for (days = 65; days > 14; days -= 7)
		want[n++] = NOW - (int64_t)days * DAY;
	for (days = 13; days > 2; days--)
		want[n++] = NOW - (int64_t)days * DAY;
	for (i = 4; i >= 0; i--)
		want[n++] = NOW - (int64_t)i * 12 * HOUR;
	assert_int_equal(l.n, n);
	for (i = 0; i < (int)n; i++)
		assert_int_equal(v[i].when_s, want[i]);
}

/* Some stores list in no order, and a page may repeat keys: no window may lose its only backup. */
static void test_rotation_of_an_odd_listing(void **state)
{
	struct backup v[] = {
		{.when_s = NOW - 40 * DAY}, {.when_s = NOW},
		{.when_s = NOW - 5 * DAY},  {.when_s = NOW - 5 * DAY},
		{.when_s = NOW - 40 * DAY},
	};
	struct backup_list l = {.v = v, .n = 5};
	size_t i;

	backup_sort(&l);
	assert_int_equal(l.n, 3);
	backup_rotate(&l, NOW);
	for (i = 0; i < l.n; i++)
		assert_false(v[i].drop);
	assert_int_equal(v[0].when_s, NOW - 40 * DAY);
	assert_int_equal(v[2].when_s, NOW);
}

/* Every hour for five years: months without end, and never more than a hundred and some. */
static void test_rotation_has_a_bound_and_no_gaps(void **state)
{
	static struct backup v[MAX];
	struct backup_list l = {.v = v};
	int64_t at = NOW;
	size_t i;

	for (; at < NOW + (int64_t)5 * 365 * DAY; at += HOUR) {
		v[l.n++] = (struct backup){.when_s = at};
		backup_rotate(&l, at);
		assert_false(v[l.n - 1].drop);
		drop_marked(&l);
		assert_true(l.n < 160);
	}
	assert_int_equal(v[0].when_s, NOW);
	for (i = 1; i < l.n; i++)
		assert_true(v[i].when_s - v[i - 1].when_s <= 61 * DAY);
	for (i = l.n - 47; i < l.n; i++)
		assert_int_equal(v[i].when_s - v[i - 1].when_s, HOUR);
}

/* An order that the mount could not finish must not become a backup of another volume. */
static void test_order_is_whole_or_none(void **state)
{
	static const char whole[] = "sqlite3:///v.db\0file\0\0"
				    "0\0"
				    "7\0"
				    "1790000000\0"
				    "1\0"
				    "0\0"
				    "CACHEFS_TEST_ORDER=x\0";
	static const char odd[] = "sqlite3:///v.db\0file\0\0"
				  "0\0"
				  "7\0"
				  "soon\0"
				  "1\0"
				  "0\0";
	struct backup_order order;
	char text[sizeof(whole)];
	size_t len;

	memcpy(text, whole, sizeof(whole));
	assert_int_equal(backup_take_order(text, sizeof(whole), &order), 0);
	assert_string_equal(order.url, "sqlite3:///v.db");
	assert_string_equal(order.objects.storage, "file");
	assert_null(order.objects.bucket);
	assert_int_equal(order.objects.download_limit_mbps, 7);
	assert_int_equal(order.now_s, 1790000000);
	assert_true(order.make);
	assert_false(order.skip_trash);
	assert_string_equal(getenv("CACHEFS_TEST_ORDER"), "x");
	for (len = 0; len < sizeof(whole) - 1; len++) {
		memcpy(text, whole, sizeof(whole));
		assert_int_equal(backup_take_order(text, len, &order), -EPIPE);
	}
	memcpy(text, odd, sizeof(odd));
	assert_int_equal(backup_take_order(text, sizeof(odd), &order), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names_are_those_of_the_format),
		cmocka_unit_test(test_marks_of_both_clients_are_read),
		cmocka_unit_test(test_backup_is_due_after_the_interval),
		cmocka_unit_test(test_latest_is_not_from_the_future),
		cmocka_unit_test(test_rotation_keeps_what_juicefs_keeps),
		cmocka_unit_test(test_rotation_of_an_odd_listing),
		cmocka_unit_test(test_rotation_has_a_bound_and_no_gaps),
		cmocka_unit_test(test_order_is_whole_or_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
