/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session of a mount: its record, the heartbeat that renews it and detects changes of the
 * volume, the flusher of usage, and the clean-up after dead sessions.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <jansson.h>
#include <net/if.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/workers.h"
#include "meta/api/call.h"
#include "meta/api/clock.h"
#include "meta/api/core.h"
#include "meta/api/file.h"
#include "meta/api/jobs.h"
#include "meta/api/locks.h"
#include "meta/api/rootstat.h"
#include "meta/api/session.h"

enum { FLUSH_QUOTA_MS = 3000, FLUSH_USAGE_MS = 1000, HEARTBEAT_MS = 12000 };
/* How long the storing of a block waits for the volume to be seen. */
enum { SEE_MS = 5000 };
enum { STALE_LIMIT = 1000, EXPIRE_BEATS = 5, SPARE_BEATS = 2, YEAR_S = 365 * 86400 };

struct cfs_sessions {
	struct cfs_ticker *heartbeat, *flusher;
	char *info;
	/* Used by the heartbeat only, once it runs. */
	bool lost;	   /* the mount was told to end */
	bool ended;	   /* the session has, and there is no other one yet */
	uint64_t replaced; /* the last session that has; its record expires, or goes at the end */
};

static uint64_t heartbeat_ms(const struct cfs_meta *m)
{
	return m->conf.heartbeat_ms ? m->conf.heartbeat_ms : HEARTBEAT_MS;
}

static int64_t expiry(const struct cfs_meta *m)
{
	int64_t life_s = YEAR_S;

	if (m->conf.heartbeat_ms)
		life_s = (int64_t)(EXPIRE_BEATS * m->conf.heartbeat_ms / 1000);
	return cfs_clock_latest_s(m) + (life_s ? life_s : 1);
}

/* ---- the record ---- */

static json_t *addresses(void)
{
	json_t *list = json_array();
	struct ifaddrs *all = NULL, *a;

	if (getifaddrs(&all))
		return list;
	for (a = all; a; a = a->ifa_next) {
		char text[NI_MAXHOST];
		size_t len;

		if (!a->ifa_addr || (a->ifa_flags & IFF_LOOPBACK) || !(a->ifa_flags & IFF_UP))
			continue;
		if (a->ifa_addr->sa_family == AF_INET)
			len = sizeof(struct sockaddr_in);
		else if (a->ifa_addr->sa_family == AF_INET6)
			len = sizeof(struct sockaddr_in6);
		else
			continue;
		if (getnameinfo(a->ifa_addr, (socklen_t)len, text, sizeof(text), NULL, 0,
				NI_NUMERICHOST))
			continue;
		text[strcspn(text, "%")] = '\0';
		json_array_append_new(list, json_string(text));
	}
	freeifaddrs(all);
	return list;
}

static int make_info(const struct cfs_meta *m, char **ret)
{
	struct timespec now = cfs_wall();
	char host[256] = "", day[32], stamp[64];
	struct tm tm;
	json_t *info;
	char *text;

	gethostname(host, sizeof(host) - 1);
	gmtime_r(&now.tv_sec, &tm);
	strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(stamp, sizeof(stamp), "%s.%09ldZ", day, now.tv_nsec);
	info = json_pack("{s:s,s:s,s:o,s:s,s:s,s:i}", "Version", CFS_COMPAT_VERSION "+cachefs-0.1",
			 "HostName", host, "IPAddrs", addresses(), "MountPoint",
			 m->mount_point ? m->mount_point : "", "MountTime", stamp, "ProcessID",
			 (int)getpid());
	/* JSON cannot hold a mount point that is not UTF-8. */
	if (!info)
		info = json_pack("{s:s,s:s,s:i}", "Version", CFS_COMPAT_VERSION "+cachefs-0.1",
				 "MountTime", stamp, "ProcessID", (int)getpid());
	/* A path that is not UTF-8 is left out. */
	if (info && m->cache_dir &&
	    json_object_set_new(info, "CacheDir", json_string(m->cache_dir)) == 0)
		json_object_set_new(info, "Writeback", json_boolean(m->writeback));
	text = info ? json_dumps(info, JSON_COMPACT) : NULL;
	json_decref(info);
	if (!text)
		return -ENOMEM;
	*ret = text;
	return 0;
}

