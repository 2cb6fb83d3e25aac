/* SPDX-License-Identifier: Apache-2.0 */
#include "arrival.h"

#include "bytes.h"
#include "clock.h"

static _Atomic uint64_t last_ms;
static _Thread_local struct cfs_arrival *followed;
static _Thread_local void (*listener)(void *arg, uint64_t silent_ms);
static _Thread_local void *listener_arg;

void cfs_arrival_follow(struct cfs_arrival *a)
{
	followed = a;
	if (!a)
		return;
	atomic_store(&a->got, 0);
	atomic_store(&a->start_ms, cfs_now_ms());
}

void cfs_arrival_note(uint64_t got, uint64_t size)
{
	uint64_t now_ms = cfs_now_ms();

	atomic_store_explicit(&last_ms, now_ms, memory_order_relaxed);
	if (!followed)
		return;
	if (got < atomic_load(&followed->got)) /* another try */
		atomic_store(&followed->start_ms, now_ms);
	atomic_store(&followed->size, size);
	atomic_store(&followed->got, got);
}

uint64_t cfs_arrival_last_ms(void)
{
	return atomic_load_explicit(&last_ms, memory_order_relaxed);
}

uint64_t cfs_arrival_left_ms(const struct cfs_arrival *a)
{
	uint64_t start_ms = atomic_load(&a->start_ms), now_ms = cfs_now_ms();
	uint64_t got = atomic_load(&a->got), size = atomic_load(&a->size);

	if (got == 0 || size == 0 || now_ms <= start_ms)
		return 0;
	size = CFS_MAX(size, got);
	return (uint64_t)((double)(now_ms - start_ms) * (double)(size - got) / (double)got) + 1;
}

void cfs_silence_listen(void (*hear)(void *arg, uint64_t silent_ms), void *arg)
{
	listener = hear;
	listener_arg = arg;
}

void cfs_silence_note(uint64_t silent_ms)
{
	if (listener)
		listener(listener_arg, silent_ms);
}
