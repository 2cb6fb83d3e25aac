/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of this folder: the format of entries, the log of a database, the chain. */
#ifndef CFS_REPLICA_INTERNAL_H
#define CFS_REPLICA_INTERNAL_H

#include <cachefs/replica.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stddef.h>

/* ---- entries: entry.c ---- */

/*
 * Layout of an entry; integers are big-endian:
 *
 * 	 0  8  "CFSREPL1"
 * 	 8  8  number
 * 	16  8  time, ms since 1970, by the writer's clock; not before that of the entry before, unless
 * 	       the epoch differs
 * 	24 16  owner: which database file wrote it
 * 	40 32  SHA-256 of the header of the entry before, zeros in the first one
 * 	72  1  kind, 1  codec (0: as it is, 1: zstd), 2  zeros
 * 	76  4  page size
 * 	80  4  pages of the database after this entry
 * 	84  4  n: changed pages, or pieces of the base
 * 	88 20  where the log ends: salts, frames, checksums
 *     108  4  epoch: how often a writer's clock has been set back; not less than in the entry before
 *     112  8  number of the latest entry that names a base, this one included
 *     120  8  the base's token, 0 when this entry names none
 *     128  8  number of the entry after which the base's pages are
 *     136 32  SHA-256 of that entry's header; zeros when it is this entry
 *     168  8  length of the body before, 8  after compression
 *     184 32  SHA-256 of the compressed body
 *     216 32  SHA-256 of the header so far: stands for the whole entry
 *     248     the body
 *
 * The body is n times a page number (4) and that page; in a base n times the length (4) and the
 * SHA-256 of a piece. A piece holds ENTRY_PIECE bytes of the database, compressed with the codec.
 */
#define ENTRY_HEADER 248
#define ENTRY_PIECE  ((size_t)2 << 20)
#define ENTRY_REF    (4 + CFS_REPLICA_HASH)
/* Longest body. A transaction that changes more is replicated by a base. */
#define ENTRY_MAX ((size_t)16 << 20)

enum entry_kind { ENTRY_PAGES = 1, ENTRY_BASE = 2 };

struct log_place {
	uint32_t salt[2], frames, sum[2];
};

struct entry {
	uint64_t number, time_ms;
	uint8_t owner[16];
	uint8_t before[CFS_REPLICA_HASH], hash[CFS_REPLICA_HASH];
	uint8_t kind, codec;
	uint32_t page_size, db_pages, n;
	struct log_place end;
	uint32_t epoch;
	uint64_t base_at, token, base_of;
	uint8_t base_hash[CFS_REPLICA_HASH];
	uint64_t raw_len;
	const uint8_t *body; /* compressed, inside the bytes that were parsed or encoded */
	uint64_t body_len;
};

int entry_hash(const void *data, size_t len, uint8_t ret[CFS_REPLICA_HASH]);
/* Checks the header and all hashes. -EBADMSG: it is no entry, or a damaged one. */
int entry_parse(const uint8_t *bytes, size_t len, struct entry *ret);
/* The body before compression; malloc'ed. -EBADMSG, -EOPNOTSUPP: the codec is not built in. */
int entry_unpack(const struct entry *e, uint8_t **ret);
/* Compresses with the codec. *ret is malloc'ed. */
int entry_pack(uint8_t codec, const uint8_t *raw, size_t len, uint8_t **ret, size_t *ret_len);
int entry_unpack_bytes(uint8_t codec, const uint8_t *bytes, size_t len, size_t raw_len,
		       uint8_t *raw);
/* The codec of this build. */
uint8_t entry_codec(void);
/* Compresses the body, fills in hash, codec and lengths, and encodes. *ret is malloc'ed. */
int entry_encode(struct entry *e, const uint8_t *raw, size_t raw_len, uint8_t **ret,
		 size_t *ret_len);

/* ---- the log: log.c ---- */

/*
 * The write-ahead log of a database that other connections use. Not thread-safe.
 * https://www.sqlite.org/fileformat2.html#walformat and https://www.sqlite.org/walformat.html
 *
 * A read transaction holds the log. Its lock is of one of two kinds. When the database lacked
 * frames of the log at its beginning, the log cannot begin again. Otherwise the log may begin again
 * once: no frame is moved into the database after that, so the log keeps all that is committed from
 * then on. Either way nothing that is committed while such transactions overlap is lost.
 */
