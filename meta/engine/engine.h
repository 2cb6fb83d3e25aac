/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A metadata engine: a table of whole operations. Each operation is one atomic step. The engine
 * retries conflicts (busy, deadlock, lost connection with a known outcome) until ctx->deadline, and
 * then returns -ETIMEDOUT.
 *
 * Before the call, the core has checked names, resolved "." and "..", refused special names, trash
 * names and changes of read-only mounts, allocated ids, and checked quotas in memory. The engine
 * checks inside its transaction, with the functions of rules.h: existence, type, emptiness, inode
 * flags, sticky bit and (ctx->check) permissions. These need rows that it reads anyway.
 *
 * Usage: a struct cfs_usage describes every change of space and inodes. An engine with
 * `inline_usage` also writes it (counters, dir_stats) in the same transaction; for other engines
 * the core writes it in batches. The core always writes the usage of directory, user and group
 * quotas in batches.
 *
 * Outputs are written only on success unless a member says otherwise.
 */
#ifndef CFS_META_ENGINE_H
#define CFS_META_ENGINE_H

#include <cachefs/records.h>
#include <stddef.h>

#include "base/text/url.h"
#include "meta/engine/host.h"

struct cfs_engine;

/*
 * Limit of every counter of bytes or inodes, also without another limit. Counters of all engines have
 * 63 bits; the other half is for what other mounts add at the same moment.
 */
#define CFS_USAGE_MAX (INT64_MAX / 2)

/*
 * Left out when a database may have forgotten numbers that it has given: more than it can have
 * forgotten. Slice ids name cached blocks, which outlive mounts: theirs also covers a restored backup.
 */
#define CFS_INODE_GAP	(INT64_C(1) << 24)
#define CFS_SLICE_GAP	(INT64_C(1) << 32)
#define CFS_SESSION_GAP INT64_C(1024)

/*
 * The changes of usage by an operation. dirs[]: counts the direct entries of a directory
 * (dir_stats). No limit holds for names, each of which counts the file's whole length: an engine
 * removes statistics that would leave +-CFS_USAGE_MAX, and queries compute them.
 */
struct cfs_usage {
	int64_t space, inodes; /* of the volume */
	struct cfs_usage_dir {
		cfs_ino_t dir;
		int64_t length, space, inodes;
	} dirs[8]; /* of a file with more names, fsck repairs the statistics */
	unsigned n_dirs;
	/*
	 * Usage of the inode's owner. A chown reports the previous owner and the inode's whole
	 * size; the core moves that usage to the owner in the resulting attributes.
	 */
	uint32_t uid, gid;
	int64_t owner_space, owner_inodes;
};
void cfs_usage_add_dir(struct cfs_usage *u, cfs_ino_t dir, int64_t length, int64_t space,
		       int64_t inodes);

/* A script on Redis takes some thousand arguments at most. */
enum { CFS_QUOTAS_AT_ONCE = 1000 };

/* The receiver of advice. */
struct cfs_adviser {
	cfs_advice_fn fn;
	void *arg;
};

struct cfs_engine_conf {
	const struct cfs_url *url;
	const struct cfs_meta_conf *meta;
	struct cfs_engine_host *host; /* outlives the engine */
};

/* A request of unlink and rmdir; trash is 0 for immediate deletion. */
struct cfs_engine_remove {
	bool dir; /* rmdir; else unlink */
	cfs_ino_t parent;
	const char *name;
	size_t name_len;
	cfs_ino_t trash; /* hour directory */
};

static inline enum cfs_meta_op cfs_remove_op(const struct cfs_engine_remove *req)
{
	return req->dir ? CFS_META_OP_rmdir : CFS_META_OP_unlink;
}

struct cfs_engine_rename {
	struct cfs_rename r;
	cfs_ino_t trash; /* for the victim */
};

/* An ACL rule (volume-format section 10). */
struct cfs_acl_entry {
	uint32_t id;
	uint16_t perm;
};
struct cfs_acl {
	uint16_t owner, group, mask, other; /* 0xFFFF: unset */
	uint32_t n_users, n_groups;
	struct cfs_acl_entry *users, *groups; /* owned */
};

