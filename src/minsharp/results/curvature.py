"""What a measurement returns: frozen, printable, mergeable."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from math import inf, sqrt
from typing import Any, Literal, Self

from torch import Tensor, float64

from ..errors import InputError, NonFiniteError
from ..frozen import Frozen, FrozenDict, held
from ..graph.records import Graph
from ..subject.model import Model, parameters_of
from ..text import count, number, percent, plain_table, printable
from .files import Saved
from .sums import CurvatureSum

MatrixName = Literal["hessian", "ggn", "jacobian", "margin"]
_HEAD = ("parameter", "trace", "share", "exact")
MATRICES: Mapping[MatrixName, str] = {
    "hessian": "Hessian",
    "ggn": "Gauss-Newton",
    "jacobian": "Jacobian",
    "margin": "margin",
}
LOSSLESS = frozenset({"jacobian", "margin"})
"""Those that are of the outputs themselves: there is no Hessian for them to differ from."""
SEVERAL = "several networks"
"""In place of a digest, in a sum over networks."""


@dataclass(frozen=True, repr=False, eq=False)
class _Curvature(Frozen, Saved):
    """What a trace and a diagonal have in common.

    ``kind`` is "hessian", "ggn", "jacobian" or "margin"; ``exact`` tells for each parameter whether the Gauss-Newton
    matrix is the Hessian (under the last two there is nothing to differ from: always).
    ``a + b`` of the results for two parts of the data is the result for both, and ``sum`` of a list of them for all;
    a parameter is exact in it if it is in each. ``weights`` tells networks apart: a digest of each tensor that the
    network held as it was measured. Where these differ, nothing adds up, be it from a file, another process, or another
    epoch; only the results of networks that compute different things, all measured here, have a sum, which is of none
    of them. What a result hands out is a copy: changing it changes no result.
    """

    sum: CurvatureSum
    kind: MatrixName
    loss: str
    mean: bool
    exact: Mapping[str, bool]
    graph: Graph | None = field(default=None, compare=False)
    weights: Mapping[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """How many samples went in."""
        return self.sum.samples

    @property
    def energy(self) -> float:
        """The mean squared norm of the centred outputs; zero unless ``kind`` is "jacobian"."""
        return self.sum.energy / self._divisor

    @property
    def standard_error(self) -> float:
        """The standard error of the total; zero where it is exact."""
        return self.error_of(dict.fromkeys(held(self.sum, "sums"), 1.0))

    @property
    def standard_errors(self) -> Mapping[str, float]:
        """The standard error of each parameter's trace; zero where it is exact."""
        return FrozenDict({name: self.error_of({name: 1.0}) for name in held(self.sum, "sums")})

    def error_of(self, weights: Mapping[str, float]) -> float:
        """The standard error of a weighted sum of the parameters' traces: errors of one run are not independent."""
        return sqrt(self.sum.variance(weights)) / self._divisor

    @property
    def _divisor(self) -> float:
        return self.sum.weight if self.mean else 1.0

    def __add__(self, other: Self) -> Self:
        if not isinstance(other, _Curvature):
            return NotImplemented
        self._refuse_unlike(other)
        exact = {name: claim and other.exact[name] for name, claim in self.exact.items()}
        graph = self.graph if _told_apart(self, other) is False else None
        return replace(self, sum=self.sum + other.sum, exact=exact, graph=graph, weights=_weights(self, other))

    def __radd__(self, other: int) -> Self:
        return self if other == 0 and isinstance(other, int) else NotImplemented  # what sum() starts from

    def _refuse_unlike(self, other: "_Curvature") -> None:
        """Only results of one quantity add up, over the same parameters under the same loss."""
        mine, yours = self._identity(), other._identity()
        unlike = [f"{name} {mine[name]} and {yours[name]}" for name in mine if mine[name] != yours[name]]
        alone = _extra(self, other), _extra(other, self)
        if any(alone):
            unlike.append(f"parameters {_few(alone[0])} and {_few(alone[1])}, beside those that both have")
        if unlike:
            raise InputError(f"these results measure different things: {'; '.join(unlike)}")
        for name, tensor in held(self.sum, "sums").items():
            if tensor.shape != held(other.sum, "sums")[name].shape:
                shapes = f"{tuple(tensor.shape)} and {tuple(held(other.sum, 'sums')[name].shape)}"
                raise InputError(f"these results are of different networks: '{name}' has the shapes {shapes}")
        moved = [name for name, digest in self.weights.items() if _differ(digest, other.weights.get(name, digest))]
        if moved and not _told_apart(self, other):
            raise InputError(f"these results are of different networks: the values of {_few(moved)} differ")

    def _identity(self) -> dict[str, Any]:
        """What has to agree between results that add up."""
        return {
            "a": type(self).__name__,
            "curvature": self.kind,
            "loss": self.loss,
            "mean over samples": self.mean,
        }

    def check_whole(self) -> None:
        """Numbers for the parameters that are named, none of them more often than the others."""
        if list(held(self.sum, "sums")) != list(self.exact):
            raise ValueError(
                f"it has numbers for {list(held(self.sum, 'sums'))[:5]}, and claims for {list(self.exact)[:5]}"
            )
        bad = [name for name, tensor in held(self.sum, "sums").items() if not self._is_sum(tensor)]
        if bad or not 0 < self.sum.weight < inf or self.sum.samples < 0:
            raise ValueError(f"{f'the sums of {bad[0]!r} are' if bad else 'its weight is'} not one of a measurement")
        covariance, count = self.sum._spread, len(held(self.sum, "sums"))
        if covariance is not None and (covariance.dtype, covariance.shape) != (float64, (count, count)):
            raise ValueError(f"its covariance has the shape {tuple(covariance.shape)}, for {count} parameters")

    def _is_sum(self, tensor: Tensor) -> bool:
        return tensor.is_floating_point()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "graph": None}  # what the network does is not part of the numbers

    @property
    def _totals(self) -> Mapping[str, float]:
        raise NotImplementedError

    @property
    def _title(self) -> str:
        return f"{MATRICES[self.kind]} trace of {printable(self.loss)} over {count(self.samples)} samples"

    @property
    def _head(self) -> tuple[str, ...]:
        return (*_HEAD[:2], "standard error", *_HEAD[2:]) if self.standard_error else _HEAD

    def _rows(self) -> list[tuple[str, ...]]:
        total = sum(self._totals.values())
        rows: list[tuple[str, ...]] = []
        for name, value in self._totals.items():
            share = percent(value / total if total > 0 else None)  # of a negative whole nothing is a part
            rows.append((printable(name), number(value), share, "yes" if self.exact[name] else "no"))
        rows.append(("total", number(total), "", "yes" if all(self.exact.values()) else "no"))
        if not self.standard_error:
            return rows
        errors = [number(error) for error in (*self.standard_errors.values(), self.standard_error)]
        return [(*row[:2], error, *row[2:]) for row, error in zip(rows, errors, strict=True)]

    def __repr__(self) -> str:
        *rows, total = self._rows()
        return f"{self._title}\n{plain_table(self._head, rows, total=total)}"

    def _repr_html_(self) -> str:
        cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._rows())
        head = "".join(f"<th>{name}</th>" for name in self._head)
        body = f"<thead><tr>{head}</tr></thead><tbody>{cells}</tbody>"
        return f"<table><caption>{escape(self._title)}</caption>{body}</table>"

    def _facts(self) -> dict[str, Any]:
        return {
            "curvature": self.kind,
            "loss": self.loss,
            "samples": self.samples,
            "exact": dict(self.exact),
            "standard_error": self.standard_error,
            "standard_errors": dict(self.standard_errors),
        }


