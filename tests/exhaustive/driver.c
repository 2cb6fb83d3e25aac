/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs sequences of requests in processes that die or meet failures at a given call, and shows what
 * the next process finds. It knows no right and wrong: explore.py does.
 *
 *	crashpoint URL DIR BUCKET|- CACHE|- WRITEBACK CLOSE REPLICATED|-
 *
 * DIR: below it are all local files of the volume; BUCKET: of file storage; CACHE: with writeback; CLOSE: of
 * the mount option, stored or committing; REPLICATED: the database file, whose replica is in the bucket as with
 * --replicate=sync. A line of the input is a
 * command, and its answer ends with the line "end":
 *
 *	run FATE AT PRELUDE REQUEST;...	from request PRELUDE on, call AT has the fate: "none";
 *		"worker", "both": the process dies before it, and is followed by one that goes on
 *		with the mount, or by none; "worker-after", "both-after": after it; "fail", "cut";
 *		"lost", "lost-after": as both, and no mount looks
 *	look	what a mount that comes later sees
 *	trace	the calls of the last run
 *
 * Answers: "calls N MET", "grouped COMMITS", "died REQUEST", "answer REQUEST NUMBER", "mark REQUEST CALLS" (calls made
 * until it was answered), "hang WHO", "failed WHO STATUS", lines of dump.h after "tree ", and
 * "closed NUMBER". The unmount counts as the last request.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "calls.h"
#include "data/data-internal.h"
#include "dump.h"
#include "mount.h"
#include "requests.h"
#include "threads.h"

#define LINE_MAX_LEN 8192
#define DEADLINE_S   60

struct scene {
	struct calls calls;
	struct progress progress;
	uint32_t calls_at[REQUESTS_MAX]; /* made when request i was answered */
	uint64_t grouped;		 /* commits that shared a transaction */
};

static struct scene *scene;
static struct mount_conf conf;
static const char *bucket_dir;

static struct sequence {
	char *request[REQUESTS_MAX];
	uint32_t n, prelude;
} seq;

/* Background work of a request ends before the next one begins, so that runs are alike. */
static void settle(void)
{
	threads_settle(&scene->calls.n, cfs_deadline_in(DEADLINE_S * 1000));
}

/* ---- what was promised, in the log of tests/system/recorder.c ---- */

static void mark(uint32_t i)
{
	/* struct record of recorder.c: magic, kind, two numbers, three lengths, process. */
	struct {
		uint32_t magic, kind;
		uint64_t ino, off;
		uint32_t path_len, to_len, data_len, pid;
	} r = {.magic = 0x52454331, .kind = 100, .pid = (uint32_t)getpid()};
	const char *log = getenv("RECORD_LOG");
	char line[128];
	int fd, n;

	if (!log)
		return;
	fd = open(log, O_WRONLY | O_APPEND | O_CLOEXEC);
	n = snprintf(line + sizeof(r), sizeof(line) - sizeof(r), "{\"answered\": %u}", i);
	r.data_len = (uint32_t)n;
	memcpy(line, &r, sizeof(r));
	if (fd < 0 || write(fd, line, sizeof(r) + (size_t)n) < 0)
		perror(log);
	close(fd);
}

/* ---- processes ---- */

static void close_volume(struct mount *m)
{
	struct progress *p = &scene->progress;

	atomic_store(&p->begun, seq.n + 1);
	scene->grouped = atomic_load(&m->data->grouped_commits);
	p->answer[seq.n] = mount_close(m);
	mark(seq.n);
	atomic_store(&scene->calls.armed, false);
	atomic_store(&p->done, seq.n + 1);
	scene->calls_at[seq.n] = atomic_load(&scene->calls.n);
}

static void run_requests(struct mount *m, uint32_t first, bool again, bool armed)
{
	uint32_t i;

	for (i = first; i < seq.n; i++, again = false) {
		if (i == seq.prelude && armed)
			atomic_store(&scene->calls.armed, true);
		request_run(m, conf.handoff, &scene->progress, i, seq.request[i], again, settle);
		mark(i);
		settle();
		scene->calls_at[i] = atomic_load(&scene->calls.n);
	}
	if (seq.prelude >= seq.n && armed)
		atomic_store(&scene->calls.armed, true);
}

static void worker(void)
{
	struct mount m;

	mount_open(&conf, false, &m);
	settle();
	run_requests(&m, 0, false, true);
	close_volume(&m);
}

/* As the standby does: the kernel does not know the handle of a request without an answer. */
static void undo_open(uint32_t i)
{
	struct cfs_handoff_request *r;
	uint32_t pos = 0;

	while ((r = cfs_handoff_next_request(conf.handoff, &pos)) != NULL)
		if (atomic_load(&r->unique) == request_unique(i) && atomic_load(&r->fh))
			cfs_handoff_released(conf.handoff, atomic_load(&r->fh));
}

static void successor(void)
{
	struct progress *p = &scene->progress;
	uint32_t done = atomic_load(&p->done);
	struct mount m;

	undo_open(done);
	mount_open(&conf, true, &m);
	settle();
	run_requests(&m, done, atomic_load(&p->begun) > done, false);
	close_volume(&m);
}

