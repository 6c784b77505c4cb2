"""Traces of real runs: their format, recording, and machines fitted to them."""

from hetjax.tracing.fit import Fit, fit_machine
from hetjax.tracing.recorder import Recorder
from hetjax.tracing.trace import Recording, Trace

__all__ = ["Fit", "Recorder", "Recording", "Trace", "fit_machine"]
