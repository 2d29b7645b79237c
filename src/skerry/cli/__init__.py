"""The `skerry` command."""


def main() -> None:
    """Run the command line; ends the process with the exit code."""
    import warnings

    from skerry.cli.app import app  # here, so that importing the package stays free of typer

    warnings.formatwarning = lambda message, *_, **__: f"skerry: warning: {message}\n"

    app(prog_name="skerry")