/* A change of the times of a directory: see touch_dirs. */
struct cfs_dir_time {
	cfs_ino_t dir;
	struct timespec time;  /* of the last change of its names */
	struct timespec until; /* the largest ctime that may be overwritten; >= time */
};

struct cfs_dead_slice {
	uint64_t id;
	uint32_t size;
};

/* The position of a scan, in numbers of the engine. */
struct cfs_scan_pos {
	uint64_t a, b, c, d;
};

/* Gets one name of an inode; name is valid during the callback. */
typedef int (*cfs_engine_parent_fn)(void *arg, cfs_ino_t parent, const char *name, size_t len);
typedef int (*cfs_engine_slice_fn)(void *arg, uint64_t id, uint32_t size);
typedef int (*cfs_engine_delfile_fn)(void *arg, cfs_ino_t ino, uint64_t length, int64_t when_s);
typedef int (*cfs_engine_quota_fn)(void *arg, const struct cfs_quota *q);

#define CFS_PUT_ROWS 1024

#define CFS_CTX const struct cfs_ctx *ctx
#define CFS_ENG struct cfs_engine *e

/* The result of one commit of a group, as commit_slice returns it. */
struct cfs_committed {
	int err;
	unsigned records;
	struct cfs_usage usage;
};

struct cfs_engine_link {
	cfs_ino_t ino, parent;
	const char *name;
	size_t len;
	uint64_t sid; /* the session that keeps the inode without a name; 0: it has a name */
};

struct cfs_engine_ops {
	const char *name; /* "sqlite3" */
	bool inline_usage;

	/* -- life and volume -- */
	int (*open)(const struct cfs_engine_conf *conf, struct cfs_engine **ret, char err[256]);
	void (*close)(CFS_ENG);
	/*
	 * Creates schema, counters, root and (trash) the trash directory in an empty database.
	 * -EEXIST: the database contains a volume.
	 */
	int (*create)(CFS_ENG, CFS_CTX, const char *setting, bool trash);
	/*
	 * Adds the tables, indexes and columns of a newer schema. Called once by a writable
	 * session.
	 */
	int (*upgrade)(CFS_ENG, CFS_CTX);
	/* *ret is malloc'ed text. -ENODATA: there is no volume. */
	int (*get_setting)(CFS_ENG, CFS_CTX, char **ret);
	int (*put_setting)(CFS_ENG, CFS_CTX, const char *setting);
	/* Makes acknowledged changes durable. NULL: the server's settings decide. */
	int (*sync)(CFS_ENG, CFS_CTX);
	/*
	 * Called before objects are deleted, and may be slow. When it returns 0, all changes that
	 * the server has acknowledged to any client survive a crash of its host. NULL: sync does
	 * that.
	 */
	int (*settle)(CFS_ENG, CFS_CTX);
	/* Removes all data of the volume. */
	int (*destroy)(CFS_ENG, CFS_CTX);

	/* -- counters: names and meaning of volume-format section 3 (SQL) -- */
	/*
	 * Adds n atomically. *ret_old: the first of n allocated ids. A server that may have
	 * forgotten ids leaves out CFS_*_GAP of them.
	 */
	int (*add_counter)(CFS_ENG, CFS_CTX, const char *name, int64_t n, int64_t *ret_old);
	int (*get_counters)(CFS_ENG, CFS_CTX, int64_t *ret_used_space, int64_t *ret_inodes);
	/*
	 * Called before an inode is made and before a slice is committed; does not block. -ENOSPC:
	 * the rest of the database's disk is kept for removals. NULL: a server has its own limits.
	 */
	int (*room)(CFS_ENG);
	/* The server's wall clock; without a server, the clock of this host. */
	int (*clock)(CFS_ENG, CFS_CTX, int64_t *ret_s);
	/*
	 * 1: the job is due, and the counter was set to `now`. It is due when the counter was <=
	 * now - interval, or so far ahead that a host with a wrong clock has set it. 0: not due.
	 */
	int (*claim_job)(CFS_ENG, CFS_CTX, const char *name, int64_t now_s, int64_t interval_s);

