/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every statement, one per line. No include guard: it is included once per use of SQL(id, text).
 *
 *	{table}		the table's name with its prefix
 *	{NODE}		the SQL_NODE_COLUMNS columns for sql_node_columns(), of alias n
 *	{PARENT}	the same columns of alias p
 *	{FOR_UPDATE}	row lock, where the database has one
 *	{FOR_SHARE}	lock against deletion only, where the database has one
 *	{KEEP_LATE}	shared lock, where the database has no {FOR_SHARE}
 *	{OR_IGNORE}	after INSERT, with {ELSE_IGNORE} at the end: a duplicate is not an error
 *	`word`		an identifier that is a keyword in some database
 *
 * ? is a parameter. Texts are portable SQL; a dialect may replace single ones.
 */

/* -- setting -- */
SQL(get_setting, "SELECT value FROM {setting} WHERE name='format'")
SQL(set_setting, "UPDATE {setting} SET value=? WHERE name='format'")
SQL(new_setting, "INSERT INTO {setting}(name,value) VALUES('format',?)")

/* -- counters -- */
SQL(get_counter, "SELECT value FROM {counter} WHERE name=?{FOR_UPDATE}")
SQL(held_counter, "SELECT value,{SERVER},COALESCE((SELECT value FROM {counter} WHERE name=?),0) "
		  "FROM {counter} WHERE name=?{FOR_UPDATE}")
SQL(new_counter, "INSERT INTO {counter}(name,value) VALUES(?,?)")
SQL(set_counter, "UPDATE {counter} SET value=? WHERE name=?")
SQL(add_counter, "UPDATE {counter} SET value=value+? WHERE name=?")
SQL(clock, "SELECT CAST(strftime('%s','now') AS INTEGER)")
SQL(get_usage, "SELECT name,value FROM {counter} WHERE name IN ('usedSpace','totalInodes')")
SQL(add_usage, "UPDATE {counter} SET value=value+CASE name WHEN 'usedSpace' THEN ? ELSE ? END "
	       "WHERE name IN ('usedSpace','totalInodes')")
SQL(add_dir_stat, "UPDATE {dir_stats} SET data_length=data_length+?,used_space=used_space+?,"
		  "used_inodes=used_inodes+? WHERE inode=?")
SQL(drop_dir_stat, "DELETE FROM {dir_stats} WHERE inode=? AND used_space NOT BETWEEN ? AND ?")
SQL(new_dir_stat, "INSERT INTO {dir_stats}(inode,data_length,used_space,used_inodes) "
		  "VALUES(?,0,0,0)")
SQL(log_entry, "INSERT INTO {change_log}(entry) VALUES(?)")
SQL(oldest_lines, "SELECT id,entry FROM {change_log} ORDER BY id LIMIT ?")
SQL(newest_line, "SELECT MAX(id) FROM {change_log}")
SQL(drop_lines, "DELETE FROM {change_log} WHERE id<=?")

/* -- sessions -- */
SQL(new_session, "INSERT INTO {session2}(sid,expire,info) VALUES(?,?,?)")
SQL(refresh_session, "UPDATE {session2} SET expire=? WHERE sid=? AND expire>0")
SQL(restore_session, "UPDATE {session2} SET expire=? WHERE sid=?")
SQL(resume_session, "UPDATE {session2} SET expire=?,info=? WHERE sid=? AND expire>0")
SQL(end_session, "UPDATE {session2} SET expire=0 WHERE sid=? AND expire<?")
SQL(mark_session, "UPDATE {session2} SET info=? WHERE sid=? AND info<>?")
SQL(find_mark, "SELECT sid FROM {session2} WHERE sid=? AND info=?")
SQL(drop_session, "DELETE FROM {session2} WHERE sid=? AND expire=0")
SQL(each_session, "SELECT sid,expire,info FROM {session2} WHERE expire<? ORDER BY sid LIMIT ?")

