"""What is installed, and whether it computes what it should: what ``minsharp doctor`` does."""

import platform
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from time import perf_counter
from typing import Any

from ..extras import how_to_install
from ..text import magnitude, number
from ..version import __version__
from .output import FailureError, console, print_json

PACKAGE = "minsharp"
_OF_DEVELOPERS = ("dev", "docs", "test")
"""Extras that bring nothing to who uses the package."""
_REQUIREMENT = re.compile(
    r"\s*([\w.-]+)\s*(?:\[([\w., -]*)\])?\s*(?:>=\s*([\d.]+))?[^;]*(?:;.*extra\s*==\s*['\"]([\w-]+))?"
)


@dataclass(frozen=True)
class Part:
    """A package that minsharp needs, or that one of its extras needs."""

    name: str
    needed: str
    """The least version; empty where any will do."""
    found: str
    """The version that is installed; empty where there is none."""

    @property
    def is_well(self) -> bool:
        """Whether it is there, and new enough."""
        return bool(self.found) and _numbers(self.found) >= _numbers(self.needed)

    def __str__(self) -> str:
        least = f" (needs {self.needed})" if self.found and not self.is_well else ""
        return f"{self.name} {self.found or 'is missing'}{least}"


@dataclass(frozen=True)
class Trial:
    """A trace on one device, against a dense Hessian."""

    device: str
    error: float
    allowed: float
    seconds: float
    trouble: str = ""

    @property
    def holds(self) -> bool:
        """Whether it ran, and the two agree."""
        return not self.trouble and self.error <= self.allowed


def examined(*, as_json: bool) -> None:
    """Look, try, and tell; a failure if something that is needed is missing or wrong."""
    groups = extras(requires(PACKAGE) or []) if _installed(PACKAGE) else {}
    needed = groups.pop("", [])
    groups = {extra: parts for extra, parts in groups.items() if extra not in _OF_DEVELOPERS}
    trials, trouble = _trials()
    system = {"Python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    if as_json:
        print_json(_document(system, needed, groups, trials, trouble))
    else:
        _print(system, needed, groups, trials)
    bad = [str(part) for part in needed if not part.is_well]
    bad += [trouble] if trouble else []
    bad += [f"the self-test fails on {t.device}: {_verdict(t)}" for t in trials if not t.holds]
    if bad:
        raise FailureError("; ".join(bad))


def extras(lines: list[str]) -> dict[str, list[Part]]:
    """The packages of each extra from the metadata; those that are always needed are under the empty name.

    >>> found = extras(["torch>=2.6", "ray>=2.9; extra == 'ray'", "minsharp[images]; extra == 'ray'",
    ...                 "pillow>=10; extra == 'images'"])
    >>> {name: [(part.name, part.needed) for part in parts] for name, parts in found.items()}
    {'': [('torch', '2.6')], 'ray': [('ray', '2.9'), ('pillow', '10')], 'images': [('pillow', '10')]}
    """
    groups: dict[str, list[tuple[str, str, str]]] = {"": []}
    for match in filter(None, map(_REQUIREMENT.match, lines)):
        name, within, least, extra = match.groups(default="")
        groups.setdefault(extra, []).append((name, within, least))
    return {extra: [Part(name, least, _version(name)) for name, least in _flat(groups, extra)] for extra in groups}


def _flat(groups: dict[str, list[tuple[str, str, str]]], extra: str) -> Iterator[tuple[str, str]]:
    """The packages of an extra, and those of the extras that it takes up."""
    for name, within, least in groups.get(extra, []):
        if name == PACKAGE:
            for other in within.split(","):
                yield from _flat(groups, other.strip())
        else:
            yield name, least


def _installed(name: str) -> bool:
    return bool(_version(name))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version.

    >>> _numbers("2.13.0+cpu"), _numbers("")
    ((2, 13, 0), ())
    """
    leading = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, leading.group().split("."))) if leading else ()


def _trials() -> tuple[list[Trial], str]:
    """The self-test on every device; and why there is none, where torch cannot be loaded."""
    try:
        from . import selftest
    except Exception as error:
        return [], f"minsharp cannot be loaded: {type(error).__name__}: {error}"
    return [_tried(device, selftest) for device in selftest.devices()], ""


def _tried(device: str, selftest: Any) -> Trial:
    start = perf_counter()
    try:
        error, allowed = selftest.error_on(device)
    except Exception as trouble:
        return Trial(device, float("nan"), 0.0, perf_counter() - start, f"{type(trouble).__name__}: {trouble}")
    return Trial(device, error, allowed, perf_counter() - start)


def _verdict(trial: Trial) -> str:
    return trial.trouble or f"relative error {magnitude(trial.error)}, allowed {magnitude(trial.allowed)}"


def _document(
    system: dict[str, str], needed: list[Part], groups: dict[str, list[Part]], trials: list[Trial], trouble: str
) -> dict[str, Any]:
    told = {extra: {part.name: part.found or None for part in parts} for extra, parts in groups.items()}
    tests = [{**asdict(trial), "holds": trial.holds} for trial in trials]
    packages = {part.name: part.found or None for part in needed}
    document = {"minsharp": __version__, **system, "packages": packages, "extras": told, "self_test": tests}
    return {**document, "trouble": trouble or None}


def _print(system: dict[str, str], needed: list[Part], groups: dict[str, list[Part]], trials: list[Trial]) -> None:
    out = console()

    def line(head: str, text: str) -> None:
        out.print(f"{head:<16}{text}", markup=False)

    line(PACKAGE, f"{__version__}, Python {system['Python']}, {system['system']}")
    line("packages", ", ".join(map(str, needed)) or "unknown: minsharp runs from a folder that was not installed")
    for extra, parts in groups.items():
        lacking = [str(part) for part in parts if not part.is_well]
        how = f"; {how_to_install(extra)}" if lacking else ""
        line(f"[{extra}]", (", ".join(lacking) or "all there") + how)
    for trial in trials:
        verdict = f"{'holds' if trial.holds else 'FAILS'}: {_verdict(trial)}, {number(trial.seconds, 2)} s"
        line(trial.device, f"trace against a dense Hessian {verdict}")
