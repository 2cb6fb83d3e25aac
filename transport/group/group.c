/* SPDX-License-Identifier: Apache-2.0 */
/* Joining and leaving, and the requests of the layers above. */
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/workers.h"
#include "group-internal.h"
#include "members.h"

#define HEARTBEAT_MS  5000
#define TIMEOUT_MS    2000
#define CONNECT_MS    2000
#define RESERVE_PARTS 8 /* of a read's time: reserve_ms() */
#define AT_ONCE_MS    100

/* ---- joining and leaving ---- */

/*
 * Of the unspecified address, other members would connect to their own machine. A link-local IPv6
 * address has no meaning without an interface of theirs.
 */
static bool is_for_others(const struct sockaddr_storage *addr)
{
	const struct in6_addr *a6 = &((const struct sockaddr_in6 *)addr)->sin6_addr;

	if (addr->ss_family == AF_INET)
		return ((const struct sockaddr_in *)addr)->sin_addr.s_addr != htonl(INADDR_ANY);
	return !IN6_IS_ADDR_UNSPECIFIED(a6) && !IN6_IS_ADDR_LINKLOCAL(a6);
}

static int listen_address(const struct cfs_group_conf *conf, struct sockaddr_storage *ret,
			  socklen_t *ret_len, char ret_device[IF_NAMESIZE], char err[256])
{
	int r;

	if (conf->address) {
		r = cfs_group_parse_address(conf->address, conf->port, ret, ret_len);
		if (r == 0 && !is_for_others(ret))
			r = -EINVAL;
		if (r)
			snprintf(err, 256,
				 "group-ip is not an address at which others reach this member: "
				 "%.150s",
				 conf->address);
		return r;
	}
	r = cfs_address_pick(conf->network, NULL, ret, ret_len, ret_device);
	if (r)
		snprintf(err, 256, "no private address%s%.64s to share the cache on: give group-ip",
			 conf->network ? " in " : "", conf->network ? conf->network : "");
	else
		cfs_group_set_port(ret, conf->port);
	return r;
}

/* A member that does not serve others has an address for RDMA, too. */
static int create_transport(struct cfs_group *g, const struct cfs_group_conf *conf,
			    struct cfs_transport_conf *tc, char err[256])
{
	struct sockaddr_storage addr;
	char device[IF_NAMESIZE];
	int r;

	if (conf->rdma != CFS_GROUP_RDMA_OFF &&
	    listen_address(conf, &addr, &tc->rdma_address_len, device, err) == 0) {
		tc->rdma_address = (const struct sockaddr *)&addr;
		tc->rdma_bytes = conf->rdma_bytes;
		tc->rdma_waits = conf->rdma == CFS_GROUP_RDMA_ON;
	}
	r = cfs_transport_create(tc, &g->transport, err);
	if (r == 0 || conf->rdma != CFS_GROUP_RDMA_AUTO || !tc->rdma_bytes)
		return r;
	cfs_info("RDMA is not available, TCP is used: error=%s", err);
	tc->rdma_bytes = 0;
	return cfs_transport_create(tc, &g->transport, err);
}

static int start_transport(struct cfs_group *g, const struct cfs_group_conf *conf, char err[256])
{
	struct cfs_transport_conf tc = {
		.member = conf->member,
		.allow_public = conf->allow_public,
		.ops = conf->ops,
		.ops_arg = conf->ops_arg,
		/* A longer timeout for answers applies to connecting, too. */
		.connect_timeout_ms = (unsigned)CFS_MAX(g->timeout_ms, CONNECT_MS),
		/* Refused before they would time out, other members turn to object storage at
		 * once. */
		.disk_timeout_ms = (unsigned)(g->timeout_ms - g->timeout_ms / 4),
		.max_conns_per_peer = conf->max_conns,
		.inflight_bytes = conf->inflight_bytes,
		.request_rate = conf->request_rate,
		.transport = conf->transport,
	};
	struct sockaddr_storage addr;
	int r;

	memcpy(tc.key, g->key.now, sizeof(tc.key));
	if (!conf->no_sharing) {
		snprintf(g->network, sizeof(g->network), "%s", conf->network ? conf->network : "");
		r = listen_address(conf, &addr, &tc.listen_len, g->device, err);
		if (r)
			return r;
		tc.listen = (const struct sockaddr *)&addr;
	}
	r = create_transport(g, conf, &tc, err);
	explicit_bzero(tc.key, sizeof(tc.key));
	if (r)
		return r;
	cfs_group_use_key(g);
	if (conf->no_sharing)
		return 0;
	cfs_transport_address(g->transport, &g->self.addr, &g->self.addr_len);
	cfs_address_format((const struct sockaddr *)&g->self.addr, g->self.member.address);
	return 0;
}

