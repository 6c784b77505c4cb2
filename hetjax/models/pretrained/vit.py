"""The layouts of vision transformers: timm's, torchvision's and Hugging Face's."""

import math
from functools import partial
from typing import Any

from hetjax.models.pretrained.layouts import Layout, Rule, count, shape_of
from hetjax.models.pretrained.tensors import Tensors
from hetjax.models.vit import vit

# heads by width, of all sizes that torchvision and timm publish
HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1664: 16}


def _settings(
    tensors: Tensors, config: dict[str, Any], *, epsilon: float
) -> dict[str, Any]:
    """Sizes from the shapes; of config.json the number of heads and the epsilon."""
    if "cls" not in tensors:
        raise ValueError("it has no class token, which the model's head reads")
    if config.get("hidden_act", "gelu") != "gelu":
        raise ValueError(f"config.json has hidden_act={config['hidden_act']!r}")
    patch, _, channels, width = shape_of(tensors, "patches/kernel", 4)
    _, places, _ = shape_of(tensors, "positions", 3)
    side = math.isqrt(places - 1)
    if side**2 + 1 != places:
        raise ValueError("its positions are not those of a square image, and a class")
    heads = config.get("num_attention_heads", HEADS.get(width))
    if heads is None:
        raise ValueError(
            f"its width {width} is of no published size, and tensors do not say the "
            'number of heads: put {"num_attention_heads": N} into config.json beside'
        )
    hidden = tensors["blocks/0/mlp/first/kernel"].shape[-1]
    return {
        "size": (count(tensors, r"blocks/(\d+)/"), width, heads, hidden),
        "patch": patch,
        "image": (side * patch, side * patch, channels),
        "epsilon": config.get("layer_norm_eps", epsilon),
    }


def _blocks(block: str, layers: dict[str, tuple[str, str]]) -> tuple[Rule, ...]:
    """Rules for the layers of a block, {its name there: (path here, kind)}."""
    return tuple(
        Rule(rf"{block}\.{name}", rf"blocks/\1/{path}", kind)
        for name, (path, kind) in layers.items()
    )


TIMM = Layout(
    "ViT of timm",
    r"blocks\.0\.attn\.qkv\.weight",
    (
        Rule(r"cls_token", "cls", "array"),
        Rule(r"pos_embed", "positions", "array"),
        Rule(r"patch_embed\.proj", "patches", "conv"),
        *_blocks(
            r"blocks\.(\d+)",
            {
                "norm1": ("norm1", "layer_norm"),
                r"attn\.qkv": ("attention/qkv", "dense"),
                r"attn\.proj": ("attention/out", "dense"),
                "norm2": ("norm2", "layer_norm"),
                r"mlp\.fc1": ("mlp/first", "dense"),
                r"mlp\.fc2": ("mlp/second", "dense"),
            },
        ),
        Rule(r"norm", "norm", "layer_norm"),
        Rule(r"head", "head", "dense"),
    ),
    r"pre_logits\..*",
    partial(_settings, epsilon=1e-6),
    vit,
)

TORCHVISION = Layout(
    "ViT of torchvision",
    r"conv_proj\.weight",
    (
        Rule(r"class_token", "cls", "array"),
        Rule(r"encoder\.pos_embedding", "positions", "array"),
        Rule(r"conv_proj", "patches", "conv"),
        # q, k and v together, as a layer without a dot before its arrays' names
        Rule(
            r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.in_proj_weight",
            r"blocks/\1/attention/qkv/kernel",
            "array",
        ),
        Rule(
            r"encoder\.layers\.encoder_layer_(\d+)\.self_attention\.in_proj_bias",
            r"blocks/\1/attention/qkv/bias",
            "array",
        ),
        *_blocks(
            r"encoder\.layers\.encoder_layer_(\d+)",
            {
                "ln_1": ("norm1", "layer_norm"),
                r"self_attention\.out_proj": ("attention/out", "dense"),
                "ln_2": ("norm2", "layer_norm"),
                r"mlp\.(?:0|linear_1)": ("mlp/first", "dense"),
                r"mlp\.(?:3|linear_2)": ("mlp/second", "dense"),
            },
        ),
        Rule(r"encoder\.ln", "norm", "layer_norm"),
        Rule(r"heads\.head", "head", "dense"),
    ),
    r"heads\.pre_logits\..*",
    partial(_settings, epsilon=1e-6),
    vit,
)

_PREFIX = r"(?:vit\.)?"
HUGGING_FACE = Layout(
    "ViT of Hugging Face",
    r"(vit\.)?embeddings\.patch_embeddings\.projection\.weight",
    (
        Rule(rf"{_PREFIX}embeddings\.cls_token", "cls", "array"),
        Rule(rf"{_PREFIX}embeddings\.position_embeddings", "positions", "array"),
        Rule(rf"{_PREFIX}embeddings\.patch_embeddings\.projection", "patches", "conv"),
        *_blocks(
            rf"{_PREFIX}encoder\.layer\.(\d+)",
            {
                "layernorm_before": ("norm1", "layer_norm"),
                r"attention\.attention\.query": ("attention/qkv#0", "dense"),
                r"attention\.attention\.key": ("attention/qkv#1", "dense"),
                r"attention\.attention\.value": ("attention/qkv#2", "dense"),
                r"attention\.output\.dense": ("attention/out", "dense"),
                "layernorm_after": ("norm2", "layer_norm"),
                r"intermediate\.dense": ("mlp/first", "dense"),
                r"output\.dense": ("mlp/second", "dense"),
            },
        ),
        Rule(rf"{_PREFIX}layernorm", "norm", "layer_norm"),
        Rule(r"classifier", "head", "dense"),
    ),
    r"(vit\.)?(pooler\..*|embeddings\.mask_token)",
    partial(_settings, epsilon=1e-12),
    vit,
)

LAYOUTS = (TIMM, TORCHVISION, HUGGING_FACE)
