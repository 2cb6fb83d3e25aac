/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations as one statement each: FUSED(id, text). No include guard.
 *
 * MariaDB takes a block of statements as a prepared statement, so that a whole transaction is one
 * round trip. What the caller decided by is not so any more: that is an error as well, the one of
 * SIGNAL. An error has rolled the transaction back when it reaches the client, but for that of a
 * statement that was stopped from outside (KILL QUERY, max_statement_time): such errors run no
 * handler, and what the block has begun ends with the connection (conn.c).
 *
 * Locks are taken in the order of the generic transactions: nodes, names, and the parent last, by a
 * relative update when its nlink changes. Otherwise it is only kept from being removed, for the
 * time of the commit: what rmdir takes for an empty directory must not get an entry meanwhile.
 *
 * Braces as in meta/sql/statements.h, and the macros below.
 */
#ifndef MYSQL_FUSED_WORDS
#define MYSQL_FUSED_WORDS
#define BLOCK                                                                                      \
	"BEGIN NOT ATOMIC "                                                                        \
	"DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END; "                    \
	"BEGIN "
#define END_BLOCK " END; END"
#define GIVE_UP	  "SIGNAL SQLSTATE '45000'; "
/* After a statement that must have found its row. */
#define MUST "IF ROW_COUNT()<>1 THEN " GIVE_UP "END IF; "
#define TOUCH                                                                                      \
	"IF ? THEN UPDATE {node} SET nlink=nlink+?,mtime=?,ctime=?,mtimensec=?,ctimensec=? "       \
	"WHERE inode=p_dir; END IF; "
#define DIR_IS "n.inode=p_dir AND " DIR_STILL
#define DIR_STILL                                                                                  \
	"n.type=2 AND n.flags=? AND n.mode=? AND n.uid=? AND n.gid=? AND "                         \
	"COALESCE(n.parent,0)=? AND COALESCE(n.access_acl_id,0)=? AND "                            \
	"COALESCE(n.default_acl_id,0)=? AND COALESCE(n.tier_id,0)=?"
/*
 * The end of a change in a directory, which has to be there as expected. A row costs the server as
 * much as an INSERT: it is for those who need to know. It goes out with the end of the block;
 * before COMMIT it would wake the client up twice.
 */
#define DIR_VARIABLES "p_d1,p_d2,p_d3,p_d4,p_d5,p_d6,p_d7"
#define DECLARE_DIR   "DECLARE " DIR_VARIABLES " BIGINT; "
#define IF_DIR_IS(lock)                                                                            \
	"SELECT n.nlink,n.atime,n.mtime,n.ctime,n.atimensec,n.mtimensec,n.ctimensec "              \
	"INTO " DIR_VARIABLES " FROM {node} n WHERE " DIR_IS lock "; "                             \
	"IF p_d1 IS NULL THEN " GIVE_UP "END IF; "
#define KEPT " LOCK IN SHARE MODE"
#define COMMIT_DIR(condition, more)                                                                \
	"COMMIT; IF " condition " THEN SELECT " DIR_VARIABLES more "; END IF;" END_BLOCK
/* As many as {NODE} has columns. */
#define NODE_VARIABLES                                                                             \
	"p_n1,p_n2,p_n3,p_n4,p_n5,p_n6,p_n7,p_n8,p_n9,p_n10,p_n11,p_n12,p_n13,p_n14,p_n15,p_n16,"  \
	"p_n17,p_n18"
/* What the fate of an inode was decided by: 7 parameters. */
#define VICTIM_IS "inode=p_ino AND type=p_type AND " STILL
#define STILL                                                                                      \
	"flags=? AND mode=? AND uid=? AND gid=? AND nlink=? AND "                                  \
	"length=? AND COALESCE(parent,0)=?"
/* A directory: nothing in it, nothing left of it. */
#define EMPTY                                                                                      \
	"IF p_type=2 THEN "                                                                        \
	"IF EXISTS(SELECT 1 FROM {edge} WHERE parent=p_ino) THEN " GIVE_UP "END IF; "              \
	"DELETE FROM {dir_stats} WHERE inode=p_ino; "                                              \
	"DELETE FROM {dir_quota} WHERE inode=p_ino; "                                              \
	"END IF; "
#endif

