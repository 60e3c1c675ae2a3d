"""`.pt2` files without trust: nothing in them may run.

`torch.export.load` unpickles parts of the archive, evaluates its size expressions as Python, and resolves the names of
operations by attribute lookup from `torch` downwards, modules such as `torch.os` included. So the archive is read here
first: what is not plain numbers and known operations is refused, what only serves debugging is left out, and torch gets
a new archive in memory that holds nothing but what was checked.
"""

import io
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import nn

from ..errors import InputError
from ..subject.modes import quiet_export
from ..subject.nodes import mutates
from .pickles import check_pickle, culprit
from .untrusted import RefusedError, check_fits, first_line, reading
from .zips import Archive, Member, Patchwork, Window

_MODEL = "models/model.json"
_INPUTS = "data/sample_inputs/model.pt"
_CONFIGS = {
    "data/weights/": "data/weights/model_weights_config.json",
    "data/constants/": "data/constants/model_constants_config.json",
}
_TEXT, _VALUES = 64 << 20, 3_000_000
"""Bytes and values of a graph in JSON: some hundred thousand operations."""
_SLACK = 1 << 20
"""Bytes in a record, or in a tensor, that nobody counts."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKENS = re.compile(r"(?:\s|[A-Za-z_][A-Za-z0-9_]*|\d{1,20}(?:\.\d{1,20})?|[<>]=?|[!=]=|[-+*/%(),&|~])*")
_WRITTEN_OUT = re.compile(r"Symbol\('([a-z]{1,2}\d+)'(?:, (?:positive|integer|nonnegative|real)=True)*\)")
_POWERS = re.compile(r"\*\s*\*|<\s*<|>\s*>")
_SYMBOL = re.compile(r"[a-z]{1,2}\d+")
_FUNCTIONS = frozenset(
    re.findall(
        r"\w+",
        "FloorDiv ModularIndexing Where PythonMod Mod CleanDiv CeilToInt FloorToInt CeilDiv FloatTrueDiv "
        "IntTrueDiv IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt RoundToInt "
        "RoundDecimal ToFloat Identity Max Min Eq Ne Lt Le Gt Ge And Or Not Abs ceiling floor "
        "Add Mul Integer Rational true false True False oo int_oo",
    )
)
_PLAIN_TARGETS = re.compile(
    r"_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|pow|eq|ne|lt|le|gt|ge)"
    r"|torch\.sym_(max|min|float|int|not|ite|sum|sqrt)|torch\._sym_sqrt|math\.(ceil|floor|trunc)"
)
_ATEN = re.compile(r"torch\.ops\.aten\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")
_TREE_TYPES = (None, "builtins.tuple", "builtins.list", "builtins.dict")
_REFUSED_ARGUMENTS = ("as_operator", "as_graph", "as_custom_obj")
_NAMES = ("as_name", "graph_name")


def load_pt2(path: Path) -> nn.Module:
    """The network of a `.pt2` file, with its parameters; refuses files that could run code, and runs none."""
    with reading(path, ".pt2 file, as torch.export.save writes it"), io.FileIO(path) as file:
        try:
            clean = _rewritten(Archive(Window(file)))
        except KeyError as missing:
            raise ValueError(f"it holds no {missing}") from None
        return _module(path, clean)


def _records(archive: Archive) -> dict[str, Member]:
    """The files of the archive, without the folder that they all lie in."""
    if len({name.partition("/")[0] for name in archive.members}) != 1:
        raise ValueError("its files do not lie in one folder")
    return {name.partition("/")[2]: member for name, member in archive.members.items()}


def _rewritten(archive: Archive) -> Patchwork:
    """A new archive of the parts that were checked; the numbers stay in the old one."""
    records = _records(archive)
    _check_format(archive, records)
    kept: dict[str, bytes | Member] = {
        name: archive.read(records[name].name, 64)
        for name in ("archive_format", "archive_version", "byteorder", "version", ".data/version")
        if name in records
    }
    configs = {folder: _json(archive, records[config]) for folder, config in _CONFIGS.items()}
    numbers = {folder: _numbers(folder, config, records) for folder, config in configs.items()}
    check_fits(sum(member.size for found in numbers.values() for member in found.values()))
    kept[_MODEL] = _checked_model(_json(archive, records[_MODEL]))
    _check_inputs(archive, records)
    kept[_INPUTS] = b""
    for folder, config in _CONFIGS.items():
        kept |= numbers[folder]
        kept[config] = json.dumps(configs[folder]).encode()
    new = Patchwork(archive)
    for name, content in kept.items():
        new.add(f"model/{name}", content)
    new.finish()
    return new


def _check_format(archive: Archive, records: dict[str, Member]) -> None:
    if "serialized_exported_program.json" in records or ("version" in records and _MODEL not in records):
        raise ValueError("it has the format of torch before 2.8; save it again")
    if _MODEL not in records:
        raise ValueError(f"it holds no {_MODEL}")
    if "byteorder" in records and archive.read(records["byteorder"].name, 64).decode() != sys.byteorder:
        raise ValueError("it comes from a machine with another order of bytes")
    for name in records:
        if name.startswith(("data/aotinductor/", "data/executorch/", "data/mtia/")):
            raise RefusedError(f"it holds compiled code, '{name}'")
        if name in ("data/weights/model.pt", "data/constants/model.pt"):
            raise RefusedError(f"'{name}' is a pickle")


def _json(archive: Archive, member: Member) -> Any:
    """A record in JSON; refused where it would take far more memory than a graph does."""
    text = archive.read(member.name, _TEXT)
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > _VALUES:
        raise RefusedError(f"'{member.name}' holds more than {_VALUES:,} values")
    return json.loads(text)


def _numbers(folder: str, config: Any, records: dict[str, Member]) -> dict[str, Member]:
    """The records of raw tensors, each as large as the tensors in it need: neither less nor much more."""
    needed: dict[str, int] = {}
    for name, payload in _payloads(config):
        needed[folder + name] = max(needed.get(folder + name, 0), _extent(payload["tensor_meta"]))
        _check_size(folder + name, _extent(payload["tensor_meta"]), records[folder + name].size)
    for name, extent in needed.items():
        if records[name].size > _SLACK + extent * 3 // 2:
            raise RefusedError(f"'{name}' holds {records[name].size:,} bytes, its tensors take {extent:,}")
    return {name: records[name] for name in needed}


def _check_size(name: str, extent: int, held: int) -> None:
    if extent > held:
        raise RefusedError(f"'{name}' announces {extent:,} bytes of numbers, and holds {held:,}")


def _extent(meta: dict[str, Any]) -> int:
    """Bytes from the start of a record to the last number of a tensor; all of its numbers, where those are more."""
    sizes, strides = ([_whole(n) for n in meta[key]] for key in ("sizes", "strides"))
    if len(sizes) != len(strides):
        raise ValueError(f"a tensor of {len(sizes)} dimensions has {len(strides)} strides")
    item = torch.empty(0, dtype=_dtype(meta["dtype"])).element_size()
    count = math.prod(sizes)
    last = _whole(meta["storage_offset"]) + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1
    spread = count * item if count * item > _SLACK else 0  # a small tensor may stand for a large one, by strides of 0
    return max(last * item, spread) if count else 0


def _whole(number: Any) -> int:
    found = number["as_int"]
    if type(found) is not int or not 0 <= found < 1 << 48:
        raise ValueError(f"{str(found)[:40]} is not a size")
    return found


def _dtype(code: Any) -> torch.dtype:
    """The type of numbers behind its code in the archive."""
    from torch._export.serde.serialize import deserialize_scalar_type

    try:
        return deserialize_scalar_type(code)
    except (KeyError, TypeError):
        raise ValueError(f"{str(code)[:40]} is not a type of numbers") from None


def _payloads(config: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The raw tensors that a configuration points to: the names of their records, and what it says of them."""
    _check(config)
    for entry, payload in config["config"].items():
        name = payload["path_name"]
        if payload["use_pickle"] or not re.fullmatch(r"(weight|tensor)_\d+", name):
            raise RefusedError(f"'{entry}' is a pickled object, '{name}'")
        yield name, payload


