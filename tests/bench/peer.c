/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of the peer transport beside the least that a server and a client can do over the same
 * loopback: sendfile(2) and recv(2) with the same socket options. Both take turns; the medians are
 * printed. Owners are processes of their own, their blocks are files in the page cache.
 *
 *	peer DIR [SECONDS [LINE]]
 *	peer --transport rdma OWNER READER DIR [SECONDS [LINE]]
 *	peer --serve OWNER:PORT DIR
 *	peer --arithmetic
 *
 * With RDMA the same reads go over TCP and by RDMA in turns, between two addresses of RDMA devices,
 * which may be one. OWNER with a port is on another machine, where `peer --serve` runs.
 * --arithmetic prints what docs/scale.md derives for RDMA.
 */
#include <arpa/inet.h>
#include <cachefs/transport.h>
#include <errno.h>
#include <fcntl.h>
#include <isa-l/crc.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "transport/rdma/pool.h"
#include "transport/wire/crc.h"

#define BLOCK	 (4u << 20)
#define BLOCKS	 48
#define SEGMENTS (BLOCK / CFS_PEER_SEGMENT)
#define ROUNDS	 5
#define PAGE	 (128u << 10) /* pieces of a buffer, as of the mount's pool */
#define SAMPLES	 (1u << 20)
#define GIB	 (1024.0 * 1024 * 1024)

struct block {
	int fd;
	uint32_t crcs[SEGMENTS];
};

static struct block blocks[BLOCKS];
static uint8_t *hot; /* one block in memory */
static double seconds = 0.7;
static struct sockaddr_in reader_addr; /* of RDMA */
#ifdef HAVE_RDMA
static const struct cfs_rdma_ops *const rdma = &cfs_rdma_verbs;
#else
static const struct cfs_rdma_ops *const rdma;
#endif

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now_s(void)
{
	return (double)cfs_now_ns() / 1e9;
}

/* --- blocks --- */

static void make_blocks(const char *dir)
{
	char path[4096];
	unsigned i, k;

	hot = malloc(BLOCK);
	for (i = 0; i < BLOCK; i++)
		hot[i] = (uint8_t)(i * 2654435761u >> 11);
	for (i = 0; i < BLOCKS; i++) {
		hot[0] = (uint8_t)i;
		snprintf(path, sizeof(path), "%s/block%u", dir, i);
		blocks[i].fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		if (blocks[i].fd < 0 || write(blocks[i].fd, hot, BLOCK) != (ssize_t)BLOCK)
			die(path);
		unlink(path);
		for (k = 0; k < SEGMENTS; k++)
			blocks[i].crcs[k] =
				~crc32_iscsi(hot + k * CFS_PEER_SEGMENT, CFS_PEER_SEGMENT, ~0u);
	}
}

/* --- the two owners --- */

static void on_get(void *arg, struct cfs_peer_request *req)
{
	struct block *b = &blocks[req->block.slice % BLOCKS];
	struct cfs_peer_answer a = {.fd = b->fd, .n_crcs = SEGMENTS, .crcs = b->crcs};

	(void)arg;
	cfs_peer_answer(req, &a);
}

static const struct cfs_peer_serve_ops ops = {.get = on_get};
static const uint8_t key[CFS_PEER_KEY_SIZE] = "benchmark";

static void tune(int fd)
{
	int one = 1, size = 4 << 20;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
}

struct bare_request {
	uint64_t block;
	uint32_t off, len;
	char rest[40]; /* as long as a frame */
};

static void send_all(int fd, const void *data, size_t len, int flags)
{
	while (len > 0) {
		ssize_t n = send(fd, data, len, flags | MSG_NOSIGNAL);

		if (n <= 0)
			pthread_exit(NULL);
		data = (const char *)data + n;
		len -= (size_t)n;
	}
}

