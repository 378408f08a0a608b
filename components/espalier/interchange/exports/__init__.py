"""Trajectories in the formats of others: JSON lines, one file, written whole or not at all.

    turns            what was read before each message of the policy, with call ids and tokens
    verifiers        episodes of verifiers' `traces.jsonl`, tokens and mask included
    trl              conversations for TRL's trainers, for any model
    trl_tokens       TRL's tokenised rows, with a mask, for the policy that wrote them
    atif             Harbor's Agent Trajectory Interchange Format, token ids of each step included
    writing          reads an artifact row by row, and writes the file

`espalier data export` does it.
"""

from espalier.interchange.exports.writing import FORMATS, Exported, ExportFormat, export

__all__ = ["FORMATS", "ExportFormat", "Exported", "export"]