static void describe_self(struct cfs_group *g, const struct cfs_group_conf *conf)
{
	struct cfs_group_member *m = &g->self.member;

	m->id = conf->member;
	m->weight = conf->no_sharing ? 0 : conf->weight;
	m->rank = conf->no_sharing ? 0 : conf->weight ? conf->weight : CFS_GROUP_WEIGHT;
	m->self = true;
	m->transport = conf->transport;
	m->memory_only = conf->keeps && !conf->keeps(conf->ops_arg);
	cfs_group_copy_text(m->host, sizeof(m->host), conf->host);
	cfs_group_copy_text(m->mount_point, sizeof(m->mount_point), conf->mount_point);
	cfs_group_copy_text(m->version, sizeof(m->version), conf->version);
	cfs_group_copy_text(m->volume, sizeof(m->volume), conf->volume);
	g->self.boot = cfs_random_u64() >> 1;
	g->self.heartbeat_ms = g->heartbeat_ms;
}

static int check_conf(const struct cfs_group_conf *conf, char err[256])
{
	if (!cfs_group_is_name(conf->name))
		return cfs_fail(err, -EINVAL, "not a name of a cache group: %.100s", conf->name);
	if (!conf->member || conf->replicas > CFS_GROUP_REPLICAS_MAX || conf->port > 65535)
		return cfs_fail(err, -EINVAL, "a setting of the cache group %.64s is out of range",
				conf->name);
	return 0;
}

static int begin(struct cfs_group *g, const struct cfs_group_conf *conf, char err[256])
{
	int r;

	r = cfs_group_get_key(&g->registry, g->name, &g->key);
	if (r)
		return cfs_fail(err, r, "the key of cache group %s cannot be read: %s", g->name,
				strerror(-r));
	r = start_transport(g, conf, err);
	if (r)
		return r;
	r = cfs_group_heartbeat_init(g);
	if (!r)
		r = cfs_group_heartbeat_once(g);
	if (!r)
		r = cfs_ticker_start("group", g->members->tick_ms, cfs_group_heartbeat, g,
				     &g->ticker);
	if (r)
		snprintf(err, 256, "cannot join cache group %s: %s", g->name, strerror(-r));
	return r;
}

int cfs_group_join(const struct cfs_group_conf *conf, struct cfs_group **ret, char err[256])
{
	struct cfs_group *g;
	int r = check_conf(conf, err);

	if (r)
		return r;
	g = calloc(1, sizeof(*g));
	if (!g)
		return cfs_fail(err, -ENOMEM, "out of memory");
	pthread_mutex_init(&g->lock, NULL);
	snprintf(g->name, sizeof(g->name), "%s", conf->name);
	g->registry = conf->registry;
	g->heartbeat_ms = conf->heartbeat_ms ? conf->heartbeat_ms : HEARTBEAT_MS;
	g->timeout_ms = conf->timeout_ms ? conf->timeout_ms : TIMEOUT_MS;
	g->backup_ms = conf->backup_ms;
	g->replicas = conf->replicas ? conf->replicas : 1;
	g->shares = !conf->no_sharing;
	cfs_hedging_init(&g->hedging, conf->hedge_percent);
	g->cached_bytes = conf->cached_bytes;
	g->keeps = conf->keeps;
	g->bucket_us = conf->bucket_us;
	g->ops_arg = conf->ops_arg;
	g->joined_ms = cfs_now_ms();
	describe_self(g, conf);
	r = begin(g, conf, err);
	if (r) {
		cfs_group_leave(g);
		cfs_group_destroy(g);
		return r;
	}
	cfs_info("joined cache group: group=%s member=%016" PRIx64 " address=%s weight=%u", g->name,
		 g->self.member.id, g->shares ? g->self.member.address : "-",
		 g->self.member.weight);
	*ret = g;
	return 0;
}

