/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/access/cgroup.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define V1	":memory:"
#define MACHINE "/proc/vmstat"

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

/* name: of the file in version 2; old: in version 1. */
static bool visit_groups(const char *name, const char *old, visit_fn visit, void *arg)
{
	bool ended = false;
	char line[512], *at;
	FILE *in = fopen("/proc/self/cgroup", "re");

	if (!in)
		return false;
	while (!ended && fgets(line, sizeof(line), in)) {
		line[strcspn(line, "\n")] = '\0';
		at = strstr(line, V1);
		if (at)
			ended = go_up("/sys/fs/cgroup/memory", at + strlen(V1), old, visit, arg);
		else if (!strncmp(line, "0::", 3))
			ended = go_up("/sys/fs/cgroup", line + 3, name, visit, arg);
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

	visit_groups("memory.max", "memory.limit_in_bytes", lower_limit, &limit);
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

struct kills_file {
	char *path;
	size_t size;
};

static bool take_file(void *arg, const char *path)
{
	const struct kills_file *f = arg;
	uint64_t kills;

	return read_kills(path, &kills) && (size_t)snprintf(f->path, f->size, "%s", path) < f->size;
}

int cgroup_kills_file(char *ret, size_t size)
{
	struct kills_file f = {ret, size};

	return visit_groups("memory.events", "memory.oom_control", take_file, &f) ||
			       take_file(&f, MACHINE)
		       ? 0
		       : -ENOENT;
}

uint64_t cgroup_kills(const char *file)
{
	uint64_t kills = 0;

	read_kills(file, &kills);
	return kills;
}
