"""The published layouts of ResNet, ViT and DistilBERT: {name: shape}, by formulas.

Names and shapes are those of the state dictionaries of torchvision, timm and Hugging
Face's transformers; arrays are in PyTorch's order, [out, in, ...].
"""

from typing import Any

import numpy as np

Shapes = dict[str, tuple[int, ...]]


def layer(name: str, *weight: int) -> Shapes:
    """A weight of this shape, and a bias."""
    return {f"{name}.weight": weight, f"{name}.bias": (weight[0],)}


def batch_norm(name: str, channels: int) -> Shapes:
    """Scale, bias and the running statistics."""
    mean, var = ({f"{name}.running_{s}": (channels,)} for s in ("mean", "var"))
    return layer(name, channels) | mean | var | {f"{name}.num_batches_tracked": ()}


# --- ResNet -------------------------------------------------------------------------


def resnet_names(layout: str) -> dict[str, str]:
    """Patterns of the layers' names; s, b and n count from 0."""
    if layout == "torchvision":  # and timm
        return {
            "stem": "conv1",
            "stem_norm": "bn1",
            "block": "layer{s1}.{b}",
            "conv": "conv{n1}",
            "norm": "bn{n1}",
            "shortcut": "downsample.0",
            "shortcut_norm": "downsample.1",
            "head": "fc",
        }
    prefix = {"hugging face": "resnet.", "hugging face, encoder": ""}[layout]
    return {
        "stem": f"{prefix}embedder.embedder.convolution",
        "stem_norm": f"{prefix}embedder.embedder.normalization",
        "block": prefix + "encoder.stages.{s}.layers.{b}",
        "conv": "layer.{n}.convolution",
        "norm": "layer.{n}.normalization",
        "shortcut": "shortcut.convolution",
        "shortcut_norm": "shortcut.normalization",
        "head": "classifier.1",
    }


def resnet(
    layout: str, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, c: int = 1000
) -> Shapes:
    """A network of bottleneck blocks."""
    names = resnet_names(layout)
    found: Shapes = {f"{names['stem']}.weight": (width, 3, 7, 7)}
    found |= batch_norm(names["stem_norm"], width)
    channels = width
    for s, number in enumerate(blocks):
        inner = width * 2**s
        for b in range(number):
            block = names["block"].format(s=s, s1=s + 1, b=b)
            convs = [(inner, channels, 1), (inner, inner, 3), (4 * inner, inner, 1)]
            for n, (after, before, k) in enumerate(convs):
                conv = names["conv"].format(n=n, n1=n + 1)
                norm = names["norm"].format(n=n, n1=n + 1)
                found[f"{block}.{conv}.weight"] = (after, before, k, k)
                found |= batch_norm(f"{block}.{norm}", after)
            if b == 0:  # the first stage's first block has more channels, too
                conv = f"{block}.{names['shortcut']}.weight"
                found[conv] = (4 * inner, channels, 1, 1)
                found |= batch_norm(f"{block}.{names['shortcut_norm']}", 4 * inner)
            channels = 4 * inner
    return found | (layer(names["head"], c, channels) if c else {})


# --- ViT ----------------------------------------------------------------------------

_HF_VIT = {
    "cls": "embeddings.cls_token",
    "positions": "embeddings.position_embeddings",
    "patches": "embeddings.patch_embeddings.projection",
    "block": "encoder.layer.{b}",
    "norm1": "layernorm_before",
    "q": "attention.attention.query",
    "k": "attention.attention.key",
    "v": "attention.attention.value",
    "out": "attention.output.dense",
    "norm2": "layernorm_after",
    "first": "intermediate.dense",
    "second": "output.dense",
    "norm": "layernorm",
}
VIT_NAMES = {
    "timm": {
        "cls": "cls_token",
        "positions": "pos_embed",
        "patches": "patch_embed.proj",
        "block": "blocks.{b}",
        "norm1": "norm1",
        "qkv": "attn.qkv",
        "out": "attn.proj",
        "norm2": "norm2",
        "first": "mlp.fc1",
        "second": "mlp.fc2",
        "norm": "norm",
        "head": "head",
    },
    "torchvision": {
        "cls": "class_token",
        "positions": "encoder.pos_embedding",
        "patches": "conv_proj",
        "block": "encoder.layers.encoder_layer_{b}",
        "norm1": "ln_1",
        "qkv": "self_attention.in_proj_",  # without a dot: see `vit`
        "out": "self_attention.out_proj",
        "norm2": "ln_2",
        "first": "mlp.0",
        "second": "mlp.3",
        "norm": "encoder.ln",
        "head": "heads.head",
    },
    "hugging face": {
        key: name
        if key in ("norm1", "q", "k", "v", "out", "norm2", "first", "second")
        else f"vit.{name}"
        for key, name in _HF_VIT.items()
    }
    | {"head": "classifier"},
    "hugging face, encoder": _HF_VIT | {"head": "classifier"},
}
VIT_NAMES["torchvision, old"] = VIT_NAMES["torchvision"] | {
    "first": "mlp.linear_1",  # as in the published files; it renames them as it loads
    "second": "mlp.linear_2",
}