def _check_inputs(archive: Archive, records: dict[str, Member]) -> None:
    """The example inputs have to be plain tensors, though nothing is done with them."""
    if not records.get(_INPUTS) or not records[_INPUTS].size:
        return
    try:
        check_pickle(archive.window(records[_INPUTS].name))
    except RefusedError:
        raise
    except Exception as error:
        raise RefusedError(f"its example inputs are a pickle of more than tensors ({culprit(error)})") from None


def _checked_model(model: Any) -> bytes:
    """The graph without what serves debugging, every name, operation and expression in it checked."""
    model["guards_code"] = []  # code that torch would run; the reader makes its own checks of the inputs
    for expression in model.get("range_constraints", {}):
        _check_expression(expression)
    _check(model)
    return json.dumps(model).encode()


def _check(value: Any, key: str = "") -> None:
    if isinstance(value, dict):
        notes = value.get("metadata")
        if isinstance(notes, dict) and all(isinstance(note, str) for note in notes.values()):
            value["metadata"] = {}
        for name, item in value.items():
            _check_text(name)
            if name in _REFUSED_ARGUMENTS and item is not None:
                raise RefusedError(f"its graph passes code, or graphs, to an operation ({name})")
            _check(item, name)
    elif isinstance(value, list):
        for item in value:
            _check(item, key)
    elif isinstance(value, str):
        _check_string(value, key)


