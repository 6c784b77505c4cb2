"""Plots of histories; only these modules import matplotlib.

They use its objects, not pyplot: no display, no global state. Other modules import them
when the first plot is drawn, so that `import hetjax` does not import matplotlib.
"""
