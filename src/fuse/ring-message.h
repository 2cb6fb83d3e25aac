/* SPDX-License-Identifier: Apache-2.0 */
/* Messages in the buffers of a ring's entry: include/uapi/linux/fuse.h of Linux 6.14. */
#ifndef CFS_FUSE_RING_MESSAGE_H
#define CFS_FUSE_RING_MESSAGE_H

#include <linux/fuse.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* The headers at build time may lack these. */
#define RING_REGISTER	      1
#define RING_COMMIT_AND_FETCH 2
#define RING_HEADER_BYTES     128

/* The first buffer. */
struct ring_header {
	uint8_t in_out[RING_HEADER_BYTES]; /* struct fuse_in_header, or fuse_out_header */
	uint8_t op[RING_HEADER_BYTES];	   /* the first argument of the request */
	uint64_t flags, commit_id;
	uint32_t payload_bytes, padding;
	uint64_t reserved;
};

/* In an entry of the submission queue. */
struct ring_command {
	uint64_t flags, commit_id;
	uint16_t queue;
	uint8_t padding[6];
};

/*
 * An entry is a page with the header, and the payload behind that page. ring_join() puts the
 * request's header and first argument at the end of the page, directly before the payload.
 */
#define RING_PAGE 4096
_Static_assert(sizeof(struct ring_header) + sizeof(struct fuse_in_header) + RING_HEADER_BYTES <=
		       RING_PAGE,
	       "a request fits together before its payload");

/*
 * Joins the parts of a request. page: an entry's buffers, with `payload` bytes behind the first
 * page. NULL: the lengths contradict each other.
 */
struct fuse_in_header *ring_join(uint8_t *page, size_t payload, size_t *ret_len);
/* Of a list of CPUs as the kernel writes it; 0: it is malformed. */
unsigned ring_count_cpus(const char *list);
/* Writes an answer; iov[0] is ignored. -EINVAL: it has more than `payload` bytes. */
int ring_write_answer(uint8_t *page, size_t payload, uint64_t unique, int error,
		      const struct iovec *iov, int n);

#endif