static void *bare_serve(void *arg)
{
	int fd = (int)(intptr_t)arg;
	struct bare_request req;
	char header[32] = {0};

	while (recv(fd, &req, sizeof(req), MSG_WAITALL) == sizeof(req)) {
		off_t off = req.off;
		size_t left = req.len;

		if (req.len <= 4096) { /* the ping-pong: from memory, one send */
			char answer[32 + 4096];

			memcpy(answer + 32, hot + off, req.len);
			send_all(fd, answer, 32 + req.len, 0);
			continue;
		}
		send_all(fd, header, sizeof(header), MSG_MORE);
		while (left > 0) {
			ssize_t n = sendfile(fd, blocks[req.block % BLOCKS].fd, &off, left);

			if (n <= 0)
				return NULL;
			left -= (size_t)n;
		}
	}
	close(fd);
	return NULL;
}

static void bare_listen(int fd)
{
	for (;;) {
		pthread_t t;
		int c = accept4(fd, NULL, NULL, SOCK_CLOEXEC);

		if (c < 0)
			die("accept");
		tune(c);
		if (pthread_create(&t, NULL, bare_serve, (void *)(intptr_t)c) != 0)
			die("thread");
		pthread_detach(t);
	}
}

struct owner {
	pid_t pid; /* -1: on another machine */
	struct sockaddr_in addr;
};

enum kind { BARE, PLAIN, TLS, KINDS, RDMA };

static void own(enum kind kind, struct sockaddr_in sa, int report)
{
	struct cfs_transport_conf conf = {
		.member = 2,
		.listen = (struct sockaddr *)&sa,
		.listen_len = sizeof(sa),
		.ops = &ops,
		.max_unauthenticated_per_addr = 1024,
		.connect_timeout_ms = 10000,
		.disk_timeout_ms = 20000, /* a slow machine is measured, too */
		.transport = kind == TLS ? CFS_PEER_TLS : CFS_PEER_TCP,
		.allow_public = true,
		.rdma_bytes = kind == RDMA ? (uint64_t)BLOCKS * CFS_RDMA_SLOT : 0,
		.rdma_address = (struct sockaddr *)&sa,
		.rdma_address_len = sizeof(sa),
		.rdma_ops = rdma,
	};
	struct sockaddr_storage at;
	struct cfs_transport *t;
	socklen_t len = sizeof(sa);
	char err[256];
	int fd = -1;

	memcpy(conf.key, key, sizeof(key));
	if (kind == BARE) {
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		tune(fd);
		if (bind(fd, (void *)&sa, len) < 0 || listen(fd, 1024) < 0)
			die("listen");
		getsockname(fd, (void *)&at, &len);
	} else {
		if (cfs_transport_create(&conf, &t, err) < 0) {
			fprintf(stderr, "%s\n", err);
			exit(1);
		}
		cfs_transport_address(t, &at, &len);
	}
	if (report >= 0 && write(report, &at, sizeof(sa)) != sizeof(sa))
		die("write");
	if (kind == BARE)
		bare_listen(fd);
	for (;;)
		pause();
}

static struct owner start_owner(enum kind kind, struct sockaddr_in at)
{
	struct owner o;
	int fds[2];

	if (pipe(fds) < 0)
		die("pipe");
	o.pid = fork();
	if (o.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		own(kind, at, fds[1]);
	}
	if (o.pid < 0 || read(fds[0], &o.addr, sizeof(o.addr)) != sizeof(o.addr))
		die("owner");
	close(fds[0]);
	close(fds[1]);
	return o;
}

