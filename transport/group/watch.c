/* SPDX-License-Identifier: Apache-2.0 */
/* Judges from the records which members are alive: the leader's and its deputies' part. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "base/log.h"
#include "members.h"
#include "sorted.h"

/* Heartbeats without a change of its number after which a member is gone; the least time. */
#define MISSED_HEARTBEATS 2
#define QUIET_MIN_MS	  1500
/* Age after which an unchanged record is removed; removals at a time. */
#define FORGOTTEN_MS  (10 * 60 * 1000)
#define FORGOTTEN_MAX 64
/* Up to so many descriptions are read one by one; more by reading the whole table. */
#define INFOS_BY_NAME 16

struct members_watch {
	uint64_t boot, number, heartbeat_ms;
	uint64_t heard_ms; /* watched_ms when its number last changed */
	uint64_t info;	   /* identity of the description that its record names or has */
	uint64_t info_has; /* the same of the one that entry was made from */
	bool seen;	   /* it is in this listing */
	bool described;	   /* entry has been made; false, too, while its record is malformed */
	bool gone;
	struct cfs_roster_entry entry;
};

void cfs_members_forget_watch(struct cfs_members *m)
{
	free(m->watch);
	m->watch = NULL;
	m->n_watch = m->room_watch = 0;
	m->watch_ms = m->watched_ms = 0;
}

static uint64_t id_of(const void *element)
{
	return ((const struct members_watch *)element)->entry.id;
}

static int find_or_add(struct cfs_members *m, uint64_t id, struct members_watch **ret)
{
	size_t i = cfs_sorted_place(m->watch, m->n_watch, sizeof(*m->watch), id_of, id);

	if (i == m->n_watch || m->watch[i].entry.id != id) {
		if (CFS_ARRAY_ROOM(m->watch, m->n_watch, m->room_watch) < 0)
			return -ENOMEM;
		memmove(m->watch + i + 1, m->watch + i, (m->n_watch - i) * sizeof(*m->watch));
		m->n_watch++;
		m->watch[i] = (struct members_watch){.entry.id = id};
	}
	*ret = &m->watch[i];
	return 0;
}

/* Identifies a version of a description that has a record of its own. */
static uint64_t info_of(const struct group_record *r)
{
	return r->boot * 0x9e3779b97f4a7c15u + r->info;
}

static void describe(struct members_watch *w, const struct cfs_group_member *of, uint64_t info)
{
	w->info_has = info;
	w->described = true;
	w->entry = (struct cfs_roster_entry){
		.id = of->id,
		.weight = of->weight,
		.rank = of->rank,
		.fresh = of->fresh,
		.transport = of->transport,
		.memory_only = of->memory_only,
	};
	memcpy(w->entry.address, of->address, sizeof(w->entry.address));
	memcpy(w->entry.volume, of->volume, sizeof(w->entry.volume));
}

static int ignore_malformed(struct cfs_members *m, const char *key)
{
	if (!m->warned)
		cfs_warn("malformed record of a cache group is ignored: key=%s", key);
	m->warned = true;
	return 0;
}

static int see_malformed(struct cfs_members *m, const char *key, struct members_watch *w,
			 const void *value, size_t len)
{
	uint64_t text = cfs_roster_hash(value, len);

	if (w->described || !w->heard_ms || w->info != text)
		w->heard_ms = m->watched_ms;
	w->info = w->info_has = text;
	w->described = false;
	return ignore_malformed(m, key);
}

/* 0: not a member's key. */
static uint64_t id_of_key(const char *key)
{
	const char *text = strchr(key, '/');
	char *end = NULL;
	uint64_t id = text ? strtoull(text + 1, &end, 16) : 0;

	return id && end - text == 1 + 16 && !*end ? id : 0;
}

static int see(void *arg, const char *key, const void *value, size_t len)
{
	struct cfs_members *m = arg;
	struct group_record r = {0};
	struct members_watch *w;
	uint64_t id = id_of_key(key), info;
	bool is_new;
	size_t at;
	int rc;

	if (!id)
		return ignore_malformed(m, key);
	rc = find_or_add(m, id, &w);
	if (rc < 0)
		return rc;
	w->seen = true;
	if (cfs_group_decode_heartbeat(value, len, &r, &at) < 0)
		return see_malformed(m, key, w, value, len);
	is_new = !w->heard_ms;
	info = r.info ? info_of(&r) : cfs_roster_hash((const char *)value + at, len - at);
	if (!r.info && (!w->described || w->info_has != info)) {
		if (cfs_group_decode(value, len, &r) < 0 || r.member.id != id)
			return see_malformed(m, key, w, value, len);
		describe(w, &r.member, info);
	}
	w->info = info;
	w->heartbeat_ms = r.heartbeat_ms;
	if (is_new && id == m->silent)
		w->heard_ms = m->watched_ms - CFS_MIN(m->silent_ms, m->watched_ms);
	else if (is_new || w->boot != r.boot || w->number != r.number)
		w->heard_ms = m->watched_ms;
	w->boot = r.boot;
	w->number = r.number;
	return 0;
}

