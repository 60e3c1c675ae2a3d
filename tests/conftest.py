"""Fixtures that several files share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def mnist_folder() -> Path:
    """The folder with the four files of MNIST, which the variable MINSHARP_MNIST names; the test is skipped without."""
    folder = os.environ.get("MINSHARP_MNIST")
    if folder is None:
        pytest.skip("needs MNIST: set MINSHARP_MNIST to its folder")
    return Path(folder)
