/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pieces of dump and load. When these fail, dumps of JuiceFS are read wrongly or ours
 * cannot be read by it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* after those: */
#include <cmocka.h>

#include <cachefs/meta.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/dump/heap.h"
#include "cmd/dump/protobuf.h"
#include "cmd/dump/pull.h"
#include "cmd/dump/stream.h"

/* ---- attributes ---- */

static void check_attr(const struct cfs_attr *a, size_t want_len)
{
	uint8_t out[CFS_ATTR_BYTES_MAX], again[CFS_ATTR_BYTES_MAX];
	struct cfs_attr back;
	size_t len = cfs_attr_encode(a, out);

	assert_int_equal(len, want_len);
	assert_int_equal(cfs_attr_decode(out, len, &back), 0);
	assert_int_equal(cfs_attr_encode(&back, again), len);
	assert_memory_equal(out, again, len);
	assert_int_equal(back.parent, a->parent);
	assert_int_equal(back.access_acl, a->access_acl);
	assert_int_equal(back.tier, a->tier);
	assert_int_equal(back.mtime.tv_sec, a->mtime.tv_sec);
}

static void test_attributes_have_the_formats_lengths(void **state)
{
	/* i12 of the format's example: /private/secret.txt 0600 1000:1000 11 bytes, parent 11 */
	static const uint8_t want[] = {
		0x00, 0x11, 0x80, 0x00, 0x00, 0x03, 0xe8, 0x00, 0x00, 0x03, 0xe8, 0x00,
		0x00, 0x00, 0x00, 0x6b, 0x00, 0xf3, 0x21, 0x36, 0x55, 0x8e, 0x3e,
	};
	struct cfs_attr a = {
		.type = CFS_TYPE_FILE,
		.mode = 0600,
		.uid = 1000,
		.gid = 1000,
		.atime = {0x6b00f321, 0x36558e3e},
		.mtime = {-5, 999999999},
		.nlink = 1,
		.length = 11,
		.parent = 11,
	};
	uint8_t out[CFS_ATTR_BYTES_MAX];

	check_attr(&a, 72);
	cfs_attr_encode(&a, out);
	assert_memory_equal(out, want, sizeof(want));
	a.tier = 2;
	check_attr(&a, 73);
	a.access_acl = 7;
	check_attr(&a, 81);
	a.tier = 0;
	check_attr(&a, 80);
	assert_int_equal(cfs_attr_decode(out, 20, &a), -EINVAL);
	assert_int_equal(cfs_attr_decode(out, 63, &a), 0); /* a very old client's */
	assert_int_equal(a.parent, 0);
}

/* ---- messages ---- */

static void test_messages_come_back(void **state)
{
	struct pb w = {0}, inner = {0};
	const uint8_t *p;
	struct pb_field f;

	pb_number(&w, 1, 0); /* left out */
	pb_number(&w, 2, 300);
	pb_number(&w, 3, (uint64_t)-1);
	pb_bytes(&w, 4, "abc", 3);
	pb_message(&w, 5, &inner);
	assert_false(w.failed);
	p = w.v;
	assert_int_equal(pb_next(&p, w.v + w.n, &f), 1);
	assert_int_equal(f.field, 2);
	assert_int_equal(f.number, 300);
	assert_int_equal(pb_next(&p, w.v + w.n, &f), 1);
	assert_true(f.number == UINT64_MAX);
	assert_int_equal(pb_next(&p, w.v + w.n, &f), 1);
	assert_true(f.is_bytes && f.len == 3 && !memcmp(f.p, "abc", 3));
	assert_int_equal(pb_next(&p, w.v + w.n, &f), 1);
	assert_true(f.is_bytes && f.len == 0 && f.field == 5);
	assert_int_equal(pb_next(&p, w.v + w.n, &f), 0);
	pb_free(&w);
}

