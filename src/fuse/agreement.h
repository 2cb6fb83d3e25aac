/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of FUSE_INIT flags: what each of them is called, and whether a mount wants it. The
 * reply to the kernel is made from it, whatever flags the running libfuse knows. A flag is sent
 * when the kernel offers it and the mount wants it.
 */
#ifndef CFS_FUSE_AGREEMENT_H
#define CFS_FUSE_AGREEMENT_H

#include <cachefs/fuse.h>
#include <stdbool.h>
#include <stdint.h>

/* Flags by their bit in both words. The headers at build time may lack those of the second one. */
#define INIT_HAS_EXPIRE_ONLY (1ULL << 35)
#define INIT_PASSTHROUGH     (1ULL << 37)
#define INIT_HAS_RESEND	     (1ULL << 39)
#define INIT_OVER_IO_URING   (1ULL << 41)

/* struct fuse_init_out of the interface since 7.40, of the same size since 7.23. */
struct init_out {
	uint32_t major, minor, max_readahead, flags;
	uint16_t max_background, congestion_threshold;
	uint32_t max_write, time_gran;
	uint16_t max_pages, map_alignment;
	uint32_t flags2, max_stack_depth;
	uint16_t request_timeout, unused[11];
};
_Static_assert(sizeof(struct init_out) == 64, "the layout is the kernel's");

/* The flags that the mount wants. */
uint64_t agreement_wanted(const struct cfs_fuse_conf *conf);
/*
 * The same as capabilities of libfuse (FUSE_CAP_*): *ret_on are wanted, *ret_off are not. libfuse
 * keeps its default for all others.
 */
void agreement_caps(const struct cfs_fuse_conf *conf, uint64_t *ret_on, uint64_t *ret_off);

#endif
