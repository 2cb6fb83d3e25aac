/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The FUSE connection is taken over by another process, and the kernel sends requests again.
 *
 * A supervisor starts workers, an upgrade gives the connection to the worker of a successor or
 * takes it back, and workers are killed at any moment. The kernel has a creation, an open and, when
 * the open was answered, a release under way. The caller of the open may be killed while no process
 * has the request. The handoff state outlives every process.
 *
 * Properties:
 *	Every request is answered: in the end none waits.
 *	A creation takes effect once, and is not told that its own name exists.
 *	In the end a handle is open only if the kernel has it and has not released it.
 *
 * Broken on purpose: -DBROKEN_RECORD ends the record of a request before its answer,
 * -DBROKEN_TAKE_BACK starts a worker while that of the successor may still take requests,
 * -DBROKEN_UNDO has the kernel send requests again before the handles that they have made are marked
 * as released,
 * -DBROKEN_STAY lets a worker that could not leave serve again without a resend.
 */

#ifndef KILLS
#define KILLS 1
#endif
#define WORKERS (KILLS + 3) /* the first, one per kill, two of an upgrade */

#define CREATE	 0
#define OPEN	 1
#define RELEASE	 2
#define REQUESTS 3

mtype = { NONE, QUEUED, TAKEN, ANSWERED, OK, EXISTS, FAILED };

/* The kernel: fs/fuse/dev.c */
mtype state[REQUESTS], answer[REQUESTS];
bit resent[REQUESTS];

/* include/cachefs/handoff.h: the record of a request, and one of a handle; their keys are stored last */
bit noted[REQUESTS];	/* there is a record */
byte noted_ino;		/* of the creation */
byte noted_fh;		/* of the open */
byte handle[3];		/* generation of the open handle in this place; 0: free */
bit released[3];

/* The metadata. */
byte name;		/* the inode under the name of the creation; 0: none */
byte effects, last_ino;

/* Processes. */
bit started[WORKERS + 1], dead[WORKERS + 1], ready[WORKERS + 1], go[WORKERS + 1], doomed[WORKERS + 1];
bit leave, refused, upgraded;
byte kills, last_worker;

/* fuse_dev_do_read(): any request that waits. */
inline take(r)
{
	if
	:: state[CREATE] == QUEUED -> r = CREATE
	:: state[OPEN] == QUEUED -> r = OPEN
	:: state[RELEASE] == QUEUED -> r = RELEASE
	fi;
	state[r] = TAKEN
}

#define WAITING (state[CREATE] == QUEUED || state[OPEN] == QUEUED || state[RELEASE] == QUEUED)

/* fuse_dev_do_write(): the first answer counts, and only to a request that is taken. */
inline reply(r, what)
{
	if
	:: state[r] == TAKEN ->
		state[r] = ANSWERED;
		answer[r] = what;
		if
		:: r == OPEN && what == OK -> state[RELEASE] = QUEUED
		:: else
		fi
	:: else
	fi
}

/* FUSE_NOTIFY_RESEND */
inline resend()
{
	atomic {
		for (i : 0 .. REQUESTS - 1) {
			if
			:: state[i] == TAKEN -> state[i] = QUEUED; resent[i] = 1
			:: else
			fi
		}
		i = 0
	}
}

/* src/vfs/restore.c: cfs_vfs_close_released() */
inline close_released()
{
	atomic {
		for (i : 1 .. 2) {
			if
			:: released[i] -> handle[i] = 0; released[i] = 0
			:: else
			fi
		}
		i = 0
	}
}

/* src/fuse/standby.c: undo_opens() */
inline undo_opens()
{
	atomic {
		if
		:: state[OPEN] == TAKEN && noted[OPEN] && noted_fh && handle[noted_fh] ->
			released[noted_fh] = 1
		:: else
		fi
	}
}

/* src/fuse/standby.c: fail() */
inline fail(r)
{
	atomic { mine[r] = 0; reply(r, FAILED) }
}

/* src/fuse/standby.c: run() */
inline standby()
{
#ifdef BROKEN_UNDO
	resend();
#endif
	undo_opens();
#ifndef BROKEN_UNDO
	resend();
#endif
	do
	:: atomic { WAITING -> take(r);
			if
			:: r == RELEASE -> /* noted, and answered at once */
				released[noted_fh_of_kernel] = (handle[noted_fh_of_kernel] -> 1 : 0);
				reply(r, OK)
			:: else -> mine[r] = 1
			fi
		}
	:: mine[CREATE] && late -> late = 0; fail(CREATE)
	:: mine[OPEN] && late -> late = 0; fail(OPEN)
	:: true -> break
	od;
	atomic { mine[CREATE] = 0; mine[OPEN] = 0; r = 0 };
	close_released()
}

byte noted_fh_of_kernel; /* the handle in the answer to the open */
bit late;		 /* one deadline passes while no process serves */

