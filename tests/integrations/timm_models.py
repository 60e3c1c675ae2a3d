"""A network of each of many families of timm: the smallest that there is, cut down further where its factory allows."""

from typing import Any

import timm
import torch
from torch import Tensor, nn

from .case import Case

Settings = dict[str, Any]

SAMPLES, CLASSES = 3, 3

_VIT: Settings = {"embed_dim": 24, "depth": 2, "num_heads": 3, "img_size": 32}
_SWIN: Settings = {"img_size": 32, "window_size": 2, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 2)}
_TWINS: Settings = {"img_size": 64, "embed_dims": (8, 16, 32, 32), "num_heads": (1, 2, 2, 2)}
_CROSS: Settings = {
    "img_size": 48,
    "img_scale": (1.0, 1.0),
    "patch_size": (12, 16),
    "embed_dim": (8, 16),
    "depth": ((1, 1, 0),),
}
_HIERA: Settings = {"img_size": 64, "embed_dim": 16, "stages": (1, 1, 1, 1), "num_heads": 1, "mask_unit_size": (8, 8)}
_LEVIT: Settings = {"img_size": 64, "embed_dim": (16, 16, 16), "depth": (1, 1, 1), "key_dim": 8, "num_heads": (2, 2, 2)}
_SAM: Settings = {**_VIT, "patch_size": 8, "global_attn_indexes": (1,), "window_size": 2, "neck_chans": 8}
_TINY: Settings = {"embed_dims": (8, 16, 16, 32), "depths": (1, 1, 1, 1), "num_heads": (1, 2, 2, 2)}
_COAT: Settings = {"img_size": 64, "embed_dims": (16, 16, 32, 32), "serial_depths": (1, 1, 1, 1)}
_EFFICIENT: Settings = {"img_size": 64, "embed_dims": (8, 8, 16, 16), "depths": (1, 1, 1, 1)}
_RDNET: Settings = {
    "num_init_features": 16,
    "growth_rates": (8, 8),
    "num_blocks_list": (1, 1),
    "is_downsample_block": (None, True),
    "transition_compression_ratio": 0.5,
    "bottleneck_width_ratio": 2,
}
_VISFORMER: Settings = {"img_size": 64, "init_channels": 8, "embed_dim": 32, "depth": (1, 1, 1), "num_heads": 2}


def _images(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(SAMPLES, 3, size, size), torch.randn(SAMPLES, CLASSES)


def _case(name: str, size: int = 32, **settings: Any) -> Case:
    return Case(
        name,
        lambda: timm.create_model(name, num_classes=CLASSES, **settings),
        lambda: _images(size),
        nn.MSELoss(),
    )


MODELS = [
    _case("levit_128s", 64, **_LEVIT),
    _case("swin_tiny_patch4_window7_224", **_SWIN),
    _case("swinv2_tiny_window8_256", **_SWIN),
    _case("swinv2_cr_tiny_224", **_SWIN),
    _case("tiny_vit_5m_224", 64, **_TINY),
    _case("tnt_s_patch16_224", img_size=32, embed_dim=24, inner_dim=8, depth=2, num_heads_outer=3),
    _case("twins_svt_small", 64, **_TWINS, depths=(1, 2, 1, 1)),
    _case("twins_pcpvt_small", 64, **_TWINS, depths=(1, 1, 1, 1)),
    _case("visformer_tiny", 64, **_VISFORMER),
    _case("xcit_nano_12_p16_224", **_VIT),
    _case("samvit_base_patch16_224", **_SAM),
    _case("test_vit"),
    _case("test_vit_relpos", img_size=32),
    _case("vit_tiny_r_s16_p8_224", 64, **{**_VIT, "img_size": 64}),
    _case("naflexvit_base_patch16_gap", embed_dim=24, depth=2, num_heads=3),
    _case("ese_vovnet19b_slim_dw"),
    _case("starnet_s050"),
    _case("fasternet_t0"),
    _case("regnetx_002"),
    _case("repghostnet_050"),
    _case("test_resnet"),
    _case("gmlp_ti16_224", img_size=32),
    _case("pit_ti_224", 64, img_size=64),
    _case("pvt_v2_b0"),
    _case("beit_base_patch16_224", **_VIT, patch_size=8),
    _case("test_byobnet"),
    _case("cait_xxs24_224", **{**_VIT, "num_heads": 4}),
    _case("coat_lite_tiny", 64, **_COAT),
    _case("convit_tiny", **{**_VIT, "num_heads": 4, "embed_dim": 6}, local_up_to_layer=1),
    _case("test_convnext"),
    _case("crossvit_tiny_240", 48, **_CROSS, num_heads=(2, 2)),
    _case("cs3darknet_s"),
    _case("davit_tiny", depths=(1, 1), embed_dims=(8, 16), num_heads=(1, 2)),
    _case("deit_tiny_distilled_patch16_224", **_VIT),
    _case("densenet121", growth_rate=4, block_config=(2, 2, 2)),
    _case("edgenext_xx_small", depths=(1, 1, 1, 1)),
    _case("test_efficientnet"),
    _case("test_efficientnet_evos"),
    _case("eva02_tiny_patch14_224", 28, **{**_VIT, "img_size": 28}),
    _case("fastvit_t8"),
    _case("ghostnet_050"),
    _case("hgnetv2_b0"),
    _case("hiera_tiny_224", 64, **_HIERA),
    _case("inception_next_atto", depths=(1, 1, 1, 1)),
    _case("lcnetv2_small"),
    _case("test_mambaout"),
    _case("test_maxvit", 64, img_size=64),
    _case("test_coatnet", 64, img_size=64),
    _case("mobilenetv3_small_050"),
    _case("mobilenetv4_conv_small_035"),
    _case("mobilevit_xxs", 64),
    _case("test_nfnet"),
    _case("efficientformerv2_s0", 64, **_EFFICIENT),
    _case("dla46_c"),
    _case("repvgg_a0"),
    _case("resnetv2_18"),
    _case("rdnet_tiny", **_RDNET),
    _case("skresnet18"),
    _case("swiftformer_xs", embed_dims=(8, 8, 16, 16), layers=(1, 1, 1, 1)),
    _case("selecsls42"),
]
