"""The layouts of published weights: tables of tensor names, and models' settings.

Each row of a table is a path in the module ("-": none) and its name in every layout.
The second row defines "@"; a layout is recognized by names of the third row.
- A name that ends in "." or "_" is that of a layer; the names of its arrays follow. If
  the flax name of "weight" is not "kernel", it follows ":" in the path.
- "#" is a number; "#+1" and "#-1" are one more and one less than in the path.
- "~" is the model's name and a dot, or nothing; "*" matches anything.
- The arrays of "(q|k|v)" are one array in the module, concatenated in this order.
"""

import math
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetjax.models.bottleneck import EXPANSION, resnet50
from hetjax.models.distilbert import EPSILON, distilbert
from hetjax.models.vit import vit

RESNET = """
ResNet                     torchvision or timm    Hugging Face
stages/#/#                 layer#+1.#             ~encoder.stages.#.layers.#
@/conv#                    @.conv#.               @.layer.#-1.convolution.
@/norm#:scale              @.bn#.                 @.layer.#-1.normalization.
@/shortcut/layers/0        @.downsample.0.        @.shortcut.convolution.
@/shortcut/layers/1:scale  @.downsample.1.        @.shortcut.normalization.
conv                       conv1.                 ~embedder.embedder.convolution.
norm:scale                 bn1.                   ~embedder.embedder.normalization.
head                       fc.                    classifier.1.
-                          *.num_batches_tracked  *.num_batches_tracked
"""
VIT = """
ViT              timm          torchvision                     Hugging Face
blocks/#         blocks.#      encoder.layers.encoder_layer_#  ~encoder.layer.#
@/attention/qkv  @.attn.qkv.   @.self_attention.in_proj_  \
                                            @.attention.attention.(query|key|value).
@/attention/out  @.attn.proj.  @.self_attention.out_proj.  @.attention.output.dense.
@/norm1:scale    @.norm1.      @.ln_1.                     @.layernorm_before.
@/norm2:scale    @.norm2.      @.ln_2.                     @.layernorm_after.
@/mlp/first      @.mlp.fc1.    @.mlp.(?:0|linear_1).       @.intermediate.dense.
@/mlp/second     @.mlp.fc2.    @.mlp.(?:3|linear_2).       @.output.dense.
cls         cls_token          class_token            ~embeddings.cls_token
positions   pos_embed          encoder.pos_embedding  ~embeddings.position_embeddings
patches     patch_embed.proj.  conv_proj.      ~embeddings.patch_embeddings.projection.
norm:scale  norm.              encoder.ln.            ~layernorm.
head        head.              heads.head.            classifier.
-           pre_logits.*       heads.pre_logits.*  ~(?:pooler.*|embeddings.mask_token)
"""
DISTILBERT = """
DistilBERT           Hugging Face
layers/#             ~transformer.layer.#
@/attention/qkv      @.attention.(q|k|v)_lin.
@/attention/out      @.attention.out_lin.
@/norm1:scale        @.sa_layer_norm.
@/norm2:scale        @.output_layer_norm.
@/mlp/first          @.ffn.lin1.
@/mlp/second         @.ffn.lin2.
words/embedding      ~embeddings.word_embeddings.weight
positions/embedding  ~embeddings.position_embeddings.weight
norm:scale           ~embeddings.LayerNorm.
before_head          pre_classifier.
head                 classifier.
-                    (?:vocab_(?:transform|layer_norm|projector)|qa_outputs).*
-                    ~embeddings.position_ids
"""
PREFIX = r"(?:resnet\.|vit\.|distilbert\.)?"
# PyTorch's names of a layer's arrays, and flax's; the weight's depends on the layer
LEAVES = {"weight": "", "bias": "bias", "running_mean": "mean", "running_var": "var"}
# heads by width, of all sizes of ViTs that torchvision and timm publish
HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1664: 16}
HEAD_WIDTH = 64  # of the published DistilBERT

Tensors = dict[str, np.ndarray]
Config = dict[str, Any]
Settings = Callable[[Tensors, Config], Config]  # by path, config.json -> the factory's
Place = tuple[str, str, list[str]]  # path, the tensor's part of it, names of all parts


class WeightLayout(NamedTuple):
    """The tensor names of a model in one library."""

    name: str
    rows: list[tuple[str, str]]  # (path, name)
    factory: Callable[..., Any]
    settings: Settings

    def place(self, name: str) -> Place:
        """Return a tensor's place; a ValueError if the layout does not have it."""
        for row in self.rows:
            if place := _place(name, *row):
                return place
        raise ValueError(f"{self.name} has no tensor {name!r}, which is in the file")


def _place(name: str, path: str, published: str) -> Place | None:
    """Return a tensor's place according to one row; None if the row does not match."""
    pattern = published.replace(".", r"\.").replace("*", ".*").replace("~", PREFIX)
    pattern = re.sub(r"#([+-]1)?", r"(\\d+)", pattern)
    if layer := published.endswith((".", "_")):
        pattern += f"({'|'.join(LEAVES)})"
    match = re.fullmatch(pattern, name)
    if match is None:
        return None
    found = match.groups()  # numbers, then the part if there are several, then the leaf
    more = re.findall(r"#([+-]1)?", published)
    numbers = [int(n) - int(m or 0) for m, n in zip(more, found, strict=False)]
    path, _, kind = path.replace("#", "{}").format(*numbers).partition(":")
    if layer:
        path += "/" + (LEAVES[found[-1]] or kind or "kernel")
    several = re.search(r"\((\w.*\|.*)\)", published)
    parts = several[1].split("|") if several else [""]
    return path, found[len(more)] if several else "", parts


