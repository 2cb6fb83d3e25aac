/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches, operations of one round trip each: BATCH(id, text). No include guard.
 *
 * There are two ways to send a batch, and each defines these words: a prepared compound statement
 * (compound.c), or a multi-statement query (multi.c). The batch makes its changes, checks that the
 * values the caller's decision was based on are unchanged (optimistic check), commits, and returns a
 * row of integers on request. A changed value is an error.
 *
 *	BEGIN_CHANGE		its parameters and what a compound statement declares
 *	PARAM(name)		the next parameter, by this name, p_..., hereafter; others are a ?
 *	CHANGE			its statements, each with "; " behind it
 *	WHEN(c) ELSE END_WHEN	c: a ?, or a name, alone (not 0) or with "=" and a digit behind it
 *	MUST			the statement before has found its one row
 *	SURE			the same, where a stopped statement may find none without an error
 *	CLEAR(table, ino)	deletes the rows of an inode that there may be
 *	NOT_IF(condition)	of subqueries
 *	LOCK(rows)		nothing but a lock, of rows that there may be
 *	IF_DIR_IS(lock)		p_dir is there as expected: 8 parameters
 *	READ(columns, into, from, at)	at: the place of the first of them in the answer
 *	LEFT_CHUNKS(ino, at)	remembers a file's chunks for deletion: 2 parameters, 1 column
 *	COMMIT_..		the end, with the answer: _DIR: if asked for by a last parameter
 *
 * Locks are taken in the order of the generic transactions: nodes, names, and the parent last, by a
 * relative update when its nlink changes. Otherwise the parent is only locked against removal until
 * the commit, so that a directory which rmdir has found empty gets no entry meanwhile.
 *
 * A name is found by (parent, name); inode+0 keeps the optimizer from considering the index on
 * inode.
 *
 * Braces as in meta/sql/statements.h, {CERTIFY_DIR}, {CLOSE_DIR} and {STILL_IN} (mysql.c), and the
 * macros below.
 */
#ifndef MYSQL_BATCH_MACROS
#define MYSQL_BATCH_MACROS
#define TOUCH                                                                                      \
	WHEN("?")                                                                                  \
	"UPDATE {node} SET nlink=nlink+?,mtime=?,ctime=?,mtimensec=?,ctimensec=? WHERE "           \
	"inode=p_dir; " SURE END_WHEN
#define DIR_IS "n.inode=p_dir AND " DIR_STILL
#define DIR_STILL                                                                                  \
	"n.type=2 AND n.flags=? AND n.mode=? AND n.uid=? AND n.gid=? AND "                         \
	"COALESCE(n.parent,0)=? AND COALESCE(n.access_acl_id,0)=? AND "                            \
	"COALESCE(n.default_acl_id,0)=? AND COALESCE(n.tier_id,0)=?"
#define DIR_COLUMNS "n.nlink,n.atime,n.mtime,n.ctime,n.atimensec,n.mtimensec,n.ctimensec"
#define KEPT	    "{KEEP_LATE}"
/* The directory gets a name. */
#define KEEP_DIR IF_DIR_IS(KEPT) "{CERTIFY_DIR}"
/* The attributes that decided the outcome of a removal: 7 parameters. */
#define VICTIM_IS "inode=p_ino AND type=p_type AND " STILL
#define STILL                                                                                      \
	"flags=? AND mode=? AND uid=? AND gid=? AND nlink=? AND "                                  \
	"length=? AND COALESCE(parent,0)=?"
/* For a directory: checks that it has no entries, and deletes its other rows. */
#define EMPTY                                                                                      \
	WHEN("p_type=2")                                                                           \
	"{CLOSE_DIR}" NOT_IF("EXISTS(SELECT 1 FROM {edge} WHERE parent=p_ino)")                    \
		CLEAR("{dir_stats}", "p_ino") CLEAR("{dir_quota}", "p_ino") END_WHEN
