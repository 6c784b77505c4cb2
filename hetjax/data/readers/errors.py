"""The one exception of the data readers."""


class DataError(ValueError):
    """Data that cannot be read; the message names the file, the line and the remedy."""
