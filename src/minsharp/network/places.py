"""Where a node of an exported graph comes from, in the user's words."""

from torch.fx import Node

PREFIX = "model"
"""The name that the model has inside the module that is exported."""


def place(node: Node) -> str:
    """The path of the module that made a call."""
    stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    path = stack[-1] if stack and not stack[-1].startswith("_empty_nn_module_stack") else ""
    return own_name(path) if path != PREFIX else ""


def source(node: Node) -> str:
    """The line of the user's code that made a call."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines() if line.strip()]
    return lines[-1] if lines and "torch/nn/modules" not in "".join(lines[-2:]) else ""


def where(node: Node) -> str:
    """The place and the line, for messages."""
    path, line = place(node), source(node)
    return (f"module '{path}'" if path else "the model's forward") + (f" ({line})" if line else "")


def own_name(name: str) -> str:
    """The name that a parameter, buffer or module has in the user's model."""
    return name.removeprefix(PREFIX + ".")