static double cpu_of(pid_t pid)
{
	struct timespec ts;
	clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;

	if (pid < 0)
		return 0;
	if (pid && clock_getcpuclockid(pid, &clock) != 0)
		die("cpu clock");
	clock_gettime(clock, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* Of all threads, voluntary or not. */
static double switches_of(pid_t pid)
{
	char command[128], line[64];
	double n = 0;
	FILE *f;

	if (pid < 0)
		return 0;
	snprintf(command, sizeof(command),
		 "cat /proc/%d/task/*/status 2>/dev/null | awk '/ctxt/ {n += $2} END {print n}'",
		 (int)pid);
	f = popen(command, "re");
	if (f && fgets(line, sizeof(line), f))
		n = strtod(line, NULL);
	if (f)
		pclose(f);
	return n;
}

static long resident_kib(pid_t pid)
{
	char path[64], line[256];
	long kib = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		if (strncmp(line, "VmRSS:", 6) == 0)
			kib = strtol(line + 6, NULL, 10);
	}
	if (f)
		fclose(f);
	return kib;
}

/* --- loads --- */

struct result {
	double bytes, requests, wall_s, owner_cpu_s, client_cpu_s;
	double p50_us;
	double by_rdma, owner_switches; /* requests; context switches */
};

struct load {
	const char *name;
	uint32_t len;
	unsigned in_flight, clients;
	enum kind kind;
};

static float *samples;
static unsigned n_samples;

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static double median_sample(void)
{
	if (n_samples == 0)
		return 0;
	qsort(samples, n_samples, sizeof(*samples), by_value);
	return (double)samples[n_samples / 2];
}

static uint8_t *buffer(size_t len)
{
	uint8_t *p = mmap(NULL, len + (2 << 20), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	p += -(uintptr_t)p % (2u << 20);
	madvise(p, len, MADV_HUGEPAGE);
	memset(p, 1, len);
	return p;
}

static uint32_t some_offset(uint32_t len)
{
	return len == BLOCK ? 0 : (uint32_t)(cfs_random_u64() % (BLOCK / len)) * len;
}

/* One connection, requests pipelined, each answer received whole with MSG_WAITALL. */
static void run_bare(const struct load *l, struct owner *o, struct result *r)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	size_t slots = l->in_flight;
	uint8_t *dst = buffer(slots * l->len);
	struct bare_request req = {.len = l->len};
	double end, began, sent_s;
	unsigned i, k = 0;
	char header[32];

	tune(fd);
	if (connect(fd, (void *)&o->addr, sizeof(o->addr)) < 0)
		die("connect");
	for (i = 0; i < l->in_flight; i++) {
		req.block = cfs_random_u64();
		req.off = some_offset(l->len);
		send_all(fd, &req, sizeof(req), 0);
	}
	n_samples = 0;
	r->owner_cpu_s = -cpu_of(o->pid);
	r->client_cpu_s = -cpu_of(0);
	began = sent_s = now_s();
	end = began + seconds;
	do {
		struct iovec iov[2] = {{header, 32}, {dst + (k++ % slots) * l->len, l->len}};
		struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};

		if (recvmsg(fd, &msg, MSG_WAITALL) != (ssize_t)(32 + l->len))
			die("recv");
		r->bytes += l->len;
		r->requests++;
		if (l->in_flight == 1 && n_samples < SAMPLES) {
			samples[n_samples++] = (float)((now_s() - sent_s) * 1e6);
			sent_s = now_s();
		}
		req.block = cfs_random_u64();
		req.off = some_offset(l->len);
		send_all(fd, &req, sizeof(req), 0);
	} while (now_s() < end);
	r->wall_s = now_s() - began;
	r->owner_cpu_s += cpu_of(o->pid);
	r->client_cpu_s += cpu_of(0);
	r->p50_us = median_sample();
	close(fd);
	munmap(dst, slots * l->len);
}

struct slot {
	struct cfs_peer_get get;
	struct cfs_peer *peer;
	struct iovec iov[BLOCK / PAGE];
	uint64_t began_ns;
};

static _Atomic bool stop;
static _Atomic unsigned live;
static _Atomic uint64_t got_bytes, got_requests;
static sem_t ended;

static void next(struct slot *s)
{
	s->get.block.slice = cfs_random_u64() % BLOCKS;
	s->get.off = some_offset(s->get.len);
	s->began_ns = cfs_now_ns();
	s->get.deadline = s->began_ns / 1000000 + 20000;
	if (cfs_peer_start(s->peer, &s->get) < 0)
		die("start");
}

static void done(struct cfs_peer_get *g, int err)
{
	struct slot *s = (struct slot *)g;

	if (err < 0) {
		fprintf(stderr, "request failed: %s\n", strerror(-err));
		exit(1);
	}
	got_bytes += g->len;
	got_requests++;
	if (g->len == 4096 && n_samples < SAMPLES)
		samples[n_samples++] = (float)((double)(cfs_now_ns() - s->began_ns) / 1e3);
	if (stop) {
		if (--live == 0)
			sem_post(&ended);
		return;
	}
	next(s);
}

