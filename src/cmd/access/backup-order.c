/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of a mount to the process that makes its backups: a sequence of terminated strings: the
 * fields of struct backup_order, the environment, and an empty one, without which it was cut short.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cmd/access/backup.h"
#include "cmd/access/respawn.h"

/* Deadline for a child to take its order. */
#define SEND_S 10

enum { CONNECTIONS = 4 };
/* Strings of an order, before the environment; the numbers stand from F_NUMBERS on. */
enum { N_UPLOAD, N_DOWNLOAD, N_NOW, N_MAKE, N_SKIP_TRASH, NUMBERS };
enum { F_URL, F_STORAGE, F_BUCKET, F_NUMBERS, FIELDS = F_NUMBERS + NUMBERS };

/* ---- the mount's side ---- */

static int write_order(FILE *out, const struct backup_order *o)
{
	char *const *e;

	fprintf(out, "%s%c%s%c%s%c", o->url, 0, o->objects.storage ? o->objects.storage : "", 0,
		o->objects.bucket ? o->objects.bucket : "", 0);
	fprintf(out, "%" PRId64 "%c%" PRId64 "%c%" PRId64 "%c%d%c%d%c",
		o->objects.upload_limit_mbps, 0, o->objects.download_limit_mbps, 0, o->now_s, 0,
		o->make, 0, o->skip_trash, 0);
	for (e = environ; *e; e++)
		if (**e)
			fprintf(out, "%s%c", *e, 0);
	fputc(0, out);
	return ferror(out) ? -ENOMEM : 0;
}

static int send_order(int sock, const struct backup_order *o)
{
	struct timeval timeout = {.tv_sec = SEND_S};
	char *text = NULL;
	size_t len = 0, at;
	FILE *out = open_memstream(&text, &len);
	ssize_t n;
	int r = out ? write_order(out, o) : -ENOMEM;

	if (out && fclose(out) && !r)
		r = -ENOMEM;
	if (!r && setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0)
		r = -errno;
	for (at = 0; !r && at < len; at += (size_t)n) {
		n = send(sock, text + at, len - at, MSG_NOSIGNAL);
		if (n < 0)
			r = -errno;
	}
	if (!r && shutdown(sock, SHUT_WR) < 0)
		r = -errno;
	if (text)
		explicit_bzero(text, len);
	free(text);
	return r;
}

int backup_spawn(const struct backup_order *order, pid_t *ret_pid, int *ret_socket)
{
	char name[] = "cachefs", command[] = BACKUP_CHILD;
	char *const argv[] = {name, command, NULL};
	int pair[2], r;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	r = respawn(argv, pair[1], pair[1], ret_pid);
	close(pair[1]);
	if (r < 0) {
		close(pair[0]);
		return r;
	}
	*ret_socket = pair[0];
	/* Without its whole order a child ends, and the caller reads the end. */
	if (send_order(pair[0], order) < 0)
		shutdown(pair[0], SHUT_RDWR);
	return 0;
}

/* ---- the child's side ---- */

int backup_take_order(char *text, size_t len, struct backup_order *ret)
{
	char *p = text, *end = text + len, *value, *rest;
	const char *field[FIELDS];
	int64_t number[NUMBERS];
	int i;

	if (len < 2 || end[-1] || end[-2])
		return -EPIPE;
	for (i = 0; i < FIELDS; i++, p += strlen(p) + 1) {
		if (p >= end)
			return -EPIPE;
		field[i] = p;
	}
	for (i = 0; i < NUMBERS; i++) {
		number[i] = strtoll(field[F_NUMBERS + i], &rest, 10);
		if (rest == field[F_NUMBERS + i] || *rest)
			return -EINVAL;
	}
	for (; p < end && *p; p += strlen(p) + 1) {
		value = strchr(p, '=');
		if (!value)
			continue;
		*value = '\0';
		if (setenv(p, value + 1, 1) < 0)
			return -errno;
		*value = '=';
	}
	*ret = (struct backup_order){
		.url = field[F_URL],
		.objects =
			{
				.storage = *field[F_STORAGE] ? field[F_STORAGE] : NULL,
				.bucket = *field[F_BUCKET] ? field[F_BUCKET] : NULL,
				.upload_limit_mbps = number[N_UPLOAD],
				.download_limit_mbps = number[N_DOWNLOAD],
				.max_connections = CONNECTIONS,
				.small_buffers = true,
			},
		.now_s = number[N_NOW],
		.make = number[N_MAKE],
		.skip_trash = number[N_SKIP_TRASH],
	};
	return 0;
}
