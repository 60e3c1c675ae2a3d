"""Operations by the names that torch itself uses inside."""

from .registry import EVERY, one, register

register(
    "linear",
    EVERY,
    {
        "inner names": one(
            "torch.constant_pad_nd({h}, (1, 0), {c})",
            "torch.constant_pad_nd({h}, (0, 1))",
            "torch.ops.aten.alias({h})",
            "torch.ops.aten._unsafe_view({h}, {h}.shape)",
            "torch.feature_dropout({h}, 0.5, False)",
            "torch.ops.aten.expand_copy({h}, {h}.shape)",
            "torch.ops.aten.permute_copy({h}, list(range({h}.dim())))",
            "torch.ops.aten.squeeze_copy({h}.unsqueeze(1), 1)",
            "torch.ops.aten.detach({h}) + {h}",
        )
    },
)
register(
    "linear",
    "23",
    {
        "inner pads 1d": one(
            "torch.ops.aten.reflection_pad1d({h}, (1, 0))",
            "torch.ops.aten.replication_pad1d({h}, (1, 1))",
            "torch.ops.aten._pad_circular({h}.unsqueeze(1), (1, 0)).flatten(1)",
        )
    },
)
register(
    "linear",
    "34",
    {
        "inner pads 2d": one(
            "torch.ops.aten.reflection_pad2d({h}, (1, 0, 0, 1))",
            "torch.ops.aten.replication_pad2d({h}, (1, 1, 0, 0))",
            "torch.ops.aten._adaptive_avg_pool2d({h}, (1, 2))",
            "torch.ops.aten.max_pool2d_with_indices({h}, (2, 1))[0]",
        )
    },
)
register(
    "bent",
    EVERY,
    {
        "inner norms": one(
            "torch.native_layer_norm({h}, ({w},), None, None, 1e-2)[0]",
            "torch._softmax({h}, {d}, False)",
            "torch._log_softmax({h}, {d}, False)",
            "torch.ops.aten._safe_softmax({h}, {d})",
        )
    },
)
