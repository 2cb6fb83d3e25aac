/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests that programs write to .control. Each has an answer: a JSON object, whose "error" is an
 * errno. An input is any bytes, over a volume that is always the same: a directory with a directory
 * of the same kind, a file of some chunks, a file with nothing but holes, and a symlink.
 */
#include <cachefs/stage.h>
#include <cachefs/store.h>
#include <errno.h>
#include <stdio.h>

#include "base/metric.h"
#include "cmd/access/admin.h"
#include "cmd/group/peers.h"
#include "cmd/mountd/control/control-serve.h"
#include "cmd/mountd/supervise/worker.h"
#include "fuzz.h"

/* Directories are numbered from the root, 1 to DEPTH, and are inside each other. */
enum { DEPTH = 5, FILE_INO = 10, HOLES_INO = 11, LINK_INO = 12, CHUNKS = 3 };

struct cfs_store {
	uint64_t blocks, bytes, uploads;
};

/* ---- the volume ---- */

static struct cfs_attr attr_of(cfs_ino_t ino)
{
	struct cfs_attr a = {.mode = 0644, .nlink = 1, .parent = 1};

	a.type = ino <= DEPTH ? CFS_TYPE_DIR : ino == LINK_INO ? CFS_TYPE_SYMLINK : CFS_TYPE_FILE;
	if (ino == FILE_INO)
		a.length = CHUNKS * CFS_CHUNK_SIZE - 1;
	if (ino == HOLES_INO)
		a.length = CFS_FILE_MAX;
	return a;
}

static bool exists(cfs_ino_t ino)
{
	return (ino >= 1 && ino <= DEPTH) || (ino >= FILE_INO && ino <= LINK_INO);
}

int cfs_meta_getattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     struct cfs_attr *ret)
{
	if (!exists(ino))
		return -ENOENT;
	*ret = attr_of(ino);
	return 0;
}

int cfs_meta_lookup(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
		    const char *name, size_t name_len, struct cfs_entry *ret)
{
	check(name_len > 0 && name_len <= CFS_NAME_MAX && strnlen(name, name_len + 1) <= name_len);
	if (!exists(parent))
		return -ENOENT;
	ret->ino = *name == 'd' ? parent + 1 : FILE_INO;
	ret->attr = attr_of(ret->ino);
	return exists(ret->ino) ? 0 : -ENOENT;
}

struct cfs_ctx cfs_ctx_internal(uint64_t timeout_ms)
{
	return (struct cfs_ctx){.deadline = cfs_deadline_in(timeout_ms)};
}

int cfs_meta_readdir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir, bool attrs,
		     size_t limit, struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg)
{
	const cfs_ino_t inos[] = {dir + 1, FILE_INO, HOLES_INO, LINK_INO};
	/* The second one is no UTF-8. */
	static const char *const names[] = {"d", "\xff\xfe%", "holes", "link"};
	struct cfs_cursor after;
	size_t i;
	int r;

	if (!exists(dir) || dir > DEPTH)
		return -ENOENT;
	for (i = cursor->len ? cursor->key[0] : 0; i < 4; i++) {
		struct cfs_dirent e = {.name = names[i], .name_len = strlen(names[i])};

		after = (struct cfs_cursor){.len = 1, .key = {(uint8_t)(i + 1)}};
		e.after = &after;
		e.entry.ino = inos[i];
		e.entry.attr = attr_of(inos[i]);
		e.type = e.entry.attr.type;
		if (!i && dir == DEPTH)
			continue;
		r = fn(arg, &e);
		if (r)
			return 0;
		*cursor = after;
	}
	return 1;
}

ssize_t cfs_meta_read_chunk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			    uint32_t indx, struct cfs_slice **ret)
{
	static const struct cfs_slice two[] = {
		{.id = 7, .size = 9 << 20, .len = 9 << 20},
		{.pos = 4096, .id = 8, .size = 4096, .off = 10, .len = 4000},
	};

	check(ino == FILE_INO || ino == HOLES_INO);
	*ret = NULL;
	if (ino != FILE_INO || indx >= CHUNKS)
		return 0;
	*ret = malloc(sizeof(two));
	check(*ret != NULL);
	memcpy(*ret, two, sizeof(two));
	return 2;
}

ssize_t cfs_meta_list_chunks(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			     uint32_t first, struct cfs_chunk_len ret[1024])
{
	ssize_t n = 0;

	for (; ino == FILE_INO && first < CHUNKS; first++)
		ret[n++] = (struct cfs_chunk_len){first, 2};
	return n;
}

int cfs_meta_each_path(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_path_fn fn,
		       void *arg)
{
	return fn(arg, "/d/\xff\xfe%");
}

int cfs_meta_get_dir_stat(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
			  struct cfs_dir_stat *ret)
{
	*ret = (struct cfs_dir_stat){4096, 4096, 4};
	return dir % 2 ? 0 : -ENODATA;
}

