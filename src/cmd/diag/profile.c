/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the callers and operations of a mount from the lines of its .accesslog. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cmd/access/admin.h"
#include "cmd/access/cmd.h"
#include "cmd/access/control.h"
#include "cmd/access/holders.h"
#include "cmd/access/live.h"
#include "cmd/access/silent.h"

/* Number of rows that are counted one by one. All further callers share one more row. */
#define ROWS_MAX   4096
#define SLOTS	   (2 * ROWS_MAX)
#define OTHERS	   "others"
#define LINE_SIZE  1100
#define TABLE_ROWS 50
#define STATS_MAX  (1u << 20)

enum { BY_ALL, BY_KIND, BY_UID, BY_PID };
static const char *const by_names[] = {"all", "kind", "uid", "pid", NULL};

struct profile_opts {
	bool json;
	int by;
	uint64_t interval_ms;
	int64_t count;
};

#define OPTIONS struct profile_opts
static const struct cfs_opt profile_table[] = {
	OPT_CHOICE("by", by, by_names, "all|kind|uid|pid",
		   "group rows by the kind of operation, the user, the process, or all three",
		   .def = "all"),
	OPT_DURATION("interval", interval_ms, "TIME", "time between two refreshes of the table",
		     .def = "2", .min = 100, .max = 86400000),
	OPT_INT("count", count, "N", "intervals, 0: until interrupted", .def = "0", .min = 0,
		.max = INT64_MAX),
	OPT_FLAG("json", json, "print one JSON object at the end"),
	{0},
};

struct row {
	char kind[24], comm[24];
	unsigned uid;
	int pid;
	uint64_t calls, errors;
	double seconds, longest;
};

struct profile {
	const struct profile_opts *o;
	const char *path;
	const char *point;
	struct live_reader reader;
	pid_t asker; /* the last one; 0: none */
	bool heard;  /* since the last interval */
	uint64_t start_ms, lost;
	char line[LINE_SIZE];
	size_t line_len;
	size_t n;
	struct row rows[ROWS_MAX + 1]; /* the last one: OTHERS */
	uint16_t slots[SLOTS];	       /* index + 1 of a row, 0: free */
};

static bool is_same(const struct row *a, const struct row *b)
{
	return a->uid == b->uid && a->pid == b->pid && !strcmp(a->kind, b->kind);
}

static uint32_t hash(const struct row *r)
{
	uint32_t h = 2166136261u ^ r->uid * 2654435761u ^ (uint32_t)r->pid * 40503u;
	const char *c;

	for (c = r->kind; *c; c++)
		h = (h ^ (unsigned char)*c) * 16777619u;
	return h;
}

static struct row *find_row(struct profile *p, const struct row *key)
{
	uint32_t slot = hash(key) % SLOTS;
	struct row *row;
	char pid[16];

	for (; p->slots[slot]; slot = (slot + 1) % SLOTS) {
		row = &p->rows[p->slots[slot] - 1];
		if (is_same(row, key))
			return row;
	}
	if (p->n == ROWS_MAX) {
		row = &p->rows[ROWS_MAX];
		snprintf(row->kind, sizeof(row->kind), OTHERS);
		return row;
	}
	row = &p->rows[p->n++];
	*row = *key;
	if (row->pid > 0) {
		snprintf(pid, sizeof(pid), "%d", (int)row->pid);
		holders_name(pid, row->comm, sizeof(row->comm));
	}
	p->slots[slot] = (uint16_t)p->n;
	return row;
}

/*
 * DATE TIME [uid:U,gid:G,pid:P] KIND (ARGUMENTS): RESULT <SECONDS>; arguments are arbitrary text.
 */
