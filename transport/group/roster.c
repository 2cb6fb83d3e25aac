/* SPDX-License-Identifier: Apache-2.0 */
/* A list of members in memory, and its text. */
#include "roster.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/bytes.h"
#include "sorted.h"

/* FNV-1a */
uint64_t cfs_roster_hash(const char *text, size_t len)
{
	uint64_t h = 0xcbf29ce484222325u;

	while (len--)
		h = (h ^ (unsigned char)*text++) * 0x100000001b3u;
	return h;
}

static uint64_t sum_of(const struct cfs_roster_entry *e)
{
	char line[CFS_ROSTER_LINE_MAX];
	uint64_t h = cfs_roster_hash(line, cfs_roster_line(e, "", line));

	return h ^ h >> 32;
}

void cfs_roster_free(struct cfs_roster *r)
{
	free(r->v);
	*r = (struct cfs_roster){0};
}

int cfs_roster_copy(const struct cfs_roster *from, struct cfs_roster *ret)
{
	struct cfs_roster r = {.n = from->n, .room = from->n, .sum = from->sum};

	if (from->n) {
		r.v = reallocarray(NULL, from->n, sizeof(*r.v));
		if (!r.v)
			return -ENOMEM;
		memcpy(r.v, from->v, from->n * sizeof(*r.v));
	}
	*ret = r;
	return 0;
}

static uint64_t id_of(const void *element)
{
	return ((const struct cfs_roster_entry *)element)->id;
}

static size_t place_of(const struct cfs_roster *r, uint64_t id)
{
	return cfs_sorted_place(r->v, r->n, sizeof(*r->v), id_of, id);
}

const struct cfs_roster_entry *cfs_roster_find(const struct cfs_roster *r, uint64_t id)
{
	size_t i = place_of(r, id);

	return i < r->n && r->v[i].id == id ? &r->v[i] : NULL;
}

bool cfs_roster_same(const struct cfs_roster_entry *a, const struct cfs_roster_entry *b)
{
	return a->id == b->id && a->weight == b->weight && a->rank == b->rank &&
	       a->fresh == b->fresh && a->transport == b->transport &&
	       a->memory_only == b->memory_only && strcmp(a->address, b->address) == 0 &&
	       strcmp(a->volume, b->volume) == 0;
}

int cfs_roster_set(struct cfs_roster *r, const struct cfs_roster_entry *e)
{
	size_t i = place_of(r, e->id);

	if (i < r->n && r->v[i].id == e->id) {
		r->sum ^= sum_of(&r->v[i]) ^ sum_of(e);
		r->v[i] = *e;
		return 0;
	}
	if (CFS_ARRAY_ROOM(r->v, r->n, r->room) < 0)
		return -ENOMEM;
	memmove(r->v + i + 1, r->v + i, (r->n - i) * sizeof(*r->v));
	r->v[i] = *e;
	r->n++;
	r->sum ^= sum_of(e);
	return 0;
}

void cfs_roster_remove(struct cfs_roster *r, uint64_t id)
{
	size_t i = place_of(r, id);

	if (i == r->n || r->v[i].id != id)
		return;
	r->sum ^= sum_of(&r->v[i]);
	r->n--;
	memmove(r->v + i, r->v + i + 1, (r->n - i) * sizeof(*r->v));
}

/* ---- text ---- */

static size_t fits(int n)
{
	return CFS_MIN((size_t)n, (size_t)CFS_ROSTER_LINE_MAX - 1);
}

size_t cfs_roster_begin(const char *volume, char line[CFS_ROSTER_LINE_MAX])
{
	return fits(snprintf(line, CFS_ROSTER_LINE_MAX, "=%s\n", volume));
}

size_t cfs_roster_line(const struct cfs_roster_entry *e, const char *volume,
		       char line[CFS_ROSTER_LINE_MAX])
{
	bool own = strcmp(e->volume, volume) != 0,
	     none = !e->fresh && e->transport == CFS_PEER_TCP && !e->memory_only;

	return fits(snprintf(line, CFS_ROSTER_LINE_MAX, "+%" PRIx64 " %u %u %s%s%s%s %s%s%s\n",
			     e->id, e->weight, e->rank, e->fresh ? "f" : "",
			     e->transport == CFS_PEER_TLS ? "t" : "", e->memory_only ? "m" : "",
			     none ? "-" : "", e->address[0] ? e->address : "-", own ? " " : "",
			     own ? (e->volume[0] ? e->volume : "-") : ""));
}

size_t cfs_roster_gone(uint64_t id, char line[CFS_ROSTER_LINE_MAX])
{
	return fits(snprintf(line, CFS_ROSTER_LINE_MAX, "-%" PRIx64 "\n", id));
}

static int apply_member(struct cfs_roster *r, const char *line, const char *volume)
{
	struct cfs_roster_entry e = {0};
	char flags[8];
	int n;

	_Static_assert(CFS_ADDRESS_MAX == 64 && CFS_VOLUME_SIZE == 37, "sizes below");
	n = sscanf(line, "+%" SCNx64 " %u %u %7s %63s %36s", &e.id, &e.weight, &e.rank, flags,
		   e.address, e.volume);
	if (n < 5 || !e.id)
		return -EINVAL;
	if (n == 5)
		snprintf(e.volume, sizeof(e.volume), "%s", volume);
	else if (strcmp(e.volume, "-") == 0)
		e.volume[0] = '\0';
	if (strcmp(e.address, "-") == 0)
		e.address[0] = '\0';
	e.fresh = strchr(flags, 'f');
	e.transport = strchr(flags, 't') ? CFS_PEER_TLS : CFS_PEER_TCP;
	e.memory_only = strchr(flags, 'm');
	return cfs_roster_set(r, &e);
}

int cfs_roster_apply(struct cfs_roster *r, const char *text, size_t len)
{
	char line[CFS_ROSTER_LINE_MAX], volume[CFS_VOLUME_SIZE] = "";
	const char *at = text, *end = text + len;
	int rc = 0;

	while (at < end && rc == 0) {
		const char *next = memchr(at, '\n', (size_t)(end - at));
		size_t n = next ? (size_t)(next - at) : 0;
		uint64_t id;

		if (!next || n >= sizeof(line))
			return -EINVAL;
		memcpy(line, at, n);
		line[n] = '\0';
		at = next + 1;
		if (line[0] == '=')
			snprintf(volume, sizeof(volume), "%.36s", line + 1);
		else if (line[0] == '+')
			rc = apply_member(r, line, volume);
		else if (sscanf(line, "-%" SCNx64, &id) == 1)
			cfs_roster_remove(r, id);
		else
			rc = -EINVAL;
	}
	return rc;
}
