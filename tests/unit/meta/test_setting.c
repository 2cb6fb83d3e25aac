/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The setting record. When these fail, a volume made here is not readable by JuiceFS (or
 * the other way round), a secret is stored in clear or shown, or a volume that must be refused is
 * mounted.
 */
#include <cachefs/meta.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char fixture[] = "{\n"
			      "\"Name\": \"fix-sqlite\",\n"
			      "\"UUID\": \"09ee604c-e905-4c8d-945a-5316b66d32cc\",\n"
			      "\"Storage\": \"file\",\n"
			      "\"Tiers\": {\n"
			      "\"0\": {\n"
			      "\"ID\": 0,\n"
			      "\"StorageClass\": \"\",\n"
			      "\"Tag\": \"\"\n"
			      "}\n"
			      "},\n"
			      "\"Bucket\": \"/srv/jfs-fixture/sqlite/\",\n"
			      "\"BlockSize\": 4096,\n"
			      "\"Compression\": \"none\",\n"
			      "\"EncryptAlgo\": \"aes256gcm-rsa\",\n"
			      "\"TrashDays\": 1,\n"
			      "\"MetaVersion\": 1,\n"
			      "\"MinClientVersion\": \"1.2.0-A\",\n"
			      "\"DirStats\": true,\n"
			      "\"EnableACL\": true\n"
			      "}";

static struct cfs_setting *decode(const char *text)
{
	struct cfs_setting *s = NULL;
	char err[256] = "";
	int rc = cfs_setting_decode(text, strlen(text), &s, err);

	if (rc)
		fail_msg("decode: %d %s", rc, err);
	return s;
}

static int decode_error(const char *text, char err[256])
{
	struct cfs_setting *s;

	return cfs_setting_decode(text, strlen(text), &s, err);
}

/* JuiceFS's record survives a rewrite by us byte for byte. */
static void test_same_bytes(void **state)
{
	struct cfs_setting *s = decode(fixture), *copy;
	char *text;

	assert_string_equal(s->name, "fix-sqlite");
	assert_int_equal(s->block_size_kib, 4096);
	assert_int_equal(s->n_tiers, 1);
	assert_true(s->enable_acl && s->dir_stats && !s->user_group_quota);
	assert_int_equal(cfs_setting_copy(s, &copy), 0);
	cfs_setting_free(s);
	assert_int_equal(cfs_setting_encode(copy, &text), 0);
	assert_string_equal(text, fixture);
	free(text);
	cfs_setting_free(copy);
}

/* A volume of an old client (no tiers, other spacing, unknown fields) still mounts. */
static void test_old_record(void **state)
{
	struct cfs_setting *s = decode(
		"{ \"Name\":\"old\",\"UUID\":\"u\",\"Storage\":\"s3\",\"StorageClass\":\"IA\","
		"\"Bucket\":\"b\",\"BlockSize\":1024,\"Tiers\":null,\"Later\":[1,{}]}");

	assert_int_equal(s->n_tiers, 1);
	assert_string_equal(s->tiers[0].storage_class, "IA");
	assert_int_equal(s->trash_days, 0);
	cfs_setting_free(s);
}

/* A record after a rewrite by this client. */
static char *rewritten(const char *text)
{
	struct cfs_setting *s = decode(text), *copy;
	char *again;

	assert_int_equal(cfs_setting_copy(s, &copy), 0);
	cfs_setting_free(s);
	assert_int_equal(cfs_setting_encode(copy, &again), 0);
	cfs_setting_free(copy);
	return again;
}

#define HEAD                                                                                       \
	"{\n\"Name\": \"v\",\n\"UUID\": \"u\",\n\"Storage\": \"s3\",\n"                            \
	"\"Tiers\": {\n\"0\": {\n\"ID\": 0,\n\"StorageClass\": \"\",\n\"Tag\": \"\"%s\n}\n},\n"    \
	"\"Bucket\": \"b\",\n\"BlockSize\": 4096,\n"

/* JuiceFS writes 64 bits without a sign, and a limit that is one here must not be less. */
static void test_great_numbers(void **state)
{
	static const struct {
		const char *text;
		uint64_t v;
	} cases[] = {
		{"9223372036854775807", INT64_MAX},
		{"9223372036854775808", 1ULL << 63},
		{"10737418240000000000", 10737418240000000000ULL},
		{"18446744073709551615", UINT64_MAX},
	};
	static const char *const none[] = {"18446744073709551616", "-1", "1e19", "1.5", "\"7\""};
	char text[1024], err[256], *again;
	struct cfs_setting *s;
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(text, sizeof(text),
			 HEAD "\"Capacity\": %s,\n\"Inodes\": %s,\n"
			      "\"TrashDays\": 0,\n\"EnableACL\": false\n}",
			 "", cases[i].text, cases[i].text);
		s = decode(text);
		assert_true(s->capacity == cases[i].v && s->inodes == cases[i].v);
		assert_int_equal(cfs_setting_show(s, &again), 0);
		snprintf(err, sizeof(err), "\"Capacity\": %s,", cases[i].text);
		assert_non_null(strstr(again, err));
		free(again);
		cfs_setting_free(s);
		again = rewritten(text);
		assert_string_equal(again, text);
		free(again);
	}
	for (i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		snprintf(text, sizeof(text), HEAD "\"Capacity\": %s}", "", none[i]);
		assert_int_equal(decode_error(text, err), -EINVAL);
		assert_non_null(strstr(err, "Capacity"));
	}
}

