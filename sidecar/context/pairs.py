"""Which tool result answers which tool call, and what answers nothing or is answered by nothing."""

from __future__ import annotations

from collections.abc import Sequence

from sidecar.messages.content import RESULT_ROLES, Block, Place
from sidecar.messages.turns import Turn, is_system, parts, starts_exchange


class PairedCall:
    """A tool call and whether a result was found for it."""

    __slots__ = ("answered", "part", "turn")

    def __init__(self, turn: int, part: Block) -> None:
        self.turn, self.part, self.answered = turn, part, False


class Pairs:
    """The tool calls and results of a conversation, by turn.

    A result belongs to the latest call before it with its id; without ids (Gemini, Ollama) to the
    first unanswered call of its name in the latest turn that calls.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.parts: dict[int, list[Block]] = {}
        """The parts of each turn that has any."""
        self.orphans: dict[int, set[tuple[Place, int]]] = {}
        """By turn: the (place, at) of calls without result and results without call."""
        self.pending: set[int] = set()
        """Turns at the end whose calls still wait for a result: no orphans."""
        self._leader: dict[int, int] = {}
        self._by_id: dict[str, list[PairedCall]] = {}
        self._latest: list[PairedCall] = []
        calls: list[PairedCall] = []
        for index, turn in enumerate(turns):
            found = parts(turn)
            if found:
                self.parts[index] = found
                calls += self._read(index, found)
        self._judge(calls, _open_from(turns))

    def group(self, turn: int) -> int:
        """The first turn of those that live and die with this one."""
        leader = self._leader.get(turn, turn)
        while leader != turn:
            turn, leader = leader, self._leader.get(leader, leader)
        return turn

    def works(self, turn: int) -> bool:
        """Whether the turn calls a tool or brings a tool's result, orphans apart."""
        return len(self.parts.get(turn, ())) > len(self.orphans.get(turn, ()))

    def _read(self, index: int, found: list[Block]) -> list[PairedCall]:
        made = []
        for part in found:
            if part.kind == "call":
                call = PairedCall(index, part)
                made.append(call)
                if part.id:
                    self._by_id.setdefault(part.id, []).append(call)
            else:
                self._answer(index, part, made)
        if made:
            self._latest = made
        return made

    def _answer(self, index: int, part: Block, made: list[PairedCall]) -> None:
        call = self._called(part, [*made, *self._latest])
        if call is None:
            self.orphans.setdefault(index, set()).add((part.place, part.at))
            return
        call.answered = True
        first, other = sorted((self.group(call.turn), self.group(index)))
        self._leader[other] = first

    def _called(self, part: Block, latest: list[PairedCall]) -> PairedCall | None:
        if part.id and part.id in self._by_id:
            same_id = self._by_id[part.id]
            return next((call for call in reversed(same_id) if not call.answered), same_id[-1])
        for call in latest:
            loose = not part.id or not call.part.id
            named = not part.name or not call.part.name or part.name == call.part.name
            if loose and named and not call.answered:
                return call
        return None

    def _judge(self, calls: list[PairedCall], open_from: int) -> None:
        for call in calls:
            if call.answered:
                continue
            if call.turn >= open_from:
                self.pending.add(call.turn)
            else:
                spot = (call.part.place, call.part.at)
                self.orphans.setdefault(call.turn, set()).add(spot)


def _open_from(turns: Sequence[Turn]) -> int:
    """The turn from which on nothing but tool results follows: its calls may still be answered."""
    for index in range(len(turns) - 1, -1, -1):
        turn = turns[index]
        if is_system(turn):
            continue
        if starts_exchange(turn):
            return index + 1
        if turn.role in ("user", *RESULT_ROLES):
            continue
        return index
    return 0