/* The rest of a commit, from the condition on the file's row. */
#define WRITTEN_IF(condition)                                                                      \
	"WHERE inode=p_ino AND type=1 AND (length>=p_end OR COALESCE(parent,0)<>0)" condition      \
	"; " MUST "INSERT INTO {chunk}(inode,indx,slices) VALUES(p_ino,p_indx,?) "                 \
	"ON DUPLICATE KEY UPDATE slices=slices||VALUES(slices); " WHEN(                            \
		"p_id") "INSERT INTO {chunk_ref}(chunkid,size,refs) VALUES(p_id,?,1); " END_WHEN   \
		READ("{NODE},LENGTH(c.slices)", NODE_VARIABLES ",p_list",                          \
		     "{node} n JOIN {chunk} c ON c.inode=n.inode AND c.indx=p_indx WHERE "         \
		     "n.inode=p_ino",                                                              \
		     "1") COMMIT_WRITTEN
#endif

/* clang-format off */
BATCH(mknod,
	BEGIN_CHANGE PARAM("p_dir") PARAM("p_ino") CHANGE
	"INSERT INTO {edge}(parent,name,inode,type) VALUES(p_dir,?,p_ino,?); "
	"INSERT INTO {node}(inode,type,flags,mode,uid,gid,atime,mtime,ctime,atimensec,"
	"mtimensec,ctimensec,nlink,length,rdev,parent,access_acl_id,default_acl_id,"
	"tier_id) VALUES(p_ino,?,?,?,?,?,?,?,?,?,?,?,?,?,?,p_dir,?,?,?); "
	WHEN("?")
	WHEN("?") "INSERT INTO {symlink}(inode,target) VALUES(p_ino,?); " END_WHEN
	WHEN("?")
	"INSERT INTO {dir_stats}(inode,data_length,used_space,used_inodes) VALUES(p_ino,0,0,0); "
	END_WHEN
	TOUCH END_WHEN KEEP_DIR COMMIT_DIR)

/* Moves the name to the trash. */
BATCH(trash,
	BEGIN_CHANGE PARAM("p_dir") PARAM("p_ino") PARAM("p_type")
	CHANGE
	"UPDATE {node} SET parent=?,ctime=?,ctimensec=? WHERE " VICTIM_IS "; " MUST EMPTY
	"UPDATE {edge} SET parent=?,name=? WHERE parent=p_dir AND name=? AND inode+0=p_ino; "
	MUST TOUCH IF_DIR_IS("") COMMIT_DIR)

/* Deletes an inode with one name that is not open. The last column: it has left chunks. */
BATCH(remove,
	BEGIN_CHANGE PARAM("p_dir") PARAM("p_ino") PARAM("p_type")
	DECLARE_LEFT CHANGE
	"DELETE FROM {node} WHERE " VICTIM_IS "; " MUST EMPTY
	"DELETE FROM {edge} WHERE parent=p_dir AND name=? AND inode+0=p_ino; " MUST
	CLEAR("{xattr}", "p_ino")
	WHEN("p_type=3") CLEAR("{symlink}", "p_ino") END_WHEN
	WHEN("p_type=1") LEFT_CHUNKS("p_ino", "7") END_WHEN
	TOUCH IF_DIR_IS("") COMMIT_DIR_LEFT)

/*
 * Not for a growing file with several names: the set of its directories must not change meanwhile.
 * Columns: the length before, {NODE} after, the length of the chunk's list.
 */
BATCH(write,
	BEGIN_CHANGE PARAM("p_ino") PARAM("p_indx") PARAM("p_id")
	PARAM("p_end") DECLARE_WRITTEN CHANGE
	READ("length", "p_old", "{node} WHERE inode=p_ino FOR UPDATE", "0")
	"UPDATE {node} SET length=GREATEST(length,p_end),mtime=?,mtimensec=?,ctime=?,ctimensec=? "
	WRITTEN_IF(""))

/* The same with attributes, each behind a condition. Not for a new mode of a file with an ACL. */
BATCH(write_attrs,
	BEGIN_CHANGE PARAM("p_ino") PARAM("p_indx") PARAM("p_id")
	PARAM("p_end") PARAM("p_chmod") PARAM("p_touch") DECLARE_WRITTEN CHANGE
	READ("length", "p_old", "{node} WHERE inode=p_ino FOR UPDATE", "0")
	"UPDATE {node} SET length=GREATEST(length,p_end),mtime=?,mtimensec=?,ctime=?,ctimensec=?,"
	"mode=IF(p_chmod,?,mode),uid=IF(?,?,uid),gid=IF(?,?,gid),atime=IF(p_touch,?,atime),"
	"atimensec=IF(p_touch,?,atimensec) "
	WRITTEN_IF(" AND (p_chmod=0 OR COALESCE(access_acl_id,0)=0)"))


