/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listings that the kernel keeps (FOPEN_CACHE_DIR), for as long as it may keep attributes and
 * names.
 *
 * The kernel keeps one listing of a directory, in its page cache. Replies to any handle that is
 * allowed to fill it are appended, when their offset is the listing's end. A reader that the kernel
 * stops serving from the listing asks this mount to go on at its offset. So an offset must mean the
 * same to all handles: it names a sequence of names, and a place in it. Readers of a directory
 * share a sequence while they find the same names. A reader that finds another name starts a
 * sequence with the names that it has read so far. A reader that asks for a place in a sequence
 * that is not its own gets all names but those before that place.
 *
 * A sequence takes eight bytes for each name. When there is no room, directories that no handle is
 * open on are forgotten, and sequences end that become too large. Then the kernel lists again, and
 * a place in a forgotten sequence is found by counting.
 */
#ifndef CFS_VFS_DIRCACHE_H
#define CFS_VFS_DIRCACHE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "cache.h"

#define DIRCACHE_BUCKETS   1024
#define DIRCACHE_DIRS_MAX  2048	      /* directories that no handle is open on */
#define DIRCACHE_NAMES_MAX (1u << 18) /* in one directory */
#define DIRCACHE_BYTES_MAX                                                                         \
	(4u << 20) /* of all sequences, and of what dircache_detach() has returned */

struct dircache_dir;

struct dircache {
	uint64_t timeout_ms;  /* 0: nothing is kept */
	struct cache *cache;  /* numbers the changes that this mount makes; borrowed */
	pthread_mutex_t lock; /* protects the tables, and all directories; a leaf */
	struct dircache_dir *bucket[DIRCACHE_BUCKETS];
	TAILQ_HEAD(, dircache_dir) closed; /* no handle is open, least recent first */
	unsigned n_closed;
	_Atomic size_t bytes;  /* see DIRCACHE_BYTES_MAX */
	_Atomic uint64_t hits; /* opens for which the kernel had the listing */
	_Atomic unsigned n_open;
	_Atomic uint32_t generation; /* of the sequence made last */
};

/* A reading of a directory from its beginning. Owned by a handle; one thread at a time. */
struct dircache_pass {
	uint32_t sequence; /* of the offsets given out */
	uint32_t before;   /* the previous one, of offsets up to before_end */
	uint64_t before_end;
	uint64_t next;	     /* all names before this one were compared */
	uint64_t started_ms; /* 0: not under way */
	uint64_t seq;	     /* cache_seq() at its start */
	/* The kernel dropped its listing for this handle, when so many had been completed. */
	bool dropped;
	uint32_t completed;
};

int dircache_init(struct dircache *c, uint64_t timeout_ms, struct cache *cache);
void dircache_fini(struct dircache *c);

/*
 * A handle is opened; p is all zeros. NULL: its replies must not go into the kernel's listing.
 * *ret_valid: the kernel need not drop its listing (FOPEN_KEEP_CACHE).
 */
struct dircache_dir *dircache_open(struct dircache *c, struct dircache_pass *p, cfs_ino_t ino,
				   uint64_t now_ms, bool *ret_valid);
/* A handle of an earlier process, which may have let the kernel keep a listing. */
struct dircache_dir *dircache_restore(struct dircache *c, struct dircache_pass *p, cfs_ino_t ino,
				      uint64_t now_ms);
void dircache_close(struct dircache *c, struct dircache_dir *d, struct dircache_pass *p);

/* d may be NULL in all below: then each pass has a sequence of its own. */
void dircache_begin(struct dircache *c, struct dircache_dir *d, struct dircache_pass *p,
		    uint64_t seq, uint64_t now_ms); /* seq: cache_seq() from before it is read */
/* The sequence of the offset behind name number `index` of the directory. hash: of the name. */
uint32_t dircache_add_name(struct dircache *c, struct dircache_dir *d, struct dircache_pass *p,
			   uint64_t index, uint64_t hash);
/* The pass has read all names of the directory, `n`. */
void dircache_end(struct dircache *c, struct dircache_dir *d, struct dircache_pass *p, uint64_t n,
		  uint64_t now_ms);
/* Whether the pass has given out this offset, behind `n` names. */
bool dircache_is_own(const struct dircache_pass *p, uint32_t sequence, uint64_t n);
/*
 * Gives the pass a sequence of its own. Returns the first n names of `sequence`, sorted, for
 * dircache_has_name() until dircache_free_names(). NULL: the sequence is forgotten, or there is no memory.
 */
uint64_t *dircache_detach(struct dircache *c, struct dircache_dir *d, struct dircache_pass *p,
			  uint32_t sequence, uint64_t n);
void dircache_free_names(struct dircache *c, uint64_t *names, uint64_t n); /* or NULL */
bool dircache_has_name(const uint64_t *sorted, uint64_t n, uint64_t hash);

/* How long the kernel may keep attributes of a directory: no longer than a listing in use. */
uint32_t dircache_attr_limit(struct dircache *c, cfs_ino_t ino, uint64_t now_ms, uint32_t attr_ms);
/*
 * True: a handle is open on the directory, and the kernel must drop its listing. The caller makes
 * the kernel drop it, and then passes *ret_which to dircache_dropped().
 */
bool dircache_has_expired(struct dircache *c, cfs_ino_t ino, uint64_t now_ms, uint32_t *ret_which);
void dircache_dropped(struct dircache *c, cfs_ino_t ino, uint32_t which);

#endif
