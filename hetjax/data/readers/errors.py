"""The one exception of the data readers."""


class DataError(ValueError):
    """Data that cannot be read; the message gives the file, the line and the remedy."""
