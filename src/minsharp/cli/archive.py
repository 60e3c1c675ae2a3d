"""`.pt2` files without trust: nothing in them may run.

`torch.export.load` unpickles parts of the archive, evaluates its size expressions as Python, and resolves the names of
operations by attribute lookup from `torch` downwards, modules such as `torch.os` included. So the archive is read here
first: what is not plain numbers and known operations is refused, what only serves debugging is left out, and torch gets
a new archive in memory that holds nothing but what was checked.
"""

import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..network.reader import mutates
from ..network.reader import quiet_export as quiet_export

_MODEL = "models/model.json"
_INPUTS = "data/sample_inputs/model.pt"
_CONFIGS = {
    "data/weights/": "data/weights/model_weights_config.json",
    "data/constants/": "data/constants/model_constants_config.json",
}
_LIMIT = 64 << 30  # bytes that an archive may unpack to

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKENS = re.compile(r"(?:\s|[A-Za-z_][A-Za-z0-9_]*|\d{1,20}(?:\.\d{1,20})?|[-+*/%(),<>=!&|~])*")
_WRITTEN_OUT = re.compile(r"Symbol\('([a-z]{1,2}\d+)'(?:, (?:positive|integer|nonnegative|real)=True)*\)")
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


_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
)


class _RefusedError(Exception):
    """A part of the archive that is not taken on."""


