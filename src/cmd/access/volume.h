/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a volume for a command: metadata, setting and object store, with messages for people. */
#ifndef CFS_CMD_VOLUME_H
#define CFS_CMD_VOLUME_H

#include <cachefs/meta.h>
#include <cachefs/object.h>

#include "base/clock.h"

#define VOLUME_UUID_LEN 36
/* The object with the volume's id has this key below the volume's name. */
#define VOLUME_ID_NAME "juicefs_uuid"

/*
 * A META-URL whose SQLite path does not depend on the working directory; malloc'ed, NULL when out
 * of memory.
 */
char *volume_absolute_url(const char *url);

/*
 * A bucket as it is stored: "file" buckets as an absolute path that ends in '/'. malloc'ed, NULL
 * when out of memory.
 */
char *volume_bucket(const char *storage, const char *bucket);
/* The bucket outlives the machine: its storage is neither a local directory nor memory. */
bool volume_is_remote(const char *storage);

/*
 * KEY=VALUE lines into the environment (META_PASSWORD, ACCESS_KEY, ...). The file must belong to
 * the caller and be closed to others (mode 0600 or stricter). path may be NULL. CMD_OK, or
 * CMD_USAGE after a message.
 */
int volume_use_credentials(const char *path);
/* The same without a message. */
int volume_read_credentials(const char *path, char err[256]);

/* Finds an entry by its path from the root of the volume. step_ms: deadline of each name. */
int volume_lookup(struct cfs_meta *meta, uint64_t step_ms, const char *path, struct cfs_entry *ret);
/* Letters, digits, _ and -, or empty: S3 fails each upload with another storage class. */
bool volume_is_class(const char *s);
/* Replaces a string of a setting by a copy. Empty or NULL: by none. */
int volume_set(char **field, const char *value);
/* The bucket, as volume_bucket() makes it. */
int volume_set_bucket(struct cfs_setting *s, const char *bucket);
/* The keys of the object store that the environment has. */
int volume_set_keys(struct cfs_setting *s);
/* Connects; the database may have no volume. On failure err says why. */
int volume_connect(const char *url, const struct cfs_meta_conf *conf, struct cfs_meta **ret,
		   char err[256]);
/* Connects and loads; on failure err says which volume and why. */
int volume_open(const char *url, const struct cfs_meta_conf *conf, struct cfs_meta **ret_meta,
		struct cfs_setting **ret_setting, char err[256]);

/*
 * A setting with the members that are needed to reach a volume's objects, for a lost one. Keys are
 * those of the environment.
 */
int volume_lost_setting(const char *name, const char *storage, const char *bucket,
			struct cfs_setting **ret);

/* Overrides of the setting. */
struct volume_objects {
	const char *storage, *bucket;			/* NULL: the setting's */
	int64_t upload_limit_mbps, download_limit_mbps; /* -1: the setting's, 0: none */
	unsigned max_connections;			/* 0: as many as the store likes */
	bool small_buffers;
	struct cfs_object_descs *descs; /* or NULL */
};

/*
 * The object store of a setting, for a command: its calls are recorded as waits. storage and bucket
 * override the setting when not NULL.
 */
int volume_open_objects(const struct cfs_setting *s, const char *storage, const char *bucket,
			struct cfs_object_store **ret, char err[256]);
int volume_open_objects_with(const struct cfs_setting *s, const struct volume_objects *with,
			     struct cfs_object_store **ret, char err[256]);
/*
 * Whether the objects that `o` has below the volume's name belong to this volume, by the id that
 * format stores among them. 1: they do; 0: there is no id; -EEXIST: they belong to another volume;
 * else the error of the store. Negative with err.
 */
int volume_check_id(const struct cfs_setting *s, struct cfs_object_store *o,
		    cfs_deadline_t deadline, char err[256]);
/*
 * Whether new objects may be stored there: -EEXIST as above; -ENOENT: metadata names blocks, and
 * the bucket has nothing of the volume, as where the disk of a file bucket is not mounted. The
 * bucket, or the right to list, may be missing. Negative with err.
 */
int volume_check_place(struct cfs_meta *meta, const struct cfs_setting *s,
		       struct cfs_object_store *o, cfs_deadline_t deadline, char err[256]);
/*
 * Applies storage classes, tags, access keys and limits of a changed setting, as they would be if
 * the objects were opened with it. -ENOMEM: classes or keys are those from before.
 */
int volume_adopt(const struct cfs_setting *s, const struct volume_objects *with,
		 struct cfs_object_store *o);
/* Bytes per second, 0: no limit. */
uint64_t volume_limit(int64_t given_mbps, int setting_mbps);

#endif
