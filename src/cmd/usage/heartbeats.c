/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/usage/heartbeats.h"
#include "cmd/access/jsontext.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/bytes.h"

/*
 * A session expires five heartbeats after its last one. A quarter of its remaining time is
 * therefore at least the time to the next heartbeat; the rest is for a slow database.
 */
enum { LOOK_MS = 500, SLOW_MS = 4000, LONGEST_MS = 60000, NEVER_S = 86400 };
/* A session that seems to have expired may be live: clocks were set since its last heartbeat. */
enum { EXPIRED_MS = 12000 };

struct reading {
	struct heartbeats *b;
	int64_t now_s;
};

void heartbeats_free(struct heartbeats *b)
{
	while (b->n)
		free(b->v[--b->n].who);
	free(b->v);
	*b = (struct heartbeats){0};
}

static char *describe(const char *info)
{
	json_t *j = json_loads(info, 0, NULL);
	const char *host = json_string_value(json_object_get(j, "HostName"));
	const char *place = json_string_value(json_object_get(j, "MountPoint"));
	json_int_t pid = json_get_int(j, "ProcessID");
	char *who = NULL;

	if (asprintf(&who, "%s:%s, process %lld", host ? host : "?", place ? place : "?",
		     (long long)pid) < 0)
		who = NULL;
	json_decref(j);
	return who;
}

static int note(void *arg, const struct cfs_session *s)
{
	struct reading *r = arg;
	struct heartbeats *b = r->b;
	int64_t left_s = s->expire_s - r->now_s;
	uint64_t wait_ms = CFS_MIN((uint64_t)CFS_MAX(left_s, 0) * 250, LONGEST_MS);
	struct heartbeat *v;

	if (left_s > NEVER_S)
		return 0;
	if (CFS_ARRAY_ROOM(b->v, b->n, b->cap) < 0)
		return -ENOMEM;
	v = &b->v[b->n];
	*v = (struct heartbeat){
		.sid = s->sid,
		.expire_s = s->expire_s,
		.expired = left_s < 0,
		.deadline = cfs_deadline_in((left_s < 0 ? EXPIRED_MS : wait_ms) + SLOW_MS),
		.who = describe(s->info),
	};
	if (!v->who)
		return -ENOMEM;
	b->n++;
	return 0;
}

int heartbeats_read(struct admin *a, struct heartbeats *ret)
{
	struct cfs_ctx ctx = cfs_ctx_internal(ADMIN_STEP_MS);
	struct heartbeats b = {0};
	struct reading r = {.b = &b, .now_s = cfs_meta_clock_s(a->meta)};
	int rc = cfs_meta_each_session(a->meta, &ctx, note, &r);

	if (rc < 0)
		heartbeats_free(&b);
	else
		*ret = b;
	return rc < 0 ? rc : 0;
}

static bool is_silent(struct heartbeat *b, const struct heartbeats *now)
{
	size_t i;

	for (i = 0; i < now->n; i++) {
		if (now->v[i].sid != b->sid)
			continue;
		b->expired = now->v[i].expired;
		return now->v[i].expire_s == b->expire_s;
	}
	return false;
}

/* Drops the sessions that have moved. Returns whether others still have time. */
static bool look(struct heartbeats *b, const struct heartbeats *now)
{
	bool waiting = false;
	size_t i, n = 0;

	for (i = 0; i < b->n; i++) {
		if (is_silent(&b->v[i], now)) {
			waiting |= !cfs_deadline_passed(b->v[i].deadline);
			b->v[n++] = b->v[i];
		} else {
			free(b->v[i].who);
		}
	}
	b->n = n;
	return waiting;
}

static void drop_expired(struct heartbeats *b)
{
	size_t i, n = 0;

	for (i = 0; i < b->n; i++) {
		if (b->v[i].expired)
			free(b->v[i].who);
		else
			b->v[n++] = b->v[i];
	}
	b->n = n;
}

int heartbeats_wait(struct admin *a, struct heartbeats *b)
{
	bool waiting = b->n > 0;
	int r = 0;

	while (waiting && r == 0) {
		struct heartbeats now = {0};

		r = heartbeats_read(a, &now);
		waiting = r == 0 && look(b, &now);
		heartbeats_free(&now);
		if (waiting)
			poll(NULL, 0, LOOK_MS);
	}
	drop_expired(b);
	return r;
}
