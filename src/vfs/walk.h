/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directories whose files are opened one after the other.
 *
 *	listing.c  the files of a directory, in the orders in which programs read them
 *	walk.c     recognises the order of opens, and says which files come next
 *	tree.c     recognises walks from directory to directory, and says which of these come next
 *	ahead.c    lists directories and has files fetched, on threads of its own
 */
#ifndef CFS_VFS_WALK_H
#define CFS_VFS_WALK_H

#include <cachefs/meta.h>
#include <pthread.h>

/* ---- listing.c ---- */

#define LISTING_FILES_MAX 16384 /* the files behind these are not known */
#define LISTING_NAMES_MAX (512u << 10)

enum order { ORDER_LISTED, ORDER_NAME, ORDER_INO, ORDERS };

struct listed {
	cfs_ino_t ino;
	const char *name; /* not terminated */
	uint8_t len;
};

struct listing;
struct listing *listing_new(void);    /* NULL: no memory */
void listing_free(struct listing *l); /* NULL is allowed */
/* Regular files only. False: it is full, or there is no memory. */
bool listing_add(struct listing *l, const char *name, size_t len, cfs_ino_t ino);
/* Called after the last file, and before the functions below. False: no memory. */
bool listing_sort(struct listing *l);
uint32_t listing_size(const struct listing *l);
/* The file's place in each order. False: the listing does not have it. */
bool listing_find(const struct listing *l, cfs_ino_t ino, uint32_t ret[ORDERS]);
struct listed listing_get(const struct listing *l, enum order order, uint32_t place);

/* ---- walk.c ---- */

#define WALKS	     64 /* directories */
#define WALK_LISTS   4	/* of them with a listing */
#define WALK_STREAMS 12 /* sequences in a directory that are followed */
#define WALK_WINDOW  128

/* Opens that follow an order of a directory, of one process or several. */
struct walk_stream {
	uint64_t used;	     /* 0: free */
	uint64_t opened_map; /* bit i: the file i places before the end was opened */
	enum order order;
	uint32_t begin;	 /* the first place that was opened, and ... */
	uint32_t end;	 /* ... the farthest */
	uint32_t ahead;	 /* files before this place were fetched */
	uint32_t passed; /* places advanced lately, and ... */
	uint32_t opened; /* ... how many of them were opened */
	uint32_t run;	 /* since the window last grew */
	uint32_t window; /* files; 0: not known to be a walk */
};

struct walk {
	cfs_ino_t dir;
	uint64_t used;
	struct listing *list;
	bool asked;	  /* for a listing */
	unsigned opens;	  /* since the last listing, without a stream */
	unsigned wait;	  /* the number of these at which the next listing is wanted */
	unsigned missing; /* opened, and not in the listing */
	cfs_ino_t recent[2];
	struct walk_stream stream[WALK_STREAMS];
};

struct walks {
	pthread_mutex_t lock; /* protects the fields below; a leaf */
	uint64_t clock;
	struct walk v[WALKS];
};

/* Files to fetch; names points into text. */
struct walk_batch {
	cfs_ino_t dir;
	unsigned n;
	struct cfs_head heads[CFS_HEADS_MAX];
	char text[CFS_HEADS_MAX][CFS_NAME_MAX];
};

enum walk_next { WALK_NOTHING, WALK_LIST, WALK_FETCH };

void walks_init(struct walks *w);
void walks_fini(struct walks *w);
/*
 * A file of the directory was opened for reading. WALK_LIST: the caller lists the directory and
 * calls walk_listed(). WALK_FETCH: *ret is to be fetched; the caller frees it. Never waits.
 */
enum walk_next walk_opened(struct walks *w, cfs_ino_t dir, cfs_ino_t ino, struct walk_batch **ret);
/* Takes the sorted listing over; NULL: there is none. */
void walk_listed(struct walks *w, cfs_ino_t dir, struct listing *l);
/* All n files of the directory were fetched: their opens need no listing. */
void walk_fetched(struct walks *w, cfs_ino_t dir, uint32_t n);

#endif
