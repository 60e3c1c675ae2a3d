"""Bad input gets an error that names what was given, what was expected, and the call that works."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import minsharp as ms
from tests.support.zoo import BY_NAME

Y = torch.arange(6) % 3
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def mlp() -> Any:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


class Forward(nn.Module):
    """A model with a forward of one's own."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer, x)


def test_gelu_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))
    with pytest.raises(ms.NotExactError, match=r"gelu in module '1': 0\.weight, 0\.bias\.\n") as error:
        ms.hessian_trace(model, X)
    assert "parameters=['2.weight', '2.bias']" in str(error.value)
    assert ms.hessian_trace(model, X, parameters="2.*").total > 0


def test_many_that_are_refused_are_told_by_operation() -> None:
    """One line for each kind of operation, however deep the network is."""
    curved = [layer for _ in range(8) for layer in (nn.Linear(6, 6), nn.GELU())]
    with pytest.raises(ms.NotExactError) as error:
        ms.hessian_trace(nn.Sequential(*curved, nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), X)
    blamed = str(error.value).split("\n")[1:-1]
    assert blamed == [
        "  gelu in module '1' and 7 more: 0.weight, 0.bias, 2.weight and 13 more;",
        "  tanh in module '17': 16.weight, 16.bias.",
    ]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_bad_weights_are_named(bad: float) -> None:
    model = mlp()
    model[2].weight.data[0, 1] = bad
    with pytest.raises(ms.NonFiniteError, match=r"parameter '2\.weight' holds . NaN and . infinite of 15 numbers"):
        ms.hessian_trace(model, X)


def test_bad_inputs_are_named() -> None:
    x = X.clone()
    x[2, 3] = float("nan")
    with pytest.raises(ms.NonFiniteError, match="input 'input' holds 1 NaN and 0 infinite of 48 numbers"):
        ms.hessian_trace(mlp(), [X, x])


def test_the_first_layer_that_overflows_is_named() -> None:
    model: Any = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3))
    model[2].weight.data.mul_(1e38)
    model[0].weight.data.mul_(1e10)
    with pytest.raises(ms.NonFiniteError, match="the output of linear in module '2'"):
        ms.hessian_trace(model, X)


def test_overflow_on_the_way_back_is_named() -> None:
    model: Any = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Linear(5, 3, bias=False))
    model[0].weight.data.mul_(1e-30)
    model[1].weight.data.mul_(1e30)
    with pytest.raises(ms.NonFiniteError, match=r"the curvature of '0\.weight' overflows torch\.float32"):
        ms.hessian_trace(model, X)


@pytest.mark.parametrize("data", [[], iter(()), X[:0], (X[:0], torch.zeros(0)), [X[:0], X[:0]]])
def test_empty_data(data: Any) -> None:
    with pytest.raises(ms.InputError, match="the data is empty"):
        ms.hessian_trace(mlp(), data)


def test_wrong_shape() -> None:
    with pytest.raises(ms.InputError, match=r"Sequential does not run on a tensor of shape \(4, 7\)"):
        ms.hessian_trace(mlp(), torch.randn(4, 7))
    net = ms.read(mlp(), X)
    with pytest.raises(ms.InputError, match=r"has shape \(4, 7\), the network was read for \(n, 6\)"):
        ms.hessian_trace(net, torch.randn(4, 7))
    with pytest.raises(ms.InputError, match="the network was read for inputs input"):
        ms.hessian_trace(net, ((X, X), None))


def test_token_numbers_that_an_embedding_does_not_have() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2))
    with pytest.raises(ms.InputError, match=r"fewer rows than it is asked for\. The largest number .* is 6$"):
        ms.read(model, torch.tensor([[1, 2], [6, 0]]))
    net = ms.read(model, torch.tensor([[1, 2], [3, 0]]))
    with pytest.raises(ms.InputError, match=r"does not run on these inputs: an embedding .* is 6$"):
        ms.hessian_trace(net, torch.tensor([[1, 2], [6, 0]]), class_axis=-1)


@pytest.mark.parametrize("function", [ms.read, ms.symmetries])
def test_targets_where_inputs_are_asked_for(function: Any) -> None:
    with pytest.raises(ms.InputError, match="taken for an input: pass the inputs without the targets"):
        function(mlp(), (X, torch.zeros(4, dtype=torch.long)))


