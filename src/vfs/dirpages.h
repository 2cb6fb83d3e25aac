/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of directory listings: consecutive entries of a directory in memory of the pool
 * (CFS_USE_LISTING).
 *
 * The pages of all handles share a sixteenth of the pool. A page in use belongs to one thread. The
 * others are idle and may be dropped at any time, least recently used first: to make room for
 * another page, or when the pool runs out of memory. The owner of a dropped page reads it again.
 */
#ifndef CFS_VFS_DIRPAGES_H
#define CFS_VFS_DIRPAGES_H

#include <cachefs/meta.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/buf.h"

#define DIRPAGE_CHUNKS 8

struct dirpage_entry {
	cfs_ino_t ino;
	uint16_t after_len;
	uint8_t name_len, type;
	struct cfs_attr attr; /* undefined in a page without attributes */
	uint8_t text[];	      /* the name, and the position behind the entry */
};

struct dirpage {
	unsigned n_chunks; /* 0: it was dropped, or nothing was added */
	bool idle;
	TAILQ_ENTRY(dirpage) link; /* while it is idle */
	struct dirpage_chunk {
		struct cfs_page *page; /* NULL: data is of malloc(3), until the page becomes idle */
		uint8_t *data;
		uint32_t size, used, first; /* bytes; index of the first entry */
	} chunk[DIRPAGE_CHUNKS];
	uint32_t n; /* entries, also those of a page that was dropped */
	/* Where the entry found last is: its number and its chunk. */
	uint32_t at, at_off;
	unsigned at_chunk;
};

struct dirpages {
	struct cfs_pool *pool;
	uint64_t max;
	_Atomic uint64_t bytes;
	pthread_mutex_t lock; /* protects the list and idle pages; taken before the pool's own */
	TAILQ_HEAD(, dirpage) idle;
};

int dirpages_init(struct dirpages *all, struct cfs_pool *pool);
void dirpages_fini(struct dirpages *all); /* all pages are dropped */

/* Takes a page into use; it may be dropped (n_chunks 0). All zeros is an empty page in use. */
void dirpage_take(struct dirpages *all, struct dirpage *p);
void dirpage_put(struct dirpages *all, struct dirpage *p); /* makes it idle */

/* Whether another page as large as this one fits without dropping any. */
bool dirpages_have_room(struct dirpages *all, const struct dirpage *p);

/* The functions below are for a page in use. */
void dirpage_drop(struct dirpages *all, struct dirpage *p);
void dirpage_clear(struct dirpages *all, struct dirpage *p);
/*
 * The page must not have been dropped. False: there is no room for the entry; for the first one,
 * not even memory of malloc(3). Never waits.
 */
bool dirpage_add(struct dirpages *all, struct dirpage *p, const struct cfs_dirent *e, bool attrs);
/* Valid while the page is in use. i < p->n, and the page has chunks. */
const struct dirpage_entry *dirpage_get(struct dirpage *p, uint32_t i);

#endif
