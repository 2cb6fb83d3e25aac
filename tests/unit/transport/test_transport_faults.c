/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peer transport among members that fall silent, die or freeze: every reader gets right bytes
 * or an error within its deadline, every owner goes on serving the others.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "peer_fixture.h"
#include "unit/skip.h"

/* Garbage before or after the handshake ends that connection, and nothing else. */
static void test_owner_survives_garbage(void **state)
{
	static const struct cfs_handshake_keys wrong = {.key = {"wrong"}, .n = 1};
	struct cfs_transport *t = asker();
	uint8_t buf[512], dst[4096];
	struct cfs_frame f;
	struct owner o;
	struct cfs_peer *p;
	unsigned i;
	int fd, r;

	(void)state;
	p = owner_meet(t, &o, BLOCK);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);

	memset(buf, 'x', sizeof(buf));
	fd = raw_connect(&o);
	assert_true(raw_send(fd, buf, sizeof(buf)));
	assert_true(raw_is_closed(fd));
	close(fd);
	/* A request without a handshake */
	fd = raw_connect(&o);
	assert_true(raw_send(fd, buf, get_frame(buf, 1, BLOCK, 0, 4096)));
	assert_true(raw_is_closed(fd));
	close(fd);
	/* The wrong key is told so. */
	fd = raw_client(&o, &wrong, &r);
	assert_int_equal(r, -EACCES);
	assert_true(raw_is_closed(fd));
	close(fd);
	/* After the handshake: garbage, an answer, an impossible range */
	for (i = 0; i < 3; i++) {
		size_t len = sizeof(buf);

		fd = raw_client(&o, &keys, &r);
		assert_int_equal(r, 1);
		memset(buf, 'x', sizeof(buf));
		if (i == 1) {
			f = (struct cfs_frame){.type = CFS_FRAME_ANSWER, .id = 1, .status = 1};
			len = cfs_wire_control(buf, &f, NULL, 0);
		} else if (i == 2) {
			len = get_frame(buf, 1, 4096, 4000, 97);
		}
		assert_true(raw_send(fd, buf, len));
		assert_true(raw_is_closed(fd));
		close(fd);
	}
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	owner_part(p, t, &o);
}

static char log_path[] = "/tmp/cachefs-test.log.XXXXXX";

static void begin_log(void)
{
	static bool moved;
	int fd;

	if (!moved) {
		fd = mkstemp(log_path);
		assert_true(fd >= 0);
		close(fd);
		assert_int_equal(cfs_log_file(log_path), 0);
	}
	moved = true;
	assert_int_equal(truncate(log_path, 0), 0);
	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_INFO);
}

static void end_log(void)
{
	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_ERR);
}

static int remove_log(void **state)
{
	(void)state;
	unlink(log_path);
	return 0;
}

static unsigned lines_with(const char *text)
{
	FILE *f = fopen(log_path, "re");
	char line[512];
	unsigned n = 0;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, text) != NULL;
	fclose(f);
	return n;
}

static void be_refused(struct owner *o)
{
	static const struct cfs_handshake_keys wrong = {.key = {"wrong"}, .n = 1};
	int r, fd = raw_client(o, &wrong, &r);

	assert_int_equal(r, -EACCES);
	assert_true(raw_is_closed(fd));
	close(fd);
}

/* A stranger who connects again and again fills the log's disk. */
static void test_strangers_do_not_fill_the_log(void **state)
{
	struct cfs_peer_stats st;
	struct owner o;
	unsigned i;

	(void)state;
	begin_log();
	owner_open(&o, BLOCK);
	for (i = 0; i < 50; i++)
		be_refused(&o);
	WAIT_FOR((cfs_transport_stats(o.t, NULL, &st), st.errors[CFS_PEER_E_AUTH] == 50));
	assert_in_range(lines_with("peer connection refused"), 1, 5);
	owner_close(&o);
	end_log();
}

/* A member with a wrong key tries again until it is unmounted, and the log tells of it as often. */
static void test_refusals_are_logged_less_and_less(void **state)
{
	struct cfs_transport_conf conf = {.probe_ms = 1}; /* the first pause is 100 ms */
	cfs_deadline_t until = cfs_deadline_in(2000);
	struct owner o;
	unsigned lines;

	(void)state;
	begin_log();
	owner_open_conf(&o, BLOCK, &conf);
	while (!cfs_deadline_passed(until))
		be_refused(&o);
	lines = lines_with("peer connection refused");
	assert_in_range(lines, 2, 9);
	WAIT_FOR(lines_with("no longer refused") > 0);
	be_refused(&o);
	WAIT_FOR(lines_with("peer connection refused") > lines);
	owner_close(&o);
	end_log();
}

