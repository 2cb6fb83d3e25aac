/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "meta/engine/engine.h"

/* More skew is a problem: session expiry compares heartbeat times, which are seconds apart. */
#define SKEW_MAX_MS 2000

void cfs_advise(const struct cfs_adviser *to, enum cfs_advice level, const char *what,
		const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	to->fn(to->arg, level, what, text);
}

void cfs_advise_clock(const struct cfs_adviser *to, int64_t there_us, struct timespec before)
{
	struct timespec after = cfs_wall();
	int64_t from_us = (int64_t)before.tv_sec * 1000000 + before.tv_nsec / 1000;
	int64_t to_us = (int64_t)after.tv_sec * 1000000 + after.tv_nsec / 1000;
	int64_t off_ms = 0;

	if (there_us < from_us)
		off_ms = (there_us - from_us) / 1000;
	else if (there_us > to_us)
		off_ms = (there_us - to_us) / 1000;
	if (off_ms < -SKEW_MAX_MS || off_ms > SKEW_MAX_MS)
		cfs_advise(to, CFS_ADVICE_CHANGE, "database clock",
			   "%" PRId64 " ms %s of this host's: synchronise both with NTP",
			   off_ms < 0 ? -off_ms : off_ms, off_ms < 0 ? "behind" : "ahead");
	else
		cfs_advise(to, CFS_ADVICE_OK, "database clock",
			   "agrees with this host's (%" PRId64 " ms apart)",
			   off_ms < 0 ? -off_ms : off_ms);
}

void cfs_advise_connections(const struct cfs_adviser *to, int64_t used, int64_t max)
{
	if (max > 0 && used * 10 > max * 8)
		cfs_advise(to, CFS_ADVICE_CHANGE, "connections",
			   "%" PRId64 " of %" PRId64
			   " are in use: raise the server's limit, or lower "
			   "those of the mounts",
			   used, max);
	else
		cfs_advise(to, CFS_ADVICE_OK, "connections",
			   "%" PRId64 " of %" PRId64 " are in use", used, max);
}
