/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/mountd/control/control-serve.h"

#include <cachefs/stage.h>
#include <cachefs/store.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "cmd/access/admin.h"
#include "cmd/access/jsontext.h"
#include "cmd/group/peers.h"
#include "cmd/mountd/supervise/worker.h"

static json_t *hello(struct control_server *s)
{
	return json_pack("{s:i, s:s, s:b}", "pid", (int)atomic_load(&s->worker->pid), "volume",
			 s->volume, "read_only", s->read_only);
}

static json_int_t staging(const struct control_server *s, const char *metric)
{
	return (json_int_t)cfs_metric_get(&cfs_stage_metrics, s->store, metric, NULL);
}

/* Sets the mode of writeback, if the request has one. Replies with the blocks not yet uploaded. */
static json_t *staged(struct control_server *s, json_t *in)
{
	const char *mode = json_string_value(json_object_get(in, "mode"));

	if (mode && !strcmp(mode, "flush"))
		cfs_stage_set_mode(s->store, CFS_STAGE_FLUSH);
	else if (mode && !strcmp(mode, "leave"))
		cfs_stage_set_mode(s->store, CFS_STAGE_LEAVE);
	else if (mode)
		cfs_stage_set_mode(s->store, CFS_STAGE_NORMAL);
	return json_pack("{s:I, s:I, s:I}", "blocks", staging(s, "staging_blocks"), "bytes",
			 staging(s, "staging_bytes"), "uploads",
			 staging(s, "staging_uploads_total"));
}

