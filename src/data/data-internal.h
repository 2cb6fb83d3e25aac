/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the data layer.
 *
 *	data.c     life, the table of files, the flusher
 *	view.c     records of a chunk -> visible pieces
 *	chunks.c   cached record lists of open files
 *	file.c     length and attributes; truncate, fallocate, copy, seek
 *	read.c     reads; session.c: read-ahead; amplify.c: whole blocks
 *	ahead.c    read-ahead over files that are opened one after the other
 *	write.c    writes into open slices
 *	slice.c    from an open slice to a committed record
 *	flush.c    waiting for that
 *	close.c    not waiting for that: files that are committed in the order of their closes
 *	attrs.c    mode, owner and times that are stored with the data
 *	suspect.c  files whose bytes the object store may have lost
 *	compact.c  many records -> one
 *	whole.c    files that the disk cache has as plain files
 *	metrics.c  numbers
 *
 * Lock order: d->lock, file->lock, d->closing.lock and the lock of ahead.c, then the leaves below
 * this layer (pool, workers). Under the first two no call of the store or the metadata is made and no
 * page is taken; only reserved space is given back.
 */
#ifndef CFS_DATA_INTERNAL_H
#define CFS_DATA_INTERNAL_H

#include <cachefs/data.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "base/buf.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/metric.h"
#include "base/table.h"
#include "base/workers.h"

#define CFS_FILE_SESSIONS   16
#define CFS_FILE_PAST	    16
#define CFS_FILE_ERRORS	    8
#define CFS_FILE_CHUNKS	    512	 /* cached lists per file */
#define CFS_FILE_PENDING    512	 /* slices per file that are not committed; then writers wait */
#define CFS_CHUNK_OPEN	    8	 /* open slices per chunk; then the oldest is frozen */
#define CFS_SLICE_BLOCK_MAX 1024 /* CFS_CHUNK_SIZE / the smallest block size */

struct cfs_compact_job;
TAILQ_HEAD(cfs_file_list, cfs_file);
TAILQ_HEAD(cfs_wslice_list, cfs_wslice);
TAILQ_HEAD(cfs_compact_list, cfs_compact_job);
TAILQ_HEAD(cfs_closing_list, cfs_closing);

/* A closed file whose slices are not committed yet, close.c. */
struct cfs_closing {
	TAILQ_ENTRY(cfs_closing) in_queue;
	struct cfs_file *file;	    /* holds a reference */
	uint64_t ticket;	    /* its number in the order of closes */
	uint64_t last;		    /* the slice written last before the close */
	uint32_t err_seq, late_seq; /* of the file at the close */
	int err;
	cfs_file_closed_fn closed;
	void *arg;
};

struct cfs_closing_queue {
	pthread_mutex_t lock;
	pthread_cond_t moved;	       /* the first one has ended */
	struct cfs_closing_list files; /* in the order of closes, in which they commit */
	uint64_t tickets;	       /* given out */
	bool advancing, again;	       /* a thread looks at the first one; it must look again */
	_Atomic uint64_t n;	       /* files, and closes about to add one; bounded */
	_Atomic bool ending;	       /* no file is waited for any more */
};

/* Until when chunks are not compacted, unless they must be: their last compaction has failed. */
#define CFS_COMPACT_FAILED 64
struct cfs_compact_pauses {
	struct cfs_compact_failed {
		cfs_ino_t ino;
		uint32_t indx;
		uint64_t until_ms;
	} failed[CFS_COMPACT_FAILED];
	/* When compactions of several files fail in succession, all chunks pause. */
	uint64_t all_until_ms;
	cfs_ino_t last_ino;
	unsigned files;
};

struct cfs_data {
	struct cfs_data_conf conf;
	struct cfs_table *files;      /* by inode */
	struct cfs_workers *flushers; /* uploads of frozen slices, retries, commits */
	struct cfs_workers *compactors;
	struct cfs_ticker *ticker;
	struct cfs_ahead *ahead;
	struct cfs_wholes *wholes; /* NULL: there are no whole files */
	_Atomic bool draining;	   /* no more compaction */
	_Atomic uint64_t pressure; /* bytes that the pool asks back */

	/* Protects what follows, and membership of files in `dirty`. */
	pthread_mutex_t lock;
	struct cfs_file_list dirty; /* files with slices that are not committed, oldest first */
	struct cfs_compact_list compacts; /* compactions queued or running */
	unsigned n_compacts;
	pthread_cond_t compacted; /* signalled when a compaction has ended */
	struct cfs_compact_pauses pauses;

