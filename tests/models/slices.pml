/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unlink of an open file beside compaction, a copy of it, and reference counts of slices.
 *
 * Three mounts share the volume: one holds the file open, writes, reads, unlinks and closes it; one
 * compacts its only chunk; one copies it, reads the copy and removes it. Jobs delete what is
 * removed. The power may fail once, at any moment: then the database is as it was last synced or
 * as it is, and any object that was not synced may be gone.
 *
 * Properties:
 *	A read of an open file, or of a copy, finds every object that the list of its chunk names,
 *	after reading that list again when one is missing.
 *	After a power failure a file that exists has the bytes that fsync promised.
 *	A slice has as many references as records and delayed entries name it.
 *	In the end no object and no reference row is left of what nothing names.
 *
 * Broken on purpose: -DBROKEN_RELEASE removes objects before the change that freed them is durable,
 * -DBROKEN_SUSTAIN deletes the data of an open file, -DBROKEN_REFS copies without a reference.
 */

#ifndef WRITES
#define WRITES 2 /* slices 1 .. WRITES; merged ones follow */
#endif
#define MERGES 2
#define SLICES (WRITES + MERGES + 1)

/* Transactions; each is one atomic step. */
typedef Db {
	bit node, sustained, delfile; /* of the file */
	byte n;
	byte rec[WRITES + 1]; /* the records of its chunk */
	bit copy, copy_delfile;
	byte copy_n;
	byte copy_rec[WRITES + 1];
	bit row[SLICES];
	byte refs[SLICES];
	byte delayed[SLICES]; /* references of replaced slices that wait for the end of their trash time */
};
Db db, durable;

byte obj[SLICES];  /* 0: none, 1: written, 2: synced */
byte has[SLICES];  /* the writes whose bytes are in the slice, a bit for each */
byte committed, promised;
bit trash, powerless;
byte running;

inline copy_db(to, from)
{
	to.node = from.node;
	to.sustained = from.sustained;
	to.delfile = from.delfile;
	to.n = from.n;
	to.copy = from.copy;
	to.copy_delfile = from.copy_delfile;
	to.copy_n = from.copy_n;
	for (i : 0 .. WRITES) {
		to.rec[i] = from.rec[i];
		to.copy_rec[i] = from.copy_rec[i];
	}
	for (i : 0 .. SLICES - 1) {
		to.row[i] = from.row[i];
		to.refs[i] = from.refs[i];
		to.delayed[i] = from.delayed[i];
	}
}

/* src/store/sync.c */
inline sync_objects()
{
	atomic {
		!powerless;
		for (i : 1 .. SLICES - 1) {
			if
			:: obj[i] == 1 -> obj[i] = 2
			:: else
			fi
		}
		i = 0
	}
}

inline sync_db()
{
	atomic {
		!powerless;
		copy_db(durable, db);
		i = 0
	}
}

/* meta/api/release.c: `dead` is a set of slices */
inline release(dead)
{
	if
	:: dead ->
#ifndef BROKEN_RELEASE
		sync_objects();
		sync_db();
#endif
		s = 1;
		do
		:: s < SLICES ->
			if
			:: dead & (1 << s) ->
				atomic { !powerless; obj[s] = 0 };
				atomic {
					!powerless;
					if
					:: db.refs[s] == 0 -> db.row[s] = 0
					:: else
					fi
				}
			:: else
			fi;
			s++
		:: else -> break
		od;
		s = 0
	:: else
	fi;
	dead = 0
}

/* meta/sql/refs.c: sql_refs_drop() */
inline drop_ref(id, dead)
{
	assert(db.refs[id] > 0);
	db.refs[id]--;
	if
	:: db.refs[id] == 0 -> dead = dead | (1 << id)
	:: else
	fi
}