/* -ENOENT: the session has ended. */
static int continue_session(struct cfs_meta *m, const struct cfs_ctx *ctx, uint64_t sid)
{
	int rc = m->eng->ops->resume_session(m->eng, ctx, sid, m->sessions->info, expiry(m));

	if (rc == -ENOENT)
		cfs_err("another client has ended the session, which was not refreshed in time: "
			"its file locks are lost, handles that had one fail with EIO: url=%s "
			"sid=%llu",
			m->masked_url, (unsigned long long)sid);
	return rc;
}

/*
 * Writes the record of a session that has ended again. Requests under way may still take locks
 * under it: these go when the record expires.
 */
static int bury_session(struct cfs_meta *m, const struct cfs_ctx *ctx, uint64_t sid)
{
	int rc = m->eng->ops->refresh_session(m->eng, ctx, sid, m->sessions->info, expiry(m));

	m->sessions->replaced = sid;
	return rc < 0 ? rc : 0;
}

static int resume_session(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	uint64_t sid = m->resume_sid;
	int rc = -ENOENT, rc2 = 0;

	if (sid != m->ended_sid)
		rc = continue_session(m, ctx, sid);
	if (!rc)
		atomic_store(&m->host.sid, sid);
	if (rc == -ENOENT)
		rc2 = bury_session(m, ctx, sid);
	else if (!rc && m->ended_sid)
		rc2 = bury_session(m, ctx, m->ended_sid);
	return rc2 ? rc2 : rc;
}

static int new_session(struct cfs_meta *m)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	uint64_t sid;
	int rc = make_info(m, &m->sessions->info);

	cfs_clock_read(m);
	if (!rc && m->resume_sid) {
		rc = resume_session(m, &ctx);
		if (rc != -ENOENT)
			return rc;
		rc = 0;
	}
	if (!rc)
		rc = m->eng->ops->new_session(m->eng, &ctx, m->sessions->info, expiry(m), &sid);
	if (!rc)
		atomic_store(&m->host.sid, sid);
	return rc;
}

/* ---- heartbeat ---- */

/*
 * The next session has another number: clients may still be cleaning up after this one, and drop
 * all locks of its number.
 */
static int replace_session(struct cfs_meta *m)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	uint64_t old = cfs_host_sid(&m->host), sid;
	int rc;

	if (m->hooks.session_ended)
		m->hooks.session_ended(m->hooks.arg, old);
	rc = bury_session(m, &ctx, old);
	if (!rc)
		rc = m->eng->ops->new_session(m->eng, &ctx, m->sessions->info, expiry(m), &sid);
	if (rc)
		return rc;
	atomic_store(&m->host.sid, sid);
	if (m->hooks.session_ended)
		m->hooks.session_ended(m->hooks.arg, old);
	cfs_locks_session_ended(m, old);
	cfs_info("using another session: sid=%llu", (unsigned long long)sid);
	return 0;
}

static void lose(struct cfs_meta *m, const char *reason)
{
	if (m->sessions->lost)
		return;
	m->sessions->lost = true;
	cfs_err("the volume is gone, the mount should end: url=%s reason=%s", m->masked_url,
		reason);
	if (m->hooks.lost)
		m->hooks.lost(m->hooks.arg, reason);
}

/* Another volume, or none, is in the place of this one. Nothing is written into it. */
static void refuse(struct cfs_meta *m)
{
	atomic_store(&m->gone, true);
	atomic_store(&m->host.refuse_changes, true);
}

static void vanish(struct cfs_meta *m, const char *reason)
{
	refuse(m);
	lose(m, reason);
}

/* 1: the setting is that of another volume. */
static int is_other_volume(struct cfs_meta *m, const char *text)
{
	struct cfs_setting *own;
	int rc = cfs_meta_setting(m, &own);

	if (!rc) {
		rc = cfs_setting_is_of_another(text, own->uuid);
		cfs_setting_free(own);
	}
	return rc;
}

