/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file system as applications see it: names, attributes and open files of one mount, with the
 * caches in front of metadata and data. It knows nothing of FUSE.
 *
 * Every function may be called from any thread, returns 0 (or a count) or a negative errno, and
 * returns before ctx->deadline, unless it waits for a file lock. The caller makes ctx with
 * cfs_vfs_ctx(), once per request.
 *
 * Inode numbers are the volume's; CFS_ROOT_INO means the root of the mount, whatever inode of the
 * volume that is (subdirectory mounts). Names come with their length and need no terminator.
 *
 * Handles are table indices with a generation, never pointers and never 0: a stale or forged one is
 * -EBADF. Releasing a handle while another call uses it is the caller's mistake (the kernel never
 * does it).
 */
#ifndef CFS_VFS_H
#define CFS_VFS_H

#include <cachefs/data.h>
#include <cachefs/handoff.h>
#include <cachefs/meta.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/metric.h"

struct cfs_vfs;

/* Inode numbers of special files (.control, .stats, ...); never stored in the volume. */
#define CFS_SPECIAL_INO	    ((cfs_ino_t)0x7FFFFFFF00000001ULL)
#define CFS_SPECIAL_INO_END ((cfs_ino_t)0x7FFFFFFF00000010ULL)

struct cfs_vfs_conf {
	struct cfs_meta *meta; /* all pointers here are borrowed */
	struct cfs_data *data;
	struct cfs_pool *pool;
	const struct cfs_metrics *metrics; /* of all layers, including this one */
	struct cfs_handoff *handoff;	   /* records the open handles; may be NULL */

	const char *build; /* the program's build, for its metrics; NULL: none */
	cfs_ino_t root;	   /* root of a subdirectory mount; 0: the volume's */
	bool read_only;
	bool hide_internal; /* listings do not show special files */
	/*
	 * Extended attributes that are not supported, which is told without a round trip. no_xattr:
	 * all but ACLs. Else those in "security." that are not enabled here.
	 */
	bool no_xattr;
	bool security_xattr; /* all of "security." */
	bool capability_xattr, selinux_xattr;
	enum cfs_atime atime;
	/*
	 * Maps requests of all users, or of root only, to another user, and checks that user's
	 * permissions. check_permissions: checks those of every user, because the kernel does not.
	 */
	struct cfs_vfs_squash {
		bool on;
		uint32_t uid, gid;
	} squash_all, squash_root;
	bool check_permissions;
	uint64_t attr_timeout_ms, entry_timeout_ms, dir_entry_timeout_ms; /* 0: never cached */
	uint64_t absent_timeout_ms; /* of names that do not exist */
	/* A close starts the commit of the file and does not wait for it. */
	bool commit_later;
	uint64_t io_timeout_ms; /* deadline of one request; 0: 60 000 */
	uint32_t uid, gid;	/* owner of the special files */

	/*
	 * Answers a request that was written to .control; *ret is malloc'ed. NULL: there is no such
	 * file. Called on the thread that reads the answer. arg is control_arg.
	 */
	int (*control)(void *arg, const struct cfs_ctx *ctx, const char *req, size_t len,
		       char **ret, size_t *ret_len);
	void *control_arg;
	/* The text of .config, malloc'ed. NULL: there is no such file. */
	int (*config)(void *arg, char **ret, size_t *ret_len);
	void *config_arg;
	/*
	 * Requests that take longer are logged, and again after each such period; 0: never. stuck:
	 * called on a background thread after a request was logged. May be NULL.
	 */
	uint64_t watchdog_ms;
	void (*stuck)(void *arg);
	void *stuck_arg;
	/* The volume is gone: the mount should end. May be NULL. */
	void (*lost)(void *arg, const char *reason);
	void *lost_arg;
	/* The volume's setting was changed. On a background thread. May be NULL. */
	void (*reloaded)(void *arg, const struct cfs_setting *s);
	void *reloaded_arg;
};

