/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When these fail a volume of a JuiceFS user does not mount with the URL it has, or a password
 * shows up in a log.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/text/url.h"

struct want {
	const char *text, *scheme, *user, *password, *hosts, *socket, *path, *key, *value;
};

static const struct want sound[] = {
	{"localhost", "redis", NULL, NULL, "localhost"},
	{"10.0.0.1:6379/3", "redis", NULL, NULL, "10.0.0.1:6379", NULL, "3"},
	{"redis://:pa%40ss%2Fw@h:6379/1?read-timeout=3s", "redis", NULL, "pa@ss/w", "h:6379", NULL,
	 "1", "read-timeout", "3s"},
	{"rediss://u:p:q@[::1]:6380/0", "rediss", "u", "p:q", "[::1]:6380", NULL, "0"},
	{"redis://h1:7000,h2:7001,h3/2", "redis", NULL, NULL, "h1:7000,h2:7001,h3", NULL, "2"},
	{"redis://:pw@mymaster,s1,s2:26379/5", "redis", NULL, "pw", "mymaster,s1,s2:26379", NULL,
	 "5"},
	{"redis:///1", "redis", NULL, NULL, NULL, NULL, "1"},
	{"redis://a@b:c@h", "redis", "a@b", "c", "h"},
	{"REDIS://h?tls-cert-file=/a%20b", "redis", NULL, NULL, "h", NULL, NULL, "tls-cert-file",
	 "/a b"},
	{"unix:///run/redis.sock?db=2", "unix", NULL, NULL, NULL, "/run/redis.sock", NULL, "db",
	 "2"},
	{"unix://u:p@/run/r@1.sock", "unix", "u", "p", NULL, "/run/r@1.sock"},
	{"mysql://root:pw@(127.0.0.1:3306)/jfs", "mysql", "root", "pw", "127.0.0.1:3306", NULL,
	 "jfs"},
	{"mysql://root:p@ss/w:?rd@tcp(db:3306)/jfs?charset=utf8", "mysql", "root", "p@ss/w:?rd",
	 "db:3306", NULL, "jfs", "charset", "utf8"},
	{"mysql://root:p%40%2F@(db)/jfs", "mysql", "root", "p@/", "db", NULL, "jfs"},
	{"mysql://root:100%@(db)/jfs", "mysql", "root", "100%", "db", NULL, "jfs"},
	{"mysql://root:a/b%41@(db)/jfs", "mysql", "root", "a/b%41", "db", NULL, "jfs"},
	{"mysql://root@unix(/run/mysqld/m.sock)/jfs", "mysql", "root", NULL, NULL,
	 "/run/mysqld/m.sock", "jfs"},
	{"mysql://(db:3306)/jfs?loc=Europe/Paris", "mysql", NULL, NULL, "db:3306", NULL, "jfs",
	 "loc", "Europe/Paris"},
	{"mysql://u:p@tcp([::1]:3306)/jfs", "mysql", "u", "p", "[::1]:3306", NULL, "jfs"},
	{"mysql://u:p@/jfs", "mysql", "u", "p", NULL, NULL, "jfs"},
	{"mysql://u:p@db:3306/jfs", "mysql", "u", "p", "db:3306", NULL, "jfs"},
	{"postgres://u:p%3Aw@h:5432/db?sslmode=disable&search_path=s", "postgres", "u", "p:w",
	 "h:5432", NULL, "db", "search_path", "s"},
	{"postgres://user@/db?host=/run/postgresql", "postgres", "user", NULL, NULL,
	 "/run/postgresql", "db", "host", "/run/postgresql"},
	{"postgresql://h/db", "postgresql", NULL, NULL, "h", NULL, "db"},
	{"sqlite3://my.db", "sqlite3", NULL, NULL, NULL, NULL, "my.db"},
	{"sqlite3:///var/a@b:c%20.db?_journal=WAL&x", "sqlite3", NULL, NULL, NULL, NULL,
	 "/var/a@b:c%20.db", "x", ""},
	{"sqlite3:///v.db?a=1&&b=x+y", "sqlite3", NULL, NULL, NULL, NULL, "/v.db", "b", "x y"},
};

static void assert_field(const char *got, const char *want)
{
	if (want) {
		assert_non_null(got);
		assert_string_equal(got, want);
	} else {
		assert_null(got);
	}
}

static void sound_urls(void **state)
{
	char err[256] = "";
	struct cfs_url url;
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(sound); i++) {
		if (cfs_url_parse(sound[i].text, &url, err) < 0)
			fail_msg("%s: %s", sound[i].text, err);
		assert_string_equal(url.scheme, sound[i].scheme);
		assert_field(url.user, sound[i].user);
		assert_field(url.password, sound[i].password);
		assert_field(url.hosts, sound[i].hosts);
		assert_field(url.socket, sound[i].socket);
		assert_field(url.path, sound[i].path);
		if (sound[i].key)
			assert_field(cfs_url_option(&url, sound[i].key), sound[i].value);
		assert_null(cfs_url_option(&url, "absent"));
		cfs_url_free(&url);
	}
}

