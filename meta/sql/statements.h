/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every statement, one per line. No include guard: it is included once per use of SQL(id, text).
 *
 *	{table}		the table's name with its prefix
 *	{NODE}		the columns sql_node_columns() reads (SQL_NODE_COLUMNS of them), of alias n
 *	{FOR_UPDATE}	row lock, where the database has one
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
SQL(new_counter, "INSERT INTO {counter}(name,value) VALUES(?,?)")
SQL(set_counter, "UPDATE {counter} SET value=? WHERE name=?")
SQL(add_counter, "UPDATE {counter} SET value=value+? WHERE name=?")
SQL(get_usage, "SELECT name,value FROM {counter} WHERE name IN ('usedSpace','totalInodes')")
SQL(add_usage, "UPDATE {counter} SET value=value+CASE name WHEN 'usedSpace' THEN ? ELSE ? END "
	       "WHERE name IN ('usedSpace','totalInodes')")
SQL(add_dir_stat, "UPDATE {dir_stats} SET data_length=data_length+?,used_space=used_space+?,"
		  "used_inodes=used_inodes+? WHERE inode=?")
SQL(new_dir_stat, "INSERT INTO {dir_stats}(inode,data_length,used_space,used_inodes) "
		  "VALUES(?,0,0,0)")
SQL(log_entry, "INSERT INTO {change_log}(entry) VALUES(?)")

/* -- sessions -- */
SQL(new_session, "INSERT INTO {session2}(sid,expire,info) VALUES(?,?,?)")
SQL(refresh_session, "UPDATE {session2} SET expire=? WHERE sid=?")
SQL(drop_session, "DELETE FROM {session2} WHERE sid=?")
SQL(each_session, "SELECT sid,expire,info FROM {session2} WHERE expire<? ORDER BY sid LIMIT ?")

/* -- nodes -- */
SQL(get_node, "SELECT {NODE} FROM {node} n WHERE n.inode=?")
SQL(lock_node, "SELECT {NODE} FROM {node} n WHERE n.inode=?{FOR_UPDATE}")
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
SQL(touch_atime, "UPDATE {node} SET atime=?,atimensec=? WHERE inode=?")
SQL(add_link, "UPDATE {node} SET nlink=nlink+1,parent=0,ctime=?,ctimensec=? WHERE inode=?")
SQL(get_symlink, "SELECT target FROM {symlink} WHERE inode=?")
SQL(put_symlink, "INSERT INTO {symlink}(inode,target) VALUES(?,?)")

/* -- edges -- */
SQL(lookup, "SELECT {NODE},n.inode FROM {edge} e JOIN {node} n ON n.inode=e.inode "
	    "WHERE e.parent=? AND e.name=?")
SQL(get_edge, "SELECT inode,type FROM {edge} WHERE parent=? AND name=?")
SQL(put_edge, "INSERT INTO {edge}(parent,name,inode,type) VALUES(?,?,?,?)")
SQL(each_parent, "SELECT parent,name FROM {edge} WHERE inode=?")
SQL(list_names, "SELECT name,inode,type FROM {edge} WHERE parent=? AND name>? "
		"ORDER BY name LIMIT ?")
SQL(list_nodes, "SELECT {NODE},e.name,e.inode,e.type,n.inode FROM {edge} e "
		"LEFT JOIN {node} n ON n.inode=e.inode WHERE e.parent=? AND e.name>? "
		"ORDER BY e.name LIMIT ?")

/* -- removal, rename -- */

/* -- chunks, slices, deletion -- */

/* -- extended attributes, ACL, locks -- */

/* -- quotas, dir stats, clone -- */