int cfs_vfs_create(const struct cfs_vfs_conf *conf, struct cfs_vfs **ret);
/*
 * The callbacks for cfs_meta_start(). Valid until cfs_vfs_destroy(), so the end of a mount is: stop
 * serving, cfs_vfs_flush(), cfs_meta_stop(), cfs_vfs_destroy(), then the data layer.
 */
struct cfs_meta_hooks cfs_vfs_hooks(struct cfs_vfs *v);
/*
 * The node ids of the files that are open for writing, as an array that the caller frees; one is in
 * it as often as it is open. Returns their number, or -ENOMEM.
 */
ssize_t cfs_vfs_open_for_writing(struct cfs_vfs *v, cfs_ino_t **ret);
/* Closes all handles and commits their writes. 0 or the first error. Only destroy may follow. */
int cfs_vfs_flush(struct cfs_vfs *v);
/*
 * Restores the handles of the previous process from conf->handoff, under the same numbers. Call it
 * after cfs_meta_start() and before the first request. Handles whose inode is gone are not
 * restored. *ret is all zeros at first. After an error of the metadata, another call with the same
 * *ret continues where this one ended.
 */
struct cfs_vfs_restored {
	uint64_t handles, gone;
	uint64_t lost; /* handles that have lost data; their fsync returns EIO */
	size_t closed; /* closed files that have lost data; the fsync of a directory returns EIO */
	/* Inodes that have lost data: the kernel's cached content is wrong. The caller frees it. */
	cfs_ino_t *lost_inos;
	size_t n_lost_inos;
	bool begun;
};
int cfs_vfs_restore(struct cfs_vfs *v, struct cfs_vfs_restored *ret);
/*
 * Closes handles that the kernel has closed so far while no process served the mount, and those of
 * requests whose answers it never got; releases files without a name that such requests have made.
 */
void cfs_vfs_close_released(struct cfs_vfs *v);
/* Calls cfs_vfs_flush() unless it was called. */
void cfs_vfs_destroy(struct cfs_vfs *v);

/*
 * The context of a request that starts now. It may point to memory of the calling thread that is
 * valid until the thread's next request.
 */
struct cfs_ctx cfs_vfs_ctx(struct cfs_vfs *v, uint32_t uid, uint32_t gid, pid_t pid);

/* ---- names and attributes ---- */

/* attr_ms, entry_ms: how much longer the answer may be cached; may be 0. */
struct cfs_vfs_attr {
	cfs_ino_t ino;
	struct cfs_attr attr;
	uint32_t attr_ms;
};
struct cfs_vfs_entry {
	cfs_ino_t ino;
	struct cfs_attr attr;
	uint32_t attr_ms, entry_ms;
};

/*
 * A call for an inode, and one that makes a name in a directory, returns -ESTALE when another mount
 * has removed the inode or the directory. The kernel then looks the path up again, once. So
 * programs get ENOENT only for a name that does not exist: cfs_vfs_lookup() then sets
 * ret->entry_ms, for how long its absence may be cached.
 */
int cfs_vfs_lookup(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name,
		   size_t len, struct cfs_vfs_entry *ret);
/* Drops the cache entries of an inode that the kernel has forgotten. */
void cfs_vfs_forget(struct cfs_vfs *v, cfs_ino_t ino);
int cfs_vfs_getattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		    struct cfs_vfs_attr *ret);
/* enum cfs_set, plus: */
#define CFS_VFS_SET_SIZE (1u << 31) /* in->length; fh 0: by path */
int cfs_vfs_setattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, uint64_t fh,
		    uint32_t set, const struct cfs_attr *in, struct cfs_vfs_attr *ret);
int cfs_vfs_readlink(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		     char buf[CFS_SYMLINK_MAX + 1]);
int cfs_vfs_access(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, int mask);
/*
 * As cfs_meta_mknod: files, directories, symlinks, special files. After -EEXIST *ret is the existing
 * inode; its ino is 0 for a reserved name.
 */