/* Fields of a later client come through a rewrite, to the last digit. */
static void test_unknown_fields(void **state)
{
	static const char later[] =
		"\"Later\": {\n\"Deep\": [\n18446744073709551615,\n-9223372036854775809,\n0.1,\n"
		"1e400,\n-0,\n123456789012345678901234567890\n],\n"
		"\"Text\": \"18446744073709551616 \\\"9e9\\\" \\\\\",\n\"Nil\": null\n}";
	char text[2048], *again;
	struct cfs_setting *s;

	snprintf(text, sizeof(text), HEAD "\"TrashDays\": 1,\n\"EnableACL\": false,\n%s\n}",
		 ",\n\"Days\": 18446744073709551615", later);
	again = rewritten(text);
	assert_string_equal(again, text);
	free(again);
	/* A secret may be among them, and in the bucket. */
	s = decode(text);
	free(s->storage);
	free(s->bucket);
	s->storage = strdup("redis");
	s->bucket = strdup("me:hidden@host/1");
	assert_int_equal(cfs_setting_show(s, &again), 0);
	assert_null(strstr(again, "Later"));
	assert_null(strstr(again, "hidden"));
	assert_non_null(strstr(again, "\"me:****@host/1\""));
	free(again);
	cfs_setting_free(s);
}

/* 64 bits in JuiceFS: kept until somebody changes it. */
static void test_wide_limit(void **state)
{
	char text[1024], *again;
	struct cfs_setting *s;

	snprintf(text, sizeof(text),
		 HEAD "\"UploadLimit\": 5000000000,\n\"TrashDays\": 1,\n\"EnableACL\": false\n}",
		 "");
	again = rewritten(text);
	assert_string_equal(again, text);
	free(again);
	s = decode(text);
	assert_int_equal(s->upload_limit_mbps, INT32_MAX);
	s->upload_limit_mbps = 7;
	assert_int_equal(cfs_setting_encode(s, &again), 0);
	assert_non_null(strstr(again, "\"UploadLimit\": 7,"));
	free(again);
	cfs_setting_free(s);
}

/* Numbers that are none are no way round the reader. */
static void test_damaged_numbers(void **state)
{
	static const char *const bad[] = {
		"01",	 "00", "1.", ".5", "+1", "1e", "0x10", "- 1", "99999999999999999999x",
		"1.2.3", "--9"};
	char text[1024], err[256];
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(text, sizeof(text), HEAD "\"Later\": %s}", "", bad[i]);
		assert_int_equal(decode_error(text, err), -EINVAL);
	}
}

/* A text that JSON cannot contain is refused; a record without it would be another volume's. */
static void test_text_that_is_not_utf8(void **state)
{
	struct cfs_setting *s;
	char *text;

	assert_int_equal(cfs_setting_new("vol", &s), 0);
	assert_int_equal(cfs_setting_encode(s, &text), 0);
	free(text);
	free(s->bucket);
	s->bucket = strdup("/data/\xff");
	assert_int_equal(cfs_setting_encode(s, &text), -EINVAL);
	free(s->bucket);
	s->bucket = strdup("/data/");
	assert_int_equal(cfs_setting_set_tier(s, 1, "COLD\xc3", NULL), 0);
	assert_int_equal(cfs_setting_encode(s, &text), -EINVAL);
	cfs_setting_free(s);
}

/* Secrets are never stored in clear, never shown, and come back. */
static void test_secrets(void **state)
{
	struct cfs_setting *s, *back;
	char *text, *text2, *shown;

	assert_int_equal(cfs_setting_new("vol", &s), 0);
	s->access_key = strdup("AKID");
	s->secret_key = strdup("very secret \xc3\xa9");
	s->encrypt_key = strdup("-----BEGIN KEY-----\nxyz\n");
	s->key_encrypted = true;
	assert_int_equal(cfs_setting_encode(s, &text), 0);
	assert_int_equal(cfs_setting_encode(s, &text2), 0);
	assert_null(strstr(text, "very"));
	assert_null(strstr(text, "BEGIN"));
	assert_non_null(strstr(text, "AKID"));
	assert_string_not_equal(text, text2); /* a fresh nonce each time */
	assert_int_equal(cfs_setting_show(s, &shown), 0);
	assert_null(strstr(shown, "very"));
	assert_non_null(strstr(shown, "***"));
	back = decode(text);
	assert_string_equal(back->secret_key, s->secret_key);
	assert_string_equal(back->encrypt_key, s->encrypt_key);
	assert_null(back->session_token);
	free(text);
	free(text2);
	free(shown);
	cfs_setting_free(back);
	cfs_setting_free(s);
}