	/* -- sessions -- */
	int (*new_session)(CFS_ENG, CFS_CTX, const char *info, int64_t expire_s, uint64_t *ret_sid);
	/*
	 * Updates the expiry. 1: the session has ended, another client has taken its locks. The
	 * record is written again, so that what requests under way leave under it is cleaned up
	 * when it expires.
	 */
	int (*refresh_session)(CFS_ENG, CFS_CTX, uint64_t sid, const char *info, int64_t expire_s);
	/* Replaces info and expiry in the session's record. -ENOENT: there is none, or it has ended. */
	int (*resume_session)(CFS_ENG, CFS_CTX, uint64_t sid, const char *info, int64_t expire_s);
	/*
	 * Ends a session that expires before before_s (INT64_MAX: any, also without a record).
	 * Marks the record as ended (expiry 0) and removes the locks, in one transaction that looks
	 * at the expiry; then ends sustained inodes, then removes the record. 1: it does not expire
	 * by then, or there is none; nothing is changed.
	 */
	int (*clean_session)(CFS_ENG, CFS_CTX, uint64_t sid, int64_t before_s);
	/* Sessions with expire < before_s (0: all), at most limit. */
	int (*each_session)(CFS_ENG, CFS_CTX, int64_t before_s, size_t limit, cfs_session_fn fn,
			    void *arg);

