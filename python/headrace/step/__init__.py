"""The step door: a whole training step in headrace's engine. See compile_step()."""

from .step import CompiledStep, compile_step

__all__ = ["CompiledStep", "compile_step"]
