/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"

#define SHOW_EVERY_MS 200

void progress_begin(struct progress *p, const char *what)
{
	p->what = what;
	p->on = isatty(STDERR_FILENO);
	p->bytes = false;
	p->start_ms = cfs_now_ms();
	atomic_store(&p->done, 0);
	atomic_store(&p->total, 0);
	atomic_store(&p->shown_ms, 0);
}

#define BAR 30

static void show_bytes(struct progress *p, uint64_t done, uint64_t total, uint64_t ms)
{
	unsigned filled = total ? (unsigned)(CFS_MIN(done, total) * BAR / total) : 0;
	uint64_t rate = done * 1000 / ms, left_s = total > done && rate ? (total - done) / rate : 0;
	char a[32], b[32], c[32];

	fprintf(stderr, "\r\033[K%s: ", p->what);
	if (total)
		fprintf(stderr, "[%.*s%*s] %s of %s", (int)filled, "##############################",
			(int)(BAR - filled), "", progress_size(done, a), progress_size(total, b));
	else
		fputs(progress_size(done, a), stderr);
	fprintf(stderr, ", %s/s", progress_size(rate, c));
	if (left_s)
		fprintf(stderr, ", %" PRIu64 ":%02u left", left_s / 60, (unsigned)(left_s % 60));
	fflush(stderr);
}

static void show(struct progress *p, uint64_t now_ms)
{
	uint64_t done = atomic_load(&p->done), total = atomic_load(&p->total);
	uint64_t rate = done * 1000 / (now_ms - p->start_ms + 1);

	if (p->bytes) {
		show_bytes(p, done, total, now_ms - p->start_ms + 1);
		return;
	}
	if (total)
		fprintf(stderr, "\r\033[K%s: %" PRIu64 " of %" PRIu64 " (%" PRIu64 "/s)", p->what,
			done, total, rate);
	else
		fprintf(stderr, "\r\033[K%s: %" PRIu64 " (%" PRIu64 "/s)", p->what, done, rate);
	fflush(stderr);
}

static void maybe_show(struct progress *p)
{
	uint64_t shown_ms, now_ms;

	if (!p->on)
		return;
	now_ms = cfs_now_ms();
	shown_ms = atomic_load(&p->shown_ms);
	if (now_ms - shown_ms >= SHOW_EVERY_MS &&
	    atomic_compare_exchange_strong(&p->shown_ms, &shown_ms, now_ms))
		show(p, now_ms);
}

void progress_add(struct progress *p, uint64_t n)
{
	atomic_fetch_add_explicit(&p->done, n, memory_order_relaxed);
	maybe_show(p);
}

void progress_set(struct progress *p, uint64_t done, uint64_t total)
{
	atomic_store(&p->done, done);
	atomic_store(&p->total, total);
	maybe_show(p);
}

void progress_end(struct progress *p)
{
	if (p->on && atomic_load(&p->shown_ms)) {
		fputs("\r\033[K", stderr);
		fflush(stderr);
	}
}

const char *progress_size(uint64_t bytes, char buf[32])
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double v = (double)bytes;
	unsigned i = 0;

	while (v >= 1024 && i < 6) {
		v /= 1024;
		i++;
	}
	snprintf(buf, 32, i ? "%.1f %s" : "%.0f %s", v, units[i]);
	return buf;
}
