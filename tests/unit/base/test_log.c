/* SPDX-License-Identifier: Apache-2.0 */
/* When these fail an administrator reads a log that floods, lies or lacks the reason. */
#include <errno.h>
#include <pthread.h>
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

#include "base/log.h"

static int real_stderr;
static FILE *captured;

static int capture(void **state)
{
	captured = tmpfile();
	assert_non_null(captured);
	real_stderr = dup(STDERR_FILENO);
	fflush(stderr);
	dup2(fileno(captured), STDERR_FILENO);
	unsetenv("JOURNAL_STREAM");
	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_INFO);
	return 0;
}

static int release(void **state)
{
	cfs_log_flush();
	dup2(real_stderr, STDERR_FILENO);
	close(real_stderr);
	fclose(captured);
	return 0;
}

static void assert_log(const char *want)
{
	char got[8192];
	size_t n;

	rewind(captured);
	n = fread(got, 1, sizeof(got) - 1, captured);
	got[n] = 0;
	assert_string_equal(got, want);
}

static void level_and_text(void **state)
{
	cfs_err("object lost: key=%s", "a/b");
	cfs_warn("slow");
	cfs_info("up");
	cfs_debug("unseen");
	assert_log("cachefs: error: object lost: key=a/b\n"
		   "cachefs: warning: slow\n"
		   "cachefs: info: up\n");
}

static void debug_on_demand(void **state)
{
	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_DEBUG);
	cfs_debug("n=%d", 7);
	assert_log("cachefs: debug: n=7\n");
}

static void repeats_are_counted(void **state)
{
	int i;

	for (i = 0; i < 1000; i++)
		cfs_err("backend down");
	cfs_info("backend up");
	cfs_info("backend up");
	cfs_log_flush();
	cfs_log_flush();
	assert_log("cachefs: error: backend down\n"
		   "cachefs: error: last message repeated 999 times\n"
		   "cachefs: info: backend up\n"
		   "cachefs: info: last message repeated 1 time\n");
}

static void same_text_other_level_is_not_a_repeat(void **state)
{
	cfs_warn("x");
	cfs_err("x");
	assert_log("cachefs: warning: x\ncachefs: error: x\n");
}

/* A file name with a line feed must not forge a line. */
static void one_line_per_message(void **state)
{
	cfs_info("name=%s", "a\nerror: b\x1b[1m\xc2\x9b\xff\xc3\xa4");
	assert_log("cachefs: info: name=a\\nerror: b\\x1b[1m\\xc2\\x9b\\xff\xc3\xa4\n");
}

static void overlong_is_cut(void **state)
{
	char text[5000], got[8192];
	size_t n;

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	cfs_info("%s", text);
	rewind(captured);
	n = fread(got, 1, sizeof(got), captured);
	assert_in_range(n, 1000, 4096);
	assert_int_equal(got[n - 1], '\n');
	assert_ptr_equal(memchr(got, '\n', n), got + n - 1);
}

static void errno_survives(void **state)
{
	errno = ENOSPC;
	cfs_err("%m");
	assert_int_equal(errno, ENOSPC);
	cfs_log_flush();
	assert_int_equal(errno, ENOSPC);
	assert_log("cachefs: error: No space left on device\n");
}

static void journal_prefix(void **state)
{
	char env[64];
	struct stat st;

	assert_int_equal(fstat(STDERR_FILENO, &st), 0);
	snprintf(env, sizeof(env), "%llu:%llu", (unsigned long long)st.st_dev,
		 (unsigned long long)st.st_ino);
	setenv("JOURNAL_STREAM", env, 1);
	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_INFO);
	cfs_warn("w");
	/* Inherited from a service whose stderr was redirected since. */
	setenv("JOURNAL_STREAM", "1:1", 1);
	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_INFO);
	cfs_warn("v");
	assert_log("<4>w\ncachefs: warning: v\n");
}

static void *log_many(void *arg)
{
	int i;

	for (i = 0; i < 50; i++)
		cfs_info("%s %d", (const char *)arg, i);
	return NULL;
}

static void threads_do_not_mix_lines(void **state)
{
	pthread_t a, b;
	char one[] = "one", two[] = "two", line[256];
	int n = 0;

	pthread_create(&a, NULL, log_many, one);
	pthread_create(&b, NULL, log_many, two);
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	rewind(captured);
	while (fgets(line, sizeof(line), captured)) {
		assert_true(strncmp(line, "cachefs: info: one ", 19) == 0 ||
			    strncmp(line, "cachefs: info: two ", 19) == 0);
		n++;
	}
	assert_int_equal(n, 100);
}

static void level_names(void **state)
{
	enum cfs_log_level level;

	assert_int_equal(cfs_log_level_parse("warning", &level), 0);
	assert_int_equal(level, CFS_LOG_WARN);
	assert_int_equal(cfs_log_level_parse("loud", &level), -EINVAL);
}

static void errno_names(void **state)
{
	assert_string_equal(cfs_errname(EIO), "EIO");
	assert_string_equal(cfs_errname(-ENOENT), "ENOENT");
	assert_string_equal(cfs_errname(123456), "EUNKNOWN");
	assert_string_equal(cfs_errname(INT32_MIN), "EUNKNOWN");
}

#define LOG_TEST(f) cmocka_unit_test_setup_teardown(f, capture, release)

int main(void)
{
	const struct CMUnitTest tests[] = {
		LOG_TEST(level_and_text),	    LOG_TEST(debug_on_demand),
		LOG_TEST(repeats_are_counted),	    LOG_TEST(same_text_other_level_is_not_a_repeat),
		LOG_TEST(one_line_per_message),	    LOG_TEST(overlong_is_cut),
		LOG_TEST(errno_survives),	    LOG_TEST(journal_prefix),
		LOG_TEST(threads_do_not_mix_lines), cmocka_unit_test(level_names),
		cmocka_unit_test(errno_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