def _told_apart(a: _Curvature, b: _Curvature) -> bool | None:
    """Whether two results are of networks that compute different things; not known of what came from elsewhere."""
    return None if a.graph is None or b.graph is None else not a.graph.same_as(b.graph)


def _differ(a: str, b: str) -> bool:
    """Whether two digests are of two networks, and not of a sum over several."""
    return a != b and SEVERAL not in (a, b)


def _weights(a: _Curvature, b: _Curvature) -> dict[str, str]:
    """The digests of both; none that any tensor has, where they differ."""
    return {name: digest if b.weights.get(name, digest) == digest else SEVERAL for name, digest in a.weights.items()}


def _extra(a: _Curvature, b: _Curvature) -> list[str]:
    return sorted(set(held(a.sum, "sums")) - set(held(b.sum, "sums")))


def _few(names: list[str]) -> str:
    return f"{names[:5]}" + (f" and {len(names) - 5} more" if len(names) > 5 else "")


@dataclass(frozen=True, repr=False, eq=False)
class Trace(_Curvature):
    """The trace of each parameter's block of the Hessian (or Gauss-Newton) matrix."""

    def _is_sum(self, tensor: Tensor) -> bool:
        return tensor.is_floating_point() and not tensor.dim()

    @property
    def by_parameter(self) -> Mapping[str, float]:
        """Tr[H_P] for each parameter P."""
        return FrozenDict({name: float(value) / self._divisor for name, value in held(self.sum, "sums").items()})

    @property
    def total(self) -> float:
        """Tr[H]."""
        return sum(self.by_parameter.values())

    @property
    def _totals(self) -> Mapping[str, float]:
        return self.by_parameter

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""
        return {"total": self.total, "by_parameter": dict(self.by_parameter), **self._facts()}