static void test_damaged_messages_end_in_an_error(void **state)
{
	static const struct {
		const char *bytes;
		size_t len;
	} bad[] = {
		{"\x0a", 1},						  /* no length */
		{"\x0a\x05\x01", 3},					  /* too few bytes */
		{"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12}, /* a number without end */
		{"\x0b\x01", 2},					  /* unknown wire type */
		{"\x09\x01", 2},					  /* half a fixed number */
		{"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11},	  /* longer than memory */
	};
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint8_t *copy = malloc(bad[i].len); /* for the sanitizer */
		const uint8_t *p = copy;
		struct pb_field f;

		memcpy(copy, bad[i].bytes, bad[i].len);
		assert_int_equal(pb_next(&p, copy + bad[i].len, &f), -EBADMSG);
		free(copy);
	}
}

/* ---- JSON ---- */

static struct stream_in *open_text(const char *text, size_t len)
{
	char path[] = "/tmp/cachefs-test-dump-XXXXXX", err[256] = "";
	int fd = mkstemp(path);
	struct stream_in *in;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, len), (ssize_t)len);
	close(fd);
	assert_int_equal(stream_open(path, &in, err), 0);
	unlink(path);
	return in;
}

static struct pull *open_json(const char *text, struct stream_in **ret_in)
{
	struct pull *p;

	*ret_in = open_text(text, strlen(text));
	assert_int_equal(pull_create(*ret_in, &p), 0);
	return p;
}

static void test_json_is_read_as_it_is_written(void **state)
{
	struct stream_in *in;
	struct pull *p =
		open_json("{ \"a\" : -7, \"b\":[1,2] , \"n\":null, \"t\":"
			  "\"x%41\\n\\u00e9\\ud83d\\ude00%FF%2\", \"raw\":{\"k\":[1,{}]}}\n",
			  &in);
	bool first = true, inner = true;
	const char *key, *text;
	char *raw;
	int64_t v;
	size_t len;

	assert_int_equal(pull_key(p, &first, &key), 1);
	assert_string_equal(key, "a");
	assert_int_equal(pull_int(p, &v), 0);
	assert_int_equal(v, -7);
	assert_int_equal(pull_key(p, &first, &key), 1);
	assert_int_equal(pull_item(p, &inner), 1);
	assert_int_equal(pull_int(p, &v), 0);
	assert_int_equal(pull_item(p, &inner), 1);
	assert_int_equal(pull_int(p, &v), 0);
	assert_int_equal(v, 2);
	assert_int_equal(pull_item(p, &inner), 0);
	assert_int_equal(pull_key(p, &first, &key), 1);
	inner = true;
	assert_int_equal(pull_item(p, &inner), 0); /* null is an empty list */
	assert_int_equal(pull_key(p, &first, &key), 1);
	assert_int_equal(pull_text(p, true, &text, &len), 0);
	assert_string_equal(text, "xA\n\xc3\xa9\xf0\x9f\x98\x80\xff%2");
	assert_int_equal(pull_key(p, &first, &key), 1);
	assert_int_equal(pull_value(p, &raw), 0);
	assert_string_equal(raw, "{\"k\":[1,{}]}");
	free(raw);
	assert_int_equal(pull_key(p, &first, &key), 0);
	assert_int_equal(pull_end(p), 0);
	pull_destroy(p);
	stream_close_in(in);
}

static void test_damaged_json_names_its_line(void **state)
{
	static const char *const bad[] = {
		"",
		"{",
		"{\"a\"",
		"{\"a\":",
		"{\"a\":1",
		"{\"a\":1,",
		"{\"a\":1 \"b\":2}",
		"[",
		"{\"a\":\"",
		"{\"a\":\"\\u12",

		"{\"a\":}",
		"{\"a\":1}}",
		"{1:2}",
		"{\"a\":[}",
		"nul",
	};
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct stream_in *in;
		struct pull *p = open_json(bad[i], &in);
		bool first = true;
		const char *key;
		int r;

		while ((r = pull_key(p, &first, &key)) > 0) {
			char *raw = NULL;

			r = pull_value(p, &raw);
			free(raw);
			if (r)
				break;
		}
		if (r == 0)
			r = pull_end(p);
		assert_int_equal(r, -EBADMSG);
		assert_memory_equal(pull_error(p), "line ", 5);
		pull_destroy(p);
		stream_close_in(in);
	}
}

