/* SPDX-License-Identifier: Apache-2.0 */
/* Packs one archive with what a developer asks for first. It must work on a mount that hangs. */
#include <cachefs/fuse.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/mounted.h"
#include "base/text/url.h"
#include "build.h"
#include "cmd/access/cmd.h"
#include "cmd/access/control.h"
#include "cmd/access/jsontext.h"
#include "cmd/access/live.h"
#include "cmd/access/requests.h"
#include "cmd/access/silent.h"
#include "cmd/diag/tar.h"
#include "config.h"

#define TEXT_MAX    (4u << 20)
#define THREADS_MAX 4096
#define PREFIX	    "cachefs-debug/"

static const struct cfs_opt debug_table[] = {{0}};

/* Appends a file of /proc or /sys; an error is reported in its place. */
static void append_file(FILE *out, const char *path)
{
	char buf[4096];
	size_t n, sum = 0;
	FILE *in = fopen(path, "re");

	if (!in) {
		fprintf(out, "(%s)\n", strerror(errno));
		return;
	}
	while ((n = fread(buf, 1, sizeof(buf), in)) > 0 && sum < TEXT_MAX) {
		fwrite(buf, 1, n, out);
		sum += n;
	}
	if (ferror(in))
		fprintf(out, "(%s)\n", strerror(errno));
	fclose(in);
}

/* "name: content" */
static void append_named(FILE *out, const char *path)
{
	fprintf(out, "%s: ", path);
	append_file(out, path);
}

/* The subject of a page. */
struct subject {
	const char *point;
	unsigned dev; /* minor number of the mount's device */
	pid_t pid;
	const char *path;
};

/* Adds what print() writes; an error is reported in its place. */
static void add_page(struct tar *t, const char *name, int (*print)(FILE *out, struct subject *s),
		     struct subject *s)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);
	int r;

	if (!out)
		return;
	r = print(out, s);
	if (r < 0)
		fprintf(out, "(%s)\n", strerror(-r));
	fclose(out);
	if (text)
		tar_add(t, name, text, len);
	free(text);
}

static int print_file(FILE *out, struct subject *s)
{
	append_file(out, s->path);
	return 0;
}

/* Reads a file of the mount, which may hang. */
static int add_special(struct tar *t, const char *name, const char *point, const char *file,
		       char **ret)
{
	cfs_auto_free char *text = NULL;
	char path[4300], note[256];
	size_t len;
	int r;

	snprintf(path, sizeof(path), "%s/%s", point, file);
	r = live_read(path, TEXT_MAX, LIVE_READ_MS, &text, &len);
	if (r < 0) {
		snprintf(note, sizeof(note), "(%s)\n", strerror(-r));
		tar_add(t, name, note, strlen(note));
		cmd_error("%s: %s", file, strerror(-r));
		return r;
	}
	tar_add(t, name, text, len);
	if (ret) {
		*ret = text;
		text = NULL;
	}
	return 0;
}

static pid_t pid_in_config(const char *text)
{
	json_t *j = text ? json_loads(text, 0, NULL) : NULL;
	json_int_t pid = json_get_int(j, "Pid");

	json_decref(j);
	return (pid_t)pid;
}

static int print_version(FILE *out, struct subject *s)
{
	struct cfs_fuse_features f;
	struct utsname un = {0};

	cfs_fuse_features(&f);
	uname(&un);
	fprintf(out,
		"cachefs %s (build %s)\nlibfuse %s (built with %s): passthrough %s, io_uring %s\n",
		CFS_VERSION, CFS_BUILD, f.libfuse_running, f.libfuse_built,
		f.passthrough_built ? "yes" : "no", f.io_uring_built ? "yes" : "no");
	fprintf(out, "kernel %s %s %s %s\n", un.sysname, un.release, un.version, un.machine);
	append_file(out, "/etc/os-release");
	return 0;
}

/* The fields contain no blanks. The source is one of the fields, and may be a URL. */
static void print_masked(const char *line, FILE *out)
{
	char field[4200], masked[4200];
	size_t len;

	for (; *line; line += len + (line[len] != '\0')) {
		len = strcspn(line, " \n");
		snprintf(field, sizeof(field), "%.*s", (int)len, line);
		if (strstr(field, "://"))
			cfs_url_mask(field, masked, sizeof(masked));
		fputs(strstr(field, "://") ? masked : field, out);
		if (line[len])
			fputc(line[len], out);
	}
}

