/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations of several processes on a few names below one directory that is seen at one or
 * more paths (mounts of one volume, or any file system), recorded as history.h says.
 *
 *     drive [--seed N] [--ops N] [--clients N] [--teams N] [--timeout S] --out FILE PATH [PATH...]
 *
 * --clients  processes per path and team. A team works in one arena at a time: about 300 operations,
 *            then all of its processes meet and go to the next one. In between they meet as well,
 *            and one of them looks at all names while nothing else happens.
 * --timeout  seconds after which an operation that has not returned is a failure of its own
 *
 * Exit status: 0 recorded, 1 an operation did not return (it is named), 2 usage, 3 cannot begin, or
 * a process ended before its work did.
 */
#include "history.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RECORD	     512 /* bytes */
#define ARENA_OPS    300
#define MEETING_OPS  30
#define MOST_CLIENTS 64
/* The longest wait for a mount that is away, and between two tries. */
#define ARENA_NS 60000000000U
#define PAUSE_MS 100

struct team {
	pthread_barrier_t meeting;
};

/* Memory that a process shares with the one that waits for it. */
struct diary {
	_Atomic uint64_t begun; /* of the operation that runs, 0: none */
	_Atomic uint64_t count;
	struct op now;
	struct op ops[];
};

struct client {
	const char *root;
	struct team *team;
	struct diary *diary;
	size_t room;
	unsigned number; /* in the team */
	unsigned team_number, teams, team_size;
	uint64_t rng;
	char dir[4096];
	int locks; /* descriptor of the arena's lock file */
	uint32_t arena;
	uint64_t records;
};

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

static uint64_t draw(struct client *c, uint64_t n)
{
	c->rng ^= c->rng << 13;
	c->rng ^= c->rng >> 7;
	c->rng ^= c->rng << 17;
	return (c->rng >> 11) % n;
}

static struct path draw_path(struct client *c)
{
	struct path p = {(int8_t)draw(c, TOP_NAMES), -1};
	if (draw(c, 100) < 35)
		p.sub = (int8_t)draw(c, SUB_NAMES);
	return p;
}

static const char *full(const struct client *c, struct path p, char *buf, size_t size)
{
	int n = snprintf(buf, size, "%s", c->dir);
	if (p.top >= 0)
		n += snprintf(buf + n, size - (size_t)n, "/n%d", p.top);
	if (p.sub >= 0)
		snprintf(buf + n, size - (size_t)n, "/x%d", p.sub);
	return buf;
}

/*
 * The identity of an inode: its number, and where there is a time of birth also its handle, because
 * such file systems use numbers again.
 */
