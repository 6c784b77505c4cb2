"""Workers on many machines: every worker is an actor of a Ray cluster.

The loop and its clock run in the driver, as for threads; a worker's replica, data and
programs live in its actor (`actor`, `actor_run`). `ray_cluster` alone imports Ray.
"""
