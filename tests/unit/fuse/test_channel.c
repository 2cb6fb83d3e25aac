/* SPDX-License-Identifier: Apache-2.0 */
/* When these fail a caller waits for ever for a reply that the kernel did not take. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fuse/channel.h"

struct fake {
	struct cfs_channel channel; /* must be the first member */
	int refuses;		    /* the error of replies with content */
	int replies, error, pieces;
	struct cfs_request_id id;
};

static int fake_reply(struct cfs_channel *c, const struct cfs_request_id *id, int error,
		      struct iovec *iov, int n)
{
	struct fake *f = (struct fake *)c;

	f->replies++;
	f->id = *id;
	f->error = error;
	f->pieces = n;
	return n > 1 ? f->refuses : 0;
}

static const struct cfs_channel_ops ops = {.name = "fake", .reply = fake_reply};

static int reply(struct fake *f, int refuses)
{
	struct cfs_request_id id = {.unique = 7, .entry = f};
	char data[4] = "data";
	struct iovec iov[2] = {{0}, {.iov_base = data, .iov_len = sizeof(data)}};

	*f = (struct fake){.channel.ops = &ops, .refuses = refuses};
	return channel_reply(&f->channel, &id, "read", 0, iov, 2);
}

static void taken_reply_is_sent_once(void **state)
{
	struct fake f;

	assert_int_equal(reply(&f, 0), 0);
	assert_int_equal(f.replies, 1);
	assert_int_equal(f.pieces, 2);
}

static void refused_reply_becomes_an_error(void **state)
{
	static const int errors[] = {-EINVAL, -ENOMEM, -EFAULT, -EIO};
	struct fake f;
	size_t i;

	for (i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		assert_int_equal(reply(&f, errors[i]), errors[i]);
		assert_int_equal(f.replies, 2);
		assert_int_equal(f.error, -EIO);
		assert_int_equal(f.pieces, 1);
		assert_int_equal(f.id.unique, 7);
		assert_ptr_equal(f.id.entry, &f);
	}
}

static void withdrawn_request_is_left_alone(void **state)
{
	struct fake f;

	assert_int_equal(reply(&f, -ENOENT), -ENOENT);
	assert_int_equal(f.replies, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(taken_reply_is_sent_once),
		cmocka_unit_test(refused_reply_becomes_an_error),
		cmocka_unit_test(withdrawn_request_is_left_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