/* Half a hello, half a request, then silence: others are served, the handshake has its deadline. */
static void test_owner_survives_silence(void **state)
{
	struct cfs_transport_conf conf = {.connect_timeout_ms = LONG_MS / 10};
	struct cfs_transport *t = asker();
	uint8_t buf[CFS_HANDSHAKE_OUT], dst[4096];
	struct cfs_handshake h;
	struct owner o;
	struct cfs_peer *p;
	size_t len;
	int half, slow, r;

	(void)state;
	owner_open_conf(&o, BLOCK, &conf);
	half = raw_connect(&o);
	assert_int_equal(cfs_handshake_client(&h, CLIENT, SERVER, &keys, buf, &len), 0);
	assert_true(raw_send(half, buf, len / 2));
	slow = raw_client(&o, &keys, &r);
	assert_int_equal(r, 1);
	get_frame(buf, 1, BLOCK, 0, 4096);
	assert_true(raw_send(slow, buf, 40));
	p = peer_at(t, &o.addr, o.addr_len);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	assert_true(raw_is_closed(half));
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	close(half);
	close(slow);
	owner_part(p, t, &o);
}

/* A peer that fails is left out at once and used again as soon as it answers. */
static void test_closed_port_and_return(void **state)
{
	struct cfs_transport_conf conf = {.connect_timeout_ms = LONG_MS, .probe_ms = 20};
	struct cfs_transport_conf serve = {0};
	struct cfs_transport *t = asker_conf(&conf);
	struct sockaddr_in sa = loopback();
	socklen_t len = sizeof(sa);
	uint8_t dst[4096];
	struct cfs_peer *p;
	struct owner o;
	uint64_t began;
	char err[256];
	int fd, n;

	(void)state;
	/* A port that nobody listens on */
	fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(fd, (void *)&sa, len), 0);
	getsockname(fd, (void *)&sa, &len);
	close(fd);
	p = peer_at(t, &sa, len);
	began = cfs_now_ms();
	assert_int_equal(ask(p, NULL, 0, 4096, dst), -ECONNREFUSED);
	n = (int)ask(p, NULL, 0, 4096, dst);
	assert_true(n == -EHOSTDOWN || n == -ECONNREFUSED);
	assert_true(cfs_now_ms() - began < LONG_MS / 4);
	/* It comes back: nobody has to ask for that to be noticed. */
	owner_open(&o, BLOCK);
	cfs_transport_destroy(o.t);
	serve.member = SERVER;
	serve.listen = (struct sockaddr *)&sa;
	serve.listen_len = sizeof(sa);
	serve.ops = &owner_ops;
	serve.ops_arg = &o;
	memcpy(serve.key, keys.key[0], CFS_PEER_KEY_SIZE);
	assert_int_equal(cfs_transport_create(&serve, &o.t, err), 0);
	WAIT_FOR(state_of(p) == CFS_PEER_CLOSED_CIRCUIT);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	/* It leaves in order: what it still gets is answered or told so, then it is left out. */
	cfs_transport_drain(o.t);
	WAIT_FOR((ask(p, &o, 0, 4096, dst), state_of(p) != CFS_PEER_CLOSED_CIRCUIT));
	owner_part(p, t, &o);
}

struct child {
	pid_t pid;
	struct sockaddr_storage addr;
	socklen_t addr_len;
};

/* It may open no more than one connection. */
static void leave_one_descriptor(struct owner *o)
{
	struct rlimit limit;
	int next = dup(o->fd);

	close(next);
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = (rlim_t)next + 1;
	setrlimit(RLIMIT_NOFILE, &limit);
}

/* An owner in a process of its own. */
static void child_open(struct child *c, bool no_pipes)
{
	int fds[2];

	assert_int_equal(pipe(fds), 0);
	c->pid = fork();
	assert_true(c->pid >= 0);
	if (c->pid == 0) {
		struct owner *o = calloc(1, sizeof(*o));

		owner_open(o, BLOCK);
		close(fds[0]);
		if (write(fds[1], &o->addr, sizeof(o->addr)) != sizeof(o->addr))
			_exit(1);
		if (no_pipes)
			leave_one_descriptor(o);
		for (;;)
			pause();
	}
	assert_int_equal(read(fds[0], &c->addr, sizeof(c->addr)), sizeof(c->addr));
	c->addr_len = sizeof(struct sockaddr_in);
	close(fds[0]);
	close(fds[1]);
}

