/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File data: byte ranges of inodes on chunks, slices and blocks (volume-format section 6).
 *
 * One struct cfs_file per inode that is open on this mount, shared by all its handles. Writes go to
 * open slices in budgeted pages. Full blocks are stored while the application still writes. A slice
 * becomes visible to other clients when its record is committed: at flush, fsync, after 5 s, or
 * under memory pressure. Local readers see unflushed bytes at once.
 *
 * No lock is held across a store or metadata call.
 */
#ifndef CFS_DATA_H
#define CFS_DATA_H

#include <cachefs/meta.h>
#include <cachefs/store.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct cfs_data;
struct cfs_file;
struct cfs_disk;
struct cfs_whole_file;
struct cfs_session_read; /* a read session: one sequential stream, see read.c */

struct cfs_data_conf {
	struct cfs_meta *meta;	 /* borrowed */
	struct cfs_store *store; /* borrowed */
	struct cfs_pool *pool;	 /* borrowed */
	uint32_t block_size;
	uint64_t flush_age_ms;	/* 5 000: oldest an open slice gets */
	uint64_t flush_idle_ms; /* 1 000: without writes */
	uint64_t max_readahead; /* bytes per file, and of the files ahead of opens; 0: none */
	uint64_t io_timeout_ms; /* deadline of background work */
	/* How long the store may take for one transfer; for compaction. 0: io_timeout_ms */
	uint64_t transfer_timeout_ms;
	struct cfs_disk *disk; /* borrowed; where whole files are. NULL: there is no disk cache */
	bool passthrough;      /* whole files are made */
	unsigned max_closing;  /* closed files that wait for their commit; further closes wait */
	bool read_only;
};

int cfs_data_create(const struct cfs_data_conf *conf, struct cfs_data **ret);
/*
 * Commits all bytes that were written before the call, of many files at a time, also of files that no
 * handle has open. 0 or the first error; -EIO at the deadline: the bytes stay, and are tried on. Each
 * handle still reports its own error to its next fsync.
 */
int cfs_data_store(struct cfs_data *d, cfs_deadline_t deadline);
/*
 * Commits the unflushed data of every file and ends compaction for good. Call it before
 * cfs_meta_stop(), whose hooks need the data layer alive. 0 or the first error.
 */
int cfs_data_drain(struct cfs_data *d);
/* Drains if that was not done; every file must have been put. */
int cfs_data_destroy(struct cfs_data *d);

/*
 * The file of an inode, with one more reference. Here as below, `attr` is the answer of the
 * metadata and asked_ns the time of the question (cfs_now_ns()). Cached chunk lists are dropped
 * when any time of attr differs from those they were read under: mtime alone is not enough, since a
 * program can set it back.
 */
int cfs_data_open(struct cfs_data *d, cfs_ino_t ino, const struct cfs_attr *attr, uint64_t asked_ns,
		  struct cfs_file **ret);
/* The last reference flushes nothing: call cfs_file_flush first; unflushed bytes are flushed in the
 * background. */
void cfs_file_put(struct cfs_file *f);
/*
 * Another open(2) of a file that the caller already has: as cfs_file_refresh(), and rereads chunk
 * lists in which a commit of this mount may have hidden changes by others (close-to-open).
 * cfs_data_open() does so too.
 */
void cfs_file_reopen(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns);
/* False when a read of the first chunk needs its records from the metadata. */
bool cfs_file_has_list(struct cfs_file *f);
/*
 * After cfs_data_open() or cfs_file_reopen(): the records of the first chunk that came with attr
 * (cfs_meta_open_file). They are not used when the file has changed meanwhile. Takes recs over.
 */
void cfs_file_take_list(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns,
			struct cfs_slice *recs, size_t n);
/* True when a handle of this mount has it open (cfs_meta_hooks.is_open). */
bool cfs_data_is_open(struct cfs_data *d, cfs_ino_t ino);

/*
 * The length a local reader sees: the larger of the stored length and the end of unflushed writes.
 */
uint64_t cfs_file_length(struct cfs_file *f);
/*
 * Makes attr what getattr must show: replaces the length, and the times by those of unflushed
 * writes when newer.
 */
void cfs_file_overlay_attr(struct cfs_file *f, struct cfs_attr *attr);
/* The last attributes of a removed file, without links. */
void cfs_file_last_attr(struct cfs_file *f, struct cfs_attr *ret);
/*
 * Changes mode, owner or times (cfs_meta_setattr) of a file with bytes that are not committed: the
 * result is shown here at once, and stored with these bytes, by the commit that comes next. When
 * the bytes are lost, so is the change. -EAGAIN: it must be made in the metadata, after a flush,
 * because there are no such bytes, or they are being committed already, or the metadata has a say.
 * *ret: the attributes to show.
 */
