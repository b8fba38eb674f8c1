"""The one error of bad input: what the command line turns into a sentence and exit code 2."""

from __future__ import annotations


class InputError(ValueError):
    """What the user gave cannot be used; the message names the field, file or line, and the fix."""
