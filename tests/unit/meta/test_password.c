/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The password of the environment. When these fail, a mount from fstab logs in with a wrong password,
 * or with none, and the message does not name the cause.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "meta/engine/engine.h"

static char dir[64], path[96];

static int make_dir(void **state)
{
	snprintf(dir, sizeof(dir), "/tmp/cachefs-password.XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/secret", dir);
	unsetenv("META_PASSWORD");
	setenv("META_PASSWORD_FILE", path, 1);
	return 0;
}

static int remove_dir(void **state)
{
	unlink(path);
	rmdir(path);
	return rmdir(dir);
}

static void write_file(const char *text)
{
	FILE *f = fopen(path, "we");

	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

/* NULL: none. */
static void expect(const char *wanted)
{
	char err[256] = "", *got = NULL;

	assert_int_equal(cfs_engine_password(&got, err), 0);
	if (wanted)
		assert_string_equal(got, wanted);
	else
		assert_null(got);
	free(got);
}

static void expect_unreadable(void)
{
	char err[256] = "", *got = NULL;

	assert_int_equal(cfs_engine_password(&got, err), -EACCES);
	assert_null(got);
	assert_non_null(strstr(err, path));
}

static void test_first_line(void **state)
{
	write_file("  s3cret word \t\r\nanother line\n");
	expect("s3cret word");
	write_file("without newline");
	expect("without newline");
	setenv("META_PASSWORD", "direct", 1);
	expect("direct");
}

static void test_none(void **state)
{
	write_file("");
	expect(NULL);
	write_file(" \n");
	expect(NULL);
	setenv("META_PASSWORD_FILE", "", 1);
	expect(NULL);
	unsetenv("META_PASSWORD_FILE");
	expect(NULL);
}

/* Not an empty password, with which the server would be asked. */
static void test_unreadable(void **state)
{
	expect_unreadable();
	assert_int_equal(mkdir(path, 0700), 0);
	expect_unreadable();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_first_line, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_none, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_unreadable, make_dir, remove_dir),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
