/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches, operations of one round trip each: BATCH(id, text). No include guard.
 *
 * A batch is sent as a prepared compound statement (compound.c), or as a multi-statement query
 * (multi.c); both files define the macros below. The batch makes its changes, checks that the values
 * which the caller has read are unchanged (optimistic check), commits, and returns a row of integers
 * on request. A changed value makes the batch fail and roll back.
 *
 *	BEGIN_CHANGE		begins the batch; PARAM and DECLARE_.. follow
 *	PARAM(name)		names the next parameter (p_...); parameters without a name are a ?
 *	CHANGE			begins the transaction; each statement ends with "; "
 *	WHEN(c) ELSE END_WHEN	c: a ? or a name; true when not 0, or when equal to a digit ("p_type=2")
 *	MUST			fails unless the previous statement has changed exactly one row
 *	SURE			MUST on MariaDB, which may report 0 rows instead of an error for a
 *				statement that it has stopped
 *	CLEAR(table, ino)	deletes the inode's rows, if there are any
 *	NOT_IF(condition)	fails if the condition, of subqueries, is true
 *	LOCK(rows)		locks the rows that exist, and does nothing else
 *	IF_DIR_IS(lock)		fails unless the row of p_dir is as expected: 8 parameters
 *	READ(columns, into, from, at)	at: index of the first column in the answer
 *	LEFT_CHUNKS(ino, at)	records a file's chunks for deletion: 2 parameters, 1 column
 *	COMMIT_..		commits and answers; _DIR: only when the last parameter asks for it
 *
 * Locks are taken in the order of the generic transactions: nodes, names, and the parent last, by a
 * relative update when its nlink changes. Otherwise the parent is only locked against removal until
 * the commit: a directory that rmdir has found empty gets no entry.
 *
 * A name is found by (parent, name); inode+0 keeps the optimizer from considering the index on
 * inode.
 *
 * Names in braces: those of meta/sql/statements.h, {CERTIFY_DIR}, {CLOSE_DIR} and {STILL_IN}
 * (mysql.c), and the macros below.
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
/* For a batch that adds a name: keeps the directory from being removed until the commit. */
#define KEEP_DIR IF_DIR_IS("{KEEP_LATE}") "{CERTIFY_DIR}"
/* The attributes that decided the outcome of a removal: 7 parameters. */
#define VICTIM_IS "inode=p_ino AND type=p_type AND " STILL
#define STILL                                                                                      \
	"flags=? AND mode=? AND uid=? AND gid=? AND nlink=? AND "                                  \
	"length=? AND COALESCE(parent,0)=?"
/* If p_ino is a directory: fails if it has entries, and deletes its statistics and quota. */
#define EMPTY                                                                                      \
	WHEN("p_type=2")                                                                           \
	"{CLOSE_DIR}" NOT_IF("EXISTS(SELECT 1 FROM {edge} WHERE parent=p_ino)")                    \
		CLEAR("{dir_stats}", "p_ino") CLEAR("{dir_quota}", "p_ino") END_WHEN
/* The rest of the batch of a write, from the condition on the file's row on. */
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

/* Deletes an inode with one name that is not open. Last column: 1 when it has left chunks. */
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
 * Fails for a growing file with several names: the usage of all its directories changes, and these
 * are not locked. Columns: the length before, {NODE} after, the length of the chunk's list.
 */
BATCH(write,
	BEGIN_CHANGE PARAM("p_ino") PARAM("p_indx") PARAM("p_id")
	PARAM("p_end") DECLARE_WRITTEN CHANGE
	READ("length", "p_old", "{node} WHERE inode=p_ino FOR UPDATE", "0")
	"UPDATE {node} SET length=GREATEST(length,p_end),mtime=?,mtimensec=?,ctime=?,ctimensec=? "
	WRITTEN_IF(""))

/* A write with attribute changes. Fails for a change of mode of a file with an ACL. */
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
 * Moves p_ino from p_src to p_dir. If the target name leads to p_old, of p_type, that inode is moved
 * to the trash, or deleted as in remove. p_before: p_old is locked first. Column: 1 when p_old has
 * left chunks.
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

/* Sets attributes of an inode without an ACL. Columns: {NODE} after. */
BATCH(setattr,
	BEGIN_CHANGE PARAM("p_ino") PARAM("p_atime") PARAM("p_mtime") DECLARE_NODE CHANGE
	"UPDATE {node} SET flags=?,mode=?,uid=?,gid=?,ctime=?,ctimensec=?,"
	"atime=IF(p_atime,?,atime),atimensec=IF(p_atime,?,atimensec),"
	"mtime=IF(p_mtime,?,mtime),mtimensec=IF(p_mtime,?,mtimensec) "
	"WHERE inode=p_ino AND type=? AND flags=? AND mode=? AND uid=? AND gid=? AND "
	"COALESCE(parent,0)=? AND COALESCE(access_acl_id,0)=0; " MUST
	READ("{NODE}", NODE_VARIABLES, "{node} n WHERE n.inode=p_ino", "0") COMMIT_NODE)
/* clang-format on */
