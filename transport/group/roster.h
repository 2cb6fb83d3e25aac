/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of a cache group's members, in memory and as text. Text is lines that change a list:
 *
 *	+ID WEIGHT RANK FLAGS ADDRESS [VOLUME]	the member is present, with these values
 *	-ID					the member is gone
 *
 * after a line with the volume of members that name none. IDs are hexadecimal. FLAGS: f fresh, t
 * TLS, m memory only, or -. ADDRESS: - if it does not serve others.
 */
#ifndef CFS_ROSTER_H
#define CFS_ROSTER_H

#include <cachefs/transport.h>
#include <stddef.h>

#define CFS_ROSTER_LINE_MAX 192
#define CFS_VOLUME_SIZE	    37

struct cfs_roster_entry {
	uint64_t id;
	unsigned weight;
	unsigned rank; /* the weight that it had, or will have, while weight is 0 */
	bool fresh;
	enum cfs_peer_transport transport;
	bool memory_only;	       /* cannot keep blocks at the moment */
	char address[CFS_ADDRESS_MAX]; /* empty: it does not serve others */
	char volume[CFS_VOLUME_SIZE];
};

/* Sorted by id. A list of zeros is empty. */
struct cfs_roster {
	struct cfs_roster_entry *v;
	size_t n, room;
	uint64_t sum; /* checksum, independent of the order of entries */
};

void cfs_roster_free(struct cfs_roster *r);
int cfs_roster_copy(const struct cfs_roster *from, struct cfs_roster *ret);
const struct cfs_roster_entry *cfs_roster_find(const struct cfs_roster *r, uint64_t id);
bool cfs_roster_same(const struct cfs_roster_entry *a, const struct cfs_roster_entry *b);
/* Adds or replaces. */
int cfs_roster_set(struct cfs_roster *r, const struct cfs_roster_entry *e);
void cfs_roster_remove(struct cfs_roster *r, uint64_t id);

uint64_t cfs_roster_hash(const char *text, size_t len);

/* Writes the first line. Returns its length. */
size_t cfs_roster_begin(const char *volume, char line[CFS_ROSTER_LINE_MAX]);
size_t cfs_roster_line(const struct cfs_roster_entry *e, const char *volume,
		       char line[CFS_ROSTER_LINE_MAX]);
size_t cfs_roster_gone(uint64_t id, char line[CFS_ROSTER_LINE_MAX]);
/* -EINVAL: malformed text, of which r then has a part. */
int cfs_roster_apply(struct cfs_roster *r, const char *text, size_t len);

#endif
