/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers of a bucket, and URLs of one. The first byte of an input says how the rest is used,
 * the second is its parameter:
 *
 *	0	pages of a listing
 *	1	the answer to DeleteObjects
 *	2	a GET of part of an object
 *	3	a HEAD
 *	4	a PUT
 *	5	keys of the role of an instance
 *	6	the text of a bucket
 *	7	a file of profiles
 *	8	the bucket is made
 *
 * Answers are a header, a blank line and a body, and stand behind each other with "\n--\n" between
 * them. The HTTP client's own part, libcurl, is left out.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "fuzz.h"
#include "object/http/http-internal.h"
#include "object/s3/s3.h"

#define BETWEEN "\n--\n"
#define ASKED	(300u << 10)

int __wrap_cfs_http_run(struct cfs_http *h, const struct cfs_http_request *req,
			struct cfs_http_response *ret);
int __wrap_cfs_http_open(const struct cfs_http_conf *conf, struct cfs_http **ret,
			 char err[CFS_OBJECT_ERRLEN]);
void __wrap_cfs_http_close(struct cfs_http *h);
void __wrap_cfs_http_close_idle(struct cfs_http *h);

static struct fuzz_in answers;

static __attribute__((constructor)) void log_nothing(void)
{
	cfs_log_init(CFS_LOG_STDERR, (enum cfs_log_level)0);
}

int __wrap_cfs_http_open(const struct cfs_http_conf *conf, struct cfs_http **ret,
			 char err[CFS_OBJECT_ERRLEN])
{
	*ret = NULL;
	return 0;
}

void __wrap_cfs_http_close(struct cfs_http *h)
{
}

void __wrap_cfs_http_close_idle(struct cfs_http *h)
{
}

/* As libcurl does: header by header, then the body in pieces. */
int __wrap_cfs_http_run(struct cfs_http *h, const struct cfs_http_request *req,
			struct cfs_http_response *ret)
{
	struct cfs_http_connection c = {.req = req, .resp = ret, .skip = req->dst_off};
	const uint8_t *end;
	size_t left, len;
	char *data, *p;

	cfs_http_no_response(ret);
	if (!answers.left)
		return cfs_http_fail(true, -ECONNRESET, "there are no more answers");
	end = memmem(answers.p, answers.left, BETWEEN, strlen(BETWEEN));
	left = end ? (size_t)(end - answers.p) : answers.left;
	p = data = fuzz_text(&answers, left);
	if (end)
		free(fuzz_text(&answers, strlen(BETWEEN)));
	while (left > 0 && *p != '\n') {
		char *line_end = memchr(p, '\n', left);

		len = line_end ? (size_t)(line_end - p) + 1 : left;
		cfs_http_take_header(p, 1, len, &c);
		p += len;
		left -= len;
	}
	while (left > 1) {
		len = left > 200 ? 100 : left - 1;
		if (cfs_http_receive_body(p + 1, 1, len, &c) != len && !c.full)
			break;
		p += len;
		left -= len;
	}
	free(data);
	check(ret->error_len < sizeof(ret->error));
	if (c.sink_err)
		return cfs_http_fail(true, c.sink_err, "the answer cannot be understood");
	if (!ret->status)
		return cfs_http_fail(true, -ECONNRESET, "no status");
	return 0;
}

static int seen(void *arg, const struct cfs_object_info *info)
{
	unsigned *n = arg;

	check(info->key != NULL);
	(*n)++;
	return *n > 4000 ? -EFBIG : 0;
}

static void run_store(uint8_t what, uint8_t flags)
{
	struct cfs_object_conf conf = {
		.storage = "s3",
		.bucket = flags & 1 ? "http://h/b" : "https://b.s3.us-west-2.amazonaws.com",
		.access_key = "a",
		.secret_key = "s",
	};
	static uint8_t memory[ASKED];
	struct iovec iov[2] = {{memory, 1000}, {memory + 1000, ASKED - 1000}};
	const char *const keys[] = {"chunks/0/0/1_0_4096", "chunks/0/0/2_0_4096"};
	struct cfs_object_store *o;
	struct cfs_object_info info;
	char err[CFS_OBJECT_ERRLEN];
	cfs_deadline_t deadline = cfs_deadline_in(60000);
	unsigned n = 0;
	ssize_t got;

	check(cfs_object_open_s3(&conf, &o, err) == 0);
	switch (what) {
	case 0:
		cfs_s3_list(o, flags & 2 ? "chunks/" : "", flags & 4 ? "chunks/0" : "", seen, &n,
			    deadline);
		break;
	case 1:
		cfs_s3_del_many(o, keys, 2, deadline);
		break;
	case 2:
		got = o->ops->get(o, keys[0], (uint64_t)(flags >> 1) << 20, iov, 2, deadline);
		check(got <= (ssize_t)ASKED);
		break;
	case 3:
		o->ops->head(o, keys[0], &info, deadline);
		break;
	case 4:
		iov[1].iov_len = 200000;
		o->ops->put(o, keys[0], iov, 2, 0, deadline);
		break;
	default:
		o->ops->create(o, deadline);
	}
	o->ops->close(o);
}

static void instance(void)
{
	struct cfs_s3_keys *keys;

	if (cfs_s3_keys_from_instance(cfs_deadline_in(60000), &keys) < 0)
		return;
	check(keys->access && keys->secret);
	cfs_s3_keys_unref(keys);
}

static void endpoint(uint8_t flags, struct fuzz_in *in)
{
	char *text = fuzz_text(in, in->left), err[CFS_OBJECT_ERRLEN] = "";
	struct cfs_s3_endpoint e;
	int r = cfs_s3_endpoint_parse(flags & 1 ? "minio" : "s3", text, &e, err);

	check(r == 0 || *err);
	if (r == 0) {
		check(*e.bucket && *e.host && *e.region && e.path && *e.origin);
		cfs_s3_endpoint_free(&e);
	}
	free(text);
}

static void profile(struct fuzz_in *in)
{
	static char path[64];
	static int fd = -1;
	struct cfs_s3_keys *keys;

	if (fd < 0) {
		fd = memfd_create("profile", MFD_CLOEXEC);
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
		setenv("AWS_CONFIG_FILE", path, 1);
	}
	check(ftruncate(fd, 0) == 0 && pwrite(fd, in->p, in->left, 0) == (ssize_t)in->left);
	if (cfs_s3_keys_from_profile(&keys) == 0) {
		check(keys->access && keys->secret);
		cfs_s3_keys_unref(keys);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = {data, size};
	uint8_t what = fuzz_u8(&in) % 9, flags = fuzz_u8(&in);

	answers = in;
	if (what == 5)
		instance();
	else if (what == 6)
		endpoint(flags, &in);
	else if (what == 7)
		profile(&in);
	else
		run_store(what, flags);
	return 0;
}
