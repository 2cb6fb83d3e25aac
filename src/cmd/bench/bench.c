/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures a directory of any file system as an application sees it: big files, small files,
 * metadata.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/thread.h"
#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/control.h"
#include "cmd/access/live.h"
#include "cmd/access/progress.h"
#include "cmd/access/watch.h"

#define THREADS_MAX 256

struct bench_opts {
	bool json;
	uint64_t block_size, big_size, small_size;
	int64_t small_files, threads;
};

#define OPTIONS struct bench_opts
static const struct cfs_opt bench_table[] = {
	OPT_SIZE("big-size", big_size, "SIZE", "size of the big file of each thread, 0: none",
		 .unit = 1 << 20, .def = "1G", .max = INT64_MAX),
	OPT_SIZE("block-size", block_size, "SIZE", "bytes of a read or write of a big file",
		 .unit = 1024, .def = "1M", .min = 512, .max = 64 << 20),
	OPT_SIZE("small-size", small_size, "SIZE", "size of a small file", .unit = 1024,
		 .def = "128K", .min = 1, .max = 64 << 20),
	OPT_INT("small-files", small_files, "N", "small files of each thread, 0: none",
		.def = "100", .min = 0, .max = 1000000),
	OPT_INT("threads", threads, "N", "threads, each with files of its own", .def = "1",
		.min = 1, .max = THREADS_MAX),
	OPT_JSON(json),
	{0},
};

struct bench {
	const struct bench_opts *o;
	int top_fd;
	char *body; /* random, read only */
	size_t body_size;
	struct progress progress;
	json_t *results; /* with --json */
	bool colour;
};

struct worker;
typedef int (*load_fn)(struct worker *w, uint64_t i, char *buf);

static const struct load {
	const char *name, *title;
	bool big;  /* one file per thread, cut into blocks; else small files */
	bool data; /* whether it moves data */
	load_fn fn;
} loads[];

struct worker {
	struct bench *b;
	const struct load *load;
	unsigned number;
	pthread_t thread;
	int fd; /* offset in the big file */
	int err;
};

static void file_name(const struct worker *w, uint64_t i, char buf[64])
{
	if (w->load->big)
		snprintf(buf, 64, "big.%u", w->number);
	else
		snprintf(buf, 64, "small.%u.%" PRIu64, w->number, i);
}

/* 0 or a negative errno; a file that is too short is -EIO. */
static int write_all(int fd, const char *buf, size_t len)
{
	ssize_t n;

	for (; len; buf += n, len -= (size_t)n) {
		n = write(fd, buf, len);
		if (n < 0)
			return -errno;
	}
	return 0;
}

static int read_all(int fd, char *buf, size_t len)
{
	ssize_t n;

	for (; len; len -= (size_t)n) {
		n = read(fd, buf, len);
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
	}
	return 0;
}

