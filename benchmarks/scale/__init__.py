"""What a deployment of any size takes: formulas, calibrated on this machine (docs/scale.md)."""
