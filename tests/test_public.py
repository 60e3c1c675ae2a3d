"""The public names: all there, and no heavier to import than they need be."""

import subprocess
import sys

import minsharp as ms

HEAVY = ("matplotlib", "pooch", "rich", "scipy", "sklearn", "typer", "minsharp.measures", "minsharp.report")


def test_every_public_name_is_there() -> None:
    assert set(ms.__all__) <= set(dir(ms))
    for name in ms.__all__:
        found = getattr(ms, name)
        assert found.__name__ == name
        assert found.__module__.startswith("minsharp.")


def test_a_name_that_does_not_exist() -> None:
    assert not hasattr(ms, "maximum_sharpness")


def test_importing_stays_light() -> None:
    load = "from minsharp import hessian_trace, read; import sys"
    code = f"{load}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
