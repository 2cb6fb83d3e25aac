/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata of a volume: names, attributes, chunk lists, sessions, locks, quotas.
 *
 * A struct cfs_meta is a connection pool to a volume in an engine (SQLite, ...). The core does what
 * all engines share (names, trash, quotas, id batches, heartbeats, background jobs), and usually
 * makes one call of the engine (meta/engine/engine.h), on the calling thread.
 *
 * Format: volume-format sections 2, 5, 6, 9, 10, 11. Every function may be called from any thread,
 * returns 0 or a negative errno, and returns before ctx->deadline (-ETIMEDOUT becomes -EIO at the
 * core's border). Names are byte strings of 1..255 bytes without '/' and NUL.
 */
#ifndef CFS_META_H
#define CFS_META_H

#include <cachefs/setting.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

#include "base/clock.h"

typedef uint64_t cfs_ino_t;

#define CFS_ROOT_INO	    ((cfs_ino_t)1)
#define CFS_TRASH_INO	    ((cfs_ino_t)0x7FFFFFFF10000000ULL)
#define CFS_NAME_MAX	    255
#define CFS_SYMLINK_MAX	    4095
#define CFS_XATTR_VALUE_MAX 65536
#define CFS_CHUNK_BITS	    26
#define CFS_CHUNK_SIZE	    (1ULL << CFS_CHUNK_BITS)
#define CFS_FILE_MAX	    (1ULL << 57)
#define CFS_DIR_LENGTH	    4096

static inline bool cfs_ino_is_trash(cfs_ino_t ino)
{
	return ino >= CFS_TRASH_INO;
}

/* Space charged for an inode of the given length (volume-format: align4K; 0 costs 4096). */
static inline int64_t cfs_space_of(uint64_t length)
{
	return length ? (int64_t)((length + 4095) & ~4095ULL) : 4096;
}

enum cfs_type {
	CFS_TYPE_FILE = 1,
	CFS_TYPE_DIR = 2,
	CFS_TYPE_SYMLINK = 3,
	CFS_TYPE_FIFO = 4,
	CFS_TYPE_BLOCK = 5,
	CFS_TYPE_CHAR = 6,
	CFS_TYPE_SOCKET = 7,
};

enum cfs_flag { /* cfs_attr.flags, stored */
		CFS_FLAG_IMMUTABLE = 1,
		CFS_FLAG_APPEND = 2,
		CFS_FLAG_SKIP_TRASH = 32,
};

struct cfs_attr {
	uint8_t type; /* enum cfs_type */
	uint8_t flags;
	uint8_t tier;
	uint16_t mode; /* 07777 bits */
	uint32_t uid, gid;
	uint32_t nlink;
	uint32_t rdev; /* Linux "new" 32-bit encoding */
	struct timespec atime, mtime, ctime;
	uint64_t length;
	cfs_ino_t parent;		  /* 0: has had more than one hard link */
	uint32_t access_acl, default_acl; /* rule ids, 0 = none */
};

struct cfs_entry {
	cfs_ino_t ino;
	struct cfs_attr attr;
};

struct cfs_handoff_request;

/* The context of one operation: caller, time and deadline. Lives on the caller's stack. */
struct cfs_ctx {
	uint32_t uid, gid;
	pid_t pid;
	const gid_t *groups; /* supplementary groups; used only when check is set */
	size_t n_groups;
	bool check;	     /* check permissions (squash, non-default permissions) */
	bool admin;	     /* may use the mount's special files; the VFS sets and checks it */
	struct timespec now; /* CLOCK_REALTIME at the start of the operation */
	cfs_deadline_t deadline;
	/*
	 * True when the caller has given up (FUSE_INTERRUPT). Called by operations without a
	 * deadline: waits for locks, long operations. May be NULL.
	 */
	bool (*interrupted)(void *arg);
	void *interrupted_arg;
	/*
	 * replay: a process that has died may have carried out this request. record: of the request
	 * in the handoff state, for a later replay; may be NULL. Both are for the VFS.
	 */
	bool replay;
	struct cfs_handoff_request *record;
};

static inline bool cfs_ctx_in_group(const struct cfs_ctx *ctx, uint32_t gid)
{
	size_t i;

	if (ctx->gid == gid)
		return true;
	for (i = 0; i < ctx->n_groups; i++)
		if (ctx->groups[i] == gid)
			return true;
	return false;
}

/* A context of root that starts now, with that deadline. */
struct cfs_ctx cfs_ctx_internal(uint64_t timeout_ms);

/* ---- life ---- */

struct cfs_meta;

#define CFS_SKIP_DIR_MTIME_MS 100

struct cfs_meta_conf {
	bool create;	       /* the database need not exist: cfs_meta_format() makes it */
	bool read_only;	       /* no session, no background jobs, every change is -EROFS */
	bool no_bgjob;	       /* no background jobs */
	uint64_t heartbeat_ms; /* 12 000; 0: session expires in a year */
	uint64_t timeout_ms;   /* deadline of internal operations, 30 000 */
	/*
	 * Longest delay before a directory's times are stored, CFS_SKIP_DIR_MTIME_MS. This mount
	 * shows them at once. 0: each call stores them.
	 */
	uint64_t skip_dir_mtime_ms;
	int64_t max_deletes;	 /* threads that remove file data, 2 */
	const char *mount_point; /* for the session record */
};

/*
 * Callbacks of the layers above. The core calls them without locks held, from background threads
 * unless noted. Members may be NULL.
 */
struct cfs_meta_hooks {
	void *arg;
	/* Removes the objects of a slice. -EAGAIN: the next hourly job tries again. */
	int (*delete_slice)(void *arg, uint64_t slice, uint32_t size);
	/* 0: the objects stored so far survive a power failure. */
	int (*sync_objects)(void *arg);
	/*
	 * Whether there are blocks with slice ids in [first, first + n), which were just allocated:
	 * 1, 0 or a negative errno. 1: the database went back in time, and more ids are skipped.
	 */
	int (*slices_used)(void *arg, uint64_t first, uint64_t n, cfs_deadline_t deadline);
	/* A hint: the chunk has enough records to be worth compacting. */
	void (*compact)(void *arg, cfs_ino_t ino, uint32_t indx, bool force);
	/* Whether this client has the inode open. Called on the operation's own thread, inside a
	 * transaction: must not block. */
	bool (*is_open)(void *arg, cfs_ino_t ino);
	/* A client has changed the setting. */
	void (*reloaded)(void *arg, const struct cfs_setting *s);
	/* The volume is gone (record missing or other UUID): the mount should end. */
	void (*lost)(void *arg, const char *reason);
	/*
	 * Other clients have ended session `sid`, and its locks may be theirs. Called before the
	 * mount has its next session and before the metadata has its record again, and another time
	 * when it has (cfs_meta_sid()): some locks may have been granted in between.
	 */
	void (*session_ended)(void *arg, uint64_t sid);
	/*
	 * Keeps an unlock that is not confirmed for a successor process, which hands it to
	 * cfs_meta_unlock_again(). Returns a note for drop_unlock(), NULL when it cannot be kept.
	 * On any thread; must not block.
	 */
	void *(*note_unlock)(void *arg, cfs_ino_t ino, uint64_t owner, bool posix);
	void (*drop_unlock)(void *arg, void *note);
};

/*
 * Connects. err: one line with the masked URL, "" on success. -ENOENT: no such database; -EINVAL:
 * bad URL or unknown engine. The database need not have a volume.
 */
int cfs_meta_open(const char *url, const struct cfs_meta_conf *conf, struct cfs_meta **ret,
		  char err[256]);
void cfs_meta_close(struct cfs_meta *m);
/* The name of the engine, as "sqlite3". */
const char *cfs_meta_engine_name(struct cfs_meta *m);

/*
 * Writes the setting and, into an empty database, schema, counters, root and trash (volume-format
 * section 3). On an existing volume only mutable fields may differ (-EEXIST), unless force is set.
 */
int cfs_meta_format(struct cfs_meta *m, const struct cfs_setting *s, bool force, char err[256]);
/* Reads and checks the setting. -ENODATA: not a volume. The result is the core's own copy. */
int cfs_meta_load(struct cfs_meta *m, struct cfs_setting **ret, char err[256]);
/* The setting of the last load or heartbeat. The caller frees it. */
int cfs_meta_setting(struct cfs_meta *m, struct cfs_setting **ret);

/*
 * Called before cfs_meta_start(), which then continues the session of a previous process. If that
 * has ended, with its locks and its unlinked open files, cfs_meta_start() begins another one.
 * ended: the last session of which session_ended told that process; 0: none. Its record is written
 * again, so that what late requests of that process leave under it goes when it expires.
 */
void cfs_meta_resume(struct cfs_meta *m, uint64_t sid, uint64_t ended);
/*
 * Called once, before cfs_meta_start(), by a mount that uploads the staged blocks it finds in
 * `dirs`; writeback: it stages blocks there. The session's record has both, so that the client that
 * cleans up after it can say where blocks may be left.
 */
int cfs_meta_set_cache_dir(struct cfs_meta *m, const char *dirs, bool writeback);
/*
 * Starts the session (unless read-only), the heartbeat and background jobs. Called after a
 * successful load.
 */
int cfs_meta_start(struct cfs_meta *m, const struct cfs_meta_hooks *hooks);
/*
 * Ends jobs and removes the session, with its locks, sustained inodes and pending counters. Logs
 * failures, and returns the first one.
 */
int cfs_meta_stop(struct cfs_meta *m);
/* As cfs_meta_stop(), but the session stays for a successor process. */
int cfs_meta_leave(struct cfs_meta *m);
uint64_t cfs_meta_sid(struct cfs_meta *m); /* 0 without session */

/*
 * 0: the changes acknowledged so far, to any client, survive a power failure. cfs_meta_sync()
 * leaves out directory times that are not stored yet, cfs_meta_sync_dirs() includes them. The
 * configuration of a database server decides when its changes are durable.
 */
int cfs_meta_sync(struct cfs_meta *m, const struct cfs_ctx *ctx);
int cfs_meta_sync_dirs(struct cfs_meta *m, const struct cfs_ctx *ctx);
/*
 * Called before objects that no record names are removed. 0: the objects stored so far (hooks), and
 * then the changes made so far by any client, survive a power failure. Without it, a power failure
 * could bring back records that name removed objects.
 */
int cfs_meta_settle(struct cfs_meta *m);

/*
 * Sets a copy of the metadata (replication). Called before cfs_meta_start(). fn is called on the
 * caller's thread, and returns 0 when the copy has all changes acknowledged before its call.
 * `sync`: cfs_meta_sync(), cfs_meta_sync_dirs() and cfs_meta_await_copy() wait for the copy.
 * cfs_meta_settle() always does, as the copy must not name removed objects either; no program waits
 * for that, so `hurry` is not set.
 */
typedef int (*cfs_meta_copy_fn)(void *arg, bool hurry, cfs_deadline_t deadline);
void cfs_meta_copy_to(struct cfs_meta *m, cfs_meta_copy_fn fn, void *arg, bool sync);
/* Called by a close. With `sync` it waits until the copy has what was committed. */
int cfs_meta_await_copy(struct cfs_meta *m, const struct cfs_ctx *ctx);
/* Every later change is refused with -EROFS, also those of the core itself. */
void cfs_meta_refuse_changes(struct cfs_meta *m);
/* This mount has found another volume, or none, in the place of this one: changes are refused. */
bool cfs_meta_is_gone(const struct cfs_meta *m);
/*
 * Called before an object is stored. -EROFS: cfs_meta_is_gone(). After a pause of this process or its
 * machine the metadata is asked, for a few seconds at most; 0: this volume is there, or no answer came.
 */
int cfs_meta_check_volume(struct cfs_meta *m, cfs_deadline_t deadline);
/* Skips n slice ids: records that a restore has lost may have named blocks by these. */
int cfs_meta_skip_slices(struct cfs_meta *m, const struct cfs_ctx *ctx, int64_t n);

/* ---- names and attributes ---- */

/* Also finds "." and "..". Names in the trash root are hour directories. */
int cfs_meta_lookup(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
		    const char *name, size_t name_len, struct cfs_entry *ret);
int cfs_meta_getattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     struct cfs_attr *ret);