def test_no_tolerance_is_offered_where_none_will_do() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 5), nn.GELU(), nn.Linear(5, 3))
    with pytest.raises(ms.NotExactError, match=r"tolerance=0\.01"):
        ms.minimum_sharpness(model, X)
    with pytest.raises(ms.NotExactError, match='Ask for the Gauss-Newton trace: curvature="ggn"'):
        ms.minimum_sharpness(model, X, scope="full")


def test_integer_inputs() -> None:
    with pytest.raises(ms.InputError, match=r"parameters are torch\.float32: try inputs\.to\(torch\.float32\)"):
        ms.hessian_trace(mlp(), X.long())
    with pytest.raises(ms.InputError, match=r"has type torch\.int64, the network was read for torch\.float32"):
        ms.hessian_trace(ms.read(mlp(), X), X.long())
    with pytest.raises(ms.InputError, match=r"try inputs\.to\(torch\.float32\)"):
        ms.hessian_trace(mlp(), X.double())


@pytest.mark.parametrize(
    "data", ["digits", 3, [[1.0, 2.0]], [(X, X, X)], [(X, "a")], (X, torch.zeros(3)), torch.tensor(1.0)]
)
def test_data_of_no_known_form(data: Any) -> None:
    with pytest.raises(ms.InputError, match="expected a tensor of inputs, a pair"):
        ms.hessian_trace(mlp(), data)


def test_batches_that_differ() -> None:
    with pytest.raises(ms.InputError, match="the batches differ in form"):
        ms.hessian_trace(mlp(), [(X, torch.zeros(4, dtype=torch.int64)), X])


