/* SPDX-License-Identifier: Apache-2.0 */
#include "slow.h"

#include <stdlib.h>

#include "base/bytes.h"

#define PART	      (128u << 10)
#define FORGIVEN_AT   10	 /* pauses after which the next one is short again */
#define PROBE_RUNS_MS UINT64_MAX /* until_ms while a probe is under way */

uint64_t cfs_slow_part_us(uint64_t ns, uint64_t bytes, uint64_t answers)
{
	return ns / 1000 / (answers + bytes / PART);
}

void cfs_slow_note(struct cfs_slow *s, uint64_t ns, uint32_t len)
{
	uint64_t us = CFS_MIN(cfs_slow_part_us(ns, len, 1), (uint64_t)UINT32_MAX);
	uint32_t n = atomic_fetch_add_explicit(&s->n, 1, memory_order_relaxed);

	atomic_store_explicit(&s->last[n % CFS_SLOW_ANSWERS], (uint32_t)us, memory_order_relaxed);
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

uint64_t cfs_slow_pace_us(const struct cfs_slow *s)
{
	uint64_t v[CFS_SLOW_ANSWERS];
	unsigned i;

	if (atomic_load_explicit(&s->n, memory_order_relaxed) < CFS_SLOW_ANSWERS)
		return 0;
	for (i = 0; i < CFS_SLOW_ANSWERS; i++)
		v[i] = atomic_load_explicit(&s->last[i], memory_order_relaxed);
	qsort(v, CFS_SLOW_ANSWERS, sizeof(v[0]), by_size);
	return CFS_MAX(v[CFS_SLOW_ANSWERS / 2], (uint64_t)1);
}

uint64_t cfs_slow_limit_us(uint64_t *others, unsigned n, uint64_t bucket_us)
{
	uint64_t usual = bucket_us;

	if (n > 0) {
		qsort(others, n, sizeof(others[0]), by_size);
		usual = others[n / 2];
	}
	if (usual == 0)
		return 0;
	return CFS_MAX(CFS_MAX(CFS_SLOW_TIMES * usual, bucket_us), (uint64_t)CFS_SLOW_MIN_US);
}

bool cfs_slow_is(const struct cfs_slow *s)
{
	return atomic_load_explicit(&s->until_ms, memory_order_relaxed) != 0;
}

bool cfs_slow_begin(struct cfs_slow *s, uint64_t limit_us, uint64_t now_ms)
{
	uint64_t pause = atomic_load(&s->pause_ms), none = 0;

	if (pause == 0 || now_ms - atomic_load(&s->ended_ms) > FORGIVEN_AT * pause)
		pause = CFS_SLOW_PAUSE_MS;
	else
		pause = CFS_MIN(2 * pause, (uint64_t)CFS_SLOW_PAUSE_MAX_MS);
	if (!atomic_compare_exchange_strong(&s->until_ms, &none, now_ms + pause))
		return false;
	atomic_store(&s->pause_ms, pause);
	atomic_store(&s->limit_us, limit_us);
	return true;
}

bool cfs_slow_take_probe(struct cfs_slow *s, uint64_t now_ms)
{
	uint64_t until = atomic_load_explicit(&s->until_ms, memory_order_relaxed);

	return until != 0 && until <= now_ms &&
	       atomic_compare_exchange_strong(&s->until_ms, &until, PROBE_RUNS_MS);
}

bool cfs_slow_probed(struct cfs_slow *s, uint64_t us, uint64_t now_ms)
{
	uint64_t pause = CFS_MIN(2 * atomic_load(&s->pause_ms), (uint64_t)CFS_SLOW_PAUSE_MAX_MS);

	if (us > atomic_load(&s->limit_us)) {
		atomic_store(&s->pause_ms, pause);
		atomic_store(&s->until_ms, now_ms + pause);
		return false;
	}
	atomic_store(&s->n, 0);
	atomic_store(&s->ended_ms, now_ms);
	atomic_store(&s->until_ms, 0);
	return true;
}
