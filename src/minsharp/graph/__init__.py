"""A network as plain data: records, formulas of operations, linear forms of scales."""
