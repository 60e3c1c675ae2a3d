"""From any `nn.Module` that torch.export can trace to a `Network` of frozen records."""

import copy
import os
import re
import sys
import traceback
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..errors import InputError, MinsharpError, ReadError, words_of
from ..subject.inputs import Inputs, call_form, describe, missing_rows
from ..subject.model import unwrapped
from ..subject.modes import LOCK, eval_mode, plain_mode, quiet_export, random_state_kept
from ..subject.outputs import Pick, adapted
from .apart import FEW, check_samples_apart
from .export import export
from .faithful import Alone, agrees, check_faithful, run_alone
from .network import Network
from .proof import proved_apart
from .writer import Writer

_OTHER_TYPE = r"same dtype|should be the same|scalar type"
"""What torch says where whole numbers meet weights; token numbers are whole with reason."""


_EXPORTED = (
    "it was exported for other sizes. Pass the module it was made of, or export it with a free batch size: "
    "torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},)).module()"
)


def read(
    model: nn.Module | Network, example: Inputs, *, outputs: Pick = None, class_axis: int | None = None
) -> Network:
    """Read a network once, so that measuring it many times need not.

    ``example`` is a batch of inputs: a tensor, a tuple of tensors, or a dict of tensors by the names of forward's
    arguments. Any number of samples will do; sizes other than the batch's stay as they are in the example. ``outputs``
    says which of what the model returns is measured, where that is not a tensor or ``logits``: a name, an index, or a
    function that picks it. ``class_axis`` says which axis of it runs over the classes, where targets will not tell.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> read(model, torch.zeros(1, 3))
    Network(Sequential: 4 parameters, 3 operations, piecewise linear in each)
    """
    if isinstance(model, Network) and outputs is None:
        return model if class_axis is None else replace(model, class_axis=class_axis)
    module = adapted(unwrapped(model), outputs)
    outside = sys.exception()
    with plain_mode():
        try:
            network, few, trials = _exported(module, example)
            if trials is None:
                _try_numbers(network, few)
            else:
                check_samples_apart(network, few)
                check_faithful(network, _by_name(network, few), trials)
        except MinsharpError:
            raise
        except (Exception, SystemExit) as error:
            if _is_interrupt(error, outside):
                raise KeyboardInterrupt from error
            _refuse_inputs(module, example)
            raise ReadError(_export_message(module, error)) from error
    return network if class_axis is None else replace(network, class_axis=class_axis)


def _exported(model: nn.Module, example: Inputs) -> tuple[Network, list[Tensor], list[Alone] | None]:
    """The network, a few samples of each input, and what the model makes of the first, if there is more to check.

    No other thread reads then. There is no more to check where samples are proved to stay apart, and the records do
    with the first what the model does.
    """
    with LOCK:
        given, device = _given(model, example)
        few = pytree.tree_leaves(given)
        args, kwargs = pytree.tree_map_only(Tensor, _two_samples, given)
        with eval_mode(model), random_state_kept(device):
            program = export(model, args, kwargs)
            writer = Writer(model, program)
            network = Network(model, writer.graph(), program.call_spec.in_spec, writer.ties)
            with quiet_export():
                if proved_apart(network.graph) and agrees(network, _by_name(network, few), args, kwargs):
                    return network, few, None
                return network, few, run_alone(model, args, kwargs)


def _try_numbers(network: Network, few: list[Tensor]) -> None:
    """Whole numbers choose rows, which there may not be for other samples than the first."""
    if not all(tensor.dtype.is_floating_point for tensor in few):
        with torch.no_grad():
            network.graph.run(network.state() | _by_name(network, few))


def _by_name(network: Network, inputs: list[Tensor]) -> dict[str, Tensor]:
    return dict(zip((value.name for value in network.graph.inputs), inputs, strict=True))


def _given(model: nn.Module, example: Inputs) -> tuple[Any, torch.device]:
    """A few samples as forward takes them, (args, kwargs), on the parameters' device."""
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    form = call_form(model, example)
    rows = _telling([_dense(t) for t in pytree.tree_leaves(form) if isinstance(t, Tensor)])
    return pytree.tree_map_only(Tensor, lambda t: _few(t, rows).to(device), form), device


