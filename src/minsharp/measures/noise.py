"""How large the noise of a piece of hardware is, given the weights: one variance for each group of them.

    "absolute"         the same for every weight
    "relative"         the mean square of each tensor
    "max"              the largest square of each tensor: quantizers with a scale per tensor, analog tiles
    "max-per-channel"  the largest square of each output channel, along the first axis, as quantizers take it

each times sigma². Round to nearest with b bits, symmetric, has steps of max / (2^(b-1) - 1), and errors of variance
step²/12: sigma² = 1 / (12 (2^(b-1) - 1)²). Biases, and other parameters with fewer than two axes, are either noisy like
the rest, each one tensor, or kept exact, as they are where weights are quantized or programmed into devices.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from numbers import Real
from typing import Any, Literal, get_args

from torch import Tensor

from ..errors import InputError, NonFiniteError

Noise = Literal["absolute", "relative", "max", "max-per-channel"]
Each = int | Sequence[int]
"""Bits of one parameter: a number, or one for each output channel, along the first axis."""
Bits = int | Mapping[str, Each]
KeptBits = int | Mapping[str, int | tuple[int, ...]]
"""The same in results."""
Biases = Literal["exact", "noisy"]
NOISES: tuple[str, ...] = get_args(Noise)
GROWING = ("max", "max-per-channel")
"""The noises that quantizers make, and for which biases are kept exact unless said otherwise."""
MOST_BITS = 24


def checked(noise: Any, biases: Any, known: tuple[str, ...] = NOISES) -> Biases:
    """How the biases are treated under a noise; refuses names that are not known."""
    if noise not in known:
        raise InputError(f"noise={noise!r}: expected one of {', '.join(map(repr, known))}")
    if biases is None:
        return "noisy" if noise in ("absolute", "relative") else "exact"
    if biases not in get_args(Biases):
        raise InputError(f"biases={biases!r}: expected 'exact' or 'noisy', or none for what is usual with the noise")
    chosen: Biases = biases
    return chosen


def only_absolute(scope: str, noise: Noise, biases: Biases | None) -> None:
    """Noise that grows with the weights, and biases that are kept exact, are for scales alone."""
    if noise != "absolute" or biases == "exact":
        raise InputError(
            f'scope={scope!r} is for noise="absolute" with noisy biases, got noise={noise!r}, biases={biases!r}: ask '
            'for scope="neuron", or leave them out'
        )


def checked_bits(bits: Any) -> int:
    """A number of bits that a symmetric quantizer can have: two at least, for -1, 0 and 1."""
    plain = _plain(bits)
    if isinstance(plain, bool) or not isinstance(plain, int) or not 2 <= plain <= MOST_BITS:
        raise InputError(f"bits={bits!r}: expected a whole number from 2 to {MOST_BITS}, as in bits=4")
    return plain


def _plain(given: Any) -> Any:
    """What numpy and torch hold, as plain Python."""
    return given.tolist() if hasattr(given, "tolist") else given


def finite(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The same weights; refuses those that are not finite, for which there is no largest."""
    for name, weight in weights.items():
        if not bool(weight.isfinite().all()):
            raise NonFiniteError(f"the weights of '{name}' are not all finite: there is no size of noise for them")
    return weights


def is_noisy(axes: int, biases: Biases) -> bool:
    """Whether a parameter with so many axes gets any noise."""
    return biases == "noisy" or axes > 1


def levels(bits: int) -> int:
    """How many steps there are from zero to the largest weight."""
    return int(2 ** (bits - 1)) - 1


def rounding_variance(bits: int) -> float:
    """The mean squared error of rounding to nearest, per unit of the largest weight squared: step²/12."""
    return 1 / (12 * levels(bits) ** 2)


def levels_of(weight: Tensor, bits: Each) -> int | Tensor:
    """The same for a tensor; where each channel has bits of its own, (channels, 1, ...)."""
    if isinstance(bits, int):
        return levels(bits)
    return weight.new_tensor([levels(b) for b in bits]).view(-1, *[1] * (weight.dim() - 1))


def variance(weight: Tensor, noise: Noise) -> Tensor:
    """The noise of a tensor per unit of sigma², broadcastable to it.

    >>> import torch
    >>> variance(torch.tensor([[1.0, -2.0], [0.5, 0.0]]), "max-per-channel").tolist()
    [[4.0], [0.25]]
    >>> variance(torch.tensor([1.0, -2.0]), "relative").tolist()
    [2.5]
    """
    ones = [1] * weight.dim()
    if noise == "absolute" or not weight.numel():
        return weight.new_ones(ones)
    squares = weight.detach().square()
    if noise == "relative":
        return squares.mean().view(ones)
    if noise == "max" or weight.dim() < 2:
        return squares.max().view(ones)
    return squares.flatten(1).amax(1).view(-1, *ones[1:])


def weighed(
    curvature: Mapping[str, Tensor], weights: Mapping[str, Tensor], noise: Noise, biases: Biases
) -> dict[str, float]:
    """sum_T N_T sum_{i in T} h_i of each parameter: twice the expected increase of the loss, per unit of sigma²."""
    parts = {}
    for name, h in curvature.items():
        weight = weights[name].detach().to(h)
        parts[name] = float((variance(weight, noise) * h).sum()) if is_noisy(weight.dim(), biases) else 0.0
    return parts