def _check_string(value: str, key: str) -> None:
    if key == "target":
        _check_target(value)
    elif key == "expr_str":
        _check_expression(value)
    elif key in ("in_spec", "out_spec"):
        _, tree = json.loads(value)
        _check_tree(tree)
    elif key == "forward_arg_names" or key in _NAMES:
        if not _IDENTIFIER.fullmatch(value):
            raise RefusedError(f"'{value[:60]}' is not a name")
    else:
        _check_text(value)


def _check_text(value: str) -> None:
    """No text that could leave the quotes of generated code."""
    if re.search(r"[\"'`\\{}]|[^\x20-\x7e\u00a0-\U0010ffff]", value):
        raise RefusedError(f"a name in it has quotes, braces or control characters: {value[:60]!r}")


def _check_target(target: str) -> None:
    if _PLAIN_TARGETS.fullmatch(target):
        return
    match = _ATEN.fullmatch(target)
    packet = getattr(torch.ops.aten, match[1], None) if match and not _dunder(match[1]) else None
    if match is None or not isinstance(packet, torch._ops.OpOverloadPacket) or match[2] not in packet.overloads():
        raise RefusedError(f"'{target[:80]}' is not an operation of aten")
    schema = getattr(packet, match[2])._schema
    if any("file" in argument.name for argument in schema.arguments):
        raise RefusedError(f"'{target}' touches files")


def _dunder(name: str) -> bool:
    return name.startswith("__") and name not in ("__and__", "__or__", "__xor__", "__lshift__", "__rshift__")


def _check_expression(text: str) -> None:
    """Sizes as sympy prints them; no attribute, no index, no string, no power, no name but sizes and functions."""
    short = _WRITTEN_OUT.sub(r"\1", text)
    known = all(word in _FUNCTIONS or _SYMBOL.fullmatch(word) for word in _IDENTIFIER.findall(short))
    if len(text) > 4000 or not _TOKENS.fullmatch(short) or not known or _POWERS.search(short):
        raise RefusedError(f"{text[:80]!r} is not an expression of sizes")


def _check_tree(tree: dict[str, Any]) -> None:
    """The form of inputs and outputs: tuples, lists and dicts, nothing that would be imported."""
    context = tree["context"]
    if tree["type"] not in _TREE_TYPES:
        raise RefusedError(f"its inputs or outputs are of type '{str(tree['type'])[:60]}'")
    if isinstance(context, str):
        context = json.loads(context)
    if not (context is None or (isinstance(context, list) and all(isinstance(k, str | int) for k in context))):
        raise RefusedError(f"its inputs or outputs have keys that are not names: {str(context)[:60]}")
    for key in context or ():
        _check_text(str(key))
    for child in tree["children_spec"]:
        _check_tree(child)


def _module(path: Path, archive: Patchwork) -> nn.Module:
    """The module of a checked archive, as minsharp reads modules."""
    try:
        with quiet_export():
            program = torch.export.load(cast(IO[bytes], archive))
            _check_batch(path, program)
            if any(map(mutates, program.graph.nodes)):
                program = program.run_decompositions({})
            module = program.module(check_guards=False)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"'{path}' is not a .pt2 file that torch {torch.__version__} loads: {first_line(error)}"
        ) from error
    for name in ("train", "eval"):  # torch puts methods there that refuse; eval mode is what was exported
        module.__dict__.pop(name, None)
    _tie(module)
    return module.eval()


def _check_batch(path: Path, program: Any) -> None:
    """The network has to take batches of any size."""
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in program.graph_signature.user_inputs:
            shape = getattr(node.meta.get("val"), "shape", ())
            sizes = list(shape)
            if sizes and isinstance(sizes[0], int):
                raise InputError(
                    f"'{path}' was exported for batches of {sizes[0]} samples and no other. Export it again with "
                    "torch.export.export(model, (x,), dynamic_shapes=[{0: torch.export.Dim.AUTO}])"
                )


def _tie(module: nn.Module) -> None:
    """Parameters that share their memory become one, as they were before they were saved."""
    first: dict[Any, nn.Parameter] = {}
    for name, parameter in list(module.named_parameters(remove_duplicate=False)):
        key = (parameter.data_ptr(), parameter.shape, parameter.stride(), parameter.dtype)
        same = first.setdefault(key, parameter)
        if parameter.numel() and same is not parameter:
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, same)
