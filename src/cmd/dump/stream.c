/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/dump/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#ifdef CFS_HAVE_ZSTD
#include <zstd.h>
#endif

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"

enum { ROOM = 256 << 10, GZIP_WINDOW = 15 + 16 };

static const uint8_t gzip_magic[] = {0x1f, 0x8b}, zstd_magic[] = {0x28, 0xb5, 0x2f, 0xfd};

/* ---- writing ---- */

struct stream_out {
	int fd;
	char *path, *temp; /* NULL: there is no file to rename at the end */
	bool named;	   /* there is a file called `temp` */
	enum stream_codec codec;
	z_stream z;
#ifdef CFS_HAVE_ZSTD
	ZSTD_CCtx *zstd;
#endif
	int err;
	size_t used;
	uint8_t in[ROOM], out[ROOM];
};

static enum stream_codec by_name(const char *path)
{
	const char *dot = path ? strrchr(path, '.') : NULL;

	if (dot && !strcmp(dot, ".gz"))
		return STREAM_GZIP;
	if (dot && (!strcmp(dot, ".zst") || !strcmp(dot, ".zstd")))
		return STREAM_ZSTD;
	return STREAM_PLAIN;
}

static int start_codec(struct stream_out *s, char err[256])
{
	if (s->codec == STREAM_GZIP && deflateInit2(&s->z, Z_DEFAULT_COMPRESSION, Z_DEFLATED,
						    GZIP_WINDOW, 8, Z_DEFAULT_STRATEGY) != Z_OK)
		return -ENOMEM;
	if (s->codec != STREAM_ZSTD)
		return 0;
#ifdef CFS_HAVE_ZSTD
	s->zstd = ZSTD_createCCtx();
	if (!s->zstd)
		return -ENOMEM;
	ZSTD_CCtx_setParameter(s->zstd, ZSTD_c_checksumFlag, 1);
	return 0;
#else
	return cfs_fail(err, -EOPNOTSUPP, "this program was built without zstd");
#endif
}

/* Opens an unnamed file in the directory of `path`. It vanishes when the process is killed. */
static int open_unnamed(const char *path)
{
	const char *slash = strrchr(path, '/');
	char *dir = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
	int fd = dir ? open(dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600) : -1;

	free(dir);
	return fd;
}

/* Gives the file a temporary name: link(2) cannot replace a file, rename(2) can. */
static int name_it(struct stream_out *s)
{
	char fd[32];

	snprintf(fd, sizeof(fd), "/proc/self/fd/%d", s->fd);
	snprintf(s->temp + strlen(s->temp) - 6, 7, "%06x", (unsigned)cfs_random_u64() & 0xFFFFFF);
	if (linkat(AT_FDCWD, fd, AT_FDCWD, s->temp, AT_SYMLINK_FOLLOW) < 0)
		return -errno;
	s->named = true;
	return 0;
}

static int open_target(struct stream_out *s, const char *path, char err[256])
{
	struct stat st;
	int r = 0;

	if (!path || !strcmp(path, "-")) {
		s->fd = STDOUT_FILENO;
		return 0;
	}
	if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
		s->fd = open(path, O_WRONLY | O_CLOEXEC);
	} else {
		s->path = strdup(path);
		if (!s->path || asprintf(&s->temp, "%s.XXXXXX", path) < 0) {
			s->temp = NULL;
			return -ENOMEM;
		}
		s->fd = open_unnamed(path);
		s->named = s->fd < 0;
		if (s->named) /* not every file system supports O_TMPFILE */
			s->fd = mkostemp(s->temp, O_CLOEXEC);
	}
	if (s->fd < 0) {
		r = -errno;
		snprintf(err, 256, "cannot write %.200s: %s", path, strerror(-r));
		free(s->temp);
		s->temp = NULL;
	}
	return r;
}

int stream_create(const char *path, enum stream_codec codec, struct stream_out **ret, char err[256])
{
	struct stream_out *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return -ENOMEM;
	s->fd = -1;
	s->codec = codec == STREAM_AUTO ? by_name(path) : codec;
	r = start_codec(s, err);
	if (!r)
		r = open_target(s, path, err);
	if (r) {
		stream_close_out(s, 0);
		return r;
	}
	*ret = s;
	return 0;
}

int stream_create_on(int fd, enum stream_codec codec, struct stream_out **ret, char err[256])
{
	struct stream_out *s = fd < 0 ? NULL : calloc(1, sizeof(*s));
	int r;

	if (!s) {
		r = -errno;
		if (fd >= 0)
			close(fd);
		return r;
	}
	s->fd = fd;
	s->codec = codec;
	r = start_codec(s, err);
	if (r)
		stream_close_out(s, 0);
	else
		*ret = s;
	return r;
}

