/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When these fail requests are refused by the server, or go to another bucket or as somebody else.
 */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/unwanted.h"
#include "object/http/http.h"
#include "object/s3/s3.h"
#include "unit/wait.h"

#define SECRET "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"

static char home[] = "/tmp/cachefs-test-s3-XXXXXX";

/* ---- signature ---- */

static void test_encoding(void **state)
{
	char out[256];

	cfs_s3_encode("AZaz09-_.~/x", true, out);
	assert_string_equal(out, "AZaz09-_.~/x");
	cfs_s3_encode("a/b", false, out);
	assert_string_equal(out, "a%2Fb");
	cfs_s3_encode(" !\"#$%&'()*+,:;<=>?@[\\]^`{|}\xc3\xa9\x01", true, out);
	assert_string_equal(out, "%20%21%22%23%24%25%26%27%28%29%2A%2B%2C%3A%3B%3C%3D%3E%3F%40%5B"
				 "%5C%5D%5E%60%7B%7C%7D%C3%A9%01");
}

/* Expected values: another implementation of AWS's description. */
static void test_signature(void **state)
{
	struct {
		struct cfs_s3_to_sign what;
		const char *region, *token, *date, *want;
	} cases[] = {
		{{"GET",
		  "/test%20%2Btxt",
		  "",
		  {[CFS_S3_HOST] = "examplebucket.s3.amazonaws.com",
		   [CFS_S3_CONTENT_SHA256] = "UNSIGNED-PAYLOAD"},
		  1369353600},
		 "us-east-1",
		 NULL,
		 "20130524T000000Z",
		 "AWS4-HMAC-SHA256 Credential=AKID/20130524/us-east-1/s3/aws4_request,"
		 "SignedHeaders=host;x-amz-content-sha256;x-amz-date,"
		 "Signature=b1ae622b7e8320ae00f435d2e2525928aa113d3cf96f2e11cbd0cc3fa38f0b2f"},
		{{"PUT",
		  "/b/k",
		  "",
		  {[CFS_S3_HOST] = "h:9000",
		   [CFS_S3_META_CRC32C] = "123",
		   [CFS_S3_CONTENT_SHA256] = "UNSIGNED-PAYLOAD"},
		  1369353600},
		 "eu-west-1",
		 "tok/en+==",
		 "20130524T000000Z",
		 "AWS4-HMAC-SHA256 Credential=AKID/20130524/eu-west-1/s3/aws4_request,"
		 "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-meta-crc32c;"
		 "x-amz-security-token,"
		 "Signature=599cd7d3ee8fae254141f5263fd9252001f070c4bc1ae72bb92fe6c84c842ff4"},
		{{"POST",
		  "/b",
		  "delete=",
		  {[CFS_S3_HOST] = "h",
		   [CFS_S3_CONTENT_MD5] = "1B2M2Y8AsgTpgAmY7PhCfg==",
		   [CFS_S3_CONTENT_SHA256] = "UNSIGNED-PAYLOAD"},
		  1369443723},
		 "us-east-1",
		 NULL,
		 "20130525T010203Z",
		 "AWS4-HMAC-SHA256 Credential=AKID/20130525/us-east-1/s3/aws4_request,"
		 "SignedHeaders=content-md5;host;x-amz-content-sha256;x-amz-date,"
		 "Signature=b4d76dacb24655357e6169755c6a11887634fc84ca37ac3e2be6c9ed7faf356f"},
	};
	size_t i;
	int round;

	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		struct cfs_s3_signer signer;
		struct cfs_s3_keys *keys;
		char date[17], *got;

		cfs_s3_signer_init(&signer);
		assert_int_equal(cfs_s3_keys_new("AKID", SECRET, cases[i].token, 0, &keys), 0);
		/* The second time the day's key is known. */
		for (round = 0; round < 2; round++) {
			assert_int_equal(cfs_s3_sign(&signer, cases[i].region, keys, &cases[i].what,
						     date, &got),
					 0);
			assert_string_equal(date, cases[i].date);
			assert_string_equal(got, cases[i].want);
			free(got);
		}
		cfs_s3_keys_unref(keys);
		cfs_s3_signer_fini(&signer);
	}
}

