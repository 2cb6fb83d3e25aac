/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/waits.h"

#include <stdlib.h>

#include "base/activity.h"
#include "base/clock.h"
#include "base/workers.h"
#include "cmd/access/cmd.h"

#define LOOK_MS	     500
#define DESCRIBE_MAX 512

struct waits {
	struct cfs_ticker *ticker;
	uint64_t told_ms;  /* when the last message was given; 0: none */
	uint64_t since_ms; /* of the wait that it was about */
};

static const struct cfs_activity_wait *backend_wait(const struct cfs_activity *a)
{
	unsigned i;

	for (i = 0; i < a->n_waits; i++) {
		switch (a->waits[i].what) {
		case CFS_WAIT_META:
		case CFS_WAIT_OBJECT_GET:
		case CFS_WAIT_OBJECT_PUT:
		case CFS_WAIT_OBJECT_DELETE:
		case CFS_WAIT_OBJECT_SYNC:
		case CFS_WAIT_OBJECT_LIST:
		case CFS_WAIT_OBJECT_HEAD:
		case CFS_WAIT_OBJECT_CREATE:
			return &a->waits[i];
		default:
			break;
		}
	}
	return NULL;
}

static void look(void *arg)
{
	const struct cfs_activity_wait *wait, *longest = NULL;
	uint64_t now_ms = cfs_now_ms();
	char what[DESCRIBE_MAX];
	struct cfs_activity *all;
	struct waits *w = arg;
	size_t n, i, of = 0;

	if (cfs_activity_read(-1, &all, &n) < 0)
		return;
	for (i = 0; i < n; i++) {
		wait = backend_wait(&all[i]);
		if (wait && (!longest || wait->since_ms < longest->since_ms)) {
			longest = wait;
			of = i;
		}
	}
	if (longest && now_ms >= longest->since_ms + WAITS_MS && longest->since_ms != w->since_ms &&
	    (!w->told_ms || now_ms >= w->told_ms + WAITS_AGAIN_MS)) {
		cfs_activity_describe(all, n, of, what, sizeof(what));
		cmd_error("waiting for %s", what);
		w->told_ms = now_ms;
		w->since_ms = longest->since_ms;
	}
	free(all);
}

struct waits *waits_begin(void)
{
	struct waits *w = calloc(1, sizeof(*w));

	if (w && cfs_activity_init() == 0 &&
	    cfs_ticker_start("waits", LOOK_MS, look, w, &w->ticker) == 0)
		return w;
	free(w);
	return NULL;
}

void waits_end(struct waits *w)
{
	if (!w)
		return;
	cfs_ticker_stop(w->ticker);
	free(w);
}
