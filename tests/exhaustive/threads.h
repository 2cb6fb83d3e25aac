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

#include <stdbool.h>

bool threads_sleep(void);
/* The same as the kernel has it: right even where a wakeup came before its wait. */
bool threads_sleep_in_kernel(void);

#endif