static bool is_current(struct cfs_meta *m, const char *text)
{
	CFS_LOCK_GUARD(&m->setting_lock);

	return m->setting_text && !strcmp(m->setting_text, text);
}

static void adopt(struct cfs_meta *m, const char *text)
{
	struct cfs_setting *s;
	char err[256];
	int rc;

	if (is_other_volume(m, text) > 0) {
		vanish(m, "another volume is in its place");
		return;
	}
	rc = cfs_setting_decode(text, strlen(text), &s, err);
	if (rc) {
		cfs_err("the changed setting is not usable: url=%s reason=%s", m->masked_url, err);
		if (rc == -EPROTONOSUPPORT)
			lose(m, err);
		return;
	}
	if (cfs_core_adopt_setting(m, text, s) == 0) {
		cfs_info("the volume's setting was changed, using it from here on: volume=%s",
			 s->name);
		if (m->hooks.reloaded)
			m->hooks.reloaded(m->hooks.arg, s);
	}
	cfs_setting_free(s);
}

/*
 * cfs_host_check_volume(), on the thread of a change. The next heartbeat ends the mount of another
 * volume; it adopts another setting of the same one, or says why that is not usable.
 */
static int see_volume(void *arg, const struct cfs_ctx *ctx)
{
	struct cfs_meta *m = arg;
	cfs_auto_free char *text = NULL;
	uint64_t begun_ms = cfs_boot_ms();
	int rc = m->eng->ops->get_setting(m->eng, ctx, &text);

	if (!rc && !is_current(m, text))
		rc = is_other_volume(m, text);
	if (rc < 0 && rc != -ENODATA)
		return rc;
	if (!rc) {
		atomic_store(&m->host.seen_ms, begun_ms);
		return 0;
	}
	refuse(m);
	return -EROFS;
}

static void reload_setting(struct cfs_meta *m, const struct cfs_ctx *ctx)
{
	cfs_auto_free char *text = NULL;
	uint64_t begun_ms = cfs_boot_ms();
	int rc = m->eng->ops->get_setting(m->eng, ctx, &text);

	if (rc == -ENODATA) {
		vanish(m, "its record is missing");
		return;
	}
	if (rc) {
		cfs_warn("cannot read the setting, trying again at the next heartbeat: url=%s "
			 "error=%s",
			 m->masked_url, cfs_errname(rc));
		return;
	}
	if (!is_current(m, text))
		adopt(m, text);
	if (!cfs_meta_is_gone(m))
		atomic_store(&m->host.seen_ms, begun_ms);
}

static int refresh_session(struct cfs_meta *m)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	struct cfs_sessions *s = m->sessions;
	uint64_t sid = cfs_host_sid(&m->host);
	int rc = 0;

	if (!s->ended)
		rc = continue_session(m, &ctx, sid);
	if (rc == -ENOENT) {
		s->ended = true;
		/* The session may have gone with the whole volume. */
		reload_setting(m, &ctx);
	}
	if (cfs_meta_is_gone(m))
		return 0;
	if (s->ended) {
		rc = replace_session(m);
		s->ended = rc != 0;
	}
	return rc;
}

/* Ended sessions whose mounts may have left staged blocks. */
struct staging {
	int64_t now_s;
	json_t *info[STALE_LIMIT];
	int64_t ended_s[STALE_LIMIT]; /* at the earliest */
	size_t n;
};

struct sids {
	uint64_t own, v[STALE_LIMIT];
	int64_t expire_s[STALE_LIMIT];
	char *info[STALE_LIMIT];
	size_t n;
	struct staging staging;
};

static int note_sid(void *arg, const struct cfs_session *s)
{
	struct sids *sids = arg;

	if (s->sid == sids->own || sids->n == STALE_LIMIT)
		return 0;
	sids->info[sids->n] = strdup(s->info);
	if (!sids->info[sids->n])
		return -ENOMEM;
	sids->expire_s[sids->n] = s->expire_s;
	sids->v[sids->n++] = s->sid;
	return 0;
}

static const char *member(const json_t *info, const char *key)
{
	const char *text = json_string_value(json_object_get(info, key));

	return text ? text : "";
}

