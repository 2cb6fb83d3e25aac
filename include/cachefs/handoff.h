/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a mount that outlives the process serving it: a memory file (memfd). The process
 * updates it with plain stores and without system calls, so that it is consistent after a kill at
 * any instruction. A successor that has its descriptor and the FUSE connection can continue the
 * mount.
 *
 * The file has a header, the agreement with the kernel, the unsynced slices and four tables, all at
 * fixed offsets. The kernel allocates memory only for pages that have been written. Each record has
 * a key that is stored last and cleared first: a record with a key is complete. Numbers are the
 * machine's own, since the file never leaves it.
 *
 * Every function may be called from any thread. A NULL handoff or record is allowed where noted and
 * means that nothing is recorded.
 */
#ifndef CFS_HANDOFF_H
#define CFS_HANDOFF_H

#include <cachefs/store.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct cfs_handoff;

#define CFS_HANDOFF_NAME  "cachefs-keep" /* of the memory file */
#define CFS_HANDOFF_MAGIC "cfskeep"
/*
 * Version of the layout below; later ones are refused. 2: as 1, and the agreement with the kernel
 * may leave clearing setuid and setgid to the process (FUSE_HANDLE_KILLPRIV_V2).
 */
#define CFS_HANDOFF_VERSION 2u
/*
 * The version of a mount whose connection has passthrough: records tell of backing ids and nodes.
 */
#define CFS_HANDOFF_VERSION_PASSTHROUGH 3u
#define CFS_HANDOFF_HANDLES		(1u << 20)
#define CFS_HANDOFF_INODES		(1u << 20)
#define CFS_HANDOFF_REQUESTS		4096u
#define CFS_HANDOFF_DIRS		(1u << 16)
#define CFS_HANDOFF_CURSOR		256
#define CFS_HANDOFF_OWNERS		3
#define CFS_HANDOFF_INIT_MAX		256
#define CFS_HANDOFF_UNLOCK		1u /* the number of no handle */

struct cfs_handoff_header {
	char magic[8];
	uint32_t version, bytes; /* of the header */
	uint32_t handle_bytes, inode_bytes, request_bytes, dir_bytes;
	uint32_t n_handles, n_inodes, n_requests, n_dirs;

	/* Of the mount, for its whole life. */
	char uuid[40]; /* of the volume */
	uint64_t root; /* inode */
	uint64_t started_s;
	uint8_t read_only;
	_Atomic uint8_t closed_lost; /* bytes of closed files were, and no fsync has said so */
	uint8_t spare[6];

	/* The session in the metadata; 0: none. */
	_Atomic uint64_t sid;

	/* The FUSE_INIT agreement: the kernel's request, and the reply of the process. */
	_Atomic uint32_t init_len; /* 0: not yet */
	uint32_t want, max_write, max_read, max_background, congestion_threshold;
	uint8_t init[CFS_HANDOFF_INIT_MAX];

	_Atomic uint32_t workers;   /* processes that have served the mount */
	_Atomic uint32_t restarts;  /* of these after the death of another */
	_Atomic uint32_t takeovers; /* of these by an upgrade */
	_Atomic uint32_t n_used;    /* handle records that were ever in use */
	_Atomic uint32_t n_marked;  /* inode records that were */
	_Atomic uint32_t n_listed;  /* directory records that were */

	/*
	 * The last session that others have ended; 0: none. The same as sid while the mount has no
	 * other one.
	 */
	_Atomic uint64_t ended_sid;
};

/*
 * The agreement of the kernel and the mount in FUSE_INIT, for the life of the connection. Flags as
 * the kernel numbers them: flags is the lower half, flags2 the upper one. minor 0: nothing is known
 * yet, or an older program agreed.
 */
struct cfs_agreement {
	uint64_t asked;	 /* flags that the kernel offered */
	uint64_t wanted; /* flags that the mount would take */
	uint64_t sent;	 /* flags of the reply */
	uint32_t minor;	 /* version of the interface, of the reply as all below */
	uint32_t max_write, max_readahead, max_pages;
	uint32_t max_background, congestion_threshold;
	uint32_t time_gran_ns, max_stack_depth;
};

/*
 * LOST: bytes of the file were lost when a process died. REPORTED: an fsync through this handle has
 * returned EIO for them. When the process dies before the next fsync, that answer may not have
 * reached the caller, and the state is LOST again.
 */
enum cfs_handoff_lost { CFS_HANDOFF_INTACT, CFS_HANDOFF_LOST, CFS_HANDOFF_REPORTED };