	/* -- names and attributes -- */
	int (*lookup)(CFS_ENG, CFS_CTX, cfs_ino_t parent, const char *name, size_t len,
		      struct cfs_entry *ret);
	int (*getattr)(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct cfs_attr *ret);
	int (*setattr)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t set, const struct cfs_attr *in,
		       struct cfs_attr *ret, struct cfs_usage *ret_usage);
	/* Changes atime only. */
	int (*touch_atime)(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct timespec atime);
	int (*readlink)(CFS_ENG, CFS_CTX, cfs_ino_t ino, char buf[CFS_SYMLINK_MAX + 1]);
	/*
	 * Changes each directory that has a ctime <= until and no mtime in (time, until]: mtime =
	 * time, and ctime = time unless it is later. Compares microseconds. Other directories, and
	 * removed ones, stay unchanged. Never waits for the lock of one directory while it holds
	 * that of another.
	 */
	int (*touch_dirs)(CFS_ENG, CFS_CTX, const struct cfs_dir_time *v, size_t n);
	/*
	 * Operations on names update the times of a directory only with its nlink. Otherwise they
	 * do not write its record, and the core stores the times by touch_dirs.
	 */
	/*
	 * ino: allocated by the core. -EEXIST: *ret is the existing entry. Without a name: as
	 * cfs_meta_make_unnamed; adds a sustained entry of this session instead.
	 */
	int (*mknod)(CFS_ENG, CFS_CTX, const struct cfs_mknod *req, cfs_ino_t ino,
		     struct cfs_entry *ret, struct cfs_usage *ret_usage);
	/*
	 * With req->sid as cfs_meta_link_unnamed. Removes the sustained entry in the same
	 * transaction, because JuiceFS deletes the sustained inodes of a dead session without
	 * checking their links.
	 */
	int (*link)(CFS_ENG, CFS_CTX, const struct cfs_engine_link *req, struct cfs_attr *ret,
		    struct cfs_usage *ret_usage);
	/* unlink and rmdir */
	int (*remove)(CFS_ENG, CFS_CTX, const struct cfs_engine_remove *req,
		      struct cfs_removed *ret, struct cfs_usage *ret_usage);
	int (*rename)(CFS_ENG, CFS_CTX, const struct cfs_engine_rename *req,
		      struct cfs_renamed *ret, struct cfs_usage *ret_usage);
	/* As cfs_meta_readdir. */
	int (*readdir)(CFS_ENG, CFS_CTX, cfs_ino_t dir, bool attrs, size_t limit,
		       struct cfs_cursor *cursor, cfs_dirent_fn fn, void *arg);
	/*
	 * Finds the hour directory of that name in the trash ("": the trash itself); creates it and
	 * the trash when missing. A new hour directory counts in the usage of the volume and of its
	 * owner like any inode; the trash itself does not count.
	 */
	int (*trash_dir)(CFS_ENG, CFS_CTX, const char *name, cfs_ino_t *ret,
			 struct cfs_usage *ret_usage);
	int (*each_parent)(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_engine_parent_fn fn, void *arg);

	/* -- data -- */
	/* *ret: the malloc'ed records; returns their number. */
	ssize_t (*read_chunk)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t indx,
			      struct cfs_slice **ret);
	/* As cfs_meta_open_file. */
	int (*open_file)(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct cfs_attr *ret,
			 struct cfs_slice **ret_recs, ssize_t *ret_n);
	/*
	 * As cfs_meta_read_heads; the results are zero before. After an error the core frees them.
	 */
	int (*read_heads)(CFS_ENG, CFS_CTX, struct cfs_head *heads, size_t n);
	/*
	 * *ret_records: the number of records of the chunk afterwards. -EINPROGRESS: the answer to
	 * an attempt was lost, and find_commit finds the outcome. -EEXIST: the id of the slice is
	 * in use; with `repeated` this is -EINPROGRESS too.
	 */
	int (*commit_slice)(CFS_ENG, CFS_CTX, struct cfs_commit *c, unsigned *ret_records,
			    struct cfs_usage *ret_usage);
	/*
	 * Commits of several files in one exchange, none of them `repeated`; each as by
	 * commit_slice. Returns how many, from the first on, have a result in `ret`. The others are
	 * left to commit_slice, one by one: they were not made, or the engine has set `repeated`.
	 * Optional: without it all are left to commit_slice.
	 */
	size_t (*commit_group)(CFS_ENG, CFS_CTX, struct cfs_commit *const *commits, size_t n,
			       struct cfs_committed *ret);
	/*
	 * Finds the outcome of a commit whose answer was lost. 1: it was executed; 0: the metadata
	 * has no trace of it, because it was not executed or the slice was released since.
	 * released: the caller knows that it was released.
	 */
	int (*find_commit)(CFS_ENG, CFS_CTX, struct cfs_commit *c, bool released,
			   struct cfs_usage *ret_usage);
	int (*truncate)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t length, struct cfs_attr *ret,
			struct cfs_usage *ret_usage);
	int (*fallocate)(CFS_ENG, CFS_CTX, cfs_ino_t ino, unsigned mode, uint64_t off, uint64_t len,
			 struct cfs_attr *ret, struct cfs_usage *ret_usage);
	int (*copy_range)(CFS_ENG, CFS_CTX, const struct cfs_copy_range *req, uint64_t *ret_copied,
			  struct cfs_attr *ret_dst, struct cfs_usage *ret_usage);
	/*
	 * As cfs_meta_compact_chunk. -EAGAIN: the list is unchanged, and the merged slice is
	 * recorded without reference. With trash, the replaced slices become a delayed entry;
	 * without trash, dead() gets those that have no reference left.
	 */
	int (*compact_chunk)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t indx,
			     const struct cfs_slice *head, size_t head_n, size_t skipped,
			     const struct cfs_slice *merged, bool trash, cfs_engine_slice_fn dead,
			     void *arg);

	/* -- deletion (volume-format section 9) -- */
	/*
	 * After the last close: turns the inode's sustained entry into a delfile. *ret_length: of
	 * the file; UINT64_MAX when it has no chunk and needs no delfile.
	 */
	int (*end_sustained)(CFS_ENG, CFS_CTX, uint64_t sid, cfs_ino_t ino, uint64_t *ret_length,
			     struct cfs_usage *ret_usage);
	int (*each_delfile)(CFS_ENG, CFS_CTX, int64_t before_s, size_t limit,
			    cfs_engine_delfile_fn fn, void *arg);
	/*
	 * Removes one chunk list of a deleted file, and its references. After the commit, dead()
	 * gets the slices that have no reference left. 1: the file has no more chunks; 0: call
	 * again.
	 */
	int (*delete_chunk)(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_engine_slice_fn dead, void *arg);
	int (*drop_delfile)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t length);
	/* Delivers slices without references, whose objects must be deleted. */
	int (*each_dead_slice)(CFS_ENG, CFS_CTX, size_t limit, cfs_engine_slice_fn fn, void *arg);
	/*
	 * Records a stored slice that will never be committed as one without references, for
	 * each_dead_slice. -EBUSY: it was committed.
	 */
	int (*orphan_slice)(CFS_ENG, CFS_CTX, uint64_t id, uint32_t size);
	/* Removes the record of a slice without references, after its objects. */
	int (*drop_slice)(CFS_ENG, CFS_CTX, uint64_t id, uint32_t size);
	/*
	 * Expires one delayed entry (delslices) older than before_s: drops its references; dead()
	 * gets the slices that have no reference left. 1: there is no such entry. Damaged entries
	 * stay; -EIO: only such entries are left.
	 */
	int (*expire_delayed)(CFS_ENG, CFS_CTX, int64_t before_s, cfs_engine_slice_fn dead,
			      void *arg);

	/* -- extended attributes, ACL -- */
	/* *ret is malloc'ed; returns the length. */
	ssize_t (*getxattr)(CFS_ENG, CFS_CTX, cfs_ino_t ino, const char *name, void **ret);
	/* *ret: malloc'ed names, each with a NUL behind it; returns the length. */
	ssize_t (*listxattr)(CFS_ENG, CFS_CTX, cfs_ino_t ino, char **ret);
	int (*setxattr)(CFS_ENG, CFS_CTX, cfs_ino_t ino, const char *name, const void *value,
			size_t size, int flags);
	int (*removexattr)(CFS_ENG, CFS_CTX, cfs_ino_t ino, const char *name);
	/* Caller frees users and groups. */
	int (*get_acl)(CFS_ENG, CFS_CTX, uint32_t id, struct cfs_acl *ret);
	/* Finds the rule with this content, or stores it. */
	int (*put_acl)(CFS_ENG, CFS_CTX, const struct cfs_acl *rule, uint32_t *ret_id);
	/* Sets the id of a rule (0: none), and the mode. */
	int (*set_acl_id)(CFS_ENG, CFS_CTX, cfs_ino_t ino, bool is_default, uint32_t id,
			  int mode /* -1: keep */, struct cfs_attr *ret);

	/* -- locks: one attempt, -EAGAIN on conflict -- */
	int (*flock)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t sid, uint64_t owner,
		     enum cfs_lock_type type);
	int (*setlk)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t sid, uint64_t owner,
		     const struct cfs_plock *lock);
	/*
	 * *lock becomes the first conflicting lock of another owner, whose session and id are
	 * returned.
	 */
	int (*getlk)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint64_t sid, uint64_t owner,
		     struct cfs_plock *lock, uint64_t *ret_sid, uint64_t *ret_owner);

	/* -- dir stats and quotas -- */
	int (*get_dir_stat)(CFS_ENG, CFS_CTX, cfs_ino_t dir,
			    struct cfs_dir_stat *ret); /* -ENODATA */
	/*
	 * Adds batched usage to existing rows.
	 *
	 * mark: the session's info with a member that is unique to this write, or NULL. An engine
	 * that may lose the answer to a commit stores it in the session's record, in the same
	 * transaction. When the record has this mark already, the write changes nothing.
	 */
	int (*add_usage)(CFS_ENG, CFS_CTX, const char *mark, int64_t space, int64_t inodes,
			 const struct cfs_usage_dir *dirs, size_t n);
	int (*each_quota)(CFS_ENG, CFS_CTX, cfs_engine_quota_fn fn, void *arg);
	int (*put_quota)(CFS_ENG, CFS_CTX,
			 const struct cfs_quota *q); /* limits and usage, absolute */
	int (*del_quota)(CFS_ENG, CFS_CTX, enum cfs_quota_kind kind, uint64_t key);
	/*
	 * Adds to the usage of at most CFS_QUOTAS_AT_ONCE quotas, in the given order (the caller
	 * sorts them, against deadlocks). mark: as for add_usage.
	 */
	int (*add_quota_usage)(CFS_ENG, CFS_CTX, const char *mark, const struct cfs_quota *deltas,
			       size_t n);

	/* -- clone -- */
	/* Copies one inode (attributes, xattrs, symlink, chunks with references) as `ino` under
	 * parent/name; name NULL: detached. */
	int (*clone_ino)(CFS_ENG, CFS_CTX, cfs_ino_t src, cfs_ino_t ino, cfs_ino_t parent,
			 const char *name, size_t len, bool preserve, struct cfs_entry *ret,
			 struct cfs_usage *ret_usage);
	int (*attach)(CFS_ENG, CFS_CTX, cfs_ino_t ino, cfs_ino_t parent, const char *name,
		      size_t len, struct cfs_usage *ret_usage);

	/* Removes a detached inode without entries; a file becomes a delfile. */
	int (*drop_detached)(CFS_ENG, CFS_CTX, cfs_ino_t ino, struct cfs_usage *ret_usage);

	/* -- administration; contracts as the cfs_meta function of that name -- */
	/*
	 * Delivers one page of a table behind *pos, and advances it; zeros: the beginning. 1: the
	 * end.
	 */
	int (*scan)(CFS_ENG, CFS_CTX, enum cfs_meta_table table, struct cfs_scan_pos *pos,
		    cfs_row_fn fn, void *arg);
	ssize_t (*list_chunks)(CFS_ENG, CFS_CTX, cfs_ino_t ino, uint32_t first,
			       struct cfs_chunk_len ret[1024]);
	int (*check_inode)(CFS_ENG, CFS_CTX, cfs_ino_t ino, unsigned repair, struct cfs_check *ret,
			   struct cfs_usage *ret_usage);
	/* Sums in one consistent snapshot, or with a mark that no other call returns. */
	int (*check_usage)(CFS_ENG, CFS_CTX, struct cfs_sums *ret);
	int (*fix_refs)(CFS_ENG, CFS_CTX, uint64_t id, uint32_t size, int64_t have, int64_t want);
	int (*clear_dir_stats)(CFS_ENG, CFS_CTX);
	/*
	 * The opposite of scan, for load: writes n rows (at most CFS_PUT_ROWS) of one table, in as
	 * few round trips as possible and, where the engine can, atomically. No client uses the
	 * volume yet; create() has run. The rows are those that scan of the same table delivers,
	 * except:
	 *	NODE	overwrites root and trash, which create() has made
	 *	REF	adds refs to the count of the slice; creates a missing row
	 *	PARENT	does nothing on SQL, where edges lead from an inode to its directories
	 *	EDGE	writes only the entry; nlink, parent, PARENT, DIR_STAT and counters have
	 *		rows of their own
	 *	COUNTER	sets the value, by the name and meaning in SQL
	 *	ACL	has the given id; ids that are allocated later are larger
	 * DELAYED and DETACHED do not occur. put_quota writes quotas, refresh_session sessions.
	 */
	int (*put_rows)(CFS_ENG, CFS_CTX, enum cfs_meta_table table, const struct cfs_row *rows,
			size_t n);

	/* -- changelog housekeeping -- */
	int (*trim_changelog)(CFS_ENG, CFS_CTX, int64_t before_s, int64_t max_lines);

	/*
	 * -- records of cachefs itself: as the cfs_meta function of that name --
	 * Other clients do not read them (volume-format section 16, rules 5 and 6). On SQL they are
	 * in a table {cachefs_record}, which the first put creates; on Redis in a hash
	 * "zcachefs:record:TABLE".
	 */
	int (*put_record)(CFS_ENG, CFS_CTX, const char *key, const void *value, size_t len,
			  bool fresh);
	int (*swap_record)(CFS_ENG, CFS_CTX, const char *key, const void *old, size_t old_len,
			   const void *value, size_t len);
	int (*drop_record)(CFS_ENG, CFS_CTX, const char *key);
	int (*get_record)(CFS_ENG, CFS_CTX, const char *key, cfs_record_fn fn, void *arg);
	int (*each_record)(CFS_ENG, CFS_CTX, const char *table, cfs_record_fn fn, void *arg);

	/* As cfs_meta_advise, with the functions below. NULL: -ENOTSUP. */
	int (*advise)(CFS_ENG, CFS_CTX, const struct cfs_adviser *to);
	/* As cfs_meta_dead_locks. NULL: the end of a session removes all its locks. */
	int (*dead_locks)(CFS_ENG, CFS_CTX, bool repair, cfs_dead_lock_fn fn, void *arg);
};