enum cfs_set {
	CFS_SET_MODE = 1 << 0,
	CFS_SET_UID = 1 << 1,
	CFS_SET_GID = 1 << 2,
	CFS_SET_ATIME = 1 << 3,
	CFS_SET_MTIME = 1 << 4,
	CFS_SET_CTIME = 1 << 5,
	CFS_SET_ATIME_NOW = 1 << 6,
	CFS_SET_MTIME_NOW = 1 << 7,
	CFS_SET_FLAGS = 1 << 8,
	/* Not of directories: clear setuid and (if group executable) setgid, as after a write. */
	CFS_SET_KILL_SUID = 1 << 9,
	/* With the former: clear setgid even if the group may not execute. */
	CFS_SET_KILL_SGID = 1 << 10,
	CFS_SET_TIER = 1 << 11,
	/* Set by the core: this mount has the inode open, so it may change in the trash. */
	CFS_SET_IS_OPEN = 1 << 15,
};
/* Does not change the length: cfs_meta_truncate(). *ret: the attributes afterwards. */
int cfs_meta_setattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t set,
		     const struct cfs_attr *in, struct cfs_attr *ret);
/* buf is terminated. */
int cfs_meta_readlink(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		      char buf[CFS_SYMLINK_MAX + 1]);
/* Whether ctx has the permissions of the mask, which is that of access(2). */
int cfs_meta_access(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, int mask,
		    const struct cfs_attr *attr);