/* src/data/read.c: what `want` says must be among the bytes. */
inline read_file(of_copy, want)
{
	missing = 0;
	do
	:: true ->
		atomic {
			!powerless;
			seen_n = (of_copy -> db.copy_n : db.n);
			need = want;
			got = 0;
			for (i : 0 .. WRITES) {
				seen[i] = (of_copy -> db.copy_rec[i] : db.rec[i])
			}
			i = 0;
			k = 0
		};
		again = 0;
		do
		:: k < seen_n && !again ->
			atomic {
				!powerless;
				if
				:: obj[seen[k]] == 0 ->
					assert(seen[k] != missing); /* it is in the list, and is not there */
					missing = seen[k];
					again = 1
				:: else ->
					got = got | has[seen[k]]
				fi;
				k++
			}
		:: else -> break
		od;
		if
		:: again
		:: else -> break
		fi
	od;
	atomic {
		assert((got & need) == need);
		seen_n = 0;
		for (i : 0 .. WRITES) {
			seen[i] = 0
		}
		i = 0; k = 0; got = 0; need = 0; missing = 0; again = 0
	}
}

#define READER byte seen[WRITES + 1]; byte seen_n, missing, need, got, again

/* The mount that has the file open: src/data/slice.c, flush.c, read.c; meta/sql/chunks.c, remove.c, deletion.c */
proctype holder()
{
	byte i, k, w = 1;
	READER;

	do
	:: w <= WRITES ->
		atomic { !powerless; obj[w] = 1; has[w] = 1 << w };
		atomic {
			!powerless;
			db.rec[db.n] = w;
			db.n++;
			db.row[w] = 1;
			db.refs[w] = 1;
			committed = committed | (1 << w)
		};
		if
		:: w == 1 ->
			sync_objects();
			atomic { !powerless; copy_db(durable, db); i = 0; promised = committed }
		:: else
		fi;
		w++
	:: else -> break
	od;
	atomic {
		!powerless;
#ifdef BROKEN_SUSTAIN
		db.node = 0;
		db.delfile = 1
#else
		db.sustained = 1
#endif
	};
	read_file(0, committed);
	atomic { /* close: meta/sql/deletion.c, end_sustained() */
		!powerless;
		db.sustained = 0;
		db.node = 0;
		db.delfile = 1
	};
	running--
}

/* Another mount: src/data/compact.c, meta/sql/compact.c */
proctype compactor()
{
	byte i, k, s, m = WRITES + 1, head_n, same, dead;
	byte head[WRITES + 1];

	do
	:: m < SLICES ->
		atomic {
			!powerless;
			head_n = (db.node -> db.n : 0);
			for (i : 0 .. WRITES) {
				head[i] = db.rec[i]
			}
			i = 0;
			k = 0
		};
		if
		:: head_n >= 2 ->
			do
			:: k < head_n ->
				atomic {
					!powerless;
					if
					:: obj[head[k]] == 0 -> k = 99 /* it was deleted meanwhile */
					:: else -> has[m] = has[m] | has[head[k]]; k++
					fi
				}
			:: else -> break
			od;
			if
			:: k == 99 -> has[m] = 0
			:: else ->
				atomic { !powerless; obj[m] = 1 };
				sync_objects();
				atomic { /* compact_chunk() */
					!powerless;
					same = db.n >= head_n;
					for (i : 0 .. WRITES) {
						same = same && (i >= head_n || db.rec[i] == head[i])
					}
					assert(!db.row[m]);
					db.row[m] = 1;
					if
					:: same ->
						db.refs[m] = 1;
						for (i : 0 .. WRITES) {
							if
							:: i < head_n && trash -> db.delayed[head[i]]++
							:: i < head_n && !trash -> drop_ref(head[i], dead)
							:: else
							fi
						}
						db.rec[0] = m;
						for (i : 1 .. WRITES) {
							db.rec[i] = (head_n + i - 1 <= WRITES && i <= db.n - head_n -> db.rec[head_n + i - 1] : 0)
						}
						db.n = db.n - head_n + 1
					:: else /* the job finds it: no references */
					fi;
					i = 0
				};
				release(dead)
			fi
		:: else
		fi;
		for (i : 0 .. WRITES) {
			head[i] = 0
		}
		i = 0; k = 0; head_n = 0; same = 0;
		m++
	:: else -> break
	od;
	running--
}