static void looker(void)
{
	struct mount_conf own = conf;
	struct mount m;
	FILE *out = fdopen(1, "w");
	char *text = NULL, *line, *rest;
	size_t len;
	FILE *mem = open_memstream(&text, &len);

	own.handoff = NULL;
	own.replicated = NULL;
	own.bucket[0] = own.bucket[1] = -1;
	mount_open(&own, false, &m);
	settle();
	dump_tree(&m, mem);
	fclose(mem);
	for (rest = text; (line = strsep(&rest, "\n")) != NULL && *line;)
		fprintf(out, "tree %s\n", line);
	fprintf(out, "closed %d\n", mount_close(&m));
	fflush(out);
}

/* True: it ended by itself, or died as was its fate. */
static bool run_process(const char *who, void (*body)(void), bool may_die)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		alarm(DEADLINE_S);
		body();
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0) {
		perror("crashpoint");
		exit(2);
	}
	atomic_store(&scene->calls.armed, false);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return true;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && may_die)
		return true;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
		printf("hang %s\n", who);
	else
		printf("failed %s %d\n", who, status);
	return false;
}

/* ---- commands ---- */

static enum fate fate_of(const char *name)
{
	if (!strcmp(name, "none"))
		return FATE_NONE;
	if (!strcmp(name, "fail"))
		return FATE_FAIL;
	if (!strcmp(name, "cut"))
		return FATE_CUT;
	return strstr(name, "-after") ? FATE_AFTER : FATE_DIE;
}

static void open_supervisor(void)
{
	int i;

	if (cfs_handoff_create(&conf.handoff) < 0) {
		fprintf(stderr, "crashpoint: no handoff state\n");
		exit(2);
	}
	for (i = 0; i < 2 && strcmp(bucket_dir, "-") != 0; i++)
		conf.bucket[i] = open(bucket_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static void close_supervisor(void)
{
	int i;

	cfs_handoff_close(conf.handoff);
	conf.handoff = NULL;
	for (i = 0; i < 2; i++) {
		close(conf.bucket[i]);
		conf.bucket[i] = -1;
	}
}

static void tell_answers(void)
{
	const struct progress *p = &scene->progress;
	uint32_t i;

	for (i = 0; i < p->done; i++) {
		printf("answer %u %d\n", i, p->answer[i]);
		printf("mark %u %u\n", i, scene->calls_at[i]);
	}
}

static void run(const char *fate, uint32_t at)
{
	bool dies, died, ok;

	memset(scene, 0, sizeof(*scene));
	scene->calls.fate = fate_of(fate);
	scene->calls.at = at;
	open_supervisor();
	dies = scene->calls.fate == FATE_DIE || scene->calls.fate == FATE_AFTER;
	ok = run_process("worker", worker, dies);
	died = dies && scene->calls.met;
	printf("calls %u %d\n", scene->calls.n, scene->calls.met);
	printf("grouped %llu\n", (unsigned long long)scene->grouped);
	if (died)
		printf("died %u\n", scene->progress.done);
	if (ok && died && !strncmp(fate, "worker", 6))
		ok = run_process("successor", successor, false);
	tell_answers();
	close_supervisor();
	if (ok && (!died || strncmp(fate, "lost", 4) != 0))
		run_process("looker", looker, false);
}

static void trace(void)
{
	uint32_t i;

	for (i = 0; i < scene->calls.n && i < CALLS_MAX; i++)
		printf("call %u %s\n", i + 1, scene->calls.name[i]);
}

static void parse(char *text)
{
	seq.n = 0;
	while (text && *text && seq.n < REQUESTS_MAX - 1)
		seq.request[seq.n++] = strsep(&text, ";\n");
	if (seq.n && !*seq.request[seq.n - 1])
		seq.n--;
}

int main(int argc, char **argv)
{
	char line[LINE_MAX_LEN], fate[16];
	unsigned at;
	int used;

	if (argc != 8) {
		fprintf(stderr, "usage: crashpoint URL DIR BUCKET|- CACHE|- WRITEBACK CLOSE "
				"REPLICATED|-\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	/* Of thousands of short processes: no large pages to be cleared, short pauses. */
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
	cfs_log_init(CFS_LOG_STDERR, CFS_LOG_ERR);
	scene = mmap(NULL, sizeof(*scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	if (scene == MAP_FAILED)
		return 2;
	conf = (struct mount_conf){
		.url = argv[1],
		.cache_dir = strcmp(argv[4], "-") ? argv[4] : NULL,
		.writeback = atoi(argv[5]),
		.commit_later = !strcmp(argv[6], "committing"),
		.replicated = strcmp(argv[7], "-") ? argv[7] : NULL,
		.bucket = {-1, -1},
	};
	bucket_dir = argv[3];
	calls_watch(&scene->calls, argv[2]);
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "run %15s %u %u %n", fate, &at, &seq.prelude, &used) == 3) {
			parse(line + used);
			run(fate, at);
		} else if (!strncmp(line, "look", 4)) {
			run_process("looker", looker, false);
		} else if (!strncmp(line, "trace", 5)) {
			trace();
		}
		puts("end");
		fflush(stdout);
	}
	return 0;
}