/* -- nodes -- */
SQL(get_node, "SELECT {NODE} FROM {node} n WHERE n.inode=?")
SQL(lock_node, "SELECT {NODE} FROM {node} n WHERE n.inode=?{FOR_UPDATE}")
SQL(keep_node, "SELECT {NODE} FROM {node} n WHERE n.inode=?{FOR_SHARE}")
SQL(keep_late, "SELECT COALESCE(parent,0) FROM {node} WHERE inode=?{KEEP_LATE}")
SQL(put_node,
    "INSERT INTO {node}(inode,type,flags,mode,uid,gid,atime,mtime,ctime,atimensec,mtimensec,"
    "ctimensec,nlink,length,rdev,parent,access_acl_id,default_acl_id,tier_id) "
    "VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)")
SQL(update_node,
    "UPDATE {node} SET type=?,flags=?,mode=?,uid=?,gid=?,atime=?,mtime=?,ctime=?,atimensec=?,"
    "mtimensec=?,ctimensec=?,nlink=?,length=?,rdev=?,parent=?,access_acl_id=?,default_acl_id=?,"
    "tier_id=? WHERE inode=?")
SQL(touch_parent, "UPDATE {node} SET nlink=nlink+?,mtime=?,ctime=?,mtimensec=?,ctimensec=? "
		  "WHERE inode=?")
/* ctimensec comes first: some databases assign columns from left to right, others all at once. */
SQL(touch_dir, "UPDATE {node} SET mtime=?,mtimensec=?,"
	       "ctimensec=CASE WHEN ctime>? THEN ctimensec ELSE ? END,"
	       "ctime=CASE WHEN ctime>? THEN ctime ELSE ? END "
	       "WHERE inode=? AND ctime<=? AND (mtime<=? OR mtime>?)")
SQL(touch_atime, "UPDATE {node} SET atime=?,atimensec=? WHERE inode=?")
SQL(add_link, "UPDATE {node} SET nlink=nlink+1,parent=0,ctime=?,ctimensec=? WHERE inode=?")
SQL(get_symlink, "SELECT target FROM {symlink} WHERE inode=?")
SQL(put_symlink, "INSERT INTO {symlink}(inode,target) VALUES(?,?)")

/* -- certification rows (certification.c) -- */
SQL(put_certification, "INSERT INTO {flock}(inode,sid,owner,ltype) VALUES(?,0,?,0)")
SQL(del_certification, "DELETE FROM {flock} WHERE inode=? AND sid=0 AND owner=?")
SQL(put_certifications,
    "INSERT INTO {flock}(inode,sid,owner,ltype) VALUES" SQL_CERTIFICATION_VALUES("?"))
SQL(del_certifications, "DELETE FROM {flock} WHERE inode=? AND sid=0")
SQL(bump_node, "UPDATE {node} SET nlink=nlink+? WHERE inode=?")

/* -- edges -- */
SQL(lookup, "SELECT {NODE},n.inode FROM {edge} e JOIN {node} n ON n.inode=e.inode "
	    "WHERE e.parent=? AND e.name=?")
SQL(lookup_two, "SELECT {NODE},n.inode,e.parent=? AND e.name=? FROM {edge} e "
		"JOIN {node} n ON n.inode=e.inode "
		"WHERE (e.parent=? AND e.name=?) OR (e.parent=? AND e.name=?)")
SQL(get_edge, "SELECT inode,type FROM {edge} WHERE parent=? AND name=?")
SQL(put_edge, "INSERT INTO {edge}(parent,name,inode,type) VALUES(?,?,?,?)")
SQL(each_parent, "SELECT parent,name FROM {edge} WHERE inode=?")
SQL(list_names, "SELECT name,inode,type FROM {edge} WHERE parent=? AND name>? "
		"ORDER BY name LIMIT ?")
