/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.3 between members, without certificates: both sides prove a key derived from the group's
 * (an external PSK, with a fresh Diffie-Hellman exchange). Identities are checked by the handshake,
 * which follows and is bound to the TLS connection. docs/peer-protocol.md
 *
 * If the kernel is able to, it encrypts the data a server sends, so that files are spliced as
 * without TLS.
 */
#ifndef CFS_TRANSPORT_TLS_H
#define CFS_TRANSPORT_TLS_H

#include "link.h"
#include "transport/wire/handshake.h"

struct cfs_tls;

/*
 * keys: borrowed, and read on the loop's thread only. records: number in one direction after which
 * a connection sets key_limit. -ENOMEM.
 */
int cfs_tls_create(const struct cfs_handshake_keys *keys, uint64_t records, struct cfs_tls **ret);
/* Called after its last connection is closed. */
void cfs_tls_destroy(struct cfs_tls *tls);

#endif
