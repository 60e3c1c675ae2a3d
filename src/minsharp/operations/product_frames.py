"""How frames pass through a product of two tensors that an equation describes.

Between two factors and the result a letter is in all three (a group), summed over (in both, not in the result), or in
one factor and the result. A weight takes vectors along the letters that are summed over, and makes new ones along its
own, group by group; two tensors that hold vectors along those letters meet in inner products; and what has vectors
along other letters passes on, added up with the entries of the other factor as weights.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor

from ..graph.records import Operation
from ..rules.channels import UnfitError
from ..rules.frames import NONE, FrameWalk, Labels, along
from .products import Equation


def product_frames(walk: FrameWalk, names: Sequence[str], equation: Equation, operation: Operation) -> Labels:
    """Labels of the result, whichever of the two factors are weights, in frames, or plain."""
    first, second = (walk.labels_of(name) for name in names)
    entries = [walk.entries_of(name) for name in names]
    sizes = _sizes(equation, [walk.graph.values[name].shape for name in names])
    if (entries[0] is None) != (entries[1] is None):
        weight = int(entries[0] is None)
        view, labels = entries[weight], (second, first)[weight]
        assert view is not None
        letters = equation.factors[1 - weight]
        if not _passes(labels, letters, equation):
            return _weighed(walk, view, equation.factors[weight], _wide(labels, letters, sizes), letters, sizes,
                            equation.result, operation)  # fmt: skip
    if not first.framed and not second.framed:
        return walk.labels_of(operation.outputs[0])
    if first.framed and second.framed:
        return _met(walk, [first, second], equation, sizes, operation)
    holder = int(second.framed)
    return _passed(walk, (first, second)[holder], equation, holder, sizes)


def _sizes(equation: Equation, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """How long each letter is; one is stretched to the other."""
    sizes: dict[str, int] = {}
    for i, (letters, shape) in enumerate(zip(equation.factors, shapes, strict=True)):
        elsewhere = equation.result + equation.factors[1 - i]
        if len(set(letters)) < len(letters) or len(letters) != len(shape) or not set(letters) <= set(elsewhere):
            raise UnfitError
        for letter, size in zip(letters, shape, strict=True):
            sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
    if not all(sizes.values()):
        raise UnfitError
    return sizes


def _wide(labels: Labels, letters: str, sizes: Mapping[str, int]) -> Labels:
    return labels.expand([sizes[letter] for letter in letters])


def _ordered(labels: Labels, letters: str, order: str) -> Labels:
    """With axes in another order."""
    axes = [letters.index(letter) for letter in order]
    return Labels(labels.atoms.permute(axes), labels.fibers.permute(axes))


def _summed(equation: Equation) -> str:
    return "".join(c for c in equation.factors[0] if c in equation.factors[1] and c not in equation.result)


def _passes(labels: Labels, letters: str, equation: Equation) -> bool:
    """Whether vectors lie along other letters than those that are summed over."""
    axes = [letters.index(letter) for letter in _summed(equation)]
    alike = all(bool((labels.atoms == labels.atoms.narrow(d, 0, 1)).all()) for d in axes)
    return labels.framed and alike and any(labels.atoms.shape[d] > 1 for d in axes)


def _weighed(
    walk: FrameWalk,
    weight: Tensor,
    of_weight: str,
    labels: Labels,
    letters: str,
    sizes: Mapping[str, int],
    result: str,
    operation: Operation,
) -> Labels:
    """A weight takes what is summed over, and makes what only it and the result have, group by group."""
    for d in reversed(range(len(of_weight))):
        if weight.shape[d] == 1 < sizes[of_weight[d]]:  # the same for all along it
            weight, of_weight = weight.squeeze(d), of_weight[:d] + of_weight[d + 1 :]
    summed = "".join(c for c in letters if c in of_weight and c not in result)
    groups = "".join(c for c in letters if c in of_weight and c in result)
    positions = "".join(c for c in letters if c not in of_weight)
    own = "".join(c for c in of_weight if c not in letters)
    if not summed:
        raise UnfitError
    vectors = _ordered(labels, letters, groups + positions + summed)
    weights = weight.permute([of_weight.index(c) for c in groups + own + summed])  # (*groups, *own, *summed)
    lead = _leading(weights[(0,) * len(groups)], len(own))
    taken, made = [], []
    for group in product(*(range(sizes[c]) for c in groups)):
        one = weights[group]
        taken.append((group, _flat(one.permute([*range(len(own), one.dim()), *range(len(own))]), len(summed))))
        for each in product(*(range(sizes[c]) for c in own[:lead])):
            made.append(_flat(one[each], len(own) - lead))
    for group, entries in taken:
        here = Labels(vectors.atoms[group], vectors.fibers[group])
        walk.consumed(Labels(*(t.flatten(len(positions)) for t in here)), entries, operation)
    return _made(walk, made, groups + own[:lead], positions, own[lead:], sizes, result, operation)


def _made(
    walk: FrameWalk,
    entries: Sequence[Tensor],
    groups: str,
    positions: str,
    own: str,
    sizes: Mapping[str, int],
    result: str,
    operation: Operation,
) -> Labels:
    """A new space for each group, along the letters that are the weight's own."""
    if not own:
        return walk.labels_of(operation.outputs[0])
    place = [sizes[c] for c in positions]
    spaces = [walk.produced([*place, prod(sizes[c] for c in own)], -1, [each]) for each in entries]
    shape = [sizes[c] for c in groups + positions + own]
    whole = Labels(*(torch.stack([s[i].contiguous() for s in spaces]).view(shape) for i in range(2)))
    return _ordered(whole, groups + positions + own, result)