/* The mount's line of the table; secrets of a source that is a URL are masked. Sets s->dev. */
static int print_mountinfo(FILE *out, struct subject *s)
{
	cfs_auto_free char *line = NULL;
	char dev[32], at[4200];
	size_t cap = 0;
	FILE *in = fopen("/proc/self/mountinfo", "re");

	if (!in)
		return -errno;
	while (getline(&line, &cap, in) > 0) {
		if (sscanf(line, "%*s %*s %31s %*s %4199s", dev, at) != 2)
			continue;
		mounted_unescape(at);
		if (strcmp(at, s->point))
			continue;
		sscanf(dev, "%*u:%u", &s->dev);
		print_masked(line, out);
	}
	fclose(in);
	return 0;
}

static int print_kernel(FILE *out, struct subject *s)
{
	static const char *const files[] = {
		"/sys/module/fuse/parameters/enable_uring",
		"/sys/module/fuse/parameters/max_user_bgreq",
		"/sys/module/fuse/parameters/max_user_congthresh",
		"/proc/sys/fs/pipe-max-size",
		"/proc/sys/fs/file-max",
		"/proc/sys/vm/dirty_ratio",
		"/proc/loadavg",
		"/proc/pressure/cpu",
		"/proc/pressure/io",
		"/proc/pressure/memory",
		"/proc/meminfo",
	};
	static const char *const of_mount[] = {"waiting", "max_background", "congestion_threshold"};
	char path[128];
	size_t i;

	for (i = 0; i < CFS_ARRAY_SIZE(of_mount); i++) {
		snprintf(path, sizeof(path), "/sys/fs/fuse/connections/%u/%s", s->dev, of_mount[i]);
		append_named(out, path);
	}
	for (i = 0; i < CFS_ARRAY_SIZE(files); i++)
		append_named(out, files[i]);
	return 0;
}

static int print_threads(FILE *out, struct subject *s)
{
	static const char *const parts[] = {"comm", "wchan", "syscall", "stack"};
	char path[400];
	struct dirent *d;
	unsigned n = 0;
	size_t i;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)s->pid);
	dir = opendir(path);
	if (!dir)
		return -errno;
	while ((d = readdir(dir)) && n < THREADS_MAX) {
		if (!isdigit((unsigned char)d->d_name[0]))
			continue;
		n++;
		fprintf(out, "thread %s\n", d->d_name);
		for (i = 0; i < CFS_ARRAY_SIZE(parts); i++) {
			snprintf(path, sizeof(path), "/proc/%d/task/%s/%s", (int)s->pid, d->d_name,
				 parts[i]);
			fprintf(out, "%s: ", parts[i]);
			append_file(out, path);
			/* wchan has no end of line. */
			if (!strcmp(parts[i], "wchan"))
				fputc('\n', out);
		}
	}
	closedir(dir);
	return 0;
}

/* Lists mapped files with their sizes. Neighbours are joined, because addresses are of no use. */
static int print_maps(FILE *out, struct subject *s)
{
	cfs_auto_free char *line = NULL;
	unsigned long long from, to, sum = 0, anonymous = 0;
	char path[64], last[4096] = "", *name;
	size_t cap = 0;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)s->pid);
	in = fopen(path, "re");
	if (!in)
		return -errno;
	while (getline(&line, &cap, in) > 0) {
		if (sscanf(line, "%llx-%llx", &from, &to) != 2)
			continue;
		name = strpbrk(line, "/[");
		if (!name) {
			anonymous += to - from;
			continue;
		}
		name[strcspn(name, "\n")] = '\0';
		if (*last && strcmp(last, name)) {
			fprintf(out, "%12llu %s\n", sum, last);
			sum = 0;
		}
		snprintf(last, sizeof(last), "%s", name);
		sum += to - from;
	}
	if (*last)
		fprintf(out, "%12llu %s\n", sum, last);
	fprintf(out, "%12llu anonymous\n", anonymous);
	fclose(in);
	return 0;
}

/* Counts descriptors by kind, without file names, which may be private. */
static int print_descriptors(FILE *out, struct subject *s)
{
	unsigned files = 0, sockets = 0, pipes = 0, devices = 0, others = 0;
	char path[400], where[4096];
	struct dirent *d;
	ssize_t n;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)s->pid);
	dir = opendir(path);
	if (!dir)
		return -errno;
	while ((d = readdir(dir))) {
		n = readlinkat(dirfd(dir), d->d_name, where, sizeof(where) - 1);
		if (n <= 0)
			continue;
		where[n] = '\0';
		if (!strncmp(where, "/dev/", 5))
			devices++;
		else if (*where == '/')
			files++;
		else if (!strncmp(where, "socket:", 7))
			sockets++;
		else if (!strncmp(where, "pipe:", 5))
			pipes++;
		else
			others++;
	}
	closedir(dir);
	fprintf(out, "files: %u\nsockets: %u\npipes: %u\ndevices: %u\nothers: %u\n", files, sockets,
		pipes, devices, others);
	return 0;
}

