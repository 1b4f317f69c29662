"""What the jobs of tests/gpu compute on: the driver's own library, or torch.

Responsible for holding device memory, for a piece of work that ends, for one that never does, and for saying why memory
was refused. The driver is called by ctypes: a context is there in half a second, and a kernel that never ends is a loop
of its own, which no optimizer may take away. torch is for what only torch says: its words when memory runs out.
Refuses to touch any setting of the driver or the device.

    python -P tests/gpu/workloads/devices.py cuda|torch     tries the device: memory, work; exit 0 and one line of JSON
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any, Protocol

MIB = 1024**2


class Device(Protocol):
    def take(self, mib: int) -> None:
        """Hold so much more until the process ends. Raises with the driver's, or torch's, word for too little."""

    def work(self) -> None:
        """Some milliseconds of it, waited for."""

    def endless(self) -> None:
        """Work that never ends, waited for."""

    def free_mib(self) -> int: ...


class CudaError(RuntimeError):
    """The driver's library refused a call: `name` is its own, such as CUDA_ERROR_OUT_OF_MEMORY."""

    def __init__(self, call: str, name: str, code: int) -> None:
        super().__init__(f"{call} answered {name} ({code})")
        self.name, self.code = name, code


# One thread each. The loop of `endless` looks at a word that nobody ever sets; volatile, so that it is read each time.
# The driver compiles the text for the card it finds.
PTX = """
.version {version}
.target {target}
.address_size 64

.visible .entry work(.param .u64 word, .param .u32 rounds)
{{
    .reg .pred %more;
    .reg .u32 %left, %value;
    .reg .u64 %at;
    ld.param.u64 %at, [word];
    ld.param.u32 %left, [rounds];
    cvta.to.global.u64 %at, %at;
    mov.u32 %value, 1;
ROUND:
    mad.lo.u32 %value, %value, 1664525, 1013904223;
    sub.u32 %left, %left, 1;
    setp.ne.u32 %more, %left, 0;
    @%more bra ROUND;
    st.volatile.global.u32 [%at+4], %value;
    ret;
}}

.visible .entry endless(.param .u64 word)
{{
    .reg .pred %stop;
    .reg .u32 %seen;
    .reg .u64 %at;
    ld.param.u64 %at, [word];
    cvta.to.global.u64 %at, %at;
LOOK:
    ld.volatile.global.u32 %seen, [%at];
    setp.ne.u32 %stop, %seen, 0;
    @%stop bra DONE;
    bra LOOK;
DONE:
    ret;
}}
"""
TARGETS = (("6.0", "sm_50"), ("7.0", "sm_80"), ("7.8", "sm_90"))  # the first that the driver takes
_ROUNDS = 1_000_000  # about 10 ms
_SIGNATURES: dict[str, list[Any]] = {  # as cuda.h has them; CUdevice is an int, CUdeviceptr 64 bits wide
    "cuInit": [ctypes.c_uint],
    "cuGetErrorName": [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)],
    "cuDeviceGet": [ctypes.POINTER(ctypes.c_int), ctypes.c_int],
    "cuDevicePrimaryCtxRetain": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int],
    "cuCtxSetCurrent": [ctypes.c_void_p],
    "cuCtxSynchronize": [],
    "cuMemGetInfo_v2": [ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)],
    "cuMemAlloc_v2": [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t],
    "cuMemsetD8_v2": [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t],
    "cuModuleLoadData": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p],
    "cuModuleGetFunction": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p],
    "cuLaunchKernel": [
        *[ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p],
        *[ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_void_p)],
    ],
}


class Cuda:
    """The first device, by libcuda.so.1 alone. Raises OSError without the library, CudaError."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._module: ctypes.c_void_p | None = None
        self._word = ctypes.c_uint64()  # two words: what `endless` waits for, and where `work` writes

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            told = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(told))
            raise CudaError(name, (told.value or b"an unknown error").decode(), code)

    def take(self, mib: int) -> None:
        block = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(block), mib * MIB)
        self._call("cuMemsetD8_v2", block, 1, mib * MIB)
        self._call("cuCtxSynchronize")

    def work(self) -> None:
        self._launch("work", self._at(), ctypes.c_uint(_ROUNDS))

    def endless(self) -> None:
        self._launch("endless", self._at())

    def free_mib(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value // MIB

    def _at(self) -> ctypes.c_uint64:
        if not self._word.value:
            self._call("cuMemAlloc_v2", ctypes.byref(self._word), 8)
            self._call("cuMemsetD8_v2", self._word, 0, 8)
            self._call("cuCtxSynchronize")
        return self._word

    def _launch(self, name: str, *parameters: Any) -> None:
        """One thread of it, to its end."""
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), self._kernels(), name.encode())
        addresses = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(each) for each in parameters))
        self._call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, addresses, None)
        self._call("cuCtxSynchronize")

    def _kernels(self) -> ctypes.c_void_p:
        refused: CudaError | None = None
        for version, target in TARGETS:
            if self._module is not None:
                break
            module = ctypes.c_void_p()
            try:
                self._call(
                    "cuModuleLoadData", ctypes.byref(module), PTX.format(version=version, target=target).encode()
                )
            except CudaError as error:
                refused = error
            else:
                self._module = module
        if self._module is None:
            assert refused is not None
            raise refused
        return self._module


class Torch:
    """The first device, by torch. Raises ImportError, and what torch raises without a device."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._held = [torch.ones(1, device="cuda:0")]
        torch.cuda.synchronize()

    def take(self, mib: int) -> None:
        self._held.append(self._torch.empty(mib * MIB, dtype=self._torch.uint8, device="cuda:0").fill_(1))
        self._torch.cuda.synchronize()

    def work(self) -> None:
        self._torch.cuda._sleep(2_000_000)
        self._torch.cuda.synchronize()

    def endless(self) -> None:
        while True:
            self._torch.cuda._sleep(2**62)  # cycles: decades
            self._torch.cuda.synchronize()

    def free_mib(self) -> int:
        return int(self._torch.cuda.mem_get_info(0)[0]) // MIB


def open_device(kind: str) -> Device:
    """`cuda` or `torch`."""
    return Torch() if kind == "torch" else Cuda()


def main(kind: str) -> None:
    began_s = time.monotonic()
    device = open_device(kind)
    opened_s = time.monotonic() - began_s
    device.take(16)
    device.work()
    print(json.dumps({"opened_s": round(opened_s, 2), "free_mib": device.free_mib()}))


if __name__ == "__main__":
    main(sys.argv[1])
