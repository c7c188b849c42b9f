"""The CPU's fast path: whole steps in machine code that is compiled on the user's own machine.

numba compiles it through LLVM at the first start and keeps the result in the cache folder, so
nobody needs a compiler. `dspark.fast_path` says where it is used; elsewhere torch computes.
"""
