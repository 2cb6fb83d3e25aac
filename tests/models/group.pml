/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of a cache group: their list, who publishes it, and who owns a block, while a member
 * joins, one is drained and one dies.
 *
 * Any member may take itself for the leader at any moment, whether the one before it is silent or
 * only seems so. Two such claims and those after a death are made. Its list
 * may be old when the head is swapped, and a member may read the head late.
 *
 * Properties:
 *	A version of the list means one list.
 *	In the end every live member has the list that the records say.
 *	A member that is asked for a block and does not own it has another version of the list.
 *	While all have one version, no block is fetched that a live member has.
 *
 * Broken on purpose: -DBROKEN_SWAP writes the head without comparing it, -DBROKEN_DRAIN does not ask
 * a drained member for its blocks.
 */

#ifndef SPURIOUS
#define SPURIOUS 1
#endif
#define N 3
#define VERSIONS 8
#define KEY(v, n) ((v) * N + (n))

/* transport/group/record.c: the record of each member. 0: none, 1: shares, 2: drained */
#define SET(list, i, what) ((i) == 0 -> (list) - (list) % 3 + (what) : ((i) == 1 -> (list) - (list) % 9 + (list) % 3 + 3 * (what) : (list) % 9 + 9 * (what)))
#define GET(list, i) ((i) == 0 -> (list) % 3 : ((i) == 1 -> (list) / 3 % 3 : (list) / 9))
byte records;

/* transport/group/members.h: the head, and lists and changes under keys with the writer's number */
bit has_head;
byte head_leader, head_serial, head_version, head_log, head_sum;
byte whole[VERSIONS * N], change[VERSIONS * N];

bit up[N];
byte version[N], roster[N];
bit known[N];
byte list_of[VERSIONS]; /* what a version was first published as, plus 1 */
byte spurious;

/* src/store/peers.c: the block, which member 2 would own, then 1, then 0 */
bit cached[N];

inline note_version(number, list)
{
	assert(number < VERSIONS);
	assert(list_of[number] == 0 || list_of[number] == list + 1);
	list_of[number] = list + 1
}

/* transport/group/publish.c: swap_head() */
inline swap_head(to_version, to_log, to_sum)
{
#ifdef BROKEN_SWAP
	if
	:: true ->
#else
	if
	:: has_head == h_any && head_serial == h_serial ->
#endif
		has_head = 1;
		h_any = 1;
		head_leader = me;
		head_serial++;
		head_version = to_version;
		head_log = to_log;
		head_sum = to_sum;
		h_serial = head_serial;
		h_version = to_version;
		h_log = to_log;
		h_sum = to_sum;
		h_leader = me;
		note_version(to_version, to_sum);
		ok = 1
	:: else -> ok = 0
	fi
}

#define OWNER(list) (GET(list, 2) == 1 -> 2 : (GET(list, 1) == 1 -> 1 : (GET(list, 0) == 1 -> 0 : 9)))
#define ONE_VERSION ((!up[0] || version[0] == head_version) && (!up[1] || version[1] == head_version) && (!up[2] || version[2] == head_version))
#define IS_AT(i) (up[i] && cached[i])

/*
 * transport/group/group.c: an owner asks the members that may have had the block for what they have,
 * and fetches nothing by that. src/store/peers.c: a member that is no owner says so.
 */
inline read_block()
{
	atomic {
		o = OWNER(roster[me]);
		if
		:: o == 9 || !up[o] /* object storage */
		:: else ->
			if
			:: cached[o]
			:: !cached[o] && OWNER(roster[o]) == o ->
				if
#ifndef BROKEN_DRAIN
				:: (GET(roster[o], 0) && IS_AT(0)) || (GET(roster[o], 1) && IS_AT(1)) || (GET(roster[o], 2) && IS_AT(2)) ->
					skip
#endif
				:: else ->
					assert(!ONE_VERSION || (!IS_AT(0) && !IS_AT(1) && !IS_AT(2)))
				fi;
				cached[o] = 1
			:: else -> assert(version[me] != version[o])
			fi
		fi;
		o = 0
	}
}

proctype member(byte me)
{
	bit h_any, leading, ok, same, did_read;
	byte h_leader, h_serial, h_version, h_log, h_sum, next, v, o;

	{
end:	do
	:: atomic { /* members.c: look() */
			has_head && (!h_any || h_serial != head_serial) && !leading ->
			h_any = 1;
			h_leader = head_leader;
			h_serial = head_serial;
			h_version = head_version;
			h_log = head_log;
			h_sum = head_sum;
			/* cfs_members_follow(): the records of a list never change once the head has named them */
			if
			:: known[me] && version[me] == h_version && roster[me] == h_sum
			:: else ->
				if
				:: known[me] && version[me] >= h_log && version[me] < h_version ->
					v = version[me];
					next = roster[me]
				:: else -> next = whole[KEY(h_log, h_leader)]; v = h_log
				fi;
				do
				:: v < h_version -> v++; next = change[KEY(v, h_leader)]
				:: else -> break
				od;
				if
				:: next == h_sum ->
					version[me] = h_version;
					roster[me] = next;
					known[me] = 1;
					note_version(h_version, next)
				:: else -> h_serial = 99 /* looks again */
				fi;
				next = 0;
				v = 0
			fi
		}
	:: atomic { /* publish.c: cfs_members_claim() */
			!leading && (!has_head || !up[head_leader] || spurious > 0) && (h_any == has_head) &&
			(!h_any || h_serial == head_serial || spurious > 0) ->
			spurious = (has_head && up[head_leader] && spurious > 0 -> spurious - 1 : spurious);
			same = known[me] && h_any && version[me] == h_version;
			v = h_version + 1 - same;
			next = (same -> roster[me] : records)
		};
		atomic { /* nobody reads the list before the head names it */
			whole[KEY(v, me)] = next;
			swap_head(v, v, next);
			if
			:: ok -> leading = 1; version[me] = v; roster[me] = next; known[me] = 1
			:: else -> h_serial = 99
			fi;
			ok = 0; next = 0; v = 0; same = 0
		}
	:: atomic { leading && records != roster[me] -> next = records; v = version[me] + 1 };
		atomic {
			change[KEY(v, me)] = next;
			swap_head(v, h_log, next);
			if
			:: ok -> version[me] = v; roster[me] = next
			:: else -> leading = 0; h_serial = 99
			fi;
			ok = 0; next = 0; v = 0
		}
	:: me != 0 && known[me] && !did_read -> did_read = 1; read_block()
	od
	} unless {
		!up[me]
	}
}

/* Member 2 joins, member 1 is drained, and member 0 dies; the leader sees each some time. */
proctype events()
{
	atomic { up[2] = 1; records = SET(records, 2, 1); run member(2) };
	atomic { records = SET(records, 1, 2) };
	atomic { up[0] = 0; cached[0] = 0 };
	atomic { records = SET(records, 0, 0) }
}

proctype finally()
{
	atomic {
		timeout ->
		assert(has_head && up[head_leader]);
		assert(roster[1] == records && roster[2] == records);
		assert(version[1] == head_version && version[2] == head_version)
	}
}

init {
	atomic {
		up[0] = 1;
		up[1] = 1;
		records = SET(records, 0, 1);
		records = SET(records, 1, 1);
		spurious = SPURIOUS;
		run member(0);
		run member(1);
		run events();
		run finally()
	}
}
