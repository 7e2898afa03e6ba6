"""Chooses what to remove from a conversation so that it fits, and summarizes what was removed.

System turns are kept, and so are the last user turns and the replies to them. A tool call and its
results are always removed together. Tool outputs are removed before dialogue, starting with the
oldest. Anything that a vendor would reject is always removed: results without a call, calls without
a result, and empty turns.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from sidecar import typed
from sidecar.conversations.context_protocol import FitParams, FitResult, RemovalReason, Removed
from sidecar.conversations.conversation import Conversation, Edit, Plan
from sidecar.conversations.sections import no_text
from sidecar.conversations.turn_counts import Counter, Sums, factor_of, sums_of
from sidecar.counting.calibration import ConversationCalibration
from sidecar.counting.count_result import Measure
from sidecar.errors import BadParamsError
from sidecar.messages.messages import (
    NO_OUTPUT,
    RESULT_ROLES,
    Block,
    Place,
    Turn,
    has_own_text,
    is_assistant,
    is_empty,
    is_system,
    join_texts,
    own_text,
    parts,
    starts_exchange,
    with_outputs,
    without,
)
from sidecar.models.window import Window

HEAD = "[Summary of earlier turns]"
MAX_LINE = 160
"""Maximum length of a summary line, in characters."""
MAX_ARGUMENT = 60
"""Maximum length of a tool call's main argument, in characters."""
SCANNED = 4000
"""Number of characters to search at each end of the text."""
MAX_DECISIONS_PER_TURN = 3
MAX_CHARACTERS_PER_TOKEN = 8
"""Assumed maximum number of characters per token, used to skip text that cannot fit."""

_DECIDED = re.compile(
    r"\b(decid\w+|decision|chose|chosen|agreed|conclu\w+|instead of|will|I'll|we'll|must|should|"
    r"do not|don't|fixed|done|root cause|because|todo|next step)\b",
    re.IGNORECASE,
)
_FAILED = re.compile(
    r"error|exception|traceback|\bfail|fatal|denied|not found|cannot", re.IGNORECASE
)
_FINE = re.compile(
    r"\b(?:0|no|zero|without)\s+(?:\w+\s+)?(?:errors?|exceptions?|fail\w*)", re.IGNORECASE
)
_RESULT = re.compile(
    r"\b(pass|found|match|wrote|written|creat|updat|saved|success|complet|done|ok\b|exit|total)",
    re.IGNORECASE,
)
"""Matches a line that states a tool call's outcome."""
_TOOL_LINE = re.compile(r"- [^:]{1,120}: (?:ok\b|failed\b|no output$)")
_MAIN = ("path", "file_path", "filePath", "file", "filename", "command", "cmd", "query", "pattern")
"""Names of the arguments that best describe a tool call, most informative first."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


class Line(NamedTuple):
    rank: int
    """The line's rank. Lines with the lowest rank are kept first."""
    text: str


TOOL, DECISION, REQUEST = 0, 1, 2


def summarize_turns(turns: Sequence[Turn], counter: Counter, max_tokens: int) -> str | None:
    """Summarize turns in at most `max_tokens`, or return None if no line fits.

    A summary consists of whole lines, latest first. If there is not enough room, requests are
    omitted first, then decisions, then tool results.
    """
    lines = _latest_lines(turns, MAX_CHARACTERS_PER_TOKEN * max_tokens)
    left = max_tokens - counter.text(HEAD).tokens
    kept: list[int] = []
    for index in sorted(range(len(lines)), key=lambda index: (lines[index].rank, index)):
        tokens = counter.text(f"\n{lines[index].text}").tokens
        if tokens <= left:
            left -= tokens
            kept.append(index)
    while kept:
        text = "\n".join([HEAD, *(lines[index].text for index in sorted(kept))])
        if counter.text(text).tokens <= max_tokens:
            return text
        kept.pop()  # the whole text can have more tokens than its lines have in total
    return None


def _latest_lines(turns: Sequence[Turn], characters: int) -> list[Line]:
    found: list[Line] = []
    for turn, results in reversed(list(_pair_results(turns))):
        if characters <= 0:
            break
        lines = list(_lines_of_turn(turn, results))
        found += lines
        characters -= sum(len(line.text) for line in lines if line.rank != REQUEST)
    return found


