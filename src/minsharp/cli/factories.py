"""Models as the command line names them: exported files, and factories with their arguments."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import InputError, words_of
from ..files import is_file
from ..io.pt2 import load_pt2
from ..io.weights import PICKLED, load_weights
from .choices import ModelChoice, arguments_of
from .output import note

_LONGEST = 400
"""Characters of a signature that an error shows."""


def load_model(choice: ModelChoice) -> nn.Module:
    """A model from a `.pt2` file or from ``package.module:factory``, with weights from a file if one is given.

    Its BatchNorms are folded if that is asked for.
    """
    module = _loaded(choice)
    if not choice.fold:
        return module
    from ..network.fold import fold_batchnorm

    return fold_batchnorm(module.eval())


def _loaded(choice: ModelChoice) -> nn.Module:
    """The model as it comes."""
    arguments = arguments_of(choice.arguments)
    if choice.name.lower().endswith(".pt2"):
        path = Path(choice.name)
        if not is_file(path):
            raise InputError(f"there is no file '{choice.name}'")
        if arguments:
            raise InputError(f"--arg {choice.arguments[0]}: a .pt2 file takes no arguments; package.module:factory may")
        module = load_pt2(path)
    elif re.fullmatch(r"[\w./\\-]+\.py:[A-Za-z_][\w.]*", choice.name):
        raise InputError(f"'{choice.name}': expected a module as it is imported, {_module_of(choice.name)}")
    elif re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", choice.name):
        module = _made(choice.name, arguments)
    elif choice.name.lower().endswith((".safetensors", *PICKLED)):
        raise InputError(
            f"'{choice.name}' holds weights, and does not say of which network: minsharp measure "
            f"package.module:factory --weights {choice.name}"
        )
    else:
        raise InputError(
            f"'{choice.name}' is not a model: expected a .pt2 file (torch.export.save), or package.module:name, a "
            "network or a callable that returns one, with --arg name=value for its arguments"
        )
    if choice.weights is not None:
        place = load_weights(module, choice.weights, choice.weights_key)
        if place.key:
            note(f"the weights in '{choice.weights}' are at {place}")
    elif choice.weights_key is not None:
        raise InputError(f"--weights-key {choice.weights_key}: of which file? --weights FILE")
    return module


def _module_of(path: str) -> str:
    """A file and a name in it, as a module and a name.

    >>> _module_of("src/nets.py:Net")
    'src.nets:Net'
    """
    file, _, name = path.partition(":")
    return ".".join(part for part in re.split(r"[/\\]", file.removesuffix(".py")) if part not in ("", ".")) + f":{name}"


def _made(model: str, arguments: dict[str, Any]) -> nn.Module:
    """What a factory returns; the current folder is on the path, as with ``python -m``."""
    name, _, attribute = model.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with _asked(f"cannot import '{name}' for the model '{model}'"):
        factory: Any = importlib.import_module(name)
    for part in attribute.split("."):
        with _asked(f"'{name}' cannot tell its '{attribute}', which the model '{model}' asks for"):
            known = hasattr(factory, part)
        if not known:
            near = get_close_matches(part, dir(factory), 1)
            hint = f"; it has '{near[0]}'" if near else ""
            raise InputError(f"'{name}' has no '{attribute}', which the model '{model}' asks for{hint}")
        factory = getattr(factory, part)
    if isinstance(factory, nn.Module):
        if arguments:
            raise InputError(f"--arg: '{model}' is a {type(factory).__name__} already, and takes no arguments")
        return factory
    module = _called(model, factory, arguments)
    if not isinstance(module, nn.Module):
        raise InputError(f"'{model}' returns a {type(module).__name__}, expected a torch.nn.Module")
    return module


def _called(model: str, factory: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    signature = _signature_of(factory)
    if signature is not None:
        _check(model, signature, arguments)
    given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    shown = "" if signature is None else f" (it takes {_text(model, signature)})"
    with _asked(f"'{model}' could not be called {f'with {given}' if given else 'without arguments'}{shown}"):
        return factory(**arguments)


def _signature_of(factory: Callable[..., Any]) -> Signature | None:
    try:
        return inspect.signature(factory)
    except (TypeError, ValueError):  # not callable, or written in another language
        return None


def _check(model: str, signature: Signature, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that do not go with a signature, and show the call that would."""
    try:
        signature.bind(**arguments)
    except TypeError as error:
        words = "".join(f" --arg {name}={value}" for name, value in _mended(signature, arguments).items())
        any_name = any(p.kind is Parameter.VAR_KEYWORD for p in signature.parameters.values())
        unknown = [name for name in arguments if not any_name and name not in signature.parameters]
        cause = f"it has no argument '{unknown[0]}'" if unknown else str(error)
        text = f"'{model}': {cause}. It takes {_text(model, signature)}. Call it with: {model}{words}"
        raise InputError(text) from None


def _mended(signature: Signature, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments under names that the signature has, and those that it cannot do without."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    named = {name: p for name, p in signature.parameters.items() if p.kind in kinds}
    near = {name: get_close_matches(name, named, 1) if name not in named else [name] for name in arguments}
    kept = {match: arguments[name] for name, found in near.items() for match in found}
    needed = [name for name, p in named.items() if p.default is Parameter.empty]
    return kept | {name: "VALUE" for name in needed if name not in kept}


def _text(model: str, signature: Signature) -> str:
    """A signature without its types."""
    bare = [p.replace(annotation=Parameter.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=Signature.empty))
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + " ...)"
    return model.rpartition(":")[2].rpartition(".")[2] + text


@contextmanager
def _asked(trouble: str) -> Iterator[None]:
    """Other people's code: whatever it raises, also to end the program, is an error that names it."""
    try:
        yield
    except (KeyboardInterrupt, InputError):
        raise
    except ImportError as error:
        raise InputError(f"{trouble}: {words_of(error)}") from error
    except BaseException as error:
        raise InputError(f"{trouble}: {type(error).__name__}: {words_of(error)}") from error
