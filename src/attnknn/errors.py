"""Every exception the package raises on purpose, under one root."""

from __future__ import annotations


class AttnKNNError(Exception):
    """The root: ``except AttnKNNError`` catches whatever this package refuses."""


class InvalidInput(AttnKNNError, ValueError):
    """An argument or a row of data cannot be used; the message says which and why."""


class AnotherTraining(InvalidInput):
    """A checkpoint, or a folder, is that of another training; the message says what differs, or that it runs."""


class UnknownId(AttnKNNError, KeyError):
    """An id that the bank does not hold."""

    def __str__(self) -> str:  # KeyError would print the quoted repr
        return str(self.args[0]) if self.args else ""


class CorruptModel(AttnKNNError):
    """A saved folder is damaged, incomplete, not ours, or from a future format; the message names the file."""


class MissingData(AttnKNNError, FileNotFoundError):
    """A data file is absent; the message says where to get it and where to put it."""

    def __str__(self) -> str:  # FileNotFoundError would format an errno
        return str(self.args[0]) if self.args else ""


class MissingDevice(AttnKNNError, ValueError):
    """This machine does not have the device that was asked for."""


class MissingExtra(AttnKNNError, ImportError):
    """An optional dependency is needed; the message says how to install it."""


class NotApplicable(AttnKNNError):
    """What was asked for has no meaning here, so that it is not run; the message says why."""


class TrainingDiverged(AttnKNNError, ArithmeticError):
    """A loss or gradient stopped being finite; the message says which, and when."""
