/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of members: which are private, the choice of one, their text. */
#include <arpa/inet.h>
#include <cachefs/transport.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

static const struct {
	uint32_t net;
	unsigned bits;
} private4[] = {
	{0x0a000000, 8},  /* RFC 1918 */
	{0xac100000, 12}, /* RFC 1918 */
	{0xc0a80000, 16}, /* RFC 1918 */
	{0x64400000, 10}, /* RFC 6598: provider's own */
	{0xa9fe0000, 16}, /* RFC 3927: link-local */
	{0x7f000000, 8},  /* loopback */
};

static bool is_private4(uint32_t a)
{
	size_t i;

	for (i = 0; i < sizeof(private4) / sizeof(private4[0]); i++) {
		if ((a ^ private4[i].net) >> (32 - private4[i].bits) == 0)
			return true;
	}
	return false;
}

bool cfs_address_is_private(const struct sockaddr *sa)
{
	const struct in6_addr *a6;

	if (sa->sa_family == AF_INET)
		return is_private4(ntohl(((const struct sockaddr_in *)sa)->sin_addr.s_addr));
	if (sa->sa_family != AF_INET6)
		return false;
	a6 = &((const struct sockaddr_in6 *)sa)->sin6_addr;
	if (IN6_IS_ADDR_V4MAPPED(a6)) {
		uint32_t a4;

		memcpy(&a4, &a6->s6_addr[12], sizeof(a4));
		return is_private4(ntohl(a4));
	}
	return IN6_IS_ADDR_LOOPBACK(a6) || IN6_IS_ADDR_LINKLOCAL(a6) ||
	       (a6->s6_addr[0] & 0xfe) == 0xfc; /* RFC 4193 */
}

struct network {
	int family;
	uint8_t addr[16];
	unsigned bits;
};

static int parse_network(const char *text, struct network *ret)
{
	char addr[INET6_ADDRSTRLEN];
	const char *slash = strchr(text, '/');
	size_t len = slash ? (size_t)(slash - text) : strlen(text);
	unsigned long bits;
	char *end;

	if (len >= sizeof(addr))
		return -EINVAL;
	memcpy(addr, text, len);
	addr[len] = '\0';
	ret->family = strchr(addr, ':') ? AF_INET6 : AF_INET;
	if (inet_pton(ret->family, addr, ret->addr) != 1)
		return -EINVAL;
	ret->bits = ret->family == AF_INET ? 32 : 128;
	if (!slash)
		return 0;
	bits = strtoul(slash + 1, &end, 10);
	if (end == slash + 1 || *end || bits > ret->bits)
		return -EINVAL;
	ret->bits = (unsigned)bits;
	return 0;
}

static const uint8_t *address_bytes(const struct sockaddr *sa)
{
	if (sa->sa_family == AF_INET)
		return (const uint8_t *)&((const struct sockaddr_in *)sa)->sin_addr;
	return (const uint8_t *)&((const struct sockaddr_in6 *)sa)->sin6_addr;
}

static bool is_within(const struct sockaddr *sa, const struct network *net)
{
	const uint8_t *a = address_bytes(sa);
	unsigned i;

	if (sa->sa_family != net->family)
		return false;
	for (i = 0; i < net->bits; i++) {
		if ((a[i / 8] ^ net->addr[i / 8]) >> (7 - i % 8) & 1)
			return false;
	}
	return true;
}

static bool is_link_local6(const struct sockaddr *sa)
{
	return sa->sa_family == AF_INET6 &&
	       IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)sa)->sin6_addr);
}

int cfs_address_pick(const char *network, const char *device, struct sockaddr_storage *ret,
		     socklen_t *ret_len, char ret_device[IF_NAMESIZE])
{
	struct ifaddrs *list, *i;
	struct network net;
	int r = network ? parse_network(network, &net) : 0;

	if (r < 0)
		return r;
	if (getifaddrs(&list) < 0)
		return -errno;
	r = -EADDRNOTAVAIL;
	for (i = list; i; i = i->ifa_next) {
		const struct sockaddr *sa = i->ifa_addr;
		socklen_t len;

		if (!sa || (sa->sa_family != AF_INET && sa->sa_family != AF_INET6) ||
		    !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK))
			continue;
		/* A link-local IPv6 address has no meaning without an interface. */
		if (!cfs_address_is_private(sa) || is_link_local6(sa) ||
		    (network && !is_within(sa, &net)) ||
		    (device && strcmp(device, i->ifa_name) != 0))
			continue;
		len = sa->sa_family == AF_INET ? sizeof(struct sockaddr_in)
					       : sizeof(struct sockaddr_in6);
		memset(ret, 0, sizeof(*ret));
		memcpy(ret, sa, len);
		*ret_len = len;
		snprintf(ret_device, IF_NAMESIZE, "%s", i->ifa_name);
		r = 0;
		break;
	}
	freeifaddrs(list);
	return r;
}

bool cfs_address_is_ours(const struct sockaddr *sa, socklen_t len)
{
	struct sockaddr_storage any_port = {0};
	cfs_auto_close int fd = socket(sa->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return true;
	memcpy(&any_port, sa, len);
	if (sa->sa_family == AF_INET)
		((struct sockaddr_in *)&any_port)->sin_port = 0;
	else
		((struct sockaddr_in6 *)&any_port)->sin6_port = 0;
	return bind(fd, (struct sockaddr *)&any_port, len) == 0 || errno != EADDRNOTAVAIL;
}

void cfs_address_format(const struct sockaddr *sa, char ret[CFS_ADDRESS_MAX])
{
	char text[INET6_ADDRSTRLEN] = "?";
	bool v6 = sa->sa_family == AF_INET6;

	if (!v6 && sa->sa_family != AF_INET) {
		snprintf(ret, CFS_ADDRESS_MAX, "?");
		return;
	}
	inet_ntop(sa->sa_family, address_bytes(sa), text, sizeof(text));
	snprintf(ret, CFS_ADDRESS_MAX, v6 ? "[%s]:%u" : "%s:%u", text,
		 (unsigned)ntohs(v6 ? ((const struct sockaddr_in6 *)sa)->sin6_port
				    : ((const struct sockaddr_in *)sa)->sin_port));
}
