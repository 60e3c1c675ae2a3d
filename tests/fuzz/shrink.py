"""The smallest part of a network that still fails in the same way."""

from dataclasses import replace

from .cases import Case, shrunk
from .checks import Examiner
from .outcome import Outcome


def signature(outcome: Outcome) -> str:
    """What failed first, without numbers and names."""
    return outcome.failures[0][0] if outcome.failures else ""


def fails(case: Case, how: str) -> bool:
    """Whether a case fails in this way."""
    try:
        return any(check == how for check, _ in Examiner(case).run().failures)
    except Exception:
        return False


def _simpler(case: Case) -> list[Case]:
    """The case with one thing less, the largest first."""
    plain = replace(case, program=replace(case.program, form="plain", wrapper="", frozen=()))
    steps = case.program.steps
    parts = [shrunk(case, case.program.without(i).steps) for i in range(len(steps)) if len(steps) > 1]
    unfilled = [replace(case, bare=False)] if case.bare else []
    return [*([plain] if plain != case else []), *parts, *unfilled]


def smallest(case: Case, how: str) -> Case:
    """Leave out whatever can be left out."""
    found = True
    while found:
        found = False
        for simpler in _simpler(case):
            if fails(simpler, how):
                case, found = simpler, True
                break
    return case
