"""The run-time type checker behind jaxtyping's import hook: an int is a float, as PEP 484 has it."""

from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
