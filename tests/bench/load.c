/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load [-t THREADS] [-s SECONDS] [-n COUNT] [-m MIB] [-p PID] CASE DIR
 *
 * One load on any directory. Prints one line of JSON: operations per second, their p50 and p99,
 * the processor time that process PID (a mount) spent meanwhile, and its memory afterwards.
 *
 * Cases that run for SECONDS (the files must be there: `prepare`, `write`):
 *	stat lookup absent list	on the files f000000...; list reads the directory and
 *				stats each entry
 *	openclose
 *	randread		4 KiB, O_DIRECT
 *	bufread			4 KiB, page cache dropped before, no page read twice
 * Cases that run COUNT times or MIB long:
 *	prepare			makes COUNT files f000000...
 *	create unlink		COUNT files in all
 *	createsmall		COUNT files of 4 KiB in all
 *	write			1 MiB writes of the file `data` and fsync
 *	read			1 MiB reads of it, page cache dropped before
 *	warm			as read; the name tells that it is the first, which fills caches
 *	memory			does nothing: the memory of PID as it is
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 64
#define SMALL	    4096
#define LARGE	    (1u << 20)

/* Latencies in ns: 32 steps per power of two, so within 3 %. */
#define STEPS	  32
#define N_BUCKETS (40 * STEPS)

static struct {
	const char *dir;
	int dir_fd;
	unsigned n_threads;
	double seconds;
	uint64_t count, mib;
	pid_t pid;
} conf = {.n_threads = 1, .seconds = 2, .count = 1000, .mib = 1024};

struct worker {
	pthread_t thread;
	unsigned index;
	uint64_t n, ops, rnd, end_ns;
	uint64_t hist[N_BUCKETS];
	int fd;
	char *buf;
};

/* One step: the number of operations done, 0 at the end. */
typedef unsigned (*step_fn)(struct worker *w);

static struct worker workers[MAX_THREADS];
static step_fn step;
static pthread_barrier_t start_line;
static atomic_bool stop;

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t next_random(struct worker *w)
{
	w->rnd ^= w->rnd << 13;
	w->rnd ^= w->rnd >> 7;
	w->rnd ^= w->rnd << 17;
	return w->rnd;
}

/* ---- latencies ---- */

static unsigned bucket_of(uint64_t ns)
{
	unsigned shift;

	if (ns < STEPS)
		return (unsigned)ns;
	shift = 63 - (unsigned)__builtin_clzll(ns) - 5;
	shift = shift < 38 ? shift : 38;
	return (shift + 1) * STEPS + (unsigned)((ns >> shift) & (STEPS - 1));
}

static double bucket_us(unsigned b)
{
	unsigned shift = b / STEPS;

	if (!shift)
		return b / 1e3;
	return (double)((uint64_t)(STEPS + b % STEPS) << (shift - 1)) / 1e3;
}

static double percentile_us(double p)
{
	uint64_t total = 0, seen = 0;

	for (unsigned i = 0; i < conf.n_threads; i++)
		for (unsigned b = 0; b < N_BUCKETS; b++)
			total += workers[i].hist[b];
	for (unsigned b = 0; b < N_BUCKETS; b++) {
		for (unsigned i = 0; i < conf.n_threads; i++)
			seen += workers[i].hist[b];
		if (total && (double)seen >= p * (double)total)
			return bucket_us(b);
	}
	return 0;
}

/* ---- metadata ---- */

static void some_name(struct worker *w, char prefix, char name[32])
{
	snprintf(name, 32, "%c%06" PRIu64, prefix, next_random(w) % conf.count);
}

static unsigned do_stat(struct worker *w)
{
	struct stat st;
	char name[32];

	some_name(w, 'f', name);
	if (fstatat(conf.dir_fd, name, &st, 0))
		fail(name);
	return 1;
}

static unsigned do_lookup(struct worker *w)
{
	char name[32];
	int fd;

	some_name(w, 'f', name);
	fd = openat(conf.dir_fd, name, O_PATH | O_CLOEXEC);
	if (fd < 0)
		fail(name);
	close(fd);
	return 1;
}

static unsigned do_absent(struct worker *w)
{
	char name[32];
	int fd;

	some_name(w, 'x', name);
	fd = openat(conf.dir_fd, name, O_PATH | O_CLOEXEC);
	if (fd >= 0 || errno != ENOENT)
		fail(name);
	return 1;
}