/* Bits: the node that a file was opened at (cfs_vfs_node), and that the handle passes through. */
enum cfs_handoff_passthrough { CFS_HANDOFF_OTHER_NODE = 1, CFS_HANDOFF_PASSED = 2 };

/* Record i belongs to the handle whose table index is i. */
struct cfs_handoff_handle {
	_Atomic uint64_t fh; /* the key */
	uint64_t ino;
	_Atomic uint64_t flock_owner;
	/*
	 * Some of the owners that set POSIX locks through it; 0: none. Owners whose locks no close
	 * of a descriptor reports (OFD locks) are one per handle.
	 */
	_Atomic uint64_t plock_owners[CFS_HANDOFF_OWNERS];
	_Atomic uint32_t gen; /* of the next handle in this place */
	uint32_t flags;	      /* O_* */
	uint8_t kind;
	_Atomic uint8_t flocked, plocked;
	_Atomic uint8_t wrote;
	_Atomic uint8_t lost;	   /* enum cfs_handoff_lost */
	_Atomic uint8_t released;  /* the kernel closed it while no process served the mount */
	uint8_t passthrough;	   /* of a file: enum cfs_handoff_passthrough */
	_Atomic uint8_t lock_lost; /* it had a file lock when the session ended */
};

/*
 * UNCOMMITTED: the open inode has bytes that were accepted and are not yet committed. LOSS: the
 * record is not of an open inode: a file lost bytes after its close, and no fsync of it has said so.
 */
enum cfs_handoff_dirty { CFS_HANDOFF_CLEAN, CFS_HANDOFF_UNCOMMITTED, CFS_HANDOFF_LOSS };

/* An open inode, or a loss. */
struct cfs_handoff_inode {
	_Atomic uint64_t ino;	/* the key */
	_Atomic uint32_t dirty; /* enum cfs_handoff_dirty */
	union {
		uint32_t next_free;	  /* while it is free: of the process that uses it */
		_Atomic uint32_t backing; /* id of the file that the kernel reads; 0: none */
	};
};

/*
 * Bits of a request. UNNAMED: it makes a file without a name. FAILED: it is answered with an error
 * before its end, and what it makes is of no use.
 */
enum cfs_handoff_request_flags { CFS_HANDOFF_UNNAMED = 1, CFS_HANDOFF_FAILED = 2 };

/* A request under way that must not take effect twice. */
struct cfs_handoff_request {
	_Atomic uint64_t unique; /* the key */
	_Atomic uint64_t ino;	 /* the inode it creates, or found before changing it */
	_Atomic uint64_t fh;	 /* the handle it has opened */
	_Atomic uint32_t worker; /* the process that last took it */
	_Atomic uint32_t flags;	 /* enum cfs_handoff_request_flags */
};

/*
 * How far a directory has been read through a handle: the two latest positions that the kernel may
 * continue from, the one before the last reply included.
 */
struct cfs_handoff_dir {
	_Atomic uint64_t fh; /* the key */
	uint32_t next;	     /* the position written next */
	uint32_t next_free;  /* of the process that uses it */
	struct cfs_handoff_position {
		_Atomic uint64_t index; /* of the entry behind it, from 1; the key */
		uint16_t len;		/* of the cursor */
		uint8_t cursor[CFS_HANDOFF_CURSOR];
	} position[2];
};

/*
 * An unlock that the metadata has not confirmed, in the place of a directory's record. Older
 * programs free it, as the record of a handle that does not exist.
 */
struct cfs_handoff_unlock {
	_Atomic uint64_t key; /* CFS_HANDOFF_UNLOCK */
	uint32_t posix;
	uint32_t next_free; /* of the process that uses it */
	uint64_t ino, owner;
};

int cfs_handoff_create(struct cfs_handoff **ret);
/*
 * Attaches to the file of another process. cfs_handoff_close() closes fd; a failure leaves it open.
 * -EPROTO and err (one line): not such a file, or of an unknown version.
 */
int cfs_handoff_attach(int fd, struct cfs_handoff **ret, char err[256]);
void cfs_handoff_close(struct cfs_handoff *state); /* or NULL */
int cfs_handoff_fd(const struct cfs_handoff *state);
/* For cfs_store_create(); NULL of NULL. All zeros when an older program made the file. */
struct cfs_unsynced *cfs_handoff_unsynced(struct cfs_handoff *state);
struct cfs_handoff_header *cfs_handoff_header(struct cfs_handoff *state);
struct cfs_agreement *cfs_handoff_agreement(struct cfs_handoff *state);
/* Reads it from the file of another process, also one that hangs. -EPROTO: not such a file. */
int cfs_handoff_read_agreement(int fd, struct cfs_agreement *ret);

