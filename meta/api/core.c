/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/module.h"
#include "meta/api/acl.h"
#include "meta/api/call.h"
#include "meta/api/core.h"
#include "meta/api/dirtimes.h"
#include "meta/api/jobs.h"
#include "meta/api/locks.h"
#include "meta/api/rootstat.h"
#include "meta/api/session.h"
#include "meta/engine/rules.h"
#include "meta/setting/setting-internal.h"

enum { INODE_BATCH = 1024, SLICE_BATCH = 4096 };
enum { LEAVE_MS = 3000 }; /* deadline of cfs_meta_leave(): a successor process waits */

int cfs_core_check_name(const char *name, size_t len)
{
	if (len > CFS_NAME_MAX)
		return -ENAMETOOLONG;
	if (len == 0 || memchr(name, '/', len) || memchr(name, '\0', len))
		return -EINVAL;
	return 0;
}

int cfs_core_check_writable(const struct cfs_meta *m)
{
	return m->conf.read_only || atomic_load(&m->host.refuse_changes) ? -EROFS : 0;
}

int cfs_core_check_room(const struct cfs_meta *m)
{
	return m->eng->ops->room ? m->eng->ops->room(m->eng) : 0;
}

int cfs_core_access(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, int mask,
		    const struct cfs_attr *attr)
{
	struct cfs_attr own;
	struct cfs_acl rule;
	int rc;

	if (!attr) {
		rc = m->eng->ops->getattr(m->eng, ctx, ino, &own);
		if (rc)
			return rc;
		attr = &own;
	}
	if (!attr->access_acl || ctx->uid == 0)
		return cfs_rules_access(ctx, attr, mask);
	rc = cfs_acl_get(m, ctx, attr->access_acl, &rule);
	if (rc)
		return rc;
	rc = cfs_acl_access(ctx, attr, &rule, mask);
	cfs_acl_release(&rule);
	return rc;
}

int cfs_core_check_acl(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_ino_t ino, int mask)
{
	struct cfs_attr attr;
	int rc;

	if (!ctx->check || ctx->uid == 0 || !atomic_load(&m->enable_acl))
		return 0;
	rc = m->eng->ops->getattr(m->eng, ctx, ino, &attr);
	if (rc)
		return rc;
	/* Without an ACL the engine checks permissions, after it knows whether the name exists. */
	return attr.access_acl ? cfs_core_access(m, ctx, ino, mask, &attr) : 0;
}

bool cfs_core_trash_on(struct cfs_meta *core)
{
	return atomic_load(&core->trash_days) > 0;
}

/* ---- statistics ---- */

void cfs_meta_stats(struct cfs_meta *m, struct cfs_meta_stats *ret)
{
	int i;

	for (i = 0; i < CFS_META_OP_COUNT; i++) {
		ret->op[i].calls = atomic_load(&m->host.op[i].calls);
		ret->op[i].errors = atomic_load(&m->host.op[i].errors);
		ret->op[i].round_trips = atomic_load(&m->host.op[i].round_trips);
		ret->op[i].time_ns = atomic_load(&m->host.op[i].time_ns);
	}
	ret->retries = atomic_load(&m->host.retries);
	ret->log_bytes = atomic_load(&m->host.log_bytes);
}

/* ---- open and close ---- */

static void destroy(struct cfs_meta *m)
{
	struct cfs_ctx ctx;

	if (m->eng && m->dirtimes) {
		ctx = cfs_ctx_internal(m->conf.timeout_ms);
		cfs_dirtimes_stop(m, &ctx);
	}
	cfs_dirtimes_destroy(m->dirtimes);
	cfs_jobs_destroy(m->jobs);
	cfs_locks_destroy(m->locks);
	cfs_quotas_destroy(m->quotas);
	cfs_acl_cache_destroy(m->acls);
	if (m->eng)
		m->eng->ops->close(m->eng);
	cfs_ids_destroy(&m->inode_ids);
	cfs_ids_destroy(&m->slice_ids);
	cfs_setting_free(m->setting);
	free(m->setting_text);
	free(m->load_text);
	free(m->loaded_text);
	free(m->mount_point);
	free(m->cache_dir);
	cfs_url_free(&m->url);
	pthread_mutex_destroy(&m->setting_lock);
	pthread_mutex_destroy(&m->trash_lock);
	pthread_mutex_destroy(&m->unclosed_lock);
	cfs_inomap_destroy(&m->unclosed);
	free(m);
}

