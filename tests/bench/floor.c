/* SPDX-License-Identifier: Apache-2.0 */
#include "floor.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TOUCH_MS    100
#define FIRST_INO   (INT64_C(1) << 40)
#define MAX_THREADS 256

enum phase { CREATE, STAT, UNLINK, N_PHASES };
static const char *const phase_names[N_PHASES] = {"create", "stat", "unlink"};

static const struct floor_server *server;
static int64_t count;
static enum phase phase;
static _Atomic int64_t next_file;
static _Atomic int64_t touched_ms;

void floor_fail(const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "floor_%s: ", server->name);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

int64_t floor_ino(int64_t file)
{
	return FIRST_INO + file;
}

int floor_name(int64_t file, char name[32])
{
	return snprintf(name, 32, "floor.%" PRId64, file);
}

int64_t floor_us(int64_t file)
{
	return INT64_C(1700000000000000) + file;
}

static int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static bool due(void)
{
	int64_t now_ms = now_ns() / 1000000, then_ms = atomic_load(&touched_ms);

	return now_ms - then_ms >= TOUCH_MS &&
	       atomic_compare_exchange_strong(&touched_ms, &then_ms, now_ms);
}

static void *work(void *conn)
{
	int64_t file;

	while ((file = atomic_fetch_add(&next_file, 1)) < count) {
		if (phase == CREATE)
			server->create(conn, file, due());
		else if (phase == STAT)
			server->stat(conn, file);
		else
			server->unlink(conn, file, due());
	}
	return NULL;
}

static double run_phase(void **conns, unsigned n)
{
	pthread_t threads[MAX_THREADS];
	int64_t start_ns = now_ns();

	atomic_store(&next_file, 0);
	for (unsigned i = 0; i < n; i++)
		if (pthread_create(&threads[i], NULL, work, conns[i]))
			floor_fail("no thread");
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	return (double)count * 1e9 / (double)(now_ns() - start_ns);
}

int floor_main(int argc, char **argv, const struct floor_server *s)
{
	void *conns[MAX_THREADS];
	long n = argc == 4 ? strtol(argv[3], NULL, 10) : 0;

	server = s;
	count = argc == 4 ? strtoll(argv[2], NULL, 10) : 0;
	if (count <= 0 || n <= 0 || n > MAX_THREADS) {
		fprintf(stderr, "usage: floor_%s WHERE COUNT CONNECTIONS\n", s->name);
		return 2;
	}
	for (long i = 0; i < n; i++)
		conns[i] = s->connect(argv[1]);
	for (phase = CREATE; phase < N_PHASES; phase++)
		printf("%s\"%s\": %.0f", phase == CREATE ? "{" : ", ", phase_names[phase],
		       run_phase(conns, (unsigned)n));
	printf("}\n");
	for (long i = 0; i < n; i++)
		s->disconnect(conns[i]);
	return 0;
}