/* Adds another name. */
BATCH(link,
	BEGIN_CHANGE PARAM("p_dir") PARAM("p_ino") PARAM("p_type")
	CHANGE
	"UPDATE {node} SET nlink=nlink+1,parent=0,ctime=?,ctimensec=? WHERE " VICTIM_IS "; " MUST
	"INSERT INTO {edge}(parent,name,inode,type) VALUES(p_dir,?,p_ino,p_type); "
	KEEP_DIR COMMIT_ONLY)

/*
 * Moves p_ino from p_src to p_dir. The target name may lead to p_old, of p_type, which is moved to
 * the trash, or deleted as in remove. p_before: p_old is locked first. The column: it has left
 * chunks.
 */
BATCH(rename,
	BEGIN_CHANGE PARAM("p_src") PARAM("p_dir") PARAM("p_ino")
	PARAM("p_old") PARAM("p_before") PARAM("p_type")
	PARAM("p_trash") PARAM("p_from") PARAM("p_to")
	PARAM("p_us") PARAM("p_sub") DECLARE_LEFT DECLARE_LOCK CHANGE
	WHEN("p_before") LOCK("{node} WHERE inode=p_old") END_WHEN
	"UPDATE {node} SET parent=?,ctime=p_us,ctimensec=p_sub WHERE inode=p_ino AND type=? "
	"AND " STILL "; " MUST
	WHEN("p_old=0")
	"UPDATE {edge} SET parent=p_dir,name=p_to WHERE parent=p_src AND name=p_from AND "
	"inode+0=p_ino; " MUST
	ELSE
	"DELETE FROM {edge} WHERE parent=p_src AND name=p_from AND inode+0=p_ino; " MUST
	"UPDATE {edge} SET inode=p_ino,type=? WHERE parent=p_dir AND name=p_to AND "
	"inode+0=p_old; " MUST
	WHEN("p_trash")
	"UPDATE {node} SET parent=?,ctime=p_us,ctimensec=p_sub WHERE inode=p_old AND "
	"type=p_type AND " STILL "; " MUST
	"INSERT INTO {edge}(parent,name,inode,type) VALUES(p_trash,?,p_old,p_type); "
	ELSE
	"DELETE FROM {node} WHERE inode=p_old AND type=p_type AND " STILL "; " MUST
	CLEAR("{xattr}", "p_old")
	WHEN("p_type=3") CLEAR("{symlink}", "p_old") END_WHEN
	WHEN("p_type=1") LEFT_CHUNKS("p_old", "0") END_WHEN
	END_WHEN END_WHEN
	NOT_IF("NOT EXISTS(SELECT 1 FROM {node} n WHERE n.inode=p_src AND " DIR_STILL ")")
	KEEP_DIR COMMIT_LEFT)

/* Attributes, of an inode without an ACL. Columns: {NODE} after. */
BATCH(setattr,
	BEGIN_CHANGE PARAM("p_ino") PARAM("p_atime") PARAM("p_mtime") DECLARE_NODE CHANGE
	"UPDATE {node} SET flags=?,mode=?,uid=?,gid=?,ctime=?,ctimensec=?,"
	"atime=IF(p_atime,?,atime),atimensec=IF(p_atime,?,atimensec),"
	"mtime=IF(p_mtime,?,mtime),mtimensec=IF(p_mtime,?,mtimensec) "
	"WHERE inode=p_ino AND type=? AND flags=? AND mode=? AND uid=? AND gid=? AND "
	"COALESCE(parent,0)=? AND COALESCE(access_acl_id,0)=0; " MUST
	READ("{NODE}", NODE_VARIABLES, "{node} n WHERE n.inode=p_ino", "0") COMMIT_NODE)
/* clang-format on */
