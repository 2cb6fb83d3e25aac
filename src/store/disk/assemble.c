/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a whole file out of cached blocks. Every segment of a block is verified when it is read
 * for that, and its bytes are copied by copy_file_range(2), which shares them where the file system
 * can. The bytes are summed up for later processes, in 32 KiB of each piece of the content.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "whole.h"

#define BATCH	(256u << 10)
#define MAGIC	0x656c6f6877736663ULL /* "cfswhole" */
#define VERSION 1u

/* The list of checksums: this, the pieces, and a CRC-32C per segment of each piece. */
struct head {
	uint64_t magic;
	uint32_t version, piece_bytes;
	uint64_t ino, length, n_pieces;
};

struct assembly {
	struct disk_dir *dir;
	const struct cfs_whole_map *map;
	const _Atomic bool *stop;
	int fd;
	FILE *sums;
	uint32_t crc, in; /* of the segment of the piece that is being summed up */
	bool copies;	  /* copy_file_range() does not work here */
	uint8_t *buf;
};

static struct head head_of(const struct cfs_whole_map *map)
{
	return (struct head){
		.magic = MAGIC,
		.version = VERSION,
		.piece_bytes = sizeof(map->v[0]),
		.ino = map->stamp.ino,
		.length = map->stamp.length,
		.n_pieces = map->n,
	};
}

static uint64_t mix(uint64_t h, const void *p, size_t len)
{
	uint64_t word;

	for (; len >= sizeof(word); p = (const char *)p + sizeof(word), len -= sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		h = (h ^ word) * 0x9E3779B97F4A7C15ULL;
		h ^= h >> 32;
	}
	return h;
}

uint64_t cfs_whole_hash(const struct cfs_whole_map *map)
{
	struct head h = head_of(map);

	return mix(mix(0, &h, sizeof(h)), map->v, map->n * sizeof(map->v[0]));
}

uint64_t cfs_whole_charge(const struct cfs_whole_map *map)
{
	uint64_t sum = 2 * CFS_DISK_OVERHEAD + sizeof(struct head);
	size_t i;

	for (i = 0; i < map->n; i++)
		sum += map->v[i].len + sizeof(map->v[0]) +
		       cfs_cachedir_n_segments(map->v[i].len) * sizeof(uint32_t);
	return sum;
}

static bool is_ended(const struct disk_dir *dir, const _Atomic bool *stop)
{
	return atomic_load(&dir->disk->set.stopping) || (stop && atomic_load(stop));
}

/* ---- checksums of pieces ---- */

static int end_sum(struct assembly *a)
{
	uint32_t crc = ~a->crc;

	a->crc = CFS_CRC_INIT;
	if (a->in == 0)
		return 0;
	a->in = 0;
	return fwrite(&crc, sizeof(crc), 1, a->sums) == 1 ? 0 : -EIO;
}

static int add_sum(struct assembly *a, const uint8_t *p, uint32_t len)
{
	uint32_t n;
	int r = 0;

	for (; len > 0 && r == 0; p += n, len -= n) {
		n = CFS_MIN(len, CFS_CACHEDIR_SEGMENT - a->in);
		a->crc = cfs_cachedir_crc_add(a->crc, p, n);
		a->in += n;
		if (a->in == CFS_CACHEDIR_SEGMENT)
			r = end_sum(a);
	}
	return r;
}

/* ---- bytes ---- */

/* src has the same bytes as src_fd at off. */
static int copy(struct assembly *a, int src_fd, uint64_t off, const uint8_t *src, size_t len,
		uint64_t pos)
{
	while (len > 0 && !a->copies) {
		off_t from = (off_t)off, to = (off_t)pos;
		ssize_t n = copy_file_range(src_fd, &from, a->fd, &to, len, 0);

		if (n <= 0) {
			a->copies = true; /* a real error shows in the write */
			break;
		}
		off += (uint64_t)n;
		src += n;
		pos += (uint64_t)n;
		len -= (size_t)n;
	}
	return cfs_cachedir_write_all(a->fd, src, len, pos);
}

static int check_segments(const struct cfs_disk_pin *pin, const uint8_t *p, uint32_t from,
			  uint32_t end)
{
	uint32_t i, n;

	if (!pin->n_crcs)
		return 0;
	for (i = from / CFS_CACHEDIR_SEGMENT; from < end; i++, p += n, from += n) {
		n = CFS_MIN(CFS_CACHEDIR_SEGMENT, pin->len - from);
		if (cfs_cachedir_crc(p, n) != pin->crcs[i])
			return -EBADMSG;
	}
	return 0;
}

