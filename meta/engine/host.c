/* SPDX-License-Identifier: Apache-2.0 */
#include "meta/engine/host.h"

#include "base/bytes.h"
#include "base/clock.h"

static bool has_open(struct cfs_engine_host *host)
{
	return atomic_load(&host->opens) && host->is_open;
}

bool cfs_host_is_open(struct cfs_engine_host *host, cfs_ino_t ino)
{
	return has_open(host) && host->is_open(host->is_open_arg, ino);
}

int cfs_host_check_volume(struct cfs_engine_host *host, const struct cfs_ctx *ctx)
{
	uint64_t for_ms = atomic_load_explicit(&host->seen_for_ms, memory_order_acquire);

	if (!for_ms || cfs_boot_ms() < atomic_load(&host->seen_ms) + for_ms)
		return 0;
	return host->see(host->see_arg, ctx);
}

uint64_t cfs_host_sid(struct cfs_engine_host *host)
{
	return atomic_load(&host->sid);
}

bool cfs_host_dir_stats(struct cfs_engine_host *host)
{
	return atomic_load(&host->dir_stats);
}

bool cfs_host_changelog(struct cfs_engine_host *host)
{
	return atomic_load(&host->changelog);
}

uint64_t cfs_host_txn_number(struct cfs_engine_host *host)
{
	return atomic_fetch_add(&host->txn_number, 1) + 1;
}

void cfs_host_connected(struct cfs_engine_host *host)
{
	atomic_fetch_add(&host->connections, 1);
}

void cfs_host_count(struct cfs_engine_host *host, enum cfs_meta_op op, unsigned round_trips,
		    unsigned retries)
{
	atomic_fetch_add_explicit(&host->op[op].round_trips, round_trips, memory_order_relaxed);
	if (retries)
		atomic_fetch_add_explicit(&host->retries, retries, memory_order_relaxed);
}

const char *cfs_meta_op_name(enum cfs_meta_op op)
{
	static const char *const names[] = {
#define X(name) #name,
		CFS_META_OPS(X)
#undef X
	};

	return op < CFS_META_OP_COUNT ? names[op] : "?";
}

struct cfs_ctx cfs_ctx_internal(uint64_t timeout_ms)
{
	return (struct cfs_ctx){
		.now = cfs_wall(),
		.deadline = cfs_deadline_in(timeout_ms),
	};
}

/* FNV-1a, followed by a mix of the high bits into the low ones. */
uint64_t cfs_name_hash(cfs_ino_t parent, const char *name, size_t len)
{
	uint64_t h = 0xcbf29ce484222325ULL ^ parent;
	size_t i;

	for (i = 0; i < len; i++)
		h = (h ^ (unsigned char)name[i]) * 0x100000001b3ULL;
	h *= 0x9E3779B97F4A7C15ULL;
	return h ^ h >> 32;
}

/* ---- the format of slices ---- */

void cfs_slice_encode(const struct cfs_slice *s, uint8_t out[CFS_SLICE_BYTES])
{
	cfs_put_be32(out, s->pos);
	cfs_put_be64(out + 4, s->id);
	cfs_put_be32(out + 12, s->size);
	cfs_put_be32(out + 16, s->off);
	cfs_put_be32(out + 20, s->len);
}

void cfs_slice_decode(const uint8_t in[CFS_SLICE_BYTES], struct cfs_slice *ret)
{
	*ret = (struct cfs_slice){
		.pos = cfs_get_be32(in),
		.id = cfs_get_be64(in + 4),
		.size = cfs_get_be32(in + 12),
		.off = cfs_get_be32(in + 16),
		.len = cfs_get_be32(in + 20),
	};
}
