"""Limits of jobs in the configuration file: their numbers stand over those of the code, and under those of an operator."""

from __future__ import annotations

from collections.abc import Mapping

from jobmaster.handlers import Handlers
from jobmaster.handlers.flow.limits import check_same_numbers, checked_values
from jobmaster.model.errors import ConfigError, InputError
from jobmaster.model.flow.limit import LimitValues
from jobmaster.model.suggestion import did_you_mean
from jobmaster.settings.model import JobLimitSettings

_ANY_RATE = 1.0


def check_job_limit(name: str, given: JobLimitSettings) -> None:
    """Check the numbers of a limit without the code that declares it.

    Raises:
        InputError: a value is out of its range, or there is none.
    """
    if given.running is None and given.rate is None and given.burst is None:
        raise InputError(f"limit {name!r} has no number", hint="write running: 10, or rate: 50/s")
    rate = given.rate if given.burst is None else given.rate or _ANY_RATE
    checked_values(name, given.running, rate, given.burst)


def declared_limits(given: Mapping[str, JobLimitSettings], handlers: Handlers) -> list[LimitValues]:
    """The limits that an agent with these handlers declares, by name.

    Args:
        given: ``job_limits`` of the configuration.

    Raises:
        ConfigError: two handlers give one limit different numbers, or those of the configuration do not go with them.
    """
    found = _of_code(handlers)
    for name, numbers in given.items():
        if name in found:
            try:
                found[name] = _with_configured(found[name], numbers)
            except InputError as error:
                raise ConfigError(f"job_limits.{name}: {error.message}", hint=error.hint) from None
    return [found[name] for name in sorted(found)]


def unknown_limits(given: Mapping[str, JobLimitSettings], handlers: Handlers) -> list[str]:
    """Limits of the configuration that no handler here has: misspelt, or of another program under the same configuration."""
    known = sorted(_of_code(handlers))
    near = {name: did_you_mean(name, known) for name in sorted(given) if name not in known}
    return [f"{name} ({hint})" if hint else name for name, hint in near.items()]


def _of_code(handlers: Handlers) -> dict[str, LimitValues]:
    found: dict[str, LimitValues] = {}
    for handler in handlers:
        check_same_numbers(handler.name, handler.options.limits, handlers)
        found.update((limit.name, limit.values) for limit in handler.options.limits)
    return found


def _with_configured(values: LimitValues, given: JobLimitSettings) -> LimitValues:
    """The numbers of a limit of the code, with those of the configuration.

    Raises:
        InputError: there is a burst, and neither has a rate.
    """
    running = values.running if given.running is None else given.running
    if given.rate is None:
        rate, burst = values.rate, values.burst if given.burst is None else given.burst
        return checked_values(values.name, running, rate, burst)
    return checked_values(values.name, running, given.rate, given.burst)
