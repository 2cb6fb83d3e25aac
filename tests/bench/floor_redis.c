/* SPDX-License-Identifier: Apache-2.0 */
/*
 * floor_redis PORT/DATABASE COUNT CONNECTIONS: see floor.h.
 *
 * Each operation is one EVALSHA of a script that does nothing but change or read the keys: a create
 * writes the entry, the inode, both counters of the volume and the directory's statistics (which
 * the engine keeps in the same step), and the directory's record when its times are due; an unlink
 * takes them back; a stat reads the entry and the inode it names.
 */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "floor.h"

#define RECORD_LEN 72
#define TYPE_AT	   1
#define FILE_MODE  "\x11\xa4" /* type 1, 0644 */

enum { CREATE, STAT, UNLINK, N_SCRIPTS };

/* ARGV: name, moment of the touch or "", and for a create inode number, entry, record */
static const char *const texts[N_SCRIPTS] = {
	[CREATE] =
		"local c=redis.call c('HSET','d1',ARGV[1],ARGV[4]) c('SET','i'..ARGV[3],ARGV[5]) "
		"c('INCRBY','usedSpace',4096) c('INCRBY','totalInodes',1) "
		"c('HINCRBY','dirUsedSpace','1',4096) c('HINCRBY','dirUsedInodes','1',1) "
		"if ARGV[2]~='' then c('SETRANGE','i1',23,ARGV[2]) end return 1",
	[STAT] = "local c=redis.call local e=c('HGET','d1',ARGV[1]) return "
		 "{e,c('GET','i'..string.format('%.0f',struct.unpack('>I8',string.sub(e,2,9))))}",
	[UNLINK] = "local c=redis.call local e=c('HGET','d1',ARGV[1]) c('HDEL','d1',ARGV[1]) "
		   "c('DEL','i'..string.format('%.0f',struct.unpack('>I8',string.sub(e,2,9)))) "
		   "c('INCRBY','usedSpace',-4096) c('INCRBY','totalInodes',-1) "
		   "c('HINCRBY','dirUsedSpace','1',-4096) c('HINCRBY','dirUsedInodes','1',-1) "
		   "if ARGV[2]~='' then c('SETRANGE','i1',23,ARGV[2]) end return 1",
};

struct conn {
	redisContext *redis;
	char sha[N_SCRIPTS][48];
};

static redisReply *ask(struct conn *c, int n, const char **words, const size_t *lens)
{
	redisReply *reply = redisCommandArgv(c->redis, n, words, lens);

	if (!reply)
		floor_fail("%s", c->redis->errstr);
	if (reply->type == REDIS_REPLY_ERROR)
		floor_fail("%s", reply->str);
	return reply;
}

static void *open_conn(const char *where)
{
	struct conn *c = calloc(1, sizeof(*c));
	char *end, *db = strchr(where, '/');
	int port = (int)strtol(where, &end, 10);
	redisReply *reply;

	if (!c || !db || end != db)
		floor_fail("bad arguments");
	c->redis = redisConnect("127.0.0.1", port);
	if (!c->redis || c->redis->err)
		floor_fail("cannot connect to port %d", port);
	freeReplyObject(ask(c, 2, (const char *[]){"SELECT", db + 1}, NULL));
	for (int i = 0; i < N_SCRIPTS; i++) {
		reply = ask(c, 3, (const char *[]){"SCRIPT", "LOAD", texts[i]}, NULL);
		snprintf(c->sha[i], sizeof(c->sha[i]), "%s", reply->str);
		freeReplyObject(reply);
	}
	return c;
}

static void close_conn(void *conn)
{
	struct conn *c = conn;

	redisFree(c->redis);
	free(c);
}

static redisReply *run(struct conn *c, int script, int64_t file, bool touch, const char **more,
		       const size_t *more_lens, int n_more)
{
	static const char moment[24];
	char name[32];
	const char *words[8] = {"EVALSHA", c->sha[script], "0", name, moment};
	size_t lens[8] = {7, 40, 1, (size_t)floor_name(file, name), touch ? sizeof(moment) : 0};

	for (int i = 0; i < n_more; i++) {
		words[5 + i] = more[i];
		lens[5 + i] = more_lens[i];
	}
	return ask(c, 5 + n_more, words, lens);
}

static void create(void *conn, int64_t file, bool touch)
{
	char number[24], entry[9] = {1}, record[RECORD_LEN] = {0};
	uint64_t ino = (uint64_t)floor_ino(file);

	for (int i = 0; i < 8; i++)
		entry[1 + i] = (char)(ino >> (56 - 8 * i));
	memcpy(record + TYPE_AT, FILE_MODE, 2);
	freeReplyObject(run(
		conn, CREATE, file, touch, (const char *[]){number, entry, record},
		(const size_t[]){(size_t)snprintf(number, sizeof(number), "%lld", (long long)ino),
				 sizeof(entry), sizeof(record)},
		3));
}

static void stat_file(void *conn, int64_t file)
{
	redisReply *reply = run(conn, STAT, file, false, NULL, NULL, 0);

	if (reply->elements != 2 || reply->element[1]->len != RECORD_LEN)
		floor_fail("no such file");
	freeReplyObject(reply);
}

static void unlink_file(void *conn, int64_t file, bool touch)
{
	freeReplyObject(run(conn, UNLINK, file, touch, NULL, NULL, 0));
}

int main(int argc, char **argv)
{
	static const struct floor_server server = {
		"redis", open_conn, close_conn, create, stat_file, unlink_file,
	};

	return floor_main(argc, argv, &server);
}