/*
 * password.c: the password of the environment, for a URL that has none: META_PASSWORD, else the
 * first line of META_PASSWORD_FILE, without blanks around it. *ret stays NULL when there is none.
 * -EACCES: the file cannot be read; err: one line.
 */
int cfs_engine_password(char **ret, char err[256]);

/* advice.c: messages that several engines give */
__attribute__((format(printf, 4, 5))) void cfs_advise(const struct cfs_adviser *to,
						      enum cfs_advice level, const char *what,
						      const char *fmt, ...);
/* there_us: the server's wall clock, read at some time after `before`. */
void cfs_advise_clock(const struct cfs_adviser *to, int64_t there_us, struct timespec before);
void cfs_advise_connections(const struct cfs_adviser *to, int64_t used, int64_t max);

#undef CFS_CTX
#undef CFS_ENG

/* Every engine embeds this first. */
struct cfs_engine {
	const struct cfs_engine_ops *ops;
	struct cfs_engine_host *host;
};

/*
 * The engine that is built in. Other engines are modules (base/module.h) whose table is a struct
 * cfs_engine_ops; they use the functions of base and meta in the program.
 */
extern const struct cfs_engine_ops cfs_engine_sqlite;

/*
 * The members of struct cfs_engine_ops that every engine has, for declarations and tables:
 * X(member). NAME_OPS are those for which an engine on SQL may have an optimised implementation.
 */
