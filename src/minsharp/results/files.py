"""Results as files: `.json` for people and small ones, `.safetensors` for any; never a pickle.

A file holds the kind of result, each of its fields by name, and the version of the format. What the network does is not
part of the numbers: a result that was loaded knows its parameters, not its operations.
"""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import InputError
from ..files import check_writable, read_json, write_atomically, write_text
from ..io.untrusted import BROKEN, reading
from ..version import __version__
from .codec import document_of, listed, unlisted, value_of

FORMAT = 1
MOST_TEXT = 64 << 20
"""Bytes that a `.json` file may have."""
_SUFFIXES = (".json", ".safetensors")
_KEY = "minsharp"
KINDS: dict[str, type["Saved"]] = {}
"""The results that go into files, by name: nothing else is made of one."""


class Saved:
    """A result that goes into a file, and comes back as it was."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__name__.startswith("_"):
            KINDS[cls.__name__] = cls

    def save(self, path: str | Path) -> Path:
        """Write the result to a `.json` or `.safetensors` file, whole or not at all; `minsharp.load` reads it.

        >>> import tempfile, torch, minsharp
        >>> trace = minsharp.hessian_trace(torch.nn.Linear(3, 2), torch.ones(4, 3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     minsharp.load(trace.save(folder + "/trace.json")) == trace
        True
        """
        target = check_writable(path, _SUFFIXES)
        return _save_text(self, target) if target.suffix.lower() == ".json" else _save_tensors(self, target)

    def check_whole(self) -> None:
        """Raise a ValueError if what came from a file cannot be a result of this kind."""


def _head(result: Saved, fields: Any) -> dict[str, Any]:
    return {_KEY: FORMAT, "version": __version__, "kind": type(result).__name__, "fields": fields}


def _save_text(result: Saved, target: Path) -> Path:
    text = json.dumps(_head(result, document_of(result, listed)), allow_nan=False) + "\n"
    if len(text) > MOST_TEXT:
        raise InputError(f"'{target}' would have {len(text):,} bytes: save so large a result as .safetensors")
    return write_text(target, text)


def _save_tensors(result: Saved, target: Path) -> Path:
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}

    def keep(place: str, tensor: Tensor) -> str:
        tensors[place] = tensor.cpu().contiguous().clone()  # of its own: safetensors takes no shared memory
        return place

    text = json.dumps(_head(result, document_of(result, keep)), allow_nan=False)
    return write_atomically(target, lambda draft: save_file(tensors, draft, {_KEY: text}))


def loaded(path: str | Path) -> Saved:
    """The result in a file, of a kind that has been imported; nothing in the file is run."""
    source = Path(path)
    if source.suffix.lower() not in _SUFFIXES:
        raise InputError(f"'{source}': expected a .json or .safetensors file that a result was saved to")
    with reading(source, "result that minsharp saved", BROKEN):
        if source.suffix.lower() == ".json":
            return _result(read_json(source, MOST_TEXT), unlisted)
        return _from_tensors(source)


def _from_tensors(source: Path) -> Saved:
    from ..io.weights import metadata_of, safetensors_of

    tensors, text = safetensors_of(source), metadata_of(source).get(_KEY)
    if text is None:
        raise ValueError("it holds tensors, and no word of a result")

    def fetch(place: Any) -> Tensor:
        if not isinstance(place, str) or place not in tensors:
            raise ValueError(f"it holds no tensor {str(place)[:60]!r}")
        return tensors[place]

    return _result(json.loads(text), fetch)


def _result(document: Any, fetch: Any) -> Saved:
    if not isinstance(document, dict) or _KEY not in document:
        raise ValueError("it does not say that it is a result")
    if document[_KEY] != FORMAT:
        raise ValueError(f"it has format {str(document[_KEY])[:20]!r}, this version of minsharp reads {FORMAT}")
    kind = KINDS.get(str(document.get("kind")))
    if kind is None:
        raise ValueError(f"it holds a {str(document.get('kind'))[:60]!r}; known are {', '.join(sorted(KINDS))}")
    result: Saved = value_of(kind, document.get("fields"), fetch)
    result.check_whole()
    return result
