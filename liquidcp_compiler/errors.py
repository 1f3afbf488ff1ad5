"""Every exception that LiquidCP raises on purpose.

All of them derive from :class:`LiquidCPError`, so ``except LiquidCPError`` catches what a user can mend. A message
names the field or task, the value that came, what is allowed, and what to do.
"""

from __future__ import annotations


class LiquidCPError(Exception):
    """Base of all LiquidCP errors."""


class LiquidCPWarning(UserWarning):
    """Base of all LiquidCP warnings."""


class DroppedRecordsWarning(LiquidCPWarning):
    """A timeline lacks the records that its CTAs had no room for: its busy times are too small."""

    def __init__(self, dropped: int, ctas: int, capacity: int, needed: int) -> None:
        self.dropped, self.ctas, self.capacity, self.needed = dropped, ctas, capacity, needed
        super().__init__(
            f"{dropped} records of {ctas} CTAs were dropped: trace_capacity is {capacity}, and {needed} would hold all"
        )


class InvalidField(LiquidCPError, ValueError):
    """A field of a problem, option or file holds a value that is not allowed.

    Attributes: ``field`` (dotted path, e.g. ``requests[3].query``), ``value``, ``allowed`` (text).
    """

    def __init__(self, field: str, value: object, allowed: str, hint: str = "") -> None:
        self.field, self.value, self.allowed, self.hint = field, value, allowed, hint
        shown = repr(value)
        shown = shown if len(shown) <= 160 else shown[:110] + "..." + shown[-45:]
        super().__init__(f"{field} is {shown}; allowed: {allowed}" + (f". {hint}" if hint else ""))


class UnsupportedError(LiquidCPError, NotImplementedError):
    """A meaningful request that this version cannot honour; the message says which option, and what is supported."""

    def __init__(self, option: str, value: object, supported: str, hint: str = "") -> None:
        self.option, self.value, self.supported = option, value, supported
        super().__init__(
            f"{option} = {value!r} is not supported; supported: {supported}" + (f". {hint}" if hint else "")
        )


class MaskError(LiquidCPError, ValueError):
    """A mask does not fit the lengths, or hides every query-key pair."""


class TensorError(LiquidCPError, ValueError):
    """A tensor has the wrong shape, dtype, device or layout."""

    def __init__(self, name: str, what: str, got: object, expected: object, hint: str = "") -> None:
        self.name, self.what, self.got, self.expected = name, what, got, expected
        super().__init__(f"{name}: {what} is {got}, expected {expected}" + (f". {hint}" if hint else ""))


class HandleError(LiquidCPError, RuntimeError):
    """A number given to a torch op stands for no living world or plan."""

    def __init__(self, kind: str, handle: int) -> None:
        self.kind, self.handle = kind, handle
        super().__init__(
            f"no {kind} has handle {handle}, or it is gone; a handle keeps nothing alive, so keep the {kind} itself as "
            "long as it is used, and take handles with liquidcp_runtime.handle_of in this process"
        )


class LseBaseError(LiquidCPError, TypeError):
    """Two partial states with log-sum-exps of different bases were combined."""


class GraphError(LiquidCPError, ValueError):
    """A graph is built wrongly: an id out of range, a task with a missing operand, an unknown name."""


class ParseError(LiquidCPError, ValueError):
    """The text form of a graph does not parse. Names the line and column."""

    def __init__(self, line: int, column: int, message: str) -> None:
        self.line, self.column = line, column
        super().__init__(f"line {line}, column {column}: {message}")


class VerificationError(LiquidCPError):
    """A graph breaks a rule of its stage.

    Attributes: ``rule``, ``stage``, ``task`` (printed name or ""), ``pass_name`` (pass after which the rule failed).
    """

    def __init__(self, rule: str, stage: str, task: str, message: str, pass_name: str = "") -> None:
        self.rule, self.stage, self.task, self.pass_name = rule, stage, task, pass_name
        self.detail = message
        where = f" after pass {pass_name}" if pass_name else ""
        at = f" at {task}" if task else ""
        super().__init__(f"rule {rule} ({stage}){where}{at}: {message}")

    def after(self, pass_name: str) -> VerificationError:
        """The same error, naming the pass that produced the graph."""
        return VerificationError(self.rule, self.stage, self.task, self.detail, pass_name)