void cfs_group_leave(struct cfs_group *g)
{
	if (g->ticker)
		cfs_ticker_stop(g->ticker);
	g->ticker = NULL;
	cfs_group_heartbeat_leave(g);
	if (g->transport)
		cfs_transport_drain(g->transport);
}

void cfs_group_destroy(struct cfs_group *g)
{
	cfs_group_heartbeat_free(g);
	cfs_group_snapshot_free(g);
	if (g->transport)
		(void)cfs_transport_destroy(g->transport); /* its stop was logged */
	explicit_bzero(&g->key, sizeof(g->key));
	pthread_mutex_destroy(&g->lock);
	free(g);
}

/* ---- requests ---- */

bool cfs_group_shares(struct cfs_group *g)
{
	return g->shares && !atomic_load_explicit(&g->fenced, memory_order_relaxed);
}

uint64_t cfs_group_service_us(uint64_t ns, uint64_t bytes, uint64_t answers)
{
	return cfs_slow_part_us(ns, bytes, answers);
}

bool cfs_group_owns(struct cfs_group *g, const struct cfs_peer_block *b)
{
	struct group_owner owners[CFS_PLACEMENT_PICK_MAX];
	struct group_snapshot *v = cfs_group_snapshot_ref(g);
	unsigned n = cfs_group_pick_askable(g, v, b, false, owners), i;
	bool found = false;

	for (i = 0; i < CFS_MIN(n, g->replicas); i++)
		found = found || owners[i].node->member.self;
	cfs_group_snapshot_unref(v);
	return found;
}

/*
 * The part of a read's time that is reserved for object storage. 0 if object storage needs longer for
 * these bytes: then only a peer that is already fetching them can have them in time.
 */
static uint64_t reserve_ms(const struct cfs_group *g, uint32_t len, uint64_t left_ms)
{
	uint64_t part_us = g->bucket_us ? g->bucket_us(g->ops_arg) : 0;
	uint64_t fetch_ms = part_us * (len + CFS_SLOW_ANSWER) / CFS_SLOW_PART / 1000;

	return fetch_ms > left_ms / RESERVE_PARTS ? 0 : left_ms / RESERVE_PARTS;
}

struct request {
	struct cfs_group *g;
	const struct cfs_peer_block *b;
	uint32_t off, len;
	const struct iovec *dst;
	int n_dst;
	bool nowait;
	struct cfs_hedge *hedge;
	cfs_deadline_t deadline;
	bool asked; /* another member */
};

static ssize_t ask(const struct request *q, struct group_node *n, unsigned flags)
{
	struct cfs_group *g = q->g;
	const struct cfs_peer_block *b = q->b;
	uint64_t left_ms = cfs_deadline_left_ms(q->deadline);
	const struct cfs_patience patience = {
		/* A silent peer leaves half of the time for others. */
		.silent_ms = CFS_MIN(g->timeout_ms, left_ms / 2),
		/* A peer that reports work waits for object storage, as this member would. */
		.reserve_ms = reserve_ms(g, q->len, left_ms),
		.deadline = q->deadline,
	};
	ssize_t r;

	cfs_activity_wait(CFS_WAIT_PEER, b->slice, n->member.address);
	r = cfs_hedged_read(&g->hedging, &n->latency, n->peer, b, q->off, q->len, flags, q->dst,
			    q->n_dst, q->hedge, &patience);
	cfs_activity_wait_end();
	if (r >= 0) {
		atomic_fetch_add(&g->stat.hits, 1);
		atomic_fetch_add(&g->stat.hit_bytes, q->len);
		return r;
	}
	if (r == -EBADMSG) {
		cfs_warn("peer sent wrong bytes, which are dropped: group=%s member=%016" PRIx64
			 " address=%s slice=%" PRIu64 " block=%u",
			 g->name, n->member.id, n->member.address, b->slice, b->index);
		cfs_peer_hint(n->peer, b, CFS_PEER_FORGET);
	}
	return r;
}

