"""Normalisation."""

import torch
import torch.nn.functional as F

from .notation import Example
from .shorthand import Examples

aten = torch.ops.aten

EXAMPLES: Examples = {
    "batch_norm": [
        Example(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), "x(n,c) m(c)! v(c)!+ w(c) b(c)"),
        Example(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, eps=0.1), "x(n,c,l) m(c)! v(c)!+ w(c) b(c)"),
        Example(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b), "x(n,c,h,l) m(c)! v(c)!+ w(c) b(c)"),
        Example(lambda x, m, v: F.batch_norm(x, m, v), "x(n,c,l) m(c)! v(c)!+"),
        Example(lambda x, m, v, w: F.batch_norm(x, m, v, weight=w), "x(n,c,l) m(c)! v(c)!+ w(c)"),
        Example(lambda x, m, v, b: F.batch_norm(x, m, v, bias=b), "x(n,c,l) m(c)! v(c)!+ b(c)"),
        Example(lambda x, m, v, w: F.batch_norm(x, m, v, w, w), "x(n,c,l) m(c)! v(c)!+ w(c)"),
        Example(
            lambda x, c: F.batch_norm(x.reshape(1, -1, x.shape[2]), None, None, training=True).reshape(
                -1, c, x.shape[2]
            ),
            "x(n,c,l)",
            {"l": (3, 5)},
        ),
        Example(lambda x: F.batch_norm(x, None, None, training=True), "x(a,n,l)", {"a": (2, 3)}),
        Example(lambda x, y, z: F.batch_norm(x, None, None, y, z, training=True), "x(a,n) y(n) z(n)", {"a": (3, 4)}),
        Example(lambda p, x: F.batch_norm(p, None, None, x, training=True), "p(a,1)! x(1)", {"a": (3, 4)}),
        Example(
            lambda x, m, v, w, a: F.batch_norm(x.flatten(0, 1), m, v, w).unflatten(0, (-1, a)),
            "x(n,a,c) m(c)! v(c)!+ w(c)",
        ),
        Example(lambda W, m, v, w: F.batch_norm(W, m, v, w), "W(a,c) m(c)! v(c)!+ w(c)"),
    ],
    "_native_batch_norm_legit_no_training": [
        Example(
            lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-5),
            "x(n,c,l) w(c) b(c) m(c)! v(c)!+",
        ),
        Example(
            lambda x, w, b, m, v: aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 0.5)[0],
            "x(n,c) w(c) b(c) m(c)! v(c)!+",
        ),
        Example(
            lambda x, m, v: aten._native_batch_norm_legit_no_training(x, None, None, m, v, 0.1, 1e-5)[0],
            "x(n,c,l) m(c)! v(c)!+",
        ),
    ],
    "layer_norm": [
        Example(lambda x, w, b, i: F.layer_norm(x, (i,), w, b, eps=0.3), "x(n,i) w(i) b(i)", {"i": (3, 4)}, free=True),
        Example(lambda x, w, b, i: F.layer_norm(x, (i,), w, b), "x(n,i) w(i) b(i)", {"i": (3, 4)}),
        Example(lambda x, w, b, i: F.layer_norm(x, (i,), w, b), "x(n,a,i) w(i) b(i)", {"i": (3, 4)}),
        Example(lambda x, w, b, i: F.layer_norm(x, (i,), w, b), "x(a,n,i) w(i) b(i)", {"i": (3, 4)}),
        Example(lambda x, w, b: F.layer_norm(x, tuple(w.shape), w, b), "x(n,a,i) w(a,i) b(a,i)", {"i": (3, 4)}),
        Example(lambda x, i: F.layer_norm(x, (i,)), "x(n,i)", {"i": (3, 4)}),
        Example(lambda x, w, i: F.layer_norm(x, (i,), w, eps=0.1), "x(n,i) w(i)", {"i": (3, 4)}),
        Example(lambda x, b, i: F.layer_norm(x, (i,), None, b), "x(n,i) b(i)", {"i": (3, 4)}),
        Example(lambda x, w, i: F.layer_norm(x, (i,), w, w), "x(n,i) w(i)", {"i": (3, 4)}),
        Example(lambda V, w, b, i: F.layer_norm(V, (i,), w, b), "V(a,i) w(i) b(i)", {"i": (3, 4)}),
    ],
    "native_layer_norm": [
        Example(lambda x, w, b, i: torch.native_layer_norm(x, (i,), w, b, 1e-5), "x(n,i) w(i) b(i)", {"i": (3, 4)}),
        Example(lambda x, i: torch.native_layer_norm(x, (i,), None, None, 0.1), "x(n,a,i)", {"i": (3, 4)}),
        Example(
            lambda x, w, b, i: torch.native_layer_norm(x, (i,), w, b, 1e-5)[0], "x(a,n,i) w(i) b(i)", {"i": (3, 4)}
        ),
        Example(lambda x, w, i: torch.native_layer_norm(x, (i,), w, None, 1e-5)[1:], "x(n,i) w(i)", {"i": (3, 4)}),
    ],
    "rms_norm": [
        Example(lambda x, w, i: F.rms_norm(x, (i,), w, eps=0.3), "x(n,i) w(i)", {"i": (3, 4)}, free=True),
        Example(lambda x, w, i: F.rms_norm(x, (i,), w, eps=0.1), "x(n,a,i) w(i)", {"i": (3, 4)}),
        Example(lambda x, w: F.rms_norm(x, tuple(w.shape), w, eps=0.1), "x(n,a,i) w(a,i)", {"i": (3, 4)}),
        Example(lambda x, i: F.rms_norm(x, (i,)), "x(a,n,i)", {"i": (3, 4)}),
        Example(lambda V, w, i: F.rms_norm(V, (i,), w), "V(a,i) w(i)", {"i": (3, 4)}),
    ],
    "group_norm": [
        Example(lambda x, w, b: F.group_norm(x, 2, w, b, eps=0.3), "x(n,2c,l) w(2c) b(2c)", {"l": (3, 4)}, free=True),
        Example(lambda x, w, b: F.group_norm(x, 2, w, b), "x(n,2c,l) w(2c) b(2c)", {"l": (3, 4)}),
        Example(lambda x, w, b: F.group_norm(x, 2, w, b), "x(n,2c) w(2c) b(2c)", {"c": (3, 4)}),
        Example(lambda x, w, b: F.group_norm(x, 1, w, b, eps=0.1), "x(n,c,h,l) w(c) b(c)", {"l": (3, 4)}),
        Example(lambda x: F.group_norm(x, 2), "x(n,2c,l)", {"l": (3, 4)}),
        Example(lambda x, w: F.group_norm(x, 2, w), "x(n,2c,l) w(2c)", {"l": (3, 4)}),
        Example(
            lambda x, w, b, a: F.group_norm(x.flatten(0, 1), 1, w, b).unflatten(0, (-1, a)), "x(n,a,c,3) w(c) b(c)"
        ),
    ],
    "instance_norm": [
        Example(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), "x(n,c,l) w(c) b(c)", {"l": (3, 4)}),
        Example(lambda x, w, b: F.instance_norm(x, weight=w, bias=b, eps=0.1), "x(n,c,h,l) w(c) b(c)", {"l": (3, 4)}),
        Example(lambda x: F.instance_norm(x), "x(n,c,l)", {"l": (3, 4)}),
        Example(lambda x, w: F.instance_norm(x, weight=w), "x(n,c,l) w(c)", {"l": (3, 4)}),
        Example(
            lambda x, m, v, w, b: F.instance_norm(x, m, v, w, b, use_input_stats=False),
            "x(n,c,l) m(c)! v(c)!+ w(c) b(c)",
        ),
    ],
}
