/* SPDX-License-Identifier: Apache-2.0 */
#include "wouldblock.h"

#define ABANDONED_MS 100

static _Thread_local bool (*hook)(void *arg);
static _Thread_local void *hook_arg;
static _Thread_local bool (*abandoned)(void *arg);
static _Thread_local void *abandoned_arg;
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

void cfs_abandoned_hook(bool (*is_abandoned)(void *arg), void *arg)
{
	abandoned = is_abandoned;
	abandoned_arg = arg;
}

bool cfs_is_abandoned(void)
{
	return abandoned && abandoned(abandoned_arg);
}

cfs_deadline_t cfs_abandoned_next(cfs_deadline_t until)
{
	return abandoned ? cfs_deadline_min(until, cfs_deadline_in(ABANDONED_MS)) : until;
}

void cfs_set_repeated(bool repeat)
{
	repeated = repeat;
}

bool cfs_is_repeated(void)
{
	return repeated;
}
