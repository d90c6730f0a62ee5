"""The run-time type checker behind jaxtyping's import hook: an int passes for a float."""

from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