static void test_signature_follows_the_keys(void **state)
{
	struct cfs_s3_to_sign what = {
		"GET",
		"/b/k",
		"",
		{[CFS_S3_HOST] = "h", [CFS_S3_CONTENT_SHA256] = "UNSIGNED-PAYLOAD"},
		1369353600};
	char date[17], *first, *second, *third;
	struct cfs_s3_keys *a, *b;
	struct cfs_s3_signer s;

	cfs_s3_signer_init(&s);
	assert_int_equal(cfs_s3_keys_new("AKID", "one", NULL, 0, &a), 0);
	assert_int_equal(cfs_s3_keys_new("AKID", "two", NULL, 0, &b), 0);
	assert_int_equal(cfs_s3_sign(&s, "r", a, &what, date, &first), 0);
	assert_int_equal(cfs_s3_sign(&s, "r", b, &what, date, &second), 0);
	assert_int_equal(cfs_s3_sign(&s, "r", a, &what, date, &third), 0);
	assert_string_not_equal(first, second);
	assert_string_equal(first, third);
	free(first);
	free(second);
	free(third);
	cfs_s3_keys_unref(a);
	cfs_s3_keys_unref(b);
	cfs_s3_signer_fini(&s);
}

/* ---- endpoint ---- */

static void test_endpoints(void **state)
{
	static const struct {
		const char *storage, *text, *origin, *path, *bucket, *region;
	} cases[] = {
		{"s3", "https://bkt.s3.eu-west-1.amazonaws.com",
		 "https://bkt.s3.eu-west-1.amazonaws.com", "", "bkt", "eu-west-1"},
		{"s3", "https://bkt.s3-eu-west-1.amazonaws.com/",
		 "https://bkt.s3-eu-west-1.amazonaws.com", "", "bkt", "eu-west-1"},
		{"s3", "https://s3.eu-west-1.amazonaws.com/bkt",
		 "https://bkt.s3.eu-west-1.amazonaws.com", "", "bkt", "eu-west-1"},
		{"s3", "bkt.s3.cn-north-1.amazonaws.com.cn",
		 "https://bkt.s3.cn-north-1.amazonaws.com.cn", "", "bkt", "cn-north-1"},
		{"s3", "https://s3.dualstack.us-west-2.amazonaws.com/bkt",
		 "https://bkt.s3.dualstack.us-west-2.amazonaws.com", "", "bkt", "us-west-2"},
		{"s3", "https://my.dotted.bkt.s3.us-west-2.amazonaws.com",
		 "https://s3.us-west-2.amazonaws.com", "/my.dotted.bkt", "my.dotted.bkt",
		 "us-west-2"},
		{"s3", "https://bkt.s3.amazonaws.com", "https://bkt.s3.amazonaws.com", "", "bkt",
		 "us-east-1"},
		{"s3", "https://s3.amazonaws.com/bkt", "https://bkt.s3.amazonaws.com", "", "bkt",
		 "us-east-1"},
		{"s3", "https://vpce-1a.s3.us-east-2.vpce.amazonaws.com/bkt",
		 "https://vpce-1a.s3.us-east-2.vpce.amazonaws.com", "/bkt", "bkt", "us-east-2"},
		{"s3", "bkt", "https://bkt.s3.us-east-1.amazonaws.com", "", "bkt", "us-east-1"},
		{"s3", "http://host.example:9000/bkt", "http://host.example:9000", "/bkt", "bkt",
		 "us-east-1"},
		{"s3", "http://127.0.0.1:9000/bkt/", "http://127.0.0.1:9000", "/bkt", "bkt",
		 "us-east-1"},
		{"s3", "https://[::1]:9000/bkt", "https://[::1]:9000", "/bkt", "bkt", "us-east-1"},
		{"s3", "host.example/bkt", "http://host.example", "/bkt", "bkt", "us-east-1"},
		{"s3", "localhost:9000/bkt", "http://localhost:9000", "/bkt", "bkt", "us-east-1"},
		{"s3", "https://bkt.host.example", "https://host.example", "/bkt", "bkt",
		 "us-east-1"},
		{"s3", "https://host.example/bkt?region=here", "https://host.example", "/bkt",
		 "bkt", "here"},
		{"minio", "http://host:9000/bkt?region=there", "http://host:9000", "/bkt", "bkt",
		 "there"},
		{"minio", "host:9000/bkt", "http://host:9000", "/bkt", "bkt", "us-east-1"},
	};
	struct cfs_s3_endpoint e;
	char err[CFS_OBJECT_ERRLEN];
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		assert_int_equal(cfs_s3_endpoint_parse(cases[i].storage, cases[i].text, &e, err),
				 0);
		assert_string_equal(e.origin, cases[i].origin);
		assert_string_equal(e.path, cases[i].path);
		assert_string_equal(e.bucket, cases[i].bucket);
		assert_string_equal(e.region, cases[i].region);
		cfs_s3_endpoint_free(&e);
	}
}

