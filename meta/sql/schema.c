/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a volume: volume-format section 3, in its order of columns. */
#include "meta/sql/sql-internal.h"

#define I32(col, ...)                                                                              \
	{                                                                                          \
		.name = col, .kind = SQL_KIND_I32, __VA_ARGS__                                     \
	}
#define I64(col, ...)                                                                              \
	{                                                                                          \
		.name = col, .kind = SQL_KIND_I64, __VA_ARGS__                                     \
	}
#define STRING(col, ...)                                                                           \
	{                                                                                          \
		.name = col, .kind = SQL_KIND_STRING, __VA_ARGS__                                  \
	}
#define TEXT(col)                                                                                  \
	{                                                                                          \
		.name = col, .kind = SQL_KIND_TEXT                                                 \
	}
#define BLOB(col, ...)                                                                             \
	{                                                                                          \
		.name = col, .kind = SQL_KIND_BLOB, __VA_ARGS__                                    \
	}
#define KEY	 .key = true
#define AUTO	 .key = true, .auto_id = true
#define NULLABLE .null = true

const struct sql_table sql_tables[] = {
	{"setting", {STRING("name", KEY), TEXT("value")}},
	{"counter", {STRING("name", KEY), I64("value")}},
	{"edge",
	 {I64("id", AUTO), I64("parent"), BLOB("name", .size = 255), I64("inode"), I32("type")},
	 {{"edge", "parent,name", true}, {"inode", "inode", false}}},
	{"node",
	 {I64("inode", KEY), I32("type"), I32("flags"), I32("mode"), I32("uid"), I32("gid"),
	  I64("atime"), I64("mtime"), I64("ctime"), I32("atimensec", .zero = true),
	  I32("mtimensec", .zero = true), I32("ctimensec", .zero = true), I32("nlink"),
	  I64("length"), I32("rdev", NULLABLE), I64("parent", NULLABLE),
	  I32("access_acl_id", NULLABLE), I32("default_acl_id", NULLABLE),
	  I32("tier_id", NULLABLE)}},
	{"symlink", {I64("inode", KEY), BLOB("target", .size = 4096)}},
	{"xattr",
	 {I64("id", AUTO), I64("inode"), STRING("name"), BLOB("value")},
	 {{"name", "inode,name", true}}},
	{"chunk",
	 {I64("id", AUTO), I64("inode"), I32("indx"), BLOB("slices")},
	 {{"chunk", "inode,indx", true}}},
	{"chunk_ref", {I64("chunkid", KEY), I32("size"), I32("refs")}, {{"refs", "refs", false}}},
	{"delslices", {I64("chunkid", KEY), I64("deleted"), BLOB("slices")}},
	{"session2", {I64("sid", KEY), I64("expire"), BLOB("info", NULLABLE)}},
	{"sustained",
	 {I64("id", AUTO), I64("sid"), I64("inode")},
	 {{"sustained", "sid,inode", true}}},
	{"delfile", {I64("inode", KEY), I64("length"), I64("expire")}},
	{"flock",
	 {I64("id", AUTO), I64("inode"), I64("sid"), I64("owner"), I32("ltype")},
	 {{"flock", "inode,sid,owner", true}}},
	{"plock",
	 {I64("id", AUTO), I64("inode"), I64("sid"), I64("owner"), BLOB("records")},
	 {{"plock", "inode,sid,owner", true}}},
	{"dir_stats",
	 {I64("inode", KEY), I64("data_length"), I64("used_space"), I64("used_inodes")}},
	{"dir_quota",
	 {I64("inode", KEY), I64("max_space"), I64("max_inodes"), I64("used_space"),
	  I64("used_inodes")}},
	{"user_group_quota",
	 {I32("qtype", KEY), I64("qkey", KEY), I64("max_space"), I64("max_inodes"),
	  I64("used_space"), I64("used_inodes")}},
	{"detached_node", {I64("inode", KEY), I64("added")}},
	{"acl",
	 {I32("id", AUTO), I32("owner", NULLABLE), I32("group", NULLABLE), I32("mask", NULLABLE),
	  I32("other", NULLABLE), BLOB("named_users", NULLABLE), BLOB("named_groups", NULLABLE)}},
	{"delegation_token", {I32("id", AUTO), BLOB("token", NULLABLE)}},
	{"change_log", {I64("id", AUTO), TEXT("entry")}},
	{NULL},
};

const struct sql_table sql_record_table = {
	"cachefs_record",
	{BLOB("name", .size = 255, KEY), BLOB("value")},
};
