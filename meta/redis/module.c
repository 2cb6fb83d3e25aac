/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes the engine: checks of the server, the table of operations. */
#include "base/module.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "meta/redis/ops.h"

static int unexpected(struct rds *r, const char *what, const redisReply *reply, char err[256])
{
	return cfs_fail(err, -EACCES, "Redis at %.100s: %s: %.100s", r->target.where, what,
			reply->type == REDIS_REPLY_ERROR ? reply->str : "unexpected reply");
}

/* False: INFO is forbidden, or lacks the field. */
static bool info_field(const redisReply *info, const char *name, char *buf, size_t size)
{
	return rds_is_bytes(info) && rds_info_field(info->str, name, buf, size);
}

static int check_version(struct rds *r, const redisReply *info, char err[256])
{
	char version[32];

	if (!info_field(info, "redis_version", version, sizeof(version)) ||
	    strtol(version, NULL, 10) >= 4)
		return 0;
	return cfs_fail(err, -EPROTONOSUPPORT,
			"Redis at %.100s is version %.30s, at least 4.0 is needed", r->target.where,
			version);
}

static int check_role(struct rds *r, const redisReply *info, char err[256])
{
	char role[16];

	if (r->read_only || !info_field(info, "role", role, sizeof(role)) ||
	    strcmp(role, "slave") != 0)
		return 0;
	return cfs_fail(
		err, -EROFS,
		"Redis at %.120s is a read-only replica: name its master in the URL, or mount "
		"read-only",
		r->target.where);
}

/* Evicting a key loses a file. */
static int check_eviction(struct rds *r, const redisReply *info, char err[256])
{
	char policy[40];

	if (r->read_only || r->target.any_eviction ||
	    !info_field(info, "maxmemory_policy", policy, sizeof(policy)) ||
	    strcmp(policy, "noeviction") == 0)
		return 0;
	return cfs_fail(err, -EPERM,
			"Redis at %.80s may evict keys (maxmemory-policy %.20s): run CONFIG SET "
			"maxmemory-policy noeviction, or add ?any-eviction-policy to the URL",
			r->target.where, policy);
}

/* Checks that the user may run scripts. */
static int check_rights(struct rds *r, struct rds_sock *s, cfs_deadline_t deadline, char err[256])
{
	redisReply *reply = NULL;
	char key[64];
	int rc;

	snprintf(key, sizeof(key), "%ssetting", r->prefix);
	rc = rds_sock_ask(s, deadline, &reply, "EVAL", "return redis.call('EXISTS', KEYS[1])", "1",
			  key, NULL);
	if (!rc && reply->type == REDIS_REPLY_ERROR && strncmp(reply->str, "MOVED ", 6) == 0)
		rds_target_moved(&r->target, reply->str + 6);
	else if (!rc && reply->type == REDIS_REPLY_ERROR && !strstr(reply->str, "LOADING"))
		rc = unexpected(r, "scripts cannot be run", reply, err);
	if (reply)
		freeReplyObject(reply);
	return rc;
}

/* A cluster has only database 0: a key prefix distinguishes its volumes. */
static int detect_cluster(struct rds *r, struct rds_sock *s, cfs_deadline_t deadline)
{
	int rc = rds_sock_is_cluster(s, deadline, &r->target.cluster);

	if (!rc && r->target.cluster)
		snprintf(r->prefix, sizeof(r->prefix), "{%u}", r->target.db);
	return rc;
}

static int check_info(struct rds *r, struct rds_sock *s, cfs_deadline_t deadline, char err[256])
{
	redisReply *info = NULL;
	int rc = rds_sock_ask(s, deadline, &info, "INFO", NULL);

	if (rc)
		return rc;
	if (info->type == REDIS_REPLY_ERROR && !strstr(info->str, "LOADING")) {
		r->info_refused = true;
		cfs_warn("the metadata server refuses INFO, whether it may evict keys or was "
			 "restored stays unknown: url=%s answer=%.160s",
			 r->target.where, info->str);
	}
	rc = check_version(r, info, err);
	if (!rc && !r->target.cluster)
		rc = check_role(r, info, err);
	if (!rc)
		rc = check_eviction(r, info, err);
	freeReplyObject(info);
	return rc;
}

static int probe(struct rds *r, cfs_deadline_t deadline, char err[256])
{
	struct rds_sock *s;
	int rc = rds_sock_open(&r->target, deadline, &s, err);

	if (rc)
		return rc;
	snprintf(err, 256, "Redis at %.100s does not answer", r->target.where);
	rc = detect_cluster(r, s, deadline);
	if (!rc)
		rc = check_rights(r, s, deadline, err);
	if (!rc)
		rc = check_info(r, s, deadline, err);
	rds_sock_close(s);
	return rc;
}

static void close_engine(struct cfs_engine *e)
{
	struct rds *r = rds_of(e);
	unsigned i;

	for (i = 0; r->pipes && i < r->n_pipes; i++)
		rds_pipe_destroy(r->pipes[i]);
	free(r->pipes);
	rds_windows_destroy(r->windows);
	rds_inode_names_destroy(r->inode_names);
	rds_deletions_destroy(r->deletions);
	cfs_optimistic_destroy(&r->optimistic);
	rds_target_free(&r->target);
	free(r);
}

static int create_parts(struct rds *r)
{
	int rc = rds_windows_create(&r->windows);
	unsigned i;

	if (!rc)
		rc = rds_deletions_create(&r->deletions);
	r->inode_names = rds_inode_names_create();
	r->pipes = calloc(r->target.max_conns, sizeof(struct rds_pipe *));
	if (!r->pipes || !r->inode_names)
		return -ENOMEM;
	r->n_pipes = r->target.max_conns;
	for (i = 0; i < r->n_pipes && !rc; i++)
		rc = rds_pipe_create(&r->target, &r->pipes[i]);
	return rc;
}

extern const struct cfs_engine_ops rds_engine;

static int open_engine(const struct cfs_engine_conf *conf, struct cfs_engine **ret, char err[256])
{
	struct rds *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return cfs_fail(err, -ENOMEM, "out of memory");
	r->engine.ops = &rds_engine;
	r->engine.host = conf->host;
	cfs_optimistic_init(&r->optimistic);
	r->read_only = conf->meta->read_only;
	r->client = cfs_random_u64() ^ (uint64_t)cfs_wall().tv_nsec << 32;
	rc = rds_target_init(&r->target, conf->url, err);
	if (!rc) {
		rc = create_parts(r);
		if (rc)
			snprintf(err, 256, "out of memory");
	}
	if (!rc)
		rc = probe(r, cfs_deadline_in(conf->meta->timeout_ms), err);
	if (rc) {
		close_engine(&r->engine);
		return rc;
	}
	*ret = &r->engine;
	return 0;
}

#define MEMBER(member) .member = rds_op_##member,
#define OPS                                                                                        \
	CFS_ENGINE_OPS(MEMBER).advise = rds_op_advise, .commit_group = rds_op_commit_group,        \
	.dead_locks = rds_op_dead_locks, .settle = rds_op_settle

const struct cfs_engine_ops rds_engine = {
	.name = "redis",
	.inline_usage = true,
	.open = open_engine,
	.close = close_engine,
	OPS,
};

CFS_MODULE_EXPORT(&rds_engine);
