"""Work on many videos, planned in units that any process on any host may perform.

    order = store.order("retile", "cam1/**", layout="uniform:2x2")
    order.run("local:4")

An `Order` stores its units in the catalog.  `perform_at` performs one: as often as it is called,
also at once, the store ends up with the same data.  Task engines only place units on workers.

Task engines lose, repeat and double tasks, so:

- An order stores its units: a later plan would differ. Videos are verified first, because a
  corrected frame table would move the units.
- A unit may run any number of times: the publishing transaction discards what exists. A second run
  costs CPU time only. A unit that crashed three workers is refused.
- Results are only appended, without the write lock. No row says which unit is running.
- Units are numbered by cost and dealt out there and back, so that parts end together. ``local:N``
  starts ``vfsd work run --part I/N``, as Slurm arrays do.
"""

from vfsd.work.orders import Order, OrderState, create_order, find_order, make_units
from vfsd.work.perform import perform, perform_at
from vfsd.work.units import Outcome, Unit

__all__ = [
    "Order",
    "OrderState",
    "Outcome",
    "Unit",
    "create_order",
    "find_order",
    "make_units",
    "perform",
    "perform_at",
]
