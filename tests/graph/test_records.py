"""Formulas, linearity and layouts on records written by hand."""

import re

import pytest
import torch

from minsharp.graph.formula import parse
from minsharp.graph.records import Graph, Operation, Ref, Samples, Value
from minsharp.network.linearity import exactness
from minsharp.operations import TABLE
from minsharp.operations import pooled_convolution as rewrite


def op(name: str, output: str, **arguments: object) -> Operation:
    return Operation(name, lambda: None, arguments, frozenset(), (output,), module=f"layers.{output}")


def graph(*operations: Operation, parameters: tuple[str, ...] = ("V", "W")) -> Graph:
    """A graph over the input x and some parameters, whose last operation makes the output."""
    values = {"x": Value("x", "input", (1, 3), torch.float32, Samples(0))}
    values |= {p: Value(p, "parameter", (3, 3), torch.float32) for p in parameters}
    values |= {o.outputs[0]: Value(o.outputs[0], "activation", (1, 3), torch.float32, Samples(0)) for o in operations}
    return Graph(values, operations, operations[-1].outputs[0])


def linear(output: str, x: str, weight: str) -> Operation:
    return op("linear", output, input=Ref(x), weight=Ref(weight), bias=None)


def relu(output: str, x: str) -> Operation:
    return op("relu", output, self=Ref(x))


def blamed(g: Graph) -> dict[str, str | None]:
    return {name: e.blame.outputs[0] if e.blame else None for name, e in exactness(g).items()}


def test_a_chain_is_exact() -> None:
    assert blamed(graph(linear("a", "x", "V"), relu("b", "a"), linear("c", "b", "W"))) == {"V": None, "W": None}


def test_a_weight_used_twice_in_a_row_is_not() -> None:
    assert blamed(graph(linear("a", "x", "W"), relu("b", "a"), linear("c", "b", "W"))) == {"V": None, "W": "c"}


def test_a_weight_used_twice_side_by_side_is() -> None:
    g = graph(linear("a", "x", "W"), linear("b", "x", "W"), op("add", "c", self=Ref("a"), other=Ref("b"), alpha=1))
    assert blamed(g) == {"V": None, "W": None}


def test_a_product_of_two_branches() -> None:
    g = graph(linear("a", "x", "V"), linear("b", "a", "W"), op("mul", "c", self=Ref("a"), other=Ref("b")))
    assert blamed(g) == {"V": "c", "W": None}


def test_an_unknown_operation_takes_the_blame() -> None:
    g = graph(linear("a", "x", "V"), op("mystery", "b", self=Ref("a")), linear("c", "b", "W"))
    assert blamed(g) == {"V": "b", "W": None}
    culprit = exactness(g)["V"].blame
    assert culprit is not None
    assert culprit.where == "mystery in module 'layers.b'"


def test_the_first_culprit_is_named() -> None:
    g = graph(linear("a", "x", "V"), op("gelu", "b", self=Ref("a")), op("tanh", "c", self=Ref("b")))
    assert blamed(g)["V"] == "b"


def test_a_comparison_carries_no_derivative() -> None:
    g = graph(
        linear("a", "x", "V"),
        op("gt", "b", self=Ref("a"), other=0),
        op("mul", "c", self=Ref("a"), other=Ref("b")),
    )
    assert blamed(g)["V"] is None


def test_norms_are_linear_in_their_weight_only() -> None:
    norm = op("layer_norm", "b", input=Ref("a"), normalized_shape=(3,), weight=Ref("W"), bias=None)
    assert blamed(graph(linear("a", "x", "V"), norm)) == {"V": "b", "W": None}


def test_attention_is_linear_in_values_only() -> None:
    attention = op("scaled_dot_product_attention", "c", query=Ref("a"), key=Ref("a"), value=Ref("b"), attn_mask=None)
    assert blamed(graph(linear("a", "x", "V"), linear("b", "x", "W"), attention)) == {"V": "c", "W": None}


def test_lists_in_sums_and_products() -> None:
    both = (Ref("a"), Ref("b"))
    layers = (linear("a", "x", "V"), linear("b", "x", "V"))
    assert blamed(graph(*layers, op("cat", "c", tensors=both, dim=1)))["V"] is None
    assert blamed(graph(*layers, op("einsum", "c", equation="ni,ni->n", tensors=both)))["V"] == "c"


def test_a_parameter_that_does_not_reach_the_output_is_exact() -> None:
    assert blamed(graph(op("gelu", "a", self=Ref("V")), linear("b", "x", "W"))) == {"V": None, "W": None}


def test_formulas_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="cannot read the factor"):
        parse("input ** 2")


@pytest.mark.parametrize("samples", [Samples(0), Samples(1), Samples(0, 1, 3), Samples(0, 3, 1), Samples(1, 2, 2)])
def test_samples_come_to_the_front(samples: Samples) -> None:
    """Each sample's entries, and no others, in their own order."""
    n, rest = 4, [2, 3]
    shape = [*rest]
    shape.insert(samples.axis, samples.outer * n * samples.inner)
    owner = torch.arange(n).view(1, n, 1).expand(samples.outer, n, samples.inner).flatten()
    view = [1] * len(shape)
    view[samples.axis] = -1
    tensor = owner.view(view).expand(shape)
    split = samples.split(tensor, n)
    shape[samples.axis] //= n
    assert list(split.shape) == [n, *shape]
    for i in range(n):
        assert bool((split[i] == i).all())
    columns = samples.split_columns(tensor.expand(5, *tensor.shape), n)
    assert list(columns.shape) == [n, 5, *shape]
    assert torch.equal(columns[:, 0], split)


def test_every_row_speaks_of_arguments_that_exist() -> None:
    """A formula that leaves out the first tensor of some overload would never match it."""
    odd = {"einsum.sublist", "repeat_interleave.Tensor", "eq.Tensor_list", "ne.Tensor_list"}  # never in a graph
    for name, known in TABLE.items():
        if hasattr(rewrite, name):  # an operation of the engine's own
            continue
        packet = getattr(torch.ops.aten, name)
        named = {part for part in re.findall(r"[a-z]\w*", known.formula) if part not in ("f", "step", "sum", "prod")}
        for overload in packet.overloads():
            arguments = getattr(packet, overload)._schema.arguments
            tensors = [
                a.name
                for a in arguments
                if "Tensor" in str(a.type) and a.name not in ("condition", "out", *known.ignores)
            ]
            if tensors and named and not overload.endswith("out") and f"{name}.{overload}" not in odd:
                assert tensors[0] in named, (name, overload)