static void add_staging(struct staging *g, const char *text, int64_t ended_s)
{
	json_t *info = json_loads(text, 0, NULL);

	if (json_is_true(json_object_get(info, "Writeback"))) {
		g->ended_s[g->n] = ended_s;
		g->info[g->n++] = info;
	} else {
		json_decref(info);
	}
}

/* 0: unknown. */
static int64_t mounted_s(const json_t *info)
{
	struct tm tm = {0};

	return strptime(member(info, "MountTime"), "%Y-%m-%dT%H:%M:%S", &tm) ? timegm(&tm) : 0;
}

static bool alike(const json_t *a, const json_t *b, const char *key)
{
	return json_equal(json_object_get(a, key), json_object_get(b, key));
}

/* The mount goes on under another session, as after a suspension of its host. */
static bool goes_on(const json_t *live, const json_t *ended)
{
	return alike(live, ended, "HostName") && alike(live, ended, "ProcessID") &&
	       alike(live, ended, "MountTime");
}

/* Drops those whose blocks a live mount uploads: mounts look for staged blocks when they start. */
static int find_uploaded(void *arg, const struct cfs_session *s)
{
	struct staging *g = arg;
	json_t *live = s->expire_s >= g->now_s ? json_loads(s->info, 0, NULL) : NULL;
	size_t i, n = 0;

	for (i = 0; i < g->n; i++) {
		if (goes_on(live, g->info[i]) ||
		    (alike(live, g->info[i], "HostName") && alike(live, g->info[i], "CacheDir") &&
		     mounted_s(live) >= g->ended_s[i])) {
			json_decref(g->info[i]);
		} else {
			g->ended_s[n] = g->ended_s[i];
			g->info[n++] = g->info[i];
		}
	}
	g->n = n;
	json_decref(live);
	return 0;
}

/* Says where blocks may be that mounts of ended sessions had staged. */
static void tell_staged(struct cfs_meta *m, struct staging *g)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	bool sure = g->n && m->eng->ops->each_session(m->eng, &ctx, 0, 0, find_uploaded, g) >= 0;

	while (g->n) {
		json_t *info = g->info[--g->n];

		if (sure)
			cfs_warn("a mount with writeback stopped answering, and none has started "
				 "there with its cache-dir since: blocks that it has not uploaded "
				 "wait for one, other mounts cannot read them until then: host=%s "
				 "cache-dir=%s mount=%s",
				 member(info, "HostName"), member(info, "CacheDir"),
				 member(info, "MountPoint"));
		json_decref(info);
	}
}

/*
 * Runs until the next heartbeat is due: a longer run would make this session look dead. The next
 * run takes the rest. A session that cannot be cleaned does not delay the others.
 */
static void clean_stale(struct cfs_meta *m)
{
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	uint64_t beats_ms = (EXPIRE_BEATS + SPARE_BEATS) * heartbeat_ms(m);
	cfs_deadline_t end = cfs_deadline_in(heartbeat_ms(m));
	int64_t before_s = cfs_clock_earliest_s(m);
	struct sids *sids;
	size_t i;
	int rc;

	/* Live sessions look dead until their mounts' next heartbeats. */
	if (cfs_clock_jumped(m, EXPIRE_BEATS * CFS_MAX(heartbeat_ms(m), (uint64_t)HEARTBEAT_MS)))
		return;
	rc = m->eng->ops->claim_job(m->eng, &ctx, "lastCleanupSessions", cfs_clock_s(m),
				    (int64_t)(heartbeat_ms(m) * 9 / 10000));
	if (rc <= 0)
		return;
	sids = calloc(1, sizeof(*sids));
	if (!sids)
		return;
	sids->own = cfs_host_sid(&m->host);
	sids->staging.now_s = before_s;
	rc = m->eng->ops->each_session(m->eng, &ctx, before_s, STALE_LIMIT, note_sid, sids);
	for (i = 0; i < sids->n && rc >= 0 && !cfs_deadline_passed(end); i++) {
		int rc2;

		ctx = cfs_ctx_internal(m->conf.timeout_ms);
		rc2 = m->eng->ops->clean_session(m->eng, &ctx, sids->v[i], before_s);
		if (rc2 > 0) /* it answers again, or another client was faster */
			continue;
		cfs_info("cleaned up after a session that stopped answering: sid=%llu result=%s",
			 (unsigned long long)sids->v[i], rc2 ? cfs_errname(rc2) : "ok");
		if (!rc2)
			add_staging(&sids->staging, sids->info[i],
				    sids->expire_s[i] - (int64_t)(beats_ms / 1000));
	}
	if (sids->n)
		cfs_jobs_sweep(m);
	tell_staged(m, &sids->staging);
	while (sids->n)
		free(sids->info[--sids->n]);
	free(sids);
}