/* Picks other members that may have the block from earlier, the likeliest first. */
static unsigned pick_previous(const struct group_snapshot *v, const struct cfs_peer_block *b,
			      struct group_node *ret[CFS_PLACEMENT_PICK_MAX])
{
	unsigned n = cfs_group_snapshot_pick(v, v->previous, b, CFS_PLACEMENT_PICK_MAX, ret);
	unsigned i, others = 0;

	for (i = 0; i < n; i++) {
		if (ret[i]->peer)
			ret[others++] = ret[i];
	}
	return others;
}

/*
 * For an own block that this member may not have: asks the members that owned it before this one
 * joined, or before they were drained. Usually the first one has it. Otherwise the others are asked
 * for one byte, all at once, to find one that has it.
 */
static ssize_t ask_previous(const struct request *q, const struct group_snapshot *v)
{
	struct group_node *had[CFS_PLACEMENT_PICK_MAX];
	unsigned n = pick_previous(v, q->b, had);
	ssize_t r;
	int i;

	if (n == 0)
		return -ENOENT;
	if (q->nowait)
		return -EAGAIN;
	r = ask(q, had[0], CFS_PEER_ONLY_CACHED);
	if (r < 0 && r != -EALREADY && r != -ECANCELED && n > 1) {
		i = cfs_group_locate(
			had + 1, n - 1, q->b,
			cfs_deadline_min(q->deadline, cfs_deadline_in(q->g->timeout_ms)));
		if (i >= 0)
			r = ask(q, had[1 + i], CFS_PEER_ONLY_CACHED);
	}
	if (r >= 0)
		atomic_fetch_add(&q->g->stat.previous_hits, 1);
	return r;
}

static ssize_t ask_owners(struct request *q, const struct group_snapshot *v)
{
	struct group_owner owners[CFS_PLACEMENT_PICK_MAX];
	unsigned n = cfs_group_pick_askable(q->g, v, q->b, true, owners), flags = 0, left, i;
	uint64_t start_ms;
	ssize_t r = -ENOENT;

	for (i = 0, left = q->g->replicas; i < n && left > 0; i++) {
		struct group_node *node = owners[i].node;
		unsigned failover = owners[i].failover ? CFS_PEER_FAILOVER : 0;

		if (node->member.self && failover) {
			r = q->asked ? -EREMCHG : r;
			break;
		}
		if (node->member.self) {
			if (!node->member.fresh && !v->drained)
				return -ENOENT;
			q->asked = true;
			return ask_previous(q, v);
		}
		if (q->nowait)
			return -EAGAIN;
		q->asked = true;
		start_ms = cfs_now_ms();
		r = ask(q, node, flags | failover);
		/* After an answer of this owner, another one does not help. */
		if (r >= 0 || (r == -ENOENT && !flags) || r == -EALREADY || r == -ECANCELED)
			break;
		/* After a timeout the next member helps only if it has the block cached. */
		if (r == -ETIMEDOUT)
			flags = CFS_PEER_ONLY_CACHED;
		if (cfs_deadline_passed(q->deadline))
			break;
		/*
		 * Not counted as an owner: a member that became slow in this request, or refused it at
		 * once, since its disk hangs or it is at a limit.
		 */
		left -= r != -EBUSY ||
			!(cfs_slow_is(&node->latency.slow) || cfs_now_ms() - start_ms < AT_ONCE_MS);
	}
	return r;
}