/* A damaged or foreign secret is refused with its name, not used as garbage. */
static void test_bad_secrets(void **state)
{
	static const char *const bad[] = {"removed", "AAAA", "not base64!",
					  "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"};
	char text[512], err[256];
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(text, sizeof(text),
			 "{\"Name\":\"v\",\"UUID\":\"u\",\"Storage\":\"s3\",\"Bucket\":\"b\","
			 "\"BlockSize\":4096,\"KeyEncrypted\":true,\"SecretKey\":\"%s\"}",
			 bad[i]);
		err[0] = '\0';
		assert_int_equal(decode_error(text, err), -EKEYREJECTED);
		assert_non_null(strstr(err, "SecretKey"));
	}
}

static void test_refused(void **state)
{
	char err[256];

	assert_int_equal(decode_error("", err), -EINVAL);
	assert_int_equal(decode_error("[1]", err), -EINVAL);
	assert_int_equal(decode_error("{\"Name\":\"x\"}", err), -EINVAL);
	assert_int_equal(decode_error("{\"Name\":7}", err), -EINVAL);
	assert_int_equal(decode_error("{\"Name\":\"v\",\"UUID\":\"u\",\"Storage\":\"s3\","
				      "\"Bucket\":\"b\",\"BlockSize\":4096,\"MetaVersion\":2}",
				      err),
			 -EPROTONOSUPPORT);
	assert_non_null(strstr(err, "MetaVersion 2"));
}

static void test_versions(void **state)
{
	static const struct {
		const char *min, *max;
		int rc;
	} cases[] = {
		{NULL, NULL, 0},
		{"1.1.0-A", NULL, 0},
		{"1.4.0-A", "", 0},
		{"1.4.1", "1.4.1", 0},
		{"1.4.1-beta1", NULL, 0},
		{"1.4.2-A", NULL, -EPROTONOSUPPORT},
		{"1.5", NULL, -EPROTONOSUPPORT},
		{"2", NULL, -EPROTONOSUPPORT},
		{NULL, "1.4.0", -EPROTONOSUPPORT},
		{NULL, "1.4.1-rc1", -EPROTONOSUPPORT},
		{NULL, "1.10.0", 0},
		{"latest", NULL, -EPROTONOSUPPORT},
	};
	struct cfs_setting s = {0};
	char err[256];
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		s.min_client_version = (char *)cases[i].min;
		s.max_client_version = (char *)cases[i].max;
		if (cfs_setting_check_version(&s, err) != cases[i].rc)
			fail_msg("case %zu", i);
	}
}

static void test_names(void **state)
{
	static const char *const good[] = {"my", "abc", "a-b", "0vol9", "vol-2026"};
	static const char *const bad[] = {
		"", "a", "-abc", "abc-", "Abc", "a_b", "a b c", "a/b/c", "\xc3\xa9t\xc3\xa9"};
	char longest[65];
	size_t i;

	for (i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		assert_int_equal(cfs_setting_check_name(good[i]), 0);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(cfs_setting_check_name(bad[i]), -EINVAL);
	memset(longest, 'a', 64);
	longest[64] = '\0';
	assert_int_equal(cfs_setting_check_name(longest), -EINVAL);
	longest[63] = '\0';
	assert_int_equal(cfs_setting_check_name(longest), 0);
}

static void test_new_volume(void **state)
{
	struct cfs_setting *a, *b;

	assert_int_equal(cfs_setting_new("one", &a), 0);
	assert_int_equal(cfs_setting_new("one", &b), 0);
	assert_int_equal(strlen(a->uuid), 36);
	assert_int_equal(a->uuid[14], '4');
	assert_string_not_equal(a->uuid, b->uuid);
	cfs_setting_free(a);
	cfs_setting_free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same_bytes),
		cmocka_unit_test(test_old_record),
		cmocka_unit_test(test_great_numbers),
		cmocka_unit_test(test_unknown_fields),
		cmocka_unit_test(test_wide_limit),
		cmocka_unit_test(test_damaged_numbers),
		cmocka_unit_test(test_text_that_is_not_utf8),
		cmocka_unit_test(test_secrets),
		cmocka_unit_test(test_bad_secrets),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_versions),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_new_volume),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
