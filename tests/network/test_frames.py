"""Frames: where an invertible matrix may stand, found from the operations alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import minsharp as ms
from minsharp.network.frames_solved import BETWEEN, HALF
from minsharp.network.symmetry import FullSymmetries, group
from tests.support.framed import CASES, HEADS, WIDTH, Attention, network, outputs


def full(model: nn.Module | ms.Network, inputs: Any) -> FullSymmetries:
    found = ms.symmetries(model, inputs, scope="full")
    assert isinstance(found, FullSymmetries)
    return found


@pytest.mark.parametrize("name", CASES)
def test_frames_are_found_and_matrices_in_them_change_nothing(name: str) -> None:
    read, inputs = network(name)
    found = full(read, inputs)
    assert sorted(frame.size for frame in found.frames) == sorted(CASES[name].sizes)
    before = outputs(read.module, inputs)
    for seed in range(2):
        element = found.random(seed, 1e3)
        assert 1 < element.condition <= 1e3 * (1 + 1e-9)
        after = outputs(ms.rescale(read, element), inputs)
        assert float((after - before).abs().max()) < 1e-12 * float(before.abs().max())
    fixed = [n for n, p in read.parameters.items() if not p.requires_grad]
    by_rules = group(read.graph, "full", fixed)  # nothing had to step back
    assert isinstance(by_rules, FullSymmetries)
    assert [frame.parameters for frame in by_rules.frames] == [frame.parameters for frame in found.frames]


@pytest.mark.parametrize(
    "name", ["separate", "joint", "grouped, option", "rotary", "QK-norm", "LoRA", "linear bottleneck"]
)
def test_every_number_of_a_matrix_counts(name: str) -> None:
    """The parameters move in as many directions as there are entries of matrices."""
    model, inputs = network(name)
    found = full(model, inputs)
    generators = sum(frame.size**2 for frame in found.frames)
    places = [(f, i, j) for f, frame in enumerate(found.frames) for i in range(frame.size) for j in range(frame.size)]
    directions = [_direction(found, model, *place) for place in places]
    assert torch.linalg.matrix_rank(torch.stack(directions), rtol=1e-9) == generators
    scalings = found.layer.dimension + len(found.frames)
    assert generators <= found.dimension <= generators - len(found.frames) + scalings


def _direction(found: FullSymmetries, model: ms.Network, f: int, i: int, j: int) -> Tensor:
    """How the parameters move where a matrix begins to be other than one at (i, j)."""
    matrices = [torch.eye(frame.size, dtype=torch.float64) for frame in found.frames]
    matrices[f][i, j] += 1e-4
    change = found.transformation(torch.zeros(found.layer.dimension), matrices)
    return torch.cat([(change.of(name, p) - p.detach()).flatten() / 1e-4 for name, p in model.parameters.items()])


def test_dimension_of_attention_is_the_squares_of_its_heads_and_what_layers_add() -> None:
    model, inputs = network("separate, no bias")
    found, size = full(model, inputs), WIDTH // HEADS
    norm = 2  # both norms' weights and biases against what they go into
    assert found.dimension == 2 * HEADS * size**2 + norm


def test_rotary_embeddings_leave_a_factor_for_each_pair_of_queries_and_keys() -> None:
    model, inputs = network("rotary")
    pairs = [frame for frame in full(model, inputs).frames if frame.size == 1]
    assert all(frame.parameters == ("q.weight", "q.bias", "k.weight", "k.bias") for frame in pairs)
    rows = sorted(sorted(int(m.rows) for m in frame.members if m.parameter == "q.weight") for frame in pairs)
    half = WIDTH // HEADS // 2
    assert rows == [[r, r + half] for head in range(HEADS) for r in (2 * half * head, 2 * half * head + 1)]


def test_norms_leave_queries_and_keys_without_frames_and_say_why() -> None:
    model, inputs = network("QK-norm")
    found = full(model, inputs)
    assert all("q.weight" not in frame.parameters for frame in found.frames)
    assert "norm" in found.unframed["q.weight"]
    assert "q.bias" in found.pinned


def test_grouped_queries_share_the_matrix_of_their_key_head() -> None:
    model, inputs = network("grouped, option")
    frame = full(model, inputs).frames[0]
    acted = [(m.parameter, tuple(m.rows.shape), m.inverse) for m in frame.members if "weight" in m.parameter]
    assert sorted(acted) == [("k.weight", (4, 1), True), ("q.weight", (4, 1), False), ("q.weight", (4, 1), False)]


def test_a_weight_between_two_frames_is_in_one_of_them() -> None:
    model, inputs = network("three in a row")
    found = full(model, inputs)
    assert [frame.parameters for frame in found.frames] == [("a.weight", "a.bias", "b.weight")]
    assert found.unframed["b.bias"] == BETWEEN


class HeadsApart(nn.Module):
    """A stack of weights, one for each head, by einsum or by a product of stacks."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.q, self.k, self.v = (nn.Parameter(torch.randn(2, 8, 4) / 3) for _ in range(3))
        self.o, self.head = nn.Parameter(torch.randn(2, 4, 8) / 3), nn.Linear(8, 3)

    def made(self, x: Tensor, w: Tensor) -> Tensor:
        return torch.einsum("bnd,hdk->bhnk", x, w) if self.how == "einsum" else x.unsqueeze(1) @ w

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.made(x, w) for w in (self.q, self.k, self.v))
        y = (q @ k.mT).softmax(-1) @ v
        y = torch.einsum("bhnk,hkd->bnd", y, self.o) if self.how == "einsum" else (y @ self.o).sum(1)
        return self.head((x + y).tanh()).mean(1)