static void child_kill(struct child *c)
{
	kill(c->pid, SIGKILL);
	assert_int_equal(waitpid(c->pid, NULL, 0), c->pid);
}

static void test_owner_killed_in_the_middle(void **state)
{
	enum { N = 32 };
	struct child c;
	struct cfs_transport *t;
	struct cfs_peer *p;
	struct owner o = {.len = BLOCK};
	struct many m[N] = {0};
	unsigned i, failed = 0;
	uint64_t began;
	sem_t done;

	(void)state;
	child_open(&c, false); /* before there are threads */
	t = asker();
	p = peer_at(t, &c.addr, c.addr_len);
	sem_init(&done, 0, 0);
	for (i = 0; i < N; i++) {
		m[i].done = &done;
		assert_int_equal(start_one(p, &m[i], &o, 0, BLOCK, LONG_MS), 0);
	}
	wait_post(&done);
	began = cfs_now_ms();
	child_kill(&c);
	for (i = 1; i < N; i++)
		wait_post(&done);
	assert_true(cfs_now_ms() - began < LONG_MS / 4);
	for (i = 0; i < N; i++) {
		assert_true(m[i].err <= 0);
		failed += m[i].err < 0;
		free(m[i].dst);
	}
	(void)failed; /* on a quick machine all may have arrived before */
	assert_true(ask(p, &o, 0, 4096, (uint8_t *)&m) < 0);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	sem_destroy(&done);
}

/* A frozen owner costs its deadline a few times, then nothing, and returns. */
static void test_frozen_owner(void **state)
{
	struct cfs_transport_conf conf = {.connect_timeout_ms = LONG_MS / 10, .probe_ms = 20};
	struct child c;
	struct cfs_transport *t;
	struct cfs_peer *p;
	struct owner o = {.len = BLOCK};
	uint8_t dst[4096];
	uint64_t began;
	unsigned i;

	(void)state;
	child_open(&c, false);
	t = asker_conf(&conf);
	p = peer_at(t, &c.addr, c.addr_len);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	kill(c.pid, SIGSTOP);
	assert_int_equal(waitpid(c.pid, NULL, WUNTRACED), c.pid);
	for (i = 0; i < 3; i++) {
		began = cfs_now_ms();
		assert_int_equal(ask_within(p, &o, 0, 4096, dst, 100), -ETIMEDOUT);
		assert_in_range(cfs_now_ms() - began, 90, LONG_MS / 4);
	}
	/* A deadline at which this process did not run proves nothing, so further ones may be needed. */
	WAIT_FOR(state_of(p) != CFS_PEER_CLOSED_CIRCUIT ||
		 ask_within(p, &o, 0, 4096, dst, 100) == 4096);
	began = cfs_now_ms();
	for (i = 0; i < 100; i++)
		assert_int_equal(ask_within(p, &o, 0, 4096, dst, 100), -EHOSTDOWN);
	assert_true(cfs_now_ms() - began < LONG_MS / 4); /* half of their deadlines */
	kill(c.pid, SIGCONT);
	WAIT_FOR(ask(p, &o, 0, 4096, dst) == 4096);
	cfs_peer_close(p);
	cfs_transport_destroy(t);
	child_kill(&c);
}

/* As on a path that loses large packets. Otherwise readers wait again after each handshake. */
static void test_peer_that_only_greets(void **state)
{
	struct cfs_transport_conf conf = {.connect_timeout_ms = 300, .probe_ms = 20};
	struct cfs_transport *t = asker_conf(&conf);
	uint8_t dst[4096];
	unsigned i, gets;
	struct cfs_peer *p;
	struct owner o;

	(void)state;
	p = owner_meet(t, &o, BLOCK);
	o.how = NEVER;
	WAIT_FOR(ask_within(p, &o, 0, 4096, dst, 50) == -EHOSTDOWN);
	gets = o.gets;
	while (o.gets < gets + 3) {
		assert_int_equal(ask_within(p, &o, 0, 4096, dst, 50), -EHOSTDOWN);
		usleep(1000);
	}
	o.how = FROM_FILE;
	WAIT_FOR(ask(p, &o, 0, 4096, dst) == 4096);
	for (i = 0; i < o.n_held; i++)
		give(&o, o.held[i]);
	owner_part(p, t, &o);
}

/*
 * An owner fetches and says so, and then its large answers are lost on the way: each read waits for
 * one. Another one waits for its object storage, which is no reason to ask others.
 */
