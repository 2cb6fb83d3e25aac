/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record of a member as text in the registry. A failure here splits a group whose members have
 * different versions, or lets one damaged record end the others.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transport/group/group-internal.h"
#include "transport/group/roster.h"

static void fill(struct group_record *rec)
{
	memset(rec, 0, sizeof(*rec));
	rec->member = (struct cfs_group_member){.id = 0x1234,
						.weight = 100,
						.rank = 100,
						.fresh = true,
						.transport = CFS_PEER_TLS,
						.cached_bytes = 1ull << 40};
	snprintf(rec->member.address, sizeof(rec->member.address), "[fd00::1]:7000");
	cfs_group_copy_text(rec->member.host, sizeof(rec->member.host), "host");
	cfs_group_copy_text(rec->member.mount_point, sizeof(rec->member.mount_point),
			    "/mnt/\xff\xfe\"x\"");
	snprintf(rec->member.volume, sizeof(rec->member.volume), "one");
	rec->boot = 99;
	rec->number = 3;
	rec->heartbeat_ms = 5000;
}

/* The leader and those who read its list have the same member. */
static bool survives_the_list(const struct cfs_group_member *m)
{
	struct cfs_roster_entry e = {.id = m->id,
				     .weight = m->weight,
				     .rank = m->rank,
				     .fresh = m->fresh,
				     .transport = m->transport,
				     .memory_only = m->memory_only};
	struct cfs_roster leaders = {0}, ours = {0};
	char text[2 * CFS_ROSTER_LINE_MAX];
	size_t len = cfs_roster_begin("one", text);
	bool same;

	memcpy(e.address, m->address, sizeof(e.address));
	memcpy(e.volume, m->volume, sizeof(e.volume));
	assert_int_equal(cfs_roster_set(&leaders, &e), 0);
	len += cfs_roster_line(&e, "one", text + len);
	same = cfs_roster_apply(&ours, text, len) == 0 && ours.sum == leaders.sum;
	cfs_roster_free(&leaders);
	cfs_roster_free(&ours);
	return same;
}

/* A mount whose path is not text cannot join. */
static void test_record_there_and_back(void **state)
{
	struct group_record rec, got;
	char *text;

	fill(&rec);
	text = cfs_group_encode(&rec);
	assert_non_null(text);
	assert_int_equal(cfs_group_decode(text, strlen(text), &got), 0);
	free(text);
	assert_int_equal(got.member.id, rec.member.id);
	assert_string_equal(got.member.address, rec.member.address);
	assert_string_equal(got.member.mount_point, "/mnt/??\"x\"");
	assert_string_equal(got.member.volume, "one");
	assert_int_equal(got.boot, 99);
	assert_int_equal(got.member.transport, CFS_PEER_TLS);
	assert_false(got.member.rdma);
	assert_int_equal(got.addr.ss_family, AF_INET6);
	assert_true(survives_the_list(&got.member));
}

/* A group of which some members are of a version without RDMA stays one group. */
static void test_record_of_a_member_with_rdma(void **state)
{
	struct group_record rec, got;
	char *with, *without;
	const char *added;

	(void)state;
	fill(&rec);
	without = cfs_group_encode(&rec);
	rec.member.rdma = true;
	with = cfs_group_encode(&rec);
	assert_non_null(without);
	assert_non_null(with);
	assert_int_equal(cfs_group_decode(without, strlen(without), &got), 0);
	assert_false(got.member.rdma);
	assert_int_equal(cfs_group_decode(with, strlen(with), &got), 0);
	assert_true(got.member.rdma);
	/* Nothing but a further field, of which the others know nothing, tells them apart. */
	assert_null(strstr(without, "rdma"));
	added = strstr(with, ",\"rdma\":true");
	assert_non_null(added);
	assert_int_equal(strlen(with), strlen(without) + strlen(",\"rdma\":true"));
	assert_memory_equal(with, without, (size_t)(added - with));
	free(without);
	free(with);
}

/* A damaged record must not bring the other members down. */
static void test_record_garbage(void **state)
{
	static const char *const wrong[] = {
		"",
		"{}",
		"[]",
		"null",
		"1 1 1 5000",
		"1 1 1 5000 ",
		"1 1 1 5000 {}",
		"{\"id\":1}",
		"\xff\xfe",
		"{\"id\":\"0\"}",
	};
	static const struct {
		const char *from, *to;
	} changes[] = {
		{"\"weight\":100", "\"weight\":-1"},
		{"\"rank\":100", "\"rank\":-1"},
		{"\"volume\":\"one\"", "\"volume\":\"o ne\""},
		{"\"volume\":\"one\"", "\"volume\":\"\\u000b\""},
		{"\"volume\":\"one\"", "\"volume\":\"-\""},
		{" 5000 ", " 0 "},
		{" 5000 ", " 9223372036854775807 "},
		{" 5000 ", " 92233720368547758070 "},
		{"0000000000001234", "0"},
		{"0000000000001234", "12x4"},
		{"[fd00::1]:7000", "[fd00::1]:0"},
		{"[fd00::1]:7000", "[fd00::1]:70000"},
		{"[fd00::1]:7000", "[:7000"},
		{"[fd00::1]:7000", ":7000"},
		{"[fd00::1]:7000", "host:7000"},
		{"[fd00::1]:7000", "fd00::1"},
		{"\"host\":\"host\"",
		 "\"host\":\"01234567890123456789012345678901234567890123456789"
		 "012345678901234567890123456789\""},
	};
	struct group_record rec, got;
	char *text, changed[1024];
	uint64_t seed = 1;
	size_t i, k, len;

	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(cfs_group_decode(wrong[i], strlen(wrong[i]), &got), -EINVAL);
	fill(&rec);
	text = cfs_group_encode(&rec);
	len = strlen(text);
	for (i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		const char *at = strstr(text, changes[i].from);

		assert_non_null(at);
		snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text,
			 changes[i].to, at + strlen(changes[i].from));
		if (cfs_group_decode(changed, strlen(changed), &got) != -EINVAL)
			fail_msg("accepted: %s", changed);
	}
	/* Anything may come of a random change, but nothing bad. */
	for (i = 0; i < 20000; i++) {
		memcpy(changed, text, len);
		for (k = 0; k < 1 + i % 4; k++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			changed[(seed >> 33) % len] = (char)(seed >> 56);
		}
		if (cfs_group_decode(changed, i % 3 ? len : (seed >> 40) % len, &got) == 0)
			assert_true(got.member.id != 0 && got.heartbeat_ms > 0 &&
				    survives_the_list(&got.member));
	}
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_record_there_and_back),
		cmocka_unit_test(test_record_of_a_member_with_rdma),
		cmocka_unit_test(test_record_garbage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
