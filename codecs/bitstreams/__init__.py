"""What streams say bit by bit: units, parameter sets, slice headers."""
