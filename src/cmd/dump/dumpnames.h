/* SPDX-License-Identifier: Apache-2.0 */
/* Names of counters and types of files in dumps; written by dump, read by load. */
#ifndef CFS_CMD_DUMPNAMES_H
#define CFS_CMD_DUMPNAMES_H

#include <cachefs/meta.h>

/* The counters in a dump; other counters are times of background jobs. */
enum dump_counter {
	COUNTER_SPACE,
	COUNTER_INODES,
	COUNTER_NEXT_INODE,
	COUNTER_NEXT_CHUNK,
	COUNTER_NEXT_SESSION,
	COUNTER_NEXT_TRASH,
	COUNTER_COUNT,
};
extern const char *const dump_counter_names[COUNTER_COUNT];	 /* in tables and binary dumps */
extern const char *const dump_counter_json_names[COUNTER_COUNT]; /* in JSON dumps */
/* Names of enum cfs_type in JSON dumps. */
extern const char *const dump_type_names[CFS_TYPE_SOCKET + 1];
/* Returns COUNTER_COUNT for an unknown name. */
enum dump_counter dump_counter_find(const char *const names[COUNTER_COUNT], const char *name,
				    size_t len);

#endif