static int put(struct stream_out *s, const uint8_t *p, size_t len)
{
	while (len) {
		ssize_t n = write(s->fd, p, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

static int gzip(struct stream_out *s, int end)
{
	int r = 0, rc = Z_OK;

	s->z.next_in = s->in;
	s->z.avail_in = (uInt)s->used;
	do {
		s->z.next_out = s->out;
		s->z.avail_out = ROOM;
		rc = deflate(&s->z, end ? Z_FINISH : Z_NO_FLUSH);
		if (rc == Z_STREAM_ERROR)
			return -EIO;
		r = put(s, s->out, ROOM - s->z.avail_out);
	} while (!r && (s->z.avail_out == 0 || (end && rc != Z_STREAM_END)));
	return r;
}

#ifdef CFS_HAVE_ZSTD
static int zstd(struct stream_out *s, int end)
{
	ZSTD_inBuffer in = {s->in, s->used, 0};
	size_t left;
	int r;

	do {
		ZSTD_outBuffer out = {s->out, ROOM, 0};

		left = ZSTD_compressStream2(s->zstd, &out, &in, end ? ZSTD_e_end : ZSTD_e_continue);
		if (ZSTD_isError(left))
			return -EIO;
		r = put(s, s->out, out.pos);
	} while (!r && (end ? left != 0 : in.pos < in.size));
	return r;
}
#endif

static int drain(struct stream_out *s, int end)
{
	int r;

	if (s->codec == STREAM_GZIP)
		r = gzip(s, end);
#ifdef CFS_HAVE_ZSTD
	else if (s->codec == STREAM_ZSTD)
		r = zstd(s, end);
#endif
	else
		r = put(s, s->in, s->used);
	s->used = 0;
	s->err = s->err ? s->err : r;
	return r;
}

int stream_write(struct stream_out *s, const void *data, size_t len)
{
	const uint8_t *p = data;

	while (len && !s->err) {
		size_t n = CFS_MIN(len, ROOM - s->used);

		memcpy(s->in + s->used, p, n);
		s->used += n;
		p += n;
		len -= n;
		if (s->used == ROOM)
			drain(s, 0);
	}
	return s->err;
}

int stream_printf(struct stream_out *s, const char *fmt, ...)
{
	char buf[1024];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(buf, sizeof(buf), fmt, ap);
	va_end(ap);
	if ((n < 0 || (size_t)n >= sizeof(buf)) && !s->err)
		s->err = -EOVERFLOW;
	return s->err ? s->err : stream_write(s, buf, (size_t)n);
}

int stream_error(const struct stream_out *s)
{
	return s->err;
}

int stream_close_out(struct stream_out *s, int complete)
{
	int r = complete ? drain(s, 1) : 0;

	if (s->codec == STREAM_GZIP)
		deflateEnd(&s->z);
#ifdef CFS_HAVE_ZSTD
	ZSTD_freeCCtx(s->zstd);
#endif
	if (complete && !r && s->temp && fsync(s->fd) < 0)
		r = -errno;
	if (s->temp && complete && !r && !s->named)
		r = name_it(s);
	if (s->fd > STDERR_FILENO && close(s->fd) < 0 && !r)
		r = -errno;
	if (s->temp && complete && !r && rename(s->temp, s->path) < 0)
		r = -errno;
	if (s->temp && s->named && (!complete || r))
		unlink(s->temp);
	free(s->temp);
	free(s->path);
	free(s);
	return r;
}

/* ---- reading ---- */

struct stream_in {
	int fd;
	enum stream_codec codec;
	z_stream z;
#ifdef CFS_HAVE_ZSTD
	ZSTD_DCtx *zstd;
#endif
	bool at_end;   /* of the file */
	bool in_frame; /* compressed data is expected */
	size_t raw_at, raw_len, at, len;
	uint8_t raw[ROOM], data[ROOM];
};

static int fill_raw(struct stream_in *s)
{
	ssize_t n;

	if (s->raw_at)
		memmove(s->raw, s->raw + s->raw_at, s->raw_len - s->raw_at);
	s->raw_len -= s->raw_at;
	s->raw_at = 0;
	while (!s->at_end && s->raw_len < ROOM) {
		n = read(s->fd, s->raw + s->raw_len, ROOM - s->raw_len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		s->at_end = n == 0;
		s->raw_len += (size_t)n;
		if (s->raw_len >= sizeof(zstd_magic))
			break;
	}
	return 0;
}

static int detect(struct stream_in *s, char err[256])
{
	int r = fill_raw(s);

	if (r)
		return r;
	s->codec = STREAM_PLAIN;
	if (s->raw_len >= sizeof(gzip_magic) && !memcmp(s->raw, gzip_magic, sizeof(gzip_magic))) {
		s->codec = STREAM_GZIP;
		return inflateInit2(&s->z, GZIP_WINDOW) == Z_OK ? 0 : -ENOMEM;
	}
	if (s->raw_len < sizeof(zstd_magic) || memcmp(s->raw, zstd_magic, sizeof(zstd_magic)))
		return 0;
#ifdef CFS_HAVE_ZSTD
	s->codec = STREAM_ZSTD;
	s->zstd = ZSTD_createDCtx();
	return s->zstd ? 0 : -ENOMEM;
#else
	return cfs_fail(err, -EOPNOTSUPP,
			"the dump is compressed with zstd, which this program was built without");
#endif
}

int stream_open(const char *path, struct stream_in **ret, char err[256])
{
	struct stream_in *s = calloc(1, sizeof(*s));
	int r = 0;

	if (!s)
		return -ENOMEM;
	s->fd = strcmp(path, "-") ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;
	if (s->fd < 0)
		r = -errno;
	if (!r)
		r = detect(s, err);
	if (!r) {
		*ret = s;
		return 0;
	}
	if (!err[0])
		snprintf(err, 256, "cannot read %.200s: %s", path, strerror(-r));
	stream_close_in(s);
	return r;
}

bool stream_is_gzip(int fd)
{
	uint8_t head[sizeof(gzip_magic)];

	return pread(fd, head, sizeof(head), 0) == sizeof(head) &&
	       !memcmp(head, gzip_magic, sizeof(head));
}

int stream_open_on(int fd, struct stream_in **ret, char err[256])
{
	struct stream_in *s = calloc(1, sizeof(*s));
	int r;

	if (!s) {
		close(fd);
		return -ENOMEM;
	}
	s->fd = fd;
	r = lseek(fd, 0, SEEK_SET) < 0 ? -errno : detect(s, err);
	if (!r) {
		*ret = s;
		return 0;
	}
	stream_close_in(s);
	return r;
}

static int gunzip(struct stream_in *s)
{
	int rc;

	s->z.next_in = s->raw + s->raw_at;
	s->z.avail_in = (uInt)(s->raw_len - s->raw_at);
	s->z.next_out = s->data;
	s->z.avail_out = ROOM;
	rc = inflate(&s->z, Z_NO_FLUSH);
	s->raw_at = s->raw_len - s->z.avail_in;
	s->len = ROOM - s->z.avail_out;
	s->in_frame = rc != Z_STREAM_END;
	if (rc == Z_STREAM_END)
		return inflateReset(&s->z) == Z_OK ? 0 : -EIO; /* another member may follow */
	return rc == Z_OK || rc == Z_BUF_ERROR ? 0 : -EBADMSG;
}

#ifdef CFS_HAVE_ZSTD
static int unzstd(struct stream_in *s)
{
	ZSTD_inBuffer in = {s->raw, s->raw_len, s->raw_at};
	ZSTD_outBuffer out = {s->data, ROOM, 0};
	size_t r = ZSTD_decompressStream(s->zstd, &out, &in);

	s->raw_at = in.pos;
	s->len = out.pos;
	s->in_frame = r != 0;
	return ZSTD_isError(r) ? -EBADMSG : 0;
}
#endif

/* 1: there is data; 0: the end. */
static int refill(struct stream_in *s)
{
	int r = 0;

	s->at = s->len = 0;
	while (!s->len && !r) {
		if (s->raw_at == s->raw_len)
			r = fill_raw(s);
		if (r)
			return r;
		if (s->raw_at == s->raw_len && !s->in_frame)
			return 0;
		if (s->codec == STREAM_GZIP) {
			r = gunzip(s);
#ifdef CFS_HAVE_ZSTD
		} else if (s->codec == STREAM_ZSTD) {
			r = unzstd(s);
#endif
		} else {
			s->len = s->raw_len - s->raw_at;
			memcpy(s->data, s->raw + s->raw_at, s->len);
			s->raw_at = s->raw_len;
		}
		if (!r && !s->len && s->in_frame && s->at_end && s->raw_at == s->raw_len)
			return -EBADMSG; /* cut short */
	}
	return r ? r : 1;
}

ssize_t stream_read(struct stream_in *s, void *buf, size_t len)
{
	size_t n;
	int r = s->at < s->len ? 1 : refill(s);

	if (r <= 0)
		return r;
	n = CFS_MIN(len, s->len - s->at);
	memcpy(buf, s->data + s->at, n);
	s->at += n;
	return (ssize_t)n;
}

int stream_read_full(struct stream_in *s, void *buf, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = stream_read(s, (uint8_t *)buf + done, len - done);

		if (n < 0)
			return (int)n;
		if (n == 0)
			return done ? -EBADMSG : 0;
		done += (size_t)n;
	}
	return 1;
}

int stream_peek(struct stream_in *s)
{
	return s->at < s->len || refill(s) > 0 ? s->data[s->at] : -1;
}

void stream_close_in(struct stream_in *s)
{
	if (s->codec == STREAM_GZIP)
		inflateEnd(&s->z);
#ifdef CFS_HAVE_ZSTD
	ZSTD_freeDCtx(s->zstd);
#endif
	if (s->fd > STDERR_FILENO)
		close(s->fd);
	free(s);
}