@dataclass(frozen=True, repr=False, eq=False)
class Diagonal(_Curvature):
    """The diagonal of the Hessian (or Gauss-Newton) matrix, one tensor per parameter, in float64."""

    @property
    def by_parameter(self) -> Mapping[str, Tensor]:
        """DIAG[H_P], shaped like P; tensors of their own each time."""
        return FrozenDict({name: value / self._divisor for name, value in held(self.sum, "sums").items()})

    @property
    def total(self) -> float:
        """Tr[H]: the sum of all entries."""
        return sum(self._totals.values())

    def saliency(self, model: Model) -> Mapping[str, Tensor]:
        """h_i w_i² / 2 for each weight: what the loss is predicted to lose with it. No rescaling changes it.

        Takes the module (or network) that was measured. With `minsharp.pruning_masks` it says what to prune.

        >>> import torch, minsharp
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> _ = torch.nn.init.constant_(model.weight, 3.0)
        >>> minsharp.hessian_diagonal(model, torch.tensor([[1.0, 2.0]])).saliency(model)["weight"][0].tolist()
        [1.125, 4.5]
        """
        weights = weights_at(self, model)
        for name, weight in weights.items():
            if not bool(weight.isfinite().all()):
                raise NonFiniteError(f"the weights of '{name}' are not all finite: they have no saliency")
        return FrozenDict({name: h * weights[name].square() / 2 for name, h in self.by_parameter.items()})

    @property
    def trace(self) -> Trace:
        """The traces that the diagonal adds up to."""
        sums = {name: value.sum() for name, value in held(self.sum, "sums").items()}
        whole = replace(self.sum, sums=sums)
        return Trace(whole, self.kind, self.loss, self.mean, self.exact, self.graph, self.weights)

    @property
    def _totals(self) -> Mapping[str, float]:
        return {name: float(value.sum()) / self._divisor for name, value in held(self.sum, "sums").items()}

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain Python: ready for json."""
        entries = {name: value.tolist() for name, value in self.by_parameter.items()}
        return {"total": self.total, "by_parameter": entries, **self._facts()}


def weights_at(diagonal: Diagonal, model: Model) -> dict[str, Tensor]:
    """The weights that curvature was measured at, like it in precision; refuses those of another network."""
    own, sums = parameters_of(model), held(diagonal.sum, "sums")
    unlike = [name for name, h in sums.items() if name not in own or own[name].shape != h.shape]
    if unlike:
        raise InputError(f"these results are of another network: the model has no {unlike} of the same shape")
    return {name: own[name].detach().to(h) for name, h in sums.items()}
