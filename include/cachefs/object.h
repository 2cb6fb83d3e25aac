/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Object stores: named byte strings that are written whole and never change.
 *
 * A store is a table of functions; filters (compression, encryption, limits, retries) are stores
 * wrapped around another. Keys are '/'-separated and relative to the bucket. All calls block, may
 * come from any thread, and return before `deadline` as far as the implementation can promise it
 * (a local file system in D state cannot: the block store runs calls on worker threads and leaves
 * a stuck one behind). A call whose result is not wanted (base/unwanted.h) ends with
 * -ECANCELED instead of pausing, queueing or waiting for a server.
 */
#ifndef CFS_OBJECT_H
#define CFS_OBJECT_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/clock.h"

/* Memory that a connection is counted with: its buffers, and what libcurl has beside them. */
#define CFS_OBJECT_BUFFERS	 (768u << 10)
#define CFS_OBJECT_SMALL_BUFFERS (384u << 10)

struct cfs_object_store;

struct cfs_object_info {
	const char *key; /* valid during the callback */
	uint64_t size;
	int64_t mtime_s;
};

/*
 * Reads [off, off + sum of dst) of the object into dst. Returns the bytes read, fewer than asked
 * only at the object's end; -ENOENT when there is no such object. -CFS_OBJECT_EPART: a part of this
 * object cannot be verified, only the object read from 0 to its end.
 */
#define CFS_OBJECT_EPART EBADR
typedef ssize_t (*cfs_object_get_fn)(struct cfs_object_store *o, const char *key, uint64_t off,
				     const struct iovec *dst, int n_dst, cfs_deadline_t deadline);
/*
 * As get, but only when it can be done without waiting (page cache); -EAGAIN otherwise, -ENOENT as
 * get. Optional: NULL means always -EAGAIN.
 */
typedef ssize_t (*cfs_object_get_nowait_fn)(struct cfs_object_store *o, const char *key,
					    uint64_t off, const struct iovec *dst, int n_dst);
/*
 * Stores the whole object, atomically: a reader sees all of it or nothing. tier: number of the
 * class it is stored in, 0: the volume's own; stores without classes ignore it. With CFS_OBJECT_NEW
 * added, the object is stored only where there is none: -EEXIST, also when an earlier attempt of
 * the same call has stored it and its answer was lost; and when put returns it survives a power
 * failure, on any store. S3 servers that do not know conditions replace the object.
 */
#define CFS_OBJECT_NEW 0x100u
typedef int (*cfs_object_put_fn)(struct cfs_object_store *o, const char *key,
				 const struct iovec *src, int n_src, unsigned tier,
				 cfs_deadline_t deadline);
/* A missing object is success. */
typedef int (*cfs_object_del_fn)(struct cfs_object_store *o, const char *key,
				 cfs_deadline_t deadline);
typedef int (*cfs_object_head_fn)(struct cfs_object_store *o, const char *key,
				  struct cfs_object_info *ret, cfs_deadline_t deadline);
/*
 * Calls fn for every object whose key starts with prefix and sorts after `after` ("" = all), in
 * byte order of keys. A non-zero return of fn ends the listing and is returned. An incomplete
 * listing is an error: 0 means complete.
 */
typedef int (*cfs_object_list_fn)(void *arg, const struct cfs_object_info *info);
typedef int (*cfs_object_list_all_fn)(struct cfs_object_store *o, const char *prefix,
				      const char *after, cfs_object_list_fn fn, void *arg,
				      cfs_deadline_t deadline);
/*
 * Removes n objects, at most CFS_OBJECT_DEL_MAX; missing ones are success. 0 when all are gone,
 * else the first error, with any part done. Optional: NULL when there is nothing better than del.
 */
#define CFS_OBJECT_DEL_MAX 1000
typedef int (*cfs_object_del_many_fn)(struct cfs_object_store *o, const char *const *keys, size_t n,
				      cfs_deadline_t deadline);
/*
 * Objects whose put has returned survive a power failure afterwards. NULL: put already promises it.
 * A failure is reported once (syncfs(2)), and every object that was put since the last success may
 * be lost, although it is still readable: the caller must record that. One call at a time.
 */
typedef int (*cfs_object_sync_fn)(struct cfs_object_store *o, cfs_deadline_t deadline);
/* Makes the bucket usable at format (directory, bucket). NULL: nothing to do. */
typedef int (*cfs_object_create_fn)(struct cfs_object_store *o, cfs_deadline_t deadline);
/*
 * Describes the last call that failed on this thread, for the retry layer. NULL: no call is worth a
 * retry.
 */
