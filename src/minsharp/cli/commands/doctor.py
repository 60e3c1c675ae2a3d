"""``minsharp doctor``: what is installed, and whether it computes what it should."""

from .. import options
from ..output import command


@command
def doctor(as_json: options.Json = False) -> None:
    """Show versions, devices and extras, and test this installation for about a second.

    The test takes the trace of a small network and compares it with a dense Hessian by autograd, on every device. If it
    fails, or if something is missing that minsharp cannot do without, the exit code is 1.

    Example:

        minsharp doctor
    """
    from ..doctor import examined

    examined(as_json=as_json)