SQL(list_nodes, "SELECT {NODE},e.name,e.inode,e.type,n.inode FROM {edge} e "
		"LEFT JOIN {node} n ON n.inode=e.inode WHERE e.parent=? AND e.name>? "
		"ORDER BY e.name LIMIT ?")

/* -- removal, rename -- */
SQL(del_edge, "DELETE FROM {edge} WHERE parent=? AND name=? AND inode=?")
SQL(set_edge, "UPDATE {edge} SET inode=?,type=? WHERE parent=? AND name=? AND inode=?")
SQL(move_edge, "UPDATE {edge} SET parent=?,name=? WHERE parent=? AND name=? AND inode=?")
/*
 * The queries of a rename, sent as one batch; the rows of nodes are locked in the order of inodes.
 */
SQL(src_dir, "SELECT {NODE} FROM {node} n WHERE n.inode=?{FOR_SHARE}")
SQL(dst_dir, "SELECT {NODE} FROM {node} n WHERE n.inode=?{FOR_SHARE}")
SQL(lock_nodes, "SELECT {NODE},n.inode FROM {node} n WHERE n.inode IN ("
		"SELECT inode FROM {edge} WHERE parent=? AND name=? UNION ALL "
		"SELECT inode FROM {edge} WHERE parent=? AND name=?) ORDER BY n.inode{FOR_UPDATE}")
SQL(src_edge, "SELECT inode,type FROM {edge} WHERE parent=? AND name=?")
SQL(dst_edge, "SELECT inode,type FROM {edge} WHERE parent=? AND name=?")
SQL(dst_entry, "SELECT e.inode FROM {edge} d JOIN {edge} e ON e.parent=d.inode "
	       "WHERE d.parent=? AND d.name=? LIMIT 1")
SQL(dst_chunk, "SELECT c.indx FROM {edge} d JOIN {chunk} c ON c.inode=d.inode "
	       "WHERE d.parent=? AND d.name=? LIMIT 1")
SQL(put_trash, "INSERT INTO {edge}(parent,name,inode,type) VALUES(?,?,?,?)")
SQL(has_entry, "SELECT inode FROM {edge} WHERE parent=? LIMIT 1")
SQL(has_entries,
    "SELECT inode FROM {edge} WHERE parent=? LIMIT 1 OFFSET ?") /* has more entries than those */
SQL(move_node, "UPDATE {node} SET nlink=?,parent=?,ctime=?,ctimensec=? WHERE inode=?")
SQL(del_node, "DELETE FROM {node} WHERE inode=?")
SQL(del_symlink, "DELETE FROM {symlink} WHERE inode=?")
SQL(put_sustained, "INSERT INTO {sustained}(sid,inode) VALUES(?,?)")
SQL(put_delfile, "INSERT {OR_IGNORE} INTO {delfile}(inode,length,expire) VALUES(?,?,?) "
		 "{ELSE_IGNORE}")

/* -- chunks, slices, deletion -- */
SQL(get_chunk, "SELECT slices FROM {chunk} WHERE inode=? AND indx=?")
SQL(open_file, "SELECT {NODE},c.slices FROM {node} n "
	       "LEFT JOIN {chunk} c ON c.inode=n.inode AND c.indx=0 WHERE n.inode=?")
/* A file with several names has parent 0, and no edge here. */
SQL(read_heads,
    "SELECT {NODE},n.inode,c.slices,e.parent,e.name FROM {node} n "
    "LEFT JOIN {chunk} c ON c.inode=n.inode AND c.indx=0 "
    "LEFT JOIN {edge} e ON e.inode=n.inode AND e.parent=n.parent "
    "WHERE n.inode IN (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)")