/* src/fuse/dispatch.c, src/vfs/names.c, file.c, replay.c */
inline execute(r)
{
	/* cfs_handoff_begin_request() */
	atomic {
		replay = resent[r] && noted[r];
		if
		:: !replay && r == CREATE -> noted_ino = 0
		:: !replay && r == OPEN -> noted_fh = 0
		:: else
		fi;
		noted[r] = 1
	};
	if
	:: r == CREATE ->
		if
		:: atomic { replay && noted_ino && name == noted_ino -> what = OK }
		:: else ->
			/* meta/api/names.c: the number is noted before the engine is asked */
			atomic { last_ino++; noted_ino = last_ino; ino = last_ino };
			atomic {
				if
				:: name -> what = EXISTS
				:: else -> name = ino; effects++; what = OK
				fi;
				ino = 0
			}
		fi
	:: r == OPEN ->
		atomic {
			ino = (handle[1] -> 2 : 1);
			assert(!handle[ino]);
			noted_fh = ino
		};
		atomic { handle[ino] = 1 };
		what = OK
	:: r == RELEASE ->
		atomic { handle[noted_fh_of_kernel] = 0; what = OK }
	fi;
#ifdef BROKEN_RECORD
	atomic { noted[r] = 0; noted_fh = (r == OPEN -> 0 : noted_fh) };
#endif
	atomic {
		if
		:: r == OPEN && state[r] == TAKEN -> noted_fh_of_kernel = ino
		:: else
		fi;
		reply(r, what);
		ino = 0
	};
	atomic { noted[r] = 0; noted_fh = (r == OPEN -> 0 : noted_fh); replay = 0; what = NONE; r = 0 }
}

/* src/cmd/mountd/serve.c, resume.c */
proctype worker(byte id; bit resumes)
{
	byte i, r, ino;
	bit replay, mine[2];
	mtype what = NONE;

	{
		if
		:: resumes ->
			standby();
			ready[id] = 1;
			go[id];
			resend()
		:: else
		fi;
end:		do
		:: atomic { WAITING && !(leave && !resumes) -> take(r) };
			execute(r)
		:: leave && !resumes ->
			/* src/fuse/loop.c: a request that was received as the loop ended stays unanswered */
			if
			:: atomic { WAITING -> take(r); r = 0 }
			:: true
			fi;
			if
			:: true -> break
			:: true -> /* cannot store everything: serves again (worker_stay()) */
				atomic { leave = 0; refused = 1 };
#ifndef BROKEN_STAY
				resend()
#endif
			fi
		od;
		atomic { dead[id] = 1 } /* it has left, in order */
	} unless {
		dead[id]
	}
}

inline start(resumes)
{
	atomic {
		last_worker++;
		assert(last_worker <= WORKERS);
		started[last_worker] = 1;
		run worker(last_worker, resumes)
	}
}

/* src/cmd/mountd/supervise: supervisor.c, successor.c, takeover.c */
proctype supervisor()
{
	byte own;

	start(0);
	own = last_worker;
end:	do
	:: dead[own] ->
		start(1);
		own = last_worker;
		go[own] = 1
	:: !upgraded && own == 1 ->
		upgraded = 1;
		leave = 1;
		if
		:: refused -> refused = 0 /* FAILED: the mount is not handed over */
		:: dead[own] -> /* it has left, or has died, or was killed as it did not leave */
			start(1);
			own = last_worker;
			if
			:: ready[own] -> go[own] = 1 /* STARTED, BYE, GO */
			:: true -> /* take back: it was not ready in time, or has ended */
				doomed[own] = 1;
#ifndef BROKEN_TAKE_BACK
				dead[own];
#endif
				start(1);
				own = last_worker;
				go[own] = 1
			fi
		fi
	od
}

/* Any worker may die at any moment; the kill of one that is doomed arrives some time. */
#define MAY_DIE(i) started[i] && !dead[i] && kills < KILLS
#define IS_DOOMED(i) doomed[i] && !dead[i]
proctype killer()
{
end:	do
	:: atomic { MAY_DIE(1) -> dead[1] = 1; kills++ }
	:: atomic { MAY_DIE(2) -> dead[2] = 1; kills++ }
	:: atomic { MAY_DIE(3) -> dead[3] = 1; kills++ }
	:: atomic { MAY_DIE(4) -> dead[4] = 1; kills++ }
	:: kills < KILLS -> kills++ /* it does not happen: a death has everything resent */
	:: atomic { IS_DOOMED(2) -> dead[2] = 1 }
	:: atomic { IS_DOOMED(3) -> dead[3] = 1 }
	:: atomic { IS_DOOMED(4) -> dead[4] = 1 }
	od
}

/* request_wait_answer(): a fatal signal ends the wait for a request that no process has. */
proctype caller()
{
end:	if
	:: atomic { state[OPEN] == QUEUED -> state[OPEN] = ANSWERED; answer[OPEN] = FAILED }
	:: true
	fi
}

proctype finally()
{
	atomic {
		timeout ->
		assert(state[CREATE] == ANSWERED && state[OPEN] == ANSWERED);
		assert(state[RELEASE] == ANSWERED || state[RELEASE] == NONE);
		assert(answer[CREATE] != EXISTS && effects <= 1);
		assert(answer[CREATE] != OK || (name && effects == 1));
		assert(answer[OPEN] != OK || state[RELEASE] == ANSWERED);
		assert(!handle[1] && !handle[2])
	}
}

init {
	atomic {
		state[CREATE] = QUEUED;
		state[OPEN] = QUEUED;
		state[RELEASE] = NONE;
		answer[CREATE] = NONE;
		answer[OPEN] = NONE;
		answer[RELEASE] = NONE;
		late = 1;
		run supervisor();
		run killer();
		run caller();
		run finally()
	}
}
