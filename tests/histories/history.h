/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A history: what clients asked of a file system, from when to when, and what they were told.
 *
 * One operation is one line, with times in nanoseconds of one clock:
 *
 *     ARENA CLIENT INVOKED-RETURNED OPERATION ARGUMENTS = RESULT
 *
 *     0 1 1200-1350 create n0 = 17            the inode
 *     0 2 1300-1360 stat n0 = file 17         or: dir 17, link 17
 *     0 1 1400-1420 put n0 5 = 17             record 5 written into inode 17; put+ creates the file
 *     0 1 1500-1510 get n0 = 17 5             record 0: the file is empty
 *     0 1 1600-1610 rename n0 n1/x0 = ok      also: rename-new (NOREPLACE), exchange, link
 *     0 1 1700-1710 symlink n2 8 = ok         readlink n2 = 8; mkdir, unlink, rmdir
 *     0 2 1800-1810 list . = n1 n2            names, in any order
 *     0 2 1900-1910 lock posix = ok           unlock; classes posix, flock
 *     0 2 1900-1910 put n0 6 = 17 EIO         the inode is known, its data was not accepted
 *     0 3 2000-2010 unlink n0 = ENOENT
 *
 * An arena is a directory that only its clients use: nothing in one arena depends on another.
 * Names are n0 to n3 in it, and x0 and x1 in those of them that are directories.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define TOP_NAMES  4
#define SUB_NAMES  2
#define TORN	   UINT64_MAX /* a record that is none: parts of several, or of another length */
#define NO_INODE   0
#define MAX_CLIENT 64

enum op_kind {
	OP_CREATE,
	OP_PUT,
	OP_PUT_CREATE,
	OP_GET,
	OP_STAT,
	OP_LINK,
	OP_SYMLINK,
	OP_READLINK,
	OP_MKDIR,
	OP_UNLINK,
	OP_RMDIR,
	OP_RENAME,
	OP_RENAME_NEW,
	OP_EXCHANGE,
	OP_LIST,
	OP_LOCK,
	OP_UNLOCK,
	OP_COUNT,
};

enum node_kind { KIND_NONE, KIND_FILE, KIND_DIR, KIND_LINK };

enum lock_class { LOCK_POSIX, LOCK_FLOCK };

/* top: -1 is the arena itself; sub: -1 for a name in the arena */
struct path {
	int8_t top;
	int8_t sub;
};

struct op {
	uint32_t arena;
	uint32_t client;
	uint64_t invoked;
	uint64_t returned;
	enum op_kind kind;
	struct path a;
	struct path b;
	uint64_t value; /* record, target of a symbolic link, lock class; of list: a set of names */
	uint64_t ino;	/* NO_INODE: not known */
	enum node_kind node;
	int error;   /* 0 or errno */
	bool weak;   /* may have happened or not, with any result: shrinking says so */
	uint32_t id; /* its place in the history */
};

/* Whether success changes names. */
bool op_changes(const struct op *op);
/* Whether it was not said what happened: it may have happened or not, at any later time. */
bool op_unknown(const struct op *op);

void op_print(FILE *to, const struct op *op);
/* 0, or -EINVAL for a line that is no operation. */
int op_parse(const char *line, struct op *ret_op);
