"""Real processes that measure together over gloo: what each of them returns or raises."""

import multiprocessing
import os
import pickle
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any


def on_ranks(work: Callable[[int, int], Any], size: int, seconds: float = 60.0) -> list[Any]:
    """What ``work(rank, size)`` gives on each rank: a result, the text of an error, or "killed".

    ``work`` is a function of a module. Whoever has not ended in time is stopped, and that is an error of the test.
    """
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ears = [spawn.Pipe(duplex=False) for _ in range(size)]
        given = [(work, rank, size, str(Path(folder) / "store"), ears[rank][1]) for rank in range(size)]
        processes = [spawn.Process(target=_run, args=args) for args in given]
        for process in processes:
            process.start()
        for _, mouth in ears:
            mouth.close()  # the end of a process is then the end of its pipe
        try:
            return [_word(ear, seconds, rank) for rank, (ear, _) in enumerate(ears)]
        finally:
            for process in processes:
                process.kill()
                process.join()


def _word(ear: Any, seconds: float, rank: int) -> Any:
    if not ear.poll(seconds):
        raise AssertionError(f"rank {rank} hangs")
    try:
        return pickle.loads(ear.recv_bytes())
    except EOFError:
        return "killed"


def _run(work: Callable[[int, int], Any], rank: int, size: int, store: str, mouth: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=50)
    )
    try:
        found = work(rank, size)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    mouth.send_bytes(pickle.dumps(found))  # not as torch sends tensors, which live as long as their process
    mouth.close()
    dist.destroy_process_group()
