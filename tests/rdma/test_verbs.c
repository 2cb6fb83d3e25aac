/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module "rdma" on two devices with a wire between them (tests/rdma/run): what goes wrong below
 * the transport ends a read with an error, in time, and never with other bytes.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
/* After the headers that it needs. */
#include <cmocka.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "transport/rdma/rdma-internal.h"

#define OWNER	  "10.77.0.1"
#define READER	  "10.77.0.2"
#define SHARED	  (1u << 20)
#define SESSION	  7
#define MAX_READS 256
#define WAIT_MS	  30000

static const struct cfs_rdma_ops *const rdma = &cfs_rdma_verbs;

/* A member, and what its events have said. */
struct side {
	struct cfs_rdma *d;
	struct cfs_rdma_memory *memory;
	uint8_t *bytes;
	uint64_t sessions;			     /* the owner knows 1 to this number */
	struct cfs_rdma_conn *conn;		     /* the last one */
	unsigned ready, lost, done, failed, removed; /* done, failed: chains */
	int lost_err, read_err;			     /* the last, the first */
};

static uint8_t secret_of(uint64_t session)
{
	return (uint8_t)(session * 31 + 5);
}

static int on_asked(void *arg, uint64_t session, struct cfs_rdma_conn *c,
		    uint8_t ret_secret[CFS_RDMA_SECRET], void **ret_user)
{
	struct side *s = arg;

	if (session == 0 || session > s->sessions)
		return -ENOENT;
	memset(ret_secret, secret_of(session), CFS_RDMA_SECRET);
	s->conn = c;
	*ret_user = s;
	return 0;
}

static void on_ready(void *arg, void *user)
{
	assert_ptr_equal(arg, user);
	((struct side *)arg)->ready++;
}

static void on_lost(void *arg, void *user, int err)
{
	struct side *s = user;

	s->conn = NULL;
	s->lost++;
	s->lost_err = err;
}

static void on_read(void *arg, void *cookie, int err)
{
	struct side *s = arg;

	assert_ptr_equal(cookie, s);
	s->done++;
	if (err < 0 && s->failed++ == 0)
		s->read_err = err;
}

static void on_removed(void *arg)
{
	((struct side *)arg)->removed++;
}

static const struct cfs_rdma_events events = {
	.asked = on_asked,
	.ready = on_ready,
	.lost = on_lost,
	.read_done = on_read,
	.removed = on_removed,
};

static struct sockaddr_in address(const char *ip, uint16_t port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};

	assert_int_equal(inet_pton(AF_INET, ip, &a.sin_addr), 1);
	return a;
}

static uint8_t pattern(size_t i)
{
	return (uint8_t)(i * 7 + (i >> 8) * 13 + (i >> 16));
}

static int try_open(struct side *s, const char *ip, unsigned max_conns, unsigned max_reads,
		    char err[256])
{
	struct sockaddr_in local = address(ip, 1);
	struct cfs_rdma_conf conf = {
		.local = (struct sockaddr *)&local,
		.local_len = sizeof(local),
		.max_conns = max_conns,
		.max_reads = max_reads,
		.events = &events,
		.arg = s,
	};

	return rdma->open(&conf, &s->d, err);
}

