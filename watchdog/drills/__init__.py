"""Drills: faults made on purpose, in a throw-away job of their own, always from outside.

Responsible for the job that is harmed (job.py, or the bundled trainer: trainers.py), the folder in which it lives
(bed.py), the faults (kinds.py, faults.py, making.py), one drill from the fault to its outcome (run.py), what a drill
that was killed left (leftovers.py) and the table of results (report.py). Product code knows nothing of them.
Refuses to touch any process, file or mount that is not the drill's own (whose.py).
"""