def recognize(names: Collection[str]) -> WeightLayout:
    """Return the layout with these names; a ValueError if it is unknown."""
    for layout in LAYOUTS:
        if any(_place(name, *layout.rows[0]) for name in names):
            return layout
    if all(name.startswith("module.") for name in names):
        raise ValueError(
            'the names of its tensors begin with "module.", as added by PyTorch\'s '
            "DataParallel: save them without this prefix"
        )
    some = f"the names of its tensors ({', '.join(sorted(names)[:5])}, ...)"
    known = "; ".join(layout.name for layout in LAYOUTS)
    raise ValueError(f"{some} match none of the known layouts: {known}")


def _shape(tensors: Tensors, path: str, axes: int) -> tuple[int, ...]:
    shape = tensors[path].shape
    if len(shape) != axes:
        raise ValueError(
            f"the tensor for {path} is {list(shape)}: it needs {axes} axes"
        )
    return shape


def _count(tensors: Tensors, start: str) -> int:
    """Return the number of different integers that follow this start of paths."""
    return len(set(re.findall(rf"^{start}/(\d+)/", "\n".join(tensors), re.M)))


def _require(config: Config, models: str, **settings: Any) -> None:
    for name, value in settings.items():
        if config.get(name, value) != value:
            raise ValueError(
                f"config.json has {name}={config[name]!r}: only {models} are supported"
            )


def _resnet(tensors: Tensors, config: Config) -> Config:
    models = (
        "ResNets with ReLU and strides in 3x3 convolutions from the second stage on"
    )
    off = "downsample_in_bottleneck", "downsample_in_first_stage"
    _require(config, models, hidden_act="relu", **dict.fromkeys(off, False))
    _, _, channels, width = _shape(tensors, "conv/kernel", 4)
    third = tensors.get("stages/0/0/conv3/kernel")
    if third is None or third.shape[-1] != EXPANSION * width:
        raise ValueError(
            "its blocks are not bottlenecks: use a ResNet-50, -101 or -152"
        )
    stages = range(_count(tensors, "stages"))
    blocks = tuple(_count(tensors, f"stages/{stage}") for stage in stages)
    image = (224, 224, channels)  # the default; any other size is possible
    return {"blocks": blocks, "width": width, "variant": "torch", "image": image}


def _vit(tensors: Tensors, config: Config, epsilon: float = 1e-6) -> Config:
    if "cls" not in tensors:
        raise ValueError("it has no class token, which the model's head needs")
    _require(config, "ViTs with the exact GELU", hidden_act="gelu")
    patch, _, channels, width = _shape(tensors, "patches/kernel", 4)
    _, length, _ = _shape(tensors, "positions", 3)
    side = math.isqrt(length - 1)
    if side**2 + 1 != length:
        raise ValueError(
            "its positions are not those of a square image and a class token"
        )
    heads = config.get("num_attention_heads", HEADS.get(width))
    if heads is None:
        raise ValueError(
            f"its width {width} is of no published size, and tensors do not reveal the "
            'number of heads: put {"num_attention_heads": N} into a config.json in '
            "its folder"
        )
    hidden = tensors["blocks/0/mlp/first/kernel"].shape[-1]
    return {
        "size": (_count(tensors, "blocks"), width, heads, hidden),
        "patch": patch,
        "image": (side * patch, side * patch, channels),
        "epsilon": config.get("layer_norm_eps", epsilon),
    }


def _distilbert(tensors: Tensors, config: Config) -> Config:
    models = f"DistilBERTs with the exact GELU and an epsilon of {EPSILON}"
    _require(config, models, activation="gelu", layer_norm_eps=EPSILON)
    vocabulary, width = _shape(tensors, "words/embedding", 2)
    rates = {"dropout": 0.1, "attention_dropout": 0.1, "seq_classif_dropout": 0.2}
    return {
        "layers": _count(tensors, "layers"),
        "width": width,
        "heads": config.get("n_heads", max(1, width // HEAD_WIDTH)),
        "hidden": tensors["layers/0/mlp/first/kernel"].shape[-1],
        "vocabulary": vocabulary,
        "positions": tensors["positions/embedding"].shape[0],
        "dropout": tuple(config.get(name, rate) for name, rate in rates.items()),
        "pad": config.get("pad_token_id", 0),
    }


def _layouts(table: str, factory: Any, *settings: Settings) -> list[WeightLayout]:
    """Return the layouts of a table's columns, each with its settings."""
    rows = [re.split("  +", line) for line in table.strip().splitlines()]
    (model, *paths), *columns = (
        (name, *(cell.replace("@", block) for cell in cells))
        for name, block, *cells in zip(*rows, strict=True)
    )
    return [
        WeightLayout(f"{model} of {by}", [*zip(paths, names, strict=True)], factory, of)
        for (by, *names), of in zip(columns, settings, strict=True)
    ]


LAYOUTS = [
    *_layouts(RESNET, resnet50, _resnet, _resnet),
    *_layouts(VIT, vit, _vit, _vit, partial(_vit, epsilon=1e-12)),
    *_layouts(DISTILBERT, distilbert, _distilbert),
]
