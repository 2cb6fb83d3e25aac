/* SPDX-License-Identifier: Apache-2.0 */
/* When these fail an fstab line or a command line means something else than the user wrote. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/text/opt.h"

struct conf {
	bool writeback, readahead;
	int64_t retries;
	uint64_t buffer_size, attr_cache_ms;
	double free_ratio;
	char *subdir, *secret_key;
	int mode;
};

static const char *const modes[] = {"none", "read", "full", NULL};

static const struct cfs_opt table[] = {
	{.name = "writeback",
	 .letter = 'w',
	 .kind = CFS_OPT_FLAG,
	 .offset = offsetof(struct conf, writeback),
	 .help = "acknowledge writes once they are on the local disk"},
	{.name = "read-ahead",
	 .kind = CFS_OPT_FLAG,
	 .offset = offsetof(struct conf, readahead),
	 .def = "true",
	 .help = "read ahead"},
	{.name = "io_retries",
	 .kind = CFS_OPT_INT,
	 .offset = offsetof(struct conf, retries),
	 .min = -1,
	 .max = 100,
	 .def = "10",
	 .arg = "N",
	 .help = "tries"},
	{.name = "buffer-size",
	 .kind = CFS_OPT_SIZE,
	 .offset = offsetof(struct conf, buffer_size),
	 .unit = 1 << 20,
	 .min = 8 << 20,
	 .max = (int64_t)1 << 40,
	 .def = "300",
	 .arg = "SIZE",
	 .help = "memory for data that is read ahead, written and cached, shared by all files of "
		 "the "
		 "mount"},
	{.name = "attr-cache",
	 .kind = CFS_OPT_DURATION,
	 .offset = offsetof(struct conf, attr_cache_ms),
	 .def = "1.0",
	 .arg = "TIME",
	 .help = "how long attributes stay valid"},
	{.name = "free-space-ratio",
	 .kind = CFS_OPT_FRACTION,
	 .offset = offsetof(struct conf, free_ratio),
	 .def = "0.1",
	 .arg = "RATIO",
	 .help = "kept free"},
	{.name = "subdir",
	 .letter = 'd',
	 .kind = CFS_OPT_STRING,
	 .offset = offsetof(struct conf, subdir),
	 .arg = "PATH",
	 .help = "mount this directory"},
	{.name = "secret-key",
	 .kind = CFS_OPT_STRING,
	 .flags = CFS_OPT_SECRET,
	 .offset = offsetof(struct conf, secret_key),
	 .arg = "KEY",
	 .help = "of the object store"},
	{.name = "verify",
	 .kind = CFS_OPT_CHOICE,
	 .flags = CFS_OPT_HIDDEN,
	 .offset = offsetof(struct conf, mode),
	 .choices = modes,
	 .def = "full",
	 .help = "checksums"},
	{0},
};

static struct conf conf;
static char err[CFS_OPT_ERRLEN];

static int set_up(void **state)
{
	memset(&conf, 0xa5, sizeof(conf));
	return cfs_opt_defaults(table, &conf);
}

static int tear_down(void **state)
{
	cfs_opt_free(table, &conf);
	return 0;
}

static void defaults(void **state)
{
	assert_false(conf.writeback);
	assert_true(conf.readahead);
	assert_int_equal(conf.retries, 10);
	assert_int_equal(conf.buffer_size, 300u << 20);
	assert_int_equal(conf.attr_cache_ms, 1000);
	assert_true(conf.free_ratio > 0.0999 && conf.free_ratio < 0.1001);
	assert_null(conf.subdir);
	assert_int_equal(conf.mode, 2);
}

static int set(const char *name, const char *value)
{
	err[0] = 0;
	return cfs_opt_set(table, &conf, name, value, err);
}

static void values(void **state)
{
	assert_int_equal(set("buffer_size", "1G"), 0);
	assert_int_equal(conf.buffer_size, 1u << 30);
	assert_int_equal(set("io-retries", "-1"), 0);
	assert_int_equal(conf.retries, -1);
	assert_int_equal(set("attr-cache", "0.5"), 0);
	assert_int_equal(conf.attr_cache_ms, 500);
	assert_int_equal(set("verify", "read"), 0);
	assert_int_equal(conf.mode, 1);
	assert_int_equal(set("subdir", "/a"), 0);
	assert_int_equal(set("subdir", "/b"), 0);
	assert_string_equal(conf.subdir, "/b");
	assert_int_equal(set("writeback", NULL), 0);
	assert_true(conf.writeback);
	assert_int_equal(set("writeback", "0"), 0);
	assert_false(conf.writeback);
	assert_int_equal(set("no_read_ahead", NULL), 0);
	assert_false(conf.readahead);
}

static void bad_values_are_explained(void **state)
{
	assert_int_equal(set("buffer-size", "1M"), -EINVAL);
	assert_string_equal(err, "option buffer-size: '1M' is not within 8M to 1T");
	assert_int_equal(conf.buffer_size, 300u << 20);
	assert_int_equal(set("buffer-size", "lots"), -EINVAL);
	assert_string_equal(err,
			    "option buffer-size: 'lots' is not a size such as 512K, 64M or 2G");
	assert_int_equal(set("io-retries", "101"), -EINVAL);
	assert_string_equal(err, "option io_retries: '101' is not within -1 to 100");
	assert_int_equal(set("io-retries", "1x"), -EINVAL);
	assert_int_equal(set("verify", "half"), -EINVAL);
	assert_string_equal(err, "option verify: 'half' is none of none, read, full");
	assert_int_equal(set("free-space-ratio", "1.1"), -EINVAL);
	assert_int_equal(set("free-space-ratio", "nan"), -EINVAL);
	assert_int_equal(set("writeback", "maybe"), -EINVAL);
	assert_int_equal(set("no-writeback", "true"), -EINVAL);
	assert_int_equal(set("subdir", NULL), -EINVAL);
	assert_string_equal(err, "option subdir needs a value");
	assert_int_equal(set("no-subdir", NULL), -ENOENT);
	assert_int_equal(set("bogus", "1"), -ENOENT);
}

static int arg(const char *a, const char *b)
{
	char *argv[] = {(char *)a, (char *)b, NULL};

	err[0] = 0;
	return cfs_opt_arg(table, &conf, b ? 2 : 1, argv, err);
}

static void command_line(void **state)
{
	assert_int_equal(arg("--subdir", "/x"), 2);
	assert_string_equal(conf.subdir, "/x");
	assert_int_equal(arg("--subdir=/y=z", "other"), 1);
	assert_string_equal(conf.subdir, "/y=z");
	assert_int_equal(arg("-d", "-w"), 2);
	assert_string_equal(conf.subdir, "-w");
	assert_false(conf.writeback);
	assert_int_equal(arg("-d", NULL), -EINVAL);
	assert_int_equal(arg("-d/x", NULL), -ENOENT);
	assert_int_equal(arg("-w", "positional"), 1);
	assert_true(conf.writeback);
	assert_int_equal(arg("--no-writeback", NULL), 1);
	assert_int_equal(arg("--writeback", "positional"), 1);
	assert_true(conf.writeback);
	assert_int_equal(arg("--no-writeback", NULL), 1);
	assert_false(conf.writeback);
	assert_int_equal(arg("/mnt", NULL), 0);
	assert_int_equal(arg("-", NULL), 0);
	assert_int_equal(arg("--", NULL), 0);
	assert_int_equal(arg("-x", NULL), -ENOENT);
	assert_int_equal(arg("--bogus", NULL), -ENOENT);
	assert_int_equal(arg("--subdir", NULL), -EINVAL);
}

/* Everybody can read the process list. */
static void secrets_stay_off_the_command_line(void **state)
{
	char text[64];

	assert_int_equal(arg("--secret-key=hunter2", NULL), -EINVAL);
	assert_null(strstr(err, "hunter2"));
	assert_int_equal(cfs_opt_list(table, &conf, "secret_key=hunter2", NULL, NULL, err),
			 -EINVAL);
	assert_null(strstr(err, "hunter2"));
	assert_null(conf.secret_key);
	assert_int_equal(set("secret-key", "hunter2"), 0);
	assert_string_equal(conf.secret_key, "hunter2");
	cfs_opt_show(&table[7], &conf, text, sizeof(text));
	assert_string_equal(text, "***");
}

