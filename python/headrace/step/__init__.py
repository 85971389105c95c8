"""The step door: headrace.compile_step()."""
