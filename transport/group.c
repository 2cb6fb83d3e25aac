/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of a member: joining, the beat, leaving; and the requests of the layers above.
 *
 * Who is there is kept twice: as nodes, which only the beat touches, and as a view, an unchanging
 * picture of them that requests hold while they use it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/activity.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/workers.h"
#include "group-internal.h"

#define BEAT_MS	   5000
#define TIMEOUT_MS 2000
#define CONNECT_MS 2000
/* Beats of another member that must have passed without a new number, until it is gone. */
#define MISSED_MAX 3
/* Time after which the record of a member that is gone is removed. */
#define FORGOTTEN_MS (10 * 60 * 1000)
/* A new key is accepted at once, and used when the others have had so many beats to read it. */
#define KEY_BEATS 2
/* A group of so many is listed at every second beat, one of twice as many at every third... */
#define LISTED_MAX 128

/* ---- views ---- */

static void unref_node(struct group_node *n)
{
	if (atomic_fetch_sub(&n->refs, 1) != 1)
		return;
	if (n->peer)
		cfs_peer_close(n->peer);
	free(n);
}

static void unref_view(struct group_view *v)
{
	size_t i;

	if (!v || atomic_fetch_sub(&v->refs, 1) != 1)
		return;
	for (i = 0; i < v->n; i++)
		unref_node(v->nodes[i]);
	cfs_placement_destroy(v->all);
	cfs_placement_destroy(v->settled);
	free(v);
}

static struct group_view *hold_view(struct cfs_group *g)
{
	struct group_view *v;

	pthread_mutex_lock(&g->lock);
	v = g->view;
	atomic_fetch_add(&v->refs, 1);
	pthread_mutex_unlock(&g->lock);
	return v;
}

static int place(const struct group_view *v, bool with_fresh, struct cfs_placement **ret)
{
	struct cfs_placement_member *m = calloc(v->n + 1, sizeof(*m));
	size_t i;
	int r;

	if (!m)
		return -ENOMEM;
	for (i = 0; i < v->n; i++) {
		const struct cfs_group_member *of = &v->nodes[i]->member;

		m[i].id = of->id;
		if (of->address[0] && !of->apart && (with_fresh || !of->fresh))
			m[i].weight = of->weight;
	}
	r = cfs_placement_create(m, v->n, ret);
	free(m);
	return r;
}

/* Who is alive now becomes what requests see. By the beat. */
static int publish_view(struct cfs_group *g)
{
	struct group_view *v = calloc(1, sizeof(*v) + g->n_nodes * sizeof(v->nodes[0])), *old;
	size_t i;
	int r;

	if (!v)
		return -ENOMEM;
	atomic_init(&v->refs, 1);
	for (i = 0; i < g->n_nodes; i++) {
		if (!g->nodes[i]->member.alive)
			continue;
		atomic_fetch_add(&g->nodes[i]->refs, 1);
		v->nodes[v->n++] = g->nodes[i];
	}
	r = place(v, true, &v->all);
	if (!r)
		r = place(v, false, &v->settled);
	if (r) {
		unref_view(v);
		return r;
	}
	pthread_mutex_lock(&g->lock);
	old = g->view;
	g->view = v;
	pthread_mutex_unlock(&g->lock);
	unref_view(old);
	return 0;
}

/* ---- the beat ---- */

static uint64_t beats_per_listing(const struct cfs_group *g)
{
	return 1 + g->n_nodes / LISTED_MAX;
}

static bool same_place(const struct cfs_group_member *a, const struct cfs_group_member *b)
{
	return a->weight == b->weight && a->fresh == b->fresh && a->tls == b->tls &&
	       strcmp(a->address, b->address) == 0;
}

static struct group_node *find_node(struct cfs_group *g, uint64_t id)
{
	size_t i;

	for (i = 0; i < g->n_nodes; i++) {
		if (g->nodes[i]->member.id == id)
			return g->nodes[i];
	}
	return NULL;
}

