/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of the JSON dump. Commands have one thread. */
#ifndef CFS_CMD_DUMP_JSON_H
#define CFS_CMD_DUMP_JSON_H

#include "cmd/dump/dump.h"
#include "cmd/dump/dumpnames.h"
#include "cmd/dump/heap.h"
#include "cmd/dump/rulelist.h"

enum { EDGES, NODES, CHUNKS, SYMLINKS, XATTRS, HEAPS, EDGE_HEAD = 9, CHUNK_HEAD = 4 };

struct json_dir {    /* one being written */
	uint64_t at; /* its next entry */
	cfs_ino_t ino;
	bool any;
};

struct json {
	struct dump *d;
	struct stream_out *out;
	struct heap *heaps[HEAPS];
	struct rulelist rules;
	int64_t counters[COUNTER_COUNT];
	struct json_dir *stack;
	size_t depth, cap;
	uint8_t *buf; /* of one row, and of one text */
	size_t buf_cap;
	const char *comma; /* before the next item of a list */
	int err;	   /* of reading; that of writing is stream_error(out) */
	enum cfs_quota_kind kind;
};

/* dump-json-tables.c: fills the heaps, the rules and the counters. */
int json_read_tables(struct json *j);

/* dump-json-entry.c. Errors of writing stick to j->out. */
void json_put(struct json *j, const char *text);
void json_new_line(struct json *j, size_t depth);
/* Writes a quoted string; every byte that is not plain becomes %XX. */
void json_put_text(struct json *j, const uint8_t *p, size_t len);
/* Writes everything about the inode except its entries. */
void json_put_parts(struct json *j, cfs_ino_t ino, const struct cfs_attr *a, size_t depth);
/*
 * The record of the inode at this position of a heap, valid until the next call. False: it has none
 * there, or j->err.
 */
bool json_record(struct json *j, int heap, cfs_ino_t ino, int64_t at, const uint8_t **ret,
		 size_t *ret_len);

#endif