def _pair_results(turns: Sequence[Turn]) -> Iterator[tuple[Turn, list[tuple[Block, str]]]]:
    names: dict[str, str] = {}
    for turn in turns:
        found = parts(turn)
        for part in found:
            if part.kind == "call":
                names[part.id or part.name] = names[part.name] = _describe_call(part)
        results = [part for part in found if part.kind == "result"]
        tool_names = [names.get(part.id or part.name) or part.name or "tool" for part in results]
        yield turn, list(zip(results, tool_names, strict=True))


def _describe_call(call: Block) -> str:
    try:
        given = typed.decode(call.arguments or "{}", dict[str, Any])
    except msgspec.DecodeError:
        return call.name
    texts = {key: value for key, value in given.items() if isinstance(value, str) and value.strip()}
    main = next((texts[key] for key in _MAIN if key in texts), next(iter(texts.values()), ""))
    return f"{call.name} {_shorten(main, MAX_ARGUMENT)}".rstrip()


def _lines_of_turn(turn: Turn, results: list[tuple[Block, str]]) -> Iterator[Line]:
    text = own_text(turn)
    if text.startswith(HEAD):
        yield from (_line_of_summary(line) for line in text.splitlines()[1:])
        return
    if is_assistant(turn):
        yield from (Line(DECISION, f"- {line}") for line in reversed(_find_decisions(text)))
    elif starts_exchange(turn):
        yield Line(REQUEST, f"- asked: {_shorten(text)}")
    for part, name in reversed(results):
        yield Line(TOOL, f"- {name}: {_describe_outcome(join_texts(part.inner), part.failed)}")


def _line_of_summary(line: str) -> Line:
    if line.startswith("- asked: "):
        return Line(REQUEST, line)
    return Line(TOOL if _TOOL_LINE.match(line) else DECISION, line)


