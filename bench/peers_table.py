"""What a side-by-side run came to, in tables: by fault, by tool, and where a peer was quicker than ours, why.

Each reason is made of what was measured in that very run: how ours spent the time, how long each trainer took to come
up, which faults a figure is over. Nothing is said of a peer that was not quicker.
Refuses to decide over less than every fault under every tool.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from bench.peers_tools import OURS, Tool
from bench.peers_trial import Outcome


def _figure(value: float | None) -> object:
    return "" if value is None else round(value, 2)


# --- by fault -------------------------------------------------------------------------------------------------
def detail_rows(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    """One row a trial, and why a peer was quicker than ours."""
    ours = {outcome.fault: outcome for outcome in outcomes if outcome.tool == OURS}
    return [
        {
            "fault": each.fault,
            "tool": each.tool,
            "survived": "yes" if each.survived else "no",
            "detected after s": _figure(each.detect_s),
            "next new step after s": _figure(each.next_step_s),
            "steps lost": "" if each.lost is None else each.lost,
            "ETTR": round(each.ettr, 3),
            "why": "; ".join(filter(None, (each.why_not, why_quicker(each, ours.get(each.fault))))),
        }
        for each in outcomes
    ]


def why_quicker(peer: Outcome, ours: Outcome | None) -> str:
    """Of one fault. "" where the peer was not better in any column."""
    if ours is None or peer.tool == OURS:
        return ""
    found = []
    if sooner := _less(peer.detect_s, ours.detect_s):
        found.append("detected sooner")
    if _less(peer.next_step_s, ours.next_step_s):
        found.append(f"next step sooner: {_up(peer)}, ours {_up(ours)}")
        sooner = True
    if sooner and ours.parts:
        found.append(f"ours by its ledger: {_way(ours)}")
    if peer.lost is not None and ours.lost is not None and peer.lost < ours.lost:
        found.append(f"{ours.lost - peer.lost} steps fewer made again")
    if round(peer.ettr, 3) > round(ours.ettr, 3):
        found.append(f"ETTR: {_wall(peer)}, ours {_wall(ours)}")
    return "; ".join(found)


def _less(its: float | None, our: float | None) -> bool:
    return its is not None and our is not None and round(its, 2) < round(our, 2)


def _way(ours: Outcome) -> str:
    """`its end called for 5.10 s, proven that nothing of it lives 0.37 s, ...`, each from the one before."""
    return ", ".join(f"{words} {seconds:.2f} s" for words, seconds in ours.parts)


def _up(outcome: Outcome) -> str:
    """When the worker was started, and what the trainer itself needed from there."""
    if outcome.restart_s is None or outcome.next_step_s is None:
        return f"{outcome.next_step_s:.2f} s" if outcome.next_step_s is not None else "never"
    own_s = outcome.next_step_s - outcome.restart_s
    return f"worker started after {outcome.restart_s:.2f} s, the trainer's own way to a new step {own_s:.2f} s"


def _wall(outcome: Outcome) -> str:
    if outcome.next_step_s is None:
        return f"{outcome.wall_s:.1f} s in all"
    rest_s = outcome.wall_s - outcome.before_s - outcome.next_step_s
    return f"{outcome.before_s:.1f} s to the fault, {outcome.next_step_s:.1f} to a new step, {rest_s:.1f} to the end"


# --- by tool --------------------------------------------------------------------------------------------------
def summary_rows(outcomes: Sequence[Outcome], tools: Sequence[Tool]) -> list[dict[str, object]]:
    """One row a tool, over the whole schedule. Medians are of the faults that it survived."""
    rows: list[dict[str, object]] = []
    ours = [outcome for outcome in outcomes if outcome.tool == OURS]
    for tool in tools:
        mine = [outcome for outcome in outcomes if outcome.tool == tool.name]
        survived = [outcome for outcome in mine if outcome.survived]
        rows.append(
            {
                "tool": tool.name,
                "survived": f"{len(survived)} of {len(mine)}",
                "detected after s, median": _figure(_median(survived, _detected)),
                "next new step after s, median": _figure(_median(survived, _next)),
                "steps lost": sum(each.lost or 0 for each in survived),
                "ETTR": round(schedule_ettr(mine), 3),
                "configured": tool.configured,
                "why": "" if tool.name == OURS else why_quicker_on_the_whole(mine, ours),
            }
        )
    return rows


def _detected(outcome: Outcome) -> float | None:
    return outcome.detect_s


def _next(outcome: Outcome) -> float | None:
    return outcome.next_step_s


def _median(outcomes: Sequence[Outcome], column: Callable[[Outcome], float | None]) -> float | None:
    known = [value for value in map(column, outcomes) if value is not None]
    return statistics.median(known) if known else None


def why_quicker_on_the_whole(its: Sequence[Outcome], ours: Sequence[Outcome]) -> str:
    """Over which faults the figures of a peer are, and what ours come to over those alone; "" where it was not better.

    A tool that does not survive the slow faults has the better median for it.
    """
    survived = [outcome for outcome in its if outcome.survived]
    our_survived = [outcome for outcome in ours if outcome.survived]
    both = {each.fault for each in survived} & {each.fault for each in our_survived}
    alike = [each for each in our_survived if each.fault in both]
    same = [each for each in survived if each.fault in both]
    found = []
    for what, column in (("detected", _detected), ("next new step", _next)):
        its_s, our_s = _median(survived, column), _median(our_survived, column)
        if _less(its_s, our_s):
            found.append(f"{what}: {_compared(_median(same, column), _median(alike, column))}")
    its_lost, our_lost = (sum(each.lost or 0 for each in some) for some in (survived, our_survived))
    if its_lost < our_lost:
        lost = sum(each.lost or 0 for each in same), sum(each.lost or 0 for each in alike)
        found.append(f"steps lost: {lost[0]}, ours {lost[1]}")
    if not found:
        return ""
    not_survived = [each.fault for each in its if not each.survived]
    rest = f"; it did not survive {', '.join(not_survived)}" if not_survived else ""
    if not both:
        return f"no fault that both survived{rest}"
    return f"over what both survived ({', '.join(each.fault for each in alike)}), {'; '.join(found)}{rest}"


def _compared(its: float | None, our: float | None) -> str:
    return "nothing to compare" if its is None or our is None else f"{its:.2f} s, ours {our:.2f} s"


def schedule_ettr(outcomes: Sequence[Outcome]) -> float:
    """Over all trials together: productive time over all of the time."""
    wall_s = sum(outcome.wall_s for outcome in outcomes)
    return sum(outcome.productive_s for outcome in outcomes) / wall_s if wall_s else 0.0


def misses(outcomes: Sequence[Outcome]) -> list[str]:
    """A sentence for each peer that did not survive fewer, or did not reach a lower ETTR, than ours."""
    by_tool: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_tool.setdefault(outcome.tool, []).append(outcome)
    if OURS not in by_tool:
        return [f"{OURS} was not measured"]
    ours = by_tool.pop(OURS)
    if not by_tool:
        return ["no peer was measured"]
    survived, best = sum(each.survived for each in ours), schedule_ettr(ours)
    found = []
    for tool, its in by_tool.items():
        if (number := sum(each.survived for each in its)) >= survived:
            found.append(f"{tool} survived {number} faults, ours {survived}")
        if (ettr := schedule_ettr(its)) >= best:
            found.append(f"{tool} has an ETTR of {ettr:.3f}, ours {best:.3f}")
    return found