SQL(lock_chunk, "SELECT slices FROM {chunk} WHERE inode=? AND indx=?{FOR_UPDATE}")
SQL(any_chunk, "SELECT indx,slices FROM {chunk} WHERE inode=? LIMIT 1{FOR_UPDATE}")
SQL(set_chunk, "UPDATE {chunk} SET slices=? WHERE inode=? AND indx=?")
SQL(del_chunk, "DELETE FROM {chunk} WHERE inode=? AND indx=?")
/* In SQLite || makes a TEXT value, whose length() ends at the first NUL: hence the casts below. */
SQL(append_chunk, "INSERT INTO {chunk}(inode,indx,slices) VALUES(?,?,?) "
		  "ON CONFLICT(inode,indx) DO UPDATE SET slices={chunk}.slices||excluded.slices")
/* Without the INSERT above, which allocates an automatic id and so costs SQLite a page. */
SQL(append_known, "UPDATE {chunk} SET slices=slices||? WHERE inode=? AND indx=?")
SQL(append_chunks, "UPDATE {chunk} SET slices=slices||? WHERE inode=? AND indx>=? AND indx<?")
SQL(chunk_length, "SELECT length(CAST(slices AS BLOB)) FROM {chunk} WHERE inode=? AND indx=?")
SQL(set_written, "UPDATE {node} SET length=?,mtime=?,mtimensec=?,ctime=?,ctimensec=? "
		 "WHERE inode=?")
SQL(put_ref, "INSERT INTO {chunk_ref}(chunkid,size,refs) VALUES(?,?,?)")
SQL(add_refs, "UPDATE {chunk_ref} SET refs=refs+? WHERE chunkid=?")
SQL(get_refs, "SELECT refs,size FROM {chunk_ref} WHERE chunkid=?")
#define IDS "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)" /* REFS_BATCH in refs.c */
SQL(add_many_refs, "UPDATE {chunk_ref} SET refs=refs+? WHERE chunkid IN " IDS)
SQL(dead_of_many, "SELECT chunkid,size FROM {chunk_ref} WHERE refs<=0 AND chunkid IN " IDS)
#undef IDS
SQL(each_dead, "SELECT chunkid,size FROM {chunk_ref} WHERE refs<=0 LIMIT ?")
SQL(del_ref, "DELETE FROM {chunk_ref} WHERE chunkid=? AND refs<=0")
SQL(put_delayed, "INSERT INTO {delslices}(chunkid,deleted,slices) VALUES(?,?,?)")
SQL(next_delayed, "SELECT chunkid,slices FROM {delslices} WHERE deleted<? AND chunkid>?"
		  " ORDER BY chunkid LIMIT 1{FOR_UPDATE}")
SQL(has_delayed, "SELECT 1 FROM {delslices} WHERE chunkid=?")
SQL(del_delayed, "DELETE FROM {delslices} WHERE chunkid=?")
SQL(del_sustained, "DELETE FROM {sustained} WHERE sid=? AND inode=?")
SQL(any_sustained, "SELECT inode FROM {sustained} WHERE sid=? LIMIT 1")
SQL(each_delfile, "SELECT inode,length,expire FROM {delfile} WHERE expire<? LIMIT ?")
SQL(del_delfile, "DELETE FROM {delfile} WHERE inode=? AND length=?")

/* -- extended attributes, ACL, locks -- */
SQL(get_xattr, "SELECT value FROM {xattr} WHERE inode=? AND name=?")
SQL(list_xattrs, "SELECT name FROM {xattr} WHERE inode=?")
SQL(new_xattr, "INSERT INTO {xattr}(inode,name,value) VALUES(?,?,?)")
SQL(replace_xattr, "UPDATE {xattr} SET value=? WHERE inode=? AND name=?")
SQL(put_xattr, "INSERT INTO {xattr}(inode,name,value) VALUES(?,?,?) "
	       "ON CONFLICT(inode,name) DO UPDATE SET value=excluded.value")
SQL(del_xattr, "DELETE FROM {xattr} WHERE inode=? AND name=?")
SQL(del_xattrs, "DELETE FROM {xattr} WHERE inode=?")
SQL(get_acl, "SELECT owner,`group`,mask,other,named_users,named_groups FROM {acl} WHERE id=?")
SQL(find_acl, "SELECT id,named_users,named_groups FROM {acl} "
	      "WHERE owner=? AND `group`=? AND mask=? AND other=? ORDER BY id")
