/* SPDX-License-Identifier: Apache-2.0 */
#include "longwait.h"

#include <stddef.h>

static _Thread_local bool (*question)(void *arg);
static _Thread_local void *question_arg;
static _Thread_local bool repeated;

void cfs_long_wait_set(bool (*may)(void *arg), void *arg)
{
	question = may;
	question_arg = arg;
}

bool cfs_long_wait_may(void)
{
	return !question || question(question_arg);
}

void cfs_long_wait_repeat(bool repeat)
{
	repeated = repeat;
}

bool cfs_long_wait_repeats(void)
{
	return repeated;
}