int cfs_file_setattr(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t set,
		     const struct cfs_attr *in, struct cfs_attr *ret);
/*
 * Stores such a change at once, without its bytes, for what must find it in the metadata. Waits for
 * the metadata only.
 */
int cfs_file_store_change(struct cfs_file *f, const struct cfs_ctx *ctx);
/* True when cfs_file_setattr() would find bytes to store a change with. */
bool cfs_file_takes_change(struct cfs_file *f);
/* How many files have such a change. */
uint64_t cfs_data_changed_files(struct cfs_data *d);
/* The metadata was re-read (getattr, setattr...). */
void cfs_file_refresh(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns);

/*
 * Reads up to `size` bytes at off, cut at the file's length, as pinned pieces (holes are pieces
 * without page). *ret must be initialised; on error it is empty. `stream` identifies the handle,
 * for read-ahead; any number that is stable per handle. async (may be NULL): -EINPROGRESS when the
 * read was started and ends by it (cachefs/async.h); async->len is set. f may be closed by then.
 */
int cfs_file_read(struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t stream, uint64_t off,
		  uint32_t size, struct cfs_async *async, struct cfs_segs *ret);
/* The handle is closed: its read sessions and their read-ahead end. */
void cfs_file_end_stream(struct cfs_file *f, uint64_t stream);

/*
 * Copies src into open slices. `append`: off is ignored, data goes to the end of the file. Waits
 * for memory within ctx->deadline. Errors of earlier background commits are reported by flush, not
 * here, except -ENOSPC/-EDQUOT, judged before the data is taken. Returns 0 (all bytes taken) or
 * negative.
 */
int cfs_file_write(struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t off, bool append,
		   const struct iovec *src, int n_src, uint64_t *ret_off);

/*
 * Commits everything written before the call. Returns the first error of any commit since err_seq,
 * a cursor per handle as errseq_t in the kernel, which starts at cfs_file_err_seq(). Only fsync
 * moves it: a close reports the error without consuming it, because a process may close many
 * descriptors and rarely checks the result. The next fsync of the same handle reports it again.
 */
uint32_t cfs_file_err_seq(struct cfs_file *f);
int cfs_file_flush(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t err_seq);
/*
 * Starts what cfs_file_flush() waits for, and lets the file wait for its turn: files given to this
 * call are committed one after the other, in the order of the calls. Blocks are stored in parallel.
 * A file leaves the order when a thread waits for it in another way (flush, fsync, truncate), or
 * when one of its blocks misses its deadline; the next one follows then.
 *
 * 1: `closed` will be called, once, by any thread and without locks: err is 0 or the first error
 * since this call. It is called before cfs_data_await_closed() returns. 0: nothing is left to
 * commit. Negative, as cfs_file_flush(): an error since err_seq, or no place in the
 * queue of max_closing files before the deadline. `closed` is not called then.
 */
typedef void (*cfs_file_closed_fn)(void *arg, int err);
int cfs_file_flush_later(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t err_seq,
			 cfs_file_closed_fn closed, void *arg);
/* Whether files wait for their turn. Never waits. */
bool cfs_data_has_closed(struct cfs_data *d);
/* Waits until the files given to cfs_file_flush_later() before have ended; -EIO at the deadline. */
int cfs_data_await_closed(struct cfs_data *d, cfs_deadline_t deadline);
/* The same, and the store made durable. */
int cfs_data_sync_closed(struct cfs_data *d, cfs_deadline_t deadline);
/*
 * For the end of a mount: waits for all, as long as one of them ends within three times
 * io_timeout_ms, and ends the others with -EIO.
 */
void cfs_data_end_closed(struct cfs_data *d);
/*
 * flush, then store and metadata made durable. Moves *err_seq behind the errors it returned. -EIO,
 * each time, while the file has bytes that the object store may have lost after it had taken them
 * (cfs_store_is_suspect).
 */
int cfs_file_fsync(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t *err_seq);
/* True when there are bytes not yet committed. */
bool cfs_file_dirty(struct cfs_file *f);
/*
 * From here on *mark is 1 while there are such bytes. It is set before a write of them is answered,
 * and stays 1 when some were lost. A successor reads it after the death of this process.
 */
void cfs_file_set_mark(struct cfs_file *f, _Atomic uint32_t *mark);
/* Ends the updates of *mark. */
void cfs_file_drop_mark(struct cfs_file *f, _Atomic uint32_t *mark);

/*
 * These flush the data concerned, change the metadata and the cached chunk lists, and return the
 * attributes.
 */
int cfs_file_truncate(struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t length,
		      struct cfs_attr *ret);
int cfs_file_fallocate(struct cfs_file *f, const struct cfs_ctx *ctx, unsigned mode, uint64_t off,
		       uint64_t len, struct cfs_attr *ret);
