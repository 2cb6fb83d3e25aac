/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the JSON load. Commands have one thread. */
#ifndef CFS_CMD_LOAD_JSON_H
#define CFS_CMD_LOAD_JSON_H

#include "cmd/dump/load.h"
#include "cmd/dump/pull.h"
#include "cmd/dump/rulelist.h"

/* An inode with several names. It is written at the end, when its names have been counted. */
struct linked {
	cfs_ino_t ino;
	uint32_t names;
	struct cfs_attr attr;
};

/* The number of its names in one directory. */
struct names_in {
	cfs_ino_t ino, dir;
	uint32_t names;
};

struct sum {
	int64_t length, space, inodes;
};

struct json {
	struct load *l;
	struct pull *p;
	struct linked *linked; /* hash table, open addressing */
	size_t n_linked, cap_linked;
	struct names_in *names; /* the same */
	size_t n_names, cap_names;
	struct rulelist rules;
	struct cfs_quota *quotas; /* of directories */
	size_t n_quotas, cap_quotas;
	int64_t space, inodes; /* of the volume */
	unsigned depth;
	uint8_t *packed; /* a rule being read */
	struct cfs_slice *slices;
	size_t cap_slices;
};

/* The entry that is being read, as far as it is known. */
struct json_entry {
	cfs_ino_t ino, parent;
	struct cfs_attr attr;
	bool known; /* another name of an inode that is already loaded */
	bool has_attr;
	uint32_t subdirs;
	struct sum direct, below;
};

/* load-json-linked.c */
/* Called when the entry's attributes are known: has the inode been met already? */
int linked_note(struct json *j, struct json_entry *e);
int linked_note_name(struct json *j, cfs_ino_t ino, cfs_ino_t dir);
void linked_set_attr(struct json *j, cfs_ino_t ino, const struct cfs_attr *attr);
int linked_write(struct json *j);

/* load-json-entry.c: reads any member of an entry except its entries; ignores unknown ones. */
int entry_read_part(struct json *j, const char *key, struct json_entry *e);

/* load-json-acl.c: rules of equal content share one number. */
int acl_read(struct json *j, uint32_t *ret_id);

/* Calls fn for every item of an array; fn reads the item. */
typedef int (*json_item_fn)(struct json *j, struct json_entry *e);
int json_each_item(struct json *j, json_item_fn fn, struct json_entry *e);

#endif