/* A node is never changed in what a view depends on: it is replaced. */
static int new_node(struct cfs_group *g, const struct group_record *r, struct group_node **ret)
{
	struct group_node *n = calloc(1, sizeof(*n));
	int rc = 0;

	if (!n)
		return -ENOMEM;
	atomic_init(&n->refs, 1);
	n->member = r->member;
	n->member.alive = true;
	n->member.self = r->member.id == g->self.member.id;
	n->member.apart = r->member.tls != g->self.member.tls;
	n->boot = r->boot;
	n->number = r->number;
	n->beat_ms = r->beat_ms;
	n->heard = g->watched;
	if (n->member.apart)
		cfs_warn("member of the cache group is not asked, %s: group=%s member=%016" PRIx64
			 " host=%s",
			 r->member.tls ? "it has group-tls and this one has not"
				       : "this one has group-tls and it has not",
			 g->name, r->member.id, r->member.host);
	else if (!n->member.self && r->member.address[0])
		rc = cfs_peer_open(g->transport, r->member.id, (const struct sockaddr *)&r->addr,
				   r->addr_len, &n->peer);
	if (rc) {
		free(n);
		return rc;
	}
	*ret = n;
	return 0;
}

static int add_node(struct cfs_group *g, const struct group_record *r)
{
	struct group_node **nodes = reallocarray(g->nodes, g->n_nodes + 1, sizeof(*nodes));
	int rc;

	if (!nodes)
		return -ENOMEM;
	g->nodes = nodes;
	rc = new_node(g, r, &nodes[g->n_nodes]);
	if (!rc)
		g->n_nodes++;
	return rc;
}

static int replace_node(struct cfs_group *g, struct group_node *old, const struct group_record *r)
{
	struct group_node *n;
	size_t i;
	int rc = new_node(g, r, &n);

	if (rc)
		return rc;
	for (i = 0; i < g->n_nodes; i++) {
		if (g->nodes[i] == old)
			g->nodes[i] = n;
	}
	unref_node(old);
	return 0;
}

static void see_own_record(struct cfs_group *g, const struct group_record *r)
{
	/* Before it is part of the group this is what it left behind when it was killed. */
	if (r->boot == g->self.boot || !g->view || atomic_exchange(&g->outcast, true))
		return;
	cfs_err("another mount has this member's id in the cache group, so this one leaves it: "
		"group=%s member=%016" PRIx64 " host=%s mount=%s",
		g->name, r->member.id, r->member.host, r->member.mount_point);
}

static int see_member(void *arg, const char *key, const void *value, size_t len)
{
	struct cfs_group *g = arg;
	struct group_record r;
	struct group_node *n;
	int rc;

	if (cfs_group_decode(value, len, &r) < 0) {
		if (!g->complained)
			cfs_warn("record of a cache group makes no sense and is left out: key=%s",
				 key);
		g->complained = true;
		return 0;
	}
	if (r.member.id == g->self.member.id) {
		see_own_record(g, &r);
		return 0;
	}
	n = find_node(g, r.member.id);
	if (!n) {
		rc = add_node(g, &r);
		if (rc < 0)
			return rc;
		g->changed = true;
		g->nodes[g->n_nodes - 1]->seen = true;
		return 0;
	}
	if (n->boot == r.boot && n->number == r.number) {
		n->seen = true; /* but nothing new of it */
		return 0;
	}
	if (!n->member.alive || !same_place(&n->member, &r.member)) {
		rc = replace_node(g, n, &r);
		if (rc < 0)
			return rc;
		g->changed = true;
		n = find_node(g, r.member.id);
	}
	n->seen = true;
	n->boot = r.boot;
	n->number = r.number;
	n->heard = g->watched;
	pthread_mutex_lock(&g->lock);
	n->member.cached_bytes = r.member.cached_bytes;
	pthread_mutex_unlock(&g->lock);
	return 0;
}