struct cfs_handoff_handle *cfs_handoff_handle(struct cfs_handoff *state,
					      uint32_t i); /* NULL of NULL */
/*
 * True when nothing was written through the handle and no POSIX lock taken: a flush has nothing to
 * do.
 */
bool cfs_handoff_is_clean(struct cfs_handoff *state, uint64_t fh);
/* Notes that the handle has been closed; the successor then releases it. */
void cfs_handoff_released(struct cfs_handoff *state, uint64_t fh);
/* The successor reads the records up to this one. */
void cfs_handoff_use_handle(struct cfs_handoff *state, uint32_t i);

/* Called before an fsync through the handle is answered. True: answer EIO, since bytes are LOST. */
bool cfs_handoff_report_loss(struct cfs_handoff_handle *h);

/* A record for an inode that is being opened; NULL of NULL, and when there is none left. */
struct cfs_handoff_inode *cfs_handoff_add_inode(struct cfs_handoff *state, uint64_t ino);
void cfs_handoff_remove_inode(struct cfs_handoff *state,
			      struct cfs_handoff_inode *mark); /* or NULL */
/*
 * For the successor, before anything is marked. Sets every handle of a file LOST when the previous
 * process accepted bytes of it and did not store them, and frees the inode records. Those with a
 * backing id, and losses, stay as the first header.n_marked ones until cfs_handoff_remove_inode().
 * All handles are concerned: the kernel writes back through any writable handle of the file, not
 * only through the one that the program used. Returns the number of such handles. *ret_closed: how
 * many such files have no writable handle, whose close or fsync would tell. At most `max` inodes go
 * to inos, those of the handles first.
 */
size_t cfs_handoff_mark_lost(struct cfs_handoff *state, uint64_t *inos, size_t max,
			     size_t *ret_closed);
/* Record i of those that were in use. */
struct cfs_handoff_inode *cfs_handoff_inode(struct cfs_handoff *state, uint32_t i);

/* A record for a directory that is being read; NULL of NULL, and when there is none left. */
struct cfs_handoff_dir *cfs_handoff_add_dir(struct cfs_handoff *state, uint64_t fh);
void cfs_handoff_remove_dir(struct cfs_handoff *state, struct cfs_handoff_dir *d); /* or NULL */
/*
 * For the successor: record i of those that were in use; the caller passes a free one to
 * cfs_handoff_remove_dir().
 */
struct cfs_handoff_dir *cfs_handoff_dir(struct cfs_handoff *state, uint32_t i);
/* NULL of NULL, and when there is no record left. */
struct cfs_handoff_unlock *cfs_handoff_add_unlock(struct cfs_handoff *state, uint64_t ino,
						  uint64_t owner, bool posix);
void cfs_handoff_remove_unlock(struct cfs_handoff *state,
			       struct cfs_handoff_unlock *u); /* or NULL */
/* The record as an unlock; NULL: it is none. */
struct cfs_handoff_unlock *cfs_handoff_as_unlock(struct cfs_handoff_dir *d);
void cfs_handoff_set_position(struct cfs_handoff_dir *d, uint64_t index, const void *cursor,
			      size_t len);
/* The directory is read again from its beginning. */
void cfs_handoff_rewind(struct cfs_handoff_dir *d);

/*
 * Notes that a request is being executed. *ret_replay: a process that died had begun it already.
 * NULL of NULL, for unique 0 and when there is no room; then *ret_replay is `resent`, as nothing is
 * known.
 */
struct cfs_handoff_request *cfs_handoff_begin_request(struct cfs_handoff *state, uint64_t unique,
						      bool resent, bool *ret_replay);
/* Notes that the request is answered. */
void cfs_handoff_end_request(struct cfs_handoff_request *r); /* or NULL */
/*
 * Notes whether the request of that number fails, before the answer: it is not resent after that.
 * Nothing when it has no record.
 */
void cfs_handoff_fail_request(struct cfs_handoff *state, uint64_t unique, bool fails);
/* The next recorded request, from *pos on (at first 0), or NULL. */
struct cfs_handoff_request *cfs_handoff_next_request(struct cfs_handoff *state, uint32_t *pos);

#endif
