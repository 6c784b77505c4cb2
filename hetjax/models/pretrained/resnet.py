"""The layouts of bottleneck ResNets: torchvision's and timm's, and Hugging Face's."""

import re
from typing import Any

from hetjax.models.bottleneck import EXPANSION, resnet50
from hetjax.models.pretrained.layouts import Layout, Rule, count, shape_of
from hetjax.models.pretrained.tensors import Tensors

_NOT_BOTTLENECK = "its blocks are not bottlenecks: give a ResNet-50, -101 or -152"


def _settings(tensors: Tensors, config: dict[str, Any]) -> dict[str, Any]:
    """Numbers of blocks, and width, from the paths and shapes."""
    for name in ("downsample_in_bottleneck", "downsample_in_first_stage"):
        if config.get(name):
            raise ValueError(
                f"config.json has {name}: weights of networks whose strides are not in "
                "the 3x3 convolutions of the second to last stage are not supported"
            )
    if config.get("hidden_act", "relu") != "relu":
        raise ValueError(f"config.json has hidden_act={config['hidden_act']!r}")
    _, _, channels, width = shape_of(tensors, "conv/kernel", 4)
    third = tensors.get("stages/0/0/conv3/kernel")
    if third is None or third.shape[-1] != EXPANSION * width:
        raise ValueError(_NOT_BOTTLENECK)
    stages = range(count(tensors, r"stages/(\d+)/"))
    blocks = tuple(count(tensors, rf"stages/{stage}/(\d+)/") for stage in stages)
    image = (224, 224, channels)  # any other size may be given
    return {"blocks": blocks, "width": width, "variant": "torch", "image": image}


def _one_less(path: str, *groups: int) -> Any:
    """A path of which these groups are numbers that count from 1 in the layout."""

    def of(match: re.Match) -> str:
        numbers = [
            str(int(value) - (group in groups))
            for group, value in enumerate(match.groups(), 1)
        ]
        return path.format(*numbers)

    return of


TORCHVISION = Layout(
    "ResNet of torchvision or timm",
    r"layer1\.0\.conv1\.weight",
    (
        Rule(r"conv1", "conv", "conv"),
        Rule(r"bn1", "norm", "batch_norm"),
        Rule(
            r"layer(\d)\.(\d+)\.conv(\d)", _one_less("stages/{}/{}/conv{}", 1), "conv"
        ),
        Rule(
            r"layer(\d)\.(\d+)\.bn(\d)",
            _one_less("stages/{}/{}/norm{}", 1),
            "batch_norm",
        ),
        Rule(
            r"layer(\d)\.(\d+)\.downsample\.0",
            _one_less("stages/{}/{}/shortcut/layers/0", 1),
            "conv",
        ),
        Rule(
            r"layer(\d)\.(\d+)\.downsample\.1",
            _one_less("stages/{}/{}/shortcut/layers/1", 1),
            "batch_norm",
        ),
        Rule(r"fc", "head", "dense"),
    ),
    r".*\.num_batches_tracked",
    _settings,
    resnet50,
)

_BLOCK = r"(?:resnet\.)?encoder\.stages\.(\d+)\.layers\.(\d+)"


def _one_more(match: re.Match) -> str:
    """A block's layers count from 0 there, and from 1 here."""
    kind = "conv" if match[4] == "convolution" else "norm"
    return f"stages/{match[1]}/{match[2]}/{kind}{int(match[3]) + 1}"


HUGGING_FACE = Layout(
    "ResNet of Hugging Face",
    r"(resnet\.)?embedder\.embedder\.convolution\.weight",
    (
        Rule(r"(?:resnet\.)?embedder\.embedder\.convolution", "conv", "conv"),
        Rule(r"(?:resnet\.)?embedder\.embedder\.normalization", "norm", "batch_norm"),
        Rule(rf"{_BLOCK}\.layer\.(\d)\.(convolution)", _one_more, "conv"),
        Rule(rf"{_BLOCK}\.layer\.(\d)\.(normalization)", _one_more, "batch_norm"),
        Rule(
            rf"{_BLOCK}\.shortcut\.convolution",
            r"stages/\1/\2/shortcut/layers/0",
            "conv",
        ),
        Rule(
            rf"{_BLOCK}\.shortcut\.normalization",
            r"stages/\1/\2/shortcut/layers/1",
            "batch_norm",
        ),
        Rule(r"classifier\.1", "head", "dense"),
    ),
    r".*\.num_batches_tracked",
    _settings,
    resnet50,
)

LAYOUTS = (TORCHVISION, HUGGING_FACE)