SQL(put_acl, "INSERT INTO {acl}(owner,`group`,mask,other,named_users,named_groups) "
	     "VALUES(?,?,?,?,?,?)")
SQL(each_flock, "SELECT sid,owner,ltype FROM {flock} WHERE inode=?")
SQL(put_flock, "INSERT INTO {flock}(inode,sid,owner,ltype) VALUES(?,?,?,?)")
SQL(set_flock, "UPDATE {flock} SET ltype=? WHERE inode=? AND sid=? AND owner=?")
SQL(del_flock, "DELETE FROM {flock} WHERE inode=? AND sid=? AND owner=?")
SQL(del_session_flocks, "DELETE FROM {flock} WHERE sid=?")
SQL(each_plock, "SELECT sid,owner,records FROM {plock} WHERE inode=?")
SQL(put_plock, "INSERT INTO {plock}(inode,sid,owner,records) VALUES(?,?,?,?)")
SQL(set_plock, "UPDATE {plock} SET records=? WHERE inode=? AND sid=? AND owner=?")
SQL(del_plock, "DELETE FROM {plock} WHERE inode=? AND sid=? AND owner=?")
SQL(del_session_plocks, "DELETE FROM {plock} WHERE sid=?")

/* -- quotas, dir stats, clone -- */
SQL(get_dir_stat, "SELECT data_length,used_space,used_inodes FROM {dir_stats} WHERE inode=?")
SQL(put_dir_stat, "INSERT INTO {dir_stats}(inode,data_length,used_space,used_inodes) "
		  "VALUES(?,?,?,?) ON CONFLICT(inode) DO UPDATE SET "
		  "data_length=excluded.data_length,used_space=excluded.used_space,"
		  "used_inodes=excluded.used_inodes")
SQL(del_dir_stat, "DELETE FROM {dir_stats} WHERE inode=?")
SQL(each_dir_quota, "SELECT inode,max_space,max_inodes,used_space,used_inodes FROM {dir_quota}")
SQL(put_dir_quota,
    "INSERT INTO {dir_quota}(inode,max_space,max_inodes,used_space,used_inodes) "
    "VALUES(?,?,?,?,?) ON CONFLICT(inode) DO UPDATE SET max_space=excluded.max_space,"
    "max_inodes=excluded.max_inodes,used_space=excluded.used_space,"
    "used_inodes=excluded.used_inodes")
SQL(add_dir_quota, "UPDATE {dir_quota} SET used_space=used_space+?,used_inodes=used_inodes+? "
		   "WHERE inode=?")
SQL(del_dir_quota, "DELETE FROM {dir_quota} WHERE inode=?")
SQL(each_owner_quota, "SELECT qtype,qkey,max_space,max_inodes,used_space,used_inodes "
		      "FROM {user_group_quota}")
SQL(put_owner_quota,
    "INSERT INTO {user_group_quota}(qtype,qkey,max_space,max_inodes,used_space,used_inodes) "
    "VALUES(?,?,?,?,?,?) ON CONFLICT(qtype,qkey) DO UPDATE SET max_space=excluded.max_space,"
    "max_inodes=excluded.max_inodes,used_space=excluded.used_space,"
    "used_inodes=excluded.used_inodes")
SQL(add_owner_quota,
    "INSERT INTO {user_group_quota}(qtype,qkey,max_space,max_inodes,used_space,used_inodes) "
    "VALUES(?,?,-1,-1,?,?) ON CONFLICT(qtype,qkey) DO UPDATE SET "
    "used_space={user_group_quota}.used_space+excluded.used_space,"
    "used_inodes={user_group_quota}.used_inodes+excluded.used_inodes")
