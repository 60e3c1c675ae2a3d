"""`minsharp reproduce`: the paper's experiments; `minsharp figures`: their figures again."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..extras import required
from ..text import printable
from .lists import integers, numbers, seeds_of, words
from .names import MEASURES, PRESETS, PROTOCOLS, last_beginning, named
from .options import (
    Address,
    DataDir,
    DataName,
    Device,
    ExecutorName,
    ExecutorOption,
    Force,
    Models,
    Out,
    SampleCounts,
    Seeds,
    Workers,
)
from .output import note

if TYPE_CHECKING:
    from ..experiments import Experiment, Plan
    from ..experiments.pool import Executor

app = typer.Typer(
    name="reproduce",
    help="Run the paper's experiments: every cell is kept when it is done, and the same command goes on from there.",
    no_args_is_help=True,
)

Preset = Annotated[
    str,
    typer.Option(
        help="digits (minutes), mnist-small, or paper (for a cluster).",
        autocompletion=lambda incomplete: [name for name in PRESETS if name.startswith(incomplete)],
    ),
]
Protocol = Annotated[
    str,
    typer.Option(
        help="epochs (the paper's) or loss (all to one training loss).",
        autocompletion=lambda incomplete: [name for name in PROTOCOLS if name.startswith(incomplete)],
    ),
]
Measures = Annotated[
    str | None,
    typer.Option(
        help="Names of measures, with commas between them, as in trace,minimum-sharpness-neuron.",
        autocompletion=lambda incomplete: last_beginning(incomplete, MEASURES),
    ),
]


@app.command()
def trace(
    data: DataName = "digits",
    models: Models = None,
    samples: SampleCounts = "10,100,1000",
    seeds: Seeds = "10",
    out: Out = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    executor: ExecutorOption = ExecutorName.LOCAL,
    address: Address = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Exactness and time of Tr[H] and DIAG[H] against double backpropagation, one parameter at a time.

    The baseline is slow: minutes on digits, hours for SmallCNN and 1,000 samples of MNIST.
    """
    from ..experiments import trace as module
    from ..experiments.initial import MODELS, SEEDS

    plan = module.plan(
        data,
        models=words(models, MODELS),
        samples=integers(samples, "--samples"),
        seeds=seeds_of(seeds, SEEDS),
        device=device,
    )
    _run(
        module.TRACE,
        plan,
        out or Path("results") / f"trace-{data}",
        data,
        data_dir,
        _where(executor, address, workers),
        force,
    )


@app.command()
def labels(
    preset: Preset = "digits",
    protocol: Protocol = "epochs",
    models: Models = None,
    ratios: Annotated[str | None, typer.Option(help="Fractions of permuted labels. (default: 0, 0.1, ..., 1)")] = None,
    seeds: Seeds = None,
    measures: Measures = None,
    train: Annotated[int | None, typer.Option(help="Training images, if not the preset's number.", min=1)] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs, or the most epochs, if not the preset's.", min=1)] = None,
    out: Out = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    executor: ExecutorOption = ExecutorName.LOCAL,
    address: Address = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Train networks on partly permuted labels, and correlate every measure with the generalisation gap."""
    from ..experiments import labels as module

    plan = module.plan(
        preset,
        protocol,
        models=None if models is None else words(models, ()),
        ratios=module.RATIOS if ratios is None else [float(r) for r in numbers(ratios, float, "--ratios")],
        seeds=None if seeds is None else seeds_of(seeds, 0),
        measures=[named(name, MEASURES) for name in words(measures, module.MEASURES)],
        train=train,
        epochs=epochs,
        device=device,
    )
    place = out or Path("results") / f"labels-{preset}-{protocol}"
    _run(module.LABELS, plan, place, plan.settings["data"], data_dir, _where(executor, address, workers), force)


@app.command()
def approximations(
    data: DataName = "digits",
    models: Models = None,
    samples: SampleCounts = "10,100,1000",
    seeds: Seeds = "10",
    probes: Annotated[str, typer.Option(help="Numbers of probes, with commas between them.")] = "1,3,10,30,100,300",
    out: Out = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    executor: ExecutorOption = ExecutorName.LOCAL,
    address: Address = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Error of two approximations of DIAG[H] against their time, and the exact diagonal beside them."""
    from ..experiments import approximations as module
    from ..experiments.initial import MODELS, SEEDS

    plan = module.plan(
        data,
        models=words(models, MODELS),
        samples=integers(samples, "--samples"),
        seeds=seeds_of(seeds, SEEDS),
        probes=integers(probes, "--probes"),
        device=device,
    )
    place = out or Path("results") / f"approximations-{data}"
    _run(module.APPROXIMATIONS, plan, place, data, data_dir, _where(executor, address, workers), force)


@app.command()
def stability(
    rates: Annotated[str, typer.Option(help="Learning rates, with commas between them.")] = "0.5,1",
    steps: Annotated[int, typer.Option(help="Steps of gradient descent.", min=1)] = 8000,
    seeds: Seeds = "1",
    out: Out = None,
    workers: Workers = None,
    executor: ExecutorOption = ExecutorName.LOCAL,
    address: Address = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Sharpness over training: the top eigenvalue against 2/lr, the edge of stability, and minimum sharpness."""
    from ..experiments import stability as module

    plan = module.plan(rates=numbers(rates, float, "--rates"), seeds=seeds_of(seeds, 1), steps=steps, device=device)
    place = out or Path("results") / "stability"
    _run(module.STABILITY, plan, place, "digits", None, _where(executor, address, workers), force)


@app.command()
def vits(
    networks: Annotated[int, typer.Option(help="How many networks.", min=1)] = 30,
    train: Annotated[int, typer.Option(help="Training images.", min=1)] = 300,
    target: Annotated[float, typer.Option(help="The training loss at which each is stopped.")] = 0.01,
    limit: Annotated[int, typer.Option(help="The most epochs.", min=1)] = 200,
    rescalings: Annotated[int, typer.Option(help="Random elements of the whole group for each drift.", min=1)] = 3,
    measures: Annotated[str | None, typer.Option(help="Names of measures, with commas between them.")] = None,
    seed: Annotated[int, typer.Option(help="Of the hyperparameters that are drawn.")] = 0,
    out: Out = None,
    workers: Workers = None,
    executor: ExecutorOption = ExecutorName.LOCAL,
    address: Address = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Small vision transformers at equal training loss: the drift of every measure, and its tau with the gap."""
    from ..experiments import vits as module

    names = None if measures is None else words(measures, ())
    plan = module.plan(
        networks=networks,
        train=train,
        target=target,
        limit=limit,
        rescalings=rescalings,
        measures=names,
        seed=seed,
        device=device,
    )
    place = out or Path("results") / "vits"
    _run(module.VITS, plan, place, "digits", None, _where(executor, address, workers), force)


@app.command(name="run")
def run_any(
    name: Annotated[str, typer.Argument(help="package.module:OBJECT, an experiment of your own, or one of these.")],
    options: Annotated[
        list[str] | None, typer.Option("--set", help="An option of its plan, as in seeds=[0,1].")
    ] = None,
    out: Out = None,
    data_dir: DataDir = None,
    workers: Workers = None,
    executor: ExecutorOption = ExecutorName.LOCAL,
    address: Address = None,
    force: Force = False,
) -> None:
    """Run an experiment of your own, as the others are run; the module that holds it is imported."""
    from ..experiments import find

    experiment = find(name)
    plan = _planned(experiment, dict(map(_setting, options or [])))
    place = out or Path("results") / experiment.name
    _run(
        experiment,
        plan,
        place,
        plan.settings.get("data", "digits"),
        data_dir,
        _where(executor, address, workers),
        force,
    )


def _setting(text: str) -> tuple[str, Any]:
    """``name=value``, the value as JSON has it, or else as text."""
    import json

    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise typer.BadParameter(f"{text[:60]!r}: expected name=value, as in seeds=[0,1]", param_hint="--set")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _planned(experiment: "Experiment", options: dict[str, Any]) -> "Plan":
    """The plan of an experiment, with the options that its own function takes."""
    import inspect

    known = inspect.signature(experiment.plan).parameters
    unknown = [name for name in options if name not in known]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r}: {experiment.name} has no such option; it has {', '.join(known)}", param_hint="--set"
        )
    return experiment.plan(**options)