struct cfs_mknod {
	cfs_ino_t parent;
	const char *name;
	size_t name_len;
	uint8_t type;
	uint16_t mode; /* before umask */
	uint16_t umask;
	uint32_t rdev;
	const char *target; /* symlink */
	size_t target_len;
	/*
	 * The directory after the change, written on success by engines that know it. May be NULL.
	 */
	struct cfs_attr *ret_parent;
	/* Gets the inode number before anything is changed. May be NULL. */
	_Atomic uint64_t *note_ino;
};
/* Creates a file, directory, symlink or special file. -EEXIST: *ret is the existing entry. */
int cfs_meta_mknod(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
		   struct cfs_entry *ret);
int cfs_meta_link(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_ino_t parent,
		  const char *name, size_t name_len, struct cfs_attr *ret);
/*
 * O_TMPFILE: makes a file without a name (req->name_len 0). To the metadata it is a file that was
 * unlinked while this client has it open: cfs_meta_close_ino() or the end of the session ends it.
 * Permission, group, ACL and flags come from the directory. The file counts in the volume and for
 * its owner, not in the directory. -EROFS: there is no session.
 */
int cfs_meta_make_unnamed(struct cfs_meta *m, const struct cfs_ctx *ctx,
			  const struct cfs_mknod *req, struct cfs_entry *ret);
/*
 * Gives such a file a name, in one step: it then has one link, and is not the session's any more.
 * -ENOENT: also when it is not this session's.
 */
int cfs_meta_link_unnamed(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			  cfs_ino_t parent, const char *name, size_t name_len,
			  struct cfs_attr *ret);

enum cfs_removal_outcome {
	CFS_REMOVED_NONE,      /* there was nothing to remove (rename without victim) */
	CFS_REMOVED_LINKED,    /* other names remain */
	CFS_REMOVED_TRASHED,   /* moved to the trash */
	CFS_REMOVED_SUSTAINED, /* nlink 0, kept while this client has it open */
	CFS_REMOVED_DELETED,   /* gone; the data of a file is removed in the background */
};
struct cfs_removed {
	enum cfs_removal_outcome outcome;
	cfs_ino_t ino;
	struct cfs_attr attr;	/* after the change; before it when deleted */
	bool has_data;		/* deleted, and its chunks are to be removed in the background */
	struct cfs_attr parent; /* the directory after the change; nlink 0: not known */
};
enum cfs_remove_flags { CFS_REMOVE_SKIP_TRASH = 1 << 0 };
int cfs_meta_unlink(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
		    const char *name, size_t name_len, unsigned flags, struct cfs_removed *ret);
int cfs_meta_rmdir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t parent,
		   const char *name, size_t name_len, unsigned flags, struct cfs_removed *ret);

enum cfs_rename_flags { /* numbers of renameat2(2), plus our own */
			CFS_RENAME_NOREPLACE = 1 << 0,
			CFS_RENAME_EXCHANGE = 1 << 1,
			CFS_RENAME_RESTORE =
				1 << 5, /* by the restore command: may move into the trash, too */
};
struct cfs_rename {
	cfs_ino_t src_parent, dst_parent;
	const char *src_name, *dst_name;
	size_t src_len, dst_len;
	unsigned flags;
};
struct cfs_renamed {
	struct cfs_entry moved;	   /* the source, after the change */
	struct cfs_removed victim; /* the replaced inode; EXCHANGE: LINKED with its new attr */
};
int cfs_meta_rename(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_rename *req,
		    struct cfs_renamed *ret);