SQL(move_owner_usage, "UPDATE {user_group_quota} SET used_space=used_space+?,"
		      "used_inodes=used_inodes+? WHERE qtype=? AND qkey=?")
SQL(lift_owner_quota,
    "UPDATE {user_group_quota} SET max_space=-1,max_inodes=-1 WHERE qtype=? AND qkey=?")
SQL(clone_xattrs, "INSERT INTO {xattr}(inode,name,value) "
		  "SELECT ?,name,value FROM {xattr} WHERE inode=?")
SQL(clone_symlink, "INSERT INTO {symlink}(inode,target) "
		   "SELECT ?,target FROM {symlink} WHERE inode=?")
SQL(clone_dir_stat, "INSERT INTO {dir_stats}(inode,data_length,used_space,used_inodes) "
		    "SELECT ?,data_length,used_space,used_inodes FROM {dir_stats} WHERE inode=?")
SQL(clone_chunks, "INSERT INTO {chunk}(inode,indx,slices) "
		  "SELECT ?,indx,slices FROM {chunk} WHERE inode=?")
/* Locks the chunks of a file to clone, because compaction does not lock the node. */
SQL(each_chunk, "SELECT slices FROM {chunk} WHERE inode=?{FOR_UPDATE}")
SQL(put_detached, "INSERT INTO {detached_node}(inode,added) VALUES(?,?)")
SQL(del_detached, "DELETE FROM {detached_node} WHERE inode=?")

/* -- scans: pages in the order of a key -- */
SQL(scan_nodes, "SELECT {NODE},n.inode FROM {node} n WHERE n.inode>? ORDER BY n.inode LIMIT ?")
SQL(scan_edges, "SELECT id,parent,name,inode,type FROM {edge} WHERE id>? ORDER BY id LIMIT ?")
SQL(scan_chunks, "SELECT id,inode,indx,slices FROM {chunk} WHERE id>? ORDER BY id LIMIT ?")
SQL(scan_refs, "SELECT chunkid,size,refs FROM {chunk_ref} WHERE chunkid>? ORDER BY chunkid "
	       "LIMIT ?")
SQL(scan_delayed, "SELECT chunkid,deleted,slices FROM {delslices} WHERE chunkid>? "
		  "ORDER BY chunkid LIMIT ?")
SQL(scan_delfiles, "SELECT inode,length,expire FROM {delfile} WHERE inode>? ORDER BY inode "
		   "LIMIT ?")
SQL(scan_sustained, "SELECT id,sid,inode FROM {sustained} WHERE id>? ORDER BY id LIMIT ?")
SQL(scan_detached, "SELECT inode,added FROM {detached_node} WHERE inode>? ORDER BY inode LIMIT ?")
SQL(scan_dir_stats, "SELECT inode,data_length,used_space,used_inodes FROM {dir_stats} "
		    "WHERE inode>? ORDER BY inode LIMIT ?")
SQL(scan_symlinks, "SELECT inode,target FROM {symlink} WHERE inode>? ORDER BY inode LIMIT ?")
SQL(scan_xattrs, "SELECT id,inode,name,value FROM {xattr} WHERE id>? ORDER BY id LIMIT ?")
SQL(scan_parents,
    "SELECT n.inode,e.parent,COUNT(*) FROM {node} n JOIN {edge} e "
    "ON e.inode=n.inode WHERE n.parent=0 AND n.inode>=? AND (n.inode>? OR e.parent>?) "
    "GROUP BY n.inode,e.parent ORDER BY n.inode,e.parent LIMIT ?")
SQL(scan_acls, "SELECT id,owner,`group`,mask,other,named_users,named_groups FROM {acl} "
	       "WHERE id>? ORDER BY id LIMIT ?")
SQL(scan_counters, "SELECT name,value FROM {counter} ORDER BY name")
SQL(chunk_lengths, "SELECT indx,length(CAST(slices AS BLOB)) FROM {chunk} "
		   "WHERE inode=? AND indx>=? ORDER BY indx LIMIT ?")