static void test_work_without_an_answer(void **state)
{
	struct cfs_transport_conf conf = {
		.failures = 100, .connect_timeout_ms = 300, .probe_ms = 60000};
	struct cfs_transport *t = asker_conf(&conf);
	uint8_t dst[4096];
	struct cfs_peer *p;
	struct owner o;
	unsigned i;

	(void)state;
	p = owner_meet(t, &o, BLOCK);
	o.how = NEVER;
	o.works = o.cold = true;
	for (i = 1; i <= 3; i++) {
		assert_int_equal(ask_within(p, &o, 0, 4096, dst, 500), -ETIMEDOUT);
		WAIT_FOR(o.gets == 2 * i);
	}
	assert_int_equal(state_of(p), CFS_PEER_CLOSED_CIRCUIT);
	o.cold = false;
	assert_int_equal(ask_within(p, &o, 0, 4096, dst, 500), -ETIMEDOUT);
	WAIT_FOR(state_of(p) == CFS_PEER_OPEN_CIRCUIT);
	for (i = 0; i < o.n_held; i++)
		give(&o, o.held[i]);
	owner_part(p, t, &o);
}

/* A failure long ago of a large request keeps the log from telling of later ones. */
static void test_short_answers_end_a_failure(void **state)
{
	struct cfs_transport_conf conf = {.connect_timeout_ms = 300, .probe_ms = 5};
	struct cfs_transport *t = asker_conf(&conf);
	uint8_t dst[64 << 10];
	struct cfs_peer *p;
	struct owner o;
	unsigned i, k;

	(void)state;
	begin_log();
	p = owner_meet(t, &o, BLOCK);
	for (i = 1; i <= 2; i++) {
		o.how = NEVER;
		WAIT_FOR(ask_within(p, &o, 0, i == 1 ? sizeof(dst) : 4096, dst, 50) == -EHOSTDOWN);
		WAIT_FOR(lines_with("peer does not answer") == i);
		o.cold = true;
		o.how = FROM_FILE;
		WAIT_FOR(ask(p, &o, 0, 4096, dst) == 4096);
		WAIT_FOR(ask(p, &o, 0, 4096, dst) == 4096 && lines_with("peer answers again") == i);
		o.cold = false;
		for (k = 0; k < o.n_held; k++)
			give(&o, o.held[k]);
		o.n_held = 0;
	}
	owner_part(p, t, &o);
	end_log();
}

/* Large answers arrive also when there are no pipes to be had. */
static void test_owner_without_pipes(void **state)
{
	struct child c;
	struct cfs_transport *t;
	struct cfs_peer *p;
	struct owner o; /* has the same bytes as the child's */
	uint8_t *dst = malloc(BLOCK);
	unsigned i;

	(void)state;
	child_open(&c, true);
	owner_open(&o, BLOCK);
	t = asker();
	p = peer_at(t, &c.addr, c.addr_len);
	for (i = 0; i < 4; i++) {
		assert_int_equal(ask(p, &o, i * 1000, BLOCK - 4000, dst), BLOCK - 4000);
		assert_memory_equal(dst, o.data + i * 1000, BLOCK - 4000);
	}
	owner_part(p, t, &o);
	child_kill(&c);
	free(dst);
}

#define OTHER_UID 54321 /* of nobody */

/* Takes all that an ordinary user may have in pipes. */
static unsigned take_pipes(int fds[512])
{
	unsigned n = 0;

	while (n + 2 <= 512 && pipe(fds + n) == 0) {
		n += 2;
		if (fcntl(fds[n - 1], F_SETPIPE_SZ, 1 << 20) < 0 &&
		    fcntl(fds[n - 1], F_GETPIPE_SZ) < 64 << 10)
			break;
	}
	return n;
}

struct pipe_owner {
	struct sockaddr_storage addr;
	_Atomic bool listens, may_give_back, has_given_back;
};