/*
 * A directory position: opaque bytes that order the engine's listing. len 0 is the beginning. It
 * stays valid while entries come and go: an entry that exists throughout a listing is seen exactly
 * once.
 */
struct cfs_cursor {
	uint16_t len;
	uint8_t key[CFS_NAME_MAX + 1];
};
struct cfs_dirent {
	const char *name; /* valid during the callback; not terminated */
	size_t name_len;
	uint8_t type;
	struct cfs_entry entry;	  /* attr is filled on request */
	struct cfs_cursor *after; /* the position behind this entry; valid during the callback */
};
/* A non-zero return ends the page; that entry counts as not delivered. */
typedef int (*cfs_dirent_fn)(void *arg, const struct cfs_dirent *e);
/*
 * Delivers at most `limit` entries behind *cursor, without "." and "..", in constant memory, and
 * advances *cursor past them. 1: the end was reached.
 */
int cfs_meta_readdir(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir, bool attrs,
		     size_t limit, struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg);
/* A copied page of entries, for callers that change the directory meanwhile. */
#define CFS_NAMES_MAX 256
struct cfs_name {
	cfs_ino_t ino;
	uint8_t type, len;
	char name[CFS_NAME_MAX + 1]; /* terminated */
	struct cfs_cursor after;
};
struct cfs_names {
	struct cfs_name v[CFS_NAMES_MAX];
	size_t n; /* 0 before a page is read */
};
/* Appends an entry to a struct cfs_names: a cfs_dirent_fn for a limit of CFS_NAMES_MAX. */
static inline int cfs_names_add(void *names, const struct cfs_dirent *e)
{
	struct cfs_names *p = names;
	struct cfs_name *i = &p->v[p->n++];

	i->ino = e->entry.ino;
	i->type = e->type;
	i->len = (uint8_t)e->name_len;
	memcpy(i->name, e->name, e->name_len);
	i->name[e->name_len] = '\0';
	i->after = *e->after;
	return 0;
}

/*
 * Checks permissions, inode flags and the trash for an open with these flags (O_*). A truncate by
 * path (without open handle) calls it with O_WRONLY. is_open: this mount has the inode open, so it
 * may be opened again after its removal (/proc/PID/fd).
 */
enum cfs_atime { CFS_NOATIME, CFS_RELATIME, CFS_STRICTATIME };
int cfs_meta_open_check(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_attr *attr,
			int flags, bool is_open);
int cfs_meta_touch_atime(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 enum cfs_atime mode, struct cfs_attr *attr);
/* Called after the last local close of an unlinked inode, which it ends. */
int cfs_meta_close_ino(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino);

struct cfs_statfs {
	uint64_t total_bytes, avail_bytes, used_bytes;
	uint64_t total_inodes, avail_inodes, used_inodes;
};
/* Space at the directory `root`: its quota and those of directories above it apply. */
int cfs_meta_statfs(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t root,
		    struct cfs_statfs *ret);

/* ---- file data ---- */

/* One record of a chunk, oldest first (volume-format section 6, 24 bytes on disk). */
struct cfs_slice {
	uint32_t pos;  /* in the chunk */
	uint64_t id;   /* 0: zeros */
	uint32_t size; /* of the stored slice */
	uint32_t off;  /* first byte used */
	uint32_t len;  /* bytes used */
};
#define CFS_SLICE_BYTES 24
void cfs_slice_encode(const struct cfs_slice *s, uint8_t out[CFS_SLICE_BYTES]);
void cfs_slice_decode(const uint8_t in[CFS_SLICE_BYTES], struct cfs_slice *ret);

/* Records of a chunk; *ret is malloc'ed (NULL when there are none). Returns the count. */
ssize_t cfs_meta_read_chunk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			    uint32_t indx, struct cfs_slice **ret);
/*
 * For open(2): the attributes of an inode, and the records of its first chunk, in one round trip.
 * The records are as new as the attributes, or newer. *ret_recs is malloc'ed or NULL. *ret_n -1:
 * the list is damaged.
 */
int cfs_meta_open_file(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		       struct cfs_attr *ret, struct cfs_slice **ret_recs, ssize_t *ret_n);
/*
 * The heads of some files: attributes, records of the first chunk and, when `parent` is set,
 * whether that name leads to the file. One round trip. The attributes are no newer than the
 * records: while length, mtime and ctime of the file stay the same, the records are those of its
 * bytes. Compaction changes none of the three, but removes objects that the records name.
 */
#define CFS_HEADS_MAX 32
struct cfs_head {
	cfs_ino_t ino;
	cfs_ino_t parent; /* of the name to check; 0: none */
	const char *name;
	size_t name_len;
	/* results */
	int err; /* 0; -ENOENT: no such inode; -EIO: its list is damaged; -ENOMEM */
	bool named;
	struct cfs_attr attr;
	struct cfs_slice *records; /* malloc'ed, NULL when there are none; the caller frees them */
	size_t n_records;
};
/*
 * n: at most CFS_HEADS_MAX. 0: each head has its result. After an error there is nothing to free.
 */
int cfs_meta_read_heads(struct cfs_meta *m, const struct cfs_ctx *ctx, struct cfs_head *heads,
			size_t n);