static void test_endpoint_options_and_environment(void **state)
{
	struct cfs_s3_endpoint e;
	char err[CFS_OBJECT_ERRLEN];

	setenv("JFS_S3_VHOST_STYLE", "true", 1);
	setenv("AWS_DEFAULT_REGION", "by-default", 1);
	assert_int_equal(cfs_s3_endpoint_parse("s3",
					       "https://host.example/bkt?disable-checksum=true"
					       "&tls-insecure-skip-verify=true&ca-certs=/c%20a"
					       "&ssl-cert=/b&ssl-key=/k",
					       &e, err),
			 0);
	assert_string_equal(e.host, "bkt.host.example");
	assert_string_equal(e.path, "");
	assert_string_equal(e.region, "by-default");
	assert_string_equal(e.ca_certs, "/c a");
	assert_string_equal(e.ssl_cert, "/b");
	assert_string_equal(e.ssl_key, "/k");
	assert_true(e.insecure);
	assert_false(e.checksum);
	cfs_s3_endpoint_free(&e);

	setenv("AWS_REGION", "first", 1);
	setenv("MINIO_REGION", "minio's", 1);
	assert_int_equal(cfs_s3_endpoint_parse("s3", "https://bkt.host.example", &e, err), 0);
	assert_string_equal(e.host, "bkt.host.example");
	assert_string_equal(e.region, "first");
	assert_true(e.checksum);
	cfs_s3_endpoint_free(&e);
	assert_int_equal(cfs_s3_endpoint_parse("minio", "http://h/bkt", &e, err), 0);
	assert_string_equal(e.host, "h");
	assert_string_equal(e.path, "/bkt");
	assert_string_equal(e.region, "minio's");
	cfs_s3_endpoint_free(&e);
	unsetenv("JFS_S3_VHOST_STYLE");
	unsetenv("AWS_DEFAULT_REGION");
	unsetenv("AWS_REGION");
	unsetenv("MINIO_REGION");
}

static void test_endpoints_that_are_none(void **state)
{
	static const char *const texts[] = {
		"",
		"http://",
		"ftp://host/bkt",
		"http://127.0.0.1:9000",
		"http://localhost:9000/",
		"https://s3.eu-west-1.amazonaws.com",
		"https://ec2.amazonaws.com/bkt",
		"https://key:secret@host.example/bkt",
		"http://a.example,b.example/bkt",
		"https://vpce-1a.s3.us-east-2.vpce.amazonaws.com",
		"http://host.example/bkt?x=%zz",
		"http://bkt./",
	};
	struct cfs_s3_endpoint e;
	char err[CFS_OBJECT_ERRLEN];
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(texts); i++) {
		err[0] = '\0';
		assert_true(cfs_s3_endpoint_parse("s3", texts[i], &e, err) < 0);
		assert_true(err[0]);
		assert_null(strstr(err, "secret@"));
	}
	assert_true(cfs_s3_endpoint_parse("minio", "http://bkt.host.example", &e, err) < 0);
}

