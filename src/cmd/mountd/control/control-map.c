/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache map inside a mount: for each block of some chunks of a file, the members that own it and
 * whether they have it.
 */
#include <errno.h>

#include "base/cleanup.h"
#include "cmd/access/jsontext.h"
#include "cmd/group/peers.h"
#include "cmd/mountd/control/control-serve.h"

enum { CHUNKS_MAX = 4 }; /* of a reply, because each block may cost a round trip */

static int add_block(struct control_server *s, const struct cfs_ctx *ctx,
		     const struct cfs_slice *slice, uint32_t index, json_t *blocks)
{
	struct cfs_block b = cfs_block_of(slice->id, slice->size, index, s->block_size);
	char key[CFS_BLOCK_KEY_MAX];
	struct cfs_store_held held;

	cfs_store_block_key(s->store, &b, key);
	cfs_store_held(s->store, &b, 0, b.len, &held);
	return json_array_append_new(
		       blocks, json_pack("{s:s, s:b, s:b, s:o}", "key", key, "memory",
					 held.memory == b.len, "disk", held.disk == b.len, "owners",
					 s->peers ? peers_block(s->peers, &b, ctx->deadline)
						  : json_array())) < 0
		       ? -ENOMEM
		       : 0;
}

static int add_chunk(struct control_server *s, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     uint32_t chunk, json_t *blocks)
{
	cfs_auto_free struct cfs_slice *slices = NULL;
	ssize_t i, n = cfs_meta_read_chunk(s->meta, ctx, ino, chunk, &slices);
	int r = n < 0 ? (int)n : 0;
	uint32_t k;

	for (i = 0; i < n && r == 0; i++) {
		if (!slices[i].id || !slices[i].len)
			continue;
		for (k = slices[i].off / s->block_size;
		     k <= (slices[i].off + slices[i].len - 1) / s->block_size && r == 0; k++)
			r = add_block(s, ctx, &slices[i], k, blocks);
	}
	return r;
}

int control_map(struct control_server *s, struct control_job *job, json_t *in, json_t **ret)
{
	cfs_ino_t ino = control_ino(s, in, "inode");
	uint64_t chunk = (uint64_t)json_get_int(in, "chunk"), n, end;
	struct cfs_ctx ctx = control_step(job);
	json_t *blocks = json_array();
	struct cfs_attr attr;
	int r = cfs_meta_getattr(s->meta, &ctx, ino, &attr);

	if (r == 0 && attr.type != CFS_TYPE_FILE)
		r = -EINVAL;
	n = r == 0 ? (attr.length + CFS_CHUNK_SIZE - 1) / CFS_CHUNK_SIZE : 0;
	for (end = chunk + CHUNKS_MAX; chunk < n && chunk < end && r == 0; chunk++) {
		ctx = control_step(job);
		r = control_check(job);
		if (r == 0)
			r = add_chunk(s, &ctx, ino, (uint32_t)chunk, blocks);
	}
	if (r < 0) {
		json_decref(blocks);
		return r;
	}
	*ret = json_pack("{s:o, s:o, s:I, s:b}", "members",
			 s->peers ? peers_seen(s->peers) : json_array(), "blocks", blocks, "next",
			 (json_int_t)chunk, "more", chunk < n);
	return *ret ? 0 : -ENOMEM;
}