class PassError(LiquidCPError):
    """A pass cannot be applied to this graph; names the pass and what it needs."""

    def __init__(self, pass_name: str, message: str) -> None:
        self.pass_name = pass_name
        super().__init__(f"pass {pass_name}: {message}")


class PlanError(LiquidCPError, ValueError):
    """A plan file or a plan's tables are unusable: another version, torn, or inconsistent."""


class BatchPlanError(LiquidCPError, RuntimeError):
    """A batch of a data loader could not be planned.

    Attributes: ``batch_idx`` (from 0, in the order of the source), ``kind`` (class name of the cause), ``details`` (the
    traceback in the worker, where there was one). The cause itself is chained where it happened in this process.
    """

    def __init__(self, batch_idx: int, kind: str, message: str, details: str = "") -> None:
        self.batch_idx, self.kind, self.details = batch_idx, kind, details
        super().__init__(f"batch {batch_idx}: {kind}: {message}")


class PlanMismatchError(PlanError):
    """Ranks hold different plans; raised on every rank before anything starts."""


class TraceError(LiquidCPError, ValueError):
    """The records of a traced launch cannot be those of the plan, or of the grid, that they are read with."""


class ScheduleError(LiquidCPError, RuntimeError):
    """A plan broke a rule of the protocol while it ran: a read before ready, a double or missing contribution.

    Attributes: ``rank``, ``task`` (printed name).
    """

    def __init__(self, rank: int, task: str, message: str) -> None:
        self.rank, self.task = rank, task
        super().__init__(f"rank {rank}, {task}: {message}")


class DeadlockError(ScheduleError):
    """A wait that can never be met. Names rank, task, the signal, and its expected and seen values."""

    def __init__(self, rank: int, task: str, signal: str, expected: int, seen: int) -> None:
        self.signal, self.expected, self.seen = signal, expected, seen
        super().__init__(rank, task, f"waits for ever on {signal}: expected {expected}, seen {seen}")


class CodegenError(LiquidCPError):
    """No kernel can be generated for this specification; says which field and what is supported."""


class KernelCostError(CodegenError):
    """A kernel that is to be shipped spills registers, or its compiler warned of lost speed; names kernel and cost.

    Attributes: ``kernel``, ``arch``, ``cost`` (text).
    """

    def __init__(self, kernel: str, arch: str, cost: str) -> None:
        self.kernel, self.arch, self.cost = kernel, arch, cost
        super().__init__(f"{kernel} for {arch} cannot be shipped: {cost}")


class KernelStoreWarning(UserWarning):
    """Compiled kernels on disk cannot be used or kept as asked; the run goes on, and compiles them."""


class NvrtcError(LiquidCPError, RuntimeError):
    """NVRTC refused the generated source; carries the log and the path of the saved source."""

    def __init__(self, message: str, log: str = "", source_path: str = "") -> None:
        self.log, self.source_path = log, source_path
        super().__init__(message + (f"\nsource: {source_path}" if source_path else "") + (f"\n{log}" if log else ""))


class DriverError(LiquidCPError, RuntimeError):
    """A CUDA driver call failed; names the call and the status."""


class OutOfResources(LiquidCPError, RuntimeError):
    """Something does not fit: names the resource, what is required, the limit, and what to reduce."""

    def __init__(self, resource: str, required: int, limit: int, hint: str) -> None:
        self.resource, self.required, self.limit = resource, required, limit
        super().__init__(f"{resource}: {required} needed, {limit} available. {hint}")


class GraphCaptureError(LiquidCPError, RuntimeError):
    """Something that a CUDA graph cannot hold was asked for while a stream is being captured."""


class DeviceWaitError(LiquidCPError, RuntimeError):
    """A wait inside a kernel ran out of its budget: rank, CTA, role, task, signal, expected and seen value."""
