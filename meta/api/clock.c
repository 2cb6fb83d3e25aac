/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/log.h"
#include "meta/api/clock.h"
#include "meta/api/core.h"

enum { TELL_S = 60, JUMP_S = 5 };

/* Does not change when this host's clock is set. */
static int64_t boot_s(void)
{
	return (int64_t)cfs_boot_ms() / 1000;
}

/* Compares the least difference there can be now with the greatest of before: an answer may be late. */
static void note_jump(struct cfs_meta *m, int64_t there_s, uint64_t asked_ms)
{
	int64_t before_s =
		atomic_exchange(&m->clock_steady_s, there_s - (int64_t)(asked_ms / 1000));
	uint64_t now_ms = cfs_now_ms();

	if (before_s && there_s - (int64_t)(now_ms / 1000) - before_s > JUMP_S)
		atomic_store(&m->clock_jumped_ms, now_ms);
}

bool cfs_clock_jumped(const struct cfs_meta *m, uint64_t within_ms)
{
	uint64_t jumped_ms = atomic_load(&m->clock_jumped_ms);

	return jumped_ms && cfs_now_ms() < jumped_ms + within_ms;
}

void cfs_clock_read(struct cfs_meta *m)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	int64_t off_s, there_s, here_s = cfs_wall_s(), began_s = boot_s();
	uint64_t asked_ms = cfs_now_ms();

	/* On failure the last value stays in force. */
	if (m->eng->ops->clock(m->eng, &ctx, &there_s) < 0)
		return;
	note_jump(m, there_s, asked_ms); /* first: cfs_clock_s() may be asked by another thread */
	off_s = there_s - here_s;
	atomic_store(&m->clock_off_s, there_s - began_s);
	if (llabs(off_s - atomic_load(&m->clock_told_s)) < TELL_S)
		return;
	atomic_store(&m->clock_told_s, off_s);
	cfs_warn("the clock of this host and that of the database differ, one of them is wrong: "
		 "url=%s database_ahead_s=%" PRId64,
		 m->masked_url, off_s);
}

int64_t cfs_clock_s(const struct cfs_meta *m)
{
	int64_t off_s = atomic_load(&m->clock_off_s);

	return off_s ? boot_s() + off_s : cfs_wall_s();
}

int64_t cfs_clock_earliest_s(const struct cfs_meta *m)
{
	return CFS_MIN(cfs_wall_s(), cfs_clock_s(m));
}

int64_t cfs_clock_latest_s(const struct cfs_meta *m)
{
	return CFS_MAX(cfs_wall_s(), cfs_clock_s(m));
}