static _Noreturn void serve_without_room_for_pipes(struct pipe_owner *shared)
{
	static struct owner o;
	int fds[512];
	unsigned n, i;

	/* In this order: another user is told of no death. */
	if (setresuid(OTHER_UID, OTHER_UID, OTHER_UID) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		_exit(1);
	n = take_pipes(fds);
	owner_open(&o, BLOCK);
	shared->addr = o.addr;
	shared->listens = true;
	while (!shared->may_give_back)
		usleep(1000);
	for (i = 0; i < n; i++)
		close(fds[i]);
	shared->has_given_back = true;
	for (;;)
		pause();
}

static unsigned pipes_of(pid_t pid)
{
	char path[64], target[64];
	struct dirent *e;
	unsigned n = 0;
	ssize_t len;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	assert_non_null(dir);
	while ((e = readdir(dir))) {
		len = readlinkat(dirfd(dir), e->d_name, target, sizeof(target));
		n += len > 5 && memcmp(target, "pipe:", 5) == 0;
	}
	closedir(dir);
	return n;
}

/* Somebody else of the same user had all the pipes: when he has not, they are used. */
static void test_pipes_return(void **state)
{
	struct pipe_owner *shared;
	struct cfs_transport *t;
	struct cfs_peer *p;
	struct owner o; /* has the same bytes as the child's */
	uint8_t *dst = malloc(BLOCK);
	unsigned before;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip_missing("root is needed to be another user");
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	pid = fork(); /* before there are threads */
	assert_true(pid >= 0);
	if (pid == 0)
		serve_without_room_for_pipes(shared);
	WAIT_FOR(shared->listens);
	owner_open(&o, BLOCK);
	t = asker();
	p = peer_at(t, &shared->addr, sizeof(struct sockaddr_in));
	assert_int_equal(ask(p, &o, 0, BLOCK, dst), BLOCK);
	assert_memory_equal(dst, o.data, BLOCK);
	shared->may_give_back = true;
	WAIT_FOR(shared->has_given_back);
	before = pipes_of(pid);
	WAIT_FOR(ask(p, &o, 0, BLOCK, dst) == BLOCK && pipes_of(pid) > before);
	assert_memory_equal(dst, o.data, BLOCK);
	owner_part(p, t, &o);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	munmap(shared, sizeof(*shared));
	free(dst);
}

/* An owner that waits for its object storage is not left out while it answers others. */
static void test_slow_answer_is_no_failure(void **state)
{
	struct cfs_transport_conf conf = {.failures = 1, .probe_ms = 60000};
	struct cfs_transport *t = asker_conf(&conf);
	struct many m[2] = {0};
	uint8_t dst[4096];
	struct owner o;
	struct cfs_peer *p;
	sem_t done;

	(void)state;
	owner_open(&o, BLOCK);
	sem_init(&done, 0, 0);
	m[0].done = m[1].done = &done;
	p = peer_at(t, &o.addr, o.addr_len);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	o.how = NEVER;
	/* Time enough for others to be answered, on any machine. */
	assert_int_equal(start_one(p, &m[0], &o, 0, 4096, 2000), 0);
	WAIT_FOR(o.n_held == 1);
	o.how = FROM_FILE;
	while (sem_trywait(&done) < 0)
		assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	assert_int_equal(m[0].err, -ETIMEDOUT);
	assert_int_equal(state_of(p), CFS_PEER_CLOSED_CIRCUIT);
	assert_int_equal(ask(p, &o, 0, 4096, dst), 4096);
	/* When nothing at all comes, it is. */
	o.how = NEVER;
	assert_int_equal(start_one(p, &m[1], &o, 0, 4096, 300), 0);
	wait_post(&done);
	assert_int_equal(m[1].err, -ETIMEDOUT);
	assert_int_equal(ask(p, &o, 0, 4096, dst), -EHOSTDOWN);
	WAIT_FOR(o.n_held == 2);
	o.how = FROM_FILE;
	give(&o, o.held[0]);
	give(&o, o.held[1]);
	free(m[0].dst);
	free(m[1].dst);
	owner_part(p, t, &o);
	sem_destroy(&done);
}

static unsigned open_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void announce(void *arg, struct cfs_peer_request *req)
{
	cfs_peer_working(req, soon());
	owner_ops.get(arg, req);
}

static _Atomic bool store_is_gone;

static bool works(void *arg, const struct cfs_peer_request *req, uint64_t since_ms,
		  uint64_t *ret_left_ms)
{
	(void)arg;
	(void)req;
	(void)since_ms;
	(void)ret_left_ms;
	assert_false(store_is_gone);
	return true;
}

static const struct cfs_peer_serve_ops announcing_ops = {.get = announce, .works = works};

/*
 * An answer that is never given does not keep a mount from ending. Its store, which is freed then, is
 * not asked for progress.
 */
static void test_answer_is_owed_at_the_end(void **state)
{
	struct cfs_transport_conf conf = {.destroy_timeout_ms = 100, .ops = &announcing_ops};
	struct cfs_transport *t = asker();
	struct many m = {0};
	uint64_t gone_ms;
	struct owner o;
	struct cfs_peer *p;
	unsigned before;
	sem_t done;

	(void)state;
	before = open_files();
	owner_open_conf(&o, BLOCK, &conf);
	sem_init(&done, 0, 0);
	m.done = &done;
	p = peer_at(t, &o.addr, o.addr_len);
	o.how = NEVER;
	assert_int_equal(start_one(p, &m, &o, 0, 4096, LONG_MS), 0);
	WAIT_FOR(o.n_held == 1);
	assert_int_equal(cfs_transport_destroy(o.t), -ETIMEDOUT);
	store_is_gone = true;
	gone_ms = cfs_now_ms();
	wait_post(&done);
	assert_true(m.err < 0);
	cfs_peer_close(p);
	munmap(o.data, o.len);
	close(o.fd);
	WAIT_FOR(cfs_now_ms() >= gone_ms + 600); /* two progress messages */
	/* It comes after all, and the transport ends with it. */
	cfs_peer_answer(o.held[0], &(struct cfs_peer_answer){.err = -ENOENT, .fd = -1});
	WAIT_FOR(open_files() == before);
	free(m.dst);
	cfs_transport_destroy(t);
	sem_destroy(&done);
}

struct slow_release {
	struct cfs_transport *t;
	sem_t go_on;
	_Atomic bool begun, ended;
	bool in_time; /* it had ended when the transport had */
};

static void release_slowly(void *arg, bool mismatch)
{
	struct slow_release *s = arg;

	(void)mismatch;
	s->begun = true;
	sem_wait(&s->go_on);
	s->ended = true;
}

static void *destroy(void *arg)
{
	struct slow_release *s = arg;

	cfs_transport_destroy(s->t);
	s->in_time = s->ended;
	return NULL;
}

/* The sources of an answer are freed after the transport, which does not use them any more. */
static void test_release_at_the_end(void **state)
{
	struct cfs_transport_conf conf = {.destroy_timeout_ms = 100};
	struct cfs_transport *t = asker();
	struct slow_release slow = {0};
	struct timespec until;
	struct many m = {0};
	struct owner o;
	struct cfs_peer *p;
	pthread_t thread;
	sem_t done;

	(void)state;
	owner_open_conf(&o, BLOCK, &conf);
	sem_init(&done, 0, 0);
	sem_init(&slow.go_on, 0, 0);
	m.done = &done;
	p = peer_at(t, &o.addr, o.addr_len);
	o.how = NEVER;
	assert_int_equal(start_one(p, &m, &o, 0, 4096, LONG_MS), 0);
	WAIT_FOR(o.n_held == 1);
	cfs_peer_answer(o.held[0],
			&(struct cfs_peer_answer){
				.err = -ENOENT, .fd = -1, .release = release_slowly, .arg = &slow});
	WAIT_FOR(slow.begun);
	slow.t = o.t;
	assert_int_equal(pthread_create(&thread, NULL, destroy, &slow), 0);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	assert_int_equal(pthread_timedjoin_np(thread, NULL, &until), ETIMEDOUT);
	sem_post(&slow.go_on);
	pthread_join(thread, NULL);
	assert_true(slow.in_time);
	wait_post(&done);
	cfs_peer_close(p);
	munmap(o.data, o.len);
	close(o.fd);
	free(m.dst);
	cfs_transport_destroy(t);
	sem_destroy(&slow.go_on);
	sem_destroy(&done);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_owner_killed_in_the_middle),
		cmocka_unit_test(test_frozen_owner),
		cmocka_unit_test(test_peer_that_only_greets),
		cmocka_unit_test(test_work_without_an_answer),
		cmocka_unit_test(test_owner_without_pipes),
		cmocka_unit_test(test_pipes_return),
		cmocka_unit_test(test_owner_survives_garbage),
		cmocka_unit_test(test_owner_survives_silence),
		cmocka_unit_test(test_closed_port_and_return),
		cmocka_unit_test(test_slow_answer_is_no_failure),
		cmocka_unit_test(test_answer_is_owed_at_the_end),
		cmocka_unit_test(test_release_at_the_end),
		/* last: they move the log */
		cmocka_unit_test(test_short_answers_end_a_failure),
		cmocka_unit_test(test_strangers_do_not_fill_the_log),
		cmocka_unit_test(test_refusals_are_logged_less_and_less),
	};

	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_ERR);
	return cmocka_run_group_tests(tests, NULL, remove_log);
}