static void take_line(struct profile *p, char *line)
{
	char *who = strstr(line, " [uid:"), *took = strrchr(line, '<');
	unsigned long long lost;
	struct row key = {0}, *row;
	unsigned gid;
	double s;

	if (sscanf(line, "# %llu lines lost", &lost) == 1)
		p->lost += lost;
	if (*line == '#' || !who || !took ||
	    sscanf(who, " [uid:%u,gid:%u,pid:%d] %23s", &key.uid, &gid, &key.pid, key.kind) != 4)
		return;
	/* Operations of the processes that read the log and ask the mount are not counted. */
	if (key.pid == p->reader.pid || key.pid == p->asker)
		return;
	if (p->o->by != BY_ALL && p->o->by != BY_KIND)
		key.kind[0] = '\0';
	if (p->o->by != BY_ALL && p->o->by != BY_UID)
		key.uid = 0;
	if (p->o->by != BY_ALL && p->o->by != BY_PID)
		key.pid = 0;
	s = strtod(took + 1, NULL);
	row = find_row(p, &key);
	row->calls++;
	row->errors += took - line < 5 || strncmp(took - 5, ": OK ", 5) != 0;
	row->seconds += s;
	row->longest = CFS_MAX(row->longest, s);
}

static void take(struct profile *p, const char *buf, size_t len)
{
	size_t i;

	for (i = 0; i < len; i++) {
		if (buf[i] != '\n') {
			if (p->line_len < LINE_SIZE - 1)
				p->line[p->line_len++] = buf[i];
			continue;
		}
		p->line[p->line_len] = '\0';
		p->line_len = 0;
		take_line(p, p->line);
	}
}

static int by_time(const void *a, const void *b)
{
	const struct row *const *x = a, *const *y = b;

	if ((*x)->seconds < (*y)->seconds || (*x)->seconds > (*y)->seconds)
		return (*x)->seconds < (*y)->seconds ? 1 : -1;
	return (*x)->calls < (*y)->calls ? 1 : (*x)->calls > (*y)->calls ? -1 : 0;
}

/* Longest first; returns how many. */
static size_t sort_rows(struct profile *p, const struct row *ret[ROWS_MAX + 1])
{
	size_t i;

	for (i = 0; i < p->n; i++)
		ret[i] = &p->rows[i];
	if (p->rows[ROWS_MAX].calls)
		ret[i++] = &p->rows[ROWS_MAX];
	qsort(ret, i, sizeof(*ret), by_time);
	return i;
}

static bool shows(const struct profile *p, const struct row *r, int by)
{
	return (p->o->by == BY_ALL || p->o->by == by) && r != &p->rows[ROWS_MAX];
}

static void print_table(struct profile *p, size_t limit)
{
	double s = (double)(cfs_now_ms() - p->start_ms) / 1000;
	const struct row *sorted[ROWS_MAX + 1];
	char uid[16], pid[16];
	size_t i, n = sort_rows(p, sorted);

	printf("%-16s %6s %8s %-15s %8s %8s %7s %9s %8s %8s\n", "OPERATION", "UID", "PID",
	       "COMMAND", "CALLS", "CALLS/s", "ERRORS", "TOTAL ms", "MEAN ms", "MAX ms");
	for (i = 0; i < n && i < limit; i++) {
		const struct row *r = sorted[i];

		snprintf(uid, sizeof(uid), shows(p, r, BY_UID) ? "%u" : "-", r->uid);
		snprintf(pid, sizeof(pid), shows(p, r, BY_PID) ? "%d" : "-", r->pid);
		printf("%-16s %6s %8s %-15s %8" PRIu64 " %8.1f %7" PRIu64 " %9.1f %8.3f %8.3f\n",
		       *r->kind ? r->kind : "-", uid, pid, *r->comm ? r->comm : "-", r->calls,
		       s > 0 ? (double)r->calls / s : 0, r->errors, 1000 * r->seconds,
		       1000 * r->seconds / (double)r->calls, 1000 * r->longest);
	}
	if (n > limit)
		printf("%zu more rows\n", n - limit);
	if (p->lost)
		printf("%" PRIu64 " operations came too fast to be counted\n", p->lost);
	fflush(stdout);
}

