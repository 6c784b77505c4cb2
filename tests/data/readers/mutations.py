"""Random damage to files, as by disks, networks and editors, drawn with a seed."""

import gzip

import numpy as np


def mutated(content, rng, number=1):
    """Bytes with `number` mutations: flips, cuts, insertions, repeats, new bytes."""
    content = bytearray(content)
    for _ in range(number):
        at = int(rng.integers(len(content) + 1)) if content else 0
        kind = rng.choice(["bit", "byte", "cut", "drop", "insert", "repeat", "zeros"])
        length = int(rng.integers(1, 9))
        if kind == "bit" and at < len(content):
            content[at] ^= 1 << int(rng.integers(8))
        elif kind == "byte" and at < len(content):
            content[at] = int(rng.integers(256))
        elif kind == "cut":
            del content[at:]
        elif kind == "drop":
            del content[at : at + length]
        elif kind == "insert":
            content[at:at] = rng.integers(256, size=length, dtype=np.uint8).tobytes()
        elif kind == "repeat":
            content[at:at] = content[at : at + length]
        elif kind == "zeros":
            content[at : at + length] = bytes(length)
    return bytes(content)


def mutations(good, seed, number):
    """(description, bytes): damage to a plain file, before and after it is zipped."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        damages = int(rng.integers(1, 4))
        kind = rng.choice(["plain", "in gzip", "of gzip"])
        if kind == "plain":
            yield kind, mutated(good, rng, damages)
        elif kind == "in gzip":
            yield kind, gzip.compress(mutated(good, rng, damages), mtime=0)
        else:
            yield kind, mutated(gzip.compress(good, mtime=0), rng, damages)
