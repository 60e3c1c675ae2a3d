"""The data of the experiments: images in [-1, 1] as the paper maps them, with labels."""

from .dataset import Dataset
from .labels import permute_labels
from .registry import NAMES, TRAINING_IMAGES, load

__all__ = ["NAMES", "TRAINING_IMAGES", "Dataset", "load", "permute_labels"]
