"""minsharp inside the frameworks that people train with; each module needs the package of its name, and nothing else.

`minsharp.integrations.lightning`, `.transformers`, `.torchmetrics` and `.ray` are imported one by one: importing
minsharp imports none of them.
"""