def load_pt2(path: Path) -> nn.Module:
    """The network of a `.pt2` file, with its parameters; refuses files that could run code, and runs none."""
    try:
        records = _records(path)
        clean = _rewritten(records)
    except _RefusedError as reason:
        raise InputError(f"'{path}' is refused: {reason}. Nothing in it was run") from None
    except (
        zipfile.BadZipFile,
        EOFError,
        NotImplementedError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ) as error:
        raise InputError(f"'{path}' is not a whole .pt2 file, as torch.export.save writes it: {_line(error)}") from None
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}") from None
    return _module(path, clean)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _records(path: Path) -> dict[str, bytes]:
    """The files of the archive, without the folder that they all lie in."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if len(set(names)) != len(names):
            raise _RefusedError("it holds two files of the same name")
        if sum(info.file_size for info in archive.infolist()) > _LIMIT:
            raise _RefusedError("it unpacks to more than 64 GiB")
        roots = {name.partition("/")[0] for name in names}
        if len(roots) != 1:
            raise ValueError("its files do not lie in one folder")
        return {name.partition("/")[2]: archive.read(name) for name in names if not name.endswith("/")}


def _rewritten(records: dict[str, bytes]) -> io.BytesIO:
    """A new archive of the parts that were checked."""
    if "serialized_exported_program.json" in records or ("version" in records and _MODEL not in records):
        raise ValueError("it has the format of torch before 2.8; save it again")
    if _MODEL not in records:
        raise ValueError(f"it holds no {_MODEL}")
    strange = [name for name in records if name.startswith(("data/aotinductor/", "data/executorch/", "data/mtia/"))]
    if strange:
        raise _RefusedError(f"it holds compiled code, '{strange[0]}'")
    kept: dict[str, bytes] = {name: records[name] for name in ("archive_format", "archive_version") if name in records}
    kept[_MODEL] = _checked_model(records[_MODEL])
    kept[_INPUTS] = _checked_inputs(records.get(_INPUTS, b""))
    for folder, config in _CONFIGS.items():
        if f"{folder}model.pt" in records:
            raise _RefusedError(f"'{folder}model.pt' is a pickle")
        for name in _payloads(json.loads(records[config])):
            kept[folder + name] = records[folder + name]
        kept[config] = records[config]
    buffer = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(buffer)
    for name, content in kept.items():
        writer.write_record(name, content, len(content))
    writer.write_end_of_file()
    buffer.seek(0)
    return buffer


def _payloads(config: dict[str, Any]) -> Iterator[str]:
    """The names of the raw tensors that a configuration points to."""
    _check(config)
    for entry, payload in config["config"].items():
        name = payload["path_name"]
        if payload["use_pickle"] or not re.fullmatch(r"(weight|tensor)_\d+", name):
            raise _RefusedError(f"'{entry}' is a pickled object, '{name}'")
        yield name


def _checked_inputs(content: bytes) -> bytes:
    """The example inputs, if they are plain tensors: torch would unpickle anything else."""
    if not content:
        return content
    try:
        torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:
        raise _RefusedError(f"its example inputs are a pickle of more than tensors ({_reason(error)})") from None
    return content


def _reason(error: Exception) -> str:
    """What the restricted unpickler met."""
    found = re.search(r"Unsupported (?:global: GLOBAL|class|operand|instruction) ?([\w.]+)|GLOBAL ([\w.]+)", str(error))
    name = next((g for g in found.groups() if g), "") if found else ""
    return f"it names '{name}'" if name else _line(error)[:120]


def _checked_model(content: bytes) -> bytes:
    """The graph without what serves debugging, every name, operation and expression in it checked."""
    model = json.loads(content)
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
                raise _RefusedError(f"its graph passes code, or graphs, to an operation ({name})")
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
            raise _RefusedError(f"'{value[:60]}' is not a name")
    else:
        _check_text(value)


def _check_text(value: str) -> None:
    """No text that could leave the quotes of generated code."""
    if re.search(r"[\"'`\\{}]|[^\x20-\x7e\u00a0-\U0010ffff]", value):
        raise _RefusedError(f"a name in it has quotes, braces or control characters: {value[:60]!r}")


def _check_target(target: str) -> None:
    if _PLAIN_TARGETS.fullmatch(target):
        return
    match = _ATEN.fullmatch(target)
    packet = getattr(torch.ops.aten, match[1], None) if match and not _dunder(match[1]) else None
    if match is None or not isinstance(packet, torch._ops.OpOverloadPacket) or match[2] not in packet.overloads():
        raise _RefusedError(f"'{target[:80]}' is not an operation of aten")
    schema = getattr(packet, match[2])._schema
    if any("file" in argument.name for argument in schema.arguments):
        raise _RefusedError(f"'{target}' touches files")


def _dunder(name: str) -> bool:
    return name.startswith("__") and name not in ("__and__", "__or__", "__xor__", "__lshift__", "__rshift__")


def _check_expression(text: str) -> None:
    """Sizes as sympy prints them; no attribute, no index, no string, no power, no name but sizes and functions."""
    short = _WRITTEN_OUT.sub(r"\1", text)
    known = all(word in _FUNCTIONS or _SYMBOL.fullmatch(word) for word in _IDENTIFIER.findall(short))
    if len(text) > 4000 or not _TOKENS.fullmatch(short) or not known or "**" in short:
        raise _RefusedError(f"{text[:80]!r} is not an expression of sizes")


def _check_tree(tree: dict[str, Any]) -> None:
    """The form of inputs and outputs: tuples, lists and dicts, nothing that would be imported."""
    context = tree["context"]
    if tree["type"] not in _TREE_TYPES:
        raise _RefusedError(f"its inputs or outputs are of type '{str(tree['type'])[:60]}'")
    if isinstance(context, str):
        context = json.loads(context)
    if not (context is None or (isinstance(context, list) and all(isinstance(k, str | int) for k in context))):
        raise _RefusedError(f"its inputs or outputs have keys that are not names: {str(context)[:60]}")
    for key in context or ():
        _check_text(str(key))
    for child in tree["children_spec"]:
        _check_tree(child)


def _module(path: Path, archive: io.BytesIO) -> nn.Module:
    """The module of a checked archive, as minsharp reads modules."""
    try:
        with quiet_export():
            program = torch.export.load(archive)
            _check_batch(path, program)
            if any(map(mutates, program.graph.nodes)):
                program = program.run_decompositions({})
            module = program.module(check_guards=False)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"'{path}' is not a .pt2 file that torch {torch.__version__} loads: {_line(error)}") from error
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


def tensors_of(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` or `.pt`/`.pth` file, by name; a pickle with code in it is refused."""
    if not path.is_file():
        raise InputError(f"there is no file '{path}'")
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return _safetensors(path)
    if suffix not in (".pt", ".pth"):
        raise InputError(f"'{path}': expected a .safetensors, .pt or .pth file of weights")
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise InputError(
                f"'{path}' is refused: a pickle of more than tensors ({_reason(error)}). Nothing in it was run. "
                "Save the state dict alone: torch.save(model.state_dict(), path)"
            ) from None
        raise InputError(f"'{path}' is not a whole file of weights, as torch.save writes it: {_line(error)}") from None
    if isinstance(held, dict) and isinstance(held.get("state_dict"), dict):
        held = held["state_dict"]
    if not isinstance(held, dict) or not all(isinstance(v, Tensor) for v in held.values()):
        raise InputError(f"'{path}' holds a {type(held).__name__}, expected a state dict: names and tensors")
    return {str(name): tensor for name, tensor in held.items()}


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"'{path}' is not a whole .safetensors file: {_line(error)}") from None