ssize_t cfs_group_read(struct cfs_group *g, const struct cfs_peer_block *b, uint32_t off,
		       uint32_t len, const struct iovec *dst, int n_dst, bool nowait,
		       struct cfs_hedge *hedge, cfs_deadline_t deadline)
{
	struct request q = {
		.g = g,
		.b = b,
		.off = off,
		.len = len,
		.dst = dst,
		.n_dst = n_dst,
		.nowait = nowait,
		.hedge = hedge,
		.deadline = deadline,
	};
	struct group_snapshot *v = cfs_group_snapshot_ref(g);
	ssize_t r = ask_owners(&q, v);

	cfs_group_snapshot_unref(v);
	if (r >= 0 || r == -EAGAIN || r == -EALREADY)
		return r;
	if (q.asked)
		atomic_fetch_add(&g->stat.misses, 1);
	if (r != -ENOENT)
		atomic_fetch_add(&g->stat.fallbacks, 1);
	return r == -EREMCHG ? r : -ENOENT;
}

void cfs_group_hint(struct cfs_group *g, const struct cfs_peer_block *b, enum cfs_peer_hint hint)
{
	struct group_node *owners[CFS_PLACEMENT_PICK_MAX], *had[CFS_PLACEMENT_PICK_MAX];
	struct group_snapshot *v = cfs_group_snapshot_ref(g);
	unsigned n = cfs_group_snapshot_pick(v, v->all, b, g->replicas, owners), i, k;

	for (i = 0; i < n; i++) {
		if (owners[i]->peer)
			cfs_peer_hint(owners[i]->peer, b, hint);
	}
	/* Previous owners may still have it. */
	k = hint == CFS_PEER_FORGET ? pick_previous(v, b, had) : 0;
	while (k-- > 0) {
		for (i = 0; i < n && owners[i] != had[k]; i++)
			;
		if (i == n)
			cfs_peer_hint(had[k]->peer, b, hint);
	}
	cfs_group_snapshot_unref(v);
}

void cfs_group_replicate(struct cfs_group *g, const struct cfs_peer_block *b)
{
	struct group_node *owners[CFS_PLACEMENT_PICK_MAX];
	struct group_snapshot *v;
	unsigned n, i;

	if (g->replicas < 2)
		return;
	v = cfs_group_snapshot_ref(g);
	n = cfs_group_snapshot_pick(v, v->all, b, g->replicas, owners);
	for (i = 1; i < n && owners[0]->member.self; i++) {
		if (owners[i]->peer)
			cfs_peer_hint(owners[i]->peer, b, CFS_PEER_WARM);
	}
	cfs_group_snapshot_unref(v);
}

int cfs_group_map(struct cfs_group *g, const struct cfs_peer_block *b,
		  uint64_t owners[CFS_GROUP_REPLICAS_MAX], int cached[CFS_GROUP_REPLICAS_MAX],
		  cfs_deadline_t deadline)
{
	struct group_node *nodes[CFS_PLACEMENT_PICK_MAX];
	struct group_snapshot *v = cfs_group_snapshot_ref(g);
	unsigned n = cfs_group_snapshot_pick(v, v->all, b, g->replicas, nodes), i;

	for (i = 0; i < n; i++) {
		char byte;
		struct iovec dst = {.iov_base = &byte, .iov_len = 1};
		ssize_t r;

		owners[i] = nodes[i]->member.id;
		cached[i] = -ENOTSUP; /* ourselves: the caller knows its own state */
		if (!nodes[i]->peer)
			continue;
		r = cfs_peer_read(nodes[i]->peer, b, 0, 1, CFS_PEER_ONLY_CACHED, &dst, 1,
				  cfs_deadline_min(deadline, cfs_deadline_in(g->timeout_ms)));
		cached[i] = r == 1 ? 1 : r == -ENOENT ? 0 : (int)r;
	}
	cfs_group_snapshot_unref(v);
	return (int)n;
}

