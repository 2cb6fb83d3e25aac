/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/cgroup.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OWN	"/proc/self/cgroup"
#define MACHINE "/proc/vmstat"

/* A file of each group, in both versions; in version 1 it is in the hierarchy of that controller. */
struct group_file {
	const char *controller, *v1, *v2;
};

typedef bool (*visit_fn)(void *arg, const char *path);

/* Visits the file of that name from the group up to the root, until visit() returns true. */
static bool go_up(const char *base, char *group, const char *name, visit_fn visit, void *arg)
{
	char path[700], *slash;

	do {
		snprintf(path, sizeof(path), "%s%s/%s", base, group, name);
		if (access(path, F_OK) == 0 && visit(arg, path))
			return true;
		slash = strrchr(group, '/');
		if (slash)
			*slash = '\0';
	} while (slash);
	return false;
}

/* groups: the file of proc(5) that names the groups of a process. */
static bool visit_groups(const char *groups, const struct group_file *f, visit_fn visit, void *arg)
{
	bool ended = false;
	char line[512], base[64], field[32], *at;
	FILE *in = fopen(groups, "re");

	if (!in)
		return false;
	snprintf(base, sizeof(base), "/sys/fs/cgroup/%s", f->controller);
	snprintf(field, sizeof(field), ":%s:", f->controller);
	while (!ended && fgets(line, sizeof(line), in)) {
		line[strcspn(line, "\n")] = '\0';
		at = strstr(line, field);
		if (at)
			ended = go_up(base, at + strlen(field), f->v1, visit, arg);
		else if (!strncmp(line, "0::", 3))
			ended = go_up("/sys/fs/cgroup", line + 3, f->v2, visit, arg);
	}
	fclose(in);
	return ended;
}

static bool lower_limit(void *arg, const char *path)
{
	FILE *in = fopen(path, "re");
	uint64_t *limit = arg;
	unsigned long long v;

	if (in && fscanf(in, "%llu", &v) == 1 && (!*limit || v < *limit))
		*limit = v;
	if (in)
		fclose(in);
	return false;
}

uint64_t cgroup_memory_limit(void)
{
	uint64_t limit = 0;

	visit_groups(OWN, &(struct group_file){"memory", "memory.limit_in_bytes", "memory.max"},
		     lower_limit, &limit);
	return limit;
}

/* A line "oom_kill N" (cgroup-v2.rst, cgroup-v1/memory.rst, vmstat of proc(5)). */
static bool read_kills(const char *path, uint64_t *ret)
{
	FILE *in = fopen(path, "re");
	unsigned long long v;
	bool found = false;
	char line[256];

	while (in && !found && fgets(line, sizeof(line), in))
		found = sscanf(line, "oom_kill %llu", &v) == 1;
	if (in)
		fclose(in);
	if (found)
		*ret = v;
	return found;
}

struct found_file {
	char *path;
	size_t size;
};

static bool take_file(void *arg, const char *path)
{
	const struct found_file *f = arg;
	uint64_t kills;

	return read_kills(path, &kills) && (size_t)snprintf(f->path, f->size, "%s", path) < f->size;
}

int cgroup_kills_file(char *ret, size_t size)
{
	struct found_file f = {ret, size};

	const struct group_file events = {"memory", "memory.oom_control", "memory.events"};

	return visit_groups(OWN, &events, take_file, &f) || take_file(&f, MACHINE) ? 0 : -ENOENT;
}

uint64_t cgroup_kills(const char *file)
{
	uint64_t kills = 0;

	read_kills(file, &kills);
	return kills;
}

/* cgroup-v2.rst; cgroup-v1/freezer-subsystem.rst */
static bool take_frozen(void *arg, const char *path)
{
	const struct found_file *f = arg;
	FILE *in = fopen(path, "re");
	bool frozen = in && getc(in) == '1';

	if (in)
		fclose(in);
	if (frozen)
		snprintf(f->path, f->size, "%.*s", (int)(strrchr(path, '/') - path), path);
	return frozen;
}

bool cgroup_frozen(pid_t pid, char *ret, size_t size)
{
	const struct group_file freeze = {"freezer", "freezer.self_freezing", "cgroup.freeze"};
	struct found_file f = {ret, size};
	char groups[32];

	snprintf(groups, sizeof(groups), "/proc/%d/cgroup", (int)pid);
	return visit_groups(groups, &freeze, take_frozen, &f);
}