	struct cfs_closing_queue closing;

	_Atomic uint64_t stored_ms; /* when a block was last stored */
	_Atomic uint64_t n_files, n_slices, dirty_bytes, lost_bytes, lost_files;
	_Atomic uint64_t commits, grouped_commits, commit_errors, readahead_bytes, compactions;
	_Atomic uint64_t changed_files;
	_Atomic uint64_t prefetches_declined;
	_Atomic uint64_t ahead_fetched_files, ahead_used_files, ahead_wasted_files;
	_Atomic uint64_t ahead_fetched_bytes, ahead_used_bytes, ahead_wasted_bytes;
};

/*
 * Attributes set here that are not stored yet. set: which; besides those of struct cfs_attr_change
 * CFS_SET_MTIME.
 */
struct cfs_waiting_attrs {
	struct cfs_attr_change change;
	struct timespec mtime, ctime;
	uint64_t seq; /* counts the changes of this structure */
};

/* By both clocks: this host may be suspended, and its clock may be set. */
struct cfs_clocks {
	uint64_t boot_ms; /* CLOCK_BOOTTIME */
	int64_t wall_s;	  /* CLOCK_REALTIME */
};

/* Written bytes without a record in the metadata yet: one range of one chunk. */
struct cfs_wslice {
	struct cfs_file *file; /* holds a reference */
	struct cfs_chunk *chunk;
	TAILQ_ENTRY(cfs_wslice) in_chunk, in_file;
	uint64_t seq; /* order of creation in the file */
	uint64_t id;  /* 0 until the first block is put */
	uint32_t pos, len;
	uint32_t handed; /* bytes given to the store; they never change again */
	unsigned puts;	 /* puts that the store has not answered yet */
	bool busy;	 /* a writer copies into it */
	bool frozen;	 /* takes no more writes */
	bool held;	 /* waits until its closed file may commit */
	bool claimed;	 /* a thread has undertaken to upload its tail */
	bool tailed;	 /* ... and has started: no bytes are left to hand over */
	bool sent;	 /* a commit was begun; a repeated one is the same to the last attribute */
	bool carries;	 /* ... and has attributes with it, in `attrs` */
	int err;
	struct timespec mtime;
	struct cfs_waiting_attrs attrs;
	uint64_t born_ms, touched_ms;
	struct cfs_clocks born;
	struct cfs_page **pages; /* per CFS_PAGE_LARGE; NULL when stored */
	uint32_t n_pages;
	uint64_t stored[CFS_SLICE_BLOCK_MAX / 64]; /* bit per block */
	uint64_t moment; /* cfs_store_moment() when its last block was stored */
	struct cfs_job job;
};

/* Half of the age below which `cachefs gc` leaves blocks without a record alone by default. */
#define CFS_GC_AGE_MS ((uint64_t)1800 * 1000)

static inline struct cfs_clocks cfs_clocks_now(void)
{
	return (struct cfs_clocks){.boot_ms = cfs_boot_ms(), .wall_s = cfs_wall_s()};
}

/*
 * Whether it may take blocks that were stored since then for leaked. The object store's clock, by
 * which it judges, may have been set ahead together with that of this host.
 */
static inline bool cfs_gc_may_remove(struct cfs_clocks since)
{
	return cfs_boot_ms() - since.boot_ms >= CFS_GC_AGE_MS ||
	       cfs_wall_s() - since.wall_s >= (int64_t)(CFS_GC_AGE_MS / 1000);
}

struct cfs_chunk {
	struct cfs_file *file;
	uint32_t indx;
	unsigned pins; /* holders of a pointer to it without the file's lock */
	bool cached;
	bool committing; /* cfs_chunk_commit() is running, or its job is queued */
	uint64_t gen;	 /* changes with the stored list, as far as this client knows */
	uint64_t mark;	 /* file->own_mark when the list was read */
	uint64_t used;	 /* file->clock of the last use */
	struct cfs_slice *recs;
	size_t n_recs, cap_recs;
	struct cfs_view view;
	struct cfs_wslice_list pending; /* oldest first; commits go in this order */
	unsigned n_open;
	/*
	 * Of the first slice: failed tries to commit it, and what they left in struct cfs_commit.
	 */
	unsigned attempt;
	bool repeated;
	uint64_t known_length;
	cfs_deadline_t give_up;
	struct cfs_job job;
};

