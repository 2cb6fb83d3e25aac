/* SPDX-License-Identifier: Apache-2.0 */
/* The length of SQLite's log while another program reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "sql_fixture.h"

static void read_log(int from, char *buf, size_t size)
{
	ssize_t n = pread(from, buf, size - 1, 0);

	assert_true(n >= 0);
	buf[n] = '\0';
}

/* A log that grows unseen fills the disk. */
static void test_reader_that_stays(void **state)
{
	const uint64_t long_log = (uint64_t)256 << 20;
	struct fixture *f = *state;
	int log = memfd_create("log", MFD_CLOEXEC), saved = dup(STDERR_FILENO), i;
	char name[16], text[4096];

	assert_int_equal(sqlite3_exec(f->db, "BEGIN; SELECT * FROM jfs_node", NULL, NULL, NULL), 0);
	dup2(log, STDERR_FILENO);
	for (i = 0; i < 100000 && atomic_load(&f->host.log_bytes) < long_log; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		fixture_make(f, CFS_ROOT_INO, name, CFS_TYPE_FILE);
	}
	cfs_log_flush();
	dup2(saved, STDERR_FILENO);
	read_log(log, text, sizeof(text));
	assert_true(atomic_load(&f->host.log_bytes) >= long_log);
	assert_non_null(strstr(text, "the log of the database grows"));
	assert_null(strstr(strstr(text, "grows") + 1, "grows"));
	assert_int_equal(sqlite3_exec(f->db, "COMMIT", NULL, NULL, NULL), 0);
	for (i = 0; i < 20000 && atomic_load(&f->host.log_bytes) >= long_log / 4; i++) {
		snprintf(name, sizeof(name), "g%d", i);
		fixture_make(f, CFS_ROOT_INO, name, CFS_TYPE_FILE);
	}
	assert_true(atomic_load(&f->host.log_bytes) < long_log / 4);
	close(saved);
	close(log);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_reader_that_stays, fixture_setup,
						fixture_teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