static int add_path(void *arg, const char *path)
{
	return json_array_append_new(arg, admin_text(path, strlen(path))) < 0 ? -ENOMEM : 0;
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
		struct cfs_block b = cfs_block_of(slice->id, slice->size, i, s->block_size);

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

#define INFO_CHUNKS_MAX 16384

static int add_chunks(struct control_server *s, const struct cfs_ctx *ctx, cfs_ino_t ino,
		      json_t *chunks, bool *ret_truncated)
{
	struct cfs_stored_chunks stored = {0};
	struct cfs_chunk_len c;
	int r = 0;

	while (!*ret_truncated && r == 0 &&
	       (r = cfs_stored_next(s->meta, ctx, ino, &stored, &c)) > 0) {
		*ret_truncated = json_array_size(chunks) == INFO_CHUNKS_MAX;
		r = *ret_truncated ? 0 : add_chunk(s, ctx, ino, c.indx, chunks);
	}
	cfs_stored_end(&stored);
	return r;
}

static int info(struct control_server *s, const struct cfs_ctx *ctx, cfs_ino_t ino, json_t **ret)
{
	json_t *paths = json_array(), *chunks = json_array();
	struct cfs_attr attr;
	bool truncated = false;
	int r;

	r = cfs_meta_getattr(s->meta, ctx, ino, &attr);
	if (r == 0)
		r = cfs_meta_each_path(s->meta, ctx, ino, add_path, paths);
	if (r == 0 && attr.type == CFS_TYPE_FILE)
		r = add_chunks(s, ctx, ino, chunks, &truncated);
	if (r < 0) {
		json_decref(paths);
		json_decref(chunks);
		return r;
	}
	*ret = json_pack("{s:I, s:i, s:i, s:I, s:i, s:i, s:I, s:o, s:b, s:o}", "inode",
			 (json_int_t)ino, "tier", attr.tier, "type", attr.type, "length",
			 (json_int_t)attr.length, "nlink", (int)attr.nlink, "mode", attr.mode,
			 "parent", (json_int_t)attr.parent, "paths", paths, "truncated", truncated,
			 "chunks", chunks);
	return *ret ? 0 : -ENOMEM;
}

/* ---- long operations ---- */

struct cfs_ctx control_step(const struct control_job *job)
{
	struct cfs_ctx ctx = *job->who;

	ctx.now = cfs_wall();
	ctx.deadline = cfs_deadline_in(CONTROL_STEP_MS);
	return ctx;
}

int control_check(struct control_job *job)
{
	return job->who->interrupted && job->who->interrupted(job->who->interrupted_arg) ? -EINTR
											 : 0;
}

cfs_ino_t control_ino(const struct control_server *s, json_t *in, const char *key)
{
	cfs_ino_t ino = (cfs_ino_t)json_get_int(in, key);

	return ino == CFS_ROOT_INO && s->root ? s->root : ino;
}

int control_name(json_t *in, char name[CFS_NAME_MAX + 1], size_t *ret_len)
{
	const char *hex = json_string_value(json_object_get(in, "name"));
	size_t i, len = hex ? strlen(hex) / 2 : 0;
	unsigned byte;

	if (!len || strlen(hex) % 2)
		return -EINVAL;
	if (len > CFS_NAME_MAX)
		return -ENAMETOOLONG;
	for (i = 0; i < len; i++) {
		if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
			return -EINVAL;
		name[i] = (char)byte;
	}
	name[len] = '\0';
	*ret_len = len;
	return 0;
}

static int start_job(struct control_server *s, struct control_job *job)
{
	size_t i;
	CFS_LOCK_GUARD(&s->lock);

	for (i = 0; i < CONTROL_JOBS; i++) {
		if (!s->jobs[i]) {
			s->jobs[i] = job;
			return 0;
		}
	}
	return -EBUSY;
}

static void end_job(struct control_server *s, struct control_job *job)
{
	size_t i;
	CFS_LOCK_GUARD(&s->lock);

	for (i = 0; i < CONTROL_JOBS; i++) {
		if (s->jobs[i] == job)
			s->jobs[i] = NULL;
	}
}

static json_t *progress(struct control_server *s, json_int_t id)
{
	uint64_t done = 0, total = 0;
	size_t i;

	pthread_mutex_lock(&s->lock);
	for (i = 0; i < CONTROL_JOBS; i++) {
		if (s->jobs[i] && s->jobs[i]->id == id) {
			done = atomic_load(&s->jobs[i]->done);
			total = atomic_load(&s->jobs[i]->total);
		}
	}
	pthread_mutex_unlock(&s->lock);
	return json_pack("{s:I, s:I}", "done", (json_int_t)done, "total", (json_int_t)total);
}

static const struct operation {
	const char *name;
	int (*run)(struct control_server *s, struct control_job *job, json_t *in, json_t **ret);
	bool writes;
} operations[] = {
	{"clone", control_clone, true},	    {"rmr", control_rmr, true},
	{"compact", control_compact, true}, {"summary", control_summary, false},
	{"warmup", control_warmup, false},  {"cache-map", control_map, false},
};

static int run(struct control_server *s, const struct cfs_ctx *who, const char *op, json_t *in,
	       json_t **ret)
{
	struct control_job job = {
		.who = who,
		.id = json_get_int(in, "job"),
	};
	size_t i;
	int r;

	for (i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
		if (strcmp(op, operations[i].name))
			continue;
		if (operations[i].writes && s->read_only)
			return -EROFS;
		r = start_job(s, &job);
		if (r < 0)
			return r;
		r = operations[i].run(s, &job, in, ret);
		end_job(s, &job);
		return r;
	}
	return -EOPNOTSUPP;
}

int control_serve(void *arg, const struct cfs_ctx *ctx, const char *req, size_t len, char **ret,
		  size_t *ret_len)
{
	struct control_server *s = arg;
	json_t *in = json_loadb(req, len, 0, NULL), *out = NULL;
	const char *op = in ? json_string_value(json_object_get(in, "op")) : NULL;
	int r = 0;

	if (!op)
		r = -EINVAL;
	else if (!strcmp(op, "hello"))
		out = hello(s);
	else if (!strcmp(op, "members"))
		out = s->peers ? json_pack("{s:o}", "members", peers_seen(s->peers))
			       : json_object();
	else if (!strcmp(op, "info"))
		r = info(s, ctx, control_ino(s, in, "inode"), &out);
	else if (!strcmp(op, "staged"))
		out = staged(s, in);
	else if (!strcmp(op, "progress"))
		out = progress(s, json_get_int(in, "job"));
	else
		r = run(s, ctx, op, in, &out);
	if (r < 0)
		out = json_pack("{s:s, s:i}", "error", cfs_errname(r), "errno", -r);
	json_decref(in);
	*ret = out ? json_dumps(out, JSON_COMPACT) : NULL;
	json_decref(out);
	if (!*ret)
		return -ENOMEM;
	*ret_len = strlen(*ret);
	return 0;
}
