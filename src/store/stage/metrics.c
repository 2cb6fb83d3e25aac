/* SPDX-License-Identifier: Apache-2.0 */
#include "stage-internal.h"
#include "store/store-internal.h"

struct numbers {
	uint64_t blocks, bytes, oldest_s, damaged;
	uint64_t uploads, upload_errors, bypassed;
};
_Static_assert(sizeof(struct numbers) <= CFS_METRIC_SNAPSHOT_MAX,
	       "the snapshot's buffer is larger");

static void snapshot(void *store, void *ret)
{
	struct cfs_stage *st = ((struct cfs_store *)store)->stage;
	const struct staged *oldest;
	struct numbers *n = ret;

	*n = (struct numbers){0};
	if (!st)
		return;
	pthread_mutex_lock(&st->lock);
	oldest = TAILQ_FIRST(&st->list);
	n->blocks = st->n;
	n->bytes = st->bytes;
	n->damaged = st->n_damaged;
	n->oldest_s = oldest ? (uint64_t)((int64_t)cfs_now_ms() - oldest->since_ms) / 1000 : 0;
	pthread_mutex_unlock(&st->lock);
	n->uploads = atomic_load(&st->stat.uploads);
	n->upload_errors = atomic_load(&st->stat.upload_errors);
	n->bypassed = atomic_load(&st->stat.bypassed);
}

#define M(n, h, field) CFS_METRIC(struct numbers, n, NULL, h, field)
static const struct cfs_metric metrics[] = {
	M("staging_blocks", "Blocks on disk that are not yet uploaded", blocks),
	M("staging_bytes", "Data on disk that is not yet uploaded", bytes),
	M("staging_oldest_seconds", "Age of the oldest block that is not yet uploaded", oldest_s),
	M("staging_damaged_blocks", "Blocks on disk that cannot be uploaded as they are damaged",
	  damaged),
	M("staging_uploads_total", "Blocks uploaded from disk", uploads),
	M("staging_upload_errors_total", "Failed uploads from disk, which are tried again",
	  upload_errors),
	M("staging_bypassed_total", "Blocks uploaded at once although writeback is on", bypassed),
};

const struct cfs_metric_table cfs_stage_metrics = CFS_METRIC_TABLE(metrics, .snapshot = snapshot);
