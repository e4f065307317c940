"""Many files translated or scored in parts, by one process, several, a Slurm array or Ray: nothing twice, nothing lost.

The output is the state: a plan (plan.json), and for each of its parts a file with a sidecar, both written whole.
"""