def _is_interrupt(error: BaseException, outside: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: raised in the middle of torch.export, it may come out as something else.

    ``outside`` is what the caller was handling already: it and what is behind it has no part in this.
    """
    behind: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and at is not outside and at not in behind:
        behind.append(at)
        at = at.__cause__ or at.__context__
    return any(isinstance(e, KeyboardInterrupt) for e in behind)


def _dense(tensor: Tensor) -> Tensor:
    """An input, which has to be dense, with samples along its first axis."""
    if tensor.layout != torch.strided:
        raise InputError("the inputs are sparse; pass them as dense tensors: inputs.to_dense()")
    if tensor.is_meta:
        raise InputError("an input is on the meta device, and has no values: pass a tensor of numbers")
    if tensor.dim() == 0:
        raise InputError("an input is a single number; every input needs the samples along its first axis")
    if tensor.shape[0] == 0:
        raise InputError(f"the example is empty: an input has shape {tuple(tensor.shape)}")
    return tensor.detach()


def _telling(inputs: list[Tensor]) -> list[int]:
    """The first sample, those with the largest and the smallest number of an input, and others all over the batch."""
    n = min(map(len, inputs), default=0)
    floats = [t[:n].reshape(n, -1) for t in inputs if t.dtype.is_floating_point and t.numel()]
    finite = [(t if t.dtype.itemsize > 1 else t.float()).nan_to_num(0.0, 0.0, 0.0) for t in floats]
    ends = [int(i) for t in finite for i in (t.amax(1).argmax(), t.amin(1).argmin())]
    spread = [i * (n - 1) // (FEW - 1) for i in range(FEW)]
    return sorted(list(dict.fromkeys([0, *ends[: FEW - 2], *spread, *range(min(n, FEW))]))[:FEW])


def _few(tensor: Tensor, rows: list[int]) -> Tensor:
    """Some of the samples of an input."""
    few = tensor.detach()[rows]
    return few.clone() if few.is_inference() else few


def _two_samples(tensor: Tensor) -> Tensor:
    """Two different samples: torch.export keeps a batch size free if it is not one."""
    first = tensor[:1]
    second = tensor[1:2] if tensor.shape[0] > 1 else first.flatten().roll(1).view_as(first)
    return torch.cat([first, second])


def _refuse_inputs(model: nn.Module, example: Inputs) -> None:
    """If the model does not run on the example at all, torch.export is not to blame. Tried on a copy."""
    with LOCK:
        (args, kwargs), device = _given(model, example)
        try:
            trial = copy.deepcopy(model)
        except Exception:
            return
    try:
        with torch.no_grad(), eval_mode(trial), random_state_kept(device), quiet_export():
            trial(*args, **kwargs)
    except (Exception, SystemExit) as error:
        hint = _hint(model, example, [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)], error)
        raise InputError(
            f"{type(model).__name__} does not run on {describe(example)}: {_first_line(error)}{hint}"
        ) from error


def _hint(model: nn.Module, example: Inputs, given: list[Tensor], error: BaseException) -> str:
    """What may be wrong with the inputs of a model that does not run on them."""
    kinds = {p.dtype for p in model.parameters() if p.dtype.is_floating_point}
    if rows := missing_rows(error, given):
        return rows
    if isinstance(error, TypeError) and "missing" in words_of(error):
        return ". Several inputs go in a tuple, in data beside the targets or None: ((a, b), targets), ((a, b), None)"
    if isinstance(error, TypeError) and "were given" in words_of(error) and isinstance(example, tuple):
        return ". Each tensor of the tuple is taken for an input: pass the inputs without the targets"
    if _is_exported(model, error):
        return f": {_EXPORTED}"
    numbers = any(t.dtype.is_floating_point for t in given)
    if kinds and not {t.dtype for t in given} & kinds and (numbers or re.search(_OTHER_TYPE, words_of(error))):
        kind = next(iter(kinds))
        return f". Its parameters are {kind}: try inputs.to({kind})"
    return ""


def _export_message(model: nn.Module, error: BaseException) -> str:
    name, cause = type(error).__name__, _first_line(error)
    if "DataDependent" in name or "data-dependent" in cause.lower():
        return (
            f"cannot read {type(model).__name__}: forward branches on the values of a tensor, or makes a Python number "
            f"or a shape of them{_users_line(error)}\n  Such a data-dependent step has to leave forward. Write a "
            "branch with torch.where, look at values before the call, or measure the submodule that holds the layers"
        )
    message = f"cannot read {type(model).__name__}: torch.export stopped with {name}: {cause}"
    places = re.findall(r'File "([^"]+)", line (\d+), in forward\n\s*(.+)', _with_causes(error))
    if places:
        file, line, code = places[-1]
        message += f"\n  at {file}:{line}: {code}"
    if _is_exported(model, error):
        hint = _EXPORTED
    elif "fake tensor" in cause:
        hint = (
            "forward uses tensor.data, takes a derivative (torch.autograd.grad), or keeps a tensor of an earlier call. "
            "Use tensor.detach() instead of the first, and write out the derivative, as in x.cos() for that of x.sin()"
        )
    elif "Cannot access storage of" in cause:
        hint = (
            "torch.vmap or another transform of torch.func goes around a write in place, or torch.no_grad. Write it "
            "for the whole batch, or without these"
        )
    else:
        hint = (
            "what torch.export.export(model, inputs, strict=False) cannot trace has to leave forward: values turned "
            "into Python numbers, NumPy, printing"
        )
    return f"{message}\n  {hint}"


def _users_line(error: BaseException) -> str:
    """The line of the user's code at which torch.export stopped: the innermost that is neither torch's nor ours."""
    ours = tuple(os.path.dirname(str(of.__file__)) + os.sep for of in (torch, sys.modules["minsharp"]))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.line and not f.filename.startswith(ours)]
    return f"\n  at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""


def _is_exported(model: nn.Module, error: BaseException) -> bool:
    """Whether torch.export made the model, and for another batch size."""
    return isinstance(model, torch.fx.GraphModule) and "Guard failed" in words_of(error)


def _with_causes(error: BaseException) -> str:
    """The text and traceback of an error and of those behind it."""
    return "".join(traceback.format_exception(error)) + words_of(error)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in words_of(error).splitlines() if line.strip()]
    return lines[0] if lines else "no message"