/* Requests in words; threads.txt has the kernel's view. */
static int print_requests(FILE *out, struct subject *s)
{
	return requests_print(s->pid, out);
}

static int print_agreement(FILE *out, struct subject *s)
{
	return requests_print_agreement(s->pid, out);
}

/* The last log lines, including those of earlier processes; needs no syslog. */
static int print_last_lines(FILE *out, struct subject *s)
{
	return requests_print_log(s->pid, out);
}

/* Adds the process's log from the journal, where there is one. */
static void add_log(struct tar *t, pid_t pid)
{
	char program[] = "journalctl", quiet[] = "--quiet", pager[] = "--no-pager", whose[32];
	char lines[] = "--lines=2000", format[] = "--output=short-iso";
	char *const argv[] = {program, quiet, pager, lines, format, whose, NULL};
	cfs_auto_free char *text = NULL;
	size_t len;

	snprintf(whose, sizeof(whose), "_PID=%d", (int)pid);
	if (live_run(argv, TEXT_MAX, LIVE_READ_MS, &text, &len) == 0)
		tar_add(t, PREFIX "log.txt", text, len);
}

static void add_process(struct tar *t, struct subject *s)
{
	static const char *const files[] = {"status", "limits",	      "stat",
					    "io",     "smaps_rollup", "cgroup"};
	char path[64], name[64];
	size_t i;

	s->path = path;
	for (i = 0; i < CFS_ARRAY_SIZE(files); i++) {
		snprintf(path, sizeof(path), "/proc/%d/%s", (int)s->pid, files[i]);
		snprintf(name, sizeof(name), PREFIX "process-%s.txt", files[i]);
		add_page(t, name, print_file, s);
	}
	add_page(t, PREFIX "maps.txt", print_maps, s);
	add_page(t, PREFIX "descriptors.txt", print_descriptors, s);
	add_page(t, PREFIX "requests.txt", print_requests, s);
	add_page(t, PREFIX "fuse-init.txt", print_agreement, s);
	add_page(t, PREFIX "threads.txt", print_threads, s);
	add_page(t, PREFIX "last-lines.txt", print_last_lines, s);
	add_log(t, s->pid);
}

static int collect(const char *point, const char *file)
{
	cfs_auto_free char *config = NULL;
	struct subject s = {.point = point};
	struct tar *t;
	int r;

	r = tar_create(file, &t);
	if (r < 0)
		return cmd_usage("%s: %s", file, strerror(-r));
	add_page(t, PREFIX "version.txt", print_version, &s);
	add_page(t, PREFIX "mountinfo.txt", print_mountinfo, &s);
	add_page(t, PREFIX "kernel.txt", print_kernel, &s);
	r = add_special(t, PREFIX "config.json", point, ".config", &config);
	if (add_special(t, PREFIX "stats.txt", point, ".stats", NULL) == -ETIMEDOUT ||
	    r == -ETIMEDOUT)
		silent_error(point);
	s.pid = pid_in_config(config);
	if (s.pid <= 0)
		s.pid = requests_find_process(s.dev);
	if (s.pid > 0)
		add_process(t, &s);
	else
		cmd_error("the process of the mount is not found");
	r = tar_finish(t);
	if (r < 0) {
		cmd_error("%s: %s", file, strerror(-r));
		unlink(file);
		return CMD_SYSTEM;
	}
	cmd_line("%s", file);
	return CMD_OK;
}

static int debug_run(void *options, const char **args)
{
	char point[4096], own[64];
	struct tm tm;
	time_t now;

	if (control_find_mount(args[0], point, sizeof(point)) < 0)
		return CMD_USAGE;
	now = time(NULL);
	localtime_r(&now, &tm);
	strftime(own, sizeof(own), "cachefs-debug-%Y%m%d-%H%M%S.tar.gz", &tm);
	return collect(point, args[1] ? args[1] : own);
}

const struct cmd cmd_debug = {
	.name = "debug",
	.synopsis = "MOUNTPOINT [FILE]",
	.summary = "Writes an archive that describes a mount and its host, without secrets",
	.options = debug_table,
	.min_args = 1,
	.max_args = 2,
	.run = debug_run,
};
