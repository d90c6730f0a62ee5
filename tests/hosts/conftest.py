"""Packages that hosts come from: slow to import, and not as quiet as this suite wants."""

import importlib
import warnings

import pytest


def quietly(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


@pytest.fixture(scope="session")
def diffusers():
    module = quietly("diffusers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert module.VQModel  # imported when it is asked for
    return module


@pytest.fixture(scope="session")
def transformers():
    module = quietly("transformers")
    quietly("transformers.models.chameleon.modeling_chameleon")
    quietly("transformers.models.encodec.modeling_encodec")
    quietly("transformers.models.dac.modeling_dac")
    return module
