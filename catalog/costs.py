"""What decoding was measured to cost, within one transaction."""

from __future__ import annotations

import dataclasses

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.arguments import is_storable
from vfsd.catalog.schema import costs
from vfsd.model import MeasuredCost
from vfsd.tiling.cost import DecodeCost

_TERMS = tuple(field.name for field in dataclasses.fields(DecodeCost))


class MeasuredCosts:
    """Calibrations as one transaction sees them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def of_host(self, host: str) -> list[MeasuredCost]:
        """What was measured there, by name."""
        if not is_storable(host):
            return []
        rows = self._connection.execute(
            sa.select(costs).where(costs.c.host == host).order_by(costs.c.name)
        )
        return [
            MeasuredCost(
                host=row.host,
                name=row.name,
                decode=DecodeCost(**{term: getattr(row, term) for term in _TERMS}),
                encode_pixel=row.encode_pixel,
                r2=row.r2,
                samples=row.samples,
                software=row.software,
                measured_ns=row.measured_ns,
            )
            for row in rows
        ]

    def put(self, cost: MeasuredCost) -> None:
        """Add a measurement, in the place of an older one."""
        self._connection.execute(
            sa.delete(costs).where(costs.c.host == cost.host, costs.c.name == cost.name)
        )
        self._connection.execute(
            sa.insert(costs).values(
                host=cost.host,
                name=cost.name,
                encode_pixel=cost.encode_pixel,
                r2=cost.r2,
                samples=cost.samples,
                software=cost.software,
                measured_ns=cost.measured_ns,
                **dataclasses.asdict(cost.decode),
            )
        )
