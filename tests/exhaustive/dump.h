/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EXHAUSTIVE_DUMP_H
#define EXHAUSTIVE_DUMP_H

#include <stdio.h>

#include "mount.h"

/*
 * Prints what a program sees, a line for each name:
 *
 *	PATH TYPE MODE NLINK UID GID INODE LENGTH CONTENT XATTRS
 *
 * TYPE: f, d, l. CONTENT: runs of bytes, "61*5000,--*100": -- are bytes that cannot be read; of a
 * symbolic link its target; else "-". XATTRS: "user.k=v,..." or "-". An error ends the line with
 * "! ERRNO".
 */
void dump_tree(struct mount *m, FILE *out);

#endif
