"""Groups: engines that must be one version, over several agents, switch together or not at all."""