static void drop_node(struct cfs_group *g, size_t i)
{
	unref_node(g->nodes[i]);
	g->nodes[i] = g->nodes[--g->n_nodes];
}

/* Those without a new number for a while are silent, those without a record have left. */
static void age_nodes(struct cfs_group *g)
{
	size_t i;

	for (i = g->n_nodes; i-- > 0;) {
		struct group_node *n = g->nodes[i];
		uint64_t quiet_ms = (g->watched - CFS_MIN(n->heard, g->watched)) * g->beat_ms;

		if (n->member.self)
			continue;
		if (!n->seen) {
			g->changed = g->changed || n->member.alive;
			drop_node(g, i);
			continue;
		}
		n->seen = false;
		if (n->member.alive && quiet_ms > MISSED_MAX * CFS_MAX(n->beat_ms, g->beat_ms)) {
			cfs_info("member of the cache group is gone: group=%s member=%016" PRIx64
				 " address=%s",
				 g->name, n->member.id, n->member.address);
			pthread_mutex_lock(&g->lock);
			n->member.alive = false;
			pthread_mutex_unlock(&g->lock);
			g->changed = true;
		}
		if (!n->member.alive && quiet_ms > FORGOTTEN_MS) {
			char key[CFS_GROUP_KEY_MAX];

			cfs_group_member_key(g->name, n->member.id, key);
			if (g->registry.drop(g->registry.arg, key) == 0)
				drop_node(g, i);
		}
	}
}

static bool still_fresh(const struct cfs_group *g)
{
	return g->had_company && cfs_now_ms() - g->joined_ms < g->backup_ms;
}

static int put_self(struct cfs_group *g)
{
	char key[CFS_GROUP_KEY_MAX], *text;
	int r;

	if (atomic_load(&g->outcast))
		return 0;
	g->self.number++;
	if (g->cached_bytes)
		g->self.member.cached_bytes = g->cached_bytes(g->ops_arg);
	text = cfs_group_encode(&g->self);
	if (!text)
		return -ENOMEM;
	cfs_group_member_key(g->name, g->self.member.id, key);
	r = g->registry.put(g->registry.arg, key, text, strlen(text), false);
	free(text);
	/* Who may not write shares nothing, and need not be found. */
	return r == -EROFS && !g->shares ? 0 : r;
}

static int refresh_self(struct cfs_group *g)
{
	struct group_node *n = find_node(g, g->self.member.id);
	bool fresh = still_fresh(g);

	if (atomic_load(&g->outcast)) {
		if (!n || !n->member.alive)
			return 0;
		pthread_mutex_lock(&g->lock);
		n->member.alive = false;
		pthread_mutex_unlock(&g->lock);
		g->changed = true;
		return 0;
	}
	if (n && n->member.fresh == fresh)
		return 0;
	g->self.member.fresh = fresh;
	g->changed = true;
	return n ? replace_node(g, n, &g->self) : add_node(g, &g->self);
}

static void use_key(struct cfs_group *g)
{
	if (!g->key.has_old)
		cfs_transport_set_key(g->transport, g->key.now, NULL);
	else if (g->key_beats < KEY_BEATS)
		cfs_transport_set_key(g->transport, g->key.old, g->key.now);
	else
		cfs_transport_set_key(g->transport, g->key.now, g->key.old);
}

static int refresh_key(struct cfs_group *g)
{
	struct group_key key;
	int r = cfs_group_read_key(&g->registry, g->name, &key);

	if (r == 1 && memcmp(&key, &g->key, sizeof(key)) != 0) {
		g->key = key;
		g->key_beats = 0;
		use_key(g);
	} else if (r >= 0 && g->key_beats < KEY_BEATS && ++g->key_beats == KEY_BEATS) {
		use_key(g);
	}
	explicit_bzero(&key, sizeof(key));
	return r;
}

