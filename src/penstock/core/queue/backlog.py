"""The backlog: what an input brings about and does not fit in one turn: sends between channels, rules that fire, leases that are given back.

A turn carries out as much as `STEP_COST` allows, in order; the rest waits here, and the runtime works it off, a slice a turn. The open
batch is proposed when the backlog is empty. So all of it is one commit, is visible at once, and answers wait for the gate they were given.
"""
# size: the whole of the pacing; what is paced is in the modules of this folder and in `rules/firing.py`

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.core.clock import Now
from penstock.core.effects import Effect, Send, Work
from penstock.core.queue import dead_letters
from penstock.core.queue.state import QueueState
from penstock.core.steps import Steps

SEND_COST, OPEN_COST = 2, 40
"""What a record costs that goes to another channel, and one that makes the channel."""


def perform(state: QueueState, now: Now, work: Work) -> None:
    """Do a piece of work in this turn, or leave it, or the rest of it, to a later one."""
    if state.is_spent:
        state.backlog.append(work)
    elif isinstance(work, Send):
        state.cost += SEND_COST if state.known(work.channel) else OPEN_COST
        dead_letters.sent(state, now, work, dead_letters.accept(state, now, work))
    elif not work.step(now):
        state.effects.append(work)


def work_off(state: QueueState, now: Now, apply: Callable[[Now], None]) -> None:
    """Work off one slice of the backlog. `apply` carries out other effects. Work that raises is dropped, and no other."""
    state.cost, state.is_slicing = 0, True
    waiting, state.backlog = state.backlog, deque()
    others: list[Effect] = []
    try:
        while waiting and not state.is_spent:
            work = waiting.popleft()
            perform(state, now, work)
            # What is left of it comes first, what it brought about comes last: so consequences keep the order of their causes.
            for effect in state.take_effects():
                if effect is work:
                    waiting.appendleft(work)
                elif isinstance(effect, Send | Steps):
                    waiting.append(effect)
                else:
                    others.append(effect)
    finally:
        state.effects, state.backlog, state.is_slicing = others, waiting, False
        apply(now)
