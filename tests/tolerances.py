"""Every tolerance of the suite, with its reason. Loosening one needs a measured reason."""

# Against the float64 loops of `oracles`: what design.md, section 5, promises.
ORACLE_FLOAT64 = {"rtol": 1e-10, "atol": 1e-10}
ORACLE_FLOAT32 = {"rtol": 1e-4, "atol": 1e-5}

# Two float64 computations of one formula in another order: rounding, times the size of the sums.
SAME_FLOAT64 = {"rtol": 1e-11, "atol": 1e-12}

# The same in float32.
SAME_FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}

# A value that a text gives to five decimals.
FIVE_DECIMALS = {"rtol": 0.0, "atol": 5.1e-6}

EXACT = {"rtol": 0.0, "atol": 0.0}