static unsigned do_openclose(struct worker *w)
{
	char name[32];
	int fd;

	some_name(w, 'f', name);
	fd = openat(conf.dir_fd, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		fail(name);
	close(fd);
	return 1;
}

static unsigned do_list(struct worker *w)
{
	DIR *d = opendir(conf.dir);
	struct dirent *e;
	struct stat st;
	unsigned n = 0;

	if (!d)
		fail(conf.dir);
	while ((e = readdir(d))) {
		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
			fail(e->d_name);
		n++;
	}
	closedir(d);
	return n;
}

static bool own_name(struct worker *w, char name[32])
{
	if (w->n >= conf.count / conf.n_threads)
		return false;
	snprintf(name, 32, "c%02u.%06" PRIu64, w->index, w->n++);
	return true;
}

static unsigned create(struct worker *w, size_t bytes)
{
	static const char zeros[SMALL];
	char name[32];
	int fd;

	if (!own_name(w, name))
		return 0;
	fd = openat(conf.dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0 || (bytes && write(fd, zeros, bytes) != (ssize_t)bytes) || close(fd))
		fail(name);
	return 1;
}

static unsigned do_create(struct worker *w)
{
	return create(w, 0);
}

static unsigned do_createsmall(struct worker *w)
{
	return create(w, SMALL);
}

static unsigned do_unlink(struct worker *w)
{
	char name[32];

	if (!own_name(w, name))
		return 0;
	if (unlinkat(conf.dir_fd, name, 0))
		fail(name);
	return 1;
}

static unsigned do_prepare(struct worker *w)
{
	char name[32];
	int fd;

	if (w->n >= conf.count)
		return 0;
	snprintf(name, sizeof(name), "f%06" PRIu64, w->n++);
	fd = openat(conf.dir_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0 || close(fd))
		fail(name);
	return 1;
}

/* ---- data ---- */

static void open_data(struct worker *w, int flags)
{
	if (w->fd >= 0)
		return;
	w->fd = openat(conf.dir_fd, "data", flags | O_CLOEXEC, 0644);
	if (w->fd < 0 || posix_memalign((void **)&w->buf, SMALL, LARGE))
		fail("data");
	memset(w->buf, 'x', LARGE);
}

static void drop_page_cache(void)
{
	int fd = openat(conf.dir_fd, "data", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
		fail("data");
	close(fd);
}

static unsigned pread_at(struct worker *w, uint64_t off, size_t len)
{
	if (pread(w->fd, w->buf, len, (off_t)off) != (ssize_t)len)
		fail("read of data");
	return 1;
}

static unsigned do_randread(struct worker *w)
{
	open_data(w, O_RDONLY | O_DIRECT);
	return pread_at(w, next_random(w) % (conf.mib * (LARGE / SMALL)) * SMALL, SMALL);
}

/* Steps of a large odd number visit every page of a power of two once. */
static unsigned do_bufread(struct worker *w)
{
	uint64_t pages = conf.mib * (LARGE / SMALL), share = pages / conf.n_threads;
	uint64_t nth = w->index * share + w->n++;

	if (w->n > share)
		return 0;
	if (w->fd < 0) {
		open_data(w, O_RDONLY);
		posix_fadvise(w->fd, 0, 0, POSIX_FADV_RANDOM);
	}
	return pread_at(w, nth * 2654435761u % pages * SMALL, SMALL);
}

static unsigned do_read(struct worker *w)
{
	open_data(w, O_RDONLY);
	if (w->n >= conf.mib)
		return 0;
	return pread_at(w, w->n++ * LARGE, LARGE);
}

static unsigned do_write(struct worker *w)
{
	open_data(w, O_WRONLY | O_CREAT | O_TRUNC);
	if (w->n == conf.mib) {
		if (fsync(w->fd))
			fail("fsync of data");
		return 0;
	}
	if (pwrite(w->fd, w->buf, LARGE, (off_t)(w->n++ * LARGE)) != LARGE)
		fail("write of data");
	return 1;
}

static unsigned do_smallwrite(struct worker *w)
{
	uint64_t nth = w->n++ % (conf.mib * (LARGE / SMALL));

	open_data(w, O_WRONLY);
	if (pwrite(w->fd, w->buf, SMALL, (off_t)(nth * SMALL)) != SMALL)
		fail("write of data");
	return 1;
}

/* ---- the process measured ---- */

/* smaps_rollup: the counters of `status` are approximate. */
static uint64_t memory_kib(pid_t pid, const char *field)
{
	uint64_t kib = 0;
	char path[64], line[256];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
	f = fopen(path, "re");
	if (!f)
		fail(path);
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, field, strlen(field)))
			kib = strtoull(line + strlen(field), NULL, 10);
	fclose(f);
	return kib;
}

static double cpu_seconds(void)
{
	struct timespec t = {0};
	clockid_t id;

	if (conf.pid) {
		errno = clock_getcpuclockid(conf.pid, &id);
		if (errno || clock_gettime(id, &t))
			fail("processor time of the process");
	}
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- running ---- */

static void *work(void *arg)
{
	struct worker *w = arg;

	pthread_barrier_wait(&start_line);
	while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
		uint64_t start = now_ns(), ns;
		unsigned n = step(w);

		if (!n)
			break;
		ns = now_ns() - start;
		w->hist[bucket_of(ns / n)] += n;
		w->ops += n;
	}
	w->end_ns = now_ns();
	return NULL;
}

