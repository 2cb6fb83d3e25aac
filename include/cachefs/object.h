/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Object stores: named byte strings that are written whole and never change.
 *
 * A store is a table of functions; filters (compression, encryption, limits, retries) are stores
 * wrapped around another. Keys are '/'-separated and relative to the bucket. All calls block, may
 * come from any thread, and return before `deadline` as far as the implementation can promise it
 * (a local file system in D state cannot: the block store runs calls on worker threads and leaves
 * a stuck one behind).
 */
#ifndef CFS_OBJECT_H
#define CFS_OBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/clock.h"

struct cfs_object_store;

struct cfs_object_info {
	const char *key; /* valid during the callback */
	uint64_t size;
	int64_t mtime_s;
};

/*
 * Reads [off, off + sum of dst) of the object into dst. Returns the bytes read, fewer than asked
 * only at the object's end; -ENOENT when there is no such object.
 */
typedef ssize_t (*cfs_object_get_fn)(struct cfs_object_store *o, const char *key, uint64_t off,
				     const struct iovec *dst, int n_dst, cfs_deadline_t deadline);
/*
 * As get, but only when it can be done without waiting (page cache); -EAGAIN otherwise, -ENOENT as
 * get. Optional: NULL means always -EAGAIN.
 */
typedef ssize_t (*cfs_object_get_nowait_fn)(struct cfs_object_store *o, const char *key,
					    uint64_t off, const struct iovec *dst, int n_dst);
/* Stores the whole object, atomically: a reader sees all of it or nothing. */
typedef int (*cfs_object_put_fn)(struct cfs_object_store *o, const char *key,
				 const struct iovec *src, int n_src, cfs_deadline_t deadline);
/* A missing object is success. */
typedef int (*cfs_object_del_fn)(struct cfs_object_store *o, const char *key,
				 cfs_deadline_t deadline);
typedef int (*cfs_object_head_fn)(struct cfs_object_store *o, const char *key,
				  struct cfs_object_info *ret, cfs_deadline_t deadline);
/*
 * Calls fn for every object whose key starts with prefix and sorts after `after` ("" = all), in
 * byte order of keys. A non-zero return of fn ends the listing and is returned. Any failure to see
 * the whole listing is an error: 0 means complete.
 */
typedef int (*cfs_object_list_fn)(void *arg, const struct cfs_object_info *info);
typedef int (*cfs_object_list_all_fn)(struct cfs_object_store *o, const char *prefix,
				      const char *after, cfs_object_list_fn fn, void *arg,
				      cfs_deadline_t deadline);
/* Objects whose put has returned survive a power failure afterwards. NULL: put already promises it. */
typedef int (*cfs_object_sync_fn)(struct cfs_object_store *o, cfs_deadline_t deadline);
/* Makes the bucket usable at format (directory, bucket). NULL: nothing to do. */
typedef int (*cfs_object_create_fn)(struct cfs_object_store *o, cfs_deadline_t deadline);
typedef void (*cfs_object_close_fn)(struct cfs_object_store *o);

struct cfs_object_ops {
	const char *name;
	bool whole; /* ranged get transfers the whole object (compressed, encrypted) */
	cfs_object_get_fn get;
	cfs_object_get_nowait_fn get_nowait;
	cfs_object_put_fn put;
	cfs_object_del_fn del;
	cfs_object_head_fn head;
	cfs_object_list_all_fn list;
	cfs_object_sync_fn sync;
	cfs_object_create_fn create;
	cfs_object_close_fn close;
};

/* Implementations embed this first. */
struct cfs_object_store {
	const struct cfs_object_ops *ops;
};

struct cfs_object_conf {
	const char *storage; /* "file", "mem", ... */
	const char *bucket;
	const char *access_key, *secret_key, *session_token;
	const char *compression;  /* NULL or "none": no filter */
	const char *encrypt_algo; /* with encrypt_key */
	const char *encrypt_key;  /* PEM, NULL: no encryption; passphrase in JFS_RSA_PASSPHRASE */
};

/* The chain of filters over the store. err: one line, no secrets. -EINVAL: unknown storage. */
int cfs_object_open(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
		    char err[256]);
void cfs_object_close(struct cfs_object_store *o);

#endif
