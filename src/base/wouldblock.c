/* SPDX-License-Identifier: Apache-2.0 */
#include "wouldblock.h"

#include <stddef.h>

static _Thread_local bool (*hook)(void *arg);
static _Thread_local void *hook_arg;
static _Thread_local bool repeated;

void cfs_would_block_hook(bool (*may)(void *arg), void *arg)
{
	hook = may;
	hook_arg = arg;
}

bool cfs_may_block(void)
{
	return !hook || hook(hook_arg);
}

void cfs_set_repeated(bool repeat)
{
	repeated = repeat;
}

bool cfs_is_repeated(void)
{
	return repeated;
}