/* -- check and repair -- */
SQL(each_name, "SELECT parent,type FROM {edge} WHERE inode=?")
SQL(set_names_type, "UPDATE {edge} SET type=? WHERE inode=?")
SQL(del_names, "DELETE FROM {edge} WHERE inode=?")
SQL(count_subdirs, "SELECT COUNT(*) FROM {edge} WHERE parent=? AND type=2")
/* Space is computed as cfs_space_of() does; the last column is a mark (struct cfs_sums). */
SQL(sum_entries, "SELECT COUNT(*),SUM(CASE WHEN n.type=1 THEN n.length ELSE 0 END),"
		 "SUM(CASE WHEN n.type=1 AND n.length>0 THEN n.length+4095-(n.length+4095)%4096 "
		 "ELSE 4096 END),SUM(n.inode%1000003*31+n.ctime%1000003) "
		 "FROM {edge} e JOIN {node} n ON n.inode=e.inode WHERE e.parent=?")
SQL(sum_nodes,
    "SELECT COUNT(*),SUM(CASE WHEN type=1 AND length>0 THEN length+4095-(length+4095)%4096 "
    "ELSE 4096 END),(SELECT value FROM {counter} WHERE name='totalInodes'),"
    "(SELECT value FROM {counter} WHERE name='usedSpace'),"
    "SUM(inode%1000003*31+ctime%1000003) "
    "FROM {node} WHERE inode<>1 AND inode<>9223372032828243968")
SQL(is_sustained, "SELECT sid FROM {sustained} WHERE inode=? LIMIT 1")
SQL(is_detached, "SELECT added FROM {detached_node} WHERE inode=?")
SQL(get_delfile, "SELECT length FROM {delfile} WHERE inode=?")
SQL(last_chunk, "SELECT indx FROM {chunk} WHERE inode=? ORDER BY indx DESC LIMIT 1")
SQL(set_refs, "UPDATE {chunk_ref} SET refs=? WHERE chunkid=? AND refs=?")
SQL(clear_dir_stats, "DELETE FROM {dir_stats}")

/* -- load -- */
/* An existing row is an error on every engine. */
SQL(load_edge, "INSERT INTO {edge}(parent,name,inode,type) VALUES(?,?,?,?)")
SQL(load_xattr, "INSERT INTO {xattr}(inode,name,value) VALUES(?,?,?)")
SQL(load_chunk, "INSERT INTO {chunk}(inode,indx,slices) VALUES(?,?,?)")
SQL(load_ref, "INSERT INTO {chunk_ref}(chunkid,size,refs) VALUES(?,?,?) ON CONFLICT(chunkid) "
	      "DO UPDATE SET refs={chunk_ref}.refs+excluded.refs")
SQL(load_delfile, "INSERT INTO {delfile}(inode,length,expire) VALUES(?,?,?)")
SQL(load_acl, "INSERT INTO {acl}(id,owner,`group`,mask,other,named_users,named_groups) "
	      "VALUES(?,?,?,?,?,?,?)")
/* A dialect whose automatic ids do not continue after explicit ids replaces this text. */
SQL(load_acl_end, "SELECT MAX(id) FROM {acl}")

/* -- records of cachefs itself -- */
SQL(new_record, "INSERT INTO {cachefs_record}(name,value) VALUES(?,?)")
SQL(set_record, "UPDATE {cachefs_record} SET value=? WHERE name=?")
SQL(swap_record, "UPDATE {cachefs_record} SET value=? WHERE name=? AND value=?")
SQL(drop_record, "DELETE FROM {cachefs_record} WHERE name=?")
SQL(get_record, "SELECT value FROM {cachefs_record} WHERE name=?")
SQL(each_record, "SELECT name,value FROM {cachefs_record} WHERE name>? AND name<?")
