/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CFS_VFS_INTERNAL_H
#define CFS_VFS_INTERNAL_H

#include <cachefs/vfs.h>
#include <cachefs/whole.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/table.h"
#include "base/workers.h"
#include "cache.h"
#include "dircache.h"
#include "dirpages.h"
#include "dirpart.h"
#include "newdirs.h"
#include "tree.h"

/*
 * An inode that is open on this mount, or about to be. Reference counted without a lock; dropping
 * the last reference closes its data and a sustained inode. It is in the table before the metadata
 * is read: an unlink after that keeps the inode (cfs_meta_hooks.is_open).
 */
struct vnode {
	struct cfs_node node; /* key: inode */
	struct cfs_vfs *vfs;
	_Atomic uint32_t refs;
	_Atomic bool sustained; /* unlinked, and kept by the metadata until this mount closes it */
	_Atomic bool unnamed;	/* sustained, and never had a name */
	_Atomic bool written;	/* through any handle: cached attributes are outdated */
	_Atomic bool plocked;	/* POSIX locks were requested */
	_Atomic uint32_t executed; /* handles of programs that run from it */
	_Atomic bool set_id;	   /* its mode, as last known, has setuid or setgid */
	_Atomic(struct cfs_file *) file;
	struct cfs_handoff_inode *_Atomic mark; /* whether the file has bytes to lose */
	/* passthrough.c. Protected by its lock of the inode, except reads of node. */
	struct vnode_passthrough {
		uint32_t passed[2], ordinary[2]; /* handles, by the node that they were opened at */
		uint32_t writers;		 /* of these */
		_Atomic uint8_t node;		 /* that look-ups answer with: 0 or 1 */
		int32_t backing;		 /* id of the file that `passed` read; 0: none */
		struct cfs_whole_file *whole;	 /* that file; NULL: opened by another process */
	} passthrough;
};

struct vnode *vnode_get(struct cfs_vfs *v, cfs_ino_t ino); /* NULL: no memory */
/* NULL when it is not open. */
struct vnode *vnode_find(struct cfs_vfs *v, cfs_ino_t ino);
/* That of an open file, whose last close may be under way. */
struct vnode *vnode_of_handle(struct cfs_vfs *v, uint64_t fh);
/* One more reference for a caller that has one. */
struct vnode *vnode_ref(struct vnode *n);
void vnode_put(struct vnode *n); /* NULL is allowed */
static inline void vnode_putp(struct vnode **n)
{
	vnode_put(*n);
}
#define auto_vnode __attribute__((cleanup(vnode_putp)))
/* Counts a handle with these flags of open(2): by 1, and by -1 at its end. */
void vnode_count(struct vnode *n, int flags, int by);
/* Opens the data of the inode. attr: the metadata's answer to a request made at asked_ns. */
int vnode_attach(struct vnode *n, const struct cfs_attr *attr, uint64_t asked_ns);
/* Adds own writes to *attr, which the metadata returned for a request made at asked_ns. */
void vnode_overlay(struct vnode *n, struct cfs_attr *attr, uint64_t asked_ns);
/* Records whether the mode has setuid or setgid. */
void note_set_id(struct vnode *n, uint16_t mode);
static inline struct cfs_file *vnode_file(struct vnode *n)
{
	return atomic_load_explicit(&n->file, memory_order_acquire);
}

enum handle_kind { HANDLE_FREE, HANDLE_FILE, HANDLE_DIR, HANDLE_SPECIAL };

struct dir;	     /* dir.c */
struct special_open; /* special.c */
struct log_reader;   /* accesslog.c */
struct lock_owner;   /* lock.c */

/* Slots are recycled and never freed, so that a stale handle can be looked at and refused. */
struct handle {
	_Atomic uint32_t gen;
	_Atomic uint8_t kind;
	_Atomic bool flocked;
	_Atomic bool lock_lost;	   /* it had a file lock when the session ended: requests fail */
	int flags;		   /* of open(2) */
	struct timespec ctime;	   /* of the file, when it was opened */
	_Atomic bool opened_noted; /* in the cache, note_opened() */
	_Atomic int64_t atime_s;   /* when a read last looked at the access time */
	uint32_t next_free;	   /* index + 1 */
	_Atomic uint32_t err_seq;  /* errors reported: cfs_file_flush(), closed_take_error() */
	_Atomic uint64_t flock_owner;
	/* cfs_vfs_pin(). Protected by handles.lock. */
	unsigned pins;
	bool close_deferred; /* closed while it was pinned */
	/* How a file was opened, for passthrough.c. */
	struct handle_passthrough {
		uint8_t node;
		bool passed, writes;
	} passthrough;
	struct lock_owner *lock_owners;	   /* protected by cfs_vfs.lock_owners_lock */
	struct cfs_handoff_handle *record; /* NULL: cannot be handed over */
	union {
		struct vnode *vnode;
		struct dir *dir;
		struct special_open *special;
	};
};