class Sum(nn.Module):
    """Texts of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.embed(input_ids).sum(1).relu())


def test_texts_of_different_lengths() -> None:
    """As collators pad them: to the longest of each batch. What the message says to do instead is so."""
    model, ids = Sum(), torch.randint(11, (6, 5))
    loader = [{"input_ids": ids[:3], "labels": Y[:3]}, {"input_ids": ids[3:, :4], "labels": Y[3:]}]
    text = r"the batches differ in form: .*\(n, 5\).*\(n, 4\).*padding=\"max_length\", or add up .*sum\(minsharp"
    with pytest.raises(ms.InputError, match=text):
        ms.hessian_trace(model, loader)
    with pytest.raises(
        ms.InputError, match=r"read for \(n, 5\) \(n samples\); for samples of several sizes, bring all"
    ):
        ms.hessian_trace(ms.read(model, ids), ids[:, :4])
    found = sum(ms.hessian_trace(model, batch) for batch in loader)
    assert isinstance(found, ms.Trace)
    each = [ms.hessian_trace(model, batch).total for batch in loader]
    assert found.total == pytest.approx(sum(each) / 2)


def test_not_a_model() -> None:
    with pytest.raises(ms.InputError, match=r"expected a torch\.nn\.Module, or a Network"):
        ms.hessian_trace(X, X)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "forward",
    [
        lambda layer, x: (layer(x), x),
        lambda layer, x: {"scores": layer(x)},
        lambda layer, x: [layer(x), layer(x)],
        lambda layer, x: None,
        lambda layer, x: {"logits": [layer(x)]},
        lambda layer, x: 3.0,
    ],
)
def test_outputs_that_are_not_a_tensor(forward: Any) -> None:
    with pytest.raises(ms.ReadError, match="expected one tensor of outputs"):
        ms.hessian_trace(Forward(forward), X)


def test_a_branch_on_data() -> None:
    def forward(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x) if x.sum() > 0 else layer(-x)

    with pytest.raises(ms.ReadError, match="branches on the values of a tensor") as error:
        ms.hessian_trace(Forward(forward), X)
    assert "x.sum() > 0" in str(error.value)


MIXERS = {
    "mean": lambda layer, x: layer(x - x.mean(0)),
    "gram": lambda layer, x: (x @ x.t()) @ layer(x),
    "softmax": lambda layer, x: layer(x.softmax(0)),
    "flip": lambda layer, x: layer(x.flip(0)),
    "batch statistics": lambda layer, x: layer(torch.nn.functional.batch_norm(x, None, None, training=True)),
}


@pytest.mark.parametrize("name", MIXERS)
def test_samples_that_mix(name: str) -> None:
    with pytest.raises(ms.ReadError, match=r"mixes the samples|change with the other samples"):
        ms.hessian_trace(Forward(MIXERS[name]), X)


def test_a_fixed_batch_size() -> None:
    with pytest.raises(ms.ReadError, match="forward fixes the batch size"):
        ms.hessian_trace(Forward(lambda layer, x: layer(x.view(2, 6))), X[:2])


def test_pattern_that_matches_nothing() -> None:
    with pytest.raises(ms.InputError, match=r"nothing matches \['encoder\.\*'\]. The parameters are \['0\.weight'"):
        ms.hessian_trace(mlp(), X, parameters=["0.*", "encoder.*"])
    with pytest.raises(ms.InputError, match="nothing matches"):
        ms.hessian_trace(mlp(), X, parameters=[])


def test_all_frozen() -> None:
    model = mlp().requires_grad_(False)
    with pytest.raises(ms.InputError, match='ask for them: parameters="\\*"'):
        ms.hessian_trace(model, X)
    assert len(ms.hessian_trace(model, X, parameters="*").by_parameter) == 4


def test_no_parameters() -> None:
    with pytest.raises(ms.InputError, match="uses no parameters"):
        ms.hessian_trace(nn.ReLU(), X)


def test_wrong_options() -> None:
    with pytest.raises(ms.InputError, match="curvature='fisher': expected one of 'hessian', 'ggn', 'jacobian'"):
        ms.hessian_trace(mlp(), X, curvature="fisher")  # type: ignore[arg-type]
    with pytest.raises(ms.InputError, match="memory=0: expected a number of bytes"):
        ms.hessian_trace(mlp(), X, memory=0)


def test_a_model_that_changed_since() -> None:
    model = mlp()
    net = ms.read(model, X)
    model.double()
    with pytest.raises(
        ms.ReadError, match=r"'0\.weight' was \(5, 6\) torch\.float32, now it is \(5, 6\) torch\.float64"
    ):
        ms.hessian_trace(net, X)


def test_a_model_that_was_pruned_since() -> None:
    model = mlp()
    net = ms.read(model, X)
    prune.l1_unstructured(model[0], "weight", amount=0.4)
    with pytest.raises(ms.ReadError, match=r"'0\.weight' was \(5, 6\) torch\.float32, now it is gone"):
        ms.hessian_trace(net, X)


class Twins(nn.Module):
    """Two layers, whose weights may be one."""

    def __init__(self, tied: bool):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).relu())


def test_weights_that_were_tied_since() -> None:
    model = Twins(tied=False)
    net = ms.read(model, X)
    model.b.weight = model.a.weight
    with pytest.raises(ms.ReadError, match=r"'b\.weight' is now the same as 'a\.weight'\. Read it again"):
        ms.hessian_trace(net, X)


def test_weights_that_were_untied_since() -> None:
    model = Twins(tied=True)
    net = ms.read(model, X)
    assert list(net.parameters) == ["a.weight", "a.bias", "b.bias"]
    model.b.weight = nn.Parameter(model.b.weight.detach().clone())
    with pytest.raises(ms.ReadError, match=r"'b\.weight' was the same as 'a\.weight', now it is not\. Read it again"):
        ms.hessian_trace(net, X, curvature="ggn")


class Masked(nn.Module):
    """A buffer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.a: Tensor
        self.b: Tensor
        self.register_buffer("a", torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 1.0]))
        self.register_buffer("b", self.a)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.a).relu() * self.b


def test_buffers_that_were_copied_since() -> None:
    model = Masked()
    net = ms.read(model, X)
    before = ms.hessian_trace(net, X).total
    model.double().float()  # as a move to another device does: parameters stay the same objects, buffers do not
    assert ms.hessian_trace(net, X).total == before
    model.b[0] = 0
    with pytest.raises(ms.ReadError, match="'b' was the same as 'a', now it is not"):
        ms.hessian_trace(net, X)


def test_weights_that_are_plain_tensors_now() -> None:
    model = mlp()
    net = ms.read(model, X)
    before = ms.hessian_trace(net, X, parameters="*").total
    model[0]._parameters["weight"] = model[0].weight.detach() * 1  # a step of meta-learning
    assert ms.hessian_trace(net, X, parameters="*").total == before


def test_results_of_different_things_do_not_add() -> None:
    a, b = ms.hessian_trace(mlp(), X), ms.hessian_trace(mlp(), X, parameters="0.*")
    with pytest.raises(ms.InputError, match="different things"):
        _ = a + b


