/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beat: every so often the records of the others are read and our own is written. A member is
 * gone when its number stays the same, no clocks are compared.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "group-internal.h"

/* Beats of another member that must have passed without a new number, until it is gone. */
#define MISSED_MAX 3
/* Time after which the record of a member that is gone is removed. */
#define FORGOTTEN_MS (10 * 60 * 1000)
/* A new key is accepted at once, and used when the others have had so many beats to read it. */
#define KEY_BEATS 2
/* A group of so many is listed at every second beat, one of twice as many at every third... */
#define LISTED_MAX 128

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

/* Why we do not talk to each other; NULL: we do. One whose volume is not known has ours. */
static const char *set_apart(const struct cfs_group_member *us, const struct cfs_group_member *it)
{
	if (it->tls != us->tls)
		return it->tls ? "it has group-tls and this one has not"
			       : "this one has group-tls and it has not";
	if (it->volume[0] && us->volume[0] && strcmp(it->volume, us->volume) != 0)
		return "its volume is another one";
	return NULL;
}

/* A node is never changed in what a view depends on: it is replaced. */
static int new_node(struct cfs_group *g, const struct group_record *r, struct group_node **ret)
{
	const char *apart = set_apart(&g->self.member, &r->member);
	struct group_node *n = calloc(1, sizeof(*n));
	int rc = 0;

	if (!n)
		return -ENOMEM;
	atomic_init(&n->refs, 1);
	n->member = r->member;
	n->member.alive = true;
	n->member.self = r->member.id == g->self.member.id;
	n->member.apart = apart != NULL;
	n->boot = r->boot;
	n->number = r->number;
	n->beat_ms = r->beat_ms;
	n->heard = g->watched;
	if (apart)
		cfs_warn("member of the cache group is not asked, %s: group=%s member=%016" PRIx64
			 " host=%s",
			 apart, g->name, r->member.id, r->member.host);
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
	cfs_group_node_unref(old);
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

void cfs_group_drop_node(struct cfs_group *g, size_t i)
{
	cfs_group_node_unref(g->nodes[i]);
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
			cfs_group_drop_node(g, i);
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
				cfs_group_drop_node(g, i);
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

void cfs_group_use_key(struct cfs_group *g)
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
		cfs_group_use_key(g);
	} else if (r >= 0 && g->key_beats < KEY_BEATS && ++g->key_beats == KEY_BEATS) {
		cfs_group_use_key(g);
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
int cfs_group_beat_once(struct cfs_group *g)
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
	r2 = cfs_group_view_publish(g);
	if (r2 == 0)
		g->changed = false;
	return r < 0 ? r : r2;
}

void cfs_group_beat(void *arg)
{
	struct cfs_group *g = arg;
	int r = cfs_group_beat_once(g);

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
