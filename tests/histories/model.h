/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of names: what one arena may look like, and the atomic steps of an operation on it.
 *
 * An operation walks to its directories, each in a step of its own, and then acts in one step, as
 * every file system does under Linux. link looks its source up before it walks to its target.
 * rename has a second way to end without a change: the kernel looks both names up, one after the
 * other, and answers by what it saw (the same inode: 0; a directory and a file: ENOTDIR, EISDIR).
 *
 * The kernel counts links itself: a link whose source loses another name meanwhile may be answered
 * with ENOENT (docs/posix.md).
 *
 * The kernel takes the directory that it saw under the target's name for removed by its rename. When
 * another mount has moved that directory meanwhile, it lives on, and this kernel finds nothing in it
 * (docs/posix.md): names below it may be answered with ENOENT from then on.
 */
#pragma once

#include "history.h"
#include "judge.h"

#include <stddef.h>

#define MAX_OBJECTS 28
#define MAX_OPEN    16
#define MAX_NEXT    5

/* id: the inode, or SYMBOLIC and the number of the operation that made it, until it is seen. */
struct object {
	uint64_t id;
	uint64_t target;
	uint8_t kind;
	uint8_t entry[SUB_NAMES]; /* index and 1 */
	bool dead;		  /* a kernel takes it for removed */
	uint8_t pad[4];
};

enum phase {
	PHASE_FREE,
	PHASE_WALK_A,
	PHASE_LOOK_A,
	PHASE_WALK_B,
	PHASE_ACT,
	PHASE_LOOK_B, /* the kernel has seen the source */
	PHASE_GONE,   /* the kernel has seen the name, and another mount removes it */
	PHASE_DONE,
};

struct slot {
	uint64_t dir_a;
	uint64_t dir_b;
	uint64_t found;
	uint64_t target; /* of rename: the directory that the kernel has seen under the new name */
	uint64_t lost;	 /* of link: the last inode that lost a name meanwhile, and kept others */
	uint8_t phase;
	uint8_t found_kind;
	bool links;
	bool again; /* done, and not answered: another process of the mount does it once more */
	uint8_t pad[4];
};

/* All bytes count when two are compared: what is not in use is zero. */
struct config {
	struct slot slot[MAX_OPEN];
	uint8_t top[TOP_NAMES];
	uint32_t objects;
	struct object object[MAX_OBJECTS];
};

/* The slot of an operation that begins. */
void model_open(struct slot *slot, const struct op *op);

/*
 * One step of an operation that is open. Returns how many configurations may follow: none if the
 * step contradicts the recorded result, negative if the tree is too large for the model.
 */
int model_step(const struct config *c, int slot, const struct op *op, const struct rules *rules,
	       struct config out[MAX_NEXT]);
