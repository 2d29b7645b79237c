"""The `skerry` command."""


def main() -> None:
    """Run the command line; ends the process with the exit code."""
    from skerry.cli.app import app  # here, so that importing the package stays free of typer

    app(prog_name="skerry")