static const struct load_case {
	const char *name;
	step_fn step;
	bool timed, data, cold;
} cases[] = {
	{.name = "stat", .step = do_stat, .timed = true},
	{.name = "lookup", .step = do_lookup, .timed = true},
	{.name = "absent", .step = do_absent, .timed = true},
	{.name = "openclose", .step = do_openclose, .timed = true},
	{.name = "list", .step = do_list, .timed = true},
	{.name = "create", .step = do_create},
	{.name = "createsmall", .step = do_createsmall},
	{.name = "unlink", .step = do_unlink},
	{.name = "prepare", .step = do_prepare},
	{.name = "randread", .step = do_randread, .timed = true, .data = true},
	{.name = "bufread", .step = do_bufread, .timed = true, .data = true, .cold = true},
	{.name = "read", .step = do_read, .data = true, .cold = true},
	{.name = "warm", .step = do_read, .data = true, .cold = true},
	{.name = "write", .step = do_write, .data = true},
	{.name = "smallwrite", .step = do_smallwrite, .timed = true, .data = true},
	{.name = "memory"},
};

static double run_threads(const struct load_case *c)
{
	struct timespec length = {(time_t)conf.seconds,
				  (long)((conf.seconds - (double)(time_t)conf.seconds) * 1e9)};
	uint64_t start, end = 0;

	pthread_barrier_init(&start_line, NULL, conf.n_threads + 1);
	for (unsigned i = 0; i < conf.n_threads; i++) {
		struct worker *w = &workers[i];

		w->index = i;
		w->fd = -1;
		w->rnd = 88172645463325252 + i * 7919;
		if (pthread_create(&w->thread, NULL, work, w))
			fail("thread");
	}
	start = now_ns();
	pthread_barrier_wait(&start_line);
	if (c->timed) {
		nanosleep(&length, NULL);
		atomic_store(&stop, true);
	}
	for (unsigned i = 0; i < conf.n_threads; i++) {
		pthread_join(workers[i].thread, NULL);
		end = workers[i].end_ns > end ? workers[i].end_ns : end;
	}
	return (double)(end - start) / 1e9;
}

static void report(const struct load_case *c, double seconds, double cpu)
{
	uint64_t ops = 0;
	double gib;

	for (unsigned i = 0; i < conf.n_threads; i++)
		ops += workers[i].ops;
	gib = (double)ops * (c->timed ? SMALL : LARGE) / (1u << 30);
	printf("{\"case\": \"%s\", \"threads\": %u, \"ops\": %" PRIu64 ", \"seconds\": %.4f, "
	       "\"rate\": %.1f, \"p50_us\": %.2f, \"p99_us\": %.2f, \"cpu_us_per_op\": %.3f",
	       c->name, conf.n_threads, ops, seconds, (double)ops / seconds, percentile_us(0.5),
	       percentile_us(0.99), ops ? cpu * 1e6 / (double)ops : 0);
	if (c->data && ops)
		printf(", \"gib_per_s\": %.3f, \"cpu_s_per_gib\": %.3f", gib / seconds, cpu / gib);
	if (conf.pid)
		printf(", \"rss_kib\": %" PRIu64 ", \"anon_kib\": %" PRIu64,
		       memory_kib(conf.pid, "Rss:"), memory_kib(conf.pid, "Anonymous:"));
	printf("}\n");
}

static const struct load_case *parse(int argc, char **argv)
{
	int o;

	while ((o = getopt(argc, argv, "t:s:n:m:p:")) >= 0) {
		switch (o) {
		case 't':
			conf.n_threads = (unsigned)strtoul(optarg, NULL, 10);
			break;
		case 's':
			conf.seconds = strtod(optarg, NULL);
			break;
		case 'n':
			conf.count = strtoull(optarg, NULL, 10);
			break;
		case 'm':
			conf.mib = strtoull(optarg, NULL, 10);
			break;
		case 'p':
			conf.pid = (pid_t)strtol(optarg, NULL, 10);
			break;
		default:
			return NULL;
		}
	}
	if (argc - optind != 2 || !conf.n_threads || conf.n_threads > MAX_THREADS || !conf.count)
		return NULL;
	conf.dir = argv[optind + 1];
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (!strcmp(argv[optind], cases[i].name))
			return &cases[i];
	return NULL;
}

int main(int argc, char **argv)
{
	const struct load_case *c = parse(argc, argv);
	double seconds = 1, cpu;

	if (!c) {
		fprintf(stderr, "usage: load [-t THREADS] [-s SECONDS] [-n COUNT] [-m MIB] "
				"[-p PID] CASE DIR\n");
		return 2;
	}
	conf.dir_fd = open(conf.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (conf.dir_fd < 0)
		fail(conf.dir);
	if (c->cold)
		drop_page_cache();
	step = c->step;
	cpu = cpu_seconds();
	if (step)
		seconds = run_threads(c);
	cpu = cpu_seconds() - cpu;
	report(c, seconds, cpu);
	return 0;
}
