"""A comparison as one HTML page; start with `comparison_page.py`."""
