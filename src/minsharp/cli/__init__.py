"""The command line."""


def main() -> None:
    """Run the command line."""
    from .app import app

    app()