/* A sequential stream of reads. */
struct cfs_session_read {
	uint64_t stream;
	uint64_t start, end; /* lowest and highest byte read without gaps */
	uint64_t ahead;	     /* prefetched up to here */
	uint64_t window;     /* 0: not yet known to be sequential */
	uint64_t run;	     /* bytes advanced since the window last grew */
	uint64_t way;	     /* bytes advanced lately, and ... */
	uint64_t got;	     /* ... how many of them were read */
	unsigned reads;
	uint64_t used; /* file->clock; 0: free */
};

/* A session that has ended. */
struct cfs_session_past {
	uint64_t start, end; /* end 0: none */
};

struct cfs_file {
	struct cfs_node node; /* key: the inode */
	struct cfs_data *data;
	_Atomic uint32_t refs;	/* handles, slices, work under way */
	_Atomic uint32_t opens; /* handles */
	TAILQ_ENTRY(cfs_file) in_dirty;

	/* Protects the fields below; held for memory accesses only. */
	pthread_mutex_t lock;
	pthread_cond_t cond; /* signals: op ended, slice gone, work for an idle flusher */
	unsigned waiters;    /* threads that wait on cond */
	unsigned flush_idle; /* of these, flushers that can take over work */
	unsigned settling;   /* threads in cfs_file_settle() */
	bool listed;	     /* in data->dirty; changed under both locks */
	bool op;	     /* a write, truncate, ... is under way; see cfs_file_op_begin() */

	struct cfs_attr attr;	 /* as stored */
	uint64_t asked_ns;	 /* when the metadata was last asked for attr */
	uint64_t length;	 /* as readers see it */
	uint64_t own_ns;	 /* when this client's last change was answered, 0 for none */
	uint64_t compacted_ns;	 /* when a list was last found to be outdated by compaction */
	uint64_t own_mark;	 /* number of own changes */
	struct timespec written; /* time of the last write call that is not committed */

	uint64_t clock;
	struct cfs_chunk **chunks; /* sorted */
	size_t n_chunks, cap_chunks;
	struct cfs_wslice_list slices; /* not committed, in order of creation */
	unsigned n_pending;
	struct cfs_closing *closing;	  /* NULL: it is not in the queue */
	unsigned n_sent;		  /* of them, with a commit under way */
	struct cfs_waiting_attrs waiting; /* set 0: none */
	bool carrying;			  /* a commit with attributes is under way */
	_Atomic uint32_t *mark; /* tells others that slices are uncommitted, cfs_file_set_mark();
				 * may be NULL */
	bool lost;		/* accepted bytes could not be stored: the mark stays */
	uint64_t seq;

	uint32_t late_seq; /* blocks that missed their deadline and are kept */
	uint32_t err_seq;
	int errs[CFS_FILE_ERRORS];
	struct cfs_session_read sessions[CFS_FILE_SESSIONS];
	struct cfs_session_past past[CFS_FILE_PAST]; /* the last ones; the oldest is replaced */
	unsigned next_past;
	uint64_t pause; /* reads of other sessions after which one has probably ended */
	struct cfs_amplify *amplify; /* NULL: there was no random read */
};

/* data.c */
void cfs_file_ref(struct cfs_file *f);
void cfs_file_unref(struct cfs_file *f);
/* NULL when the file is not open. */
struct cfs_file *cfs_data_find(struct cfs_data *d, cfs_ino_t ino);
/* Updates the file's place in `dirty` after slices came or went. Called without locks. */
void cfs_file_list_dirty(struct cfs_file *f);
/* Called with the file's lock: returns the reserved space of a file that has nothing to commit. */
void cfs_file_release_space(struct cfs_file *f);

/* ahead.c */
int cfs_ahead_create(struct cfs_ahead **ret);
void cfs_ahead_destroy(struct cfs_ahead *a);
/* Called without locks: the file was opened with these attributes. */
void cfs_ahead_opened(struct cfs_data *d, cfs_ino_t ino, const struct cfs_attr *attr);
/* Gives up files that were not opened in time. */
void cfs_ahead_age(struct cfs_data *d);
/* For the metrics: bytes of files that are not opened yet. */
uint64_t cfs_ahead_waiting(void *part);

