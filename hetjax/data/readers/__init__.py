"""Readers of files: XMC and libSVM text, images, texts, official data sets.

Each returns a `Dataset`; any problem with a file is a `DataError` that names the file.
Readers of text share `files` (lines), `xmc_text` and `decimals` (numbers), `pieces`
(matrices) and `copies` (what was parsed, kept for the next start). Readers of image
files share `images` and `mapped_copies` (arrays that may exceed the memory). `sources`
has the official data sets, and `downloads` fetches their files.
"""


class DataError(ValueError):
    """Data that cannot be read; the message gives the file, the line and the remedy."""