int cfs_vfs_mknod(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
		  struct cfs_vfs_entry *ret);
int cfs_vfs_link(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, cfs_ino_t parent,
		 const char *name, size_t len, struct cfs_vfs_entry *ret);
int cfs_vfs_unlink(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name,
		   size_t len);
int cfs_vfs_rmdir(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name,
		  size_t len);
/* unlink, or rmdir for a directory, with enum cfs_remove_flags. */
int cfs_vfs_remove(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name,
		   size_t len, bool is_dir, unsigned flags);
/* Another part of this process has changed the name in the metadata. */
void cfs_vfs_name_changed(struct cfs_vfs *v, cfs_ino_t parent, const char *name, size_t len);
int cfs_vfs_rename(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_rename *req);
/* Space at ino: quotas of the directories above it apply. */
int cfs_vfs_statfs(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		   struct cfs_statfs *ret);

/* ---- extended attributes and inode flags ---- */

ssize_t cfs_vfs_getxattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
			 const char *name, void *buf, size_t size);
ssize_t cfs_vfs_listxattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, char *buf,
			  size_t size);
int cfs_vfs_setxattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, const char *name,
		     const void *value, size_t size, int flags);
int cfs_vfs_removexattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
			const char *name);
/* FS_*_FL of linux/fs.h; setting any other than immutable, append, secrm is -EOPNOTSUPP. */
int cfs_vfs_get_flags(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		      uint32_t *ret_flags);
int cfs_vfs_set_flags(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t flags);

/* ---- open files ---- */

struct cfs_vfs_open {
	uint64_t fh;
	/* The ctime is that of this mount's previous open: the kernel's cached pages are right. */
	bool keep_cache;
	/* The kernel's attributes may be older than the open: it has to ask again. */
	bool attr_old;
	bool cache_dir;	 /* the kernel may keep the listing; keep_cache: its listing is right */
	bool direct_io;	 /* special files: their length is not known beforehand */
	int32_t backing; /* the kernel reads from this file (cfs_vfs_backing); 0: from the mount */
};
/*
 * flags: O_* of open(2); O_TRUNC truncates. ino: the node in the kernel's request, cfs_vfs_node().
 */
int cfs_vfs_open(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, int flags,
		 struct cfs_vfs_open *ret);
/*
 * mknod of a regular file and open; without O_EXCL a file that has appeared meanwhile is opened.
 * name_len 0: a file without a name (O_TMPFILE), which cfs_vfs_link() may give one while it is
 * open.
 */
int cfs_vfs_create_file(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_mknod *req,
			int flags, struct cfs_vfs_entry *ret, struct cfs_vfs_open *ret_open);
/* As cfs_file_read: *ret must be initialised. */
int cfs_vfs_read(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t off,
		 uint32_t size, struct cfs_async *async, struct cfs_segs *ret);
/* append: off is ignored, *ret_off is where the bytes went. All bytes are taken, or none. */
int cfs_vfs_write(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t off,
		  bool append, const struct iovec *src, int n_src, uint64_t *ret_off);
/*
 * Called before a change of content by a user who may not keep these bits: clears setuid, and
 * setgid if the group may execute the file or the user is not in the group. Calls the engine only
 * for a file that has them. 1: they were cleared, and the kernel's cached mode is outdated.
 */
int cfs_vfs_drop_set_id(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh);
/* One of perhaps many descriptors of the handle is closed. Drops POSIX locks of lock_owner. */
int cfs_vfs_flush_file(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh,
		       uint64_t lock_owner);
