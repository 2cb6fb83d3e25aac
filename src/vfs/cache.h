/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata cache of this mount: attributes by inode, names by parent, and the ctime each file
 * had when it was last opened. Fixed size, set associative; nothing is allocated per entry.
 *
 * Local changes are numbered. A reader takes the number before it asks the engine, and passes it
 * with the answer. An answer older than a change of the same inode (or name) is not kept.
 */
#ifndef CFS_VFS_CACHE_H
#define CFS_VFS_CACHE_H

#include <cachefs/meta.h>
#include <pthread.h>
#include <stdatomic.h>

#define CACHE_WAYS	  4
#define CACHE_ATTR_SETS	  2048
#define CACHE_NAME_SETS	  1024
#define CACHE_OPENED_SETS 1024
#define CACHE_LOCKS	  64
#define CACHE_NAME_MAX	  63 /* longer names are not kept */

struct cache_stats {
	_Atomic uint64_t attr_hits, attr_misses, entry_hits, entry_misses;
};

struct cache {
	uint64_t attr_timeout_ms;
	_Atomic uint64_t seq;
	/* Each lock protects the sets whose number is the same modulo CACHE_LOCKS; leaves. */
	pthread_mutex_t locks[CACHE_LOCKS];
	struct attr_set *attrs;
	struct name_set *names;
	struct opened_set *opened;
	struct cache_stats stats;
};

int cache_init(struct cache *c, uint64_t attr_timeout_ms);
void cache_fini(struct cache *c);

/* The number of the last change. Callers take it before they read metadata. */
static inline uint64_t cache_seq(struct cache *c)
{
	return atomic_load_explicit(&c->seq, memory_order_acquire);
}

/* False: not cached. *ret_ms: how long it may still be used. */
bool cache_get_attr(struct cache *c, cfs_ino_t ino, uint64_t now_ms, struct cfs_attr *ret,
		    uint32_t *ret_ms);
void cache_put_attr(struct cache *c, uint64_t seq, uint64_t now_ms, cfs_ino_t ino,
		    const struct cfs_attr *attr);
/* The kernel is being answered with attributes of a file. */
void cache_told(struct cache *c, cfs_ino_t ino, const struct cfs_attr *attr);
/* Whether the kernel may have another length or other times than these, for which it would not ask
 * again yet. */
bool cache_kernel_may_differ(struct cache *c, cfs_ino_t ino, const struct cfs_attr *attr);
/* Reports a finished local change. attr: its result, kept unless another change came between; NULL:
 * forget the attributes. */
void cache_changed(struct cache *c, uint64_t seq, uint64_t now_ms, cfs_ino_t ino,
		   const struct cfs_attr *attr);
bool cache_changed_since(struct cache *c, cfs_ino_t ino, uint64_t seq);
void cache_forget(struct cache *c, cfs_ino_t ino);

bool cache_get_name(struct cache *c, cfs_ino_t parent, const char *name, size_t len,
		    uint64_t now_ms, cfs_ino_t *ret, uint32_t *ret_ms);
/* 0: not cached. It does not count as a use. */
cfs_ino_t cache_peek_name(struct cache *c, cfs_ino_t parent, const char *name, size_t len,
			  uint64_t now_ms);
void cache_put_name(struct cache *c, uint64_t seq, uint64_t expire_ms, cfs_ino_t parent,
		    const char *name, size_t len, cfs_ino_t ino);
/* Reports a finished local change of the name. ino: its inode, 0 to forget the name. */
void cache_name_changed(struct cache *c, uint64_t seq, uint64_t expire_ms, cfs_ino_t parent,
			const char *name, size_t len, cfs_ino_t ino);

uint64_t cache_hash_name(cfs_ino_t parent, const char *name, size_t len);

/* Stores the ctime of an open at whose end the kernel has dropped older pages. */
void cache_note_opened(struct cache *c, cfs_ino_t ino, struct timespec ctime);
/* Whether it is the ctime that was stored last: the kernel has no older pages. */
bool cache_opened(struct cache *c, cfs_ino_t ino, struct timespec ctime);

#endif
