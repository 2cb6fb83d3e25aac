/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that a server does not end delay the next operation for a bounded time only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <poll.h>

#include "meta/sql/sql-internal.h"

static unsigned asked;
static bool ends; /* at the second look */

static int end_session(struct sql_conn *c, const char *session)
{
	(void)c;
	(void)session;
	return ++asked > SQL_ABANDONED_MAX && ends ? 0 : -EAGAIN;
}

static const struct sql_dialect dialect = {.end_session = end_session};
static struct sql_db db = {.dialect = &dialect};
static struct sql_conn conn = {.db = &db};

static void abandon_many(void)
{
	char name[32];
	unsigned i;

	asked = 0;
	for (i = 0; i < SQL_ABANDONED_MAX; i++) {
		snprintf(name, sizeof(name), "session-%u", i);
		sql_abandon(&db, name);
	}
}

static void sessions_that_end(void **state)
{
	(void)state;
	ends = true;
	abandon_many();
	assert_int_equal(sql_fence(&conn, ""), -EAGAIN);
	assert_int_equal(sql_fence(&conn, ""), 0);
	assert_int_equal(asked, 2 * SQL_ABANDONED_MAX);
	assert_int_equal(sql_fence(&conn, ""), 0);
	assert_int_equal(asked, 2 * SQL_ABANDONED_MAX);
}

static void sessions_that_do_not_end(void **state)
{
	uint64_t start_ms = cfs_now_ms();

	(void)state;
	ends = false;
	abandon_many();
	while (sql_fence(&conn, "") == -EAGAIN && cfs_now_ms() - start_ms < 10000)
		poll(NULL, 0, 10);
	assert_int_equal(sql_fence(&conn, ""), 0);
	assert_true(cfs_now_ms() - start_ms < 5000);
}

static int set_up(void **state)
{
	(void)state;
	return pthread_mutex_init(&db.abandoned.lock, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sessions_that_end),
		cmocka_unit_test(sessions_that_do_not_end),
	};

	return cmocka_run_group_tests(tests, set_up, NULL);
}