/* suspect.c */
/* -EIO when a record of the chunk refers to bytes that the object store may have lost. */
int cfs_records_suspect(struct cfs_data *d, const struct cfs_slice *recs, size_t n);
/* The same for the whole file, by the records in the metadata. */
int cfs_file_suspect(struct cfs_file *f, const struct cfs_ctx *ctx);

/* view.c */
/* The first piece that ends behind pos, or n. */
size_t cfs_view_find(const struct cfs_view *v, uint32_t pos);
int cfs_view_append(struct cfs_view *v, const struct cfs_slice *r);

/* chunks.c; with the file's lock unless noted */
struct cfs_chunk *cfs_chunk_find(struct cfs_file *f, uint32_t indx);
struct cfs_chunk *cfs_chunk_get(struct cfs_file *f, uint32_t indx); /* NULL: no memory */
/*
 * Reads the list from the metadata. Called without locks; the caller must look it up again. -EIO:
 * the deadline has passed.
 */
int cfs_chunk_load(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t indx);
void cfs_chunk_drop(struct cfs_chunk *c);
/*
 * The chunk was compacted: its list, and answers on their way, name slices that may soon be gone.
 */
void cfs_chunk_compacted(struct cfs_file *f, uint32_t indx);
/* True when the list is cached and an open may go on using it (close-to-open). */
bool cfs_chunk_sure(const struct cfs_chunk *c);
/* Drops the lists of chunks from..to. */
void cfs_chunks_drop(struct cfs_file *f, uint32_t from, uint32_t to);
/* The first chunk from `from` on that has uncommitted slices; UINT32_MAX: none. */
uint32_t cfs_chunks_pending(const struct cfs_file *f, uint32_t from);
/* A record of our own was appended to the stored list. */
void cfs_chunk_append(struct cfs_chunk *c, const struct cfs_slice *r);
void cfs_chunks_free(struct cfs_file *f);

/* file.c */
/*
 * Operations that change a file are serialised: this waits for the one under way. Flushes and reads
 * do not wait.
 */
int cfs_file_op_begin(struct cfs_file *f, cfs_deadline_t deadline);
void cfs_file_op_end(struct cfs_file *f);
/* As cfs_file_overlay_attr(), with the file's lock. */
void cfs_file_overlay(const struct cfs_file *f, struct cfs_attr *attr);
/* Called with the file's lock. */
void cfs_file_wake(struct cfs_file *f);
void cfs_file_compute_length(struct cfs_file *f);
void cfs_file_changed(struct cfs_file *f, const struct cfs_attr *attr);
/*
 * Whether bytes at off lie over stored ones that fsync may have promised, or behind them in the
 * same page: a record without its object would make these unreadable after a power failure, as the
 * kernel reads whole pages. Called with the file's lock.
 */
bool cfs_file_covers_stored(const struct cfs_file *f, uint64_t off);

/* session.c; with the file's lock */
/* The reads that are expected after one. Offsets in the file. */
struct cfs_forecast {
	uint64_t off, end;   /* to be read ahead; off == end: nothing */
	uint64_t likely_end; /* its session will probably be read up to here; 0: not known */
	bool random;	     /* the read belongs to no stream */
};
/* Notes a read of [off, end). repeated: it was noted before, and nothing is to be read ahead. */
void cfs_session_advance(struct cfs_file *f, uint64_t stream, uint64_t off, uint64_t end,
			 bool repeated, struct cfs_forecast *ret);
/* The share of the pool that read-ahead may use, less the bytes in flight. Any lock may be held. */
uint64_t cfs_session_room(struct cfs_data *d);
/* Of the planned read-ahead up to `end`, only the part before `reached` will happen. */
void cfs_session_withdraw(struct cfs_file *f, uint64_t stream, uint64_t end, uint64_t reached);
/* The owner number of a handle's prefetches in the store. */
static inline uint64_t cfs_session_owner(const struct cfs_file *f, uint64_t stream)
{
	return (f->node.key * 0x9E3779B97F4A7C15ULL ^ stream) | 1;
}

/* amplify.c; with the file's lock */
/* Notes a read outside of any stream. True when the whole block should be fetched. */
bool cfs_amplify_note(struct cfs_file *f, const struct cfs_block *b, uint32_t off, uint32_t len,
		      enum cfs_source source);