static struct cfs_transport *client_transport(enum kind kind)
{
	struct cfs_transport_conf conf = {
		.member = 1,
		.max_conns_per_peer = 1,
		.connect_timeout_ms = 10000,
		.transport = kind == TLS ? CFS_PEER_TLS : CFS_PEER_TCP,
		.rdma_bytes = kind == RDMA ? CFS_RDMA_SLOT : 0,
		.rdma_address = (struct sockaddr *)&reader_addr,
		.rdma_address_len = sizeof(reader_addr),
		.rdma_ops = rdma,
	};
	struct cfs_transport *t;
	char err[256];

	memcpy(conf.key, key, sizeof(key));
	if (cfs_transport_create(&conf, &t, err) < 0) {
		fprintf(stderr, "%s\n", err);
		exit(1);
	}
	return t;
}

static void read_once(struct cfs_peer *p, uint64_t slice, uint8_t *dst)
{
	struct cfs_peer_block b = {.slice = slice, .len = BLOCK};
	struct iovec iov = {dst, 4096};

	if (cfs_peer_read(p, &b, 0, 4096, 0, &iov, 1, cfs_deadline_in(20000)) != 4096)
		die("first read");
}

static uint64_t by_rdma(struct cfs_peer *p)
{
	struct cfs_peer_stats st;
	enum cfs_peer_state state;

	cfs_peer_stats(p, &st, &state);
	return st.rdma;
}

/* With RDMA until most blocks are read so: leases may share a place at the reader. */
static void warm_up(struct cfs_peer *p, enum kind kind, uint8_t *dst)
{
	cfs_deadline_t until = cfs_deadline_in(60000);
	uint64_t i, before;

	read_once(p, 1, dst);
	if (kind != RDMA)
		return;
	do {
		if (cfs_deadline_passed(until)) {
			fprintf(stderr, "the owner's blocks are not read by RDMA\n");
			exit(1);
		}
		before = by_rdma(p);
		for (i = 0; i < BLOCKS; i++)
			read_once(p, i, dst);
	} while (by_rdma(p) - before < BLOCKS - BLOCKS / 8);
}

static void run_peer(const struct load *l, struct owner *o, struct result *r)
{
	struct cfs_transport *t = client_transport(l->kind);
	struct cfs_peer **peers = calloc(l->clients, sizeof(*peers));
	unsigned n = l->in_flight * l->clients, i, buffers = n < 64 ? n : 64;
	uint8_t *dst = buffer((size_t)buffers * l->len);
	struct slot *slots = calloc(n, sizeof(*slots));
	double began;

	for (i = 0; i < l->clients; i++) {
		if (cfs_peer_open(t, 2, (void *)&o->addr, sizeof(o->addr), &peers[i]) < 0)
			die("open");
		warm_up(peers[i], l->kind, dst);
	}
	got_bytes = got_requests = 0;
	n_samples = 0;
	stop = false;
	live = n;
	r->by_rdma = -(double)by_rdma(peers[0]);
	r->owner_switches = -switches_of(o->pid);
	r->owner_cpu_s = -cpu_of(o->pid);
	r->client_cpu_s = -cpu_of(0);
	began = now_s();
	for (i = 0; i < n; i++) {
		struct slot *s = &slots[i];
		uint32_t off, k = 0;

		/* With hundreds of clients buffers are shared: what is in them is not looked at. */
		for (off = 0; off < l->len; off += PAGE)
			s->iov[k++] = (struct iovec){
				dst + (size_t)(i % buffers) * l->len + off,
				l->len - off < PAGE ? l->len - off : PAGE,
			};
		s->peer = peers[i % l->clients];
		s->get = (struct cfs_peer_get){
			.block = {.len = BLOCK},
			.len = l->len,
			.dst = s->iov,
			.n_dst = (int)k,
			.done = done,
		};
		next(s);
	}
	usleep((useconds_t)(seconds * 1e6));
	r->wall_s = now_s() - began;
	r->bytes = (double)got_bytes;
	r->requests = (double)got_requests;
	r->owner_cpu_s += cpu_of(o->pid);
	r->client_cpu_s += cpu_of(0);
	r->by_rdma += (double)by_rdma(peers[0]);
	r->owner_switches += switches_of(o->pid);
	stop = true;
	sem_wait(&ended);
	r->p50_us = median_sample();
	for (i = 0; i < l->clients; i++)
		cfs_peer_close(peers[i]);
	cfs_transport_destroy(t);
	munmap(dst, (size_t)buffers * l->len);
	free(slots);
	free(peers);
}