static void broken_urls(void **state)
{
	static const char *const broken[] = {
		"",
		"://h",
		"1x://h",
		"re dis://h",
		"redis://:sec/ret@h/1",
		"redis://h:sec",
		"redis://h1,,h2",
		"redis://[::1",
		"redis://[::1]sec",
		"redis://u:sec%zz@h",
		"redis://u:sec%00@h",
		"redis://u:sec%4",
		"redis://h?a=%",
		"redis://h\n/1",
		"unix://",
		"unix://sec",
		"unix://u:sec/run/x",
		"mysql://root:sec",
		"mysql://root:sec@(h:3306/db",
		"mysql://root:sec@udp(h)/db",
		"mysql://root:sec@unix()/db",
		"sqlite3://",
		"sqlite3://?a=b",
		"postgres://h/db?password=a&sec",
		"redis://u:7?sec@h/1",
	};
	struct cfs_url url;
	char err[256];
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(broken); i++) {
		err[0] = 0;
		if (cfs_url_parse(broken[i], &url, err) != -EINVAL)
			fail_msg("accepted: %s", broken[i]);
		assert_string_not_equal(err, "");
		assert_null(strstr(err, "sec"));
	}
}

static void masked(void **state)
{
	static const struct {
		const char *text, *want;
	} cases[] = {
		{"redis://:secret@h:6379/1", "redis://:****@h:6379/1"},
		{"redis://u:secret@h1:1,h2:2/1?db=1", "redis://u:****@h1:1,h2:2/1?db=1"},
		{"redis://secret@h/1", "redis://****@h/1"},
		{"u:secret@h", "u:****@h"},
		{"redis://h:6379/1", "redis://h:6379/1"},
		{"redis://[::1]:6379", "redis://[::1]:6379"},
		{"mysql://root:se/c?r@e:t@(h:3306)/db?password=secret&x=1",
		 "mysql://root:****@(h:3306)/db?password=****&x=1"},
		{"mysql://(h:3306)/db", "mysql://(h:3306)/db"},
		{"mysql://u@unix(/run/a.sock)/db", "mysql://u@unix(/run/a.sock)/db"},
		{"postgres://u:secret@/db?host=/run&sslpassword=secret",
		 "postgres://u:****@/db?host=/run&sslpassword=****"},
		{"postgres://h/db?pass%77ord=secret", "postgres://h/db?pass%77ord=****"},
		{"x://h?secret-key=s&access_key=a&keyfile=k",
		 "x://h?secret-key=****&access_key=****&keyfile=k"},
		{"sqlite3:///a:b@c.db?_auth_pass=secret", "sqlite3:///a:b@c.db?_auth_pass=****"},
		{"postgres://h/db?user=a@b&password=secret",
		 "postgres://h/db?****@b&password=****"},
		{"postgres://h/db?password=secret&user=a@b", "postgres://h/db?****@b"},
		{"mysql://u:p@(h:1)/db?a=b@c;password=secret&x=1",
		 "mysql://u:****@c;password=****&x=1"},
		/* characters that end a part, in a secret */
		{"postgres://h/db?password=a;secret&x=1", "postgres://h/db?password=****&x=1"},
		{"postgres://h/db?password=a&secret&x=1", "postgres://h/db?password=****&****&x=1"},
		{"redis://h/1?a&b=1;c", "redis://h/1?a&b=1;c"},
		{"postgres://u@h/db?x=1&password=a@secret&y=1", "postgres://u@h/db?****&y=1"},
		{"mysql://u:p@(h)/db?password=a?b;c@secret", "mysql://u:****"},
		{"redis://:pa?secret/1", "redis://:****"},
		{"redis://:12/secret", "redis://:****"},
		{"other://:12?secret", "other://:****"},
		{"postgres://:5432/db", "postgres://:5432/db"},
		{"postgres://u:1234567/db", "postgres://u:****"},
		{"postgres://u%3Asecret@h/db", "postgres://u%3A****@h/db"},
		{"mysql://u%3as:x@(h)/db?x=%3a", "mysql://u%3a****@(h)/db?x=%3a"},
		{"unix://secret@/run/a.sock?db=1", "unix://****@/run/a.sock?db=1"},
		{"redis://:my_password=secret@h", "redis://:****@h"},
		/* options as of libpq */
		{"host=h password=secret", "host=h password=****"},
		{"host=h password = 's e@c:r?et' x=1", "host=h password =****"},
		{"postgres://h pgpassword=secret?a=1", "postgres://h pgpassword=****"},
		{"postgres://h password=a@secret", "postgres://h password=****"},
		{"postgres:///host=h password=secret", "postgres:///host=h password=****"},
		{"/data/key=5/x", "/data/key=5/x"},
		{"postgres://host=h dbname=d", "postgres://host=h dbname=d"},
		/* half broken */
		{"mysql:/root:secret@(h)/db", "mysql:****@(h)/db"},
		{"mysql://root:secret(h:3306)/db", "mysql://root:****"},
		{"redis://:secret", "redis://:****"},
		{"redis://:12secret/1", "redis://:****"},
		{"root:pw://secret@h/db", "root:****@h/db"},
		{"redis://h?%zz=secret", "redis://h?%zz=****"},
		{"redis://u:sec%zz@", "redis://u:****@"},
		{"", ""},
		{"?", "?"},
		{"@", "****@"},
	};
	char buf[256], tiny[8];
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		cfs_url_mask(cases[i].text, buf, sizeof(buf));
		assert_string_equal(buf, cases[i].want);
		cfs_url_mask(cases[i].text, tiny, sizeof(tiny));
		assert_true(strlen(tiny) < sizeof(tiny));
		assert_memory_equal(tiny, buf, strlen(tiny));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sound_urls),
		cmocka_unit_test(broken_urls),
		cmocka_unit_test(masked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
