/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CFS_FUSE_INTERNAL_H
#define CFS_FUSE_INTERNAL_H

#define FUSE_USE_VERSION 312

#include <cachefs/fuse.h>
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "base/workers.h"
#include "channel.h"
#include "device.h"
#include "ring.h"

#define WAITERS_MAX 1024 /* requests that wait for a file lock, each on a thread of its own */

/* Requests of killed callers, which may be answered before they are carried out: killed.c. */
#define KILLABLE_MAX	 1024
#define KILLABLE_HANDLES 2
struct killable {
	/*
	 * FREE: unused; CLAIMED: being filled in; RUNNING: being carried out; EXAMINED:
	 * killed.looker, which holds the lock, is about to answer it; ANSWERED: early, and still
	 * carried out.
	 */
	_Atomic unsigned state;
	_Atomic pid_t pid;
	_Atomic uint64_t unique, start_ms; /* unique, entry: of its cfs_request_id */
	void *entry;
	uint64_t fh[KILLABLE_HANDLES];
	bool pinned[KILLABLE_HANDLES];
};
enum { KILLABLE_FREE, KILLABLE_CLAIMED, KILLABLE_RUNNING, KILLABLE_EXAMINED, KILLABLE_ANSWERED };

struct cfs_fuse {
	struct cfs_fuse_conf conf;
	struct cfs_vfs *vfs;
	struct fuse_session *session;
	char *mount_point;

	/* The connection; libfuse has a duplicate, on which it answers what has no handler. */
	struct cfs_device device;
	struct cfs_channel *channel;   /* the device, or the ring: where requests come from */
	struct cfs_ring *ring;	       /* NULL: there is none */
	_Atomic uint64_t no_memory_ms; /* when the log told of ENOMEM; 0: never */
	bool needs_ring;	       /* io_uring=on: the mount ends rather than use the device */
	size_t payload;		       /* bytes of the largest request or answer, as agreed on */
	struct own_answers *own;       /* NULL: libfuse writes its own answers to the device */

	struct cfs_vfs_backing backing;
	_Atomic bool backing_refused; /* the kernel takes no file of the cache; logged once */

	int signal_fd, event_fd;
	sigset_t old_mask;
	_Atomic int signo;
	_Atomic bool looping, stopping, handing_over;
	bool resumes;		   /* the kernel has requests that a loop has left unanswered */
	_Atomic pid_t page_writer; /* the child of mapped.c; 0: there is none */

	struct loop {
		pthread_mutex_t lock;	/* protects the fields below; a leaf */
		pthread_cond_t changed; /* signalled when the loop has ended or a reader is done */
		TAILQ_HEAD(, reader) readers;
		struct reader **reader; /* by place; a thread reads its own without the lock */
		unsigned n, idle, idle_max;
		unsigned answered_early;
		_Atomic bool ended;
		int error;
	} loop;

	pthread_mutex_t lock; /* protects the numbers; a leaf */
	pthread_cond_t idle;  /* one of them is less */
	unsigned n_waiters;   /* threads that wait for a file lock, ops-lock.c */
	unsigned n_storing;   /* of these: store a file first */

	struct {
		pthread_mutex_t lock; /* held to answer another thread's request early; pinning
				       * takes the lock of the handles under it */
		struct killable *request;
		pthread_t looker;
		bool started;
		unsigned next; /* where the next search starts */

		pthread_mutex_t sleep_lock; /* protects asleep and stopping while they change; a
					     * leaf */
		pthread_cond_t wake;
		_Atomic bool asleep; /* until a request begins */
		_Atomic bool stopping;
	} killed;

	struct admission {
		pthread_mutex_t lock;	    /* protects the fields below; a leaf */
		TAILQ_HEAD(, queued) queue; /* the admission queue, in order of arrival */
		unsigned taken, max;
		size_t bytes, bytes_max; /* memory of the queued requests */
	} admission;

