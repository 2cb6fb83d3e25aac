/* SPDX-License-Identifier: Apache-2.0 */
/* Commands on a META-URL share these options and the layers that they open. */
#ifndef CFS_CMD_ADMIN_H
#define CFS_CMD_ADMIN_H

#include <cachefs/data.h>
#include <cachefs/meta.h>
#include <cachefs/object.h>
#include <cachefs/records.h>
#include <cachefs/store.h>
#include <jansson.h>
#include <stdbool.h>

#include "cmd/access/options.h"

/* Deadline of one metadata call, or of one page of a scan. */
#define ADMIN_STEP_MS 60000
/* One object. */
#define ADMIN_OBJECT_MS 60000
/* A listing of a bucket as a whole. */
#define ADMIN_LIST_MS (7ULL * 24 * 3600 * 1000)

struct admin_opts {
	bool json;
	char *credentials, *storage, *bucket;
};

/* Rows of an option table whose structure has a struct admin_opts called `member`. */
#define ADMIN_OPTIONS(member)                                                                      \
	OPT_JSON(member.json), OPT_CREDENTIALS(member.credentials, "META_PASSWORD, ACCESS_KEY")
/* The same for commands that look at objects. */
#define ADMIN_OBJECT_OPTIONS(member)                                                               \
	ADMIN_OPTIONS(member),                                                                     \
		OPT_STRING("storage", member.storage, "TYPE",                                      \
			   "type of the object store, instead of the volume's own", .min = 1),     \
		OPT_STRING("bucket", member.bucket, "PLACE",                                       \
			   "where the objects are, instead of the volume's own place", .min = 1)

enum admin_needs {
	ADMIN_WRITE = 1 << 0,	/* the metadata will be changed */
	ADMIN_OBJECTS = 1 << 1, /* objects and store; refused when they belong to another volume */
	ADMIN_DATA = 1 << 2,	/* data too, for compaction; with ADMIN_OBJECTS */
	/*
	 * Objects of removed data are removed, after cfs_meta_settle(), which waits for the replica
	 * of the metadata, too: the command replicates until it ends. With the two above.
	 */
	ADMIN_REMOVE = 1 << 3,
	ADMIN_ID = 1 << 4, /* refused, too, where the objects have no id of a volume */
};

struct admin {
	unsigned needs;
	struct cfs_meta *meta;
	struct cfs_setting *setting;
	struct cfs_object_store *objects;
	struct cfs_pool *pool;
	struct cfs_store *store;
	struct cfs_data *data;
	uint32_t block_size;
	struct cfs_lease *repair; /* admin_begin_repair */
	struct cfs_object_store *replica_objects;
	struct cfs_replica *replica; /* NULL: the metadata is not replicated */
	struct waits *waits;
};

/* Returns CMD_OK, or an exit status after a message. The caller closes *ret in any case. */
int admin_open(const char *url, const struct admin_opts *o, unsigned needs, struct admin *ret);
/* Returns status, or CMD_SYSTEM after a message when the usage counters could not be written. */
int admin_close(struct admin *a, int status);

/*
 * Takes the lease under which one command at a time repairs a volume: two would both add what they
 * find missing. admin_close() releases it. 0, -EBUSY after a message that names the other command,
 * or another error.
 */
int admin_begin_repair(struct admin *a, const char *command);
/* Called before each repair. 0, or the reason why the repair must not be made. */
int admin_may_repair(struct admin *a);
/* Finds an entry by its path from the root of the volume. */
int admin_lookup(struct admin *a, const char *path, struct cfs_entry *ret);
/* Whether a session of a mount seems to be active. */
int admin_is_mounted(struct admin *a, bool *ret);
/* Warns, when the volume is mounted, of changes that `command` will have to count. */
void admin_tell_uncounted(struct admin *a, const char *command);
/* The first path of an inode, or "inode N": malloc'ed, NULL without memory. */
char *admin_path(struct admin *a, cfs_ino_t ino);
/* Bytes as JSON text; bytes that are not UTF-8, and '%', become %XX. */
json_t *admin_text(const char *bytes, size_t len);
/* Prints j to stdout, with a newline. Takes over j. */
void admin_print_json(json_t *j);

/*
 * Removes objects on a few threads. Errors are counted and the first one is kept. A missing object
 * is not an error.
 */
struct remover;
int remover_create(struct admin *a, unsigned threads, struct remover **ret);
int remover_add(struct remover *r, const char *key, uint64_t size);
/* Waits until all objects that were added are removed, and frees. */
struct removed {
	uint64_t objects, bytes, failed;
	int err;
};
struct removed remover_finish(struct remover *r);

#endif