static int create_parts(struct cfs_meta *m)
{
	int rc = cfs_ids_init(&m->inode_ids, "nextInode", INODE_BATCH, CFS_INODE_GAP);

	if (!rc)
		rc = cfs_ids_init(&m->slice_ids, "nextChunk", SLICE_BATCH, CFS_SLICE_GAP);
	if (!rc)
		rc = cfs_acl_cache_create(&m->acls);
	if (!rc)
		rc = cfs_dirtimes_create(&m->dirtimes);
	if (!rc)
		rc = cfs_locks_create(&m->locks);
	if (!rc)
		rc = cfs_quotas_create(&m->quotas);
	if (!rc)
		rc = cfs_jobs_create(&m->jobs);
	return rc;
}

/* SQLite is built in; the others come with the client library of their database. */
static int find_engine(const char *engine, const struct cfs_engine_ops **ret, char err[256])
{
	const void *table;
	int rc;

	if (!engine)
		return -EINVAL;
	if (strcmp(engine, cfs_engine_sqlite.name) == 0) {
		*ret = &cfs_engine_sqlite;
		return 0;
	}
	rc = cfs_module_load(engine, &table, err);
	if (!rc)
		*ret = table;
	return rc;
}

static int open_engine(struct cfs_meta *m, const char *url, char err[256])
{
	struct cfs_engine_conf conf = {.url = &m->url, .meta = &m->conf, .host = &m->host};
	const struct cfs_engine_ops *ops;
	int rc;

	rc = cfs_url_parse(url, &m->url, err);
	if (rc)
		return rc;
	rc = find_engine(m->url.engine, &ops, err);
	if (rc == -EINVAL)
		snprintf(err, 256, "no metadata engine for the scheme of %.180s", m->masked_url);
	if (rc)
		return rc;
	return ops->open(&conf, &m->eng, err);
}

int cfs_meta_open(const char *url, const struct cfs_meta_conf *conf, struct cfs_meta **ret,
		  char err[256])
{
	struct cfs_meta *m = calloc(1, sizeof(*m));
	const char *trace = getenv("CFS_TRACE");
	int rc;

	if (!m)
		return cfs_fail(err, -ENOMEM, "out of memory");
	pthread_mutex_init(&m->setting_lock, NULL);
	pthread_mutex_init(&m->trash_lock, NULL);
	pthread_mutex_init(&m->unclosed_lock, NULL);
	cfs_inomap_init(&m->unclosed, sizeof(cfs_ino_t));
	cfs_url_mask(url, m->masked_url, sizeof(m->masked_url));
	m->conf = *conf;
	m->trace = trace && strstr(trace, "meta");
	if (!m->conf.timeout_ms)
		m->conf.timeout_ms = 30000;
	rc = create_parts(m);
	if (!rc && conf->mount_point) {
		m->mount_point = strdup(conf->mount_point);
		rc = m->mount_point ? 0 : -ENOMEM;
	}
	m->conf.mount_point = m->mount_point;
	if (rc)
		snprintf(err, 256, "cannot prepare %.200s: %s", m->masked_url, strerror(-rc));
	else
		rc = open_engine(m, url, err);
	if (rc) {
		destroy(m);
		return rc;
	}
	cfs_quotas_attach(m->quotas, m->eng);
	/* Engines may leave a message even when they succeed. */
	err[0] = '\0';
	*ret = m;
	return 0;
}

void cfs_meta_close(struct cfs_meta *m)
{
	if (!m)
		return;
	if (atomic_load(&m->started))
		cfs_meta_stop(m);
	destroy(m);
}