static int list_members(struct cfs_group *g)
{
	uint64_t beats = ++g->beats - g->listed;
	char prefix[CFS_GROUP_KEY_MAX];
	int r;

	if (g->view && beats < beats_per_listing(g))
		return 0;
	g->listed = g->beats;
	g->watched += beats;
	cfs_group_member_key(g->name, 0, prefix);
	r = g->registry.each(g->registry.arg, prefix, see_member, g);
	if (r < 0) {
		g->watched -= beats; /* the others could not be heard */
		return r;
	}
	age_nodes(g);
	if (!g->view)
		g->had_company = g->n_nodes > 0;
	return 0;
}

/* Members are listed before our record is written: one of ours that we did not write is seen. */
static int beat_once(struct cfs_group *g)
{
	int r, r2;

	r = refresh_key(g);
	if (r >= 0)
		r = list_members(g);
	r2 = refresh_self(g);
	if (r >= 0)
		r = r2;
	if (r >= 0)
		r = put_self(g);
	/* Whatever failed: what has been seen holds. */
	if (!g->changed || (r < 0 && !g->view))
		return r;
	r2 = publish_view(g);
	if (r2 == 0)
		g->changed = false;
	return r < 0 ? r : r2;
}

static void beat(void *arg)
{
	struct cfs_group *g = arg;
	int r = beat_once(g);

	atomic_fetch_add(&g->stat.beats, 1);
	if (r >= 0) {
		if (g->beat_failed)
			cfs_info("cache group is seen again: group=%s", g->name);
		g->beat_failed = false;
		return;
	}
	atomic_fetch_add(&g->stat.beat_errors, 1);
	if (!g->beat_failed)
		cfs_warn("cache group cannot be refreshed, its members stay as they were: "
			 "group=%s err=%s",
			 g->name, cfs_errname(r));
	g->beat_failed = true;
}

/* ---- joining and leaving ---- */

static int listen_address(const struct cfs_group_conf *conf, struct sockaddr_storage *ret,
			  socklen_t *ret_len, char err[256])
{
	int r;

	if (conf->address) {
		r = cfs_group_parse_address(conf->address, conf->port, ret, ret_len);
		if (r)
			snprintf(err, 256, "group-ip is not an address: %.200s", conf->address);
		return r;
	}
	r = cfs_address_pick(conf->network, ret, ret_len);
	if (r)
		snprintf(err, 256, "no private address%s%.64s to share the cache on: give group-ip",
			 conf->network ? " in " : "", conf->network ? conf->network : "");
	else
		cfs_group_set_port(ret, conf->port);
	return r;
}

static int start_transport(struct cfs_group *g, const struct cfs_group_conf *conf, char err[256])
{
	struct cfs_transport_conf tc = {
		.member = conf->member,
		.allow_public = conf->allow_public,
		.ops = conf->ops,
		.ops_arg = conf->ops_arg,
		/* Who has patience with answers has it with connecting, too. */
		.connect_timeout_ms = (unsigned)CFS_MAX(g->timeout_ms, CONNECT_MS),
		.max_conns_per_peer = conf->max_conns,
		.inflight_bytes = conf->inflight_bytes,
		.request_rate = conf->request_rate,
		.tls = conf->tls,
	};
	struct sockaddr_storage addr;
	int r;

	memcpy(tc.key, g->key.now, sizeof(tc.key));
	if (!conf->no_sharing) {
		r = listen_address(conf, &addr, &tc.listen_len, err);
		if (r)
			return r;
		tc.listen = (const struct sockaddr *)&addr;
	}
	r = cfs_transport_create(&tc, &g->transport, err);
	explicit_bzero(tc.key, sizeof(tc.key));
	if (r)
		return r;
	use_key(g);
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
	m->self = m->alive = true;
	m->tls = conf->tls;
	cfs_group_copy_text(m->host, sizeof(m->host), conf->host);
	cfs_group_copy_text(m->mount_point, sizeof(m->mount_point), conf->mount_point);
	cfs_group_copy_text(m->version, sizeof(m->version), conf->version);
	g->self.boot = cfs_random_u64() >> 1;
	g->self.beat_ms = g->beat_ms;
}

