/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries of a replica. When these fail, a database is restored from damaged bytes, or not restored
 * from right ones.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "replica/replica-internal.h"

#define PAGE 512
#define ONE  (4 + PAGE)
#define N    3

static void make_body(uint8_t body[N * ONE])
{
	memset(body, 0, N * ONE);
	for (uint32_t i = 0; i < N; i++) {
		cfs_put_be32(body + i * ONE, i + 1);
		memset(body + i * ONE + 4, (int)i + 'a', PAGE);
	}
}

static struct entry make_entry(void)
{
	struct entry e = {
		.number = 7,
		.time_ms = 1234567890123,
		.owner = "owner",
		.before = "before",
		.kind = ENTRY_PAGES,
		.page_size = PAGE,
		.db_pages = 5,
		.n = N,
		.end = {{1, 2}, 3, {4, 5}},
		.base_at = 6,
	};

	return e;
}

static uint8_t *encode(struct entry *e, size_t *ret_len)
{
	uint8_t body[N * ONE], *bytes;

	make_body(body);
	assert_int_equal(entry_encode(e, body, sizeof(body), &bytes, ret_len), 0);
	return bytes;
}

static void test_round_trip(void **state)
{
	struct entry e = make_entry(), got;
	uint8_t body[N * ONE], *bytes, *raw;
	size_t len;

	bytes = encode(&e, &len);
	assert_int_equal(entry_parse(bytes, len, &got), 0);
	assert_int_equal(got.number, 7);
	assert_int_equal(got.time_ms, 1234567890123);
	assert_memory_equal(got.owner, e.owner, sizeof(e.owner));
	assert_memory_equal(got.before, e.before, sizeof(e.before));
	assert_memory_equal(got.hash, e.hash, sizeof(e.hash));
	assert_memory_equal(&got.end, &e.end, sizeof(e.end));
	assert_int_equal(got.db_pages, 5);
	assert_int_equal(got.base_at, 6);
	assert_int_equal(entry_unpack(&got, &raw), 0);
	make_body(body);
	assert_memory_equal(raw, body, sizeof(body));
	free(raw);
	free(bytes);
}

/* Each changed byte, and each other length, is noticed. */
static void test_damage(void **state)
{
	struct entry e = make_entry(), got;
	uint8_t *bytes;
	size_t len, i;

	bytes = encode(&e, &len);
	for (i = 0; i < len; i++) {
		bytes[i] ^= 0x40;
		assert_int_equal(entry_parse(bytes, len, &got), -EBADMSG);
		bytes[i] ^= 0x40;
		assert_int_equal(entry_parse(bytes, i, &got), -EBADMSG);
	}
	assert_int_equal(entry_parse(bytes, len, &got), 0);
	free(bytes);
}

/* Numbers that do not fit each other are refused, although the hashes are right. */
static void test_inconsistent(void **state)
{
	static const struct {
		size_t at;
		uint8_t value;
	} changes[] = {
		{15, 0},		   /* number 0 */
		{72, 3},		   /* kind */
		{72, ENTRY_BASE}, {73, 9}, /* codec */
		{78, 3},		   /* page size */
		{87, N + 1},		   /* pages */
		{119, 7},		   /* base at this entry */
		{175, 1},		   /* length */
	};
	struct entry e = make_entry(), got;
	uint8_t *bytes, old;
	size_t len, i;

	bytes = encode(&e, &len);
	for (i = 0; i < CFS_ARRAY_SIZE(changes); i++) {
		old = bytes[changes[i].at];
		bytes[changes[i].at] = changes[i].value;
		assert_int_equal(entry_hash(bytes, 216, bytes + 216), 0);
		assert_int_equal(entry_parse(bytes, len, &got), -EBADMSG);
		bytes[changes[i].at] = old;
	}
	assert_int_equal(entry_hash(bytes, 216, bytes + 216), 0);
	assert_int_equal(entry_parse(bytes, len, &got), 0);
	free(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_inconsistent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
