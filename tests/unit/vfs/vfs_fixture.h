/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the VFS: a mount over a metadata engine and a data layer made of arrays, which count
 * and can interfere.
 */
#ifndef CFS_VFS_FIXTURE_H
#define CFS_VFS_FIXTURE_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cachefs/vfs.h>

#define FILES	  6000
#define FIRST_INO 1000

/*
 * Files named "f%05u" with inode FIRST_INO + number. Look-ups find them in any directory; a listing
 * of one that is such a file itself has those of larger numbers.
 */
extern struct engine {
	pthread_mutex_t lock;
	bool exists[FILES], sustained[FILES];
	struct cfs_attr attr[FILES];
	size_t xattr_len; /* of the only attribute, of which all bytes are 'x'; 0: none */
	int calls, closed, flocks, unlocks, max_limit;
	uint64_t unlocked_owners, unlocks_again, sid;
	bool holds_locks;
	_Atomic int assumed;
	cfs_ino_t dir_asked, failing; /* getattr of `failing` ends with EIO; 0: none does */
	struct cfs_meta_hooks hooks;
	void (*during_getattr)(void);
	void (*during_lookup)(void);
	void (*after_unlink)(void);
	void (*during_close)(void);
	int (*during_readdir)(void); /* returns an error of the listing, or 0 */
} meta;

/* One length for all files. */
extern struct data_layer {
	uint64_t length;
	_Atomic uint32_t *mark;
	bool dirty;
	int flushes, flush_before_setattr, awaited;
	int truncate_err;
	/* The file whose close has not waited; it ends with the error at the next wait. */
	cfs_file_closed_fn closed;
	void *closed_arg;
	int closed_err;
	bool commit_later; /* of start_kept() */
} data;

extern struct cfs_vfs *vfs;

/* The number of the file of that name, negative if there is none. */
int number_of(const char *name, size_t len);
/* The first n files exist. */
void fill_engine(int n);

/* Fixture of the group. */
extern struct cfs_pool *pool;
int make_pool(void **state);
int free_pool(void **state);
/* A mount with all timeouts the same, of the directory root. */
void start(uint64_t timeout_ms, cfs_ino_t root);
/* Another one of the same engine and data, with what is kept of those before. */
void start_kept(struct cfs_handoff *handoff);
/* Forgets the mount as a crash does: its memory stays until the end of the test program. */
void vfs_abandon(void);
/* As teardown of each test. */
int stop(void **state);

struct cfs_ctx ctx(void);
int lookup(const char *name, struct cfs_vfs_entry *ret);
uint64_t open_file(int i, int flags);
int release(uint64_t fh);
int unlink_file(const char *name);
void chmod_file(int i, uint16_t mode);
uint16_t mode_of(int i);

#endif
