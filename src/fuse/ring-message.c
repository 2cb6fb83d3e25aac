/* SPDX-License-Identifier: Apache-2.0 */
#include "ring-message.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "ring.h"

bool ring_is_switched_on(void)
{
	cfs_auto_close int fd = open(CFS_RING_PARAMETER, O_RDONLY | O_CLOEXEC);
	char c = 'N';

	return fd >= 0 && read(fd, &c, 1) == 1 && c == 'Y';
}

unsigned ring_queues(void)
{
	cfs_auto_close int fd = open(RING_POSSIBLE, O_RDONLY | O_CLOEXEC);
	char text[1024];
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (n <= 0)
		return 0;
	text[n] = '\0';
	return ring_count_cpus(text);
}

/* As "0-3,6\n". */
unsigned ring_count_cpus(const char *list)
{
	unsigned long first, last, n = 0;
	char *end;

	for (;; list = end + 1) {
		first = last = strtoul(list, &end, 10);
		if (end == list)
			return 0;
		if (*end == '-') {
			list = end + 1;
			last = strtoul(list, &end, 10);
		}
		if (end == list || last < first || last >= UINT16_MAX)
			return 0;
		n += last - first + 1;
		if (*end != ',')
			return *end == '\n' || *end == '\0' ? (unsigned)n : 0;
	}
}

/* The kernel does not tell the first argument's length: it is the whole without the payload. */
struct fuse_in_header *ring_join(uint8_t *page, size_t payload, size_t *ret_len)
{
	const struct ring_header *h = (const void *)page;
	struct fuse_in_header in;
	size_t op;
	uint8_t *at;

	memcpy(&in, h->in_out, sizeof(in));
	if (h->payload_bytes > payload || in.len < sizeof(in) + h->payload_bytes)
		return NULL;
	op = in.len - sizeof(in) - h->payload_bytes;
	if (op > RING_HEADER_BYTES || op % sizeof(uint64_t))
		return NULL;
	at = page + RING_PAGE - op;
	memcpy(at, h->op, op);
	at -= sizeof(in);
	memcpy(at, &in, sizeof(in));
	*ret_len = in.len;
	return (void *)at;
}

int ring_write_answer(uint8_t *page, size_t payload, uint64_t unique, int error,
		      const struct iovec *iov, int n)
{
	struct ring_header *h = (void *)page;
	struct fuse_out_header out = {.len = sizeof(out), .error = error, .unique = unique};
	size_t len = cfs_iov_len(iov + 1, n - 1);

	if (len > payload)
		return -EINVAL;
	cfs_iov_gather(iov + 1, n - 1, page + RING_PAGE);
	out.len += (uint32_t)len;
	memcpy(h->in_out, &out, sizeof(out));
	h->payload_bytes = (uint32_t)len;
	return 0;
}
