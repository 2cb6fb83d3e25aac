/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The key of a cache group is replaced while its members go on.
 *
 * Each of three members reads the key every heartbeat (transport/group/heartbeat.c, refresh_key());
 * each joins at any moment. No member is more than one heartbeat ahead of another. The key is replaced
 * (transport/group/record.c, cfs_group_rotate_key()) when all members use the one before; two
 * replacements in a row make requests fail until the next heartbeat, and these go to object storage.
 *
 * Property:
 *	Any two members can prove to each other at any moment that they have a key that the other
 *	accepts.
 *
 * Broken on purpose: -DBROKEN_WAIT uses a new key as soon as it is read.
 */

#define N 3
#define KEY_HEARTBEATS 2 /* heartbeat.c */
#define ROTATIONS 3

byte registry_now = 1, registry_old; /* group.key/NAME; old 0: none */
byte first[N], second[N];	     /* the key that a member proves, and the other one that it accepts */
byte now[N], old[N], heartbeats[N], beats[N];
bit joined[N];
byte rotations;

#define ACCEPTS(a, b) (!joined[a] || !joined[b] || first[a] == first[b] || first[a] == second[b])
#define MAY_BEAT(i, j) (!joined[j] || beats[i] <= beats[j])
#define SETTLED(i) (!joined[i] || (now[i] == registry_now && (heartbeats[i] == KEY_HEARTBEATS || !old[i])))

/* heartbeat.c: cfs_group_use_key() */
inline use_key(me)
{
	if
	:: !old[me] -> first[me] = now[me]; second[me] = 0
#ifndef BROKEN_WAIT
	:: old[me] && heartbeats[me] < KEY_HEARTBEATS -> first[me] = old[me]; second[me] = now[me]
	:: old[me] && heartbeats[me] >= KEY_HEARTBEATS -> first[me] = now[me]; second[me] = old[me]
#else
	:: old[me] -> first[me] = now[me]; second[me] = old[me]
#endif
	fi
}

inline check_all()
{
	assert(ACCEPTS(0, 1) && ACCEPTS(1, 0));
	assert(ACCEPTS(0, 2) && ACCEPTS(2, 0));
	assert(ACCEPTS(1, 2) && ACCEPTS(2, 1))
}

proctype member(byte me)
{
	/* group.c: reads it when it joins */
	atomic {
		now[me] = registry_now;
		old[me] = registry_old;
		beats[me] = (beats[0] > beats[1] -> beats[0] : beats[1]);
		beats[me] = (beats[2] > beats[me] -> beats[2] : beats[me]);
		joined[me] = 1;
		use_key(me);
		check_all()
	};
end:	do
	:: atomic { MAY_BEAT(me, 0) && MAY_BEAT(me, 1) && MAY_BEAT(me, 2) && beats[me] < 12 ->
			beats[me]++;
			if
			:: now[me] != registry_now || old[me] != registry_old ->
				now[me] = registry_now;
				old[me] = registry_old;
				heartbeats[me] = 0;
				use_key(me)
			:: else ->
				if
				:: heartbeats[me] < KEY_HEARTBEATS ->
					heartbeats[me]++;
					if
					:: heartbeats[me] == KEY_HEARTBEATS -> use_key(me)
					:: else
					fi
				:: else
				fi
			fi;
			check_all()
		}
	od
}

proctype rotation()
{
end:	do
	:: atomic { rotations < ROTATIONS && SETTLED(0) && SETTLED(1) && SETTLED(2) ->
			rotations++;
			registry_old = registry_now;
			registry_now++;
		}
	od
}

init {
	atomic {
		run member(0);
		run member(1);
		run member(2);
		run rotation()
	}
}
