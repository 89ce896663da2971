"""What decoding was measured to cost, within one transaction."""

from __future__ import annotations

import dataclasses

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vfsd.catalog.schema import costs
from vfsd.core.model import MeasuredCost
from vfsd.tiling.cost import DecodeCost
from vfsd.validation import is_storable

_OF_VIEWS = "view-"
"""Before the codec, in rows about encoding views; their decode terms are 0."""
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
            sa.select(costs)
            .where(costs.c.host == host, ~costs.c.name.startswith(_OF_VIEWS, autoescape=True))
            .order_by(costs.c.name)
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

    def of_encoding(self, host: str) -> dict[str, float]:
        """CPU seconds for each pixel of a view that is encoded there, by codec."""
        if not is_storable(host):
            return {}
        rows = self._connection.execute(
            sa.select(costs.c.name, costs.c.encode_pixel).where(
                costs.c.host == host,
                costs.c.name.startswith(_OF_VIEWS, autoescape=True),
                costs.c.encode_pixel.is_not(None),
            )
        )
        return {row.name.removeprefix(_OF_VIEWS): row.encode_pixel for row in rows}

    def put_encoding(self, host: str, codec: str, seconds: float, now_ns: int) -> None:
        """Add a measured time for each pixel of a view: it counts as much as all before."""
        before = self.of_encoding(host).get(codec, seconds)
        self.put(
            MeasuredCost(
                host=host,
                name=_OF_VIEWS + codec,
                decode=DecodeCost(0.0, 0.0, 0.0, 0.0),
                encode_pixel=(before + seconds) / 2,
                r2=0.0,
                samples=1,
                software="",
                measured_ns=now_ns,
            )
        )

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
