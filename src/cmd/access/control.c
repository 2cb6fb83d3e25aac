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
 * Starts sending the request. Takes over req. A child asks the mount, which may be dead: a wait on a
 * FUSE file ends with its process only, and while it lasts the mount is busy.
 */
static int ask(const char *point, json_t *req, struct live_reader *ret)
{
	char *text = json_dumps(req, JSON_COMPACT), *path = NULL;
	int r = -ENOMEM;

	json_decref(req);
	if (text && asprintf(&path, "%s/%s", point, CFS_CONTROL_NAME) >= 0)
		r = live_reader_start(path, text, ret);
	ret->finish = true; /* a command that was stopped leaves the mount as it was */
	free(path);
	free(text);
	errno = -r;
	return r;
}

/* r: the result of reading it. Returns the reply, or NULL with errno set. */
static json_t *take_reply(struct live_reader *reader, int r)
{
	int ended = live_reader_stop(reader);
	json_t *reply = NULL;

	r = r < 0 ? r : ended;
	if (r == 0) {
		reply = json_loadb(reader->text, reader->len, 0, NULL);
		r = reply ? 0 : -EPROTO;
	}
	free(reader->text);
	errno = -r;
	return reply;
}

json_t *control_ask(const char *point, json_t *req)
{
	struct live_reader reader = {0};

	if (ask(point, req, &reader) < 0)
		return NULL;
	return take_reply(&reader,
			  live_reader_fill(&reader, REPLY_MAX, cfs_deadline_in(ASK_TIMEOUT_MS)));
}

json_t *control_run(const char *point, json_t *req, struct progress *p)
{
	/* 53 bits: larger integers are not exact in every JSON reader. */
	json_int_t job = (json_int_t)(cfs_random_u64() >> 11);
	cfs_deadline_t alive = cfs_deadline_in(SILENCE_MS);
	struct live_reader reader = {0};
	json_t *now;
	int r;

	json_object_set_new(req, "job", json_integer(job));
	if (ask(point, req, &reader) < 0)
		return NULL;
	while ((r = live_reader_fill(&reader, REPLY_MAX, cfs_deadline_in(POLL_MS))) == -ETIMEDOUT &&
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
	return take_reply(&reader, r);
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

pid_t control_pid(const char *point, bool *ret_read_only)
{
	json_t *reply = control_ask(point, json_pack("{s:s}", "op", "hello"));
	pid_t pid = (pid_t)json_get_int(reply, "pid");

	if (ret_read_only)
		*ret_read_only = json_is_true(json_object_get(reply, "read_only"));
	json_decref(reply);
	return pid;
}

int control_seek_mount(const char *path, char *point, size_t size)
{
	struct mounted m;
	char *slash;
	int r;

	r = mounted_follow(path, point, size);
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