const char *cfs_meta_engine_name(struct cfs_meta *m)
{
	return m->eng->ops->name;
}

int cfs_meta_advise(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_advice_fn fn, void *arg)
{
	const struct cfs_adviser to = {.fn = fn, .arg = arg};

	if (!m->eng->ops->advise)
		return -ENOTSUP;
	return (int)CFS_CALL(c, m, CFS_META_OP_other, ctx, m->eng->ops->advise(m->eng, c.ctx, &to));
}

/* ---- the setting ---- */

int cfs_core_adopt_setting(struct cfs_meta *m, const char *text, const struct cfs_setting *s)
{
	struct cfs_volume_limits *limits = cfs_quotas_volume(m->quotas);
	struct cfs_setting *copy, *old;
	char *own_text = strdup(text), *old_text;
	int rc = own_text ? cfs_setting_copy(s, &copy) : -ENOMEM;

	if (rc) {
		free(own_text);
		return rc;
	}
	pthread_mutex_lock(&m->setting_lock);
	old = m->setting;
	old_text = m->setting_text;
	m->setting = copy;
	m->setting_text = own_text;
	pthread_mutex_unlock(&m->setting_lock);
	atomic_store(&m->trash_days, s->trash_days);
	atomic_store(&m->host.dir_stats, s->dir_stats);
	atomic_store(&m->host.changelog, s->changelog);
	atomic_store(&m->enable_acl, s->enable_acl);
	atomic_store(&limits->user_group_quota, s->user_group_quota);
	atomic_store(&limits->capacity, CFS_MIN(s->capacity, (uint64_t)INT64_MAX));
	atomic_store(&limits->max_inodes, CFS_MIN(s->inodes, (uint64_t)INT64_MAX));
	cfs_setting_free(old);
	free(old_text);
	return 0;
}

static int load(struct cfs_meta *m, struct cfs_setting **ret, char err[256])
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	cfs_auto_free char *text = NULL;
	uint64_t begun_ms = cfs_boot_ms();
	struct cfs_setting *s;
	int rc = m->eng->ops->get_setting(m->eng, &ctx, &text);

	if (rc == -ENODATA)
		snprintf(err, 256, "%.200s has no volume: format it first", m->masked_url);
	else if (rc)
		snprintf(err, 256, "cannot read the setting of %.200s: %s", m->masked_url,
			 strerror(-rc));
	if (rc)
		return rc;
	rc = cfs_setting_decode(text, strlen(text), &s, err);
	if (rc)
		return rc;
	rc = cfs_setting_check_version(s, err);
	if (!rc) {
		rc = cfs_core_adopt_setting(m, text, s);
		if (rc)
			snprintf(err, 256, "out of memory");
	}
	if (rc) {
		cfs_setting_free(s);
		return rc;
	}
	atomic_store(&m->host.seen_ms, begun_ms);
	*ret = s;
	return 0;
}

int cfs_meta_load(struct cfs_meta *m, struct cfs_setting **ret, char err[256])
{
	int rc = load(m, ret, err);

	return rc == -ETIMEDOUT ? -EIO : rc;
}

int cfs_meta_setting(struct cfs_meta *m, struct cfs_setting **ret)
{
	CFS_LOCK_GUARD(&m->setting_lock);

	return m->setting ? cfs_setting_copy(m->setting, ret) : -ENODATA;
}

static int replace_string(char **dst, const char *src)
{
	char *copy = strdup(src);

	if (!copy)
		return -ENOMEM;
	free(*dst);
	*dst = copy;
	return 0;
}

