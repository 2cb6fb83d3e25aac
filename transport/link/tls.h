/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.3 between members, without certificates: what both must have is a key derived from the
 * group's (an external PSK, with a fresh Diffie-Hellman exchange). Who is who is the handshake's
 * matter, which comes afterwards and is bound to the TLS connection. docs/peer-protocol.md
 *
 * Where the kernel can, it encrypts what a server sends, so that files are spliced as without TLS.
 */
#ifndef CFS_TRANSPORT_TLS_H
#define CFS_TRANSPORT_TLS_H

#include "link.h"
#include "transport/wire/handshake.h"

struct cfs_tls;

/*
 * keys: borrowed, and looked at on the loop's thread only. records: of one direction, after which a
 * connection is worn. -ENOMEM.
 */
int cfs_tls_create(const struct cfs_handshake_keys *keys, uint64_t records, struct cfs_tls **ret);
/* After the last of its connections. */
void cfs_tls_destroy(struct cfs_tls *tls);

#endif
