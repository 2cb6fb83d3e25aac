/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that the object store accepted and may have lost (cfs_store_sync). The metadata tells which
 * file they belong to, when fsync is called: the file may have been closed and opened again since,
 * and overwritten bytes do not matter.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "data-internal.h"

int cfs_records_suspect(struct cfs_data *d, const struct cfs_slice *recs, size_t n)
{
	struct cfs_view view;
	size_t i;
	int r;

	if (!cfs_store_has_suspects(d->conf.store))
		return 0;
	r = cfs_view_build(recs, n, &view);
	if (r < 0)
		return r;
	for (i = 0; i < view.n && r == 0; i++)
		r = cfs_store_is_suspect(d->conf.store, view.v[i].slice) ? -EIO : 0;
	cfs_view_free(&view);
	return r;
}

static int chunk_suspect(struct cfs_file *f, const struct cfs_ctx *ctx, uint32_t indx)
{
	cfs_auto_free struct cfs_slice *recs = NULL;
	ssize_t n = cfs_meta_read_chunk(f->data->conf.meta, ctx, f->node.key, indx, &recs);

	return n < 0 ? (int)n : cfs_records_suspect(f->data, recs, (size_t)n);
}

int cfs_file_suspect(struct cfs_file *f, const struct cfs_ctx *ctx)
{
	struct cfs_stored_chunks stored = {0};
	struct cfs_chunk_len c;
	int r = 0;

	if (!cfs_store_has_suspects(f->data->conf.store))
		return 0;
	while (r == 0 &&
	       (r = cfs_stored_next(f->data->conf.meta, ctx, f->node.key, &stored, &c)) > 0)
		r = chunk_suspect(f, ctx, c.indx);
	cfs_stored_end(&stored);
	return r;
}