#define HANDLES_PER_CHUNK 256u
#define HANDLE_CHUNKS	  4096u

struct handles {
	pthread_mutex_t lock; /* free list, growth and pins; a leaf */
	uint32_t n_chunks;
	uint32_t free; /* index + 1 of the first free slot */
	_Atomic uint64_t in_use;
	_Atomic(struct handle *) *chunks;
	struct cfs_handoff *handoff;
};

int handles_init(struct handles *t, struct cfs_handoff *handoff);
void handles_fini(struct handles *t);
/*
 * The slot is invisible until handle_publish(). A request records the number before that
 * (record_fh()): without it, a crash between would leave the handle open for ever. -ENFILE: a
 * million are open.
 */
int handle_alloc(struct handles *t, struct handle **ret, uint64_t *ret_fh);
void handle_publish(struct handle *h, uint64_t fh, cfs_ino_t ino, enum handle_kind kind);
/* NULL when stale, or of another kind. */
struct handle *handle_find(struct handles *t, uint64_t fh, enum handle_kind kind);
/* The same of any kind. */
struct handle *handle_find_any(struct handles *t, uint64_t fh);
/*
 * Hides the handle in this process. A successor process still finds it, so that a close interrupted
 * by a crash is repeated as a whole.
 */
void handle_hide(struct handle *h);
void handle_free(struct handles *t, uint64_t fh, struct handle *h);
/* Defers the close of a handle. False: it does not exist, or is closed already. */
bool handle_pin(struct handles *t, uint64_t fh);
/* True: a close was deferred, and the caller must do it. */
bool handle_unpin(struct handles *t, uint64_t fh);
/* True: the handle is pinned, and the last unpin closes it. */
bool handle_defer_close(struct handles *t, uint64_t fh);
/*
 * Restoring handles of another process, before any is allocated: handles_reserve() makes slots for
 * all records in use, handle_claim() fills one, handles_free_rest() frees the others.
 */
int handles_reserve(struct handles *t);
struct handle *handle_claim(struct handles *t, uint64_t fh);
void handles_free_rest(struct handles *t);
/* For the end of the mount: fh of the first open handle at or after slot *pos, 0 at the end. */
uint64_t handle_next(struct handles *t, uint32_t *pos, enum handle_kind *ret_kind);

struct access_log {
	pthread_mutex_t lock; /* protects the readers and their rings; a leaf */
	pthread_cond_t more;
	_Atomic unsigned n_readers;
	struct log_reader *readers;
};

int access_log_init(struct access_log *l);
void access_log_fini(struct access_log *l);
/* -EBUSY: too many readers. */
int access_log_open(struct access_log *l, struct log_reader **ret);
void access_log_close(struct access_log *l, struct log_reader *reader);
/* Reads text that is there, not only whole lines. After a second without any: an empty comment. */
size_t access_log_read(struct access_log *l, struct log_reader *reader, cfs_deadline_t deadline,
		       char *buf, size_t size);

struct slow_list {
	pthread_mutex_t lock; /* protects n and v; a leaf */
	/* A request that took less than floor_ns and ended before look_ns takes no lock. */
	_Atomic uint64_t floor_ns, look_ns;
	unsigned n;
	struct cfs_vfs_slow v[CFS_VFS_SLOW_MAX]; /* slowest first */
};

void slow_init(struct slow_list *l);
void slow_fini(struct slow_list *l);
struct reported; /* watchdog.c */

struct watchdog {
	struct cfs_ticker *ticker;
	_Atomic uint64_t reports;
	/* Requests that were logged; used by the ticker's thread only. */
	struct reported *reported;
	size_t n_reported;
};

/* Does nothing without conf.watchdog_ms. */
int watchdog_start(struct cfs_vfs *v);
void watchdog_stop(struct cfs_vfs *v);
/* The number of requests under way, and the age of the oldest that must not take long. */
void watchdog_look(uint64_t *ret_requests, uint64_t *ret_oldest_ns);

/*
 * Files with a loss that their own fsync has not reported. While half as many are known, a close
 * waits for its commit: the rest is for files that were closed before.
 */
#define CLOSED_LOSSES 8192u

