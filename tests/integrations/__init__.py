"""What the packages need before they are imported."""

import torch

_TORCHVISION = torch.library.Library("torchvision", "DEF")
"""timm imports torchvision, whose compiled operators do not load beside every build of torch. Their names are all that
importing it takes, and no network here calls them; where they do load, the definitions are already there."""

for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        _TORCHVISION.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
