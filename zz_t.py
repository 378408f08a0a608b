from pathlib import Path
import tempfile,sys
from functools import partial
from tests.unit.training.specimens import *
from tests.unit.training.test_grpo_loop import _run,_changed,_pass_rate
d=Path(tempfile.mkdtemp())
o=PROFILE.training.optimizer.model_dump()|{'learning_rate':3e-3}
b=warm_policy(d/'w')
for seed in range(8):
    p=_changed(steps=40, tasks_per_step=5, group_size=12, minibatches=1,evaluate_every=10, optimizer=o).model_copy(update={'seed':seed})
    l,m=_run(d/'w',d/str(seed),profile=p,judge=partial(_pass_rate,seed=1)); 
    print(seed, _pass_rate(warm_roller(b),2), _pass_rate(warm_roller(b._replace(model=m)),2))
