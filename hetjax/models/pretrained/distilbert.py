"""The layout of DistilBERT: Hugging Face's, of any of its heads or none."""

from typing import Any

from hetjax.models.distilbert import EPSILON, distilbert
from hetjax.models.pretrained.layouts import Layout, Rule, count, shape_of
from hetjax.models.pretrained.tensors import Tensors

HEAD_WIDTH = 64  # in the published size; config.json may say another number of heads
_PREFIX = r"(?:distilbert\.)?"
_LAYER = rf"{_PREFIX}transformer\.layer\.(\d+)"


def _settings(tensors: Tensors, config: dict[str, Any]) -> dict[str, Any]:
    """Sizes from the shapes; of config.json heads, dropout and padding."""
    if config.get("activation", "gelu") != "gelu":
        raise ValueError(f"config.json has activation={config['activation']!r}")
    if config.get("layer_norm_eps", EPSILON) != EPSILON:
        raise ValueError(f"config.json has layer_norm_eps={config['layer_norm_eps']!r}")
    vocabulary, width = shape_of(tensors, "words/embedding", 2)
    rates = ("dropout", 0.1), ("attention_dropout", 0.1), ("seq_classif_dropout", 0.2)
    return {
        "layers": count(tensors, r"layers/(\d+)/"),
        "width": width,
        "heads": config.get("n_heads", max(1, width // HEAD_WIDTH)),
        "hidden": tensors["layers/0/mlp/first/kernel"].shape[-1],
        "vocabulary": vocabulary,
        "positions": tensors["positions/embedding"].shape[0],
        "dropout": tuple(config.get(name, rate) for name, rate in rates),
        "pad": config.get("pad_token_id", 0),
    }


HUGGING_FACE = Layout(
    "DistilBERT of Hugging Face",
    rf"{_PREFIX}transformer\.layer\.0\.attention\.q_lin\.weight",
    (
        Rule(rf"{_PREFIX}embeddings\.word_embeddings", "words", "embedding"),
        Rule(rf"{_PREFIX}embeddings\.position_embeddings", "positions", "embedding"),
        Rule(rf"{_PREFIX}embeddings\.LayerNorm", "norm", "layer_norm"),
        Rule(rf"{_LAYER}\.attention\.q_lin", r"layers/\1/attention/qkv#0", "dense"),
        Rule(rf"{_LAYER}\.attention\.k_lin", r"layers/\1/attention/qkv#1", "dense"),
        Rule(rf"{_LAYER}\.attention\.v_lin", r"layers/\1/attention/qkv#2", "dense"),
        Rule(rf"{_LAYER}\.attention\.out_lin", r"layers/\1/attention/out", "dense"),
        Rule(rf"{_LAYER}\.sa_layer_norm", r"layers/\1/norm1", "layer_norm"),
        Rule(rf"{_LAYER}\.ffn\.lin1", r"layers/\1/mlp/first", "dense"),
        Rule(rf"{_LAYER}\.ffn\.lin2", r"layers/\1/mlp/second", "dense"),
        Rule(rf"{_LAYER}\.output_layer_norm", r"layers/\1/norm2", "layer_norm"),
        Rule(r"pre_classifier", "before_head", "dense"),
        Rule(r"classifier", "head", "dense"),
    ),
    # the heads for other tasks, of which the published base model has one
    r"vocab_(transform|layer_norm|projector)\..*|qa_outputs\..*"
    r"|(distilbert\.)?embeddings\.position_ids",
    _settings,
    distilbert,
)

LAYOUTS = (HUGGING_FACE,)
