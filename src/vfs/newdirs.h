/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of directories that this mount has made.
 *
 * The kernel looks each name up before it is made. Programs that unpack a tree make most names in
 * directories that they made a moment ago. Such a directory has names that this mount has made, and
 * perhaps names of other mounts. A listing without the latter proves that every name that this
 * mount has not made was absent when the listing began. For trust_ms from then on, look-ups rely on
 * that. When the parent is such a directory, too, a program makes a tree: then the new directory,
 * which was empty when it was made, needs no listing for that long.
 *
 * A directory's record has the hashes of all names that this mount has made or tried to make in it.
 * Names with one of these hashes are always looked up. A directory is forgotten, and all its names
 * are looked up, when
 *	- a listing has a name of another mount
 *	- a program waits for a name, or searches for one: a name was looked up more than
 *	  NEWDIRS_ASKED times and not made, or NEWDIRS_ABSENT_MAX names were
 *	- it is removed, or the kernel forgets it
 *	- other directories need its place or its memory
 * A successor process begins with no directories.
 */
#ifndef CFS_VFS_NEWDIRS_H
#define CFS_VFS_NEWDIRS_H

#include <cachefs/meta.h>
#include <pthread.h>
#include <stdatomic.h>

#define NEWDIRS_TRUST_MS   1000 /* at most, whatever the timeouts of names are */
#define NEWDIRS_SETS	   16
#define NEWDIRS_WAYS	   16
#define NEWDIRS_NAMES	   32768 /* places for names in all directories of a set, 8 bytes each */
#define NEWDIRS_ASKED	   2
#define NEWDIRS_ABSENT_MAX 8

enum newdirs_answer {
	NEWDIRS_LOOK_UP, /* not known: look the name up */
	NEWDIRS_LIST,	 /* a listing would tell; else look the name up */
	NEWDIRS_ABSENT,	 /* there is no such name */
};

struct newdir_set;

struct newdirs {
	uint64_t trust_ms;
	_Atomic size_t n; /* directories */
	struct newdir_set *sets;
	_Atomic uint64_t hits; /* names answered */
};

/* trust_ms 0: no directory is ever known. -ENOMEM. Functions are safe for concurrent threads. */
int newdirs_init(struct newdirs *d, uint64_t trust_ms);
void newdirs_fini(struct newdirs *d);

/* This mount has made the directory, by a request at began_ms. */
void newdirs_made(struct newdirs *d, cfs_ino_t dir, cfs_ino_t parent, uint64_t began_ms);
void newdirs_forget(struct newdirs *d, cfs_ino_t dir);
/* Called before each operation of this mount that may give the directory this name. */
void newdirs_add(struct newdirs *d, cfs_ino_t dir, const char *name, size_t len);
/* Not for "..". */
enum newdirs_answer newdirs_lookup(struct newdirs *d, cfs_ino_t dir, const char *name, size_t len,
				   uint64_t now_ms);
/* False: the directory has a name of another mount, or is not known. */
bool newdirs_knows(struct newdirs *d, cfs_ino_t dir, const char *name, size_t len);
/* All names of a listing that began at that time were known. */
void newdirs_listed(struct newdirs *d, cfs_ino_t dir, uint64_t began_ms);

#endif