static void open_side(struct side *s, const char *ip, unsigned max_conns, unsigned max_reads)
{
	bool owner = strcmp(ip, OWNER) == 0;
	char err[256] = "";
	size_t i;

	*s = (struct side){0};
	if (try_open(s, ip, max_conns, max_reads, err) < 0)
		fail_msg("%s: %s", ip, err);
	s->bytes = mmap(NULL, SHARED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(s->bytes, MAP_FAILED);
	for (i = 0; i < SHARED; i++)
		s->bytes[i] = owner ? pattern(i) : 0xee;
	assert_int_equal(rdma->map(s->d, s->bytes, SHARED, owner ? CFS_RDMA_SHARED : CFS_RDMA_OWN,
				   &s->memory),
			 0);
	s->sessions = owner ? 1000 : 0;
}

static void close_side(struct side *s)
{
	rdma->close(s->d);
	munmap(s->bytes, SHARED);
}

static struct side owner, reader;

/* One round of both loops. */
static void turn(void)
{
	struct pollfd p[2] = {{.events = POLLIN}, {.events = POLLIN}};
	struct side *sides[2] = {&owner, &reader};
	unsigned i;

	for (i = 0; i < 2; i++)
		p[i].fd = sides[i]->d ? rdma->fd(sides[i]->d) : -1;
	(void)poll(p, 2, 20);
	for (i = 0; i < 2; i++) {
		if (!sides[i]->d)
			continue;
		rdma->poll(sides[i]->d);
		(void)rdma->tick(sides[i]->d, cfs_now_ms());
	}
}

#define WAIT_FOR(condition)                                                                        \
	do {                                                                                       \
		cfs_deadline_t until_ = cfs_deadline_in(WAIT_MS);                                  \
		while (!(condition)) {                                                             \
			if (cfs_deadline_passed(until_))                                           \
				fail_msg("not in time: %s", #condition);                           \
			turn();                                                                    \
		}                                                                                  \
	} while (0)

static int ask(uint16_t port, uint64_t session, uint8_t byte)
{
	struct sockaddr_in to = address(OWNER, port);
	uint8_t secret[CFS_RDMA_SECRET];

	memset(secret, byte, sizeof(secret));
	return rdma->connect(reader.d, (struct sockaddr *)&to, session, secret, &reader,
			     &reader.conn);
}

static void connect_to(uint16_t port)
{
	unsigned before = reader.ready;

	assert_int_equal(ask(port, SESSION, secret_of(SESSION)), 0);
	WAIT_FOR(reader.ready > before || reader.lost > 0);
	assert_int_equal(reader.lost, 0);
}

static int setup(void **state)
{
	(void)state;
	open_side(&owner, OWNER, 4, 16);
	open_side(&reader, READER, 8, MAX_READS);
	connect_to(rdma->port(owner.d));
	WAIT_FOR(owner.ready == 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (owner.d)
		close_side(&owner);
	if (reader.d)
		close_side(&reader);
	owner = reader = (struct side){0};
	return 0;
}

/* Reads n pieces, one after the other in memory, in one chain. */
static int start_reads(uint32_t key, size_t from, uint32_t len, unsigned n)
{
	struct cfs_rdma_read reads[CFS_RDMA_CHAIN + 1];
	unsigned i;

	for (i = 0; i < n && i <= CFS_RDMA_CHAIN; i++)
		reads[i] = (struct cfs_rdma_read){
			.to = reader.bytes + from + (size_t)i * len,
			.memory = reader.memory,
			.from = from + (size_t)i * len,
			.key = key,
			.len = len,
		};
	return rdma->read(reader.conn, reads, n, &reader, false);
}

static void check_bytes(size_t from, size_t len)
{
	size_t i;

	for (i = from; i < from + len; i++)
		if (reader.bytes[i] != pattern(i))
			fail_msg("byte %zu is %02x", i, reader.bytes[i]);
}

static void check_untouched(void)
{
	size_t i;

	for (i = 0; i < SHARED; i++)
		if (reader.bytes[i] != 0xee)
			fail_msg("byte %zu was written", i);
}

/* Reads all that is shared, in pieces. */
static void read_all(uint32_t key, uint32_t len)
{
	unsigned n = SHARED / len, i, chain = CFS_MIN(n, CFS_RDMA_CHAIN);

	memset(reader.bytes, 0xee, SHARED);
	for (i = 0; i < n; i += chain) {
		unsigned want = reader.done + 1;

		assert_int_equal(start_reads(key, (size_t)i * len, len, chain), 0);
		WAIT_FOR(reader.done == want);
	}
	assert_int_equal(reader.failed, 0);
	check_bytes(0, SHARED);
}

static void test_reads(void **state)
{
	(void)state;
	read_all(owner.memory->key, 4096);
	read_all(owner.memory->key, 128 << 10);
	read_all(owner.memory->key, SHARED);
	assert_int_equal(owner.done, 0);
}

/* It is the reader's memory only for its own reads, and the owner's only for others' reads. */
static void test_the_owner_cannot_read(void **state)
{
	struct cfs_rdma_read r = {
		.to = owner.bytes, .memory = owner.memory, .key = reader.memory->key, .len = 8};

	(void)state;
	assert_int_equal(rdma->read(owner.conn, &r, 1, NULL, false), -ENOTCONN);
}

static void test_wrong_secret(void **state)
{
	uint16_t port = rdma->port(owner.d);

	(void)state;
	assert_int_equal(ask(port, SESSION + 1, (uint8_t)(secret_of(SESSION + 1) ^ 1)), 0);
	WAIT_FOR(reader.lost == 1 && owner.lost == 1);
	assert_int_equal(reader.lost_err, -ECONNREFUSED);
	assert_int_equal(owner.lost_err, -EACCES);
	assert_int_equal(reader.ready, 1);
	assert_int_equal(owner.ready, 1);
}

static void test_unknown_session(void **state)
{
	(void)state;
	assert_int_equal(ask(rdma->port(owner.d), 4711, secret_of(4711)), 0);
	WAIT_FOR(reader.lost == 1);
	assert_int_equal(reader.lost_err, -ECONNREFUSED);
	assert_int_equal(owner.lost, 0);
}

/* The owner takes 4, whoever asks; the reader makes 8; the one that is there goes on. */
static void test_limits_of_connections(void **state)
{
	struct cfs_rdma_conn *first = reader.conn;
	uint64_t i;

	(void)state;
	for (i = 1; i <= 7; i++)
		assert_int_equal(ask(rdma->port(owner.d), i, secret_of(i)), 0);
	assert_int_equal(ask(rdma->port(owner.d), 9, secret_of(9)), -EMFILE);
	WAIT_FOR(reader.ready + reader.lost == 8);
	assert_int_equal(reader.ready, 4);
	assert_int_equal(reader.lost_err, -ECONNREFUSED);
	for (i = 0; i < 200; i++) {
		unsigned lost = reader.lost;

		assert_int_equal(ask(rdma->port(owner.d), SESSION, secret_of(SESSION)), 0);
		WAIT_FOR(reader.lost > lost);
	}
	reader.conn = first;
	read_all(owner.memory->key, 64 << 10);
}

static void test_limits_of_reads(void **state)
{
	uint32_t key = owner.memory->key;

	(void)state;
	assert_int_equal(start_reads(key, 0, 4096, CFS_RDMA_CHAIN + 1), -EINVAL);
	assert_int_equal(start_reads(key, 0, 4096, CFS_RDMA_CHAIN), 0);
	assert_int_equal(start_reads(key, 0, 4096, CFS_RDMA_READS - CFS_RDMA_CHAIN), 0);
	assert_int_equal(start_reads(key, 0, 4096, 1), -EAGAIN); /* of the connection */
	WAIT_FOR(reader.done == 2);
	assert_int_equal(start_reads(key, 0, 4096, CFS_RDMA_CHAIN), 0);
	reader.d->n_reads += MAX_READS - CFS_RDMA_CHAIN; /* of other connections */
	assert_int_equal(start_reads(key, 0, 4096, 1), -EAGAIN);
	reader.d->n_reads -= MAX_READS - CFS_RDMA_CHAIN;
	WAIT_FOR(reader.done == 3);
	assert_int_equal(reader.failed, 0);
	read_all(key, 4096);
}

static int (*device_posts)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static int (*device_polls)(struct ibv_cq *, int, struct ibv_wc *);
static unsigned posts, completions;

static int count_posts(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	posts++;
	return device_posts(qp, wr, bad);
}

static int count_completions(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int r = device_polls(cq, n, wc);

	completions += r > 0 ? (unsigned)r : 0;
	return r;
}

/* The device's driver is called once for a chain, and has one completion to report. */
static void test_work_of_a_chain(void **state)
{
	struct ibv_context_ops *device = &reader.d->device->ops;
	unsigned i;

	(void)state;
	device_posts = device->post_send;
	device_polls = device->poll_cq;
	device->post_send = count_posts;
	device->poll_cq = count_completions;
	posts = completions = 0;
	for (i = 0; i < 4; i++)
		read_all(owner.memory->key, 16 << 10);
	device->post_send = device_posts;
	device->poll_cq = device_polls;
	assert_int_equal(posts, 4);
	assert_int_equal(completions, 4);
}

/* One read of a chain fails: the chain ends once, with that error, and later reads write nothing. */
static void test_a_read_of_a_chain_fails(void **state)
{
	struct cfs_rdma_read reads[CFS_RDMA_CHAIN];
	unsigned i, wrong = 40;

	(void)state;
	for (i = 0; i < CFS_RDMA_CHAIN; i++)
		reads[i] = (struct cfs_rdma_read){
			.to = reader.bytes + (size_t)i * 4096,
			.memory = reader.memory,
			.from = (uint64_t)i * 4096,
			.key = owner.memory->key ^ (i == wrong ? 0x55 : 0),
			.len = 4096,
		};
	assert_int_equal(rdma->read(reader.conn, reads, CFS_RDMA_CHAIN, &reader, false), 0);
	WAIT_FOR(reader.lost == 1);
	assert_int_equal(reader.done, 1);
	assert_int_equal(reader.failed, 1);
	assert_int_equal(reader.read_err, -EKEYREJECTED);
	check_bytes(0, (size_t)wrong * 4096);
	for (i = wrong * 4096; i < SHARED; i++)
		assert_int_equal(reader.bytes[i], 0xee);
	assert_int_equal(reader.d->n_reads, 0);
	reader.lost = 0;
	connect_to(rdma->port(owner.d));
	reader.failed = 0;
	read_all(owner.memory->key, 64 << 10);
}

/* A key that was taken back is of no use, although its memory is mapped again. */
static void test_unmapped(void **state)
{
	struct cfs_rdma_memory *again;
	uint32_t key = owner.memory->key;

	(void)state;
	rdma->unmap(owner.d, owner.memory);
	assert_int_equal(rdma->map(owner.d, owner.bytes, SHARED, CFS_RDMA_SHARED, &again), 0);
	assert_int_not_equal(again->key, key);
	assert_int_equal(start_reads(key, 0, 64 << 10, 4), 0);
	WAIT_FOR(reader.lost == 1);
	assert_int_equal(reader.read_err, -EKEYREJECTED);
	assert_int_equal(reader.failed, 1);
	check_untouched();
	WAIT_FOR(owner.lost == 1);
	reader.lost = 0;
	connect_to(rdma->port(owner.d));
}

static void test_outside(void **state)
{
	struct cfs_rdma_read r = {
		.to = reader.bytes,
		.memory = reader.memory,
		.from = SHARED - 4096,
		.key = owner.memory->key,
		.len = 8192,
	};

	(void)state;
	assert_int_equal(rdma->read(reader.conn, &r, 1, &reader, false), 0);
	WAIT_FOR(reader.lost == 1);
	assert_int_equal(reader.read_err, -EKEYREJECTED);
	check_untouched();
}

/* Memory that is the owner's own is nobody else's. */
static void test_not_shared(void **state)
{
	struct cfs_rdma_memory *own;

	(void)state;
	assert_int_equal(rdma->map(owner.d, owner.bytes, SHARED, CFS_RDMA_OWN, &own), 0);
	assert_int_equal(start_reads(own->key, 0, 4096, 1), 0);
	WAIT_FOR(reader.lost == 1);
	assert_int_equal(reader.read_err, -EKEYREJECTED);
	check_untouched();
}

static void shell(const char *command)
{
	if (system(command) != 0)
		fail_msg("%s", command);
}

static void test_lossy_wire(void **state)
{
	unsigned i;

	(void)state;
	shell("tc qdisc add dev ra root netem loss 1%");
	shell("tc qdisc add dev rb root netem loss 1%");
	for (i = 0; i < 8 && reader.lost == 0; i++)
		read_all(owner.memory->key, 16 << 10);
	shell("tc qdisc del dev ra root");
	shell("tc qdisc del dev rb root");
	assert_int_equal(reader.lost, 0);
}

static void test_wire_is_cut(void **state)
{
	(void)state;
	shell("tc qdisc add dev ra root netem loss 100%");
	assert_int_equal(start_reads(owner.memory->key, 0, 4096, 8), 0);
	WAIT_FOR(reader.lost == 1);
	shell("tc qdisc del dev ra root");
	assert_int_equal(reader.read_err, -EHOSTUNREACH);
	assert_int_equal(reader.failed, 1);
	check_untouched();
	reader.lost = 0;
	connect_to(rdma->port(owner.d));
	reader.failed = 0;
	read_all(owner.memory->key, 4096);
}

/* Neither answers nor refuses: the attempt ends by itself. */
static void test_owner_is_silent(void **state)
{
	(void)state;
	shell("tc qdisc add dev ra root netem loss 100%");
	assert_int_equal(ask(rdma->port(owner.d), SESSION, secret_of(SESSION)), 0);
	WAIT_FOR(reader.lost == 1);
	shell("tc qdisc del dev ra root");
	assert_int_equal(reader.lost_err, -ETIMEDOUT);
}

static void test_disconnect(void **state)
{
	(void)state;
	assert_int_equal(start_reads(owner.memory->key, 0, 4096, 32), 0);
	rdma->disconnect(reader.conn);
	assert_int_equal(start_reads(owner.memory->key, 0, 4096, 1), -ENOTCONN);
	WAIT_FOR(reader.lost == 1 && owner.lost == 1);
	assert_int_equal(reader.lost_err, -ECANCELED);
	assert_int_equal(reader.done, 1);
	reader.lost = 0;
	connect_to(rdma->port(owner.d));
}

/* Of either side, with reads under way. */
static void removed(struct side *gone, struct side *stays, const char *ip, const char *device,
		    const char *net)
{
	char command[128], err[256];
	unsigned i;

	for (i = 0; i < 4; i++)
		assert_int_equal(start_reads(owner.memory->key, 0, 16 << 10, 16), 0);
	snprintf(command, sizeof(command), "rdma link delete %s &", device);
	shell(command);
	WAIT_FOR(gone->removed == 1);
	assert_int_equal(gone->lost, 1);
	assert_int_equal(gone->lost_err, -ENODEV);
	assert_int_equal(ask(7, SESSION, 1), gone == &reader ? -ENODEV : 0);
	close_side(gone);
	gone->d = NULL;
	WAIT_FOR(stays->lost >= 1);
	assert_int_equal(stays->removed, 0);
	/* The kernel waits for this process to let it go; librdmacm does when it looks for devices. */
	snprintf(command, sizeof(command), "/sys/class/infiniband/%s", device);
	WAIT_FOR(try_open(gone, ip, 1, 1, err) == -ENODEV && access(command, F_OK) < 0);
	snprintf(command, sizeof(command), "rdma link add %s type rxe netdev %s", device, net);
	shell(command);
	open_side(gone, ip, 4, 96);
}

static void test_owners_device_is_removed(void **state)
{
	(void)state;
	removed(&owner, &reader, OWNER, "rxa", "ra");
	reader.lost = reader.failed = 0;
	WAIT_FOR(!rdma->tick(reader.d, cfs_now_ms()));
	reader.lost = reader.failed = 0;
	connect_to(rdma->port(owner.d));
	read_all(owner.memory->key, 64 << 10);
}

static void test_readers_device_is_removed(void **state)
{
	(void)state;
	removed(&reader, &owner, READER, "rxb", "rb");
	connect_to(rdma->port(owner.d));
	read_all(owner.memory->key, 64 << 10);
}

/*
 * librdmacm has opened a device again, which it does when it takes it for a new one: queue pairs of
 * the one that is in use cannot be made, and it counts as gone.
 */
static void opened_again(struct side *side, struct side *other, const char *ip)
{
	side->d->device =
		other->d->device; /* not that of new queue pairs, which is what is seen of it */
	assert_int_equal(ask(rdma->port(owner.d), SESSION, secret_of(SESSION)), 0);
	WAIT_FOR(side->removed == 1 && reader.lost == 2);
	assert_int_equal(side->lost_err, -ENODEV);
	assert_int_equal(other->removed, 0);
	close_side(side);
	open_side(side, ip, 4, 96);
	WAIT_FOR(!rdma->tick(other->d, cfs_now_ms()));
	reader.lost = reader.failed = 0;
	connect_to(rdma->port(owner.d));
	read_all(owner.memory->key, 64 << 10);
}

static void test_owners_device_is_opened_again(void **state)
{
	(void)state;
	opened_again(&owner, &reader, OWNER);
}

static void test_readers_device_is_opened_again(void **state)
{
	(void)state;
	opened_again(&reader, &owner, READER);
}

static void test_no_device(void **state)
{
	char err[256] = "";
	struct side s = {0};

	(void)state;
	assert_int_equal(try_open(&s, "127.0.0.1", 1, 1, err), -ENODEV);
	assert_string_not_equal(err, "");
}

/* --- an owner in a process of its own --- */

struct owner_process {
	pid_t pid;
	int to;
	uint16_t port;
	uint32_t key;
};

static _Noreturn void serve(int out)
{
	struct owner_process me = {0};

	open_side(&owner, OWNER, 4, 16);
	me.port = rdma->port(owner.d);
	me.key = owner.memory->key;
	if (write(out, &me, sizeof(me)) != sizeof(me))
		_exit(1);
	for (;;) {
		struct pollfd p = {.fd = rdma->fd(owner.d), .events = POLLIN};

		(void)poll(&p, 1, rdma->tick(owner.d, cfs_now_ms()) ? 20 : 10000);
		rdma->poll(owner.d);
	}
}

/* A program of its own: a forked child shares the libraries' descriptors of the device. */
static struct owner_process start_owner(void)
{
	struct owner_process p;
	char out[16];
	pid_t pid;
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		snprintf(out, sizeof(out), "%d", fds[1]);
		execl("/proc/self/exe", "test_verbs", "--owner", out, NULL);
		_exit(127);
	}
	assert_int_equal(read(fds[0], &p, sizeof(p)), sizeof(p));
	close(fds[0]);
	close(fds[1]);
	p.pid = pid;
	open_side(&reader, READER, 8, 96);
	connect_to(p.port);
	return p;
}

static unsigned long context_switches(pid_t pid)
{
	char command[160];
	unsigned long n = 0;
	FILE *f;

	snprintf(command, sizeof(command),
		 "cat /proc/%d/task/*/status | awk '/ctxt_switches/ {n += $2} END {print n}'",
		 (int)pid);
	f = popen(command, "r");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%lu", &n), 1);
	pclose(f);
	return n;
}

/* The reads of a thousand pages wake no thread of the owner, and need none: it may be stopped. */
static void test_owner_does_not_wake(void **state)
{
	struct owner_process p = start_owner();
	unsigned long before;
	unsigned i;

	(void)state;
	read_all(p.key, 64 << 10);
	before = context_switches(p.pid);
	for (i = 0; i < 4; i++)
		read_all(p.key, 4096);
	assert_int_equal(context_switches(p.pid), before);
	kill(p.pid, SIGSTOP);
	read_all(p.key, 4096);
	kill(p.pid, SIGKILL);
	waitpid(p.pid, NULL, 0);
}

static void test_owner_is_killed(void **state)
{
	struct owner_process p = start_owner();

	(void)state;
	read_all(p.key, 64 << 10);
	kill(p.pid, SIGKILL);
	waitpid(p.pid, NULL, 0);
	/* The kernel says goodbye, or the read finds out. */
	(void)start_reads(p.key, 0, 4096, 8);
	WAIT_FOR(reader.lost == 1);
	assert_int_equal(reader.failed, reader.done - 1);
	reader.lost = 0;
	assert_int_equal(ask(p.port, SESSION, secret_of(SESSION)), 0);
	WAIT_FOR(reader.lost == 1);
}

/* test_verbs [PATTERN]: the tests whose names match */
int main(int argc, char **argv)
{
#define WITH_BOTH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_device),
		WITH_BOTH(test_reads),
		WITH_BOTH(test_the_owner_cannot_read),
		WITH_BOTH(test_wrong_secret),
		WITH_BOTH(test_unknown_session),
		WITH_BOTH(test_limits_of_connections),
		WITH_BOTH(test_limits_of_reads),
		WITH_BOTH(test_work_of_a_chain),
		WITH_BOTH(test_a_read_of_a_chain_fails),
		WITH_BOTH(test_unmapped),
		WITH_BOTH(test_outside),
		WITH_BOTH(test_not_shared),
		WITH_BOTH(test_lossy_wire),
		WITH_BOTH(test_wire_is_cut),
		WITH_BOTH(test_owner_is_silent),
		WITH_BOTH(test_disconnect),
		WITH_BOTH(test_owners_device_is_removed),
		WITH_BOTH(test_readers_device_is_removed),
		WITH_BOTH(test_owners_device_is_opened_again),
		WITH_BOTH(test_readers_device_is_opened_again),
		cmocka_unit_test_teardown(test_owner_does_not_wake, teardown),
		cmocka_unit_test_teardown(test_owner_is_killed, teardown),
	};

	if (argc == 3 && !strcmp(argv[1], "--owner"))
		serve(atoi(argv[2]));
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
