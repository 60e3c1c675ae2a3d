"""A command on several processes that torchrun started: each takes its part of the data, and one of them speaks.

Whatever fails on one of them fails on all: the last thing that each does is to tell the others how it ended.
"""

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from datetime import timedelta
from typing import Any

PATIENCE = timedelta(minutes=30)
"""How long one process waits for another that is alive. One that has ended is noticed at once."""
SHARED = ("measure",)
"""The commands that split their work."""


def launched() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def group() -> Any:
    """The processes that work together; none if this one works alone."""
    if not launched():
        return None
    import torch.distributed as dist

    return dist.group.WORLD if dist.is_initialized() else None


def speaks() -> bool:
    """Whether this process writes files and prints."""
    return not launched() or os.environ.get("RANK", "0") == "0"


def run_together(work: Callable[[], int]) -> int:
    """Run a command as one of several processes; the exit code, not zero if another one failed."""
    import torch.distributed as dist

    from . import output

    dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        with output.kept_complaints() as complaints, open(os.devnull, "w", encoding="utf-8") as nowhere:
            with redirect_stdout(sys.stdout if speaks() else nowhere):
                code = work()
            return _ended(code, complaints)
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()


def _ended(code: int, complaints: list[object]) -> int:
    """Tell the others how it ended, unless they know; rank 0 says what went wrong, wherever it did."""
    from ..errors import RankError
    from ..results.reduce import Failure, agreed
    from . import output

    known = next((error for error in complaints if isinstance(error, RankError)), None)
    if known is None:
        rank = os.environ.get("RANK", "0")
        failed = Failure(f"rank {rank}: {' '.join(map(str, complaints)) or 'interrupted'}") if code else None
        try:
            agreed(failed, lambda mine, heard: mine, group())
        except RankError as error:
            known, code = error, code or 1
    if known is not None and speaks():
        output.say_error(complaints[0] if complaints else known)
    elif known is not None and "rank 0 " in str(known):  # who would have said it is gone
        output.say_error(known)
    return code