struct waiting {
	const struct load *load;
	struct cfs_peer *peer;
	uint8_t *dst;
	pthread_t thread;
};

static void *wait_for_answers(void *arg)
{
	const struct waiting *w = arg;
	struct iovec iov = {w->dst, w->load->len};
	struct cfs_peer_block b = {.len = BLOCK};

	while (!stop) {
		double at = now_s();

		b.slice = cfs_random_u64() % BLOCKS;
		if (cfs_peer_read(w->peer, &b, some_offset(w->load->len), w->load->len, 0, &iov, 1,
				  cfs_deadline_in(20000)) != (ssize_t)w->load->len)
			die("read");
		if (w->load->in_flight == 1 && n_samples < SAMPLES)
			samples[n_samples++] = (float)((now_s() - at) * 1e6);
		got_bytes += w->load->len;
		got_requests++;
	}
	return NULL;
}

/* Threads that wait for every answer: what readers without read-ahead see. */
static void run_waiting(const struct load *l, struct owner *o, struct result *r)
{
	struct cfs_transport *t = client_transport(l->kind);
	struct waiting *w = calloc(l->in_flight, sizeof(*w));
	uint8_t *dst = buffer((size_t)l->in_flight * l->len);
	struct cfs_peer *p;
	double began;
	unsigned i;

	if (cfs_peer_open(t, 2, (void *)&o->addr, sizeof(o->addr), &p) < 0)
		die("open");
	warm_up(p, l->kind, dst);
	got_bytes = got_requests = 0;
	n_samples = 0;
	stop = false;
	r->by_rdma = -(double)by_rdma(p);
	r->owner_switches = -switches_of(o->pid);
	r->owner_cpu_s = -cpu_of(o->pid);
	r->client_cpu_s = -cpu_of(0);
	began = now_s();
	for (i = 0; i < l->in_flight; i++) {
		w[i] = (struct waiting){.load = l, .peer = p, .dst = dst + (size_t)i * l->len};
		if (pthread_create(&w[i].thread, NULL, wait_for_answers, &w[i]) != 0)
			die("thread");
	}
	usleep((useconds_t)(seconds * 1e6));
	r->wall_s = now_s() - began;
	r->bytes = (double)got_bytes;
	r->requests = (double)got_requests;
	r->owner_cpu_s += cpu_of(o->pid);
	r->client_cpu_s += cpu_of(0);
	r->by_rdma += (double)by_rdma(p);
	r->owner_switches += switches_of(o->pid);
	stop = true;
	for (i = 0; i < l->in_flight; i++)
		pthread_join(w[i].thread, NULL);
	r->p50_us = median_sample();
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	munmap(dst, (size_t)l->in_flight * l->len);
	free(w);
}

/* --- the table --- */

typedef void (*run_fn)(const struct load *l, struct owner *o, struct result *r);

struct line {
	struct load load;
	run_fn run;
	const char *aim;
};

