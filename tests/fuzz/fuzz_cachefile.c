/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a cache directory, which other programs write, too: blocks of the cache and staged ones,
 * with and without checksums and footers, and their names. Bytes that pass are those of the file,
 * and where it has checksums they fit these.
 *
 * The first byte of an input says how the rest is used: 0 a cached block, 1 a staged one, 2 a name.
 * Of a block the second is its length in units of 256 bytes, the third its remainder, the fourth
 * how it is read.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "fuzz.h"
#include "store/disk/disk-internal.h"
#include "store/stage/stage-internal.h"

#define BLOCK (128u << 10)

static char top[] = "/dev/shm/cachefs-fuzz.XXXXXX";
static struct cfs_pool *pool;
static struct cfs_disk disk;
static struct cache_dir cd;
static struct disk_dir dir;

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static void clean_up(void)
{
	nftw(top, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void set_up(void)
{
	if (pool)
		return;
	cfs_log_init(CFS_LOG_STDERR, (enum cfs_log_level)0);
	check(cfs_pool_create(64u << 20, &pool) == 0);
	check(mkdtemp(top) != NULL);
	atexit(clean_up);
	disk.set.conf =
		(struct cache_dirs_conf){.checksums = true, .block_size = BLOCK, .mode = 0600};
	cd = (struct cache_dir){.set = &disk.set, .base = top, .path = top};
	atomic_store(&cd.fd, open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	check(atomic_load(&cd.fd) >= 0);
	dir = (struct disk_dir){.disk = &disk, .cd = &cd};
}

/* A file at the path of a block. */
static void put_file(const char *tree, const struct cfs_block *b, const struct fuzz_in *in)
{
	char path[CFS_CACHEDIR_PATH_MAX];
	int fd, at = atomic_load(&cd.fd);

	cfs_cachedir_path(&disk.set, tree, b, path);
	fd = openat(at, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0) {
		check(cfs_cachedir_make_parents(&cd, path) == 0);
		fd = openat(at, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	}
	check(fd >= 0 && write(fd, in->p, in->left) == (ssize_t)in->left);
	close(fd);
}

static void check_sums(const uint8_t *data, const struct fuzz_in *in, uint32_t len)
{
	uint32_t off, n;

	for (off = 0; off < len; off += n) {
		n = CFS_MIN(CFS_CACHEDIR_SEGMENT, len - off);
		check(cfs_cachedir_crc(data + off, n) ==
		      cfs_get_be32(in->p + len + 4 * (off / CFS_CACHEDIR_SEGMENT)));
	}
}

static void cached(const struct cfs_block *b, uint8_t how, struct fuzz_in *in)
{
	uint8_t *buf = malloc(b->len);
	uint32_t off = how & 8 ? b->len / 3 : 0, len = b->len - off;
	struct iovec iov[2] = {{buf, len / 2}, {buf + len / 2, len - len / 2}};
	struct cfs_disk_file *f;

	check(buf != NULL);
	disk.conf.verify = (enum cfs_disk_verify)(how % 4);
	put_file(CFS_CACHEDIR_CACHED, b, in);
	if (cfs_disk_file_open(&dir, b, how & 4, &f) == 0) {
		if (cfs_disk_file_read(f, off, iov, 2, how & 4) == 0) {
			check(!memcmp(buf, in->p + off, len));
			if (f->n_crcs && disk.conf.verify == CFS_VERIFY_EXTEND && !off)
				check_sums(buf, in, b->len);
		}
		cfs_disk_file_unref(f);
	}
	free(buf);
}

static void staged(const struct cfs_block *b, struct fuzz_in *in)
{
	struct cfs_cachedir_tail tail;
	char path[CFS_CACHEDIR_PATH_MAX];
	struct cfs_segs segs;
	struct cfs_page *page;
	uint32_t off, n;
	int fd, r;

	put_file(CFS_CACHEDIR_STAGED, b, in);
	cfs_cachedir_path(&disk.set, CFS_CACHEDIR_STAGED, b, path);
	fd = openat(atomic_load(&cd.fd), path, O_RDONLY | O_CLOEXEC);
	r = cfs_cachedir_read_tail(fd, b, in->left, 0, &tail);
	close(fd);
	check(r <= 0 && (r < 0 || tail.tier < CFS_OBJECT_TIERS));
	cfs_segs_init(&segs);
	for (off = 0; off < b->len; off += n) {
		n = CFS_MIN(CFS_PAGE_LARGE, b->len - off);
		check(cfs_page_get(pool, n, CFS_USE_READ, cfs_deadline_in(1000), &page) == 0);
		check(cfs_segs_add(&segs, page, 0, n) == 0);
	}
	r = cfs_stage_file_read(&cd, b, &segs);
	check(r <= 0);
	if (r == 0 && segs.n == 1) {
		check(!memcmp(segs.v[0].page->data + segs.v[0].off, in->p, b->len));
		if (tail.checksums)
			check_sums(segs.v[0].page->data + segs.v[0].off, in, b->len);
	}
	cfs_segs_release(&segs);
}

static int visit(void *arg, int fd, const char *name, const struct cfs_block *b, bool tmp)
{
	check(b->len > 0 && b->len <= BLOCK && b->slice < CFS_CACHEDIR_SLICE_MAX);
	return 0;
}

static void name(struct fuzz_in *in)
{
	static const char where[] = "raw/chunks/0/0/";
	char path[512], *text = fuzz_text(in, CFS_MIN(in->left, (size_t)255));
	int fd, at = atomic_load(&cd.fd);

	snprintf(path, sizeof(path), "%s", where);
	check(cfs_cachedir_make_parents(&cd, path) == 0 || errno == EEXIST);
	if (*text && !strchr(text, '/') && strcmp(text, ".") != 0 && strcmp(text, "..") != 0) {
		snprintf(path, sizeof(path), "%s%s", where, text);
		fd = openat(at, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		check(fd >= 0);
		close(fd);
		check(cfs_cachedir_walk(&cd, CFS_CACHEDIR_CACHED, visit, NULL) == 0);
		unlinkat(at, path, 0);
	}
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = {data, size};
	uint8_t what = fuzz_u8(&in) % 3, how;
	struct cfs_block b = {.slice = 7, .index = 1};

	set_up();
	if (what == 2) {
		name(&in);
		return 0;
	}
	b.len = 256u * fuzz_u8(&in) + fuzz_u8(&in);
	how = fuzz_u8(&in);
	if (b.len == 0)
		return 0;
	if (what == 0)
		cached(&b, how, &in);
	else
		staged(&b, &in);
	return 0;
}
