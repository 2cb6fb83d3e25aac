/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The maintenance thread of a directory. It keeps space and age within their limits, closes idle
 * files, scans the directory, and retries one that has failed.
 */
#include <errno.h>

#include "base/workers.h"
#include "disk-internal.h"
#include "whole.h"

#define QUEUE_LIMIT 4096
/* An open file that was not read for so long is closed. */
#define IDLE_S 60
/* Other clients may add files, too. */
#define SCAN_MS 3600000
/* A disk that takes that long for a probe is not used yet. */
#define PROBE_MS 1000

static void revive(struct disk_dir *dir)
{
	bool failed = atomic_load(&dir->cd->state) == DIR_FAILED;
	cfs_deadline_t until = cfs_deadline_in(PROBE_MS);
	int r = cfs_cachedir_probe(dir->cd);

	if (r == 0) {
		r = cfs_disk_keep_free(dir, dir->disk->conf.block_size);
		r = r == -EDQUOT ? 0 : r;
	}
	if (r == 0 && cfs_deadline_passed(until))
		r = -ETIMEDOUT;
	if (r == 0 && failed)
		dir->scan_at = 0;
	cfs_cachedir_retried(dir->cd, r);
}

static void scan(struct disk_dir *dir)
{
	int r;

	dir->scan_at = cfs_deadline_in(SCAN_MS);
	r = cfs_disk_scan(dir);
	cfs_whole_scan(dir);
	if (r < 0)
		cfs_cachedir_fault(dir->cd, "scan", r, false);
}

static void keep(void *arg)
{
	struct disk_dir *dir = arg;
	struct cfs_disk *d = dir->disk;
	uint32_t now_s = cfs_disk_now_s();

	if (atomic_load(&dir->cd->state) == DIR_FAILED) {
		cfs_disk_fds_sweep(&d->fds, dir, true, 0);
		cfs_disk_index_clear(&dir->index);
		cfs_whole_clear(dir);
	}
	if (cfs_cachedir_retry_is_due(dir->cd))
		revive(dir);
	if (atomic_load(&dir->cd->state) == DIR_FAILED)
		return;
	cfs_cachedir_check_root(dir->cd);
	if (cfs_deadline_passed(dir->scan_at))
		scan(dir);
	cfs_disk_fds_sweep(&d->fds, dir, false, now_s > IDLE_S ? now_s - IDLE_S : 0);
	if (atomic_load(&dir->cd->state) == DIR_OK) {
		cfs_whole_keep(dir);
		cfs_disk_make_room(dir, 0);
		cfs_disk_expire(dir);
	}
}

/* ---- life ---- */

int cfs_disk_dir_init(struct disk_dir *dir, struct cfs_disk *d, struct cache_dir *cd,
		      uint64_t limit, uint32_t max_items)
{
	int r;

	dir->disk = d;
	dir->cd = cd;
	r = cfs_disk_index_init(&dir->index, d->conf.eviction, limit, max_items,
				d->conf.block_size);
	if (r < 0)
		return r;
	r = cfs_workers_create("cfs-cache-rm", 1, QUEUE_LIMIT, &dir->remover);
	if (r < 0)
		return r;
	/* As many as there are descriptors. */
	r = cfs_workers_create("cfs-cache-close", 1, SIZE_MAX, &dir->closer);
	if (r < 0)
		return r;
	return cfs_workers_create("cfs-cache-write", 1, QUEUE_LIMIT, &dir->writer);
}

int cfs_disk_dir_start(struct disk_dir *dir)
{
	int r;

	cfs_cachedir_start(dir->cd);
	r = cfs_ticker_start("cfs-cache-keep", dir->disk->conf.tick_ms, keep, dir,
			     &dir->cd->keeper);
	if (r == 0)
		cfs_ticker_kick(dir->cd->keeper);
	return r;
}

void cfs_disk_dir_stop(struct disk_dir *dir)
{
	if (dir->cd->keeper)
		cfs_ticker_stop(dir->cd->keeper);
	cfs_workers_destroy(dir->remover);
	cfs_workers_destroy(dir->writer);
	cfs_workers_destroy(dir->closer);
	dir->closer = NULL;
}
