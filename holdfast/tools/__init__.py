"""The tools that a model can call, one module per family. `tool.py` is the contract of a tool."""
