"""What backends share whose code runs on a device: which one, its tensors, the runner."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np

from pullback.backends.base import (
    Code,
    Compiler,
    Device,
    Image,
    Job,
    Launched,
    Runner,
    Stored,
    Values,
)
from pullback.backends.cuda import lending
from pullback.backends.cuda.code import CudaCode
from pullback.backends.cuda.driver import driver
from pullback.backends.cuda.memory import Resident
from pullback.backends.cuda.runner import CudaRunner
from pullback.config import Options
from pullback.errors import OptionError, UnsupportedError
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target


class OnDevice(Compiler):
    """Code for a device, which libcuda loads; they differ in how it is made."""

    def load(self, kept: Sequence[Stored], job: Job) -> list[Code] | None:
        if job.store is None:
            return None
        codes: dict[str, CudaCode] = {}
        for facts in kept:
            data = job.store.get(facts.key)
            if data is None:
                return None
            codes.setdefault(facts.key, CudaCode.read(data))
        job.stats.loaded += len(codes)
        return [Code(s, codes[s.key].body, 0, codes[s.key]) for s in kept]

    def runner(self, image: Image) -> Runner:
        """The device. Raises: DeviceError."""
        return CudaRunner(image, driver(self.ordinal(image.made.target)))

    def device(self, target: Target) -> Device | None:
        """A device, of which schedules of launches may be known."""
        return Device(self.name, target.name)

    def measured(
        self,
        kernel: Kernel,
        given: Callable[[], Values],
        target: Target,
        known: Container[str],
        seconds: float,
    ) -> list[Launched]:
        """Raises: UnsupportedError: launches that have no schedules of their own."""
        what = f"the backend {self.name!r} measures no schedules"
        raise UnsupportedError(what, help='"triton-cuda" does', code="E197")

    def unwatched(self, options: Options) -> None:
        """Raises: UnsupportedError for what runs on the host alone."""
        if options.check or options.profile:
            what = f"the backend {self.name!r} neither checks launches nor times them"
            raise UnsupportedError(what, help="the backend `llvm` does", code="E358")

    def ordinal(self, named: str | None) -> int:
        """The number of the device that is asked for. Raises: OptionError for what names none."""
        kind, _, number = (named or "cuda:0").partition(":")
        if kind == "cuda" and number.isascii() and number.isdigit():
            return int(number)
        help_ = 'target="cuda:1" is a device; what its kernels are made for is read off it'
        raise OptionError(f"target {named!r} for {self.name}", help=help_, code="E375")

    def room(self, ordinal: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> Resident:
        """An array of a device, not filled. Raises: DeviceError."""
        return Resident(driver(ordinal), shape, kind)

    def received(self, data: Any, copy: bool | None) -> Resident:
        """Another library's array of a device, or a copy. Raises: UnsupportedError, OptionError."""
        return lending.received(data, driver, copy)

    def handed(self, own: Any, kept: object, stream: Any, version: Any, copy: bool) -> Any:
        """A DLPack capsule of an array, or of a copy. Raises: OptionError."""
        return lending.handed(own, kept, stream, version, copy)

    def interface_of(self, own: Any) -> dict[str, Any]:
        """What `__cuda_array_interface__` says of an array. Raises: UnsupportedError."""
        return lending.interface_of(own)
