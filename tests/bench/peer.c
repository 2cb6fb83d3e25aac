/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speed of the peer transport beside the least that a server and a client can do over the same
 * loopback: sendfile(2) and recv(2) with the same socket options. Both take turns; the medians are
 * printed. Owners are processes of their own, their blocks are files in the page cache.
 *
 *	peer DIR [SECONDS [LINE]]
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
	pid_t pid;
	struct sockaddr_in addr;
};

enum kind { BARE, PLAIN, TLS, KINDS };

static void own(enum kind kind, int report)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct cfs_transport_conf conf = {
		.member = 2,
		.listen = (struct sockaddr *)&sa,
		.listen_len = sizeof(sa),
		.ops = &ops,
		.max_unauthenticated_per_addr = 1024,
		.connect_timeout_ms = 10000,
		.transport = kind == TLS ? CFS_PEER_TLS : CFS_PEER_TCP,
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
	if (write(report, &at, sizeof(sa)) != sizeof(sa))
		die("write");
	if (kind == BARE)
		bare_listen(fd);
	for (;;)
		pause();
}

static struct owner start_owner(enum kind kind)
{
	struct owner o;
	int fds[2];

	if (pipe(fds) < 0)
		die("pipe");
	o.pid = fork();
	if (o.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		own(kind, fds[1]);
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

	if (pid && clock_getcpuclockid(pid, &clock) != 0)
		die("cpu clock");
	clock_gettime(clock, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
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
	s->get.block.slice = cfs_random_u64();
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

static struct cfs_transport *client_transport(bool tls)
{
	struct cfs_transport_conf conf = {
		.member = 1,
		.max_conns_per_peer = 1,
		.connect_timeout_ms = 10000,
		.transport = tls ? CFS_PEER_TLS : CFS_PEER_TCP,
	};
	struct cfs_transport *t;
	char err[256];

	memcpy(conf.key, key, sizeof(key));
	if (cfs_transport_create(&conf, &t, err) < 0)
		die(err);
	return t;
}

static void warm_up(struct cfs_peer *p, uint8_t *dst)
{
	struct cfs_peer_block b = {.slice = 1, .len = BLOCK};
	struct iovec iov = {dst, 4096};

	if (cfs_peer_read(p, &b, 0, 4096, 0, &iov, 1, cfs_deadline_in(20000)) != 4096)
		die("first read");
}

static void run_peer(const struct load *l, struct owner *o, struct result *r)
{
	struct cfs_transport *t = client_transport(l->kind == TLS);
	struct cfs_peer **peers = calloc(l->clients, sizeof(*peers));
	unsigned n = l->in_flight * l->clients, i, buffers = n < 64 ? n : 64;
	uint8_t *dst = buffer((size_t)buffers * l->len);
	struct slot *slots = calloc(n, sizeof(*slots));
	double began;

	for (i = 0; i < l->clients; i++) {
		if (cfs_peer_open(t, 2, (void *)&o->addr, sizeof(o->addr), &peers[i]) < 0)
			die("open");
		warm_up(peers[i], dst);
	}
	got_bytes = got_requests = 0;
	n_samples = 0;
	stop = false;
	live = n;
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

		b.slice = cfs_random_u64();
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
	struct cfs_transport *t = client_transport(l->kind == TLS);
	struct waiting *w = calloc(l->in_flight, sizeof(*w));
	uint8_t *dst = buffer((size_t)l->in_flight * l->len);
	struct cfs_peer *p;
	double began;
	unsigned i;

	if (cfs_peer_open(t, 2, (void *)&o->addr, sizeof(o->addr), &p) < 0)
		die("open");
	warm_up(p, dst);
	got_bytes = got_requests = 0;
	n_samples = 0;
	stop = false;
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

static void idle_memory(struct owner *o, bool tls)
{
	enum { N = 1000 };
	struct cfs_transport *t = client_transport(tls);
	static struct cfs_peer *peers[N];
	long before = resident_kib(o->pid);
	uint8_t dst[4096];
	unsigned i;

	for (i = 0; i < N; i++) {
		if (cfs_peer_open(t, 2, (void *)&o->addr, sizeof(o->addr), &peers[i]) < 0)
			die("open");
		warm_up(peers[i], dst);
	}
	printf("%-26s %8.2f KiB resident at the owner per connection, aim 16\n",
	       tls ? "1000 idle, TLS" : "1000 idle", (double)(resident_kib(o->pid) - before) / N);
	for (i = 0; i < N; i++)
		cfs_peer_close(peers[i]);
	cfs_transport_destroy(t);
}

int main(int argc, char **argv)
{
	static struct result results[N_LINES][ROUNDS];
	struct owner owners[KINDS];
	unsigned i, k;

	if (argc < 2) {
		fprintf(stderr, "usage: peer DIR [SECONDS [LINE]]\n");
		return 2;
	}
	if (argc > 2)
		seconds = strtod(argv[2], NULL);
	signal(SIGPIPE, SIG_IGN); /* sendfile(2) cannot be told not to send it */
	samples = malloc(SAMPLES * sizeof(*samples));
	sem_init(&ended, 0, 0);
	make_blocks(argv[1]);
	for (k = 0; k < KINDS; k++)
		owners[k] = start_owner(k);
	for (k = PLAIN; argc <= 3 && k < KINDS; k++)
		idle_memory(&owners[k], k == TLS);
	for (k = 0; k < ROUNDS; k++) {
		for (i = 0; i < N_LINES; i++) {
			if (argc <= 3 || strstr(lines[i].load.name, argv[3]))
				lines[i].run(&lines[i].load, &owners[lines[i].load.kind],
					     &results[i][k]);
		}
	}
	printf("%-26s %8s %10s %8s %9s %9s  %s\n", "load", "GiB/s", "per s", "p50 us", "own s/GiB",
	       "cli s/GiB", "aim");
	for (i = 0; i < N_LINES; i++) {
		if (results[i][0].wall_s > 0)
			print(&lines[i], results[i]);
	}
	for (k = 0; k < KINDS; k++)
		kill(owners[k].pid, SIGKILL);
	return 0;
}