def _describe_outcome(text: str, failed: bool) -> str:
    lines = [line.strip() for line in (text[:SCANNED] + "\n" + text[-SCANNED:]).splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        return "failed" if failed else "no output"
    telling = next((line for line in lines if _FAILED.search(_FINE.sub("", line))), None)
    if failed or telling:
        return f"failed: {_shorten(telling or lines[-1])}"
    length = text.rstrip("\n").count("\n") + 1
    if length == 1:
        return f"ok: {_shorten(lines[-1])}"
    last = f": {_shorten(lines[-1])}" if _RESULT.search(lines[-1]) else ""
    return f"ok, {length:,} lines{last}"


def _find_decisions(text: str) -> list[str]:
    sentences = [one.strip() for one in _SENTENCE.split(text[-SCANNED:])]
    decided = [_shorten(one) for one in sentences if _DECIDED.search(one)]
    return decided[-MAX_DECISIONS_PER_TURN:]


def _shorten(text: str, most: int = MAX_LINE) -> str:
    line = " ".join(text[: 4 * most].split())
    if len(line) <= most:
        return line
    return (line[:most].rpartition(" ")[0] or line[: most - 2]) + " …"


logger = logging.getLogger(__name__)

SUMMARY_CAP = 1000
"""A summary uses at most this many tokens, and at most an eighth of the target size."""
SUMMARY_MIN = 24
"""A summary is added only if there is room for at least this many tokens."""
PLANS_KEPT = 4


def fit(
    conversation: Conversation,
    params: FitParams,
    window: Window,
    *,
    keep_turns: int = 4,
    calibration: ConversationCalibration | None = None,
) -> FitResult:
    """Handle `context/fit`: make a plan, apply a plan, or both.

    Args:
        conversation: The conversation.
        params: The request's params.
        window: The context window. The default target size is its usable part.
        keep_turns: The number of user turns to keep, used if the params do not set one.
        calibration: The conversation's calibration.
    """
    if params.plan_id is not None:
        return apply_plan(conversation, params.plan_id)
    plan = make_plan(
        conversation,
        window.usable if params.max_tokens is None else params.max_tokens,
        keep_turns=keep_turns if params.keep_turns is None else params.keep_turns,
        summarize=params.strategy == "summarize",
        calibration=calibration,
    )
    return apply_plan(conversation, plan.plan_id) if params.apply else plan


def make_plan(
    conversation: Conversation,
    max_tokens: int,
    *,
    keep_turns: int = 4,
    summarize: bool = False,
    calibration: ConversationCalibration | None = None,
) -> FitResult:
    """Make and store a plan that shrinks the conversation to at most `max_tokens`.

    Raises:
        RequestError: The conversation was restored without its text (`noText`).
    """
    if conversation.has_turns_without_text:
        raise no_text()
    conversation.plans_made += 1
    maker = _Planner(conversation, max_tokens, keep_turns, factor_of(calibration))
    result, edit = maker.plan(f"{conversation.id}/{conversation.plans_made}", summarize)
    _store_plan(conversation, Plan(result, edit, conversation.layout))
    return result


def _store_plan(conversation: Conversation, plan: Plan) -> None:
    plans = {
        plan_id: known
        for plan_id, known in conversation.plans.items()
        if known is conversation.applied_plan or known.layout == plan.layout
    }
    plans[plan.result.plan_id] = plan
    while len(plans) > PLANS_KEPT:
        del plans[next(iter(plans))]
    conversation.plans = plans


def apply_plan(conversation: Conversation, plan_id: str) -> FitResult:
    """Apply a plan. Applying the most recently applied plan again changes nothing.

    Raises:
        BadParamsError: The plan is unknown, or the conversation has changed since it was made.
    """
    plan = conversation.plans.get(plan_id)
    if plan is not None and plan is conversation.applied_plan:
        return plan.result
    if plan is None or plan.layout != conversation.layout:
        message = "the session has changed since this plan was made; request a new one"
        raise BadParamsError(message)
    if plan.edit.changes:
        conversation.edit(plan.edit)
        conversation.touch()
    conversation.applied_plan = plan
    logger.debug(
        "pruned: %d turns, %d -> %d tokens",
        len(plan.result.removed),
        plan.result.tokens_before,
        plan.result.tokens_after,
    )
    return plan.result


class _Planner:
    def __init__(
        self, conversation: Conversation, max_tokens: int, keep_turns: int, factor: float
    ) -> None:
        self._conversation, self._counter = conversation, conversation.counter
        self._turns = conversation.turns
        self._max, self._keep_turns, self._factor = max_tokens, keep_turns, factor
        self._counts = conversation.model_counts().turns
        self._sums = [sums_of(measure) for measure in self._counts.measures]
        self._total = conversation.total()

    def plan(self, plan_id: str, summarize: bool) -> tuple[FitResult, Edit]:
        pairs = ToolPairs(self._turns)
        cleanup = clean(self._turns, pairs, self._counter)
        reserved = min(SUMMARY_CAP, self._max // 8) if summarize else 0
        removal = self._choose(pairs, cleanup, reserved)
        summary = self._summarize_removed(removal) if summarize else None
        edit = self._edit(cleanup, removal, summary)
        after = self._occupancy_after(edit)
        return (
            FitResult(
                messages=self._conversation.with_system(edit.turns),
                removed=self._list_removed(cleanup, removal),
                summary=None if summary is None else str(summary.content),
                tokens_before=self._calibrated_tokens(self._total),
                tokens_after=after,
                cached_tokens_lost=edit.cached_lost,
                fits=after <= self._max,
                plan_id=plan_id,
                reason=None if after <= self._max else self._explain_misfit(after),
            ),
            edit,
        )

    def _choose(self, pairs: ToolPairs, cleanup: Cleanup, reserved: int) -> Removal:
        sums, total = list(self._sums), self._total
        for index, measure in cleanup.measures.items():
            sums[index] = sums_of(measure)
            total = total.minus(self._sums[index]).plus(sums[index])
        for index in cleanup.gone:
            total = total.minus(sums[index])
        if self._is_small_enough(total, self._max):
            return Removal(dict(cleanup.gone), total)
        candidates = units(self._turns, pairs, self._keep_turns)
        target = self._max - reserved
        made = choose(
            candidates, cleanup.gone, total, sums, lambda left: self._is_small_enough(left, target)
        )
        left = [turn for index, turn in enumerate(self._turns) if index not in made.gone]
        if self._keep_turns > 0 or not all(map(is_system, left)):
            return made
        self._keep_turns = 1  # A conversation needs at least one turn.
        return self._choose(pairs, cleanup, reserved)

    def _summarize_removed(self, removal: Removal) -> Turn | None:
        """Return a turn that summarizes the removed turns, or None if there is not enough room."""
        gone = [index for index in sorted(removal.gone) if removal.gone[index] in _PRUNED]
        weight = sum(self._counts[index].tokens for index in gone)
        left = min(SUMMARY_CAP, self._max // 8, self._max - self._calibrated_tokens(removal.total))
        envelope = self._counter.message(Turn(role="user", content="")).tokens
        cap = min(int(left / max(1.0, self._factor)), weight // 2) - envelope
        if cap < SUMMARY_MIN:
            return None
        try:
            text = summarize_turns([self._turns[index] for index in gone], self._counter, cap)
        except Exception as error:  # A failed summary must not make the plan fail.
            logger.warning("no summary: %s", type(error).__name__)
            return None
        turn = Turn(role="user", content=text)
        return turn if text and self._counter.message(turn).tokens <= cap + envelope else None

    def _edit(self, cleanup: Cleanup, removal: Removal, summary: Turn | None) -> Edit:
        turns: list[Turn] = []
        measures: list[Measure] = []
        origins: list[int] = []
        for index, turn in enumerate(self._turns):
            if summary is not None and removal.gone.get(index) in _PRUNED:
                turns.append(summary)
                measures.append(self._counter.message(summary))
                origins.append(index)
                summary = None
            if index not in removal.gone:
                turns.append(cleanup.turns.get(index, turn))
                measures.append(cleanup.measures.get(index) or self._counts[index])
                origins.append(index)
        changed = min((*removal.gone, *cleanup.turns), default=None)
        return Edit(
            turns, measures, origins, changed is not None, self._count_cached_tokens_lost(changed)
        )

    def _count_cached_tokens_lost(self, changed: int | None) -> int:
        anchor = self._conversation.model_counts().anchor
        if anchor is None or changed is None:
            return 0
        before = self._conversation.fixed().plus(self._counts.between(0, changed))
        return max(0, anchor.cached - before.tokens(self._factor))

    def _list_removed(self, cleanup: Cleanup, removal: Removal) -> list[Removed]:
        found = {index: (self._sums[index], reason) for index, reason in removal.gone.items()}
        for index, reason in cleanup.stripped.items():
            if index not in found:
                kept = sums_of(cleanup.measures[index])
                found[index] = (self._sums[index].minus(kept), reason)
        return [
            Removed(
                index=index,
                role=self._turns[index].role,
                tokens=self._calibrated_tokens(sums),
                reason=reason,
            )
            for index, (sums, reason) in sorted(found.items())
        ]

    def _occupancy_after(self, edit: Edit) -> int:
        if self._conversation.would_be_empty_with(edit.turns):
            return 0
        total = self._total
        for sums in self._sums:
            total = total.minus(sums)
        for measure in edit.measures:
            total = total.plus(sums_of(measure))
        return self._calibrated_tokens(total)

    def _calibrated_tokens(self, sums: Sums) -> int:
        return max(0, sums.tokens(self._factor))

    def _is_small_enough(self, sums: Sums, max_tokens: int) -> bool:
        return self._calibrated_tokens(sums) <= max_tokens

    def _explain_misfit(self, after: int) -> str:
        start = tail_start(self._turns, self._keep_turns)
        tail = self._calibrated_tokens(self._counts.between(start))
        return (
            f"{after:,} tokens remain, but the limit is {self._max:,}: the last {self._keep_turns} "
            f"user turns with their replies take {tail:,} tokens, and the system prompt, tools, "
            "sections and pending tool calls are always kept; keep fewer turns or raise the limit"
        )


_PRUNED = ("toolOutput", "dialogue")


class PairedCall:
    """A tool call, and whether it has a result."""

    __slots__ = ("answered", "part", "turn")

    def __init__(self, turn: int, part: Block) -> None:
        self.turn, self.part, self.answered = turn, part, False


class ToolPairs:
    """A conversation's tool calls and results, grouped by turn.

    A result belongs to the latest earlier call with the same id. Gemini and Ollama use no ids.
    Without ids, a result belongs to the first unanswered call with the same name in the latest turn
    with calls.
    """

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.parts: dict[int, list[Block]] = {}
        self.orphans: dict[int, set[tuple[Place, int]]] = {}
        """The positions of unpaired calls and results, keyed by turn index."""
        self.pending: set[int] = set()
        """The last turns, if their calls still wait for results. Such calls are not orphans."""
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
        """Return the first turn of the group that contains `turn`. Groups are removed whole."""
        leader = self._leader.get(turn, turn)
        while leader != turn:
            turn, leader = leader, self._leader.get(leader, leader)
        return turn

    def has_pair(self, turn: int) -> bool:
        """Return whether a turn has a tool call or result that is not orphaned."""
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
        call = self._pair_call(part, [*made, *self._latest])
        if call is None:
            self.orphans.setdefault(index, set()).add((part.place, part.at))
            return
        call.answered = True
        first, other = sorted((self.group(call.turn), self.group(index)))
        self._leader[other] = first

    def _pair_call(self, part: Block, latest: list[PairedCall]) -> PairedCall | None:
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


Fits = Callable[[Sums], bool]


class RemovalUnit(msgspec.Struct, frozen=True):
    """Turns that must be removed together."""

    turns: tuple[int, ...]
    reason: RemovalReason


class Cleanup(msgspec.Struct, frozen=True):
    """Changes to a conversation that vendors would otherwise reject."""

    turns: dict[int, Turn]
    measures: dict[int, Measure]
    gone: dict[int, RemovalReason]
    """The indices of the turns to remove, each with the reason."""
    stripped: dict[int, RemovalReason]
    """The indices of the turns from which parts are removed, each with the reason."""


class Removal(msgspec.Struct, frozen=True):
    """The turns to remove, and the conversation's size without them."""

    gone: dict[int, RemovalReason]
    total: Sums


def clean(turns: Sequence[Turn], pairs: ToolPairs, counter: Counter) -> Cleanup:
    """Remove orphans and empty turns, and fill empty tool results, which vendors reject."""
    cleanup = Cleanup({}, {}, {}, {})
    for index, turn in enumerate(turns):
        spots = pairs.orphans.get(index)
        filled = with_outputs(turn) if index in pairs.parts else turn
        if spots is None and filled is turn and not is_empty(turn):
            continue
        repaired = without(filled, spots) if spots else filled
        if not is_empty(repaired):
            if spots:
                cleanup.stripped[index] = "orphan"
        elif turn.role in RESULT_ROLES and not spots:
            repaired = msgspec.structs.replace(turn, content=NO_OUTPUT)
        else:
            cleanup.gone[index] = "orphan" if spots else "empty"
            continue
        cleanup.turns[index] = repaired
        cleanup.measures[index] = counter.message(repaired)
    return cleanup


def tail_start(turns: Sequence[Turn], keep_turns: int) -> int:
    """Return the index where the last `keep_turns` user turns begin."""
    if keep_turns <= 0:
        return len(turns)
    left = keep_turns
    for index in range(len(turns) - 1, -1, -1):
        if starts_exchange(turns[index]):
            left -= 1
            if left == 0:
                return index
    return 0


def units(turns: Sequence[Turn], pairs: ToolPairs, keep_turns: int) -> list[RemovalUnit]:
    """Return the units that may be removed, in order of removal."""
    groups = _group_turns(turns, pairs)
    tail = tail_start(turns, keep_turns)
    stays = {
        leader
        for leader, members in groups.items()
        if members[-1] >= tail or any(_is_protected(turns, pairs, index) for index in members)
    }
    free = {leader: members for leader, members in groups.items() if leader not in stays}
    tools = [
        RemovalUnit(tuple(members), "toolOutput")
        for leader, members in free.items()
        if any(pairs.has_pair(index) for index in members)
        and not any(_is_question(turns[index]) for index in members)
    ]
    return [*tools, *_group_exchanges(turns, pairs, free, tail)]


def choose(
    candidates: Iterable[RemovalUnit],
    gone: dict[int, RemovalReason],
    total: Sums,
    sums: Sequence[Sums],
    fits: Fits,
) -> Removal:
    """Remove units until the rest of the conversation fits.

    Args:
        candidates: The units that may be removed, in order of removal.
        gone: The turns that are removed in any case.
        total: The conversation's size without those turns.
        sums: Each turn's count.
        fits: Returns whether a size is small enough.
    """
    taken = dict(gone)
    for unit in candidates:
        if fits(total):
            break
        for index in unit.turns:
            if index not in taken:
                taken[index] = unit.reason
                total = total.minus(sums[index])
    return Removal(taken, total)


def _group_turns(turns: Sequence[Turn], pairs: ToolPairs) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for index in range(len(turns)):
        groups.setdefault(pairs.group(index), []).append(index)
    return groups


def _is_protected(turns: Sequence[Turn], pairs: ToolPairs, index: int) -> bool:
    return is_system(turns[index]) or index in pairs.pending


def _is_question(turn: Turn) -> bool:
    return turn.role == "user" and has_own_text(turn)


def _group_exchanges(
    turns: Sequence[Turn], pairs: ToolPairs, free: dict[int, list[int]], tail: int
) -> Iterable[RemovalUnit]:
    """Yield each dialogue exchange as a unit.

    Because exchanges are removed as a whole, the rest still starts with a user turn.
    """
    members: list[int] = []
    for index, turn in enumerate(turns[:tail]):
        if starts_exchange(turn) and index not in pairs.parts and members:
            yield RemovalUnit(tuple(members), "dialogue")
            members = []
        leader = pairs.group(index)
        if leader == index and leader in free:
            members += free[leader]
    if members:
        yield RemovalUnit(tuple(members), "dialogue")
