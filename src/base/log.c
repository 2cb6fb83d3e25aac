/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "bytes.h"
#include "cleanup.h"
#include "clock.h"
#include "log.h"
#include "logring.h"
#include "utf8.h"

#define TEXT_MAX 2048

struct target {
	enum cfs_log_sink sink;
	int fd;	      /* of the file, -1: there is none */
	bool journal; /* stderr is the journal: wants "<n>" */
};

static const struct {
	enum cfs_log_level level;
	const char *name;
} levels[] = {
	{CFS_LOG_ERR, "error"},
	{CFS_LOG_WARN, "warning"},
	{CFS_LOG_INFO, "info"},
	{CFS_LOG_DEBUG, "debug"},
};

static _Atomic int max_level = CFS_LOG_INFO;

/* Protects what follows. A leaf: nothing is called under it, lines are written outside. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct target target = {.fd = -1};
static char *file_path; /* NULL: none; set once */
static char last_text[TEXT_MAX];
static enum cfs_log_level last_level;
static uint64_t last_ms; /* when last_text was written; 0: nothing to fold with */
static unsigned repeats; /* of last_text since */

/* sd-daemon(3): JOURNAL_STREAM names the device and inode of the stream that leads to the journal.
 */
static bool stderr_is_journal(void)
{
	const char *env = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	return env && sscanf(env, "%llu:%llu", &dev, &ino) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
	       st.st_dev == dev && st.st_ino == ino;
}

void cfs_log_init(enum cfs_log_sink sink, enum cfs_log_level max)
{
	struct target t = {.sink = sink, .journal = stderr_is_journal(), .fd = target.fd};

	cfs_log_flush();
	if (sink == CFS_LOG_SYSLOG)
		openlog("cachefs", LOG_PID, LOG_DAEMON);
	pthread_mutex_lock(&lock);
	target = t;
	pthread_mutex_unlock(&lock);
	atomic_store_explicit(&max_level, (int)max, memory_order_relaxed);
}

int cfs_log_level_parse(const char *name, enum cfs_log_level *ret)
{
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(levels); i++) {
		if (strcmp(levels[i].name, name) == 0) {
			*ret = levels[i].level;
			return 0;
		}
	}
	return -EINVAL;
}

static const char *level_name(enum cfs_log_level level)
{
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(levels); i++)
		if (levels[i].level == level)
			return levels[i].name;
	return "notice";
}

bool cfs_log_enabled(enum cfs_log_level level)
{
	return (int)level <= atomic_load_explicit(&max_level, memory_order_relaxed);
}

static int open_file(const char *path)
{
	int fd =
		open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0640);

	return fd < 0 ? -errno : fd;
}

int cfs_log_file(const char *path)
{
	char *copy = strdup(path);
	int fd = copy ? open_file(path) : -ENOMEM;

	if (fd < 0) {
		free(copy);
		return fd;
	}
	cfs_log_flush();
	pthread_mutex_lock(&lock);
	file_path = copy;
	target.fd = fd;
	pthread_mutex_unlock(&lock);
	return 0;
}

/* logrotate(8) has moved it away. The number stays, which others write to at the same time. */
static void follow_file(int fd)
{
	struct stat there, ours;
	int next;

	if (fstat(fd, &ours) < 0 || (stat(file_path, &there) == 0 && there.st_ino == ours.st_ino &&
				     there.st_dev == ours.st_dev))
		return;
	next = open_file(file_path);
	if (next < 0)
		return;
	dup3(next, fd, O_CLOEXEC);
	close(next);
}

/* "2026-11-23T01:02:03.456+0100 cachefs[PID] level: text" */
static int print_line(char *line, size_t size, enum cfs_log_level level, const char *text)
{
	struct timespec now = cfs_wall();
	char day[32], zone[8];
	struct tm tm;

	localtime_r(&now.tv_sec, &tm);
	strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &tm);
	strftime(zone, sizeof(zone), "%z", &tm);
	return snprintf(line, size, "%s.%03ld%s cachefs[%d] %s: %s\n", day, now.tv_nsec / 1000000,
			zone, (int)getpid(), level_name(level), text);
}

static void put(struct target t, enum cfs_log_level level, const char *text)
{
	char line[TEXT_MAX + 128];
	int n = print_line(line, sizeof(line), level, text);

	if (t.fd >= 0) {
		follow_file(t.fd);
		if (write(t.fd, line, (size_t)n) == n)
			t.sink = CFS_LOG_FILE;
	}
	line[n - 1] = '\0';
	cfs_logring_add(line);
	if (t.sink == CFS_LOG_FILE)
		return;
	if (t.sink == CFS_LOG_SYSLOG) {
		syslog((int)level, "%s", text);
		return;
	}
	if (t.journal)
		n = snprintf(line, sizeof(line), "<%d>%s\n", (int)level, text);
	else
		n = snprintf(line, sizeof(line), "cachefs: %s: %s\n", level_name(level), text);
	/*
	 * A single write keeps lines of several processes apart. A failure cannot be reported.
	 */
	if (write(STDERR_FILENO, line, (size_t)n) < 0)
		return;
}

static void put_repeats(struct target t, enum cfs_log_level level, unsigned n)
{
	char text[64];

	if (!n)
		return;
	snprintf(text, sizeof(text), "last message repeated %u time%s", n, n == 1 ? "" : "s");
	put(t, level, text);
}

void cfs_log_flush(void)
{
	enum cfs_log_level level;
	struct target t;
	unsigned n;
	int saved = errno;

	pthread_mutex_lock(&lock);
	t = target;
	level = last_level;
	n = repeats;
	repeats = 0;
	last_ms = 0;
	pthread_mutex_unlock(&lock);
	put_repeats(t, level, n);
	errno = saved;
}

/* True when the text was only counted. Otherwise *ret_repeats of *ret_level are due before it. */
static bool fold(enum cfs_log_level level, const char *text, struct target *ret_target,
		 enum cfs_log_level *ret_level, unsigned *ret_repeats)
{
	uint64_t now = cfs_now_ms();
	bool same;
	CFS_LOCK_GUARD(&lock);

	same = last_ms && now - last_ms < CFS_LOG_FOLD_MS && level == last_level &&
	       strcmp(text, last_text) == 0;
	if (same) {
		repeats++;
	} else {
		*ret_target = target;
		*ret_level = last_level;
		*ret_repeats = repeats;
		repeats = 0;
		last_level = level;
		last_ms = now;
		memcpy(last_text, text, strlen(text) + 1);
	}
	return same;
}

void cfs_log(enum cfs_log_level level, const char *fmt, ...)
{
	enum cfs_log_level due_level;
	char raw[TEXT_MAX], text[TEXT_MAX];
	int saved = errno;
	struct target t;
	va_list ap;
	unsigned due;

	if (!cfs_log_enabled(level))
		return;
	va_start(ap, fmt);
	if (vsnprintf(raw, sizeof(raw), fmt, ap) < 0)
		raw[0] = 0;
	va_end(ap);
	/* File names reach the log: one of them must not be able to forge a line. */
	cfs_printable(raw, text, sizeof(text));
	if (!fold(level, text, &t, &due_level, &due)) {
		put_repeats(t, due_level, due);
		put(t, level, text);
	}
	errno = saved;
}

const char *cfs_errname(int err)
{
	const char *name = strerrorname_np(err < 0 && err != INT32_MIN ? -err : err);

	return name ? name : "EUNKNOWN";
}

int cfs_fail(char err[256], int r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(err, 256, fmt, ap);
	va_end(ap);
	return r;
}
