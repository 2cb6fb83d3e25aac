/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/bench/mdtest.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/thread.h"
#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/live.h"
#include "cmd/access/progress.h"
#include "cmd/access/volume.h"

#define NOT_GIVEN UINT64_MAX

/* Latency histogram: eight buckets per octave, at most 12 % off. */
enum { STEPS = 8, BUCKETS = 64 * STEPS, MAX_ITEMS = 100000000 };

struct mdtest_opts {
	struct admin_opts common;
	int64_t depth, dirs, files, threads;
	uint64_t write, skip_dir_mtime_ms;
};

#define OPTIONS struct mdtest_opts
static const struct cfs_opt mdtest_table[] = {
	OPT_INT("depth", depth, "N", "levels of directories below the top", .def = "1", .min = 0,
		.max = 32),
	OPT_INT("dirs", dirs, "N", "directories in each directory but those of the last level",
		.def = "10", .min = 1, .max = 1000000),
	OPT_INT("files", files, "N", "files in each directory", .def = "100", .min = 0,
		.max = 10000000),
	OPT_INT("threads", threads, "N", "operations at the same time", .def = "10", .min = 1,
		.max = 1000),
	OPT_SIZE("write", write, "SIZE", "bytes written into each file", .def = "0",
		 .max = CFS_FILE_MAX),
	OPT_DURATION("skip-dir-mtime", skip_dir_mtime_ms, "TIME",
		     "with a META-URL: the mount option of this name", .def = "100ms",
		     .flags = CFS_OPT_UNSET),
	ADMIN_OPTIONS(common),
	{0},
};

typedef int (*item_fn)(struct mdtest_target *t, uint64_t item);

struct phase {
	const char *name;
	uint64_t count, errors;
	int first_error;
	uint64_t time_ns;
	uint64_t latency[BUCKETS];
	uint64_t p50_ns, p99_ns;
	bool asked; /* the fields below are known */
	struct mdtest_requests requests;
};

/* Items [next, end) of one phase. Threads take them one by one. */
struct run {
	struct mdtest_target *t;
	struct progress *progress;
	item_fn fn;
	bool backwards, cleaning;
	uint64_t begin, end;
	_Atomic uint64_t next;
	pthread_mutex_t lock; /* protects phase */
	struct phase *phase;
};

static unsigned bucket_of(uint64_t ns)
{
	unsigned octave = ns ? 63 - (unsigned)__builtin_clzll(ns) : 0;
	uint64_t eighth = octave >= 3 ? (ns >> (octave - 3)) & (STEPS - 1) : 0;

	return octave * STEPS + (unsigned)eighth;
}

static uint64_t bucket_ns(unsigned bucket)
{
	unsigned octave = bucket / STEPS;
	uint64_t low = 1ULL << octave;

	/* the middle of the bucket */
	return low + (low >> 3) * (bucket % STEPS) + (low >> 4);
}

static uint64_t percentile(const struct phase *p, double part)
{
	uint64_t want = (uint64_t)((double)p->count * part), seen = 0;
	unsigned i;

	for (i = 0; i < BUCKETS; i++) {
		seen += p->latency[i];
		if (seen > want)
			return bucket_ns(i);
	}
	return 0;
}

static void *work(void *arg)
{
	struct run *run = arg;
	uint64_t latency[BUCKETS] = {0}, errors = 0, count = 0, i;
	int first = 0;

	while (!live_stopped() || run->cleaning) {
		uint64_t n = atomic_fetch_add(&run->next, 1), start, ns;
		int r;

		if (n >= run->end)
			break;
		start = cfs_now_ns();
		r = run->fn(run->t, run->backwards ? run->end - 1 - (n - run->begin) : n);
		ns = cfs_now_ns() - start;
		progress_add(run->progress, 1);
		/* An interrupted run has not made every item; a missing one needs no removal. */
		if (r == -ENOENT && run->cleaning && live_stopped())
			continue;
		count++;
		latency[bucket_of(ns)]++;
		errors += r != 0;
		first = first ? first : r;
	}
	pthread_mutex_lock(&run->lock);
	for (i = 0; i < BUCKETS; i++)
		run->phase->latency[i] += latency[i];
	run->phase->count += count;
	run->phase->errors += errors;
	if (!run->phase->first_error)
		run->phase->first_error = first;
	pthread_mutex_unlock(&run->lock);
	return NULL;
}

