/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a block's file. The checksums are read once, when the file is opened. The data is
 * verified each time it is read, while it is in the processor's cache.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/bytes.h"
#include "disk-internal.h"

/* Bytes per call of a large read: at most half of a processor's L2 cache. */
#define BATCH (512u << 10)
/* The kernel may limit the readahead of one call to this. */
#define AHEAD (1u << 20)

static int read_flags(const struct disk_dir *dir, bool nowait)
{
	return nowait && !atomic_load_explicit(&dir->cd->in_memory, memory_order_relaxed)
		       ? RWF_NOWAIT
		       : 0;
}

/*
 * openat2(2) with RESOLVE_CACHED fails rather than wait. Where the kernel lacks it, nowait is
 * -EAGAIN.
 */
static int open_fd(const struct disk_dir *dir, const char *path, bool nowait)
{
	struct open_how how = {
		.flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW,
		.resolve = nowait ? RESOLVE_CACHED : 0,
	};
	int fd, at = atomic_load(&dir->cd->fd);

	if (nowait)
		fd = (int)syscall(SYS_openat2, at, path, &how, sizeof(how));
	else
		fd = openat(at, path, (int)how.flags);
	if (fd >= 0)
		return fd;
	return nowait && errno != ENOENT ? -EAGAIN : -errno;
}

