/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cleanup.h"
#include "data-internal.h"

static void count_sessions(struct cfs_node *node, void *arg)
{
	struct cfs_file *f = caa_container_of(node, struct cfs_file, node);
	uint64_t *ret = arg;
	unsigned i;
	CFS_LOCK_GUARD(&f->lock);

	for (i = 0; i < CFS_FILE_SESSIONS; i++)
		*ret += f->sessions[i].used != 0;
}

static uint64_t read_sessions(void *part)
{
	struct cfs_data *d = part;
	uint64_t n = 0;

	cfs_table_each(d->files, count_sessions, &n);
	return n;
}

static uint64_t dirty_files(void *part)
{
	struct cfs_data *d = part;
	struct cfs_file *f;
	uint64_t n = 0;
	CFS_LOCK_GUARD(&d->lock);

	TAILQ_FOREACH(f, &d->dirty, in_dirty)
	n++;
	return n;
}

#define M(n, h, field) CFS_METRIC(struct cfs_data, n, NULL, h, field)
#define R(n, h, fn)    CFS_METRIC_READ(n, h, fn)
static const struct cfs_metric metrics[] = {
	M("data_open_files", "Files whose data is in use", n_files),
	R("data_read_sessions", "Streams of reads that are followed", read_sessions),
	M("data_dirty_bytes", "Written data that is not yet stored", dirty_bytes),
	R("data_dirty_files", "Files with such data", dirty_files),
	M("data_closing_files", "Closed files that wait for their turn to be committed", closing.n),
	M("data_changed_files", "Files whose mode, owner or times are stored with such data",
	  changed_files),
	M("data_lost_bytes_total", "Written data that could not be stored and was dropped",
	  lost_bytes),
	M("data_lost_files_total", "Files that lost data in this way", lost_files),
	M("data_open_slices", "Slices being written", n_slices),
	M("data_commits_total", "Slices recorded in the metadata", commits),
	M("data_grouped_commits_total", "Those of closed files that were recorded in groups",
	  grouped_commits),
	M("data_commit_errors_total", "Slices that could not be recorded", commit_errors),
	M("data_readahead_bytes_total", "Data fetched ahead of reads", readahead_bytes),
	R("data_ahead_bytes", "Data fetched of files that are not opened yet", cfs_ahead_waiting),
	M("data_ahead_fetched_files_total", "Files with data fetched ahead of their opens",
	  ahead_fetched_files),
	M("data_ahead_fetched_bytes_total", "Their data", ahead_fetched_bytes),
	M("data_ahead_used_files_total", "Those that were then opened, unchanged",
	  ahead_used_files),
	M("data_ahead_used_bytes_total", "Their data", ahead_used_bytes),
	M("data_ahead_wasted_files_total", "Those that were not, or had changed",
	  ahead_wasted_files),
	M("data_ahead_wasted_bytes_total", "Their data", ahead_wasted_bytes),
	M("data_compactions_total", "Chunks whose slices were merged", compactions),
	M("data_prefetches_declined_total",
	  "Whole blocks not fetched, as too little of others was read", prefetches_declined),
};

const struct cfs_metric_table cfs_data_metrics = CFS_METRIC_TABLE(metrics);
