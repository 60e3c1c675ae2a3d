"""The pull law."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..graph.records import Graph, Operation
from ..operations import dependence, passing, row
from .close import close, same
from .trial import Trial


def pull_law(trial: Trial) -> Iterator[str]:
    """Each pullback returns what the call returns, and pulls back as autograd does, whatever the columns and layout."""
    if not trial.differentiable:
        return
    inputs = trial.probe.draw(3, 5 + trial.seed)
    values = trial.network.state() | trial.network.bind(inputs)
    with torch.no_grad():
        trial.graph.run(values)
    for operation in trial.calls(trial.graph):
        varying = _float_arguments(trial.graph, operation)
        for wanted in dict.fromkeys([*(frozenset({a}) for a in varying), frozenset(varying)]):
            if wanted:
                yield from _pull_as_autograd(trial, operation, operation.bind(values), wanted)


def _float_arguments(graph: Graph, operation: Operation) -> list[str]:
    """The arguments that vary with the samples and depend on parameters: those that the engine pulls back to."""
    reads = [(slot.argument, graph.values.get(name)) for slot, name in passing(operation)]
    behind = dependence(graph, graph.parameters)
    return list(dict.fromkeys(a for a, v in reads if v is not None and v.samples is not None and v.name in behind))


def _pull_as_autograd(
    trial: Trial, operation: Operation, bound: dict[str, Any], wanted: frozenset[str]
) -> Iterator[str]:
    what = f"pull, {operation.name} to {', '.join(sorted(wanted))}"
    kept = pytree.tree_map_only(Tensor, torch.clone, bound)
    with torch.no_grad():
        plain = operation.call(bound)
        made, pull = row(operation).pull(operation, bound, wanted)
    if not close(made, plain, trial.tolerance):
        yield f"{what}: the output is not that of the call"
    for R, swapped, only in _columns(operation, plain, trial.wide):
        G = _cotangents(operation, plain, R, swapped, only, trial.seed)
        before = pytree.tree_map_only(Tensor, torch.clone, G)
        with torch.no_grad():
            found = pull(G)
        for name in sorted(wanted):
            expected = _by_autograd(operation, kept, name, G)
            if not _pulled_close(found.get(name), expected, trial.tolerance):
                yield f"{what}: not autograd's for R={R}{', samples first' * swapped}, output {only}"
                return
        if not same(G, before):
            yield f"{what}: cotangents are written over"
    if not same(bound, kept):
        yield f"{what}: arguments are written over"


def _columns(operation: Operation, plain: Any, wide: bool) -> list[tuple[int, bool, int | None]]:
    """Numbers of columns, layouts, and which of several outputs has a cotangent (None: each)."""
    cases: list[tuple[int, bool, int | None]] = [(1, False, None), (2, True, None), (3, False, None), (3, True, None)]
    floats = [i for i, out in enumerate(plain if operation.many else (plain,)) if _is_float(out)]
    if len(floats) > 1:
        cases.extend((2, True, i) for i in (floats if wide else floats[:2]))
    return cases if floats else []


def _is_float(out: Any) -> bool:
    return isinstance(out, Tensor) and out.dtype.is_floating_point


def _cotangents(operation: Operation, plain: Any, R: int, swapped: bool, only: int | None, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)

    def one(i: int, out: Any) -> Tensor | None:
        if not _is_float(out) or only not in (None, i):
            return None
        if swapped and out.dim():
            shape = (out.shape[0], R, *out.shape[1:])
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(out.dtype).transpose(0, 1)
        return torch.randn((R, *out.shape), generator=generator, dtype=torch.float64).to(out.dtype)

    made = [one(i, out) for i, out in enumerate(plain if operation.many else (plain,))]
    return made if operation.many else made[0]


def _by_autograd(operation: Operation, bound: Mapping[str, Any], name: str, G: Any) -> Any:
    """Column by column: a tensor (R, *shape), or a list of them, None where nothing comes back."""
    given = bound[name]
    if isinstance(given, Tensor) and operation.name == "copy":  # torch has its derivative in place only
        given = given.detach().clone().requires_grad_()
        source = {**bound, name: given}
        plain = torch.zeros_like(source["self"]) + source["src"]
        options = {"retain_graph": True, "is_grads_batched": True, "allow_unused": True}
        row_ = torch.autograd.grad(plain, given, G, **options)[0] if plain.requires_grad else None
        return given.new_zeros(len(G), *given.shape) if row_ is None else row_
    items = [_leaf(item) for item in (given if isinstance(given, list) else [given])]
    with torch.enable_grad():
        made = operation.call({**bound, name: items if isinstance(given, list) else items[0]})
    pairs = [
        (out, g)
        for out, g in zip(made if operation.many else (made,), G if operation.many else (G,), strict=True)
        if g is not None and out.requires_grad
    ]
    leaves = [item for item in items if _is_float(item)]
    columns = next(g for g in (G if operation.many else (G,)) if g is not None).shape[0]
    found: dict[int, Tensor] = {id(leaf): leaf.new_zeros(columns, *leaf.shape) for leaf in leaves}
    for k in range(columns if pairs else 0):
        outs, cotangents = [out for out, _ in pairs], [g[k] for _, g in pairs]
        rows = torch.autograd.grad(outs, leaves, cotangents, retain_graph=True, allow_unused=True)
        for leaf, one in zip(leaves, rows, strict=True):
            if one is not None:
                found[id(leaf)][k] = one
    result = [found.get(id(item)) for item in items]
    return result if isinstance(given, list) else result[0]


def _leaf(item: Any) -> Any:
    return item.detach().clone().requires_grad_() if _is_float(item) else item


def _pulled_close(found: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(expected, list):
        found = found if found is not None else [None] * len(expected)
        return len(found) == len(expected) and all(
            _pulled_close(f, e, tolerance) for f, e in zip(found, expected, strict=True)
        )
    if expected is None:
        return True
    return close(torch.zeros_like(expected) if found is None else found, expected, tolerance)
