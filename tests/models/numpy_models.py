"""ResNet, ViT and DistilBERT in float64 NumPy, on the tensors of published files.

They are written from the papers and the layouts' own definitions, and know nothing of
hetjax: images are [B, C, H, W], kernels [out, in, ...].
"""

from typing import Any

import numpy as np
import published_layouts as layouts
from numpy.lib.stride_tricks import sliding_window_view
from scipy.special import erf

Tensors = dict[str, Any]


def windows(x: np.ndarray, size: int, stride: int, pad: int, fill: float) -> np.ndarray:
    """[B, C, H, W] to [B, C, H', W', size, size]."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=fill)
    return sliding_window_view(x, (size, size), (2, 3))[:, :, ::stride, ::stride]  # pyright: ignore


def conv(x: np.ndarray, w: np.ndarray, stride: int = 1, pad: int = 0) -> np.ndarray:
    """A convolution without bias."""
    found = windows(x, w.shape[-1], stride, pad, 0.0)
    return np.moveaxis(np.tensordot(found, w, ((1, 4, 5), (1, 2, 3))), -1, 1)


def dense(x: np.ndarray, t: Tensors, name: str) -> np.ndarray:
    """x W^T + b."""
    return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]


def softmax(x: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu(x: np.ndarray) -> np.ndarray:
    """x Phi(x)."""
    return x * 0.5 * (1 + erf(x / np.sqrt(2)))


def in_double(tensors: Tensors) -> Tensors:
    """All tensors in float64."""
    return {name: np.asarray(value, np.float64) for name, value in tensors.items()}


# --- ResNet -------------------------------------------------------------------------


def _batch_norm(x: np.ndarray, t: Tensors, name: str) -> np.ndarray:
    mean, var, scale, bias = (
        t[f"{name}.{leaf}"][:, None, None]
        for leaf in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / np.sqrt(var + 1e-5) * scale + bias


def resnet(tensors: Tensors, images: np.ndarray, layout: str) -> np.ndarray:
    """Logits of a network of bottleneck blocks, strides in the 3x3 convolutions."""
    t, names = in_double(tensors), layouts.resnet_names(layout)
    relu = lambda x: np.maximum(x, 0)  # noqa: E731
    x = conv(images, t[f"{names['stem']}.weight"], 2, 3)
    x = relu(_batch_norm(x, t, names["stem_norm"]))
    x = windows(x, 3, 2, 1, -np.inf).max((-2, -1))
    for s in range(9):
        for b in range(99):
            block = names["block"].format(s=s, s1=s + 1, b=b)
            if not any(name.startswith(f"{block}.") for name in t):
                break
            stride, h = (2 if s and b == 0 else 1), x
            for n, step in enumerate((1, stride, 1)):
                at = f"{block}." + names["conv"].format(n=n, n1=n + 1)
                h = conv(h, t[f"{at}.weight"], step, 1 if n == 1 else 0)
                h = _batch_norm(h, t, f"{block}." + names["norm"].format(n=n, n1=n + 1))
                h = relu(h) if n < 2 else h
            if f"{block}.{names['shortcut']}.weight" in t:
                x = conv(x, t[f"{block}.{names['shortcut']}.weight"], stride)
                x = _batch_norm(x, t, f"{block}.{names['shortcut_norm']}")
            x = relu(h + x)
    return dense(x.mean((2, 3)), t, names["head"])


# --- transformers -------------------------------------------------------------------


def _layer_norm(x: np.ndarray, t: Tensors, name: str, epsilon: float) -> np.ndarray:
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
    return x * t[f"{name}.weight"] + t[f"{name}.bias"]


def _attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int, mask: Any = None
) -> np.ndarray:
    """One head after the other, [B, T, D] each."""
    size, found = q.shape[-1] // heads, []
    for head in range(heads):
        mine = slice(head * size, (head + 1) * size)
        scores = q[..., mine] @ k[..., mine].swapaxes(1, 2) / np.sqrt(size)
        if mask is not None:
            scores = np.where(mask[:, None, :], scores, -np.inf)
        found.append(softmax(scores) @ v[..., mine])
    return np.concatenate(found, -1)


def vit(
    tensors: Tensors,
    images: np.ndarray,
    layout: str,
    *,
    heads: int,
    epsilon: float,
) -> np.ndarray:
    """Logits of a vision transformer, for images of the size it was made for."""
    t, names = in_double(tensors), layouts.VIT_NAMES[layout]
    kernel = t[f"{names['patches']}.weight"]
    x = conv(images, kernel, kernel.shape[-1])
    x = x.reshape(*x.shape[:2], -1).swapaxes(1, 2) + t[f"{names['patches']}.bias"]
    first = np.broadcast_to(t[names["cls"]], (len(x), 1, x.shape[-1]))
    x = np.concatenate([first, x], 1) + t[names["positions"]]
    for b in range(99):
        block = names["block"].format(b=b)
        if not any(name.startswith(f"{block}.") for name in t):
            break
        h = _layer_norm(x, t, f"{block}.{names['norm1']}", epsilon)
        if "qkv" in names:
            weight, bias = layouts.qkv_names(names, block)
            q, k, v = np.split(h @ t[weight].T + t[bias], 3, -1)
        else:
            q, k, v = (dense(h, t, f"{block}.{names[part]}") for part in "qkv")
        x = x + dense(_attention(q, k, v, heads), t, f"{block}.{names['out']}")
        h = _layer_norm(x, t, f"{block}.{names['norm2']}", epsilon)
        h = gelu(dense(h, t, f"{block}.{names['first']}"))
        x = x + dense(h, t, f"{block}.{names['second']}")
    return dense(_layer_norm(x, t, names["norm"], epsilon)[:, 0], t, names["head"])


def distilbert(
    tensors: Tensors, tokens: np.ndarray, prefix: str, *, heads: int, pad: int = 0
) -> np.ndarray:
    """Logits of DistilBERT for classification."""
    t, epsilon = in_double(tensors), 1e-12
    x = t[f"{prefix}embeddings.word_embeddings.weight"][tokens]
    x = x + t[f"{prefix}embeddings.position_embeddings.weight"][: tokens.shape[1]]
    x = _layer_norm(x, t, f"{prefix}embeddings.LayerNorm", epsilon)
    for i in range(99):
        name = f"{prefix}transformer.layer.{i}"
        if f"{name}.ffn.lin1.weight" not in t:
            break
        q, k, v = (dense(x, t, f"{name}.attention.{part}_lin") for part in "qkv")
        h = _attention(q, k, v, heads, tokens != pad)
        h = dense(h, t, f"{name}.attention.out_lin")
        x = _layer_norm(x + h, t, f"{name}.sa_layer_norm", epsilon)
        h = dense(gelu(dense(x, t, f"{name}.ffn.lin1")), t, f"{name}.ffn.lin2")
        x = _layer_norm(x + h, t, f"{name}.output_layer_norm", epsilon)
    x = np.maximum(dense(x[:, 0], t, "pre_classifier"), 0)
    return dense(x, t, "classifier")
