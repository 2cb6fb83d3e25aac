/* SPDX-License-Identifier: Apache-2.0 */
/* Publishes the list: the leader's part. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "members.h"

/* Changes after which the whole list is written again. */
#define LOG_MAX 32

/* Lines that become records of at most CFS_MEMBERS_TEXT_MAX. */
struct list_writer {
	struct cfs_members *m;
	bool whole;	  /* pieces of the full list, not changes */
	uint64_t version; /* of the full list; of the last change */
	unsigned pieces;
	size_t len, first; /* first: the length of the line that begins each record */
	char text[CFS_MEMBERS_TEXT_MAX];
};

static void writer_begin(struct list_writer *p)
{
	char line[CFS_ROSTER_LINE_MAX];

	p->len = p->first = cfs_roster_begin(p->m->self->member.volume, line);
	memcpy(p->text, line, p->len);
}

static int writer_end(struct list_writer *p)
{
	const struct cfs_members *m = p->m;
	char key[CFS_GROUP_KEY_MAX];
	int r;

	if (p->len == p->first)
		return 0;
	if (p->whole)
		cfs_members_list_key(m, key, "s%" PRIu64 ".%" PRIx64 ".%u", p->version,
				     m->self->boot, p->pieces++);
	else
		cfs_members_list_key(m, key, "d%" PRIu64 ".%" PRIx64, ++p->version, m->self->boot);
	r = m->registry->put(m->registry->arg, key, p->text, p->len, false);
	writer_begin(p);
	return r;
}

static int writer_line(struct list_writer *p, const char *line, size_t len)
{
	int r = 0;

	if (p->len + len > sizeof(p->text))
		r = writer_end(p);
	if (r == 0) {
		memcpy(p->text + p->len, line, len);
		p->len += len;
	}
	return r;
}

static int writer_entry(struct list_writer *p, const struct cfs_roster_entry *e)
{
	char line[CFS_ROSTER_LINE_MAX];

	return writer_line(p, line, cfs_roster_line(e, p->m->self->member.volume, line));
}

static int writer_gone(struct list_writer *p, uint64_t id)
{
	char line[CFS_ROSTER_LINE_MAX];

	return writer_line(p, line, cfs_roster_gone(id, line));
}

static struct list_writer *new_writer(struct cfs_members *m, bool whole, uint64_t version)
{
	struct list_writer *p = malloc(sizeof(*p));

	if (!p)
		return NULL;
	p->m = m;
	p->whole = whole;
	p->version = version;
	p->pieces = 0;
	writer_begin(p);
	return p;
}

static int write_full_list(struct cfs_members *m, uint64_t version, unsigned *ret_pieces)
{
	struct list_writer *p = new_writer(m, true, version);
	size_t i;
	int r = 0;

	if (!p)
		return -ENOMEM;
	for (i = 0; i < m->roster.n && r == 0; i++)
		r = writer_entry(p, &m->roster.v[i]);
	if (r == 0)
		r = writer_end(p);
	*ret_pieces = p->pieces;
	free(p);
	return r;
}

/* -ESTALE, -EEXIST: another member has written there first. */
static int swap_head(struct cfs_members *m, const struct members_head *h)
{
	const struct cfs_group_registry *reg = m->registry;
	char key[CFS_GROUP_KEY_MAX], text[CFS_MEMBERS_HEAD_MAX], found[CFS_MEMBERS_HEAD_MAX];
	struct members_head other;
	int n, r;

	n = snprintf(text, sizeof(text),
		     "%" PRIx64 " %" PRIx64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
		     " %" PRIu64 " %u %" PRIx64 " %u",
		     h->leader, h->nonce, h->serial, h->tick_ms, h->version, h->log, h->full,
		     h->pieces, h->sum, h->infos);
	cfs_members_list_key(m, key, "head");
	if (m->head_text[0])
		r = reg->swap(reg->arg, key, m->head_text, strlen(m->head_text), text, (size_t)n);
	else
		r = reg->put(reg->arg, key, text, (size_t)n, true);
	/* The writer may be this member, in an attempt whose answer was lost. */
	if ((r == -ESTALE || r == -EEXIST) && cfs_members_read_head(m, &other, found) == 0 &&
	    strcmp(found, text) == 0)
		r = 0;
	if (r == 0) {
		m->head = *h;
		memcpy(m->head_text, text, sizeof(text));
		m->heard_ms = m->looked_ms;
	}
	return r;
}

