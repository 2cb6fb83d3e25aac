/* SPDX-License-Identifier: Apache-2.0 */
/* Tests an object store: correctness of the interface, then speed at rising concurrency. */
#include "cmd/bench/objbench.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/thread.h"
#include "cmd/access/cmd.h"
#include "cmd/access/live.h"
#include "cmd/access/progress.h"
#include "cmd/access/volume.h"
#include "cmd/access/waits.h"
#include "cmd/access/waitstore.h"

#define STAMP_LEN	  32
#define THREADS_MAX	  1024
#define THREAD_COUNTS_MAX 16
#define KEY_MAX		  160
#define MBPS		  125000 /* bytes per second */

struct options {
	char *storage, *credentials, *thread_counts;
	uint64_t block_size, big_size, small_size;
	int64_t small_objects, shards, upload_limit, download_limit;
	bool skip_checks, skip_speed, json;
};

#define OPTIONS struct options
static const struct cfs_opt table[] = {
	OPT_STRING("storage", storage, "TYPE", "type of the object store: file, mem, s3, minio",
		   .def = "file", .min = 1),
	OPT_CREDENTIALS(credentials, "ACCESS_KEY, SECRET_KEY"),
	OPT_INT("shards", shards, "N", "spread over N buckets; BUCKET then holds one %d",
		.def = "0", .max = 256),
	OPT_STRING("threads", thread_counts, "N,...",
		   "requests at the same time, one round for each number", .def = "1,8,64"),
	OPT_SIZE("block-size", block_size, "SIZE", "size of a big object", .unit = 1024,
		 .def = "4M", .min = 4096, .max = 64 << 20),
	OPT_SIZE("big-size", big_size, "SIZE", "sum of the big objects of a round", .unit = 1 << 20,
		 .def = "256M", .max = INT64_MAX),
	OPT_SIZE("small-size", small_size, "SIZE", "size of a small object", .unit = 1024,
		 .def = "128K", .min = STAMP_LEN, .max = 64 << 20),
	OPT_INT("small-objects", small_objects, "N", "small objects of a round", .def = "200",
		.max = 10000000),
	OPT_INT("upload-limit", upload_limit, "MBPS", "bandwidth of uploads in Mbit/s; 0: no limit",
		.def = "0", .max = 10000000),
	OPT_INT("download-limit", download_limit, "MBPS",
		"bandwidth of downloads in Mbit/s; 0: no limit", .def = "0", .max = 10000000),
	OPT_FLAG("skip-functional-tests", skip_checks, "measure only"),
	OPT_FLAG("skip-speed", skip_speed, "only test the operations"),
	OPT_JSON(json),
	{0},
};

struct bench {
	const struct options *o;
	struct cfs_object_store *store;
	char prefix[64];
	uint8_t *body; /* of every object, after its stamp */
	unsigned thread_counts[THREAD_COUNTS_MAX];
	size_t n_thread_counts;
	json_t *json; /* NULL: text */
	bool failed;
	struct progress progress;
};

/* One line of the table, updated while it is measured. */
struct load {
	struct bench *b;
	const struct kind *kind;
	unsigned threads;
	size_t size, n;
	_Atomic size_t next;
	_Atomic int err;
	uint32_t *us; /* of each call */
};

struct kind {
	const char *name;
	bool big, moves_data;
	/* buf: belongs to this thread; has room for one object */
	int (*run)(struct load *l, size_t i, uint8_t *buf);
};

static cfs_deadline_t soon(void)
{
	return cfs_deadline_in(OBJBENCH_CALL_MS);
}

static void make_key(const struct load *l, size_t i, char key[KEY_MAX])
{
	snprintf(key, KEY_MAX, "%s%s/%zu/%zu", l->b->prefix, l->kind->big ? "big" : "small", i % 10,
		 i);
}

static void make_stamp(const struct load *l, size_t i, char stamp[STAMP_LEN + 1])
{
	snprintf(stamp, STAMP_LEN + 1, "%-*zu", STAMP_LEN, i * 2 + l->kind->big);
}

