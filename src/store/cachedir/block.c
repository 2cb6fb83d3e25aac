/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block's file: its name, its bytes, then a big-endian CRC-32C for each 32 KiB of them. JuiceFS
 * adds a footer to staged blocks of a tier: magic, length of what follows, a msgpack map.
 */
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

#define FOOTER_MAGIC 0x4653
#define FOOTER_HEAD  4
#define FOOTER_MAX   256

bool cfs_cachedir_is_nameable(const struct cfs_block *b)
{
	return b->slice < CFS_CACHEDIR_SLICE_MAX && b->index <= UINT16_MAX && b->len > 0 &&
	       b->len <= CFS_CACHEDIR_LEN_MAX;
}

int cfs_cachedir_name(const char *root, const struct cfs_block *b, bool hash_prefix, char *ret,
		      size_t size)
{
	uint64_t million = b->slice / 1000 / 1000;

	if (hash_prefix)
		return snprintf(ret, size,
				"%s/chunks/%02X/%" PRIu64 "/%" PRIu64 "_%" PRIu32 "_%" PRIu32, root,
				(unsigned)(b->slice % 256), million, b->slice, b->index, b->len);
	return snprintf(ret, size,
			"%s/chunks/%" PRIu64 "/%" PRIu64 "/%" PRIu64 "_%" PRIu32 "_%" PRIu32, root,
			million, b->slice / 1000, b->slice, b->index, b->len);
}

void cfs_cachedir_path(const struct cache_dirs *set, const char *tree, const struct cfs_block *b,
		       char path[CFS_CACHEDIR_PATH_MAX])
{
	cfs_cachedir_name(tree, b, set->conf.hash_prefix, path, CFS_CACHEDIR_PATH_MAX);
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

/* ---- what follows the bytes ---- */

/* The bytes of a msgpack value of the kinds that a footer has, or 0; *ret_number if it is one. */
static size_t value_len(const uint8_t *p, size_t left, uint64_t *ret_number)
{
	size_t len = 1;

	if (p[0] == 0xcc || p[0] == 0xc4) /* uint 8, bin 8 */
		len = left < 2 ? 0 : p[0] == 0xcc ? 2 : 2 + (size_t)p[1];
	else if (p[0] > 0x7f) /* positive fixint */
		return 0;
	if (len == 0 || len > left)
		return 0;
	if (p[0] != 0xc4)
		*ret_number = p[len - 1];
	return len;
}

/* A tier that cannot be told is 0, the volume's own class. */
static uint8_t tier_of_map(const uint8_t *p, size_t left)
{
	static const char key[] = "tier";
	unsigned i, n = left > 0 && (p[0] & 0xf0) == 0x80 ? p[0] & 0x0f : 0; /* fixmap */
	size_t key_len, len;

	for (i = 0, p++, left--; i < n && left > 1; i++, p += len, left -= len) {
		uint64_t number = 0;
		bool is_tier;

		key_len = 1 + (size_t)(p[0] & 0x1f); /* fixstr */
		if ((p[0] & 0xe0) != 0xa0 || key_len >= left)
			break;
		is_tier = key_len == sizeof(key) && !memcmp(p + 1, key, sizeof(key) - 1);
		p += key_len;
		left -= key_len;
		len = value_len(p, left, &number);
		if (is_tier || len == 0)
			return number < CFS_OBJECT_TIERS ? (uint8_t)number : 0;
	}
	return 0;
}

static int read_footer(int fd, uint64_t off, uint64_t len, int flags, uint8_t *ret_tier)
{
	uint8_t footer[FOOTER_MAX];
	int r;

	if (len < FOOTER_HEAD || len > FOOTER_MAX)
		return -EBADMSG;
	r = cfs_cachedir_read(fd, footer, len, off, flags);
	if (r == 0 && cfs_get_be16(footer) != FOOTER_MAGIC)
		r = -EBADMSG;
	if (r == 0)
		*ret_tier = tier_of_map(footer + FOOTER_HEAD, len - FOOTER_HEAD);
	return r;
}

int cfs_cachedir_read_tail(int fd, const struct cfs_block *b, uint64_t size, int flags,
			   struct cfs_cachedir_tail *ret)
{
	/* A footer is padded so that it tells whether there are checksums before it. */
	struct cfs_cachedir_tail tail = {.checksums = size > b->len && (size - b->len) % 4 == 0};
	uint64_t end = tail.checksums ? size_with_trailer(b) : b->len;
	int r = 0;

	if (size < end)
		return -EBADMSG;
	if (size > end)
		r = read_footer(fd, end, size - end, flags, &tail.tier);
	if (r == 0)
		*ret = tail;
	return r;
}

/* ---- writing ---- */

int cfs_cachedir_write_all(int fd, const void *src, size_t len, uint64_t off)
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

/* The checksum of a piece is computed just before its write, so that memory is read once. */
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
		r = cfs_cachedir_write_all(fd, iov[i].iov_base, iov[i].iov_len, off);
		off += (uint32_t)iov[i].iov_len;
	}
	free(iov);
	for (k = 0; k < n_crcs; k++)
		crcs[k] = htobe32(~crcs[k]);
	if (r == 0 && trailer)
		r = cfs_cachedir_write_all(fd, crcs, n_crcs * sizeof(crcs[0]), off);
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
