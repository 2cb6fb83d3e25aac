/* SPDX-License-Identifier: Apache-2.0 */
/* Follows the member list, and writes this member's own record. */
#include "members.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/log.h"

#define TICKS_PER_HEARTBEAT 4
#define TICK_MIN_MS	    20
#define LOOK_TICKS	    2
#define LEASE_TICKS	    3
#define DEPUTIES	    4
#define WATCH_TICKS	    2	 /* of deputies */
#define SETTLING_HEARTBEATS 3	 /* until a new leader has judged all members */
#define LOST_MAX	    3	 /* failed reads in a row, then the list is written anew */
#define LEASE_MIN_MS	    1000 /* allows for a busy machine */

void cfs_members_init(struct cfs_members *m)
{
	m->tick_ms = CFS_MAX(m->heartbeat_ms / TICKS_PER_HEARTBEAT, (uint64_t)TICK_MIN_MS);
}

void cfs_members_free(struct cfs_members *m)
{
	cfs_members_forget_watch(m);
	cfs_roster_free(&m->roster);
	free(m->own);
	free(m->own_info);
	m->own = m->own_info = NULL;
}

void cfs_members_hurry(struct cfs_members *m)
{
	m->put_ms = 0;
}

void cfs_members_list_key(const struct cfs_members *m, char key[CFS_GROUP_KEY_MAX], const char *fmt,
			  ...)
{
	int n = snprintf(key, CFS_GROUP_KEY_MAX, "group.list.%s/", m->name);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(key + n, (size_t)(CFS_GROUP_KEY_MAX - n), fmt, ap);
	va_end(ap);
}

/* ---- following ---- */

static int see_head(void *arg, const char *key, const void *value, size_t len)
{
	char *text = arg;

	if (len >= CFS_MEMBERS_HEAD_MAX)
		return -EINVAL;
	memcpy(text, value, len);
	text[len] = '\0';
	return 0;
}

int cfs_members_read_head(struct cfs_members *m, struct members_head *ret,
			  char ret_text[CFS_MEMBERS_HEAD_MAX])
{
	char key[CFS_GROUP_KEY_MAX];
	struct members_head h = {0};
	int r;

	cfs_members_list_key(m, key, "head");
	r = m->registry->get(m->registry->arg, key, see_head, ret_text);
	if (r < 0)
		return r;
	if (sscanf(ret_text,
		   "%" SCNx64 " %" SCNx64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
		   " %" SCNu64 " %u %" SCNx64 " %u",
		   &h.leader, &h.nonce, &h.serial, &h.tick_ms, &h.version, &h.log, &h.full,
		   &h.pieces, &h.sum, &h.infos) < 9)
		return -EINVAL;
	*ret = h;
	return 0;
}

static int see_text(void *arg, const char *key, const void *value, size_t len)
{
	return cfs_roster_apply(arg, value, len);
}

static int apply_full_list(struct cfs_members *m, struct cfs_roster *to)
{
	char key[CFS_GROUP_KEY_MAX];
	unsigned i;
	int r = 0;

	for (i = 0; i < m->head.pieces && r == 0; i++) {
		cfs_members_list_key(m, key, "s%" PRIu64 ".%" PRIx64 ".%u", m->head.full,
				     m->head.nonce, i);
		r = m->registry->get(m->registry->arg, key, see_text, to);
	}
	return r;
}

static int apply_changes(struct cfs_members *m, uint64_t from, struct cfs_roster *to)
{
	char key[CFS_GROUP_KEY_MAX];
	int r = 0;

	while (from < m->head.version && r == 0) {
		cfs_members_list_key(m, key, "d%" PRIu64 ".%" PRIx64, ++from, m->head.nonce);
		r = m->registry->get(m->registry->arg, key, see_text, to);
	}
	return r;
}

/* -EINVAL: the list does not have the head's checksum. */
static int take(struct cfs_members *m, struct cfs_roster *next)
{
	if (next->sum != m->head.sum)
		return -EINVAL;
	cfs_roster_free(&m->roster);
	m->roster = *next;
	*next = (struct cfs_roster){0};
	m->version = m->head.version;
	m->known = m->changed = true;
	return 0;
}

