/* SPDX-License-Identifier: Apache-2.0 */
/* Byte streams to and from files, compressed or not. One thread per stream. */
#ifndef CFS_CMD_STREAM_H
#define CFS_CMD_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum stream_codec { STREAM_AUTO, STREAM_PLAIN, STREAM_GZIP, STREAM_ZSTD };

/*
 * path "-" or NULL: stdout. AUTO: by the name's ending (.gz, .zst, .zstd). A regular file gets its
 * name only when it is complete; its mode is 0600. err: one line.
 */
struct stream_out;
int stream_create(const char *path, enum stream_codec codec, struct stream_out **ret,
		  char err[256]);
/* The same over a descriptor, which the stream closes, also when it fails. */
int stream_create_on(int fd, enum stream_codec codec, struct stream_out **ret, char err[256]);
/* Errors stick: after one nothing is written, and each call returns it. */
int stream_write(struct stream_out *s, const void *data, size_t len);
__attribute__((format(printf, 2, 3))) int stream_printf(struct stream_out *s, const char *fmt, ...);
/* 0, or the error of writing. */
int stream_error(const struct stream_out *s);
/* complete: ends the data; else discards the file. Frees. */
int stream_close_out(struct stream_out *s, int complete);

/* path "-": stdin. The compression is recognised by the first bytes. */
struct stream_in;
int stream_open(const char *path, struct stream_in **ret, char err[256]);
/* Whether the file begins as gzip does. */
bool stream_is_gzip(int fd);
/* The same over a descriptor, from its start. The stream closes it, also when it fails. */
int stream_open_on(int fd, struct stream_in **ret, char err[256]);
/* Reads what is available, at most len bytes; 0 at the end. -EBADMSG: damaged or cut short. */
ssize_t stream_read(struct stream_in *s, void *buf, size_t len);
/*
 * Reads all of len: 1; 0 when the stream ended before the first byte, -EBADMSG when it ended later.
 */
int stream_read_full(struct stream_in *s, void *buf, size_t len);
/* Peeks at the next byte; -1 at the end. */
int stream_peek(struct stream_in *s);
void stream_close_in(struct stream_in *s);

#endif
