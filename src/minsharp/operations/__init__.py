"""The one table: what minsharp knows about each operation, family by family.

A row says how the result depends on the arguments (`formula`, from which exactness and rescaling follow), how
cotangents pass back (`pull`), how they contract with a parameter at each argument (`contract`), and how scales pass
through channel by channel (`channels`). To teach minsharp an operation, add one row to the family where it belongs, or
call `minsharp.operation` at run time. Only the formula is required: without `pull` and `contract` the engine goes
through autograd, slower and just as right, and without `channels` all entries of a tensor are scaled alike. An
operation that is not in the table counts as nonlinear in everything.
"""

from .table import BUILT_IN, TABLE, Table, dependence, passing, row

__all__ = ["BUILT_IN", "TABLE", "Table", "dependence", "passing", "row"]
