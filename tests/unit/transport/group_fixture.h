/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of cache groups: a registry in memory that members of one process share. */
#ifndef CFS_GROUP_FIXTURE_H
#define CFS_GROUP_FIXTURE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include <cachefs/group.h>

#define RECORDS_MAX 4096

struct registry {
	pthread_mutex_t lock;
	struct registry_record {
		char key[128];
		char *value;
		size_t len;
	} v[RECORDS_MAX];
	size_t n;
	_Atomic int err;	/* of everything */
	_Atomic uint64_t bytes; /* of keys and values, both ways */
	_Atomic int cut_at;	/* a listing of members ends with -EIO after so many; 0: never */
	_Atomic unsigned cuts;
};

void registry_open(struct registry *r);
void registry_close(struct registry *r);
unsigned registry_members(struct registry *r);
/* Of a table, or a key. */
bool registry_is_members(const char *of);
/* As struct cfs_group_registry, with a struct registry *. */
int registry_put(void *arg, const char *key, const void *value, size_t len, bool fresh);
int registry_swap(void *arg, const char *key, const void *old, size_t old_len, const void *value,
		  size_t len);
int registry_drop(void *arg, const char *key);
int registry_get(void *arg, const char *key, cfs_group_record_fn fn, void *fn_arg);
int registry_each(void *arg, const char *table, cfs_group_record_fn fn, void *fn_arg);

#endif