/* ---- leading ---- */

/* Writes the list from the records, when the previous list is unknown. */
static int make_roster(struct cfs_members *m, uint64_t now_ms)
{
	const struct cfs_roster_entry *e;
	int r = cfs_members_watch(m, now_ms, m->tick_ms);
	size_t i;

	if (r < 0)
		return r;
	cfs_roster_free(&m->roster);
	for (i = 0; i < m->n_watch && r == 0; i++) {
		if (cfs_members_watched(m, i, &e))
			r = cfs_roster_set(&m->roster, e);
	}
	m->changed = true;
	return r;
}

/* Members of other versions write records that this version cannot read. */
static bool has_foreign_members(const struct cfs_members *m)
{
	const struct cfs_roster_entry *e;
	size_t i, n = 0;

	for (i = 0; i < m->n_watch; i++)
		n += cfs_members_watched(m, i, &e);
	return n < m->n_watch;
}

int cfs_members_claim(struct cfs_members *m, uint64_t now_ms)
{
	struct members_head h = m->head_text[0] ? m->head : (struct members_head){0};
	bool same = m->head_text[0] && m->known && m->version == h.version;
	bool first = !m->head_text[0];
	int r = 0;

	m->silent = h.leader == m->self->member.id ? 0 : h.leader;
	m->silent_ms = m->looked_ms - m->heard_ms;
	if (!same)
		r = make_roster(m, now_ms);
	h.leader = m->self->member.id;
	h.nonce = m->self->boot;
	h.serial++;
	h.tick_ms = m->tick_ms;
	/* A list with other content is another version. */
	h.version += !same;
	h.log = h.full = h.version;
	h.sum = m->roster.sum;
	h.infos = 1;
	if (r == 0)
		r = write_full_list(m, h.version, &h.pieces);
	if (r == 0)
		r = swap_head(m, &h);
	if (r < 0)
		return r;
	cfs_debug("publishes the list of the cache group: group=%s version=%" PRIu64
		  " previous=%016" PRIx64,
		  m->name, h.version, m->silent);
	m->version = h.version;
	m->leading = m->known = true;
	if (first && !has_foreign_members(m))
		cfs_group_drop_foreign_key(m->registry, m->name);
	return 0;
}

/* A member that still reads these records falls back to the full list. */
struct removal {
	struct cfs_members *m;
	uint64_t below;
	char (*keys)[CFS_GROUP_KEY_MAX];
	size_t n;
};

static int note_old(void *arg, const char *key, const void *value, size_t len)
{
	struct removal *x = arg;
	const char *name = strchr(key, '/') + 1;
	char(*keys)[CFS_GROUP_KEY_MAX];

	if ((*name != 'd' && *name != 's' && x->below != UINT64_MAX) ||
	    (x->below != UINT64_MAX && strtoull(name + 1, NULL, 10) >= x->below))
		return 0;
	keys = reallocarray(x->keys, x->n + 1, sizeof(*keys));
	if (!keys)
		return -ENOMEM;
	x->keys = keys;
	snprintf(keys[x->n++], sizeof(*keys), "%s", key);
	return 0;
}

/* Removes versions below; UINT64_MAX: all. */
static void remove_list(struct cfs_members *m, uint64_t below)
{
	struct removal x = {.m = m, .below = below};
	char table[CFS_GROUP_KEY_MAX];
	size_t i;
	int r;

	snprintf(table, sizeof(table), "group.list.%s", m->name);
	r = m->registry->each(m->registry->arg, table, note_old, &x);
	for (i = 0; i < x.n && r == 0; i++)
		r = m->registry->drop(m->registry->arg, x.keys[i]);
	free(x.keys);
}

