"""Tables of the README, made from result files."""
