"""The weights of the flattest equivalent network: what ``minsharp flatten`` does."""

from pathlib import Path
from typing import Any

from ..io.weights import save_weights
from ..measures.minimum import MinimumSharpness, minimum_sharpness
from ..measures.verify import Verification, verify
from ..network.rescale import rescale
from ..text import number
from . import options
from .output import FailureError, console, note, print_json, watched
from .reporting import under_noise, versions, write
from .sharpness import print_checks, summary
from .task import Task


def flattened(
    task: Task,
    out: Path,
    scope: options.Scope,
    *,
    power_of_two: bool,
    noise: options.Noise,
    biases: options.Biases | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Find the flattest network, verify it, and write its weights if every claim holds."""
    result = _minimum(task, scope, power_of_two, noise, biases)
    flat = rescale(task.network, result.scales, exact=power_of_two)
    verification = verify(task.network, task.data.batches, result, task.loss, progress=watched())
    if verification.holds:
        save_weights(flat, out)
    if as_json:
        told = {"power_of_two": power_of_two, "noise": str(noise), "biases": result.biases}
        document = {**task.settings, **told, "out": str(out) if verification.holds else None}
        print_json({**document, "minimum_sharpness": summary(result), "verification": verification.to_dict()})
    else:
        _print(result, verification)
    if report is not None:
        noisy = under_noise(task, versions(task, result.scales), (str(noise),))
        write(report, task, minimum=result, verification=verification, **noisy)
    if not verification.holds:
        raise FailureError(f"the verification fails: '{out}' is not written")
    note(f"wrote {out}")


def _minimum(
    task: Task, scope: options.Scope, power_of_two: bool, noise: options.Noise, biases: options.Biases | None
) -> MinimumSharpness:
    chosen: Any = {"scope": str(scope), "noise": str(noise), "power_of_two": power_of_two}
    chosen["biases"] = None if biases is None else str(biases)
    return minimum_sharpness(task.network, task.data.batches, task.loss, **chosen, **task.options)


def _print(result: MinimumSharpness, verification: Verification) -> None:
    what = "Trace" if result.noise == "absolute" else f"Sharpness under noise {result.noise!r}"
    text = f"{what} {number(result.trace, 5)} -> {number(result.value, 5)} with the same outputs, scope {result.scope}"
    console().print(text, markup=False)
    console().print(result.status, markup=False)
    print_checks({result.scope: verification})
