"""The trace and the minimum sharpness of a network: what ``minsharp measure`` does."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..curvature.gram import hessian_grams
from ..curvature.hessian import hessian_diagonal, hessian_trace
from ..errors import MinsharpWarning, NegativeError
from ..measures.minimum import MinimumSharpness, minimum_sharpness
from ..measures.verify import Verification, verify
from ..network.rescalings import folding_frees
from ..results.curvature import MATRICES, Diagonal, Trace
from ..results.gram import Grams
from ..subject.shards import shard
from ..text import count, number, plus_minus
from ..text.terminal import rich_table
from . import team
from .output import FailureError, console, note, print_json, watched
from .reporting import under_noise, versions, write
from .sharpness import print_checks, summary
from .task import Task


def measured(
    task: Task, scope: str | None, *, check: bool, report: Path | None, save: Path | None, as_json: bool
) -> None:
    """Measure, print, and write what is asked for: without a scope the minima of two, as far as they exist."""
    scopes = [scope] if scope else ["layer", "neuron"]
    found = curvature_of(task, scopes)
    results = _minima(task, found, scopes, needed=bool(scope or check or report), as_json=as_json)
    checks: dict[str, Verification] = {}
    if check or report is not None:
        checks = {r.scope: _verified(task, r, first=r is results[0]) for r in results}
    if as_json:
        print_json(_document(task, found, results, checks))
    elif results:
        _print(found, results, checks)
    if report is not None:
        networks = versions(task, min(results, key=lambda r: r.value).scales)
        noisy = under_noise(task, networks, ("absolute", "relative"))
        write(report, task, minimum=results, curvature=found, verification=checks, **noisy)
    if save is not None and team.speaks():
        found.save(save)
        note(f"wrote {save}")
    _fail(checks)


def _minima(
    task: Task, found: Trace | Diagonal | Grams, scopes: Sequence[str], *, needed: bool, as_json: bool
) -> list[MinimumSharpness]:
    """In each scope that has one: that of a smooth network's Hessian may be missing in one and there in another."""
    results: list[MinimumSharpness] = []
    missing: list[NegativeError] = []
    for scope in map(str, scopes):
        try:
            results.append(minimum_sharpness(task.network, found, scope=scope))  # type: ignore[arg-type]
        except NegativeError as error:
            missing.append(error)
    if not results and not as_json:
        console().print(str(found), markup=False)  # what was measured, at least
    if not results and needed:
        raise missing[0]
    for why in missing if results else missing[:1]:
        where = "in one scope" if results else "per layer, nor per neuron"
        warnings.warn(f"there is no minimum {where}: {why}", MinsharpWarning, stacklevel=2)
    return results


def _verified(task: Task, result: MinimumSharpness, *, first: bool) -> Verification:
    """A result's claims; what is claimed of the network itself is checked with the first of them."""
    directions = 3 if first else 0
    return verify(task.network, task.data.batches, result, task.loss, directions=directions, progress=watched())


def _fail(checks: dict[str, Verification]) -> None:
    failed = [name for name, verification in checks.items() if not verification.holds]
    if failed:
        raise FailureError(f"the verification fails for scope {', '.join(failed)}")


def curvature_of(task: Task, scopes: Sequence[str]) -> Trace | Diagonal | Grams:
    """What the minimum in each of the scopes is made of, measured once."""
    find: Any = hessian_diagonal if "neuron" in scopes else hessian_grams if "full" in scopes else hessian_trace
    group = team.group()
    data = task.data.batches if group is None else shard(task.data.batches, group)
    measured: Trace | Diagonal | Grams = find(task.network, data, task.loss, process_group=group, **task.options)
    return measured


def _errors(measured: Trace | Diagonal | Grams) -> dict[str, Any]:
    """The standard errors of an estimate."""
    if not measured.standard_error:
        return {}
    return {"standard_error": measured.standard_error, "standard_errors": dict(measured.standard_errors)}


def _document(
    task: Task, found: Trace | Diagonal | Grams, results: list[MinimumSharpness], checks: dict[str, Verification]
) -> dict[str, Any]:
    traces = found if isinstance(found, Trace) else found.trace
    document = {
        **task.settings,
        "loss": found.loss,
        "samples": found.samples,
        "trace": {"total": found.total, "by_parameter": dict(traces.by_parameter), **_errors(found)},
        "exact": dict(found.exact),
        "minimum_sharpness": {result.scope: summary(result) for result in results},
    }
    if checks:
        document["verification"] = {scope: check.to_dict() for scope, check in checks.items()}
    return document


def _print(
    measured: Trace | Diagonal | Grams, results: list[MinimumSharpness], checks: dict[str, Verification]
) -> None:
    out, first = console(), results[0]
    errors = {**measured.standard_errors, "total": measured.standard_error} if measured.standard_error else {}
    title = f"Trace of the {MATRICES[first.curvature]}, {first.loss}, {count(first.samples)} samples"
    columns = ["parameter", "as it is", *(["±"] if errors else []), *(f"flattest, {r.scope}" for r in results), "exact"]
    rows = [
        _row(name, before, errors, [r.by_parameter[name] for r in results], "yes" if first.exact[name] else "no")
        for name, before in first.before.items()
    ]
    total = _row("total", first.trace, errors, [r.value for r in results], "")
    out.print(rich_table(title, columns, rows, total=total))
    for result in results:
        out.print(f"Minimum sharpness, scope {result.scope}: {_value(result)}", markup=False)
        out.print(f"  lower bound {number(result.lower_bound, 8)}; {result.status}", markup=False)
    pinned = {name: why for result in results for name, why in result.pinned.items()}
    for line in folding_frees(pinned, "--fold-batchnorm"):
        out.print(line, markup=False)
    print_checks(checks)


def _row(name: str, before: float, errors: dict[str, float], after: list[float], exact: str) -> list[str]:
    error = [number(errors[name], 2)] if errors else []
    return [name, number(before, 5), *error, *(number(trace, 5) for trace in after), exact]


def _value(result: MinimumSharpness) -> str:
    return plus_minus(result.value, result.standard_error) if result.standard_error else number(result.value, 8)