static int put_one(struct load *l, size_t i, uint8_t *buf)
{
	struct cfs_object_store *o = l->b->store;
	char key[KEY_MAX], stamp[STAMP_LEN + 1];
	struct iovec iov[2] = {{stamp, STAMP_LEN}, {l->b->body, l->size - STAMP_LEN}};

	make_key(l, i, key);
	make_stamp(l, i, stamp);
	return o->ops->put(o, key, iov, 2, 0, soon());
}

static int get_one(struct load *l, size_t i, uint8_t *buf)
{
	struct cfs_object_store *o = l->b->store;
	struct iovec iov = {buf, l->size + 1};
	char key[KEY_MAX], stamp[STAMP_LEN + 1];
	ssize_t n;

	make_key(l, i, key);
	make_stamp(l, i, stamp);
	n = o->ops->get(o, key, 0, &iov, 1, soon());
	if (n < 0)
		return (int)n;
	return (size_t)n == l->size && memcmp(buf, stamp, STAMP_LEN) == 0 ? 0 : -EBADMSG;
}

static int head_one(struct load *l, size_t i, uint8_t *buf)
{
	struct cfs_object_store *o = l->b->store;
	struct cfs_object_info info;
	char key[KEY_MAX];

	make_key(l, i, key);
	return o->ops->head(o, key, &info, soon());
}

static int del_one(struct load *l, size_t i, uint8_t *buf)
{
	struct cfs_object_store *o = l->b->store;
	char key[KEY_MAX];

	make_key(l, i, key);
	return o->ops->del(o, key, soon());
}

static int count_one(void *arg, const struct cfs_object_info *info)
{
	++*(size_t *)arg;
	return 0;
}

/* All small objects in one call. */
static int list_all(struct load *l, size_t i, uint8_t *buf)
{
	struct cfs_object_store *o = l->b->store;
	char prefix[KEY_MAX];
	size_t n = 0;
	int r;

	snprintf(prefix, sizeof(prefix), "%ssmall/", l->b->prefix);
	r = o->ops->list(o, prefix, "", count_one, &n, soon());
	return r < 0 ? r : n == (size_t)l->b->o->small_objects ? 0 : -EBADMSG;
}

static const struct kind kinds[] = {
	{"upload big objects", true, true, put_one},
	{"download big objects", true, true, get_one},
	{"upload small objects", false, true, put_one},
	{"download small objects", false, true, get_one},
	{"head", false, false, head_one},
	{"list small objects", false, false, list_all},
	{"delete", false, false, del_one},
};

static void *run_load(void *arg)
{
	struct load *l = arg;
	uint8_t *buf = malloc(l->size + 1);
	uint64_t start;
	size_t i;
	int r = 0;

	if (!buf)
		r = -ENOMEM;
	while (r == 0 && atomic_load(&l->err) == 0) {
		i = atomic_fetch_add(&l->next, 1);
		if (i >= l->n)
			break;
		start = cfs_now_ns();
		r = live_stopped() ? -EINTR : l->kind->run(l, i, buf);
		l->us[i] = (uint32_t)CFS_MIN((cfs_now_ns() - start) / 1000, UINT32_MAX);
		progress_add(&l->b->progress, 1);
	}
	if (r < 0)
		atomic_store(&l->err, r);
	free(buf);
	return NULL;
}

static int compare_us(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return CFS_COMPARE(x, y);
}