/* Checks and completes the setting that replaces `old`. */
static int prepare_update(const struct cfs_setting *old, struct cfs_setting *s, bool force,
			  char err[256])
{
	const char *field = cfs_setting_fixed_change(old, s);
	int rc;

	if (force && strcmp(old->name, s->name))
		return 0;
	/* Rows and objects stay, so it is the same volume. */
	rc = replace_string(&s->uuid, old->uuid);
	if (!rc)
		rc = cfs_setting_take_rest(s, old);
	if (rc || force)
		return rc;
	if (field)
		return cfs_fail(err, -EEXIST, "volume %s exists and its %s cannot change",
				old->name, field);
	if (old->enable_acl && !s->enable_acl)
		return cfs_fail(err, -EEXIST, "volume %s: ACLs cannot be switched off again",
				old->name);
	return 0;
}

static int make_record(struct cfs_setting *s, char **ret, char err[256])
{
	int rc = cfs_setting_normalise(s);

	if (!rc)
		rc = cfs_setting_encode(s, ret);
	if (rc)
		snprintf(err, 256, "cannot store the setting of volume %s: %s", s->name,
			 rc == -EINVAL ? "it has a text that is not UTF-8" : strerror(-rc));
	return rc;
}

static int format_existing(struct cfs_meta *m, const struct cfs_ctx *ctx, const char *old_text,
			   struct cfs_setting *s, bool force, char err[256])
{
	cfs_auto_free char *text = NULL;
	struct cfs_setting *old;
	struct cfs_usage usage = {0};
	cfs_ino_t trash;
	int rc;

	if (cfs_load_unfinished(old_text))
		return cfs_fail(
			err, -EEXIST,
			"%.130s has the remains of an unfinished load: load --restart begins again",
			m->masked_url);
	rc = cfs_setting_decode(old_text, strlen(old_text), &old, err);
	if (rc && !force)
		return rc;
	if (!rc) {
		rc = force ? 0 : cfs_setting_check_version(old, err);
		if (!rc)
			rc = prepare_update(old, s, force, err);
		cfs_setting_free(old);
		if (rc)
			return rc;
	}
	rc = make_record(s, &text, err);
	if (rc)
		return rc;
	rc = m->eng->ops->put_setting(m->eng, ctx, text);
	if (!rc && s->trash_days > 0)
		rc = m->eng->ops->trash_dir(m->eng, ctx, "", &trash, &usage);
	if (!rc)
		rc = cfs_core_adopt_setting(m, text, s);
	if (rc)
		snprintf(err, 256, "cannot update the setting of %.200s: %s", m->masked_url,
			 strerror(-rc));
	return rc;
}

static int format_empty(struct cfs_meta *m, const struct cfs_ctx *ctx, struct cfs_setting *s,
			char err[256])
{
	cfs_auto_free char *text = NULL;
	int rc = make_record(s, &text, err);

	if (rc)
		return rc;
	rc = m->eng->ops->create(m->eng, ctx, text, s->trash_days > 0);
	if (!rc)
		rc = cfs_core_adopt_setting(m, text, s);
	if (!rc)
		cfs_core_make_root_stat(m);
	if (rc)
		snprintf(err, 256, "cannot create a volume in %.180s: %s", m->masked_url,
			 strerror(-rc));
	return rc;
}

int cfs_meta_format(struct cfs_meta *m, const struct cfs_setting *wanted, bool force, char err[256])
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	cfs_auto_free char *old_text = NULL;
	struct cfs_setting *s;
	int rc = cfs_core_check_writable(m);

	if (!rc)
		rc = cfs_setting_copy(wanted, &s);
	if (rc)
		return cfs_fail(err, rc, "cannot format %.200s: %s", m->masked_url, strerror(-rc));
	rc = m->eng->ops->get_setting(m->eng, &ctx, &old_text);
	if (rc == -ENODATA)
		rc = format_empty(m, &ctx, s, err);
	else if (rc)
		snprintf(err, 256, "cannot read %.200s: %s", m->masked_url, strerror(-rc));
	else
		rc = format_existing(m, &ctx, old_text, s, force, err);
	cfs_setting_free(s);
	return rc == -ETIMEDOUT ? -EIO : rc;
}

/* ---- start and stop ---- */

