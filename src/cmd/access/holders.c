/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/holders.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/mounted.h"
#include "cmd/access/cmd.h"
#include "cmd/access/requests.h"

#define HOLDERS_MAX 8
#define CALLERS_MAX 256

/* A program inside a request holds the mount without an open file. */
struct callers {
	pid_t v[CALLERS_MAX];
	size_t n;
};

static bool is_below(const char *path, const char *point)
{
	size_t len = strlen(point);

	return !strncmp(path, point, len) && (path[len] == '\0' || path[len] == '/');
}

/* Reads only the link: a question to the mount might hang. */
static bool link_holds(const char *pid, const char *name, const char *point, char where[PATH_MAX])
{
	char path[NAME_MAX + 300];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%s/%s", pid, name);
	n = readlink(path, where, PATH_MAX - 1);
	if (n <= 0)
		return false;
	where[n] = '\0';
	return is_below(where, point);
}

static bool files_hold(const char *pid, const char *point, char where[PATH_MAX])
{
	char path[300], name[NAME_MAX + 4];
	struct dirent *d;
	bool found = false;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	dir = opendir(path);
	if (!dir)
		return false;
	while (!found && (d = readdir(dir))) {
		snprintf(name, sizeof(name), "fd/%s", d->d_name);
		found = link_holds(pid, name, point, where);
	}
	closedir(dir);
	return found;
}

static bool maps_hold(const char *pid, const char *point, char where[PATH_MAX])
{
	cfs_auto_free char *line = NULL;
	bool found = false;
	size_t cap = 0;
	char path[300];
	char *name;
	FILE *in;

	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	in = fopen(path, "re");
	if (!in)
		return false;
	while (!found && getline(&line, &cap, in) > 0) {
		name = strchr(line, '/');
		if (!name)
			continue;
		name[strcspn(name, "\n")] = '\0';
		found = is_below(name, point);
		if (found)
			snprintf(where, PATH_MAX, "%s", name);
	}
	fclose(in);
	return found;
}

static bool has_caller(const char *pid, const struct callers *callers)
{
	char path[300];
	size_t i;

	for (i = 0; i < callers->n; i++) {
		snprintf(path, sizeof(path), "/proc/%s/task/%d", pid, (int)callers->v[i]);
		if (access(path, F_OK) == 0)
			return true;
	}
	return false;
}

void holders_name(const char *pid, char *buf, size_t size)
{
	char path[64];
	FILE *in;

	*buf = '\0';
	snprintf(path, sizeof(path), "/proc/%.20s/comm", pid);
	in = fopen(path, "re");
	if (!in)
		return;
	if (fgets(buf, (int)size, in))
		buf[strcspn(buf, "\n")] = '\0';
	fclose(in);
}

static void print_holder(const char *pid, const char *how, const char *where)
{
	char comm[32];

	holders_name(pid, comm, sizeof(comm));
	cmd_error("  held by process %s (%s): %s %s", pid, *comm ? comm : "?", how, where);
}

void holders_print(const char *point)
{
	char where[PATH_MAX];
	struct mounted m;
	pid_t server = mounted_at(point, &m) == 0 ? requests_find_process(m.dev_minor) : 0;
	unsigned n = 0, more = 0;
	struct callers callers;
	struct dirent *d;
	const char *how;
	DIR *proc = opendir("/proc");

	if (!proc)
		return;
	callers.n = server > 0 ? requests_callers(server, callers.v, CALLERS_MAX) : 0;
	while ((d = readdir(proc))) {
		if (!isdigit((unsigned char)d->d_name[0]))
			continue;
		snprintf(where, sizeof(where), "%s", point);
		if (has_caller(d->d_name, &callers))
			how = "waits for a reply from";
		else if (link_holds(d->d_name, "cwd", point, where))
			how = "works in";
		else if (link_holds(d->d_name, "root", point, where))
			how = "has its root in";
		else if (files_hold(d->d_name, point, where))
			how = "has open";
		else if (maps_hold(d->d_name, point, where))
			how = "has mapped";
		else
			continue;
		if (n < HOLDERS_MAX) {
			print_holder(d->d_name, how, where);
			n++;
		} else {
			more++;
		}
	}
	closedir(proc);
	if (more)
		cmd_error("  and %u more processes", more);
	if (n == 0)
		cmd_error("  by no process that can be seen from here%s",
			  geteuid() ? "; root sees more" : "");
}

static bool read_namespace(const char *pid, char *buf, size_t size)
{
	char path[300];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%s/ns/mnt", pid);
	n = readlink(path, buf, size - 1);
	if (n > 0)
		buf[n] = '\0';
	return n > 0;
}

unsigned holders_print_elsewhere(const struct mounted *like)
{
	char seen[HOLDERS_MAX][64], ns[64], own[64] = "", comm[32];
	unsigned n = 0, i;
	struct mounted m;
	struct dirent *d;
	DIR *proc = opendir("/proc");

	if (!proc)
		return 0;
	read_namespace("self", own, sizeof(own));
	while (n < HOLDERS_MAX && (d = readdir(proc))) {
		if (!isdigit((unsigned char)d->d_name[0]) ||
		    !read_namespace(d->d_name, ns, sizeof(ns)) || !strcmp(ns, own))
			continue;
		for (i = 0; i < n && strcmp(seen[i], ns) != 0; i++)
			;
		if (i < n || mounted_seen_by(d->d_name, like, &m) < 0)
			continue;
		holders_name(d->d_name, comm, sizeof(comm));
		cmd_error("  still mounted at %s in the mount namespace of process %s (%s)",
			  m.point, d->d_name, *comm ? comm : "?");
		snprintf(seen[n++], sizeof(seen[0]), "%s", ns);
	}
	closedir(proc);
	return n;
}