/* Allocates slice ids from a local batch; one round trip per 4096 ids. */
int cfs_meta_new_slice(struct cfs_meta *m, const struct cfs_ctx *ctx, uint64_t *ret_id);
/* Attributes to be stored with data. set: which, of CFS_SET_MODE, UID, GID and ATIME. */
struct cfs_attr_change {
	uint32_t set;
	uint16_t mode;
	uint32_t uid, gid;
	struct timespec atime;
};
/* A record to append to a chunk's list, and what travels with it in one atomic operation. */
struct cfs_commit {
	cfs_ino_t ino;
	uint32_t indx;
	struct cfs_slice slice;
	struct timespec mtime;		     /* of the last write into the slice, or set after it */
	const struct cfs_attr_change *attrs; /* NULL: none */
	/*
	 * An earlier attempt may have been carried out: the commit is repeated only if it was not.
	 * known_length: of the file before that attempt. A failed attempt sets both.
	 */
	bool repeated;
	uint64_t known_length;
	/*
	 * Whether the slice's blocks are stored: 1, 0 or a negative errno. A slice that was
	 * committed may have been replaced by other clients and removed since: its blocks are gone
	 * then. NULL: they are stored.
	 */
	int (*is_stored)(void *arg, const struct cfs_slice *s, cfs_deadline_t deadline);
	void *arg;
	struct cfs_attr attr; /* result: the attributes afterwards */
};
/*
 * Appends a record whose blocks are all stored. Checks quotas and free space;
 * cfs_meta_keep_setattr() has checked the attributes. Hints at compaction when the list is long.
 * -ETIMEDOUT, -EIO: it may have been carried out.
 */
int cfs_meta_commit(struct cfs_meta *m, const struct cfs_ctx *ctx, struct cfs_commit *commit);
/*
 * Group commit: commits of n different files, n at most CFS_COMMITS_MAX, in one round trip where
 * the engine can. Each is a commit of its own, as above, and ret[i] is its result. They are made in
 * the order given: a client that sees one of them sees all successful ones before it. A commit that
 * its file or a limit refuses does not hold up those behind it. One that may succeed later does:
 * behind it the result is 0, a refusal, or -ECANCELED; the caller repeats these when the first one
 * has ended. `repeated` says which of them may have been carried out.
 */
enum { CFS_COMMITS_MAX = 64 };
void cfs_meta_commit_group(struct cfs_meta *m, const struct cfs_ctx *ctx,
			   struct cfs_commit *const *commits, size_t n, int *ret);
/* Whether a commit with this result may succeed when it is repeated. */
static inline bool cfs_commit_may_succeed(int err)
{
	switch (err) {
	case 0:
	case -ENOSPC:
	case -EDQUOT:
	case -ENOENT:
	case -EFBIG:
	case -EROFS:
	case -EPERM:
	case -EACCES:
	case -EINVAL:
		return false;
	default:
		return true;
	}
}
/*
 * A setattr that a later commit of the file's data will store. Checks it as cfs_meta_setattr()
 * does, against *attr, the attributes that this mount shows, and applies it to these. No round
 * trip. -EAGAIN: use cfs_meta_setattr(), as the database is needed (ACL, flags, trash, usage of
 * owners, the change log, permissions that cachefs checks), or more than mode, owner and times is
 * set.
 */
int cfs_meta_keep_setattr(struct cfs_meta *m, const struct cfs_ctx *ctx, uint32_t set,
			  const struct cfs_attr *in, struct cfs_attr *attr);
/*
 * Reserves the space by which a file grows from old_length to new_length, in the quotas of volume
 * and directories, until it is committed or released: bytes accepted from a writer also fit when
 * they are committed. 0, -ENOSPC or -EDQUOT. No round trip.
 */
int cfs_meta_claim_space(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 const struct cfs_attr *attr, uint64_t old_length, uint64_t new_length);
/* Releases the file's reservation, when none of its bytes wait for a commit. Never waits. */
void cfs_meta_release_space(struct cfs_meta *m, cfs_ino_t ino);
int cfs_meta_truncate(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t length,
		      struct cfs_attr *ret);
enum cfs_fallocate { /* numbers of fallocate(2) */
		     CFS_FALLOC_KEEP_SIZE = 0x01,
		     CFS_FALLOC_PUNCH_HOLE = 0x02,
		     CFS_FALLOC_ZERO_RANGE = 0x10,
};
int cfs_meta_fallocate(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, unsigned mode,
		       uint64_t off, uint64_t len, struct cfs_attr *ret);
struct cfs_copy_range {
	cfs_ino_t src, dst;
	uint64_t src_off, dst_off, len;
};
/* Copies by reference. *ret_copied: fewer bytes when the source ends before. */
int cfs_meta_copy_range(struct cfs_meta *m, const struct cfs_ctx *ctx,
			const struct cfs_copy_range *req, uint64_t *ret_copied,
			struct cfs_attr *ret_dst);
/*
 * Replaces the records of `head` behind the first `skipped` ones by one, `merged`. head: the first
 * head_n records of the list, as they were read. -EAGAIN: they have changed, and the new slice was
 * released.
 */
int cfs_meta_compact_chunk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			   uint32_t indx, const struct cfs_slice *head, size_t head_n,
			   size_t skipped, const struct cfs_slice *merged);
/* Releases a slice that was written but will never be committed. */
void cfs_meta_discard_slice(struct cfs_meta *m, uint64_t id, uint32_t size);

/* ---- extended attributes and ACL ---- */

/* Returns the length (also when size is 0), -ERANGE when size is too small, -ENODATA. */
ssize_t cfs_meta_getxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			  const char *name, void *buf, size_t size);
ssize_t cfs_meta_listxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, char *buf,
			   size_t size);
/* flags: XATTR_CREATE, XATTR_REPLACE. system.posix_acl_* is translated (volume-format section 10).
 */
