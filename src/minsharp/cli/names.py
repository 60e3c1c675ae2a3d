"""What measures, data sets and presets are called: known before any of them is loaded; a test compares with them."""

from collections.abc import Sequence

DATA = ("digits", "mnist", "fashion-mnist", "cifar-10")
IMAGES_TO_TRAIN_ON = ("digits", "mnist", "fashion-mnist")
MEASURES = (
    "training loss",
    "trace",
    "minimum sharpness",
    "minimum sharpness (neuron)",
    "minimum sharpness (full)",
    "relative minimum sharpness",
    "relative minimum sharpness (neuron)",
    "relative minimum sharpness (full)",
    "relative sensitivity",
    "relative sensitivity (element)",
    "margin sensitivity",
    "margin sensitivity (element)",
    "minimum margin sensitivity",
    "minimum margin sensitivity (neuron)",
    "normalized sharpness",
    "normalized sharpness (icml)",
    "Fisher-Rao norm",
    "Rangamani flatness",
    "largest eigenvalue",
    "Keskar sharpness",
    "SAM",
    "ASAM",
    "SAM (average)",
    "ASAM (average)",
    "ASAM (normalized logits)",
    "geodesic sharpness",
    "parameter corruption",
    "pacGen",
    "relative flatness",
)
PRESETS = ("digits", "mnist-small", "paper")
PROTOCOLS = ("epochs", "loss")
WEIGHTS = (".safetensors", ".pt", ".pth", ".th", ".ckpt", ".bin", ".tar")


def word(name: str) -> str:
    """A name as one word, which no shell takes apart.

    >>> word("minimum sharpness (neuron)"), word("Fisher-Rao norm")
    ('minimum-sharpness-neuron', 'fisher-rao-norm')
    """
    return "-".join("".join(c if c.isalnum() else " " for c in name).lower().split())


def named(text: str, names: Sequence[str]) -> str:
    """The name that a user means, written as one word or as it is; what is no name stays as it is.

    >>> named("minimum-sharpness-neuron", MEASURES), named("sam", MEASURES), named("entropy", MEASURES)
    ('minimum sharpness (neuron)', 'SAM', 'entropy')
    """
    return text if text in names else next((name for name in names if word(name) == word(text)), text)


def beginning(incomplete: str, names: Sequence[str]) -> list[str]:
    """Names as words, for the shell's completion.

    >>> beginning("sa", MEASURES)
    ['sam', 'sam-average']
    """
    return [name for name in map(word, names) if name.startswith(word(incomplete) if incomplete else "")]


def last_beginning(incomplete: str, names: Sequence[str]) -> list[str]:
    """The same for the last of several names with commas between them.

    >>> last_beginning("trace,asam-a", MEASURES)
    ['trace,asam-average']
    """
    head, comma, last = incomplete.rpartition(",")
    return [head + comma + name for name in beginning(last, names)]