	struct {
		pthread_mutex_t lock; /* protects n and has_worker; the pool's is under it */
		pthread_cond_t none;  /* n is 0 */
		unsigned n;	      /* reads that no thread waits for */
		bool has_worker;      /* cfs_workers_prepare() has succeeded */
		struct cfs_workers *workers;
	} async;
};

#define CALL_ARGS 600 /* two names and some numbers */

/* One request: its caller, and where the reply goes. */
struct call {
	struct cfs_ctx ctx;
	struct cfs_fuse *fuse;
	struct cfs_vfs *vfs;
	fuse_req_t req;		  /* for libfuse */
	struct cfs_request_id id; /* for the channel */
	mode_t umask;
	struct cfs_handoff_request *record;
	struct killable *killable; /* NULL: cannot be answered early */
	const char *op;
	cfs_ino_t ino;
	uint64_t start_ns;
	bool timed;  /* its duration depends on this process, not on the caller */
	bool logged; /* the access log has a reader, and args are set */
	char args[CALL_ARGS];
};

void call_begin(struct call *c, fuse_req_t req, const char *op);
/* The same for requests that must not run twice; recorded for replay until the answer. */
void call_begin_once(struct call *c, fuse_req_t req, const char *op);
__attribute__((format(printf, 2, 3))) void call_set_args(struct call *c, const char *fmt, ...);
#define call_args(c, fmt, inode, ...)                                                              \
	do {                                                                                       \
		(c)->ino = (inode);                                                                \
		call_take(c);                                                                      \
		if ((c)->logged)                                                                   \
			call_set_args(c, fmt, inode, ##__VA_ARGS__);                               \
	} while (0)
/* Ends the call after the reply; reply_*() call it themselves. */
void call_end(struct call *c, int r);
/*
 * Shows the calling thread as the one that carries out the request, until call_end(). A thread that
 * hands the request over calls call_leave(), and the next thread calls call_take().
 */
void call_take(const struct call *c);
void call_leave(void);
/*
 * admission.c: admission of blocking requests. At most `max` run at a time; the rest are queued,
 * and the thread that frees a slot runs the next one. A queued request owns a copy of all it needs.
 */
struct queued {
	TAILQ_ENTRY(queued) link;
	/* Answers the request and frees q. True: another thread has got the slot for it. */
	bool (*run)(struct queued *q);
	size_t bytes; /* of memory that the request occupies */
};
void admission_init(struct cfs_fuse *f);
void admission_fini(struct cfs_fuse *f);
bool admission_try(struct cfs_fuse *f);
/* Queues the request. False: the caller has got the slot instead, and runs it itself. */
bool admission_queue(struct cfs_fuse *f, struct queued *q);
/* Runs the next queued request, or frees the slot when there is none. */
void admission_release(struct cfs_fuse *f);

#define BLOCKING_IOV 8

/* A request that may block, with all that is needed to carry it out later. */
struct blocking {
	struct queued queued; /* must be the first member */
	struct call call;
	struct cfs_activity_queued *shown; /* set while the request has no thread */
	void (*apply)(struct blocking *b); /* carries out the request and answers it */
	fuse_ino_t ino;
	uint64_t fh, off;
	size_t size;
	uint32_t want;		/* bytes to be read */
	struct cfs_async async; /* async.c */
	struct cfs_job job;	/* the same */
	bool append, drops_set_id;
	uint64_t owner;
	struct iovec iov[BLOCKING_IOV];
	int n_iov;
	union {
		int open_flags;
		struct {
			unsigned mode;
			uint64_t len;
		} fallocate;
		struct {
			uint64_t src_fh, src_off, len;
			bool wide; /* the reply has 64 bits */
		} copy;
		struct {
			uint32_t set;
			struct cfs_attr attr;
		} setattr;
		struct cfs_rename rename; /* without the names: they are iov[], terminated */
	};
};
/* Carries it out at once; with may_wait only after admission, which may queue it. */
void blocking_run(struct blocking *b, bool may_wait);
/* For a caller that found no free slot. A request of the ring waits for one on its own thread. */
void blocking_queue(struct blocking *b);

/* A copy, with its data and groups, which are in the receiving thread's memory. NULL: no memory. */
struct blocking *blocking_copy(const struct blocking *what);
/* Queues such a copy. False: the caller has got a slot instead. Does not wait. */
bool blocking_enqueue(struct blocking *copy);

/* async.c; after admission_init() */
int async_init(struct cfs_fuse *f);
void async_fini(struct cfs_fuse *f);
/* Waits until every read that no thread waited for is answered or dropped. */
void async_drain(struct cfs_fuse *f);
/* The keep function of a read's blocking.async. Not for requests of a ring. */
struct cfs_async *async_keep(struct cfs_async *a);

/* reply.c; every request is answered exactly once. r: 0 or a negative errno. */
void reply_status(struct call *c, int r);
void reply_entry(struct call *c, int r, const struct cfs_vfs_entry *e);
/* The entry at that node. 0: at the node that cfs_vfs_node() chooses, as reply_entry() does. */
void reply_node(struct call *c, int r, const struct cfs_vfs_entry *e, cfs_ino_t node);
/* The name does not exist. The kernel may cache that for entry_ms. */
void reply_absent(struct call *c, uint32_t entry_ms);
void reply_attr(struct call *c, int r, const struct cfs_vfs_attr *a);
/* Closes the handle again if the kernel has dropped the request. */
void reply_open(struct call *c, int r, const struct cfs_vfs_open *o);
void reply_create(struct call *c, int r, const struct cfs_vfs_entry *e,
		  const struct cfs_vfs_open *o);
void reply_opendir(struct call *c, int r, const struct cfs_vfs_open *o);
void reply_written(struct call *c, int r, uint64_t n);
/* wide: to a CFS_FUSE_COPY_FILE_RANGE_64. */
void reply_copied(struct call *c, int r, uint64_t n, bool wide);
void reply_seek(struct call *c, int r, uint64_t off);
void reply_statfs(struct call *c, int r, const struct cfs_statfs *s);
/* p->type is CFS_LOCK_NONE when no lock conflicts. */
void reply_lock(struct call *c, int r, const struct cfs_plock *p);
/* The length of an extended attribute, without its value. */
void reply_size(struct call *c, uint64_t n);
void reply_ioctl(struct call *c, const void *buf, size_t len);
void reply_bytes(struct call *c, const void *buf, size_t len);
/* Releases the pieces. */
void reply_segs(struct call *c, int r, struct cfs_segs *s);
void fill_entry(struct cfs_vfs *v, struct fuse_entry_out *ret, const struct cfs_vfs_entry *e);
mode_t type_mode(uint8_t type);

/* Ends the call without an answer: the kernel will send the request to another process. */
void call_drop(struct call *c);

/* session.c */
/* Falls back from the ring to the device, and logs why. */
void session_without_ring(struct cfs_fuse *f, const char *why);
/* Sets the kernel's read-ahead for the mount. Makes no request to the mount itself. */
void session_tune_read_ahead(const struct cfs_fuse *f);

/* negotiate.c */
/* Negotiates the session of a new mount with the kernel. */
int negotiate_mount(struct cfs_fuse *f, char err[256]);
/* Gives the session the state that it had in the previous process. */
int negotiate_resume(struct cfs_fuse *f, char err[256]);
void op_init(void *userdata, struct fuse_conn_info *conn);

/* passthrough.c */
/* Tells the VFS whether the connection has passthrough. Also for a resumed mount. */
void passthrough_begin(struct cfs_fuse *f);
/* Has opens tell the kernel lengths that other clients have made. */
void lengthen_begin(struct cfs_fuse *f);
/* Replaces the node id in a request by the inode number, before libfuse decodes it. */
void take_node(struct cfs_request *rq);
/* The node id with which the request names the inode. */
cfs_ino_t node_of_request(const struct cfs_request *rq, fuse_ino_t ino);
/* channel_drop_inode() for both nodes of the inode, from off to the end. */
void drop_inode(const struct cfs_fuse *f, fuse_ino_t ino, int64_t off);

/* mapped.c */
/* Has the kernel write what mappings have changed. Waits for it: the loop must be serving. */
void mapped_write_back(struct cfs_fuse *f);
/* Whether the process is the child that opens files for that: it may open all. */
bool mapped_is_writer(struct cfs_fuse *f, pid_t pid);
/* Answers the child's request if the name stands for a node. */
bool mapped_lookup(struct call *c, const char *name);

/* loop.c */
int loop_init(struct cfs_fuse *f);
void loop_fini(struct cfs_fuse *f);
/* Serves until loop_end() or the end of the connection. Finishes requests under way. 0 or
 * negative. */
int loop_run(struct cfs_fuse *f);
/* Makes it ready for another run. */
void loop_reset(struct cfs_fuse *f);
/* Ends the loop, which then returns the error; may be called from any thread. */
void loop_end(struct cfs_fuse *f, int error);
/*
 * Counts requests that were answered before they were done: 1 when one is answered, -1 when it is
 * done. Each allows one more thread, and at most doubles their number.
 */
void loop_answered_early(struct cfs_fuse *f, int change);
/* The request that a handler is called for; valid until the handler returns. */
const struct cfs_request *request_of(fuse_req_t req);
/* Carries out a request of the ring; cfs_ring_conf. */
void loop_serve_ring(void *arg, struct cfs_request *rq, unsigned place);

/* libfuse-answers.c */
/*
 * libfuse itself answers requests that have no handler, on its descriptor. Until _stop() the
 * channel sends these answers: a request of the ring must be answered through the ring.
 */
int own_answers_start(struct cfs_fuse *f);
void own_answers_stop(struct cfs_fuse *f);

/* killed.c */
int killable_start(struct cfs_fuse *f);
void killable_stop(struct cfs_fuse *f);
/* Bracket the handling of a request. NULL: it is never answered early. */
struct killable *killable_begin(struct cfs_fuse *f, const struct cfs_request *rq);
/* r may be NULL. ino: the inode that the request may have changed; 0: none. */
void killable_end(struct cfs_fuse *f, struct killable *r, uint64_t ino);
/*
 * On a thread that must not wait: ends it. False: it was answered, or may be at any moment, so that
 * killable_end() must follow on another thread. r may be NULL.
 */
bool killable_leave(struct killable *r);
/* Between the two: the caller was killed, and has its answer. r may be NULL. */
bool killable_was_answered(const struct killable *r);
/*
 * Whether the thread `pid`, whose request began age_ms ago, is being killed. False where /proc does
 * not tell.
 */
bool caller_is_killed(pid_t pid, uint64_t age_ms);

/* dispatch.c */
extern const struct fuse_lowlevel_ops fuse_ops;

/* ops-name.c */
void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t count);
void op_forget_multi(fuse_req_t req, size_t n, struct fuse_forget_data *forgets);
void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int to_set,
		struct fuse_file_info *fi);
void op_readlink(fuse_req_t req, fuse_ino_t ino);
void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev);
void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name);
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
	       const char *new_name, unsigned int flags);
void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name);
void op_access(fuse_req_t req, fuse_ino_t ino, int mask);
void op_statfs(fuse_req_t req, fuse_ino_t ino);
struct cfs_mknod make_request(const struct call *c, fuse_ino_t parent, const char *name,
			      mode_t mode);

/* ops-file.c */
void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi);
void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *src, off_t off,
		  struct fuse_file_info *fi);
void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsync(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi);
void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t off, off_t len,
		  struct fuse_file_info *fi);
void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
			struct fuse_file_info *fi_out, size_t len, int flags);
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi);

/* ops-dir.c */
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi);
void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi);

/* ops-xattr.c */
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
		 int flags);
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);
void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg,
	      struct fuse_file_info *fi, unsigned flags, const void *in, size_t in_size,
	      size_t out_size);

/* ops-lock.c */
void op_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock);
void op_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock,
	      int sleep);
void op_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int op);
/* Ends all waits for locks. */
void waiters_stop(struct cfs_fuse *f);

#endif
