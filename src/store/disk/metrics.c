/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the disk cache. */
#include "disk-internal.h"
#include "whole.h"

/* Of all directories. */
static struct index_state state(struct cfs_disk *d)
{
	struct index_state sum = {0}, one;
	unsigned i;

	for (i = 0; i < d->set.n; i++) {
		one = cfs_disk_index_state(&d->dirs[i].index);
		sum.bytes += one.bytes;
		sum.reserved += one.reserved;
		sum.n += one.n;
	}
	return sum;
}

uint64_t cfs_disk_bytes(struct cfs_disk *d)
{
	return state(d).bytes;
}

static uint64_t bytes(void *disk)
{
	return cfs_disk_bytes(disk);
}

static uint64_t blocks(void *disk)
{
	return state(disk).n;
}

static uint64_t whole_bytes(void *disk)
{
	return state(disk).reserved;
}

static uint64_t dirs_failed(void *disk)
{
	struct cfs_disk *d = disk;
	uint64_t n = 0;
	unsigned i;

	for (i = 0; i < d->set.n; i++)
		n += atomic_load(&d->set.v[i].state) != DIR_OK;
	return n;
}

bool cfs_disk_stores(struct cfs_disk *d)
{
	return dirs_failed(d) < d->set.n;
}

#define M(n, h, field) CFS_METRIC(struct cfs_disk, n, NULL, h, field)
#define R(n, h, fn)    CFS_METRIC_READ(n, h, fn)
static const struct cfs_metric metrics[] = {
	M("disk_cache_hits_total", "Reads served from the disk cache", stat.hits),
	M("disk_cache_hit_bytes_total", "Data served from the disk cache", stat.hit_bytes),
	M("disk_cache_misses_total", "Reads that the disk cache could not serve", stat.misses),
	M("disk_cache_writes_total", "Blocks written to the disk cache", stat.writes),
	M("disk_cache_write_bytes_total", "Data written to the disk cache", stat.write_bytes),
	M("disk_cache_drops_total", "Blocks offered to the disk cache and not written", stat.drops),
	M("disk_cache_evictions_total", "Blocks removed to make room", stat.evictions),
	M("disk_cache_evicted_bytes_total", "Data removed to make room", stat.evicted_bytes),
	M("disk_cache_expired_total", "Blocks removed because of cache-expire", stat.expired),
	M("disk_cache_corrupt_total", "Blocks with a wrong checksum, which were removed",
	  stat.corrupt),
	M("disk_cache_errors_total", "Failed calls on the cache disks", set.stat.errors),
	M("disk_cache_directory_failures_total", "Times that a cache directory was given up",
	  set.stat.failures),
	M("disk_cache_scans_total", "Finished scans of cache directories", stat.scanned),
	R("disk_cache_bytes", "Data in the disk cache", bytes),
	R("disk_cache_blocks", "Blocks in the disk cache", blocks),
	R("whole_files", "Files that the disk cache has as one plain file", cfs_whole_count),
	R("whole_files_bytes", "Space charged for them", whole_bytes),
	M("whole_files_uses_total", "Times that an open found one", wholes.stat.uses),
	M("whole_files_made_total", "Files that were composed of cached blocks", wholes.stat.made),
	M("whole_files_made_bytes_total", "Data of these files", wholes.stat.made_bytes),
	M("whole_files_evictions_total", "Whole files removed to make room", wholes.stat.evictions),
	M("whole_files_corrupt_total", "Whole files with a wrong checksum, which were removed",
	  wholes.stat.corrupt),
	M("disk_cache_directories", "Cache directories", set.n),
	R("disk_cache_directories_failed", "Cache directories that are not in use", dirs_failed),
};

const struct cfs_metric_table cfs_disk_metrics = CFS_METRIC_TABLE(metrics);
