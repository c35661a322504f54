"""The files of a run read back, and the curves drawn from them."""