struct log {
	char *path, *log_path;
	sqlite3 *reader[2], *writer;
	int held; /* the reader whose transaction holds the log; -1: none */
	uint32_t page_size;
	struct log_place at; /* all frames before it were taken */
	/* All frames that were there when the log was first held were taken: it may begin again. */
	bool settled;
};

/* The pages that commits after log.at have changed. */
struct log_changes {
	struct log_frame {
		uint32_t page, frame;
	} *v; /* by page, each page once */
	size_t n, cap;
	uint32_t db_pages;
	struct log_place end;
	bool more; /* the log may have more commits behind `end` */
};

int log_open(const char *path, struct log *ret, char err[256]);
void log_close(struct log *l);
/*
 * Holds the log. When it is held already, the next transaction begins before the last one ends, and
 * all frames must have been taken. -EAGAIN: the database is busy.
 */
int log_hold(struct log *l);
void log_release(struct log *l);
/* Sets log.at to a place, if the log has it: 0, -ENODATA. NULL: to the end of the log. */
int log_seek(struct log *l, const struct log_place *place);
/*
 * 1: there are changes, about 4 MiB of pages at most unless one transaction has more; 0: none.
 * -ENODATA: the log does not continue at log.at; -EFBIG: a transaction has more than ENTRY_MAX.
 */
int log_read(struct log *l, struct log_changes *ret);
void log_free(struct log_changes *c);
/* The body of an entry with these changes; malloc'ed. */
int log_body(struct log *l, const struct log_changes *c, uint8_t **ret, size_t *ret_len);
/* Frames that the log's file has room for: an upper bound of those committed so far. */
uint32_t log_capacity(const struct log *l);
/* Moves frames into the database, without waiting. Returns the bytes of the log. */
uint64_t log_checkpoint(struct log *l);
/*
 * Lets the log begin again with the next commit, if no process is committing or reading (else
 * -EAGAIN, or nothing happens). Even on failure *ret has the changes up to then, and *ret_body
 * their body, as after log_read() and log_body(); ret->n is 0 when there are none. log.at is after
 * them.
 */
int log_restart(struct log *l, struct log_changes *ret, uint8_t **ret_body, size_t *ret_len);

/*
 * Moves all of a log that is not held into the database, so that it begins again with the next
 * commit. -EAGAIN: other processes keep it busy.
 */
int log_checkpoint_full(struct log *l);

/* All pages of the database at one place of its log. */
struct log_view {
	sqlite3 *reader;
	int fd; /* of the log; -1: the database has all pages of the view */
	uint32_t page_size, db_pages;
	struct log_changes frames;
};
/*
 * In three steps: log_view_open() begins a transaction; the caller takes all frames up to the end
 * of the log; log_view_fix() makes the view that of log.at.
 */
int log_view_open(const struct log *l, struct log_view *ret);
int log_view_fix(struct log_view *v, const struct log *l);
/* Reads n pages from number `first` on. */
int log_view_read(struct log_view *v, uint32_t first, uint32_t n, uint8_t *ret);
void log_view_close(struct log_view *v);

/* ---- objects: chain.c ---- */

#define CHAIN_KEY 160
/* Deadlines of large transfers allow for a bandwidth as low as that. */
#define SLOWEST_BYTES_PER_MS 32

void chain_entry_key(const char *volume, uint64_t number, char ret[CHAIN_KEY]);
void chain_piece_key(const char *volume, uint64_t token, uint32_t piece, char ret[CHAIN_KEY]);
void chain_prefix(const char *volume, const char *kind, char ret[CHAIN_KEY]);
/* The number in the key of an entry, the token in that of a piece. False: it is another key. */
bool chain_number(const char *key, uint64_t *ret);
bool chain_token(const char *key, uint64_t *ret);
/* Gets a whole object; *ret is malloc'ed. -ENOENT; -EFBIG: longer than `max`. */
int chain_get(struct cfs_object_store *o, const char *key, size_t max, cfs_deadline_t deadline,
	      uint8_t **ret, size_t *ret_len);
/* Gets and parses an entry. *ret_bytes must be freed. */
int chain_get_entry(struct cfs_object_store *o, const char *volume, uint64_t number,
		    cfs_deadline_t deadline, struct entry *ret, uint8_t **ret_bytes);
/* Numbers of entries, ascending. */
struct chain_list {
	uint64_t *v;
	size_t n, cap;
};
int chain_read_list(struct cfs_object_store *o, const char *volume, cfs_deadline_t deadline,
		    struct chain_list *ret);

#endif
