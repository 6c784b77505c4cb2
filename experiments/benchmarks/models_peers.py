"""The large models in PyTorch: from `transformers` where it has them, or written here.

All weights are random; nothing is downloaded.
"""

from collections.abc import Callable
from typing import Any

import numpy as np


def version() -> str | None:
    """PyTorch's version, or None if it is not installed."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return torch.__version__


def step(
    name: str, x: np.ndarray, y: np.ndarray, classes: int, dtype: str
) -> Callable[[int], Any] | None:
    """A function that makes one training step on this batch, and waits for its loss.

    None if a package is missing. In bfloat16 layers run under autocast.
    """
    try:
        import torch  # pyright: ignore[reportMissingImports]

        model = _MODELS[name](torch, classes)
    except ImportError:
        return None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images = x.ndim == 4
    inputs = torch.from_numpy(np.moveaxis(x, -1, 1).copy() if images else x).to(device)
    inputs = inputs if images else inputs.long()
    targets = torch.from_numpy(y).long().to(device)

    def run(number: int) -> float:
        del number
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = model(inputs)
            logits = getattr(logits, "logits", logits)
            loss = torch.nn.functional.cross_entropy(logits.float(), targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


def _labels(classes: int) -> dict[int, str]:
    """Names of `n` classes, from which a configuration infers their number."""
    return {k: str(k) for k in range(classes)}


def _resnet50(torch: Any, classes: int) -> Any:
    del torch
    import transformers  # pyright: ignore[reportMissingImports]

    config = transformers.ResNetConfig(id2label=_labels(classes))
    return transformers.ResNetForImageClassification(config)


def _vit(width: int, heads: int) -> Callable[[Any, int], Any]:
    def make(torch: Any, classes: int) -> Any:
        del torch
        import transformers  # pyright: ignore[reportMissingImports]

        config = transformers.ViTConfig(
            hidden_size=width,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            id2label=_labels(classes),
        )
        return transformers.ViTForImageClassification(config)

    return make


def _distilbert(torch: Any, classes: int) -> Any:
    del torch
    import transformers  # pyright: ignore[reportMissingImports]

    config = transformers.DistilBertConfig(id2label=_labels(classes))
    return transformers.DistilBertForSequenceClassification(config)


def _conv(torch: Any, a: int, b: int, size: int, stride: int = 1) -> Any:
    return torch.nn.Conv2d(a, b, size, stride, size // 2, bias=False)


def _residual(torch: Any, before: Any, branch: Any, skip: Any, after: Any) -> Any:
    """x -> after(branch(h) + skip(h)) with h = before(x)."""

    class Residual(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.branch = before, branch
            self.skip, self.after = skip, after

        def forward(self, x: Any) -> Any:
            h = self.before(x)
            return self.after(self.branch(h) + self.skip(h))

    return Residual()


def _resnet32(torch: Any, classes: int) -> Any:
    nn = torch.nn
    layers = [_conv(torch, 3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()]
    a = 16
    for stage in range(3):
        b = 16 << stage
        for i in range(5):
            stride = 2 if stage and not i else 1
            branch = nn.Sequential(
                _conv(torch, a, b, 3, stride),
                nn.BatchNorm2d(b),
                nn.ReLU(),
                _conv(torch, b, b, 3),
                nn.BatchNorm2d(b),
            )
            skip = nn.Identity()
            if a != b:
                project = _conv(torch, a, b, 1, stride)
                skip = nn.Sequential(project, nn.BatchNorm2d(b))
            layers.append(_residual(torch, nn.Identity(), branch, skip, nn.ReLU()))
            a = b
    return nn.Sequential(*layers, *_head(torch, a, classes))


def _wrn28_10(torch: Any, classes: int) -> Any:
    nn = torch.nn
    layers, a = [_conv(torch, 3, 16, 3)], 16
    for stage in range(3):
        b = 160 << stage
        for i in range(4):
            stride = 2 if stage and not i else 1
            first = nn.Sequential(nn.BatchNorm2d(a), nn.ReLU())
            branch = nn.Sequential(
                _conv(torch, a, b, 3, stride),
                nn.BatchNorm2d(b),
                nn.ReLU(),
                _conv(torch, b, b, 3),
            )
            skip = _conv(torch, a, b, 1, stride)
            if a == b:
                first, branch, skip = (
                    nn.Identity(),
                    nn.Sequential(first, branch),
                    nn.Identity(),
                )
            layers.append(_residual(torch, first, branch, skip, nn.Identity()))
            a = b
    last = [nn.BatchNorm2d(a), nn.ReLU()]
    return nn.Sequential(*layers, *last, *_head(torch, a, classes))


def _head(torch: Any, channels: int, classes: int) -> list[Any]:
    nn = torch.nn
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


_MODELS: dict[str, Callable[[Any, int], Any]] = {
    "resnet32": _resnet32,
    "wrn28_10": _wrn28_10,
    "resnet50": _resnet50,
    "vit_ti": _vit(192, 3),
    "vit_b": _vit(768, 12),
    "distilbert": _distilbert,
}