static void beat(struct cfs_meta *m)
{
	struct cfs_ctx ctx;
	int rc = 0;

	cfs_clock_read(m);
	if (cfs_host_sid(&m->host) && m->conf.heartbeat_ms)
		rc = refresh_session(m);
	if (rc && !cfs_meta_is_gone(m))
		cfs_warn("cannot refresh the session, trying again at the next heartbeat: url=%s "
			 "error=%s",
			 m->masked_url, cfs_errname(rc));
	/* Each of the rest would wait as long, and an unmount waits for this heartbeat. */
	if (rc == -ETIMEDOUT || rc == -ENOTCONN)
		return;
	ctx = cfs_ctx_internal(m->conf.timeout_ms);
	reload_setting(m, &ctx);
	if (cfs_meta_is_gone(m))
		return;
	ctx = cfs_ctx_internal(m->conf.timeout_ms);
	rc = cfs_quotas_load(m->quotas, &ctx);
	if (rc)
		cfs_warn("cannot read usage and quotas, trying again at the next heartbeat: url=%s "
			 "error=%s",
			 m->masked_url, cfs_errname(rc));
	if (!m->conf.read_only) {
		cfs_core_close_again(m, heartbeat_ms(m) / 2);
		cfs_locks_undo(m, heartbeat_ms(m) / 4);
	}
	if (!m->conf.read_only && !m->conf.no_bgjob)
		clean_stale(m);
}

static void send_heartbeat(void *arg)
{
	const struct cfs_meta *m = arg;

	if (m->sessions->lost && cfs_meta_is_gone(m))
		return;
	cfs_activity_wait(CFS_WAIT_META, 0, "heartbeat");
	beat(arg);
	cfs_activity_wait_end();
}

static void flush(void *arg)
{
	struct cfs_meta *m = arg;
	struct cfs_ctx ctx = cfs_ctx_internal(m->conf.timeout_ms);
	int rc;

	if (cfs_meta_is_gone(m))
		return;
	cfs_activity_wait(CFS_WAIT_META, 0, "usage");
	rc = cfs_quotas_flush(m->quotas, &ctx);
	cfs_activity_wait_end();
	if (rc)
		cfs_warn("cannot write usage, keeping it for the next try: url=%s error=%s",
			 m->masked_url, cfs_errname(rc));
}

/* ---- start and stop ---- */

static void free_sessions(struct cfs_meta *m)
{
	cfs_quotas_set_session(m->quotas, NULL);
	free(m->sessions->info);
	free(m->sessions);
	m->sessions = NULL;
}

static int start_tickers(struct cfs_meta *m)
{
	struct cfs_sessions *s = m->sessions;
	uint64_t flush_ms = m->eng->ops->inline_usage ? FLUSH_QUOTA_MS : FLUSH_USAGE_MS;
	int rc = cfs_ticker_start("meta-heartbeat", heartbeat_ms(m), send_heartbeat, m,
				  &s->heartbeat);

	if (rc || m->conf.read_only)
		return rc;
	return cfs_ticker_start("meta-flush", flush_ms, flush, m, &s->flusher);
}