static int follow_changes(struct cfs_members *m)
{
	struct cfs_roster next = {0};
	int r = cfs_roster_copy(&m->roster, &next);

	if (r == 0)
		r = apply_changes(m, m->version, &next);
	if (r == 0)
		r = take(m, &next);
	cfs_roster_free(&next);
	return r;
}

static int follow_full_list(struct cfs_members *m)
{
	struct cfs_roster next = {0};
	int r = apply_full_list(m, &next);

	if (r == 0)
		r = apply_changes(m, m->head.full, &next);
	if (r == 0)
		r = take(m, &next);
	cfs_roster_free(&next);
	return r;
}

int cfs_members_follow(struct cfs_members *m)
{
	const struct members_head *h = &m->head;
	int r = -ENOENT;

	if (m->known && m->version == h->version && m->roster.sum == h->sum)
		return 0;
	if (m->known && m->version >= h->log && m->version < h->version)
		r = follow_changes(m);
	if (r == -ENOENT || r == -EINVAL)
		r = follow_full_list(m);
	/* The records were replaced meanwhile; the next head names the new ones. */
	return r == -ENOENT ? -EAGAIN : r;
}

unsigned cfs_members_deputy(const struct cfs_members *m)
{
	unsigned rank = 0;
	size_t i;

	for (i = 0; i < m->roster.n && rank < DEPUTIES; i++) {
		const struct cfs_roster_entry *e = &m->roster.v[i];

		if (!e->address[0] || e->id == m->head.leader)
			continue;
		rank++;
		if (e->id == m->self->member.id)
			return rank;
	}
	return 0;
}

/* The leader is silent, and it is our turn to take over. */
static bool is_left(const struct cfs_members *m)
{
	uint64_t ticks_ms = LEASE_TICKS * CFS_MAX(m->head.tick_ms, m->tick_ms);
	uint64_t lease_ms = CFS_MAX(ticks_ms, (uint64_t)LEASE_MIN_MS);
	uint64_t quiet_ms = m->looked_ms - m->heard_ms;
	unsigned deputy = cfs_members_deputy(m);

	if (m->read_only || m->fenced)
		return false;
	if (m->lost >= LOST_MAX)
		return true;
	if (deputy == 1 && m->head.tick_ms == 0)
		return true;
	/* Takeovers are staggered; deputies, which know the others' heartbeats, come first. */
	if (deputy)
		return quiet_ms > lease_ms + (deputy - 1) * m->tick_ms;
	return quiet_ms > 2 * lease_ms + m->tick_ms + m->self->boot % lease_ms;
}

static int claim(struct cfs_members *m, uint64_t now_ms)
{
	int r = cfs_members_claim(m, now_ms);

	if (r == -EROFS)
		m->read_only = true;
	return r == -EROFS || r == -ESTALE || r == -EEXIST ? 0 : r;
}

/* No member can read it, and its leader cannot replace it. The next look claims the list. */
static void drop_head(struct cfs_members *m)
{
	char key[CFS_GROUP_KEY_MAX];

	cfs_members_list_key(m, key, "head");
	cfs_warn("head of the member list cannot be read, it is removed: key=%s", key);
	m->registry->drop(m->registry->arg, key);
	m->lost = 0;
}

static int look(struct cfs_members *m, uint64_t now_ms)
{
	uint64_t most_ms = 2 * LOOK_TICKS * m->tick_ms;
	char text[CFS_MEMBERS_HEAD_MAX];
	struct members_head h;
	int r = cfs_members_read_head(m, &h, text);

	if (r == -ENOENT && !m->read_only && !m->fenced) {
		m->head_text[0] = '\0';
		return claim(m, now_ms);
	}
	if (r == -EINVAL && !m->read_only && !m->fenced && ++m->lost >= LOST_MAX) {
		drop_head(m);
		return r;
	}
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (m->look_ms)
		m->looked_ms += CFS_MIN(now_ms - m->look_ms, most_ms);
	m->look_ms = now_ms;
	if (strcmp(text, m->head_text) != 0) {
		if (h.nonce != m->head.nonce)
			m->led_ms = m->looked_ms;
		m->heard_ms = m->looked_ms;
		if (h.infos != m->head.infos)
			cfs_members_hurry(m);
		m->head = h;
		memcpy(m->head_text, text, sizeof(text));
	}
	r = cfs_members_follow(m);
	m->lost = r == -EAGAIN || r == -EINVAL ? m->lost + 1 : 0;
	return is_left(m) ? claim(m, now_ms) : r;
}

