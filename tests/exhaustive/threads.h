/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether all threads but the calling one sleep.
 *
 * The program defines the functions of libc that start threads, make them wait and wake them: a thread
 * sleeps from the beginning of a wait until it is woken, whether it has run since or not. One that
 * waits for anything else (an answer, a lock) is awake. Reading the same from /proc took ten times
 * as long as all the rest of a run.
 */
#ifndef EXHAUSTIVE_THREADS_H
#define EXHAUSTIVE_THREADS_H

#include "base/clock.h"

/* Waits until all other threads sleep, twice while *calls stays the same. */
void threads_settle(const _Atomic uint32_t *calls, cfs_deadline_t deadline);

#endif
