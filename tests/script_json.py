"""What a script prints on standard output: one JSON object and nothing else."""

import json
import os
import subprocess
import sys


def printed_by(script, *arguments, **environment):
    """Run a script as its users do, in this environment and more."""
    process = subprocess.run(
        [sys.executable, str(script), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)
