"""Patches that policies write: unified diffs, and SWE-RL's blocks of search and replace."""

from espalier.rewards.swe_rl import BAD_FORMAT, swe_rl_reward
from espalier_environments.software_repair.diffs import DiffError, checked_path, parsed_diff
from espalier_environments.software_repair.worktree import Worktree
from tests.fuzz.campaign import Violation
from tests.fuzz.mutations import changed_bytes
from tests.fuzz.parsers import ParserTarget

_TREE = {"m.py": "x = 1\ny = 2\nz = 4\n", "pkg/n.py": "", "o.txt": "no end"}
_LINES = (
    "diff --git a/m.py b/m.py", "--- a/m.py", "+++ b/m.py", "@@ -1,3 +1,3 @@", "@@ -0,0 +1 @@",
    " x = 1", "-y = 2", "+y = 3", " z = 4", "--- /dev/null", "+++ b/new.py", "+++ /dev/null", "",
    "\\ No newline at end of file", "rename from m.py", "rename to q.py", "+++ b/../up",
    "```python",
    "### m.py", "<<<<<<< SEARCH", "y = 2", "=======", "y = 3", ">>>>>>> REPLACE", "```",
    "<think>t</think>", "<solution>", "</solution>", "GIT binary patch", "@@ -999999999 +1 @@",
)  # fmt: skip
_DIFF = "\n".join(_LINES[1:4] + _LINES[5:9]) + "\n"
_BLOCKS = "<think>t</think><solution>" + "\n".join(_LINES[17:25]) + "</solution>"


class Patches(ParserTarget):
    """The readers of both, over a small tree."""

    name = "patches"

    def make(self, dice):
        """A patch that is nearly right, or lines in any order."""
        text = dice.choice((_DIFF, _BLOCKS))
        if dice.random() < 0.5:
            text = "\n".join(dice.choice(_LINES) for _ in range(dice.randrange(40)))
        if dice.random() < 0.02:
            text *= 500
        return changed_bytes(dice, text.encode()) if dice.random() < 0.5 else text.encode()

    def read(self, case):
        """See `ParserTarget`."""
        text = case.decode("utf-8", "replace")
        tree = Worktree(_TREE)
        try:
            patches = parsed_diff(text)
            said = f"{min(len(patches), 3)} files"
            tree.apply(patches)
            again = Worktree(_TREE)
            if tree.diff():
                again.apply(parsed_diff(tree.diff()))
            if again.changed != tree.changed:
                raise Violation("a diff does not lead to the tree that it was made of")
            said += " applied"
        except DiffError as refused:
            said = "refused"
            if len(str(refused)) > 2000:
                raise Violation("a message as long as the patch") from refused
        if any(path != checked_path(path) for path in tree.paths()):
            raise Violation("a path leads elsewhere")
        reward = swe_rl_reward(_TREE, {"m.py": "x = 1\n"}, text).reward
        if reward != BAD_FORMAT and not 0 <= reward <= 1:
            raise Violation(f"a reward of {reward}")
        return f"{said} {reward == BAD_FORMAT}"
