"""Readers of files: XMC and libSVM text, IDX and CIFAR images, official data sets.

Each returns a `Dataset`; any problem with a file is a `DataError` that names the file.
Readers of text share `files` (lines), `xmc_text` and `decimals` (numbers), `pieces`
(matrices) and `copies` (what was parsed, kept for the next start).
"""
