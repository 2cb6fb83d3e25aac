/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a changelog entry that are the same on every engine (volume-format section 14). */
#ifndef CFS_META_CHANGELOG_H
#define CFS_META_CHANGELOG_H

#include <stddef.h>
#include <stdint.h>

#include "meta/engine/engine.h"

/* Escapes a name for a changelog line; buf has at least 3 * len + 1 bytes. Returns buf. */
const char *cfs_changelog_name(const char *name, size_t len, char *buf);
/* The set mask of a setattr, in JuiceFS's bits. */
unsigned cfs_changelog_set_bits(uint32_t set);

#endif