bool cfs_disk_file_is_known(const struct disk_dir *dir, const struct cfs_block *b)
{
	char path[CFS_CACHEDIR_PATH_MAX];
	int fd;

	cfs_cachedir_path(dir->cd->set, CFS_CACHEDIR_CACHED, b, path);
	fd = open_fd(dir, path, true);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static int read_trailer(struct cfs_disk_file *f, bool nowait)
{
	unsigned i;
	int r;

	r = cfs_cachedir_read(f->fd, f->crcs, f->n_crcs * sizeof(f->crcs[0]), f->id.len,
			      read_flags(f->dir, nowait));
	for (i = 0; r == 0 && i < f->n_crcs; i++)
		f->crcs[i] = be32toh(f->crcs[i]);
	return r;
}

int cfs_disk_file_open(struct disk_dir *dir, const struct cfs_block *b, bool nowait,
		       struct cfs_disk_file **ret)
{
	unsigned n = cfs_cachedir_n_segments(b->len);
	char path[CFS_CACHEDIR_PATH_MAX];
	struct cfs_cachedir_tail tail = {0};
	struct cfs_disk_file *f;
	struct stat st;
	int fd, r;

	cfs_cachedir_path(dir->cd->set, CFS_CACHEDIR_CACHED, b, path);
	fd = open_fd(dir, path, nowait);
	if (fd == -ENOENT && cfs_disk_staged_dir(dir->disk, b) == dir) {
		cfs_cachedir_path(dir->cd->set, CFS_CACHEDIR_STAGED, b, path);
		fd = open_fd(dir, path, nowait);
	}
	if (fd < 0)
		return fd;
	f = malloc(sizeof(*f) + n * sizeof(f->crcs[0]));
	if (!f) {
		close(fd);
		return -ENOMEM;
	}
	*f = (struct cfs_disk_file){.refs = 1, .dir = dir, .id = *b, .fd = fd};
	if (fstat(fd, &st) < 0)
		r = -errno;
	else if (!S_ISREG(st.st_mode))
		r = -EBADMSG;
	else
		r = cfs_cachedir_read_tail(fd, b, (uint64_t)st.st_size, read_flags(dir, nowait),
					   &tail);
	f->n_crcs = tail.checksums ? n : 0;
	/* A staged block has no other copy. */
	if (r == 0 && !tail.checksums && dir->disk->conf.verify != CFS_VERIFY_NONE &&
	    cfs_disk_staged_dir(dir->disk, b) != dir)
		r = -ENODATA;
	if (r == 0)
		r = read_trailer(f, nowait);
	if (r < 0) {
		cfs_disk_file_unref(f);
		return r;
	}
	*ret = f;
	return 0;
}

/* Bytes of a segment. */
static uint32_t segment_len(const struct cfs_disk_file *f, uint32_t segment)
{
	return CFS_MIN(CFS_CACHEDIR_SEGMENT, f->id.len - segment * CFS_CACHEDIR_SEGMENT);
}

struct reader {
	struct cfs_disk_file *f;
	bool check, extend;
	int flags;
};

/* Whole segments, or the last ones of the block, right into the caller's memory. */
static int read_segments(const struct reader *rd, uint32_t off, uint8_t *dst, uint32_t len)
{
	uint32_t i = off / CFS_CACHEDIR_SEGMENT, n;
	int r;

	r = cfs_cachedir_read(rd->f->fd, dst, len, off, rd->flags);
	if (r < 0 || !rd->check)
		return r;
	for (; len > 0; i++, dst += n, len -= n) {
		n = segment_len(rd->f, i);
		if (cfs_cachedir_crc(dst, n) != rd->f->crcs[i])
			return -EBADMSG;
	}
	return 0;
}

/* NULL: no memory, or CFS_DISK_PIECES_MAX is reached. */
static struct segment_pieces *get_pieces(struct cfs_disk_file *f)
{
	struct segment_pieces *v = atomic_load(&f->pieces), *none = NULL;
	struct cfs_disk *d = f->dir->disk;
	size_t size = f->n_crcs * sizeof(*v);

	if (v)
		return v;
	if (atomic_fetch_add(&d->pieces_bytes, size) + size <= CFS_DISK_PIECES_MAX)
		v = calloc(f->n_crcs, sizeof(*v));
	if (v && atomic_compare_exchange_strong(&f->pieces, &none, v))
		return v;
	atomic_fetch_sub(&d->pieces_bytes, size);
	free(v);
	return none;
}

static uint32_t piece_len(uint32_t segment, uint32_t piece)
{
	return CFS_MIN(CFS_DISK_PIECE, segment - piece * CFS_DISK_PIECE);
}

/* Concurrent threads write the same values. */
static void note_pieces(struct segment_pieces *p, const uint8_t *segment, uint32_t len)
{
	uint32_t i;

	for (i = 0; i * CFS_DISK_PIECE < len; i++)
		atomic_store_explicit(
			&p->crcs[i],
			cfs_cachedir_crc(segment + i * CFS_DISK_PIECE, piece_len(len, i)),
			memory_order_relaxed);
	atomic_store_explicit(&p->known, true, memory_order_release);
}

/* Reads pieces [first, last] of a segment at `off` of so many bytes. */
static int read_pieces(const struct reader *rd, const struct segment_pieces *p, uint32_t off,
		       uint32_t len, uint32_t first, uint32_t last, uint8_t *dst)
{
	uint32_t from = first * CFS_DISK_PIECE, end = CFS_MIN(len, (last + 1) * CFS_DISK_PIECE), n;
	int r;

	r = cfs_cachedir_read(rd->f->fd, dst, end - from, off + from, rd->flags);
	for (; r == 0 && first <= last; first++, dst += n) {
		n = piece_len(len, first);
		if (cfs_cachedir_crc(dst, n) !=
		    atomic_load_explicit(&p->crcs[first], memory_order_relaxed))
			r = -EBADMSG;
	}
	return r;
}

/*
 * Reads a part of one segment. The first time all of it is read and verified, and the checksums of
 * its pieces are noted; later only the pieces around the part are read and compared with these.
 */
static __attribute__((noinline)) int read_part(const struct reader *rd, uint32_t off, uint8_t *dst,
					       uint32_t len)
{
	uint32_t i = off / CFS_CACHEDIR_SEGMENT, in = off % CFS_CACHEDIR_SEGMENT;
	uint32_t start = off - in, whole = segment_len(rd->f, i);
	uint32_t first = in / CFS_DISK_PIECE, last = (in + len - 1) / CFS_DISK_PIECE;
	uint8_t segment[CFS_CACHEDIR_SEGMENT];
	struct segment_pieces *p;
	int r;

	if (!rd->check || !rd->extend)
		return cfs_cachedir_read(rd->f->fd, dst, len, off, rd->flags);
	p = get_pieces(rd->f);
	if (!p || !atomic_load_explicit(&p[i].known, memory_order_acquire)) {
		r = read_segments(rd, start, segment, whole);
		if (r == 0 && p)
			note_pieces(&p[i], segment, whole);
		first = 0;
	} else if (in % CFS_DISK_PIECE == 0 && (len % CFS_DISK_PIECE == 0 || in + len == whole)) {
		return read_pieces(rd, &p[i], start, whole, first, last, dst);
	} else {
		r = read_pieces(rd, &p[i], start, whole, first, last, segment);
	}
	if (r == 0)
		memcpy(dst, segment + in - first * CFS_DISK_PIECE, len);
	return r;
}

static int read_piece(const struct reader *rd, uint32_t off, uint8_t *dst, uint32_t len)
{
	uint32_t n;
	int r;

	for (; len > 0; off += n, dst += n, len -= n) {
		uint32_t in = off % CFS_CACHEDIR_SEGMENT;

		n = off + len == rd->f->id.len ? len : len - len % CFS_CACHEDIR_SEGMENT;
		if (in == 0 && n > 0) {
			r = read_segments(rd, off, dst, n);
		} else {
			n = CFS_MIN(len, CFS_CACHEDIR_SEGMENT - in);
			r = read_part(rd, off, dst, n);
		}
		if (r < 0)
			return r;
	}
	return 0;
}

/* True when each piece but the last is whole segments, and the last is or ends the block. */
static bool is_aligned(const struct cfs_disk_file *f, uint32_t off, const struct iovec *dst, int n)
{
	bool whole = off % CFS_CACHEDIR_SEGMENT == 0;
	int i;

	for (i = 0; i < n; off += (uint32_t)dst[i].iov_len, i++)
		whole = whole && (dst[i].iov_len % CFS_CACHEDIR_SEGMENT == 0 ||
				  off + dst[i].iov_len == f->id.len);
	return whole;
}

static int check_pieces(const struct cfs_disk_file *f, uint32_t off, const struct iovec *dst, int n)
{
	uint32_t done, len;
	int i;

	for (i = 0; i < n; i++) {
		for (done = 0; done < dst[i].iov_len; done += len, off += len) {
			len = segment_len(f, off / CFS_CACHEDIR_SEGMENT);
			if (cfs_cachedir_crc((uint8_t *)dst[i].iov_base + done, len) !=
			    f->crcs[off / CFS_CACHEDIR_SEGMENT])
				return -EBADMSG;
		}
	}
	return 0;
}

/*
 * Reads a large aligned range with few calls, and checks the bytes of each while they are in the
 * processor's cache. 1: a short read.
 */
static int read_batches(const struct reader *rd, uint32_t off, const struct iovec *dst, int n_dst)
{
	int first, n, r = 0;

	for (first = 0; first < n_dst && r == 0; first += n) {
		uint32_t len = 0;
		ssize_t got;

		for (n = 0; first + n < n_dst && len < BATCH; n++)
			len += (uint32_t)dst[first + n].iov_len;
		got = preadv2(rd->f->fd, dst + first, n, off, rd->flags);
		if (got != (ssize_t)len)
			return rd->flags ? -EAGAIN : 1;
		if (rd->check)
			r = check_pieces(rd->f, off, dst + first, n);
		off += len;
	}
	return r;
}

void cfs_disk_file_ahead(const struct cfs_disk_file *f, uint32_t off, uint32_t len)
{
	uint32_t n;

	if (atomic_load_explicit(&f->dir->cd->in_memory, memory_order_relaxed))
		return;
	for (; len > 0; off += n, len -= n) {
		n = CFS_MIN(len, AHEAD);
		posix_fadvise(f->fd, off, n, POSIX_FADV_WILLNEED);
	}
}

int cfs_disk_file_read(struct cfs_disk_file *f, uint32_t off, const struct iovec *dst, int n_dst,
		       bool nowait)
{
	enum cfs_disk_verify verify = f->dir->disk->conf.verify;
	struct reader rd = {
		.f = f,
		.extend = verify == CFS_VERIFY_EXTEND,
		.flags = read_flags(f->dir, nowait),
	};
	size_t total = cfs_iov_len(dst, n_dst);
	int i, r = 0;

	rd.check = f->n_crcs > 0 && verify != CFS_VERIFY_NONE &&
		   (verify != CFS_VERIFY_FULL || total == f->id.len);
	if (n_dst > 1 && is_aligned(f, off, dst, n_dst)) {
		/* Lets the disk work on all of it at once. */
		if (!nowait)
			cfs_disk_file_ahead(f, off, (uint32_t)total);
		r = read_batches(&rd, off, dst, n_dst);
		if (r <= 0)
			return r;
		r = 0;
	}
	for (i = 0; i < n_dst && r == 0; i++) {
		r = read_piece(&rd, off, dst[i].iov_base, (uint32_t)dst[i].iov_len);
		off += (uint32_t)dst[i].iov_len;
	}
	return r;
}