/* Whether a flush of this handle has data to wait for. Never waits. */
bool cfs_vfs_is_dirty(struct cfs_vfs *v, uint64_t fh);
/* Whether a rename or the fsync of a directory may have to wait for closed files. */
bool cfs_vfs_has_closed(struct cfs_vfs *v);
/* Whether a truncate, fallocate or copy of the file has data to wait for. Never waits. */
bool cfs_vfs_has_unstored(struct cfs_vfs *v, cfs_ino_t ino);
/* Whether that setattr has data to wait for. Never waits. */
bool cfs_vfs_setattr_waits(struct cfs_vfs *v, cfs_ino_t ino, uint32_t set);
int cfs_vfs_release(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh);
/*
 * Pins a handle for a request that continues after its reply, when the kernel may close the handle.
 * The last unpin then performs the close. False: there is no such handle.
 */
bool cfs_vfs_pin(struct cfs_vfs *v, uint64_t fh);
void cfs_vfs_unpin(struct cfs_vfs *v, uint64_t fh);
int cfs_vfs_fsync(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh);
int cfs_vfs_fallocate(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, unsigned mode,
		      uint64_t off, uint64_t len);
int cfs_vfs_copy_range(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t src_fh,
		       uint64_t src_off, uint64_t dst_fh, uint64_t dst_off, uint64_t len,
		       uint64_t *ret_copied);
/* whence SEEK_DATA or SEEK_HOLE. */
int cfs_vfs_seek(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t off,
		 int whence, uint64_t *ret_off);

/* ---- passthrough ---- */

/*
 * A file has two node ids: its inode number, and the same with this bit. The kernel knows the file
 * by both while some of its handles pass through and others must not (src/vfs/passthrough.c).
 * Look-ups answer with the one that cfs_vfs_node() returns. Every call but cfs_vfs_open() takes
 * inode numbers.
 */
#define CFS_VFS_OTHER_NODE ((cfs_ino_t)1 << 63)
cfs_ino_t cfs_vfs_node(struct cfs_vfs *v, cfs_ino_t ino);
/* Whether the kernel may know a file by its other node. */
bool cfs_vfs_has_other_nodes(struct cfs_vfs *v);

/* Files that the kernel reads without the mount. Neither call waits. */
struct cfs_vfs_backing {
	/* Returns an id for the file. Negative: this open is ordinary; -EOPNOTSUPP: all are. */
	int (*open)(void *arg, int fd);
	void (*close)(void *arg, int id);
	void *arg;
};
/*
 * Tells whether the connection has passthrough. Called after cfs_vfs_restore() and before the first
 * request. NULL: it has none, or has ended, and its ids with it.
 */
void cfs_vfs_pass_through(struct cfs_vfs *v, const struct cfs_vfs_backing *backing);

/*
 * Tells the kernel that a node is at least so long. The kernel ends sendfile(), copy_file_range() and
 * mappings at the length that it knows, without asking. Called while no open handle is counted: it
 * then neither waits for a request under way nor has pages to write.
 */
typedef void cfs_vfs_lengthen_fn(void *arg, cfs_ino_t node, uint64_t length);
/* Called before the first request. */
void cfs_vfs_on_longer(struct cfs_vfs *v, cfs_vfs_lengthen_fn *fn, void *arg);

/* ---- directories ---- */

int cfs_vfs_opendir(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		    struct cfs_vfs_open *ret);
struct cfs_vfs_dirent {
	const char *name; /* valid during the callback; not terminated */
	size_t name_len;
	cfs_ino_t ino;
	uint8_t type;	   /* enum cfs_type */
	uint64_t next_off; /* offset to continue from behind this entry */
	/*
	 * NULL for ".", ".." and special files, and when the cached answer may be outdated: the
	 * kernel then looks the entry up.
	 */
	const struct cfs_vfs_entry *entry;
};
/* A non-zero return ends this call; that entry counts as not delivered. */
typedef int (*cfs_vfs_dirent_fn)(void *arg, const struct cfs_vfs_dirent *e);
/*
 * Delivers entries from offset `off` on, at least one unless the end is reached. 0 starts a
 * listing. Other offsets are next_off of entries, also of those that another handle has delivered.
 * Memory per handle is bounded, whatever the size of the directory.
 */
