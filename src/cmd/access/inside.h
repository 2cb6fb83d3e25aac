/* SPDX-License-Identifier: Apache-2.0 */
/* Paths inside a mount, for commands that the mount itself executes. */
#ifndef CFS_CMD_INSIDE_H
#define CFS_CMD_INSIDE_H

#include <limits.h>

#include "cmd/access/control.h"

struct inside {
	char point[4096]; /* of the mount */
	cfs_ino_t ino;	  /* 0: does not exist */
	cfs_ino_t parent; /* 0: the root of the mount has none */
	char dir[4096];	  /* path of the parent, without links, "." and ".." */
	char name[NAME_MAX + 1];
	bool is_dir;
};

/* CMD_OK, or an exit status after a message. */
int inside_find(const char *path, struct inside *ret);
/* As inside_find(), for a name that does not exist yet in an existing directory. */
int inside_find_new(const char *path, struct inside *ret);
/* Returns CMD_OK for a reply without error, else an exit status after a message. */
int inside_result(const char *path, const struct inside *in, json_t *reply);

#endif
