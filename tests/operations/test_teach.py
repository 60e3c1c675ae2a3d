"""Operations that are taught at run time, and forgotten again."""

import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.graph.records import Operation
from minsharp.operations import TABLE
from minsharp.rules import Elementwise, Pull, entrywise, unbroadcast
from tests.support import oracles
from tests.support.custom import Named, Scaled, relu, scaled_relu

NAME = "minsharp_tests::scaled_relu"
X = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def pull(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    slopes = {"x": bound["scale"] * (bound["x"] > 0), "scale": bound["x"].relu()}
    return operation.call(bound), lambda G: {name: unbroadcast(G * slopes[name], bound[name].shape) for name in wanted}


RULES: dict[str, Any] = {
    "pull": pull,
    "contract": {"scale": Elementwise(lambda use: use.aligned("x").relu())},
    "channels": entrywise,
}


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Scaled().double()


def _exact(network: ms.Network) -> set[str]:
    return {name for name, exact in network.exactness.items() if exact}


ALL = {"first.weight", "first.bias", "scale", "last.weight", "last.bias"}
LAST = {"last.weight", "last.bias"}


def test_what_is_not_taught_is_refused(model: nn.Module) -> None:
    with pytest.raises(ms.NotExactError, match=rf"{NAME} in .*: scale, first\.weight"):
        ms.hessian_trace(model, X)
    assert _exact(ms.read(model, X)) == LAST


@pytest.mark.parametrize("rules", [{}, RULES], ids=["formula", "all rules"])
def test_a_taught_operation_is_exact(model: nn.Module, rules: dict[str, Any]) -> None:
    criterion, targets = nn.CrossEntropyLoss(), torch.zeros(7, dtype=torch.int64)
    with ms.operation(scaled_relu, "x*scale", **rules):
        found = ms.hessian_diagonal(model, X).by_parameter
        assert ms.minimum_sharpness(model, X).value < ms.hessian_trace(model, X).total
    assert set(found) == ALL
    for name, diagonal in found.items():
        expected = oracles.hessian_diagonal(model, X, targets, criterion, name)
        torch.testing.assert_close(diagonal, expected)


def test_scales_pass_channel_by_channel(model: nn.Module) -> None:
    """Five neurons, each with a free scale before and after; alike without a rule for channels."""
    cases: list[tuple[dict[str, Any], int]] = [({}, 2), ({"channels": entrywise}, 10)]
    for rules, dimension in cases:
        with ms.operation(scaled_relu, "x*scale", **rules):
            assert ms.symmetries(model, X, "neuron").dimension == dimension


def test_networks_read_before_learn_and_forget(model: nn.Module) -> None:
    network = ms.read(model, X)
    assert _exact(network) == LAST
    assert ms.symmetries(network, X).dimension == 0
    with ms.operation(NAME, "x*scale"):
        assert _exact(network) == ALL
        assert ms.symmetries(network, X).dimension == 2
        assert ms.hessian_trace(network, X).total > 0
        with ms.operation(NAME, "x*f(scale)"):
            assert _exact(network) == ALL - {"scale"}
        assert _exact(network) == ALL
    assert _exact(network) == LAST
    assert ms.symmetries(network, X).dimension == 0
    with pytest.raises(ms.NotExactError):
        ms.hessian_trace(network, X)


def test_a_rule_that_is_put_in_place_of_another_is_used(model: nn.Module) -> None:
    """Also by the schedule that was remembered."""
    network, seen = ms.read(model, X), []

    def watched(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
        seen.append(operation.name)
        return pull(operation, bound, wanted)

    before = ms.hessian_trace(network, X, curvature="ggn").by_parameter
    counting = Elementwise(lambda use: seen.append("contract") or use.aligned("x").relu())  # type: ignore[func-returns-value]
    with ms.operation(scaled_relu, "x*scale", pull=watched, contract={"scale": counting}):
        assert dict(ms.hessian_trace(network, X).by_parameter) == pytest.approx(dict(before))
    assert set(seen) == {NAME, "contract"}


def test_a_pickled_network_claims_no_more_than_is_known_there(model: nn.Module, tmp_path: Path) -> None:
    with ms.operation(scaled_relu, "x*scale"):
        network = ms.read(model, X)
        assert _exact(network) == ALL
        (tmp_path / "network").write_bytes(pickle.dumps(network))
    code = (
        "import pickle, sys, tests.support.custom; network = pickle.loads(open(sys.argv[1], 'rb').read()); "
        "print(*[name for name, exact in network.exactness.items() if exact])"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "network")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert set(done.stdout.split()) == LAST, done.stderr


def test_a_name_of_torchs_in_another_library_is_another_operation() -> None:
    model = Named().double()
    assert [op.name for op in ms.read(model, X).graph.operations] == ["linear", "minsharp_tests::relu", "linear"]
    with pytest.raises(ms.NotExactError, match="minsharp_tests::relu"):
        ms.hessian_trace(model, X)
    with ms.operation(relu, "f(self)"), pytest.raises(ms.NotExactError):
        ms.hessian_trace(model, X)
    assert ms.symmetries(model, X).dimension == 0


def test_every_way_to_name_an_operation() -> None:
    packet = torch.ops.minsharp_tests.scaled_relu
    for target in (scaled_relu, packet, packet.default, NAME, f"{NAME}.default"):
        with ms.operation(target, "x*scale") as taught:
            assert TABLE[NAME] is taught.row
        assert NAME not in TABLE
    for target in (torch.ops.aten.cummax, "cummax", "aten::cummax", torch.ops.aten.cummax.default):
        with ms.operation(target, "self"):
            assert TABLE["cummax"].formula == "self"
        assert "cummax" not in TABLE


def test_as_a_decorator() -> None:
    assert ms.operation(formula="x*scale")(scaled_relu) is scaled_relu
    assert TABLE[NAME].formula == "x*scale"
    del TABLE[NAME]


def test_a_list_is_a_sum_over_its_items() -> None:
    with ms.operation("aten::block_diag", "sum(tensors)") as taught:
        call = Operation("block_diag", torch.ops.aten.block_diag.default, {"tensors": (1, 2, 3)}, frozenset(), ("y",))
        assert set(map(str, taught.row.formula_of(call).slots)) == {"tensors[0]", "tensors[1]", "tensors[2]"}


def test_what_minsharp_knows_is_replaced_only_if_asked_for() -> None:
    known = TABLE["relu"]
    with pytest.raises(ms.InputError, match=r"knows relu already, by the formula 'self'.*replace=True"):
        ms.operation("relu", "f(self)")
    with ms.operation("relu", "f(self)", replace=True):
        assert TABLE["relu"].formula == "f(self)"
    assert TABLE["relu"] is known


def test_forgetting_what_has_been_taught_anew_changes_nothing() -> None:
    first = ms.operation(scaled_relu, "x*scale")
    second = ms.operation(scaled_relu, "f(x)*scale")
    first.forget()
    assert TABLE[NAME] is second.row
    second.forget()
    assert TABLE[NAME] is first.row
    first.forget()
    first.forget()
    assert NAME not in TABLE


BAD: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "no such operation": ("nowhere::relu", "x", {}, "torch has no such operation.*import the module.*library::name"),
    "a function": (torch.relu, "x", {}, "expected an operation as torch.library.custom_op returns it"),
    "a formula with a gap": (
        scaled_relu,
        "x*",
        {},
        "formula 'x\\*'.*arguments are x, scale.*'x \\+ scale'",
    ),
    "half a sum": (scaled_relu, "x + ", {}, "cannot read the formula"),
    "nothing": (scaled_relu, "", {}, "cannot read the formula ''"),
    "no text": (scaled_relu, 3, {}, "cannot read the formula 3"),
    "a function of its own": (scaled_relu, "exp(x)", {}, "cannot read the formula 'exp\\(x\\)'"),
    "another name": (
        scaled_relu,
        "input*scale",
        {},
        "'input\\*scale' names input. Its arguments are x, scale",
    ),
    "another name inside": (scaled_relu, "f(y)*scale", {}, "names y"),
    "a number": (scaled_relu, "2*x", {}, "names 2"),
    "no list": (scaled_relu, "sum(x)", {}, "x is not a list"),
    "a contraction": (scaled_relu, "x", {"contract": {"weight": Elementwise()}}, "contract names weight"),
    "what is ignored": (scaled_relu, "x", {"ignores": ("like",)}, "ignores names like"),
    "what changes it": (scaled_relu, "x", {"unless": "mode"}, "unless names mode"),
    "a rule": (scaled_relu, "x", {"pullback": pull}, "no rule is called.*pullback.*pull"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_taught(what: str) -> None:
    target, formula, rules, message = BAD[what]
    edition = TABLE.edition
    with pytest.raises(ms.InputError, match=message):
        ms.operation(target, formula, **rules)
    assert TABLE.edition == edition


# The laws of what was taught


EXAMPLES = ["x(n,i) scale(i)", "x(i,n) scale(i,1)", "x(n,i) scale(n,i)", "scale(a,1) x(n,a,i)"]


def test_a_right_row_obeys_the_laws() -> None:
    with ms.operation(scaled_relu, "x*scale", **RULES):
        report = ms.laws.check(scaled_relu, EXAMPLES)
    assert report.holds, report
    assert repr(report) == f"{NAME} ('x*scale'): 4 examples, 7 laws, all hold"


def test_what_is_not_known_cannot_be_broken() -> None:
    report = ms.laws.check(scaled_relu, EXAMPLES[:1], entries=["scaled"])
    assert repr(report) == f"{NAME} (not known: nothing is claimed): 1 example, 7 laws, all hold"


def _twice(operation: Operation, bound: Mapping[str, Any], wanted: frozenset[str]) -> tuple[Tensor, Pull]:
    made, back = pull(operation, bound, wanted)
    return made, lambda G: {name: 2 * g for name, g in back(G).items()}


WRONG: dict[str, tuple[Any, str, dict[str, Any], list[Any], str]] = {
    "bent, called linear": (relu, "self", {}, ["x(n,i)"], r"x\(n,i\): linearity: called exact in enter_x"),
    "a product, called a sum": (scaled_relu, "x + scale", {}, EXAMPLES, "scale, layer: outputs move"),
    "a pullback twice as large": (scaled_relu, "x*scale", {"pull": _twice}, EXAMPLES, "pull, .* to x: not autograd's"),
    "a contraction": (scaled_relu, "x*scale", {"contract": {"scale": Elementwise()}}, EXAMPLES, "contraction, trace"),
    "no derivative": (scaled_relu, "x*scale", {"detaches": True}, EXAMPLES, "contraction"),
    "nothing new": (scaled_relu, "scale", {"ignores": ("x",)}, EXAMPLES, "contraction|scale"),
    "another call": (
        scaled_relu,
        "x*scale",
        {},
        [ms.laws.Example(lambda x, w: x * w, "x(n,i) w(i)")],
        f"no operation '{NAME}' comes up, only \\['mul'\\]",
    ),
    "a call that does not run": (scaled_relu, "x*scale", {}, ["x(n,i)"], "does not run: .*TypeError|RuntimeError"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_row_is_noticed(what: str) -> None:
    target, formula, rules, examples, message = WRONG[what]
    with ms.operation(target, formula, **rules):
        report = ms.laws.check(target, examples, entries=["scaled"])
    assert not report.holds
    assert re.search(message, repr(report)), report


def test_a_check_without_examples() -> None:
    with pytest.raises(ms.InputError, match=r'expected examples, as in check\(.*\["x\(n,i\) w\(i\)"\]\)'):
        ms.laws.check(scaled_relu, [])
