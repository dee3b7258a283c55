"""`edge serve`: models of this machine at an address, in the protocols that editors, agents and apps speak."""