static double cpu_s(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void report(struct bench *b, const struct load *l, double seconds, double cpu)
{
	double bytes = l->kind->moves_data ? (double)l->n * (double)l->size : 0;
	double objects = l->kind->run == list_all ? (double)b->o->small_objects : (double)l->n;
	uint32_t median, p99;

	qsort(l->us, l->n, sizeof(*l->us), compare_us);
	median = l->us[l->n / 2];
	p99 = l->us[l->n - 1 - l->n / 100];
	if (b->json) {
		json_array_append_new(json_object_get(b->json, "speed"),
				      json_pack("{s:s, s:i, s:f, s:f, s:f, s:f, s:f}", "load",
						l->kind->name, "threads", (int)l->threads,
						"mib_per_s", bytes / seconds / 1048576,
						"objects_per_s", objects / seconds, "median_ms",
						median / 1e3, "p99_ms", p99 / 1e3, "cpu_s_per_gib",
						bytes > 0 ? cpu / bytes * 1073741824 : 0.0));
		return;
	}
	printf("%-24s %7u ", l->kind->name, l->threads);
	if (bytes > 0)
		printf("%10.1f MiB/s", bytes / seconds / 1048576);
	else
		printf("%16s", "");
	printf(" %10.1f /s %9.2f %9.2f", objects / seconds, median / 1e3, p99 / 1e3);
	if (bytes > 0)
		printf(" %9.2f", cpu / bytes * 1073741824);
	putchar('\n');
	fflush(stdout);
}

static int measure(struct bench *b, const struct kind *kind, unsigned threads)
{
	pthread_t v[THREADS_MAX];
	struct load l = {
		.b = b,
		.kind = kind,
		.threads = threads,
		.size = kind->big ? b->o->block_size : b->o->small_size,
		.n = kind->big ? b->o->big_size / b->o->block_size : (size_t)b->o->small_objects,
	};
	unsigned started = 0;
	uint64_t start;
	double cpu;
	int r = 0;

	if (kind->run == list_all && l.n)
		l.n = 1;
	if (!l.n)
		return 0;
	l.us = calloc(l.n, sizeof(*l.us));
	if (!l.us)
		return -ENOMEM;
	progress_begin(&b->progress, kind->name);
	progress_set(&b->progress, 0, l.n);
	start = cfs_now_ns();
	cpu = cpu_s();
	while (started < threads && started < l.n && r == 0) {
		r = cfs_thread_start("objbench", run_load, &l, &v[started]);
		started += r == 0;
	}
	while (started > 0)
		pthread_join(v[--started], NULL);
	progress_end(&b->progress);
	if (r == 0)
		r = atomic_load(&l.err);
	if (r == 0)
		report(b, &l, (double)(cfs_now_ns() - start) / 1e9, cpu_s() - cpu);
	else if (!live_stopped())
		cmd_error("%s with %u at the same time: %s", kind->name, threads,
			  r == -EBADMSG ? "other bytes came back than were stored" : strerror(-r));
	free(l.us);
	return r;
}

/* A round removes its small objects; the next round overwrites the big ones. */
static int measure_all(struct bench *b)
{
	size_t i, k;
	int r = 0;

	if (!b->json)
		printf("%-24s %7s %16s %13s %9s %9s %9s\n", "load", "threads", "bandwidth",
		       "objects", "median ms", "p99 ms", "CPU-s/GiB");
	for (i = 0; i < b->n_thread_counts; i++) {
		for (k = 0; k < CFS_ARRAY_SIZE(kinds) && r == 0; k++)
			r = measure(b, &kinds[k], b->thread_counts[i]);
	}
	return r;
}

static void show_check(void *arg, const struct objcheck_result *result)
{
	struct bench *b = arg;

	b->failed = b->failed || !result->passed;
	if (b->json)
		json_array_append_new(json_object_get(b->json, "tests"),
				      json_pack("{s:s, s:b, s:s}", "test", result->name, "passed",
						result->passed, "text", result->text));
	else
		printf("%-24s %s%s%s\n", result->name, result->passed ? "pass" : "FAIL",
		       result->passed ? "" : ": ", result->text);
}

struct leftovers {
	char **v;
	size_t n, cap;
};

static int collect(void *arg, const struct cfs_object_info *info)
{
	struct leftovers *left = arg;

	if (CFS_ARRAY_ROOM(left->v, left->n, left->cap) < 0)
		return -ENOMEM;
	left->v[left->n] = strdup(info->key);
	return left->v[left->n++] ? 0 : -ENOMEM;
}

static void clean_up(struct bench *b)
{
	struct leftovers left = {0};
	cfs_deadline_t deadline = cfs_deadline_in(10 * OBJBENCH_CALL_MS);
	size_t i;
	int r;

	r = b->store->ops->list(b->store, b->prefix, "", collect, &left, deadline);
	if (r == 0)
		r = cfs_object_del_many(b->store, (const char *const *)left.v, left.n, deadline);
	if (r < 0 && r != -ENOENT)
		cmd_error("objects are left below %s: %s", b->prefix, strerror(-r));
	for (i = 0; i < left.n; i++)
		free(left.v[i]);
	free(left.v);
}

static bool parse_thread_counts(const char *text, struct bench *b)
{
	char *end;
	long n;

	for (; *text; text = end + (*end == ',')) {
		n = strtol(text, &end, 10);
		if (end == text || (*end && *end != ',') || n < 1 || n > THREADS_MAX ||
		    b->n_thread_counts == THREAD_COUNTS_MAX)
			return false;
		b->thread_counts[b->n_thread_counts++] = (unsigned)n;
	}
	return b->n_thread_counts > 0;
}

/* A file store would create the missing directories of its path, on whatever disk that is. */
static int check_place(const struct options *o, const char *bucket)
{
	char place[PATH_MAX];
	struct stat st;
	int r = 0;

	if (strcmp(o->storage, "file") != 0)
		return 0;
	snprintf(place, sizeof(place), "%s", bucket);
	if (stat(o->shards > 1 ? dirname(place) : place, &st) < 0)
		r = -errno;
	else if (!S_ISDIR(st.st_mode))
		r = -ENOTDIR;
	if (r < 0)
		cmd_error("cannot work in %s: %s", place, strerror(-r));
	return r;
}

static int open_store(struct bench *b, const char *bucket)
{
	struct cfs_object_conf conf = {
		.storage = b->o->storage,
		.bucket = bucket,
		.shards = (unsigned)b->o->shards,
		.upload_limit = (uint64_t)b->o->upload_limit * MBPS,
		.download_limit = (uint64_t)b->o->download_limit * MBPS,
		.max_connections = THREADS_MAX,
	};
	char err[256] = "out of memory";
	int r;

	r = check_place(b->o, bucket);
	if (r < 0)
		return r;
	r = cfs_object_open(&conf, &b->store, err);
	if (r == 0)
		r = waitstore_wrap(b->store, bucket, &b->store);
	if (r < 0)
		cmd_error("%s", err);
	return r;
}

static int run_bench(struct bench *b)
{
	size_t i, size = CFS_MAX(b->o->block_size, b->o->small_size);
	int r = 0;

	b->body = malloc(size + sizeof(uint64_t));
	if (!b->body)
		return -ENOMEM;
	for (i = 0; i < size; i += sizeof(uint64_t)) {
		uint64_t random = cfs_random_u64();

		memcpy(b->body + i, &random, sizeof(random));
	}
	if (!b->o->skip_checks)
		objcheck_run(b->store, b->prefix, show_check, b);
	else if (b->store->ops->create)
		r = b->store->ops->create(b->store, soon());
	if (r < 0)
		cmd_error("the bucket cannot be used: %s", strerror(-r));
	if (r == 0 && !b->o->skip_speed)
		r = measure_all(b);
	clean_up(b);
	if (b->json)
		json_dumpf(b->json, stdout, JSON_INDENT(1));
	return r;
}

static int objbench_run(void *options, const char **args)
{
	const struct options *o = options;
	struct bench b = {.o = o};
	struct waits *waits;
	int r;

	if (!parse_thread_counts(o->thread_counts, &b))
		return cmd_usage("--threads wants up to %d numbers between 1 and %d",
				 THREAD_COUNTS_MAX, THREADS_MAX);
	r = volume_use_credentials(o->credentials);
	if (r != CMD_OK)
		return r;
	snprintf(b.prefix, sizeof(b.prefix), "cachefs-objbench-%08x/", (unsigned)cfs_random_u64());
	if (open_store(&b, args[0]) < 0)
		return CMD_SYSTEM;
	if (o->json)
		b.json = json_pack("{s:[], s:[]}", "tests", "speed");
	live_begin();
	waits = waits_begin();
	r = run_bench(&b) == 0 && !b.failed ? CMD_OK : CMD_SYSTEM;
	if (live_stopped())
		r = CMD_INTERRUPTED;
	waits_end(waits);
	json_decref(b.json);
	cfs_object_close(b.store);
	free(b.body);
	return r;
}

const struct cmd cmd_objbench = {
	.name = "objbench",
	.synopsis = "[OPTIONS] BUCKET",
	.summary = "Tests an object store and measures it",
	CMD_OPTIONS(table),
	.min_args = 1,
	.max_args = 1,
	.run = objbench_run,
};
