/* SPDX-License-Identifier: Apache-2.0 */
#include "arrival.h"

#include <stdatomic.h>

#include "clock.h"

static _Atomic uint64_t last_ms;

void cfs_arrival_note(void)
{
	atomic_store_explicit(&last_ms, cfs_now_ms(), memory_order_relaxed);
}

uint64_t cfs_arrival_last_ms(void)
{
	return atomic_load_explicit(&last_ms, memory_order_relaxed);
}