/* Bytes [off, end) of a block, to pos. */
static int add_range(struct assembly *a, const struct cfs_disk_pin *pin, uint32_t off, uint32_t end,
		     uint64_t pos)
{
	int r = 0;

	while (off < end && r == 0) {
		uint32_t from = off - off % CFS_CACHEDIR_SEGMENT;
		uint32_t to = CFS_MIN(pin->len, from + BATCH), n;

		if (to > end)
			to = CFS_MIN(pin->len,
				     CFS_DIV_UP(end, CFS_CACHEDIR_SEGMENT) * CFS_CACHEDIR_SEGMENT);
		n = CFS_MIN(to, end) - off;
		r = cfs_cachedir_read(pin->fd, a->buf, to - from, from, 0);
		if (r == 0)
			r = check_segments(pin, a->buf, from, to);
		if (r == 0)
			r = copy(a, pin->fd, off, a->buf + (off - from), n, pos);
		if (r == 0)
			r = add_sum(a, a->buf + (off - from), n);
		off += n;
		pos += n;
	}
	return r;
}

static int add_block(struct assembly *a, const struct cfs_block *b, uint32_t off, uint32_t end,
		     uint64_t pos)
{
	struct cfs_disk *d = a->dir->disk;
	struct cfs_disk_pin pin;
	int r = is_ended(a->dir, a->stop) ? -ECANCELED : cfs_disk_pin(d, b, false, &pin);

	if (r < 0)
		return r;
	if (!pin.n_crcs && d->conf.verify != CFS_VERIFY_NONE)
		r = -EOPNOTSUPP;
	else
		r = add_range(a, &pin, off, end, pos);
	if (r == -EBADMSG) {
		cfs_disk_drop_damaged(pin.file->dir, b);
		r = -ENOENT;
	}
	cfs_disk_unpin(&pin);
	return r;
}

static int add_piece(struct assembly *a, const struct cfs_whole_piece *p)
{
	uint32_t size = a->dir->disk->conf.block_size, off = p->slice_off, n;
	uint64_t pos = p->pos;
	int r = 0;

	a->crc = CFS_CRC_INIT;
	a->in = 0;
	for (; off < p->slice_off + p->len && r == 0; off += n, pos += n) {
		struct cfs_block b = cfs_block_of(p->slice, p->slice_size, off / size, size);
		uint32_t in = off % size;

		n = CFS_MIN(p->slice_off + p->len - off, b.len - in);
		r = add_block(a, &b, in, in + n, pos);
	}
	return r < 0 ? r : end_sum(a);
}

/* Before anything is written. */
static int has_all(struct disk_dir *dir, const struct cfs_whole_map *map)
{
	uint32_t size = dir->disk->conf.block_size, i;
	const struct cfs_whole_piece *p;

	for (p = map->v; p < map->v + map->n; p++) {
		for (i = p->slice_off / size; i * size < p->slice_off + p->len; i++) {
			struct cfs_block b = cfs_block_of(p->slice, p->slice_size, i, size);

			if (!cfs_disk_tier.holds(dir->disk, &b))
				return -ENOENT;
		}
	}
	return 0;
}

