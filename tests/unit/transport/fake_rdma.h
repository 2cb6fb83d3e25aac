/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA devices within one process, by the contract of transport/rdma/verbs.h: for tests of what is
 * above it that need no kernel module. Reads are copies of mapped memory. The test decides when they
 * are done, and which connections come about. tests/rdma has the same with the kernel's devices.
 */
#ifndef CFS_FAKE_RDMA_H
#define CFS_FAKE_RDMA_H

#include <stdatomic.h>

#include "transport/rdma/verbs.h"

extern const struct cfs_rdma_ops fake_rdma;

/* Reset by fake_rdma_reset(), with no device open. */
extern struct fake_rdma_ways {
	atomic_bool refuses; /* no connection comes about */
	atomic_bool holds;   /* reads are not done until this ends: fake_rdma_release() */
	_Atomic unsigned connects, reads, polled_reads, watches;
	_Atomic unsigned wakes;		 /* reads that made a loop's descriptor readable */
	_Atomic uint64_t connect_ms[16]; /* when connections were begun */
	/* The memory that was mapped last for others. */
	uint8_t *_Atomic shared;
} fake_ways;

void fake_rdma_reset(void);
/* Ends `holds`. */
void fake_rdma_release(void);
/* The memory that is mapped for others cannot be read any more, as if its key were another. */
void fake_rdma_void_keys(void);
/* All connections end. */
void fake_rdma_cut(void);
/* All devices are gone; what is held is never done. */
void fake_rdma_remove(void);

#endif
