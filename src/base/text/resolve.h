/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of hosts, with a deadline, which getaddrinfo(3) has not. */
#ifndef CFS_RESOLVE_H
#define CFS_RESOLVE_H

#include <sys/socket.h>

#include "base/clock.h"

#define CFS_ADDRESSES_MAX 16

struct cfs_addresses {
	unsigned n;
	struct cfs_address {
		struct sockaddr_storage addr;
		socklen_t len;
	} at[CFS_ADDRESSES_MAX];
};

/*
 * The addresses of a host or of an address in digits, at least one, in the order in which to try
 * them; without those after CFS_ADDRESSES_MAX. Names are looked up on a thread of their own, one for
 * each name, which goes on after the deadline; later calls for the name wait for the same one. 0, or
 * -ENOTCONN with a message, in which `what` says what the host was taken for.
 */
int cfs_resolve(const char *host, unsigned port, const char *what, cfs_deadline_t deadline,
		struct cfs_addresses *ret, char err[256]);

#endif
