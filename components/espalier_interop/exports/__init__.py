"""Trajectories in the formats of other libraries: one file, written atomically.

    turns            what the policy read before each of its messages, with call ids and tokens
    verifiers        episodes of verifiers' `traces.jsonl`, tokens and mask included
    trl              conversations for TRL's trainers, for any model
    trl_tokens       TRL's tokenised rows with a mask, for the policy that wrote them
    atif             Harbor's Agent Trajectory Interchange Format, with token ids of each step
    otlp             traces of OpenTelemetry, after its conventions for generative AI
    inspect_log      a log that `inspect view` opens
    writing          reads an artifact row by row, and writes the file

`espalier data export` writes these files.
"""

from espalier_interop.exports.writing import Exported, ExportFormat, export

__all__ = ["ExportFormat", "Exported", "export"]