# Sizes of noise, and what quantizers and devices do

Device = Literal["absolute", "relative", "max", "max-per-channel", "pcm"]
DEVICES: tuple[str, ...] = get_args(Device)


def noise_variances(
    weights: Mapping[str, Tensor], noise: Device, biases: Biases, sigma: float | None, bits: Bits | None
) -> dict[str, Tensor]:
    """The variance of the noise on each parameter, broadcastable to it; zero where it is kept exact."""
    found = {}
    for name, weight in weights.items():
        if not is_noisy(weight.dim(), biases):
            found[name] = weight.new_zeros([1] * weight.dim())
        elif noise == "pcm":
            found[name] = (1.0 if sigma is None else sigma) ** 2 * programming_variance(weight)
        else:
            size = sigma**2 if sigma is not None else 1 / (12 * levels_of(weight, bits_of(name, weight, bits)) ** 2)
            found[name] = size * variance(weight, noise)
    return found


def is_size(given: Any) -> bool:
    """Whether this is a number, not negative and finite."""
    return not isinstance(given, bool) and isinstance(given, Real) and 0 <= float(given) < inf


def checked_size(noise: Device, sigma: float | None, bits: Bits | None) -> KeptBits | None:
    """The bits, as plain numbers and tuples; refuses sizes that are none, and bits where nothing is rounded."""
    if bits is not None and noise not in GROWING:
        raise InputError(f"bits={bits!r} with noise={noise!r}: quantizers make the noises 'max' and 'max-per-channel'")
    if (sigma is None) == (bits is None) and not (noise == "pcm" and bits is None):
        raise InputError(f"sigma={sigma!r}, bits={bits!r}: expected one of them, as in sigma=0.05 or bits=4")
    if sigma is not None and not is_size(sigma):
        raise InputError(f"sigma={sigma!r}: expected a size of noise, not negative, as in sigma=0.05")
    if isinstance(bits, Mapping):
        return {name: _each(given) for name, given in bits.items()}
    return None if bits is None else checked_bits(bits)


def _each(given: Any) -> int | tuple[int, ...]:
    """The bits of one parameter, or of each of its channels."""
    plain = _plain(given)
    if isinstance(plain, Sequence) and not isinstance(plain, str):
        return tuple(checked_bits(one) for one in plain)
    return checked_bits(given)


def checked_names(bits: Any, parameters: Iterable[str]) -> None:
    """Refuse bits for what is no parameter of the network."""
    unknown = sorted(set(bits) - set(parameters)) if isinstance(bits, Mapping) else []
    if unknown:
        raise InputError(f"bits for {_few(unknown)}: the network has no such parameters, but {_few(list(parameters))}")


def bits_of(name: str, weight: Tensor, bits: Bits | None) -> Each:
    """The bits of one parameter, or of each of its channels."""
    if not isinstance(bits, Mapping):
        return checked_bits(bits)
    if name not in bits:
        raise InputError(f"bits={_few(dict(bits))}: there is none for '{name}'")
    found = bits[name]
    if not isinstance(found, int) and (weight.dim() < 2 or len(found) != len(weight)):
        shape = tuple(weight.shape)
        raise InputError(
            f"bits of '{name}': {len(found)} numbers, expected one number, or as many as the first axis of {shape} has"
        )
    return found


def _few(bits: Any) -> str:
    text = repr(bits)
    return text if len(text) < 200 else text[:200] + "..."


def quantized(weight: Tensor, bits: Each, noise: Noise) -> Tensor:
    """Round to nearest with symmetric steps of max / (2^(b-1) - 1), one size per tensor or per output channel.

    Channels with bits of their own have steps of their own, whatever they share a largest weight with.

    >>> import torch
    >>> quantized(torch.tensor([[3.0, -1.2, 0.4]]), 3, "max").tolist()  # steps of one
    [[3.0, -1.0, 0.0]]
    """
    step = variance(weight, noise).sqrt() / levels_of(weight, bits)
    return (weight / step.where(step > 0, step.new_ones(()))).round() * step


# Programming noise of phase-change memory, as measured on a million devices: Joshi et al., Nature Communications 11,
# 2473 (2020); Nandakumar et al., ICECS 2019. In microsiemens, for a target between 0 and 1 times 25 microsiemens.
PCM_LARGEST = 25.0


def _programming_deviation(g: Tensor) -> Tensor:
    return (-1.1731 * g.square() + 1.9650 * g + 0.2635).clamp_min(0)


def programming_variance(weight: Tensor) -> Tensor:
    """The variance of weights programmed into pairs of phase-change devices: one holds |w| / max|w|, the other zero."""
    top = weight.detach().abs().max() if weight.numel() else weight.new_zeros(())
    g = weight.detach().abs() / top.where(top > 0, top.new_ones(()))
    both = _programming_deviation(g).square() + _programming_deviation(g.new_zeros(())).square()
    return both * (top / PCM_LARGEST).square()
