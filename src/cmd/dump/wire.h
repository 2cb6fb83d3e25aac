/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The binary dump (volume-format section 15): segments of protocol buffer messages, and a footer
 * that says where they are.
 */
#ifndef CFS_CMD_WIRE_H
#define CFS_CMD_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_MAGIC   0x747083u /* stands in place of a segment's type: the footer follows */
#define WIRE_VERSION 1
/* A longer segment is damage. */
#define WIRE_SEGMENT_MAX (1ULL << 30)

enum wire_segment {
	WIRE_FORMAT = 1,
	WIRE_COUNTER,
	WIRE_NODE,
	WIRE_EDGE,
	WIRE_CHUNK,
	WIRE_REF,
	WIRE_SYMLINK,
	WIRE_SUSTAINED,
	WIRE_DELFILE,
	WIRE_XATTR,
	WIRE_ACL,
	WIRE_STAT,
	WIRE_QUOTA,
	WIRE_PARENT,
	WIRE_CHANGELOG,
};

/* Repeated fields of a batch. */
enum wire_batch {
	BATCH_NODES = 1,
	BATCH_EDGES,
	BATCH_CHUNKS,
	BATCH_REFS,
	BATCH_XATTRS,
	BATCH_PARENTS,
	BATCH_SYMLINKS,
	BATCH_SUSTAINED,
	BATCH_DELFILES,
	BATCH_STATS,
	BATCH_QUOTAS,
	BATCH_ACLS,
	BATCH_COUNTERS,
	BATCH_CHANGELOGS,
	BATCH_USER_QUOTAS,
	BATCH_GROUP_QUOTAS,
};

/* A message being written. Zero numbers and empty strings are omitted. */
struct wire {
	uint8_t *v;
	size_t n, cap;
	bool failed; /* out of memory */
};
void wire_varint(struct wire *w, uint64_t v);
void wire_number(struct wire *w, unsigned field, uint64_t v);
void wire_bytes(struct wire *w, unsigned field, const void *p, size_t len);
/* As above, but written even when empty: a message. */
void wire_message(struct wire *w, unsigned field, const struct wire *m);
void wire_free(struct wire *w);

/* A message being read. */
struct wire_field {
	unsigned field;
	bool is_bytes;
	uint64_t number;
	const uint8_t *p; /* never NULL */
	size_t len;
};
/* Returns 1 and the next field, and advances *p; 0 at the end; -EBADMSG. */
int wire_next(const uint8_t **p, const uint8_t *end, struct wire_field *ret);
int wire_get_varint(const uint8_t **p, const uint8_t *end, uint64_t *ret);

#endif
