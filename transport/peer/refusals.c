/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines about connections that are refused. A member with a wrong key connects again and again
 * for as long as it is mounted: one line says so at once, further ones after pauses that double,
 * and one when it is over.
 */
#include <netinet/in.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "transport-internal.h"

/* In times of the first pause, the longest between two attempts of a member: 10 s */
#define PAUSE_MAX 360
#define QUIET	  30 /* so long without a refusal it is over */

/* Addresses may share an entry, so strangers need no memory. */
static struct cfs_refusals *find(struct cfs_transport *t, const struct sockaddr_storage *from)
{
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;
	uint32_t words[4] = {((const struct sockaddr_in *)from)->sin_addr.s_addr};

	if (from->ss_family == AF_INET6)
		memcpy(words, &v6->sin6_addr, sizeof(words));
	return &t->refusals[((words[0] ^ words[1] ^ words[2] ^ words[3]) * 2654435761u >> 16) %
			    CFS_REFUSALS];
}

void cfs_refusals_note(struct cfs_transport *t, const struct sockaddr_storage *from, int err,
		       bool warns)
{
	uint64_t now_ms = t->loop.now_ms, first_ms = cfs_probe_pause_max_ms(t);
	struct cfs_refusals *r = find(t, from);
	char name[CFS_ADDRESS_MAX];

	cfs_address_format((const struct sockaddr *)from, name);
	r->count += warns;
	if (warns) {
		memcpy(r->from, name, sizeof(name));
		r->last_ms = now_ms;
		warns = now_ms >= r->next_ms;
	}
	cfs_log(warns ? CFS_LOG_WARN : CFS_LOG_DEBUG,
		"peer connection refused: address=%s error=%s%s count=%u", name, cfs_errname(err),
		err == -EPROTOTYPE ? " (no TLS)" : "", r->count);
	if (!warns)
		return;
	r->count = 0;
	r->pause_ms = r->pause_ms ? CFS_MIN(r->pause_ms * 2, PAUSE_MAX * first_ms) : first_ms;
	r->next_ms = now_ms + r->pause_ms;
}

void cfs_refusals_tick(struct cfs_transport *t)
{
	unsigned i;

	for (i = 0; i < CFS_REFUSALS; i++) {
		struct cfs_refusals *r = &t->refusals[i];

		if (!r->pause_ms || t->loop.now_ms - r->last_ms < QUIET * cfs_probe_pause_max_ms(t))
			continue;
		cfs_info("peer connections are no longer refused: address=%s count=%u", r->from,
			 r->count);
		*r = (struct cfs_refusals){0};
	}
}