static int write_changes(struct cfs_members *m, struct list_writer *p, struct cfs_roster *next)
{
	const struct cfs_roster_entry *e, *old;
	size_t i, at = 0;
	int r = 0;

	for (i = 0; i < m->n_watch && r == 0; i++) {
		bool there = cfs_members_watched(m, i, &e);

		/* Both are sorted. */
		for (; r == 0 && at < m->roster.n && m->roster.v[at].id < e->id; at++) {
			r = writer_gone(p, m->roster.v[at].id);
			cfs_roster_remove(next, m->roster.v[at].id);
		}
		old = at < m->roster.n && m->roster.v[at].id == e->id ? &m->roster.v[at] : NULL;
		at += old != NULL;
		if (r < 0)
			break;
		if (there && (!old || !cfs_roster_same(old, e))) {
			r = cfs_roster_set(next, e);
			if (r == 0)
				r = writer_entry(p, e);
		} else if (!there && old) {
			r = writer_gone(p, e->id);
			cfs_roster_remove(next, e->id);
		}
	}
	for (; r == 0 && at < m->roster.n; at++) {
		r = writer_gone(p, m->roster.v[at].id);
		cfs_roster_remove(next, m->roster.v[at].id);
	}
	return r == 0 ? writer_end(p) : r;
}

static int publish_full_list(struct cfs_members *m)
{
	struct members_head h = m->head;
	int r;

	h.serial++;
	h.log = h.full;
	h.full = h.version;
	r = write_full_list(m, h.version, &h.pieces);
	if (r == 0)
		r = swap_head(m, &h);
	if (r == 0)
		remove_list(m, h.log);
	return r;
}

static int publish_changes(struct cfs_members *m)
{
	struct members_head h = m->head;
	struct cfs_roster next = {0};
	struct list_writer *p = NULL;
	int r = cfs_roster_copy(&m->roster, &next);

	if (r == 0) {
		p = new_writer(m, false, h.version);
		r = p ? write_changes(m, p, &next) : -ENOMEM;
	}
	if (r == 0) {
		h.serial++;
		h.version = p->version;
		h.sum = next.sum;
		r = swap_head(m, &h);
	}
	if (r == 0) {
		m->changed = m->changed || h.version != m->version;
		m->version = h.version;
		cfs_roster_free(&m->roster);
		m->roster = next;
		next = (struct cfs_roster){0};
	}
	cfs_roster_free(&next);
	free(p);
	return r;
}

int cfs_members_publish(struct cfs_members *m)
{
	int r = publish_changes(m);

	if (r == 0 && m->version - m->head.full >= LOG_MAX)
		r = publish_full_list(m);
	if (r != -ESTALE && r != -EEXIST)
		return r;
	cfs_debug("another member publishes the list of the cache group: group=%s", m->name);
	m->leading = false;
	m->look_ms = 0; /* at once, and as if for the first time */
	return 0;
}

static int count(void *arg, const char *key, const void *value, size_t len)
{
	size_t *n = arg;

	++*n;
	return 0;
}

void cfs_members_resign(struct cfs_members *m)
{
	char text[CFS_MEMBERS_HEAD_MAX], table[CFS_GROUP_KEY_MAX];
	struct members_head h = m->head;
	size_t n = 0;
	int r;

	h.tick_ms = 0;
	h.serial++;
	r = m->leading ? swap_head(m, &h) : cfs_members_read_head(m, &h, text);
	m->leading = false;
	/* When several leave together, the last one finds no record and no leader. */
	if (r < 0 || h.tick_ms)
		return;
	cfs_group_member_table(m->name, table);
	r = m->registry->each(m->registry->arg, table, count, &n);
	if (r == 0 && n == 0)
		remove_list(m, UINT64_MAX);
}