int cfs_file_copy_range(struct cfs_file *src, uint64_t src_off, struct cfs_file *dst,
			uint64_t dst_off, uint64_t len, const struct cfs_ctx *ctx,
			uint64_t *ret_copied, struct cfs_attr *ret_dst);
/* whence SEEK_DATA or SEEK_HOLE; -ENXIO as lseek(2). */
int cfs_file_seek(struct cfs_file *f, const struct cfs_ctx *ctx, uint64_t off, int whence,
		  uint64_t *ret_off);

/*
 * Read-ahead over files (ahead.c). cfs_data_read_ahead() asks the metadata for these heads, in one
 * round trip, and starts to fetch the bytes with which reads of the files begin. The attributes and
 * `named` of the heads are for the caller; their records are freed. Waits for the metadata. 1:
 * done. 0: nothing was asked, since most files were fetched in vain lately. cfs_data_reads_ahead():
 * whether to call it: conf.max_readahead is not 0, and the store is slow (cfs_store_is_slow).
 */
bool cfs_data_reads_ahead(const struct cfs_data *d);
int cfs_data_read_ahead(struct cfs_data *d, const struct cfs_ctx *ctx, struct cfs_head *heads,
			size_t n);

/*
 * Whole files (cachefs/whole.h, whole.c), for an open for reading: attr is the metadata's answer to
 * it. The whole file with exactly the bytes that a reader has to get, with a reference. NULL: there
 * is none, or the file has bytes that are not stored; one may be made in the background then. Never
 * waits.
 */
struct cfs_whole_file *cfs_file_take_whole(struct cfs_file *f, const struct cfs_attr *attr,
					   uint64_t asked_ns);
/* Whether that file still has exactly these bytes. */
bool cfs_file_is_whole(struct cfs_file *f, const struct cfs_attr *attr, uint64_t asked_ns,
		       const struct cfs_whole_file *w);
/*
 * Makes the whole file of an inode in the calling thread; *stop ends it. -EOPNOTSUPP: this mount
 * has none; -EINVAL: no file, or too short; -EAGAIN: it is being changed; and as cfs_whole_make().
 */
int cfs_data_make_whole(struct cfs_data *d, cfs_ino_t ino, const _Atomic bool *stop);
/* No more are made: the kernel does not read them. */
void cfs_data_refuse_whole(struct cfs_data *d);
/* Drops it from the cache, whatever uses it. Waits for the disk. */
void cfs_data_forget_whole(struct cfs_data *d, cfs_ino_t ino);

/* Removes the objects of a slice (cfs_meta_hooks.delete_slice). */
int cfs_data_delete_slice(struct cfs_data *d, uint64_t slice, uint32_t size);
/* As cfs_meta_hooks.slices_used. */
int cfs_data_slices_used(struct cfs_data *d, uint64_t first, uint64_t n, cfs_deadline_t deadline);
/* Makes the stored objects survive a power failure (cfs_meta_hooks.sync_objects). */
int cfs_data_sync_objects(struct cfs_data *d);
/*
 * Compaction of one chunk (volume-format section 6), in the calling thread; -EAGAIN: lost a race. ctx has
 * the deadline of reading its records. Each block that is copied has one of its own, and all of them
 * half an hour.
 */
int cfs_data_compact(struct cfs_data *d, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t indx);
/* Queues it (cfs_meta_hooks.compact). */
void cfs_data_queue_compact(struct cfs_data *d, cfs_ino_t ino, uint32_t indx, bool force);

extern const struct cfs_metric_table cfs_data_metrics;

/*
 * The visible pieces of a chunk: the records applied in order (volume-format section 6). Used by
 * the reader, compaction and fsck. Pieces are sorted, do not overlap, and holes between them are
 * implicit; records with id 0 yield no piece.
 */
struct cfs_piece {
	uint32_t pos, len; /* in the chunk */
	uint64_t slice;
	uint32_t slice_size;
	uint32_t slice_off;
};
struct cfs_view {
	struct cfs_piece *v;
	size_t n;
};
int cfs_view_build(const struct cfs_slice *records, size_t n, struct cfs_view *ret);
/* Of a chunk as it is stored. */
int cfs_view_read(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t indx,
		  struct cfs_view *ret);
void cfs_view_free(struct cfs_view *v);

/*
 * The chunks of a file that have a list, in their order: a sparse file of 2^57 bytes has two billion
 * others. Zeroed memory is the beginning.
 */
struct cfs_stored_chunks {
	struct cfs_chunk_len *page;
	ssize_t at, n;
	uint32_t first; /* of the next page */
};
/* 1: the next one; 0: there is none. ctx is for one request. */
int cfs_stored_next(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		    struct cfs_stored_chunks *s, struct cfs_chunk_len *ret);
static inline void cfs_stored_end(struct cfs_stored_chunks *s)
{
	free(s->page);
}

#endif
