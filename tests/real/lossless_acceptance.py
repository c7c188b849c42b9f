"""Shows that speculation changes no answer: greedy ones token by token, sampled ones in number.

    python -m tests.real.lossless_acceptance [--target NAME|PATH] [--only greedy|sampled]
        [--drafter FOLDER …] [--record FILE [--minutes MINUTES]]

Greedy answers of the embedded model with every kind of drafter, one of them bent on being wrong,
one token after the other and in trees, are compared with plain decoding's. And the joint
distribution of three sampled tokens, for every sampling option and schedule, with trees too, is
compared with the exact one. It takes an hour or more (`--prompts` and `--draws` make it shorter),
prints a line for each comparison, and ends with status 1 if one is not as it should be. With
`--record` each comparison is kept: the same command goes on where it was stopped, by whatever or
by `--minutes`, which ends it with status 3.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from dspark.cli import DEFAULT_TARGET, find_target
from dspark.errors import RunMismatch
from tests.real import lossless_sampled
from tests.real.lossless_greedy import NEW_TOKENS, PROMPTS, SLOTS, Greedy
from tests.real.lossless_record import Record
from tests.unit.dspark.test_verification import BLOCK, LENGTH, VOCAB

PRECISIONS = ("int8", "float32")
UNFINISHED = 3
FEWEST_DRAWS = 500


def main() -> int:
    """Run what was asked for; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", default=DEFAULT_TARGET, help="a model's name, folder or file")
    parser.add_argument("--drafter", action="append", default=[], help="a trained drafter's folder")
    parser.add_argument("--only", choices=["greedy", "sampled"], help="half of it")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--draws", type=int, default=lossless_sampled.DRAWS)
    parser.add_argument("--record", type=Path, help="what was compared already, and is from now on")
    parser.add_argument("--minutes", type=float, help="begin no comparison after so many")
    wanted = parser.parse_args()
    if wanted.draws < FEWEST_DRAWS:
        parser.error(f"chi-square says nothing of fewer than {FEWEST_DRAWS} draws")
    torch.set_num_threads(1)
    settings = {name: getattr(wanted, name) for name in ("target", "drafter", "prompts", "draws")}
    try:
        record = Record(wanted.record, settings, wanted.minutes and 60 * wanted.minutes)
    except RunMismatch as error:
        parser.error(str(error))
    good = True
    if wanted.only != "sampled":
        print(f"Greedy: {wanted.prompts} prompts, {NEW_TOKENS} new tokens each, {SLOTS} at once")
        for dtype in PRECISIONS:
            greedy = Greedy(find_target(wanted.target), dtype, wanted.prompts, wanted.drafter)
            good = record.all_good(Greedy.HEADING, greedy.comparisons()) and good
    if wanted.only != "greedy":
        print(f"\nSampled: {LENGTH} tokens of {VOCAB}, {wanted.draws} draws, blocks of {BLOCK}")
        comparisons = lossless_sampled.comparisons(wanted.draws)
        good = record.all_good(lossless_sampled.HEADING, comparisons) and good
    if not good:
        print("\nSomething is NOT as it should be.")
        return 1
    if record.left:
        print(f"\n{record.left} comparisons are left; the others are as they should be.")
        return UNFINISHED
    print("\nEverything is as it should be.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