static const struct line lines[] = {
	{{"4 MiB x 2, bare", BLOCK, 2, 1, BARE}, run_bare, ""},
	{{"4 MiB x 2", BLOCK, 2, 1, PLAIN},
	 run_peer,
	 "rate 0.85 of bare, owner 0.10, client 0.40 s/GiB"},
	{{"4 MiB x 2, TLS", BLOCK, 2, 1, TLS}, run_peer, ""},
	{{"128 KiB x 16, bare", 128 << 10, 16, 1, BARE}, run_bare, ""},
	{{"128 KiB x 16", 128 << 10, 16, 1, PLAIN}, run_peer, "rate 0.8 of bare"},
	{{"128 KiB x 16, TLS", 128 << 10, 16, 1, TLS}, run_peer, ""},
	{{"4 KiB x 1, bare", 4096, 1, 1, BARE}, run_bare, ""},
	{{"4 KiB x 1", 4096, 1, 1, PLAIN}, run_waiting, "p50 1.5 of bare"},
	{{"4 KiB x 1, from callback", 4096, 1, 1, PLAIN}, run_peer, ""},
	{{"4 KiB x 1, TLS", 4096, 1, 1, TLS}, run_waiting, ""},
	{{"128 KiB x 1, bare", 128 << 10, 1, 1, BARE}, run_bare, ""},
	{{"128 KiB x 1", 128 << 10, 1, 1, PLAIN}, run_waiting, ""},
	{{"4 KiB, 2 threads", 4096, 2, 1, PLAIN}, run_waiting, ""},
	{{"4 KiB, 8 threads", 4096, 8, 1, PLAIN}, run_waiting, ""},
	{{"4 KiB x 64", 4096, 64, 1, PLAIN}, run_peer, "100000/s"},
	{{"4 KiB x 64, TLS", 4096, 64, 1, TLS}, run_peer, ""},
	{{"1 MiB, 8 clients", 1 << 20, 1, 8, PLAIN}, run_peer, ""},
	{{"1 MiB, 500 clients", 1 << 20, 1, 500, PLAIN}, run_peer, "rate 0.9 of 8 clients"},
};
#define N_LINES (sizeof(lines) / sizeof(lines[0]))

static double median(double *v)
{
	unsigned i, k;

	for (i = 1; i < ROUNDS; i++) {
		for (k = i; k > 0 && v[k] < v[k - 1]; k--) {
			double x = v[k];

			v[k] = v[k - 1];
			v[k - 1] = x;
		}
	}
	return v[ROUNDS / 2];
}

static void print(const struct line *l, struct result *r)
{
	double rate[ROUNDS], ops_s[ROUNDS], p50[ROUNDS], owner[ROUNDS], client[ROUNDS];
	unsigned i;

	for (i = 0; i < ROUNDS; i++) {
		double gib = r[i].bytes / GIB;

		rate[i] = gib / r[i].wall_s;
		ops_s[i] = r[i].requests / r[i].wall_s;
		p50[i] = r[i].p50_us;
		owner[i] = r[i].owner_cpu_s / gib;
		client[i] = r[i].client_cpu_s / gib;
	}
	printf("%-26s %8.2f %10.0f %8.1f %9.3f %9.3f  %s\n", l->load.name, median(rate),
	       median(ops_s), median(p50), median(owner), median(client), l->aim);
}

static void print_head(void)
{
	printf("%-26s %8s %10s %8s %9s %9s  %s\n", "load", "GiB/s", "per s", "p50 us", "own s/GiB",
	       "cli s/GiB", "aim");
}

static void idle_memory(struct owner *o, bool tls)
{
	enum { N = 1000 };
	struct cfs_transport *t = client_transport(tls ? TLS : PLAIN);
	static struct cfs_peer *peers[N];
	long before = resident_kib(o->pid);
	uint8_t dst[4096];
	unsigned i;

	for (i = 0; i < N; i++) {
		if (cfs_peer_open(t, 2, (void *)&o->addr, sizeof(o->addr), &peers[i]) < 0)
			die("open");
		warm_up(peers[i], tls ? TLS : PLAIN, dst);
	}
	printf("%-26s %8.2f KiB resident at the owner per connection, aim 16\n",
	       tls ? "1000 idle, TLS" : "1000 idle", (double)(resident_kib(o->pid) - before) / N);
	for (i = 0; i < N; i++)
		cfs_peer_close(peers[i]);
	cfs_transport_destroy(t);
}

/* --- RDMA --- */

static const struct line rdma_lines[] = {
	{{"4 KiB x 1, TCP", 4096, 1, 1, PLAIN}, run_waiting, ""},
	{{"4 KiB x 1, RDMA", 4096, 1, 1, RDMA}, run_waiting, ""},
	{{"4 KiB x 64, TCP", 4096, 64, 1, PLAIN}, run_peer, ""},
	{{"4 KiB x 64, RDMA", 4096, 64, 1, RDMA}, run_peer, ""},
	{{"128 KiB x 16, TCP", 128 << 10, 16, 1, PLAIN}, run_peer, ""},
	{{"128 KiB x 16, RDMA", 128 << 10, 16, 1, RDMA}, run_peer, ""},
	{{"4 MiB x 2, TCP", BLOCK, 2, 1, PLAIN}, run_peer, ""},
	{{"4 MiB x 2, RDMA", BLOCK, 2, 1, RDMA}, run_peer, ""},
};
#define N_RDMA_LINES (sizeof(rdma_lines) / sizeof(rdma_lines[0]))