FUSED(mknod, BLOCK "DECLARE p_dir BIGINT DEFAULT ?; DECLARE p_ino BIGINT DEFAULT ?; " DECLARE_DIR
		   "START TRANSACTION; "
		   "INSERT INTO {edge}(parent,name,inode,type) VALUES(p_dir,?,p_ino,?); "
		   "INSERT INTO {node}(inode,type,flags,mode,uid,gid,atime,mtime,ctime,atimensec,"
		   "mtimensec,ctimensec,nlink,length,rdev,parent,access_acl_id,default_acl_id,"
		   "tier_id) VALUES(p_ino,?,?,?,?,?,?,?,?,?,?,?,?,?,?,p_dir,?,?,?); "
		   "IF ? THEN INSERT INTO {symlink}(inode,target) VALUES(p_ino,?); END IF; "
		   "IF ? THEN INSERT INTO {dir_stats}(inode,data_length,used_space,used_inodes) "
		   "VALUES(p_ino,0,0,0); END IF; " TOUCH IF_DIR_IS(KEPT) COMMIT_DIR("?", ""))

/* To the trash: the name moves there. */
FUSED(trash, BLOCK "DECLARE p_dir BIGINT DEFAULT ?; DECLARE p_ino BIGINT DEFAULT ?; "
		   "DECLARE p_type INT DEFAULT ?; " DECLARE_DIR "START TRANSACTION; "
		   "UPDATE {node} SET parent=?,ctime=?,ctimensec=? WHERE " VICTIM_IS "; " MUST EMPTY
		   "UPDATE {edge} SET parent=?,name=? WHERE parent=p_dir AND name=? AND "
		   "inode=p_ino; " MUST TOUCH IF_DIR_IS("") COMMIT_DIR("?", ""))

/* For good, of an inode with one name that is not open. The last column: it has left chunks. */
FUSED(remove,
      BLOCK "DECLARE p_dir BIGINT DEFAULT ?; DECLARE p_ino BIGINT DEFAULT ?; "
	    "DECLARE p_type INT DEFAULT ?; DECLARE p_left INT DEFAULT 0; " DECLARE_DIR
	    "START TRANSACTION; "
	    "DELETE FROM {node} WHERE " VICTIM_IS "; " MUST EMPTY
	    "DELETE FROM {edge} WHERE parent=p_dir AND name=? AND inode=p_ino; " MUST
	    "DELETE FROM {xattr} WHERE inode=p_ino; "
	    "IF p_type=3 THEN DELETE FROM {symlink} WHERE inode=p_ino; "
	    "ELSEIF p_type=1 AND EXISTS(SELECT 1 FROM {chunk} WHERE inode=p_ino) THEN "
	    "SET p_left=1; INSERT IGNORE INTO {delfile}(inode,length,expire) VALUES(p_ino,?,?); "
	    "END IF; " TOUCH IF_DIR_IS("") COMMIT_DIR("? OR p_left", ",p_left"))

/*
 * Not of a file with several names that grows: which directories it grows in must not change
 * meanwhile. Columns: {NODE} after, the length before, the length of the chunk's list.
 */
FUSED(write, BLOCK "DECLARE p_ino BIGINT DEFAULT ?; DECLARE p_indx INT DEFAULT ?; "
		   "DECLARE p_id BIGINT DEFAULT ?; DECLARE p_end BIGINT DEFAULT ?; "
		   "DECLARE p_old BIGINT; DECLARE p_dir BIGINT; "
		   "DECLARE " NODE_VARIABLES ",p_list BIGINT; "
		   "START TRANSACTION; "
		   "SELECT length,COALESCE(parent,0) INTO p_old,p_dir FROM {node} "
		   "WHERE inode=p_ino AND type=1 FOR UPDATE; "
		   "IF p_old IS NULL OR (p_dir=0 AND p_end>p_old) THEN " GIVE_UP "END IF; "
		   "INSERT INTO {chunk}(inode,indx,slices) VALUES(p_ino,p_indx,?) "
		   "ON DUPLICATE KEY UPDATE slices=slices||VALUES(slices); "
		   "IF p_id<>0 THEN INSERT INTO {chunk_ref}(chunkid,size,refs) VALUES(p_id,?,1); "
		   "END IF; "
		   "UPDATE {node} SET length=GREATEST(length,p_end),mtime=?,mtimensec=?,ctime=?,"
		   "ctimensec=? WHERE inode=p_ino; "
		   "SELECT {NODE},LENGTH(c.slices) INTO " NODE_VARIABLES ",p_list FROM {node} n "
		   "JOIN {chunk} c ON c.inode=n.inode AND c.indx=p_indx WHERE n.inode=p_ino; "
		   "COMMIT; SELECT " NODE_VARIABLES ",p_old,p_list;" END_BLOCK)

