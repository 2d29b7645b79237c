"""What steps change: live runs, checkpoints, recorded traces and simulations, in two precisions."""
