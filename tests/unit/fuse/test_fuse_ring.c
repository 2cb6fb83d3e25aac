/* SPDX-License-Identifier: Apache-2.0 */
/* When these fail, a request on the ring is taken for another one, or a reply is cut. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fuse/ring-message.h"

#define PAYLOAD (64u << 10)

static uint8_t *page;

/* As the kernel leaves a request: op bytes of the first argument, and a payload. */
static void put(uint32_t len, size_t op, uint32_t payload)
{
	struct ring_header *h = (void *)page;
	struct fuse_in_header in = {.len = len, .opcode = FUSE_WRITE, .unique = 42};

	memset(page, 0xee, RING_PAGE + PAYLOAD);
	memcpy(h->in_out, &in, sizeof(in));
	memset(h->op, 'o', op);
	memset(page + RING_PAGE, 'p', payload);
	h->payload_bytes = payload;
}

static void parts_are_joined(void **state)
{
	static const struct {
		size_t op, payload;
	} cases[] = {{0, 0}, {0, 5}, {16, 0}, {40, 4096}, {88, 0}, {128, PAYLOAD}};
	struct fuse_in_header *in;
	const char *at;
	size_t i, j, len;

	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		len = 0;
		put((uint32_t)(sizeof(*in) + cases[i].op + cases[i].payload), cases[i].op,
		    (uint32_t)cases[i].payload);
		in = ring_join(page, PAYLOAD, &len);
		assert_non_null(in);
		assert_int_equal(len, sizeof(*in) + cases[i].op + cases[i].payload);
		assert_int_equal(in->len, len);
		assert_int_equal(in->unique, 42);
		at = (const char *)(in + 1);
		for (j = 0; j < cases[i].op + cases[i].payload; j++)
			assert_int_equal(at[j], j < cases[i].op ? 'o' : 'p');
	}
}

static void contradictions_are_refused(void **state)
{
	static const uint32_t cases[][2] = {
		{sizeof(struct fuse_in_header) - 1, 0},	  /* shorter than a header */
		{sizeof(struct fuse_in_header) + 4, 8},	  /* than its payload */
		{sizeof(struct fuse_in_header) + 136, 0}, /* a longer argument than there is room */
		{sizeof(struct fuse_in_header) + 4, 0},	  /* not whole words */
		{UINT32_MAX, PAYLOAD + 1},
	};
	size_t i, len = 7;

	for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		put(cases[i][0], 0, 0);
		((struct ring_header *)(void *)page)->payload_bytes = cases[i][1];
		assert_null(ring_join(page, PAYLOAD, &len));
		assert_int_equal(len, 7);
	}
}

static void answer_is_whole_or_refused(void **state)
{
	static char bytes[PAYLOAD + 1];
	struct iovec iov[3] = {{0}, {bytes, 3}, {bytes + 3, PAYLOAD - 3}};
	const struct ring_header *h = (const void *)page;
	struct fuse_out_header out;

	memset(bytes, 'a', sizeof(bytes));
	bytes[PAYLOAD - 1] = 'z';
	assert_int_equal(ring_write_answer(page, PAYLOAD, 9, 0, iov, 3), 0);
	memcpy(&out, h->in_out, sizeof(out));
	assert_int_equal(out.len, sizeof(out) + PAYLOAD);
	assert_int_equal(out.unique, 9);
	assert_int_equal(out.error, 0);
	assert_int_equal(h->payload_bytes, PAYLOAD);
	assert_memory_equal(page + RING_PAGE, bytes, PAYLOAD);
	iov[2].iov_len++;
	assert_int_equal(ring_write_answer(page, PAYLOAD, 9, 0, iov, 3), -EINVAL);
	assert_int_equal(ring_write_answer(page, PAYLOAD, 10, -ENOENT, iov, 1), 0);
	memcpy(&out, h->in_out, sizeof(out));
	assert_int_equal(out.error, -ENOENT);
	assert_int_equal(h->payload_bytes, 0);
}

/* With too few queues the kernel holds back every request of a mount. */
static void cpus_are_counted(void **state)
{
	assert_int_equal(ring_count_cpus("0\n"), 1);
	assert_int_equal(ring_count_cpus("0-1\n"), 2);
	assert_int_equal(ring_count_cpus("0-3,8-11,16"), 9);
	assert_int_equal(ring_count_cpus(""), 0);
	assert_int_equal(ring_count_cpus("\n"), 0);
	assert_int_equal(ring_count_cpus("0-"), 0);
	assert_int_equal(ring_count_cpus("0-1,"), 0);
	assert_int_equal(ring_count_cpus("3-1"), 0);
	assert_int_equal(ring_count_cpus("0-99999"), 0);
	assert_int_equal(ring_count_cpus("0-1x"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cpus_are_counted),
		cmocka_unit_test(parts_are_joined),
		cmocka_unit_test(contradictions_are_refused),
		cmocka_unit_test(answer_is_whole_or_refused),
	};
	int r;

	page = malloc(RING_PAGE + PAYLOAD);
	r = page ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
	free(page);
	return r;
}