int cfs_vfs_readdir(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t off,
		    bool attrs, cfs_vfs_dirent_fn fn, void *arg);
/*
 * True: the kernel has kept its listing of the directory for as long as it may, and must drop it
 * before it gets attributes. The caller does that, and calls cfs_vfs_listing_dropped() with
 * *ret_which.
 */
bool cfs_vfs_listing_expired(struct cfs_vfs *v, cfs_ino_t ino, uint32_t *ret_which);
void cfs_vfs_listing_dropped(struct cfs_vfs *v, cfs_ino_t ino, uint32_t which);
int cfs_vfs_fsyncdir(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh);
int cfs_vfs_releasedir(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh);

/* ---- locks ---- */

/*
 * wait: until the lock is granted, or ctx->interrupted() (-EINTR). Without: -EAGAIN. Locks end with
 * the handle (flock), or with cfs_vfs_flush_file() by their owner (POSIX).
 *
 * Locks order readers and writers of all mounts: an unlock, and a shared lock that may replace an
 * exclusive one, stores first what was written to the file here; a granted lock shows what others
 * have stored, as an open does. *ret_attr_old: the kernel's attributes may be older than the lock, it
 * has to ask again.
 */
int cfs_vfs_flock(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t owner,
		  enum cfs_lock_type type, bool wait, bool *ret_attr_old);
int cfs_vfs_setlk(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t owner,
		  const struct cfs_plock *lock, bool wait, bool *ret_attr_old);
/* Whether that change has data to wait for. Never waits. */
bool cfs_vfs_lock_stores(struct cfs_vfs *v, uint64_t fh, uint64_t owner, enum cfs_lock_type type,
			 bool posix);
int cfs_vfs_getlk(struct cfs_vfs *v, const struct cfs_ctx *ctx, uint64_t fh, uint64_t owner,
		  struct cfs_plock *lock);

/* ---- log of requests, for readers of .accesslog ---- */

/* Whether .accesslog is open, so that requests must be logged. */
bool cfs_vfs_logging(const struct cfs_vfs *v);
/* result: as the call returned it. */
void cfs_vfs_log(struct cfs_vfs *v, const struct cfs_ctx *ctx, const char *op, const char *args,
		 int result, uint64_t took_ns);

/* ---- requests that took long ---- */

/* A request that has ended. start_ns: cfs_now_ns(); ino: the file, or the directory of a name. */
struct cfs_vfs_request {
	const char *op; /* a literal */
	cfs_ino_t ino;
	pid_t pid;
	uint64_t start_ns;
};
/*
 * Reports a request that the calling thread has answered. Not called for waits that take as long as
 * their caller wants, such as those for file locks.
 */
void cfs_vfs_ended(struct cfs_vfs *v, const struct cfs_vfs_request *req, int result,
		   uint64_t now_ns);

#define CFS_VFS_SLOW_MAX 32
struct cfs_vfs_slow {
	const char *op;
	const char *waited_for; /* for most of the time, as cfs_activity_waited() */
	cfs_ino_t ino;
	pid_t pid;
	int result;
	uint64_t took_ns, ended_ns;
};
/* The slowest requests (over 10 ms) of the last ten minutes, slowest first. Returns how many. */
unsigned cfs_vfs_slowest(struct cfs_vfs *v, uint64_t now_ns,
			 struct cfs_vfs_slow ret[CFS_VFS_SLOW_MAX]);

/* ---- statistics ---- */

extern const struct cfs_metric_table cfs_vfs_metrics;
/*
 * All metrics of the mount in Prometheus' text format, malloc'ed. labels: added to each metric, as
 * `name="value",...`, which then has HELP and TYPE lines, too. NULL: the text of .stats, without
 * these. Any thread. Does not wait for a backend.
 */
int cfs_vfs_show_metrics(struct cfs_vfs *v, const char *labels, char **ret, size_t *ret_len);

#endif
