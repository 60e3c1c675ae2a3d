"""Where something was measured, and with what."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

from minsharp.text import decimals
from minsharp.version import __version__


def machine(*packages: str) -> str:
    """Processor, threads, versions of minsharp, torch and further packages, and the load; call it before measuring."""
    versions = [f"minsharp {__version__}", *(f"{package} {version(package)}" for package in ("torch", *packages))]
    threads = torch.get_num_threads()
    return (
        f"{os.cpu_count()} cores of {_processor()}, {threads} torch thread{'s' if threads > 1 else ''}, "
        f"{platform.system()}, Python {platform.python_version()}; {', '.join(versions)}. Load average when the run "
        f"began: {decimals(os.getloadavg()[0])}."
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "an unknown CPU"