/* clang-format off */
#define CFS_ENGINE_BASE_OPS(X) \
	X(create) X(upgrade) X(get_setting) X(put_setting) X(destroy) X(add_counter) \
	X(get_counters) X(clock) X(claim_job) X(new_session) X(refresh_session) X(resume_session) \
	X(clean_session) X(each_session) X(getattr) X(readlink) X(trash_dir) X(each_parent) \
	X(read_chunk) X(open_file) X(read_heads) X(find_commit) X(truncate) X(fallocate) X(copy_range) X(compact_chunk) \
	X(end_sustained) X(each_delfile) X(delete_chunk) X(drop_delfile) X(each_dead_slice) X(orphan_slice) \
	X(drop_slice) X(expire_delayed) X(getxattr) X(listxattr) X(setxattr) \
	X(removexattr) X(get_acl) X(put_acl) X(set_acl_id) X(flock) X(setlk) X(getlk) \
	X(get_dir_stat) X(add_usage) X(each_quota) X(put_quota) X(del_quota) \
	X(add_quota_usage) X(clone_ino) X(attach) X(drop_detached) X(scan) X(put_rows) \
	X(list_chunks) X(check_inode) X(check_usage) X(fix_refs) X(clear_dir_stats) \
	X(trim_changelog) X(touch_dirs) X(put_record) X(swap_record) \
	X(drop_record) X(get_record) X(each_record)
#define CFS_ENGINE_NAME_OPS(X) \
	X(lookup) X(setattr) X(touch_atime) X(mknod) X(link) X(remove) X(rename) \
	X(readdir) X(commit_slice)
/* clang-format on */
#define CFS_ENGINE_OPS(X) CFS_ENGINE_BASE_OPS(X) CFS_ENGINE_NAME_OPS(X)

/* Declares function `name` with the type of the member. */
#define CFS_ENGINE_DECLARE(name, member) __typeof__(*((struct cfs_engine_ops *)NULL)->member) name

#endif