def qkv_names(names: dict[str, str], block: str) -> tuple[str, str]:
    """Names of weight and bias of q, k and v in one."""
    dot = "" if names["qkv"].endswith("_") else "."
    whole = f"{block}.{names['qkv']}{dot}"
    return f"{whole}weight", f"{whole}bias"


def vit(
    layout: str,
    depth: int = 12,
    width: int = 768,
    hidden: int = 3072,
    patch: int = 16,
    image: int = 224,
    c: int = 1000,
) -> Shapes:
    """A vision transformer of square images."""
    names = VIT_NAMES[layout]
    places = 1 + (image // patch) ** 2
    found: Shapes = {
        names["cls"]: (1, 1, width),
        names["positions"]: (1, places, width),
    }
    found |= layer(names["patches"], width, 3, patch, patch)
    for b in range(depth):
        block = names["block"].format(b=b)
        if "qkv" in names:
            weight, bias = qkv_names(names, block)
            found |= {weight: (3 * width, width), bias: (3 * width,)}
        else:
            for part in "qkv":
                found |= layer(f"{block}.{names[part]}", width, width)
        found |= layer(f"{block}.{names['norm1']}", width)
        found |= layer(f"{block}.{names['out']}", width, width)
        found |= layer(f"{block}.{names['norm2']}", width)
        found |= layer(f"{block}.{names['first']}", hidden, width)
        found |= layer(f"{block}.{names['second']}", width, hidden)
    found |= layer(names["norm"], width)
    return found | (layer(names["head"], c, width) if c else {})


# --- DistilBERT ---------------------------------------------------------------------


def distilbert(
    prefix: str = "distilbert.",
    depth: int = 6,
    width: int = 768,
    hidden: int = 3072,
    vocabulary: int = 30_522,
    positions: int = 512,
    c: int = 2,
    masked: bool = False,
) -> Shapes:
    """DistilBERT for classification; of the masked-language head if `masked`."""
    found: Shapes = {
        f"{prefix}embeddings.word_embeddings.weight": (vocabulary, width),
        f"{prefix}embeddings.position_embeddings.weight": (positions, width),
    }
    found |= layer(f"{prefix}embeddings.LayerNorm", width)
    for i in range(depth):
        name = f"{prefix}transformer.layer.{i}"
        for part in ("q_lin", "k_lin", "v_lin", "out_lin"):
            found |= layer(f"{name}.attention.{part}", width, width)
        found |= layer(f"{name}.sa_layer_norm", width)
        found |= layer(f"{name}.ffn.lin1", hidden, width)
        found |= layer(f"{name}.ffn.lin2", width, hidden)
        found |= layer(f"{name}.output_layer_norm", width)
    if masked:
        found |= layer("vocab_transform", width, width)
        found |= layer("vocab_layer_norm", width)
        found |= layer("vocab_projector", vocabulary, width)
    if c:
        found |= layer("pre_classifier", width, width) | layer("classifier", c, width)
    return found


# --- values -------------------------------------------------------------------------


def filled(shapes: Shapes, seed: int = 0) -> dict[str, Any]:
    """Random tensors of such sizes that every one of them shows in the logits."""
    rng = np.random.default_rng(seed)

    def of(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name.endswith("num_batches_tracked"):
            return np.full(shape, 123, np.int64)
        if name.endswith("running_var") or (
            name.endswith("weight") and len(shape) == 1
        ):
            return rng.uniform(0.5, 1.5, shape)  # variances, and scales of norms
        places = "embedding" in name or name.endswith(("token", "embed"))
        if len(shape) == 1 or (places and len(shape) < 4):
            return rng.normal(0, 0.3, shape)
        return rng.normal(0, np.prod(shape[1:]) ** -0.5, shape)

    return {
        name: np.asarray(value, value.dtype if value.dtype == np.int64 else np.float32)
        for name, value in ((name, of(name, shape)) for name, shape in shapes.items())
    }
