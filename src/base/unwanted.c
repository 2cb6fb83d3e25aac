/* SPDX-License-Identifier: Apache-2.0 */
#include "unwanted.h"

#include <stddef.h>

static _Thread_local bool (*question)(void *arg);
static _Thread_local void *question_arg;

void cfs_unwanted_set(bool (*is_unwanted)(void *arg), void *arg)
{
	question = is_unwanted;
	question_arg = arg;
}

bool cfs_unwanted(void)
{
	return question && question(question_arg);
}