Own = Annotated[
    list[str] | None, typer.Option("--experiment", help="package.module:OBJECT, where the results are of your own.")
]


@app.command()
def page(
    folders: Annotated[list[Path], typer.Argument(help="Folders with results.")],
    write: Annotated[Path, typer.Option(help="The Markdown file to write.")] = Path("docs/reproduction.md"),
    own: Own = None,
) -> None:
    """Write the page that sets results beside the published numbers; every number in it comes from the folders."""
    from ..experiments import find
    from ..report.reproduction import write_page

    for name in own or []:
        find(name)
    write_page(folders, write)
    typer.echo(printable(write))


def figures(out: Annotated[Path, typer.Argument(help="A folder with a results.csv.")], own: Own = None) -> None:
    """Make the figures and the summary of `minsharp reproduce` again, from results.csv alone."""
    from ..experiments import find
    from ..report.outputs import write_outputs

    for name in own or []:
        find(name)
    for path in write_outputs(out):
        typer.echo(printable(path))


def _run(
    experiment: "Experiment",
    plan: "Plan",
    out: Path,
    data: str,
    data_dir: Path | None,
    executor: "Executor",
    force: bool,
) -> None:
    """Run the cells, then write and print what they say."""
    import sys

    from ..data import load
    from ..experiments import InterruptedRunError, computed_from, read_results, run
    from ..experiments.pool import Local
    from ..report.outputs import write_outputs

    required("matplotlib", "drawing figures")  # better now than after the work
    if isinstance(executor, Local):
        _check_device(plan.settings.get("device", "cpu"))
    place = None if data_dir is None else os.path.abspath(data_dir)
    if data != "digits":
        load(data, place, progress=sys.stderr.isatty())  # once, before the workers: they find it in the cache
    try:
        run(experiment, plan, out, executor=executor, force=force, data_dir=place)
    except InterruptedRunError as stop:
        note(str(stop))
        raise typer.Exit(130) from None
    written = write_outputs(out, experiment)
    with computed_from(out):
        found = read_results(out, experiment).tables
    for table in found:
        typer.echo(f"{table}\n")
    note(f"Written: {out / 'results.csv'}, " + ", ".join(path.name for path in written))


def _where(name: ExecutorName, address: str | None, workers: int | None) -> "Executor":
    """What runs the cells."""
    if name is ExecutorName.RAY:
        if workers is not None:
            raise typer.BadParameter("Ray has as many workers as its cluster has CPUs", param_hint="--workers")
        from ..integrations.ray import Ray

        return Ray(address)
    if address is not None:
        raise typer.BadParameter("an address is a Ray cluster's: --executor ray", param_hint="--address")
    from ..experiments.pool import Local

    return Local(workers)


def _check_device(device: str) -> None:
    """Refuse a device that the workers would not find."""
    import torch

    try:
        torch.zeros(1, device=device).sum().item()
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise typer.BadParameter(f"{device!r}: {reason}", param_hint="--device") from None
