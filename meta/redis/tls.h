/* SPDX-License-Identifier: Apache-2.0 */
/* TLS below a connection. One thread may read while another one writes. */
#ifndef CFS_META_REDIS_TLS_H
#define CFS_META_REDIS_TLS_H

#include <sys/types.h>

#include "meta/redis/redis-internal.h"

struct rds_tls;

/*
 * -EACCES: the server is not trusted, or refuses this client. -ENOTCONN: try again. err: one line.
 */
int rds_tls_start(struct rds_target *t, const char *host, int fd, cfs_deadline_t deadline,
		  struct rds_tls **ret, char err[256]);
void rds_tls_end(struct rds_tls *tls);
/* Returns a number of bytes; -EAGAIN: wait for *ret_wait (POLLIN, POLLOUT) first; -ENOTCONN. */
ssize_t rds_tls_read(struct rds_tls *tls, void *buf, size_t size, short *ret_wait);
ssize_t rds_tls_write(struct rds_tls *tls, const void *data, size_t len, short *ret_wait);

#endif