static int check_conf(const struct cfs_group_conf *conf, char err[256])
{
	if (!cfs_group_is_name(conf->name)) {
		snprintf(err, 256, "not a name of a cache group: %.100s", conf->name);
		return -EINVAL;
	}
	if (!conf->member || conf->replicas > CFS_GROUP_REPLICAS_MAX || conf->port > 65535) {
		snprintf(err, 256, "a setting of the cache group %.64s makes no sense", conf->name);
		return -EINVAL;
	}
	return 0;
}

static int begin(struct cfs_group *g, const struct cfs_group_conf *conf, char err[256])
{
	int r;

	r = cfs_group_get_key(&g->registry, g->name, &g->key);
	if (r) {
		snprintf(err, 256, "the key of cache group %s cannot be read: %s", g->name,
			 cfs_errname(r));
		return r;
	}
	r = start_transport(g, conf, err);
	if (r)
		return r;
	r = beat_once(g);
	if (!r)
		r = cfs_ticker_start("group", g->beat_ms, beat, g, &g->ticker);
	if (r)
		snprintf(err, 256, "cannot join cache group %s: %s", g->name, cfs_errname(r));
	return r;
}

int cfs_group_join(const struct cfs_group_conf *conf, struct cfs_group **ret, char err[256])
{
	struct cfs_group *g;
	int r = check_conf(conf, err);

	if (r)
		return r;
	g = calloc(1, sizeof(*g));
	if (!g) {
		snprintf(err, 256, "out of memory");
		return -ENOMEM;
	}
	pthread_mutex_init(&g->lock, NULL);
	snprintf(g->name, sizeof(g->name), "%s", conf->name);
	g->registry = conf->registry;
	g->beat_ms = conf->beat_ms ? conf->beat_ms : BEAT_MS;
	g->timeout_ms = conf->timeout_ms ? conf->timeout_ms : TIMEOUT_MS;
	g->backup_ms = conf->backup_ms;
	g->replicas = conf->replicas ? conf->replicas : 1;
	g->shares = !conf->no_sharing;
	cfs_hedging_init(&g->hedging, conf->hedge_percent);
	g->cached_bytes = conf->cached_bytes;
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
	char key[CFS_GROUP_KEY_MAX];

	if (g->ticker)
		cfs_ticker_stop(g->ticker);
	g->ticker = NULL;
	if (g->self.number > 0 && !atomic_load(&g->outcast)) {
		cfs_group_member_key(g->name, g->self.member.id, key);
		g->registry.drop(g->registry.arg, key);
	}
	if (g->transport)
		cfs_transport_drain(g->transport);
}

void cfs_group_destroy(struct cfs_group *g)
{
	while (g->n_nodes)
		drop_node(g, 0);
	unref_view(g->view);
	if (g->transport)
		(void)cfs_transport_destroy(g->transport); /* it has said so */
	explicit_bzero(&g->key, sizeof(g->key));
	pthread_mutex_destroy(&g->lock);
	free(g->nodes);
	free(g);
}

/* ---- requests ---- */

static unsigned pick(const struct group_view *v, const struct cfs_placement *p,
		     const struct cfs_peer_block *b, unsigned n, struct group_node **ret)
{
	unsigned index[CFS_PLACEMENT_PICK_MAX], i;

	n = cfs_placement_pick(p, cfs_placement_key(b->slice, b->index), n, index);
	for (i = 0; i < n; i++)
		ret[i] = v->nodes[index[i]];
	return n;
}

bool cfs_group_shares(struct cfs_group *g)
{
	return g->shares && !atomic_load_explicit(&g->outcast, memory_order_relaxed);
}

bool cfs_group_owns(struct cfs_group *g, const struct cfs_peer_block *b)
{
	struct group_node *owners[CFS_PLACEMENT_PICK_MAX];
	struct group_view *v = hold_view(g);
	unsigned n = pick(v, v->all, b, g->replicas, owners), i;
	bool found = false;

	for (i = 0; i < n; i++)
		found = found || owners[i]->member.self;
	unref_view(v);
	return found;
}

