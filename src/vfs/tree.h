/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Depth-first walks: programs that list the directories of a tree one after the other and read
 * their files. tree.c recognises them and says which directories come next; ahead.c lists those,
 * and has their files fetched.
 *
 * A tree keeps a stack of frames, the directories on the way down with their subdirectories, and a
 * row of directories in the order in which the program will list them. The row grows while the
 * program follows it and opens most of the files that it passes.
 */
#ifndef CFS_VFS_TREE_H
#define CFS_VFS_TREE_H

#include <pthread.h>

#include "walk.h"

#define TREES	     4
#define TREE_RECENT  32	  /* directories listed last */
#define TREE_DEPTH   32	  /* frames */
#define TREE_SUBDIRS 4096 /* in all frames */
#define TREE_ROW     64	  /* directories */
#define TREE_AHEAD   32	  /* directories */
#define TREE_FILES   128  /* of a directory, and in all directories ahead */

struct tree_dir {
	cfs_ino_t ino;
	uint32_t files, opened; /* opened: at most files */
};

struct tree_frame {
	cfs_ino_t dir;
	struct listing *subdirs;
	uint32_t next; /* place, in the order of the tree */
};

struct tree {
	/* Used by the thread that has the tree. */
	struct tree_frame frame[TREE_DEPTH];
	unsigned depth;
	uint32_t subdirs;
	enum order order;
	/* Protected by the lock. */
	bool active, busy; /* busy: a thread has it */
	bool ended;	   /* no frames are left */
	uint64_t used;
	struct tree_dir row[TREE_ROW];
	uint64_t at, end; /* places in the row: what the program listed last; behind the last one */
	uint32_t passed, opened; /* files passed lately, and how many of them were opened */
	uint32_t window;	 /* files and ... */
	uint32_t dirs;		 /* ... directories that may be ahead */
};

struct trees {
	pthread_mutex_t lock; /* a leaf */
	uint64_t clock;
	struct tree_dir recent[TREE_RECENT]; /* as the program listed them; files are not counted */
	uint64_t n_recent;
	unsigned wait, listed; /* directories until the next attempt to find a tree */
	struct tree v[TREES];
};

void trees_init(struct trees *t);
void trees_fini(struct trees *t);

enum tree_next {
	TREE_NOTHING,
	TREE_FIND, /* tree_find() */
	TREE_GROW, /* tree_grow() of *ret */
};
/*
 * tree_listed(): a program is about to list the directory. tree_opened(): it has opened a file of
 * the directory for reading. Never wait. After TREE_GROW the caller has *ret, and calls
 * tree_leave().
 */
enum tree_next tree_listed(struct trees *t, cfs_ino_t dir, struct tree **ret);
enum tree_next tree_opened(struct trees *t, cfs_ino_t dir, struct tree **ret);

/*
 * Begins a tree, for a directory that was listed below `parent`. The caller has the tree, and adds
 * frames from `parent` upwards. NULL: it is no walk, or another thread has its tree.
 */
struct tree *tree_find(struct trees *t, cfs_ino_t parent);
/*
 * Adds the topmost frame: dir with its sorted subdirectories, which are taken over. The program is
 * in `child`, one of these. False: the program has not come this way.
 */
bool tree_add_above(struct trees *t, struct tree *r, cfs_ino_t dir, cfs_ino_t child,
		    struct listing *subdirs);
/* Whether a program has listed the directory lately. */
bool tree_is_recent(struct trees *t, cfs_ino_t dir);
/*
 * The directory to list next, after the one that was listed. False: enough is ahead, or the tree is
 * at its end.
 */
bool tree_grow(struct trees *t, struct tree *r, cfs_ino_t *ret);
/* That directory was listed, `files` of its files are fetched. Takes its sorted subdirs over. */
void tree_grown(struct trees *t, struct tree *r, cfs_ino_t dir, uint32_t files,
		struct listing *subdirs);
/* The thread is done. failed: the tree is given up. */
void tree_leave(struct trees *t, struct tree *r, bool failed);

#endif