/* "10.0.0.1" or "10.0.0.1:7000" */
static struct sockaddr_in address_of(const char *text)
{
	struct sockaddr_in sa = {.sin_family = AF_INET};
	char ip[64];
	const char *colon = strchr(text, ':');
	size_t len = colon ? (size_t)(colon - text) : strlen(text);

	if (colon)
		sa.sin_port = htons((uint16_t)atoi(colon + 1));
	snprintf(ip, sizeof(ip), "%.*s", (int)(len < sizeof(ip) ? len : sizeof(ip) - 1), text);
	if (inet_pton(AF_INET, ip, &sa.sin_addr) != 1) {
		fprintf(stderr, "not an address: %s\n", text);
		exit(2);
	}
	return sa;
}

/* Seconds of the reader's thread for a block: checksums of its pages, the copy to the caller. */
static double check_and_copy_s(void)
{
	uint8_t *to = buffer(BLOCK), *from = buffer((size_t)BLOCKS * BLOCK);
	static volatile uint32_t sum;
	double v[ROUNDS];
	unsigned k, n, i;

	for (k = 0; k < ROUNDS; k++) {
		double began = cpu_of(0);

		for (n = 0; n < BLOCKS; n++)
			for (i = 0; i < BLOCK; i += PAGE) {
				const uint8_t *piece = from + (size_t)n * BLOCK + i;
				unsigned at;

				for (at = 0; at < PAGE; at += CFS_RDMA_PAGE)
					sum ^= cfs_crc_add(0, piece + at, CFS_RDMA_PAGE);
				memcpy(to + i, piece, PAGE);
			}
		v[k] = (cpu_of(0) - began) / BLOCKS;
	}
	munmap(to, BLOCK);
	munmap(from, (size_t)BLOCKS * BLOCK);
	return median(v);
}

/*
 * RoCE v2: Ethernet 18 with its checksum and 20 between frames, IP 20, UDP 8, BTH 12, ICRC 4; a READ
 * names its range in 16 more, an answer has an AETH of 4.
 */
#define READ_PACKET   (18 + 20 + 20 + 8 + 12 + 4 + 16)
#define ANSWER_PACKET (18 + 20 + 20 + 8 + 12 + 4 + 4)

/* The table of docs/scale.md. */
static void print_arithmetic(void)
{
	static const uint32_t lens[] = {4096, 128u << 10, BLOCK};
	double block_s = check_and_copy_s();
	unsigned i, mtu;

	printf("check and copy: %.3f CPU-s/GiB, %.1f GiB/s for a thread\n", block_s * 256,
	       1 / block_s / 256);
	printf("%8s %6s %6s %10s %12s %12s %14s\n", "bytes", "READs", "MTU", "on wire",
	       "at 100 Gb/s", "at 400 Gb/s", "of one thread");
	for (i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		for (mtu = 1024; mtu <= 4096; mtu *= 4) {
			unsigned reads = (lens[i] + PAGE - 1) / PAGE;
			double wire = lens[i] + (double)lens[i] / mtu * ANSWER_PACKET;

			printf("%8u %6u %6u %10.0f %10.0f/s %10.0f/s %12.0f/s\n", lens[i], reads,
			       mtu, wire, 12.5e9 / wire, 50e9 / wire,
			       1 / (block_s * lens[i] / BLOCK));
		}
	}
	printf("a READ is %d bytes on the wire\n", READ_PACKET);
}

static double median_of(const struct result *r, double (*what)(const struct result *))
{
	double v[ROUNDS];
	unsigned i;

	for (i = 0; i < ROUNDS; i++)
		v[i] = what(&r[i]);
	return median(v);
}

static double share_of_rdma(const struct result *r)
{
	return r->requests > 0 ? 100 * r->by_rdma / r->requests : 0;
}