/* ---- our own record ---- */

static int see_own(void *arg, const char *key, const void *value, size_t len)
{
	char **text = arg;

	*text = strndup(value, len);
	return *text ? 0 : -ENOMEM;
}

static int see_own_info(void *arg, const char *key, const void *value, size_t len)
{
	return cfs_group_decode_info(value, len, arg);
}

static void fence(struct cfs_members *m, const char *text)
{
	struct group_record r = {0};
	char key[CFS_GROUP_KEY_MAX];

	cfs_group_info_key(m->name, m->self->member.id, key);
	if (cfs_group_decode(text, strlen(text), &r) < 0)
		(void)m->registry->get(m->registry->arg, key, see_own_info, &r);
	cfs_err("another mount has this member's id in the cache group, so this one leaves it: "
		"group=%s member=%016" PRIx64 " host=%s mount=%s",
		m->name, m->self->member.id, r.member.host, r.member.mount_point);
	m->fenced = m->changed = true;
}

static int write_own_info(const struct cfs_members *m)
{
	char key[CFS_GROUP_KEY_MAX];

	cfs_group_info_key(m->name, m->self->member.id, key);
	return m->registry->put(m->registry->arg, key, m->own_info, strlen(m->own_info), false);
}

/* Written before the record that names its version. -ESTALE: not the one that we wrote last. */
static int put_info(struct cfs_members *m, struct group_record *record)
{
	const struct cfs_group_registry *reg = m->registry;
	char key[CFS_GROUP_KEY_MAX], *text, *old = m->own_info;
	int r;

	record->info = m->info;
	text = cfs_group_encode_info(record);
	if (text && old && strcmp(text, old) == 0) {
		free(text);
		return 0;
	}
	free(text);
	record->info = m->info + 1;
	text = cfs_group_encode_info(record);
	if (!text)
		return -ENOMEM;
	m->info++;
	m->own_info = text;
	cfs_group_info_key(m->name, record->member.id, key);
	r = old ? reg->swap(reg->arg, key, old, strlen(old), text, strlen(text))
		: write_own_info(m);
	free(old);
	if (r < 0 && r != -ESTALE) {
		m->own_info = NULL;
		free(text);
	}
	return r;
}

/* Our record is not the one that we wrote last. Either the answer to the last write was lost, the
 * registry was restored from a backup, or another mount has our id. */
static int settle(struct cfs_members *m, const char *key, const char *text)
{
	const struct cfs_group_registry *reg = m->registry;
	struct group_record found = {0};
	cfs_auto_free char *now = NULL;
	size_t at;
	int r = reg->get(reg->arg, key, see_own, &now);

	if (r < 0 && r != -ENOENT)
		return r;
	if (now && cfs_group_decode_heartbeat(now, strlen(now), &found, &at) == 0 &&
	    found.boot != m->self->boot) {
		fence(m, now);
		return 0;
	}
	r = m->own_info ? write_own_info(m) : 0;
	if (r == 0 && !now)
		r = reg->put(reg->arg, key, text, strlen(text), true);
	else if (r == 0 && strcmp(now, text) != 0)
		r = reg->swap(reg->arg, key, now, strlen(now), text, strlen(text));
	return r;
}

