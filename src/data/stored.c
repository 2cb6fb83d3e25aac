/* SPDX-License-Identifier: Apache-2.0 */
/* The stored chunks of a file, one by one, and the view of a stored chunk. */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "data-internal.h"

#define PAGE 1024

int cfs_stored_next(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino,
		    struct cfs_stored_chunks *s, struct cfs_chunk_len *ret)
{
	if (!s->page) {
		s->page = calloc(PAGE, sizeof(*s->page));
		s->at = s->n = PAGE;
	}
	if (!s->page)
		return -ENOMEM;
	if (s->at == s->n) {
		if (s->n < PAGE)
			return 0;
		s->at = 0;
		s->n = cfs_meta_list_chunks(m, ctx, ino, s->first, s->page);
		if (s->n <= 0)
			return (int)s->n;
		s->first = s->page[s->n - 1].indx + 1;
	}
	*ret = s->page[s->at++];
	return 1;
}

int cfs_view_read(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, uint32_t indx,
		  struct cfs_view *ret)
{
	cfs_auto_free struct cfs_slice *records = NULL;
	ssize_t n = cfs_meta_read_chunk(m, ctx, ino, indx, &records);

	return n < 0 ? (int)n : cfs_view_build(records, (size_t)n, ret);
}