/* ---- status ---- */

struct shown {
	struct cfs_group_member *v; /* sorted by id */
	size_t n;
};

static int by_id(const void *a, const void *b)
{
	const struct cfs_group_member *x = a, *y = b;

	return CFS_COMPARE(x->id, y->id);
}

/* Adds the fields that only the member's record in the registry has. */
static int describe(void *arg, const char *group, const struct cfs_group_member *m)
{
	struct shown *s = arg;
	struct cfs_group_member *of = bsearch(m, s->v, s->n, sizeof(*s->v), by_id);

	if (of) {
		memcpy(of->host, m->host, sizeof(of->host));
		memcpy(of->mount_point, m->mount_point, sizeof(of->mount_point));
		memcpy(of->version, m->version, sizeof(of->version));
		of->cached_bytes = m->cached_bytes;
		of->rdma = m->rdma;
	}
	return 0;
}

static void show_peer(const struct group_snapshot *v, struct group_node *n, double sum,
		      struct cfs_group_member *m)
{
	*m = n->member;
	m->share = sum > 0 ? cfs_group_snapshot_weight(v, m) / sum : 0;
	if (n->peer)
		cfs_peer_stats(n->peer, &m->asked, &m->state);
}

int cfs_group_each_member(struct cfs_group *g, cfs_group_member_fn fn, void *arg)
{
	struct group_snapshot *v = cfs_group_snapshot_ref(g);
	struct shown s = {.v = calloc(v->n + 1, sizeof(*s.v)), .n = v->n};
	int r = s.v ? 0 : -ENOMEM, pass;
	double sum = 0;
	size_t i;

	for (i = 0; i < v->n; i++)
		sum += cfs_group_snapshot_weight(v, &v->nodes[i]->member);
	for (i = 0; i < v->n && !r; i++)
		show_peer(v, v->nodes[i], sum, &s.v[i]);
	/* Without the registry, members are shown without host and mount point. */
	if (!r)
		(void)cfs_group_list_one(&g->registry, g->name, describe, &s);
	for (pass = 0; pass < 2; pass++) {
		for (i = 0; i < s.n && !r; i++) {
			if (s.v[i].self != (pass == 0))
				continue;
			if (s.v[i].self && g->cached_bytes)
				s.v[i].cached_bytes = g->cached_bytes(g->ops_arg);
			r = fn(arg, &s.v[i]);
		}
	}
	free(s.v);
	cfs_group_snapshot_unref(v);
	return r;
}

void cfs_group_stats(struct cfs_group *g, struct cfs_group_stats *ret)
{
	struct group_snapshot *v = cfs_group_snapshot_ref(g);
	size_t i;

	*ret = (struct cfs_group_stats){
		.members = (unsigned)v->n,
		.hits = atomic_load(&g->stat.hits),
		.hit_bytes = atomic_load(&g->stat.hit_bytes),
		.misses = atomic_load(&g->stat.misses),
		.previous_hits = atomic_load(&g->stat.previous_hits),
		.fallbacks = atomic_load(&g->stat.fallbacks),
		.async = atomic_load(&g->stat.async),
		.async_repeats = atomic_load(&g->stat.async_repeats),
		.hedges = atomic_load(&g->hedging.hedges),
		.hedge_wins = atomic_load(&g->hedging.wins),
		.heartbeats = atomic_load(&g->stat.heartbeats),
		.heartbeat_errors = atomic_load(&g->stat.heartbeat_errors),
	};
	for (i = 0; i < v->n; i++) {
		ret->incompatible += v->nodes[i]->member.incompatible;
		ret->slow += cfs_slow_is(&v->nodes[i]->latency.slow);
	}
	cfs_group_snapshot_unref(v);
	cfs_transport_stats(g->transport, &ret->asked, &ret->served);
}