int cfs_meta_setxattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		      const char *name, const void *value, size_t size, int flags);
int cfs_meta_removexattr(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 const char *name);

/* ---- locks ---- */

enum cfs_lock_type {
	CFS_LOCK_READ = 0,
	CFS_LOCK_WRITE = 1,
	CFS_LOCK_NONE = 2
}; /* plock encoding */
struct cfs_plock {
	uint32_t type; /* enum cfs_lock_type */
	uint32_t pid;
	uint64_t start, end; /* inclusive; EOF = INT64_MAX */
};
/*
 * wait: until granted, ctx->interrupted (-EINTR) or EDEADLK; no deadline, by contract of flock(2).
 * -EIO: the engine does not answer. When the owner has given up all its locks on the inode, or has
 * none that it knows of, this is repeated in the background as an unlock of all of them, until the
 * engine confirms it.
 */
int cfs_meta_flock(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
		   enum cfs_lock_type type, bool wait);
int cfs_meta_setlk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
		   const struct cfs_plock *lock, bool wait);
/* *lock becomes the first conflicting lock, or type NONE. */
int cfs_meta_getlk(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t owner,
		   struct cfs_plock *lock);
/* The owner was granted a lock of this kind under that session, and has not given it back. */
bool cfs_meta_holds_lock(struct cfs_meta *m, uint64_t sid, cfs_ino_t ino, uint64_t owner,
			 bool posix);
/*
 * For a successor process: locks that the owner may hold, and an unlock that the previous process
 * has kept.
 */
void cfs_meta_assume_lock(struct cfs_meta *m, cfs_ino_t ino, uint64_t owner, bool posix);
void cfs_meta_unlock_again(struct cfs_meta *m, cfs_ino_t ino, uint64_t owner, bool posix,
			   void *note);

/* ---- sessions, for status ---- */

struct cfs_session {
	uint64_t sid;
	int64_t expire_s; /* unix time */
	const char *info; /* JSON text, volume-format section 9; "" when absent */
};
typedef int (*cfs_session_fn)(void *arg, const struct cfs_session *s);
int cfs_meta_each_session(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_session_fn fn,
			  void *arg);
/* The current time for judging expiry: the earlier of the database's clock and this host's. */
int64_t cfs_meta_clock_s(struct cfs_meta *m);
/* The database's clock, which all clients share; this host's where it cannot be read. */
int64_t cfs_meta_shared_clock_s(struct cfs_meta *m);

/* ---- the path of an inode, for info ---- */

typedef int (*cfs_path_fn)(void *arg, const char *path);
/* Each name of the inode, also in the trash, as a path from the root ("/a/b"). */
int cfs_meta_each_path(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_path_fn fn,
		       void *arg);

/* ---- administration: fsck, gc, quota, config, clone, destroy ---- */

struct cfs_dir_stat {
	int64_t length, space, inodes;
};

enum cfs_quota_kind { CFS_QUOTA_DIR, CFS_QUOTA_USER, CFS_QUOTA_GROUP };
struct cfs_quota {
	enum cfs_quota_kind kind;
	uint64_t key;		       /* inode, uid or gid */
	int64_t max_space, max_inodes; /* <= 0 none (users, groups: -1) */
	int64_t used_space, used_inodes;
};

/*
 * Bracket a command that changes a volume without a session. The begin, after a successful load,
 * updates the schema and reads the quotas; the end writes batched usage. hooks: for
 * cfs_meta_settle().
 */
int cfs_meta_admin_begin(struct cfs_meta *m, const struct cfs_meta_hooks *hooks);
int cfs_meta_admin_end(struct cfs_meta *m);

/* Tables of the volume, independent of how the engine stores them. */
enum cfs_meta_table {
	CFS_TABLE_NODE,
	CFS_TABLE_EDGE,
	CFS_TABLE_CHUNK,
	CFS_TABLE_REF,	     /* slices with their reference counts */
	CFS_TABLE_DELAYED,   /* slices that compaction replaced, kept for the trash time */
	CFS_TABLE_DELFILE,   /* deleted files whose data is still there */
	CFS_TABLE_SUSTAINED, /* unlinked inodes that a session has open */
	CFS_TABLE_DETACHED,  /* tops of trees that are being cloned */
	CFS_TABLE_DIR_STAT,
	/* of interest to dump and load only */
	CFS_TABLE_SYMLINK,
	CFS_TABLE_XATTR,
	CFS_TABLE_PARENT, /* the directories of files whose attr.parent is 0 */
	CFS_TABLE_ACL,
	CFS_TABLE_COUNTER,
};
struct cfs_row {       /* pointers are valid during the callback */
	cfs_ino_t ino; /* all but REF, DELAYED, ACL and COUNTER */
	union {
		struct cfs_attr attr; /* NODE */
		struct {
			cfs_ino_t parent;
			const char *name; /* not terminated */
			size_t name_len;
			uint8_t type;
		} edge;
		struct { /* CHUNK; DELAYED: id and size of each slice, indx not used */
			uint32_t indx;
			bool damaged; /* not a list of records: slices is empty */
			const struct cfs_slice *slices;
			size_t n;
			int64_t deleted_s; /* DELAYED: since when */
		} list;
		struct {
			uint64_t id;
			uint32_t size;
			int64_t refs;
		} ref;
		struct {
			uint64_t length;
			int64_t when_s;
		} deleted;	 /* DELFILE */
		uint64_t sid;	 /* SUSTAINED */
		int64_t added_s; /* DETACHED */
		struct cfs_dir_stat stat;
		struct { /* not terminated */
			const char *target;
			size_t len;
		} symlink;
		struct {
			const char *name; /* not terminated */
			size_t name_len;
			const void *value;
			size_t value_len;
		} xattr;
		struct {
			cfs_ino_t dir;
			uint32_t names; /* that the file has in it */
		} parent;
		struct {
			uint32_t id;
			const void *rule; /* packed: the value of a field of the Redis hash */
			size_t len;
		} acl;
		struct {
			const char *name; /* as in SQL, and the value with its meaning there */
			int64_t value;
		} counter;
	};
};
/* Must not call the metadata. Non-zero ends the scan and is returned. */
typedef int (*cfs_row_fn)(void *arg, const struct cfs_row *row);
/*
 * Delivers every row that exists during the whole scan at least once, in any order and in constant
 * memory. Each page has its own deadline. 0: complete.
 */
