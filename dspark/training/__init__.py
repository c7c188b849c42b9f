"""Training a DSpark drafter for any target, from nothing but the target itself.

The stages are dialogues, features, fit, calibrate, evaluate. Each reads what the one before left on
disk, goes on where it was stopped, and leaves files that a killed process cannot spoil.
"""