def test_a_tied_weight_names_the_second_use() -> None:
    entry = BY_NAME["tied_in_a_row"]
    with pytest.raises(ms.NotExactError, match=r"linear in module 'core'.*: core\.weight"):
        ms.hessian_trace(entry.model(), entry.data())


def test_dropout_that_does_not_listen() -> None:
    def forward(layer: nn.Module, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(layer(x), 0.5)

    with pytest.raises(ms.ReadError, match=r"draws random numbers, even in eval mode: pass training=self\.training"):
        ms.hessian_trace(Forward(forward), X)


def test_random_numbers() -> None:
    with pytest.raises(ms.ReadError, match="randn_like in module '' draws random numbers"):
        ms.hessian_trace(Forward(lambda layer, x: layer(x + torch.randn_like(x))), X)


def test_complex_numbers() -> None:
    with pytest.raises(ms.ReadError, match="makes complex numbers"):
        ms.hessian_trace(Forward(lambda layer, x: torch.fft.fft(layer(x)).real), X)


def test_different_work_for_different_batches() -> None:
    def forward(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x) if x.shape[0] < 4 else -layer(x)

    with pytest.raises(ms.ReadError, match="different things for different batch sizes"):
        ms.hessian_trace(Forward(forward), X)


def test_a_weight_made_of_the_batch_size() -> None:
    """Where the number settles it is a number like any other, else the samples hang together."""
    torch.manual_seed(0)
    settles = Forward(lambda layer, x: x @ (layer.weight * (2 * x.shape[0] / x.shape[0])).T)
    twice = Forward(lambda layer, x: x @ (layer.weight * 2).T)
    twice.load_state_dict(settles.state_dict())
    assert ms.hessian_trace(settles, X).total == ms.hessian_trace(twice, X).total
    with pytest.raises(ms.ReadError, match=r"change with the other samples .*or with how many they are"):
        ms.hessian_trace(Forward(lambda layer, x: x @ (layer.weight * (2 * x.shape[0])).T), X)


def test_samples_that_mix_one_way() -> None:
    """Also if the example does not show it: all samples the same, or all zero."""
    with pytest.raises(ms.ReadError, match="change with the other samples"):
        ms.hessian_trace(Forward(lambda layer, x: layer(x).cumsum(0)), X)
    with pytest.raises(ms.ReadError, match="change with the other samples"):
        ms.read(Forward(lambda layer, x: layer(x.softmax(0))), torch.zeros(2, 6))


def test_nothing_counts() -> None:
    targets = torch.full((4,), -100)
    with pytest.raises(ms.LossError, match="every target is ignored"):
        ms.hessian_trace(mlp(), (X, targets))


def test_losses_that_differ_do_not_add() -> None:
    model, y = mlp(), torch.zeros(4, dtype=torch.int64)
    plain = ms.hessian_trace(model, (X, y))
    for other in (nn.CrossEntropyLoss(reduction="sum"), nn.CrossEntropyLoss(weight=torch.ones(3))):
        with pytest.raises(ms.InputError, match="different things"):
            _ = plain + ms.hessian_trace(model, (X, y), other)


@pytest.mark.parametrize("pattern", [3, [3], X])
def test_patterns_that_are_none(pattern: Any) -> None:
    with pytest.raises(ms.InputError, match="expected a pattern such as"):
        ms.hessian_trace(mlp(), X, parameters=pattern)


def test_sparse_inputs() -> None:
    with torch.sparse.check_sparse_tensor_invariants(), pytest.raises(ms.InputError, match=r"inputs\.to_dense\(\)"):
        ms.hessian_trace(ms.read(mlp(), X), X.to_sparse())


def test_forward_is_tried_on_a_copy() -> None:
    class Counting(nn.Module):
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count += 1
            return self.layer(x)

    model = Counting()
    with pytest.raises(ms.InputError, match="does not run on"):
        ms.read(model, torch.randn(2, 5))
    assert float(model.count) == 0
    ms.hessian_trace(model, X)
    assert float(model.count) == 0


class Variadic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, *args: Tensor, **named: Tensor) -> Tensor:
        return self.layer(args[0] if args else named["x"])


def test_arguments_without_names() -> None:
    model, x = Variadic(), torch.randn(4, 3)
    assert ms.hessian_trace(model, x).total == pytest.approx(ms.hessian_trace(model.layer, x).total)
    assert ms.hessian_trace(model, {"x": x}).total == pytest.approx(ms.hessian_trace(model, x).total)
