/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/control.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mounted.h"
#include "cmd/access/cmd.h"
#include "cmd/access/jsontext.h"
#include "cmd/access/live.h"

#define ASK_TIMEOUT_MS 10000
#define POLL_MS	       250
/* A long operation is given up after its mount has been silent for this long. */
#define SILENCE_MS 60000
#define REPLY_MAX  (64u << 20)

/*
 * One question to a mount that may be dead. A child asks it: a wait on a FUSE file ends with its
 * process only, and while it lasts the mount is busy.
 */
struct question {
	struct live_reader reader;
	char *reply; /* the part that has come */
	size_t len, cap;
	int err; /* 0: no reason to give up yet */
};

/* Starts sending the request. Takes over req. */
static int ask(const char *point, json_t *req, struct question *ret)
{
	char *text = json_dumps(req, JSON_COMPACT), *path = NULL;
	int r = -ENOMEM;

	json_decref(req);
	*ret = (struct question){0};
	if (text && asprintf(&path, "%s/%s", point, CFS_CONTROL_NAME) >= 0)
		r = live_reader_start(path, text, &ret->reader);
	ret->reader.finish = true; /* a command that was stopped leaves the mount as it was */
	free(path);
	free(text);
	return r;
}

/* True when the reply is complete, or will not come. */
static bool is_answered(struct question *q, cfs_deadline_t deadline)
{
	ssize_t n = 1;
	char *bigger;

	while (n > 0) {
		if (q->len == q->cap) {
			q->cap = q->cap ? 2 * q->cap : 16384;
			bigger = q->cap > REPLY_MAX ? NULL : realloc(q->reply, q->cap);
			if (!bigger) {
				q->err = -ENOMEM;
				return true;
			}
			q->reply = bigger;
		}
		n = live_reader_read(&q->reader, q->reply + q->len, q->cap - q->len, deadline);
		if (n > 0)
			q->len += (size_t)n;
	}
	if (n < 0 && n != -ETIMEDOUT)
		q->err = (int)n;
	return n != -ETIMEDOUT;
}

/* The reply, or NULL with errno set when the request failed or is still unanswered. */
static json_t *take_reply(struct question *q, bool answered)
{
	int ended = live_reader_stop(&q->reader), r = q->err;
	json_t *reply = NULL;

	if (!answered)
		r = -ETIMEDOUT;
	else if (r == 0)
		r = ended;
	if (r == 0) {
		reply = json_loadb(q->reply, q->len, 0, NULL);
		r = reply ? 0 : -EPROTO;
	}
	free(q->reply);
	errno = -r;
	return reply;
}

json_t *control_ask(const char *point, json_t *req)
{
	struct question q;
	int r = ask(point, req, &q);

	if (r < 0) {
		errno = -r;
		return NULL;
	}
	return take_reply(&q, is_answered(&q, cfs_deadline_in(ASK_TIMEOUT_MS)));
}

json_t *control_run(const char *point, json_t *req, struct progress *p)
{
	/* 53 bits: larger integers are not exact in every JSON reader. */
	json_int_t job = (json_int_t)(cfs_random_u64() >> 11);
	cfs_deadline_t alive = cfs_deadline_in(SILENCE_MS);
	struct question q;
	bool answered;
	json_t *now;
	int r;

	json_object_set_new(req, "job", json_integer(job));
	r = ask(point, req, &q);
	if (r < 0) {
		errno = -r;
		return NULL;
	}
	while (!(answered = is_answered(&q, cfs_deadline_in(POLL_MS))) &&
	       !cfs_deadline_passed(alive)) {
		now = control_ask(point, json_pack("{s:s, s:I}", "op", "progress", "job", job));
		if (!now)
			continue;
		alive = cfs_deadline_in(SILENCE_MS);
		progress_set(p, (uint64_t)json_get_int(now, "done"),
			     (uint64_t)json_get_int(now, "total"));
		json_decref(now);
	}
	progress_end(p);
	return take_reply(&q, answered);
}

int control_error(json_t *reply)
{
	json_t *code;

	if (!reply)
		return errno ? -errno : -EIO;
	if (!json_object_get(reply, "error"))
		return 0;
	code = json_object_get(reply, "errno");
	return json_integer_value(code) > 0 ? (int)-json_integer_value(code) : -EIO;
}

char *control_hex(const char *name)
{
	size_t i, len = strlen(name);
	char *hex = malloc(2 * len + 1);

	for (i = 0; hex && i < len; i++)
		snprintf(hex + 2 * i, 3, "%02x", (unsigned char)name[i]);
	if (hex)
		hex[2 * len] = '\0';
	return hex;
}

pid_t control_pid(const char *point)
{
	json_t *reply = control_ask(point, json_pack("{s:s}", "op", "hello"));
	json_int_t pid = reply ? json_get_int(reply, "pid") : 0;

	json_decref(reply);
	return (pid_t)pid;
}

bool control_is_read_only(const char *point)
{
	json_t *reply = control_ask(point, json_pack("{s:s}", "op", "hello"));
	bool ro = reply && json_is_true(json_object_get(reply, "read_only"));

	json_decref(reply);
	return ro;
}

int control_seek_mount(const char *path, char *point, size_t size)
{
	struct mounted m;
	char *slash;
	int r;

	r = mounted_resolve(path, point, size);
	if (r < 0)
		return r;
	for (;;) {
		r = mounted_at(point, &m);
		if (r != -ENOENT)
			break;
		slash = strrchr(point, '/');
		if (!slash || !point[1])
			return -ENOENT;
		slash[slash == point] = '\0';
	}
	if (r < 0)
		return r;
	return strcmp(m.type, CFS_FSTYPE) ? -ENOENT : 0;
}

int control_find_mount(const char *path, char *point, size_t size)
{
	int r = control_seek_mount(path, point, size);

	if (r < 0)
		cmd_error("%s: %s", path,
			  access(path, F_OK) < 0 ? strerror(errno) : "not in a cachefs mount");
	return r;
}
