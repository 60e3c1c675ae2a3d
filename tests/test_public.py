"""The public names: all there, and no heavier to import than they need be."""

import subprocess
import sys
from types import ModuleType

import pytest

import minsharp as ms

HEAVY = ("matplotlib", "pooch", "rich", "scipy", "sklearn", "typer", "minsharp.measures", "minsharp.report")


def test_every_public_name_is_there() -> None:
    assert set(ms.__all__) <= set(dir(ms))
    for name in ms.__all__:
        found = getattr(ms, name)
        assert found.__name__ == (f"minsharp.{name}" if isinstance(found, ModuleType) else name)
        assert isinstance(found, ModuleType) or found.__module__.startswith("minsharp.")


@pytest.mark.parametrize("package", [ms.losses, ms.measures])
def test_every_name_of_a_package_is_what_it_says(package: ModuleType) -> None:
    """Some measures are called like the module that they are in: the name is the measure."""
    for name in package.__all__:
        assert callable(getattr(package, name)) or name == "Criterion"


def test_results_that_functions_return_answer_too() -> None:
    assert getattr(ms, "MinimumSharpness") is ms.measures.MinimumSharpness  # noqa: B009


def test_a_name_that_does_not_exist() -> None:
    assert not hasattr(ms, "maximum_sharpness")


def test_importing_stays_light() -> None:
    load = "from minsharp import hessian_trace, read; import sys"
    code = f"{load}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