static char seen[256];

static int collect(void *arg, const char *name, const char *value)
{
	size_t used = strlen(seen);

	snprintf(seen + used, sizeof(seen) - used, "%s=%s;", name, value ? value : "(bare)");
	return strcmp(name, "stop") == 0 ? -ENODATA : 0;
}

static void mount_options(void **state)
{
	seen[0] = 0;
	assert_int_equal(cfs_opt_list(table, &conf,
				      ",rw,writeback,subdir=/a\\,b,x-foo=1=2,buffer-size=16,",
				      collect, NULL, err),
			 0);
	assert_string_equal(seen, "rw=(bare);x-foo=1=2;");
	assert_string_equal(conf.subdir, "/a,b");
	assert_true(conf.writeback);
	assert_int_equal(conf.buffer_size, 16 << 20);
	assert_int_equal(cfs_opt_list(table, &conf, "stop,subdir=/c", collect, NULL, err),
			 -ENODATA);
	assert_string_equal(conf.subdir, "/a,b");
	assert_int_equal(cfs_opt_list(table, &conf, "rw", NULL, NULL, err), -ENOENT);
	assert_string_equal(err, "unknown option rw");
	assert_int_equal(cfs_opt_list(table, &conf, "buffer-size=x", collect, NULL, err), -EINVAL);
	assert_int_equal(cfs_opt_list(table, &conf, "", NULL, NULL, err), 0);
}