static ssize_t ask(struct cfs_group *g, struct group_node *n, const struct cfs_peer_block *b,
		   uint32_t off, uint32_t len, unsigned flags, const struct iovec *dst, int n_dst,
		   struct cfs_hedge *hedge, cfs_deadline_t deadline)
{
	ssize_t r;

	cfs_activity_wait(CFS_WAIT_PEER, b->slice, n->member.address);
	r = cfs_hedged_read(&g->hedging, &n->pace, n->peer, b, off, len, flags, dst, n_dst, hedge,
			    cfs_deadline_min(deadline, cfs_deadline_in(g->timeout_ms)));
	cfs_activity_wait_end();
	if (r >= 0) {
		atomic_fetch_add(&g->stat.hits, 1);
		atomic_fetch_add(&g->stat.hit_bytes, len);
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

/* The one to whom it belonged before fresh members came, this one among them. */
static ssize_t ask_previous(struct cfs_group *g, const struct group_view *v,
			    const struct cfs_peer_block *b, uint32_t off, uint32_t len,
			    const struct iovec *dst, int n_dst, bool nowait,
			    struct cfs_hedge *hedge, cfs_deadline_t deadline)
{
	struct group_node *previous;
	ssize_t r;

	if (!pick(v, v->settled, b, 1, &previous) || !previous->peer)
		return -ENOENT;
	if (nowait)
		return -EAGAIN;
	r = ask(g, previous, b, off, len, CFS_PEER_ONLY_CACHED, dst, n_dst, hedge, deadline);
	if (r >= 0)
		atomic_fetch_add(&g->stat.previous_hits, 1);
	return r;
}

static ssize_t ask_owners(struct cfs_group *g, const struct group_view *v,
			  const struct cfs_peer_block *b, uint32_t off, uint32_t len,
			  const struct iovec *dst, int n_dst, bool nowait, struct cfs_hedge *hedge,
			  cfs_deadline_t deadline, bool *ret_asked)
{
	struct group_node *owners[CFS_PLACEMENT_PICK_MAX];
	unsigned n = pick(v, v->all, b, g->replicas, owners), i;
	ssize_t r = -ENOENT;

	for (i = 0; i < n; i++) {
		if (owners[i]->member.self) {
			*ret_asked = *ret_asked || owners[i]->member.fresh;
			if (owners[i]->member.fresh)
				return ask_previous(g, v, b, off, len, dst, n_dst, nowait, hedge,
						    deadline);
			return -ENOENT;
		}
		if (nowait)
			return -EAGAIN;
		*ret_asked = true;
		r = ask(g, owners[i], b, off, len, 0, dst, n_dst, hedge, deadline);
		/* Another owner is no help where this one has answered, nor when time is up. */
		if (r >= 0 || r == -ENOENT || r == -ETIMEDOUT || r == -EALREADY || r == -ECANCELED)
			break;
	}
	return r;
}

ssize_t cfs_group_read(struct cfs_group *g, const struct cfs_peer_block *b, uint32_t off,
		       uint32_t len, const struct iovec *dst, int n_dst, bool nowait,
		       struct cfs_hedge *hedge, cfs_deadline_t deadline)
{
	struct group_view *v = hold_view(g);
	bool asked = false;
	ssize_t r = ask_owners(g, v, b, off, len, dst, n_dst, nowait, hedge, deadline, &asked);

	unref_view(v);
	if (r >= 0 || r == -EAGAIN || r == -EALREADY)
		return r;
	if (asked)
		atomic_fetch_add(&g->stat.misses, 1);
	if (r != -ENOENT)
		atomic_fetch_add(&g->stat.fallbacks, 1);
	return -ENOENT;
}

void cfs_group_hint(struct cfs_group *g, const struct cfs_peer_block *b, enum cfs_peer_hint hint)
{
	struct group_node *owners[CFS_PLACEMENT_PICK_MAX];
	struct group_view *v = hold_view(g);
	unsigned n = pick(v, v->all, b, g->replicas, owners), i;
	struct group_node *previous;

	for (i = 0; i < n; i++) {
		if (owners[i]->peer)
			cfs_peer_hint(owners[i]->peer, b, hint);
	}
	if (hint == CFS_PEER_FORGET && pick(v, v->settled, b, 1, &previous) && previous->peer &&
	    (n == 0 || previous != owners[0]))
		cfs_peer_hint(previous->peer, b, hint);
	unref_view(v);
}

int cfs_group_map(struct cfs_group *g, const struct cfs_peer_block *b,
		  uint64_t owners[CFS_GROUP_REPLICAS_MAX], int cached[CFS_GROUP_REPLICAS_MAX],
		  cfs_deadline_t deadline)
{
	struct group_node *nodes[CFS_PLACEMENT_PICK_MAX];
	struct group_view *v = hold_view(g);
	unsigned n = pick(v, v->all, b, g->replicas, nodes), i;

	for (i = 0; i < n; i++) {
		char byte;
		struct iovec dst = {.iov_base = &byte, .iov_len = 1};
		ssize_t r;

		owners[i] = nodes[i]->member.id;
		cached[i] = -ENOTSUP; /* ourselves: the caller knows */
		if (!nodes[i]->peer)
			continue;
		r = cfs_peer_read(nodes[i]->peer, b, 0, 1, CFS_PEER_ONLY_CACHED, &dst, 1,
				  cfs_deadline_min(deadline, cfs_deadline_in(g->timeout_ms)));
		cached[i] = r == 1 ? 1 : r == -ENOENT ? 0 : (int)r;
	}
	unref_view(v);
	return (int)n;
}

/* ---- what is shown ---- */

int cfs_group_each_member(struct cfs_group *g, cfs_group_member_fn fn, void *arg)
{
	struct group_view *v = hold_view(g);
	double sum = 0;
	size_t i, pass;
	int r = 0;

	for (i = 0; i < v->n; i++)
		sum += v->nodes[i]->member.apart ? 0 : v->nodes[i]->member.weight;
	for (pass = 0; pass < 2; pass++) {
		for (i = 0; i < v->n && !r; i++) {
			struct cfs_group_member m;

			if (v->nodes[i]->member.self != (pass == 0))
				continue;
			pthread_mutex_lock(&g->lock);
			m = v->nodes[i]->member;
			pthread_mutex_unlock(&g->lock);
			if (m.self && g->cached_bytes)
				m.cached_bytes = g->cached_bytes(g->ops_arg);
			m.share = sum > 0 && !m.apart ? m.weight / sum : 0;
			if (v->nodes[i]->peer)
				cfs_peer_stats(v->nodes[i]->peer, &m.asked, &m.state);
			r = fn(arg, &m);
		}
	}
	unref_view(v);
	return r;
}

void cfs_group_stats(struct cfs_group *g, struct cfs_group_stats *ret)
{
	struct group_view *v = hold_view(g);
	size_t i;

	*ret = (struct cfs_group_stats){
		.members = (unsigned)v->n,
		.hits = atomic_load(&g->stat.hits),
		.hit_bytes = atomic_load(&g->stat.hit_bytes),
		.misses = atomic_load(&g->stat.misses),
		.previous_hits = atomic_load(&g->stat.previous_hits),
		.fallbacks = atomic_load(&g->stat.fallbacks),
		.hedges = atomic_load(&g->hedging.hedges),
		.hedge_wins = atomic_load(&g->hedging.wins),
		.beats = atomic_load(&g->stat.beats),
		.beat_errors = atomic_load(&g->stat.beat_errors),
	};
	for (i = 0; i < v->n; i++)
		ret->apart += v->nodes[i]->member.apart;
	unref_view(v);
	cfs_transport_stats(g->transport, &ret->asked, &ret->served);
}