static bool lacks_info(const struct members_watch *w)
{
	return w->seen && w->info_has != w->info;
}

/* A description may be newer than the record that was read before it. */
static int see_info(void *arg, const char *key, const void *value, size_t len)
{
	struct cfs_members *m = arg;
	uint64_t id = id_of_key(key);
	size_t i = cfs_sorted_place(m->watch, m->n_watch, sizeof(*m->watch), id_of, id);
	struct group_record r;

	if (i == m->n_watch || m->watch[i].entry.id != id || !lacks_info(&m->watch[i]))
		return 0;
	if (cfs_group_decode_info(value, len, &r) < 0 || r.member.id != id)
		return ignore_malformed(m, key);
	describe(&m->watch[i], &r.member, info_of(&r));
	return 0;
}

/* After the records: the descriptions that have changed. */
static int read_infos(struct cfs_members *m)
{
	const struct cfs_group_registry *reg = m->registry;
	char key[CFS_GROUP_KEY_MAX];
	size_t i, n = 0;
	int r = 0;

	for (i = 0; i < m->n_watch; i++)
		n += lacks_info(&m->watch[i]);
	if (n > INFOS_BY_NAME) {
		cfs_group_info_table(m->name, key);
		return reg->each(reg->arg, key, see_info, m);
	}
	for (i = 0; i < m->n_watch && r >= 0; i++) {
		if (!lacks_info(&m->watch[i]))
			continue;
		cfs_group_info_key(m->name, m->watch[i].entry.id, key);
		r = reg->get(reg->arg, key, see_info, m);
		r = r == -ENOENT ? 0 : r;
	}
	return r;
}

static uint64_t quiet_ms(const struct cfs_members *m, const struct members_watch *w)
{
	return m->watched_ms - CFS_MIN(w->heard_ms, m->watched_ms);
}

static bool is_gone(const struct cfs_members *m, const struct members_watch *w)
{
	uint64_t most_ms = MISSED_HEARTBEATS * CFS_MAX(w->heartbeat_ms, m->heartbeat_ms);

	/* Rounded to the nearest tick. */
	return quiet_ms(m, w) + m->tick_ms / 2 >= CFS_MAX(most_ms, (uint64_t)QUIET_MIN_MS);
}

static void judge(struct cfs_members *m, struct members_watch *w)
{
	bool gone = !w->described || is_gone(m, w);

	if (gone && !w->gone && w->described && m->leading)
		cfs_info("member of the cache group is gone: group=%s member=%016" PRIx64
			 " address=%s",
			 m->name, w->entry.id, w->entry.address);
	w->gone = gone;
}

/* Judges all known members. Those without a record have left. */
static void judge_all(struct cfs_members *m)
{
	unsigned forgotten = 0;
	size_t i, n = 0;

	for (i = 0; i < m->n_watch; i++) {
		struct members_watch *w = &m->watch[i];
		bool seen = w->seen;

		w->seen = false;
		if (!seen)
			continue;
		judge(m, w);
		if (w->gone && m->leading && quiet_ms(m, w) > FORGOTTEN_MS &&
		    forgotten++ < FORGOTTEN_MAX)
			cfs_members_drop_record(m, w->entry.id);
		m->watch[n++] = *w;
	}
	m->n_watch = n;
}

int cfs_members_watch(struct cfs_members *m, uint64_t now_ms, uint64_t period_ms)
{
	uint64_t passed_ms = m->watch_ms ? CFS_MIN(now_ms - m->watch_ms, 2 * period_ms) : 0;
	char table[CFS_GROUP_KEY_MAX];
	int r;

	if (!m->watch_ms)
		m->watched_ms = FORGOTTEN_MS / 2; /* longer than any silence */
	m->watched_ms += passed_ms;
	m->watch_ms = now_ms;
	cfs_group_member_table(m->name, table);
	r = m->registry->each(m->registry->arg, table, see, m);
	if (r == 0)
		r = read_infos(m);
	if (r < 0) {
		/* While the registry was unreachable, silence of the others proves nothing. */
		m->watched_ms -= passed_ms;
		return r;
	}
	judge_all(m);
	return 0;
}

bool cfs_members_watched(const struct cfs_members *m, size_t i, const struct cfs_roster_entry **ret)
{
	*ret = &m->watch[i].entry;
	return !m->watch[i].gone;
}