/* ---- checksums ---- */

/*
 * Without it: a server that names a length near 2^64 makes a table without checksums fit, and bytes
 * behind the table are read.
 */
static void test_tables_for_another_length(void **state)
{
	static uint8_t segment[131072];
	struct iovec iov = {segment, sizeof(segment)};
	struct cfs_s3_response resp = {.http = {.received = sizeof(segment)}};
	static const struct {
		const char *table;
		uint64_t total;
	} cases[] = {
		{"131072:", UINT64_MAX},
		{"131072:", UINT64_MAX - 131070},
		{"131072:", 1},
		{"131072:00000000", UINT64_MAX},
		{"131072:00000000", 131073},
		{"131072:0000000000000000", 131072},
		{"131071:00000000", 131071},
		{"131072", 0},
	};
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(cases); i++) {
		snprintf(resp.table, sizeof(resp.table), "%s", cases[i].table);
		assert_int_equal(cfs_s3_judge_body("k", &resp, &iov, 1, 0, cases[i].total),
				 CFS_S3_UNCOVERED);
	}
}

/* ---- credentials ---- */

static void clear_environment(void)
{
	static const char *const names[] = {
		"ACCESS_KEY",
		"SECRET_KEY",
		"SESSION_TOKEN",
		"AWS_ACCESS_KEY_ID",
		"AWS_SECRET_ACCESS_KEY",
		"AWS_SESSION_TOKEN",
		"MINIO_ACCESS_KEY",
		"MINIO_SECRET_KEY",
		"AWS_PROFILE",
		"AWS_CONFIG_FILE",
		"AWS_SHARED_CREDENTIALS_FILE",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
	};
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(names); i++)
		unsetenv(names[i]);
	setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
	setenv("HOME", home, 1);
}

static void write_file(const char *name, const char *text)
{
	char path[256];
	FILE *out;

	snprintf(path, sizeof(path), "%s/.aws", home);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s/.aws/%s", home, name);
	out = fopen(path, "w");
	assert_non_null(out);
	fputs(text, out);
	fclose(out);
}

static void expect_keys(const struct cfs_object_conf *conf, const char *access, const char *secret,
			const char *token)
{
	struct cfs_s3_credentials *c;
	const struct cfs_s3_keys *keys;
	char err[CFS_OBJECT_ERRLEN];

	assert_int_equal(cfs_s3_credentials_open(conf, &c), 0);
	assert_int_equal(cfs_s3_credentials_get(c, soon(), &keys, err), 0);
	if (access) {
		assert_string_equal(keys->access, access);
		assert_string_equal(keys->secret, secret);
	} else {
		assert_null(keys->access);
	}
	if (token)
		assert_string_equal(keys->token, token);
	else
		assert_null(keys->token);
	cfs_s3_keys_unref(keys);
	cfs_s3_credentials_close(c);
}

