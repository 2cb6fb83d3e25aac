/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layer over SQLite's unix file layer that buffers the write-ahead log of the write connection.
 * SQLite writes the 24-byte header and the page of a frame with two system calls, and a transaction
 * has about six frames. This layer writes a transaction with one system call.
 *
 * The buffer never holds a frame that another connection may read. The last frame of a transaction
 * is the commit frame, whose header contains the size of the database
 * (https://www.sqlite.org/fileformat2.html#walformat). Its page is written through, before SQLite
 * publishes the transaction in the shared index.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "meta/sqlite/sqlite-internal.h"

#define LOG_HEADER_BYTES   32
#define FRAME_HEADER_BYTES 24
#define BUFFER_BYTES	   (64 << 10)

struct log_file {
	sqlite3_file base; /* first */
	uint8_t *buf;
	sqlite3_int64 start; /* offset of the buffer in the file */
	int len;
	bool commit; /* the last header is that of a commit frame */
		     /* The file of the unix layer follows. */
};

static sqlite3_vfs *unix_vfs;

static struct log_file *log_of(sqlite3_file *f)
{
	return (struct log_file *)f;
}

static sqlite3_file *below(sqlite3_file *f)
{
	return (sqlite3_file *)(log_of(f) + 1);
}

static int flush(sqlite3_file *f)
{
	struct log_file *l = log_of(f);
	sqlite3_int64 start = l->start;
	int len = l->len;

	if (!len)
		return SQLITE_OK;
	l->start += len;
	l->len = 0;
	return below(f)->pMethods->xWrite(below(f), l->buf, len, start);
}

static int log_close(sqlite3_file *f)
{
	int rc = flush(f), rc_close = below(f)->pMethods->xClose(below(f));

	free(log_of(f)->buf);
	return rc ? rc : rc_close;
}

static int log_read(sqlite3_file *f, void *buf, int len, sqlite3_int64 off)
{
	int rc = flush(f);

	return rc ? rc : below(f)->pMethods->xRead(below(f), buf, len, off);
}

/* Buffers only a write that continues the last one: SQLite also rewrites earlier checksums. */
static int log_write(sqlite3_file *f, const void *data, int len, sqlite3_int64 off)
{
	struct log_file *l = log_of(f);
	bool header = len == FRAME_HEADER_BYTES && off >= LOG_HEADER_BYTES;
	int rc;

	if (header)
		l->commit = cfs_get_be32((const uint8_t *)data + 4) != 0;
	if (off != l->start + l->len || len > BUFFER_BYTES - l->len) {
		rc = flush(f);
		if (rc)
			return rc;
	}
	if (off != l->start + l->len || len > BUFFER_BYTES) {
		l->start = off + len;
		return below(f)->pMethods->xWrite(below(f), data, len, off);
	}
	memcpy(l->buf + l->len, data, (size_t)len);
	l->len += len;
	return l->commit && !header ? flush(f) : SQLITE_OK;
}

static int log_truncate(sqlite3_file *f, sqlite3_int64 size)
{
	int rc = flush(f);

	return rc ? rc : below(f)->pMethods->xTruncate(below(f), size);
}

static int log_sync(sqlite3_file *f, int flags)
{
	int rc = flush(f);

	return rc ? rc : below(f)->pMethods->xSync(below(f), flags);
}

static int log_size(sqlite3_file *f, sqlite3_int64 *ret)
{
	int rc = flush(f);

	return rc ? rc : below(f)->pMethods->xFileSize(below(f), ret);
}

/* Locks on other files protect the log. */
static int log_lock(sqlite3_file *f, int lock)
{
	return SQLITE_OK;
}

static int log_check_lock(sqlite3_file *f, int *ret)
{
	*ret = 0;
	return SQLITE_OK;
}

static int log_control(sqlite3_file *f, int op, void *arg)
{
	return below(f)->pMethods->xFileControl(below(f), op, arg);
}

static int log_sector_size(sqlite3_file *f)
{
	return below(f)->pMethods->xSectorSize(below(f));
}

static int log_characteristics(sqlite3_file *f)
{
	return below(f)->pMethods->xDeviceCharacteristics(below(f));
}

static const sqlite3_io_methods log_methods = {
	.iVersion = 1,
	.xClose = log_close,
	.xRead = log_read,
	.xWrite = log_write,
	.xTruncate = log_truncate,
	.xSync = log_sync,
	.xFileSize = log_size,
	.xLock = log_lock,
	.xUnlock = log_lock,
	.xCheckReservedLock = log_check_lock,
	.xFileControl = log_control,
	.xSectorSize = log_sector_size,
	.xDeviceCharacteristics = log_characteristics,
};

static int open_file(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *ret_flags)
{
	struct log_file *l = log_of(f);
	int rc;

	if (!(flags & SQLITE_OPEN_WAL))
		return unix_vfs->xOpen(unix_vfs, name, f, flags, ret_flags);
	*l = (struct log_file){.buf = malloc(BUFFER_BYTES)};
	if (!l->buf)
		return SQLITE_NOMEM;
	rc = unix_vfs->xOpen(unix_vfs, name, below(f), flags, ret_flags);
	if (rc)
		free(l->buf);
	else
		f->pMethods = &log_methods;
	return rc;
}

void sqlite_vfs_register(void)
{
	static sqlite3_vfs vfs;

	unix_vfs = sqlite3_vfs_find(NULL);
	vfs = *unix_vfs;
	vfs.zName = SQLITE_WRITER_VFS;
	vfs.szOsFile += (int)sizeof(struct log_file);
	vfs.xOpen = open_file;
	sqlite3_vfs_register(&vfs, 0);
}