class Gated(nn.Module):
    """Values times a gate for each head, and for each channel; keys and values at some tokens."""

    def __init__(self, channels: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8, bias=False) for _ in range(4))
        self.gate, self.head, self.kept = nn.Linear(8, 8 if channels else 2), nn.Linear(8, 3), torch.tensor([0, 2])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (self.q(x), self.k(x), self.v(x)))
        k, v = k[:, :, self.kept], v.index_select(2, self.kept)
        y = ((q @ k.mT).softmax(-1) @ v).transpose(1, 2)  # (n, tokens, heads, 4)
        y = y * self.gate(x).sigmoid().unflatten(-1, (2, -1))
        return self.head((x + self.o(y.flatten(2))).tanh()).mean(1)


@pytest.mark.parametrize(
    ("build", "sizes"),
    [
        (lambda: HeadsApart("einsum"), (4,) * 4),
        (lambda: HeadsApart("stacks"), (4,) * 4),
        (lambda: Gated(False), (4,) * 4),
        (lambda: Gated(True), (1,) * 8 + (4,) * 2),
    ],
)
def test_stacks_of_weights_and_what_parts_a_vector(build: Any, sizes: tuple[int, ...]) -> None:
    """As many directions of the weights change no output as the group has numbers, and a matrix keeps them."""
    torch.manual_seed(0)
    model, x = build().double(), torch.randn(150, 3, 8, dtype=torch.float64)
    found = full(model, x)
    assert tuple(sorted(frame.size for frame in found.frames)) == sizes
    moved = outputs(ms.rescale(model, found.random(0)), x)
    assert torch.allclose(outputs(model, x), moved, rtol=1e-10, atol=1e-11)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    J = torch.func.jacrev(lambda p: torch.func.functional_call(model, p, (x,)))(parameters)
    table = torch.cat([part.reshape(150 * 3, -1) for part in J.values()], 1)
    still = table.shape[1] - int(torch.linalg.matrix_rank(table, rtol=1e-10))
    assert found.dimension == still


class Shared(nn.Module):
    """One weight for queries and keys."""

    def __init__(self) -> None:
        super().__init__()
        self.qk, self.v, self.head = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q = self.qk(x)
        return self.head(((q @ q.mT).softmax(-1) @ self.v(x)).mean(1))


class Reversed(nn.Module):
    """Keys meet queries in the opposite order: coordinates that are not in line are left alone."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.head = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        p = (self.q(x) @ self.k(x).flip(-1).mT).softmax(-1)
        return self.head((p @ self.v(x)).mean(1))


class Bent(nn.Module):
    """Half of the coordinates go through a nonlinear function, the other half has a frame."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.enter(x).split([2, 4], -1)
        return self.head(torch.cat([a.relu(), b], -1)).mean(1)


class Loop(nn.Module):
    """A weight that makes and uses the same vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.step, self.head = nn.Linear(8, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        return self.head(h + self.step(h)).mean(1)


class Tied(nn.Module):
    """A weight that is used a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.back, self.head = nn.Linear(8, 4), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.back(self.enter(x)) + self.back(self.enter(x).relu())).relu()).mean(1)