static int stop(struct cfs_meta *m, bool leave)
{
	struct cfs_ctx ctx;
	int rc;

	if (!atomic_load(&m->started))
		return 0;
	cfs_jobs_stop(m);
	ctx = cfs_ctx_internal(leave ? CFS_MIN(m->conf.timeout_ms, (uint64_t)LEAVE_MS)
				     : m->conf.timeout_ms);
	cfs_dirtimes_stop(m, &ctx);
	rc = cfs_sessions_stop(m, leave);
	atomic_store(&m->started, false);
	atomic_store(&m->host.opens, false);
	return rc;
}

void cfs_meta_resume(struct cfs_meta *m, uint64_t sid, uint64_t ended)
{
	m->resume_sid = sid;
	m->ended_sid = ended;
}

int cfs_meta_set_cache_dir(struct cfs_meta *m, const char *dirs, bool writeback)
{
	m->writeback = writeback;
	m->cache_dir = strdup(dirs);
	return m->cache_dir ? 0 : -ENOMEM;
}

int cfs_meta_start(struct cfs_meta *m, const struct cfs_meta_hooks *hooks)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	int rc;

	if (!m->setting)
		return -ENODATA;
	if (hooks)
		m->hooks = *hooks;
	m->host.is_open = m->hooks.is_open;
	m->host.is_open_arg = m->hooks.arg;
	if (!m->conf.read_only) {
		rc = m->eng->ops->upgrade(m->eng, &ctx);
		if (rc)
			return rc;
	}
	rc = cfs_quotas_load(m->quotas, &ctx);
	if (!rc)
		rc = cfs_sessions_start(m);
	if (rc)
		return rc;
	atomic_store(&m->started, true);
	atomic_store(&m->host.opens, true);
	rc = cfs_jobs_start(m);
	if (rc)
		stop(m, m->resume_sid != 0);
	return rc;
}

int cfs_meta_stop(struct cfs_meta *m)
{
	return stop(m, false);
}

int cfs_meta_leave(struct cfs_meta *m)
{
	return stop(m, true);
}

uint64_t cfs_meta_sid(struct cfs_meta *m)
{
	return atomic_load(&m->host.sid);
}

int cfs_meta_sync(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	struct cfs_call c;
	int rc = 0;

	cfs_call_begin(&c, m, CFS_META_OP_other, ctx);
	if (m->eng->ops->sync && !m->conf.read_only)
		rc = m->eng->ops->sync(m->eng, c.ctx);
	rc = (int)cfs_call_end(&c, rc);
	return rc ? rc : cfs_meta_await_copy(m, ctx);
}

void cfs_meta_copy_to(struct cfs_meta *m, cfs_meta_copy_fn fn, void *arg, bool sync)
{
	m->copy = fn;
	m->copy_arg = arg;
	m->copy_in_sync = sync;
}

int cfs_meta_await_copy(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	return m->copy && m->copy_in_sync
		       ? (int)CFS_CALL(c, m, CFS_META_OP_other, ctx,
				       m->copy(m->copy_arg, true, c.ctx->deadline))
		       : 0;
}

bool cfs_meta_is_gone(const struct cfs_meta *m)
{
	return atomic_load(&m->gone);
}

void cfs_meta_refuse_changes(struct cfs_meta *m)
{
	atomic_store(&m->host.refuse_changes, true);
}

int cfs_meta_skip_slices(struct cfs_meta *m, const struct cfs_ctx *ctx, int64_t n)
{
	int64_t old;

	return (int)CFS_CALL(
		c, m, CFS_META_OP_counter, ctx,
		m->eng->ops->add_counter(m->eng, c.ctx, m->slice_ids.counter, n, &old));
}

int cfs_meta_sync_dirs(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	struct cfs_call c;
	int rc;

	cfs_call_begin(&c, m, CFS_META_OP_other, ctx);
	rc = (int)cfs_call_end(&c, cfs_dirtimes_store(m, c.ctx));
	return rc ? rc : cfs_meta_sync(m, ctx);
}
