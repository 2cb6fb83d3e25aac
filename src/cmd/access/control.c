/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/control.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/mounted.h"
#include "cmd/access/cmd.h"

#define ASK_TIMEOUT_MS 10000
#define POLL_MS	       250
/* A long operation is given up after its mount has been silent for this long. */
#define SILENCE_MS 60000
#define REPLY_MAX  (64u << 20)

/*
 * One question to a mount that may be dead. It is asked on a thread of its own, because a wait on a
 * FUSE file cannot be interrupted: at the deadline the caller abandons the thread.
 */
struct question {
	pthread_mutex_t lock; /* protects done, abandoned */
	pthread_cond_t cond;
	bool done, abandoned;
	int err;
	char path[4200];
	char *req;
	json_t *reply;
};

static void question_free(struct question *q)
{
	pthread_mutex_destroy(&q->lock);
	pthread_cond_destroy(&q->cond);
	json_decref(q->reply);
	free(q->req);
	free(q);
}

static int read_all(int fd, char **ret, size_t *ret_len)
{
	size_t len = 0, cap = 0;
	char *buf = NULL, *bigger;
	ssize_t n;

	for (;;) {
		if (len == cap) {
			cap = cap ? 2 * cap : 16384;
			bigger = cap > REPLY_MAX ? NULL : realloc(buf, cap);
			if (!bigger) {
				free(buf);
				return -ENOMEM;
			}
			buf = bigger;
		}
		n = read(fd, buf + len, cap - len);
		if (n < 0) {
			n = -errno;
			free(buf);
			return (int)n;
		}
		if (n == 0)
			break;
		len += (size_t)n;
	}
	*ret = buf;
	*ret_len = len;
	return 0;
}

static int exchange(struct question *q)
{
	cfs_auto_close int fd = open(q->path, O_RDWR | O_CLOEXEC);
	cfs_auto_free char *text = NULL;
	size_t len = strlen(q->req);
	int r;

	if (fd < 0)
		return -errno;
	if (write(fd, q->req, len) != (ssize_t)len)
		return errno ? -errno : -EIO;
	r = read_all(fd, &text, &len);
	if (r < 0)
		return r;
	q->reply = json_loadb(text, len, 0, NULL);
	return q->reply ? 0 : -EPROTO;
}

static void *ask_thread(void *arg)
{
	struct question *q = arg;
	bool abandoned;
	int r = exchange(q);

	pthread_mutex_lock(&q->lock);
	q->err = r;
	q->done = true;
	abandoned = q->abandoned;
	pthread_cond_signal(&q->cond);
	pthread_mutex_unlock(&q->lock);
	if (abandoned)
		question_free(q);
	return NULL;
}

/* Starts sending the request; NULL with errno set on failure. Takes over req. */
static struct question *ask(const char *point, json_t *req)
{
	struct question *q = calloc(1, sizeof(*q));
	pthread_t thread;
	int r;

	if (!q) {
		json_decref(req);
		errno = ENOMEM;
		return NULL;
	}
	pthread_mutex_init(&q->lock, NULL);
	cfs_cond_init(&q->cond);
	snprintf(q->path, sizeof(q->path), "%s/%s", point, CFS_CONTROL_NAME);
	q->req = json_dumps(req, JSON_COMPACT);
	json_decref(req);
	r = q->req ? -pthread_create(&thread, NULL, ask_thread, q) : -ENOMEM;
	if (r < 0) {
		question_free(q);
		errno = -r;
		return NULL;
	}
	pthread_detach(thread);
	return q;
}

static bool is_answered(struct question *q, cfs_deadline_t deadline)
{
	bool done;
	int r = 0;

	pthread_mutex_lock(&q->lock);
	while (!q->done && r != -ETIMEDOUT)
		r = cfs_cond_wait(&q->cond, &q->lock, deadline);
	done = q->done;
	pthread_mutex_unlock(&q->lock);
	return done;
}

/* The reply, or NULL with errno set when the request failed or is still unanswered. */
static json_t *take_reply(struct question *q)
{
	json_t *reply;
	int r;

	pthread_mutex_lock(&q->lock);
	if (!q->done) {
		q->abandoned = true;
		pthread_mutex_unlock(&q->lock);
		errno = ETIMEDOUT;
		return NULL;
	}
	pthread_mutex_unlock(&q->lock);
	r = q->err;
	reply = json_incref(q->reply);
	question_free(q);
	errno = -r;
	return reply;
}

json_t *control_ask(const char *point, json_t *req)
{
	struct question *q = ask(point, req);

	if (!q)
		return NULL;
	is_answered(q, cfs_deadline_in(ASK_TIMEOUT_MS));
	return take_reply(q);
}

json_t *control_run(const char *point, json_t *req, struct progress *p)
{
	/* 53 bits: larger integers are not exact in every JSON reader. */
	json_int_t job = (json_int_t)(cfs_random_u64() >> 11);
	cfs_deadline_t alive = cfs_deadline_in(SILENCE_MS);
	struct question *q;
	json_t *now;

	json_object_set_new(req, "job", json_integer(job));
	q = ask(point, req);
	if (!q)
		return NULL;
	while (!is_answered(q, cfs_deadline_in(POLL_MS)) && !cfs_deadline_passed(alive)) {
		now = control_ask(point, json_pack("{s:s, s:I}", "op", "progress", "job", job));
		if (!now)
			continue;
		alive = cfs_deadline_in(SILENCE_MS);
		progress_set(p, (uint64_t)json_integer_value(json_object_get(now, "done")),
			     (uint64_t)json_integer_value(json_object_get(now, "total")));
		json_decref(now);
	}
	progress_end(p);
	return take_reply(q);
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
	json_int_t pid = reply ? json_integer_value(json_object_get(reply, "pid")) : 0;

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

static int find_mount(const char *path, char *point, size_t size)
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
	int r = find_mount(path, point, size);

	if (r < 0)
		cmd_error("%s: %s", path,
			  access(path, F_OK) < 0 ? strerror(errno) : "not in a cachefs mount");
	return r;
}
