/* SPDX-License-Identifier: Apache-2.0 */
/* Callers: the identities that the mount replaces, and further facts for permission checks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "vfs-internal.h"

#define GROUPS_MAX    1024 /* of one process; further groups give no rights */
#define GROUPS_AGE_MS 1000
#define CAP_FSETID    4 /* capabilities(7) */

/* Groups and capabilities of the process that this thread has looked up last. */
static _Thread_local struct {
	pid_t pid;
	uint64_t until_ms, caps;
	size_t n;
	gid_t id[GROUPS_MAX];
} groups;

static void parse_groups(char *p)
{
	unsigned long id;
	char *end;

	for (; groups.n < GROUPS_MAX; p = end) {
		id = strtoul(p, &end, 10);
		if (end == p)
			break;
		groups.id[groups.n++] = (gid_t)id;
	}
}

/* A process that is gone, or invisible from here, has no groups and all capabilities. */
static void read_groups(pid_t pid)
{
	char path[32], *line = NULL;
	size_t size = 0;
	FILE *in;

	groups.pid = pid;
	groups.n = 0;
	groups.caps = UINT64_MAX;
	groups.until_ms = cfs_now_ms() + GROUPS_AGE_MS;
	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	in = fopen(path, "re");
	if (!in)
		return;
	while (getline(&line, &size, in) > 0) {
		if (!strncmp(line, "Groups:", 7))
			parse_groups(line + 7);
		if (!strncmp(line, "CapEff:", 7)) {
			groups.caps = strtoull(line + 7, NULL, 16);
			break;
		}
	}
	free(line);
	fclose(in);
}

void caller_groups(struct cfs_ctx *ctx, bool fresh)
{
	if (fresh || groups.pid != ctx->pid || groups.until_ms < cfs_now_ms())
		read_groups(ctx->pid);
	ctx->groups = groups.id;
	ctx->n_groups = groups.n;
}

static bool in_group(const struct cfs_ctx *ctx, uint32_t gid)
{
	struct cfs_ctx with = *ctx;

	if (!ctx->check || ctx->groups) /* else the caller is squashed, and has no groups */
		caller_groups(&with, true);
	return cfs_ctx_in_group(&with, gid);
}

bool caller_keeps_set_id(const struct cfs_ctx *ctx)
{
	struct cfs_ctx with = *ctx;

	if (ctx->uid != 0)
		return false;
	caller_groups(&with, true);
	return groups.caps >> CAP_FSETID & 1;
}

uint32_t dropped_set_id(const struct cfs_ctx *ctx, const struct cfs_attr *attr)
{
	const uint16_t mode = attr->mode;

	if (attr->type == CFS_TYPE_DIR || !(mode & (S_ISUID | S_ISGID)))
		return 0;
	if ((mode & S_ISGID) && !(mode & S_IXGRP) && !in_group(ctx, attr->gid))
		return CFS_SET_KILL_SUID | CFS_SET_KILL_SGID;
	return (mode & S_ISUID) || (mode & S_IXGRP) ? CFS_SET_KILL_SUID : 0;
}

struct cfs_ctx internal_ctx(const struct cfs_vfs *v)
{
	return cfs_ctx_internal(v->conf.io_timeout_ms);
}

struct cfs_ctx cfs_vfs_ctx(struct cfs_vfs *v, uint32_t uid, uint32_t gid, pid_t pid)
{
	const struct cfs_vfs_squash *as = NULL;
	struct cfs_ctx ctx = {
		.uid = uid,
		.gid = gid,
		.pid = pid,
		.check = v->conf.check_permissions,
		.admin = uid == 0 || uid == v->conf.uid,
		.now = cfs_wall(),
		.deadline = cfs_deadline_in(v->conf.io_timeout_ms),
	};

	atomic_fetch_add_explicit(&v->requests, 1, memory_order_relaxed);
	if (v->conf.squash_all.on)
		as = &v->conf.squash_all;
	else if (v->conf.squash_root.on && uid == 0)
		as = &v->conf.squash_root;
	if (as) {
		ctx.uid = as->uid;
		ctx.gid = as->gid;
		ctx.check = true;
	} else if (ctx.check && uid != 0) {
		caller_groups(&ctx, false);
	}
	return ctx;
}
