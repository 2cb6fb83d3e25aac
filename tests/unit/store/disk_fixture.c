/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "disk_fixture.h"
#include "unit/skip.h"

char top[64], cache[128];
struct cfs_disk *disk;
struct cfs_disk_conf disk_conf;
bool plain_objects;

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

void remove_tree(const char *path)
{
	nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void remove_cache(void)
{
	cfs_deadline_t until = soon();

	do {
		remove_tree(cache);
	} while (access(cache, F_OK) == 0 && !cfs_deadline_passed(until));
}

int disk_set_up(void **state)
{
	open_objects();
	plain_objects = true;
	snprintf(top, sizeof(top), "/tmp/cachefs-disk.XXXXXX");
	assert_non_null(mkdtemp(top));
	snprintf(cache, sizeof(cache), "%s/cache", top);
	disk_conf = (struct cfs_disk_conf){
		.dirs = cache,
		.uuid = UUID,
		.block_size = BLOCK,
		.size = 1024 * MIB,
		.verify = CFS_VERIFY_EXTEND,
		.tick_ms = 20,
		.retry_ms = 40,
		.pending_max = 1024 * MIB,
	};
	return 0;
}

int disk_tear_down(void **state)
{
	close_objects();
	umount2(cache, MNT_DETACH);
	remove_tree(top);
	return 0;
}

void open_disk(void)
{
	char err[256];

	open_store((struct setting){.plain = plain_objects, .hash_prefix = disk_conf.hash_prefix});
	disk_conf.pool = pool;
	if (cfs_disk_create(&disk_conf, &disk, err) < 0)
		fail_msg("%s", err);
	assert_int_equal(cfs_store_add_tier(store, &cfs_disk_tier, disk), 0);
	cfs_metrics_add(&metrics, &cfs_disk_metrics, disk);
}

void close_disk(void)
{
	close_store();
	cfs_disk_destroy(disk);
	close_pool();
}

/* Pages of odd sizes: a checksum must not care where they end. */
void offer(const struct cfs_block *b)
{
	uint8_t *data = content(b);
	struct cfs_page *page;
	struct cfs_segs segs;
	uint32_t at, n;

	cfs_segs_init(&segs);
	for (at = 0; at < b->len; at += n) {
		n = CFS_MIN(CFS_PAGE_LARGE - (at % 3 ? 5 : 0), b->len - at);
		assert_int_equal(cfs_page_get(pool, CFS_PAGE_LARGE, CFS_USE_READ, soon(), &page),
				 0);
		memcpy(page->data, data + at, n);
		assert_int_equal(cfs_segs_add(&segs, page, 0, n), 0);
	}
	cfs_disk_tier.offer(disk, b, &segs);
	cfs_segs_release(&segs);
	free(data);
}

void store_block(const struct cfs_block *b)
{
	uint64_t before = metric("disk_cache_writes_total");

	offer(b);
	WAIT_FOR(metric("disk_cache_writes_total") == before + 1 &&
		 metric("disk_cache_pending_bytes") == 0);
}

ssize_t get(const struct cfs_block *b, uint32_t off, uint32_t len)
{
	uint8_t *dst = malloc(len);
	/* Two pieces, cut at an odd place. */
	uint32_t cut = len / 3, i;
	struct iovec iov[] = {{dst, cut}, {dst + cut, len - cut}};
	ssize_t n = cfs_disk_tier.get(disk, b, off, iov + !cut, 2 - !cut, false, soon());

	for (i = 0; n > 0 && i < len; i++) {
		if (dst[i] != byte_at(b, off + i))
			n = -EILSEQ;
	}
	free(dst);
	return n;
}

void path_in(const char *tree, const struct cfs_block *b, char path[512])
{
	unsigned long long s = b->slice;

	if (disk_conf.hash_prefix)
		snprintf(path, 512, "%s/" UUID "/%s/chunks/%02X/%llu/%llu_%u_%u", cache, tree,
			 (unsigned)(s % 256), s / 1000000, s, b->index, b->len);
	else
		snprintf(path, 512, "%s/" UUID "/%s/chunks/%llu/%llu/%llu_%u_%u", cache, tree,
			 s / 1000000, s / 1000, s, b->index, b->len);
}

char *path_of(const struct cfs_block *b)
{
	static char path[512];

	path_in("raw", b, path);
	return path;
}

bool in_tree(const char *tree, const struct cfs_block *b)
{
	char path[512];

	path_in(tree, b, path);
	return access(path, F_OK) == 0;
}

bool file_exists(const struct cfs_block *b)
{
	return in_tree("raw", b);
}

void touch(const char *path, size_t len, time_t age_s)
{
	struct timespec t[2] = {{time(NULL) - age_s, 0}, {time(NULL) - age_s, 0}};
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	assert_int_equal(futimens(fd, t), 0);
	close(fd);
}

void mount_tmpfs(const char *options)
{
	mkdir(cache, 0700);
	if (mount("tmpfs", cache, "tmpfs", 0, options) < 0)
		skip_missing("the right to mount");
}
