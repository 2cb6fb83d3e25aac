/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listings that the kernel keeps (FOPEN_CACHE_DIR), for as long as it may keep attributes and
 * names.
 *
 * The kernel keeps one listing of a directory, in its page cache. It is filled by the replies to
 * all handles that it was allowed to use for it, as long as the offset of a reply is where the
 * listing ends, and any handle that falls out of it asks this mount to go on at that offset. So an
 * offset must mean the same to all handles: it names a sequence of names and a place in it. Readers
 * of a directory share a sequence while they find the same names; the one that finds another name
 * starts a sequence with what it has read so far. A reader that asks for a place in a sequence that
 * is not its own gets the names that are not among those before that place.
 *
 * A sequence has eight bytes for each name. Directories that no handle is open on, and larger ones,
 * are forgotten when there is no room: then the kernel asks again, and a place in a forgotten
 * sequence is found by counting.
 */
#ifndef CFS_VFS_KEPT_H
#define CFS_VFS_KEPT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "cache.h"

#define KEPT_BUCKETS   1024
#define KEPT_DIRS_MAX  2048	  /* that no handle is open on */
#define KEPT_NAMES_MAX (1u << 18) /* in one directory */
#define KEPT_BYTES_MAX (4u << 20) /* of all sequences, and of what kept_leave() has returned */

struct kept_dir;

struct kept {
	uint64_t timeout_ms;  /* 0: nothing is kept */
	struct cache *cache;  /* numbers the changes that this mount makes; borrowed */
	pthread_mutex_t lock; /* protects the tables, and all directories; a leaf */
	struct kept_dir *bucket[KEPT_BUCKETS];
	TAILQ_HEAD(, kept_dir) closed; /* no handle is open, least recent first */
	unsigned n_closed;
	_Atomic size_t bytes;  /* see KEPT_BYTES_MAX */
	_Atomic uint64_t hits; /* opens for which the kernel had the listing */
	_Atomic unsigned n_open;
	_Atomic uint32_t generation; /* of the sequence made last */
};

/* One reading of a directory from its beginning. Owned by a handle, which one thread uses. */
struct kept_pass {
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

int kept_init(struct kept *k, uint64_t timeout_ms, struct cache *cache);
void kept_fini(struct kept *k);

/*
 * A handle is opened; p is all zeros. NULL: the kernel must not keep its listing. *ret_valid: it
 * need not drop what it has (FOPEN_KEEP_CACHE).
 */
struct kept_dir *kept_open(struct kept *k, struct kept_pass *p, cfs_ino_t ino, uint64_t now_ms,
			   bool *ret_valid);
/* A handle of an earlier process, which also let the kernel keep a listing. */
struct kept_dir *kept_restore(struct kept *k, struct kept_pass *p, cfs_ino_t ino, uint64_t now_ms);
void kept_close(struct kept *k, struct kept_dir *d, struct kept_pass *p);

/* d may be NULL in all below: then each pass has a sequence of its own. */
void kept_begin(struct kept *k, struct kept_dir *d, struct kept_pass *p, uint64_t seq,
		uint64_t now_ms); /* seq: cache_seq() from before it is read */
/* The sequence of the offset behind name number `index` of the directory. hash: of the name. */
uint32_t kept_name(struct kept *k, struct kept_dir *d, struct kept_pass *p, uint64_t index,
		   uint64_t hash);
/* The pass has read `n` names, which are all. */
void kept_end(struct kept *k, struct kept_dir *d, struct kept_pass *p, uint64_t n, uint64_t now_ms);
/* Whether the pass has given out this offset, behind `n` names. */
bool kept_is_own(const struct kept_pass *p, uint32_t sequence, uint64_t n);
/*
 * The first n names of a sequence, sorted, for kept_has() until kept_return(). NULL: it is
 * forgotten, or there is no memory. The pass goes on with a sequence of its own.
 */
uint64_t *kept_leave(struct kept *k, struct kept_dir *d, struct kept_pass *p, uint32_t sequence,
		     uint64_t n);
void kept_return(struct kept *k, uint64_t *names, uint64_t n); /* or NULL */
bool kept_has(const uint64_t *sorted, uint64_t n, uint64_t hash);

/* How long attributes of a directory may be kept: not longer than a listing that is in use. */
uint32_t kept_limit(struct kept *k, cfs_ino_t ino, uint64_t now_ms, uint32_t attr_ms);
/*
 * True: a handle is open on the directory, and the kernel must drop its listing. The caller sees to
 * it and then passes *ret_which to kept_dropped().
 */
bool kept_has_expired(struct kept *k, cfs_ino_t ino, uint64_t now_ms, uint32_t *ret_which);
void kept_dropped(struct kept *k, cfs_ino_t ino, uint32_t which);

#endif
