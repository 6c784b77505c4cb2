"""A comparison as one HTML page; start with `assembly.py`."""