int cfs_meta_clone(struct cfs_meta *m, const struct cfs_ctx *who, const struct cfs_clone *req,
		   struct cfs_entry *ret)
{
	check(req->name_len > 0 && req->name_len <= CFS_NAME_MAX);
	ret->ino = FILE_INO;
	ret->attr = attr_of(FILE_INO);
	return exists(req->src) ? req->step(req->arg, 1) : -ENOENT;
}

int cfs_vfs_remove(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name,
		   size_t len, bool is_dir, unsigned flags)
{
	/* The second answer ends the removal of a directory. */
	return is_dir && parent < DEPTH && parent % 2 ? -ENOTEMPTY : 0;
}

void cfs_vfs_name_changed(struct cfs_vfs *v, cfs_ino_t parent, const char *name, size_t len)
{
}

int cfs_data_await_closed(struct cfs_data *d, cfs_deadline_t deadline)
{
	return 0;
}

int cfs_data_compact(struct cfs_data *d, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t indx)
{
	return indx % 2 ? -EAGAIN : 0;
}

/* ---- blocks ---- */

static const struct cfs_metric staging[] = {
	CFS_METRIC(struct cfs_store, "staging_blocks", NULL, "Blocks", blocks),
	CFS_METRIC(struct cfs_store, "staging_bytes", NULL, "Bytes", bytes),
	CFS_METRIC(struct cfs_store, "staging_uploads_total", NULL, "Uploads", uploads),
};
const struct cfs_metric_table cfs_stage_metrics = CFS_METRIC_TABLE(staging);

int cfs_store_block_key(const struct cfs_store *s, const struct cfs_block *b,
			char key[CFS_BLOCK_KEY_MAX])
{
	return snprintf(key, CFS_BLOCK_KEY_MAX, "v/chunks/%u", b->index);
}

static void check_block(const struct cfs_block *b)
{
	check(b->slice && b->len > 0 && b->len <= 4 << 20);
}

void cfs_store_held(struct cfs_store *s, const struct cfs_block *b, uint32_t off, uint32_t len,
		    struct cfs_store_held *ret)
{
	check_block(b);
	check(off + len <= b->len);
	*ret = (struct cfs_store_held){.memory = len, .disk = len / 2};
}

int cfs_data_make_whole(struct cfs_data *d, cfs_ino_t ino, const _Atomic bool *stop)
{
	return ino % 2 ? 0 : -EFBIG;
}

void cfs_data_forget_whole(struct cfs_data *d, cfs_ino_t ino)
{
}

int cfs_store_warm(struct cfs_store *s, const struct cfs_block *b, cfs_deadline_t deadline)
{
	check_block(b);
	return b->index == 1 ? -EIO : b->index == 2 ? -EOPNOTSUPP : 1;
}

void cfs_store_forget(struct cfs_store *s, const struct cfs_block *b)
{
	check_block(b);
}

bool cfs_store_has_disk(const struct cfs_store *s)
{
	return true;
}

void cfs_stage_set_mode(struct cfs_store *s, enum cfs_stage_mode mode)
{
}

json_t *peers_seen(struct cfs_peers *p)
{
	return json_array();
}

json_t *peers_block(struct cfs_peers *p, const struct cfs_block *b, cfs_deadline_t deadline)
{
	check_block(b);
	return json_array();
}

bool peers_have(struct cfs_peers *p, const struct cfs_block *b, cfs_deadline_t deadline)
{
	return b->index % 2;
}

json_t *admin_text(const char *bytes, size_t len)
{
	json_t *text = json_stringn(bytes, len);

	return text ? text : json_string("?");
}

/* ---- an input ---- */

static void name_changed(void *arg, cfs_ino_t parent, const char *name, size_t len)
{
	check(strlen(name) <= len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct worker worker;
	static struct cfs_store store;
	struct control_server s = {
		.store = &store,
		.worker = &worker,
		.volume = "v",
		.block_size = 4 << 20,
		.name_changed = name_changed,
		.lock = PTHREAD_MUTEX_INITIALIZER,
	};
	const struct cfs_ctx ctx = {.deadline = cfs_deadline_in(60000)};
	struct fuzz_in in = {data, size};
	char *request = fuzz_text(&in, size), *answer = NULL;
	json_t *out, *error;
	size_t len = 0, i;

	/* With and without a cache group; of the volume, and of a directory in it. */
	s.peers = size % 2 ? (struct cfs_peers *)&store : NULL;
	s.root = size % 3 ? 0 : 2;
	s.read_only = size % 7 == 0;
	check(control_serve(&s, &ctx, request, size, &answer, &len) == 0);
	out = json_loadb(answer, len, 0, NULL);
	check(out && json_is_object(out));
	error = json_object_get(out, "error");
	check(!error || json_integer_value(json_object_get(out, "errno")) > 0);
	for (i = 0; i < CONTROL_JOBS; i++)
		check(!s.jobs[i]);
	json_decref(out);
	free(answer);
	free(request);
	return 0;
}
