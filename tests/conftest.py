"""One thread a process: the policies of the tests are too small to share between cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
