"""Lending at the hooks that training frameworks have: `trl`, `verl`, `slime`, `roll`.

Each imports its framework only when it is used, and all of them drive one `Cycle`. `docs/integrations/` says how to
switch them on, what each is tested against, and where the calls go in frameworks without a module here.
"""

from pearl_trainer.integrations.cycle import Cycle

__all__ = ["Cycle"]
