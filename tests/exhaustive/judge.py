# SPDX-License-Identifier: Apache-2.0
"""Puts what was seen beside what the model allows. Each function returns what is wrong: "" is right."""

import errno
from functools import lru_cache

import model

EIO = -errno.EIO


@lru_cache(maxsize=20000)
def _carried_out(states, request, answer):
    return frozenset(model.carried_out(states, request, answer))


def name_of(answer):
    return errno.errorcode.get(-answer, str(answer)) if answer < 0 else str(answer)


def follow(states, requests, answers, first, last):
    """Requests first..last - 1 with their answers: (states, what is wrong)."""
    for i in range(first, last):
        states = _carried_out(frozenset(states), requests[i], answers[i])
        if not states:
            return states, "request %d, %s: the answer %s is not allowed" % (i, requests[i], name_of(answers[i]))
    return states, ""


def shown(tree):
    out = []
    for path, (kind, mode, names, length, content, xattrs) in sorted(tree.items()):
        runs = []
        for c in content if kind != "d" else ():
            c = "??" if c is None else "--" if c == -1 else chr(c) if 32 < c < 127 else "%02x" % c
            if runs and runs[-1][0] == c:
                runs[-1][1] += 1
            else:
                runs.append([c, 1])
        text = " ".join("%s*%d" % tuple(r) for r in runs)
        out.append("  %-4s %s %o %s %d [%s] %s" % (path, kind, mode, names, length, text, dict(xattrs)))
    return "\n".join(out)


def compare(states, seen, power=False):
    allowed = []
    for s in states:
        want = model.visible(s, power)
        if model.agrees(seen, want):
            return ""
        if want not in allowed:
            allowed.append(want)
    text = "no state allows what is there:\n" + shown(seen)
    return text + "".join("\nallowed, %d of %d:\n%s" % (i + 1, len(allowed), shown(w)) for i, w in enumerate(allowed[:3]))


def ended(answer):
    if answer.wrong:
        return "; ".join(answer.wrong)
    if answer.closed is None:
        return "no mount could look at it"
    return "the mount that looked at it ended with %s" % name_of(answer.closed) if answer.closed else ""


def followed_to_death(start, requests, answers, died):
    """The process died after `died` answers; the work of a close may have been under way."""
    states, wrong = follow({start}, requests, answers, 0, died)
    if not wrong and model.committing and 0 < died < len(requests) and model.is_close(requests[died - 1]):
        before, _ = follow({start}, requests, answers, 0, died - 1)
        states = {*states, *model.closed_early(before, requests[died - 1])}
    return states, wrong


def interrupted(start, requests, fate, at, answer):
    """requests: with the unmount as the last one."""
    wrong = ended(answer)
    if wrong:
        return wrong
    n, states, died = len(requests), {start}, answer.died
    if fate in ("worker", "both") and died is not None:
        states, wrong = followed_to_death(start, requests, answer.answers, min(died, n))
        if fate == "both" and not wrong:
            states = model.cut_short(states, requests[died]) if died < n else model.restarted(states)
        elif not wrong:
            if died == n - 1:
                states = model.cut_short(states, requests[died])
            states, wrong = follow(model.restarted(states), requests, answer.answers, died, n)
    elif fate == "fail" and answer.met:
        hit = min([i for i, calls in answer.marks.items() if calls >= at])
        states, wrong = follow(states, requests, answer.answers, 0, hit)
        if not wrong:
            states = model.failed(states, requests[hit], answer.answers[hit])
            if not states:
                wrong = "request %d, %s, in which a call failed: the answer %s is not allowed" % (
                    hit, requests[hit], name_of(answer.answers[hit]))
        if not wrong:
            states, wrong = follow(states, requests, answer.answers, hit + 1, n)
    else:
        states, wrong = follow(states, requests, answer.answers, 0, n)
    return wrong or compare(states, answer.tree)


def history(start, requests, answers):
    """All states of an undisturbed run in their order, and for each request the number of the last
    one, and whether what came before is durable from then on."""
    state, states, until, durable = start, [start], [], []
    for request, answer in zip(requests, answers):
        steps, right = model.steps_of(state, request)
        assert answer == right, "%s: %s, the model says %s" % (request, name_of(answer), name_of(right))
        states += steps
        state = states[-1]
        until.append(len(states) - 1)
        durable.append(request.startswith("fsync ") and answer == 0)
    return states, until, durable


def after_loss(past, answered, answer, power=True):
    """answered: number of requests answered before the power went, or the machine with all but the bucket."""
    wrong = ended(answer)
    if wrong:
        return wrong
    states, until, durable = past
    first = max([0] + [until[i] for i in range(answered) if durable[i]])
    last = until[answered] if answered < len(until) else len(states) - 1
    return compare(states[first : last + 1], answer.tree, power)