int cfs_meta_scan(struct cfs_meta *m, enum cfs_meta_table table, cfs_row_fn fn, void *arg);
/* The chunks of a file that have a list, from index `first` on, ascending. Returns how many. */
struct cfs_chunk_len {
	uint32_t indx, records;
};
ssize_t cfs_meta_list_chunks(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			     uint32_t first, struct cfs_chunk_len ret[1024]);

/* Kinds of damage of an inode number and of the rows that name it. */
enum cfs_damage {
	CFS_DAMAGE_NLINK = 1 << 0,
	CFS_DAMAGE_PARENT = 1 << 1,
	CFS_DAMAGE_TYPE = 1 << 2,   /* a name gives another type */
	CFS_DAMAGE_NAME = 1 << 3,   /* names, but no inode; repaired: a directory is made again,
				     * other names go */
	CFS_DAMAGE_ORPHAN = 1 << 4, /* no name; removed when nlink is 0, else left alone */
	CFS_DAMAGE_LOST = 1 << 5,   /* entries of a directory that has neither name nor inode */
	CFS_DAMAGE_DATA = 1 << 6,   /* chunks of no inode; repaired: to be deleted */
	CFS_DAMAGE_STAT = 1 << 7,   /* dir_stats: space or inodes */
	CFS_DAMAGE_LENGTH = 1 << 8, /* dir_stats: length, which clients update approximately only */
	CFS_DAMAGE_XATTR = 1 << 9,  /* extended attributes of no inode; repaired: removed */
	/*
	 * Not a damage, but a repair on request, reported in `repaired`: a directory has no row of
	 * dir_stats. The row is made from its entries unless they are more than CFS_CHECK_ENTRIES.
	 * No client may have batched usage of the directory: it would be counted twice.
	 */
	CFS_CHECK_NO_STAT = 1 << 16,
};
#define CFS_CHECK_ENTRIES 100000

struct cfs_check {
	unsigned damage, repaired; /* enum cfs_damage */
	struct cfs_attr attr;	   /* as it was; nlink 0 and type 0 when there is none */
	uint32_t names;		   /* a repaired directory's or file's nlink follows from these */
	uint32_t nlink;		   /* what it should be */
	cfs_ino_t parent;
	struct cfs_dir_stat stat, want; /* CFS_DAMAGE_STAT, CFS_DAMAGE_LENGTH */
	uint64_t mark; /* with these two: the mark of the entries, as in struct cfs_sums */
};
/*
 * Checks one inode number. repair: the kinds of damage to repair in the same transaction. Without
 * repair, concurrent changes may disturb the answer.
 */
int cfs_meta_check_inode(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 unsigned repair, struct cfs_check *ret);
/*
 * The counters of the volume beside the sum of its inodes. Clients write some of their usage up to
 * 3 s after the change that caused it (volume-format section 10). A difference is damage only if
 * none of these values has changed for longer. The mark changes whenever an inode comes, goes or
 * gets another ctime.
 */
struct cfs_sums {
	int64_t counted_space, counted_inodes;
	int64_t space, inodes;
	uint64_t mark;
};
int cfs_meta_check_usage(struct cfs_meta *m, const struct cfs_ctx *ctx, struct cfs_sums *ret);
/* One inode's share of a mark; a mark is their sum. */
static inline uint64_t cfs_mark_of(cfs_ino_t ino, const struct cfs_attr *attr)
{
	return (ino ^ (uint64_t)attr->ctime.tv_sec * 1000000007 ^ (uint64_t)attr->ctime.tv_nsec) *
	       0x9E3779B97F4A7C15;
}
/*
 * Adds missing usage to the counters of the volume, to the statistics of a directory that has a
 * row, and to a quota's usage (an owner's row is created). Additions, so that concurrent updates by
 * others are kept.
 */
int cfs_meta_add_usage(struct cfs_meta *m, const struct cfs_ctx *ctx, int64_t space,
		       int64_t inodes);
int cfs_meta_add_dir_stat(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
			  const struct cfs_dir_stat *delta);
int cfs_meta_add_quota_usage(struct cfs_meta *m, const struct cfs_ctx *ctx,
			     const struct cfs_quota *delta);
/* Sets the references of a slice if they still are `have` (-1: no row). -EAGAIN: they are not. */
int cfs_meta_fix_refs(struct cfs_meta *m, const struct cfs_ctx *ctx, uint64_t slice, uint32_t size,
		      int64_t have, int64_t want);
/*
 * Reports locks of sessions that are gone, recorded at an inode or (ino 0) in the session's own
 * list. repair: removes each before fn is called, unless the session has come back.
 */
typedef int (*cfs_dead_lock_fn)(void *arg, cfs_ino_t ino, uint64_t sid, bool removed);
int cfs_meta_dead_locks(struct cfs_meta *m, const struct cfs_ctx *ctx, bool repair,
			cfs_dead_lock_fn fn, void *arg);
/* Forgets a slice that has no references, after its objects are gone. */
int cfs_meta_drop_slice(struct cfs_meta *m, const struct cfs_ctx *ctx, uint64_t slice,
			uint32_t size);