static double switches_of_1000(const struct result *r)
{
	return r->requests > 0 ? 1000 * r->owner_switches / r->requests : 0;
}

static int compare_rdma(struct owner *o, const char *only)
{
	static struct result results[N_RDMA_LINES][ROUNDS];
	unsigned i, k;

	for (k = 0; k < ROUNDS; k++) {
		for (i = 0; i < N_RDMA_LINES; i++) {
			if (!only || strstr(rdma_lines[i].load.name, only))
				rdma_lines[i].run(&rdma_lines[i].load, o, &results[i][k]);
		}
	}
	print_head();
	for (i = 0; i < N_RDMA_LINES; i++) {
		if (results[i][0].wall_s > 0)
			print(&rdma_lines[i], results[i]);
	}
	printf("\n%-26s %10s %28s\n", "load", "by RDMA, %", "owner's switches per 1000");
	for (i = 0; i < N_RDMA_LINES; i++) {
		if (results[i][0].wall_s > 0)
			printf("%-26s %10.1f %28.1f\n", rdma_lines[i].load.name,
			       median_of(results[i], share_of_rdma),
			       median_of(results[i], switches_of_1000));
	}
	return 0;
}

static int with_rdma(int argc, char **argv)
{
	struct owner o = {.pid = -1};
	int r;

	if (argc < 6 || strcmp(argv[2], "rdma") != 0)
		return -1;
	if (!rdma) {
		fprintf(stderr, "this build has no RDMA\n");
		return 1;
	}
	if (argc > 6)
		seconds = strtod(argv[6], NULL);
	o.addr = address_of(argv[3]);
	reader_addr = address_of(argv[4]);
	make_blocks(argv[5]);
	if (o.addr.sin_port == 0)
		o = start_owner(RDMA, o.addr);
	r = compare_rdma(&o, argc > 7 ? argv[7] : NULL);
	if (o.pid > 0)
		kill(o.pid, SIGKILL);
	return r;
}

int main(int argc, char **argv)
{
	static struct result results[N_LINES][ROUNDS];
	struct owner owners[KINDS];
	struct sockaddr_in here = {.sin_family = AF_INET,
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	unsigned i, k;
	int r = -1;

	signal(SIGPIPE, SIG_IGN); /* sendfile(2) cannot be told not to send it */
	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_WARN);
	samples = malloc(SAMPLES * sizeof(*samples));
	sem_init(&ended, 0, 0);
	if (argc > 1 && !strcmp(argv[1], "--transport"))
		r = with_rdma(argc, argv);
	if (argc == 2 && !strcmp(argv[1], "--arithmetic")) {
		print_arithmetic();
		return 0;
	}
	if (argc == 4 && !strcmp(argv[1], "--serve")) {
		make_blocks(argv[3]);
		own(RDMA, address_of(argv[2]), -1);
	}
	if (r < 0 && (argc < 2 || argv[1][0] == '-')) {
		fprintf(stderr, "usage: peer DIR [SECONDS [LINE]]\n"
				"       peer --transport rdma OWNER READER DIR [SECONDS [LINE]]\n"
				"       peer --serve OWNER:PORT DIR\n"
				"       peer --arithmetic\n");
		return 2;
	}
	if (r >= 0)
		return r;
	if (argc > 2)
		seconds = strtod(argv[2], NULL);
	make_blocks(argv[1]);
	for (k = 0; k < KINDS; k++)
		owners[k] = start_owner(k, here);
	for (k = PLAIN; argc <= 3 && k < KINDS; k++)
		idle_memory(&owners[k], k == TLS);
	for (k = 0; k < ROUNDS; k++) {
		for (i = 0; i < N_LINES; i++) {
			if (argc <= 3 || strstr(lines[i].load.name, argv[3]))
				lines[i].run(&lines[i].load, &owners[lines[i].load.kind],
					     &results[i][k]);
		}
	}
	print_head();
	for (i = 0; i < N_LINES; i++) {
		if (results[i][0].wall_s > 0)
			print(&lines[i], results[i]);
	}
	for (k = 0; k < KINDS; k++)
		kill(owners[k].pid, SIGKILL);
	return 0;
}
