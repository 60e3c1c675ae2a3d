"""Ray: the cells of an experiment as tasks of a cluster. Needs the extra ``ray``.

A task returns its rows, and whoever started the run writes them into the folder: the machines of the cluster need not
share a disk. A cell whose worker or machine is lost runs again elsewhere.
"""

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import InputError, MinsharpError
from ..experiments.plan import Configuration
from ..experiments.pool import Executor, Job, LostError
from ..extras import required

RETRIES = 10
"""How often a cell may lose its worker."""
PULSE = 5.0
"""Seconds without a finished cell after which the head of the cluster is asked for: Ray ends the process if it is gone
for a minute."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Ray(Executor):
    """Tasks of the cluster at ``address``, or of one that is started here for the run, or of the one in use already.

    Each cell asks for one CPU, and for a GPU if its settings name a CUDA device.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self.ray = required("ray", "running on a cluster", "ray")

    def run(self, job: Job, cells: Sequence[Configuration]) -> Iterator[Configuration]:
        """Each cell once its rows have come back and are written."""
        gpus = 1 if str(job.settings.get("device", "cpu")).startswith("cuda") else 0
        with self._connected(), _sent_along(self.ray, job.work):
            needs = {"num_cpus": 1, "num_gpus": gpus, "max_retries": RETRIES, "runtime_env": {"env_vars": _ONE_THREAD}}
            task = self.ray.remote(**needs)(_rows)
            waiting = {task.remote(job, cell): cell for cell in cells}
            try:
                while waiting:
                    done, _ = self.ray.wait(list(waiting), num_returns=1, timeout=PULSE)
                    if not done:
                        self._look_for_head()
                        continue
                    cell = waiting.pop(done[0])
                    job.keep(cell, self._got(done[0]))
                    yield cell
            except LostError:
                waiting.clear()  # nobody is left to be told
                raise
            finally:
                for left in waiting:
                    self.ray.cancel(left, force=True)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Inside a cluster: the one that this process is in, or another, which is left at the end."""
        if self.ray.is_initialized():
            yield
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        here: dict[str, Any] = {"include_dashboard": False} if self.address is None else {}
        try:
            _knock(self.address)
            self.ray.init(address=self.address, log_to_driver=False, **here)
        except Exception as error:
            what = "cannot be started here" if self.address is None else f"is not to be reached at '{self.address}'"
            reason = " ".join(str(error).split())[:300]
            raise InputError(f"a Ray cluster {what}: {type(error).__name__}: {reason}") from error
        try:
            yield
        finally:
            self.ray.shutdown()

    def _look_for_head(self) -> None:
        """Raise where the head of the cluster does not answer."""
        through_client = (self.address or "").startswith("ray://")
        address = self.address if through_client else self.ray.get_runtime_context().gcs_address
        try:
            _knock(address)
        except OSError as error:
            raise LostError(f"the head of the Ray cluster at '{address}' is gone: {error}") from error

    def _got(self, task: Any) -> list[dict[str, Any]]:
        try:
            rows, trouble = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            text = " ".join(str(error).split())[:300]
            raise MinsharpError(f"a cell lost its worker more than {RETRIES} times: {text}") from error
        if trouble:
            raise MinsharpError(trouble)
        found: list[dict[str, Any]] = rows
        return found


def _knock(address: str | None) -> None:
    """Raise at once where nobody listens at host:port: Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


def _rows(job: Job, cell: Configuration) -> tuple[list[dict[str, Any]], str]:
    """The rows of a cell, or what went wrong with it: that would be tried again in vain."""
    import torch

    torch.set_num_threads(1)
    try:
        return job.rows(cell), ""
    except MinsharpError as error:
        return [], str(error)


@contextmanager
def _sent_along(ray: Any, work: Any) -> Iterator[None]:
    """An experiment of one's own travels with its tasks: the cluster need not have the module that it is in."""
    module = sys.modules.get(work.__module__)
    if module is None or work.__module__.partition(".")[0] == "minsharp":
        yield
        return
    ray.cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        ray.cloudpickle.unregister_pickle_by_value(module)
