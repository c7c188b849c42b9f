"""How fast is it, beside what a user would pick instead, on this machine, in one run?"""

from __future__ import annotations

from dspark.bench.contenders import Contender, Unavailable
from dspark.bench.measurement import Machine, Report, Row, Skipped, measure
from dspark.bench.prompts import BenchPrompt, read_prompts

__all__ = [
    "BenchPrompt",
    "Contender",
    "Machine",
    "Report",
    "Row",
    "Skipped",
    "Unavailable",
    "measure",
    "read_prompts",
]
