"""Sharpness over training: the top eigenvalue of the Hessian against 2/lr, with the trace and minimum sharpness beside.

Full-batch gradient descent with step size lr can only settle where the top eigenvalue is at most 2/lr; on the way the
eigenvalue rises to that edge, and stays there (Cohen, Kaur, Li, Kolter, Talwalkar, 2021). A `Monitor` watches.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ..colours import BLUE, GREEN, ORANGE
from ..data import load
from ..errors import InputError
from ..measures.monitor import Monitor, key
from ..text import rounded
from .commands import seeds_option, unless_default
from .drawing import one_legend, panels
from .experiment import Columns, Experiment, Results, Section
from .plan import Configuration, Plan, ResultRow, grid
from .registry import register
from .tables import Table, groups

MEASURES = ("largest eigenvalue", "trace", "minimum sharpness")
RATES = (0.5, 1.0)
STEPS, EVERY, TRAIN, WIDTH = 8000, 50, 300, 32
COLUMNS = Columns(orders=("lr", "seed", "step"), numbers=("loss", *MEASURES))


def plan(
    *,
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = (0,),
    steps: int = STEPS,
    every: int = EVERY,
    train: int = TRAIN,
    device: str = "cpu",
) -> Plan:
    """One cell per learning rate and seed; a row for every step that is measured."""
    if not rates or min(rates) <= 0:
        raise InputError(f"rates={list(rates)}: expected learning rates above 0")
    if steps < 1 or every < 1 or train < 1:
        raise InputError(f"steps={steps}, every={every}, train={train}: expected at least 1 of each")
    settings = {"data": "digits", "steps": steps, "every": every, "train": train, "device": device}
    return Plan(settings, grid(lr=[float(rate) for rate in rates], seed=seeds))


def work(configuration: Configuration, data_dir: str | None = None) -> list[ResultRow]:
    """Gradient descent on the mean squared error of one-hot labels, watched every few steps."""
    lr, seed, device = configuration["lr"], configuration["seed"], configuration["device"]
    data = load(configuration["data"], data_dir).subset(configuration["train"]).to(device)
    x, y = data.train_x.flatten(1), nn.functional.one_hot(data.train_y, 10).float()  # (n, 64), (n, 10)
    torch.manual_seed(seed)
    layers = (nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    model, criterion = nn.Sequential(*layers).to(device), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    monitor = Monitor(model, (x, y), criterion, measures=MEASURES, every=configuration["every"])
    rows = []
    for step in range(configuration["steps"] + 1):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        values = monitor(step)
        if values:
            found = {name: values[key(name)] for name in MEASURES}
            rows.append({"lr": lr, "seed": seed, "step": step, "loss": loss.item(), **found})
        loss.backward()
        optimizer.step()
    return rows


def tables(results: Results) -> list[Table]:
    """Where training ended: the last step of every cell."""
    ends = [rows[-1] for _, rows in groups(results.rows, "lr", "seed")]
    numbers = ("loss", *MEASURES)
    lines = [
        (rounded(end["lr"]), str(end["seed"]), rounded(2 / end["lr"]), *(rounded(end[name]) for name in numbers))
        for end in ends
    ]
    return [Table("After the last step", ("lr", "seed", "2/lr", *numbers), tuple(lines))]


def figures(results: Results) -> Iterator[tuple[str, Any]]:
    """A column for each learning rate: the eigenvalue and its edge above, trace and minimum sharpness below."""
    rates = sorted({row["lr"] for row in results.rows})
    figure, axes = panels(2, len(rates), 3.6 * len(rates) + 0.4, 5.4)
    for column, lr in enumerate(rates):
        top, bottom = axes[0][column], axes[1][column]
        for _, rows in groups([row for row in results.rows if row["lr"] == lr], "seed"):
            steps = [row["step"] for row in rows]
            for axis, name, colour in zip((top, bottom, bottom), MEASURES, (BLUE, ORANGE, GREEN), strict=True):
                axis.plot(steps, [row[name] for row in rows], color=colour, label=name)
        top.axhline(2 / lr, color="black", linestyle="--", linewidth=1, label="2/lr")
        top.set(title=f"lr = {lr:g}", ylim=(0, None))
        bottom.set(xlabel="step of gradient descent", ylim=(0, None))
    one_legend(figure, axes)
    yield "stability", figure


def command(results: Results) -> str:
    """The command that makes these results."""
    settings = results.settings or {}
    rates = ",".join(f"{rate:g}" for rate in sorted({row["lr"] for row in results.rows}))
    steps = unless_default([settings["steps"]], [STEPS], "--steps")
    return " ".join([f"minsharp reproduce stability --rates {rates}", *steps, *seeds_option(results.seeds, 1)])


STABILITY = register(
    Experiment(
        "stability",
        work,
        plan,
        COLUMNS,
        tables,
        Section(
            "Sharpness over training",
            """\
Full-batch gradient descent on 300 digits, mean squared error. The top eigenvalue of the Hessian rises to 2/lr, the edge
of stability, and stays there; trace and minimum sharpness settle.""",
            command=command,
        ),
        figures=figures,
    )
)
