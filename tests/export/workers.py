"""What other processes do in the tests of exports: each starts from one that has imported torch."""

import multiprocessing
import os
import resource
import signal

import torch

from softvq.cli import main

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.export.workers"])


def start(function, *arguments):
    process = CONTEXT.Process(target=function, args=arguments)
    process.start()
    return process


def run_command(words, output, *, environment=(), largest_file=None):
    """The command line, its two outputs in files beside each other."""
    torch.set_num_threads(1)
    # A shell that starts tests in the background has them ignore it, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(f"{output}.{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(file, number)
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    main(words)


def run_limited(words, output, largest_file):
    run_command(words, output, largest_file=largest_file)


def run_in(words, output, environment):
    run_command(words, output, environment=environment)