/* A third mount: meta/sql/copy.c, remove.c */
proctype copier()
{
	byte i, k;
	READER;
	byte copied;

	atomic {
		!powerless;
		if
		:: db.node && db.n > 0 ->
			db.copy = 1;
			db.copy_n = db.n;
			for (i : 0 .. WRITES) {
				db.copy_rec[i] = db.rec[i];
				if
				:: i < db.n ->
					assert(db.row[db.rec[i]]);
#ifndef BROKEN_REFS
					db.refs[db.rec[i]]++;
#endif
					copied = copied | has[db.rec[i]]
				:: else
				fi
			}
		:: else
		fi;
		i = 0
	};
	if
	:: db.copy ->
		read_file(1, copied);
		atomic { !powerless; db.copy = 0; db.copy_delfile = 1 }
	:: else
	fi;
	running--
}

#define WAITS(s)  (s < SLICES && db.delayed[s % SLICES] > 0)
#define ORPHAN(s) (s < SLICES && db.row[s % SLICES] && db.refs[s % SLICES] == 0)

/* meta/api/jobs.c, meta/sql/deletion.c: deletion of files, the end of trash, slices without references */
proctype jobs()
{
	byte i, k, s, dead;

end:	do
	:: atomic { !powerless && db.delfile && !db.node ->
			for (i : 0 .. WRITES) {
				if
				:: i < db.n -> drop_ref(db.rec[i], dead); db.rec[i] = 0
				:: else
				fi
			}
			db.n = 0;
			i = 0
		};
		release(dead);
		atomic { !powerless; db.delfile = 0 }
	:: atomic { !powerless && db.copy_delfile ->
			for (i : 0 .. WRITES) {
				if
				:: i < db.copy_n -> drop_ref(db.copy_rec[i], dead); db.copy_rec[i] = 0
				:: else
				fi
			}
			db.copy_n = 0;
			i = 0
		};
		release(dead);
		atomic { !powerless; db.copy_delfile = 0 }
	:: atomic { !powerless && (WAITS(1) || WAITS(2) || WAITS(3) || WAITS(4) || WAITS(5)) ->
			for (i : 1 .. SLICES - 1) {
				if
				:: db.delayed[i] > 0 -> db.delayed[i]--; drop_ref(i, dead)
				:: else
				fi
			}
			i = 0
		};
		release(dead)
	:: atomic { !powerless && running == 0 && (ORPHAN(1) || ORPHAN(2) || ORPHAN(3) || ORPHAN(4) || ORPHAN(5)) ->
			for (i : 1 .. SLICES - 1) {
				if
				:: db.row[i] && db.refs[i] == 0 -> dead = dead | (1 << i)
				:: else
				fi
			}
			i = 0
		};
		release(dead)
	od
}

inline check_refs()
{
	for (i : 1 .. SLICES - 1) {
		k = db.delayed[i];
		for (j : 0 .. WRITES) {
			k = k + (j < db.n && db.rec[j] == i -> 1 : 0);
			k = k + (j < db.copy_n && db.copy_rec[j] == i -> 1 : 0)
		}
		assert(db.refs[i] == k);
		assert(k == 0 || db.row[i])
	}
}

proctype power()
{
	byte i, j, k;

	if
	:: atomic { /* it fails */
			running > 0 ->
			powerless = 1;
			if
			:: copy_db(db, durable)
			:: true
			fi;
			i = 1;
			do
			:: i < SLICES ->
				if
				:: obj[i] == 1 -> obj[i] = 0
				:: true
				fi;
				i++
			:: else -> break
			od;
			k = 0;
			for (i : 0 .. WRITES) {
				if
				:: i < db.n && db.rec[i] && obj[db.rec[i]] -> k = k | has[db.rec[i]]
				:: else
				fi
			}
			assert(!db.node || (k & promised) == promised);
			check_refs()
		}
	:: atomic { running == 0 -> check_refs(); i = 0; j = 0; k = 0 }
	fi
}

/* Everything is idle: nothing is left. */
proctype finally()
{
	byte i;

	atomic {
		timeout ->
		if
		:: powerless
		:: else ->
			assert(running == 0 && !db.delfile && !db.copy_delfile);
			for (i : 1 .. SLICES - 1) {
				assert(obj[i] == 0 && !db.row[i] && db.refs[i] == 0)
			}
		fi
	}
}

init {
	atomic {
		db.node = 1;
		durable.node = 1;
		if
		:: trash = 0
		:: trash = 1
		fi;
		running = 3;
		run holder();
		run compactor();
		run copier();
		run jobs();
		run power();
		run finally()
	}
}
