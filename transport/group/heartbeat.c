/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tick: the members known to the registry become nodes, and a membership snapshot for requests.
 * The fields of a node that a snapshot depends on never change: the node is replaced.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "group-internal.h"
#include "members.h"
#include "sorted.h"

/* A new key is accepted at once. It is used after so many heartbeats, when all members have it. */
#define KEY_HEARTBEATS 2

static uint64_t id_of(const void *element)
{
	return (*(struct group_node *const *)element)->member.id;
}

static size_t place_of(const struct cfs_group *g, uint64_t id)
{
	return cfs_sorted_place(g->nodes, g->n_nodes, sizeof(*g->nodes), id_of, id);
}

static struct group_node *find_node(struct cfs_group *g, uint64_t id)
{
	size_t i = place_of(g, id);

	return i < g->n_nodes && g->nodes[i]->member.id == id ? g->nodes[i] : NULL;
}

static bool same_place(const struct cfs_group_member *a, const struct cfs_group_member *b)
{
	return a->weight == b->weight && a->rank == b->rank && a->fresh == b->fresh &&
	       a->transport == b->transport && a->memory_only == b->memory_only &&
	       strcmp(a->address, b->address) == 0 && strcmp(a->volume, b->volume) == 0;
}

/* The reason not to connect to each other; NULL: none. An unknown volume counts as ours. */
static const char *incompatibility(const struct cfs_group_member *us,
				   const struct cfs_group_member *it)
{
	if (it->transport != us->transport)
		return it->transport == CFS_PEER_TLS ? "it has group-tls and this one has not"
						     : "this one has group-tls and it has not";
	if (it->volume[0] && us->volume[0] && strcmp(it->volume, us->volume) != 0)
		return "its volume is another one";
	return NULL;
}

static int open_peer(struct cfs_group *g, struct group_node *n)
{
	struct sockaddr_storage addr;
	socklen_t len;
	int r = cfs_group_parse_endpoint(n->member.address, &addr, &len);

	return r < 0 ? r
		     : cfs_peer_open(g->transport, n->member.id, (const struct sockaddr *)&addr,
				     len, &n->peer);
}

static int new_node(struct cfs_group *g, const struct cfs_group_member *m, struct group_node **ret)
{
	const char *incompatible = incompatibility(&g->self.member, m);
	struct group_node *n = calloc(1, sizeof(*n));
	int rc = 0;

	if (!n)
		return -ENOMEM;
	n->refs = 1;
	cfs_slow_init(&n->latency.slow, cfs_group_judge, g);
	n->member = *m;
	n->member.incompatible = incompatible != NULL;
	if (incompatible)
		cfs_warn("member of the cache group is not asked, %s: group=%s member=%016" PRIx64
			 " address=%s",
			 incompatible, g->name, m->id, m->address);
	else if (!m->self && m->address[0])
		rc = open_peer(g, n);
	if (rc) {
		cfs_slow_destroy(&n->latency.slow);
		free(n);
		return rc;
	}
	*ret = n;
	return 0;
}

/* Adds a node, or replaces the one with its id. */
static int put_node(struct cfs_group *g, const struct cfs_group_member *m)
{
	size_t i = place_of(g, m->id);
	struct group_node **nodes, *n;
	int rc = new_node(g, m, &n);

	if (rc)
		return rc;
	g->changed = n->seen = true;
	if (i < g->n_nodes && g->nodes[i]->member.id == m->id) {
		cfs_group_node_unref(g->nodes[i]);
		g->nodes[i] = n;
		return 0;
	}
	nodes = reallocarray(g->nodes, g->n_nodes + 1, sizeof(*nodes));
	if (!nodes) {
		cfs_group_node_unref(n);
		return -ENOMEM;
	}
	g->nodes = nodes;
	memmove(nodes + i + 1, nodes + i, (g->n_nodes - i) * sizeof(*nodes));
	nodes[i] = n;
	g->n_nodes++;
	return 0;
}

static int see_entry(struct cfs_group *g, const struct cfs_roster_entry *e)
{
	struct cfs_group_member m = {
		.id = e->id,
		.weight = e->weight,
		.rank = e->rank,
		.fresh = e->fresh,
		.transport = e->transport,
		.memory_only = e->memory_only,
	};
	struct group_node *n = find_node(g, e->id);

	memcpy(m.address, e->address, sizeof(m.address));
	memcpy(m.volume, e->volume, sizeof(m.volume));
	if (n)
		n->seen = true;
	return n && same_place(&n->member, &m) ? 0 : put_node(g, &m);
}

