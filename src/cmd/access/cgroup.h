/* SPDX-License-Identifier: Apache-2.0 */
/* Control groups of either version: limits of memory, kills, frozen groups. */
#ifndef CFS_CMD_CGROUP_H
#define CFS_CMD_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The smallest limit of memory from the own group up to the root of what is mounted here; 0: none. */
uint64_t cgroup_memory_limit(void);
/*
 * The file that counts processes which the kernel has killed for want of memory: the group's own or,
 * where the group has none, that of the machine. Negative errno: it has none, either.
 */
int cgroup_kills_file(char *ret, size_t size);
/* Its number; 0 when it cannot be read. */
uint64_t cgroup_kills(const char *file);
/* Whether the process is frozen. *ret: the directory of the group that is. */
bool cgroup_frozen(pid_t pid, char *ret, size_t size);

#endif
