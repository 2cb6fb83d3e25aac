/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/slowstep.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/workers.h"
#include "cmd/access/cmd.h"

struct slow_step {
	char *what;
	uint64_t max_ms;
	bool told; /* used by the ticker's thread only */
	struct cfs_ticker *ticker;
};

static void tell(void *arg)
{
	struct slow_step *s = arg;

	if (!s->told)
		cmd_error("waiting for a reply from %s, at most %g s", s->what,
			  (double)s->max_ms / 1000);
	s->told = true;
}

struct slow_step *slow_step_begin(const char *what, uint64_t max_ms)
{
	struct slow_step *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->what = strdup(what);
	s->max_ms = max_ms;
	if (s->what && cfs_ticker_start("slow step", SLOW_STEP_MS, tell, s, &s->ticker) == 0)
		return s;
	free(s->what);
	free(s);
	return NULL;
}

void slow_step_end(struct slow_step *s)
{
	if (!s)
		return;
	cfs_ticker_stop(s->ticker);
	free(s->what);
	free(s);
}
