"""Networks of timm as they come."""

import pytest

from .case import Case, check
from .timm_models import MODELS


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name)
def test_measured_as_it_comes(case: Case) -> None:
    check(case)