/* One part of a phase, such as the items of one level. */
static int run_items(struct run *run, unsigned n_threads)
{
	pthread_t *threads = calloc(n_threads, sizeof(*threads));
	uint64_t start_ns = cfs_now_ns();
	unsigned i, n = 0;
	int r = threads ? 0 : -ENOMEM;

	atomic_store(&run->next, run->begin);
	for (i = 0; i < n_threads && !r; i++) {
		r = cfs_thread_start("mdtest", work, run, &threads[i]);
		n += r == 0;
	}
	for (i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	run->phase->time_ns += cfs_now_ns() - start_ns;
	free(threads);
	return r;
}

struct mdtest {
	struct mdtest_target *t;
	unsigned depth;
	struct phase phases[8];
	size_t n;
	uint64_t reached; /* every item that was begun in the last phase is below it */
};

/* First directory of a level. Level depth + 1 gives the end of the last one. */
static uint64_t level_begin(const struct mdtest_shape *s, unsigned level)
{
	uint64_t begin = 0, size = 1;

	for (; level; level--, size *= s->width)
		begin += size;
	return begin;
}

enum order { AT_ONCE, DOWN, UP }; /* level by level from the top, or from the leaves */

static int run_phase(struct mdtest *m, const char *name, item_fn fn, uint64_t begin, uint64_t end,
		     enum order order, bool cleaning)
{
	const struct mdtest_shape *s = &m->t->shape;
	struct phase *p = &m->phases[m->n];
	struct progress progress;
	struct run run = {.t = m->t, .fn = fn, .phase = p, .cleaning = cleaning};
	struct mdtest_requests before = {0}, after = {0};
	unsigned level, levels = order == AT_ONCE ? 1 : m->depth + 1;
	int r = 0;

	m->reached = begin;
	if (begin == end || (live_stopped() && !cleaning))
		return 0;
	m->n++;
	p->name = name;
	run.progress = &progress;
	run.backwards = order == UP;
	pthread_mutex_init(&run.lock, NULL);
	progress_begin(&progress, name);
	progress_set(&progress, 0, end - begin);
	p->asked = m->t->ops->requests(m->t, &before);
	for (level = 0; level < levels && !r; level++) {
		unsigned l = order == UP ? m->depth - level : level;

		run.begin = order == AT_ONCE ? begin : CFS_MAX(begin, level_begin(s, l));
		run.end = order == AT_ONCE ? end : level_begin(s, l + 1);
		if (run.begin < run.end)
			r = run_items(&run, s->threads);
		m->reached = CFS_MAX(m->reached, CFS_MIN(run.end, atomic_load(&run.next)));
	}
	p->asked = p->asked && m->t->ops->requests(m->t, &after) && p->count;
	progress_end(&progress);
	pthread_mutex_destroy(&run.lock);
	p->requests.round_trips = after.round_trips - before.round_trips;
	p->requests.retries = after.retries - before.retries;
	p->p50_ns = percentile(p, 0.5);
	p->p99_ns = percentile(p, 0.99);
	return r;
}

static int run_all(struct mdtest *m)
{
	const struct mdtest_ops *ops = m->t->ops;
	uint64_t dirs = m->t->shape.n_dirs, files = m->t->shape.n_files;
	int r, r2, r3;

	r = run_phase(m, "mkdir", ops->mkdir, 1, dirs, DOWN, false);
	dirs = m->reached;
	m->reached = 0;
	if (!r)
		r = run_phase(m, "create", ops->create, 0, files, AT_ONCE, false);
	files = m->reached;
	if (ops->created && !r)
		r = ops->created(m->t);
	if (!r)
		r = run_phase(m, "stat", ops->stat, 0, files, AT_ONCE, false);
	if (!r)
		r = run_phase(m, "list", ops->list, 0, dirs, AT_ONCE, false);
	/* Removes what was made, also after an error. */
	r2 = run_phase(m, "unlink", ops->unlink, 0, files, AT_ONCE, true);
	r3 = run_phase(m, "rmdir", ops->rmdir, 0, dirs, UP, true);
	return r ? r : r2 ? r2 : r3;
}

/* ---- results ---- */

static double per_second(const struct phase *p)
{
	return p->time_ns ? (double)p->count * 1e9 / (double)p->time_ns : 0;
}

static double per_operation(const struct phase *p, uint64_t n)
{
	return (double)n / (double)p->count;
}

static void print_table(const struct mdtest *m)
{
	size_t i;

	printf("%-8s %10s %8s %12s %10s %10s %12s %12s\n", "", "count", "errors", "per second",
	       "p50 us", "p99 us", "round trips", "retries/1000");
	for (i = 0; i < m->n; i++) {
		const struct phase *p = &m->phases[i];

		printf("%-8s %10" PRIu64 " %8" PRIu64 " %12.0f %10.1f %10.1f ", p->name, p->count,
		       p->errors, per_second(p), (double)p->p50_ns / 1e3, (double)p->p99_ns / 1e3);
		if (p->asked)
			printf("%12.2f %12.2f\n", per_operation(p, p->requests.round_trips),
			       1000 * per_operation(p, p->requests.retries));
		else
			printf("%12s %12s\n", "-", "-");
	}
}

static void print_json(const struct mdtest *m)
{
	const struct mdtest_shape *s = &m->t->shape;
	json_t *phases = json_array();
	size_t i;

	for (i = 0; i < m->n; i++) {
		const struct phase *p = &m->phases[i];

		json_array_append_new(
			phases,
			json_pack("{s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:o, s:o}", "name", p->name,
				  "count", (json_int_t)p->count, "errors", (json_int_t)p->errors,
				  "seconds", (double)p->time_ns / 1e9, "per_second", per_second(p),
				  "p50_us", (double)p->p50_ns / 1e3, "p99_us",
				  (double)p->p99_ns / 1e3, "round_trips",
				  p->asked ? json_real(per_operation(p, p->requests.round_trips))
					   : json_null(),
				  "retries",
				  p->asked ? json_integer((json_int_t)p->requests.retries)
					   : json_null()));
	}
	admin_print_json(json_pack("{s:I, s:I, s:I, s:I, s:o}", "threads", (json_int_t)s->threads,
				   "directories", (json_int_t)s->n_dirs, "files",
				   (json_int_t)s->n_files, "write", (json_int_t)s->write_bytes,
				   "operations", phases));
}

static int judge(const struct mdtest *m)
{
	size_t i;
	int status = CMD_OK;

	for (i = 0; i < m->n; i++) {
		if (!m->phases[i].errors)
			continue;
		status = cmd_error("%s: %" PRIu64 " of %" PRIu64 " failed, the first: %s",
				   m->phases[i].name, m->phases[i].errors, m->phases[i].count,
				   strerror(-m->phases[i].first_error));
	}
	return live_stopped() ? CMD_INTERRUPTED : status;
}

static bool make_shape(const struct mdtest_opts *o, struct mdtest_shape *ret)
{
	uint64_t level, size = 1;

	*ret = (struct mdtest_shape){
		.width = (uint64_t)o->dirs,
		.files = (uint64_t)o->files,
		.write_bytes = o->write,
		.threads = (unsigned)o->threads,
		.n_dirs = 1,
	};
	for (level = 0; level < (uint64_t)o->depth; level++) {
		size *= ret->width;
		ret->n_dirs += size;
		if (ret->n_dirs > MAX_ITEMS)
			return false;
	}
	ret->n_files = ret->n_dirs * ret->files;
	/* On a volume, every chunk that is written is remembered, so chunks are limited too. */
	return ret->n_files <= MAX_ITEMS &&
	       ret->n_files * CFS_DIV_UP(ret->write_bytes, CFS_CHUNK_SIZE) <= MAX_ITEMS;
}

static int mdtest_run(void *options, const char **args)
{
	struct mdtest_opts *o = options;
	struct mdtest_shape shape;
	cfs_auto_free struct mdtest *m = NULL;
	bool is_volume = strstr(args[0], "://");
	int r, closed;

	if (!make_shape(o, &shape))
		return cmd_usage("that is more than %d directories, files or chunks of 64 MiB",
				 MAX_ITEMS);
	if (o->skip_dir_mtime_ms != NOT_GIVEN && !is_volume)
		return cmd_usage("%s: skip-dir-mtime is an option of the mount", args[0]);
	if (o->skip_dir_mtime_ms == NOT_GIVEN)
		o->skip_dir_mtime_ms = CFS_SKIP_DIR_MTIME_MS;
	r = volume_use_credentials(o->common.credentials);
	if (r != CMD_OK)
		return r;
	m = calloc(1, sizeof(*m));
	if (!m)
		return CMD_SYSTEM;
	m->depth = (unsigned)o->depth;
	r = is_volume ? mdtest_open_volume(args[0], &shape, o->skip_dir_mtime_ms, &m->t)
		      : mdtest_open_path(args[0], &shape, &m->t);
	if (r != CMD_OK)
		return r;
	live_begin();
	r = run_all(m);
	if (r < 0)
		cmd_error("%s", strerror(-r));
	if (o->common.json)
		print_json(m);
	else
		print_table(m);
	closed = m->t->ops->close(m->t);
	if (closed < 0)
		cmd_error("the session did not end cleanly: %s", strerror(-closed));
	return r < 0 || closed < 0 ? CMD_SYSTEM : judge(m);
}

const struct cmd cmd_mdtest = {
	.name = "mdtest",
	.synopsis = "[OPTIONS] META-URL|PATH",
	.summary = "Measures metadata operations of a volume or a mount",
	CMD_OPTIONS(mdtest_table),
	.min_args = 1,
	.max_args = 1,
	.on_mount = true,
	.run = mdtest_run,
};