static int put_self(struct cfs_members *m)
{
	const struct cfs_group_registry *reg = m->registry;
	struct group_record record = *m->self;
	char key[CFS_GROUP_KEY_MAX], *text;
	int r = 0;

	record.number = ++m->number;
	/* The list lacks us although our record exists: our description may be lost. */
	if (m->own && m->known && !cfs_roster_find(&m->roster, record.member.id)) {
		free(m->own_info);
		m->own_info = NULL;
	}
	if (m->head.infos)
		r = put_info(m, &record);
	if (r < 0 && r != -ESTALE)
		return r;
	text = cfs_group_encode(&record);
	if (!text)
		return -ENOMEM;
	cfs_group_member_key(m->name, record.member.id, key);
	if (r == 0 && !m->own)
		r = reg->put(reg->arg, key, text, strlen(text), false);
	else if (r == 0)
		r = reg->swap(reg->arg, key, m->own, strlen(m->own), text, strlen(text));
	if (r == -ESTALE)
		r = settle(m, key, text);
	if (r < 0) {
		free(text);
		return r;
	}
	free(m->own);
	m->own = text;
	return 0;
}

/* ---- the work of a tick ---- */

/* Half a tick early rather than late. */
static bool is_due(const struct cfs_members *m, uint64_t then_ms, uint64_t now_ms,
		   uint64_t period_ms)
{
	return !then_ms || now_ms - then_ms + m->tick_ms / 2 >= period_ms;
}

static uint64_t look_period(const struct cfs_members *m)
{
	bool settled =
		m->known && m->looked_ms - m->led_ms >= SETTLING_HEARTBEATS * m->heartbeat_ms;

	return m->tick_ms * (settled && !cfs_members_deputy(m) ? LOOK_TICKS : 1);
}

/* 0: this member does not read the records. */
static uint64_t watch_period(const struct cfs_members *m)
{
	/* Without our own record, the published list would lack us. */
	if (!m->own || m->read_only)
		return 0;
	if (m->leading)
		return m->tick_ms;
	return cfs_members_deputy(m) ? WATCH_TICKS * m->tick_ms : 0;
}

int cfs_members_read(struct cfs_members *m, uint64_t now_ms)
{
	uint64_t period_ms;
	unsigned tries = 0;
	int r = 0;

	if (!m->leading && is_due(m, m->look_ms, now_ms, look_period(m))) {
		/* The records that the head names may be replaced between the reads. */
		do
			r = look(m, now_ms);
		while (r == -EAGAIN && !m->known && ++tries < LOST_MAX);
	}
	if (r < 0 || m->fenced)
		return r;
	period_ms = watch_period(m);
	if (period_ms && is_due(m, m->watch_ms, now_ms, period_ms))
		r = cfs_members_watch(m, now_ms, period_ms);
	else if (!period_ms && !m->leading && m->n_watch)
		cfs_members_forget_watch(m);
	return r;
}

static int heartbeat(struct cfs_members *m, uint64_t now_ms)
{
	int r;

	if (!is_due(m, m->put_ms, now_ms, m->heartbeat_ms))
		return 0;
	r = put_self(m);
	if (r == 0)
		m->put_ms = now_ms;
	if (r == -EROFS)
		m->read_only = true;
	return r;
}

int cfs_members_write(struct cfs_members *m, uint64_t now_ms)
{
	bool first = !m->own;
	int r;

	if (m->fenced) {
		m->leading = false;
		return 0;
	}
	r = heartbeat(m, now_ms);
	/* The first list must contain us. */
	if (r >= 0 && first && m->leading)
		r = cfs_members_watch(m, now_ms, m->tick_ms);
	if (r < 0 || !m->leading || m->fenced)
		return r;
	return cfs_members_publish(m);
}

/*
 * Removes the description first, then the record. An interrupted removal is repeated, because the
 * record is still found. A member that is alive after all misses its record and writes both again.
 */
void cfs_members_drop_record(const struct cfs_members *m, uint64_t id)
{
	char key[CFS_GROUP_KEY_MAX];

	cfs_group_info_key(m->name, id, key);
	if (m->registry->drop(m->registry->arg, key) < 0)
		return;
	cfs_group_member_key(m->name, id, key);
	m->registry->drop(m->registry->arg, key);
}

void cfs_members_leave(struct cfs_members *m)
{
	if (!m->own || m->fenced)
		return;
	cfs_members_drop_record(m, m->self->member.id);
	cfs_members_resign(m);
}