/* slice.c; with the file's lock unless noted */
struct cfs_wslice *cfs_wslice_new(struct cfs_chunk *c, uint32_t pos);
void cfs_wslice_freeze(struct cfs_wslice *s);
/* Whether its tail needs an uploader. */
bool cfs_wslice_due(const struct cfs_wslice *s);
/* Hands a due tail to an idle flusher or to a worker. */
void cfs_wslice_kick(struct cfs_wslice *s);
/*
 * Uploads the tail; the caller has claimed it. sync: in this thread, and the caller then commits
 * what is due. Called without locks.
 */
void cfs_wslice_upload(struct cfs_wslice *s, bool sync, cfs_deadline_t deadline);
/* Puts blocks [first, last), which are handed and counted in s->puts. Called without locks. */
void cfs_wslice_put(struct cfs_wslice *s, uint32_t first, uint32_t last, bool sync,
		    cfs_deadline_t deadline);
/* Whether the first slice is ready and no commit is under way. */
bool cfs_chunk_due(const struct cfs_chunk *c);
void cfs_chunk_kick(struct cfs_chunk *c);
/* Commits the slices that are ready; the caller has set committing and holds a reference to the
 * file. Called without locks. */
void cfs_chunk_commit(struct cfs_chunk *c, cfs_deadline_t deadline);
/* The commit of a file in a group; slice and commit are undefined until it is taken. */
struct cfs_group_commit {
	struct cfs_wslice *slice;
	struct cfs_commit commit;
	struct cfs_attr_change attrs;
};
/*
 * True when all that is left of the file's slices up to number `last` is one commit like most: its
 * commit begins, which cfs_group_commit() makes or cfs_group_return() undoes. The file is
 * referenced until then.
 */
bool cfs_group_take(struct cfs_file *f, uint64_t last, struct cfs_group_commit *ret);
/* Called without locks. */
void cfs_group_return(struct cfs_group_commit *g);
/*
 * Makes the commits of n closed files, at most CFS_COMMITS_MAX, in this order. Called without locks.
 */
void cfs_group_commit(struct cfs_data *d, struct cfs_group_commit *v, size_t n);
/* Kicks every slice and chunk that is due. */
void cfs_file_kick(struct cfs_file *f);
void cfs_file_freeze(struct cfs_file *f);

/* attrs.c; with the file's lock */
/*
 * Whether a commit may begin. One with attributes is alone, so that no other can be carried out
 * before or after it in another order.
 */
bool cfs_attrs_may_commit(const struct cfs_file *f);
/* A commit of s begins: it gets what waits. */
void cfs_attrs_begin(struct cfs_wslice *s);
/* It has ended, or never will be repeated. */
void cfs_attrs_end(struct cfs_wslice *s, bool stored);
/* What `set` still asks for; 0: nothing waits any more. */
void cfs_attrs_keep(struct cfs_file *f, uint32_t set);
/* Replaces what waits in attr. */
void cfs_attrs_overlay(const struct cfs_file *f, struct cfs_attr *attr);

/* flush.c */
/*
 * Waits until everything written before the call is committed or has failed. 0, or -EIO: at the
 * deadline, or as soon as a block misses its own.
 */
int cfs_file_settle(struct cfs_file *f, cfs_deadline_t deadline);
/* Shows that the calling thread waits for the commit of the slice; for base/activity.h. */
void cfs_file_await_commit(const struct cfs_file *f, uint64_t slice);

/* close.c */
int cfs_closing_init(struct cfs_closing_queue *q);
void cfs_closing_fini(struct cfs_closing_queue *q);
/* Removes committed files from the queue, and has the next ones commit. Called without locks. */
void cfs_closing_advance(struct cfs_data *d);
/* Whether all slices of the file wait in the queue. Called without locks. */
bool cfs_closing_has_all(struct cfs_file *f);
/* Called with the file's lock: a thread waits for its slices, which may commit out of order. */
void cfs_closing_release(struct cfs_file *f);

/* whole.c */
int cfs_wholes_start(struct cfs_data *d);
/* None is made after the return. No file may be opened any more. */
void cfs_wholes_stop(struct cfs_data *d);
void cfs_wholes_free(struct cfs_data *d);

/* compact.c */
/* Ends compaction for good: none runs after the return. */
void cfs_compact_stop(struct cfs_data *d, cfs_deadline_t deadline);

#endif