class Overlapping(nn.Module):
    """A weight whose rows share entries."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.w = nn.Linear(8, 4), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.enter(x), self.w.unfold(0, 4, 1)).mean(1)


@pytest.mark.parametrize(
    ("build", "sizes"), [(Overlapping, ()), (Shared, (4,)), (Reversed, (4,)), (Bent, (4,)), (Loop, ()), (Tied, ())]
)
def test_what_is_not_free_is_not_claimed(build: Any, sizes: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, inputs = build().double(), torch.randn(5, 3, 8, dtype=torch.float64)
    found = full(model, inputs)
    assert tuple(frame.size for frame in found.frames) == sizes
    moved = outputs(ms.rescale(model, found.random(0)), inputs)
    assert torch.allclose(outputs(model, inputs), moved, rtol=1e-11, atol=1e-11)


def test_what_is_not_measured_stays() -> None:
    model, inputs = network("separate")
    found = ms.symmetries(model, inputs, scope="full", fixed=["q.weight"])
    assert isinstance(found, FullSymmetries)
    assert [frame.parameters[0] for frame in found.frames] == ["v.weight", "v.weight"]


def test_a_frame_that_moves_the_outputs_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from minsharp.operations import TABLE
    from minsharp.rules.frames import passed

    monkeypatch.setitem(TABLE, "gelu", replace(TABLE["gelu"], frames=passed))  # wrong: gelu is not linear
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 4), nn.Linear(4, 3)).double()
    inputs = torch.randn(4, 4, dtype=torch.float64)
    claimed = group(ms.read(model, inputs).graph, "full")
    assert isinstance(claimed, FullSymmetries)
    assert [f.size for f in claimed.frames] == [5]
    found = full(model, inputs)
    assert [frame.size for frame in found.frames] == []
    assert "tried" in found.unframed["0.weight"]


def test_errors_and_texts() -> None:
    model, inputs = network("separate")
    found = full(model, inputs)
    with pytest.raises(ms.InputError, match=r"spread=0\.5: expected a factor above 1"):
        found.random(0, 0.5)
    with pytest.raises(ms.InputError, match="exact=True: matrices do not leave every bit"):
        ms.rescale(model, found.random(0), exact=True)
    assert "4 frames" in repr(found)
    assert "q.weight[0]: 4 x 4, q.weight + q.bias + k.weight + k.bias" in repr(found)
    assert "4 matrices" in repr(found.random(0))
    assert HALF not in found.unframed.values()


def test_a_change_of_basis_is_all_that_happens_to_untouched_parameters() -> None:
    model, inputs = network("separate")
    found = full(model, inputs)
    element = found.random(3)
    changed = dict(ms.rescale(model, element).named_parameters())
    for name, old in model.parameters.items():
        assert torch.equal(old, changed[name]) == (name not in element.parameters)


def test_single_precision_stays_within_rounding_times_the_condition() -> None:
    model, inputs = network("separate")
    single, x = Attention(), inputs.float()
    single.load_state_dict(model.module.state_dict())
    element = full(single, x).random(0, 1e2)
    before, after = outputs(single, x), outputs(ms.rescale(single, element), x)
    assert float((after - before).abs().max()) < 100 * element.condition * torch.finfo(torch.float32).eps


class Bare(nn.Module):
    """Attention and nothing else: queries on as many key heads as one likes."""

    def __init__(self, heads: int, of_keys: int):
        super().__init__()
        self.heads, self.of_keys = heads, of_keys
        self.q, self.o = nn.Linear(6, 3 * heads, bias=False), nn.Linear(3 * heads, 6, bias=False)
        self.k, self.v = nn.Linear(6, 3 * of_keys, bias=False), nn.Linear(6, 3 * of_keys, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (-1, 3)).transpose(1, 2) for t in (self.q(x), self.k(x), self.v(x)))
        y = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=self.heads != self.of_keys)
        return self.o(y.transpose(1, 2).flatten(2)).flatten(1)


@pytest.mark.parametrize(("heads", "of_keys"), [(1, 1), (2, 2), (2, 1)])
def test_the_group_is_complete(heads: int, of_keys: int) -> None:
    """As many directions of the weights change no output as the group has numbers: h² per key head, twice."""
    torch.manual_seed(0)
    model, x = Bare(heads, of_keys).double(), torch.randn(40, 3, 6, dtype=torch.float64)
    found = full(model, x)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        J = torch.func.jacrev(lambda p: torch.func.functional_call(model, p, (x,)))(parameters)
    table = torch.cat([part.reshape(40 * 18, -1) for part in J.values()], 1)  # (outputs, weights)
    still = table.shape[1] - int(torch.linalg.matrix_rank(table, rtol=1e-10))
    assert found.dimension == still == 2 * of_keys * 9
