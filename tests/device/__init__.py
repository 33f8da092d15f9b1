"""A device that every machine has, to try on it what is written for accelerators: host memory behind a device type of its own.

Each operator runs the CPU's kernel on the same memory. Tensors of several devices in one call raise, as on a GPU, and the
process group's backend for it takes its tensors alone, as NCCL does. torch's `OpenReg` shows how such a device is made.
"""
