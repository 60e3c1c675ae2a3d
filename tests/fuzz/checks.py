"""Every claim of the package about one case, against dense autograd."""

import re
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import minsharp as ms

from . import dense, further
from .cases import Case, case
from .dense import Dense
from .outcome import Outcome, legitimate
from .state import same, snapshot, spread, unwrapped

WRITES = frozenset({"fill", "zero", "copy", "masked_fill", "select_scatter", "slice_scatter"})
"""What writes in place become: piecewise linear, whatever is written."""
Scope = Literal["layer", "neuron"]
SCOPES: tuple[Scope, ...] = ("layer", "neuron")


class Refused(Exception):  # noqa: N818
    """A call was refused, with a MinsharpError: what follows from it cannot be checked."""


class Examiner:
    """One case with all that is known of it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.outcome = Outcome(case.seed, pieces=[s.piece for s in case.program.steps], forbidden=case.forbidden)
        self.tolerance = case.tolerance
        self.given = case.program.model()
        self.inner = unwrapped(self.given)
        self.inputs = case.inputs()
        self.total = 0.0
        self._outputs: dict[int, Tensor] = {}
        self.smooth = True

    # the truth

    def twin(self, model: nn.Module | None = None) -> nn.Module:
        """The network built again, with the parameters of a model, in eval mode: to differentiate."""
        twin = unwrapped(self.case.program.model())
        held = dict(twin.named_parameters())
        for name, parameter in (self.inner if model is None else unwrapped(model)).named_parameters():
            held[name].data.copy_(parameter.detach())
        return twin.eval()

    def outputs(self, other: nn.Module, draw: int) -> tuple[Tensor, Tensor]:
        """The outputs of the original, and of a copy that the package made: on the data, or on a fresh draw."""
        inputs = self.case.inputs(draw, n=self.case.samples if draw == 0 else 4)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            if draw not in self._outputs:
                self._outputs[draw] = self.case.call(self.twin(), inputs)
            return self._outputs[draw], self.case.call(unwrapped(other).eval(), inputs)

    def truth(self, model: nn.Module | None = None, criterion: Any = None) -> Dense:
        twin = self.twin(model)
        criterion = criterion or self.case.loss.criterion
        run = partial(self.case.call, twin, self.inputs)
        with torch.random.fork_rng(devices=[]):
            return dense.dense(run, dense.trainable(twin), criterion, self.targets)

    def sharpness(self, model: nn.Module) -> tuple[float, float]:
        """The trace of the Gauss-Newton matrix of another network, by autograd, and how much of it may be rounding."""
        found = self.truth(model)
        return float(sum(found.diagonal(n, J.shape[1:]).sum() for n, J in found.jacobians.items())), found.noise

    # bookkeeping

    def fail(self, check: str, detail: str) -> None:
        self.outcome.failures.append((check, detail))

    def expect(self, holds: bool, check: str, detail: str) -> None:
        self.outcome.checks += 1
        if not holds:
            self.fail(check, detail)

    def call(self, name: str, function: Callable[[], Any]) -> Any:
        """A call of the package: its result; only MinsharpErrors may leave it."""
        try:
            return function()
        except ms.MinsharpError as error:
            self.outcome.refusals.append((name, f"{type(error).__name__}: {error}"))
            if not (self.case.forbidden or self.case.odd or legitimate(str(error), self.case.program.source)):
                self.fail(f"refused in {name}", f"{type(error).__name__}: {error}")
            raise Refused from None
        except Exception as error:
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "minsharp" in f.filename]
            at = f"{frames[-1].filename.rpartition('minsharp/')[2]}:{frames[-1].lineno}" if frames else ""
            self.fail(f"raw exception in {name}", f"{type(error).__name__} at {at}: {str(error)[:300]}")
            raise Refused from None

    # the whole

    def run(self) -> Outcome:
        start = time.process_time()
        try:
            if self._ready():
                self._examine()
        except Refused:
            pass
        raw = [failure for failure in self.outcome.failures if failure[0].startswith("raw")]
        if hasattr(self, "total") and len(raw) < len(self.outcome.failures) and self._decided_by_rounding():
            self.outcome.skipped, self.outcome.failures = "decided by rounding", raw
        self.outcome.seconds = time.process_time() - start
        return self.outcome

    def _ready(self) -> bool:
        """Whether the network runs, forth and back, and is tame."""
        try:
            twin = self.twin()
            self.trainable = set(dense.trainable(twin))
            outputs = self.case.call(twin, self.inputs)
            self.targets = self.case.targets(outputs)
            self.loss = float(self.case.loss.criterion(outputs, self.targets))
            self.dense = self._differentiated(outputs)
        except Exception as error:
            self.outcome.skipped = f"does not run: {type(error).__name__}: {str(error)[:200]}"
            return False
        parts = [self.dense.outputs, *self.dense.jacobians.values(), self.dense.hessian]
        if not all(bool(torch.isfinite(p).all()) for p in parts):
            self.outcome.skipped = "not finite"
        elif max(float(p.abs().max()) for p in parts if p.numel()) > 1e5:
            self.outcome.skipped = "too large"
        shapes = {n: p.shape for n, p in twin.named_parameters()}
        self.diagonals = {n: self.dense.diagonal(n, shapes[n]) for n in self.dense.jacobians}
        self.total = float(sum(d.sum() for d in self.diagonals.values()))
        self.noise = self.dense.noise
        return not self.outcome.skipped

    def _decided_by_rounding(self) -> bool:
        """Whether the curvature is another where each weight is off by a few units in its last place.

        Two norms over two entries make ones of everything, and dividing by their spread makes noise of the ones: no
        two networks that compute the same agree on that.
        """
        other, generator = self.twin(), torch.Generator().manual_seed(self.case.seed)
        with torch.no_grad():
            for weight in dense.trainable(other).values():
                way = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight)
                weight.mul_(1 + 4 * torch.finfo(weight.dtype).eps * way)
        sharp, noise = self.sharpness(other)
        return abs(sharp - self.total) > self.tolerance * self.total + noise

    def _differentiated(self, outputs: Tensor) -> Dense:
        """Jacobian and Hessian; of no parameter at all, where torch has no derivative."""
        try:
            return self.truth()
        except (RuntimeError, NotImplementedError) as error:
            if not re.search("derivative for|not implemented the derivative|not differentiable", str(error)):
                raise
            self.smooth = False
            return Dense(outputs.detach(), {}, torch.zeros(1, 1))

    @property
    def _bare(self) -> bool:
        """Whether the data goes without targets: not where classes and positions could be mistaken."""
        return self.case.bare and not (self.case.loss.classes and self.dense.outputs.dim() > 2)

    @property
    def centres(self) -> bool:
        """Whether it is plain which axis of the outputs runs over the classes."""
        return self.dense.outputs.dim() < 3 or self.case.loss.classes

    def _examine(self) -> None:
        self.data: Any = (self.inputs, self.targets)
        if self._bare:
            self.data = (self.inputs, None) if isinstance(self.inputs, tuple) else self.inputs
        torch.manual_seed(self.case.seed)
        for i, module in enumerate(self.given.modules()):
            module.training = (self.case.seed + i) % 3 > 0
        before = snapshot(self.given)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._claims()
        finally:
            after = snapshot(self.given)
            for name in before:
                self.expect(same(before[name], after[name]), "untouched", f"{name} changed")

    def _claims(self) -> None:
        self.net = self.call("read", lambda: ms.read(self.given, self.inputs, class_axis=self.class_axis))
        self.model = self.given if self.case.program.wrapper or self.case.seed % 20 == 0 else self.net
        self.outcome.operations = sorted({op.name for op in self.net.graph.operations})
        scopes = [partial(self._scope, scope) for scope in SCOPES]
        more = [partial(check, self) for check in further.CHECKS]
        checks: list[Callable[[], None]] = [self._curvature, self._exactness, *scopes, *more]
        if not self.smooth:
            checks = [self._no_curvature, *scopes]
        for check in checks:
            try:
                check()
            except Refused:
                continue

    # trace and diagonal

    @property
    def class_axis(self) -> int | None:
        """Torch's, for some outputs have as many positions as classes, and minsharp asks which is which."""
        criterion = self.case.loss.criterion
        return 1 if isinstance(criterion, nn.CrossEntropyLoss) or criterion in (None, F.cross_entropy) else None

    def measured(self, name: str, function: Any, **options: Any) -> Any:
        data, model = options.pop("data", self.data), options.pop("model", self.net)
        options |= {} if isinstance(model, ms.Network) else {"class_axis": self.class_axis}
        return self.call(name, lambda: function(model, data, self.case.loss.criterion, **options))

    def _curvature(self) -> None:
        diagonal = self.measured("hessian_diagonal", ms.hessian_diagonal, curvature="ggn", model=self.model)
        self.diagonal = diagonal
        self.compare("diagonal", diagonal.by_parameter)
        self.compare(
            "diagonal, memory=1",
            self.measured("diagonal", ms.hessian_diagonal, curvature="ggn", memory=1).by_parameter,
        )
        for memory in (None, 1):
            trace = self.measured("hessian_trace", ms.hessian_trace, curvature="ggn", memory=memory)
            self.compare(f"trace, memory={memory}", trace.by_parameter)
            self.expect(trace.samples == self.case.samples, "samples", f"{trace.samples}")
        if self.case.samples > 1 and not self._bare:
            self.compare(
                "trace, other order",
                self.measured("trace", ms.hessian_trace, curvature="ggn", data=self._turned()).by_parameter,
            )
            self.compare(
                "trace, two batches",
                self.measured("trace", ms.hessian_trace, curvature="ggn", data=self._parts()).by_parameter,
            )
        if self.case.seed % 4 == 0 and self.centres:
            jacobian = self.measured("jacobian", ms.hessian_diagonal, curvature="jacobian")
            found = self.truth(criterion=dense.centred)
            true = {n: found.diagonal(n, self.diagonals[n].shape) for n in found.jacobians}
            self.compare("jacobian", jacobian.by_parameter, true)

    def _no_curvature(self) -> None:
        """Where torch has no derivative there is no number to give."""
        try:
            ms.hessian_trace(self.net, self.data, self.case.loss.criterion, curvature="ggn")
        except ms.MinsharpError as error:
            self.outcome.refusals.append(("no derivative", str(error)))
        except Exception as error:
            self.fail("raw exception without derivative", f"{type(error).__name__}: {str(error)[:200]}")

    def rows(self, rows: Tensor) -> Any:
        def some(inputs: Any) -> Any:
            if isinstance(inputs, Tensor):
                return inputs[rows]
            return (
                {k: v[rows] for k, v in inputs.items()} if isinstance(inputs, dict) else tuple(v[rows] for v in inputs)
            )

        return some(self.inputs), self.targets[rows]

    def _turned(self) -> Any:
        return self.rows(torch.arange(self.case.samples).flip(0))

    def _parts(self) -> Any:
        order = torch.arange(self.case.samples)
        return [self.rows(order[:1]), self.rows(order[1:])]

    def compare(self, check: str, found: Any, true: dict[str, Tensor] | None = None) -> None:
        """Each parameter's numbers, relative to its largest; what is not listed has none."""
        true = self.diagonals if true is None else true
        total = float(sum(d.sum() for d in true.values()))
        for name, expected in true.items():
            if name not in found:
                self.expect(
                    not bool(expected.any()),
                    f"{check}: not listed",
                    f"{name} has curvature {float(expected.sum()):.3g}",
                )
                continue
            got = found[name]
            value = torch.as_tensor(got, dtype=torch.float64)
            goal = expected if isinstance(got, Tensor) else expected.sum()
            size = max(float(goal.abs().max()) if goal.numel() else 0.0, 1e-6 * total, self.noise / self.tolerance)
            if isinstance(got, Tensor) and got.shape != expected.shape:
                self.fail(check, f"{name} has shape {tuple(got.shape)}, not {tuple(expected.shape)}")
                continue
            error = float((value - goal).abs().max()) / size if goal.numel() else 0.0
            self.expect(
                error <= self.tolerance,
                check,
                f"{name} is off by {error:.2g}, relative ({_brief(value)} for {_brief(goal)})",
            )
        extra = sorted(set(found) - set(true))
        self.expect(not extra, f"{check}: listed", f"{extra} need no gradient")

    # exactness

    def _exactness(self) -> None:
        claimed = {name: bool(e) for name, e in self.net.exactness.items()}
        self.outcome.parameters, self.outcome.exact = len(claimed), sum(claimed.values())
        for name, exactness in self.net.exactness.items():
            if exactness.blame is not None:
                word = exactness.blame.name
                self.expect(word not in WRITES, "false refusal", f"{name}: {word} is called not piecewise linear")
        exact = [name for name in self.diagonals if claimed.get(name)]
        self._hessian_blocks(exact)
        measured = [name for name in self.diagonals if name in claimed]
        if measured and len(exact) == len(measured):
            trace = self.measured("hessian_trace(curvature='hessian')", ms.hessian_trace)
            self.compare("hessian trace", trace.by_parameter)

    def _hessian_blocks(self, exact: list[str]) -> None:
        """Each exact parameter's block of the Hessian times a random vector is that of the Gauss-Newton matrix."""
        twin = self.twin()
        parameters = dense.trainable(twin)
        generator = torch.Generator().manual_seed(self.case.seed)
        vectors = {n: torch.randn(parameters[n].shape, generator=generator, dtype=torch.float64) for n in exact}
        if not exact:
            return
        try:
            with torch.random.fork_rng(devices=[]):
                loss = self.case.loss.criterion(self.case.call(twin, self.inputs), self.targets)
            if not loss.requires_grad:
                return
            products = dense.hessian_times(loss, parameters, vectors)
        except RuntimeError:  # no second derivative in torch
            return
        for name in exact:
            goal, scale = self.dense.times(name, vectors[name]), self.total + self.noise / self.tolerance
            error = float((products[name] - goal).abs().max()) / scale if goal.numel() else 0.0
            self.expect(
                error <= max(self.tolerance, 1e-7),
                "exactness",
                f"{name} is called exact, its Hessian block is off by {error:.2g}",
            )

    # groups, minimum, flattest

    def _scope(self, scope: Scope) -> None:
        group = self.call(f"symmetries({scope})", lambda: ms.symmetries(self.model, self.inputs, scope))
        self.outcome.dimensions[scope] = group.dimension
        for scales in (group.random(0, spread=4), group.random(1, spread=4)):
            other = self.call("rescale", partial(ms.rescale, self.model, scales))
            self.kept(f"group, {scope}", other)
            frozen = [n for n in scales if n not in self.trainable]
            self.expect(not frozen, f"group, {scope}: frozen", f"{frozen}")
        if hasattr(self, "diagonal") and not self.outcome.failures:
            self._minimum(scope)

    def kept(self, check: str, other: nn.Module, tolerance: float = 1.0) -> None:
        """The outputs of another network are the same, on the data and on fresh inputs."""
        for draw in (0, 1, 2):
            old, new = self.outputs(other, draw)
            size = float(old.abs().max()) if bool(torch.isfinite(old).all()) else 0.0
            if not 0 < size < 1e6:
                continue
            error = float((new - old).abs().max()) / size
            self.expect(
                error <= self.tolerance * tolerance, check, f"outputs move by {error:.2g}, relative (draw {draw})"
            )

    def _minimum(self, scope: Scope) -> None:
        """The value lies between its bound and the trace; no element of the group that we meet goes below the bound."""
        result = self.call("minimum_sharpness", lambda: ms.minimum_sharpness(self.model, self.diagonal, scope=scope))
        total, value, bound, check = self.total, result.value, result.lower_bound, f"minimum, {scope}"
        slack = (self.tolerance if self.case.low else 1e-9) * total + self.noise
        self.expect(value <= total + slack, check, f"{value:.9g} is more than the trace {total:.9g}")
        self.expect(bound <= value, check, f"lower bound {bound:.9g} above {value:.9g}")
        parts = sum(result.by_parameter.values())
        same = abs(parts - value) <= 1e-7 * value + slack or not result.attained
        self.expect(same, f"{check}: parts", f"{parts:.9g} for {value:.9g}")
        least = self._least_of_some(result)
        self.expect(
            least >= bound - slack, f"{check}: bound", f"some element of the group has {least:.9g}, not {bound:.9g}"
        )
        self._flattest(scope, result, slack)
        self._power_of_two(scope, slack)

    def _flattest(self, scope: Scope, result: Any, slack: float) -> None:
        """The same outputs, and the trace that was promised; scales that run off to infinity are not looked at."""
        total, value, check = self.total, result.value, f"flattest, {scope}"
        flat = self.call("flattest", lambda: ms.flattest(self.model, self.diagonal, scope=scope))
        wide = spread(self.inner, flat)
        self.kept(check, flat, max(1.0, wide))
        if wide > 1e6:
            return
        sharp, noise = self.sharpness(flat)
        slack = slack + noise + 1e-7 * wide * total
        close = abs(sharp - value) <= slack or not result.attained
        self.expect(close, f"{check}: trace", f"{sharp:.9g}, the minimum is {value:.9g} of {total:.9g}")
        self.expect(sharp <= total + slack, f"{check}: sharper", f"{sharp:.9g} for {total:.9g}")

    def _least_of_some(self, result: Any) -> float:
        """The least trace of some random elements of the group, from the very curvature that was minimised over.

        What rounding left of zero differs between two ways to the same diagonal, and some elements blow it up.
        """
        measured = self.diagonal.by_parameter
        generator = torch.Generator().manual_seed(self.case.seed)
        least = self.total
        for i in range(8):
            z = torch.randn(len(result.z), generator=generator, dtype=torch.float64) * (0.1, 1.0, 3.0)[i % 3]
            start = result.z if i % 2 else torch.zeros_like(z)
            t = result.symmetries.log_scales(start + z)
            least = min(least, float(sum((d * (-2 * t[n]).exp() if n in t else d).sum() for n, d in measured.items())))
        return least

    def _power_of_two(self, scope: Scope, slack: float) -> None:
        flat = self.call(
            "flattest(power_of_two)", lambda: ms.flattest(self.model, self.diagonal, scope=scope, power_of_two=True)
        )
        for draw in (0, 1):
            old, new = self.outputs(flat, draw)
            self.expect(
                torch.equal(old, new) or bool(old.isnan().any()),
                f"power of two, {scope}",
                f"outputs move by {float((old - new).abs().max()):.2g} (draw {draw})",
            )
        sharp, noise = self.sharpness(flat)
        self.expect(
            sharp <= self.total + slack + noise, f"power of two, {scope}: sharper", f"{sharp:.9g} for {self.total:.9g}"
        )


def _brief(value: Tensor) -> str:
    return (
        f"{float(value):.6g}"
        if value.numel() == 1
        else f"at most {float(value.abs().max()):.6g}"
        if value.numel()
        else "nothing"
    )


def examine(seed: int) -> Outcome:
    """Check the case of a seed."""
    return Examiner(case(seed)).run()
