"""The `skerry` command."""


def main() -> int:
    return 0
