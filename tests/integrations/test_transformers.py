"""Networks of transformers as they come: objects with logits, batches of a collator, caches, rotary embeddings."""

import pytest

from .case import Case, check
from .transformers_models import AUDIO, DECODERS, ENCODERS, VISION


@pytest.mark.parametrize("case", [*ENCODERS, *DECODERS, *VISION, *AUDIO], ids=lambda case: case.name)
def test_measured_as_it_comes(case: Case) -> None:
    check(case)