static void print_json(struct profile *p)
{
	const struct row *sorted[ROWS_MAX + 1];
	size_t i, n = sort_rows(p, sorted);
	json_t *rows = json_array(), *j;

	for (i = 0; i < n; i++) {
		const struct row *r = sorted[i];

		j = json_pack("{s:I, s:I, s:f, s:f}", "calls", (json_int_t)r->calls, "errors",
			      (json_int_t)r->errors, "seconds", r->seconds, "longest_s",
			      r->longest);
		if (*r->kind)
			json_object_set_new(j, "kind", json_string(r->kind));
		if (shows(p, r, BY_UID))
			json_object_set_new(j, "uid", json_integer(r->uid));
		if (shows(p, r, BY_PID)) {
			json_object_set_new(j, "pid", json_integer(r->pid));
			json_object_set_new(j, "command", admin_text(r->comm, strlen(r->comm)));
		}
		json_array_append_new(rows, j);
	}
	admin_print_json(json_pack("{s:f, s:I, s:o}", "seconds",
				   (double)(cfs_now_ms() - p->start_ms) / 1000, "lost",
				   (json_int_t)p->lost, "rows", rows));
}

static size_t terminal_rows(void)
{
	struct winsize w;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_row < 6)
		return TABLE_ROWS;
	return w.ws_row - 4u;
}

/* Counts until the deadline. */
static int count_until(struct profile *p, cfs_deadline_t deadline)
{
	char buf[16384];
	ssize_t n;

	for (;;) {
		n = live_reader_read(&p->reader, buf, sizeof(buf), deadline);
		if (n <= 0)
			break;
		take(p, buf, (size_t)n);
		p->heard = true;
		if (cfs_deadline_passed(deadline))
			return 0;
	}
	return n == -ETIMEDOUT ? 0 : n == 0 ? -ESTALE : (int)n;
}

/* An idle mount writes nothing, but answers. */
static int ask(struct profile *p)
{
	struct live_reader asker;
	char path[4200];
	int r;

	snprintf(path, sizeof(path), "%s/.stats", p->point);
	r = live_reader_start(path, NULL, &asker);
	if (r < 0)
		return r;
	p->asker = asker.pid;
	r = live_reader_fill(&asker, STATS_MAX, cfs_deadline_in(LIVE_READ_MS));
	live_reader_stop(&asker);
	free(asker.text);
	return r;
}

static int profile(struct profile *p)
{
	bool live = !p->o->json && isatty(STDOUT_FILENO);
	cfs_deadline_t next;
	int64_t n;
	int r, ended;

	r = live_reader_start(p->path, NULL, &p->reader);
	p->start_ms = next = cfs_now_ms();
	if (r < 0)
		return cmd_error("%s: %s", p->path, strerror(-r));
	for (n = 0; r == 0 && (p->o->count == 0 || n < p->o->count); n++) {
		next += p->o->interval_ms;
		p->heard = false;
		r = count_until(p, next);
		if (r == 0 && !p->heard)
			r = ask(p);
		if (live && r == 0) {
			fputs("\033[H\033[J", stdout);
			print_table(p, terminal_rows());
		}
	}
	ended = live_reader_stop(&p->reader);
	if (r == -ESTALE && ended < 0 && ended != -EINTR)
		r = ended;
	if (r == -ETIMEDOUT && !live_stopped())
		return silent_error(p->point);
	if (r < 0 && !live_stopped())
		return cmd_error("%s: %s", p->path,
				 r == -ESTALE ? "the mount has ended" : strerror(-r));
	if (p->o->json)
		print_json(p);
	else if (!live)
		print_table(p, SIZE_MAX);
	return CMD_OK;
}

static int profile_run(void *options, const char **args)
{
	char point[4096], path[4200];
	struct profile *p;
	int r;

	if (control_find_mount(args[0], point, sizeof(point)) < 0)
		return CMD_USAGE;
	snprintf(path, sizeof(path), "%s/.accesslog", point);
	p = calloc(1, sizeof(*p));
	if (!p)
		return CMD_SYSTEM;
	p->o = options;
	p->path = path;
	p->point = point;
	live_begin();
	r = profile(p);
	free(p);
	return r;
}

const struct cmd cmd_profile = {
	.name = "profile",
	.synopsis = "[--by all|kind|uid|pid] [--interval TIME] [--count N] [--json] MOUNTPOINT",
	.summary = "Shows calls and times of a mount by operation, user and process",
	CMD_OPTIONS(profile_table),
	.min_args = 1,
	.max_args = 1,
	.run = profile_run,
};
