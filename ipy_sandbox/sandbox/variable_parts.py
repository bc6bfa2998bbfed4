# mypy: ignore-errors
"""What the forms of values have in common: the error, and time zones. Runs on both sides, see `variable_codec`."""

import datetime


class Refused(ValueError):
    """The value cannot cross, or what came is not what it claims to be."""


def zone_of(zone, moment=None):
    """A time zone as JSON."""
    if zone is None:
        return {}
    key = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if isinstance(key, str):
        return {"zone": key}
    offset = zone.utcoffset(moment)
    if offset is None:
        raise Refused(f"the time zone {zone!r} cannot cross: use one of zoneinfo")
    return {"offset": offset.total_seconds()}


def zone_back(node):
    """The time zone that `zone_of` made JSON of."""
    if "zone" in node:
        from zoneinfo import ZoneInfo

        return ZoneInfo(node["zone"])
    if "offset" in node:
        return datetime.timezone(datetime.timedelta(seconds=node["offset"]))
    return None