def _leading(weights: Tensor, own: int) -> int:
    """How many of a weight's own axes have to be taken apart, for the others to be one."""
    for lead in range(own):
        with_rest = weights[(0,) * lead]
        if _is_flat(with_rest, own - lead):
            return lead
    return max(own - 1, 0)


def _is_flat(view: Tensor, axes: int) -> bool:
    try:
        _flat(view, axes)
    except UnfitError:
        return False
    return True


def _flat(view: Tensor, axes: int) -> Tensor:
    """The first axes as one, as a view."""
    try:
        return view.view(-1, *view.shape[axes:])
    except RuntimeError as error:
        raise UnfitError from error


def _met(
    walk: FrameWalk, both: Sequence[Labels], equation: Equation, sizes: Mapping[str, int], operation: Operation
) -> Labels:
    """Vectors along what is summed over meet in inner products."""
    summed = _summed(equation)
    batch = "".join(c for c in equation.factors[0] if c in equation.factors[1] and c in equation.result)
    if not summed:
        raise UnfitError
    rows = []
    for labels, letters in zip(both, equation.factors, strict=True):
        alone = "".join(c for c in letters if c not in batch + summed)
        there = _ordered(_wide(labels, letters, sizes), letters, batch + alone + summed)
        shape = [*(sizes[c] for c in batch), prod(sizes[c] for c in alone), prod(sizes[c] for c in summed)]
        rows.append(Labels(*(t.reshape(shape) for t in there)))
    walk.paired(rows[0], rows[1], operation)
    return walk.labels_of(operation.outputs[0])


def _passed(walk: FrameWalk, labels: Labels, equation: Equation, holder: int, sizes: Mapping[str, int]) -> Labels:
    """Added up along what is summed over; whatever differs in the plain factor makes other vectors."""
    letters, other, result = equation.factors[holder], equation.factors[1 - holder], equation.result
    summed = _summed(equation)
    wide = _wide(labels, letters, sizes)
    kept = "".join(c for c in letters if c not in summed)
    here = _ordered(wide, letters, kept + summed)
    reached = along(walk, here, range(-len(summed), 0)) if summed else here
    atoms, fibers = (t.reshape([sizes[c] for c in kept]) for t in reached)
    shape = [sizes[c] for c in result]
    index = [slice(None) if c in kept else None for c in result]
    order = [c for c in result if c in kept]
    atoms, fibers = (t.permute([kept.index(c) for c in order])[tuple(index)].expand(shape) for t in (atoms, fibers))
    differs = [sizes[c] if c in other else 1 for c in result]
    place = torch.arange(prod(differs)).view(differs).expand(shape)
    return Labels(atoms, torch.where(atoms == NONE, fibers, walk.joined(fibers, place)))