static void drop_unseen(struct cfs_group *g)
{
	size_t i, n = 0;

	for (i = 0; i < g->n_nodes; i++) {
		struct group_node *node = g->nodes[i];

		if (node->seen || (node->member.self && !g->members->fenced)) {
			node->seen = false;
			g->nodes[n++] = node;
			continue;
		}
		cfs_info("member is not in the cache group any more: group=%s member=%016" PRIx64
			 " address=%s",
			 g->name, node->member.id, node->member.address);
		cfs_group_node_unref(node);
		g->changed = true;
	}
	g->n_nodes = n;
}

static int see_roster(struct cfs_group *g)
{
	const struct cfs_roster *list = &g->members->roster;
	size_t i;
	int r = 0;

	if (!g->members->changed)
		return 0;
	for (i = 0; i < list->n && r == 0; i++) {
		if (list->v[i].id != g->self.member.id)
			r = see_entry(g, &list->v[i]);
	}
	if (r == 0) {
		drop_unseen(g);
		g->members->changed = false;
	}
	return r;
}

static bool still_fresh(const struct cfs_group *g)
{
	return g->had_others && cfs_now_ms() - g->joined_ms < g->backup_ms;
}

/* Missing from the list for a while: others may have fetched and kept blocks that we own. */
static void note_absence(struct cfs_group *g)
{
	bool listed = cfs_roster_find(&g->members->roster, g->self.member.id);

	if (g->listed && !listed) {
		g->had_others = true;
		g->joined_ms = cfs_now_ms();
	}
	g->listed = listed;
}

static void note_keeping(struct cfs_group *g)
{
	bool keeps = !g->keeps || g->keeps(g->ops_arg);

	if (keeps != g->self.member.memory_only)
		return;
	g->self.member.memory_only = !keeps;
	if (keeps)
		cfs_info("the disk cache takes blocks again, this member owns its share: group=%s",
			 g->name);
	else
		cfs_warn(
			"the disk cache takes no blocks, this member owns none while others of the "
			"cache group can keep them: group=%s",
			g->name);
}

/*
 * Our address is gone. The interface may have another one (DHCP), and others are not reached there
 * before the record has it. Other interfaces are not tried: they may be a container's or a tunnel's.
 */
static void follow_address(struct cfs_group *g)
{
	struct sockaddr_storage addr;
	const struct sockaddr *sa = (const struct sockaddr *)&addr;
	char device[IF_NAMESIZE], text[CFS_ADDRESS_MAX];
	uint64_t now_ms = cfs_now_ms();
	socklen_t len;
	int r;

	if (!g->device[0] ||
	    cfs_address_is_ours((const struct sockaddr *)&g->self.addr, g->self.addr_len)) {
		g->moved_ms = 0;
		return;
	}
	if (!g->moved_ms)
		g->moved_ms = now_ms;
	/* The same address may come back, and another one may be about to come. */
	if (now_ms - g->moved_ms < g->heartbeat_ms)
		return;
	r = cfs_address_pick(g->network[0] ? g->network : NULL, g->device, &addr, &len, device);
	if (r < 0)
		return;
	cfs_group_set_port(&addr, cfs_group_port(&g->self.addr));
	cfs_address_format(sa, text);
	r = cfs_transport_listen(g->transport, sa, len);
	if (r < 0) {
		cfs_warn("cannot listen at the interface's other address, trying again: group=%s "
			 "address=%s error=%s",
			 g->name, text, cfs_errname(r));
		return;
	}
	cfs_info("this host's address has changed: group=%s previous=%s address=%s", g->name,
		 g->self.member.address, text);
	cfs_transport_address(g->transport, &g->self.addr, &g->self.addr_len);
	cfs_address_format((const struct sockaddr *)&g->self.addr, g->self.member.address);
	g->moved_ms = 0;
}