/* Drops the kernel's cached pages, so that reads measure the file system. */
static void forget(int fd)
{
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

static int open_file(struct worker *w, uint64_t i, int flags, int *ret_fd)
{
	char name[64];
	int fd;

	file_name(w, i, name);
	fd = openat(w->b->top_fd, name, flags | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	if (flags == O_RDONLY)
		forget(fd);
	*ret_fd = fd;
	return 0;
}

static size_t block_at(const struct bench_opts *o, uint64_t i)
{
	return (size_t)CFS_MIN(o->block_size, o->big_size - i * o->block_size);
}

static int write_big(struct worker *w, uint64_t i, char *buf)
{
	size_t len = block_at(w->b->o, i);
	int r = 0;

	(void)buf;
	if (i == 0)
		r = open_file(w, 0, O_WRONLY | O_CREAT | O_EXCL, &w->fd);
	if (r == 0)
		r = write_all(w->fd, w->b->body, len);
	if (r == 0 && (i + 1) * w->b->o->block_size >= w->b->o->big_size && fsync(w->fd) < 0)
		r = -errno;
	return r;
}

static int read_big(struct worker *w, uint64_t i, char *buf)
{
	int r = i == 0 ? open_file(w, 0, O_RDONLY, &w->fd) : 0;

	return r < 0 ? r : read_all(w->fd, buf, block_at(w->b->o, i));
}

static int write_small(struct worker *w, uint64_t i, char *buf)
{
	int fd = -1, r = open_file(w, i, O_WRONLY | O_CREAT | O_EXCL, &fd);

	(void)buf;
	if (r < 0)
		return r;
	r = write_all(fd, w->b->body, w->b->o->small_size);
	if (close(fd) < 0 && r == 0)
		r = -errno;
	return r;
}

static int read_small(struct worker *w, uint64_t i, char *buf)
{
	int fd = -1, r = open_file(w, i, O_RDONLY, &fd);

	if (r < 0)
		return r;
	r = read_all(fd, buf, w->b->o->small_size);
	close(fd);
	return r;
}

static int stat_small(struct worker *w, uint64_t i, char *buf)
{
	struct stat st;
	char name[64];

	(void)buf;
	file_name(w, i, name);
	return fstatat(w->b->top_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static int remove_small(struct worker *w, uint64_t i, char *buf)
{
	char name[64];

	(void)buf;
	file_name(w, i, name);
	return unlinkat(w->b->top_fd, name, 0) < 0 ? -errno : 0;
}

static const struct load loads[] = {
	{"write_big", "write big files", true, true, write_big},
	{"read_big", "read big files", true, true, read_big},
	{"write_small", "write small files", false, true, write_small},
	{"read_small", "read small files", false, true, read_small},
	{"stat", "stat files", false, false, stat_small},
	{"remove", "remove small files", false, false, remove_small},
};

/* Number of calls per thread. */
static uint64_t calls_of(const struct bench_opts *o, const struct load *l)
{
	return l->big ? CFS_DIV_UP(o->big_size, o->block_size) : (uint64_t)o->small_files;
}

static void *run_worker(void *arg)
{
	struct worker *w = arg;
	uint64_t i, n = calls_of(w->b->o, w->load);
	char *buf = malloc(w->b->body_size);

	w->fd = -1;
	w->err = buf ? 0 : -ENOMEM;
	for (i = 0; i < n && w->err == 0; i++) {
		w->err = live_stopped() ? -EINTR : w->load->fn(w, i, buf);
		progress_add(&w->b->progress, 1);
	}
	if (w->fd >= 0 && close(w->fd) < 0 && w->err == 0)
		w->err = -errno;
	free(buf);
	return NULL;
}

static void report(struct bench *b, const struct load *l, double s)
{
	const struct bench_opts *o = b->o;
	double files = (double)(l->big ? 1 : o->small_files) * (double)o->threads;
	double bytes = files * (double)(l->big ? o->big_size : o->small_size);
	double each_ms = 1000 * s * (double)o->threads / files;
	const char *on = b->colour ? "\033[1;32m" : "", *off = b->colour ? "\033[0m" : "";

	if (b->results) {
		json_t *j = json_pack("{s:s, s:f, s:f, s:f}", "load", l->name, "seconds", s,
				      "files_per_s", files / s, "file_ms", each_ms);

		if (l->data)
			json_object_set_new(j, "bytes_per_s", json_real(bytes / s));
		json_array_append_new(b->results, j);
	} else if (l->big) {
		printf("%-20s %s%12.1f MiB/s%s   %10.2f s/file\n", l->title, on,
		       bytes / s / (1 << 20), off, each_ms / 1000);
	} else {
		printf("%-20s %s%12.1f files/s%s %10.2f ms/file\n", l->title, on, files / s, off,
		       each_ms);
	}
	fflush(stdout);
}

static int measure(struct bench *b, const struct load *l)
{
	unsigned n = (unsigned)b->o->threads, i, started = 0;
	uint64_t calls = calls_of(b->o, l), start_ns;
	struct worker *w;
	int r = 0;

	if (!calls)
		return 0;
	w = calloc(n, sizeof(*w));
	if (!w)
		return -ENOMEM;
	progress_begin(&b->progress, l->title);
	progress_set(&b->progress, 0, calls * n);
	start_ns = cfs_now_ns();
	for (; started < n && r == 0; started += r == 0) {
		w[started] = (struct worker){.b = b, .load = l, .number = started};
		r = cfs_thread_start("bench", run_worker, &w[started], &w[started].thread);
	}
	for (i = 0; i < started; i++) {
		pthread_join(w[i].thread, NULL);
		r = r ? r : w[i].err;
	}
	progress_end(&b->progress);
	if (r == 0)
		report(b, l, (double)(cfs_now_ns() - start_ns) / 1e9);
	else if (r != -EINTR)
		cmd_error("%s: %s", l->title, strerror(-r));
	free(w);
	return r;
}

/*
 * Removes every name that a load can have made, also after an abort. The last load has removed most
 * of them.
 */
static void clean_up(struct bench *b, const char *top)
{
	struct worker w = {.b = b};
	unsigned n = (unsigned)b->o->threads;
	char name[64];
	int64_t i;

	for (w.number = 0; w.number < n; w.number++) {
		w.load = &loads[0];
		file_name(&w, 0, name);
		unlinkat(b->top_fd, name, 0);
	}
	if (rmdir(top) == 0)
		return;
	for (w.number = 0; w.number < n; w.number++) {
		w.load = &loads[CFS_ARRAY_SIZE(loads) - 1];
		for (i = 0; i < b->o->small_files; i++)
			remove_small(&w, (uint64_t)i, NULL);
	}
	if (rmdir(top) < 0)
		cmd_error("cannot remove %s: %s", top, strerror(errno));
}

static int bench(struct bench *b)
{
	uint64_t random;
	size_t i;
	int r = 0;

	b->body_size = (size_t)CFS_MAX(b->o->block_size, b->o->small_size) + sizeof(random);
	b->body = malloc(b->body_size);
	if (!b->body)
		return -ENOMEM;
	/* Random data, so that compression gains nothing. */
	for (i = 0; i + sizeof(random) <= b->body_size; i += sizeof(random)) {
		random = cfs_random_u64();
		memcpy(b->body + i, &random, sizeof(random));
	}
	if (!b->results)
		printf("%-20s %20s %17s\n", "LOAD", "RATE", "TIME OF ONE");
	for (i = 0; i < CFS_ARRAY_SIZE(loads) && r == 0; i++)
		r = measure(b, &loads[i]);
	free(b->body);
	return r;
}

static int bench_run(void *options, const char **args)
{
	const struct bench_opts *o = options;
	struct bench b = {.o = o};
	int r, flags = FS_SECRM_FL;
	char top[4200], point[4096];

	live_begin();
	watch_path(args[0]);
	snprintf(top, sizeof(top), "%s/cachefs-bench.%d", args[0], (int)getpid());
	b.top_fd = mkdir(top, 0755) < 0 ? -1 : open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (b.top_fd < 0)
		return cmd_usage("cannot work in %s: %s", args[0], strerror(errno));
	/* Skips the volume's trash; other file systems ignore the flag. */
	(void)ioctl(b.top_fd, FS_IOC_SETFLAGS, &flags);
	watch_mount(control_seek_mount(args[0], point, sizeof(point)) == 0 ? point : NULL);
	b.colour = isatty(STDOUT_FILENO) && !getenv("NO_COLOR");
	b.results = o->json ? json_array() : NULL;
	r = bench(&b);
	clean_up(&b, top);
	close(b.top_fd);
	if (b.results && r == 0)
		admin_print_json(json_pack(
			"{s:I, s:I, s:I, s:I, s:O}", "threads", (json_int_t)o->threads, "big_size",
			(json_int_t)o->big_size, "small_size", (json_int_t)o->small_size,
			"small_files", (json_int_t)o->small_files, "results", b.results));
	json_decref(b.results);
	return r == 0 ? CMD_OK : live_stopped() ? CMD_INTERRUPTED : CMD_SYSTEM;
}

const struct cmd cmd_bench = {
	.name = "bench",
	.synopsis = "[OPTIONS] PATH",
	.summary = "Measures big files, small files and metadata in a directory",
	CMD_OPTIONS(bench_table),
	.min_args = 1,
	.max_args = 1,
	.on_mount = true,
	.run = bench_run,
};