static void sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t unit, want;
	} good[] = {
		{"0", 0, 0},
		{"4096", 0, 4096},
		{"300", 1 << 20, 300ull << 20},
		{"1.5G", 0, 3ull << 29},
		{"64KiB", 0, 65536},
		{"64kb", 1 << 20, 65536},
		{"100B", 1 << 20, 100},
		{"8P", 0, 8ull << 50},
		{"18446744073709551615", 0, UINT64_MAX},
	};
	static const char *const bad[] = {"",
					  "-1",
					  "K",
					  "1X",
					  "1KK",
					  "1 K",
					  "1.",
					  ".5K",
					  "17000P",
					  "1e3",
					  "18446744073709551616",
					  "1Bi"};
	uint64_t v;
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(good); i++) {
		assert_int_equal(cfs_parse_size(good[i].text, good[i].unit, &v), 0);
		assert_int_equal(v, good[i].want);
	}
	for (i = 0; i < CFS_ARRAY_SIZE(bad); i++)
		assert_true(cfs_parse_size(bad[i], 1, &v) < 0);
}

static void durations(void **state)
{
	static const struct {
		const char *text;
		uint64_t unit_ms, want;
	} good[] = {
		{"0", 0, 0},	      {"1", 0, 1000},
		{"0.05", 0, 50},      {"7", 86400000, 604800000},
		{"250ms", 0, 250},    {"1h30m", 0, 5400000},
		{"1.5h", 0, 5400000}, {"2d", 0, 172800000},
		{"1m0s", 0, 60000},
	};
	static const char *const bad[] = {"",	  "s",	 "-1s", "1y",
					  "1h30", "0s5", "1 s", "99999999999999999999d"};
	uint64_t v;
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(good); i++) {
		assert_int_equal(cfs_parse_duration_ms(good[i].text, good[i].unit_ms, &v), 0);
		assert_int_equal(v, good[i].want);
	}
	for (i = 0; i < CFS_ARRAY_SIZE(bad); i++)
		assert_true(cfs_parse_duration_ms(bad[i], 0, &v) < 0);
}

/* What `cachefs status` prints can be pasted into fstab. */
static void shown_values_read_back(void **state)
{
	static const struct {
		const char *name, *value, *shown;
	} cases[] = {
		{"buffer-size", "300", "300M"},
		{"buffer-size", "9000001B", "9000001B"},
		{"attr-cache", "90", "90s"},
		{"attr-cache", "120", "2m"},
		{"attr-cache", "0", "0"},
		{"attr-cache", "1500ms", "1500ms"},
		{"free-space-ratio", "0.25", "0.25"},
		{"verify", "none", "none"},
		{"writeback", NULL, "true"},
		{"io_retries", "-1", "-1"},
		{"subdir", "/x", "/x"},
	};
	const struct cfs_opt *o;
	struct conf again;
	char text[64], twice[64];
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		for (o = table; strcmp(o->name, cases[i].name) != 0; o++)
			;
		assert_int_equal(set(cases[i].name, cases[i].value), 0);
		cfs_opt_show(o, &conf, text, sizeof(text));
		assert_string_equal(text, cases[i].shown);
		assert_int_equal(cfs_opt_defaults(table, &again), 0);
		assert_int_equal(cfs_opt_set(table, &again, o->name, text, err), 0);
		cfs_opt_show(o, &again, twice, sizeof(twice));
		assert_string_equal(twice, text);
		cfs_opt_free(table, &again);
	}
}

static void help(void **state)
{
	char *text, *line, *save;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	cfs_opt_help(table, out);
	fclose(out);
	assert_non_null(strstr(text, "  --writeback                   acknowledge"));
	assert_non_null(
		strstr(text, "  --subdir PATH                 mount this directory (-d)\n"));
	assert_non_null(strstr(text, "[300]"));
	assert_null(strstr(text, "verify"));
	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		assert_true(strlen(line) <= 100);
		assert_int_not_equal(line[strlen(line) - 1], ' ');
	}
	free(text);
}

/* An option that was not given is not mistaken for a user's value, and no value clears it. */
static void unset(void **state)
{
	static const struct cfs_opt numbers[] = {
		{.name = "size",
		 .kind = CFS_OPT_SIZE,
		 .flags = CFS_OPT_UNSET,
		 .offset = offsetof(struct conf, buffer_size),
		 .def = "4M"},
		{.name = "time",
		 .kind = CFS_OPT_DURATION,
		 .flags = CFS_OPT_UNSET,
		 .offset = offsetof(struct conf, attr_cache_ms)},
		{0},
	};
	struct conf c = {0};

	assert_int_equal(cfs_opt_defaults(numbers, &c), 0);
	assert_true(c.buffer_size == UINT64_MAX && c.attr_cache_ms == UINT64_MAX);
	assert_int_equal(cfs_opt_set(numbers, &c, "size", "0", err), 0);
	assert_true(c.buffer_size == 0 && c.attr_cache_ms == UINT64_MAX);
}

#define OPT_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		OPT_TEST(defaults),
		OPT_TEST(values),
		OPT_TEST(bad_values_are_explained),
		OPT_TEST(command_line),
		OPT_TEST(secrets_stay_off_the_command_line),
		OPT_TEST(mount_options),
		OPT_TEST(shown_values_read_back),
		cmocka_unit_test(sizes),
		cmocka_unit_test(durations),
		cmocka_unit_test(help),
		cmocka_unit_test(unset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
