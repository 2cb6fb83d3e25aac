/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The private data of the connection manager's messages: each side proves that its queue pair belongs
 * to a session of two authenticated members. docs/peer-protocol.md specifies the bytes.
 */
#ifndef CFS_RDMA_BINDING_H
#define CFS_RDMA_BINDING_H

#include <stddef.h>
#include <stdint.h>

#define CFS_RDMA_SECRET	  32
#define CFS_RDMA_ASK_LEN  40 /* from the reader: session, proof */
#define CFS_RDMA_GIVE_LEN 32 /* from the owner: proof */

/* Makes the reader's data, for its queue pair. -EIO: HMAC failed. */
int cfs_rdma_ask(uint8_t ret[CFS_RDMA_ASK_LEN], uint64_t session,
		 const uint8_t secret[CFS_RDMA_SECRET], uint32_t reader_qp);
/* The session that the data names, without proof. -EPROTO: too short. */
int cfs_rdma_session_of(const void *data, size_t len, uint64_t *ret);
/* -EACCES: the proof is for another secret or queue pair. */
int cfs_rdma_check_ask(const void *data, size_t len, const uint8_t secret[CFS_RDMA_SECRET],
		       uint32_t reader_qp);

/* The same of the owner's data, for both queue pairs. */
int cfs_rdma_give(uint8_t ret[CFS_RDMA_GIVE_LEN], uint64_t session,
		  const uint8_t secret[CFS_RDMA_SECRET], uint32_t reader_qp, uint32_t owner_qp);
int cfs_rdma_check_give(const void *data, size_t len, uint64_t session,
			const uint8_t secret[CFS_RDMA_SECRET], uint32_t reader_qp,
			uint32_t owner_qp);

#endif
