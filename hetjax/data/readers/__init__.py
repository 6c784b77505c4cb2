"""Readers of files: XMC and libSVM text, images, texts, official data sets.

Each returns a `Dataset`; any problem with a file is a `DataError` that names the file.
Readers of text share `text_files` (lines), `sparse_text` and `decimals` (numbers),
`csr_builder` (matrices) and `parsed_copies` (a cache of parsed data). Readers of image
files share `images` and `mapped_copies` (arrays that may exceed the memory).
`named_sets` has the official data sets, and `downloads` fetches their files.
"""


class DataError(ValueError):
    """Data that cannot be read; the message names the file, the line and the remedy."""