struct cfs_object_failure {
	bool retry;	   /* the same call may succeed */
	bool damaged;	   /* bytes changed in transit */
	uint32_t after_ms; /* the server asked for a pause this long; 0: it did not */
	char text[256];	   /* cause, for the log; no secrets */
};
typedef void (*cfs_object_failure_fn)(struct cfs_object_store *o, struct cfs_object_failure *ret);
typedef void (*cfs_object_close_fn)(struct cfs_object_store *o);
struct cfs_object_conf;
/*
 * Optional: takes tiers, access keys and limits from conf, which may change while other threads
 * call. They are in force when this returns; a call that has begun keeps its tier and keys, and
 * waits by the limit as it is. -ENOMEM: keys or tiers are those from before.
 */
typedef int (*cfs_object_adopt_fn)(struct cfs_object_store *o, const struct cfs_object_conf *conf);

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
	cfs_object_del_many_fn del_many;
	cfs_object_failure_fn failure;
	cfs_object_adopt_fn adopt;
};

/* Implementations embed this first. */
struct cfs_object_store {
	const struct cfs_object_ops *ops;
};

/* The storage class and tag of a tier's objects. */
#define CFS_OBJECT_TIERS 4
struct cfs_object_class {
	const char *storage_class; /* NULL, "": the bucket's */
	const char *tag;	   /* "KEY=VALUE"; NULL, "": none */
};

/*
 * Open file descriptions that report failed write-backs: syncfs(2) on each reports the failures
 * since its last call, and a description opened later misses them. A successor inherits those of a
 * dead process and so learns of failures that the dead process had not yet seen.
 */
#define CFS_OBJECT_DESCS 16
struct cfs_object_descs {
	int before[CFS_OBJECT_DESCS]; /* of the process before; borrowed */
	unsigned n_before;
	int fd[CFS_OBJECT_DESCS]; /* of the store, as long as it is open */
	unsigned n;
	bool fresh; /* some of the store's are new, although inherited ones exist */
};

struct cfs_object_conf {
	const char *storage; /* "file", "mem", "s3", "minio" */
	const char *bucket;
	unsigned shards; /* > 1: as many buckets, named by the one %d in `bucket` */
	const char *access_key, *secret_key, *session_token;
	const char *compression;  /* NULL or "none": no filter */
	const char *encrypt_algo; /* with encrypt_key */
	const char *encrypt_key;  /* PEM, NULL: no encryption; passphrase in JFS_RSA_PASSPHRASE */
	struct cfs_object_class tiers[CFS_OBJECT_TIERS];
	uint64_t upload_limit, download_limit; /* bytes per second, 0: none */
	unsigned max_connections;	       /* per bucket, 0: 64 */
	bool small_buffers;  /* of connections: CFS_OBJECT_SMALL_BUFFERS, at the cost of speed */
	uint64_t silence_ms; /* a connection that long without a byte has failed, 0: 15 s */
	struct cfs_object_descs *descs; /* borrowed while it is opened; NULL: not needed */
};

/* The chain of filters over the store. err: one line, no secrets. -EINVAL: unknown storage. */
int cfs_object_open(const struct cfs_object_conf *conf, struct cfs_object_store **ret,
		    char err[256]);
void cfs_object_close(struct cfs_object_store *o);
/* As the store's adopt, of all stores in the chain. */
int cfs_object_adopt(struct cfs_object_store *o, const struct cfs_object_conf *conf);

/* As the store's get; where a part cannot be verified, reads the whole object into a copy. */
ssize_t cfs_object_get(struct cfs_object_store *o, const char *key, uint64_t off,
		       const struct iovec *dst, int n_dst, cfs_deadline_t deadline);
/* Any number of objects, in as few requests as the store can; errors as del_many. */
int cfs_object_del_many(struct cfs_object_store *o, const char *const *keys, size_t n,
			cfs_deadline_t deadline);
/* Number of retries of store calls since the start of the process. */
uint64_t cfs_object_retries(void);
/* Number of bodies, of answers and of uploads, that arrived damaged. */
uint64_t cfs_object_damaged(void);

/*
 * The retry layer logs a call that has failed for good, with its cause, unless the calling thread
 * has set quiet and logs itself. A call that has had no success for seconds is a warning in any
 * case: one per bucket until a call succeeds.
 */
void cfs_object_quiet(bool quiet);
/* The cause of the last failure on this thread since it became quiet; "" when unknown. */
const char *cfs_object_cause(void);

#endif
