/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The binary dump (volume-format section 15): segments of protocol buffer messages, and a footer
 * that says where they are.
 */
#ifndef CFS_CMD_PROTOBUF_H
#define CFS_CMD_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PB_MAGIC   0x747083u /* stands in place of a segment's type: the footer follows */
#define PB_VERSION 1
/* A longer segment is damage. */
#define PB_SEGMENT_MAX (1ULL << 30)

enum pb_segment {
	PB_FORMAT = 1,
	PB_COUNTER,
	PB_NODE,
	PB_EDGE,
	PB_CHUNK,
	PB_REF,
	PB_SYMLINK,
	PB_SUSTAINED,
	PB_DELFILE,
	PB_XATTR,
	PB_ACL,
	PB_STAT,
	PB_QUOTA,
	PB_PARENT,
	PB_CHANGELOG,
};

/* Repeated fields of a batch. */
enum pb_batch {
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
struct pb {
	uint8_t *v;
	size_t n, cap;
	bool failed; /* out of memory */
};
void pb_varint(struct pb *w, uint64_t v);
void pb_number(struct pb *w, unsigned field, uint64_t v);
void pb_bytes(struct pb *w, unsigned field, const void *p, size_t len);
/* As above, but written even when empty: a message. */
void pb_message(struct pb *w, unsigned field, const struct pb *m);
void pb_free(struct pb *w);

/* A message being read. */
struct pb_field {
	unsigned field;
	bool is_bytes;
	uint64_t number;
	const uint8_t *p; /* never NULL */
	size_t len;
};
/* Returns 1 and the next field, and advances *p; 0 at the end; -EBADMSG. */
int pb_next(const uint8_t **p, const uint8_t *end, struct pb_field *ret);
int pb_get_varint(const uint8_t **p, const uint8_t *end, uint64_t *ret);

#endif
