"""What a node of an exported graph says of itself."""

from torch.fx import Node


def mutates(node: Node) -> bool:
    """Whether an operation writes into one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)
