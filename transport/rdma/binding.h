/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The private data of connecting queue pairs: proofs that both belong to one session of two
 * authenticated members. docs/peer-protocol.md has the bytes.
 */
#ifndef CFS_RDMA_BINDING_H
#define CFS_RDMA_BINDING_H

#include <stddef.h>
#include <stdint.h>

#define CFS_RDMA_SECRET	  32
#define CFS_RDMA_ASK_LEN  40 /* of the reader: session, proof */
#define CFS_RDMA_GIVE_LEN 32 /* of the owner: proof */

/* The reader's: for its queue pair. -EIO: no HMAC. */
int cfs_rdma_ask(uint8_t ret[CFS_RDMA_ASK_LEN], uint64_t session,
		 const uint8_t secret[CFS_RDMA_SECRET], uint32_t reader_qp);
/* Which session it says it is of; not yet proved. -EPROTO: too short. */
int cfs_rdma_session_of(const void *data, size_t len, uint64_t *ret);
/* -EACCES: it is not the secret, or the proof is for another queue pair. */
int cfs_rdma_check_ask(const void *data, size_t len, const uint8_t secret[CFS_RDMA_SECRET],
		       uint32_t reader_qp);

/* The owner's: for both queue pairs. */
int cfs_rdma_give(uint8_t ret[CFS_RDMA_GIVE_LEN], uint64_t session,
		  const uint8_t secret[CFS_RDMA_SECRET], uint32_t reader_qp, uint32_t owner_qp);
int cfs_rdma_check_give(const void *data, size_t len, uint64_t session,
			const uint8_t secret[CFS_RDMA_SECRET], uint32_t reader_qp,
			uint32_t owner_qp);

#endif
