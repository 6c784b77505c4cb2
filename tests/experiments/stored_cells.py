"""Cells of the leaderboard as they are stored, with curves by hand."""


def cell(strategy, *curves, mode="max", constant=None):
    """A stored cell, with a curve [(seconds, metric), ...] for every seed."""
    runs = [
        {"seed": k, "evals": c, "waiting_share": 0.1 * k, "mb_per_worker": 2.0}
        for k, c in enumerate(curves)
    ]
    asked = {"strategy": strategy, "seconds": curves[0][-1][0]}
    return {
        **{"asked": asked, "metric": "accuracy", "mode": mode, "constant": constant},
        **{"runs": runs, "chosen": [0.1, None], "hetjax": "0.1"},
    }