/* A second name. */
FUSED(link, BLOCK
      "DECLARE p_dir BIGINT DEFAULT ?; DECLARE p_ino BIGINT DEFAULT ?; "
      "DECLARE p_type INT DEFAULT ?; " DECLARE_DIR "START TRANSACTION; "
      "UPDATE {node} SET nlink=nlink+1,parent=0,ctime=?,ctimensec=? WHERE " VICTIM_IS "; " MUST
      "INSERT INTO {edge}(parent,name,inode,type) VALUES(p_dir,?,p_ino,p_type); " IF_DIR_IS(
	      KEPT) "COMMIT;" END_BLOCK)

/*
 * p_ino goes from p_src to p_dir, whose name may lead to p_old, of p_type: to the trash, or for
 * good as in remove. The column: it has left chunks.
 */
FUSED(rename, BLOCK
      "DECLARE p_src BIGINT DEFAULT ?; DECLARE p_dir BIGINT DEFAULT ?; "
      "DECLARE p_ino BIGINT DEFAULT ?; DECLARE p_old BIGINT DEFAULT ?; "
      "DECLARE p_type INT DEFAULT ?; DECLARE p_trash BIGINT DEFAULT ?; "
      "DECLARE p_from VARBINARY(255) DEFAULT ?; DECLARE p_to VARBINARY(255) DEFAULT ?; "
      "DECLARE p_us BIGINT DEFAULT ?; DECLARE p_sub INT DEFAULT ?; "
      "DECLARE p_left INT DEFAULT 0; DECLARE p_x INT; " DECLARE_DIR "START TRANSACTION; "
      "IF p_old<>0 AND p_old<p_ino THEN "
      "SELECT 1 INTO p_x FROM {node} WHERE inode=p_old FOR UPDATE; END IF; "
      "UPDATE {node} SET parent=?,ctime=p_us,ctimensec=p_sub WHERE inode=p_ino AND type=? "
      "AND " STILL "; " MUST "IF p_old=0 THEN "
      "UPDATE {edge} SET parent=p_dir,name=p_to WHERE parent=p_src AND name=p_from AND "
      "inode=p_ino; " MUST "ELSE "
      "DELETE FROM {edge} WHERE parent=p_src AND name=p_from AND inode=p_ino; " MUST
      "UPDATE {edge} SET inode=p_ino,type=? WHERE parent=p_dir AND name=p_to AND "
      "inode=p_old; " MUST "IF p_trash<>0 THEN "
      "UPDATE {node} SET parent=?,ctime=p_us,ctimensec=p_sub WHERE inode=p_old AND "
      "type=p_type AND " STILL "; " MUST
      "INSERT INTO {edge}(parent,name,inode,type) VALUES(p_trash,?,p_old,p_type); "
      "ELSE "
      "DELETE FROM {node} WHERE inode=p_old AND type=p_type AND " STILL "; " MUST
      "DELETE FROM {xattr} WHERE inode=p_old; "
      "IF p_type=3 THEN DELETE FROM {symlink} WHERE inode=p_old; "
      "ELSEIF p_type=1 AND EXISTS(SELECT 1 FROM {chunk} WHERE inode=p_old) THEN "
      "SET p_left=1; INSERT IGNORE INTO {delfile}(inode,length,expire) VALUES(p_old,?,?); "
      "END IF; END IF; END IF; "
      "IF NOT EXISTS(SELECT 1 FROM {node} n WHERE n.inode=p_src AND " DIR_STILL ") THEN " GIVE_UP
      "END IF; " IF_DIR_IS(KEPT) "COMMIT; IF p_left THEN SELECT p_left; END IF;" END_BLOCK)

/* No block: every server takes it. */
FUSED(setattr,
      "UPDATE {node} SET flags=?,mode=?,uid=?,gid=?,atime=?,mtime=?,ctime=?,atimensec=?,"
      "mtimensec=?,ctimensec=? WHERE inode=? AND type=? AND flags=? AND mode=? AND uid=? AND "
      "gid=? AND atime=? AND mtime=? AND ctime=? AND atimensec=? AND mtimensec=? AND ctimensec=? "
      "AND COALESCE(parent,0)=? AND COALESCE(access_acl_id,0)=0")
