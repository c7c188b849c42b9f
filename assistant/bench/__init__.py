"""How long does a speaker wait, beside a pipeline that overlaps nothing, in the same run?

The same labelled recordings are played in real time to each system, in an order that rotates.
`naive.py` is the yardstick; `scores.py` says what is counted, and how.
"""
