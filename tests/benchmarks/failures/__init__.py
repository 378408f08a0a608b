"""A library of runs that fail on purpose, and how well detectors tell them from healthy runs.

    python -m tests.benchmarks.failures run --kinds healthy hack_any_answer --seeds 0 1
    python -m tests.benchmarks.failures score
    python -m tests.benchmarks.failures rescue --seeds 0 1
    python -m tests.benchmarks.failures show --kinds all_wrong echo_trap --runs DIR

`run` trains what is missing, one process at a time, and keeps each run's history as JSON lines in
--out; it ends after --minutes, and the same command goes on. `score` replays the kept histories
through the detectors, and prints a table. `rescue` trains the same runs with responses, and
compares their final scores with those of healthy runs. `show` trains runs with everything that
`espalier ui` shows, under names that do not tell what goes wrong.
"""