static void test_order_of_credentials(void **state)
{
	struct cfs_object_conf none = {.storage = "s3"}, minio = {.storage = "minio"};
	struct cfs_object_conf given = {
		.storage = "s3",
		.access_key = "given",
		.secret_key = "secret",
		.session_token = "token",
	};
	struct cfs_s3_credentials *c;
	const struct cfs_s3_keys *keys;
	char err[CFS_OBJECT_ERRLEN];

	clear_environment();
	assert_int_equal(cfs_s3_credentials_open(&none, &c), 0);
	assert_int_equal(cfs_s3_credentials_get(c, soon(), &keys, err), -EACCES);
	assert_non_null(strstr(err, "no credentials"));
	cfs_s3_credentials_close(c);

	write_file("config", "[default]\naws_access_key_id = c0\naws_secret_access_key=s0\n"
			     "[profile named]\naws_access_key_id=c1\naws_secret_access_key=s1\n");
	expect_keys(&none, "c0", "s0", NULL);
	setenv("AWS_PROFILE", "named", 1);
	expect_keys(&none, "c1", "s1", NULL);
	unsetenv("AWS_PROFILE");
	write_file("credentials", "; comment\n[other]\naws_access_key_id=x\n\n [default]\r\n"
				  "aws_access_key_id = a=1\r\naws_secret_access_key = b+/=\r\n"
				  "aws_session_token = t==\r\n[more]\naws_access_key_id=y\n");
	expect_keys(&none, "a=1", "b+/=", "t==");
	setenv("MINIO_ACCESS_KEY", "m", 1);
	setenv("MINIO_SECRET_KEY", "ms", 1);
	expect_keys(&none, "a=1", "b+/=", "t==");
	expect_keys(&minio, "m", "ms", NULL);
	setenv("AWS_ACCESS_KEY_ID", "aws", 1);
	setenv("AWS_SECRET_ACCESS_KEY", "awss", 1);
	setenv("AWS_SESSION_TOKEN", "awst", 1);
	expect_keys(&none, "aws", "awss", "awst");
	setenv("ACCESS_KEY", "mine", 1);
	setenv("SECRET_KEY", "mines", 1);
	expect_keys(&none, "mine", "mines", NULL);
	expect_keys(&given, "given", "secret", "token");
	given.access_key = "anonymous";
	expect_keys(&given, NULL, NULL, NULL);
	setenv("ACCESS_KEY", "anonymous", 1);
	expect_keys(&none, NULL, NULL, NULL);
	clear_environment();
}

static void test_refused_credentials_are_looked_for_again(void **state)
{
	struct cfs_object_conf none = {.storage = "s3"};
	struct cfs_s3_credentials *c;
	const struct cfs_s3_keys *old, *new;
	char err[CFS_OBJECT_ERRLEN];

	clear_environment();
	write_file("credentials", "[default]\naws_access_key_id=1\naws_secret_access_key=s\n");
	assert_int_equal(cfs_s3_credentials_open(&none, &c), 0);
	assert_int_equal(cfs_s3_credentials_get(c, soon(), &old, err), 0);
	write_file("credentials", "[default]\naws_access_key_id=2\naws_secret_access_key=s\n");
	assert_true(cfs_s3_credentials_expired(c, old));
	assert_int_equal(cfs_s3_credentials_get(c, soon(), &new, err), 0);
	assert_string_equal(new->access, "2");
	/* Keys that others have refreshed meanwhile are not refused with the old ones. */
	assert_true(cfs_s3_credentials_expired(c, old));
	cfs_s3_keys_unref(old);
	assert_int_equal(cfs_s3_credentials_get(c, soon(), &old, err), 0);
	assert_ptr_equal(old, new);
	cfs_s3_keys_unref(old);
	cfs_s3_keys_unref(new);
	cfs_s3_credentials_close(c);
}

static void test_changed_keys(void **state)
{
	struct cfs_object_conf conf = {.access_key = "one", .secret_key = "s1"};
	const struct cfs_s3_keys *first, *second, *third;
	struct cfs_s3_credentials *c;
	char err[CFS_OBJECT_ERRLEN];

	assert_int_equal(cfs_s3_credentials_open(&conf, &c), 0);
	assert_int_equal(cfs_s3_credentials_get(c, soon(), &first, err), 0);
	assert_int_equal(cfs_s3_credentials_adopt(c, &conf), 0);
	assert_int_equal(cfs_s3_credentials_get(c, soon(), &second, err), 0);
	assert_ptr_equal(first, second);
	cfs_s3_keys_unref(second);
	conf.secret_key = "s2";
	assert_int_equal(cfs_s3_credentials_adopt(c, &conf), 0);
	assert_int_equal(cfs_s3_credentials_get(c, soon(), &second, err), 0);
	assert_string_equal(second->secret, "s2");
	assert_string_equal(first->secret, "s1");
	conf.access_key = conf.secret_key = NULL;
	setenv("ACCESS_KEY", "env", 1);
	setenv("SECRET_KEY", "s3", 1);
	assert_int_equal(cfs_s3_credentials_adopt(c, &conf), 0);
	assert_int_equal(cfs_s3_credentials_get(c, soon(), &third, err), 0);
	assert_string_equal(third->access, "env");
	unsetenv("ACCESS_KEY");
	unsetenv("SECRET_KEY");
	cfs_s3_keys_unref(first);
	cfs_s3_keys_unref(second);
	cfs_s3_keys_unref(third);
	cfs_s3_credentials_close(c);
}

