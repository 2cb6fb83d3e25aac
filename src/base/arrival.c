/* SPDX-License-Identifier: Apache-2.0 */
#include "arrival.h"

#include <stdatomic.h>
#include <stddef.h>

#include "clock.h"

static _Atomic uint64_t last_ms;
static _Thread_local void (*listener)(void *arg, uint64_t silent_ms);
static _Thread_local void *listener_arg;

void cfs_arrival_note(void)
{
	atomic_store_explicit(&last_ms, cfs_now_ms(), memory_order_relaxed);
}

uint64_t cfs_arrival_last_ms(void)
{
	return atomic_load_explicit(&last_ms, memory_order_relaxed);
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