int cfs_sessions_start(struct cfs_meta *m)
{
	int rc = 0;

	m->sessions = calloc(1, sizeof(*m->sessions));
	if (!m->sessions)
		return -ENOMEM;
	m->host.see = see_volume;
	m->host.see_arg = m;
	atomic_store_explicit(&m->host.seen_for_ms, cfs_ticker_longest_ms(heartbeat_ms(m)),
			      memory_order_release);
	if (!m->conf.read_only)
		rc = new_session(m);
	if (rc) {
		free_sessions(m);
		return rc;
	}
	cfs_quotas_set_session(m->quotas, m->sessions->info);
	if (!m->conf.read_only && !m->resume_sid)
		cfs_core_make_root_stat(m);
	rc = start_tickers(m);
	if (rc)
		cfs_sessions_stop(m, m->resume_sid != 0);
	return rc;
}

int cfs_sessions_stop(struct cfs_meta *m, bool leave)
{
	struct cfs_sessions *s = m->sessions;
	struct cfs_ctx ctx;
	int rc = 0, rc2 = 0;

	if (!s)
		return 0;
	if (s->heartbeat)
		cfs_ticker_stop(s->heartbeat);
	if (s->flusher)
		cfs_ticker_stop(s->flusher);
	if (!m->conf.read_only && !cfs_meta_is_gone(m)) {
		ctx = cfs_ctx_internal(m->conf.timeout_ms);
		cfs_activity_wait(CFS_WAIT_META, 0, "end of the session");
		rc = cfs_quotas_flush(m->quotas, &ctx);
		if (rc)
			cfs_warn("cannot write usage, 'cachefs fsck --repair' counts it again: "
				 "url=%s error=%s",
				 m->masked_url, cfs_errname(rc));
		if (!leave && s->replaced)
			m->eng->ops->clean_session(m->eng, &ctx, s->replaced, INT64_MAX);
		if (!leave)
			rc2 = m->eng->ops->clean_session(m->eng, &ctx, cfs_host_sid(&m->host),
							 INT64_MAX);
		if (rc2)
			cfs_warn("the session was not ended cleanly, it will expire: sid=%llu "
				 "error=%s",
				 (unsigned long long)cfs_host_sid(&m->host), cfs_errname(rc2));
		cfs_activity_wait_end();
		rc = rc ? rc : rc2;
	}
	if (!m->conf.read_only)
		atomic_store(&m->host.sid, 0);
	free_sessions(m);
	return rc;
}

void cfs_sessions_kick(struct cfs_meta *m)
{
	if (m->sessions && m->sessions->heartbeat)
		cfs_ticker_kick(m->sessions->heartbeat);
}

/*
 * While the metadata is away blocks are stored all the same, and heartbeats go on asking for the volume.
 */
int cfs_meta_check_volume(struct cfs_meta *m, cfs_deadline_t deadline)
{
	struct cfs_ctx ctx = cfs_ctx_internal(SEE_MS);
	uint64_t unseen_ms = atomic_load(&m->unseen_ms);
	int rc;

	if (cfs_meta_is_gone(m))
		return -EROFS;
	if (unseen_ms && cfs_boot_ms() < unseen_ms + atomic_load(&m->host.seen_for_ms))
		return 0;
	ctx.deadline = cfs_deadline_min(ctx.deadline, deadline);
	rc = cfs_host_check_volume(&m->host, &ctx);
	if (!rc || rc == -EROFS)
		return rc;
	atomic_store(&m->unseen_ms, cfs_boot_ms());
	return 0;
}

int cfs_meta_each_session(struct cfs_meta *m, const struct cfs_ctx *ctx, cfs_session_fn fn,
			  void *arg)
{
	struct cfs_call c;

	cfs_call_begin(&c, m, CFS_META_OP_session, ctx);
	return (int)cfs_call_end(&c,
				 m->eng->ops->each_session(m->eng, c.ctx, 0, SIZE_MAX, fn, arg));
}

static void read_clock(struct cfs_meta *m)
{
	cfs_activity_wait(CFS_WAIT_META, 0, cfs_meta_op_name(CFS_META_OP_session));
	cfs_clock_read(m);
	cfs_activity_wait_end();
}

int64_t cfs_meta_clock_s(struct cfs_meta *m)
{
	read_clock(m);
	return cfs_clock_earliest_s(m);
}

int64_t cfs_meta_shared_clock_s(struct cfs_meta *m)
{
	read_clock(m);
	return cfs_clock_s(m);
}