/* ---- streams ---- */

static void test_compressed_streams_come_back(void **state)
{
	static const enum stream_codec codecs[] = {STREAM_PLAIN, STREAM_GZIP
#ifdef CFS_HAVE_ZSTD
						   ,
						   STREAM_ZSTD
#endif
	};
	char path[] = "/tmp/cachefs-test-stream-XXXXXX", err[256] = "";
	uint32_t i, k, v;
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	close(fd);
	for (k = 0; k < sizeof(codecs) / sizeof(codecs[0]); k++) {
		struct stream_out *out;
		struct stream_in *in;

		assert_int_equal(stream_create(path, codecs[k], &out, err), 0);
		for (i = 0; i < 500000; i++) {
			v = i * 2654435761u;
			assert_int_equal(stream_write(out, &v, sizeof(v)), 0);
		}
		assert_int_equal(stream_close_out(out, 1), 0);
		assert_int_equal(stream_open(path, &in, err), 0);
		for (i = 0; i < 500000; i++) {
			assert_int_equal(stream_read_full(in, &v, sizeof(v)), 1);
			assert_int_equal(v, i * 2654435761u);
		}
		assert_int_equal(stream_peek(in), -1);
		assert_int_equal(stream_read_full(in, &v, sizeof(v)), 0);
		stream_close_in(in);
	}
	unlink(path);
}

static void test_file_given_up_is_not_there(void **state)
{
	char path[64], err[256] = "";
	struct stream_out *out;

	snprintf(path, sizeof(path), "/tmp/cachefs-test-none-%d", (int)getpid());
	assert_int_equal(stream_create(path, STREAM_AUTO, &out, err), 0);
	assert_int_equal(stream_printf(out, "%s", "half"), 0);
	assert_int_equal(stream_close_out(out, 0), 0);
	assert_int_equal(access(path, F_OK), -1);
}

/* ---- records by number ---- */

static void test_records_are_found_by_number(void **state)
{
	enum { N = 5000 };
	const uint8_t *p;
	struct heap *h;
	uint32_t i;
	int64_t at;
	size_t n;

	assert_int_equal(heap_create(&h), 0);
	for (i = 0; i < N; i++) {
		char text[32];
		int len = snprintf(text, sizeof(text), "%u", i * 7919 % N);

		/* even numbers only, and two records each */
		assert_int_equal(heap_add(h, 2 * (i * 7919ULL % N), 1, text, (size_t)len), 0);
		assert_int_equal(heap_add(h, 2 * (i * 7919ULL % N), 0, "", 0), 0);
	}
	assert_int_equal(heap_seal(h), 0);
	for (i = 0; i < N; i++) {
		at = heap_find(h, 2 * i);
		assert_int_equal(at, 2 * i);
		assert_int_equal(heap_get(h, (uint64_t)at, 2 * i, &p, &n), 1);
		assert_int_equal(n, 0);
		assert_int_equal(heap_get(h, (uint64_t)at + 1, 2 * i, &p, &n), 1);
		assert_int_equal(strtoul((const char *)memcpy((char[32]){0}, p, n), NULL, 10), i);
		assert_int_equal(heap_get(h, (uint64_t)at + 2, 2 * i, &p, &n), 0);
		at = heap_find(h, 2 * i + 1); /* where it would be */
		assert_int_equal(at, 2 * i + 2);
	}
	assert_int_equal(heap_get(h, 2 * N, 2 * N, &p, &n), 0);
	heap_destroy(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attributes_have_the_formats_lengths),
		cmocka_unit_test(test_messages_come_back),
		cmocka_unit_test(test_damaged_messages_end_in_an_error),
		cmocka_unit_test(test_json_is_read_as_it_is_written),
		cmocka_unit_test(test_damaged_json_names_its_line),
		cmocka_unit_test(test_compressed_streams_come_back),
		cmocka_unit_test(test_file_given_up_is_not_there),
		cmocka_unit_test(test_records_are_found_by_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