/* -ENODATA: the directory has no row, or the volume no statistics. */
int cfs_meta_get_dir_stat(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t dir,
			  struct cfs_dir_stat *ret);
/* Called before DirStats is switched on: outdated rows would be taken for current ones. */
int cfs_meta_clear_dir_stats(struct cfs_meta *m, const struct cfs_ctx *ctx);

/*
 * Removes what deletion has left: chunk lists of files deleted more than an hour ago, delayed
 * slices whose trash time is over, clones abandoned a day ago. Slices that lose their last
 * reference keep their rows and their objects.
 */
struct cfs_reaped {
	uint64_t files, delayed, clones;
};
int cfs_meta_reap(struct cfs_meta *m, struct cfs_reaped *ret);

typedef int (*cfs_quota_fn)(void *arg, const struct cfs_quota *q);
int cfs_meta_each_quota(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_quota_fn fn, void *arg);
/* Limits and usage, absolute. */
int cfs_meta_put_quota(struct cfs_meta *m, const struct cfs_ctx *ctx, const struct cfs_quota *q);
int cfs_meta_del_quota(struct cfs_meta *m, const struct cfs_ctx *ctx, enum cfs_quota_kind kind,
		       uint64_t key);

/*
 * Copies a file or tree by reference to parent/name, which must not exist, and makes it visible
 * when it is complete. who: the caller; each step gets its own deadline. step: called after each
 * inode with the number copied so far; a non-zero return ends the clone and removes the copy.
 */
struct cfs_clone {
	cfs_ino_t src, parent;
	const char *name;
	size_t name_len;
	bool preserve; /* owner and times too */
	int (*step)(void *arg, uint64_t done);
	void *arg;
};
int cfs_meta_clone(struct cfs_meta *m, const struct cfs_ctx *who, const struct cfs_clone *req,
		   struct cfs_entry *ret);

/* ---- dump and load ---- */

/*
 * Attributes as bytes (volume-format section 4), for the Redis engine and binary dumps. Encoding
 * returns the length; decoding -EINVAL when it is too short.
 */
#define CFS_ATTR_BYTES_MAX 81
size_t cfs_attr_encode(const struct cfs_attr *attr, uint8_t out[CFS_ATTR_BYTES_MAX]);
int cfs_attr_decode(const void *in, size_t len, struct cfs_attr *ret);

/* The setting as it is stored, secrets sealed; malloc'ed. After a successful load. */
int cfs_meta_setting_text(struct cfs_meta *m, char **ret);
/*
 * Makes a volume in an empty database, which no client mounts before cfs_meta_load_end(). -EEXIST:
 * the database is not empty. restart: removes the remains of an unfinished load first.
 */
int cfs_meta_load_begin(struct cfs_meta *m, bool trash, bool restart, char err[256]);
/* Rows of one table, any number of them; the contract of put_rows in meta/engine/engine.h. */
int cfs_meta_put_rows(struct cfs_meta *m, enum cfs_meta_table table, const struct cfs_row *rows,
		      size_t n);
/*
 * Records a session that ended long ago: the first client removes the unlinked inodes that it had
 * open.
 */
int cfs_meta_put_ended_session(struct cfs_meta *m, uint64_t sid);
/*
 * Writes the setting, as stored text, which makes the database a volume. Everything is durable when
 * this returns 0.
 */
int cfs_meta_load_end(struct cfs_meta *m, const char *setting, char err[256]);
/* Instead of load_end: empties the database again, unless another load has begun in it. */
int cfs_meta_load_abort(struct cfs_meta *m);

/* Removes everything the volume has in the metadata engine. */
int cfs_meta_destroy_volume(struct cfs_meta *m, const struct cfs_ctx *ctx);

/* ---- statistics ---- */

enum cfs_meta_op {
#define CFS_META_OPS(X)                                                                            \
	X(lookup)                                                                                  \
	X(getattr)                                                                                 \
	X(open)                                                                                    \
	X(setattr)                                                                                 \
	X(readlink)                                                                                \
	X(mknod)                                                                                   \
	X(link)                                                                                    \
	X(unlink)                                                                                  \
	X(rmdir)                                                                                   \
	X(rename)                                                                                  \
	X(readdir)                                                                                 \
	X(read_chunk)                                                                              \
	X(write)                                                                                   \
	X(truncate)                                                                                \
	X(fallocate)                                                                               \
	X(copy_range) X(compact) X(xattr) X(lock) X(session) X(counter) X(delete) X(other)
#define X(name) CFS_META_OP_##name,
	CFS_META_OPS(X)
#undef X
		CFS_META_OP_COUNT,
};
struct cfs_meta_stats {
	struct {
		uint64_t calls, errors, round_trips, time_ns;
	} op[CFS_META_OP_COUNT];
	uint64_t retries;
	uint64_t log_bytes; /* of SQLite's write-ahead log, after this mount's last commit */
};
void cfs_meta_stats(struct cfs_meta *m, struct cfs_meta_stats *ret);
const char *cfs_meta_op_name(enum cfs_meta_op op);

/* ---- advice on the database's settings, for `cachefs doctor` ---- */

enum cfs_advice {
	CFS_ADVICE_OK,
	CFS_ADVICE_NOTE,
	CFS_ADVICE_CHANGE, /* text says what to change */
};
/* what: "eviction policy"; both are valid during the call. fn calls no cfs_meta function. */
typedef void (*cfs_advice_fn)(void *arg, enum cfs_advice level, const char *what, const char *text);
/* -ENOTSUP: the engine gives no advice. Changes nothing. */
int cfs_meta_advise(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_advice_fn fn, void *arg);

#endif
