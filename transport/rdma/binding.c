/* SPDX-License-Identifier: Apache-2.0 */
/* Proofs of RDMA connections. */
#include "binding.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <string.h>

#include "base/bytes.h"

#define LABEL_LEN 32
#define PROOF_LEN 32

/* The labels differ by role, so a proof cannot be reflected. */
static const char label_reader[LABEL_LEN] = "cachefs rdma reader proof";
static const char label_owner[LABEL_LEN] = "cachefs rdma owner proof";

/* owner_qp is 0 in the reader's proof, as the reader does not know it. */
static int proof(const char label[LABEL_LEN], uint64_t session,
		 const uint8_t secret[CFS_RDMA_SECRET], uint32_t reader_qp, uint32_t owner_qp,
		 uint8_t ret[PROOF_LEN])
{
	uint8_t text[LABEL_LEN + 16];
	unsigned n = PROOF_LEN;

	memcpy(text, label, LABEL_LEN);
	cfs_put_be64(text + LABEL_LEN, session);
	cfs_put_be32(text + LABEL_LEN + 8, reader_qp);
	cfs_put_be32(text + LABEL_LEN + 12, owner_qp);
	return HMAC(EVP_sha256(), secret, CFS_RDMA_SECRET, text, sizeof(text), ret, &n) ? 0 : -EIO;
}

int cfs_rdma_ask(uint8_t ret[CFS_RDMA_ASK_LEN], uint64_t session,
		 const uint8_t secret[CFS_RDMA_SECRET], uint32_t reader_qp)
{
	cfs_put_be64(ret, session);
	return proof(label_reader, session, secret, reader_qp, 0, ret + 8);
}

int cfs_rdma_session_of(const void *data, size_t len, uint64_t *ret)
{
	if (len < CFS_RDMA_ASK_LEN)
		return -EPROTO;
	*ret = cfs_get_be64(data);
	return 0;
}

int cfs_rdma_check_ask(const void *data, size_t len, const uint8_t secret[CFS_RDMA_SECRET],
		       uint32_t reader_qp)
{
	uint8_t want[PROOF_LEN];
	uint64_t session;
	int r = cfs_rdma_session_of(data, len, &session);

	if (r == 0)
		r = proof(label_reader, session, secret, reader_qp, 0, want);
	if (r < 0)
		return r;
	return CRYPTO_memcmp(want, (const uint8_t *)data + 8, PROOF_LEN) == 0 ? 0 : -EACCES;
}

int cfs_rdma_give(uint8_t ret[CFS_RDMA_GIVE_LEN], uint64_t session,
		  const uint8_t secret[CFS_RDMA_SECRET], uint32_t reader_qp, uint32_t owner_qp)
{
	return proof(label_owner, session, secret, reader_qp, owner_qp, ret);
}

int cfs_rdma_check_give(const void *data, size_t len, uint64_t session,
			const uint8_t secret[CFS_RDMA_SECRET], uint32_t reader_qp,
			uint32_t owner_qp)
{
	uint8_t want[PROOF_LEN];
	int r;

	if (len < CFS_RDMA_GIVE_LEN)
		return -EPROTO;
	r = proof(label_owner, session, secret, reader_qp, owner_qp, want);
	if (r < 0)
		return r;
	return CRYPTO_memcmp(want, data, PROOF_LEN) == 0 ? 0 : -EACCES;
}