struct closed_loss {
	cfs_ino_t ino;
	struct cfs_handoff_inode *mark; /* in the handoff state; NULL: it has no room */
};

/* Losses of closed files, closed.c. */
struct closed {
	pthread_mutex_t lock; /* protects all but n_lost; a leaf */
	uint32_t seq;	      /* counts losses */
	int err;	      /* of the last one */
	bool reported;	      /* an fsync of a directory has returned it */
	unsigned n;
	struct closed_loss loss[CLOSED_LOSSES];
	_Atomic uint64_t n_lost;
};

void closed_init(struct closed *c);
void closed_fini(struct closed *c);
/* A descriptor of the handle is closed; its file is committed later. 0, or an earlier error. */
int closed_add(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct handle *h);
/* Bytes of a closed file are lost. ino 0: the file is not known. */
void closed_lost(struct cfs_vfs *v, cfs_ino_t ino, int err);
/* Takes over losses that earlier processes have recorded. Called after cfs_handoff_mark_lost(). */
void closed_restore(struct cfs_vfs *v);
/*
 * Where the cursor of losses of a directory's handle starts: before a loss that no directory has
 * reported, else behind all. closed_take_error() returns the last loss if the cursor is before it, and
 * moves the cursor behind it.
 */
uint32_t closed_err_seq(struct cfs_vfs *v);
int closed_take_error(struct cfs_vfs *v, uint32_t *err_seq);
/* True, once for each loss: the file lost bytes after its close. */
bool closed_take_loss(struct cfs_vfs *v, cfs_ino_t ino);
/* Waits for files that were closed before. Called by unlocks: locks order writers and readers. */
void closed_await(struct cfs_vfs *v, const struct cfs_ctx *ctx);
/*
 * Called before a rename that replaces a name. Waits for the commit of the file that gets the name.
 * An error, also a loss that no fsync has reported, keeps the old file in place.
 */
int closed_before_rename(struct cfs_vfs *v, const struct cfs_ctx *ctx,
			 const struct cfs_rename *req);

#define PASSTHROUGH_LOCKS 64u
#define PASSTHROUGH_MOVED 1024u /* a multiple of PASSTHROUGH_LOCKS, which protect them */

struct passthrough {
	/* By inode. Locks of the data layer and of the connection are taken under these. */
	pthread_mutex_t locks[PASSTHROUGH_LOCKS];
	const struct cfs_vfs_backing *backing; /* NULL: all opens are ordinary */
	cfs_vfs_lengthen_fn *lengthen;	       /* NULL: the kernel keeps its length */
	void *lengthen_arg;
	_Atomic bool used_other; /* the kernel may know a file by its other node */
	/* By inode, protected by its lock. A file that moves replaces the record of another one. */
	struct moved_file {
		cfs_ino_t ino;
		cfs_deadline_t until;
		uint8_t node;
	} moved[PASSTHROUGH_MOVED];
	uint32_t n_old; /* so many inode records of the handoff state have the last process's ids */
	_Atomic uint64_t opens, open, moves;
};

void passthrough_init(struct passthrough *p);
void passthrough_fini(struct passthrough *p);
/*
 * Decides how a file is opened, and counts the handle until passthrough_close(). In: h->node is the node
 * of the kernel's request. any_node: the reply tells the kernel the node instead. *ret_backing: the
 * id for the kernel; 0: an ordinary open. -ESTALE: the kernel has to look the file up again, and
 * finds its other node.
 */
int passthrough_open(struct vnode *n, int flags, const struct cfs_attr *attr, uint64_t asked_ns,
		     bool any_node, struct handle_passthrough *h, int32_t *ret_backing);
void passthrough_close(struct vnode *n, const struct handle_passthrough *h);
/* Counts a handle of the previous process. */
void passthrough_restore(struct vnode *n, const struct handle_passthrough *h);

struct cfs_vfs {
	struct cfs_vfs_conf conf;
	struct timespec started;
	struct cfs_table *vnodes;
	struct cfs_table *removed_dirs; /* directories, removed-dirs.c */
	struct handles handles;
	struct cache cache;
	struct newdirs newdirs;
	struct dirpages dirpages;
	struct dircache dircache;
	struct access_log log;
	struct slow_list slow;
	struct watchdog watchdog;
	struct closed closed;
	struct passthrough passthrough;
	struct walks walks;
	struct trees trees;
	struct cfs_workers *ahead; /* read-ahead over directories */
	atomic_bool ahead_stopped;
	_Atomic unsigned n_stats; /* opens of .stats */
	/* Every request changes these: they share no cache line with fields that are only read. */
	char padding[64];
	_Atomic uint64_t requests, request_ns, read_bytes, written_bytes;
	char padding2[64];
	pthread_mutex_t lock_owners_lock; /* before that of cfs_meta_holds_lock() */
	bool flushed;
	int flush_err;
};

