"""Scripts in processes of their own, as users run them."""

import os
import subprocess
import sys
from pathlib import Path

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def run(folder, script, *arguments, **environment):
    """Run a script in a folder, in this environment and more; None: without that."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "HETJAX_CACHE": str(folder / "cache"),
        **environment,
    }
    return subprocess.run(
        [sys.executable, str(EXPERIMENTS / script), *arguments],
        cwd=folder,
        env={k: v for k, v in environment.items() if v is not None},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
