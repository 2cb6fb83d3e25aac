/* SPDX-License-Identifier: Apache-2.0 */
/* A block's file: its name, its bytes, then a big-endian CRC-32C for each 32 KiB of them. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/activity.h"
#include "cachedir.h"

bool cfs_cachedir_is_nameable(const struct cfs_block *b)
{
	return b->slice < CFS_CACHEDIR_SLICE_MAX && b->index <= UINT16_MAX && b->len > 0 &&
	       b->len <= CFS_CACHEDIR_LEN_MAX;
}

void cfs_cachedir_path(const struct cache_dirs *set, const char *tree, const struct cfs_block *b,
		       char path[CFS_CACHEDIR_PATH_MAX])
{
	uint64_t million = b->slice / 1000 / 1000;

	if (set->conf.hash_prefix)
		snprintf(path, CFS_CACHEDIR_PATH_MAX,
			 "%s/chunks/%02X/%" PRIu64 "/%" PRIu64 "_%" PRIu32 "_%" PRIu32, tree,
			 (unsigned)(b->slice % 256), million, b->slice, b->index, b->len);
	else
		snprintf(path, CFS_CACHEDIR_PATH_MAX,
			 "%s/chunks/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "_%" PRIu32 "_%" PRIu32, tree,
			 million, b->slice / 1000, b->slice, b->index, b->len);
}

void cfs_cachedir_unlink(struct cache_dir *dir, const char *tree, const struct cfs_block *b)
{
	char path[CFS_CACHEDIR_PATH_MAX];

	cfs_cachedir_path(dir->set, tree, b, path);
	unlinkat(atomic_load(&dir->fd), path, 0);
}

void cfs_cachedir_await(const struct cache_dir *dir, const struct cfs_block *b)
{
	char path[CFS_CACHEDIR_PATH_MAX], text[CFS_ACTIVITY_TEXT] = "";

	if (dir) {
		cfs_cachedir_path(dir->set, CFS_CACHEDIR_CACHED, b, path);
		/* The end tells one file from another. */
		snprintf(text, sizeof(text), "%.56s%s/%s", dir->path,
			 strlen(dir->path) > 56 ? "..." : "", path);
	}
	cfs_activity_wait(CFS_WAIT_DISK, b->slice, text);
}

static uint64_t size_with_trailer(const struct cfs_block *b)
{
	return (uint64_t)b->len + cfs_cachedir_n_segments(b->len) * sizeof(uint32_t);
}

bool cfs_cachedir_size_fits(const struct cfs_block *b, uint64_t size)
{
	return size == b->len || size == size_with_trailer(b);
}

int cfs_cachedir_read(int fd, void *dst, size_t len, uint64_t off, int flags)
{
	size_t done = 0;

	while (done < len) {
		struct iovec v = {.iov_base = (char *)dst + done, .iov_len = len - done};
		ssize_t n = preadv2(fd, &v, 1, (off_t)(off + done), flags);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return flags ? -EAGAIN : -errno;
		if (n == 0)
			return -EBADMSG;
		done += (size_t)n;
	}
	return 0;
}

/* ---- writing ---- */

static int write_all(int fd, const void *src, size_t len, uint64_t off)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = pwrite(fd, (const char *)src + done, len - done, (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -EIO;
		done += (size_t)n;
	}
	return 0;
}

/* Adds a piece at `off` to the checksums of its segments. */
static void add_crcs(uint32_t *crcs, uint32_t off, const uint8_t *p, size_t len)
{
	while (len > 0) {
		size_t n = CFS_MIN(len, CFS_CACHEDIR_SEGMENT - off % CFS_CACHEDIR_SEGMENT);
		uint32_t *crc = &crcs[off / CFS_CACHEDIR_SEGMENT];

		*crc = cfs_cachedir_crc_add(*crc, p, n);
		off += (uint32_t)n;
		p += n;
		len -= n;
	}
}

/* Each piece is summed up just before it is written: one way through memory for both. */
static int write_data(int fd, const struct cfs_segs *data, bool trailer)
{
	uint32_t crcs[CFS_CACHEDIR_LEN_MAX / CFS_CACHEDIR_SEGMENT];
	unsigned k, n_crcs = cfs_cachedir_n_segments((uint32_t)data->len);
	struct iovec *iov;
	uint32_t off = 0;
	int i, n, r = 0;

	n = cfs_segs_iov(data, &iov);
	if (n < 0)
		return n;
	for (k = 0; k < n_crcs; k++)
		crcs[k] = CFS_CRC_INIT;
	for (i = 0; i < n && r == 0; i++) {
		if (trailer)
			add_crcs(crcs, off, iov[i].iov_base, iov[i].iov_len);
		r = write_all(fd, iov[i].iov_base, iov[i].iov_len, off);
		off += (uint32_t)iov[i].iov_len;
	}
	free(iov);
	for (k = 0; k < n_crcs; k++)
		crcs[k] = htobe32(~crcs[k]);
	if (r == 0 && trailer)
		r = write_all(fd, crcs, n_crcs * sizeof(crcs[0]), off);
	return r;
}

static bool remove_stale(int at, const char *tmp)
{
	struct stat st;

	return fstatat(at, tmp, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       st.st_mtim.tv_sec < cfs_wall_s() - CFS_CACHEDIR_TMP_AGE_S &&
	       unlinkat(at, tmp, 0) == 0;
}

/* A file of its own; makes the directories above it. */
static int create_tmp(struct cache_dir *dir, char *tmp)
{
	int fd, tries, at = atomic_load(&dir->fd), r = -EEXIST;

	/* The scan removes directories that are empty: ours may be, until the file is there. */
	for (tries = 0; tries < 16; tries++) {
		fd = openat(at, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
			    dir->set->conf.mode);
		if (fd >= 0)
			return fd;
		r = -errno;
		if (r == -ENOENT) {
			int made = cfs_cachedir_make_parents(dir, tmp);

			if (made < 0 && made != -ENOENT)
				return made;
		} else if (r != -EEXIST || !remove_stale(at, tmp)) {
			break;
		}
	}
	return r;
}

int cfs_cachedir_write(struct cache_dir *dir, const char *tree, const struct cfs_block *b,
		       const struct cfs_segs *data, bool durable)
{
	char path[CFS_CACHEDIR_PATH_MAX], tmp[CFS_CACHEDIR_PATH_MAX + sizeof(CFS_CACHEDIR_TMP)];
	int fd, r, at = atomic_load(&dir->fd);

	cfs_cachedir_path(dir->set, tree, b, path);
	snprintf(tmp, sizeof(tmp), "%s" CFS_CACHEDIR_TMP, path);
	fd = create_tmp(dir, tmp);
	if (fd < 0)
		return fd;
	r = write_data(fd, data, dir->set->conf.checksums);
	if (r == 0 && durable && fdatasync(fd) < 0)
		r = -errno;
	if (close(fd) < 0 && r == 0)
		r = -errno;
	if (r == 0 && renameat(at, tmp, at, path) < 0)
		r = -errno;
	if (r < 0)
		unlinkat(at, tmp, 0);
	return r;
}
