"""Text of several made-up languages, and a small transformer of its characters.

The text is generated, so that it needs no file and every run has the same. A language
is a lexicon of its own; after each word come only a few of its words. What comes next
thus depends on the last characters, on the word, and on the word before it: a model of
the frequency of single characters does far worse than one that reads its context. A
sequence is of one language, so that shards of unlike data are shards of languages.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import hetjax as hj
from hetjax.arguments import Count, HostSeed, checked
from hetjax.data import Dataset, Split
from hetjax.recipes import by_name

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOWELS = "aeiou"
SPACE = len(LETTERS)  # the token between words
VOCABULARY = SPACE + 1


class Text(NamedTuple):
    """Sequences of tokens, and the language of each training sequence."""

    data: Dataset  # x [N, T] and y [N, T], the tokens after those of x
    languages: np.ndarray  # [N] of the training split: 0, 1, ...


@checked
def text(
    *,
    train: Count = 2048,
    test: Count = 256,
    length: Count = 16,
    languages: Count = 8,
    words: Count = 24,
    successors: Count = 3,
    seed: HostSeed = 0,
) -> Text:
    """Sequences of `length` characters, each from a random place of a random text.

    Every language has `words` words, and after each of them one of `successors` others,
    all equally often. The same seed gives the same text.
    """
    rng = np.random.default_rng(seed)
    worlds = [_language(rng, words, successors) for _ in range(languages)]
    splits, spoken = [], []
    for rows in (train, test):
        chosen = rng.integers(languages, size=rows)
        lines = np.stack([_line(rng, worlds[k], length + 1) for k in chosen])
        splits.append(Split(lines[:, :-1], lines[:, 1:]))
        spoken.append(chosen)
    data = Dataset(train=splits[0], test=splits[1], num_classes=0, name="characters")
    return Text(data, spoken[0])


class _Language(NamedTuple):
    lexicon: list[list[int]]  # the letters of each word
    successors: np.ndarray  # [words, successors], of each word


def _language(rng: np.random.Generator, words: int, successors: int) -> _Language:
    """A language with a random lexicon and random successors."""
    consonants = [c for c in LETTERS if c not in VOWELS]
    own = rng.choice(consonants, 9, replace=False)
    lexicon = []
    for syllables in rng.integers(1, 4, size=words):
        pairs = [rng.choice(letters, syllables) for letters in (own, list(VOWELS))]
        lexicon.append([LETTERS.index(letter) for letter in np.stack(pairs, 1).flat])
    return _Language(lexicon, rng.integers(words, size=(words, successors)))


def _line(rng: np.random.Generator, language: _Language, length: int) -> np.ndarray:
    """Characters [length] of a language, from within a word on."""
    lexicon, line = language.lexicon, []
    word = int(rng.integers(len(lexicon)))
    skipped = int(rng.integers(len(lexicon[word])))
    while len(line) < length + skipped:
        line += [*lexicon[word], SPACE]
        word = int(rng.choice(language.successors[word]))
    return np.array(line[skipped : skipped + length], np.int32)


def unigram_perplexity(data: Dataset) -> float:
    """The perplexity of the characters' frequencies in the training split."""
    counts = np.bincount(np.ravel(data.train.y), minlength=VOCABULARY) + 1.0
    shares = counts / counts.sum()
    return float(np.exp(-np.log(shares[np.ravel(data.test.y)]).mean()))


class Transformer(nnx.Module):
    """A decoder with one block, of one head and without biases.

        h = E[x] + P
        h <- h + causal attention(norm(h))
        h <- h + W_2 relu(W_1 norm(h))
        z = W norm(h)                        logits [B, T, V];  norm(h) = h / rms(h)

    Source: Vaswani et al., NIPS 2017; the norm before each layer as in GPT-2.
    """

    def __init__(self, vocabulary: int, *, width: int, length: int, rngs: nnx.Rngs):
        """V tokens, vectors of `width` numbers (D), sequences of `length` tokens."""

        def matrix(a: int, b: int, scale: float) -> nnx.Param:
            return nnx.Param(scale * jax.random.normal(rngs.params(), (a, b)))

        small = width**-0.5
        self.tokens = matrix(vocabulary, width, 0.5)  # E
        self.places = matrix(length, width, 0.5)  # P
        self.qkv = matrix(width, 3 * width, small)
        self.mixed = matrix(width, width, 0.5 * small)
        self.first = matrix(width, 2 * width, small)  # W_1
        self.second = matrix(2 * width, width, 0.5 * small)  # W_2
        self.out = matrix(width, vocabulary, 0.5 * small)  # W

    def __call__(self, x: jax.Array) -> jax.Array:
        """Tokens [B, T] to logits [B, T, V]."""
        # a product with ones, whose gradient is faster than that of a lookup
        ones = jax.nn.one_hot(x, self.tokens[...].shape[0])
        h = ones @ self.tokens[...] + self.places[...][None]
        h = h + self._attention(_norm(h))
        h = h + jax.nn.relu(_norm(h) @ self.first[...]) @ self.second[...]
        return _norm(h) @ self.out[...]

    def _attention(self, h: jax.Array) -> jax.Array:
        """[B, T, D] to [B, T, D], from the same and earlier positions only."""
        q, k, v = jnp.split(h @ self.qkv[...], 3, axis=-1)
        scores = jnp.einsum("btd,bsd->bts", q, k) / np.sqrt(h.shape[-1])
        seen = np.tri(h.shape[1], dtype=bool)[None]
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9), axis=-1)
        return jnp.einsum("bts,bsd->btd", weights, v) @ self.mixed[...]


def _norm(h: jax.Array) -> jax.Array:
    """Divide each vector by its root mean square."""
    return h * jax.lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + 1e-6)


@by_name
@checked
def transformer(*, width: Count = 16, length: Count = 16) -> Callable[..., nnx.Module]:
    """A builder of `Transformer` for `hetjax.next_token`."""

    def build(vocabulary: int, *, rngs: nnx.Rngs) -> nnx.Module:
        return Transformer(vocabulary, width=width, length=length, rngs=rngs)

    return build


def task(data: Dataset, *, width: int = 16) -> hj.Task:
    """The task of predicting the next character."""
    length = data.train.y.shape[1]
    model = transformer(width=width, length=length)
    return hj.next_token(model, data, vocabulary=VOCABULARY)
