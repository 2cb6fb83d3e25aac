/* SPDX-License-Identifier: Apache-2.0 */
/* When these fail a caller waits for ever for a reply that the kernel did not take, or files in use
 * are freed. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "fuse/device.h"

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

/* ---- the order of requests ---- */

/* An open file: its reader answers, and then another thread gets the release and frees it. */
struct open_file {
	struct cfs_device *device;
	pthread_mutex_t lock;
	int reads;
};

static void *carry_out(void *arg)
{
	struct open_file *file = arg;
	struct cfs_channel *c = &file->device->channel;
	char buf[128 << 10];
	struct cfs_request rq;

	if (c->ops->receive(c, buf, &rq) < 0)
		return NULL;
	if (rq.opcode == FUSE_RELEASE) {
		pthread_mutex_destroy(&file->lock);
		free(file);
	} else {
		pthread_mutex_lock(&file->lock);
		file->reads++;
		pthread_mutex_unlock(&file->lock);
	}
	channel_reply_error(c, &rq.id, 0);
	return NULL;
}

/* As the kernel: sends the next request when the last one is answered. */
static void send_request(int kernel, uint32_t opcode, uint64_t unique)
{
	struct fuse_in_header in = {.len = sizeof(in), .opcode = opcode, .unique = unique};

	assert_int_equal(write(kernel, &in, sizeof(in)), sizeof(in));
}

static void await_answer(int kernel, uint64_t unique)
{
	struct fuse_out_header out;

	assert_int_equal(read(kernel, &out, sizeof(out)), sizeof(out));
	assert_int_equal(out.unique, unique);
}

/* Without it: ThreadSanitizer reports the close of a file as a race with an earlier read. */
static void release_comes_after_answers(void **state)
{
	struct open_file *file = calloc(1, sizeof(*file));
	pthread_t reader, closer;
	struct cfs_device device;
	int pair[2], fd;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	/* As that of a connection: ThreadSanitizer knows nothing of such a duplicate. */
	fd = fcntl(pair[0], F_DUPFD_CLOEXEC, 0);
	device_init(&device, fd, 0);
	file->device = &device;
	pthread_mutex_init(&file->lock, NULL);
	assert_int_equal(pthread_create(&reader, NULL, carry_out, file), 0);
	send_request(pair[1], FUSE_READ, 2);
	await_answer(pair[1], 2);
	assert_int_equal(pthread_create(&closer, NULL, carry_out, file), 0);
	send_request(pair[1], FUSE_RELEASE, 4);
	await_answer(pair[1], 4);
	pthread_join(reader, NULL);
	pthread_join(closer, NULL);
	close(fd);
	close(pair[0]);
	close(pair[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(taken_reply_is_sent_once),
		cmocka_unit_test(refused_reply_becomes_an_error),
		cmocka_unit_test(withdrawn_request_is_left_alone),
		cmocka_unit_test(release_comes_after_answers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