/* Updates our own record. A change that others use is written at once. */
static int refresh_self(struct cfs_group *g)
{
	struct cfs_group_member *m = &g->self.member;
	struct group_node *n = find_node(g, m->id);

	if (g->members->fenced) {
		atomic_store(&g->fenced, true);
		return 0;
	}
	note_absence(g);
	m->fresh = still_fresh(g);
	note_keeping(g);
	follow_address(g);
	m->rdma = cfs_transport_has_rdma(g->transport);
	if (g->cached_bytes)
		m->cached_bytes = g->cached_bytes(g->ops_arg);
	if (n && same_place(&n->member, m))
		return 0;
	cfs_members_hurry(g->members);
	return put_node(g, m);
}

void cfs_group_use_key(struct cfs_group *g)
{
	if (!g->key.has_old)
		cfs_transport_set_key(g->transport, g->key.now, NULL);
	else if (g->key_heartbeats < KEY_HEARTBEATS)
		cfs_transport_set_key(g->transport, g->key.old, g->key.now);
	else
		cfs_transport_set_key(g->transport, g->key.now, g->key.old);
}

static int refresh_key(struct cfs_group *g, uint64_t now_ms)
{
	struct group_key key;
	int r;

	if (g->snapshot && now_ms - g->key_ms + g->members->tick_ms / 2 < g->heartbeat_ms)
		return 0;
	g->key_ms = now_ms;
	r = cfs_group_read_key(&g->registry, g->name, &key);
	if (r == 1 && memcmp(&key, &g->key, sizeof(key)) != 0) {
		g->key = key;
		g->key_heartbeats = 0;
		cfs_group_use_key(g);
	} else if (r >= 0 && g->key_heartbeats < KEY_HEARTBEATS &&
		   ++g->key_heartbeats == KEY_HEARTBEATS) {
		cfs_group_use_key(g);
	}
	explicit_bzero(&key, sizeof(key));
	return r;
}

static int exchange(struct cfs_group *g, uint64_t now_ms)
{
	int r = refresh_key(g, now_ms), r2;

	if (r >= 0)
		r = cfs_members_read(g->members, now_ms);
	if (!g->snapshot)
		g->had_others = g->members->roster.n > 0;
	r2 = refresh_self(g);
	if (r >= 0)
		r = r2;
	if (r < 0)
		return r;
	r = cfs_members_write(g->members, now_ms);
	/* A member without write access to the registry shares nothing, so others need no record. */
	return r == -EROFS && !g->shares ? 0 : r;
}

int cfs_group_heartbeat_once(struct cfs_group *g)
{
	int r = exchange(g, cfs_now_ms()), r2 = see_roster(g);

	if (r >= 0)
		r = r2;
	/* On failure the last known members remain. */
	if (g->changed && (r >= 0 || g->snapshot)) {
		r2 = cfs_group_snapshot_publish(g);
		g->changed = r2 < 0;
		r = r < 0 ? r : r2;
	}
	cfs_group_snapshot_reap(g);
	return r;
}

int cfs_group_heartbeat_init(struct cfs_group *g)
{
	struct cfs_members *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->name = g->name;
	m->registry = &g->registry;
	m->self = &g->self;
	m->heartbeat_ms = g->heartbeat_ms;
	cfs_members_init(m);
	g->members = m;
	return 0;
}

void cfs_group_heartbeat_leave(struct cfs_group *g)
{
	if (g->members)
		cfs_members_leave(g->members);
}

void cfs_group_heartbeat_free(struct cfs_group *g)
{
	while (g->n_nodes)
		cfs_group_node_unref(g->nodes[--g->n_nodes]);
	if (g->members)
		cfs_members_free(g->members);
	free(g->members);
	free(g->nodes);
}

void cfs_group_heartbeat(void *arg)
{
	struct cfs_group *g = arg;
	int r = cfs_group_heartbeat_once(g);

	atomic_fetch_add(&g->stat.heartbeats, 1);
	if (r >= 0) {
		if (g->heartbeat_failed)
			cfs_info("cache group is seen again: group=%s", g->name);
		g->heartbeat_failed = false;
		return;
	}
	atomic_fetch_add(&g->stat.heartbeat_errors, 1);
	if (!g->heartbeat_failed)
		cfs_warn("cache group cannot be refreshed, its members stay as they were: "
			 "group=%s error=%s",
			 g->name, cfs_errname(r));
	g->heartbeat_failed = true;
}