static int identity(int dir, const char *path, int flags, struct op *op)
{
	struct {
		struct file_handle head;
		unsigned char bytes[MAX_HANDLE_SZ];
	} handle = {.head = {.handle_bytes = MAX_HANDLE_SZ}};
	struct statx x;
	int mount, fd;
	if (statx(dir, path, flags, STATX_TYPE | STATX_INO | STATX_BTIME, &x) < 0)
		return -errno;
	if ((x.stx_mask & STATX_BTIME) && !(flags & AT_EMPTY_PATH)) {
		int r;
		fd = openat(dir, path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
		if (fd < 0)
			return -errno;
		r = identity(fd, "", AT_EMPTY_PATH, op);
		close(fd);
		return r;
	}
	op->ino = x.stx_ino;
	if ((x.stx_mask & STATX_BTIME) &&
	    name_to_handle_at(dir, "", &handle.head, &mount, AT_EMPTY_PATH) == 0)
		for (unsigned i = 0; i < handle.head.handle_bytes; i++)
			op->ino = (op->ino ^ handle.bytes[i]) * 1099511628211ULL;
	op->ino &= (1ULL << 62) - 1;
	op->node = S_ISDIR(x.stx_mode) ? KIND_DIR : S_ISLNK(x.stx_mode) ? KIND_LINK : KIND_FILE;
	return 0;
}

static int write_record(int fd, uint64_t value, bool sync)
{
	uint64_t words[RECORD / 8];
	for (size_t i = 0; i < RECORD / 8; i++)
		words[i] = value;
	ssize_t n = pwrite(fd, words, RECORD, 0);
	if (n != RECORD)
		return n < 0 ? -errno : -EIO;
	return sync && fsync(fd) < 0 ? -errno : 0;
}

static int read_record(int fd, uint64_t *value)
{
	uint64_t words[RECORD / 8 + 1];
	ssize_t n = pread(fd, words, sizeof(words), 0);
	if (n < 0)
		return -errno;
	*value = n == 0 ? 0 : n == RECORD ? words[0] : TORN;
	for (size_t i = 0; n && i < RECORD / 8; i++)
		if (words[i] != words[0])
			*value = TORN;
	return 0;
}

/* Opens, uses and closes a file. With an error its inode stays in the record only if the use failed. */
static int with_file(struct client *c, const char *path, int flags, struct op *op)
{
	int fd = open(path, flags | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	int r = op->kind == OP_GET ? read_record(fd, &op->value) : 0;
	/* A directory that another mount has removed has no inode any more, docs/posix.md. */
	if (r != -EISDIR && identity(fd, "", AT_EMPTY_PATH, op) < 0)
		r = -EIO; /* opened, and not known under which number */
	if (!r && (op->kind == OP_PUT || op->kind == OP_PUT_CREATE))
		r = write_record(fd, op->value, draw(c, 4) == 0);
	if (close(fd) < 0 && !r)
		r = -errno;
	return r;
}

static int perform(struct client *c, struct op *op)
{
	char a[4200], b[4200], text[64];
	full(c, op->a, a, sizeof(a));
	full(c, op->b, b, sizeof(b));
	ssize_t n;
	int r = 0;
	switch (op->kind) {
	case OP_CREATE:
		return with_file(c, a, O_CREAT | O_EXCL | O_WRONLY, op);
	case OP_PUT:
		return with_file(c, a, O_WRONLY, op);
	case OP_PUT_CREATE:
		return with_file(c, a, O_WRONLY | O_CREAT, op);
	case OP_GET:
		return with_file(c, a, O_RDONLY, op);
	case OP_STAT:
		return identity(AT_FDCWD, a, AT_SYMLINK_NOFOLLOW, op);
	case OP_LINK:
		r = link(a, b);
		break;
	case OP_SYMLINK:
		snprintf(text, sizeof(text), "nothing-%" PRIu64, op->value);
		r = symlink(text, a);
		break;
	case OP_READLINK:
		n = readlink(a, text, sizeof(text) - 1);
		if (n < 0)
			return -errno;
		text[n] = 0;
		op->value = strncmp(text, "nothing-", 8) ? TORN : strtoull(text + 8, NULL, 10);
		return 0;
	case OP_MKDIR:
		r = mkdir(a, 0755);
		break;
	case OP_UNLINK:
		r = unlink(a);
		break;
	case OP_RMDIR:
		r = rmdir(a);
		break;
	case OP_RENAME:
		r = rename(a, b);
		break;
	case OP_RENAME_NEW:
		r = renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_NOREPLACE);
		break;
	case OP_EXCHANGE:
		r = renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
		break;
	case OP_LOCK:
	case OP_UNLOCK:
		if (op->value == LOCK_FLOCK) {
			r = flock(c->locks, op->kind == OP_LOCK ? LOCK_EX : LOCK_UN);
		} else {
			struct flock f = {.l_type = op->kind == OP_LOCK ? F_WRLCK : F_UNLCK};
			r = fcntl(c->locks, F_SETLKW, &f);
		}
		break;
	default:
		return -EINVAL;
	}
	return r < 0 ? -errno : 0;
}

static int record(struct client *c, struct op op)
{
	struct diary *d = c->diary;
	op.arena = c->arena;
	op.client = c->number;
	op.invoked = now_ns();
	d->now = op;
	atomic_store(&d->begun, op.invoked);
	int r = perform(c, &op);
	op.returned = now_ns();
	op.error = -r;
	atomic_store(&d->begun, 0);
	size_t n = atomic_load(&d->count);
	if (n < c->room) {
		d->ops[n] = op;
		atomic_store(&d->count, n + 1);
	}
	return r;
}

static void lock_file(struct client *c)
{
	char path[4200];
	if (c->locks >= 0)
		close(c->locks);
	snprintf(path, sizeof(path), "%s.lock", c->dir);
	c->locks = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
}

static uint64_t new_record(struct client *c)
{
	return ++c->records * MOST_CLIENTS + c->number;
}

/* A record is read and another written while a lock is held. */
static void locked(struct client *c, struct path p)
{
	uint64_t class = draw(c, 2);
	struct op op = {.kind = OP_LOCK, .value = class, .a = {-1, -1}, .b = {-1, -1}};
	if (c->locks < 0)
		lock_file(c);
	if (record(c, op) < 0) {
		lock_file(c); /* it may be of a mount that is gone */
		return;
	}
	record(c, (struct op){.kind = OP_GET, .a = p, .b = {-1, -1}});
	record(c, (struct op){.kind = OP_PUT, .a = p, .b = {-1, -1}, .value = new_record(c)});
	op.kind = OP_UNLOCK;
	if (record(c, op) < 0)
		lock_file(c);
}

static void one(struct client *c)
{
	static const struct {
		enum op_kind kind;
		unsigned weight;
	} mix[] = {
		{OP_CREATE, 12},    {OP_PUT, 8},      {OP_PUT_CREATE, 5}, {OP_GET, 12},
		{OP_STAT, 10},	    {OP_LINK, 8},     {OP_SYMLINK, 3},	  {OP_READLINK, 3},
		{OP_MKDIR, 9},	    {OP_UNLINK, 9},   {OP_RMDIR, 4},	  {OP_RENAME, 12},
		{OP_RENAME_NEW, 3}, {OP_EXCHANGE, 4}, {OP_LOCK, 3},
	};
	unsigned total = 0, i = 0;
	for (size_t k = 0; k < sizeof(mix) / sizeof(*mix); k++)
		total += mix[k].weight;
	unsigned at = (unsigned)draw(c, total);
	while (at >= mix[i].weight)
		at -= mix[i++].weight;
	struct op op = {.kind = mix[i].kind, .a = draw_path(c), .b = {-1, -1}};
	if (op.kind == OP_LOCK) {
		locked(c, op.a);
		return;
	}
	if (op.kind == OP_LINK || op.kind == OP_RENAME || op.kind == OP_RENAME_NEW ||
	    op.kind == OP_EXCHANGE)
		op.b = draw_path(c);
	if (op.kind == OP_PUT || op.kind == OP_PUT_CREATE || op.kind == OP_SYMLINK)
		op.value = new_record(c);
	record(c, op);
}

/* One looks at everything while the others wait. */
static void look(struct client *c, unsigned who)
{
	pthread_barrier_wait(&c->team->meeting);
	if (c->number == who)
		for (int8_t t = 0; t < TOP_NAMES; t++)
			for (int8_t s = -1; s < SUB_NAMES; s++)
				if (record(c, (struct op){.kind = OP_STAT,
							  .a = {t, s},
							  .b = {-1, -1}}) == -ENOTDIR)
					break;
	pthread_barrier_wait(&c->team->meeting);
}

/* A mount may be away for a while: the directory is asked for until it is there. */
static void make_arena(const struct client *c)
{
	uint64_t until = now_ns() + ARENA_NS;
	while (mkdir(c->dir, 0755) < 0 && errno != EEXIST) {
		if (now_ns() > until) {
			perror(c->dir);
			_exit(1);
		}
		poll(NULL, 0, PAUSE_MS);
	}
}

static void work(struct client *c, uint64_t ops)
{
	uint64_t arenas = ops / ((uint64_t)ARENA_OPS * c->teams);
	c->locks = -1;
	for (uint64_t i = 0; i <= arenas; i++) {
		c->arena = (uint32_t)(i * c->teams + c->team_number);
		snprintf(c->dir, sizeof(c->dir), "%s/a%u", c->root, c->arena);
		if (c->number == 0)
			make_arena(c);
		pthread_barrier_wait(&c->team->meeting);
		lock_file(c);
		for (unsigned m = 0; m < ARENA_OPS / MEETING_OPS; m++) {
			for (unsigned k = 0; k < MEETING_OPS / c->team_size + 1; k++)
				one(c);
			look(c, m % c->team_size);
		}
	}
}

/*
 * Whether all have ended. One that ended without its work leaves the others at their meeting:
 * *ret_failed is then set.
 */
static bool ended(pid_t *pids, unsigned n, bool *ret_failed)
{
	bool all = true;
	int how;
	for (unsigned i = 0; i < n; i++) {
		if (pids[i] && waitpid(pids[i], &how, WNOHANG) == pids[i]) {
			pids[i] = 0;
			*ret_failed |= how != 0;
		}
		all &= !pids[i];
	}
	return all;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"seed", 1, NULL, 's'},
						{"ops", 1, NULL, 'n'},
						{"clients", 1, NULL, 'c'},
						{"teams", 1, NULL, 't'},
						{"timeout", 1, NULL, 'w'},
						{"out", 1, NULL, 'o'},
						{0}};
	static const struct timespec look_again = {.tv_sec = 1}; /* at the time of operations */
	uint64_t seed = now_ns(), ops = 10000, timeout = 90;
	unsigned per_path = 2, teams = 2;
	const char *out = NULL;
	int o, status = 0;
	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 's':
			seed = strtoull(optarg, NULL, 10);
			break;
		case 'n':
			ops = strtoull(optarg, NULL, 10);
			break;
		case 'c':
			per_path = (unsigned)strtoul(optarg, NULL, 10);
			break;
		case 't':
			teams = (unsigned)strtoul(optarg, NULL, 10);
			break;
		case 'w':
			timeout = strtoull(optarg, NULL, 10);
			break;
		case 'o':
			out = optarg;
			break;
		default:
			return 2;
		}
	}
	unsigned paths = (unsigned)(argc - optind), size = paths * per_path;
	if (!out || !paths || !per_path || !teams || size * teams > MOST_CLIENTS) {
		fputs("usage: drive [--seed N] [--ops N] [--clients N] [--teams N] [--timeout S] "
		      "--out FILE PATH...\n",
		      stderr);
		return 2;
	}
	printf("seed=%" PRIu64 "\n", seed);
	fflush(stdout);
	struct client clients[MOST_CLIENTS];
	pid_t pids[MOST_CLIENTS];
	memset(clients, 0, sizeof(clients));
	unsigned n = 0;
	for (unsigned t = 0; t < teams; t++) {
		struct team *team = mmap(NULL, sizeof(*team), PROT_READ | PROT_WRITE,
					 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		pthread_barrierattr_t shared;
		if (team == MAP_FAILED)
			return 3;
		pthread_barrierattr_init(&shared);
		pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
		pthread_barrier_init(&team->meeting, &shared, size);
		for (unsigned i = 0; i < size; i++, n++) {
			struct client *c = &clients[n];
			c->root = argv[optind + (int)(i % paths)];
			c->team = team;
			c->number = i;
			c->team_number = t;
			c->teams = teams;
			c->team_size = size;
			c->rng = (seed + 1) * 0x9E3779B97F4A7C15ULL +
				 (n + 1) * 0xD1B54A32D192ED03ULL;
			c->rng |= 1;
			c->room = ops / teams * 3 / size + 2000 + 60 * (ops / ARENA_OPS);
			c->diary = mmap(NULL, sizeof(*c->diary) + c->room * sizeof(struct op),
					PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
			if (c->diary == MAP_FAILED)
				return 3;
		}
	}
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, NULL);
	for (unsigned i = 0; i < n; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			return 3;
		if (pids[i] == 0) {
			work(&clients[i], ops);
			_exit(0);
		}
	}
	bool failed = false;
	while (!ended(pids, n, &failed) && !failed && !status) {
		sigtimedwait(&child, NULL, &look_again);
		for (unsigned i = 0; i < n; i++) {
			uint64_t begun = atomic_load(&clients[i].diary->begun);
			if (!begun || begun + timeout * 1000000000U > now_ns())
				continue;
			printf("does not return for %" PRIu64 " s, at %s: ", timeout,
			       clients[i].root);
			op_print(stdout, &clients[i].diary->now);
			status = 1;
		}
	}
	for (unsigned i = 0; i < n; i++)
		if (pids[i])
			kill(pids[i], SIGKILL);
	FILE *f = fopen(out, "w");
	if (!f) {
		perror(out);
		return 3;
	}
	uint64_t done = 0;
	for (unsigned i = 0; i < n; i++) {
		uint64_t count = atomic_load(&clients[i].diary->count);
		for (uint64_t k = 0; k < count; k++)
			op_print(f, &clients[i].diary->ops[k]);
		done += count;
	}
	if (fclose(f)) {
		perror(out);
		return 3;
	}
	printf("operations=%" PRIu64 "\n", done);
	return failed ? 3 : status;
}