/* ---- the HTTP client ---- */

/* The only connection is used by a request to a server that does not answer. */
struct occupied {
	struct cfs_http *http;
	struct cfs_http_request req;
	struct cfs_http_response resp;
	sem_t begun;
	_Atomic bool unwanted;
	int r;
};

static bool note_and_ask(void *arg)
{
	struct occupied *o = arg;

	sem_post(&o->begun);
	return o->unwanted;
}

static void *occupy(void *arg)
{
	struct occupied *o = arg;

	cfs_unwanted_set(note_and_ask, o);
	o->r = cfs_http_run(o->http, &o->req, &o->resp);
	return NULL;
}

static bool always(void *arg)
{
	return true;
}

static void test_unwanted_requests_do_not_wait_for_a_connection(void **state)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct cfs_http_conf conf = {
		.max_connections = 1, .silence_ms = 2 * LONG_MS, .direct = true};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(at);
	struct occupied o = {0};
	uint64_t start = cfs_now_ms();
	char url[64], err[CFS_OBJECT_ERRLEN];
	pthread_t thread;

	assert_int_equal(bind(fd, (struct sockaddr *)&at, len), 0);
	assert_int_equal(listen(fd, 1), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
	snprintf(url, sizeof(url), "http://127.0.0.1:%u/", ntohs(at.sin_port));
	o.req = (struct cfs_http_request){.method = "GET", .url = url, .deadline = soon()};
	assert_int_equal(cfs_http_open(&conf, &o.http, err), 0);
	sem_init(&o.begun, 0, 0);
	assert_int_equal(pthread_create(&thread, NULL, occupy, &o), 0);
	wait_post(&o.begun);
	cfs_unwanted_set(always, NULL);
	assert_int_equal(cfs_http_run(o.http, &o.req, &(struct cfs_http_response){0}), -ECANCELED);
	cfs_unwanted_set(NULL, NULL);
	o.unwanted = true;
	pthread_join(thread, NULL);
	assert_int_equal(o.r, -ECANCELED);
	assert_true(cfs_now_ms() - start < LONG_MS / 4);
	cfs_http_close(o.http);
	sem_destroy(&o.begun);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_encoding),
		cmocka_unit_test(test_signature),
		cmocka_unit_test(test_signature_follows_the_keys),
		cmocka_unit_test(test_endpoints),
		cmocka_unit_test(test_endpoint_options_and_environment),
		cmocka_unit_test(test_endpoints_that_are_none),
		cmocka_unit_test(test_tables_for_another_length),
		cmocka_unit_test(test_order_of_credentials),
		cmocka_unit_test(test_refused_credentials_are_looked_for_again),
		cmocka_unit_test(test_changed_keys),
		cmocka_unit_test(test_unwanted_requests_do_not_wait_for_a_connection),
	};
	char path[128];
	int r;

	if (!mkdtemp(home))
		return 1;
	clear_environment();
	r = cmocka_run_group_tests(tests, NULL, NULL);
	snprintf(path, sizeof(path), "%s/.aws/config", home);
	unlink(path);
	snprintf(path, sizeof(path), "%s/.aws/credentials", home);
	unlink(path);
	snprintf(path, sizeof(path), "%s/.aws", home);
	rmdir(path);
	rmdir(home);
	return r;
}