/* The kernel knows the root of a subdirectory mount as CFS_ROOT_INO. */
static inline cfs_ino_t ino_in(const struct cfs_vfs *v, cfs_ino_t ino)
{
	return ino == CFS_ROOT_INO ? v->conf.root : ino;
}
static inline cfs_ino_t ino_out(const struct cfs_vfs *v, cfs_ino_t ino)
{
	return ino == v->conf.root ? CFS_ROOT_INO : ino;
}

/* names.c; inode numbers inside the folder are the volume's. */
int get_attr(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, struct cfs_attr *ret,
	     uint32_t *ret_ms);
/*
 * Adds unstored writes of this mount to attributes that were just read from the engine, and caches
 * them. False: the last close of the file came meanwhile, and the answer may be older.
 */
bool accept_attr(struct cfs_vfs *v, cfs_ino_t ino, uint64_t seq, uint64_t asked_ns,
		 struct cfs_attr *attr);
/*
 * Returns r, but -ESTALE for -ENOENT: another mount has removed an inode that the kernel knows. Its
 * name may be that of another inode, so the kernel looks it up again, once.
 */
int stale_if_gone(struct cfs_vfs *v, cfs_ino_t ino, int r);
uint32_t entry_timeout(const struct cfs_vfs *v, const struct cfs_attr *attr);
/* Stores attributes that wait for the file's data (cfs_file_store_change). */
int store_change(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino);
/*
 * This mount has changed the inode. attr: the result; NULL: not known. seq and asked_ns
 * (cfs_now_ns()) are from before the change.
 */
void inode_changed(struct cfs_vfs *v, cfs_ino_t ino, uint64_t seq, uint64_t asked_ns,
		   struct cfs_attr *attr);

/*
 * removed-dirs.c: a removed directory answers fstat(2) until the kernel forgets it: when its last
 * descriptor is closed and no process has it as working directory. The metadata cannot keep it.
 */
void removed_dir_add(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_removed *what);
void removed_dir_forget(struct cfs_vfs *v, cfs_ino_t ino);
void removed_dir_forget_all(struct cfs_vfs *v);
/* True: this mount has removed it. *ret: its last attributes, with no links. */
bool removed_dir_find(struct cfs_vfs *v, cfs_ino_t ino, struct cfs_attr *ret);

/* caller.c */
struct cfs_ctx internal_ctx(const struct cfs_vfs *v);
/*
 * Fills in the supplementary groups of ctx->pid, which may be a second old unless fresh. Valid
 * until the thread's next request.
 */
void caller_groups(struct cfs_ctx *ctx, bool fresh);
/* Whether the caller is root with CAP_FSETID. Others may have it in a user namespace only. */
bool caller_keeps_set_id(const struct cfs_ctx *ctx);
/*
 * The set-id bits that a change of content by a caller without CAP_FSETID clears, as members of
 * enum cfs_set: setuid, and setgid if the group may execute the file or the caller is not in the
 * group.
 */
uint32_t dropped_set_id(const struct cfs_ctx *ctx, const struct cfs_attr *attr);
/* ctx for operations that were permitted when the file was opened. */
static inline struct cfs_ctx permitted(const struct cfs_ctx *ctx)
{
	struct cfs_ctx c = *ctx;

	c.check = false;
	return c;
}

/* file.c: access times, and files without a name */
bool keeps_atime(const struct cfs_vfs *v, cfs_ino_t ino);
/* Stores the access time when it is due. attr: as the metadata has it. */
void touch_atime(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino,
		 struct cfs_attr *attr);
/* Releases a file without a name, which the metadata keeps for a handle that was not made. */
void file_drop_unnamed(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino);

/* special.c */
static inline bool ino_is_special(cfs_ino_t ino)
{
	return ino >= CFS_SPECIAL_INO && ino < CFS_SPECIAL_INO_END;
}
/* A name reserved by the mount, in a directory given by its number inside. */
bool name_is_reserved(const struct cfs_vfs *v, cfs_ino_t parent, const char *name, size_t len);
/* -ENOENT when there is no such file. */
int special_lookup(struct cfs_vfs *v, const struct cfs_ctx *ctx, const char *name, size_t len,
		   struct cfs_vfs_entry *ret);
