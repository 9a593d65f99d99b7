"""Program order: the requests of programs that have begun go first, one program after the other.

A program calls the model many times for one result, and has it when the last call is done. Among
the programs of which something was admitted, the oldest goes first, so that its branches run
together; then come the requests of programs that have not begun, and those of none. Within each
program, and among all that have not begun, the policy's order holds. Nothing here bounds a wait;
the queue's ageing does, which reads another order.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass

from .kept_order import Key
from .queue_order import QueueOrder, rank_of
from .request import Request

MAX_KNOWN_PROGRAMS = 16_384  # those not heard of for longest are forgotten
IDLE_SECONDS = 600.0  # between two arrivals; who pauses for longer begins anew


@dataclass(slots=True, eq=False)
class _Program:
    """What is known of one program. turn is its place: its first arrival."""

    turn: tuple[float, int]
    last_arrival: float
    has_begun: bool = False

    def __lt__(self, other: _Program) -> bool:
        return self.turn < other.turn


class ProgramOrder:
    """A QueueOrder around the orders that make_policy gives."""

    def __init__(self, make_policy: Callable[[], QueueOrder]) -> None:
        self._make_policy = make_policy
        self._programs: OrderedDict[tuple[str | None, str], _Program] = OrderedDict()
        self._tiers: dict[Key, _Tier] = {}

    def add(self, request: Request) -> None:
        """Take request in."""
        rank = rank_of(request)
        if rank not in self._tiers:
            self._tiers[rank] = _Tier(self._make_policy)
        self._tiers[rank].add(request, self._program_of(request))

    def remove(self, request: Request) -> None:
        """Let request go."""
        rank = rank_of(request)
        self._tiers[rank].remove(request)
        if self._tiers[rank].is_empty:
            del self._tiers[rank]

    def changed(self, request: Request) -> None:
        """Tell the policy that request may have another place."""
        self._tiers[rank_of(request)].changed(request)

    def admitted(self, request: Request) -> None:
        """request has been admitted: its program has begun, if it has one."""
        program = self._program_of(request)
        if program is not None and not program.has_begun:
            program.has_begun = True
            for tier in self._tiers.values():
                tier.begin(program)

    def walk(self) -> Generator[Request, None, None]:
        """Yield requests from the first on; those yielded may leave meanwhile."""
        for rank in sorted(self._tiers):
            tier = self._tiers.get(rank)  # those yielded may have been its last
            if tier is not None:
                yield from tier.walk()

    def _program_of(self, request: Request) -> _Program | None:
        message = request.message
        if message.program_id is None:
            return None
        key = (message.tenant, message.program_id)
        program = self._programs.get(key)
        arrival = message.arrival_seconds
        if program is None or arrival - program.last_arrival > IDLE_SECONDS:
            program = self._programs[key] = _Program((arrival, request.number), arrival)
            if len(self._programs) > MAX_KNOWN_PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(key)
        program.last_arrival = max(program.last_arrival, arrival)
        return program


class _Tier:
    """The requests of one rank."""

    def __init__(self, make_policy: Callable[[], QueueOrder]) -> None:
        self._make_policy = make_policy
        self._others = make_policy()  # of no program, or of one that has not begun
        self._begun: dict[_Program, QueueOrder] = {}
        self._turns: list[_Program] = []  # those of _begun, the oldest first
        self._places: dict[Request, _Program | None] = {}
        self._waiting: dict[_Program, dict[Request, None]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._places

    def add(self, request: Request, program: _Program | None) -> None:
        self._places[request] = program
        if program is not None:
            self._waiting.setdefault(program, {})[request] = None
            if program.has_begun and program not in self._begun:
                self._begun[program] = self._make_policy()
                insort(self._turns, program)
        self._order_of(program).add(request)

    def remove(self, request: Request) -> None:
        program = self._places.pop(request)
        self._order_of(program).remove(request)
        if program is None:
            return
        del self._waiting[program][request]
        if not self._waiting[program]:
            del self._waiting[program]
            if program in self._begun:
                del self._begun[program]
                self._turns.remove(program)

    def changed(self, request: Request) -> None:
        self._order_of(self._places[request]).changed(request)

    def begin(self, program: _Program) -> None:
        """Move what waits of program to its own turn."""
        waiting = list(self._waiting.get(program, ()))
        for request in waiting:
            self._others.remove(request)
        if waiting:
            order = self._begun[program] = self._make_policy()
            insort(self._turns, program)
            for request in waiting:
                order.add(request)

    def walk(self) -> Generator[Request, None, None]:
        others = self._others.walk()
        passed: set[_Program] = set()
        try:
            while True:
                # Looked for anew: what was yielded may have begun a program, or ended its turn.
                program = next((one for one in self._turns if one not in passed), None)
                if program is not None:
                    passed.add(program)
                    yield from self._begun[program].walk()
                    continue
                found = next(others, None)
                if found is None:
                    return
                if found in self._places and self._order_of(self._places[found]) is self._others:
                    yield found  # else it was yielded in its program's turn
        finally:
            others.close()

    def _order_of(self, program: _Program | None) -> QueueOrder:
        return self._others if program is None else self._begun.get(program, self._others)
