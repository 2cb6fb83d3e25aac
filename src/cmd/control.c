/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/control.h"

#include <cachefs/meta.h>
#include <cachefs/store.h>
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
#include "base/log.h"
#include "cmd/mounted.h"

#define ASK_TIMEOUT_MS 10000
#define REPLY_MAX      (64u << 20)

/* ---- client ---- */

/*
 * One question to a mount that may be dead: asked on a thread of its own, so that the caller can
 * leave it behind at the deadline (waits on a FUSE file cannot be interrupted otherwise).
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

json_t *control_ask(const char *point, json_t *req)
{
	cfs_deadline_t deadline = cfs_deadline_in(ASK_TIMEOUT_MS);
	struct question *q = calloc(1, sizeof(*q));
	json_t *reply = NULL;
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
	pthread_mutex_lock(&q->lock);
	while (!q->done && r != -ETIMEDOUT)
		r = cfs_cond_wait(&q->cond, &q->lock, deadline);
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

int control_find_mount(const char *path, char *point, size_t size)
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

/* ---- server ---- */

static json_t *hello(struct control_server *s)
{
	return json_pack("{s:i, s:s, s:b}", "pid", (int)getpid(), "volume", s->volume, "read_only",
			 s->read_only);
}

static int add_path(void *arg, const char *path)
{
	/* A name that is not UTF-8 cannot be said in JSON: shown with replacement characters. */
	json_t *text = json_string(path);
	char *copy, *p;

	if (!text) {
		copy = strdup(path);
		if (!copy)
			return -ENOMEM;
		for (p = copy; *p; p++) {
			if ((unsigned char)*p >= 0x80)
				*p = '?';
		}
		text = json_string(copy);
		free(copy);
	}
	return json_array_append_new(arg, text) < 0 ? -ENOMEM : 0;
}

static json_t *slice_objects(struct control_server *s, const struct cfs_slice *slice)
{
	json_t *objects = json_array();
	uint32_t first, last, i;
	char key[CFS_BLOCK_KEY_MAX];

	if (!slice->id || !slice->len)
		return objects;
	first = slice->off / s->block_size;
	last = (slice->off + slice->len - 1) / s->block_size;
	for (i = first; i <= last; i++) {
		struct cfs_block b = {.slice = slice->id, .index = i, .len = s->block_size};

		if ((uint64_t)(i + 1) * s->block_size > slice->size)
			b.len = slice->size - i * s->block_size;
		cfs_store_block_key(s->store, &b, key);
		json_array_append_new(objects, json_string(key));
	}
	return objects;
}

static int add_chunk(struct control_server *s, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     uint32_t indx, json_t *chunks)
{
	cfs_auto_free struct cfs_slice *slices = NULL;
	json_t *list;
	ssize_t i, n;

	n = cfs_meta_read_chunk(s->meta, ctx, ino, indx, &slices);
	if (n <= 0)
		return (int)n;
	list = json_array();
	for (i = 0; i < n; i++) {
		json_array_append_new(
			list, json_pack("{s:I, s:I, s:I, s:I, s:I, s:o}", "pos",
					(json_int_t)slices[i].pos, "id", (json_int_t)slices[i].id,
					"size", (json_int_t)slices[i].size, "off",
					(json_int_t)slices[i].off, "len", (json_int_t)slices[i].len,
					"objects", slice_objects(s, &slices[i])));
	}
	return json_array_append_new(chunks, json_pack("{s:I, s:o}", "index", (json_int_t)indx,
						       "slices", list)) < 0
		       ? -ENOMEM
		       : 0;
}

/* Chunk look-ups are bounded: a sparse file of 2^57 bytes has two thousand million of them. */
#define INFO_CHUNKS_MAX 16384

static int info(struct control_server *s, const struct cfs_ctx *ctx, cfs_ino_t ino, json_t **ret)
{
	json_t *paths = json_array(), *chunks = json_array();
	struct cfs_attr attr;
	uint64_t i, n;
	int r;

	r = cfs_meta_getattr(s->meta, ctx, ino, &attr);
	if (r == 0)
		r = cfs_meta_each_path(s->meta, ctx, ino, add_path, paths);
	n = r == 0 && attr.type == CFS_TYPE_FILE
		    ? (attr.length + CFS_CHUNK_SIZE - 1) / CFS_CHUNK_SIZE
		    : 0;
	for (i = 0; i < n && i < INFO_CHUNKS_MAX && r == 0; i++)
		r = add_chunk(s, ctx, ino, (uint32_t)i, chunks);
	if (r < 0) {
		json_decref(paths);
		json_decref(chunks);
		return r;
	}
	*ret = json_pack("{s:I, s:i, s:I, s:i, s:i, s:I, s:o, s:b, s:o}", "inode", (json_int_t)ino,
			 "type", attr.type, "length", (json_int_t)attr.length, "nlink",
			 (int)attr.nlink, "mode", attr.mode, "parent", (json_int_t)attr.parent,
			 "paths", paths, "truncated", n > INFO_CHUNKS_MAX, "chunks", chunks);
	return *ret ? 0 : -ENOMEM;
}

int control_serve(void *arg, const struct cfs_ctx *ctx, const char *req, size_t len, char **ret,
		  size_t *ret_len)
{
	struct control_server *s = arg;
	json_t *in = json_loadb(req, len, 0, NULL), *out = NULL;
	const char *op = in ? json_string_value(json_object_get(in, "op")) : NULL;
	int r = -EINVAL;

	if (op && !strcmp(op, "hello")) {
		out = hello(s);
		r = 0;
	} else if (op && !strcmp(op, "info")) {
		r = info(s, ctx, (cfs_ino_t)json_integer_value(json_object_get(in, "inode")), &out);
	}
	if (r < 0)
		out = json_pack("{s:s}", "error", cfs_errname(r));
	json_decref(in);
	*ret = out ? json_dumps(out, JSON_COMPACT) : NULL;
	json_decref(out);
	if (!*ret)
		return -ENOMEM;
	*ret_len = strlen(*ret);
	return 0;
}