static int create(struct disk_dir *dir, const char *path, int flags)
{
	unsigned mode = dir->disk->conf.mode;
	int at = atomic_load(&dir->cd->fd), fd;

	fd = openat(at, path, flags | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
	return fd < 0 ? -errno : fd;
}

static int fill(struct assembly *a)
{
	struct head h = head_of(a->map);
	size_t i;
	int r = 0;

	if (ftruncate(a->fd, (off_t)a->map->stamp.length) < 0)
		return -errno;
	if (fwrite(&h, sizeof(h), 1, a->sums) != 1 ||
	    fwrite(a->map->v, sizeof(a->map->v[0]), a->map->n, a->sums) != a->map->n)
		return -EIO;
	for (i = 0; i < a->map->n && r == 0; i++)
		r = add_piece(a, &a->map->v[i]);
	if (r == 0 && fflush(a->sums) != 0)
		r = -errno;
	return r;
}

/* Its name tells that it is whole. The descriptor that is kept, and given away, cannot write. */
static int publish(struct assembly *a, const char *const tmp[2], uint64_t hash)
{
	int fd, at = atomic_load(&a->dir->cd->fd);
	char path[CFS_WHOLE_PATH_MAX];

	cfs_whole_path(a->map->stamp.ino, hash, CFS_WHOLE_SUMS, path);
	if (renameat(at, tmp[1], at, path) < 0)
		return -errno;
	fd = openat(at, tmp[0], O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return -errno;
	cfs_whole_path(a->map->stamp.ino, hash, "", path);
	if (renameat2(at, tmp[0], at, path, RENAME_NOREPLACE) == 0)
		return fd;
	close(fd);
	return -errno;
}

int cfs_whole_assemble(struct disk_dir *dir, const struct cfs_whole_map *map, uint64_t hash,
		       const _Atomic bool *stop, int *ret_fd)
{
	char data[CFS_WHOLE_PATH_MAX], sums[CFS_WHOLE_PATH_MAX], suffix[32];
	const char *const tmp[2] = {data, sums};
	cfs_auto_free uint8_t *buf = malloc(BATCH);
	struct assembly a = {.dir = dir, .map = map, .stop = stop, .fd = -1, .buf = buf};
	int at = atomic_load(&dir->cd->fd), sums_fd = -1, r = buf ? has_all(dir, map) : -ENOMEM;

	if (r < 0)
		return r;
	snprintf(suffix, sizeof(suffix), ".%08x" CFS_CACHEDIR_TMP, (unsigned)cfs_random_u64());
	cfs_whole_path(map->stamp.ino, hash, suffix, data);
	snprintf(suffix, sizeof(suffix), ".%08x" CFS_WHOLE_SUMS CFS_CACHEDIR_TMP,
		 (unsigned)cfs_random_u64());
	cfs_whole_path(map->stamp.ino, hash, suffix, sums);
	if (mkdirat(at, CFS_WHOLE_DIR, dir->cd->set->dir_mode) < 0 && errno != EEXIST)
		return -errno;
	a.fd = create(dir, data, O_RDWR);
	sums_fd = a.fd < 0 ? a.fd : create(dir, sums, O_WRONLY);
	a.sums = sums_fd < 0 ? NULL : fdopen(sums_fd, "w");
	if (!a.sums)
		r = sums_fd < 0 ? sums_fd : -ENOMEM;
	if (r == 0)
		r = fill(&a);
	if (a.sums && fclose(a.sums) != 0 && r == 0)
		r = -errno;
	if (!a.sums && sums_fd >= 0)
		close(sums_fd);
	if (r == 0)
		r = publish(&a, tmp, hash);
	if (r >= 0)
		*ret_fd = r;
	else if (sums_fd >= 0)
		unlinkat(at, sums, 0);
	if (r < 0 && a.fd >= 0)
		unlinkat(at, data, 0);
	if (a.fd >= 0)
		close(a.fd);
	return r < 0 ? r : 0;
}

/* ---- verifying ---- */

static int verify_piece(int fd, const struct cfs_whole_piece *p, FILE *sums, uint8_t *buf)
{
	uint32_t off, n, sum;
	int r;

	for (off = 0; off < p->len; off += n) {
		n = CFS_MIN(CFS_CACHEDIR_SEGMENT, p->len - off);
		r = cfs_cachedir_read(fd, buf, n, p->pos + off, 0);
		if (r < 0)
			return r;
		if (fread(&sum, sizeof(sum), 1, sums) != 1 || sum != cfs_cachedir_crc(buf, n))
			return -EBADMSG;
	}
	return 0;
}

static int verify_list(const struct cfs_whole_map *map, FILE *sums)
{
	struct head want = head_of(map), have;
	struct cfs_whole_piece p;
	size_t i;

	if (fread(&have, sizeof(have), 1, sums) != 1 || memcmp(&have, &want, sizeof(have)) != 0)
		return -EBADMSG;
	for (i = 0; i < map->n; i++) {
		if (fread(&p, sizeof(p), 1, sums) != 1 || memcmp(&p, &map->v[i], sizeof(p)) != 0)
			return -EBADMSG;
	}
	return 0;
}

int cfs_whole_verify(struct disk_dir *dir, const struct cfs_whole_map *map, uint64_t hash, int fd,
		     const _Atomic bool *stop)
{
	cfs_auto_free uint8_t *buf = malloc(CFS_CACHEDIR_SEGMENT);
	char path[CFS_WHOLE_PATH_MAX];
	struct stat st;
	int sums_fd, r;
	FILE *sums;
	size_t i;

	if (!buf)
		return -ENOMEM;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != map->stamp.length)
		return -EBADMSG;
	cfs_whole_path(map->stamp.ino, hash, CFS_WHOLE_SUMS, path);
	sums_fd = openat(atomic_load(&dir->cd->fd), path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	sums = sums_fd < 0 ? NULL : fdopen(sums_fd, "r");
	if (!sums) {
		r = errno == ENOENT ? -EBADMSG : -errno;
		if (sums_fd >= 0)
			close(sums_fd);
		return r;
	}
	r = verify_list(map, sums);
	for (i = 0; i < map->n && r == 0; i++)
		r = is_ended(dir, stop) ? -ECANCELED : verify_piece(fd, &map->v[i], sums, buf);
	fclose(sums);
	return r;
}