int special_getattr(struct cfs_vfs *v, cfs_ino_t ino, struct cfs_attr *ret);
/* Entry number i, from 0, of those that listings of the root show. False: there are no more. */
bool special_listed(struct cfs_vfs *v, const struct cfs_ctx *ctx, unsigned i,
		    struct cfs_vfs_dirent *ret);
int special_open(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t ino, int flags,
		 struct cfs_vfs_open *ret);
int special_read(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct handle *h, uint64_t off,
		 uint32_t size, struct cfs_segs *ret);
int special_write(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct handle *h, uint64_t off,
		  const struct iovec *src, int n_src);
void special_release(struct cfs_vfs *v, struct handle *h);

int special_restore(struct cfs_vfs *v, struct handle *h, cfs_ino_t ino);

/* replay.c: replay of requests that a process may have carried out before it died */
static inline void record_ino(const struct cfs_ctx *ctx, cfs_ino_t ino)
{
	if (ctx->record)
		atomic_store(&ctx->record->ino, ino);
}
static inline void record_fh(const struct cfs_ctx *ctx, uint64_t fh)
{
	if (ctx->record)
		atomic_store(&ctx->record->fh, fh);
}
/* The inode, or handle, that the first run has recorded. 0: none, or this is the first run. */
static inline cfs_ino_t recorded_ino(const struct cfs_ctx *ctx)
{
	return ctx->replay && ctx->record ? atomic_load(&ctx->record->ino) : 0;
}
static inline uint64_t recorded_fh(const struct cfs_ctx *ctx)
{
	return ctx->replay && ctx->record ? atomic_load(&ctx->record->fh) : 0;
}
/* True: `ino` is under the name, so the first run made it. *ret: the entry. */
bool replay_made(struct cfs_vfs *v, const struct cfs_ctx *ctx, cfs_ino_t parent, const char *name,
		 size_t len, cfs_ino_t ino, struct cfs_entry *ret);
/* These get the result of the replay as r, and return that of the first run if it is known. */
int replay_linked(struct cfs_vfs *v, const struct cfs_ctx *ctx, int r, cfs_ino_t ino,
		  cfs_ino_t parent, const char *name, size_t len, struct cfs_attr *ret);
/* gone: the error of a removal of what is not there. */
int replay_removed(const struct cfs_ctx *ctx, int r, int gone);
/* Called before a rename that is no exchange: records the target's inode. */
void replay_record_target(struct cfs_vfs *v, const struct cfs_ctx *ctx,
			  const struct cfs_rename *req);
int replay_renamed(struct cfs_vfs *v, const struct cfs_ctx *ctx, int r,
		   const struct cfs_rename *req);
int replay_set_xattr(struct cfs_vfs *v, const struct cfs_ctx *ctx, int r, cfs_ino_t ino,
		     const char *name, const void *value, size_t size);
/* Called before an exchange, which a replay would undo. *ret_done: the first run carried it out. */
int replay_exchange(struct cfs_vfs *v, const struct cfs_ctx *ctx, const struct cfs_rename *req,
		    bool *ret_done);
/* True: the file has these bytes at off, so the first run appended them. */
bool replay_appended(const struct cfs_ctx *ctx, struct cfs_file *f, uint64_t off,
		     const struct iovec *src, int n_src);

/* lock.c. locks_flush(): a process has closed a descriptor; locks_release(): the last one. */
void locks_flush(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct handle *h, uint64_t owner);
void locks_release(struct cfs_vfs *v, const struct cfs_ctx *ctx, struct handle *h);
int locks_restore(struct cfs_vfs *v, struct handle *h);
/* As cfs_meta_hooks.session_ended: handles that had a lock fail with EIO until they are closed. */
void locks_session_ended(struct cfs_vfs *v, uint64_t sid);
static inline bool lock_lost(const struct handle *h)
{
	return atomic_load_explicit(&h->lock_lost, memory_order_relaxed);
}

/* ahead.c */
struct cfs_ctx ahead_ctx(const struct cfs_vfs *v); /* of calls that read ahead */
int ahead_start(struct cfs_vfs *v);
/* Waits for the metadata calls that are under way. No file may be opened any more. */
void ahead_stop(struct cfs_vfs *v);
/* A file was opened for reading. Never waits. */
void ahead_opened(struct cfs_vfs *v, cfs_ino_t ino, const struct cfs_attr *attr);
/* A directory was opened. Never waits. */
void ahead_listed(struct cfs_vfs *v, cfs_ino_t dir);

/* dir.c */
int dir_restore(struct cfs_vfs *v, struct handle *h, cfs_ino_t ino);
void dir_resume(struct handle *h, struct cfs_handoff_dir *record);

#endif
