/* SPDX-License-Identifier: Apache-2.0 */
/* The mounts of /proc/self/mountinfo, and the kinds of their file systems. */
#ifndef CFS_MOUNTED_H
#define CFS_MOUNTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CFS_FSTYPE "fuse.cachefs"

struct mounted {
	char type[32];
	char source[256];
	char point[4096];
	char options[128]; /* of the mount itself: "rw,nosuid,nodev" */
	bool ro;
	unsigned dev_minor; /* of its device; those of file systems without disk have major 0 */
	unsigned uid;	    /* of the user who mounted, as FUSE mounts say */
};

/*
 * The topmost mount at exactly this (absolute, resolved) path. Does not touch the file system, so a
 * dead mount is found too. -ENOENT: nothing is mounted there.
 */
int mounted_at(const char *path, struct mounted *ret);
/*
 * The first mount in the mount namespace of a process that has the device number, the source and the
 * user of that one. After its end another mount may have the number.
 */
int mounted_seen_by(const char *pid, const struct mounted *like, struct mounted *ret);
/*
 * Asks the file system there for its statistics, by a child, which is left behind when it hangs. 0,
 * the negative errno that it answers, or -ETIMEDOUT.
 */
int mounted_ask(const char *point, uint64_t timeout_ms);
/*
 * The mount there has lost its process without an unmount. False for a mount that does not answer
 * in time.
 */
bool mounted_is_dead(const char *point);
/* Undoes the \ooo escapes of mountinfo, in place. */
void mounted_unescape(char *s);
/* An absolute path without "." and "..", its last component not followed into the mount. */
int mounted_resolve(const char *path, char *buf, size_t size);
/*
 * The same by no call into a cachefs mount, which may not answer: links are followed outside of
 * these mounts only, the last component, too. The path need not exist.
 */
int mounted_follow(const char *path, char *buf, size_t size);

/* The kind of file system that a path is on. */
struct cfs_fstype_info {
	const char *name; /* "ext4"; "other" when this table has none */
	bool network;	  /* shared with other hosts, or behind a process */
	bool in_memory;
	double free; /* part of the space that is free to users, 0..1 */
	uint64_t free_bytes;
};
/* 0 or a negative errno of statfs(2). */
int cfs_fstype(const char *path, struct cfs_fstype_info *ret);

#endif
