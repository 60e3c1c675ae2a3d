"""Training as in the paper: SGD whose learning rate falls with every step, for fixed epochs or down to a fixed loss."""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHUNK = 1000
TOLERANCE = 1e-3
"""How close to the target loss a network has to come, relatively."""


@dataclass(frozen=True)
class Recipe:
    """How to train: the learning rate in step k is lr / (1 + decay k)."""

    lr: float
    epochs: int
    limit: int
    """The most epochs on the way to the target loss."""
    target: float
    batch: int = 1024
    momentum: float = 0.9
    weight_decay: float = 1e-5
    decay: float = 1e-4


@dataclass(frozen=True)
class Fitted:
    """How the training ended."""

    epochs: int
    steps: int
    reached: bool


@dataclass(frozen=True)
class Quality:
    """Mean cross-entropy and accuracy."""

    loss: float
    accuracy: float


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> Quality:
    """The quality of a model on some data."""
    loss, right = torch.zeros((), dtype=torch.float64), 0
    for inputs, targets in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
        outputs = model(inputs)
        loss += F.cross_entropy(outputs, targets, reduction="sum").double().cpu()
        right += int((outputs.argmax(1) == targets).sum())
    return Quality(float(loss) / len(y), right / len(y))


Optimizer = Callable[[Iterable[nn.Parameter], Recipe], torch.optim.Optimizer]
"""Made anew for the parameters of each network."""


def sgd(parameters: Iterable[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    """With momentum, as in the paper."""
    return torch.optim.SGD(parameters, recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)


def adamw(parameters: Iterable[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    """With the weights' decay apart from the gradient's step."""
    return torch.optim.AdamW(parameters, recipe.lr, weight_decay=recipe.weight_decay)


class Training:
    """A model on its way, one batch per step."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, recipe: Recipe, seed: int, optimizer: Optimizer = sgd):
        self.model, self.x, self.y, self.recipe = model, x, y, recipe
        self.optimizer = optimizer(model.parameters(), recipe)
        self.generator = torch.Generator().manual_seed(seed)
        self.steps = 0

    def batches(self) -> tuple[Tensor, ...]:
        """The samples of an epoch in a new order, in batches."""
        return torch.randperm(len(self.x), generator=self.generator).to(self.x.device).split(self.recipe.batch)

    def step(self, batch: Tensor) -> None:
        """One step of SGD."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.lr / (1 + self.recipe.decay * self.steps)
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(self.x[batch]), self.y[batch]).backward()
        self.optimizer.step()
        self.steps += 1

    def loss(self) -> float:
        """The loss over the whole training set."""
        return evaluate(self.model, self.x, self.y).loss

    def parameters(self) -> list[Tensor]:
        """A copy of the parameters."""
        return [p.detach().clone() for p in self.model.parameters()]

    @torch.no_grad()
    def place(self, parameters: list[Tensor]) -> None:
        """Put the model at these parameters."""
        for p, value in zip(self.model.parameters(), parameters, strict=True):
            p.copy_(value)

    def memory(self) -> dict[str, Any]:
        """A copy of what the optimiser remembers."""
        return copy.deepcopy(self.optimizer.state_dict())

    def restore(self, parameters: list[Tensor], memory: dict[str, Any], steps: int) -> None:
        """Go back to an earlier moment."""
        self.place(parameters)
        self.optimizer.load_state_dict(memory)
        self.steps = steps


def train_epochs(model: nn.Module, x: Tensor, y: Tensor, recipe: Recipe, seed: int) -> Fitted:
    """The paper's protocol: a fixed number of epochs."""
    training = Training(model, x, y, recipe, seed)
    for _ in range(recipe.epochs):
        for batch in training.batches():
            training.step(batch)
    return Fitted(recipe.epochs, training.steps, True)


def train_to_loss(
    model: nn.Module, x: Tensor, y: Tensor, recipe: Recipe, seed: int, optimizer: Optimizer = sgd
) -> Fitted:
    """Train until the loss over the whole training set is the target.

    The epoch that gets below the target is gone through again with a look at the loss after every step; of the step
    that gets below, the part is taken that ends at the target: the loss is continuous, so bisection finds it.
    """
    training = Training(model, x, y, recipe, seed, optimizer)
    for epoch in range(1, recipe.limit + 1):
        start = training.parameters(), training.memory(), training.steps
        batches = training.batches()
        for batch in batches:
            training.step(batch)
        loss = training.loss()
        if not isfinite(loss):
            return Fitted(epoch, training.steps, False)
        if loss <= recipe.target:
            training.restore(*start)
            for batch in batches:
                before = training.parameters()
                training.step(batch)
                if training.loss() <= recipe.target:
                    _part_of_the_step(training, before)
                    return Fitted(epoch, training.steps, _close(training.loss(), recipe.target))
    return Fitted(recipe.limit, training.steps, _close(training.loss(), recipe.target))


def _close(loss: float, target: float) -> bool:
    return abs(loss / target - 1) <= TOLERANCE


def _part_of_the_step(training: Training, before: list[Tensor]) -> None:
    """Bisect between where the last step began, above the target, and where it ended, below."""
    after, target = training.parameters(), training.recipe.target
    low, high = 0.0, 1.0
    for _ in range(50):
        if _close(training.loss(), target):
            return
        middle = (low + high) / 2
        training.place([torch.lerp(a, b, middle) for a, b in zip(before, after, strict=True)])
        low, high = (middle, high) if training.loss() > target else (low, middle)
