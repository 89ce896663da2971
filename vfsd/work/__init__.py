"""Work on many videos, planned in units that any process on any host may perform.

    order = store.order("retile", "cam1/**", layout="uniform:2x2")
    order.run("local:4")

An `Order` stores its units in the catalog.  `perform_at` performs one: as often as it is called,
also at once, the store ends up with the same data.  Task engines only place units on workers.
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
