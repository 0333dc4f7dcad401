"""From the definition of a workflow to the rows that are stored. Everything that can be wrong with it is found here."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from jobmaster.client.handler_lookup import ResolvedHandler
from jobmaster.client.submitter import SubmitChecks
from jobmaster.client.workflows.definition import Choice, Flow, Result, Step, StepOptions
from jobmaster.codec import decode_headers, encode_headers, encode_value
from jobmaster.handlers import Call, check_name
from jobmaster.model.errors import InputError
from jobmaster.model.flow.workflow import NewStep, NewWorkflow, RunsOn
from jobmaster.model.ids import text

STEPS_MAX = 1000
"""Steps of a workflow, compensations included."""
DEPTH_MAX = 200
"""Steps one after another."""
WAITS_MAX = 25_000
"""Pairs of a step and a step that it waits for: each end of a step looks at those that are left."""
BYTES_MAX = 16 << 20
"""Arguments and headers of all steps of a workflow."""
NAME_CHARS_MAX = 200
DELAY_SECONDS_MAX = 316_224_000.0


class Compiler:
    """One workflow on its way into the master."""

    def __init__(self, flow: Flow, workflow_id: bytes, checks: SubmitChecks, args_bytes: int) -> None:
        self._flow = flow
        self._id = workflow_id
        self._checks = checks
        self._args_bytes = args_bytes
        self._kept: set[Step[Any]] = set()
        self._parents: dict[Step[Any], tuple[Step[Any], ...]] = {}

    async def compile(self, name: str) -> NewWorkflow:
        """The rows.

        Raises:
            InputError: it could never work: a cycle, a missing step, an unknown handler, arguments or options that do not
                fit, too many steps.
        """
        check_name(name, "the workflow's name", NAME_CHARS_MAX)
        steps = self._flow.steps
        count = len(steps) + sum(step.undo is not None for step in steps)
        if count > STEPS_MAX:
            raise InputError(
                f"a workflow has at most {STEPS_MAX} steps, and this one has {count}",
                hint="start parts of it as workflows of their own, or use a batch for many equal jobs",
            )
        self._parents = {step: self._parents_of(step) for step in steps}
        if (waits := sum(map(len, self._parents.values()))) > WAITS_MAX:
            raise InputError(
                f"the steps wait for one another {waits} times, the limit is {WAITS_MAX}",
                hint="put a step between two large groups, so that the second waits for that one alone",
            )
        self._number = {step: number for number, step in enumerate(self._in_order(), 1)}
        names = self._names()
        rows = [await self._row(step, names[step]) for step in self._number]
        rows += [
            await self._undo(step, len(rows) + at, f"undo {names[step]}")
            for at, step in enumerate((step for step in self._number if step.undo is not None), 1)
        ]
        rows = [row._replace(kept=step in self._kept) for row, step in zip(rows, self._number, strict=False)] + rows[
            len(steps) :
        ]
        if (size := sum(len(row.args) + len(row.headers) for row in rows)) > BYTES_MAX:
            raise InputError(f"the steps have {size} bytes together, the limit is {BYTES_MAX}")
        return NewWorkflow(self._id, name, self._args_bytes, tuple(rows))

    # ------------------------------------------------------------ the graph

    def _parents_of(self, step: Step[Any]) -> tuple[Step[Any], ...]:
        """Parents of the definition, then steps whose results it needs."""
        parents = dict.fromkeys(self._flow.parents.get(step, ()))
        for result in _results(step.call.arguments):
            if result._step is not None:
                parents.setdefault(result._step)
        for parent in parents:
            if parent not in self._flow.steps:
                raise InputError(
                    f"step {step.label!r} depends on step {parent.label!r}, which is not in the workflow",
                    hint="add it with chain() or group()",
                )
        return tuple(parents)

    def _in_order(self) -> list[Step[Any]]:
        """Parents first, otherwise in the order of the definition."""
        depth: dict[Step[Any], int] = {}
        left = list(self._flow.steps)
        while left:
            ready = [step for step in left if all(parent in depth for parent in self._parents[step])]
            if not ready:
                names = ", ".join(sorted({step.label for step in left}))
                raise InputError(f"the workflow has a cycle: each of these steps waits for another one: {names}")
            for step in ready:
                depth[step] = 1 + max((depth[parent] for parent in self._parents[step]), default=0)
            left = [step for step in left if step not in depth]
        if (deepest := max(depth.values())) > DEPTH_MAX:
            raise InputError(f"a workflow has at most {DEPTH_MAX} steps one after another, and this one has {deepest}")
        return list(depth)

    def _with_those_before(self, step: Step[Any]) -> set[Step[Any]]:
        """The step and every step that has succeeded when it has, or was skipped."""
        found, left = {step}, [step]
        while left:
            left = [each for one in left for each in self._parents[one] if each not in found]
            found.update(left)
        return found

    def _names(self) -> dict[Step[Any], str]:
        given = [check_name(step.name, "the name of a step", NAME_CHARS_MAX) for step in self._number if step.name]
        if twice := sorted({name for name in given if given.count(name) > 1}):
            raise InputError(f"two steps have the name {twice[0]!r}")
        used, names = set(given), {}
        for step in self._number:
            name, number = step.label, 1
            while step.name is None and name in used:
                number += 1
                name = f"{step.label} {number}"
            used.add(name)
            names[step] = name
        return names

    # ------------------------------------------------------------ rows

    async def _row(self, step: Step[Any], name: str) -> NewStep:
        runs_on = self._flow.runs_on.get(step, RunsOn.SUCCESS)
        delay = _delay_seconds(step.delay, name)
        return await self._made(
            self._number[step], name, runs_on, step.call, step.options, self._parents[step], delay,
            self._flow.choices.get(step),
        )  # fmt: skip

    async def _undo(self, step: Step[Any], number: int, name: str) -> NewStep:
        assert step.undo is not None
        before = self._with_those_before(step)
        for result in _results(step.undo.arguments):
            needed = result._step
            if needed in self._number and needed not in before:
                raise InputError(
                    f"step {name!r}: it needs the result of step {needed.label!r}, which need not have succeeded when "
                    f"{step.label!r} is undone",
                    hint="a compensation may need the results of its step and of those before it",
                )
        options = step.options.copy()
        options.pop("wait_for", None)
        return await self._made(number, name, RunsOn.UNDO, step.undo, options, (step,), 0.0, None)

    async def _made(
        self, number: int, name: str, runs_on: RunsOn, call: Call[Any], options: StepOptions, before: Sequence[Step[Any]],
        delay: float, choice: Choice | None,
    ) -> NewStep:  # fmt: skip
        unregistered = bool(options.get("allow_unregistered"))
        try:
            resolved = await self._checks.handler_lookup.find(call.handler, allow_unregistered=unregistered)
            args, refs = await self._arguments(resolved, call, before, unregistered)
            given: Any = options
            checked = self._checks.checked_for(resolved, given)
            if resolved.ordering is not None:
                if refs != "[]":
                    raise InputError(
                        f"handler {resolved.name!r} has an ordering key, and results of other steps are not known yet",
                        hint="give it arguments that are known now, or have a step submit the job",
                    )
                checked = self._checks.in_order(resolved, args, checked)
        except InputError as error:
            raise type(error)(f"step {name!r}: {error.message}", hint=error.hint) from None
        headers = msgspec.structs.replace(decode_headers(checked.headers), workflow=(text(self._id), number))
        return NewStep(
            number=number,
            name=name,
            runs_on=runs_on.value,
            parents=tuple(self._number[parent] for parent in before),
            choice=None if choice is None else self._choice(choice),
            handler=resolved.name,
            priority=int(checked.priority or resolved.priority),
            lane=checked.lane or resolved.lane,
            args=args,
            refs=refs,
            headers=encode_headers(headers),
            delay_us=round(delay * 1e6),
            kept=False,
        )

    def _choice(self, choice: Choice) -> str:
        step = choice.value._step
        assert step is not None
        for case in choice.cases:
            if not isinstance(case, str | int | float | None):
                raise InputError(f"a case of a branch is text, a number, a boolean or None, not {case!r}")
        self._kept.add(step)
        cases = [encode_value(case, "a case of a branch").decode() for case in choice.cases]
        fields = {"step": self._number[step], "path": choice.value._path, "in": cases, "else": choice.otherwise}
        return msgspec.json.encode(fields).decode()

    # ------------------------------------------------------------ arguments

    async def _arguments(
        self, resolved: ResolvedHandler, call: Call[Any], before: Sequence[Step[Any]], unregistered: bool
    ) -> tuple[bytes, str]:
        """The arguments without the results of other steps, and where those belong."""
        self._checks.refuse_plain(resolved.name, "a step of a workflow")
        results: list[Result] = []
        mark = secrets.token_hex(16)
        args = {name: _marked(value, mark, results, before) for name, value in call.arguments.items()}
        if not results:
            data = self._checks.encode(resolved, args)
            if resolved.handler is None:
                await self._checks.handler_lookup.check(resolved, data, allow_unregistered=unregistered)
            return data, "[]"
        later = frozenset(name for name, value in call.arguments.items() if any(True for _ in _results(value)))
        data = self._checks.encode_template(resolved, args, later)
        words = [f'"{mark}{number:06d}"'.encode() for number in range(len(results))]
        places: list[tuple[int, int, tuple[str, ...]]] = []
        for at, word, result in sorted(
            ((data.index(word), word, result) for word, result in zip(words, results, strict=True)),
            key=lambda one: one[0],
        ):
            places.append((at - len(word) * len(places), self._source(result), result._path))
            data = data.replace(word, b"", 1)
        return data, msgspec.json.encode(places[::-1]).decode()

    def _source(self, result: Result) -> int:
        step = result._step
        assert step is not None
        if step not in self._number:
            raise InputError(
                f"it needs the result of step {step.label!r}, which is not in the workflow",
                hint="add it with chain() or group()",
            )
        self._kept.add(step)
        return self._number[step]


def _delay_seconds(value: object, name: str) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= DELAY_SECONDS_MAX:
        raise InputError(
            f"'delay' of step {name!r} must be 0 to {DELAY_SECONDS_MAX:.0f} seconds, or a timedelta, not {value!r}"
        )
    return float(seconds)


def _results(value: object) -> list[Result]:
    """Results of steps anywhere in a value."""
    if isinstance(value, Result):
        return [value]
    if isinstance(value, Mapping):
        return [found for each in value.values() for found in _results(each)]
    if isinstance(value, list | tuple):
        return [found for each in value for found in _results(each)]
    return []


def _marked(value: object, mark: str, results: list[Result], before: Sequence[Step[Any]]) -> object:
    """The value with a mark in the place of each result, in the order in which they are encoded."""
    if isinstance(value, Result):
        found = _previous(value, before) if value._step is None else [value]
        marks = []
        for one in found:
            marks.append(f"{mark}{len(results):06d}")
            results.append(one)
        return marks[0] if value._step is not None or len(before) == 1 else marks
    if isinstance(value, Mapping):
        return {key: _marked(each, mark, results, before) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_marked(each, mark, results, before) for each in value]
    return value


def _previous(value: Result, before: Sequence[Step[Any]]) -> list[Result]:
    if not before:
        raise InputError("previous is the result of the step before, and there is none", hint="use it behind chain()")
    if len(before) > 1 and value._path:
        raise InputError(
            "previous is a list here, one result for each of the steps before",
            hint="name the step: result_of(step).field",
        )
    return [Result(step, value._path) for step in before]
